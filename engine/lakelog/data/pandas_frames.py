"""Frames of pandas as Arrow tables: columns, and levels of the index that have a name.

A column of Python objects has values of one type: Arrow would bring some mixtures to one type with
other values, such as dates and datetimes to dates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from lakelog.errors import InvalidInputError

OF_INDEX = {b"lakelog": b"level of a pandas index"}
"""Metadata of columns that errors explain as such."""

WITHOUT_INDEX = "pass frame.reset_index(drop=True) to leave the index out"


def is_pandas(rows: Any) -> bool:
    """Whether rows are a frame of pandas or of a subclass, without an import of pandas."""
    names = {(each.__module__.partition(".")[0], each.__name__) for each in type(rows).__mro__}
    return ("pandas", "DataFrame") in names


def of_pandas(rows: Any) -> pa.Table:
    """A frame's columns, then the levels of its index that have a name that no column has."""
    columns = [str(name) for name in rows.columns]
    names = [None if name is None else str(name) for name in rows.index.names]
    left_out = [i for i, name in enumerate(names) if name is None or name in columns]
    levels = [name for name in names if name is not None and name not in columns]
    _require_own_names(columns, levels)
    if levels:
        rows = rows.rename_axis(index=names)  # a name that is not a str is a warning of Arrow's
        rows = rows.reset_index(level=left_out, drop=True) if left_out else rows
    try:
        table = pa.Table.from_pandas(rows, preserve_index=bool(levels)).replace_schema_metadata()
    except _UNCONVERTIBLE as cause:
        raise _unconvertible(rows, levels, cause) from cause
    for field, (name, values) in zip(table.schema, _columns(rows, levels), strict=True):
        _require_one_type(name, values, field.type)
    fields = list(table.schema)
    fields[len(columns) :] = [field.with_metadata(OF_INDEX) for field in fields[len(columns) :]]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


_UNCONVERTIBLE = (pa.ArrowException, ValueError, TypeError, OverflowError)


def _columns(rows: Any, levels: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Name and values of each column, then of each level."""
    series = (rows.iloc[:, number] for number in range(len(rows.columns)))
    return chain(
        zip(map(str, rows.columns), series, strict=True),
        ((level, rows.index.get_level_values(level)) for level in levels),
    )


def _unconvertible(rows: Any, levels: Sequence[str], cause: Exception) -> InvalidInputError:
    """The error for a frame that Arrow cannot convert, with the first such column."""
    for name, values in _columns(rows, levels):
        try:
            pa.array(values, from_pandas=True)
        except _UNCONVERTIBLE as error:
            return InvalidInputError(
                f"the column {name!r} of the pandas frame cannot be converted to Arrow: "
                f"{error.args[0] if error.args else error}",
                column=name,
                expected="values of one type, which a table can have",
                found=f"dtype {values.dtype}",
                hint=_cast(name, values),
            )
    return InvalidInputError(
        f"the pandas frame cannot be converted to Arrow: {cause}",
        expected="unique column names, and values of one type in each column",
        found=type(rows).__name__,
    )


def _require_one_type(name: str, values: Any, type_: pa.DataType, *, inside: str = "") -> None:
    """Refuse a column of Python objects, or the values `inside` its lists and dicts, if Arrow
    changed some of them to bring them to one type.
    """
    times, dates = pa.types.is_timestamp(type_), pa.types.is_date(type_)
    numbers = pa.types.is_floating(type_) or pa.types.is_integer(type_)
    numbers = numbers or pa.types.is_decimal(type_)
    if values.dtype != object or not (times or dates or numbers or pa.types.is_nested(type_)):
        return
    import pandas as pd

    values = values.dropna()
    for part, found_inside, inner_type in _inside(values, type_):
        inner = pd.Series(list(found_inside), dtype=object)
        _require_one_type(name, inner, inner_type, inside=f"{inside}.{part}")
    kinds = set(map(type, values))
    found = {kind.__name__ for kind in kinds}
    if times:
        zones = {getattr(value, "tzinfo", None) is None for value in values}
        is_mixed = len(zones) > 1
        found = {"values with a time zone", "values without one"}
    elif numbers:
        is_mixed = any(issubclass(kind, bool | np.bool_) for kind in kinds)
    else:
        is_mixed = dates and any(issubclass(kind, dt.datetime) for kind in kinds)
    if is_mixed:
        column = f"{name}{inside}"
        raise InvalidInputError(
            f"the column {column!r} of the pandas frame mixes types, and one of them would lose "
            "information",
            column=column,
            expected="values of one type",
            found=", ".join(sorted(found)),
            hint="convert its values to one type" if inside else _cast(name, values),
        )


def _inside(values: Any, type_: pa.DataType) -> Iterator[tuple[str, Iterable[Any], pa.DataType]]:
    """The values inside lists, and in each field of dicts; arrays of NumPy have one type."""
    if pa.types.is_list(type_):
        lists = (v for v in values if not isinstance(v, np.ndarray) or v.dtype.hasobject)
        yield "element", chain.from_iterable(lists), type_.value_type
    elif pa.types.is_struct(type_):
        dicts = [each for each in values if isinstance(each, dict)]
        for field in type_:
            yield field.name, (each.get(field.name) for each in dicts), field.type


def _cast(name: str, values: Any) -> str:
    """The next step for a column that is not of one type that Arrow has."""
    if hasattr(values, "sparse"):
        return f"pass dense values: frame[{name!r}].sparse.to_dense()"
    return f"convert its values to one type, such as frame.astype({{{name!r}: str}})"


def _require_own_names(columns: Sequence[str], levels: Sequence[str]) -> None:
    """Refuse a level of an index whose name differs from another name in case only, or in nothing:
    a table's column names are case-insensitive.
    """
    seen = {name.lower(): f"the column {name!r}" for name in columns}
    for name in levels:
        if other := seen.get(name.lower()):
            raise InvalidInputError(
                f"the level {name!r} of the frame's index has the name of {other}",
                column=name,
                expected="names that are unique (case-insensitive)",
                found=[*columns, *levels],
                hint=f"{WITHOUT_INDEX}, or rename the level with frame.rename_axis",
            )
        seen[name.lower()] = f"the level {name!r}"
