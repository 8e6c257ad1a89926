"""`RowCommit`: the transaction and the new files of one call that writes rows.

The files are written first, then one transaction names them, so that readers see all rows or none.
A failure before the commit leaves the table unchanged, and the files are deleted. After a failed
commit the log is read again, and the files are deleted unless it names one; if the outcome of the
commit is unknown, all are kept.

Source: Delta protocol, Add File and Remove File.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from lakelog.data.alter import widened
from lakelog.data.conform import Conform, merged_schema
from lakelog.data.deletion_vectors import VectorWriter
from lakelog.data.files import require_single
from lakelog.data.row_rules import IdentityValues
from lakelog.data.write import DataFileWriter, WritePlan, discard
from lakelog.data.write_plan import clustering_columns
from lakelog.dialects.commit_reader import group_commits
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.dialects.properties import changed
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CommitOutcomeUnknown,
    ConcurrentDeleteReadError,
    InvalidInputError,
    LakelogError,
    LakelogWarning,
    NotFoundError,
    TableNotFoundError,
)
from lakelog.log.context import Log
from lakelog.log.files import find_files
from lakelog.log.snapshot import EvolvedSnapshot, LogSnapshot
from lakelog.model import contract
from lakelog.model.metadata import Metadata
from lakelog.transaction import metadata_changes, write_support
from lakelog.transaction.operations import CommitArguments
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction, Part

SchemaMode = Literal["merge", "overwrite"]

_MOST_WORKERS = 4
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class WriteOptions:
    """Options of all calls that write rows, as in `Table.overwrite`; None keeps the table's."""

    schema_mode: SchemaMode | None = None
    target_file_bytes: int | None = None
    compression: str | None = None
    version: int | None = None
    commit: CommitArguments = field(default_factory=CommitArguments)
    partition_by: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.schema_mode not in {None, "merge", "overwrite"}:
            raise InvalidInputError(
                "unknown schema_mode",
                expected="'merge', 'overwrite' or None",
                found=self.schema_mode,
            )


@dataclass(frozen=True)
class WriteReport(Displayed):
    """The result of a call that wrote rows.

    Attributes:
        version: The version that was committed; None where nothing was.
        num_rows: Rows that were given and written.
        num_files: Data files that were added.
        num_bytes: Their length.
        num_removed_files: Data files that were removed.
        num_copied_rows: Rows that were not changed, and are in new files.
        num_deleted_rows: Rows that were deleted or replaced; of a file that was removed without
            being read, the rows that its statistics or its footer count, and None if neither can
            be read. An overwrite counts only those in files of which other rows stay.
        num_updated_rows: Rows that were updated.
        num_deletion_vectors: Data files whose deleted rows are marked by a new deletion vector.
        duplicate: Whether the table already had the application's version, so that nothing was
            written.
    """

    version: int | None
    num_rows: int = 0
    num_files: int = 0
    num_bytes: int = 0
    num_removed_files: int = 0
    num_copied_rows: int = 0
    num_deleted_rows: int | None = 0
    num_updated_rows: int = 0
    num_deletion_vectors: int = 0
    duplicate: bool = False

    _title = "Write"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        version = "nothing was written" if self.version is None else str(self.version)
        facts = [
            (
                "version",
                "nothing was written: this app_version was committed before"
                if self.duplicate
                else version,
            ),
            ("rows", f"{self.num_rows:,}"),
            ("files", f"{self.num_files:,}, {size_text(self.num_bytes)}"),
        ]
        others = {
            "removed files": self.num_removed_files,
            "copied rows": self.num_copied_rows,
            "deleted rows": self.num_deleted_rows,
            "updated rows": self.num_updated_rows,
            "deletion vectors": self.num_deletion_vectors,
        }
        texts = {name: "unknown" if n is None else f"{n:,}" for name, n in others.items() if n != 0}
        return facts + list(texts.items())


