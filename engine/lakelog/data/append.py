"""`append` and `overwrite`: write rows in one commit.

The files are written first, then one transaction names them; no reader sees a row before all are
there. What fails before the commit leaves the table as it was, and its files are deleted. After a
commit that failed the log is read again, and only files that it does not name are deleted; where
it is unknown whether the commit was written, all are kept.

An overwrite removes files that hold only rows to be replaced. Of other files, the remaining rows
are copied to new files; a predicate over partition columns alone never requires that, because it
holds for all rows of a file or for none.

Source: Delta protocol, Add File and Remove File; Add CDC File. Delta Lake, WriteIntoDelta
(``replaceWhere``).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.conform import Conform, Incoming, Rows, merged_schema, to_table
from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.data.write import DataFileWriter, WritePlan, discard, slices
from lakelog.data.write_plan import CHANGE_TYPE, clustering_columns
from lakelog.errors import (
    CommitOutcomeUnknown,
    ConcurrentDeleteReadError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lakelog.log.context import Log
from lakelog.log.display import size_text, table_html, table_text
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.metadata import Metadata, is_on
from lakelog.skipping.prune import referenced_columns
from lakelog.skipping.sql_predicate import sql_text
from lakelog.skipping.values import PREFIX, typed_partitions
from lakelog.storage import LogStore
from lakelog.transaction import metadata_changes, write_support
from lakelog.transaction.row_tracking import ENABLED
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction

SchemaMode = Literal["merge"]

_MOST_WORKERS = 4


@dataclass(frozen=True)
class WriteOptions:
    """What `append` and `overwrite` have in common.

    Attributes:
        schema_mode: ``merge`` adds columns that the rows have and the table lacks; None refuses
            them.
        app_id: An application that writes each of its versions once.
        app_version: The application's version.
        user_metadata: A text to keep with the commit.
        target_file_bytes: Length of a file that is aimed at; None is what the table says.
        compression: Codec; None is what the table says.
        version: The version that the rows were derived from; None where they were not.
    """

    schema_mode: SchemaMode | None = None
    app_id: str | None = None
    app_version: int | None = None
    user_metadata: str | None = None
    target_file_bytes: int | None = None
    compression: str | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if self.schema_mode not in {None, "merge"}:
            raise InvalidInputError(
                "unknown schema_mode", expected="'merge' or None", found=self.schema_mode
            )


@dataclass(frozen=True)
class WriteReport:
    """What came of writing rows.

    Attributes:
        version: The version that was committed; None where nothing was.
        num_rows: Rows that were given and written.
        num_files: Data files that were added.
        num_bytes: Their length.
        num_removed_files: Data files that were removed.
        num_copied_rows: Rows that were not replaced, and are in new files.
        num_deleted_rows: Rows that were replaced in files of which others stay.
        duplicate: Whether the table already had the application's version, so that nothing was
            written.
    """

    version: int | None
    num_rows: int = 0
    num_files: int = 0
    num_bytes: int = 0
    num_removed_files: int = 0
    num_copied_rows: int = 0
    num_deleted_rows: int = 0
    duplicate: bool = False

    def _facts(self) -> list[tuple[str, str]]:
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
        }
        return facts + [(label, f"{number:,}") for label, number in others.items() if number]

    def __str__(self) -> str:
        return table_text("Write", self._facts())

    def _repr_html_(self) -> str:
        return table_html("Write", self._facts())


def append(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction],
    rows: Any,
    options: WriteOptions,
) -> WriteReport:
    """Add rows to a table; see `lakelog.table.Table.append`."""
    return _Write(log, runtime, begin, rows, options).run("Append", None)


def overwrite(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction],
    rows: Any,
    where: pl.Expr | str | None,
    options: WriteOptions,
) -> WriteReport:
    """Replace rows; see `lakelog.table.Table.overwrite`."""
    return _Write(log, runtime, begin, rows, options).run("Overwrite", where)


class _Write:
    """One call of `append` or `overwrite`."""

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        begin: Callable[..., LogTransaction],
        rows: Any,
        options: WriteOptions,
    ) -> None:
        self._log, self._runtime, self._begin = log, runtime, begin
        self._rows = Incoming.of(rows)
        self._options = options
        # The transaction gets them now; they are known once the rows are written.
        self._metrics: dict[str, Any] = {}
        self._parameters: dict[str, Any] = {}
        self._writers: list[DataFileWriter] = []

    def run(self, mode: str, condition: pl.Expr | str | None) -> WriteReport:
        options = self._options
        tx = self._begin(
            options.app_id,
            options.app_version,
            operation="WRITE",
            parameters=self._parameters,
            metrics=self._metrics,
            user_metadata=options.user_metadata,
            version=options.version,
        )
        if tx.duplicate:
            return WriteReport(None, duplicate=True)
        if mode == "Append" and options.version is not None:
            tx.read()
        metadata = self._evolved(tx.snapshot)
        partition_by = orjson.dumps(list(metadata.partition_columns)).decode()
        self._parameters |= {"mode": mode, "partitionBy": partition_by}
        where = tx.snapshot.condition(condition)
        if condition is not None and (predicate := sql_text(condition)) is not None:
            self._parameters["predicate"] = predicate
        plan = WritePlan.under(
            self._log.table,
            tx.snapshot.table_configuration.changed(metadata=metadata),
            clustering=clustering_columns(tx.snapshot),
            target_file_bytes=options.target_file_bytes,
            compression=options.compression,
            token=self._runtime.new_id(),
        )
        try:
            replaced = self._replaced(tx, where, plan) if mode != "Append" else None
        except NotFoundError as cause:
            self._require_live(tx, cause)
            raise
        replacing = _Replacing(where, replaced)
        if metadata != tx.snapshot.metadata:
            tx.set_metadata(
                schema=metadata.schema, configuration=_changed(tx.snapshot.metadata, metadata)
            )
        try:
            report = self._write(tx, plan, replacing)
        except BaseException as cause:
            for writer in self._writers:
                writer.abort()
            if isinstance(cause, NotFoundError):
                self._require_live(tx, cause)
            raise
        return self._commit(tx, report)

    # --- before ------------------------------------------------------------------------------

    def _evolved(self, snapshot: LogSnapshot) -> Metadata:
        """The metadata under which the rows are written."""
        metadata = snapshot.metadata
        if self._options.schema_mode is None:
            return metadata
        schema = merged_schema(metadata.schema, self._rows.schema)
        if schema == metadata.schema:
            return metadata
        wanted = metadata_changes.change_metadata(
            metadata, snapshot.table_configuration.dialect, None, {}, schema=schema
        )
        # Ids and physical names of new columns are settled now, for the files need them.
        return metadata_changes.settled_metadata(wanted, metadata, self._runtime)

    def _replaced(self, tx: LogTransaction, where: pl.Expr | None, plan: WritePlan) -> Replaced:
        """The files that are removed; refuses what the table forbids before rows are written."""
        snapshot = tx.snapshot
        candidates = tx.read(where).collect()
        replaced = find_replaced(snapshot, candidates, where, plan.mapping, self._log.store)
        if not replaced.files.height:
            return replaced
        kinds = ["add", "remove", "cdc"] if _keeps_changes(snapshot) else ["add", "remove"]
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
            snapshot.table_configuration, actions, pl.DataFrame(), self._log.table
        )
        return replaced

    def _require_live(self, tx: LogTransaction, missing: NotFoundError) -> None:
        """Raise a conflict where a missing data file of an earlier version was removed since."""
        if self._options.version is None:
            return
        live = LogSnapshot.open(self._log)
        then, now = (
            snapshot.files().filter(pl.col("path") == missing.path).collect().height
            for snapshot in (tx.snapshot, live)
        )
        if now or not then:
            return
        raise ConcurrentDeleteReadError(
            "a data file of the version that was read has been removed and deleted since",
            path=missing.path,
            version=live.version,
            rule="read_files_deleted",
            expected=f"the files of version {self._options.version}",
            hint="read the table again, recompute the rows, and retry",
        ) from missing

    # --- rows --------------------------------------------------------------------------------

    def _writer(self, plan: WritePlan) -> DataFileWriter:
        writer = DataFileWriter(
            plan,
            store=self._log.store,
            new_id=self._runtime.new_id,
            clock=self._log.clock,
            workers=min(_MOST_WORKERS, os.cpu_count() or 1),
        )
        self._writers.append(writer)
        return writer

    def _write(self, tx: LogTransaction, plan: WritePlan, replacing: _Replacing) -> WriteReport:
        data = self._writer(plan)
        gone = replacing.files
        changed: DataFileWriter | None = None
        if gone.height and _keeps_changes(tx.snapshot):
            changed = self._writer(plan.of_changes())
        for table in self._given(plan, replacing.where):
            data.write(table)
            if changed is not None:
                changed.write(_marked(table, "insert"))
        given = data.num_rows
        store = self._log.store
        for batch in replacing.kept(tx.snapshot, store):
            data.write(batch)
        files = data.finish()
        if changed is not None:
            for batch in replacing.deleted(tx.snapshot, store):
                changed.write(_marked(pa.Table.from_batches([batch]), "delete"))
            tx.cdc(changed.finish())
        if files.height:
            tx.add(files)
        if gone.height:
            tx.remove(gone)
        report = WriteReport(
            None,
            num_rows=given,
            num_files=files.height,
            num_bytes=int(files["size"].sum()),
            num_removed_files=gone.height,
            num_copied_rows=data.num_rows - given,
            num_deleted_rows=replacing.rows_deleted,
        )
        self._metrics |= _metrics(report, gone)
        return report

    def _given(self, plan: WritePlan, where: pl.Expr | None) -> Iterator[pa.Table]:
        """The rows of the caller, in the table's schema, each of which satisfies `where`."""
        conform = Conform(plan.schema.fields, plan.partition_columns)
        for batch in self._rows.batches:
            for piece in slices(batch):
                table = conform.table(self._without_void(piece, plan))
                if where is not None:
                    require_all(table, where)
                yield table

    def _without_void(self, rows: Rows, plan: WritePlan) -> Rows:
        """The rows without new columns that hold nulls only, and so have no type to be added
        with.
        """
        if self._options.schema_mode is None:
            return rows
        table, known = to_table(rows), plan.schema
        void = [
            f.name for f in table.schema if pa.types.is_null(f.type) and known.field(f.name) is None
        ]
        return table.drop_columns(void) if void else table

    # --- the commit --------------------------------------------------------------------------

    def _commit(self, tx: LogTransaction, report: WriteReport) -> WriteReport:
        try:
            tx.commit()
        except CommitOutcomeUnknown as unknown:
            unknown.add_note(f"lakelog: {self._kept()}, because the commit may refer to them")
            raise
        except LakelogError as error:
            if not tx.committed:
                self._give_up(error)
            raise
        except BaseException as interrupt:
            if not tx.committed:
                interrupt.add_note(f"lakelog: {self._kept()}, because the commit may refer to them")
            raise
        if not tx.committed:
            self._give_up(None)
            return WriteReport(None, duplicate=tx.duplicate)
        return replace(report, version=tx.version)

    def _give_up(self, error: LakelogError | None) -> None:
        """Delete the files of a commit that was not written, once the log has been read again."""
        paths = self._paths()
        if not paths:
            return
        try:
            live = LogSnapshot.open(self._log).files().select("path").collect()["path"]
            named = live.is_in(paths).any()
        except LakelogError as cause:
            if error is not None:
                error.add_note(f"lakelog: {self._kept()}: the log cannot be read: {cause}")
            return
        if not named:
            discard(self._log.store, paths)
        elif error is not None:
            error.add_note(f"lakelog: {self._kept()}: the log refers to them")

    def _paths(self) -> list[str]:
        return [path for writer in self._writers for path in writer.paths]

    def _kept(self) -> str:
        return f"the {len(self._paths())} data files of this write are kept"


