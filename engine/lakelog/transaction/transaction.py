"""`Transaction`: collects actions and commits them as the table's next version."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import EllipsisType
from typing import Any, Self

import polars as pl

from lakelog.dialects.properties import with_plain_constraints
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.display import Displayed
from lakelog.errors import (
    InvalidInputError,
    UnsupportedStoreError,
    VersionNotFoundError,
)
from lakelog.input_validation import as_names, checked_methods, require_choice, require_version
from lakelog.log.context import Log
from lakelog.log.properties import transaction_retention_ms
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.metadata import CLUSTERING, Metadata
from lakelog.redaction import redact
from lakelog.transaction import operations, restoring, validation
from lakelog.transaction.action_buffer import ActionBuffer
from lakelog.transaction.commit_content import Description, after
from lakelog.transaction.commit_loop import CommitLoop, Plan, Retry
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.pending_commit import ISOLATION_LEVELS, PendingCommit, Reads
from lakelog.transaction.restoring import Restored
from lakelog.transaction.runtime import Committed, Runtime
from lakelog.transaction.schema_conversion import SchemaLike
from lakelog.transaction.small_commit import SmallCommit
from lakelog.version import __version__

_ISOLATION_PROPERTY = "delta.isolationLevel"
COLUMNAR_ABOVE_BYTES = 1 << 20
"""Size of the JSON in bytes above which a commit is written in columns, if the table has the
feature ``columnarCommits``.
"""


@dataclass(frozen=True)
class Part:
    """A call that writes rows in a transaction; `settle` is called once at the end with the error
    of the commit, or None, and deletes files that no commit refers to.
    """

    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    settle: Callable[[BaseException | None], None]


@checked_methods("join", location_of=attrgetter("_log.table"))
class LogTransaction(Displayed):
    """A set of actions that is committed atomically; see `lakelog.Transaction`."""

    def __init__(
        self,
        log: Log,
        tails: LogTails,
        runtime: Runtime,
        *,
        app_id: str | None = None,
        app_version: int | None = None,
        isolation: str | None = None,
        operation: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        user_name: str | None = None,
        user_metadata: str | None = None,
        commit_info: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        version: int | None = None,
    ) -> None:
        refuse_unsafe_store(log)
        self._log, self._tails, self._runtime = log, tails, runtime
        self._tail = tails.latest() if version is None else tails.at(version)
        self._table = self._tail.table
        self._metadata = self._table.metadata
        self._plain = tails.check_writable(self._table)
        self._isolation = isolation_level(isolation, self._metadata)
        self._retry = Retry.of(self._metadata.configuration, max_attempts)
        operations.check_description(
            operation, parameters, metrics, user_name, user_metadata, commit_info
        )
        self._operation, self._parameters, self._metrics = operation, parameters, metrics
        self._user_name, self._user_metadata = user_name, user_metadata
        self._commit_info = dict(commit_info or {})
        self._txn_id = runtime.new_id()
        self._over = False
        self._failure: BaseException | None = None
        self._parts: list[Part] = []
        self._is_writing = False
        self._version: int | None = None
        self._buffer = ActionBuffer(log, self._table)
        self._where: list[pl.Expr] = []
        self._whole_table = False
        self._app: tuple[str, int] | None = None
        self._duplicate = False
        self._replaces = False
        self._rows_replaced = False
        self._restored = False
        self._unclustered = False
        self._constraints_hold = False
        self._checked: list[str] = []
        self._row_ids_kept: list[str] = []
        self._identity_marks: dict[str, int] = {}
        app = operations.application(app_id, app_version)
        if app is not None:
            self.set_txn(appId=app[0], version=app_version)
            self._app = app
            self._duplicate = self._recorded(app[0]) >= app[1]

    def _recorded(self, app_id: str) -> int | float:
        """The application's last unexpired version; minus infinity if it has none."""
        rows = operations.app_versions(self._tail.meta, app_id)
        retention = transaction_retention_ms(self._metadata.configuration)
        oldest = None if retention is None else self._log.clock() - retention
        counting = [
            row["txnVersion"]
            for row in rows
            if oldest is None or (row["lastUpdated"] is not None and row["lastUpdated"] > oldest)
        ]
        return counting[-1] if counting else float("-inf")

    @property
    def snapshot(self) -> LogSnapshot:
        """The version that the transaction reads. Using it does not record a read: use `read` for
        data that the actions depend on.
        """
        return self._tail.snapshot

    @property
    def version(self) -> int | None:
        """The committed version; None before the commit, or if nothing was committed."""
        return self._version

    @property
    def committed(self) -> bool:
        """Whether a version was committed."""
        return self._version is not None

    @property
    def duplicate(self) -> bool:
        """Whether the table already has the application's version or a later one, so that nothing
        is written. Known when the transaction starts, unless a concurrent writer commits it.
        """
        return self._duplicate

    @property
    def changes_metadata(self) -> bool:
        """Whether the collected actions change schema, partitioning or properties."""
        return self._buffer.changes_metadata

    @property
    def txn_id(self) -> str:
        """Unique identifier of this transaction, stored in the commit."""
        return self._txn_id

    def read(self, where: pl.Expr | str | None = None) -> pl.LazyFrame:
        """Record a read, so that concurrent commits that change it conflict.

        Args:
            where: A Polars expression over the table's columns or SQL text, as `Snapshot.files`;
                None is the whole table. Commits to files that cannot contain a matching row, by
                partition values or statistics, do not conflict.

        Returns:
            The matching files, as `Snapshot.files`.

        Raises:
            InvalidInputError: `where` names an unknown column.
        """
        self._require_open()
        predicate = self.snapshot.condition(where)
        files = self.snapshot.files(predicate)
        if predicate is None:
            self._whole_table = True
        else:
            self._where.append(predicate)
        return files

    def add(self, table: Any = None, /, **fields: Any) -> None:
        """Add one file, or a table of files.

        Args:
            table: A Polars frame or lazy frame, an Arrow table or reader, or a pandas frame, with
                one row per file. `fields` then apply to every row.
            fields: ``path`` (as on disk, not percent-encoded), ``size`` (bytes), and optionally
                ``partitionValues``, ``modificationTime`` (milliseconds; default now),
                ``dataChange`` (default True), ``stats`` (JSON text), ``tags``, ``deletionVector``,
                ``baseRowId``, ``defaultRowCommitVersion``, ``clusteringProvider`` and the fields
                of the IndexTables dialect. Flattened names (``dvOffset``) are accepted too, and
                so are frames of `Snapshot.files`, whose ``dataChange`` is ignored.

        Raises:
            InvalidInputError: A name is unknown, or a value has the wrong type.

        Source: Delta protocol, Add File and Remove File.
        """
        self._require_open()
        self._buffer.put_files("add", table, fields)

    def remove(self, table: Any = None, /, **fields: Any) -> None:
        """Remove one file, or a table of files. Whether a path is a live file is not checked,
        because that may read the whole state: `read` returns the live files.

        Args:
            table: As `add`; the columns of a `Snapshot.files` frame are copied to the tombstones.
            fields: ``path``, and optionally ``deletionTimestamp`` (milliseconds; default now),
                ``dataChange`` (default True), ``partitionValues``, ``size``, ``tags``,
                ``deletionVector`` (of the logical file that is removed) and ``baseRowId``.

        Raises:
            InvalidInputError: A name is unknown, or a value has the wrong type.

        Source: Delta protocol, Add File and Remove File.
        """
        self._require_open()
        self._buffer.put_files("remove", table, fields)

    def cdc(self, table: Any = None, /, **fields: Any) -> None:
        """Add one change data file, or a table of them: ``path``, ``partitionValues``, ``size``.

        Source: Delta protocol, Add CDC File.
        """
        self._require_open()
        self._buffer.put_files("cdc", table, fields)

    def replace_rows(self) -> None:
        """Declare that no row is updated: rows of removed files are deleted, and rows of added
        files are inserted, as when a table or its partitions are overwritten.

        A table with a change data feed then needs no `cdc`: readers derive the changes from the
        added and removed files.

        Source: Delta protocol, Change Data Files; Reader Requirements for AddCDCFile.
        """
        self._require_open()
        self._rows_replaced = True

    def declare_constraints_hold(self) -> None:
        """Declare that all existing rows satisfy the CHECK constraints that the transaction adds.

        Read the whole table with `read` first, so that a concurrent append conflicts.

        Source: Delta protocol, CHECK Constraints.
        """
        self._require_open()
        self._constraints_hold = True

    def declare_rows_checked(self, paths: Sequence[str]) -> None:
        """Declare that the rows of files satisfy the table's CHECK constraints, invariants, and
        generated and identity columns. A table with such rules refuses other new files, because the
        rows of a file are not read on commit.

        Args:
            paths: Paths of added files, as in `add`.

        Source: Delta protocol, CHECK Constraints; Column Invariants; Generated Columns.
        """
        self._require_open()
        self._checked += paths

    def declare_row_ids_kept(self, paths: Sequence[str]) -> None:
        """Declare that rows of removed files that are in added files have the same row ids there,
        and the same row commit versions unless they were updated. Else the commit records that
        row ids may be lost (``delta.rowTracking.preserved``).

        Args:
            paths: Paths of removed files, as in `remove`.

        Source: Delta protocol, Writer Requirements for Row Tracking.
        """
        self._require_open()
        self._row_ids_kept += paths

    @property
    def identity_marks(self) -> Mapping[str, int]:
        """Last generated values of identity columns, by column, as `advance_identity` set them."""
        return dict(self._identity_marks)

    def advance_identity(self, marks: Mapping[str, int]) -> None:
        """Record the last generated value of identity columns, which the commit writes to the
        metadata (``delta.identity.highWaterMark``). A concurrent change of the metadata conflicts,
        so that no value is generated twice.

        Source: Delta protocol, Identity Columns.
        """
        self._require_open()
        self._identity_marks |= marks

    def restore(self, version: int) -> Restored:
        """Stage the actions that restore an earlier version: its files, schema, partitioning,
        properties and clustering. Domains and versions of applications are kept.

        The whole table counts as read. The protocol is not downgraded. Whether the files still
        exist is not checked; `Table.restore` does that.

        Returns:
            The files that are added again, and those that are removed, as `Snapshot.files`.

        Raises:
            VersionNotFoundError: The version can no longer be read.
            InvalidInputError: Rows were written in the same transaction, and the version has
                another schema, or other features.

        Source: Delta Lake, RestoreTableCommand.
        """
        self._require_open()
        require_version(version)
        target, current = LogSnapshot.open(self._log, version), self.snapshot
        self.read()
        restored = restoring.file_differences(current, target)
        restored = restored._replace(added=self._with_row_counts(target, restored.added))
        changes = restoring.metadata_changes_to(current.metadata, target.metadata)
        if changes is not None:
            self._buffer.put_metadata(None, after_rows=self.has_parts, **changes)
            named_as = restoring.naming_metadata(target, changes["configuration"])
            self._buffer.restore_as(named_as, target.table_configuration.ignored())
        self._restored = self._rows_replaced = True
        if restored.removed.height:
            self._buffer.put_files("remove", restored.removed, {})
        if restored.added.height:
            self._buffer.put_files("add", restored.added, {})
        rules = self._log.dialect.protocol_rules
        lost = rules.supported(target.protocol) - rules.supported(current.protocol)
        if lost:
            self._buffer.put_protocol(None, {}, sorted(lost))
        before, clustering = (restoring.clustering_of(s) for s in (current, target))
        if clustering is not None and clustering != before:
            fields = {"domain": CLUSTERING, "configuration": clustering}
            self._buffer.put_domains(None, fields)
        elif clustering is None:
            self.remove_clustering()
        return restored

    def _with_row_counts(self, snapshot: LogSnapshot, files: pl.DataFrame) -> pl.DataFrame:
        """Files with row counts that vectors require; here unchanged, without reading data."""
        del snapshot
        return files

    def _check_rules(self, table: TableConfiguration) -> None:
        """Refuse rules of rows that are new and not valid; here none, as they are unknown."""

    def remove_clustering(self) -> None:
        """Remove the clustering of a table whose rows are all replaced, if it is clustered."""
        if restoring.clustering_of(self.snapshot) is not None:
            self._buffer.drop_domain(CLUSTERING, self._tail.meta)
            self._unclustered = True

    def set_metadata(
        self,
        table: Any = None,
        /,
        *,
        schema: SchemaLike | None = None,
        partition_by: str | Sequence[str] | None = None,
        configuration: Mapping[str, str | None] | None = None,
        name: str | EllipsisType | None = ...,
        description: str | EllipsisType | None = ...,
        **fields: Any,
    ) -> None:
        """Change the metadata; arguments that are not given keep their values.

        The protocol is upgraded if the new metadata needs features (`delta.feature.<name>` adds
        one by name). Rules of rows that are new are checked on commit, as by `lakelog.create`.

        Args:
            table: A table of one row with the protocol's fields, instead of the other arguments.
            schema: The new schema: `lakelog.model.contract.Struct`, StructType JSON, or a pyarrow
                or Polars schema. Keep the `metadata` of existing columns.
            partition_by: The new partition column, or several in order.
            configuration: Properties to set; None removes one.
            name: The new name; None removes it.
            description: The new description; None removes it.
            fields: The protocol's field names (``schemaString``, ``partitionColumns``, ``id``…).

        Raises:
            InvalidInputError: A name is unknown, or a value has the wrong type; or rows were
                written in the same transaction, and the change concerns them.

        Source: Delta protocol, Change Metadata.
        """
        self._require_open()
        if configuration is not None:
            known = self._buffer.configuration
            configuration = with_plain_constraints(configuration, known)
        self._buffer.put_metadata(
            table,
            fields,
            after_rows=self.has_parts and not self._is_writing,
            schema=schema,
            partition_by=as_names(partition_by),
            configuration=configuration,
            name=name,
            description=description,
        )
        self._buffer.ask_for(configuration or ())

    def set_protocol(
        self, table: Any = None, /, *, features: Sequence[str] = (), **fields: Any
    ) -> None:
        """Change the protocol.

        Args:
            table: A table of one row with the protocol's fields, instead of the other arguments.
            features: Table features to add, with those that they require; versions follow.
            fields: ``minReaderVersion``, ``minWriterVersion``, ``readerFeatures``,
                ``writerFeatures``; fields that are not given keep their values.

        Raises:
            InvalidInputError: A name is unknown, or a value has the wrong type.
            UnsupportedFeatureError: lakelog does not support writing with a feature.

        Source: Delta protocol, Protocol Evolution.
        """
        self._require_open()
        self._buffer.put_protocol(table, fields, features)

    def set_txn(self, table: Any = None, /, **fields: Any) -> None:
        """Record the version of an application, or a table of them.

        Args:
            table: Columns ``appId``, ``version``, and optionally ``lastUpdated``.
            fields: The same for one application; ``lastUpdated`` (milliseconds) defaults to now.

        A concurrent commit that records the same application conflicts.

        Source: Delta protocol, Transaction Identifiers.
        """
        self._require_open()
        self._buffer.put_txns(table, fields)

    def set_domain(self, table: Any = None, /, **fields: Any) -> None:
        """Set a metadata domain, or a table of them.

        Args:
            table: Columns ``domain`` and ``configuration``.
            fields: ``domain`` (names that begin with ``delta.`` are reserved) and
                ``configuration`` (any text, usually JSON).

        Source: Delta protocol, Domain Metadata.
        """
        self._require_open()
        self._buffer.put_domains(table, fields)

    def remove_domain(self, domain: str) -> None:
        """Remove a metadata domain.

        Raises:
            InvalidTransactionError: The domain does not exist.
        """
        self._require_open()
        self._buffer.drop_domain(domain, self._tail.meta)

    def skip(
        self, table: Any = None, /, *, cooldown: dt.timedelta | None = None, **fields: Any
    ) -> None:
        """Record a file that could not be processed, or a table of them; the file stays in the
        table.

        The skip count continues from the last record of the file.

        Args:
            table: Columns as `fields`.
            cooldown: How long to skip the file; None uses the table's
                ``spark.indextables.skippedFiles.cooldownDuration``, default 24 hours.
            fields: ``path``, ``reason``, ``operation``, and optionally ``partitionValues``,
                ``size``, ``skipTimestamp`` (milliseconds; default now) and ``retryAfter``.

        Raises:
            UnsupportedFeatureError: The table is a Delta table, which has no skip action.
        """
        self._require_open()
        self._buffer.put_skips(table, fields, cooldown)

    def commit(self) -> int | None:
        """Commit the transaction as the next version. It cannot be used afterwards.

        Returns:
            The version; None if there was nothing to write, or if `duplicate` is true.

        Raises:
            InvalidTransactionError: The table would become inconsistent; subclasses give the
                reason.
            UnsupportedError: The table needs a writer feature that lakelog does not support.
            ConflictError: A concurrent commit conflicts, or all attempts lost to other writers.
            CommitOutcomeUnknown: The commit may have succeeded, and cannot be read back.
            UnavailableError: The store failed; nothing was written.
        """
        self._require_open()
        self._over = True
        try:
            version = self._commit()
        except BaseException as error:
            self._settle(error)
            raise
        self._settle(None)
        return version

    @property
    def has_parts(self) -> bool:
        """Whether calls have joined the commit."""
        return bool(self._parts)

    def join(self, part: Part) -> None:
        """Add a call to the commit."""
        self._require_open()
        self._parts.append(part)

    def _settle(self, error: BaseException | None) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            part.settle(error)

    def _commit(self) -> int | None:
        if self._duplicate:
            return None
        plan = self._plan()
        if plan is None:
            return None
        writing = CommitLoop(plan, self._tail, self._tails, self._runtime)
        try:
            writing.run()
        finally:
            outcome = writing.outcome
            if outcome is not None and outcome.duplicate:
                self._duplicate = True
            elif outcome is not None:
                self._version = outcome.version
        if self._runtime.on_commit is not None and outcome is not None and not outcome.duplicate:
            self._runtime.notify(
                Committed(outcome.version, outcome.size_bytes, writing.configuration)
            )
        return self._version

    def _plan(self) -> Plan | None:
        reads = Reads(
            self._whole_table,
            tuple(self._where),
            frozenset({self._app[0]}) if self._app is not None else frozenset(),
        )
        self._buffer.put_identity_marks(self._identity_marks)
        small = self._small()
        if small is not None:
            pending = PendingCommit(reads, small, small.meta, self._isolation, self._table)
            operation = small.operation(self._metadata)
            description = self._described(operation, small.metrics, small.adds_only, reads)
            return Plan(self._log, pending, description, self._check, self._app, retry=self._retry)
        files, meta = self._buffer.gathered(self._runtime, self._is_emptied)
        if not files.height and not meta.height:
            return None
        pending = PendingCommit(reads, files, meta, self._isolation, self._table)
        table = after(pending)
        self._replaces = (
            not self._restored
            and validation.changes_columns(self._metadata, table.metadata)
            and validation.removes_all(files, self.snapshot.files())
        )
        if self._replaces:
            # The new columns are valid only if there are no other files.
            pending = replace(pending, reads=replace(reads, whole_table=True))
        self._check(pending)
        if table != self._table and not self._restored:
            self._check_rules(table)
        pending = replace(pending, texts=self._texts_of(files))
        inferred = operations.infer(files, meta, self._metadata, table.metadata, table.protocol)
        adds_only = not files.height or bool((files["actionType"] == "add").all())
        description = self._described(inferred, lambda: operations.metrics(files), adds_only, reads)
        columnar = table.supports("columnarCommits")
        return Plan(
            self._log,
            pending,
            description,
            self._check,
            self._app,
            COLUMNAR_ABOVE_BYTES if columnar else None,
            self._retry,
        )

    def _texts_of(self, files: pl.DataFrame) -> pl.DataFrame | None:
        """The texts of the files' paths in the log; see `Dialect.path_texts`."""
        if not files.height:
            return None
        try:
            return self.snapshot.read_state(lambda state: state.path_texts(files["path"]))
        except VersionNotFoundError:
            # A cleanup deleted the version that was read. If the text of a path has changed since,
            # another commit wrote it, which is a conflict anyway.
            latest = LogSnapshot.open(self._log)
            return latest.read_state(lambda state: state.path_texts(files["path"]))

    def _small(self) -> SmallCommit | None:
        """The actions on the fast path, if they and the table qualify."""
        singles = self._buffer.singles()
        return self._plain.take(*singles) if self._plain is not None and singles else None

    def _described(
        self,
        inferred: operations.Operation,
        metrics: Callable[[], Mapping[str, Any]],
        adds_only: bool,
        reads: Reads,
    ) -> Description:
        parameters, counted = self._parameters, self._metrics
        if len(self._parts) == 1:  # the commit consists of that call
            (part,) = self._parts
            inferred = operations.Operation(part.operation, dict(part.parameters))
            counted = part.metrics if counted is None else counted
        return Description(
            self._operation or inferred.name,
            inferred.parameters if parameters is None else parameters,
            metrics() if counted is None else counted,
            self._txn_id,
            f"lakelog/{__version__}",
            adds_only and reads.nothing,
            self._tail.version,
            self._isolation,
            self._user_name,
            self._user_metadata,
            self._commit_info,
            # Without the property, rows were copied without their ids.
            frozenset(self._row_ids_kept if self._table.is_active("rowTracking") else ()),
        )

    def _is_emptied(self, files: pl.DataFrame) -> bool:
        """Whether file actions leave no file; files that they add have the present names."""
        has_adds = files.height and (files["actionType"] == "add").any()
        return not has_adds and validation.removes_all(files, self.snapshot.files())

    def _check(self, pending: PendingCommit) -> None:
        """Validate the actions against the state that they are committed to."""
        validation.check(
            pending,
            self._log.table,
            replaced=self._replaces,
            rows_replaced=self._rows_replaced,
            restored=self._restored,
            clusters=self._unclustered,
            constraints_hold=self._constraints_hold,
            checked=pl.Series("path", self._checked, pl.String),
            live_files=self._live_files,
        )

    def _live_files(self) -> pl.LazyFrame:
        return self.snapshot.files()

    def _require_open(self) -> None:
        if self._failure is not None:
            raise InvalidInputError(
                "a call of the transaction failed, so that it ended and nothing was committed",
                path=self._log.table,
                found=repr(self._failure)[:200],
                hint="begin a new transaction for the calls that succeed",
            ) from self._failure
        if self._over:
            raise InvalidInputError(
                "the transaction has ended", path=self._log.table, hint="begin a new one"
            )

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and (self._failure is not None or not self._over):
            self.commit()
        self._over = True
        self._settle(None)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        state = "open"
        if self._over:
            state = f"version {self._version}" if self.committed else "nothing committed"
        table = redact(self._log.table)
        return [("table", table), ("from version", str(self._tail.version)), ("state", state)]

    def __repr__(self) -> str:
        (_, table), (_, version), (_, state) = self.facts
        return f"Transaction({table!r}, from version {version}, {state})"


def refuse_unsafe_store(log: Log) -> None:
    """Raise UnsupportedStoreError for a store without put-if-absent."""
    reason = log.store.refusal
    if reason is not None:
        raise UnsupportedStoreError(
            f"commits are not supported here: {reason}",
            path=log.table,
            hint="move the table to local disk, S3, Azure or Google Cloud Storage",
        )


def isolation_level(given: str | None, metadata: Metadata) -> str:
    """The isolation level of a transaction: its own, else the table's."""
    if given is not None:
        require_choice("isolation", given, ISOLATION_LEVELS)
    level = given or metadata.configuration.get(_ISOLATION_PROPERTY) or ISOLATION_LEVELS[0]
    if level not in ISOLATION_LEVELS:
        raise InvalidInputError(
            "unknown isolation level",
            expected=" or ".join(ISOLATION_LEVELS),
            found=level,
        )
    return level
