"""Locates the frames of a segment by their chain, and verifies their checksums.

Whole segments are verified in a few passes over columns of headers, so that a million frames of one
record cost little more than a thousand frames of a thousand records.

Pure: works on the bytes of one segment. `lakelog.wal.recovery` decides whether a break in the chain
is a torn tail or damage, which depends on the rest of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.lazy import cached_property
from lakelog.wal.frames import (
    ALIGNMENT_BYTES,
    FRAME_BYTES,
    FRAME_MAGIC,
    PAYLOAD_LIMIT_BYTES,
    SEGMENT_HEADER_BYTES,
    Seal,
)

Numbers = npt.NDArray[np.int64]

_HOPS = 64
_SMALL_FRAME_BYTES = 2048  # smaller frames are found by a search, larger ones by hopping
_WINDOW_BYTES = 1 << 21  # size of a searched window; keeps temporary arrays small


@dataclass(frozen=True)
class Frames:
    """Headers of frames as columns: `headers` has four words each, `unsynced` is of trailers."""

    offsets: Numbers
    headers: npt.NDArray[np.uint64]
    unsynced: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, which: Any) -> Frames:
        """The frames of a slice, a mask or an array of indexes."""
        return Frames(self.offsets[which], self.headers[which], self.unsynced[which])

    @cached_property
    def payload_bytes(self) -> Numbers:
        """Length of each stored payload, without padding."""
        return self._column("<u4", 4)

    @cached_property
    def first_seq(self) -> Numbers:
        """Sequence number of each frame's first record."""
        return self._column("<i8", 8)

    @cached_property
    def counts(self) -> Numbers:
        """Number of records per frame."""
        return self._column("<u4", 16)

    @cached_property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """Kind of each payload; uint8."""
        return self._stored("u1", 20)

    @cached_property
    def codecs(self) -> npt.NDArray[np.uint8]:
        """Compression codec of each payload; uint8."""
        return self._stored("u1", 21)

    @cached_property
    def flags(self) -> npt.NDArray[np.uint16]:
        """Flags of each frame, see ``FLAG_``; uint16."""
        return self._stored("<u2", 22)

    @property
    def raw_bytes(self) -> Numbers:
        """Length of each payload before compression."""
        return self._column("<u4", 24)

    @cached_property
    def key_bytes(self) -> Numbers:
        """Total length of the keys per frame."""
        return self._column("<u4", 28)

    @property
    def unsynced_bytes(self) -> Numbers:
        """Bytes before each frame that were not known to be durable when it was written."""
        return ALIGNMENT_BYTES * self.unsynced.astype(np.int64)

    @cached_property
    def ends(self) -> Numbers:
        """End offset of each frame."""
        return self.offsets + FRAME_BYTES + _aligned(self.payload_bytes)

    @cached_property
    def next_seq(self) -> Numbers:
        """The sequence number that follows each frame's last record."""
        return self.first_seq + self.counts

    @property
    def durable_bytes(self) -> Numbers:
        """Bytes of the segment that were known to be durable when each frame was written."""
        return self.offsets - self.unsynced_bytes

    @classmethod
    def concat(cls, parts: list[Frames]) -> Frames:
        """Concatenate frames."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def _stored(self, kind: str, at: int) -> npt.NDArray[Any]:
        """The field at an offset in each header."""
        return np.ascontiguousarray(self._view(kind, at))

    def _column(self, kind: str, at: int) -> Numbers:
        """The same, as int64."""
        column: Numbers = self._view(kind, at).astype(np.int64)
        return column

    def _view(self, kind: str, at: int) -> npt.NDArray[Any]:
        return self.headers.view(kind)[:, at // np.dtype(kind).itemsize]


NO_FRAMES = Frames(
    np.empty(0, dtype=np.int64), np.empty((0, 4), dtype="<u8"), np.empty(0, dtype=np.uint32)
)


@dataclass(frozen=True)
class Break:
    """Why a chain of frames ends before the bytes: only zeros follow, a frame exceeds the end
    (``short``), no frame begins there (``magic``), or ``checksum``.
    """

    reason: Literal["zeros", "short", "magic", "checksum"]
    offset: int
    expected: str
    found: str


@dataclass(frozen=True)
class Scan:
    """Contiguous whole frames of a segment, the end of the last one, and why they end there."""

    frames: Frames
    end: int
    gap: Break | None


def scan(data: pa.Buffer, seal: Seal) -> Scan:
    """Find the frames of a segment."""
    parts = [NO_FRAMES]
    at = SEGMENT_HEADER_BYTES
    for offsets, end in _chain(data, at):
        part = _headers(data, offsets, np.append(offsets[1:], end))
        # One checksum over all frames shows whether one is invalid, and each frame's own shows
        # which.
        if google_crc32c.extend(seal.start, data.slice(at, end - at)) != seal.start:
            whole = int(np.argmin(_is_whole(data, part, seal)))
            at = int(offsets[whole])
            bad = Break(
                "checksum",
                at,
                "a frame with its checksum",
                "bytes that differ from what was written",
            )
            return Scan(Frames.concat([*parts, part[:whole]]), at, bad)
        parts.append(part)
        at = end
    return Scan(Frames.concat(parts), at, _why(data, at) if at < data.size else None)


def whole_frames(data: pa.Buffer, seal: Seal, start: int) -> Frames:
    """Whole frames after an offset, by their magic number, each verified; used after a break."""
    found: list[Frames] = []
    at = start
    for low in range(start, data.size - FRAME_BYTES + 1, _WINDOW_BYTES):
        candidates = headers(data, _candidates(data, low, low + _WINDOW_BYTES))
        if not len(candidates):
            continue
        good = candidates[_is_whole(data, candidates, seal)]
        kept = []
        for n, (offset, end) in enumerate(
            zip(good.offsets.tolist(), good.ends.tolist(), strict=True)
        ):
            # Bytes within a whole frame are payload, even if they look like a frame.
            if offset >= at:
                kept.append(n)
                at = end
        found.append(good[np.array(kept, dtype=np.int64)])
    return Frames.concat(found) if found else NO_FRAMES


def unproved_frames(data: pa.Buffer) -> Frames:
    """Frames of a chain by their headers alone, if the start of their checksums is unknown."""
    parts = [NO_FRAMES]
    for offsets, end in _chain(data, SEGMENT_HEADER_BYTES):
        parts.append(_headers(data, offsets, np.append(offsets[1:], end)))
    return Frames.concat(parts)


def headers(data: pa.Buffer, offsets: Numbers) -> Frames:
    """Headers of frames that begin at `offsets` and end within the data."""
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    if not len(offsets):
        return NO_FRAMES
    payload = words[offsets >> 3] >> np.uint64(32)
    return _headers(data, offsets, offsets + FRAME_BYTES + _aligned(payload.astype(np.int64)))


def _headers(data: pa.Buffer, offsets: Numbers, ends: Numbers) -> Frames:
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    trailers = words[(ends >> 3) - 1]
    return Frames(offsets, word_rows(words, offsets >> 3, 4), trailers.astype(np.uint32))


def word_rows(words: npt.NDArray[np.uint64], at: Numbers, width: int) -> npt.NDArray[np.uint64]:
    """`width` words from each index on, one row per index; all must exist."""
    # Overlapping rows as items of one type, so that a row is copied in one call.
    view = np.ndarray((len(words) - width + 1,), f"V{8 * width}", words, 0, (8,))
    rows: npt.NDArray[np.uint64] = view[at].view("<u8").reshape(-1, width)
    return rows


def _aligned(sizes: Numbers) -> Numbers:
    return (sizes + (ALIGNMENT_BYTES - 1)) & -ALIGNMENT_BYTES


def _chain(data: pa.Buffer, start: int) -> Iterator[tuple[Numbers, int]]:
    """Offsets of frames by their headers alone, in parts that fit in the CPU cache."""
    at = start
    while True:
        hops, reached = _hop(data, at)
        if hops:
            yield np.array(hops, dtype=np.int64), reached
        if len(hops) < _HOPS:
            return
        last, count = hops[-1], _HOPS
        while reached - at < count * _SMALL_FRAME_BYTES:
            at = reached
            found, reached = _repeated(data, last, at)
            if not len(found):
                found, reached = _searched(data, at)
            count = len(found)
            if count:
                last = int(found[-1])
                yield found, reached
        at = reached


def _hop(data: pa.Buffer, at: int) -> tuple[list[int], int]:
    """A few frames from an offset on, and the end of the last."""
    words = memoryview(data)[: data.size & -4].cast("I")
    found: list[int] = []
    last = data.size - FRAME_BYTES
    while at <= last and len(found) < _HOPS and words[at >> 2] == FRAME_MAGIC:
        payload = words[(at >> 2) + 1]
        end = at + FRAME_BYTES + (payload + 7 & -8)
        if end > data.size or payload > PAYLOAD_LIMIT_BYTES:
            break
        found.append(at)
        at = end
    return found, at


def _repeated(data: pa.Buffer, last: int, at: int) -> tuple[Numbers, int]:
    """Frames of equal length from an offset on, and the end of the last; None if they are few."""
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    step = at - last
    most = min(_WINDOW_BYTES, data.size - at) // step
    is_same = words[at >> 3 :: step >> 3][:_HOPS] == words[last >> 3]
    if most < _HOPS or not is_same.all():
        return np.empty(0, dtype=np.int64), at
    is_same = words[at >> 3 :: step >> 3][:most] == words[last >> 3]
    count = most if is_same.all() else int(is_same.argmin())
    end = at + count * step
    return np.arange(at, end, step), end


def _searched(data: pa.Buffer, at: int) -> tuple[Numbers, int]:
    """Contiguous frames from an offset on, and the end of the last."""
    candidates = _candidates(data, at, at + _WINDOW_BYTES)
    ends = _ends(data, candidates)
    chosen = reachable(candidates, ends, at)
    return candidates[chosen], int(ends[chosen[-1]]) if len(chosen) else at


def reachable(positions: Numbers, ends: Numbers, start: int) -> Numbers:
    """Indexes of the candidates on the chain that begins at an offset.

    >>> positions, ends = np.array([0, 3, 8, 9]), np.array([8, 9, 20, 12])
    >>> reachable(positions, ends, 0).tolist()
    [0, 2]
    """
    first = int(np.searchsorted(positions, start))
    if first == len(positions) or positions[first] != start:
        return np.empty(0, dtype=np.int64)
    positions, ends = positions[first:], ends[first:]
    joined = positions[1:] == ends[:-1]
    # Merge candidates that follow each other directly; these runs are the nodes from here on.
    lasts = np.append(np.flatnonzero(~joined), len(positions) - 1)
    if len(lasts) == 1:
        return np.arange(first, first + len(positions))
    target = np.searchsorted(positions, ends[lasts])
    is_end = target == len(positions)
    target[is_end] = 0
    is_end |= positions[target] != ends[lasts]
    following = np.searchsorted(lasts, target)
    following[is_end] = len(lasts)
    runs = _path(following)
    entries = np.zeros(len(runs), dtype=np.int64)
    entries[1:] = target[runs[:-1]]
    counts = lasts[runs] - entries + 1
    before = np.cumsum(counts) - counts
    return first + np.repeat(entries - before, counts) + np.arange(int(counts.sum()))


def _path(following: Numbers) -> Numbers:
    """The nodes on the path from node 0, doubled in each round."""
    nodes = len(following)
    jump = np.append(following, nodes)
    path = np.zeros(1, dtype=np.int64)
    while True:
        reached = jump[path]
        reached = reached[reached < nodes]
        if not len(reached):
            return path
        path = np.concatenate([path, reached])
        if len(reached) < len(path) - len(reached):
            return path
        jump = jump[jump]


def _candidates(data: pa.Buffer, low: int, high: int) -> Numbers:
    """Aligned offsets in a range at which a frame within the data may begin."""
    high = min(high, data.size - FRAME_BYTES + 1)
    if high <= low:
        return np.empty(0, dtype=np.int64)
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)[low >> 3 : (high + 7) >> 3]
    found = low + 8 * np.flatnonzero(words.astype(np.uint32) == np.uint32(FRAME_MAGIC))
    payload = (words[(found - low) >> 3] >> np.uint64(32)).astype(np.int64)
    ends = found + FRAME_BYTES + _aligned(payload)
    fits = (ends <= data.size) & (payload <= PAYLOAD_LIMIT_BYTES)
    return found if fits.all() else found[fits]


def _ends(data: pa.Buffer, offsets: Numbers) -> Numbers:
    words = np.frombuffer(data, dtype="<u4", count=data.size // 4)
    return offsets + FRAME_BYTES + _aligned(words[(offsets >> 2) + 1].astype(np.int64))


def _is_whole(data: pa.Buffer, frames: Frames, seal: Seal) -> npt.NDArray[np.bool_]:
    """For each frame whether its checksum is correct."""
    lengths = frames.ends - frames.offsets
    whole = [
        google_crc32c.extend(seal.start, data.slice(offset, length)) == seal.start
        for offset, length in zip(frames.offsets.tolist(), lengths.tolist(), strict=True)
    ]
    return np.array(whole, dtype=bool)


def _why(data: pa.Buffer, at: int) -> Break:
    size = data.size
    rest = np.frombuffer(data, dtype=np.uint8)[at:]
    if not rest.any():
        return Break("zeros", at, "a frame, or the end of the file", f"{size - at} zero bytes")
    magic = FRAME_MAGIC.to_bytes(4, "little")
    head = rest[:4].tobytes()
    if head != magic[: len(head)]:
        return Break("magic", at, f"a frame, which begins with {magic.hex()}", head.hex())
    if len(rest) < FRAME_BYTES:
        return Break("short", at, f"a frame of at least {FRAME_BYTES} bytes", f"{len(rest)} bytes")
    length = FRAME_BYTES + (int.from_bytes(rest[4:8].tobytes(), "little") + 7 & -8)
    return Break("short", at, f"a frame of {length} bytes", f"{len(rest)} bytes")
