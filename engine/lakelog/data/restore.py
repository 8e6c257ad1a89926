"""`restore`: makes a table what it was at an earlier version, in one commit.

Files that the earlier version has and the table lacks are added again; files that only the table
has are removed. Before the commit, the files are looked up: a version whose files were deleted
cannot be restored. Files outside of the table's folder are looked up if ``allow_external`` includes
them, and otherwise counted in the report.

Source: Delta Lake, RestoreTableCommand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from lakelog.data.file_opening import Sources
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.display import Displayed, size_text
from lakelog.errors import ExternalPathError, NotFoundError
from lakelog.log.context import Log
from lakelog.maintenance.vacuum import Listing
from lakelog.threads import Pool
from lakelog.transaction.operations import CommitDescription
from lakelog.transaction.restoring import Restored
from lakelog.transaction.transaction import LogTransaction

_STATS_AT_MOST = 256
_THREADS = 16
_SHOWN = 10


@dataclass(frozen=True)
class RestoreReport(Displayed):
    """The result of `Table.restore`, or its plan.

    Attributes:
        restored_version: The version whose state the table has.
        version: The version that was committed; None if nothing was, because it is a plan or the
            table has that state already.
        num_restored_files: Data files that are added again.
        restored_bytes: Their length.
        num_removed_files: Data files that are removed.
        removed_bytes: Their length.
        changes_metadata: Whether schema, partitioning or properties change.
        num_files: Data files of the restored state.
        num_bytes: Their length.
        unchecked_files: Data files and files of deletion vectors outside of the table's folder that
            are added again without a check, because ``allow_external`` does not include them.
        is_plan: Whether it is a plan, which was not committed.
    """

    restored_version: int
    version: int | None
    num_restored_files: int
    restored_bytes: int
    num_removed_files: int
    removed_bytes: int
    changes_metadata: bool
    num_files: int
    num_bytes: int
    unchecked_files: int = 0
    is_plan: bool = False

    @property
    def _title(self) -> str:
        return "Restore plan" if self.is_plan else "Restore"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        rows = [
            ("version", "nothing was written" if self.version is None else str(self.version)),
            ("state of version", str(self.restored_version)),
            ("files added again", f"{self.num_restored_files:,}, {size_text(self.restored_bytes)}"),
            ("files removed", f"{self.num_removed_files:,}, {size_text(self.removed_bytes)}"),
            ("metadata", "changes" if self.changes_metadata else "stays"),
            ("files afterwards", f"{self.num_files:,}, {size_text(self.num_bytes)}"),
        ]
        if self.unchecked_files:
            text = f"{self.unchecked_files:,}, outside of the table's folder"
            rows.append(("files not checked", text))
        return rows


def restore(
    log: Log,
    begin: Callable[..., LogTransaction],
    version: int,
    timestamp: str | None,
    commit: CommitDescription,
    *,
    plan: bool,
) -> RestoreReport:
    """Restore a version; see `lakelog.table.Table.restore`."""
    metrics: dict[str, Any] = {}
    at = {"version": None if timestamp else version, "timestamp": timestamp}
    # Serializable, because any commit in between would change the restored state.
    tx = begin(
        **{"operation": "RESTORE", **commit},
        parameters={name: value for name, value in at.items() if value is not None},
        metrics=metrics,
        isolation="Serializable",
    )
    now = tx.snapshot
    restored = tx.restore(version)
    num_unchecked = _require_files(log, restored.added, version)
    changed = _totals(restored)
    report = RestoreReport(
        version,
        None,
        **changed,
        changes_metadata=tx.changes_metadata,
        num_files=now.num_files() + restored.added.height - restored.removed.height,
        num_bytes=now.total_size() + changed["restored_bytes"] - changed["removed_bytes"],
        unchecked_files=num_unchecked,
    )
    metrics |= {
        "numRestoredFiles": report.num_restored_files,
        "restoredFilesSize": report.restored_bytes,
        "numRemovedFiles": report.num_removed_files,
        "removedFilesSize": report.removed_bytes,
        "numOfFilesAfterRestore": report.num_files,
        "tableSizeAfterRestore": report.num_bytes,
    }
    if plan:
        return replace(report, is_plan=True)
    return replace(report, version=tx.commit())


def _totals(restored: Restored) -> dict[str, Any]:
    return {
        "num_restored_files": restored.added.height,
        "restored_bytes": int(restored.added["size"].sum()),
        "num_removed_files": restored.removed.height,
        "removed_bytes": int(restored.removed["size"].sum()),
    }


def _require_files(log: Log, added: pl.DataFrame, version: int) -> int:
    """Refuse a version of which a data file or a deletion vector was deleted. The number of files
    that may not be looked up.
    """
    if not added.height:
        return 0
    vectors = vector_paths(added).drop_nulls() if "dvStorageType" in added.columns else None
    paths = added["path"] if vectors is None else pl.concat([added["path"], vectors.alias("path")])
    missing, num_unchecked = _missing(log, paths.unique(maintain_order=True))
    if missing.len():
        raise NotFoundError(
            f"the version cannot be restored: {missing.len():,} of its files were not found",
            path=missing[0],
            version=version,
            expected=f"all {paths.len():,} files that only this version has",
            found=missing.head(_SHOWN).to_list(),
            hint="the files were deleted, probably by a vacuum: restore a later version, or the "
            "files from a copy",
        )
    return num_unchecked


def _missing(log: Log, paths: pl.Series) -> tuple[pl.Series, int]:
    """Paths without a file, and the number of those that may not be looked up. Few files are looked
    up one by one, many in a listing.
    """
    sources = Sources(log.allowed_locations, log.store)

    def exists(path: str) -> bool | None:
        try:
            return sources.stat(path) is not None
        except ExternalPathError:
            return None

    own = pl.Series([sources.is_own(path) for path in paths], dtype=pl.Boolean)
    if own.sum() > _STATS_AT_MOST:
        paths = paths.filter(~(own & paths.is_in(Listing(log).files["path"].implode())))
    with Pool(_THREADS, thread_name_prefix="lakelog-restore") as pool:
        found = pl.Series(list(pool.map(exists, paths)), dtype=pl.Boolean)
    return paths.filter(~found), found.null_count()
