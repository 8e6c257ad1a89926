"""A Spark driver that streams between tables until it is killed: ``stream_driver.py``, its order as
JSON. Says which process its JVM is, then that the query runs, a line each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import lakelog.spark

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def say(word: Any) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(order: dict[str, Any]) -> None:
    spark = lakelog.spark.session(master="local[2]", config=SETTINGS)
    say(spark.sparkContext._gateway.proc.pid)
    read = spark.readStream.format("lakelog").option("maxFilesPerTrigger", order["files"])
    write = (
        read.load(order["source"])
        .writeStream.format("lakelog")
        .option("checkpointLocation", order["checkpoint"])
    )
    trigger = {"availableNow": True} if order["ends"] else {"processingTime": "0 seconds"}
    query = write.trigger(**trigger).start(order["target"])
    say("started")
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
