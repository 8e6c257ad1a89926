"""Vacuum: deletes data files that no retained version needs.

A file can be deleted if it is older than the retention and no reference protects it. References:

==================  ================================================================================
reference           meaning
==================  ================================================================================
live                the latest version, or one that the caller names, contains it
tombstone           it was removed within the retention: readers of older versions may still run
history             with ``keep_history``: a version that can be rebuilt contains it, or it is
                    change data of its commit
deletion vector     a protected file refers to it
link                a symbolic link within the table leads to it, or to a folder above it: the log
                    may refer to it by the name of the link
==================  ================================================================================

Also kept are: files younger than the retention (a writer may be about to commit them); names that
begin with ``_`` or ``.``, except change data, partition folders of columns with such names, and
temporary files of a killed lakelog process; the ``metadata`` folder of a table that Iceberg reads;
nested tables; folders of write-ahead logs, keyed stores and Ingestors; names that are not valid
Unicode; files outside the table, such as those of a shallow clone; folders that cannot be read,
such as ``lost+found``. If the log refers to a file in such a folder, links in it may lead to any
file, and the vacuum is refused. A path in the log that is absolute or not normalized protects every
file with that name.

References are kept as 64-bit hashes: a collision keeps a file that could be deleted, and never
deletes one that is needed.

Source: Delta protocol, Add File and Remove File; VACUUM Protocol Check; Delta Lake, VacuumCommand.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from posixpath import basename, dirname
from typing import Any

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.dialects.log_content import LogListing
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    UnavailableError,
    UnsafeRetentionError,
    UnsupportedStoreError,
)
from lakelog.input_validation import is_unicode
from lakelog.log.context import Log
from lakelog.log.history import by_size
from lakelog.log.opening import with_stable_listing
from lakelog.log.properties import DELETED_FILE_RETENTION_MS
from lakelog.log.segment import rebuildable
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions, contract
from lakelog.model.durations import duration_text
from lakelog.model.metadata import Metadata
from lakelog.storage.base import IN_FLIGHT, FileEntry, Link, LogStore, delete_files, tree_of
from lakelog.storage.containment import ABSOLUTE
from lakelog.storage.durable import TEMPORARY
from lakelog.telemetry import Progress
from lakelog.transaction.file_rules import LOG_FOLDERS, table_folders
from lakelog.transaction.write_support import check_writable
from lakelog.wal.placement import INGEST_FILE, LOG_FOLDER, STORE_FILE
from lakelog.wal.segments import LOCK_NAME

_VECTOR_COLUMNS = actions.DV_COLUMNS[:2]  # which name the file
_CHANGE_DATA = "_change_data"
_VECTOR_FILE = r"(^|/)deletion_vector_[0-9a-fA-F-]{36}\.bin$"
_BEGUN = rf"(^|/){TEMPORARY.pattern}$"
_ODD = rf"{ABSOLUTE}|//|(^|/)\.\.?(/|$)"
_OF_A_LOG = rf"(^|/)({'|'.join(map(re.escape, (LOCK_NAME, STORE_FILE, INGEST_FILE)))})$"
_DELETED_AT_ONCE = 10_000
_SIZES = ("size_bytes", "size", "length")
_TIMES = ("modified_ms", "modificationTime", "modification_time")


@dataclass(frozen=True)
class VacuumReport(Displayed):
    """Result of a vacuum.

    Attributes:
        table: Location of the table.
        version: Latest version when the last file was deleted.
        deleted: Number of deleted files, without those that another process deleted first
            (which S3 does not report).
        size_bytes: Total size of the deleted files, in bytes.
        spared: Number of planned files that were kept, because a commit made after the plan refers
            to them.
        errors: One error, with its ``path``, per file that could not be deleted.
        unreadable: Folders that could not be read; their files are kept.
    """

    _title = "Vacuum"

    table: str
    version: int
    deleted: int
    size_bytes: int
    spared: int
    errors: tuple[LakelogError, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        return [
            ("path", self.table),
            ("version", str(self.version)),
            ("deleted", f"{self.deleted:,} files, {size_text(self.size_bytes)}"),
            ("spared since", f"{self.spared:,} files"),
            ("not deleted", f"{len(self.errors):,} files"),
            *_unread(self.unreadable),
        ]


@dataclass(frozen=True)
class VacuumPlan(Displayed):
    """Plan of a vacuum; nothing is deleted before `apply`.

    Attributes:
        table: Location of the table.
        version: Version that the plan was made for.
        retention_ms: Retention of removed files, in milliseconds.
        cutoff_ms: Files modified, and tombstones created, before this time are not protected;
            milliseconds since the Unix epoch.
        files: One row per file that can be deleted, sorted by path: ``path``, ``kind`` (``data``,
            ``deletionVector`` or ``changeData``), ``size_bytes``, ``modified_ms`` (Int64),
            ``action`` (``delete``) and ``why``; the others are String.
        kept: Number of kept files, by reason: ``referenced``, ``young``, ``hidden``, ``nested
            table``, ``write-ahead log``.
        unreadable: Folders that could not be read; their files are kept, and not counted.
    """

    _title = "Vacuum plan"

    table: str
    version: int
    retention_ms: int
    cutoff_ms: int
    files: pl.DataFrame
    kept: Mapping[str, int]
    unreadable: tuple[str, ...]
    _vacuum: Vacuum = field(repr=False, compare=False)

    @property
    def size_bytes(self) -> int:
        """Total size of the files that can be deleted, in bytes."""
        return int(self.files["size_bytes"].sum())

    def apply(self, progress: Progress | None = None) -> VacuumReport:
        """Read new commits, then delete the files. Errors are reported, and a second vacuum
        continues after an interruption.

        Raises UnsupportedStoreError for a read-only store, UnavailableError if the log cannot be
        read. `progress` is called with ``("delete", done, total)``.
        """
        return self._vacuum.delete(self, progress)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        kept = ", ".join(f"{count:,} {why}" for why, count in self.kept.items() if count)
        cutoff = dt.datetime.fromtimestamp(self.cutoff_ms / 1000, dt.UTC)
        return [
            ("path", self.table),
            ("version", str(self.version)),
            ("older than", f"{cutoff:%Y-%m-%d %H:%M:%S} UTC"),
            ("deletable", f"{self.files.height:,} files, {size_text(self.size_bytes)}"),
            ("stay", kept or "nothing"),
            *_unread(self.unreadable),
        ]


def _unread(folders: Sequence[str]) -> list[tuple[str, str]]:
    return [("not readable", ", ".join(folders))] if folders else []


class Listing:
    """The files of a table's folder, or of an inventory, and the links and unreadable folders of
    the folder; found by one traversal.

    Attributes:
        is_complete: Whether the files are those of the folder.
    """

    def __init__(self, log: Log, inventory: Any = None) -> None:
        self.is_complete = inventory is None
        self._store = log.store
        self._files = None if inventory is None else _of_inventory(inventory)
        self._others: tuple[list[Link], list[LakelogError]] | None = None

    def batches(self) -> Iterator[pl.DataFrame]:
        """Path, length and time of the files."""
        if self._files is None:
            yield from self._traverse(files=True)
        else:
            yield self._files

    @property
    def files(self) -> pl.DataFrame:
        """All `batches`."""
        if self._files is None:
            self._files = pl.concat([pl.DataFrame(schema=_LISTED), *self.batches()])
        return self._files

    @property
    def links(self) -> list[Link]:
        """The symbolic links."""
        return self._noted[0]

    @property
    def unreadable(self) -> list[LakelogError]:
        """One error, with its ``path``, per folder that cannot be read."""
        return self._noted[1]

    @property
    def _noted(self) -> tuple[list[Link], list[LakelogError]]:
        if self._others is None:
            for _ in self._traverse(files=False):
                pass
        assert self._others is not None
        return self._others

    def _traverse(self, *, files: bool) -> Iterator[pl.DataFrame]:
        links: list[Link] = []
        unreadable: list[LakelogError] = []
        for part in tree_of(self._store, files=files):
            links += part.links
            unreadable += part.unreadable
            if part.files:
                yield of_entries(part.files)
        self._others = links, unreadable


class References:
    """The files that some version needs, as 64-bit hashes of paths, or names of absolute ones."""

    def __init__(self) -> None:
        self._paths: list[pl.Series] = []
        self._names: list[pl.Series] = []
        self._linked: set[str] = set()

    def add_links(self, links: Iterable[Link]) -> None:
        """Protect what links lead to, and all files below it."""
        targets = (link.target for link in links)
        self._linked.update(path for path in targets if path is not None and is_unicode(path))

    def add(self, files: pl.DataFrame) -> None:
        """Protect files (decoded ``path``) and their deletion vectors."""
        for paths in (files["path"], vector_paths(files).drop_nulls()):
            odd = paths.str.contains(_ODD)
            self._paths.append(paths.filter(~odd).hash())
            if odd.any():
                # The folder may be spelled differently, but names of data files are unique.
                self._names.append(_names(paths.filter(odd)).hash())

    def protect(self, paths: pl.Series) -> pl.Series:
        """Which of the relative paths are protected: Boolean, one value per path."""
        found = paths.hash().is_in(self._joined(self._paths).implode())
        if self._names:
            found |= _names(paths).hash().is_in(self._joined(self._names).implode())
        return found | self.is_linked(paths)

    def is_linked(self, paths: pl.Series) -> pl.Series:
        """Which of the relative paths a link leads to."""
        return inside(paths, self._linked)

    @staticmethod
    def _joined(parts: list[pl.Series]) -> pl.Series:
        if len(parts) != 1:
            parts[:] = [pl.concat([pl.Series(dtype=pl.UInt64), *parts]).unique()]
        return parts[0]


class _FilesBelow:
    """Whether references name a file in one of some folders."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._pattern = rf"(?s)(^|/)({'|'.join(map(re.escape, folders))})(/|$)"
        self.exist = False

    def add(self, files: pl.DataFrame) -> None:
        """Examine files (decoded ``path``) and their deletion vectors."""
        named = (files["path"], vector_paths(files).drop_nulls())
        self.exist |= any(paths.str.contains(self._pattern).any() for paths in named)


