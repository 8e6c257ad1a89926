"""Segment names, the contents found in each segment, and threads that decode several at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakelog.errors import WalCorruptionError
from lakelog.threads import Pool
from lakelog.wal.frames import SEGMENT_HEADER_BYTES, SegmentHeader
from lakelog.wal.scan import NO_FRAMES, Break, Frames

LOCK_NAME = "wal.lock"
"""The lock file of the writer. Its content is informative only."""

DAMAGED_SUFFIX = ".damaged"
"""Suffix of damaged files that were moved aside."""

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of temporary files, which a crash may leave."""

NUMBERED_NAME = re.compile(r"([0-9]{6,19})\.wal", re.ASCII)
"""File names of specification 002; a segment's name has twenty digits."""

SINGLE_NAME = "wal.log"
"""The file name of specification 003."""

_NAME = re.compile(r"([0-9]{20})\.wal", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """A segment on disk. `frames` are contiguous from the header to `end`; `gap` is why they end
    before the bytes do, or None; `followers` are whole frames after it.
    """

    path: str
    named_seq: int
    data: pa.Buffer
    header: SegmentHeader | None = None
    header_error: WalCorruptionError | None = None
    frames: Frames = NO_FRAMES
    end: int = 0
    gap: Break | None = None
    followers: Frames = NO_FRAMES

    @property
    def durable_end(self) -> int:
        """Offset up to which its own frames prove that it is durable, at least the header."""
        if not len(self.frames):
            return 0
        return max(SEGMENT_HEADER_BYTES, int(self.frames.durable_bytes.max()))

    @property
    def next_seq(self) -> int:
        """The sequence number that follows the last one of its frames."""
        if len(self.frames):
            return int(self.frames.next_seq[-1])
        return self.named_seq if self.header is None else self.header.first_seq

    @property
    def is_blank(self) -> bool:
        """Whether it has at most a header, complete or not."""
        size = self.data.size
        return size <= SEGMENT_HEADER_BYTES or not np.frombuffer(self.data, dtype=np.uint8).any()


def segment_name(first_seq: int) -> str:
    """The name of the segment that begins with a sequence number."""
    return f"{first_seq:020d}.wal"


def named_seq(name: str) -> int | None:
    """The sequence number in a segment's name; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_historic(name: str) -> bool:
    """Whether a file name is one of a historic log."""
    return name == SINGLE_NAME or NUMBERED_NAME.fullmatch(name) is not None


_WORTH_BYTES = 1 << 21  # below, the work is done before a thread starts
_PART_BYTES = 1 << 24
_SMALL_FRAME_BYTES = 1 << 13  # larger frames are processed one by one, in Python

R = TypeVar("R")


def of_segments(work: Callable[[Segment], R], segments: Sequence[Segment]) -> list[R]:
    """The result of each segment, in order; in threads, unless small. Raises the first error."""
    threads = min(len(segments), os.cpu_count() or 1)
    if threads < 2 or sum(each.data.size for each in segments) < _WORTH_BYTES:
        return [work(each) for each in segments]
    with Pool(threads, thread_name_prefix="lakelog-wal") as pool:
        return list(pool.map(work, segments))


def parts_of(segment: Segment) -> list[Segment]:
    """A segment split into parts of its frames, so that threads have equal work."""
    offsets = segment.frames.offsets
    if not len(offsets):
        return []
    cuts = np.searchsorted(offsets, np.arange(offsets[0], segment.end, _PART_BYTES)[1:])
    limits = np.unique([0, *cuts, len(offsets)]).tolist()
    return [replace(segment, frames=segment.frames[low:high]) for low, high in pairwise(limits)]


def are_small(segments: Sequence[Segment]) -> bool:
    """Whether the frames are small, so that they are processed together, which is worth threads."""
    size = sum(each.end for each in segments)
    return size < _SMALL_FRAME_BYTES * sum(len(each.frames) for each in segments)
