"""Validates flattened rows before they are encoded as JSON or Parquet.

A dialect must be able to read back what it writes: a column without a field in the action type, a
required field that is null, a map with a repeated key, or an ``extra`` that contradicts the columns
raises here, before encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import polars as pl

from lakelog.dialects.exact_json import exact_object, has_double
from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.errors import InvalidTransactionError
from lakelog.model import actions, contract
from lakelog.model.contract import MAX_DEPTH

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

ACTION_TYPE = "actionType"
EXTRA = "extra"
_EMPTY = actions.empty((ACTION_TYPE,))
_MAX_NESTING = MAX_DEPTH - 2  # the objects of the line and the wrapper surround it


def conform_rows(rows: pl.DataFrame, dialect: str) -> pl.DataFrame:
    """Rows ready to encode: contract types, no all-null columns, and ``written`` defaults."""
    if not rows.height:
        return _EMPTY
    schema = actions.schema()
    unknown = [name for name in rows.columns if name not in schema]
    if unknown:
        raise InvalidTransactionError("the flattened table has an unknown column", found=unknown[0])
    wanted = [name for name in schema if name in rows.columns]
    try:
        frame = actions.conform(rows, wanted)
    except pl.exceptions.PolarsError as cause:
        raise InvalidTransactionError(
            "a column has another type than the contract", found=str(cause).splitlines()[0][:200]
        ) from cause
    if ACTION_TYPE not in wanted or frame[ACTION_TYPE].null_count():
        raise InvalidTransactionError("a row has no action type", expected=ACTION_TYPE)
    frame = _with_written(frame, dialect)
    frame = without_nulls(frame)
    for name in frame.columns:
        if isinstance(schema[name], pl.Map):
            _require_keys_once(frame[name])
    for kind, part in by_type(frame):
        _check_type(kind, part, dialect)
    return frame


def exact_casts(frame: pl.DataFrame) -> list[pl.Series]:
    """The columns of another dtype than the contract's, cast to it. Raises a ``PolarsError`` for
    values that the cast would change, such as a fraction, or a time of another unit.
    """
    schema = actions.schema()
    casts = []
    for name, dtype in frame.schema.items():
        wanted, column = schema.get(name, dtype), frame[name]
        if dtype == wanted:
            continue
        if column.null_count() == frame.height:
            cast = pl.Series(name, [None], wanted).new_from_index(0, frame.height)
        elif _is_exact(dtype, wanted):
            cast = column.cast(wanted)
        elif dtype.is_numeric() and (wanted.is_integer() or wanted == pl.Boolean):
            cast = column.cast(wanted)
            if (cast.cast(dtype) != column).any():
                raise pl.exceptions.SchemaError(f"{name}: a value that is not {wanted}")
        else:
            raise pl.exceptions.SchemaError(f"{name}: {dtype} in place of {wanted}")
        casts.append(cast)
    return casts


def _is_exact(dtype: PolarsDataType, wanted: PolarsDataType) -> bool:
    if dtype == wanted:
        return True
    if isinstance(wanted, pl.List):
        return isinstance(dtype, pl.List) and _is_exact(dtype.inner, wanted.inner)
    if isinstance(wanted, pl.Map):
        if isinstance(dtype, pl.Map):
            key, value = dtype.key, dtype.value
        elif isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct):  # an untyped map
            if [field.name for field in dtype.inner.fields] != ["key", "value"]:
                return False
            key, value = (field.dtype for field in dtype.inner.fields)
        else:
            return False
        if not _is_exact(key, wanted.key):
            return False
        # In JSON too, values of a map may be numbers.
        return value.is_numeric() or value == pl.Boolean or _is_exact(value, wanted.value)
    if wanted.is_integer():
        # The cast raises for a value that does not fit; times are in milliseconds.
        return dtype.is_integer() or (isinstance(dtype, pl.Datetime) and dtype.time_unit == "ms")
    return wanted == pl.String and isinstance(dtype, pl.Categorical | pl.Enum | pl.Binary)


def without_nulls(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame without all-null columns."""
    # Columns are combined directly, because a selection runs a query, which copies long columns.
    kept = [column for column in frame if column.null_count() < frame.height]
    return frame if len(kept) == frame.width else pl.DataFrame(kept)


