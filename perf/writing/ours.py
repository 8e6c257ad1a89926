"""lakelog on every workload of writing, through its public API only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lakelog
import lakelog.table_functions
from perf.writing import contended, contents
from perf.writing.base import Case, Figures, Job, timed
from perf.writing.syncs import disk_waits


def _commit(table: lakelog.Table, action: dict[str, Any]) -> None:
    with table.transaction() as tx:
        tx.add(**action)


def _small(job: Job) -> tuple[lakelog.Table, list[dict[str, Any]]]:
    return lakelog.open(job.path), list(contents.single_adds(0, job.size))


def _one_by_one(prepared: tuple[lakelog.Table, list[dict[str, Any]]]) -> Figures:
    table, actions = prepared
    figures = timed(_each(table, actions))
    before = time.perf_counter()
    _settle(table)
    # The remaining and the completed background work are reported too.
    figures["settle_s"] = time.perf_counter() - before
    figures["checkpoints"] = len(table.log.list_all().checkpoints)
    return figures


def _settle(table: lakelog.Table) -> None:
    """Wait for a background checkpoint, because the table will be deleted."""
    if table.scheduler is not None:
        table.scheduler.wait()


def _each(table: lakelog.Table, actions: list[dict[str, Any]]) -> Iterator[Callable[[], None]]:
    return (partial(_commit, table, action) for action in actions)


def _without_fsync(job: Job) -> tuple[lakelog.Table, list[dict[str, Any]]]:
    """Run lakelog without fsync, with the durability of the peer."""
    prepared = _small(job)
    os.fsync = lambda fd: None  # noqa: ARG005 - as it is called there
    return prepared


def _bulk(job: Job) -> tuple[lakelog.Table, Any]:
    return lakelog.open(job.path), contents.arrow_table(job.size)


def _one_commit(prepared: tuple[lakelog.Table, Any]) -> Figures:
    table, actions = prepared
    start = time.perf_counter()
    with table.transaction() as tx:
        tx.add(actions)
    figures = {"seconds": time.perf_counter() - start}
    _settle(table)
    return figures


def writer(path: str, first: int, count: int) -> Iterator[Callable[[], None]]:
    """One of several writers: opens the table, then commits one file per step."""
    return _each(lakelog.open(path), list(contents.single_adds(first, count)))


def _several(job: Job) -> contended.Writers:
    return contended.Writers(writer, job.path, job.size)


def _sized(job: Job) -> tuple[str, list[dict[str, Any]]]:
    return job.path, list(contents.single_adds(0, job.size))


def _open_and_commit(prepared: tuple[str, list[dict[str, Any]]]) -> Figures:
    path, actions = prepared
    start = time.perf_counter()
    table = lakelog.open(path)
    _commit(table, actions[0])
    first = time.perf_counter() - start
    with disk_waits() as waited_s:
        further = timed(_each(table, actions[1:]), waited_s)
    _settle(table)
    return {**further, "seconds": first + further["seconds"], "first_ms": first * 1e3}


_SIZED = Case(_sized, _open_and_commit)


CASES = {
    "commits_small_local": {
        "lakelog": Case(_small, _one_by_one),
        "lakelog_unsynced": Case(_without_fsync, _one_by_one),
    },
    "commit_100k_adds": {"lakelog": Case(_bulk, _one_commit)},
    "commits_8_writers": {"lakelog": Case(_several, contended.run)},
    "commit_cost_by_table_size": {f"lakelog_{size}": _SIZED for size in ("1k", "100k", "1m")},
}
