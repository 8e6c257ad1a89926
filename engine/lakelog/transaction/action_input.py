"""Converts actions given as keywords or as a table to rows of the flattened schema.

Names are those of the protocol's JSON (``path``, ``deletionVector``, ``reason`` of a skip) or of
the flattened schema (``dvStorageType``, ``skipReason``); other names raise. Tables are converted
column by column, never row by row. `validation` checks whether the actions may be written.
"""

from __future__ import annotations

import datetime as dt
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.json_layout import FILE_WRAPPERS, Leaf, Node, Wire
from lakelog.errors import InvalidInputError
from lakelog.model import actions, contract
from lakelog.model.actions import with_dv_id

MAP = pl.Map(pl.String, pl.String)

_EXACT = (pl.Boolean, pl.Date, pl.Decimal, pl.Categorical, pl.Enum, pl.Null)


def map_column(column: pl.Series, *, keep_nulls: bool) -> pl.Series:
    """A column as maps of strings."""
    dtype = column.dtype
    if dtype == MAP:
        return column
    if isinstance(dtype, pl.Struct):
        return _from_structs(column, keep_nulls=keep_nulls)
    if isinstance(dtype, pl.Map):
        column = _lists_of_pairs(column)
        dtype = column.dtype
    if dtype == pl.Null:
        return pl.Series(column.name, [None] * len(column), dtype=MAP)
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct):
        names = [field.name for field in dtype.inner.fields]
        if len(names) == 2:
            return _from_lists(column, names)
    raise InvalidInputError(
        f"the column {column.name!r} is not a map",
        expected="a map, a struct, or a list of structs of key and value",
        found=str(column.dtype),
    )


def _map_value(name: str, value: Mapping[Any, Any]) -> dict[str, str | None]:
    """One map of strings."""
    texts: dict[str, str | None] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidInputError(
                f"a key of {name!r} is not a string", expected="str", found=repr(key)
            )
        texts[key] = _value_text(f"{name}.{key}", item)
    return texts


def _value_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return _time_text(name, value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int | float | dt.date):
        return str(value)
    raise InvalidInputError(
        f"the value of {name!r} cannot be converted to a string",
        expected="str, number, bool, date or datetime",
        found=repr(value),
    )


def _time_text(name: str, value: dt.datetime) -> str | None:
    # Not by strftime, which writes the year 999 with three digits, which Spark reads as null.
    if value != value:  # noqa: PLR0124 - pandas' NaT, which is a datetime
        return None
    if value.tzinfo is None:
        return _digits(value, " ")
    try:
        utc = value.astimezone(dt.UTC)
    except OverflowError as cause:
        raise InvalidInputError(
            f"the value of {name!r} cannot be converted to a string",
            expected="a time of the years 1 to 9999 in UTC",
            found=repr(value),
        ) from cause
    return _digits(utc.replace(tzinfo=None), "T") + "Z"


def _digits(value: dt.datetime, separator: str) -> str:
    return dt.datetime.isoformat(value, separator, "microseconds")


def _text_column(column: pl.Series) -> pl.Series:
    """Values as partition value strings (Delta protocol, Partition Value Serialization)."""
    dtype = column.dtype
    if dtype == pl.String:
        return column
    if dtype.is_integer() or dtype.is_float() or isinstance(dtype, _EXACT):
        return column.cast(pl.String)
    if isinstance(dtype, pl.Datetime):
        if dtype.time_zone is not None:
            return column.dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        return column.dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
    raise InvalidInputError(
        f"values of {column.name!r} cannot be converted to strings",
        expected="strings, numbers, booleans, dates or datetimes",
        found=str(dtype),
    )


def _lists_of_pairs(column: pl.Series) -> pl.Series:
    array = column.to_arrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    pairs = pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)]))
    converted = pl.Series(array.cast(pairs))
    return converted.alias(column.name)


def _from_lists(column: pl.Series, names: list[str]) -> pl.Series:
    lengths = column.list.len().fill_null(0)
    entries = column.filter(lengths > 0).explode()
    keys, values = (entries.struct.field(name) for name in names)
    return _build(column, lengths, _text_column(keys.alias(column.name)), values)


