"""The versions that the retention protects, and the files that can be deleted. Pure functions.

The *cut-off commit* is the newest commit not newer than the cut-off time. The retention protects
its version and every later one. The *cut-off checkpoint* is the newest complete checkpoint at or
below the cut-off commit, from which these versions can be rebuilt; nothing at or above it is ever
deleted. Named gates (`GATES`) then decide for each file, and explain the decision.

The time of a commit is its in-commit timestamp if the table has them, else the time of its file,
forced to increase. A file that is older than the file of an earlier version was written by a clock
that had jumped back; it is given the time of the next file that is not. A commit without an
expected timestamp counts as young. Clock jumps therefore only ever keep files.

Source: Delta protocol, Metadata Cleanup; Delta RFC Checkpoint Protection; Delta Lake,
MetadataCleanup.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from lakelog.dialects.log_content import Checkpoint

DAY_MS = 86_400_000

GATES: Mapping[str, str] = {
    # Gates that keep one file.
    "promised": "a version within the retention needs it",
    "cut-off-checkpoint": "the versions within the retention are rebuilt from it",
    "checkpoint-retention": "a checkpoint is kept for a while after it was written",
    "pointed": "_last_checkpoint names it",
    "pointer": "the pointer is always kept",
    "young": "the process that writes it may still run",
    "named-by-checkpoint": "a checkpoint that is kept names the sidecar",
    "manifest-unreadable": "a checkpoint that is kept cannot be read, so it may name the sidecar",
    "unlisted-commits": "the compaction replaces commits that no longer exist",
    "avro-state": "Avro states depend on commits and on files that they share",
    "quarantine": "it is in quarantine already",
    "unknown": "it is not a log file that cleanup knows",
    # Gates that keep all files.
    "cleanup-disabled": "the table's properties disable cleanup",
    "catalog": "only the table's catalog may clean up",
    "unknown-feature": "the table has a version or feature whose cleanup rules are unknown",
    "no-cut-off-commit": "no version is older than the retention",
    "no-cut-off-checkpoint": "no complete checkpoint covers the versions older than the retention",
    "missing-commits": "commits are missing between the cut-off checkpoint and the cut-off commit",
    "checkpoint-protection": "checkpointProtection: older versions must be removed together",
    "checkpoint-broken": "the cut-off checkpoint cannot be read completely",
    "foreign-readers": "other readers of the table could not read the remaining files",
    # Gates that allow the deletion of a file.
    "expired": "a checkpoint that is kept covers it, and no version within the retention needs it",
    "covered-compaction": "the compaction begins at or below the cut-off checkpoint",
    "orphan-part": "it belongs to no complete checkpoint, and a checkpoint that is kept covers it",
    "unnamed-sidecar": "no checkpoint that is kept names the sidecar",
    "staged-leftover": "its writer ended long ago",
}
"""Every gate of cleanup, and its explanation."""

MUST_REFUSE = frozenset({"catalog", "unknown-feature", "missing-commits", "checkpoint-broken"})
"""Gates that keep all files because the log has a problem: applying such a plan raises."""


@dataclass(frozen=True)
class Retention:
    """Retention of log files: `log_ms` for versions after they are replaced, `checkpoint_ms` for
    replaced checkpoints; `versions`: number kept below the newest checkpoint; `to_midnight` moves
    the cut-off to midnight UTC, as Delta does.
    """

    log_ms: int
    checkpoint_ms: int
    versions: int | None = None
    to_midnight: bool = True

    def cutoff_ms(self, now_ms: int) -> int:
        """Latest time of a cut-off commit, in milliseconds.

        >>> Retention(log_ms=0, checkpoint_ms=0).cutoff_ms(2 * 86_400_000 + 5)
        172800000
        >>> Retention(log_ms=10, checkpoint_ms=0, to_midnight=False).cutoff_ms(100)
        89
        """
        at = now_ms - self.log_ms
        # Delta deletes a commit at exactly the cut-off time; IndexTables requires a file to be
        # older.
        return at - at % DAY_MS if self.to_midnight else at - 1


@dataclass(frozen=True)
class Commits:
    """The commits of a log, ascending; from `timed_from`, `in_commit_ms` reads their times."""

    versions: np.ndarray[tuple[int], np.dtype[np.int64]]
    modified_ms: np.ndarray[tuple[int], np.dtype[np.int64]]
    timed_from: int | None = None
    in_commit_ms: Callable[[int], int | None] = field(default=lambda _version: None)

    def times_ms(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """File times in milliseconds, forced to increase: each is greater than the one before."""
        steps = np.arange(len(self.versions))
        adjusted = np.maximum.accumulate(self.modified_ms - steps) + steps
        return np.asarray(adjusted, dtype=np.int64)

    def latest_times_ms(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Upper bounds of commit times: as `times_ms`, but a file older than an earlier one has the
        time of the next file that is not, if any.
        """
        never = np.iinfo(np.int64).max
        jumped_back = self.modified_ms < np.maximum.accumulate(self.modified_ms)
        known = np.where(jumped_back, never, self.times_ms())
        return np.asarray(np.minimum.accumulate(known[::-1])[::-1], dtype=np.int64)

    def last_at_or_before(self, time_ms: int) -> int | None:
        """The newest version at or before a time in ms, or None; bisects in-commit timestamps."""
        if not len(self.versions):
            return None
        untimed = len(self.versions)
        if self.timed_from is not None:
            untimed = int(np.searchsorted(self.versions, self.timed_from))
        low, high = untimed, len(self.versions)
        while low < high:
            middle = (low + high) // 2
            at = self.in_commit_ms(int(self.versions[middle]))
            if at is not None and at <= time_ms:
                low = middle + 1
            else:
                high = middle
        if low > untimed:
            return int(self.versions[low - 1])
        old = int(np.searchsorted(self.latest_times_ms()[:untimed], time_ms, side="right"))
        return int(self.versions[old - 1]) if old else None


