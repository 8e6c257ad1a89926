"""Functions of Spark SQL.

Source: Spark SQL reference, Functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.model.contract import Array, DataType, Decimal, Map, is_nested, to_polars
from lakelog.sql.values import (
    BINARY,
    BOOLEAN,
    DATE,
    DAY_US,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    MOST_DIGITS,
    STRING,
    TIMES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    RowError,
    UnsupportedExpressionError,
    Value,
    in_text_years,
    is_integral,
    is_number,
    near,
    quotient,
    round_double,
    rounded,
    time_of,
    too_far,
    type_name,
    unscaled,
    whole,
)

if TYPE_CHECKING:
    from lakelog.sql.translation import Translation

_MANY = 1 << 30
_MOST_PADDED = 1 << 20
"""Characters that lpad and rpad make."""
_MOST_PLACES = MOST_DIGITS - 18
"""Places to which a number is rounded; a double has up to 17 digits behind them."""


def call(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    """The value of a function; refuses one that is not supported, by name."""
    found = _FUNCTIONS.get(name)
    if found is None and not self.exact:
        found = _INEXACT_FUNCTIONS.get(name)
    if found is None:
        raise UnsupportedExpressionError(f"the function {name}")
    function, least, most = found
    if not least <= len(nodes) <= most:
        raise UnsupportedExpressionError(f"{name} with {len(nodes)} arguments")
    return function(self, name, nodes)


def _refuse(name: str, *values: Value) -> UnsupportedExpressionError:
    types = ", ".join(type_name(v.type) for v in values)
    return UnsupportedExpressionError(f"{name}({types})")


def _literal(self: Translation, name: str, node: Any, kind: type) -> Any:
    """The value of an argument that must be a literal."""
    value = self.value(node)
    if not value.is_literal or type(value.literal) is not kind:
        raise UnsupportedExpressionError(f"{name} with an argument that is not a literal")
    return value.literal


def _time(self: Translation, name: str, node: Any, type_: DataType | None = None) -> Value:
    """A date or time; as one of the type, if any. Spark casts strings, which only literals are."""
    value = self.value(node)
    if value.type == VOID or (value.is_literal and value.type == STRING):
        value = self.cast(value, type_ or DATE)
    if value.type not in TIMES:
        raise _refuse(name, value)
    return value if type_ is None else self.cast(value, type_)


def _text(self: Translation, name: str, node: Any) -> pl.Expr:
    value = self.value(node)
    if value.type not in {STRING, VOID} and not is_integral(value.type):
        raise _refuse(name, value)
    return self.cast(value, STRING).expr


def _whole(self: Translation, name: str, node: Any) -> pl.Expr:
    value = self.value(node)
    if not is_integral(value.type) or (self.exact and value.type == LONG):
        raise _refuse(name, value)
    return value.expr.cast(pl.Int64)


_PARTS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "year": lambda t: t.dt.year(),
    "quarter": lambda t: t.dt.quarter(),
    "month": lambda t: t.dt.month(),
    "day": lambda t: t.dt.day(),
    "dayofmonth": lambda t: t.dt.day(),
    "dayofyear": lambda t: t.dt.ordinal_day(),
    "dayofweek": lambda t: t.dt.weekday() % 7 + 1,
    "weekday": lambda t: t.dt.weekday() - 1,
    "weekofyear": lambda t: t.dt.week(),
}
_CLOCK: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "hour": lambda t: t.dt.hour(),
    "minute": lambda t: t.dt.minute(),
    "second": lambda t: t.dt.second(),
}


def _part(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    if name in _CLOCK:
        time = _time(self, name, nodes[0])
        if time.type == DATE:
            time = self.cast(time, TIMESTAMP_NTZ)
        return Value(_CLOCK[name](near(time, self.refuse_if)).cast(pl.Int32), INTEGER)
    day = _time(self, name, nodes[0], DATE)
    self.refuse_if(too_far(day))  # without `near`, so that files are skipped by the year
    return Value(_PARTS[name](day.expr).cast(pl.Int32), INTEGER)


_PART_NAMES = {"dow": "dayofweek", "doy": "dayofyear", "week": "weekofyear"}
_EXTRACTED = frozenset({"day", "dayofweek", "epoch", "hour", "minute", "month", "quarter", "year"})


def part_of_time(self: Translation, name: str, node: Any) -> Value:
    """EXTRACT(name FROM time)."""
    if name == "second":  # with its fraction, unlike the function second()
        time = self.cast(_time(self, name, node), TIMESTAMP)
        digits = near(time, self.refuse_if).dt.strftime("%S.%6f")
        return Value(digits.cast(pl.Decimal(8, 6)), Decimal(8, 6))
    if name not in _EXTRACTED | _PART_NAMES.keys():
        raise UnsupportedExpressionError(f"the part {name} of a time")
    return call(self, _PART_NAMES.get(name, name), [node])


_UNITS = {
    "1y": ("year", "yyyy", "yy"),
    "1q": ("quarter",),
    "1mo": ("month", "mm", "mon"),
    "1w": ("week",),
}
_CLOCK_UNITS = {
    "1d": ("day", "dd"),
    "1h": ("hour",),
    "1m": ("minute",),
    "1s": ("second",),
    "1ms": ("millisecond",),
    "1us": ("microsecond",),
}


def _unit(name: str, unit: str, units: Mapping[str, Sequence[str]]) -> str:
    found = next((every for every, names in units.items() if unit.lower() in names), None)
    if found is None:
        raise UnsupportedExpressionError(f"{name} to the unit {unit!r}")
    return found


def _trunc(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    day = _time(self, name, nodes[0], DATE)
    every = _unit(name, _literal(self, name, nodes[1], str), _UNITS)
    return Value(near(day, self.refuse_if).dt.truncate(every), DATE)


def _date_trunc(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    every = _unit(name, _literal(self, name, nodes[0], str), _UNITS | _CLOCK_UNITS)
    time = near(_time(self, name, nodes[1], TIMESTAMP), self.refuse_if)
    return Value(time.dt.truncate(every), TIMESTAMP)


_PATTERN = re.compile(r"'(?P<text>[^']*)'|(?P<field>([A-Za-z])\3*)|(?P<other>[-/:., _]+)")
_FORMATS = {
    "yyyy": "%Y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%3f",
    "SSSSSS": "%6f",
}


def _format(name: str, pattern: str) -> str:
    """A pattern of Java as one of Polars."""
    found, end = "", 0
    for match in _PATTERN.finditer(pattern):
        text = match["text"] or match["other"] or _FORMATS.get(match["field"] or "", "")
        if match.start() != end or not text or "%" in (match["text"] or ""):
            break
        found, end = found + text, match.end()
    if end != len(pattern) or not pattern:
        raise UnsupportedExpressionError(f"{name} with the pattern {pattern!r}")
    return found


def _date_format(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    time = self.cast(_time(self, name, nodes[0]), TIMESTAMP)
    pattern = _format(name, _literal(self, name, nodes[1], str))
    self.refuse_if(in_text_years(time.expr.dt.date()))
    return Value(near(time, self.refuse_if).dt.strftime(pattern), STRING)


def _to(type_: DataType) -> Callable[[Translation, str, Sequence[Any]], Value]:
    def cast(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
        return self.cast(self.value(nodes[0]), type_)

    return cast


def _add_days(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    day = _time(self, name, nodes[0], DATE).expr.cast(pl.Int32)
    days = _whole(self, name, nodes[1])
    moved = day.cast(pl.Int128) + (days if name in {"date_add", "dateadd"} else -days)
    return time_of(moved, DATE, self.refuse_if, exact=self.exact)


def _days_between(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    end, start = (_time(self, name, node, DATE).expr.cast(pl.Int32) for node in nodes)
    return self.whole(end.cast(pl.Int64) - start, INTEGER)


def _last_day(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return Value(near(_time(self, name, nodes[0], DATE), self.refuse_if).dt.month_end(), DATE)


_MONTHS = {"month": 1, "year": 12}
_MOST_YEARS = 260_000
_UNIT_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_US,
    "week": 7 * DAY_US,
}


def moved(self: Translation, operator: str, value: Value, interval: Any) -> Value:
    """A date or a time plus or minus an interval; days are 24 hours, in UTC."""
    unit = str(interval.args["unit"] or "").lower().removesuffix("s")
    text = interval.this.name if type(interval.this).__name__ == "Literal" else ""
    in_days = unit in {"day", "week", *_MONTHS}
    if (
        value.type not in TIMES
        or unit not in _MONTHS.keys() | _UNIT_MICROSECONDS
        or not re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII)
        or (value.type == DATE and not in_days)
    ):
        raise UnsupportedExpressionError(
            f"{type_name(value.type)} {operator} {interval.sql(dialect='spark')}"
        )
    count = int(text) * (-1 if operator == "-" else 1)
    if unit in _MONTHS:
        count *= _MONTHS[unit]
        time = near(value, self.refuse_if)
        month = time.dt.year().cast(pl.Int64) * 12 + time.dt.month() - 1 + count
        years = (1, 9999) if self.exact else (-_MOST_YEARS, _MOST_YEARS)
        beyond = ~month.is_between(years[0] * 12, years[1] * 12 + 11)
        self.refuse_if(RowError(beyond, f"a year beyond {years[0]} to {years[1]}"))
        time = pl.when(~beyond).then(time)
        return Value(time.dt.offset_by(f"{count}mo"), value.type)
    step = count * _UNIT_MICROSECONDS[unit] // (DAY_US if value.type == DATE else 1)
    number = value.expr.to_physical().cast(pl.Int128) + pl.lit(step, pl.Int128)
    return time_of(number, value.type, self.refuse_if, exact=self.exact)


_MICROSECONDS = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}


def _of_epoch(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if not is_integral(value.type):
        raise _refuse(name, value)
    factor = _MICROSECONDS[name.removeprefix("timestamp_")]
    value = self.cast(value, LONG)
    us = whole(value.expr.cast(pl.Int128) * factor, LONG, self.refuse_if).expr
    return time_of(us, TIMESTAMP, self.refuse_if, exact=self.exact)


def _epoch(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if value.type != TIMESTAMP:
        raise _refuse(name, value)
    factor = _MICROSECONDS[name.removeprefix("unix_")]
    return Value(value.expr.dt.epoch("us") // factor, LONG)


def _from_unixtime(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    time = near(_of_epoch(self, "timestamp_seconds", nodes[:1]), self.refuse_if)
    pattern = _literal(self, name, nodes[1], str) if len(nodes) > 1 else "yyyy-MM-dd HH:mm:ss"
    return Value(time.dt.strftime(_format(name, pattern)), STRING)


def _now(self: Translation, name: str, _nodes: Sequence[Any]) -> Value:
    self.reads_clock = True
    time = pl.lit(self.now_us, pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    if name in {"current_date", "curdate"}:
        return Value(time.dt.date(), DATE)
    return Value(time, TIMESTAMP)


def _substring(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    position = _whole(self, name, nodes[1])
    length = _whole(self, name, nodes[2]) if len(nodes) > 2 else pl.lit(_MANY, pl.Int64)
    return Value(_cut(text, position, length), STRING)


def _cut(text: pl.Expr, position: pl.Expr, length: pl.Expr) -> pl.Expr:
    """A part of a text, from a position that counts from 1, or from the end if it is negative."""
    offset = pl.when(position > 0).then(position - 1).otherwise(position)
    return text.str.slice(offset, length.clip(lower_bound=0))


def _end(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text, length = _text(self, name, nodes[0]), _whole(self, name, nodes[1])
    position = pl.lit(1, pl.Int64) if name == "left" else -length
    cut = _cut(text, position, length)
    nothing = pl.when(text.is_not_null()).then(pl.lit(""))
    return Value(pl.when(length <= 0).then(nothing).otherwise(cut), STRING)


def _concat(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    values = [self.value(node) for node in nodes]
    for value in values:
        if self.exact and value.type in {BOOLEAN, DOUBLE, FLOAT}:
            raise _refuse(name, value)
    return Value(pl.concat_str([self.cast(v, STRING).expr for v in values]), STRING)


def _concat_ws(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    separator = _literal(self, name, nodes[0], str)
    texts = [_text(self, name, node) for node in nodes[1:]]
    return Value(pl.concat_str(texts, separator=separator, ignore_nulls=True), STRING)


_CASED = r"^[\x00-\u024F\u0370-\u052F\u3040-\u30FF\u4E00-\u9FFF\uAC00-\uD7A3]*$"
_UNCERTAIN_CASE = r"[\u0130\u03A3\u0149\u01F0\u0390\u03B0]"


def _changed_case(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    certain = text.str.contains(_CASED) & ~text.str.contains(_UNCERTAIN_CASE)
    what = "a letter whose other case depends on the version of Unicode"
    self.refuse_if(RowError(~certain, what, by_version=True))
    upper = name in {"upper", "ucase"}
    return Value(text.str.to_uppercase() if upper else text.str.to_lowercase(), STRING)


def is_like(text: pl.Expr, pattern: str, escape: str, folds_case: bool) -> pl.Expr:
    """LIKE, where possible by a comparison that files can be skipped by."""
    parts = re.findall(rf"{re.escape(escape)}(.)|(.)", pattern, re.DOTALL)
    if ("", escape) in parts or any(escaped not in {"", "%", "_", escape} for escaped, _ in parts):
        raise UnsupportedExpressionError(
            f"the pattern {pattern!r}: {escape} has to be before %, _ or another {escape}"
        )
    plain = "".join(escaped or c for escaped, c in parts)
    wild = [n for n, (escaped, c) in enumerate(parts) if not escaped and c in "%_"]
    if not folds_case and not wild:
        return text == plain
    if not folds_case and wild == [len(parts) - 1] and pattern.endswith("%"):
        return text.str.starts_with(plain[:-1])
    regex = "".join(
        re.escape(escaped) if escaped else {"%": ".*", "_": "."}.get(c, re.escape(c))
        for escaped, c in parts
    )
    return text.str.contains(f"(?s{'i' if folds_case else ''})^{regex}$")


def _length(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return Value(_text(self, name, nodes[0]).str.len_chars().cast(pl.Int32), INTEGER)


def _trim(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return trimmed(self, name, nodes[0])


def trimmed(self: Translation, name: str, node: Any, chars_node: Any = None) -> Value:
    """A text without blanks, or other characters, at both ends, or at one of them."""
    text = _text(self, name, node).str
    chars = _literal(self, name, chars_node, str) if chars_node is not None else " "
    cut = {"ltrim": text.strip_chars_start, "rtrim": text.strip_chars_end}
    return Value(cut.get(name, text.strip_chars)(chars), STRING)


def _replace(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    old = _literal(self, name, nodes[1], str)
    new = _literal(self, name, nodes[2], str) if len(nodes) > 2 else ""
    return Value(text.str.replace_all(old, new, literal=True) if old else text, STRING)


def _holds(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text, part = (_text(self, name, node) for node in nodes)
    if name == "contains":
        return Value(text.str.contains(part, literal=True), BOOLEAN)
    return Value(
        (text.str.starts_with if name.startswith("start") else text.str.ends_with)(part), BOOLEAN
    )


def _pad(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    length = _literal(self, name, nodes[1], int)
    fill = _literal(self, name, nodes[2], str) if len(nodes) > 2 else " "
    if not fill or not 0 <= length <= _MOST_PADDED:
        raise UnsupportedExpressionError(f"{name} to {length} with {fill!r}")
    cut = text.str.slice(0, length)
    missing = pl.lit(fill * (length // len(fill) + 1)).str.slice(0, length - cut.str.len_chars())
    parts = (missing, cut) if name == "lpad" else (cut, missing)
    return Value(pl.concat_str(parts), STRING)


def _abs(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if is_integral(value.type):
        return self.whole(value.expr.cast(pl.Int128).abs(), value.type)
    if isinstance(value.type, Decimal) or value.type in {DOUBLE, FLOAT}:
        return Value(value.expr.abs(), value.type)
    raise _refuse(name, value)


def _round(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    digits = _literal(self, name, nodes[1], int) if len(nodes) > 1 else 0
    if is_integral(value.type) and digits >= 0:
        return value
    if self.exact or not is_number(value) or not 0 <= digits <= _MOST_PLACES:
        raise _refuse(name, value)
    if isinstance(value.type, Decimal):
        type_ = _type_with_places(value.type, digits)
        return Value(rounded(value.expr, value.type.scale, type_), type_)
    number = round_double(self.cast(value, DOUBLE).expr, digits)
    return Value(number.cast(pl.Float32), FLOAT) if value.type == FLOAT else Value(number, DOUBLE)


def _type_with_places(type_: Decimal, places: int) -> Decimal:
    """The type that Spark gives a decimal that was rounded to some places."""
    scale = min(type_.scale, places)
    return Decimal(min(type_.precision - type_.scale + 1 + scale, MOST_DIGITS), scale)


def _whole_part(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if is_integral(value.type):
        return self.cast(value, LONG)
    if isinstance(value.type, Decimal) and not self.exact:
        type_ = _type_with_places(value.type, 0)
        places = unscaled(value.expr, value.type.scale)
        unit = pl.lit(10**value.type.scale, pl.Int128)
        whole_part = places // unit if name == "floor" else 0 - (0 - places) // unit
        number = whole_part.reinterpret(dtype=pl.Decimal(MOST_DIGITS, 0))
        return Value(number.cast(to_polars(type_)), type_)
    number = value.expr.floor() if name == "floor" else value.expr.ceil()
    if value.type not in {DOUBLE, FLOAT}:
        raise _refuse(name, value)
    if self.exact:
        return self.cast(Value(number, value.type), LONG)
    number = number.cast(pl.Float64).fill_nan(0)
    low, high = pl.lit(-(2**63), pl.Int64), pl.lit(2**63 - 1, pl.Int64)
    beyond = pl.when(number >= 2.0**63).then(high).when(number < -(2.0**63)).then(low)
    return Value(beyond.otherwise(number.cast(pl.Int64, strict=False)), LONG)


def _rest(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    operator = "%" if name == "mod" else name
    return self.whole_division(operator, *(self.value(node) for node in nodes))


def _coalesce(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    values: list[Value] = []
    left: pl.Expr = pl.lit(value=True)
    for node in nodes:
        with self.only_if(partial(pl.Expr.fill_null, left, value=False)):
            values.append(self.value(node))
        if values[-1].is_literal and values[-1].literal is not None:
            break
        left &= values[-1].expr.is_null()
    values = self.of_one_type(values)
    return Value(pl.coalesce([v.expr for v in values]), values[0].type)


def _nvl2(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    is_known = self.value(nodes[0]).expr.is_not_null
    return self.chosen([(is_known, nodes[1])], nodes[2])


def _nullif(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    a, b = (self.value(node) for node in nodes)
    is_equal = self.comparison("EQ", a, b).fill_null(value=False)
    return Value(pl.when(is_equal).then(None).otherwise(a.expr), a.type)


def _extreme(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    values = self.of_one_type([self.value(node) for node in nodes])
    if values[0].type == BOOLEAN or (self.exact and values[0].type in {DOUBLE, FLOAT}):
        raise _refuse(name, *values)
    greater = name == "greatest"

    def further(a: pl.Expr, b: pl.Expr) -> pl.Expr:
        takes_b = (b > a) if greater else (b < a)
        return pl.when(a.is_null() | takes_b.fill_null(value=False)).then(b).otherwise(a)

    return Value(reduce(further, [v.expr for v in values]), values[0].type)


def _null_test(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    expr = self.value(nodes[0]).expr
    return Value(expr.is_null() if name == "isnull" else expr.is_not_null(), BOOLEAN)


def _nan_test(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if value.type not in {DOUBLE, FLOAT}:
        raise _refuse(name, value)
    return Value(value.expr.is_nan().fill_null(value=False), BOOLEAN)


def _logarithm(of: Callable[[pl.Expr], pl.Expr]) -> Callable[[pl.Expr], pl.Expr]:
    return lambda x: pl.when(x > 0).then(of(x))


_OF_FLOATS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "acos": pl.Expr.arccos,
    "asin": pl.Expr.arcsin,
    "atan": pl.Expr.arctan,
    "cbrt": pl.Expr.cbrt,
    "cos": pl.Expr.cos,
    "degrees": pl.Expr.degrees,
    "exp": pl.Expr.exp,
    "ln": _logarithm(pl.Expr.log),
    "log10": _logarithm(pl.Expr.log10),
    "log2": _logarithm(lambda x: x.log(2)),
    "radians": pl.Expr.radians,
    "sign": pl.Expr.sign,
    "signum": pl.Expr.sign,
    "sin": pl.Expr.sin,
    "sqrt": pl.Expr.sqrt,
    "tan": pl.Expr.tan,
}


def _float(self: Translation, name: str, node: Any) -> pl.Expr:
    value = self.value(node)
    if not is_number(value):
        raise _refuse(name, value)
    return self.cast(value, DOUBLE).expr


def _of_float(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return Value(_OF_FLOATS[name](_float(self, name, nodes[0])), DOUBLE)


def _power(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    base, exponent = (_float(self, name, node) for node in nodes)
    return Value(base.pow(exponent), DOUBLE)


def _position(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    """The place of a text in another, from 1; 0 if it is not there."""
    node = nodes[0]
    if len(nodes) == 1 and type(node).__name__ == "In":
        field = node.args.get("field")
        nodes = [node.this, *([field] if field else node.expressions)]
    if len(nodes) != 2:
        raise UnsupportedExpressionError(f"{name} with {len(nodes)} arguments")
    part, text = nodes if name in {"position", "locate"} else reversed(nodes)
    sought, text = _literal(self, name, part, str), _text(self, name, text)
    before = text.str.extract(f"(?s)^(.*?){re.escape(sought)}").str.len_chars()
    found = pl.when(text.is_not_null()).then((before.cast(pl.Int64) + 1).fill_null(0))
    return Value(found.cast(pl.Int32), INTEGER)


_LAST_LINE_END = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])\z"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\x0B\f\r"}
_PATTERN_PARTS = re.compile(
    r"(?P<escape>\\(?:p\{\w+\}|.))|(?P<end>\$(?=\)*\Z|\|))|(?P<twice>[*+?}][*+{])"
    r"|(?P<flags>\(\?(?![:<]))|(?P<open>\[\^?)|(?P<set>&&|--|~~)|(?P<other>.)",
    re.DOTALL | re.IGNORECASE,
)


def _as_in_java(pattern: str) -> tuple[str, bool]:
    """A regular expression of Java as one of Rust, in which ``$`` is only the end of the text; and
    whether it has one, so that the text without its last line end has to be tried too.
    """
    flags = re.match(r"\(\?([is]+)\)", pattern)
    start = flags.end() if flags else 0
    folds, is_dot_all = (flags is not None and flag in flags[1] for flag in "is")
    found, ends = [pattern[:start]], set[str]()
    depth, in_set, is_after_class = 0, False, False
    for part in _PATTERN_PARTS.finditer(pattern, start):
        text, kind = part[0], part.lastgroup
        following = pattern[part.end() : part.end() + 1]
        escaped = text[1:] if kind == "escape" else ""
        is_negated = escaped in {"D", "S", "W"} or (kind == "open" and text == "[^")
        refused = kind in {"open", "set"} if in_set else kind in {"twice", "flags"}
        # An escaped code may be of a letter beyond ASCII.
        refused |= folds and (is_negated or escaped[:1] in {*"pPxu"} or not text.isascii())
        refused |= (in_set and is_negated) or (kind == "open" and following == "]")
        if kind == "open":
            in_set = True
        elif in_set and text == "]":
            in_set = False
        elif escaped.lower() in _CLASSES:
            chars = _CLASSES[escaped.lower()]
            ends_range = in_set and found[-1] == "-" and found[-2] not in {"[", "[^"}
            refused |= ends_range
            text = chars if in_set else f"[{'^' * is_negated}{chars}]"
        elif escaped:
            ends |= {escaped} & {"z"}
            refused |= (escaped.isalpha() and escaped not in "AzbBnrtfaxu") or len(escaped) > 5
            refused |= escaped in {"b", "B"} and following == "{"
            if escaped in {"<", ">"}:
                text = escaped  # to Rust, these are the bounds of a word
        elif in_set and text == "-" and is_after_class:
            text = r"\-"  # to Java, a range cannot begin with a class
        elif not in_set:
            depth += {"(": 1, ")": -1}.get(text, 0)
            if text == "$":
                ends.add(text)
                refused |= kind != "end" or (following == "|" and depth > 0)
                text = r"\z"
            elif text == "." and not is_dot_all:
                text = r"[^\n\r\x{85}\x{2028}\x{2029}]"
        if refused or len(ends) > 1:
            raise UnsupportedExpressionError(
                f"{part[0]!r} in the regular expression {pattern!r}, which may match other texts "
                "than in Spark"
            )
        found.append(text)
        is_after_class = escaped[:1].lower() in {*_CLASSES, "p"}
    return "".join(found), "$" in ends


def _matches(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    pattern = _literal(self, name, nodes[1], str)
    own, has_end = _as_in_java(pattern)
    try:
        pl.select(pl.lit("").str.contains(own))
    except pl.exceptions.PolarsError as cause:
        raise UnsupportedExpressionError(f"the regular expression {pattern!r}") from cause
    text = _text(self, name, nodes[0])
    found = text.str.contains(own)
    if has_end:
        found |= text.str.replace(_LAST_LINE_END, "").str.contains(own)
    return Value(found, BOOLEAN)


def _changed_text(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    if name == "reverse":
        chars = text.str.extract_all("(?s).").list  # Polars reverses graphemes
        backwards = pl.int_ranges(chars.len().cast(pl.Int64) - 1, -1, -1)
        return Value(chars.gather(backwards).list.join(""), STRING)
    word = pl.element().str
    words = text.str.to_lowercase().str.split(" ")
    return Value(
        words.list.eval(word.head(1).str.to_uppercase() + word.slice(1)).list.join(" "), STRING
    )


def _size_of_text(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    size = (
        value.expr.bin.size()
        if value.type == BINARY
        else _text(self, name, nodes[0]).str.len_bytes()
    )
    return Value(size.cast(pl.Int32) * (8 if name == "bit_length" else 1), INTEGER)


def _epoch_seconds(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    time = self.cast(_time(self, name, nodes[0]), TIMESTAMP)
    return Value(quotient(time.expr.dt.epoch("us"), pl.lit(1e6)), DOUBLE)


def _named_part(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return part_of_time(self, _literal(self, name, nodes[0], str).lower(), nodes[1])


def _size_of_list(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if not isinstance(value.type, Array | Map):
        raise _refuse(name, value)
    items = value.expr.map if isinstance(value.type, Map) else value.expr.list
    return Value(items.len().cast(pl.Int32), INTEGER)


def _in_list(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value, sought = (self.value(node) for node in nodes)
    if not isinstance(value.type, Array) or is_nested(value.type.element):
        raise _refuse(name, value)
    _, element = self.compared(Value(pl.element(), value.type.element), sought)
    if element.type != value.type.element:
        raise _refuse(name, value, sought)
    found = value.expr.list.contains(element.expr, nulls_equal=False)
    is_known = found | (value.expr.list.drop_nulls().list.len() == value.expr.list.len())
    return Value(pl.when(is_known).then(found), BOOLEAN)


_Function = Callable[["Translation", str, Sequence[Any]], Value]
_FUNCTIONS: Mapping[str, tuple[_Function, int, int]] = {
    **dict.fromkeys([*_PARTS, *_CLOCK], (_part, 1, 1)),
    **dict.fromkeys(("trunc",), (_trunc, 2, 2)),
    **dict.fromkeys(("substring", "substr"), (_substring, 2, 3)),
    **dict.fromkeys(("left", "right"), (_end, 2, 2)),
    **dict.fromkeys(("upper", "ucase", "lower", "lcase"), (_changed_case, 1, 1)),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), (_length, 1, 1)),
    **dict.fromkeys(("ltrim", "rtrim"), (_trim, 1, 1)),
    **dict.fromkeys(("startswith", "endswith", "contains"), (_holds, 2, 2)),
    **dict.fromkeys(("lpad", "rpad"), (_pad, 2, 3)),
    **dict.fromkeys(("date_add", "date_sub", "dateadd"), (_add_days, 2, 2)),
    **dict.fromkeys(("datediff", "date_diff"), (_days_between, 2, 2)),
    **dict.fromkeys((f"timestamp_{unit}" for unit in _MICROSECONDS), (_of_epoch, 1, 1)),
    **dict.fromkeys((f"unix_{unit}" for unit in _MICROSECONDS), (_epoch, 1, 1)),
    **dict.fromkeys(("current_date", "curdate", "current_timestamp", "now"), (_now, 0, 0)),
    **dict.fromkeys(("coalesce",), (_coalesce, 1, _MANY)),
    **dict.fromkeys(("nvl", "ifnull"), (_coalesce, 2, 2)),
    **dict.fromkeys(("greatest", "least"), (_extreme, 2, _MANY)),
    **dict.fromkeys(("isnull", "isnotnull"), (_null_test, 1, 1)),
    **dict.fromkeys(("floor", "ceil", "ceiling"), (_whole_part, 1, 1)),
    **dict.fromkeys(("mod", "pmod"), (_rest, 2, 2)),
    "negative": (lambda self, _, nodes: self.negated(self.value(nodes[0])), 1, 1),
    "positive": (lambda self, _, nodes: self.value(nodes[0]), 1, 1),
    "abs": (_abs, 1, 1),
    "concat": (_concat, 1, _MANY),
    "concat_ws": (_concat_ws, 2, _MANY),
    "date": (_to(DATE), 1, 1),
    "date_format": (_date_format, 2, 2),
    "date_trunc": (_date_trunc, 2, 2),
    "from_unixtime": (_from_unixtime, 1, 2),
    "isnan": (_nan_test, 1, 1),
    "last_day": (_last_day, 1, 1),
    "nullif": (_nullif, 2, 2),
    "nvl2": (_nvl2, 3, 3),
    "replace": (_replace, 2, 3),
    "round": (_round, 1, 2),
    "to_date": (_to(DATE), 1, 1),
    "to_timestamp": (_to(TIMESTAMP), 1, 1),
}
_INEXACT_FUNCTIONS: Mapping[str, tuple[_Function, int, int]] = {
    **dict.fromkeys(_OF_FLOATS, (_of_float, 1, 1)),
    **dict.fromkeys(("pow", "power"), (_power, 2, 2)),
    **dict.fromkeys(("instr", "locate", "position", "strpos"), (_position, 1, 2)),
    **dict.fromkeys(("regexp", "regexp_like", "rlike"), (_matches, 2, 2)),
    **dict.fromkeys(("starts_with", "ends_with"), (_holds, 2, 2)),
    **dict.fromkeys(("reverse", "initcap"), (_changed_text, 1, 1)),
    **dict.fromkeys(("bit_length", "octet_length"), (_size_of_text, 1, 1)),
    **dict.fromkeys(("array_length", "array_size", "cardinality", "size"), (_size_of_list, 1, 1)),
    "array_contains": (_in_list, 2, 2),
    "date_part": (_named_part, 2, 2),
    "epoch": (_epoch_seconds, 1, 1),
}
"""Functions whose value may depend on the version of Spark, or that Spark does not have."""