class RowCommit:
    """One call that writes rows: its transaction and its files. Parameters and metrics may be
    filled in until the transaction ends. If the transaction is the caller's (`joins`), other calls
    may add change data to the commit, which readers use alone, so each call has to record all of
    its changes. `follows`: it had another call before.
    """

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        begin: Callable[..., LogTransaction] | LogTransaction,
        options: WriteOptions,
        operation: str,
    ) -> None:
        self.log, self.options, self._runtime = log, options, runtime
        self.metrics: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self._writers: list[DataFileWriter | VectorWriter] = []
        self._identities: list[IdentityValues] = []
        self._evolved: LogSnapshot | None = None
        self.joins = isinstance(begin, LogTransaction)
        self.follows = False
        if isinstance(begin, LogTransaction):
            self.tx = begin
            self.follows = begin.has_parts
            begin.join(Part(operation, self.parameters, self.metrics, self._settle))
            return
        self.tx = begin(
            **{"operation": operation, **options.commit},
            parameters=self.parameters,
            metrics=self.metrics,
            version=options.version,
        )

    @property
    def snapshot(self) -> LogSnapshot:
        """The version that the transaction reads, with the columns that the call adds."""
        return self._evolved or self.tx.snapshot

    def candidates(self, where: pl.Expr | None) -> pl.DataFrame:
        """The files that can have matching rows, which the transaction has then read."""
        files = self.tx.read(where).collect()
        require_single(files, self.tx.snapshot.version)
        return files

    def with_columns(self, rows: pa.Schema) -> Metadata:
        """The metadata with the columns of rows that the table lacks, and wider types of rows."""
        metadata = self.tx.snapshot.metadata
        known = widened(self.tx.snapshot, contract.from_arrow(rows, void=True))
        schema = merged_schema(known, rows)
        return metadata if schema == metadata.schema else self.changed_metadata(schema, None)

    def changed_metadata(
        self,
        schema: contract.Struct,
        partition_by: Sequence[str] | None,
        *,
        replaced: bool = False,
    ) -> Metadata:
        """The metadata with another schema, and ids and physical names of new columns; if all files
        are `replaced`, also of those with another type.
        """
        metadata, table = self.tx.snapshot.metadata, self.tx.snapshot.table_configuration
        wanted = metadata_changes.change_metadata(
            metadata, table.dialect, None, {}, schema=schema, partition_by=partition_by
        )
        changed_table = table.changed(metadata=wanted)
        return metadata_changes.settled_metadata(
            changed_table, metadata, self._runtime, lambda: replaced
        )

    def set_metadata(self, metadata: Metadata) -> None:
        """Change the metadata in the same commit; files are then read and written under it."""
        before = self.tx.snapshot.metadata
        if metadata == before:
            return
        self.tx.set_metadata(
            schema=metadata.schema,
            partition_by=metadata.partition_columns,
            configuration=changed(metadata.configuration, before.configuration),
        )
        self._evolved = EvolvedSnapshot(self.tx.snapshot, metadata)

    @property
    def keeps_changes(self) -> bool:
        """Whether the table keeps a change data feed."""
        return self.snapshot.table_configuration.is_active("changeDataFeed")

    def write_plan(self, metadata: Metadata | None = None, *, new_rows: bool = True) -> WritePlan:
        """The plan of its data files, under other metadata if given; as `WritePlan.under`."""
        table = self.snapshot.table_configuration
        return WritePlan.under(
            self.log.location,
            table if metadata is None else table.changed(metadata=metadata),
            clustering=clustering_columns(self.snapshot),
            target_file_bytes=self.options.target_file_bytes,
            compression=self.options.compression,
            token=self._runtime.new_id(),
            new_rows=new_rows,
        )

    def conform(self, plan: WritePlan) -> Conform:
        """The conversion of new rows to the table's schema and rules."""
        assert plan.rules is not None
        identities = IdentityValues(plan.rules, self.tx.identity_marks)
        self._identities.append(identities)
        return Conform(plan.schema.fields, plan.partition_columns, plan.rules, identities)

    def put_files(self, files: pl.DataFrame) -> None:
        """Add files to the transaction, whose rows satisfy the table's rules."""
        for identities in self._identities:
            self.tx.advance_identity(identities.marks)
        if files.height:
            self.tx.add(files)
            self.tx.declare_rows_checked(files["path"].to_list())

    def remove_files(self, files: pl.DataFrame) -> None:
        """Remove files whose other rows are in new files with their row ids."""
        self.tx.remove(files)
        self.tx.declare_row_ids_kept(files["path"].to_list())

    def require_allowed(self, *kinds: str) -> None:
        """Refuse kinds of file actions that the table forbids, before rows are written."""
        actions = pl.DataFrame(
            {
                "actionType": kinds,
                "path": kinds,
                "dataChange": [kind != "cdc" for kind in kinds],
                "extendedFileMetadata": [True if kind == "remove" else None for kind in kinds],
                "stats": '{"numRecords":1}',
            }
        )
        write_support.check_actions(
            self.snapshot.table_configuration,
            actions,
            pl.DataFrame(),
            self.log.table,
            checked=actions["path"],
        )

    def writer(self, plan: WritePlan, **memory: int) -> DataFileWriter:
        """A new writer of data files; `memory` is as in `data_file_writer`."""
        writer = data_file_writer(self.log, self._runtime, plan, **memory)
        self._writers.append(writer)
        return writer

    def vector_writer(self) -> VectorWriter:
        """A new writer of deletion vectors."""
        writer = VectorWriter(self.log.store, self._runtime.new_id)
        self._writers.append(writer)
        return writer

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Delete the new files if the block fails; a file that was removed since is a conflict."""
        try:
            yield
        except BaseException as cause:
            for writer in self._writers:
                writer.abort()
            if isinstance(cause, NotFoundError):
                self._require_live(cause)
            raise

    def _require_live(self, missing: NotFoundError) -> None:
        """Raise a conflict where a missing data file of an earlier version was removed since."""
        if self.options.version is None:
            return
        live = LogSnapshot.open(self.log)
        then, now = (
            find_files(snapshot, [missing.path or ""], ("path",)).height
            for snapshot in (self.snapshot, live)
        )
        if now or not then:
            return
        raise ConcurrentDeleteReadError(
            "a data file of the version that was read has been removed and deleted since",
            path=missing.path,
            version=live.version,
            rule="read_files_deleted",
            expected=f"the files of version {self.options.version}",
            hint="read the table again, recompute the rows, and retry",
        ) from missing

    def commit(self, report: WriteReport) -> WriteReport:
        """Commit, unless the transaction is the caller's. After an error the files are deleted,
        except after CommitOutcomeUnknown, because the commit may have succeeded.
        """
        if self.joins:
            return report
        try:
            self.tx.commit()
        except BaseException as error:
            self._settle(error)
            raise
        self._settle(None)
        if not self.tx.committed:
            return WriteReport(None, duplicate=self.tx.duplicate)
        return replace(report, version=self.tx.version)

    def _settle(self, error: BaseException | None) -> None:
        """Delete the files if the commit certainly failed, or was not attempted (None)."""
        if isinstance(error, CommitOutcomeUnknown):
            error.add_note(f"lakelog: {self._kept()}, because the commit may refer to them")
        elif self.tx.committed:
            return
        elif error is None or isinstance(error, LakelogError):
            self._give_up(error)
        else:
            error.add_note(f"lakelog: {self._kept()}, because the commit may refer to them")

    def _give_up(self, error: LakelogError | None) -> None:
        """Delete the files of a failed commit, unless the log names one."""
        paths = self._paths()
        if not paths:
            return
        try:
            named = _named(LogSnapshot.open(self.log), paths)
        except TableNotFoundError:
            named = False  # the table was deleted meanwhile
        except LakelogError as cause:
            if error is not None:
                error.add_note(f"lakelog: {self._kept()}: the log cannot be read: {cause}")
            return
        if not named:
            discard(self.log.store, paths)
        elif error is not None:
            error.add_note(f"lakelog: {self._kept()}: the log refers to them")

    def _paths(self) -> list[str]:
        return [path for writer in self._writers for path in writer.paths]

    def _kept(self) -> str:
        return f"the {len(self._paths())} data files of this write are kept"


def data_file_writer(log: Log, runtime: Runtime, plan: WritePlan, **memory: int) -> DataFileWriter:
    """A writer of data files in this process; `memory` is its ``memory_bytes``, if limited."""
    return DataFileWriter(
        plan,
        store=log.store,
        new_id=runtime.new_id,
        clock=log.clock,
        workers=min(_MOST_WORKERS, os.cpu_count() or 1),
        **memory,
    )


def _named(snapshot: LogSnapshot, paths: list[str]) -> bool:
    """Whether a version names one of the files, as a data file or for its deletion vector."""
    columns = ["path", "dvStorageType", "dvPathOrInline"]
    live = snapshot.files().select(columns).collect()
    vectors = live.filter(pl.col("dvStorageType") == "u")
    named = live["path"].is_in(paths).any()
    return bool(named) or bool(vector_paths(vectors).is_in(paths).any())


def discard_unnamed(log: Log, paths: Sequence[str], version: int) -> list[str]:
    """Delete new files that certainly no commit after `version` names, and return the deleted ones.
    Never raises `LakelogError`: what is uncertain is left for vacuum, with a `LakelogWarning`.
    """
    if not paths:
        return []
    try:
        named = _named_since(log, version, pl.Series(paths))
        if named is None:
            return []
        lost = [path for path in paths if path not in named]
        failures = discard(log.store, lost)
    except LakelogError as error:
        _leave(len(paths), error)
        return []
    if failures:
        _leave(len(failures), failures[0])
    kept = {failure.path for failure in failures}
    return [path for path in lost if path not in kept]


def _leave(count: int, error: LakelogError) -> None:
    warnings.warn(
        f"{count} data files of a failed write remain for vacuum: {error}",
        LakelogWarning,
        stacklevel=4,
    )


def _named_since(log: Log, version: int, paths: pl.Series) -> set[str] | None:
    """The paths that a commit after `version` adds or removes; None if the log has gaps."""
    listing = log.list_since(version)
    latest = max((f[-1].version for f in (listing.commits, listing.checkpoints) if f), default=-1)
    commits = [c for c in listing.commits if c.version > version]
    if [c.version for c in commits] != list(range(version + 1, latest + 1)):
        return None
    named: set[str] = set()
    for chunk in group_commits(commits, _CHUNK_BYTES):
        files = log.dialect.decode(log.store, chunk).files
        if files.height:
            named.update(files["path"].filter(files["path"].is_in(paths.implode())))
    return named
