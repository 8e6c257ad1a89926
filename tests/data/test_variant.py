"""Variant columns: their rows are structs of the encoded value and metadata, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import Table
from lakelog.errors import InvalidInputError, UnsupportedFeatureError
from tests.data.rows import data_files
from tests.handmade import field

STORED = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
SEVEN = {"value": b"\x0c\x07", "metadata": b"\x01\x00\x00"}
EIGHT = {"value": b"\x0c\x08", "metadata": b"\x01\x00\x00"}
LIST = {"type": "array", "elementType": "variant", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}
FIELDS = [
    field("id", "long"),
    field("v", "variant"),
    field("s", {"type": "struct", "fields": [field("w", "variant")]}),
    field("a", LIST),
    field("m", MAP),
]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "v": SEVEN, "s": {"w": EIGHT}, "a": [SEVEN, None], "m": [("k", EIGHT)]},
    {"id": 2, "v": None, "s": {"w": None}, "a": [], "m": []},
    {"id": 3, "v": EIGHT, "s": None, "a": None, "m": None},
]


def table_at(path: Path, **properties: str) -> Table:
    schema = json.dumps({"type": "struct", "fields": FIELDS})
    return lakelog.create(path, schema, configuration=properties, upkeep=False)


def rows(given: list[dict[str, Any]] = ROWS) -> pa.Table:
    types = {
        "id": pa.int64(),
        "v": STORED,
        "s": pa.struct([("w", STORED)]),
        "a": pa.list_(STORED),
        "m": pa.map_(pa.string(), STORED),
    }
    return pa.Table.from_pylist(given, pa.schema(list(types.items())))


def read(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return sorted(found, key=lambda row: int(row["id"]))


def test_rows_are_written_and_read_at_every_depth(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    assert table.snapshot().protocol.reader_features == ("variantType",)
    table.append(rows())
    table.append(rows().slice(2).set_column(0, "id", pa.array([4])))
    assert read(table) == [*ROWS, ROWS[2] | {"id": 4}]
    assert table.to_polars(columns=["id", "v"]).filter(pl.col("v").is_null())["id"].to_list() == [2]
    assert table.scan("v IS NOT NULL AND id > 1").collect()["id"].sort().to_list() == [3, 4]
    stats = json.loads(table.snapshot().files().collect().sort("size")["stats"][-1])
    assert stats["nullCount"] == {"id": 0, "v": 1, "s": {"w": 2}, "a": 1, "m": 1}
    assert stats["minValues"] == {"id": 1}
    group = pq.ParquetFile(tmp_path / data_files(tmp_path)[0]).schema.to_arrow_schema().field("v")
    assert group.type == STORED, "Spark reads variants of required fields only"
    table.checkpoint()
    assert read(lakelog.open(tmp_path)) == [*ROWS, ROWS[2] | {"id": 4}]


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_row_verbs_keep_variants(tmp_path: Path, vectors: str) -> None:
    table = table_at(
        tmp_path,
        **{"delta.enableDeletionVectors": vectors, "delta.enableChangeDataFeed": "true"},
    )
    table.append(rows())
    table.delete("id = 2")
    table.update({"v": pl.col("s").struct.field("w")}, "id = 1")
    new = [ROWS[0] | {"id": 3}, ROWS[1] | {"id": 4}]
    table.upsert(pl.DataFrame(rows(new)), on=["id"])
    expected = [ROWS[0] | {"v": EIGHT}, *new]
    assert read(table) == expected
    table.compact()
    assert read(table) == expected
    changes = table.changes(1).collect().filter(pl.col("_change_type") == "update_preimage")
    assert changes["v"].to_list() == [SEVEN, EIGHT]


def test_rows_that_are_no_variants_are_refused(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    half = pa.array(
        [{"value": b"\x0c\x07", "metadata": None}], pa.struct(dict.fromkeys(SEVEN, pa.binary()))
    )
    for values, message in (
        (half, "'v.metadata' is NOT NULL"),
        (half.field(0), "'v' has another type"),
        (pa.array([{"value": b""}]), "'v.metadata' is NOT NULL, and is missing"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            table.append(pa.table({"id": [1], "v": values}))
    table.append(pa.table({"id": [1]}))
    assert read(table) == [{"id": 1, "v": None, "s": None, "a": None, "m": None}]


def test_shredded_variants_are_refused_by_column(tmp_path: Path) -> None:
    """A reader that takes the encoded value alone would return nulls."""
    table = table_at(tmp_path)
    table.append(rows())
    file = tmp_path / data_files(tmp_path)[0]
    kept = pq.read_table(file)
    shredded = pa.array(
        [{"metadata": b"\x01\x00\x00", "value": None, "typed_value": 7}] * 3,
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())]),
    )
    pq.write_table(kept.set_column(1, "v", shredded), tmp_path / "shredded.parquet")
    stats = table.snapshot().files().collect()["stats"][0]
    with table.transaction() as tx:
        size = (tmp_path / "shredded.parquet").stat().st_size
        tx.add(path="shredded.parquet", size=size, stats=stats, modificationTime=1, dataChange=True)
    with pytest.raises(UnsupportedFeatureError, match="'v' has shredded variants") as refused:
        table.to_polars()
    assert refused.value.path is not None
    assert refused.value.path.endswith("shredded.parquet")
    assert table.to_polars(columns=["id", "a"]).height == 6
