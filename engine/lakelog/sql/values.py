"""Values, types and casts of Spark SQL.

Source: Spark SQL reference, Data Types; ANSI compliance, Cast and Type Promotion.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from lakelog.model import contract
from lakelog.model.contract import DataType, Decimal, Primitive

BOOLEAN, STRING, DATE, VOID = (Primitive(n) for n in ("boolean", "string", "date", "void"))
BYTE, SHORT, INTEGER, LONG = (Primitive(n) for n in ("byte", "short", "integer", "long"))
FLOAT, DOUBLE, BINARY = Primitive("float"), Primitive("double"), Primitive("binary")
TIMESTAMP, TIMESTAMP_NTZ = Primitive("timestamp"), Primitive("timestamp_ntz")

DECIMAL_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""Digits of the decimal that Spark makes of a whole number."""

_WHOLE = (BYTE, SHORT, INTEGER, LONG)
_BITS = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64}
TIMES = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
MOST_DIGITS = 38
_EXACT_DIGITS = 15  # decimals of so many digits are distinct as doubles
_EXACT_FLOAT = 1 << 24
_JAVA_DIGITS: Mapping[DataType, float] = {DOUBLE: 1e-321, FLOAT: 1e-42}
"""Java writes smaller floats with two digits, even if one identifies them."""
_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


class UnsupportedExpressionError(Exception):
    """A part of an expression is not supported; the text names it."""


@dataclass(frozen=True)
class RowError:
    """Rows for which a value is an error, and why; or only depends on the version of Spark; or is
    not computed, by a limit that Spark does not have (TRY_CAST is then an error, too).
    """

    condition: pl.Expr
    reason: str
    by_version: bool = False
    is_limit: bool = False


Refuse = Callable[[RowError], None]
"""Receives the condition of rows for which a value is an error."""


@dataclass(frozen=True)
class Value:
    """An expression with its Spark type; `literal` is its value if `is_literal`, and else None."""

    computed: pl.Expr | None
    type: DataType
    literal: Any = None
    is_literal: bool = False

    @property
    def expr(self) -> pl.Expr:
        """The expression."""
        if self.computed is not None:
            return self.computed
        dtype = pl.Null() if self.type == VOID else contract.to_polars(self.type)
        return pl.lit(self.literal, dtype)


def rest_by_literal(value: Value, divisor: int, type_: DataType) -> Value:
    """The rest with the dividend's sign, as in Java; in Polars it has the divisor's."""
    number = value.expr.cast(contract.to_polars(type_))
    rest = number % abs(divisor)
    is_negative = (number < 0) & (rest != 0)
    return Value(pl.when(is_negative).then(rest - abs(divisor)).otherwise(rest), type_)


def constant(value: Any) -> Value:
    """A literal, with the type that Spark gives it."""
    match value:
        case None:
            type_: DataType = VOID
        case bool():
            type_ = BOOLEAN
        case int():
            type_ = next((t for t in (INTEGER, LONG) if _fits(value, t)), VOID)
            if type_ == VOID:
                return constant(decimal.Decimal(value))
        case decimal.Decimal():
            digits, exponent = value.as_tuple().digits, int(value.as_tuple().exponent)
            type_ = Decimal(max(len(digits), -exponent), -exponent)
            if type_.precision > MOST_DIGITS:
                raise UnsupportedExpressionError(f"the number {value}")
        case float():
            type_ = DOUBLE
        case str():
            type_ = STRING
        case bytes():
            type_ = BINARY
        case dt.datetime():
            type_ = TIMESTAMP if value.tzinfo is not None else TIMESTAMP_NTZ
        case dt.date():
            type_ = DATE
        case _:
            raise AssertionError(value)
    return typed(value, type_)


def typed(value: Any, type_: DataType) -> Value:
    """A literal of a type."""
    return Value(None, type_, value, is_literal=True)


