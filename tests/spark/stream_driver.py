"""A Spark driver that streams between tables until it is killed: ``stream_driver.py``.

Its input is JSON. It prints the process id of its JVM, then that the query runs, one line each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import lakelog.spark
from tests.spark.configured import QUICK

SETTINGS = QUICK | {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def print_line(word: Any) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def stream(spark: Any, places: dict[str, Any], files: int) -> Any:
    """The writer of a stream from table to table, with that number of files per batch."""
    read = spark.readStream.format("lakelog").option("maxFilesPerTrigger", files)
    write = read.load(places["source"]).writeStream.format("lakelog")
    return write.option("checkpointLocation", places["checkpoint"])


def main(order: dict[str, Any]) -> None:
    spark = lakelog.spark.session(master="local[2]", config=SETTINGS)
    print_line(spark.sparkContext._gateway.proc.pid)
    write = stream(spark, order, order["files"]).trigger(processingTime="0 seconds")
    query = write.start(order["target"])
    print_line("started")
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
