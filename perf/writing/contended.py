"""Several processes that commit to one table concurrently."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from perf.writing.base import Figures, spread_of

WRITERS = 8
_PATIENCE_S = 600

Opener = Callable[[str, int, int], Iterator[Callable[[], None]]]
"""Opens a table and yields one commit after another. Arguments: the table's path, the number of the
first file, and the number of files. A module-level function, because it is sent to another process.
"""


@dataclass(frozen=True, slots=True)
class Writers:
    """`WRITERS` processes that commit `commits` files in total, each its own share."""

    opener: Opener
    path: str
    commits: int

    def shares(self) -> Iterator[tuple[int, int]]:
        """The first file and the number of files of each writer."""
        ends = [self.commits * k // WRITERS for k in range(WRITERS + 1)]
        return ((a, b - a) for a, b in pairwise(ends))


def run(writers: Writers) -> Figures:
    """Start the processes, let them open the table, and then start all commits at the same time.

    Returns:
        seconds from the start signal to the last commit's end; commit_ms and p99_ms of all
        commits; slowest_share, the time of the first writer to finish over that of the last.

    Raises:
        RuntimeError: A writer failed or did not finish.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WRITERS)
    results: Any = context.Queue()
    processes = [
        context.Process(target=_write, args=(writers, first, count, barrier, results))
        for first, count in writers.shares()
    ]
    for process in processes:
        process.start()
    try:
        done = [results.get(timeout=_PATIENCE_S) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    failed = [error for *_, error in done if error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {WRITERS} writers failed; the first: {failed[0]}")
    starts, ends, taken, _ = zip(*done, strict=True)
    begin = min(starts)
    return {
        "seconds": max(ends) - begin,
        **spread_of([one for own in taken for one in own]),
        "slowest_share": (min(ends) - begin) / (max(ends) - begin),
    }


def _write(writers: Writers, first: int, count: int, barrier: Any, results: Any) -> None:
    try:
        commits = writers.opener(writers.path, first, count)
        barrier.wait(_PATIENCE_S)
        # On Linux, and wherever this clock is system-wide, all processes share it.
        start, taken = time.monotonic(), list(_times(commits))
        results.put((start, time.monotonic(), taken, ""))
    except BaseException as error:
        barrier.abort()
        results.put((0.0, 0.0, [], f"{type(error).__name__}: {error}"))
        raise


def _times(commits: Iterable[Callable[[], None]]) -> Iterator[float]:
    for commit in commits:
        before = time.monotonic()
        commit()
        yield time.monotonic() - before
