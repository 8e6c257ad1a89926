"""The checkpoint job: plan, write the parts, verify, publish, and report.

Local checkpoints (`lakelog.checkpoint.write`) and Spark's (`lakelog.spark.checkpoint`) differ only
in the writing of parts: each provides a `PartWriter`. The job does the rest:

1. Open the version's state, and let the part writer plan from it.
2. Verify the complete checkpoints of the same version: one of the same layout is kept if it is
   valid, and its pointer is restored; one that the state was read from is copied if it is valid.
   A wrong or broken one is replaced, from a state that does not depend on it.
3. Let the part writer stage the files under temporary names, and read them back.
4. Compare the digests of replay and of the staged files. Nothing is published if they differ.
5. Rename the files in order, and update the pointer last (`lakelog.checkpoint.publish`).

If cleanup removes files of the state in the meantime, the log is listed again and the job starts
over. If the checkpoint below is damaged, the job starts over without it. If the typed statistics of
the checkpoint below differ from the JSON statistics, the job starts over with typed statistics made
from those. If a step fails, the previous checkpoint is unchanged, and the staged files are deleted
if the store allows it; cleanup deletes the others, whose names no reader opens.

Source: Delta protocol, Checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from lakelog import telemetry
from lakelog.checkpoint.compare import COPIES_DIFFER, differs_from_replay
from lakelog.checkpoint.publish import Published, publish, restore_pointer
from lakelog.checkpoint.verify import VerifyReport, independent_state, verify_one
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    Checkpoint,
    CheckpointPlan,
    SidecarFile,
    StagedCheckpoint,
)
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CheckpointValidationError,
    CheckpointWriteError,
    CorruptionError,
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.log.context import MOST_ATTEMPTS, Log
from lakelog.log.opening import open_state, reopened
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.telemetry import Progress


@dataclass(frozen=True)
class CheckpointReport(Displayed):
    """A checkpoint that was written, or that existed and was kept.

    Attributes:
        version: Version of the checkpoint.
        layout: As `lakelog.dialects.log_content.Checkpoint.layout`.
        paths: Paths of its files, relative to the table root.
        size_bytes: Total length of its files in bytes, including kept sidecars.
        num_adds: Number of live files.
        num_removes: Number of tombstones.
        num_actions: Number of actions of all types.
        parts: Number of its files.
        reused_files: Number of files reused from the previous checkpoint.
        digest: Digest of its actions; only their counts if it was not verified.
        seconds: Total duration in seconds.
        verify_seconds: Duration of reading back and comparing, in seconds.
        verified: Whether it was verified against replay.
        pointer_moved: Whether this call updated ``_last_checkpoint`` to refer to it.
        reused: Whether it existed already, and nothing was written.
        notes: Warnings, one sentence each.
    """

    version: int
    layout: str
    paths: tuple[str, ...]
    size_bytes: int
    num_adds: int
    num_removes: int
    num_actions: int
    parts: int
    reused_files: int
    digest: Digest = field(repr=False)
    seconds: float = 0.0
    verify_seconds: float = 0.0
    verified: bool = False
    pointer_moved: bool = False
    reused: bool = False
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        files = f"{self.parts}" + (f", {self.reused_files} kept" if self.reused_files else "")
        verified = f"yes, {self.verify_seconds:.2f} s" if self.verified else "no"
        facts = [
            ("version", str(self.version)),
            ("layout", self.layout),
            ("live files", f"{self.num_adds:,}"),
            ("tombstones", f"{self.num_removes:,}"),
            ("other actions", f"{self.num_actions - self.num_adds - self.num_removes:,}"),
            ("size", size_text(self.size_bytes)),
            ("files", files),
            ("verified", verified),
            ("pointer moved", "yes" if self.pointer_moved else "no"),
            ("took", f"{self.seconds:.2f} s"),
        ]
        return facts + [("note", note) for note in self.notes]

    @property
    def _title(self) -> str:
        return "Checkpoint, unchanged" if self.reused else "Checkpoint"


@dataclass(frozen=True)
class StagedParts:
    """The files of a checkpoint before publication: `expected` is the digest of the replayed rows
    (without verification only their counts); `sidecars` have their final names already, and
    `reused_files` of them are of an earlier checkpoint.
    """

    staged: StagedCheckpoint
    expected: Digest
    sidecars: tuple[SidecarFile, ...] = ()
    reused_files: int = 0
    notes: tuple[str, ...] = ()


class ReadBack(NamedTuple):
    """Content of the staged files: digest, uncompressed bytes, and a file with wrong statistics."""

    found: Digest
    plain_bytes: int
    differing_copies: str | None = None


class PartWriter(Protocol):
    """Writes a checkpoint under temporary names; `write` may replace `plan` to keep sidecars."""

    plan: CheckpointPlan

    def write(self, *, may_keep_sidecars: bool) -> StagedParts:
        """Stage all files, once; failures that are not the state's raise `CheckpointWriteError`."""
        ...

    def read_back(self, parts: StagedParts) -> ReadBack:
        """Read the staged files; `CheckpointValidationError` for an inconsistent one."""
        ...

    def differing_path(self, parts: StagedParts) -> str | None:
        """Path of one file action that differs between replay and the staged files, if known."""
        ...

    def published(self) -> Sequence[str]:
        """Called after publication; returns notes for the report."""
        ...

    def abandon(self) -> None:
        """Delete the staged files; the job suppresses errors."""
        ...

    def close(self) -> None:
        """Release memory and disk; always called last."""
        ...


