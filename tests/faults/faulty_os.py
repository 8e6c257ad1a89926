"""The operating system with faults: replaces ``os`` in the code for local disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

CALLS = ("open", "read", "write", "fsync", "link", "mkdir", "unlink", "scandir", "stat", "close")
"""The calls that may fail, or at which a process may die."""

MODULES = ("lakelog.storage.durable.os", "lakelog.storage.local.os")


class FaultyOs:
    """``os`` with a fault at the nth of some of its calls.

    Args:
        calls: Names of the calls that count.
        nth: Number of the faulty call, from 1.
        inject: The fault, which gets the name of the call.
        after: Whether the fault occurs after the call.
        torn: Whether a faulty write has written half of its data.

    Attributes:
        made: Names of the calls so far.
    """

    def __init__(
        self,
        calls: tuple[str, ...],
        nth: int,
        inject: Callable[[str], None],
        *,
        after: bool = False,
        torn: bool = False,
    ) -> None:
        self.made: list[str] = []
        self._calls, self._nth, self._inject = calls, nth, inject
        self._after, self._torn = after, torn

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self._calls:
            return real

        def call(*args: Any, **options: Any) -> Any:
            self.made.append(name)
            is_faulty = len(self.made) == self._nth
            if is_faulty and name == "write" and self._torn:
                half = memoryview(args[1])
                real(args[0], half[: len(half) // 2])
            if is_faulty and not self._after:
                if name == "close":
                    real(*args, **options)  # a close that fails has closed
                self._inject(name)
            result = real(*args, **options)
            if is_faulty and self._after:
                self._inject(name)
            return result

        return call


@contextlib.contextmanager
def os_replaced(faulty: FaultyOs) -> Iterator[FaultyOs]:
    """Replace ``os``."""
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch(module, faulty))
        yield faulty
