"""Column mapping: assigns ids and physical names to columns.

A column that is at the path of an old one is that column, and keeps its id and its name in the
data files, so that a schema given without them (a pyarrow or Polars one) loses nothing. A new one
gets the next id and a name of its own.

Source: Delta protocol, Column Mapping; Writer Requirements for Column Mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from lakelog.model import contract
from lakelog.model.contract import fields_of
from lakelog.model.metadata import Metadata

MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_MAPPED = ("name", "id")


def assign(metadata: Metadata, before: Metadata | None, new_id: Callable[[], str]) -> Metadata:
    """The metadata with an id and a physical name on every column, where columns are mapped."""
    if metadata.column_mapping_mode not in _MAPPED or metadata.schema_string is None:
        return metadata
    schema = contract.parse_schema(metadata.schema_string)
    old = before.schema if before is not None else contract.Struct(())
    was_mapped = before is not None and before.column_mapping_mode in _MAPPED
    known = {at.path: _mapping_of(at.field, was_mapped) for at in fields_of(old)}
    taken = {
        int(found)
        for struct in (schema, old)
        for at in fields_of(struct)
        if type(found := at.field.metadata.get(contract.COLUMN_ID)) is int
    }
    kept = (m.configuration.get(MAX_COLUMN_ID) for m in (metadata, before) if m is not None)
    greatest = max([0, *taken, *(int(text) for text in kept if text and text.isdecimal())])

    def mapped(field: contract.Field, path: tuple[str, ...]) -> contract.Field:
        nonlocal greatest
        found = {**known.get(path, {}), **field.metadata}
        if contract.COLUMN_ID not in found:
            greatest += 1
            found[contract.COLUMN_ID] = greatest
        if contract.PHYSICAL_NAME not in found:
            found[contract.PHYSICAL_NAME] = f"col-{new_id()}"
        return replace(field, metadata=found)

    settled = _each_field(schema, (), mapped)
    return replace(
        metadata,
        schema_string=orjson.dumps(contract.to_json(settled)).decode(),
        configuration={**metadata.configuration, MAX_COLUMN_ID: str(greatest)},
    )


def _mapping_of(field: contract.Field, was_mapped: bool) -> Mapping[str, Any]:
    # A mode that the protocol did not obey has given no names: the files have the columns' own.
    found: dict[str, Any] = {contract.PHYSICAL_NAME: field.name}
    if was_mapped:
        found |= {k: v for k, v in field.metadata.items() if k in found or k == contract.COLUMN_ID}
    return found


def _each_field(
    type_: contract.DataType,
    path: tuple[str, ...],
    change: Callable[[contract.Field, tuple[str, ...]], contract.Field],
) -> contract.DataType:
    """The type with every struct field changed, each before the fields inside it."""
    match type_:
        case contract.Struct(fields):
            return contract.Struct(
                tuple(
                    replace(field, type=_each_field(field.type, at, change))
                    for at, field in (
                        ((*path, old.name), change(old, (*path, old.name))) for old in fields
                    )
                )
            )
        case contract.Array():
            element = _each_field(type_.element, (*path, "element"), change)
            return replace(type_, element=element)
        case contract.Map():
            key = _each_field(type_.key, (*path, "key"), change)
            return replace(type_, key=key, value=_each_field(type_.value, (*path, "value"), change))
    return type_
