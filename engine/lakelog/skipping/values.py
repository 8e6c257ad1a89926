"""Text to typed values, column by column; partition values.

Logs store partition values, and some statistics, as text. A text is cast exactly, or to null: a
rounded or guessed value would prune the wrong file.

Partition values are parsed with the current schema: a file written when a column was ``integer``
has ``"1"``, which may now be a ``decimal(12,2)``. Unknown (a missing key, or an invalid text)
differs from null, because an unknown value must never prune a file.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from lakelog.model import contract

_DECIMAL_CONTEXT = decimal.Context(prec=200, traps=[])

_UTC = pa.timestamp("us", "UTC")
_TIME_BYTES = len("2024-01-31T10:20:30.456Z")
_UTC_FORMATS = ("%Y-%m-%dT%H:%M:%S%.fZ",)
_ZONED_FORMATS = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
)
_LOCAL_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
)


def parse_text(texts: pl.Series, type_: contract.DataType, *, epoch_us: bool = False) -> pl.Series:
    """Parse partition texts (Delta protocol, Partition Value Serialization). Timestamps without a
    zone are UTC; binary values are the text's UTF-8 bytes, as in Spark; years beyond 9999 may have
    a sign.
    """
    dtype = contract.to_polars(type_)
    if isinstance(type_, contract.Decimal):
        return _parse_decimals(texts, type_)
    if isinstance(type_, contract.Primitive):
        match type_.name:
            case "long" | "integer" | "short" | "byte" | "float" | "double":
                return texts.cast(dtype, strict=False)
            case "boolean":
                lower = texts.str.to_lowercase()
                return pl.select(
                    pl.when(lower == "true")
                    .then(True)
                    .when(lower == "false")
                    .then(False)
                    .otherwise(None)
                    .cast(pl.Boolean)
                    .alias(texts.name)
                ).to_series()
            case "date":
                return _first_parse(texts, [_to_date])
            case "timestamp":
                if (usual := _usual_times(texts)) is not None:
                    return usual
                parsers = [*_parsers(_UTC_FORMATS), *_parsers(_LOCAL_FORMATS)]
                parsers += [*_parsers(_ZONED_FORMATS, zoned=True), _midnight]
                if epoch_us:
                    parsers.insert(0, _from_epoch_us)
                return _first_parse(texts, parsers).dt.replace_time_zone("UTC")
            case "timestamp_ntz":
                # With an offset other than Z, a time without a zone is ambiguous, so it is unknown.
                parsers = [*_parsers(_LOCAL_FORMATS), *_parsers(_UTC_FORMATS), _midnight]
                if epoch_us:
                    parsers.insert(0, _from_epoch_us)
                return _first_parse(texts, parsers)
            case "binary":
                return texts.cast(pl.Binary)
        if dtype == pl.String:
            return texts
    return pl.Series(texts.name, [None], dtype=dtype).new_from_index(0, texts.len())


def _usual_times(texts: pl.Series) -> pl.Series | None:
    """Times of the form ``2024-01-31T10:20:30.456Z``, else None; Arrow is faster than Polars."""
    if texts.len() == texts.null_count() or not (texts.str.len_bytes() == _TIME_BYTES).all():
        return None
    try:
        times = texts.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(_UTC)
    except pa.ArrowInvalid:
        return None
    return pl.Series(texts.name, times)


def _first_parse(
    texts: pl.Series, parsers: Sequence[Callable[[pl.Series], pl.Series]]
) -> pl.Series:
    """Each text by the first parser that accepts it; later parsers read only the rest."""
    parsed = parsers[0](texts)
    for parse in (*parsers[1:], _signed_year(parsers)):
        # Null texts give null, so an equal number of nulls means that all others were parsed.
        if parsed.null_count() == texts.null_count():
            break
        left = texts.is_not_null() & parsed.is_null()
        found = parse(texts.filter(left))
        if found.null_count() < found.len():
            parsed = parsed.scatter(left.arg_true(), found)
    return parsed


def _signed_year(
    parsers: Sequence[Callable[[pl.Series], pl.Series]],
) -> Callable[[pl.Series], pl.Series]:
    """A parser for years beyond 9999: Polars reads them only with a sign, and Spark writes none."""

    def parse(texts: pl.Series) -> pl.Series:
        signed = texts.str.replace(r"^(\d{5,6}-)", "+${1}")
        parsed = parsers[0](signed)
        for again in parsers[1:]:
            if not parsed.null_count():
                break
            parsed = parsed.zip_with(parsed.is_not_null(), again(signed))
        return parsed

    return parse


def _parsers(
    formats: Sequence[str], *, zoned: bool = False
) -> list[Callable[[pl.Series], pl.Series]]:
    def of(pattern: str) -> Callable[[pl.Series], pl.Series]:
        def parse(texts: pl.Series) -> pl.Series:
            parsed = texts.str.to_datetime(pattern, time_unit="us", strict=False)
            return parsed.dt.replace_time_zone(None) if zoned else parsed

        return parse

    return [of(pattern) for pattern in formats]


def _to_date(texts: pl.Series) -> pl.Series:
    return texts.str.to_date("%Y-%m-%d", strict=False)


def _midnight(texts: pl.Series) -> pl.Series:
    return _to_date(texts).cast(pl.Datetime("us"), strict=False)


def _from_epoch_us(texts: pl.Series) -> pl.Series:
    return texts.cast(pl.Int64, strict=False).cast(pl.Datetime("us"))


def _parse_decimals(texts: pl.Series, type_: contract.Decimal) -> pl.Series:
    """Exact decimals: digits other than zero beyond the scale make a text invalid."""
    dtype = pl.Decimal(type_.precision, type_.scale)
    plain = texts.str.contains(rf"^[+-]?\d+(?:\.\d{{0,{max(type_.scale, 0)}}}0*)?$")
    parsed = pl.select(
        pl.when(plain).then(texts).otherwise(None).cast(dtype, strict=False).alias(texts.name)
    ).to_series()
    left = plain.not_().fill_null(False)
    if left.any():
        # Java writes small and zero decimals with an exponent ("0E-18"). Such texts are few and
        # repeat, so a Python decimal per distinct text is cheap.
        odd = texts.filter(left)
        distinct = odd.unique()
        exact = pl.Series(
            [_exact_decimal(text, type_) for text in distinct], dtype=dtype, strict=True
        )
        found = odd.replace_strict(distinct, exact, default=None, return_dtype=dtype)
        parsed = parsed.scatter(left.arg_true(), found)
    return parsed


def _exact_decimal(text: str, type_: contract.Decimal) -> decimal.Decimal | None:
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    return fit_decimal(value, type_)


def fit_decimal(value: decimal.Decimal, type_: contract.Decimal) -> decimal.Decimal | None:
    """`value` at the scale of `type_`, or None if it would lose a digit or not fit."""
    if not value.is_finite() or abs(value.adjusted()) > 2 * 38:
        return None if value else decimal.Decimal(0).scaleb(-type_.scale)
    scaled = value.quantize(decimal.Decimal(1).scaleb(-type_.scale), context=_DECIMAL_CONTEXT)
    if scaled != value or len(scaled.as_tuple().digits) > max(type_.precision, 1):
        return None
    return scaled


PREFIX = "partition."
"""Prefix of typed partition columns: ``partition.<logical name>``."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Text of a null or empty partition value in Hive's folders and in IndexTables."""

