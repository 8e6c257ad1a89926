"""The translation of SQL expressions to Polars, with the semantics of Spark SQL.

sqlglot parses the text; `Translation` gives every part its Spark type. A part that is not of the
supported subset (the table in ``docs/sql.md``) is refused by name before a row is evaluated.

Some values are errors (a division by zero, an invalid cast). Their rows are found by conditions
that are evaluated with the expression; in a branch that is not taken (CASE, COALESCE, AND, OR) they
do not count. The session time zone is UTC.

Table rules (constraints, generated columns) are translated exactly: a part whose value depends on
settings or the version of Spark is refused, and so are rows for which it does. Conditions and new
values of callers take more: arithmetic of whole numbers does not overflow, and functions whose last
digit may differ are accepted.

Source: Spark SQL reference, ANSI compliance; Delta protocol, CHECK Constraints; Generated Columns.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, reduce
from operator import and_, or_
from typing import Any

import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.model.contract import (
    Array,
    DataType,
    Decimal,
    Map,
    Struct,
    column_named,
    field_named,
    is_nested,
    to_polars,
)
from lakelog.skipping.prune import row_wise
from lakelog.sql import decimals
from lakelog.sql.functions import call, is_like, moved, part_of_time, trimmed
from lakelog.sql.values import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
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
    RowError,
    UnsupportedExpressionError,
    Value,
    beyond_years,
    cast,
    common_type,
    comparable,
    constant,
    division_by_zero,
    is_integral,
    is_number,
    literal_as,
    may_be_valid,
    overflow,
    quotient,
    rest_by_literal,
    type_name,
    typed,
    whole,
)

_DECIMAL_PLACES = re.compile(r"\d*\.(\d*)")


@cache
def _dialects() -> tuple[Any, Any]:
    from sqlglot.dialects.spark import Spark

    class Rules(Spark):
        """Spark, with every function as it is written: sqlglot rewrites many of them."""

        class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
            FUNCTIONS: Mapping[str, Any] = {}
            FUNCTION_PARSERS: Mapping[str, Any] = {
                name: Spark.Parser.FUNCTION_PARSERS[name]
                for name in ("CAST", "EXTRACT", "TRIM", "TRY_CAST")
            }

    class Standard(Rules):
        """Names in double quotes, as in the SQL standard, and no escapes in strings."""

        class Tokenizer(Rules.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012
            IDENTIFIERS = ["`", '"']  # noqa: RUF012

    return Rules, Standard


def parse(text: str, *, exact: bool = True) -> Any:
    """The syntax tree of Spark SQL; or of a caller's text, with names in double quotes."""
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.expressions import Condition

    dialect = _dialects()[not exact]
    if exact and "\\" in text:
        raise UnsupportedExpressionError("a backslash in a string literal")
    try:
        tokens = sqlglot.tokenize(text, dialect=dialect)
        # As an expression: a column may have the name of a statement, such as comment or set.
        node = sqlglot.parse_one(text, into=Condition, dialect=dialect)
    except (SqlglotError, RecursionError) as cause:
        place = "".join(
            f", at line {e['line']}, column {e['col']}" for e in getattr(cause, "errors", [])[:1]
        )
        what = "is nested too deeply" if isinstance(cause, RecursionError) else "cannot be parsed"
        raise UnsupportedExpressionError(f"text that {what}{place}") from cause
    following = [token.text for token in tokens[1:]] + [""]
    for token, after in zip(tokens, following, strict=True):  # sqlglot drops the length
        is_text = token.token_type.name in {"CHAR", "VARCHAR", "NCHAR", "NVARCHAR"}
        if is_text and (exact or after == "("):
            raise UnsupportedExpressionError(f"the type {token.text.lower()}")
        if exact and token.text == ";":
            raise UnsupportedExpressionError("a semicolon, which Spark does not parse")
    return node


