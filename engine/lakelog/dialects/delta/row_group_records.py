"""Records of the row groups of a checkpoint's file: their actions, and what their live files hold.

Parquet's own statistics are in the footer, which has no checksum: one bit that flips there would
hide files. So lakelog writes what it skips by a second time, as a record with a checksum in the
footer's metadata. The record also names the file and the length of its data: it does not count in
a file that was copied over another, nor in one that another program wrote with the same rows.

A row group's bounds are one value of ``stats_parsed`` (Delta protocol, Per-file Statistics) that
holds for all of its live files together, with the partition columns next to the others:
``numRecords`` is 1, and a ``nullCount`` is 0 where no row of any file is null, 1 where every row of
every file is, else null. A bound is null where it is unknown for one of the files.

Source: Delta protocol, Checkpoint Schema.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.dialects.delta.checkpoint_schema import PARTITIONS_PARSED
from lakelog.dialects.log_content import STRUCT_STATISTICS
from lakelog.dialects.parquet_footers import data_end
from lakelog.model.actions import FILE_ACTIONS

RECORD_KEY = "lakelog.rowGroups"
"""Key of the record in the metadata of a footer, and in the tags of a V2 manifest's sidecar."""

_COUNTS = ("rows", "adds", "removes")
_RECORDS = "numRecords"
_BOUNDS = ("minValues", "maxValues")
_NULL_COUNT = "nullCount"
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""What reading a record that has another form raises."""
_ZERO, _ONE = pl.Series([0, 1]).to_arrow()  # `pyarrow.scalar` would import pandas
_MOST_TEXT_BYTES = 256
_CUT_BYTES = 32
"""A greatest text of so many bytes may be a prefix of the greatest value, which then is unknown."""


class RowGroupRecorder:
    """Collects the record of one file while it is written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._type = _bounds_type(schema)
        self._counts: list[tuple[int, int, int]] = []
        self._bounds: list[pa.StructArray] = []

    def add(self, rows: pa.Table) -> None:
        """Take the rows of the next row group."""
        adds, removes = (
            rows.num_rows - rows[kind].null_count if kind in rows.column_names else 0
            for kind in FILE_ACTIONS
        )
        self._counts.append((rows.num_rows, adds, removes))
        if self._type is not None:
            bounds = _bounds_of(rows["add"], self._type) if adds else pa.nulls(1, self._type)
            self._bounds.append(bounds)

    def record(self, name: str, end: int) -> str:
        """The value of `RECORD_KEY` for the file `name`, whose data has `end` bytes."""
        rows, adds, removes = zip(*self._counts, strict=True) if self._counts else ((), (), ())
        content = {
            "file": name,
            "dataEnd": end,
            "rows": rows,
            "adds": adds,
            "removes": removes,
            "bounds": None if self._type is None else _plain(self._all_bounds(self._type)),
        }
        text = orjson.dumps(content)
        return f"{zlib.crc32(text):08x}{text.decode()}"

    def _all_bounds(self, type_: pa.StructType) -> pa.StructArray:
        return pa.concat_arrays(self._bounds) if self._bounds else pa.nulls(0, type_)


def read_record(file: pq.ParquetFile, path: str) -> pl.DataFrame | None:
    """The recorded row groups of a file (``rows``, ``adds``, ``removes``, and ``bounds`` if known);
    None without a valid record.
    """
    record = (file.metadata.metadata or {}).get(RECORD_KEY.encode())
    content = None if record is None else _content(record, path)
    if content is None:
        return None
    try:
        frame = _frame([content], file.schema_arrow)
        matches = content["dataEnd"] == data_end(file.metadata)
    except _MALFORMED:
        return None
    rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return frame if matches and frame["rows"].to_list() == rows else None


def parse_records(records: Mapping[str, str], schema: pa.Schema) -> dict[str, pl.DataFrame] | None:
    """The recorded row groups of several files, as `read_record`; None if a record is invalid or
    has no bounds.
    """
    contents = [_content(record.encode(), path) for path, record in records.items()]
    known = [content for content in contents if content is not None]
    if len(known) < len(contents) or not known:
        return None
    try:
        frame = _frame(known, schema)
        heights = [len(content["rows"]) for content in known]
    except _MALFORMED:
        return None
    if "bounds" not in frame.columns:
        return None
    starts = accumulate(heights, initial=0)
    return {
        path: frame[start : start + height]
        for path, start, height in zip(records, starts, heights, strict=False)
    }


def _content(record: bytes, path: str) -> dict[str, Any] | None:
    """The content of an undamaged record, if it is of this file."""
    if record[:8] != b"%08x" % zlib.crc32(record[8:]):
        return None
    try:
        content = orjson.loads(record[8:])
    except ValueError:
        return None
    is_own = isinstance(content, dict) and content.get("file") == path.rsplit("/", 1)[-1]
    return content if is_own else None


def _frame(contents: Sequence[dict[str, Any]], schema: pa.Schema) -> pl.DataFrame:
    """Records of files of one schema, one below the other; raises one of `_MALFORMED`."""
    columns = [
        pl.Series(name, [count for content in contents for count in content[name]], dtype=pl.Int64)
        for name in _COUNTS
    ]
    type_ = _bounds_type(schema)
    trees = [content["bounds"] for content in contents]
    if type_ is not None and None not in trees:
        columns.append(_typed(trees, _polars_type(type_)).alias("bounds"))
    frame = pl.DataFrame(columns)
    if any(frame[name].null_count() for name in _COUNTS):
        raise ValueError("a count is missing")
    return frame


def _plain(bounds: pa.Array) -> Any:
    """A column as JSON has it: a list, or for a struct an object of its fields."""
    if pa.types.is_struct(bounds.type):
        names = [field.name for field in bounds.type]
        return dict(zip(names, map(_plain, bounds.flatten()), strict=True))
    return bounds.cast(_json_type(bounds.type)).to_pylist()


