"""Segment names, and the contents found in each segment."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakelog.errors import WalCorruptionError
from lakelog.wal.frames import SEGMENT_HEADER_BYTES, SegmentHeader
from lakelog.wal.scan import NO_FRAMES, Break, Frames

LOCK_NAME = "wal.lock"
"""The file that represents the right to write. What it says is for people only."""

DAMAGED_SUFFIX = ".damaged"
"""Of files that were set aside."""

TEMPORARY_SUFFIX = ".tmp"
"""Of files that a crash may leave, and that mean nothing."""

NUMBERED_NAME = re.compile(r"([0-9]{6,19})\.wal", re.ASCII)
"""A file of specification 002; a segment's name has twenty digits."""

SINGLE_NAME = "wal.log"
"""The file of specification 003."""

_NAME = re.compile(r"([0-9]{20})\.wal", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """A segment, as it was found.

    Attributes:
        path: The file.
        named_seq: The sequence number that its name gives.
        data: Its bytes.
        header: Its header; None if that cannot be read, then `header_error` says why.
        frames: Whole frames, from the header on, without a gap.
        end: Where the last of them ends.
        gap: Why they end before the bytes do; None if they do not.
        followers: Whole frames behind the gap.
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
        """Up to where its own frames prove that it is durable. Before a frame was written, the
        header was.
        """
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
        """Whether nothing but a header, whole or not, was ever written to it."""
        size = self.data.size
        return size <= SEGMENT_HEADER_BYTES or not np.frombuffer(self.data, dtype=np.uint8).any()


def segment_name(first_seq: int) -> str:
    """The name of the segment that begins with a sequence number.

    >>> segment_name(1)
    '00000000000000000001.wal'
    """
    return f"{first_seq:020d}.wal"


def named_seq(name: str) -> int | None:
    """The sequence number in a segment's name; None for the name of anything else.

    >>> named_seq("00000000000000000042.wal"), named_seq("000042.wal")
    (42, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_historic(name: str) -> bool:
    """Whether a file's name is one that earlier programs gave their logs.

    >>> is_historic("000001.wal"), is_historic("wal.log"), is_historic("wal.lock")
    (True, True, False)
    """
    return name == SINGLE_NAME or NUMBERED_NAME.fullmatch(name) is not None
