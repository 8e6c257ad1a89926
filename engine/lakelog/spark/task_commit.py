"""Commits the files of many tasks as one version.

Tasks write data files under unique names (`write_task_files`) and send the adds to the driver
(`TaskResult`), which commits them in one transaction (`publish`) based on the version that they
were prepared for. Files of repeated tasks are in no message; vacuum deletes them.

Files of a failed job are deleted only after the log was read again and no version refers to them,
and never after a commit with an unknown outcome or a lost process, because the commit may still
succeed: an orphaned file costs space, a missing file breaks the table.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.data.append import require_all, without_void
from lakelog.data.conform import Conform, require_valid
from lakelog.data.row_commit import discard_unnamed
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.errors import (
    LakelogError,
    MetadataChangedError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.spark.options import SourceOptions
from lakelog.spark.reading import serialize_frame, unpack
from lakelog.storage.bounded import DEFAULT_TIMEOUT_S
from lakelog.table import Table
from lakelog.table_functions import open  # noqa: A004 - the name of the public function
from lakelog.table_transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from lakelog.snapshot import Snapshot

_CHECKPOINT_WAIT_S = 300.0


@functools.lru_cache(maxsize=4)
def _handle(
    path: str,
    storage_options: str,
    external: bool | tuple[str, ...],
    read_timeout: float | None,
) -> Table:
    return open(
        path,
        json.loads(storage_options) or None,
        allow_external=external,
        read_timeout=read_timeout,
    )


def kept_table(options: SourceOptions) -> Table:
    """The table in the options; the process caches the handle for the next batch of a stream."""
    external = options.get("allowExternal", False)
    with options.opening():
        storage = json.dumps(dict(options.storage_options), sort_keys=True)
        return _handle(
            options.path, storage, external, options.get("readTimeout", DEFAULT_TIMEOUT_S)
        )


@dataclass(frozen=True)
class TaskResult:
    """The result of one task: version of the plan, `adds` (Arrow IPC), streaming query, and the id
    of the table: another one may be created at its location while the tasks run.
    """

    version: int
    table_id: str | None
    adds: bytes
    query: str | None = None


def write_task_files(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], task: int, where: pl.Expr | None = None
) -> bytes:
    """Write a task's rows, all of which must satisfy `where`; returns the adds as Arrow IPC, or
    deletes the files on an error.
    """
    conform = Conform(plan.schema.fields, plan.partition_columns, plan.rules)
    with DataFileWriter(plan, number=task) as writer:
        for batch in map(require_valid, batches):
            rows = without_void(batch, plan.schema)  # columns that a new table does not get
            if where is None:
                writer.write(rows)
                continue
            rows = conform.table(rows)
            require_all(rows, where)
            writer.copy(rows)
        return serialize_frame(writer.finish())


def unpacked(written: Sequence[TaskResult]) -> pl.DataFrame:
    """The adds of all tasks, in the order of the tasks; without columns if no task wrote a file."""
    frames = [frame for each in written if (frame := unpack(each.adds)).height]
    return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()


def publish(
    table: Table,
    adds: pl.DataFrame,
    *,
    version: int,
    table_id: str | None,
    fill: Callable[[Transaction], pl.DataFrame],
    app_id: str | None = None,
    app_version: int | None = None,
    operation: str,
    parameters: Mapping[str, Any],
    user_metadata: str | None = None,
) -> Transaction:
    """Commit the files of all tasks in one transaction, checked against concurrent commits."""
    written = [adds]
    try:
        with table.transaction(
            app_id,
            app_version,
            version=version,
            operation=operation,
            parameters=parameters,
            user_metadata=user_metadata,
        ) as tx:
            _require_same_table(tx.snapshot, table_id)
            written.append(fill(tx))
            for frame in written:
                if frame.height:
                    tx.add(frame)
                    tx.declare_rows_checked(frame["path"].to_list())
    except (OutcomeUnknownError, UnavailableError):
        raise
    except LakelogError:
        discard(table, written, version)
        raise
    if tx.duplicate:
        discard(table, written, version)
    elif table.scheduler is not None:
        # The process may be suspended or stopped after the commit is reported.
        table.scheduler.wait(_CHECKPOINT_WAIT_S)
    return tx


def _require_same_table(snapshot: Snapshot, table_id: str | None) -> None:
    found = snapshot.metadata.id
    if found != table_id:
        raise MetadataChangedError(
            "another table was created at the location while the rows were written",
            path=snapshot.path,
            version=snapshot.version,
            rule="metadata_changed",
            expected=f"table id {table_id}",
            found=f"table id {found}",
            hint="make sure that the rows belong to the new table, and write them again; nothing "
            "was written",
        )


def discard(table: Table, written: Sequence[pl.DataFrame], version: int) -> list[str]:
    """Delete files to which certainly no version refers; returns the deleted ones."""
    paths = [path for frame in written if frame.height for path in frame["path"]]
    return discard_unnamed(table.log, paths, version)
