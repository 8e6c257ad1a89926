"""Statistics as text: rebuilt from a checkpoint's struct, or spread into maps of text.

The flattened action table keeps statistics as the JSON text that was written, and as maps from
top-level column to text. Neither needs the table's schema.

Source: Delta protocol, Per-file Statistics.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from lakelog import actions

_MAPS = ("minValues", "maxValues", "nullCount")
_ORDER = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
# A number of more digits than a double holds would come back changed from a float.
_LONG_NUMBER = r"[0-9]{16}|[0-9]\.[0-9]{15}|[eE][+-]?[0-9]"


def stats_text_from_struct(structs: pl.Series) -> pl.Series:
    """The JSON text of statistics that are kept as a struct.

    Args:
        structs: ``add.stats_parsed``.

    Returns:
        String series of the same length: keys in protocol order, nulls left out, dates and
        timestamps in ISO 8601 (timestamps in milliseconds, UTC), decimals as numbers; null where
        the struct is null.

    >>> stats_text_from_struct(pl.Series([{"numRecords": 1, "minValues": {"a": "x"}}, None])).to_list()
    ['{"numRecords":1,"minValues":{"a":"x"}}', None]
    """
    if structs.dtype != pl.Struct:
        return pl.Series(structs.name, dtype=pl.String).extend_constant(None, structs.len())
    fields = [f.name for f in structs.dtype.fields]  # type: ignore[attr-defined]
    ordered = [n for n in _ORDER if n in fields] + [n for n in fields if n not in _ORDER]
    frame = structs.to_frame("stats")
    text = _object(pl.col("stats"), structs.dtype, ordered)
    return frame.select(pl.when(pl.col("stats").is_not_null()).then(text)).to_series().alias(
        structs.name
    )


def _object(column: pl.Expr, dtype: pl.DataType, names: list[str] | None = None) -> pl.Expr:
    fields = {f.name: f.dtype for f in dtype.fields}  # type: ignore[attr-defined]
    members: list[pl.Expr] = []
    for name in names if names is not None else fields:
        value = _value(column.struct.field(name), fields[name])
        # Null plus text is null, so that a null value takes its key along.
        members.append(pl.concat_str(pl.lit(json.dumps(name) + ":"), value))
    if not members:
        return pl.lit("{}")
    body = pl.concat_str(members, separator=",", ignore_nulls=True)
    text = pl.concat_str(pl.lit("{"), body, pl.lit("}"))
    return pl.when(column.is_not_null()).then(text)


def _value(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if dtype == pl.Struct:
        return _object(value, dtype)
    if dtype == pl.Date:
        return _quoted(value.dt.to_string("%Y-%m-%d"))
    if dtype == pl.Datetime:
        zone = "Z" if getattr(dtype, "time_zone", None) else ""
        return _quoted(value.dt.to_string("%Y-%m-%dT%H:%M:%S%.3f" + zone))
    if dtype in (pl.String, pl.Categorical):
        return _quoted(value)
    if dtype == pl.Boolean or dtype.is_decimal() or dtype.is_integer():
        return value.cast(pl.String)
    if dtype.is_float():
        return pl.when(value.is_finite()).then(value.cast(pl.String))
    return pl.lit(None, dtype=pl.String)


def _quoted(text: pl.Expr) -> pl.Expr:
    encoded = pl.struct(text.alias("v")).struct.json_encode()
    return pl.when(text.is_not_null()).then(encoded.str.slice(5).str.head(-1))


def map_stats(texts: pl.Series) -> pl.DataFrame:
    """``numRecords``, ``minValues``, ``maxValues`` and ``nullCount`` from JSON statistics texts.

    Args:
        texts: ``add.stats``; null, ``"null"`` and texts that are not JSON objects give nulls.

    Returns:
        ``numRecords`` Int64 and three ``Map(String, String)`` columns, of the series' length and
        order: top-level column to its value as text, nested statistics as JSON text; columns with
        a null are left out. Numbers keep all their digits.
    """
    full = actions.schema()
    schema = {"numRecords": full["numRecords"], **{m: full[m] for m in _MAPS}}
    if not texts.len():
        return pl.DataFrame(schema=schema)
    lines = texts.fill_null("{}")
    odd = (
        ~lines.str.starts_with("{")
        | lines.str.contains(_LONG_NUMBER)
        | lines.str.contains("\n", literal=True)
    )
    usual = pl.select(pl.when(odd).then(pl.lit("{}")).otherwise(lines)).to_series()
    try:
        frame = pl.read_ndjson("\n".join(usual).encode(), schema=schema)
        if frame.height != texts.len():
            odd = pl.Series([True]).new_from_index(0, texts.len())
    except (pl.exceptions.PolarsError, OverflowError):
        odd = pl.Series([True]).new_from_index(0, texts.len())
        frame = pl.DataFrame(schema=schema)
    if odd.all():
        return pl.DataFrame([_spread(text) for text in texts], schema=schema, orient="row")
    frame = frame.with_columns(pl.col(m).alias(m) for m in _MAPS)
    if not odd.any():
        return frame
    # Only texts that are odd, or whose numbers a float would change, are read one by one.
    rows = odd.arg_true()
    exact = pl.DataFrame([_spread(texts[i]) for i in rows], schema=schema, orient="row")
    order = pl.Series(range(frame.height), dtype=pl.UInt32)
    order = order.scatter(rows, pl.Series(range(rows.len()), dtype=pl.UInt32) + frame.height)
    return pl.concat([frame, exact])[order]


def _spread(text: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(text or "{}", parse_float=_Number, parse_int=_Number)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        parsed = {}
    count = parsed.get("numRecords")
    row: dict[str, Any] = {"numRecords": None, **dict.fromkeys(_MAPS)}
    if isinstance(count, _Number) and count.lstrip("-").isdigit() and len(count) < 19:
        row["numRecords"] = int(count)
    for name in _MAPS:
        if isinstance(parsed.get(name), dict):
            row[name] = {k: _text(v) for k, v in parsed[name].items() if v is not None}
    return row


class _Number(str):
    """A JSON number, digit by digit."""

    __slots__ = ()


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_json(v)}" for k, v in value.items()) + "}"
    return _json(value)


def _json(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(_json(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)
