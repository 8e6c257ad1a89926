"""`Upkeep`: what a table's log needs to stay fast, small and sound.

The half of `lakelog.table.Table` that writes and removes checkpoints, checksums, log compaction
files and what nobody needs any more. Nothing here changes what a version holds; only `repair` may
commit, and only where it is asked to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, overload

from lakelog.input_validation import checked_methods, require_version
from lakelog.log.context import Log
from lakelog.log.properties import Duration, to_duration_ms

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

# Each of the methods imports what it does its work with: most handles only read, and opening one
# is to be quick.


@checked_methods()
class Upkeep(ABC):
    """Looks after a log; `lakelog.table.Table` is one.

    Args:
        log: The log.
        scheduler: Writes checkpoints in the background; None where nobody does.
    """

    def __init__(self, log: Log, scheduler: Scheduler | None) -> None:
        self._log = log
        self._scheduler = scheduler

    @property
    def scheduler(self) -> Scheduler | None:
        """Writes checkpoints in the background, as the table's properties ask; None where the
        handle was opened without, or nothing can be written. ``scheduler.wait()`` waits for what
        runs, ``scheduler.last_error`` tells what went wrong.
        """
        return self._scheduler

    @abstractmethod
    def _remove(self, paths: Sequence[str]) -> int | None:
        """Remove files that are not there; gives the version that does."""

    def checkpoint(
        self,
        version: int | None = None,
        layout: str = "auto",
        memory_limit: int | None = None,
        verify: bool = True,
        *,
        progress: Progress | None = None,
    ) -> CheckpointReport:
        """Write the checkpoint of a version, prove it against replay, and publish it; see
        `lakelog.checkpoint.write`.

        Nobody sees it before it was read back and compared, and ``_last_checkpoint`` moves last,
        and only forward.

        Args:
            version: The version; None is the latest.
            layout: ``auto`` chooses by protocol, properties and size. For Delta ``classic``,
                ``multipart``, ``v2``, ``v2-json`` or ``v2-parquet``; for IndexTables ``json``,
                ``json-multipart`` or ``flattened``.
            memory_limit: Bytes that the process may take at its peak (resident set): what has no
                room goes to a temporary file. None for no bound.
            verify: False leaves out the reading back.
            progress: Is told ``(step, done, total)``; steps are ``write`` and ``verify``, in
                actions, and ``publish``, in files.

        Raises:
            InvalidInputError: The layout is not allowed here (``hint`` says what would allow it),
                or `memory_limit` is below its floor, or `version` is no version.
            InvalidPropertyError: A property of checkpoints is unknown or malformed.
            TableNotFoundError: The log is empty.
            VersionNotFoundError: The version cannot be rebuilt; ``expected`` gives what can.
            UnsupportedFeatureError: The table needs what lakelog does not honour, by name.
            UnsupportedStoreError: Nothing can be written safely at this place.
            CorruptionError: The log is damaged, and nothing sound stands behind the damage.
            CheckpointValidationError: What was written is not what replay gives. Nothing was
                published.
            CheckpointWriteError: The store failed; the checkpoint before it is as it was.

        Memory: without a limit, the actions of the commits above the checkpoint below.
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
        """Prove a checkpoint that exists, by a replay that does without it; see
        `lakelog.checkpoint.verify`.

        Args:
            version: Version of the checkpoint; None takes the newest.
            memory_limit: Bytes that the process may take at its peak; None for no bound.

        Returns:
            A report with the verdict: ``proved``, ``unprovable`` where the commits that it could be
            replayed from are gone, ``wrong`` with the files that differ, or ``broken``. It raises
            for the last two with ``raise_for_verdict()``.

        Raises:
            NotFoundError: There is no complete checkpoint, or none of that version.
            InvalidInputError: `version` is no version, or the memory limit is below its floor.
            UnsupportedFeatureError: The table needs what lakelog does not honour.
            UnavailableError: The store failed.
        """
        from lakelog.checkpoint.verify import verify_checkpoint

        require_version(version)
        return verify_checkpoint(self._log, version, memory_limit=memory_limit)

    def write_checksum(
        self, version: int | None = None, *, memory_limit: int | None = None
    ) -> ChecksumReport:
        """Write the version checksum (``.crc``) of a version, unless it has one; see
        `lakelog.checkpoint.version_checksum`. `Snapshot.version_checksum` compares one that is
        there.

        Args:
            version: The version; None is the latest.
            memory_limit: Bytes that the process may take at its peak; None for no bound.

        Returns:
            What the checksum says, and whether it was written; for one that was there, where it
            disagrees with replay.

        Raises:
            UnsupportedError: The format has no version checksums.
            InvalidInputError: `version` is no version, or the memory limit is below its floor.
            VersionNotFoundError: The version cannot be rebuilt.
            UnsupportedFeatureError: The table needs what lakelog does not know.
            CorruptionError: The log is damaged.
            UnsupportedStoreError: Nothing can be written safely at this place.
            UnavailableError: The store failed.
        """
        from lakelog.checkpoint.version_checksum import write_checksum

        require_version(version)
        return write_checksum(self._log, version, memory_limit=memory_limit)

    def compact_log(self, a: int, b: int, *, memory_limit: int | None = None) -> CompactionReport:
        """Write the log compaction file of the commits `a` to `b`, which readers may take in their
        place; see `lakelog.checkpoint.compaction`.

        Args:
            a: First version, inclusive.
            b: Last version, inclusive; greater than `a`.
            memory_limit: Bytes that the process may take at its peak; None for no bound.

        Raises:
            InvalidInputError: The range is no range, or its commits hold no state.
            UnsupportedError: The format has no log compaction files.
            VersionNotFoundError: A commit of the range is gone.
            UnsupportedFeatureError: The table needs what lakelog does not know.
            CorruptionError: The log is damaged.
            CheckpointValidationError: What was written is not what the commits say; nothing was
                published.
            UnsupportedStoreError: Nothing can be written safely at this place.
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
            plan: Only say what may go; ``apply()`` of the plan deletes it. False does both.
            retention: How long files stay after they were removed; None is what the table says
                (``delta.deletedFileRetentionDuration``, a week if it does not).
            force: Accept a retention shorter than the table's. Readers and writers at work may
                then lose files.
            keep_versions: Versions whose files stay, however old.
            keep_history: Whether the files of every version that can be rebuilt stay.
            inventory: What stands in the table's folder, in place of a listing: a frame with
                ``path`` (relative), ``size_bytes`` (or ``size``, ``length``) and ``modified_ms``
                (or ``modificationTime``; milliseconds, or a datetime); ``isDir`` is respected.
            progress: Is told ``(step, done, total)``; steps are ``list`` and ``delete``.

        Raises:
            UnsafeRetentionError: The retention is shorter than the table's, without `force`.
            UnsupportedFeatureError: The table asks of its writers what lakelog cannot do.
            UnsupportedStoreError: Files are to be deleted, and the store is read only.
            InvalidInputError: The inventory cannot be read as one.
            CorruptionError: The log is damaged.

        Memory: eight bytes for each file that is needed, and the rows of the plan.
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
        """Find, or delete, files of the log that no promised version needs; see
        `lakelog.maintenance.cleanup`.

        Args:
            plan: Only say what may go; ``apply()`` of the plan proves it and deletes. False does
                both.
            quarantine: Move the files aside in place of deleting them: ``undo()`` of the report,
                or `undo_cleanup`, moves them back, and `purge_quarantines` deletes them for good.
            retention: How long versions can be read after they were replaced: a timedelta, whole
                milliseconds, or a text such as ``30 days``;
                None is what the table says (``delta.logRetentionDuration``, 30 days if it does
                not).
            checkpoint_retention: How long replaced checkpoints stay, likewise; None is what
                the table says.
            force: Accept retentions shorter than the table's, and clean up though its properties
                say not to (``delta.enableExpiredLogCleanup``). No other gate is forced.
            keep: Give a row for each file that stays, too.
            failure_policy: ``continue`` goes on past a file that cannot be deleted, as far as the
                order allows, ``fail`` raises; None is what the table says
                (``spark.indextables.cleanup.failurePolicy``), else ``continue``.
            progress: Is told ``(step, done, total)``; steps are ``prove``, ``reopen``, ``delete``.

        Raises:
            UnsafeRetentionError: A retention is shorter than the table's, without `force`; or the
                log or its cut-off checkpoint is not sound, when files are to be deleted.
            UnsupportedFeatureError: The table needs what lakelog does not honour.
            UnsupportedStoreError: Files are to be deleted, and the store is read only.
            UnavailableError: The store failed.
            OutcomeUnknownError: The failure policy is ``fail``, and nobody knows whether a file
                was moved to quarantine.
            CorruptionError: The latest version cannot be read.

        Memory: the listing of the log folder, some 300 bytes a file; applying proves a checkpoint.

        Source: Delta protocol, Metadata Cleanup; specification 001, 3.3.
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
        """Move the files of a quarantine back; see `lakelog.maintenance.quarantine.undo`."""
        from lakelog.maintenance.quarantine import undo

        return undo(self._log, quarantine)

    def quarantines(self) -> pl.DataFrame:
        """The quarantines that hold files; see `lakelog.maintenance.quarantine.quarantines`."""
        from lakelog.maintenance.quarantine import quarantines

        return quarantines(self._log)

    def purge_quarantines(self, older_than: Duration) -> pl.DataFrame:
        """Delete for good what was moved to quarantine so long ago; gives the quarantines that
        went. See `lakelog.maintenance.quarantine.purge`.
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
        """What other retentions would leave and free; nothing is deleted.

        Args:
            log_retention: How long versions can be read after they were replaced: a timedelta,
                milliseconds, or a text such as ``30 days``; or several of these, one a proposal.
                None is what the table says.
            deleted_file_retention: How long removed data files stay; likewise.
            checkpoint_retention: How long replaced checkpoints stay; likewise.
            consumers: Readers of the table's changes, by name: the version that each reads next.

        Returns:
            One row a proposal, after one for the table as it is (``current``): the retentions;
            ``gate``, why cleanup would keep everything; ``oldest_version`` (and ``oldest_time``),
            the first of those that could all be rebuilt; ``versions_lost``, ``log_files`` and
            ``log_bytes``, against now; ``data_files`` and ``data_bytes`` of removed files that
            vacuum could delete, as far as the log remembers them; ``oldest_whole_version``, from
            which on no version needs a file so deleted; ``stream_from`` and ``change_feed_from``,
            the least versions from which the table's additions, and its change feed, could be read
            without a gap (null where the table has no feed); ``broken_consumers``, by name.
            Printed, it tells only what differs, in words.

        Raises:
            InvalidInputError: A duration is none, or there are several of two lengths.
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
        """Find, or mend, what is wrong with the log; see `lakelog.maintenance`.

        Every complete checkpoint is proved against replay, the pointer and the checksums compared.
        What is broken is written anew where that is provably sound, its old files moved to
        quarantine; what is not sound to mend is told with the reason.

        Args:
            plan: Only say what is wrong; ``apply()`` of the plan mends it. False does both.
            check_files: Look for live files that are not in the table's folder.
            remove_missing: Remove these from the table, in one commit; their rows are lost.
            inventory: What stands in the table's folder, as for `vacuum`.
            strict: Raise, before anything is changed, where something cannot be mended.
            progress: Is told ``(step, done, total)``; the step is ``verify``.

        Raises:
            UnsoundRepairError: With `strict`, something cannot be made again from what is left.
            UnsupportedStoreError: Something is to be mended, and the store is read only.
            TableNotFoundError: The log holds no commit and no complete checkpoint.
            UnavailableError: The store failed.

        Memory: as `verify`.
        """
        from lakelog.maintenance.repair import Repair

        asked = Repair(self._log, self._remove, check_files, remove_missing, inventory, progress)
        return asked.plan() if plan else asked.apply(strict=strict)


def _ms(duration: Duration | None) -> int | None:
    return None if duration is None else to_duration_ms(duration)
