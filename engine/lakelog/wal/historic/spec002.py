"""Specification 002: files as runs of whole records, joined by their sequence numbers.

A record is, little-endian: u32 length of what follows | u32 CRC-32 | u64 sequence number | u8
operation | i32 key length | key | i32 value length | value. The checksum covers operation, key and
value only: that lengths and sequence numbers are right shows in that lengths agree with each
other, that each record ends where the next begins, and that sequence numbers go up by one.

Sequence numbers go up by one from record to record, over all files. So they prove what the
format's checksums cannot: that nothing is missing, doubled or out of order. They also prove that
nothing is missing where a crash cut an append and the log was written on behind it: the record
behind has the number that the cut one would have had.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import UnsupportedError
from lakelog.wal.chain import NOWHERE, Offsets, walk
from lakelog.wal.crc import Checksums, crc32_bridges, crc32_spans
from lakelog.wal.historic.log import (
    BEGIN,
    COMMIT,
    DELETE,
    LONGEST_VALUE_BYTES,
    PUT,
    RECORDS_SCHEMA,
    ZERO_BYTES,
    Bytes,
    Finding,
    HistoricFile,
    HistoricLog,
    binary_columns,
    first_wrong,
    op_column,
    unaligned,
)
from lakelog.wal.segments import in_threads

LEAST_BYTES = 25
"""A record with an empty key and an empty value."""

_AFTER_LENGTH = 4
_LENGTHS_BYTES = 21  # of what the length counts, all but key and value
_AT_CRC, _AT_SEQ, _AT_OP, _AT_KEY_LENGTH, _AT_KEY = 4, 8, 16, 17, 21
_VALUE_LENGTH_BYTES = 4
_AT_MOVED_OP = _AT_KEY + _VALUE_LENGTH_BYTES - 1
_LONGEST_MOVED_KEY = 512  # longer ones are moved one by one
_FIRST_SEARCH_BYTES = 1 << 16
_WIDEST_SEARCH_BYTES = 1 << 22

_record = struct.Struct("<IIQBi")
_length = struct.Struct("<i")
_ulength = struct.Struct("<I")


@dataclass(frozen=True)
class Run:
    """Whole records, each of which begins where the one before it ends.

    Attributes:
        positions: int64, where each begins.
        end: Where the last ends; the start of the run, where it is empty.
        seqs: int64, their sequence numbers as they are.
        ops: uint8, their operations.
        keys: Their keys, binary.
        values: Their values, binary; null for an empty one of what is not a PUT.
    """

    positions: Offsets
    end: int
    seqs: Offsets
    ops: npt.NDArray[np.uint8]
    keys: pa.ChunkedArray
    values: pa.ChunkedArray

    def head(self, count: int) -> Run:
        """The first `count` records."""
        return Run(
            self.positions[:count],
            int(self.positions[count]) if count < len(self.positions) else self.end,
            self.seqs[:count],
            self.ops[:count],
            self.keys[:count],
            self.values[:count],
        )


def read_run(data: Bytes, start: int) -> Run:
    """The run that begins at an offset; it ends before the first record that is not valid."""
    positions, end = walk(
        lambda at: _by_length(data, at),
        lambda at: _one_by_length(data, at),
        start,
        len(data),
        least=LEAST_BYTES,
        look=lambda at: _by_all_lengths(data, at),
    )
    bounds = _bounds(data, positions, np.append(positions[1:], end)[: len(positions)])
    ops = data[positions + _AT_OP]
    wrong = np.flatnonzero(~_is_whole(data, bounds, ops))
    count = int(wrong[0]) if len(wrong) else len(positions)
    count = first_wrong(
        positions[:count],
        bounds[:count, 3],
        lambda part, room: _agree_as_one(data, positions[part], bounds[part], ops[part], room),
        lambda part: _agree(data, positions[part], bounds[part]),
    )
    if count < len(positions):
        end = int(positions[count])
        positions, bounds, ops = positions[:count], bounds[:count], ops[:count]
    too_long = np.flatnonzero(bounds[:, 3] - bounds[:, 0] > LONGEST_VALUE_BYTES)
    if len(too_long):
        raise UnsupportedError(
            "a record of 2 GiB or more is not supported", byte_offset=int(positions[too_long[0]])
        )
    is_null = (ops != PUT) & (bounds[:, 2] == bounds[:, 3])
    keys, values = binary_columns(data, bounds, is_null if is_null.any() else None)
    seqs = unaligned(data, "<i8")[positions + _AT_SEQ]
    return Run(positions, end, seqs, ops, keys, values)


def next_record(data: Bytes, start: int) -> int | None:
    """Where the first valid record at or behind an offset begins, wherever it may."""
    last = len(data) - LEAST_BYTES
    width = _FIRST_SEARCH_BYTES
    while start <= last:
        ops = data[start + _AT_OP : min(start + width, last + 1) + _AT_OP]
        candidates = np.flatnonzero((ops - np.uint8(1)) < BEGIN) + start
        ends = _by_all_lengths(data, candidates)
        candidates, ends = candidates[ends < NOWHERE], ends[ends < NOWHERE]
        if len(candidates):
            sound = _agree(data, candidates, _bounds(data, candidates, ends))
            if sound.any():
                return int(candidates[int(np.argmax(sound))])
        start += width
        width = min(width * 4, _WIDEST_SEARCH_BYTES)
    return None


def explain(data: Bytes, at: int) -> tuple[str, Any, Any]:
    """Why no valid record begins at an offset: in words, what was expected, what was found."""
    left = len(data) - at
    if not data[at:].any():
        return ZERO_BYTES, None, f"{left} zero bytes"
    if left < LEAST_BYTES:
        return "the file ends within a record", f"at least {LEAST_BYTES} bytes", f"{left} bytes"
    length, crc, _, op, key_length = _record.unpack_from(data.data, at)
    if not 1 <= op <= BEGIN:
        return "a record has an unknown operation", "1 to 5", op
    if length < _LENGTHS_BYTES or not 0 <= key_length <= length - _LENGTHS_BYTES:
        return (
            "the lengths of a record are inconsistent",
            None,
            f"{length} with a key of {key_length}",
        )
    end = at + _AFTER_LENGTH + length
    key_end = at + _AT_KEY + key_length
    if key_end + 4 <= len(data):
        (value_length,) = _length.unpack_from(data.data, key_end)
        expected = _LENGTHS_BYTES + key_length + value_length
        if value_length < 0 or expected != length:
            return "the lengths of a record are inconsistent", expected, length
    if end > len(data):
        return "the file ends within a record", f"{end - at} bytes", f"{left} bytes"
    found = zlib.crc32(data[at + _AT_KEY : key_end].data, zlib.crc32(bytes([op])))
    found = zlib.crc32(data[key_end + 4 : end].data, found)
    return "the checksum of a record does not match", f"{crc:08x}", f"{found:08x}"


def _may_be_torn(data: Bytes) -> bool:
    """Whether bytes without any valid record may be the first append to a file, cut by a crash."""
    if len(data) < LEAST_BYTES or not data.any():
        return True
    length, _, seq, op, key_length = _record.unpack_from(data.data, 0)
    is_record = 1 <= op <= BEGIN and 0 < seq < 1 << 63
    return bool(is_record and 0 <= key_length <= length - _LENGTHS_BYTES)


def _by_length(data: Bytes, at: Offsets) -> Offsets:
    """Where records at some offsets end, by their first field alone; beyond 4 GiB where that is
    too small.
    """
    key_and_value: npt.NDArray[np.uint32] = unaligned(data, "<u4")[at] - np.uint32(_LENGTHS_BYTES)
    end = key_and_value + at
    end += LEAST_BYTES
    return end


def _one_by_length(data: Bytes, at: int) -> int:
    """`_by_length` of one offset."""
    (length,) = _ulength.unpack_from(data.data, at)
    end: int = at + LEAST_BYTES + (length - _LENGTHS_BYTES & 0xFFFFFFFF)
    return end


def _by_all_lengths(data: Bytes, at: Offsets) -> Offsets:
    """Where whole records at some offsets end, if their lengths agree and they have an operation;
    `NOWHERE` of what is none.
    """
    ends = np.full(len(at), NOWHERE)
    likely = np.flatnonzero((data[at + _AT_OP] - np.uint8(1)) < BEGIN)
    at = at[likely]
    end = _by_length(data, at)
    fits = end <= len(data)
    likely, at, end = likely[fits], at[fits], end[fits]
    is_whole = _is_whole(data, _bounds(data, at, end), data[at + _AT_OP])
    ends[likely[is_whole]] = end[is_whole]
    return ends


def _bounds(data: Bytes, positions: Offsets, ends: Offsets) -> Offsets:
    """Of each record: where its key begins and ends, where its value begins and ends."""
    bounds = np.empty((len(positions), 4), dtype=np.int64)
    bounds[:, 0] = positions + _AT_KEY
    bounds[:, 1] = bounds[:, 0] + unaligned(data, "<i4")[positions + _AT_KEY_LENGTH]
    bounds[:, 2] = bounds[:, 1] + 4
    bounds[:, 3] = ends
    return bounds


def _is_whole(data: Bytes, bounds: Offsets, ops: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Of each record, whether its operation is known and its lengths are in order."""
    key_end, at_value, end = bounds[:, 1], bounds[:, 2], bounds[:, 3]
    is_whole = ((ops - np.uint8(1)) < BEGIN) & (key_end >= bounds[:, 0]) & (at_value <= end)
    value_length = unaligned(data, "<i4")[np.where(is_whole, key_end, 0)]
    agrees: npt.NDArray[np.bool_] = is_whole & (value_length == end - at_value)
    return agrees


