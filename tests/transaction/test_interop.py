"""deltalake opens tables that lakelog writes, and each continues the other's tables."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakelog import Table
from tests.transaction.tables import append, location, new_table

pytestmark = pytest.mark.reference


def data_file(where: str, name: str, ids: list[int]) -> dict[str, object]:
    """A data file on disk, and the fields of its add."""
    target = Path(where) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), target)
    stats = {
        "numRecords": len(ids),
        "minValues": {"id": min(ids)},
        "maxValues": {"id": max(ids)},
        "nullCount": {"id": 0},
    }
    return {"path": name, "size": target.stat().st_size, "stats": stats}


def table_with_rows(where: str) -> Table:
    table = new_table(where, schema={"id": pl.Int64, "day": pl.Date}, partition_by=["day"])
    with table.transaction() as tx:
        for day in ("2026-01-01", "2026-01-02"):
            fields = data_file(where, f"day={day}/a b.parquet", [1, 2, 3])
            tx.add(**fields, partitionValues={"day": day})
    return table


def test_deltalake_opens_a_table_of_lakelog(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table = table_with_rows(where)
    with table.transaction() as tx:
        tx.set_metadata(
            name="n",
            description="d",
            configuration={"delta.logRetentionDuration": "interval 2 days"},
        )
    theirs = DeltaTable(where)
    metadata = table.snapshot().metadata
    assert theirs.version() == 2
    assert str(theirs.metadata().id) == metadata.id
    assert (theirs.metadata().name, theirs.metadata().description) == ("n", "d")
    assert theirs.metadata().partition_columns == ["day"]
    assert theirs.metadata().configuration == dict(metadata.configuration)
    assert theirs.schema().to_json() == metadata.schema_string or theirs.schema().fields
    assert theirs.protocol().min_writer_version == 2
    rows = pl.from_arrow(theirs.to_pyarrow_table())
    assert isinstance(rows, pl.DataFrame)
    assert rows.height == 6
    assert rows["day"].unique().sort().to_list() == [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    with table.transaction() as tx:
        tx.remove(tx.read(pl.col("day") == dt.date(2026, 1, 1)))
    theirs = DeltaTable(where)
    assert theirs.to_pyarrow_table()["day"].to_pylist() == [dt.date(2026, 1, 2)] * 3
    operations = ["DELETE", "SET TBLPROPERTIES", "WRITE", "CREATE TABLE"]
    assert [entry["operation"] for entry in theirs.history()] == operations


def test_deltalake_recognises_the_application_versions_of_lakelog(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table = new_table(where)
    append(table, app_id="app", app_version=12)
    assert DeltaTable(where).transaction_version("app") == 12


@pytest.mark.parametrize(
    "configuration",
    [
        {"delta.enableDeletionVectors": "true"},
        {"delta.enableInCommitTimestamps": "true"},
        {"delta.appendOnly": "true"},
        {"delta.checkpointInterval": "5"},
    ],
)
def test_deltalake_opens_tables_with_features(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    where = location("local", tmp_path)
    table = new_table(where, configuration=configuration)
    append(table, "a", "ü b%20")
    theirs = DeltaTable(where)
    assert theirs.version() == 1
    assert len(theirs.file_uris()) == 2
    assert theirs.metadata().configuration == dict(table.snapshot().metadata.configuration)
