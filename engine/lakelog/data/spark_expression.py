"""`translate`: SQL expressions of table rules, with the semantics of Spark, as Polars expressions.

CHECK constraints, invariants, generated columns and defaults are Spark SQL. sqlglot parses the
text; the translation gives every part its Spark type. A part that is not of the supported subset
(the table in ``docs/rows.md``) is refused by name before a row is evaluated.

Some results depend on Spark's settings. Where ``spark.sql.ansi.enabled`` decides between an error
and another value (an overflow, a division by zero, an invalid cast), rows that would show the
difference raise an error. They are found by conditions that are evaluated with the expression; in a
branch that is not taken (CASE, COALESCE, AND, OR) they do not count. The session time zone is UTC.

Source: Spark SQL reference, ANSI compliance; Delta protocol, CHECK Constraints; Generated Columns.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.data.row_rules import example
from lakelog.data.spark_values import (
    BOOLEAN,
    BYTE,
    DATE,
    DECIMAL_DIGITS,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    MOST_DIGITS,
    SHORT,
    STRING,
    TIMES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    Bad,
    UnsupportedExpressionError,
    Value,
    beyond_years,
    cast,
    common_type,
    comparable,
    constant,
    is_integral,
    overflow,
    type_name,
    whole,
)
from lakelog.errors import InvalidInputError
from lakelog.model.contract import DataType, Decimal, Struct, column_named, field_named

_ROW = "\x00row"
_DECIMAL_PLACES = re.compile(r"\d*\.(\d*)")


@dataclass(frozen=True)
class RowExpression:
    """An expression over the rows of a table.

    Attributes:
        text: The SQL text.
        type: Its Spark type.
        columns: The columns of the table that it reads.
        expr: The expression.
        first: Conditions on rows for which the expression must not be evaluated.
        bad: Conditions on rows for which Spark's result depends on its settings.
        reads_clock: Whether it depends on the time of the write.
    """

    text: str
    type: DataType
    columns: tuple[str, ...]
    expr: pl.Expr
    first: tuple[Bad, ...]
    bad: tuple[Bad, ...]
    reads_clock: bool

    def reads_none_of(self, columns: Collection[str]) -> bool:
        """Whether it reads no column of these."""
        return set(self.columns).isdisjoint(columns)

    def of(self, rows: pa.Table) -> pl.Series:
        """Its value for each row; raises InvalidInputError for a row without a certain value."""
        read = [name for name in rows.column_names if name in self.columns]
        frame = pl.DataFrame(rows.select(read)) if read else pl.DataFrame(height=rows.num_rows)
        frame = frame.with_row_index(_ROW)
        self._require_none(rows, frame, self.first, pl.col(_ROW))
        return self._require_none(rows, frame, self.bad, self.expr)

    def _require_none(
        self, rows: pa.Table, frame: pl.DataFrame, bad: Sequence[Bad], expr: pl.Expr
    ) -> pl.Series:
        """The values of an expression; refuses rows for which a condition is true."""
        conditions = (
            each.condition.fill_null(value=False).alias(str(n)) for n, each in enumerate(bad)
        )
        found = frame.select(pl.col(_ROW), expr.alias("value"), *conditions)
        for number, each in enumerate(bad):
            wrong = found[str(number)]
            if wrong.any():
                raise InvalidInputError(
                    f"the expression {self.text!r} has no certain value for a row: {each.reason}",
                    expected="a value that does not depend on the settings of Spark",
                    found=example(rows, self.columns, int(wrong.arg_max() or 0)),
                    hint="change the row",
                )
        return found["value"]


def translate(text: str, schema: Struct, type_: DataType | None, now_us: int) -> RowExpression:
    """The expression of a SQL text over the columns of a schema, as a value of a type, or its own.

    `now_us` (microseconds since 1970, UTC) is the time of ``current_timestamp``. Raises
    UnsupportedExpressionError with the unsupported part.
    """
    translation = Translation(schema, now_us)
    value = translation.value(_parse(text))
    type_ = type_ or value.type
    may_cast = value.is_literal and type_ != BOOLEAN
    if not may_cast and common_type(value.type, type_) != type_:
        raise UnsupportedExpressionError(
            f"a value of {type_name(value.type)} in place of {type_name(type_)}"
        )
    value = translation.cast(value, type_)
    return RowExpression(
        text,
        value.type,
        tuple(sorted(translation.columns)),
        value.expr,
        tuple(translation.first),
        tuple(translation.bad),
        translation.reads_clock,
    )


@cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark

    class Rules(Spark):
        """Spark, with every function as it is written: sqlglot rewrites many of them."""

        class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
            FUNCTIONS: Mapping[str, Any] = {}
            FUNCTION_PARSERS: Mapping[str, Any] = {
                "CAST": Spark.Parser.FUNCTION_PARSERS["CAST"],
                "EXTRACT": Spark.Parser.FUNCTION_PARSERS["EXTRACT"],
            }

    return Rules


def _parse(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if "\\" in text:
        raise UnsupportedExpressionError("a backslash in a string literal")
    try:
        tokens = sqlglot.tokenize(text, dialect=_dialect())
        node = sqlglot.parse_one(text, dialect=_dialect())
    except (SqlglotError, RecursionError) as cause:
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise UnsupportedExpressionError(f"a text that cannot be parsed ({reason})") from cause
    for token in tokens:  # sqlglot drops the length
        if token.token_type.name in {"CHAR", "VARCHAR", "NCHAR", "NVARCHAR"}:
            raise UnsupportedExpressionError(f"the type {token.text.lower()}")
    return node


def _sql(node: Any) -> str:
    text = str(node.sql(dialect="spark"))
    return text if len(text) <= 60 else f"{text[:59]}…"


def _plus(places: int, a: Decimal, b: Decimal) -> Decimal:
    whole_digits = max(a.precision - a.scale, b.precision - b.scale)
    return Decimal(whole_digits + max(a.scale, b.scale) + places, max(a.scale, b.scale))


class Translation:
    """The translation of one text: what it reads, and when its value is not certain."""

    def __init__(self, schema: Struct, now_us: int) -> None:
        self._schema = schema
        self.now_us, self.reads_clock = now_us, False
        self.columns: set[str] = set()
        self.first: list[Bad] = []
        self.bad: list[Bad] = []
        self._active: pl.Expr | None = None

    def refuse_if(self, bad: Bad) -> None:
        """Take a condition on rows whose value is not certain."""
        condition = bad.condition if self._active is None else self._active & bad.condition
        self.bad.append(replace(bad, condition=condition))

    @contextmanager
    def only_if(self, condition: pl.Expr) -> Iterator[None]:
        """Values in the block count only for rows for which a condition is true."""
        before = self._active
        known = condition.fill_null(value=False)
        self._active = known if before is None else before & known
        yield
        self._active = before

    def cast(self, value: Value, type_: DataType) -> Value:
        """CAST."""
        return cast(value, type_, self.refuse_if)

    def value(self, node: Any) -> Value:
        """The value of a node of sqlglot."""
        name = type(node).__name__
        handler = _NODES.get(name)
        others = [key for key, given in node.args.items() if given and key not in _ARGUMENTS]
        if handler is None or others:
            raise UnsupportedExpressionError(f"{_sql(node)} ({name})")
        return handler(self, node)

    def boolean(self, node: Any) -> pl.Expr:
        """The value of a condition."""
        value = self.value(node)
        if value.type == VOID:
            return pl.lit(None, pl.Boolean)
        if value.type != BOOLEAN:
            raise UnsupportedExpressionError(
                f"{_sql(node)} as a condition, of type {type_name(value.type)}"
            )
        return value.expr

    def column(self, parts: Sequence[str]) -> Value:
        """A column, or a field of one."""
        type_: DataType = self._schema
        expr: pl.Expr | None = None
        for part in parts:
            field = type_.field(part) if isinstance(type_, Struct) else None
            if field is None:
                raise UnsupportedExpressionError(
                    f"the column {'.'.join(parts)}, which is not found"
                )
            if str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING")).startswith("char"):
                raise UnsupportedExpressionError(f"the column {'.'.join(parts)} of type char")
            if expr is None:
                self.columns.add(field.name)
            expr = column_named(field.name) if expr is None else field_named(expr, field.name)
            type_ = field.type
        assert expr is not None
        if type_ in TIMES:
            self.first.append(beyond_years(expr.to_physical(), type_))
        return Value(expr, type_)

    # --- operators ---------------------------------------------------------------------------

    def compared(self, a: Value, b: Value) -> tuple[pl.Expr, pl.Expr]:
        """Two values in the type in which Spark compares them."""
        type_ = comparable(a, b)
        if type_ is None:
            raise UnsupportedExpressionError(
                f"a comparison of {type_name(a.type)} with {type_name(b.type)}"
            )
        return self.cast(a, type_).expr, self.cast(b, type_).expr

    def arithmetic(self, operator: str, a: Value, b: Value) -> Value:
        """A + b, a - b, a * b."""
        a, b = (self.cast(v, INTEGER) if v.type == VOID else v for v in (a, b))
        if is_integral(a.type) and is_integral(b.type):
            type_ = common_type(a.type, b.type)
            assert type_ is not None
            wide = pl.Int128 if type_ == LONG else pl.Int64
            return whole(
                _ARITHMETIC[operator](a.expr.cast(wide), b.expr.cast(wide)), type_, self.refuse_if
            )
        kinds = {type(a.type), type(b.type)}
        if Decimal in kinds and all(
            isinstance(v.type, Decimal) or is_integral(v.type) for v in (a, b)
        ):
            return self._decimal(operator, a, b)
        if DOUBLE in {a.type, b.type} or (FLOAT in {a.type, b.type} and Decimal in kinds):
            x, y = (self.cast(v, DOUBLE) for v in (a, b))
            return Value(_ARITHMETIC[operator](x.expr, y.expr), DOUBLE)
        if a.type == b.type == FLOAT:
            return Value(_ARITHMETIC[operator](a.expr, b.expr), FLOAT)
        raise UnsupportedExpressionError(f"{type_name(a.type)} {operator} {type_name(b.type)}")

    def _decimal(self, operator: str, a: Value, b: Value) -> Value:
        (a, left), (b, right) = self._as_decimal(a), self._as_decimal(b)
        if operator == "*":
            type_ = Decimal(left.precision + right.precision + 1, left.scale + right.scale)
            most, scales = type_.precision + right.scale, (type_.scale, right.scale)
        else:
            type_ = _plus(1, left, right)
            most, scales = type_.precision, (type_.scale, type_.scale)
        if most > MOST_DIGITS:
            raise UnsupportedExpressionError(
                f"{type_name(left)} {operator} {type_name(right)}, of over {MOST_DIGITS} digits"
            )
        x, y = (
            v.expr.cast(pl.Decimal(MOST_DIGITS, s)) for v, s in zip((a, b), scales, strict=True)
        )
        result = _ARITHMETIC[operator](x, y)
        return Value(result.cast(pl.Decimal(type_.precision, type_.scale)), type_)

    def _as_decimal(self, value: Value) -> tuple[Value, Decimal]:
        if isinstance(value.type, Decimal):
            return value, value.type
        digits = DECIMAL_DIGITS[value.type.name]  # type: ignore[union-attr]
        if value.is_literal:
            digits = len(str(abs(value.literal)))
        type_ = Decimal(digits, 0)
        return self.cast(value, type_), type_

    def divided(self, a: Value, b: Value) -> Value:
        """A / b, of which Spark makes doubles unless both are decimals."""
        if isinstance(a.type, Decimal) or isinstance(b.type, Decimal):
            if not {a.type, b.type} & {DOUBLE, FLOAT}:
                raise UnsupportedExpressionError("a division of decimals")
        elif not all(_is_number(v.type) for v in (a, b)):
            raise UnsupportedExpressionError(f"{type_name(a.type)} / {type_name(b.type)}")
        x, y = self.cast(a, DOUBLE).expr, self.cast(b, DOUBLE).expr
        self.refuse_if(Bad(y == 0, "a division by zero"))
        return Value(x / y, DOUBLE)

    def whole_division(self, operator: str, a: Value, b: Value) -> Value:
        """``DIV``, ``%`` and ``pmod`` of whole numbers."""
        type_ = common_type(a.type, b.type)
        if not (is_integral(a.type) and is_integral(b.type)) or type_ is None:
            raise UnsupportedExpressionError(f"{type_name(a.type)} {operator} {type_name(b.type)}")
        x, y = a.expr.cast(pl.Int128), b.expr.cast(pl.Int128)
        self.refuse_if(Bad(y == 0, "a division by zero"))
        if operator == "div":
            quotient = (x.abs() // y.abs()) * x.sign() * y.sign()
            return whole(quotient, LONG, self.refuse_if)
        # The rest has the sign of the dividend, as in Java; Polars gives it that of the divisor.
        rest = (x.abs() % y.abs()) * x.sign()
        if operator == "pmod":
            self.refuse_if(overflow(rest + y, type_, rest < 0))
            positive = ((rest + y).abs() % y.abs()) * (rest + y).sign()
            rest = pl.when(rest < 0).then(positive).otherwise(rest)
        return whole(rest, type_, self.refuse_if)

    def chosen(self, branches: Sequence[tuple[Callable[[], pl.Expr], Any]], default: Any) -> Value:
        """The value of the first branch whose condition is true; None is null."""
        conditions: list[pl.Expr] = []
        values: list[Value] = []
        left: pl.Expr = pl.lit(value=True)
        for condition, node in branches:
            with self.only_if(left):
                hit = condition().fill_null(value=False)
            with self.only_if(left & hit):
                values.append(node if isinstance(node, Value) else self.value(node))
            conditions.append(hit)
            left &= ~hit
        with self.only_if(left):
            other = constant(None) if default is None else self.value(default)
        values.append(other)
        values = self.of_one_type(values)
        found: Any = pl
        for hit, value in zip(conditions, values, strict=False):
            found = found.when(hit).then(value.expr)
        return Value(found.otherwise(values[-1].expr), values[-1].type)

    def of_one_type(self, values: Sequence[Value]) -> list[Value]:
        """Values in the type that Spark gives all of them."""
        type_: DataType | None = VOID
        for value in values:
            type_ = None if type_ is None else common_type(type_, value.type)
        if type_ is None:
            names = ", ".join(type_name(v.type) for v in values)
            raise UnsupportedExpressionError(f"values of different types ({names})")
        return [self.cast(value, type_) for value in values]


def _is_number(type_: DataType) -> bool:
    return is_integral(type_) or type_ in {DOUBLE, FLOAT, VOID}


_ARITHMETIC: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_COMPARISONS: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "EQ": lambda a, b: a == b,
    "NEQ": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LTE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GTE": lambda a, b: a >= b,
    "NullSafeEQ": lambda a, b: a.eq_missing(b),
    "NullSafeNEQ": lambda a, b: a.ne_missing(b),
}


_PREDICATES = frozenset({*_COMPARISONS, "Between", "In", "Is", "Like", "Not"})
_ARGUMENTS = frozenset(
    "this expression expressions low high ifs default table db catalog is_string to true false"
    " negate safe".split()
)
"""Arguments of nodes that are translated."""


# --- nodes ---------------------------------------------------------------------------------------


def _comparison(self: Translation, node: Any) -> Value:
    for side in (node.this, node.expression):
        if type(side).__name__ in _PREDICATES:  # of which Spark and sqlglot bind others first
            raise UnsupportedExpressionError(f"{_sql(node)}: two comparisons without brackets")
    a, b = self.compared(self.value(node.this), self.value(node.expression))
    return Value(_COMPARISONS[type(node).__name__](a, b), BOOLEAN)


def _and(self: Translation, node: Any) -> Value:
    left = self.boolean(node.this)
    with self.only_if(left.fill_null(value=True)):
        right = self.boolean(node.expression)
    return Value(left & right, BOOLEAN)


def _or(self: Translation, node: Any) -> Value:
    left = self.boolean(node.this)
    with self.only_if(~left.fill_null(value=False)):
        right = self.boolean(node.expression)
    return Value(left | right, BOOLEAN)


def _binary(operator: str) -> Callable[[Translation, Any], Value]:
    def handle(self: Translation, node: Any) -> Value:
        a, b = self.value(node.this), self.value(node.expression)
        if operator in _ARITHMETIC:
            return self.arithmetic(operator, a, b)
        return self.divided(a, b) if operator == "/" else self.whole_division(operator, a, b)

    return handle


def _literal(_self: Translation, node: Any) -> Value:
    if node.is_string:
        return constant(str(node.this))
    return _number(str(node.this))


def _number(text: str) -> Value:
    if re.fullmatch(r"\d+", text):
        return constant(int(text))
    if _DECIMAL_PLACES.fullmatch(text):
        return constant(decimal.Decimal(text))
    try:
        return constant(float(text))  # with an exponent it is a double
    except ValueError:
        raise UnsupportedExpressionError(f"the number {text}") from None


def _negative(self: Translation, node: Any) -> Value:
    value = self.value(node.this)
    if value.is_literal and isinstance(value.literal, int | float | decimal.Decimal):
        return constant(-value.literal)
    if is_integral(value.type):
        return whole(0 - value.expr.cast(pl.Int128), value.type, self.refuse_if)
    if isinstance(value.type, Decimal) or value.type in {DOUBLE, FLOAT}:
        return Value(-value.expr, value.type)
    raise UnsupportedExpressionError(f"-{type_name(value.type)}")


def _column(self: Translation, node: Any) -> Value:
    parts = [part.name for part in node.parts]
    return self.column(parts)


def _dot(self: Translation, node: Any) -> Value:
    names: list[str] = [node.expression.name]
    inner = node.this
    while type(inner).__name__ == "Dot":
        names.insert(0, inner.expression.name)
        inner = inner.this
    if type(inner).__name__ != "Column":
        raise UnsupportedExpressionError(_sql(node))
    return self.column([*(part.name for part in inner.parts), *names])


def _is(self: Translation, node: Any) -> Value:
    what = type(node.expression).__name__
    if what == "Null":
        found = self.value(node.this).expr.is_null()
    elif what == "Boolean":
        found = self.boolean(node.this).eq_missing(pl.lit(bool(node.expression.this)))
    else:
        raise UnsupportedExpressionError(_sql(node))
    return Value(~found if node.args.get("negate") else found, BOOLEAN)


def _not(self: Translation, node: Any) -> Value:
    return Value(~self.boolean(node.this), BOOLEAN)


def _between(self: Translation, node: Any) -> Value:
    value = self.value(node.this)
    a, low = self.compared(value, self.value(node.args["low"]))
    b, high = self.compared(value, self.value(node.args["high"]))
    return Value((a >= low) & (b <= high), BOOLEAN)


def _in(self: Translation, node: Any) -> Value:
    value = self.value(node.this)
    pairs = [self.compared(value, self.value(each)) for each in node.expressions]
    found = [a == b for a, b in pairs]
    while len(found) > 1:  # pairs of pairs: a chain of thousands would be too deep
        found = [reduce(lambda a, b: a | b, found[n : n + 2]) for n in range(0, len(found), 2)]
    return Value(found[0], BOOLEAN)


def _like(self: Translation, node: Any) -> Value:
    value, pattern = self.value(node.this), self.value(node.expression)
    if value.type != STRING or not isinstance(pattern.literal, str):
        raise UnsupportedExpressionError(f"{_sql(node)}: LIKE needs a string and a literal pattern")
    text = "".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern.literal)
    found = value.expr.str.contains(f"(?s)^{text}$")
    return Value(~found if node.args.get("negate") else found, BOOLEAN)


def _cast(self: Translation, node: Any) -> Value:
    if node.args.get("default"):
        raise UnsupportedExpressionError(_sql(node))
    return self.cast(self.value(node.this), _type_of(node.to))


def _type_of(node: Any) -> DataType:
    name = node.this.name
    parameters = [int(p.name) for p in node.expressions if p.name.isdecimal()]
    if name == "DECIMAL" and len(parameters) == len(node.expressions) <= 2:
        precision, scale = (*parameters, *(10, 0)[len(parameters) :])
        if scale <= precision <= MOST_DIGITS:
            return Decimal(precision, scale)
    elif name in _TYPES and not node.expressions:
        return _TYPES[name]
    raise UnsupportedExpressionError(f"the type {_sql(node)}")


_TYPES = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": BYTE,
    "SMALLINT": SHORT,
    "INT": INTEGER,
    "BIGINT": LONG,
    "FLOAT": FLOAT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "DATE": DATE,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}


def _case(self: Translation, node: Any) -> Value:
    operand = None if node.this is None else self.value(node.this)

    def condition(asked: Any) -> Callable[[], pl.Expr]:
        if operand is None:
            return lambda: self.boolean(asked)
        return lambda: _equal(self, operand, self.value(asked))

    branches = [(condition(each.this), each.args["true"]) for each in node.args["ifs"]]
    return self.chosen(branches, node.args.get("default"))


def _equal(self: Translation, a: Value, b: Value) -> pl.Expr:
    x, y = self.compared(a, b)
    return x == y


def _if(self: Translation, node: Any) -> Value:
    branch = (lambda: self.boolean(node.this), node.args["true"])
    return self.chosen([branch], node.args.get("false"))


def _pipe(self: Translation, node: Any) -> Value:
    # Spark adds and concatenates from left to right; sqlglot adds first.
    for side in (node.this, node.expression):
        if type(side).__name__ in {"Add", "Sub"}:
            raise UnsupportedExpressionError(f"{_sql(node)}: || next to + or - without brackets")
    return _concatenated(self, [self.value(node.this), self.value(node.expression)])


def _concatenated(self: Translation, values: Sequence[Value]) -> Value:
    texts = [self.cast(value, STRING).expr for value in values]
    return Value(pl.concat_str(texts), STRING)


def _function(self: Translation, node: Any) -> Value:
    from lakelog.data.spark_functions import call

    return call(self, str(node.this).lower(), list(node.expressions))


def _extract(self: Translation, node: Any) -> Value:
    from lakelog.data.spark_functions import call

    return call(self, str(node.this.name).lower(), [node.expression])


def _clock(self: Translation, node: Any) -> Value:
    from lakelog.data.spark_functions import call

    return call(self, {"CurrentDate": "current_date"}.get(type(node).__name__, "now"), [])


_NODES: Mapping[str, Callable[[Translation, Any], Value]] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    "Add": _binary("+"),
    "And": _and,
    "Anonymous": _function,
    "Between": _between,
    "Boolean": lambda _self, node: constant(bool(node.this)),
    "Case": _case,
    "Cast": _cast,
    "Column": _column,
    "CurrentDate": _clock,
    "CurrentTimestamp": _clock,
    "DPipe": _pipe,
    "Div": _binary("/"),
    "Dot": _dot,
    "Extract": _extract,
    "If": _if,
    "In": _in,
    "IntDiv": _binary("div"),
    "Is": _is,
    "Like": _like,
    "Literal": _literal,
    "Mod": _binary("%"),
    "Mul": _binary("*"),
    "Neg": _negative,
    "Not": _not,
    "Null": lambda _self, _node: constant(None),
    "Or": _or,
    "Paren": lambda self, node: self.value(node.this),
    "Sub": _binary("-"),
    "TryCast": _cast,
}
