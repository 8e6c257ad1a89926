"""Parses SQL conditions to Polars expressions with the types of a table's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl
from polars.io.plugins import register_io_source

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.skipping.prune import referenced_columns

_HINT = "write a SQL condition over the table's columns, such as \"day >= '2026-01-05'\""
_TIMESTAMP = re.compile(
    r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)|\bTIMESTAMP\s*(?=')""", re.IGNORECASE
)
"""What is quoted, or the word before a literal."""


def parse_where(text: str, schema: contract.Struct) -> pl.Expr:
    """The condition `text` as an expression that `Snapshot.files` takes.

    Literals get the type of the column that they are next to, as in any SQL: ``'2026-01-05'`` is
    a date next to a date column. ``TIMESTAMP '…'`` is next to times with and without a zone.
    """
    refused: pl.exceptions.PolarsError | None = None
    # To Polars such a literal has no zone, and a time that has one cannot be compared with it.
    for sql in dict.fromkeys((text, _TIMESTAMP.sub(lambda found: found[1] or "", text))):
        try:
            return _parsed(sql, schema)
        except pl.exceptions.PolarsError as cause:
            refused = refused or cause
    assert refused is not None, "all forms of the condition were rejected"
    raise _refusal(text, refused) from refused


def _parsed(sql: str, schema: contract.Struct) -> pl.Expr:
    raw = pl.sql_expr(sql)
    if not set(raw.meta.root_names()) <= set(schema.names):
        referenced_columns(raw, schema)  # refuses, and names the closest columns
    typed = _typed(sql, schema)
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
    if not pushed or pushed[0] is None:
        return None
    pl.DataFrame(schema=columns).filter(pushed[0])  # some types are not compared before here
    return pushed[0]


def _refusal(text: str, cause: Exception) -> InvalidInputError:
    reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return InvalidInputError(f"the condition cannot be used: {reason}", found=text, hint=_HINT)
