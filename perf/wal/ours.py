"""lakelog on every workload of the log and the keyed store, through its public API only."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import lakelog
import lakelog.keyed.store  # imported before the measurement, like every module
from lakelog.wal.historic.log import HistoricFormat
from lakelog.wal.historic.reader import read_historic
from perf.wal import plain, records, threads
from perf.writing.base import Case, Figures, Job

LOG = "log"
STORE = "store"


def open_log(path: Path, sync: Literal["sync", "batch", "none"] = "sync") -> lakelog.WriteAheadLog:
    """Open a log of lakelog."""
    return lakelog.WriteAheadLog(path, sync=sync)


def _in_batches(job: Job) -> Path:
    log = Path(job.path) / LOG
    with open_log(log, "none") as target:
        for batch in records.batches(job.size):
            target.append_table(batch)
    return log


def _one_by_one(job: Job) -> Path:
    log = Path(job.path) / LOG
    with open_log(log, "none") as target:
        for key, value in records.rows(job.size):
            target.append("PUT", key, value)
    return log


def _replay(log: Path) -> Figures:
    start = time.perf_counter()
    with open_log(log) as source:
        opened = time.perf_counter()
        source.replay()
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "replay_s": seconds - (opened - start)}


def _replay_historic(kind: HistoricFormat) -> Callable[[Path], Figures]:
    def run(folder: Path) -> Figures:
        start = time.perf_counter()
        read_historic(folder, kind).replay()
        return {"seconds": time.perf_counter() - start}

    return run


def _threads(job: Job) -> tuple[Path, list[threads.Pair]]:
    return Path(job.path) / LOG, records.rows(job.size)


def _appends(prepared: tuple[Path, list[threads.Pair]]) -> Figures:
    log, rows = prepared
    with open_log(log) as target:
        return threads.run(lambda: lambda key, value: target.append("PUT", key, value), rows)


def _table(job: Job) -> tuple[Path, pa.Table]:
    return Path(job.path) / LOG, records.table(job.size)


def _append_table(prepared: tuple[Path, pa.Table]) -> Figures:
    log, table = prepared
    with open_log(log) as target:
        start = time.perf_counter()
        target.append_table(table)
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": float(sum(f.stat().st_size for f in log.glob("*.wal")))}


def _unflushed(job: Job) -> tuple[Path, bytes]:
    """A store with all records in its log, and one of its keys."""
    store = Path(job.path) / STORE
    with lakelog.KeyedStore(store, sync="none", memtable_bytes=1 << 40) as target:
        for batch in records.batches(job.size):
            target.put_table(batch)
    gc.collect()
    return store, records.pairs(job.size)["key"][job.size // 2]


def _open_store(prepared: tuple[Path, bytes]) -> Figures:
    store, key = prepared
    start = time.perf_counter()
    with lakelog.KeyedStore(store) as opened:
        seconds = time.perf_counter() - start
        found = opened.get(key)
        first = time.perf_counter() - start
    assert found is not None
    return {"seconds": seconds, "first_s": first}


def _replay_the_stores(prepared: tuple[Path, bytes]) -> Figures:
    store, _ = prepared
    figures = _replay(store / "wal")
    return figures | {"first_s": figures["seconds"]}


CASES: dict[str, dict[str, Any]] = {
    "wal_replay_1m_records": {
        "lakelog": Case(_in_batches, _replay),
        "lakelog_single_appends": Case(_one_by_one, _replay),
        **{
            f"lakelog_{kind}": Case(plain.prepare(f"lakelog_{kind}", kind), _replay_historic(kind))
            for kind in plain.FORMATS
        },
    },
    "wal_durable_appends_8_threads": {"lakelog": Case(_threads, _appends)},
    "wal_append_table_1m_records": {"lakelog": Case(_table, _append_table)},
    "keyed_open_1m_keys_in_the_log": {
        "lakelog": Case(_unflushed, _open_store),
        "lakelog_log": Case(_unflushed, _replay_the_stores),
    },
}
