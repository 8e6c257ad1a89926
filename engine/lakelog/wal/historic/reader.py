"""Detects the format of a historic log, and reads it in place, record by record.

The page ``schemas/wal-historic.md`` describes both formats and how damage is classified. An old log
is read once, so this is a plain loop. Every length is compared with the remaining bytes before use,
and every checksum, if any, is verified before its content is used.

Sequence numbers of 002 increase by one from record to record, over all files. They prove, unlike
the checksums of that format, that no record is missing, repeated or out of order, also if the
program appended after a torn append. 003 has no sequence numbers, and without checksums only
lengths. Such a file is checked strictly: keys must be UTF-8, bytes at the end are a torn append
only if no records can be decoded from them, and zero bytes are not records.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import InvalidInputError, NotFoundError, UnsupportedError
from lakelog.input_validation import local_path
from lakelog.wal.disk import Disk, LocalDisk, disk_errors
from lakelog.wal.frames import SEGMENT_MAGIC
from lakelog.wal.historic.log import (
    BEGIN,
    COMMIT,
    DELETE,
    FORMATS,
    PUT,
    RECORDS_SCHEMA,
    ZERO_BYTES,
    Finding,
    FindingKind,
    HistoricFile,
    HistoricFormat,
    HistoricLog,
    op_column,
)
from lakelog.wal.segments import NUMBERED_NAME, SINGLE_NAME

LEAST_BYTES = 25
"""Length in bytes of a record of 002 with an empty key and an empty value."""

_LONGEST_VALUE_BYTES = (1 << 31) - 1  # limit of Arrow's binary type
_CHUNK_BYTES = 1 << 24  # bytes kept as Python objects before conversion to Arrow
_OBJECT_BYTES = 100  # memory of a record's objects in addition to key and value
_SEARCH_BYTES = 1 << 28  # limit of the bytes over which a search in 003 computes checksums
_SECTOR_BYTES = 512
_NOT_ZERO = re.compile(rb"[^\x00]")


def read_historic(
    path: str | os.PathLike[str],
    format: HistoricFormat | None = None,
    *,
    strict: bool = True,
    missing_ok: bool = False,
    disk: Disk | None = None,
) -> HistoricLog:
    """Read a log in the format of specification 002 or 003.

    Args:
        path: Its folder (files ``000001.wal`` and so on, or ``wal.log``), or one file of any name.
        format: ``002``, ``003`` (without checksums) or ``003-crc``; None detects the format, and
            raises if it is ambiguous.
        strict: Whether a log that is damaged before its end raises. If False, the records before
            the damage are returned, and ``findings`` describes the rest.
        missing_ok: Treat a missing file or folder, or a folder without a log, as an empty log, as
            both programs do.
        disk: The filesystem; None for the local disk.

    Returns:
        Records and findings. A torn append at the end and an unfinished batch are not damage: they
        are omitted and reported. The whole log is in memory, about twice during the read.

    Raises:
        NotFoundError: The file does not exist, or the folder has no historic log, and `missing_ok`
            is false.
        InvalidInputError: The format is unknown, cannot be determined, or differs from `format`.
        WalCorruptionError: The log is damaged, and `strict` is true.
        UnavailableError: A file cannot be read.
        UnsupportedError: A record has 2 GiB or more.
    """
    if format is not None and format not in FORMATS:
        expected = ", ".join(FORMATS)
        raise InvalidInputError("unknown format", expected=expected, found=format)
    disk = disk or LocalDisk()
    path = local_path(path)
    try:
        files = [(each, _read(disk, each)) for each in _paths(disk, path)]
    except NotFoundError:
        if not missing_ok:
            raise
        return _decode([(path, b"")], format or "003")
    log = decode(files, format)
    if strict:
        log.check()
    return log


def decode(files: Sequence[tuple[str, bytes]], format: HistoricFormat | None) -> HistoricLog:
    """Decode (path, bytes) of a log's files; raises InvalidInputError for another format."""
    if format is None:
        return _decode(files, detect(files))
    log = _decode(files, format)
    if not log.records.num_rows and any(data for _, data in files):
        _check_named(files, format)
    return log


