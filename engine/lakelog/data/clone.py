"""`clone`: makes a shallow clone, a table whose first version names the files of another one.

The log of the clone has the absolute paths of the source's data files and deletion vectors. Commits
to the clone do not change the source, and maintenance of the clone deletes files below its own
folder only. The source has no record of its clones: a file that its vacuum deletes is missing in
the clone.

Source: Delta Lake, CLONE (CloneTableCommand). Delta protocol, Add File and Remove File; Deletion
Vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import polars as pl

from lakelog.data.files import ReadPlan, require_single
from lakelog.data.targets import with_row_counts
from lakelog.dialects.base import Dialect
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.dialects.delta.paths import encode_paths
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import InvalidInputError, naming_destination
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.redaction import redact
from lakelog.storage.bounded import bounded
from lakelog.storage.containment import AllowedLocations
from lakelog.transaction.commit_content import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION
from lakelog.transaction.create import NewTable
from lakelog.transaction.file_rules import added_again
from lakelog.transaction.metadata_changes import CHECKPOINT_PROTECTION, with_tracking_columns
from lakelog.transaction.operations import CommitArguments, CommitDescription, Operation
from lakelog.transaction.row_tracking import DOMAIN, ROW_ID_COLUMN, ROW_VERSION_COLUMN
from lakelog.transaction.runtime import Runtime

_OF_THE_LOG = (
    ENABLEMENT_VERSION,
    ENABLEMENT_TIMESTAMP,
    CHECKPOINT_PROTECTION,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
)
_OF_THE_FILES = ("version", "dataChange", "dvId", "baseRowId", "defaultRowCommitVersion")


def clone(
    snapshot: LogSnapshot,
    source: Log,
    target: Log,
    runtime: Runtime,
    dialects: Sequence[Dialect],
    commit: CommitDescription,
) -> None:
    """Write version 0 of a clone; see `lakelog.table.Table.clone`."""
    ReadPlan.of(snapshot, ())  # raises for a table without rows
    with naming_destination(target.table, target.storage_options):
        new = NewTable(target, runtime, dialects, _configuration(snapshot, runtime, target.clock()))
    opened = bounded(source.store)
    if opened is None or not opened.by_location:
        raise InvalidInputError(
            "the clone cannot refer to the files, because the table was not opened by its location",
            path=source.table,
            hint="pass the location to lakelog.open instead of a store",
        )
    locations = source.allowed_locations
    _require_apart(locations.absolute(""), target.allowed_locations.absolute(""), target.table)
    files = snapshot.files().collect()
    require_single(files, snapshot.version)
    files = with_row_counts(snapshot, files, source.store)
    known = added_again(files, snapshot.table_configuration)
    adds = _with_absolute_paths(known.drop(_OF_THE_FILES, strict=False), locations)
    domains = snapshot.domains().filter(pl.col("domain") != DOMAIN).collect().drop("version")
    size = int(files["size"].sum())
    operation = Operation(
        "CLONE",
        {"source": redact(locations.absolute("")), "sourceVersion": snapshot.version},
    )
    metrics = {
        "sourceTableSize": size,
        "sourceNumOfFiles": files.height,
        "numRemovedFiles": 0,
        "numCopiedFiles": 0,
        "removedFilesSize": 0,
        "copiedFilesSize": 0,
    }
    with naming_destination(target.table, target.storage_options):
        new.commit(
            adds,
            operation=operation,
            metrics=metrics,
            commit=cast("CommitArguments", commit),
            domains=domains,
            external=True,
            rows_checked=True,
        )


def _require_apart(source: str, target: str, path: str) -> None:
    """Refuse nested tables: vacuum of the outer one would delete files of the inner one."""
    outer, inner = sorted((source.rstrip("/") + "/", target.rstrip("/") + "/"), key=len)
    if inner.startswith(outer):
        raise InvalidInputError(
            "the folder of a clone must not contain that of its source, or be inside it",
            path=path,
            expected=f"a location outside of {redact(source)}",
            found=redact(target),
            hint="choose a location next to the table",
        )


def _with_absolute_paths(files: pl.DataFrame, locations: AllowedLocations) -> pl.DataFrame:
    """The files by absolute paths, and their deletion vectors too."""

    def absolute(paths: pl.Series) -> pl.Series:
        distinct = paths.unique()
        urls = pl.Series([locations.absolute(path) for path in distinct], dtype=pl.String)
        return paths.replace_strict(distinct, urls, return_dtype=pl.String)

    found = files.with_columns(absolute(files["path"]).alias("path"))
    stored = files["dvStorageType"].is_in(["u", "p"]).fill_null(value=False)
    if not stored.any():
        return found
    rows = stored.arg_true()
    vectors = encode_paths(absolute(vector_paths(files.filter(stored))))
    return found.with_columns(
        files["dvStorageType"].scatter(rows, ["p"] * rows.len()),
        files["dvPathOrInline"].scatter(rows, vectors),
    )


def _configuration(snapshot: LogSnapshot, runtime: Runtime, now_ms: int) -> TableConfiguration:
    """Protocol and metadata of the clone: those of the source, with an id of its own, and features
    in the lists where they belong.
    """
    table = snapshot.table_configuration
    protocol = table.rules.upgrade(table.protocol, table.rules.mislisted(table.protocol))
    properties = {k: v for k, v in table.metadata.configuration.items() if k not in _OF_THE_LOG}
    metadata = replace(
        table.metadata,
        id=runtime.new_id(),
        configuration=with_tracking_columns(properties, {}, runtime.new_id),
        created_time=now_ms,
    )
    return table.changed(protocol, metadata)
