"""Statistics as maps of text, as in the flattened action table.

No schema is asked for: the texts name their columns themselves. Flat statistics are read many at a
time, with every bare number and Boolean put in quotes first, so that it keeps its digits; others
row by row.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.skipping.json_texts import CHUNK_ROWS, are_lines, read_lines

_MAPS = ("minValues", "maxValues", "nullCount")
_MAP_TYPE = pa.map_(pa.string(), pa.string())
_SCALAR = r":\s*(-?[0-9][0-9.eE+-]*|true|false)\s*([,}])"


class _Digits(str):
    """A number in the digits that the text gives it."""

    __slots__ = ()


def map_stats(texts: pl.Series) -> pl.DataFrame:
    """``numRecords``, ``minValues``, ``maxValues``, ``nullCount`` as the flattened table has them.

    >>> frame = map_stats(pl.Series(['{"numRecords":2,"minValues":{"id":1,"x":1.50}}']))
    >>> frame["minValues"].to_list()
    [{'id': '1', 'x': '1.50'}]
    """
    chunks = []
    schema: pa.Schema | None = None
    for start in range(0, texts.len(), CHUNK_ROWS):
        frame, schema = _chunk(texts.slice(start, CHUNK_ROWS), schema)
        chunks.append(frame)
    return pl.concat(chunks or [_by_row(texts)])


def _chunk(texts: pl.Series, schema: pa.Schema | None) -> tuple[pl.DataFrame, pa.Schema | None]:
    """One chunk, and the schema by which the next one is likely to be read."""
    lines = texts.fill_null("{}").str.replace_all(_SCALAR, ':"${1}"${2}')
    plain = are_lines(lines)
    if not plain.all():
        return _by_row(texts), schema
    flat = None if schema is None else read_lines(lines, schema, unexpected="error")
    if flat is None:
        # Reading without a schema finds the columns. It takes dates for timestamps, so a second
        # reading has every column as a string, and refuses the lines if one is not.
        found = read_lines(lines, None)
        schema = None if found is None else _all_strings(found.schema)
        flat = None if schema is None else read_lines(lines, schema)
    if flat is None:
        return _by_row(texts), None
    columns = [_to_maps(flat[name], name) for name in _MAPS]
    return pl.DataFrame([flat["numRecords"].cast(pl.Int64, strict=False), *columns]), schema


def _all_strings(found: pl.Schema) -> pa.Schema:
    # Protocol fields that are not spread are named, so that they do not count as unexpected.
    fields = [pa.field(name, pa.string()) for name in ("numRecords", "tightBounds")]
    for name in _MAPS:
        struct = found.get(name)
        columns = [f.name for f in struct.fields] if isinstance(struct, pl.Struct) else []
        fields.append(pa.field(name, pa.struct([pa.field(c, pa.string()) for c in columns])))
    return pa.schema(fields)


def _to_maps(structs: pl.Series, name: str) -> pl.Series:
    """A struct of texts as a map from field to text, without the null ones."""
    dtype = pl.Map(pl.String, pl.String)
    frame = structs.struct.unnest()
    empty = pl.Series(name, [{}], dtype=dtype).new_from_index(0, structs.len())
    null = pl.Series(name, [None], dtype=dtype).new_from_index(0, structs.len())
    if not frame.width:
        return empty.zip_with(structs.is_not_null(), null)
    height, width = frame.shape
    # Row by row, the columns in order: entry i belongs to row i // width, column i % width.
    entry = pl.int_range(height * width, eager=True)
    values = pl.concat([frame[c].rename("") for c in frame.columns], rechunk=True).gather(
        entry % width * height + entry // width
    )
    names = pl.Series(frame.columns).gather(entry % width)
    there = values.is_not_null()
    if not there.all():
        values, names = values.filter(there), names.filter(there)
    sizes = frame.select(pl.sum_horizontal(pl.all().is_not_null().cast(pl.Int32))).to_series()
    ends = sizes.cast(pl.Int32).cum_sum()
    maps = pa.MapArray.from_arrays(
        pl.concat([pl.Series([0], dtype=pl.Int32), ends]).to_arrow(),
        _arrow_strings(names),
        _arrow_strings(values),
    )
    series = pl.from_arrow(maps)
    assert isinstance(series, pl.Series)
    return series.alias(name).zip_with(structs.is_not_null(), null)


def _arrow_strings(texts: pl.Series) -> pa.Array:
    return texts.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def _by_row(texts: pl.Series) -> pl.DataFrame:
    rows = [_parse(text) for text in texts]
    records = [_count(row.get("numRecords")) for row in rows]
    columns = [pl.Series("numRecords", records, dtype=pl.Int64)]
    for name in _MAPS:
        maps = pl.from_arrow(pa.array([_pairs(row.get(name)) for row in rows], _MAP_TYPE))
        assert isinstance(maps, pl.Series)
        columns.append(maps.alias(name))
    return pl.DataFrame(columns)


def _parse(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        # orjson judges: unlike json it refuses NaN, lone surrogates and raw control characters.
        orjson.loads(text)
        row = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _count(value: Any) -> int | None:
    if not (isinstance(value, str) and value.isascii() and value.isdigit()):
        return None
    count = int(value)
    return count if count < 1 << 63 else None


def _pairs(value: Any) -> list[tuple[str, str]] | None:
    if not isinstance(value, dict):
        return None
    return [
        (key, str(v) if isinstance(v, str) else _dump(v))
        for key, v in value.items()
        if v is not None
    ]


def _dump(value: Any) -> str:
    """Compact JSON text that keeps the digits of numbers."""
    match value:
        case _Digits():
            return str(value)
        case dict():
            members = (f"{_dump(key)}:{_dump(v)}" for key, v in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
