"""`delete` and `update`: change rows in one commit.

Source: Delta protocol, Add File and Remove File; Deletion Vectors; Add CDC File. Delta Lake,
DeleteCommand and UpdateCommand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.arrow_arrays import from_python, without_missing
from lakelog.data.conform import Conform, require_fields, to_table, wide_field
from lakelog.data.files import ReadPlan
from lakelog.data.rewrite import Change, Outcome, Rewriter, UpdatedColumns, marks_rows
from lakelog.data.row_commit import RowCommit, WriteOptions, WriteReport
from lakelog.data.row_rules import RowRules
from lakelog.data.targets import find_targets, known_rows, split_whole
from lakelog.errors import InvalidInputError
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.column_names import struct_path
from lakelog.skipping.prune import row_error, row_wise
from lakelog.sql.condition import new_value
from lakelog.sql.sql_text import sql_text
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction

_ROW = "\x00row"
GIVE_FIELDS = (
    'give all fields, of which some may be null; or assign some, such as {"address.zip": "..."}'
)
"""What to do about a new value that lacks fields."""


def delete(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction] | LogTransaction,
    where: pl.Expr | str | None,
    options: WriteOptions,
) -> WriteReport:
    """Delete rows; see `lakelog.table.Table.delete`."""
    commit = RowCommit(log, runtime, begin, options, "DELETE")
    return _run(commit, where, Change)


def delete_plan(
    snapshot: LogSnapshot, where: pl.Expr | str | None
) -> tuple[pl.DataFrame, int | None]:
    """The files that a delete would change, with ``path``, ``size_bytes`` and ``action``
    (``remove``, ``mark`` by a deletion vector, or ``copy`` of the other rows), and the number of
    rows that it would delete; None if rows of a file were not counted.
    """
    condition = snapshot.condition(where)
    store = snapshot.read_state(lambda state: state.log.store)
    ReadPlan.of(snapshot, ())  # raises for a table without rows
    targets = find_targets(snapshot, snapshot.files(condition).collect(), condition, store)
    partly = "mark" if marks_rows(snapshot) else "copy"
    files = pl.concat(
        files.select("path", size_bytes="size", action=pl.lit(action))
        for files, action in ((targets.whole, "remove"), (targets.partly, partly))
    )
    whole = known_rows(snapshot, targets.whole, store)
    return files.sort("path"), None if whole is None else whole + targets.rows_matched


def update(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction] | LogTransaction,
    values: Mapping[str, Any],
    where: pl.Expr | str | None,
    options: WriteOptions,
) -> WriteReport:
    """Update rows; see `lakelog.table.Table.update`."""
    commit = RowCommit(log, runtime, begin, options, "UPDATE")
    rules = RowRules.of(commit.snapshot.table_configuration)
    assigned = Assignments(values, rules)
    rules.require_updatable(assigned.names)
    return _run(commit, where, lambda condition: _Update(condition, assigned))


def _run(
    commit: RowCommit,
    condition: pl.Expr | str | None,
    change_of: Callable[[pl.Expr | None], Change],
) -> WriteReport:
    tx = commit.tx
    if tx.duplicate:
        return WriteReport(None, duplicate=True)
    ReadPlan.of(commit.snapshot, ())  # raises for a table without rows
    where = commit.snapshot.condition(condition)
    predicates = [] if condition is None else [sql_text(condition)]
    if None not in predicates:  # an empty list would mean all rows
        commit.parameters["predicate"] = orjson.dumps(predicates).decode()
    change = change_of(where)
    rewriter = Rewriter(commit, change)
    with commit.guarded():
        candidates = commit.candidates(where)
        whole, unsettled = split_whole(commit.snapshot, candidates, where)
        if change.updates:
            rewriter.change(candidates if unsettled.height else whole)  # in the files' order
        else:
            rewriter.change(unsettled)
            rewriter.remove(whole)
        done = rewriter.finish()
    metrics = done.metrics()
    if change.updates:
        metrics["numUpdatedRows"] = done.updated
    elif done.deleted is not None:
        metrics["numDeletedRows"] = done.deleted
    commit.metrics |= metrics
    return commit.commit(done.report())


class Assignments:
    """New values of columns and of fields of structs, by Polars expressions or SQL text over the
    columns `seen` (None: the table's), or literals. A value that lacks fields of a struct is
    refused with the hint `give_fields`; if it is None, they are null. `old` is the old value of a
    column; None if there is none, as in a new row.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        rules: RowRules,
        seen: contract.Struct | None = None,
        give_fields: str | None = GIVE_FIELDS,
        old: Callable[[str], pl.Expr] | None = contract.column_named,
    ) -> None:
        self._give_fields = give_fields
        if not values:
            raise InvalidInputError(
                "the new values must be a mapping of at least one column",
                expected='a mapping such as {"price": pl.col("price") * 2}',
                found=repr(values)[:200],
            )
        self._rules, schema = rules, rules.schema
        seen = seen or schema
        empty = pl.DataFrame(schema={f.name: contract.to_polars(f.type) for f in seen.fields})
        new: _NewValues = {}
        self._roots: set[str] = set()
        for given, value in values.items():
            path = struct_path(schema, str(given), "give {} one new value")
            if old is None and len(path) > 1:
                raise InvalidInputError(
                    f"a new row cannot have a value of the field {given!r} alone",
                    column=str(given),
                    hint=f"give a struct as the value of {path[0].name!r}",
                )
            field = replace(path[-1], name=".".join(each.name for each in path))
            expr = _expression(field, value, seen, rules.now_us)
            what = f"the new value of {field.name!r}"
            _, roots = row_wise(expr, seen, what, empty, adds_fields=give_fields is None)
            self._roots |= set(roots)
            _add(new, path, expr)
        self._expressions: dict[str, pl.Expr] = {}
        for field in schema.fields:
            if field.name in new:
                was = old(field.name) if old else pl.lit(None)
                expr = _with_fields(field.type, was, new[field.name])
                self._expressions[field.name] = expr
                self._roots |= set(expr.meta.root_names())
        self._changed = [field for field in schema.fields if field.name in self._expressions]
        self._conform = Conform(self._changed, rules.partition_columns, new=True)
        # A wrong type is reported before a row is read.
        self.values(empty)

    @property
    def names(self) -> frozenset[str]:
        """The columns that are assigned."""
        return frozenset(self._expressions)

    @property
    def columns(self) -> UpdatedColumns:
        """The columns of rows that are updated by these expressions."""
        assigned = self.names | set(self._rules.dependent(self.names))
        return UpdatedColumns(assigned, assigned | self._roots | set(self._rules.columns))

    @property
    def overwritten(self) -> frozenset[str]:
        """The columns whose old values the new ones do not depend on."""
        return self.names - self._roots

    def values(self, rows: pl.DataFrame) -> pa.Table:
        """The new values of rows, in the types of their columns."""
        frame = rows.select(contract.column_named(n) for n in rows.columns if n in self._roots)
        if not frame.width:
            frame = pl.DataFrame(height=rows.height)
        names = self._expressions
        try:
            # An expression without columns still has a value for every row.
            found = frame.with_row_index(_ROW).with_columns(
                expr.alias(f"\x00{name}") for name, expr in names.items()
            )
        except pl.exceptions.PolarsError as cause:
            raise InvalidInputError(
                f"a new value cannot be computed: {row_error(cause)[0]}",
                column=", ".join(names),
            ) from cause
        new = to_table(found.select(pl.col(f"\x00{n}").alias(n) for n in names))
        if self._give_fields is not None:
            for field in self._changed:
                given = new.schema.field(field.name).type
                what = f"the new value of {field.name!r}"
                require_fields(field, given, what, self._give_fields)
        return self._conform.table(new)

    def apply(self, rows: pa.Table, seen: pl.DataFrame | None = None) -> pa.Table:
        """The rows with their new values, and generated columns computed from them."""
        if seen is None:
            columns = [name for name in rows.column_names if name in self._roots]
            seen = pl.DataFrame(rows.select(columns)) if columns else pl.DataFrame(height=len(rows))
        new = self.values(seen)
        columns, fields = rows.columns, list(rows.schema)
        position = {name: at for at, name in enumerate(rows.column_names)}
        for name, column in zip(new.column_names, new.columns, strict=True):
            columns[position[name]] = column
            fields[position[name]] = pa.field(name, column.type)
        schema = pa.schema(fields, rows.schema.metadata)
        return self._rules.recomputed(pa.Table.from_arrays(columns, schema=schema), self.names)


