"""Keeps the memory of a checkpoint within a limit: a budget, spilling to local disk, prefetch.

Pure functions, except `resident_bytes` and `release`.

A `Spill` is one unlinked file, so the operating system removes it even if the process is killed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from queue import Full, Queue
from typing import Self, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.display import size_text
from lakelog.errors import CheckpointWriteError, InvalidInputError
from lakelog.model import actions
from lakelog.storage.scratch import ScratchFile, ScratchRange
from lakelog.threads import can_start

LEAST_RESIDENT_BYTES = 160 << 20
"""Memory of Python, Polars and pyarrow with the code that they load, in bytes."""

LEAST_WORK_BYTES = 160 << 20
"""Lower bound of the working memory, in bytes: with less, batches are inefficiently small, or one
batch does not fit.
"""

_MIB = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Budget:
    """Limits of the parts of a bounded read, in bytes; `filter` is a power of two."""

    batch: int  # of a checkpoint
    chunk: int  # commits decoded at once
    tail: int  # decoded commits in memory
    flush: int  # rows buffered for disk
    partition: int  # uncompressed
    filter: int  # of paths
    hashes: int  # buffered
    whole: int  # files that are read completely

    @staticmethod
    def of(memory_limit: int, resident: int) -> Budget:
        """Divide what the limit leaves among the parts."""
        taken = max(resident, LEAST_RESIDENT_BYTES)
        floor = taken + LEAST_WORK_BYTES
        if memory_limit < floor:
            raise InvalidInputError(
                "the memory limit is below the minimum that Python, Polars and pyarrow need",
                expected=f"at least {-(-floor // _MIB):,} MiB",
                found=size_text(memory_limit),
                hint="raise the limit, or run it in a process that uses less memory",
            )
        # A quarter: the writer needs another quarter, and the allocators retain the rest.
        share = (memory_limit - taken) // 4
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
    """Resident memory in bytes, after the allocators released what they can; or an estimate."""
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
    """Return memory that Arrow's pool and the C library retain to the operating system."""
    pa.default_memory_pool().release_unused()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc to release memory, or None on other C libraries."""
    if sys.platform != "linux":
        return None
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


_RADIX_BITS = 6
_PARTITION_SEED = 0x9A27
_HASH_SEED = 0x0F17
_MOST_PARTITIONS = 1 << 12


def partition_of(paths: pl.Series, partitions: int) -> pl.Series:
    """Partition of each path, UInt64 from 0: all rows of a logical file have the same one."""
    return paths.hash(_PARTITION_SEED) % partitions


class Spill:
    """Narrow frames on disk by key, in order of appending; memory: twice `flush_bytes`."""

    def __init__(self, partitions: int, flush_bytes: int) -> None:
        self.partitions = min(partitions, _MOST_PARTITIONS)
        self._flush_bytes = flush_bytes
        self._file = ScratchFile(CheckpointWriteError)
        self._places: dict[int, list[ScratchRange]] = {}
        self._waiting: list[pl.DataFrame] = []
        self._waiting_bytes = 0

    def append(self, rows: pl.DataFrame) -> None:
        """Add rows with a ``path``."""
        if not rows.height:
            return
        self._waiting.append(rows)
        self._waiting_bytes += int(rows.estimated_size())
        if self._waiting_bytes >= self._flush_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if not self._waiting:
            return
        rows = stack(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self.partitions == 1:
            self._write(0, _as_arrow(rows))
            return
        partition = partition_of(rows["path"], self.partitions).to_numpy().astype(np.uint16)
        # A stable sort keeps the order of rows within a partition.
        dealt = _as_arrow(rows[np.argsort(partition, kind="stable")])
        start = 0
        for number, count in enumerate(np.bincount(partition, minlength=self.partitions).tolist()):
            if count:
                self._write(number, dealt.slice(start, count))
            start += count

    def _write(self, partition: int, rows: pa.Table) -> None:
        self._places.setdefault(partition, []).append(self._file.append_rows(rows))

    def frames(self, partition: int) -> Iterator[pl.DataFrame]:
        """The frames of a partition, in the order in which they were appended."""
        if self.partitions == 1 and not self._places:
            yield from self._waiting
            return
        self.flush()
        yield from map(self._file.read_rows, self._places.get(partition, ()))

    def read(self, partition: int) -> pl.DataFrame:
        """The rows of a partition as one narrow frame."""
        return stack(self.frames(partition))

    @property
    def size_bytes(self) -> int:
        """Size on disk, in bytes."""
        return self._file.size_bytes

    def close(self) -> None:
        """Close the file and free its disk space."""
        self._places, self._waiting = {}, []
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stack(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate narrow frames; differing types of statistics are widened."""
    found = list(frames)
    if not found:
        return actions.empty(("actionType", "path"))
    return pl.concat(found, how="diagonal_relaxed")


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


