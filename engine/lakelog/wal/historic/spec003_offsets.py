"""Specification 003: where the records of a file are, by what their lengths say.

With checksums a record is u32 CRC-32 | u32 key length | key | u32 value length | value, big-endian;
without, the same but for the first field. Whether what is there is valid is
`lakelog.wal.historic.spec003`'s to say.

Pure: bytes in, offsets out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from lakelog.wal.chain import NOWHERE, Offsets, Step, StepOne, walk
from lakelog.wal.historic.spans import Bytes, pieces, unaligned

CRC_BYTES = 4
LENGTHS_BYTES = 8
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
            return bounds_of(data, self.offsets[part], ends, is_checked=True)
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
        least = CRC_BYTES + LENGTHS_BYTES
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
    front = CRC_BYTES if is_checked else 0
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


def bounds_of(data: Bytes, positions: Offsets, ends: Offsets, *, is_checked: bool) -> Offsets:
    """Of each record: where its key begins and ends, where its value begins and ends."""
    at = positions + CRC_BYTES if is_checked else positions
    bounds = np.empty((len(positions), 4), dtype=np.int64)
    bounds[:, 0] = at + 4
    bounds[:, 1] = bounds[:, 0] + unaligned(data, ">u4")[at]
    bounds[:, 2] = bounds[:, 1] + 4
    bounds[:, 3] = ends
    return bounds
