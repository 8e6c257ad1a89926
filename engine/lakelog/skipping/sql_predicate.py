"""Conditions as Polars expressions and as SQL text.

`condition` parses SQL text to an expression with the types of a table's schema; Python, CLI and
Spark use this parser. `sql_text` writes a condition as SQL for commitInfo.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import polars as pl
from polars.io.plugins import register_io_source

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import tree_of
from lakelog.skipping.prune import referenced_columns, require_comparable

_HINT = "write a SQL condition over the table's columns, such as \"day >= '2026-01-05'\""
_TIMESTAMP = re.compile(
    r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)|\bTIMESTAMP(?:_NTZ)?\s*(?=')""", re.IGNORECASE
)
"""A quoted text, or the word before a literal."""
_STRING = re.compile("'(?:[^']|'')*'")
_REWRITTEN = re.compile(
    r"[+*]|-(?!\s*[\d.])|[^\s(,=<>]\s*-"
    r"|\b(?:ABS|POW|POWER|STRPOS|POSITION)\s*\("
    r"|\bIS\s+(?:NOT\s+)?(?:TRUE|FALSE|DISTINCT)\b",
    re.IGNORECASE,
)
"""Found in every text that `_as_sql` may change, outside of strings."""
_PATTERN_CHARACTERS = re.compile(r"[\\.+*?()|\[\]{}^$]")
_ARITHMETIC = frozenset({"PLUS", "DASH", "STAR"})
_SEARCHES, _POWERS = frozenset({"STRPOS", "POSITION"}), frozenset({"POWER", "POW"})
_CLOSING = {"L_PAREN": "R_PAREN", "L_BRACKET": "R_BRACKET", "CASE": "END"}
_OPENING = {closing: opening for opening, closing in _CLOSING.items()}
_KEYWORDS = frozenset("AND OR NOT IN BETWEEN LIKE ILIKE RLIKE IS FROM CASE WHEN THEN ELSE".split())
_AFTER_OPERAND = frozenset({"AND", "OR", "IS", "COMMA", "WHEN", "THEN", "ELSE"})
_NEVER = "\0never"
_QUOTED = re.compile(r"""('(?:[^']|'')*'|`[^`]*`)|"((?:[^"]|"")*)\"""")
"""A string, or a name in backquotes or in double quotes."""


def condition(where: pl.Expr | str | None, schema: contract.Struct) -> pl.Expr | None:
    """The condition of a caller as an expression; raises InvalidInputError unless it is row-wise.

    Literals in SQL text get the type of the column that they are compared with; ``TIMESTAMP '…'``
    fits times with and without a zone. Expressions are checked where they are evaluated.
    """
    return _parsed_text(where, schema) if isinstance(where, str) else where


def sql_text(where: pl.Expr | str) -> str | None:
    """A condition as SQL text that Spark parses, for ``operationParameters``.

    SQL text of the caller is kept, with names in backquotes instead of double quotes, which to
    Spark delimit strings. Literals of an expression are written with their type. None if a part has
    no counterpart in Spark SQL; the parameter is then omitted.

    >>> sql_text((pl.col("day") >= dt.date(2026, 1, 2)) & pl.col("n").is_in([1, 2]))
    "((`day` >= DATE '2026-01-02') AND (`n` IN (1, 2)))"
    """
    if isinstance(where, str):
        return _QUOTED.sub(lambda found: found[1] or _quoted(found[2].replace('""', '"')), where)
    try:
        return _sql(where, tree_of(where))
    except _NOT_SQL:
        return None


def parse_sql(text: str, schema: contract.Struct) -> pl.Expr:
    """The expression of SQL text. Sums, differences and products of whole numbers are `pl.Int128`.

    >>> schema = contract.Struct((contract.Field("n", contract.Primitive("byte")),))
    >>> for text in ("b IS NOT TRUE", "n IS DISTINCT FROM 1 OR b", "n + 2"):
    ...     print(parse_sql(text, schema))
    [([(col("b")) ==v (true)]) == (false)]
    [([([(col("n")) ==v (dyn int: 1)]) == (false)]) | (col("b"))]
    [(col("n").strict_cast(Int128)) + (dyn int: 2)]
    """
    return pl.sql_expr(_as_sql(text, schema))


def _parsed_text(text: str, schema: contract.Struct) -> pl.Expr:
    refused: pl.exceptions.PolarsError | None = None
    # In Polars, such a literal has no time zone, and cannot be compared with a time that has one.
    safe = _as_sql(text, schema)
    for sql in dict.fromkeys((safe, _TIMESTAMP.sub(lambda found: found[1] or "", safe))):
        try:
            return _parsed(sql, schema)
        except pl.exceptions.PolarsError as cause:
            refused = refused or cause
    assert refused is not None, "all forms of the condition were rejected"
    raise _refusal(text, refused) from refused


