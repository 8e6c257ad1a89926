"""Writes the files of a checkpoint under temporary names, reads them back, and compares them.

The digest of what came out of replay is compared with the digest of what was read back from the
staged files, all rows and all columns that are kept: so an encoder's mistake, a lost batch, a torn
file and a file under another's name are all found before any reader can see them. The reader is
the one that everybody opens tables with. So that a reader's mistake cannot hide a writer's, the
footers' row counts are compared too. Typed copies of statistics that stand next to their text are
derived from it; they are held against it in a sample of each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.checkpoint.compare import Comparison, find_differences, with_protocol
from lakelog.checkpoint.incremental import Incremental
from lakelog.checkpoint.memory_budget import release
from lakelog.checkpoint.prefetch import prefetch
from lakelog.checkpoint.state_source import StateSource, open_in_batches
from lakelog.checkpoint.version_checksum import FileCounts
from lakelog.dialects.delta.parquet import child_type
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    StagedCheckpoint,
)
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
from lakelog.log.files import statistics_text
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.telemetry import Progress

_SAMPLE_ROWS = 2_048
_CHECKED_BYTES = 16 << 20  # of a batch: while it is read back, nothing else is held
_FEW_ROWS = 4_096  # are done before another thread has begun
_PARQUET_MAGIC = b"PAR1"


@dataclass
class Staging:
    """What is written of one checkpoint, and what is read back of it.

    Attributes:
        log: The table's log.
        state: What is replayed.
        plan: The checkpoint that is to be.
        writer: Writes its files, under names that no reader opens.
        comparison: What is compared of the rows.
        source: Gives them.
        incremental: How it is written where sidecars are kept; None for a whole one.
        verify: Whether digests are taken, for `read_back` to compare.
        memory_limit: Bytes that the process may take at its peak; None for no bound.
        tell: Called with the progress of each step, in actions.
        counts: Afterwards, what the files of a whole one come to, where digests were taken.
        plain_bytes: After `read_back`, the length of columns before compression.
    """

    log: Log
    state: State
    plan: CheckpointPlan
    writer: CheckpointWriter
    comparison: Comparison
    source: StateSource
    incremental: Incremental | None
    verify: bool
    memory_limit: int | None
    tell: Progress
    counts: FileCounts | None = None
    plain_bytes: int = 0

    def write(self, meta: pl.DataFrame) -> tuple[StagedCheckpoint, Digest]:
        """Stage the files; the digest is that of the rows that came out of replay."""
        expected = self.comparison.digest(meta)
        written = 0
        with self._writing():
            self.writer.write_meta(meta)
        for frame, found in prefetch(self._hashed(), is_large=_is_large):
            with self._writing():
                self.writer.write_files(frame)
            expected += found
            written += frame.height
            self.tell("write", written, None)
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
            hint="nothing was published, and the previous checkpoint is unchanged",
        )

    def _unwritten(self, message: str, path: str | None) -> CheckpointWriteError:
        return CheckpointWriteError(
            f"the checkpoint could not be written: {message}",
            path=path or self.log.table,
            version=self.plan.version,
            hint="the previous checkpoint is unchanged; try again",
        )

    def _files(self) -> Iterator[pl.DataFrame]:
        columns = dict.fromkeys((*self.writer.columns, *self.comparison.columns))
        base = self.state.base
        if base is None or not base.has_struct_statistics:
            columns.pop(STRUCT_STATISTICS, None)
        elif "stats" in columns:
            columns[STRUCT_STATISTICS] = None  # the text may have to be made from them
        files = self.source if self.incremental is None else self.incremental
        frames = files.files(tuple(columns))
        order = FileOrder.of_plan(self.plan, self.source.meta, self.log.dialect)
        held = self.source.held_bytes
        for frame in in_order(frames, order, held_bytes=held, error=CheckpointWriteError):
            yield frame
            if self.memory_limit is not None:
                release()

    def _hashed(self) -> Iterator[tuple[pl.DataFrame, Digest]]:
        if self.verify and self.incremental is None:
            self.counts = FileCounts()
        for frame in self._files():
            whole = self._with_text(frame)
            if self.counts is not None:
                self.counts.add(whole)
            yield whole, self._counted(whole)

    def _counted(self, frame: pl.DataFrame) -> Digest:
        if self.incremental is not None:
            return Digest()  # it counts itself
        if not self.verify:
            return Digest({frame["actionType"][0]: frame.height})
        return self.comparison.digest(frame)

    def _with_text(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds with the text of statistics that the checkpoint below keeps typed alone."""
        wanted = self.plan.stats_as_json and STRUCT_STATISTICS in frame.columns
        return frame.with_columns(statistics_text(frame)) if wanted else frame

    # --- reading back --------------------------------------------------------------------------

    def read_back(self, staged: StagedCheckpoint, expected: Digest) -> None:
        """Compare the content of the staged files with the result of replay."""
        if self.memory_limit is not None:
            self.source.close()  # what it holds is of no more use
        try:
            reader = self._reader(staged)
            found = self.comparison.digest(
                with_protocol(reader.read_meta(), self.log.dialect.default_protocol)
            )
            if self.incremental is not None:
                found += self.incremental.verify(
                    staged, reader, lambda frame: self._require_unchanging(frame, staged)
                )
            else:
                for frame, each in prefetch(self._read_files(reader), is_large=_is_large):
                    found += each
                    self.tell("verify", found.total, expected.total)
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
            # Readers of JSON count a repeated line once.
            raise self._wrong(
                staged, "it contains more actions than expected", expected.total, rows
            )

    def _reader(self, staged: StagedCheckpoint) -> CheckpointReader:
        limit = self.memory_limit
        batch_bytes = None if limit is None else limit // 64
        return open_in_batches(
            self.log, staged.checkpoint, batch_bytes, near_batch_bytes=_CHECKED_BYTES
        )

    def _read_files(self, reader: CheckpointReader) -> Iterator[tuple[pl.DataFrame, Digest]]:
        columns = tuple(dict.fromkeys(("dataChange", *self.comparison.columns)))
        for frame in reader.iter_files(columns):
            yield frame, self.comparison.digest(frame)
            if self.memory_limit is not None:
                release()

    def _require_unchanging(self, frame: pl.DataFrame, staged: StagedCheckpoint) -> None:
        """No file action of a state changes data."""
        if "dataChange" in frame.columns and frame["dataChange"].any():
            raise self._wrong(staged, "a file action has dataChange true", False, True)

    def _compare_footers(self, staged: StagedCheckpoint) -> None:
        """Each Parquet file holds as many rows as were written to it, and typed statistics say
        what their text says.
        """
        for entry in staged.files:
            with self.log.store.open(entry.path, entry.size_bytes) as source:
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
            self.plain_bytes += sum(group.total_byte_size for group in groups)
            if footer.num_rows != entry.num_actions:
                raise self._wrong(
                    staged,
                    "a file does not contain the rows that were written to it",
                    f"{entry.num_actions} rows",
                    f"{footer.num_rows} rows",
                    entry.path,
                )
            if differ:
                raise self._wrong(
                    staged,
                    "typed statistics differ from the JSON statistics",
                    None,
                    None,
                    entry.path,
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
            f"the checkpoint that was just written differs from replay: {what}",
            path=path or staged.checkpoint.paths[0],
            version=self.plan.version,
            expected=expected,
            found=found,
            hint="nothing was published, and the previous checkpoint is unchanged; report this",
        )


def _is_large(item: tuple[pl.DataFrame, Digest]) -> bool:
    return item[0].height > _FEW_ROWS


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
