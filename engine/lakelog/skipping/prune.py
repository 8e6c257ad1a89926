"""Selects the files that may match a predicate.

The predicate is evaluated over sets of values instead of values: a file's partition value is a set
of one, a column with statistics is an interval with or without nulls, other columns can have any
value. Each Boolean part then may be true, false or null in the file. The file is kept unless the
predicate can never be true, so unknown values and unsupported expressions keep the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.column_names import close_names, field_at
from lakelog.model.contract import field_of, tree_of
from lakelog.skipping import intervals
from lakelog.skipping.intervals import ANYTHING, FALSE, TRUE, Truth, Values
from lakelog.skipping.statistics import has_bounds
from lakelog.skipping.values import PREFIX, TypedPartitions

ROW_ERROR = "error: "
"""Begins the texts that an expression casts to numbers where a row's value is an error."""
_IN_LIST_LIMIT = 64
_EQUALITIES = ("Eq", "NotEq", "EqValidity", "NotEqValidity")
_ORDERED = {"Lt": (False, True), "LtEq": (False, False), "Gt": (True, True), "GtEq": (True, False)}
# Errors of Polars for an expression that it cannot type, evaluate or serialize.
_REFUSALS = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError)
_OWN_TYPE = "compare each column with a value of its own type"
_CAST_TARGETS: dict[str, pl.DataType] = {
    "Int128": pl.Int128(),
    "Int64": pl.Int64(),
    "Int32": pl.Int32(),
    "Float64": pl.Float64(),
    "Date": pl.Date(),
}


def referenced_columns(where: pl.Expr, schema: contract.Struct) -> tuple[str, ...]:
    """Validate a predicate, and return the top-level columns that it reads, in schema order."""
    outcome, columns = row_wise(where, schema, "where")
    if outcome != pl.Boolean:
        raise InvalidInputError("where must return a Boolean", found=str(outcome))
    return columns


def row_wise(
    expr: pl.Expr,
    schema: contract.Struct,
    name: str,
    empty: pl.DataFrame | None = None,
    *,
    adds_fields: bool = True,
) -> tuple[pl.DataType, tuple[str, ...]]:
    """The type of a row-wise expression, and the columns that it reads; `empty` is a frame of the
    schema without rows, which a caller with many expressions makes once. Without `adds_fields`, an
    expression in which Polars adds fields to structs is refused.
    """
    if not isinstance(expr, pl.Expr):
        raise InvalidInputError(
            f"{name} is not a Polars expression",
            found=type(expr).__name__,
            expected="polars.Expr",
            hint='write, for example, where=pl.col("date") >= date(2024, 1, 1)',
        )
    try:
        roots = set(expr.meta.root_names())
        several = expr.meta.has_multiple_outputs()
    except pl.exceptions.PolarsError as cause:
        raise InvalidInputError(f"{name} cannot be parsed as an expression", found=expr) from cause
    if several:
        raise InvalidInputError(
            f"{name} selects several columns; it must return one value per row",
            found=expr,
            hint="combine the conditions with & or pl.all_horizontal",
        )
    for column in sorted(roots - set(schema.names)):
        hint = close_names(column, schema.names)
        quotes = "; a text value is in single quotes" if name == "SQL text" else ""
        raise InvalidInputError(
            f"{name} uses a column that the table does not have",
            column=column,
            hint=hint or "the table's columns: " + ", ".join(schema.names[:20]) + quotes,
        )
    node = _json(expr)
    columns = tuple(n for n in schema.names if n in roots)
    path = _path(node)
    if path is not None and (named := field_at(schema, path)) is not None:
        return contract.to_polars(named.type), columns
    if empty is None:
        used = [f for f in map(schema.field, columns) if f is not None]
        empty = pl.DataFrame(schema={f.name: contract.to_polars(f.type) for f in used})
    else:
        empty = pl.DataFrame([empty.get_column(n) for n in columns])  # Polars resolves all it has
    _refuse_beyond_row(expr, node, name, empty)
    try:
        outcome = empty.select(expr.alias("\0outcome")).schema["\0outcome"]
    except _REFUSALS as cause:
        raise _misfit(expr, empty, name) from cause
    checks = (_require_comparable,) if adds_fields else (_require_comparable, _require_same_fields)
    _check_nodes(expr, node, empty.lazy(), name, checks)
    return outcome, columns


