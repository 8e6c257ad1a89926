"""Specification 002: the bytes of one file, as runs of whole records.

A record is, little-endian: u32 length of what follows | u32 CRC-32 | u64 sequence number | u8
operation | i32 key length | key | i32 value length | value. The checksum covers operation, key and
value only: that lengths and sequence numbers are right shows in that lengths agree with each
other, that each record ends where the next begins, and that sequence numbers go up by one. The
last of these is `lakelog.wal.historic.continuity`'s to check.

Pure: bytes in, columns out.
"""

from __future__ import annotations

import functools
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.wal.chain import Offsets, Step, StepOne, walk
from lakelog.wal.crc import crc32_spans
from lakelog.wal.historic.log import BEGIN, PUT
from lakelog.wal.historic.spans import Bytes, binary_columns, unaligned

LEAST_BYTES = 25
"""A record with an empty key and an empty value."""

_AFTER_LENGTH = 4
_LENGTHS_BYTES = 21  # of what the length counts, all but key and value
_AT_CRC, _AT_SEQ, _AT_OP, _AT_KEY_LENGTH, _AT_KEY = 4, 8, 16, 17, 21
_FIRST_SEARCH_BYTES = 1 << 16
_WIDEST_SEARCH_BYTES = 1 << 22

_record = struct.Struct("<IIQBi")
_length = struct.Struct("<i")


