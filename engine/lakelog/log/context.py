"""`Log`: the log of one table: store, dialect, listings and commit times."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.gc_pause import gc_paused
from lakelog.dialects.log_content import CommitFile, LogListing
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    VersionNotFoundError,
)
from lakelog.input_validation import require_int
from lakelog.log.segment import has_hole, latest_version, ranges_text, rebuildable
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage import LogStore
from lakelog.storage.base import absolute_root_of
from lakelog.storage.containment import NOTHING, AllowedLocations, External

Timestamp = int | str | dt.datetime | dt.date

_MOST_MS = 1 << 62
_MILLISECONDS = re.compile(r"-?[0-9]{5,18}")


def to_ms(timestamp: Timestamp, *, round_up: bool = False) -> int:
    """A point in time as milliseconds since the Unix epoch, rounded down unless `round_up`; without
    a time zone it is UTC.
    """
    if isinstance(timestamp, bool) or timestamp is None:
        raise InvalidInputError("invalid timestamp", found=timestamp)
    if isinstance(timestamp, int):
        return require_int("timestamp", timestamp, -_MOST_MS, _MOST_MS)
    if isinstance(timestamp, str):
        if _MILLISECONDS.fullmatch(timestamp):
            return int(timestamp)
        try:
            timestamp = dt.datetime.fromisoformat(timestamp)
        except ValueError as cause:
            raise InvalidInputError(
                "the timestamp cannot be parsed",
                found=timestamp,
                expected="ISO 8601, or milliseconds since 1970-01-01 with at least five digits",
            ) from cause
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        since, unit = aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(milliseconds=1)
        return -(-since // unit) if round_up else since // unit
    if isinstance(timestamp, dt.date):
        return to_ms(dt.datetime.combine(timestamp, dt.time(), dt.UTC))
    raise InvalidInputError(
        "invalid timestamp", found=repr(timestamp), expected="int, str, date or datetime"
    )


def utc_time(at_ms: int | None) -> dt.datetime | None:
    """A time of a log as datetime; None beyond the years 1 to 9999, which a log may contain."""
    if at_ms is None:
        return None
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at_ms)
    except OverflowError:
        return None


def iso_text(at_ms: int) -> str:
    """A time as ISO 8601; in milliseconds if it is beyond the years 1 to 9999."""
    at = utc_time(at_ms)
    if at is None:
        return f"{at_ms} ms"
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


MOST_ATTEMPTS = 10
"""Number of listings after which a reader gives up, because listed files do not exist."""

_T = TypeVar("_T")


def list_again(
    attempt: Callable[[], _T],
    is_outdated: Callable[[Exception], bool],
    errors: tuple[type[Exception], ...] = (CorruptionError, NotFoundError),
    is_final: Callable[[_T], bool] = lambda _: True,
) -> _T:
    """Call `attempt`, which lists the log and reads from the listing, a limited number of times
    while it fails because cleanup removed listed files (`is_outdated`), or its result is not final.
    """
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            found = attempt()
        except errors as error:
            if not is_outdated(error):
                raise
        else:
            if is_final(found):
                return found
    return attempt()


def now_ms() -> int:
    """Current time, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Log:
    """The log of one table: store, dialect, clock (milliseconds), files allowed outside the table's
    folder, and the storage options to open those.
    """

    store: LogStore
    dialect: Dialect
    clock: Callable[[], int] = field(default=now_ms)
    external: External = NOTHING
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def table(self) -> str:
        """Location of the table, for messages."""
        return self.store.root

    @property
    def location(self) -> str:
        """Location of the table, absolute: for other processes, and after a change of the working
        directory.
        """
        return absolute_root_of(self.store)

    @property
    def allowed_locations(self) -> AllowedLocations:
        """The locations that paths in the log may refer to."""
        return AllowedLocations(self.location, self.external, self.storage_options)

    def list_latest(self) -> LogListing:
        """A listing that is sufficient for the latest version; may begin at a checkpoint."""
        return self._listed(hint=True)

    def list_all(self) -> LogListing:
        """A listing of the whole log folder."""
        return self._listed()

    def list_since(self, version: int) -> LogListing:
        """Commits and checkpoints at `version` and above."""
        return self._listed(start=version)

    def _listed(self, *, hint: bool = False, start: int = 0) -> LogListing:
        """A consistent listing. A folder is listed page by page, so a listing may lack a commit and
        contain a later one. All its files existed before the next listing began, which is therefore
        complete up to them.
        """
        with gc_paused():
            listing = self.dialect.list_log(self.store, hint, start)
            for _ in range(MOST_ATTEMPTS):
                if not has_hole(listing, start):
                    return listing
                seen = listing
                listing = self.dialect.list_log(self.store, hint, start)
                whole = listing.up_to(latest_version(seen, self.table))
                if {c.path for c in seen.commits} <= {c.path for c in whole.commits}:
                    return whole
                # Cleanup deleted some commits in between; a later checkpoint may cover them.
            return listing

    def pointed_version(self) -> int | None:
        """The version in the pointer, or None if it is missing or invalid. A hint."""
        try:
            content = self.store.read(self.dialect.pointer_path)
        except LakelogError:
            return None
        return self.dialect.pointed_version(content)

    def latest_version(self) -> int:
        """The greatest version in the log."""
        return latest_version(self.list_latest(), self.table)

    def check_protocols(self, protocols: pl.DataFrame) -> None:
        """Raise UnsupportedFeatureError if one of the protocol actions cannot be read."""
        for row in protocols.iter_rows(named=True):
            self.dialect.protocol_rules.check_readable(Protocol.from_row(row), self.table)