def _misfit(expr: pl.Expr, empty: pl.DataFrame, name: str) -> InvalidInputError:
    """The error of the innermost part that Polars cannot evaluate, with its column and types."""
    children = list(reversed(expr.meta.pop()))
    types = _types_of(children, empty.lazy())
    for child in children:
        try:
            empty.select(child.alias(""))
        except _REFUSALS:
            return _misfit(child, empty, name)
    message, hint = f"{name} does not fit the table's schema", _OWN_TYPE
    roots = expr.meta.root_names()
    if len(types) > 1:
        message = f"{name} has values of types that do not fit: {types[0]} and {types[1]}"
        ours, value = types[:2] if children[0].meta.root_names() else types[1::-1]
        each = value.inner if isinstance(value, pl.List) else value
        if isinstance(ours, pl.Datetime) and isinstance(each, pl.Datetime):
            utc = "replace(tzinfo=dt.UTC)" if each.time_zone is None else "astimezone(dt.UTC)"
            hint = f"the column has times in UTC: pass value.{utc}"
            if ours.time_zone is None:
                hint = "the column has times without a zone: pass value.replace(tzinfo=None)"
    column = roots[0] if roots else None
    return InvalidInputError(message, column=column, found=expr, hint=hint)


_Check = Callable[[pl.Expr, Any, Sequence[pl.Expr], pl.LazyFrame, str], None]


def _check_nodes(
    expr: pl.Expr, node: Any, columns: pl.LazyFrame, name: str, checks: Sequence[_Check]
) -> None:
    """Check an expression, and all inside it."""
    children = list(reversed(expr.meta.pop()))
    for check in checks:
        check(expr, node, children, columns, name)
    for position, child in enumerate(children):
        _check_nodes(child, _child_node(node, position), columns, name, checks)


def _require_comparable(
    expr: pl.Expr, node: Any, children: Sequence[pl.Expr], columns: pl.LazyFrame, name: str
) -> None:
    """Refuse a comparison of different kinds of values, such as a decimal and a text."""
    match node:
        case {"BinaryExpr": {"op": str(op)}} | {
            "Function": {"function": {"Sql": {"Binary": str(op)}}}
        } if op in _ORDERED or op in _EQUALITIES:
            types = _types_of(children, columns)
            if types and not _are_comparable(children, types, is_equality=op in _EQUALITIES):
                raise InvalidInputError(
                    f"{name} compares values of different kinds: {types[0]} and {types[1]}",
                    found=expr,
                    hint=_OWN_TYPE,
                )


def _require_same_fields(
    _expr: pl.Expr, node: Any, children: Sequence[pl.Expr], columns: pl.LazyFrame, name: str
) -> None:
    """Refuse a choice of structs with different fields: Polars would add fields of nulls."""
    if isinstance(node, dict) and "Ternary" in node:
        types = _types_of(children[:2], columns)
        if types and _differ_in_fields(*types):
            raise InvalidInputError(
                f"{name} chooses between structs with different fields",
                expected=str(types[0]),
                found=str(types[1]),
                hint="give all fields in both, of which some may be null",
            )


def _types_of(children: Sequence[pl.Expr], columns: pl.LazyFrame) -> list[pl.DataType]:
    """Types of expressions; none for fields within a struct, and for what the whole reports."""
    try:
        return [columns.select(c.alias("")).collect_schema()[""] for c in children]
    except pl.exceptions.PolarsError:
        return []


def _differ_in_fields(ours: object, theirs: object) -> bool:
    match ours, theirs:
        case pl.Struct(), pl.Struct():
            inside = {field.name: field.dtype for field in theirs.fields}
            return {field.name for field in ours.fields} != inside.keys() or any(
                _differ_in_fields(field.dtype, inside[field.name]) for field in ours.fields
            )
        case (pl.List() | pl.Array(), pl.List() | pl.Array()):
            return _differ_in_fields(ours.inner, theirs.inner)
    return False


