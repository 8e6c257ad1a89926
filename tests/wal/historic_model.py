"""Plain readers and writers of the historic formats, one record after the other.

The writers produce the bytes of the two former programs. The decoders are the model of the columnar
ones, and the plain baseline of the benchmarks; they read undamaged logs only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

OPS = {"PUT": 1, "DELETE": 2, "COMMIT": 3, "CHECKPOINT": 4, "BEGIN": 5}
NAMES = {number: name for name, number in OPS.items()}
ROTATE_BYTES = 10 << 20


class Record(NamedTuple):
    seq: int
    op: str
    key: bytes
    value: bytes


def record_002(seq: int, op: str, key: bytes = b"", value: bytes = b"") -> bytes:
    code = bytes([OPS[op]])
    body = struct.pack("<Q", seq) + code + struct.pack("<i", len(key)) + key
    body += struct.pack("<i", len(value)) + value
    crc = zlib.crc32(code + key + value)
    return struct.pack("<II", len(body) + 4, crc) + body


class Writer002:
    """Appends to the files of a log of specification 002.

    Args:
        marks_batches: Write BEGIN before a batch, as later files do.
        rotate_bytes: A longer file gets no further append.
        first_seq: Number of the first record.
    """

    def __init__(
        self, *, marks_batches: bool, rotate_bytes: int = ROTATE_BYTES, first_seq: int = 1
    ) -> None:
        self._marks_batches = marks_batches
        self._rotate_bytes = rotate_bytes
        self._next_seq = first_seq
        self.files: list[bytearray] = [bytearray()]
        self.records: list[Record] = []

    def append(self, op: str, key: bytes = b"", value: bytes = b"") -> int:
        seq = self._next_seq
        self._next_seq += 1
        self.files[-1] += record_002(seq, op, key, value)
        self.records.append(Record(seq, op, key, value))
        return seq

    def rotate(self) -> None:
        if len(self.files[-1]) > self._rotate_bytes:
            self.files.append(bytearray())

    def append_batch(
        self, records: Iterable[tuple[str, bytes, bytes]], *, is_finished: bool = True
    ) -> int:
        if self._marks_batches:
            self.append("BEGIN")
        for op, key, value in records:
            self.append(op, key, value)
        seq = self.append("COMMIT") if is_finished else self._next_seq - 1
        self.rotate()
        return seq

    def named(self) -> dict[str, bytes]:
        return {f"{number:06d}.wal": bytes(data) for number, data in enumerate(self.files, 1)}


def record_003(key: bytes, value: bytes, *, is_checked: bool) -> bytes:
    body = struct.pack(">I", len(key)) + key + struct.pack(">I", len(value)) + value
    return struct.pack(">I", zlib.crc32(body)) + body if is_checked else body


def file_003(records: Iterable[tuple[bytes, bytes]], *, is_checked: bool) -> bytes:
    return b"".join(record_003(key, value, is_checked=is_checked) for key, value in records)


def decode_002(files: Sequence[bytes]) -> list[Record]:
    """Whole files of valid records, one record after the other."""
    found: list[Record] = []
    for data in files:
        at = 0
        while at < len(data):
            length, crc = struct.unpack_from("<II", data, at)
            seq, op, key_length = struct.unpack_from("<QBi", data, at + 8)
            key_end = at + 21 + key_length
            key = data[at + 21 : key_end]
            (value_length,) = struct.unpack_from("<i", data, key_end)
            value = data[key_end + 4 : key_end + 4 + value_length]
            assert crc == zlib.crc32(bytes([op]) + key + value)
            found.append(Record(seq, NAMES[op], key, value))
            at += 4 + length
    return found


def decode_003(data: bytes, *, is_checked: bool) -> list[Record]:
    """A whole file of valid records, one record after the other."""
    found: list[Record] = []
    at = 0
    while at < len(data):
        start = at = at + 4 if is_checked else at
        (key_length,) = struct.unpack_from(">I", data, at)
        key = data[at + 4 : at + 4 + key_length]
        at += 4 + key_length
        (value_length,) = struct.unpack_from(">I", data, at)
        value = data[at + 4 : at + 4 + value_length]
        at += 4 + value_length
        if is_checked:
            (crc,) = struct.unpack_from(">I", data, start - 4)
            assert crc == zlib.crc32(data[start:at])
        found.append(Record(len(found) + 1, "PUT" if value else "DELETE", key, value))
    return found


def valid_prefix_002(data: bytes) -> tuple[list[Record], int]:
    """The valid records at the start of a file, with any numbers, and the offset of their end."""
    found: list[Record] = []
    at = 0
    while at + 25 <= len(data):
        length, crc, seq, op, key_length = struct.unpack_from("<IIQBi", data, at)
        key_end = at + 21 + key_length
        if key_length < 0 or key_end + 4 > len(data) or op not in NAMES:
            break
        (value_length,) = struct.unpack_from("<i", data, key_end)
        end = key_end + 4 + value_length
        if value_length < 0 or end > len(data) or end != at + 4 + length:
            break
        key, value = data[at + 21 : key_end], data[key_end + 4 : end]
        if crc != zlib.crc32(bytes([op]) + key + value):
            break
        found.append(Record(seq, NAMES[op], key, value))
        at = end
    return found, at


def valid_prefix_003(data: bytes) -> tuple[list[Record], int]:
    """The valid records at the start of a file with checksums, and the offset of their end."""
    found: list[Record] = []
    at = 0
    while at + 12 <= len(data):
        crc, key_length = struct.unpack_from(">II", data, at)
        key_end = at + 8 + key_length
        if key_end + 4 > len(data):
            break
        (value_length,) = struct.unpack_from(">I", data, key_end)
        end = key_end + 4 + value_length
        if end > len(data) or crc != zlib.crc32(data[at + 4 : end]):
            break
        value = data[key_end + 4 : end]
        op = "PUT" if value else "DELETE"
        found.append(Record(len(found) + 1, op, data[at + 8 : key_end], value))
        at = end
    return found, at


def table(records: Sequence[Record]) -> pa.Table:
    """Records as a plain reader would return them: columns from lists."""
    return pa.table(
        {
            "seqNum": pa.array([record.seq for record in records], pa.int64()),
            "op": pa.array([record.op for record in records], pa.string()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array(
                [
                    None if record.op != "PUT" and not record.value else record.value
                    for record in records
                ],
                pa.binary(),
            ),
        }
    )
