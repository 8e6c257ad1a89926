"""Copies a checkpoint to another location and verifies the copy before it is renamed.

A replica contains the files that a version's state needs: the checkpoint's files, and the version's
commit and checksum if they exist, because a checkpoint has no commitInfo. Paths are unchanged, so
relative paths refer to data files below the replica's folder.

A location whose commits differ from the table's is refused, because the checkpoint would hide them
there. The commit is created with put-if-absent: a commit of another writer is never replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from lakelog import telemetry
from lakelog.checkpoint.publish import move_pointer, put_unless_exists
from lakelog.checkpoint.verify import verify_checkpoint
from lakelog.dialects.log_content import Checkpoint, StagedCheckpoint
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CheckpointValidationError,
    CheckpointWriteError,
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
    TableNotFoundError,
    UnavailableError,
    UnsupportedStoreError,
    naming_destination,
    naming_table,
)
from lakelog.log.context import Log
from lakelog.log.opening import open_state
from lakelog.storage import LogStore
from lakelog.storage.durable import temporary_path
from lakelog.telemetry import Progress

_PIECE_BYTES = 8 << 20
_EMPTY_FOLDER = "use an empty folder, or one that contains a replica of this table"


@dataclass(frozen=True)
class ReplicaReport(Displayed):
    """Result of a replication.

    Attributes:
        location: Location of the replica.
        version: Version of the checkpoint.
        layout: Layout of the checkpoint.
        paths: Paths of its files, relative to the location's root.
        copied: Number of files that were copied; the others existed with the same bytes.
        size_bytes: Total length of the files, in bytes.
        verdict: Result of verifying the original: ``proved`` or ``unprovable``; see
            `lakelog.checkpoint.verify`.
        pointer_moved: Whether the pointer at the location refers to it now.
    """

    _title = "Replica of a checkpoint"

    location: str
    version: int
    layout: str
    paths: tuple[str, ...]
    copied: int
    size_bytes: int
    verdict: str
    pointer_moved: bool

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        return [
            ("location", self.location),
            ("version", str(self.version)),
            ("layout", self.layout),
            ("files", f"{len(self.paths)}, {self.copied} copied"),
            ("size", size_text(self.size_bytes)),
            ("original", self.verdict),
            ("pointer moved", "yes" if self.pointer_moved else "no"),
        ]


def replicate(
    log: Log, other: Log, version: int | None = None, progress: Progress | None = None
) -> ReplicaReport:
    """See `Table.replicate`. Files are copied under temporary names, compared by SHA-256 and
    renamed; the completing file is last, then the pointer.
    """
    if other.store.refusal is not None:
        raise UnsupportedStoreError(other.store.refusal, path=other.table)
    report = verify_checkpoint(log, version)
    report.raise_for_verdict()
    checkpoint = report.checkpoint
    _require_same_table(log, other, checkpoint.version)
    with naming_destination(other.table, other.storage_options):
        _require_same_history(log, other, checkpoint.version)
    paths = _paths(log, checkpoint, report.files)
    commit = log.dialect.commit_path(checkpoint.version)
    copied = size_bytes = 0
    with telemetry.span("checkpoint.replicate", path=log.table, version=checkpoint.version):
        for done, path in enumerate(paths):
            if progress is not None:
                progress("copy", done, len(paths))
            try:
                if path == commit:
                    was_copied, length = _create(log, other, checkpoint.version)
                else:
                    was_copied, length = _copy(log.store, other.store, path)
            except (UnavailableError, OutcomeUnknownError) as cause:
                raise CheckpointWriteError(
                    f"the checkpoint could not be replicated to {other.table}: {cause.message}",
                    path=path,
                    version=checkpoint.version,
                    hint="try again: the files that were copied are complete, and are used",
                ) from cause
            copied += was_copied
            size_bytes += length
        if progress is not None:
            progress("copy", len(paths), len(paths))
        pointer = other.dialect.pointer_to(other.store, checkpoint, other.clock())
        moved = move_pointer(other.store, other.dialect, StagedCheckpoint(checkpoint, (), pointer))
    telemetry.event(
        "checkpoint.replicated",
        path=log.table,
        location=other.table,
        version=checkpoint.version,
        files=copied,
        size_bytes=size_bytes,
    )
    return ReplicaReport(
        other.table,
        checkpoint.version,
        checkpoint.layout,
        tuple(paths),
        copied,
        size_bytes,
        report.verdict,
        moved.pointer_moved,
    )


def _require_same_table(log: Log, other: Log, version: int) -> None:
    try:
        with naming_destination(other.table, other.storage_options):
            replica = open_state(other)
            theirs = replica.metadata.id
    except TableNotFoundError:
        return
    ours = open_state(log, version).metadata.id
    if theirs not in (ours, _id_at(log, replica.version)):
        raise InvalidInputError(
            "the location contains another table",
            path=other.table,
            expected=ours,
            found=theirs,
            hint=_EMPTY_FOLDER,
        )


def _require_same_history(log: Log, other: Log, version: int) -> None:
    """Refuse commits that differ from the table's. After two histories have diverged, no commit of
    one equals a commit of the other, so it is enough to compare the content of the newest. Of those
    that only the location has, a replica has the checkpoints, and rarely consecutive ones.
    """
    ours, there = {c.path: c for c in log.list_all().commits}, other.list_all()
    common = [c for c in there.commits if c.path in ours]
    for commit in common:
        if commit.size_bytes != ours[commit.path].size_bytes:
            raise _diverged(commit.path, commit.version)
    for commit in common[-1:]:
        if log.store.read(commit.path) != other.store.read(commit.path):
            raise _diverged(commit.path, commit.version)
    since = common[-1].version if common else -1
    others = [c for c in there.commits if since < c.version <= version]
    versions, checkpoints = {c.version for c in others}, {c.version for c in there.checkpoints}
    for commit in reversed(others):
        is_own = commit is others[-1] or commit.version + 1 in versions
        if is_own and commit.version not in checkpoints:
            raise InvalidInputError(
                "the location has a commit that is missing in the table's log",
                path=commit.path,
                version=commit.version,
                hint=f"its changes could be lost; {_EMPTY_FOLDER}",
            )


def _diverged(path: str, version: int) -> InvalidInputError:
    return InvalidInputError(
        "the location has a commit that differs from the table's commit of the same version",
        path=path,
        version=version,
        hint=f"its changes would be lost; {_EMPTY_FOLDER}",
    )


def _id_at(log: Log, version: int) -> str | None:
    """The table id of a version, which differs from later ones if the table was replaced."""
    try:
        return open_state(log, version).metadata.id
    except (CorruptionError, NotFoundError):
        return None


def _paths(log: Log, checkpoint: Checkpoint, files: tuple[str, ...]) -> list[str]:
    """The files to copy, in order: a manifest after its files, and the commit last, because it
    would be a gap above an older replica.
    """
    version = checkpoint.version
    covered = {c.path for c in log.list_all().commits}
    own = [path for path in files if path not in covered and path not in checkpoint.paths]
    described = f"{log.dialect.log_folder}/_checkpoints/{version:020d}.checkpoint.json"
    order = [described, *own, *reversed(checkpoint.paths), log.dialect.commit_path(version)]
    if (checksum := log.dialect.checksum_path(version)) is not None:
        order.append(checksum)
    return [path for path in dict.fromkeys(order) if log.store.stat(path) is not None]


def _create(log: Log, other: Log, version: int) -> tuple[bool, int]:
    """As `_copy`, for a commit: an existing one with other content is refused."""
    path = log.dialect.commit_path(version)
    data = log.store.read(path)
    was_copied = put_unless_exists(other.store, path, data)
    if other.store.read(path) != data:
        with naming_table(other.table):
            raise _diverged(path, version)
    return was_copied, len(data)


def _copy(source: LogStore, target: LogStore, path: str) -> tuple[bool, int]:
    """Copy one file unless it exists; return whether it was copied, and its length."""
    entry, there = source.stat(path), target.stat(path)
    if entry is not None and there is not None and there.size_bytes == entry.size_bytes:
        with source.open(path) as original:
            wanted, length = _hash(original)
        if _has_content(target, path, wanted):
            return False, length
    folder, _, _ = path.rpartition("/")
    hidden = temporary_path(folder)
    try:
        with source.open(path) as original, target.upload(hidden) as upload:
            wanted, length = _hash(original, upload.write)
        _require_same(target, hidden, wanted, path)
        target.move(hidden, path)
    except BaseException:
        with suppress(LakelogError):
            target.delete(hidden)
        raise
    return True, length


def _require_same(store: LogStore, hidden: str, wanted: str, path: str) -> None:
    if not _has_content(store, hidden, wanted):
        raise CheckpointValidationError(
            "a copied file differs from its source",
            path=path,
            expected=f"SHA-256 {wanted}",
            hint="the copy was not published; try again",
        )


def _has_content(store: LogStore, path: str, wanted: str) -> bool:
    if store.stat(path) is None:
        return False
    with store.open(path) as file:
        return _hash(file)[0] == wanted


def _hash(file: BinaryIO, take: Callable[[bytes], object] = len) -> tuple[str, int]:
    """SHA-256 and length in bytes of a file; `take` is called with each chunk."""
    found, length = hashlib.sha256(), 0
    for piece in _pieces(file):
        take(piece)
        found.update(piece)
        length += len(piece)
    return found.hexdigest(), length


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
