"""Writing a checkpoint: replayed, staged, read back, compared, and only then published.

The digest of what came out of replay is compared with the digest of what was read back from the
staged files, all rows and all columns that are kept: so an encoder's mistake, a lost batch, a torn
file and a file under another's name are all found before any reader can see them. The reader is
the one that everybody opens tables with. So that a reader's mistake cannot hide a writer's, the
footers' row counts are compared too. Typed copies of statistics that stand beside their text are
derived from it; they are held against it in a sample of each file.

Whatever fails, the checkpoint before it stays as it was, and what was staged is taken away as far
as the store lets us; what is left has names that no reader looks at, and cleanup takes it later.

Source: Delta protocol, Checkpoints; specification 001, 3.2; specification 004.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import actions, telemetry
from lakelog.checkpoint.checksum import FileCounts, checksum_of, put_checksum
from lakelog.checkpoint.compare import Comparison, find_differences, with_protocol
from lakelog.checkpoint.incremental import Incremental, Unfit, plan_incremental
from lakelog.checkpoint.memory import release
from lakelog.checkpoint.options import CheckpointOptions
from lakelog.checkpoint.pipeline import ahead
from lakelog.checkpoint.plan import AUTO, Table, choose_layout, plan_checkpoint
from lakelog.checkpoint.publish import Published, publish
from lakelog.checkpoint.report import CheckpointReport
from lakelog.checkpoint.source import Road, Source, open_in_batches
from lakelog.checkpoint.verify import VerifyReport, independent_state, verify_one
from lakelog.errors import (
    CheckpointCorruptionError,
    CheckpointValidationError,
    CheckpointWriteError,
    CorruptionError,
    InternalError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.formats.base import (
    STRUCT_STATISTICS,
    Checkpoint,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    StagedCheckpoint,
)
from lakelog.formats.delta.checkpoint_typed import file_action_columns
from lakelog.formats.delta.checkpoint_writer import DeltaCheckpointWriter
from lakelog.formats.delta.parquet import child_type
from lakelog.formats.digest import Digest
from lakelog.log.context import Log
from lakelog.log.files import statistics_text
from lakelog.log.opening import MOST_LOOKS, fall_back, is_outdated, open_state
from lakelog.log.state import State
from lakelog.telemetry import Progress

_SAMPLE_ROWS = 2_048
_CHECKED_BYTES = 24 << 20  # of a batch: while it is read back, nothing else is held
_PARQUET_MAGIC = b"PAR1"
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
    broken is replaced. Where a cleaner takes away what the version is replayed from, what is left
    is looked at again.

    Args:
        log: The table's log.
        version: The version; None is the latest.
        layout: See `lakelog.checkpoint.plan`.
        memory_limit: Bytes that the process may take at its peak; None for no bound.
        verify: Whether what was written is read back and compared before it is published.
        options: What the table's properties say; None reads them.
        progress: Told of how far each step is, in actions.

    Raises:
        TableNotFoundError: The log is empty.
        VersionNotFoundError: The version cannot be rebuilt.
        InvalidInputError: The layout is not allowed, or the memory limit is below its floor.
        InvalidPropertyError: A property of checkpoints is unknown or malformed.
        UnsupportedFeatureError: The table needs what lakelog does not honour.
        CorruptionError: The log is damaged, and nothing sound stands behind the damage.
        CheckpointWriteError: It could not be written, or not be published.
        CheckpointValidationError: What was written is not what replay gives; nothing was published.
        UnsupportedStoreError: Nothing can be written safely at this place.

    Memory: without a limit, the commits above the checkpoint below, and a few batches of 65,536
    rows.
    """
    begin = time.perf_counter()
    with telemetry.span("checkpoint.write", path=log.table, format=log.dialect.name) as span:
        state = open_state(log, version)
        looks = 0
        while True:
            job = _Job(log, state, layout, memory_limit, verify, options, progress)
            looks += 1
            try:
                report = replace(job.run(), seconds=time.perf_counter() - begin)
                break
            except (CorruptionError, NotFoundError) as error:
                if looks < MOST_LOOKS and is_outdated(log, job.state.segment, error):
                    state = open_state(log, version)  # a cleaner took what it was replayed from
                elif isinstance(error, CheckpointCorruptionError) and job.state.base is not None:
                    state = fall_back(job.state, error)
                else:
                    raise
        span.set(version=report.version, layout=report.layout, size_bytes=report.size_bytes)
    tell_of(log, report, job.plain_bytes)
    return report


