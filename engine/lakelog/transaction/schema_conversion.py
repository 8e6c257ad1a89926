"""Converts schemas of callers (lakelog, JSON, Arrow, Polars) to the contract's StructType."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson
import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Decimal, Field, Map, Primitive, Struct

SchemaLike: TypeAlias = Struct | str | Mapping[str, Any] | pa.Schema

_ARROW = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}


def struct_of(schema: SchemaLike) -> Struct:
    """A schema as the contract's type.

    >>> struct_of({"id": pl.Int64, "day": pl.Date}).names
    ('id', 'day')
    """
    if isinstance(schema, Struct):
        return schema
    if isinstance(schema, str):
        return contract.parse_schema(schema)
    if isinstance(schema, pa.Schema):
        return Struct(tuple(_arrow_field(field) for field in schema))
    if isinstance(schema, Mapping):
        if schema.get("type") == "struct" and isinstance(schema.get("fields"), list | tuple):
            return contract.parse_schema(orjson.dumps(schema).decode())
        try:
            polars = pl.Schema(schema)
        except TypeError as cause:
            raise InvalidInputError(
                "invalid schema",
                expected="names to Polars dtypes, such as {'id': pl.Int64}",
                found=str(cause),
            ) from cause
        contract.require_exportable(polars)
        return struct_of(pl.DataFrame(schema=polars).to_arrow().schema)
    raise InvalidInputError(
        "invalid schema",
        expected="lakelog.model.contract.Struct, StructType JSON, a pyarrow or a Polars schema",
        found=type(schema).__name__,
    )


def schema_text(schema: SchemaLike) -> str:
    """A schema as the StructType JSON of ``schemaString``; errors as `struct_of`."""
    return orjson.dumps(contract.to_json(struct_of(schema))).decode()


def _arrow_field(field: pa.Field) -> Field:
    return Field(field.name, _arrow_type(field.name, field.type), bool(field.nullable))


def _arrow_type(name: str, type_: pa.DataType) -> DataType:
    if type_ in _ARROW:
        return Primitive(_ARROW[type_])
    kinds = pa.types
    if kinds.is_timestamp(type_):
        return Primitive("timestamp_ntz" if type_.tz is None else "timestamp")
    if kinds.is_decimal(type_):
        return _decimal(name, type_.precision, type_.scale)
    if kinds.is_struct(type_):
        return Struct(tuple(_arrow_field(field) for field in type_.fields))
    if kinds.is_map(type_):
        return Map(
            _arrow_type(name, type_.key_type),
            _arrow_type(name, type_.item_type),
            bool(type_.item_field.nullable),
        )
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return Array(_arrow_type(name, type_.value_type), bool(type_.value_field.nullable))
    if kinds.is_fixed_size_binary(type_):
        return Primitive("binary")
    if kinds.is_dictionary(type_):
        return _arrow_type(name, type_.value_type)
    raise _unknown(name, type_)


def _decimal(name: str, precision: int, scale: int) -> Decimal:
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise _unknown(name, f"decimal({precision},{scale})")
    return Decimal(precision, scale)


def _unknown(name: str, type_: object) -> InvalidInputError:
    return InvalidInputError(
        f"the type of {name!r} has no equivalent in a table's schema",
        expected="Spark's types: integers of up to 64 bits, floats, decimals, strings, binary, "
        "dates, timestamps, arrays, maps, structs",
        found=str(type_),
    )