def commit_times(commits: Sequence[CommitFile]) -> pl.DataFrame:
    """Commit times from file times, forced to increase from commit to commit."""
    versions = np.fromiter((c.version for c in commits), np.int64, len(commits))
    times = np.fromiter((c.modified_ms for c in commits), np.int64, len(commits))
    steps = np.arange(len(commits))
    monotone = np.maximum.accumulate(times - steps) + steps if len(commits) else times
    # As lists: Polars imports numpy.ma to inspect an array.
    columns = {"version": versions.tolist(), "timestamp": monotone.tolist()}
    return pl.DataFrame(columns, schema={"version": pl.Int64, "timestamp": pl.Int64})


def version_at(log: Log, timestamp_ms: int, latest: Callable[[], Metadata]) -> int:
    """The latest version committed at or before a time, by in-commit timestamps or else monotone
    file times (Delta protocol, Recommendations for Readers of Tables with In-Commit Timestamps).
    """
    listing = log.list_all()
    latest_version(listing, log.table)
    ranges, times = rebuildable(listing), state_times(log, listing)
    earliest: int | None = None
    for first, last in reversed(ranges):
        commits = [c for c in listing.commits if first <= c.version <= last]
        window = times.filter(pl.col("version").is_between(first, last))
        found, at = _found_in(log, commits, window, timestamp_ms, latest)
        if found is not None:
            follows = (window["version"] == found + 1).any() or found == ranges[-1][1]
            if follows or at == timestamp_ms or not log.dialect.every_version_has_a_commit:
                return found
            raise _undecided(timestamp_ms, found + 1, ranges, log.table)
        earliest = at
    raise _before(timestamp_ms, ranges, earliest, log.table)


def _found_in(
    log: Log,
    commits: Sequence[CommitFile],
    times: pl.DataFrame,
    timestamp_ms: int,
    latest: Callable[[], Metadata],
) -> tuple[int | None, int | None]:
    """The last of these versions at or before a time, and its time; or None and the first time."""
    enabled = _first_in_commit(log, commits) if commits else None
    if enabled is not None:
        enabled = _first_applying(log, commits, enabled, latest().stamped_from)
    while enabled is not None:
        at = _in_commit(log, commits[enabled])
        if at is None or timestamp_ms < at:
            times = times.filter(pl.col("version") < commits[enabled].version)
            break
        index, at = _last_at_or_before(log, commits, enabled, at, timestamp_ms)
        if at is not None:
            return commits[index].version, at
        # The table was without in-commit timestamps in between.
        enabled = _first_in_commit(log, commits, index + 1)
    early = times.filter(pl.col("timestamp") <= timestamp_ms)
    if early.height:
        return early["version"][-1], early["timestamp"][-1]
    if enabled == 0:
        return None, _in_commit(log, commits[0])
    return None, times["timestamp"][0] if times.height else None