class OpenParts(Protocol):
    """Creates the part writer for a state and a layout; `from_texts`: statistics too."""

    def __call__(self, state: State, layout: str, *, from_texts: bool) -> PartWriter:
        """Create the part writer."""
        ...


class _CopiesDifferError(Exception):
    """Typed statistics of a staged file differ from their texts."""

    def __init__(self, error: CheckpointValidationError) -> None:
        super().__init__(error.message)
        self.error = error


def run_checkpoint_job(
    log: Log,
    version: int | None,
    layout: str,
    open_parts: OpenParts,
    *,
    verify: bool,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Run the job on a version's state; if files are missing or damaged, on another one."""
    begin = time.perf_counter()
    with telemetry.span("checkpoint.write", path=log.table, format=log.dialect.name) as span:
        state = open_state(log, version)
        attempts = 0
        from_texts = False
        while True:
            attempts += 1
            open_each = partial(open_parts, from_texts=from_texts)
            job = _Attempt(log, state, layout, open_each, verify, memory_limit, progress)
            try:
                report = job.run()
                break
            except _CopiesDifferError as differ:
                if from_texts:
                    raise differ.error from None
                # The checkpoint below may have them from another writer, or from a narrower type.
                from_texts = True
            except (CorruptionError, NotFoundError) as error:
                state = reopened(job.state, error, may_list=attempts < MOST_ATTEMPTS)
        report = replace(report, seconds=time.perf_counter() - begin)
        span.set(version=report.version, layout=report.layout, size_bytes=report.size_bytes)
    _log_checkpoint(log, report, job.plain_bytes)
    return report


@dataclass
class _Attempt:
    """One attempt at one checkpoint, from one state; `run` may replace the state."""

    log: Log
    state: State
    layout: str
    open_parts: Callable[[State, str], PartWriter]
    verify: bool
    memory_limit: int | None
    progress: Progress | None
    plain_bytes: int = 0

    def run(self) -> CheckpointReport:
        with closing(self.open_parts(self.state, self.layout)) as writer:
            plan = writer.plan
            existing = self._existing(plan)
            if not existing:
                return self._write(writer, ())
        invalid: list[Checkpoint] = []
        kept: VerifyReport | None = None
        unproved: str | None = None
        for checkpoint in existing:
            is_same_layout = checkpoint.layout == plan.layout
            if is_same_layout and kept is not None:
                continue
            report = verify_one(self.log, checkpoint, self.memory_limit)
            if report.doubt is not None:
                report.raise_for_verdict()
            if report.verdict not in {"proved", "unprovable"}:
                invalid.append(checkpoint)
            elif is_same_layout:
                kept = report
            elif report.verdict == "unprovable":
                unproved = f"copied from the {report.layout} checkpoint: {report.reason}"
        if kept is not None and not invalid:
            return self._kept(kept)
        if invalid:
            # Without the missing commits, the state depends on a broken checkpoint, and reading it
            # raises.
            self.state = independent_state(self.log, plan.version) or self.state
        with closing(self.open_parts(self.state, plan.layout)) as writer:
            return self._write(writer, invalid, unproved)

    def _existing(self, plan: CheckpointPlan) -> list[Checkpoint]:
        """Complete checkpoints of the plan's version: of its layout, the best one first, and the
        one that the state was read from. A copy of a wrong one would agree with the state.
        """
        there = self.log.list_since(plan.version).checkpoints[::-1]
        same = [c for c in there if (c.version, c.layout) == (plan.version, plan.layout)]
        source = self.state.segment.checkpoint
        if source is None or source.version != plan.version:
            return same
        return same if any(c.paths == source.paths for c in same) else [*same, source]

    def _kept(self, report: VerifyReport) -> CheckpointReport:
        """The report of an existing checkpoint that is kept; a missing pointer to it is written,
        because the process that published it may have been killed before.
        """
        kept = _kept_report(self.log, report)
        if not report.is_proved:
            return kept
        found = restore_pointer(self.log, report.checkpoint, self.state.protocol)
        notes = kept.notes if found.note is None else (*kept.notes, found.note)
        return replace(kept, pointer_moved=found.pointer_moved, notes=notes)

    def _write(
        self, writer: PartWriter, replaced: Sequence[Checkpoint], unproved: str | None = None
    ) -> CheckpointReport:
        verify_seconds = 0.0
        try:
            parts = writer.write(may_keep_sidecars=not replaced)
            if self.verify:
                begin = time.perf_counter()
                read = writer.read_back(parts)
                self.plain_bytes = read.plain_bytes
                _require_same(writer, parts, read.found)
                _require_same_copies(writer.plan, read.differing_copies)
                verify_seconds = time.perf_counter() - begin
        except BaseException:
            _abandon(writer)
            raise
        try:
            published = publish(self.log.store, self.log.dialect, parts.staged, self._renamed)
        except CheckpointWriteError as error:
            # A file whose rename has an unknown outcome may refer to the others: cleanup deletes
            # them later.
            if not isinstance(error.__cause__, OutcomeUnknownError):
                _abandon(writer)
            raise
        notes = list(parts.notes)
        if replaced and self.verify:
            notes += _remove_replaced(self.log, replaced, parts.staged)
        if published.note is not None:
            notes.append(published.note)
        if unproved is None:
            notes += writer.published()
        else:
            notes.append(unproved)  # and no checksum, which would confirm what nothing proves
        is_verified = self.verify and unproved is None
        return _report(writer.plan, parts, published, is_verified, verify_seconds, notes)

    def _renamed(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("publish", done, total)


def _abandon(writer: PartWriter) -> None:
    with suppress(Exception):  # the earlier error is raised
        writer.abandon()


def _require_same_copies(plan: CheckpointPlan, differing: str | None) -> None:
    if differing is not None:
        raise _CopiesDifferError(differs_from_replay(COPIES_DIFFER, differing, plan.version))


def _require_same(writer: PartWriter, parts: StagedParts, found: Digest) -> None:
    """Compare the digests, and the number of rows: a JSON reader counts a repeated line once."""
    plan, staged, expected = writer.plan, parts.staged, parts.expected
    path = staged.checkpoint.paths[0]
    if found != expected:
        differences = expected.differences(found)
        has_files = any(d.action_type in actions.FILE_ACTIONS for d in differences)
        example = writer.differing_path(parts) if has_files else None
        kinds = ", ".join(
            f"{d.action_type} (same number, different content)"
            if d.expected == d.found
            else d.action_type
            for d in differences
        )
        raise differs_from_replay(
            f"{kinds} differ" + ("" if example is None else f", for one {example}"),
            path,
            plan.version,
            ", ".join(f"{d.expected} {d.action_type}" for d in differences),
            ", ".join(f"{d.found} {d.action_type}" for d in differences),
        )
    rows = sum(file.num_actions for file in staged.files)
    if not plan.layout.startswith("v2-") and rows != expected.total:
        what = "it contains an unexpected number of actions"
        raise differs_from_replay(what, path, plan.version, expected.total, rows)


def _remove_replaced(
    log: Log, replaced: Sequence[Checkpoint], staged: StagedCheckpoint
) -> list[str]:
    """Delete wrong and broken checkpoints; returns a note for each file that is left."""
    taken = {file.target for file in staged.files}
    deletable = [path for c in replaced for path in c.paths if path not in taken]
    return [
        f"an invalid checkpoint could not be deleted: {error}"
        for error in (log.store.delete_many(deletable) if deletable else ())
    ]


def _kept_report(log: Log, report: VerifyReport) -> CheckpointReport:
    """The report of an existing checkpoint that is kept."""
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


def _report(
    plan: CheckpointPlan,
    parts: StagedParts,
    published: Published,
    verified: bool,
    verify_seconds: float,
    notes: Sequence[str],
) -> CheckpointReport:
    files, sidecars, expected = parts.staged.files, parts.sidecars, parts.expected
    if not files:
        raise InternalError("a checkpoint without files was written", version=plan.version)
    return CheckpointReport(
        version=plan.version,
        layout=plan.layout,
        paths=(*(file.target for file in files), *(file.path for file in sidecars)),
        size_bytes=sum(f.size_bytes for f in files) + sum(f.size_bytes for f in sidecars),
        num_adds=expected.counts.get("add", 0),
        num_removes=expected.counts.get("remove", 0),
        num_actions=expected.total,
        parts=len(files) + len(sidecars),
        reused_files=parts.reused_files,
        verify_seconds=verify_seconds,
        verified=verified,
        pointer_moved=published.pointer_moved,
        digest=expected,
        notes=tuple(notes),
    )


def _log_checkpoint(log: Log, report: CheckpointReport, plain_bytes: int) -> None:
    """Emit the event and the metrics of a checkpoint; `plain_bytes` is 0 if unknown."""
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
