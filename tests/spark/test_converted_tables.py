"""Tables made by `lakelog.convert` and `Table.clone`, read by Delta Lake on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog

pytestmark = pytest.mark.reference


def test_delta_reads_a_converted_folder_as_its_own_conversion(delta: Any, tmp_path: Path) -> None:
    """Spark writes the files: INT96 times, wide decimals, nulls and odd names of partitions."""
    query = (
        "SELECT id, CAST(id * 2 AS INT) AS i, id / 4.0 AS d, CAST(id AS DECIMAL(30, 3)) AS w, "
        "timestamp_seconds(id * 86399) AS at, array(id, null) AS l, named_struct('x', id) AS s, "
        "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('a b/=', id % 3) END AS p FROM range(9)"
    )
    for name in ("ours", "theirs"):
        delta.sql(query).write.partitionBy("p").parquet(str(tmp_path / name))
    narrow = delta.sql("SELECT 100L AS id, CAST(7 AS SMALLINT) AS i")
    narrow.write.parquet(str(tmp_path / "ours/p=z"))
    narrow.write.parquet(str(tmp_path / "theirs/p=z"))
    lakelog.convert(tmp_path / "ours", {"p": pl.String})
    delta.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 'theirs'}` PARTITIONED BY (p STRING)")
    ours, theirs = (
        delta.read.format("delta").load(str(tmp_path / name)) for name in ("ours", "theirs")
    )
    assert ours.schema == theirs.schema
    key = "id"
    assert ours.orderBy(key).collect() == theirs.orderBy(key).collect()
    assert ours.where("i > 10 AND at > '1970-01-02'").count() == 3
    first, second = (lakelog.open(tmp_path / name).to_polars() for name in ("ours", "theirs"))
    assert first.sort(key).equals(second.sort(key))


def test_delta_reads_narrower_numbers_as_the_widest_type(delta: Any, tmp_path: Path) -> None:
    for number, (whole, real) in enumerate(
        [(pl.Int32, pl.Float32), (pl.Int64, pl.Float64), (pl.Int8, pl.Float32)]
    ):
        frame = pl.DataFrame({"n": [number], "r": [number / 2]}, schema={"n": whole, "r": real})
        frame.write_parquet(tmp_path / f"{number}.parquet")
    lakelog.convert(tmp_path)
    found = delta.read.format("delta").load(str(tmp_path))
    assert found.dtypes == [("n", "bigint"), ("r", "double")]
    assert sorted(tuple(row) for row in found.collect()) == [(n, n / 2) for n in range(3)]
    assert found.where("n >= 1").count() == 2


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_delta_reads_and_changes_a_clone(delta: Any, tmp_path: Path, vectors: str) -> None:
    rows = pl.DataFrame({"id": range(4000), "p": ["a b", "50%", None, "é"] * 1000})
    properties = {"delta.enableDeletionVectors": vectors}
    lakelog.write(tmp_path / "t", rows, partition_by=["p"], configuration=properties)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    table.delete("id % 7 = 3")
    left = sorted(table.to_polars()["id"])
    clone = table.clone(tmp_path / "clone", upkeep=False)
    place = f"delta.`{tmp_path / 'clone'}`"
    assert [row.id for row in delta.sql(f"SELECT id FROM {place} ORDER BY id").collect()] == left
    delta.sql(f"DELETE FROM {place} WHERE id % 7 = 4")
    delta.sql(f"OPTIMIZE {place}")
    assert sorted(clone.to_polars()["id"]) == [n for n in left if n % 7 != 4]
    assert sorted(table.to_polars()["id"]) == left
    delta.sql(f"CREATE TABLE delta.`{tmp_path / 'theirs'}` SHALLOW CLONE delta.`{tmp_path / 't'}`")
    theirs = lakelog.open(tmp_path / "theirs", allow_external=tmp_path / "t")
    first, other = (each.snapshot(version=0) for each in (clone, theirs))
    names = {name.rsplit("/", 1)[-1] for name in first.files().collect()["path"]}
    assert {name.rsplit("/", 1)[-1] for name in other.files().collect()["path"]} == names
    assert other.metadata.configuration == first.metadata.configuration
    assert theirs.history()["operation"][-1] == clone.history()["operation"][-1] == "CLONE"