@dataclass(frozen=True)
class Horizon:
    """The protected versions (from `commit` on; None: all) and the checkpoint from which they are
    rebuilt, of which all complete files are kept. `gate` and `why` explain why files are kept;
    `passed_over` is a newer checkpoint that some readers of the table do not find.
    """

    cutoff_ms: int
    commit: int | None = None
    checkpoint: int | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    gate: str | None = None
    why: str = ""
    passed_over: int | None = None


def find_horizon(
    commits: Commits,
    checkpoints: Sequence[Checkpoint],
    retention: Retention,
    now_ms: int,
    *,
    own_commit: bool = True,
    protected_before: int = 0,
    found_by_all: Container[Checkpoint] | None = None,
) -> Horizon:
    """Decide which versions are protected, and from which checkpoint they are rebuilt."""
    cutoff_ms = retention.cutoff_ms(now_ms)
    commit = commits.last_at_or_before(cutoff_ms)
    if commit is not None and retention.versions is not None and checkpoints:
        commit = min(commit, checkpoints[-1].version - retention.versions)
    if commit is None or not len(commits.versions) or commit < commits.versions[0]:
        why = "every version is within the retention"
        return Horizon(cutoff_ms, None, gate="no-cut-off-commit", why=why)
    there = commits.versions
    candidates = [
        c
        for c in checkpoints
        if c.version <= commit and (not own_commit or _holds(there, c.version))
    ]
    if not candidates:
        kind = " with the commit of its version" if own_commit else ""
        why = f"no complete checkpoint{kind} was found at or below version {commit}"
        return Horizon(cutoff_ms, commit, gate="no-cut-off-checkpoint", why=why)
    known = [c for c in candidates if found_by_all is None or c in found_by_all]
    if not known:
        why = _passed_over(candidates[-1].version)
        return Horizon(cutoff_ms, commit, gate="foreign-readers", why=why)
    version = known[-1].version
    # The checkpoint that covers the others is last.
    chosen = tuple(c for c in checkpoints if c.version == version and c != known[-1])
    found = Horizon(cutoff_ms, commit, version, (*chosen, known[-1]))
    if candidates[-1].version > version:
        best = candidates[-1].version
        found = replace(found, why=_passed_over(best), passed_over=best)
    if _count_between(there, version + 1, commit) != commit - version:
        why = f"some commits from {version + 1} to {commit} are missing"
        return _kept(found, "missing-commits", why)
    if protected_before > version:
        why = (
            f"versions below {protected_before} must be removed together, and the "
            f"cut-off checkpoint has version {version}"
        )
        return _kept(found, "checkpoint-protection", why)
    return found


def _kept(horizon: Horizon, gate: str, why: str) -> Horizon:
    return replace(horizon, gate=gate, why=why, passed_over=None)


def _passed_over(version: int) -> str:
    return (
        f"IndexTables' own readers do not find the checkpoint of version {version}: "
        "they read only JSON, and begin at the checkpoint that _last_checkpoint names. "
        "Write a checkpoint that they find (layout json, or from protocol 3 "
        "json-multipart); or, if only lakelog reads the table, add the feature "
        "columnarCommits to its protocol"
    )


