"""deltalake on every workload of writing.

`DeltaTable.create_write_transaction` commits add actions without writing data files. It does not
update its table object, and an outdated table checks every later commit for conflicts. With
`update_incremental` after each commit, the fastest method of its API, it stays at the end of the
log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.transaction import AddAction, RemoveAction

from perf import columns
from perf.writing import contended, contents
from perf.writing.base import Case, Figures, Job, timed

_SCHEMA = Schema.from_json(columns.SCHEMA_STRING)
_PARTITIONS = list(columns.PARTITIONS)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_PATIENT = CommitProperties(max_commit_retries=1_000_000)


def _action(row: dict[str, Any]) -> AddAction:
    return AddAction(
        row["path"],
        row["size"],
        row["partitionValues"],
        row["modificationTime"],
        row["dataChange"],
        row["stats"],
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """One table, and a method that commits to it."""

    table: DeltaTable
    path: str
    checkpoints: bool
    synced: bool = False

    def commit(self, actions: list[AddAction | RemoveAction]) -> None:
        self.table.create_write_transaction(
            actions,
            "append",
            _SCHEMA,
            _PARTITIONS,
            commit_properties=_PATIENT,
            post_commithook_properties=None if self.checkpoints else _NO_HOOKS,
        )

    def commit_and_follow(self, actions: list[AddAction | RemoveAction]) -> None:
        self.commit(actions)
        self.table.update_incremental()
        if self.synced:
            log = f"{self.path}/_delta_log"
            _fsync(f"{log}/{self.table.version():020d}.json")
            _fsync(log)

    def each(self, actions: list[AddAction | RemoveAction]) -> Iterator[Callable[[], None]]:
        return (partial(self.commit_and_follow, [action]) for action in actions)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(table: DeltaTable, number: int) -> None:
    """Commit one file, without a checkpoint."""
    _Writer(table, "", checkpoints=False).commit(_single(number, 1))


def _single(start: int, count: int) -> list[AddAction | RemoveAction]:
    return [_action(row) for row in contents.single_adds(start, count)]


def _small(*, checkpoints: bool, synced: bool) -> Case:
    def prepare(job: Job) -> tuple[_Writer, list[AddAction | RemoveAction]]:
        writer = _Writer(DeltaTable(job.path), job.path, checkpoints, synced)
        return writer, _single(0, job.size)

    return Case(prepare, _one_by_one)


def _one_by_one(prepared: tuple[_Writer, list[AddAction | RemoveAction]]) -> Figures:
    writer, actions = prepared
    return timed(writer.each(actions))


def _bulk(job: Job) -> tuple[_Writer, list[AddAction | RemoveAction]]:
    return _Writer(DeltaTable(job.path), job.path, checkpoints=False), _single(0, job.size)


def _one_commit(prepared: tuple[_Writer, list[AddAction | RemoveAction]]) -> Figures:
    writer, actions = prepared
    start = time.perf_counter()
    writer.commit(actions)
    return {"seconds": time.perf_counter() - start}


def _bulk_arrow(job: Job) -> tuple[_Writer, Any]:
    writer = _Writer(DeltaTable(job.path), job.path, checkpoints=False)
    return writer, contents.arrow_table(job.size)


def _one_commit_from_arrow(prepared: tuple[_Writer, Any]) -> Figures:
    writer, table = prepared
    start = time.perf_counter()
    columns_ = (
        table[name].to_pylist() for name in ("path", "size", "modificationTime", "dataChange")
    )
    values = table["partitionValues"].to_pylist(maps_as_pydicts="strict")
    rows = zip(*columns_, values, table["stats"].to_pylist(), strict=True)
    writer.commit(
        [
            AddAction(path, size, partition, modified, changed, stats)
            for path, size, modified, changed, partition, stats in rows
        ]
    )
    return {"seconds": time.perf_counter() - start}


def writer(path: str, first: int, count: int) -> Iterator[Callable[[], None]]:
    """One of several writers, with default checkpoints."""
    return _Writer(DeltaTable(path), path, checkpoints=True).each(_single(first, count))


def writer_without_checkpoints(path: str, first: int, count: int) -> Iterator[Callable[[], None]]:
    """One of several writers, without checkpoints."""
    return _Writer(DeltaTable(path), path, checkpoints=False).each(_single(first, count))


def _several(job: Job) -> contended.Writers:
    return contended.Writers(writer, job.path, job.size)


def _several_without_checkpoints(job: Job) -> contended.Writers:
    return contended.Writers(writer_without_checkpoints, job.path, job.size)


def _sized(job: Job) -> tuple[str, list[AddAction | RemoveAction]]:
    return job.path, _single(0, job.size)


def _open_and_commit(prepared: tuple[str, list[AddAction | RemoveAction]]) -> Figures:
    path, actions = prepared
    start = time.perf_counter()
    writer = _Writer(DeltaTable(path), path, checkpoints=False)
    writer.commit_and_follow(actions[:1])
    first = time.perf_counter() - start
    further = timed(writer.each(actions[1:]))
    return {**further, "seconds": first + further["seconds"], "first_ms": first * 1e3}


_SIZED = Case(_sized, _open_and_commit)


CASES = {
    "commits_small_local": {
        "deltalake": _small(checkpoints=True, synced=False),
        "deltalake_no_checkpoints": _small(checkpoints=False, synced=False),
        "deltalake_synced": _small(checkpoints=True, synced=True),
        "deltalake_synced_no_checkpoints": _small(checkpoints=False, synced=True),
    },
    "commit_100k_adds": {
        "deltalake": Case(_bulk, _one_commit),
        "deltalake_from_arrow": Case(_bulk_arrow, _one_commit_from_arrow),
    },
    "commits_8_writers": {
        "deltalake": Case(_several, contended.run),
        "deltalake_no_checkpoints": Case(_several_without_checkpoints, contended.run),
    },
    "commit_cost_by_table_size": {f"deltalake_{size}": _SIZED for size in ("1k", "100k", "1m")},
}