_NewValues = dict[str, "pl.Expr | _NewValues"]
"""New values by column, for a part of a struct by field."""


def _add(new: _NewValues, path: Sequence[contract.Field], value: pl.Expr) -> None:
    """Add the value of the column or field at a path."""
    *above, last = (field.name for field in path)
    at: pl.Expr | _NewValues = new
    for name in above:
        at = at.setdefault(name, {}) if isinstance(at, dict) else at
    if not isinstance(at, dict) or last in at:
        column = ".".join((*above, last))
        raise InvalidInputError(f"the column {column!r} has two new values", column=column)
    at[last] = value


def _with_fields(
    type_: contract.DataType, old: pl.Expr, new: pl.Expr | _NewValues | None
) -> pl.Expr:
    """A value with new values of some fields. As in Delta on Spark, a struct that was null has
    them, and no others.
    """
    if new is None:
        return old
    if isinstance(new, pl.Expr):
        return new
    assert isinstance(type_, contract.Struct)
    fields = []
    for field in type_.fields:
        was = contract.field_named(old, field.name)
        fields.append(_with_fields(field.type, was, new.get(field.name)).alias(field.name))
    return pl.struct(fields)


_NOT_LITERAL = (
    *(TypeError, ValueError, OverflowError),
    *(pa.ArrowException, pl.exceptions.PolarsError),
)
"""Errors of Polars and Arrow for a value that they cannot convert."""


def _expression(field: contract.Field, value: Any, seen: contract.Struct, now_us: int) -> pl.Expr:
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return new_value(value, seen, field.name, field.type, now_us)
    dtype: pl.DataType | None = None
    value = without_missing(value)
    try:
        if isinstance(value, float | dt.datetime | Decimal | Mapping | list | tuple):
            given = pl.Series(from_python([value], wide_field(field).type)).dtype
            is_map = isinstance(field.type, contract.Map)
            value = dict(cast("Any", value)) if is_map else value
            dtype = given if is_map or "Float32" in str(given) else None
        return pl.lit(value, dtype=dtype)
    except _NOT_LITERAL as cause:
        raise InvalidInputError(
            f"the new value of {field.name!r} is not a literal of its type",
            column=field.name,
            expected=contract.type_text(field.type),
            found=repr(value)[:200] + ": " + str(cause).split("\n", 1)[0],
        ) from cause


class _Update(Change):
    """Assigns new values to all rows for which a condition is true."""

    updates = writes = True

    def __init__(self, where: pl.Expr | None, assigned: Assignments) -> None:
        super().__init__(where)
        self._assigned = assigned
        self.updated = assigned.columns
        self.overwritten = assigned.overwritten

    def outcomes(self, rows: pa.Table) -> Iterator[Outcome]:
        """The outcome of changing rows."""
        yield Outcome(np.arange(rows.num_rows), rows, self._assigned.apply(rows))