def _are_comparable(
    sides: Sequence[pl.Expr], types: Sequence[pl.DataType], *, is_equality: bool
) -> bool:
    kinds = [_kind(each) for each in types]
    if kinds[0] == kinds[1] or None in kinds:
        return True
    if "text" in kinds:
        text, other = sorted(range(2), key=lambda side: kinds[side] != "text")
        if kinds[other] in {"time", "binary"}:
            return True  # as times, if the text is SQL; as bytes
        if kinds[other] not in {"number", "boolean"} or not is_equality:
            return False
        # A literal is taken as a text.
        return sides[other].meta.is_literal() or (
            kinds[other] == "boolean" and _text_of(sides[text]) in {"true", "false"}
        )
    return set(kinds) == {"number", "boolean"}


def _kind(dtype: pl.DataType) -> str | None:
    if dtype.is_numeric():
        return "number"
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return "text"
    if isinstance(dtype, pl.Date | pl.Datetime):
        return "time"
    return None if isinstance(dtype, pl.Null | pl.Unknown) else type(dtype).__name__.lower()


def _text_of(expr: pl.Expr) -> str | None:
    literal = _literal(expr)
    return literal.item() if literal is not None and literal.dtype == pl.String else None


def outcome_of(where: pl.Expr, rows: pl.DataFrame) -> pl.Series:
    """The outcome of a condition per row; InvalidInputError if a value makes it fail."""
    outcome = where.alias("outcome")
    try:
        if not where.meta.root_names():
            return rows.with_row_index("\0row").select("\0row", outcome)["outcome"]
        found = rows.select(outcome)["outcome"]
        # Polars simplifies some expressions to one value, such as coalesce of a literal.
        return found if found.len() == rows.height else found.new_from_index(0, rows.height)
    except pl.exceptions.PolarsError as cause:
        reason, is_text = row_error(cause)
        raise InvalidInputError(
            f"the condition cannot be computed: {reason}",
            found=None if is_text else str(where)[:200],
            hint="in SQL, CASE WHEN leaves such a value out; NULLIF gives null for it, and "
            "TRY_CAST for one that Spark cannot cast",
        ) from cause


def row_error(cause: pl.exceptions.PolarsError) -> tuple[str, bool]:
    """Why an expression cannot be computed for a row, and whether it was translated from SQL text,
    so that the caller does not know it.
    """
    first = str(cause).splitlines()[0]
    _, is_own, reason = first.partition(f'["{ROW_ERROR}')
    return (reason.split('"]')[0].split('", "')[0] if is_own else first), bool(is_own)


def keep_mask(
    where: pl.Expr,
    *,
    schema: contract.Struct,
    partition_columns: Sequence[str],
    partitions: TypedPartitions,
    stats: pl.DataFrame | None = None,
    satisfied: bool = True,
) -> pl.Series:
    """Which files may contain a row that satisfies `where` (Delta protocol, Per-file Statistics);
    with ``satisfied=False``, a row for which it is false or null.

    Missing statistics never prune. Long maximum strings are treated as prefixes, timestamps as
    truncated to milliseconds, and maximum floats as excluding NaN; null counts are used only if 0
    or ``numRecords``. Wide bounds are therefore safe.
    """
    referenced_columns(where, schema)
    height = partitions.values.height if stats is None else stats.height
    walker = _Walker(schema, partition_columns, partitions, stats, height)
    truth = walker.truth(where, _json(where))
    outcome = truth.may_true if satisfied else truth.may_false | truth.may_null
    frame = pl.int_range(height, eager=True).alias("\0row").to_frame()
    frame = frame.with_columns(walker.columns.values())
    try:
        # A null comparison is unknown, so it keeps the file.
        keep = outcome.fill_null(True).alias("keep")
        return frame.select("\0row", keep)["keep"]
    except pl.exceptions.PolarsError:
        # If the bounds cannot be compared as the rows are, all files are kept.
        return pl.Series("keep", [True]).new_from_index(0, height)