def tokens(text: str) -> Sequence[Any]:
    """The tokens of a caller's text, with the positions of their first and last characters."""
    import sqlglot

    return sqlglot.tokenize(text, dialect=_dialects()[True])


def _sql(node: Any) -> str:
    text = str(node.sql(dialect="spark"))
    return text if len(text) <= 60 else f"{text[:59]}…"


class Translation:
    """The translation of one text: the columns that it reads, and rows for which its value is an
    error. With `exact`, a part is refused if its value depends on settings or version of Spark.
    """

    def __init__(self, schema: Struct, *, now_us: int, exact: bool) -> None:
        self._schema = schema
        self.now_us, self.reads_clock = now_us, False
        self.exact = exact
        self.columns: set[str] = set()
        self.first: list[RowError] = []
        self.errors: list[RowError] = []
        self._taken: list[Callable[[], pl.Expr]] = []

    def refuse_if(self, error: RowError) -> None:
        """Record a condition on rows whose value is an error."""
        if self.exact or not error.by_version:
            taken = [condition().fill_null(value=False) for condition in self._taken]
            condition = reduce(and_, [*taken, error.condition])
            if self.exact or condition.meta.root_names():
                self.errors.append(replace(error, condition=condition))
            elif pl.select(condition).item():
                raise UnsupportedExpressionError(error.reason)

    @contextmanager
    def only_if(self, condition: Callable[[], pl.Expr]) -> Iterator[None]:
        """Values in the block count only for rows for which a condition is true."""
        self._taken.append(condition)
        yield
        self._taken.pop()

    def cast(self, value: Value, type_: DataType) -> Value:
        """CAST."""
        return cast(value, type_, self.refuse_if, exact=self.exact)

    def try_cast(self, value: Value, type_: DataType) -> Value:
        """TRY_CAST, which is null for a value that cannot be cast."""
        errors: list[RowError] = []
        is_text = value.type == STRING
        if is_text and value.is_literal:  # `cast` would refuse a literal that cannot be cast
            value = Value(value.expr, STRING)
        found = cast(value, type_, errors.append, exact=self.exact)
        for limit in (error for error in errors if error.is_limit):
            self.refuse_if(limit)
        errors = [error for error in errors if not (error.is_limit or error.by_version)]
        if not errors:
            return found
        failed = pl.any_horizontal(error.condition.fill_null(value=False) for error in errors)
        if is_text and type_ in {*TIMES, DOUBLE, FLOAT}:
            self.refuse_if(may_be_valid(value.expr, type_, failed))
        return Value(pl.when(~failed).then(found.expr), type_)

    def assigned(self, value: Value, type_: DataType) -> Value:
        """A value for a column of a type. Literals have no type of their own: numbers with a point
        are decimals, and dates and times are texts.
        """
        if value.type == STRING and type_ in TIMES:
            return self.cast(value, type_)
        if isinstance(value.type, Decimal) and type_ in {DOUBLE, FLOAT}:
            return Value(value.expr.cast(to_polars(type_)), type_)
        return whole(value.expr, LONG, self.refuse_if) if value.type == LONG else value

    def whole(self, expr: pl.Expr, type_: DataType) -> Value:
        """The result of arithmetic with whole numbers, as `pl.Int128` or in a type of Spark."""
        return whole(expr, type_, self.refuse_if) if self.exact else Value(expr, LONG)

    def value(self, node: Any) -> Value:
        """The value of a node of sqlglot."""
        name = type(node).__name__
        handler = _NODES.get(name)
        others = [key for key, given in node.args.items() if given and key not in _ARGUMENTS]
        if handler is None or others or (self.exact and name in _INEXACT_NODES):
            raise UnsupportedExpressionError(f"{_sql(node)} ({name})")
        found = handler(self, node)
        return found if self.exact else _folded(found)

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
                raise self._not_found(parts, type_)
            if self.exact and _is_char(field.metadata):
                raise UnsupportedExpressionError(f"the column {'.'.join(parts)} of type char")
            if expr is None:
                self.columns.add(field.name)
            expr = column_named(field.name) if expr is None else field_named(expr, field.name)
            type_ = field.type
        assert expr is not None
        if type_ in TIMES:
            self.first.append(beyond_years(expr.to_physical(), type_))
        return Value(expr, type_)

    def _not_found(self, parts: Sequence[str], parent: DataType) -> Exception:
        name = ".".join(parts)
        if self.exact:
            return UnsupportedExpressionError(f"the column {name}, which is not found")
        if parent is self._schema:
            row_wise(column_named(parts[0]), self._schema, "SQL text")  # raises, with close names
        fields = ", ".join(parent.names) if isinstance(parent, Struct) else "none"
        return InvalidInputError(
            f"the table has no column {name}", column=name, hint=f"its fields: {fields}"
        )

    def compared(self, a: Value, b: Value, *, is_equality: bool = False) -> tuple[Value, Value]:
        """Two values in the type in which Spark compares them; where possible, a literal is cast to
        a column's type, instead of every row.
        """
        if (found := literal_as(a, b.type)) is not None:
            return found, b
        if (found := literal_as(b, a.type)) is not None:
            return a, found
        if not self.exact and is_equality:
            a, b = _as_text(a, b), _as_text(b, a)
        type_ = comparable(a, b, exact=self.exact)
        if type_ is None:
            both = is_number(a) and is_number(b)
            raise UnsupportedExpressionError(
                f"a comparison of {type_name(a.type)} with {type_name(b.type)}"
                + f", whose common type has over {MOST_DIGITS} digits" * (both and not self.exact)
            )
        return self.cast(a, type_), self.cast(b, type_)

    def comparison(self, operator: str, a: Value, b: Value) -> pl.Expr:
        """The comparison of two values, by the name of its node."""
        special = None if self.exact else decimals.compared_with_literal(operator, a, b)
        if special is not None:
            return special
        a, b = self.compared(a, b, is_equality=operator in _EQUALITIES)
        return decimals.COMPARISONS[operator](a.expr, b.expr)

    def arithmetic(self, operator: str, a: Value, b: Value) -> Value:
        """A + b, a - b, a * b."""
        a, b = (self.cast(v, INTEGER) if v.type == VOID else v for v in (a, b))
        if is_integral(a.type) and is_integral(b.type):
            type_ = common_type(a.type, b.type)
            assert type_ is not None
            wide = pl.Int64 if self.exact and type_ != LONG else pl.Int128
            compute = decimals.ARITHMETIC[operator]
            if not (self.exact or all(v.is_literal or v.expr.meta.is_column() for v in (a, b))):
                near = compute(a.expr.cast(pl.Float64), b.expr.cast(pl.Float64)).abs()
                self.refuse_if(RowError(near >= 2.0**126, "an overflow of a whole number"))
            return self.whole(compute(a.expr.cast(wide), b.expr.cast(wide)), type_)
        kinds = {type(a.type), type(b.type)}
        if Decimal in kinds and all(
            isinstance(v.type, Decimal) or is_integral(v.type) for v in (a, b)
        ):
            return decimals.combined(self, operator, a, b)
        if DOUBLE in {a.type, b.type} or (FLOAT in {a.type, b.type} and Decimal in kinds):
            x, y = (self.cast(v, DOUBLE) for v in (a, b))
            return Value(decimals.ARITHMETIC[operator](x.expr, y.expr), DOUBLE)
        if a.type == b.type == FLOAT:
            return Value(decimals.ARITHMETIC[operator](a.expr, b.expr), FLOAT)
        if not self.exact and is_number(a) and is_number(b):
            return self.arithmetic(operator, self.cast(a, DOUBLE), self.cast(b, DOUBLE))
        raise UnsupportedExpressionError(f"{type_name(a.type)} {operator} {type_name(b.type)}")

    def negated(self, value: Value) -> Value:
        """-a."""
        if value.is_literal and isinstance(value.literal, int | float | decimal.Decimal):
            number = value.literal  # Python's minus would round a decimal to 28 digits
            if isinstance(number, decimal.Decimal):
                return constant(number.copy_negate())
            return constant(-number)
        if is_integral(value.type):
            return self.whole(0 - value.expr.cast(pl.Int128), value.type)
        if isinstance(value.type, Decimal) or value.type in {DOUBLE, FLOAT}:
            return Value(-value.expr, value.type)
        raise UnsupportedExpressionError(f"-{type_name(value.type)}")

    def divided(self, a: Value, b: Value) -> Value:
        """A / b, of which Spark makes doubles unless both are decimals."""
        if not (is_number(a) and is_number(b)):
            raise UnsupportedExpressionError(f"{type_name(a.type)} / {type_name(b.type)}")
        kinds = {type(a.type), type(b.type)}
        if Decimal in kinds and not {a.type, b.type} & {DOUBLE, FLOAT, VOID}:
            return decimals.divided(self, a, b)
        x, y = self.cast(a, DOUBLE).expr, self.cast(b, DOUBLE).expr
        self.refuse_if(division_by_zero(x, y))
        return Value(quotient(x, y), DOUBLE)

    def whole_division(self, operator: str, a: Value, b: Value) -> Value:
        """``DIV``, ``%`` and ``pmod`` of whole numbers."""
        a, b = (self.cast(v, INTEGER) if v.type == VOID else v for v in (a, b))
        type_ = common_type(a.type, b.type)
        if not self.exact and operator != "div" and {a.type, b.type} & {DOUBLE, FLOAT}:
            return self._float_rest(operator, self.cast(a, DOUBLE), self.cast(b, DOUBLE))
        if not self.exact and operator != "div" and isinstance(type_, Decimal):
            return decimals.rest(self, operator, a, b)
        if not (is_integral(a.type) and is_integral(b.type)) or type_ is None:
            raise UnsupportedExpressionError(f"{type_name(a.type)} {operator} {type_name(b.type)}")
        is_long = self.exact or (a.computed is not None and a.computed.meta.is_column())
        if operator == "%" and is_long and b.literal and abs(b.literal) < 1 << 63:
            return rest_by_literal(a, b.literal, type_ if self.exact else LONG)
        x, y = a.expr.cast(pl.Int128), b.expr.cast(pl.Int128)
        self.refuse_if(division_by_zero(x, y))
        if operator == "div":
            return self.whole((x.abs() // y.abs()) * x.sign() * y.sign(), LONG)
        rest = (x.abs() % y.abs()) * x.sign()
        if operator == "pmod":
            self.refuse_if(overflow(rest + y, type_, rest < 0))
            positive = ((rest + y).abs() % y.abs()) * (rest + y).sign()
            rest = pl.when(rest < 0).then(positive).otherwise(rest)
        return self.whole(rest, type_)

    def _float_rest(self, operator: str, a: Value, b: Value) -> Value:
        size = None if b.literal is None else abs(b.literal)
        if size is None or (size != 0 and (size < 1 or math.frexp(size)[0] != 0.5)):
            # Polars computes the rest from a rounded quotient: exact only for powers of two. That
            # of a fraction may overflow.
            raise UnsupportedExpressionError(
                f"double {operator} a value other than 1, 2, 4 and so on"
            )
        self.refuse_if(division_by_zero(a.expr, b.expr))
        rest = (a.expr.abs() % b.expr.abs()) * a.expr.sign()
        if operator == "pmod":
            rest = pl.when(rest < 0).then((rest + b.expr) % b.expr).otherwise(rest)
        return Value(rest, DOUBLE)

    def chosen(self, branches: Sequence[tuple[Callable[[], pl.Expr], Any]], default: Any) -> Value:
        """The value of the first branch whose condition is true; None is null."""
        conditions: list[pl.Expr] = []
        values: list[Value] = []
        left: pl.Expr = pl.lit(value=True)
        for condition, node in branches:
            with self.only_if(partial(_same, left)):
                hit = condition().fill_null(value=False)
            with self.only_if(partial(and_, left, hit)):
                values.append(node if isinstance(node, Value) else self.value(node))
            conditions.append(hit)
            left &= ~hit
        with self.only_if(partial(_same, left)):
            other = constant(None) if default is None else self.value(default)
        values.append(other)
        values = self.of_one_type(values)
        found: Any = pl
        for hit, value in zip(conditions, values, strict=False):
            found = found.when(hit).then(value.expr)
        return Value(found.otherwise(values[-1].expr), values[-1].type)

    def of_one_type(self, values: Sequence[Value]) -> list[Value]:
        """Values in their common type in Spark."""
        type_: DataType | None = VOID
        for value in values:
            if type_ is not None:
                type_ = common_type(type_, value.type, exact=self.exact)
        if type_ is None:
            names = ", ".join(type_name(v.type) for v in values)
            raise UnsupportedExpressionError(f"values of different types ({names})")
        return [self.cast(value, type_) for value in values]


def _same(condition: pl.Expr) -> pl.Expr:
    return condition


def _folded(value: Value) -> Value:
    """A value that reads no column, as a literal."""
    if value.is_literal or is_nested(value.type) or value.expr.meta.root_names():
        return value
    if value.type in TIMES:  # Polars panics for some of them
        beyond = beyond_years(value.expr.to_physical(), value.type)
        if pl.select(beyond.condition).item():
            raise UnsupportedExpressionError(beyond.reason)
    result = pl.select(value.expr).item()
    return constant(result) if is_integral(value.type) and result else typed(result, value.type)


def _is_char(metadata: Mapping[str, Any]) -> bool:
    return str(metadata.get("__CHAR_VARCHAR_TYPE_STRING")).startswith("char")


def _as_text(value: Value, other: Value) -> Value:
    """A number or a truth value that is compared with a column of texts, as a text."""
    literal = value.literal
    if other.is_literal or other.type != STRING or not isinstance(literal, int | decimal.Decimal):
        return value
    if isinstance(literal, decimal.Decimal) and literal.as_tuple().exponent:
        return value
    return constant(str(literal).lower())


_EQUALITIES = frozenset({"EQ", "NEQ", "NullSafeEQ", "NullSafeNEQ"})
_PREDICATES = frozenset(
    {*decimals.COMPARISONS, "Between", "Escape", "ILike", "In", "Is", "Like", "Not", "RegexpLike"}
)
_INEXACT_NODES = frozenset({"Bracket", "Escape", "HexString", "ILike", "RegexpLike"})
_ARGUMENTS = frozenset(
    "this expression expressions low high ifs default table db catalog is_string to true false"
    " negate safe position".split()
)
"""Arguments of nodes that are translated."""


def _comparison(self: Translation, node: Any) -> Value:
    for side in (node.this, node.expression):
        if type(side).__name__ in _PREDICATES:  # Spark and sqlglot differ in their precedence
            raise UnsupportedExpressionError(f"{_sql(node)}: two comparisons without brackets")
    name = type(node).__name__
    return Value(self.comparison(name, self.value(node.this), self.value(node.expression)), BOOLEAN)


def _joined(operator: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Callable[[Translation, Any], Value]:
    """AND or OR: a part counts where those before it leave the outcome open."""

    def handle(self: Translation, node: Any) -> Value:
        parts: list[pl.Expr] = []

        def is_open() -> pl.Expr:
            before = reduce(operator, parts, pl.lit(value=operator is and_))
            return (
                before.fill_null(value=True) if operator is and_ else ~before.fill_null(value=False)
            )

        for each in node.flatten(unnest=False):
            with self.only_if(is_open):
                parts.append(self.boolean(each))
        return Value(_balanced(operator, parts), BOOLEAN)

    return handle


def _balanced(operator: Callable[[pl.Expr, pl.Expr], pl.Expr], parts: list[pl.Expr]) -> pl.Expr:
    while len(parts) > 1:  # a balanced tree, because a chain of thousands would be too deep
        parts = [reduce(operator, parts[n : n + 2]) for n in range(0, len(parts), 2)]
    return parts[0]


def _binary(operator: str) -> Callable[[Translation, Any], Value]:
    def handle(self: Translation, node: Any) -> Value:
        sides = [node.this, node.expression]
        for time, interval in (sides, reversed(sides) if operator == "+" else sides):
            if operator in {"+", "-"} and type(interval).__name__ == "Interval":
                return moved(self, operator, self.value(time), interval)
        a, b = (self.value(side) for side in sides)
        if operator in decimals.ARITHMETIC:
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
        number = float(text)  # with an exponent it is a double
    except ValueError:
        number = math.inf
    if number == math.inf:
        raise UnsupportedExpressionError(f"the number {text}")
    return constant(number)


def _column(self: Translation, node: Any) -> Value:
    if type(node.this).__name__ == "Star":
        raise UnsupportedExpressionError(_sql(node))
    return self.column([part.name for part in node.parts])


def _element(self: Translation, node: Any) -> Value:
    """An element of an array, counted from 0, or a value of a map."""
    value, keys = self.value(node.this), [self.value(each) for each in node.expressions]
    type_, key = value.type, keys[0]
    if len(keys) != 1 or not key.is_literal or key.literal is None:
        raise UnsupportedExpressionError(_sql(node))
    if isinstance(type_, Array) and is_integral(key.type) and key.literal >= 0:
        return Value(value.expr.list.get(key.literal, null_on_oob=True), type_.element)
    if isinstance(type_, Map):
        return Value(value.expr.map.get(self.cast(key, type_.key).expr), type_.value)
    raise UnsupportedExpressionError(_sql(node))


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
    return _negated(node, found)


def _not(self: Translation, node: Any) -> Value:
    return Value(~self.boolean(node.this), BOOLEAN)


def _between(self: Translation, node: Any) -> Value:
    value = self.value(node.this)
    from_low = self.comparison("GTE", value, self.value(node.args["low"]))
    return Value(from_low & self.comparison("LTE", value, self.value(node.args["high"])), BOOLEAN)


def _in(self: Translation, node: Any) -> Value:
    value = self.value(node.this)
    listed = [self.value(each) for each in node.expressions]
    found: list[pl.Expr] = []
    literals: dict[DataType, tuple[pl.Expr, list[Any]]] = {}
    for each in listed:
        special = None if self.exact else decimals.compared_with_literal("EQ", value, each)
        if special is not None:
            found.append(special)
            continue
        a, b = self.compared(value, each, is_equality=True)
        if b.is_literal and b.literal is not None and not value.is_literal:
            literals.setdefault(b.type, (a.expr, []))[1].append(b.literal)
        else:
            found.append(a.expr == b.expr)
    for type_, (expr, values) in literals.items():
        found.append(expr.is_in(pl.Series([values], dtype=pl.List(to_polars(type_)))))
    if not found:
        raise UnsupportedExpressionError(_sql(node))
    return Value(_balanced(or_, found), BOOLEAN)


def _like(self: Translation, node: Any) -> Value:
    escape = "\\"
    if type(node).__name__ == "Escape":
        escape, node = str(self.value(node.expression).literal), node.this
    value, pattern = self.value(node.this), self.value(node.expression)
    if value.type not in {STRING, VOID} or not isinstance(pattern.literal, str):
        raise UnsupportedExpressionError(f"{_sql(node)}: LIKE needs a string and a literal pattern")
    if len(escape) != 1:
        raise UnsupportedExpressionError(f"the escape character {escape!r}")
    folds_case = type(node).__name__ == "ILike"
    found = is_like(self.cast(value, STRING).expr, pattern.literal, escape, folds_case)
    return _negated(node, found)


def _negated(node: Any, found: pl.Expr) -> Value:
    """Or not: sqlglot has no NOT around some predicates."""
    return Value(~found if node.args.get("negate") else found, BOOLEAN)


def _cast(self: Translation, node: Any) -> Value:
    is_try = node.args.get("safe")
    if node.args.get("default") or (is_try and self.exact):
        raise UnsupportedExpressionError(_sql(node))
    cast, type_ = self.try_cast if is_try else self.cast, _type_of(node.to)
    if self.exact and type(node).__name__ == "Cast" and type_ not in TIMES:  # such as INT '5'
        raise UnsupportedExpressionError(f"a literal of the type {type_name(type_)}")
    return cast(self.value(node.this), type_)


def _type_of(node: Any) -> DataType:
    name = node.this.name
    parameters = [int(p.name) for p in node.expressions if p.name.isdecimal()]
    if name == "DECIMAL" and len(parameters) == len(node.expressions) <= 2:
        precision, scale = (*parameters, *(10, 0)[len(parameters) :])
        if scale <= precision <= MOST_DIGITS:
            return Decimal(precision, scale)
    elif name in _TYPES and not node.expressions and not node.args.get("collate"):
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
    "VARBINARY": BINARY,
    "BINARY": BINARY,
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
        return lambda: self.comparison("EQ", operand, self.value(asked))

    branches = [(condition(each.this), each.args["true"]) for each in node.args["ifs"]]
    return self.chosen(branches, node.args.get("default"))


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
    return call(self, str(node.this).lower(), list(node.expressions))


def _extract(self: Translation, node: Any) -> Value:
    return part_of_time(self, str(node.this.name).lower(), node.expression)


def _trim(self: Translation, node: Any) -> Value:
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")), "trim")
    if self.exact and (node.expression or node.args.get("position")):
        raise UnsupportedExpressionError(_sql(node))
    return trimmed(self, side, node.this, node.expression)


def _clock(self: Translation, node: Any) -> Value:
    return call(self, {"CurrentDate": "current_date"}.get(type(node).__name__, "now"), [])


_NODES: Mapping[str, Callable[[Translation, Any], Value]] = {
    **dict.fromkeys(decimals.COMPARISONS, _comparison),
    "Add": _binary("+"),
    "And": _joined(and_),
    "Anonymous": _function,
    "Between": _between,
    "Bracket": _element,
    "Boolean": lambda _self, node: constant(bool(node.this)),
    "Case": _case,
    "Cast": _cast,
    "Column": _column,
    "CurrentDate": _clock,
    "CurrentTimestamp": _clock,
    "DPipe": _pipe,
    "Div": _binary("/"),
    "Dot": _dot,
    "Escape": _like,
    "Extract": _extract,
    "HexString": lambda _, node: constant(bytes.fromhex("0" * (len(node.this) % 2) + node.this)),
    "ILike": _like,
    "If": _if,
    "In": _in,
    "IntDiv": _binary("div"),
    "Is": _is,
    "Like": _like,
    "Literal": _literal,
    "Mod": _binary("%"),
    "Mul": _binary("*"),
    "Neg": lambda self, node: self.negated(self.value(node.this)),
    "Not": _not,
    "Null": lambda _self, _node: constant(None),
    "Or": _joined(or_),
    "RegexpLike": lambda self, node: _negated(
        node, call(self, "rlike", [node.this, node.expression]).expr
    ),
    "Paren": lambda self, node: self.value(node.this),
    "Sub": _binary("-"),
    "Trim": _trim,
    "TryCast": _cast,
}
