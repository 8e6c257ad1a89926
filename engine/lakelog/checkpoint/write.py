"""Writes a checkpoint: replay, staging and comparison (`lakelog.checkpoint.staging`), then
publication.

Whatever fails, the checkpoint before it stays as it was, and what was staged is removed as far
as the store lets us; what is left has names that no reader looks at, and cleanup takes it later.

Source: Delta protocol, Checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import telemetry
from lakelog.checkpoint.compare import Comparison, with_protocol
from lakelog.checkpoint.incremental import Incremental, Unfit, plan_incremental
from lakelog.checkpoint.options import CheckpointOptions
from lakelog.checkpoint.plan import choose_layout, plan_checkpoint
from lakelog.checkpoint.publish import Published, publish
from lakelog.checkpoint.report import CheckpointReport
from lakelog.checkpoint.staging import Staging
from lakelog.checkpoint.state_source import ReplayMode, StateSource
from lakelog.checkpoint.verify import VerifyReport, independent_state, verify_one
from lakelog.checkpoint.version_checksum import checksum_of, put_checksum
from lakelog.dialects.base import AUTO
from lakelog.dialects.delta.checkpoint_typed import file_action_columns
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    Checkpoint,
    CheckpointPlan,
    CheckpointWriter,
    StagedCheckpoint,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CheckpointWriteError,
    CorruptionError,
    InternalError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.log.context import MOST_ATTEMPTS, Log
from lakelog.log.opening import open_state, reopened
from lakelog.log.state import State
from lakelog.telemetry import Progress

_COMMIT_ACTION_BYTES = 300  # of a commit's text, for an estimate
_STATE_ACTION_BYTES = 150


def write_checkpoint(
    log: Log,
    version: int | None = None,
    *,
    layout: str = AUTO,
    memory_limit: int | None = None,
    verify: bool = True,
    options: CheckpointOptions | None = None,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Write the checkpoint of a version, prove it, and publish it.

    A complete checkpoint of the same version and layout that is there already is kept if replay
    without it gives the same, or if there is nothing to replay without it; one that is wrong or
    broken is replaced. Where a cleaner removes what the version is replayed from, what is left
    is looked at again.

    Args:
        log: The table's log.
        version: The version; None is the latest.
        layout: See `lakelog.checkpoint.plan`.
        memory_limit: Bytes that the process may take at its peak; None for no bound.
        verify: Whether what was written is read back and compared before it is published.
        options: What the table's properties say; None reads them.
        progress: Called with the progress of each step, in actions.

    Raises:
        TableNotFoundError: The log is empty.
        VersionNotFoundError: The version cannot be rebuilt.
        InvalidInputError: The layout is not allowed, or the memory limit is below its floor.
        InvalidPropertyError: A property of checkpoints is unknown or malformed.
        UnsupportedFeatureError: The table needs what lakelog does not honour.
        CorruptionError: The log is damaged, and nothing valid is behind the damage.
        CheckpointWriteError: It could not be written, or not be published.
        CheckpointValidationError: What was written is not what replay gives; nothing was published.
        UnsupportedStoreError: Nothing can be written safely at this place.

    Memory: without a limit, the commits above the checkpoint below, and a few batches of 65,536
    rows.
    """
    begin = time.perf_counter()
    with telemetry.span("checkpoint.write", path=log.table, format=log.dialect.name) as span:
        job, report = attempt(
            log,
            version,
            lambda state: _Job(log, state, layout, memory_limit, verify, options, progress),
        )
        report = replace(report, seconds=time.perf_counter() - begin)
        span.set(version=report.version, layout=report.layout, size_bytes=report.size_bytes)
    log_checkpoint(log, report, job.plain_bytes)
    return report


class Job(Protocol):
    """One attempt at one checkpoint.

    Attributes:
        state: What it is written from; a run may replace it.
    """

    state: State

    def run(self) -> CheckpointReport:
        """Write it, or keep what is there."""
        ...


AnyJob = TypeVar("AnyJob", bound=Job)


