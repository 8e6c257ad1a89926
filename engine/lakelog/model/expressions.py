"""Polars expressions as JSON trees, and columns and fields by their exact names.

``pl.col`` and ``struct.field`` read ``*`` and ``^...$`` as patterns, and a table may have columns
with such names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import polars as pl


def tree_of(expr: pl.Expr) -> Any:
    """The expression as JSON data; errors of Polars for a Python function."""
    return json.loads(expr.meta.serialize(format="json"))


def expression_of(tree: Any) -> pl.Expr:
    """The expression from JSON data, as `tree_of` returns it."""
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def column_named(name: str) -> pl.Expr:
    """The column of exactly that name."""
    return _literally(pl.col(name), lambda: {"Column": name})


def field_named(struct: pl.Expr, name: str) -> pl.Expr:
    """The field of exactly that name."""
    function = {"StructExpr": {"FieldByName": name}}
    return _literally(
        struct.struct.field(name),
        lambda: {"Function": {"input": [tree_of(struct)], "function": function}},
    )


def field_of(structs: pl.Series, name: str) -> pl.Series:
    """A field of a struct column, without its name: most methods of a series read names as
    patterns too.
    """
    return structs.struct.unnest()[name].alias("")


def _literally(expr: pl.Expr, tree: Callable[[], Any]) -> pl.Expr:
    return expression_of(tree()) if expr.meta.has_multiple_outputs() else expr
