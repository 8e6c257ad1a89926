"""Table properties of checkpoints, and the layout, parts and columns that result from them.

Properties have the names that Delta and IndexTables define. Precedence:

- On a Delta table, a ``delta.*`` property takes precedence over the ``spark.indextables.*``
  property with the same meaning, because other engines obey the first. Settings without a
  ``delta.*`` property are read from ``spark.indextables.*``.
- On an IndexTables table, ``delta.*`` properties of checkpoints are rejected, because no
  IndexTables engine obeys them.
- ``lakelog.checkpoint.intervalBytes`` has no counterpart and applies to both.

====================================  =================================  ======================
``spark.indextables.``                ``delta.``                         default; on Delta
====================================  =================================  ======================
``checkpoint.enabled``                .                                  true
``checkpoint.interval``               ``checkpointInterval``             10
.                                     ``checkpointPolicy``               classic
``checkpoint.compression``            .                                  snappy; zstd
``checkpoint.format``                 .                                  by protocol; none
``checkpoint.maxFileSize``            .                                  134217728 bytes
``checkpoint.actionsPerPart``         .                                  100000; none
``checkpoint.multiPart.enabled``      .                                  true
.                                     ``checkpoint.writeStatsAsJson``    true
.                                     ``checkpoint.writeStatsAsStruct``  true
``checkpoint.retention``              .                                  30 versions; none
``checkpointRetention.duration``      ``checkpointRetentionDuration``    2 hours; 2 days
``logRetention.duration``             ``logRetentionDuration``           30 days
.                                     ``deletedFileRetentionDuration``   1 week
``cleanup.enabled``                   ``enableExpiredLogCleanup``        true
``cleanup.dryRun``                    .                                  false
``cleanup.failurePolicy``             .                                  continue
====================================  =================================  ======================

Durations of ``spark.indextables.*`` are whole milliseconds, those of ``delta.*`` intervals. With
``cleanup.dryRun``, no cleanup runs after checkpoints.

Also accepted, because the reference implementation writes them: ``checkpoint.maxRetries`` (retries
of a read; lakelog's stores have their own retries), ``checkpoint.compression.enabled`` (gzip of
JSON checkpoints, read by their writer), ``checkpoint.parallelism`` and
``checkpoint.read.timeoutSeconds`` (read by `lakelog.log.properties.read_limits`, because they apply
to every read of the table) and ``checkpoint.checksumValidation.enabled`` (lakelog always verifies a
checkpoint).

Statistics are typed by default, as in Delta Lake; in the protocol's text they are not.
Source: Delta Lake, DeltaConfig; IndexTables4Spark, Checkpoint Configuration.

=====================  ==========================================  ===============================
layout                 chosen by ``auto``                           rejected
=====================  ==========================================  ===============================
``classic``            Delta
``multipart``          Delta, where one file would be longer than  where ``v2Checkpoint`` is
                       ``checkpoint.maxFileSize``                  supported
``v2-json``            Delta with ``delta.checkpointPolicy`` v2,   if ``v2Checkpoint`` is not
                       or if ``multipart`` would be chosen, and    supported
                       is forbidden
``v2-parquet``         the same, with many rows that are not file   the same
                       actions
``json``               IndexTables, small
``json-multipart``     IndexTables of protocol 3 from 100,000      below protocol 3, whose readers
                       actions, without a memory limit             would read the manifest as a
                                                                   whole checkpoint
``flattened``          IndexTables with ``columnarCommits``; from
                       100,000 actions also with a memory limit,
                       or if parts are unknown or not wanted
=====================  ==========================================  ===============================

``v2`` requests either V2 layout, ``flattened`` one or several files.

IndexTables' own readers read only JSON. They ignore a flattened checkpoint and read the commits, so
cleanup keeps the commits (``schemas/cleanup.md``). Therefore ``auto`` chooses ``flattened`` only if
``columnarCommits`` already excludes those readers, or if JSON is unsuitable: the size of one JSON
file is unbounded, and JSON parts are read whole, which a memory limit forbids. The property
``spark.indextables.checkpoint.format`` replaces this rule: ``parquet`` always chooses
``flattened``, ``json`` never does.

Source: Delta protocol, Checkpoint Specs; V2 Spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lakelog.dialects.base import AUTO, Dialect, LayoutRequest
from lakelog.dialects.log_content import PART_ACTIONS, CheckpointPlan
from lakelog.dialects.properties import CHECKPOINT_FAMILIES
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import CorruptionError, UnsupportedFeatureError
from lakelog.log.properties import DELETED_FILE_RETENTION_MS, deleted_file_retention_ms
from lakelog.model import contract
from lakelog.model.durations import LONGEST_MS, property_ms
from lakelog.model.metadata import Metadata

_DEFAULT_INTERVAL = 10
_DEFAULT_MAX_FILE_BYTES = 134_217_728

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_DELTA = "delta."
_INDEXTABLES = "spark.indextables."
_SPELLINGS = {"uncompressed": "none", "lz4_raw": "lz4"}


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoint and retention settings. None in `format`: the protocol decides; elsewhere: no
    limit. `enabled` affects automatic checkpoints only.
    """

    enabled: bool = True
    interval: int = _DEFAULT_INTERVAL
    bytes_interval: int | None = None
    policy: str = "classic"
    compression: str = "zstd"
    max_file_bytes: int = _DEFAULT_MAX_FILE_BYTES
    stats_as_json: bool = True
    stats_as_struct: bool = True
    part_actions: int | None = None
    checkpoint_retention_ms: int = 2 * _DAY_MS
    log_retention_ms: int = 30 * _DAY_MS
    deleted_file_retention_ms: int = DELETED_FILE_RETENTION_MS
    retain_versions: int | None = None
    cleanup_enabled: bool = True
    cleanup_failure_policy: str = "continue"
    format: str | None = None
    multi_part: bool = True

    @staticmethod
    def of(configuration: Mapping[str, str | None], dialect: Dialect) -> CheckpointOptions:
        """The options in a table's properties."""
        read = _Reader(configuration, dialect)
        defaults = CheckpointOptions(**asdict(dialect.checkpoint_defaults))
        interval = read.whole("checkpoint.interval", defaults.interval, "checkpointInterval")
        codec = read.text("checkpoint.compression", defaults.compression)
        parts, retained = read.text("checkpoint.actionsPerPart"), read.text("checkpoint.retention")
        part_actions = int(parts) if parts else defaults.part_actions
        multi_part = read.flag("checkpoint.multiPart.enabled")
        expired = read.text("", "", "enableExpiredLogCleanup")
        cleanup = expired or read.text("cleanup.enabled", "true")
        return CheckpointOptions(
            enabled=interval > 0 and read.flag("checkpoint.enabled"),
            interval=interval,
            bytes_interval=int(configuration.get("lakelog.checkpoint.intervalBytes") or 0) or None,
            policy=read.text("", defaults.policy, "checkpointPolicy"),
            compression=_SPELLINGS.get(codec, codec),
            max_file_bytes=read.whole("checkpoint.maxFileSize", defaults.max_file_bytes),
            stats_as_json=read.flag("", "checkpoint.writeStatsAsJson"),
            stats_as_struct=read.flag("", "checkpoint.writeStatsAsStruct"),
            part_actions=part_actions if multi_part else None,
            checkpoint_retention_ms=read.duration_ms(
                "checkpointRetention.duration",
                defaults.checkpoint_retention_ms,
                "checkpointRetentionDuration",
            ),
            log_retention_ms=read.duration_ms(
                "logRetention.duration", defaults.log_retention_ms, "logRetentionDuration"
            ),
            deleted_file_retention_ms=deleted_file_retention_ms(configuration),
            retain_versions=int(retained) if retained else defaults.retain_versions,
            cleanup_enabled=cleanup == "true" and read.text("cleanup.dryRun", "false") == "false",
            cleanup_failure_policy=read.text("cleanup.failurePolicy", "continue"),
            format=read.text("checkpoint.format") or None,
            multi_part=multi_part,
        )


