"""Statistics without a typed copy: of booleans, as delta-rs writes them, and of columns that the
table does not index. A checkpoint of them equals replay, and its text is complete. Typed copies of
an earlier checkpoint that differ from their texts are made again.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from tests import handmade

SCHEMA = {
    "truth": pl.Boolean,
    "i": pl.Int64,
    "deep": pl.Struct(
        {
            "date": pl.Date,
            "double": pl.Float64,
            "money": pl.Decimal(10, 2),
            "instant": pl.Datetime("us", "UTC"),
            "ntz": pl.Datetime("us"),
            "text": pl.String,
        }
    ),
    "bytes": pl.Binary,
}
VALUES = {
    "truth": False,
    "i": 1,
    "deep": {
        "date": "2020-01-01",
        "double": 1.5,
        "money": 2.25,
        "instant": "2020-01-01T00:00:00.000Z",
        "ntz": "2020-01-01T00:00:00.000",
        "text": "a",
    },
}


def physical(struct: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values under physical names."""
    return {
        f.metadata.get("delta.columnMapping.physicalName", f.name): (
            physical(f.type, values[f.name]) if isinstance(values[f.name], dict) else values[f.name]
        )
        for f in struct.fields
        if f.name in values
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("json_text", [True, False], ids=["text", "typed only"])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.dataSkippingNumIndexedCols": "2"},
        {"delta.dataSkippingNumIndexedCols": "0"},
        {"delta.columnMapping.mode": "name"},
        {"delta.checkpointPolicy": "v2"},
    ],
    ids=lambda p: "".join(p) or "plain",
)
def test_checkpoint_of_statistics_without_a_typed_copy_is_proved(
    tmp_path: Path, properties: dict[str, str], json_text: bool
) -> None:
    given = {**properties, "delta.checkpoint.writeStatsAsJson": str(json_text).lower()}
    table = lakelog.create(tmp_path / "t", SCHEMA, configuration=given)
    values = physical(table.snapshot().schema, VALUES)
    counts = physical(table.snapshot().schema, {"truth": 0, "i": 0, "bytes": 0})
    stats = {"numRecords": 1, "minValues": values, "maxValues": values, "nullCount": counts}
    for number in range(3):
        with table.transaction() as tx:
            tx.add(path=f"{number}", size=1, partitionValues={}, stats=json.dumps(stats))
        report = table.checkpoint()
        assert report.verified
        assert not report.reused
        found = table.verify()
        assert found.is_proved, found
    texts = lakelog.open(tmp_path / "t").snapshot().files().collect()["stats"]
    if json_text:
        assert [json.loads(text) for text in texts] == [stats] * 3
    assert table.repair().is_clean


def typed_bounds(table: Path, version: int) -> list[Any]:
    """The typed minima of column ``a`` in the checkpoint of a version, sorted."""
    log = table / "_delta_log"
    parts = [*log.glob(f"{version:020}.checkpoint*.parquet")] or [*log.glob("_sidecars/*.parquet")]
    adds = pq.read_table(parts)["add"].to_pylist()
    return sorted(add["stats_parsed"]["minValues"]["a"] for add in adds if add is not None)


@pytest.mark.parametrize("policy", ["classic", "v2"])
@pytest.mark.parametrize("memory_limit", [None, 8 << 30])
def test_checkpoint_after_a_column_was_widened_from_float(
    tmp_path: Path, policy: str, memory_limit: int | None
) -> None:
    given = {"delta.checkpointPolicy": policy}
    table = lakelog.create(tmp_path / "t", {"a": pl.Float32}, configuration=given)
    table.append(pl.DataFrame({"a": [0.1]}, schema={"a": pl.Float32}))
    table.checkpoint()
    table.alter.widen_column("a", "double", enable=True)
    assert table.checkpoint(memory_limit=memory_limit).verified
    table.append(pl.DataFrame({"a": [0.2]}))
    assert table.checkpoint(memory_limit=memory_limit).verified
    rows = lakelog.open(tmp_path / "t").scan(pl.col("a") > 0.1).collect()
    assert sorted(rows["a"]) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("memory_limit", [None, 1 << 31])