def _agree_as_one(
    data: Bytes, positions: Offsets, bounds: Offsets, ops: npt.NDArray[np.uint8], room: Bytes
) -> bool:
    """Whether all checksums of a run agree.

    In a copy, what the checksums cover is brought together: each key moves to its value, the
    operation in front of it, and what is before that becomes the bridge from the record before.
    """
    key_lengths = bounds[:, 1] - bounds[:, 0]
    longest = min(int(key_lengths.max()), _LONGEST_MOVED_KEY)
    low = int(positions[0])
    size = int(bounds[-1, 3]) - low
    room[:size] = data[low : low + size]
    words, moved = unaligned(data, "<u8"), unaligned(room, "<u8")
    source = bounds[:, 1] - 8
    shortest = int(key_lengths.min())
    for begun in range(0, longest, 8):
        part = source if begun < shortest else source[key_lengths > begun]
        moved[part + (_VALUE_LENGTH_BYTES - low - begun)] = words[part - begun]
    for row in np.flatnonzero(key_lengths > longest).tolist():
        start, end = bounds[row, :2].tolist()
        shift = _VALUE_LENGTH_BYTES - low
        room[start + shift : end + shift] = data[start:end]
    at = positions - low
    crcs = unaligned(data, "<u4")[positions + _AT_CRC]
    before = np.append(np.uint32(0), crcs[:-1])
    moved[at] = crc32_bridges(before, zeros=_AT_MOVED_OP - 4)
    moved[at + 8] = 0
    moved[at + 16] = 0
    room[at + _AT_MOVED_OP] = ops
    return zlib.crc32(room[:size].data) == int(crcs[-1])


