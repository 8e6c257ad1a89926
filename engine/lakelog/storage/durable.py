"""Atomic and durable file creation on local disk.

A file is written and fsynced, then given its name by one operation that fails if the name exists,
then its folder is fsynced. The first supported operation is used:

- ``O_TMPFILE`` and ``linkat``: no temporary name, so a killed writer leaves nothing.
- A hidden temporary name and ``link``.
- A hidden temporary name and ``renameat2(RENAME_NOREPLACE)``.

Otherwise nothing is written, because a check followed by a rename would let two writers win.
Replacements are renamed over the file.

Hadoop's local filesystem verifies ``x`` by the checksum ``.x.crc`` if that exists. The checksum is
therefore deleted durably before its file is replaced, renamed or deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import IO

from lakelog.errors import (
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedStoreError,
)
from lakelog.storage.containment import require_contained, require_no_links
from lakelog.storage.upload import BufferedUpload

TEMPORARY = re.compile(r"\.lakelog-[0-9a-f]{32}\.tmp", re.ASCII)
"""Pattern of the names of temporary files. A killed writer may leave one; listings omit it, and any
process may delete it once it is old.
"""

_O_TMPFILE = getattr(os, "O_TMPFILE", 0)
_O_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_O_NEW = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MODE = 0o666  # restricted by the umask
_PIECE_BYTES = 1 << 17  # buffer of an upload; malloc maps larger ones again each time
_LONGEST_NAME_BYTES = 255
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1

# Errors of a filesystem or kernel that does not support the call.
_CANNOT = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV)
)
# Further errors of O_TMPFILE: an older kernel opens the folder; linkat needs /proc.
_CANNOT_ANONYMOUS = _CANNOT | {errno.EISDIR, errno.ENOENT, errno.EACCES}
# Errors of calls that changed nothing, on every filesystem, including network filesystems.
_CERTAIN = frozenset(
    (
        *(errno.EACCES, errno.EDQUOT, errno.ELOOP, errno.EMFILE, errno.EMLINK),
        *(errno.ENAMETOOLONG, errno.ENFILE, errno.ENOENT, errno.ENOMEM, errno.ENOSPC),
        *(errno.ENOTDIR, errno.EPERM, errno.EROFS),
    )
)


# Further errors of renames: to another filesystem, or onto a folder.
_NOT_RENAMED = frozenset((errno.EXDEV, errno.EISDIR, errno.ENOTEMPTY))


class DurableWriter:
    """Writes below one folder, with the operations that its filesystem supports. Thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._anonymous = _O_TMPFILE != 0
        self._links = hasattr(os, "link")
        self._settled: set[str] = set()
        self.refusal: str | None = None

    def create(self, path: str, data: bytes) -> bool:
        """Create a file with all of `data`; False if the name is taken. Costs an fsync of the file
        and of its folder; the first write to a folder also syncs each folder above, up to the
        root's parent.
        """
        if self.refusal is not None:
            raise UnsupportedStoreError(self.refusal, path=path)
        target = self._path_of(path)
        # Only an optimisation: the loser of a race does not write the content.
        if os.path.lexists(target):
            return False
        with self._folder_of(target, path) as folder:
            _drop_checksum(target, path, folder)
            for give_name in (self._link_anonymous, self._link_temporary, self._rename_temporary):
                won = give_name(target, path, data, folder)
                if won is not None:
                    break
            else:
                self.refusal = (
                    "the filesystem has neither hard links nor "
                    "renameat2(RENAME_NOREPLACE), so two writers could both write the "
                    "same version"
                )
                raise UnsupportedStoreError(
                    self.refusal, path=path, hint="move the table to another filesystem"
                )
            if won:
                _sync_named(folder, path)
            return won

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically; costs the fsyncs of `create`."""
        target = self._path_of(path)
        with self._folder_of(target, path) as folder, _temporary(target) as temporary:
            with _nothing_written(path):
                _write_new(temporary, data)
            _drop_checksum(target, path, folder)
            try:
                os.replace(temporary, target)
            except OSError as cause:
                raise _failed(path, cause) from cause
            _sync_named(folder, path)

    def upload(self, path: str) -> DurableUpload:
        """Create or replace a file in pieces; costs the fsyncs of `create`, when it is closed."""
        target = self._path_of(path)
        return DurableUpload(self._folder_of(target, path), target, path)

    def move(self, source: str, target: str) -> None:
        """Rename a file, replacing an existing one; costs an fsync of each of the two folders."""
        old, new = self._path_of(source), self._path_of(target)
        before = _status_of_file(old, source)
        with self._folder_of(new, target) as into, self._folder_of(old, source) as out_of:
            _drop_checksum(new, target, into)
            _drop_checksum(old, source, out_of)
            try:
                os.replace(old, new)
            except OSError as cause:
                # A network filesystem that repeats a request whose response was lost does not find
                # the source.
                try:
                    moved = source != target and _is_same(before, new)
                except OSError:
                    raise _failed(source, cause, unknown=True) from cause
                if not moved:
                    if isinstance(cause, FileNotFoundError):
                        raise _missing(source) from cause
                    raise _failed(source, cause, also_certain=_NOT_RENAMED) from cause
            # The new name is synced first, so that a crash in between leaves two names, never none.
            _sync_named(into, target)
            if os.path.dirname(old) != os.path.dirname(new):
                _sync_named(out_of, source)

    def _path_of(self, path: str) -> str:
        """A file's path on local disk; raises if it contains a link below the root."""
        require_contained(path)
        require_no_links(self._root, path)
        return f"{self._root}/{path}"

    # Each step returns True if it created the name, False if the name exists, and None if the
    # filesystem does not support it; then no file is left behind.

    def _link_anonymous(self, target: str, path: str, data: bytes, folder: int) -> bool | None:
        if not self._anonymous:
            return None
        with _nothing_written(path):
            try:
                file = os.open(os.path.dirname(target), _O_NEW | _O_TMPFILE, _MODE)
            except OSError as cause:
                if cause.errno not in _CANNOT_ANONYMOUS:
                    raise
                self._anonymous = False
                return None
        try:
            with _nothing_written(path):
                _write(file, data)
            # With a directory descriptor, Python calls linkat, which follows the link.
            won = _link(
                lambda: os.link(
                    f"/proc/self/fd/{file}", os.path.basename(target), dst_dir_fd=folder
                ),
                lambda: _is_same(os.fstat(file), target),
                path,
                _CANNOT_ANONYMOUS,
            )
        finally:
            _close(file)
        if won is None:
            self._anonymous = False
        return won

    def _link_temporary(self, target: str, path: str, data: bytes, folder: int) -> bool | None:  # noqa: ARG002 - one of three
        if not self._links:
            return None
        with _temporary(target) as temporary:
            with _nothing_written(path):
                _write_new(temporary, data)
            won = _link(
                lambda: os.link(temporary, target),
                lambda: _is_same(os.stat(temporary), target),
                path,
                _CANNOT,
            )
        if won is None:
            self._links = False
        return won

    def _rename_temporary(self, target: str, path: str, data: bytes, folder: int) -> bool | None:  # noqa: ARG002 - one of three
        if _renameat2 is None:
            return None
        with _temporary(target) as temporary:
            with _nothing_written(path):
                _write_new(temporary, data)
            try:
                _renameat2(temporary, target)
            except FileExistsError:
                return False
            except OSError as cause:
                if cause.errno in _CANNOT:
                    return None
                raise _failed(path, cause) from cause
        return True

    @contextlib.contextmanager
    def _folder_of(self, target: str, path: str) -> Iterator[int]:
        """The folder of `target`, opened; created and synced if necessary."""
        folder = os.path.dirname(target)
        with _nothing_written(path):
            if folder not in self._settled:
                self._settle(folder)
            try:
                descriptor = _open_folder(folder)
            except FileNotFoundError:  # deleted in the meantime
                self._settle(folder)
                descriptor = _open_folder(folder)
        try:
            yield descriptor
        finally:
            _close(descriptor)

    def _settle(self, folder: str) -> None:
        """Create a folder, and sync it and those above even if they exist: another process may have
        created one and not synced it yet.
        """
        made = {os.path.abspath(each) for each in _make_folders(folder)}
        top = os.path.dirname(os.path.abspath(self._root))
        at = os.path.abspath(folder)
        while at in made or len(at) > len(top):
            above = os.path.dirname(at)
            try:
                _sync_folder(above)
            except PermissionError:
                # Not readable for this user, who therefore did not create its content.
                if at in made:
                    raise
            at = above
        self._settled.add(folder)


