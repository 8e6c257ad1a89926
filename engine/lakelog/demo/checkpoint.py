"""The demonstration table's classic checkpoint, with the Parquet schema that Spark writes.

Source: Delta protocol, Checkpoint Schema.
"""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

_MAP = pa.map_(pa.string(), pa.string())
_DELETION_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "maxRowIndex": pa.int64(),
    }
)
SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "tags": _MAP,
                "deletionVector": _DELETION_VECTOR,
                "baseRowId": pa.int64(),
                "defaultRowCommitVersion": pa.int64(),
                "clusteringProvider": pa.string(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "deletionVector": _DELETION_VECTOR,
                "baseRowId": pa.int64(),
                "defaultRowCommitVersion": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _MAP,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
        "domainMetadata": pa.struct(
            {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
        ),
    }
)
"""The columns of a classic checkpoint that Spark writes with JSON statistics only."""


def checkpoint_bytes(
    state: list[dict[str, object]], adds: pl.DataFrame, removes: pl.DataFrame
) -> bytes:
    """The Parquet bytes of a classic checkpoint.

    Args:
        state: The actions that are no file actions, each as ``{wrapper: body}``; maps as lists of
            pairs.
        adds: Live files: path, day, region, size, modificationTime, stats.
        removes: Tombstones: path, day, region, size, deletionTimestamp.
    """
    table = pa.concat_tables(
        [
            pa.Table.from_pylist(state, schema=SCHEMA),
            _rows("add", adds, {"dataChange": False}),
            _rows("remove", removes, {"dataChange": False, "extendedFileMetadata": True}),
        ]
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="snappy")
    return buffer.getvalue()


def _rows(action: str, frame: pl.DataFrame, constants: dict[str, bool]) -> pa.Table:
    """Rows of one action: the frame's columns and the constants, all else null."""
    count = frame.height
    given = {name: pa.repeat(pa.scalar(value), count) for name, value in constants.items()}
    given |= {name: frame[name].to_arrow() for name in frame.columns}
    given["partitionValues"] = _partition_values(frame)
    struct = SCHEMA.field(action).type
    children = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
        for field in struct
    ]
    arrays = [
        pa.StructArray.from_arrays(children, fields=list(struct))
        if field.name == action
        else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _partition_values(frame: pl.DataFrame) -> pa.Array:
    names = ["day", "region"]
    values = frame.select(pl.concat_list(names).alias("values")).explode("values")["values"]
    offsets = pa.array(np.arange(frame.height + 1, dtype=np.int32) * len(names))
    keys = pa.array(names * frame.height, pa.string())
    return pa.MapArray.from_arrays(offsets, keys, values.to_arrow().cast(pa.string()))
