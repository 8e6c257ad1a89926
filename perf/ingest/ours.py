"""lakelog on every workload of ingestion, through its public API only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

import lakelog
import lakelog.data.append  # imported before the measurement, like every module
import lakelog.ingest.ingestor
from perf.ingest.workloads import BATCH_ROWS, LAG_SECONDS, THREADS
from perf.rows.generate import rows, schema_string
from perf.writing.base import Case, Figures, Job

ROW = {"name": "user 1234567", "price": 12.5, "open": True}
LOG, DIRECTORY, COUNT = "log", "ingest", "rows"
_SINGLE = {"id": pl.Int64, "name": pl.String, "price": pl.Float64, "open": pl.Boolean}


def single_table(job: Job) -> lakelog.Table:
    """An empty table for single rows."""
    return lakelog.create(job.path, _SINGLE, upkeep=False)


def directory_of(job: Job) -> Path:
    """The directory of an Ingestor, next to the table."""
    return Path(job.path).with_name(DIRECTORY)


def expect(job: Job, count: int) -> None:
    """Record the expected number of rows, with the ids from 0, for the check."""
    Path(job.path, COUNT).write_text(str(count), encoding="ascii")


def by_threads(items: Sequence[Any], act: Callable[[Any], object]) -> Figures:
    """Call `act` on each item, divided among threads; the wall clock and CPU time."""
    cpu, start = time.process_time(), time.perf_counter()

    def work(number: int) -> None:
        for item in items[number::THREADS]:
            act(item)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, range(THREADS)):
            pass
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }


def per_row(figures: Figures, count: int) -> Figures:
    """The figures, with additional ones per row."""
    return figures | {
        "row_us": figures["seconds"] / count * 1e6,
        "row_cpu_us": figures["cpu_seconds"] / count * 1e6,
    }


def _single(job: Job) -> Figures:
    table = single_table(job)
    expect(job, job.size)
    given = [{"id": number, **ROW} for number in range(job.size)]
    with lakelog.Ingestor(table, directory_of(job), max_seconds=3600) as ingestor:
        return per_row(by_threads(given, ingestor.write), job.size)


def _bare(job: Job) -> Figures:
    expect(job, job.size)
    given = [orjson.dumps({"id": number, **ROW}) + b"\n" for number in range(job.size)]
    with lakelog.WriteAheadLog(Path(job.path, LOG)) as log:
        return per_row(by_threads(given, lambda row: log.append("PUT", b"12345", row)), job.size)


def _made(share: int) -> Callable[[Job], tuple[Job, lakelog.Table, pa.Table]]:
    def prepare(job: Job) -> tuple[Job, lakelog.Table, pa.Table]:
        count = max(BATCH_ROWS, job.size // share)
        expect(job, count)
        return job, lakelog.create(job.path, schema_string(), upkeep=False), rows(0, count)

    return prepare


def _batches(prepared: tuple[Job, lakelog.Table, pa.Table]) -> Figures:
    job, table, given = prepared
    batches = [given.slice(start, BATCH_ROWS) for start in range(0, given.num_rows, BATCH_ROWS)]
    cpu, start = time.process_time(), time.perf_counter()
    with lakelog.Ingestor(table, directory_of(job)) as ingestor:
        by_threads(batches, ingestor.write)
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def _append(prepared: tuple[Job, lakelog.Table, pa.Table]) -> Figures:
    _, table, given = prepared
    cpu, start = time.process_time(), time.perf_counter()
    table.append(given)
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


class _Flushes(logging.Handler):
    """The durations of flushes, from lakelog's log lines: a flush reads the end of the table's log,
    makes the attempt durable and commits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = [0.0]

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) == "ingest.flush.duration":
            self.seconds.append(record.fields["value"])  # type: ignore[attr-defined]


def _lag(job: Job) -> Figures:
    """One row every two milliseconds, and a reader that polls for the last committed one."""
    table = single_table(job)
    expect(job, job.size)
    flushes = _Flushes()
    logger = logging.getLogger("lakelog")
    logger.addHandler(flushes)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    written: list[float] = []
    seen: list[float] = []
    start = time.perf_counter()
    try:
        with lakelog.Ingestor(table, directory_of(job), max_seconds=LAG_SECONDS) as ingestor:
            reader = threading.Thread(target=_watch, args=(job, ingestor.app_id, seen))
            reader.start()
            for number in range(job.size):
                ingestor.write({"id": number, **ROW})
                written.append(time.perf_counter())
                time.sleep(0.002)
            reader.join()
    finally:
        logger.removeHandler(flushes)
        logger.setLevel(level)
    lag = max(after - before for before, after in zip(written, seen, strict=True))
    longest = max(flushes.seconds)
    # A row that arrives during a flush waits for its end too.
    over = lag - max(LAG_SECONDS, longest) - longest
    return {
        "seconds": time.perf_counter() - start,
        "lag_ms": lag * 1e3,
        "flush_ms": longest * 1e3,
        "over_ms": max(over, 0.0) * 1e3,
    }


def _watch(job: Job, app_id: str, seen: list[float]) -> None:
    """Record when a reader saw each row, in the order of their sequence numbers."""
    for last in _committed(job, app_id):
        seen.extend([time.perf_counter()] * (last - len(seen)))
        if last >= job.size:
            return
        time.sleep(0.01)


def _committed(job: Job, app_id: str) -> Iterator[int]:
    table = lakelog.open(job.path, upkeep=False)
    while True:
        own = table.snapshot().transactions().filter(appId=app_id).collect()
        yield int(own["txnVersion"][0]) if own.height else 0


CASES: dict[str, dict[str, Any]] = {
    "ingest_single_rows_8_threads": {
        "lakelog": Case(lambda job: job, _single),
        "lakelog_log": Case(lambda job: job, _bare),
    },
    "ingest_batches_of_1000_10m_rows": {
        "lakelog": Case(_made(1), _batches),
        "lakelog_tenth": Case(_made(10), _batches),
        "lakelog_append": Case(_made(1), _append),
    },
    "ingest_lag": {"lakelog": Case(lambda job: job, _lag)},
}
