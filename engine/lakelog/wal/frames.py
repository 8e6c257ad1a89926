"""Segment headers, frames, and the checksum that binds both to one log.

A segment is a header, followed by frames without gaps. A frame is a header, a payload padded to
eight bytes, and a trailer. `lakelog.wal.encode` and `lakelog.wal.reading` define the payload.
``schemas/wal.md`` specifies the format.

The checksum's initial value and final mask are derived from the log's id, such that the checksum
over a whole frame equals its initial value. Frames of another log therefore fail the check, and any
sequence of whole frames is verified by one checksum over all of its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import google_crc32c
import pyarrow as pa

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.disk import Bytes

VERSION = 1
"""Version of the format that is written, and the highest that can be read."""

SEGMENT_MAGIC = b"\x89LKW"
_SEGMENT_HEADER = struct.Struct("<4sHH16sQQQqI")
SEGMENT_HEADER_BYTES = 64
ID_OFFSET = 8
SEQ_OFFSET = 24

FRAME_MAGIC = 0xF7A3514B
"""Magic number of a frame; not valid UTF-8."""

FRAME_HEADER = struct.Struct("<IIQIBBHII")
FRAME_HEADER_BYTES = 32
_TRAILER_BYTES = 8
FRAME_BYTES = FRAME_HEADER_BYTES + _TRAILER_BYTES
"""Bytes of a frame in addition to its payload."""

ALIGNMENT_BYTES = 8
PAYLOAD_LIMIT_BYTES = 1 << 30
"""Maximum size of a payload in bytes, within the range of Arrow's 32-bit offsets."""

KIND_RECORDS, KIND_TRUNCATION, KIND_SEAL = 1, 2, 3
CODEC_NONE, CODEC_ZSTD = 0, 1

FLAG_CONTINUES = 1
"""The batch continues in the next frame."""
FLAG_BATCH = 2
"""The frame contains one batch, or a part of one; otherwise each record is independent."""
FLAG_JUMP = 4
"""Sequence numbers before the frame's first may be missing, because they were abandoned."""
FLAG_NULLS = 8
"""The payload has a validity bitmap of the values; otherwise no value is null."""
KNOWN_FLAGS = FLAG_CONTINUES | FLAG_BATCH | FLAG_JUMP | FLAG_NULLS

Op = Literal["PUT", "DELETE", "COMMIT", "CHECKPOINT"]

OPS: tuple[Op, ...] = ("PUT", "DELETE", "COMMIT", "CHECKPOINT")
"""Names of the operations; the first one's code is 1."""

PUT, DELETE, COMMIT, CHECKPOINT = 1, 2, 3, 4

MAX_SEQ = (1 << 63) - 1


class Seal(NamedTuple):
    """The part of a frame's checksum that depends on the log's id: initial value, xor mask."""

    start: int
    mark: int

    @classmethod
    def of(cls, log_id: bytes) -> Seal:
        """The seal of a log. Continuing the checksum over a whole frame returns to `start`.

        >>> seal = Seal.of(bytes(16))
        >>> frame = b"twelve bytes" + seal.checksum([b"twelve bytes"]).to_bytes(4, "little")
        >>> google_crc32c.extend(seal.start, frame + frame) == seal.start
        True
        """
        mark = google_crc32c.value(log_id)
        return cls(google_crc32c.value(mark.to_bytes(4, "little")), mark)

    def checksum(self, pieces: Sequence[Bytes]) -> int:
        """The checksum to write after a frame's bytes, given in pieces."""
        crc = self.start
        for piece in pieces:
            # The library takes no memoryview.
            data = piece if isinstance(piece, bytes) else pa.py_buffer(piece)
            crc = google_crc32c.extend(crc, data)
        return int(crc) ^ self.mark


class FrameHeader(NamedTuple):
    """The header of one frame. `payload_bytes` is without padding; `first_seq` of a mark is the
    next record's sequence number, and its `records` 0.
    """

    payload_bytes: int
    first_seq: int
    records: int
    kind: int = KIND_RECORDS
    codec: int = CODEC_NONE
    flags: int = 0
    raw_bytes: int = 0
    key_bytes: int = 0

    def pack(self) -> bytes:
        """The header's bytes."""
        return FRAME_HEADER.pack(FRAME_MAGIC, *self)


@dataclass(frozen=True)
class SegmentHeader:
    """The header of a segment. `follows_seq` is smaller than `first_seq` only if the numbers
    between were abandoned with damaged records; records up to `truncated_to` were truncated when
    the segment began.
    """

    log_id: bytes
    first_seq: int
    follows_seq: int
    truncated_to: int
    created_ms: int

    def pack(self) -> bytes:
        """The header's bytes."""
        head = _SEGMENT_HEADER.pack(
            SEGMENT_MAGIC,
            VERSION,
            0,
            self.log_id,
            self.first_seq,
            self.follows_seq,
            self.truncated_to,
            self.created_ms,
            0,
        )
        return head + int(google_crc32c.value(head)).to_bytes(4, "little")

    @classmethod
    def parse(cls, data: bytes, path: str) -> SegmentHeader:
        """Read the first bytes of a segment."""
        if len(data) < SEGMENT_HEADER_BYTES:
            raise WalCorruptionError(
                "the file is too short for a segment of a write-ahead log",
                path=path,
                byte_offset=0,
                expected=f"{SEGMENT_HEADER_BYTES} bytes",
                found=f"{len(data)} bytes",
            )
        data = data[:SEGMENT_HEADER_BYTES]
        magic, version, flags, *fields, unused = _SEGMENT_HEADER.unpack(data[:-4])
        if magic != SEGMENT_MAGIC:
            raise WalCorruptionError(
                "the file is not a segment of a write-ahead log, or its header is damaged",
                path=path,
                byte_offset=0,
                expected=SEGMENT_MAGIC.hex(),
                found=magic.hex(),
            )
        wanted = int(google_crc32c.value(data[:-4]))
        found = int.from_bytes(data[-4:], "little")
        if wanted != found:
            raise WalCorruptionError(
                "the checksum of a segment's header is wrong",
                path=path,
                byte_offset=SEGMENT_HEADER_BYTES - 4,
                expected=f"{wanted:08x}",
                found=f"{found:08x}",
            )
        if version != VERSION or flags or unused:
            raise UnsupportedError(
                "a later version of lakelog wrote this log",
                path=path,
                expected=f"format version {VERSION}",
                found=f"format version {version}, flags {flags}",
                hint="upgrade lakelog",
            )
        return cls(*fields)


def aligned(size_bytes: int) -> int:
    """A size rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def padding(size_bytes: int) -> bytes:
    """The zero bytes that round a size up to the alignment."""
    return b"\0" * (-size_bytes % ALIGNMENT_BYTES)


def frame_pieces(
    header: FrameHeader, payload: Sequence[Bytes], unsynced_bytes: int, seal: Seal
) -> list[Bytes]:
    """The bytes of a frame, in pieces."""
    unsynced = min(unsynced_bytes // ALIGNMENT_BYTES, 0xFFFFFFFF).to_bytes(4, "little")
    pieces: list[Bytes] = [header.pack(), *payload, padding(header.payload_bytes) + unsynced]
    pieces.append(seal.checksum(pieces).to_bytes(4, "little"))
    return pieces


def mark_frame(kind: int, next_seq: int, value: int, unsynced_bytes: int, seal: Seal) -> bytes:
    """A frame without records."""
    payload = value.to_bytes(8, "little")
    header = FrameHeader(len(payload), next_seq, 0, kind, raw_bytes=len(payload))
    return b"".join(frame_pieces(header, [payload], unsynced_bytes, seal))
