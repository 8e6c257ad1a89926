"""`Table`: the facade that notebooks, scripts and the command line use."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakelog.checkpoint.schedule import Scheduler
from lakelog.dialects import delta, indextables
from lakelog.dialects.base import Dialect
from lakelog.errors import InvalidInputError, TableNotFoundError
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
    DEFAULT_TIMEOUT_S,
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

DIALECTS: tuple[Dialect, ...] = (delta.DIALECT, indextables.DIALECT)


@checked_methods("transaction")
class Table(Upkeep):
    """A table, known by its log. Making one reads nothing but folder names.

    Make one with `lakelog.open`.

    Args:
        log: The log.
        runtime: Waiting and randomness of its transactions.
        scheduler: Told of by `runtime`, writes checkpoints in the background; None where nobody
            does.
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
        """The log under the table: its store, dialect and clock. `Table` takes another one, such
        as the same log over a store that counts or fails.
        """
        return self._log

    @property
    def path(self) -> str:
        """Location, as it was given."""
        return self._log.table

    @property
    def format(self) -> str:
        """Dialect of the log: ``delta`` or ``indextables``."""
        return self._log.dialect.name

    @property
    def refusal(self) -> str | None:
        """Why nothing can be committed at this place, in one sentence; None where it can.

        A store that cannot create a file only if it is absent has such a reason. What the table's
        own features forbid, `transaction` says.
        """
        return self._log.store.refusal

    def version(self) -> int:
        """The latest version; asks the store each time.

        Raises:
            TableNotFoundError: The log holds no commit and no checkpoint.
        """
        return self._log.latest_version()

    def versions(self) -> list[tuple[int, int]]:
        """The versions that can be rebuilt, as inclusive ranges, ascending."""
        return rebuildable(self._log.list_all())

    def snapshot(
        self,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        max_staleness: float | dt.timedelta = 0.0,
    ) -> Snapshot:
        """A version of the table.

        The handle remembers what it has read, within a bound (see `lakelog.log.cache`), so that
        asking again costs a look at the log, and the commits that are new. What others did to the
        log in between is noticed, whatever it was.

        Args:
            version: The version; None is the latest.
            timestamp: In place of `version`: the latest one committed at or before this time, as
                milliseconds since the Unix epoch, ISO 8601 text, a date (its first moment), or a
                datetime. Without a zone it is UTC.
            max_staleness: Do without a look at the log if one began no longer than this ago, in
                seconds. Commits of this handle are never missed.

        Raises:
            InvalidInputError: Both are given, or `version` is negative, or `timestamp` is no time,
                or `max_staleness` is negative.
            VersionNotFoundError: The version cannot be rebuilt; ``expected`` gives what can.
            UnsupportedFeatureError: The table needs what lakelog does not honour, by name.
            CorruptionError: The log is damaged, and nothing sound stands behind the damage.

        Source: specification 001, 3.4 and 3.5.2 (``maxStalenessSeconds``).
        """
        if isinstance(max_staleness, dt.timedelta):
            max_staleness = max_staleness.total_seconds()
        if timestamp is not None:
            if version is not None:
                raise InvalidInputError(
                    "give a version or a timestamp, not both",
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
        """How often what this handle remembers has helped, and how much it holds."""
        return self._cache.stats()

    def clear_cache(self) -> None:
        """Let go of what this handle remembers; the next snapshot opens the table anew."""
        self._cache.clear()

    def history(self, limit: int | None = None) -> pl.DataFrame:
        """The commits that are still on disk, newest first; see `lakelog.log.history`."""
        return history.history(self._log, limit)

    def actions(self, start: int = 0, end: int | None = None) -> pl.LazyFrame:
        """Every action of the commits `start` to `end`, inclusive; see `lakelog.log.history`."""
        return history.lazy_actions(self._log, start, end)

    def diff(self, a: int, b: int) -> pl.DataFrame:
        """What changed from version `a` to `b`, and which commit did it; see
        `lakelog.log.diff`.
        """
        return diff.diff(self._log, a, b, self._cache.snapshot)

    def blame(self, path: str) -> pl.DataFrame:
        """A file's life, commit by commit; see `lakelog.log.blame`."""
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
            app_id: An application that writes each of its versions once. A version that the table
                has already, or a later one, is recognised, and nothing is written.
            app_version: The application's version.
            isolation: ``WriteSerializable`` or ``Serializable``; None is what the table says
                (``delta.isolationLevel``), else the former.
            operation: Name for the commit's own account; None infers it from the actions.
            parameters: Parameters of the operation; values that are no text are written as JSON.
            metrics: Metrics of the operation; None counts files, bytes and rows.
            user_metadata: A text to keep with the commit.
            max_attempts: How many versions may be lost to other writers; None is what the table
                says (``spark.indextables.transaction.retry.maxAttempts``), else 1,000.
            version: The version that it rests on, such as the one that another process read; what
                was committed since is checked for conflicts. None is the latest.

        Raises:
            InvalidInputError: There is no such `version`; `max_attempts` is below 1; or what the
                commit is to say is no text, or has none in JSON.
            VersionNotFoundError: It cannot be rebuilt any more.
            UnsupportedStoreError: Nothing can be committed safely on this store.
            UnsupportedFeatureError: The table asks of its writers what lakelog cannot do.
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
        """Add rows, in one commit.

        Args:
            df: A Polars frame or lazy frame (run as a stream), an Arrow table or reader, a pandas
                frame (without its index), or anything that Arrow's PyCapsule interface hands over.
                Columns go by name; those that are missing are null, or their default. Types are
                changed only where no value changes.
            schema_mode: ``merge`` adds columns that the rows have and the table lacks; None
                refuses them.
            app_id: An application that writes each of its versions once.
            app_version: The application's version; one that the table has already, or a later
                one, is recognised, and nothing is written.
            user_metadata: A text to keep with the commit.
            target_file_bytes: Length of a file that is aimed at; None is what the table says
                (``delta.targetFileSize``), else 128 MiB.
            compression: Codec; None is what the table says (``delta.parquet.compression.codec``),
                else snappy.
            version: The version that the rows were derived from. The whole table counts as read
                at that version: a later commit that removed a file is a conflict, and so is one
                that added a file, unless it is a blind append and the table is
                ``WriteSerializable``. None is a blind append, which conflicts with neither.

        Returns:
            What was written. No rows commit nothing.

        Raises:
            InvalidInputError: The rows are not the table's: an unknown column, a type that does
                not become the table's without loss, a null where none may be, a text too long; or
                the table never had `version`.
            VersionNotFoundError: `version` cannot be rebuilt any more.
            UnsupportedFeatureError: The rows stand in other files than Parquet (IndexTables), or
                the table asks of whoever writes rows what lakelog cannot do (CHECK constraints,
                invariants, generated and identity columns).
            ConflictError: Another commit changed what the rows rest on; the files are deleted.
            CommitOutcomeUnknown: It may have been written; the files are kept.
            UnavailableError: The store failed; nothing was written, and the files are deleted as
                far as they can be.

        Memory: 256 MiB of rows, and a row group for each file that is written at the time. More
        partitions than files may be open wait on local disk.

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
        """Put rows in the place of others, in one commit.

        Args:
            df: The new rows, as `append` takes them; each must satisfy `where`.
            where: Which rows are replaced, as a Polars expression over the table's columns: those
                for which it is true. None is all of them. Files all of whose rows are replaced go
                whole; of the others the remaining rows are copied into new files, so a predicate
                over partition columns is the cheap one.
            schema_mode: As `append`.
            app_id: As `append`.
            app_version: As `append`.
            user_metadata: As `append`.
            target_file_bytes: As `append`.
            compression: As `append`.
            version: The version that the rows were read at, such as `Snapshot.version`. A later
                commit that changed or removed a row of `where` is a conflict, so that its change
                is not lost. Rows that a blind append added since stay, unless the table is
                ``Serializable``: then they are a conflict too. None checks only the commits made
                during this call: it replaces what other writers wrote before.

        Returns:
            What was written and removed.

        Raises:
            InvalidInputError: As `append`; or `where` does not fit the table, or is not true of a
                row that was given.
            UnsupportedFeatureError: As `append`; or rows would be copied that the table tracks.
            InvalidTransactionError: The table is append-only.
            VersionNotFoundError: As `append`.
            ConflictError: Another commit changed rows that `where` speaks of, since `version` or
                during the call; the files are deleted.
            CommitOutcomeUnknown: As `append`.
            UnavailableError: As `append`.

        A table that keeps a change data feed is told of every row that is replaced and added,
        which costs reading the former. Memory: as `append`.

        Source: Delta protocol, Add File and Remove File; Add CDC File. Delta Lake's
        ``replaceWhere``.
        """
        from lakelog.data.append import WriteOptions, overwrite

        options = WriteOptions(
            schema_mode, app_id, app_version, user_metadata, target_file_bytes, compression, version
        )
        return overwrite(self._log, self._runtime, self.transaction, df, where, options)

    def _remove(self, paths: Sequence[str]) -> int | None:
        """Remove files that are not there; gives the version that does."""
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
        """Copy a checkpoint to another location, proved before it is seen there; see
        `lakelog.checkpoint.replicate`.

        Args:
            location: Folder of the replica, on local disk or as any fsspec URL.
            version: Version of the checkpoint; None is the newest one.
            storage_options: Passed to the fsspec filesystem of `location`.
            progress: Is told ``("copy", files done, files)``.

        Raises:
            NotFoundError: There is no complete checkpoint of that version.
            CheckpointCorruptionError: The original is broken.
            CheckpointValidationError: The original, or a copy that was made, is wrong.
            InvalidInputError: The location holds another table.
            UnsupportedStoreError: The location cannot be written safely.
            CheckpointWriteError: It could not be written; what was there before is as it was.
        """
        from lakelog.checkpoint.replicate import replicate

        store = open_store(_without_log_folder(os.fspath(location)), storage_options)
        other = Log(store, self._log.dialect, self._log.clock)
        return replicate(self._log, other, version, progress)

    def __reduce__(self) -> tuple[Any, ...]:
        """How another process opens the table; what this handle has read stays behind.

        Raises:
            InvalidInputError: The table is over a store that was not opened by its location.
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
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    parallelism: int | None = None,
    read_timeout: float | None = DEFAULT_TIMEOUT_S,
    upkeep: bool = True,
    allow_external: Allowed = False,
) -> Table:
    """Open a table; its dialect is found from its log folder.

    Args:
        path: The table's folder, on local disk or as any fsspec URL. The log folder itself
            (``_delta_log``, ``_transaction_log``) is taken as its table.
        storage_options: Passed to the fsspec filesystem.
        parallelism: How many files of the log are read at the same time; None is what the table
            says (``spark.indextables.checkpoint.parallelism``), else what suits the store.
        read_timeout: Seconds without progress after which a listing or a read is given up, with a
            `ReadTimeoutError` that names what is missing; a file, a range or a page of a listing
            that arrives is progress, and a large file gets another second per MiB. None waits for
            ever. The default gives way to the table's property
            ``spark.indextables.checkpoint.read.timeoutSeconds``, once that has been read, and does
            not count on local disk, where no read waits: only on mounts of a network or of FUSE.
        upkeep: Whether commits through the handle are followed by checkpoints, and these by
            cleanup of the log, in the background, as the table's properties ask
            (``delta.checkpointInterval``, ``delta.enableExpiredLogCleanup``; every ten commits,
            and on, if they do not).
        allow_external: Which data files, change data files and deletion vectors outside the table's
            folder may be opened; a log may name any, as that of a shallow clone does. False: none,
            and reading one is an `ExternalPathError`. A list of URLs and paths of folders: those
            below them, by whole parts of the path. True: all of them, files of this machine
            included. `storage_options` are used for the table's own bucket, container or host
            alone. A path with a part ``..`` is refused always. Listing such files needs no
            permission.

    Raises:
        TableNotFoundError: There is no log folder.
        InvalidInputError: The location is empty, or holds logs of two dialects.
        UnavailableError: The store failed.
    """
    location = _without_log_folder(os.fspath(path))
    limits = ReadLimits(parallelism, read_timeout)
    external = External.of(allow_external)
    store = open_bounded(location, storage_options, limits)
    log = Log(store, detect_dialect(store), external=external, storage_options=storage_options)
    return _handle(log, Runtime(), upkeep=upkeep)


