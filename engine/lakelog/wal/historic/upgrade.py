"""Upgrades a historic log to the current format, in place.

At every time, one of the two logs is complete and valid, so that a crash at any step loses nothing;
upgrading again continues. The steps:

1. The new log is written as one segment under a temporary name, synced, read back and compared.
2. A marker with the new log's id is written and synced.
3. The segment is renamed atomically and synced. From here on, the new log is the valid one.
4. The old files are renamed or removed; the marker is removed last.

The old files are valid until a segment of the log in the marker exists.
`lakelog.wal.log.WriteAheadLog` refuses a directory with old files, so that no process can write to
the new log before they are renamed or removed.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.display import Displayed
from lakelog.errors import InternalError, InvalidInputError, NotFoundError
from lakelog.input_validation import local_path
from lakelog.telemetry import event
from lakelog.wal.disk import Bytes, Disk, HeldLock, LocalDisk, disk_errors, require_held
from lakelog.wal.encode import Columns, Compression, Framing, check_columns, pack_columns
from lakelog.wal.frames import (
    FLAG_JUMP,
    KIND_TRUNCATION,
    FrameHeader,
    Seal,
    SegmentHeader,
    frame_pieces,
)
from lakelog.wal.historic.log import (
    BEGIN,
    COMMIT,
    PUT,
    Finding,
    HistoricFormat,
    HistoricLog,
    op_column,
)
from lakelog.wal.historic.reader import LEAST_BYTES, historic_names, names_in, read_historic
from lakelog.wal.reading import tables_of
from lakelog.wal.recovery import judge, with_frames, with_header
from lakelog.wal.segments import LOCK_NAME, TEMPORARY_SUFFIX, Segment, named_seq, segment_name
from lakelog.wal.writer import write_new

MARKER_NAME = "wal.upgrade"
"""Name of the file with the id of the log that an upgrade creates."""

UPGRADED_SUFFIX = ".upgraded"
"""Suffix of old files that were kept."""

_FRAME_BYTES = 16 << 20


@dataclass(frozen=True)
class UpgradeReport(Displayed):
    """Result of an upgrade.

    Attributes:
        directory: Directory of the log.
        format: Format of the old log; None if an earlier call had written the new one.
        records: Number of records in the new log, including control marks; None as above.
        last_seq: Last sequence number in use; None as above.
        segment: File name of the new log.
        old_files: Current names of the old files; empty if they were removed, or if there was
            nothing to do.
        findings: Parts of the old log that are not complete, committed records.
        doubts: Properties of the old log that cannot be verified, one sentence each.
    """

    directory: str
    format: HistoricFormat | None
    records: int | None
    last_seq: int | None
    segment: str
    old_files: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    doubts: tuple[str, ...] = ()


def upgrade(
    directory: str | os.PathLike[str],
    format: HistoricFormat | None = None,
    *,
    strict: bool = True,
    keep_old: bool = True,
    compression: Compression = "none",
    disk: Disk | None = None,
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    new_id: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
) -> UpgradeReport:
    """Upgrade a historic log to lakelog's format, in place.

    Records keep their sequence numbers (those of specification 003, which has none, are numbered
    from 1). A BEGIN becomes a COMMIT without a batch. So do the records of an unfinished batch:
    their numbers remain used, and they are never replayed. The program that wrote the old log must
    not run during the upgrade, because it does not use the lock.

    An interrupted upgrade continues when called again. An upgraded log is not changed.

    Args:
        directory: Directory of the old log, and of the new one.
        format: As in `lakelog.wal.read_historic`.
        strict: Whether a damaged log raises. If False, the safe records are upgraded; sequence
            numbers that the others may have used are not used again.
        keep_old: Whether the old files are kept, with names that end in ``.upgraded``. If False,
            they are removed once the new log is durable and was compared with them, unless they
            contain bytes that no record of the new log contains, such as damage or a torn tail.
        compression: Compression of the new log.
        disk: The filesystem; None for the local disk.
        clock: Milliseconds since 1970, for the new log's header.
        new_id: 16 bytes that identify the new log.

    Returns:
        A report.

    Raises:
        NotFoundError: The directory has no historic log.
        InvalidInputError: The format cannot be determined, or the directory has a new log that was
            not upgraded from this one.
        WalCorruptionError: The old log is damaged, and `strict` is true. Nothing was changed.
        LogLockedError: Another process writes to the new log, or upgrades.
        UnavailableError: The disk failed; nothing is lost, and upgrading again continues.
    """
    work = _Upgrade(local_path(directory), disk or LocalDisk())
    names = names_in(work.disk, work.directory)
    if names is None:
        raise NotFoundError(
            "the path is a file, and an upgrade needs the log's folder",
            path=work.directory,
            hint="pass the folder; its files must be named 000001.wal and so on, or wal.log",
        )
    with disk_errors(
        "the upgrade stopped; no data is lost",
        work.directory,
        hint="repair the disk and run the upgrade again; it continues where it stopped",
    ):
        if not historic_names(names) and not any(map(named_seq, names)):
            raise NotFoundError("historic log not found", path=work.directory)
        owner = f"process {os.getpid()} on {socket.gethostname()}, upgrading\n"
        lock = work.disk.lock(work.path(LOCK_NAME), owner)
        try:
            work.lock = lock
            return work.run(format, compression, clock, new_id, strict=strict, keep_old=keep_old)
        finally:
            lock.release()


class _Upgrade:
    lock: HeldLock

    def __init__(self, directory: str, disk: Disk) -> None:
        self.directory = directory
        self.disk = disk

    def require_lock(self) -> None:
        """Raise if another upgrade may have begun: its files have the same names."""
        require_held(self.lock.is_held, self.directory, "the upgrade")

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def run(
        self,
        format: HistoricFormat | None,
        compression: Compression,
        clock: Callable[[], int],
        new_id: Callable[[], bytes],
        *,
        strict: bool,
        keep_old: bool,
    ) -> UpgradeReport:
        names = self.disk.list(self.directory)
        old = historic_names(names)
        segments = sorted(name for name in names if named_seq(name) is not None)
        if segments:
            if MARKER_NAME in names:
                keep_old |= self._check_ours(segments)
            elif old:
                raise self._two_logs(segments[0])
            # The rename by an interrupted call may not be durable yet.
            self.disk.sync_directory(self.directory)
            moved = self._clear_away(old, names, keep_old=keep_old)
            return UpgradeReport(
                self.directory, None, None, None, self.path(segments[0]), tuple(moved)
            )
        for name in names:
            if name == MARKER_NAME or _is_temporary(name):  # left by an interrupted upgrade
                self.disk.remove(self.path(name))
        log = read_historic(self.directory, format, strict=strict, disk=self.disk)
        header = _header(log, new_id(), clock())
        records = _records(log)
        name = segment_name(header.first_seq)
        temporary = self.path(name + TEMPORARY_SUFFIX)
        next_seq = _next_seq(log, header.first_seq)
        framing = Framing(Seal.of(header.log_id), compression, _FRAME_BYTES)
        write_new(self.disk, temporary, _segment(header, records, next_seq, framing))
        self._verify(temporary, header, records, next_seq)
        marker = _marker(header.log_id, keeps_old=log.leaves_bytes)
        write_new(self.disk, self.path(MARKER_NAME), [marker])
        self.disk.sync_directory(self.directory)
        self.require_lock()
        self.disk.rename(temporary, self.path(name))
        self.disk.sync_directory(self.directory)
        moved = self._clear_away(old, names, keep_old=keep_old or log.leaves_bytes)
        event(
            "wal.upgraded",
            path=self.directory,
            format=log.format,
            records=len(records),
            findings=len(log.findings),
        )
        return UpgradeReport(
            self.directory,
            log.format,
            len(records),
            next_seq - 1,
            self.path(name),
            tuple(moved),
            log.findings,
            log.doubts,
        )

    def _check_ours(self, segments: list[str]) -> bool:
        """Raise for segments of another log; returns whether the marker keeps the old files."""
        marker = self.disk.read(self.path(MARKER_NAME)).to_pybytes()
        for name in segments:
            segment = with_header(
                Segment(self.path(name), named_seq(name) or 0, self.disk.read(self.path(name)))
            )
            for keeps_old in (False, True):
                if segment.header is not None and marker == _marker(
                    segment.header.log_id, keeps_old=keeps_old
                ):
                    return keeps_old
        raise self._two_logs(segments[0])

    def _two_logs(self, name: str) -> InvalidInputError:
        return InvalidInputError(
            "a new log exists next to the old one, and was not made from it",
            path=self.directory,
            found=name,
            hint="move one of them to a separate folder",
        )

    def _verify(self, path: str, header: SegmentHeader, records: pa.Table, next_seq: int) -> None:
        """Read the new log with the normal reader, and compare."""
        segment = Segment(path, header.first_seq, self.disk.read(path))
        verdict = judge([with_frames(with_header(segment), header.log_id)])
        found = [part for part in tables_of(verdict) if part.num_rows]
        is_same = not records.num_rows if not found else _same(pa.concat_tables(found), records)
        if not is_same or verdict.next_seq != next_seq or verdict.tail or verdict.damage:
            self.disk.remove(path)
            raise InternalError(
                "the upgraded log differs from what was written; the old log is unchanged",
                path=path,
                expected=f"{records.num_rows} records",
                found=f"{sum(part.num_rows for part in found)} records",
            )

    def _clear_away(self, old: list[str], names: list[str], *, keep_old: bool) -> list[str]:
        """The last step: remove or rename the old files, then remove the marker."""
        self.require_lock()
        moved = []
        for name in old:
            if keep_old:
                target = _free_name(name, names)
                self.disk.rename(self.path(name), self.path(target))
                moved.append(self.path(target))
            else:
                self.disk.remove(self.path(name))
        if old:
            self.disk.sync_directory(self.directory)
        if MARKER_NAME in self.disk.list(self.directory):
            self.disk.remove(self.path(MARKER_NAME))
            self.disk.sync_directory(self.directory)
        return moved


def _free_name(name: str, names: list[str]) -> str:
    target, tries = f"{name}{UPGRADED_SUFFIX}", 1
    while target in names:
        tries += 1
        target = f"{name}.{tries}{UPGRADED_SUFFIX}"
    return target


def _is_temporary(name: str) -> bool:
    segment = name.removesuffix(TEMPORARY_SUFFIX)
    return segment != name and named_seq(segment) is not None


def _marker(log_id: bytes, *, keeps_old: bool) -> bytes:
    what = "the safe records of the old files, which are kept," if keeps_old else "the old files"
    return f"an upgrade makes the log {log_id.hex()} of {what} here\n".encode()


def _header(log: HistoricLog, log_id: bytes, created_ms: int) -> SegmentHeader:
    first = int(log.records["seqNum"][0].as_py()) if log.records.num_rows else 1
    return SegmentHeader(log_id, first, first, first - 1, created_ms)


def _next_seq(log: HistoricLog, first_seq: int) -> int:
    """The next sequence number, greater than that of any lost record."""
    next_seq = max(log.last_seq + 1, first_seq)
    damage = log.damage
    if damage is None or log.format != "002":
        return next_seq
    found = damage.found if isinstance(damage.found, int) else 0
    most = found + damage.size_bytes // LEAST_BYTES + 1
    # A number greater than the remaining bytes allow is part of the damage.
    return (
        next_seq + damage.size_bytes // LEAST_BYTES + 1 if most > 1 << 62 else max(next_seq, most)
    )


def _records(log: HistoricLog) -> pa.Table:
    """The old records for the new log, with contiguous numbers."""
    records = log.records
    codes = _codes(records["op"].combine_chunks())
    codes[codes == BEGIN] = COMMIT
    committed = records["isCommitted"]
    keys, values = records["key"], records["value"]
    if not pc.all(committed).as_py() and records.num_rows:
        codes[~committed.to_numpy()] = COMMIT
        keys = pc.if_else(committed, keys, pa.scalar(b"", pa.binary()))
        values = pc.if_else(committed, values, pa.scalar(None, pa.binary()))
    columns = [records["seqNum"], pa.chunked_array([op_column(codes)]), keys, values]
    return pa.Table.from_arrays(columns, names=["seqNum", "op", "key", "value"])


def _segment(
    header: SegmentHeader, records: pa.Table, next_seq: int, framing: Framing
) -> Iterator[Bytes]:
    """The bytes of the new log. Its frames claim that everything before them is durable, which is
    true once the file is renamed.
    """
    yield header.pack()
    seq = header.first_seq
    for batch in records.to_batches():
        if not batch.num_rows:
            continue
        columns = Columns(
            _codes(batch["op"]),
            batch["key"].cast(pa.large_binary()),
            batch["value"].cast(pa.large_binary()),
        )
        check_columns(columns)
        for pieces, _ in pack_columns(columns, seq, 0, framing, is_batch=False):
            yield b"".join(pieces)
        seq += len(columns)
    if next_seq > seq:
        payload = header.truncated_to.to_bytes(8, "little")
        mark = FrameHeader(8, next_seq, 0, KIND_TRUNCATION, flags=FLAG_JUMP, raw_bytes=8)
        yield b"".join(frame_pieces(mark, [payload], 0, framing.seal))


def _codes(ops: pa.DictionaryArray) -> npt.NDArray[np.uint8]:
    """The operations of a historic log as codes."""
    codes: npt.NDArray[np.uint8] = ops.indices.to_numpy().astype(np.uint8) + np.uint8(PUT)
    return codes


def _same(found: pa.Table, records: pa.Table) -> bool:
    same_ops = found["op"].cast(pa.string()).equals(records["op"].cast(pa.string()))
    return bool(same_ops) and all(
        found[name].equals(records[name]) for name in ("seqNum", "key", "value")
    )
