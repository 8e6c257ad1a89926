"""Data files while they are written: new ones, and copies with new values in some columns.

`ParquetCopy` copies the column chunks of the other columns as they are encoded. A copy has the row
groups of its source, one footer over old and new chunks, and none of the source's indexes, Bloom
filters and sort orders, whose offsets and column numbers are those of the source.

Source: Apache Parquet, parquet.thrift (FileMetaData).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.data import layout
from lakelog.data.columns import Calendar, Columns
from lakelog.data.file_opening import Sources, require_contents
from lakelog.data.layout import Codec
from lakelog.data.stats import FileStats, StatsPlan, joined_statistics
from lakelog.data.thrift_compact import (
    STRUCT,
    Value,
    read_binary,
    read_list,
    read_number,
    read_struct,
    write_list,
    write_number,
    write_struct,
)
from lakelog.dialects.parquet_footers import chunk_range, require_sound_chunks
from lakelog.errors import CorruptionError, LakelogError
from lakelog.model import contract
from lakelog.storage import LogStore
from lakelog.storage.upload import UploadSink

_OPTIONS: dict[str, Any] = {
    "store_schema": False,  # Arrow's own schema says nothing that the table's does not
    "write_page_checksum": True,
}
if "store_decimal_as_integer" in inspect.signature(pq.ParquetWriter.__init__).parameters:
    # Decimals of up to 18 digits are numbers, as Spark writes them, where pyarrow can (since 20).
    _OPTIONS["store_decimal_as_integer"] = True

_MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_FOOTER_BYTES, _MAX_FOOTER_BYTES = 1 << 16, 4 << 20  # what is read at first, and the maximum
_PIECE_BYTES = 8 << 20  # of chunks that are copied
_IN_MEMORY = 4  # bytes of texts for one in the file
_VALUE_BYTES, _POSITION_BYTES = 8, 24  # of a value, or its offset, and of a row's position

# Field ids of parquet.thrift.
_VERSION, _SCHEMA, _NUM_ROWS, _GROUPS, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = range(1, 8)
_ENCRYPTION = frozenset({8, 9})
_CHUNKS, _TOTAL_BYTES, _GROUP_ROWS = 1, 2, 3  # of a row group
_GROUP_OFFSET, _COMPRESSED_BYTES = 5, 6
_CHUNK_OFFSET, _CHUNK_METADATA = 2, 3  # of a column chunk
_ELSEWHERE = frozenset({1, 8, 9})  # in another file, or encrypted
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 6, 7  # of a chunk's metadata
_PAGE_OFFSETS, _BLOOM_FILTER = (9, 10, 11), frozenset({14, 15})
_NAME, _NUM_CHILDREN = 4, 5  # of a schema element
_KEY = 1  # of a key-value pair
_I32 = 5  # of Thrift's types

# Before 1.10 the recorded length of a chunk, or the bounds of texts, may be wrong.
_OLD_WRITER = re.compile(rb"parquet-mr(?! version 1\.\d\d)")
_CALENDAR_KEY = b"org.apache.spark.version"
"""The only key that a copy keeps: without it, Spark may read old dates of the copied columns in
another calendar.
"""

_READ_ERRORS = (LakelogError, pa.ArrowException, OSError, ValueError, IndexError, RecursionError)


def _writer(
    sink: Any, rows: pa.Table, codec: Codec, footers: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """A writer for rows, which decide which columns have dictionaries."""
    return pq.ParquetWriter(
        sink,
        rows.schema,
        use_dictionary=layout.dictionary_paths(rows),
        compression=codec.name,
        compression_level=codec.level,
        metadata_collector=footers,
        **_OPTIONS,
    )


class ParquetFile:
    """A data file that appears, whole, when it is closed. For one thread at a time."""

    def __init__(self, store: LogStore, path: str, codec: Codec, stats: StatsPlan) -> None:
        self.path = path
        self._upload = store.upload(path)
        self._sink = UploadSink(self._upload)
        self._stats = FileStats(stats)
        self._codec = codec
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        if self._writer is None:
            self._writer = _writer(self._sink, rows, self._codec, self._footers)
        self._stats.see(rows)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._upload.tell()

    def close(self) -> str:
        """Make the file appear, after a first `write`; gives its statistics as JSON."""
        assert self._writer is not None
        self._writer.close()
        self._upload.close()
        return self._stats.json(self._footers[0])

    def abandon(self) -> None:
        """Leave nothing behind; after `close` it does nothing."""
        if self._writer is not None and self._writer.is_open:
            self._sink.give_up(self._writer)
        self._upload.abandon()


class _Column(NamedTuple):
    """A top-level column of a file: its name, its schema elements, and its leaves."""

    name: str
    elements: tuple[bytes, ...]
    leaves: range


def _columns(elements: Sequence[bytes]) -> Iterator[_Column]:
    """The top-level columns of a schema; the first element is its root."""
    at, leaf = 1, 0
    while at < len(elements):
        start, first, pending = at, leaf, 1
        while pending:
            children = read_number(read_struct(elements[at]).get(_NUM_CHILDREN))
            leaf += not children
            pending += children - 1
            at += 1
        name = read_binary(read_struct(elements[start])[_NAME]).decode()
        yield _Column(name, tuple(elements[start:at]), range(first, leaf))


class _Group(NamedTuple):
    """A row group: its number of rows, and its column chunks, encoded and as byte ranges."""

    num_rows: int
    chunks: tuple[bytes, ...]
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CopySource:
    """A data file of which some columns are copied as they are encoded.

    Attributes:
        path: Its path in the log.
        size_bytes: Its length.
        partition: Its partition values, by physical name.
        stats: The statistics of its add action.
        footer: The fields of its footer.
        groups: Its row groups.
        kept: The columns that are copied.
    """

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    stats: str | None
    footer: Mapping[int, Value]
    groups: tuple[_Group, ...]
    kept: tuple[_Column, ...]
    _sources: Sources

    @staticmethod
    def of(
        file: Mapping[str, Any],
        sources: Sources,
        kept: Sequence[contract.Field],
        read: Sequence[contract.Field],
        mapping: str,
        group_bytes: int,
    ) -> CopySource | None:
        """A row of `Snapshot.files` without deleted rows.

        Args:
            file: The row.
            sources: Opens the file.
            kept: Columns to copy.
            read: Columns that are read a row group at a time.
            mapping: The mode of column mapping.
            group_bytes: Maximum memory of these columns.

        Returns:
            None for a file that has to be decoded: with dates of an old calendar, encrypted, of an
            old writer, with too large row groups, or damaged, which is an error where it is read.
        """
        with suppress(*_READ_ERRORS):
            footer, metadata = _read_footer(sources, file["path"], file["size"])
            schema = metadata.schema.to_arrow_schema()
            columns = Columns.of(schema, kept, mapping)
            require_contents(file["stats"], metadata.num_rows, 0, columns.absent)
            leaves = set(columns.leaves)
            elements = _columns(read_list(footer[_SCHEMA]))
            found = tuple(each for each in elements if not leaves.isdisjoint(each.leaves))
            groups = tuple(_groups(footer, metadata, file["size"]))
            decoded = Columns.of(schema, read, mapping).leaves
            if (
                found
                and groups
                and sum(group.num_rows for group in groups) == metadata.num_rows
                and max(_memory_bytes(metadata, i, decoded) for i in range(len(groups)))
                <= group_bytes
                and not Calendar.of(metadata.metadata).is_old
                and not _ENCRYPTION & footer.keys()
                and not _OLD_WRITER.match(read_binary(footer.get(_CREATED_BY)))
            ):
                partition = dict(file["partitionValues"] or {})
                return CopySource(
                    file["path"],
                    file["size"],
                    partition,
                    file["stats"],
                    footer,
                    groups,
                    found,
                    sources,
                )
        return None

    def kept_leaves(self) -> list[int]:
        """The leaves of the columns that are copied."""
        return [leaf for column in self.kept for leaf in column.leaves]

    def kept_bytes(self, group: _Group) -> Iterator[bytes]:
        """The chunks that are copied of a row group."""
        with self._sources.open(self.path, self.size_bytes) as file:
            for start, end in _joined(group.ranges[leaf] for leaf in self.kept_leaves()):
                file.seek(start)
                left = end - start
                while left:
                    piece = file.read(min(left, _PIECE_BYTES))
                    if not piece:
                        raise CorruptionError(
                            "a data file was cut short while it was copied",
                            path=self.path,
                            expected=f"{self.size_bytes} bytes of Parquet",
                            hint="restore the file from a copy",
                        )
                    left -= len(piece)
                    yield piece


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same ranges in their order; those that adjoin are one."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        adjoins = found and found[-1][1] == start
        found.append((found.pop()[0] if adjoins else start, end))
    return found


def _read_footer(
    sources: Sources, path: str, size_bytes: int
) -> tuple[dict[int, Value], pq.FileMetaData]:
    """The fields of a footer, and the footer as pyarrow has it."""
    end = size_bytes - _LENGTH_BYTES - len(_MAGIC)
    with sources.open(path, size_bytes) as file:
        start = max(0, end - _FOOTER_BYTES)
        file.seek(start)
        tail = file.read(size_bytes - start)
        length = int.from_bytes(tail[end - start : -len(_MAGIC)], "little")
        if not tail.endswith(_MAGIC) or not 0 < length <= min(end, _MAX_FOOTER_BYTES):
            raise ValueError("the file has no footer, an encrypted one, or a very long one")
        footer = tail[: -_LENGTH_BYTES - len(_MAGIC)][-length:]
        if len(footer) < length:
            file.seek(end - length)
            footer = file.read(length)
    return read_struct(footer), _metadata(footer)


def _metadata(footer: bytes) -> pq.FileMetaData:
    length = len(footer).to_bytes(_LENGTH_BYTES, "little")
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer + length + _MAGIC))


def _groups(
    footer: Mapping[int, Value], metadata: pq.FileMetaData, size_bytes: int
) -> Iterator[_Group]:
    """The row groups of a file, of which all chunks are inside the file and not encrypted."""
    leaves = range(metadata.num_columns)
    require_sound_chunks(metadata, range(metadata.num_row_groups), leaves)
    for number, encoded in enumerate(read_list(footer[_GROUPS])):
        group = metadata.row_group(number)
        chunks = tuple(read_list(read_struct(encoded)[_CHUNKS]))
        ranges = tuple(chunk_range(group.column(leaf)) for leaf in leaves)
        if (
            len(chunks) != len(leaves)
            or group.num_rows < 1
            or any(not len(_MAGIC) <= start < end < size_bytes for start, end in ranges)
            or any(
                start > group.column(leaf).data_page_offset
                for leaf, (start, _) in enumerate(ranges)
            )
            or any(_ELSEWHERE & read_struct(chunk).keys() for chunk in chunks)
        ):
            raise ValueError("a row group is empty, encrypted, or not inside the file")
        yield _Group(group.num_rows, chunks, ranges)


def _memory_bytes(metadata: pq.FileMetaData, number: int, leaves: Sequence[int]) -> int:
    """About the memory of columns of a row group, with positions."""
    group = metadata.row_group(number)
    size_bytes = group.num_rows * _POSITION_BYTES
    for chunk in map(group.column, leaves):
        if chunk.physical_type == "BYTE_ARRAY":
            encoded = chunk.total_uncompressed_size, _IN_MEMORY * chunk.total_compressed_size
            size_bytes += max(encoded)
        size_bytes += _VALUE_BYTES * chunk.num_values
    return int(size_bytes)


class ParquetCopy:
    """A copy of a data file with new columns, or new values of some, that appears when it is
    closed. For one thread at a time.

    Memory: the new columns of a row group, encoded.
    """

    def __init__(
        self, store: LogStore, path: str, source: CopySource, codec: Codec, stats: StatsPlan
    ) -> None:
        self.path = path
        self._source, self._codec = source, codec
        self._stats = FileStats(stats)
        self._footers: list[pq.FileMetaData] = []
        self._new: dict[int, Value] = {}
        self._groups: list[bytes] = []
        self._upload = store.upload(path)

    @property
    def is_complete(self) -> bool:
        """Whether all row groups are written."""
        return len(self._groups) == len(self._source.groups)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._upload.tell()

    def write(self, rows: pa.Table) -> None:
        """Append the next row group: the new columns of its rows."""
        source = self._source
        group = source.groups[len(self._groups)]
        self._stats.see(rows)
        encoded, footer = self._encode(rows)
        if not self._groups:
            self._upload.write(_MAGIC)
        start = at = self._upload.tell()
        chunks = []
        for leaf in source.kept_leaves():
            first, last = group.ranges[leaf]
            chunks.append(_moved(group.chunks[leaf], at - first))
            at += last - first
        for piece in source.kept_bytes(group):
            self._upload.write(piece)
        self._upload.write(encoded[len(_MAGIC) :])
        (new,) = read_list(footer[_GROUPS])
        chunks += [_moved(each, at - len(_MAGIC)) for each in read_list(read_struct(new)[_CHUNKS])]
        self._groups.append(_row_group(chunks, rows.num_rows, start))

    def _encode(self, rows: pa.Table) -> tuple[memoryview, dict[int, Value]]:
        """The new columns of a row group as a file without its footer, and the footer."""
        sink = pa.BufferOutputStream()
        with _writer(sink, rows, self._codec, self._footers) as writer:
            writer.write_table(rows, row_group_size=rows.num_rows)
        encoded = memoryview(sink.getvalue())
        tail = len(encoded) - _LENGTH_BYTES - len(_MAGIC)
        end = tail - int.from_bytes(encoded[tail : tail + _LENGTH_BYTES], "little")
        footer = read_struct(bytes(encoded[end:tail]))
        self._new = self._new or footer
        return encoded[:end], footer

    def close(self) -> str:
        """Make the file appear, after its last row group; gives its statistics as JSON."""
        footer = self._footer()
        _metadata(footer)  # raises if it is not valid
        self._upload.write(footer + len(footer).to_bytes(_LENGTH_BYTES, "little") + _MAGIC)
        self._upload.close()
        first, *others = self._footers
        for other in others:
            first.append_row_groups(other)
        kept = {column.name for column in self._source.kept}
        return joined_statistics(self._source.stats, kept, self._stats.json(first))

    def _footer(self) -> bytes:
        """The footer: the copied columns, and the new ones behind them."""
        old, new, kept = self._source.footer, self._new, self._source.kept
        root, *elements = read_list(new[_SCHEMA])
        copied = [*chain.from_iterable(column.elements for column in kept)]
        width = len(kept) + read_number(read_struct(root)[_NUM_CHILDREN])
        root = write_struct(read_struct(root) | {_NUM_CHILDREN: write_number(width, _I32)})
        fields = {
            _VERSION: new[_VERSION],
            _SCHEMA: write_list([root, *copied, *elements]),
            _NUM_ROWS: old[_NUM_ROWS],
            _GROUPS: write_list(self._groups),
        }
        if _CREATED_BY in old:  # what readers know of its writer holds for most chunks
            fields[_CREATED_BY] = old[_CREATED_BY]
        keys = [
            pair
            for pair in (read_list(old[_KEY_VALUES]) if _KEY_VALUES in old else [])
            if read_binary(read_struct(pair).get(_KEY)) == _CALENDAR_KEY
        ]
        if keys:
            fields[_KEY_VALUES] = write_list(keys)
        if _COLUMN_ORDERS in old:
            orders = read_list(old[_COLUMN_ORDERS])
            orders = [orders[leaf] for leaf in self._source.kept_leaves()]
            fields[_COLUMN_ORDERS] = write_list([*orders, *read_list(new[_COLUMN_ORDERS])])
        return write_struct(fields)

    def abandon(self) -> None:
        """Leave nothing behind; after `close` it does nothing."""
        self._upload.abandon()


def _moved(chunk: bytes, by: int) -> bytes:
    """A column chunk whose pages are so many bytes further on, without indexes."""
    metadata = read_struct(read_struct(chunk)[_CHUNK_METADATA].data)
    for offset in _PAGE_OFFSETS:
        if read_number(metadata.get(offset)) > 0:  # some writers have 0 for no such page
            metadata[offset] = write_number(read_number(metadata[offset]) + by)
    kept = {number: value for number, value in metadata.items() if number not in _BLOOM_FILTER}
    return write_struct(
        {_CHUNK_OFFSET: write_number(0), _CHUNK_METADATA: Value(STRUCT, write_struct(kept))}
    )


def _row_group(chunks: Sequence[bytes], rows: int, start: int) -> bytes:
    metadata = [read_struct(read_struct(chunk)[_CHUNK_METADATA].data) for chunk in chunks]
    fields = {
        _CHUNKS: write_list(chunks),
        _GROUP_ROWS: write_number(rows),
        _GROUP_OFFSET: write_number(start),
    }
    for total, own in (
        (_TOTAL_BYTES, _UNCOMPRESSED_SIZE),
        (_COMPRESSED_BYTES, _COMPRESSED_SIZE),
    ):
        fields[total] = write_number(sum(read_number(each.get(own)) for each in metadata))
    return write_struct(fields)
