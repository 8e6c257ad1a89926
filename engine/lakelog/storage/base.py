"""The `LogStore` contract: one directory tree of immutable files, named relative to its root.

A store lists, reads and opens; it never interprets. Paths are relative to the root with ``/``
between parts, undecoded and exactly as the store spells them. All methods are safe to call from
several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple, Protocol


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
    """Reading side of a store; errors are `NotFoundError` and `UnavailableError` only."""

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

    def open(self, path: str) -> BinaryIO:
        """A seekable binary reader over one file; the caller closes it."""
        ...

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None if there is none."""
        ...
