"""Bounds of row groups, from the typed columns of a Delta checkpoint.

Source: Delta protocol, Checkpoint Schema.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.dialects.delta.checkpoint_schema import PARTITIONS_PARSED
from lakelog.dialects.delta.paths import decode_paths
from lakelog.dialects.log_content import STRUCT_STATISTICS
from lakelog.dialects.row_group_records import (
    BOUNDS,
    NULL_COUNT,
    ONE,
    PATHS,
    RECORDS,
    SUMS,
    TIGHT_BOUNDS,
    ZERO,
    bound_of,
    encode_record,
    has_partition_bounds,
    partition_bound,
)
from lakelog.model.actions import FILE_ACTIONS

_PATH_CHARACTERS = 48
_VECTOR_ROWS = ("deletionVector", "cardinality")


class TypedBoundsRecorder:
    """Collects the record of one file while it is written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._type = bounds_type(schema)
        self._counts: list[tuple[int, int, int]] = []
        self._facts: list[tuple[str | None, str | None, int | None, int | None]] = []
        self._bounds: list[pa.StructArray] = []

    def add(self, rows: pa.Table) -> None:
        """Add the rows of the next row group."""
        adds, removes = (
            rows.num_rows - rows[kind].null_count if kind in rows.column_names else 0
            for kind in FILE_ACTIONS
        )
        self._counts.append((rows.num_rows, adds, removes))
        self._facts.append(_facts_of(rows["add"]) if adds else (None, None, 0, 0))
        if self._type is not None:
            bounds = _bounds_of(rows["add"], self._type) if adds else pa.nulls(1, self._type)
            self._bounds.append(bounds)

    def record(self, name: str, end: int) -> str:
        """See `encode_record`."""
        bounds = None
        if self._type is not None:
            nothing = pa.nulls(0, self._type)
            bounds = pa.concat_arrays(self._bounds) if self._bounds else nothing
        facts = dict(zip((*PATHS, *SUMS), zip(*self._facts, strict=True), strict=False))
        return encode_record(name, end, self._schema, self._counts, bounds, **facts)


def bounds_type(schema: pa.Schema) -> pa.StructType | None:
    """Type of the bounds of a file's live files; None if it has no typed columns."""
    if schema.get_field_index("add") < 0:
        return None
    add = schema.field("add").type
    fields = {name: list(_fields(add, STRUCT_STATISTICS, name)) for name in BOUNDS}
    counts = list(_fields(add, STRUCT_STATISTICS, NULL_COUNT))
    for field in _partitions(add):
        for found in fields.values():
            found.append(field)
        counts.append(pa.field(field.name, pa.int64()))
    if not counts:
        return None
    structs = [pa.field(name, pa.struct(found)) for name, found in fields.items() if found]
    records = pa.field(RECORDS, pa.int64())
    return pa.struct([records, *structs, pa.field(NULL_COUNT, pa.struct(counts))])


def _fields(type_: pa.DataType, *names: str) -> Iterator[pa.Field]:
    """The fields of a struct inside a struct; empty if it is missing."""
    for name in names:
        index = type_.get_field_index(name) if pa.types.is_struct(type_) else -1
        if index < 0:
            return
        type_ = type_.field(index).type
    if pa.types.is_struct(type_):
        yield from type_


def _partitions(add: pa.StructType) -> Iterator[pa.Field]:
    """Partition columns with bounds."""
    for field in _fields(add, PARTITIONS_PARSED):
        if has_partition_bounds(field.type):
            yield field


