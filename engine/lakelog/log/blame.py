"""The history of one file, one row per commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import suppress

import polars as pl

from lakelog.dialects.log_content import LogListing
from lakelog.errors import InvalidInputError, InvalidPropertyError, NotFoundError
from lakelog.log.context import Log
from lakelog.log.files import find_files
from lakelog.log.history import LAST_TIME_MS, as_time, by_size, history
from lakelog.log.opening import with_stable_listing
from lakelog.log.properties import deleted_file_retention_ms
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions

BLAME_SCHEMA = {
    "version": pl.Int64(),
    "timestamp": pl.Datetime("ms", "UTC"),
    "actionType": pl.String(),
    "dvId": pl.String(),
    "dvCardinality": pl.Int64(),
    "size": pl.Int64(),
    "dataChange": pl.Boolean(),
    "deletionTimestamp": pl.Datetime("ms", "UTC"),
    "operation": pl.String(),
    "userName": pl.String(),
    "engineInfo": pl.String(),
    "vacuumAfter": pl.Datetime("ms", "UTC"),
}


def blame(
    log: Log, path: str, open_latest: Callable[[], LogSnapshot] | None = None
) -> pl.DataFrame:
    """The history of one file, in `BLAME_SCHEMA`; memory: commits of about 64 MB at a time."""
    if not path:
        raise InvalidInputError(
            "the path must not be empty", expected="the path of a file of the table"
        )
    names = _spellings(log, path)
    latest = LogSnapshot.open(log) if open_latest is None else open_latest()
    rows = with_stable_listing(log, lambda listing: _commits_of_file(log, listing, names))
    if names[0] not in _paths(rows):
        others = [name for name in names if name not in _paths(rows)]
        rows = actions.concat([rows, _in_checkpoint(latest, others)])
    name = next((name for name in names if name in _paths(rows)), None)
    if name is None:
        raise NotFoundError(
            "the log does not contain this file",
            path=path,
            hint="use the path as `files` or `actions` returns it",
        )
    rows = _actions_frame(log, rows.filter(pl.col("path") == name))
    return _with_vacuum_date(rows, latest, name)


def _spellings(log: Log, path: str) -> list[str]:
    """What the path may mean; the first that the log contains is used, because the name of a file
    may contain an escape.
    """
    root = log.table.rstrip("/") + "/"
    relative = path.removeprefix(root)
    return list(dict.fromkeys((path, relative, log.dialect.decode_path(relative))))


def _paths(rows: pl.DataFrame) -> set[str]:
    return set(rows["path"].unique()) if rows.height else set()


def _commits_of_file(log: Log, listing: LogListing, names: Sequence[str]) -> pl.DataFrame:
    found: list[pl.DataFrame] = []
    for chunk in by_size(listing.commits):
        files = log.dialect.decode(log.store, chunk).files
        if "path" in files.columns:
            found.append(files.filter(pl.col("path").is_in(list(names))))
    return actions.concat(found)


def _in_checkpoint(snapshot: LogSnapshot, names: Sequence[str]) -> pl.DataFrame:
    """The actions of a file that only the checkpoint contains."""
    wanted = ("path", *(c for c in BLAME_SCHEMA if c in actions.schema()))

    def finish(batch: pl.DataFrame) -> pl.DataFrame:
        return actions.conform(batch.filter(pl.col("path").is_in(list(names))), wanted)

    removed = snapshot.read_state(lambda state: state.live("remove", wanted, finish))
    return actions.concat([find_files(snapshot, names, wanted), *removed])


def _actions_frame(log: Log, rows: pl.DataFrame) -> pl.DataFrame:
    """File actions joined with their commits."""
    commits = history(log).select("version", "timestamp", "operation", "userName", "engineInfo")
    own = (
        "version",
        "actionType",
        "dvId",
        "dvCardinality",
        "size",
        "dataChange",
        "deletionTimestamp",
    )
    return (
        actions.conform(rows, own)
        .join(commits, on="version", how="left", maintain_order="left")
        .with_columns(as_time("deletionTimestamp"))
    )


def _with_vacuum_date(rows: pl.DataFrame, latest: LogSnapshot, name: str) -> pl.DataFrame:
    live = find_files(latest, [name], ("path",))
    date: list[dt.datetime | None] = [None] * rows.height
    last = rows.row(rows.height - 1, named=True)
    if not live.height and last["actionType"] == "remove":
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        since = (last["deletionTimestamp"] or epoch) - epoch
        with suppress(InvalidPropertyError):  # then vacuum refuses the table
            retention = deleted_file_retention_ms(latest.metadata.configuration)
            after_ms = min(since // dt.timedelta(milliseconds=1) + retention, LAST_TIME_MS)
            date[-1] = epoch + dt.timedelta(milliseconds=after_ms)
    return rows.with_columns(
        pl.Series("vacuumAfter", date, dtype=BLAME_SCHEMA["vacuumAfter"])
    ).select(list(BLAME_SCHEMA))
