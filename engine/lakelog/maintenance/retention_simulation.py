"""Simulates other retention settings: readable versions, and bytes freed.

Nothing is deleted or verified. A simulation applies the rules of cleanup
(`lakelog.maintenance.cleanup`) to the files of the log, and counts as freed by vacuum the removed
files that are still in the log. The log does not record streaming readers, so the caller names them
(`consumers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import polars as pl

from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.display import size_text
from lakelog.errors import InvalidInputError
from lakelog.log.context import Log
from lakelog.log.history import as_time
from lakelog.log.segment import rebuildable
from lakelog.log.snapshot import LogSnapshot
from lakelog.maintenance.inventory import HidingStore
from lakelog.maintenance.log_survey import Request, Survey, survey, timed_commits, with_stable_files
from lakelog.maintenance.retention_bounds import GATES, Commits
from lakelog.model.durations import Duration, duration_text, to_duration_ms
from lakelog.storage.base import FileEntry

Proposed = Duration | Sequence[Duration] | None

_TIME = pl.Datetime("ms", "UTC")
SCHEMA = pl.Schema(
    {
        "proposal": pl.String(),
        "log_retention_ms": pl.Int64(),
        "checkpoint_retention_ms": pl.Int64(),
        "deleted_file_retention_ms": pl.Int64(),
        "gate": pl.String(),
        "oldest_version": pl.Int64(),
        "oldest_time": _TIME,
        "versions_lost": pl.Int64(),
        "log_files": pl.Int64(),
        "log_bytes": pl.Int64(),
        "data_files": pl.Int64(),
        "data_bytes": pl.Int64(),
        "oldest_whole_version": pl.Int64(),
        "stream_from": pl.Int64(),
        "change_feed_from": pl.Int64(),
        "broken_consumers": pl.List(pl.String()),
    }
)
"""Columns of `simulate`."""


class Simulation(pl.DataFrame):
    """One row per proposal, in `SCHEMA`; printed without columns that do not differ."""

    def readable(self) -> pl.DataFrame:
        """For display: retentions as durations, and only the columns that differ or have values."""
        texts = {"proposal": self["proposal"]}
        for name in (n for n in self.columns if n.endswith("_retention_ms")):
            if self[name].n_unique() > 1:
                label = name.removesuffix("_ms").replace("_", " ")
                texts[label] = pl.Series(map(duration_text, self[name]), dtype=pl.String)
        texts["oldest version"] = self["oldest_version"]
        for kind in ("log", "data"):
            freed = zip(self[f"{kind}_files"], self[f"{kind}_bytes"], strict=True)
            texts[f"{kind} files freed"] = pl.Series(
                [f"{files:,} ({size_text(size)})" if files else "-" for files, size in freed],
                dtype=pl.String,
            )
        breaks = self["broken_consumers"].list.join(", ")
        if (breaks != "").any():
            texts["breaks"] = breaks
        if self["gate"].is_not_null().any():
            texts["all kept, because"] = self["gate"].replace(dict(GATES)).fill_null("")
        return pl.DataFrame(texts)

    def __str__(self) -> str:
        if self.columns != list(SCHEMA):
            return super().__str__()
        with pl.Config(
            tbl_cols=-1,
            tbl_rows=50,
            tbl_width_chars=120,
            fmt_str_lengths=60,
            tbl_hide_column_data_types=True,
            tbl_hide_dataframe_shape=True,
        ):
            return str(self.readable())

    __repr__ = __str__

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        if self.columns != list(SCHEMA):
            return super()._repr_html_(_from_series=_from_series)
        with pl.Config(tbl_cols=-1, tbl_rows=50, tbl_hide_column_data_types=True):
            return self.readable()._repr_html_()


@dataclass(frozen=True)
class Proposal:
    """Retentions to simulate, in milliseconds; None: the table's own."""

    log_ms: int | None = None
    checkpoint_ms: int | None = None
    deleted_file_ms: int | None = None

    def applied(self, options: CheckpointOptions) -> CheckpointOptions:
        """The table's options with the proposed retentions."""

        def over(own: int, proposed: int | None) -> int:
            return own if proposed is None else proposed

        return replace(
            options,
            log_retention_ms=over(options.log_retention_ms, self.log_ms),
            checkpoint_retention_ms=over(options.checkpoint_retention_ms, self.checkpoint_ms),
            deleted_file_retention_ms=over(options.deleted_file_retention_ms, self.deleted_file_ms),
        )


def proposals(
    log_retention: Proposed, deleted_file_retention: Proposed, checkpoint_retention: Proposed
) -> list[Proposal]:
    """Proposals from arguments that are one or several durations; a single one applies to all.
    Raises InvalidInputError for an invalid duration or lists of different lengths.

    >>> [p.log_ms for p in proposals(["1 day", "2 days"], None, 5)]
    [86400000, 172800000]
    """
    given = [_many(v) for v in (log_retention, checkpoint_retention, deleted_file_retention)]
    lengths = {len(values) for values in given if len(values) != 1}
    if len(lengths) > 1:
        raise InvalidInputError(
            "the lists of durations must have equal lengths, or one entry",
            expected="lists of equal length",
            found=", ".join(str(len(values)) for values in given),
        )
    count = max(map(len, given))
    spread = [values * count if len(values) == 1 else values for values in given]
    return [Proposal(*values) for values in zip(*spread, strict=True)]


def _many(value: Proposed) -> list[int | None]:
    if value is None:
        return [None]
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [to_duration_ms(value)]
    if not value:
        raise InvalidInputError("an empty list has no retention to simulate")
    return [to_duration_ms(one) for one in value]


