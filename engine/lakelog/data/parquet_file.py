"""Data files while they are written: new ones, and copies with new values in some columns.

`ParquetGroups` lets several threads encode the row groups of one file, and writes their footer.
`ParquetCopy` copies the column chunks of the other columns as they are encoded. A copy has the row
groups of its source, one footer over old and new chunks, and none of the source's indexes, Bloom
filters and sort orders, whose offsets and column numbers are those of the source.

Source: Apache Parquet, parquet.thrift (FileMetaData).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.data import layout
from lakelog.data.columns import FIELD_ID, Columns
from lakelog.data.conform import wide_field
from lakelog.data.file_opening import Sources, require_contents
from lakelog.data.layout import Codec
from lakelog.data.stats import FileStats, StatsPlan, joined_statistics
from lakelog.dialects.legacy_calendar import Calendar
from lakelog.dialects.parquet_files import DECIMALS_AS_INTEGERS, LENGTH_BYTES, MAGIC, parse_footer
from lakelog.dialects.parquet_footers import is_of_old_writer, require_valid_chunks
from lakelog.dialects.thrift_compact import (
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
from lakelog.errors import CorruptionError, LakelogError
from lakelog.model import contract
from lakelog.storage import LogStore
from lakelog.storage.upload import UploadSink, close_before_commit

_FOOTER_BYTES = 1 << 16  # length of the first read
_FOOTER_SHARE = 16  # a footer longer than this fraction of the file is left to pyarrow
_PIECE_BYTES = 8 << 20  # length of one read of copied chunks
_VALUE_BYTES, _POSITION_BYTES = 8, 24  # memory of a value or offset, and of a row's position

# Field ids of parquet.thrift, by the struct that has them.
_VERSION, _SCHEMA, _NUM_ROWS, _GROUPS, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS = range(1, 8)
_ENCRYPTION = frozenset({8, 9})
_CHUNKS, _TOTAL_BYTES, _GROUP_ROWS = 1, 2, 3  # RowGroup
_GROUP_OFFSET, _COMPRESSED_BYTES = 5, 6
_CHUNK_OFFSET, _CHUNK_METADATA = 2, 3  # ColumnChunk
_ELSEWHERE = frozenset({1, 8, 9})  # ColumnChunk in another file, or encrypted
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 6, 7  # ColumnMetaData
_DATA_OFFSET, _DICTIONARY_OFFSET = 9, 11
_INDEX_OFFSETS = (10, 14, 15)  # index page, Bloom filter and its length
_NAME, _NUM_CHILDREN = 4, 5  # SchemaElement
_KEY = 1  # KeyValue
_I32 = 5  # Thrift's type

_CALENDAR_KEY = b"org.apache.spark.version"

_READ_ERRORS = (LakelogError, pa.ArrowException, OSError, ValueError, IndexError, RecursionError)


def _writer(
    sink: Any, rows: pa.Table, codec: Codec, footers: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """A Parquet writer with dictionaries for columns in which values of `rows` repeat."""
    return pq.ParquetWriter(
        sink,
        rows.schema,
        use_dictionary=layout.dictionary_paths(rows),
        compression=codec.name,
        compression_level=codec.level,
        metadata_collector=footers,
        store_schema=False,  # the table's schema has all that Arrow's own schema has
        write_page_checksum=True,
        **DECIMALS_AS_INTEGERS,
    )


class ParquetFile:
    """A data file that becomes visible when it is closed; for one thread at a time."""

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
        """Publish the file, after at least one `write`; return its statistics as JSON."""
        assert self._writer is not None
        self._writer.close()
        close_before_commit(self._upload, self.path)
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


class _Chunk(NamedTuple):
    """A column chunk: metadata without offsets, page offsets by field id, range, plain length."""

    metadata: dict[int, Value]
    offsets: dict[int, int]
    start: int
    end: int
    uncompressed_bytes: int

    @staticmethod
    def of(encoded: bytes) -> _Chunk:
        """A chunk of a row group; ValueError for one in another file, or encrypted."""
        chunk = read_struct(encoded)
        if _ELSEWHERE & chunk.keys():
            raise ValueError("a column chunk is in another file, or encrypted")
        metadata = read_struct(chunk[_CHUNK_METADATA].data)
        for number in _INDEX_OFFSETS:
            metadata.pop(number, None)
        first = read_number(metadata.pop(_DATA_OFFSET))
        offsets = {_DATA_OFFSET: first}
        dictionary = read_number(metadata.pop(_DICTIONARY_OFFSET, None))
        if 0 < dictionary < first:  # some writers record 0 for no dictionary
            offsets[_DICTIONARY_OFFSET] = first = dictionary
        end = first + read_number(metadata[_COMPRESSED_SIZE])
        return _Chunk(metadata, offsets, first, end, read_number(metadata[_UNCOMPRESSED_SIZE]))

    def moved(self, start: int) -> bytes:
        """The encoded chunk at another offset, without indexes."""
        offsets = {n: write_number(at - self.start + start) for n, at in self.offsets.items()}
        metadata = Value(STRUCT, write_struct(self.metadata | offsets))
        return write_struct({_CHUNK_OFFSET: write_number(0), _CHUNK_METADATA: metadata})


class _Group(NamedTuple):
    """A row group: its number of rows, and the chunks that are copied."""

    num_rows: int
    chunks: tuple[_Chunk, ...]


@dataclass(frozen=True)
class CopySource:
    """A data file whose columns `kept` are copied as they are encoded, with the footer fields and
    column orders that a copy keeps.
    """

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    stats: str | None
    kept: tuple[_Column, ...]
    groups: tuple[_Group, ...]
    footer: Mapping[int, Value]
    orders: tuple[bytes, ...] | None
    _sources: Sources

    @staticmethod
    def of(
        file: Mapping[str, Any],
        sources: Sources,
        kept: Sequence[contract.Field],
        read: Sequence[contract.Field],
        mapping: str,
        *,
        group_bytes: int,
        chunk_bytes: int,
    ) -> CopySource | None:
        """A row of `Snapshot.files` without deleted rows, to copy the columns `kept` and read the
        columns `read` a row group at a time, within `group_bytes`. None for a file that has to be
        decoded: with dates of the Julian calendar, other names than the physical ones, other field
        ids than the table's, chunks shorter than `chunk_bytes` on average, or large row groups,
        encrypted, of an old writer, or damaged, which is an error where it is read.
        """
        with suppress(*_READ_ERRORS):
            encoded = _read_footer(sources, file["path"], file["size"])
            metadata = parse_footer(encoded)
            schema = metadata.schema.to_arrow_schema()
            count = metadata.num_row_groups
            decoded = Columns.of(schema, read, mapping).leaves
            memory_bytes = max(_memory_bytes(metadata, i, decoded) for i in range(count))
            if (
                memory_bytes > group_bytes
                or count * metadata.num_columns * chunk_bytes > file["size"]
                or Calendar.of(metadata).is_old
                or not _has_ids(
                    pa.struct(list(schema)), pa.struct([wide_field(f, mapping) for f in kept])
                )
            ):
                return None
            footer = read_struct(encoded)  # last, because it takes longer than pyarrow
            created_by = read_binary(footer.get(_CREATED_BY)).decode("latin-1")
            if _ENCRYPTION & footer.keys() or is_of_old_writer(created_by):
                return None
            columns = Columns.of(schema, kept, mapping)
            require_contents(file["stats"], metadata.num_rows, 0, columns.absent)
            elements = _columns(read_list(footer[_SCHEMA]))
            found = tuple(c for c in elements if not set(c.leaves).isdisjoint(columns.leaves))
            names = {contract.physical_name(field, mapping) for field in kept}
            leaves = [leaf for column in found for leaf in column.leaves]
            orders = read_list(footer[_COLUMN_ORDERS]) if _COLUMN_ORDERS in footer else None
            groups = _groups(footer, metadata, leaves)
            _require_apart(groups, file["size"])
            if found and names.issuperset(column.name for column in found):
                return CopySource(
                    file["path"],
                    file["size"],
                    dict(file["partitionValues"] or {}),
                    file["stats"],
                    found,
                    groups,
                    _kept_fields(footer),
                    None if orders is None else tuple(orders[leaf] for leaf in leaves),
                    sources,
                )
        return None

    def kept_bytes(self, group: _Group) -> Iterator[bytes]:
        """The bytes of a row group's copied chunks."""
        with self._sources.open(self.path, self.size_bytes) as file:
            for start, end in _joined((chunk.start, chunk.end) for chunk in group.chunks):
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


def _has_ids(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the fields of structs have the same field ids as those of their names in `wanted`
    (Delta protocol, Writer Requirements for Column Mapping).
    """
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        own = {field.name.lower(): field for field in wanted.fields}
        return all(
            (same := own.get(field.name.lower())) is None
            or (_id_of(field) == _id_of(same) and _has_ids(field.type, same.type))
            for field in given.fields
        )
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _has_ids(given.key_type, wanted.key_type) and _has_ids(
            given.item_type, wanted.item_type
        )
    if contract.is_list(given) and contract.is_list(wanted):
        return _has_ids(given.value_type, wanted.value_type)
    return True


def _id_of(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(FIELD_ID)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        adjoins = found and found[-1][1] == start
        found.append((found.pop()[0] if adjoins else start, end))
    return found


def _read_footer(sources: Sources, path: str, size_bytes: int) -> bytes:
    """The footer of a file, encoded."""
    end = size_bytes - LENGTH_BYTES - len(MAGIC)
    most = max(_FOOTER_BYTES, size_bytes // _FOOTER_SHARE)
    with sources.open(path, size_bytes) as file:
        start = max(0, end - _FOOTER_BYTES)
        file.seek(start)
        tail = file.read(size_bytes - start)
        length = int.from_bytes(tail[end - start : -len(MAGIC)], "little")
        if not tail.endswith(MAGIC) or not 0 < length <= min(end, most):
            raise ValueError("the file has no footer, an encrypted one, or a very long one")
        footer = tail[: -LENGTH_BYTES - len(MAGIC)][-length:]
        if len(footer) < length:
            file.seek(end - length)
            footer = file.read(length)
    return footer


def _kept_fields(footer: Mapping[int, Value]) -> dict[int, Value]:
    """The writer, because readers apply its known faults to the chunks, of which most are its own;
    and the key without which Spark may read old dates of the copied columns in another calendar.
    """
    pairs = read_list(footer[_KEY_VALUES]) if _KEY_VALUES in footer else []
    pairs = [each for each in pairs if read_binary(read_struct(each).get(_KEY)) == _CALENDAR_KEY]
    fields = {_CREATED_BY: footer[_CREATED_BY]} if _CREATED_BY in footer else {}
    return fields | ({_KEY_VALUES: write_list(pairs)} if pairs else {})


def _groups(
    footer: Mapping[int, Value], metadata: pq.FileMetaData, leaves: Sequence[int]
) -> tuple[_Group, ...]:
    """The row groups of a file, with the chunks of some leaves."""
    require_valid_chunks(metadata, range(metadata.num_row_groups), range(metadata.num_columns))
    found = []
    for number, encoded in enumerate(read_list(footer[_GROUPS])):
        num_rows = metadata.row_group(number).num_rows
        chunks = read_list(read_struct(encoded)[_CHUNKS])
        if len(chunks) != metadata.num_columns or num_rows < 1:
            raise ValueError("a row group is empty, or lacks chunks")
        found.append(_Group(num_rows, tuple(_Chunk.of(chunks[leaf]) for leaf in leaves)))
    if sum(group.num_rows for group in found) != metadata.num_rows:
        raise ValueError("row groups have other rows than the file")
    return tuple(found)


def _require_apart(groups: Iterable[_Group], size_bytes: int) -> None:
    """Refuse chunks that overlap, or are not inside the file."""
    last = len(MAGIC)
    for start, end in sorted((c.start, c.end) for group in groups for c in group.chunks):
        if not last <= start < end < size_bytes:
            raise ValueError("column chunks overlap, or are not inside the file")
        last = end


def _memory_bytes(metadata: pq.FileMetaData, number: int, leaves: Sequence[int]) -> int:
    """Approximate memory of a row group's columns and positions."""
    group = metadata.row_group(number)
    size_bytes = group.num_rows * _POSITION_BYTES
    for chunk in map(group.column, leaves):
        if chunk.physical_type == "BYTE_ARRAY":
            encoded = chunk.total_uncompressed_size, layout.IN_MEMORY * chunk.total_compressed_size
            size_bytes += max(encoded)
        size_bytes += _VALUE_BYTES * chunk.num_values
    return int(size_bytes)


class _Encoded(NamedTuple):
    """A row group as a file of its own: bytes, chunks, metadata, and fields of its footer."""

    content: memoryview
    chunks: tuple[_Chunk, ...]
    metadata: pq.FileMetaData
    footer: dict[int, Value]


class ParquetGroups:
    """A data file whose row groups any threads encode (`encode`), and which are added in order; it
    appears when it is closed. Memory: row groups that are encoded and not yet added.
    """

    def __init__(self, store: LogStore, path: str, codec: Codec, stats: StatsPlan) -> None:
        self.path = path
        self._codec = codec
        self._stats = FileStats(stats)
        self._groups: list[bytes] = []
        self._metadata: pq.FileMetaData | None = None
        self._first: dict[int, Value] = {}
        self._upload = store.upload(path)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._upload.tell()

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        self.see(rows)
        self.add(self.encode(rows))

    def see(self, rows: pa.Table) -> None:
        """Collect the statistics of rows."""
        self._stats.see(rows)

    def encode(self, rows: pa.Table) -> _Encoded:
        """Encode a row group."""
        sink, footers = pa.BufferOutputStream(), list[pq.FileMetaData]()
        with _writer(sink, rows, self._codec, footers) as writer:
            writer.write_table(rows, row_group_size=rows.num_rows)
        encoded = memoryview(sink.getvalue())
        tail = len(encoded) - LENGTH_BYTES - len(MAGIC)
        end = tail - int.from_bytes(encoded[tail : tail + LENGTH_BYTES], "little")
        footer = read_struct(bytes(encoded[end:tail]))
        (group,) = read_list(footer[_GROUPS])
        chunks = tuple(_Chunk.of(each) for each in read_list(read_struct(group)[_CHUNKS]))
        return _Encoded(encoded[len(MAGIC) : end], chunks, footers[0], footer)

    def add(
        self, encoded: _Encoded, kept: Sequence[_Chunk] = (), pieces: Iterable[bytes] = ()
    ) -> None:
        """Append an encoded row group after `kept` chunks of another file, with bytes `pieces`."""
        if self._metadata is None:
            self._upload.write(MAGIC)
            self._metadata, self._first = encoded.metadata, encoded.footer
        else:
            self._metadata.append_row_groups(encoded.metadata)
        start = at = self._upload.tell()
        chunks = []
        for chunk in kept:
            chunks.append(chunk.moved(at))
            at += chunk.end - chunk.start
        for piece in pieces:
            self._upload.write(piece)
        self._upload.write(encoded.content)
        chunks += [chunk.moved(chunk.start + at - len(MAGIC)) for chunk in encoded.chunks]
        both = [*kept, *encoded.chunks]
        fields = {
            _CHUNKS: write_list(chunks),
            _TOTAL_BYTES: write_number(sum(chunk.uncompressed_bytes for chunk in both)),
            _GROUP_ROWS: write_number(encoded.metadata.num_rows),
            _GROUP_OFFSET: write_number(start),
            _COMPRESSED_BYTES: write_number(sum(chunk.end - chunk.start for chunk in both)),
        }
        self._groups.append(write_struct(fields))

    def close(self) -> str:
        """Publish the file after its last row group; return its statistics as JSON."""
        assert self._metadata is not None
        footer = self._footer(write_number(self._metadata.num_rows), write_list(self._groups))
        self._upload.write(footer + len(footer).to_bytes(LENGTH_BYTES, "little") + MAGIC)
        close_before_commit(self._upload, self.path)
        return self._stats.json(self._metadata)

    def _footer(self, num_rows: Value, groups: Value) -> bytes:
        return write_struct(self._first | {_NUM_ROWS: num_rows, _GROUPS: groups})

    def abandon(self) -> None:
        """Leave nothing behind; after `close` it does nothing."""
        self._upload.abandon()


class ParquetCopy(ParquetGroups):
    """A copy of a data file with new columns, or new values of some; for one thread at a time."""

    def __init__(
        self, store: LogStore, path: str, source: CopySource, codec: Codec, stats: StatsPlan
    ) -> None:
        super().__init__(store, path, codec, stats)
        self._source = source

    @property
    def is_complete(self) -> bool:
        """Whether all row groups are written."""
        return len(self._groups) == len(self._source.groups)

    def write(self, rows: pa.Table) -> None:
        """Append the next row group: the new columns of its rows."""
        group = self._source.groups[len(self._groups)]
        self.see(rows)
        self.add(self.encode(rows), group.chunks, self._source.kept_bytes(group))

    def close(self) -> str:
        """As `ParquetGroups.close`."""
        kept = {column.name for column in self._source.kept}
        return joined_statistics(self._source.stats, kept, super().close())

    def _footer(self, num_rows: Value, groups: Value) -> bytes:
        """The footer of the copied columns, followed by the new ones."""
        source, new = self._source, self._first
        root, *elements = read_list(new[_SCHEMA])
        copied = chain.from_iterable(column.elements for column in source.kept)
        width = len(source.kept) + read_number(read_struct(root)[_NUM_CHILDREN])
        root = write_struct(read_struct(root) | {_NUM_CHILDREN: write_number(width, _I32)})
        fields = {
            _VERSION: new[_VERSION],
            _SCHEMA: write_list([root, *copied, *elements]),
            _NUM_ROWS: num_rows,
            _GROUPS: groups,
            **source.footer,
        }
        if source.orders is not None:
            orders = [*source.orders, *read_list(new[_COLUMN_ORDERS])]
            fields[_COLUMN_ORDERS] = write_list(orders)
        footer = write_struct(fields)
        try:
            parse_footer(footer)
        except (pa.ArrowException, OSError) as cause:
            raise CorruptionError(
                "columns of a data file cannot be copied, because its footer is damaged",
                path=source.path,
                hint="restore the file from a copy",
            ) from cause
        return footer
