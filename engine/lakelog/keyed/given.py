"""What callers give to a keyed store: keys, values and tables of records, checked on entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def encode(text: bytes | str, what: str) -> bytes:
    r"""Bytes as they are, text as UTF-8.

    Args:
        text: A key or a value.
        what: Which of the two, for the error.

    Raises:
        InvalidInputError: It is neither, or text that UTF-8 has no bytes for.

    >>> encode("é", "key")
    b'\xc3\xa9'
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InvalidInputError(
            f"A {what} is bytes or text.",
            expected="bytes or str",
            found=type(text).__name__,
            hint=f"encode the {what} to bytes",
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"The {what} is text that UTF-8 cannot spell.",
            expected="text without lone surrogates",
            found=ascii(text),
            hint="encode it to bytes yourself",
        ) from error


def batch(table: pa.Table | pl.DataFrame) -> pl.DataFrame:
    """A table of records as the log takes it.

    Args:
        table: As `KeyedStore.put_table` takes it.

    Returns:
        ``op``, text, and ``key`` and ``value``, binary; rows in their order.

    Raises:
        InvalidInputError: A column is missing or of another type, or a null stands where none may.
    """
    frame = table if isinstance(table, pl.DataFrame) else pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
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
