"""The Arrow schema of data files, and rows converted to it.

Fields carry physical names and, where columns are mapped, their ids. All may be null in Parquet, as
Delta writes them: what may not be null is checked before. Texts, bytes and lists have wide
offsets, so that no chunk is too long for them; the files are the same.

Source: Delta protocol, Writer Requirements for Column Mapping.
"""

from __future__ import annotations

import pyarrow as pa

from lakelog.model import contract

_FIELD_ID = b"PARQUET:field_id"


def wide_type(type_: contract.DataType, mapping: str | None = None) -> pa.DataType:
    """The Arrow type of a type, with wide offsets and nulls everywhere."""
    match type_:
        case contract.Array(element, _):
            return pa.large_list(pa.field("element", wide_type(element, mapping)))
        case contract.Map(key, value, _):
            return pa.map_(wide_type(key, mapping), wide_type(value, mapping))
        case contract.Struct(fields):
            return pa.struct([wide_field(field, mapping) for field in fields])
    arrow = contract.to_arrow(type_)
    if pa.types.is_string(arrow):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(arrow) else arrow


def wide_field(field: contract.Field, mapping: str | None = None) -> pa.Field:
    """A field of `wide_type`; under a mapping with its physical name and its id."""
    arrow = wide_type(field.type, mapping)
    if mapping is None:
        return pa.field(field.name, arrow)
    number = field.metadata.get(contract.COLUMN_ID) if mapping != "none" else None
    metadata = None if number is None else {_FIELD_ID: str(number)}
    return pa.field(contract.physical_name(field, mapping), arrow, metadata=metadata)


def renamed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array whose struct fields have other names; no value is copied."""
    if array.type.equals(type_) or not pa.types.is_nested(type_):
        return array
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        fields = [type_.field(index) for index in range(type_.num_fields)]
        children = [renamed(array.field(i), f.type) for i, f in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])  # masks go with arrays that begin at 0
    if pa.types.is_map(type_):
        keys, items = renamed(array.keys, type_.key_type), renamed(array.items, type_.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=nulls)
    values = renamed(array.values, type_.value_type)
    return pa.LargeListArray.from_arrays(array.offsets, values, type=type_, mask=nulls)
