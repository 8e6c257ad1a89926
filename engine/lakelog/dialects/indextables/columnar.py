"""Columnar commits: one Parquet file in the flattened schema, with the name of the commit.

Rows are the actions in order, the commitInfo first with its body in ``extra``. Eight bytes before
the footer are a checksum of all others: Parquet has none for footer and page headers, whose damage
could remove actions.

Source: ``schemas/log.md``, Columnar commits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import groupby
from typing import NamedTuple

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.exact_json import exact_object
from lakelog.dialects.json_layout import ALIASES, FILE_WRAPPERS, META_WRAPPERS, Wire
from lakelog.dialects.log_content import Actions, CommitInfo
from lakelog.dialects.parquet_files import MAGIC, leaf_paths
from lakelog.dialects.parquet_footers import Bound
from lakelog.dialects.row_validation import (
    ACTION_TYPE,
    EXTRA,
    check_extra,
    columns_of,
    exact_casts,
    without_nulls,
)
from lakelog.dialects.strict_decoder import Blob
from lakelog.errors import InvalidActionError, LakelogError, MalformedLogError
from lakelog.model import actions, contract

_CHECK = b"LKC1"
_CHECKSUM = struct.Struct("<4sI")
_FOOTER_LENGTH = struct.Struct("<I4s")
_GROUP_ROWS = 1 << 16
_INFO = "commitInfo"
_META = META_WRAPPERS | {_INFO}
# Values that differ from file to file, for which a dictionary is useless.
_PLAIN = frozenset({"path", "stats", "size", "modificationTime", "minValues", "maxValues"})


def is_columnar(data: bytes | memoryview) -> bool:
    """Whether a commit is Parquet; JSON text and gzip streams never begin so."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def encode_columnar(info: bytes, meta: pl.DataFrame, files: pl.DataFrame) -> bytes:
    """One commit as Parquet; in memory are the file, and 64 Ki rows in Arrow."""
    for rows in (meta, files):
        check_extra(rows, "indextables")
    head = []
    if info:
        head = [pl.DataFrame({ACTION_TYPE: [_INFO], EXTRA: [info.decode()]})]
    first = actions.concat([*head, meta])
    there = {*first.columns, *files.columns}
    columns = [name for name in actions.schema() if name in there]
    schema = pa.schema([arrow_field(name) for name in columns])
    sink = BytesIO()
    # Without Arrow's own schema, every reader sees the same plain Parquet types.
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=dictionary_columns(schema),
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        # In separate row groups, so that a reader of one need not read the other.
        for rows in (first, files):
            for part in rows.iter_slices(_GROUP_ROWS) if rows.height else ():
                table = actions.conform(part, columns).to_arrow().cast(schema)
                writer.write_table(table, row_group_size=_GROUP_ROWS)
    return _sealed(sink.getvalue())


def arrow_field(name: str) -> pa.Field:
    """The Arrow field of a flattened column."""
    known = contract.load("actions").field(name)
    assert known is not None, name
    return pa.field(name, contract.to_arrow(known.type), known.nullable)


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Leaf columns with repeated values, by Parquet's names."""
    return [
        leaf
        for field in schema
        for leaf in leaf_paths(field.name, field.type)
        if field.name not in _PLAIN or leaf.endswith(".key")
    ]


def _sealed(data: bytes) -> bytes:
    """Insert the checksum between the last page and the footer, where Parquet allows any bytes."""
    at = _footer_start(data)
    assert at is not None, "Parquet was just written"
    body, footer = data[:at], data[at:]
    checksum = zlib.crc32(footer, zlib.crc32(body))
    return b"".join([body, _CHECKSUM.pack(_CHECK, checksum), footer])


def _footer_start(data: bytes) -> int | None:
    if len(data) < len(MAGIC) + _FOOTER_LENGTH.size:
        return None
    length, magic = _FOOTER_LENGTH.unpack(data[-_FOOTER_LENGTH.size :])
    at = len(data) - _FOOTER_LENGTH.size - length
    return at if magic == MAGIC and at >= len(MAGIC) else None


