"""Metadata, protocols and frames of actions for the tests of commit validation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol

V12 = Protocol(1, 2)


def column(
    name: str, type_: Any = "long", *, nullable: bool = True, **metadata: Any
) -> dict[str, Any]:
    """One column; ``meta`` has the keys of its metadata that contain a dot."""
    return {
        "name": name,
        "type": type_,
        "nullable": nullable,
        "metadata": {**metadata.pop("meta", {}), **metadata},
    }


def mapped(name: str, number: int, type_: Any = "long", physical: str | None = None) -> Any:
    """A column of a table with column mapping."""
    keys = {"delta.columnMapping.id": number}
    return column(
        name, type_, meta={**keys, "delta.columnMapping.physicalName": physical or f"col-{number}"}
    )


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    """A struct type."""
    return {"type": "struct", "fields": list(columns)}


def table(
    *columns: dict[str, Any],
    by: Sequence[str] = (),
    properties: Mapping[str, str | None] | None = None,
    **more: Any,
) -> Metadata:
    """Metadata of a table with `columns` (default: id and name), partitioned `by`."""
    columns = columns or (column("id"), column("name", "string"))
    body: dict[str, Any] = {
        "id": "id-0",
        "name": None,
        "description": None,
        "format_provider": "parquet",
        "format_options": {},
        "schema_string": json.dumps(struct(*columns)),
        "partition_columns": tuple(by),
        "configuration": dict(properties or {}),
        "created_time": None,
    }
    return Metadata(**{**body, **more})


def add(path: str | None = "a.parquet", **more: Any) -> dict[str, Any]:
    """A row of an add."""
    row: dict[str, Any] = {"actionType": "add", "path": path, "partitionValues": {}, "size": 1}
    return {**row, "modificationTime": 1, "dataChange": True, **more}


def remove(path: str = "a.parquet", **more: Any) -> dict[str, Any]:
    """A row of a remove."""
    return {"actionType": "remove", "path": path, "dataChange": True, **more}


def cdc(path: str = "_change_data/c.parquet", **more: Any) -> dict[str, Any]:
    """A row of a cdc."""
    row = {"actionType": "cdc", "path": path, "partitionValues": {}, "size": 1}
    return {**row, "dataChange": False, **more}


def vector(where: str = "v" * 20, kind: str = "u", offset: int | None = 1) -> dict[str, Any]:
    """The columns of a deletion vector."""
    place = {"dvStorageType": kind, "dvPathOrInline": where, "dvOffset": offset}
    return {**place, "dvSizeInBytes": 4, "dvCardinality": 1}


def rows(*given: Mapping[str, Any]) -> pl.DataFrame:
    """Rows as a narrow frame in the contract's types."""
    names = sorted({name for row in given for name in row})
    full = actions.schema()
    return pl.DataFrame(
        [{name: row.get(name) for name in names} for row in given],
        schema={name: full[name] for name in names} or {"actionType": pl.String},
        orient="row",
    )
