"""Converts schemas of callers (lakelog, JSON, Arrow, Polars) to the contract's StructType."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson
import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import Struct

SchemaLike: TypeAlias = Struct | str | Mapping[str, Any] | pa.Schema


def struct_of(schema: SchemaLike) -> Struct:
    """A schema as the contract's type."""
    if isinstance(schema, Struct):
        return schema
    if isinstance(schema, str):
        return contract.parse_schema(schema)
    if isinstance(schema, pa.Schema):
        return contract.from_arrow(schema)
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
    raise InvalidInputError(
        "invalid schema",
        expected="lakelog.model.contract.Struct, StructType JSON, a pyarrow or a Polars schema",
        found=type(schema).__name__,
    )


def schema_text(schema: SchemaLike) -> str:
    """A schema as the StructType JSON of ``schemaString``; errors as `struct_of`."""
    return orjson.dumps(contract.to_json(struct_of(schema))).decode()
