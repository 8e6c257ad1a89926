"""The commits of the demonstration table and their times.

The story: a stream appends orders every hour, a nightly load adds a batch, housekeeping compacts
small files, privacy requests delete rows, and once a deletion goes wrong and is restored.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import polars as pl

from lakelog.errors import InvalidInputError

CREATE, ADD_COLUMNS, SET_PROPERTIES = "CREATE TABLE", "ADD COLUMNS", "SET TBLPROPERTIES"
STREAM, BATCH = "STREAMING UPDATE", "WRITE"
OPTIMIZE, DELETE, RESTORE = "OPTIMIZE", "DELETE", "RESTORE"

USERS = {STREAM: "stream", BATCH: "nightly", OPTIMIZE: "housekeeping", DELETE: "privacy"}
OWNER = "dana"
"""Who does the rest: creates the table, changes it, restores it."""

FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR_MS = 3_600_000
FIRST_DAY = dt.date(2026, 1, 1)

_OPTIMIZE_EVERY, _DELETE_EVERY = 24, 17

MIN_COMMITS = 40
"""With fewer there is no room for a compaction, a restored deletion and a checkpoint."""


@dataclass(frozen=True)
class Calendar:
    """Who commits what.

    Attributes:
        operations: ``version`` (Int64, from 0 without gaps) and ``operation``.
        schema_version: The commit that adds the column ``coupon``.
        property_version: The commit that sets properties.
        mistake_version: The deletion that is restored by the commit after it.
        checkpoint_version: Where the checkpoint is.
    """

    operations: pl.DataFrame
    schema_version: int
    property_version: int
    mistake_version: int
    checkpoint_version: int

    def versions(self, *operations: str) -> pl.DataFrame:
        """The ``version`` of each commit that does one of `operations`, ascending."""
        rows = self.operations.filter(pl.col("operation").is_in(operations))
        return rows.select("version").set_sorted("version")


def commit_ms(version: int) -> int:
    """When a version is committed, in milliseconds since the Unix epoch: one an hour."""
    return FIRST_MS + version * HOUR_MS


def plan(commits: int) -> Calendar:
    """The calendar of a table with so many commits."""
    if commits < MIN_COMMITS:
        raise InvalidInputError(
            "the demonstration needs more commits", expected=f">= {MIN_COMMITS}", found=commits
        )
    version = pl.col("version")
    mistake = _mistake(commits)
    taken = {0, mistake, mistake + 1}
    schema_version = _free(commits // 3, taken)
    property_version = _free(commits // 2, taken | {schema_version})
    operations = pl.DataFrame({"version": pl.int_range(commits, eager=True)}).with_columns(
        pl.when(version == 0)
        .then(pl.lit(CREATE))
        .when(version == schema_version)
        .then(pl.lit(ADD_COLUMNS))
        .when(version == property_version)
        .then(pl.lit(SET_PROPERTIES))
        .when(version == mistake + 1)
        .then(pl.lit(RESTORE))
        .when(version % _OPTIMIZE_EVERY == _OPTIMIZE_EVERY - 1)
        .then(pl.lit(OPTIMIZE))
        .when(version % _DELETE_EVERY == _DELETE_EVERY - 1)
        .then(pl.lit(DELETE))
        .when(version % 12 == 3)
        .then(pl.lit(BATCH))
        .otherwise(pl.lit(STREAM))
        .alias("operation")
    )
    checkpoint = commits * 2 // 3 // 10 * 10
    return Calendar(operations, schema_version, property_version, mistake, checkpoint)


def _mistake(commits: int) -> int:
    """The last deletion of the first half that neither is nor comes before a compaction."""
    deletions = range(_DELETE_EVERY - 1, commits // 2 + 1, _DELETE_EVERY)
    return max(v for v in deletions if v % _OPTIMIZE_EVERY < _OPTIMIZE_EVERY - 2)


def _free(version: int, taken: set[int]) -> int:
    """The version, or the next one that is not taken."""
    while version in taken:
        version += 1
    return version
