"""One IndexTables commit of many adds, as one Parquet file and as lines of JSON.

The adds have the fields that IndexTables4Spark writes: minima and maxima as text, offsets of the
footer and the hot cache, tags, and a reference to the document mapping.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

import lakelog
import lakelog.table_functions
from perf import answers, columns
from perf.answers import Answer
from perf.writing import contents
from perf.writing.base import FIRST_FILE, Case, Figures, Job

_BOUNDS = ("id", "name", "ts", "price", "quantity")
_I = pl.col("i")


@dataclass(frozen=True, slots=True)
class _Prepared:
    table: lakelog.Table
    actions: pa.Table
    path: str


def actions(count: int) -> pa.Table:
    """`count` adds of the IndexTables dialect, columns in the flattened schema's names."""
    frame = columns.files(FIRST_FILE, count).with_row_index("i", FIRST_FILE)
    frame = frame.with_columns(
        path=pl.col("path").str.replace(".c000.snappy.parquet", ".split", literal=True),
        numRecords=1000 + _I.cast(pl.Int64) % 1000,
        **_bounds("low", 0),
        **_bounds("high", 9),
    )
    size = pl.col("size")
    table = frame.select(
        "path",
        "size",
        "modificationTime",
        "numRecords",
        dataChange=True,
        footerStartOffset=size - 20_000 - _I.cast(pl.Int64) % 97,
        footerEndOffset=size,
        hasFooterOffsets=True,
        uncompressedSizeBytes=size * 3 + _I.cast(pl.Int64) % 1009,
        docMappingRef=pl.lit("k3Jx0v9QmT2bYw7E"),
        deleteOpstamp=pl.lit(0, pl.Int64),
        numMergeOps=pl.lit(0, pl.Int32),
    )
    maps = {
        "partitionValues": contents.partition_map(frame),
        "minValues": _map_of(frame, "low"),
        "maxValues": _map_of(frame, "high"),
    }
    arrow = table.to_arrow(compat_level=pl.CompatLevel.oldest())
    for name, values in maps.items():
        arrow = arrow.append_column(name, values)
    return arrow


def _bounds(prefix: str, more: int) -> dict[str, pl.Expr]:
    number = _I.cast(pl.Int64)
    bounds = {
        "id": (number * 10 + more).cast(pl.String),
        "name": pl.concat_str(pl.lit("user-"), number + more),
        "ts": (1_704_067_200_000_000 + number * 1_000_000 + more).cast(pl.String),
        "price": (number * 0.5 + more).cast(pl.String),
        "quantity": (number % 1000 + more).cast(pl.String),
    }
    return {f"{prefix}_{name}": value for name, value in bounds.items()}


def _map_of(frame: pl.DataFrame, prefix: str) -> pa.Array:
    return contents.map_of(frame, {name: f"{prefix}_{name}" for name in _BOUNDS})


def _prepare(kind: str, job: Job) -> _Prepared:
    table = lakelog.create(
        job.path,
        columns.SCHEMA_STRING,
        columns.PARTITIONS,
        format="indextables",
    )
    if kind == "columnar":
        with table.transaction() as tx:
            tx.set_protocol(features=["columnarCommits"])
    return _Prepared(table, actions(job.size), job.path)


def _run(prepared: _Prepared) -> Figures:
    start = time.perf_counter()
    with prepared.table.transaction() as tx:
        tx.add(prepared.actions)
    seconds = time.perf_counter() - start
    commit = f"{prepared.path}/_transaction_log/{tx.version:020d}.json"
    return {
        "seconds": seconds,
        "bytes": os.stat(commit).st_size,
        "decode_s": _time(lambda: _decode(prepared.path)),
        "read_s": _time(lambda: lakelog.open(prepared.path).snapshot().files().collect()),
    }


def _time(what: Callable[[], pl.DataFrame]) -> float:
    gc.collect()
    start = time.perf_counter()
    rows = what().height
    seconds = time.perf_counter() - start
    assert rows
    return seconds


def _decode(path: str) -> pl.DataFrame:
    """Decode every column of the actions of the commit from its bytes."""
    log = lakelog.open(path).log
    return log.dialect.decode(log.store, log.list_all().commits[-1:]).files


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:
    """See `perf.writing.workloads.WriteWorkload`."""
    assert commits == 1
    return [
        ("expected files", expected(job.size)),
        ("lakelog, reading", read_back(job.path)),
    ]


def read_back(path: str) -> Answer:
    """The content of the table, read with lakelog."""
    return _answer(lakelog.open(path).snapshot().files().collect())


def expected(count: int) -> Answer:
    """The expected content."""
    return _answer(pl.DataFrame(actions(count)))


def _answer(frame: pl.DataFrame) -> Answer:
    """Every value of every add, by hashes; a map as its values in the order of names."""
    maps = {
        **dict.fromkeys(("minValues", "maxValues"), _BOUNDS),
        "partitionValues": columns.PARTITIONS,
    }
    plain = (
        *("path", "size", "modificationTime", "numRecords", "footerStartOffset"),
        *("footerEndOffset", "hasFooterOffsets", "uncompressedSizeBytes", "docMappingRef"),
        *("deleteOpstamp", "numMergeOps"),
    )
    flat = frame.select(*plain, *_flattened(maps))
    return {"files": flat.height, "rows": answers.hash_rows(flat)}


def _flattened(maps: dict[str, tuple[str, ...]]) -> Iterable[pl.Expr]:
    for column, names in maps.items():
        for name in names:
            yield pl.col(column).map.get(name).alias(f"{column}.{name}")


def _case(kind: str) -> Case:
    return Case(lambda job: _prepare(kind, job), _run)


CASES = {"columnar_commit_1m_adds": {kind: _case(kind) for kind in ("columnar", "json")}}
