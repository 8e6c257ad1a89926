"""The flattened action table: its columns, and frames conformed to them.

One row per action, with the columns of ``schemas/actions.json``. Frames inside lakelog are narrow:
an all-null column may be missing, and `conform` adds it on request. Independent of storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import polars as pl

from lakelog.errors import InvalidActionError
from lakelog.model import contract

ORDER = ("version", "position")
"""Total order of actions: commit, then line in the commit."""

KEY = ("path", "dvId")
"""Identity of a logical file (Delta protocol, Add File and Remove File)."""

FILE_ACTIONS = ("add", "remove")
"""Action types that take part in the reconciliation of files."""

PATH_TEXT = "pathText"
"""Additional column, not in the flattened table: the text of a path in the log if it differs from
the result of `lakelog.dialects.delta.paths.encode_paths`, else null.
"""

DV_COLUMNS = ("dvStorageType", "dvPathOrInline", "dvOffset", "dvSizeInBytes", "dvCardinality")
"""Columns of a deletion vector; the first two are required."""

DV_ID_COLUMNS = DV_COLUMNS[:3]
"""Columns from which ``dvId`` is derived."""

ROW_IDS = ("baseRowId", "defaultRowCommitVersion")
"""Columns of row tracking."""

_ROW = ("version", "position", "actionType", "timestamp")


@cache
def schema() -> pl.Schema:
    """Every column of the flattened action table with its Polars dtype, in contract order."""
    return pl.Schema({f.name: contract.to_polars(f.type) for f in contract.load("actions").fields})


@cache
def fields() -> Mapping[str, contract.Field]:
    """The fields of all columns of the flattened action table, and of `PATH_TEXT`, by name."""
    path_text = contract.Field(PATH_TEXT, contract.Primitive("string"))
    return {f.name: f for f in (*contract.load("actions").fields, path_text)}


@cache
def _dtypes() -> Mapping[str, pl.DataType]:
    return {name: contract.to_polars(field.type) for name, field in fields().items()}


def empty(columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A frame without rows, with `columns` (default: all) in the contract's dtypes."""
    return _empty(tuple(columns or schema())).clone()


@cache
def _empty(columns: tuple[str, ...]) -> pl.DataFrame:
    return pl.DataFrame(schema={c: _dtypes()[c] for c in columns})


def conform(frame: pl.DataFrame, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Select `columns` (default: all) in the contract's order and types; missing ones are null."""
    full = _dtypes()
    wanted = list(columns) if columns is not None else list(schema())
    present = frozenset(frame.columns)
    conformed = []
    # Columns are combined directly, because a selection runs a query, which copies long columns in
    # several chunks.
    for name in wanted:
        if name not in present:
            conformed.append(_null(name).new_from_index(0, frame.height))
            continue
        column = frame.get_column(name)
        conformed.append(column if column.dtype == full[name] else column.cast(full[name]))
    return pl.DataFrame(conformed)


@cache
def _null(column: str) -> pl.Series:
    return pl.Series(column, [None], dtype=_dtypes()[column])


def of_type(frame: pl.DataFrame, *kinds: str) -> pl.DataFrame:
    """The rows of some action types, in order. If they are contiguous, the result is a slice that
    keeps all of `frame` alive: copy small results.

    >>> frame = pl.DataFrame({"actionType": ["protocol", "txn"], "appId": [None, "a"]})
    >>> of_type(frame, "txn").rows(), of_type(frame, "txn", "protocol") is frame
    ([('txn', 'a')], True)
    """
    types = frame["actionType"]
    there = types == kinds[0]
    for kind in kinds[1:]:
        there |= types == kind
    count = int(there.sum() or 0)
    if not count:
        return frame.clear()
    if count == frame.height:
        return frame
    first = there.arg_max() or 0
    if bool(there[first : first + count].all(ignore_nulls=False)):
        return frame[first : first + count]
    return frame.filter(there)


def concat(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate narrow frames with nulls for missing columns; at least ``actionType``."""
    stack = [f for f in frames if f.height]
    if not stack:
        return empty(_ROW)
    if len(stack) == 1:
        return stack[0]
    return pl.concat(stack, how="diagonal")


def with_dv_id(files: pl.DataFrame) -> pl.DataFrame:
    """Add ``dvId`` (storageType + pathOrInlineDv [+ "@" + offset]) if files have vectors."""
    columns = [c for c in DV_COLUMNS if c in files.columns]
    if not columns:
        return files
    for required in DV_COLUMNS[:2]:
        lacking = pl.any_horizontal(pl.col(c).is_not_null() for c in columns)
        if required in columns:
            lacking &= pl.col(required).is_null()
        incomplete = files.filter(lacking)
        if incomplete.height:
            raise InvalidActionError(
                "a deletion vector lacks a required field",
                version=incomplete["version"][0] if "version" in incomplete.columns else None,
                expected=required,
                found=incomplete["path"][0],
                hint="restore the file from a copy; reading stopped here",
            )
    if not set(DV_COLUMNS[:2]) <= set(columns):
        return files
    suffix = (
        pl.when(pl.col("dvOffset").is_not_null())
        .then(pl.concat_str(pl.lit("@"), pl.col("dvOffset").cast(pl.String)))
        .otherwise(pl.lit(""))
        if "dvOffset" in columns
        else pl.lit("")
    )
    return files.with_columns(pl.concat_str(*DV_COLUMNS[:2], suffix).alias("dvId"))
