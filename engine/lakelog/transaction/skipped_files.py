"""Skipped files of the IndexTables dialect: reason, count and cooldown.

A skipped file stays in the table; merges leave it alone until its cooldown has passed, and then
try it again. Pure.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

import polars as pl

from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model import actions
from lakelog.model.durations import parse_interval_ms
from lakelog.model.metadata import in_any_case

COOLDOWN_PROPERTY = "spark.indextables.skippedFiles.cooldownDuration"
DEFAULT_COOLDOWN_MS = 24 * 3_600_000

_HOUR_MS = 3_600_000


def cooldown_ms(configuration: Mapping[str, str | None]) -> int:
    """How long a skipped file is left alone, in milliseconds: 24 hours unless the table says
    otherwise, in hours or as an interval.

    >>> cooldown_ms({"spark.indextables.skippedFiles.cooldownDuration": "48"})
    172800000
    """
    value = in_any_case(configuration, COOLDOWN_PROPERTY)
    if value is None:
        return DEFAULT_COOLDOWN_MS
    if re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        return int(value) * _HOUR_MS
    try:
        return parse_interval_ms(value)
    except InvalidInputError as cause:
        raise InvalidPropertyError(
            f"the value of {COOLDOWN_PROPERTY} is not a valid duration",
            found=value,
            expected="hours as an integer, or an interval such as '90 minutes'",
        ) from cause


def with_times(rows: pl.DataFrame, now_ms: int, cooldown: int | dt.timedelta) -> pl.DataFrame:
    """Fill in when each file was skipped, and until when it is left alone."""
    if isinstance(cooldown, dt.timedelta):
        cooldown = cooldown // dt.timedelta(milliseconds=1)
    names = ("skipTimestamp", "skipOperation", "retryAfter")
    at, operation, until = actions.conform(rows, names).get_columns()
    at = at.fill_null(now_ms)
    return rows.with_columns(
        at, operation.fill_null(""), until.zip_with(until.is_not_null(), at + cooldown)
    )


def counted(meta: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Give each ``mergeskip`` row without a count the one that follows: one more than the file's
    last, so that it survives a rebase over another writer's skip.
    """
    is_skip = meta["actionType"] == "mergeskip"
    rows = meta.filter(is_skip)
    known = actions.conform(
        before.filter(before["actionType"] == "mergeskip"), ("path", "skipCount")
    )
    last = known.with_columns(pl.col("skipCount").fill_null(1).alias("__last")).select(
        "path", "__last"
    )
    joined = rows.select("path").join(last, on="path", how="left", maintain_order="left")
    count = actions.conform(rows, ("skipCount",))["skipCount"]
    following = joined["__last"].fill_null(0) + 1
    count = count.zip_with(count.is_not_null(), following.cast(pl.Int32))
    return actions.concat([meta.filter(~is_skip), rows.with_columns(count.alias("skipCount"))])
