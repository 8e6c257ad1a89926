"""The stream writer of the data source: writes each batch exactly once.

A batch and its transaction identifiers are in one commit, so that a repeated batch is recognised
after a restart:

- ``<app>`` (option ``txnAppId``, default: the query's id from its checkpoint) with the number of
  the batch, as other writers record it.
- ``<app>@<query>`` with the same number, if ``txnAppId`` was given: the checkpoint's identity.

A new checkpoint begins at batch 0; with the same ``txnAppId``, its batches would be treated as
repetitions, and their rows would be lost silently. Therefore batches of another checkpoint, and
batches older than the last, are rejected. If identifiers expire
(``delta.setTransactionRetentionDuration``), a query that pauses for longer is not recognised.

Source: Delta protocol, Transaction Identifiers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

import polars as pl
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from lakelog.errors import InvalidInputError, LakelogWarning, StreamMismatchError
from lakelog.skipping.statistics import num_records
from lakelog.snapshot import Snapshot
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
from lakelog.spark.writing import (
    Message,
    require_removable,
    task_number,
    task_results,
    write_plan,
)
from lakelog.table import Table
from lakelog.table_transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_PROPERTY = "sql.streaming.queryId"
"""Local property of a task with the id of its streaming query (the ``id`` in the checkpoint)."""


def own_id(app: str, query: str) -> str:
    """The identifier with which a query records its batches, in addition to `app`."""
    return f"{app}@{query}"


def is_repetition(recorded: Mapping[str, int], app: str, query: str, batch: int, path: str) -> bool:
    """Whether the table already contains a query's batch."""
    last = recorded.get(app)
    own_last = last if app == query else recorded.get(own_id(app, query))
    _require_same_app(recorded, app, query, batch, path)
    if last is not None and (own_last is None or own_last < last):
        raise StreamMismatchError(
            f"batch {batch} belongs to another checkpoint than the table's last batch "
            f"of txnAppId {app!r}: it would be skipped as a repetition, or repeat rows",
            path=path,
            expected=f"the query that wrote batch {last}",
            found=f"query {query}",
            hint="continue with the old checkpoint; or, if the new one is intended, use "
            "another txnAppId, and start its source where the old one ended",
        )
    if last is None or batch > last:
        return False
    if batch == last:
        return True
    raise StreamMismatchError(
        f"batch {batch} is older than the last batch of the query: its checkpoint was "
        "restored to an earlier state, or another driver runs the same query",
        path=path,
        expected=f"batch {last} again, or a later one",
        found=f"batch {batch} of query {query}",
        hint="make sure that one driver runs the query, with its latest checkpoint; if that "
        "is lost, begin a new one with a new txnAppId, from where the table ends",
    )


def _require_same_app(
    recorded: Mapping[str, int], app: str, query: str, batch: int, path: str
) -> None:
    """Raise if the query wrote the batch, or a later one, under another application id."""
    suffix = own_id("", query)
    for name, last in recorded.items():
        if last < batch or name == app or not (name == query or name.endswith(suffix)):
            continue
        other = name.removesuffix(suffix)
        if other == app:
            continue
        was = "without txnAppId" if name == query else f"with txnAppId {other!r}"
        raise StreamMismatchError(
            f"the query wrote batch {last} {was}: its rows would be written twice",
            path=path,
            expected=f"the txnAppId of batch {last}, or a later batch",
            found=f"batch {batch} of query {query}, as {app!r}",
            hint=f"start the query {was} until it has finished a batch, and change txnAppId then",
        )