def detect(files: Sequence[tuple[str, bytes]]) -> HistoricFormat:
    """The format of a log: by a valid checksum of the first record, else of a later record, else
    (003 without checksums) by the lengths and key of the first record, else by file name.
    """
    filled = [(path, data) for path, data in files if data]
    if not filled:
        path = files[0][0] if files else ""
        return "003" if path.endswith(SINGLE_NAME) else "002"
    path, data = filled[0]
    if data.startswith(SEGMENT_MAGIC):
        raise InvalidInputError(
            "this file is a segment of a log of the current format, which is a folder",
            path=path,
            hint="pass the folder that contains it",
        )
    if _record_002(data, 0) is not None:
        return "002"
    ends = _ends_003(data, _CRC_BYTES)
    if ends and _agrees(data, 0, ends[1]):
        return "003-crc"
    is_proved = [
        any(_next_002(data, 0) is not None for _, data in filled),
        _next_checked(data, 0) is not None,
    ]
    is_plain = len(filled) == 1 and _begins_without_checksum(data)
    if is_plain and not any(is_proved):
        return "003"
    if not is_plain and any(is_proved) and not all(is_proved):
        return "002" if is_proved[0] else "003-crc"
    raise InvalidInputError(
        "the format of the log cannot be determined",
        path=path,
        expected="a write-ahead log of specification " + ", ".join(FORMATS),
        hint="pass the format, such as format='003', if you know it",
    )


def historic_names(names: Sequence[str]) -> list[str]:
    """The names that belong to a historic log, in log order."""
    numbered: dict[int, str] = {}
    for name in sorted(names):
        match = NUMBERED_NAME.fullmatch(name)
        if match is None:
            continue
        other = numbered.setdefault(int(match[1]), name)
        if other != name:
            raise InvalidInputError(
                "two files of a historic log have the same number",
                found=f"{other}, {name}",
                hint="keep the file that belongs to the log, under a name of six digits",
            )
    if SINGLE_NAME not in names:
        return [numbered[number] for number in sorted(numbered)]
    if numbered:
        raise InvalidInputError(
            f"two logs were found: {SINGLE_NAME} and numbered files",
            found=f"{SINGLE_NAME}, {numbered[min(numbered)]}",
            hint=f"rename the file to {SINGLE_NAME}, or move the two logs to separate folders",
        )
    return [SINGLE_NAME]


def names_in(disk: Disk, path: str) -> list[str] | None:
    """The names in a folder; None for a file; raises NotFoundError if neither exists."""
    with disk_errors("the folder cannot be read", path, missing="file or folder not found"):
        try:
            return disk.list(path)
        except NotADirectoryError:
            return None


def _paths(disk: Disk, path: str) -> list[str]:
    """The files of a historic log, in its order."""
    names = names_in(disk, path)
    if names is None:
        return [path]
    found = historic_names(names)
    if not found:
        raise NotFoundError(
            "historic log not found", path=path, expected="000001.wal and so on, or wal.log"
        )
    return [posixpath.join(path, name) for name in found]


def _read(disk: Disk, path: str) -> bytes:
    with disk_errors("the file cannot be read", path, missing="file not found"):
        data: bytes = disk.read(path).to_pybytes()
        return data


def _decode(files: Sequence[tuple[str, bytes]], format: HistoricFormat) -> HistoricLog:
    if format == "002":
        log = _Log002(files)
        log.read()
        return log.result()
    if len(files) != 1:
        raise InvalidInputError(
            "a log of specification 003 is one file",
            found=f"{len(files)} files",
            hint="pass one file, or the format 002",
        )
    path, data = files[0]
    is_checked = format == "003-crc"
    rows, finding = _read_checked(path, data) if is_checked else _read_unchecked(path, data)
    records = rows.table(1, np.ones(rows.count, dtype=bool))
    count = rows.count
    file = HistoricFile(path, len(data), count, 1 if count else None, count or None)
    findings = () if finding is None else (finding,)
    return HistoricLog(format, records, (file,), findings, False, is_checked)