def literal_as(value: Value, type_: DataType) -> Value | None:
    """The same value as a literal of the type of a column; None if it has none."""
    literal = value.literal
    if not value.is_literal or literal is None:
        return None
    is_exact_number = type(literal) in {int, decimal.Decimal}
    if is_integral(type_) and is_exact_number and literal == int(literal):
        return typed(int(literal), type_) if _fits(int(literal), type_) else None
    if isinstance(type_, Decimal) and is_exact_number:
        exact = constant(decimal.Decimal(literal)).type
        return (
            typed(decimal.Decimal(literal), type_) if common_type(exact, type_) == type_ else None
        )
    if type_ == DATE and isinstance(literal, dt.datetime) and literal.time() == dt.time():
        return typed(literal.date(), DATE)
    if type_ in {TIMESTAMP, TIMESTAMP_NTZ} and isinstance(literal, dt.datetime):
        return typed(literal.replace(tzinfo=dt.UTC if type_ == TIMESTAMP else None), type_)
    return None


def type_name(type_: DataType) -> str:
    """The type as SQL names it."""
    if isinstance(type_, Primitive):
        return _NAMES.get(type_.name, type_.name)
    if isinstance(type_, Decimal):
        return f"decimal({type_.precision},{type_.scale})"
    return type(type_).__name__.lower()


def is_integral(type_: DataType) -> bool:
    """Whether the type is of whole numbers."""
    return type_ in _WHOLE


def is_number(value: Value) -> bool:
    """Whether the value is a number, or null."""
    type_ = value.type
    return is_integral(type_) or type_ in {DOUBLE, FLOAT, VOID} or isinstance(type_, Decimal)


def _fits(value: int, type_: DataType) -> bool:
    low, high = _limits(type_)
    return low <= value <= high


def _limits(type_: DataType) -> tuple[int, int]:
    bound = 1 << (_BITS[type_] - 1)  # type: ignore[index]
    return -bound, bound - 1


def overflow(expr: pl.Expr, type_: DataType, where: pl.Expr | None = None) -> RowError:
    """Values out of the range of a type."""
    low, high = (pl.lit(v, pl.Int64) for v in _limits(type_))
    condition = ~expr.is_between(low, high)
    condition = condition if where is None else where & condition
    return RowError(condition, f"an overflow of {type_name(type_)}")


def whole(expr: pl.Expr, type_: DataType, refuse: Refuse) -> Value:
    """A whole number of a wider type in a type whose range it may exceed."""
    refuse(overflow(expr, type_))
    return Value(expr.cast(contract.to_polars(type_), strict=False), type_)


def common_type(a: DataType, b: DataType, *, exact: bool = True) -> DataType | None:
    """The type of branches of two types in Spark; None if it has no such type, or, if `exact`, it
    depends on the mode.
    """
    if b in {a, VOID}:
        return a
    if a == VOID:
        return b
    if is_integral(a) and is_integral(b):
        return max((a, b), key=lambda t: _BITS[t])  # type: ignore[index]
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        x, y = (_decimal_of(t) for t in (a, b))
        if x is not None and y is not None:
            scale = max(x.scale, y.scale)
            digits = max(x.precision - x.scale, y.precision - y.scale) + scale
            return Decimal(digits, scale) if digits <= MOST_DIGITS else None
    if DOUBLE in {a, b}:
        other = a if b == DOUBLE else b
        return DOUBLE if is_integral(other) or other == FLOAT or _is_exact(other) else None
    if FLOAT in {a, b} and not exact:
        return DOUBLE if all(t == FLOAT or is_integral(t) or _is_exact(t) for t in (a, b)) else None
    return None


def _decimal_of(type_: DataType) -> Decimal | None:
    if isinstance(type_, Decimal):
        return type_
    digits = DECIMAL_DIGITS.get(type_.name) if isinstance(type_, Primitive) else None
    return None if digits is None else Decimal(digits, 0)


def _is_exact(type_: DataType) -> bool:
    return isinstance(type_, Decimal) and type_.precision <= _EXACT_DIGITS


