"""Collects statistics of a data file while it is written, as Delta on Spark does.

Least and greatest values are read from the file's own footer if Parquet records them exactly. NaN,
nulls of arrays and maps, and bounds of long texts are found in the columns as they are written. An
unknown statistic is omitted, which costs readers time but never a row.

Rules: the first 32 leaf columns, or those that the table names; texts are truncated to 32
characters, the upper bound to a greater text; times in milliseconds, the lower one rounded down and
the upper one up; NaN above all numbers; no bounds of Booleans, binaries, arrays, maps and variants.

Source: Delta protocol, Per-file Statistics. Delta Lake, StatisticsCollection.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.model import contract
from lakelog.skipping.indexed_columns import (
    NUM_INDEXED_COLUMNS,
    STATISTICS_COLUMNS,
    indexed_columns,
    whole_number,
)

_PREFIX_PROPERTY = "delta.dataSkippingStringPrefixLength"
PROPERTIES = (NUM_INDEXED_COLUMNS, STATISTICS_COLUMNS, _PREFIX_PROPERTY)
"""Table properties that decide what is collected."""

_PREFIX_LENGTH = 32
_TEXT_BYTES = 4000  # pyarrow writes no bound of more than 4096 bytes
_ASCII_MAX, _UNICODE_MAX = 0x7F, (0xDBFF, 0xDFFF)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - both kinds of time count from it
_FIRST_MS = -62_135_596_800_000  # year 1, and the last millisecond of year 9999
_LAST_MS = 253_402_300_799_999
_WHOLE = ("long", "integer", "short", "byte")

_Tree: TypeAlias = "dict[str, _Tree | str]"


@dataclass(frozen=True)
class Leaf:
    """A column with statistics: physical names and positions of the fields that lead to it through
    structs; arrays, maps and variants are leaves. `column` is its number in the Parquet file; None
    if it has several.
    """

    path: tuple[str, ...]
    type: contract.DataType
    column: int | None
    positions: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Name of the primitive type; empty for others."""
        return self.type.name if isinstance(self.type, contract.Primitive) else ""

    @property
    def is_text(self) -> bool:
        """Whether its values are texts."""
        return self.kind.startswith(("string", "char", "varchar"))

    @property
    def is_float(self) -> bool:
        """Whether its values may be NaN."""
        return self.kind in {"float", "double"}

    @property
    def has_bounds(self) -> bool:
        """Whether it has least and greatest values."""
        return (
            isinstance(self.type, contract.Decimal)
            or self.is_text
            or self.is_float
            or self.kind in {*_WHOLE, "date", "timestamp", "timestamp_ntz"}
        )


@dataclass(frozen=True)
class StatsPlan:
    """The columns with statistics, in schema order; texts are cut to `prefix_length` characters."""

    leaves: tuple[Leaf, ...]
    prefix_length: int = _PREFIX_LENGTH

    @staticmethod
    def of(
        columns: Sequence[contract.Field],
        configuration: Mapping[str, str | None],
        mapping: str,
        always: Collection[tuple[str, ...]] = (),
    ) -> StatsPlan:
        """The plan for files that hold `columns`."""
        indexed = indexed_columns(contract.Struct(tuple(columns)), (), configuration)
        wanted = {leaf.path for leaf in _leaves(indexed.fields, mapping)} | set(always)
        found = (leaf for leaf in _leaves(columns, mapping) if leaf.path in wanted)
        prefix = whole_number(configuration, _PREFIX_PROPERTY, _PREFIX_LENGTH)
        return StatsPlan(tuple(found), prefix)

    def only(self, columns: Sequence[contract.Field], mapping: str) -> StatsPlan:
        """The plan for files that hold only some of the columns."""
        paths = {leaf.path for leaf in self.leaves}
        found = (leaf for leaf in _leaves(columns, mapping) if leaf.path in paths)
        return StatsPlan(tuple(found), self.prefix_length)


