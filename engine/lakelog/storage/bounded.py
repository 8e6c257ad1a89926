"""`BoundedStore`: limits concurrent reads, and stops reads that make no progress.

Each read or listing runs in a daemon thread, so that a hanging call blocks neither the caller nor
the exit of the process. Stores that cannot hang, such as local disk, are called directly unless a
limit was requested.

Progress is a file, a page of a listing or a range. A read of a whole file may take one second
longer per MiB of the file. Writes are not limited here, because a write in progress would have an
unknown outcome; the stores have their own deadlines.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, BinaryIO, TypeVar, cast

from lakelog.errors import InvalidInputError, LakelogError, ReadTimeoutError
from lakelog.storage.base import (
    FileEntry,
    FileWrapper,
    LogStore,
    StoreWrapper,
    TreePart,
    observed,
    tree_of,
)
from lakelog.storage.containment import LOCAL, AllowedLocations
from lakelog.storage.local import LocalStore
from lakelog.storage.ranged import Fetch, Range, RangedFile
from lakelog.storage.resolve import open_store
from lakelog.threads import can_start

T = TypeVar("T")

_DEFAULT_PARALLELISM = 4
"""Number of concurrent reads if only a time-out was given."""


class _Default(float):
    """The default time-out: a table property takes precedence over it."""


DEFAULT_TIMEOUT_S: float = _Default(30.0)
"""Seconds without progress after which a read fails, unless the caller or the table specifies
another number.
"""

_SLOWEST_BYTES_A_SECOND = 1 << 20
_AHEAD_BYTES = 256 << 20
_AHEAD = 16  # number of files that each thread may read ahead
_NAMED = 20
_HINT = (
    "check the store and the network, or set a longer time-out: lakelog.open(…, "
    "read_timeout=…), --read-timeout on the command line, or the table property "
    "spark.indextables.checkpoint.read.timeoutSeconds"
)


_LONGEST_S = 1e9
"""About 30 years, the longest time that threads can wait for."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits of reads; None is the store's own. `timeout_s` is the time without progress."""

    parallelism: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.parallelism is not None and self.parallelism < 1:
            raise InvalidInputError(
                "invalid number of parallel reads", expected=">= 1", found=self.parallelism
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInputError(
                "a time-out must be > 0 seconds", expected="> 0", found=self.timeout_s
            )


DEFAULT_LIMITS = ReadLimits(timeout_s=DEFAULT_TIMEOUT_S)
"""The limits if the caller requested none."""


class BoundedStore(StoreWrapper):
    """A thread-safe store within `limits`; `by_location`: other processes can open it too."""

    def __init__(
        self, store: LogStore, requested: ReadLimits | None = None, *, by_location: bool = False
    ) -> None:
        super().__init__(store)
        self._requested = requested or ReadLimits()
        self.by_location = by_location
        self._never_hangs = bool(getattr(store, "never_hangs", False))
        self.shared_limits = self._requested  # of other stores, which may hang
        self.limits = self._effective(self._requested)

    @property
    def requested(self) -> ReadLimits:
        """The limits that the caller requested."""
        return self._requested

    def apply_table_limits(self, limits: ReadLimits) -> None:
        """Apply the limits of the table's properties if the caller requested none."""
        timeout_s = self._requested.timeout_s
        if isinstance(timeout_s, _Default):
            timeout_s = limits.timeout_s or timeout_s
        parallelism = self._requested.parallelism or limits.parallelism
        self.shared_limits = ReadLimits(parallelism, timeout_s)
        self.limits = self._effective(self.shared_limits)

    def _effective(self, limits: ReadLimits) -> ReadLimits:
        if self._never_hangs and isinstance(limits.timeout_s, _Default):
            return ReadLimits(limits.parallelism)
        if limits.timeout_s is not None and limits.timeout_s > _LONGEST_S:
            return ReadLimits(limits.parallelism, _LONGEST_S)
        return limits

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """As the inner store."""
        return self._timed(lambda: self._store.list_from(folder, start), folder)

    def list_folders(self, folder: str) -> list[str]:
        """As the inner store; errors as `list_from`."""
        return self._timed(lambda: self._store.list_folders(folder), folder)

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """As the inner store; errors as `list_from`."""
        return self._timed(lambda: self._store.has_folders(folders), ", ".join(folders[:_NAMED]))

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """As the inner store; errors as `list_from`."""
        return self._each(lambda: self._store.walk(folder), folder)

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
        """As the inner store; errors as `list_from`."""
        return self._each(lambda: tree_of(self._store, folder, files=files), folder)

    def _each(self, iterate: Callable[[], Iterator[T]], folder: str) -> Iterator[T]:
        parts = self._timed(lambda: iter(iterate()), folder)
        while (part := self._timed(lambda: next(parts, None), folder)) is not None:
            yield part

    def stat(self, path: str) -> FileEntry | None:
        """As the inner store."""
        return self._timed(lambda: self._store.stat(path), path)

    def read(self, path: str) -> bytes:
        """As the inner store."""
        return self._timed(lambda: self._store.read(path), path, lambda: self._extra_s(path))

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the inner store, within the limits; reads at most 256 MB or 16 files ahead."""
        limits = self.limits
        if limits == ReadLimits() or not paths:
            return self._store.read_many(paths)
        parallelism = limits.parallelism or getattr(
            self._store, "reads_in_flight", _DEFAULT_PARALLELISM
        )
        limits = ReadLimits(parallelism, limits.timeout_s)
        gathering = _Gathering(self._store.read, paths, limits, self._extra_s)
        return gathering.results()

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store; every read of the file obeys the time-out."""
        timeout_s = self.limits.timeout_s
        file = self._timed(
            lambda: self._store.open(path, size_bytes),
            path,
            lambda: self._extra_s(path),
            lambda late: late.close(),
        )
        if timeout_s is None:
            return file
        if isinstance(file, RangedFile):
            file.fetch_through(lambda fetch: self._timed_fetch(fetch, path))
            return cast("BinaryIO", file)
        return cast("BinaryIO", _TimedFile(file, path, timeout_s, lambda: self._extra_s(path)))

    def _timed_fetch(self, fetch: Fetch, path: str) -> Fetch:
        def timed(ranges: Sequence[Range]) -> Sequence[bytes]:
            extra_s = sum(end - start for start, end in ranges) / _SLOWEST_BYTES_A_SECOND
            return self._timed(lambda: fetch(ranges), path, lambda: extra_s)

        return timed

    def _timed(
        self,
        work: Callable[[], T],
        path: str,
        extra_s: Callable[[], float] = lambda: 0.0,
        too_late: Callable[[T], object] = lambda _: None,
    ) -> T:
        return _timed(work, path, self.limits.timeout_s, extra_s, too_late)

    def _extra_s(self, path: str) -> float:
        """Seconds that a read of a whole file may take longer than the time-out."""
        try:
            entry = self.stat(path)
        except LakelogError:
            return 0.0
        return 0.0 if entry is None else entry.size_bytes / _SLOWEST_BYTES_A_SECOND


def open_bounded(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> BoundedStore:
    """The store of a location, within limits; arguments and errors as `open_store`."""
    return BoundedStore(open_store(location, storage_options), limits, by_location=True)


class FileLocator:
    """Locates the files that a table's log names, in the table's own store and in others, which get
    its limits; without a store, it is opened within `limits`. Safe to use from several threads.
    """

    def __init__(
        self,
        locations: AllowedLocations,
        store: LogStore | None,
        limits: ReadLimits = DEFAULT_LIMITS,
    ) -> None:
        self._locations = locations
        if store is None:
            store = open_bounded(locations.location, locations.storage_options, limits)
        self._own = store
        self._others: dict[str, LogStore] = {}
        self._lock = threading.Lock()

    def locate(self, path: str) -> tuple[LogStore, str]:
        """The store of a path in the log, and the file's name there. Raises ExternalPathError for a
        file outside of the table's folder that may not be opened.
        """
        found = self._locations.resolve(path)
        if isinstance(found, str):
            return self._own, found
        with self._lock:
            if found.store not in self._others:
                options = self._locations.options_for(found)
                self._others[found.store] = (
                    LocalStore(found.root)
                    if found.store == LOCAL
                    else open_bounded(found.root, options, limits_of(self._own))
                )
            return self._others[found.store], found.path

    def stat(self, path: str) -> FileEntry | None:
        """Metadata of a file, None if it does not exist; errors as `locate` and `LogStore.stat`."""
        store, name = self.locate(path)
        return store.stat(name)


def bounded(store: LogStore) -> BoundedStore | None:
    """The `BoundedStore` that a store is, or wraps; None if there is none."""
    while isinstance(store, StoreWrapper) and not isinstance(store, BoundedStore):
        store = store._store  # noqa: SLF001 - its own kind
    return store if isinstance(store, BoundedStore) else None


def limits_of(store: LogStore) -> ReadLimits:
    """The limits of a table's store, for the other stores and processes that read the table."""
    own = bounded(store)
    return DEFAULT_LIMITS if own is None else own.shared_limits


def unbounded(store: LogStore) -> LogStore:
    """The inner store, without limits."""
    while isinstance(store, BoundedStore):
        store = store._store  # noqa: SLF001 - its own kind
    return store


def require_by_location(store: LogStore) -> BoundedStore:
    """The store, if another process can open it by its location and options."""
    if not isinstance(store, BoundedStore) or not store.by_location:
        raise InvalidInputError(
            (
                "the table cannot be pickled: its store was passed as an object, not "
                "opened from a location"
            ),
            path=store.root,
            found=type(unbounded(store)).__name__,
            hint="pass the location, and call lakelog.open in the other process",
        )
    return store


def require_openable_elsewhere(store: LogStore) -> None:
    """Raise for a store that was passed as an object: executors open a table by its location."""
    limited = bounded(store)
    if limited is not None and not limited.by_location:
        raise InvalidInputError(
            "Spark executors cannot open the table: its store was passed as an object",
            path=store.root,
            found=type(unbounded(store)).__name__,
            hint="pass the location of the table",
        )


def on_local_disk(store: LogStore) -> bool:
    """Whether a store is local disk, where a listing costs microseconds."""
    return isinstance(unbounded(store), LocalStore)


class _Gathering:
    """One `read_many`: threads that read, and the caller that waits for them."""

    def __init__(
        self,
        read: Callable[[str], bytes],
        paths: Sequence[str],
        limits: ReadLimits,
        extra_s: Callable[[str], float],
    ) -> None:
        self._read = read
        self._extra_s = extra_s
        self._paths = paths
        self._threads = min(limits.parallelism or _DEFAULT_PARALLELISM, len(paths))
        self._timeout_s = limits.timeout_s
        self._arrived: dict[int, bytes | BaseException] = {}
        self._changed = threading.Condition(threading.Lock())
        self._next = 0  # next file to read
        self._turn = 0  # next file to return
        self._blocked = 0  # number of threads waiting for space
        self._arrivals = 0
        self._largest = 1
        self._over = False

    def results(self) -> Iterator[bytes]:
        """The files in order."""
        if not can_start():
            yield from map(self._read, self._paths)
            return
        for _ in range(self._threads):
            # Daemon threads: a hanging one must not keep the process from exiting.
            threading.Thread(target=self._work, name="lakelog-read", daemon=True).start()
        try:
            for turn in range(len(self._paths)):
                content = self._await(turn)
                if isinstance(content, BaseException):
                    raise content
                yield content
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _await(self, turn: int) -> bytes | BaseException:
        with self._changed:
            self._turn = turn
            if self._blocked:
                self._changed.notify_all()
            seen = self._arrivals
        wait_s = self._timeout_s
        is_extended = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: turn in self._arrived, wait_s)
                if turn in self._arrived:
                    return self._arrived.pop(turn)
                is_late, seen = seen == self._arrivals, self._arrivals
            wait_s = self._timeout_s
            if is_late:
                # Without the lock, so that the reading threads continue.
                extra_s = 0.0 if is_extended else self._extra_s(self._paths[turn])
                wait_s = extra_s * self._threads  # threads share the bandwidth
                is_extended = True
                if not wait_s:
                    with self._changed:
                        if turn not in self._arrived:
                            raise self._late()

    def _late(self) -> ReadTimeoutError:
        # In order, so that the files already requested, which are the hanging ones, come first.
        waiting = [i for i in range(self._turn, len(self._paths)) if i not in self._arrived]
        names = [self._paths[i] for i in waiting[:_NAMED]]
        more = len(waiting) - len(names)
        return ReadTimeoutError(
            f"{len(waiting)} of {len(self._paths)} files were not read: none was received "
            f"within {self._timeout_s:g} s",
            path=names[0],
            expected=f"each within {self._timeout_s:g} s",
            found=", ".join(names) + (f" and {more} more" if more else ""),
            hint=_HINT,
        )

    def _work(self) -> None:
        while (index := self._take()) is not None:
            content: bytes | BaseException
            try:
                content = self._read(self._paths[index])
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                content = error
            with self._changed:
                self._arrived[index] = content
                self._arrivals += 1
                if isinstance(content, bytes):
                    self._largest = max(self._largest, len(content))
                if index == self._turn:
                    self._changed.notify_all()

    def _take(self) -> int | None:
        """The next file to read, once there is space for it; None if there is none."""
        with self._changed:
            while not self._over and self._turn + self._ahead() <= self._next < len(self._paths):
                self._blocked += 1
                self._changed.wait()
                self._blocked -= 1
            if self._over or self._next >= len(self._paths):
                return None
            self._next += 1
            return self._next - 1

    def _ahead(self) -> int:
        return max(2, min(_AHEAD * self._threads, _AHEAD_BYTES // self._largest))


def _timed(
    work: Callable[[], T],
    path: str,
    timeout_s: float | None,
    extra_s: Callable[[], float] = lambda: 0.0,
    too_late: Callable[[T], object] = lambda _: None,
) -> T:
    """Call `work` in a thread, and give up after a time without progress."""
    if timeout_s is None:
        return work()
    done: list[T] = []
    failed: list[BaseException] = []
    over = threading.Event()
    lock = threading.Lock()
    given_up = False
    last = [time.monotonic()]

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed.append(error)
            over.set()
            return
        with lock:
            done.append(result)
            late = given_up
        over.set()
        if late:
            with contextlib.suppress(Exception):  # no caller is left to receive the error
                too_late(result)

    context = copy_context()  # for the spans of the caller, and the progress of this call
    if can_start():
        # Daemon threads: a hanging one must not keep the process from exiting.
        threading.Thread(
            target=context.run, args=(observed, run, last), name="lakelog-read", daemon=True
        ).start()
    else:
        context.run(observed, run, last)
    extra: float | None = None
    while not over.wait(max(0.0, last[0] + timeout_s + (extra or 0.0) - time.monotonic())):
        if time.monotonic() < last[0] + timeout_s + (extra or 0.0):
            continue  # there was progress
        if extra is not None:
            break
        extra = extra_s()
    if failed:
        raise failed[0]
    with lock:
        given_up = not done
    if given_up:
        raise ReadTimeoutError(
            f"the store did not respond within {timeout_s:g} s",
            path=path,
            expected=f"progress within {timeout_s:g} s",
            found=path,
            hint=_HINT,
        )
    return done[0]


class _TimedFile(FileWrapper):
    """A seekable reader that stops a read without progress."""

    def __init__(
        self, file: BinaryIO, path: str, timeout_s: float, extra_s: Callable[[], float]
    ) -> None:
        super().__init__(file)
        self._path = path
        self._timeout_s = timeout_s
        self._extra_s = extra_s
        self._stuck = False

    def read(self, size: int = -1, /) -> bytes:
        try:
            return _timed(lambda: self._file.read(size), self._path, self._timeout_s, self._extra_s)
        except ReadTimeoutError:
            self._stuck = True
            raise

    def close(self) -> None:
        if self._stuck:
            RawIOBase.close(self)  # the hanging thread still uses the file
        else:
            super().close()
