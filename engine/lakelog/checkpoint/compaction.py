"""Writes log compaction files: the commits of a range, reconciled into one file.

A reader may read the file instead of the commits, so it contains every action that can override
versions below the range: tombstones of any age, removed domains, and expired transaction
identifiers. It omits commitInfo and cdc, which are history and not state; readers of history read
the commits.

The file is written under a temporary name that readers ignore, read back, compared with the commits
by a digest of every action, and then renamed unless the name exists. Its last line records the
number of the other lines, so that a file truncated at a line end is detected.

Source: Delta protocol, Log Compaction Files; Action Reconciliation; Catalog-managed tables,
Maintenance Operations.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.bounded_memory import Budget, Spill, release, resident_bytes
from lakelog.checkpoint.compare import with_sorted_json
from lakelog.checkpoint.plan import check_writers
from lakelog.checkpoint.publish import put_unless_exists
from lakelog.checkpoint.state_source import count_partitions
from lakelog.dialects.digest import Digest, digest
from lakelog.dialects.log_content import CommitContent, CommitFile
from lakelog.dialects.truncation_marks import CLOSING, closing_line
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CheckpointValidationError,
    InvalidInputError,
    InvalidTransactionError,
    LakelogError,
    OutcomeUnknownError,
    UnsupportedError,
    VersionNotFoundError,
)
from lakelog.log.context import Log
from lakelog.log.opening import open_state
from lakelog.log.replay import Layers, reconcile_files, reconcile_meta
from lakelog.model import actions
from lakelog.storage.durable import temporary_path

_BATCH_ROWS = 1 << 16
_CHUNK_BYTES = 32 << 20
_WHOLE_BYTES = 64 << 20  # bytes; smaller files are written under the final name at once
_COMPARED = tuple(c for c in actions.schema() if c not in (*actions.ORDER, "timestamp"))


@dataclass(frozen=True)
class CompactionReport(Displayed):
    """Result of a log compaction.

    Attributes:
        start: First version of the range, inclusive.
        end: Last version of the range, inclusive.
        path: Path of the file, relative to the table root.
        written: Whether this call wrote the file; False if it existed.
        size_bytes: Length of the file in bytes; 0 if this call did not write it.
        commit_bytes: Total length of the commits that it replaces, in bytes.
        num_adds: Number of add actions.
        num_removes: Number of remove actions (tombstones).
        num_others: Number of other actions.
    """

    _title = "Log compaction"

    start: int
    end: int
    path: str
    written: bool
    size_bytes: int
    commit_bytes: int
    num_adds: int
    num_removes: int
    num_others: int

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        facts = [
            ("versions", f"{self.start} to {self.end}"),
            ("path", self.path),
            ("commits", size_text(self.commit_bytes)),
            ("written", size_text(self.size_bytes) if self.written else "no, it existed"),
        ]
        if not self.written:
            return facts
        return [
            *facts,
            ("added files", f"{self.num_adds:,}"),
            ("removed files", f"{self.num_removes:,}"),
            ("other actions", f"{self.num_others:,}"),
        ]


def compact_log(
    log: Log, start: int, end: int, *, memory_limit: int | None = None
) -> CompactionReport:
    """Write the log compaction of the commits `start` to `end`; see `lakelog.Table.compact_log`."""
    with telemetry.span("compaction.write", path=log.table, start=start, end=end):
        return _Compaction(log, start, end, memory_limit).run()


class _Compaction:
    def __init__(self, log: Log, start: int, end: int, memory_limit: int | None) -> None:
        if type(start) is not int or type(end) is not int or not 0 <= start < end:
            raise InvalidInputError(
                "a log compaction needs a range of at least two versions",
                expected="0 <= start < end",
                found=f"{start} to {end}",
            )
        path = log.dialect.compaction_path(start, end)
        if path is None:
            raise UnsupportedError(
                "this format has no log compaction files", path=log.table, found=log.dialect.name
            )
        self.path = path
        self.log, self.start, self.end = log, start, end
        self.budget: Budget | None = None
        if memory_limit is not None:
            self.budget = Budget.of(memory_limit, resident_bytes())
        self.staged = temporary_path(log.dialect.log_folder)

    def run(self) -> CompactionReport:
        commits = self._commits()
        state = open_state(self.log, self.end)
        check_writers(state.table_configuration, self.log.table)
        size = sum(c.size_bytes for c in commits)
        if self.log.store.stat(self.path) is not None:
            return self._report(False, 0, size, Digest())
        try:
            written, expected = self._stage(commits)
            if not expected.total:
                raise InvalidInputError(
                    "the commits have no actions that a log compaction keeps",
                    path=self.path,
                    expected="an action that is not commitInfo or cdc",
                )
            self._verify(written, expected)
            published = self._publish(written)
        finally:
            with suppress(LakelogError):
                self.log.store.delete(self.staged)
        return self._report(published, written if published else 0, size, expected)

    def _report(
        self, written: bool, size_bytes: int, commit_bytes: int, held: Digest
    ) -> CompactionReport:
        adds, removes = (held.counts.get(kind, 0) for kind in actions.FILE_ACTIONS)
        others = held.total - adds - removes
        return CompactionReport(
            *(self.start, self.end, self.path, written, size_bytes, commit_bytes),
            *(adds, removes, others),
        )

    def _commits(self) -> list[CommitFile]:
        listed = self.log.list_since(self.start)
        commits = [c for c in listed.commits if self.start <= c.version <= self.end]
        # Only the first one is reported: the range can have any length.
        there = {c.version for c in commits}
        missing = next((v for v in range(self.start, self.end + 1) if v not in there), None)
        if missing is not None:
            raise VersionNotFoundError(
                "a commit of the range was not found",
                path=self.log.dialect.commit_path(missing),
                version=missing,
                expected=f"commits {self.start} to {self.end}",
                hint="choose a range of versions whose commits all exist",
            )
        return commits

    def _stage(self, commits: Sequence[CommitFile]) -> tuple[int, Digest]:
        """Write the reconciled actions under a temporary name; returns length and digest."""
        expected = Digest()
        with (
            closing(self._reconciled(commits)) as frames,
            self.log.store.upload(self.staged) as upload,
        ):
            lines = crc = 0
            for frame in frames:
                spelled = self._spell(frame, commits)
                lines, crc = lines + frame.height, zlib.crc32(spelled, crc)
                upload.write(spelled)
                expected += _digest(frame)
            upload.write(closing_line(lines, crc))
            written = upload.tell()
        return written, expected

    def _spell(self, rows: pl.DataFrame, commits: Sequence[CommitFile]) -> bytes:
        is_file = rows["actionType"][0] in actions.FILE_ACTIONS
        content = CommitContent(meta=rows)
        if is_file:
            texts = self.log.dialect.path_texts(self.log.store, None, commits, rows["path"])
            content = CommitContent(files=rows, texts=texts)
        try:
            return self.log.dialect.encode(content)
        except InvalidTransactionError as cause:
            raise UnsupportedError(
                f"an action of the log cannot be encoded again: {cause.message}",
                path=self.path,
                expected=cause.expected,
                found=cause.found,
                hint="omit the log compaction; the commits remain readable",
            ) from cause

    def _verify(self, written: int, expected: Digest) -> None:
        """Read the file back and compare every action."""
        found = Digest()
        file = CommitFile(self.end, self.staged, written, 0)
        for piece in self.log.dialect.decode_pieces(self.log.store, [file], self._chunk_bytes):
            if piece.commit_infos or piece.other["actionType"].to_list() not in ([], [CLOSING]):
                found += Digest({"other": 1}, {"other": 1})
            found += _digest(piece.files) + _digest(piece.meta)
        differences = expected.differences(found)
        if differences:
            kind, there, here = differences[0]
            raise CheckpointValidationError(
                f"the log compaction differs from its commits: {kind}",
                path=self.path,
                version=self.end,
                expected=there,
                found=here if here != there else "the same number of actions, with other content",
                hint="nothing was published; try again, and report a bug if it happens again",
            )

    def _publish(self, size_bytes: int) -> bool:
        """Publish the file if its name is free; concurrent writers write the same content."""
        store = self.log.store
        if size_bytes > (_WHOLE_BYTES if self.budget is None else self.budget.whole):
            if store.stat(self.path) is not None:
                return False
            try:
                store.move(self.staged, self.path)
            except OutcomeUnknownError:
                there = store.stat(self.path)
                if there is None or there.size_bytes != size_bytes:
                    raise
            return True
        return put_unless_exists(store, self.path, store.read(self.staged))

    def _reconciled(self, commits: Sequence[CommitFile]) -> Generator[pl.DataFrame, None, None]:
        """The reconciled actions in batches, file actions last; on disk with a memory limit."""
        layers, meta = Layers(), reconcile_meta([])
        text = sum(c.size_bytes for c in commits)
        with ExitStack() as stack:
            spill: Spill | None = None
            if self.budget is not None and text > self.budget.tail:
                partitions = count_partitions(text, self.budget.partition)
                spill = stack.enter_context(Spill(partitions, self.budget.flush))
            for piece in self.log.dialect.decode_pieces(self.log.store, commits, self._chunk_bytes):
                if spill is not None:
                    spill.append(piece.files)
                else:
                    layers = layers.push(piece.files)
                meta = reconcile_meta([meta, piece.meta])
                self._release()
            if meta.height:
                yield meta
            files: Iterable[pl.DataFrame] = map(layers.live, actions.FILE_ACTIONS)
            if spill is not None:
                files = (reconcile_files(spill.read(n)) for n in range(spill.partitions))
            for frame in files:
                for kind in actions.FILE_ACTIONS:
                    rows = frame.filter(pl.col("actionType") == kind)
                    rows = rows.with_columns(dataChange=pl.lit(value=False))
                    yield from rows.iter_slices(_BATCH_ROWS) if rows.height else ()
                self._release()

    @property
    def _chunk_bytes(self) -> int:
        return _CHUNK_BYTES if self.budget is None else self.budget.chunk

    def _release(self) -> None:
        if self.budget is not None:
            release()


def _digest(rows: pl.DataFrame) -> Digest:
    """The digest over all columns of commits; the fields of ``extra`` are sorted first."""
    return digest(with_sorted_json(rows, "extra"), _COMPARED)
