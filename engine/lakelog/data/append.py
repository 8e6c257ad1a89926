"""`append`, `overwrite` and `overwrite_partitions`: write rows in one commit.

An overwrite removes files that hold only rows to be replaced. Of other files, the remaining rows
are copied to new files; a predicate over partition columns alone never requires that, because it
holds for all rows of a file or for none. The partitions that `overwrite_partitions` replaces are
those of the written files.

Source: Delta protocol, Add File and Remove File; Add CDC File. Delta Lake, WriteIntoDelta
(``replaceWhere``, ``partitionOverwriteMode``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.conform import Conform, Incoming, Rows, merged_schema, to_table
from lakelog.data.files import ReadPlan, row_id_columns
from lakelog.data.read import read_files
from lakelog.data.rewrite import marked
from lakelog.data.row_commit import (
    RowCommit,
    WriteOptions,
    WriteReport,
    data_file_writer,
    discard_unnamed,
)
from lakelog.data.row_rules import require_valid_rules
from lakelog.data.targets import Targets, find_targets, holds, matching_rows
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.data.write_plan import is_clusterable
from lakelog.errors import (
    CommitOutcomeUnknown,
    InvalidInputError,
    LakelogError,
    MetadataChangedError,
    TableExistsError,
)
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.column_names import known_name, spelled
from lakelog.model.contract import Struct, column_named, to_polars
from lakelog.model.metadata import Metadata
from lakelog.skipping.prune import referenced_columns
from lakelog.skipping.values import PREFIX, partition_key, typed_partitions
from lakelog.sql.condition import condition
from lakelog.sql.sql_text import sql_text
from lakelog.transaction.conflicts import metadata_changes
from lakelog.transaction.create import NewTable
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.metadata_changes import HIGH_WATER_MARK
from lakelog.transaction.operations import CommitArguments, Operation
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction


def append(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction] | LogTransaction,
    rows: Any,
    options: WriteOptions,
) -> WriteReport:
    """Add rows to a table; see `lakelog.table.Table.append`."""
    incoming = Incoming.of(rows)
    once = isinstance(begin, LogTransaction) or options.version is not None or incoming.is_stream
    attempts = 1 if once else options.commit.get("max_attempts")
    # `_Write` raises for a number of another type.
    left = attempts if isinstance(attempts, int) else _IDENTITY_ATTEMPTS
    while True:
        write, left = _Write(log, runtime, begin, incoming, options), left - 1
        try:
            return write.run("Append", None)
        except MetadataChangedError:
            if left < 1 or not write.lost_its_values():
                raise
            incoming = Incoming.of(incoming.again)


def overwrite(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction] | LogTransaction,
    rows: Any,
    where: pl.Expr | str | None,
    options: WriteOptions,
) -> WriteReport:
    """Replace rows; see `lakelog.table.Table.overwrite`."""
    return _Write(log, runtime, begin, rows, options).run("Overwrite", where)


def overwrite_partitions(
    log: Log,
    runtime: Runtime,
    begin: Callable[..., LogTransaction] | LogTransaction,
    rows: Any,
    options: WriteOptions,
) -> WriteReport:
    """Replace partitions; see `lakelog.table.Table.overwrite_partitions`."""
    if options.schema_mode == "overwrite":
        raise InvalidInputError(
            "schema_mode 'overwrite' replaces all rows of a table",
            expected="schema_mode='merge' or None",
            found=options.schema_mode,
            hint="call overwrite to replace the columns of the table",
        )
    write = _Write(log, runtime, begin, rows, options, by_partition=True)
    return write.run("Overwrite", None)


def require_partitioning(snapshot: LogSnapshot, partition_by: Sequence[str] | None) -> None:
    """Refuse partition columns other than those of the table; None accepts them."""
    current = snapshot.metadata.partition_columns
    if partition_by is not None and tuple(spelled(partition_by, current)) != current:
        raise InvalidInputError(
            "the table is partitioned by other columns",
            path=snapshot.path,
            expected=", ".join(current) or "no columns",
            found=", ".join(partition_by) or "no columns",
            hint="overwrite the table with schema_mode='overwrite' to change its partitioning",
        )


_IDENTITY_ATTEMPTS = 10  # of an append with identity values, which writes the rows again

_MODES = {
    "append": "Append",
    "overwrite": "Overwrite",
    "overwrite_partitions": "Overwrite",
    "error": "ErrorIfExists",
    "ignore": "Ignore",
}
"""Modes of a write, as Spark names them."""


def create_with_rows(
    new: NewTable,
    rows: Incoming,
    mode: str,
    where: pl.Expr | str | None,
    options: WriteOptions,
) -> WriteReport:
    """Create a table with rows that satisfy `where`, in one commit; see `lakelog.write`."""
    require_valid_rules(new.table)
    plan = WritePlan.under(
        new.log.location,
        new.table,
        target_file_bytes=options.target_file_bytes,
        compression=options.compression,
        token=new.runtime.new_id(),
    )
    predicate = condition(where, plan.schema, new.log.clock() * 1000)
    if predicate is not None:
        referenced_columns(predicate, plan.schema)
    conform = Conform(plan.schema.fields, plan.partition_columns, plan.rules)
    writer = data_file_writer(new.log, new.runtime, plan)
    try:
        for lane, table in _conformed(
            rows, plan.schema, conform, predicate, writer, adds_columns=True
        ):
            writer.copy(table, lane)
        files = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return create_with_files(new, files, mode, writer.num_rows, options.commit)


def create_with_files(
    new: NewTable, files: pl.DataFrame, mode: str, num_rows: int, commit: CommitArguments
) -> WriteReport:
    """Create a table with written files in one commit; if it fails, they are deleted."""
    report = WriteReport(0, num_rows, files.height, int(files["size"].sum()))
    partition_by = orjson.dumps(list(new.table.metadata.partition_columns)).decode()
    operation = Operation("WRITE", {"mode": _MODES[mode], "partitionBy": partition_by})
    metrics = _metrics(report, pl.DataFrame())
    try:
        new.commit(files, operation=operation, metrics=metrics, commit=commit, rows_checked=True)
    except CommitOutcomeUnknown as error:
        error.add_note(
            f"lakelog: {files.height} data files are kept, because the commit may name them"
        )
        raise
    except LakelogError as error:
        lost = discard_unnamed(new.log, files["path"].to_list(), -1)
        if isinstance(error, TableExistsError):
            _withdraw(new, files["path"].filter(~files["path"].is_in(lost)))
        raise
    return report


def _withdraw(new: NewTable, paths: pl.Series) -> None:
    """Remove files of a write that another one's version 0 names: `convert` lists the folder, and
    adopts files that were not committed.
    """
    if not paths.len():
        return
    try:
        tx = LogTransaction(new.log, LogTails(new.log, new.runtime), new.runtime)
        adopted = tx.snapshot.files().filter(pl.col("path").is_in(paths.implode())).collect()
        if adopted.height:
            tx.remove(adopted)
            tx.replace_rows()
            tx.commit()
    except LakelogError as error:
        error.add_note(
            "lakelog: the table was created meanwhile, with data files of this write; they could "
            "not be removed from it, so do not write their rows again"
        )
        raise


class _Write:
    """One call of `append` or `overwrite`; `by_partition` replaces the partitions of the rows."""

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        begin: Callable[..., LogTransaction] | LogTransaction,
        rows: Any,
        options: WriteOptions,
        *,
        by_partition: bool = False,
    ) -> None:
        self._rows = Incoming.of(rows)
        self._options = options
        self._commit = RowCommit(log, runtime, begin, options, "WRITE")
        # A table without partition columns is replaced completely, as by Delta on Spark.
        self._by_partition = by_partition and bool(self._commit.snapshot.metadata.partition_columns)

    def run(self, mode: str, condition: pl.Expr | str | None) -> WriteReport:
        commit, tx = self._commit, self._commit.tx
        if tx.duplicate:
            return WriteReport(None, duplicate=True)
        if mode == "Append" and self._options.version is not None:
            tx.read()
        self._require_consistent(mode, condition)
        before = tx.snapshot.metadata
        metadata = self._evolved(tx.snapshot)
        partition_by = orjson.dumps(list(metadata.partition_columns)).decode()
        commit.parameters |= {"mode": mode, "partitionBy": partition_by}
        where = tx.snapshot.condition(condition)
        if condition is not None and (predicate := sql_text(condition)) is not None:
            commit.parameters["predicate"] = predicate
        if self._by_partition:
            commit.parameters["isDynamicPartitionOverwrite"] = True
        plan = commit.write_plan(metadata)
        # Without change data, readers of the feed derive the changes, under each schema.
        changes_schema = self._options.schema_mode == "overwrite" and (
            metadata != before or not commit.joins
        )
        if changes_schema:
            self._require_first()
        derives_changes = changes_schema or (self._by_partition and not commit.joins)
        if derives_changes:
            tx.replace_rows()
        with commit.guarded():
            replaces = mode != "Append" and not self._by_partition
            targets = self._targets(where) if replaces else None
            if metadata != before:
                commit.set_metadata(metadata)
                if changes_schema and not is_clusterable(metadata, plan.clustering):
                    tx.remove_clustering()
            records = commit.keeps_changes and not derives_changes
            report = self._write(plan, _Replacing(where, targets), records=records)
        return commit.commit(report)

    def lost_its_values(self) -> bool:
        """Whether other commits only generated identity values, so that later ones can be used."""
        before = self._commit.tx.snapshot
        now, table = LogSnapshot.open(self._commit.log).metadata, before.table_configuration
        return HIGH_WATER_MARK in (now.schema_string or "") and not metadata_changes(
            table.metadata, now, table.protocol, table.rules
        )

    def _require_consistent(self, mode: str, condition: pl.Expr | str | None) -> None:
        """Refuse options that contradict each other."""
        options, snapshot = self._options, self._commit.snapshot
        replaces = options.schema_mode == "overwrite"
        if replaces and (mode == "Append" or condition is not None):
            raise InvalidInputError(
                "schema_mode 'overwrite' replaces all rows of a table",
                path=snapshot.path,
                expected="overwrite without where",
                found="append" if mode == "Append" else f"where={condition}",
                hint="use schema_mode 'merge' to add columns",
            )
        if not replaces:
            require_partitioning(snapshot, options.partition_by)

    def _require_first(self) -> None:
        commit = self._commit
        if commit.follows:
            raise InvalidInputError(
                "one commit cannot have rows, or their changes, under two schemas",
                path=commit.snapshot.path,
                expected="an overwrite with schema_mode='overwrite' as the only call that writes "
                "rows of its transaction",
                hint="commit the other calls first",
            )

    def _evolved(self, snapshot: LogSnapshot) -> Metadata:
        """The metadata under which the rows are written."""
        metadata = snapshot.metadata
        if self._options.schema_mode is None:
            return metadata
        if self._options.schema_mode == "merge":
            return self._commit.with_columns(self._rows.schema)
        schema = merged_schema(None, self._rows.schema)
        partition_by = self._options.partition_by
        for name in metadata.partition_columns if partition_by is None else partition_by:
            known_name(name, schema.names, "the rows lack a partition column", path=snapshot.path)
        if schema == metadata.schema and partition_by is None:
            return metadata
        changed = self._commit.changed_metadata(schema, partition_by, replaced=True)
        require_valid_rules(snapshot.table_configuration.changed(metadata=changed))
        return changed

    def _targets(self, where: pl.Expr | None) -> Targets:
        """The files that are removed; refuses what the table forbids before rows are written."""
        commit = self._commit
        candidates = commit.candidates(where)
        targets = find_targets(commit.snapshot, candidates, where, commit.log.store)
        if targets.files.height:
            commit.require_allowed("add", "remove", *(["cdc"] if commit.keeps_changes else []))
        return targets

    def _write(self, plan: WritePlan, replacing: _Replacing, *, records: bool) -> WriteReport:
        commit, tx = self._commit, self._commit.tx
        row_ids = row_id_columns(commit.snapshot) if replacing.keeps_rows else None
        data = commit.writer(plan.with_row_ids(row_ids))
        changed: DataFileWriter | None = None
        if records and (replacing.files.height or commit.joins):
            changed = commit.writer(plan.of_changes())
        conform, adds_columns = commit.conform(plan), self._options.schema_mode is not None
        for lane, table in _conformed(
            self._rows, plan.schema, conform, replacing.where, data, adds_columns=adds_columns
        ):
            data.copy(table, lane)
            if changed is not None:
                changed.copy(marked(table, "insert"))
        given = data.num_rows
        for batch in replacing.kept(commit):
            data.copy(batch)
        files = data.finish()
        if self._by_partition and files.height:
            where = partitions_of(commit.snapshot, files, tx.snapshot.schema)
            replacing = _Replacing(where, self._targets(where))
        removed_files = replacing.files
        if changed is not None:
            for batch in replacing.deleted(commit):
                changed.copy(marked(batch, "delete"))
            tx.cdc(changed.finish())
        commit.put_files(files)
        if removed_files.height:
            commit.remove_files(removed_files)
        report = WriteReport(
            None,
            num_rows=given,
            num_files=files.height,
            num_bytes=int(files["size"].sum()),
            num_removed_files=removed_files.height,
            num_copied_rows=data.num_rows - given,
            num_deleted_rows=replacing.rows_deleted,
        )
        commit.metrics |= _metrics(report, removed_files)
        return report


def _conformed(
    rows: Incoming,
    schema: Struct,
    conform: Conform,
    where: pl.Expr | None,
    writer: DataFileWriter,
    *,
    adds_columns: bool,
) -> Iterator[tuple[int | None, pa.Table]]:
    """The rows in the table's schema, which satisfy `where`, and the lane of the writer."""
    for batch in rows.batches:
        given = without_void(batch, schema) if adds_columns else batch
        for lane, piece in writer.pieces(given, in_order=conform.numbers_rows):
            table = conform.table(piece)
            if where is not None:
                require_all(table, where)
            yield lane, table


