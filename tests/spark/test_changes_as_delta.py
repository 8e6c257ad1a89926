"""Change feeds, restores, compactions and altered schemas against Delta Lake on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog

pytestmark = pytest.mark.reference

COLUMNS = ["id", "p", "_change_type", "_commit_version"]


def changes_of_delta(spark: Any, path: str, start: int) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").option("readChangeFeed", "true")
    rows = frame.option("startingVersion", start).load(path).select(*COLUMNS).collect()
    return sorted(map(tuple, rows))


def changes_of_lakelog(path: str, start: int) -> list[tuple[Any, ...]]:
    return sorted(lakelog.open(path).changes(start).select(COLUMNS).collect().iter_rows())


def rows_of_delta(spark: Any, path: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.format("delta").load(path).collect()), key=str)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("vectors", ["true", "false"])
def test_both_engines_read_the_same_changes_and_rows(
    delta: Any, tmp_path: Path, vectors: str
) -> None:
    path = str(tmp_path / "t")
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": vectors}
    table = lakelog.create(
        path, {"id": pl.Int64, "p": pl.String}, ["p"], configuration=properties, upkeep=False
    )
    table.append(pl.DataFrame({"id": range(20), "p": ["a", "b b"] * 10}))
    name = f"delta.`{path}`"
    delta.sql(f"delete from {name} where id in (3, 4)")
    delta.sql(f"update {name} set id = id + 100 where id < 3")
    table.delete("id = 5 OR p = 'a' AND id = 6")
    table.update({"id": pl.col("id") + 200}, "id = 7")
    delta.sql(f"delete from {name} where p = 'b b'")
    table.restore(3)
    delta.sql(f"restore table {name} to version as of 2")
    table.compact(order_by="id")
    assert changes_of_lakelog(path, 0) == changes_of_delta(delta, path, 0)
    assert sorted(table.scan().collect().iter_rows(), key=str) == rows_of_delta(delta, path)

    version = table.version()
    table.alter.rename_column("id", "number", enable=True)
    table.alter.add_columns({"x": pl.Int32}, after="number")
    table.alter.widen_column("x", "long", enable=True)
    table.alter.set_comment("how many", "x")
    table.alter.add_constraint("positive", "number >= 0")
    delta.sql(f"insert into {name} values (9, 1, 'c')")
    with pytest.raises(Exception, match="positive"):
        delta.sql(f"insert into {name} values (-9, 1, 'c')")
    assert sorted(table.scan().collect().iter_rows(), key=str) == rows_of_delta(delta, path)
    history = delta.sql(f"describe history {name}").select("version", "operation").collect()
    ours = table.history().select("version", "operation").iter_rows()
    assert sorted(map(tuple, history)) == sorted(ours)
    assert table.version() == version + 7