def tell_of(log: Log, report: CheckpointReport, plain_bytes: int) -> None:
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
                if report.reason is not None:
                    self._notes.append(report.reason)
                return self._kept(report)
        # Without one, each is broken; the state that rests on one of them says so when it is read.
        self.state = apart or self.state
        with self._source(self.state) as source:
            return self._write(source, plan, tuple(there))

    def _kept(self, report: VerifyReport) -> CheckpointReport:
        checkpoint = report.checkpoint
        sizes = [self.log.store.stat(path) for path in report.files]
        return CheckpointReport(
            version=checkpoint.version,
            layout=checkpoint.layout,
            paths=report.files,
            size_bytes=sum(entry.size_bytes for entry in sizes if entry is not None),
            num_adds=report.found.counts.get("add", 0),
            num_removes=report.found.counts.get("remove", 0),
            num_actions=report.found.total,
            parts=len(report.files),
            reused_files=len(report.files),
            verify_seconds=report.seconds,
            verified=report.verdict == "proved",
            pointer_moved=False,
            digest=report.found,
            reused=True,
            notes=tuple(self._notes),
        )

    def _source(self, state: State) -> Source:
        return Source(state, memory_limit=self.memory_limit, now_ms=self.log.clock())

    def _plan(self, source: Source) -> CheckpointPlan:
        format_ = self.log.dialect.name
        table = Table(format_, self.log.table, source.protocol, source.metadata)
        options = self.options or CheckpointOptions.of(source.metadata.configuration, format_)
        others = source.meta.height
        # Of a classic checkpoint nothing depends on its size, and sidecars are closed when full.
        chosen = choose_layout(table, options, 0, others, self.layout)
        sized = format_ != "delta" or chosen == "multipart"
        return plan_checkpoint(
            table,
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
        self, source: Source, plan: CheckpointPlan, replaced: tuple[Checkpoint, ...]
    ) -> CheckpointReport:
        incremental = self._incremental(source, plan) if not replaced else None
        if incremental is not None:
            plan = incremental.plan
        meta = with_protocol(source.meta, self.log.dialect.default_protocol)
        writer = self._writer(plan)
        comparison = Comparison.of(plan, self.log.dialect.name, writer.columns)
        if comparison.typed:
            _, copies = file_action_columns(plan, source.metadata.configuration)
            comparison = comparison.limited_to(copies.statistics if copies is not None else None)
        if self.verify and isinstance(writer, DeltaCheckpointWriter):
            # Recorded with each sidecar, for later checkpoints to rest on: only what was proved.
            writer.digest_of = comparison.digest
        staging = _Staging(self, plan, writer, comparison, source, incremental)
        verify_seconds = 0.0
        try:
            staged, expected = staging.write(meta)
            if self.verify:
                begin = time.perf_counter()
                staging.read_back(staged, expected)
                verify_seconds = time.perf_counter() - begin
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
            self._remove(replaced, staged)
        if published.note is not None:
            self._notes.append(published.note)
        self._checksum(source, staging)
        return _report(plan, staged, expected, published, self.verify, verify_seconds, self._notes)

    def _checksum(self, source: Source, staging: _Staging) -> None:
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
            self._notes.append(f"{found.path} is not what replay gives, and was left as it is")

    def _incremental(self, source: Source, plan: CheckpointPlan) -> Incremental | None:
        base = self.state.base
        if not plan.layout.startswith("v2-") or base is None or source.road is not Road.FREE:
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

    def _remove(self, replaced: Sequence[Checkpoint], staged: StagedCheckpoint) -> None:
        """Take away checkpoints that were wrong or broken, so that no reader prefers them."""
        taken = {file.target for file in staged.files}
        gone = [path for c in replaced for path in c.paths if path not in taken]
        if not gone:
            return
        for error in self.log.store.delete_many(gone):
            self._notes.append(f"a checkpoint that is not sound could not be deleted: {error}")

    def tell(self, step: str, done: int, total: int | None = None) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


