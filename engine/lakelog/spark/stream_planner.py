"""`StreamPlanner`: plans the files that a stream reads next, in a fixed order; its offsets.

If the stream began with the table's content, the files of that version are first; then the files
that each commit added. An offset is a position between two files: those before it have been read.

The JSON form is stored in checkpoints that outlive a release, so fields are only added, never
changed:

=====================  ============================================================================
field                  meaning
=====================  ============================================================================
``sourceVersion``      1; a stream refuses a number that it does not know
``tableId``            ``id`` of the table's metadata: another table at the same place is refused
``version``            the version that is being read
``index``              how many of its files have been read
``isInitialSnapshot``  whether ``index`` counts the files that the version holds, else those that
                       its commit added
``beganVersion``       ``version`` of the offset that the stream began with
``beganInitial``       its ``isInitialSnapshot``
``isChangeFeed``       true in a stream of changes, else missing
=====================  ============================================================================

**The start of the first batch** is in every offset, because Spark does not store it: if that batch
is repeated, Spark asks for the initial offset again, and the table's latest version may have
changed.

A batch may be read again after a restart, from its offsets alone, and must return the same rows.
Therefore the order of files depends only on the log: files of a version by modification time and
path, files of a commit in the order of the commit.

A stream returns added rows, and cannot retract any. A commit that removes or changes rows (a
``remove`` with ``dataChange``) therefore ends it with an error, or is skipped completely, including
its additions, if the user sets the option. Commits that only rearrange files (``dataChange`` false)
do not change rows, and are always skipped.

A stream of changes (`StreamPlanner.advance_commits`) follows every commit, in whole commits: after
the initial version, its offsets have ``index`` 0.

Independent of Spark.

Source: Delta protocol, Add File and Remove File (``dataChange``); Delta's streaming source.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from lakelog.data.files import FILE_COLUMNS, require_single
from lakelog.dialects.commit_reader import group_commits
from lakelog.dialects.log_content import Actions, CommitFile
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogWarning,
    NotFoundError,
    StreamMismatchError,
    VersionNotFoundError,
)
from lakelog.lazy import cached_property
from lakelog.log.context import version_at
from lakelog.log.segment import validate_contiguous
from lakelog.model import actions, contract
from lakelog.model.metadata import Metadata, last_metadata, last_protocol, moved_column
from lakelog.snapshot import Snapshot
from lakelog.table import Table

_SOURCE_VERSION = 1
_REQUIRED = {
    "tableId": str,
    "version": int,
    "index": int,
    "isInitialSnapshot": bool,
    "beganVersion": int,
    "beganInitial": bool,
}
"""Fields of an offset's JSON form with their types, in the order of `Offset`."""