def _check_named(files: Sequence[tuple[str, bytes]], format: HistoricFormat) -> None:
    """Raise if no record of the named format was found, and the bytes prove another one."""
    try:
        proved = detect(files)
    except InvalidInputError:
        return
    if proved != format:
        raise InvalidInputError(
            "the log does not have the requested format",
            path=files[0][0],
            expected=f"a write-ahead log of specification {format}",
            found=f"one of specification {proved}",
            hint="omit format, or pass the detected one",
        )


class _Rows:
    """Records being read, converted to Arrow in chunks; decreasing `count` drops the last ones."""

    def __init__(self) -> None:
        self.count = 0
        self._codes = bytearray()
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._room_bytes = _CHUNK_BYTES
        self._chunks: list[tuple[pa.Array, pa.Array]] = []

    def add(self, code: int, key: bytes, value: bytes) -> None:
        size = len(key) + len(value) + _OBJECT_BYTES
        if size > self._room_bytes:
            self._flush()
        self._room_bytes -= size
        self._codes.append(code)
        self._keys.append(key)
        self._values.append(value if value or code == PUT else None)
        self.count += 1

    def table(self, first_seq: int, is_committed: npt.NDArray[np.bool_]) -> pa.Table:
        """The records in `RECORDS_SCHEMA`, with sequence numbers from `first_seq` on."""
        self._flush()
        keys, values = (
            pa.chunked_array(column, pa.binary()).slice(0, self.count)
            for column in zip(*self._chunks, strict=True)
        )
        codes = np.frombuffer(self._codes, dtype=np.uint8)[: self.count]
        columns = [
            pa.chunked_array([pa.array(np.arange(self.count) + first_seq)]),
            pa.chunked_array([op_column(codes)]),
            keys,
            values,
            pa.chunked_array([pa.array(is_committed[: self.count])]),
        ]
        return pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA)

    def _flush(self) -> None:
        self._chunks.append(
            (pa.array(self._keys, pa.binary()), pa.array(self._values, pa.binary()))
        )
        self._keys, self._values, self._room_bytes = [], [], _CHUNK_BYTES


# Specification 002, little-endian: length of the rest, checksum, sequence number, operation, length
# of the key.
_HEAD = struct.Struct("<IIqBi")
_VALUE_LENGTH = struct.Struct("<i")
_AFTER_LENGTH = 4
_LENGTHS_BYTES = 21  # bytes included in the length, except key and value
_OP_CRCS = [zlib.crc32(bytes([op])) for op in range(BEGIN + 1)]
_OPENED = 0  # marks among the operations: the log was reopened here, or ends

_Record002 = tuple[int, int, int, bytes, bytes]
"""End offset of a record, its sequence number, operation, key and value."""


class _Begun(NamedTuple):
    """The BEGIN of a batch: its row and position."""

    row: int
    file: int
    at: int


