"""The filesystem interface of the write-ahead log; open handles, and conversion of disk errors.

All filesystem calls of the log are here. Errors are those of the operating system (``OSError``),
which callers interpret. Paths are text, with ``/``.

Guarantees after a crash:

- Bytes written to a file exist once `WritableFile.sync` has returned; before that, any part of them
  may exist, in any order.
- After a failed sync, bytes can be visible to readers and nevertheless be lost in a crash, because
  later syncs skip them. Only writing them again makes them durable.
- A created, renamed or removed name is durable once `Disk.sync_directory` has returned; before
  that, either state is possible.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self, SupportsIndex

import pyarrow as pa

from lakelog.display import Displayed
from lakelog.errors import (
    ExternalPathError,
    InvalidInputError,
    LakelogError,
    LogLockedError,
    NotFoundError,
    UnavailableError,
)
from lakelog.input_validation import (
    absolute_path,
    is_unicode,
    local_path,
    require_folder,
    require_path,
)


class Closing(Displayed, ABC):
    """Closes at the end of ``with``; cannot be copied if it belongs to its process, because a copy
    would close the files.
    """

    _access: Access

    @abstractmethod
    def close(self) -> None:
        """Close the object; can be called repeatedly."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        access = self._access
        facts = [("directory", access.path)]
        if access.is_closed:
            return [*facts, ("state", "closed")]
        return facts + self._open_facts()

    def _open_facts(self) -> list[tuple[str, str]]:
        """More facts, of the object while it is open."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        access = self._access
        if access.pid is not None:
            raise InvalidInputError(
                f"the {access.what} cannot be copied or pickled",
                path=access.path,
                hint="open it in the other process; use read_only=True if a writer has it open",
            )
        return super().__reduce_ex__(protocol)


@dataclass(slots=True)
class Access:
    """Guards an open object: unusable after closing, and in other processes than `pid`, if set."""

    what: str
    path: str
    is_read_only: bool
    pid: int | None
    is_closed: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process owns it: after a fork, no thread may release its locks."""
        return self.pid is not None and self.pid != os.getpid()

    def check(self, *, to_write: bool = False) -> None:
        """Raise if this process may not use the object."""
        if self.is_closed or self.is_elsewhere or (to_write and self.is_read_only):
            raise self._refusal()

    def _refusal(self) -> InvalidInputError:
        if self.is_closed:
            what, hint = "is closed", "open it again"
        elif self.is_elsewhere:
            what = "belongs to another process"
            hint = (
                "an open log cannot be used after a fork; open it again, with "
                "read_only=True if the other process writes"
            )
        else:
            what, hint = "was opened for reading only", "open it without read_only"
        return InvalidInputError(f"the {self.what} {what}", path=self.path, hint=hint)


def local_directory(directory: str | os.PathLike[str]) -> str:
    """The absolute path of a local directory, which may not exist yet."""
    require_path("directory", directory)
    name = os.fsdecode(directory)
    if _ADDRESS.match(name) or "\0" in name or not is_unicode(name):
        raise InvalidInputError(
            "invalid location of a write-ahead log: it must be on local disk",
            expected="the path of a directory",
            found=repr(name),
        )
    path = absolute_path(local_path(name))
    require_folder(
        path,
        "a directory, or a path where one can be created",
        "pass the directory of the log or the store",
    )
    return path


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


_NEXT_STEP = "check permissions, free space and the disk, then try again"


@contextlib.contextmanager
def disk_errors(
    message: str,
    path: str,
    *,
    hint: str | None = None,
    missing: str | None = None,
    missing_hint: str | None = None,
) -> Iterator[None]:
    """Convert errors of the operating system to lakelog's; pass lakelog's through."""
    try:
        yield
    except LakelogError:
        raise
    except OSError as cause:
        where = cause.filename if isinstance(cause.filename, str) else path
        if missing is not None and isinstance(cause, FileNotFoundError | NotADirectoryError):
            raise NotFoundError(missing, path=where, hint=missing_hint) from cause
        raise UnavailableError(
            f"{message}: {cause.strerror or cause}", path=where, hint=hint or _NEXT_STEP
        ) from cause


