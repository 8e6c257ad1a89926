"""Conflict detection between a transaction and the commits since its read version.

For each commit since the read version, in order: the transaction may follow it if it would be the
same had it read the state after that commit. All functions are pure. `commit_loop` reads the
commits, calls `rebase` after each, validates again (including `write_support` under the new
protocol), and retries.

Rules, the most specific first (the transaction is "we"):

========================  =============================  ==================================
rule                      error                          the other commit
========================  =============================  ==================================
protocol_changed_by_both  `ProtocolChangedError`         wrote the protocol, and so do we
feature_dropped           `ProtocolChangedError`         dropped a feature, whichever it is
feature_added             `ProtocolChangedError`         added a feature that may bind writers
                                                         after that commit, or an unknown one
feature_drop_overtaken    `ProtocolChangedError`         wrote files, metadata or a domain,
                                                         and we drop a feature
metadata_changed_by_both  `MetadataChangedError`         wrote the metadata, and so do we
metadata_changed          `MetadataChangedError`         changed the metadata in a way that we
                                                         may depend on (`metadata_changes`)
domain_written_by_both    `ConcurrentDomainError`        wrote a domain that we write, other
                                                         than ``delta.rowTracking``
app_id_written            `ConcurrentTransactionError`   wrote a txn of an appId that we read
                                                         or write
deleted_by_both           `ConcurrentDeleteDeleteError`  removed a path that we remove
deleted_file_added        `ConcurrentDeleteReadError`    removed a path that we add
file_added_by_both        `ConcurrentAppendError`        added a path that we add
removed_file_added        `ConcurrentAppendError`        added a path that we remove, without
                                                         removing it
read_files_deleted        `ConcurrentDeleteReadError`    removed a file that our reads may hold
read_files_appended       `ConcurrentAppendError`        added a file that our reads would have
                                                         held
all_files_appended        `ConcurrentAppendError`        added a file, and we set partition
                                                         columns, a constraint or row tracking,
                                                         which apply to every file
========================  =============================  ==================================

Differences from Delta, all but one stricter:

- Files are compared by path, as in Delta, so a change of a file's deletion vector (remove of one
  logical file, add of another at the same path) conflicts with every other change of that path. In
  addition, two transactions may not contain the same path at all: deleted_file_added,
  file_added_by_both and removed_file_added are not in Delta, where the read set detects some of
  them.
- An appId that is only written counts as read, as in Delta's Java kernel.
- Reads are recorded as predicates, not as lists of files. Added files are matched by partition
  values and statistics (Delta: by partition values only), which permits more writers; a file
  matches unless it certainly contains no row of the predicate. A removed file is matched in the
  same way; one without partition values matches.
- `all_files_appended`, and a `feature_drop_overtaken` that does not check whether the feature can
  still be dropped.
- Column mapping that the other commit enables is a conflict.

read_files_appended follows the isolation level:

- ``Serializable``: every file that the other commit added is checked.
- ``WriteSerializable``: none is checked if that commit is a blind append (its commitInfo has
  ``isBlindAppend: true``, and it removes nothing) and we do not change the metadata; we are then
  ordered before it. A commit without that field, as the IndexTables dialect's reference writes
  them, is not blind, even if it only adds.
- Either level: none is checked if we write only file actions with ``dataChange`` false and the row
  tracking domain, because such a commit leaves the same rows in any order (SnapshotIsolation, in
  Delta's TransactionHelper.canDowngradeToSnapshotIsolation).

A commit that only rearranges data is not an exception: its added and removed files are checked, as
in Delta. The exception is row tracking's backfill, which adds existing files again.

Skipped files (``mergeskip``) and change data (``cdc``) never conflict: the last record of a skip
wins, and change data is history.

Source: Delta's ConflictChecker. protocol_* and feature_*: checkProtocolCompatibility. metadata_*:
attemptToResolveMetadataConflicts. domain_written_by_both: checkIfDomainMetadataConflict.
app_id_written: checkForUpdatedApplicationTransactionIdsThatCurrentTxnDependsOn. deleted_by_both:
checkForDeletedFilesAgainstCurrentTxnDeletedFiles. read_files_deleted:
checkForDeletedFilesAgainstCurrentTxnReadFiles. read_files_appended:
checkForAddedFilesThatShouldHaveBeenReadByCurrentTxn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
import polars as pl

from lakelog.dialects.features import writer_version
from lakelog.dialects.protocol_rules import ProtocolRules, TableConfiguration
from lakelog.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainError,
    ConcurrentTransactionError,
    ConflictError,
    InvalidInputError,
    MetadataChangedError,
    ProtocolChangedError,
)
from lakelog.log.files import FilesQuery
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol, is_on, last_metadata, last_protocol
from lakelog.transaction import row_tracking
from lakelog.transaction.metadata_changes import HIGH_WATER_MARK
from lakelog.transaction.pending_commit import (
    ISOLATION_LEVELS,
    WRITE_SERIALIZABLE,
    PendingCommit,
    Winner,
)

# Features that require nothing of a writer until metadata enable them (which `metadata_changes`
# checks), or whose requirements are fulfilled at every attempt, such as row ids and commit
# timestamps. Source: TableFeature.failConcurrentTransactionsAtUpgrade = false.
_HARMLESS_WHEN_ADDED = frozenset(
    {
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

_FIELDS = {
    "id": "id",
    "name": "name",
    "description": "description",
    "format_provider": "format.provider",
    "format_options": "format.options",
    "partition_columns": "partitionColumns",
    "created_time": "createdTime",
}


def _requirements(protocol: Protocol, rules: ProtocolRules) -> frozenset[str]:
    """A protocol's requirements for writers: features, and versions that exceed their features,
    such as ``minWriterVersion 8``; in IndexTables every version.
    """
    reader, writer = protocol.min_reader_version, writer_version(protocol)
    summed_reader, summed_writer = rules.summed_versions
    return (
        rules.supported(protocol)
        | {f"minReaderVersion {v}" for v in range(summed_reader + 1, reader + 1)}
        | {f"minWriterVersion {v}" for v in range(summed_writer + 1, writer + 1)}
    )


def _dropped_features(old: Protocol, new: Protocol, rules: ProtocolRules) -> list[str]:
    """The requirements of `old` that `new` lacks, sorted."""
    return sorted(_requirements(old, rules) - _requirements(new, rules))


def _binding_features(old: Protocol, new: Protocol, rules: ProtocolRules) -> list[str]:
    """The added requirements that may bind writers, sorted; unknown features may."""
    added = _requirements(new, rules) - _requirements(old, rules)
    return sorted(added - _HARMLESS_WHEN_ADDED)


def metadata_changes(
    old: Metadata,
    new: Metadata,
    protocol: Protocol,
    rules: ProtocolRules,
) -> list[str]:
    """Changes that a concurrent transaction may depend on, by name; without an identity column's
    high water mark, features that existing files need not follow, and IndexTables' schema registry.
    """
    changes = [
        name for field, name in _FIELDS.items() if getattr(old, field) != getattr(new, field)
    ]
    if _schema(old.schema_string) != _schema(new.schema_string):
        changes.append("schemaString")
    features = rules.supported(protocol)
    for key in {*old.configuration, *new.configuration}:
        same = (key in old.configuration) == (key in new.configuration)
        if same and old.configuration.get(key) == new.configuration.get(key):
            continue
        if key not in new.configuration or not rules.is_harmless_change(
            key, old.configuration, new.configuration, features
        ):
            changes.append(f"configuration.{key}")
    return sorted(changes)


def _new_requirement(old: Metadata, new: Metadata) -> str | None:
    """The part of `new` that concurrently added files may violate: partition columns, a constraint,
    or row tracking.
    """
    if old.partition_columns != new.partition_columns:
        return "partitionColumns"
    for key, value in new.constraints.items():
        if old.configuration.get(key) != value:
            return key
    tracking = row_tracking.ENABLED
    if is_on(new.configuration, tracking) and not is_on(old.configuration, tracking):
        return tracking
    return None


def _schema(text: str | None) -> Any:
    """A schema for comparison: its JSON without high water marks; the text if it is not JSON."""
    if text is None:
        return None
    try:
        return _without_high_water_marks(orjson.loads(text))
    except orjson.JSONDecodeError:
        return text


def _without_high_water_marks(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _without_high_water_marks(value)
            for key, value in node.items()
            if key != HIGH_WATER_MARK
        }
    if isinstance(node, list):
        return [_without_high_water_marks(value) for value in node]
    return node


_BACKFILLS = frozenset({"ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL"})
_MATCHED = ("path", "partitionValues", "stats", "numRecords", "minValues", "maxValues")
_LONGEST_FOUND = 200


class Rule(NamedTuple):
    """One rule: its error, the action of the other commit, and the hint."""

    error: type[ConflictError]
    reason: str
    hint: str


_READ_AGAIN = "read the table again, recompute the changes, and retry"
_SAME_FILE = "read the table again; if the file is still wanted, add it under a new path"

RULES: dict[str, Rule] = {
    "protocol_changed_by_both": Rule(
        ProtocolChangedError,
        "changed the protocol, which this transaction changes too",
        "read the table again, and set the protocol only if it is still needed",
    ),
    "feature_dropped": Rule(
        ProtocolChangedError,
        "dropped a table feature, which this transaction may use",
        _READ_AGAIN,
    ),
    "feature_added": Rule(
        ProtocolChangedError,
        "added a table feature that was absent when this transaction was prepared",
        "read the table again; retry if lakelog can write under the new protocol",
    ),
    "feature_drop_overtaken": Rule(
        ProtocolChangedError,
        "changed the table while this transaction drops a table feature",
        "make sure that nothing in the table uses the feature, and retry",
    ),
    "metadata_changed_by_both": Rule(
        MetadataChangedError,
        "changed the metadata, which this transaction changes too",
        "read the table again, apply the change to the new metadata, and retry",
    ),
    "metadata_changed": Rule(
        MetadataChangedError,
        "changed the metadata that this transaction was prepared under",
        _READ_AGAIN,
    ),
    "domain_written_by_both": Rule(
        ConcurrentDomainError,
        "wrote a metadata domain that this transaction writes too",
        "read the domain again, and retry with the new value",
    ),
    "app_id_written": Rule(
        ConcurrentTransactionError,
        "wrote a transaction identifier that this transaction has read or writes",
        (
            "read the application's last version; if it is at least this one, the "
            "transaction is already committed"
        ),
    ),
    "deleted_by_both": Rule(
        ConcurrentDeleteDeleteError,
        "removed a file that this transaction removes too",
        _READ_AGAIN,
    ),
    "deleted_file_added": Rule(
        ConcurrentDeleteReadError,
        "removed a file that this transaction adds again",
        _SAME_FILE,
    ),
    "file_added_by_both": Rule(
        ConcurrentAppendError,
        "added a file that this transaction adds too",
        _SAME_FILE,
    ),
    "removed_file_added": Rule(
        ConcurrentAppendError,
        "added again a file that this transaction removes",
        _READ_AGAIN,
    ),
    "read_files_deleted": Rule(
        ConcurrentDeleteReadError,
        "removed a file that this transaction has read",
        _READ_AGAIN,
    ),
    "read_files_appended": Rule(
        ConcurrentAppendError,
        "added a file that this transaction would have read",
        _READ_AGAIN,
    ),
    "all_files_appended": Rule(
        ConcurrentAppendError,
        "added a file that may not match the metadata of this transaction",
        "read the table again, make sure that every file matches the new metadata, and retry",
    ),
}
"""Every rule by name, in the order of evaluation."""


def find_conflict(pending: PendingCommit, winner: Winner) -> ConflictError | None:
    """The error of the first rule that a commit violates for a transaction, or None."""
    for rule, found in broken_rules(pending, winner):
        return _error(rule, found, winner)
    return None


def broken_rules(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    """Every rule that a commit violates, with an example, the most specific first; lazy."""
    if pending.isolation not in ISOLATION_LEVELS:
        raise InvalidInputError(
            f"unknown isolation level: {pending.isolation!r}",
            found=pending.isolation,
            expected=" or ".join(ISOLATION_LEVELS),
        )
    yield from _protocol(pending, winner)
    yield from _metadata(pending, winner)
    yield from _domains(pending, winner)
    yield from _app_ids(pending, winner)
    yield from _same_files(pending, winner)
    yield from _read_files(pending, winner)


def rebase(pending: PendingCommit, winner: Winner) -> PendingCommit:
    """The transaction under the protocol and metadata of a commit that it does not conflict with;
    the fast path is then not used.
    """
    protocol = last_protocol(winner.actions.meta)
    metadata = last_metadata(winner.actions.meta)
    if protocol is None and metadata is None:
        return pending
    return replace(
        pending,
        staged=pending.files,
        table=pending.table.changed(protocol, metadata),
    )


def may_match(
    files: pl.DataFrame,
    where: tuple[pl.Expr, ...],
    table: TableConfiguration,
) -> pl.Series:
    """Which files may contain a row for which one of the predicates is true."""
    mask = pl.Series("matches", [False]).new_from_index(0, files.height)
    for predicate in where:
        query = FilesQuery(
            table.dialect, lambda: table.protocol, lambda: table.metadata, where=predicate
        )
        mask |= query.condition().may_match(files)
    return mask


def _error(rule: str, found: str, winner: Winner) -> ConflictError:
    error, reason, hint = RULES[rule]
    operation = _operation(winner)
    name = "unknown operation" if operation is None else operation
    return error(
        f"version {winner.version} ({name}) {reason} (rule {rule})",
        rule=rule,
        operation=operation,
        version=winner.version,
        found=_short(found),
        hint=hint,
    )


def _protocol(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    rules = pending.table.rules
    ours, theirs = last_protocol(pending.meta), last_protocol(winner.actions.meta)
    if theirs is not None:
        if ours is not None:
            yield "protocol_changed_by_both", "protocol"
        if dropped := _dropped_features(pending.protocol, theirs, rules):
            yield "feature_dropped", ", ".join(dropped)
        if binding := _binding_features(pending.protocol, theirs, rules):
            yield "feature_added", ", ".join(binding)
    if ours is not None:
        dropped = _dropped_features(pending.protocol, ours, rules)
        if dropped and _may_use_features(winner):
            yield "feature_drop_overtaken", ", ".join(dropped)


def _may_use_features(winner: Winner) -> bool:
    meta = winner.actions.meta
    return winner.actions.files.height > 0 or any(
        _rows(meta, kind, ()).height for kind in ("metaData", "domainMetadata")
    )


def _metadata(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    theirs = last_metadata(winner.actions.meta)
    if theirs is None:
        return
    protocol, rules = last_protocol(winner.actions.meta) or pending.protocol, pending.table.rules
    changes = metadata_changes(pending.metadata, theirs, protocol, rules)
    if last_metadata(pending.meta) is not None:
        yield "metadata_changed_by_both", ", ".join(changes) or "metaData"
    elif changes:
        yield "metadata_changed", ", ".join(changes)


def _domains(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    ours = _rows(pending.meta, "domainMetadata", ("domain",))["domain"]
    theirs = _rows(winner.actions.meta, "domainMetadata", ("domain",))["domain"]
    # The value of row tracking's domain is assigned at every attempt, so both may write it.
    domain = _common(ours.filter(ours != row_tracking.DOMAIN), theirs)
    if domain is not None:
        yield "domain_written_by_both", domain


def _app_ids(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    ours = _rows(pending.meta, "txn", ("appId",))["appId"]
    read = pl.Series("appId", sorted(pending.reads.app_ids), dtype=pl.String)
    theirs = _rows(winner.actions.meta, "txn", ("appId",))["appId"]
    app_id = _common(pl.concat([read, ours]), theirs)
    if app_id is not None:
        yield "app_id_written", app_id


def _same_files(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    """Paths in both commits, because a new deletion vector replaces a logical file."""
    if not pending.files.height or not winner.actions.files.height:
        return
    added, removed = _paths(pending.files, "add"), _paths(pending.files, "remove")
    their_added = _paths(winner.actions.files, "add")
    their_removed = _paths(winner.actions.files, "remove")
    if (path := _common(removed, their_removed)) is not None:
        yield "deleted_by_both", path
    if (path := _common(added, their_removed)) is not None:
        yield "deleted_file_added", path
    if (path := _common(added, their_added)) is not None:
        yield "file_added_by_both", path
    replaced = their_added.filter(~their_added.is_in(their_removed.implode()))
    if (path := _common(removed, replaced)) is not None:
        yield "removed_file_added", path


def _read_files(pending: PendingCommit, winner: Winner) -> Iterator[tuple[str, str]]:
    reads, files = pending.reads, winner.actions.files
    if not files.height:
        return
    if not reads.nothing:
        if (path := _first_read(pending, _of(files, "remove"))) is not None:
            yield "read_files_deleted", path
        counts = not _only_rearranges(pending) and not _is_exempt(pending, winner)
        if counts and (path := _first_read(pending, _of(files, "add"))) is not None:
            yield "read_files_appended", path
    metadata = last_metadata(pending.meta)
    if metadata is not None and _new_requirement(pending.metadata, metadata):
        added = _paths(files, "add")
        if added.len():
            yield "all_files_appended", str(added[0])


def _first_read(pending: PendingCommit, files: pl.DataFrame) -> str | None:
    """The first of the files that may contain rows of the declared reads."""
    if not files.height:
        return None
    if pending.reads.whole_table:
        return str(files["path"][0])
    read = may_match(files, pending.reads.where, pending.table).fill_null(True)
    row = read.arg_max() if read.any() else None
    return None if row is None else str(files["path"][row])


def _only_rearranges(pending: PendingCommit) -> bool:
    """Whether the transaction leaves the table's rows unchanged, in any order of commits."""
    domains = _rows(pending.meta, "domainMetadata", ("domain",))["domain"]
    if domains.len() != pending.meta.height or not domains.eq(row_tracking.DOMAIN).all():
        return False
    # A missing dataChange means true (IndexTables).
    changes = actions.conform(pending.files, ("dataChange",))["dataChange"]
    return not changes.fill_null(True).any()


