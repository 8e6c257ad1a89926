"""`sql_text`: a condition as SQL text for commitInfo.

Source: Delta Lake, operationParameters.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import polars as pl

from lakelog.model.contract import tree_of


def sql_text(where: pl.Expr | str) -> str | None:
    """A condition as SQL text that Spark parses, for ``operationParameters``.

    SQL text of the caller is kept, with quotes as Spark reads them: names in backquotes, and
    backslashes before quotes and backslashes in strings. Literals of an expression are written with
    their type. None if a part has no counterpart in Spark SQL; the parameter is then omitted.

    >>> sql_text((pl.col("day") >= dt.date(2026, 1, 2)) & pl.col("n").is_in([1, 2]))
    "((`day` >= DATE '2026-01-02') AND (`n` IN (1, 2)))"
    """
    if isinstance(where, str):
        return _requoted(where)
    try:
        return _sql(where, tree_of(where))
    except _NOT_SQL:
        return None


# Errors for a part without a counterpart, a literal outside Python's dates, a Python function.
_NOT_SQL = (LookupError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError)
_OPERATORS = {
    "And": "AND",
    "LogicalAnd": "AND",
    "Or": "OR",
    "LogicalOr": "OR",
    "Eq": "=",
    "NotEq": "<>",
    "EqValidity": "<=>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
    "TrueDivide": "/",
}
_CALLS = {
    "IsNull": "({} IS NULL)",
    "IsNotNull": "({} IS NOT NULL)",
    "IsNan": "({} = CAST('NaN' AS DOUBLE))",
    "IsNotNan": "({} <> CAST('NaN' AS DOUBLE))",
    "Not": "(NOT {})",
    "Negate": "(- {})",
    "Abs": "ABS({})",
    "Lowercase": "LOWER({})",
    "Uppercase": "UPPER({})",
    "LenChars": "CHAR_LENGTH({})",
    "Year": "YEAR({})",
    "Month": "MONTH({})",
    "Day": "DAY({})",
    "Date": "CAST({} AS DATE)",
    "FillNull": "COALESCE({}, {})",
}
_MOST_LISTED = 1000  # commitInfo is read with every commit
_JOINED = {"Coalesce": "COALESCE({})", "AnyHorizontal": "({})", "AllHorizontal": "({})"}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_LIKE = {"StartsWith": "{}%", "EndsWith": "%{}", "Contains": "%{}%"}
_TYPES = {
    "Int8": "TINYINT",
    "Int16": "SMALLINT",
    "Int32": "INT",
    "Int64": "BIGINT",
    "Float32": "FLOAT",
    "Float64": "DOUBLE",
    "String": "STRING",
    "Boolean": "BOOLEAN",
    "Date": "DATE",
}


def _sql(expr: pl.Expr, node: Any) -> str:
    """The SQL of a part; raises one of `_NOT_SQL` if it has none."""
    children = list(reversed(expr.meta.pop()))
    match node:
        case {"Column": str(name)}:
            return quoted(name)
        case {"Literal": _}:
            values = pl.select(expr).to_series()
            if values.len() != 1:
                raise ValueError(values.len())
            return _literal(values)
        case {"Alias": [inner, _]}:
            return _sql(children[0], inner)
        case {"Cast": {"expr": inner, "dtype": {"Literal": str(target)}}}:
            return f"CAST({_sql(children[0], inner)} AS {_TYPES[target]})"
        case {"BinaryExpr": {"left": left, "op": str(op), "right": right}}:
            a, b = _sql(children[0], left), _sql(children[1], right)
            if op == "Modulus" and re.fullmatch(r"[1-9]\d*", b):
                return f"PMOD({a}, {b})"  # with a positive divisor, Polars' result is not negative
            if op == "NotEqValidity":
                return f"(NOT ({a} <=> {b}))"
            return f"({a} {_OPERATORS[op]} {b})"
        case {"Ternary": {"predicate": asked, "truthy": yes, "falsy": no}}:
            then, other, when = children
            parts = [_sql(when, asked), _sql(then, yes), _sql(other, no)]
            return "(CASE WHEN {} THEN {} ELSE {} END)".format(*parts)
        case {"Function": {"input": [*nodes], "function": function}}:
            return _call(function, children, nodes)
    raise LookupError(node)


def _call(function: Any, children: Sequence[pl.Expr], nodes: Sequence[Any]) -> str:
    if isinstance(function, dict):  # {"Boolean": "IsNull"}, {"StringExpr": {"Contains": …}}
        ((_, function),) = function.items()
    name: str = function if isinstance(function, str) else ""
    options: Any = None
    if isinstance(function, dict):
        ((name, options),) = function.items()
    first = _sql(children[0], nodes[0])
    if name == "FieldByName":
        return f"{first}.{quoted(options)}"
    if name == "IsIn":
        return _is_in(first, pl.select(children[1]).to_series(), options["nulls_equal"])
    if name in _LIKE:
        text = pl.select(children[1]).to_series()
        is_pattern = name == "Contains" and not options["literal"]
        if is_pattern or text.dtype != pl.String or text.len() != 1:
            raise ValueError(name)
        pattern = re.sub(r"([%_\\])", r"\\\1", text[0])
        return f"({first} LIKE {_quoted_text(_LIKE[name].format(pattern))})"
    rest = [_sql(c, n) for c, n in zip(children[1:], nodes[1:], strict=True)]
    if name == "IsBetween":
        low, high = _BETWEEN[options["closed"]]
        return f"(({first} {low} {rest[0]}) AND ({first} {high} {rest[1]}))"
    if name in _JOINED:
        by = {"AnyHorizontal": " OR ", "AllHorizontal": " AND "}.get(name, ", ")
        return _JOINED[name].format(by.join([first, *rest]))
    return _CALLS[name].format(first, *rest)


def _is_in(value: str, listed: pl.Series, nulls_equal: bool) -> str:
    if isinstance(listed.dtype, pl.List | pl.Array):
        listed = listed.explode()
    known = listed.drop_nulls()
    if not 0 < known.len() <= _MOST_LISTED:
        raise ValueError(value)
    found = f"({value} IN ({', '.join(_literal(known[n : n + 1]) for n in range(known.len()))}))"
    if not nulls_equal:
        return found
    if listed.null_count():
        return f"({found} OR ({value} IS NULL))"
    return f"(({value} IS NOT NULL) AND {found})"


def _literal(one: pl.Series) -> str:
    dtype, value = one.dtype, one[0]
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case float() if not math.isfinite(value):
            text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return f"CAST('{text}' AS DOUBLE)"
        case float():  # without an exponent, it would be a decimal
            text = repr(value)
            return text.upper() if "e" in text else f"{text}E0"
        case str():
            return _quoted_text(value)
        case bytes():
            return f"X'{value.hex().upper()}'"
        case dt.datetime() if isinstance(dtype, pl.Datetime):
            if not one.cast(pl.Datetime("us", dtype.time_zone)).cast(dtype).equals(one):
                raise ValueError(value)  # Spark has microseconds
            zoned = dtype.time_zone is not None
            utc = value.astimezone(dt.UTC) if zoned else value
            return f"{'TIMESTAMP' if zoned else 'TIMESTAMP_NTZ'} '{utc.isoformat(' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
    raise LookupError(dtype)


def _requoted(text: str) -> str:
    from lakelog.sql.translation import tokens

    found, end = "", 0
    for token in tokens(text):
        if token.start < end:  # of a number with a suffix, which sqlglot takes as several tokens
            continue
        found += text[end : token.start]
        end = token.end + 1
        as_written = text[token.start : end]
        as_spark = {"'": _quoted_text, '"': quoted}.get(as_written[:1])
        found += as_written if as_spark is None else as_spark(token.text)
    return found + text[end:]


def quoted(name: str) -> str:
    """A name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def _quoted_text(text: str) -> str:
    # In Spark, '' between quotes is the end of one literal and the start of the next.
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
