"""The type of a writing case, and shared helpers."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf import tables
from perf.writing import syncs

Figures = dict[str, float]
"""Results of a run, always with ``seconds``: the wall clock of all its commits, each as durable as
the contender makes it.
"""

FIRST_FILE = 5_000_000
"""Number of the first file that a run adds: above those of every table."""


@dataclass(frozen=True, slots=True)
class Job:
    """The task of a run.

    Attributes:
        path: The folder of the run's table.
        size: Number of commits, or of actions of a single commit.
        facts: The content of the table (`perf.generate.Facts`); empty without a table.
    """

    path: str
    size: int
    facts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """The implementation of one workload by one contender.

    Attributes:
        prepare: Runs before the measurement; returns the argument of `run`.
        run: The measured function.
    """

    prepare: Callable[[Job], Any]
    run: Callable[[Any], Figures]


@contextmanager
def fresh_copy(table: tables.Table | None) -> Iterator[Path]:
    """A folder with a copy of `table`, on the disk of the benchmark's tables; deleted afterwards.

    Checkpoints are hard links; files that a writer may replace are copied. Pending writes of the
    copy and of the previous run are synced: otherwise the first fsync of the run waits for them.
    """
    where = tables.cache_directory()
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where, prefix="write-") as folder:
        path = Path(folder) / "table"
        path.mkdir()
        if table is not None:
            shutil.copytree(table.path, path, dirs_exist_ok=True, copy_function=_copy)
        syncs.settle(path)
        yield path


def _copy(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def timed(
    commits: Iterable[Callable[[], object]], waited_s: Callable[[], float] | None = None
) -> Figures:
    """Commit one after another.

    Args:
        commits: The commits.
        waited_s: Returns the seconds spent waiting for the disk so far (`syncs.disk_waits`).

    Returns:
        seconds; commit_ms and p99_ms, the median and the 99th percentile of one commit; with
        `waited_s`, own_ms, the median time of a commit without these waits.
    """
    taken, own = [], []
    start = before = time.perf_counter()
    waited = waited_s() if waited_s is not None else 0.0
    for commit in commits:
        commit()
        now = time.perf_counter()
        taken.append(now - before)
        if waited_s is not None:
            own.append(taken[-1] - (waited_s() - waited))
            waited = waited_s()
        before = now
    figures = {"seconds": before - start, **spread_of(taken)}
    return figures | ({"own_ms": statistics.median(own) * 1e3} if own else {})


def spread_of(taken: list[float]) -> Figures:
    """commit_ms and p99_ms of a list of commit durations in seconds."""
    ordered = sorted(taken)
    return {
        "commit_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3,
    }
