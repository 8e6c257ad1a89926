"""Threads that also work while the interpreter shuts down.

After the main thread has ended, pools accept no work, and from Python 3.12 on no thread can be
started. Other threads may still read, and a checkpoint that was begun in the background is finished
then, so this work runs in the threads that exist.

Polars reads its sources in threads of its own, and does not wait for them if it needs no more rows,
or if the query fails. Before Python 3.14, such a thread aborts the process if it is still in Python
code when the interpreter ends, so the exit ends its query and waits for it (`read_by_polars`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import ParamSpec, Self, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

WORKERS = min(8, os.cpu_count() or 1)
"""Threads that encode or decode at the same time, at most."""

ENDING = threading.Event()
"""Set when the main thread has ended."""

with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
    getattr(threading, "_register_atexit")(ENDING.set)  # noqa: B009 - the type hints lack it


def can_start() -> bool:
    """Whether threads can be started."""
    return sys.version_info < (3, 12) or not ENDING.is_set()


class Pool(ThreadPoolExecutor):
    """A thread pool that runs calls in the calling thread after the main thread has ended.

    An interrupt while `submit` starts a thread leaves a thread that `ThreadPoolExecutor` does not
    wait for, so the threads are recorded before they take a call. After an error in its block, the
    calls that have not begun are cancelled, and no other call is running.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._recorded: list[threading.Thread] = []
        super().__init__(max_workers, thread_name_prefix, _record, (self._recorded,))

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """As `ThreadPoolExecutor.submit`."""
        if not ENDING.is_set():
            return super().submit(fn, *args, **kwargs)
        return at_once(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `ThreadPoolExecutor.shutdown`."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for thread in self._recorded if wait else ():
            thread.join()

    def __exit__(self, kind: object, *error: object) -> None:
        self.shutdown(cancel_futures=kind is not None)


def _record(threads: list[threading.Thread]) -> None:
    threads.append(threading.current_thread())


class DaemonPool:
    """As `Pool`, for calls that may hang: it waits for none of them when it is left, nor does the
    exit of the process.
    """

    def __init__(self, threads: int, thread_name_prefix: str) -> None:
        self._threads = threads if can_start() else 0
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        for _ in range(self._threads):
            threading.Thread(target=self._work, name=thread_name_prefix, daemon=True).start()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """As `Pool.submit`."""
        if not self._threads:
            return at_once(fn, *args, **kwargs)
        done: Future[_T] = Future()
        self._calls.put(lambda: _complete(done, fn, *args, **kwargs))
        return done

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(self._threads):
            self._calls.put(None)


def at_once(fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """As an executor's ``submit``, in the calling thread."""
    done: Future[_T] = Future()
    _complete(done, fn, *args, **kwargs)
    return done


def _complete(
    done: Future[_T], fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
) -> None:
    """Make the call of a future, unless it was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised by the result
        done.set_exception(error)
    else:
        done.set_result(result)


_SOURCE_WAIT_S = 5.0
_SOURCE_QUIET_S = 0.1
"""A thread that has taken a value from a source returns for the next one within this time, or waits
for its query."""
_SOURCE_LEFT_S = 0.02
"""A thread has left Python within this time of the end of its source."""


class _Sources:
    """The sources that queries of this process read."""

    def __init__(self) -> None:
        self.ended = False
        self._active: set[object] = set()
        self._between: set[object] = set()
        self._last_s = -_SOURCE_QUIET_S

    def enter(self, source: object) -> None:
        self._active.add(source)
        if self.ended:
            raise CancelledError

    def leave(self, source: object, *, is_done: bool) -> None:
        self._active.discard(source)
        (self._between.discard if is_done else self._between.add)(source)
        self._last_s = time.monotonic()

    def end(self) -> None:
        """Let each source raise instead of its next value, also one that begins during the wait,
        and wait until no thread is in one.
        """
        self.ended = True
        until_s = time.monotonic() + _SOURCE_WAIT_S
        while (now_s := time.monotonic()) < until_s and (
            self._active or now_s - self._last_s < self._quiet_s()
        ):
            time.sleep(_SOURCE_LEFT_S / 4)

    def _quiet_s(self) -> float:
        """Time without a source after which none continues, nor begins in a daemon thread."""
        polars = threading._DummyThread  # noqa: SLF001 - the class of threads of other libraries
        own = [each for each in threading.enumerate() if not isinstance(each, polars)]
        return _SOURCE_QUIET_S if self._between or len(own) > 1 else _SOURCE_LEFT_S


_SOURCES = _Sources()


def read_by_polars(values: Iterator[_T]) -> Iterator[_T]:
    """The values of a source of Polars. The exit of the process waits for the thread that computes
    the next value; then the source raises `CancelledError`, because a query that still runs must
    not take what it has for all values.
    """
    source, sources = object(), _SOURCES
    try:
        sources.enter(source)
        for value in values:
            sources.leave(source, is_done=False)
            yield value
            sources.enter(source)
    finally:
        sources.leave(source, is_done=True)


def _begin() -> None:
    """Forget the sources so far: a forked process has none of its parent's threads."""
    global _SOURCES  # noqa: PLW0603 - the sources are the process's
    _SOURCES = _Sources()


def _end() -> None:
    """End the sources of this process; later functions of `atexit` may query. Ctrl-C ends the
    wait.
    """
    try:
        with contextlib.suppress(KeyboardInterrupt):  # no function of `atexit` can raise it
            _SOURCES.end()
    finally:
        _begin()


# Not `_register_atexit`, whose functions run while threads that are not daemons may still read.
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
