"""Statistics of files: typed, as maps of text, as JSON text.

Typed statistics are a frame with one row per file: ``numRecords`` (Int64), ``tightBounds``
(Boolean), and the structs ``min``, ``max`` and ``nullCount``, keyed by logical names, in the types
of the current schema. They are decoded from JSON text, from a checkpoint's struct or from maps of
text.
Null means unknown: an invalid text is a row of nulls, a value without an exact conversion one null.
`lakelog.skipping.prune` interprets them.

Maps of text, the form of the flattened action table, need no schema. Flat statistics are read many
at a time, with bare numbers and Booleans quoted first to keep their digits; others row by row. JSON
text is encoded from typed statistics, as Spark writes it, for checkpoints that have only the
struct.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.model import contract
from lakelog.model.contract import field_named
from lakelog.skipping.json_texts import CHUNK_ROWS, are_lines, decode, read_lines
from lakelog.skipping.values import parse_text

_BOUNDED = frozenset(
    "string long integer short byte float double date timestamp timestamp_ntz".split()
)
_INT64_LIMITS = (Decimal(-(1 << 63)), Decimal((1 << 63) - 1))
_INT64_DIGITS = 19
_TEMPORAL = frozenset(("date", "timestamp", "timestamp_ntz"))

_NUM_RECORDS = "numRecords"
_TIGHT_BOUNDS = "tightBounds"

_FEW = 64  # a few texts are parsed one by one faster than by Polars
_LEADING_COUNT = r'^\s*\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]'


def has_bounds(type_: contract.DataType) -> bool:
    """Whether a leaf type has usable `min` and `max`: not nested, variant, void and opaque types,
    binary (writers encode its bounds differently), collated strings (not ordered by bytes) and
    Booleans (no engine reads their bounds, so that wrong ones of some writers stay unnoticed).
    """
    if isinstance(type_, contract.Primitive):
        return type_.name in _BOUNDED or type_.name.startswith(("char(", "varchar("))
    return isinstance(type_, contract.Decimal)


def stats_from_json(
    texts: pl.Series,
    schema: contract.Struct,
    *,
    columns: Sequence[str] | None = None,
    mapping: str = "none",
) -> pl.DataFrame:
    """Typed statistics from the JSON texts of ``add.stats`` (Delta protocol, Per-file Statistics).

    >>> schema = contract.Struct((contract.Field("id", contract.Primitive("long")),))
    >>> text = '{"numRecords":2,"minValues":{"id":1},"maxValues":{"id":7},"nullCount":{"id":0}}'
    >>> stats_from_json(pl.Series([text, "garbage"]), schema)["max"].to_list()
    [{'id': 7}, {'id': None}]
    """
    wanted = _select(schema, columns)
    bounds = struct_of_leaves(wanted, mapping, _json_bound)
    number = pa.int64()
    counts = struct_of_leaves(wanted, mapping, lambda t: number if _is_counted(t) else None)
    fields = [pa.field(_NUM_RECORDS, pa.int64()), pa.field(_TIGHT_BOUNDS, pa.bool_())]
    if bounds is not None:
        fields += [pa.field("minValues", bounds), pa.field("maxValues", bounds)]
    if counts is not None:
        fields.append(pa.field("nullCount", counts))
    return _typed(decode(texts, pa.schema(fields)), wanted, mapping)


def least_from_json(
    texts: pl.Series, schema: contract.Struct, *, mapping: str = "none"
) -> pl.Series:
    """The ``min`` of `stats_from_json`; a text may be invalid after the last of the values."""
    raw = None
    if (bounds := struct_of_leaves(schema, mapping, _json_bound)) is not None:
        fields = pa.schema([pa.field("minValues", bounds)])
        raw = _child(decode(texts, fields, to_end=False), "minValues")
    return _mirror(raw, schema, mapping, texts.len(), _bound).alias("min")


def stats_from_struct(
    structs: pl.Series,
    schema: contract.Struct,
    *,
    columns: Sequence[str] | None = None,
    mapping: str = "none",
) -> pl.DataFrame:
    """Typed statistics from ``add.stats_parsed`` (Delta protocol, Checkpoint Schema)."""
    raw = structs.struct.unnest() if structs.dtype == pl.Struct else pl.DataFrame()
    if not raw.width:
        raw = pl.DataFrame({_NUM_RECORDS: _nulls(pl.Int64(), structs.len())})
    return _typed(raw, _select(schema, columns), mapping)


def stats_from_either(
    structs: pl.Series,
    texts: pl.Series,
    schema: contract.Struct,
    *,
    columns: Sequence[str] | None = None,
    mapping: str = "none",
) -> pl.DataFrame:
    """`stats_from_struct`, and `stats_from_json` for rows that have only a text."""
    typed = stats_from_struct(structs, schema, columns=columns, mapping=mapping)
    rows = (structs.is_null() & texts.is_not_null()).arg_true()
    if not rows.len():
        return typed
    parsed = stats_from_json(texts.gather(rows), schema, columns=columns, mapping=mapping)
    order = pl.Series(range(typed.height), dtype=pl.UInt32)
    source = order.scatter(rows, pl.Series(range(rows.len()), dtype=pl.UInt32) + typed.height)
    return pl.concat([typed, parsed])[source]


def stats_from_maps(
    num_records: pl.Series,
    min_values: pl.Series,
    max_values: pl.Series,
    schema: contract.Struct,
    *,
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Typed statistics from IndexTables' maps of text."""
    wanted = _select(schema, columns)
    height = num_records.len()
    frame = pl.DataFrame(
        [num_records.cast(pl.Int64, strict=False).alias(_NUM_RECORDS)], height=height
    ).with_columns(pl.lit(None, dtype=pl.Boolean).alias(_TIGHT_BOUNDS))
    for name, maps in (("min", min_values), ("max", max_values)):
        leaves = [
            _finite(
                parse_text(
                    maps.alias("maps")
                    .to_frame()
                    .select(pl.col("maps").map.get(f.name))
                    .to_series(),
                    f.type,
                    epoch_us=True,
                )
            ).alias(f.name)
            for f in wanted.fields
            if has_bounds(f.type)
        ]
        frame = frame.with_columns(_struct(leaves, height, name))
    counts = [
        pl.Series(f.name, [None], dtype=pl.Int64).new_from_index(0, height)
        for f in wanted.fields
        if _is_counted(f.type) and not isinstance(f.type, contract.Struct)
    ]
    return frame.with_columns(_struct(counts, height, "nullCount"))