@dataclass
class _Staging:
    """What is written of one checkpoint, and what is read back of it."""

    job: _Job
    plan: CheckpointPlan
    writer: CheckpointWriter
    comparison: Comparison
    source: Source
    incremental: Incremental | None
    counts: FileCounts | None = None

    def write(self, meta: pl.DataFrame) -> tuple[StagedCheckpoint, Digest]:
        """Stage the files; the digest is that of the rows that came out of replay.

        Raises:
            CheckpointWriteError: The store failed, or a row cannot be encoded.
            CorruptionError: The log is damaged.
        """
        expected = self.comparison.digest(meta)
        written = 0
        with self._writing():
            self.writer.write_meta(meta)
        for frame, found in ahead(self._hashed()):
            with self._writing():
                self.writer.write_files(frame)
            expected += found
            written += frame.height
            self.job.tell("write", written)
        with self._writing():
            staged = self.writer.finish()
        if self.incremental is not None:
            expected += self.incremental.expected
        return staged, expected

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the writer raises, in terms of the checkpoint; what replay raises is left alone."""
        try:
            yield
        except CorruptionError as cause:
            raise self._unreadable(cause) from cause
        except (UnavailableError, OutcomeUnknownError) as cause:
            raise self._unwritten(cause.message, cause.path) from cause
        except LakelogError:
            raise
        except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as cause:
            raise self._unwritten(str(cause).splitlines()[0][:200], None) from cause

    def _unreadable(self, cause: CorruptionError | NotFoundError) -> CheckpointValidationError:
        return CheckpointValidationError(
            f"the checkpoint that was just written cannot be read back: {cause.message}",
            path=cause.path,
            version=self.plan.version,
            expected=cause.expected,
            found=cause.found,
            hint="nothing was published, and the checkpoint before it is as it was",
        )

    def _unwritten(self, message: str, path: str | None) -> CheckpointWriteError:
        return CheckpointWriteError(
            f"the checkpoint could not be written: {message}",
            path=path or self.job.log.table,
            version=self.plan.version,
            hint="the checkpoint before it is as it was; try again",
        )

    def _files(self) -> Iterator[pl.DataFrame]:
        columns = dict.fromkeys((*self.writer.columns, *self.comparison.columns))
        base = self.job.state.base
        if base is None or not base.has_struct_statistics:
            columns.pop(STRUCT_STATISTICS, None)
        elif "stats" in columns:
            columns[STRUCT_STATISTICS] = None  # the text may have to be made from them
        if self.incremental is not None:
            return self.incremental.files(tuple(columns))
        return self.source.files(tuple(columns))

    def _hashed(self) -> Iterator[tuple[pl.DataFrame, Digest]]:
        if self.job.verify and self.incremental is None:
            self.counts = FileCounts()
        for frame in self._files():
            whole = self._with_text(frame)
            if self.counts is not None:
                self.counts.add(whole)
            yield whole, self._counted(whole)

    def _counted(self, frame: pl.DataFrame) -> Digest:
        if self.incremental is not None:
            return Digest()  # it counts itself
        if not self.job.verify:
            return Digest({frame["actionType"][0]: frame.height})
        return self.comparison.digest(frame)

    def _with_text(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds with the text of statistics that the checkpoint below keeps typed alone."""
        wanted = self.plan.stats_as_json and STRUCT_STATISTICS in frame.columns
        return frame.with_columns(statistics_text(frame)) if wanted else frame

    # --- reading back --------------------------------------------------------------------------

    def read_back(self, staged: StagedCheckpoint, expected: Digest) -> None:
        """Compare what stands in the staged files with what came out of replay.

        Raises:
            CheckpointValidationError: It is not the same, or cannot be read.
            CheckpointWriteError: The store failed.
        """
        if self.job.memory_limit is not None:
            self.source.close()  # what it holds is of no more use
        try:
            reader = self._reader(staged)
            found = self.comparison.digest(
                with_protocol(reader.read_meta(), self.job.log.dialect.default_protocol)
            )
            if self.incremental is not None:
                found += self.incremental.verify(
                    staged, reader, lambda frame: self._require_unchanging(frame, staged)
                )
            else:
                for frame, each in ahead(self._read_files(reader)):
                    found += each
                    self.job.tell("verify", found.total, expected.total)
                    self._require_unchanging(frame, staged)
            self._compare_footers(staged)
        except CheckpointValidationError:
            raise
        except (CorruptionError, NotFoundError) as cause:
            raise self._unreadable(cause) from cause
        except (UnavailableError, OutcomeUnknownError) as cause:
            raise self._unwritten(cause.message, cause.path) from cause
        if found != expected:
            raise self._differs(staged, expected, found)
        rows = sum(file.num_actions for file in staged.files)
        if not self.plan.layout.startswith("v2-") and rows != expected.total:
            # Readers of JSON take a line that stands twice for one.
            raise self._wrong(staged, "it holds more actions than it should", expected.total, rows)

    def _reader(self, staged: StagedCheckpoint) -> CheckpointReader:
        limit = self.job.memory_limit
        batch_bytes = None if limit is None else limit // 64
        return open_in_batches(
            self.job.log, staged.checkpoint, batch_bytes, near_batch_bytes=_CHECKED_BYTES
        )

    def _read_files(self, reader: CheckpointReader) -> Iterator[tuple[pl.DataFrame, Digest]]:
        columns = tuple(dict.fromkeys(("dataChange", *self.comparison.columns)))
        for frame in reader.iter_files(columns):
            yield frame, self.comparison.digest(frame)
            if self.job.memory_limit is not None:
                release()

    def _require_unchanging(self, frame: pl.DataFrame, staged: StagedCheckpoint) -> None:
        """No file action of a state changes data."""
        if "dataChange" in frame.columns and frame["dataChange"].any():
            raise self._wrong(staged, "a file action says that it changes data", False, True)

    def _compare_footers(self, staged: StagedCheckpoint) -> None:
        """Each Parquet file holds as many rows as were written to it, and typed statistics say
        what their text says.
        """
        for entry in staged.files:
            with self.job.log.store.open(entry.path, entry.size_bytes) as source:
                if source.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC:
                    continue
                try:
                    file = pq.ParquetFile(source, page_checksum_verification=True)
                    differ = any(map(self.comparison.typed_copies_differ, sample_statistics(file)))
                except LakelogError:
                    raise
                except (pa.ArrowException, OSError, ValueError) as cause:
                    raise self._wrong(
                        staged, "a file cannot be read", "Parquet", str(cause)[:200], entry.path
                    ) from cause
            footer = file.metadata
            groups = (footer.row_group(n) for n in range(footer.num_row_groups))
            self.job.plain_bytes += sum(group.total_byte_size for group in groups)
            if footer.num_rows != entry.num_actions:
                raise self._wrong(
                    staged,
                    "a file does not hold the rows that were written to it",
                    f"{entry.num_actions} rows",
                    f"{footer.num_rows} rows",
                    entry.path,
                )
            if differ:
                raise self._wrong(
                    staged, "typed statistics differ from their text", None, None, entry.path
                )

    def _differs(
        self, staged: StagedCheckpoint, expected: Digest, found: Digest
    ) -> CheckpointValidationError:
        differences = expected.differences(found)
        kinds = {difference.action_type for difference in differences}
        example = None
        if kinds & {*actions.FILE_ACTIONS} and self.incremental is None:
            with suppress(LakelogError):
                rows = find_differences(
                    self.comparison, self._prepared_files, self._files_of(staged), most=1
                )
                example = rows["path"][0] if rows.height else None
        what = ", ".join(
            f"{d.action_type} (as many, another content)"
            if d.expected == d.found
            else d.action_type
            for d in differences
        )
        return self._wrong(
            staged,
            f"{what} differ" + ("" if example is None else f", for one {example}"),
            ", ".join(f"{d.expected} {d.action_type}" for d in differences),
            ", ".join(f"{d.found} {d.action_type}" for d in differences),
        )

    def _prepared_files(self) -> Iterable[pl.DataFrame]:
        return (self._with_text(frame) for frame in self._files())

    def _files_of(self, staged: StagedCheckpoint) -> Callable[[], Iterable[pl.DataFrame]]:
        return lambda: self._reader(staged).iter_files(self.comparison.columns)

    def _wrong(
        self,
        staged: StagedCheckpoint,
        what: str,
        expected: object,
        found: object,
        path: str | None = None,
    ) -> CheckpointValidationError:
        return CheckpointValidationError(
            f"the checkpoint that was just written is not what replay gives: {what}",
            path=path or staged.checkpoint.paths[0],
            version=self.plan.version,
            expected=expected,
            found=found,
            hint="nothing was published, and the checkpoint before it is as it was; report this",
        )