def comparable(a: Value, b: Value, *, exact: bool) -> DataType | None:
    """The type in which Spark compares two values; if `exact`, None if it depends on the mode."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one.literal, str) and other.type not in {STRING, VOID}:
            certain = {*TIMES, *_WHOLE, BOOLEAN}
            is_certain = other.type in certain or not (exact or contract.is_nested(other.type))
            return other.type if is_certain else None
    types = {a.type, b.type}
    if types <= TIMES and len(types) > 1:
        return TIMESTAMP if TIMESTAMP in types else TIMESTAMP_NTZ
    if FLOAT in types and len(types) > 1:
        other = b if a.type == FLOAT else a
        if other.type in {BYTE, SHORT} or (
            is_integral(other.type)
            and other.literal is not None
            and abs(other.literal) <= _EXACT_FLOAT
        ):
            return FLOAT
        if isinstance(other.type, Decimal):
            return DOUBLE
        return DOUBLE if other.type == DOUBLE or (not exact and is_number(other)) else None
    if not exact and DOUBLE in types and all(map(is_number, (a, b))):
        return DOUBLE
    found = common_type(*(_in_comparison(value, types) for value in (a, b)))
    return None if found is not None and contract.is_nested(found) else found


def _in_comparison(value: Value, types: set[DataType]) -> DataType:
    """The type that a literal has next to another value."""
    if value.is_literal and DOUBLE in types and isinstance(value.type, Decimal):
        return DOUBLE
    is_whole = value.literal is not None and is_integral(value.type)
    if is_whole and any(isinstance(t, Decimal) for t in types):
        return Decimal(len(str(abs(value.literal))), 0)
    return value.type


DAY_US = 86_400_000_000
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_SHORT_DAY = "([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_MAY_BE_DATE = "^[+-]?[0-9]{4}"
_MAY_BE_CLOCK = f"{_MAY_BE_DATE}|^T?[0-9]{{1,2}}:"  # Spark takes the date of today
_ZONE = "(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?"
_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
"""Characters that Spark ignores around a text that it casts."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?|inf(inity)?)|nan", re.ASCII | re.IGNORECASE)
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_MOST_DAYS = 650 * 146_097  # as long as 260,000 years; chrono has dates up to the year 262,142
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = dt.date(1, 1, 1), dt.date(9999, 12, 31)


def cast(value: Value, type_: DataType, refuse: Refuse, *, exact: bool) -> Value:
    """CAST(value AS type)."""
    if value.type == type_:
        return value
    if value.is_literal and value.literal is not None:
        return _cast_literal(value, type_, exact=exact)
    dtype = contract.to_polars(type_)
    if value.type == VOID or (value.is_literal and value.literal is None):
        return typed(None, type_)
    if is_integral(type_) and is_integral(value.type):
        if common_type(value.type, type_) == type_:
            return Value(value.expr.cast(dtype), type_)
        return whole(value.expr, type_, refuse)
    kinds = _kind(value.type), _kind(type_)
    caster = _CASTS.get(kinds)
    if not exact and (caster is None or kinds in _INEXACT_CASTS) and _INEXACT.issuperset(kinds):
        caster = _to_decimal if isinstance(type_, Decimal) else _inexact_cast
    if caster is None:
        raise UnsupportedExpressionError(
            f"a cast from {type_name(value.type)} to {type_name(type_)}"
        )
    return Value(caster(value, type_, refuse), type_)


def _cast_literal(value: Value, type_: DataType, *, exact: bool) -> Value:
    if isinstance(value.literal, str):
        return typed(_from_text(value.literal, type_, exact=exact), type_)
    if isinstance(value.literal, decimal.Decimal) and type_ in {DOUBLE, FLOAT} and exact:
        return _float_literal(value.literal, type_)
    errors: list[RowError] = []
    found = cast(Value(value.expr, value.type), type_, errors.append, exact=exact)
    result = pl.select(found.expr.alias("value"), *(e.condition.alias(e.reason) for e in errors))
    if any(result[error.reason].item() for error in errors):
        raise UnsupportedExpressionError(f"{value.literal} as {type_name(type_)}")
    return typed(result["value"].item(), type_)


def _kind(type_: DataType) -> str:
    if is_integral(type_):
        return "whole"
    if isinstance(type_, Primitive):
        return type_.name
    return type(type_).__name__.lower()


