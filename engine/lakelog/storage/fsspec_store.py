"""`FsspecStore` reads through any fsspec filesystem; `MemoryStore` also writes, to ``memory://``.

Asynchronous drivers run on their own event loop, with many concurrent requests; others run in
threads. fsspec's memory filesystem is not atomic and shares one file position among readers, so
writes take a process-wide lock and readers get copies. Other writers of ``memory://`` do not take
that lock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote, unquote

from fsspec.asyn import sync

from lakelog.errors import (
    LakelogError,
    NotFoundError,
    UnavailableError,
    UnsupportedStoreError,
)
from lakelog.storage.base import (
    IN_FLIGHT,
    Deleted,
    FileEntry,
    FileWrapper,
    Link,
    TreePart,
    Upload,
    require_content,
)
from lakelog.storage.conditional import deadline_s, describe
from lakelog.storage.containment import require_contained
from lakelog.storage.ranged import Content, Range, RangedFile
from lakelog.storage.upload import BufferedUpload
from lakelog.threads import DaemonPool

T = TypeVar("T")

_THREADS = 16
_AHEAD_BYTES = 256 << 20
_WHOLE_DEADLINE_S = (
    600.0  # seconds for a file of unknown size; the driver's own time-outs are shorter
)
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class FsspecStore:
    """A folder of an fsspec filesystem, to read from."""

    _is_literal = False  # whether names are never decoded; some drivers insert them into URLs

    def __init__(self, filesystem: Any, base: str, root: str) -> None:
        self._filesystem = filesystem
        self._base = base.rstrip("/")
        self._below = f"{self._base}/" if base else ""  # the root of an archive has no slash
        self._root = root
        self._is_async = bool(getattr(filesystem, "async_impl", False) is True)
        self._is_web = base.startswith(("http://", "https://"))

    @property
    def reads_in_flight(self) -> int:
        """Number of files that are read concurrently."""
        return IN_FLIGHT if self._is_async else _THREADS

    @property
    def root(self) -> str:
        """The location, as the caller gave it."""
        return self._root

    def _absolute(self, path: str) -> str:
        require_contained(path, remote=True, decoded=not (self._is_literal or self._is_web))
        if self._is_web:
            path = self._encoded(path)
        return f"{self._below}{path}" if path else self._base

    def _encoded(self, path: str) -> str:
        """A name as a part of a URL."""
        query = ""
        if self._base.count("/") == 2:
            # A whole server: names are from URLs in a log, which may be presigned.
            path, mark, query = path.partition("?")
            query = mark + quote(query, safe="/=&", errors="surrogateescape")
        return quote(path, safe="/=", errors="surrogateescape") + query

    def _list(self, folder: str) -> list[dict[str, Any]]:
        path = self._absolute(folder)
        try:
            try:
                # refresh: fsspec caches listings, and a log grows while it is read.
                found = self._filesystem.ls(path, detail=True, refresh=True)
            except TypeError:  # not every driver has this argument
                self._filesystem.invalidate_cache()
                found = self._filesystem.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as cause:
            raise unavailable(folder, cause) from cause
        # For a file, drivers return the file.
        found = [info for info in found if str(info["name"]).strip("/") != path.strip("/")]
        if self._is_web:
            return [{**info, "name": _decoded(str(info["name"]))} for info in found]
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

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """Whether each of these folders contains anything, by concurrent listings."""
        with DaemonPool(min(_THREADS, len(folders)), thread_name_prefix="lakelog-list") as pool:
            listings = [pool.submit(self._list, folder) for folder in folders]
            return [bool(listing.result()) for listing in listings]

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Every file below `folder`; one batch per folder."""
        return (part.files for part in self.tree(folder) if part.files)

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:  # noqa: ARG002 - the driver examines all
        """As `walk`, with symbolic links. Drivers do not resolve them, so that the target is the
        whole folder.
        """
        ahead = [""]
        while ahead:
            prefix = ahead.pop()
            batch: list[FileEntry] = []
            links: list[Link] = []
            for info in self._list(f"{folder}/{prefix}".strip("/")):
                entry = _entry(info)
                if info.get("islink") or info.get("type") == "link":
                    path = f"{folder}/{prefix}{entry.name}".strip("/")
                    links.append(Link(path, "", self._filesystem.exists(self._absolute(path))))
                if info.get("type") == "directory":
                    name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
                    ahead.append(f"{prefix}{name}/")
                elif entry.name:
                    batch.append(entry._replace(name=prefix + entry.name))
            if batch or links:
                yield TreePart(batch, links)

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None."""
        try:
            info = self._filesystem.info(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as cause:
            raise unavailable(path, cause) from cause
        if info.get("type") == "directory":
            return None
        return _entry(info)._replace(name=path.rsplit("/", 1)[-1])

    def read(self, path: str) -> bytes:
        """The content of one file."""
        with _errors(path):
            if self._is_async:
                return self._wait(self._cat(path))
            return cast("bytes", self._filesystem.cat_file(self._absolute(path)))

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """The content of each file, in order, concurrently; reads at most 256 MB ahead."""
        if len(paths) <= 1:
            return [self.read(path) for path in paths]
        if self._is_async:
            return self._read_ahead(paths, IN_FLIGHT, self._start)
        return self._read_threaded(paths)

    def _read_threaded(self, paths: Sequence[str]) -> Iterator[bytes]:
        with DaemonPool(min(_THREADS, len(paths)), thread_name_prefix="lakelog-read") as pool:
            yield from self._read_ahead(paths, 2 * _THREADS, lambda p: pool.submit(self.read, p))

    def _start(self, path: str) -> Future[bytes]:
        loop = self._loop
        return asyncio.run_coroutine_threadsafe(self._cat(path), loop)

    def _read_ahead(
        self, paths: Sequence[str], most: int, start: Callable[[str], Future[bytes]]
    ) -> Iterator[bytes]:
        pending: deque[Future[bytes]] = deque()
        largest = 1
        asked = 0
        try:
            for turn, path in enumerate(paths):
                ahead = max(2, min(most, _AHEAD_BYTES // largest))
                while asked < len(paths) and asked < turn + ahead:
                    pending.append(start(paths[asked]))
                    asked += 1
                with _errors(path):
                    data = pending.popleft().result()
                largest = max(largest, len(data))
                yield data
        finally:
            for future in pending:
                future.cancel()

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """A seekable reader that fetches ranges; one round trip if the size is given, else two."""
        if not self._is_async:
            with _errors(path):
                file = self._filesystem.open(self._absolute(path), "rb")
                return cast("BinaryIO", _DriverFile(file, path))
        if size_bytes is None:
            entry = self.stat(path)
            if entry is None:
                raise NotFoundError("the file was not found", path=path)
            size_bytes = entry.size_bytes
        if not size_bytes:  # or a server that does not report it
            return io.BytesIO(self.read(path))

        tags: set[str] = set()

        def fetch(ranges: Sequence[Range]) -> list[bytes]:
            with _errors(path):
                return self._wait(self._cat_ranges(path, ranges, tags))

        return cast("BinaryIO", RangedFile(fetch, size_bytes))

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The driver's event loop, which does not run in a forked process."""
        try:
            return cast("asyncio.AbstractEventLoop", self._filesystem.loop)
        except RuntimeError as cause:
            raise UnavailableError(
                "the store was opened in another process, before a fork",
                path=self._root,
                hint="open the table again in this process, or start it with spawn",
            ) from cause

    def _wait(self, coroutine: Coroutine[Any, Any, T], most_s: float | None = None) -> T:
        try:
            loop = self._loop
        except UnavailableError:
            coroutine.close()
            raise
        result: T = sync(loop, lambda: asyncio.wait_for(coroutine, most_s))
        return result

    async def _cat(self, path: str) -> bytes:
        content, _ = await asyncio.wait_for(self._fetch(path), _WHOLE_DEADLINE_S)
        return content

    async def _fetch(self, path: str, span: Range | None = None) -> Content:
        """A file, or a range of it, in one request."""
        start, end = span or (None, None)
        found = await self._filesystem._cat_file(self._absolute(path), start=start, end=end)
        return found, None

    async def _cat_ranges(self, path: str, ranges: Sequence[Range], tags: set[str]) -> list[bytes]:
        """Ranges of a file of which all earlier requests had the `tags`."""
        permits = asyncio.Semaphore(IN_FLIGHT)

        async def fetch(start: int, end: int) -> bytes:
            async with permits:
                request = self._fetch(path, (start, end))
                data, tag = await asyncio.wait_for(request, deadline_s(end - start))
            if tag is not None:
                tags.add(tag)
            # A web server may return the whole file for a request of a range.
            return data[start:end] if len(data) > end - start else data

        found = await asyncio.gather(*(fetch(*each) for each in ranges))
        if len(tags) > 1:
            raise UnavailableError(
                "the file was replaced while it was read",
                path=path,
                hint="open the table again",
            )
        return found

    @property
    def refusal(self) -> str | None:
        """Why nothing can be committed: the driver does not create files atomically."""
        # Of a chain of drivers, the first one.
        protocol = self._root.split("://", 1)[0].split("::", 1)[0]
        return (
            f"the driver of {protocol}:// has no atomic put-if-absent, so two writers "
            "could both write the same version"
        )

    def put_if_absent(self, path: str, data: bytes) -> bool:  # noqa: ARG002 - refused
        """Raises UnsupportedStoreError."""
        raise self._refused(path)

    def put(self, path: str, data: bytes) -> None:  # noqa: ARG002 - refused
        """Raises UnsupportedStoreError."""
        raise self._refused(path)

    def upload(self, path: str) -> Upload:
        """Raises UnsupportedStoreError."""
        raise self._refused(path)

    def move(self, source: str, target: str) -> None:  # noqa: ARG002 - refused
        """Raises UnsupportedStoreError."""
        raise self._refused(source)

    def delete(self, path: str) -> None:
        """Raises UnsupportedStoreError."""
        raise self._refused(path)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Raises UnsupportedStoreError."""
        raise self._refused(", ".join(paths[:3]))

    def _refused(self, path: str) -> UnsupportedStoreError:
        return UnsupportedStoreError(
            self.refusal or "this store does not support writes",
            path=path,
            hint="move the table to local disk, S3, Azure or Google Cloud Storage",
        )


class _DriverFile(FileWrapper):
    """A driver's reader of one file, with the errors of `LogStore`."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__(file)
        self._path = path

    def read(self, size: int = -1, /) -> bytes:
        with _errors(self._path):
            return super().read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with _errors(self._path):
            return super().seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):  # nothing depends on it, and some drivers' readers fail
                self._file.close()
        io.RawIOBase.close(self)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Convert errors of a driver to those of `LogStore`."""
    try:
        yield
    except LakelogError:
        raise
    except _MISSING as error:
        raise NotFoundError("the file was not found", path=path) from error
    except (Exception, CancelledError) as error:
        raise unavailable(path, error) from error


def _decoded(url: str) -> str:
    """The name at the end of a URL; the slash after that of a folder is kept."""
    name = url.rstrip("/").rpartition("/")[2]
    return unquote(name, errors="surrogateescape") + ("/" if url.endswith("/") else "")


def _entry(info: dict[str, Any]) -> FileEntry:
    name = str(info["name"]).rsplit("/", 1)[-1]
    return FileEntry(name, int(info.get("size") or 0), _modified_ms(info))


def _modified_ms(info: dict[str, Any]) -> int:
    """Modification time in milliseconds; its name and type differ between drivers."""
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, int | float):
            return int(value * 1000)
        if isinstance(value, str):
            value = _parsed(value)
        if isinstance(value, dt.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return int(aware.timestamp() * 1000)
    return 0


def _parsed(text: str) -> dt.datetime | None:
    for parse in (dt.datetime.fromisoformat, parsedate_to_datetime):  # of ISO, of HTTP
        with suppress(ValueError):
            return parse(text)
    return None


def unavailable(path: str, cause: BaseException) -> UnavailableError:
    """A driver's read failure as UnavailableError; drivers raise the errors of any library."""
    return UnavailableError(
        f"the store failed: {describe(cause)}",
        path=path,
        hint="check the location, credentials and network, then try again",
    )


