"""`Table`: the facade that notebooks, scripts and the command line use."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakelog.checkpoint.schedule import Scheduler
from lakelog.dialects.base import Dialect
from lakelog.dialects.registry import named, registered
from lakelog.errors import ArgumentTypeError, InvalidInputError, TableNotFoundError
from lakelog.input_validation import checked, checked_methods, require_version
from lakelog.log import blame, diff, history
from lakelog.log.cache import CacheStats, SnapshotCache
from lakelog.log.context import Log
from lakelog.log.display import table_html
from lakelog.log.properties import read_limits
from lakelog.log.segment import rebuildable
from lakelog.log.snapshot import Snapshot
from lakelog.log.timestamps import Timestamp, to_ms
from lakelog.maintenance.automatic_cleanup import HourlyCleanup
from lakelog.redaction import redact
from lakelog.storage import LogStore, open_store
from lakelog.storage.bounded import (
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUT_S,
    BoundedStore,
    ReadLimits,
    bounded,
    on_local_disk,
    open_bounded,
    require_by_location,
)
from lakelog.storage.containment import Allowed, External
from lakelog.transaction.create import create_table
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import SchemaLike
from lakelog.transaction.transaction import Transaction
from lakelog.upkeep import Upkeep

if TYPE_CHECKING:
    import polars as pl

    from lakelog.checkpoint.replicate import ReplicaReport
    from lakelog.data.append import SchemaMode, WriteReport
    from lakelog.telemetry import Progress


@checked_methods("transaction")
class Table(Upkeep):
    """A Delta or IndexTables table. Open one with `lakelog.open`, which reads only folder names.

    Args:
        log: The log.
        runtime: Clock and randomness of its transactions.
        scheduler: Writes checkpoints in the background; None disables this.
    """

    def __init__(
        self, log: Log, runtime: Runtime | None = None, scheduler: Scheduler | None = None
    ) -> None:
        super().__init__(log, scheduler)
        self._runtime = runtime or Runtime()
        self._bounded = bounded(log.store)
        self._cache = SnapshotCache(log)
        self._heads = LogTails(log, self._runtime, self._cache.committed, self._cache.snapshot)

    @property
    def log(self) -> Log:
        """The log of the table: its store, dialect and clock."""
        return self._log

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

        The handle caches state within a memory limit (see `lakelog.log.cache`): calling this again
        lists the log and reads only the new commits. Every change that other processes made to the
        log is detected.

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
            return self._with_table_limits(self._cache.snapshot_at(to_ms(timestamp), max_staleness))
        require_version(version)
        return self._with_table_limits(self._cache.snapshot(version, max_staleness))

    def _with_table_limits(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot; from here on its table's own limits of reading hold, if they are known."""
        if self._bounded is not None:
            metadata = snapshot.read_state(lambda s: s.metadata if s.is_cheap else None)
            if metadata is not None:
                self._bounded.apply_table_limits(read_limits(metadata.configuration))
        return snapshot

    def cache_stats(self) -> CacheStats:
        """Hits, misses and size of this handle's cache."""
        return self._cache.stats()

    def clear_cache(self) -> None:
        """Clear the cache; the next snapshot reads the table again."""
        self._cache.clear()

    def history(self, limit: int | None = None) -> pl.DataFrame:
        """The commits that are still in the log, newest first; see `lakelog.log.history`."""
        return history.history(self._log, limit)

    def actions(self, start: int = 0, end: int | None = None) -> pl.LazyFrame:
        """Every action of the commits `start` to `end`, inclusive; see `lakelog.log.history`."""
        return history.lazy_actions(self._log, start, end)

    def diff(self, a: int, b: int) -> pl.DataFrame:
        """The changes from version `a` to `b`, each with its commit; see `lakelog.log.diff`."""
        return diff.diff(self._log, a, b, self._cache.snapshot)

    def blame(self, path: str) -> pl.DataFrame:
        """The history of one file, one row per commit; see `lakelog.log.blame`."""
        return blame.blame(self._log, path, self._cache.snapshot)

    def transaction(
        self,
        app_id: str | None = None,
        app_version: int | None = None,
        *,
        isolation: str | None = None,
        operation: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
        max_attempts: int | None = None,
        version: int | None = None,
    ) -> Transaction:
        """Begin a transaction; a context manager, see
        `lakelog.transaction.transaction.Transaction`.

        Args:
            app_id: Application id for idempotent writes. If the table already has this
                `app_version` or a later one, nothing is written.
            app_version: The application's version.
            isolation: ``WriteSerializable`` or ``Serializable``; None uses the table's
                ``delta.isolationLevel``, which defaults to the former.
            operation: Operation in commitInfo; None derives it from the actions.
            parameters: Parameters of the operation; values other than strings are written as JSON.
            metrics: Metrics of the operation; None counts files, bytes and rows.
            user_metadata: Text stored in commitInfo.
            max_attempts: Maximum number of attempts; each commit of another writer costs one. None
                uses the table's ``spark.indextables.transaction.retry.maxAttempts``, else 1,000.
            version: The version that the transaction reads; later commits are checked for
                conflicts. None is the latest.

        Raises:
            InvalidInputError: `version` does not exist, `max_attempts` is below 1, or a value
                cannot be written as JSON.
            VersionNotFoundError: `version` can no longer be read.
            UnsupportedStoreError: The store has no atomic put-if-absent.
            UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
            TableNotFoundError: The log is empty.
        """
        require_version(version)
        return Transaction(
            self._log,
            self._heads,
            self._runtime,
            app_id=app_id,
            app_version=app_version,
            isolation=isolation,
            operation=operation,
            parameters=parameters,
            metrics=metrics,
            user_metadata=user_metadata,
            max_attempts=max_attempts,
            version=version,
        )

    def append(
        self,
        df: Any,
        *,
        schema_mode: SchemaMode | None = None,
        app_id: str | None = None,
        app_version: int | None = None,
        user_metadata: str | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
    ) -> WriteReport:
        """Append rows, in one commit.

        Args:
            df: A Polars frame or lazy frame (streamed), an Arrow table or reader, a pandas frame
                (without its index), or any object with the Arrow PyCapsule interface. Columns are
                matched by name; missing columns are null or have their default. Only lossless
                casts are applied.
            schema_mode: ``merge`` adds columns that the table lacks; None raises an error.
            app_id: Application id for idempotent writes; needs `app_version`.
            app_version: The application's version. If the table already has it or a later one,
                nothing is written.
            user_metadata: Text stored in commitInfo.
            target_file_bytes: Target size of a data file in bytes; None uses the table's
                ``delta.targetFileSize``, else 128 MiB.
            compression: Parquet codec; None uses the table's ``delta.parquet.compression.codec``,
                else snappy.
            version: The version that the rows were derived from. The whole table counts as read
                at that version: a later commit that removed a file is a conflict, and so is one
                that added a file, unless it is a blind append and the table is
                ``WriteSerializable``. None is a blind append, which conflicts with neither.

        Returns:
            The version, rows and files written. Without rows nothing is committed.

        Raises:
            InvalidInputError: The rows do not fit the schema: an unknown column, a cast that would
                lose information, a null in a non-nullable column, a text that is too long; or
                `version` does not exist.
            VersionNotFoundError: `version` can no longer be read.
            UnsupportedFeatureError: The table's rows are not in Parquet files (IndexTables), or it
                needs a writer feature that lakelog does not support (CHECK constraints, invariants,
                generated and identity columns).
            ConflictError: Another commit conflicts with this one; the data files are deleted.
            CommitOutcomeUnknown: The commit may have succeeded; the data files are kept.
            UnavailableError: The store failed; nothing was committed, and the data files are
                deleted if possible.

        Memory: 256 MiB of rows, and one row group per open file. Rows of partitions beyond the
        limit of open files wait on local disk.

        Source: Delta protocol, Add File and Remove File.
        """
        from lakelog.data.append import WriteOptions, append

        options = WriteOptions(
            schema_mode, app_id, app_version, user_metadata, target_file_bytes, compression, version
        )
        return append(self._log, self._runtime, self.transaction, df, options)

    def overwrite(
        self,
        df: Any,
        where: pl.Expr | None = None,
        *,
        schema_mode: SchemaMode | None = None,
        app_id: str | None = None,
        app_version: int | None = None,
        user_metadata: str | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        version: int | None = None,
    ) -> WriteReport:
        """Replace rows, in one commit.

        Args:
            df: The new rows, as `append` takes them; each must satisfy `where`.
            where: The rows to replace: a Polars expression over the table's columns; None replaces
                all rows. Files whose rows are all replaced are removed; other files are rewritten
                with their remaining rows, so a predicate over partition columns is cheapest.
            schema_mode: As `append`.
            app_id: As `append`.
            app_version: As `append`.
            user_metadata: As `append`.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: The version at which the rows were read, such as `Snapshot.version`. A later
                commit that changed or removed a row of `where` is a conflict, so that its change
                is not lost. Rows of later blind appends stay, unless the table is
                ``Serializable``: then they are a conflict too. None checks only the commits made
                during this call.

        Returns:
            The version, and the rows and files written and removed.

        Raises:
            InvalidInputError: As `append`; or `where` names an unknown column, or a given row does
                not match it.
            UnsupportedFeatureError: As `append`; or rows of a table with row tracking would be
                copied.
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
        from lakelog.data.append import WriteOptions, overwrite

        options = WriteOptions(
            schema_mode, app_id, app_version, user_metadata, target_file_bytes, compression, version
        )
        return overwrite(self._log, self._runtime, self.transaction, df, where, options)

    def _remove(self, paths: Sequence[str]) -> int | None:
        """Remove missing files from the table; returns the new version."""
        import polars as pl

        with self.transaction(operation="FSCK") as tx:
            tx.remove(tx.snapshot.files().filter(pl.col("path").is_in(list(paths))))
        return tx.version

    def replicate(
        self,
        location: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> ReplicaReport:
        """Copy a checkpoint to another location and verify it before publication; see
        `lakelog.checkpoint.replicate`.

        Args:
            location: Folder of the replica, on local disk or as any fsspec URL.
            version: Version of the checkpoint; None is the newest one.
            storage_options: Passed to the fsspec filesystem of `location`.
            progress: Called with ``("copy", files done, files)``.

        Raises:
            NotFoundError: No complete checkpoint of that version exists.
            CheckpointCorruptionError: The original is damaged.
            CheckpointValidationError: The original or the copy differs from replay.
            InvalidInputError: The location contains another table.
            UnsupportedStoreError: The location's store has no atomic put-if-absent.
            CheckpointWriteError: The copy could not be written; earlier files are unchanged.
        """
        from lakelog.checkpoint.replicate import replicate

        store = open_store(_without_log_folder(os.fspath(location)), storage_options)
        other = Log(store, self._log.dialect, self._log.clock)
        return replicate(self._log, other, version, progress)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and options of the handle, without its cache.

        Raises:
            InvalidInputError: The store was not opened by its location.
        """
        log, store = self._log, require_by_location(self._log.store)
        root = os.path.abspath(self.path) if on_local_disk(store) else self.path
        given = (log.storage_options, store.asked, log.external, self._scheduler is not None)
        return _reopened, (root, self.format, *given)

    def __repr__(self) -> str:
        only = ", read only" if self.refusal is not None else ""
        return f"Table({redact(self.path)!r}, format={self.format!r}{only})"

    def _repr_html_(self) -> str:
        facts = [("path", redact(self.path)), ("format", self.format)]
        if self.refusal is not None:
            facts.append(("read only", self.refusal))
        return table_html("Table", facts)


