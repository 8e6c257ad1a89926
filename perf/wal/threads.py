"""Several threads that append to one log concurrently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from perf.wal.records import THREADS
from perf.writing.base import Figures, spread_of

Pair = tuple[bytes, bytes]
Appender = Callable[[bytes, bytes], object]


def run(opener: Callable[[], Appender], rows: Sequence[Pair]) -> Figures:
    """Append every row, each durable before the thread takes its next one.

    Args:
        opener: Called by each thread before the measurement; returns a function that appends a row.
        rows: The rows; they are divided among the threads.

    Returns:
        seconds from the common start to the last append's end; commit_ms and p99_ms of all appends.

    Raises:
        RuntimeError: An append failed.
    """
    barrier = threading.Barrier(THREADS)
    started: list[float] = []

    def work(own: Sequence[Pair]) -> list[float]:
        try:
            append = opener()
        except BaseException:
            barrier.abort()
            raise
        barrier.wait()
        started.append(time.perf_counter())
        times = []
        for key, value in own:
            before = time.perf_counter()
            append(key, value)
            times.append(time.perf_counter() - before)
        return times

    with ThreadPoolExecutor(THREADS) as pool:
        lanes = [pool.submit(work, rows[k::THREADS]) for k in range(THREADS)]
        wait(lanes)
        done = time.perf_counter()
    failed = [error for lane in lanes if (error := lane.exception()) is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} of {THREADS} threads failed") from failed[0]
    taken = [seconds for lane in lanes for seconds in lane.result()]
    return {"seconds": done - min(started), **spread_of(taken)}