@dataclass(frozen=True)
class _Replacing:
    """What an overwrite replaces; nothing where rows are only appended.

    Attributes:
        where: Which rows.
        replaced: Which files.
    """

    where: pl.Expr | None
    replaced: Replaced | None

    @property
    def files(self) -> pl.DataFrame:
        """The files that are removed."""
        return pl.DataFrame() if self.replaced is None else self.replaced.files

    @property
    def rows_deleted(self) -> int:
        """Rows that are replaced in files of which others stay."""
        return 0 if self.replaced is None else self.replaced.rows_deleted

    def kept(self, snapshot: LogSnapshot, store: LogStore) -> Iterator[pa.RecordBatch]:
        """The rows of those files that stay."""
        if self.replaced is None or self.where is None or not self.replaced.partly.height:
            return
        yield from read_files(
            ReadPlan.of(snapshot), self.replaced.partly, predicate=keeping(self.where), store=store
        )

    def deleted(self, snapshot: LogSnapshot, store: LogStore) -> Iterator[pa.RecordBatch]:
        """The rows of those files that are replaced."""
        if self.replaced is None:
            return
        plan = ReadPlan.of(snapshot)
        for files, where in ((self.replaced.whole, None), (self.replaced.partly, self.where)):
            if files.height:
                yield from read_files(plan, files, predicate=where, store=store)