@dataclass(frozen=True)
class Vacuum:
    """Parameters of a vacuum.

    Attributes:
        log: The log.
        retention_ms: Retention of removed files, in milliseconds; None: the table's own.
        force: Whether a retention below the table's own is allowed.
        keep_versions: Versions whose files are kept at any age.
        keep_history: Whether the files of every version that can be rebuilt are kept.
    """

    log: Log
    retention_ms: int | None = None
    force: bool = False
    keep_versions: tuple[int, ...] = ()
    keep_history: bool = False

    def plan(self, inventory: Any = None, progress: Progress | None = None) -> VacuumPlan:
        """Find the files that can be deleted; see `lakelog.table.Table.vacuum`."""
        return self.plan_of(Listing(self.log, inventory), progress)

    def plan_of(self, listing: Listing, progress: Progress | None = None) -> VacuumPlan:
        """As `plan`. The store is asked for nested tables unless the listing is complete."""
        snapshot = LogSnapshot.open(self.log)
        metadata = snapshot.metadata
        check_writable(snapshot.table_configuration, self.log.table)
        retention_ms = self._retention(metadata)
        cutoff_ms = self.log.clock() - retention_ms
        references = References()
        self._refer(references, snapshot, cutoff_ms)
        hidden = _Hidden.of(snapshot.table_configuration)
        kept = dict.fromkeys(("referenced", "young", "hidden"), 0)
        deletable: list[pl.DataFrame] = []
        nested: set[str] = set()
        of_logs: set[str] = set()
        seen = 0
        for batch in listing.batches():
            seen += batch.height
            nested |= table_folders(batch["path"])
            of_logs.update(batch["path"].filter(batch["path"].str.contains(_OF_A_LOG)))
            left = batch
            for why, stays in (
                ("hidden", hidden.holds),
                ("referenced", references.protect),
            ):
                mask = stays(left["path"])
                kept[why] += int(mask.sum())
                left = left.filter(~mask)
            old = left["modified_ms"] < cutoff_ms
            kept["young"] += int((~old).sum())
            deletable.append(left.filter(old))
            if progress is not None:
                progress("list", seen, None)
        files = pl.concat([pl.DataFrame(schema=_LISTED), *deletable])
        unreadable = self._unreadable(listing, snapshot, cutoff_ms)
        references.add_links(listing.links)
        is_linked = references.is_linked(files["path"])
        kept["referenced"] += int(is_linked.sum())
        files = files.filter(~is_linked & ~inside(files["path"], unreadable))
        nested |= _tables_of([*(link.name for link in listing.links), *unreadable])
        if not listing.is_complete:
            nested |= _tables_above(self.log.store, files["path"])
        links = [link.name for link in listing.links if is_unicode(link.name)]
        of_logs.update(f"{name}/{LOCK_NAME}" for name in links if basename(name) == LOG_FOLDER)
        for why, folders in (("nested table", nested), ("write-ahead log", _log_folders(of_logs))):
            is_inside = inside(files["path"], folders)
            kept[why] = int(is_inside.sum())
            files = files.filter(~is_inside)
        return VacuumPlan(
            self.log.table,
            snapshot.version,
            retention_ms,
            cutoff_ms,
            _planned(files.unique("path", keep="any").sort("path")),
            kept,
            tuple(unreadable),
            self,
        )

    def delete(self, plan: VacuumPlan, progress: Progress | None) -> VacuumReport:
        """Delete the planned files that no later commit needs; see `VacuumPlan.apply`."""
        store = self.log.store
        if store.refusal is not None:
            raise UnsupportedStoreError(store.refusal, path=self.log.table)
        snapshot: LogSnapshot | None = None
        references = References()
        total = plan.files.height
        deleted = size_bytes = spared = absent = 0
        version, unreadable = plan.version, list(plan.unreadable)
        errors: list[LakelogError] = []
        for chunk in plan.files.iter_slices(_DELETED_AT_ONCE):
            if snapshot is None or self.log.latest_version() != snapshot.version:
                # A restore can bring back files whose tombstones have expired. The same version may
                # be of another table, which was created here after the plan.
                snapshot, listing = LogSnapshot.open(self.log), Listing(self.log)
                references = References()
                self._refer(references, snapshot, plan.cutoff_ms)
                references.add_links(listing.links)
                unreadable = self._unreadable(listing, snapshot, plan.cutoff_ms)
                version = snapshot.version
            needed = references.protect(chunk["path"])
            spared += int(needed.sum())
            chosen = chunk.filter(~needed)
            failed, missing = delete_files(store, chosen["path"].to_list())
            errors += failed
            left = [*(error.path for error in failed), *missing]
            deleted_files = chosen.filter(~chosen["path"].is_in(left))
            absent += len(missing)
            deleted += deleted_files.height
            size_bytes += int(deleted_files["size_bytes"].sum())
            if progress is not None:
                progress("delete", deleted + spared + absent + len(errors), total)
        telemetry.event(
            "vacuum.done",
            path=self.log.table,
            version=version,
            files=deleted,
            size_bytes=size_bytes,
            spared=spared,
            failed=len(errors),
        )
        telemetry.count("vacuum.files", deleted)
        telemetry.count("vacuum.bytes", size_bytes)
        return VacuumReport(
            self.log.table, version, deleted, size_bytes, spared, tuple(errors), tuple(unreadable)
        )

    def _retention(self, metadata: Metadata) -> int:
        promised = self._promised(metadata)
        if self.retention_ms is None:
            return promised
        if self.retention_ms < 0:
            raise InvalidInputError(
                "retention must be a duration >= 0", expected=">= 0", found=self.retention_ms
            )
        if self.retention_ms < promised and not self.force:
            raise UnsafeRetentionError(
                "the retention is shorter than the table's own",
                path=self.log.table,
                expected=f"at least {duration_text(promised)}",
                found=duration_text(self.retention_ms),
                hint="running readers and writers may still need the files; use force=True, or "
                "--force on the command line, if there are none, or change "
                "delta.deletedFileRetentionDuration",
            )
        return self.retention_ms

    def _unreadable(self, listing: Listing, snapshot: LogSnapshot, cutoff_ms: int) -> list[str]:
        """The folders that cannot be read; refuses those with a file that a reference names."""
        paths = {error.path or "": error for error in listing.unreadable}
        folders = [path for path in paths if is_unicode(path)]
        if folders:
            below = _FilesBelow(folders)
            self._refer(below, snapshot, cutoff_ms)
            if below.exist:
                raise UnavailableError(
                    "a folder with files of the table cannot be read, and symbolic links in it may "
                    "lead to any other file",
                    path=folders[0],
                    hint="run the vacuum with the permission to read the folder",
                ) from paths[folders[0]].__cause__
        return folders

    def _refer(
        self, found: References | _FilesBelow, snapshot: LogSnapshot, cutoff_ms: int
    ) -> None:
        """Add every file that is needed."""
        for frame in _files(snapshot, "add"):
            found.add(frame)
        for frame in _files(snapshot, "remove", "deletionTimestamp"):
            found.add(_removed_since(frame, cutoff_ms))
        promised = self._promised(snapshot.metadata)
        retention_ms = promised if self.retention_ms is None else self.retention_ms
        if retention_ms > min(promised, DELETED_FILE_RETENTION_MS):
            # Checkpoints drop the removes that are older than the table's own retention, which was
            # the default before the property was set.
            with_stable_listing(
                self.log, lambda listing: self._protect_removed(listing, found, cutoff_ms)
            )
        for version in self.keep_versions:
            for frame in _files(LogSnapshot.open(self.log, version), "add"):
                found.add(frame)
        if self.keep_history:
            with_stable_listing(self.log, lambda listing: self._protect_history(listing, found))

    def _protect_history(self, listing: LogListing, found: References | _FilesBelow) -> None:
        """Protect the oldest version's files, later added ones, and their change data."""
        for first, last in rebuildable(listing):
            for frame in _files(LogSnapshot.open(self.log, first), "add"):
                found.add(frame)
            commits = [c for c in listing.commits if first <= c.version <= last]
            for run in by_size(commits):
                decoded = self.log.dialect.decode(self.log.store, run)
                for frame, kind in ((decoded.files, "add"), (decoded.other, "cdc")):
                    if frame.height:
                        found.add(actions.of_type(frame, kind))

    def _promised(self, metadata: Metadata) -> int:
        """The table's own retention of removed files, in milliseconds."""
        options = CheckpointOptions.of(metadata.configuration, self.log.dialect)
        return options.deleted_file_retention_ms

    def _protect_removed(
        self, listing: LogListing, found: References | _FilesBelow, cutoff_ms: int
    ) -> None:
        """Protect the files that the remaining commits removed since a time."""
        for run in by_size(listing.commits):
            files = self.log.dialect.decode(self.log.store, run).files
            if files.height:
                found.add(_removed_since(actions.of_type(files, "remove"), cutoff_ms))