@dataclass(frozen=True)
class Run:
    """Whole records, each of which begins where the one before it ends.

    Attributes:
        positions: int64, where each begins.
        end: Where the last ends; the start of the run, where it is empty.
        seqs: int64, their sequence numbers as they stand.
        ops: uint8, their operations.
        keys: Their keys, binary.
        values: Their values, binary; null for an empty one of what is no PUT.
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
    """The run that begins at an offset; it ends before the first record that is not sound.

    Args:
        data: The bytes of a file.
        start: Where the first record begins.
    """
    positions, end = walk(*_steps(data), start, len(data))
    bounds = _bounds(data, positions, end)
    sound = _sound(data, positions, bounds)
    if not sound.all():
        count = int(np.argmin(sound))
        end = int(positions[count])
        positions, bounds = positions[:count], bounds[:count]
    ops = data[positions + _AT_OP]
    is_null = (ops != PUT) & (bounds[:, 2] == bounds[:, 3])
    keys, values = binary_columns(data, bounds, is_null if is_null.any() else None)
    seqs = unaligned(data, "<i8")[positions + _AT_SEQ]
    return Run(positions, end, seqs, ops, keys, values)


def next_record(data: Bytes, start: int) -> int | None:
    """Where the first sound record at or behind an offset begins, wherever it may.

    Args:
        data: The bytes of a file.
        start: Where to begin looking.
    """
    step, _ = _steps(data)
    last = len(data) - LEAST_BYTES
    width = _FIRST_SEARCH_BYTES
    while start <= last:
        ops = data[start + _AT_OP : min(start + width, last + 1) + _AT_OP]
        candidates = np.flatnonzero((ops - np.uint8(1)) < BEGIN) + start
        ends = step(candidates)
        candidates, ends = candidates[ends >= 0], ends[ends >= 0]
        if len(candidates):
            sound = _sound(data, candidates, _bounds_of(data, candidates, ends))
            if sound.any():
                return int(candidates[int(np.argmax(sound))])
        start += width
        width = min(width * 4, _WIDEST_SEARCH_BYTES)
    return None


def explain(data: Bytes, at: int) -> tuple[str, Any, Any]:
    """Why no sound record begins at an offset: in words, what was expected, what was found."""
    left = len(data) - at
    if not data[at:].any():
        return "the file goes on with zero bytes", None, f"{left} zero bytes"
    if left < LEAST_BYTES:
        return "the file ends within a record", f"{LEAST_BYTES} bytes at least", f"{left} bytes"
    length, crc, _, op, key_length = _record.unpack_from(data.data, at)
    if not 1 <= op <= BEGIN:
        return "the operation of a record is none", "1 to 5", op
    if length < _LENGTHS_BYTES or not 0 <= key_length <= length - _LENGTHS_BYTES:
        return "the lengths of a record do not agree", None, f"{length} with a key of {key_length}"
    end = at + _AFTER_LENGTH + length
    key_end = at + _AT_KEY + key_length
    if key_end + 4 <= len(data):
        (value_length,) = _length.unpack_from(data.data, key_end)
        expected = _LENGTHS_BYTES + key_length + value_length
        if value_length < 0 or expected != length:
            return "the lengths of a record do not agree", expected, length
    if end > len(data):
        return "the file ends within a record", f"{end - at} bytes", f"{left} bytes"
    found = zlib.crc32(data[at + _AT_KEY : key_end].data, zlib.crc32(bytes([op])))
    found = zlib.crc32(data[key_end + 4 : end].data, found)
    return "the checksum of a record does not agree", f"{crc:08x}", f"{found:08x}"


def may_be_torn(data: Bytes) -> bool:
    """Whether bytes without any sound record may be the first append to a file, cut by a crash."""
    if len(data) < LEAST_BYTES or not data.any():
        return True
    length, _, seq, op, key_length = _record.unpack_from(data.data, 0)
    is_record = 1 <= op <= BEGIN and 0 < seq < 1 << 63
    return bool(is_record and 0 <= key_length <= length - _LENGTHS_BYTES)


def _steps(data: Bytes) -> tuple[Step, StepOne]:
    size = len(data)
    last = size - LEAST_BYTES
    raw = data.data
    u4, i4 = unaligned(data, "<u4"), unaligned(data, "<i4")

    def step(at: Offsets) -> Offsets:
        if last < 0:
            return np.full(at.shape, -1)
        is_record = at <= last
        at = np.minimum(at, last)
        key_length = i4[at + _AT_KEY_LENGTH]
        at_value = at + key_length + _AT_KEY
        is_record &= (key_length >= 0) & (at_value <= size - 4)
        value_length = i4[np.where(is_record, at_value, 0)]
        end = at_value + value_length + 4
        is_record &= (value_length >= 0) & (end <= size)
        is_record &= end - at - _AFTER_LENGTH == u4[at]
        is_record &= (data[at + _AT_OP] - np.uint8(1)) < BEGIN
        return np.where(is_record, end, -1)

    def step_one(at: int) -> int:
        if at > last:
            return -1
        length, _, _, op, key_length = _record.unpack_from(raw, at)
        at_value = at + _AT_KEY + key_length
        if key_length < 0 or at_value > size - 4:
            return -1
        (value_length,) = _length.unpack_from(raw, at_value)
        end: int = at + _AFTER_LENGTH + length
        if value_length < 0 or end != at_value + 4 + value_length or end > size:
            return -1
        return end if 1 <= op <= BEGIN else -1

    return step, step_one


def _bounds(data: Bytes, positions: Offsets, end: int) -> Offsets:
    return _bounds_of(data, positions, np.append(positions[1:], end)[: len(positions)])


def _bounds_of(data: Bytes, positions: Offsets, ends: Offsets) -> Offsets:
    """Of each record: where its key begins and ends, where its value begins and ends."""
    bounds = np.empty((len(positions), 4), dtype=np.int64)
    bounds[:, 0] = positions + _AT_KEY
    bounds[:, 1] = bounds[:, 0] + unaligned(data, "<i4")[positions + _AT_KEY_LENGTH]
    bounds[:, 2] = bounds[:, 1] + 4
    bounds[:, 3] = ends
    return bounds


def _sound(data: Bytes, positions: Offsets, bounds: Offsets) -> npt.NDArray[np.bool_]:
    """Of each record, whether its checksum agrees."""
    crc = _op_crcs()[data[positions + _AT_OP]]
    for first in (0, 2):
        starts = bounds[:, first]
        crc = crc32_spans(data, starts, bounds[:, first + 1] - starts, crc)
    agrees: npt.NDArray[np.bool_] = crc == unaligned(data, "<u4")[positions + _AT_CRC]
    return agrees


@functools.cache
def _op_crcs() -> npt.NDArray[np.uint32]:
    return np.array([zlib.crc32(bytes([op])) for op in range(256)], dtype=np.uint32)