@checked
def create(
    path: str | os.PathLike[str],
    schema: SchemaLike,
    partition_by: Sequence[str] = (),
    format: str = "delta",
    configuration: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    upkeep: bool = True,
) -> Table:
    """Create a table without files, and open it.

    Args:
        path: The table's folder, on local disk or as any fsspec URL; made if it is not there.
        schema: Its columns: `lakelog.model.contract.Struct`, StructType JSON as text or parsed, a
            pyarrow schema, or a Polars schema (or a dict of names to Polars dtypes).
        partition_by: Partition columns, in order.
        format: ``delta`` or ``indextables``.
        configuration: Table properties. The protocol becomes the least that they and the schema
            need.
        storage_options: Passed to the fsspec filesystem.
        name: Name of the table.
        description: Description of the table.
        upkeep: As `open`.

    Raises:
        TableExistsError: There is a table, or another writer has just created one.
        InvalidTransactionError: The metadata is not one that a table may have; its subclasses say
            how.
        InvalidInputError: The format or the schema is unknown.
        UnsupportedFeatureError: lakelog could not write the table afterwards.
        UnsupportedStoreError: Nothing can be committed safely on this store.
        CommitOutcomeUnknown: It may have been created, and it cannot be read back.
        UnavailableError: The store failed; nothing was written.
    """
    dialects = {dialect.name: dialect for dialect in DIALECTS}
    if format not in dialects:
        raise InvalidInputError(
            "there is no such format", expected=" or ".join(dialects), found=format
        )
    store = open_bounded(_without_log_folder(os.fspath(path)), storage_options)
    log = Log(store, dialects[format], storage_options=storage_options)
    runtime = Runtime()
    create_table(
        log,
        runtime,
        DIALECTS,
        schema=schema,
        partition_by=partition_by,
        configuration=configuration,
        name=name,
        description=description,
    )
    return _handle(log, runtime, upkeep=upkeep)


