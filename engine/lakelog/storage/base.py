"""The `LogStore` interface: immutable files below one root; base classes of stores over another.

A store lists, reads and writes whole files; it never interprets. Paths are relative to the root
with ``/`` between parts, undecoded and exactly as the store spells them. All methods are safe to
call from several threads.

What a writer may rely on, whatever the store:

- `LogStore.put_if_absent` is decided by the store itself, in one step. Of any number of callers
  racing for one name, in any number of processes, at most one gets True.
- A file is there whole or not at all, for every reader, at every moment.
- What was acknowledged is durable. On local disk that means an fsync of the file, of its folder,
  and of the folders above that this process made or sees for the first time.
- When it is not certain that nothing was written, the error is `OutcomeUnknownError`. Only
  `UnavailableError` promises that nothing was, and `delete` promises neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from io import RawIOBase
from typing import Any, BinaryIO, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from lakelog.errors import InvalidInputError, LakelogError

T = TypeVar("T")

IN_FLIGHT = 64
"""How many requests of one call a remote store carries out at the same time."""


class FileEntry(NamedTuple):
    """One file of a listing; a tuple, for a log has tens of thousands.

    Attributes:
        name: Name in the folder that was listed, without the folder.
        size_bytes: Length in bytes, as the store reports it.
        modified_ms: Modification time, milliseconds since the Unix epoch.
    """

    name: str
    size_bytes: int
    modified_ms: int


class Upload(Protocol):
    """A file being written in pieces; as a context manager it closes, or abandons on an error."""

    def write(self, data: bytes | memoryview) -> int:
        """Append; returns how many bytes were taken, which is all.

        Raises:
            UnavailableError: The store failed; the file will not appear.
        """
        ...

    def tell(self) -> int:
        """Bytes written so far."""
        ...

    def close(self) -> None:
        """Make the file appear, whole and durable; a second call does nothing.

        Raises:
            OutcomeUnknownError: It may have appeared.
            UnavailableError: It certainly did not.
        """
        ...

    def abandon(self) -> None:
        """Leave nothing behind, if the store allows it; after `close` it does nothing."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class LogStore(Protocol):
    """Reading raises `NotFoundError`, `UnavailableError` and, on local disk, `NotRegularFileError`
    only; writing raises what its methods name. `lakelog.testing.StoreContract` tests a store.

    A store whose calls cannot hang has an attribute ``never_hangs`` that is true: no time-out is
    kept over them unless it was asked for (`lakelog.storage.bounded`).
    """

    @property
    def root(self) -> str:
        """The table's location, as the caller gave it (without credentials)."""
        ...

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder` whose name is >= `start`, sorted by name (code points).

        Folders are left out. A folder that does not exist gives an empty list.
        """
        ...

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted; empty if it does not exist."""
        ...

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """For each folder, whether it is there, asked all at once and without listing it whole.

        An empty folder is there on local disk, and nowhere on a store that knows only files.
        """
        ...

    def read(self, path: str) -> bytes:
        """The whole of one file.

        Raises:
            NotFoundError: No such file.
            UnavailableError: The store failed.
        """
        ...

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The whole of each file, in the order asked for; reads ahead, bounded, concurrently."""
        ...

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """A seekable binary reader over one file; the caller closes it.

        Args:
            path: The file.
            size_bytes: Its length, where the caller has it from a listing: spares a remote store
                the question. Taken at its word, so it must not come from a hint.
        """
        ...

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None if there is none."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why nothing can be committed here safely, in one sentence; None where it can.

        A store that cannot create a file only if it is absent has one, and its writing methods
        raise `UnsupportedStoreError` with it: it is never worked around by looking first.
        """
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file, whole and durable, if nothing has its name.

        Readers see all of it or nothing. Folders on the way are made.

        Args:
            path: The file.
            data: Its content; not empty, for an empty file says nothing, and some drivers write
                one unconditionally.

        Returns:
            True if this call wrote it; False if the name is taken. By whom is not known: a driver
            that repeats a request whose answer was lost finds its own file.

        Raises:
            OutcomeUnknownError: It may have been written, or may still be.
            UnavailableError: It was certainly not written.
            UnsupportedStoreError: The store has a `refusal`; nothing was written.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, whole: for pointers, whose last writer may win.

        Raises:
            OutcomeUnknownError: It may have been written.
            UnavailableError: It was certainly not written.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def upload(self, path: str) -> Upload:
        """Create or replace a file in pieces, in bounded memory: nothing is under its name
        before it is closed.

        Raises:
            UnavailableError: The store failed.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Give a file another name, replacing what has it; readers of `target` see the old file or
        the new one, whole. An object store copies and deletes, so both may be for a while.

        Raises:
            NotFoundError: There is no `source`.
            OutcomeUnknownError: It may have been moved, or only copied.
            UnavailableError: It was certainly not moved.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is not an error.

        Raises:
            UnavailableError: The store failed; the file may be gone.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files, many at once; those that are not there are no error.

        Returns:
            The errors of those that could not be deleted, each with its ``path``; the others are
            gone.

        Raises:
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Every file below `folder`, however deep, in batches and in no order; names are relative
        to `folder`, with ``/``. A folder that does not exist gives nothing.

        Also the temporary files that a killed writer left, which local disk lists nowhere else.

        Memory: a batch of some thousand entries.
        """
        ...


def require_content(path: str, data: bytes) -> None:
    """Raise InvalidInputError for an empty file."""
    if not data:
        raise InvalidInputError("an empty file cannot be created", path=path, expected="content")


# Some calls make several requests, such as listings. A store reports each answer in the context of
# the call; `lakelog.storage.bounded` gives up a call that makes no progress.
_last: ContextVar[list[float] | None] = ContextVar("lakelog_last_progress", default=None)


def report_progress() -> None:
    """Report that a part of the call has been answered."""
    last = _last.get()
    if last is not None:
        last[0] = time.monotonic()


def observed(work: Callable[[], T], last: list[float]) -> T:
    """Do some work; `last` gets the time of its latest progress."""
    _last.set(last)
    return work()


class StoreWrapper:
    """A `LogStore` over another one.

    Args:
        store: The store below.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store

    @property
    def root(self) -> str:
        """As the store below."""
        return self._store.root

    @property
    def refusal(self) -> str | None:
        """As the store below."""
        return self._store.refusal

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """As the store below."""
        return self._store.list_from(folder, start)

    def list_folders(self, folder: str) -> list[str]:
        """As the store below."""
        return self._store.list_folders(folder)

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """As the store below."""
        return self._store.has_folders(folders)

    def read(self, path: str) -> bytes:
        """As the store below."""
        return self._store.read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the store below."""
        return self._store.read_many(paths)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the store below."""
        return self._store.open(path, size_bytes)

    def stat(self, path: str) -> FileEntry | None:
        """As the store below."""
        return self._store.stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As the store below."""
        return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        """As the store below."""
        self._store.put(path, data)

    def upload(self, path: str) -> Upload:
        """As the store below."""
        return self._store.upload(path)

    def move(self, source: str, target: str) -> None:
        """As the store below."""
        self._store.move(source, target)

    def delete(self, path: str) -> None:
        """As the store below."""
        self._store.delete(path)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """As the store below."""
        return self._store.delete_many(paths)

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """As the store below."""
        return self._store.walk(folder)


class FileWrapper(RawIOBase):
    """A seekable reader over another one, which it closes; subclasses override `read`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """As the reader below."""
        return self._file.read(size)

    def readinto(self, buffer: Any, /) -> int:
        """As `read`."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As the reader below."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As the reader below."""
        return self._file.tell()

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Close both."""
        if not self.closed:
            self._file.close()
        super().close()