@checked
def open(
    path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    store: LogStore | None = None,
    parallelism: int | None = None,
    read_timeout: float | None = DEFAULT_TIMEOUT_S,
    upkeep: bool = True,
    allow_external: Allowed = False,
) -> Table:
    """Open a table. The dialect is detected from the log folder.

    Args:
        path: The table's folder, on local disk or as any fsspec URL. The log folder itself
            (``_delta_log``, ``_transaction_log``) is accepted too.
        storage_options: Passed to the fsspec filesystem.
        store: The table's folder as a `lakelog.storage.LogStore`, in place of `path` and
            `storage_options`. Log, data files and deletion vectors are read and written through it.
            Such a table cannot be pickled. `lakelog.testing.StoreContract` tests a store.
        parallelism: Number of log files that are read concurrently; None uses the table's
            ``spark.indextables.checkpoint.parallelism``, else the default of the store.
        read_timeout: Seconds without progress after which a listing or read raises
            `ReadTimeoutError`, which names the missing files. Each file, range or page of a listing
            that arrives is progress; a large file gets one more second per MiB. None disables the
            limit. The table's ``spark.indextables.checkpoint.read.timeoutSeconds`` overrides the
            default once it has been read. On local disk the default applies only to network and
            FUSE mounts.
        upkeep: Whether commits through this handle are followed by checkpoints and log cleanup in
            the background, as the table's properties specify (``delta.checkpointInterval``, default
            10; ``delta.enableExpiredLogCleanup``, default true).
        allow_external: Data files, change data files and deletion vectors outside of the table's
            folder that may be opened, such as those of a shallow clone. False: none; opening one
            raises `ExternalPathError`. A list of folders (URLs or paths): the files below them.
            True: all, including files of this machine. `storage_options` are used only for the
            table's own bucket, container or host. A path that contains ``..`` is always refused.
            Listing external files needs no permission.

    Raises:
        TableNotFoundError: No log folder exists at the location.
        InvalidInputError: The location is an empty string, or has logs of two dialects; or both
            `path` and `store` are given, or neither.
        UnavailableError: The store failed.
    """
    limits = ReadLimits(parallelism, read_timeout)
    external = External.of(allow_external)
    files = _opened(path, storage_options, store, limits)
    log = Log(files, detect_dialect(files), external=external, storage_options=storage_options)
    return _handle(log, Runtime(), upkeep=upkeep)


