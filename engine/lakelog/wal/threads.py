"""Decodes segments in parallel threads; numpy and Arrow release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from lakelog.wal.segments import Segment

_WORTH_BYTES = 1 << 21  # less is done before a thread has begun
_PART_BYTES = 1 << 24
_SMALL_FRAME_BYTES = 1 << 13  # larger ones are looked at one by one, in Python

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The result of each item, in order; the first error is raised."""
    items = list(items)
    threads = min(len(items), os.cpu_count() or 1)
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="lakelog-wal") as pool:
        try:
            results: Iterator[R] = pool.map(work, items)
        except RuntimeError:  # no thread is to be had: Python ends, or has too many
            results = map(work, items)
        return list(results)


def of_segments(work: Callable[[Segment], R], segments: Sequence[Segment]) -> list[R]:
    """As `in_threads`, of segments, which may be too small for it."""
    if sum(each.data.size for each in segments) < _WORTH_BYTES:
        return [work(each) for each in segments]
    return in_threads(work, segments)


def parts_of(segment: Segment) -> list[Segment]:
    """A segment in parts with some of its frames each, so that no thread waits long for another."""
    offsets = segment.frames.offsets
    if not len(offsets):
        return []
    cuts = np.searchsorted(offsets, np.arange(offsets[0], segment.end, _PART_BYTES)[1:])
    limits = np.unique([0, *cuts, len(offsets)]).tolist()
    return [replace(segment, frames=segment.frames[low:high]) for low, high in pairwise(limits)]


def are_small(segments: Sequence[Segment]) -> bool:
    """Whether the frames are such as are looked at together, which is worth threads."""
    size = sum(each.end for each in segments)
    return size < _SMALL_FRAME_BYTES * sum(len(each.frames) for each in segments)
