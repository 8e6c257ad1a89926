"""Decodes frames to Arrow.

A large frame's columns are used where they lie. Small frames are gathered: a column of Arrow that
spans the whole segment is laid over it, whose every other element is a key (or a value) and whose
elements between are what is between them; Arrow's ``take`` then copies the ones that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.wal.frames import (
    CODEC_NONE,
    FLAG_NULLS,
    FRAME_HEADER_BYTES,
    KIND_RECORDS,
    OPS,
)
from lakelog.wal.payload import (
    RecordColumns,
    are_known,
    check,
    contradiction,
    layout_of,
    numbers_of,
)
from lakelog.wal.repeated import MOST_BYTES, repeated
from lakelog.wal.scan import Frames, word_rows

SCHEMA = pa.schema(
    [
        pa.field("seqNum", pa.int64(), nullable=False),
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""Of replayed records, in the order of their sequence numbers."""

_SMALL_RECORDS = 128
_SMALL_BYTES = 8192
_FEW_FRAMES = 12
_SINGLE_BYTES = 24  # of one record: its operation and offsets
_GATHER_FRAMES = 1 << 15  # what is made on the way then stays in the cache


def pieces(
    data: pa.Buffer, frames: Frames, path: str, after_seq: int = 0, *, controls: bool = False
) -> Iterator[RecordColumns]:
    """The records of a segment's frames, in order."""
    for piece in _raw(data, _wanted(frames, after_seq), path):
        skipped = int(np.searchsorted(piece.seqs, after_seq, side="right"))
        rest = piece.slice(skipped, len(piece) - skipped) if skipped else piece
        if not controls:
            rest = rest.data_only()
        if len(rest):
            yield rest


def _wanted(frames: Frames, after_seq: int) -> Frames:
    is_wanted = frames.kinds == KIND_RECORDS
    if len(frames) and frames.headers[0, 1] <= after_seq:  # the first one's sequence number
        is_wanted &= frames.next_seq > after_seq + 1
    if is_wanted.all():
        return frames
    wanted = np.flatnonzero(is_wanted)
    if len(wanted) and wanted[-1] - wanted[0] == len(wanted) - 1:
        return frames[wanted[0] : wanted[-1] + 1]  # nothing is copied
    return frames[wanted]


def table(parts: list[RecordColumns]) -> pa.Table:
    """Pieces as one table of `SCHEMA`; keys and values stay where they are."""
    if not parts:
        return pa.Table.from_batches([], SCHEMA)
    ops = np.concatenate([part.ops for part in parts])
    ops -= np.uint8(1)
    seqs = [part.seqs for part in parts]
    return pa.Table.from_arrays(
        [
            numbers_of(pa.int64(), seqs[0] if len(seqs) == 1 else np.concatenate(seqs)),
            pa.DictionaryArray.from_arrays(numbers_of(pa.int8(), ops), _names()),
            pa.chunked_array([part.keys for part in parts], pa.binary()),
            pa.chunked_array([part.values for part in parts], pa.binary()),
        ],
        schema=SCHEMA,
    )


