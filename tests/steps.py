"""Tells a loop over rows from work on columns, without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

FEW, MANY = 3_000, 30_000


def steps(action: Callable[[], object]) -> int:
    """Lines of lakelog that an action runs in this thread; each turn of a loop counts again."""
    count = 0

    def in_ours(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return in_ours

    def look(frame: FrameType, _event: str, _argument: object) -> Any:
        return in_ours if "/lakelog/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def assert_columnar(action: Callable[[int], Callable[[], object]]) -> None:
    """Ten times the rows take no more steps.

    Args:
        action: Makes what is to be done of a number of rows.
    """
    few, many = action(FEW), action(MANY)
    few()  # what is imported, compiled or cached
    taken = steps(few)
    assert taken
    assert steps(many) < taken + FEW // 2
