"""Derives new metadata and a new protocol from requested changes, and their rows. Pure.

A column at the path of an existing column is the same column, and keeps its id and physical name,
so that a schema without them (from pyarrow or Polars) loses nothing. A new column, and one of
another type in a table whose files are all replaced, gets the next id and a new physical name.

Source: Delta protocol, Column Mapping; Writer Requirements for Column Mapping. Delta protocol,
Change Metadata; Protocol Evolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.features import FEATURE_PROPERTY
from lakelog.dialects.properties import spellings
from lakelog.dialects.protocol_rules import TableConfiguration, without_comment
from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model import actions, contract
from lakelog.model.column_names import spelled
from lakelog.model.contract import fields_of
from lakelog.model.metadata import MAX_COLUMN_ID, Metadata, Protocol, is_on
from lakelog.transaction import row_tracking
from lakelog.transaction.action_input import MAP, stage_one, stage_table
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import SchemaLike, schema_text, struct_of


def protocol_row(protocol: Protocol) -> dict[str, Any]:
    """The columns of a ``protocol`` row; `Protocol.from_row` reads them back."""
    lists = (protocol.reader_features, protocol.writer_features)
    readers, writers = (None if names is None else list(names) for names in lists)
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }


def metadata_row(metadata: Metadata) -> dict[str, Any]:
    """The columns of a ``metaData`` row; `Metadata.from_row` reads them back."""
    return {
        "metadataId": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "formatProvider": metadata.format_provider,
        "formatOptions": dict(metadata.format_options),
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }


def fill_row(row: dict[str, Any], now_ms: int) -> None:
    """`with_file_defaults` for one row, in place."""
    kind = row["actionType"]
    row.setdefault("dataChange", kind != "cdc")
    if kind != "remove":
        row.setdefault("partitionValues", {})
    if kind == "add":
        row.setdefault("modificationTime", now_ms)
    elif kind == "remove":
        row.setdefault("deletionTimestamp", now_ms)
        if "partitionValues" in row and "size" in row:
            row.setdefault("extendedFileMetadata", True)


def with_file_defaults(files: pl.DataFrame, now_ms: int) -> pl.DataFrame:
    """Fill in defaults of file actions, and ``extendedFileMetadata`` of removes."""
    kinds = files["actionType"]
    is_remove = kinds == "remove"
    columns = {
        "dataChange": _filled(files, "dataChange", kinds != "cdc"),
    }
    some_removes = bool(is_remove.any())
    if not some_removes or not is_remove.all():
        is_add = kinds == "add"
        columns["partitionValues"] = _with_empty_maps(files, ~is_remove)
        columns["modificationTime"] = _filled(files, "modificationTime", _where(is_add, now_ms))
    if some_removes:
        columns["deletionTimestamp"] = _filled(
            files, "deletionTimestamp", _where(is_remove, now_ms)
        )
        known = actions.conform(files, ("partitionValues", "size")).get_columns()
        extended = is_remove & known[0].is_not_null() & known[1].is_not_null()
        yes = pl.Series([True, None], dtype=pl.Boolean).gather((~extended).cast(pl.UInt32))
        columns["extendedFileMetadata"] = _filled(files, "extendedFileMetadata", yes)
    return files.with_columns(series.alias(name) for name, series in columns.items())


def _where(mask: pl.Series, value: int) -> pl.Series:
    pair = pl.Series([None, value], dtype=pl.Int64)
    return pair.gather(mask.cast(pl.UInt32))


def _filled(files: pl.DataFrame, column: str, default: pl.Series) -> pl.Series:
    if column not in files.columns:
        return default
    given = files[column]
    return given if not given.null_count() else given.zip_with(given.is_not_null(), default)


def _with_empty_maps(files: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    if "partitionValues" in files.columns:
        given = files["partitionValues"]
        if not given.null_count():
            return given
    else:
        given = pl.Series([None], dtype=MAP).new_from_index(0, files.height)
    # After the existing maps, an empty map and a null, to gather from.
    pool = pl.concat([given, pl.Series([{}, None], dtype=MAP)])
    own = pl.int_range(files.height, eager=True)
    empty, null = files.height, files.height + 1
    index = own.zip_with(
        given.is_not_null(), pl.Series([null, empty]).gather(wanted.cast(pl.UInt32))
    )
    return pool.gather(index)


HIGH_WATER_MARK = "delta.identity.highWaterMark"


def without_identity_marks(schema: contract.Struct) -> contract.Struct:
    """A schema without high water marks of identity columns."""
    return contract.Struct(
        tuple(
            replace(f, metadata={k: v for k, v in f.metadata.items() if k != HIGH_WATER_MARK})
            for f in schema.fields
        )
    )


def with_identity_marks(schema: contract.Struct, marks: Mapping[str, int]) -> contract.Struct:
    """A schema with other high water marks of identity columns."""
    return contract.Struct(
        tuple(
            replace(f, metadata={**f.metadata, HIGH_WATER_MARK: marks[f.name]})
            if f.name in marks
            else f
            for f in schema.fields
        )
    )


_OF_MAPPING = "delta.columnMapping."
CHECKPOINT_PROTECTION = "delta.requireCheckpointProtectionBeforeVersion"
_MAPPED = ("name", "id")


def assign(
    metadata: Metadata,
    before: Metadata | None,
    new_id: Callable[[], str],
    is_replaced: Callable[[], bool] = lambda: False,
) -> Metadata:
    """The metadata with an id and a physical name per column, if column mapping is enabled. If all
    files are replaced, a column of another type is a new one.
    """
    if metadata.column_mapping_mode not in _MAPPED or metadata.schema_string is None:
        return metadata  # `check_metadata` refuses to write it without a schema
    schema = contract.parse_schema(metadata.schema_string)
    old = before.schema if before is not None else contract.Struct(())
    was_mapped = before is not None and before.column_mapping_mode in _MAPPED
    types = {at.path: at.field.type for at in fields_of(schema)}
    known = {at.path: _mapping_of(at.field, was_mapped) for at in fields_of(old)}
    changed = [
        at.path
        for at in fields_of(old)
        if at.path in types and not _is_same(at.field.type, types[at.path])
    ]
    if changed and is_replaced():
        known = {path: mapping for path, mapping in known.items() if path not in changed}
    taken = {
        int(found)
        for struct in (schema, old)
        for at in fields_of(struct)
        if type(found := at.field.metadata.get(contract.COLUMN_ID)) is int
    }
    given = {at.field.metadata.get(contract.COLUMN_ID) for at in fields_of(schema)} - {None}
    greatest = max([0 if before is None else before.max_column_id, *taken])

    def mapped(field: contract.Field, path: tuple[str, ...]) -> contract.Field:
        nonlocal greatest
        own = known.get(path, {})
        # A column that was renamed has taken the id along; another one may have its old name.
        is_moved = contract.COLUMN_ID not in field.metadata and own.get(contract.COLUMN_ID) in given
        found = {**({} if is_moved else own), **field.metadata}
        if not was_mapped and own:
            found |= own
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


def _is_same(old: contract.DataType, new: contract.DataType) -> bool:
    """Whether a column of this type is the same one; fields of structs are compared on their own. A
    schema with wider types has the ids of its columns.
    """
    match old, new:
        case (contract.VOID, _) | (contract.Struct(), contract.Struct()):
            return True
        case contract.Array(), contract.Array():
            return _is_same(old.element, new.element)
        case contract.Map(), contract.Map():
            return _is_same(old.key, new.key) and _is_same(old.value, new.value)
    return old == new


def _mapping_of(field: contract.Field, was_mapped: bool) -> Mapping[str, Any]:
    # A mode that the protocol did not support has assigned no names: files have the columns' names.
    found: dict[str, Any] = {contract.PHYSICAL_NAME: field.name}
    if was_mapped:
        found |= {k: v for k, v in field.metadata.items() if k in found or k == contract.COLUMN_ID}
    return found


def _without_mapping(metadata: Metadata, before: Metadata | None) -> Metadata:
    """The metadata of a table without mapping: ids and physical names of new columns, as of another
    table's schema, are dropped, because Delta on Spark would never enable mapping again.
    """
    text = metadata.schema_string
    if text is None or _OF_MAPPING not in text:
        return metadata
    old = before.schema if before is not None else contract.Struct(())
    known = {at.path: at.field.metadata for at in fields_of(old)}

    def bare(field: contract.Field, path: tuple[str, ...]) -> contract.Field:
        own = known.get(path, {})
        kept = {
            key: value
            for key, value in field.metadata.items()
            if not key.startswith(_OF_MAPPING) or own.get(key) == value
        }
        return replace(field, metadata=kept)

    given = contract.parse_schema(text)
    settled = _each_field(given, (), bare)
    if settled == given:
        return metadata  # in the text of its writer, which may name types that are not known here
    return replace(metadata, schema_string=orjson.dumps(contract.to_json(settled)).decode())


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


def without_comments(schema: contract.Struct) -> contract.DataType:
    """A schema without the comments of its columns, and of the fields inside them."""
    return _each_field(schema, (), lambda field, _: without_comment(field))


def change_metadata(
    current: Metadata,
    dialect: Dialect,
    table: Any,
    fields: Mapping[str, Any],
    *,
    schema: SchemaLike | None = None,
    partition_by: Sequence[str] | None = None,
    configuration: Mapping[str, str | None] | None = None,
    name: str | EllipsisType | None = ...,
    description: str | EllipsisType | None = ...,
) -> Metadata:
    """The metadata with changes; see `Transaction.set_metadata`."""
    changes = _fields("metaData", dialect.contract_key, table, fields)
    merged = dict(current.configuration)
    for properties in (changes.pop("configuration", None), configuration):
        for key, value in (properties or {}).items():
            for same in spellings(merged, key):
                del merged[same]
            if value is not None:
                merged[key] = _property(key, value)
    if schema is not None:
        changes["schemaString"] = schema_text(schema)
    if partition_by is not None:
        columns = current.schema if schema is None else struct_of(schema)
        changes["partitionColumns"] = spelled(partition_by, columns.names)
    if not isinstance(name, EllipsisType):
        changes["name"] = name
    if not isinstance(description, EllipsisType):
        changes["description"] = description
    return Metadata.from_row(metadata_row(current) | changes | {"configuration": merged})


def change_protocol(
    current: Protocol,
    dialect: Dialect,
    table: Any,
    fields: Mapping[str, Any],
    features: Sequence[str] = (),
) -> Protocol:
    """The protocol with changes; see `Transaction.set_protocol`."""
    changes = _fields("protocol", dialect.contract_key, table, fields)
    protocol = Protocol.from_row(protocol_row(current) | changes)
    return dialect.protocol_rules.upgrade(protocol, features) if features else protocol


def _fields(kind: str, dialect: str, table: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a call, from keywords or a table of one row."""
    if table is None:
        row = stage_one(dialect, kind, fields)
    else:
        only_one(table, fields)
        rows = stage_table(dialect, kind, table).rows(named=True)
        if len(rows) != 1:
            raise InvalidInputError(f"only one {kind} is allowed", expected=1, found=len(rows))
        row = rows[0]
    return {k: v for k, v in row.items() if v is not None and k != "actionType"}