class _Reader:
    """Reads properties that have been validated."""

    def __init__(self, configuration: Mapping[str, str | None], dialect: Dialect) -> None:
        owned = {
            key: value
            for key, value in configuration.items()
            if key.lower().startswith(CHECKPOINT_FAMILIES)
        }
        dialect.properties.check(owned)
        self._values = {key.lower(): value for key, value in owned.items() if value is not None}

    def text(self, key: str, default: str = "", delta: str = "") -> str:
        """A property's value in lower case; `delta` is the key of Delta, which takes precedence."""
        value = self._values.get(f"{_DELTA}{delta}".lower())
        if value is None:
            value = self._values.get(f"{_INDEXTABLES}{key}".lower(), default)
        return value.lower()

    def whole(self, key: str, default: int, delta: str = "") -> int:
        return int(self.text(key, str(default), delta))

    def flag(self, key: str, delta: str = "") -> bool:
        return self.text(key, "true", delta) == "true"

    def duration_ms(self, key: str, default_ms: int, delta: str) -> int:
        interval = self._values.get(f"{_DELTA}{delta}".lower())
        if interval is None:
            return min(self.whole(key, default_ms), LONGEST_MS)
        return property_ms(interval)


SIDECAR_ACTIONS = 50_000
"""Approximate number of actions per sidecar; the same as Delta on Spark."""

