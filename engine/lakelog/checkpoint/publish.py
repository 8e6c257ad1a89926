"""Publishes a staged checkpoint: renames its files in order, then updates the pointer.

A checkpoint is seen with its last file, and never half: until then readers find an incomplete one,
or none. The pointer is a hint. It is written last, whole, and only forward:

==============================================  =================================================
the pointer                                     then
==============================================  =================================================
names a later version                           stays
names this version or an earlier one            is replaced
is not there, or cannot be made sense of        is written, unless a later checkpoint is complete
cannot be read, for the store fails             stays, with a note: a stale one only costs time
the writer gives none                           stays
==============================================  =================================================

Two checkpointers may both read the pointer before one of them writes it, and the earlier version
may come last. No store compares and replaces in one step everywhere, and no answer depends on it:
readers list from the version that it names, and find the later checkpoint.

An answer that is lost is settled by looking: a file under its hidden name can be moved again, and
one that is gone from there has arrived. A move that has failed for certain leaves the checkpoint
before it as it was: names that were not taken are given up again.

Source: Delta protocol, Last Checkpoint File Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import Checkpoint, StagedCheckpoint, StagedFile
from lakelog.errors import (
    CheckpointWriteError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.log.context import Log
from lakelog.storage import LogStore

_ATTEMPTS = 3


@dataclass(frozen=True)
class Published:
    """Whether the pointer names the checkpoint, and why not (None if a later one is named)."""

    pointer_moved: bool
    note: str | None = None


def publish(
    store: LogStore,
    dialect: Dialect,
    staged: StagedCheckpoint,
    on_file: Callable[[int, int], object] | None = None,
) -> Published:
    """Give a checkpoint its names, in order, then move the pointer."""
    fresh = _free_names(store, staged.files)
    for number, file in enumerate(staged.files, 1):
        try:
            _give_name(store, file)
        except LakelogError as cause:
            _take_back(store, [f for f in staged.files[:number] if f.target in fresh])
            raise CheckpointWriteError(
                f"a file of the checkpoint could not be renamed into place: {cause.message}",
                path=file.target,
                version=staged.checkpoint.version,
                hint="the previous checkpoint is unchanged; try again",
            ) from cause
        if on_file is not None:
            on_file(number, len(staged.files))
    return move_pointer(store, dialect, staged)


def move_pointer(store: LogStore, dialect: Dialect, staged: StagedCheckpoint) -> Published:
    """Advance the pointer to a complete checkpoint. Never raises `LakelogError`, because the
    checkpoint is published.
    """
    if staged.pointer is None:
        return Published(False)
    path, content = staged.pointer
    version = staged.checkpoint.version
    try:
        if _names_later(store, dialect, path, version):
            return Published(False)
        return Published(_put(store, path, content))
    except LakelogError as error:
        return Published(False, f"the pointer {path} was not updated: {error.message}")


def point_at(log: Log, checkpoint: Checkpoint) -> bool:
    """Let the pointer name a checkpoint that is already, whatever it names now."""
    pointer = log.dialect.pointer_to(log.store, checkpoint, log.clock())
    return pointer is not None and _put(log.store, *pointer)


def _names_later(store: LogStore, dialect: Dialect, path: str, version: int) -> bool:
    """Whether the pointer names a later version, or says nothing while there is a later one."""
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
            # Anybody may have written it since; then that one is as good a hint as this.
            if _is(store, path, content):
                return True
            continue
        return True
    store.put(path, content)
    return True


def _is(store: LogStore, path: str, content: bytes) -> bool:
    try:
        return store.read(path) == content
    except LakelogError:
        return False


def _free_names(store: LogStore, files: Iterable[StagedFile]) -> frozenset[str]:
    """Names that are free now; checked only for several files, as one is never taken back."""
    moved = [file for file in files if file.path != file.target]
    if len(moved) < 2:
        return frozenset()
    try:
        return frozenset(f.target for f in moved if store.stat(f.target) is None)
    except LakelogError:
        return frozenset()  # then nothing is taken back


def _give_name(store: LogStore, file: StagedFile) -> None:
    """Move one file, whatever becomes of the answers."""
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
    """Whether a file has its final name: only this process knows the hidden name, so a missing
    hidden file was moved.
    """
    try:
        there = store.stat(file.target)
        arrived = there is not None and there.size_bytes == file.size_bytes
        return arrived and store.stat(file.path) is None
    except LakelogError:
        return False  # then it is unknown


def _take_back(store: LogStore, files: Iterable[StagedFile]) -> None:
    """Delete names that an incomplete checkpoint took; the first error is what counts."""
    paths = [file.target for file in files]
    if paths:
        with suppress(LakelogError):
            store.delete_many(paths)
