"""Computes the content of one commit from a pending commit and its version. Pure.

It is computed again for each attempt, because row ids, time and skip counts depend on the version.

Source: Delta protocol, Commit Provenance Information; In-Commit Timestamps; Row Tracking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from lakelog.dialects.log_content import CommitContent
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.strict_decoder import text_of
from lakelog.errors import InvalidTransactionError
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol, last_metadata, last_protocol
from lakelog.transaction import action_buffer, row_tracking
from lakelog.transaction.action_input import rows_frame
from lakelog.transaction.pending_commit import PendingCommit

ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
_FEATURE = "inCommitTimestamp"


@dataclass(frozen=True)
class Description:
    """The commitInfo of a commit; `blind_append`: only adds, without reads; `fields`: further
    fields; `row_ids_kept`: removed files of which no row loses its row id.
    """

    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    txn_id: str
    engine_info: str
    blind_append: bool
    read_version: int | None
    isolation: str
    user_name: str | None = None
    user_metadata: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    row_ids_kept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CommitBase:
    """The end of the log that a commit follows; version -1 for a new table. `meta` is needed for
    row ids and skips, `modified_ms` when in-commit timestamps are enabled.
    """

    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    meta: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    in_commit_timestamp: int | None = None
    modified_ms: int | None = None


def needs_meta(pending: PendingCommit) -> bool:
    """Whether `build_content` uses `CommitBase.meta`."""
    if pending.small is not None:
        return False
    if pending.files.height and row_tracking.is_assigning(after(pending)):
        return True
    return bool(_rows(pending.meta, "mergeskip"))


def depends_on_base(pending: PendingCommit) -> bool:
    """Whether the content depends on `CommitBase`, apart from the current time."""
    if pending.small is not None:
        return False
    return needs_meta(pending) or after(pending).is_active(_FEATURE)


def turns_on_timestamps(pending: PendingCommit) -> bool:
    """Whether this is the first in-commit timestamp, which needs `CommitBase.modified_ms`."""
    return after(pending).is_active(_FEATURE) and not pending.table.is_active(_FEATURE)


def after(pending: PendingCommit) -> TableConfiguration:
    """Protocol and metadata after the commit."""
    if pending.small is not None:
        return pending.table
    return pending.table.changed(last_protocol(pending.meta), last_metadata(pending.meta))


def _rows(meta: pl.DataFrame, kind: str) -> Sequence[dict[str, Any]]:
    if not meta.height:
        return ()
    chosen = meta["actionType"] == kind
    return meta.filter(chosen).rows(named=True) if chosen.any() else ()


def build_content(
    pending: PendingCommit,
    description: Description,
    base: CommitBase,
    now_ms: int,
) -> CommitContent:
    """The content of the commit after `base`."""
    info = _commit_info(description, now_ms)
    if pending.small is not None:
        return CommitContent(info, file_lines=pending.small.lines)
    version = base.version + 1
    files, meta = pending.files, pending.meta
    table = after(pending)
    if row_tracking.is_assigning(table):
        preserved = _keeps_row_ids(files, description.row_ids_kept)
        info = {**info, "tags": {"delta.rowTracking.preserved": preserved}}
        files, meta = _track_rows(files, meta, base, version)
    at = _commit_time(pending, table, base, now_ms)
    if at is not None:
        # First, because readers look for it in the first bytes.
        info = {"inCommitTimestamp": at, **info}
        meta = _record_enablement(meta, pending, base, version, at)
    if _rows(meta, "mergeskip"):
        meta = action_buffer.counted(meta, base.meta)
    return CommitContent(info, meta, files, texts=pending.texts)


def _commit_info(description: Description, now_ms: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "timestamp": now_ms,
        "operation": description.operation,
        "operationParameters": {k: text_of(v) for k, v in description.parameters.items()},
    }
    if description.read_version is not None:
        info["readVersion"] = description.read_version
    info |= {
        "isolationLevel": description.isolation,
        "isBlindAppend": description.blind_append,
        "operationMetrics": {k: text_of(v) for k, v in description.metrics.items()},
        "engineInfo": description.engine_info,
        "txnId": description.txn_id,
    }
    if description.user_name is not None:
        info["userName"] = description.user_name
    if description.user_metadata is not None:
        info["userMetadata"] = description.user_metadata
    return info | dict(description.fields)


def _commit_time(
    pending: PendingCommit, table: TableConfiguration, base: CommitBase, now_ms: int
) -> int | None:
    if not table.is_active(_FEATURE):
        return None
    before = base.in_commit_timestamp
    if before is None or not pending.table.is_active(_FEATURE):
        # The first one must exceed the file time of the previous commit.
        before = max(before or 0, base.modified_ms or 0)
    return max(now_ms, before + 1)


def _record_enablement(
    meta: pl.DataFrame, pending: PendingCommit, base: CommitBase, version: int, at: int
) -> pl.DataFrame:
    """Record the version of the first in-commit timestamp, if earlier commits have none."""
    if base.version < 0 or not turns_on_timestamps(pending):
        return meta
    rows = list(_rows(meta, "metaData"))
    if not rows:
        # The protocol gained the feature, and the property was set before.
        raise InvalidTransactionError(
            "in-commit timestamps are turned on by a change of the metadata",
            expected="set_metadata(configuration={'delta.enableInCommitTimestamps': 'true'})",
            hint="set the property in the same transaction",
        )
    row = {k: v for k, v in rows[-1].items() if v is not None}
    row["configuration"] = dict(row.get("configuration") or {}) | {
        ENABLEMENT_VERSION: str(version),
        ENABLEMENT_TIMESTAMP: str(at),
    }
    others = meta.filter(meta["actionType"] != "metaData")
    return actions.concat([others, rows_frame([row])])


def _keeps_row_ids(files: pl.DataFrame, known: Collection[str]) -> str:
    """Whether no row loses its row id; only the writer knows it of rows of removed files."""
    if not files.height:
        return "true"
    removed_paths = files["path"].filter(files["actionType"] == "remove")
    return "true" if removed_paths.is_in(list(known)).all() else "false"


def _track_rows(
    files: pl.DataFrame, meta: pl.DataFrame, base: CommitBase, version: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    if not files.height:
        return files, meta
    assigned = row_tracking.assign(files, version, row_tracking.water_mark(base.meta))
    if assigned.water_mark is not None:
        domain = {
            "actionType": "domainMetadata",
            "domain": row_tracking.DOMAIN,
            "domainConfiguration": row_tracking.configuration(assigned.water_mark),
            "domainRemoved": False,
        }
        meta = actions.concat([meta, rows_frame([domain])])
    return assigned.files, meta
