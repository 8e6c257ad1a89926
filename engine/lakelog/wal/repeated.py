"""A fast path for frames that differ only in their records, such as appends of equal size.

Each part of their payloads is a column whose rows lie equally far apart, so that a million records
are copied in a few calls, which know nothing of records. Others are for `lakelog.wal.decode`.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.wal.frames import FLAG_NULLS, FRAME_HEADER_BYTES
from lakelog.wal.payload import RecordColumns, check, contradiction, layout_of
from lakelog.wal.scan import Frames

MOST_BYTES = 1 << 30
"""More are not gathered at once, so that 32-bit offsets do."""

LARGE_PAGE_BYTES = 1 << 21
"""What a processor's large page holds, most often."""

_ALIKE_WORDS = (0, 2, 3)  # of a header: all but its sequence number

_Bytes = npt.NDArray[np.uint8]


def repeated(data: pa.Buffer, frames: Frames, path: str) -> RecordColumns | None:
    """The records of frames that lie one behind the other and are alike."""
    first = frames[:1]
    times, start = len(frames), int(first.offsets[0])
    step = int(first.ends[0]) - start
    if (
        first.flags[0] & FLAG_NULLS
        or times * step > MOST_BYTES
        or int(frames.offsets[-1]) - start != (times - 1) * step
        or any((frames.headers[:, n] != first.headers[0, n]).any() for n in _ALIKE_WORDS)
    ):
        return None
    count, key_bytes = int(first.counts[0]), int(first.key_bytes[0])
    at = layout_of(count, key_bytes, False)
    room = int(first.payload_bytes[0]) - at[4]
    if room < 0:
        raise contradiction(path, start, "parts that fit in their frames", "others")

    def rows(part: int, size: int) -> _Bytes:
        place = start + FRAME_HEADER_BYTES + part
        return np.ndarray((times, size), np.uint8, data, place, (step, 1))

    offsets = rows(at[0], at[2] - at[0]).view("<u8")
    if (offsets != offsets[0]).any():
        return None
    key_ends, value_ends = offsets[0].view("<i4").reshape(2, -1)[:, : count + 1]
    ops = rows(0, count).ravel()
    check(ops, key_ends, value_ends, key_bytes, room, (path, start))
    seqs = frames.first_seq
    if count != 1:
        seqs = np.add.outer(seqs, np.arange(count)).ravel()
    value_bytes = int(value_ends[-1])
    both = _new(times * (key_bytes + value_bytes))
    keys, values = both[: times * key_bytes], both[times * key_bytes :]
    for target, part, size in ((keys, at[3], key_bytes), (values, at[4], value_bytes)):
        if size:
            row = np.dtype(f"V{size}")  # one item, and so copied at once
            target.view(row)[:] = rows(part, size).view(row)[:, 0]
    return RecordColumns(
        seqs, ops, _binary(key_ends, times, keys), _binary(value_ends, times, values)
    )


def _binary(ends: npt.NDArray[np.int32], times: int, data: _Bytes) -> pa.BinaryArray:
    """Elements with these offsets, so many times one behind the other."""
    each = len(ends) - 1
    offsets = np.empty(times * each + 1, dtype=np.int32)
    starts = np.arange(times, dtype=np.int32) * ends[-1]
    np.add(starts[:, None], ends[:-1], out=offsets[:-1].reshape(times, each))
    offsets[-1] = len(data)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), times * each, buffers, 0)


def _new(size_bytes: int) -> _Bytes:
    """Memory, in large pages where it is much: to be given the small ones takes the kernel longer
    than to fill them takes us.
    """
    if size_bytes < LARGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size_bytes, dtype=np.uint8)
    whole_pages = -(-size_bytes // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    room = mmap.mmap(-1, whole_pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # of a kernel without them
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, dtype=np.uint8)[:size_bytes]