def _abandon(writer: CheckpointWriter) -> None:
    with suppress(Exception):  # the error before it is the one that counts
        writer.abandon()


def checkpoints_there(log: Log, plan: CheckpointPlan) -> list[Checkpoint]:
    """Complete checkpoints of the plan's version and layout, the best one first."""
    listing = log.list_since(plan.version)
    same = [c for c in listing.checkpoints if (c.version, c.layout) == (plan.version, plan.layout)]
    return same[::-1]


def sample_statistics(file: pq.ParquetFile) -> Iterator[pl.DataFrame]:
    """Statistics in both forms, where a file has both: some rows of its first, middle and last row
    group. The typed ones are derived, and to parse all texts again would cost more than all else.
    """
    leaves = ("stats", STRUCT_STATISTICS)
    if any(child_type(file.schema_arrow, "add", leaf) is None for leaf in leaves):
        return
    last = file.num_row_groups - 1
    for group in sorted({0, last // 2, last}) if last >= 0 else ():
        rows = file.iter_batches(
            _SAMPLE_ROWS, row_groups=[group], columns=[f"add.{leaf}" for leaf in leaves]
        )
        for batch in islice(rows, 1):
            adds = batch.column(0).filter(batch.column(0).is_valid())
            fields = dict(zip((f.name for f in adds.type), adds.flatten(), strict=True))
            yield pl.DataFrame(
                [
                    pl.Series("actionType", ["add"] * len(adds)),
                    *(pl.Series(leaf, fields[leaf]) for leaf in leaves),
                ]
            )


def _estimate_files(state: State, source: Source) -> int:
    """File actions of a state, about."""
    commits = sum(c.size_bytes for c in state.segment.commits) // _COMMIT_ACTION_BYTES
    if source.road is Road.FREE:
        commits = state.layers.height
    if state.base is None:
        return commits
    below = 0
    for path in state.base.files:
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
