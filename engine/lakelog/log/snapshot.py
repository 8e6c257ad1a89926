"""`Snapshot`: one version of a table, immutable, lazily read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from lakelog import telemetry
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.errors import (
    CheckpointCorruptionError,
    CorruptionError,
    InvalidInputError,
    LakelogError,
    MissingDependencyError,
    NotFoundError,
)
from lakelog.input_validation import checked_methods, require_version
from lakelog.lazy import cached_property
from lakelog.log import properties
from lakelog.log.context import MOST_LOOKS, Log, state_times
from lakelog.log.display import described, table_html, table_text
from lakelog.log.export import ExportManifest, iter_state, write_state
from lakelog.log.files import Transform, lazy_files, tombstone_columns
from lakelog.log.metadata import Metadata, Protocol
from lakelog.log.opening import fall_back, is_outdated, open_state, update_state
from lakelog.log.replay import is_expired, live_domains, retained_tombstones
from lakelog.log.state import Provenance, State
from lakelog.log.version_checksum import compare_checksum
from lakelog.model import actions, contract
from lakelog.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa

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


@checked_methods("read_state")
class Snapshot:
    """One version of a table, immutable.

    Protocol and metadata are read when the snapshot is made, or, where many megabytes of commits
    stand above the checkpoint, with whatever is asked for first: nothing is answered before both
    are there and the protocol is one that lakelog honours. Files, tombstones and the rest are read
    when they are asked for, column by column.

    A checkpoint that turns out to be damaged is passed over where older files give the same
    version soundly (`provenance` says so, with a `LakelogWarning`), else
    `CheckpointCorruptionError` is raised.

    Make one with `Table.snapshot`.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    @classmethod
    def open(cls, log: Log, version: int | None = None) -> Snapshot:
        """Open a version (None: the latest); errors as `Table.snapshot`."""
        require_version(version)
        return cls(open_state(log, version))

    def read_state(self, read: Callable[[State], _T]) -> _T:
        """Give the state to `read`; if its checkpoint turns out to be damaged, pass over it where
        that is sound and begin again. Where cleanup has taken its files, what is left decides.
        """
        looks = 0
        while True:
            state = self._state
            try:
                return read(state)
            except (CorruptionError, NotFoundError) as error:
                looks += 1
                if looks < MOST_LOOKS and is_outdated(state.log, state.segment, error):
                    self._state = open_state(state.log, state.version)
                elif isinstance(error, CheckpointCorruptionError) and state.base is not None:
                    self._state = fall_back(state, error)
                else:
                    raise

    # --- identity ----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Location of the table."""
        return self._state.log.table

    @property
    def format(self) -> str:
        """Dialect of the log: ``delta`` or ``indextables``."""
        return self._state.log.dialect.name

    @property
    def version(self) -> int:
        """The version."""
        return self._state.version

    @cached_property
    def timestamp_ms(self) -> int | None:
        """When the version was committed, in milliseconds since the Unix epoch.

        The in-commit timestamp where the commit has one, else the commit file's time, forced to
        increase from commit to commit. None where the commit is no longer on disk.
        """
        info = self.read_state(lambda state: state.last_commit_info)
        at = in_commit_timestamp(info) if info is not None else None
        if at is not None:
            return at
        log = self._state.log
        times = state_times(log, log.list_all()).filter(pl.col("version") == self.version)
        return int(times["timestamp"][0]) if times.height else None

    @property
    def protocol(self) -> Protocol:
        """The protocol; never reads the files' rows."""
        return self.read_state(lambda state: state.protocol)

    @property
    def metadata(self) -> Metadata:
        """The metadata; never reads the files' rows."""
        return self.read_state(lambda state: state.metadata)

    @property
    def schema(self) -> contract.Struct:
        """The table's schema.

        Raises:
            CorruptionError: The metadata has no schema, or one that cannot be parsed.
        """
        return self.metadata.schema

    @property
    def provenance(self) -> Provenance:
        """The files that the answers rest on, and what was found wrong on the way."""
        return self.read_state(lambda state: state.provenance)

    # --- state -------------------------------------------------------------------------------

    def files(
        self, where: pl.Expr | None = None, stats: bool = False, flatten: bool = False
    ) -> pl.LazyFrame:
        """The live files, one row each.

        Args:
            where: A Polars expression over the table's columns. Files that cannot hold a matching
                row, by partition value or statistics, are left out; a statistic that is missing,
                truncated or unreadable never leaves one out.
            stats: Give ``numRecords`` (Int64) and the structs ``min``, ``max``, ``nullCount``,
                typed under the current schema and keyed by column, in place of ``stats``.
            flatten: Give ``partition.<column>``, typed under the current schema, in place of
                ``partitionValues``.

        Returns:
            A lazy frame; only the columns that the query needs are read, and statistics parsed
            only if they are. Columns are those of the flattened action table that an ``add``
            carries, ``version`` (null where a checkpoint does not say who wrote the file) and
            ``extra``. Paths are percent-decoded. Order is not defined.

        Raises:
            InvalidInputError: `where` names a column that the table lacks, or looks beyond a row.
            CorruptionError: On collect, or for `where`, `stats` and `flatten` at once, if the log
                is damaged.
            UnsupportedFeatureError: As that, for `where`, `stats` and `flatten`: the table maps its
                columns in a way that lakelog does not know.

        Memory: the columns asked for, of every live file that `where` keeps.
        """

        def live(columns: Sequence[str], transform: Transform) -> list[pl.DataFrame]:
            source = "json" if self._state.base is None else "checkpoint"
            facts = {"source": source, "format": self.format, "stage": "files"}
            own = {"path": self.path, "version": self.version}
            with telemetry.span("load.files", **own, **facts) as work:
                frames = self.read_state(lambda state: state.live("add", columns, transform))
            telemetry.record("load.duration", work.seconds, "s", **facts)
            return frames

        return lazy_files(
            self.format,
            lambda: self.protocol,
            lambda: self.metadata,
            lambda: self.read_state(lambda s: s.base is not None and s.base.has_struct_statistics),
            live,
            where=where,
            stats=stats,
            flatten=flatten,
        )

    def scan(self, where: pl.Expr | None = None) -> pl.LazyFrame:
        """The rows of the table, read from its data files.

        Args:
            where: A Polars expression over the table's columns; only rows for which it is true
                come. A filter on the frame does the same.

        Returns:
            A lazy frame in the types of the schema. The columns, the filters and the slice of the
            query reach the files: those that cannot hold a matching row are not opened, row groups
            likewise not read. Deleted rows are left out, columns found as the table maps them,
            partition values added. Rows come in the order of `files`, which is not defined.

        Raises:
            UnsupportedFeatureError: The rows are not in Parquet files (IndexTables); on collect: a
                column that is asked for is of a type that lakelog does not read.
            InvalidInputError: `where` names a column that the table lacks, or looks beyond a row.
            NotFoundError: On collect: a file that the log names is not there.
            CorruptionError: On collect: a data file, a deletion vector or the log is damaged; or a
                data file is not the one that the log records, by its length, its number of rows
                or a missing column.

        Memory: of the files, a few batches (`lakelog.data.read.read_files`); of the log, the paths,
        partition values and statistics of the files that match.
        """
        from lakelog.data.scan import scan_rows

        return scan_rows(self, where)

    def tombstones(self, retention: dt.timedelta | None = None) -> pl.LazyFrame:
        """Removed files that the log still remembers, one row a logical file.

        Args:
            retention: Leave out those that were removed at or before this long ago; a missing
                ``deletionTimestamp`` counts as 0. None keeps all.

        Source: specification 000, getTombstones.
        """
        columns = tombstone_columns(self.format)

        def finish(batch: pl.DataFrame) -> pl.DataFrame:
            return actions.conform(batch.with_columns(dataChange=pl.lit(False)), columns)

        frames = self.read_state(lambda state: state.live("remove", columns, finish))
        removes = pl.concat(frames) if frames else actions.empty(columns)
        if retention is not None:
            minimum = self._state.log.clock() - retention // dt.timedelta(milliseconds=1)
            removes = retained_tombstones(removes, minimum)
        return removes.lazy()

    def transactions(self) -> pl.LazyFrame:
        """Transaction identifiers, the last of each ``appId``.

        Columns: ``appId``, ``txnVersion``, ``lastUpdated``, ``version``, and ``expired``: whether
        ``delta.setTransactionRetentionDuration`` says that it no longer counts (it is older, or
        has no time); malformed, that property says nothing.
        """
        rows = actions.conform(self._kind("txn"), _TRANSACTIONS)
        retention = properties.stated_transaction_retention_ms(self.metadata.configuration)
        minimum = None if retention is None else self._state.log.clock() - retention
        return rows.lazy().with_columns(is_expired(minimum).alias("expired"))

    def domains(self) -> pl.LazyFrame:
        """Metadata domains, the last of each ``domain``, without those that were removed."""
        live = self.read_state(lambda state: live_domains(state.meta_of("domainMetadata")))
        return actions.conform(live, _DOMAINS).lazy()

    def skips(self) -> pl.LazyFrame:
        """Skipped files, the last of each path, with their count and cooldown.

        ``inCooldown`` says whether ``retryAfter`` is still to come.

        Source: specification 001, 3.6.
        """
        now = self._state.log.clock()
        rows = actions.conform(self._kind("mergeskip"), _SKIPS)
        return rows.lazy().with_columns(
            (pl.col("retryAfter") > now).fill_null(False).alias("inCooldown")
        )

    def in_cooldown(self, path: str) -> bool:
        """Whether a skipped file is to be left alone for now; one whose cooldown has passed may be
        tried again.

        Source: specification 001, 3.6.
        """
        cooling = pl.col("inCooldown") & (pl.col("path") == path)
        return bool(self.skips().select(cooling.any()).collect().item())

    def filter_cooldown(self, files: pl.LazyFrame | None = None) -> pl.LazyFrame:
        """Files that are not to be left alone for now, such as candidates of a merge.

        Args:
            files: A lazy frame with a column ``path`` (String); None is `files` of the snapshot.

        Returns:
            Its rows, columns and order, without files in cooldown.

        Source: specification 001, 3.6.
        """
        candidates = self.files() if files is None else files
        cooling = self.skips().filter("inCooldown").select("path")
        return candidates.join(cooling, on="path", how="anti", maintain_order="left")

    def _kind(self, kind: str) -> pl.DataFrame:
        return self.read_state(lambda state: state.meta_of(kind))

    def num_files(self) -> int:
        """How many live files there are.

        Memory: 24 bytes a file of the checkpoint, kept, so that after an update only what it adds
        is counted.
        """
        return self.read_state(lambda state: state.totals)[0]

    def total_size(self) -> int:
        """Bytes in the live files, as the log records them. Memory: as `num_files`."""
        return self.read_state(lambda state: state.totals)[1]

    def version_checksum(self) -> pl.DataFrame | None:
        """What the version's ``.crc`` file records beside what replay finds.

        Returns:
            One row a field: ``field``, ``recorded``, ``found`` (JSON text), ``agrees``; None where
            the version has no checksum file that can be read. A disagreement never changes an
            answer: the checksum is a hint.
        """
        recorded = self.read_state(lambda s: s.log.dialect.version_checksum(s.log.store, s.version))
        return None if recorded is None else compare_checksum(self, recorded)

    # --- as a dataframe ----------------------------------------------------------------------

    def to_polars(self) -> pl.DataFrame:
        """`files` as a Polars frame."""
        return self.files().collect()

    def to_arrow(self) -> pa.Table:
        """`files` as an Arrow table; maps are maps."""
        return self.to_polars().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """`files` as a pandas frame; maps become dicts, and whole numbers stay whole (nullable).

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as cause:
            raise MissingDependencyError(
                "to_pandas needs pandas", hint="pip install 'lakelog[pandas]'"
            ) from cause
        import pyarrow as pa

        nullable = {
            pa.int64(): pd.Int64Dtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.bool_(): pd.BooleanDtype(),
        }
        return self.to_arrow().to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface, so that DuckDB and pyarrow take a snapshot as it is."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    # --- onward ------------------------------------------------------------------------------

    def update(self, version: int | None = None) -> Snapshot:
        """A later version (None: the latest), at the cost of the commits in between.

        Returns this very snapshot if there is nothing newer.

        Raises:
            InvalidInputError: `version` is before this one.
        """
        require_version(version)
        if version is not None and version < self.version:
            raise InvalidInputError(
                "update goes forward only",
                version=version,
                expected=f"{self.version} or later",
                found=version,
                hint="use Table.snapshot(version) to go back",
            )
        state = self._state
        later = self.read_state(lambda state: update_state(state, version))
        return self if later is state else Snapshot(later)

    def write_parquet(
        self, directory: str | Path, max_part_bytes: int = 134_217_728
    ) -> ExportManifest:
        """Write the replayed state as multi-part flattened Parquet with a manifest.

        See `lakelog.log.export.write_state` for the layout, errors and memory.
        """
        at = self.timestamp_ms
        return self.read_state(lambda state: write_state(state, directory, max_part_bytes, at))

    def iter_state(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """The whole state in batches of the flattened action table.

        Order: protocol, metaData, domainMetadata, txn, mergeskip, then adds, then removes; files
        in the order of the log. ``dataChange`` is false. Damage to the checkpoint is raised, not
        passed over, for batches already handed out cannot be taken back.

        Memory: one batch, and the layers above the checkpoint.
        """
        known = actions.schema()
        unknown = [] if columns is None else [name for name in columns if name not in known]
        if unknown:
            raise InvalidInputError(
                "columns of the flattened action table are wanted",
                expected=", ".join(known),
                found=repr(unknown[0]),
            )
        return iter_state(self._state, columns)

    # --- display -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return table_text("Snapshot", self._described())

    def _repr_html_(self) -> str:
        return table_html("Snapshot", self._described())

    def _described(self) -> list[tuple[str, str]]:
        try:
            return described(self.facts() | {"path": redact(self.path)})
        except LakelogError as error:  # a display says what is wrong, and does not raise it
            return [
                ("path", redact(self.path)),
                ("version", str(self.version)),
                ("error", error.message),
            ]

    def facts(self) -> dict[str, Any]:
        """What a person wants to know first, as plain data; reads no files' rows."""
        metadata, protocol = self.metadata, self.protocol
        at = self.timestamp_ms
        return {
            "path": self.path,
            "format": self.format,
            "version": self.version,
            "timestamp": None if at is None else dt.datetime.fromtimestamp(at / 1000, dt.UTC),
            "id": metadata.id,
            "name": metadata.name,
            "partitionColumns": list(metadata.partition_columns),
            "columns": _column_names(metadata),
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": list(protocol.reader_features or ()),
            "writerFeatures": list(protocol.writer_features or ()),
            "configuration": dict(metadata.configuration),
        }


def _column_names(metadata: Metadata) -> list[str]:
    return list(metadata.schema.names) if metadata.schema_string is not None else []