def _reopened(
    location: str, format: str, options: Any, limits: ReadLimits, external: External, upkeep: bool
) -> Table:
    """The table that was pickled; reads nothing."""
    dialect = next(each for each in DIALECTS if each.name == format)
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
    """The dialect whose log folder is there.

    Raises:
        TableNotFoundError: None is.
        InvalidInputError: More than one is.
    """
    there = store.has_folders([dialect.log_folder for dialect in DIALECTS])
    found = [dialect for dialect, is_there in zip(DIALECTS, there, strict=True) if is_there]
    if not found:
        raise TableNotFoundError(
            "there is no log folder here",
            path=store.root,
            expected=" or ".join(d.log_folder for d in DIALECTS),
            hint="give the table's own folder; lakelog.create makes a table",
        )
    if len(found) > 1:
        raise InvalidInputError(
            "the location holds logs of two dialects",
            path=store.root,
            found=", ".join(d.log_folder for d in found),
            hint="move one of them away",
        )
    return found[0]


def _without_log_folder(location: str) -> str:
    trimmed = location.rstrip("/")
    for dialect in DIALECTS:
        if trimmed == dialect.log_folder:
            return "."
        if trimmed.endswith("/" + dialect.log_folder):
            return trimmed[: -len(dialect.log_folder) - 1]
    return location
