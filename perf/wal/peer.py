"""Peers with durable small writes: SQLite, and a plain write with fsync."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from perf.wal import ours, records, threads
from perf.writing.base import Case, Figures, Job

_PATIENCE_S = 120

DATABASE = "sqlite.db"
BYTES = "bytes.bin"


def connect(path: str) -> sqlite3.Connection:
    """A connection with durable commits, one per INSERT."""
    connection = sqlite3.connect(
        path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _prepare(job: Job) -> tuple[str, list[threads.Pair]]:
    path = f"{job.path}/{DATABASE}"
    connection = connect(path)
    connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, key BLOB, value BLOB)")
    connection.close()
    return path, records.rows(job.size)


def _each_its_own(path: str) -> Callable[[], threads.Appender]:
    return lambda: _inserting(connect(path))


def _one_for_all(path: str) -> Callable[[], threads.Appender]:
    insert = _inserting(connect(path))
    lock = threading.Lock()

    def append(key: bytes, value: bytes) -> None:
        with lock:
            insert(key, value)

    return lambda: append


def _inserting(connection: sqlite3.Connection) -> threads.Appender:
    statement = "INSERT INTO log (key, value) VALUES (?, ?)"
    return lambda key, value: connection.execute(statement, (key, value))


def _appends(
    opener: Callable[[str], Callable[[], threads.Appender]],
) -> Callable[[tuple[str, list[threads.Pair]]], Figures]:
    def run(prepared: tuple[str, list[threads.Pair]]) -> Figures:
        path, rows = prepared
        return threads.run(opener(path), rows)

    return run


def _the_bytes(job: Job) -> tuple[str, bytes]:
    """The bytes of the log's segments for the same table."""
    log = Path(job.path) / ours.LOG
    with ours.open_log(log) as target:  # synced, so that the measured fsync does not include it
        target.append_table(records.table(job.size))
    return f"{job.path}/{BYTES}", segments(log)


def segments(log: Path) -> bytes:
    """All bytes of a log."""
    return b"".join(file.read_bytes() for file in sorted(log.glob("*.wal")))


def _write_and_sync(prepared: tuple[str, bytes]) -> Figures:
    path, data = prepared
    start = time.perf_counter()
    with open(path, "xb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    return {"seconds": time.perf_counter() - start, "bytes": float(len(data))}


CASES = {
    "wal_durable_appends_8_threads": {
        "sqlite": Case(_prepare, _appends(_each_its_own)),
        "sqlite_one_connection": Case(_prepare, _appends(_one_for_all)),
    },
    "wal_append_table_1m_records": {"bytes": Case(_the_bytes, _write_and_sync)},
}