def _is_exempt(pending: PendingCommit, winner: Winner) -> bool:
    """Whether the files that a commit added need not have been read."""
    files = winner.actions.files
    if _paths(files, "remove").len():
        return False
    if _operation(winner) in _BACKFILLS:
        changes = actions.conform(files, ("dataChange",))["dataChange"]
        return not changes.fill_null(True).any()
    return (
        pending.isolation == WRITE_SERIALIZABLE
        and last_metadata(pending.meta) is None
        and _info(winner, "isBlindAppend") is True
    )


def _info(winner: Winner, name: str) -> object:
    infos = winner.actions.commit_infos
    return infos[0].body.get(name) if infos else None


def _operation(winner: Winner) -> str | None:
    operation = _info(winner, "operation")
    return _short(operation) if isinstance(operation, str) else None


def _rows(frame: pl.DataFrame, kind: str, columns: tuple[str, ...]) -> pl.DataFrame:
    chosen = actions.of_type(frame, kind)
    return actions.conform(chosen, columns or ("actionType",))


def _of(files: pl.DataFrame, kind: str) -> pl.DataFrame:
    """The rows of one kind, with the columns for matching."""
    chosen = files["actionType"] == kind
    present = files.select(c for c in _MATCHED if c in files.columns)
    return present if chosen.all() else present.filter(chosen)


def _paths(files: pl.DataFrame, kind: str) -> pl.Series:
    if not files.height:
        return pl.Series("path", dtype=pl.String)
    return files["path"].filter(files["actionType"] == kind)


def _common(ours: pl.Series, theirs: pl.Series) -> str | None:
    """A string in both; None if there is none."""
    small, large = sorted((ours, theirs), key=len)
    if not small.len():
        return None
    # Hash the small side, scan the large one.
    hits = large.filter(large.is_in(small.implode()))
    return str(hits[0]) if hits.len() else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_FOUND else text[: _LONGEST_FOUND - 1] + "…"