def num_records(stats: pl.Series) -> pl.Series:
    """``numRecords`` of JSON statistics, Int64 or null (Delta protocol, Per-file Statistics); found
    by a pattern, which is faster than parsing, because writers put it first.

    >>> num_records(pl.Series(['{"numRecords":3}', None])).to_list()
    [3, None]
    """
    if len(stats) <= _FEW:
        return pl.Series([count_of(text) for text in stats], dtype=pl.Int64)
    found = stats.str.extract(_LEADING_COUNT).cast(pl.Int64, strict=False)
    missing = found.is_null() & stats.is_not_null()
    if missing.any():
        rows = missing.arg_true()
        parsed = [count_of(text) for text in stats.gather(rows)]
        found = found.scatter(rows, pl.Series(parsed, dtype=pl.Int64))
    return found


def count_of(text: str | None) -> int | None:
    """``numRecords`` of one file's statistics; None if it is missing."""
    if text is None:
        return None
    try:
        body = orjson.loads(text)
    except ValueError:
        return None
    count = body.get("numRecords") if isinstance(body, dict) else None
    return count if type(count) is int and 0 <= count < 1 << 63 else None


def _select(schema: contract.Struct, columns: Sequence[str] | None) -> contract.Struct:
    if columns is None:
        return schema
    keep = frozenset(columns)
    return contract.Struct(tuple(f for f in schema.fields if f.name in keep))


