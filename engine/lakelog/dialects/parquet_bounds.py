"""Limits on the decoded size of a log's Parquet file, from its length.

Parquet keeps a value that repeats once, however many rows have it, so that a kilobyte can promise
a billion rows. Rows of a log do not repeat: each names a file, an application or a domain that no
other row names. Paths that count upwards take a byte for some 17 rows, other paths 16 and more
bytes for each.
"""

from __future__ import annotations

import polars as pl
import pyarrow.parquet as pq

MAX_ROWS_PER_BYTE = 50
"""Rows that a file of a log may have for each of its bytes."""
FREE_BYTES = 256 * 1024 * 1024
"""What the file actions of a file may take in memory whatever its length."""
MAX_RATIO = 1_000
"""Bytes in memory for each byte of the file, beyond `FREE_BYTES`."""

_MOST_ROWS_A_PATH = 4  # an add, its tombstone, and some spare
_FEW_ROWS = 1_024  # from which nothing is concluded


class Bound:
    """Compares what is read of one file with the file's length."""

    def __init__(self, metadata: pq.FileMetaData, size_bytes: int) -> None:
        groups = range(metadata.num_row_groups)
        rows = max(metadata.num_rows, sum(metadata.row_group(i).num_rows for i in groups))
        if rows > MAX_ROWS_PER_BYTE * size_bytes:
            raise ValueError(f"{size_bytes} bytes declare {rows} rows")
        self._size_bytes = size_bytes
        self._room = max(FREE_BYTES, MAX_RATIO * size_bytes)
        self.is_suspicious = rows > size_bytes
        """Whether the rows may all be alike: there is less than a byte for each."""

    def check(self, files: pl.DataFrame) -> None:
        """Count a batch of file actions that was read."""
        self._room -= int(files.estimated_size())
        if self._room < 0:
            raise ValueError(
                f"{self._size_bytes} bytes decompress to more than their length allows"
            )
        self.check_paths(files)

    def check_paths(self, files: pl.DataFrame) -> None:
        """As `check`, for the paths alone."""
        if self.is_suspicious and files.height > _FEW_ROWS and "path" in files.columns:
            paths = files["path"].n_unique()
            if paths * _MOST_ROWS_A_PATH < files.height:
                raise ValueError(f"{files.height} rows have {paths} files")