def required_values(predicate: pl.Expr, column: str) -> pl.Series | None:
    """Texts of which a column must have one for `predicate` to be true; None if unknown."""
    return _required(predicate, _json(predicate), column)


def _required(expr: pl.Expr, node: Any, column: str) -> pl.Series | None:
    children = list(reversed(expr.meta.pop()))
    listed: pl.Series | None = None
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            found = _required(children[0], left, column)
            return found if found is not None else _required(children[1], right, column)
        case {"BinaryExpr": {"left": {"Column": name}, "op": "Eq"}} if name == column:
            listed = _literal(children[1])
        case {"BinaryExpr": {"op": "Eq", "right": {"Column": name}}} if name == column:
            listed = _literal(children[0])
        case {
            "Function": {
                "input": [{"Column": name}, _],
                "function": {"Boolean": {"IsIn": {"nulls_equal": False}}},
            }
        } if name == column:
            listed = _literal(children[1])
            if listed is not None and isinstance(listed.dtype, pl.List | pl.Array):
                listed = listed.explode()
    return listed if listed is not None and listed.dtype == pl.String else None


def _refuse_beyond_row(
    expr: pl.Expr, node: Any, name: str, empty: pl.DataFrame, *, listed: bool = False
) -> None:
    """Raise for an expression that depends on other rows; `listed` allows a list of literals."""
    children = list(reversed(expr.meta.pop()))
    hint = "compute the value first and pass it as a literal"
    try:
        if expr.meta.is_literal():
            own_row = listed or expr.meta.is_scalar()
        else:
            whole = expr.meta.is_length_preserving() or bool(children and expr.meta.is_scalar())
            own_row = expr.meta.is_column() or (expr.meta.is_row_separable() and whole)
    except pl.exceptions.PolarsError:
        # A Python function is opaque; it is checked, but never used to prune.
        own_row = _is_elementwise(expr, empty)
        hint = "pass is_elementwise=True to map_batches, if a row's value depends on no other row"
    if not own_row:
        raise InvalidInputError(
            f"{name} must be evaluated row by row: aggregates, windows and shifts are not allowed",
            found=expr,
            hint=hint,
        )
    match node:
        case {"Function": {"function": {"Boolean": {"IsIn": _}}}}:
            lists = {1}
        case _:
            lists = set()
    for position, child in enumerate(children):
        inner = _child_node(node, position)
        _refuse_beyond_row(child, inner, name, empty, listed=position in lists)


def _is_elementwise(expr: pl.Expr, empty: pl.DataFrame) -> bool:
    """Whether a value depends on its row alone: only then Polars filters rows before it."""
    kept = pl.Series("\0kept", [], pl.Boolean)
    rows = empty.with_columns(kept).lazy().with_columns(expr.alias("\0value"))
    try:
        return not rows.filter(kept.name).explain().startswith("FILTER")
    except pl.exceptions.PolarsError:
        return True  # reported where it is evaluated


def _child_node(node: Any, position: int) -> Any:
    match node:
        case {"BinaryExpr": {"left": left, "right": right}}:
            return (left, right)[position]
        case {"Function": {"input": [*inner]}} if position < len(inner):
            return inner[position]
        case {"Alias": [inner, _]} | {"Cast": {"expr": inner}}:
            return inner
        case {"Ternary": {"predicate": asked, "truthy": yes, "falsy": no}}:
            return (yes, no, asked)[position]
    return None


def _json(expr: pl.Expr) -> Any:
    """The expression as JSON data; None if it cannot be serialized (a Python function)."""
    try:
        return tree_of(expr)
    except _REFUSALS:
        return None


