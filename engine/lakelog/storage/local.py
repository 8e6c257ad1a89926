"""`LocalStore`: the `LogStore` of a folder on local disk.

Plain ``os`` calls: for ten thousand small commits, they cost a tenth of a filesystem abstraction.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from io import FileIO
from typing import BinaryIO

from lakelog.errors import (
    ExternalPathError,
    LakelogError,
    NotFoundError,
    NotRegularFileError,
    UnavailableError,
)
from lakelog.input_validation import absolute_path
from lakelog.storage.base import (
    Deleted,
    FileEntry,
    Link,
    TreePart,
    Upload,
    report_progress,
    require_content,
)
from lakelog.storage.containment import require_contained, require_no_links
from lakelog.storage.durable import (
    TEMPORARY,
    DurableWriter,
    is_absent,
    next_step,
    unlink_checksum,
)
from lakelog.threads import DaemonPool

_READERS = 4
_BATCH = 64
_BATCH_BYTES = 3 << 20
_PROBE = 8
_WALK_BATCH = 4096
_CACHED_SECONDS = 200e-6
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_REMOTE = re.compile(r"(nfs|cifs|smb|fuse|9p|ceph|gluster|lustre|gpfs|beegfs|afs|virtiofs)")
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class LocalStore:
    """A folder on local disk."""

    def __init__(self, root: str) -> None:
        self._given = root
        self._root = absolute_path(root)
        self._writer = DurableWriter(self._root)

    @property
    def root(self) -> str:
        """The folder, as the caller gave it."""
        return self._given

    @property
    def absolute_root(self) -> str:
        """The folder; the process may change its working directory."""
        return self._root

    @property
    def never_hangs(self) -> bool:
        """Whether the folder is on this machine, and not on a network or FUSE filesystem."""
        return not _is_remote(self._root)

    def path_of(self, path: str) -> str:
        """A file's path on local disk."""
        if ".." in path or "\0" in path:
            require_contained(path)
        return f"{self._root}/{path}" if path else self._root

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder` named `start` or later, sorted by name."""
        entries: list[FileEntry] = []
        try:
            with os.scandir(self.path_of(folder)) as scan:
                for entry in scan:
                    if entry.name >= start and (status := _status_of_file(entry)) is not None:
                        if entry.name[0] == "." and TEMPORARY.fullmatch(entry.name):
                            continue
                        entries.append(
                            FileEntry(entry.name, status.st_size, status.st_mtime_ns // 1_000_000)
                        )
        except OSError as cause:
            if is_absent(cause):
                return []
            raise unavailable(folder, cause) from cause
        entries.sort(key=lambda e: e.name)
        return entries

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        try:
            with os.scandir(self.path_of(folder)) as scan:
                return sorted(entry.name for entry in scan if _is_folder(entry))
        except OSError as cause:
            if is_absent(cause):
                return []
            raise unavailable(folder, cause) from cause

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """For each folder, whether it exists."""
        return [self._has_folder(folder) for folder in folders]

    def _has_folder(self, folder: str) -> bool:
        # Not `isdir`, which is false for a folder that may not be read.
        try:
            return stat.S_ISDIR(os.stat(self.path_of(folder)).st_mode)
        except OSError as cause:
            if is_absent(cause):
                return False
            raise unavailable(folder, cause) from cause

    def read(self, path: str) -> bytes:
        """The content of one file."""
        try:
            descriptor, size_bytes = _open_regular(self.path_of(path), path)
            try:
                if size_bytes > _memory_bytes():
                    raise MemoryError
                return _content(descriptor, size_bytes)
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise _unreadable(path, cause) from cause
        except (MemoryError, OverflowError) as cause:
            raise UnavailableError(
                "the file does not fit in the remaining memory",
                path=path,
                found=f"{size_bytes} bytes",
                hint=(
                    "a log file is not expected to be that large: check its writer, or "
                    "allow more memory"
                ),
            ) from cause

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The content of each file, in order; at most 20 MB or five files are read ahead."""
        start = time.perf_counter()
        first = [self.read(path) for path in paths[:_PROBE]]
        elapsed = time.perf_counter() - start
        yield from first
        rest = paths[_PROBE:]
        if rest and elapsed > _CACHED_SECONDS * _PROBE:
            yield from self._read_ahead(rest, max(map(len, first)))
        else:
            # Small files in the page cache are read faster than a thread starts.
            yield from map(self.read, rest)

    def _read_ahead(self, paths: Sequence[str], expected_bytes: int) -> Iterator[bytes]:
        # In batches, because a future per small file would cost more than its read.
        size = max(1, min(_BATCH, _BATCH_BYTES // max(1, expected_bytes)))
        batches = [paths[i : i + size] for i in range(0, len(paths), size)]
        with DaemonPool(_READERS, thread_name_prefix="lakelog-read") as pool:
            pending: deque[Future[list[bytes]]] = deque()
            for batch in batches:
                pending.append(pool.submit(lambda b: [self.read(p) for p in b], batch))
                if len(pending) > _READERS:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:  # noqa: ARG002 - spares nothing here
        """A seekable binary reader over one file."""
        try:
            name = self.path_of(path)
            return FileIO(name, "rb", opener=lambda *_: _open_regular(name, path)[0])
        except OSError as cause:
            raise _unreadable(path, cause) from cause

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None."""
        try:
            status = os.stat(self.path_of(path))
        except OSError as cause:
            if is_absent(cause):
                return None
            raise unavailable(path, cause) from cause
        if stat.S_ISDIR(status.st_mode):
            return None
        return FileEntry(path.rsplit("/", 1)[-1], status.st_size, status.st_mtime_ns // 1_000_000)

    @property
    def refusal(self) -> str | None:
        """None, until a write finds that the filesystem cannot create names exclusively."""
        return self._writer.refusal

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file if its name is free; on ``ENOSPC``, nothing was written."""
        require_content(path, data)
        return self._writer.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically; costs the fsyncs of `put_if_absent`."""
        self._writer.replace(path, data)

    def upload(self, path: str) -> Upload:
        """Create or replace a file; a killed writer leaves a temporary file next to it."""
        return self._writer.upload(path)

    def move(self, source: str, target: str) -> None:
        """Rename a file atomically."""
        self._writer.move(source, target)

    def delete(self, path: str) -> None:
        """Delete a file, without an fsync: it may exist again after a crash."""
        self._unlink(path)

    def _unlink(self, path: str) -> bool:
        """Delete a file; returns whether it existed."""
        require_no_links(self._root, path)
        target = self.path_of(path)
        try:
            unlink_checksum(target)
            os.unlink(target)
        except OSError as cause:
            if is_absent(cause):
                return False
            raise unavailable(path, cause) from cause
        return True

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files one by one, as `delete`."""
        return self.delete_existing(paths).errors

    def delete_existing(self, paths: Sequence[str]) -> Deleted:
        """As `delete_many`, and the files that did not exist."""
        errors: list[LakelogError] = []
        missing: list[str] = []
        for path in paths:
            try:
                if not self._unlink(path):
                    missing.append(path)
            except (UnavailableError, ExternalPathError) as error:
                errors.append(error)
        return Deleted(errors, missing)

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Every file below `folder`, also temporary ones, without links to folders."""
        for part in self.tree(folder):
            if part.unreadable:
                raise part.unreadable[0]
            if part.files:
                yield part.files

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
        """As `walk`, with symbolic links and unreadable folders; their paths are relative to the
        root. Without `files`, no file is examined.
        """
        below = os.path.join(os.path.realpath(self._root), "")
        part, links, unreadable = TreePart([]), list[Link](), list[LakelogError]()
        ahead = [""]
        while ahead:
            report_progress()
            prefix = ahead.pop()
            at = f"{folder}/{prefix}".strip("/")
            try:
                with os.scandir(self.path_of(at)) as scan:
                    for entry in scan:
                        name = prefix + entry.name
                        if entry.is_symlink():
                            target = _below(os.path.realpath(entry.path), below)
                            path = f"{at}/{entry.name}" if at else entry.name
                            links.append(Link(path, target, os.path.exists(entry.path)))
                            if not links[-1].exists:
                                unreadable += _denied(entry.path, path)
                                continue
                        if entry.is_dir(follow_symlinks=False):
                            ahead.append(f"{name}/")
                        elif files and (status := _status_of_file(entry)) is not None:
                            part.files.append(
                                FileEntry(name, status.st_size, status.st_mtime_ns // 1_000_000)
                            )
                        if len(part.files) >= _WALK_BATCH:
                            yield part
                            part = TreePart([])
            except OSError as cause:
                if is_absent(cause):
                    continue
                if not isinstance(cause, PermissionError) or not at:
                    raise unavailable(at, cause) from cause
                unreadable.append(unavailable(at, cause))
        yield TreePart(part.files, links, unreadable)


def _below(path: str, below: str) -> str | None:
    """As `Link.target`; `below` is the root with a separator at the end."""
    if below.startswith(os.path.join(path, "")):
        return ""
    return path[len(below) :].replace(os.sep, "/") if path.startswith(below) else None


@cache
def _memory_bytes() -> int:
    """Physical memory of the machine, in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not available on every system
        return 1 << 40


def _is_remote(root: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether a folder is on a network or FUSE filesystem."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" - ", 1) for line in file]
    except OSError:  # only Linux has it
        return False
    kinds = {_decoded(line[0].split()[4]): bool(_REMOTE.match(line[-1])) for line in lines}
    if not any(kinds.values()):
        return False
    for at in {os.path.abspath(root), os.path.realpath(root)}:
        above = [point for point in kinds if f"{at}/".startswith(f"{point.rstrip('/')}/")]
        if above and kinds[max(above, key=len)]:
            return True
    return False


def _decoded(point: str) -> str:
    """A mount point, in which the kernel writes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def _open_regular(name: str, path: str) -> tuple[int, int]:
    """Open a regular file for reading; a symbolic link to one is followed."""
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer.
        descriptor = os.open(name, _FLAGS | _NONBLOCK)
    except OSError as cause:
        mode = os.stat(name).st_mode if cause.errno in {errno.ENXIO, errno.EAGAIN} else None
        if mode is None:
            raise
        if not stat.S_ISREG(mode):  # a socket, or a device without its driver
            raise _not_regular(mode, path) from cause
        # Another process holds a lease on it: wait until it is released.
        descriptor = os.open(name, _FLAGS)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise _not_regular(status.st_mode, path)


def _content(descriptor: int, size_bytes: int) -> bytes:
    # One byte more than the size of the file: a read that returns fewer has reached its end.
    data = os.read(descriptor, size_bytes + 1)
    if len(data) == size_bytes:
        return data
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def read_small(name: str, path: str, most_bytes: int) -> bytes | None:
    """The content of a regular file, as `_open_regular`; None above `most_bytes`."""
    descriptor, size_bytes = _open_regular(name, path)
    try:
        return _content(descriptor, size_bytes) if size_bytes <= most_bytes else None
    finally:
        os.close(descriptor)


def _not_regular(mode: int, path: str) -> NotRegularFileError:
    found = _KINDS.get(stat.S_IFMT(mode), "a special file")
    return NotRegularFileError(
        f"{found} has the name of a file, and was not read",
        path=path,
        expected="a regular file",
        found=found,
        hint="remove it, and restore the file from a copy",
    )


def _status_of_file(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Status of a file; None for a folder, a dangling link, or if it was deleted meanwhile."""
    try:
        return None if entry.is_dir() else entry.stat()
    except OSError as cause:
        if is_absent(cause):
            return None
        raise


def _denied(target: str, path: str) -> list[LakelogError]:
    """The error if a link leads to a place without permission."""
    try:
        os.stat(target)
    except OSError as cause:
        return [unavailable(path, cause)] if isinstance(cause, PermissionError) else []
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as cause:
        if is_absent(cause):
            return False
        raise


def _unreadable(path: str, cause: OSError) -> LakelogError:
    if is_absent(cause) or isinstance(cause, IsADirectoryError):
        return _not_found(path, cause)
    return unavailable(path, cause)


def _not_found(path: str, cause: OSError) -> NotFoundError:
    if isinstance(cause, IsADirectoryError):
        found: str | None = "a directory"
    else:
        found = "a dangling link" if cause.filename and os.path.islink(cause.filename) else None
    if found is not None:
        return NotFoundError(f"{found} has the name of the file", path=path, found=found)
    return NotFoundError("the file was not found", path=path)


def unavailable(path: str, cause: OSError) -> UnavailableError:
    """The error of a local file that cannot be used, with its cause."""
    error = UnavailableError(
        f"the store failed: {cause.strerror or cause}",
        path=path,
        hint=next_step(cause),
    )
    error.__cause__ = cause
    return error
