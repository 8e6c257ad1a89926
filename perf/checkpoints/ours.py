"""lakelog on every workload of checkpoints and cleanup, through its public API only."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lakelog
import lakelog.checkpoint.write  # imported before the measurement, like every module
import lakelog.table_functions
from lakelog.storage import LogStore, StoreWrapper
from lakelog.testing import InjectingStore
from perf.cases import ours as reading
from perf.checkpoints.workloads import COMMITS
from perf.writing import contents
from perf.writing.base import Case, Figures, Job

LATENCY_S = 0.005
MEMORY_LIMIT = 512_000_000


class OneByOne(StoreWrapper):
    """A store that reads files one after another, with one round trip per file, like the reader of
    specification 004.
    """

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The content of each file, in order."""
        return (self._store.read(path) for path in paths)


def _timed(what: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def _checkpoint_files(job: Job, paths: Iterable[str]) -> float:
    return float(sum((Path(job.path) / path).stat().st_size for path in paths))


def _text_only(job: Job) -> Job:
    with lakelog.open(job.path).transaction() as tx:
        tx.set_metadata(configuration={"delta.checkpoint.writeStatsAsStruct": "false"})
    return job


def _write(*, verify: bool) -> Callable[[Job], Figures]:
    def run(job: Job) -> Figures:
        start = time.perf_counter()
        report = lakelog.open(job.path).checkpoint(verify=verify)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "bytes": _checkpoint_files(job, report.paths)}

    return run


def _with_v2_checkpoint(job: Job) -> Job:
    """A table with a V2 checkpoint, and one commit above it."""
    table = lakelog.open(job.path)
    with table.transaction() as tx:
        tx.set_protocol(features=["v2Checkpoint"])
        tx.set_metadata(configuration={"delta.checkpointPolicy": "v2"})
    table.checkpoint()
    _add_one(table, 0)
    return job


def _add_one(table: lakelog.Table, number: int) -> None:
    (row,) = contents.single_adds(number, 1)
    with table.transaction() as tx:
        tx.add(**row)


def _incremental(job: Job) -> Figures:
    table = lakelog.open(job.path)
    gc.collect()
    start = time.perf_counter()
    table = lakelog.open(job.path)
    report = table.checkpoint()
    seconds = time.perf_counter() - start
    _add_one(table, 1)
    further = _timed(table.checkpoint)
    return {"seconds": seconds, "open_table_s": further, "bytes": float(report.size_bytes)}


def _own_checkpoint(job: Job) -> Job:
    lakelog.open(job.path).checkpoint()
    return job


def _typed(job: Job) -> Figures:
    statistics = reading.CASES["stats_typed_1m"]
    return {"seconds": _timed(lambda: statistics.run(Path(job.path)))}


def _bounded(job: Job) -> Figures:
    start = time.perf_counter()
    report = lakelog.open(job.path).checkpoint(layout="classic", memory_limit=MEMORY_LIMIT)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": _checkpoint_files(job, report.paths)}


def _over(job: Job, wrap: Callable[[LogStore], LogStore]) -> lakelog.Table:
    log = lakelog.open(job.path).log
    return lakelog.Table(replace(log, store=wrap(log.store)))


def _live_files(wrap: Callable[[LogStore], LogStore]) -> Callable[[Job], Figures]:
    def run(job: Job) -> Figures:
        table = _over(job, wrap)
        return {"seconds": _timed(lambda: table.snapshot().files().select("path").collect())}

    return run


def _far(store: LogStore) -> LogStore:
    return InjectingStore(store, latency_s=LATENCY_S)


def _given(job: Job) -> Job:
    return job


def _histories(prefix: str, wrap: Callable[[LogStore], LogStore]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for count in COMMITS:
        one_by_one = _live_files(lambda store: OneByOne(wrap(store)))
        cases[f"{prefix}one_by_one_{count}"] = Case(_given, one_by_one)
        cases[f"{prefix}replay_{count}"] = Case(_given, _live_files(wrap))
        cases[f"{prefix}checkpoint_{count}"] = Case(_own_checkpoint, _live_files(wrap))
    return cases


def _plan(job: Job) -> Figures:
    return {"seconds": _timed(lambda: lakelog.open(job.path).cleanup(plan=True).files)}


def _same(store: LogStore) -> LogStore:
    return store


CASES: dict[str, dict[str, Any]] = {
    "checkpoint_1m_files": {
        "lakelog": Case(_text_only, _write(verify=True)),
        "lakelog_unverified": Case(_text_only, _write(verify=False)),
        "lakelog_typed": Case(_given, _write(verify=True)),
        "lakelog_typed_unverified": Case(_given, _write(verify=False)),
    },
    "checkpoint_after_one_commit_1m": {"lakelog": Case(_with_v2_checkpoint, _incremental)},
    "stats_typed_from_own_checkpoint_1m": {"lakelog": Case(_own_checkpoint, _typed)},
    "checkpoint_10m_files_512mb": {"lakelog": Case(_given, _bounded)},
    "spec004_local_disk": _histories("", _same),
    "spec004_5ms_a_request": _histories("far_", _far),
    "cleanup_plan_100k_commits": {"lakelog": Case(_own_checkpoint, _plan)},
}
