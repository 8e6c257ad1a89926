"""Compares the log's record of a data file with the file.

A file that was replaced or damaged may still be whole Parquet. Its length, its number of rows and
the columns that it lacks are compared with the ``size`` and ``stats`` of its add action before a
row is returned. A statistic that is missing or malformed proves nothing.

Source: Delta protocol, Add File and Remove File; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import orjson

from lakelog.errors import CorruptionError

_HINT = (
    "the file was replaced or damaged after its commit: restore it from a copy, or "
    "restore the table to a version before the file"
)

Path = tuple[str, ...]


def require_size(recorded: int | None, found: int | None) -> None:
    """Refuse a file of another length than the log records."""
    if recorded is None or found is None or found == recorded:
        return
    raise CorruptionError(
        "the length of a data file differs from the log",
        expected=f"{recorded} bytes of Parquet",
        found=f"{found} bytes",
        hint=_HINT,
    )


def require_contents(
    stats: str | None, num_rows: int, num_deleted: int, absent: Collection[Path]
) -> None:
    """Refuse a file whose rows and columns contradict the statistics that the log records."""
    recorded = _parsed(stats)
    records = recorded.get("numRecords")
    if type(records) is int and records != num_rows:
        raise CorruptionError(
            "the number of rows of a data file differs from the log",
            expected=f"{records} rows",
            found=f"{num_rows} rows",
            hint=_HINT,
        )
    # The null count of a file with deleted rows, or with wide bounds, may leave nulls out.
    most = num_rows if recorded.get("tightBounds") is not False and not num_deleted else 1
    for column in absent if num_rows > num_deleted else ():
        for path, evidence in _values(recorded, column, most):
            raise CorruptionError(
                f"a data file has no column {'.'.join(path)!r}, but the log records values of it",
                expected=evidence,
                found="no such column",
                hint=_HINT,
            )


def _parsed(stats: str | None) -> dict[str, Any]:
    try:
        found = orjson.loads(stats) if stats else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _values(recorded: dict[str, Any], column: Path, most: int) -> Iterator[tuple[Path, str]]:
    """The leaves at and below a column that have a value, with the statistic that proves it: fewer
    nulls than `most`, or a bound.
    """
    for path, nulls in _leaves(_below(recorded.get("nullCount"), column), column):
        if type(nulls) is int and nulls < most:
            yield path, f"nullCount {nulls}"
    for kind in ("minValues", "maxValues"):
        for path, bound in _leaves(_below(recorded.get(kind), column), column):
            if bound is not None:
                yield path, f"{kind} {bound}"


def _below(tree: Any, path: Path) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _leaves(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(tree, dict):
        for name, below in tree.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path, tree
