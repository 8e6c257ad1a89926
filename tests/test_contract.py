"""The contract: StructType JSON to Arrow and Polars types, without loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.errors import (
    CorruptionError,
    InternalError,
    InvalidInputError,
    InvalidMetadataError,
)
from lakelog.model import actions, contract
from lakelog.model.contract import Array, DataType, Decimal, Field, Map, Primitive, Struct
from tests import handmade
from tests.handmade import Handmade

PRIMITIVES: dict[str, tuple[pl.DataType, pa.DataType]] = {
    "string": (pl.String(), pa.string()),
    "long": (pl.Int64(), pa.int64()),
    "integer": (pl.Int32(), pa.int32()),
    "short": (pl.Int16(), pa.int16()),
    "byte": (pl.Int8(), pa.int8()),
    "float": (pl.Float32(), pa.float32()),
    "double": (pl.Float64(), pa.float64()),
    "boolean": (pl.Boolean(), pa.bool_()),
    "binary": (pl.Binary(), pa.binary()),
    "date": (pl.Date(), pa.date32()),
    "timestamp": (pl.Datetime("us", "UTC"), pa.timestamp("us", "UTC")),
    "timestamp_ntz": (pl.Datetime("us"), pa.timestamp("us")),
    "variant": (
        pl.Struct({"value": pl.Binary(), "metadata": pl.Binary()}),
        pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]),
    ),
    "void": (pl.Null(), pa.null()),
    "char(3)": (pl.String(), pa.string()),
    "varchar(20)": (pl.String(), pa.string()),
    "string collate UNICODE": (pl.String(), pa.string()),
}

leaves: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from(sorted(PRIMITIVES)).map(Primitive),
    st.builds(Decimal, st.integers(10, 38), st.integers(0, 10)),
)


def fields(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[tuple[Field, ...]]:
    field = st.builds(
        Field,
        st.text("abcXYZ é.`%", min_size=1, max_size=8),
        types,
        st.booleans(),
        st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=2),
    )
    return st.lists(field, max_size=4, unique_by=lambda f: f.name).map(tuple)


types: st.SearchStrategy[DataType] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Array, inner, st.booleans()),
        st.builds(Map, leaves, inner, st.booleans()),
        st.builds(Struct, fields(inner)),
    ),
    max_leaves=8,
)

structs = st.builds(Struct, fields(types))


@given(structs)
def test_schema_round_trips_through_json(schema: Struct) -> None:
    text = json.dumps(contract.to_json(schema))
    assert contract.parse_schema(text) == schema


@given(structs)
def test_polars_and_arrow_agree_on_every_type(schema: Struct) -> None:
    arrow = pa.schema([pa.field(f.name, contract.to_arrow(f.type)) for f in schema.fields])
    for field in schema.fields:
        polars = contract.to_polars(field.type)
        assert dimensions(polars) == dimensions_of_arrow(arrow.field(field.name).type)


def dimensions(dtype: pl.DataType) -> object:
    """A dtype's shape: its nesting, with every leaf as its class and parameters."""
    match dtype:
        case pl.List():
            return ["list", dimensions(inner(dtype.inner))]
        case pl.Map():
            return ["map", dimensions(inner(dtype.key)), dimensions(inner(dtype.value))]
        case pl.Struct():
            return {f.name: dimensions(inner(f.dtype)) for f in dtype.fields}
        case _:
            return str(dtype)


def inner(dtype: Any) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def dimensions_of_arrow(dtype: pa.DataType) -> object:
    if pa.types.is_list(dtype):
        return ["list", dimensions_of_arrow(dtype.value_type)]
    if pa.types.is_map(dtype):
        return ["map", dimensions_of_arrow(dtype.key_type), dimensions_of_arrow(dtype.item_type)]
    if pa.types.is_struct(dtype):
        return {field.name: dimensions_of_arrow(field.type) for field in dtype}
    if pa.types.is_decimal(dtype):
        return str(pl.Decimal(dtype.precision, dtype.scale))
    leaves_by_arrow = {str(arrow): str(polars) for polars, arrow in PRIMITIVES.values()}
    return leaves_by_arrow[str(dtype)]


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_each_primitive_has_its_polars_and_arrow_type(name: str) -> None:
    polars, arrow = PRIMITIVES[name]
    assert contract.to_polars(Primitive(name)) == polars
    assert contract.to_arrow(Primitive(name)) == arrow


def test_maps_and_lists_keep_sparks_nullability_in_arrow() -> None:
    assert contract.to_arrow(
        Map(Primitive("string"), Primitive("long"), value_contains_null=False)
    ) == (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)))
    element = contract.to_arrow(Array(Primitive("long"), contains_null=False)).field(0)
    assert element == pa.field("element", pa.int64(), nullable=False)


def test_a_required_field_of_an_opaque_type_has_an_arrow_type() -> None:
    opaque = Primitive("geometry")
    assert contract.to_arrow(Struct((Field("g", opaque, nullable=False),))) == pa.struct(
        [pa.field("g", pa.null())]
    )
    assert contract.to_arrow(Array(opaque, contains_null=False)).value_type == pa.null()