class _Token(NamedTuple):
    """A token of SQL text, its place there, and its text in capitals."""

    kind: str
    start: int
    end: int
    text: str

    @property
    def is_word(self) -> bool:
        """Whether it is a name or a keyword."""
        return self.kind == "IDENTIFIER" or self.text[0].isidentifier()


def _as_sql(text: str, schema: contract.Struct) -> str:
    """The text, written so that Polars gives it the meaning that it has in SQL.

    Polars computes in the type of the operands and wraps around (``MONTH(d) * 100`` has 8 bits, and
    ``ABS`` of the least number is negative), searches in ``STRPOS`` for a regular expression, reads
    ``IS TRUE`` as a comparison, and extends the operand after ``DISTINCT FROM`` over AND and OR.
    """
    if not _REWRITTEN.search(_STRING.sub("''", text)):
        return text
    tokens = _tokens(text)
    columns = {f.name: contract.to_polars(f.type) for f in schema.fields}
    edits: list[tuple[int, int, str]] = []  # start, end, new text
    operands: set[tuple[int, int]] = set()
    for i, token in enumerate(tokens):
        following = [each.kind for each in tokens[i + 1 : i + 4]]
        negated = following[:1] == ["NOT"]
        match token.kind, following[negated:]:
            case "IS", ["TRUE" | "FALSE" as value, *_]:
                end = tokens[i + 1 + negated].end
                edits.append((token.start, end, f"<=> {value}{' = FALSE' if negated else ''}"))
            case "IS", ["DISTINCT", "FROM", *_]:
                first = i + 3 + negated
                end = tokens[_last_of_comparison(tokens, first)].end
                edits.append((token.start, tokens[first - 1].end, "<=> ("))
                edits.append((end, end, ")" if negated else ") = FALSE"))
            case kind, _ if kind in _ARITHMETIC:
                operands |= {_operand_before(tokens, i), _operand_after(tokens, i)}
            case _, ["L_PAREN", *_] if token.text == "ABS":
                operands.add((i + 2, _matching(tokens, i + 1, 1) - 1))
            case _, ["L_PAREN", *_] if token.text in _POWERS:
                end = tokens[_last_of_comparison(tokens, i + 2)].end
                start = tokens[i + 1].end
                edits += [(start, start, "("), (end, end, ")::DOUBLE")]
            case _, ["L_PAREN", *_] if token.text in _SEARCHES:
                edits.append(_literal_search(text, tokens, i))
    for first, last in operands:
        if first > last:
            continue
        start, end = tokens[first].start, tokens[last].end
        if _is_integer(text[start:end], columns):
            edits += [(start, start, "CAST("), (end, end, " AS HUGEINT)")]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _literal_search(text: str, tokens: Sequence[_Token], call: int) -> tuple[int, int, str]:
    """The edit that makes the text that a call of `_SEARCHES` searches a pattern of itself."""
    first, end = call + 2, _matching(tokens, call + 1, 1)
    by_comma = tokens[call].text == "STRPOS"
    found = end - 1 if by_comma else first
    separator = found - 1 if by_comma else found + 1
    if not (
        first <= found < end
        and tokens[found].kind == "STRING"
        and tokens[separator].kind == ("COMMA" if by_comma else "IN")
    ):
        raise InvalidInputError(
            "STRPOS and POSITION search only for a string literal",
            expected="STRPOS(name, 'a') or POSITION('a' IN name)",
            found=text,
        )
    start, stop = tokens[found].start, tokens[found].end
    return start, stop, _PATTERN_CHARACTERS.sub(r"\\\g<0>", text[start:stop])


def _tokens(text: str) -> list[_Token]:
    from sqlglot.errors import TokenError
    from sqlglot.tokens import Tokenizer

    class Names(Tokenizer):
        IDENTIFIERS: ClassVar = ['"', "`"]

    try:
        found = Names().tokenize(text)
    except TokenError:
        return []  # Polars reports it
    return [
        _Token(
            each.token_type.name,
            each.start,
            each.end + 1,
            text[each.start : each.end + 1].upper(),
        )
        for each in found
    ]


def _operand_before(tokens: Sequence[_Token], operator: int) -> tuple[int, int]:
    """The first and last token of the operand on the left; the first is later if there is none."""
    first = last = operator - 1
    if first < 0 or tokens[first].kind in _KEYWORDS:
        return operator, last
    while True:
        first = _matching(tokens, first, -1)
        before = tokens[first - 1] if first else None
        if before is None:
            return first, last
        called = before.is_word and before.kind not in _KEYWORDS
        if tokens[first].kind == "L_BRACKET" or (tokens[first].kind == "L_PAREN" and called):
            first -= 1
        elif before.kind in {"DOT", "DCOLON"}:
            first = max(first - 2, 0)
        else:
            return first, last


