"""`checkpoint`: writes the checkpoint of a version, its parts in executors.

The driver replays for planning, deals the rows to parts, and gathers what the tasks
answer: the digests of what came out of replay and of what is in the files, which have to be the
same before anything is published. Publishing is that of every checkpoint: files in order, the
pointer last, forward only. A task that fails for good publishes nothing; what it or another attempt
left has names that no reader looks at.

Source: Delta protocol, Checkpoints; Multi-part checkpoint; V2 Spec.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson
import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.compare import Comparison, with_protocol
from lakelog.checkpoint.options import CheckpointOptions
from lakelog.checkpoint.plan import plan_checkpoint
from lakelog.checkpoint.publish import publish
from lakelog.checkpoint.report import CheckpointReport
from lakelog.checkpoint.state_source import StateSource
from lakelog.checkpoint.verify import independent_state, verify_one
from lakelog.checkpoint.write import (
    attempt,
    checkpoints_there,
    log_checkpoint,
    remove_replaced,
    report_kept,
)
from lakelog.dialects.base import AUTO
from lakelog.dialects.delta.checkpoint_manifest import FileActionCounts, pointer_bytes
from lakelog.dialects.delta.checkpoint_schema import classic_schema
from lakelog.dialects.delta.checkpoint_typed import file_action_columns
from lakelog.dialects.delta.names import LAST_CHECKPOINT, rank_of
from lakelog.dialects.digest import Digest
from lakelog.dialects.indextables.flattened_writer import stage_parts
from lakelog.dialects.indextables.staging import Staging
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    Checkpoint,
    CheckpointPlan,
    SidecarFile,
    StagedCheckpoint,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CheckpointCorruptionError,
    CheckpointValidationError,
    CheckpointWriteError,
    InternalError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.log.context import Log
from lakelog.log.opening import has_left
from lakelog.log.properties import deleted_file_retention_ms
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.spark.checkpoint_parts import (
    WRITTEN_SCHEMA,
    PartWriter,
    Written,
    carried,
    read_written,
)
from lakelog.spark.checkpoint_rows import encoded_path
from lakelog.spark.package_upload import ship
from lakelog.spark.replay import Replay, replay_state
from lakelog.spark.shuffle_replay import TableLocation
from lakelog.spark.sql_functions import functions_of
from lakelog.spark.strategy import AUTO as ANY_STRATEGY
from lakelog.storage.bounded import require_openable_elsewhere
from lakelog.table import Table
from lakelog.table import open as open_table


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
    """Write the checkpoint of a version with a session's executors, prove it, and publish it.

    A complete checkpoint of the same version and layout that is there already is kept if it is
    valid, as `lakelog.checkpoint.write.write_checkpoint` does. If cleanup removes files while
    executors read them, the log is listed again, and the checkpoint is written from what remains.

    Args:
        spark: The session, classic or Connect; its executors reach the table as the driver does.
        table: The table, or its location.
        version: The version; None is the latest.
        layout: ``multipart``, ``v2-json``, ``v2-parquet`` or ``v2`` (Delta), ``flattened``
            (IndexTables); ``auto`` is V2 where the table supports it, else parts.
        verify: Whether what was written is read back, by the tasks that wrote it, and compared
            before it is published.
        parts: Files that the file actions are spread over; None is by size. For V2 about so many.
        strategy: How the state is replayed; see `lakelog.spark.strategy`.
        storage_options: Passed to the fsspec filesystem of the location, here and on executors.

    Raises:
        TableNotFoundError: The table does not exist.
        VersionNotFoundError: The version cannot be rebuilt.
        InvalidInputError: The layout is not allowed here, or is one file, or the strategy cannot
            serve.
        UnsupportedFeatureError: The table needs what lakelog does not honour.
        CorruptionError: The log is damaged, and nothing valid is behind the damage.
        NotFoundError: Cleanup removed what the version is read from in every attempt.
        CheckpointWriteError: Executors could not write it, or it could not be published.
        CheckpointValidationError: What was written is not what replay gives; nothing was published.

    Memory: on the driver that of `lakelog.spark.replay.replay`; of a task, 65,536 rows, its
    tombstones and a row group.
    """
    begin = time.perf_counter()
    opened = table if isinstance(table, Table) else open_table(table, storage_options, upkeep=False)
    log = opened.log
    require_openable_elsewhere(log.store)
    ship(spark)
    with telemetry.span("checkpoint.write", path=log.table, format=log.dialect.name) as span:
        job, report = attempt(
            log,
            version,
            lambda state: _Job(spark, log, state, layout, verify, parts, strategy, storage_options),
        )
        report = replace(report, seconds=time.perf_counter() - begin)
        span.set(version=report.version, layout=report.layout, size_bytes=report.size_bytes)
    log_checkpoint(log, report, job.plain_bytes)
    return report


@dataclass
class _Job:
    """One attempt at one checkpoint, from one state."""

    spark: Any
    log: Log
    state: State
    layout: str
    verify: bool
    parts: int | None
    strategy: str
    storage_options: Mapping[str, Any] | None
    plain_bytes: int = 0

    def run(self) -> CheckpointReport:
        """Write it, or keep what is there."""
        plan, replayed = self._planned()
        there = checkpoints_there(self.log, plan)
        for each in there:
            report = verify_one(self.log, each)
            if report.verdict in {"proved", "unprovable"}:
                return report_kept(self.log, report)
        if self.state.base is not None and self.state.base.checkpoint in there:
            self.state = independent_state(self.log, plan.version) or self.state
            plan, replayed = self._planned()
        meta = self._meta()
        comparison = self._comparison(plan)
        begin = time.perf_counter()
        written = self._write(
            plan,
            replayed,
            PartWriter(
                TableLocation.of(self.log.table, self.storage_options, self.log.dialect.name),
                plan,
                comparison,
                self.state.metadata.configuration,
                meta,
                self.verify,
            ),
        )
        mine = [w.path for w in written]
        try:
            staged, beside = self._stage(plan, meta, written, comparison)
            mine += (file.path for file in staged.files)
            self._count(written)
            expected = sum((Digest.of_text(w.expected) for w in written), comparison.digest(meta))
            if self.verify:
                found = sum((Digest.of_text(w.found) for w in written), beside)
                self._require_same(plan, written, expected, found)
            published = publish(self.log.store, self.log.dialect, staged)
        except CheckpointWriteError as error:
            # A file that may still get its name may name others: then cleanup has to look first.
            if not isinstance(error.__cause__, OutcomeUnknownError):
                self._delete(mine)
            raise
        except BaseException:
            self._delete(mine)
            raise
        notes = [replayed.explain(), *([published.note] if published.note is not None else [])]
        if self.verify:
            notes += remove_replaced(self.log, there, staged)
        files = {*(w.target for w in written), *(file.target for file in staged.files)}
        sizes = sum(w.size_bytes for w in written)
        own = {w.target for w in written}
        sizes += sum(file.size_bytes for file in staged.files if file.target not in own)
        return CheckpointReport(
            version=plan.version,
            layout=plan.layout,
            paths=tuple(sorted(files)),
            size_bytes=sizes,
            num_adds=expected.counts.get("add", 0),
            num_removes=expected.counts.get("remove", 0),
            num_actions=expected.total,
            parts=len(files),
            reused_files=0,
            verify_seconds=0.0,
            verified=self.verify,
            pointer_moved=published.pointer_moved,
            digest=expected,
            seconds=time.perf_counter() - begin,
            notes=tuple(notes),
        )

    # --- planning ------------------------------------------------------------------------------

    def _planned(self) -> tuple[CheckpointPlan, Replay]:
        """What it is to look like, and the rows it is made of, as a lazy frame."""
        log, state = self.log, self.state
        state.ensure_readable()
        table = state.table_configuration
        options = CheckpointOptions.of(state.metadata.configuration, log.dialect)
        layout = _layout(table, log.table, self.layout)
        draft = plan_checkpoint(
            table, log.table, state.version, options, num_files=0, layout=layout, now_ms=log.clock()
        )
        wanted = (
            *log.dialect.checkpoint_writer(log.store, draft).columns,
            *self._comparison(draft).columns,
        )
        replayed = replay_state(
            self.spark,
            state,
            self.strategy,
            carried(wanted),
            storage_options=self.storage_options,
            verify=self.verify,
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
        return _with_parts(plan, self.parts, replayed.sizes.rows), replayed

    def _meta(self) -> pl.DataFrame:
        with StateSource(self.state, memory_limit=None, now_ms=self.log.clock()) as source:
            return with_protocol(source.meta, self.log.dialect.default_protocol)

    def _comparison(self, plan: CheckpointPlan) -> Comparison:
        log = self.log
        writer = log.dialect.checkpoint_writer(log.store, plan)
        # Statistics travel as text, and typed copies are made from it again.
        columns = [name for name in writer.columns if name != STRUCT_STATISTICS]
        comparison = Comparison.of(plan, log.dialect, columns)
        if comparison.typed:
            _, copies = file_action_columns(plan, self.state.metadata.configuration)
            comparison = comparison.limited_to(copies.statistics if copies is not None else None)
        return comparison

    # --- writing -------------------------------------------------------------------------------

    def _write(self, plan: CheckpointPlan, replayed: Replay, writer: PartWriter) -> list[Written]:
        """Let the tasks write, exactly once: a second action on the rows would write again."""
        rows = _dealt(_kept_rows(replayed.frame, plan, self.state), plan)
        try:
            table = rows.mapInArrow(writer, WRITTEN_SCHEMA).toArrow()
        except LakelogError:
            raise
        except Exception as cause:
            raise self._failed(plan, cause) from cause
        written = read_written(table)
        if plan.layout in {"multipart", "flattened"}:
            if not written:  # of rows that are none Spark makes no partitions, and so no tasks
                written = [w for n in range(plan.parts) for w in writer.write(n, ())]
            numbers = [w.partition for w in written]
            if numbers != list(range(plan.parts)):
                raise InternalError(
                    "the tasks did not write each part exactly once",
                    expected=f"parts 0 to {plan.parts - 1}",
                    found=numbers[:20],
                )
        return written

    def _failed(self, plan: CheckpointPlan, cause: Exception) -> LakelogError:
        """What a failed job means: removed files, damage that tasks met, or a failure."""
        if has_left(self.log, self.state.segment):
            return NotFoundError(
                "files of the version were removed while executors read them",
                path=self.log.table,
                version=plan.version,
                hint="try again when no cleanup is running",
            )
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        told = next((line for line in lines if any(m in line for m in _DAMAGE)), None)
        base = self.state.base
        if told is not None and base is not None:
            return CheckpointCorruptionError(
                f"the checkpoint of version {base.checkpoint.version} cannot be read: {told[:300]}",
                path=base.checkpoint.paths[0],
                version=base.checkpoint.version,
                hint="nothing was published; restore the checkpoint",
            )
        last = next(
            (line for line in reversed(lines) if "Error" in line), lines[0] if lines else ""
        )
        return CheckpointWriteError(
            f"executors could not write the checkpoint: {last[:300]}",
            path=self.log.table,
            version=plan.version,
            hint="the previous checkpoint is unchanged; try again",
        )

    def _stage(
        self,
        plan: CheckpointPlan,
        meta: pl.DataFrame,
        written: Sequence[Written],
        comparison: Comparison,
    ) -> tuple[StagedCheckpoint, Digest]:
        """The checkpoint over the files, and the digest of what the driver wrote next to them."""
        store = self.log.store
        held = sum((Digest.of_text(w.expected) for w in written), Digest()).counts
        files = [w.staged for w in written]
        if plan.layout == "flattened":
            staging = Staging(store, plan, files=files, num_adds=held.get("add", 0))
            staging.learn(meta)
            return stage_parts(staging), Digest()
        if plan.layout == "multipart":
            columns, _ = file_action_columns(plan, self.state.metadata.configuration)
            counted = FileActionCounts(held.get("add", 0), held.get("remove", 0))
            pointer = pointer_bytes(plan, files, counted, classic_schema(columns))
            made = Checkpoint(
                plan.version,
                plan.layout,
                rank_of(plan.layout, len(files)),
                tuple(file.path for file in files),
                tuple(file.size_bytes for file in files),
            )
            return StagedCheckpoint(made, tuple(files), (LAST_CHECKPOINT, pointer)), Digest()
        return self._manifest(plan, meta, written, comparison)

    def _manifest(
        self,
        plan: CheckpointPlan,
        meta: pl.DataFrame,
        written: Sequence[Written],
        comparison: Comparison,
    ) -> tuple[StagedCheckpoint, Digest]:
        """The manifest that names the sidecars, as one that keeps them all."""
        sidecars = tuple(
            SidecarFile(w.path, w.size_bytes, plan.created_ms, orjson.loads(w.tags))
            for w in written
        )
        writer = self.log.dialect.checkpoint_writer(self.log.store, replace(plan, kept=sidecars))
        try:
            writer.write_meta(meta)
            staged = writer.finish()
            if not self.verify:
                return staged, Digest()
            return staged, self._read_manifest(plan, staged, written, comparison)
        except BaseException:
            with suppress(Exception):
                writer.abandon()
            raise

    def _read_manifest(
        self,
        plan: CheckpointPlan,
        staged: StagedCheckpoint,
        written: Sequence[Written],
        comparison: Comparison,
    ) -> Digest:
        reader = self.log.dialect.open_checkpoint(self.log.store, staged.checkpoint)
        named = set(reader.files_read()) - set(staged.checkpoint.paths)
        if named != {w.path for w in written}:
            what = "the manifest names unexpected sidecars"
            raise self._wrong(plan, what, len(written), len(named))
        return comparison.digest(reader.read_meta())

    def _count(self, written: Sequence[Written]) -> None:
        self.plain_bytes = sum(w.plain_bytes for w in written)

    def _require_same(
        self, plan: CheckpointPlan, written: Sequence[Written], expected: Digest, found: Digest
    ) -> None:
        for each in written:
            if each.problem:
                raise self._wrong(plan, each.problem, None, None, each.path)
        if found != expected:
            differences = expected.differences(found)
            raise self._wrong(
                plan,
                f"{', '.join(d.action_type for d in differences)} differ",
                ", ".join(f"{d.expected} {d.action_type}" for d in differences),
                ", ".join(f"{d.found} {d.action_type}" for d in differences),
            )
        rows = sum(w.num_actions for w in written)
        if not plan.layout.startswith("v2-") and rows != expected.total:
            raise self._wrong(plan, "it has another number of actions", expected.total, rows)

    def _wrong(
        self, plan: CheckpointPlan, what: str, expected: object, found: object, path: str = ""
    ) -> CheckpointValidationError:
        return CheckpointValidationError(
            f"the checkpoint that was just written differs from replay: {what}",
            path=path or self.log.table,
            version=plan.version,
            expected=expected,
            found=found,
            hint="nothing was published, and the previous checkpoint is unchanged; report this",
        )

    def _delete(self, paths: Sequence[str]) -> None:
        with suppress(LakelogError):  # the error before it is the one that counts
            self.log.store.delete_many(paths)


_DAMAGE = ("FAILED_READ_FILE", "USER_RAISED_EXCEPTION", "MalformedLogError", "InvalidActionError")
"""What Spark's message has where a task met a checkpoint that cannot be read."""


def _layout(table: TableConfiguration, path: str, asked: str) -> str:
    """The layout to plan with, of those that have several files."""
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


def _dealt(rows: Any, plan: CheckpointPlan) -> Any:
    """Rows in one partition a part, as the format demands; sidecars hold any."""
    sql = functions_of(rows)
    if plan.layout == "multipart":
        # Spark's own hash partitioning is the protocol's: pmod(hash(key), parts).
        keys = [sql.coalesce(sql.col(PATH_TEXT), encoded_path(sql.col("path")))]
        keys += [sql.col("dvId")] if plan.deletion_vectors else []
        return rows.repartition(plan.parts, *keys)
    if plan.layout == "flattened" and plan.parts > 1:
        number = sql.crc32(sql.col("path").cast("binary")) % sql.lit(plan.parts)
        return rows.repartitionById(plan.parts, number.cast("int"))
    return rows.coalesce(max(1, plan.parts))