def _from_text(text: str, type_: DataType, *, exact: bool) -> Any:
    """A string literal as a value of a type."""
    plain = text.strip(_BLANKS)
    found: Any = None
    try:
        if is_integral(type_) and re.fullmatch(r"[+-]?\d+", plain, re.ASCII):
            found = int(plain)
            found = found if _fits(found, type_) else None
        elif (type_ == DOUBLE or (type_ == FLOAT and not exact)) and _NUMBER.fullmatch(plain):
            found = float(plain)
        elif type_ == BINARY and not exact:
            found = text.encode()
        elif isinstance(type_, Decimal) and re.fullmatch(r"[+-]?\d+(\.\d+)?", plain, re.ASCII):
            number = decimal.Decimal(plain)
            own_type = constant(number).type
            found = number if common_type(own_type, type_) == type_ else None
        elif type_ == BOOLEAN and plain.lower() in {*_TRUE, *_FALSE}:
            found = plain.lower() in _TRUE
        elif type_ == DATE and re.fullmatch(_DAY, plain):
            found = dt.date.fromisoformat(plain)
        elif type_ == DATE and not exact and (parts := re.fullmatch(_SHORT_DAY, plain)):
            found = dt.date(*(int(part or 1) for part in parts.groups()))
        elif type_ in {TIMESTAMP, TIMESTAMP_NTZ}:
            found = _time(plain, type_)
    except ValueError:
        pass
    if found is None:
        raise UnsupportedExpressionError(f"the string {text!r} as {type_name(type_)}")
    return found


def _time(text: str, type_: DataType) -> dt.datetime | None:
    minutes = "[0-9]{2}:[0-9]{2}"
    if not re.fullmatch(rf"{_DAY}([ T]({minutes}|{_CLOCK})(Z|[+-]{minutes})?)?", text):
        return None
    found = dt.datetime.fromisoformat(text)
    if type_ == TIMESTAMP_NTZ:
        return found if found.tzinfo is None else None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def _float_literal(number: decimal.Decimal, type_: DataType) -> Value:
    if type_ == DOUBLE:
        return typed(float(number), DOUBLE)
    if len(number.as_tuple().digits) > 7:
        raise UnsupportedExpressionError(f"the number {number} as float")
    return Value(pl.lit(float(number), pl.Float64).cast(pl.Float32), FLOAT)


