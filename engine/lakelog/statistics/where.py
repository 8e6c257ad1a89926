"""From a SQL condition to a Polars expression typed for a table's schema."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from polars.io.plugins import register_io_source

from lakelog import contract
from lakelog.errors import InvalidInputError
from lakelog.statistics.prune import referenced_columns

_HINT = "write a SQL condition over the table's columns, such as \"day >= '2026-01-05'\""


def parse_where(text: str, schema: contract.Struct) -> pl.Expr:
    """The condition `text` as an expression that `Snapshot.files` takes.

    Literals get the type of the column that they stand beside, as in any SQL: ``'2026-01-05'`` is
    a date next to a date column.

    Args:
        text: A SQL condition in Polars' dialect.
        schema: Current schema of the table.

    Raises:
        InvalidInputError: It is not SQL, names a column that the table lacks, or gives no Boolean.
    """
    try:
        raw = pl.sql_expr(text)
        unknown = not set(raw.meta.root_names()) <= set(schema.names)
    except pl.exceptions.PolarsError as cause:
        raise _refusal(text, cause) from cause
    if unknown:
        referenced_columns(raw, schema)  # refuses, and names the closest columns
    try:
        typed = _typed(text, schema)
    except pl.exceptions.PolarsError as cause:
        raise _refusal(text, cause) from cause
    # What Polars would not push down to the rows (an aggregate, a window) is refused by name.
    return raw if typed is None else typed


def _typed(text: str, schema: contract.Struct) -> pl.Expr | None:
    """The condition as Polars' planner hands it to a scan of the table; None if not all of it."""
    pushed: list[pl.Expr | None] = []
    columns = pl.Schema({f.name: contract.to_polars(f.type) for f in schema.fields})

    def scan(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        _n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        pushed.append(predicate)
        yield pl.DataFrame(schema=columns).select(with_columns or list(columns))

    # The brackets keep a text that is more than a condition from ending it; and there is nothing
    # to reach here but an empty frame.
    sql = f"SELECT * FROM self WHERE ({text})"  # noqa: S608 - a condition has to stand in a query
    query = register_io_source(scan, schema=columns).sql(sql)
    if any(line.lstrip().startswith("FILTER") for line in query.explain().splitlines()):
        return None
    query.collect()
    return pushed[0] if pushed else None


def _refusal(text: str, cause: Exception) -> InvalidInputError:
    reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return InvalidInputError(f"the condition cannot be used: {reason}", found=text, hint=_HINT)
