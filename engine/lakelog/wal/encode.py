"""Encodes records to frames.

The payload of a frame of records, before compression, has the columns of its records in Arrow's
layout, each part padded with zero bytes to a multiple of eight:

1. operations: one byte per record,
2. key offsets: count + 1 of int32, the first one 0,
3. value offsets: the same,
4. validity of the values: one bit per record, lowest first; only with ``FLAG_NULLS``,
5. the bytes of the keys,
6. the bytes of the values.

A few single records are packed directly (`pack_records`), many are sliced from Arrow columns
(`pack_columns`). Both write the same bytes for the same records.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.arrow_arrays import valid_mask
from lakelog.errors import InvalidInputError
from lakelog.wal.disk import Bytes
from lakelog.wal.frames import (
    CODEC_NONE,
    CODEC_ZSTD,
    FLAG_BATCH,
    FLAG_CONTINUES,
    FLAG_NULLS,
    FRAME_HEADER,
    FRAME_MAGIC,
    KIND_RECORDS,
    PAYLOAD_LIMIT_BYTES,
    FrameHeader,
    Seal,
    frame_pieces,
    padding,
)

Compression = Literal["none", "zstd"]

FEW_RECORDS = 48
"""Maximum number of records to pack one by one; above, an Arrow column costs less."""

_MANY_RECORDS = 1 << 14  # above, Arrow creates a column faster

LARGE_BYTES = 1 << 17
"""From this size in bytes, copying takes longer than writing in pieces."""

RECORD_BYTES = 9
"""Bytes of a record in addition to key and value, without padding."""

_SPARE_BYTES = 64  # more than the offsets and padding of one record
_LEAST_COMPRESSED_BYTES = 256  # below, the codec's header is longer than the savings


@dataclass(frozen=True)
class Columns:
    """Records as columns: operation codes (uint8), keys and values (``large_binary``)."""

    ops: npt.NDArray[np.uint8]
    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.ops)


@dataclass(frozen=True)
class Framing:
    """Parameters: a frame is full at `frame_bytes`; a larger record has a frame of its own."""

    seal: Seal
    compression: Compression
    frame_bytes: int


def pack_records(
    ops: bytes,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    first_seq: int,
    unsynced_bytes: int,
    framing: Framing,
    *,
    is_batch: bool = False,
) -> list[Bytes]:
    """One frame of few records, in pieces if large, so that keys and values are not copied."""
    # Every append runs through here, so the number of calls matters.
    parts, (count, flags, key_bytes), is_large = _columns_of_few(
        ops, keys, values, is_batch=is_batch
    )
    if is_large:
        header = (first_seq, count, flags, key_bytes)
        return _frame(parts, sum(map(len, parts)), header, unsynced_bytes, framing)
    payload = b"".join(parts)
    size = raw = len(payload)
    codec = CODEC_NONE
    end = b""
    if framing.compression == "zstd" and raw >= _LEAST_COMPRESSED_BYTES:
        codec, payload = _compressed(payload)
        size = len(payload)
        end = _PADDING[size & 7]
    frame = b"".join(
        (
            FRAME_HEADER.pack(
                FRAME_MAGIC, size, first_seq, count, KIND_RECORDS, codec, flags, raw, key_bytes
            ),
            payload,
            end,
            min(unsynced_bytes >> 3, 0xFFFFFFFF).to_bytes(4, "little"),
        )
    )
    seal = framing.seal
    crc: int = google_crc32c.extend(seal.start, frame) ^ seal.mark
    return [frame + crc.to_bytes(4, "little")]


def _columns_of_few(
    ops: bytes, keys: Sequence[bytes], values: Sequence[bytes | None], *, is_batch: bool
) -> tuple[list[Bytes], tuple[int, int, int], bool]:
    """A payload in pieces, with records, flags, bytes of all keys, and whether it is large."""
    count = len(ops)
    flags = FLAG_BATCH if is_batch else 0
    validity = b""
    if None in values:
        flags |= FLAG_NULLS
        bits = sum(1 << n for n, value in enumerate(values) if value is not None)
        validity = bits.to_bytes(-(-count // 64) * 8, "little")
    present: Sequence[bytes] = [value or b"" for value in values]
    if count == 1:
        key_bytes, value_bytes = len(keys[0]), len(present[0])
        front = _front(1).pack(ops, 0, key_bytes, 0, value_bytes)
    else:
        key_ends = list(accumulate(map(len, keys), initial=0))
        value_ends = list(accumulate(map(len, present), initial=0))
        front = _front(count).pack(ops, *key_ends, *value_ends)
        key_bytes, value_bytes = key_ends[-1], value_ends[-1]
    pads = _PADDING[key_bytes & 7], _PADDING[value_bytes & 7]
    parts: list[Bytes] = [front, validity, *keys, pads[0], *present, pads[1]]
    return parts, (count, flags, key_bytes), key_bytes + value_bytes >= LARGE_BYTES


@cache
def _front(count: int) -> struct.Struct:
    """Operations and both offsets of this number of records, padded."""
    ends = f"{count + 1}i{-4 * (count + 1) % 8}x"
    return struct.Struct(f"<{count}s{-count % 8}x{ends}{ends}")


_PADDING = tuple(padding(size) for size in range(8))


def pack_columns(
    columns: Columns,
    first_seq: int,
    unsynced_bytes: int,
    framing: Framing,
    *,
    commit: int | None = None,
    continues: bool = False,
    is_batch: bool = True,
) -> Iterator[tuple[list[Bytes], int]]:
    """Frames of many records, each in pieces, with its number of records."""
    key_offsets, key_data = _parts(columns.keys)
    value_offsets, value_data = _parts(columns.values)
    valid = None
    if columns.values.null_count:
        valid = valid_mask(columns.values)
    limits = _split(key_offsets, value_offsets, framing.frame_bytes)
    for low, high in pairwise(limits):
        is_last = high == len(columns)
        ends = 1 if is_last and commit is not None else 0
        count = high - low + ends
        ops = columns.ops[low:high]
        if ends:
            ops = np.append(ops, np.uint8(commit or 0))
        validity = b""
        own = 0
        if is_batch:
            own |= FLAG_BATCH | (FLAG_CONTINUES if continues or not is_last else 0)
        if ends or (valid is not None and not valid[low:high].all()):
            own |= FLAG_NULLS
            bits = np.zeros(count, dtype=bool)
            bits[: high - low] = True if valid is None else valid[low:high]
            packed = np.packbits(bits, bitorder="little").tobytes()
            validity = packed + padding(len(packed))
        keys = _cut(key_data, key_offsets[low], key_offsets[high])
        values = _cut(value_data, value_offsets[low], value_offsets[high])
        payload: list[Bytes] = []
        for part in (
            ops.tobytes(),
            _rebased(key_offsets[low : high + 1], ends),
            _rebased(value_offsets[low : high + 1], ends),
            validity,
            keys,
            values,
        ):
            payload += [part, padding(len(part))]
        size = sum(map(len, payload))
        header = (first_seq + low, count, own, len(keys))
        pieces = _frame(payload, size, header, unsynced_bytes, framing)
        unsynced_bytes += sum(map(len, pieces))
        yield pieces, count


def columns_of(ops: bytes, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Columns:
    """Many records as columns."""
    return Columns(np.frombuffer(ops, dtype=np.uint8), column_of(keys), column_of(values))


def column_of(items: Sequence[bytes | None]) -> pa.LargeBinaryArray:
    """Keys or values as a column, without `pyarrow.array`, which would import pandas."""
    if len(items) > _MANY_RECORDS or "pandas" in sys.modules:
        return pa.array(items, type=pa.large_binary())
    bits, present = None, cast("Sequence[bytes]", items)
    if None in items:
        is_there = np.fromiter((item is not None for item in items), np.bool_, len(items))
        bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        present = [item or b"" for item in items]
    try:
        sizes = np.frombuffer(bytes(map(len, present)), dtype=np.uint8)  # the fastest way
    except ValueError:  # lengths of 256 bytes or more
        sizes = np.fromiter(map(len, present), np.int64, len(items))
    ends = np.zeros(len(items) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    buffers = [bits, pa.py_buffer(ends), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(pa.large_binary(), len(items), buffers)


def check_columns(columns: Columns) -> None:
    """As `check_size`, for each record."""
    if not len(columns):
        return
    keys, _ = _parts(columns.keys)
    values, _ = _parts(columns.values)
    total = int(keys[-1] - keys[0] + values[-1] - values[0])
    # If the sum is not too large, no record is.
    if total + _SPARE_BYTES > PAYLOAD_LIMIT_BYTES:
        check_size(int((np.diff(keys) + np.diff(values)).max()))


def check_size(record_bytes: int) -> None:
    """Raise for a record that does not fit in a frame."""
    if record_bytes + _SPARE_BYTES > PAYLOAD_LIMIT_BYTES:
        raise InvalidInputError(
            "a record is too large for the write-ahead log",
            expected=f"less than {PAYLOAD_LIMIT_BYTES} bytes",
            found=f"{record_bytes} bytes",
        )


def _frame(
    payload: list[Bytes],
    raw_bytes: int,
    header: tuple[int, int, int, int],
    unsynced_bytes: int,
    framing: Framing,
) -> list[Bytes]:
    first_seq, count, flags, key_bytes = header
    codec, size = CODEC_NONE, raw_bytes
    if framing.compression == "zstd" and raw_bytes >= _LEAST_COMPRESSED_BYTES:
        codec, packed = _compressed(b"".join(payload))
        payload, size = [packed], len(packed)
    return frame_pieces(
        FrameHeader(size, first_seq, count, KIND_RECORDS, codec, flags, raw_bytes, key_bytes),
        payload,
        unsynced_bytes,
        framing.seal,
    )


def _compressed(payload: bytes) -> tuple[int, bytes]:
    """A payload as stored, with its codec."""
    packed: bytes = pa.compress(payload, codec="zstd", asbytes=True)
    return (CODEC_ZSTD, packed) if len(packed) < len(payload) else (CODEC_NONE, payload)


def _parts(column: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """A column's offsets, and the bytes that they point into."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return ends, pa.py_buffer(b"") if data is None else data


def _cut(data: pa.Buffer, start: np.int64, end: np.int64) -> Bytes:
    part: Bytes = data.slice(int(start), int(end - start))
    return part


def _rebased(offsets: npt.NDArray[np.int64], more: int) -> Bytes:
    """Offsets shifted to start at 0, with the last one repeated `more` times."""
    count = len(offsets)
    own = np.empty(count + more, dtype="<i4")
    np.subtract(offsets, offsets[0], out=own[:count], casting="unsafe")
    own[count:] = own[count - 1]
    data: Bytes = pa.py_buffer(own)
    return data


def _split(
    key_offsets: npt.NDArray[np.int64], value_offsets: npt.NDArray[np.int64], frame_bytes: int
) -> list[int]:
    """The first record of each frame, and the end."""
    rows = len(key_offsets) - 1

    def bytes_before(row: int) -> int:
        return int(key_offsets[row] + value_offsets[row]) + RECORD_BYTES * row

    limits = [0]
    while limits[-1] < rows:
        low = limits[-1]
        full = bytes_before(low) + frame_bytes
        high = bisect_right(range(rows + 1), full, lo=low, key=bytes_before) - 1
        limits.append(max(high, low + 1))
    return limits if rows else [0, 0]
