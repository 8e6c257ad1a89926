"""History: the commits of a log as dataframes.

`history` and `lazy_actions` read commit files, never checkpoints, because a checkpoint contains
state without commitInfo.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.commit_reader import group_commits
from lakelog.dialects.log_content import Actions, CommitFile, CommitInfo, LogListing
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogWarning,
    VersionNotFoundError,
    naming_table,
)
from lakelog.log.context import Log, state_times
from lakelog.log.files import lazy_frame
from lakelog.log.opening import stamped_from, with_stable_listing
from lakelog.log.segment import latest_version, validate_contiguous
from lakelog.model import actions
from lakelog.model.metadata import last_metadata
from lakelog.skipping.statistics import map_stats

if TYPE_CHECKING:
    from lakelog.log.snapshot import LogSnapshot

_T = TypeVar("_T")

HISTORY_COLUMNS = (
    "operation",
    "operationParameters",
    "operationMetrics",
    "userName",
    "userMetadata",
    "engineInfo",
    "isBlindAppend",
    "txnId",
    "extra",
)
"""Columns of the contract, and `userMetadata`, a field of `extra`."""

_DERIVED = ("numRecords", "minValues", "maxValues", "nullCount")
_CHUNK_BYTES = 64 << 20
_TIME = pl.Datetime("ms", "UTC")
_FIRST_TIME_MS = -62_135_596_800_000
LAST_TIME_MS = 253_402_300_799_999
"""The greatest time that a datetime can represent (end of the year 9999), in milliseconds since the
Unix epoch.
"""


def history(log: Log, limit: int | None = None) -> pl.DataFrame:
    """The existing commits, newest first; see `Table.history`. Memory: their commitInfo bodies."""
    if limit is not None and limit < 0:
        raise InvalidInputError("limit must not be negative", expected=">= 0", found=limit)
    return with_stable_listing(log, lambda listing: _history(log, listing, limit))


def read_above_damage(
    log: Log, version: int, read: Callable[[int], _T], what: str
) -> tuple[_T, str | None]:
    """What `read` returns for the commits above a version, -1 at first. If one below `version` is
    damaged, those above it are read, with a `LakelogWarning` that begins with `what`; its text is
    returned too.
    """
    above, omitted = -1, None
    while True:
        try:
            found = read(above)
        except CorruptionError as error:
            commits = log.list_all().commits
            damaged = next((c.version for c in commits if c.path == error.path), None)
            if damaged is None or not above < damaged < version:
                raise
            above = damaged
            omitted = f"{what} above version {above:,}: {error.path}: {error.message}"
        else:
            if omitted is not None:
                warnings.warn(omitted, LakelogWarning, stacklevel=3)
            return found, omitted


def _history(log: Log, listing: LogListing, limit: int | None) -> pl.DataFrame:
    latest = latest_version(listing, log.table)
    versions = _versions(listing)[:limit]
    lowest = versions[-1] if versions else 0
    commits = [c for c in listing.commits if c.version >= lowest and versions]
    found = log.dialect.decode(log.store, commits, files=False) if commits else Actions()

    def since() -> int | None:
        if latest - lowest + 1 != len(commits):
            return stamped_from(log)  # a missing commit may have changed the feature
        metadata = last_metadata(found.meta)
        if metadata is not None:
            return metadata.stamped_from
        # No commit that was read changed the feature, and while it is on, every commit has one.
        stamped = (i for i in found.commit_infos if in_commit_timestamp(i) is not None)
        return 0 if versions[0] in {i.version for i in stamped} else None

    return history_of(log, listing, found.commit_infos, since, limit)


def _versions(listing: LogListing) -> list[int]:
    """The versions of a history, newest first."""
    stated = {c.version for c in listing.checkpoints if c.layout == "avro-state"}
    return sorted({c.version for c in listing.commits} | stated, reverse=True)


def history_of(
    log: Log,
    listing: LogListing,
    infos: Sequence[CommitInfo],
    stamped_from: Callable[[], int | None],
    limit: int | None = None,
) -> pl.DataFrame:
    """The columns of `history` for the commits of a listing, of which `infos` were decoded;
    `stamped_from` as `times_of`.
    """
    versions = _versions(listing)[:limit]
    rows = actions.conform(
        log.dialect.decode_commit_infos(infos).unique("version", keep="first"),
        ("version", *(name for name in HISTORY_COLUMNS if name != "userMetadata")),
    ).with_columns(userMetadata=pl.col("extra").str.json_path_match("$.userMetadata"))
    return (
        pl.DataFrame({"version": pl.Series(versions, dtype=pl.Int64)})
        .join(times_of(state_times(log, listing), infos, stamped_from), on="version", how="left")
        .join(rows.select("version", *HISTORY_COLUMNS), on="version", how="left")
        .sort("version", descending=True)
        .with_columns(as_time("timestamp"))
    )


def as_time(column: str) -> pl.Expr:
    """Milliseconds as times; any other value in a log becomes the nearest possible time."""
    return pl.col(column).clip(_FIRST_TIME_MS, LAST_TIME_MS).cast(_TIME)


def times_of(
    times: pl.DataFrame, infos: Sequence[CommitInfo], stamped_from: Callable[[], int | None]
) -> pl.DataFrame:
    """Commit times (`commit_times`), or in-commit timestamps where these apply: ``version`` and
    ``timestamp``. `stamped_from` returns `Metadata.stamped_from` of the latest version, and is
    called only if a commit has an in-commit timestamp.
    """
    in_commit = {i.version: at for i in infos if (at := in_commit_timestamp(i)) is not None}
    if not in_commit or (since := stamped_from()) is None:
        return times
    exact = pl.DataFrame(
        {"version": list(in_commit), "at": list(in_commit.values())},
        schema={"version": pl.Int64, "at": pl.Int64},
    ).filter(pl.col("version") >= since)
    return times.join(exact, on="version", how="left").select(
        "version", pl.coalesce("at", "timestamp").alias("timestamp")
    )


def empty_range(start: int, end: int, path: str | None = None) -> InvalidInputError:
    """The error for a range whose `start` is after its `end`."""
    return InvalidInputError(
        "the range of versions is empty",
        path=path,
        expected=f"0 <= start <= {end}",
        found=f"start={start}, end={end}",
    )


def commits_between(
    log: Log, listing: LogListing, start: int, end: int | None, *, whole: bool = False
) -> tuple[CommitFile, ...]:
    """The commits `start` to `end`, inclusive, without a gap (LogGapError). Commits deleted at the
    beginning of the range are omitted with a `LakelogWarning`; with `whole`, they are an error.
    """
    latest = latest_version(listing, log.table)
    last = latest if end is None else end
    if not 0 <= start <= last:
        raise empty_range(start, last)
    if last > latest:
        raise InvalidInputError(
            "the range ends after the latest version", expected=f"<= {latest}", found=end
        )
    commits = tuple(c for c in listing.commits if start <= c.version <= last)
    if not commits or (whole and commits[0].version > start):
        missing = commits[0].version - 1 if commits else last
        raise VersionNotFoundError(
            f"the commits {start} to {missing} were not found on disk",
            path=log.table,
            expected=_on_disk(listing.commits),
            hint="choose versions whose commits exist",
        )
    if commits[0].version > start:
        warnings.warn(
            f"commits {start} to {commits[0].version - 1} were not found on disk",
            LakelogWarning,
            stacklevel=2,
        )
    if log.dialect.every_version_has_a_commit:
        validate_contiguous((c.version for c in commits), after=commits[0].version - 1, last=last)
    return commits


def _on_disk(commits: Sequence[CommitFile]) -> str:
    return f"{commits[0].version} to {commits[-1].version}" if commits else "none"


def lazy_actions(log: Log, start: int = 0, end: int | None = None) -> pl.LazyFrame:
    """See `Table.actions`. The log is listed on collect, and again if cleanup deletes commits
    before the first rows are returned; later, an error is raised. Memory: the selected columns;
    about 64 MB of commits are decoded at a time.
    """

    def read(wanted: Sequence[str], _predicate: pl.Expr | None) -> Iterator[pl.DataFrame]:
        def begin(
            listing: LogListing,
        ) -> tuple[pl.DataFrame, list[list[CommitFile]], pl.DataFrame | None]:
            first, *rest = by_size(commits_between(log, listing, start, end))
            times = state_times(log, listing) if "timestamp" in wanted else None
            return _chunk(log, first, times, wanted), rest, times

        with naming_table(log.table):
            frame, rest, times = with_stable_listing(log, begin)
            yield frame
            del frame
            for chunk in rest:
                yield _chunk(log, chunk, times, wanted)

    return lazy_frame(actions.schema(), read, "lakelog actions")


def by_size(commits: Sequence[CommitFile]) -> Iterator[list[CommitFile]]:
    """Groups of commits of about 64 MB, so that a long log is decoded in pieces."""
    return group_commits(commits, _CHUNK_BYTES)


def decoded_commits(log: Log, snapshot: LogSnapshot, commits: Sequence[CommitFile]) -> Actions:
    """The actions of commits; those that the snapshot has decoded are not decoded again."""
    found = snapshot.read_state(lambda state: state.decoded(commits))
    return log.dialect.decode(log.store, commits) if found is None else found


def _chunk(
    log: Log, commits: Sequence[CommitFile], times: pl.DataFrame | None, wanted: Sequence[str]
) -> pl.DataFrame:
    decoded = log.dialect.decode(log.store, commits)
    rows = flattened(log, decoded)
    if times is not None:
        times = times_of(times, decoded.commit_infos, lambda: stamped_from(log))
        rows = rows.drop("timestamp", strict=False).join(
            times, on="version", how="left", maintain_order="left"
        )
    if not log.dialect.map_statistics and any(c in wanted for c in _DERIVED):
        rows = with_derived_statistics(rows)
    return actions.conform(rows, wanted)


def flattened(log: Log, decoded: Actions) -> pl.DataFrame:
    """All decoded actions as one narrow frame, in the order (version, position)."""
    infos = log.dialect.decode_commit_infos(decoded.commit_infos)
    rows = actions.concat((decoded.files, decoded.meta, decoded.other, infos))
    if "version" not in rows.columns:
        return rows
    return rows.sort(actions.ORDER, maintain_order=True)


def with_derived_statistics(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill ``numRecords``, ``minValues``, ``maxValues``, ``nullCount`` from Delta's ``stats``."""
    if "stats" not in rows.columns:
        return rows
    return rows.with_columns(map_stats(rows["stats"]).select(_DERIVED).get_columns())
