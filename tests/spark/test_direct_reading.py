"""The page on Spark: each statement runs, and gives the same result as lakelog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog

VIEWS = ("state", "actions", "checkpoint", "event_files")


@pytest.fixture
def demo(plain: Any, tmp_path: Path) -> Iterator[Path]:
    """A folder `demo` with a table; changes by the page are undone afterwards."""
    folder = tmp_path / "demo"
    made = lakelog.create(folder / "table", {"id": pl.Int64, "day": pl.Date}, ["day"])
    days = pl.DataFrame({"id": [1, 2], "day": ["2026-01-01", "2026-01-02"]}).with_columns(
        pl.col("day").str.to_date()
    )
    made.append(days)
    made.append(days.with_columns(pl.col("id") + 10))
    with made.transaction() as tx:
        tx.remove(tx.snapshot.files().filter(pl.col("version") == 1).head(1))
    made.checkpoint()
    yield folder
    plain.sql("DROP TABLE IF EXISTS events")
    for view in VIEWS:
        plain.catalog.dropTempView(view)


def test_every_statement_of_the_page_runs_and_is_correct(
    plain: Any, demo: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "schemas" / "spark.md").read_text("utf-8")
    blocks = re.findall(r"```(python|sql)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 10
    monkeypatch.chdir(repository)  # the page refers to schemas/ by a relative path
    names: dict[str, Any] = {}
    answers = []
    for language, text in blocks:
        here = text.replace("demo/", f"{demo}/")
        names["spark"] = plain  # the page uses the session of all tests
        if language == "python":
            exec(compile(here, "spark.md", "exec"), names)
        else:
            answers.append([tuple(row) for row in plain.sql(here).collect()])

    table = lakelog.open(demo / "table")
    live = table.snapshot().files().collect()
    by_day = {
        day: (files, size)
        for day, files, size in live.group_by(pl.col("path").str.slice(4, 10), maintain_order=True)
        .agg(pl.len(), pl.sum("size"))
        .rows()
    }
    partitions, sizes, writers, still, removed, checkpoint, *_, last = answers
    assert {day: (files, size) for day, files, size in partitions} == by_day
    assert [row[1] for row in partitions] == sorted((f for f, _ in by_day.values()), reverse=True)
    assert sum(row[1] for row in sizes) == live.height
    assert all(row[0] <= row[2] / row[1] < 2 * row[0] for row in sizes)
    assert [(v, operation, files) for v, operation, _, files, _ in writers] == [
        (1, "WRITE", 2), (2, "WRITE", 2)
    ]  # fmt: skip
    assert still == [(1, 2, 1), (2, 2, 2)]
    assert [row[1] for row in removed] == [1]
    assert {day: (files, size) for day, files, size in checkpoint} == by_day
    rows = table.snapshot().scan().collect().height
    earlier = table.snapshot(1).files().collect()
    assert last == [(rows, earlier.height, earlier["size"].sum())]
    assert names["rows"].count() == rows
    assert names["files"].count() == live.height


def test_checkpoints_of_every_parquet_layout_are_read_directly(
    spark: Any, tmp_path: Path, repository: Path
) -> None:
    from pyspark.sql.types import StructType

    v2 = {"delta.checkpointPolicy": "v2"}
    made = lakelog.create(tmp_path / "v2", {"id": pl.Int64}, configuration=v2)
    made.append(pl.DataFrame({"id": [1]}))
    made.append(pl.DataFrame({"id": [2]}))
    made.checkpoint(layout="v2-parquet")
    log = tmp_path / "v2" / "_delta_log"
    parts = [*log.glob("*.checkpoint.*.parquet"), *log.glob("_sidecars/*.parquet")]
    assert len(parts) == 2
    read = spark.read.option("mergeSchema", "true").parquet(*map(str, parts))
    assert sorted(
        row.path for row in read.where("add IS NOT NULL").select("add.path").collect()
    ) == (sorted(made.snapshot().files().collect()["path"]))

    other = lakelog.create(tmp_path / "it", {"id": pl.Int64}, format="indextables")
    with other.transaction() as tx:
        tx.add(path="a.split", size=1, modificationTime=1, splitTags=["x"], minValues={"id": "1"})
    other.checkpoint(layout="flattened")
    schema = StructType.fromJson(json.loads((repository / "schemas/actions.json").read_text()))
    (file,) = (tmp_path / "it").rglob("*.checkpoint.parquet")
    (row,) = spark.read.schema(schema).parquet(str(file)).where("actionType = 'add'").collect()
    assert (row.path, row.splitTags, row.minValues) == ("a.split", ["x"], {"id": "1"})
    folder = spark.read.schema(schema).option("pathGlobFilter", "*.parquet")
    version = f"{file.parent}/{other.version():020}.checkpoint*.parquet"
    for read in (folder.parquet(str(file.parent)), spark.read.parquet(version)):
        assert read.where("actionType = 'add'").count() == 1
