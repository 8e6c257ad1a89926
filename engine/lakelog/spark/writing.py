"""The batch writer of the data source: ``append``, ``overwrite``, and ``replaceWhere``.

A location without a table becomes one, with the columns of the dataframe and the partition columns
in option ``partitionBy``; its version 0 has the rows.

Tasks write data files and report them to the driver, which commits them in one transaction
(`task_commit`). The transaction is based on the version in option ``readVersion``, else on the
latest version when the write was planned: an overwrite removes the files of that version, and later
commits are checked for conflicts, so that two concurrent overwrites never leave the rows of both.

``replaceWhere`` removes the rows for which it is true. Other rows of the same files are copied by
the driver, so it is suitable for partition columns, or for few files. ``partitionOverwriteMode``
``dynamic`` removes the partitions that new rows are written to; without new rows, it removes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lakelog.data.append import (
    create_with_files,
    partitions_of,
    require_partitioning,
    without_void,
)
from lakelog.data.conform import Conform
from lakelog.data.files import ReadPlan, require_single
from lakelog.data.read import read_files
from lakelog.data.row_commit import discard_unnamed
from lakelog.data.targets import find_targets
from lakelog.data.write import DataFileWriter, WritePlan, no_files
from lakelog.dialects.registry import registered
from lakelog.errors import (
    InvalidInputError,
    MetadataChangedError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.skipping.prune import referenced_columns
from lakelog.spark.error_display import readable
from lakelog.spark.options import SourceOptions
from lakelog.spark.task_commit import (
    TaskResult,
    discard,
    kept_table,
    publish,
    unpacked,
    write_task_files,
)
from lakelog.spark.types import arrow_schema, new_schema
from lakelog.sql.condition import condition
from lakelog.table_functions import new_log
from lakelog.table_transaction import Transaction
from lakelog.transaction import write_support
from lakelog.transaction.create import NewTable, TableDefinition
from lakelog.transaction.runtime import Runtime

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Message(WriterCommitMessage):
    """A task's report to the driver."""

    written: TaskResult


def write_plan(
    base: LogSnapshot | NewTable, options: SourceOptions, schema: StructType
) -> WritePlan:
    """The plan by which tasks write a dataframe's rows, based on a version or a new table."""
    sizes = {
        "target_file_bytes": options.get("targetFileBytes"),
        "compression": options.get("compression"),
    }
    if not schema.names:
        raise InvalidInputError(
            "the dataframe has no columns, so none of its rows would be written",
            path=options.path,
        )
    rows = arrow_schema(schema).empty_table()
    if isinstance(base, NewTable):
        plan = WritePlan.under(options.path, base.table, options.storage_options, **sizes)
        rows = without_void(rows, plan.schema)
    else:
        plan = WritePlan.of(base, options.storage_options, **sizes)
    # Errors of the columns alone are reported before the first task runs.
    Conform(plan.schema.fields, rules=plan.rules).table(rows)
    return plan


def require_removable(snapshot: LogSnapshot) -> None:
    """Raise if all rows of an append-only table would be removed, before any task runs."""
    if not snapshot.table_configuration.is_active("appendOnly"):
        return
    file = snapshot.files().head(1).collect()
    if file.height:
        removes = file.select("path", actionType=pl.lit("remove"), dataChange=True)
        removes = removes.with_columns(extendedFileMetadata=True)
        write_support.check_actions(
            snapshot.table_configuration,
            removes,
            pl.DataFrame(),
            snapshot.path,
            rows_replaced=True,
        )


