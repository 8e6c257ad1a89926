"""`translate`: the SQL expressions of table rules (constraints, generated columns, defaults).

Source: Delta protocol, CHECK Constraints; Column Invariants; Generated Columns; Default Columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from lakelog.data.row_rules import example
from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import DataType, Struct
from lakelog.sql.translation import Translation, parse, tokens
from lakelog.sql.values import (
    BOOLEAN,
    RowError,
    UnsupportedExpressionError,
    Value,
    common_type,
    type_name,
)

_ROW = "\x00row"


@dataclass(frozen=True)
class RowExpression:
    """An expression over rows, its SQL text and Spark type. It must not be evaluated for rows of
    `first`; for those of `errors`, Spark's result depends on its settings.
    """

    text: str
    type: DataType
    columns: tuple[str, ...]
    expr: pl.Expr
    first: tuple[RowError, ...]
    errors: tuple[RowError, ...]
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
        return self._require_none(rows, frame, self.errors, self.expr)

    def _require_none(
        self, rows: pa.Table, frame: pl.DataFrame, bad: Sequence[RowError], expr: pl.Expr
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
                    f"the expression {self.text!r} cannot be evaluated for a row: {each.reason}",
                    expected="a value that does not depend on the settings of Spark",
                    found=example(rows, self.columns, int(wrong.arg_max() or 0)),
                    hint="change the row",
                )
        return found["value"]


class InvalidExpressionError(UnsupportedExpressionError):
    """An expression that no engine evaluates as a value of its column."""


class AmbiguousNameError(UnsupportedExpressionError):
    """A text in double quotes that is a string in Spark, and a column in delta-rs."""


def refusal(cause: UnsupportedExpressionError) -> str:
    """Why an expression is refused, for messages."""
    is_invalid = isinstance(cause, InvalidExpressionError)
    what = "is not valid" if is_invalid else "lakelog does not evaluate"
    return f"an expression that {what}: {cause}"


class _Rule(Translation):
    """The translation of a rule."""

    def __init__(self, schema: Struct, now_us: int) -> None:
        super().__init__(schema, now_us=now_us, exact=True)
        self._known = schema

    def column(self, parts: Sequence[str]) -> Value:
        if self._known.field(parts[0]) is None:
            raise InvalidExpressionError(f"the column {'.'.join(parts)}, which is not found")
        return super().column(parts)


def translate(text: str, schema: Struct, type_: DataType | None, now_us: int) -> RowExpression:
    """The expression of a SQL text, as a value of a type; `now_us` is ``current_timestamp``."""
    translation = _Rule(schema, now_us)
    node = parse(text)
    names = {name.lower() for name in schema.names}
    for token in tokens(text):  # delta-rs has names that are not plain, lower-case words in quotes
        if text[token.start] == '"' and token.text.lower() in names:
            raise AmbiguousNameError(
                f'"{token.text}" is ambiguous: a column for delta-rs, a string for Spark'
            )
    value = translation.value(node)
    # Fields in the schema have metadata, above all of column mapping, which values do not have.
    value = replace(value, type=contract.nullable_type(value.type))
    type_ = value.type if type_ is None else contract.nullable_type(type_)
    may_cast = value.is_literal and type_ != BOOLEAN
    if not may_cast and common_type(value.type, type_) != type_:
        found, expected = (
            contract.type_text(t) if contract.is_nested(t) else type_name(t)
            for t in (value.type, type_)
        )
        raise InvalidExpressionError(f"a value of {found} in place of {expected}")
    try:
        value = translation.cast(value, type_)
    except UnsupportedExpressionError as cause:
        raise InvalidExpressionError(str(cause)) from cause
    return RowExpression(
        text,
        value.type,
        tuple(sorted(translation.columns)),
        value.expr,
        tuple(translation.first),
        tuple(translation.errors),
        translation.reads_clock,
    )
