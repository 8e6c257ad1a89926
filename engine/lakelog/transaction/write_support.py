"""Checks whether lakelog may write a table, and each of its actions.

Each table feature has rules for writers. With a feature that lakelog does not support or know, the
table cannot be written; the error names the feature. With a feature that lakelog supports only in
part (see `lakelog.dialects.features`), actions whose rows would have to be checked are rejected.
Rules on single values, such as paths and partition values, are in `lakelog.transaction.validation`.

Source: Delta protocol, Additional Requirements for Writers, and each feature's own section.
"""

from __future__ import annotations

import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.features import Feature, Stance, listed, writer_version
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.row_validation import columns_of
from lakelog.errors import (
    InvalidTransactionError,
    UnsupportedFeatureError,
)
from lakelog.model import actions
from lakelog.model.actions import DV_COLUMNS, FILE_ACTIONS
from lakelog.model.metadata import CLUSTERING, Protocol, is_on
from lakelog.skipping.statistics import num_records
from lakelog.transaction import row_tracking

_SYSTEM_DOMAIN = "delta."
"""Prefix of metadata domains that are reserved for the system."""


_UNCHECKED_ROWS = (
    ("invariants", "an invariant on a column"),
    ("checkConstraints", "a CHECK constraint"),
    ("generatedColumns", "a generated column"),
    ("identityColumns", "an identity column"),
)
"""Features whose rules concern the rows of a file, which the commit does not read."""

UNCHECKED_FEATURES = tuple(name for name, _ in _UNCHECKED_ROWS)
"""Names of these features."""

_ONE_OF_A_KIND = (
    ("protocol", None),
    ("metaData", None),
    ("txn", "appId"),
    ("domainMetadata", "domain"),
    ("mergeskip", "path"),
)
"""Non-file action types, with the column that identifies an action in reconciliation."""

# The flattened table has statistics in these columns, and derives the others.
_NOT_SPELLED = frozenset(
    "version position actionType timestamp extra dvId".split()
    + "numRecords minValues maxValues nullCount".split()
)


def check_writable(configured: TableConfiguration, table: str, *, lists: bool = True) -> None:
    """Raise for a table that must not be written (Delta protocol, Writer Version Requirements). A
    commit of another protocol may repair the `lists` of features.
    """
    rules, protocol = configured.rules, configured.protocol
    rules.check_readable_by_writer(protocol, table)
    writer = writer_version(protocol)
    last = rules.last_versions[1]
    if not 1 <= writer <= last:
        raise UnsupportedFeatureError(
            "the table needs a newer writer",
            path=table,
            expected=f"minWriterVersion 1 to {last}",
            found=writer,
            hint="upgrade lakelog",
        )
    if lists:
        rules.check_lists_of_table(protocol, table)
    known = rules.features
    for name in sorted(rules.supported(protocol)):
        if name not in known:
            _refuse(
                table, name, "lakelog does not know what it requires of writers", "upgrade lakelog"
            )
        feature = known[name]
        if feature.stance is Stance.REFUSED:
            if name not in listed(protocol):
                _refuse_implied(table, feature, protocol)
            _refuse(table, name, feature.note, feature.remedy)
    for feature in known.values():
        if feature.refused_if_active and configured.is_active(feature.name):
            _refuse(table, feature.name, feature.refused_if_active, feature.remedy)


def check_actions(
    configured: TableConfiguration,
    files: pl.DataFrame,
    meta: pl.DataFrame,
    table: str,
    *,
    before: TableConfiguration | None = None,
    rows_replaced: bool = False,
    restored: bool = False,
    clusters: bool = False,
    checked: pl.Series | None = None,
) -> None:
    """Raise for actions that a feature of the table forbids, or that lakelog cannot validate. An
    append-only table (`before`) is one also for the commit that changes the property. Files
    that are `restored`, or those of a clone, satisfied the rules before; `clusters` allows the
    domain of clustering; `checked` are paths of files whose rows satisfy the rules.
    """
    _check_kinds(files, meta, table, configured.dialect)
    _check_one_of_a_kind(meta, table)
    _check_domains(configured, meta, table, [CLUSTERING] if restored or clusters else [])
    if not files.height:
        return
    adds = _of(files, "add")
    removes = _of(files, "remove")
    changing = _changes_data(files)
    new = adds & changing
    removes_data = removes & changing
    if (before or configured).is_active("appendOnly") or (
        configured.is_active("appendOnly") and not restored
    ):
        # Removes need an add that only rearranges rows; otherwise they delete rows.
        moved = (adds & ~changing).any()
        _refuse_row(
            files,
            removes_data if moved else removes,
            "the table is append-only, and the transaction removes data",
            table,
            expected=(
                "only removes with dataChange false, together with adds with dataChange false"
            ),
            hint="set delta.appendOnly to false first, if the table's owner agrees",
        )
    for name, what in _UNCHECKED_ROWS:
        if configured.is_active(name) and not restored:
            unseen = new if checked is None else new & ~files["path"].is_in(checked.implode())
            _refuse_rows_unseen(unseen, name, what, table)
    partitioned = configured.metadata.partition_columns
    if partitioned and configured.supports("materializePartitionColumns") and not restored:
        what = "partition columns that must be stored in its files"
        _refuse_rows_unseen(adds, "materializePartitionColumns", what, table)
    _check_change_data(configured, files, new, removes_data, table, rows_replaced=rows_replaced)
    _check_vectors(configured, files, table, restored=restored)
    _check_counts(configured, files, adds, table)
    if configured.supports("clustering") and not (restored or clusters):
        _refuse_row(
            files,
            new & _column(files, "stats").is_null(),
            "the table is clustered, and the file has no statistics",
            table,
            expected="stats that include the clustering columns",
        )