def _leaves(columns: Sequence[contract.Field], mapping: str) -> Iterator[Leaf]:
    """Every leaf, in schema order."""
    count = 0

    def walk(
        fields: Sequence[contract.Field], path: tuple[str, ...], positions: tuple[int, ...]
    ) -> Iterator[Leaf]:
        nonlocal count
        for position, each in enumerate(fields):
            here, at = (*path, contract.physical_name(each, mapping)), (*positions, position)
            if isinstance(each.type, contract.Struct):
                yield from walk(each.type.fields, here, at)
                continue
            plain = not contract.is_nested(contract.stored(each.type))
            yield Leaf(here, each.type, count if plain else None, at)
            count += _width(each.type)

    yield from walk(columns, (), ())


def _width(type_: contract.DataType) -> int:
    """Number of Parquet columns of a type."""
    match contract.stored(type_):
        case contract.Struct(fields):
            return sum(_width(f.type) for f in fields)
        case contract.Array(element, _):
            return _width(element)
        case contract.Map(key, value, _):
            return _width(key) + _width(value)
    return 1


@dataclass
class _Seen:
    """Facts about one leaf that the footer lacks."""

    nulls: int = 0
    has_nan: bool = False
    least: bytes | None = None
    greatest: bytes | None = None

    def bound(self, low: bytes | None, high: bytes | None) -> None:
        if low is not None and (self.least is None or low < self.least):
            self.least = low
        if high is not None and (self.greatest is None or high > self.greatest):
            self.greatest = high


@dataclass
class FileStats:
    """Statistics of one file: pass its rows to `see`, and end with `json`."""

    plan: StatsPlan
    _seen: list[_Seen] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = [_Seen() for _ in self.plan.leaves]

    def see(self, rows: pa.Table) -> None:
        """Collect from rows as they are written, in the schema of the file, by row group."""
        for leaf, seen in zip(self.plan.leaves, self._seen, strict=True):
            if leaf.column is None:
                seen.nulls += _column(rows, leaf.positions).null_count
            elif leaf.is_float:
                if not seen.has_nan:
                    seen.has_nan = bool(pc.any(pc.is_nan(_column(rows, leaf.positions))).as_py())
            elif leaf.is_text:
                values = _column(rows, leaf.positions)
                longest = pc.max(pc.binary_length(values)).as_py()
                if longest is not None and longest > _TEXT_BYTES:
                    both = pc.min_max(values.cast(pa.large_binary()))
                    seen.bound(both["min"].as_py(), both["max"].as_py())

    def json(self, footer: pq.FileMetaData) -> str:
        """The statistics as an add's ``stats``."""
        least: _Tree = {}
        greatest: _Tree = {}
        nulls: _Tree = {}
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        for leaf, seen in zip(self.plan.leaves, self._seen, strict=True):
            if leaf.column is None:
                _put(nulls, leaf.path, str(seen.nulls))
                continue
            columns = [group.column(leaf.column).statistics for group in groups]
            if all(c is not None and c.has_null_count for c in columns):
                _put(nulls, leaf.path, str(sum(c.null_count for c in columns)))
            if not leaf.has_bounds:
                continue
            low, high = _bounds(leaf, seen, columns)
            _put(least, leaf.path, _spell(leaf, low, self.plan.prefix_length, upper=False))
            _put(greatest, leaf.path, _spell(leaf, high, self.plan.prefix_length, upper=True))
        return _json(self.plan, footer, least, greatest, nulls)


def _json(
    plan: StatsPlan, footer: pq.FileMetaData, least: _Tree, greatest: _Tree, nulls: _Tree
) -> str:
    parts = [f'"numRecords":{footer.num_rows}']
    if any(leaf.has_bounds for leaf in plan.leaves):
        parts += [f'"minValues":{_dump(least)}', f'"maxValues":{_dump(greatest)}']
    if plan.leaves:
        parts.append(f'"nullCount":{_dump(nulls)}')
    return "{" + ",".join([*parts, '"tightBounds":true']) + "}"


class _Number(str):
    """A number, as it is written in a JSON text."""

    __slots__ = ()


