"""Tables that an Ingestor fills, on Spark: streams that follow them, and pipelines that commit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import InvalidInputError, LogLockedError, NotFoundError
from lakelog.spark.pipeline import Compact, Ingest, Pipeline, Target


def write(table: lakelog.Table, directory: Path, *numbers: int, flush: bool = True) -> None:
    ingestor = lakelog.Ingestor(table, directory, max_seconds=3600)
    for number in numbers:
        ingestor.write({"id": number})
    ingestor.close(flush=flush)


def ids(table: lakelog.Table) -> list[int]:
    return sorted(table.to_polars()["id"].to_list())


def test_a_stream_follows_a_table_that_an_ingestor_fills(spark: Any, tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    copy = lakelog.create(tmp_path / "copy", {"id": pl.Int64}, upkeep=False)
    for number in range(2):
        write(table, tmp_path / "ingest", 2 * number, 2 * number + 1)
        stream = spark.readStream.format("lakelog").load(os.fspath(tmp_path / "t"))
        query = (
            stream.writeStream.format("lakelog")
            .option("path", os.fspath(tmp_path / "copy"))
            .option("checkpointLocation", os.fspath(tmp_path / "progress"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert ids(copy) == list(range(2 * number + 2))


def test_pipeline_commits_rows_that_an_ingestor_has_not(spark: Any, tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    write(table, tmp_path / "ingest", 1, 2)
    write(table, tmp_path / "ingest", 3, flush=False)
    step = Ingest(format="lakelog-ingest", path=os.fspath(tmp_path / "ingest"))
    target = Target(path=os.fspath(tmp_path / "t"))
    pipeline = Pipeline("late", target, ingest=step, compact=Compact())
    report = pipeline.run(spark)["ingest"]
    assert (report.status, report.rows, report.files) == ("done", 1, 1)
    assert ids(table) == [1, 2, 3]
    assert pipeline.run(spark, ["ingest"])["ingest"].status == "nothing to do"
    with lakelog.Ingestor(table, tmp_path / "ingest"), pytest.raises(LogLockedError):
        pipeline.run(spark, ["ingest"])
    write(table, tmp_path / "ingest", 4)
    assert ids(table) == [1, 2, 3, 4]
    missing = Ingest(format="lakelog-ingest", path=os.fspath(tmp_path / "none"))
    with pytest.raises(NotFoundError, match="ingest directory"):
        Pipeline("late", target, ingest=missing).run(spark)


def test_ingest_directory_allows_no_other_key() -> None:
    for more in ({"checkpoint": "c"}, {"batch_id": 1}, {"select": ["id"]}, {"path": ["a", "b"]}):
        with pytest.raises(InvalidInputError, match="takes path only"):
            Ingest(**{"format": "lakelog-ingest", "path": "a", **more})  # type: ignore[arg-type]
