"""Checks of Parquet footers: consistent column chunks, a decoded size that fits the file's length.

Parquet stores a repeated value once, so a kilobyte can declare a billion rows. Rows of a log do not
repeat: ascending paths need a byte per 17 rows, other paths at least 16 bytes each.

Some contradictions in a damaged footer terminate the process, because pyarrow builds chunk metadata
and statistics in code that must not throw. Chunks are therefore checked before they are read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.parquet_files import MAGIC
from lakelog.storage.base import SeekableReader

_MAX_ROWS_PER_BYTE = 50
"""Maximum number of rows per byte of a log file."""
FREE_BYTES = 256 * 1024 * 1024
"""Memory of file actions that is allowed for a file of any length, in bytes."""
MAX_RATIO = 1_000
"""Maximum memory in bytes per byte of the file, beyond `FREE_BYTES`."""

_MOST_ROWS_A_PATH = 4  # an add, its tombstone, and a margin
_FEW_ROWS = 1_024  # too few for a conclusion


class Bound:
    """Compares the rows read from one file with the file's length."""

    def __init__(self, metadata: pq.FileMetaData, size_bytes: int) -> None:
        groups = range(metadata.num_row_groups)
        rows = max(metadata.num_rows, sum(metadata.row_group(i).num_rows for i in groups))
        if rows > _MAX_ROWS_PER_BYTE * size_bytes:
            raise ValueError(f"{size_bytes} bytes declare {rows} rows")
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._room = max(FREE_BYTES, MAX_RATIO * size_bytes)
        self.is_suspicious = rows > size_bytes
        """Whether all rows may be equal: there is less than a byte per row."""

    def check(self, files: pl.DataFrame) -> None:
        """Count a batch of file actions; called from any thread."""
        size = int(files.estimated_size())
        with self._lock:
            self._room -= size
        if self._room < 0:
            raise ValueError(
                f"{self._size_bytes} bytes decompress to more than their length allows"
            )
        self.check_paths(files)

    def check_paths(self, files: pl.DataFrame) -> None:
        """As `check`, for the paths."""
        if self.is_suspicious and files.height > _FEW_ROWS and "path" in files.columns:
            paths = files["path"].n_unique()
            if paths * _MOST_ROWS_A_PATH < files.height:
                raise ValueError(f"{files.height} rows have {paths} files")


_LONGEST_BYTES = 1 << 62
_MOST_BYTES = 1 << 30


def require_valid_chunks(
    metadata: pq.FileMetaData, groups: Iterable[int], leaves: Sequence[int]
) -> None:
    """Raise if a row group's column chunks contradict the schema; reads nothing of the file."""
    if not leaves:
        return  # to count rows without columns, Arrow would divide by the batch's length of 0
    # A small buffer, so that the chunks are not read from the beginning to the end.
    reader = pq.ParquetFile(_Zeros(), metadata=metadata, buffer_size=1024, pre_buffer=False).reader
    for group in groups:
        # Reads no rows, so no page is read.
        next(reader.iter_batches(0, [group], list(leaves), use_threads=False), None)
        for leaf in leaves:
            # Otherwise, reading the chunk's statistics could terminate the process.
            found = metadata.row_group(group).column(leaf).physical_type
            expected = metadata.schema.column(leaf).physical_type
            if found != expected:
                raise pa.ArrowInvalid(f"a column chunk of {expected} records {found}")


_OLD_WRITER = re.compile(r"parquet-mr(?! version 1\.\d\d)")


def is_of_old_writer(created_by: str) -> bool:
    """Whether a file is of parquet-mr before 1.10, whose length of a chunk, or bounds of texts and
    of decimals in bytes, may be wrong.
    """
    return _OLD_WRITER.match(created_by) is not None


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """The byte range of a column chunk: first (inclusive) and last (exclusive)."""
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def chunk_ranges(
    metadata: pq.FileMetaData, groups: Iterable[int], fields: Iterable[str]
) -> Iterator[tuple[int, int]]:
    """As `chunk_range`, for all leaves of some fields in some row groups; checks them first."""
    groups = list(groups)
    prefixes = tuple(f"{field}." for field in fields)
    paths = (metadata.schema.column(i).path for i in range(metadata.num_columns))
    leaves = [i for i, path in enumerate(paths) if f"{path}.".startswith(prefixes)]
    require_valid_chunks(metadata, groups, leaves)
    for group in map(metadata.row_group, groups):
        yield from (chunk_range(group.column(leaf)) for leaf in leaves)


def data_end(metadata: pq.FileMetaData) -> int:
    """End of the last row group's data, in bytes."""
    last = metadata.num_row_groups - 1
    if last < 0:
        return len(MAGIC)
    leaves = range(metadata.num_columns)
    require_valid_chunks(metadata, [last], leaves)
    return max(chunk_range(metadata.row_group(last).column(leaf))[1] for leaf in leaves)


class _Zeros(SeekableReader):
    """An endless file of zeros."""

    def __init__(self) -> None:
        self._at = 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = (0, self._at, _LONGEST_BYTES)[whence] + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _MOST_BYTES:
            raise OSError(f"the footer records a column chunk of {size} bytes")
        self._at += size
        return bytes(size)


def child_type(schema: pa.Schema, *names: str) -> pa.DataType | None:
    """Type of a nested field, or None if it does not exist."""
    type_: pa.DataType = pa.struct(list(schema))
    for name in names:
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            return None
        type_ = type_.field(name).type
    return type_
