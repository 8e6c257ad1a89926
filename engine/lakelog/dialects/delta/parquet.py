"""Decodes checkpoint Parquet to flattened frames: footers, columns, parallel ranges, rows.

A Parquet file may contain the Arrow schema of its writer, and columns then have that writer's
layouts: views, or dictionaries. The values are the same, but several of Arrow's kernels reject
these layouts, above all inside structs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from decimal import Decimal
from itertools import repeat
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.dialects.delta.partition_dictionaries import distinct_partitions
from lakelog.dialects.delta.paths import decode_paths, other_texts
from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.dialects.legacy_calendar import Calendar
from lakelog.dialects.log_content import STRUCT_STATISTICS, FileCondition
from lakelog.dialects.parquet_footers import (
    Bound,
    child_type,
    chunk_range,
    chunk_ranges,
    data_end,
    require_valid_chunks,
)
from lakelog.dialects.row_group_records import groups_of, groups_of_others
from lakelog.errors import InvalidActionError
from lakelog.model import actions, contract
from lakelog.model.actions import DV_ID_COLUMNS, PATH_TEXT, with_dv_id
from lakelog.threads import Pool, at_once


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without views and dictionaries, at any depth."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = type_.key_field, type_.item_field
        return pa.map_(key.with_type(plain_type(key.type)), item.with_type(plain_type(item.type)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) else type_


_BATCH_ROWS = 1 << 16
_LEAST_BATCH_ROWS = 1 << 10
_FEW_PROMISED = 4_096  # rows that are decoded before another thread has started
ONE_EACH = ("protocol", "metaData")
"""Action types of which a state has one action."""
_FEW_ROWS = 1 << 12  # protocol and metaData are usually first, and reading stops there
_MANY_ROWS = 1 << 17
META_READERS = min(4, os.cpu_count() or 1)
"""Number of threads that share the leaves of the few non-file actions."""
FILE_READERS = min(2, os.cpu_count() or 1)
"""Number of threads that share the leaves of the file actions."""
_NO_ROWS = pl.Series(dtype=pl.Boolean)
_WIRE = Wire.of("delta")
RECONCILED = "lakelog.reconciled"
"""Key in the metadata of a checkpoint of one file; see `DeltaCheckpointReader.is_reconciled`."""
_DERIVED = (("add", STRUCT_STATISTICS), ("add", "partitionValues_parsed"))
"""Typed copies of other fields, which contain no other data."""


def reconciled_mark(version: int, rows: int, data_end: int) -> str:
    """The mark of a reconciled file; the data's length makes metadata that were copied invalid."""
    return f"{version} {rows} {data_end}"


def is_marked_reconciled(file: pq.ParquetFile, version: int) -> bool:
    """Whether a file has a valid mark."""
    mark = (file.metadata.metadata or {}).get(RECONCILED.encode())
    if mark is None or not file.num_row_groups:
        return False
    expected = reconciled_mark(version, file.metadata.num_rows, data_end(file.metadata))
    return bool(mark == expected.encode())


