"""Validates keys, values and tables of records that callers pass to a keyed store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.keyed import rows
from lakelog.wal.records import arrow_table, data_of

Items = (
    Mapping[bytes, bytes | str]
    | Mapping[str, bytes | str]
    | Mapping[bytes | str, bytes | str]
    | Iterable[tuple[bytes | str, bytes | str]]
)
"""Keys and their values."""

PAIRS = {"key": pl.Binary, "value": pl.Binary}
"""Schema of keys and values."""


def pairs(items: Items) -> pl.DataFrame:
    """Keys and values as a table."""
    try:
        found = [(key, value) for key, value in _each(items)]
    except (TypeError, ValueError) as cause:
        raise InvalidInputError(
            "a batch must contain keys and values",
            expected="a mapping, or pairs of key and value",
            found=type(items).__name__,
        ) from cause
    keys = [data_of(key) for key, _ in found]
    values = [data_of(value, "value") for _, value in found]
    return pl.DataFrame({"key": keys, "value": values}, PAIRS)


def _each(items: Any) -> Any:
    return items.items() if isinstance(items, Mapping) else items


def batch(table: Any) -> pl.DataFrame:
    """A table of records as the log takes it."""
    given = table if isinstance(table, pl.DataFrame) else pl.from_arrow(arrow_table(table))
    frame = cast("pl.DataFrame", given)
    coded = [
        name
        for name in (*PAIRS, "op")
        if isinstance(frame.schema.get(name), pl.Categorical | pl.Enum)
    ]
    frame = frame.with_columns(pl.col(coded).cast(pl.String))
    for name in PAIRS:
        found = frame.schema.get(name)
        if found not in {pl.Binary, pl.String, pl.Null if name == "value" else pl.Binary}:
            raise InvalidInputError(
                f"A table of records lacks the column {name}.",
                expected=f"{name} as binary or text",
                found=found or f"columns {frame.columns}",
            )
    op = pl.col("op").cast(pl.String) if "op" in frame.columns else pl.lit(rows.PUT)
    batch = frame.select(op.alias("op"), pl.col(*PAIRS).cast(pl.Binary))
    known = pl.col("op").is_in([rows.PUT, rows.DELETE])
    wrong = batch.select(
        keys=pl.col("key").is_null().sum(),
        ops=(~known).fill_null(True).sum(),
        values=((pl.col("op") == rows.PUT) & pl.col("value").is_null()).sum(),
    ).row(0, named=True)
    if any(wrong.values()):
        raise InvalidInputError(
            "A table of records contains invalid rows.",
            expected="a key, op PUT or DELETE, and a value for PUT",
            found=", ".join(f"{count} wrong {what}" for what, count in wrong.items() if count),
        )
    return batch
