"""A reader of frames, one after another, from ``schemas/wal.md`` alone; `plain_reading` reads logs.

The model for the vectorised one. Imports nothing of lakelog.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

OPS = {1: "PUT", 2: "DELETE", 3: "COMMIT", 4: "CHECKPOINT"}


class Record(NamedTuple):
    seq: int
    op: str
    key: bytes
    value: bytes | None


class Frame(NamedTuple):
    offset: int
    end: int
    first_seq: int
    records: int
    kind: int
    codec: int
    flags: int
    key_bytes: int
    raw_bytes: int
    payload: bytes
    unsynced_bytes: int


def pad(size: int) -> int:
    return (size + 7) // 8 * 8


def read_header(data: bytes) -> tuple[bytes, int, int, int, int]:
    magic, version, flags, log_id, first, follows, truncated, created, spare, crc = struct.unpack(
        "<4sHH16sQQQqII", data[:64]
    )
    assert magic == b"\x89LKW"
    assert (version, flags, spare) == (1, 0, 0)
    assert crc == google_crc32c.value(data[:60])
    return log_id, first, follows, truncated, created


def read_frames(data: bytes, log_id: bytes) -> list[Frame]:
    """Frames up to the first incomplete one."""
    mark = google_crc32c.value(log_id)
    start = google_crc32c.value(struct.pack("<I", mark))
    frames = []
    at = 64
    while at + 40 <= len(data):
        magic, size, first, count, kind, codec, flags, raw, key_bytes = struct.unpack(
            "<IIQIBBHII", data[at : at + 32]
        )
        end = at + 32 + pad(size) + 8
        if magic != 0xF7A3514B or end > len(data):
            break
        unsynced, crc = struct.unpack("<II", data[end - 8 : end])
        if crc != google_crc32c.extend(start, data[at : end - 4]) ^ mark:
            break
        payload = data[at + 32 : at + 32 + size]
        if codec == 1:
            payload = pa.decompress(payload, raw, codec="zstd", asbytes=True)
        frames.append(
            Frame(at, end, first, count, kind, codec, flags, key_bytes, raw, payload, unsynced * 8)
        )
        at = end
    return frames


def frame_records(frame: Frame) -> list[Record]:
    count, payload = frame.records, frame.payload
    at = pad(count)
    keys = struct.unpack_from(f"<{count + 1}i", payload, at)
    at += pad(4 * (count + 1))
    values = struct.unpack_from(f"<{count + 1}i", payload, at)
    at += pad(4 * (count + 1))
    has_value = [True] * count
    if frame.flags & 8:
        has_value = [bool(payload[at + n // 8] >> n % 8 & 1) for n in range(count)]
        at += (count + 63) // 64 * 8
    key_data = payload[at : at + frame.key_bytes]
    value_data = payload[at + pad(frame.key_bytes) :]
    return [
        Record(
            frame.first_seq + n,
            OPS[payload[n]],
            key_data[keys[n] : keys[n + 1]],
            value_data[values[n] : values[n + 1]] if has_value[n] else None,
        )
        for n in range(count)
    ]