def _from_structs(column: pl.Series, *, keep_nulls: bool) -> pl.Series:
    fields = column.struct.unnest()
    rows, width = fields.height, fields.width
    if not width:
        lengths = pl.Series([0], dtype=pl.Int64).new_from_index(0, rows)
        nothing = pl.Series(column.name, [], dtype=pl.String)
        return _build(column, lengths, nothing, nothing)
    texts = [_text_column(field).alias(column.name) for field in fields.get_columns()]
    # Rearrange from one field after another to one row after another.
    order = (np.arange(width) * rows)[None, :] + np.arange(rows)[:, None]
    values = pl.concat(texts).gather(order.ravel().tolist())
    keys = pl.Series(column.name, fields.columns, dtype=pl.String).gather(
        np.tile(np.arange(width), rows).tolist()
    )
    present = column.is_not_null().gather(np.repeat(np.arange(rows), width).tolist())
    if not keep_nulls:
        present &= values.is_not_null()
    owner = pl.Series(np.repeat(np.arange(rows), width).tolist(), dtype=pl.Int64).filter(present)
    lengths = pl.Series(np.bincount(owner.to_numpy(), minlength=rows).tolist(), dtype=pl.Int64)
    return _build(column, lengths, keys.filter(present), values.filter(present))


def _build(column: pl.Series, lengths: pl.Series, keys: pl.Series, values: pl.Series) -> pl.Series:
    if keys.null_count():
        raise InvalidInputError(f"a key of {column.name!r} is null", expected="a string")
    start = pl.Series([0], dtype=pl.Int64)
    offsets = pl.concat([start, lengths.cast(pl.Int64).cum_sum()])
    array = pa.MapArray.from_arrays(
        offsets.cast(pl.Int32).to_arrow(),
        keys.to_arrow().cast(pa.string()),
        _text_column(values).to_arrow().cast(pa.string()),
        mask=column.is_null().to_arrow(),
    )
    return pl.Series(column.name, array).cast(MAP)


_DERIVED = frozenset({"version", "position", "actionType", "timestamp", "dvId"})
"""Columns of lakelog's own frames that describe where an action was read; ignored in new
actions.
"""

_EXPLICIT_NULLS = frozenset({"partitionValues"})


@dataclass(frozen=True)
class Spelling:
    """The accepted names of an action type's fields, flattened or nested, and ignored ones."""

    kind: str
    names: Mapping[str, Leaf | Node]
    passed: frozenset[str]

    @staticmethod
    @cache
    def of(dialect: str, kind: str) -> Spelling:
        """The accepted names of fields, from the contract."""
        wrappers = Wire.of(dialect).wrappers
        if kind not in wrappers:
            raise InvalidInputError(
                f"the {dialect} format has no {kind} action",
                expected=", ".join(sorted(wrappers)),
                found=kind,
            )
        node = wrappers[kind]
        names: dict[str, Leaf | Node] = dict(node.fields)
        names |= {leaf.column: leaf for _, leaf in node.leaves()}
        passed = _DERIVED
        if kind == "remove":
            live = wrappers["add"]
            passed |= {*live.fields, *(leaf.column for _, leaf in live.leaves()), "extra"}
        elif kind in FILE_WRAPPERS:
            extra = contract.load("actions").field("extra")
            assert extra is not None
            names["extra"] = Leaf("extra", extra.type, lenient=False)
        return Spelling(kind, names, frozenset(passed - set(names)))

    def unknown(self, name: str) -> InvalidInputError:
        """The error for an unknown name."""
        hint = None
        if name.startswith("partition.") or name in {"min", "max"}:
            hint = "pass the frame of files() without flatten=True and stats=True"
        elif name in {"numRecords", "minValues", "maxValues", "nullCount"}:
            hint = f"it is a part of stats: stats={{{name!r}: ...}}; for a frame of files(), omit "
            hint += "stats=True"
        return InvalidInputError(
            f"{self.kind} has no field {name!r}",
            expected=", ".join(sorted(self.names)),
            found=name,
            hint=hint,
        )


