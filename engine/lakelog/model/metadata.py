"""`Protocol` and `Metadata`: the two actions that every state has once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from lakelog.errors import CorruptionError, InvalidInputError, UnsupportedFeatureError
from lakelog.lazy import cached_property
from lakelog.model import actions, contract

CLUSTERING = "delta.clustering"
"""Metadata domain with the clustering columns of a table."""

CONSTRAINT_PROPERTY = "delta.constraints."
"""Prefix of properties with CHECK constraints."""

MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
"""Property with the greatest column id that was assigned."""

_NO_COLUMNS = '{"type":"struct","fields":[]}'
_MAPPING_READER = 2
_MAPPING_MODES = ("none", "name", "id")


@dataclass(frozen=True)
class Protocol:
    """Protocol versions and features; lists are None if absent (Delta protocol, Protocol
    Evolution).
    """

    min_reader_version: int
    min_writer_version: int | None
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @property
    def honours_column_mapping(self) -> bool:
        """Whether readers apply ``delta.columnMapping.mode`` (Delta protocol, Reader Requirements
        for Column Mapping). Either feature list is enough: Delta Lake 3.1 upgraded tables from 2/7
        to 3/7 with the feature in the writers' list only.
        """
        listed = (*(self.reader_features or ()), *(self.writer_features or ()))
        return self.min_reader_version == _MAPPING_READER or "columnMapping" in listed

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Protocol:
        """From one flattened protocol row."""
        return Protocol(
            row["minReaderVersion"],
            row.get("minWriterVersion"),
            _names(row.get("readerFeatures")),
            _names(row.get("writerFeatures")),
        )


@dataclass(frozen=True)
class Metadata:
    """Schema, partitioning and properties of a table (Delta protocol, Change Metadata)."""

    id: str | None
    name: str | None
    description: str | None
    format_provider: str | None
    format_options: Mapping[str, str | None]
    schema_string: str | None
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str | None]
    created_time: int | None

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Metadata:
        """From one flattened metaData row."""
        return Metadata(
            row.get("metadataId"),
            row.get("name"),
            row.get("description"),
            row.get("formatProvider"),
            dict(row.get("formatOptions") or {}),
            row.get("schemaString"),
            tuple(dict.fromkeys(_names(row.get("partitionColumns")) or ())),
            dict(row.get("configuration") or {}),
            row.get("createdTime"),
        )

    @property
    def schema_json(self) -> str:
        """The schema as StructType JSON. A table without one, such as that of a pipeline of
        Databricks before its first run, has no columns; Delta on Spark, Metadata.schema.
        """
        return _NO_COLUMNS if self.schema_string is None else self.schema_string

    @cached_property
    def schema(self) -> contract.Struct:
        """The table's schema; CorruptionError if it is invalid, or has duplicate columns."""
        try:
            schema = contract.parse_schema(self.schema_json)
        except InvalidInputError as cause:
            raise CorruptionError(
                "the metadata's schema cannot be parsed",
                expected=cause.expected,
                found=cause.found,
                hint="file paths and sizes can still be read without it",
            ) from cause
        repeated = _repeated(schema)
        if repeated is not None:
            raise CorruptionError(
                "two columns of the metadata's schema have the same name",
                expected="names that are unique",
                found=repeated,
                hint="file paths and sizes can still be read without it",
            )
        return schema

    @cached_property
    def mapped_schema(self) -> contract.Struct:
        """The schema, if it is valid for column mapping; checked once, which takes milliseconds."""
        _require_mapped(self.schema, self.column_mapping_mode)
        return self.schema

    @property
    def constraints(self) -> dict[str, str | None]:
        """The CHECK constraints: property key to SQL expression."""
        return {
            key: text
            for key, text in self.configuration.items()
            if key.lower().startswith(CONSTRAINT_PROPERTY)
        }

    @property
    def stamped_from(self) -> int | None:
        """First version whose in-commit timestamp applies, if it has one; None if they are not
        enabled (Delta protocol, Recommendations for Readers of Tables with In-Commit Timestamps).
        """
        for suffix in ("", "-preview"):  # the names before the feature was final
            if is_on(self.configuration, f"delta.enableInCommitTimestamps{suffix}"):
                break
        else:
            return None
        key = f"delta.inCommitTimestampEnablementVersion{suffix}"
        text = self.configuration.get(key) or ""
        return int(text) if text.isascii() and text.isdecimal() else 0

    @property
    def max_column_id(self) -> int:
        """The greatest column id that was assigned; 0 if it is not recorded."""
        text = self.configuration.get(MAX_COLUMN_ID) or ""
        return int(text) if text.isdecimal() else 0

    @property
    def column_mapping_mode(self) -> str:
        """``none``, ``name`` or ``id``; applies if `Protocol.honours_column_mapping`."""
        return (self.configuration.get("delta.columnMapping.mode") or "none").lower()