def without_void(rows: Rows, known: Struct) -> Rows:
    """The rows without new columns of nulls only, which have no type."""
    table = to_table(rows)
    void = [
        f.name for f in table.schema if pa.types.is_null(f.type) and known.field(f.name) is None
    ]
    return table.drop_columns(void) if void else table


@dataclass(frozen=True)
class _Replacing:
    """The rows that an overwrite replaces, and their files; nothing if rows are appended."""

    where: pl.Expr | None
    targets: Targets | None

    @property
    def files(self) -> pl.DataFrame:
        """The files that are removed."""
        return pl.DataFrame() if self.targets is None else self.targets.files

    @property
    def rows_deleted(self) -> int:
        """Number of replaced rows in files that keep others."""
        return 0 if self.targets is None else self.targets.rows_matched

    @property
    def keeps_rows(self) -> bool:
        """Whether a removed file has rows to keep."""
        return self._partly is not None

    @property
    def _partly(self) -> tuple[pl.Expr, pl.DataFrame] | None:
        """The condition of replaced rows, and the files that keep others."""
        if self.targets is None or self.where is None or not self.targets.partly.height:
            return None
        return self.where, self.targets.partly

    def kept(self, commit: RowCommit) -> Iterator[pa.RecordBatch]:
        """The rows to keep of removed files."""
        if self._partly is None:
            return
        where, files = self._partly
        yield from read_files(
            ReadPlan.of(commit.snapshot, row_ids=True),
            files,
            predicate=where,
            satisfied=False,
            store=commit.log.store,
        )

    def deleted(self, commit: RowCommit) -> Iterator[pa.RecordBatch]:
        """The replaced rows."""
        if self.targets is not None:
            yield from matching_rows(commit.snapshot, self.targets, self.where, commit.log.store)