def _inexact_cast(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    expr = value.expr.str.strip_chars(_BLANKS) if value.type == STRING != type_ else value.expr
    if type_ == STRING and value.type in {DOUBLE, FLOAT}:
        return _float_to_text(value, refuse)
    found = expr.cast(contract.to_polars(type_), strict=False)
    what = f"a {type_name(value.type)} that cannot be cast to {type_name(type_)}"
    refuse(RowError(value.expr.is_not_null() & found.is_null(), what))
    return found


def _float_to_text(value: Value, refuse: Refuse) -> pl.Expr:
    """The text of a float in Java (`Double.toString`): Polars has the same digits, the fewest that
    identify the float, and another exponent.
    """
    size, text = value.expr.abs(), value.expr.cast(pl.String)
    reason = f"a {type_name(value.type)} so near to 0 that Java writes other digits"
    refuse(RowError((size > 0) & (size < _JAVA_DIGITS[value.type]), reason, is_limit=True))
    has_exponent = size.is_finite() & (size > 0) & ~size.is_between(1e-3, 1e7, closed="left")
    parts = pl.when(has_exponent).then(text).str.split_exact("e", 1).struct
    number, shift = parts.field("field_0"), parts.field("field_1")
    digits = number.str.replace_all("[-.]", "")
    first = digits.str.strip_chars_start("0")
    zeros = digits.str.len_chars().cast(pl.Int32) - first.str.len_chars().cast(pl.Int32)
    point = number.str.strip_chars_start("-").str.find(".", literal=True).cast(pl.Int32)
    before = pl.coalesce(point, digits.str.len_chars().cast(pl.Int32))
    exponent = shift.cast(pl.Int32).fill_null(0) + before - 1 - zeros
    rest = first.str.slice(1).str.strip_chars_end("0")
    written = pl.concat_str(
        pl.when(value.expr < 0).then(pl.lit("-")).otherwise(pl.lit("")),
        first.str.slice(0, 1),
        pl.lit("."),
        pl.when(rest == "").then(pl.lit("0")).otherwise(rest),
        pl.lit("E"),
        exponent.cast(pl.String),
    )
    return pl.coalesce(written, text.str.replace("inf", "Infinity", literal=True))


def _to_decimal(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    """A value as a decimal; halves are rounded away from zero."""
    assert isinstance(type_, Decimal)
    if isinstance(value.type, Decimal) and value.type.scale <= type_.scale:
        return _decimal_to_decimal(value, type_, refuse)
    if isinstance(value.type, Decimal):
        found = rounded(value.expr, value.type.scale, type_)
    else:
        # A double has the digits of its text, at most 17. Polars rounds halves of texts to even.
        text = value.expr if value.type == STRING else value.expr.cast(pl.Float64).cast(pl.String)
        text = text.str.strip_chars(_BLANKS)
        more = min(MOST_DIGITS, type_.scale + 18)
        # With as many digits as fit, a 6 in place of the 5 is rounded up.
        up = text.str.replace(rf"^([+-]?[0-9]*\.[0-9]{{{type_.scale}}})5[0-9]*$", "${1}6")
        found = pl.coalesce(
            rounded(number.cast(pl.Decimal(MOST_DIGITS, places), strict=False), places, type_)
            for number, places in ((text, more), (up, type_.scale))
        )
    what = f"a {type_name(value.type)} that cannot be cast to {type_name(type_)}"
    refuse(RowError(value.expr.is_not_null() & found.is_null(), what))
    return found


def division_by_zero(dividend: pl.Expr, divisor: pl.Expr) -> RowError:
    """Rows that are divided by zero; a null dividend gives null."""
    return RowError((divisor == 0) & dividend.is_not_null(), "a division by zero")


def quotient(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    """A / b of doubles. The divisor is made a column: Polars multiplies a column by the reciprocal
    of a single divisor, which is not exact.
    """
    return a / (a.is_null().cast(pl.Float64) + b)


def round_double(number: pl.Expr, places: int) -> pl.Expr:
    """A double rounded as Spark does: the digits of its text, with halves away from zero."""
    text = number.cast(pl.String)
    whole_digits = 16  # a double of more of them is a whole number
    scales = (min(places + 18, MOST_DIGITS), MOST_DIGITS - whole_digits)
    found = (
        rounded(
            text.cast(pl.Decimal(MOST_DIGITS, scale), strict=False),
            scale,
            Decimal(MOST_DIGITS, places),
        )
        for scale in scales
    )
    is_whole = ~(number.abs() < 10**whole_digits)  # or NaN
    return pl.when(is_whole).then(number).otherwise(pl.coalesce(found).cast(pl.Float64))


def unscaled(number: pl.Expr, scale: int) -> pl.Expr:
    """A decimal of a scale as a whole number of its last places."""
    return number.cast(pl.Decimal(MOST_DIGITS, scale)).reinterpret(dtype=pl.Int128)


def rounded(number: pl.Expr, scale: int, type_: Decimal) -> pl.Expr:
    """A decimal of a scale with fewer places, with halves away from zero; null beyond the type.
    Polars refuses a number whose rounded value has over 38 digits with the places of before.
    """
    if scale > type_.scale:
        places, unit = unscaled(number, scale), pl.lit(10 ** (scale - type_.scale), pl.Int128)
        size = places.abs()
        whole_part = size // unit
        rest = size - whole_part * unit
        whole_part += (rest >= unit - rest).cast(pl.Int128)
        number = (whole_part * places.sign()).reinterpret(
            dtype=pl.Decimal(MOST_DIGITS, type_.scale)
        )
    return number.cast(pl.Decimal(type_.precision, type_.scale), strict=False)


def _plain_cast(value: Value, type_: DataType, _refuse: Refuse) -> pl.Expr:
    return value.expr.cast(contract.to_polars(type_))


def _whole_to_decimal(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    assert isinstance(type_, Decimal)
    found = value.expr.cast(contract.to_polars(type_), strict=False)
    digits = type_.precision - type_.scale
    # What was computed may exceed its type.
    if digits < DECIMAL_DIGITS[value.type.name] or not value.expr.meta.is_column():  # type: ignore[union-attr]
        is_beyond = value.expr.is_not_null() & found.is_null()
        refuse(RowError(is_beyond, f"an overflow of {type_name(type_)}"))
    return found


def _decimal_to_decimal(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    old = value.type
    assert isinstance(old, Decimal)
    assert isinstance(type_, Decimal)
    if type_.scale < old.scale:
        raise UnsupportedExpressionError(
            f"a cast from {type_name(old)} to {type_name(type_)}, which rounds"
        )
    digits = type_.precision - type_.scale
    if digits < old.precision - old.scale:
        bound = pl.lit(decimal.Decimal(10**digits), pl.Decimal(MOST_DIGITS, 0))
        refuse(RowError(value.expr.abs() >= bound, f"an overflow of {type_name(type_)}"))
    return value.expr.cast(contract.to_polars(type_), strict=False)


def _decimal_to_whole(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    return whole(value.expr.cast(pl.Int128), type_, refuse).expr


def _decimal_to_double(value: Value, type_: DataType, _refuse: Refuse) -> pl.Expr:
    if not _is_exact(value.type):
        raise UnsupportedExpressionError(
            f"a cast from {type_name(value.type)} to {type_name(type_)}, which rounds"
        )
    return value.expr.cast(pl.Float64)


def _decimal_to_text(value: Value, _type: DataType, _refuse: Refuse) -> pl.Expr:
    assert isinstance(value.type, Decimal)
    if value.type.scale > 6:  # Java may write an exponent
        raise UnsupportedExpressionError(f"a cast from {type_name(value.type)} to string")
    return value.expr.cast(pl.String)


def _float_to_whole(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    low, high = _limits(type_)
    wide = value.expr.cast(pl.Float64)
    # The first double above the range is exact: a power of two. NaN is greater than it.
    inside = (wide > float(low) - 1) if type_ != LONG else wide >= float(low)
    refuse(RowError(~(inside & (wide < float(high + 1))), f"an overflow of {type_name(type_)}"))
    return wide.cast(contract.to_polars(type_), strict=False)


def _boolean_to_text(value: Value, _type: DataType, _refuse: Refuse) -> pl.Expr:
    return pl.when(value.expr).then(pl.lit("true")).when(~value.expr).then(pl.lit("false"))


def _to_boolean(value: Value, _type: DataType, _refuse: Refuse) -> pl.Expr:
    return value.expr != 0


def beyond_years(number: pl.Expr, type_: DataType) -> RowError:
    """Dates and times, as numbers, beyond the years 1 to 9999 that Spark supports."""
    low, high = (day.toordinal() - _EPOCH_DAY for day in (_FIRST_DAY, _LAST_DAY))
    if type_ != DATE:
        low, high = low * DAY_US, (high + 1) * DAY_US - 1
    condition = ~number.is_between(pl.lit(low, pl.Int64), pl.lit(high, pl.Int64))
    return RowError(condition, "a year beyond 1 to 9999", by_version=True)


def time_of(number: pl.Expr, type_: DataType, refuse: Refuse, *, exact: bool) -> Value:
    """A date or a timestamp of a number; one beyond the supported years is not exact."""
    physical = INTEGER if type_ == DATE else LONG
    beyond = RowError(overflow(number, physical).condition, f"an overflow of {type_name(type_)}")
    beyond = beyond_years(number, type_) if exact else beyond
    refuse(beyond)
    number = pl.when(~beyond.condition).then(number).cast(contract.to_polars(physical))
    if type_ == DATE:
        return Value(number.cast(pl.Date), DATE)
    zone = "UTC" if type_ == TIMESTAMP else None
    return Value(number.cast(pl.Datetime("us")).dt.replace_time_zone(zone), type_)


def too_far(value: Value) -> RowError:
    """Times with which Polars does not compute: it panics, or the result is null."""
    most = _MOST_DAYS * (1 if value.type == DATE else DAY_US)
    condition = ~value.expr.to_physical().cast(pl.Int64).is_between(-most, most)
    return RowError(condition, "a time more than 260,000 years from 1970", is_limit=True)


def near(value: Value, refuse: Refuse) -> pl.Expr:
    """A date or a time with which Polars computes; others are errors."""
    beyond = too_far(value)
    refuse(beyond)
    return pl.when(~beyond.condition).then(value.expr)


def in_text_years(day: pl.Expr) -> RowError:
    """Days whose year has no four digits, or is before 1."""
    return beyond_years(day.to_physical(), DATE)


def _date_to_text(value: Value, _type: DataType, refuse: Refuse) -> pl.Expr:
    refuse(in_text_years(value.expr))
    return near(value, refuse).dt.strftime("%Y-%m-%d")


def _time_to_text(value: Value, _type: DataType, refuse: Refuse) -> pl.Expr:
    refuse(in_text_years(value.expr.dt.date()))
    time = near(value, refuse)
    seconds = time.dt.strftime("%Y-%m-%d %H:%M:%S")
    fraction = time.dt.strftime("%.6f").str.strip_chars_end("0").str.strip_chars_end(".")
    return pl.concat_str(seconds, fraction)


def _time_to_date(value: Value, _type: DataType, _refuse: Refuse) -> pl.Expr:
    return value.expr.dt.date()


def _to_time(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    return (
        near(value, refuse)
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone("UTC" if type_ == TIMESTAMP else None)
    )


def _zone_changed(value: Value, type_: DataType, _refuse: Refuse) -> pl.Expr:
    return value.expr.dt.replace_time_zone("UTC" if type_ == TIMESTAMP else None)


def _time_to_whole(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    return whole(value.expr.dt.epoch("us") // 1_000_000, type_, refuse).expr


def _text_to_whole(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    text = value.expr.str.strip_chars(_BLANKS)
    is_plain = text.str.contains(r"^[+-]?[0-9]{1,37}$")
    number = pl.when(is_plain).then(text).cast(pl.Int128, strict=False)
    low, high = (pl.lit(v, pl.Int64) for v in _limits(type_))
    certain = number.is_between(low, high).fill_null(value=False)
    refuse(
        RowError(
            text.is_not_null() & ~certain, f"a string that cannot be cast to {type_name(type_)}"
        )
    )
    return number.cast(contract.to_polars(type_), strict=False)


def _text_to_double(value: Value, _type: DataType, refuse: Refuse) -> pl.Expr:
    text = value.expr.str.strip_chars(_BLANKS)
    is_plain = text.str.contains(r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$")
    refuse(RowError(~is_plain, "a string that is not a plain number"))
    return pl.when(is_plain).then(text).cast(pl.Float64, strict=False)


def _text_to_boolean(value: Value, _type: DataType, refuse: Refuse) -> pl.Expr:
    text = value.expr.str.strip_chars(_BLANKS).str.to_lowercase()
    yes, no = text.is_in(_TRUE), text.is_in(_FALSE)
    refuse(RowError(~(yes | no), "a string that is not a truth value"))
    return yes


def _text_to_date(value: Value, _type: DataType, refuse: Refuse) -> pl.Expr:
    text = value.expr.str.strip_chars(_BLANKS)
    is_plain = text.str.contains(rf"^{_DAY}(?:[ T].*)?$")
    found = pl.when(is_plain).then(text.str.slice(0, 10)).str.to_date("%Y-%m-%d", strict=False)
    certain = found.is_not_null() & (found >= _FIRST_DAY)
    refuse(
        RowError(text.is_not_null() & ~certain, "a string that is not a date such as 2026-01-31")
    )
    return found


def _text_to_time(value: Value, type_: DataType, refuse: Refuse) -> pl.Expr:
    text = value.expr.str.strip_chars(_BLANKS)
    is_plain = text.str.contains(f"^{_time_pattern(type_)}$")
    clock = text.str.slice(11).str.replace("(?:Z|[+-].*)$", "")
    full = pl.concat_str(
        text.str.slice(0, 10),
        pl.lit(" "),
        pl.when(text.str.len_chars() > 10).then(clock).otherwise(pl.lit("00:00:00")),
    )
    found = (
        pl.when(is_plain)
        .then(full)
        .str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    )
    certain = found.is_not_null() & (found.dt.date() >= _FIRST_DAY)
    # Another second than 0 to 59 is a leap second to Polars, and no time to Spark.
    certain &= text.str.slice(17, 2) != "60"
    what = "a string that is not a time such as 2026-01-31 10:00:00"
    refuse(RowError(text.is_not_null() & ~certain.fill_null(value=False), what))
    hours, minutes = (
        text.str.extract(pattern).cast(pl.Int64).fill_null(0)
        for pattern in ("[+-]([0-9]{2}):[0-9]{2}$", "[+-][0-9]{2}:([0-9]{2})$")
    )
    east = pl.duration(minutes=hours * 60 + minutes)
    found = pl.when(text.str.contains("-..:..$")).then(found + east).otherwise(found - east)
    return found.dt.replace_time_zone("UTC" if type_ == TIMESTAMP else None)


def may_be_valid(text: pl.Expr, type_: DataType, failed: pl.Expr) -> RowError:
    """Texts of other forms that Spark may take as a time or a float, as 2026-1-31 and 5d."""
    text = text.str.strip_chars(_BLANKS)
    if type_ in TIMES:
        plain = text.str.contains(f"^{_time_pattern(type_)}$") & ~text.str.starts_with("0000")
        may_be = text.str.contains(_MAY_BE_CLOCK if type_ == TIMESTAMP else _MAY_BE_DATE) & ~plain
        return RowError(failed & may_be, "a string that may be a date or a time to Spark")
    number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?[df]?|0x[0-9a-f.]+p[+-]?[0-9]+[df]?"
    may_be = text.str.contains(f"(?i)^[+-]?(?:{number})$")
    return RowError(failed & may_be, "a string that may be a number to Spark")


def _time_pattern(type_: DataType) -> str:
    """The texts that are cast to a time, without blanks around them."""
    return rf"{_DAY}(?:[ T]{_CLOCK}{_ZONE if type_ == TIMESTAMP else ''})?"


_CASTS: Mapping[tuple[str, str], Callable[[Value, DataType, Refuse], pl.Expr]] = {
    ("boolean", "string"): _boolean_to_text,
    ("boolean", "whole"): _plain_cast,
    ("date", "string"): _date_to_text,
    ("date", "timestamp"): _to_time,
    ("date", "timestamp_ntz"): _to_time,
    ("decimal", "boolean"): _to_boolean,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "double"): _decimal_to_double,
    ("decimal", "string"): _decimal_to_text,
    ("decimal", "whole"): _decimal_to_whole,
    ("double", "float"): _plain_cast,
    ("double", "whole"): _float_to_whole,
    ("float", "double"): _plain_cast,
    ("float", "whole"): _float_to_whole,
    ("string", "boolean"): _text_to_boolean,
    ("string", "date"): _text_to_date,
    ("string", "double"): _text_to_double,
    ("string", "timestamp"): _text_to_time,
    ("string", "timestamp_ntz"): _text_to_time,
    ("string", "whole"): _text_to_whole,
    ("timestamp", "date"): _time_to_date,
    ("timestamp", "string"): _time_to_text,
    ("timestamp", "timestamp_ntz"): _zone_changed,
    ("timestamp", "whole"): _time_to_whole,
    ("timestamp_ntz", "date"): _time_to_date,
    ("timestamp_ntz", "string"): _time_to_text,
    ("timestamp_ntz", "timestamp"): _zone_changed,
    ("whole", "boolean"): _to_boolean,
    ("whole", "decimal"): _whole_to_decimal,
    ("whole", "double"): _plain_cast,
    ("whole", "float"): _plain_cast,
    ("whole", "string"): _plain_cast,
}
_INEXACT = frozenset({"whole", "float", "double", "decimal", "string", "binary"})
_INEXACT_CASTS = frozenset(
    {("decimal", "decimal"), ("decimal", "double"), ("decimal", "string"), ("string", "double")}
)
"""Casts that are refused, or accept less, where they have to be exact."""
