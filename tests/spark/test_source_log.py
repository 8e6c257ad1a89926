"""`format("lakelog")` returns the content of the log: files, history, actions, diff, skips."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> lakelog.Table:
    """An IndexTables table, since these have skips, with files and a commitInfo in each commit."""
    path = os.fspath(tmp_path_factory.mktemp("log") / "t")
    made = lakelog.create(path, {"id": pl.Int64, "day": pl.Date}, ["day"], "indextables")
    for version in (1, 2):
        with made.transaction(operation="WRITE", parameters={"mode": "Append"}) as tx:
            tx.add(
                path=f"day=2026-01-0{version}/a.split",
                partitionValues={"day": f"2026-01-0{version}"},
                size=version,
                modificationTime=version,
                numRecords=10 * version,
                minValues={"id": "1"},
                splitTags=["x", "y"],
            )
    with made.transaction(operation="MERGE") as tx:
        tx.skip(path="day=2026-01-01/a.split", reason="broken", operation="merge")
    return made


def load(spark: Any, table: lakelog.Table, what: str, **options: str) -> Any:
    return spark.read.format("lakelog").options(table=what, **options).load(table.path)


def same(read: Any, ours: pl.DataFrame) -> None:
    """Assert that Spark's rows are those of the frame, maps as maps, times in microseconds."""
    frame = pl.from_arrow(read.toArrow())
    assert isinstance(frame, pl.DataFrame)
    expected = ours.with_columns(pl.col(pl.Datetime("ms", "UTC")).cast(pl.Datetime("us", "UTC")))
    assert_frame_equal(frame, expected, check_row_order=False)


def test_files_equal_those_of_the_snapshot(spark: Any, table: lakelog.Table) -> None:
    same(load(spark, table, "files"), table.snapshot().files().collect())
    few = load(spark, table, "files", version="1", columns="size,partitionValues")
    assert few.collect() == [(1, {"day": "2026-01-01"})]


def test_history_equals_that_of_the_table(spark: Any, table: lakelog.Table) -> None:
    same(load(spark, table, "history"), table.history())
    assert [row.version for row in load(spark, table, "history", limit="2").collect()] == [3, 2]


def test_actions_are_decoded_by_tasks_range_by_range(spark: Any, table: lakelog.Table) -> None:
    every = load(spark, table, "actions")
    same(every, table.actions().collect())
    some = load(spark, table, "actions", startVersion="1", endVersion="2", columns="path,version")
    assert sorted(row.version for row in some.collect() if row.path) == [1, 2]


def test_diff_is_between_the_requested_versions(spark: Any, table: lakelog.Table) -> None:
    same(load(spark, table, "diff", startVersion="1"), table.diff(1, 3))
    back = load(spark, table, "diff", startVersion="2", endVersion="1")
    assert [row.change for row in back.collect()] == ["removed"]


def test_skips_equal_those_of_the_snapshot(spark: Any, table: lakelog.Table) -> None:
    skips = load(spark, table, "skips")
    same(skips, table.snapshot().skips().collect())
    assert load(spark, table, "skips", version="2").count() == 0


def test_rows_of_search_splits_are_refused(spark: Any, table: lakelog.Table) -> None:
    with pytest.raises(Exception, match="rows are not in Parquet files"):
        load(spark, table, "rows").collect()


def test_log_of_many_commits_is_divided_into_shares(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakelog.spark import reading
    from lakelog.spark.options import parse_options

    made = lakelog.create(tmp_path, {"id": pl.Int64})
    for number in range(3):
        made.append(pl.DataFrame({"id": [number]}))
    monkeypatch.setattr("lakelog.log.history._CHUNK_BYTES", 1)
    monkeypatch.setattr(reading, "_ROWS_PER_SHARE", 2)

    def batches(what: str) -> list[list[int]]:
        options = parse_options({"path": str(tmp_path), "table": what, "columns": "version"})
        schema, pinned = reading.schema_of(options)
        reader = reading.reader_of(options, schema, pinned, None)
        shares = [list(reader.read(share)) for share in reader.partitions()]
        return [[v for batch in share for v in batch["version"].to_pylist()] for share in shares]

    assert [set(share) for share in batches("actions")] == [{0}, {1}, {2}, {3}]
    assert batches("history") == [[3, 2], [1, 0]]
    assert sorted(map(len, batches("files"))) == [1, 2]
