"""Integers and byte strings at many offsets of one byte array, as columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

LONGEST_VALUE_BYTES = (1 << 31) - 1
"""What a value of Arrow's ``binary`` can have."""

_PIECE_BYTES = 1 << 24
_CACHED_BYTES = 1 << 19


def unaligned(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """The integer that begins at each byte, where there is one; no copy is made."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data, 0, (1,))


def binary_columns(
    data: Bytes, bounds: Offsets, is_null: npt.NDArray[np.bool_] | None = None
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two byte strings of each record, as Arrow ``binary``."""
    firsts, seconds = [], []
    low = 0
    while low < len(bounds):
        base = int(bounds[low, 0])
        high = max(low + 1, int(np.searchsorted(bounds[:, 3], base + (1 << 30), side="right")))
        part = bounds[low:high]
        count = len(part)
        offsets = np.empty(4 * count + 1, dtype=np.int32)
        np.subtract(part, base, out=offsets[:-1].reshape(part.shape), casting="same_kind")
        offsets[-1] = offsets[-2]
        # Every second element is what is between: it is never taken.
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[base : base + int(offsets[-1])])]
        every = pa.Array.from_buffers(pa.binary(), 4 * count, buffers)
        chosen = np.arange(0, 4 * count, 4, dtype=np.int32 if count < 1 << 29 else np.int64)
        firsts.append(every.take(pa.array(chosen)))
        mask = None if is_null is None else is_null[low:high]
        seconds.append(every.take(pa.array(chosen + 2, mask=mask)))
        low = high
    return pa.chunked_array(firsts, pa.binary()), pa.chunked_array(seconds, pa.binary())


def first_wrong(
    positions: Offsets,
    ends: Offsets,
    agree_as_one: Callable[[slice, Bytes], bool],
    agree: Callable[[slice], npt.NDArray[np.bool_]],
) -> int:
    """How many records there are before the first one whose checksum does not agree."""
    if not len(positions):
        return 0
    room = np.empty(_CACHED_BYTES, dtype=np.uint8)
    for part in pieces(positions, int(ends[-1]), _CACHED_BYTES // 2):
        fits = ends[part.stop - 1] - positions[part.start] <= len(room)
        if fits and agree_as_one(part, room):
            continue
        agrees = agree(part)
        if not agrees.all():
            return int(np.argmin(agrees)) + int(part.start)
    return len(positions)


def pieces(positions: Offsets, end: int, piece_bytes: int | None = None) -> list[slice]:
    """Records in pieces, by default such as are worth a thread each."""
    piece_bytes = piece_bytes or _PIECE_BYTES
    if not len(positions):
        return []
    cuts = np.searchsorted(positions, np.arange(positions[0], end, piece_bytes)[1:])
    limits = np.unique(np.concatenate([[0], cuts, [len(positions)]])).tolist()
    return [slice(low, high) for low, high in itertools.pairwise(limits)]
