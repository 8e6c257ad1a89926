"""The active segment: writes, syncs, rotation, marks and removal.

`lakelog.wal.group_commit` ensures that one thread at a time runs this code. Failures are handled
here:

- A failed write is undone: the file is truncated to its last whole frame, and synced. Nothing was
  written, and the log remains usable.
- If it cannot be undone, or an fsync fails, the state of the disk is unknown. The writer is
  poisoned: it writes no more, and the caller gets an error with an unknown outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    LogPoisonedError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.wal.disk import Bytes, Disk, WritableFile
from lakelog.wal.encode import Framing
from lakelog.wal.frames import (
    KIND_SEAL,
    KIND_TRUNCATION,
    MAX_SEQ,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    mark_frame,
)
from lakelog.wal.recovery import with_header
from lakelog.wal.segments import Segment, segment_name

UNKNOWN_HINT = "close the log, open it again, and check whether it contains the record"
"""Hint of errors with an unknown outcome."""

_FULL_DISK = "free disk space and try again; nothing of this record or batch was written"
_JOINED_BYTES = 1 << 17  # approximate size of the writes to which pieces are joined


@dataclass(frozen=True)
class SegmentRef:
    """The name of a segment, without its content."""

    first_seq: int
    path: str


@dataclass
class Writer:
    """Appends to the last of its segments (`places`, oldest first), whose frames end at `end` and
    are durable to `durable_end`. After a failure that leaves the disk's state unknown, `poison` is
    the error.
    """

    disk: Disk
    directory: str
    log_id: bytes
    framing: Framing
    clock: Callable[[], int]
    places: list[SegmentRef]
    file: WritableFile
    end: int
    durable_end: int
    next_seq: int
    truncated_to: int
    is_locked: Callable[[], bool]
    poison: str | None = None
    is_closed: bool = False

    @property
    def unsynced_bytes(self) -> int:
        """Number of bytes of the last segment that are not known to be durable."""
        return self.end - self.durable_end

    @property
    def has_records(self) -> bool:
        """Whether the current segment has a record; without one, the next would have its name."""
        return self.places[-1].first_seq < self.next_seq

    @property
    def path(self) -> str:
        """Path of the current segment."""
        return self.places[-1].path

    def check(self) -> None:
        """Raise if the state of the disk is unknown."""
        if self.is_closed:
            raise InvalidInputError("the log is closed", path=self.directory)
        if self.poison is not None:
            raise LogPoisonedError(
                f"the state of the log on disk is unknown: {self.poison}",
                path=self.directory,
                hint=(
                    "close the log and open it again; it then continues after the last "
                    "durable record"
                ),
            )

    def write(self, pieces: Sequence[Bytes], records: int) -> None:
        """Write frames atomically."""
        self.check()
        if records > MAX_SEQ - self.next_seq:
            raise InvalidInputError(
                "the sequence numbers are exhausted",
                path=self.path,
                expected=f"at most {MAX_SEQ - self.next_seq} records",
                found=records,
                hint="begin a new log",
            )
        self.check_lock()
        start = self.end
        try:
            written = write_all(self.file, pieces)
        except OSError as cause:
            self._undo_write(start, cause)
            raise UnavailableError(
                f"the write-ahead log cannot be written: {cause}",
                path=self.path,
                hint=_FULL_DISK,
            ) from cause
        except BaseException:
            self.poison = "a write was interrupted"
            raise
        self.end += written
        self.next_seq += records

    def mark_durable(self) -> None:
        """Append a mark that proves to the next process that all bytes before it are durable."""
        seal = self.framing.seal
        mark = mark_frame(KIND_TRUNCATION, self.next_seq, self.truncated_to, 0, seal)
        self.write([mark], 0)

    def _undo_write(self, start: int, cause: OSError) -> None:
        try:
            self.check_lock()  # the next writer appends to the same file
            self.file.truncate(start)
            self.file.sync()
        except BaseException as second:  # noqa: BLE001 - an interrupt leaves no less unknown
            self.poison = f"a write failed ({cause}), and could not be undone ({second})"
            raise OutcomeUnknownError(
                "a write to the write-ahead log failed, and could not be undone",
                path=self.path,
                hint=UNKNOWN_HINT,
            ) from cause
        self.durable_end = start

    def sync(self) -> None:
        """Sync the written frames."""
        self.check()
        if self.durable_end == self.end:
            self.check_lock()
            return
        try:
            self.file.sync()
        except OSError as cause:
            self.poison = f"an fsync failed ({cause})"
            raise OutcomeUnknownError(
                "the write-ahead log may not be durable: an fsync failed",
                path=self.path,
                hint=UNKNOWN_HINT,
            ) from cause
        except BaseException as cause:
            self.poison = f"an fsync failed ({type(cause).__name__})"
            raise
        self.check_lock()
        self.durable_end = self.end

    def check_lock(self) -> None:
        """Raise if the writer no longer has its lock. It must not change any file then: another
        writer may use the directory, or the path may name another directory.
        """
        cause: OSError | None = None
        try:
            if self.is_locked():
                return
        except OSError as error:
            cause = error
        self.poison = (
            "the lock file was deleted or moved" if cause is None else f"its lock: {cause}"
        )
        raise OutcomeUnknownError(
            "the lock file of the write-ahead log was deleted or moved, so another process may "
            "have written to the log"
            if cause is None
            else f"the lock of the write-ahead log cannot be checked: {cause}",
            path=self.directory,
            hint=UNKNOWN_HINT,
        ) from cause

    def rotate(self) -> None:
        """Begin a new segment, after making the current one durable. The old segment is sealed only
        once the new one is durable, so that a sealed segment without a successor reveals a lost
        file.
        """
        self.sync()
        place, file = self._begin(self.truncated_to)
        seal = mark_frame(KIND_SEAL, self.next_seq, self.next_seq, 0, self.framing.seal)
        old, start = self.file, self.end
        self._move_to(place, file)
        # The seal is optional: without it, only a missing next segment is not detected.
        with contextlib.suppress(OSError):
            try:
                write_all(old, [seal])
                old.sync()
            except OSError:
                old.truncate(start)
            finally:
                old.close()

    def _begin(self, truncated_to: int) -> tuple[SegmentRef, WritableFile]:
        """Create the next segment durably, or leave none."""
        place = SegmentRef(self.next_seq, f"{self.directory}/{segment_name(self.next_seq)}")
        header = SegmentHeader(
            self.log_id, self.next_seq, self.next_seq, truncated_to, self.clock()
        )
        try:
            return place, begin_segment(self.disk, self.directory, place, header)
        except OSError as cause:
            if isinstance(cause, LakelogError):
                self.poison = str(cause)
                raise
            raise UnavailableError(
                f"a segment of the write-ahead log cannot be created: {cause}",
                path=place.path,
                hint=_FULL_DISK,
            ) from cause
        except BaseException:
            self.poison = "creating a segment was interrupted"
            raise

    def _move_to(self, place: SegmentRef, file: WritableFile) -> None:
        self.places.append(place)
        self.file = file
        self.end = self.durable_end = SEGMENT_HEADER_BYTES

    def truncate(self, up_to_seq: int) -> list[str]:
        """Write a durable mark, then delete the segments without other records, oldest first."""
        self.check()
        if up_to_seq > self.truncated_to:
            if up_to_seq == self.next_seq - 1 and self.has_records:
                self.sync()
                place, file = self._begin(up_to_seq)
                with contextlib.suppress(OSError):
                    self.file.close()
                self._move_to(place, file)
            else:
                mark = mark_frame(
                    KIND_TRUNCATION,
                    self.next_seq,
                    up_to_seq,
                    self.unsynced_bytes,
                    self.framing.seal,
                )
                self.write([mark], 0)
                self.sync()
            self.truncated_to = up_to_seq
        return self._remove_truncated()

    def _remove_truncated(self) -> list[str]:
        removed: list[str] = []
        self.check_lock()
        try:
            while len(self.places) > 1 and self.places[1].first_seq - 1 <= self.truncated_to:
                with contextlib.suppress(FileNotFoundError):
                    self.disk.remove(self.places[0].path)
                removed.append(self.places.pop(0).path)
            if removed:
                self.disk.sync_directory(self.directory)
        except OSError as cause:
            raise UnavailableError(
                f"segments of the write-ahead log cannot be removed: {cause}",
                path=self.places[0].path,
                hint=(
                    "their records are truncated nevertheless; truncate again to remove the files"
                ),
            ) from cause
        return removed

    def read(self, after_seq: int = 0) -> list[Segment]:
        """The log's segments with their headers, if these are complete."""
        self.check()
        first = max(
            (n for n, each in enumerate(self.places) if each.first_seq <= after_seq + 1), default=0
        )
        found = []
        for each in self.places[first:]:
            data = self.disk.read(each.path, mapped=True)
            if each is self.places[-1]:
                data = data.slice(0, self.end)
            found.append(with_header(Segment(each.path, each.first_seq, data)))
        return found

    def close(self) -> None:
        """Close the file, without syncing it."""
        self.is_closed = True
        with contextlib.suppress(OSError):  # synced data is durable even if closing fails
            self.file.close()