def test_texts_are_made_from_typed_statistics_that_are_more_exact(
    tmp_path: Path, memory_limit: int | None
) -> None:
    without_texts = {"delta.checkpoint.writeStatsAsJson": "false"}
    schema: dict[str, Any] = {"at": pl.Datetime("us", "UTC"), "x": pl.Float64}
    table = lakelog.create(tmp_path / "t", schema, configuration=without_texts)
    at = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    table.append(pl.DataFrame({"at": [at], "x": [float("inf")]}, schema=schema))
    commit = tmp_path / "t/_delta_log" / f"{1:020}.json"
    exact = commit.read_text().replace(".123Z", ".123456Z").replace(".124Z", ".123456Z")
    commit.write_text(exact)  # as other writers do
    table = lakelog.open(tmp_path / "t")
    table.checkpoint()
    table.alter.set_properties({"delta.checkpoint.writeStatsAsJson": "true"})
    (path,) = table.checkpoint(memory_limit=memory_limit).paths
    added = pq.read_table(tmp_path / "t" / path)["add"].drop_null().to_pylist()
    (text,) = (json.loads(each["stats"]) for each in added)
    assert text["minValues"]["at"] == "2024-01-01T00:00:00.123Z"
    assert text["maxValues"]["at"] == "2024-01-01T00:00:00.124Z"
    assert lakelog.open(tmp_path / "t").scan(pl.col("at") == at).collect().height == 1
    assert lakelog.open(tmp_path / "t").verify().is_proved


@pytest.mark.parametrize("metadata", [{}, {"org.apache.spark.legacyDateTime": ""}])
def test_typed_copies_that_differ_from_their_texts_are_made_again(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    lakelog.write(tmp_path / "t", pl.DataFrame({"a": [date(1, 1, 1)]}))
    table = lakelog.open(tmp_path / "t")
    (path,) = table.checkpoint().paths
    written = pq.read_table(tmp_path / "t" / path)
    rows = written.to_pylist()
    for add in filter(None, (row["add"] for row in rows)):
        add["stats_parsed"]["minValues"]["a"] = date(1, 1, 3)
    other = pa.Table.from_pylist(rows, schema=written.schema)
    other = other.replace_schema_metadata({"org.apache.spark.version": "3.5.0", **metadata})
    pq.write_table(other, tmp_path / "t" / path)
    (tmp_path / "t/_delta_log/_last_checkpoint").unlink()
    table = lakelog.open(tmp_path / "t")
    table.append(pl.DataFrame({"a": [date(2, 1, 1)]}))
    assert table.checkpoint().verified
    assert typed_bounds(tmp_path / "t", 1) == [date(1, 1, 1), date(2, 1, 1)]


def test_decimal_bounds_with_more_digits_than_their_type_are_unknown(tmp_path: Path) -> None:
    most = Decimal("999999999999999.999")
    rows = pa.table({"id": [1, 2], "d": pa.array([most, 1], pa.decimal128(18, 3))})
    typed_only = {"delta.checkpoint.writeStatsAsJson": "false"}
    for row in range(2):  # deltalake writes the greatest decimal as a double, 1e15
        deltalake.write_deltalake(
            tmp_path, rows.slice(row, 1), mode="append", configuration=typed_only
        )
    table = lakelog.open(tmp_path, upkeep=False)
    (path,) = table.checkpoint().paths
    written = pq.read_table(tmp_path / path)
    found = [row["stats_parsed"]["maxValues"]["d"] for row in written["add"].to_pylist() if row]
    assert sorted(found, key=str) == [Decimal(1), None]
    # A checkpoint that has the rounded bound in its typed copies.
    leaf = ["stats_parsed", "maxValues", "d"]
    adds = with_values(written["add"].combine_chunks(), leaf, Decimal(10**15))
    at = written.schema.get_field_index("add")
    pq.write_table(written.set_column(at, written.schema.field(at), adds), tmp_path / path)
    (tmp_path / "_delta_log/_last_checkpoint").unlink()
    table = lakelog.open(tmp_path, upkeep=False)
    assert table.to_polars(pl.col("d") == most)["id"].to_list() == [1]
    assert table.snapshot().files(where="id = 2").collect().height == 1


def with_values(structs: pa.Array, path: list[str], value: Decimal) -> pa.Array:
    """Structs with one decimal in all rows of a field, also one with too many digits."""
    if not path:
        unchecked = pa.array([value] * len(structs), pa.decimal128(38, structs.type.scale))
        return pa.Array.from_buffers(structs.type, len(structs), unchecked.buffers())
    fields = list(structs.type)
    found = [structs.field(field.name) for field in fields]
    at = structs.type.get_field_index(path[0])
    found[at] = with_values(found[at], path[1:], value)
    return pa.StructArray.from_arrays(found, fields=fields, mask=structs.is_null())


def test_a_partition_column_that_the_metadata_repeats_is_one_column(tmp_path: Path) -> None:
    made = handmade.Handmade(tmp_path / "t")
    made.commit(0, handmade.protocol(), handmade.metadata(partitioned=["id", "id"]))
    made.commit(1, handmade.add("a", partitionValues={"id": "7"}))
    table = lakelog.open(tmp_path / "t")
    (path,) = table.checkpoint().paths
    (added,) = pq.read_table(tmp_path / "t" / path)["add"].drop_null().to_pylist()
    assert added["partitionValues_parsed"] == {"id": 7}