class DurableUpload(BufferedUpload):
    """A file written under a temporary name next to its own, which a killed writer leaves."""

    _sends_views = True

    def __init__(
        self, folder: contextlib.AbstractContextManager[int], target: str, path: str
    ) -> None:
        super().__init__(path, _PIECE_BYTES)
        self._target = target
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(folder)
            self._temporary = stack.enter_context(_temporary(target))
            with _nothing_written(path):
                self._file = os.open(self._temporary, _O_NEW | os.O_CREAT | os.O_EXCL, _MODE)
            self._is_open = True
            stack.callback(self._release)
            self._held = stack.pop_all()

    def _send(self, piece: memoryview) -> None:
        with _nothing_written(self._path):
            _write_all(self._file, piece)

    def _finish(self, rest: bytes) -> None:
        with _nothing_written(self._path):
            _write(self._file, rest)
            self._is_open = False  # also after an error: the descriptor is closed
            os.close(self._file)
        _drop_checksum(self._target, self._path, self._folder)
        try:
            os.replace(self._temporary, self._target)
        except OSError as cause:
            raise _failed(self._path, cause) from cause
        _sync_named(self._folder, self._path)

    def _discard(self) -> None:
        self._held.close()

    def _release(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):
                os.close(self._file)


def unlink_checksum(target: str) -> bool:
    """Delete the checksum file of Hadoop's local filesystem; see the module."""
    folder, _, name = target.rpartition("/")
    checksum = f"{folder}/.{name}.crc"
    try:
        if not stat.S_ISREG(os.lstat(checksum).st_mode):
            return False
        os.unlink(checksum)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as cause:
        if cause.errno == errno.ENAMETOOLONG:  # a file with that name cannot exist
            return False
        raise
    return True