def by_type(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of each action type, in the order of first occurrence."""
    kinds = frame[ACTION_TYPE].unique(maintain_order=True).to_list()
    for kind in kinds:
        yield kind, frame if len(kinds) == 1 else frame.filter(pl.col(ACTION_TYPE) == kind)


@cache
def columns_of(kind: str, dialect: str) -> frozenset[str]:
    """Flattened columns of an action type, without ``extra``; empty for unknown types."""
    node = Wire.of(dialect).wrappers.get(kind)
    return frozenset(leaf.column for _, leaf in node.leaves()) if node is not None else frozenset()


@cache
def _known_types() -> frozenset[str]:
    """Action types of any dialect in the contract."""
    positions = (
        position
        for field in contract.load("actions").fields
        for dialect in ("delta", "indextables")
        for position in field.metadata.get(dialect, ())
    )
    return frozenset(position.split(".")[0] for position in positions)


@cache
def _written() -> Mapping[str, Mapping[str, Any]]:
    """Defaults that are written for missing values, by action type and column."""
    fields = contract.load("actions").fields
    return {f.name: f.metadata["written"] for f in fields if "written" in f.metadata}


@cache
def _derived() -> frozenset[str]:
    """Columns without a field, because they are derived from others."""
    return frozenset(f.name for f in contract.load("actions").fields if "derived" in f.metadata)


def _with_written(frame: pl.DataFrame, dialect: str) -> pl.DataFrame:
    kinds = set(frame[ACTION_TYPE].unique())
    schema = actions.schema()
    fills = []
    for column, values in _written().items():
        own_kinds = [
            kind for kind in values if kind in kinds and column in columns_of(kind, dialect)
        ]
        there = column in frame.columns
        if not own_kinds or (there and not frame[column].null_count()):
            continue
        value = pl.col(column) if there else pl.lit(None, dtype=schema[column])
        for kind in own_kinds:
            lacks = (pl.col(ACTION_TYPE) == kind) & value.is_null()
            filler = pl.lit(pl.Series([values[kind]], dtype=schema[column])).first()
            value = pl.when(lacks).then(filler).otherwise(value)
        fills.append(value.alias(column))
    return frame.with_columns(fills) if fills else frame


def _require_keys_once(maps: pl.Series) -> None:
    array = maps.to_arrow()
    offsets = np.asarray(pl.Series(array.offsets).to_numpy(), np.int64)
    counts = np.diff(offsets)
    if counts.max(initial=0) < 2:
        return
    keys = pl.Series(array.keys[offsets[0] : offsets[-1]], dtype=pl.String)
    codes = keys.rank("dense").to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    width = int(codes.max()) + 1
    if pl.Series(rows * width + codes).n_unique() != len(codes):
        raise InvalidTransactionError(
            "a map contains a key twice", expected="each key once", found=maps.name
        )


def _check_type(kind: str, rows: pl.DataFrame, dialect: str) -> None:
    wire = Wire.of(dialect)
    node = wire.wrappers.get(kind)
    if kind == "commitInfo" or (node is None and kind in _known_types()):
        raise InvalidTransactionError("the dialect cannot store this action", found=kind)
    for column in wire.required.get(kind, ()):
        if column not in rows.columns or rows[column].null_count():
            raise InvalidTransactionError(
                "an action lacks a required field", expected=column, found=kind
            )
    if node is None and (EXTRA not in rows.columns or rows[EXTRA].null_count()):
        raise InvalidTransactionError(
            "an action of an unknown type has no content", expected=EXTRA, found=kind
        )
    placed = columns_of(kind, dialect) | _derived()
    for column in rows.columns:
        if column not in placed and rows[column].null_count() < rows.height:
            raise InvalidTransactionError(f"{kind} has no field for a column", found=column)


def check_extra(rows: pl.DataFrame, dialect: str) -> None:
    """Parse every distinct ``extra``, for an encoding that keeps it as text."""
    if EXTRA in rows.columns:
        for kind, part in by_type(rows):
            node = Wire.of(dialect).wrappers.get(kind)
            for text in part[EXTRA].drop_nulls().unique():
                parse_extra(text, node, kind)


def parse_extra(text: str, node: Node | None, kind: str) -> Any:
    """Parse one ``extra``, the JSON of an action's unknown fields, for `orjson.dumps`."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as cause:
        raise InvalidTransactionError(
            "extra is not valid JSON", expected="JSON text", found=f"{kind}: {cause}"
        ) from cause
    if _depth(parsed) > _MAX_NESTING:
        raise InvalidTransactionError(
            "extra is nested too deeply", expected=f"at most {_MAX_NESTING} levels", found=kind
        )
    if node is not None:
        _require_unnamed(parsed, node, kind)
    elif parsed is None:
        raise InvalidTransactionError("an action of an unknown type has no content", found=kind)
    return exact_object(text) if has_double(parsed) else parsed


def _require_unnamed(extra: Any, node: Node, where: str) -> None:
    if not isinstance(extra, dict):
        raise InvalidTransactionError(
            "extra is not an object", expected="a JSON object", found=where
        )
    for name, value in extra.items():
        child = node.fields.get(name)
        if isinstance(child, Leaf):
            raise InvalidTransactionError(
                "extra contains a field that has its own column",
                expected=f"the value in column {child.column}",
                found=f"{where}.{name}",
            )
        if child is not None:
            _require_unnamed(value, child, f"{where}.{name}")


def encode_info(info: Mapping[str, Any]) -> bytes:
    """The JSON of a commitInfo body."""
    body = dict(info)
    if _depth(body) > _MAX_NESTING:
        raise InvalidTransactionError(
            "the commitInfo is nested too deeply", expected=f"at most {_MAX_NESTING} levels"
        )
    try:
        return orjson.dumps(body)
    except TypeError as cause:
        raise InvalidTransactionError(
            "the commitInfo is not valid JSON",
            expected="strings, 64-bit integers, floats, booleans, lists and maps",
            found=str(cause),
        ) from cause


def _depth(value: Any, level: int = 1) -> int:
    if not isinstance(value, dict | list) or level > _MAX_NESTING + 1:
        return level
    children = value.values() if isinstance(value, dict) else value
    return max((_depth(child, level + 1) for child in children), default=level)
