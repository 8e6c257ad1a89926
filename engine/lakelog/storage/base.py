"""The `LogStore` contract: one directory tree of immutable files, named relative to its root.

A store lists, reads and writes whole files; it never interprets. Paths are relative to the root
with ``/`` between parts, undecoded and exactly as the store spells them. All methods are safe to
call from several threads.

What a writer may rely on, whatever the store:

- `LogStore.put_if_absent` is decided by the store itself, in one step. Of any number of callers
  racing for one name, in any number of processes, at most one is told True.
- A file is there whole or not at all, for every reader, at every moment.
- What was acknowledged is durable. On local disk that means an fsync of the file, of its folder,
  and of the folders above that this process made or sees for the first time.
- When it is not certain that nothing was written, the error is `OutcomeUnknownError`. Only
  `UnavailableError` promises that nothing was, and `delete` promises neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from lakelog.errors import InvalidInputError

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


class LogStore(Protocol):
    """Reading raises `NotFoundError` and `UnavailableError` only; writing raises what its methods
    name.
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

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error.

        Raises:
            UnavailableError: The store failed; the file may be gone.
            UnsupportedStoreError: The store has a `refusal`.
        """
        ...


def require_content(path: str, data: bytes) -> None:
    """Refuse to create an empty file.

    Raises:
        InvalidInputError: `data` is empty.
    """
    if not data:
        raise InvalidInputError("an empty file is not created", path=path, expected="content")