_OPEN_FILES = "close files, or raise the limit of open files (ulimit -n), then try again"
_NEXT_STEPS = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENAMETOOLONG: "use a shorter location, or shorter partition values",
}


def next_step(cause: OSError) -> str:
    """The hint of an error of the disk."""
    usual = "check permissions, free space and the disk, then try again"
    return _NEXT_STEPS.get(cause.errno or 0, usual)


def is_absent(cause: OSError) -> bool:
    """Whether nothing is at a path: no file, a file above it, a link that leads to itself, or a
    longer name than filesystems have.
    """
    if isinstance(cause, FileNotFoundError | NotADirectoryError) or cause.errno == errno.ELOOP:
        return True
    names = os.fsencode(cause.filename or "").split(b"/")
    return cause.errno == errno.ENAMETOOLONG and max(map(len, names)) > _LONGEST_NAME_BYTES


def _drop_checksum(target: str, path: str, folder: int) -> None:
    with _nothing_written(path):
        if unlink_checksum(target):
            _sync_descriptor(folder)


def _make_folders(folder: str) -> list[str]:
    """Create a folder and its parents; return the created ones, outermost first."""
    made: list[str] = []
    missing = [folder]
    while missing:
        at = missing[-1]
        try:
            os.mkdir(at)
            made.append(at)
        except FileExistsError:
            if len(missing) > 1 and not os.path.isdir(at):  # a link without a target
                raise
        except FileNotFoundError:
            above = os.path.dirname(at)
            if above in {"", at}:
                raise
            missing.append(above)
            continue
        missing.pop()
    return made


def _link(
    link: Callable[[], None], is_linked: Callable[[], bool], path: str, cannot: frozenset[int]
) -> bool | None:
    try:
        link()
    except OSError as cause:
        # A network filesystem that repeats a request whose response was lost finds its own link.
        try:
            if is_linked():
                return True
        except OSError:
            raise _failed(path, cause, unknown=True) from cause
        if isinstance(cause, FileExistsError):
            return False
        if cause.errno in cannot:
            return None
        raise _failed(path, cause) from cause
    return True


def _is_same(status: os.stat_result, target: str) -> bool:
    try:
        return status.st_ino != 0 and os.path.samestat(status, os.stat(target))
    except OSError as cause:
        if is_absent(cause):
            return False
        raise