@checked
def create(
    path: str | os.PathLike[str] | None,
    schema: SchemaLike,
    partition_by: Sequence[str] = (),
    format: str = "delta",
    configuration: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    store: LogStore | None = None,
    name: str | None = None,
    description: str | None = None,
    upkeep: bool = True,
) -> Table:
    """Create an empty table and open it.

    Args:
        path: The table's folder, on local disk or as any fsspec URL; created if it does not exist.
            None with `store`.
        schema: The columns: a Polars schema (or a dict of names to Polars dtypes), a pyarrow
            schema, StructType JSON as text or parsed, or `lakelog.model.contract.Struct`.
        partition_by: Partition columns, in order.
        format: ``delta`` or ``indextables``.
        configuration: Table properties. The protocol is the lowest that these and the schema
            require.
        storage_options: Passed to the fsspec filesystem.
        store: As `open`.
        name: Name of the table.
        description: Description of the table.
        upkeep: As `open`.

    Raises:
        TableExistsError: A table exists, possibly created concurrently.
        InvalidTransactionError: The metadata is invalid; subclasses give the reason.
        InvalidInputError: The format or the schema is unknown; or both `path` and `store` are
            given, or neither.
        UnsupportedFeatureError: The table would need a writer feature that lakelog lacks.
        UnsupportedStoreError: The store has no atomic put-if-absent.
        CommitOutcomeUnknown: The table may have been created, and cannot be read back.
        UnavailableError: The store failed; nothing was written.
    """
    dialect = named(format)
    files = _opened(path, storage_options, store, DEFAULT_LIMITS)
    log = Log(files, dialect, storage_options=storage_options)
    runtime = Runtime()
    create_table(
        log,
        runtime,
        registered(),
        schema=schema,
        partition_by=partition_by,
        configuration=configuration,
        name=name,
        description=description,
    )
    return _handle(log, runtime, upkeep=upkeep)