class _Log002:
    """A log of specification 002. A position is the index of a file and an offset."""

    def __init__(self, files: Sequence[tuple[str, bytes]]) -> None:
        self._files = files
        self._rows = _Rows()
        self._rows_before: list[int] = []  # per file
        self._next_seq: int | None = None
        self._end = (0, 0)  # end of the last record
        self._torn: list[
            tuple[int, int, int]
        ] = []  # index, offset, length in bytes; not yet explained
        self._begun: _Begun | None = None  # the last mark, if it is a BEGIN
        # Begin of the batch; row and position of the mark after it; whether it ends there.
        self._unfinished: list[tuple[_Begun, int, int, int, bool]] = []
        self._marks_batches = False
        self._since_mark = 0  # number of PUT and DELETE records after the last mark
        self._findings: list[tuple[int, Finding]] = []

    def read(self) -> None:
        """Read all files, up to the first damage."""
        for index, (_, data) in enumerate(self._files):
            self._rows_before.append(self._rows.count)
            at = 0
            while at < len(data):
                record = _record_002(data, at)
                if record is None:
                    following = _next_002(data, at + 1)
                    end = len(data) if following is None else following
                    self._torn.append((index, at, end - at))
                    at = end
                elif self._take(index, at, record):
                    at = record[0]
                else:
                    return
        for index, at, size in self._torn:
            if at == 0 and not _may_be_torn(self._files[index][1]):
                reason = "the file does not begin with a record"
                self._damage(index, 0, reason, "a record of specification 002", None)
                return
            self._torn_finding("torn_tail", index, at, size)

    def _take(self, index: int, at: int, record: _Record002) -> bool:
        """Add a record; False if its sequence number shows damage."""
        end, seq, op, key, value = record
        if end - at - _LENGTHS_BYTES > _LONGEST_VALUE_BYTES:
            raise UnsupportedError(
                "a record of 2 GiB or more is not supported",
                path=self._files[index][0],
                byte_offset=at,
            )
        expected = self._next_seq
        if expected is None:
            expected = self._expected_first(self._files[index][1], end, seq)
        if seq != expected:
            reason = "the sequence numbers of the log are not contiguous"
            if self._torn:  # the missing records are in the remaining bytes
                index, at, _ = self._torn[0]
                reason = _explain(self._files[index][1], at)[0]
                reason += ", and records after it are missing"
            self._damage(index, at, reason, expected, seq)
            return False
        if self._torn:
            for torn in self._torn:
                self._torn_finding("torn_append", *torn)
            self._torn = []
            self._mark(_OPENED, index, at)
        if op >= COMMIT:
            self._mark(op, index, at)
            self._since_mark = 0
        else:
            self._since_mark += 1
        self._rows.add(op, key, value)
        self._next_seq = seq + 1
        self._end = (index, end)
        return True

    def _expected_first(self, data: bytes, end: int, seq: int) -> int:
        """The first number, which may be any after truncation. If the third record does not follow
        from it, the first number was changed, not the second.
        """
        second = _record_002(data, end)
        third = second and _record_002(data, second[0])
        if second and third and second[1] != seq + 1 and third[1] == second[1] + 1:
            return second[1] - 1
        # Only the very first append can be torn without a loss.
        return 1 if seq < 1 or self._torn else seq

    def _mark(self, kind: int, index: int, at: int) -> None:
        """Record a mark of batches before it is added, or that the log was reopened."""
        row, begun = self._rows.count, self._begun
        if begun is not None and kind != COMMIT and row - begun.row > 1:
            self._unfinished.append((begun, row, index, at, kind == _OPENED))
        self._begun = _Begun(row, index, at) if kind == BEGIN else None
        self._marks_batches |= kind == BEGIN

    def result(self) -> HistoricLog:
        """The result."""
        self._mark(_OPENED, *self._end)
        count = self._rows.count
        is_committed = np.ones(count, dtype=bool)
        for begun, row, last, end, is_decided in self._unfinished:
            if not is_decided:
                # Later records must not be replayed if they belong to the batch, and must be
                # otherwise.
                self._rows.count = begun.row
                self._findings = [
                    (index, finding)
                    for index, finding in self._findings
                    if (index, finding.byte_offset) < (begun.file, begun.at)
                ]
                reason = "a batch has no COMMIT, and more records follow"
                self._damage(*begun[1:], reason, "COMMIT", None, count - begun.row)
                break
            is_committed[begun.row : row] = False
            self._unfinished_finding(begun, row, last, end)
        self._findings.sort(key=lambda each: (each[0], each[1].byte_offset))
        count = self._rows.count
        first_seq = 1 if self._next_seq is None else self._next_seq - len(is_committed)
        return HistoricLog(
            "002",
            self._rows.table(first_seq, is_committed),
            self._described_files(first_seq),
            tuple(finding for _, finding in self._findings),
            self._marks_batches,
            is_checked=True,
            undecided_records=0 if self._marks_batches else self._since_mark,
        )

    def _described_files(self, first_seq: int) -> tuple[HistoricFile, ...]:
        count = self._rows.count
        missing = len(self._files) + 1 - len(self._rows_before)
        limits = [min(rows, count) for rows in self._rows_before] + [count] * missing
        described = []
        for (path, data), (low, high) in zip(self._files, pairwise(limits), strict=True):
            seqs = (first_seq + low, first_seq + high - 1) if high > low else (None, None)
            described.append(HistoricFile(path, len(data), high - low, *seqs))
        return tuple(described)

    def _damage(
        self, index: int, at: int, reason: str, expected: object, found: object, records: int = 0
    ) -> None:
        rest = sum(len(data) for _, data in self._files[index:]) - at
        path = self._files[index][0]
        finding = Finding("damage", path, at, rest, reason, expected, found, records)
        self._findings.append((index, finding))

    def _torn_finding(
        self, kind: Literal["torn_tail", "torn_append"], index: int, at: int, size: int
    ) -> None:
        path, data = self._files[index]
        self._findings.append((index, Finding(kind, path, at, size, *_explain(data, at))))

    def _unfinished_finding(self, begun: _Begun, row: int, last: int, end: int) -> None:
        index, at = begun.file, begun.at
        size = end - at + sum(len(data) for _, data in self._files[index:last])
        path = self._files[index][0]
        records = row - begun.row - 1  # without the BEGIN
        reason = "a batch has no COMMIT"
        finding = Finding("unfinished_batch", path, at, size, reason, "COMMIT", None, records)
        self._findings.append((index, finding))