def query_of_task() -> str | None:
    """The id of the streaming query of the current task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_PROPERTY)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch as one commit; Spark creates one for its tasks, and one to commit it."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        snapshot = kept_table(options).snapshot()
        self.options = options
        self.overwrite = overwrite
        self.version, self.table_id = snapshot.version, snapshot.metadata.id
        self.plan = write_plan(snapshot, options, schema)
        if overwrite:
            require_removable(snapshot)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """In a task: write its rows to new files."""
        adds = write_task_files(self.plan, iterator, task_number())
        return Message(TaskResult(self.version, self.table_id, adds, query_of_task()))

    @readable
    def commit(self, messages: list[Message | None], batchId: int) -> None:
        """On the driver, after all tasks of a batch: one transaction with all their files."""
        written = task_results(messages)
        if not written:
            return  # no task, so no rows: a repeated batch would have none either
        adds = unpacked(written)
        first = min(written, key=attrgetter("version"))
        version = first.version
        table = kept_table(self.options)
        query = self._query(written)
        app = self.options.get("txnAppId", query)
        snapshot = table.snapshot()
        try:
            repeated = is_repetition(_recorded(snapshot), app, query, batchId, table.path)
        except StreamMismatchError:
            discard(table, [adds], version)
            raise
        if repeated:
            _warn_of_other_rows(table, snapshot, app, batchId, adds)
            discard(table, [adds], version)
            return

        def fill(tx: Transaction) -> pl.DataFrame:
            if app != query:
                tx.set_txn(appId=own_id(app, query), version=batchId)
            if self.overwrite:
                tx.remove(tx.read())
                tx.replace_rows()
            return pl.DataFrame()

        mode = "Complete" if self.overwrite else "Append"
        tx = publish(
            table,
            adds,
            version=version,
            table_id=first.table_id,
            fill=fill,
            app_id=app,
            app_version=batchId,
            operation="STREAMING UPDATE",
            parameters={"outputMode": mode, "queryId": query, "epochId": str(batchId)},
            user_metadata=self.options.get("userMetadata"),
        )
        if tx.duplicate:
            # A concurrent commit: this batch of this query, or an error.
            is_repetition(_recorded(table.snapshot()), app, query, batchId, table.path)

    def _query(self, written: list[TaskResult]) -> str:
        for each in written:
            if each.query is not None:
                return each.query
        raise InvalidInputError(
            "the tasks of the batch do not report their query id",
            path=self.options.path,
            expected=_QUERY_PROPERTY,
            hint="use writeStream; in foreachBatch use a batch write with txnAppId and txnVersion",
        )

    @readable
    def abort(
        self,
        messages: list[Message | None],
        batchId: int,  # noqa: ARG002 - Spark's
    ) -> None:
        """On the driver, after a task or `commit` failed; see `BatchWriter.abort`."""
        written = task_results(messages)
        if None in messages and written:
            version = min(each.version for each in written)
            discard(kept_table(self.options), [unpacked(written)], version)


def _warn_of_other_rows(
    table: Table, snapshot: Snapshot, app: str, batch: int, adds: pl.DataFrame
) -> None:
    """Warn if a repeated batch has another number of rows than the table: a nondeterministic query
    can cause that, and so can a checkpoint restored to the previous batch, which loses rows.
    """
    wrote = snapshot.transactions().filter(pl.col("appId") == app).collect()["version"]
    if not wrote.len() or wrote[0] is None:
        return  # a checkpoint does not record the commit
    log = table.log
    commits = [c for c in log.list_since(wrote[0]).commits if c.version == wrote[0]]
    infos = log.dialect.decode(log.store, commits, files=False).commit_infos if commits else ()
    row_counts = [
        (info.body.get("operationMetrics") or {}).get("numOutputRows", 0) for info in infos
    ]
    rows = int(num_records(adds["stats"]).sum()) if adds.height else 0
    if row_counts and int(row_counts[0]) != rows:
        warnings.warn(
            f"batch {batch} was committed with {row_counts[0]} rows, and now has {rows}: its "
            "query is not deterministic, or its checkpoint was restored to an earlier "
            "state",
            LakelogWarning,
            stacklevel=2,
        )


def _recorded(snapshot: Snapshot) -> dict[str, int]:
    """The last unexpired version of each application."""
    rows = snapshot.transactions().filter(~pl.col("expired")).collect()
    return dict(zip(rows["appId"], rows["txnVersion"], strict=True))


def stream_writer(options: SourceOptions, schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a query's batches."""
    return StreamWriter(options, schema, overwrite)
