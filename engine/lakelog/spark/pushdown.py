"""Spark's filters as Polars expressions, to leave files and rows out that cannot match.

Spark applies every filter again to the rows that come back, so what is not understood here is
left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from lakelog import contract

if TYPE_CHECKING:
    import polars as pl

_COMPARED = {
    spark.EqualTo: "eq",
    spark.EqualNullSafe: "eq_missing",
    spark.GreaterThan: "gt",
    spark.GreaterThanOrEqual: "ge",
    spark.LessThan: "lt",
    spark.LessThanOrEqual: "le",
}
_TEXTS = {
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "contains",
}


def predicate_of(
    filters: Iterable[spark.Filter], struct: contract.Struct
) -> tuple[pl.Expr | None, list[spark.Filter]]:
    """The filters that are understood as one expression, and those that are not.

    Args:
        filters: All of which a row has to pass.
        struct: The table's schema.

    Returns:
        The expression over the table's columns, true for every row that passes; None where no
        filter is understood.
    """
    import polars as pl

    types = {field.name: contract.to_polars(field.type) for field in struct.fields}
    understood, left = [], []
    for each in filters:
        expression = _expression(each, types)
        if expression is None:
            left.append(each)
        else:
            understood.append(expression)
    return (pl.all_horizontal(understood) if len(understood) > 1 else _only(understood)), left


def _only(expressions: list[pl.Expr]) -> pl.Expr | None:
    return expressions[0] if expressions else None


def _expression(each: Any, types: Mapping[str, pl.DataType]) -> pl.Expr | None:
    """One filter; None where it is not understood."""
    import polars as pl

    if isinstance(each, spark.Not):
        negated = _expression(each.child, types)
        return None if negated is None else ~negated
    name = str(each.attribute[0])
    dtype = types.get(name) if len(each.attribute) == 1 else None  # else a field of a struct
    if dtype is None or dtype.is_nested() or dtype == pl.Null():
        return None
    column = pl.col(name)
    if isinstance(each, spark.IsNull):
        return column.is_null()
    if isinstance(each, spark.IsNotNull):
        return column.is_not_null()
    if isinstance(each, spark.In):
        values = [value for value in each.value if value is not None]
        return column.is_in(pl.Series(values, dtype=dtype)) if values else None
    kind = type(each)
    if kind in _COMPARED:
        if each.value is None:
            return None
        return getattr(column, _COMPARED[kind])(pl.lit(each.value, dtype))  # type: ignore[no-any-return]
    if kind in _TEXTS and dtype == pl.String():
        text = pl.lit(each.value)
        if kind is spark.StringContains:
            return column.str.contains(text, literal=True)
        return getattr(column.str, _TEXTS[kind])(text)  # type: ignore[no-any-return]
    return None