def attempt(
    log: Log, version: int | None, job_of: Callable[[State], AnyJob]
) -> tuple[AnyJob, CheckpointReport]:
    """Run a job on a version's state, and again on another state if files are missing or damaged.

    If cleanup removed files that the state is read from, the log is listed again. If the checkpoint
    below is damaged, the state does without it.

    Args:
        log: The table's log.
        version: The version; None is the latest.
        job_of: Makes the job for a state.

    Returns:
        The job that succeeded, and its report.

    Raises:
        NotFoundError: Files were removed in every one of the attempts.
        CorruptionError: The log is damaged, and no older file replaces the damaged one.
        LakelogError: As `open_state` and the job.
    """
    state = open_state(log, version)
    attempts = 0
    while True:
        attempts += 1
        job = job_of(state)
        try:
            return job, job.run()
        except (CorruptionError, NotFoundError) as error:
            state = reopened(job.state, error, may_list=attempts < MOST_ATTEMPTS)


def log_checkpoint(log: Log, report: CheckpointReport, plain_bytes: int) -> None:
    """Write to the program's log, and to its metrics, what became of a checkpoint.

    Args:
        log: The table's log.
        report: What became of it.
        plain_bytes: Length of its columns before compression; 0 where that is not known.
    """
    telemetry.event(
        "checkpoint.reused" if report.reused else "checkpoint.created",
        path=log.table,
        version=report.version,
        layout=report.layout,
        actions=report.num_actions,
        size_bytes=report.size_bytes,
        seconds=report.seconds,
        verify_seconds=report.verify_seconds,
        verified=report.verified,
        pointer_moved=report.pointer_moved,
    )
    if report.reused:
        return
    kind = {"layout": report.layout, "format": log.dialect.name}
    telemetry.count("checkpoint.created", 1, **kind)
    telemetry.record("checkpoint.duration", report.seconds, "s", **kind)
    telemetry.record("checkpoint.size", report.size_bytes, "By", **kind)
    if plain_bytes and report.size_bytes:
        ratio = plain_bytes / report.size_bytes
        telemetry.record("checkpoint.compression_ratio", ratio, "1", **kind)