class _Walker:
    """Evaluates one predicate over one set of files; `columns` collects its columns."""

    def __init__(
        self,
        schema: contract.Struct,
        partition_columns: Sequence[str],
        partitions: TypedPartitions,
        stats: pl.DataFrame | None,
        height: int,
    ) -> None:
        self.schema = schema
        self.partition_columns = frozenset(partition_columns)
        self.partitions = partitions
        self.stats = stats
        self.height = height
        self.columns: dict[str, pl.Series] = {}

    def truth(self, expr: pl.Expr, node: Any) -> Truth:
        """The possible outcomes of a Boolean part in each file."""
        children = list(reversed(expr.meta.pop()))
        match node:
            case {"Alias": [inner, _]}:
                return self.truth(children[0], inner)
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                return self.truth(children[0], left).and_(self.truth(children[1], right))
            case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
                return self.truth(children[0], left).or_(self.truth(children[1], right))
            case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
                return self.truth(children[0], inner).not_()
            case {"Function": {"input": inner, "function": {"Boolean": "AllHorizontal"}}}:
                parts = [self.truth(c, n) for c, n in zip(children, inner, strict=True)]
                return intervals.all_of(parts)
            case {"Function": {"input": inner, "function": {"Boolean": "AnyHorizontal"}}}:
                parts = [self.truth(c, n) for c, n in zip(children, inner, strict=True)]
                return intervals.all_of([p.not_() for p in parts]).not_()
        exact = self._exact(expr, node)
        if exact is None:
            return self._by_operands(children, expr, node)
        truth = _as_truth(exact)
        if exact.unknown is FALSE:
            return truth
        # Values that are unknown may have only one outcome too, as in `p < null`.
        return truth.within(self._by_operands(children, expr, node))

    def _by_operands(self, children: list[pl.Expr], expr: pl.Expr, node: Any) -> Truth:
        """The possible outcomes of a comparison or function, by those of its operands."""
        match node:
            case {"Column": _}:
                values = self.values(expr, node)
                return ANYTHING if values is None else _as_truth(values)
            case {"BinaryExpr": {"left": left, "op": str(op), "right": right}}:
                a, b = self.values(children[0], left), self.values(children[1], right)
                return ANYTHING if a is None or b is None else _compare(op, a, b)
            case {"Function": {"input": [*inner], "function": {"Boolean": function}}}:
                return self._boolean_function(function, children, inner)
            case {"Function": {"input": [inner, _], "function": {"StringExpr": "StartsWith"}}}:
                values, prefix = self.values(children[0], inner), _literal(children[1])
                if values is None or prefix is None or prefix.dtype != pl.String:
                    return ANYTHING
                return intervals.starts_with(values, children[1])
        return ANYTHING

    def _boolean_function(self, function: Any, children: list[pl.Expr], nodes: list[Any]) -> Truth:
        values = self.values(children[0], nodes[0])
        match function:
            case "IsNull" | "IsNotNull":
                null = ANYTHING
                if values is not None:
                    null = Truth(values.may_null, values.may_value, FALSE)
                if values is None or values.unknown is not FALSE:
                    inner = self.truth(children[0], nodes[0])
                    outcomes = Truth(inner.may_null, inner.may_true | inner.may_false, FALSE)
                    null = null.within(outcomes)
                return null if function == "IsNull" else null.not_()
            case {"IsBetween": {"closed": str(closed)}} if values is not None:
                low = self.values(children[1], nodes[1])
                high = self.values(children[2], nodes[2])
                if low is not None and high is not None:
                    return intervals.between(
                        values,
                        low,
                        high,
                        strict_low=closed in ("Right", "None"),
                        strict_high=closed in ("Left", "None"),
                    )
            case {"IsIn": {"nulls_equal": bool(nulls_equal)}} if values is not None:
                return _is_in(values, children[1], nulls_equal)
        return ANYTHING

    def values(self, expr: pl.Expr, node: Any) -> Values | None:
        """The possible values of a part in each file; None if unsupported."""
        if (exact := self._exact(expr, node)) is not None:
            return exact
        match node:
            case {"Column": str(name)}:
                return self._bounds((name,))
            case {"Alias": [inner, _]}:
                return self.values(expr.meta.pop()[0], inner)
            case {"Function": {"input": [inner], "function": {"StructExpr": _}}}:
                path = _path(node)
                return None if path is None else self._bounds(path)
            case {
                "Function": {"input": [inner], "function": {"TemporalExpr": "Date" | "Year" as f}}
            }:
                values = self.values(expr.meta.pop()[0], inner)
                if values is None or not isinstance(values.dtype, pl.Date | pl.Datetime):
                    return None
                if f == "Date":
                    return values.rising(lambda bound: bound.dt.date(), pl.Date())
                return values.rising(lambda bound: bound.dt.year(), pl.Int32())
            case {
                "Cast": {
                    "expr": inner,
                    "dtype": {"Literal": target},
                    "options": "Strict" | "NonStrict",  # one that wraps around keeps no order
                }
            }:
                values = self.values(expr.meta.pop()[0], inner)
                return None if values is None else _cast(values, target)
        return None

    def _exact(self, expr: pl.Expr, node: Any) -> Values | None:
        """A part without columns, or over partition columns alone, evaluated."""
        if node is None:
            return None
        roots = sorted(set(expr.meta.root_names()))
        if not roots:
            literal = _literal(expr)
            if literal is None:
                return None
            null = pl.lit(literal.null_count() == 1)
            nan = literal.dtype.is_float() and literal.is_nan().fill_null(False).any()
            # The expression itself represents the bounds, because its type adapts to the other
            # side's as in a comparison of rows.
            return Values(expr, expr, null, ~null, may_nan=nan, dtype=literal.dtype)
        if not self.partition_columns.issuperset(roots):
            return None
        names = [PREFIX + r for r in roots]
        if not set(names).issubset(self.partitions.values.columns):
            return None
        frame = self.partitions.values.select(
            pl.col(n).alias(r) for n, r in zip(names, roots, strict=True)
        )
        known = self.partitions.known.select(pl.all_horizontal(names).alias("known"))["known"]
        try:
            value = frame.select(expr.alias("value"))["value"]
        except _REFUSALS:
            # A value that the expression rejects, such as a text that it casts to a number.
            return None
        if value.len() != self.height:
            return None
        unknown = FALSE
        if not known.all():
            # An expression may replace the null of an unknown value, which is then not its bound.
            value = pl.select(pl.when(known).then(value).alias("value"))["value"]
            unknown = ~self._add(known)
        column = self._add(value)
        return Values(
            column,
            column,
            column.is_null() | unknown,
            column.is_not_null() | unknown,
            may_nan=value.dtype.is_float(),
            dtype=value.dtype,
            unknown=unknown,
        )

    def _bounds(self, path: tuple[str, ...]) -> Values | None:
        """The interval of a column or a struct's field, by statistics."""
        field = field_at(self.schema, path)
        if field is None:
            return None
        type_ = field.type
        if self.stats is None or path[0] in self.partition_columns:
            return Values(None, None, TRUE, TRUE, dtype=contract.to_polars(type_), may_nan=True)
        counts, records = self._dig("nullCount", path), self.stats["numRecords"]
        may_null = may_value = TRUE
        if counts is not None and counts.dtype == pl.Int64:
            nulls, rows = self._add(counts), self._add(records)
            may_null = (nulls != 0).fill_null(True)
            # Older versions of deltalake count the null elements of arrays and maps too.
            if not isinstance(type_, contract.Array | contract.Map):
                may_value = (nulls != rows).fill_null(True)
        low = high = None
        if has_bounds(type_):
            low, high = self._dig("min", path), self._dig("max", path)
            if low is not None and high is not None:
                if _was_float(field.metadata):
                    low, high = intervals.around_floats(low, high)
                elif isinstance(type_, contract.Decimal):
                    low, high = intervals.around_doubles(low, high)
        return intervals.from_statistics(
            None if low is None else self._add(low),
            None if high is None else self._add(high),
            may_null,
            may_value,
            contract.to_polars(type_),
        )

    def _dig(self, statistic: str, path: tuple[str, ...]) -> pl.Series | None:
        assert self.stats is not None
        series = self.stats[statistic]
        for name in path:
            if series.dtype != pl.Struct or name not in series.struct.fields:
                return None
            series = field_of(series, name)
        return series

    def _add(self, series: pl.Series) -> pl.Expr:
        name = f"\0{len(self.columns)}"
        self.columns[name] = series.alias(name)
        return pl.col(name)