ACTION_BYTES = 256
"""Estimated length of a file action in compressed Parquet, in bytes; the minimum."""

_ROW_BYTES = 2_048  # memory of a row buffered for its row group, with derived columns
_BATCH_ROWS = 1 << 15
_ROW_GROUP_ROWS = 10_000
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
    action_bytes: int = ACTION_BYTES,
    layout: str = AUTO,
    memory_limit: int | None = None,
    now_ms: int = 0,
) -> CheckpointPlan:
    """Decide layout, parts and columns of a checkpoint."""
    check_writers(table, path)
    bounded = memory_limit is not None
    chosen = choose_layout(
        table, path, options, num_files, num_others, action_bytes, layout, bounded=bounded
    )
    parts = count_parts(chosen, options, num_files, action_bytes)
    schema = _schema(table.metadata)
    rows = _ROW_GROUP_ROWS
    if memory_limit is not None:
        # Parts that rows are hashed to are open at the same time, each with a buffered row group.
        waiting = parts if chosen in {"multipart", "flattened"} else 1
        rows = memory_limit // 32 // _ROW_BYTES // max(1, waiting)
        rows = max(_LEAST_ROW_GROUP_ROWS, min(_ROW_GROUP_ROWS, rows))
    return CheckpointPlan(
        version=version,
        layout=chosen,
        parts=parts,
        schema=schema if schema is not None else contract.Struct(()),
        partition_columns=table.metadata.partition_columns,
        configuration=table.metadata.configuration,
        mapping=table.column_mapping,
        deletion_vectors=table.supports("deletionVectors"),
        stats_as_json=options.stats_as_json,
        stats_as_struct=not table.dialect.map_statistics
        and options.stats_as_struct
        and schema is not None,
        compression=options.compression,
        row_group_rows=rows,
        batch_rows=0 if bounded else _BATCH_ROWS,
        created_ms=now_ms,
        part_actions=part_actions(chosen, options, action_bytes),
    )


def choose_layout(
    table: TableConfiguration,
    path: str,
    options: CheckpointOptions,
    num_files: int,
    num_others: int = 0,
    action_bytes: int = ACTION_BYTES,
    layout: str = AUTO,
    *,
    bounded: bool = False,
) -> str:
    """The requested layout, if the table allows it, or the one that suits the table."""
    request = LayoutRequest(
        path,
        layout,
        options.format,
        options.policy,
        num_files,
        num_others,
        options.multi_part and num_files > part_actions("multipart", options, action_bytes),
        options.part_actions,
        bounded,
    )
    return table.dialect.choose_layout(table, request)


def count_parts(
    layout: str, options: CheckpointOptions, num_files: int, action_bytes: int = ACTION_BYTES
) -> int:
    """Number of files that the file actions are distributed over."""
    if layout in {"classic", "json", "json-multipart"}:
        return 1
    least = 2 if layout == "multipart" else 1
    return min(
        _MOST_PARTS, max(least, -(-num_files // part_actions(layout, options, action_bytes)))
    )


def part_actions(layout: str, options: CheckpointOptions, action_bytes: int = ACTION_BYTES) -> int:
    """Maximum number of actions per file, from the properties and the maximum file length."""
    by_bytes = max(1, options.max_file_bytes // action_bytes)
    match layout:
        case "json-multipart":
            return options.part_actions or PART_ACTIONS
        case "flattened":
            return by_bytes  # ``actionsPerPart`` applies to JSON parts
        case "v2-json" | "v2-parquet":
            return min(options.part_actions or SIDECAR_ACTIONS, by_bytes)
        case _:
            return min(options.part_actions or by_bytes, by_bytes)


def check_writers(table: TableConfiguration, path: str) -> None:
    """Refuse protocols that are invalid, or unknown to lakelog: a file of the log might lose what
    they add to it.
    """
    if unknown := table.rules.unknown_to_writers(table.protocol):
        raise UnsupportedFeatureError(
            "the rules of the protocol for writers and checkpoints are unknown to lakelog",
            path=path,
            expected="versions and features that lakelog knows",
            found=", ".join(unknown),
            hint="upgrade lakelog",
        )
    if table.protocol.min_writer_version is not None:
        table.rules.check_lists_of_table(table.protocol, path)


def _schema(metadata: Metadata) -> contract.Struct | None:
    try:
        return metadata.schema
    except CorruptionError:
        return None  # some logs have none; their files can be listed