def begin_segment(
    disk: Disk, directory: str, place: SegmentRef, header: SegmentHeader
) -> WritableFile:
    """Create a segment without frames durably, or leave none."""
    file: WritableFile | None = None
    try:
        file = disk.open_append(place.path, create=True)
        write_all(file, [header.pack()])
        file.sync()
        disk.sync_directory(directory)
    except FileExistsError:
        raise
    except BaseException as cause:
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        try:
            if file is not None:
                disk.remove(place.path)
                disk.sync_directory(directory)
        except OSError as second:
            raise OutcomeUnknownError(
                f"a segment could not be created ({cause}), and its partial file could "
                f"not be removed ({second})",
                path=place.path,
                hint=UNKNOWN_HINT,
            ) from cause
        raise
    return file


def write_all(file: WritableFile, pieces: Sequence[Bytes]) -> int:
    """Write all pieces in a few calls; return the number of bytes."""
    written = 0
    for data in pieces if len(pieces) == 1 else _joined(pieces):
        rest: Bytes = data
        while len(rest):
            taken = file.write(rest)
            if taken <= 0:
                raise OSError("the disk accepts no more data")
            written += taken
            rest = rest[taken:] if taken < len(rest) else b""
    return written


def write_new(disk: Disk, path: str, pieces: Iterable[Bytes]) -> None:
    """Write a file durably, or leave none."""
    file = disk.open_append(path, create=True)
    try:
        for piece in pieces:
            write_all(file, [piece])
        file.sync()
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
            disk.remove(path)
        raise
    file.close()


def _joined(pieces: Sequence[Bytes]) -> Iterator[Bytes]:
    held: list[Bytes] = []
    size = 0
    for piece in pieces:
        if len(piece) >= _JOINED_BYTES:
            if held:
                yield b"".join(held)
                held, size = [], 0
            yield piece
            continue
        held.append(piece)
        size += len(piece)
        if size >= _JOINED_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
