"""`Table`: the facade that notebooks, scripts and the command line use."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from lakelog.dialects.registry import named, registered, without_log_folder
from lakelog.display import table_html
from lakelog.errors import (
    InvalidInputError,
    UnsupportedFeatureError,
)
from lakelog.input_validation import (
    as_names,
    checked_methods,
    require_int,
    require_version,
)
from lakelog.lazy import cached_property
from lakelog.log.cache import CacheStats, StateCache
from lakelog.log.context import Log, Timestamp, iso_text, to_ms
from lakelog.log.properties import read_limits
from lakelog.log.segment import rebuildable
from lakelog.model.durations import Duration, to_duration_ms
from lakelog.redaction import redact
from lakelog.snapshot import Snapshot
from lakelog.storage import open_store
from lakelog.storage.bounded import (
    DEFAULT_LIMITS,
    ReadLimits,
    bounded,
    open_bounded,
    require_by_location,
)
from lakelog.storage.containment import External

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from lakelog.checkpoint.compaction import CompactionReport
    from lakelog.checkpoint.job import CheckpointReport
    from lakelog.checkpoint.replicate import ReplicaReport
    from lakelog.checkpoint.schedule import Scheduler
    from lakelog.checkpoint.verify import VerifyReport
    from lakelog.checkpoint.version_checksum import ChecksumReport
    from lakelog.data.alter import Alter
    from lakelog.data.compact import CompactReport
    from lakelog.data.merge import Merge
    from lakelog.data.restore import RestoreReport
    from lakelog.data.row_commit import SchemaMode, WriteOptions, WriteReport
    from lakelog.health.findings import HealthReport
    from lakelog.log.disk_cache import DiskCache
    from lakelog.log.state import State
    from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
    from lakelog.maintenance.repair import RepairPlan, RepairReport
    from lakelog.maintenance.retention_simulation import Proposed
    from lakelog.maintenance.vacuum import VacuumPlan, VacuumReport
    from lakelog.report.page import ReportFile
    from lakelog.table_transaction import Transaction
    from lakelog.telemetry import Progress
    from lakelog.transaction.log_tail import LogTails
    from lakelog.transaction.operations import CommitArguments, CommitDescription
    from lakelog.transaction.runtime import Runtime


# Methods that write or maintain import their implementation, because most handles only read and
# should open quickly.


@checked_methods("transaction", location_of=attrgetter("path"))
class Table:
    """A Delta or IndexTables table. Open one with `lakelog.open`, which reads only folder names.

    Args:
        log: The log.
        runtime: Clock and randomness of its transactions.
        upkeep: Whether commits are followed by checkpoints and cleanup, as the table's properties
            specify.
        cache: Keeps decoded columns of checkpoints on local disk.
    """

    def __init__(
        self,
        log: Log,
        runtime: Runtime | None = None,
        *,
        upkeep: bool = False,
        cache: DiskCache | None = None,
    ) -> None:
        self._log = log
        self._custom_runtime = runtime
        self._upkeep = upkeep and log.store.refusal is None
        self._bounded = bounded(log.store)
        self._disk_cache = cache
        self._cache = StateCache(log, disk=cache)

    @cached_property
    def scheduler(self) -> Scheduler | None:
        """Writes checkpoints in the background, as the table's properties specify; None if the
        handle was opened with ``upkeep=False`` or the store is read-only. ``scheduler.wait()``
        waits for running work, ``scheduler.last_error`` is the last failure.
        """
        if not self._upkeep:
            return None
        from lakelog.checkpoint.schedule import Scheduler

        log = self._log

        def write(version: int, check: Callable[[], None]) -> object:
            from lakelog.checkpoint.write import write_checkpoint

            return write_checkpoint(log, version, progress=lambda *_: check())

        def clean_up() -> None:
            from lakelog.maintenance.cleanup import Request, plan_cleanup

            plan = plan_cleanup(log, Request())
            if plan.files.height:
                plan.apply()

        return Scheduler(log, write, clean_up=clean_up, monotonic=self._given_runtime.monotonic)

    @cached_property
    def _given_runtime(self) -> Runtime:
        from lakelog.transaction.runtime import Runtime

        return self._custom_runtime or Runtime()

    @cached_property
    def _runtime(self) -> Runtime:
        """The runtime of the transactions, which reports commits to the scheduler."""
        if self.scheduler is None:
            return self._given_runtime
        return replace(self._given_runtime, on_commit=self.scheduler.after_commit)

    @cached_property
    def _log_tails(self) -> LogTails:
        from lakelog.transaction.log_tail import LogTails

        return LogTails(self._log, self._runtime, self._cache.committed, self._open)

    @property
    def log(self) -> Log:
        """The log of the table: its store, dialect and clock."""
        return self._log

    @property
    def disk_cache(self) -> DiskCache | None:
        """The disk cache that the handle was opened with, or None."""
        return self._disk_cache

    @property
    def path(self) -> str:
        """Location as passed to `lakelog.open`."""
        return self._log.table

    @property
    def format(self) -> str:
        """Dialect of the log: ``delta`` or ``indextables``."""
        return self._log.dialect.name

    @property
    def refusal(self) -> str | None:
        """Why the store cannot be written, in one sentence; None if it can.

        A store without atomic put-if-absent is read-only. Unsupported table features do not count
        here; `transaction` raises them.
        """
        return self._log.store.refusal

    def version(self) -> int:
        """The latest version. Lists the log on every call.

        Raises:
            TableNotFoundError: The log holds no commit and no checkpoint.
        """
        return self._log.latest_version()

    def versions(self) -> list[tuple[int, int]]:
        """The versions that can be read, as inclusive ranges in ascending order."""
        return rebuildable(self._log.list_all())

    def snapshot(
        self,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        max_staleness: float | dt.timedelta = 0.0,
    ) -> Snapshot:
        """A version of the table.

        The handle caches state within a memory limit: calling this again lists the log and reads
        only the new commits. Every change that other processes made to the log is detected.

        Args:
            version: The version; None is the latest.
            timestamp: Instead of `version`: selects the latest version committed at or before this
                time. Milliseconds since the Unix epoch, ISO 8601 text, a date (its start), or a
                datetime. Without a time zone it is UTC.
            max_staleness: Return the cached latest version without listing the log, if the last
                listing started at most this many seconds ago. Commits made through this handle are
                always included.

        Raises:
            InvalidInputError: Both `version` and `timestamp` are given, `version` is negative,
                `timestamp` is not a valid time, or `max_staleness` is negative.
            VersionNotFoundError: The version cannot be read; ``expected`` lists those that can.
            UnsupportedFeatureError: The table needs a reader feature that lakelog does not support.
            CorruptionError: The log is damaged, and no older file replaces what is damaged.
        """
        if isinstance(max_staleness, dt.timedelta):
            max_staleness = max_staleness.total_seconds()
        if timestamp is not None:
            if version is not None:
                raise InvalidInputError(
                    "pass version or timestamp, not both",
                    found=f"version={version}, timestamp={timestamp}",
                )
            return self._with_table_limits(self._cache.state_at(to_ms(timestamp), max_staleness))
        require_version(version)
        return self._with_table_limits(self._cache.state(version, max_staleness))

    def _open(self, version: int | None = None) -> Snapshot:
        require_version(version)
        return Snapshot(self._cache.state(version))

    def _with_table_limits(self, state: State) -> Snapshot:
        """The snapshot; from here on its table's own limits of reading hold, if they are known."""
        snapshot = Snapshot(state)
        if self._bounded is not None:
            metadata = snapshot.read_state(lambda s: s.metadata if s.is_cheap else None)
            if metadata is not None:
                self._bounded.apply_table_limits(read_limits(metadata.configuration))
        return snapshot

    def scan(self, where: pl.Expr | str | None = None, *, row_ids: bool = False) -> pl.LazyFrame:
        """The rows of the latest version as a lazy Polars frame; see `Snapshot.scan`.

        The version is that of the call; for another one, use ``table.snapshot(version).scan()``.
        """
        return self.snapshot().scan(where, row_ids=row_ids)

    def to_polars(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pl.DataFrame:
        """The rows of the latest version as a Polars frame; see `Snapshot.to_polars`."""
        return self.snapshot().to_polars(where, columns)

    def to_arrow(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of the latest version as an Arrow table; see `Snapshot.to_arrow`."""
        return self.snapshot().to_arrow(where, columns)

    def to_pandas(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pd.DataFrame:
        """The rows of the latest version as a pandas frame; see `Snapshot.to_pandas`."""
        return self.snapshot().to_pandas(where, columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the latest version as a stream of batches (Arrow PyCapsule interface)."""
        return self.snapshot().__arrow_c_stream__(requested_schema)

    def cache_stats(self) -> CacheStats:
        """Hits, misses and size of this handle's cache."""
        return self._cache.stats()

    def clear_cache(self) -> None:
        """Clear the cache; the next snapshot reads the table again."""
        self._cache.clear()

    def history(self, limit: int | None = None) -> pl.DataFrame:
        """The commits that are still in the log, newest first.

        Args:
            limit: Maximum number of commits; only the newest ones are read.

        Returns:
            One row per commit: ``version`` (Int64), ``timestamp`` (Datetime ms, UTC: the in-commit
            timestamp if the latest metadata declare it valid, else the file's time, forced to
            increase), and fields of its commitInfo:
            ``operation``, ``operationParameters`` and ``operationMetrics`` (maps of String),
            ``userName``, ``userMetadata``, ``engineInfo``, ``isBlindAppend`` (Boolean), ``txnId``,
            and ``extra``, the other fields and ``userMetadata`` as JSON. They are null for a commit
            without commitInfo, and for an IndexTables state without a commit file.

        Raises:
            InvalidInputError: `limit` is negative.
            TableNotFoundError: The log holds no commit and no checkpoint.
            CorruptionError: A commit cannot be decoded.

        Memory: the commitInfo of the commits read.

        Source: Delta protocol, Commit Provenance Information.
        """
        from lakelog.log import history

        return history.history(self._log, limit)

    def actions(self, start: int = 0, end: int | None = None) -> pl.LazyFrame:
        """Every action of the commits `start` to `end`, inclusive.

        Args:
            start: First version. Commits that cleanup deleted are left out with a warning.
            end: Last version; None is the latest.

        Returns:
            A lazy frame in the flattened schema: the columns of ``schemas/actions.json``, such as
            ``version``, ``position`` (in the commit), ``actionType``, ``path``, ``size`` and
            ``operation``, in the order (version, position). The log is listed on collect.

        Raises:
            InvalidInputError: On collect: the range is empty.
            CorruptionError: On collect: a commit is missing in between, or cannot be decoded.

        Memory: the selected columns; about 64 MB of commits are decoded at a time.

        Source: ``schemas/actions.json``. Delta protocol, Actions.
        """
        from lakelog.log import history

        return history.lazy_actions(self._log, start, end)

    def diff(self, a: int, b: int) -> pl.DataFrame:
        """The changes from version `a` to `b`, each with its commit. If `b` is the older one, the
        changes are those that lead back to it.

        Returns:
            One row per change, by kind, version and name: ``kind`` (``file``, ``deletionVector``,
            ``schema``, ``property``, ``protocol``, ``txn``, ``domain`` or ``skip``), ``change``
            (``added``, ``removed``, ``changed`` or ``renamed``), ``name`` (a path, column,
            property, application id or domain), ``before`` and ``after`` (String, may be null;
            of files their size in bytes), and ``version`` (Int64), ``timestamp`` (Datetime ms, UTC)
            and ``operation`` of the last commit that made the change, null if cleanup deleted it.

        Raises:
            InvalidInputError: A version is negative.
            VersionNotFoundError: A version cannot be rebuilt.
            CorruptionError: A version or a commit cannot be decoded.

        Memory: the changes; the paths of both versions if commits between them are missing.
        """
        from lakelog.log import diff

        return diff.diff(self._log, a, b, self._open)

    def blame(self, path: str) -> pl.DataFrame:
        """The history of one data file, commit by commit.

        Args:
            path: The path as `files` returns it, which is percent-decoded; if the log does not have
                that file, as in the log. Relative to the table, or below its location.

        Returns:
            One row per add or remove of the file in the existing commits, oldest first:
            ``version`` (Int64; null for a file that only a checkpoint contains), ``timestamp``
            (Datetime ms, UTC), ``actionType`` (``add`` or ``remove``), ``dvId``,
            ``dvCardinality`` (Int64), ``size`` (Int64, bytes), ``dataChange`` (Boolean),
            ``deletionTimestamp`` (Datetime ms, UTC), ``operation``, ``userName``, ``engineInfo``,
            and ``vacuumAfter`` (Datetime ms, UTC): the time from which a removed file may be
            vacuumed, in its last row (null if the table's retention is malformed).

        Raises:
            InvalidInputError: `path` is empty.
            NotFoundError: The log does not contain the file.
            CorruptionError: A commit or the checkpoint cannot be decoded.

        Memory: the commits decoded at a time, about 64 MB, and the file's own rows.
        """
        from lakelog.log import blame

        return blame.blame(self._log, path, self._open)

    def compatibility(self) -> pl.DataFrame:
        """Which other readers and writers can open the latest version, by the features of its
        protocol.

        Returns:
            One row per client: ``client``, ``reads`` and ``writes`` (Boolean; null: no source says
            whether the client supports a feature of the table), ``release`` (the first one that
            supports all, if the client's documentation names it), ``unsupported_to_read``,
            ``unsupported_to_write`` and ``unknown`` (lists of features), ``source`` (a page, or
            ``tested``: by lakelog's tests, with tables that list a feature without using it).

        Raises:
            CorruptionError, UnavailableError: As `snapshot`. The protocol may have features that
                lakelog does not support.

        Source: Delta protocol, Table Features.
        """
        from lakelog.dialects.clients import compatibility

        try:
            configured = self.snapshot().table_configuration
        except UnsupportedFeatureError:
            from lakelog.log.opening import latest_configuration

            configured = latest_configuration(self._log)
        return compatibility(configured)

    @property
    def alter(self) -> Alter:
        """Changes of schema, properties, constraints and protocol, each in one commit; see
        ``help(table.alter)``.
        """
        from lakelog.data.alter import Alter

        return Alter(self.transaction)

    def compact(
        self,
        *,
        target_bytes: int | None = None,
        where: pl.Expr | str | None = None,
        order_by: str | Sequence[str] = (),
        zorder_by: str | Sequence[str] = (),
        deleted_share: float = 0.05,
        sort_bytes: int = 268_435_456,
        commit_bytes: int = 4_294_967_296,
        progress: Progress | None = None,
        **commit: Unpack[CommitDescription],
    ) -> CompactReport:
        """Merge small files by partition, and drop the rows that deletion vectors delete.

        No row changes: the commits have ``dataChange`` false, so that streams and change feeds skip
        them. Files are taken in order of age, until no candidate of the version at the start is
        left. A second call finds nothing to do.

        Args:
            target_bytes: Target size of a file; None uses the table's ``delta.targetFileSize``,
                else 128 MiB. Files below three quarters of it are small.
            where: Only files that can contain a matching row.
            order_by: Sort rows by this column or these, nulls first, and write all files of a
                partition that are not sorted so yet. Rows are sorted within groups of files of
                `sort_bytes`. A field of a struct is given as ``s.x``.
            zorder_by: Sort rows along a Z-order curve through this column or these, so that
                conditions on any of them skip files.
            deleted_share: Large files are rewritten too if a larger share of their rows is deleted.
            sort_bytes: Bytes of the files whose rows are sorted together, about.
            commit_bytes: Bytes of files that are rewritten for one commit, about.
            progress: Called with ``("compact", files done, files)``.
            commit: As `transaction`, for each commit: ``operation``, ``user_name``,
                ``user_metadata``, ``commit_info``.

        Returns:
            Files and rows, commits, and skipped files. A file that cannot be read is skipped with a
            `LakelogWarning` and stays in the table; for a day, compaction does not try it again.

        Raises:
            InvalidInputError: A column is unknown, is a partition column, has a nested type or is
                inside a list or map; both orders are given; a size is not positive.
            UnsupportedFeatureError: The table has a feature that lakelog cannot write, or its rows
                are not in Parquet files.
            CommitOutcomeUnknown: A commit may have succeeded; its files are kept.
            UnavailableError: The store failed. Earlier commits are kept.

        If other writers remove files of a group, the group is planned again.

        Memory: as `append`; with an order, the rows of one group.

        Source: Delta protocol, Add File and Remove File; Delta Lake, OPTIMIZE.
        """
        from lakelog.data.compact import Compaction, compact
        from lakelog.transaction.operations import CommitDescription, require_arguments

        require_arguments("Table.compact", commit, CommitDescription)
        by, zorder = tuple(as_names(order_by)), tuple(as_names(zorder_by))
        if by and zorder:
            raise InvalidInputError(
                "pass either order_by or zorder_by", found=f"{', '.join(by)}; {', '.join(zorder)}"
            )
        request = Compaction(
            target_bytes=None
            if target_bytes is None
            else require_int("target_bytes", target_bytes, 1),
            where=where,
            deleted_share=deleted_share,
            sort_bytes=require_int("sort_bytes", sort_bytes, 1),
            commit_bytes=require_int("commit_bytes", commit_bytes, 1),
            sort_by=zorder or by,
            is_zorder=bool(zorder),
            commit=commit,
        )
        return compact(self._log, self.transaction, request, progress)

    def restore(
        self,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        plan: bool = False,
        **commit: Unpack[CommitDescription],
    ) -> RestoreReport:
        """Make the table what it was at an earlier version, in one commit.

        Files, schema, partitioning, properties and clustering are restored. The protocol is not
        downgraded, and versions of applications and other metadata domains stay. The versions in
        between remain readable, and `changes` returns the rows that the restore changed.

        Args:
            version: The version to restore.
            timestamp: Instead of `version`, as in `snapshot`.
            plan: Make all checks and return the report, but write nothing.
            commit: As `transaction`: ``operation``, ``user_name``, ``user_metadata``,
                ``commit_info``.

        Returns:
            The version, and the files added again and removed. Nothing is committed if the table
            has that state already. Files outside of the table's folder that ``allow_external`` does
            not include are added again without a check that they exist (``unchecked_files``).

        Raises:
            InvalidInputError: Neither or both of `version` and `timestamp` are given.
            VersionNotFoundError: The version cannot be read.
            NotFoundError: A data file or deletion vector of the version was deleted (``path``;
                ``found`` lists the first ones). Nothing was written.
            InvalidTransactionError: The table is append-only.
            ConflictError: Another writer committed in between; nothing was written.
            UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
            CommitOutcomeUnknown: The commit may have succeeded.
            UnavailableError: The store failed; nothing was written.

        Memory: the live files of both versions.

        Source: Delta Lake, RestoreTableCommand.
        """
        from lakelog.data.restore import restore
        from lakelog.transaction.operations import CommitDescription, require_arguments

        require_arguments("Table.restore", commit, CommitDescription)
        if (version is None) == (timestamp is None):
            raise InvalidInputError(
                "pass either version or timestamp",
                found=f"version={version}, timestamp={timestamp}",
            )
        target = self.snapshot(version, timestamp)  # kept, so that the cache keeps what it read
        at = None if timestamp is None else iso_text(to_ms(timestamp))
        return restore(self._log, self.transaction, target.version, at, commit, plan=plan)

    def changes(
        self,
        start: int | Timestamp,
        end: int | Timestamp | None = None,
        where: pl.Expr | str | None = None,
    ) -> pl.LazyFrame:
        """The rows that the commits `start` to `end` changed: the change data feed.

        Change data files are read where a commit has any (``delta.enableChangeDataFeed``). Other
        changes are derived from added and removed files and from deletion vectors; there, an
        updated row is a ``delete`` and an ``insert``, and so is a row that was copied to another
        file.

        Args:
            start: The first version, inclusive; or a time, as `snapshot` takes it except for
                numbers: the first version committed at or after it.
            end: The last version, inclusive; or a time: the last version committed at or before it.
                None is the latest version.
            where: A Polars expression or SQL text over the columns of the result; only matching
                changes are returned. A filter on the returned frame has the same effect.

        Returns:
            A lazy frame with the columns of the schema of the last version, and ``_change_type``
            (String: ``insert``, ``delete``, ``update_preimage`` or ``update_postimage``),
            ``_commit_version`` (Int64) and ``_commit_timestamp`` (Datetime us, UTC). Column
            selection, filters and slices are pushed down: commits and files that cannot contain a
            matching change are not read. The order is undefined.

        Raises:
            InvalidInputError: `start` is after `end`, or after the last commit; an argument is
                invalid. Two times without a commit in between have no rows.
            VersionNotFoundError: Commits of the range are no longer in the log (on collect), or
                `end` cannot be read, or is after the latest version.
            UnsupportedFeatureError: As `Snapshot.scan`; the table has a column with one of the
                names above; on collect: the schema changed in the range, and earlier files cannot
                be read with the last one (``column``, ``version``).
            NotFoundError: On collect: a file of a change was deleted, as `vacuum` does; ``path``
                and ``version`` name it.
            CorruptionError: On collect: the log or a data file is damaged.

        Memory: as `Snapshot.scan`, and about 64 MB of commits at a time.

        Source: Delta protocol, Add CDC File; Change Data Files.
        """
        from lakelog.data.change_feed import changes

        return changes(self._log, self._open, start, end, where)

    def follow(
        self,
        start: int | Timestamp | None = None,
        *,
        interval_s: float = 1.0,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[tuple[int, pl.LazyFrame]]:
        """Each version from `start` on with its `changes`, and then each new version.

        Args:
            start: The first version or time, as in `changes`; a version may be a future one. None
                is the next version.
            interval_s: Seconds to wait between two listings of the log.
            stop: Called when all existing versions were returned; the iterator ends when it returns
                True. None never ends.

        Returns:
            An iterator of pairs of version and lazy frame, ascending, without a gap. Versions that
            change no row are included. To continue later, start at the last version plus one.

        Raises:
            InvalidInputError: `interval_s` is not positive; or as `changes`.
            VersionNotFoundError: On iteration: cleanup deleted commits before they were read.
            UnavailableError: On iteration: the store failed; call this again from the same version.
        """
        from lakelog.data.change_feed import follow

        if interval_s <= 0:
            raise InvalidInputError(
                "invalid interval_s", expected="interval_s > 0", found=interval_s
            )
        return follow(self._log, self._open, self._given_runtime, start, interval_s, stop)

    def transaction(
        self,
        app_id: str | None = None,
        app_version: int | None = None,
        *,
        isolation: str | None = None,
        operation: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        user_name: str | None = None,
        user_metadata: str | None = None,
        commit_info: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        version: int | None = None,
    ) -> Transaction:
        """Begin a transaction; a context manager, see `lakelog.Transaction`.

        Args:
            app_id: Application id for idempotent writes. If the table already has this
                `app_version` or a later one, nothing is written.
            app_version: The application's version.
            isolation: ``WriteSerializable`` or ``Serializable``; None uses the table's
                ``delta.isolationLevel``, which defaults to the former.
            operation: Operation in commitInfo; None derives it from the actions.
            parameters: Parameters of the operation; values other than strings are written as JSON.
            metrics: Metrics of the operation; None counts files, bytes and rows.
            user_name: ``userName`` in commitInfo.
            user_metadata: ``userMetadata`` in commitInfo: any text.
            commit_info: Further fields of commitInfo, by name; values that JSON can represent.
                Fields that lakelog writes itself cannot be set.
            max_attempts: Maximum number of attempts; each commit of another writer costs one. None
                uses the table's ``spark.indextables.transaction.retry.maxAttempts``, else 1,000.
            version: The version that the transaction reads; later commits are checked for
                conflicts. None is the latest.

        Raises:
            InvalidInputError: `version` does not exist, `max_attempts` is below 1, a value cannot
                be written as JSON, or `commit_info` has a field that lakelog writes.
            VersionNotFoundError: `version` can no longer be read.
            UnsupportedStoreError: The store has no atomic put-if-absent.
            UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
            TableNotFoundError: The log is empty.
        """
        from lakelog.table_transaction import Transaction

        require_version(version)
        return Transaction(
            self._log,
            self._log_tails,
            self._runtime,
            app_id=app_id,
            app_version=app_version,
            isolation=isolation,
            operation=operation,
            parameters=parameters,
            metrics=metrics,
            user_name=user_name,
            user_metadata=user_metadata,
            commit_info=commit_info,
            max_attempts=max_attempts,
            version=version,
        )

    def append(
        self,
        df: Any,
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Append rows, in one commit.

        Args:
            df: A Polars frame or lazy frame (streamed), an Arrow table or reader, a pandas frame
                (without its index), or any object with the Arrow PyCapsule interface. Columns are
                matched by name; missing columns are null or have their default. Only lossless
                casts are applied.
            schema_mode: ``merge`` adds columns that the table lacks, and with Type Widening
                (``delta.enableTypeWidening``) gives columns the wider types of the rows; None
                raises an error.
            target_file_bytes: Target size of a data file in bytes; None uses the table's
                ``delta.targetFileSize``, else 128 MiB.
            compression: Parquet codec; None uses the table's ``delta.parquet.compression.codec``,
                else snappy.
            version: The version that the rows were derived from. The whole table counts as read
                at that version: a later commit that removed a file is a conflict, and so is one
                that added a file, unless it is a blind append and the table is
                ``WriteSerializable``. None is a blind append, which conflicts with neither.
            commit: As `transaction`: ``app_id`` and ``app_version`` for idempotent writes,
                ``isolation``, ``operation``, ``user_name``, ``user_metadata``, ``commit_info``,
                ``max_attempts``.

        Returns:
            The version, rows and files written. Without rows nothing is committed.

        Raises:
            InvalidInputError: The rows do not fit the schema: an unknown column, a cast that would
                lose information, a null in a non-nullable column, a text that is too long; or
                `version` does not exist.
            VersionNotFoundError: `version` can no longer be read.
            UnsupportedFeatureError: The table's rows are not in Parquet files (IndexTables), or it
                needs a writer feature that lakelog does not support, or has a rule whose expression
                lakelog does not evaluate (a CHECK constraint, an invariant, a generated column).
            ConstraintViolationError: A row violates such a rule (``found``); nothing was written.
            ConflictError: Another commit conflicts with this one; the data files are deleted.
                Rows for which identity values were generated are written again with later values,
                if another commit has generated some, unless they are a stream or `version` is
                given.
            CommitOutcomeUnknown: The commit may have succeeded; the data files are kept.
            UnavailableError: The store failed; nothing was committed, and the data files are
                deleted if possible.

        Memory: 256 MiB of rows, and one row group per open file. Rows of partitions beyond the
        limit of open files wait on local disk.

        Source: Delta protocol, Add File and Remove File.
        """
        from lakelog.data.append import append

        options = _options("append", commit, schema_mode, target_file_bytes, compression, version)
        return append(self._log, self._runtime, self.transaction, df, options)

    def overwrite(
        self,
        df: Any,
        where: pl.Expr | str | None = None,
        *,
        schema_mode: SchemaMode | None = None,
        partition_by: str | Sequence[str] | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Replace rows, in one commit.

        Args:
            df: The new rows, as `append` takes them; each must satisfy `where`.
            where: The rows to replace: a Polars expression over the table's columns or SQL text, as
                `Snapshot.files`; None replaces all rows. Files whose rows are all replaced are
                removed; other files are rewritten with their remaining rows, so a predicate over
                partition columns is cheapest.
            schema_mode: ``merge`` as for `append`. ``overwrite`` replaces the columns of the table
                by those of `df`, all of them nullable, in the same commit; not with `where`.
            partition_by: With `schema_mode` ``overwrite``: the new partition column, or several in
                order; None keeps those of the table.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: The version at which the rows were read, such as `Snapshot.version`. A later
                commit that changed or removed a row of `where` is a conflict, so that its change
                is not lost. Rows of later blind appends stay, unless the table is
                ``Serializable``: then they are a conflict too. None checks only the commits made
                during this call.
            commit: As `append`.

        Returns:
            The version, and the rows and files written and removed.

        Raises:
            InvalidInputError: As `append`; or `where` names an unknown column, or a given row does
                not match it; or `schema_mode` is ``overwrite`` with `where`, or `partition_by`
                differs without it.
            UnsupportedFeatureError: As `append`.
            InvalidTransactionError: The table is append-only.
            VersionNotFoundError: As `append`.
            ConflictError: Another commit changed rows of `where` since `version` or during the
                call; the data files are deleted.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        A table with a change data feed gets a change row for every replaced and added row, which
        requires reading the replaced rows. Memory: as `append`.

        Source: Delta protocol, Add File and Remove File; Add CDC File. Delta Lake's
        ``replaceWhere``.
        """
        from lakelog.data.append import overwrite

        options = _options(
            "overwrite",
            commit,
            schema_mode,
            target_file_bytes,
            compression,
            version,
            partition_by,
        )
        return overwrite(self._log, self._runtime, self.transaction, df, where, options)

    def overwrite_partitions(
        self,
        df: Any,
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Replace the partitions that have rows in `df`, in one commit.

        Other partitions are kept; without rows, nothing is replaced. A table without partition
        columns is replaced completely, also by no rows, as by `overwrite` and by Delta on Spark.

        Args:
            df: The new rows, as `append` takes them. Their partitions are those in which they are
                stored: null is a partition, and so are the values of generated columns.
            schema_mode: As `append`.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: The version at which the rows were read. Conflicts are as for `overwrite` with
                the replaced partitions as `where`.
            commit: As `append`.

        Returns:
            The version, and the rows and files written and removed.

        Raises:
            InvalidInputError: As `append`.
            UnsupportedFeatureError: As `append`.
            ConstraintViolationError: As `append`.
            InvalidTransactionError: The table is append-only, and a partition is replaced.
            VersionNotFoundError: As `append`.
            ConflictError: Another commit changed rows of the replaced partitions since `version` or
                during the call; the data files are deleted.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        Readers of a change data feed derive the changes from the removed and added files, as after
        Delta on Spark, so the replaced rows are not read. Memory: as `append`.

        Source: Delta Lake's ``partitionOverwriteMode`` ``dynamic``; Delta protocol, Add File and
        Remove File.

        Example:
            >>> import lakelog, polars as pl
            >>> rows = pl.DataFrame({"day": ["mon", "tue"], "amount": [1, 2]})
            >>> _ = lakelog.write("sales", rows, partition_by="day")
            >>> sales = lakelog.open("sales")
            >>> _ = sales.overwrite_partitions(pl.DataFrame({"day": ["tue"], "amount": [5]}))
            >>> sorted(sales.to_polars().rows())
            [('mon', 1), ('tue', 5)]
        """
        from lakelog.data.append import overwrite_partitions

        options = _options(
            "overwrite_partitions",
            commit,
            schema_mode,
            target_file_bytes,
            compression,
            version,
        )
        return overwrite_partitions(self._log, self._runtime, self.transaction, df, options)

    def delete(
        self,
        where: pl.Expr | str | None,
        *,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Delete rows, in one commit.

        Files that cannot hold a matching row are not opened, and files all of whose rows match by
        their partition values and statistics are removed without being read. Rows of other files
        are marked by deletion vectors if the table has ``delta.enableDeletionVectors``; otherwise
        the remaining rows are copied to new files.

        Args:
            where: The rows to delete: a Polars expression over the table's columns or SQL text, as
                `Snapshot.files`; rows for which it is null stay. None, like ``"true"``, deletes all
                rows.
            target_file_bytes: As `append`, for the files of copied rows.
            compression: As `append`, for the files of copied rows.
            version: The version at which the rows were read; conflicts are as for `overwrite`.
            commit: As `append`.

        Returns:
            The version, and the rows and files deleted, copied and marked. Where no row matches,
            nothing is committed, except for `app_version`.

        Raises:
            InvalidInputError: `where` is not a row-wise condition over the table's columns, or
                `version` does not exist.
            UnsupportedFeatureError: As `append`.
            InvalidTransactionError: The table is append-only.
            VersionNotFoundError: As `append`.
            ConflictError: Another commit changed matching rows, or a file that holds some, since
                `version` or during the call.
            CorruptionError: A data file or a deletion vector is damaged.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        A table with a change data feed gets a change row for every deleted row, unless only whole
        files are removed: then readers derive the changes. Memory: as `append`; the deletion vector
        of one file, 8 bytes per deleted row.

        Source: Delta protocol, Deletion Vectors; Add CDC File. Delta Lake, DELETE.
        """
        from lakelog.data.update import delete

        options = _options("delete", commit, None, target_file_bytes, compression, version)
        return delete(self._log, self._runtime, self.transaction, where, options)

    def update(
        self,
        values: Mapping[str, Any],
        where: pl.Expr | str | None = None,
        *,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Assign new values to columns of rows, in one commit.

        The new versions of rows are written to new files. If the table has
        ``delta.enableDeletionVectors``, the old ones are marked by deletion vectors; otherwise the
        other rows of their files are copied; of a file of 1 MB or more, the column chunks without
        new values are copied as they are encoded. A new value of a partition column moves rows to
        another partition.

        Args:
            values: New values by column, whose name may be in any case: a Polars expression over
                the table's columns, SQL text (``"price * 2"``, ``"'a text'"``), or any other Python
                value as a literal. All see the old values. Only lossless casts are applied. A
                struct has all fields of its column, some of which may be null; ``address.zip``
                assigns one field of a struct and keeps the others, in a struct that was null as
                nulls.
            where: The rows to update, as `delete`; None is all rows.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: As `delete`.
            commit: As `append`.

        Returns:
            The version, and the rows and files updated, copied and marked. Where no row matches,
            nothing is committed, except for `app_version`.

        Raises:
            InvalidInputError: As `delete`; or a column is unknown, an expression is not row-wise or
                not SQL, or a value does not fit its column.
            UnsupportedFeatureError: As `append`.
            InvalidTransactionError: As `delete`.
            VersionNotFoundError: As `append`.
            ConflictError: As `delete`.
            CorruptionError: As `delete`.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        A table with a change data feed gets two change rows for every updated row,
        ``update_preimage`` and ``update_postimage``. Memory: as `delete`.

        Source: Delta protocol, Deletion Vectors; Add CDC File. Delta Lake, UPDATE.

        >>> table.update({"price": "price * 2"}, where="kind = 'book'")  # doctest: +SKIP
        """
        from lakelog.data.update import update

        options = _options("update", commit, None, target_file_bytes, compression, version)
        return update(self._log, self._runtime, self.transaction, values, where, options)

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        memory_limit: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> Merge:
        """Compare the table with other rows, and insert, update and delete rows in one commit.

        Args:
            source: The other rows, as `append` takes them. A column that the table has too is cast
                to its type without loss.
            on: The columns that are compared, or fields of structs (``address.zip``): a name,
                several names, a mapping of table columns to source columns, or SQL text of
                equalities (``"target.id = source.id AND target.day = source.day"``). Names are
                found in any case, also those of clauses and of source columns. Nulls match nothing.
            schema_mode: ``merge`` adds columns of the source that the table lacks, if a clause
                assigns them by their name: `when_matched_update_all` and
                `when_not_matched_insert_all` assign all. `when_matched_update_all` then keeps the
                values of struct fields that the source lacks. None raises an error for both.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: The version at which the rows were read; conflicts are as for `overwrite`.
            memory_limit: Bytes that the merge may take, next to about 200 MB of the libraries. If
                the rows of the source exceed a quarter of them, they are in a temporary file (see
                ``TMPDIR``) that is mapped into memory; their keys are always in memory. None sets
                no limit.
            commit: As `append`.

        Returns:
            A `Merge`, whose methods add clauses; its `execute` runs the merge.

        Memory: the source, and per batch of table rows, their join with it; with a `memory_limit`,
        of the source the keys. The size of the table does not matter.

        Source: Delta Lake, MERGE INTO.

        >>> merge = table.merge(rows, on="id").when_matched_update_all()  # doctest: +SKIP
        >>> merge.when_not_matched_insert_all().execute()  # doctest: +SKIP
        """
        from lakelog.data.merge import Merge

        options = _options("merge", commit, schema_mode, target_file_bytes, compression, version)
        return Merge(self._log, self._runtime, self.transaction, source, on, options, memory_limit)

    def upsert(
        self,
        df: Any,
        on: str | Sequence[str],
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
        memory_limit: int | None = None,
        **commit: Unpack[CommitArguments],
    ) -> WriteReport:
        """Update the rows whose key the table has, and insert the others, in one commit.

        Args:
            df: The rows, as `append` takes them; their keys must be unique. Columns that they lack
                keep their values in updated rows; so do fields of structs with `schema_mode`
                ``merge``, and are an error without it.
            on: The key columns, as `merge`, without a mapping: all columns of the rows are written
                by their names, so a key has the name that it has in the table.
            schema_mode: As `merge`.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: As `merge`.
            memory_limit: As `merge`.
            commit: As `append`.

        Returns:
            As `Merge.execute`.

        Raises:
            InvalidInputError: As `Merge.execute`.
            UnsupportedFeatureError: As `update`.
            InvalidTransactionError: As `update`.
            ConflictError: As `update`.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        Memory: as `merge`.

        Source: Delta Lake, MERGE INTO.
        """
        from lakelog.data.merge import Merge

        options = _options("upsert", commit, schema_mode, target_file_bytes, compression, version)
        merge = Merge(self._log, self._runtime, self.transaction, df, on, options, memory_limit)
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _remove(self, paths: Sequence[str]) -> int | None:
        """Remove missing files from the table; returns the new version."""
        import polars as pl

        with self.transaction(operation="FSCK") as tx:
            tx.remove(tx.snapshot.files().filter(pl.col("path").is_in(list(paths))))
        return tx.version

    def checkpoint(
        self,
        version: int | None = None,
        layout: str = "auto",
        memory_limit: int | None = None,
        verify: bool = True,
        *,
        progress: Progress | None = None,
    ) -> CheckpointReport:
        """Write the checkpoint of a version, verify it against replay, and publish it.

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
        with self.scheduler.turn() if self.scheduler is not None else nullcontext():
            report = write_checkpoint(
                self._log,
                version,
                layout=layout,
                memory_limit=memory_limit,
                verify=verify,
                progress=progress,
            )
        if self.scheduler is not None:
            self.scheduler.checkpointed(report.version)
        return report

    def verify(
        self, version: int | None = None, *, memory_limit: int | None = None
    ) -> VerifyReport:
        """Compare an existing checkpoint with a replay that does not use it.

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
        """Write the version checksum (``.crc``) of a version, unless it exists.
        `Snapshot.version_checksum` compares an existing one.

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
        the commits.

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
        """Find, or delete, data files that no retained version needs.

        Args:
            plan: True returns a plan, whose ``apply()`` deletes the files. False does both.
            retention: How long removed files are kept; None uses the table's
                ``delta.deletedFileRetentionDuration``, default one week. A longer one keeps the
                files that the remaining commits removed since, and reads these commits.
            force: Accept a retention shorter than the table's. Concurrent readers and writers may
                then lose files.
            keep_versions: Versions whose files are kept regardless of age.
            keep_history: Whether the files of every readable version and its change data are kept.
            inventory: Files of the table's folder, instead of a listing: a frame with
                ``path`` (relative), ``size_bytes`` (or ``size``, ``length``) and ``modified_ms``
                (or ``modificationTime``; milliseconds, or a datetime); rows with ``isDir`` true are
                ignored.
            progress: Called with ``(step, done, total)``; steps are ``list`` and ``delete``.

        Raises:
            UnsafeRetentionError: The retention is shorter than the table's, without `force`.
            UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
            UnsupportedStoreError: Files would be deleted, and the store is read-only.
            InvalidInputError: The retention or the inventory is invalid.
            VersionNotFoundError: One of `keep_versions` cannot be read.
            UnavailableError: A folder with files of the table cannot be read.
            CorruptionError: The log is damaged.

        Memory: eight bytes per retained file, and the rows of the plan.
        """
        from lakelog.maintenance.vacuum import Vacuum

        request = Vacuum(
            self._log,
            _ms(retention),
            force,
            tuple(keep_versions),
            keep_history,
        )
        found = request.plan(inventory, progress)
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
        """Find, or delete, log files that no retained version needs.

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
            InvalidInputError: A retention is invalid, or the failure policy unknown.
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

    def undo_cleanup(self, quarantine: str, *, replace: bool = False) -> pl.DataFrame:
        """Move the files of a quarantine back. Existing files are not replaced, and no
        intermediate state shows an incomplete log. Can be continued after an interruption.

        A checkpoint is moved back only if its version can be read afterwards, from the checkpoint
        or from other files.

        Args:
            quarantine: Its id.
            replace: Whether files that a repair wrote in the place of the moved ones are replaced.
                A file that was changed after the repair is kept. The replaced files are moved to
                a quarantine of their own.

        Returns:
            One row per file: ``path``, ``kind``, ``size_bytes`` (Int64) and ``outcome``: ``back``
            (restored), ``kept`` (the file remains in quarantine), ``damaged`` (likewise, because
            its length is not the recorded one), ``there`` (the file was never moved) or
            ``missing`` (it is in neither folder); ``why``, the reason why a file remains; and
            ``quarantine``, the id of the quarantine of the file that was replaced, which undo with
            `replace` restores.

        Raises:
            InvalidInputError: The quarantine does not exist.
            CorruptionError: Its record is missing, or cannot be read.
            UnavailableError: The store failed.
        """
        from lakelog.maintenance.undo import undo

        return undo(self._log, quarantine, replace=replace)

    def quarantines(self) -> pl.DataFrame:
        """The quarantines that contain files, oldest first.

        Returns:
            ``id`` (String, for `undo_cleanup`), ``created`` (Datetime ms, UTC), ``by``
            (``cleanup``, ``repair`` or ``undo``; null if unknown), ``files`` and ``size_bytes``
            (Int64, of the remaining files), ``oldest_version`` and ``newest_version`` (Int64, of
            their commits; null without any).

        Raises:
            UnavailableError: The store failed.
        """
        from lakelog.maintenance.quarantine import quarantines

        return quarantines(self._log)

    def purge_quarantines(self, older_than: Duration) -> pl.DataFrame:
        """Permanently delete the quarantines that are at least this old. One that is being filled
        is deleted too if the age is below the duration of a cleanup.

        Returns:
            The deleted quarantines, as `quarantines`.

        Raises:
            InvalidInputError: The age is negative.
            UnavailableError: A file cannot be deleted; call it again to continue.
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
        """Find, or repair, damage of the log.

        Every complete checkpoint is verified against replay, and pointer and checksums are
        compared. Damaged files are written again where this is provably safe, and the old files
        are moved to quarantine; problems that cannot be repaired safely are reported with the
        reason.

        Args:
            plan: True returns a plan, whose ``apply()`` repairs the log. False does both.
            check_files: Check that every live file exists with the recorded length, and that the
                files of deletion vectors exist and are long enough. Files outside of the table's
                folder, as in a clone, are checked if ``allow_external`` of `lakelog.open` allows
                them, and otherwise counted (``unchecked_files``).
            remove_missing: Remove missing files from the table, in one commit; their rows are lost.
                Deletion vectors and files that were not checked are never removed.
            inventory: Files of the table's folder, as for `vacuum`; files that it lacks are looked
                up.
            strict: Raise an error before anything is changed if a problem cannot be repaired.
            progress: Called with ``(step, done, total)``; the step is ``verify``.

        Raises:
            UnrepairableError: With `strict`, a problem cannot be repaired from the remaining
                files.
            UnsupportedStoreError: A repair is needed, and the store is read-only.
            TableNotFoundError: The log has no commit and no complete checkpoint.
            UnavailableError: The store failed.

        Memory: as `verify`.
        """
        from lakelog.data.file_records import refused_records
        from lakelog.maintenance.repair import Repair

        request = Repair(
            self._log,
            lambda: refused_records(self.snapshot()),
            self._remove,
            check_files,
            remove_missing,
            inventory,
            progress,
        )
        return request.plan() if plan else request.apply(strict=strict)

    def doctor(self, *, files: bool = False) -> HealthReport:
        """What should be done for the table, with the command that does it; changes nothing.

        Finds damage that readers meet (the latest version, the pointer, the latest checksum, and
        what the log records of live files: partition values, deletion vectors),
        checkpoints that are missing or overdue, small files, tombstones, rows that deletion vectors
        hide, log files that cleanup would delete, and partition skew. `repair` verifies every
        checkpoint, which takes longer.

        Args:
            files: Also list the data: find live files that are missing or have another length, and
                files of deletion vectors that are missing or too short; count the files that
                vacuum would delete. Row counts are compared with the log only when a file is read,
                because they are in its footer. Files outside of the table's folder are checked if
                ``allow_external`` of `lakelog.open` allows them, and otherwise counted in a
                warning.

        Returns:
            A report: ``findings``, ``problems`` (errors and warnings), ``to_polars()``, and the
            measurements as ``measures``.

        Raises:
            TableNotFoundError: The log holds no commit and no checkpoint.
            UnavailableError: The store failed.

        Memory: about 40 bytes per live file and tombstone, partition values, and deletion vectors
        in the log; with `files`, also the paths of the live files and of the listing.
        """
        from lakelog.health.survey import examine

        return examine(self._log, self.snapshot, files=files)[0]

    def report(self, path: str | os.PathLike[str], *, files: bool = False) -> ReportFile:
        """Write an HTML page about the latest version: what should be done, and figures of sizes,
        commits, churn, partitions, retention, deletions and schema.

        The page needs no network and no other file. Each figure has its numbers as a table.

        Args:
            path: The file on local disk; an existing one is replaced when the page is complete.
            files: As `doctor`.

        Raises:
            MissingDependencyError: Altair is not installed (``pip install 'lakelog[plot]'``).
            InvalidInputError: `path` is not a valid path.
            TableNotFoundError: The log holds no commit and no checkpoint.
            CorruptionError: The latest version cannot be read; `doctor` reports why.
            UnavailableError: The store failed, or the file cannot be written.

        Memory: about 100 bytes per live file and per file action of the commits, and their paths.
        """
        from lakelog.report.page import write_report

        return write_report(self._log, self.snapshot(), path, files=files)

    def replicate(
        self,
        location: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> ReplicaReport:
        """Copy a checkpoint to another location and verify it before publication. The copy has
        the files that the state of the version needs; relative paths in it refer to data files
        below the replica's folder.

        Args:
            location: Folder of the replica, on local disk or as any fsspec URL.
            version: Version of the checkpoint; None is the newest one.
            storage_options: Passed to the fsspec filesystem of `location`.
            progress: Called with ``("copy", files done, files)``.

        Raises:
            NotFoundError: No complete checkpoint of that version exists.
            CheckpointCorruptionError: The original is damaged.
            CheckpointValidationError: The original or the copy differs from replay.
            InvalidInputError: The location contains another table, or a copy of this one with a
                commit of its own; nothing was written.
            UnsupportedStoreError: The location's store has no atomic put-if-absent.
            CheckpointWriteError: The copy could not be written; earlier files are unchanged.
        """
        from lakelog.checkpoint.replicate import replicate

        store = open_store(without_log_folder(os.fspath(location)), storage_options)
        dialect, clock = self._log.dialect, self._log.clock
        other = Log(store, dialect, clock, storage_options=storage_options)
        return replicate(self._log, other, version, progress)

    def clone(
        self,
        location: str | os.PathLike[str],
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        upkeep: bool = True,
        **commit: Unpack[CommitDescription],
    ) -> Table:
        """Make a shallow clone: a new table with the files of this one, none of which is copied.

        The log of the clone has the absolute paths of the data files and deletion vectors. Schema,
        partitioning, properties, protocol and metadata domains are the same; the table id is
        another. Changes of the clone do not change this table, and `vacuum` and `cleanup` of the
        clone delete files below its own folder only. `vacuum` of this table does not know of the
        clone: files that it deletes are missing in the clone.

        Args:
            location: Folder of the clone, on local disk or as any fsspec URL; another store than
                that of this table is possible.
            version: The version that is cloned; None is the latest.
            timestamp: Instead of `version`, as in `snapshot`.
            storage_options: Passed to the fsspec filesystem of `location`.
            upkeep: As `lakelog.open`, for the clone.
            commit: As `transaction`: ``operation``, ``user_name``, ``user_metadata``,
                ``commit_info``.

        Returns:
            The clone, opened so that it reads files below the folder of this table. `lakelog.open`
            needs ``allow_external`` with that folder.

        Raises:
            TableExistsError: A table exists at the location.
            InvalidInputError: Both `version` and `timestamp` are given; or this table was not
                opened by its location.
            VersionNotFoundError: The version cannot be read.
            UnsupportedFeatureError: The table's rows are not in Parquet files (IndexTables), or it
                needs a writer feature that lakelog does not support.
            UnsupportedStoreError: The store of the clone has no atomic put-if-absent.
            CommitOutcomeUnknown: The clone may have been created.
            UnavailableError: A store failed; nothing was written.

        Memory: the live files.

        Source: Delta Lake, SHALLOW CLONE.
        """
        from lakelog.data.clone import clone
        from lakelog.transaction.operations import CommitDescription, require_arguments

        require_arguments("Table.clone", commit, CommitDescription)
        store = open_bounded(
            without_log_folder(os.fspath(location)), storage_options, DEFAULT_LIMITS
        )
        external = self._log.external.and_below(self._log.location)
        log = Log(store, self._log.dialect, external=external, storage_options=storage_options)
        snapshot = self.snapshot(version, timestamp)
        clone(snapshot, self._log, log, self._given_runtime, registered(), commit)
        return Table(log, upkeep=upkeep)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and options of the handle, without its cache.

        Raises:
            InvalidInputError: The store was not opened by its location.
        """
        log, store = self._log, require_by_location(self._log.store)
        given = (log.storage_options, store.requested, log.external, self._upkeep, self._disk_cache)
        return _reopened, (log.location, self.format, *given)

    def __repr__(self) -> str:
        only = ", read only" if self.refusal is not None else ""
        return f"Table({redact(self.path)!r}, format={self.format!r}{only})"

    def _repr_html_(self) -> str:
        facts = [("path", redact(self.path)), ("format", self.format)]
        if self.refusal is not None:
            facts.append(("read only", self.refusal))
        return table_html("Table", facts)


def _reopened(
    location: str,
    format: str,
    options: Any,
    limits: ReadLimits,
    external: External,
    upkeep: bool,
    cache: DiskCache | None,
) -> Table:
    """The unpickled table; reads nothing."""
    dialect = named(format)
    store = open_bounded(location, options, limits)
    log = Log(store, dialect, external=external, storage_options=options)
    return Table(log, upkeep=upkeep, cache=cache)


def _options(
    verb: str,
    commit: CommitArguments,
    schema_mode: SchemaMode | None,
    target_file_bytes: int | None,
    compression: str | None,
    version: int | None,
    partition_by: str | Sequence[str] | None = None,
) -> WriteOptions:
    """The options of a verb that writes rows."""
    from lakelog.data.row_commit import WriteOptions
    from lakelog.transaction.operations import CommitArguments, require_arguments

    require_arguments(f"Table.{verb}", commit, CommitArguments)
    partition_by = as_names(partition_by)
    return WriteOptions(schema_mode, target_file_bytes, compression, version, commit, partition_by)


def _ms(duration: Duration | None) -> int | None:
    return None if duration is None else to_duration_ms(duration)