def state_times(log: Log, listing: LogListing) -> pl.DataFrame:
    """Increasing commit times of all versions (``version``, ``timestamp`` in ms), some of which may
    exist only as states. A state records its time, while a commit has its file's, which copying
    changes; so file times are limited by the times of later states.
    """
    written = {c.version for c in listing.commits}
    stated = [c for c in listing.checkpoints if c.version not in written]
    found = {c.version: log.dialect.state_time(log.store, c) for c in stated}
    inside = {version: at for version, at in found.items() if at is not None}
    if not inside:
        return commit_times(listing.commits)
    every = sorted(
        (*listing.commits, *(CommitFile(version, "", 0, at) for version, at in inside.items())),
        key=lambda c: c.version,
    )
    times: list[CommitFile] = []
    latest: int | None = None
    for commit in reversed(every):
        at = commit.modified_ms
        if commit.version in inside:
            latest = at if latest is None else min(latest, at)
        elif latest is not None:
            at = min(at, latest - 1)
        times.append(commit._replace(modified_ms=at))
    return commit_times(times[::-1])


def _before(
    timestamp_ms: int, ranges: Sequence[tuple[int, int]], earliest_ms: int | None, table: str
) -> VersionNotFoundError:
    since = "which have no commit time" if earliest_ms is None else f"from {iso_text(earliest_ms)}"
    return VersionNotFoundError(
        f"no readable version was committed at or before {iso_text(timestamp_ms)}",
        path=table,
        expected=f"versions {ranges_text(ranges)}, {since}",
        found=iso_text(timestamp_ms),
        hint="use a later time, or a version",
    )


def _undecided(
    timestamp_ms: int, missing: int, ranges: Sequence[tuple[int, int]], table: str
) -> VersionNotFoundError:
    return VersionNotFoundError(
        f"the version at {iso_text(timestamp_ms)} cannot be determined, because commit {missing} "
        "is missing, and its time is not known",
        path=table,
        expected=f"a time of another version of {ranges_text(ranges)}",
        found=iso_text(timestamp_ms),
        hint="use the time of a readable version, or a version",
    )


def _in_commit(log: Log, commit: CommitFile) -> int | None:
    infos = log.dialect.decode(log.store, [commit], files=False).commit_infos
    return in_commit_timestamp(infos[0]) if infos else None


def _first_in_commit(log: Log, commits: Sequence[CommitFile], low: int = 0) -> int | None:
    """Index of the first commit from `low` on after which all have in-commit timestamps, or None;
    by bisection, which may miss that they were off in between.
    """
    if _in_commit(log, commits[-1]) is None:
        return None
    high = len(commits) - 1
    while low < high:
        middle = (low + high) // 2
        if _in_commit(log, commits[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _first_applying(
    log: Log, commits: Sequence[CommitFile], enabled: int, since: int | None
) -> int | None:
    """As `_first_in_commit`, from version `since` on; never if it is None."""
    if since is None or since > commits[-1].version:
        return None
    low = next(i for i, commit in enumerate(commits) if commit.version >= since)
    return enabled if enabled >= low else _first_in_commit(log, commits, low)


def _last_at_or_before(
    log: Log, commits: Sequence[CommitFile], low: int, at: int, timestamp_ms: int
) -> tuple[int, int | None]:
    """Index of the last commit from `low` on, of time `at`, whose in-commit timestamp is not after
    a time, and that timestamp; or index of a commit without one, and None.
    """
    high = len(commits) - 1
    while low < high:
        middle = (low + high + 1) // 2
        found = _in_commit(log, commits[middle])
        if found is None:
            return middle, None
        if found <= timestamp_ms:
            low, at = middle, found
        else:
            high = middle - 1
    return low, at