@dataclass
class _Job:
    """One attempt at one checkpoint, from one state."""

    log: Log
    state: State
    layout: str
    memory_limit: int | None
    verify: bool
    options: CheckpointOptions | None
    progress: Progress | None
    plain_bytes: int = 0
    _notes: list[str] = field(default_factory=list)

    def run(self) -> CheckpointReport:
        with self._source(self.state) as source:
            plan = self._plan(source)
            there = checkpoints_there(self.log, plan)
            if not there:
                return self._write(source, plan, ())
        return self._beside(plan, there)

    def _beside(self, plan: CheckpointPlan, there: Sequence[Checkpoint]) -> CheckpointReport:
        """Where checkpoints of the same version and layout exist: keep a good one, or replace."""
        apart = independent_state(self.log, plan.version)
        reports = [verify_one(self.log, checkpoint, self.memory_limit) for checkpoint in there]
        for report in reports:
            if report.verdict in {"proved", "unprovable"}:
                return report_kept(self.log, report)
        # Without one, each is broken; the state that depends on one of them says so when it is
        # read.
        self.state = apart or self.state
        with self._source(self.state) as source:
            return self._write(source, plan, tuple(there))

    def _source(self, state: State) -> StateSource:
        return StateSource(state, memory_limit=self.memory_limit, now_ms=self.log.clock())

    def _plan(self, source: StateSource) -> CheckpointPlan:
        dialect, path = self.log.dialect, self.log.table
        table = TableConfiguration(dialect, source.protocol, source.metadata)
        options = self.options or CheckpointOptions.of(source.metadata.configuration, dialect)
        others = source.meta.height
        # Sidecars are closed when they are full, whatever the number of files.
        chosen = choose_layout(table, path, options, 0, others, self.layout)
        sized = chosen not in {"classic", "v2-json", "v2-parquet"}
        if chosen == "classic" and self.layout == AUTO:
            sized = not _fits_one_file(self.state, options)
        return plan_checkpoint(
            table,
            path,
            self.state.version,
            options,
            num_files=_estimate_files(self.state, source) if sized else 0,
            num_others=others,
            layout=self.layout,
            memory_limit=self.memory_limit,
            now_ms=self.log.clock(),
        )

    # --- writing -----------------------------------------------------------------------------

    def _write(
        self, source: StateSource, plan: CheckpointPlan, replaced: tuple[Checkpoint, ...]
    ) -> CheckpointReport:
        incremental = self._incremental(source, plan) if not replaced else None
        if incremental is not None:
            plan = incremental.plan
        meta = with_protocol(source.meta, self.log.dialect.default_protocol)
        writer = self._writer(plan)
        comparison = Comparison.of(plan, self.log.dialect, writer.columns)
        if comparison.typed:
            _, copies = file_action_columns(plan, source.metadata.configuration)
            comparison = comparison.limited_to(copies.statistics if copies is not None else None)
        if self.verify:
            # Recorded with each sidecar, for later checkpoints to depend on: only what was proved.
            writer.digest_of = comparison.digest
        staging = Staging(
            self.log,
            self.state,
            plan,
            writer,
            comparison,
            source,
            incremental,
            self.verify,
            self.memory_limit,
            self.tell,
        )
        verify_seconds = 0.0
        try:
            staged, expected = staging.write(meta)
            if staging.counts is not None:
                self.state.hold_against_checksum(
                    numFiles=staging.counts.files, tableSizeBytes=staging.counts.size_bytes
                )
            if self.verify:
                begin = time.perf_counter()
                staging.read_back(staged, expected)
                verify_seconds = time.perf_counter() - begin
                self.plain_bytes = staging.plain_bytes
        except BaseException:
            _abandon(writer)
            raise
        try:
            published = self._publish(staged)
        except CheckpointWriteError as error:
            # A file that may still get its name may name others: then cleanup has to look first.
            if not isinstance(error.__cause__, OutcomeUnknownError):
                _abandon(writer)
            raise
        if replaced and self.verify:
            self._notes += remove_replaced(self.log, replaced, staged)
        if published.note is not None:
            self._notes.append(published.note)
        self._checksum(source, staging)
        return _report(plan, staged, expected, published, self.verify, verify_seconds, self._notes)

    def _checksum(self, source: StateSource, staging: Staging) -> None:
        """Write the version's checksum too, now that what it counts is proved; the checkpoint does
        not depend on it.
        """
        counts, version = staging.counts, self.state.version
        if counts is None or self.log.dialect.checksum_path(version) is None:
            return
        try:
            found = put_checksum(self.log, version, checksum_of(self.state, source, counts))
        except LakelogError as error:
            self._notes.append(f"no version checksum was written: {error.message}")
            return
        if found.disagreements:
            self._notes.append(f"{found.path} differs from replay, and was not changed")

    def _incremental(self, source: StateSource, plan: CheckpointPlan) -> Incremental | None:
        base = self.state.base
        if (
            not plan.layout.startswith("v2-")
            or base is None
            or source.replay_mode is not ReplayMode.FREE
        ):
            return None
        found = plan_incremental(
            self.log, self.state, base.checkpoint, plan, now_ms=plan.created_ms
        )
        if isinstance(found, Unfit):
            telemetry.event("checkpoint.whole", version=plan.version, reason=found.reason)
            return None
        return found

    def _writer(self, plan: CheckpointPlan) -> CheckpointWriter:
        return self.log.dialect.checkpoint_writer(self.log.store, plan)

    def _publish(self, staged: StagedCheckpoint) -> Published:
        def told(done: int, total: int) -> None:
            self.tell("publish", done, total)

        return publish(self.log.store, self.log.dialect, staged, told)

    def tell(self, step: str, done: int, total: int | None = None) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


def _abandon(writer: CheckpointWriter) -> None:
    with suppress(Exception):  # the error before it is the one that counts
        writer.abandon()


