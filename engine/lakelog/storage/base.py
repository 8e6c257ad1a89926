"""The `LogStore` interface: immutable files below one root.

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

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol, Self, runtime_checkable

from lakelog.errors import InvalidInputError, LakelogError

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
    """Refuse to create an empty file.

    Raises:
        InvalidInputError: `data` is empty.
    """
    if not data:
        raise InvalidInputError("an empty file cannot be created", path=path, expected="content")