def _write_new(name: str, data: bytes) -> None:
    file = os.open(name, _O_NEW | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        _write(file, data)
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    _write_all(file, data)
    _sync(file)


def _write_all(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def temporary_path(folder: str) -> str:
    """A new path in `folder`, whose name matches `TEMPORARY`."""
    return f"{folder}/.lakelog-{os.urandom(16).hex()}.tmp"


@contextlib.contextmanager
def replaced(path: str) -> Iterator[IO[bytes]]:
    """A file of the user that appears when it is complete, without fsync; a pipe or a device is
    written directly.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)
    with _temporary(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary(target: str) -> Iterator[str]:
    """A free temporary name next to `target`; its file is deleted at the end."""
    name = temporary_path(os.path.dirname(target))
    try:
        yield name
    finally:
        # The file does not exist if it was renamed or never created. A hidden file that cannot be
        # deleted does not make the outcome unknown.
        with contextlib.suppress(OSError):
            os.unlink(name)


@contextlib.contextmanager
def _nothing_written(path: str) -> Iterator[None]:
    """Convert errors that occur before the file has its name."""
    try:
        yield
    except OSError as cause:
        raise _unwritten(path, cause) from cause


def _unwritten(path: str, cause: OSError) -> UnavailableError:
    return UnavailableError(
        f"nothing was written: {cause.strerror or cause}",
        path=path,
        hint=next_step(cause),
    )


def _failed(
    path: str,
    cause: OSError,
    *,
    unknown: bool = False,
    also_certain: frozenset[int] = frozenset(),
) -> UnavailableError | OutcomeUnknownError:
    """The error of changing a name, which on network filesystems may answer a repetition."""
    if cause.errno in _CERTAIN | also_certain and not unknown:
        return _unwritten(path, cause)
    return OutcomeUnknownError(
        f"the file may have been written: {cause.strerror or cause}",
        path=path,
        hint="read it back before writing it again",
    )


def _status_of_file(name: str, path: str) -> os.stat_result:
    with _nothing_written(path):
        try:
            status = os.stat(name)
        except OSError as cause:
            if not is_absent(cause):
                raise
            status = None
    if status is None or stat.S_ISDIR(status.st_mode):
        raise _missing(path)
    return status


def _missing(path: str) -> NotFoundError:
    return NotFoundError("the file was not found", path=path)


def _sync_named(folder: int, path: str) -> None:
    try:
        _sync_descriptor(folder)
    except OSError as cause:
        raise OutcomeUnknownError(
            f"the file was written, but may be lost in a crash: {cause.strerror or cause}",
            path=path,
            hint="check the disk, and read the file back before writing it again",
        ) from cause


def _sync_folder(folder: str) -> None:
    descriptor = _open_folder(folder)
    try:
        _sync_descriptor(descriptor)
    finally:
        _close(descriptor)


if os.name == "nt":
    # A folder cannot be opened there, and NTFS keeps its own journal of names.
    def _open_folder(folder: str) -> int:
        os.stat(folder)
        return -1

    def _sync_descriptor(descriptor: int) -> None:
        assert descriptor == -1

    def _close(descriptor: int) -> None:
        assert descriptor == -1

else:

    def _open_folder(folder: str) -> int:
        return os.open(folder, _O_FOLDER)

    def _sync_descriptor(descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as cause:
            # Errors of filesystems that cannot sync a folder (some FUSE and SMB).
            if cause.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise

    def _close(descriptor: int) -> None:
        # All durable data has been fsynced, so an error of close is irrelevant.
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _sync(file: int) -> None:
    full = _FULL_SYNC
    if full is not None:
        # fsync on macOS leaves the data in the drive's own cache.
        with contextlib.suppress(OSError):
            full(file)
            return
    os.fsync(file)


def _find_full_sync() -> Callable[[int], object] | None:
    try:
        import fcntl
    except ImportError:
        return None
    command = getattr(fcntl, "F_FULLFSYNC", None)
    return None if command is None else lambda file: fcntl.fcntl(file, command)


def _find_renameat2() -> Callable[[str, str], None] | None:
    """Linux's rename that fails if the name exists; None on other systems."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = (*(ctypes.c_int, ctypes.c_char_p) * 2, ctypes.c_uint)

    def rename(source: str, target: str) -> None:
        names = os.fsencode(source), os.fsencode(target)
        if call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    return rename


_FULL_SYNC = _find_full_sync()
_renameat2 = _find_renameat2()
