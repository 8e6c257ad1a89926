"""The public interface of the write-ahead log."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal

import pyarrow as pa

from lakelog.dialects.log_folders import require_outside_tables
from lakelog.display import Displayed
from lakelog.errors import InvalidInputError, NotFoundError
from lakelog.input_validation import require_bool, require_choice, require_int
from lakelog.telemetry import event
from lakelog.wal.disk import (
    Access,
    Closing,
    Disk,
    HeldLock,
    LocalDisk,
    disk_errors,
    local_directory,
)
from lakelog.wal.encode import RECORD_BYTES, Compression, check_columns, check_size, columns_of
from lakelog.wal.frames import MAX_SEQ, Op
from lakelog.wal.group_commit import CommitQueue, Committer, Encode, Entry
from lakelog.wal.opening import RecoveryReport, open_for_writing, report_of
from lakelog.wal.placement import require_own_directory
from lakelog.wal.reading import state_of, table_of, tables_of
from lakelog.wal.records import (
    WalRecord,
    WalRecords,
    batch_of,
    code_of,
    columns_of_table,
    data_of,
    put_without_value,
    records_of,
)
from lakelog.wal.recovery import Verdict, judge, survey, with_frames
from lakelog.wal.segments import LOCK_NAME, Segment, of_segments
from lakelog.wal.writer import Writer

Sync = Literal["sync", "batch", "none"]

_SEGMENT_BYTES = 64 << 20
"""Default size in bytes at which a new segment is started."""

FRAME_BYTES = 16 << 20
"""Default maximum bytes of a batch per frame."""

_MOST_FRAME_BYTES = 1 << 29
"""Upper bound of the bytes of a batch per frame."""

BATCH_APPENDS = 100
"""Default number of appends per fsync with ``sync="batch"``."""


_MISSING = (
    "pass the directory of a log; that of a keyed store or an Ingestor is their folder wal. "
    "Without read_only a new log is created"
)


@dataclass(frozen=True)
class TruncateReport(Displayed):
    """Result of a truncation.

    Attributes:
        truncated_to: Records up to this sequence number are truncated.
        removed: The deleted segments.
    """

    truncated_to: int
    removed: tuple[str, ...]


class WriteAheadLog(Closing):
    """A write-ahead log in a directory on local disk.

    Records have contiguous sequence numbers from 1, in the order in which they were appended. An
    append is acknowledged when it is as durable as ``sync`` specifies. All methods are
    thread-safe; concurrent appends share one write and one fsync. One process writes at a time.
    Other processes can read concurrently (``read_only=True``), and may see a record shortly
    before it is durable.

    If a write is interrupted (``KeyboardInterrupt``) or an fsync fails, the state of the disk is
    unknown. The log then refuses all further calls until it is closed and reopened. A signal
    handler must not call a log whose call it interrupted.

    When a log is opened for writing, an incomplete tail after the last whole record is truncated,
    and `recovery` reports it. Damage before the tail is an error.

    Args:
        directory: Directory of the log; created if it does not exist.
        sync: What an acknowledged append survives. ``sync``: a crash of the machine. ``batch``: the
            same, except for the last ``batch_appends`` appends. ``none``: a crash of the process.
        segment_bytes: Size in bytes at which a new segment is started.
        compression: ``zstd`` compresses frames of at least 256 bytes if that makes them smaller.
        strict: Whether damage raises an error. If False, the log is opened up to the damage; a
            writer renames the rest to names that end in ``.damaged``, and `recovery` reports it.
        read_only: Open for reading, concurrently with a writer: takes no lock, changes nothing.
        missing_ok: With `read_only`, treat a log that does not exist as empty.
        batch_appends: With ``sync="batch"``, the number of appends per fsync.
        frame_bytes: Maximum bytes of a batch per frame.
        disk: The filesystem.
        clock: Milliseconds since 1970, for segment headers.
        new_id: 16 bytes that identify the log.

    Raises:
        InvalidInputError: The directory is a file, inside a table, or one of a keyed store or an
            Ingestor.
        LogLockedError: Another writer has locked the log.
        WalCorruptionError: The log is damaged, and ``strict`` is true. Nothing was changed.
        NotFoundError: The log does not exist, and `missing_ok` is false.
        UnsupportedError: The log was written by a later version of lakelog or in a historic format.
        UnavailableError: The disk failed.

    Source: ``schemas/wal.md``.

    Example:
        >>> with WriteAheadLog("log") as log:
        ...     log.append("PUT", "city", "Ghent")
        ...     log.append_batch([("PUT", "river", "Leie"), ("DELETE", "city", None)])
        ...     log.state().to_pydict()
        1
        4
        {'key': [b'river'], 'value': [b'Leie'], 'seqNum': [2]}
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        sync: Sync = "sync",
        *,
        segment_bytes: int = _SEGMENT_BYTES,
        compression: Compression = "none",
        strict: bool = True,
        read_only: bool = False,
        missing_ok: bool = False,
        batch_appends: int = BATCH_APPENDS,
        frame_bytes: int = FRAME_BYTES,
        disk: Disk | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
    ) -> None:
        require_choice("sync", sync, ("sync", "batch", "none"))
        require_choice("compression", compression, ("none", "zstd"))
        segment_bytes = require_int("segment_bytes", segment_bytes, least=1)
        batch_appends = require_int("batch_appends", batch_appends, least=1)
        frame_bytes = require_int("frame_bytes", frame_bytes, 1, _MOST_FRAME_BYTES)
        for name, flag in (
            ("strict", strict),
            ("read_only", read_only),
            ("missing_ok", missing_ok),
        ):
            require_bool(name, flag)
        self._directory = local_directory(directory) if disk is None else os.fsdecode(directory)
        self._disk = disk or LocalDisk()
        self._strict = strict
        self._missing_ok = missing_ok
        self._sync = sync
        self._access = Access("log", self._directory, read_only, None if read_only else os.getpid())
        self._lock: HeldLock | None = None
        self._committer: Committer | None = None
        self._report: RecoveryReport | None = None
        self._found: Verdict | None = None
        with self._errors(may_be_missing=read_only):
            if read_only:
                found = self._survey(MAX_SEQ if strict else 0)
                if not found.live and found.damage is None and not missing_ok:
                    raise NotFoundError(
                        "write-ahead log not found", path=self._directory, hint=_MISSING
                    )
                return
            require_outside_tables(self._directory, "write-ahead log")
            require_own_directory(self._disk, self._directory)
            self._disk.make_directory(self._directory)
            self._lock = self._disk.lock(f"{self._directory}/{LOCK_NAME}", _owner())
            try:
                opened = open_for_writing(
                    self._disk,
                    self._directory,
                    strict=strict,
                    was_closed_cleanly=self._lock.was_closed_cleanly,
                    compression=compression,
                    frame_bytes=frame_bytes,
                    clock=clock,
                    new_id=new_id,
                    is_locked=self._lock.is_held,
                )
            except BaseException:
                self._lock.release()
                raise
        self._report = opened.report
        self._found = opened.verdict if opened.verdict.damage is None else None
        every = {"sync": 1, "batch": batch_appends, "none": 0}[sync]
        self._committer = Committer(opened.writer, segment_bytes, every)
        self._queue: CommitQueue[Entry] = CommitQueue(self._committer.serve)

    @property
    def directory(self) -> str:
        """Directory of the log."""
        return self._directory

    @property
    def recovery(self) -> RecoveryReport | None:
        """Records and bytes dropped when the log was opened; None if none were.

        For a reader it reports only damage, as of the last time that the whole log was read: on
        opening with ``strict=False``, and at every `replay` and `iterate` from the beginning.
        """
        return self._report

    @property
    def truncated_to(self) -> int:
        """Records up to this sequence number are truncated; 0 if none are.

        Raises:
            WalCorruptionError, UnavailableError: As `replay`, if the log is read-only.
        """
        if self._committer is not None:
            return self._writer().truncated_to
        return self._verdict(MAX_SEQ).truncated_to

    def append(self, op: Op, key: bytes | str, value: bytes | str | None = None) -> int:
        """Append one record.

        Args:
            op: PUT, DELETE, COMMIT or CHECKPOINT.
            key: Bytes, or text (encoded as UTF-8).
            value: Bytes or text, or None. A PUT record must have a value, which may be empty.

        Returns:
            The sequence number of the record.

        Raises:
            InvalidInputError: The record is invalid, or the log is closed or read-only.
            UnavailableError: The record was not written, for example because the disk is full. The
                log remains usable.
            OutcomeUnknownError: The record may have been written: a sync failed, or the thread that
                wrote it was interrupted. The log must be reopened.
            LogPoisonedError: The log must be reopened after an earlier failure; nothing was
                written.
        """
        code = code_of(op)
        key = data_of(key)
        if value is not None:
            value = data_of(value, "value")
        elif op == "PUT":
            raise put_without_value()
        size = len(key) + (len(value) if value is not None else 0)
        check_size(size)
        return self._write(Entry(code, (key,), (value,), size + RECORD_BYTES))

    def append_batch(self, records: Iterable[tuple[str, bytes | str, bytes | str | None]]) -> int:
        """Append records atomically: after a crash either all of them exist or none.

        Args:
            records: Tuples of operation (PUT or DELETE), key and value, as `append` takes them.

        Returns:
            The sequence number of the COMMIT record that ends the batch; the records have the
            numbers directly before it.

        Raises:
            InvalidInputError, UnavailableError, OutcomeUnknownError, LogPoisonedError: As `append`.
        """
        frame_bytes = self._writer().framing.frame_bytes
        return self._write(Entry.batch(*batch_of(records), frame_bytes))

    def append_table(self, table: Any) -> int:
        """Append the rows of a table as one batch.

        Args:
            table: An Arrow, Polars or pandas table, or any object with an Arrow stream, with the
                columns ``op`` (PUT or DELETE), ``key`` and ``value`` (binary or text; not null for
                PUT).

        Returns:
            The sequence number of the COMMIT record that ends the batch.

        Raises:
            InvalidInputError, UnavailableError, OutcomeUnknownError, LogPoisonedError: As `append`.
        """
        columns = list(columns_of_table(table))
        for each in columns:
            check_columns(each)
        return self._write(Entry.of_columns(columns or [columns_of(b"", (), ())]))

    def checkpoint(self) -> int:
        """Append a CHECKPOINT record. It is durable, unless ``sync`` is ``none``.

        Returns:
            Its sequence number.

        Raises:
            UnavailableError, OutcomeUnknownError, LogPoisonedError: As `append`.
        """
        entry = Entry(code_of("CHECKPOINT"), (b"",), (None,))
        entry.is_urgent = True
        return self._write(entry)

    def sync(self) -> None:
        """Wait until all appended records survive a crash of the machine.

        Raises:
            OutcomeUnknownError: An fsync failed; the log must be reopened.
            LogPoisonedError: The log must be reopened after an earlier failure.
        """
        self._do(self._writer().sync)

    def truncate(self, up_to_seq: int) -> TruncateReport:
        """Truncate records that are stored elsewhere, and delete the segments that contain no
        others. Sequence numbers continue. A crash at any point is safe.

        Args:
            up_to_seq: The last sequence number to truncate. A number that is already truncated
                changes nothing.

        Raises:
            InvalidInputError: The number is negative, or no such record exists yet.
            UnavailableError: Nothing changed, or files could not be deleted.
            OutcomeUnknownError: An fsync failed; the log must be reopened.
            LogPoisonedError: The log must be reopened after an earlier failure.
        """
        writer = self._writer()
        up_to_seq = _sequence_number("up_to_seq", up_to_seq)

        def act() -> TruncateReport:
            if up_to_seq >= writer.next_seq:
                raise InvalidInputError(
                    "a log cannot be truncated after its last record",
                    path=self._directory,
                    expected=f"0 to {writer.next_seq - 1}",
                    found=up_to_seq,
                )
            removed = writer.truncate(up_to_seq)
            return TruncateReport(writer.truncated_to, tuple(removed))

        report: TruncateReport = self._do(act)
        event("wal.truncated", path=self._directory, up_to_seq=up_to_seq, files=len(report.removed))
        return report

    def replay(self, after_seq: int = 0) -> WalRecords:
        """The PUT and DELETE records, in order.

        Args:
            after_seq: Return only records with a greater sequence number.

        Returns:
            A sequence of records with ``op_type``, ``key``, ``value``, ``seq_num`` and
            ``checksum``, which is also a table with an Arrow stream: ``seqNum`` (int64), ``op``
            (dictionary of strings), ``key`` and ``value`` (binary). Columns of large frames are
            memory-mapped, those of small frames are copied.

        Raises:
            WalCorruptionError: A requested record is damaged, and ``strict`` is true.
            UnavailableError: The disk failed.
        """
        after_seq = _sequence_number("after_seq", after_seq)
        return WalRecords(table_of(self._verdict(after_seq), after_seq))

    def iterate(self, after_seq: int = 0) -> Iterator[pa.Table]:
        """All records, including COMMIT and CHECKPOINT, in order, one table per segment.

        Args:
            after_seq: Return only records with a greater sequence number.

        Returns:
            Tables as `replay` returns them, read lazily, of the log as it was when the first one
            was read.

        Raises:
            WalCorruptionError, UnavailableError: As `replay`, before the first table.
        """
        after_seq = _sequence_number("after_seq", after_seq)
        yield from tables_of(self._verdict(after_seq), after_seq)

    def records(self, after_seq: int = 0) -> Iterator[WalRecord]:
        """The records of `iterate`, one by one."""
        return records_of(self.iterate(after_seq))

    def state(self) -> pa.Table:
        """The state that the records produce: the last value of each key that was not deleted.

        Returns:
            ``key``, ``value`` (binary) and ``seqNum`` (int64), one row per key, ordered by
            ``seqNum``.

        Raises:
            WalCorruptionError, UnavailableError: As `replay`.
        """
        return state_of(self.replay().table)

    def current_seq_num(self) -> int:
        """The last assigned sequence number, including truncated records; 0 if there is none."""
        if self._committer is not None:
            return self._writer().next_seq - 1
        return self._verdict(MAX_SEQ).next_seq - 1

    def close(self) -> None:
        """Sync, unless ``sync`` is ``none``, and release the lock. Can be called repeatedly.

        Raises:
            OutcomeUnknownError: The sync failed. The log is closed anyway.
        """
        access = self._access
        if access.is_closed:
            return
        if self._committer is None or access.is_elsewhere:
            access.is_closed = True
            return
        writer, lock = self._committer.writer, self._lock

        def act() -> None:
            try:
                is_open = writer.poison is None and not access.is_closed
                if self._sync != "none" and is_open and writer.unsynced_bytes:
                    writer.sync()
            finally:
                writer.close()
                if lock is not None:
                    lock.release(cleanly=writer.poison is None)
                self._found = None
                access.is_closed = True

        try:
            self._do(act)
        finally:
            if not access.is_closed:  # it was interrupted, or another thread that wrote for it
                self._do(act)

    def __repr__(self) -> str:
        return f"WriteAheadLog({self._directory!r})"

    def _open_facts(self) -> list[tuple[str, str]]:
        return [
            ("sync", self._sync if self._committer is not None else "read only"),
            ("last sequence number", f"{self.current_seq_num():,}"),
        ]

    def _errors(self, *, may_be_missing: bool = True) -> AbstractContextManager[None]:
        return disk_errors(
            "the write-ahead log cannot be opened or read",
            self._directory,
            missing="write-ahead log not found" if may_be_missing else None,
            missing_hint=_MISSING,
        )

    def _writer(self) -> Writer:
        self._access.check(to_write=True)
        assert self._committer is not None, "open it without read_only to create a log"
        return self._committer.writer

    def _write(self, entry: Entry) -> int:
        self._writer()
        self._found = None
        self._queue.take(entry)
        seq: int = entry.outcome()
        return seq

    def _do(self, action: Callable[[], Any], *, changes: bool = True) -> Any:
        """Run an action in the writer's turn."""
        entry = Entry.of_action(action, changes=changes)
        self._queue.take(entry)
        return entry.outcome()

    def _verdict(self, after_seq: int) -> Verdict:
        """The current content of the log, from a sequence number on."""
        with self._errors():
            if self._committer is None:
                self._access.check()
                return self._survey(after_seq)
            writer = self._writer()
            found, self._found = self._found, None
            known: Verdict | None = self._do(lambda: _unchanged(found, writer), changes=False)
            if known is not None:
                return known
            first, second = self._do(
                lambda: (writer.read(after_seq), writer.read(after_seq)), changes=False
            )
            unchecked = {each.path: each for each in first}
            del first

            def check(segment: Segment) -> Segment:
                """Check another mapping of the same file, which is released at once: a caller may
                use one segment at a time.
                """
                found = with_frames(unchecked.pop(segment.path), writer.log_id)
                return replace(found, data=segment.data)

            verdict = judge(of_segments(check, second), after_seq)
            if verdict.damage is not None:
                if after_seq:
                    self._verdict(0)  # which returns all safe records
                raise verdict.damage
        return verdict

    def _survey(self, after_seq: int) -> Verdict:
        try:
            verdict = survey(self._disk, self._directory, after_seq)
        except FileNotFoundError:
            if not self._missing_ok:
                raise
            verdict = judge([], after_seq)
        if verdict.damage is not None and after_seq:
            verdict = survey(self._disk, self._directory)  # which returns all safe records
        if verdict.damage is not None and self._strict:
            raise verdict.damage
        if verdict.damage is not None or not after_seq:  # otherwise not all of the log was read
            self._report = None if verdict.damage is None else report_of(verdict)
        return verdict