@cache
def _names() -> pa.StringArray:
    """Of the operations."""
    offsets = np.cumsum([0, *map(len, OPS)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer("".join(OPS).encode())]
    return pa.Array.from_buffers(pa.string(), len(OPS), buffers, 0)


def _raw(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    if len(frames) > _FEW_FRAMES and _are_small(frames[:1])[0]:
        alike = repeated(data, frames, path)
        if alike is not None:
            yield alike
            return
    small = _are_small(frames)
    changes = np.flatnonzero(small[1:] != small[:-1]) + 1
    limits = [0, *changes.tolist(), len(frames)] if len(frames) else []
    for low, high in pairwise(limits):
        run = frames[low:high]
        if small[low] and high - low > _FEW_FRAMES:
            yield from _gathered(data, run, path)
        else:
            yield from _one_by_one(data, run, path)


def _are_small(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whether each frame costs less to copy with others than to look at by itself."""
    is_short: npt.NDArray[np.bool_] = frames.counts < _SMALL_RECORDS
    is_short &= frames.payload_bytes < _SMALL_BYTES
    is_short &= frames.codecs == CODEC_NONE
    return is_short


def _one_by_one(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    columns = (
        frames.offsets,
        frames.payload_bytes,
        frames.first_seq,
        frames.counts,
        frames.codecs,
        frames.flags,
        frames.raw_bytes,
        frames.key_bytes,
    )
    for offset, size, first, count, codec, flags, raw, key_bytes in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        payload = data.slice(offset + FRAME_HEADER_BYTES, size)
        if codec != CODEC_NONE:
            payload = _unpacked(payload, raw, path, offset)
        has_nulls = bool(flags & FLAG_NULLS)
        at = layout_of(count, key_bytes, has_nulls)
        if payload.size < at[4]:
            raise contradiction(path, offset, f"at least {at[4]} bytes", f"{payload.size}")
        ops = np.frombuffer(payload, dtype=np.uint8, count=count)
        key_ends = np.frombuffer(payload, dtype="<i4", count=count + 1, offset=at[0])
        value_ends = np.frombuffer(payload, dtype="<i4", count=count + 1, offset=at[1])
        check(ops, key_ends, value_ends, key_bytes, payload.size - at[4], (path, offset))
        keys = pa.Array.from_buffers(
            pa.binary(), count, [None, payload.slice(at[0]), payload.slice(at[3], key_bytes)], 0
        )
        validity = payload.slice(at[2]) if has_nulls else None
        values = pa.Array.from_buffers(
            pa.binary(),
            count,
            [validity, payload.slice(at[1]), payload.slice(at[4])],
            -1 if has_nulls else 0,
        )
        yield RecordColumns(np.arange(first, first + count), ops, keys, values)


def _unpacked(payload: pa.Buffer, raw_bytes: int, path: str, offset: int) -> pa.Buffer:
    try:
        return pa.decompress(payload, raw_bytes, codec="zstd")
    except (OSError, ValueError) as cause:
        raise contradiction(path, offset, "a zstd frame", str(cause)) from cause


def _gathered(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    ends = frames.ends
    low = 0
    while low < len(frames):
        limit = int(frames.offsets[low]) + MOST_BYTES
        high = int(np.searchsorted(ends, limit, side="right"))
        high = min(max(low + 1, high), low + _GATHER_FRAMES)
        yield _gather(data, frames[low:high], path)
        low = high


def _gather(data: pa.Buffer, frames: Frames, path: str) -> RecordColumns:
    base = int(frames.offsets[0])
    data = data.slice(base, int(frames.ends[-1]) - base)
    counts = frames.counts
    payload = frames.offsets - base + FRAME_HEADER_BYTES
    has_nulls = (frames.flags & FLAG_NULLS) != 0
    layout = layout_of(counts, frames.key_bytes, has_nulls)
    key_offsets, value_offsets, validity, keys, values = (payload + part for part in layout)
    sizes = np.asarray(layout[4])
    if not (sizes <= frames.payload_bytes).all():
        raise contradiction(path, base, "parts that fit in their frames", "others")
    if (counts == 1).all():
        return _gather_single(data, frames, (payload, keys, values), has_nulls, path)
    total = int(counts.sum())
    # Of each record: its frame's columns, and which of the frame's records it is.
    spread: Callable[[Any], Any] = lambda column: np.repeat(column, counts)
    within = np.arange(total) - spread(np.cumsum(counts) - counts)
    seqs = spread(frames.first_seq) + within
    array = np.frombuffer(data, dtype=np.uint8)
    words = np.frombuffer(data, dtype="<i4", count=data.size // 4)
    ops = array[spread(payload) + within]
    key_at = spread(key_offsets >> 2) + within
    value_at = spread(value_offsets >> 2) + within
    key_low, key_high = words[key_at], words[key_at + 1]
    value_low, value_high = words[value_at], words[value_at + 1]
    room = spread(frames.payload_bytes - sizes)
    if not (
        (words[key_offsets >> 2] == 0).all()
        and (words[value_offsets >> 2] == 0).all()
        and (key_low <= key_high).all()
        and (key_high <= spread(frames.key_bytes)).all()
        and (value_low <= value_high).all()
        and (value_high <= room).all()
        and are_known(ops)
    ):
        raise contradiction(path, base, "ascending offsets and known operations", "others")
    is_there = None
    if has_nulls.any():
        bits = array[np.minimum(spread(validity) + (within >> 3), len(array) - 1)]
        is_there = ((bits >> (within & 7)) & 1).astype(bool) | ~spread(has_nulls)
    return RecordColumns(
        seqs,
        ops,
        _taken(data, spread(keys), key_low, key_high, None),
        _taken(data, spread(values), value_low, value_high, is_there),
    )


def _gather_single(
    data: pa.Buffer,
    frames: Frames,
    places: tuple[Any, Any, Any],
    has_nulls: npt.NDArray[np.bool_],
    path: str,
) -> RecordColumns:
    """As `_gather`, of frames of one record: then the three parts of a payload that come first, and
    are always there, have eight bytes each.
    """
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    payload, keys, values = places
    parts = word_rows(words, payload >> 3, 3)
    offsets = parts.view("<i4")
    ops = parts.view(np.uint8)[:, 0].copy()
    key_high, value_high = offsets[:, 3].astype(np.int64), offsets[:, 5].astype(np.int64)
    if not (
        not (offsets[:, 2] | offsets[:, 4]).any()
        and np.array_equal(key_high, frames.key_bytes)
        and value_high.min() >= 0
        and (values + value_high <= payload + frames.payload_bytes).all()
        and are_known(ops)
    ):
        at = int(frames.offsets[0])
        raise contradiction(path, at, "ascending offsets and known operations", "others")
    is_there = None
    if has_nulls.any():
        is_there = ~has_nulls
        is_there[has_nulls] = words[(payload[has_nulls] + _SINGLE_BYTES) >> 3] & np.uint64(1)
    return RecordColumns(
        frames.first_seq,
        ops,
        _taken(data, keys, 0, key_high, None),
        _taken(data, values, 0, value_high, is_there),
    )


def _taken(
    data: pa.Buffer, at: Any, low: Any, high: Any, is_there: npt.NDArray[np.bool_] | None
) -> pa.BinaryArray:
    """The spans of the data at `at` + `low` up to `at` + `high`, which rise, as a column."""
    count = len(at)
    limits = np.empty(2 * count + 1, dtype=np.int32)
    limits[0:-1:2] = at + low
    limits[1:-1:2] = at + high
    limits[-1] = limits[-2]
    spans = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(limits), data], 0)
    taken = spans.take(numbers_of(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32)))
    if is_there is None or is_there.all():
        return taken
    bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [bits, *taken.buffers()[1:]])
