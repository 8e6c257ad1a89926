"""`MemoryStore`: the `LogStore` of fsspec's ``memory://``, shared within a process.

fsspec looks before it creates and hands all readers one file object with one position. So every
write goes through one lock of the process, and readers get copies. A process that writes to
``memory://`` past a `MemoryStore` is not held by that lock.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

from lakelog.errors import LakelogError, NotFoundError, UnavailableError
from lakelog.storage.base import FileEntry, Upload, require_content
from lakelog.storage.remote import FsspecStore
from lakelog.storage.upload import BufferedUpload

# Of the process and not of a store, for the files behind all of them are the same.
_LOCK = threading.RLock()


class MemoryStore(FsspecStore):
    """A folder of fsspec's memory filesystem. Durable as long as the process lives."""

    never_hangs = True

    @property
    def refusal(self) -> str | None:
        """None: the lock makes creating exclusive within the process, and no other process is
        there.
        """
        return None

    def _list(self, folder: str) -> list[dict[str, Any]]:
        with _LOCK:
            return super()._list(folder)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:  # noqa: ARG002 - spares nothing here
        """A seekable binary reader over a copy of one file."""
        return cast("BinaryIO", io.BytesIO(self.read(path)))

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None."""
        with _LOCK:
            return super().stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file, whole, if nothing has its name."""
        require_content(path, data)
        with _LOCK:
            if self._filesystem.exists(self._absolute(path)):
                return False
            self._write(path, data)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, whole."""
        with _LOCK:
            self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        try:
            # Given whole: a file that is opened and written is seen while it grows.
            self._filesystem.pipe_file(self._absolute(path), bytes(data))
        except OSError as cause:
            raise UnavailableError(
                f"nothing was written: {type(cause).__name__}: {cause}",
                path=path,
                hint="a file exists where a folder is needed, or the reverse",
            ) from cause

    def delete(self, path: str) -> None:
        """Delete a file."""
        with _LOCK:
            if self._filesystem.isfile(self._absolute(path)):
                self._filesystem.rm_file(self._absolute(path))

    def upload(self, path: str) -> Upload:
        """Create or replace a file in pieces, which are kept until it is closed."""
        return _MemoryUpload(path, self.put)

    def move(self, source: str, target: str) -> None:
        """Give a file another name, in one step."""
        with _LOCK:
            name = self._absolute(source)
            if not self._filesystem.isfile(name):
                raise NotFoundError("the file was not found", path=source)
            if source != target:
                self._write(target, self._filesystem.cat_file(name))
                self._filesystem.rm_file(name)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files; none can fail."""
        for path in paths:
            self.delete(path)
        return []


class _MemoryUpload(BufferedUpload):
    """An upload that is one buffer until it is closed."""

    def __init__(self, path: str, put: Callable[[str, bytes], None]) -> None:
        super().__init__(path, sys.maxsize)
        self._put = put

    def _finish(self, rest: bytes) -> None:
        self._put(self._path, rest)

    def _discard(self) -> None:
        """Nothing is held."""
