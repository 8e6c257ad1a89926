"""Writes one data file: Parquet bytes to an upload, statistics collected on the way."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.data.layout import Codec
from lakelog.data.stats import FileStats, StatsPlan
from lakelog.storage.base import LogStore
from lakelog.storage.sink import UploadSink

_OPTIONS: dict[str, Any] = {
    "store_schema": False,  # Arrow's own schema says nothing that the table's does not
    "write_page_checksum": True,
}
if "store_decimal_as_integer" in inspect.signature(pq.ParquetWriter.__init__).parameters:
    # Decimals of up to 18 digits are numbers, as Spark writes them, where pyarrow can (since 20).
    _OPTIONS["store_decimal_as_integer"] = True


class ParquetFile:
    """A data file that appears, whole, when it is closed. For one thread at a time."""

    def __init__(
        self, store: LogStore, path: str, schema: pa.Schema, codec: Codec, stats: StatsPlan
    ) -> None:
        self.path = path
        self._upload = store.upload(path)
        self._sink = UploadSink(self._upload)
        self._stats = FileStats(stats)
        self._footers: list[pq.FileMetaData] = []
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                compression=codec.name,
                compression_level=codec.level,
                metadata_collector=self._footers,
                **_OPTIONS,
            )
        except BaseException:
            self._upload.abandon()
            raise

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        self._stats.see(rows)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._upload.tell()

    def close(self) -> str:
        """Make the file appear; gives its statistics as JSON."""
        self._writer.close()
        self._upload.close()
        return self._stats.json(self._footers[0])

    def abandon(self) -> None:
        """Leave nothing behind; after `close` it does nothing."""
        if self._writer.is_open:
            self._sink.give_up(self._writer)
        self._upload.abandon()
