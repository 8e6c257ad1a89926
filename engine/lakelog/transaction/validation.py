"""All checks of a transaction, before it is written and after each concurrent commit."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from lakelog.errors import InvalidTransactionError
from lakelog.model import actions
from lakelog.model.metadata import Metadata, is_on
from lakelog.transaction import row_tracking, write_support
from lakelog.transaction.commit_content import after
from lakelog.transaction.consistency import check_files, check_metadata
from lakelog.transaction.pending_commit import PendingCommit


def check(
    pending: PendingCommit,
    table: str,
    *,
    replaced: bool,
    rows_replaced: bool = False,
    live_files: Callable[[], pl.LazyFrame],
) -> None:
    """Refuse a transaction that would leave the table inconsistent, or that lakelog cannot answer
    for.
    """
    before, table_after = pending.table, after(pending)
    write_support.check_writable(before, table)
    if table_after.protocol != before.protocol:
        before.rules.check_change(before.protocol, table_after.protocol)
    if table_after.metadata != before.metadata:
        check_metadata(table_after, before.metadata, replaced=replaced)
        _check_row_tracking(pending, table_after.metadata, table, live_files)
    if table_after != before:
        write_support.check_writable(table_after, table)
    if pending.files.height:
        check_files(pending.files, table_after)
    write_support.check_actions(
        table_after, pending.files, pending.meta, table, rows_replaced=rows_replaced
    )


def _check_row_tracking(
    pending: PendingCommit, metadata: Metadata, table: str, live_files: Callable[[], pl.LazyFrame]
) -> None:
    """Row tracking may be turned on only where every file has its ids."""
    if not is_on(metadata.configuration, row_tracking.ENABLED):
        return
    if is_on(pending.metadata.configuration, row_tracking.ENABLED):
        return
    files = live_files().select(*actions.KEY, "baseRowId").collect()
    bare = files.filter(files["baseRowId"].is_null())
    if bare.height and pending.files.height:
        touched = actions.conform(pending.files, actions.KEY)
        bare = bare.join(touched, on=actions.KEY, how="anti", nulls_equal=True)
    if not bare.height:
        return
    hint = "add the files again with dataChange false first, which assigns row ids"
    if not pending.table.supports("rowTracking"):
        hint = "set_protocol(features=['rowTracking']) first; then " + hint
    raise InvalidTransactionError(
        "row tracking can be enabled only if every file has row ids",
        path=table,
        expected="baseRowId in every file",
        found=bare["path"][0],
        hint=hint,
    )


def changes_columns(before: Metadata, metadata: Metadata) -> bool:
    """Whether a change of the metadata concerns how files are read."""
    return (
        before.schema_string != metadata.schema_string
        or before.partition_columns != metadata.partition_columns
    )


def removes_all(files: pl.DataFrame, live: pl.LazyFrame) -> bool:
    """Whether `files` removes every live file."""
    # The IndexTables dialect has no deletion vectors.
    names = [name for name in actions.KEY if name in live.collect_schema()]
    keys = actions.conform(live.select(names).collect(), actions.KEY)
    removes = files.filter(files["actionType"] == "remove") if files.height else files
    if keys.height > removes.height:
        return False
    wanted = actions.conform(removes, actions.KEY)
    return not keys.join(wanted, on=actions.KEY, how="anti", nulls_equal=True).height
