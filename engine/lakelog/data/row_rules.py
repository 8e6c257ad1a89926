"""`RowRules`: CHECK constraints, invariants, generated and identity columns of a table.

Rules are evaluated on rows in the table's schema. A rule that lakelog cannot evaluate as Spark does
is refused by name before a row is written. Existing rows satisfy the rules, so only new versions of
rows are checked.

Source: Delta protocol, Column Invariants; CHECK Constraints; Generated Columns; Identity Columns.
Delta Lake, CheckDeltaInvariant, ColumnWithDefaultExprUtils, IdentityColumn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    ConstraintViolationError,
    CorruptionError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lakelog.lazy import cached_property
from lakelog.model import contract
from lakelog.model.contract import Struct, fields_of
from lakelog.model.metadata import CONSTRAINT_PROPERTY
from lakelog.transaction.metadata_changes import HIGH_WATER_MARK

if TYPE_CHECKING:
    from lakelog.data.row_expression import RowExpression

GENERATION = "delta.generationExpression"
INVARIANT = "delta.invariants"
_INVARIANT_FORM = '{"expression": {"expression": "<SQL>"}}'
IDENTITY_START, _STEP = "delta.identity.start", "delta.identity.step"
_EXPLICIT = "delta.identity.allowExplicitInsert"
_BOOLEAN, _LONG = contract.Primitive("boolean"), contract.Primitive("long")
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Rule:
    """One expression: the rule's name in messages, the feature, the column, and the SQL text."""

    name: str
    feature: str
    column: str | None
    text: str


@dataclass(frozen=True)
class Identity:
    """An identity column, and the last value that was generated."""

    column: str
    start: int
    step: int
    mark: int | None
    allows_values: bool


