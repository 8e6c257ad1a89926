"""`Table.alter`: one commit per change, and rows remain readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import Table
from lakelog.data.alter import Alter
from lakelog.errors import (
    ConflictError,
    InvalidInputError,
    InvalidPropertyError,
    InvalidTransactionError,
    SchemaEvolutionError,
    UnsupportedFeatureError,
)
from lakelog.model import contract
from lakelog.transaction.schema_conversion import struct_of
from tests.budget import rng_of, share_of
from tests.data.rows import commit_info
from tests.handmade import Handmade, field, metadata, protocol

SCHEMA: dict[str, Any] = {
    "id": pl.Int32,
    "p": pl.String,
    "s": pl.Struct({"a": pl.Int32, "b": pl.String}),
}


def new_table(root: Path, **properties: str) -> Table:
    configuration = {k.replace("__", "."): v for k, v in properties.items()}
    table = lakelog.create(root, SCHEMA, ["p"], configuration=configuration, upkeep=False)
    table.append(frame(1))
    return table


def frame(number: int) -> pl.DataFrame:
    return pl.DataFrame({"id": [number], "p": ["x"], "s": [{"a": number, "b": "t"}]}, schema=SCHEMA)


def rows(table: Table) -> list[dict[str, Any]]:
    return table.snapshot().scan().collect().to_dicts()


def test_columns_are_added_in_place_and_null_in_existing_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert table.alter.add_columns({"x": pl.Float64, "y": pl.Date}, after="id") == 2
    assert table.snapshot().schema.names == ("id", "x", "y", "p", "s")
    assert rows(table) == [{"id": 1, "x": None, "y": None, "p": "x", "s": {"a": 1, "b": "t"}}]
    assert table.history(1)["operation"].item() == "ADD COLUMNS"
    assert deltalake.DeltaTable(tmp_path).schema().fields[1].name == "x"
    with pytest.raises(SchemaEvolutionError, match="has a column with this name"):
        table.alter.add_columns({"ID": pl.Int64})
    with pytest.raises(InvalidInputError, match="has no column"):
        table.alter.add_columns({"z": pl.Int64}, after="nope")
    with pytest.raises(SchemaEvolutionError, match="must be nullable") as raised:
        table.alter.add_columns([pa.field("q", pa.int64(), nullable=False)])
    assert raised.value.column == "q"


def test_fields_are_added_to_structs_at_any_depth(tmp_path: Path) -> None:
    item, text = pa.struct([("q", pa.int64())]), pa.map_(pa.string(), pa.struct([("z", pa.int8())]))
    old = {"s": [{"a": 1, "b": {"c": "t"}}], "l": [[{"q": 1}, None]], "m": [[("k", {"z": 1})]]}
    lakelog.write(
        tmp_path,
        pa.table(
            {"s": old["s"], "l": pa.array(old["l"], pa.list_(item)), "m": pa.array(old["m"], text)}
        ),
    )
    table = lakelog.open(tmp_path, upkeep=False)
    table.alter.add_columns({"s.x": pl.Int64, "s.y": pl.Int64}, after="s.a")
    table.alter.add_columns({"s.b.d": pl.String, "l.element.r": pl.Int8, "m.value.v": pl.Date})
    assert table.to_arrow().to_pylist() == [
        {
            "s": {"a": 1, "x": None, "y": None, "b": {"c": "t", "d": None}},
            "l": [{"q": 1, "r": None}, None],
            "m": [("k", {"z": 1, "v": None})],
        }
    ]
    with pytest.raises(InvalidInputError, match="no column 't'") as unknown:
        table.alter.add_columns({"t.u": pl.Int64})
    assert "`t.u`" in (unknown.value.hint or "")
    table.alter.add_columns({"`t.u`": pl.Struct({"a": pl.Int8}), "plain": pl.Int8})
    table.alter.add_columns({"`t.u`.`b.``c`": pl.Int64, "t.u.d": pl.Int8}, after="`t.u`.a")
    assert table.snapshot().schema.names == ("s", "l", "m", "t.u", "plain")
    (inner,) = (f.type for f in table.snapshot().schema.fields if f.name == "t.u")
    assert isinstance(inner, contract.Struct)
    assert inner.names == ("a", "b.`c", "d")
    with pytest.raises(SchemaEvolutionError, match="has a column with this name"):
        table.alter.add_columns({"s.B": pl.Int64})
    for name in ("s.a.x", "l.x", "m.key.x"):
        with pytest.raises(InvalidInputError, match="only be added to a table or to a struct"):
            table.alter.add_columns({name: pl.Int64})
    with pytest.raises(InvalidInputError, match="not in the struct"):
        table.alter.add_columns({"s.z": pl.Int64}, after="l")


def test_columns_are_renamed_and_dropped_under_column_mapping(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with pytest.raises(SchemaEvolutionError, match="column mapping") as caught:
        table.alter.rename_column("id", "number")
    assert "enable=True" in str(caught.value)
    with pytest.raises(SchemaEvolutionError, match="column mapping"):
        table.alter.drop_column("id")
    with pytest.raises(SchemaEvolutionError, match="has a column with this name"):
        table.alter.rename_column("id", "p", enable=True)
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.drop_column("p", enable=True)
    assert table.version() == 1
    assert table.alter.rename_column("id", "number", enable=True) == 3
    assert table.alter.rename_column("p", "part") == 4
    assert table.alter.rename_column("s.a", "c") == 5
    table.append(
        pl.DataFrame({"number": [2], "part": ["y"], "s": [{"c": 2, "b": "u"}]}),
    )
    assert sorted(rows(table), key=str) == [
        {"number": 1, "part": "x", "s": {"c": 1, "b": "t"}},
        {"number": 2, "part": "y", "s": {"c": 2, "b": "u"}},
    ]
    assert table.snapshot().metadata.partition_columns == ("part",)
    assert table.alter.drop_column("s.b") == 7
    assert table.alter.drop_column("number") == 8
    # A new column with an old name is a different column.
    table.alter.add_columns({"number": pl.String})
    assert sorted(rows(table), key=str) == [
        {"part": "x", "s": {"c": 1}, "number": None},
        {"part": "y", "s": {"c": 2}, "number": None},
    ]
    with pytest.raises(SchemaEvolutionError, match="last column"):
        table.alter.drop_column("s.c")
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.drop_column("part")
    with pytest.raises(SchemaEvolutionError, match="has a column with this name"):
        table.alter.rename_column("number", "PART")


@pytest.mark.parametrize(
    "wider", [pl.Int64, pa.int64(), "long", "BIGINT", "decimal(20,2)", "double"]
)
def test_columns_are_widened(tmp_path: Path, wider: object) -> None:
    table = new_table(tmp_path)
    with pytest.raises(SchemaEvolutionError) as caught:
        table.alter.widen_column("id", wider)
    assert "enableTypeWidening" in str(caught.value)
    assert table.alter.widen_column("id", wider, enable=True) == 2
    assert rows(table)[0]["id"] == 1
    changes = table.snapshot().schema.fields[0].metadata["delta.typeChanges"]
    assert changes[0]["fromType"] == "integer"
    table.alter.widen_column("s.a", "long")
    assert rows(table)[0]["s"] == {"a": 1, "b": "t"}
    with pytest.raises(SchemaEvolutionError, match="not wider"):
        table.alter.widen_column("p", "long")
    for unknown in (5, "longer"):
        with pytest.raises(InvalidInputError, match="invalid type"):
            table.alter.widen_column("id", unknown)


def test_columns_in_lists_and_maps_are_changed(tmp_path: Path) -> None:
    """The field that holds the list or map records the change and where it is (Type Widening)."""
    item = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    types = {"l": pa.list_(pa.int32()), "m": pa.map_(pa.int32(), pa.list_(item))}
    old = {"l": [1, None], "m": [(1, [{"x": 1, "y": 2}])]}
    on = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    lakelog.write(tmp_path, pa.Table.from_pylist([old], pa.schema(types)), configuration=on)
    table = lakelog.open(tmp_path, upkeep=False)
    for column in ("l.element", "m.key", "m.value.element.x"):
        table.alter.widen_column(column, "long")
    table.alter.rename_column("m.value.element.y", "z")
    fields = {f.path: f.field for f in contract.fields_of(table.snapshot().schema)}
    changed = {path: f.metadata.get(contract.TYPE_CHANGES) for path, f in fields.items()}
    change = {"fromType": "integer", "toType": "long"}
    assert changed == {
        ("l",): [{**change, "fieldPath": "element"}],
        ("m",): [{**change, "fieldPath": "key"}],
        ("m", "value", "element", "x"): [change],
        ("m", "value", "element", "z"): None,
    }
    new = {"l": [1 << 40], "m": [(1 << 41, [{"x": 1 << 42, "z": 3}])]}
    wide = pa.struct([("x", pa.int64()), ("z", pa.int32())])
    types = {"l": pa.list_(pa.int64()), "m": pa.map_(pa.int64(), pa.list_(wide))}
    table.append(pa.Table.from_pylist([new], pa.schema(types)))
    old["m"] = [(1, [{"x": 1, "z": 2}])]
    assert sorted(table.to_arrow().to_pylist(), key=str) == sorted([old, new], key=str)
    assert table.alter.drop_column("m.value.element.z") is not None
    for column, expected in (
        ("l.elemen", "l.element"),
        ("m.x", "m.key, m.value"),
        ("l.element.x", None),
    ):
        with pytest.raises(InvalidInputError, match="has no column") as caught:
            table.alter.widen_column(column, "long")
        assert (caught.value.column, caught.value.expected) == (column, expected)


def test_changing_a_column_that_rules_depend_on_raises(tmp_path: Path) -> None:
    schema = contract.to_json(struct_of(SCHEMA))
    schema["fields"][1]["metadata"] = {"delta.generationExpression": "CAST(id AS STRING)"}
    invariant = {"expression": {"expression": "s.b IS NOT NULL"}}
    schema["fields"][2]["metadata"] = {"delta.invariants": json.dumps(invariant)}
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.alter.add_constraint("small", "s.a < 10")
    for column in ("id", "s.a"):
        with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
            table.alter.widen_column(column, "long", enable=True)
    table.alter.drop_constraint("small")
    assert table.alter.widen_column("s.a", "long", enable=True) == 3
    table.alter.set_properties({"delta.columnMapping.mode": "name"})
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.rename_column("s.b", "c")
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.drop_column("s.b")
    assert table.alter.drop_column("s") == 5


def table_with_rules(root: Path, **generated: str) -> Table:
    """A table of structs and a list, of which the generated columns are computed."""
    struct = pl.Struct({"x": pl.Int32, "y": pl.Int32, "in": pl.Struct({"x": pl.Int32})})
    types = {"s": struct, "t": struct, "tags": pl.List(pl.Int32), "x": pl.Int32}
    types |= {name: struct if name == "n" else pl.Int32 for name in generated}
    schema = contract.to_json(struct_of(types))
    for each in schema["fields"]:
        if (expression := generated.get(each["name"])) is not None:
            each["metadata"] = {"delta.generationExpression": expression}
    properties = {"delta.enableTypeWidening": "true", "delta.dataSkippingStatsColumns": "t"}
    features = ["columnMapping", "typeWidening"]
    handmade = Handmade(root)
    handmade.commit(
        0,
        protocol(3, 7, readerFeatures=features, writerFeatures=[*features, "generatedColumns"]),
        metadata(*schema["fields"], properties=properties),
    )
    return handmade.table


def test_rules_on_a_column_depend_on_the_fields_inside_it(tmp_path: Path) -> None:
    table = table_with_rules(tmp_path, n="s", m="`t` . `x`", first="tags[0]")
    alter = table.alter
    changes: list[Callable[[], object]] = [
        lambda: alter.drop_column("s.y", enable=True),
        lambda: alter.rename_column("s.in.x", "z", enable=True),
        lambda: alter.widen_column("s.x", "long"),
        lambda: alter.widen_column("t.x", "long"),
        lambda: alter.widen_column("tags.element", "long"),
        lambda: alter.rename_column("t", "u", enable=True),
    ]
    for change in changes:
        with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
            change()
    match = "generated or identity column cannot change"
    with pytest.raises(SchemaEvolutionError, match=match):
        alter.drop_column("n.y", enable=True)
    with pytest.raises(SchemaEvolutionError, match=match):
        alter.rename_column("n.in.x", "z", enable=True)
    with pytest.raises(SchemaEvolutionError, match=match):
        alter.widen_column("n.x", "long")
    assert table.version() == 0


def test_fields_are_added_to_a_struct_only_together_with_the_generated_one(tmp_path: Path) -> None:
    table = table_with_rules(tmp_path, n="s")
    for path in ("s.z", "n.z"):
        with pytest.raises(SchemaEvolutionError, match="generated column 'n'") as caught:
            table.alter.add_columns({path: pl.Int32})
        assert caught.value.column == "n"
    table.alter.add_columns({"s.z": pl.Int32, "n.z": pl.Int32, "t.z": pl.Int32})
    table.append(pl.DataFrame({"s": [{"x": 1, "z": 2}]}))
    assert table.to_polars()["n"].struct.field("z").to_list() == [2]


def test_rules_on_a_struct_keep_its_fields_from_being_widened_by_rows(tmp_path: Path) -> None:
    table = table_with_rules(tmp_path, n="s")
    rows = pl.DataFrame({"s": [{"x": 2**40}]})
    with pytest.raises(InvalidInputError):
        table.append(rows, schema_mode="merge")
    table.append(rows.select(t="s"), schema_mode="merge")
    types = {at.text: at.field.type for at in contract.fields_of(table.snapshot().schema)}
    assert (types["s.x"], types["t.x"]) == (
        contract.Primitive("integer"),
        contract.Primitive("long"),
    )


def test_rules_on_one_field_of_a_struct_do_not_depend_on_the_others(tmp_path: Path) -> None:
    alter = table_with_rules(tmp_path, m="`t` . `x`").alter
    assert alter.drop_column("t.y", enable=True) == 2
    assert alter.rename_column("t.in.x", "z") == 3
    assert alter.widen_column("t.in.z", "long") == 4


def test_column_with_a_backquote_in_its_name_is_found_in_rules(tmp_path: Path) -> None:
    mapping = {"delta.columnMapping.mode": "name"}
    table = lakelog.create(tmp_path, {"id": pl.Int64, "a`b": pl.Int64}, configuration=mapping)
    table.alter.add_constraint("small", "`a``b` < 10")
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.drop_column("a`b")
    table.append(pl.DataFrame({"id": [1], "a`b": [2]}))


@pytest.mark.parametrize("column", ["id", "s.a", "s"])
def test_dropping_a_clustering_column_raises(tmp_path: Path, column: str) -> None:
    handmade = Handmade(tmp_path)
    fields = contract.to_json(struct_of(SCHEMA))["fields"]
    for number, each in enumerate([*fields, *fields[2]["type"]["fields"]], 1):
        names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
        each["metadata"] = names
    clustering = {"clusteringColumns": [["c1"], ["c3", "c4"]]}
    domain = {"domain": "delta.clustering", "configuration": json.dumps(clustering)}
    features = ["clustering", "columnMapping", "domainMetadata"]
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "5"}
    handmade.commit(
        0,
        protocol(2, 7, writerFeatures=features),
        metadata(*fields, properties=mapping),
        {"domainMetadata": {**domain, "removed": False}},
    )
    alter = handmade.table.alter
    with pytest.raises(SchemaEvolutionError) as refused:
        alter.drop_column(column)
    assert refused.value.found == f"delta.clustering: {column}"
    assert alter.rename_column(column, "other") == 1
    assert alter.drop_column("p") == 2


def test_nullability_comments_and_properties_are_changed(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    table = lakelog.create(tmp_path, schema, upkeep=False)
    assert table.alter.set_nullable("id") == 1
    assert table.alter.set_nullable("id") is None
    table.append(pl.DataFrame({"id": [None]}, schema={"id": pl.Int64}))
    table.alter.set_comment("the key", "id")
    table.alter.set_comment("a table")
    table.alter.set_name("keys")
    snapshot = table.snapshot()
    assert snapshot.metadata.name == deltalake.DeltaTable(tmp_path).metadata().name == "keys"
    table.alter.set_name(None)
    assert table.snapshot().metadata.name is None
    assert snapshot.schema.fields[0].metadata == {"comment": "the key"}
    assert snapshot.metadata.description == "a table"
    table.alter.set_comment(None, "id")
    assert table.snapshot().schema.fields[0].metadata == {}
    table.alter.set_properties({"delta.enableDeletionVectors": "true", "owner": "1"})
    assert "deletionVectors" in (table.snapshot().protocol.writer_features or ())
    table.alter.unset_properties(["owner", "other"])
    assert dict(table.snapshot().metadata.configuration) == {"delta.enableDeletionVectors": "true"}
    assert table.alter.unset_properties(["other"]) is None
    assert table.alter.upgrade(["timestampNtz"]) == 10
    assert "timestampNtz" in (table.snapshot().protocol.reader_features or ())


@pytest.mark.parametrize(
    "listed", ["nothing", "id,id", "st.x,st", "st,ST.x", "st.y", "day", "id.x", "b", "l"]
)
def test_list_of_statistics_columns_names_each_column_of_files_once(
    tmp_path: Path, listed: str
) -> None:
    inside = pl.Struct({"x": pl.Int64, "b": pl.Binary})
    schema = {"id": pl.Int64, "st": inside, "day": pl.String, "b": pl.Binary, "l": pl.List(pl.Int8)}
    table = lakelog.create(tmp_path / "t", schema, partition_by=["day"])
    properties = {"delta.dataSkippingStatsColumns": listed}
    with pytest.raises(InvalidPropertyError, match="the list of statistics columns names"):
        table.alter.set_properties(properties)
    with pytest.raises(InvalidPropertyError, match="the list of statistics columns names"):
        lakelog.create(tmp_path / "new", schema, partition_by=["day"], configuration=properties)
    table.alter.set_properties({"delta.dataSkippingStatsColumns": "ID, st.x, st.b"})


def test_commits_have_the_description_that_was_given(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    described = table.alter.described(
        user_name="ann", user_metadata="ticket 7", commit_info={"run": "nightly"}
    )
    described.rename_column("id", "key", enable=True)
    described.described(operation="TAG").set_properties({"owner": "1"})
    table.alter.set_comment("orders")
    last = table.history(4).sort("version")
    assert last["operation"].to_list()[1:] == ["RENAME COLUMN", "TAG", "SET TBLPROPERTIES"]
    infos = [commit_info(tmp_path, version) for version in last["version"]]
    given = [tuple(map(info.get, ("userName", "userMetadata", "run"))) for info in infos]
    assert given == [("ann", "ticket 7", "nightly")] * 3 + [(None, None, None)]


def test_constraint_is_added_only_if_all_rows_satisfy_it(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(5).with_columns(p=pl.lit(None, pl.String)))
    for expression, found in (("id < 5", 5), ("p = 'x'", None)):
        with pytest.raises(InvalidTransactionError, match="violate") as caught:
            table.alter.add_constraint("c", expression)
        assert found in dict(caught.value.found or {})["example"].values()
    assert table.alter.add_constraint("small", "id < 10 AND id >= 0") == 3
    metadata = table.snapshot().metadata
    assert metadata.configuration["delta.constraints.small"] == "id < 10 AND id >= 0"
    with pytest.raises(InvalidTransactionError, match="exists"):
        table.alter.add_constraint("SMALL", "id < 11")
    with pytest.raises(SchemaEvolutionError, match="referred to elsewhere"):
        table.alter.rename_column("id", "number", enable=True)
    for wrong in ("nope > 1", "id", "id < (SELECT 1)", "max(id) > 1"):
        with pytest.raises(InvalidInputError):
            table.alter.add_constraint("w", wrong)
    with pytest.raises(InvalidInputError, match="name of a constraint"):
        table.alter.add_constraint("a b", "id < 10")
    with pytest.raises(InvalidInputError, match="constraint not found"):
        table.alter.drop_constraint("nope")
    table.alter.drop_constraint("Small")
    with pytest.raises(InvalidInputError, match="the table has no constraint"):
        table.alter.drop_constraint("Small")
    assert "delta.constraints.small" not in table.snapshot().metadata.configuration
    table.append(frame(50))


def test_column_of_an_empty_table_is_widened_only_with_type_widening(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"v": pl.Int16}, upkeep=False)
    with pytest.raises(SchemaEvolutionError, match="type changes") as refused:
        table.alter.widen_column("v", "long")
    assert "enable=True" in (refused.value.hint or "")
    assert table.alter.widen_column("v", "integer", enable=True) == 1
    assert "typeWidening" in (table.snapshot().protocol.writer_features or ())
    assert table.alter.widen_column("v", "long") == 2


def test_names_of_constraints_are_stored_in_lower_case_and_found_in_any(tmp_path: Path) -> None:
    rule = {"delta.constraints.Few": "id < 100"}
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, configuration=rule, upkeep=False)
    table.alter.add_constraint("lessThan10", "id < 10")
    names = {"delta.constraints.few": "id < 100", "delta.constraints.lessthan10": "id < 10"}
    assert table.snapshot().metadata.constraints == names
    table.alter.set_properties({"delta.constraints.LESSTHAN10": "id < 10"})
    assert table.snapshot().metadata.constraints == names
    table.alter.unset_properties(["delta.constraints.FEW"])
    table.alter.drop_constraint("LessThan10")
    assert not table.snapshot().metadata.constraints
    two = {"delta.constraints.a": "id < 1", "delta.constraints.A": "id < 2"}
    with pytest.raises(InvalidPropertyError, match="same name"):
        lakelog.create(tmp_path / "two", {"id": pl.Int64}, configuration=two)
    with pytest.raises(InvalidPropertyError, match="reserved"):
        table.alter.add_constraint("__CHAR_VARCHAR_STRING_LENGTH_CHECK__", "id < 10")


def test_a_constraint_is_dropped_in_all_spellings_of_its_name(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1]}))
    peer = deltalake.DeltaTable(tmp_path)
    peer.alter.add_constraint({"lessThan10": "id < 10"})
    peer.alter.add_constraint({"lessthan10": "id < 11"})
    table = lakelog.open(tmp_path, upkeep=False)
    assert len(table.snapshot().metadata.constraints) == 2
    with pytest.raises(InvalidTransactionError, match="exists"):
        table.alter.add_constraint("LESSTHAN10", "id < 12")
    table.alter.drop_constraint("lessThan10")
    table.append(pl.DataFrame({"id": [50]}))
    assert not table.snapshot().metadata.constraints


def test_row_appended_while_a_constraint_is_checked_is_a_conflict(tmp_path: Path) -> None:
    table, other = new_table(tmp_path), lakelog.open(tmp_path, upkeep=False)
    begin = table.transaction

    def late(**more: Any) -> Any:
        tx = begin(**more)
        other.append(frame(100))
        return tx

    with pytest.raises(ConflictError):
        Alter(late).add_constraint("small", "id < 10")
    assert table.version() == 2


@pytest.mark.parametrize(
    ("versions", "feature"),
    [(protocol(2, 4), "deletionVectors"), (protocol(2, 7, writerFeatures=[]), "columnMapping")],
)
def test_upgrade_keeps_the_physical_names_that_reader_version_2_applies(
    tmp_path: Path, versions: dict[str, Any], feature: str
) -> None:
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    log = Handmade(tmp_path)
    log.commit(0, versions, metadata(field("id", **mapped), configuration=mapping))
    log.table.append(pl.DataFrame({"id": [1]}))
    log.table.alter.upgrade([feature])
    assert log.table.to_polars()["id"].to_list() == [1]
    assert "columnMapping" in (log.table.snapshot().protocol.writer_features or ())


def test_partitioned_table_cannot_become_a_clustered_one(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with pytest.raises(InvalidTransactionError, match="clustered table must not have partition"):
        table.alter.upgrade(["clustering"])
    assert table.snapshot().version == 1


def test_unsupported_features_raise_and_are_named(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for feature in ("catalogManaged", "noSuchFeature"):
        with pytest.raises(UnsupportedFeatureError, match=feature):
            table.alter.upgrade([feature])


@pytest.mark.parametrize("number", range(share_of(6, 3)))
def test_random_changes_of_the_schema_keep_the_rows_of_a_model(tmp_path: Path, number: int) -> None:
    rng = rng_of(f"alter {number}")
    table = lakelog.create(
        tmp_path,
        {"k": pl.Int32, "c0": pl.Int32},
        configuration={"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"},
        upkeep=False,
    )
    model: list[dict[str, Any]] = []
    names, count = ["k", "c0"], 1

    def change(edit: Callable[[dict[str, Any]], None]) -> None:
        for row in model:
            edit(row)

    for step in range(16):
        choice = rng.random()
        name = rng.choice(names)
        if choice < 0.4:
            row = {n: (step if n == "k" else rng.choice([None, step])) for n in names}
            table.append(pl.DataFrame([row], schema=dict.fromkeys(names, pl.Int32)))
            model.append(row)
        elif choice < 0.6:
            new, count = f"c{count}", count + 1
            table.alter.add_columns({new: pl.Int32}, after=name)
            names.insert(names.index(name) + 1, new)
            change(lambda row, new=new: row.update({new: None}))  # type: ignore[misc]
        elif choice < 0.75 and name != "k":
            new, count = f"c{count}", count + 1
            table.alter.rename_column(name, new)
            names[names.index(name)] = new
            change(lambda row, name=name, new=new: row.update({new: row.pop(name)}))  # type: ignore[misc]
        elif choice < 0.85 and name != "k":
            table.alter.drop_column(name)
            names.remove(name)
            change(lambda row, name=name: row.pop(name))  # type: ignore[misc]
        else:
            table.alter.widen_column(name, "long")
        found = table.snapshot().scan().collect()
        assert found.columns == names
        assert sorted(found.to_dicts(), key=repr) == sorted(
            ({n: row[n] for n in names} for row in model), key=repr
        )