@dataclass(frozen=True)
class Offset:
    """A position between two files in a table's history; see the module docstring.

    >>> start = Offset.beginning("t", 3, is_initial=True)
    >>> start < start.past(9) < start.next_version() < start.next_version().past(1)
    True
    >>> Offset.of(start.past(9).as_json()) == start.past(9)
    True
    """

    table_id: str
    version: int
    index: int
    is_initial: bool
    began_version: int
    began_initial: bool
    is_changes: bool = False

    @staticmethod
    def beginning(
        table_id: str, version: int, *, is_initial: bool = False, is_changes: bool = False
    ) -> Offset:
        """The start of a stream: before the first file of a version, or of its commit."""
        return Offset(table_id, version, 0, is_initial, version, is_initial, is_changes)

    def __lt__(self, other: Offset) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, int]:
        return self.version, not self.is_initial, self.index

    def next_version(self) -> Offset:
        """The offset after all files of the version."""
        return replace(self, version=self.version + 1, index=0, is_initial=False)

    def past(self, count: int) -> Offset:
        """The offset after `count` more files."""
        return replace(self, index=self.index + count)

    def where_began(self, end: Offset) -> Offset:
        """This offset as the start of a batch that ended at `end`; an initial offset is replaced by
        that of the stream.

        >>> asked_anew = Offset.beginning("t", 9, is_initial=True)
        >>> start = Offset.beginning("t", 3, is_initial=True)
        >>> asked_anew.where_began(start.past(2)) == start
        True
        """
        is_beginning = (self.version, self.index, self.is_initial) == (
            self.began_version,
            0,
            self.began_initial,
        )
        if not is_beginning:
            return self
        return Offset.beginning(
            end.table_id,
            end.began_version,
            is_initial=end.began_initial,
            is_changes=end.is_changes,
        )

    def as_json(self) -> dict[str, Any]:
        """The form stored in checkpoints."""
        return {
            "sourceVersion": _SOURCE_VERSION,
            "tableId": self.table_id,
            "version": self.version,
            "index": self.index,
            "isInitialSnapshot": self.is_initial,
            "beganVersion": self.began_version,
            "beganInitial": self.began_initial,
            **({"isChangeFeed": True} if self.is_changes else {}),
        }

    @staticmethod
    def of(json: Any) -> Offset:
        """An offset from a checkpoint. Those of other sources also have a ``sourceVersion``."""
        if (
            not isinstance(json, Mapping)
            or json.get("sourceVersion") != _SOURCE_VERSION
            or any(not isinstance(json.get(name), type_) for name, type_ in _REQUIRED.items())
        ):
            raise InvalidInputError(
                "the stream's checkpoint contains an unknown offset",
                expected=f"sourceVersion {_SOURCE_VERSION} with {', '.join(_REQUIRED)}",
                found=json,
                hint="continue with the source and the lakelog version that wrote the checkpoint, "
                "or begin a new stream, with a new checkpoint",
            )
        fields = (json[name] for name in _REQUIRED)
        return replace(Offset(*fields), is_changes=bool(json.get("isChangeFeed", False)))


_CHUNK_BYTES = 16 << 20
_ORDER = ("modificationTime", "path", "dvId")
_RESTORED = "the log was restored to an earlier state: begin a new stream, with a new checkpoint"
_NEW = "or begin a new stream, with a new checkpoint, from the version where this one ended"


@dataclass(frozen=True)
class Limit:
    """The maximum size of a batch; at least one file, and None for no limit."""

    files: int | None = None
    size_bytes: int | None = None

    def admits(self, sizes: pl.Series, files: int, size_bytes: int) -> int:
        """The number of the next files that fit in a batch."""
        count = sizes.len()
        if self.files is not None:
            count = min(count, self.files - files)
        if self.size_bytes is not None:
            within = sizes.cum_sum() + size_bytes <= self.size_bytes
            fitting = int(within.sum())
            count = min(count, fitting if files or fitting else 1)
        return max(count, 0)


@dataclass(frozen=True)
class FileRun:
    """Consecutive files (`FILE_COLUMNS`) of the initial version or of one commit, from `start`."""

    start: Offset
    files: pl.DataFrame


