"""All checks of a transaction, before it is written and after each concurrent commit."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from lakelog.errors import InvalidTransactionError
from lakelog.model import actions
from lakelog.model.metadata import Metadata
from lakelog.transaction import row_tracking, write_support
from lakelog.transaction.commit_content import after
from lakelog.transaction.consistency import check_files, check_metadata
from lakelog.transaction.features import is_on, supports
from lakelog.transaction.pending_commit import PendingCommit
from lakelog.transaction.protocol_upgrade import check_protocol_change


def check(
    intent: PendingCommit,
    table: str,
    format: str,
    *,
    replaced: bool,
    rows_replaced: bool = False,
    live_files: Callable[[], pl.LazyFrame],
) -> None:
    """Refuse a transaction that would leave the table inconsistent, or that lakelog cannot answer
    for.
    """
    write_support.check_writable(intent.protocol, intent.metadata, table, format)
    protocol, metadata = after(intent)
    if protocol != intent.protocol:
        check_protocol_change(intent.protocol, protocol, format)
    if metadata != intent.metadata:
        check_metadata(metadata, intent.metadata, protocol, format, replaced=replaced)
        _check_row_tracking(intent, metadata, table, live_files)
    if protocol != intent.protocol or metadata != intent.metadata:
        write_support.check_writable(protocol, metadata, table, format)
    if intent.files.height:
        check_files(intent.files, metadata, protocol, format)
    write_support.check_actions(
        protocol,
        metadata,
        intent.files,
        intent.meta,
        table,
        format,
        rows_replaced=rows_replaced,
    )


def _check_row_tracking(
    intent: PendingCommit, metadata: Metadata, table: str, live_files: Callable[[], pl.LazyFrame]
) -> None:
    """Row tracking may be turned on only where every file has its ids."""
    if not is_on(metadata.configuration, row_tracking.ENABLED):
        return
    if is_on(intent.metadata.configuration, row_tracking.ENABLED):
        return
    files = live_files().select(*actions.KEY, "baseRowId").collect()
    bare = files.filter(files["baseRowId"].is_null())
    if bare.height and intent.files.height:
        touched = actions.conform(intent.files, actions.KEY)
        bare = bare.join(touched, on=actions.KEY, how="anti", nulls_equal=True)
    if not bare.height:
        return
    hint = "add the files again with dataChange false first, which assigns row ids"
    if not supports(intent.protocol, "rowTracking"):
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