Bytes = bytes | bytearray | memoryview
"""Types of data to write."""

_BINARY = getattr(os, "O_BINARY", 0)
_CAREFUL = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | _BINARY
_WRITE = os.O_WRONLY | _CAREFUL
_APPEND = os.O_RDWR | os.O_APPEND | _CAREFUL
_LOCK = os.O_RDWR | os.O_CREAT | _CAREFUL
_MODE = 0o666  # restricted by the umask
_CLOSED = b"closed\n"


class WritableFile(Protocol):
    """A file that is appended to."""

    def write(self, data: Bytes) -> int:
        """Append; return the number of bytes written, which may be fewer than given."""

    def size(self) -> int:
        """Size of the file, in bytes."""

    def read_part(self, offset: int, size_bytes: int) -> bytes:
        """At most `size_bytes` of the file, from `offset`."""

    def is_at(self, path: str) -> bool:
        """Whether `path` names this file: it may have been renamed or removed."""

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`; later writes append there."""

    def sync(self) -> None:
        """Return once all written bytes are durable."""

    def close(self) -> None:
        """Close the file, without syncing it; can be called repeatedly."""


class HeldLock(Protocol):
    """A lock held until it is released, or its process ends."""

    was_closed_cleanly: bool

    def is_held(self) -> bool:
        """Whether the lock excludes other processes: its path still names the locked file."""

    def release(self, *, cleanly: bool = False) -> None:
        """Release the lock; can be called repeatedly."""


def require_held(is_held: Callable[[], bool], directory: str, work: str) -> None:
    """Raise if a lock was lost during long work, before a step that could destroy the data of
    another process.
    """
    if not is_held():
        raise UnavailableError(
            f"{work} stopped: its lock file was deleted or moved, so another process may have "
            "written to the log",
            path=directory,
            hint="make sure that no other process uses the directory, and try again",
        )


class Disk(Protocol):
    """The filesystem interface of the log."""

    def list(self, directory: str) -> list[str]:
        """Names of the files in `directory`, in any order."""

    def size(self, path: str) -> int:
        """Size of a file, in bytes."""

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        """The current content of a file."""

    def open_append(self, path: str, *, create: bool = False) -> WritableFile:
        """Open a file for appending."""

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        """Write existing bytes again, so that the next sync writes them even if one failed."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing an existing `target`."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, durably."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory are durable."""

    def lock(self, path: str, owner: str) -> HeldLock:
        """Acquire the lock of a file, which is created if necessary, and never removed."""


class LocalDisk:
    """The filesystem of the operating system."""

    def list(self, directory: str) -> list[str]:
        """As `Disk.list`."""
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file()]

    def size(self, path: str) -> int:
        """As `Disk.size`."""
        return os.stat(path).st_size

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        """As `Disk.read`."""
        if mapped and os.stat(path).st_size:  # an empty file cannot be mapped
            with pa.memory_map(path, "r") as file:
                return file.read_buffer()
        # Not mapped: if a mapped file is truncated, reading its pages kills the process.
        with pa.OSFile(path, "rb") as file:
            return file.read_buffer()

    def open_append(self, path: str, *, create: bool = False) -> LocalFile:
        """As `Disk.open_append`."""
        flags = _APPEND | os.O_CREAT | os.O_EXCL if create else _APPEND
        return LocalFile(_open(path, flags))

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        """As `Disk.rewrite`."""
        descriptor = _open(path, _WRITE)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """As `Disk.rename`."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """As `Disk.remove`."""
        os.remove(path)

    def make_directory(self, path: str) -> None:
        """As `Disk.make_directory`."""
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        self.make_directory(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.sync_directory(above)

    def sync_directory(self, path: str) -> None:
        """As `Disk.sync_directory`."""
        if sys.platform == "win32":
            return  # names are always durable there, and a folder cannot be opened
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def lock(self, path: str, owner: str) -> LocalLock:
        """As `Disk.lock`."""
        file = _open(path, _LOCK)
        try:
            if _lock(file):
                was_closed_cleanly = os.read(file, 4096) == _CLOSED
                os.ftruncate(file, 0)  # first, because the next steps may fail
                os.lseek(file, 0, os.SEEK_SET)
                with contextlib.suppress(OSError):  # informative only, and a full disk has no space
                    os.write(file, owner.encode())
                return LocalLock(file, path, was_closed_cleanly=was_closed_cleanly)
            found = os.pread(file, 4096, 0).decode("utf-8", "replace").strip()
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        raise LogLockedError(
            "another writer has locked this log",
            path=path,
            found=found or None,
            hint="close it there, or open it here with read_only=True",
        )


def _open(path: str, flags: int) -> int:
    """Open a file for writing; a symbolic link is not followed."""
    try:
        return os.open(path, flags, _MODE)
    except OSError as cause:
        if cause.errno != errno.ELOOP or not os.path.islink(path):
            raise
        raise ExternalPathError(
            "a file of the log is a symbolic link, and its target was not changed",
            path=path,
            expected="a regular file",
            found=f"a link to {os.path.realpath(path)}",
            hint="remove the link",
        ) from cause


class LocalFile:
    """A file of the operating system, opened for appending."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes) -> int:
        """As `WritableFile.write`."""
        return os.write(self._descriptor, data)

    def size(self) -> int:
        """As `WritableFile.size`."""
        return os.fstat(self._descriptor).st_size

    def read_part(self, offset: int, size_bytes: int) -> bytes:
        """As `WritableFile.read_part`."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)  # writes append nevertheless
        return os.read(self._descriptor, size_bytes)

    def is_at(self, path: str) -> bool:
        """As `WritableFile.is_at`."""
        try:
            found = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return _identity(found) == _identity(os.fstat(self._descriptor))

    def truncate(self, size_bytes: int) -> None:
        """As `WritableFile.truncate`."""
        os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """As `WritableFile.sync`."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """As `WritableFile.close`."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:  # checked first, because globals may be gone at shutdown
            with contextlib.suppress(OSError):
                self.close()


class LocalLock:
    """A lock on an open file, which the kernel releases when the process ends. A forked child does
    not share it, because the lock would outlive its owner.
    """

    def __init__(self, descriptor: int, path: str, *, was_closed_cleanly: bool) -> None:
        self.was_closed_cleanly = was_closed_cleanly
        self._path = os.path.abspath(path)
        self._descriptor = descriptor
        self._identity = _identity(os.fstat(descriptor))
        _held.add(self)

    def is_held(self) -> bool:
        """As `HeldLock.is_held`."""
        # The directory may have been renamed, and another writer locked a new file of that name.
        # While the file is open, no other has its identity.
        try:
            return _identity(os.stat(self._path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self, *, cleanly: bool = False) -> None:
        """As `HeldLock.release`."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if cleanly:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, 0)
                        os.lseek(descriptor, 0, os.SEEK_SET)
                        os.write(descriptor, _CLOSED)
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.release()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


_held: weakref.WeakSet[LocalLock] = weakref.WeakSet()


def _release_after_fork() -> None:
    """In a forked child: close its copies of the files, which does not release the locks."""
    for lock in list(_held):
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_after_fork)

_BUSY = frozenset((errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK))

if sys.platform == "win32":
    import msvcrt

    _FAR_BYTE = 1 << 30  # Windows makes locked bytes unreadable, so not those of the owner's name

    def _lock(file: int) -> bool:
        os.lseek(file, _FAR_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as cause:
            if cause.errno in _BUSY:
                return False
            raise
        os.lseek(file, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            if cause.errno in _BUSY:
                return False
            raise
        return True
