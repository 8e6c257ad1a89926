"""`checkpoint`: writes the checkpoint of a version, its parts in executors.

The driver plans, distributes rows to parts, and collects from the tasks digests of the replayed
rows and of the rows in the files. All other steps are those of `lakelog.checkpoint.job`. Files of
failed or repeated tasks have names that no reader opens.

Source: Delta protocol, Checkpoints; Multi-part checkpoint; V2 Spec.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import polars as pl

from lakelog.checkpoint.compare import Comparison, differs_from_replay, with_protocol
from lakelog.checkpoint.job import CheckpointReport, ReadBack, StagedParts, run_checkpoint_job
from lakelog.checkpoint.plan import CheckpointOptions, plan_checkpoint
from lakelog.checkpoint.publish import TRY_AGAIN
from lakelog.checkpoint.state_source import StateSource
from lakelog.dialects.base import AUTO
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    CheckpointPlan,
    CheckpointWriter,
    SidecarFile,
    StagedCheckpoint,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CheckpointCorruptionError,
    CheckpointWriteError,
    InternalError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
)
from lakelog.log.context import Log
from lakelog.log.file_order import FileOrder
from lakelog.log.opening import has_lost_files
from lakelog.log.properties import deleted_file_retention_ms
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.model.contract import DataType, Decimal, Primitive, Struct, physical_name
from lakelog.spark.checkpoint_parts import (
    WRITTEN_SCHEMA,
    TaskWriter,
    Written,
    carried,
    read_written,
)
from lakelog.spark.checkpoint_rows import encoded_path
from lakelog.spark.error_display import job_failure
from lakelog.spark.package_upload import ship
from lakelog.spark.replay import Replay, replay_state
from lakelog.spark.shuffle_replay import TableLocation
from lakelog.spark.sql_functions import functions_of
from lakelog.spark.strategy import AUTO as ANY_STRATEGY
from lakelog.storage.bounded import require_openable_elsewhere
from lakelog.table import Table
from lakelog.table_functions import open as open_table


def checkpoint(
    spark: Any,
    table: Table | str | os.PathLike[str],
    version: int | None = None,
    layout: str = AUTO,
    verify: bool = True,
    parts: int | None = None,
    *,
    strategy: str = ANY_STRATEGY,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckpointReport:
    """Write the checkpoint of a version with a session's executors, verify it, and publish it.

    An existing complete checkpoint of the same version and layout is kept if it is valid, as by
    `lakelog.checkpoint.write.write_checkpoint`. If cleanup removes files while executors read them,
    the log is listed again, and the checkpoint is written from the remaining files.

    Args:
        spark: The session, classic or Connect; its executors must reach the table as the driver
            does.
        table: The table, or its location.
        version: The version; None for the latest.
        layout: ``multipart``, ``v2-json``, ``v2-parquet`` or ``v2`` (Delta), ``flattened``
            (IndexTables); ``auto`` is V2 if the table supports it, else parts.
        verify: Whether the tasks read back the files that they wrote, and the digests are compared
            before publication.
        parts: Number of files that contain file actions (approximate for V2); None: by size.
        strategy: How the state is replayed; see `lakelog.spark.strategy`.
        storage_options: Passed to the fsspec filesystem of the location, here and on executors;
            None for those with which `table` was opened.

    Raises:
        TableNotFoundError: The table does not exist.
        VersionNotFoundError: The version cannot be rebuilt.
        InvalidInputError: The layout is not allowed for the table, or has only one file; or the
            strategy is not possible.
        UnsupportedFeatureError: The table has a feature that lakelog does not support.
        CorruptionError: The log is damaged, and no valid files replace the damaged ones.
        NotFoundError: Cleanup removed files of the version in every attempt.
        CheckpointWriteError: Executors could not write the checkpoint, or it could not be
            published.
        CheckpointValidationError: The written files differ from replay; nothing was published.

    Memory: on the driver that of `lakelog.spark.replay.replay`; of a task, 65,536 rows, its
    tombstones and a row group.
    """
    opened = table if isinstance(table, Table) else open_table(table, storage_options, upkeep=False)
    log = opened.log
    require_openable_elsewhere(log.store)
    ship(spark)
    return run_checkpoint_job(
        log,
        version,
        layout,
        # Executors get the texts of statistics only, so `from_texts` changes nothing.
        lambda state, wanted, *, from_texts: _SparkPartWriter(  # noqa: ARG005 - as above
            spark, log, state, wanted, verify, parts, strategy, storage_options
        ),
        verify=verify,
    )


class _SparkPartWriter:
    """A `PartWriter` that writes files in tasks of a Spark job, their manifest in the driver."""

    def __init__(
        self,
        spark: Any,
        log: Log,
        state: State,
        layout: str,
        verify: bool,
        parts: int | None,
        strategy: str,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        self._log = log
        self._state = state
        self._verify = verify
        self._storage_options = storage_options
        self._written: list[Written] = []
        self._staged: StagedCheckpoint | None = None
        self._manifest: CheckpointWriter | None = None
        self.plan, self._replayed = self._planned(spark, layout, parts, strategy)
        self._comparison = self._comparison_of(self.plan)

    def close(self) -> None:
        """Nothing to release."""

    def abandon(self) -> None:
        if self._manifest is not None:
            with suppress(Exception):
                self._manifest.abandon()
        staged = self._staged.files if self._staged is not None else ()
        self._log.store.delete_many([*(w.path for w in self._written), *(f.path for f in staged)])

    def _planned(
        self, spark: Any, layout: str, parts: int | None, strategy: str
    ) -> tuple[CheckpointPlan, Replay]:
        """The plan, and the rows as a lazy frame."""
        log, state = self._log, self._state
        state.ensure_readable()
        table = state.table_configuration
        options = CheckpointOptions.of(state.metadata.configuration, log.dialect)
        layout = _layout(table, log.table, layout)
        draft = plan_checkpoint(
            table, log.table, state.version, options, num_files=0, layout=layout, now_ms=log.clock()
        )
        wanted = (
            *log.dialect.checkpoint_writer(log.store, draft).columns,
            *self._comparison_of(draft).columns,
        )
        replayed = replay_state(
            spark,
            state,
            strategy,
            carried(wanted),
            storage_options=self._storage_options,
            verify=self._verify,
            # The text is written only if the checkpoint has statistics as JSON.
            exact_times=not draft.stats_as_json,
        )
        plan = plan_checkpoint(
            table,
            log.table,
            state.version,
            options,
            num_files=replayed.sizes.rows,
            num_others=state.meta.height,
            layout=layout,
            now_ms=draft.created_ms,
        )
        return _with_parts(plan, parts, replayed.sizes.rows), replayed

    def _comparison_of(self, plan: CheckpointPlan) -> Comparison:
        log = self._log
        writer = log.dialect.checkpoint_writer(log.store, plan)
        # Statistics are sent as text, from which typed copies are derived again.
        columns = [name for name in writer.columns if name != STRUCT_STATISTICS]
        return Comparison.of(plan, log.dialect, columns).limited_to(writer.typed_statistics)

    def write(self, *, may_keep_sidecars: bool) -> StagedParts:  # noqa: ARG002 - all are written
        meta = self._meta()
        self._written = self._run_tasks(
            TaskWriter(
                TableLocation.of(self._log, self._storage_options),
                self.plan,
                self._comparison,
                meta,
                self._verify,
            )
        )
        files = sum((Digest.of_text(w.expected) for w in self._written), Digest())
        sidecars: tuple[SidecarFile, ...] = ()
        if self.plan.layout.startswith("v2-"):
            sidecars = tuple(
                SidecarFile(w.path, w.size_bytes, self.plan.created_ms, orjson.loads(w.tags))
                for w in self._written
            )
            self._staged = self._stage_manifest(meta, sidecars)
        else:
            parts = [written.part for written in self._written]
            self._staged = self._log.dialect.stage_parts(self._log.store, self.plan, parts, meta)
        expected = files + self._comparison.digest(meta)
        return StagedParts(self._staged, expected, sidecars, notes=(self._replayed.explain(),))

    def _meta(self) -> pl.DataFrame:
        log = self._log
        with StateSource(self._state, memory_limit=None, now_ms=log.clock()) as source:
            return with_protocol(source.meta, log.dialect.default_protocol)

    def _run_tasks(self, writer: TaskWriter) -> list[Written]:
        """Run the tasks with one Spark action, because a second action would write again."""
        plan = self.plan
        order = FileOrder.of_plan(plan, writer.meta, self._log.dialect)
        rows = _dealt(_kept_rows(self._replayed.frame, plan, self._state), plan, order)
        try:
            table = rows.mapInArrow(writer, WRITTEN_SCHEMA).toArrow()
        except LakelogError:
            raise
        except Exception as cause:
            raise self._failed(cause) from cause
        written = read_written(table)
        if plan.layout in {"multipart", "flattened"}:
            if not written:  # Spark creates no partitions, and no tasks, for an empty frame
                written = [w for n in range(plan.parts) for w in writer.write(n, ())]
            numbers = [w.partition for w in written]
            if numbers != list(range(plan.parts)):
                raise InternalError(
                    "the tasks did not write each part exactly once",
                    expected=f"parts 0 to {plan.parts - 1}",
                    found=numbers[:20],
                )
        return written

    def _failed(self, cause: Exception) -> LakelogError:
        """The error for a failed job: removed files, damage found by tasks, or another failure."""
        if has_lost_files(self._log, self._state.segment):
            return NotFoundError(
                "files of the version were removed while executors read them",
                path=self._log.table,
                version=self.plan.version,
                hint="try again when no cleanup is running",
            )
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        found = next((line[:300] for line in lines if any(m in line for m in _DAMAGE)), None)
        base = self._state.base
        if found is not None and base is not None:
            return CheckpointCorruptionError(
                f"the checkpoint of version {base.checkpoint.version} cannot be read: {found}",
                path=base.checkpoint.paths[0],
                version=base.checkpoint.version,
                hint="nothing was published; restore the checkpoint",
            )
        return CheckpointWriteError(
            f"executors could not write the checkpoint: {job_failure(cause)}",
            path=self._log.table,
            version=self.plan.version,
            hint=TRY_AGAIN,
        )

    def _stage_manifest(
        self, meta: pl.DataFrame, sidecars: tuple[SidecarFile, ...]
    ) -> StagedCheckpoint:
        """The manifest of the sidecars, written as one that keeps all of them."""
        log = self._log
        writer = log.dialect.checkpoint_writer(log.store, replace(self.plan, kept=sidecars))
        self._manifest = writer
        writer.write_meta(meta)
        return writer.finish()

    def read_back(self, parts: StagedParts) -> ReadBack:
        """The tasks have read their files; the driver reads the manifest."""
        version = self.plan.version
        for each in self._written:
            if each.problem:
                raise differs_from_replay(each.problem, each.path, version)
        found = sum((Digest.of_text(w.found) for w in self._written), Digest())
        if self.plan.layout.startswith("v2-"):
            found += self._read_manifest(parts)
        return ReadBack(found, sum(w.plain_bytes for w in self._written))

    def _read_manifest(self, parts: StagedParts) -> Digest:
        log, staged = self._log, parts.staged
        reader = log.dialect.open_checkpoint(log.store, staged.checkpoint)
        named = set(reader.files_read()) - set(staged.checkpoint.paths)
        written = {sidecar.path for sidecar in parts.sidecars}
        if named != written:
            raise differs_from_replay(
                "the manifest names unexpected sidecars",
                staged.checkpoint.paths[0],
                self.plan.version,
                len(written),
                len(named),
            )
        return self._comparison.digest(reader.read_meta())

    def differing_path(self, parts: StagedParts) -> str | None:  # noqa: ARG002 - not searched for
        return None

    def published(self) -> Sequence[str]:
        return ()


_DAMAGE = ("FAILED_READ_FILE", "USER_RAISED_EXCEPTION", "MalformedLogError", "InvalidActionError")
"""Parts of Spark's message if a task found a damaged checkpoint."""


