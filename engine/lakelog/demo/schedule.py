"""The commits of the demonstration table with their times, and its data files with their lifetimes.

A stream appends orders every hour, a nightly load adds a batch, housekeeping compacts small files,
privacy requests delete rows, and one deletion is a mistake that is restored. Files are drawn column
by column: a file's lifetime follows from its own row, without a walk through the commits.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.errors import InvalidInputError

CREATE, ADD_COLUMNS, SET_PROPERTIES = "CREATE TABLE", "ADD COLUMNS", "SET TBLPROPERTIES"
STREAM, BATCH = "STREAMING UPDATE", "WRITE"
OPTIMIZE, DELETE, RESTORE = "OPTIMIZE", "DELETE", "RESTORE"

USERS = {STREAM: "stream", BATCH: "nightly", OPTIMIZE: "housekeeping", DELETE: "privacy"}
OWNER = "dana"
"""User of the other operations: creates, changes and restores the table."""

FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR_MS = 3_600_000
_FIRST_DAY = dt.date(2026, 1, 1)

_OPTIMIZE_EVERY, _DELETE_EVERY = 24, 17

MIN_COMMITS = 40
"""The least number of commits that includes a compaction, a restored deletion and a checkpoint."""


@dataclass(frozen=True)
class Calendar:
    """The schedule of commits: ``version`` (Int64, from 0 without gaps) and ``operation``, and the
    commits with a special purpose.
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
    """Commit time of a version, in milliseconds since the Unix epoch: one per hour."""
    return FIRST_MS + version * HOUR_MS


def plan(commits: int) -> Calendar:
    """The calendar of a table with this number of commits."""
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


_REGIONS = ("apac", "eu", "latam", "us")
_REGION_WEIGHTS = (0.2, 0.35, 0.1, 0.35)
_LATE = 0.07  # share of files that belong to the day before
_DELETED = 0.08  # share of files that a deletion hits
_MISTAKEN = 0.9  # the same for the deletion that goes wrong
_REWRITTEN = 0.6  # share of those whose other rows are written again
_BYTES_PER_ROW = 38
_FILE_OVERHEAD_BYTES = 4_096

_LIFETIMES = (
    "path day region size modificationTime numRecords firstId lastId minAmount maxAmount "
    "maxQuantity firstCustomer lastCustomer firstTime lastTime added removed restored"
).split()
"""Columns of `file_lifetimes`."""


def file_lifetimes(calendar: Calendar, seed: int) -> pl.DataFrame:
    """All data files, including removed ones."""
    random = np.random.default_rng(seed)
    appended = append_files(calendar.versions(STREAM, BATCH), calendar, random)
    appended = _removed(appended, calendar, random)
    merged = _removed(_merge(appended, random), calendar, random)
    appended = appended.with_columns(_removed_by_either())
    rewritten = _rewrite(pl.concat([appended, merged], how="diagonal"), calendar, random)
    restored = (
        pl.when(pl.col("removed") == calendar.mistake_version)
        .then(pl.lit(calendar.mistake_version + 1, pl.Int64))
        .alias("restored")
    )
    stays = pl.concat([appended, merged], how="diagonal").with_columns(restored)
    return pl.concat(
        [
            stays.select(_LIFETIMES),
            rewritten.with_columns(restored=pl.lit(None, pl.Int64)).select(_LIFETIMES),
        ]
    ).sort("added", "path")