def _agree(data: Bytes, positions: Offsets, bounds: Offsets) -> npt.NDArray[np.bool_]:
    """Of each record, whether its checksum agrees."""
    crc = _op_crcs()[data[positions + _AT_OP]]
    for first in (0, 2):
        starts = bounds[:, first]
        crc = crc32_spans(data, starts, bounds[:, first + 1] - starts, crc)
    agrees: npt.NDArray[np.bool_] = crc == unaligned(data, "<u4")[positions + _AT_CRC]
    return agrees


@functools.cache
def _op_crcs() -> Checksums:
    return np.array([zlib.crc32(bytes([op])) for op in range(256)], dtype=np.uint32)


_REOPENED = 0  # next to the operations: here the log was opened again


def decode(files: Sequence[tuple[str, Bytes]]) -> HistoricLog:
    """A log of specification 002."""
    joined = _Join(files, in_threads(lambda file: _run(*file, 0), files))
    joined.read()
    return joined.log()


def _run(path: str, data: Bytes, start: int) -> Run:
    try:
        return read_run(data, start)
    except UnsupportedError as error:
        error.path = path
        raise


class _Join:
    """A walk over the files, run by run."""

    def __init__(self, files: Sequence[tuple[str, Bytes]], first_runs: Sequence[Run]) -> None:
        self._files = files
        self._first_runs = first_runs
        self._runs: list[tuple[int, Run]] = []
        self._reopened: list[int] = []  # rows before which the log was opened again
        self._rows = 0
        self._next_seq: int | None = None
        self._torn: list[tuple[int, int, int]] = []  # file, offset, bytes; not yet explained
        self._findings: list[Finding] = []

    def read(self) -> None:
        """Go over all files, up to the first damage."""
        for index, run in enumerate(self._first_runs):
            if not self._read_file(index, run):
                return
        self._close()

    def _read_file(self, index: int, run: Run) -> bool:
        data = self._files[index][1]
        while True:
            if len(run.seqs) and not self._take(index, run):
                return False
            if run.end == len(data):
                return True
            following = next_record(data, run.end + 1)
            end = len(data) if following is None else following
            self._torn.append((index, run.end, end - run.end))
            if following is None:
                return True
            run = _run(self._files[index][0], data, following)

    def _take(self, index: int, run: Run) -> bool:
        """Add a run; False where its sequence numbers show damage."""
        seqs = run.seqs
        jumps = np.flatnonzero(np.diff(seqs) != 1)
        first, expected = int(seqs[0]), self._next_seq
        if expected is None:
            # Of a log whose beginning was truncated, any number may be the first. That it is the
            # first that changed, and not the second, shows in the ones behind.
            is_odd = len(seqs) > 2 and len(jumps) > 0 and jumps[0] == 0 and seqs[2] - seqs[1] == 1
            if is_odd or first < 1:
                expected = int(seqs[1]) - 1 if is_odd else 1
            elif self._torn:
                expected = 1  # only the very first append may be cut without a loss
        if expected is not None and first != expected:
            self._lost(index, int(run.positions[0]), expected, first)
            return False
        self._findings += [self._torn_finding("torn_append", *torn) for torn in self._torn]
        if self._torn:
            self._reopened.append(self._rows)
            self._torn = []
        count = int(jumps[0]) + 1 if len(jumps) else len(seqs)
        self._runs.append((index, run if count == len(seqs) else run.head(count)))
        self._rows += count
        self._next_seq = int(seqs[count - 1]) + 1
        if count < len(seqs):
            at = int(run.positions[count])
            self._lost(index, at, self._next_seq, int(seqs[count]))
            return False
        return True

    def _lost(self, index: int, at: int, expected: int, found: int) -> None:
        """Note that sequence numbers do not continue; where bytes are left over, it is because of
        them.
        """
        reason = "the sequence numbers of the log are not contiguous"
        if self._torn:
            index, at, _ = self._torn[0]
            reason = f"{explain(self._files[index][1], at)[0]}, and records after it are missing"
        self._damage(index, at, reason, expected, found)

    def _damage(
        self, index: int, at: int, reason: str, expected: object, found: object, records: int = 0
    ) -> None:
        rest = sum(len(data) for _, data in self._files[index:]) - at
        path = self._files[index][0]
        self._findings.append(Finding("damage", path, at, rest, reason, expected, found, records))

    def _torn_finding(
        self, kind: Literal["torn_tail", "torn_append"], index: int, at: int, size: int
    ) -> Finding:
        path, data = self._files[index]
        reason, expected, found = explain(data, at)
        return Finding(kind, path, at, size, reason, expected, found)

    def _close(self) -> None:
        """Say what is left over behind the last record."""
        for index, at, size in self._torn:
            data = self._files[index][1]
            if at == 0 and not _may_be_torn(data):
                reason = "the file does not begin with a record"
                self._damage(index, 0, reason, "a record of specification 002", None)
                return
            self._findings.append(self._torn_finding("torn_tail", index, at, size))

    def log(self) -> HistoricLog:
        """What was read."""
        ops = np.concatenate([np.empty(0, np.uint8), *(run.ops for _, run in self._runs)])
        marks_batches = bool((ops == BEGIN).any())
        committed = np.ones(len(ops), dtype=bool)
        rows = rows_read = len(ops)
        if marks_batches:
            for low, high, is_decided in unfinished_batches(ops, self._reopened):
                if not is_decided:
                    rows = low
                    self._undecidable(low, rows_read - low)
                    break
                committed[low:high] = False
                self._findings.append(self._unfinished(low, high))
        return HistoricLog(
            "002",
            self._table(ops[:rows], committed[:rows]),
            tuple(self._file(index, rows) for index in range(len(self._files))),
            tuple(sorted(self._findings, key=self._order)),
            marks_batches,
            is_checked=True,
            undecided_records=0 if marks_batches else rows - _trailing(ops),
        )

    def _table(self, ops: npt.NDArray[np.uint8], committed: npt.NDArray[np.bool_]) -> pa.Table:
        batches = []
        low = 0
        for _, run in self._runs:
            high = min(low + len(run.seqs), len(ops))
            part = run.head(high - low)
            columns = [
                pa.chunked_array([pa.array(part.seqs)]),
                pa.chunked_array([op_column(part.ops)]),
                part.keys,
                part.values,
                pa.chunked_array([pa.array(committed[low:high])]),
            ]
            batches.append(pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA))
            low = high
        return pa.concat_tables([RECORDS_SCHEMA.empty_table(), *batches])

    def _file(self, index: int, rows: int) -> HistoricFile:
        """What came of one file, of so many rows of the log."""
        seqs = []
        for of_file, run in self._runs:
            if of_file == index:
                seqs.append(run.seqs[:rows])
            rows = max(rows - len(run.seqs), 0)
        path, data = self._files[index]
        every = np.concatenate([np.empty(0, np.int64), *seqs])
        if not len(every):
            return HistoricFile(path, len(data), 0, None, None)
        return HistoricFile(path, len(data), len(every), int(every[0]), int(every[-1]))

    def _place(self, row: int) -> tuple[int, int]:
        """The file, and the offset in it, at which a row's record begins or the last one ends."""
        index, at = 0, 0
        for index, run in self._runs:
            if row < len(run.seqs):
                return index, int(run.positions[row])
            row -= len(run.seqs)
            at = run.end
        return index, at

    def _unfinished(self, low: int, high: int) -> Finding:
        index, at = self._place(low)
        last, end = self._place(high)
        size = end - at + sum(len(data) for _, data in self._files[index:last])
        path = self._files[index][0]
        records = high - low - 1  # without BEGIN itself
        reason = "a batch has no COMMIT"
        return Finding("unfinished_batch", path, at, size, reason, "COMMIT", None, records)

    def _undecidable(self, row: int, records: int) -> None:
        """Note a batch of which it is unknown where it ended: what is behind it may belong to
        it, and must not be replayed, or may not, and must.
        """
        index, at = self._place(row)
        reason = "a batch has no COMMIT, and more records follow"
        before = [finding for finding in self._findings if self._order(finding) < (index, at)]
        self._findings = before
        self._damage(index, at, reason, "COMMIT", None, records)

    def _order(self, finding: Finding) -> tuple[int, int]:
        return [path for path, _ in self._files].index(finding.path), finding.byte_offset


def unfinished_batches(
    ops: npt.NDArray[np.uint8], reopened: Sequence[int]
) -> list[tuple[int, int, bool]]:
    """The batches that begin and are not committed."""
    marked = np.flatnonzero(ops >= COMMIT)
    # Where two are at one row, the opening again came first.
    rows = np.concatenate([np.asarray(reopened, dtype=np.int64), marked])
    kinds = np.concatenate([np.full(len(reopened), _REOPENED, np.uint8), ops[marked]])
    order = np.argsort(rows, kind="stable")
    rows, kinds = np.append(rows[order], len(ops)), np.append(kinds[order], np.uint8(_REOPENED))
    is_open = (kinds[:-1] == BEGIN) & (kinds[1:] != COMMIT) & (np.diff(rows) > 1)
    return [
        (int(rows[at]), int(rows[at + 1]), bool(kinds[at + 1] == _REOPENED))
        for at in np.flatnonzero(is_open).tolist()
    ]


def _trailing(ops: npt.NDArray[np.uint8]) -> int:
    """The first of the PUT and DELETE records at the end."""
    marks = np.flatnonzero((ops != PUT) & (ops != DELETE))
    return int(marks[-1]) + 1 if len(marks) else 0