@dataclass(frozen=True)
class RowRules:
    """The rules of one table at the time of a write; small and picklable."""

    schema: Struct
    checks: tuple[Rule, ...] = ()
    generated: tuple[Rule, ...] = ()
    identities: tuple[Identity, ...] = ()
    partition_columns: tuple[str, ...] = ()
    now_us: int = field(default_factory=lambda: time.time_ns() // 1000, compare=False)

    @staticmethod
    def of(table: TableConfiguration) -> RowRules:
        """The rules of a table, of features that its protocol supports."""
        schema = table.metadata.schema
        checks = []
        if table.is_active("checkConstraints"):
            checks += [check(key, text or "") for key, text in table.metadata.constraints.items()]
        if table.is_active("invariants"):
            for at in fields_of(schema):
                if INVARIANT in at.field.metadata:
                    text = _invariant(at.text, at.field.metadata[INVARIANT])
                    checks.append(
                        Rule(f"the invariant of {at.text!r}", "invariants", at.text, text)
                    )
        generated: tuple[Rule, ...] = ()
        if table.is_active("generatedColumns"):
            generated = tuple(
                _generated(at) for at in fields_of(schema) if GENERATION in at.field.metadata
            )
        identities: tuple[Identity, ...] = ()
        if table.is_active("identityColumns"):
            identities = tuple(
                _identity(f) for f in schema.fields if {IDENTITY_START, _STEP} & f.metadata.keys()
            )
        partitions = table.metadata.partition_columns
        return RowRules(schema, tuple(checks), generated, identities, partitions)

    @cached_property
    def _expressions(self) -> Mapping[Rule, RowExpression]:
        """Every rule's expression; raises UnsupportedFeatureError for one that is not supported."""
        return {rule: self._translated(rule) for rule in (*self.checks, *self.generated)}

    def _translated(self, rule: Rule) -> RowExpression:
        from lakelog.data.row_expression import AmbiguousNameError, refusal, translate
        from lakelog.sql.values import UnsupportedExpressionError

        is_generated = rule.feature == "generatedColumns"
        field = self.schema.field(rule.column or "") if is_generated else None
        type_ = _BOOLEAN if field is None else field.type
        hint = "write these rows with an engine that evaluates it; rows can be deleted here"
        try:
            expression = translate(rule.text, self.schema, type_, self.now_us)
        except UnsupportedExpressionError as cause:
            if isinstance(cause, AmbiguousNameError):
                hint = "write the column in backquotes, or the string in single quotes"
            raise UnsupportedFeatureError(
                f"{rule.name} has {refusal(cause)}",
                column=rule.column,
                expected=rule.text,
                found=rule.feature,
                hint=hint,
            ) from cause
        if is_generated:
            self._require_determined(rule, expression)
        return expression

    def _require_determined(self, rule: Rule, expression: RowExpression) -> None:
        """Refuse a generated column that columns which are not generated do not determine: an
        update of one would have to compute others in order, or to find a time again.
        """
        generated = {each.column for each in self.generated}
        read = [f"the column {name!r}" for name in expression.columns if name in generated]
        for other in read or ["the current time"] * expression.reads_clock:
            raise UnsupportedFeatureError(
                f"{rule.name} depends on {other}, which "
                f"{'is generated, too' if read else 'changes'}",
                column=rule.column,
                expected=rule.text,
                found=rule.feature,
                hint="an overwrite with schema_mode='overwrite' drops the expression; rows can be "
                "deleted here",
            )

    @property
    def ambiguous(self) -> tuple[Rule, ...]:
        """The rules that name a column in double quotes, which is a string in Spark."""
        from lakelog.data.row_expression import AmbiguousNameError

        found = []
        for rule in (*self.checks, *self.generated):
            try:
                self._translated(rule)
            except UnsupportedFeatureError as error:
                if isinstance(error.__cause__, AmbiguousNameError):
                    found.append(rule)
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """The rules' names in messages."""
        identities = (f"the identity column {each.column!r}" for each in self.identities)
        return (*(rule.name for rule in (*self.checks, *self.generated)), *identities)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expressions read or compute, in the order of the schema."""
        read = {name for expression in self._expressions.values() for name in expression.columns}
        read |= {rule.column or "" for rule in self.generated}
        return tuple(name for name in self.schema.names if name in read)

    @property
    def reads_clock(self) -> bool:
        """Whether an expression depends on `now_us`."""
        return any(expression.reads_clock for expression in self._expressions.values())

    def without(self, columns: Collection[str]) -> RowRules:
        """The rules of rows that lack columns: those that neither read nor compute one."""

        def applies(rule: Rule) -> bool:
            return rule.column not in columns and self._expressions[rule].reads_none_of(columns)

        return replace(
            self,
            checks=tuple(filter(applies, self.checks)),
            generated=tuple(filter(applies, self.generated)),
            identities=tuple(each for each in self.identities if each.column not in columns),
        )

    def require_supported(self, before: RowRules | None = None) -> None:
        """Refuse rules that cannot be evaluated, unless the table had them before."""
        if before is not None:
            for rule in (*self.checks, *self.generated):
                if rule not in (*before.checks, *before.generated):
                    self._translated(rule)
        elif self.checks or self.generated:
            assert self._expressions

    def require_exact_types(self, before: RowRules | None) -> None:
        """Refuse new generated columns whose expressions have another type, which Delta on Spark
        refuses in each later change of the metadata.

        Source: Delta Lake, GeneratedColumn.validateGeneratedColumns.
        """
        from lakelog.data.row_expression import translate

        for rule in self.generated:
            column = self.schema.field(rule.column or "")
            if column is None or (before is not None and rule in before.generated):
                continue
            own = translate(rule.text, self.schema, None, self.now_us).type
            if own != contract.nullable_type(column.type):
                raise InvalidInputError(
                    f"the expression of {rule.name} has another type than the column",
                    column=rule.column,
                    expected=contract.type_text(column.type),
                    found=contract.type_text(own),
                    hint=f"cast it: CAST({rule.text} AS ...)",
                )

    def require_insertable(self, given: Collection[str]) -> None:
        """Refuse values of columns whose values are always generated."""
        for identity in self.identities:
            if identity.column in given and not identity.allows_values:
                raise InvalidInputError(
                    f"values of the column {identity.column!r} are always generated",
                    column=identity.column,
                    expected="rows without the column (GENERATED ALWAYS AS IDENTITY)",
                    hint="drop the column from the data",
                )

    def require_updatable(self, assigned: Collection[str]) -> None:
        """Refuse to update identity columns."""
        for identity in self.identities:
            if identity.column in assigned:
                raise InvalidInputError(
                    f"{identity.column!r} is an identity column, and cannot be updated",
                    column=identity.column,
                    expected="other columns",
                    hint="leave it out, in a merge by when_matched_update_all(except_cols=...)",
                )

    def completed(self, rows: pa.Table, columns: Collection[str]) -> pa.Table:
        """The rows with computed values of generated columns."""
        for rule in self.generated:
            if rule.column in columns:
                values = self._expressions[rule].of(rows)
                rows = _with_column(rows, rule.column, values)
        return rows

    def recomputed(self, rows: pa.Table, assigned: Collection[str]) -> pa.Table:
        """Updated rows with new values of the columns of `dependent`."""
        return self.completed(rows, self.dependent(assigned))

    def dependent(self, assigned: Collection[str]) -> list[str]:
        """The generated columns that are not assigned, and depend on one that is."""
        return [
            rule.column or ""
            for rule in self.generated
            if rule.column not in assigned and not self._expressions[rule].reads_none_of(assigned)
        ]

    def check(self, rows: pa.Table, computed: Collection[str] = ()) -> None:
        """Refuse rows that violate a rule; `computed` columns are not compared again."""
        for rule in self.generated:
            if rule.column not in computed:
                self._check_generated(rule, rows)
        for rule in self.checks:
            expression = self._expressions[rule]
            holds = expression.of(rows).fill_null(value=False)
            if not holds.all():
                _refuse(f"rows violate {rule.name}", rule, rows, ~holds, expression.columns)

    def _check_generated(self, rule: Rule, rows: pa.Table) -> None:
        expression = self._expressions[rule]
        name = rule.column or ""
        given = pl.Series(pl.from_arrow(rows.column(name)))
        computed = expression.of(rows)
        if name in self.partition_columns and computed.dtype in (pl.String, pl.Binary):
            # The log has one spelling for empty values and null.
            is_empty = computed.cast(pl.Binary).bin.size() == 0
            computed = computed.set(is_empty.fill_null(value=False), None)
        wrong = given.cast(computed.dtype).ne_missing(computed)
        if wrong.any():
            _refuse(
                f"values of {rule.name} differ from its expression",
                rule,
                rows,
                wrong,
                (*expression.columns, name),
                computed=computed[int(wrong.arg_max() or 0)],
            )


def check(key: str, text: str) -> Rule:
    """A CHECK constraint, from the key and text of its property."""
    name = f"the CHECK constraint {key[len(CONSTRAINT_PROPERTY) :]!r}"
    return Rule(name, "checkConstraints", None, text)


def _with_column(rows: pa.Table, name: str | None, values: pl.Series) -> pa.Table:
    position = rows.column_names.index(name or "")
    target = rows.schema.field(position)
    array = values.to_arrow(compat_level=pl.CompatLevel.oldest())
    return rows.set_column(position, target, pa.chunked_array([array]).cast(target.type))


def _refuse(
    message: str,
    rule: Rule,
    rows: pa.Table,
    wrong: pl.Series,
    columns: Sequence[str],
    **more: object,
) -> None:
    sample = example(rows, columns, int(wrong.arg_max() or 0))
    raise ConstraintViolationError(
        message,
        column=rule.column,
        expected=rule.text,
        found={"rows": int(wrong.sum()), "example": sample | more},
        hint="change or leave out these rows",
    )


def example(rows: pa.Table, columns: Collection[str], row: int) -> dict[str, Any]:
    """A row's values of columns, for an error."""
    found: dict[str, Any] = {}
    for name in rows.column_names:
        if name in columns:
            try:
                found[name] = rows.column(name)[row].as_py()
            except (ValueError, OverflowError):  # a date outside Python's range
                found[name] = "out of range"
    return found


def _invariant(column: str, text: object) -> str:
    try:
        found = json.loads(str(text))["expression"]["expression"]
    except (ValueError, LookupError, TypeError) as cause:
        raise UnsupportedFeatureError(
            f"the invariant of {column!r} cannot be read",
            column=column,
            expected=_INVARIANT_FORM,
            found=str(text),
            hint="write it in this form",
        ) from cause
    return str(found)


def _generated(at: contract.Located) -> Rule:
    text = str(at.field.metadata[GENERATION])
    if len(at.path) > 1:
        raise UnsupportedFeatureError(
            f"the generated column {at.text!r} is a field of another column",
            column=at.text,
            expected=text,
            found="generatedColumns",
        )
    return Rule(f"the generated column {at.text!r}", "generatedColumns", at.text, text)


def _identity(column: contract.Field) -> Identity:
    start, step, mark = (column.metadata.get(k) for k in (IDENTITY_START, _STEP, HIGH_WATER_MARK))
    if type(start) is not int or type(step) is not int or not step or column.type != _LONG:
        raise CorruptionError(
            f"the identity column {column.name!r} has invalid metadata",
            column=column.name,
            expected="a long with delta.identity.start, and a delta.identity.step other than 0",
            found={"type": contract.type_text(column.type), "start": start, "step": step},
        )
    allows = column.metadata.get(_EXPLICIT) is True
    return Identity(column.name, start, step, mark if type(mark) is int else None, allows)


class IdentityValues:
    """Generates values of identity columns, each once; `marks` are the last ones by column."""

    def __init__(self, rules: RowRules, marks: Mapping[str, int]) -> None:
        self._identities = {identity.column: identity for identity in rules.identities}
        self.marks = dict(marks)

    def next(self, column: str, count: int) -> pa.Array:
        """The next values of a column."""
        identity = self._identities[column]
        first = self._first(identity)
        last = first + (count - 1) * identity.step
        if count and not _LEAST <= last <= _GREATEST:
            raise InvalidInputError(
                f"the values of the identity column {column!r} are used up",
                column=column,
                expected="at most 64 bits",
                found=last,
            )
        if count:
            self.marks[column] = last
        return pa.array(np.arange(count, dtype=np.int64) * identity.step + first, pa.int64())

    def _first(self, identity: Identity) -> int:
        mark = self.marks.get(identity.column, identity.mark)
        if mark is None or (mark - identity.start) * identity.step < 0:
            return identity.start
        # The least value after the mark that is start + k * step.
        return identity.start + ((mark - identity.start) // identity.step + 1) * identity.step


def default_value(column: contract.Field, now_us: int) -> Any:
    """The value of a column's default."""
    expression = default_expression(column, now_us)
    try:
        return expression.of(pa.table({"": [0]})).item()
    except InvalidInputError as error:
        error.column = column.name
        raise


def default_expression(column: contract.Field, now_us: int = 0) -> RowExpression:
    """The expression of a column's default, which reads no column."""
    from lakelog.data.row_expression import refusal, translate
    from lakelog.sql.values import UnsupportedExpressionError

    text = str(column.metadata[contract.CURRENT_DEFAULT])
    try:
        return translate(text, Struct(()), column.type, now_us)
    except UnsupportedExpressionError as cause:
        raise UnsupportedFeatureError(
            f"the default of the column {column.name!r} is {refusal(cause)}",
            column=column.name,
            expected=text,
            found="allowColumnDefaults",
            hint="add the column to the data",
        ) from cause


def require_valid_rules(
    table: TableConfiguration, before: TableConfiguration | None = None
) -> None:
    """Refuse the rules of a new table or schema that are not valid, or under which lakelog could
    not write rows; those that the table had `before`, another engine may have made.

    Source: Delta Lake, GeneratedColumn.validateGeneratedColumns, AbstractDeltaCatalog. Spark SQL,
    ResolveDefaultColumns.
    """
    if not table.dialect.has_rows:
        return
    known = None
    if before is not None:
        try:
            known = RowRules.of(before)
        except (UnsupportedFeatureError, CorruptionError):  # of another engine
            return
    try:
        rules = RowRules.of(table)
        rules.require_supported(known)
        rules.require_exact_types(known)
        was = [] if known is None else [_sources(column) for column in known.schema.fields]
        for column in rules.schema.fields:
            if _sources(column) in was:
                continue
            _require_one_source(column, table.metadata.partition_columns)
            if column.metadata.get(contract.CURRENT_DEFAULT) is not None:
                default_value(column, rules.now_us)
    except UnsupportedFeatureError as cause:
        from lakelog.data.row_expression import InvalidExpressionError
        from lakelog.sql.values import UnsupportedExpressionError

        reason, invalid = cause.__cause__, InvalidExpressionError
        if isinstance(reason, UnsupportedExpressionError) and not isinstance(reason, invalid):
            cause.hint = "use another expression: lakelog could not write rows to the table"
            raise
        # Of other rules, the error names the expression and the feature.
        text = cause.found if cause.expected == _INVARIANT_FORM else cause.expected
        raise InvalidInputError(
            cause.message, column=cause.column, found=text, hint="correct or drop it"
        ) from cause
    except CorruptionError as cause:
        raise InvalidInputError(
            cause.message, column=cause.column, expected=cause.expected, found=cause.found
        ) from cause


def _sources(column: contract.Field) -> tuple[contract.DataType, dict[str, object]]:
    """What `require_valid_rules` checks of a column, also if it was renamed."""
    keys = (GENERATION, contract.CURRENT_DEFAULT, IDENTITY_START, _STEP, _EXPLICIT)
    return column.type, {key: column.metadata[key] for key in keys if key in column.metadata}


def _require_one_source(column: contract.Field, partition_columns: Sequence[str]) -> None:
    """Refuse a column with several sources of its values, and an invalid identity column."""
    metadata, identity = column.metadata, {IDENTITY_START, _STEP, _EXPLICIT}
    is_identity = not identity.isdisjoint(metadata)
    sources = [key for key in (GENERATION, contract.CURRENT_DEFAULT) if key in metadata]
    if len(sources) + is_identity > 1:
        raise InvalidInputError(
            f"the values of the column {column.name!r} have several sources",
            column=column.name,
            expected="a generation expression, a default, or the values of an identity column",
            found=sorted(metadata),
        )
    if is_identity and not identity <= metadata.keys():
        raise InvalidInputError(
            f"the identity column {column.name!r} has incomplete metadata",
            column=column.name,
            expected=sorted(identity),
            found=sorted(metadata),
        )
    if is_identity and column.name in partition_columns:
        raise InvalidInputError(
            f"the identity column {column.name!r} cannot be a partition column", column=column.name
        )