def _facts_of(adds: pa.ChunkedArray) -> tuple[str | None, str | None, int | None, int | None]:
    """Least and greatest path, total size and rows of live files; None if unknown."""
    valid = adds.is_valid() if adds.null_count else None

    def values(*path: str) -> pl.Series | None:
        type_: pa.DataType = adds.type
        for name in path:
            if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
                return None
            type_ = type_.field(name).type
        found = pa.chunked_array([_field(chunk, path) for chunk in adds.chunks])
        return pl.Series(path[-1], found if valid is None else found.filter(valid))

    def total(numbers: pl.Series | None) -> int | None:
        if numbers is None or numbers.null_count():
            return None
        found = int(numbers.cast(pl.Int128).sum())
        return found if 0 <= found < 1 << 63 else None

    paths = values("path")
    assert paths is not None
    paths = decode_paths(paths)
    rows = values(STRUCT_STATISTICS, RECORDS)
    deleted = values(*_VECTOR_ROWS)
    if rows is not None and deleted is not None:
        # Statistics of Trino's ANALYZE, which are not wide, count the rows that are left.
        is_tight = values(STRUCT_STATISTICS, TIGHT_BOUNDS)
        is_wide = deleted.is_null() if is_tight is None else ~is_tight
        is_known = deleted.is_null() | (is_wide & deleted.is_between(0, rows))
        rows = rows - deleted.fill_null(0) if is_known.fill_null(value=False).all() else None
    least = paths.min()
    first = least[:_PATH_CHARACTERS] if isinstance(least, str) else None
    return first, _after_prefix(paths.max()), total(values("size")), total(rows)


def _after_prefix(path: object) -> str | None:
    """A text that is greater than all texts with a prefix, in the order of UTF-8."""
    if not isinstance(path, str) or len(path) <= _PATH_CHARACTERS:
        return path if isinstance(path, str) else None
    last = ord(path[_PATH_CHARACTERS - 1]) + 1
    if last > sys.maxunicode:
        return None
    last = 0xE000 if last == 0xD800 else last  # surrogates are not characters
    return path[: _PATH_CHARACTERS - 1] + chr(last)


def _bounds_of(live: pa.ChunkedArray, type_: pa.StructType) -> pa.StructArray:
    """The bounds of live files, as one value."""
    valid = live.is_valid() if live.null_count else None
    partitions = {field.name for field in _partitions(live.type)}

    def leaf(*path: str) -> pa.ChunkedArray:
        values = pa.chunked_array([_field(chunk, path) for chunk in live.chunks])
        return values if valid is None else values.filter(valid)

    def below(type_: pa.StructType, *path: str) -> pa.StructArray:
        children = []
        for field in type_:
            if len(path) == 1 and field.name in partitions:
                found = partition_bound(path[0], leaf(PARTITIONS_PARSED, field.name))
            elif pa.types.is_struct(field.type):
                children.append(below(field.type, *path, field.name))
                continue
            elif path[0] == NULL_COUNT:
                found = _null_count(leaf(STRUCT_STATISTICS, *path, field.name), records)
            else:
                found = bound_of(path[0], leaf(STRUCT_STATISTICS, *path, field.name))
            known = pa.nulls(1, field.type) if found is None else pa.repeat(found, 1)
            children.append(known.cast(field.type))
        return pa.StructArray.from_arrays(children, fields=list(type_))

    has_records = any(f.name == RECORDS for f in _fields(live.type, STRUCT_STATISTICS))
    records = leaf(STRUCT_STATISTICS, RECORDS) if has_records else None
    children = [
        pa.repeat(ONE, 1) if field.name == RECORDS else below(field.type, field.name)
        for field in type_
    ]
    return pa.StructArray.from_arrays(children, fields=list(type_))


def _field(values: pa.Array, path: Sequence[str]) -> pa.Array:
    """A field inside a struct; null if one of the structs is null."""
    for number, name in enumerate(path):
        if values.null_count:
            return pc.struct_field(values, list(path[number:]))
        values = values.field(name)
    return values


def _null_count(counts: pa.ChunkedArray, records: pa.ChunkedArray | None) -> pa.Scalar | None:
    """0 if no row of any file is null, 1 if every row of every file is, else null."""
    if not counts.null_count:
        extremes = pc.min_max(counts).as_py()
        if extremes == {"min": 0, "max": 0}:
            return ZERO
        if records is not None and pc.all(pc.equal(counts, records), skip_nulls=False).as_py():
            return ONE
    return None