def _operand_after(tokens: Sequence[_Token], operator: int) -> tuple[int, int]:
    """The first and last token of the operand on the right, as `_operand_before`."""
    first = last = operator + 1
    if first >= len(tokens) or tokens[first].kind in _ARITHMETIC:
        return first, operator
    while True:
        last = _matching(tokens, last, 1)
        after = tokens[last + 1].kind if last + 1 < len(tokens) else ""
        if after == "L_BRACKET" or (after == "L_PAREN" and tokens[last].is_word):
            last += 1
        elif after in {"DOT", "DCOLON"} and last + 2 < len(tokens):
            last += 2
        else:
            return first, last


def _matching(tokens: Sequence[_Token], at: int, step: int) -> int:
    """The bracket that belongs to the one at a place; the place itself if there is none."""
    kind = tokens[at].kind
    other = (_CLOSING if step > 0 else _OPENING).get(kind)
    depth = 0
    for i in range(at, len(tokens) if step > 0 else -1, step):
        depth += (tokens[i].kind == kind) - (tokens[i].kind == other)
        if not depth:
            return i
        if other is None:
            break
    return at


def _last_of_comparison(tokens: Sequence[_Token], first: int) -> int:
    """The last token of the operand that begins at `first`, up to an operator of lower rank."""
    depth = 0
    for i, token in enumerate(tokens[first:], first):
        if not depth and (token.kind in _AFTER_OPERAND or token.kind in _OPENING):
            return i - 1
        depth += (token.kind in _CLOSING) - (token.kind in _OPENING)
    return len(tokens) - 1


def _is_integer(text: str, columns: Mapping[str, pl.DataType]) -> bool:
    """Whether a part of SQL text is a whole number, and not a literal."""
    if text.isdigit():
        return False
    try:
        schema = pl.LazyFrame(schema=columns).select(pl.sql_expr(text)).collect_schema()
    except pl.exceptions.PolarsError:
        return False  # a keyword, or a date without its literal
    return all(dtype.is_integer() for dtype in schema.dtypes())


def _parsed(sql: str, schema: contract.Struct) -> pl.Expr:
    raw = pl.sql_expr(sql)
    roots = set(raw.meta.root_names())
    if raw.meta.has_multiple_outputs() or not roots <= set(schema.names):
        referenced_columns(raw, schema)  # raises, and names the closest columns
    used = contract.Struct(tuple(field for field in schema.fields if field.name in roots))
    _require_boolean(raw, sql, used)
    require_comparable(raw, used, "where")
    typed = _typed(sql, used)
    # Parts that Polars does not push down to the rows (aggregates, windows) are rejected by name.
    return raw if typed is None else typed


def _typed(text: str, schema: contract.Struct) -> pl.Expr | None:
    """The condition as Polars' planner hands it to a scan of the table; None if not all of it."""
    pushed: list[pl.Expr | None] = []
    columns = pl.Schema({f.name: contract.to_polars(f.type) for f in schema.fields})
    planned = pl.Schema({**columns, _NEVER: pl.Boolean()})

    def scan(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        _n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        pushed.append(predicate)
        yield pl.DataFrame(schema=planned).select(with_columns or list(planned))

    # The brackets keep a text that is more than a condition from ending it; and there is nothing
    # to reach here but an empty frame. OR keeps the parts of the text together: those joined by AND
    # are planned one by one, and one that can fail, such as `n % 2 = 0`, is not handed to a scan.
    sql = f'SELECT * FROM self WHERE ({text}) OR "{_NEVER}"'  # noqa: S608 - it is a condition
    register_io_source(scan, schema=planned).sql(sql).collect()
    if not pushed or pushed[0] is None:
        return None
    match sorted(pushed[0].meta.pop(), key=lambda part: part.meta.root_names() == [_NEVER]):
        case [typed, never] if never.meta.is_column() and _NEVER not in typed.meta.root_names():
            pl.DataFrame(schema=columns).select(typed)  # some types are only compared here
            return typed
    return None


def _require_boolean(expr: pl.Expr, text: str, schema: contract.Struct) -> None:
    """Raise for a number, which Polars' SQL accepts as a truth value: ``delete("1")`` would delete
    all rows.
    """
    columns = pl.Schema({f.name: contract.to_polars(f.type) for f in schema.fields})
    try:
        dtype = pl.LazyFrame(schema=columns).select(expr).collect_schema().dtypes()[0]
    except pl.exceptions.PolarsError:
        return  # rejected later, with the name of the column
    if dtype not in {pl.Boolean(), pl.Null()}:
        raise InvalidInputError(
            "where must be a condition that is true or false",
            expected="a Boolean expression",
            found=f"{text}, of type {dtype}",
            hint=_HINT,
        )


def _refusal(text: str, cause: Exception) -> InvalidInputError:
    reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return InvalidInputError(f"the condition cannot be used: {reason}", found=text, hint=_HINT)


# A part without a counterpart; a literal beyond Python's dates; a Python function.
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
            return _quoted(name)
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
        return f"{first}.{_quoted(options)}"
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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted_text(text: str) -> str:
    # In Spark, '' between quotes is the end of one literal and the start of the next.
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
