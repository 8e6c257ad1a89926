"""Distinguishes a loop over rows from work on columns, without a clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import lakelog

PACKAGE = f"{Path(lakelog.__file__).parent}/"
"""The full path, because the checkout can be named lakelog too."""

FEW, MANY = 3_000, 30_000


def steps(action: Callable[[], object]) -> int:
    """Number of lines of lakelog that an action executes in this thread, repetitions included."""
    count = 0

    def in_ours(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return in_ours

    def trace_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return in_ours if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # finalizers of objects of earlier tests are not counted
    sys.settrace(trace_call)
    try:
        action()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def assert_columnar(action: Callable[[int], Callable[[], object]]) -> None:
    """Assert that ten times the rows need no more steps.

    Args:
        action: Given a number of rows, returns the action to measure.
    """
    few, many = action(FEW), action(MANY)
    few()  # imports, compiles and caches
    taken = steps(few)
    assert taken
    assert steps(many) < taken + FEW // 2
