"""Log cleanup: planned per file, verified before deletion, and safe to interrupt.

`plan_cleanup` lists the log, determines which versions the retention protects
(`lakelog.maintenance.retention_bounds`), checks that the cut-off checkpoint is complete, and
returns one row per file. Applying the plan lists the log again, and deletes only files that both
listings allow:

- It verifies the cut-off checkpoint against a replay of the files below it
  (`lakelog.maintenance.cleanup_checks`).
- It opens the table without these files: every version within the retention must be readable, and
  the oldest and the latest must be unchanged.
- It deletes or quarantines, in this order: files that only speed up reads (compactions, incomplete
  checkpoints, staged commits); commits and their checksums, oldest first; per checkpoint, the file
  that completes it, then its other files; sidecars that no checkpoint refers to, after another
  check.

After an interruption at any point, all versions within the retention are readable: they need no
commit below the cut-off checkpoint, a checkpoint is complete or visibly incomplete, and a sidecar
is deleted after every manifest that refers to it. If another cleanup deletes files at the same
time, the check is repeated.

Source: Delta protocol, Metadata Cleanup.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import polars as pl

from lakelog import telemetry
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    UnavailableError,
    UnsafeRetentionError,
    UnsupportedStoreError,
)
from lakelog.log.context import Log
from lakelog.log.segment import rebuildable
from lakelog.maintenance import retention_bounds as horizons
from lakelog.maintenance.cleanup_checks import check_reopens, check_times, prove_checkpoint
from lakelog.maintenance.inventory import ListedStore, inventory, walk_log
from lakelog.maintenance.log_survey import (
    Request,
    Survey,
    named_sidecars,
    survey,
    with_stable_files,
)
from lakelog.maintenance.quarantine import Quarantine
from lakelog.maintenance.retention_bounds import Horizon
from lakelog.maintenance.undo import undo
from lakelog.storage.base import Deleted, FileEntry, delete_files
from lakelog.telemetry import Progress

_CHUNK = 1000


class Removal:
    """Deletes files or moves them to quarantine, in phases, one after the other."""

    def __init__(self, log: Log, request: Request, seen: Survey, notify: Progress) -> None:
        self.quarantine: Quarantine | None = None
        self.errors: list[LakelogError] = []
        self.size_bytes = 0
        self._log = log
        self._request = request
        self._seen = seen
        self._notify = notify
        self._removed: list[str] = []

    def remove(self, deletable: pl.DataFrame) -> None:
        """Remove files in the order of `_phases`."""
        total = deletable.height
        if not total:
            return
        if self._request.quarantine:
            self.quarantine = Quarantine.begin(self._log, deletable, "cleanup")
        sizes = dict(deletable.select("path", "size_bytes").iter_rows())
        for phase in _phases(deletable):
            wanted = self._still_unnamed(phase) if _is_last(phase) else phase["path"].to_list()
            for begin in range(0, len(wanted), _CHUNK):
                chunk = wanted[begin : begin + _CHUNK]
                errors, missing = self._remove(chunk)
                others = {*missing, *(error.path for error in errors)}
                done = [path for path in chunk if path not in others]
                self._removed += done
                self.size_bytes += sum(sizes[path] for path in done)
                self.errors += errors
                self._notify("delete", len(self._removed), total)
                if errors and self._seen.policy == "fail":
                    raise errors[0]
            if self.errors:
                # A phase depends on the previous one: commits are deleted before the checkpoints
                # below them, a manifest before its sidecars.
                return

    def removed_rows(self, deletable: pl.DataFrame) -> pl.DataFrame:
        """The rows of the removed files, in the order of removal."""
        order = pl.DataFrame({"path": pl.Series(self._removed, dtype=pl.String)})
        rows = deletable.select("path", "kind", "version", "size_bytes")
        return order.join(rows, on="path", how="left", maintain_order="left")

    def _remove(self, paths: list[str]) -> Deleted:
        """Delete files, or move them to quarantine."""
        if self.quarantine is not None:
            return Deleted(*self.quarantine.take(paths))
        return delete_files(self._log.store, paths)

    def _still_unnamed(self, phase: pl.DataFrame) -> list[str]:
        """Sidecars without a checkpoint after old ones were deleted; a new one may need some."""
        store = self._log.store
        entries = walk_log(self._log)
        folder = self._log.dialect.log_folder
        now = replace(self._log, store=ListedStore(store, folder, entries))
        files = inventory(entries, self._log.dialect)
        if self.quarantine is not None:
            # A checkpoint that was just moved to quarantine takes its sidecars along.
            files = files.filter(~pl.col("path").str.starts_with(f"{self.quarantine.folder}/"))
        kept = files.with_columns(pl.lit("keep").alias("action"))
        try:
            named = named_sidecars(now, kept, now.list_all().checkpoints)
        except UnavailableError:
            named = None
        if named is None:
            return []
        return [path for path in phase["path"] if path not in named]


def _phases(deletable: pl.DataFrame) -> list[pl.DataFrame]:
    """The phases of deletion, in order; within a phase the order is free."""
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
    ordered = deletable.sort("version", "path", nulls_last=True)
    return [phase for part in parts if (phase := ordered.filter(part)).height]


def _is_last(phase: pl.DataFrame) -> bool:
    return bool((phase["kind"] == "sidecar").all())


__all__ = [
    "CleanupPlan",
    "CleanupReport",
    "Progress",
    "Request",
    "plan_cleanup",
]

_POLICIES = ("continue", "fail")
_COVERED = ("commit", "checksum", "checkpoint", "compaction", "staged-commit")


@dataclass(frozen=True)
class CleanupReport(Displayed):
    """Result of a cleanup.

    Attributes:
        table: Location of the table.
        files: Removed files, in the order of removal: ``path``, ``kind``, ``version``,
            ``size_bytes``.
        size_bytes: Total size of the removed files, in bytes.
        checkpoint: Path of the cut-off checkpoint; None if none was needed.
        verdict: Result of verifying the cut-off checkpoint: ``proved``, ``unprovable`` (an earlier
            cleanup deleted the files needed for verification; the checkpoint was then read
            completely), or None if no deletion depends on it.
        oldest_promised: Oldest version that the retention protects.
        gate: Gate that kept all files, or None.
        why: Finding of that gate, in one sentence; without a gate, the reason why more files than
            necessary are kept.
        errors: One error, with its ``path``, per file that could not be deleted.
        quarantine: Id of the quarantine that contains the files; None if they were deleted.
        seconds: Duration in seconds.
    """

    _title = "Cleanup"

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
        """Move the files back from quarantine; see `lakelog.maintenance.undo.undo`.

        Raises:
            InvalidInputError: The cleanup did not move files to quarantine.
        """
        if self.quarantine is None or self._log is None:
            raise InvalidInputError(
                "no quarantine was found, so there is nothing to undo",
                path=self.table,
                hint="clean up with quarantine=True",
            )
        return undo(self._log, self.quarantine)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        rows = [
            ("path", self.table),
            ("deleted", f"{self.files.height:,} files, {size_text(self.size_bytes)}"),
            ("oldest version promised", _or_nothing(self.oldest_promised)),
            ("covered by", f"{self.checkpoint or 'nothing'} ({self.verdict or 'not verified'})"),
            ("not deleted", f"{len(self.errors):,} files"),
        ]
        if self.quarantine is not None:
            rows.append(("quarantine", self.quarantine))
        rows += _kept_by(self.gate, self.why)
        return rows


@dataclass(frozen=True)
class CleanupPlan(Displayed):
    """Plan of a cleanup; nothing is deleted before `apply`.

    Attributes:
        table: Location of the table.
        files: One row per file that can be deleted, sorted by path; with ``keep``, also one row per
            file that is kept. Columns: ``path`` (relative to the table root), ``kind``,
            ``version``, ``size_bytes``, ``modified_ms``, ``action`` (``delete`` or ``keep``),
            ``why``, ``gate`` (a key of `lakelog.maintenance.retention_bounds.GATES`), and
            ``covered_by``: the file of the cut-off checkpoint, which is verified when the plan is
            applied. Version, size and time are Int64, the others String.
        cutoff_ms: Cut-off time, in milliseconds since the Unix epoch.
        oldest_promised: Oldest version that the retention protects; None if it protects all
            versions.
        oldest_now: Oldest version that can currently be rebuilt.
        checkpoint: Path of the cut-off checkpoint, or None.
        checkpoint_version: Version of the cut-off checkpoint, or None.
        gate: Gate that keeps all files, or None.
        why: Finding of that gate, in one sentence; without a gate, the reason why more files than
            necessary are kept.
    """

    _title = "Cleanup plan"

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
    def deletable(self) -> pl.DataFrame:
        """The rows of `files` that can be deleted."""
        return self.files.filter(pl.col("action") == "delete")

    @property
    def size_bytes(self) -> int:
        """Total size of the deletable files, in bytes."""
        return int(self.deletable["size_bytes"].sum())

    def apply(self, progress: Progress | None = None) -> CleanupReport:
        """Verify the cut-off checkpoint, then delete the files or move them to quarantine.

        Only files that the plan lists, and that a new listing allows to delete, are deleted.

        Args:
            progress: Called with ``("prove", 0, None)``, ``("reopen", 0, None)`` and ``("delete",
                done, total)``.

        Raises:
            UnsafeRetentionError: The log has a problem (``found`` is the gate), the cut-off
                checkpoint differs from replay, or a version within the retention would be lost;
                nothing was deleted.
            UnsupportedStoreError: The store is read only.
            UnavailableError: The store failed, or, with the failure policy ``fail``, a file could
                not be deleted. Apply the plan again to continue.
            OutcomeUnknownError: The failure policy is ``fail``, and it is unknown whether a file
                was moved to quarantine. Apply the plan again to continue.
        """
        return _apply(self, progress)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        deletable = self.deletable
        at = dt.datetime.fromtimestamp(self.cutoff_ms / 1000, dt.UTC)
        rows = [
            ("path", self.table),
            ("cut-off", f"{at:%Y-%m-%d %H:%M:%S} UTC"),
            ("oldest version now", _or_nothing(self.oldest_now)),
            ("oldest version promised", _or_nothing(self.oldest_promised)),
            ("covered by", self.checkpoint or "nothing"),
            ("deletable", f"{deletable.height:,} files, {size_text(self.size_bytes)}"),
        ]
        rows += _kept_by(self.gate, self.why)
        return rows


def _kept_by(gate: str | None, why: str) -> list[tuple[str, str]]:
    if gate is not None:
        return [("all is kept", why)]
    return [("more is kept", why)] if why else []


def _or_nothing(version: int | None) -> str:
    return "all" if version is None else f"{version:,}"


def plan_cleanup(log: Log, request: Request) -> CleanupPlan:
    """Survey a log and plan its cleanup; memory: about 300 bytes per file in the log folder."""
    if request.failure_policy not in {None, *_POLICIES}:
        raise InvalidInputError(
            "unknown failure policy", expected=" or ".join(_POLICIES), found=request.failure_policy
        )
    with telemetry.span("cleanup.plan", format=log.dialect.name):
        seen = _checked(log, lambda entries: _survey_once(log, request, entries))[0]
    horizon = seen.horizon
    ranges = rebuildable(seen.listing)
    chosen = horizon.checkpoints[-1].paths[0] if horizon.checkpoints else None
    files = seen.files if request.keep else seen.deletable
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


def _explained(files: pl.DataFrame, horizon: Horizon, covered_by: str | None) -> pl.DataFrame:
    """The frame of a plan: files with their decisions."""
    at = dt.datetime.fromtimestamp(horizon.cutoff_ms / 1000, dt.UTC)
    texts = dict(horizons.GATES)
    texts["expired"] += (
        f": version {horizon.commit} was the table at {at:%Y-%m-%dT%H:%MZ}; it and all "
        f"later versions are rebuilt from the checkpoint of version {horizon.checkpoint}"
    )
    if horizon.gate is not None:
        texts[horizon.gate] += f": {horizon.why}"
    elif horizon.passed_over is not None:
        texts["foreign-readers"] += f": {horizon.why}"
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


def _apply(plan: CleanupPlan, progress: Progress | None) -> CleanupReport:
    log, request = plan._log, plan._request  # noqa: SLF001 - a plan's own hidden half
    notify = progress or (lambda _stage, _done, _total: None)
    if log.store.refusal is not None:
        raise UnsupportedStoreError(log.store.refusal, path=log.table)
    start = time.perf_counter()
    with telemetry.span("cleanup.apply", format=log.dialect.name):
        seen, deletable, verdict = _checked(log, lambda entries: _proved(plan, notify, entries))
        removal = Removal(log, request, seen, notify)
        removal.remove(deletable)
    horizon = seen.horizon
    report = CleanupReport(
        table=log.table,
        files=removal.removed_rows(deletable),
        size_bytes=removal.size_bytes,
        checkpoint=horizon.checkpoints[-1].paths[0] if horizon.checkpoints else None,
        verdict=verdict,
        oldest_promised=horizon.commit,
        gate=horizon.gate,
        why=horizon.why,
        errors=tuple(removal.errors),
        quarantine=removal.quarantine.id if removal.quarantine is not None else None,
        seconds=time.perf_counter() - start,
        _log=log,
    )
    _log_cleanup(report)
    return report


class _ConcurrentChangeError(Exception):
    """A check failed in a way that a concurrent cleanup can cause."""

    def __init__(self, seen: Survey, cause: LakelogError | None = None) -> None:
        super().__init__()
        self.seen = seen
        self.cause = cause


_Found = tuple[Survey, pl.DataFrame, str | None]


def _checked(log: Log, check: Callable[[list[FileEntry]], _Found]) -> _Found:
    """The result of a check of log files, repeated if a concurrent cleanup was deleting them."""
    try:
        return with_stable_files(
            log, check, (_ConcurrentChangeError, CorruptionError, NotFoundError)
        )
    except _ConcurrentChangeError as change:
        if change.cause is not None:
            raise change.cause from change.cause.__cause__
        return change.seen, change.seen.deletable, None


def _survey_once(log: Log, request: Request, entries: list[FileEntry]) -> _Found:
    seen = survey(log, request, entries=entries)
    if seen.horizon.gate in horizons.MUST_REFUSE:
        raise _ConcurrentChangeError(seen)
    return seen, seen.deletable, None


def _proved(plan: CleanupPlan, notify: Progress, entries: list[FileEntry]) -> _Found:
    """List the log again, and verify that the planned files can be deleted."""
    log, request = plan._log, plan._request  # noqa: SLF001 - a plan's own hidden half
    seen = survey(log, request, entries=entries)
    same = ["path", "size_bytes", "modified_ms"]
    deletable = seen.deletable.join(plan.deletable.select(same), on=same, how="semi")
    try:
        _refuse(log, seen.horizon)
        if not deletable.filter(pl.col("kind") != "temporary").height:
            return seen, deletable, None
        notify("prove", 0, None)
        verdict = prove_checkpoint(seen.log, seen.horizon)
        check_times(seen.log, seen.listing, seen.commits, seen.horizon)
        notify("reopen", 0, None)
        check_reopens(seen.log, frozenset(deletable["path"]), seen.oldest_promised)
    except (UnsafeRetentionError, CorruptionError, NotFoundError) as error:
        raise _ConcurrentChangeError(seen, error) from error
    return seen, deletable, verdict


def _refuse(log: Log, horizon: Horizon) -> None:
    if horizon.gate in horizons.MUST_REFUSE:
        raise UnsafeRetentionError(
            f"nothing was cleaned up: {horizon.why}",
            path=log.table,
            version=horizon.checkpoint,
            expected=horizons.GATES[horizon.gate],
            found=horizon.gate,
            hint="repair the log first: t.repair() lists the repairs"
            if horizon.gate in {"missing-commits", "checkpoint-broken"}
            else "run the cleanup with the engine that owns the table",
        )


def _log_cleanup(report: CleanupReport) -> None:
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
