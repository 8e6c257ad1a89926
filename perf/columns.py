"""Columns of the synthetic tables: every value is computed from the row number, none from a clock.

Polars computes whole columns, so that ten million rows take seconds.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

FIRST_MODIFICATION_MS = 1_700_000_000_000
PARTITIONS = ("date", "region")
SCHEMA_STRING = (
    '{"type":"struct","fields":['
    + ",".join(
        f'{{"name":"{name}","type":"{type_}","nullable":true,"metadata":{{}}}}'
        for name, type_ in (
            ("id", "long"),
            ("name", "string"),
            ("ts", "timestamp"),
            ("price", "double"),
            ("quantity", "integer"),
            ("date", "date"),
            ("region", "string"),
        )
    )
    + "]}"
)
"""The tables' schema: five data columns with statistics, two partition columns."""

_I = pl.col("i")
_ODD_64 = 0x9E3779B97F4A7C15


def files(start: int, count: int) -> pl.DataFrame:
    """Data files numbered from `start`: path, date, region, size, modificationTime, stats.

    Paths end in 128 mixed bits, like the UUIDs of a writer, so that they compress like real paths.
    Sizes are in bytes, times in milliseconds, stats are JSON text over five columns.
    """
    rows = pl.DataFrame({"i": pl.int_range(start, start + count, eager=True)})
    date = (pl.date(2024, 1, 1) + pl.duration(days=_I % 365)).dt.to_string("%Y-%m-%d")
    return (
        rows.with_columns(
            date=date,
            region=pl.concat_str(pl.lit("r"), _I % 8),
            uuid=_uuids(rows["i"]),
            size=1_000_000 + _I * 7_919 % 99_999,
            modificationTime=FIRST_MODIFICATION_MS + _I,
            stats=stats_text(),
        )
        .with_columns(
            path=pl.concat_str(
                pl.lit("date="),
                "date",
                pl.lit("/region="),
                "region",
                pl.lit("/part-"),
                (_I % 200).cast(pl.String).str.zfill(5),
                pl.lit("-"),
                "uuid",
                pl.lit(".c000.snappy.parquet"),
            )
        )
        .select("path", *PARTITIONS, "size", "modificationTime", "stats")
    )


def narrow_files(start: int, count: int) -> pl.DataFrame:
    """Data files numbered from `start`, unpartitioned, with short paths: path, size, time."""
    return pl.DataFrame({"i": pl.int_range(start, start + count, eager=True)}).select(
        path=pl.concat_str(
            pl.lit("part-"), _I.cast(pl.String).str.zfill(9), pl.lit("-c000.snappy.parquet")
        ),
        size=1_000_000 + _I * 7_919 % 99_999,
        modificationTime=FIRST_MODIFICATION_MS + _I,
    )


def stats_text() -> pl.Expr:
    """Statistics as JSON text over the row number ``i``; prices are halves, so sums are exact."""
    ts = pl.from_epoch(1_704_067_200 + _I, "s").dt.to_string("%Y-%m-%dT%H:%M:%S.000Z")
    later = pl.from_epoch(1_704_153_600 + _I, "s").dt.to_string("%Y-%m-%dT%H:%M:%S.000Z")

    def bounds(id_: pl.Expr, name: pl.Expr, ts: pl.Expr, price: pl.Expr) -> list[pl.Expr]:
        return [
            pl.lit('{"id":'),
            id_,
            pl.lit(',"name":"user-'),
            name,
            pl.lit('","ts":"'),
            ts,
            pl.lit('","price":'),
            price,
            pl.lit(',"quantity":'),
            id_ % 1000,
            pl.lit("}"),
        ]

    return pl.concat_str(
        pl.lit('{"numRecords":'),
        1000 + _I % 1000,
        pl.lit(',"minValues":'),
        *bounds(_I * 10, _I, ts, _I * 0.5),
        pl.lit(',"maxValues":'),
        *bounds(_I * 10 + 9, _I + 5, later, _I * 0.5 + 100),
        pl.lit(',"nullCount":{"id":0,"name":'),
        _I % 7,
        pl.lit(',"ts":0,"price":'),
        _I % 3,
        pl.lit(',"quantity":0}}'),
    )


def add_lines(frame: pl.DataFrame) -> pl.Series:
    """One ``add`` line of NDJSON per row of `files`."""
    return frame.select(
        pl.concat_str(
            pl.lit('{"add":{"path":"'),
            "path",
            *_partition_values(),
            pl.lit(',"size":'),
            "size",
            pl.lit(',"modificationTime":'),
            "modificationTime",
            pl.lit(',"dataChange":true,"stats":"'),
            pl.col("stats").str.replace_all('"', '\\"', literal=True),
            pl.lit('"}}'),
        ).alias("line")
    ).to_series()


def remove_lines(frame: pl.DataFrame, deletion_ms: pl.Expr) -> pl.Series:
    """One ``remove`` line of NDJSON per row of `files`, deleted at `deletion_ms`."""
    return frame.select(
        pl.concat_str(
            pl.lit('{"remove":{"path":"'),
            "path",
            pl.lit('","deletionTimestamp":'),
            deletion_ms,
            pl.lit(',"dataChange":true,"extendedFileMetadata":true'),
            pl.lit(',"partitionValues":{"date":"'),
            "date",
            pl.lit('","region":"'),
            "region",
            pl.lit('"},"size":'),
            "size",
            pl.lit("}}"),
        ).alias("line")
    ).to_series()


def _partition_values() -> list[pl.Expr | str]:
    return [
        pl.lit('","partitionValues":{"date":"'),
        "date",
        pl.lit('","region":"'),
        "region",
        pl.lit('"}'),
    ]


def _uuids(numbers: pl.Series) -> pl.Series:
    """Text in the form of a UUID, from 128 bits that are mixed from each number."""
    x = numbers.to_numpy().astype(np.uint64) * np.uint64(_ODD_64)
    hexed = pl.DataFrame(
        {"a": _hex(_mixed(x)), "b": _hex(_mixed(x ^ np.uint64(0xD1B54A32D192ED03)))}
    )
    a, b = pl.col("a").str, pl.col("b").str
    return hexed.select(
        pl.concat_str(
            [a.slice(0, 8), a.slice(8, 4), a.slice(12, 4), b.slice(0, 4), b.slice(4, 12)],
            separator="-",
        )
    ).to_series()


def _mixed(x: np.typing.NDArray[np.uint64]) -> np.typing.NDArray[np.uint64]:
    """The finaliser of splitmix64: distinct results, unrelated for neighbours."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hex(x: np.typing.NDArray[np.uint64]) -> pl.Series:
    raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(x), [None, pa.py_buffer(x)])
    return pl.Series(raw.cast(pa.binary())).bin.encode("hex")
