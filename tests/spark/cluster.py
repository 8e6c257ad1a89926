"""A cluster on one machine whose executors lack lakelog, fail and are killed, as is its driver.

A program of its own, because a process has one Spark, and this one is a cluster. It reads one JSON
command per line, which names a function of this module and its arguments, and answers with a line
of JSON after `ANSWER`. It runs as a script, so that its classes are sent to executors by value.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

import lakelog.spark
from lakelog.spark import Pipeline, shuffle_replay
from lakelog.spark.options import parse_options
from lakelog.spark.pipeline import Compact, Target
from lakelog.spark.pipeline import compact as compaction
from lakelog.spark.source import LakelogDataSource
from lakelog.spark.stream_sink import StreamWriter
from lakelog.spark.writing import BatchWriter, Message, task_number
from tests.spark.configured import QUICK, QUICK_JAVA, serve
from tests.spark.warm_python import STARTED_AS

ANSWER = "ANSWER "
SETTINGS = QUICK | {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.connect.grpc.binding.port": "0",  # any free port
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
}


# --- ends ----------------------------------------------------------------------------------------


def first_time(marks: str, what: str) -> bool:
    """Whether this is the first call for this name."""
    try:
        Path(marks, what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_executor() -> None:
    """Kill the executor of this task's Python: the nearest Java process above it."""
    pid = int(os.environ.get(STARTED_AS, os.getpid()))
    while True:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        if "java" in Path(f"/proc/{pid}/comm").read_text("utf-8"):
            break
        pid = int(status.split("PPid:")[1].split()[0])
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def fail() -> None:
    """An error of a task that leaves its executor alive."""
    raise OSError("the answer is lost")


def do_nothing() -> None:
    """Continue."""


def wait() -> None:
    """Wait longer than any test."""
    time.sleep(600)


@dataclass(frozen=True)
class EndingStep:
    """A step of tasks whose first attempts end in different ways, with a partial result."""

    step: Any
    marks: str
    ends: Mapping[str, Callable[[], None]]

    @property
    def meta(self) -> Any:
        return self.step.meta

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in self.step(batches):
            ends = (end for name, end in self.ends.items() if first_time(self.marks, name))
            end = next(ends, None)
            if end is None:
                yield answer
            else:
                yield answer.slice(0, 1)
                end()
                yield answer.slice(1)


@contextmanager
def ending_step(module: Any, step: str, marks: str, **ends: Callable[[], None]) -> Iterator[None]:
    """A module whose tasks of one kind end like that."""
    real = vars(module)[step]
    vars(module)[step] = lambda *args: EndingStep(real(*args), marks, ends)
    try:
        yield
    finally:
        vars(module)[step] = real


# --- the data source -----------------------------------------------------------------------------


def end_with_files(marks: str) -> None:
    """End the first attempts of two tasks after they wrote their files."""
    if task_number() == 1 and first_time(marks, "killed"):
        kill_executor()
    if task_number() == 2 and first_time(marks, "failed"):
        fail()


class EndingBatchWriter(BatchWriter):
    """Writes its files, and ends before the driver is notified."""

    marks: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        message = super().write(iterator)
        end_with_files(self.marks)
        return message


class EndingStreamWriter(StreamWriter):
    """The same for a batch of a stream."""

    marks: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        message = super().write(iterator)
        end_with_files(self.marks)
        return message


class EndingDataSource(LakelogDataSource):
    """The data source, with writers that end; option ``marks`` is the folder of their markers."""

    @classmethod
    def name(cls) -> str:
        return "ending"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = dict(self.options)
        marks = options.pop("marks")
        made = EndingBatchWriter(parse_options(options, "write"), schema, overwrite)
        made.marks = marks
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = dict(self.options)
        marks = options.pop("marks")
        made = EndingStreamWriter(parse_options(options, "sink"), schema, overwrite)
        made.marks = marks
        return made


# --- orders --------------------------------------------------------------------------------------