def _holds(sorted_: np.ndarray[tuple[int], np.dtype[np.int64]], version: int) -> bool:
    at = int(np.searchsorted(sorted_, version))
    return at < len(sorted_) and int(sorted_[at]) == version


def _count_between(
    sorted_: np.ndarray[tuple[int], np.dtype[np.int64]], first: int, last: int
) -> int:
    low = np.searchsorted(sorted_, first)
    return int(np.searchsorted(sorted_, last, side="right") - low)


def contiguous_to(commits: Commits, version: int) -> int:
    """The last version up to which no commit is missing after `version`.

    >>> contiguous_to(Commits(np.array([3, 4, 6]), np.zeros(3)), 2)
    4
    """
    above = commits.versions[int(np.searchsorted(commits.versions, version, side="right")) :]
    run = np.flatnonzero(above != version + 1 + np.arange(len(above)))
    return version + (int(run[0]) if len(run) else len(above))


@dataclass(frozen=True)
class Facts:
    """Inputs of `judge`; `contiguous_to` is the last version without a gap above the cut-off
    checkpoint.
    """

    now_ms: int
    retention: Retention
    checkpoints: Sequence[Checkpoint] = ()
    pointed: int | None = None
    contiguous_to: int = -1
    protected_before: int = 0


def judge(files: pl.DataFrame, horizon: Horizon, facts: Facts) -> pl.DataFrame:
    """Decide for each file whether it can be deleted, and by which gate. Sidecars are kept as
    ``promised`` until `judge_sidecars` reads which of them the checkpoints refer to.
    """
    kind, version = pl.col("kind"), pl.col("version")
    grouped = _with_groups(files, facts.checkpoints)
    stale = pl.col("modified_ms") <= facts.now_ms - DAY_MS
    gates: list[tuple[pl.Expr, str | None]] = [
        (kind == "pointer", "pointer"),
        (kind == "quarantine", "quarantine"),
        (kind == "state", "avro-state"),
        (kind == "unknown", "unknown"),
    ]
    temporary = ((kind == "temporary") & ~stale, "young")
    if horizon.gate is not None or horizon.checkpoint is None or horizon.commit is None:
        keeping = horizon.gate or "no-cut-off-checkpoint"
        quiet = keeping in {"catalog", "unknown-feature", "cleanup-disabled"}
        gates += [temporary, ((kind != "temporary") | pl.lit(quiet), keeping)]
    else:
        base, first = horizon.checkpoint, horizon.commit
        pointed = version == facts.pointed if facts.pointed is not None else pl.lit(value=False)
        old = pl.col("written_ms") <= facts.now_ms - facts.retention.checkpoint_ms
        gates += [
            temporary,
            (kind == "sidecar", "promised"),
            ((kind == "compaction") & (version > base), "promised"),
            ((kind == "compaction") & (pl.col("end") > facts.contiguous_to), "unlisted-commits"),
            ((kind == "staged-commit") & ((version > base) | ~stale), "promised"),
            (kind.is_in(["compaction", "staged-commit", "temporary"]), None),
            (version >= first, "promised"),
            ((version > base) & (version < (horizon.passed_over or 0)), "foreign-readers"),
            (version >= base, "cut-off-checkpoint"),
            (pointed, "pointed"),
            ((kind == "checkpoint") & ~old, "checkpoint-retention"),
            ((kind == "checkpoint") & pl.col("group").is_null() & ~stale, "young"),
        ]
    decided = grouped.with_columns(_first(gates)).with_columns(
        pl.when(pl.col("gate").is_null())
        .then(pl.lit("delete"))
        .otherwise(pl.lit("keep"))
        .alias("action")
    )
    if facts.protected_before:
        decided = _all_or_none(decided, horizon, facts.protected_before)
    passed = (
        pl.when(kind == "temporary")
        .then(pl.lit("staged-leftover"))
        .when(kind == "compaction")
        .then(pl.lit("covered-compaction"))
        .when((kind == "checkpoint") & pl.col("group").is_null())
        .then(pl.lit("orphan-part"))
        .otherwise(pl.lit("expired"))
    )
    return decided.with_columns(pl.col("gate").fill_null(passed)).drop("group", "written_ms")


def _first(gates: Sequence[tuple[pl.Expr, str | None]]) -> pl.Expr:
    """The first gate whose condition is true; the name None means: delete."""
    chosen: pl.Expr = pl.lit(None, dtype=pl.String)
    for condition, name in reversed(gates):
        chosen = (
            pl.when(condition.fill_null(value=False))
            .then(pl.lit(name, dtype=pl.String))
            .otherwise(chosen)
        )
    return chosen.alias("gate")


