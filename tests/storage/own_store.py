"""`DictStore`: a store over a dict, as a third party could write it."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Self

from lakelog.errors import InvalidInputError, LakelogError, NotFoundError
from lakelog.storage import FileEntry, LogStore
from lakelog.storage.base import Upload


class DictStore(LogStore):
    """Files of this object, in memory."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, int]] = {}
        self._lock = threading.RLock()

    @property
    def root(self) -> str:
        return "dict://own"

    @property
    def refusal(self) -> str | None:
        return None

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            return [
                FileEntry(path.removeprefix(prefix), len(data), modified_ms)
                for path, (data, modified_ms) in sorted(self._files.items())
                if path.startswith(prefix)
                and "/" not in path.removeprefix(prefix)
                and path.removeprefix(prefix) >= start
            ]

    def list_folders(self, folder: str) -> list[str]:
        names = [entry.name for batch in self.walk(folder) for entry in batch]
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        return [any(self.walk(folder)) for folder in folders]

    def read(self, path: str) -> bytes:
        with self._lock:
            if path not in self._files:
                raise NotFoundError("the file was not found", path=path)
            return self._files[path][0]

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def stat(self, path: str) -> FileEntry | None:
        with self._lock:
            if path not in self._files:
                return None
            data, modified_ms = self._files[path]
            return FileEntry(path.rpartition("/")[2], len(data), modified_ms)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if not data:
            raise InvalidInputError("the file is empty", path=path)
        with self._lock:
            if path in self._files:
                return False
            self.put(path, data)
            return True

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self._files[path] = (bytes(data), time.time_ns() // 1_000_000)

    def upload(self, path: str) -> Upload:
        return _Upload(self, path)

    def move(self, source: str, target: str) -> None:
        with self._lock:
            data = self.read(source)
            self.delete(source)
            self.put(target, data)

    def delete(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        for path in paths:
            self.delete(path)
        return []

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            found = [
                FileEntry(path.removeprefix(prefix), len(data), modified_ms)
                for path, (data, modified_ms) in self._files.items()
                if path.startswith(prefix)
            ]
        if found:
            yield found


class _Upload:
    def __init__(self, store: DictStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = bytearray()
        self._closed = False

    def write(self, data: bytes | memoryview) -> int:
        if self._closed:
            raise InvalidInputError("the upload is closed", path=self._path)
        self._data += data
        return len(data)

    def tell(self) -> int:
        return len(self._data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.put(self._path, bytes(self._data))

    def abandon(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            self.abandon()