@dataclass(frozen=True)
class _Hidden:
    """Names that a vacuum never deletes."""

    pattern: str
    spared: str | None

    @staticmethod
    def of(table: TableConfiguration) -> _Hidden:
        metadata = table.metadata
        names = set(metadata.partition_columns)
        mapping = metadata.column_mapping_mode
        if mapping != "none":
            names |= {contract.physical_name(field, mapping) for field in metadata.schema.fields}
        shown = [f"{re.escape(name)}=" for name in names if name[:1] in "_."]
        patterns = [r"(^|/)[_.]"]
        configured = metadata.configuration.get("delta.universalFormat.enabledFormats") or ""
        if "iceberg" in configured.lower():
            patterns.append(r"^metadata/")
        if "changeDataFeed" in table.rules.features:
            shown.append(f"{_CHANGE_DATA}/")
        spared = f"(^|/)({'|'.join(shown)})" if shown else None
        return _Hidden("|".join(patterns), spared)

    def holds(self, paths: pl.Series) -> pl.Series:
        seen = paths if self.spared is None else paths.str.replace_all(self.spared, "$1")
        seen = seen.str.replace(_BEGUN, "$1")
        return seen.str.contains(self.pattern)


_LISTED = {"path": pl.String, "size_bytes": pl.Int64, "modified_ms": pl.Int64}


