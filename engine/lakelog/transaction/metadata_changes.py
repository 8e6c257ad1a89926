"""Derives new metadata and a new protocol from requested changes. Pure.

Source: Delta protocol, Change Metadata; Protocol Evolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

from lakelog.dialects.base import Dialect
from lakelog.dialects.delta.protocol import FEATURE_PROPERTY
from lakelog.errors import InvalidInputError
from lakelog.model.metadata import Metadata, Protocol, is_on
from lakelog.transaction import column_mapping, row_tracking
from lakelog.transaction.action_input import stage_one, stage_table
from lakelog.transaction.metadata_rows import metadata_row, protocol_row
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import SchemaLike, schema_text


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
            merged.pop(key, None)
            if value is not None:
                merged[key] = _property(key, value)
    if schema is not None:
        changes["schemaString"] = schema_text(schema)
    if partition_by is not None:
        changes["partitionColumns"] = list(partition_by)
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
    """The columns that a caller gives, by keywords or as a table of one row."""
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
    """Refuse a table and keywords at once, where they do not go together."""
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


def settled_metadata(metadata: Metadata, before: Metadata | None, runtime: Runtime) -> Metadata:
    """The metadata as it is written: without new requests for features, which the protocol
    answers, and with the names that row tracking and the ids that column mapping need.
    """
    configuration = {
        key: value
        for key, value in metadata.configuration.items()
        if not key.lower().startswith(FEATURE_PROPERTY)
        or (before is not None and before.configuration.get(key) == value)
    }
    if is_on(configuration, row_tracking.ENABLED):
        for key, prefix in (
            (row_tracking.ROW_ID_COLUMN, "_row-id-col-"),
            (row_tracking.ROW_VERSION_COLUMN, "_row-commit-version-col-"),
        ):
            kept = before.configuration.get(key) if before is not None else None
            configuration.setdefault(key, kept or prefix + runtime.new_id())
    return column_mapping.assign(
        replace(metadata, configuration=configuration), before, runtime.new_id
    )
