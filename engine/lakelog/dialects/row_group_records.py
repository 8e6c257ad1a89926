"""Records of the row groups of a checkpoint's file: numbers of actions, and bounds of live files.

Parquet's own statistics are in the footer, which has no checksum: one flipped bit would hide files.
lakelog therefore writes the bounds that it skips by as a record with a checksum in the footer's
metadata. The record also has the name of the file and the length of its data: it is invalid in a
file that was copied over another, or that another program wrote with the same rows. It has a
checksum of the columns' names too, because a column with another name would read as nulls.

The bounds of a row group are one value of ``stats_parsed`` (Delta protocol, Per-file Statistics)
for all of its live files, including partition columns: ``numRecords`` is 1, and a ``nullCount`` is
0 if no row of any file is null, 1 if every row of every file is, else null. A bound is null if it
is unknown for one of the files. The dialects compute them from typed statistics
(`lakelog.dialects.delta.typed_bounds`) or maps of texts
(`lakelog.dialects.indextables.text_bounds`).

Delta's records also have the (truncated) least and greatest decoded path of the live files, and the
sums of their sizes and rows.

Source: Delta protocol, Checkpoint Schema.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.dialects.log_content import RowGroups
from lakelog.dialects.parquet_footers import data_end
from lakelog.errors import MalformedLogError

RECORD_KEY = "lakelog.rowGroups"
"""Key of the record in the metadata of a footer, and in the tags of a V2 manifest's sidecar."""

RECORDS = "numRecords"
BOUNDS = ("minValues", "maxValues")
NULL_COUNT = "nullCount"
TIGHT_BOUNDS = "tightBounds"
ZERO, ONE = pl.Series([0, 1]).to_arrow()  # `pyarrow.scalar` would import pandas

PATHS = ("firstPath", "lastPath")
SUMS = ("sizeInBytes", "numRows")

