"""Conditions and new values of callers: Polars expressions, or SQL text, which is translated.

One parser serves Python, CLI and Spark. The text has the semantics of Spark SQL, with names in
double quotes or backquotes (``docs/sql.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.skipping.prune import ROW_ERROR

if TYPE_CHECKING:
    from lakelog.sql.values import RowError, Value

_REFUSED = (pl.exceptions.PolarsError, RecursionError, ValueError, OverflowError)
"""Errors of Polars and Python for text that is nested too deeply, or for values that they lack."""
_HINT = "write a SQL condition over the table's columns, such as \"day >= '2026-01-05'\""


def condition(where: pl.Expr | str | None, schema: contract.Struct, now_us: int) -> pl.Expr | None:
    """The condition of a caller; text that is not a condition over the columns raises
    InvalidInputError, expressions are checked where they are evaluated. `now_us` is
    ``current_timestamp``.

    >>> schema = contract.Struct((contract.Field("n", contract.Primitive("byte")),))
    >>> print(condition("n > 5 AND n + 100 < 128", schema, now_us=0))
    [([(col("n")) > (5)]) & ([([(col("n").strict_cast(Int128)) + ...
    """
    if not isinstance(where, str):
        return where
    from lakelog.sql.values import BOOLEAN, VOID, type_name

    value, errors = _translated(where, schema, "the condition", _HINT, now_us)
    if value.type not in {BOOLEAN, VOID}:
        raise InvalidInputError(
            "where must be a condition that is true or false",
            expected="a Boolean expression",
            found=f"{where}, of type {type_name(value.type)}",
            hint=_HINT,
        )
    expr = value.expr if value.type == BOOLEAN else value.expr.cast(pl.Boolean)
    return expr if not errors else expr & _without_errors(errors)


def new_value(
    text: str, schema: contract.Struct, name: str, type_: contract.DataType, now_us: int
) -> pl.Expr:
    """The expression of a new value of a column of a type; `now_us` as for `condition`."""
    what = f"the new value of {name!r}"
    hint = "text is SQL: write a string literal in single quotes, or as pl.lit(...)"
    value, errors = _translated(text, schema, what, hint, now_us, type_)
    return value.expr if not errors else pl.when(_without_errors(errors)).then(value.expr)


class ConditionPart(NamedTuple):
    """A part that AND joins: its columns, each with its structs, and whether ``=`` joins two."""

    columns: Sequence[Sequence[str]]
    is_equality: bool


def parts_of(text: str) -> list[ConditionPart]:
    """The parts of a condition that are joined by AND."""
    with _refused(text, "the condition of the merge", None):
        node = _parsed(text)
    parts = node.flatten(unnest=False) if type(node).__name__ == "And" else [node]
    return [_part(part) for part in parts]


def _part(node: Any) -> ConditionPart:
    while type(node).__name__ == "Paren":
        node = node.this
    columns = [each for each in node.walk() if type(each).__name__ == "Column"]
    is_equality = type(node).__name__ == "EQ" and all(
        type(side).__name__ == "Column" for side in (node.this, node.expression)
    )
    return ConditionPart([[name.name for name in c.parts] for c in columns], is_equality)


def _translated(
    text: str,
    schema: contract.Struct,
    what: str,
    hint: str,
    now_us: int,
    type_: contract.DataType | None = None,
) -> tuple[Value, Sequence[RowError]]:
    from lakelog.sql.translation import Translation

    translation = Translation(schema, now_us=now_us, exact=False)
    with _refused(text, what, hint):
        value = translation.value(_parsed(text))
        if type_ is not None:
            value = translation.assigned(value, type_)
    return value, translation.errors


def _parsed(text: str) -> Any:
    from lakelog.sql.translation import parse

    return parse(text, exact=False)


@contextmanager
def _refused(text: str, what: str, hint: str | None) -> Iterator[None]:
    from lakelog.sql.values import UnsupportedExpressionError

    try:
        yield
    except InvalidInputError:
        raise
    except (UnsupportedExpressionError, *_REFUSED) as cause:
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        if isinstance(cause, RecursionError):
            reason = "text that is nested too deeply"
        raise InvalidInputError(
            f"{what} has a part that cannot be evaluated: {reason}", found=text, hint=hint
        ) from cause


def _without_errors(errors: Sequence[RowError]) -> pl.Expr:
    """True for each row; evaluating it raises for a row whose value is an error."""
    reasons = (pl.when(e.condition).then(pl.lit(ROW_ERROR + e.reason)) for e in errors)
    return pl.coalesce(list(reasons)).cast(pl.Int8).is_null()
