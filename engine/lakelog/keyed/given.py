"""What callers give to a keyed store: keys, values and tables of records, checked on entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError
from lakelog.keyed import rows

Items = (
    Mapping[bytes, bytes | str]
    | Mapping[str, bytes | str]
    | Mapping[bytes | str, bytes | str]
    | Iterable[tuple[bytes | str, bytes | str]]
)
"""Keys and their values."""

PAIRS = {"key": pl.Binary, "value": pl.Binary}
"""Schema of keys and values."""


def batch(table: Any) -> pl.DataFrame:
    """A table of records as the log takes it.

    Args:
        table: As `KeyedStore.put_table` takes it.

    Returns:
        ``op``, text, and ``key`` and ``value``, binary; rows in their order.

    Raises:
        InvalidInputError: It is no table, a column is missing or of another type, or a null stands
            where none may.
    """
    if isinstance(table, pa.Table | pa.RecordBatch):
        table = pl.from_arrow(table)
    if not isinstance(table, pl.DataFrame):
        raise InvalidInputError(
            "Records in columns are an Arrow or a Polars table.",
            expected="pyarrow.Table or polars.DataFrame",
            found=type(table).__name__,
        )
    frame = table
    for name in PAIRS:
        found = frame.schema.get(name)
        if found not in {pl.Binary, pl.String, pl.Null if name == "value" else pl.Binary}:
            raise InvalidInputError(
                f"A table of records has a column {name}.",
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
            "A table of records has rows that are none.",
            expected="a key, op PUT or DELETE, and a value where it is PUT",
            found=", ".join(f"{count} wrong {what}" for what, count in wrong.items() if count),
        )
    return batch