def _refuse(table: str, name: str, reason: str, hint: str) -> None:
    raise UnsupportedFeatureError(
        f"the table has the feature {name!r}: {reason}", path=table, found=name, hint=hint
    )


def _refuse_implied(table: str, feature: Feature, protocol: Protocol) -> None:
    versions = f"{protocol.min_reader_version}/{protocol.min_writer_version}"
    _, brought_by = feature.implied_from or (0, 0)
    raise UnsupportedFeatureError(
        f"the table's protocol {versions} (reader/writer) allows {feature.name!r}: {feature.note}",
        path=table,
        expected=f"a protocol below {brought_by}",
        found=feature.name,
        hint=feature.remedy,
    )


def _of(files: pl.DataFrame, kind: str) -> pl.Series:
    return files["actionType"] == kind


def _changes_data(files: pl.DataFrame) -> pl.Series:
    """Which actions change data: all but those with ``dataChange`` false."""
    return _column(files, "dataChange").fill_null(True)


def _column(files: pl.DataFrame, name: str) -> pl.Series:
    return actions.conform(files, (name,)).to_series()


def _refuse_row(
    files: pl.DataFrame,
    wrong: pl.Series,
    message: str,
    table: str,
    *,
    expected: object = None,
    hint: str | None = None,
) -> None:
    row = wrong.arg_max() if wrong.any() else None
    if row is not None:
        found = {"row": row, "path": files["path"][row] if "path" in files.columns else None}
        raise InvalidTransactionError(
            message, path=table, expected=expected, found=found, hint=hint
        )


def _refuse_rows_unseen(wrong: pl.Series, feature: str, what: str, table: str) -> None:
    if wrong.any():
        raise UnsupportedFeatureError(
            f"the table has {what}, and lakelog cannot check the rows of a file",
            path=table,
            expected=f"no files that must be checked for {feature!r}",
            found=feature,
            hint="write these rows with an engine that checks them; removes, rearrangements "
            "(dataChange false) and metadata can be committed here",
        )


def _check_kinds(files: pl.DataFrame, meta: pl.DataFrame, table: str, dialect: Dialect) -> None:
    format, wire = dialect.name, Wire.of(dialect.contract_key)
    for frame, kinds in (
        (files, {*FILE_ACTIONS, "cdc"}),
        (meta, {kind for kind, _ in _ONE_OF_A_KIND}),
    ):
        if not frame.height:
            continue
        for kind in frame["actionType"].unique().sort():
            if kind not in kinds or kind not in wire.wrappers:
                raise InvalidTransactionError(
                    f"the format {format!r} does not support the action {kind!r}",
                    path=table,
                    expected=", ".join(sorted(kinds & wire.wrappers.keys())),
                    found=kind,
                )
    if not files.height:
        return
    # A remove intentionally drops fields of its add; an add that drops one is an error.
    spelled = columns_of("add", dialect.contract_key) | _NOT_SPELLED
    foreign = [column for column in files.columns if column not in spelled]
    if not foreign:
        return
    adds = files.filter(_of(files, "add")).select(foreign)
    for column in foreign:
        if adds[column].count():
            raise InvalidTransactionError(
                f"an add of the format {format!r} has no field for {column!r}",
                path=table,
                expected=", ".join(sorted(spelled - _NOT_SPELLED)),
                found=column,
            )