def simulate(
    log: Log,
    tried: Sequence[Proposal],
    consumers: Mapping[str, int] | None = None,
    latest: LogSnapshot | None = None,
) -> Simulation:
    """The effect of each proposal; `latest` is the latest version, if it has been opened."""
    opened = [] if latest is None else [latest]

    def attempt(entries: Sequence[FileEntry]) -> Simulation:
        # A later attempt follows an interference, and opens the version that is the latest then.
        snapshot = opened.pop() if opened else LogSnapshot.open(log)
        return _simulated(log, snapshot, tried, consumers, entries)

    return with_stable_files(log, attempt)


def _simulated(
    log: Log,
    snapshot: LogSnapshot,
    tried: Sequence[Proposal],
    consumers: Mapping[str, int] | None,
    entries: Sequence[FileEntry],
) -> Simulation:
    metadata = snapshot.metadata
    options = CheckpointOptions.of(metadata.configuration, log.dialect)
    tombstones = _tombstones(snapshot)
    has_feed = "changeDataFeed" in log.dialect.protocol_rules.needed(metadata)
    rows = []
    for number, proposal in enumerate([Proposal(), *tried]):
        tried_options = proposal.applied(options)
        seen = survey(log, Request(force=True), tried_options, entries)
        after = Log(HidingStore(seen.log.store, frozenset(seen.deletable["path"])), log.dialect)
        left = after.list_all()
        before, ranges = rebuildable(seen.listing), rebuildable(left)
        oldest = ranges[-1][0]
        times = seen.commits.times_ms()
        # A gate such as a missing checkpoint leaves the survey without in-commit timestamps.
        timed = timed_commits(seen.log, seen.commits, seen.listing, snapshot.protocol, metadata)
        bound = log.clock() - tried_options.deleted_file_retention_ms
        expired = tombstones.filter(pl.col("deletionTimestamp").fill_null(0) <= bound)
        removed = _last_removal(expired, seen, times)
        freed = expired.filter(~pl.col("lives")).unique("path")
        whole = max(oldest, removed)
        first_commit = left.commits[0].version if left.commits else ranges[-1][1]
        stream_from = max(first_commit, whole)
        feed_from = None
        if has_feed:
            # Vacuum deletes change data files by age, independent of the commit that removed the
            # files.
            aged = int(np.searchsorted(times, bound, side="right"))
            young = int(seen.commits.versions[aged]) if aged < len(times) else snapshot.version + 1
            feed_from = max(first_commit, removed + 1 if expired.height else 0, young)
        rows.append(
            {
                "proposal": str(number) if number else "current",
                "log_retention_ms": tried_options.log_retention_ms,
                "checkpoint_retention_ms": tried_options.checkpoint_retention_ms,
                "deleted_file_retention_ms": tried_options.deleted_file_retention_ms,
                "gate": seen.horizon.gate,
                "oldest_version": oldest,
                "oldest_time": _time_of(timed, oldest),
                "versions_lost": _count(before) - _count(ranges),
                "log_files": seen.deletable.height,
                "log_bytes": int(seen.deletable["size_bytes"].sum()),
                "data_files": freed.height,
                "data_bytes": int(freed["size"].fill_null(0).sum()),
                "oldest_whole_version": whole,
                "stream_from": stream_from,
                "change_feed_from": feed_from,
                "broken_consumers": sorted(
                    name for name, at in (consumers or {}).items() if at < stream_from
                ),
            }
        )
    times_as_numbers = {**SCHEMA, "oldest_time": pl.Int64()}
    found = pl.DataFrame(rows, schema=times_as_numbers)
    return Simulation(found.with_columns(as_time("oldest_time")))


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _tombstones(snapshot: LogSnapshot) -> pl.DataFrame:
    """Removed files in the log; ``lives``: still live with another deletion vector."""
    wanted = ["path", "size", "deletionTimestamp", "version"]
    frame = snapshot.tombstones()
    held = frame.collect_schema().names()
    missing = [pl.lit(None, dtype=pl.Int64).alias(name) for name in wanted if name not in held]
    rows = frame.with_columns(missing).select(wanted).collect()
    if not rows.height:
        return rows.with_columns(pl.lit(value=False).alias("lives"))
    live = snapshot.files().select(pl.col("path").unique()).collect()["path"]
    return rows.with_columns(pl.col("path").is_in(live.implode()).alias("lives"))


def _last_removal(
    expired: pl.DataFrame, seen: Survey, times: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> int:
    """The last version that removed one of the files, estimated by time if unknown."""
    if not expired.height or not len(times):
        return 0
    known = expired["version"].drop_nulls()
    last = [cast("int", known.max())] if known.len() else []
    unknown = expired.filter(pl.col("version").is_null())["deletionTimestamp"].fill_null(0)
    if unknown.len():
        place = int(np.searchsorted(times, cast("int", unknown.max()), side="left"))
        last.append(int(seen.commits.versions[min(place, len(times) - 1)]))
    return max(last)


def _time_of(commits: Commits, version: int) -> int | None:
    """Time of a version's commit, in milliseconds; None if the commit was deleted."""
    at = int(np.searchsorted(commits.versions, version))
    if at == len(commits.versions) or int(commits.versions[at]) != version:
        return None
    if commits.timed_from is not None and version >= commits.timed_from:
        inside = commits.in_commit_ms(version)
        if inside is not None:
            return inside
    return int(commits.times_ms()[at])
