"""Calls at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def outcomes(*works: Callable[[], Any]) -> list[Any]:
    """The result or the exception of each call."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - the caller examines it
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def run_concurrently(*works: Callable[[], Any]) -> list[Any]:
    """The result of each call, or the first exception."""
    found = outcomes(*works)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found