def require_all(table: pa.Table, where: pl.Expr) -> None:
    """Refuse rows that do not satisfy the predicate of an overwrite (``replaceWhere``)."""
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


def _metrics(report: WriteReport, removed_files: pl.DataFrame) -> Mapping[str, int | None]:
    """Metrics under Delta's names."""
    found: dict[str, int | None] = {
        "numFiles": report.num_files,
        "numOutputRows": report.num_rows,
        "numOutputBytes": report.num_bytes,
    }
    if removed_files.height:
        found |= {
            "numRemovedFiles": report.num_removed_files,
            "numRemovedBytes": int(removed_files["size"].sum()),
        }
    if report.num_copied_rows or report.num_deleted_rows:
        found |= {
            "numCopiedRows": report.num_copied_rows,
            "numDeletedRows": report.num_deleted_rows,
        }
    return found


def partitions_of(snapshot: LogSnapshot, adds: pl.DataFrame, read: Struct) -> pl.Expr:
    """The rows of every partition of some of the files, as a predicate; the columns of `read`, over
    which it is, may have narrower types.
    """
    columns = snapshot.metadata.partition_columns
    mapping = snapshot.table_configuration.column_mapping
    typed = typed_partitions(adds["partitionValues"], snapshot.schema, columns, mapping=mapping)
    values = typed.values.rename(lambda name: name.removeprefix(PREFIX))
    keys = {}
    for name, type_ in values.schema.items():
        field, column = read.field(name), column_named(name)
        is_same = field is not None and to_polars(field.type) == type_
        keys[name] = partition_key(column if is_same else column.cast(type_), type_)
    groups = values.select(keys.values()).unique()
    # The columns alone, by which the log is searched, and their combinations.
    found = [_is_one_of(key, groups[name].alias("").unique()) for name, key in keys.items()]
    if len(keys) > 1:
        groups.columns = [str(number) for number in range(len(keys))]
        combined = pl.struct(key.alias(str(number)) for number, key in enumerate(keys.values()))
        found.append(combined.is_in(groups.to_struct().implode()))
    return reduce(operator.and_, found)


def _is_one_of(key: pl.Expr, values: pl.Series) -> pl.Expr:
    """Whether a key has one of the values, which may be null."""
    known = values.drop_nulls()
    if known.len() == values.len():
        return key.is_in(known.implode())
    return key.is_null() | key.is_in(known.implode()) if known.len() else key.is_null()
