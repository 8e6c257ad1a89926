"""`Upkeep`: the maintenance methods of `lakelog.table.Table`.

They write and delete checkpoints, checksums, log compaction files and files that are no longer
needed. None of them changes the state of a version; only `repair` may commit, if requested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, overload

from lakelog.input_validation import checked_methods, require_version
from lakelog.log.context import Log
from lakelog.model.durations import Duration, to_duration_ms

if TYPE_CHECKING:
    import polars as pl

    from lakelog.checkpoint.compaction import CompactionReport
    from lakelog.checkpoint.report import CheckpointReport
    from lakelog.checkpoint.schedule import Scheduler
    from lakelog.checkpoint.verify import VerifyReport
    from lakelog.checkpoint.version_checksum import ChecksumReport
    from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
    from lakelog.maintenance.repair import RepairPlan, RepairReport
    from lakelog.maintenance.retention_simulation import Proposed
    from lakelog.maintenance.vacuum import VacuumPlan, VacuumReport
    from lakelog.telemetry import Progress

# Each method imports its implementation, because most handles only read and should open quickly.


@checked_methods()
class Upkeep(ABC):
    """Base class of `lakelog.table.Table` with the maintenance methods.

    Args:
        log: The log.
        scheduler: Writes checkpoints in the background; None disables this.
    """

    def __init__(self, log: Log, scheduler: Scheduler | None) -> None:
        self._log = log
        self._scheduler = scheduler

    @property
    def scheduler(self) -> Scheduler | None:
        """Writes checkpoints in the background, as the table's properties specify; None if the
        handle was opened with ``upkeep=False`` or the store is read-only. ``scheduler.wait()``
        waits for running work, ``scheduler.last_error`` is the last failure.
        """
        return self._scheduler

    @abstractmethod
    def _remove(self, paths: Sequence[str]) -> int | None:
        """Remove missing files from the table; returns the new version."""

    def checkpoint(
        self,
        version: int | None = None,
        layout: str = "auto",
        memory_limit: int | None = None,
        verify: bool = True,
        *,
        progress: Progress | None = None,
    ) -> CheckpointReport:
        """Write the checkpoint of a version, verify it against replay, and publish it; see
        `lakelog.checkpoint.write`.

        Readers see it only after it was read back and compared. ``_last_checkpoint`` is updated
        last, and never to an older version.

        Args:
            version: The version; None is the latest.
            layout: ``auto`` chooses by protocol, properties and size. For Delta ``classic``,
                ``multipart``, ``v2``, ``v2-json`` or ``v2-parquet``; for IndexTables ``json``,
                ``json-multipart`` or ``flattened``.
            memory_limit: Maximum resident memory of the process in bytes; data that does not fit is
                written to a temporary file. None is unlimited.
            verify: False skips reading it back.
            progress: Called with ``(step, done, total)``; steps are ``write`` and ``verify``, in
                actions, and ``publish``, in files.

        Raises:
            InvalidInputError: The table does not allow the layout (``hint`` gives the requirement),
                `memory_limit` is below its minimum, or `version` is invalid.
            InvalidPropertyError: A property of checkpoints is unknown or malformed.
            TableNotFoundError: The log is empty.
            VersionNotFoundError: The version cannot be read; ``expected`` lists those that can.
            UnsupportedFeatureError: The table needs a feature that lakelog does not support.
            UnsupportedStoreError: The store has no atomic put-if-absent.
            CorruptionError: The log is damaged, and no older file replaces what is damaged.
            CheckpointValidationError: The written checkpoint differs from replay. Nothing was
                published.
            CheckpointWriteError: The store failed; the previous checkpoint is unchanged.

        Memory: without a limit, the actions of the commits above the previous checkpoint.
        """
        from lakelog.checkpoint.write import write_checkpoint

        require_version(version)
        with self._scheduler.turn() if self._scheduler is not None else nullcontext():
            report = write_checkpoint(
                self._log,
                version,
                layout=layout,
                memory_limit=memory_limit,
                verify=verify,
                progress=progress,
            )
        if self._scheduler is not None:
            self._scheduler.checkpointed(report.version)
        return report

    def verify(
        self, version: int | None = None, *, memory_limit: int | None = None
    ) -> VerifyReport:
        """Compare an existing checkpoint with a replay that does not use it; see
        `lakelog.checkpoint.verify`.

        Args:
            version: Version of the checkpoint; None is the newest.
            memory_limit: Maximum resident memory of the process in bytes; None is unlimited.

        Returns:
            A report with the verdict: ``proved``; ``unprovable`` if the commits for the replay no
            longer exist; ``wrong``, with the files that differ; or ``broken``.
            ``raise_for_verdict()`` raises an error for the last two.

        Raises:
            NotFoundError: No complete checkpoint, or none of that version, exists.
            InvalidInputError: `version` is invalid, or the memory limit is below its minimum.
            UnsupportedFeatureError: The table needs a feature that lakelog does not support.
            UnavailableError: The store failed.
        """
        from lakelog.checkpoint.verify import verify_checkpoint

        require_version(version)
        return verify_checkpoint(self._log, version, memory_limit=memory_limit)

    def write_checksum(
        self, version: int | None = None, *, memory_limit: int | None = None
    ) -> ChecksumReport:
        """Write the version checksum (``.crc``) of a version, unless it exists; see
        `lakelog.checkpoint.version_checksum`. `Snapshot.version_checksum` compares an existing
        one.

        Args:
            version: The version; None is the latest.
            memory_limit: Maximum resident memory of the process in bytes; None is unlimited.

        Returns:
            The content of the checksum, and whether it was written; for an existing one, its
            differences from replay.

        Raises:
            UnsupportedError: The format has no version checksums.
            InvalidInputError: `version` is invalid, or the memory limit is below its minimum.
            VersionNotFoundError: The version cannot be read.
            UnsupportedFeatureError: The table needs a feature that lakelog does not support.
            CorruptionError: The log is damaged.
            UnsupportedStoreError: The store has no atomic put-if-absent.
            UnavailableError: The store failed.
        """
        from lakelog.checkpoint.version_checksum import write_checksum

        require_version(version)
        return write_checksum(self._log, version, memory_limit=memory_limit)

    def compact_log(self, a: int, b: int, *, memory_limit: int | None = None) -> CompactionReport:
        """Write the log compaction file of the commits `a` to `b`, which readers may use instead of
        the commits; see `lakelog.checkpoint.compaction`.

        Args:
            a: First version, inclusive.
            b: Last version, inclusive; greater than `a`.
            memory_limit: Maximum resident memory of the process in bytes; None is unlimited.

        Raises:
            InvalidInputError: The range is invalid, or its commits have no actions to compact.
            UnsupportedError: The format has no log compaction files.
            VersionNotFoundError: A commit of the range no longer exists.
            UnsupportedFeatureError: The table needs a feature that lakelog does not support.
            CorruptionError: The log is damaged.
            CheckpointValidationError: The written file differs from the commits; nothing was
                published.
            UnsupportedStoreError: The store has no atomic put-if-absent.
            UnavailableError: The store failed; nothing was published.

        Memory: without a limit, the file actions of the range.
        """
        from lakelog.checkpoint.compaction import compact_log

        return compact_log(self._log, a, b, memory_limit=memory_limit)

    @overload
    def vacuum(
        self,
        plan: Literal[True] = ...,
        *,
        retention: Duration | None = ...,
        force: bool = ...,
        keep_versions: Collection[int] = ...,
        keep_history: bool = ...,
        inventory: Any = ...,
        progress: Progress | None = ...,
    ) -> VacuumPlan: ...

    @overload
    def vacuum(
        self,
        plan: Literal[False],
        *,
        retention: Duration | None = ...,
        force: bool = ...,
        keep_versions: Collection[int] = ...,
        keep_history: bool = ...,
        inventory: Any = ...,
        progress: Progress | None = ...,
    ) -> VacuumReport: ...

    @overload
    def vacuum(
        self,
        plan: bool,
        *,
        retention: Duration | None = ...,
        force: bool = ...,
        keep_versions: Collection[int] = ...,
        keep_history: bool = ...,
        inventory: Any = ...,
        progress: Progress | None = ...,
    ) -> VacuumPlan | VacuumReport: ...

    def vacuum(
        self,
        plan: bool = True,
        *,
        retention: Duration | None = None,
        force: bool = False,
        keep_versions: Collection[int] = (),
        keep_history: bool = False,
        inventory: Any = None,
        progress: Progress | None = None,
    ) -> VacuumPlan | VacuumReport:
        """Find, or delete, data files that no retained version needs; see
        `lakelog.maintenance.vacuum`.

        Args:
            plan: True returns a plan, whose ``apply()`` deletes the files. False does both.
            retention: How long removed files are kept; None uses the table's
                ``delta.deletedFileRetentionDuration``, default one week.
            force: Accept a retention shorter than the table's. Concurrent readers and writers may
                then lose files.
            keep_versions: Versions whose files are kept regardless of age.
            keep_history: Whether the files of every readable version are kept.
            inventory: Files of the table's folder, instead of a listing: a frame with
                ``path`` (relative), ``size_bytes`` (or ``size``, ``length``) and ``modified_ms``
                (or ``modificationTime``; milliseconds, or a datetime); rows with ``isDir`` true are
                ignored.
            progress: Called with ``(step, done, total)``; steps are ``list`` and ``delete``.

        Raises:
            UnsafeRetentionError: The retention is shorter than the table's, without `force`.
            UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
            UnsupportedStoreError: Files would be deleted, and the store is read-only.
            InvalidInputError: The inventory is invalid.
            CorruptionError: The log is damaged.

        Memory: eight bytes per retained file, and the rows of the plan.
        """
        from lakelog.maintenance.vacuum import Vacuum

        asked = Vacuum(
            self._log,
            _ms(retention),
            force,
            tuple(keep_versions),
            keep_history,
        )
        found = asked.plan(inventory, progress)
        return found if plan else found.apply(progress)

    @overload
    def cleanup(
        self,
        plan: Literal[True] = ...,
        quarantine: bool = ...,
        *,
        retention: Duration | None = ...,
        checkpoint_retention: Duration | None = ...,
        force: bool = ...,
        keep: bool = ...,
        failure_policy: str | None = ...,
        progress: Progress | None = ...,
    ) -> CleanupPlan: ...

    @overload
    def cleanup(
        self,
        plan: Literal[False],
        quarantine: bool = ...,
        *,
        retention: Duration | None = ...,
        checkpoint_retention: Duration | None = ...,
        force: bool = ...,
        keep: bool = ...,
        failure_policy: str | None = ...,
        progress: Progress | None = ...,
    ) -> CleanupReport: ...

    @overload
    def cleanup(
        self,
        plan: bool,
        quarantine: bool = ...,
        *,
        retention: Duration | None = ...,
        checkpoint_retention: Duration | None = ...,
        force: bool = ...,
        keep: bool = ...,
        failure_policy: str | None = ...,
        progress: Progress | None = ...,
    ) -> CleanupPlan | CleanupReport: ...

    def cleanup(
        self,
        plan: bool = True,
        quarantine: bool = False,
        *,
        retention: Duration | None = None,
        checkpoint_retention: Duration | None = None,
        force: bool = False,
        keep: bool = False,
        failure_policy: str | None = None,
        progress: Progress | None = None,
    ) -> CleanupPlan | CleanupReport:
        """Find, or delete, log files that no retained version needs; see
        `lakelog.maintenance.cleanup`.

        Args:
            plan: True returns a plan, whose ``apply()`` verifies and deletes. False does both.
            quarantine: Move the files instead of deleting them: ``undo()`` of the report, or
                `undo_cleanup`, restores them, and `purge_quarantines` deletes them permanently.
            retention: How long replaced versions can be read: a timedelta, milliseconds, or a text
                such as ``30 days``; None uses the table's ``delta.logRetentionDuration``, default
                30 days.
            checkpoint_retention: How long replaced checkpoints are kept, likewise; None uses the
                table's property.
            force: Accept retentions shorter than the table's, and ignore
                ``delta.enableExpiredLogCleanup`` false. All other checks still apply.
            keep: Also return a row for each retained file.
            failure_policy: ``continue`` continues after a file that cannot be deleted, where
                the deletion order allows, ``fail`` raises; None uses the table's
                ``spark.indextables.cleanup.failurePolicy``, default ``continue``.
            progress: Called with ``(step, done, total)``; steps are ``prove``, ``reopen``,
                ``delete``.

        Raises:
            UnsafeRetentionError: A retention is shorter than the table's, without `force`; or files
                would be deleted, and the log or its cut-off checkpoint is damaged.
            UnsupportedFeatureError: The table needs a feature that lakelog does not support.
            UnsupportedStoreError: Files would be deleted, and the store is read-only.
            UnavailableError: The store failed.
            OutcomeUnknownError: The failure policy is ``fail``, and it is unknown whether a file
                was moved to quarantine.
            CorruptionError: The latest version cannot be read.

        Memory: the listing of the log folder, about 300 bytes per file; applying verifies a
        checkpoint.

        Source: Delta protocol, Metadata Cleanup.
        """
        from lakelog.maintenance.cleanup import Request, plan_cleanup

        request = Request(
            quarantine,
            _ms(retention),
            _ms(checkpoint_retention),
            force,
            keep,
            failure_policy,
        )
        found = plan_cleanup(self._log, request)
        return found if plan else found.apply(progress)

    def undo_cleanup(self, quarantine: str) -> pl.DataFrame:
        """Restore the files of a quarantine; see `lakelog.maintenance.quarantine.undo`."""
        from lakelog.maintenance.quarantine import undo

        return undo(self._log, quarantine)

    def quarantines(self) -> pl.DataFrame:
        """The quarantines that contain files; see `lakelog.maintenance.quarantine.quarantines`."""
        from lakelog.maintenance.quarantine import quarantines

        return quarantines(self._log)

    def purge_quarantines(self, older_than: Duration) -> pl.DataFrame:
        """Permanently delete quarantines older than this; returns the deleted quarantines. See
        `lakelog.maintenance.quarantine.purge`.
        """
        from lakelog.maintenance.quarantine import purge

        return purge(self._log, to_duration_ms(older_than))

    def simulate_retention(
        self,
        log_retention: Proposed = None,
        deleted_file_retention: Proposed = None,
        checkpoint_retention: Proposed = None,
        *,
        consumers: Mapping[str, int] | None = None,
    ) -> pl.DataFrame:
        """The effect of other retention settings; nothing is deleted.

        Args:
            log_retention: How long replaced versions can be read: a timedelta, milliseconds, or a
                text such as ``30 days``; or a list of these, one per proposal. None uses the
                table's property.
            deleted_file_retention: How long removed data files are kept; likewise.
            checkpoint_retention: How long replaced checkpoints are kept; likewise.
            consumers: Stream readers by name, each with the version that it reads next.

        Returns:
            One row for the current settings (``current``), then one per proposal: the retentions;
            ``gate``, the reason why cleanup would keep everything; ``oldest_version`` and
            ``oldest_time``, the oldest readable version; ``versions_lost``, ``log_files`` and
            ``log_bytes``, compared with the current log; ``data_files`` and ``data_bytes``, the
            removed files that vacuum could delete, where the log records them;
            ``oldest_whole_version``, the oldest version that needs none of these; ``stream_from``
            and ``change_feed_from``, the lowest versions from which appends and the change feed
            could be read without a gap (null without a feed); ``broken_consumers``, by name.
            When printed, only the differences are shown.

        Raises:
            InvalidInputError: A duration is invalid, or lists have different lengths.
            CorruptionError: The latest version cannot be read.

        Memory: the listing of the log folder, the tombstones, and the paths of the live files.
        """
        from lakelog.maintenance.retention_simulation import Proposal, proposals, simulate

        tried = proposals(log_retention, deleted_file_retention, checkpoint_retention)
        return simulate(self._log, tried if tried != [Proposal()] else [], consumers)

    @overload
    def repair(
        self,
        plan: Literal[True] = ...,
        *,
        check_files: bool = ...,
        remove_missing: bool = ...,
        inventory: Any = ...,
        strict: bool = ...,
        progress: Progress | None = ...,
    ) -> RepairPlan: ...

    @overload
    def repair(
        self,
        plan: Literal[False],
        *,
        check_files: bool = ...,
        remove_missing: bool = ...,
        inventory: Any = ...,
        strict: bool = ...,
        progress: Progress | None = ...,
    ) -> RepairReport: ...

    @overload
    def repair(
        self,
        plan: bool,
        *,
        check_files: bool = ...,
        remove_missing: bool = ...,
        inventory: Any = ...,
        strict: bool = ...,
        progress: Progress | None = ...,
    ) -> RepairPlan | RepairReport: ...

    def repair(
        self,
        plan: bool = True,
        *,
        check_files: bool = False,
        remove_missing: bool = False,
        inventory: Any = None,
        strict: bool = False,
        progress: Progress | None = None,
    ) -> RepairPlan | RepairReport:
        """Find, or repair, damage of the log; see `lakelog.maintenance`.

        Every complete checkpoint is verified against replay, and pointer and checksums are
        compared. Damaged files are written again where this is provably safe, and the old files
        are moved to quarantine; problems that cannot be repaired safely are reported with the
        reason.

        Args:
            plan: True returns a plan, whose ``apply()`` repairs the log. False does both.
            check_files: Check that every live file exists.
            remove_missing: Remove missing files from the table, in one commit; their rows are lost.
            inventory: Files of the table's folder, as for `vacuum`.
            strict: Raise an error before anything is changed if a problem cannot be repaired.
            progress: Called with ``(step, done, total)``; the step is ``verify``.

        Raises:
            UnsoundRepairError: With `strict`, a problem cannot be repaired from the remaining
                files.
            UnsupportedStoreError: A repair is needed, and the store is read-only.
            TableNotFoundError: The log has no commit and no complete checkpoint.
            UnavailableError: The store failed.

        Memory: as `verify`.
        """
        from lakelog.maintenance.repair import Repair

        asked = Repair(self._log, self._remove, check_files, remove_missing, inventory, progress)
        return asked.plan() if plan else asked.apply(strict=strict)


def _ms(duration: Duration | None) -> int | None:
    return None if duration is None else to_duration_ms(duration)
