"""Which frames a segment holds: found by their chain, proved by their checksums.

Whole segments are looked at in a few passes over columns of headers, so that a million frames of
one record cost little more than a thousand frames of a thousand.

Pure: sees bytes, not files, and knows of one segment only. What a break in the chain means (a torn
tail or damage) needs the rest of the log, and is `lakelog.wal.judge`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.wal.chain import reachable
from lakelog.wal.crc import crc32c_spans
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
_SMALL_FRAME_BYTES = 2048  # frames smaller than this are searched for, larger ones hopped over
_WINDOW_BYTES = 1 << 21  # searched at once: what is made beside it stays small
_PROVED_FRAMES = 256  # among so many the first bad one is found by the checksum of each


@dataclass(frozen=True)
class Frames:
    """Headers of frames, as columns of one length, int64 unless said otherwise.

    Attributes:
        offsets: Where each frame begins in its segment.
        payload_bytes: As in `lakelog.wal.frames.FrameHeader`; so are those that follow.
        first_seq: ...
        counts: ...
        kinds: uint8.
        codecs: uint8.
        flags: uint16.
        raw_bytes: ...
        key_bytes: ...
        unsynced_bytes: Of each frame's trailer: how many bytes before the frame were not known
            to be durable when it was written.
    """

    offsets: Numbers
    payload_bytes: Numbers
    first_seq: Numbers
    counts: Numbers
    kinds: npt.NDArray[np.uint8]
    codecs: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint16]
    raw_bytes: Numbers
    key_bytes: Numbers
    unsynced_bytes: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, which: Any) -> Frames:
        """The frames of a slice, a mask or an array of indexes."""
        return Frames(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def ends(self) -> Numbers:
        """Where each frame ends."""
        return self.offsets + FRAME_BYTES + _aligned(self.payload_bytes)

    @property
    def next_seq(self) -> Numbers:
        """The sequence number that follows each frame's last record."""
        return self.first_seq + self.counts

    @property
    def durable_bytes(self) -> Numbers:
        """How much of the segment was known to be durable when each frame was written."""
        return self.offsets - self.unsynced_bytes

    @classmethod
    def concat(cls, parts: list[Frames]) -> Frames:
        """Frames behind one another."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def _none(kind: Any) -> Any:
    return np.empty(0, dtype=kind)


NO_FRAMES = Frames(
    offsets=_none(np.int64),
    payload_bytes=_none(np.int64),
    first_seq=_none(np.int64),
    counts=_none(np.int64),
    kinds=_none(np.uint8),
    codecs=_none(np.uint8),
    flags=_none(np.uint16),
    raw_bytes=_none(np.int64),
    key_bytes=_none(np.int64),
    unsynced_bytes=_none(np.int64),
)


@dataclass(frozen=True)
class Break:
    """Why a chain of frames ends before the bytes do.

    Attributes:
        reason: ``zeros`` (zero bytes up to the end), ``short`` (a frame would go on behind the
            end), ``magic`` (no frame begins there), ``checksum`` (a whole frame, and its bytes
            are not those that were written).
        offset: Where the first frame that is not whole begins, or would.
        expected: What should have been there.
        found: What was there.
    """

    reason: Literal["zeros", "short", "magic", "checksum"]
    offset: int
    expected: str
    found: str


@dataclass(frozen=True)
class Scan:
    """What a segment's bytes hold.

    Attributes:
        frames: Whole frames without a gap between them, from where the scan began.
        end: Where the last of them ends.
        gap: Why the scan ended there; None where the bytes end there too.
    """

    frames: Frames
    end: int
    gap: Break | None


def scan(data: pa.Buffer, seal: Seal, start: int = SEGMENT_HEADER_BYTES) -> Scan:
    """Find the frames of a segment.

    Args:
        data: The segment's bytes.
        seal: Of the log.
        start: Where a frame begins.
    """
    size = data.size
    frames = Frames.concat([headers(data, part) for part in _chain(data, start)])
    end = int(frames.ends[-1]) if len(frames) else start
    whole = _proved(data, frames, start, end, seal)
    if whole < len(frames):
        at = int(frames.offsets[whole])
        frames = frames[:whole]
        bad = Break("checksum", at, "a frame with its checksum", "other bytes than were written")
        return Scan(frames, at, bad)
    return Scan(frames, end, _why(data, end) if end < size else None)


def whole_frames(data: pa.Buffer, seal: Seal, start: int) -> Frames:
    """Whole frames that begin anywhere behind an offset, however far apart, found by their magic
    number and proved one by one. For what comes after a break.

    Args:
        data: The segment's bytes.
        seal: Of the log.
        start: Where to look, aligned.
    """
    found: list[Frames] = []
    at = start
    for low in range(start, data.size - FRAME_BYTES + 1, _WINDOW_BYTES):
        candidates = headers(data, _candidates(data, low, low + _WINDOW_BYTES))
        if not len(candidates):
            continue
        good = candidates[_checksums(data, candidates, seal) == 0]
        kept = []
        for n, (offset, end) in enumerate(
            zip(good.offsets.tolist(), good.ends.tolist(), strict=True)
        ):
            # What lies inside a whole frame is its payload, whatever it looks like.
            if offset >= at:
                kept.append(n)
                at = end
        found.append(good[np.array(kept, dtype=np.int64)])
    return Frames.concat(found) if found else NO_FRAMES


def headers(data: pa.Buffer, offsets: Numbers) -> Frames:
    """Headers of frames that begin at `offsets` and end within the data."""
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    at = offsets >> 3
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    first, third, fourth = words[at], words[at + 2], words[at + 3]
    payload = (first >> high).astype(np.int64)
    unsynced = words[(offsets + (FRAME_BYTES - 8) + _aligned(payload)) >> 3] & low
    return Frames(
        offsets,
        payload,
        words[at + 1].astype(np.int64),
        (third & low).astype(np.int64),
        (third >> high).astype(np.uint8),
        (third >> np.uint64(40)).astype(np.uint8),
        (third >> np.uint64(48)).astype(np.uint16),
        (fourth & low).astype(np.int64),
        (fourth >> high).astype(np.int64),
        8 * unsynced.astype(np.int64),
    )


def _aligned(sizes: Numbers) -> Numbers:
    return (sizes + (ALIGNMENT_BYTES - 1)) & -ALIGNMENT_BYTES


def _chain(data: pa.Buffer, start: int) -> list[Numbers]:
    """Where frames begin, each where the one before it ends, by their headers alone; in parts
    small enough for the cache.
    """
    parts: list[Numbers] = []
    at = start
    while True:
        hops, reached = _hop(data, at)
        parts.append(np.array(hops, dtype=np.int64))
        if len(hops) < _HOPS:
            break
        while reached - at < len(parts[-1]) * _SMALL_FRAME_BYTES and len(parts[-1]):
            at = reached
            candidates = _candidates(data, at, at + _WINDOW_BYTES)
            ends = _ends(data, candidates)
            chosen = reachable(candidates, ends, at)
            parts.append(candidates[chosen])
            if len(chosen):
                reached = int(ends[chosen[-1]])
        at = reached
    return parts


def _hop(data: pa.Buffer, at: int) -> tuple[list[int], int]:
    """A few frames from an offset on, and where the last one ends."""
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


def _candidates(data: pa.Buffer, low: int, high: int) -> Numbers:
    """Aligned offsets in a range at which a frame that ends within the data seems to begin."""
    high = min(high, data.size - FRAME_BYTES + 1)
    if high <= low:
        return np.empty(0, dtype=np.int64)
    words = np.frombuffer(data, dtype="<u4", count=data.size // 4)
    found = low + 8 * np.flatnonzero(words[low >> 2 : (high + 3) >> 2 : 2] == FRAME_MAGIC)
    payload = words[(found >> 2) + 1].astype(np.int64)
    ends = found + FRAME_BYTES + _aligned(payload)
    fits = (ends <= data.size) & (payload <= PAYLOAD_LIMIT_BYTES)
    return found if fits.all() else found[fits]


def _ends(data: pa.Buffer, offsets: Numbers) -> Numbers:
    words = np.frombuffer(data, dtype="<u4", count=data.size // 4)
    return offsets + FRAME_BYTES + _aligned(words[(offsets >> 2) + 1].astype(np.int64))


def _proved(data: pa.Buffer, frames: Frames, start: int, end: int, seal: Seal) -> int:
    """How many frames, from the first one on, have the bytes that were written."""
    if google_crc32c.extend(seal.start, data.slice(start, end - start)) == seal.start:
        return len(frames)
    # One checksum over all says whether a frame is bad; halving says which is the first.
    low, high = 0, len(frames)
    at, crc = start, seal.start
    ends = frames.ends
    while high - low > _PROVED_FRAMES:
        middle = (low + high) // 2
        reached = int(ends[middle - 1])
        there = google_crc32c.extend(crc, data.slice(at, reached - at))
        if there == seal.start:
            low, at = middle, reached
        else:
            high = middle
    wrong = np.flatnonzero(_checksums(data, frames[low:high], seal))
    return low + int(wrong[0]) if len(wrong) else high


def _checksums(data: pa.Buffer, frames: Frames, seal: Seal) -> npt.NDArray[np.uint32]:
    """For each frame zero if its checksum is right."""
    array = np.frombuffer(data, dtype=np.uint8)
    lengths = frames.ends - frames.offsets
    return crc32c_spans(array, frames.offsets, lengths, seal.start) ^ np.uint32(seal.start)


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