def _opened(
    path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    store: object,
    limits: ReadLimits,
) -> BoundedStore:
    """The store of a location, or the store that the caller passed."""
    if store is None:
        if path is None:
            raise InvalidInputError("pass path or store")
        return open_bounded(_without_log_folder(os.fspath(path)), storage_options, limits)
    if path is not None or storage_options is not None:
        raise InvalidInputError("pass either path and storage_options, or store")
    if isinstance(store, type) or not isinstance(store, LogStore):
        raise ArgumentTypeError(
            f"store must be a lakelog.storage.LogStore, got {type(store).__name__}",
            expected="an object with the methods of lakelog.storage.LogStore",
            found=type(store).__name__,
        )
    return BoundedStore(store, limits)


def _reopened(
    location: str, format: str, options: Any, limits: ReadLimits, external: External, upkeep: bool
) -> Table:
    """The unpickled table; reads nothing."""
    dialect = named(format)
    store = open_bounded(location, options, limits)
    log = Log(store, dialect, external=external, storage_options=options)
    return _handle(log, Runtime(), upkeep=upkeep)


def _handle(log: Log, runtime: Runtime, *, upkeep: bool) -> Table:
    if not upkeep or log.store.refusal is not None:
        return Table(log, runtime)

    def write(version: int, check: Callable[[], None]) -> object:
        from lakelog.checkpoint.write import write_checkpoint

        return write_checkpoint(log, version, progress=lambda *_: check())

    scheduler = Scheduler(log, write, cleanup=HourlyCleanup(log, runtime.monotonic))
    return Table(log, replace(runtime, on_commit=scheduler.after_commit), scheduler)


def detect_dialect(store: LogStore) -> Dialect:
    """The dialect whose log folder exists.

    Raises:
        TableNotFoundError: No log folder exists.
        InvalidInputError: Log folders of several dialects exist.
    """
    dialects = registered()
    there = store.has_folders([dialect.log_folder for dialect in dialects])
    found = [dialect for dialect, is_there in zip(dialects, there, strict=True) if is_there]
    if not found:
        raise TableNotFoundError(
            "log folder not found",
            path=store.root,
            expected=" or ".join(d.log_folder for d in dialects),
            hint="pass the table's own folder; lakelog.create creates a table",
        )
    if len(found) > 1:
        raise InvalidInputError(
            "the location contains logs of two dialects",
            path=store.root,
            found=", ".join(d.log_folder for d in found),
            hint="move one of them to another location",
        )
    return found[0]


def _without_log_folder(location: str) -> str:
    trimmed = location.rstrip("/")
    for dialect in registered():
        if trimmed == dialect.log_folder:
            return "."
        if trimmed.endswith("/" + dialect.log_folder):
            return trimmed[: -len(dialect.log_folder) - 1]
    return location
