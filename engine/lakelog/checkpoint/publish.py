"""Publishes a staged checkpoint: renames its files in order, then updates the pointer.

A checkpoint becomes visible when its last file is renamed: until then, readers find an incomplete
one, or none. The pointer is a hint. It is written last, atomically, and never moves backward:

==============================================  =================================================
the pointer                                     action
==============================================  =================================================
names a later version                           unchanged
names this version or an earlier one            replaced
is missing or malformed                         written, unless a later checkpoint is complete
cannot be read, because the store fails         unchanged, with a note: it only costs time
is not provided by the writer                   unchanged
==============================================  =================================================

Two checkpoint writers may both read the pointer before either writes it, and the earlier version
may be written last. Not every store has compare-and-swap, and no result depends on the pointer:
readers list from its version, and find the later checkpoint.

If the outcome of a rename is unknown, the files are checked: a file that still has its temporary
name is renamed again; otherwise the rename succeeded. If a rename fails, files that were renamed
before are left, as by a killed writer: another writer of the version may have completed the
checkpoint with them.

Source: Delta protocol, Last Checkpoint File Schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import Checkpoint, StagedCheckpoint, StagedFile
from lakelog.errors import (
    CheckpointWriteError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.log.context import Log
from lakelog.model.metadata import Protocol
from lakelog.storage import LogStore

TRY_AGAIN = "the previous checkpoint is unchanged; check permissions and free space, then try again"
"""The next step after a checkpoint that could not be written."""

_ATTEMPTS = 3


@dataclass(frozen=True)
class Published:
    """Whether the pointer refers to the checkpoint; else why not, or None for a later one."""

    pointer_moved: bool
    note: str | None = None


def publish(
    store: LogStore,
    dialect: Dialect,
    staged: StagedCheckpoint,
    on_file: Callable[[int, int], object] | None = None,
) -> Published:
    """Rename the files of a checkpoint in order, then move the pointer."""
    for number, file in enumerate(staged.files, 1):
        try:
            _give_name(store, file)
        except LakelogError as cause:
            raise CheckpointWriteError(
                f"a file of the checkpoint could not be renamed into place: {cause.message}",
                path=file.target,
                version=staged.checkpoint.version,
                hint=TRY_AGAIN,
            ) from cause
        if on_file is not None:
            on_file(number, len(staged.files))
    return move_pointer(store, dialect, staged)


def move_pointer(store: LogStore, dialect: Dialect, staged: StagedCheckpoint) -> Published:
    """Advance the pointer to a published checkpoint; never raises `LakelogError`."""
    if staged.pointer is None:
        return Published(False)
    write = partial(_put, store, *staged.pointer)
    return _advance(store, dialect, staged.pointer[0], staged.checkpoint.version, write)


def point_at(log: Log, checkpoint: Checkpoint) -> bool:
    """Point to an existing checkpoint, whatever the pointer refers to."""
    pointer = log.dialect.pointer_to(log.store, checkpoint, log.clock())
    return pointer is not None and _put(log.store, *pointer)


def restore_pointer(log: Log, checkpoint: Checkpoint, protocol: Protocol) -> Published:
    """Point to a published checkpoint, unless the pointer names it or a later one; never raises
    `LakelogError`.
    """
    store, dialect, version = log.store, log.dialect, checkpoint.version
    if not dialect.may_be_pointed_to(checkpoint, protocol) or log.pointed_version() == version:
        return Published(False)
    write = partial(point_at, log, checkpoint)
    return _advance(store, dialect, dialect.pointer_path, version, write)


def _advance(
    store: LogStore, dialect: Dialect, path: str, version: int, write: Callable[[], bool]
) -> Published:
    """Write the pointer to a version unless it names a later one."""
    try:
        if _points_to_later(store, dialect, path, version):
            return Published(False)
        return Published(write())
    except LakelogError as error:
        return Published(False, f"the pointer {path} was not updated: {error.message}")


def _points_to_later(store: LogStore, dialect: Dialect, path: str, version: int) -> bool:
    """Whether the pointer names a later version, or is malformed below a later checkpoint."""
    try:
        pointed = dialect.pointed_version(store.read(path))
    except NotFoundError:
        pointed = None
    if pointed is not None:
        return pointed > version
    listing = dialect.list_log(store, hint=False, start=version)
    return any(c.version > version for c in listing.checkpoints)


def _put(store: LogStore, path: str, content: bytes) -> bool:
    for _ in range(_ATTEMPTS - 1):
        try:
            store.put(path, content)
        except OutcomeUnknownError:
            # Another process may have written it since; its pointer is as valid.
            if _has_content(store, path, content):
                return True
            continue
        return True
    store.put(path, content)
    return True


def put_unless_exists(store: LogStore, path: str, data: bytes) -> bool:
    """Write a file unless it exists; an unknown outcome is resolved by reading it."""
    try:
        return store.put_if_absent(path, data)
    except OutcomeUnknownError:
        if store.stat(path) is not None and store.read(path) == data:
            return True
        raise


def _has_content(store: LogStore, path: str, content: bytes) -> bool:
    try:
        return store.read(path) == content
    except LakelogError:
        return False


def _give_name(store: LogStore, file: StagedFile) -> None:
    """Rename one file; an unknown outcome is resolved by checking the files."""
    if file.path == file.target:
        return
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            store.move(file.path, file.target)
        except (OutcomeUnknownError, NotFoundError) as error:
            if _has_arrived(store, file):
                return
            if attempt == _ATTEMPTS or isinstance(error, NotFoundError):
                raise
        else:
            return


def _has_arrived(store: LogStore, file: StagedFile) -> bool:
    """Whether a file has its final name: only this process can rename its temporary file."""
    try:
        there = store.stat(file.target)
        arrived = there is not None and there.size_bytes == file.size_bytes
        return arrived and store.stat(file.path) is None
    except LakelogError:
        return False  # unknown: assume that it was not renamed