# One lock per process, because all memory stores share their files.
_MEMORY_LOCK = threading.RLock()


def _after_fork() -> None:
    """A forked process has none of its parent's threads, and may inherit their locked lock."""
    global _MEMORY_LOCK  # noqa: PLW0603 - the lock is the process's
    _MEMORY_LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class MemoryStore(FsspecStore):
    """A folder of fsspec's memory filesystem. Its files exist until the process ends."""

    never_hangs = True
    _is_literal = True

    @property
    def refusal(self) -> str | None:
        """None: a lock makes creation exclusive, and no other process shares the memory."""
        return None

    def _list(self, folder: str) -> list[dict[str, Any]]:
        with _MEMORY_LOCK:
            return super()._list(folder)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:  # noqa: ARG002 - spares nothing here
        """A seekable binary reader over a copy of one file."""
        return cast("BinaryIO", io.BytesIO(self.read(path)))

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None."""
        with _MEMORY_LOCK:
            return super().stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file atomically, unless it exists."""
        require_content(path, data)
        with _MEMORY_LOCK:
            if self._filesystem.exists(self._absolute(path)):
                return False
            self._write(path, data)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically."""
        with _MEMORY_LOCK:
            self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        try:
            # In one call: a file that is opened and written is visible while it grows.
            self._filesystem.pipe_file(self._absolute(path), bytes(data))
        except OSError as cause:
            raise UnavailableError(
                f"nothing was written: {type(cause).__name__}: {cause}",
                path=path,
                hint="a file exists where a folder is needed, or the reverse",
            ) from cause

    def delete(self, path: str) -> None:
        """Delete a file."""
        self.delete_existing([path])

    def upload(self, path: str) -> Upload:
        """Create or replace a file in pieces, which are buffered until it is closed."""
        return _MemoryUpload(path, self.put)

    def move(self, source: str, target: str) -> None:
        """Rename a file atomically."""
        with _MEMORY_LOCK:
            name = self._absolute(source)
            if not self._filesystem.isfile(name):
                raise NotFoundError("the file was not found", path=source)
            if source != target:
                self._write(target, self._filesystem.cat_file(name))
                self._filesystem.rm_file(name)

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files; never fails."""
        return self.delete_existing(paths).errors

    def delete_existing(self, paths: Sequence[str]) -> Deleted:
        """As `delete_many`, and the files that did not exist."""
        missing: list[str] = []
        for path in paths:
            with _MEMORY_LOCK:
                if self._filesystem.isfile(self._absolute(path)):
                    self._filesystem.rm_file(self._absolute(path))
                else:
                    missing.append(path)
        return Deleted([], missing)


class _MemoryUpload(BufferedUpload):
    """An upload that is one buffer until it is closed."""

    def __init__(self, path: str, put: Callable[[str, bytes], None]) -> None:
        super().__init__(path, sys.maxsize)
        self._put = put

    def _finish(self, rest: bytes) -> None:
        self._put(self._path, rest)

    def _discard(self) -> None:
        """Nothing to discard."""