class StreamPlanner:
    """Plans the files of a table between offsets."""

    def __init__(
        self,
        table: Table,
        *,
        skip_change_commits: bool = False,
        fail_on_data_loss: bool = True,
        changes: bool = False,
    ) -> None:
        self._table = table
        self._changes = changes
        self._log = table.log
        self._skips = skip_change_commits
        self._fails = fail_on_data_loss
        self._initial: tuple[int, pl.DataFrame] | None = None
        self._checked_from: int | None = None
        self._last_seen: CommitFile | None = None
        self._seen_digest: bytes | None = None
        self._window: tuple[frozenset[int], Actions] = frozenset(), Actions()

    @cached_property
    def snapshot(self) -> Snapshot:
        """The latest version when the stream started; its schema applies until a restart."""
        return self._table.snapshot()

    def beginning(self) -> Offset:
        """The offset before the table's content."""
        return self._at(self.snapshot.version, is_initial=True)

    def from_version(self, version: int) -> Offset:
        """The offset before the commit of a version."""
        latest = self._table.version()
        if version > latest + 1:
            raise VersionNotFoundError(
                f"the stream cannot start at version {version}",
                path=self._table.path,
                version=version,
                expected=f"<= {latest + 1}",
                hint="start at an existing version, or at the next one",
            )
        return self._at(version)

    def from_now(self) -> Offset:
        """The offset after the latest commit."""
        return self._at(self._table.version() + 1)

    def from_time(self, timestamp_ms: int) -> Offset:
        """The offset before the first commit at or after a time in ms, or before the next."""
        try:
            before = version_at(
                self._log, timestamp_ms - 1, lambda: self._table.snapshot().metadata
            )
            return self._at(before + 1)
        except VersionNotFoundError:
            # Earlier than all versions that can be rebuilt: the first existing commit.
            commits = self._log.list_all().commits
            return self._at(commits[0].version) if commits else self.from_now()

    def _at(self, version: int, *, is_initial: bool = False) -> Offset:
        table_id = self.snapshot.metadata.id or ""
        return Offset.beginning(table_id, version, is_initial=is_initial, is_changes=self._changes)

    def advance(self, start: Offset, limit: Limit, last: int | None = None) -> Offset:
        """The end of the batch from `start`; raises if its first commit cannot be followed."""
        end, files, size_bytes = start, 0, 0
        try:
            for piece in self._pieces(start, last):
                sizes = piece.files["size"].fill_null(0)
                count = limit.admits(sizes, files, size_bytes)
                files += count
                size_bytes += int(sizes.head(count).sum())
                if count < sizes.len():
                    return piece.start.past(count)
                end = piece.start.next_version()
        except StreamMismatchError:
            if not start < end:
                raise
        return end

    def files(self, start: Offset, end: Offset) -> pl.DataFrame:
        """The files between two offsets, in order, with `FILE_COLUMNS`; errors as `advance`."""
        frames: list[pl.DataFrame] = []
        start = start.where_began(end)
        last = end.version if end.index or end.is_initial else end.version - 1
        for piece in self._pieces(start, last):
            if not piece.start < end:
                break
            partly = (piece.start.version, piece.start.is_initial) == (end.version, end.is_initial)
            frames.append(
                piece.files.head(end.index - piece.start.index) if partly else piece.files
            )
        return pl.concat(frames) if frames else actions.empty(FILE_COLUMNS)

    def _pieces(self, start: Offset, last: int | None) -> Iterator[FileRun]:
        self._require_own(start)
        if start.is_initial:
            if last is not None and start.version > last:
                return
            yield FileRun(start, self._held_by(start.version).slice(start.index))
            start = start.next_version()
        else:
            self._initial = None
            self._check_beginning(start.version)
        if last is None or start.version <= last:
            yield from self._commits(start, last)

    def _require_id(self, of_stream: str, of_table: str | None) -> None:
        if of_stream != (of_table or ""):
            raise StreamMismatchError(
                "the stream's checkpoint belongs to another table that was at this location",
                path=self._table.path,
                expected=f"table id {of_stream}",
                found=of_table,
                hint="begin a new stream, with a new checkpoint",
            )

    def _held_by(self, version: int) -> pl.DataFrame:
        if self._initial is None or self._initial[0] != version:
            try:
                snapshot = self._table.snapshot(version)
                self._check_schema(version, snapshot.metadata)
                rows = snapshot.files().select(*FILE_COLUMNS, "modificationTime", "dvId")
                files = rows.sort(_ORDER).select(FILE_COLUMNS).collect()
                require_single(files, version)
                self._require_same_table(self._log.list_since(version).commits)
            except VersionNotFoundError as error:
                error.hint = (
                    "the stream has not read its starting version completely: set a "
                    "longer log retention, and begin a new stream, with a new "
                    "checkpoint"
                )
                raise
            self._initial = version, files
        return self._initial[1]

    def advance_commits(self, start: Offset, limit: Limit, last: int | None = None) -> Offset:
        """As `advance`, for a stream of changes: a batch has files of the initial version, or whole
        commits, at least one.
        """
        self._require_own(start)
        if start.is_initial:
            if last is not None and start.version > last:
                return start
            sizes = self._held_by(start.version).slice(start.index)["size"].fill_null(0)
            count = limit.admits(sizes, 0, 0)
            return start.past(count) if count < sizes.len() else start.next_version()
        self._check_beginning(start.version)
        end, files, size_bytes = start, 0, 0
        try:
            for commit, decoded in self._decoded(start.version, last):
                sizes = self._changed_by(commit.version, decoded)
                if limit.admits(sizes, files, size_bytes) < sizes.len() and files:
                    return end
                files += sizes.len()
                size_bytes += int(sizes.sum())
                end = replace(end, version=commit.version + 1)
        except StreamMismatchError:
            if not start < end:
                raise
        return end

    def commits(self, start: Offset, end: Offset) -> tuple[int, int] | None:
        """First and last commit between two offsets, or None; errors as `advance_commits`."""
        self._require_own(start)
        found = self._listed(start.version, end.version - 1) if start < end else []
        return (found[0].version, found[-1].version) if found else None

    def _require_own(self, start: Offset) -> None:
        """Check that an offset is one of this stream: of the table, of rows or of changes."""
        self._require_id(start.table_id, self.snapshot.metadata.id)
        if start.is_changes != self._changes:
            rows, changes = "a stream of rows", "a stream with readChangeFeed"
            raise StreamMismatchError(
                "the stream's checkpoint belongs to another kind of stream",
                path=self._table.path,
                expected=changes if self._changes else rows,
                found=rows if self._changes else changes,
                hint="begin a new stream, with a new checkpoint",
            )

    def _decoded(self, version: int, last: int | None) -> Iterator[tuple[CommitFile, Actions]]:
        """The commits from a version to the last one, with decoded actions that contain theirs."""
        commits = self._listed(version, last)
        for place, commit in enumerate(commits):
            if commit.version not in self._window[0]:
                run = next(group_commits(commits[place:], _CHUNK_BYTES))
                decoded = self._log.dialect.decode(self._log.store, run)
                self._window = frozenset(c.version for c in run), decoded
            yield commit, self._window[1]

    def _commits(self, start: Offset, last: int | None) -> Iterator[FileRun]:
        for commit, decoded in self._decoded(start.version, last):
            files = self._added_by(commit.version, decoded)
            at = replace(start, version=commit.version, index=0)
            yield FileRun(start, files.slice(start.index)) if at < start else FileRun(at, files)

    def _listed(self, version: int, last: int | None) -> list[CommitFile]:
        """The commits from a version to the last one, without a gap."""
        # From one version earlier, to check what was read; see `_require_same_table`.
        listing = self._log.list_since(max(version - 1, 0))
        self._require_same_table(listing.commits)
        found = [c for c in listing.commits if c.version >= version]
        if not found:
            latest = self._table.version()
            if version > latest + 1:
                raise StreamMismatchError(
                    "the stream has read versions that do not exist in the table",
                    path=self._table.path,
                    version=latest,
                    expected=f"version {version - 1}",
                    found=f"version {latest}",
                    hint=_RESTORED,
                )
            if version == latest + 1:
                return []
        if not found or found[0].version > version:
            self._lost(version, found)
        versions = [c.version for c in found]
        if found:
            validate_contiguous(versions, after=versions[0] - 1, last=versions[-1])
        return [c for c in found if last is None or c.version <= last]

    def _require_same_table(self, commits: Sequence[CommitFile]) -> None:
        """Check that the table was not replaced, nor its log restored to an earlier state, since
        the last listing. Commits are immutable, so files are read only if the last commit seen is
        missing or another file. A copy of the same bytes is the same commit.
        """
        seen = self._last_seen
        if seen is not None and seen not in commits:
            self._require_id(self.snapshot.metadata.id or "", self._table.snapshot().metadata.id)
            own = next((commit for commit in commits if commit.version == seen.version), None)
            if own is not None and self._digest(own) != self._seen_digest:
                raise StreamMismatchError(
                    f"version {own.version} is another commit than the stream has seen",
                    path=self._table.path,
                    version=own.version,
                    expected=f"the commit of {seen.size_bytes} bytes that was listed before",
                    found=f"a commit of {own.size_bytes} bytes",
                    hint=_RESTORED,
                )
        if commits and commits[-1] != seen:
            self._last_seen, self._seen_digest = commits[-1], self._digest(commits[-1])

    def _digest(self, commit: CommitFile) -> bytes | None:
        """A digest of a commit's bytes; None if it was removed since it was listed."""
        with suppress(NotFoundError):
            return hashlib.blake2b(self._log.store.read(commit.path), digest_size=16).digest()
        return None

    def _lost(self, version: int, found: list[CommitFile]) -> None:
        upto = f"{found[0].version - 1}" if found else "the latest"
        message = f"commits {version} to {upto} were cleaned up before the stream read them"
        if not self._fails:
            warnings.warn(f"{message}; the stream misses their rows", LakelogWarning, 4)
            if found:  # the lost commits may have changed the schema
                self._check_schema_at(found[0].version)
            return
        raise VersionNotFoundError(
            message,
            path=self._table.path,
            version=version,
            expected=f"commit {version}",
            found=f"commit {found[0].version} is the first" if found else "a checkpoint",
            hint="restore the commits; or continue without their rows by option "
            "failOnDataLoss=false; and set a longer log retention "
            "(delta.logRetentionDuration)",
        )

    def _files_of(self, version: int, decoded: Actions) -> pl.DataFrame:
        """The file actions of a commit whose metadata the stream can follow."""
        meta = _of(decoded.meta, version)
        if meta.height:
            self._check_metadata(version, meta)
        return _of(decoded.files, version)

    def _changed_by(self, version: int, decoded: Actions) -> pl.Series:
        """Sizes of the files whose rows a commit added or removed."""
        files = self._files_of(version, decoded)
        if not files.height:
            return pl.Series(dtype=pl.Int64())
        changed = actions.conform(files, ("dataChange", "size"))
        changed = changed.filter(pl.col("dataChange").fill_null(value=True))
        return changed["size"].cast(pl.Int64).fill_null(0)

    def _added_by(self, version: int, decoded: Actions) -> pl.DataFrame:
        """The files whose rows a commit added, in its order."""
        files = self._files_of(version, decoded)
        if not files.height:
            return actions.empty(FILE_COLUMNS)
        changes = actions.conform(files, ("dataChange",))["dataChange"].fill_null(True)
        removed = files.filter((files["actionType"] == "remove") & changes)
        if removed.height:
            if self._skips:
                return actions.empty(FILE_COLUMNS)
            raise self._rewritten(version, removed, decoded)
        added = files.filter((files["actionType"] == "add") & changes)
        return actions.conform(added.sort("position"), FILE_COLUMNS)

    def _rewritten(
        self, version: int, removed: pl.DataFrame, decoded: Actions
    ) -> StreamMismatchError:
        named = [i.body.get("operation") for i in decoded.commit_infos if i.version == version]
        operation = f" ({named[0]})" if named and named[0] else ""
        return StreamMismatchError(
            (
                f"version {version}{operation} removed or changed rows that a stream has "
                "already read"
            ),
            path=self._table.path,
            version=version,
            expected="commits that only add rows",
            found=f"{removed.height} files removed, such as {removed['path'][0]}",
            hint=(
                "skip such commits, and the rows that they add, by option skipChangeCommits=true; "
            )
            + _NEW,
        )

    def _check_metadata(self, version: int, meta: pl.DataFrame) -> None:
        protocol, metadata = last_protocol(meta), last_metadata(meta)
        if protocol is not None:
            self._log.dialect.protocol_rules.check_readable(protocol, self._table.path)
        if metadata is not None:
            self._check_schema(version, metadata)

    def _check_beginning(self, version: int) -> None:
        """Check the first schema; later changes are checked when they are read."""
        if version >= (self.snapshot.version if self._checked_from is None else self._checked_from):
            return
        self._check_schema_at(version)
        self._checked_from = version

    def _check_schema_at(self, version: int) -> None:
        # If a version can no longer be rebuilt, its schema is unknown; the commits to read do not
        # depend on it.
        with suppress(VersionNotFoundError, CorruptionError):
            self._check_schema(version, self._table.snapshot(version).metadata)

    def _check_schema(self, version: int, metadata: Metadata) -> None:
        ours = self.snapshot.metadata
        if metadata.id != ours.id:
            what: str | None = "the table was replaced by another one"
        elif tuple(metadata.partition_columns) != tuple(ours.partition_columns):
            what = "the partition columns changed"
        elif (moved := moved_column(metadata, ours)) is not None:
            what = f"{moved} has another name in files"
        else:
            what = _type_mismatch(metadata.schema, ours.schema)
            if what is None and version > self.snapshot.version:
                # Older versions lack the columns that were added since.
                what = _dropped_column(metadata.schema, ours.schema)
        if what is None:
            return
        if version > self.snapshot.version:
            hint = f"load and start the stream again: it continues with the latest schema; {_NEW}"
        else:
            hint = (
                "the latest schema would change its rows: begin a new stream, with a "
                "new checkpoint, from a version that has that schema"
            )
        raise StreamMismatchError(
            f"version {version} has another schema than the stream: {what}",
            path=self._table.path,
            version=version,
            hint=hint,
        )