def _is_counted(type_: contract.DataType) -> bool:
    return type_ != contract.VOID


def struct_of_leaves(
    schema: contract.Struct,
    mapping: str,
    type_of: Callable[[contract.DataType], pa.DataType | None],
) -> pa.StructType | None:
    """The leaves with a type by `type_of`, as a struct of physical names; None without any."""
    fields = []
    for f in schema.fields:
        if isinstance(f.type, contract.Struct):
            type_ = struct_of_leaves(f.type, mapping, type_of)
        else:
            type_ = type_of(f.type)
        if type_ is not None:
            fields.append(pa.field(contract.physical_name(f, mapping), type_))
    return pa.struct(fields) if fields else None


def _json_bound(type_: contract.DataType) -> pa.DataType | None:
    """Arrow type of a bound in JSON: temporal values are texts there."""
    if not has_bounds(type_):
        return None
    if isinstance(type_, contract.Primitive) and type_.name in _TEMPORAL:
        return pa.string()
    if type_ == contract.Primitive("float"):
        # Spark writes floats with the fewest digits. Reading them as doubles first keeps one bad
        # double from failing the whole buffer, and the cast returns the same float.
        return pa.float64()
    return contract.to_arrow(type_)


def _typed(raw: pl.DataFrame, schema: contract.Struct, mapping: str) -> pl.DataFrame:
    height = raw.height
    columns = [
        _leaf(raw, _NUM_RECORDS, pl.Int64()),
        _leaf(raw, _TIGHT_BOUNDS, pl.Boolean()),
        _mirror(_child(raw, "minValues"), schema, mapping, height, _bound).alias("min"),
        _mirror(_child(raw, "maxValues"), schema, mapping, height, _bound).alias("max"),
        _mirror(_child(raw, "nullCount"), schema, mapping, height, _count).alias("nullCount"),
    ]
    return pl.DataFrame(columns, height=height)


def _leaf(raw: pl.DataFrame, name: str, dtype: pl.DataType) -> pl.Series:
    if name not in raw.columns:
        return pl.Series(name, [None], dtype=dtype).new_from_index(0, raw.height)
    return _cast_same_kind(raw[name], dtype)


def _child(raw: pl.DataFrame, name: str) -> pl.DataFrame | None:
    """The fields of a struct column as a frame; None if the column is missing or not a struct."""
    return _fields(raw[name] if name in raw.columns else None)


def _fields(column: pl.Series | None) -> pl.DataFrame | None:
    if column is None or not isinstance(column.dtype, pl.Struct):
        return None
    return column.struct.unnest()


def _mirror(
    raw: pl.DataFrame | None,
    schema: contract.Struct,
    mapping: str,
    height: int,
    convert: Callable[[pl.Series | None, contract.DataType, int], pl.Series | None],
) -> pl.Series:
    """A struct with the logical shape of `schema`, from raw fields under physical names."""
    leaves: list[pl.Series] = []
    # Looked up once: a frame makes the list of its names for each question.
    found = {} if raw is None else {column.name: column for column in raw.get_columns()}
    for f in schema.fields:
        name = contract.physical_name(f, mapping)
        leaf: pl.Series | None
        if isinstance(f.type, contract.Struct):
            nested = _fields(found.get(name))
            leaf = _mirror(nested, f.type, mapping, height, convert)
            if not leaf.struct.fields:
                continue
        else:
            column = found.get(name)
            leaf = convert(None if column is None else column.alias(""), f.type, height)
            if leaf is None:
                continue
        leaves.append(leaf.alias(f.name))
    return _struct(leaves, height, "")


def _struct(leaves: Sequence[pl.Series], height: int, name: str) -> pl.Series:
    if not leaves:
        return pl.Series(name, [{}], dtype=pl.Struct([])).new_from_index(0, height)
    return pl.DataFrame(list(leaves), height=height).to_struct(name)


