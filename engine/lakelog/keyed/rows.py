"""Rows of a keyed store: layout, precedence, key ranges; the validation of callers' rows.

One schema is used everywhere: ``seqNum`` int64, ``key`` binary, ``value`` binary; a null value is a
tombstone, an empty one a value. The record of a key with the highest sequence number wins. Keys
order as unsigned bytes, a prefix before longer keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, cast

import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError
from lakelog.model.reconcile import last_wins
from lakelog.wal.records import arrow_table, data_of

SCHEMA = pl.Schema({"seqNum": pl.Int64(), "key": pl.Binary(), "value": pl.Binary()})
"""Columns of rows in memory; only ``value`` has nulls."""

PUT: Final = "PUT"
DELETE: Final = "DELETE"


def empty() -> pl.DataFrame:
    """No rows."""
    return pl.DataFrame(schema=SCHEMA)


def of_log(table: pa.Table | pl.DataFrame) -> pl.DataFrame:
    """Rows from a table replayed by the write-ahead log."""
    frame = table if isinstance(table, pl.DataFrame) else pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    deleted = pl.col("op").cast(pl.String) == DELETE
    if frame.select((deleted != pl.col("value").is_null()).any()).item():
        value = pl.when(deleted).then(None).otherwise(pl.col("value").fill_null(b""))
        frame = frame.with_columns(value.alias("value"))
    return frame.select(SCHEMA.names()).cast(SCHEMA)


def newest(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The newest record of each key."""
    given = [frame for frame in frames if frame.height]
    if not given:
        return empty()
    rows = reduce(pl.DataFrame.vstack, given)
    if not rows["seqNum"].is_sorted():
        rows = rows.sort("seqNum")
    return rows if rows.height == 1 else last_wins(rows, ["key"]).sort("key")


def live(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that are not tombstones, in their order."""
    return rows.filter(pl.col("value").is_not_null()) if rows["value"].null_count() else rows


def between(rows: pl.DataFrame, start: bytes | None, end: bytes | None) -> pl.DataFrame:
    """Rows with ``start <= key < end`` in their order; None is unbounded."""
    bounds = []
    if start is not None:
        bounds.append(pl.col("key") >= pl.lit(start))
    if end is not None:
        bounds.append(pl.col("key") < pl.lit(end))
    return rows.filter(*bounds) if bounds else rows


def between_sorted(rows: pl.DataFrame, start: bytes | None, end: bytes | None) -> pl.DataFrame:
    """As `between`, for rows sorted by key: a slice, found by binary search."""
    keys = rows["key"]
    first = 0 if start is None else bisect_left(keys, start)
    stop = rows.height if end is None else bisect_left(keys, end)
    return rows[first : max(first, stop)]


def find_sorted(rows: pl.DataFrame, key: bytes) -> tuple[int, bytes | None] | None:
    """Sequence number and value of a key in rows that are sorted by key, one row per key."""
    keys = rows["key"]
    # Python's bisection reads twenty keys of a million, and a call of Polars costs ten times as
    # much.
    place = bisect_left(keys, key)
    if place == rows.height or keys[place] != key:
        return None
    return rows["seqNum"][place], rows["value"][place]


def find(frames: Sequence[pl.DataFrame], key: bytes) -> tuple[int, bytes | None] | None:
    """Sequence number and value of a key's newest record in rows in any order."""
    found = [row for frame in frames for row in _matching(frame, key)]
    return max(found, key=lambda row: row[0], default=None)


def after_prefix(prefix: bytes) -> bytes | None:
    r"""The least key after all keys that begin with `prefix`; None if no key is after them.

    >>> after_prefix(b"a\xff"), after_prefix(b"\xff"), after_prefix(b"")
    (b'b', None, None)
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def _matching(frame: pl.DataFrame, key: bytes) -> list[tuple[int, bytes | None]]:
    hits = frame.filter(pl.col("key") == pl.lit(key))
    return list(zip(hits["seqNum"], hits["value"], strict=True)) if hits.height else []


Items = (
    Mapping[bytes, bytes | str]
    | Mapping[str, bytes | str]
    | Mapping[bytes | str, bytes | str]
    | Iterable[tuple[bytes | str, bytes | str]]
)
"""Type of keys and their values."""

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


def _each(items: Any) -> Iterator[Any]:
    for item in items.items() if isinstance(items, Mapping) else items:
        if isinstance(item, str | bytes | bytearray | memoryview):
            raise TypeError("two characters are not a key and a value")
        yield item


def batch(table: Any) -> pl.DataFrame:
    """A table of records, for the log."""
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
                f"a table of records lacks the column {name}",
                expected=f"{name} as binary or text",
                found=found or f"columns {frame.columns}",
            )
    op = pl.col("op").cast(pl.String) if "op" in frame.columns else pl.lit(PUT)
    batch = frame.select(op.alias("op"), pl.col(*PAIRS).cast(pl.Binary))
    known = pl.col("op").is_in([PUT, DELETE])
    wrong = batch.select(
        keys=pl.col("key").is_null().sum(),
        ops=(~known).fill_null(True).sum(),
        values=((pl.col("op") == PUT) & pl.col("value").is_null()).sum(),
    ).row(0, named=True)
    if any(wrong.values()):
        raise InvalidInputError(
            "a table of records contains invalid rows",
            expected="a key, op PUT or DELETE, and a value for PUT",
            found=", ".join(f"{count} wrong {what}" for what, count in wrong.items() if count),
        )
    return batch
