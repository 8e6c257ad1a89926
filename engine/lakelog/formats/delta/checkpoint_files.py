"""One Parquet file of a checkpoint, written in pieces of whole row groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.formats.base import StagedFile
from lakelog.storage import LogStore
from lakelog.storage.base import Upload

_ZSTD_LEVEL = 1
_DICTIONARY = ("partitionValues", "tags", "storageType", "clusteringProvider")
"""Fields of few different values; dictionaries of the others would be given up again."""
_NO_BOUNDS = ("add.stats", "metaData", "protocol", "domainMetadata", "txn")
"""Columns whose least and greatest values would lengthen the footer and help nobody."""


@dataclass(eq=False)
class ParquetFile:
    """A file that grows; nothing stands under its name before `close`.

    Attributes:
        store: Where it is written.
        path: Where it stands for now.
        target: Where it is to stand.
        schema: Its columns.
        compression: Parquet codec, as pyarrow spells it.
        row_group_rows: Rows of a row group; the last has fewer.
        num_actions: Rows given so far.
        num_adds: Rows of live files among them.
        pending: Rows not yet written.
        metadata: Key-value metadata for the footer, set before `close`.
    """

    store: LogStore
    path: str
    target: str
    schema: pa.Schema
    compression: str
    row_group_rows: int
    num_actions: int = 0
    num_adds: int = 0
    pending: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    _tables: list[pa.Table] = field(default_factory=list)
    _upload: Upload | None = None
    _writer: pq.ParquetWriter | None = None
    _sink: _Sink = field(init=False)

    def append(self, rows: pa.Table) -> None:
        """Take rows; whole row groups are written, the rest waits.

        Raises:
            UnavailableError: The store failed.
            UnsupportedStoreError: The store has a `refusal`.
        """
        self.num_actions += rows.num_rows
        self.pending += rows.num_rows
        self._tables.append(rows)
        if self.pending >= self.row_group_rows:
            self._flush(self.pending - self.pending % self.row_group_rows)

    def flush(self) -> None:
        """Write what waits as a row group of its own."""
        if self.pending:
            self._flush(self.pending)

    def _flush(self, rows: int) -> None:
        table = pa.concat_tables(self._tables)
        writer = self._writer if self._writer is not None else self._start()
        writer.write_table(table[:rows], row_group_size=self.row_group_rows)
        rest = table[rows:]
        self.pending = rest.num_rows
        self._tables = [rest] if self.pending else []

    def _start(self) -> pq.ParquetWriter:
        self._upload = self.store.upload(self.path)
        self._sink = _Sink(self._upload)
        leaves = _leaves(self.schema)
        self._writer = pq.ParquetWriter(
            self._sink,
            self.schema,
            compression=self.compression,
            compression_level=_ZSTD_LEVEL if self.compression == "zstd" else None,
            use_dictionary=[leaf for leaf in leaves if set(leaf.split(".")) & set(_DICTIONARY)],
            write_statistics=[leaf for leaf in leaves if not leaf.startswith(_NO_BOUNDS)],
            write_page_checksum=True,
            store_decimal_as_integer=True,
            store_schema=False,
        )
        return self._writer

    def close(self) -> StagedFile:
        """Write what waits and the footer, and make the file appear.

        Raises:
            OutcomeUnknownError: It may have appeared.
            UnavailableError: It certainly did not.
        """
        self.flush()
        writer = self._writer if self._writer is not None else self._start()
        if self.metadata:
            writer.add_key_value_metadata(self.metadata)
        writer.close()
        assert self._upload is not None
        size_bytes = self._upload.tell()
        self._upload.close()
        return StagedFile(self.path, self.target, size_bytes, self.num_actions)

    def abandon(self) -> None:
        """Leave nothing of an unfinished file behind."""
        if self._upload is None:
            return
        if self._writer is not None and self._writer.is_open:
            # pyarrow closes its writers when they are collected, whatever became of the file.
            self._sink.is_void = True
            self._writer.close()
        self._upload.abandon()


def _leaves(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns, as pyarrow writes them."""
    found: list[str] = []
    level = [(field.name, field.type) for field in schema]
    while level:
        below = []
        for name, type_ in level:
            if pa.types.is_struct(type_):
                inner = (type_.field(index) for index in range(type_.num_fields))
                below += [(f"{name}.{field.name}", field.type) for field in inner]
            elif pa.types.is_map(type_):
                below.append((f"{name}.key_value.key", type_.key_type))
                below.append((f"{name}.key_value.value", type_.item_type))
            elif pa.types.is_list(type_):
                below.append((f"{name}.list.element", type_.value_type))
            else:
                found.append(name)
        level = below
    return found


class _Sink:
    """An upload as the file object that pyarrow writes to; closing it stays with its owner."""

    closed = False

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self.is_void = False

    def write(self, data: bytes | memoryview) -> int:
        """Append, or throw away what a writer that was given up still says."""
        return len(data) if self.is_void else self._upload.write(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._upload.tell()

    def flush(self) -> None:
        """Nothing: only closing the upload makes it durable."""

    def close(self) -> None:
        """Nothing: an upload that is closed appears."""