def joined_statistics(old: str | None, kept: Collection[str], new: str) -> str:
    """The statistics `new`, with those of `kept` columns from `old`, if it is valid."""
    try:
        orjson.loads(old or "{}")  # stricter than the other parser
        found = json.loads(old or "{}", parse_int=_Number, parse_float=_Number)
        own = json.loads(new, parse_int=_Number, parse_float=_Number)
        for section in ("minValues", "maxValues", "nullCount"):
            theirs = found.get(section)
            if isinstance(theirs, dict):
                known = {name: value for name, value in theirs.items() if name in kept}
                own[section] = known | own.get(section, {})
        own["tightBounds"] = found.get("tightBounds") is not False
        return _spelled(own)
    except (ValueError, AttributeError, RecursionError):
        return new


def _spelled(value: Any) -> str:
    match value:
        case dict():
            members = (f"{_spelled(name)}:{_spelled(each)}" for name, each in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_spelled, value)) + "]"
        case _Number():
            return str(value)
    # Without escapes, because delta-rs decodes surrogate pairs above U+20000 incorrectly.
    return orjson.dumps(value).decode()


_FIRST_EVEN_DAY = (dt.date(1600, 1, 1) - dt.date(1970, 1, 1)).days
_FIRST_EVEN_US = (dt.date(1901, 1, 1) - dt.date(1970, 1, 1)).days * 86_400_000_000
"""From these days and times on, the calendars and time zones of Spark 2 and Hive agree with the
proleptic Gregorian calendar and UTC.
"""
_MICROSECONDS = {"milliseconds": 1000, "microseconds": 1}


def footer_statistics(plan: StatsPlan, footer: pq.FileMetaData) -> str:
    """Statistics that the footer of another program proves. Omitted are bounds of floats (a file
    may have NaN without a trace in the footer), of INT96, of unsigned integers and decimals in
    bytes (writers have ordered them differently), of dates and times in the Julian calendar, and
    null counts of lists and maps.
    """
    least: _Tree = {}
    greatest: _Tree = {}
    nulls: _Tree = {}
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for leaf in plan.leaves:
        if leaf.column is None:
            continue
        found = [group.column(leaf.column).statistics for group in groups]
        if all(each is not None and each.has_null_count for each in found):
            _put(nulls, leaf.path, str(sum(each.null_count for each in found)))
        unit = _unit_us(leaf, footer.schema.column(leaf.column))
        if unit is None:
            continue
        low, high = _bounds(leaf, _Seen(), found)
        if low is None or high is None:
            continue
        if leaf.is_text:
            low, high = _as_text(low), _as_text(high)
        elif leaf.kind == "date" and low < _FIRST_EVEN_DAY:
            continue
        elif leaf.kind.startswith("timestamp"):
            low, high = low * unit, high * unit
            if low < _FIRST_EVEN_US:
                continue
        _put(least, leaf.path, _spell(leaf, low, plan.prefix_length, upper=False))
        _put(greatest, leaf.path, _spell(leaf, high, plan.prefix_length, upper=True))
    return _json(plan, footer, least, greatest, nulls)


def _unit_us(leaf: Leaf, column: pq.ColumnSchema) -> int | None:
    """Microseconds per value of the footer (1 for other types); None if bounds are uncertain."""
    kind, physical = logical_type(column), column.physical_type
    if not leaf.has_bounds or leaf.is_float or kind.get("isSigned") is False:
        return None
    if leaf.kind.startswith("timestamp"):
        return _MICROSECONDS.get(kind.get("timeUnit", "")) if physical == "INT64" else None
    if leaf.is_text:
        return 1 if physical == "BYTE_ARRAY" else None
    return 1 if physical in {"INT32", "INT64"} else None


def logical_type(column: pq.ColumnSchema) -> dict[str, Any]:
    """The logical type of a Parquet column: ``Type``, ``timeUnit`` and other keys."""
    found: dict[str, Any] = orjson.loads(column.logical_type.to_json())
    return found