def stage_one(dialect: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """One action as its flattened columns."""
    spelling = Spelling.of(dialect, kind)
    row: dict[str, Any] = {"actionType": kind}
    for name, value in fields.items():
        target = spelling.names.get(name)
        if target is None:
            raise spelling.unknown(name)
        if value is not None:
            _put(row, target, name, value)
    return row


def _put(row: dict[str, Any], target: Leaf | Node, name: str, value: Any) -> None:
    if isinstance(target, Leaf):
        row[target.column] = _value(target.type, name, value)
        return
    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping", value)
    for key, item in value.items():
        child = target.fields.get(key)
        if child is None:
            raise InvalidInputError(
                f"{name} has no field {key!r}", expected=", ".join(target.fields), found=key
            )
        if item is not None:
            _put(row, child, f"{name}.{key}", item)


def _value(type_: contract.DataType, name: str, value: Any) -> Any:
    match type_:
        case contract.Map():
            if isinstance(value, Mapping):
                return _map_value(name, value)
            raise _wrong(name, "a mapping", value)
        case contract.Array():
            if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
                items = list(value)
                if all(isinstance(item, str) for item in items):
                    return items
            raise _wrong(name, "a list of strings", value)
        case contract.Primitive("string"):
            if isinstance(value, str):
                return value
            if name == "path" and isinstance(value, os.PathLike):
                return os.fspath(value).replace(os.sep, "/")
            if name == "stats" and isinstance(value, Mapping):
                try:
                    return orjson.dumps(value).decode()
                except TypeError as cause:
                    raise _wrong(name, "a value that JSON can represent", value) from cause
            raise _wrong(name, "a string", value)
        case contract.Primitive("boolean"):
            if isinstance(value, bool):
                return value
            raise _wrong(name, "a bool", value)
    return _whole(name, value, 31 if type_ == contract.Primitive("integer") else 63)


def _whole(name: str, value: Any, bits: int) -> int:
    if isinstance(value, bool):
        raise _wrong(name, "an integer", value)
    try:
        number = operator.index(value)
    except TypeError as cause:
        raise _wrong(name, "an integer", value) from cause
    if not -(1 << bits) <= number < 1 << bits:
        raise _wrong(name, f"an integer of {bits + 1} bits", value)
    return number


def _wrong(name: str, expected: str, value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"the value of {name!r} has the wrong type", expected=expected, found=repr(value)[:200]
    )


def rows_frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a narrow frame, in order."""
    full = actions.schema()
    names = dict.fromkeys(name for row in rows for name in row)
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns.append(pl.Series(name, values, dtype=full[name]))
        except UnicodeEncodeError as cause:
            raise _wrong(name, "Unicode text", cause.object) from cause
    return _with_identity(pl.DataFrame(columns))


def stage_table(
    dialect: str, kind: str, table: Any, fields: Mapping[str, Any] | None = None
) -> pl.DataFrame:
    """A table of actions as a narrow flattened frame. A column ``version`` shows that the rows were
    read from lakelog's state; their ``dataChange`` (false) is then ignored.
    """
    spelling = Spelling.of(dialect, kind)
    columns: dict[str, pl.Series] = {}
    frame = _read(table, spelling)
    for series in frame.get_columns():
        _take(columns, spelling.names[series.name], series)
    height, full = frame.height, actions.schema()
    for name, value in stage_one(dialect, kind, fields or {}).items():
        columns[name] = pl.Series(name, [value], dtype=full[name]).new_from_index(0, height)
    kinds = columns.pop("actionType")
    kept = [c for c in columns.values() if not height or c.null_count() < height]
    return _with_identity(pl.DataFrame([kinds, *kept]))


def _with_identity(frame: pl.DataFrame) -> pl.DataFrame:
    return with_dv_id(frame) if "dvStorageType" in frame.columns else frame


def _read(table: Any, spelling: Spelling) -> pl.DataFrame:
    """The known columns of a table; from a lazy frame, only these are read."""
    lazy: pl.LazyFrame
    if isinstance(table, pl.LazyFrame):
        lazy = table
    elif isinstance(table, pl.DataFrame):
        lazy = table.lazy()
    else:
        lazy = _to_polars(table).lazy()
    wanted: list[str] = []
    names = lazy.collect_schema().names()
    is_commit_version = "version" in names and "version" not in spelling.names
    for name in names:
        if name in spelling.names and not (is_commit_version and name == "dataChange"):
            wanted.append(name)
        elif name not in spelling.passed and name not in spelling.names:
            raise spelling.unknown(name)
    if not wanted:
        raise InvalidInputError(
            f"the table has no column of {spelling.kind}", expected=", ".join(spelling.names)
        )
    return lazy.select(wanted).collect()


def _to_polars(table: Any) -> pl.DataFrame:
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
        import pyarrow as pa

        try:
            whole = hasattr(table, "__arrow_c_stream__")
            arrow = pa.table(table if whole else pa.record_batch(table))
            frame = pl.DataFrame(contract.without_metadata(arrow))
        except (pa.ArrowException, ValueError) as cause:
            raise _not_actions(table) from cause
    elif type(table).__module__.partition(".")[0] == "pandas":
        frame = pl.from_pandas(table)
    else:
        raise _not_actions(table)
    # the name of pandas' index column
    return frame.drop("__index_level_0__", strict=False)


def _not_actions(table: object) -> InvalidInputError:
    return InvalidInputError(
        "invalid table of actions",
        expected="a Polars or pandas frame, an Arrow table, or keywords for one action",
        found=type(table).__name__,
    )


def _take(columns: dict[str, pl.Series], target: Leaf | Node, series: pl.Series) -> None:
    if isinstance(target, Leaf):
        if target.column in columns:
            raise InvalidInputError(
                f"two columns are mapped to {target.column!r}", found=series.name
            )
        columns[target.column] = _conform(target, series).alias(target.column)
        return
    if series.dtype == pl.Null:
        return
    if not isinstance(series.dtype, pl.Struct):
        raise InvalidInputError(
            f"the column {series.name!r} has another type",
            expected="a struct",
            found=str(series.dtype),
        )
    for field in series.struct.unnest().get_columns():
        child = target.fields.get(field.name)
        if child is None:
            raise InvalidInputError(
                f"{series.name} has no field {field.name!r}",
                expected=", ".join(target.fields),
                found=field.name,
            )
        _take(columns, child, field)


def _conform(leaf: Leaf, series: pl.Series) -> pl.Series:
    """A column in the contract's dtype; lossy conversions raise."""
    target, dtype = actions.schema()[leaf.column], series.dtype
    if dtype == target:
        return series
    # A column of nulls may have any type, because pandas has no type for it.
    if series.null_count() == len(series):
        return pl.Series(series.name, [None], dtype=target).new_from_index(0, len(series))
    if leaf.is_map:
        return map_column(series, keep_nulls=leaf.column in _EXPLICIT_NULLS)
    if target.is_integer() and isinstance(dtype, pl.Datetime):
        return series.dt.epoch("ms")
    fits = (
        (target.is_integer() and (dtype.is_integer() or _is_whole(series)))
        or (target == pl.String and isinstance(dtype, pl.Categorical | pl.Enum))
        or (isinstance(target, pl.List) and isinstance(dtype, pl.List | pl.Array))
    )
    if fits:
        try:
            return series.cast(target)
        except pl.exceptions.PolarsError as cause:
            raise _type_mismatch(series, target, str(cause).split("\n", 1)[0]) from cause
    raise _type_mismatch(series, target, str(dtype))


def _is_whole(series: pl.Series) -> bool:
    """Whether floats are whole numbers: pandas converts integers with nulls to floats."""
    if not series.dtype.is_float():
        return False
    values = series.drop_nulls()
    return bool((values == values.floor()).all()) and bool((values.abs() < 1 << 53).all())


def _type_mismatch(series: pl.Series, target: pl.DataType, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"the column {series.name!r} has another type", expected=str(target), found=found
    )
