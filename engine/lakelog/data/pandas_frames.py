"""Frames of pandas as Arrow tables: columns, and levels of the index that have a name.

A column of Python objects has values of one type: Arrow would bring some mixtures to one type with
other values, such as dates and datetimes to dates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
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
        if values.dtype == object:
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


_Kinds = dict[tuple[str, pa.DataType], set[Any]]
"""By place inside a column and type: the classes of the values, or for times, whether they have a
zone."""


def _require_one_type(name: str, values: Any, type_: pa.DataType) -> None:
    """Refuse a column of Python objects if Arrow changed some of them, or some values inside lists
    and dicts, to bring them to one type.
    """
    kinds: _Kinds = {}
    _add_kinds(kinds, values, type_)
    for (inside, inner_type), found in kinds.items():
        names = {_ZONES[kind] if isinstance(kind, bool) else kind.__name__ for kind in found}
        if pa.types.is_timestamp(inner_type):
            is_mixed = len(found) > 1
        else:
            lossy = dt.datetime if pa.types.is_date(inner_type) else (bool, np.bool_)
            is_mixed = any(issubclass(kind, lossy) for kind in found)
        if is_mixed:
            column = f"{name}{inside}"
            raise InvalidInputError(
                f"the column {column!r} of the pandas frame mixes types, and one of them would "
                "lose information",
                column=column,
                expected="values of one type",
                found=", ".join(sorted(names)),
                hint="convert its values to one type" if inside else _cast(name, values),
            )


_ZONES = {True: "values with a time zone", False: "values without one"}
_TOGETHER = 512
"""Dicts whose fields are read one after the other: they fit into the caches of a processor."""


def _add_kinds(kinds: _Kinds, values: Iterable[Any], type_: pa.DataType, inside: str = "") -> None:
    """Add the kinds of the values that are not missing, without a copy: lists may have many."""
    if not _may_be_changed(type_):
        return  # such as texts, which are not read
    if pa.types.is_list(type_):
        lists = (
            v
            for v in values
            if hasattr(v, "__iter__") and (not isinstance(v, np.ndarray) or v.dtype.hasobject)
        )
        _add_kinds(kinds, chain.from_iterable(lists), type_.value_type, f"{inside}.element")
    elif pa.types.is_struct(type_):
        left = (v for v in values if isinstance(v, dict))
        fields = [field for field in type_ if _may_be_changed(field.type)]
        while dicts := list(islice(left, _TOGETHER)):
            for field in fields:
                found = map(dict.get, dicts, repeat(field.name))
                _add_kinds(kinds, found, field.type, f"{inside}.{field.name}")
    else:
        import pandas as pd

        missing = {type(None), type(pd.NaT), type(pd.NA)}
        known = kinds.setdefault((inside, type_), set())
        if _is_number(type_):
            known.update(set(map(type, values)) - missing)
            return
        present = (v for v in values if type(v) not in missing and v == v)  # noqa: PLR0124 - NaN
        if pa.types.is_date(type_):
            known.update(map(type, present))
        else:
            known.update(getattr(v, "tzinfo", None) is not None for v in present)


def _may_be_changed(type_: pa.DataType) -> bool:
    """Whether Arrow may change values to bring them to the type, or to one inside it."""
    if pa.types.is_list(type_) or pa.types.is_struct(type_):
        return any(_may_be_changed(type_.field(i).type) for i in range(type_.num_fields))
    return pa.types.is_timestamp(type_) or pa.types.is_date(type_) or _is_number(type_)


def _is_number(type_: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(type_) for test in tests)


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