def require_all(table: pa.Table, where: pl.Expr) -> None:
    """Refuse rows of which one does not satisfy the predicate of an overwrite.

    Args:
        table: Rows in the table's schema.
        where: The predicate; null is not true.

    Raises:
        InvalidInputError: ``found`` is such a row's number, from 0, and its values there.

    Source: Delta Lake, ``replaceWhere``.
    """
    columns = [name for name in table.column_names if name in where.meta.root_names()]
    rows = pl.DataFrame(table.select(columns)) if columns else pl.DataFrame(height=table.num_rows)
    wrong = (~holds(rows, where)).arg_true()
    if wrong.len():
        row = int(wrong[0])
        raise InvalidInputError(
            "a row does not satisfy the predicate of the overwrite",
            expected=sql_text(where) or str(where),
            found={"row": row, **(rows.row(row, named=True) if columns else {})},
            hint="pass only rows for which the predicate is true, or change the predicate",
        )


def _marked(table: pa.Table, kind: str) -> pa.Table:
    return table.append_column(CHANGE_TYPE, pa.repeat(kind, table.num_rows))


def _keeps_changes(snapshot: LogSnapshot) -> bool:
    return snapshot.table_configuration.is_active("changeDataFeed")


def _changed(before: Metadata, after: Metadata) -> dict[str, str | None]:
    """Properties that are new or have another value."""
    old = before.configuration
    return {k: v for k, v in after.configuration.items() if k not in old or old[k] != v}


