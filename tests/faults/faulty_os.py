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
    """``os``, with something happening at the nth of some of its calls.

    Args:
        calls: Names of the calls that count.
        nth: The call that is struck, from 1.
        strike: What happens then; given the call's name.
        after: Whether it happens after the call has been made.
        torn: Whether a write that is struck has written half of its data.

    Attributes:
        made: Names of the calls so far.
    """

    def __init__(
        self,
        calls: tuple[str, ...],
        nth: int,
        strike: Callable[[str], None],
        *,
        after: bool = False,
        torn: bool = False,
    ) -> None:
        self.made: list[str] = []
        self._calls, self._nth, self._strike = calls, nth, strike
        self._after, self._torn = after, torn

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self._calls:
            return real

        def call(*args: Any, **options: Any) -> Any:
            self.made.append(name)
            struck = len(self.made) == self._nth
            if struck and name == "write" and self._torn:
                half = memoryview(args[1])
                real(args[0], half[: len(half) // 2])
            if struck and not self._after:
                if name == "close":
                    real(*args, **options)  # a close that fails has closed
                self._strike(name)
            result = real(*args, **options)
            if struck and self._after:
                self._strike(name)
            return result

        return call


@contextlib.contextmanager
def os_replaced(faulty: FaultyOs) -> Iterator[FaultyOs]:
    """Replace ``os``."""
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch(module, faulty))
        yield faulty
