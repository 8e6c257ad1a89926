"""Adds the new columns of incoming rows to a table's schema. Pure.

Source: Delta Lake, schema evolution on write (``mergeSchema``).
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakelog.model.contract import Array, DataType, Field, Map, Struct
from lakelog.transaction.schema_conversion import struct_of


def merged_schema(table: Struct, rows: pa.Schema) -> Struct:
    """The schema under which files of the table and new rows can both be read."""
    known = [field for field in rows if not pa.types.is_null(field.type)]
    merged = _merged(table, struct_of(pa.schema(known)))
    assert isinstance(merged, Struct)
    return merged


def _merged(old: DataType, new: DataType) -> DataType:
    match old, new:
        case Struct(fields), Struct():
            given: dict[str, Field] = {}
            added = []
            for field in new.fields:
                match = old.field(field.name)
                if match is None:
                    added.append(_nullable(field))
                else:
                    given[match.name] = field
            kept = [
                replace(f, type=_merged(f.type, given[f.name].type)) if f.name in given else f
                for f in fields
            ]
            return Struct((*kept, *added))
        case Array(), Array():
            return replace(old, element=_merged(old.element, new.element))
        case Map(), Map():
            return replace(old, key=_merged(old.key, new.key), value=_merged(old.value, new.value))
    return old


def _nullable(field: Field) -> Field:
    return Field(field.name, _nullable_type(field.type))


def _nullable_type(type_: DataType) -> DataType:
    match type_:
        case Struct(fields):
            return Struct(tuple(_nullable(f) for f in fields))
        case Array(element, _):
            return Array(_nullable_type(element))
        case Map(key, value, _):
            return Map(_nullable_type(key), _nullable_type(value))
    return type_