def _was_float(metadata: Mapping[str, Any]) -> bool:
    """Whether a double column was widened from float; see Delta protocol, Type Change Metadata."""
    changes = metadata.get(contract.TYPE_CHANGES)
    return isinstance(changes, list) and any(
        isinstance(change, dict) and change.get("fromType") == "float" for change in changes
    )


def _path(node: Any) -> tuple[str, ...] | None:
    """The names of an expression that is a column, or a field of one; None of others."""
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {
            "Function": {"input": [inner], "function": {"StructExpr": {"FieldByName": str(name)}}}
        }:
            parent = _path(inner)
            return None if parent is None else (*parent, name)
    return None


def _literal(expr: pl.Expr) -> pl.Series | None:
    """The value of a part without columns."""
    if expr.meta.root_names():
        return None
    try:
        series = pl.select(expr.alias("value")).to_series()
    except _REFUSALS:
        return None
    return series if series.len() == 1 else None


def _as_truth(values: Values) -> Truth:
    if values.dtype != pl.Boolean or values.low is None or values.high is None:
        return ANYTHING
    may_true = values.may_value & values.high.fill_null(True)
    may_false = values.may_value & ~values.low.fill_null(False)
    return Truth(may_true | values.unknown, may_false | values.unknown, values.may_null)