def _typed(trees: Sequence[Any], dtype: pl.DataType | pl.datatypes.DataTypeClass) -> pl.Series:
    """The inverse of `_plain`, of several records."""
    if isinstance(dtype, pl.Struct):
        schema = dtype.to_schema()
        children = [
            _typed([tree[name] for tree in trees], type_).alias(name)
            for name, type_ in schema.items()
        ]
        return pl.DataFrame(children).to_struct()
    values = [value for tree in trees for value in tree]
    if isinstance(dtype, pl.Decimal):
        return pl.Series(values, dtype=pl.String, strict=True).cast(dtype)
    if isinstance(dtype, pl.Date | pl.Datetime):
        return pl.Series(values, dtype=pl.Int64, strict=True).cast(dtype)
    return pl.Series(values, dtype=dtype, strict=True)


def _polars_type(type_: pa.DataType) -> pl.DataType:
    series = pl.from_arrow(pa.nulls(0, type_))
    assert isinstance(series, pl.Series)
    return series.dtype


def _json_type(type_: pa.DataType) -> pa.DataType:
    """A type of JSON from which a value comes back exactly."""
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    return pa.string() if pa.types.is_decimal(type_) else type_


def _bounds_type(schema: pa.Schema) -> pa.StructType | None:
    """Type of the bounds of a file's live files; None where it has no typed columns."""
    if schema.get_field_index("add") < 0:
        return None
    add = schema.field("add").type
    fields = {name: list(_fields(add, STRUCT_STATISTICS, name)) for name in _BOUNDS}
    counts = list(_fields(add, STRUCT_STATISTICS, _NULL_COUNT))
    for field in _partitions(add):
        for found in fields.values():
            found.append(field)
        counts.append(pa.field(field.name, pa.int64()))
    if not counts:
        return None
    structs = [pa.field(name, pa.struct(found)) for name, found in fields.items() if found]
    records = pa.field(_RECORDS, pa.int64())
    return pa.struct([records, *structs, pa.field(_NULL_COUNT, pa.struct(counts))])


def _fields(type_: pa.DataType, *names: str) -> Iterator[pa.Field]:
    """The fields of a struct inside a struct; empty where it is missing."""
    for name in names:
        index = type_.get_field_index(name) if pa.types.is_struct(type_) else -1
        if index < 0:
            return
        type_ = type_.field(index).type
    if pa.types.is_struct(type_):
        yield from type_


def _partitions(add: pa.StructType) -> Iterator[pa.Field]:
    """Partition columns with bounds; not floats, whose texts change value with the type."""
    for field in _fields(add, PARTITIONS_PARSED):
        if not (pa.types.is_floating(field.type) or pa.types.is_binary(field.type)):
            yield field


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
                found = _partition_bound(path[0], leaf(PARTITIONS_PARSED, field.name))
            elif pa.types.is_struct(field.type):
                children.append(below(field.type, *path, field.name))
                continue
            elif path[0] == _NULL_COUNT:
                found = _null_count(leaf(STRUCT_STATISTICS, *path, field.name), records)
            else:
                found = _bound(path[0], leaf(STRUCT_STATISTICS, *path, field.name))
            known = pa.nulls(1, field.type) if found is None else pa.repeat(found, 1)
            children.append(known.cast(field.type))
        return pa.StructArray.from_arrays(children, fields=list(type_))

    records = leaf(STRUCT_STATISTICS, _RECORDS) if _has_records(live.type) else None
    children = [
        pa.repeat(_ONE, 1) if field.name == _RECORDS else below(field.type, field.name)
        for field in type_
    ]
    return pa.StructArray.from_arrays(children, fields=list(type_))


def _field(values: pa.Array, path: Sequence[str]) -> pa.Array:
    """A field inside a struct; null where one of the structs is."""
    for number, name in enumerate(path):
        if values.null_count:
            return pc.struct_field(values, list(path[number:]))
        values = values.field(name)
    return values


def _has_records(add: pa.StructType) -> bool:
    return any(field.name == _RECORDS for field in _fields(add, STRUCT_STATISTICS))


def _partition_bound(name: str, values: pa.ChunkedArray) -> pa.Scalar | None:
    if values.null_count:
        # A null may also stand for a text that its type does not admit, whose file always matches.
        return None
    if name == _NULL_COUNT:
        return _ZERO
    return _bound(name, values, _MOST_TEXT_BYTES)


def _bound(
    name: str, values: pa.ChunkedArray, most_bytes: int = _CUT_BYTES - 1
) -> pa.Scalar | None:
    """A value that is not above, or not below, any of them; None where one is unknown."""
    is_float = pa.types.is_floating(values.type)
    if values.null_count or (is_float and pc.any(pc.is_nan(values)).as_py()):
        return None
    bounds = pc.min_max(values)
    if not pa.types.is_string(values.type):
        return bounds["min" if name == "minValues" else "max"]
    if name == "minValues":
        return pc.utf8_slice_codeunits(bounds["min"], 0, _CUT_BYTES)  # not above the whole text
    longest = pc.max(pc.binary_length(values)).as_py()
    return bounds["max"] if longest <= most_bytes else None


def _null_count(counts: pa.ChunkedArray, records: pa.ChunkedArray | None) -> pa.Scalar | None:
    """0 where no row of any file is null, 1 where every row of every file is."""
    if not counts.null_count:
        extremes = pc.min_max(counts).as_py()
        if extremes == {"min": 0, "max": 0}:
            return _ZERO
        if records is not None and pc.all(pc.equal(counts, records), skip_nulls=False).as_py():
            return _ONE
    return None