def _count(raw: pl.Series | None, type_: contract.DataType, height: int) -> pl.Series | None:
    if not _is_counted(type_):
        return None
    if raw is None or not raw.dtype.is_integer():
        return _nulls(pl.Int64(), height)
    return raw.cast(pl.Int64, strict=False)


def _bound(raw: pl.Series | None, type_: contract.DataType, height: int) -> pl.Series | None:
    if not has_bounds(type_):
        return None
    dtype = contract.to_polars(type_)
    if raw is None:
        return _nulls(dtype, height)
    converted = _convert(raw, type_, dtype)
    return _nulls(dtype, height) if converted is None else _known_decimals(_finite(converted))


def _convert(raw: pl.Series, type_: contract.DataType, dtype: pl.DataType) -> pl.Series | None:
    """`raw` in `dtype` if the conversion is exact or keeps the order; else None."""
    have = raw.dtype
    if have == pl.String:
        # Numbers stored as text are parsed exactly; a string column keeps its texts.
        return parse_text(raw, type_)
    if dtype.is_integer():
        return raw.cast(dtype, strict=False) if have.is_integer() else None
    if dtype.is_float():
        return raw.cast(dtype, strict=False) if have.is_numeric() else None
    if isinstance(dtype, pl.Decimal):
        fits = have.is_integer() or (isinstance(have, pl.Decimal) and have.scale <= dtype.scale)
        return raw.cast(dtype, strict=False) if fits else None
    if isinstance(dtype, pl.Datetime):
        return _convert_datetime(raw, dtype)
    return raw if have == dtype else None


def _convert_datetime(raw: pl.Series, dtype: pl.Datetime) -> pl.Series | None:
    have = raw.dtype
    if have == pl.Date:
        # Only the type without a zone is a protocol widening of date.
        return raw.cast(dtype, strict=False) if dtype.time_zone is None else None
    if not isinstance(have, pl.Datetime):
        return None
    micros = raw.dt.cast_time_unit("us")
    if dtype.time_zone is None:
        return micros if have.time_zone is None else None
    if have.time_zone is None:
        return micros.dt.replace_time_zone("UTC")
    return micros.dt.convert_time_zone("UTC")


def _cast_same_kind(raw: pl.Series, dtype: pl.DataType) -> pl.Series:
    same = raw.dtype == dtype or (raw.dtype.is_integer() and dtype.is_integer())
    return raw.cast(dtype, strict=False) if same else _nulls(dtype, raw.len()).alias(raw.name)


def _finite(bound: pl.Series) -> pl.Series:
    """NaN bounds become null: writers disagree on how NaN compares."""
    return bound.fill_nan(None) if bound.dtype.is_float() else bound


def _known_decimals(bound: pl.Series) -> pl.Series:
    """Decimal bounds become null beyond the precision, as deltalake rounds 9.99 to 10.0, and at
    64-bit limits, which deltalake writes for all values beyond.
    """
    dtype = bound.dtype
    if not isinstance(dtype, pl.Decimal):
        return bound
    digits = bound.to_physical()
    most = pl.lit(10**dtype.precision - 1, pl.Int128)
    unknown = ~pl.col("").is_between(-most, most)
    if dtype.precision - dtype.scale >= _INT64_DIGITS:
        limits = pl.Series(_INT64_LIMITS, dtype=dtype).to_physical()
        unknown |= pl.col("").is_in(limits.implode())
    return bound.set(digits.alias("").to_frame().select(unknown).to_series(), None)


def _nulls(dtype: pl.DataType, height: int) -> pl.Series:
    return pl.Series("", [None], dtype=dtype).new_from_index(0, height)


_MAPS = ("minValues", "maxValues", "nullCount")
_MAP_TYPE = pa.map_(pa.string(), pa.string())
_SCALAR = r":\s*(-?[0-9][0-9.eE+-]*|true|false)\s*([,}])"


class _Digits(str):
    """A number with the digits of its text."""

    __slots__ = ()