def append_files(
    versions: pl.DataFrame, calendar: Calendar | None, random: np.random.Generator
) -> pl.DataFrame:
    """The files of appending commits; ``numRecords`` and all that follows from it included."""
    large = calendar.versions(BATCH)["version"] if calendar else pl.Series([], dtype=pl.Int64)
    rows = versions.with_columns(
        files=pl.when(pl.col("version").is_in(large.implode()))
        .then(pl.Series(random.integers(20, 30, versions.height)))
        .otherwise(pl.Series(random.integers(6, 14, versions.height)))
    )
    rows = rows.select(pl.col("version").repeat_by("files").alias("added")).explode("added")
    n = rows.height
    days = (pl.col("added") // 24) - pl.Series(random.random(n) < _LATE).cast(pl.Int64)
    rows = rows.with_columns(
        dayNumber=days.clip(0),
        region=pl.Series(random.choice(_REGIONS, n, p=_REGION_WEIGHTS)),
        numRecords=pl.Series(random.lognormal(8, 0.6, n)).cast(pl.Int64) + 1,
        minAmount=pl.Series(random.uniform(0.5, 3.0, n)).round(2),
        maxAmount=pl.Series(random.lognormal(6, 0.7, n) + 50).round(2),
        maxQuantity=pl.Series(random.integers(4, 40, n)),
        firstCustomer=_customer(random.integers(0, 3_000, n)),
        lastCustomer=_customer(random.integers(90_000, 100_000, n)),
    )
    # Order numbers count through the table's life; a single later commit continues far above it.
    offset = 1 if calendar else 1_000_000_000
    last = pl.col("numRecords").cum_sum() + offset
    hour_end = FIRST_MS + (pl.col("added") - (pl.col("added") // 24 - pl.col("dayNumber")) * 24) * (
        HOUR_MS
    )
    return _placed(
        rows.with_columns(
            day=pl.lit(_FIRST_DAY) + pl.duration(days="dayNumber"),
            firstId=last - pl.col("numRecords"),
            lastId=last - 1,
            firstTime=hour_end.clip(FIRST_MS),
            lastTime=hour_end + 59 * 60_000,
            size=pl.col("numRecords") * _BYTES_PER_ROW + _FILE_OVERHEAD_BYTES,
        ),
        random,
    )


def _customer(numbers: np.ndarray) -> pl.Expr:
    return pl.lit("c") + pl.lit(pl.Series(numbers)).cast(pl.String).str.zfill(6)


def _placed(rows: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """Give the files their paths and times."""
    day = pl.col("day").dt.to_string("%Y-%m-%d")
    path = pl.format(
        "day={}/region={}/part-{}-{}.c000.snappy.parquet",
        day,
        "region",
        (pl.int_range(pl.len()) % 200).cast(pl.String).str.zfill(5),
        pl.lit(_uuids(rows.height, random)),
    )
    return rows.with_columns(
        path=path, modificationTime=FIRST_MS + pl.col("added") * HOUR_MS - 2_000
    )


def _uuids(count: int, random: np.random.Generator) -> pl.Series:
    buffer = pa.py_buffer(random.bytes(16 * count))
    raw = pa.Array.from_buffers(pa.binary(16), count, [None, buffer]).cast(pa.binary())
    digits = pl.col("raw").bin.encode("hex")
    parts = [
        digits.str.slice(start, length)
        for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))
    ]
    return pl.DataFrame({"raw": pl.Series(raw)}).select(pl.concat_str(parts, separator="-"))["raw"]


def _removed(rows: pl.DataFrame, calendar: Calendar, random: np.random.Generator) -> pl.DataFrame:
    """Add ``deleted`` and ``compacted``: the versions that would remove each file, or null."""
    deleted = pl.col("deleted")
    deletions = calendar.versions(DELETE).rename({"version": "deleted"})
    compactions = calendar.versions(OPTIMIZE).rename({"version": "compacted"})
    rows = (
        rows.with_columns(
            roll=pl.Series(random.random(rows.height)),
            # A request concerns rows of any age, so not only the newest files are hit.
            asked=pl.col("added") + pl.Series(random.integers(1, 30, rows.height)),
        )
        .sort("asked")
        .join_asof(
            deletions.set_sorted("deleted"), left_on="asked", right_on="deleted", strategy="forward"
        )
        .sort("added", "path")
        .join_asof(
            compactions.set_sorted("compacted"),
            left_on="added",
            right_on="compacted",
            strategy="forward",
            allow_exact_matches=False,
        )
    )
    share = pl.when(deleted == calendar.mistake_version).then(_MISTAKEN).otherwise(_DELETED)
    # Each deletion hits at least one file.
    hit = (pl.col("roll") < share) | (pl.col("roll") == pl.col("roll").min().over("deleted"))
    return rows.with_columns(deleted=pl.when(hit).then(deleted)).with_columns(removed="deleted")


def _removed_by_either() -> pl.Expr:
    """The removal of an appended file: a deletion, or the compaction if that is earlier."""
    alone = pl.len().over("compacted", "day", "region", _before_compaction()) < 2
    merged = _before_compaction() & pl.col("compacted").is_not_null() & ~alone
    return pl.when(merged).then("compacted").otherwise("deleted").alias("removed")


def _before_compaction() -> pl.Expr:
    return pl.col("deleted").is_null() | (pl.col("deleted") > pl.col("compacted"))


def _merge(appended: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """The files that compactions write: one for each partition that has several small ones."""
    small = appended.with_columns(_removed_by_either()).filter(
        pl.col("removed") == pl.col("compacted")
    )
    merged = small.group_by("compacted", "day", "region", maintain_order=True).agg(
        pl.col("numRecords").sum(),
        (pl.col("size").sum() * 85 // 100),
        pl.col("firstId", "minAmount", "firstCustomer", "firstTime").min(),
        pl.col("lastId", "maxAmount", "maxQuantity", "lastCustomer", "lastTime").max(),
    )
    return _placed(merged.rename({"compacted": "added"}), random)


def _rewrite(rows: pl.DataFrame, calendar: Calendar, random: np.random.Generator) -> pl.DataFrame:
    """The files that deletions write: what is left of those that they remove."""
    hit = rows.filter(pl.col("removed").is_not_null() & (pl.col("removed") == pl.col("deleted")))
    hit = hit.filter(pl.Series(random.random(hit.height)) < _REWRITTEN)
    left = hit.with_columns(
        added=pl.col("deleted"),
        numRecords=pl.col("numRecords") * 7 // 10 + 1,
        size=pl.col("size") * 7 // 10,
    )
    undone = pl.col("added") == calendar.mistake_version
    return _placed(left, random).with_columns(removed=pl.when(undone).then(pl.col("added") + 1))
