"""Ids and physical names of mapped columns: assigned once, and never lost."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog.errors import InvalidPropertyError, LakelogError, SchemaEvolutionError
from lakelog.model import contract
from lakelog.model.contract import fields_of
from lakelog.model.metadata import MAX_COLUMN_ID, Metadata
from lakelog.transaction.metadata_changes import assign
from lakelog.transaction.schema_conversion import struct_of
from tests import handmade
from tests.budget import share_of
from tests.transaction.builders import column, mapped, struct, table

BY_NAME = {"delta.columnMapping.mode": "name"}


def assigned(metadata: Metadata, before: Metadata | None = None) -> Metadata:
    numbers = count()
    return assign(metadata, before, lambda: f"new{next(numbers)}")


def mapping_of(metadata: Metadata) -> dict[str, tuple[Any, Any]]:
    return {
        at.text: (
            at.field.metadata.get(contract.COLUMN_ID),
            at.field.metadata.get(contract.PHYSICAL_NAME),
        )
        for at in fields_of(metadata.schema)
    }


def test_columns_without_physical_names_keep_their_names_in_the_files() -> None:
    # With a protocol that does not support the mapping mode.
    before = table(column("a"), properties=BY_NAME)
    result = assigned(table(column("a"), column("b"), properties=BY_NAME), before)
    assert mapping_of(result) == {"a": (1, "a"), "b": (2, "col-new0")}


def test_schema_without_mapping_is_not_changed() -> None:
    plain = table()
    assert assigned(plain) is plain


def test_new_table_assigns_ids_to_fields_at_every_depth() -> None:
    inner = struct(column("x"), column("y"))
    listed = {"type": "array", "elementType": struct(column("e")), "containsNull": True}
    keyed = {
        "type": "map",
        "keyType": struct(column("k")),
        "valueType": struct(column("v")),
        "valueContainsNull": True,
    }
    columns = (column("a"), column("s", inner), column("l", listed), column("m", keyed))
    result = assigned(table(*columns, properties=BY_NAME))
    found = mapping_of(result)
    assert list(found) == ["a", "s", "s.x", "s.y", "l", "l.element.e", "m", "m.key.k", "m.value.v"]
    assert [number for number, _ in found.values()] == list(range(1, 10))
    assert [name for _, name in found.values()] == [f"col-new{n}" for n in range(9)]
    assert result.configuration[MAX_COLUMN_ID] == "9"


def test_given_id_and_physical_name_are_kept() -> None:
    result = assigned(table(mapped("a", 7, physical="old"), column("b"), properties=BY_NAME))
    assert mapping_of(result) == {"a": (7, "old"), "b": (8, "col-new0")}


@pytest.mark.parametrize("mode", ["id", "name"])
def test_column_of_another_type_in_a_replaced_table_is_a_new_one(tmp_path: Path, mode: str) -> None:
    rows = pl.DataFrame({"a": [1], "b": [1], "s": [{"x": 1, "y": [1]}], "l": [[1]]})
    changed = pl.DataFrame({"a": [1], "b": ["x"], "s": [{"x": 2, "y": ["x"]}], "l": [["x"]]})
    lakelog.write(tmp_path, rows, configuration={"delta.columnMapping.mode": mode})
    t = lakelog.open(tmp_path, upkeep=False)
    first = mapping_of(t.snapshot().metadata)
    t.overwrite(changed, schema_mode="overwrite")
    second = mapping_of(t.snapshot().metadata)
    lakelog.create(tmp_path, rows.schema, mode="overwrite")
    third = mapping_of(t.snapshot().metadata)
    for before, after in ((first, second), (second, third)):
        for name in ("a", "s", "s.x"):
            assert before[name] == after[name]
        for name in ("b", "s.y", "l"):
            assert after[name][0] > max(number for number, _ in before.values())
            assert after[name][1] not in {physical for _, physical in before.values()}
    t.overwrite(rows)
    assert t.to_polars().equals(rows)
    assert lakelog.open(tmp_path).snapshot(1).to_polars().equals(changed)


def test_replacing_a_table_may_enable_mapping_and_change_types(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"a": [1]}))
    table = lakelog.create(tmp_path, {"a": pl.String}, configuration=BY_NAME, mode="overwrite")
    table.append(pl.DataFrame({"a": ["x"]}))
    assert table.to_polars().rows() == [("x",)]
    assert table.snapshot(0).to_polars().rows() == [(1,)]


def test_the_greatest_id_cannot_be_set_or_removed(tmp_path: Path) -> None:
    schema = {"a": pl.Int64, "b": pl.Int64}
    for number, mapping in enumerate([BY_NAME, {}]):
        t = lakelog.create(tmp_path / str(number), schema, configuration=mapping, upkeep=False)
        for value in ("0", "1", "17"):
            with pytest.raises(InvalidPropertyError, match="greatest column id"):
                t.alter.set_properties({MAX_COLUMN_ID: value})
        assert t.version() == 0
    t = lakelog.open(tmp_path / "0", upkeep=False)
    with pytest.raises(InvalidPropertyError, match="greatest column id"):
        t.alter.unset_properties([MAX_COLUMN_ID])
    properties = {key: text or "" for key, text in t.snapshot().metadata.configuration.items()}
    lakelog.create(tmp_path / "0", schema, mode="overwrite", configuration=properties)


def test_table_without_mapping_drops_ids_and_names_of_another_tables_schema(
    tmp_path: Path,
) -> None:
    inner = pl.Struct({"x": pl.Int64})
    schema = {"a": pl.Int64, "s": pl.List(inner)}
    source = lakelog.create(tmp_path / "t", schema, configuration=BY_NAME, upkeep=False)
    given = source.snapshot().schema
    table = lakelog.create(tmp_path / "0", given, upkeep=False)
    added = [replace(field, name=f"new_{field.name}") for field in given.fields]
    table.alter.add_columns(contract.Struct(tuple(added)))
    assert "delta.columnMapping" not in (table.snapshot().metadata.schema_string or "")
    table.alter.set_properties(BY_NAME)
    names = {name for _, name in mapping_of(table.snapshot().metadata).values()}
    assert names == {"a", "s", "x", "new_a", "new_s"}


def test_table_without_mapping_keeps_the_text_of_its_schema(tmp_path: Path) -> None:
    vector = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": "long"}
    stray = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "v"}
    fields = [{"name": "v", "type": vector, "nullable": True, "metadata": stray}]
    made = handmade.Handmade(tmp_path)
    metadata = handmade.metadata(schemaString=json.dumps({"type": "struct", "fields": fields}))
    made.commit(0, handmade.protocol(), metadata)
    before = made.table.snapshot().metadata.schema_string
    made.table.alter.set_properties({"app.name": "x"})
    assert made.table.snapshot().metadata.schema_string == before


def test_new_table_has_the_greatest_id_of_the_table_whose_properties_it_takes(
    tmp_path: Path,
) -> None:
    schema = {"a": pl.Int64, "b": pl.Int64}
    t = lakelog.create(tmp_path / "t", schema, configuration=BY_NAME, upkeep=False)
    t.alter.drop_column("b")
    metadata = t.snapshot().metadata
    properties = {key: text or "" for key, text in metadata.configuration.items()}
    rows = pl.DataFrame({"a": [1]})
    copies = [
        lakelog.create(tmp_path / "0", metadata.schema, configuration=properties, upkeep=False),
        lakelog.create(tmp_path / "1", rows.schema, configuration=properties, upkeep=False),
        lakelog.create(tmp_path / "2", rows.schema, configuration={MAX_COLUMN_ID: "2"}),
    ]
    lakelog.write(tmp_path / "3", rows, configuration=properties)
    for copy in [*copies, lakelog.open(tmp_path / "3")]:
        assert copy.snapshot().metadata.configuration[MAX_COLUMN_ID] == "2"
        copy.alter.set_properties(BY_NAME)
        copy.alter.add_columns({"c": pl.Int64})
        assert mapping_of(copy.snapshot().metadata)["c"][0] > 2
    for value in ("0", "1", "-1", "x", "", "2.0", "\u0663", "9" * 30):
        with pytest.raises(InvalidPropertyError):
            lakelog.create(
                tmp_path / "new", schema, configuration={**BY_NAME, MAX_COLUMN_ID: value}
            )


def test_column_of_another_type_is_refused_while_the_table_has_files(tmp_path: Path) -> None:
    rows = pl.DataFrame({"a": [1], "b": [1]})
    lakelog.write(tmp_path, rows, configuration={"delta.columnMapping.mode": "name"})
    t = lakelog.open(tmp_path, upkeep=False)
    with pytest.raises(SchemaEvolutionError, match="type changes"), t.transaction() as tx:
        tx.set_metadata(schema={"a": pl.String, "b": pl.Int64, "c": pl.Int64})
    assert t.to_polars().equals(rows)


def test_ids_are_never_reused() -> None:
    before = table(mapped("a", 1), properties={**BY_NAME, MAX_COLUMN_ID: "40"})
    result = assigned(table(column("a"), column("b"), properties=BY_NAME), before)
    assert mapping_of(result)["b"][0] == 41
    assert result.configuration[MAX_COLUMN_ID] == "41"


def test_enabling_mapping_keeps_the_names_in_the_data_files() -> None:
    before = table(column("a"), column("s", struct(column("x"))))
    requested = table(
        column("a"), column("s", struct(column("x"))), column("b"), properties=BY_NAME
    )
    assert mapping_of(assigned(requested, before)) == {
        "a": (1, "a"),
        "s": (2, "s"),
        "s.x": (3, "x"),
        "b": (4, "col-new0"),
    }


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@settings(max_examples=share_of(60))
@given(st.lists(NAMES, min_size=1, max_size=6))
def test_ids_are_unique_and_kept_columns_keep_their_ids(schemas: list[list[str]]) -> None:
    before: Metadata | None = None
    numbers = count()
    for names in schemas:
        configuration = before.configuration if before is not None else BY_NAME
        requested = table(*map(column, names), properties=configuration)
        result = assign(requested, before, lambda: str(next(numbers)))
        found = mapping_of(result)
        ids = [number for number, _ in found.values()]
        assert len(set(ids)) == len(ids)
        assert max(ids) <= int(str(result.configuration[MAX_COLUMN_ID]))
        for name, mapping in mapping_of(before).items() if before is not None else ():
            assert found.get(name, mapping) == mapping
        assert assign(result, before, lambda: "never") == result
        before = result


def test_table_with_mapped_columns_is_created_and_evolved(tmp_path: Path) -> None:
    schema = {"a b": pl.Int64, "day": pl.Date, "s": pl.Struct({"x": pl.Int64})}
    t = lakelog.create(tmp_path / "t", schema, partition_by=["day"], configuration=BY_NAME)
    first = mapping_of(t.snapshot().metadata)
    day = first["day"][1]
    with t.transaction() as tx:
        tx.add(path="f", size=1, partitionValues={day: "2026-01-02"})
    with t.transaction() as tx:
        tx.set_metadata(schema={**schema, "new": pl.String})
    s = t.snapshot()
    assert mapping_of(s.metadata) | first == mapping_of(s.metadata)
    assert s.files(flatten=True).collect()["partition.day"].cast(pl.String).to_list() == [
        "2026-01-02"
    ]
    assert contract.parse_schema(DeltaTable(tmp_path / "t").schema().to_json()).names == (
        *schema,
        "new",
    )


@pytest.mark.parametrize("nested", [False, True])
def test_column_may_get_the_name_of_one_that_is_renamed_with_it(
    tmp_path: Path, nested: bool
) -> None:
    inner = pl.Struct({"x": pl.Int64}) if nested else pl.Int64
    t = lakelog.create(tmp_path / "t", {"a": inner, "b": inner}, configuration=BY_NAME)
    one, two = ({"x": 1}, {"x": 2}) if nested else (1, 2)
    t.append(pl.DataFrame({"a": [one], "b": [two]}))
    a, b = t.snapshot().schema.fields
    (added,) = struct_of({"a": inner}).fields
    with t.transaction() as tx:
        tx.set_metadata(schema=contract.Struct((replace(a, name="c"), b, added)))
    found = mapping_of(t.snapshot().metadata)
    assert found["c"] == (1, a.metadata[contract.PHYSICAL_NAME])
    assert found["a"][0] > found["b"][0]
    (row,) = t.to_polars().rows(named=True)
    assert (row["c"], row["b"]) == (one, two)
    assert row["a"] is None


def test_mapping_by_name_can_be_enabled_and_by_id_cannot(tmp_path: Path) -> None:
    t = lakelog.create(tmp_path / "t", {"a": pl.Int64})
    with t.transaction() as tx:
        tx.add(path="f", size=1)
    with pytest.raises(LakelogError, match="mapping mode"), t.transaction() as tx:
        tx.set_metadata(configuration={"delta.columnMapping.mode": "id"})
    assert t.version() == 1
    with t.transaction() as tx:
        tx.set_metadata(configuration=BY_NAME)
    assert mapping_of(t.snapshot().metadata) == {"a": (1, "a")}