def task_number() -> int:
    """Number of the current task, for the names of its files."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def task_results(messages: Sequence[Message | None]) -> list[TaskResult]:
    """The results of the finished tasks."""
    return [message.written for message in messages if message is not None]


class BatchWriter(DataSourceArrowWriter):
    """Writes one dataframe as one commit. Created on the driver, and pickled to its tasks."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if ("txnAppId" in options.values) != ("txnVersion" in options.values):
            raise InvalidInputError(
                "pass options txnAppId and txnVersion together",
                path=options.path,
                hint="number the writes of the application, and pass the number of each write",
            )
        self.options = options
        self.overwrite = overwrite
        self.definition: TableDefinition | None = None
        self.table_id: str | None
        snapshot = self._snapshot()
        if snapshot is None:
            names = options.get("partitionBy", ())
            self.definition = TableDefinition(new_schema(schema), names)
            self.version, self.table_id = -1, None
            self.plan = write_plan(self._new_table(self.definition), options, schema)
        else:
            require_partitioning(snapshot, options.get("partitionBy"))
            self.version, self.table_id = snapshot.version, snapshot.metadata.id
            self.plan = write_plan(snapshot, options, schema)
        # One clock: tasks and the commit evaluate the condition for the same moment.
        now_us = self._new_log().clock() * 1000
        self._where = condition(options.get("replaceWhere"), self.plan.schema, now_us)
        dynamic = options.get("partitionOverwriteMode") == "dynamic"
        replaces = "replaceWhere" if self._where is not None else "partitionOverwriteMode=dynamic"
        if (self._where is not None or dynamic) and not overwrite:
            raise InvalidInputError(
                f"option {replaces} needs mode overwrite, and the mode is append",
                path=options.path,
                hint='use .mode("overwrite")',
            )
        # A table without partitions is overwritten completely, as by Spark's other sources.
        self.dynamic = dynamic and bool(self.plan.partition_columns)
        if snapshot is not None:
            if overwrite and self._where is None and not dynamic:
                require_removable(snapshot)
            self._require_whole_files(snapshot)

    def _snapshot(self) -> LogSnapshot | None:
        """The version that the write is based on; None if the table does not exist."""
        version = self.options.get("readVersion")
        try:
            return kept_table(self.options).snapshot(version)
        except TableNotFoundError:
            # A relative path may be one of the server's own folders, which are deleted.
            if version is not None or self.options.relative is not None:
                raise
            return None

    def _new_table(self, definition: TableDefinition) -> NewTable:
        return NewTable(self._new_log(), Runtime(), registered(), definition)

    def _new_log(self) -> Log:
        return new_log(self.options.path, dict(self.options.storage_options))

    def _require_whole_files(self, snapshot: LogSnapshot) -> None:
        """Raise if a table with a change data feed would report copied rows as new."""
        where = self._where
        if where is None or not snapshot.table_configuration.is_active("changeDataFeed"):
            return
        columns = referenced_columns(where, self.plan.schema)
        if not set(columns) <= set(self.plan.partition_columns):
            raise UnsupportedFeatureError(
                (
                    "the table has a change data feed, and the overwrite would keep some "
                    "rows of its files"
                ),
                path=snapshot.path,
                expected="a replaceWhere over partition columns, or without replaceWhere",
                found="delta.enableChangeDataFeed",
                hint="use lakelog.Table.overwrite, which records the deleted rows",
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write the task's rows to new files."""
        adds = write_task_files(self.plan, iterator, task_number(), self._where)
        return Message(TaskResult(self.version, self.table_id, adds))

    @readable
    def commit(self, messages: list[Message | None]) -> None:
        """After all tasks: one transaction with all their files."""
        options = self.options
        adds = unpacked(task_results(messages))
        if self.definition is not None:
            self._create(self.definition, adds)
            return
        parameters: dict[str, Any] = {
            "mode": "Overwrite" if self.overwrite else "Append",
            "partitionBy": list(self.plan.partition_columns),
        }
        if "replaceWhere" in options.values:
            parameters["predicate"] = options.get("replaceWhere")
        if self.dynamic:
            parameters["isDynamicPartitionOverwrite"] = True
        publish(
            kept_table(options),
            adds,
            version=self.version,
            table_id=self.table_id,
            fill=lambda tx: self._fill(tx, adds),
            app_id=options.get("txnAppId"),
            app_version=options.get("txnVersion"),
            operation="WRITE",
            parameters=parameters,
            user_metadata=options.get("userMetadata"),
        )

    def _create(self, definition: TableDefinition, adds: pl.DataFrame) -> None:
        """Version 0 of a new table, with the files of all tasks."""
        options, log = self.options, self._new_log()
        files = adds if adds.height else no_files()
        given = {"app_id": "txnAppId", "app_version": "txnVersion", "user_metadata": "userMetadata"}
        commit: Any = {name: options.get(option) for name, option in given.items()}
        counts = files["stats"].str.json_path_match("$.numRecords").cast(pl.Int64)
        mode = "overwrite" if self.overwrite else "append"
        try:
            new = self._new_table(definition)
            create_with_files(new, files, mode, int(counts.sum()), commit)
        except TableExistsError as cause:
            discard_unnamed(log, files["path"].to_list(), -1)
            raise MetadataChangedError(
                "another writer created the table while its first rows were written",
                path=options.path,
                version=0,
                rule="metadata_changed",
                hint="write the dataframe again; nothing was written",
            ) from cause

    def _fill(self, tx: Transaction, adds: pl.DataFrame) -> pl.DataFrame:
        if not self.overwrite and "readVersion" in self.options.values:
            tx.read()
        if not self.overwrite or (self.dynamic and not adds.height):
            return pl.DataFrame()
        where, store = self._where, kept_table(self.options).log.store
        if self.dynamic:
            where = partitions_of(tx.snapshot, adds, tx.snapshot.schema)
        files = tx.read(where).collect()
        require_single(files, tx.snapshot.version)
        targets = find_targets(tx.snapshot, files, where, store)
        tx.remove(targets.files)
        tx.declare_row_ids_kept(targets.files["path"].to_list())
        if where is None or not targets.partly.height:
            tx.replace_rows()
            return pl.DataFrame()
        return self._copied(tx.snapshot, targets.partly, where)

    def _copied(self, snapshot: LogSnapshot, files: pl.DataFrame, where: pl.Expr) -> pl.DataFrame:
        """The kept rows of partially replaced files, in new files."""
        plan = ReadPlan.of(snapshot, storage_options=self.options.storage_options, row_ids=True)
        with DataFileWriter(self.plan.with_row_ids(plan.row_ids)) as writer:
            for batch in read_files(plan, files, predicate=where, satisfied=False):
                writer.copy(batch)
            return writer.finish()

    @readable
    def abort(self, messages: list[Message | None]) -> None:
        """After a failure: delete the files that no version refers to, unless all tasks finished,
        because a commit may still succeed.
        """
        if None in messages:
            adds = unpacked(task_results(messages))
            if self.definition is None:
                discard(kept_table(self.options), [adds], self.version)
            elif adds.height:
                discard_unnamed(self._new_log(), adds["path"].to_list(), self.version)


def batch_writer(options: SourceOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a dataframe."""
    return BatchWriter(options, schema, overwrite)
