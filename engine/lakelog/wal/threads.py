"""Segments side by side: most of what numpy and Arrow do with one leaves Python to the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakelog.wal.segments import Segment

_WORTH_BYTES = 1 << 21  # less is done before a thread has begun

T = TypeVar("T")


def in_threads(work: Callable[[Segment], T], segments: Sequence[Segment]) -> list[T]:
    """The result of each segment, in order; the first error is raised.

    Args:
        work: Pure, of one segment.
        segments: Any number.
    """
    threads = min(len(segments), os.cpu_count() or 1)
    if threads < 2 or sum(each.data.size for each in segments) < _WORTH_BYTES:
        return [work(each) for each in segments]
    with ThreadPoolExecutor(threads, thread_name_prefix="lakelog-wal") as pool:
        return list(pool.map(work, segments))
