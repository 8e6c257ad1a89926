"""Functions of Spark SQL in expressions of table rules.

Source: Spark SQL reference, Functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.data.spark_values import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    Bad,
    UnsupportedExpressionError,
    Value,
    in_text_years,
    is_integral,
    time_of,
    type_name,
    whole,
)
from lakelog.model.contract import DataType, Decimal

if TYPE_CHECKING:
    from lakelog.data.spark_expression import Translation

_MANY = 1 << 30


def call(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    """The value of a function; refuses one that is not supported, by name."""
    found = _FUNCTIONS.get(name)
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
    if not is_integral(value.type) or value.type == LONG:
        raise _refuse(name, value)
    return value.expr.cast(pl.Int64)


# --- dates and times -----------------------------------------------------------------------------

_PARTS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "year": lambda t: t.dt.year(),
    "quarter": lambda t: t.dt.quarter(),
    "month": lambda t: t.dt.month(),
    "day": lambda t: t.dt.day(),
    "dayofmonth": lambda t: t.dt.day(),
    "dayofyear": lambda t: t.dt.ordinal_day(),
    "dayofweek": lambda t: t.dt.weekday() % 7 + 1,
    "weekday": lambda t: t.dt.weekday() - 1,
    "week": lambda t: t.dt.week(),
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
        return Value(_CLOCK[name](time.expr).cast(pl.Int32), INTEGER)
    return Value(_PARTS[name](_time(self, name, nodes[0], DATE).expr).cast(pl.Int32), INTEGER)


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
    return Value(day.expr.dt.truncate(every), DATE)


def _date_trunc(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    every = _unit(name, _literal(self, name, nodes[0], str), _UNITS | _CLOCK_UNITS)
    return Value(_time(self, name, nodes[1], TIMESTAMP).expr.dt.truncate(every), TIMESTAMP)


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
    return Value(time.expr.dt.strftime(pattern), STRING)


def _to(type_: DataType) -> Callable[[Translation, str, Sequence[Any]], Value]:
    def cast(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
        return self.cast(self.value(nodes[0]), type_)

    return cast


def _add_days(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    day = _time(self, name, nodes[0], DATE).expr.cast(pl.Int32)
    days = _whole(self, name, nodes[1])
    moved = day.cast(pl.Int64) + (days if name in {"date_add", "dateadd"} else -days)
    return time_of(moved, DATE, self.refuse_if)


def _days_between(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    end, start = (_time(self, name, node, DATE).expr.cast(pl.Int32) for node in nodes)
    return whole(end.cast(pl.Int64) - start, INTEGER, self.refuse_if)


def _last_day(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return Value(_time(self, name, nodes[0], DATE).expr.dt.month_end(), DATE)


_MICROSECONDS = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}


def _of_epoch(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if not is_integral(value.type):
        raise _refuse(name, value)
    factor = _MICROSECONDS[name.removeprefix("timestamp_")]
    us = whole(value.expr.cast(pl.Int128) * factor, LONG, self.refuse_if).expr
    return time_of(us, TIMESTAMP, self.refuse_if)


def _epoch(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if value.type != TIMESTAMP:
        raise _refuse(name, value)
    factor = _MICROSECONDS[name.removeprefix("unix_")]
    return Value(value.expr.dt.epoch("us") // factor, LONG)


def _from_unixtime(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    time = _of_epoch(self, "timestamp_seconds", nodes[:1]).expr
    pattern = _literal(self, name, nodes[1], str) if len(nodes) > 1 else "yyyy-MM-dd HH:mm:ss"
    return Value(time.dt.strftime(_format(name, pattern)), STRING)


def _now(self: Translation, name: str, _nodes: Sequence[Any]) -> Value:
    self.reads_clock = True
    time = pl.lit(self.now_us, pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    if name in {"current_date", "curdate"}:
        return Value(time.dt.date(), DATE)
    return Value(time, TIMESTAMP)


# --- strings -------------------------------------------------------------------------------------


def _substring(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    position = _whole(self, name, nodes[1])
    length = _whole(self, name, nodes[2]) if len(nodes) > 2 else pl.lit(_MANY, pl.Int64)
    return Value(_cut(text, position, length), STRING)


def _cut(text: pl.Expr, position: pl.Expr, length: pl.Expr) -> pl.Expr:
    size = text.str.len_chars().cast(pl.Int64)
    start = (
        pl.when(position > 0)
        .then(position - 1)
        .when(position < 0)
        .then(size + position)
        .otherwise(pl.lit(0, pl.Int64) + position)
    )
    first = start.clip(lower_bound=0)
    count = (start + length - first).clip(lower_bound=0)
    return text.str.slice(first, count.cast(pl.UInt64))


def _end(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text, length = _text(self, name, nodes[0]), _whole(self, name, nodes[1])
    position = pl.lit(1, pl.Int64) if name == "left" else -length
    cut = _cut(text, position, length)
    nothing = pl.when(text.is_not_null()).then(pl.lit(""))
    return Value(pl.when(length <= 0).then(nothing).otherwise(cut), STRING)


def _concat(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    values = [self.value(node) for node in nodes]
    for value in values:
        if value.type in {BOOLEAN, DOUBLE, FLOAT}:
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
    self.refuse_if(Bad(~certain, "a letter whose other case depends on the version of Unicode"))
    upper = name in {"upper", "ucase"}
    return Value(text.str.to_uppercase() if upper else text.str.to_lowercase(), STRING)


def _length(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    return Value(_text(self, name, nodes[0]).str.len_chars().cast(pl.Int32), INTEGER)


def _trim(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0]).str
    cut = {"ltrim": text.strip_chars_start, "rtrim": text.strip_chars_end}
    return Value(cut.get(name, text.strip_chars)(" "), STRING)


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
        (text.str.starts_with if name == "startswith" else text.str.ends_with)(part), BOOLEAN
    )


def _pad(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    text = _text(self, name, nodes[0])
    length = _literal(self, name, nodes[1], int)
    fill = _literal(self, name, nodes[2], str) if len(nodes) > 2 else " "
    if len(fill) != 1 or length < 0:
        raise UnsupportedExpressionError(f"{name} to {length} with {fill!r}")
    cut = text.str.slice(0, length)
    return Value((cut.str.pad_start if name == "lpad" else cut.str.pad_end)(length, fill), STRING)


# --- numbers and choices -------------------------------------------------------------------------


def _abs(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if is_integral(value.type):
        return whole(value.expr.cast(pl.Int128).abs(), value.type, self.refuse_if)
    if isinstance(value.type, Decimal) or value.type in {DOUBLE, FLOAT}:
        return Value(value.expr.abs(), value.type)
    raise _refuse(name, value)


def _round(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    digits = _literal(self, name, nodes[1], int) if len(nodes) > 1 else 0
    if is_integral(value.type) and digits >= 0:
        return value
    raise _refuse(name, value)


def _whole_part(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if is_integral(value.type):
        return self.cast(value, LONG)
    if value.type not in {DOUBLE, FLOAT}:
        raise _refuse(name, value)
    number = value.expr.floor() if name == "floor" else value.expr.ceil()
    return self.cast(Value(number, value.type), LONG)


def _rest(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    operator = "%" if name == "mod" else name
    return self.whole_division(operator, *(self.value(node) for node in nodes))


def _coalesce(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    values: list[Value] = []
    left: pl.Expr = pl.lit(value=True)
    for node in nodes:
        with self.only_if(left):
            values.append(self.value(node))
        left &= values[-1].expr.is_null()
    values = self.of_one_type(values)
    return Value(pl.coalesce([v.expr for v in values]), values[0].type)


def _nvl2(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    is_known = self.value(nodes[0]).expr.is_not_null
    return self.chosen([(is_known, nodes[1])], nodes[2])


def _nullif(self: Translation, _name: str, nodes: Sequence[Any]) -> Value:
    a, b = (self.value(node) for node in nodes)
    x, y = self.compared(a, b)
    return Value(pl.when((x == y).fill_null(value=False)).then(None).otherwise(a.expr), a.type)


def _extreme(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    values = self.of_one_type([self.value(node) for node in nodes])
    if values[0].type in {DOUBLE, FLOAT, BOOLEAN}:
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


def _signed(self: Translation, name: str, nodes: Sequence[Any]) -> Value:
    value = self.value(nodes[0])
    if name == "positive":
        return value
    if is_integral(value.type):
        return whole(0 - value.expr.cast(pl.Int128), value.type, self.refuse_if)
    raise _refuse(name, value)


_Function = Callable[["Translation", str, Sequence[Any]], Value]
_FUNCTIONS: Mapping[str, tuple[_Function, int, int]] = {
    **dict.fromkeys([*_PARTS, *_CLOCK], (_part, 1, 1)),
    **dict.fromkeys(("trunc",), (_trunc, 2, 2)),
    **dict.fromkeys(("substring", "substr"), (_substring, 2, 3)),
    **dict.fromkeys(("left", "right"), (_end, 2, 2)),
    **dict.fromkeys(("upper", "ucase", "lower", "lcase"), (_changed_case, 1, 1)),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), (_length, 1, 1)),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), (_trim, 1, 1)),
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
    **dict.fromkeys(("negative", "positive"), (_signed, 1, 1)),
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
