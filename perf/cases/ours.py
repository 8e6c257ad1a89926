"""lakelog on every workload, through its public API only.

Some modules are imported by name because `lakelog` imports them lazily, and imports are not
measured.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

import lakelog
import lakelog.dialects.delta.checkpoint
import lakelog.dialects.delta.checkpoint_manifest
import lakelog.dialects.delta.typed_bounds
import lakelog.dialects.ndjson
import lakelog.table_functions
from lakelog.storage import open_store
from lakelog.testing import InjectingStore
from perf.cases.base import ONE_DATE, Answer, Case, WritableCopy, paths_answer
from perf.tables import Table

LATENCY_S = 0.03
_COLUMNS = ("path", "size", "partitionValues", "modificationTime")
_STATS = ("numRecords", "min", "max", "nullCount")


def _state(path: Path) -> pl.DataFrame:
    return lakelog.open(str(path)).snapshot().files().select(_COLUMNS).collect()


def _stats(path: Path) -> pl.DataFrame:
    snapshot = lakelog.open(str(path)).snapshot()
    return snapshot.files(stats=True).select(*_COLUMNS, *_STATS).collect()


def _one_date(path: Path) -> list[str]:
    snapshot = lakelog.open(str(path)).snapshot()
    where = pl.col("date") == dt.date.fromisoformat(ONE_DATE)
    return snapshot.files(where=where).select("path").collect()["path"].to_list()


def _one_date_far(path: Path) -> list[str]:
    store = InjectingStore(open_store(str(path)), latency_s=LATENCY_S)
    where = pl.col("date") == dt.date.fromisoformat(ONE_DATE)
    files = lakelog.open(store=store).snapshot().files(where=where).select("path")
    return files.collect()["path"].to_list()


def _with_cache(table: Table, stack: ExitStack) -> tuple[Path, lakelog.DiskCache]:
    """A disk cache that another handle has filled."""
    folder = tempfile.TemporaryDirectory(dir=table.path.parent, prefix="cache-")
    cache = lakelog.DiskCache(stack.enter_context(folder))
    _cached_state((table.path, cache))
    assert cache.size_bytes, "the checkpoint is too recent for the cache"
    return table.path, cache


def _cached_state(opened: tuple[Path, lakelog.DiskCache]) -> pl.DataFrame:
    path, cache = opened
    return lakelog.open(str(path), cache=cache).snapshot().files().select(_COLUMNS).collect()


def _cached_one_date(opened: tuple[Path, lakelog.DiskCache]) -> list[str]:
    path, cache = opened
    where = pl.col("date") == dt.date.fromisoformat(ONE_DATE)
    files = lakelog.open(str(path), cache=cache).snapshot().files(where=where)
    return files.select("path").collect()["path"].to_list()


def _narrow(path: Path) -> pl.DataFrame:
    return lakelog.open(str(path)).snapshot().files().select("path", "size").collect()


def _protocol_metadata(path: Path) -> tuple[Any, Any]:
    snapshot = lakelog.open(str(path)).snapshot()
    return snapshot.protocol, snapshot.metadata


def _opened(table: Table, stack: ExitStack) -> tuple[WritableCopy, lakelog.Snapshot]:
    """A snapshot that was used before, and a commit that it has not read."""
    copy = WritableCopy(table, stack)
    snapshot = lakelog.open(str(copy.path)).snapshot()
    snapshot.files().select(_COLUMNS).collect()
    snapshot.num_files()
    copy.commit()
    return copy, snapshot


def _update(opened: tuple[WritableCopy, lakelog.Snapshot]) -> tuple[int, int]:
    snapshot = opened[1].update()
    return snapshot.version, snapshot.num_files()


def _update_then_state(opened: tuple[WritableCopy, lakelog.Snapshot]) -> pl.DataFrame:
    return opened[1].update().files().select(_COLUMNS).collect()


def _history(path: Path) -> pl.DataFrame:
    return lakelog.open(str(path)).history()


def _files_answer(frame: pl.DataFrame) -> Answer:
    from perf import answers

    return answers.of_files(_flat(frame))


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Partition values as columns of text, for the fingerprint."""
    values = pl.col("partitionValues").map
    return frame.select(
        "path",
        "size",
        "modificationTime",
        date=values.get("date"),
        region=values.get("region"),
    )


def _after_update(frame: pl.DataFrame) -> Answer:
    return {f"{name}_after": value for name, value in _files_answer(frame).items()}


def _stats_answer(frame: pl.DataFrame) -> Answer:
    from perf import answers

    return _files_answer(frame.select(_COLUMNS)) | answers.of_stats(frame)


def _narrow_answer(frame: pl.DataFrame) -> Answer:
    from perf import answers

    return answers.of_files(frame)


def _protocol_answer(result: tuple[Any, Any]) -> Answer:
    protocol, metadata = result
    return {
        "reader": protocol.min_reader_version,
        "writer": protocol.min_writer_version,
        "id": metadata.id,
        "partitions": ",".join(metadata.partition_columns),
        "configuration": str(sorted(metadata.configuration.items())),
    }


def _history_answer(frame: pl.DataFrame) -> Answer:
    from perf import answers

    return answers.of_history(frame["version"], frame["operation"], frame["engineInfo"])


CASES = {
    "state_1m_files_classic_plus_100_commits": Case(_state, _files_answer),
    "stats_typed_1m": Case(_stats, _stats_answer),
    "state_1m_files_disk_cache": Case(_cached_state, _files_answer, _with_cache),
    "files_of_one_date_1m_classic": Case(_one_date, paths_answer),
    "files_of_one_date_1m_disk_cache": Case(_cached_one_date, paths_answer, _with_cache),
    "files_of_one_date_1m": Case(_one_date, paths_answer),
    "files_of_one_date_1m_30_ms_a_request": Case(_one_date_far, paths_answer),
    "protocol_metadata_1m": Case(_protocol_metadata, _protocol_answer),
    "update_by_one_commit_1m": Case(
        _update, lambda r: {"version_after": r[0], "files_after": r[1]}, _opened
    ),
    "update_then_state_1m": Case(_update_then_state, _after_update, _opened),
    "state_1m_adds_200_commits": Case(_state, _files_answer),
    "state_10k_small_commits": Case(_state, _files_answer),
    "history_10k_commits": Case(_history, _history_answer),
    "state_10m_multipart_projected": Case(
        _narrow, _narrow_answer, size_bytes=lambda frame: int(frame.estimated_size())
    ),
}