def _record_002(data: bytes, at: int) -> _Record002 | None:
    """The valid record at an offset, with any sequence number."""
    if at + LEAST_BYTES > len(data):
        return None
    length, crc, seq, op, key_bytes = _HEAD.unpack_from(data, at)
    end = at + _AFTER_LENGTH + length
    at_key = at + _HEAD.size
    key_end = at_key + key_bytes
    at_value = key_end + _VALUE_LENGTH.size
    if not (PUT <= op <= BEGIN and at_key <= key_end and at_value <= end <= len(data)):
        return None
    if _VALUE_LENGTH.unpack_from(data, key_end)[0] != end - at_value:
        return None
    key, value = data[at_key:key_end], data[at_value:end]
    if zlib.crc32(value, zlib.crc32(key, _OP_CRCS[op])) != crc:
        return None
    return end, seq, op, key, value


def _next_002(data: bytes, start: int) -> int | None:
    """Offset of the first valid record at or after an offset."""
    # The size of the file limits the highest byte of both lengths, at which the pattern begins.
    most = len(data) >> 24
    likely = rb"(?s)[\x00-\x%02x](?=.{12}[\x01-\x05].{3}[\x00-\x%02x])"
    pattern = re.compile(likely % (min(most, 255), min(most, 127)))
    for match in pattern.finditer(data, start + 3):
        at = match.start() - 3
        if _record_002(data, at) is not None:
            return at
    return None


def _explain(data: bytes, at: int) -> tuple[str, object, object]:
    """Why no valid record begins at an offset: reason, expected, found."""
    left = len(data) - at
    if _is_zero(data, at):
        return ZERO_BYTES, None, f"{left} zero bytes"
    if left < LEAST_BYTES:
        return "the file ends within a record", f"at least {LEAST_BYTES} bytes", f"{left} bytes"
    length, crc, _, op, key_bytes = _HEAD.unpack_from(data, at)
    if not PUT <= op <= BEGIN:
        return "a record has an unknown operation", "1 to 5", op
    inconsistent = "the lengths of a record are inconsistent"
    if length < _LENGTHS_BYTES or not 0 <= key_bytes <= length - _LENGTHS_BYTES:
        return inconsistent, None, f"{length} with a key of {key_bytes}"
    end = at + _AFTER_LENGTH + length
    key_end = at + _HEAD.size + key_bytes
    at_value = key_end + _VALUE_LENGTH.size
    if at_value <= len(data):
        (value_bytes,) = _VALUE_LENGTH.unpack_from(data, key_end)
        expected = _LENGTHS_BYTES + key_bytes + value_bytes
        if value_bytes < 0 or expected != length:
            return inconsistent, expected, length
    if end > len(data):
        return "the file ends within a record", f"{end - at} bytes", f"{left} bytes"
    found = zlib.crc32(data[at + _HEAD.size : key_end], _OP_CRCS[op])
    found = zlib.crc32(data[at_value:end], found)
    return "the checksum of a record does not match", f"{crc:08x}", f"{found:08x}"


