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
"""Not any folder of that name: the checkout can be called lakelog too."""

FEW, MANY = 3_000, 30_000


def steps(action: Callable[[], object]) -> int:
    """Number of lines of lakelog that an action executes in this thread, repetitions included."""
    count = 0

    def in_ours(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return in_ours

    def look(frame: FrameType, _event: str, _argument: object) -> Any:
        return in_ours if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # finalizers of what earlier tests left are no steps of the action
    sys.settrace(look)
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
    few()  # what is imported, compiled or cached
    taken = steps(few)
    assert taken
    assert steps(many) < taken + FEW // 2
