"""The filesystem seam of the write-ahead log, through which tests inject faults and crashes.

All that the log asks of a filesystem is here. Errors are those of the operating system
(``OSError``); what they mean for a record is for the callers to say. Paths are text, with ``/``.

What a crash may do decides what the log may rely on:

- Bytes written to a file are there after a crash once `WritableFile.sync` has returned; before
  that any part of them may be, in any order.
- A sync that failed may leave the bytes that it was for looking as if they were written: readers
  see them, later syncs pass them over, a crash takes them. Only writing them again helps.
- A name that was made, renamed or removed is so after a crash once `Disk.sync_directory` has
  returned; before that it may be either way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import weakref
from typing import Protocol

import pyarrow as pa

from lakelog.errors import ExternalPathError, LogLockedError

Bytes = bytes | bytearray | memoryview
"""What can be written."""

_BINARY = getattr(os, "O_BINARY", 0)
_CAREFUL = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | _BINARY
_WRITE = os.O_WRONLY | _CAREFUL
_APPEND = _WRITE | os.O_APPEND
_LOCK = os.O_RDWR | os.O_CREAT | _CAREFUL
_MODE = 0o666  # the umask decides, as for any file
_WELL = b"closed\n"


class WritableFile(Protocol):
    """A file that is written at its end."""

    def write(self, data: Bytes) -> int:
        """Append; how many bytes were taken, which may be fewer than given."""

    def size(self) -> int:
        """Bytes in the file."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes`; what is written next follows there."""

    def sync(self) -> None:
        """Return once all that was written survives a crash."""

    def close(self) -> None:
        """Let go of the file, without syncing it. Twice does no harm."""


class HeldLock(Protocol):
    """A lock that is held until it is released, or its process ends.

    Attributes:
        was_left_well: A process that had it last released it, and said that all was well.
    """

    was_left_well: bool

    def release(self, *, well: bool = False) -> None:
        """Let others have it. Twice does no harm."""


class Disk(Protocol):
    """What the log asks of a filesystem."""

    def list(self, directory: str) -> list[str]:
        """Names of the files in `directory`, in any order."""

    def size(self, path: str) -> int:
        """Bytes in a file."""

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        """The bytes of a file, as many as it has now."""

    def open_append(self, path: str, *, create: bool = False) -> WritableFile:
        """Open a file for writing at its end."""

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        """Write bytes once more that a file has already, where they are. The next sync of the file
        makes them durable, even if one that failed has given them up.
        """

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, over what has it."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably, where they are missing."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory survive a crash."""

    def lock(self, path: str, owner: str) -> HeldLock:
        """Take the lock that a file represents; the file is made, and never removed."""


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
        # Not by mapping: a page of a mapped file that was cut meanwhile kills the process.
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
            return  # names are durable there without being asked, and a folder cannot be opened
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
                was_left_well = os.read(file, 4096) == _WELL
                os.ftruncate(file, 0)  # before anything is done that may not end well
                os.lseek(file, 0, os.SEEK_SET)
                with contextlib.suppress(OSError):  # for people only, and a full disk has no room
                    os.write(file, owner.encode())
                return LocalLock(file, was_left_well=was_left_well)
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
    """A file of the operating system, opened for writing at its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes) -> int:
        """As `WritableFile.write`."""
        return os.write(self._descriptor, data)

    def size(self) -> int:
        """As `WritableFile.size`."""
        return os.fstat(self._descriptor).st_size

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
        if self._descriptor >= 0:  # when Python ends, little else may be left to ask
            with contextlib.suppress(OSError):
                self.close()


class LocalLock:
    """A lock on an open file, which the kernel lets go of when the process ends, however it does.

    A forked child has no part in it; else the lock would outlive its owner.
    """

    def __init__(self, descriptor: int, *, was_left_well: bool) -> None:
        self.was_left_well = was_left_well
        self._descriptor = descriptor
        _held.add(self)

    def release(self, *, well: bool = False) -> None:
        """As `HeldLock.release`."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if well:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, 0)
                        os.lseek(descriptor, 0, os.SEEK_SET)
                        os.write(descriptor, _WELL)
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.release()


_held: weakref.WeakSet[LocalLock] = weakref.WeakSet()


def _let_go() -> None:
    """In a forked child: close its copies of the files, which leaves the locks as they are."""
    for lock in list(_held):
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)

_BUSY = frozenset((errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK))

if sys.platform == "win32":
    import msvcrt

    _FAR_BYTE = 1 << 30  # a locked byte cannot be read there, and the owner's name is to be

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
