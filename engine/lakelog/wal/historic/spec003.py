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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import UnsupportedError
from lakelog.wal.chain import NOWHERE, Offsets, Step, StepOne, walk
from lakelog.wal.crc import crc32_bridges, crc32_spans
from lakelog.wal.historic.log import (
    DELETE,
    LONGEST_VALUE_BYTES,
    PUT,
    RECORDS_SCHEMA,
    ZERO_BYTES,
    Bytes,
    Finding,
    FindingKind,
    HistoricFile,
    HistoricFormat,
    HistoricLog,
    binary_columns,
    first_wrong,
    op_column,
    pieces,
    unaligned,
)
from lakelog.wal.segments import in_threads

_CRC_BYTES = 4
_LENGTHS_BYTES = 8
"""Of both lengths of a record."""

_u4 = struct.Struct(">I")


@dataclass(frozen=True)
class Places:
    """Where the records of a file are.

    Attributes:
        offsets: With checksums, where each record begins. Without, where each key and each value
            begins with its length, in turns.
        end: Where the last record ends.
        is_checked: Whether there are checksums.
    """

    offsets: Offsets
    end: int
    is_checked: bool

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.offsets) if self.is_checked else len(self.offsets) // 2

    @property
    def starts(self) -> Offsets:
        """Where each record begins."""
        return self.offsets if self.is_checked else self.offsets[::2]

    def start(self, record: int) -> int:
        """Where a record begins, or the last one ends."""
        return self.end if record == self.records else int(self.starts[record])

    def before(self, at: int) -> int:
        """How many records begin before an offset, without checksums."""
        return int(np.searchsorted(self.offsets, at) + 1) // 2

    def key_bytes(self, record: int) -> int:
        """The length of a key, without checksums."""
        return int(self.offsets[2 * record + 1] - self.offsets[2 * record]) - 4

    def value_bytes(self, record: int) -> int:
        """The length of a value, without checksums."""
        return self.start(record + 1) - int(self.offsets[2 * record + 1]) - 4

    def pieces(self, count: int) -> list[slice]:
        """The first `count` records, in pieces."""
        if self.is_checked:
            return pieces(self.offsets[:count], self.end)
        fields = pieces(self.offsets[: 2 * count], self.end)
        halves = [slice((part.start + 1) // 2, (part.stop + 1) // 2) for part in fields]
        return [part for part in halves if part.start < part.stop]

    def bounds(self, data: Bytes, part: slice) -> Offsets:
        """Of some records: where the key begins and ends, where the value begins and ends."""
        if self.is_checked:
            following = self.offsets[part.start + 1 : part.stop + 1]
            ends = np.append(following, self.end)[: part.stop - part.start]
            return _bounds_of(data, self.offsets[part], ends, is_checked=True)
        bounds = np.empty((part.stop - part.start, 4), dtype=np.int64)
        fields = self.offsets[2 * part.start : 2 * part.stop].reshape(-1, 2)
        np.add(fields, 4, out=bounds[:, ::2])
        bounds[:, 1] = fields[:, 1]
        bounds[:-1, 3] = fields[1:, 0]
        if len(bounds):
            bounds[-1, 3] = self.start(part.stop)
        return bounds


def places(data: Bytes, *, is_checked: bool) -> Places:
    """The records that a file begins with, each where the one before it ends."""
    if is_checked:
        least = _CRC_BYTES + _LENGTHS_BYTES
        step, step_one = steps(data, is_checked=True)

        def look(at: Offsets) -> Offsets:
            end = step(at)
            end[end == at + least] = NOWHERE  # what zero bytes look like
            return end

        return Places(*walk(step, step_one, 0, len(data), least=least, look=look), True)
    # Keys and values are spelled alike, so that a guess cannot distinguish one from the other: the
    # walk goes from each of them to the next.
    step, step_one = _field_steps(data)

    def look_at_fields(at: Offsets) -> Offsets:
        end = step(at)
        empty = np.flatnonzero(end == at + 4)
        following = np.minimum(end[empty], len(data) - 4)
        # Two in a row are what zero bytes look like; one is a tombstone's value.
        end[empty[step(following) == following + 4]] = NOWHERE
        return end

    fields, end = walk(step, step_one, 0, len(data), least=4, look=look_at_fields)
    if len(fields) % 2:
        fields, end = fields[:-1], int(fields[-1])
    return Places(fields, end, False)


def steps(data: Bytes, *, is_checked: bool) -> tuple[Step, StepOne]:
    """Of offsets, and of one, where a record ends that begins there, as for `walk`."""
    last = len(data) - 4
    front = _CRC_BYTES if is_checked else 0
    raw = data.data
    u4 = unaligned(data, ">u4")

    def step(at: Offsets) -> Offsets:
        if front:
            at = at + front
        at_value = u4[at] + at
        at_value += 4
        # Where it is beyond the end, so is what it leads to.
        end = u4[np.minimum(at_value, last)] + at_value
        end += 4
        return end

    def step_one(at: int) -> int:
        at += front
        at_value: int = at + 4 + _u4.unpack_from(raw, at)[0]
        if at_value > last:
            return NOWHERE
        end: int = at_value + 4 + _u4.unpack_from(raw, at_value)[0]
        return end

    return step, step_one


def _field_steps(data: Bytes) -> tuple[Step, StepOne]:
    """Where keys and values end."""
    raw = data.data
    u4 = unaligned(data, ">u4")

    def step(at: Offsets) -> Offsets:
        end = u4[at] + at
        end += 4
        return end

    def step_one(at: int) -> int:
        end: int = at + 4 + _u4.unpack_from(raw, at)[0]
        return end

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


_FIRST_SEARCH_BYTES = 1 << 16
_SECTOR_BYTES = 512
_CHECKED_BYTES = 1 << 28  # a search computes checksums over so many bytes, and no more


def decode(path: str, data: Bytes, *, is_checked: bool) -> HistoricLog:
    """A log of specification 003."""
    found = places(data, is_checked=is_checked)
    # Without checksums: behind the last byte that is not zero, records of nothing are none.
    most = found.records if is_checked else found.before(_zero_tail(data))
    read = in_threads(
        lambda part: _read(path, data, found, part, is_checked=is_checked), found.pieces(most)
    )
    count, tables = 0, [RECORDS_SCHEMA.empty_table()]
    for piece in read:
        tables.append(piece.table)
        count += piece.table.num_rows
        if not piece.is_whole:
            break
    records = pa.concat_tables(tables)
    if is_checked:
        finding = _behind_checked(path, data, found, count)
    else:
        nothing = np.concatenate([np.empty(0, dtype=np.int64), *(piece.nothing for piece in read)])
        count, finding = _plausible_prefix(path, data, found, most, count, nothing)
        records = records.slice(0, count)
    file = HistoricFile(path, len(data), count, 1 if count else None, count or None)
    name: HistoricFormat = "003-crc" if is_checked else "003"
    findings = () if finding is None else (finding,)
    return HistoricLog(name, records, (file,), findings, False, is_checked)


def covered(data: Bytes, *, is_checked: bool) -> tuple[int, int]:
    """How far bytes look like such a file."""
    found = places(data, is_checked=is_checked)
    bounds = found.bounds(data, slice(0, found.records))
    if is_checked:
        count = _sound(data, found.starts, bounds[:, 3])
    else:
        too_long = np.flatnonzero(bounds[:, 3] - bounds[:, 0] > LONGEST_VALUE_BYTES)
        count = int(too_long[0]) if len(too_long) else len(bounds)
        count = _spelled(binary_columns(data, bounds[:count])[0])
    return count, found.start(count)


def next_checked(data: Bytes, start: int) -> int | None:
    """Where the first record with a valid checksum, and a key, begins at or behind an offset."""
    step, _ = steps(data, is_checked=True)
    size = len(data)
    last = size - _CRC_BYTES - _LENGTHS_BYTES
    width = _FIRST_SEARCH_BYTES
    budget = _CHECKED_BYTES
    while start <= last:
        stop = min(start + width, last + 1)
        at = _likely(data, start + _CRC_BYTES, stop + _CRC_BYTES) - _CRC_BYTES
        ends = step(at)
        at, ends = at[ends <= size], ends[ends <= size]
        bounds = _bounds_of(data, at, ends, is_checked=True)
        affordable = np.cumsum(bounds[:, 3] - at) <= budget
        at, bounds = at[affordable], bounds[affordable]
        budget -= int((bounds[:, 3] - at).sum())
        sound = _agree(data, at, bounds[:, 3])
        if sound.any():
            return int(at[int(np.argmax(sound))])
        start += width
        width *= 4
    return None


class _Piece(NamedTuple):
    """Some of the records of a file, up to the first one that cannot be taken.

    Attributes:
        table: Those that can be.
        is_whole: Whether these are all.
        nothing: The numbers, from 0 on, of those without key and value.
    """

    table: pa.Table
    is_whole: bool
    nothing: Offsets


def _read(path: str, data: Bytes, found: Places, part: slice, *, is_checked: bool) -> _Piece:
    bounds = found.bounds(data, part)
    size = part.stop - part.start
    count = _sound(data, found.starts[part], bounds[:, 3]) if is_checked else size
    bounds = bounds[:count]
    if (bounds[:, 3] - bounds[:, 0] > LONGEST_VALUE_BYTES).any():
        raise UnsupportedError("a record of 2 GiB or more is not supported", path=path)
    table = _table(data, bounds, part.start)
    if is_checked:
        return _Piece(table, count == size, np.empty(0, dtype=np.int64))
    nothing = np.flatnonzero(bounds[:, 3] - bounds[:, 0] == _LENGTHS_BYTES - 4) + part.start
    count = _spelled(table["key"])
    return _Piece(table.slice(0, count), count == size, nothing)


def _behind_checked(path: str, data: Bytes, found: Places, count: int) -> Finding | None:
    """What is behind the records that are valid."""
    end = found.start(count)
    left = len(data) - end
    if not left:
        return None
    expected = actual = None
    reason = _short_of(data, end)
    if count < found.records and data[end:].any():
        reason = "the checksum of a record does not match"
        (crc,) = _u4.unpack_from(data.data, end)
        expected = f"{crc:08x}"
        record = data[end + _CRC_BYTES : found.start(count + 1)]
        actual = f"{zlib.crc32(record.data):08x}"
    # Bytes that a crash cut are the last ones; where a whole record follows, something was lost.
    is_lost = next_checked(data, end + 1) is not None
    kind: FindingKind = "damage" if is_lost else "torn_tail"
    return Finding(kind, path, end, left, reason, expected, actual)


def _plausible_prefix(
    path: str, data: Bytes, found: Places, most: int, spelled: int, nothing: Offsets
) -> tuple[int, Finding | None]:
    """How many of the first `most` records nothing speaks against, and what is behind them."""
    size = len(data)
    holes = nothing[:-1][np.diff(nothing) == 1]
    wrong = min([*holes[:1].tolist(), spelled])
    if wrong < most:
        is_nothing = wrong in nothing
        reason = "zero bytes were found between records" if is_nothing else "a key is not UTF-8"
        return _suspicious(path, size, found, wrong, reason)
    end = found.start(most)
    if end == size:
        return most, None
    reason = _short_of(data, end)
    if data[end:].any():
        if _records_to_the_end(data, end + 1):
            reason = "no record begins here, but records follow"
            return _suspicious(path, size, found, most, reason)
    elif most and not found.value_bytes(most - 1) and _may_be_half(data, end):
        at = found.start(most - 1)
        reason = "a tombstone precedes zero bytes: it may be the first part of a record"
        return most - 1, Finding("damage", path, at, size - at, reason, records=1)
    return most, Finding("torn_tail", path, end, size - end, reason)


def _may_be_half(data: Bytes, end: int) -> bool:
    """Whether a tombstone that ends here, before zero bytes, may be the first part of a record.

    As many as three are the first bytes of a length, where an append was cut. Else a crash may have
    left zero bytes in place of a record's rest: such bytes begin at a sector.
    """
    if len(data) - end >= _u4.size:
        return True
    sector = (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return not data[sector:end].any()


def _suspicious(
    path: str, size: int, found: Places, wrong: int, reason: str
) -> tuple[int, Finding]:
    """Damage at a record: what led there is the length of the record before it, so that one is
    not safe either, nor are the empty keys between, which zero bytes look like.
    """
    safe = wrong
    while safe > 0 and not found.key_bytes(safe - 1):
        safe -= 1
    safe = max(safe - 1, 0)
    at = found.start(safe)
    there = f"this at {found.start(wrong)}, where the lengths lead"
    return safe, Finding("damage", path, at, size - at, reason, None, there, wrong - safe)


def _short_of(data: Bytes, at: int) -> str:
    is_zero = not data[at:].any()
    return ZERO_BYTES if is_zero else "the file ends within a record"


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
    step, _ = steps(data, is_checked=False)
    size = len(data)
    width = _FIRST_SEARCH_BYTES
    while True:
        low = max(start, size - width)
        at = _likely(data, low, size - _LENGTHS_BYTES + 1)
        ends = step(at)
        at, ends = at[ends <= size], ends[ends <= size]
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


def _likely(data: Bytes, start: int, stop: int) -> Offsets:
    """Where the length of a key may be: one of 1 to 65535 bytes, as a search takes for one."""
    high, low = unaligned(data[start:], ">u2"), unaligned(data[start + 2 :], ">u2")
    count = max(stop - start, 0)
    return np.flatnonzero((high[:count] == 0) & (low[:count] != 0)) + start


def _sound(data: Bytes, positions: Offsets, ends: Offsets) -> int:
    """How many records there are before the first one whose checksum does not agree."""
    return first_wrong(
        positions,
        ends,
        lambda part, room: _agree_as_one(data, positions[part], int(ends[part.stop - 1]), room),
        lambda part: _agree(data, positions[part], ends[part]),
    )


def _agree_as_one(data: Bytes, positions: Offsets, end: int, room: Bytes) -> bool:
    """Whether all checksums of a run agree: in a copy, each becomes the bridge that leads from
    the one before it to its own record.
    """
    low = int(positions[0])
    room[: end - low] = data[low:end]
    crcs = unaligned(data, ">u4")[positions].astype(np.uint32)
    unaligned(room, "<u4")[positions[1:] - low] = crc32_bridges(crcs[:-1])
    return zlib.crc32(room[_CRC_BYTES : end - low].data) == int(crcs[-1])


def _agree(data: Bytes, positions: Offsets, ends: Offsets) -> npt.NDArray[np.bool_]:
    """Of each record, whether its checksum agrees."""
    starts = positions + _CRC_BYTES
    agrees: npt.NDArray[np.bool_] = (
        crc32_spans(data, starts, ends - starts) == unaligned(data, ">u4")[positions]
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


def _table(data: Bytes, bounds: Offsets, before: int) -> pa.Table:
    """Records as a table, of which so many others are before them."""
    is_tombstone = bounds[:, 2] == bounds[:, 3]
    keys, values = binary_columns(data, bounds, is_tombstone if is_tombstone.any() else None)
    ops = np.where(is_tombstone, DELETE, PUT).astype(np.uint8)
    count = len(bounds)
    columns = [
        pa.chunked_array([np.arange(before + 1, before + count + 1)]),
        pa.chunked_array([op_column(ops)]),
        keys,
        values,
        pa.chunked_array([np.ones(count, dtype=bool)]),
    ]
    return pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA)