def _as_text(value: bytes) -> bytes | None:
    """A bound of texts, unless it was truncated within a character."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return None
    return value


def _column(rows: pa.Table, positions: tuple[int, ...]) -> pa.ChunkedArray:
    column = rows.column(positions[0])
    return pc.struct_field(column, list(positions[1:])) if len(positions) > 1 else column


def _bounds(leaf: Leaf, seen: _Seen, columns: Sequence[Any]) -> tuple[Any, Any]:
    """Least and greatest value of a leaf; None if unknown."""
    low: Any = seen.least
    high: Any = seen.greatest
    for each in columns:
        if each is None:
            return None, None
        if each.has_min_max:
            least, greatest = _value(leaf, each.min_raw), _value(leaf, each.max_raw)
            low = least if low is None else min(low, least)
            high = greatest if high is None else max(high, greatest)
        elif each.num_values and not (seen.has_nan or seen.least is not None):
            return None, None
    if seen.has_nan:
        return math.nan if low is None else low, math.nan
    return low, high


def _value(leaf: Leaf, raw: Any) -> Any:
    """A value of the footer, comparable; wide decimals are stored as bytes."""
    if isinstance(leaf.type, contract.Decimal) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _spell(leaf: Leaf, value: Any, prefix_length: int, *, upper: bool) -> str | None:
    """A bound as JSON; None if JSON cannot represent it."""
    if value is None:
        return None
    if isinstance(leaf.type, contract.Decimal):
        return _decimal_text(value, leaf.type.scale)
    if leaf.kind in _WHOLE:
        return str(value)
    if leaf.is_float:
        return _float_text(value, leaf.kind)
    if leaf.is_text:
        text = value.decode("utf-8", "strict")
        cut = cut_above(text, prefix_length) if upper else text[:prefix_length]
        return None if cut is None else orjson.dumps(cut).decode()
    if leaf.kind == "date":
        ms = value * 86_400_000
        # Not strftime, which writes the year 999 in three digits.
        return f'"{_time(ms).date().isoformat()}"' if _FIRST_MS <= ms <= _LAST_MS else None
    ms = -(-value // 1000) if upper else value // 1000
    if not _FIRST_MS <= ms <= _LAST_MS:
        return None
    zone = "Z" if leaf.kind == "timestamp" else ""
    return f'"{_time(ms).isoformat(timespec="milliseconds")}{zone}"'


def _time(ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=ms)


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole = digits if scale == 0 else f"{digits[:-scale]}.{digits[-scale:]}"
    return f"-{whole}" if unscaled < 0 else whole


def _float_text(value: float, kind: str) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return str(np.float32(value)) if kind == "float" else repr(value)


def cut_above(text: str, length: int) -> str | None:
    r"""A text of about `length` UTF-16 units that is not below `text` in UTF-8 order, or None
    (Delta Lake, StatisticsCollection.truncateMaxStringAgg).
    """
    units = np.frombuffer(text.encode("utf-16-le"), dtype="<u2").tolist()
    if len(units) <= length:
        return text
    if length <= 0:
        return None
    kept = length
    if 0xD800 <= units[kept - 1] < 0xDC00:
        kept += 1  # not within a character
    while kept <= 2 * length:
        if kept >= len(units):
            return text
        if tuple(units[kept : kept + 2]) == _UNICODE_MAX:
            kept += 2  # no character is greater
            continue
        above = (_ASCII_MAX,) if units[kept] < _ASCII_MAX else _UNICODE_MAX
        cut = np.array([*units[:kept], *above], dtype="<u2")
        return cut.tobytes().decode("utf-16-le")
    return None


def _put(tree: _Tree, path: tuple[str, ...], value: str | None) -> None:
    """Set a value at its path; the structs on the path exist even without a value."""
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        assert isinstance(below, dict)
        tree = below
    if value is not None:
        tree[path[-1]] = value


def _dump(tree: _Tree) -> str:
    members = (
        f"{orjson.dumps(name).decode()}:{value if isinstance(value, str) else _dump(value)}"
        for name, value in tree.items()
    )
    return "{" + ",".join(members) + "}"