def report_kept(log: Log, report: VerifyReport) -> CheckpointReport:
    """The report of a checkpoint that was there already, and is kept."""
    sizes = [log.store.stat(path) for path in report.files]
    return CheckpointReport(
        version=report.version,
        layout=report.layout,
        paths=report.files,
        size_bytes=sum(entry.size_bytes for entry in sizes if entry is not None),
        num_adds=report.found.counts.get("add", 0),
        num_removes=report.found.counts.get("remove", 0),
        num_actions=report.found.total,
        parts=len(report.files),
        reused_files=len(report.files),
        verify_seconds=report.seconds,
        verified=report.verdict == "proved",
        digest=report.found,
        reused=True,
        notes=(report.reason,) if report.reason is not None else (),
    )


def remove_replaced(
    log: Log, replaced: Sequence[Checkpoint], staged: StagedCheckpoint
) -> list[str]:
    """Take away checkpoints that were wrong or broken, so that no reader prefers them; gives a note
    for each file that could not be.
    """
    taken = {file.target for file in staged.files}
    gone = [path for c in replaced for path in c.paths if path not in taken]
    return [
        f"an invalid checkpoint could not be deleted: {error}"
        for error in (log.store.delete_many(gone) if gone else ())
    ]


def checkpoints_there(log: Log, plan: CheckpointPlan) -> list[Checkpoint]:
    """Complete checkpoints of the plan's version and layout, the best one first."""
    listing = log.list_since(plan.version)
    same = [c for c in listing.checkpoints if (c.version, c.layout) == (plan.version, plan.layout)]
    return same[::-1]


def _fits_one_file(state: State, options: CheckpointOptions) -> bool:
    """Whether what is replayed is short enough for one file; reads nothing.

    A classic checkpoint is no longer than what it replaces: Parquet of the same schema, or text.
    """
    base = state.base.checkpoint if state.base is not None else None
    sizes = base.sizes_bytes if base is not None else ()
    if options.part_actions is not None or (
        base is not None and (base.layout.startswith("v2-") or not sizes)
    ):
        return False
    tail = sum(c.size_bytes for c in state.segment.commits)
    return sum(sizes) + tail <= options.max_file_bytes


def _estimate_files(state: State, source: StateSource) -> int:
    """File actions of a state, about."""
    commits = sum(c.size_bytes for c in state.segment.commits) // _COMMIT_ACTION_BYTES
    if source.replay_mode is ReplayMode.FREE:
        commits = state.layers.height
    if state.base is None:
        return commits
    below = 0
    checkpoint = state.base.checkpoint
    # Only a manifest of Delta's or an Avro state names more files; the commits below are no rows.
    is_listed = checkpoint.layout in {"json", "json-multipart", "flattened"}
    for path in checkpoint.paths if is_listed else state.base.files:
        with suppress(pa.ArrowException, OSError, ValueError), state.log.store.open(path) as file:
            if PurePosixPath(path).suffix == ".parquet":
                below += pq.read_metadata(file).num_rows
            else:
                below += file.seek(0, 2) // _STATE_ACTION_BYTES
    return below + commits


def _report(
    plan: CheckpointPlan,
    staged: StagedCheckpoint,
    expected: Digest,
    published: Published,
    verified: bool,
    verify_seconds: float,
    notes: Sequence[str],
) -> CheckpointReport:
    kept = plan.kept
    if not staged.files:
        raise InternalError("a checkpoint without files was written", version=plan.version)
    return CheckpointReport(
        version=plan.version,
        layout=plan.layout,
        paths=(*(file.target for file in staged.files), *(file.path for file in kept)),
        size_bytes=sum(f.size_bytes for f in staged.files) + sum(f.size_bytes for f in kept),
        num_adds=expected.counts.get("add", 0),
        num_removes=expected.counts.get("remove", 0),
        num_actions=expected.total,
        parts=len(staged.files) + len(kept),
        reused_files=len(kept),
        verify_seconds=verify_seconds,
        verified=verified,
        pointer_moved=published.pointer_moved,
        digest=expected,
        notes=tuple(notes),
    )