def _sequence_number(name: str, value: object) -> int:
    """An argument as an int >= 0. It may exceed the sequence number of every record."""
    if isinstance(value, Integral) and int(value) > MAX_SEQ:
        return int(value)
    return require_int(name, value, least=0)


def _unchanged(found: Verdict | None, writer: Writer) -> Verdict | None:
    """The result of opening the log, if nothing was written since."""
    if (
        found is not None
        and found.live
        and found.live[-1].path == writer.path
        and found.next_seq == writer.next_seq
        and found.truncated_to == writer.truncated_to
    ):
        return found
    return None


def _owner() -> str:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"process {os.getpid()} on {socket.gethostname()} since {started}\n"


def require_lock(log: WriteAheadLog) -> None:
    """Raise if the log can no longer be written, for example because its lock was lost. Owners of a
    log whose lock covers more files check it before they replace or delete one.
    """
    writer = log._writer()  # noqa: SLF001 - for owners of logs in this package, so not a method

    def act() -> None:
        writer.check()
        writer.check_lock()

    log._do(act)  # noqa: SLF001


def append_part(log: WriteAheadLog, op: Op, part: object, encode: Encode) -> tuple[int, int]:
    """Append a part of a record, which other threads' concurrent parts join if their `op` and
    `encode` are equal; the thread that writes for all calls `encode`. Returns the record's sequence
    number and size in bytes, 0 if an earlier part has it.
    """
    entry = Entry.of_part(code_of(op), part, encode)
    return log._write(entry), entry.result  # noqa: SLF001 - for the Ingestor alone, so not a method