def _require_whole(blob: Blob, data: bytes) -> None:
    at = _footer_start(data)
    start = None if at is None else at - _CHECKSUM.size
    if at is None or start is None or start < len(MAGIC):
        raise _damaged(blob, "the columnar commit has no footer", "a Parquet footer")
    check, expected = _CHECKSUM.unpack(data[start:at])
    if check != _CHECK:
        raise _damaged(blob, "the columnar commit has no checksum", _CHECK.decode())
    view = memoryview(data)
    found = zlib.crc32(view[at:], zlib.crc32(view[:start]))
    if found != expected:
        raise _damaged(
            blob,
            "the columnar commit does not match its checksum",
            f"{expected:08x}",
            f"{found:08x}",
        )


def decode_columnar(blob: Blob, *, files: bool = True) -> Actions:
    """Decode one columnar commit."""
    data = bytes(blob.data)
    _require_whole(blob, data)
    try:
        return _decode(blob, data, files)
    except LakelogError:
        raise
    except (
        pa.ArrowException,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # Polars' reader may panic on Parquet that no writer produces
        OSError,
        ValueError,
        MemoryError,
    ) as cause:
        error = _damaged(blob, "the columnar commit cannot be read", "Parquet", str(cause)[:200])
        raise error from cause


def _decode(blob: Blob, data: bytes, files: bool) -> Actions:
    metadata = pq.read_metadata(pa.BufferReader(data))
    names = metadata.schema.to_arrow_schema().names
    if not metadata.num_rows or ACTION_TYPE not in names:
        raise _damaged(blob, "the columnar commit contains no action", "at least one action")
    bound = Bound(metadata, len(data))
    types = _read(data, [ACTION_TYPE], 0, metadata.num_rows)[ACTION_TYPE].cast(pl.String)
    types = types.replace(ALIASES)
    if bound.is_suspicious and "path" in names:
        paths = _read(data, ["path"], 0, metadata.num_rows)
        bound.check_paths(paths.filter(types.is_in(["add", "remove"])))
    if types.null_count():
        raise _invalid(blob, "a row has no action type", ACTION_TYPE, None)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    found: dict[str, list[pl.DataFrame]] = {"files": [], "meta": [], "other": []}
    infos: list[CommitInfo] = []
    for read in _reads(types, sizes, names, files):
        kinds = read.kinds
        rows = _typed(_read(data, list(read.columns), read.start, read.length), blob, read.start)
        groups = {"meta": kinds & META_WRAPPERS}
        if files:
            groups |= {"files": kinds & FILE_WRAPPERS, "other": kinds - FILE_WRAPPERS - _META}
        for group, own_kinds in groups.items():
            if own_kinds:
                own = without_nulls(_of(rows, own_kinds, kinds))
                if lacking := lacking_field(own, own_kinds):
                    kind, column = lacking
                    raise _invalid(blob, f"{kind} lacks a required field", column, None)
                found[group].append(own)
        if _INFO in kinds:
            infos.extend(_infos(_of(rows, frozenset({_INFO}), kinds), blob))
    frames = {group: actions.concat(own) for group, own in found.items()}
    return Actions(**frames, commit_infos=tuple(infos))


class _Read(NamedTuple):
    """Consecutive row groups that are read in the same way."""

    columns: tuple[str, ...]
    kinds: frozenset[str]
    start: int
    length: int


def _reads(
    types: pl.Series, sizes: Sequence[int], names: Sequence[str], files: bool
) -> Iterator[_Read]:
    """The row groups to read, each with only the columns of its action types."""
    schema = actions.schema()
    unknown = {name for name in names if name not in schema}
    groups: list[tuple[frozenset[str], int]] = []
    start = 0
    for size in sizes:
        groups.append((frozenset(types.slice(start, size).unique()), size))
        start += size
    start = 0
    for kinds, run in groupby(groups, key=lambda group: group[0]):
        length = sum(size for _, size in run)
        if files or kinds & _META:
            filled = frozenset({EXTRA, ACTION_TYPE}).union(
                unknown, *(columns_of(kind, "indextables") for kind in kinds)
            )
            yield _Read(tuple(name for name in names if name in filled), kinds, start, length)
        start += length