def test_decimal_without_parameters_has_sparks_default() -> None:
    assert parse_one("decimal") == Decimal(10, 0)
    assert parse_one("decimal( 12 , 2 )") == Decimal(12, 2)


def test_null_is_read_as_void_and_a_udt_as_its_sql_type() -> None:
    assert parse_one("null") == Primitive("void")
    assert parse_one({"type": "udt", "class": "x", "sqlType": "double"}) == Primitive("double")


def test_unknown_type_is_opaque_and_keeps_its_spelling() -> None:
    geometry = parse_one("geometry(OGC:CRS84)")
    assert geometry == Primitive("geometry(OGC:CRS84)")
    assert contract.to_polars(geometry) == pl.Null()
    assert contract.to_json(geometry) == "geometry(OGC:CRS84)"


def parse_one(type_: object) -> DataType:
    text = json.dumps({"type": "struct", "fields": [{"name": "x", "type": type_}]})
    field = contract.parse_schema(text).field("x")
    assert field is not None
    return field.type


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "null",
        "[]",
        '"long"',
        "{}",
        '{"type":"struct"}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"x"}]}',
        '{"type":"struct","fields":[{"name":"x","type":{"type":"set"}}]}',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct","fields":' + "[" * 100_000,
    ],
)
def test_text_that_is_not_a_struct_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        contract.parse_schema(text)
    assert refusal.value.found == text[:200]


def test_a_field_is_found_by_its_exact_name_before_its_case() -> None:
    schema = Struct((Field("ID", Primitive("long")), Field("id", Primitive("string"))))
    assert schema.names == ("ID", "id")
    exact, by_case = schema.field("id"), schema.field("Id")
    assert exact is not None
    assert exact.type == Primitive("string")
    assert by_case is not None
    assert schema.field("other") is None


def test_the_flattened_schema_loads_and_fits_both_type_systems() -> None:
    schema = contract.load("actions")
    assert schema.names[:4] == ("version", "position", "actionType", "timestamp")
    assert actions.schema() == {f.name: contract.to_polars(f.type) for f in schema.fields}
    for field in schema.fields:
        assert contract.to_arrow(field.type) is not None


def test_every_field_of_the_contract_is_documented() -> None:
    for field in contract.load("actions").fields:
        assert field.metadata["doc"].endswith("."), field.name
        assert field.metadata["since"], field.name
        sources = {"delta", "indextables", "derived"} & field.metadata.keys()
        assert sources, f"{field.name} does not name the source of its value"


def test_missing_schemas_raise_internal_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(contract, "_CANDIDATES", (tmp_path / "a", tmp_path / "b"))
    contract.schema_directory.cache_clear()
    try:
        with pytest.raises(InternalError, match="reinstall"):
            contract.schema_directory()
    finally:
        contract.schema_directory.cache_clear()


def test_schema_is_printed_as_a_line_per_field() -> None:
    city = Field("city", Primitive("string"), nullable=False, metadata={"comment": "of the shop"})
    shop = Field("shop", Struct((city,)))
    schema = Struct((shop, Field("days", Array(Struct((Field("day", Primitive("date")),))))))
    assert str(schema).splitlines() == [
        "shop struct",
        "shop.city string not null -- of the shop",
        "days array<struct>",
        "days.element.day date",
    ]


def nested(value: Any, levels: int, around: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        value = around(value)
    return value


def test_schema_of_too_many_levels_is_refused(tmp_path: Path) -> None:
    for levels, is_readable in ((90, True), (91, False), (5_000, False)):
        before = '{"type":"struct","fields":[{"name":"x","nullable":true,"metadata":{},"type":'
        after = "}]}"
        type_ = before * levels + '"long"' + after * levels
        field = f'{{"name":"a","type":{type_},"nullable":true,"metadata":{{}}}}'
        text = f'{{"type":"struct","fields":[{field}]}}'
        log = Handmade(tmp_path / str(levels))
        log.commit(0, handmade.protocol(), handmade.metadata(schemaString=text))
        if is_readable:
            value = nested(1, levels, lambda inner: {"x": inner})
            log.table.append(pa.table({"a": [value]}))
            assert log.table.to_arrow()["a"].to_pylist() == [value]
            continue
        with pytest.raises(CorruptionError, match="nested at most 90 deep"):
            log.table.to_polars()


@pytest.mark.parametrize("around", [Array, lambda inner: Map(Primitive("string"), inner)])
def test_table_is_not_created_if_its_files_cannot_be_read(
    tmp_path: Path, around: Callable[[DataType], DataType]
) -> None:
    deep, deeper = (nested(Primitive("long"), levels, around) for levels in (49, 50))
    table = lakelog.create(tmp_path / "t", Struct((Field("a", deep),)))
    table.append(pa.table({"a": pa.array([None], contract.to_arrow(deep))}))
    assert table.to_arrow()["a"].to_pylist() == [None]
    with pytest.raises(InvalidMetadataError, match="nested too deeply") as caught:
        table.alter.add_columns(Struct((Field("b", deeper),)))
    assert caught.value.column == "b"
