"""`LogSnapshot`: protocol, metadata and files of one version, from the log.

`lakelog.Snapshot` adds rows, dataframes and display.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Self, TypeVar

import polars as pl

from lakelog import telemetry
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.log_content import FileCondition, LogListing
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    naming_table,
)
from lakelog.input_validation import as_names, checked_methods, require_version
from lakelog.lazy import cached_property
from lakelog.log import properties
from lakelog.log.base_checkpoint import Transform
from lakelog.log.context import MOST_ATTEMPTS, Log, state_times
from lakelog.log.files import FilesPlan, FilesQuery, lazy_files, tombstone_columns
from lakelog.log.opening import open_state, reopened, stamped_from
from lakelog.log.replay import is_expired, live_domains, retained_tombstones
from lakelog.log.segment import latest_version
from lakelog.log.state import Provenance, State
from lakelog.model import actions, contract
from lakelog.model.metadata import Metadata, Protocol
from lakelog.sql.condition import condition

_T = TypeVar("_T")

_TRANSACTIONS = ("appId", "txnVersion", "lastUpdated", "version")
_DOMAINS = ("domain", "domainConfiguration", "version")
_SKIPS = (
    "path",
    "skipTimestamp",
    "skipReason",
    "skipOperation",
    "retryAfter",
    "skipCount",
    "partitionValues",
    "size",
    "version",
)


@checked_methods("read_state", location_of=attrgetter("path"))
class LogSnapshot:
    """One version of a table, read from the log; see `lakelog.Snapshot`."""

    def __init__(self, state: State) -> None:
        self._state = state

    @classmethod
    def open(cls, log: Log, version: int | None = None) -> Self:
        """Open a version (None: the latest); errors as `Table.snapshot`."""
        require_version(version)
        return cls(open_state(log, version))

    def read_state(self, read: Callable[[State], _T]) -> _T:
        """Call `read` with the state. If its checkpoint is damaged, or cleanup removed its files,
        the state is rebuilt from other files if possible, and `read` is called again.
        """
        attempts = 0
        while True:
            attempts += 1
            state = self._state
            try:
                with naming_table(self.path):
                    return read(state)
            except (CorruptionError, NotFoundError) as error:
                self._state = reopened(state, error, may_list=attempts < MOST_ATTEMPTS)

    @property
    def path(self) -> str:
        """Location of the table."""
        return self._state.log.table

    @property
    def format(self) -> str:
        """Name of the log's dialect: ``delta`` or ``indextables``."""
        return self._state.log.dialect.name

    @property
    def version(self) -> int:
        """The version."""
        return self._state.version

    @cached_property
    def timestamp_ms(self) -> int | None:
        """Commit time of the version, in milliseconds since the Unix epoch.

        The in-commit timestamp if the commit has one that the latest metadata declare valid, else
        the modification time of the commit file, adjusted to increase from commit to commit. None
        if the commit no longer exists.
        """
        log, at = self._state.log, self.in_commit_timestamp
        listing = log.list_all()
        if at is not None:
            since = latest_stamped_from(self, listing)
            if since is not None and self.version >= since:
                return at
        times = state_times(log, listing).filter(pl.col("version") == self.version)
        return int(times["timestamp"][0]) if times.height else None

    @property
    def in_commit_timestamp(self) -> int | None:
        """The in-commit timestamp of the version's commit, or None, whether or not it applies."""
        info = self.read_state(lambda state: state.last_commit_info)
        return in_commit_timestamp(info) if info is not None else None

    @property
    def protocol(self) -> Protocol:
        """The protocol. Reads no file actions."""
        return self.read_state(lambda state: state.protocol)

    @property
    def metadata(self) -> Metadata:
        """The metadata. Reads no file actions."""
        return self.read_state(lambda state: state.metadata)

    @property
    def table_configuration(self) -> TableConfiguration:
        """Protocol and metadata together, with the features that they support and switch on. Reads
        no file actions.
        """
        return self.read_state(lambda state: state.table_configuration)

    @property
    def schema(self) -> contract.Struct:
        """The table's schema.

        Raises:
            CorruptionError: The metadata has an invalid schema, or none although the table has
                files, whose columns a rewrite would lose.
        """
        if self.metadata.schema_string is None and self.num_files():
            raise CorruptionError(
                "the metadata has no schema, and the table has files",
                path=self.path,
                version=self.version,
                expected="metaData.schemaString",
                hint="file paths and sizes can still be read without it",
            )
        try:
            return self.metadata.schema
        except CorruptionError as error:
            error.path, error.version = self.path, self.version
            raise

    @property
    def provenance(self) -> Provenance:
        """The files that the state was read from, and warnings about damaged ones."""
        return self.read_state(lambda state: state.provenance)

    def condition(self, where: pl.Expr | str | None) -> pl.Expr | None:
        """A condition over the table's columns as a Polars expression; see `files`.

        Raises:
            InvalidInputError: SQL text is not a row-wise condition over the table's columns.
        """
        if not isinstance(where, str):
            return where
        return condition(where, self.schema, self._state.log.clock() * 1000)

    def files(
        self, where: pl.Expr | str | None = None, stats: bool = False, flatten: bool = False
    ) -> pl.LazyFrame:
        """The live files, one row per file.

        Args:
            where: A Polars expression over the table's columns, or SQL text
                (``"day >= '2026-01-05' AND amount > 100"``), whose literals get the type of the
                column that they are compared with. Files that cannot contain a matching row, by
                partition values or statistics, are omitted. A file with missing, truncated or
                invalid statistics is kept. Of a checkpoint that lakelog wrote with typed
                statistics, only the row groups that may contain such files are read; see `plan`.
            stats: Return ``numRecords`` (Int64) and the structs ``min``, ``max``, ``nullCount``,
                one field per column with the types of the schema, instead of ``stats``.
            flatten: Return ``partition.<column>`` with the types of the schema, instead of
                ``partitionValues``.

        Returns:
            A lazy frame. Only the columns that the query uses are read, and statistics are parsed
            only if the query uses them. The columns are those that an ``add`` has in the flattened
            action table (``schemas/actions.json``), ``version`` (the commit that added the file;
            null if the checkpoint does not record it) and ``extra``. Paths are percent-decoded. The
            order is undefined.

        Raises:
            InvalidInputError: `where` names an unknown column, or is not a row-wise condition.
            CorruptionError: The log is damaged; raised on collect, or immediately with `where`,
                `stats` or `flatten`.
            UnsupportedFeatureError: The table uses an unknown column mapping mode; raised with
                `where`, `stats` or `flatten`.

        Memory: the selected columns of every live file that `where` keeps.
        """

        def live(
            columns: Sequence[str], transform: Transform, condition: FileCondition | None
        ) -> list[pl.DataFrame]:
            source = "json" if self._state.base is None else "checkpoint"
            facts = {"source": source, "format": self.format, "stage": "files"}
            own = {"path": self.path, "version": self.version}
            with telemetry.span("load.files", **own, **facts) as work:
                frames = self.read_state(
                    lambda state: state.live("add", columns, transform, condition)
                )
            telemetry.record("load.duration", work.seconds, "s", **facts)
            return frames

        return lazy_files(
            self.read_state(lambda state: state.log.dialect),
            lambda: self.protocol,
            lambda: self.metadata,
            lambda: self.read_state(lambda s: s.base is not None and s.base.has_struct_statistics),
            live,
            where=self.condition(where),
            stats=stats,
            flatten=flatten,
        )

    def plan(self, where: pl.Expr | str) -> FilesPlan:
        """The files and row groups that `files` reads for a condition.

        Reads footers of the checkpoint and the commits above it, but no file actions of the
        checkpoint.

        Args:
            where: As `files`.

        Raises:
            InvalidInputError: As `files`.
            CorruptionError: The log is damaged.

        Memory: the footers, and the file actions of the commits above the checkpoint.
        """
        dialect = self.read_state(lambda state: state.log.dialect)
        predicate = self.condition(where)
        query = FilesQuery(dialect, lambda: self.protocol, lambda: self.metadata, predicate)
        query.check()
        return self.read_state(lambda state: FilesPlan.of(state, query, time.perf_counter))

    def tombstones(self, retention: dt.timedelta | None = None) -> pl.LazyFrame:
        """Removed files that are still recorded in the log, one row per logical file.

        Args:
            retention: Omit files removed this long ago or earlier; a missing
                ``deletionTimestamp`` counts as 0. None returns all.
        """
        columns = tombstone_columns(self.read_state(lambda state: state.log.dialect))

        def finish(batch: pl.DataFrame) -> pl.DataFrame:
            return actions.conform(batch.with_columns(dataChange=pl.lit(False)), columns)

        frames = self.read_state(lambda state: state.live("remove", columns, finish))
        removes = pl.concat(frames) if frames else actions.empty(columns)
        if retention is not None:
            minimum = self._state.log.clock() - retention // dt.timedelta(milliseconds=1)
            removes = retained_tombstones(removes, minimum)
        return removes.lazy()

    def transactions(self) -> pl.LazyFrame:
        """Application transactions: the last version of each ``appId``.

        Columns: ``appId`` (String), ``txnVersion`` (Int64), ``lastUpdated`` (Int64, ms),
        ``version`` (Int64), and ``expired`` (Boolean): older than
        ``delta.setTransactionRetentionDuration``, or without a time. A malformed property is
        ignored.
        """
        rows = actions.conform(self._kind("txn"), _TRANSACTIONS)
        retention = properties.stated_transaction_retention_ms(self.metadata.configuration)
        minimum = None if retention is None else self._state.log.clock() - retention
        return rows.lazy().with_columns(is_expired(minimum).alias("expired"))

    def domains(self) -> pl.LazyFrame:
        """Domain metadata: the last configuration of each ``domain`` that was not removed.

        Columns: ``domain``, ``domainConfiguration`` (String), ``version`` (Int64).
        """
        live = self.read_state(lambda state: live_domains(state.meta_of("domainMetadata")))
        return actions.conform(live, _DOMAINS).lazy()

    def skips(self) -> pl.LazyFrame:
        """Files skipped by IndexTables merges: the last record of each path, with count and
        cooldown.

        ``inCooldown`` (Boolean) is true while ``retryAfter`` is in the future.
        """
        now = self._state.log.clock()
        rows = actions.conform(self._kind("mergeskip"), _SKIPS)
        return rows.lazy().with_columns(
            (pl.col("retryAfter") > now).fill_null(False).alias("inCooldown")
        )

    def in_cooldown(self, path: str) -> bool:
        """Whether a file was skipped and its cooldown has not passed."""
        cooling = pl.col("inCooldown") & (pl.col("path") == path)
        return bool(self.skips().select(cooling.any()).collect().item())

    def filter_cooldown(self, files: pl.LazyFrame | None = None) -> pl.LazyFrame:
        """Files that are not in cooldown, such as candidates for a merge.

        Args:
            files: A lazy frame with a column ``path`` (String); None uses `files`.

        Returns:
            The same frame, in the same order, without files in cooldown.
        """
        candidates = self.files() if files is None else files
        cooling = self.skips().filter("inCooldown").select("path")
        return candidates.join(cooling, on="path", how="anti", maintain_order="left")

    def _kind(self, kind: str) -> pl.DataFrame:
        return self.read_state(lambda state: state.meta_of(kind))

    def num_files(self) -> int:
        """Number of live files.

        No file actions are read if a checkpoint of this version, written by lakelog without
        tombstones, records the number.

        Memory: 24 bytes per file of the checkpoint, kept so that an update counts only new commits.
        """
        return self.read_state(lambda state: state.num_files)

    def total_size(self) -> int:
        """Total size of the live files in bytes, as recorded in the log. Memory: as `num_files`."""
        return self.read_state(lambda state: state.totals)[1]

    def size_histogram(self) -> pl.DataFrame:
        """Live files by size, in the bins that Delta on Spark uses for version checksums.

        The histogram of the version's ``.crc`` is used if its totals equal `num_files` and
        `total_size`; otherwise the sizes of all live files are read and counted.

        Returns:
            One row per bin that is not empty, ascending: ``min_bytes`` (inclusive) and
            ``max_bytes`` (exclusive; null for the last bin), ``num_files`` and ``total_bytes``, all
            Int64. Files whose size is missing or negative are not counted.

        Raises:
            InvalidInputError: The sizes add up to more than 64 bits.

        Memory: 8 bytes per file, if the sizes are read.
        """
        from lakelog.log.version_checksum import size_histogram

        return size_histogram(self)

    def iter_state(self, columns: str | Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """The whole state in batches of the flattened action table.

        Order: protocol, metaData, domainMetadata, txn, mergeskip, adds, removes; files in the order
        of the log. ``dataChange`` is false. A damaged checkpoint raises an error, because batches
        that were already returned cannot be replaced.

        Memory: one batch, and the file actions of the commits above the checkpoint.
        """
        known, columns = actions.schema(), as_names(columns)
        unknown = [] if columns is None else [name for name in columns if name not in known]
        if unknown:
            raise InvalidInputError(
                "unknown columns of the flattened action table",
                expected=", ".join(known),
                found=repr(unknown[0]),
            )
        from lakelog.log.export import iter_state

        return iter_state(self._state, columns)


class EvolvedSnapshot(LogSnapshot):
    """A version under the metadata that a transaction sets, with the columns that it adds."""

    def __init__(self, snapshot: LogSnapshot, metadata: Metadata) -> None:
        super().__init__(snapshot.read_state(lambda state: state))
        self._metadata = metadata

    @property
    def metadata(self) -> Metadata:
        """The new metadata."""
        return self._metadata

    @property
    def table_configuration(self) -> TableConfiguration:
        """The protocol with the new metadata."""
        return super().table_configuration.changed(metadata=self._metadata)


def latest_stamped_from(snapshot: LogSnapshot, listing: LogListing) -> int | None:
    """`Metadata.stamped_from` of the latest version in a listing of the log."""
    if snapshot.version >= latest_version(listing, snapshot.path):
        return snapshot.metadata.stamped_from
    return stamped_from(snapshot.read_state(lambda state: state.log))