def map_stats(texts: pl.Series) -> pl.DataFrame:
    """``numRecords``, ``minValues``, ``maxValues``, ``nullCount`` as columns of the flattened
    table.

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
        # Reading without a schema finds the columns. It infers timestamps from dates, so a second
        # reading has every column as a string, and rejects the lines if one is not.
        found = read_lines(lines, None)
        schema = None if found is None else _all_strings(found.schema)
        flat = None if schema is None else read_lines(lines, schema)
    if flat is None:
        return _by_row(texts), None
    columns = [_to_maps(flat[name], name) for name in _MAPS]
    return pl.DataFrame([flat["numRecords"].cast(pl.Int64, strict=False), *columns]), schema


def _all_strings(found: pl.Schema) -> pa.Schema:
    # Other fields of the protocol are named, so that they are not unexpected.
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
    records = [_whole_number(row.get("numRecords")) for row in rows]
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
        # orjson validates: unlike json, it rejects NaN, lone surrogates and raw control characters.
        orjson.loads(text)
        row = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _whole_number(value: Any) -> int | None:
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


_ORDER = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
_ESCAPES = {'"': '\\"', "\\": "\\\\"} | {
    chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)
}


def stats_text_from_struct(structs: pl.Series, *, exact_times: bool = False) -> pl.Series:
    """The JSON text of statistics stored as a struct. Times have milliseconds, as the Delta
    protocol requires, or microseconds if they are `exact_times`.

    >>> stats_text_from_struct(pl.Series([{"numRecords": 2, "minValues": {"id": 1}}])).item()
    '{"numRecords":2,"minValues":{"id":1}}'
    """
    if not isinstance(structs.dtype, pl.Struct):
        return pl.Series(structs.name, [None], dtype=pl.String).new_from_index(0, structs.len())
    names = [f.name for f in structs.dtype.fields]
    rank = {name: position for position, name in enumerate(_ORDER)}
    names.sort(key=lambda name: rank.get(name, len(rank)))
    frame = structs.alias("s").to_frame()
    unit = "us" if exact_times else "ms"
    text = _object(pl.col("s"), structs.dtype, names, unit)
    return (
        frame.select(pl.when(pl.col("s").is_not_null()).then(text)).to_series().alias(structs.name)
    )


def _object(
    struct: pl.Expr,
    dtype: pl.Struct,
    names: Iterable[str],
    unit: str,
    rounds_up: bool | None = None,
) -> pl.Expr:
    """JSON text of a struct, with times in `unit`; without `rounds_up`, of whole statistics."""
    types = {f.name: f.dtype for f in dtype.fields}
    members = []
    for name in names:
        up = name == "maxValues" if rounds_up is None else rounds_up
        value = _value(field_named(struct, name), types[name], unit, up=up)
        if value is not None:
            # A null value makes the member null, and the join omits it.
            members.append(pl.lit(json.dumps(name, ensure_ascii=False) + ":") + value)
    inner = pl.concat_str(members, separator=",", ignore_nulls=True) if members else pl.lit("")
    return pl.lit("{") + inner + pl.lit("}")


def _value(
    value: pl.Expr, dtype: pl.DataType | pl.datatypes.DataTypeClass, unit: str, *, up: bool
) -> pl.Expr | None:
    """JSON text of a column's values, null where they are null; None for types without one. Times
    are rounded to `unit`, `up` or down.
    """
    if isinstance(dtype, pl.Struct):
        if not dtype.fields:
            return None
        text = _object(value, dtype, [f.name for f in dtype.fields], unit, rounds_up=up)
        return pl.when(value.is_not_null()).then(text)
    if isinstance(dtype, pl.Datetime):
        zone = "Z" if dtype.time_zone is not None else ""
        utc = value.dt.convert_time_zone("UTC") if zone else value
        below = utc.dt.truncate(f"1{unit}")
        bound = pl.when(below < utc).then(below.dt.offset_by(f"1{unit}")).otherwise(below)
        digits = 6 if unit == "us" else 3
        return (bound if up else below).dt.strftime(f'"%Y-%m-%dT%H:%M:%S%.{digits}f{zone}"')
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
