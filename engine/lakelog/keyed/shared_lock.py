"""A lock that many writers hold together, or one caller holds alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Latch:
    """Writers pass together; the one who closes the latch waits for those that are inside.

    Between a record's way into the log and its way into the memtable is a moment in which only
    the log has it. A flush that took the memtable then, and truncated the log, would lose it: so it
    closes the latch for as long as it takes to exchange the memtable.

    New writers wait while another process waits to close, so that a stream of them cannot hold a
    flush up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Held by a writer from before its append until its record is in the memtable."""
        with self._changed:
            while self._closing:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Held while no writer is inside."""
        with self._changed:
            while self._closing:
                self._changed.wait()
            self._closing = True
        try:
            with self._changed:
                while self._inside:
                    self._changed.wait()  # which may be interrupted
            yield
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()
