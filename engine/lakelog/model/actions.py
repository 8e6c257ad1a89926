"""The flattened action table: its columns, and frames conformed to them.

One row per action, columns as ``schemas/actions.json`` gives them. Frames inside lakelog are
narrow: a column that holds only nulls may be left out, and `conform` adds it when it is asked for.
Knows nothing of where the bytes live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import polars as pl

from lakelog.model import contract

ORDER = ("version", "position")
"""Total order of actions: commit, then line in the commit."""

KEY = ("path", "dvId")
"""Identity of a logical file (Delta protocol, Add File and Remove File)."""

FILE_ACTIONS = ("add", "remove")
"""Action types that take part in the reconciliation of files."""

PATH_TEXT = "pathText"
"""A column that the flattened table does not have: the text of a path in the log where
`lakelog.dialects.delta.paths.encode_paths` gives another text, else null."""

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
    """Select `columns` (default: all, in contract order), adding as null those that are missing.

    Every column comes out with the contract's dtype. Memory: one null column of the frame's
    height for each that is missing.
    """
    full = _dtypes()
    wanted = list(columns) if columns is not None else list(schema())
    present = frozenset(frame.columns)
    conformed = []
    # Columns are put together again, because a selection runs a query, which copies long columns
    # that are in several chunks.
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
    """The rows of some action types, in order.

    Without a query where they are together, or there are none: most often it is asked of a few
    rows, of which a query costs as much as of thousands. Rows that are together are not copied:
    as long as they are kept, so is all of `frame`. Who keeps few rows of a large one copies them.

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
    """Stack narrow frames; a column that one of them lacks is null there.

    Returns a frame with ``actionType`` only, and no rows, when there is nothing to stack.
    """
    stack = [f for f in frames if f.height]
    if not stack:
        return empty(_ROW)
    if len(stack) == 1:
        return stack[0]
    return pl.concat(stack, how="diagonal")