def _files(snapshot: LogSnapshot, kind: str, *columns: str) -> Iterator[pl.DataFrame]:
    # Read completely before use: a damaged checkpoint may be detected half-way, and replaced by an
    # older one.
    wanted = ("path", *_VECTOR_COLUMNS, *columns)
    yield from snapshot.read_state(lambda state: state.live(kind, wanted))


def _removed_since(removes: pl.DataFrame, cutoff_ms: int) -> pl.DataFrame:
    at = actions.conform(removes, ("deletionTimestamp",)).to_series().fill_null(0)
    return removes.filter(at >= cutoff_ms)


def of_entries(listed: Iterable[FileEntry]) -> pl.DataFrame:
    """Files of a listing, with the columns of `Listing.files`."""
    # A name that is not valid Unicode cannot be in a log, so its owner is unknown.
    known = [entry for entry in listed if is_unicode(entry.name)]
    return pl.DataFrame(known, schema=list(_LISTED.items()), orient="row")


def _of_inventory(inventory: Any) -> pl.DataFrame:
    """An inventory as a listing; InvalidInputError without a column, or for absolute paths."""
    frame = _as_frame(inventory)
    chosen = {"path": "path"}
    for wanted, names in (("size_bytes", _SIZES), ("modified_ms", _TIMES)):
        found = [name for name in names if name in frame.columns]
        if not found or "path" not in frame.columns:
            raise InvalidInputError(
                "the inventory lacks a column",
                expected=f"path, one of {', '.join(_SIZES)}, one of {', '.join(_TIMES)}",
                found=", ".join(frame.columns),
            )
        chosen[wanted] = found[0]
    try:
        if "isDir" in frame.columns:
            frame = frame.filter(~pl.col("isDir").fill_null(value=False))
        times = frame[chosen["modified_ms"]]
        if times.dtype.is_temporal():
            frame = frame.with_columns(times.dt.epoch("ms"))
        listed = frame.select(
            pl.col(old).cast(_LISTED[new]).alias(new) for new, old in chosen.items()
        )
    except pl.exceptions.PolarsError as cause:
        raise InvalidInputError(
            "a column of the inventory has the wrong type",
            expected="texts in path, whole numbers or times in the others, Boolean in isDir",
            found=", ".join(f"{name}: {dtype}" for name, dtype in frame.schema.items()),
        ) from cause
    odd = listed.filter(
        pl.col("path").is_null()
        | pl.col("modified_ms").is_null()
        | pl.col("path").str.contains(rf"{_ODD}|^$")
    )
    if odd.height:
        raise InvalidInputError(
            "a file of the inventory has no time, or no path relative to the table",
            path=odd["path"][0],
            expected="a path relative to the table's folder, and a modification time",
            found=odd["modified_ms"][0],
        )
    return listed


