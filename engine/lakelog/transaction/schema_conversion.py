"""Converts schemas of callers (lakelog, JSON, Arrow, Polars) to the contract's StructType."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import orjson
import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import Struct


class ArrowSchema(Protocol):
    """A schema or a field of any Arrow library (Arrow PyCapsule interface)."""

    def __arrow_c_schema__(self) -> object: ...


SchemaLike: TypeAlias = (
    Struct | str | Mapping[str, Any] | pa.Schema | ArrowSchema | Sequence[ArrowSchema]
)
"""A sequence has the fields."""


def struct_of(schema: SchemaLike) -> Struct:
    """A schema as the contract's type."""
    if isinstance(schema, Struct):
        return schema
    if isinstance(schema, str):
        return contract.parse_schema(schema)
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
        return contract.from_arrow(pl.DataFrame(schema=polars).to_arrow().schema)
    return contract.from_arrow(_arrow_schema(schema))


def _arrow_schema(schema: ArrowSchema | Sequence[ArrowSchema]) -> pa.Schema:
    try:
        if isinstance(schema, list | tuple):
            return pa.schema([pa.field(field) for field in schema])
        field = pa.field(schema)
        # The interface exports a schema as a struct without a name.
        is_schema = pa.types.is_struct(field.type) and not field.name
        return pa.schema(field.type.fields if is_schema else [field])
    except (pa.ArrowException, TypeError, ValueError) as cause:
        raise InvalidInputError(
            "invalid schema",
            expected="lakelog.model.contract.Struct, StructType JSON, a Polars schema, or a schema "
            "or fields of pyarrow, deltalake or another Arrow library",
            found=type(schema).__name__,
        ) from cause


def schema_text(schema: SchemaLike) -> str:
    """A schema as the StructType JSON of ``schemaString``; errors as `struct_of`."""
    return orjson.dumps(contract.to_json(struct_of(schema))).decode()