def canonical_json(text: Any) -> Any:
    """Equal texts for equal JSON, such as that of schemas; what is not JSON text is returned."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return text


def is_on(configuration: Mapping[str, str | None], key: str) -> bool:
    """Whether a Boolean property is true, as Spark reads it: in any case."""
    return (configuration.get(key) or "").lower() == "true"


def in_any_case(configuration: Mapping[str, str | None], key: str) -> str | None:
    """A property whose key is not case-sensitive, as ``spark.indextables.*``; None if not set."""
    exact = configuration.get(key)
    if exact is not None:
        return exact
    lower, length = key.lower(), len(key)
    # Lengths first, because a table may register thousands of mappings.
    alike = (v for k, v in configuration.items() if len(k) == length and k.lower() == lower)
    return next(alike, None)


def mapping_mode(protocol: Protocol, metadata: Metadata) -> str:
    """Column mapping mode if readers apply it, for writers."""
    return metadata.column_mapping_mode if protocol.honours_column_mapping else "none"


def honoured_mapping(protocol: Protocol, metadata: Metadata) -> str:
    """The mapping mode that readers apply; raises if it is unknown, or the columns of files are."""
    mode = mapping_mode(protocol, metadata)
    if mode not in _MAPPING_MODES:
        raise UnsupportedFeatureError(
            "unknown column mapping mode",
            path="delta.columnMapping.mode",
            expected="none, name or id",
            found=mode,
            hint="file paths and sizes can still be read without it",
        )
    if mode != "none":
        _ = metadata.mapped_schema
    return mode


def _require_mapped(schema: contract.Struct, mode: str) -> None:
    """Refuse missing or repeated physical names, and ids in mode ``id`` (Delta protocol, Column
    Mapping).
    """
    names: set[tuple[tuple[str, ...], str]] = set()
    ids: set[int] = set()
    for at in contract.fields_of(schema):
        name = at.field.metadata.get(contract.PHYSICAL_NAME)
        number = at.field.metadata.get(contract.COLUMN_ID)
        if not isinstance(name, str) or (at.path[:-1], name) in names:
            raise _unmapped(at, contract.PHYSICAL_NAME, name)
        names.add((at.path[:-1], name))
        if mode == "id":
            if type(number) is not int or number in ids:
                raise _unmapped(at, contract.COLUMN_ID, number)
            ids.add(number)


def moved_column(before: Metadata, after: Metadata) -> str | None:
    """A column that files have under another name than later metadata, so that readers would find
    null: column mapping was removed, or a mapped table was replaced.
    """
    was, now = _paths_in_files(before), _paths_in_files(after)
    known, used = set(was.values()), set(now.values())
    moved = (p for p, own in now.items() if own not in known and was.get(p, own) not in used)
    return ".".join(path) if (path := next(moved, None)) is not None else None


def _paths_in_files(metadata: Metadata) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The paths of all columns, and those in files."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    for path, field in contract.fields_of(metadata.schema):
        above = path[:-1]
        while above not in found:  # element, key and value are the same in both
            above = above[:-1]
        name = contract.physical_name(field, metadata.column_mapping_mode)
        found[path] = (*found[above], *path[len(above) : -1], name)
    return found


def _unmapped(at: contract.Located, key: str, found: object) -> CorruptionError:
    return CorruptionError(
        f"the table maps columns, and that of {at.text!r} in files is not determined",
        expected=f"a {key} that no other column has",
        found=found,
        hint="repair the metadata; file paths and sizes can still be read without it",
    )


def last_protocol(meta: pl.DataFrame) -> Protocol | None:
    """The last protocol among non-file actions; None if there is none."""
    row = _last(meta, "protocol")
    return Protocol.from_row(row) if row is not None else None


def last_metadata(meta: pl.DataFrame) -> Metadata | None:
    """The last metaData among non-file actions; None if there is none."""
    row = _last(meta, "metaData")
    return Metadata.from_row(row) if row is not None else None


def _last(meta: pl.DataFrame, kind: str) -> dict[str, Any] | None:
    rows = actions.of_type(meta, kind)[-1:] if meta.height else meta
    return rows.row(0, named=True) if rows.height else None


def _names(values: Any) -> tuple[str, ...] | None:
    return None if values is None else tuple(v for v in values if v is not None)


def _repeated(type_: contract.DataType) -> str | None:
    """A name that two fields of one struct have, which typed frames do not allow, or None."""
    match type_:
        case contract.Struct(fields):
            names = type_.names
            if len(set(names)) < len(names):
                return next(name for name in names if names.count(name) > 1)
            inner = [field.type for field in fields]
        case contract.Array(element, _):
            inner = [element]
        case contract.Map(key, value, _):
            inner = [key, value]
        case _:
            return None
    return next((name for child in inner if (name := _repeated(child)) is not None), None)


def clustering_paths(record: str) -> tuple[tuple[str, ...], ...]:
    """Physical paths of the domain `CLUSTERING`; ValueError, TypeError or AttributeError."""
    columns = json.loads(record).get("clusteringColumns") or []
    paths = ([each] if isinstance(each, str) else each for each in columns)
    return tuple(tuple(str(part) for part in path) for path in paths)