def _as_frame(inventory: Any) -> pl.DataFrame:
    if isinstance(inventory, pl.LazyFrame):
        return inventory.collect()
    try:
        if hasattr(inventory, "__arrow_c_stream__") and not isinstance(inventory, pl.DataFrame):
            import pyarrow as pa

            inventory = contract.without_metadata(pa.table(inventory))
        return pl.DataFrame(inventory)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as cause:
        raise InvalidInputError(
            "the inventory is not a table",
            expected="a Polars, pandas or Arrow frame",
            found=type(inventory).__name__,
        ) from cause


def _planned(files: pl.DataFrame) -> pl.DataFrame:
    path = pl.col("path")
    kind = (
        pl.when(path.str.starts_with(f"{_CHANGE_DATA}/"))
        .then(pl.lit("changeData"))
        .when(path.str.contains(_VECTOR_FILE))
        .then(pl.lit("deletionVector"))
        .otherwise(pl.lit("data"))
    )
    return files.select(
        "path",
        kind.alias("kind"),
        "size_bytes",
        "modified_ms",
        pl.lit("delete").alias("action"),
        pl.lit("no retained version refers to it, and it is older than the retention").alias("why"),
    )


def _names(paths: pl.Series) -> pl.Series:
    return paths.str.extract(r"([^/]+)/*$")


