"""`BackgroundWork`: a thread that works when it is due, such as the commits of an Ingestor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from lakelog.errors import LakelogError

_INTERRUPT_S = 0.2
"""Handlers of signals that restart system calls, as that of Polars, interrupt only waits with a
time-out."""


class BackgroundWork:
    """Calls `work` in a daemon thread when it is due, until `end`. Neither a LakelogError ends it,
    which is in `status`, nor a KeyboardInterrupt, which Ctrl-C raises in all queries of Polars; the
    work is still due then.

    `changed` protects what `seconds_until_due` reads, and is notified when that has changed. None
    means that the work is not due.
    """

    def __init__(
        self,
        changed: threading.Condition,
        seconds_until_due: Callable[[], float | None],
        work: Callable[[], None],
    ) -> None:
        self._changed, self._seconds_until_due, self._work = changed, seconds_until_due, work
        self._is_working = self._is_ended = False
        self._calls = 0
        self._thread = threading.Thread(target=self._run, name="lakelog-ingest", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until a call that has begun ends."""
        with self._changed:
            calls = self._calls
            while self._is_working and self._calls == calls:
                self._changed.wait(_INTERRUPT_S)

    def end(self) -> None:
        """Begin no other call."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the thread has ended."""
        while self._thread.is_alive():
            self._thread.join(_INTERRUPT_S)

    def _run(self) -> None:
        while self._is_due():
            try:
                with contextlib.suppress(LakelogError, KeyboardInterrupt):
                    self._work()
            finally:
                with self._changed:
                    self._is_working = False
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        """Wait until the work is due; False if the thread ends."""
        with self._changed:
            while not self._is_ended:
                wait_s = self._seconds_until_due()
                if wait_s is not None and wait_s <= 0:
                    self._is_working = True
                    self._calls += 1
                    return True
                self._changed.wait(limited(wait_s))
            return False


def limited(seconds: float | None) -> float:
    """A time that threads can wait, and that an interrupt can end: None waits without limit."""
    return threading.TIMEOUT_MAX if seconds is None else min(seconds, threading.TIMEOUT_MAX)
