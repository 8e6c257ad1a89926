"""The demonstration table's classic checkpoint, as `lakelog.dialects.delta` writes it.

Source: Delta protocol, Checkpoint Schema; Last Checkpoint File Schema.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.base import CheckpointPlan, StagedFile
from lakelog.dialects.delta.checkpoint_manifest import FileActionCounts, pointer_bytes
from lakelog.dialects.delta.checkpoint_rows import action_rows, encoded
from lakelog.dialects.delta.checkpoint_schema import classic_schema, file_columns
from lakelog.dialects.delta.names import classic_name
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.ndjson import Blob, decode_lines
from lakelog.model import contract

SCHEMA = classic_schema(file_columns())
"""The columns of a classic checkpoint with JSON statistics only."""


def build_checkpoint(
    version: int, state: Sequence[Mapping[str, object]], adds: pl.DataFrame, removes: pl.DataFrame
) -> tuple[bytes, bytes]:
    """The Parquet of a classic checkpoint, and the pointer to it."""
    name = classic_name(version)
    lines = b"".join(orjson.dumps(action) + b"\n" for action in state)
    meta = decode_lines([Blob(None, name, lines)], Wire.of("delta")).meta
    kinds = meta["actionType"].unique(maintain_order=True)
    tables = [action_rows(meta.filter(pl.col("actionType") == k), k, SCHEMA) for k in kinds]
    gone = removes.with_columns(pl.lit(value=True).alias("extendedFileMetadata"))
    tables += [
        action_rows(encoded(_with_partitions(files)), kind, SCHEMA)
        for kind, files in (("add", adds), ("remove", gone))
    ]
    table = pa.concat_tables(tables)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True, store_schema=False)
    plan = CheckpointPlan(version, "classic", 1, contract.Struct(()), ("day", "region"))
    file = StagedFile(name, name, len(buffer.getvalue()), table.num_rows)
    held = FileActionCounts(adds.height, removes.height)
    return buffer.getvalue(), pointer_bytes(plan, [file], held, SCHEMA)


def _with_partitions(files: pl.DataFrame) -> pl.DataFrame:
    """Files with ``partitionValues`` in place of a column for each."""
    names = ["day", "region"]
    values = files.select(pl.concat_list(names).alias("values")).explode("values")["values"]
    offsets = pa.array(np.arange(files.height + 1, dtype=np.int32) * len(names))
    keys = pa.array(names * files.height, pa.string())
    maps = pa.MapArray.from_arrays(offsets, keys, values.to_arrow().cast(pa.string()))
    return files.drop(names).with_columns(pl.Series("partitionValues", maps))