def _tables_of(folders: Iterable[str]) -> set[str]:
    """Folders that are tables, of the paths of some log folders and others."""
    known = [f"{folder}/" for folder in folders if is_unicode(folder)]
    return table_folders(pl.Series(known, dtype=pl.String))


def _tables_above(store: LogStore, paths: pl.Series) -> set[str]:
    """Folders above some files, below the table's own, that the store has a log folder in."""
    above: set[str] = set()
    folders = paths
    while folders.len():
        folders = folders.str.extract("(?s)^(.+)/").drop_nulls().unique()
        above.update(folders)
    logs = [f"{folder}/{name}" for folder in sorted(above) for name in LOG_FOLDERS]
    asked = [logs[at : at + IN_FLIGHT] for at in range(0, len(logs), IN_FLIGHT)]
    return _tables_of(log for each in asked for log in compress(each, store.has_folders(each)))


def _log_folders(paths: Collection[str]) -> set[str]:
    """The directories of logs, or of the keyed stores and Ingestors that have them, from the paths
    of all lock and state files.
    """
    found = {dirname(path) for path in paths if basename(path) == LOCK_NAME}
    owners = {dirname(path) for path in paths if basename(path) != LOCK_NAME}
    return {
        dirname(log) if basename(log) == LOG_FOLDER and dirname(log) in owners else log
        for log in found
    }


def inside(paths: pl.Series, folders: Collection[str]) -> pl.Series:
    """Which paths are one of the folders, or below one; an empty text is the table's folder."""
    found = pl.Series([""], dtype=pl.String).is_in(folders).new_from_index(0, paths.len())
    for depth in {folder.count("/") for folder in folders if folder}:
        above = paths.str.extract(rf"^([^/]*(?:/[^/]*){{{depth}}})(?:/|$)")
        found |= above.is_in(folders).fill_null(value=False)
    return found