def inspect_executors(spark: Any, table: str) -> dict[str, Any]:
    """The path of lakelog on executors, the visible part of the contract, and a table's rows."""

    def find(batches: Any) -> Any:
        import lakelog
        from lakelog.model import contract

        for _ in batches:
            found = [lakelog.__file__, str(len(contract.load("actions").fields))]
            yield pa.RecordBatch.from_arrays([pa.array([text]) for text in found], ["f", "n"])

    seen = spark.range(2, numPartitions=2).mapInArrow(find, "f string, n string").collect()
    rows = spark.read.format("lakelog").load(table)
    return {"seen": [tuple(row) for row in seen], "ids": sorted(r.id for r in rows.collect())}


def connect(spark: Any) -> str:
    """The address of the cluster's Spark Connect server."""
    return serve(spark)


def write(spark: Any, table: str, marks: str) -> None:
    """Append 30 rows in three tasks, each of which ends once."""

    def fragile(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if task_number() == 0 and first_time(marks, "failed midway"):
                fail()

    rows = spark.range(30, numPartitions=3).selectExpr("id", "'d' || id % 2 as day")
    broken = rows.mapInArrow(fragile, rows.schema)
    broken.write.format("ending").option("marks", marks).mode("append").save(table)


def replay(spark: Any, table: str, marks: str) -> list[tuple[str, str]]:
    """The state, replayed by tasks that fail."""
    with (
        ending_step(shuffle_replay, "Decoder", marks, decoding=fail),
        ending_step(shuffle_replay, "Reconciler", marks, reconciling=fail),
    ):
        frame = lakelog.spark.replay(spark, table, strategy="hash", columns=("actionType", "path"))
        return sorted((row.actionType, row.path or "") for row in frame.collect())


def checkpoint(spark: Any, table: str, marks: str) -> dict[str, Any]:
    """A checkpoint, written by tasks that are killed and fail."""
    module = sys.modules["lakelog.spark.checkpoint"]  # the name is the function's
    with ending_step(module, "TaskWriter", marks, killed=kill_executor, failed=fail):
        report = lakelog.spark.checkpoint(spark, table, parts=2, strategy="hash")
    return {"verified": report.verified, "paths": report.paths}


def stream(spark: Any, source: str, target: str, checkpoint: str, marks: str) -> None:
    """Stream all existing rows, in batches of which tasks end."""
    read = spark.readStream.format("lakelog").option("maxFilesPerTrigger", "4").load(source)
    write = read.writeStream.format("ending").option("checkpointLocation", checkpoint)
    query = write.option("marks", marks).trigger(availableNow=True).start(target)
    query.awaitTermination()


def compact(spark: Any, table: str, marks: str) -> dict[str, Any]:
    """Compaction, one bin per commit, by tasks that are killed and fail."""
    with _ending_compaction(marks, killed=kill_executor, failed=fail):
        return _compacted(spark, table)


def compact_and_wait(spark: Any, table: str, marks: str) -> dict[str, Any]:
    """Compaction whose second commit never happens, though its files are written."""
    with _ending_compaction(marks, first=do_nothing, waiting=wait):
        return _compacted(spark, table)


def _ending_compaction(marks: str, **ends: Callable[[], None]) -> Any:
    return ending_step(compaction, "_RewriteTask", marks, **ends)


def _compacted(spark: Any, table: str) -> dict[str, Any]:
    pipeline = Pipeline("c", Target(path=table), compact=Compact(commit_bytes=1))
    report = pipeline.run(spark)["compact"]
    return {"status": report.status, "rows": report.rows, "removed": report.removed}


def main() -> None:
    # Executors get the environment, by which they are to find neither lakelog nor these tests.
    for name in ("PYTHONPATH", "JAVA_HOME"):
        os.environ.pop(name, None)
    spark: Any = lakelog.spark.session(
        "cluster",
        master="local-cluster[2,1,1024]",
        config=SETTINGS | {"spark.local.dir": sys.argv[1]},
    )
    try:
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(EndingDataSource)
        send_answer(spark.sparkContext._gateway.proc.pid)
        for line in sys.stdin:
            order = json.loads(line)
            send_answer(globals()[order.pop("job")](spark, **order))
    finally:
        spark.stop()


def send_answer(answer: Any) -> None:
    sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
