"""`BoundedStore`: reads of a log so many at a time, and not waited for without end.

Without limits every call goes straight to the store below, whose own habits hold: local disk reads
four files at a time, a remote store 64, each request with its own deadline. With them, files are
read by threads of this module's own, so that one that never answers holds up nobody but itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from typing import BinaryIO, TypeVar, cast

from lakelog.errors import InvalidInputError, ReadTimeoutError
from lakelog.storage.base import LogStore
from lakelog.storage.local import LocalStore
from lakelog.storage.ranged import RangedFile
from lakelog.storage.wrapper import FileWrapper, StoreWrapper

T = TypeVar("T")

DEFAULT_PARALLELISM = 4
"""Files read at the same time where only a time-out was given (specification 001, 3.3.1)."""

_AHEAD_BYTES = 256 << 20
_AHEAD = 16  # files that each thread may be ahead of the caller
_NAMED = 20


@dataclass(frozen=True)
class ReadLimits:
    """What reading may take.

    Attributes:
        parallelism: Files read at the same time; None is what the store does on its own.
        timeout_s: Seconds without any file arriving after which those that are missing are given
            up; None waits for as long as the store does.

    Raises:
        InvalidInputError: One of them is not above 0.
    """

    parallelism: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.parallelism is not None and self.parallelism < 1:
            raise InvalidInputError(
                "nothing can be read so few at a time", expected=">= 1", found=self.parallelism
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInputError(
                "a time-out is above 0 seconds", expected="> 0", found=self.timeout_s
            )


class BoundedStore(StoreWrapper):
    """A store whose reads keep within limits. Safe under threads.

    Args:
        store: The store below.
        asked: The limits that the caller asked for.

    Attributes:
        limits: The limits of calls from now on.
    """

    def __init__(self, store: LogStore, asked: ReadLimits | None = None) -> None:
        super().__init__(store)
        self._asked = asked or ReadLimits()
        self.limits = self._asked

    def heed(self, limits: ReadLimits) -> None:
        """Keep to what the table says, too, where the caller asked for nothing."""
        parallelism = self._asked.parallelism or limits.parallelism
        self.limits = ReadLimits(parallelism, self._asked.timeout_s or limits.timeout_s)

    def read(self, path: str) -> bytes:
        """As the store below.

        Raises:
            ReadTimeoutError: It was not read in time.
        """
        return _timed(lambda: self._store.read(path), path, self.limits.timeout_s)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the store below, within the limits.

        Raises:
            ReadTimeoutError: On iterating: no file arrived for as long as the time-out. ``found``
                names those still missing.

        Memory: some 256 MB read ahead, or 16 times as many files as are read at a time if that is
        less; to begin with, files are taken to be small.
        """
        limits = self.limits
        if limits == ReadLimits() or not paths:
            return self._store.read_many(paths)
        gathering = _Gathering(self._store.read, paths, limits)
        return gathering.results()

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the store below. What fetches ranges has deadlines of its own; other files are read
        within the time-out, each time.
        """
        timeout_s = self.limits.timeout_s
        file = _timed(
            lambda: self._store.open(path, size_bytes), path, timeout_s, lambda late: late.close()
        )
        if timeout_s is None or isinstance(file, RangedFile):
            return file
        return cast("BinaryIO", _TimedFile(file, path, timeout_s))


def bounded(store: LogStore) -> BoundedStore | None:
    """The `BoundedStore` that a store is, or wraps; None where there is none."""
    while isinstance(store, StoreWrapper) and not isinstance(store, BoundedStore):
        store = store._store  # noqa: SLF001 - its own kind
    return store if isinstance(store, BoundedStore) else None


def unbounded(store: LogStore) -> LogStore:
    """The store under such limits: they are for the log, whose files are small, and not for data
    files, which are read in ranges for as long as it takes.
    """
    while isinstance(store, BoundedStore):
        store = store._store  # noqa: SLF001 - its own kind
    return store


def on_local_disk(store: LogStore) -> bool:
    """Whether a store is local disk itself, where looking costs microseconds."""
    return isinstance(unbounded(store), LocalStore)


class _Gathering:
    """One `read_many`: threads that read, and the caller that waits for them."""

    def __init__(
        self, read: Callable[[str], bytes], paths: Sequence[str], limits: ReadLimits
    ) -> None:
        self._read = read
        self._paths = paths
        self._threads = min(limits.parallelism or DEFAULT_PARALLELISM, len(paths))
        self._timeout_s = limits.timeout_s
        self._arrived: dict[int, bytes | BaseException] = {}
        self._changed = threading.Condition(threading.Lock())
        self._next = 0  # to be asked for
        self._turn = 0  # waited for
        self._blocked = 0  # threads that wait for room
        self._arrivals = 0
        self._largest = 1
        self._over = False

    def results(self) -> Iterator[bytes]:
        """The files in order."""
        for _ in range(self._threads):
            # Daemons: one that hangs must not keep the process from ending.
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
            seen = -1
            while turn not in self._arrived:
                if seen == self._arrivals:
                    raise self._late()
                seen = self._arrivals
                self._changed.wait_for(lambda: turn in self._arrived, self._timeout_s)
            return self._arrived.pop(turn)

    def _late(self) -> ReadTimeoutError:
        # In order: so those that were asked for, which are what hangs, come first.
        waiting = [i for i in range(self._turn, len(self._paths)) if i not in self._arrived]
        names = [self._paths[i] for i in waiting[:_NAMED]]
        more = len(waiting) - len(names)
        return ReadTimeoutError(
            f"{len(waiting)} of {len(self._paths)} files were not read: none arrived for "
            f"{self._timeout_s:g} s",
            path=names[0],
            expected=f"each within {self._timeout_s:g} s",
            found=", ".join(names) + (f" and {more} more" if more else ""),
            hint="check the store, or allow a longer time (checkpoint.read.timeoutSeconds)",
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
        """The next file to read, as soon as there is room for it; None when there is none."""
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
    too_late: Callable[[T], object] = lambda _: None,
) -> T:
    """Do some work in a thread, and give it up after a while; then `too_late` gets its result."""
    if timeout_s is None:
        return work()
    done: list[T] = []
    failed: list[BaseException] = []
    lock = threading.Lock()
    given_up = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed.append(error)
            return
        with lock:
            done.append(result)
            late = given_up
        if late:
            too_late(result)

    thread = threading.Thread(target=run, name="lakelog-read", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failed:
        raise failed[0]
    with lock:
        given_up = not done
    if given_up:
        raise ReadTimeoutError(
            f"the file was not read within {timeout_s:g} s",
            path=path,
            expected=f"within {timeout_s:g} s",
            found=path,
            hint="check the store, or allow a longer time (checkpoint.read.timeoutSeconds)",
        )
    return done[0]


class _TimedFile(FileWrapper):
    """A seekable reader that gives up on a read that takes too long."""

    def __init__(self, file: BinaryIO, path: str, timeout_s: float) -> None:
        super().__init__(file)
        self._path = path
        self._timeout_s = timeout_s
        self._stuck = False

    def read(self, size: int = -1, /) -> bytes:
        try:
            return _timed(lambda: self._file.read(size), self._path, self._timeout_s)
        except ReadTimeoutError:
            self._stuck = True
            raise

    def close(self) -> None:
        if self._stuck:
            RawIOBase.close(self)  # the file is left to the thread that reads it, and hangs
        else:
            super().close()