def _may_be_torn(data: bytes) -> bool:
    """Whether bytes without a valid record may be the torn first append to a file."""
    if len(data) < LEAST_BYTES or _is_zero(data, 0):
        return True
    length, _, seq, op, key_bytes = _HEAD.unpack_from(data, 0)
    return bool(PUT <= op <= BEGIN and seq > 0 and 0 <= key_bytes <= length - _LENGTHS_BYTES)


# Specification 003, big-endian: with checksums, that of the rest; length of the key, key, length of
# the value, value.
_U4 = struct.Struct(">I")
_CRC_BYTES = 4
_LENGTHS_003_BYTES = 8
_LIKELY_LENGTH = re.compile(rb"(?s)\x00(?=\x00(?!\x00\x00)..)")  # from 1 to 65535


def _read_checked(path: str, data: bytes) -> tuple[_Rows, Finding | None]:
    rows = _Rows()
    at = 0
    while (ends := _ends_003(data, at + _CRC_BYTES)) and _agrees(data, at, ends[1]):
        _add_003(rows, path, data, at + _CRC_BYTES, *ends)
        at = ends[1]
    left = len(data) - at
    if not left:
        return rows, None
    expected = actual = None
    reason = _short_of(data, at)
    if ends and reason != ZERO_BYTES:
        reason = "the checksum of a record does not match"
        expected = data[at : at + _CRC_BYTES].hex()
        actual = f"{zlib.crc32(data[at + _CRC_BYTES : ends[1]]):08x}"
    # A crash tears only the last bytes; if a whole record follows, records were lost.
    is_lost = _next_checked(data, at + 1) is not None
    kind: FindingKind = "damage" if is_lost else "torn_tail"
    return rows, Finding(kind, path, at, left, reason, expected, actual)


def _read_unchecked(path: str, data: bytes) -> tuple[_Rows, Finding | None]:
    rows = _Rows()
    at = before = 0  # begin of the record, and of the previous one
    keyed_row = keyed_at = 0  # the last record with a key
    is_nothing = is_tombstone = False  # of the previous record

    def suspicious(row: int, at: int, reason: str) -> tuple[_Rows, Finding]:
        """Damage at a record. Its position depends on the length of the previous record, so that
        record is suspect too, as are empty keys in between, which look like zero bytes.
        """
        rows.count = keyed_row
        there = f"this at {at}, where the lengths lead"
        size, records = len(data) - keyed_at, row - keyed_row
        return rows, Finding("damage", path, keyed_at, size, reason, None, there, records)

    # Zero bytes after the last other byte are not empty records.
    zero_tail = _zero_tail(data)
    while at < zero_tail and (ends := _ends_003(data, at)):
        key_end, end = ends
        if is_nothing and end == at + _LENGTHS_003_BYTES:
            reason = "zero bytes were found between records"
            return suspicious(rows.count - 1, before, reason)
        _add_003(rows, path, data, at, key_end, end)
        if not _is_text(data[at + _U4.size : key_end]):
            return suspicious(rows.count - 1, at, "a key is not UTF-8")
        if key_end > at + _U4.size:
            keyed_row, keyed_at = rows.count - 1, at
        is_nothing = end == at + _LENGTHS_003_BYTES
        is_tombstone = end == key_end + _U4.size
        before, at = at, end
    left = len(data) - at
    if not left:
        return rows, None
    reason = _short_of(data, at)
    if reason != ZERO_BYTES:
        if _records_to_the_end(data, at + 1):
            return suspicious(rows.count, at, "no record begins here, but records follow")
    elif is_tombstone and _may_be_half(data, at):
        reason = "a tombstone precedes zero bytes: it may be the first part of a record"
        rows.count -= 1
        return rows, Finding("damage", path, before, len(data) - before, reason, records=1)
    return rows, Finding("torn_tail", path, at, left, reason)


