"""The `LogStore` interface: immutable files below one root; base classes of stores over another.

A store lists, reads and writes whole files, without interpreting their content. Paths are relative
to the root, with ``/`` between parts, not decoded, exactly as in the store. All methods are
thread-safe.

Guarantees of every store:

- `LogStore.put_if_absent` is atomic, by an operation of the store itself. Of any number of
  concurrent callers with one name, in any number of processes, at most one gets True.
- A file is visible completely or not at all, for every reader, at every time.
- Acknowledged writes are durable. On local disk, this requires an fsync of the file, of its folder,
  and of the folders above that this process created or uses for the first time.
- If a write fails and the file may have been written, the error is `OutcomeUnknownError`; with
  `UnavailableError`, nothing was written. After a failed `delete`, the file may or may not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from io import RawIOBase
from typing import Any, BinaryIO, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from lakelog.errors import InvalidInputError, LakelogError

T = TypeVar("T")

IN_FLIGHT = 64
"""Number of concurrent requests of one call to a remote store."""


class FileEntry(NamedTuple):
    """One file of a listing; a tuple, because a log can have tens of thousands of files.

    Attributes:
        name: File name, relative to the listed folder.
        size_bytes: Length in bytes, as the store reports it.
        modified_ms: Modification time, milliseconds since the Unix epoch.
    """

    name: str
    size_bytes: int
    modified_ms: int


class Link(NamedTuple):
    """A symbolic link.

    Attributes:
        name: Its path, relative to the root.
        target: The real path of the file or folder that it leads to, relative to the root; an empty
            text for the root or a folder above it, None for another place.
        exists: Whether the file or folder can be found.
    """

    name: str
    target: str | None
    exists: bool


class TreePart(NamedTuple):
    """A part of the tree below a folder; links to folders are not followed.

    Attributes:
        files: As `LogStore.walk`.
        links: Symbolic links.
        unreadable: One error, with its ``path``, per folder or link without permission to read it.
            What it contains is in no part.
    """

    files: list[FileEntry]
    links: Sequence[Link] = ()
    unreadable: Sequence[LakelogError] = ()


class Deleted(NamedTuple):
    """Outcome of a deletion of files.

    Attributes:
        errors: As `LogStore.delete_many`.
        missing: Files that did not exist, if the store reports it.
    """

    errors: list[LakelogError]
    missing: Collection[str] = ()


class Upload(Protocol):
    """A file written in pieces; the context manager closes it, or abandons it after an error."""

    def write(self, data: bytes | memoryview) -> int:
        """Append all of `data`; returns its length in bytes.

        Raises:
            UnavailableError: The store failed; the file will not be created.
        """
        ...

    def tell(self) -> int:
        """Bytes written so far."""
        ...

    def close(self) -> None:
        """Create the file, atomically and durably; a second call does nothing.

        Raises:
            OutcomeUnknownError: The file may have been created.
            UnavailableError: The file was not created.
        """
        ...

    def abandon(self) -> None:
        """Delete what was written, if the store allows it; does nothing after `close`."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class LogStore(Protocol):
    """Reads raise only `NotFoundError`, `UnavailableError` and, on local disk,
    `NotRegularFileError`; writes raise the errors documented at each method.
    `lakelog.testing.StoreContract` tests a store.

    A store whose calls cannot hang has a true attribute ``never_hangs``: its calls have no time-out
    unless one was requested (`lakelog.storage.bounded`). One with symbolic links has a method
    ``tree``, as `tree_of` calls it, which yields a `TreePart` at a time. One whose root may depend
    on the working directory has an attribute ``absolute_root``.
    """

    @property
    def root(self) -> str:
        """The table's location, as the caller gave it (without credentials)."""
        ...

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder` whose name is >= `start`, sorted by name (code points).

        Folders are omitted. For a folder that does not exist, the list is empty.
        """
        ...

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted; empty if it does not exist."""
        ...

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """For each folder, whether it exists, by concurrent requests and without a complete
        listing.

        An empty folder exists on local disk, and never on a store that has only files.
        """
        ...

    def read(self, path: str) -> bytes:
        """The content of one file.

        Raises:
            NotFoundError: The file does not exist.
            UnavailableError: The store failed.
        """
        ...

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The content of each file, in the given order; reads ahead, bounded and concurrently."""
        ...

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """A seekable binary reader over one file; the caller closes it.

        Args:
            path: The file.
            size_bytes: Length in bytes, if known from a listing: saves a request to a remote store.
                It is not checked, so it must not come from a hint.
        """
        ...

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None if it does not exist."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why nothing can be committed to this store safely, in one sentence; None if it can.

        A store without atomic creation has a refusal, and its writing methods raise
        `UnsupportedStoreError` with it. A check before the write is never used instead.
        """
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file, atomically and durably, unless it exists. Missing parent folders are
        created.

        Args:
            path: The file.
            data: Its content; must not be empty, because some drivers write an empty file
                unconditionally.

        Returns:
            True if this call wrote the file; False if the file exists. It may then be the file of
            this call: a driver that repeats a request whose response was lost finds its own file.

        Raises:
            OutcomeUnknownError: It may have been written, or may still be.
            UnavailableError: It was not written.
            UnsupportedStoreError: The store has a `refusal`; nothing was written.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically: for pointers, whose last writer may win.

        Raises:
            OutcomeUnknownError: It may have been written.
            UnavailableError: It was not written.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def upload(self, path: str) -> Upload:
        """Create or replace a file in pieces, in bounded memory: the file is visible only after the
        upload is closed.

        Raises:
            UnavailableError: The store failed.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file, replacing an existing `target`; readers of `target` see either the old
        file or the new one. An object store copies and deletes, so both names may exist for a
        while.

        Raises:
            NotFoundError: `source` does not exist.
            OutcomeUnknownError: It may have been moved, or only copied.
            UnavailableError: It was not moved.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is not an error.

        Raises:
            UnavailableError: The store failed; the file may have been deleted.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files, many at once; missing files are ignored.

        Returns:
            One error, with its ``path``, per file that could not be deleted; the others are
            deleted.

        Raises:
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Every file below `folder`, at any depth, in batches, unordered; names are relative to
        `folder`, with ``/``. A folder that does not exist has none.

        Includes temporary files of killed writers, which local disk omits from other listings.

        Memory: one batch of some thousand entries.
        """
        ...


def tree_of(store: LogStore, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
    """Everything below a folder of a store, by its method ``tree``, which only stores with symbolic
    links need; without `files`, links and unreadable folders only.
    """
    tree = getattr(store, "tree", None)
    if tree is not None:
        yield from tree(folder, files=files)
    elif files:
        yield from map(TreePart, store.walk(folder))


def delete_files(store: LogStore, paths: Sequence[str]) -> Deleted:
    """As `LogStore.delete_many`, and which files did not exist, by the store's method
    ``delete_existing``, if it has one: of two processes that delete a file, one counts it.
    """
    delete = getattr(store, "delete_existing", None)
    return Deleted(store.delete_many(paths)) if delete is None else delete(paths)


def is_denied(error: LakelogError) -> bool:
    """Whether a store refused a call for want of a permission."""
    return isinstance(error.__cause__, PermissionError)


def absolute_root_of(store: LogStore) -> str:
    """The root, by which other processes can open the store."""
    found: str | None = getattr(store, "absolute_root", None)
    return store.root if found is None else found


def require_content(path: str, data: bytes) -> None:
    """Raise InvalidInputError for an empty file."""
    if not data:
        raise InvalidInputError("an empty file cannot be created", path=path, expected="content")


# Some calls, such as listings, make several requests. A store reports each response in the context
# of the call; `lakelog.storage.bounded` stops a call that makes no progress.
_last: ContextVar[list[float] | None] = ContextVar("lakelog_last_progress", default=None)


def report_progress() -> None:
    """Report that a part of the call has completed."""
    last = _last.get()
    if last is not None:
        last[0] = time.monotonic()


def observed(work: Callable[[], T], last: list[float]) -> T:
    """Call `work`; `last` gets the time of its latest progress."""
    _last.set(last)
    return work()


class StoreWrapper:
    """A `LogStore` that delegates to another one.

    Args:
        store: The inner store.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store

    @property
    def root(self) -> str:
        """As the inner store."""
        return self._store.root

    @property
    def refusal(self) -> str | None:
        """As the inner store."""
        return self._store.refusal

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """As the inner store."""
        return self._store.list_from(folder, start)

    def list_folders(self, folder: str) -> list[str]:
        """As the inner store."""
        return self._store.list_folders(folder)

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """As the inner store."""
        return self._store.has_folders(folders)

    def read(self, path: str) -> bytes:
        """As the inner store."""
        return self._store.read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the inner store."""
        return self._store.read_many(paths)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store."""
        return self._store.open(path, size_bytes)

    def stat(self, path: str) -> FileEntry | None:
        """As the inner store."""
        return self._store.stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As the inner store."""
        return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        """As the inner store."""
        self._store.put(path, data)

    def upload(self, path: str) -> Upload:
        """As the inner store."""
        return self._store.upload(path)

    def move(self, source: str, target: str) -> None:
        """As the inner store."""
        self._store.move(source, target)

    def delete(self, path: str) -> None:
        """As the inner store."""
        self._store.delete(path)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """As the inner store."""
        return self._store.delete_many(paths)

    def delete_existing(self, paths: Sequence[str]) -> Deleted:
        """As the inner store; by the own `delete_many` if a subclass has one."""
        if type(self).delete_many is not StoreWrapper.delete_many:
            return Deleted(self.delete_many(paths))
        return delete_files(self._store, paths)

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """As the inner store."""
        return self._store.walk(folder)

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
        """As the inner store; with the files of the own `walk` if a subclass has one."""
        own = type(self).walk is not StoreWrapper.walk
        yield from tree_of(self._store, folder, files=files and not own)
        if files and own:
            yield from map(TreePart, self.walk(folder))

    @property
    def absolute_root(self) -> str:
        """As the inner store."""
        return absolute_root_of(self._store)


class SeekableReader(RawIOBase):
    """A reader of bytes; subclasses implement `read` and `seek`."""

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` up to the end of the file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True


class FileWrapper(SeekableReader):
    """A seekable reader of another one, which it closes; subclasses override `read`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """As the inner reader."""
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As the inner reader."""
        return self._file.seek(offset, whence)

    def close(self) -> None:
        """Close both readers."""
        if not self.closed:
            self._file.close()
        super().close()
