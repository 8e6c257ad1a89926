"""A cluster on one machine whose tasks fail and whose executors die, for the test beside this.

Run as a program with the locations of a table and of a folder for marks; prints what it found as
JSON. It is a program of its own because a process has one Spark, and this one is a cluster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakelog.spark
from lakelog.spark import exchange, parts

MARKS = "LAKELOG_TEST_MARKS"


def first_time(marks: str, what: str) -> bool:
    """Whether nobody has been here before."""
    try:
        Path(marks, what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_executor() -> None:
    """Kill the executor that this task's Python belongs to: the nearest Java above it."""
    pid = os.getpid()
    while True:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        if "java" in Path(f"/proc/{pid}/comm").read_text("utf-8"):
            break
        pid = int(status.split("PPid:")[1].split()[0])
    os.kill(pid, signal.SIGKILL)
    signal.pause()


@dataclass(frozen=True)
class FailingOnce:
    """A step that fails in the middle of its first attempt."""

    step: Any
    marks: str
    name: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.step(batches):
            yield batch.slice(0, 1)
            if first_time(self.marks, self.name):
                raise OSError("the first attempt fails")
            yield batch.slice(1)


class DyingWriter(parts.PartWriter):
    """Writes its files; the first attempt of all is killed before anybody hears of them, and the
    second one fails.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in super().__call__(batches):
            marks = os.environ[MARKS]
            if first_time(marks, "killed"):
                kill_executor()
            if first_time(marks, "failed"):
                raise OSError("the answer is lost")
            yield answer


def main(table: str, marks: str) -> dict[str, Any]:
    """Replay, then write a checkpoint, on a cluster of two executors."""
    config = {
        "spark.ui.enabled": "false",
        "spark.executorEnv." + MARKS: marks,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = lakelog.spark.session("killer", master="local-cluster[2,1,1024]", config=config)
    spark.sparkContext.setLogLevel("OFF")
    try:
        decoder, reconciler = exchange.Decoder, exchange.Reconciler
        wrapped = {
            name: lambda *args, step=step, name=name: FailingOnce(step(*args), marks, name)
            for name, step in (("Decoder", decoder), ("Reconciler", reconciler))
        }
        vars(exchange).update(wrapped)
        frame = lakelog.spark.replay(spark, table, strategy="hash", columns=("actionType", "path"))
        rows = sorted((row.actionType, row.path or "") for row in frame.collect())
        vars(exchange).update(Decoder=decoder, Reconciler=reconciler)
        vars(sys.modules["lakelog.spark.checkpoint"])["PartWriter"] = DyingWriter
        report = lakelog.spark.checkpoint(spark, table, parts=2, strategy="hash")
    finally:
        spark.stop()
    return {"rows": rows, "verified": report.verified, "paths": report.paths}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
