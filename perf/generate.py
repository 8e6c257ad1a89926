"""Generates the logs of the benchmarks, in the format that Spark writes.

Each shape scales along one axis. To read: a classic checkpoint with commits above it, a few large
commits, many small commits, a multi-part checkpoint. To commit to: an empty table, and classic
checkpoints of three sizes. `generate` writes a log to a folder and returns the facts that every
contender's answer must match.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import lakelog
from lakelog.dialects.delta.checkpoint_rows import action_rows, encoded
from lakelog.dialects.delta.checkpoint_schema import classic_schema, file_columns
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.ndjson import Blob, decode_lines
from perf import columns
from perf.rows.generate import ROW_TABLES

Facts = dict[str, int]
"""Facts of a table: live files and their bytes, add actions in the log and their bytes, commits."""

CHECKPOINT_VERSION = 100
_ROW_GROUP_ROWS = 131_072
_MS = columns.FIRST_MODIFICATION_MS
CHECKPOINT = classic_schema(file_columns())
"""The columns of the checkpoints: statistics as JSON text only."""


def generate(name: str, directory: Path, scale: float) -> Facts:
    """Write the table `name` (a key of `TABLES`) into `directory`, `scale` times its full size.

    The same name and scale give the same bytes, and commits carry their own time as the file
    modification time. Memory: at most one million file actions at a time.
    """
    log = directory / "_delta_log"
    log.mkdir(parents=True)
    facts = TABLES[name](log, scale)
    return facts | {
        "commits": len(list(log.glob("*.json"))),
        "log_bytes": sum(f.stat().st_size for f in log.iterdir()),
    }


def commit_text(version: int, *, adds: int = 1) -> str:
    """One more commit: `adds` new files, with numbers far above those of the tables."""
    lines = columns.add_lines(columns.files(1_000_000_000 + version * adds, adds))
    return _commit_info(version, "WRITE") + "\n".join(lines) + "\n"


def classic_checkpoint(log: Path, scale: float) -> Facts:
    """1M files and 1 percent tombstones in a classic checkpoint, 100 commits above it.

    Each commit removes ten files of the checkpoint, adds twenty, and restores one that the
    commit before it removed. pyarrow writes the checkpoint with the protocol's schema: snappy, maps
    as MAP, statistics as JSON text only. The earlier commits are deleted.
    """
    count, commits = _scaled(1_000_000, scale), max(3, _scaled(100, scale))
    held = columns.files(0, count)
    tombstones = columns.files(2_000_000, _scaled(10_000, scale))
    path = log / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet"
    _write_checkpoint(path, [_head(), _adds(held), _removes(tombstones)])
    _write_hint(log, size=2 + count + tombstones.height)
    _write_commit(log, CHECKPOINT_VERSION, _commit_info(CHECKPOINT_VERSION, "WRITE"))

    new = columns.files(3_000_000, 20 * commits)
    removed, back = held[: 10 * commits], held[: 10 * (commits - 1) : 10]
    new_lines = columns.add_lines(new).to_list()
    removed_lines = columns.remove_lines(removed, pl.lit(_MS + 1_000_000)).to_list()
    back_lines = columns.add_lines(back).to_list()
    for k in range(commits):
        version = CHECKPOINT_VERSION + 1 + k
        lines = removed_lines[10 * k : 10 * k + 10] + new_lines[20 * k : 20 * k + 20]
        lines += back_lines[k - 1 : k] if k else []
        _write_commit(log, version, _commit_info(version, "MERGE") + "\n".join(lines) + "\n")
    live = pl.concat([held[10 * commits :], new, back])
    logged = pl.concat([held, new, back])
    return _facts(live, logged, last_version=CHECKPOINT_VERSION + commits)


def large_commits(log: Path, scale: float) -> Facts:
    """1M adds in 200 JSON commits, statistics over five columns, no checkpoint."""
    count, commits = _scaled(1_000_000, scale), max(2, _scaled(200, scale))
    held = columns.files(0, count)
    lines = columns.add_lines(held)
    for k in range(commits):
        own = lines[count * k // commits : count * (k + 1) // commits]
        head = _first_lines() if k == 0 else ""
        _write_commit(log, k, _commit_info(k, "WRITE") + head + "\n".join(own) + "\n")
    return _facts(held, held, last_version=commits - 1)


def small_commits(log: Path, scale: float, *, commits: int, least: int = 20) -> Facts:
    """JSON commits of one add each; every tenth removes an earlier file; no checkpoint."""
    commits = max(least, _scaled(commits, scale))
    held = columns.files(0, commits)
    removed = held[: commits // 2 : 5][: commits // 10]
    adds = columns.add_lines(held).to_list()
    removes = columns.remove_lines(removed, pl.lit(_MS + 1_000_000)).to_list()
    for k in range(commits):
        text = _commit_info(k, "DELETE" if k % 10 == 9 else "STREAMING UPDATE")
        text += (_first_lines() if k == 0 else "") + adds[k] + "\n"
        if k % 10 == 9 and k // 10 < removed.height:
            text += removes[k // 10] + "\n"
        _write_commit(log, k, text)
    live = held.join(removed.select("path"), on="path", how="anti")
    return _facts(live, held, last_version=commits - 1)


def multipart_checkpoint(log: Path, scale: float, *, partitioned: bool = False) -> Facts:
    """10M files in a multi-part checkpoint of 20 parts: of short paths and without statistics, or
    `partitioned`, with statistics.

    Rows are assigned to parts by number. The protocol requires Spark's hash of the path, but no
    reader depends on it, and it would make the generator slow.
    """
    count, parts = _scaled(10_000_000, scale), 20
    size = 0
    for k in range(parts):
        first, end = count * k // parts, count * (k + 1) // parts
        own = (columns.files if partitioned else columns.narrow_files)(first, end - first)
        path = log / (f"{CHECKPOINT_VERSION:020d}.checkpoint.{k + 1:010d}.{parts:010d}.parquet")
        _write_checkpoint(path, ([_head(partitioned=partitioned)] if k == 0 else []) + [_adds(own)])
        size += int(own["size"].sum())
    _write_hint(log, size=count + 2, parts=parts)
    _write_commit(log, CHECKPOINT_VERSION, _commit_info(CHECKPOINT_VERSION, "WRITE"))
    return {
        "files": count,
        "bytes": size,
        "adds": count,
        "add_bytes": size,
        "last_version": CHECKPOINT_VERSION,
    }


def checkpointed(log: Path, scale: float, *, files: int) -> Facts:
    """`files` files in a classic checkpoint, ten commits of one file each above it."""
    held, new = columns.files(0, _scaled(files, scale)), columns.files(3_000_000, 10)
    path = log / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet"
    _write_checkpoint(path, [_head(), _adds(held)])
    _write_hint(log, size=2 + held.height)
    _write_commit(log, CHECKPOINT_VERSION, _commit_info(CHECKPOINT_VERSION, "WRITE"))
    for version, line in enumerate(columns.add_lines(new), CHECKPOINT_VERSION + 1):
        _write_commit(log, version, _commit_info(version, "WRITE") + line + "\n")
    live = pl.concat([held, new])
    return _facts(live, live, last_version=CHECKPOINT_VERSION + new.height)


def own_checkpoint(log: Path, scale: float, *, files: int) -> Facts:
    """`checkpointed`, replaced by a checkpoint of the last version that lakelog writes with its
    defaults.
    """
    facts = checkpointed(log, scale, files=files)
    lakelog.open(str(log.parent)).checkpoint()
    last = facts["last_version"]
    for path in log.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < last:
            path.unlink()
    return facts


def empty(log: Path, _: float) -> Facts:
    """A table without files: protocol and metadata in one commit."""
    _write_commit(log, 0, _commit_info(0, "CREATE TABLE") + _first_lines())
    none = columns.files(0, 0)
    return _facts(none, none, last_version=0)


TABLES: dict[str, Callable[[Path, float], Facts]] = {
    "classic_checkpoint": classic_checkpoint,
    "large_commits": large_commits,
    "small_commits": partial(small_commits, commits=10_000),
    "multipart_checkpoint": multipart_checkpoint,
    **{
        f"commits_{n}": partial(small_commits, commits=n, least=10)
        for n in (10, 100, 1_000, 10_000, 100_000)
    },
    "empty": empty,
    "own_checkpoint_1m_files": partial(own_checkpoint, files=1_000_000),
    "checkpoint_1k_files": partial(checkpointed, files=1_000),
    "checkpoint_100k_files": partial(checkpointed, files=100_000),
    "checkpoint_1m_files": partial(checkpointed, files=1_000_000),
    **ROW_TABLES,
}


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def _facts(live: pl.DataFrame, logged: pl.DataFrame, *, last_version: int) -> Facts:
    return {
        "files": live.height,
        "bytes": int(live["size"].sum()),
        "adds": logged.height,
        "add_bytes": int(logged["size"].sum()),
        "last_version": last_version,
    }


def _write_commit(log: Path, version: int, text: str) -> None:
    path = log / f"{version:020d}.json"
    path.write_text(text, encoding="utf-8")
    seconds = (_MS + version * 1000) / 1000
    os.utime(path, (seconds, seconds))


def _commit_info(version: int, operation: str) -> str:
    info = {
        "timestamp": _MS + version * 1000,
        "operation": operation,
        "operationParameters": {"mode": "Append", "partitionBy": '["date","region"]'},
        "isolationLevel": "Serializable",
        "isBlindAppend": operation == "WRITE",
        "operationMetrics": {"numFiles": "1", "numOutputRows": "1000", "numOutputBytes": "1048"},
        "engineInfo": "Apache-Spark/3.5.1 Delta-Lake/3.2.0",
        "txnId": f"00000000-0000-4000-8000-{version:012d}",
    }
    return json.dumps({"commitInfo": info}, separators=(",", ":")) + "\n"


def _metadata(*, partitioned: bool = True) -> dict[str, object]:
    return {
        "id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.SCHEMA_STRING,
        "partitionColumns": list(columns.PARTITIONS) if partitioned else [],
        "configuration": {"delta.checkpointInterval": "100"},
        "createdTime": _MS,
    }


def _first_lines(*, partitioned: bool = True) -> str:
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    metadata = {"metaData": _metadata(partitioned=partitioned)}
    return "".join(
        json.dumps(action, separators=(",", ":")) + "\n" for action in (protocol, metadata)
    )


def _head(*, partitioned: bool = True) -> pa.Table:
    """The rows of a checkpoint that are not file actions: protocol and metaData."""
    lines = _first_lines(partitioned=partitioned).encode()
    meta = decode_lines([Blob(None, "", lines)], Wire.of("delta")).meta
    rows = [
        action_rows(meta.filter(pl.col("actionType") == kind), kind, CHECKPOINT)
        for kind in ("protocol", "metaData")
    ]
    return pa.concat_tables(rows)


def _adds(frame: pl.DataFrame) -> pa.Table:
    return _rows("add", frame)


def _removes(frame: pl.DataFrame) -> pa.Table:
    removed = frame.with_columns(deletionTimestamp=_MS + 500_000, extendedFileMetadata=True)
    return _rows("remove", removed)


def _rows(action: str, frame: pl.DataFrame) -> pa.Table:
    maps = pl.Series("partitionValues", _partition_map(frame))
    rows = frame.with_columns(maps).drop(columns.PARTITIONS, strict=False)
    return action_rows(encoded(rows), action, CHECKPOINT)


def _partition_map(frame: pl.DataFrame) -> pa.Array:
    names = [c for c in columns.PARTITIONS if c in frame.columns]
    width, count = len(names), frame.height
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    if not names:
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(offsets, none, none)
    both = frame.select(
        keys=pl.concat_list(pl.lit(n) for n in names), values=pl.concat_list(names)
    ).explode("keys", "values")
    return pa.MapArray.from_arrays(offsets, _strings(both["keys"]), _strings(both["values"]))


def _strings(column: pl.Series) -> pa.Array:
    return column.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def _write_checkpoint(path: Path, tables: list[pa.Table]) -> None:
    table = pa.concat_tables(tables)
    pq.write_table(table, path, compression="snappy", row_group_size=_ROW_GROUP_ROWS)


def _write_hint(log: Path, **fields: int) -> None:
    (log / "_last_checkpoint").write_text(
        json.dumps({"version": CHECKPOINT_VERSION, **fields}), encoding="utf-8"
    )
