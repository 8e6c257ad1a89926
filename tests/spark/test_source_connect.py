"""The data source over Spark Connect, where the process has no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
import lakelog.spark
from lakelog.spark.package_upload import is_connect, package_archive
from lakelog.spark.session import active_session, parallelism


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> lakelog.Table:
    made = lakelog.create(tmp_path_factory.mktemp("connect"), {"id": pl.Int64, "name": pl.String})
    for number in range(2):
        made.append(pl.DataFrame({"id": [number], "name": ["n"]}))
    return made


def test_connect_session_is_used_unchanged(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as PySpark sets it for its clients
    assert active_session() is connect
    assert lakelog.spark.session("another", master="local[1]") is connect
    assert is_connect(connect)
    assert parallelism(connect) is None  # the server does not report it


def test_executors_import_what_the_client_sent(connect: Any) -> None:
    def find_package(batches: Any) -> Any:
        import pyarrow as pa

        import lakelog

        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([lakelog.__file__])], ["file"])

    (row,) = connect.range(1, numPartitions=1).mapInArrow(find_package, "file string").collect()
    assert f"{package_archive().name}/lakelog/__init__.py" in row.file


def test_rows_files_and_history_are_read(connect: Any, table: lakelog.Table) -> None:
    source = connect.read.format("lakelog")
    assert sorted(source.load(table.path).collect()) == [(0, "n"), (1, "n")]
    earlier = source.option("version", "1").option("columns", "id")
    assert earlier.load(table.path).collect() == [(0,)]
    files = connect.read.format("lakelog").option("table", "files").load(table.path)
    paths = table.snapshot().files().collect()["path"]
    assert sorted(row.path for row in files.select("path").collect()) == sorted(paths)
    history = connect.read.format("lakelog").option("table", "history").load(table.path)
    assert [row.version for row in history.collect()] == [2, 1, 0]


def test_rows_are_appended(connect: Any, tmp_path: Path) -> None:
    made = lakelog.create(tmp_path, {"id": pl.Int64})
    connect.range(5).write.format("lakelog").mode("append").save(made.path)
    assert made.snapshot().scan().collect()["id"].sort().to_list() == [0, 1, 2, 3, 4]
    assert made.history(1)["operation"].to_list() == ["WRITE"]
    new = str(tmp_path / "new")  # a location without a table becomes one
    parts = connect.range(5).selectExpr("id", "id % 2 AS part")
    parts.write.format("lakelog").mode("append").option("partitionBy", "part").save(new)
    assert lakelog.open(new).snapshot().metadata.partition_columns == ("part",)
    feed = connect.readStream.format("lakelog").option("readChangeFeed", "true")
    query = (
        feed.option("startingVersion", "0")
        .load(new)
        .where("_change_type = 'insert'")
        .select("id")
        .writeStream.format("lakelog")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(made.path)
    )
    query.awaitTermination(120)
    assert sorted(made.to_polars()["id"]) == sorted([*range(5), *range(5)])


def test_sql_views_accept_every_option(connect: Any, table: lakelog.Table) -> None:
    connect.sql(
        "CREATE TEMPORARY VIEW lake USING lakelog "
        f"OPTIONS (path '{table.path}', version '1', `storage.secret` 'hush')"
    )
    assert connect.sql("SELECT * FROM lake").collect() == [(0, "n")]


def test_errors_reach_the_client(connect: Any, table: lakelog.Table) -> None:
    with pytest.raises(Exception, match=r"option vresion is unknown.*did you mean version"):
        connect.read.format("lakelog").option("vresion", "1").load(table.path).collect()
    # The server has a working folder of its own.
    with pytest.raises(Exception, match=r"'orders' was searched (?s:.*) absolute path"):
        connect.read.format("lakelog").load("orders").collect()
