"""Specification 003: one file of keys and values, without sequence numbers.

A record is, big-endian: u32 key length | key | u32 value length | value; later files put a u32
CRC-32 over all of that in front. An empty value is a tombstone. Records are numbered from 1 in the
order of the file.

Without checksums only the lengths speak, and what they can prove is little. So such a file is
read with suspicion: bytes at its end count as a cut append only where no further records can be
made out in them, keys must be UTF-8, which is all that the program wrote, and zero bytes are
what a crash left, not records of nothing.

Pure: bytes in, a log out.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import UnsupportedError
from lakelog.wal.chain import Offsets, Step, StepOne, walk
from lakelog.wal.crc import crc32_spans
from lakelog.wal.historic.log import (
    DELETE,
    PUT,
    RECORDS_SCHEMA,
    Finding,
    FindingKind,
    HistoricFile,
    HistoricFormat,
    HistoricLog,
    op_column,
)
from lakelog.wal.historic.spans import (
    LONGEST_VALUE_BYTES,
    Bytes,
    binary_columns,
    in_threads,
    pieces,
    unaligned,
)

_CRC_BYTES = 4
_LENGTHS_BYTES = 8
_FIRST_SEARCH_BYTES = 1 << 16
_LONGEST_KEY_SOUGHT = 1 << 16  # a search for records takes no longer key for one
_CHECKED_BYTES = 1 << 28  # a search computes checksums over so many bytes, and no more

_u4 = struct.Struct(">I")


def decode(path: str, data: Bytes, *, is_checked: bool) -> HistoricLog:
    """A log of specification 003.

    Args:
        path: The file, for what is said about it.
        data: Its bytes.
        is_checked: Whether its records have checksums.

    Returns:
        Its records, up to the first damage; memory is that of the records and of the file.

    Raises:
        UnsupportedError: A value is longer than Arrow's ``binary`` can have.
    """
    positions, bounds, end = _records(data, is_checked=is_checked)
    if (bounds[:, 3] - bounds[:, 0] > LONGEST_VALUE_BYTES).any():
        raise UnsupportedError("a record of 2 GiB or more cannot be held", path=path)
    if is_checked:
        count, finding = _checked_prefix(path, data, positions, bounds, end)
        records = _table(data, bounds[:count], positions[:count])
    else:
        # Behind the last byte that is not zero, records of nothing are none.
        count = int(np.searchsorted(positions, _zero_tail(data)))
        records = _table(data, bounds[:count], positions[:count])
        count, finding = _plausible_prefix(path, data, positions, bounds, end, records["key"])
        records = records.slice(0, count)
    file = HistoricFile(path, len(data), count, 1 if count else None, count or None)
    name: HistoricFormat = "003-crc" if is_checked else "003"
    findings = () if finding is None else (finding,)
    return HistoricLog(name, records, (file,), findings, False, is_checked)


def covered(data: Bytes, *, is_checked: bool) -> tuple[int, int]:
    """How far bytes look like such a file.

    Returns:
        How many whole records they begin with, sound as far as that can be told, and where the
        last of them ends.
    """
    positions, bounds, end = _records(data, is_checked=is_checked)
    if is_checked:
        sound = _agree(data, positions, bounds)
        count = len(sound) if sound.all() else int(np.argmin(sound))
    else:
        count = _spelled(binary_columns(data, bounds)[0])
    return count, end if count == len(positions) else int(positions[count])


def next_checked(data: Bytes, start: int) -> int | None:
    """Where the first record with a sound checksum, and a key, begins at or behind an offset."""
    step, _ = _steps(data, is_checked=True)
    width = _FIRST_SEARCH_BYTES
    budget = _CHECKED_BYTES
    while start < len(data):
        at = np.arange(start, min(start + width, len(data)))
        ends = step(at)
        at, ends = at[ends >= 0], ends[ends >= 0]
        bounds = _bounds_of(data, at, ends, is_checked=True)
        key_length = bounds[:, 1] - bounds[:, 0]
        likely = (key_length > 0) & (key_length <= _LONGEST_KEY_SOUGHT)
        at, bounds = at[likely], bounds[likely]
        affordable = np.cumsum(bounds[:, 3] - at) <= budget
        at, bounds = at[affordable], bounds[affordable]
        budget -= int((bounds[:, 3] - at).sum())
        sound = _agree(data, at, bounds)
        if sound.any():
            return int(at[int(np.argmax(sound))])
        start += width
        width *= 4
    return None


def _checked_prefix(
    path: str, data: Bytes, positions: Offsets, bounds: Offsets, end: int
) -> tuple[int, Finding | None]:
    """How many records are sound, and what is behind them."""
    parts = pieces(positions, end)
    agree = in_threads(lambda part: _agree(data, positions[part], bounds[part]), parts)
    sound = np.concatenate([np.empty(0, dtype=bool), *agree])
    count = len(positions)
    if not sound.all():
        count = int(np.argmin(sound))
        end = int(positions[count])
    left = len(data) - end
    if not left:
        return count, None
    expected = found = None
    reason = _short_of(data, end)
    if count < len(positions) and data[end:].any():
        reason = "the checksum of a record does not agree"
        (crc,) = _u4.unpack_from(data.data, end)
        expected = f"{crc:08x}"
        record = data[end + _CRC_BYTES : int(bounds[count, 3])]
        found = f"{zlib.crc32(record.data):08x}"
    # Bytes that a crash cut are the last ones; where a whole record follows, something was lost.
    is_lost = next_checked(data, end + 1) is not None
    kind: FindingKind = "damage" if is_lost else "torn_tail"
    return count, Finding(kind, path, end, left, reason, expected, found)


def _plausible_prefix(
    path: str, data: Bytes, positions: Offsets, bounds: Offsets, end: int, keys: pa.ChunkedArray
) -> tuple[int, Finding | None]:
    """How many records, of those that `keys` are of, nothing speaks against, and what is behind
    them.
    """
    size = len(data)
    lengths = np.stack([bounds[:, 1] - bounds[:, 0], bounds[:, 3] - bounds[:, 2]], axis=1)
    count = len(keys)
    is_nothing = lengths[:count].sum(axis=1) == 0
    holes = np.flatnonzero(is_nothing[1:] & is_nothing[:-1])
    wrong = min([*holes[:1].tolist(), _spelled(keys)])
    if wrong < count:
        reason = "zero bytes stand between records" if is_nothing[wrong] else "a key is not UTF-8"
        return _suspicious(path, size, positions, lengths, wrong, reason)
    if count < len(positions):
        end = int(positions[count])
    if end == size:
        return count, None
    reason = _short_of(data, end)
    if data[end:].any():
        if _records_to_the_end(data, end + 1):
            reason = "no record begins here, but records follow"
            positions = np.append(positions, end)
            return _suspicious(path, size, positions, lengths, count, reason)
    elif count and not lengths[count - 1, 1]:
        at = int(positions[count - 1])
        reason = "a tombstone stands before zero bytes: it may be the first part of a record"
        return count - 1, Finding("damage", path, at, size - at, reason, records=1)
    return count, Finding("torn_tail", path, end, size - end, reason)


def _suspicious(
    path: str, size: int, positions: Offsets, lengths: Offsets, wrong: int, reason: str
) -> tuple[int, Finding]:
    """Damage at a record: what led there is the length of the record before it, so that one is
    not safe either, nor are the empty keys between, which zero bytes look like.
    """
    safe = wrong
    while safe > 0 and not lengths[safe - 1, 0]:
        safe -= 1
    safe = max(safe - 1, 0)
    at = int(positions[safe])
    found = f"this at {int(positions[wrong])}, where the lengths lead"
    return safe, Finding("damage", path, at, size - at, reason, None, found, wrong - safe)


def _short_of(data: Bytes, at: int) -> str:
    is_zero = not data[at:].any()
    return "the file goes on with zero bytes" if is_zero else "the file ends within a record"


def _zero_tail(data: Bytes) -> int:
    """Where the zero bytes at the end begin."""
    width = _FIRST_SEARCH_BYTES
    high = len(data)
    while high:
        low = max(high - width, 0)
        others = np.flatnonzero(data[low:high])
        if len(others):
            return low + int(others[-1]) + 1
        high = low
        width *= 2
    return 0


def _records_to_the_end(data: Bytes, start: int) -> bool:
    """Whether from some offset on, records with keys follow each other to the end of the file."""
    step, _ = _steps(data, is_checked=False)
    size = len(data)
    width = _FIRST_SEARCH_BYTES
    while True:
        low = max(start, size - width)
        at = np.arange(low, size)
        ends = step(at)
        is_record = ends >= 0
        at, ends = at[is_record], ends[is_record]
        bounds = _bounds_of(data, at, ends, is_checked=False)
        key_length = bounds[:, 1] - bounds[:, 0]
        is_record = (key_length > 0) & (key_length <= _LONGEST_KEY_SOUGHT)
        at, ends = at[is_record], ends[is_record]
        # Two nodes more than candidates: the end of the file, and nowhere.
        the_end, nowhere = len(at), len(at) + 1
        following = np.searchsorted(at, ends)
        following[following == len(at)] = nowhere
        is_joined = at[np.minimum(following, max(len(at) - 1, 0))] == ends if len(at) else ends == 0
        following = np.where(is_joined, following, nowhere)
        following = np.where(ends == size, the_end, following)
        jump = np.append(following, [the_end, nowhere])
        for _ in range(len(at).bit_length()):
            jump = jump[jump]
        if (jump[: len(at)] == the_end).any():
            return True
        if low == start:
            return False
        width *= 8


def _steps(data: Bytes, *, is_checked: bool) -> tuple[Step, StepOne]:
    size = len(data)
    front = _CRC_BYTES if is_checked else 0
    last = size - front - _LENGTHS_BYTES
    raw = data.data
    u4 = unaligned(data, ">u4")

    def step(at: Offsets) -> Offsets:
        if last < 0:
            return np.full(at.shape, -1)
        is_record = at <= last
        key_at = np.minimum(at, last) + front
        at_value = key_at + u4[key_at].astype(np.int64) + 4
        is_record &= at_value <= size - 4
        end = at_value + u4[np.where(is_record, at_value, 0)].astype(np.int64) + 4
        return np.where(is_record & (end <= size), end, -1)

    def step_one(at: int) -> int:
        if at > last:
            return -1
        at += front
        at_value: int = at + 4 + _u4.unpack_from(raw, at)[0]
        if at_value > size - 4:
            return -1
        end: int = at_value + 4 + _u4.unpack_from(raw, at_value)[0]
        return -1 if end > size else end

    return step, step_one


def _records(data: Bytes, *, is_checked: bool) -> tuple[Offsets, Offsets, int]:
    """Where each record begins, the bounds of its key and value, and where the last one ends."""
    if is_checked:
        positions, end = walk(*_steps(data, is_checked=True), 0, len(data))
        ends = np.append(positions[1:], end)[: len(positions)]
        return positions, _bounds_of(data, positions, ends, is_checked=True), end
    # Keys and values are spelled alike, so that a guess cannot tell one from the other: the walk
    # goes from each of them to the next.
    fields, end = walk(*_field_steps(data), 0, len(data))
    if len(fields) % 2:
        end = int(fields[-1])
    keys, values = fields[: len(fields) // 2 * 2].reshape(-1, 2).T
    ends = np.append(keys[1:], end)[: len(keys)]
    return keys, np.stack([keys + 4, values, values + 4, ends], axis=1), end


def _field_steps(data: Bytes) -> tuple[Step, StepOne]:
    size = len(data)
    last = size - 4
    raw = data.data
    u4 = unaligned(data, ">u4")

    def step(at: Offsets) -> Offsets:
        if last < 0:
            return np.full(at.shape, -1)
        end = u4[np.minimum(at, last)] + at + 4
        return np.where((at <= last) & (end <= size), end, -1)

    def step_one(at: int) -> int:
        if at > last:
            return -1
        end: int = at + 4 + _u4.unpack_from(raw, at)[0]
        return -1 if end > size else end

    return step, step_one


def _bounds_of(data: Bytes, positions: Offsets, ends: Offsets, *, is_checked: bool) -> Offsets:
    """Of each record: where its key begins and ends, where its value begins and ends."""
    at = positions + _CRC_BYTES if is_checked else positions
    bounds = np.empty((len(positions), 4), dtype=np.int64)
    bounds[:, 0] = at + 4
    bounds[:, 1] = bounds[:, 0] + unaligned(data, ">u4")[at]
    bounds[:, 2] = bounds[:, 1] + 4
    bounds[:, 3] = ends
    return bounds


def _agree(data: Bytes, positions: Offsets, bounds: Offsets) -> npt.NDArray[np.bool_]:
    """Of each record, whether its checksum agrees."""
    starts = positions + _CRC_BYTES
    agrees: npt.NDArray[np.bool_] = (
        crc32_spans(data, starts, bounds[:, 3] - starts) == unaligned(data, ">u4")[positions]
    )
    return agrees


def _spelled(keys: pa.ChunkedArray) -> int:
    """How many keys there are before the first one that is not UTF-8."""
    low, high = 0, len(keys)
    if _is_text(keys):
        return high
    # The first `low` are text, the first `high` are not.
    while high - low > 1:
        middle = (low + high) // 2
        if _is_text(keys[low:middle]):
            low = middle
        else:
            high = middle
    return low


def _is_text(keys: pa.ChunkedArray) -> bool:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _table(data: Bytes, bounds: Offsets, positions: Offsets) -> pa.Table:
    """The records as a table: each piece of them by a thread."""
    count = len(positions)
    end = int(bounds[-1, 3]) if count else 0

    def part_of(part: slice) -> pa.Table:
        rows = bounds[part]
        is_tombstone = rows[:, 2] == rows[:, 3]
        keys, values = binary_columns(data, rows, is_tombstone if is_tombstone.any() else None)
        ops = np.where(is_tombstone, DELETE, PUT).astype(np.uint8)
        columns = [
            pa.chunked_array([np.arange(part.start + 1, part.stop + 1)]),
            pa.chunked_array([op_column(ops)]),
            keys,
            values,
            pa.chunked_array([np.ones(len(rows), dtype=bool)]),
        ]
        return pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA)

    tables = in_threads(part_of, pieces(positions, end))
    return pa.concat_tables([RECORDS_SCHEMA.empty_table(), *tables])
