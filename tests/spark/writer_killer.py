"""A cluster on one machine that writes while its tasks fail and its executors die.

Run as a program with the locations of a table and of a folder for marks. It is a program of its own
because a process has one Spark, and this one is a cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

import lakelog.spark
from lakelog.spark.options import parse_options
from lakelog.spark.source import LakelogDataSource
from lakelog.spark.writing import BatchWriter, Message, task_number
from tests.spark.replay_killer import first_time, kill_executor
from tests.spark.stream_driver import SETTINGS

TABLE, MARKS = sys.argv[1:]


class DyingBatchWriter(BatchWriter):
    """Writes its files; then a first attempt is killed, or fails, before anybody hears of them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        message = super().write(iterator)
        if task_number() == 1 and first_time(MARKS, "killed with its files written"):
            kill_executor()
        if task_number() == 2 and first_time(MARKS, "failed with its files written"):
            raise OSError("the answer is lost")
        return message


class Dying(LakelogDataSource):
    """The data source, with writers that die."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return DyingBatchWriter(parse_options(self.options, "write"), schema, overwrite)


def fragile(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of which a first attempt ends in their midst."""
    for batch in batches:
        yield batch
        if task_number() == 0 and first_time(MARKS, "failed in its midst"):
            raise OSError("the first attempt fails")


def main() -> None:
    spark: Any = lakelog.spark.session(
        master="local-cluster[2,1,1024]",
        config={
            **SETTINGS,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
            "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Dying)
    try:
        rows = spark.range(30, numPartitions=3).selectExpr("id", "'d' || id % 2 as day")
        broken = rows.mapInArrow(fragile, rows.schema)
        broken.write.format("dying").mode("append").save(TABLE)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
