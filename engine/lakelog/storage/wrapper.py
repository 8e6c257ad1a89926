"""`StoreWrapper` and `FileWrapper`: delegate every call; base classes for wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import RawIOBase
from typing import Any, BinaryIO

from lakelog.errors import LakelogError
from lakelog.storage.base import FileEntry, LogStore, Upload


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
    """A seekable reader over another one; subclasses change `read`, or more.

    Args:
        file: The reader below; closed with this one.
    """

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