def _metrics(report: WriteReport, gone: pl.DataFrame) -> Mapping[str, int]:
    """Metrics by the names that Delta gives them."""
    found = {
        "numFiles": report.num_files,
        "numOutputRows": report.num_rows,
        "numOutputBytes": report.num_bytes,
    }
    if gone.height:
        found |= {
            "numRemovedFiles": report.num_removed_files,
            "numRemovedBytes": int(gone["size"].sum()),
        }
    if report.num_copied_rows or report.num_deleted_rows:
        found |= {
            "numCopiedRows": report.num_copied_rows,
            "numDeletedRows": report.num_deleted_rows,
        }
    return found


_HOLDS, _ROW = "\x00holds", "\x00row"  # no column is called so


@dataclass(frozen=True)
class Replaced:
    """What becomes of a table's files.

    Attributes:
        whole: Files all of whose rows are replaced, as `Snapshot.files` has them.
        partly: Files some of whose rows are.
        rows_deleted: Rows of `partly` that are replaced.
    """

    whole: pl.DataFrame
    partly: pl.DataFrame
    rows_deleted: int = 0

    @property
    def files(self) -> pl.DataFrame:
        """Every file that is removed."""
        return pl.concat([self.whole, self.partly])


def find_replaced(
    snapshot: LogSnapshot,
    candidates: pl.DataFrame,
    where: pl.Expr | None,
    mapping: str,
    store: LogStore,
) -> Replaced:
    """Judge files that may hold rows to be replaced.

    Where data columns decide, these columns of every candidate are read.
    """
    none = candidates.clear()
    if where is None or not candidates.height:
        return Replaced(candidates, none)
    metadata = snapshot.metadata
    columns = referenced_columns(where, metadata.schema)
    if set(columns) <= set(metadata.partition_columns):
        is_replaced = _of_partitions(snapshot, candidates, where, columns, mapping)
        return Replaced(candidates.filter(is_replaced), none)
    plan = ReadPlan.of(snapshot, columns)
    whole: list[pl.DataFrame] = []
    partly: list[pl.DataFrame] = []
    deleted = 0
    for file in candidates.iter_slices(1):
        hit = rows = 0
        for batch in read_files(plan, file, store=store):
            hit += int(holds(pl.DataFrame(pa.Table.from_batches([batch])), where).sum())
            rows += batch.num_rows
        if hit == rows:
            whole.append(file)
        elif hit:
            partly.append(file)
            deleted += hit
    if partly and is_on(metadata.configuration, ENABLED):
        raise UnsupportedFeatureError(
            "the table has row tracking, and copied rows would lose their row ids",
            path=snapshot.path,
            version=snapshot.version,
            expected="a predicate that is true for all rows of a file, or for none",
            found="rowTracking",
            hint="overwrite by partition columns, or with an engine that preserves row ids",
        )
    return Replaced(pl.concat([none, *whole]), pl.concat([none, *partly]), deleted)


