"""Lists a log once and classifies every file.

All checks of a plan use the same listing (`lakelog.maintenance.inventory.ListedStore`). They read
the latest protocol and metadata, those of the cut-off checkpoint, and, if a sidecar might be
deletable, the remaining manifests. They never read file actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.delta.names import parse_listing
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.dialects.properties import LONG_COUNT, check_value
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    UnavailableError,
    UnsafeRetentionError,
)
from lakelog.log.context import Log, list_again
from lakelog.log.segment import latest_version
from lakelog.log.snapshot import LogSnapshot
from lakelog.maintenance import retention_bounds as horizons
from lakelog.maintenance.cleanup_checks import whole_problem
from lakelog.maintenance.inventory import HidingStore, ListedStore, inventory, walk_log
from lakelog.maintenance.retention_bounds import Commits, Facts, Horizon, Retention
from lakelog.model.durations import duration_text
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage.base import FileEntry
from lakelog.transaction.metadata_changes import CHECKPOINT_PROTECTION

_T = TypeVar("_T")

_LOG = ("commit", "checksum", "checkpoint", "compaction", "sidecar")

_CATALOG = frozenset(
    {
        "catalogManaged",
        "catalogOwned",
        "catalogOwned-preview",
        "coordinatedCommits-preview",
        "managedCommit-preview",
    }
)
_MOVED = frozenset({"adaptiveMetadata", "adaptiveMetadata-preview", "redirectReaderWriter-preview"})


@dataclass(frozen=True)
class Request:
    """Parameters of a cleanup; see `Table.cleanup`."""

    quarantine: bool = False
    retention_ms: int | None = None
    checkpoint_retention_ms: int | None = None
    force: bool = False
    keep: bool = False
    failure_policy: str | None = None


@dataclass(frozen=True)
class Survey:
    """One listing of a log: the decision for every file, and the facts behind it."""

    log: Log
    files: pl.DataFrame
    listing: LogListing
    horizon: Horizon
    policy: str
    commits: Commits

    @property
    def deletable(self) -> pl.DataFrame:
        """The files that can be deleted."""
        return self.files.filter(pl.col("action") == "delete")

    @property
    def oldest_promised(self) -> int:
        """The oldest version that the retention protects."""
        return self.horizon.commit if self.horizon.commit is not None else 0


def with_stable_files(
    log: Log,
    look: Callable[[list[FileEntry]], _T],
    signs: tuple[type[Exception], ...] = (CorruptionError, NotFoundError),
) -> _T:
    """The result of a check of log files, repeated if a concurrent writer or cleanup interferes."""
    entries: list[FileEntry] = []

    def attempt() -> _T:
        nonlocal entries
        entries = walk_log(log)
        return look(entries)

    return list_again(attempt, lambda _: _is_torn(log, entries), signs)


def _is_torn(log: Log, entries: list[FileEntry]) -> bool:
    """Whether listed files have been deleted, or commits are missing below later ones."""
    seen, now = (
        inventory(each, log.dialect).filter(pl.col("kind").is_in(_LOG))
        for each in (entries, walk_log(log))
    )
    commits = now.filter(pl.col("kind") == "commit", pl.col("version") < seen["version"].max())
    return not (
        seen["path"].is_in(now["path"].implode()).all()
        and commits["path"].is_in(seen["path"].implode()).all()
    )


def survey(
    log: Log,
    request: Request,
    options: CheckpointOptions | None = None,
    entries: Sequence[FileEntry] | None = None,
) -> Survey:
    """List all files of a log once, and decide which can be deleted."""
    now_ms = log.clock()
    entries = walk_log(log) if entries is None else entries
    folder = log.dialect.log_folder
    seen = replace(log, store=ListedStore(log.store, folder, entries))
    listing = seen.list_all()
    latest_version(listing, log.table)
    files = inventory(entries, log.dialect)
    rows = files.filter(pl.col("kind") == "commit").sort("version")
    commits = Commits(rows["version"].to_numpy(), rows["modified_ms"].to_numpy())
    complete = listing.checkpoints
    gate = _before_all(complete)
    protocol: Protocol | None = None
    if gate is None:
        snapshot = LogSnapshot.open(seen)
        protocol, metadata = snapshot.protocol, snapshot.metadata
        options = options or CheckpointOptions.of(metadata.configuration, log.dialect)
        gate = _of_properties(snapshot.table_configuration, options, request)
        commits = timed_commits(seen, commits, listing, protocol, metadata)
    options = options or CheckpointOptions()
    retention = _retention(options, request, log, promised=protocol is not None)
    protected = _protected_before(protocol, snapshot.metadata) if protocol is not None else 0
    pointed = log.pointed_version()
    if gate is not None:
        cutoff_ms = retention.cutoff_ms(now_ms)
        horizon = Horizon(cutoff_ms, gate=gate[0], why=gate[1])
    else:
        horizon = horizons.find_horizon(
            commits,
            complete,
            retention,
            now_ms,
            own_commit=log.dialect.checkpoints_are_complete,
            protected_before=protected,
            found_by_all=log.dialect.seen_by_all_readers(
                snapshot.table_configuration, complete, pointed
            ),
        )
    horizon = _with_complete_cut_off(seen, files, horizon)
    facts = Facts(
        now_ms,
        retention,
        complete,
        pointed,
        horizons.contiguous_to(commits, horizon.checkpoint or 0),
        protected,
    )
    classified = horizons.judge(files, horizon, facts)
    if horizon.gate is None:
        classified = _with_sidecars(seen, classified, complete, now_ms)
    policy = request.failure_policy or options.cleanup_failure_policy
    return Survey(seen, classified, listing, horizon, policy, commits)


def _before_all(complete: tuple[Checkpoint, ...]) -> tuple[str, str] | None:
    """A gate that needs no metadata, which is expensive to read without a checkpoint."""
    if any(c.layout == "avro-state" for c in complete):
        why = (
            "the log has Avro states, whose metadata and skips are stored in the commits below them"
        )
        return "avro-state", why
    if not complete:
        return "no-cut-off-checkpoint", "the log has no complete checkpoint"
    return None


def _of_properties(
    table: TableConfiguration, options: CheckpointOptions, request: Request
) -> tuple[str, str] | None:
    if unknown := table.rules.unknown_to_writers(table.protocol):
        return "unknown-feature", f"the protocol has rules unknown to lakelog: {unknown[0]}"
    known = table.rules.features
    for name in sorted(table.rules.supported(table.protocol)):
        feature = known[name]
        if name in _MOVED:
            return "unknown-feature", f"the table has the feature {name!r}"
        switched = feature.switch is None or feature.switch(table.metadata)
        if name in _CATALOG and switched:
            return "catalog", f"the table has the feature {name!r}"
    if not options.cleanup_enabled and not request.force:
        why = (
            "the properties of the table disable cleanup; force=True, or --force on the command "
            "line, cleans it up nevertheless"
        )
        return "cleanup-disabled", why
    return None


def _retention(
    options: CheckpointOptions, request: Request, log: Log, *, promised: bool
) -> Retention:
    wanted = (
        ("retention", request.retention_ms, options.log_retention_ms),
        (
            "checkpoint_retention",
            request.checkpoint_retention_ms,
            options.checkpoint_retention_ms,
        ),
    )
    for name, asked, owned in wanted:
        if asked is None:
            continue
        if asked < 0:
            raise InvalidInputError(f"{name} must be a duration >= 0", expected=">= 0", found=asked)
        if promised and asked < owned and not request.force:
            raise UnsafeRetentionError(
                "the retention is shorter than the table's own",
                path=log.table,
                expected=f"{name} of at least {duration_text(owned)}",
                found=duration_text(asked),
                hint="change the table's properties, or use force=True, or --force on the "
                "command line",
            )
    (_, log_ms, own_log_ms), (_, checkpoint_ms, own_checkpoint_ms) = wanted
    return Retention(
        own_log_ms if log_ms is None else log_ms,
        own_checkpoint_ms if checkpoint_ms is None else checkpoint_ms,
        # With force and an explicit time, the number of retained versions must not silently keep
        # more.
        None if request.force and log_ms is not None else options.retain_versions,
        to_midnight=log.dialect.retention_to_midnight,
    )


def _protected_before(protocol: Protocol, metadata: Metadata) -> int:
    """``requireCheckpointProtectionBeforeVersion`` if the protocol has the feature, else 0."""
    if "checkpointProtection" not in (protocol.writer_features or ()):
        return 0
    text = metadata.configuration.get(CHECKPOINT_PROTECTION) or "0"
    check_value(CHECKPOINT_PROTECTION, text, LONG_COUNT)
    return int(text)


def timed_commits(
    log: Log, commits: Commits, listing: LogListing, protocol: Protocol, metadata: Metadata
) -> Commits:
    """The commits, with in-commit timestamps if the table has them."""
    since = metadata.stamped_from
    if since is None:
        return commits
    if not {"inCommitTimestamp", "inCommitTimestamp-preview"} & set(protocol.writer_features or ()):
        return commits
    by_version = {c.version: c for c in listing.commits}

    def at(version: int) -> int | None:
        found = log.dialect.decode(log.store, [by_version[version]], files=False).commit_infos
        return in_commit_timestamp(found[0]) if found else None

    return replace(commits, timed_from=since, in_commit_ms=at)


def _with_complete_cut_off(log: Log, files: pl.DataFrame, horizon: Horizon) -> Horizon:
    """The horizon, with a gate if the cut-off checkpoint is incomplete."""
    if horizon.gate is not None:
        return horizon
    sidecars = frozenset(files.filter(pl.col("kind") == "sidecar")["path"])
    below = (pl.col("kind") == "commit") & (pl.col("version") < horizon.checkpoint)
    alone = log
    if not log.dialect.checkpoints_are_complete:
        hidden = frozenset(files.filter(below)["path"])
        alone = replace(log, store=HidingStore(log.store, hidden))
    for checkpoint in horizon.checkpoints:
        problem = whole_problem(alone, checkpoint, sidecars)
        if problem is not None:
            why = f"{checkpoint.paths[0]}: {problem}"
            return replace(horizon, gate="checkpoint-broken", why=why)
    return horizon


def _with_sidecars(
    log: Log, classified: pl.DataFrame, complete: tuple[Checkpoint, ...], now_ms: int
) -> pl.DataFrame:
    """Decide for the sidecars; remaining checkpoints are read only if one may be deletable."""
    bound = horizons.sidecar_bound_ms(now_ms)
    may_go = classified.filter((pl.col("kind") == "sidecar") & (pl.col("modified_ms") <= bound))
    named = named_sidecars(log, classified, complete) if may_go.height else frozenset()
    return horizons.judge_sidecars(classified, named, now_ms)


def named_sidecars(
    log: Log, classified: pl.DataFrame, complete: tuple[Checkpoint, ...]
) -> frozenset[str] | None:
    """Sidecars of all checkpoints, also in quarantine; None if a remaining one is unreadable."""
    kept = classified.filter((pl.col("kind") == "checkpoint") & (pl.col("action") == "keep"))
    stay = frozenset(kept["path"])
    manifests = [c for c in complete if c.paths[0] in stay and c.layout != "multipart"]
    # A file that belongs to no complete checkpoint may be a damaged manifest.
    of_complete = {path for c in complete for path in c.paths}
    parts = kept["path"].str.contains(r"\.\d{10}\.\d{10}\.parquet$")
    if any(path not in of_complete for path in kept.filter(~parts)["path"]):
        return None
    named: set[str] = set()
    for checkpoint in (*manifests, *_in_quarantine(classified)):
        try:
            named.update(log.dialect.open_checkpoint(log.store, checkpoint).files_read())
        except UnavailableError:
            raise
        except LakelogError:
            if checkpoint in manifests:
                return None
    return frozenset(named)


def _in_quarantine(classified: pl.DataFrame) -> list[Checkpoint]:
    """Delta checkpoints of one file that are in quarantine."""
    paths = classified.filter(pl.col("kind") == "quarantine")["path"]
    by_folder: dict[str, list[str]] = {}
    for path in paths.filter(paths.str.contains(".checkpoint.", literal=True)):
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    return [
        replace(found, paths=(f"{folder}/{found.paths[0].rpartition('/')[2]}",), sizes_bytes=())
        for folder, names in by_folder.items()
        for found in parse_listing(FileEntry(name, 1, 0) for name in names).checkpoints
        if found.layout != "multipart"
    ]