_STRING = contract.Primitive("string")


class TypedPartitions(NamedTuple):
    """Partition values as columns ``partition.<logical>``, and whether each is valid."""

    values: pl.DataFrame
    known: pl.DataFrame


def typed_partitions(
    partition_values: pl.Series,
    schema: contract.Struct,
    partition_columns: Sequence[str],
    *,
    mapping: str = "none",
    hive_null: bool = False,
) -> TypedPartitions:
    """Parse ``partitionValues`` under the current schema; an empty text, and with `hive_null` also
    `HIVE_NULL`, is null (Delta protocol, Partition Value Serialization; Column Mapping).

    >>> maps = pl.Series([{"n": "1"}, {"n": ""}, {}], dtype=pl.Map(pl.String, pl.String))
    >>> schema = contract.Struct((contract.Field("n", contract.Primitive("long")),))
    >>> values, known = typed_partitions(maps, schema, ["n"])
    >>> values["partition.n"].to_list(), known["partition.n"].to_list()
    ([1, None, None], [True, True, False])
    """
    values: list[pl.Series] = []
    known: list[pl.Series] = []
    for column in partition_columns:
        field = schema.field(column)
        key = column if field is None else contract.physical_name(field, mapping)
        texts, present = texts_of(partition_values, key)
        empty = texts.is_null() | (texts == "")  # never null: true or null is true
        if hive_null:
            empty |= texts == HIVE_NULL
        if empty.any():
            texts = texts.set(empty & texts.is_not_null(), None)
        type_ = _STRING if field is None else field.type
        parsed = parse_text(texts, type_)
        valid = present & (empty | parsed.is_not_null())
        values.append(parsed.alias(PREFIX + column))
        known.append(valid.alias(PREFIX + column))
    if not values:
        # A frame without columns still has a height.
        none = pl.DataFrame(height=partition_values.len())
        return TypedPartitions(none, none)
    return TypedPartitions(pl.DataFrame(values), pl.DataFrame(known))


def partition_key(column: pl.Expr, type_: pl.DataType) -> pl.Expr:
    """The value of a column that identifies its partition: floats as text, because zero and
    negative zero, which compare as equal, are separate partitions.
    """
    return column.cast(pl.String) if type_.is_float() else column


def texts_of(maps: pl.Series, key: str) -> tuple[pl.Series, pl.Series]:
    """The texts under `key` in any case, and whether each map has it (a null map has none)."""
    texts, present = _exact(maps, key)
    if present.all():
        return texts, present
    for other in _keys(maps):
        if other != key and other.lower() == key.lower():
            more, there = _exact(maps, other)
            take = there & ~present
            texts = texts.zip_with(~take, more)
            present |= there
    return texts, present


def _exact(maps: pl.Series, key: str) -> tuple[pl.Series, pl.Series]:
    frame, column = maps.alias("maps").to_frame(), pl.col("maps")
    texts = frame.select(column.map.get(key)).to_series()
    if not texts.null_count():
        return texts, texts.is_not_null()
    return texts, frame.select(column.map.contains_key(key).fill_null(False)).to_series()


def _keys(maps: pl.Series) -> list[str]:
    keys = maps.alias("maps").to_frame().select(pl.col("maps").map.keys()).to_series()
    return keys.explode().drop_nulls().unique().to_list()