def _of(frame: pl.DataFrame, version: int) -> pl.DataFrame:
    return frame.filter(pl.col("version") == version) if frame.height else frame


def _dropped_column(written: contract.Struct, read: contract.Struct) -> str | None:
    """Which column of one schema another lacks, nested ones included, or None."""
    kept = {each.path for each in contract.fields_of(written)}
    dropped = (each.text for each in contract.fields_of(read) if each.path not in kept)
    return None if (name := next(dropped, None)) is None else f"it has no column {name}"


def _type_mismatch(
    written: contract.DataType, read: contract.DataType, path: str = ""
) -> str | None:
    """Why rows of one type cannot be read as another, or None. Added columns, wider types and
    nullability are compatible.

    >>> long, integer = contract.Primitive("long"), contract.Primitive("integer")
    >>> _type_mismatch(integer, long, "id")
    >>> _type_mismatch(long, integer, "id")
    'id is long, not integer'
    """
    match written, read:
        case contract.Struct(fields), contract.Struct():
            for field in fields:
                name = f"{path}.{field.name}" if path else field.name
                other = next((f for f in read.fields if f.name == field.name), None)
                if other is None:
                    return f"it has a column {name}"
                if field.nullable and not other.nullable:
                    return f"{name} may be null"
                found = _type_mismatch(field.type, other.type, name)
                if found is not None:
                    return found
            return None
        case contract.Array(element), contract.Array(other_element):
            return _type_mismatch(element, other_element, f"{path}.element")
        case contract.Map(key, value), contract.Map(other_key, other_value):
            return _type_mismatch(key, other_key, f"{path}.key") or _type_mismatch(
                value, other_value, f"{path}.value"
            )
    if written == read or contract.is_widening(written, read):
        return None
    return f"{path} is {contract.to_json(written)}, not {contract.to_json(read)}"
