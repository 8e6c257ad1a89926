"""Text columns from Polars to Arrow, without a copy if possible."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

_INLINE_BYTES = 12


def text_array(texts: pl.Series) -> pa.StringArray | pa.LargeStringArray:
    """A column of texts as an Arrow array.

    Memory: four bytes per row, or the texts once more.

    Source: Arrow columnar format, Variable-size Binary View Layout.
    """
    whole = texts.rechunk()
    shared = _shared(whole.to_arrow(compat_level=pl.CompatLevel.newest()))
    return whole.to_arrow(compat_level=pl.CompatLevel.oldest()) if shared is None else shared


def text_bytes(texts: pl.Series) -> bytes:
    """The UTF-8 bytes of all texts of a column, one after another; of nulls there are none.

    Memory: those bytes.
    """
    array = text_array(texts)
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    width = np.int32 if pa.types.is_string(array.type) else np.int64
    ends = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    start, end = int(ends[0]), int(ends[-1])
    return bytes(data.slice(start, end - start))


def _shared(array: pa.Array) -> pa.StringArray | None:
    buffers = array.buffers()
    one_buffer = 3
    if not pa.types.is_string_view(array.type) or len(buffers) != one_buffer or array.null_count:
        return None
    views = np.frombuffer(buffers[1], np.int32).reshape(-1, 4)
    views = views[array.offset : array.offset + len(array)]
    lengths, starts = views[:, 0], views[:, 3]
    # Shorter texts are in their views.
    if (
        not len(views)
        or lengths.min() <= _INLINE_BYTES
        or (starts[1:] != starts[:-1] + lengths[:-1]).any()
    ):
        return None
    ends = np.append(starts, starts[-1] + lengths[-1])
    return pa.StringArray.from_buffers(len(array), pa.py_buffer(ends), buffers[2])