class PathMask:
    """A set of paths with false positives and no false negatives."""

    def __init__(self, size_bytes: int) -> None:
        self._bits = np.zeros(size_bytes, np.uint8)
        self._mask = np.uint64(size_bytes * 8 - 1)

    def _find(self, hashes: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        numbers = hashes.to_numpy() & self._mask
        bits = np.left_shift(np.uint8(1), (numbers & np.uint64(7)).astype(np.uint8))
        return (numbers >> np.uint64(3)).astype(np.int64), bits

    def add(self, hashes: pl.Series) -> None:
        """Add paths by their `hashes_of`."""
        at, bits = self._find(hashes)
        np.bitwise_or.at(self._bits, at, bits)

    def may_hold(self, hashes: pl.Series) -> pl.Series:
        """For the `hashes_of` each path, whether it may have been added; Boolean."""
        at, bits = self._find(hashes)
        return pl.Series((self._bits[at] & bits) != 0)


def hashes_of(paths: pl.Series) -> pl.Series:
    """The hash of each path, UInt64, for `PathMask` and `Repeats`."""
    return paths.hash(_HASH_SEED)


class Repeats:
    """Finds repeated hashes on disk. Memory: twice `held_bytes`, or 1/64 of the hashes."""

    def __init__(self, held_bytes: int | None = None) -> None:
        self._held_bytes = held_bytes
        self._held: list[pl.Series] = []
        self._count = 0
        self._file = ScratchFile(CheckpointWriteError)
        self._places: dict[int, list[ScratchRange]] = {}

    def add(self, hashes: pl.Series) -> None:
        """Add hashes."""
        self._held.append(hashes)
        self._count += len(hashes)
        if self._held_bytes is not None and self._count * 8 >= self._held_bytes:
            self._flush()

    def _flush(self) -> None:
        held = np.sort(pl.concat(self._held).to_numpy())
        self._held, self._count = [], 0
        # Sorted, so that hashes with the same first bits are contiguous.
        edges = np.arange(1, 1 << _RADIX_BITS, dtype=np.uint64) << np.uint64(64 - _RADIX_BITS)
        cuts = [0, *np.searchsorted(held, edges).tolist(), len(held)]
        start = self._file.append(held.tobytes(), "hashes").at
        for bucket, (first, last) in enumerate(pairwise(cuts)):
            if last > first:
                place = ScratchRange(start + first * 8, (last - first) * 8)
                self._places.setdefault(bucket, []).append(place)

    def repeated(self) -> pl.Series:
        """Every hash that was added more than once; unique, ascending, UInt64."""
        if not self._places:
            return _doubles(pl.concat(self._held).to_numpy() if self._held else np.zeros(0, "u8"))
        if self._held:
            self._flush()
        found = [_doubles(self._bucket(places)) for _, places in sorted(self._places.items())]
        return pl.concat(found)

    def _bucket(self, places: Sequence[ScratchRange]) -> np.ndarray:
        return np.concatenate([np.frombuffer(self._file.read(p), np.uint64) for p in places])

    def close(self) -> None:
        """Close the file and free its disk space."""
        self._held, self._places = [], {}
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _doubles(hashes: np.ndarray) -> pl.Series:
    ordered = np.sort(hashes.astype(np.uint64, copy=False))
    return pl.Series(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))


_T = TypeVar("_T")

_POLL_S = 0.05


class _End:
    """End of the iteration, with its error, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def prefetch(
    items: Iterable[_T], depth: int = 1, *, is_large: Callable[[_T], bool] | None = None
) -> Generator[_T, None, None]:
    """Iterate in another thread, at most `depth` items ahead; closing it stops the thread."""
    iterator = iter(items)
    if is_large is not None and (yield from _until_large(iterator, is_large)):
        return
    yield from _in_thread(iterator, depth)


def _until_large(
    iterator: Iterator[_T], is_large: Callable[[_T], bool]
) -> Generator[_T, None, bool]:
    """The items up to the first large one; True if there are no more."""
    try:
        for item in iterator:
            yield item
            if is_large(item):
                return False
    except GeneratorExit:
        _close(iterator)
        raise
    return True


def _close(iterator: Iterator[_T]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _in_thread(iterator: Iterator[_T], depth: int) -> Iterator[_T]:
    if not can_start():
        yield from iterator
        return
    waiting: Queue[_T | _End] = Queue(depth)
    stopped = threading.Event()

    def put(item: _T | _End) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for item in iterator:
                if not put(item):
                    return
            put(_End())
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            put(_End(error))
        finally:
            _close(iterator)

    thread = threading.Thread(target=run, name="lakelog-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()
