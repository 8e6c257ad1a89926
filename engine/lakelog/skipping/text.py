"""Encodes typed statistics as JSON text, for checkpoints that have only the struct.

The flattened action table keeps statistics as JSON text. It is rebuilt here column by column, in
the spelling of Spark's writer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import polars as pl

from lakelog.skipping.maps import map_stats

__all__ = ["map_stats", "stats_text_from_struct"]

_ORDER = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
_ESCAPES = {'"': '\\"', "\\": "\\\\"} | {
    chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)
}


def stats_text_from_struct(structs: pl.Series) -> pl.Series:
    """The JSON text of statistics kept as a struct.

    Source: Delta protocol, Per-file Statistics.

    >>> stats_text_from_struct(pl.Series([{"numRecords": 2, "minValues": {"id": 1}}])).item()
    '{"numRecords":2,"minValues":{"id":1}}'
    """
    if not isinstance(structs.dtype, pl.Struct):
        return pl.Series(structs.name, [None], dtype=pl.String).new_from_index(0, structs.len())
    names = [f.name for f in structs.dtype.fields]
    rank = {name: position for position, name in enumerate(_ORDER)}
    names.sort(key=lambda name: rank.get(name, len(rank)))
    frame = structs.alias("s").to_frame()
    text = _object(pl.col("s"), structs.dtype, names)
    return (
        frame.select(pl.when(pl.col("s").is_not_null()).then(text)).to_series().alias(structs.name)
    )


def _object(struct: pl.Expr, dtype: pl.Struct, names: Iterable[str]) -> pl.Expr:
    types = {f.name: f.dtype for f in dtype.fields}
    members = []
    for name in names:
        value = _value(struct.struct.field(name), types[name])
        if value is not None:
            # A null value makes the member null, and the join leaves it out.
            members.append(pl.lit(json.dumps(name, ensure_ascii=False) + ":") + value)
    inner = pl.concat_str(members, separator=",", ignore_nulls=True) if members else pl.lit("")
    return pl.lit("{") + inner + pl.lit("}")


def _value(value: pl.Expr, dtype: pl.DataType | pl.datatypes.DataTypeClass) -> pl.Expr | None:
    """JSON text of a column's values, null where they are null; None for types without one."""
    if isinstance(dtype, pl.Struct):
        if not dtype.fields:
            return None
        text = _object(value, dtype, [f.name for f in dtype.fields])
        return pl.when(value.is_not_null()).then(text)
    if isinstance(dtype, pl.Datetime):
        zone = "Z" if dtype.time_zone is not None else ""
        utc = value.dt.convert_time_zone("UTC") if zone else value
        return utc.dt.truncate("1ms").dt.strftime(f'"%Y-%m-%dT%H:%M:%S%.3f{zone}"')
    if dtype == pl.Date:
        return value.dt.strftime('"%Y-%m-%d"')
    if dtype == pl.String:
        return pl.lit('"') + value.str.replace_many(_ESCAPES) + pl.lit('"')
    if dtype.is_float():
        special = (
            pl.when(value.is_nan())
            .then(pl.lit('"NaN"'))
            .when(value > 0)
            .then(pl.lit('"Infinity"'))
            .otherwise(pl.lit('"-Infinity"'))
        )
        return (
            pl.when(value.is_finite())
            .then(value.cast(pl.String))
            .otherwise(pl.when(value.is_not_null()).then(special))
        )
    if dtype.is_numeric() or dtype == pl.Boolean:
        return value.cast(pl.String)
    return None
