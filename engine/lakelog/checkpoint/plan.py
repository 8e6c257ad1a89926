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

from dataclasses import dataclass

from lakelog.checkpoint.options import CheckpointOptions
from lakelog.dialects.base import CheckpointPlan
from lakelog.dialects.indextables.protocol import STATE_PROTOCOL, knows_flattened
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from lakelog.model import contract
from lakelog.model.metadata import Metadata, Protocol, mapping_mode
from lakelog.transaction.features import features_of, supported, supports

AUTO = "auto"
LAYOUTS = {
    "delta": ("classic", "multipart", "v2-json", "v2-parquet"),
    "indextables": ("json", "json-multipart", "flattened"),
}
"""Layouts that are written, by format."""

LARGE_ACTIONS = 100_000
"""Actions from which an IndexTables checkpoint is not a single JSON file unless it is configured to
be.
"""

SIDECAR_ACTIONS = 50_000
"""Actions of a sidecar, about; Spark's own number."""

_MANIFEST_ROWS = 10_000  # no file actions: more of them are smaller, and quicker read, as Parquet
_ACTION_BYTES = 256  # of a file action in compressed Parquet, generously
_ROW_BYTES = 2_048  # of one that waits for its row group: its columns, and what is made from them
_ROW_GROUP_ROWS = 50_000
_LEAST_ROW_GROUP_ROWS = 2_000
_MOST_PARTS = 10_000
_MULTI_PART_PROTOCOL = 3


@dataclass(frozen=True)
class Table:
    """What of a table decides how its checkpoint looks.

    Attributes:
        format: ``delta`` or ``indextables``.
        path: Its location, for errors.
        protocol: Its protocol at the version.
        metadata: Its metadata at the version.
    """

    format: str
    path: str
    protocol: Protocol
    metadata: Metadata


def plan_checkpoint(
    table: Table,
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
    check_writers(table)
    bounded = memory_limit is not None
    chosen = choose_layout(table, options, num_files, num_others, layout, bounded=bounded)
    parts = count_parts(chosen, options, num_files)
    schema = _schema(table.metadata)
    rows = _ROW_GROUP_ROWS
    if memory_limit is not None:
        # Parts that are dealt by hash are all open at once, each with a row group that waits.
        waiting = parts if chosen in {"multipart", "flattened"} else 1
        rows = memory_limit // 8 // _ROW_BYTES // max(1, waiting)
        rows = max(_LEAST_ROW_GROUP_ROWS, min(_ROW_GROUP_ROWS, rows))
    delta = table.format == "delta"
    return CheckpointPlan(
        version=version,
        layout=chosen,
        parts=parts,
        schema=schema if schema is not None else contract.Struct(()),
        partition_columns=table.metadata.partition_columns,
        mapping=mapping_mode(table.protocol, table.metadata) if delta else "none",
        deletion_vectors=delta and supports(table.protocol, "deletionVectors"),
        stats_as_json=options.stats_as_json,
        stats_as_struct=delta and options.stats_as_struct and schema is not None,
        compression=options.compression,
        row_group_rows=rows,
        created_ms=now_ms,
        part_actions=part_actions(chosen, options),
    )


def choose_layout(
    table: Table,
    options: CheckpointOptions,
    num_files: int,
    num_others: int = 0,
    layout: str = AUTO,
    *,
    bounded: bool = False,
) -> str:
    """The layout that is asked for, if the table allows it, or the one that suits the table."""
    known = LAYOUTS[table.format]
    if table.format == "delta":
        v2 = supports(table.protocol, "v2Checkpoint")
        either = "v2-json" if num_others <= _MANIFEST_ROWS else "v2-parquet"
        if layout == AUTO:
            in_parts = options.multi_part and num_files > part_actions("multipart", options)
            if v2 and (options.policy == "v2" or in_parts):
                return either
            return "multipart" if in_parts else "classic"
        found = either if layout == "v2" else layout
        if found == "multipart" and v2:
            raise _refused(
                table,
                layout,
                "the table supports v2Checkpoint, which forbids checkpoints in parts",
                "classic, v2-json, v2-parquet",
                "omit layout, or use v2-json, which splits the checkpoint into sidecars",
            )
        if found.startswith("v2-") and not v2:
            raise _refused(
                table,
                layout,
                "the table's protocol lacks the feature v2Checkpoint",
                "classic, multipart",
                "set delta.checkpointPolicy to v2, which adds the feature",
            )
    else:
        reader = table.protocol.min_reader_version or 1
        parts = reader >= _MULTI_PART_PROTOCOL
        if layout == AUTO:
            return _indextables_layout(table, options, num_files + num_others, bounded=bounded)
        found = layout
        if found == "json-multipart" and not parts:
            raise _refused(
                table,
                layout,
                "readers of this protocol would read the manifest as the whole checkpoint",
                "json, flattened",
                f"raise the protocol to {_MULTI_PART_PROTOCOL}, or use layout flattened",
            )
    if found not in known:
        raise InvalidInputError(
            "unknown checkpoint layout",
            path=table.path,
            expected=", ".join((AUTO, *known) if table.format != "delta" else (AUTO, *known, "v2")),
            found=layout,
        )
    return found


def _indextables_layout(
    table: Table, options: CheckpointOptions, num_actions: int, *, bounded: bool
) -> str:
    own = knows_flattened(table.protocol.reader_features)
    if options.format == "parquet" or (own and options.format is None):
        return "flattened"
    if num_actions < LARGE_ACTIONS:
        return "json"
    reader = table.protocol.min_reader_version or 1
    known = _MULTI_PART_PROTOCOL <= reader < STATE_PROTOCOL
    if known and options.part_actions is not None and (options.format == "json" or not bounded):
        return "json-multipart"
    return "json" if options.format == "json" else "flattened"


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


def check_writers(table: Table) -> None:
    """Refuse a table whose checkpoints may have to hold features that are unknown here.

    Features that lakelog knows and does not commit under concern the rows of data files, or
    commits: a checkpoint says of them what the log says.
    """
    if table.protocol.min_writer_version is None:
        return
    unknown = supported(table.protocol, table.format) - set(features_of(table.format))
    if unknown:
        raise UnsupportedFeatureError(
            "lakelog does not know what a feature requires of writers and checkpoints",
            path=table.path,
            expected="features that lakelog knows",
            found=", ".join(sorted(unknown)),
            hint="upgrade lakelog",
        )


def _schema(metadata: Metadata) -> contract.Struct | None:
    try:
        return metadata.schema
    except CorruptionError:
        return None  # logs exist without one; their files can be listed all the same


def _refused(table: Table, layout: str, reason: str, expected: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        f"checkpoint layout {layout} is not allowed here: {reason}",
        path=table.path,
        expected=expected,
        found=layout,
        hint=hint,
    )
