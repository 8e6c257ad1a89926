"""Converts Arrow's view and large types of text and bytes to plain ones.

A Parquet file may carry the Arrow schema of its writer, and columns then come out in that writer's
layouts: views, or dictionaries. They hold the same values, and several of Arrow's kernels refuse
them, above all inside structs.
"""

from __future__ import annotations

import pyarrow as pa


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every type as `plain_type` gives it; equal to it where nothing differs."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without views and dictionaries, at any depth.

    >>> str(plain_type(pa.struct([("a", pa.string_view()), ("b", pa.int64())])))
    'struct<a: string, b: int64>'
    """
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = type_.key_field, type_.item_field
        return pa.map_(key.with_type(plain_type(key.type)), item.with_type(plain_type(item.type)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) else type_
