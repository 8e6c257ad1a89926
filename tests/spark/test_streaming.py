"""Streams on Spark: from tables and into tables, of lakelog and of Delta."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from tests.spark.reference import assert_same_state
from tests.spark.spark_side import ids, new_table, orphans, rows


@pytest.fixture
def quiet(spark: Any) -> Iterator[Any]:
    """The session, without error output."""
    context = spark.sparkContext
    context.setLogLevel("OFF")
    yield spark
    context.setLogLevel("WARN")


def run(
    spark: Any, source: Path, target: Path, checkpoint: Path, form: str = "lakelog", **options: Any
) -> list[int]:
    """Stream all existing rows into another table; returns the rows of each non-empty batch."""
    read = spark.readStream.format(form).options(**options).load(str(source))
    write = read.writeStream.format(form).option("checkpointLocation", str(checkpoint))
    query = write.trigger(availableNow=True).start(str(target))
    assert query.awaitTermination(120)
    progress = [json for json in query.recentProgress if json["numInputRows"]]
    return [json["numInputRows"] for json in progress]


def test_rows_are_streamed_once_despite_restarts_and_copied_checkpoints(
    quiet: Any, tmp_path: Path
) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    table = new_table(source)
    new_table(target, partition_by=[])
    table.append(pl.DataFrame(rows(0, 1)))
    table.append(pl.DataFrame(rows(2)))
    assert run(quiet, source, target, checkpoint, maxFilesPerTrigger=2) == [2, 1]
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint, kept)
    # The last batch, run again: its checkpoint does not record that it was done.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    table.append(pl.DataFrame(rows(3, 4)))
    assert run(quiet, source, target, checkpoint, maxFilesPerTrigger=1) == [1, 1, 1]
    assert ids(target) == [0, 1, 2, 3, 4]
    # An earlier copy of the checkpoint does not have the later batches.
    with pytest.raises(Exception, match="older than the last batch"):
        run(quiet, source, target, kept)
    # Rows that were replaced cannot be taken back from the target.
    table.overwrite(pl.DataFrame(rows(9)))
    with pytest.raises(Exception, match="removed or changed rows"):
        run(quiet, source, target, checkpoint)
    assert ids(target) == [0, 1, 2, 3, 4]
    assert orphans(target) == set()


def test_each_engine_streams_tables_of_the_other(delta: Any, tmp_path: Path) -> None:
    theirs, ours, copy = tmp_path / "theirs", tmp_path / "ours", tmp_path / "copy"
    frame = delta.createDataFrame([(n, f"d{n % 2}") for n in range(4)], "id long, day string")
    frame.write.format("delta").partitionBy("day").save(str(theirs))
    frame.coalesce(1).write.format("delta").mode("append").save(str(theirs))
    delta.sql(f"OPTIMIZE delta.`{theirs}`")
    new_table(ours)
    run(delta, theirs, ours, tmp_path / "one", startingVersion=0)
    assert ids(ours) == [0, 0, 1, 1, 2, 2, 3, 3]
    read = delta.readStream.format("delta").load(str(ours))
    query = (
        read.writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "two"))
        .trigger(availableNow=True)
        .start(str(copy))
    )
    assert query.awaitTermination(120)
    assert ids(copy) == ids(ours)
    for where in (ours, copy):
        assert_same_state(delta, str(where))
    parameters = dict(lakelog.open(ours).history(1)["operationParameters"][0])
    history = delta.sql(f"DESCRIBE HISTORY delta.`{ours}`").first()
    assert history.operationParameters == parameters
    assert history.operation == "STREAMING UPDATE"


def test_streams_over_connect_record_their_query(connect: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    new_table(source).append(pl.DataFrame(rows(0, 1)))
    new_table(target)
    read = connect.readStream.format("lakelog").load(str(source))
    write = read.writeStream.format("lakelog").option("txnAppId", "app")
    for checkpoint in ("one", "two"):
        query = (
            write.option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(str(target))
        )
        if checkpoint == "two":
            with pytest.raises(Exception, match="another checkpoint"):
                query.awaitTermination(120)
        else:
            query.awaitTermination(120)
    assert ids(target) == [0, 1]
    recorded = lakelog.open(target).snapshot().transactions().collect()["appId"].to_list()
    assert sorted(recorded) == ["app", f"app@{query_of(tmp_path / 'one')}"]


def query_of(checkpoint: Path) -> str:
    """The query with this checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