def _leaf_columns(schema: pa.Schema, columns: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Parquet leaves of `columns` for the action types in `kinds`."""
    wanted = {"path", *columns}
    if any(column.startswith("dv") for column in wanted):
        wanted |= set(DV_ID_COLUMNS)  # a deletion vector is always validated as a whole
    leaves: list[str] = []
    for kind in kinds:
        for position, leaf in _WIRE.wrappers[kind].leaves((kind,)):
            if leaf.column in wanted and child_type(schema, *position) is not None:
                leaves.append(".".join(position))
        type_ = child_type(schema, kind)
        if "extra" in wanted and type_ is not None and pa.types.is_struct(type_):
            unknown = _unknown_fields(type_, _WIRE.wrappers[kind], (kind,))
            leaves.extend(".".join(position) for position in unknown)
        parsed = kind == "add" and STRUCT_STATISTICS in wanted
        if parsed and child_type(schema, kind, STRUCT_STATISTICS) is not None:
            leaves.append(f"{kind}.{STRUCT_STATISTICS}")
    return leaves


@dataclass(frozen=True)
class Part:
    """Columns of one action type in a batch, without all-null ones; `valid` None: all rows."""

    rows: int
    valid: pa.BooleanArray | None
    height: int
    series: dict[str, pl.Series]
    extra: dict[int, dict[str, Any]]

    def keep(self, mask: pa.BooleanArray) -> Part:
        """The rows of its type that `mask` selects (see `_of_rows`); without `extra`."""
        if not _same(self.valid, mask.is_valid() if mask.null_count else None):
            raise pa.ArrowInvalid("the columns have different rows of one type")
        own = pl.Series(mask.drop_null())
        series = {name: values.filter(own) for name, values in self.series.items()}
        return Part(self.rows, self.valid, mask.true_count, series, {})


def _of_rows(mask: pl.Series, valid: pa.BooleanArray | None) -> pa.BooleanArray:
    """A mask of rows of one type, which are `valid`, as a mask of all rows: null for the others."""
    chosen = mask.to_arrow()
    if valid is None:
        return chosen
    return pc.replace_with_mask(pa.nulls(len(valid), pa.bool_()), valid, chosen)


def readers_of(rows: int) -> int:
    """Number of threads that share the leaves of this number of file actions."""
    return FILE_READERS if rows > _MANY_ROWS else 1


def _shares_of(file: pq.ParquetFile, leaves: Sequence[str], count: int) -> list[list[str]]:
    """Leaves in at most `count` shares of about equal weight; those of a field stay together."""
    if not leaves:
        return []
    if count < 2:
        return [list(leaves)]
    group = file.metadata.row_group(0)
    chunks = (group.column(i) for i in range(group.num_columns))
    weights = {c.path_in_schema: c.total_uncompressed_size for c in chunks}
    fields: dict[str, list[str]] = {}
    for leaf in leaves:
        fields.setdefault(_field_of(leaf), []).append(leaf)
    weighed = [
        (sum(w for path, w in weights.items() if f"{path}.".startswith(f"{field}.")), own)
        for field, own in fields.items()
    ]
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for weight, own in sorted(weighed, key=lambda pair: -pair[0]):
        lightest = loads.index(min(loads))
        loads[lightest] += weight
        shares[lightest] += own
    return [share for share in shares if share]


def _batch_rows(file: pq.ParquetFile, leaves: Sequence[str], batch_bytes: int | None) -> int:
    """Rows of a batch of about `batch_bytes`, by the footer's fullest row group."""
    if batch_bytes is None:
        return _BATCH_ROWS
    fields = tuple(f"{leaf}." for leaf in leaves)
    widest = 0.0
    for group in map(file.metadata.row_group, range(file.num_row_groups)):
        chunks = (group.column(i) for i in range(group.num_columns))
        size = sum(
            c.total_uncompressed_size for c in chunks if f"{c.path_in_schema}.".startswith(fields)
        )
        widest = max(widest, size / max(1, group.num_rows))
    # A repeated text is stored once in the file, but decoded as often as it occurs.
    width = max(widest * 1.5, 8.0 * len(leaves), 1.0)
    return max(_LEAST_BATCH_ROWS, min(_BATCH_ROWS, int(batch_bytes / width)))


def groups_with(
    file: pq.ParquetFile, kinds: Sequence[str], record: pl.DataFrame | None = None
) -> list[int]:
    """Row groups that may contain these file actions. Without lakelog's record, one is omitted only
    if the statistics of every leaf are null, so that one wrong statistic hides no row.
    """
    if record is not None:
        return groups_of(record, kinds)
    leaves = [i for i, c in enumerate(_columns(file)) if c.path.split(".", 1)[0] in kinds]
    groups = range(file.num_row_groups if leaves else 0)
    if len(groups) < 2:
        return list(groups)
    require_valid_chunks(file.metadata, groups, leaves)
    found = []
    for group in groups:
        chunks = file.metadata.row_group(group)
        if not all(_holds_nulls_only(chunks.column(leaf)) for leaf in leaves):
            found.append(group)
    return found


@dataclass(frozen=True)
class FileActionReader:
    """Reads the file actions of one file. `files` is the file opened once per share of leaves,
    which are read in parallel with a `pool`; `dictionaries` again, with dictionaries of partition
    values.
    """

    files: Sequence[pq.ParquetFile]
    dictionaries: Sequence[pq.ParquetFile | None]
    path: str
    bound: Bound
    pool: Pool | None
    batch_bytes: int | None
    prefetch: Callable[[Iterable[tuple[int, int]]], None] | None = None

    def read(
        self, columns: Sequence[str], kinds: Sequence[str], groups: Sequence[int]
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        """File actions in batches, each with its type, of some row groups."""
        leaves = _leaf_columns(self.files[0].schema_arrow, columns, kinds)
        self._prefetch(leaves, groups)
        for parts in self._parts(leaves, groups, self._rows(leaves), PATH_TEXT in columns):
            for kind in kinds:
                frame = self._assemble([p[kind] for p in parts if kind in p], kind, columns)
                if frame.height:
                    yield kind, frame

    def read_matching(
        self,
        columns: Sequence[str],
        condition: FileCondition,
        groups: Sequence[int],
        seen: Callable[[pl.DataFrame], None],
    ) -> Iterator[pl.DataFrame]:
        """Live files that may match, one row group ahead; `seen` receives the paths of all."""
        count = max(1, min(len(self.files), len(groups)))
        readers = [
            self._matches(file, dictionaries, groups[turn::count], columns, condition, seen)
            for turn, (file, dictionaries) in enumerate(
                zip(self.files[:count], self.dictionaries[:count], strict=True)
            )
        ]
        schema = self.files[0].schema_arrow
        asked = [c for c in columns if c in (*actions.KEY, PATH_TEXT, *condition.columns)]
        self._prefetch(_leaf_columns(schema, asked, ("add",)), groups)
        submit = self.pool.submit if count > 1 and self.pool is not None else at_once
        ahead = deque(submit(next, reader, None) for reader in readers)
        try:
            for turn in range(len(groups)):
                frames = ahead.popleft().result()
                ahead.append(submit(next, readers[turn % count], None))
                yield from frames or ()
        finally:
            wait(ahead)  # a file must not be closed while it is read

    def _matches(
        self,
        file: pq.ParquetFile,
        dictionaries: pq.ParquetFile | None,
        groups: Sequence[int],
        columns: Sequence[str],
        condition: FileCondition,
        seen: Callable[[pl.DataFrame], None],
    ) -> Iterator[list[pl.DataFrame]]:
        """Live files of each row group that may match."""
        keys = [column for column in columns if column in (*actions.KEY, PATH_TEXT)]
        schema = file.schema_arrow
        leaves = _leaf_columns(schema, columns, ("add",))
        rows = self._rows(leaves)
        texts = PATH_TEXT in columns
        asked = [*keys, *condition.columns]
        paths, known = (_leaf_columns(schema, wanted, ("add",)) for wanted in (keys, asked))
        for group in groups:
            filled = _filled(file, leaves, group)
            decided: tuple[pa.BooleanArray, pl.Series] | None = None
            if dictionaries is not None:
                decided = _match_distinct(dictionaries, group, condition, self.path)
            others = [leaf for leaf in filled if leaf not in known]
            first = known if decided is None else paths
            first = [leaf for leaf in first if leaf in filled or leaf == "add.path"]
            kept: list[Part] = []
            masks: list[pa.BooleanArray] = []
            matches = 0
            for found in _read_parts(file, first, self.path, [group], rows, texts=texts):
                part = found["add"]
                frame = self._assemble([part], "add", asked if decided is None else keys)
                seen(frame)
                if decided is None:
                    may_match = condition.may_match(frame) if frame.height else _NO_ROWS
                    mask = _of_rows(may_match, part.valid)
                    own = part.keep(mask)
                else:
                    start = sum(map(len, masks))
                    mask = decided[0][start : start + part.rows]
                    own = part.keep(mask)
                    own.series["partitionValues"] = decided[1][matches : matches + own.height]
                    matches += own.height
                masks.append(mask)
                kept.append(own)
            frames: list[pl.DataFrame] = []
            if any(mask.true_count for mask in masks):
                self._prefetch(others, [group])
                mask = pa.concat_arrays(masks)
                rest = _read_parts(file, others, self.path, [group], rows, texts=texts, mask=mask)
                for own, found in zip(kept, rest if others else repeat({}), strict=bool(others)):
                    frames.append(self._assemble([own, *found.values()], "add", columns))
            yield [frame for frame in frames if frame.height]

    def _assemble(self, parts: Sequence[Part], kind: str, columns: Sequence[str]) -> pl.DataFrame:
        frame = _assemble(parts, kind, columns, self.path)
        self.bound.check(frame)
        return frame

    def _prefetch(self, leaves: Sequence[str], groups: Sequence[int]) -> None:
        if self.prefetch is not None:
            self.prefetch(chunk_ranges(self.files[0].metadata, groups, leaves))

    def _rows(self, leaves: Sequence[str]) -> int:
        return _batch_rows(self.files[0], leaves, self.batch_bytes)

    def _parts(
        self,
        leaves: Sequence[str],
        groups: Sequence[int],
        rows: int,
        texts: bool,
    ) -> Iterator[list[dict[str, Part]]]:
        """For each batch, the parts of all shares; decoded one batch ahead."""
        file = self.files[0]
        readers = [
            _read_parts(own, share, self.path, groups, rows, texts=texts)
            for own, share in zip(
                self.files, _shares_of(file, leaves, len(self.files)), strict=False
            )
        ]
        is_large = sum(file.metadata.row_group(group).num_rows for group in groups) > _FEW_PROMISED
        submit = self.pool.submit if is_large and self.pool is not None else at_once
        ahead = [submit(next, reader, None) for reader in readers]
        try:
            while parts := [part for f in ahead if (part := f.result()) is not None]:
                if len(parts) < len(readers):
                    raise pa.ArrowInvalid("the columns have different numbers of rows")
                ahead = [submit(next, reader, None) for reader in readers]
                yield parts
        finally:
            wait(ahead)  # a file must not be closed while it is read


def _read_parts(
    file: pq.ParquetFile,
    leaves: Sequence[str],
    path: str,
    groups: Sequence[int],
    rows: int = _BATCH_ROWS,
    *,
    texts: bool = False,
    mask: pa.BooleanArray | None = None,
) -> Iterator[dict[str, Part]]:
    """For each batch, the columns of `leaves` by action type; `mask` selects rows of one type."""
    calendar = Calendar.of(file.metadata)
    start = 0
    for batch in checked_batches(file, leaves, groups, rows):
        own = None if mask is None else mask[start : start + len(batch)]
        start += len(batch)
        yield {
            kind: _part(batch.column(index), kind, path, texts, own, calendar)
            for index, kind in enumerate(batch.schema.names)
        }


def _match_distinct(
    file: pq.ParquetFile, group: int, condition: FileCondition, path: str
) -> tuple[pa.BooleanArray, pl.Series] | None:
    """Rows that may match a condition on ``partitionValues``, and their values; None if unknown."""
    found = distinct_partitions(file, group)
    if found is None:
        return None
    column = pa.StructArray.from_arrays([found.maps], ["partitionValues"])
    values = pl.DataFrame(_collect(column, _WIRE.wrappers["add"], path))
    may_match = condition.may_match(values).gather(found.positions)
    matching = found.positions.filter(may_match)
    return _of_rows(may_match, found.valid), values["partitionValues"].gather(matching)


def _part(
    column: pa.StructArray,
    kind: str,
    path: str,
    texts: bool,
    mask: pa.BooleanArray | None,
    calendar: Calendar,
) -> Part:
    rows = len(column)
    if column.null_count == rows:
        return Part(rows, column.is_valid(), 0, {}, {})
    valid: pa.BooleanArray | None = None
    if column.null_count:
        valid = column.is_valid()
        column = column.filter(valid if mask is None else mask)
    elif mask is not None:
        column = column.filter(mask)
    series = _collect(column, _WIRE.wrappers[kind], path)
    if "path" in series:
        written = series["path"]
        series["path"] = decode_paths(written)
        if texts and (others := other_texts(written, series["path"])) is not None:
            series[PATH_TEXT] = others
    if (index := column.type.get_field_index(STRUCT_STATISTICS)) >= 0:
        structs = _fitting(calendar.known_bounds(column.flatten()[index]))
        series[STRUCT_STATISTICS] = pl.Series(STRUCT_STATISTICS, structs)
    return Part(rows, valid, len(column), series, _extra_of(column, kind))


def _fitting(bounds: pa.Array) -> pa.Array:
    """Bounds, also in structs, with null for decimals that have more digits than their type, of
    which Polars panics.
    """
    type_ = bounds.type
    if pa.types.is_struct(type_):
        old = [bounds.field(at) for at in range(type_.num_fields)]
        new = [*map(_fitting, old)]
        if all(one is other for one, other in zip(old, new, strict=True)):
            return bounds
        return pa.StructArray.from_arrays(new, fields=list(type_), mask=bounds.is_null())
    if not pa.types.is_decimal(type_):
        return bounds
    most = pa.scalar(Decimal((0, (9,) * type_.precision, -type_.scale)), type_)
    excess = pc.greater(pc.abs(bounds), most)
    return pc.if_else(excess, None, bounds) if pc.any(excess).as_py() else bounds


def _assemble(parts: Sequence[Part], kind: str, columns: Sequence[str], path: str) -> pl.DataFrame:
    """The parts of one batch side by side, with their paths' required columns and ``dvId``."""
    if not parts:
        return actions.empty(("path",))
    first, *others = parts
    for other in others:
        if not _same(first.valid, other.valid):
            raise pa.ArrowInvalid(f"the columns have different rows of type {kind}")
    if not first.height:
        return actions.empty(("path",))
    frame = pl.DataFrame({name: s for part in parts for name, s in part.series.items()})
    if any(part.extra for part in parts):
        frame = frame.with_columns(_extra_column(parts))
    for required in _WIRE.required[kind]:
        if required == "path" or required in columns:
            _require(frame, required, kind, path)
    frame = with_dv_id(frame).with_columns(pl.lit(kind).alias("actionType"))
    unwanted = [c for c in DV_ID_COLUMNS if c in frame.columns and c not in columns]
    return frame.drop(unwanted)


def _unknown_fields(
    type_: pa.DataType, node: Node, above: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Fields of a struct that are not in the contract, with their path."""
    for child in (type_.field(i) for i in range(type_.num_fields)):
        known = node.fields.get(child.name)
        if known is None and (*above, child.name) not in _DERIVED:
            yield (*above, child.name)
        elif isinstance(known, Node) and pa.types.is_struct(child.type):
            yield from _unknown_fields(child.type, known, (*above, child.name))


def _extra_of(column: pa.StructArray, kind: str) -> dict[int, dict[str, Any]]:
    """Unknown fields by row; a loop over the rows with any, because their types are unknown."""
    extra: dict[int, dict[str, Any]] = {}
    for path in _unknown_fields(column.type, _WIRE.wrappers[kind], (kind,)):
        values = column
        for name in path[1:]:
            values = values.flatten()[values.type.get_field_index(name)]
        if values.null_count == len(values):
            continue
        for row in pl.Series(values.is_valid()).arg_true():
            inner = extra.setdefault(row, {})
            for name in path[1:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = _json_of(values.slice(row, 1))
    return extra


def _json_of(one: pa.Array) -> orjson.Fragment:
    """The value of an array of one, of any type; as text if Python or JSON has no such value."""
    try:
        value = one[0].as_py(maps_as_pydicts="lossy")
        data = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, OverflowError):  # bytes as keys; a date in the year 10000
        data = orjson.dumps(one.to_string(skip_new_lines=True))
    return orjson.Fragment(data)


def _extra_column(parts: Sequence[Part]) -> pl.Series:
    texts: list[str | None] = [None] * parts[0].height
    for row in sorted({row for part in parts for row in part.extra}):
        merged: dict[str, Any] = {}
        for part in parts:
            merged |= part.extra.get(row, {})  # all leaves of one field are in one part
        texts[row] = orjson.dumps(merged, default=str).decode()
    return pl.Series("extra", texts, dtype=pl.String)


def _same(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one.equals(other))


def _require(frame: pl.DataFrame, column: str, kind: str, path: str) -> None:
    if column not in frame.columns or frame[column].null_count():
        raise InvalidActionError(
            f"{kind} lacks a required field", path=path, expected=column, found=None
        )


def find_rows(
    file: pq.ParquetFile,
    kinds: Iterable[str],
    record: pl.DataFrame | None = None,
    prefetch: Callable[[Iterable[tuple[int, int]]], None] | None = None,
) -> dict[str, dict[int, int]]:
    """Row groups with rows of non-file action types, and their numbers, by type, from the cheapest
    leaf of each type. For protocol and metaData, null statistics are trusted unless no group would
    remain.
    """
    leaves: dict[str, list[int]] = {}
    columns = list(_columns(file))
    for index, column in enumerate(columns):
        leaves.setdefault(column.path.split(".", 1)[0], []).append(index)
    present = [kind for kind in kinds if kind in leaves]
    alone = [kind for kind in present if kind in ONE_EACH]
    probes = {kind: min(leaves[kind], key=lambda i: _effort(columns[i])) for kind in present}

    def count_rows(asked: Sequence[str], group: int) -> None:
        paths = [columns[probes[kind]].path for kind in asked]
        for batch in checked_batches(file, paths, [group]) if asked else ():
            for kind in asked:
                if rows := len(batch) - batch.column(kind).null_count:
                    counts = found.setdefault(kind, {})
                    counts[group] = counts.get(group, 0) + rows

    found: dict[str, dict[int, int]] = {}
    looked_up = [index for kind in alone for index in leaves[kind]]
    groups = list(range(file.num_row_groups))
    if record is not None:
        groups = groups_of_others(record)
    if prefetch is not None:
        looked_up = [index for kind in present for index in leaves[kind]]
    require_valid_chunks(file.metadata, groups, looked_up)
    if prefetch is not None:
        every = (file.metadata.row_group(group).column(i) for group in groups for i in looked_up)
        prefetch(chunk_range(chunk) for chunk in every if not _holds_nulls_only(chunk))
    for group in groups:
        chunks = file.metadata.row_group(group)
        empty = [
            kind
            for kind in alone
            if all(_holds_nulls_only(chunks.column(index)) for index in leaves[kind])
        ]
        count_rows([kind for kind in present if kind not in empty], group)
    missing = [kind for kind in alone if kind not in found]
    for group in groups if missing else ():
        count_rows(missing, group)
    return found


def _filled(file: pq.ParquetFile, leaves: Sequence[str], group: int) -> list[str]:
    """The leaves of a row group, without those of fields whose statistics are all null."""
    fields: dict[str, list[int]] = {}
    for index, column in enumerate(_columns(file)):
        fields.setdefault(_field_of(column.path), []).append(index)
    own = {field: fields[field] for field in map(_field_of, leaves)}
    require_valid_chunks(file.metadata, [group], [leaf for found in own.values() for leaf in found])
    chunks = file.metadata.row_group(group)
    filled = {
        field
        for field, found in own.items()
        if not all(_holds_nulls_only(chunks.column(index)) for index in found)
    }
    return [leaf for leaf in leaves if _field_of(leaf) in filled]


def _field_of(leaf: str) -> str:
    """The field of an action that a leaf belongs to, under its action type."""
    return ".".join(leaf.split(".")[:2])


def _holds_nulls_only(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return (
        statistics is not None
        and statistics.has_null_count
        and statistics.null_count == chunk.num_values
    )


def _effort(column: pq.ColumnSchema) -> tuple[int, bool]:
    return column.max_repetition_level, column.physical_type == "BYTE_ARRAY"


def leaf_shares(file: pq.ParquetFile, kind: str, groups: Iterable[int]) -> list[list[str]]:
    """Leaves of one action type in shares for parallel reading: one row among a million files costs
    decoding all nulls of every leaf.
    """
    fields: dict[str, list[str]] = {}
    for column in _columns(file):
        parts = column.path.split(".")
        if parts[0] == kind:
            fields.setdefault(_field_of(column.path), []).append(column.path)
    every = list(fields.values())
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    count = META_READERS if rows > _MANY_ROWS else 1
    shares = (every[n::count] for n in range(count))
    return [[leaf for field in share for leaf in field] for share in shares if share]


def rows_of(
    file: pq.ParquetFile, kind: str, leaves: Sequence[str], groups: Mapping[int, int]
) -> pa.StructArray:
    """Rows of one non-file action type, from row groups with some, until all have been found."""
    found: list[pa.Array] = []
    for group, total in groups.items():
        missing = total
        left = file.metadata.row_group(group).num_rows
        whole = True
        for batch in checked_batches(file, leaves, [group], _FEW_ROWS):
            # A short batch may have lost rows, so reading continues up to the recorded number.
            whole &= len(batch) == min(_FEW_ROWS, left)
            left -= len(batch)
            column = batch.column(0)
            if column.null_count < len(column):
                rows = column.filter(column.is_valid())
                found.append(rows)
                missing -= len(rows)
                if missing <= 0 and whole:
                    break
        if missing:
            raise pa.ArrowInvalid(f"the leaf columns of {kind} have different numbers of rows")
    return pa.concat_arrays(found)


def checked_batches(
    file: pq.ParquetFile,
    leaves: Sequence[str],
    groups: Sequence[int] | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Batches of `leaves` in plain types with as many rows as the footer records: Arrow ends a
    damaged column early without an error.
    """
    chosen = range(file.num_row_groups) if groups is None else groups
    promised = sum(file.metadata.row_group(group).num_rows for group in chosen)
    rows = 0
    plain: pa.Schema | None = None
    threads = promised > _FEW_PROMISED
    for batch in file.iter_batches(
        batch_rows, row_groups=list(chosen), columns=leaves, use_threads=threads
    ):
        batch.validate()
        rows += len(batch)
        plain = plain or pa.schema([f.with_type(plain_type(f.type)) for f in batch.schema])
        yield batch if plain.equals(batch.schema) else batch.cast(plain)
    if rows != promised:
        raise pa.ArrowInvalid(f"only {rows} rows of {promised} can be read")


def _columns(file: pq.ParquetFile) -> Iterator[pq.ColumnSchema]:
    return (file.schema.column(i) for i in range(len(file.schema)))


def flatten_meta(
    shares: Sequence[pa.StructArray], kind: str, node: Node, path: str
) -> pl.DataFrame:
    """The rows of one non-file action type from shares of its leaves."""
    series: dict[str, pl.Series] = {}
    for rows in shares:
        series |= _collect(rows, node, path)
    nothing = pl.Series("extra", [None] * len(shares[0]), dtype=pl.String)
    frame = pl.DataFrame(series or nothing)
    for required in _WIRE.required.get(kind, ()):
        _require(frame, required, kind, path)
    return frame.with_columns(pl.lit(kind).alias("actionType"))


def _collect(column: pa.StructArray, node: Node, path: str) -> dict[str, pl.Series]:
    """The known leaves of a struct, by flattened column; all-null columns are omitted."""
    series: dict[str, pl.Series] = {}
    type_ = column.type
    if not pa.types.is_struct(type_):
        raise InvalidActionError(
            "a column of the checkpoint is not a struct", path=path, found=str(type_)
        )
    for index, child in enumerate(column.flatten()):
        known = node.fields.get(type_.field(index).name)
        if known is None or child.null_count == len(child):
            continue
        if isinstance(known, Node):
            series |= _collect(child, known, path)
        else:
            series[known.column] = _series(child, known, path)
    return series


def _series(array: pa.Array, leaf: Leaf, path: str) -> pl.Series:
    array.validate(full=True)  # Arrow does not check that Parquet's text is UTF-8
    expected = contract.to_polars(leaf.type)
    series = pl.Series(leaf.column, array)
    if series.dtype == expected:
        return series
    try:
        if _family(series.dtype) != _family(expected):
            # A cast would parse "1" and truncate 1.5, which no writer writes.
            raise pl.exceptions.InvalidOperationError("another kind of value")
        return series.cast(expected)
    except pl.exceptions.PolarsError as cause:
        raise InvalidActionError(
            f"a column of the checkpoint has an invalid type: {leaf.column}",
            path=path,
            expected=str(expected),
            found=str(array.type),
        ) from cause


def _family(dtype: pl.DataType) -> str:
    """Group of types between which a cast changes no value."""
    if dtype.is_integer():
        return "integer"
    if dtype.is_nested():
        return "nested"
    return "text" if dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum) else str(dtype)
