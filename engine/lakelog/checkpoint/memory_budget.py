"""The memory budget of a checkpoint, and the share of each consumer.

Pure, but for `resident_bytes` and `release`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from lakelog.errors import InvalidInputError

LEAST_RESIDENT_BYTES = 160 << 20
"""What Python, Polars and pyarrow take with the code that they come to need."""

LEAST_WORK_BYTES = 160 << 20
"""Below this, batches would be too small to be worth their cost, or a single one too large."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Budget:
    """What the parts of a bounded read may hold at a time, in bytes.

    Attributes:
        batch: Columns of one batch of a checkpoint.
        chunk: Text of the commits that are decoded at once.
        tail: Text of the commits above the checkpoint that may stay in memory, decoded.
        flush: Decoded rows that wait to be written to disk.
        partition: Rows of one partition, as they are on disk before compression.
        filter: The bits that say which files later commits may speak of; a power of two.
        hashes: Hashes of paths that wait to be written to disk.
        whole: Text of a file that can only be read whole.
    """

    batch: int
    chunk: int
    tail: int
    flush: int
    partition: int
    filter: int
    hashes: int
    whole: int

    @staticmethod
    def of(memory_limit: int, resident: int) -> Budget:
        """Share out what a limit leaves."""
        taken = max(resident, LEAST_RESIDENT_BYTES)
        floor = taken + LEAST_WORK_BYTES
        if memory_limit < floor:
            raise InvalidInputError(
                "the memory limit is below the minimum that Python, Polars and pyarrow need",
                expected=f"memory_limit >= {floor}",
                found=memory_limit,
                hint="raise the limit, or run it in a process that uses less memory",
            )
        # A third: the writer takes another, and the allocators keep the last for themselves.
        share = (memory_limit - taken) // 3
        return Budget(
            batch=share // 16,
            chunk=min(share // 32, 8 << 20),
            tail=share // 8,
            flush=share // 10,
            partition=share // 14,
            filter=1 << (share // 8).bit_length() - 1,
            hashes=share // 8,
            whole=share // 6,
        )


def resident_bytes() -> int:
    """Memory that the process takes now, after the allocators have given back what they can; an
    estimate where the system does not say.
    """
    release()
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return _peak_bytes() or LEAST_RESIDENT_BYTES


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def release() -> None:
    """Give memory that Arrow's pool and the C library keep for later back to the system."""
    pa.default_memory_pool().release_unused()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The way of glibc to give memory back; other C libraries have none, or need none."""
    if sys.platform != "linux":
        return None
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim
