"""Checks a sidecar without reading its rows: length, footer and path filters.

A footer takes a third of a millisecond to parse, and a large table has hundreds of sidecars. So
a process that has looked at a footer once records its checksum, and what it said is true as long as
the file ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.delta.path_filters import (
    CHECKSUM_DIGITS,
    FILTERED,
    PathFilter,
    Span,
    filter_spans,
    find_columns,
    read_filter,
)
from lakelog.errors import LakelogError, MalformedLogError, NotFoundError
from lakelog.storage import LogStore

_REMOVED_AT = "remove.deletionTimestamp"
_TRAILER_BYTES = 8
"""The footer's length and Parquet's magic number, behind the footer."""


@dataclass(frozen=True)
class FooterRecord:
    """How to know a sidecar's footer again, and what of it is asked for.

    Attributes:
        length: Bytes of the footer, its length and magic number included: the file's last.
        checksum: First 32 hexadecimal digits of SHA-256 over them.
        last_deletion_ms: See `Inspection`.
        spans: Offset and length in bytes of each path filter, in order; None without filters.
    """

    length: int
    checksum: str
    last_deletion_ms: int | None
    spans: tuple[Span, ...] | None

    @staticmethod
    def of(body: Mapping[str, Any]) -> FooterRecord:
        """The record, as JSON has it."""
        found = FooterRecord(**body)
        spans = found.spans
        if spans is not None:
            spans = tuple((offset, length) for offset, length in spans)
        places = [found.length, *(number for span in spans or () for number in span)]
        if {type(number) for number in (*places, found.last_deletion_ms or 0)} != {int}:
            raise TypeError("no record of a footer")
        if min(places) < 0 or type(found.checksum) is not str:
            raise ValueError("no record of a footer")
        return replace(found, spans=spans)


@dataclass(frozen=True)
class Inspection:
    """What a sidecar says of itself without its rows being read.

    Attributes:
        size_bytes: Its length.
        adds: Live files by the footer; None where it does not say.
        removes: Tombstones by the footer; None where it does not say.
        rows: Rows by the footer.
        last_deletion_ms: An upper bound of the tombstones' ``deletionTimestamp`` by the footer;
            None where it does not say.
        filter: Its path filters; None where it has none, or not of all row groups.
        footer: How to know the footer again.
        schema: Its Arrow schema; None where its footer was recognised, and not parsed.
    """

    size_bytes: int
    adds: int | None
    removes: int | None
    rows: int
    last_deletion_ms: int | None
    filter: PathFilter | None
    footer: FooterRecord
    schema: pa.Schema | None = field(default=None, compare=False)


def inspect_sidecar(store: LogStore, path: str, size_bytes: int | None = None) -> Inspection:
    """Read a sidecar's footer and filters.

    Memory: the footer, and some twenty bits a path.
    """
    with _opened(store, path, size_bytes) as source:
        file = pq.ParquetFile(source)
        groups = find_columns(file.metadata, (*FILTERED, _REMOVED_AT))
        adds, _ = _statistics(groups, "add.path")
        removes, _ = _statistics(groups, "remove.path")
        _, last = _statistics(groups, _REMOVED_AT)
        spans = filter_spans(groups)
        paths = read_filter(source, spans) if spans is not None else None
        size = source.seek(0, os.SEEK_END)
        source.seek(size - _TRAILER_BYTES)
        length = int.from_bytes(source.read(4), "little") + _TRAILER_BYTES
        record = FooterRecord(length, _checksum(source, size, length), last, spans)
        rows, schema = file.metadata.num_rows, file.schema_arrow
        return Inspection(size, adds, removes, rows, last, paths, record, schema)


def recognise_sidecar(
    store: LogStore,
    path: str,
    size_bytes: int,
    counts: tuple[int, int],
    recorded: FooterRecord,
) -> Inspection | None:
    """What `inspect_sidecar` would find, by what was recorded when its footer was looked at.

    Memory: the footer, and some twenty bits a path.
    """
    with _opened(store, path, None) as source:
        size = source.seek(0, os.SEEK_END)
        if size != size_bytes or size < recorded.length:
            return None
        if _checksum(source, size, recorded.length) != recorded.checksum:
            return None
        paths = read_filter(source, recorded.spans) if recorded.spans is not None else None
        return Inspection(size, *counts, sum(counts), recorded.last_deletion_ms, paths, recorded)


def read_sidecar_schema(store: LogStore, path: str) -> pa.Schema:
    """A sidecar's Arrow schema; errors as `inspect_sidecar`."""
    with _opened(store, path, None) as source:
        return pq.read_schema(source)


def _checksum(source: BinaryIO, size: int, length: int) -> str:
    source.seek(size - length)
    return hashlib.sha256(source.read(length)).hexdigest()[:CHECKSUM_DIGITS]


@contextmanager
def _opened(store: LogStore, path: str, size_bytes: int | None) -> Iterator[BinaryIO]:
    try:
        with store.open(path, size_bytes) as source:
            yield source
    except NotFoundError as cause:
        raise MalformedLogError("a sidecar of the checkpoint was not found", path=path) from cause
    except LakelogError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as cause:
        raise MalformedLogError(
            f"a sidecar cannot be read: {str(cause).splitlines()[0][:200]}",
            path=path,
            expected="whole Parquet",
        ) from cause


def _statistics(
    groups: Iterable[Mapping[str, pq.ColumnChunkMetaData]], path: str
) -> tuple[int | None, int | None]:
    """How many values a column has that are not null, and their maximum, by the footer; 0 values
    where the column is not there.
    """
    values = 0
    greatest: int | None = None
    bounded = True
    for columns in groups:
        if path not in columns:
            continue
        statistics = columns[path].statistics
        if statistics is None or not statistics.has_null_count:
            return None, None
        present = columns[path].num_values - statistics.null_count
        values += present
        if not present or not path.endswith("Timestamp"):
            continue
        if not statistics.has_min_max:
            bounded = False
            continue
        greatest = max(statistics.max, statistics.max if greatest is None else greatest)
    return values, greatest if bounded else None