def _layout(table: TableConfiguration, path: str, asked: str) -> str:
    """The layout to plan with, one with several files."""
    known = table.dialect.distributed_layouts
    if asked == AUTO:
        return "v2" if table.supports("v2Checkpoint") else known[0]
    if asked in table.dialect.layouts and asked not in known:
        raise InvalidInputError(
            (
                f"executors write only checkpoints of several files, and {asked} is written "
                "by one process"
            ),
            path=path,
            expected=", ".join((AUTO, *known)),
            found=asked,
            hint="use another layout, or Table.checkpoint",
        )
    return asked


def _with_parts(plan: CheckpointPlan, parts: int | None, rows: int) -> CheckpointPlan:
    if parts is None:
        return plan
    least = 2 if plan.layout == "multipart" else 1
    if parts < least:
        raise InvalidInputError(
            f"a checkpoint of this layout ({plan.layout}) needs more parts",
            expected=f"{least} or more",
            found=parts,
        )
    return replace(plan, parts=parts, part_actions=max(1, -(-rows // parts)))


def _kept_rows(frame: Any, plan: CheckpointPlan, state: State) -> Any:
    """File actions, without tombstones that are no longer retained."""
    sql = functions_of(frame)
    minimum = plan.created_ms - deleted_file_retention_ms(state.metadata.configuration)
    deleted = sql.coalesce(sql.col("deletionTimestamp"), sql.lit(0)) > sql.lit(minimum)
    add, remove = (sql.col("actionType") == sql.lit(kind) for kind in actions.FILE_ACTIONS)
    return frame.filter(add | (remove & deleted))


def _dealt(rows: Any, plan: CheckpointPlan, order: FileOrder) -> Any:
    """Rows in one partition per part, as the format requires; sidecars have no fixed assignment."""
    sql = functions_of(rows)
    if plan.layout == "multipart":
        # Spark's hash partitioning is the protocol's: pmod(hash(key), parts).
        keys = [sql.coalesce(sql.col(PATH_TEXT), encoded_path(sql.col("path")))]
        keys += [sql.col("dvId")] if plan.deletion_vectors else []
        return rows.repartition(plan.parts, *keys)
    if plan.layout == "flattened" and plan.parts > 1:
        number = sql.crc32(sql.col("path").cast("binary")) % sql.lit(plan.parts)
        return rows.repartitionById(plan.parts, number.cast("int"))
    if plan.parts <= 1:
        return rows.coalesce(1)
    # Approximately in the order of files, by a sample of the rows; each task sorts its own rows.
    return rows.repartitionByRange(plan.parts, *_order_keys(order, rows))


def _order_keys(order: FileOrder, rows: Any) -> list[Any]:
    """The keys of an order as Spark columns, which are only used to distribute rows."""
    sql = functions_of(rows)
    keys = []
    for name in order.partition_columns:
        field = order.schema.field(name)
        physical = name if field is None else physical_name(field, order.mapping)
        text = sql.try_element_at(sql.col("partitionValues"), sql.lit(physical))
        keys.append(_typed(text, None if field is None else field.type))
    for path in order.leading if "stats" in rows.columns else ():
        type_: DataType = order.schema
        position = "$.minValues"
        for name in path:
            field = type_.field(name) if isinstance(type_, Struct) else None
            assert field is not None
            position += f"['{physical_name(field, order.mapping)}']"
            type_ = field.type
        keys.append(_typed(sql.get_json_object(sql.col("stats"), position), type_))
    return [*keys, sql.col("path")]


def _typed(text: Any, type_: DataType | None) -> Any:
    """A text cast to a type with the order of its type, if Spark has it."""
    if isinstance(type_, Decimal):
        return text.try_cast(f"decimal({type_.precision},{type_.scale})")
    if isinstance(type_, Primitive) and type_.name in _ORDERED_TYPES:
        return text.try_cast(_SPARK_NAMES.get(type_.name, type_.name))
    return text


_SPARK_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_ORDERED_TYPES = frozenset(
    "long integer short byte float double boolean date timestamp timestamp_ntz".split()
)