def partitions_of(snapshot: LogSnapshot, adds: pl.DataFrame, mapping: str) -> pl.Expr:
    """The rows of every partition that some of the files are of, as a predicate.

    Memory grows with the number of partitions.
    """
    columns = snapshot.metadata.partition_columns
    typed = typed_partitions(adds["partitionValues"], snapshot.schema, columns, mapping=mapping)
    *outer, last = (series.alias(series.name.removeprefix(PREFIX)) for series in typed.values)
    # Values of the last column are given as lists, so that the predicate stays small.
    groups = pl.DataFrame([*outer, last]).unique()
    parts = groups.partition_by([s.name for s in outer]) if outer else [groups]
    each = [
        reduce(operator.and_, [_is_one_of(series.unique()) for series in part]) for part in parts
    ]
    while len(each) > 1:  # pairs of pairs: a chain of thousands would be too deep
        each = [reduce(operator.or_, each[n : n + 2]) for n in range(0, len(each), 2)]
    return each[0]


def _is_one_of(values: pl.Series) -> pl.Expr:
    """Whether the column of that name has one of the values, which may be null."""
    column, known = pl.col(values.name), values.drop_nulls()
    if known.len() == values.len():
        return column.is_in(known.implode())
    return column.is_null() | column.is_in(known.implode()) if known.len() else column.is_null()


def keeping(where: pl.Expr) -> pl.Expr:
    """The rows that stay: those for which `where` is false, and those for which it is null."""
    return where.fill_null(value=False).not_()


def _of_partitions(
    snapshot: LogSnapshot,
    files: pl.DataFrame,
    where: pl.Expr,
    columns: Sequence[str],
    mapping: str,
) -> pl.Series:
    """Whether the predicate holds of each file's rows, by its partition values."""
    typed = typed_partitions(files["partitionValues"], snapshot.schema, columns, mapping=mapping)
    for known in typed.known.get_columns():
        if not known.all():
            raise UnsupportedFeatureError(
                "a file has an invalid partition value, so whether its rows match the "
                "predicate is unknown",
                path=files["path"].filter(~known)[0],
                version=snapshot.version,
                expected=known.name.removeprefix(PREFIX),
                found=str(files["partitionValues"].filter(~known)[0]),
            )
    values = [series.alias(series.name.removeprefix(PREFIX)) for series in typed.values]
    return holds(pl.DataFrame(values) if values else typed.values, where)


def holds(rows: pl.DataFrame, where: pl.Expr) -> pl.Series:
    """Of which rows a predicate is true; null is not true."""
    # A predicate without columns still speaks of every row.
    counted = rows.with_row_index(_ROW)
    return counted.with_columns(where.alias(_HOLDS))[_HOLDS].fill_null(value=False)