_COUNTS = ("rows", "adds", "removes")
_NAMES = "namesCrc32"
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""Errors of reading a record of another form."""
_MOST_TEXT_BYTES = 256
_CUT_BYTES = 32
"""Length in bytes from which a greatest text may be a prefix, so that the greatest value is
unknown.
"""

BoundsType = Callable[[Mapping[str, Any]], pa.StructType | None]
"""Returns the type of the bounds from the content of a record; None if there are none."""


def encode_record(
    name: str,
    end: int,
    schema: pa.Schema,
    counts: Sequence[tuple[int, int, int]],
    bounds: pa.StructArray | None,
    **more: Any,
) -> str:
    """The value of `RECORD_KEY`, with rows, live files and tombstones per row group."""
    rows, adds, removes = zip(*counts, strict=True) if counts else ((), (), ())
    content = {
        "file": name,
        "dataEnd": end,
        _NAMES: _names_checksum(schema),
        "rows": rows,
        "adds": adds,
        "removes": removes,
        **more,
        "bounds": None if bounds is None else _plain(bounds),
    }
    text = orjson.dumps(content)
    return f"{zlib.crc32(text):08x}{text.decode()}"


def read_record(file: pq.ParquetFile, path: str, bounds_type: BoundsType) -> pl.DataFrame | None:
    """Row groups as in `RowGroups.frame`, ``bounds`` if known; None without a valid record.
    ValueError if a column of the file was renamed, which only a damaged footer explains.
    """
    record = (file.metadata.metadata or {}).get(RECORD_KEY.encode())
    content = None if record is None else _content(record, path)
    if content is None:
        return None
    try:
        frame = _frame([content], bounds_type(content))
        matches = content["dataEnd"] == data_end(file.metadata)
    except _MALFORMED:
        return None
    if matches and content.get(_NAMES, names := _names_checksum(file.schema_arrow)) != names:
        raise ValueError("the names of the columns in the footer are damaged")
    rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return frame if matches and frame["rows"].to_list() == rows else None


def parse_records(
    records: Mapping[str, str], bounds_type: BoundsType
) -> dict[str, pl.DataFrame] | None:
    """As `read_record`, for several files; None if a record is invalid or has no bounds."""
    contents = [_content(record.encode(), path) for path, record in records.items()]
    known = [content for content in contents if content is not None]
    if len(known) < len(contents) or not known:
        return None
    try:
        frame = _frame(known, bounds_type(known[0]))
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


def is_replaced(file: pq.ParquetFile, path: str, recorded: str | None) -> bool:
    """Whether a file is not the one of `recorded`; a damaged record proves nothing."""
    if recorded is None or _content(recorded.encode(), path) is None:
        return False
    own = (file.metadata.metadata or {}).get(RECORD_KEY.encode())
    return own != recorded.encode() and (own is None or _is_undamaged(own))


def groups_of(record: pl.DataFrame, kinds: Sequence[str]) -> list[int]:
    """Numbers of the row groups with file actions of some types."""
    wanted = pl.any_horizontal(pl.col(f"{kind}s") > 0 for kind in kinds)
    return record.select(wanted.alias("wanted"))["wanted"].arg_true().to_list()


def groups_of_others(record: pl.DataFrame) -> list[int]:
    """Numbers of the row groups with other actions."""
    return (record["rows"] > record["adds"] + record["removes"]).arg_true().to_list()


def require_row_groups(recorded: RowGroups, file: pq.ParquetFile, version: int) -> None:
    """Raise for a file of a checkpoint whose row groups differ from the recorded ones."""
    rows = recorded.frame["rows"].to_list()
    found = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    if rows != found:
        expected = f"{len(rows)} row groups"
        raise _replaced(recorded.path, version, expected, f"{len(found)} row groups")


def require_held(
    recorded: RowGroups, groups: Sequence[int], kind: str, held: int, version: int
) -> None:
    """Raise if the number of actions of a type in row groups differs from the record."""
    expected = int(recorded.frame[f"{kind}s"].gather(list(groups)).sum())
    if held != expected:
        raise _replaced(recorded.path, version, f"{expected} {kind} actions", f"{held}")


def _replaced(path: str, version: int, expected: str, found: str) -> MalformedLogError:
    return MalformedLogError(
        "a file of the checkpoint was replaced while it was read, or is damaged",
        path=path,
        version=version,
        expected=expected,
        found=found,
        hint="restore it, or remove the checkpoint's files if its commits exist",
    )


def _content(record: bytes, path: str) -> dict[str, Any] | None:
    """The content of an undamaged record, if it belongs to this file."""
    if not _is_undamaged(record):
        return None
    try:
        content = orjson.loads(record[8:])
    except ValueError:
        return None
    is_own = isinstance(content, dict) and content.get("file") == path.rsplit("/", 1)[-1]
    return content if is_own else None


def _names_checksum(schema: pa.Schema) -> int:
    """CRC-32 of the names of all columns, nested ones included."""
    return zlib.crc32(orjson.dumps(_names(schema)))


def _names(fields: Iterable[pa.Field]) -> list[Any]:
    return [
        [field.name, _names(field.type)] if pa.types.is_struct(field.type) else field.name
        for field in fields
    ]


def _is_undamaged(record: bytes) -> bool:
    return record[:8] == b"%08x" % zlib.crc32(record[8:])


def _frame(contents: Sequence[dict[str, Any]], type_: pa.StructType | None) -> pl.DataFrame:
    """Concatenated records of files with one schema; raises one of `_MALFORMED`."""
    columns = [
        pl.Series(name, [count for content in contents for count in content[name]], dtype=pl.Int64)
        for name in _COUNTS
    ]
    for names, dtype in ((PATHS, pl.String()), (SUMS, pl.Int64())):
        for name in names if all(names[0] in content for content in contents) else ():
            values = [value for content in contents for value in content[name]]
            columns.append(pl.Series(name, values, dtype=dtype))
    trees = [content["bounds"] for content in contents]
    if type_ is not None and None not in trees:
        columns.append(_typed(trees, _polars_type(type_)).alias("bounds"))
    frame = pl.DataFrame(columns)
    if any(frame[name].null_count() for name in _COUNTS):
        raise ValueError("a count is missing")
    return frame


def _plain(bounds: pa.Array) -> Any:
    """A column as JSON: a list, or for a struct an object of its fields."""
    if pa.types.is_struct(bounds.type):
        names = [field.name for field in bounds.type]
        return dict(zip(names, map(_plain, bounds.flatten()), strict=True))
    return bounds.cast(_json_type(bounds.type)).to_pylist()


def _typed(trees: Sequence[Any], dtype: pl.DataType | pl.datatypes.DataTypeClass) -> pl.Series:
    """The inverse of `_plain`, for several records."""
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
    """A JSON type from which a value can be restored exactly."""
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    return pa.string() if pa.types.is_decimal(type_) else type_


def bound_of(
    name: str, values: pa.ChunkedArray, most_bytes: int = _CUT_BYTES - 1
) -> pa.Scalar | None:
    """A bound, or None; a greatest text of more than `most_bytes` may be a prefix."""
    is_float = pa.types.is_floating(values.type)
    if values.null_count or (is_float and pc.any(pc.is_nan(values)).as_py()):
        return None
    bounds = pc.min_max(values)
    if not pa.types.is_string(values.type):
        return bounds["min" if name == "minValues" else "max"]
    if name == "minValues":
        # A prefix is not greater than the whole text.
        return pc.utf8_slice_codeunits(bounds["min"], 0, _CUT_BYTES)
    longest = pc.max(pc.binary_length(values)).as_py()
    return bounds["max"] if longest <= most_bytes else None


def partition_bound(name: str, values: pa.ChunkedArray) -> pa.Scalar | None:
    """The same for partition values, which are never truncated."""
    if values.null_count:
        # A null may also represent an invalid text, whose file always matches.
        return None
    return ZERO if name == NULL_COUNT else bound_of(name, values, _MOST_TEXT_BYTES)


def has_partition_bounds(type_: pa.DataType) -> bool:
    """Whether partition values have bounds; not floats, whose texts change value with the type."""
    return not (pa.types.is_floating(type_) or pa.types.is_binary(type_))