def _read(data: bytes, columns: list[str], start: int, length: int) -> pl.DataFrame:
    # Polars reads into its own layout; Arrow's texts would be copied again.
    return (
        pl.scan_parquet(BytesIO(data), parallel="columns")
        .select(columns)
        .slice(start, length)
        .collect()
    )


def _typed(frame: pl.DataFrame, blob: Blob, start: int) -> pl.DataFrame:
    """Rows with the contract's dtypes, unknown columns in ``extra``, and the order."""
    try:
        rows = frame.with_columns(exact_casts(frame))
    except pl.exceptions.PolarsError as cause:
        found = str(cause).splitlines()[0][:200]
        raise _invalid(
            blob, "a column has the wrong type", "the type in schemas/actions.json", found
        ) from cause
    rows = with_unknown(rows).with_columns(pl.col(ACTION_TYPE).replace(ALIASES))
    if blob.version is None:
        return rows
    return rows.with_columns(
        pl.lit(blob.version, dtype=pl.Int64).alias("version"),
        pl.int_range(start, start + rows.height, dtype=pl.Int32).alias("position"),
    )


def with_unknown(rows: pl.DataFrame) -> pl.DataFrame:
    """Store columns of a later contract with the unknown fields; they are few."""
    schema = actions.schema()
    names = [name for name in rows.columns if name not in schema]
    there = [name for name in names if rows[name].null_count() < rows.height]
    if there:
        bodies = rows.select(pl.struct(there).struct.json_encode()).to_series()
        texts = rows[EXTRA] if EXTRA in rows.columns else [None] * rows.height
        extras = []
        for text, body in zip(texts, bodies, strict=True):
            more = {name: v for name, v in orjson.loads(body).items() if v is not None}
            merged = {**(exact_object(text) if text else {}), **more}
            extras.append(orjson.dumps(merged).decode() if merged else None)
        rows = rows.with_columns(pl.Series(EXTRA, extras, dtype=pl.String))
    return rows.drop(names)


def _of(rows: pl.DataFrame, own_kinds: frozenset[str], kinds: frozenset[str]) -> pl.DataFrame:
    return rows if own_kinds == kinds else rows.filter(pl.col(ACTION_TYPE).is_in([*own_kinds]))


def _infos(rows: pl.DataFrame, blob: Blob) -> Iterator[CommitInfo]:
    texts = rows[EXTRA].to_list() if EXTRA in rows.columns else [None] * rows.height
    positions = rows["position"].to_list() if "position" in rows.columns else range(rows.height)
    for text, position in zip(texts, positions, strict=True):
        body = orjson.loads(text) if text else None
        if not isinstance(body, dict):
            raise _invalid(blob, "a commitInfo has no body", "a JSON object in extra", text)
        yield CommitInfo(blob.version, position, body)


def lacking_field(
    frame: pl.DataFrame, kinds: Iterable[str], columns: Iterable[str] | None = None
) -> tuple[str, str] | None:
    """Action type and column of a required field that a row lacks; of `columns` only, if given."""
    for kind in kinds:
        for column in Wire.of("indextables").required.get(kind, ()):
            if columns is not None and column not in columns:
                continue
            if column in frame.columns and not frame[column].null_count():
                continue
            of_kind = pl.col(ACTION_TYPE) == kind
            lacking = of_kind & pl.col(column).is_null() if column in frame.columns else of_kind
            if frame.select(lacking.any()).item():
                return kind, column
    return None


def _damaged(blob: Blob, message: str, expected: object, found: object = None) -> MalformedLogError:
    return MalformedLogError(
        message,
        path=blob.path,
        version=blob.version,
        expected=expected,
        found=f"{len(blob.data)} bytes" if found is None else found,
        hint="restore the file from a copy; reading stopped here",
    )


def _invalid(blob: Blob, message: str, expected: object, found: object) -> InvalidActionError:
    return InvalidActionError(
        message, path=blob.path, version=blob.version, expected=expected, found=found
    )
