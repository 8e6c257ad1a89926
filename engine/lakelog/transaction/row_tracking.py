"""Assigns row ids and row commit versions to added files, at each attempt. Pure.

Source: Delta protocol, Writer Requirements for Row Tracking.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson
import polars as pl

from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import CorruptionError, InvalidTransactionError
from lakelog.model import actions
from lakelog.model.metadata import is_on
from lakelog.skipping.statistics import num_records

DOMAIN = "delta.rowTracking"
ENABLED = "delta.enableRowTracking"
_SUSPENDED = "delta.rowTrackingSuspended"
ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"
MATERIALIZED = (ROW_ID_COLUMN, ROW_VERSION_COLUMN)
"""Properties with the names of the columns that store row ids in files."""

_WATER_MARK = "rowIdHighWaterMark"


class Assigned(NamedTuple):
    """Adds with their ids, and the high water mark if it increased."""

    files: pl.DataFrame
    water_mark: int | None


def is_assigning(table: TableConfiguration) -> bool:
    """Whether writers must assign row ids."""
    return table.supports("rowTracking") and not is_on(table.metadata.configuration, _SUSPENDED)


def water_mark(meta: pl.DataFrame) -> int:
    """The highest assigned row id, from a state's non-file actions; -1 if there is none."""
    if "domain" not in meta.columns:
        return -1
    rows = meta.filter(
        (pl.col("actionType") == "domainMetadata") & (pl.col("domain") == DOMAIN)
    ).tail(1)
    if not rows.height:
        return -1
    removed = actions.conform(rows, ("domainRemoved",)).item()
    text = actions.conform(rows, ("domainConfiguration",)).item()
    if removed:
        return -1
    try:
        mark = orjson.loads(text or "")[_WATER_MARK]
    except (ValueError, KeyError, TypeError) as cause:
        raise _unreadable(text) from cause
    if type(mark) is not int:
        raise _unreadable(text)
    return mark


def _unreadable(text: str | None) -> CorruptionError:
    return CorruptionError(
        f"the domain {DOMAIN} cannot be read, so the next free row id is unknown",
        expected='{"rowIdHighWaterMark": <number>}',
        found=text,
    )


def configuration(mark: int) -> str:
    """The domain's configuration for a high water mark."""
    return orjson.dumps({_WATER_MARK: mark}).decode()


def assign(files: pl.DataFrame, version: int, mark: int) -> Assigned:
    """Assign the next free base row ids and the commit version to adds without ids."""
    is_add = files["actionType"] == "add"
    if not is_add.any():
        return Assigned(files, None)
    stats, base, since = actions.conform(files, ("stats", *actions.ROW_IDS)).get_columns()
    counts = num_records(stats)
    fresh = is_add & base.is_null()
    counted = is_add & (fresh | (base > mark).fill_null(False))
    uncounted = counted & counts.is_null()
    if uncounted.any():
        raise InvalidTransactionError(
            "row tracking needs the number of records of each added file",
            path=files["path"].filter(uncounted)[0],
            expected="stats with numRecords",
            found=stats.filter(uncounted)[0],
            hint="pass stats='{\"numRecords\": ...}'",
        )
    # Given ids may exceed the mark; new ids start above all of them.
    brought = (base + counts - 1).filter(is_add & base.is_not_null()).max()
    start = max(mark, int(brought) if isinstance(brought, int) else -1)
    taken = counts.set(~fresh, 0).fill_null(0)
    ends = taken.cum_sum()
    base = base.zip_with(~fresh, ends - taken + start + 1)
    since = since.zip_with(
        ~(is_add & since.is_null()), pl.Series([version]).new_from_index(0, len(since))
    )
    highest = start + int(taken.sum())
    changed = files.with_columns(
        base.alias("baseRowId"), since.cast(pl.Int64).alias("defaultRowCommitVersion")
    )
    return Assigned(changed, highest if highest > mark else None)
