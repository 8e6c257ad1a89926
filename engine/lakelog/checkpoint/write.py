"""Writes a checkpoint in the calling process: `write_checkpoint` and its part writer.

The digest of the replayed rows is compared with the digest of the rows read back from the staged
files, over all rows and all written columns. Encoder errors, lost batches, torn files and exchanged
files are found before a reader can open them. The files are read with the reader that opens tables.
Footers are checked independently of it (`lakelog.checkpoint.compare.check_written_file`).

Source: Delta protocol, Checkpoints.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import PurePosixPath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import telemetry
from lakelog.checkpoint.bounded_memory import prefetch, release
from lakelog.checkpoint.compare import (
    COPIES_DIFFER,
    Comparison,
    check_written_file,
    differs_from_replay,
    find_differences,
    with_protocol,
)
from lakelog.checkpoint.incremental import Incremental, Unfit, plan_incremental
from lakelog.checkpoint.job import (
    CheckpointReport,
    ReadBack,
    StagedParts,
    run_checkpoint_job,
)
from lakelog.checkpoint.plan import (
    ACTION_BYTES,
    CheckpointOptions,
    choose_layout,
    plan_checkpoint,
)
from lakelog.checkpoint.publish import TRY_AGAIN
from lakelog.checkpoint.state_source import ReplayMode, StateSource, open_in_batches
from lakelog.checkpoint.version_checksum import FileCounts, checksum_of, put_checksum
from lakelog.dialects.base import AUTO
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    TYPED_STATISTICS,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    statistics_text,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CheckpointValidationError,
    CheckpointWriteError,
    CorruptionError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.log.context import Log
from lakelog.log.file_order import FileOrder, in_order
from lakelog.log.state import State
from lakelog.skipping.indexed_columns import indexed_columns
from lakelog.skipping.statistics import stats_from_json
from lakelog.telemetry import Progress

_CHECKED_BYTES = 16 << 20  # bytes per batch, while nothing else is in memory
_FEW_ROWS = 4_096  # fewer rows are processed faster without another thread
_COMMIT_ACTION_BYTES = 300  # estimated length of an action in a commit, in bytes
_STATE_ACTION_BYTES = 150
_TEXT_RATIO = 4  # estimated length of a commit's text divided by that of its Parquet
_LEAST_SAMPLE_ROWS = 100  # with fewer rows, the footer may be most of a file


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
    """See `Table.checkpoint`. A complete checkpoint of the same version and layout is kept if
    replay without it gives the same state, or if the files for a replay do not exist; a wrong or
    broken one is replaced. Memory: without a limit, the commits above the previous checkpoint, and
    a few batches of 65,536 rows.
    """
    return run_checkpoint_job(
        log,
        version,
        layout,
        lambda state, layout, *, from_texts: _LocalPartWriter(
            log, state, layout, memory_limit, verify, options, progress, from_texts
        ),
        verify=verify,
        memory_limit=memory_limit,
        progress=progress,
    )


class _LocalPartWriter:
    """Writes the files of a checkpoint in this process; see `PartWriter`."""

    def __init__(
        self,
        log: Log,
        state: State,
        layout: str,
        memory_limit: int | None,
        verify: bool,
        options: CheckpointOptions | None,
        progress: Progress | None,
        from_texts: bool,
    ) -> None:
        self._log = log
        self._state = state
        self._from_texts = from_texts
        self._memory_limit = memory_limit
        self._verify = verify
        self._progress = progress
        self._source = StateSource(state, memory_limit=memory_limit, now_ms=log.clock())
        self._incremental: Incremental | None = None
        self._writer: CheckpointWriter | None = None
        self._counts: FileCounts | None = None
        self._expected = Digest()
        try:
            self.plan = self._planned(layout, options)
        except BaseException:
            self._source.close()
            raise

    def close(self) -> None:
        self._source.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def _planned(self, layout: str, options: CheckpointOptions | None) -> CheckpointPlan:
        source = self._source
        dialect, path = self._log.dialect, self._log.table
        table = TableConfiguration(dialect, source.protocol, source.metadata)
        options = options or CheckpointOptions.of(source.metadata.configuration, dialect)
        others = source.meta.height
        # A sidecar is closed when it is full, so the number of files does not matter.
        chosen = choose_layout(table, path, options, 0, others, layout=layout)
        sized = chosen not in {"classic", "v2-json", "v2-parquet"}
        if chosen == "classic" and layout == AUTO:
            sized = not _fits_one_file(self._state, options)
        files, action_bytes = _estimate(self._state, source) if sized else (0, ACTION_BYTES)
        return plan_checkpoint(
            table,
            path,
            self._state.version,
            options,
            num_files=files,
            num_others=others,
            action_bytes=action_bytes,
            layout=layout,
            memory_limit=self._memory_limit,
            now_ms=self._log.clock(),
        )

    def _planned_incremental(self) -> Incremental | None:
        base, plan = self._state.base, self.plan
        if (
            not plan.layout.startswith("v2-")
            or base is None
            or self._source.replay_mode is not ReplayMode.FREE
        ):
            return None
        found = plan_incremental(
            self._log, self._state, base.checkpoint, plan, now_ms=plan.created_ms
        )
        if isinstance(found, Unfit):
            telemetry.event("checkpoint.whole", version=plan.version, reason=found.reason)
            return None
        return found

    def write(self, *, may_keep_sidecars: bool) -> StagedParts:
        if may_keep_sidecars and (incremental := self._planned_incremental()) is not None:
            self._incremental, self.plan = incremental, incremental.plan
        source, dialect = self._source, self._log.dialect
        meta = with_protocol(source.meta, dialect.default_protocol)
        writer = self._writer = dialect.checkpoint_writer(self._log.store, self.plan)
        comparison = Comparison.of(self.plan, dialect, writer.columns)
        self._comparison = comparison = comparison.limited_to(writer.typed_statistics)
        if self._verify:
            # Recorded with each sidecar, for later checkpoints: only verified digests.
            writer.digest_of = comparison.digest
        expected = comparison.digest(meta)
        written = 0
        with self._writing():
            writer.write_meta(meta)
        for frame in prefetch(self._ordered(), is_large=_is_large):
            with self._writing():
                writer.write_files(frame)
            written += frame.height
            self._report_progress("write", written, None)
        with self._writing():
            staged = writer.finish()
        expected += self._expected if self._incremental is None else self._incremental.expected
        if self._counts is not None:
            self._state.compare_with_checksum(
                numFiles=self._counts.files, tableSizeBytes=self._counts.size_bytes
            )
        return StagedParts(staged, expected, self.plan.kept, len(self.plan.kept))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert errors of the writer to errors of the checkpoint, except those of replay."""
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
            hint="nothing was published, and the previous checkpoint is unchanged",
        )

    def _unwritten(self, message: str, path: str | None) -> CheckpointWriteError:
        return CheckpointWriteError(
            f"the checkpoint could not be written: {message}",
            path=path or self._log.table,
            version=self.plan.version,
            hint=TRY_AGAIN,
        )

    def _files(self) -> Iterable[pl.DataFrame]:
        """File actions from replay."""
        assert self._writer is not None
        columns = dict.fromkeys((*self._writer.columns, *self._comparison.columns))
        base = self._state.base
        if base is None or not base.has_struct_statistics:
            columns.pop(STRUCT_STATISTICS, None)
        elif "stats" in columns:
            columns[STRUCT_STATISTICS] = None  # the text may be encoded from them
        files = self._source if self._incremental is None else self._incremental
        frames = files.files(tuple(columns))
        return map(_with_texts_alone, frames) if self._from_texts else frames

    def _counted(self) -> Iterator[pl.DataFrame]:
        """`_files`, counted before sorting: text is hashed faster in its original order."""
        counts = None
        if self._verify and self._incremental is None:
            counts = self._counts = FileCounts()
        for frame in self._files():
            if counts is not None:
                counts.add(frame)
                self._expected += self._comparison.digest(frame)
            elif self._incremental is None:  # which counts its own files
                self._expected += Digest({frame["actionType"][0]: frame.height})
            yield frame

    def _ordered(self) -> Iterator[pl.DataFrame]:
        """The files in the order of a checkpoint, for the writer."""
        with closing(self._parsed()) as parsed:
            frames: Iterable[pl.DataFrame] = parsed
            if self._incremental is not None:
                order = self._incremental.order
                frames = self._incremental.cuts.counted(parsed)
            else:
                order = FileOrder.of_plan(self.plan, self._source.meta, self._log.dialect)
            held = self._source.held_bytes
            for frame in in_order(frames, order, held_bytes=held, error=CheckpointWriteError):
                yield self._with_text(frame)
                if self._memory_limit is not None:
                    release()

    def _parsed(self) -> Generator[pl.DataFrame, None, None]:
        """`_counted`, with statistics parsed once for the order and the typed copies."""
        plan, writer = self.plan, self._writer
        assert writer is not None
        takes_typed = writer.typed_statistics is not None and STRUCT_STATISTICS in writer.columns
        if not takes_typed or self._memory_limit is not None:
            yield from self._counted()
            return
        indexed = indexed_columns(plan.schema, plan.partition_columns, plan.configuration)
        with closing(prefetch(self._counted(), is_large=_is_large)) as ahead:
            for files in ahead:
                is_add = files.height and files["actionType"][0] == "add"
                if is_add and "stats" in files.columns and STRUCT_STATISTICS not in files.columns:
                    parsed = stats_from_json(files["stats"], indexed, mapping=plan.mapping)
                    yield files.with_columns(parsed.to_struct(TYPED_STATISTICS))
                else:
                    yield files

    def _with_text(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds with the text of statistics, if the previous checkpoint has only typed ones."""
        wanted = self.plan.stats_as_json and STRUCT_STATISTICS in frame.columns
        return frame.with_columns(statistics_text(frame)) if wanted else frame

    def read_back(self, parts: StagedParts) -> ReadBack:
        if self._memory_limit is not None:
            self._source.close()  # its rows are no longer needed
        try:
            reader = self._reader(parts)
            found = self._comparison.digest(
                with_protocol(reader.read_meta(), self._log.dialect.default_protocol)
            )
            if self._incremental is not None:
                found += self._incremental.verify(
                    parts.staged, reader, lambda frame: self._require_unchanging(frame, parts)
                )
            else:
                read = self._read_files(reader)
                for frame, each in prefetch(read, is_large=lambda found: _is_large(found[0])):
                    found += each
                    self._report_progress("verify", found.total, parts.expected.total)
                    self._require_unchanging(frame, parts)
            return ReadBack(found, *self._check_files(parts))
        except CheckpointValidationError:
            raise
        except (CorruptionError, NotFoundError) as cause:
            raise self._unreadable(cause) from cause
        except (UnavailableError, OutcomeUnknownError) as cause:
            raise self._unwritten(cause.message, cause.path) from cause

    def _reader(self, parts: StagedParts) -> CheckpointReader:
        limit = self._memory_limit
        batch_bytes = None if limit is None else limit // 64
        return open_in_batches(
            self._log, parts.staged.checkpoint, batch_bytes, near_batch_bytes=_CHECKED_BYTES
        )

    def _read_files(self, reader: CheckpointReader) -> Iterator[tuple[pl.DataFrame, Digest]]:
        columns = tuple(dict.fromkeys(("dataChange", *self._comparison.columns)))
        for frame in reader.iter_files(columns):
            yield frame, self._comparison.digest(frame)
            if self._memory_limit is not None:
                release()

    def _require_unchanging(self, frame: pl.DataFrame, parts: StagedParts) -> None:
        """Raise if a file action has ``dataChange`` true."""
        if "dataChange" in frame.columns and frame["dataChange"].any():
            path = parts.staged.checkpoint.paths[0]
            what = "a file action has dataChange true"
            raise differs_from_replay(what, path, self.plan.version, expected=False, found=True)

    def _check_files(self, parts: StagedParts) -> tuple[int, str | None]:
        """Check each file; returns uncompressed bytes, and a file with wrong statistics."""
        version, plain, differing = self.plan.version, 0, None
        for file in parts.staged.files:
            try:
                check = check_written_file(
                    self._log.store, file.path, file.size_bytes, file.num_actions, self._comparison
                )
            except LakelogError:
                raise
            except (pa.ArrowException, OSError, ValueError) as cause:
                what = "a file cannot be read"
                raise differs_from_replay(
                    what, file.path, version, "Parquet", str(cause)[:200]
                ) from cause
            if check.problem == COPIES_DIFFER:
                differing = file.path
            elif check.problem:
                raise differs_from_replay(
                    check.problem, file.path, version, check.expected, check.found
                )
            plain += check.plain_bytes
        return plain, differing

    def differing_path(self, parts: StagedParts) -> str | None:
        if self._incremental is not None:
            return None
        try:
            rows = find_differences(
                self._comparison,
                lambda: map(self._with_text, self._files()),
                lambda: self._reader(parts).iter_files(self._comparison.columns),
                most=1,
            )
        except LakelogError:  # the difference found before is raised
            return None
        return rows["path"][0] if rows.height else None

    def published(self) -> Sequence[str]:
        """Write the version's checksum if its counts are verified; it is not necessary."""
        counts, version = self._counts, self._state.version
        if counts is None or self._log.dialect.checksum_path(version) is None:
            return ()
        try:
            body = checksum_of(self._state, self._source, counts)
            found = put_checksum(self._log, version, body)
        except LakelogError as error:
            return (f"no version checksum was written: {error.message}",)
        if found.disagreements:
            return (f"{found.path} differs from replay, and was not changed",)
        return ()

    def _report_progress(self, step: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(step, done, total)


def _with_texts_alone(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows with JSON statistics alone, made from typed ones where there are none."""
    if STRUCT_STATISTICS not in frame.columns or "stats" not in frame.columns:
        return frame
    return frame.with_columns(stats=statistics_text(frame)).drop(STRUCT_STATISTICS)


def _is_large(frame: pl.DataFrame) -> bool:
    return frame.height > _FEW_ROWS


def _fits_one_file(state: State, options: CheckpointOptions) -> bool:
    """Whether one checkpoint file is enough: a classic checkpoint is not longer than the Parquet or
    the text that it replaces.
    """
    base = state.base.checkpoint if state.base is not None else None
    sizes = base.sizes_bytes if base is not None else ()
    if options.part_actions is not None or (
        base is not None and (base.layout.startswith("v2-") or not sizes)
    ):
        return False
    tail = sum(c.size_bytes for c in state.segment.commits)
    return sum(sizes) + tail <= options.max_file_bytes


def _estimate(state: State, source: StateSource) -> tuple[int, int]:
    """Estimated number of file actions of a state, and length of one in Parquet, in bytes."""
    text = sum(c.size_bytes for c in state.segment.commits)
    commits = text // _COMMIT_ACTION_BYTES
    action_bytes = ACTION_BYTES
    if source.replay_mode is ReplayMode.FREE:
        commits = state.layers.height
        action_bytes = max(action_bytes, text // max(1, commits) // _TEXT_RATIO)
    if state.base is None:
        return commits, action_bytes
    below = 0
    checkpoint = state.base.checkpoint
    # Only a Delta manifest or an Avro state refers to more files; the commits below are not rows.
    is_listed = checkpoint.layout in {"json", "json-multipart", "flattened"}
    for path in checkpoint.paths if is_listed else state.base.files:
        with suppress(pa.ArrowException, OSError, ValueError), state.log.store.open(path) as file:
            length = file.seek(0, 2)
            if PurePosixPath(path).suffix == ".parquet":
                rows = pq.read_metadata(file).num_rows
                below += rows
                action_bytes = max(action_bytes, length // max(_LEAST_SAMPLE_ROWS, rows))
            else:
                below += length // _STATE_ACTION_BYTES
    return below + commits, action_bytes