def _with_groups(files: pl.DataFrame, checkpoints: Sequence[Checkpoint]) -> pl.DataFrame:
    """Add ``group`` (checkpoint), ``leads`` (completes it), and ``written_ms`` (newest file)."""
    members = [
        (path, number, not place)
        for number, checkpoint in enumerate(checkpoints)
        for place, path in enumerate(checkpoint.paths)
    ]
    known = pl.DataFrame(
        members, schema={"path": pl.String, "group": pl.Int64, "leads": pl.Boolean}, orient="row"
    )
    is_checkpoint = pl.col("kind") == "checkpoint"
    rest = files.filter(is_checkpoint).join(known, on="path", how="left")
    # The manifest of a flattened checkpoint is a file next to it, which is deleted first.
    is_json = pl.col("path").str.ends_with(".checkpoint.json") & pl.col("group").is_null()
    of_version = (
        rest.filter(pl.col("group").is_not_null())
        .group_by("version")
        .agg(pl.col("group").last().alias("neighbour"))
    )
    rest = (
        rest.join(of_version, on="version", how="left")
        .with_columns(
            pl.when(is_json).then(pl.col("neighbour")).otherwise(pl.col("group")).alias("group"),
            (pl.col("leads").fill_null(value=False) | is_json).alias("leads"),
        )
        .with_columns(
            pl.when(pl.col("group").is_null())
            .then(pl.col("modified_ms"))
            .otherwise(pl.col("modified_ms").max().over("group"))
            .alias("written_ms")
        )
        .select("path", "group", "leads", "written_ms")
    )
    return files.join(rest, on="path", how="left", maintain_order="left").with_columns(
        pl.col("leads").fill_null(value=False)
    )


def _all_or_none(decided: pl.DataFrame, horizon: Horizon, protected_before: int) -> pl.DataFrame:
    """Keep every version below the protected one if one of its checkpoints must be kept."""
    below = pl.col("version") < min(protected_before, horizon.checkpoint or 0)
    held = decided.filter(below & (pl.col("kind") == "checkpoint") & (pl.col("action") == "keep"))
    if not held.height:
        return decided
    bound = (pl.col("action") == "delete") & pl.col("kind").is_in(
        ["commit", "checksum", "checkpoint", "compaction"]
    )
    return decided.with_columns(
        pl.when(bound).then(pl.lit("keep")).otherwise(pl.col("action")).alias("action"),
        pl.when(bound)
        .then(pl.lit("checkpoint-protection"))
        .otherwise(pl.col("gate"))
        .alias("gate"),
    )


def sidecar_bound_ms(now_ms: int) -> int:
    """Time from which sidecars may belong to a checkpoint in progress (Delta protocol, Metadata
    Cleanup).
    """
    return now_ms - now_ms % DAY_MS - DAY_MS


def judge_sidecars(
    classified: pl.DataFrame, named: Collection[str] | None, now_ms: int
) -> pl.DataFrame:
    """Decide which sidecars can be deleted."""
    sidecar = pl.col("kind") == "sidecar"
    young = pl.col("modified_ms") > sidecar_bound_ms(now_ms)
    if named is None:
        gate = pl.lit("manifest-unreadable")
    else:
        is_named = pl.col("path").is_in(list(named))
        gate = (
            pl.when(is_named)
            .then(pl.lit("named-by-checkpoint"))
            .when(young)
            .then(pl.lit("young"))
            .otherwise(pl.lit("unnamed-sidecar"))
        )
    gated = pl.when(sidecar).then(gate).otherwise(pl.col("gate"))
    return classified.with_columns(gated.alias("gate")).with_columns(
        pl.when(sidecar & (pl.col("gate") == "unnamed-sidecar"))
        .then(pl.lit("delete"))
        .otherwise(pl.col("action"))
        .alias("action")
    )


def first_gap(
    ranges: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]], first: int
) -> int | None:
    """The first version from `first` on that is in `ranges` and not in `after`; None if there is
    none.

    >>> first_gap([(0, 9)], [(0, 3), (6, 9)], 2), first_gap([(0, 9)], [(4, 9)], 4)
    (4, None)
    """
    starts = [a for a, _ in after]
    for low, high in ranges:
        version = max(low, first)
        while version <= high:
            at = bisect_right(starts, version) - 1
            if at < 0 or after[at][1] < version:
                return version
            version = after[at][1] + 1
    return None
