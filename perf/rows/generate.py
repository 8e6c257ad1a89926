"""The tables of the benchmarks of rows: data files and a log, of the same bytes each time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

Facts = dict[str, int]

ROWS = 10_000_000
COLUMNS = ("id", "quantity", "price", "region", "note", "ts")
TYPES = ("long", "integer", "double", "string", "string", "timestamp")
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("quantity", pa.int32()),
        ("price", pa.float64()),
        ("region", pa.string()),
        ("note", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
CHANGED_EVERY = 5
"""In the table of commits, every n-th commit updates the rows of the previous one."""
_REGIONS = pa.array(["centre", "east", "north", "south", "west"])
_MS = 1_700_000_000_000
_FEED = {"delta.enableChangeDataFeed": "true"}
_VECTORS = {"delta.enableDeletionVectors": "true"}


def rows(start: int, count: int, seed: int = 0) -> pa.Table:
    """Rows with ascending ids: three columns of distinct values, three of repeated ones."""
    random = np.random.default_rng((seed, start, count))
    ids = np.arange(start, start + count)
    notes = pl.Series(random.integers(0, 1 << 40, count)).cast(pl.String)
    times = _MS * 1000 + ids * 1000 + random.integers(0, 1000, count)
    columns = [
        pa.array(ids),
        pa.array(random.integers(0, 1000, count).astype(np.int32)),
        pa.array(random.random(count) * 1000),
        _REGIONS.take(pa.array(random.integers(0, len(_REGIONS), count))),
        notes.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string()),
        pa.array(times).cast(ARROW.field("ts").type),
    ]
    return pa.Table.from_arrays(columns, schema=ARROW)


def schema_string() -> str:
    """The table's schema."""
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in zip(COLUMNS, TYPES, strict=True)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def scaled(count: int, scale: float) -> int:
    """Number of rows at a scale."""
    return max(4_000, round(count * scale))


def even(
    log: Path,
    scale: float,
    *,
    files: int,
    count: int = ROWS,
    properties: dict[str, str] | None = None,
) -> Facts:
    """`count` rows in files of equal size, ids ascending, in one commit. With the rows, the number
    of files and the rows of a file both shrink.
    """
    total, files = scaled(count, scale), max(1, round(files * math.sqrt(min(1.0, scale))))
    bounds = [total * number // files for number in range(files + 1)]
    adds = [
        _data_file(log.parent, number, rows(first, end - first))
        for number, (first, end) in enumerate(pairwise(bounds))
    ]
    _commit(log, 0, [*_head(properties or {}), *adds])
    return _facts(adds, total, 0)


def commits(log: Path, scale: float) -> Facts:
    """1,000 commits of 1,000 rows each with a change data feed: four in five add a file, the fifth
    updates the rows of the one before it.
    """
    count, each = max(10, round(1_000 * math.sqrt(scale))), max(50, round(1_000 * math.sqrt(scale)))
    _commit(log, 0, _head(_FEED))
    live: list[dict[str, Any]] = []
    for version in range(1, count + 1):
        if version % CHANGED_EVERY:
            add = _data_file(log.parent, version, rows(version * each, each))
            live.append(add)
            _commit(log, version, [add])
            continue
        before = rows((version - 1) * each, each)
        doubled = pa.array(before["price"].to_numpy() * 2)
        after = before.set_column(2, ARROW.field("price"), doubled)
        old = live.pop()["add"]
        add = _data_file(log.parent, version, after)
        live.append(add)
        removed = {key: old[key] for key in ("path", "partitionValues", "size")}
        remove = {**removed, "dataChange": True, "deletionTimestamp": _MS + version}
        remove["extendedFileMetadata"] = True
        images = [("update_preimage", before), ("update_postimage", after)]
        both = [
            image.append_column("_change_type", pa.repeat(kind, each)) for kind, image in images
        ]
        path = f"_change_data/cdc-{version:05d}.snappy.parquet"
        size = _write(log.parent / path, pa.concat_tables(both))
        cdc = {"path": path, "partitionValues": {}, "size": size, "dataChange": False}
        _commit(log, version, [{"remove": remove}, add, {"cdc": cdc}])
    changes = sum(1 if version % CHANGED_EVERY else 2 for version in range(1, count + 1))
    return _facts(live, changes * each, count)


ROW_TABLES: dict[str, Callable[[Path, float], Facts]] = {
    "rows_100_files": partial(even, files=100),
    "rows_100_files_vectors": partial(even, files=100, properties=_VECTORS),
    "rows_1000_files": partial(even, files=1_000),
    "rows_10000_files": partial(even, files=10_000),
    "rows_5_gb": partial(even, files=90, count=9 * ROWS),
    "rows_1000_commits": commits,
}


def _facts(adds: Iterable[dict[str, Any]], count: int, last: int) -> Facts:
    sizes = [add["add"]["size"] for add in adds]
    files = {"files": len(sizes), "bytes": sum(sizes), "adds": len(sizes), "add_bytes": sum(sizes)}
    return {**files, "rows": count, "last_version": last}


def _head(properties: dict[str, str]) -> list[dict[str, Any]]:
    features = ["deletionVectors"] if properties == _VECTORS else []
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 4}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features, "writerFeatures": features}
    metadata = {
        "id": "3f2504e0-4f89-41d3-9a0c-0305e82c3302",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": _MS,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def _data_file(folder: Path, number: int, table: pa.Table) -> dict[str, Any]:
    path = f"part-{number:05d}.snappy.parquet"
    size = _write(folder / path, table)
    frame = pl.DataFrame(table.select(["id", "quantity", "price"]))
    stats = {
        "numRecords": table.num_rows,
        "minValues": frame.min().row(0, named=True),
        "maxValues": frame.max().row(0, named=True),
        "nullCount": dict.fromkeys(COLUMNS, 0),
    }
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": _MS,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _write(path: Path, table: pa.Table) -> int:
    path.parent.mkdir(exist_ok=True)
    distinct = {"id", "price", "note", "ts"}
    dictionaries = [name for name in table.column_names if name not in distinct]
    pq.write_table(table, path, compression="snappy", use_dictionary=dictionaries)
    return path.stat().st_size


def _commit(log: Path, version: int, actions: list[dict[str, Any]]) -> None:
    info = {"timestamp": _MS + version * 1000, "operation": "WRITE", "operationParameters": {}}
    path = log / f"{version:020d}.json"
    lines = [json.dumps(action) for action in ({"commitInfo": info}, *actions)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.utime(path, (_MS / 1000 + version, _MS / 1000 + version))
