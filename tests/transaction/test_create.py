"""Creating tables: from every kind of schema, with the minimum protocol, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arro3.core
import deltalake
import orjson
import polars as pl
import pyarrow as pa
import pytest
from deltalake.schema import PrimitiveType, StructType

import lakelog
from lakelog import (
    InvalidInputError,
    InvalidMetadataError,
    InvalidPropertyError,
    TableExistsError,
    UnsupportedFeatureError,
)
from lakelog.dialects import delta
from lakelog.log.context import Log
from lakelog.model import contract
from lakelog.storage import open_store
from lakelog.transaction.create import NewTable, TableDefinition
from lakelog.transaction.schema_conversion import schema_text, struct_of
from tests.transaction.tables import (
    ReadOnly,
    append,
    each_format,
    each_store,
    location,
    new_table,
    runtime,
)


@each_store
@each_format
def test_new_table_has_the_given_metadata_and_no_files(
    tmp_path: Path, kind: str, form: str
) -> None:
    where = location(kind, tmp_path)
    table = lakelog.create(
        where,
        {"id": pl.Int64, "day": pl.String},
        partition_by=["day"],
        format=form,
        configuration={"owner": "me"},
        name="n",
        description="d",
    )
    assert table.format == form
    for seen in (table, lakelog.open(where)):
        snapshot = seen.snapshot()
        assert (snapshot.version, snapshot.num_files()) == (0, 0)
        metadata = snapshot.metadata
        assert metadata.partition_columns == ("day",)
        assert dict(metadata.configuration) == {"owner": "me"}
        assert (metadata.name, metadata.description) == ("n", "d")
        assert metadata.format_provider == ("parquet" if form == "delta" else "indextables")
        assert metadata.created_time is not None
    expected = (1, 2) if form == "delta" else (2, 2)
    protocol = table.snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == expected


SPARK = contract.Struct(
    (
        contract.Field("a", contract.Primitive("long")),
        contract.Field("b", contract.Array(contract.Primitive("string"))),
        contract.Field("c", contract.Struct((contract.Field("d", contract.Primitive("date")),))),
        contract.Field("e", contract.Decimal(10, 2)),
        contract.Field(
            "f", contract.Map(contract.Primitive("string"), contract.Primitive("double"))
        ),
        contract.Field("g", contract.Primitive("timestamp")),
        contract.Field("h", contract.Primitive("timestamp_ntz")),
        contract.Field("i", contract.Primitive("binary")),
        contract.Field("j", contract.Primitive("boolean")),
        contract.Field("k", contract.Primitive("short")),
    )
)


def test_every_form_of_a_schema_gives_the_same_struct() -> None:
    polars = {
        name: contract.to_polars(contract_field.type)
        for name, contract_field in zip(SPARK.names, SPARK.fields, strict=True)
    }
    arrow = pa.schema([(f.name, contract.to_arrow(f.type)) for f in SPARK.fields])
    text = schema_text(SPARK)
    for schema in (SPARK, text, orjson.loads(text), polars, pl.Schema(polars), arrow):
        assert struct_of(schema) == SPARK, type(schema)


def test_nullability_and_wide_types_of_arrow_are_kept() -> None:
    arrow = pa.schema(
        [
            pa.field("a", pa.uint32(), nullable=False),
            pa.field("b", pa.large_string()),
            pa.field("c", pa.dictionary(pa.int8(), pa.string())),
            pa.field("d", pa.timestamp("ns")),
            pa.field("e", pa.list_(pa.field("item", pa.int8(), nullable=False))),
        ]
    )
    fields = struct_of(arrow).fields
    assert [f.nullable for f in fields] == [False, True, True, True, True]
    assert [contract.to_json(f.type) for f in fields[:4]] == [
        "long",
        "string",
        "string",
        "timestamp_ntz",
    ]
    assert fields[4].type == contract.Array(contract.Primitive("byte"), contains_null=False)


def test_schemas_and_fields_of_other_arrow_libraries_are_taken(tmp_path: Path) -> None:
    inner = StructType([deltalake.Field("x", PrimitiveType("integer"))])
    fields = [
        deltalake.Field("id", PrimitiveType("long"), nullable=False),
        deltalake.Field("s", inner),
    ]
    expected = struct_of(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("s", pa.struct([("x", pa.int32())])),
            ]
        )
    )
    for given in (
        deltalake.Schema(fields),
        fields,
        arro3.core.Schema.from_arrow(arrow := pa.schema(map(pa.field, fields))),
        arrow,
        list(arrow),
    ):
        assert struct_of(given) == expected, type(given)
    assert struct_of(fields[1]).names == ("s",)
    peer = deltalake.DeltaTable.create(tmp_path / "peer", deltalake.Schema(fields))
    table = lakelog.create(tmp_path / "own", peer.schema())
    table.alter.add_columns(deltalake.Field("n", PrimitiveType("double")))
    table.alter.add_columns([deltalake.Field("t", inner)])
    assert deltalake.DeltaTable(tmp_path / "own").schema() == deltalake.Schema(
        [*fields, deltalake.Field("n", PrimitiveType("double")), deltalake.Field("t", inner)]
    )


def test_texts_in_the_metadata_of_arrow_fields_are_kept(tmp_path: Path) -> None:
    inner = deltalake.Field("a", PrimitiveType("long"), metadata={"comment": "inside"})
    texts = {
        "comment": "a number",
        "CURRENT_DEFAULT": "7",
        "delta.invariants": '{"expression":{"expression":"x > 3"}}',
    }
    fields = [
        deltalake.Field("x", PrimitiveType("long"), metadata=texts),
        deltalake.Field("s", StructType([inner])),
        deltalake.Field(
            "y", PrimitiveType("long"), metadata={"delta.generationExpression": "s.a + 1"}
        ),
    ]
    identity = {"start": 5, "step": 2, "allowExplicitInsert": False}
    identity = {f"delta.identity.{name}": value for name, value in identity.items()}
    numbered = deltalake.Field("n", PrimitiveType("long"), metadata=identity)
    given = lakelog.create(tmp_path / "n", deltalake.Schema([numbered, fields[1]]))
    given.append(pl.DataFrame({"s": [{"a": 1}]}))
    assert given.to_polars()["n"].to_list() == [5]
    table = lakelog.create(tmp_path, deltalake.Schema(fields))
    assert deltalake.DeltaTable(tmp_path).schema() == deltalake.Schema(fields)
    table.append(pl.DataFrame({"s": [{"a": 1}]}))
    assert table.to_polars().rows() == [(7, {"a": 1}, 2)]
    with pytest.raises(InvalidInputError, match="invariant of 'x'"):
        table.append(pl.DataFrame({"x": [3]}))
    others = pa.field("z", pa.int64(), metadata={"PARQUET:field_id": "5", "own": "text"})
    table.alter.add_columns(others)
    assert table.snapshot().schema.fields[3].metadata == {}
    with pytest.raises(InvalidInputError, match="the metadata of 'w' is not valid"):
        table.alter.add_columns(pa.field("w", pa.int64(), metadata={"comment": b"\xff"}))


@pytest.mark.parametrize(
    "schema",
    [{"a": pl.Time}, {"a": pl.Duration}, pa.schema([("a", pa.uint64())]), 3, "x", ["a"], [5]],
)
def test_unsupported_schema_raises(schema: Any) -> None:
    with pytest.raises(InvalidInputError):
        struct_of(schema)


@each_format
@pytest.mark.parametrize("other", ["delta", "indextables"])
def test_create_over_an_existing_table_raises(tmp_path: Path, form: str, other: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    with pytest.raises(TableExistsError) as error:
        new_table(where, other)
    assert isinstance(error.value, FileExistsError)
    assert error.value.hint
    assert lakelog.open(where).format == form


def test_table_is_created_over_an_empty_log_folder(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    (Path(where) / "_delta_log").mkdir(parents=True)
    assert new_table(where).version() == 0


def test_path_of_the_log_folder_refers_to_its_table(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where + "/_delta_log")
    assert lakelog.open(where).version() == 0


@pytest.mark.parametrize(
    ("configuration", "features"),
    [
        ({"delta.enableRowTracking": "true"}, {"rowTracking", "domainMetadata"}),
        ({"delta.enableInCommitTimestamps": "true"}, {"inCommitTimestamp"}),
        ({"delta.feature.vacuumProtocolCheck": "supported"}, {"vacuumProtocolCheck"}),
    ],
)
def test_protocol_has_the_features_that_the_properties_need(
    tmp_path: Path, configuration: dict[str, str], features: set[str]
) -> None:
    table = new_table(location("local", tmp_path), configuration=configuration)
    assert features <= set(table.snapshot().protocol.writer_features or ())
    # A new table has timestamps from its first commit: no enablement is recorded.
    assert not any("EnablementVersion" in key for key in table.snapshot().metadata.configuration)
    assert append(table, app_id="a", app_version=1) == 1


def test_invalid_metadata_raises_and_creates_nothing(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    with pytest.raises(InvalidMetadataError):
        new_table(where, partition_by=["nope"])
    with pytest.raises(InvalidPropertyError):
        new_table(where, configuration={"delta.appendOnly": "perhaps"})
    with pytest.raises(UnsupportedFeatureError):
        new_table(where, configuration={"delta.feature.flux": "supported"})
    with pytest.raises(InvalidInputError, match="unknown table format"):
        new_table(where, "iceberg")
    assert not Path(where).exists()


def test_store_without_safe_commits_raises(tmp_path: Path) -> None:
    store = ReadOnly(open_store(location("local", tmp_path)))
    with pytest.raises(lakelog.UnsupportedStoreError):
        NewTable(
            Log(store, delta.DIALECT), runtime(), [delta.DIALECT], TableDefinition({"id": pl.Int64})
        )
