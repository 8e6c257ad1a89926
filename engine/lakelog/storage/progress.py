"""Reports progress of calls that make several requests, such as listings.

`lakelog.storage.bounded` waits for a call in another thread, and gives it up after a time without
progress. The store reports progress in the context that the call was made in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_last: ContextVar[list[float] | None] = ContextVar("lakelog_last_progress", default=None)


def report_progress() -> None:
    """Report that a part of the call has been answered."""
    last = _last.get()
    if last is not None:
        last[0] = time.monotonic()


def observed(work: Callable[[], T], last: list[float]) -> T:
    """Do some work; `last` gets the time of its latest progress."""
    _last.set(last)
    return work()