def _check_one_of_a_kind(meta: pl.DataFrame, table: str) -> None:
    for kind, key in _ONE_OF_A_KIND if meta.height else ():
        rows = actions.of_type(meta, kind)
        if rows.height < 2:
            continue
        again = rows[key].is_duplicated() if key else pl.repeat(True, rows.height, eager=True)
        if again.any():
            raise InvalidTransactionError(
                f"one commit contains two {kind!r} actions that exclude each other",
                path=table,
                expected=f"one {kind}" + (f" one for each {key}" if key else ""),
                found=rows[key].filter(again)[0] if key else rows.height,
            )


def _check_domains(
    configured: TableConfiguration, meta: pl.DataFrame, table: str, allowed: list[str]
) -> None:
    if not meta.height or "domain" not in meta.columns:
        return
    domains = actions.of_type(meta, "domainMetadata")["domain"]
    if not domains.len():
        return
    if not configured.supports("domainMetadata"):
        raise InvalidTransactionError(
            "the protocol does not support metadata domains",
            path=table,
            expected="the feature 'domainMetadata'",
            found=domains[0],
            hint="add the feature to the protocol first",
        )
    system = domains.filter(domains.str.starts_with(_SYSTEM_DOMAIN) & ~domains.is_in(allowed))
    if system.len():
        raise InvalidTransactionError(
            f"domains that begin with {_SYSTEM_DOMAIN!r} are reserved for the system",
            path=table,
            expected="a user's domain, such as com.example.jobs",
            found=system[0],
        )


def _check_change_data(
    configured: TableConfiguration,
    files: pl.DataFrame,
    new: pl.Series,
    removes_data: pl.Series,
    table: str,
    *,
    rows_replaced: bool,
) -> None:
    cdc = _of(files, "cdc")
    if not configured.supports("changeDataFeed"):
        _refuse_row(
            files,
            cdc,
            "the protocol does not support change data files",
            table,
            expected="the feature 'changeDataFeed'",
        )
        return
    if not configured.is_active("changeDataFeed") or cdc.any():
        return
    if new.any() and removes_data.any() and not rows_replaced:
        raise UnsupportedFeatureError(
            "the table has a change data feed, and a commit that adds and removes data "
            "may have changed rows, which it would report as deleted and inserted",
            path=table,
            expected="cdc actions, or only adds, or only removes",
            found="changeDataFeed",
            hint="add the commit's cdc actions; or, if rows are only replaced, declare it "
            "with Transaction.replace_rows",
        )
    _refuse_row(
        files,
        removes_data & ~_column(files, "extendedFileMetadata").fill_null(False),
        "the table has a change data feed, and a removed file has no partition values "
        "and size, so its rows cannot be reported as deleted",
        table,
        expected="partitionValues and size, as the rows of Snapshot.files() have them",
    )


def _check_vectors(
    configured: TableConfiguration, files: pl.DataFrame, table: str, *, restored: bool
) -> None:
    columns = [c for c in DV_COLUMNS if c in files.columns]
    if not columns:
        return
    vectors = files.select(pl.any_horizontal(pl.col(c).is_not_null() for c in columns)).to_series()
    if not configured.supports("deletionVectors"):
        _refuse_row(
            files,
            vectors,
            "the protocol does not support deletion vectors",
            table,
            expected="the feature 'deletionVectors'",
        )
        return
    added = vectors & _of(files, "add")
    enabled = is_on(configured.metadata.configuration, "delta.enableDeletionVectors")
    if not enabled and not restored:
        # A vector that is restored, or only rearranged with its file, is not new.
        _refuse_row(
            files,
            added & _changes_data(files),
            "the table does not allow new deletion vectors",
            table,
            expected="delta.enableDeletionVectors true, or dataChange false",
        )
    _refuse_row(
        files,
        added & num_records(_column(files, "stats")).is_null(),
        "a file with a deletion vector has no numRecords",
        table,
        expected="stats with numRecords",
    )


def _check_counts(
    configured: TableConfiguration, files: pl.DataFrame, adds: pl.Series, table: str
) -> None:
    if not configured.supports("rowTracking"):
        return
    fresh = adds & (
        _column(files, "baseRowId").is_null() | _column(files, "defaultRowCommitVersion").is_null()
    )
    if not fresh.any():
        return
    if not row_tracking.is_assigning(configured):
        if configured.is_active("rowTracking"):
            _refuse_row(
                files,
                fresh,
                "row tracking is both on and suspended, so that a file would have no row ids",
                table,
                expected="delta.enableRowTracking or delta.rowTrackingSuspended false",
                hint="set delta.rowTrackingSuspended to false",
            )
        return
    _refuse_row(
        files,
        fresh & num_records(_column(files, "stats")).is_null(),
        "row tracking is on, and a file has no numRecords, so row ids cannot be assigned",
        table,
        expected="stats with numRecords, or the baseRowId and defaultRowCommitVersion that the "
        "file had",
    )
