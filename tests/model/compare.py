"""Brings the answers of lakelog and of the model into one form, and compares them.

Rows become dictionaries without nulls. JSON text in ``extra`` is compared as JSON. Statistics that
a checkpoint stores only as a struct are compared as JSON without nulls, all others as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

Row = dict[str, Any]


def rows_of(frame: pl.DataFrame | pl.LazyFrame) -> list[Row]:
    """The frame's rows as dictionaries; maps as dictionaries too."""
    collected = frame.collect() if isinstance(frame, pl.LazyFrame) else frame
    table: pa.Table = collected.to_arrow()
    table.validate(full=True)
    return list(table.to_pylist(maps_as_pydicts="strict"))


def without_nulls(value: Any) -> Any:
    """JSON without the null members of objects, at every level."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value


def _json(text: str) -> Any:
    try:
        return without_nulls(json.loads(text))
    except ValueError:
        return text


def normal(row: Mapping[str, Any], columns: Iterable[str] | None = None) -> Row:
    """One row in the common form."""
    wanted = None if columns is None else set(columns)
    kept = {
        name: value
        for name, value in row.items()
        if value is not None and (wanted is None or name in wanted)
    }
    extra = kept.get("extra")
    if isinstance(extra, str):
        kept["extra"] = json.loads(extra)
    if "stats" in kept:
        kept["stats"] = _json(kept["stats"])
    for name in ("operationParameters", "operationMetrics", "minValues", "maxValues", "nullCount"):
        if name in kept:
            kept[name] = {k: v and _json(v) for k, v in kept[name].items()}
    return kept


def differences(expected: Iterable[Row], found: Iterable[Row], key: Iterable[str]) -> list[str]:
    """The differences between two sets of normal rows with the columns that identify a row."""
    names = tuple(key)

    def indexed(rows: Iterable[Row], side: str, out: list[str]) -> dict[Any, Row]:
        by_key: dict[Any, Row] = {}
        for row in rows:
            identity = tuple(row.get(name) for name in names)
            if identity in by_key:
                out.append(f"{side} has {identity} twice")
            by_key[identity] = row
        return by_key

    problems: list[str] = []
    left, right = indexed(expected, "model", problems), indexed(found, "lakelog", problems)
    problems += [f"lakelog lacks {k}" for k in left.keys() - right.keys()]
    problems += [f"only lakelog has {k}" for k in right.keys() - left.keys()]
    for identity in left.keys() & right.keys():
        a, b = left[identity], right[identity]
        problems += [
            f"{identity} {name}: model {a.get(name)!r}, lakelog {b.get(name)!r}"
            for name in sorted(a.keys() | b.keys())
            if a.get(name) != b.get(name) or type(a.get(name)) is not type(b.get(name))
        ]
    return problems
