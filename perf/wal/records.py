"""The logged records: a million distinct keys of 18 bytes, with values of 100 bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from perf.answers import Answer, hash_rows

VALUE_BYTES = 100
BATCH = 1_000
THREADS = 8


def pairs(count: int) -> pl.DataFrame:
    """Keys and values: ``account/`` with ten digits, in shuffled order, and random bytes."""
    rng = np.random.default_rng(6)
    numbers = pl.Series("key", rng.permutation(count))
    keys = pl.select(key=pl.format("account/{}", numbers.cast(pl.String).str.zfill(10)))
    values = pa.Array.from_buffers(
        pa.large_binary(),
        count,
        [
            None,
            pa.py_buffer(np.arange(0, (count + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int64)),
            pa.py_buffer(rng.bytes(count * VALUE_BYTES)),
        ],
    )
    return keys.with_columns(pl.col("key").cast(pl.Binary), value=pl.Series(values))


def table(count: int) -> pa.Table:
    """The same as records of the log, all PUT."""
    frame = pairs(count).select(pl.lit("PUT").alias("op"), "key", "value")
    return frame.to_arrow().cast(
        pa.schema({"op": pa.string(), "key": pa.binary(), "value": pa.binary()})
    )


def batches(count: int) -> Iterator[pa.Table]:
    """The same, `BATCH` records at a time."""
    whole = table(count)
    return (whole.slice(start, BATCH) for start in range(0, count, BATCH))


def rows(count: int) -> list[tuple[bytes, bytes]]:
    """The same as Python objects."""
    return pairs(count).rows()


def answer(frame: pl.DataFrame) -> Answer:
    """Count and hash over ``key`` and ``value``, in any order."""
    return {
        "records": frame.height,
        "rows": hash_rows(frame.select(pl.col("key", "value").cast(pl.Binary))),
    }
