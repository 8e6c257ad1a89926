"""`FsspecStore`: the `LogStore` over any fsspec filesystem (S3, Azure, GCS, memory, HTTP…)."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from lakelog.errors import NotFoundError, UnavailableError, UnsupportedStoreError
from lakelog.storage.base import FileEntry

_READERS = 16
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecStore:
    """A folder of an fsspec filesystem.

    Args:
        filesystem: The filesystem.
        base: Path of the table inside it, without protocol.
        root: The location as the caller gave it, for messages.
    """

    def __init__(self, filesystem: Any, base: str, root: str) -> None:
        self._filesystem = filesystem
        self._base = base.rstrip("/")
        self._root = root

    @property
    def root(self) -> str:
        """The location, as the caller gave it."""
        return self._root

    def _absolute(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base

    def _list(self, folder: str) -> list[dict[str, Any]]:
        path = self._absolute(folder)
        try:
            try:
                # refresh: fsspec caches listings, and a log grows under its readers.
                found = self._filesystem.ls(path, detail=True, refresh=True)
            except TypeError:  # not every driver knows it
                self._filesystem.invalidate_cache()
                found = self._filesystem.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as cause:
            raise _unavailable(folder, cause) from cause
        return cast("list[dict[str, Any]]", found)

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder` named `start` or later, sorted by name."""
        entries = [
            _entry(info)
            for info in self._list(folder)
            if info.get("type") != "directory" and not str(info["name"]).endswith("/")
        ]
        return sorted((e for e in entries if e.name >= start), key=lambda e: e.name)

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        return sorted(
            str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
            for info in self._list(folder)
            if info.get("type") == "directory"
        )

    def read(self, path: str) -> bytes:
        """The whole of one file."""
        try:
            return cast("bytes", self._filesystem.cat_file(self._absolute(path)))
        except (FileNotFoundError, IsADirectoryError) as cause:
            raise NotFoundError("the file is not there", path=path) from cause
        except Exception as cause:
            raise _unavailable(path, cause) from cause

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The whole of each file, in order; up to 16 requests at once, a bounded read-ahead."""
        if len(paths) <= 1:
            return [self.read(path) for path in paths]
        return self._read_ahead(paths)

    def _read_ahead(self, paths: Sequence[str]) -> Iterator[bytes]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelog-read") as pool:
            pending: deque[Future[bytes]] = deque()
            for path in paths:
                pending.append(pool.submit(self.read, path))
                if len(pending) >= 2 * _READERS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """A seekable binary reader over one file, fetching ranges as they are read."""
        try:
            opened = self._filesystem.open(self._absolute(path), "rb", size=size_bytes)
            return cast("BinaryIO", opened)
        except (FileNotFoundError, IsADirectoryError) as cause:
            raise NotFoundError("the file is not there", path=path) from cause
        except Exception as cause:
            raise _unavailable(path, cause) from cause

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None."""
        try:
            info = self._filesystem.info(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as cause:
            raise _unavailable(path, cause) from cause
        return None if info.get("type") == "directory" else _entry(info)

    @property
    def refusal(self) -> str | None:
        """Why nothing can be committed here, or None."""
        protocol = self._root.split("://", 1)[0]
        return (
            f"the driver of {protocol}:// cannot create a file only if it is absent, so two "
            "writers could both believe that they had written a version"
        )

    def put_if_absent(self, path: str, data: bytes) -> bool:  # noqa: ARG002 - refused
        """Refused."""
        raise self._refused(path)

    def put(self, path: str, data: bytes) -> None:  # noqa: ARG002 - refused
        """Refused."""
        raise self._refused(path)

    def delete(self, path: str) -> None:
        """Refused."""
        raise self._refused(path)

    def _refused(self, path: str) -> UnsupportedStoreError:
        return UnsupportedStoreError(
            self.refusal or "nothing can be written here",
            path=path,
            hint="keep the table on local disk, S3, Azure or Google Cloud Storage",
        )


def _entry(info: dict[str, Any]) -> FileEntry:
    name = str(info["name"]).rsplit("/", 1)[-1]
    return FileEntry(name, int(info.get("size") or 0), _modified_ms(info))


def _modified_ms(info: dict[str, Any]) -> int:
    """Each driver names and types the modification time in its own way."""
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, int | float):
            return int(value * 1000)
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return int(aware.timestamp() * 1000)
    return 0


def _unavailable(path: str, cause: Exception) -> UnavailableError:
    # A driver raises whatever its client library does, so this boundary has to be broad; the
    # cause stays chained.
    return UnavailableError(
        f"the store failed: {type(cause).__name__}: {cause}",
        path=path,
        hint="check the location, credentials and network, then try again",
    )
