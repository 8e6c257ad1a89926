"""Validates the column chunks that a Parquet footer declares.

pyarrow builds a chunk's metadata, when `RowGroupMetaData.column` asks for it, and its statistics
in code that must not throw: where a damaged footer contradicts itself, the process ends. A reader
of the same chunks builds them under guard first.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST_BYTES = 1 << 62
_MOST_BYTES = 1 << 30


def require_sound_chunks(
    metadata: pq.FileMetaData, groups: Iterable[int], leaves: Sequence[int]
) -> None:
    """Raise where a row group's account of a leaf contradicts the schema.

    Nothing of the file is read.
    """
    if not leaves:
        return  # Arrow would divide by the batch's length of 0, to count rows without columns
    reader = pq.ParquetFile(_Zeros(), metadata=metadata).reader
    for group in groups:
        # No rows are asked for, so no page is looked into.
        next(reader.iter_batches(0, [group], list(leaves), use_threads=False), None)
        for leaf in leaves:
            # Else asking for the chunk's statistics would end the process.
            found = metadata.row_group(group).column(leaf).physical_type
            expected = metadata.schema.column(leaf).physical_type
            if found != expected:
                raise pa.ArrowInvalid(f"a column chunk of {expected} records {found}")


class _Zeros(io.RawIOBase):
    """A file as long as any, of zeros."""

    def __init__(self) -> None:
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, _LONGEST_BYTES)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_BYTES:
            raise OSError(f"the footer records a column chunk of {size} bytes")
        self._at += size
        return bytes(size)
