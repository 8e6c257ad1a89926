"""Converts map columns of a caller's table: from maps, structs and lists of pairs.

Columnar: the entries of all rows are gathered at once. Knows nothing of actions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError

MAP = pl.Map(pl.String, pl.String)

_EXACT = (pl.Boolean, pl.Date, pl.Decimal, pl.Categorical, pl.Enum, pl.Null)


def map_column(column: pl.Series, *, keep_nulls: bool) -> pl.Series:
    """A column as maps of texts."""
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


def map_value(name: str, value: Mapping[Any, Any]) -> dict[str, str | None]:
    """One map of texts."""
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
    # Not by strftime: it writes the year 999 in three digits, which Spark reads as null.
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


def text_column(column: pl.Series) -> pl.Series:
    """Values as the texts that partition values have in the log.

    Source: Delta protocol, Partition Value Serialization.
    """
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
    return _build(column, lengths, text_column(keys.alias(column.name)), values)


def _from_structs(column: pl.Series, *, keep_nulls: bool) -> pl.Series:
    fields = column.struct.unnest()
    rows, width = fields.height, fields.width
    if not width:
        lengths = pl.Series([0], dtype=pl.Int64).new_from_index(0, rows)
        nothing = pl.Series(column.name, [], dtype=pl.String)
        return _build(column, lengths, nothing, nothing)
    texts = [text_column(field).alias(column.name) for field in fields.get_columns()]
    # Field after field becomes row after row.
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
        raise InvalidInputError(f"a key of {column.name!r} is null", expected="a text")
    start = pl.Series([0], dtype=pl.Int64)
    offsets = pl.concat([start, lengths.cast(pl.Int64).cum_sum()])
    array = pa.MapArray.from_arrays(
        offsets.cast(pl.Int32).to_arrow(),
        keys.to_arrow().cast(pa.string()),
        text_column(values).to_arrow().cast(pa.string()),
        mask=column.is_null().to_arrow(),
    )
    return pl.Series(column.name, array).cast(MAP)
