"""Interrupts a thread at the n-th place where Python checks for a signal.

These places are the start of a function, the return of a built-in one, and each wait for a lock.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import lakelog

PACKAGE = f"{Path(lakelog.__file__).parent}/"
"""The full path, because the checkout can be named lakelog too."""


class Interrupts:
    """Raises KeyboardInterrupt once, in the thread that enters it.

    Args:
        at: The number of the place, starting at 1.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.was_raised = False

    @property
    def has_acted(self) -> bool:
        return self.count >= self.at

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        sys.setprofile(None)
        self.was_raised = kind is KeyboardInterrupt
        return self.was_raised

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        waits = event == "c_call" and getattr(argument, "__name__", "") == "acquire"
        if (event in {"call", "c_return"} or waits) and _can_be_raised_from(frame):
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt


def _can_be_raised_from(frame: FrameType) -> bool:
    """Whether the code is lakelog's, and not where Python itself ignores exceptions."""
    path = frame.f_code.co_filename
    if not (path.startswith(PACKAGE) or path.endswith("contextlib.py")):
        return False
    if (
        frame.f_code.co_name == "<genexpr>"
    ):  # an abandoned generator, whose exceptions Python ignores
        return False
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name != "__del__":
        caller = caller.f_back
    return caller is None
