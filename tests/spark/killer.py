"""Runs streams and compactions that are killed: ``killer.py``, one JSON command per line on
standard input.

A stream here is Spark's protocol without Spark: offsets are written before a batch, the tasks of
the batch run, the sink commits, and a file records that the batch is done; a batch without that
file is run again by its offsets. Spark's part in compaction is simulated by `pipeline_side`. Each
job is a fork of this process, which has imported everything and run nothing: so a kill costs
milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import lakelog
from lakelog import table as tables
from lakelog.data import write as data_write
from lakelog.spark import stream_sink
from lakelog.spark.options import parse_options
from lakelog.spark.pipeline import compact as compact_step
from lakelog.spark.stream_source import stream_reader
from lakelog.storage import LogStore, open_store
from lakelog.testing import InjectingStore, Rule
from tests.spark.pipeline_side import run_compact
from tests.spark.spark_side import SCHEMA, sink


class Checkpoint:
    """A query's own files, each written atomically."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(exist_ok=True)

    def get(self, name: str) -> Any:
        path = self._folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, name: str, content: Any) -> Any:
        part = self._folder / f".{name}.part"
        part.write_text(json.dumps(content))
        part.rename(self._folder / name)
        return content


def stream(order: dict[str, Any]) -> None:
    """Stream all rows that exist when the query starts, as under ``AvailableNow``."""
    checkpoint = Checkpoint(order["checkpoint"])
    query = checkpoint.get("metadata") or checkpoint.put("metadata", str(uuid.uuid4()))
    stream_sink.query_of_task = lambda: query
    options = {"path": order["source"], "maxFilesPerTrigger": str(order["files"])}
    reader = stream_reader(parse_options(options, "stream"), SCHEMA, 2)
    reader.prepareForTriggerAvailableNow()
    batch, start = 0, None
    while (end := checkpoint.get(f"offsets-{batch}")) is not None:
        if checkpoint.get(f"commits-{batch}") is None:
            break
        batch, start = batch + 1, end
    start = start or reader.initialOffset()
    while True:
        if end is None:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return
            checkpoint.put(f"offsets-{batch}", end)
        run_batch(reader, order["target"], order.get("options", {}), batch, start, end)
        checkpoint.put(f"commits-{batch}", True)
        batch, start, end = batch + 1, end, None


def run_batch(
    reader: Any, target: str, options: dict[str, Any], batch: int, start: Any, end: Any
) -> None:
    made = sink(target, **options)
    messages = [made.write(reader.read(share)) for share in reader.partitions(start, end)]
    sink(target, **options).commit(list(messages), batch)


def compact(order: dict[str, Any]) -> None:
    """Compact the target, one bin per commit."""
    run_compact(lakelog.open(order["target"], upkeep=False), commit_bytes=1)


JOBS = {"stream": stream, "compact": compact}


def with_faults(order: dict[str, Any]) -> None:
    """The job, killed at the nth operation of any store that it writes to."""
    rule = Rule(order["fault"], order["kinds"], nth=order["nth"])
    opened: dict[str, InjectingStore] = {}

    def open_faulty(location: Any, options: Any = None, _limits: object = None) -> LogStore:
        name = os.fspath(location)
        if name not in opened:
            rules = [rule] if name == order["target"] else []
            opened[name] = InjectingStore(open_store(location, options), rules)
        return opened[name]

    with (
        mock.patch.object(tables, "open_bounded", open_faulty),
        mock.patch.object(data_write, "open_store", open_faulty),
        mock.patch.object(compact_step, "open_bounded", open_faulty),
    ):
        JOBS[order["job"]](order)


def run(order: dict[str, Any]) -> int:
    """Fork a job, kill it if requested, and wait for it; returns its wait status."""
    child = os.fork()
    if child == 0:
        failed = True
        try:
            (with_faults if "fault" in order else JOBS[order["job"]])(order)
            failed = False
        finally:
            os._exit(int(failed))
    if "after_s" in order:
        time.sleep(order["after_s"])
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def main() -> None:
    for line in sys.stdin:
        status = run(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