def _ends_003(data: bytes, at: int) -> tuple[int, int] | None:
    """Ends of key and value, if the key's length is at an offset and both fit in the file."""
    last = len(data) - _U4.size
    if at > last:
        return None
    key_end: int = at + _U4.size + _U4.unpack_from(data, at)[0]
    if key_end > last:
        return None
    end: int = key_end + _U4.size + _U4.unpack_from(data, key_end)[0]
    return (key_end, end) if end <= len(data) else None


def _add_003(rows: _Rows, path: str, data: bytes, at: int, key_end: int, end: int) -> None:
    """Add a record within the file, whose key's length is at an offset."""
    at_key, at_value = at + _U4.size, key_end + _U4.size
    if end - at_key > _LONGEST_VALUE_BYTES:
        raise UnsupportedError("a record of 2 GiB or more is not supported", path=path)
    rows.add(PUT if end > at_value else DELETE, data[at_key:key_end], data[at_value:end])


def _agrees(data: bytes, at: int, end: int) -> bool:
    """Whether the checksum of a record is correct."""
    crc: int = _U4.unpack_from(data, at)[0]
    return zlib.crc32(data[at + _CRC_BYTES : end]) == crc


def _next_checked(data: bytes, start: int) -> int | None:
    """Offset of the first record with a valid checksum and a key, at or after an offset."""
    budget_bytes = _SEARCH_BYTES
    for match in _LIKELY_LENGTH.finditer(data, start + _CRC_BYTES):
        at = match.start() - _CRC_BYTES
        ends = _ends_003(data, at + _CRC_BYTES)
        if ends is None or ends[1] - at > budget_bytes:
            continue
        if _agrees(data, at, ends[1]):
            return at
        budget_bytes -= ends[1] - at
    return None


def _begins_without_checksum(data: bytes) -> bool:
    """Whether a file begins with a record of 003 with a key, which zero bytes do not have."""
    ends = _ends_003(data, 0)
    if ends is None or ends[1] - _U4.size > _LONGEST_VALUE_BYTES:
        return False
    return ends[0] > _U4.size and _is_text(data[_U4.size : ends[0]])


def _records_to_the_end(data: bytes, start: int) -> bool:
    """Whether, from some offset on, records with keys follow each other to the end of the file."""
    for match in _LIKELY_LENGTH.finditer(data, start):
        ends = _ends_003(data, match.start())
        if ends is not None and ends[1] == len(data):
            return True
    return False


def _may_be_half(data: bytes, end: int) -> bool:
    """Whether a tombstone before zero bytes may be the start of a torn record: up to three bytes
    are an incomplete length; more are lost sectors, which begin at a sector boundary.
    """
    if len(data) - end >= _U4.size:
        return True
    sector = (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return _NOT_ZERO.search(data, sector, end) is None


def _short_of(data: bytes, at: int) -> str:
    return ZERO_BYTES if _is_zero(data, at) else "the file ends within a record"


def _is_zero(data: bytes, start: int) -> bool:
    return _NOT_ZERO.search(data, start) is None


def _zero_tail(data: bytes) -> int:
    """Begin of the zero bytes at the end."""
    end = len(data)
    while end:
        start = max(end - (1 << 16), 0)
        rest = data[start:end].rstrip(b"\0")
        if rest:
            return start + len(rest)
        end = start
    return 0


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