def only_one(table: Any, fields: Mapping[str, Any]) -> None:
    """Raise if a table and keywords are given together."""
    if fields:
        raise InvalidInputError(
            "pass a table or keywords, not both",
            found=f"{type(table).__name__} and {', '.join(fields)}",
        )


def _property(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(
            "the value of a property must be a string",
            expected=f"{key}='...'",
            found=f"{key}={value!r}",
        )
    return value


def settled_metadata(
    table: TableConfiguration,
    before: Metadata | None,
    runtime: Runtime,
    is_replaced: Callable[[], bool] = lambda: False,
    named_as: Metadata | None = None,
) -> Metadata:
    """The metadata to write: without feature requests, with tracking and mapping names; those of
    `named_as`, if files of it are restored. `is_replaced` as in `assign`.
    """
    metadata = table.metadata
    configuration = {
        key: value
        for key, value in metadata.configuration.items()
        if not key.lower().startswith(FEATURE_PROPERTY)
        or (before is not None and before.configuration.get(key) == value)
    }
    known = {} if before is None else before.configuration
    tracked = with_tracking_columns(configuration, known, runtime.new_id)
    settled = replace(metadata, configuration=tracked)
    given, assigned = configuration.get(MAX_COLUMN_ID), known.get(MAX_COLUMN_ID)
    if table.column_mapping != "none":
        settled = assign(settled, named_as or before, runtime.new_id, is_replaced)
        assigned = settled.configuration.get(MAX_COLUMN_ID)
    else:
        settled = _without_mapping(settled, before)
        if given is None and not table.supports("columnMapping"):
            return settled  # no column had an id
    if before is None and given and given.isdecimal() and int(given) >= int(assigned or 0):
        # As of a table with dropped columns, whose schema and properties the new one has.
        return replace(settled, configuration={**settled.configuration, MAX_COLUMN_ID: given})
    if given not in (known.get(MAX_COLUMN_ID), assigned):
        raise InvalidPropertyError(
            "the greatest column id cannot be set or removed",
            path=MAX_COLUMN_ID,
            expected=assigned or "no value",
            found=given,
            hint="leave the property out",
        )
    return settled


def with_tracking_columns(
    configuration: Mapping[str, str | None],
    before: Mapping[str, str | None],
    new_id: Callable[[], str],
) -> dict[str, str | None]:
    """Properties with the names of row tracking's columns: those `before`, also while it is off,
    because files have such columns; or new ones if it is enabled.
    """
    found = dict(configuration)
    for key, prefix in (
        (row_tracking.ROW_ID_COLUMN, "_row-id-col-"),
        (row_tracking.ROW_VERSION_COLUMN, "_row-commit-version-col-"),
    ):
        if name := before.get(key):
            found.setdefault(key, name)
        elif is_on(found, row_tracking.ENABLED):
            found.setdefault(key, prefix + new_id())
    return found