def _compare(op: str, a: Values, b: Values) -> Truth:
    if not intervals.comparable(a, b):
        return ANYTHING
    if op in _ORDERED:
        swap, strict = _ORDERED[op]
        return intervals.less(b, a, strict) if swap else intervals.less(a, b, strict)
    match op:
        case "Eq":
            return intervals.equal(a, b)
        case "NotEq":
            return intervals.equal(a, b).not_()
        case "EqValidity":
            return intervals.equal_or_both_null(a, b)
        case "NotEqValidity":
            return intervals.equal_or_both_null(a, b).not_()
    return ANYTHING


def _cast(values: Values, target: Any) -> Values | None:
    """Casts that keep the order; a bound that does not convert becomes unknown."""
    match target:
        case {"Decimal": [int(precision), int(scale)]}:
            dtype: pl.DataType | None = pl.Decimal(precision, scale)
        case str():
            dtype = _CAST_TARGETS.get(target)
        case _:
            dtype = None
    have = values.dtype
    if dtype is None or have is None:
        return None
    number = (
        have.is_integer()
        or (have.is_float() and dtype.is_float())
        or (have.is_decimal() and (dtype.is_decimal() or dtype == pl.Float64))
    )
    temporal = dtype == pl.Date and isinstance(have, pl.Date | pl.Datetime)
    if not (temporal or (number and dtype.is_numeric())):
        return None
    cast = values.rising(lambda bound: bound.cast(dtype, strict=False), dtype)
    # A lenient cast converts invalid values to null.
    return cast.with_nulls()


def _is_in(values: Values, listed: pl.Expr, nulls_equal: bool) -> Truth:
    if listed.meta.root_names():
        return ANYTHING
    try:
        candidates = pl.select(listed.alias("value")).to_series()
        if isinstance(candidates.dtype, pl.List | pl.Array):
            if candidates.len() != 1:
                return ANYTHING
            candidates = candidates.explode()
    except _REFUSALS:
        return ANYTHING
    if not intervals.same_kind(values.dtype, candidates.dtype):
        return ANYTHING
    if candidates.dtype.is_float() and candidates.is_nan().any():
        return ANYTHING
    has_null = candidates.null_count() > 0
    candidates = candidates.drop_nulls().unique()
    try:
        if candidates.len() > _IN_LIST_LIMIT:
            low, high = (
                _constant(v, candidates.dtype) for v in (candidates.min(), candidates.max())
            )
            found = intervals.between(values, low, high).may_true
        else:
            found = FALSE
            for value in candidates:
                found |= intervals.equal(values, _constant(value, candidates.dtype)).may_true
    except (OverflowError, ValueError):
        # Python's dates end at the year 9999.
        return ANYTHING
    if has_null and nulls_equal:
        found |= values.may_null
    return Truth(found, TRUE, TRUE)


def _constant(value: Any, dtype: pl.DataType) -> Values:
    literal = pl.lit(value, dtype=dtype)
    return Values(literal, literal, FALSE, TRUE, dtype=dtype)
