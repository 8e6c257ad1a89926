"""The Arrow schemas of checkpoint Parquet files.

They equal those of Delta Lake on Spark: the same fields in the same order, with the same types,
everything nullable except the keys of maps, because other readers reject different schemas. Field
types are those of the contract; their order is Spark's. Timestamps are 64-bit microseconds, which
Spark writes with the corresponding ``spark.sql.parquet.outputTimestampType``; INT96, its default,
is deprecated, has no bounds in footers, and cannot be combined with ``timestamp_ntz`` in pyarrow.

Omitted are fields that Spark has for proposals which are not in the protocol (``backReference`` and
similar), and in a V2 manifest ``stats`` and ``tags`` of ``remove``, which the protocol excludes.

Source: Delta protocol, Checkpoint Schema; Sidecar Files; V2 Spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.errors import InternalError
from lakelog.model import contract

PARTITIONS_PARSED = "partitionValues_parsed"
"""Typed copy of ``add.partitionValues``."""

_VECTOR = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality", "maxRowIndex")
_FIELDS: dict[str, tuple[str, ...]] = {
    "txn": ("appId", "version", "lastUpdated"),
    "add": (
        "path",
        "partitionValues",
        "size",
        "modificationTime",
        "dataChange",
        "tags",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
        "clusteringProvider",
    ),
    "remove": (
        "path",
        "deletionTimestamp",
        "dataChange",
        "extendedFileMetadata",
        "partitionValues",
        "size",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
    ),
    "metaData": (
        "id",
        "name",
        "description",
        "format",
        "schemaString",
        "partitionColumns",
        "configuration",
        "createdTime",
    ),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "domainMetadata": ("domain", "configuration", "removed"),
    "checkpointMetadata": ("version", "tags"),
    "sidecar": ("path", "sizeInBytes", "modificationTime", "tags"),
}
_INNER = {"deletionVector": _VECTOR, "format": ("provider", "options")}
# Fields of Spark's schema without a column in the contract.
_UNNAMED = {"maxRowIndex": pa.int64(), "version": pa.int64()}
_WIRE = Wire.of("delta")


def file_columns(
    *,
    stats_as_json: bool = True,
    partitions: pa.StructType | None = None,
    statistics: pa.StructType | None = None,
) -> list[pa.Field]:
    """The columns of file actions, ``add`` and ``remove``; a sidecar has no others."""
    more = [pa.field("stats", _type_of("add", "stats"))] if stats_as_json else []
    if partitions is not None:
        more.append(pa.field(PARTITIONS_PARSED, partitions))
    if statistics is not None:
        more.append(pa.field("stats_parsed", statistics))
    return [pa.field("add", pa.struct([*_struct("add"), *more])), _column("remove")]


def classic_schema(files: Sequence[pa.Field]) -> pa.Schema:
    """Schema of a classic checkpoint, and of each part of a multi-part one."""
    after = [_column(kind) for kind in ("metaData", "protocol", "domainMetadata")]
    return pa.schema([_column("txn"), *files, *after])


def manifest_schema(files: Sequence[pa.Field]) -> pa.Schema:
    """Schema of a V2 manifest that is Parquet."""
    return pa.schema(
        [*classic_schema(files), *(_column(kind) for kind in ("checkpointMetadata", "sidecar"))]
    )


def sidecar_schema(files: Sequence[pa.Field]) -> pa.Schema:
    """Schema of a sidecar."""
    return pa.schema(files)


def _column(kind: str) -> pa.Field:
    return pa.field(kind, pa.struct(_struct(kind)))


def _struct(kind: str) -> list[pa.Field]:
    return [pa.field(name, _type_of(kind, name)) for name in _FIELDS[kind]]


def _type_of(kind: str, name: str) -> pa.DataType:
    return _arrow(_WIRE.wrappers[kind].fields.get(name), name)


def _arrow(known: Leaf | Node | None, name: str) -> pa.DataType:
    if isinstance(known, Leaf):
        return contract.to_arrow(known.type)
    if isinstance(known, Node):
        return pa.struct(
            [(inner, _arrow(known.fields.get(inner), inner)) for inner in _INNER[name]]
        )
    return _UNNAMED[name]


def spark_schema(schema: pa.Schema) -> dict[str, Any]:
    """A checkpoint schema as Spark's StructType JSON, with everything nullable."""
    fields = tuple(contract.Field(field.name, _spark_type(field.type)) for field in schema)
    json: dict[str, Any] = contract.to_json(contract.Struct(fields))
    return json


def _spark_type(type_: pa.DataType) -> contract.DataType:
    if pa.types.is_struct(type_):
        fields = (type_.field(i) for i in range(type_.num_fields))
        return contract.Struct(
            tuple(contract.Field(field.name, _spark_type(field.type)) for field in fields)
        )
    if pa.types.is_map(type_):
        return contract.Map(_spark_type(type_.key_type), _spark_type(type_.item_type))
    if pa.types.is_list(type_):
        return contract.Array(_spark_type(type_.value_type))
    if pa.types.is_decimal(type_):
        return contract.Decimal(type_.precision, type_.scale)
    name = _SPARK_NAMES.get(type_)
    if name is None:
        raise InternalError("a checkpoint column cannot have this type", found=str(type_))
    return contract.Primitive(name)


_SPARK_NAMES = {
    contract.to_arrow(contract.Primitive(name)): name
    for name in (
        "string long integer short byte float double boolean binary date timestamp timestamp_ntz"
    ).split()
}
