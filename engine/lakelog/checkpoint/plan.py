"""Decides layout, parts and columns of a checkpoint before the first byte is written. Pure.

=====================  ==========================================  ===============================
layout                 ``auto`` takes it                           refused
=====================  ==========================================  ===============================
``classic``            Delta
``multipart``          Delta, where one file would be longer than  where ``v2Checkpoint`` is
                       ``checkpoint.maxFileSize``                  supported
``v2-json``            Delta with ``delta.checkpointPolicy`` v2,   where ``v2Checkpoint`` is not
                       or where ``multipart`` would be taken and   supported
                       is forbidden
``v2-parquet``         the same, with many rows that are no file   the same
                       actions
``json``               IndexTables, small
``json-multipart``     IndexTables of protocol 3 from 100,000      below protocol 3, whose readers
                       actions, without a memory limit             would take the manifest for a
                                                                   whole checkpoint
``flattened``          IndexTables with ``columnarCommits``; from
                       100,000 actions also with a memory limit,
                       or where parts are not known or not wanted
=====================  ==========================================  ===============================

``v2`` asks for either V2 layout, ``flattened`` for one file or for several.

IndexTables' own readers know JSON alone. They ignore a flattened checkpoint and read the commits,
so cleanup keeps these (``schemas/cleanup.md``). Therefore ``auto`` takes it only if
``columnarCommits`` excludes those readers already, or if JSON does not serve: one JSON file has no
bound, and JSON parts are read whole, which no memory limit allows. The property
``spark.indextables.checkpoint.format`` replaces this rule: ``parquet`` takes ``flattened`` at any
size, ``json`` never does.

Source: Delta protocol, Checkpoint Specs; V2 Spec.
"""

from __future__ import annotations

from lakelog.checkpoint.options import CheckpointOptions
from lakelog.dialects.base import AUTO, LayoutRequest
from lakelog.dialects.indextables.dialect import LARGE_ACTIONS
from lakelog.dialects.log_content import CheckpointPlan
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CorruptionError,
    UnsupportedFeatureError,
)
from lakelog.model import contract
from lakelog.model.metadata import Metadata

SIDECAR_ACTIONS = 50_000
"""Actions of a sidecar, about; Spark's own number."""

_ACTION_BYTES = 256  # of a file action in compressed Parquet, generously
_ROW_BYTES = 2_048  # of one that waits for its row group: its columns, and what is made from them
_ROW_GROUP_ROWS = 50_000
_LEAST_ROW_GROUP_ROWS = 2_000
_MOST_PARTS = 10_000


def plan_checkpoint(
    table: TableConfiguration,
    path: str,
    version: int,
    options: CheckpointOptions,
    *,
    num_files: int,
    num_others: int = 0,
    layout: str = AUTO,
    memory_limit: int | None = None,
    now_ms: int = 0,
) -> CheckpointPlan:
    """Decide what a checkpoint is to look like."""
    check_writers(table, path)
    bounded = memory_limit is not None
    chosen = choose_layout(table, path, options, num_files, num_others, layout, bounded=bounded)
    parts = count_parts(chosen, options, num_files)
    schema = _schema(table.metadata)
    rows = _ROW_GROUP_ROWS
    if memory_limit is not None:
        # Parts that are dealt by hash are all open at once, each with a row group that waits.
        waiting = parts if chosen in {"multipart", "flattened"} else 1
        rows = memory_limit // 8 // _ROW_BYTES // max(1, waiting)
        rows = max(_LEAST_ROW_GROUP_ROWS, min(_ROW_GROUP_ROWS, rows))
    return CheckpointPlan(
        version=version,
        layout=chosen,
        parts=parts,
        schema=schema if schema is not None else contract.Struct(()),
        partition_columns=table.metadata.partition_columns,
        mapping=table.column_mapping,
        deletion_vectors=table.supports("deletionVectors"),
        stats_as_json=options.stats_as_json,
        stats_as_struct=not table.dialect.map_statistics
        and options.stats_as_struct
        and schema is not None,
        compression=options.compression,
        row_group_rows=rows,
        created_ms=now_ms,
        part_actions=part_actions(chosen, options),
    )


def choose_layout(
    table: TableConfiguration,
    path: str,
    options: CheckpointOptions,
    num_files: int,
    num_others: int = 0,
    layout: str = AUTO,
    *,
    bounded: bool = False,
) -> str:
    """The layout that is asked for, if the table allows it, or the one that suits the table."""
    request = LayoutRequest(
        path,
        layout,
        options.format,
        options.policy,
        num_files,
        num_others,
        options.multi_part and num_files > part_actions("multipart", options),
        options.part_actions,
        bounded,
    )
    return table.dialect.choose_layout(table, request)


def count_parts(layout: str, options: CheckpointOptions, num_files: int) -> int:
    """How many files the file actions are spread over."""
    if layout in {"classic", "json", "json-multipart"}:
        return 1
    least = 2 if layout == "multipart" else 1
    return min(_MOST_PARTS, max(least, -(-num_files // part_actions(layout, options))))


def part_actions(layout: str, options: CheckpointOptions) -> int:
    """Actions that one file of a layout should hold at most, by what the properties say of it and
    of the length that no file should pass.
    """
    by_bytes = max(1, options.max_file_bytes // _ACTION_BYTES)
    match layout:
        case "json-multipart":
            return options.part_actions or LARGE_ACTIONS
        case "flattened":
            return by_bytes  # actions of a part are for parts of JSON
        case "v2-json" | "v2-parquet":
            return min(options.part_actions or SIDECAR_ACTIONS, by_bytes)
        case _:
            return min(options.part_actions or by_bytes, by_bytes)


def check_writers(table: TableConfiguration, path: str) -> None:
    """Refuse a table whose checkpoints may have to hold features that are unknown here.

    Features that lakelog knows and does not commit under concern the rows of data files, or
    commits: a checkpoint says of them what the log says.
    """
    if table.protocol.min_writer_version is None:
        return
    unknown = table.rules.supported(table.protocol) - table.rules.features.keys()
    if unknown:
        raise UnsupportedFeatureError(
            "lakelog does not know what a feature requires of writers and checkpoints",
            path=path,
            expected="features that lakelog knows",
            found=", ".join(sorted(unknown)),
            hint="upgrade lakelog",
        )


def _schema(metadata: Metadata) -> contract.Struct | None:
    try:
        return metadata.schema
    except CorruptionError:
        return None  # logs exist without one; their files can be listed all the same
