"""Log cleanup: planned file by file, proved before anything goes, in an order that may stop.

`plan_cleanup` walks the log folder once, decides what the retention promises
(`lakelog.retention.horizon`), looks whether the cut-off checkpoint is whole, and gives one row a
file. Applying the plan walks the folder again and takes what both walks let go; it then

1. proves the cut-off checkpoint against replay of the files below it (`lakelog.retention.proof`),
2. opens the table without the files that are to go: every promised version must still be there, and
   the oldest and the latest must hold what they hold now,
3. deletes, or moves to quarantine, in this order: what only speeds reading up (compactions,
   leftovers, staged commits), then commits from the oldest, each with its checksum, then of each
   old checkpoint the file without which it is not complete, then its other files, then sidecars
   that no checkpoint names any more, looked up anew.

Whenever that stops, what is left is a table with all promised versions: commits below the cut-off
checkpoint are needed by none of them, a checkpoint is either whole or seen to be incomplete, and a
sidecar goes after every manifest that named it.

Source: Delta protocol, Metadata Cleanup; specification 001, 3.3; facts on peers' cleanups.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.options import CheckpointOptions
from lakelog.commit.features import features_of, is_on, supported
from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    UnavailableError,
    UnsafeRetentionError,
    UnsupportedStoreError,
)
from lakelog.formats.base import Checkpoint, LogListing
from lakelog.formats.commit_info import in_commit_timestamp
from lakelog.log.context import Log
from lakelog.log.display import size_text, table_html, table_text
from lakelog.log.metadata import Metadata, Protocol
from lakelog.log.segment import latest_version, rebuildable
from lakelog.log.snapshot import Snapshot
from lakelog.retention import horizon as horizons
from lakelog.retention.horizon import Commits, Facts, Horizon, Retention
from lakelog.retention.inventory import HidingStore, ListedStore, inventory, walk_log
from lakelog.retention.pointers import pointed_version
from lakelog.retention.proof import check_reopens, check_times, prove_checkpoint, whole_problem
from lakelog.retention.quarantine import Quarantine, undo
from lakelog.storage.base import FileEntry, LogStore

Progress = Callable[[str, int, int | None], None]

FILES_SCHEMA = pl.Schema(
    {
        "path": pl.String,
        "kind": pl.String,
        "version": pl.Int64,
        "size_bytes": pl.Int64,
        "modified_ms": pl.Int64,
        "action": pl.String,
        "why": pl.String,
        "gate": pl.String,
        "covered_by": pl.String,
    }
)
"""Columns of `CleanupPlan.files`."""

POLICIES = ("continue", "fail")
_COVERED = ("commit", "checksum", "checkpoint", "compaction", "staged-commit")
_CHUNK = 1000
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
    """What is asked of a cleanup; see `Table.cleanup`."""

    quarantine: bool = False
    retention_ms: int | None = None
    checkpoint_retention_ms: int | None = None
    force: bool = False
    keep: bool = False
    failure_policy: str | None = None


@dataclass(frozen=True)
class Survey:
    """One look at a log: every file judged, and what that rests on.

    Attributes:
        log: The log as that look found it.
        files: As `horizon.judge` gives them, every file.
        listing: What the dialect makes of the names.
        horizon: What is promised.
        policy: Failure policy of the table.
        commits: The commits.
    """

    log: Log
    files: pl.DataFrame
    listing: LogListing
    horizon: Horizon
    policy: str
    commits: Commits

    @property
    def doomed(self) -> pl.DataFrame:
        """The files that may go."""
        return self.files.filter(pl.col("action") == "delete")

    @property
    def oldest_promised(self) -> int:
        """The oldest version that is promised."""
        return self.horizon.commit if self.horizon.commit is not None else 0


@dataclass(frozen=True)
class CleanupReport:
    """What a cleanup did.

    Attributes:
        table: Location of the table.
        files: The files that are gone: ``path``, ``kind``, ``version``, ``size_bytes``, in the
            order in which they went.
        size_bytes: Bytes in them.
        checkpoint: Path of the cut-off checkpoint; None where none was needed.
        verdict: What proving it gave: ``proved``, ``unprovable`` (an earlier cleanup took what it
            could be proved from; it was then read whole), or None where nothing rests on it.
        oldest_promised: The oldest version that the retention promises.
        gate: Gate that kept everything, or None.
        why: What it found, in a sentence.
        errors: What could not be deleted, each with its ``path``.
        quarantine: Id of the quarantine that holds the files, or None where they are gone for good.
        seconds: How long it took.
    """

    table: str
    files: pl.DataFrame
    size_bytes: int
    checkpoint: str | None
    verdict: str | None
    oldest_promised: int | None
    gate: str | None
    why: str
    errors: tuple[LakelogError, ...] = ()
    quarantine: str | None = None
    seconds: float = 0.0
    _log: Log | None = field(default=None, repr=False, compare=False)

    def undo(self) -> pl.DataFrame:
        """Move the files back from quarantine; see `lakelog.retention.quarantine.undo`.

        Raises:
            InvalidInputError: They are not in quarantine.
        """
        if self.quarantine is None or self._log is None:
            raise InvalidInputError(
                "nothing is in quarantine, so nothing can be undone",
                path=self.table,
                hint="clean up with quarantine=True",
            )
        return undo(self._log, self.quarantine)

    def _described(self) -> list[tuple[str, str]]:
        rows = [
            ("path", self.table),
            ("gone", f"{self.files.height:,} files, {size_text(self.size_bytes)}"),
            ("oldest version promised", _or_nothing(self.oldest_promised)),
            ("covered by", f"{self.checkpoint or 'nothing'} ({self.verdict or 'not looked at'})"),
            ("not deleted", f"{len(self.errors):,} files"),
        ]
        if self.quarantine is not None:
            rows.append(("quarantine", self.quarantine))
        if self.gate is not None:
            rows.append(("kept by", f"{self.gate}: {self.why}"))
        return rows

    def __str__(self) -> str:
        return table_text("Cleanup", self._described())

    def _repr_html_(self) -> str:
        return table_html("Cleanup", self._described())


@dataclass(frozen=True)
class CleanupPlan:
    """What a cleanup would do; nothing is deleted before `apply`.

    Attributes:
        table: Location of the table.
        files: One row a file that may go, by path, and with ``keep`` one a file that stays; see
            `FILES_SCHEMA`. ``path`` is relative to the table root; ``action`` is ``delete`` or
            ``keep``; ``gate`` is a key of `lakelog.retention.horizon.GATES`; ``covered_by`` is the
            cut-off checkpoint's file, looked through here and proved when the plan is applied.
        cutoff_ms: The cut-off time, milliseconds since the Unix epoch.
        oldest_promised: The oldest version that the retention promises; None promises all.
        oldest_now: The oldest version that can be rebuilt now.
        checkpoint: Path of the cut-off checkpoint, or None.
        checkpoint_version: Its version.
        gate: Gate that keeps everything, or None.
        why: What it found, in a sentence.
    """

    table: str
    files: pl.DataFrame
    cutoff_ms: int
    oldest_promised: int | None
    oldest_now: int | None
    checkpoint: str | None
    checkpoint_version: int | None
    gate: str | None
    why: str
    _log: Log = field(repr=False, compare=False)
    _request: Request = field(repr=False, compare=False)

    @property
    def doomed(self) -> pl.DataFrame:
        """The rows of `files` that may go."""
        return self.files.filter(pl.col("action") == "delete")

    @property
    def size_bytes(self) -> int:
        """Bytes in the files that may go."""
        return int(self.doomed["size_bytes"].sum())

    def apply(self, progress: Progress | None = None) -> CleanupReport:
        """Prove, look again, and then delete or move to quarantine; see this module.

        What was planned and is no longer allowed stays, and so does what has become allowed since.

        Args:
            progress: Is told ``("prove", 0, None)``, ``("reopen", 0, None)`` and
                ``("delete", done, total)``.

        Raises:
            UnsafeRetentionError: Something is wrong with the log (``found`` names the gate), the
                cut-off checkpoint is not what replay gives, or a promised version would be lost;
                nothing was deleted.
            UnsupportedStoreError: The store is read only.
            UnavailableError: The store failed; where the failure policy is ``fail``, with a file
                that could not be deleted. Applying again goes on from there.
        """
        return _apply(self, progress)

    def _described(self) -> list[tuple[str, str]]:
        doomed = self.doomed
        at = dt.datetime.fromtimestamp(self.cutoff_ms / 1000, dt.UTC)
        rows = [
            ("path", self.table),
            ("cut-off", f"{at:%Y-%m-%d %H:%M:%S} UTC"),
            ("oldest version now", _or_nothing(self.oldest_now)),
            ("oldest version promised", _or_nothing(self.oldest_promised)),
            ("covered by", self.checkpoint or "nothing"),
            ("may go", f"{doomed.height:,} files, {size_text(self.size_bytes)}"),
        ]
        if self.gate is not None:
            rows.append(("kept by", f"{self.gate}: {self.why}"))
        return rows

    def __str__(self) -> str:
        return table_text("Cleanup plan", self._described())

    def _repr_html_(self) -> str:
        return table_html("Cleanup plan", self._described())


def _or_nothing(version: int | None) -> str:
    return "all" if version is None else f"{version:,}"


def plan_cleanup(log: Log, request: Request) -> CleanupPlan:
    """Look at a log and say what may go; see `lakelog.table.Table.cleanup`.

    Memory: some 300 bytes a file of the log folder.
    """
    if request.failure_policy not in {None, *POLICIES}:
        raise InvalidInputError(
            "no such failure policy", expected=" or ".join(POLICIES), found=request.failure_policy
        )
    with telemetry.span("cleanup.plan", format=log.dialect.name):
        seen = survey(log, request)
    horizon = seen.horizon
    ranges = rebuildable(seen.listing)
    chosen = horizon.checkpoints[-1].paths[0] if horizon.checkpoints else None
    files = seen.files if request.keep else seen.doomed
    return CleanupPlan(
        table=log.table,
        files=_explained(files, horizon, chosen),
        cutoff_ms=horizon.cutoff_ms,
        oldest_promised=horizon.commit,
        oldest_now=ranges[0][0] if ranges else None,
        checkpoint=chosen,
        checkpoint_version=horizon.checkpoint,
        gate=horizon.gate,
        why=horizon.why,
        _log=log,
        _request=request,
    )


def survey(
    log: Log,
    request: Request,
    options: CheckpointOptions | None = None,
    entries: Sequence[FileEntry] | None = None,
) -> Survey:
    """Look at every file of a log once, and judge it.

    Args:
        log: The log.
        request: What is asked.
        options: What to go by in place of the table's own properties.
        entries: What `walk_log` gave, where somebody has walked already.

    Raises:
        UnsafeRetentionError: `request` asks for less than the table promises, and does not force.
        CorruptionError: The latest version cannot be read.
    """
    now_ms = log.clock()
    entries = walk_log(log) if entries is None else entries
    folder = log.dialect.log_folder
    seen = Log(ListedStore(log.store, folder, entries), log.dialect, log.clock)
    listing = seen.list_all()
    latest_version(listing, log.table)
    files = inventory(entries, log.dialect.name, folder)
    rows = files.filter(pl.col("kind") == "commit").sort("version")
    commits = Commits(rows["version"].to_numpy(), rows["modified_ms"].to_numpy())
    complete = tuple(c for c in listing.checkpoints)
    gate = _before_all(complete)
    protocol: Protocol | None = None
    if gate is None:
        snapshot = Snapshot.open(seen)
        protocol, metadata = snapshot.protocol, snapshot.metadata
        options = options or CheckpointOptions.of(metadata.configuration, log.dialect.name)
        gate = _of_properties(protocol, metadata, options, request, log.dialect.name)
        commits = _timed(seen, commits, listing, protocol, metadata)
    options = options or CheckpointOptions()
    retention = _retention(options, request, log, promised=protocol is not None)
    protected = _protected_before(protocol, snapshot.metadata) if protocol is not None else 0
    if gate is not None:
        cutoff_ms = retention.cutoff_ms(now_ms)
        horizon = Horizon(cutoff_ms, gate=gate[0], why=gate[1])
    else:
        horizon = horizons.find_horizon(
            commits,
            complete,
            retention,
            now_ms,
            own_commit=log.dialect.name == "delta",
            protected_before=protected,
        )
    horizon = _looked_through(seen, files, horizon)
    facts = Facts(
        now_ms,
        retention,
        complete,
        pointed_version(log),
        horizons.contiguous_to(commits, horizon.checkpoint or 0),
        protected,
    )
    judged = horizons.judge(files, horizon, facts)
    if horizon.gate is None:
        judged = _with_sidecars(seen, judged, complete, now_ms)
    policy = request.failure_policy or options.cleanup_failure_policy
    return Survey(seen, judged, listing, horizon, policy, commits)


def _before_all(complete: tuple[Checkpoint, ...]) -> tuple[str, str] | None:
    """A gate that needs no metadata, which may be dear to read where there is no checkpoint."""
    if any(c.layout == "avro-state" for c in complete):
        why = "the log holds Avro states, whose metadata and skips stand in the commits below them"
        return "avro-state", why
    if not complete:
        return "no-cut-off-checkpoint", "the log has no complete checkpoint"
    return None


def _of_properties(
    protocol: Protocol,
    metadata: Metadata,
    options: CheckpointOptions,
    request: Request,
    dialect: str,
) -> tuple[str, str] | None:
    known = features_of(dialect)
    for name in sorted(supported(protocol, dialect)):
        feature = known.get(name)
        if feature is None or name in _MOVED:
            return "unknown-feature", f"the table has the feature {name!r}"
        switched = feature.switch is None or feature.switch(metadata)
        if name in _CATALOG and switched:
            return "catalog", f"the table has the feature {name!r}"
    if not options.cleanup_enabled and not request.force:
        return "cleanup-disabled", "force=True cleans up nevertheless"
    return None


def _retention(
    options: CheckpointOptions, request: Request, log: Log, *, promised: bool
) -> Retention:
    wanted = (
        ("retention_ms", request.retention_ms, options.log_retention_ms),
        (
            "checkpoint_retention_ms",
            request.checkpoint_retention_ms,
            options.checkpoint_retention_ms,
        ),
    )
    for name, asked, owned in wanted:
        if asked is None:
            continue
        if asked < 0:
            raise InvalidInputError(f"{name} is a time from 0", expected=">= 0", found=asked)
        if promised and asked < owned and not request.force:
            raise UnsafeRetentionError(
                "the retention is shorter than the table's own",
                path=log.table,
                expected=f"{name} of at least {dt.timedelta(milliseconds=owned)}",
                found=str(dt.timedelta(milliseconds=asked)),
                hint="change the table's properties, or force=True",
            )
    is_delta = log.dialect.name == "delta"
    (_, log_ms, own_log_ms), (_, checkpoint_ms, own_checkpoint_ms) = wanted
    return Retention(
        own_log_ms if log_ms is None else log_ms,
        own_checkpoint_ms if checkpoint_ms is None else checkpoint_ms,
        # Who forces a time means it; the number of versions would silently keep more.
        None if request.force and log_ms is not None else options.retain_versions,
        to_midnight=is_delta,
    )


def _protected_before(protocol: Protocol, metadata: Metadata) -> int:
    """``requireCheckpointProtectionBeforeVersion`` where the protocol has the feature."""
    if "checkpointProtection" not in (protocol.writer_features or ()):
        return 0
    return int(metadata.configuration.get("delta.requireCheckpointProtectionBeforeVersion") or 0)


def _timed(
    log: Log, commits: Commits, listing: LogListing, protocol: Protocol, metadata: Metadata
) -> Commits:
    """The commits with in-commit timestamps where the table has them."""
    configuration = metadata.configuration
    if not is_on(configuration, "delta.enableInCommitTimestamps"):
        return commits
    if not {"inCommitTimestamp", "inCommitTimestamp-preview"} & set(protocol.writer_features or ()):
        return commits
    since = int(configuration.get("delta.inCommitTimestampEnablementVersion") or 0)
    by_version = {c.version: c for c in listing.commits}

    def at(version: int) -> int | None:
        found = log.dialect.decode(log.store, [by_version[version]], files=False).commit_infos
        return in_commit_timestamp(found[0]) if found else None

    return replace(commits, timed_from=since, in_commit_ms=at)


def _looked_through(log: Log, files: pl.DataFrame, horizon: Horizon) -> Horizon:
    """The horizon, closed where the cut-off checkpoint is not whole."""
    if horizon.gate is not None:
        return horizon
    sidecars = frozenset(files.filter(pl.col("kind") == "sidecar")["path"])
    below = (pl.col("kind") == "commit") & (pl.col("version") < horizon.checkpoint)
    alone = log
    if log.dialect.name != "delta":
        hidden = frozenset(files.filter(below)["path"])
        alone = Log(HidingStore(log.store, hidden), log.dialect, log.clock)
    for checkpoint in horizon.checkpoints:
        problem = whole_problem(alone, checkpoint, sidecars)
        if problem is not None:
            why = f"{checkpoint.paths[0]}: {problem}"
            return replace(horizon, gate="checkpoint-broken", why=why)
    return horizon


def _with_sidecars(
    log: Log, judged: pl.DataFrame, complete: tuple[Checkpoint, ...], now_ms: int
) -> pl.DataFrame:
    """Judge the sidecars, reading the checkpoints that stay only where one may go."""
    bound = horizons.sidecar_bound_ms(now_ms)
    may_go = judged.filter((pl.col("kind") == "sidecar") & (pl.col("modified_ms") <= bound))
    named = named_sidecars(log, judged, complete) if may_go.height else frozenset()
    return horizons.judge_sidecars(judged, named, now_ms)


def named_sidecars(
    log: Log, judged: pl.DataFrame, complete: tuple[Checkpoint, ...]
) -> frozenset[str] | None:
    """Sidecars that the checkpoints that stay name; None where one of these cannot be read."""
    kept = judged.filter((pl.col("kind") == "checkpoint") & (pl.col("action") == "keep"))
    stay = frozenset(kept["path"])
    manifests = [c for c in complete if c.paths[0] in stay and c.layout != "multipart"]
    # What is no complete checkpoint and no part of one may be a manifest that is damaged.
    of_complete = {path for c in complete for path in c.paths}
    parts = kept["path"].str.contains(r"\.\d{10}\.\d{10}\.parquet$")
    if any(path not in of_complete for path in kept.filter(~parts)["path"]):
        return None
    named: set[str] = set()
    for checkpoint in manifests:
        try:
            named.update(log.dialect.open_checkpoint(log.store, checkpoint).files_read())
        except UnavailableError:
            raise
        except LakelogError:
            return None
    return frozenset(named)


def _explained(files: pl.DataFrame, horizon: Horizon, covered_by: str | None) -> pl.DataFrame:
    """The frame of a plan."""
    at = dt.datetime.fromtimestamp(horizon.cutoff_ms / 1000, dt.UTC)
    texts = dict(horizons.GATES)
    texts["expired"] += (
        f": version {horizon.commit} was the table at {at:%Y-%m-%d %H:%M} UTC, and it and all later"
        f" ones are rebuilt from the checkpoint of version {horizon.checkpoint}"
    )
    if horizon.gate is not None:
        texts[horizon.gate] += f": {horizon.why}"
    covered = pl.col("kind").is_in(list(_COVERED)) & (pl.col("action") == "delete")
    return files.select(
        "path",
        "kind",
        "version",
        "size_bytes",
        "modified_ms",
        "action",
        pl.col("gate").replace_strict(texts, return_dtype=pl.String).alias("why"),
        "gate",
        pl.when(covered).then(pl.lit(covered_by, dtype=pl.String)).alias("covered_by"),
    )


# --- applying ------------------------------------------------------------------------------------


def _apply(plan: CleanupPlan, progress: Progress | None) -> CleanupReport:
    log, request = plan._log, plan._request  # noqa: SLF001 - a plan's own hidden half
    tell = progress or (lambda _stage, _done, _total: None)
    if log.store.refusal is not None:
        raise UnsupportedStoreError(log.store.refusal, path=log.table)
    start = time.perf_counter()
    with telemetry.span("cleanup.apply", format=log.dialect.name):
        seen = survey(log, request)
        _refuse(log, seen.horizon)
        same = ["path", "size_bytes", "modified_ms"]
        doomed = seen.doomed.join(plan.doomed.select(same), on=same, how="semi")
        verdict: str | None = None
        checkpoint = seen.horizon.checkpoints[-1].paths[0] if seen.horizon.checkpoints else None
        if doomed.filter(pl.col("kind") != "temporary").height:
            tell("prove", 0, None)
            verdict = prove_checkpoint(seen.log, seen.horizon)
            check_times(seen.log, seen.listing, seen.commits, seen.horizon)
            tell("reopen", 0, None)
            check_reopens(seen.log, frozenset(doomed["path"]), seen.oldest_promised)
        removal = _Removal(log, request, seen, tell)
        removal.remove(doomed)
    report = CleanupReport(
        table=log.table,
        files=removal.gone(doomed),
        size_bytes=removal.size_bytes,
        checkpoint=checkpoint,
        verdict=verdict,
        oldest_promised=seen.horizon.commit,
        gate=seen.horizon.gate,
        why=seen.horizon.why,
        errors=tuple(removal.errors),
        quarantine=removal.quarantine.id if removal.quarantine is not None else None,
        seconds=time.perf_counter() - start,
        _log=log,
    )
    _tell_of(report)
    return report


def _refuse(log: Log, horizon: Horizon) -> None:
    if horizon.gate in horizons.MUST_REFUSE:
        raise UnsafeRetentionError(
            f"nothing was cleaned up: {horizon.why}",
            path=log.table,
            version=horizon.checkpoint,
            expected=horizons.GATES[horizon.gate],
            found=horizon.gate,
            hint="mend the log first: t.repair() says how"
            if horizon.gate in {"missing-commits", "checkpoint-broken"}
            else "clean up with the engine that owns the table",
        )


def _tell_of(report: CleanupReport) -> None:
    telemetry.event(
        "cleanup.done",
        files=report.files.height,
        size_bytes=report.size_bytes,
        quarantine=report.quarantine,
        verdict=report.verdict,
        gate=report.gate,
        errors=len(report.errors),
        seconds=round(report.seconds, 3),
    )
    by_kind = report.files.group_by("kind").agg(pl.len(), pl.col("size_bytes").sum())
    for kind, files, size_bytes in by_kind.iter_rows():
        telemetry.count("cleanup.files", files, kind=kind)
        telemetry.count("cleanup.bytes", size_bytes, kind=kind)


class _Removal:
    """Deletes or moves away, phase by phase; a phase begins only when all before it are done."""

    def __init__(self, log: Log, request: Request, seen: Survey, tell: Progress) -> None:
        self.quarantine: Quarantine | None = None
        self.errors: list[LakelogError] = []
        self.size_bytes = 0
        self._log = log
        self._request = request
        self._seen = seen
        self._tell = tell
        self._gone: list[str] = []

    def remove(self, doomed: pl.DataFrame) -> None:
        """Remove files, from what nobody needs to what must go last.

        Raises:
            UnavailableError: A file could not be removed, and the failure policy is ``fail``.
        """
        total = doomed.height
        if not total:
            return
        if self._request.quarantine:
            self.quarantine = Quarantine.begin(self._log, doomed)
        sizes = dict(doomed.select("path", "size_bytes").iter_rows())
        for phase in phases(doomed):
            wanted = self._still_unnamed(phase) if _is_last(phase) else phase["path"].to_list()
            for begin in range(0, len(wanted), _CHUNK):
                chunk = wanted[begin : begin + _CHUNK]
                errors = self._remove(chunk)
                failed = {error.path for error in errors}
                done = [path for path in chunk if path not in failed]
                self._gone += done
                self.size_bytes += sum(sizes[path] for path in done)
                self.errors += errors
                self._tell("delete", len(self._gone), total)
                if errors and self._seen.policy == "fail":
                    raise errors[0]
            if self.errors:
                # What goes later may only go once this has: commits before the checkpoints under
                # them, a manifest before what it names.
                return

    def gone(self, doomed: pl.DataFrame) -> pl.DataFrame:
        """The rows of the files that are gone, in that order."""
        order = pl.DataFrame({"path": pl.Series(self._gone, dtype=pl.String)})
        rows = doomed.select("path", "kind", "version", "size_bytes")
        return order.join(rows, on="path", how="left", maintain_order="left")

    def _remove(self, paths: list[str]) -> list[LakelogError]:
        if self.quarantine is not None:
            return self.quarantine.take(paths)
        return self._log.store.delete_many(paths)

    def _still_unnamed(self, phase: pl.DataFrame) -> list[str]:
        """Sidecars that are named by no checkpoint now that old ones are gone: one may have been
        written since.
        """
        store: LogStore = self._log.store
        entries = walk_log(self._log)
        folder = self._log.dialect.log_folder
        now = Log(ListedStore(store, folder, entries), self._log.dialect, self._log.clock)
        files = inventory(entries, self._log.dialect.name, folder)
        kept = files.with_columns(pl.lit("keep").alias("action"))
        try:
            named = named_sidecars(now, kept, now.list_all().checkpoints)
        except UnavailableError:
            named = None
        if named is None:
            return []
        return [path for path in phase["path"] if path not in named]


def phases(doomed: pl.DataFrame) -> list[pl.DataFrame]:
    """The files in the order in which they may go; within a phase the order is free."""
    kind = pl.col("kind")
    is_history = kind.is_in(["commit", "checksum"])
    is_checkpoint = kind == "checkpoint"
    parts = (
        ~(is_history | is_checkpoint | (kind == "sidecar")),
        is_history,
        is_checkpoint & pl.col("leads"),
        is_checkpoint & ~pl.col("leads"),
        kind == "sidecar",
    )
    ordered = doomed.sort("version", "path", nulls_last=True)
    return [phase for part in parts if (phase := ordered.filter(part)).height]


def _is_last(phase: pl.DataFrame) -> bool:
    return bool((phase["kind"] == "sidecar").all())
