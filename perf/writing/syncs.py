"""Counts the fsync calls of each contender, detects the filesystem, and measures the time of the
disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf import tables

_ROOT = Path(__file__).parents[2]
_CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"
_FEW, _MORE = 0.04, 0.14  # scales of commits_small_local: 12 and 42 commits


def per_commit(contender: str) -> float | None:
    """Calls of fsync and similar functions per commit of commits_small_local.

    Counted by strace as the difference between two runs of different length, so that opening the
    table and the first commit do not count. None where strace is not installed or not permitted.
    """
    strace = shutil.which("strace")
    if strace is None:
        return None
    from perf.writing.workloads import WRITE_WORKLOADS

    workload = next(w for w in WRITE_WORKLOADS if w.name == "commits_small_local")
    few, more = (_count(strace, contender, scale) for scale in (_FEW, _MORE))
    if few is None or more is None:
        return None
    return (more - few) / (workload.scaled(_MORE) - workload.scaled(_FEW))


def _count(strace: str, contender: str, scale: float) -> int | None:
    tables.ensure("empty", scale)
    with tempfile.NamedTemporaryFile("r") as trace:
        worker = [sys.executable, "-m", "perf.writing.worker", contender]
        worker += ["commits_small_local", repr(scale)]
        command = [strace, "-f", "-qq", "-e", f"trace={_CALLS}", "-e", "signal=none"]
        done = subprocess.run(
            [*command, "-o", trace.name, *worker], cwd=_ROOT, capture_output=True, check=False
        )
        if done.returncode:
            return None
        lines = trace.read().splitlines()
    # A call that another thread interrupts has two lines; the first line is counted.
    return sum(" resumed>" not in line and "(" in line for line in lines)


def settle(path: Path) -> None:
    """Sync the filesystem of a folder."""
    for place in (*path.rglob("*"), path):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def disk_waits() -> Iterator[Callable[[], float]]:
    """Returns the seconds that this process spent in ``os.fsync`` since the block began."""
    fsync, waits = os.fsync, [0.0]

    def timed(fd: Any) -> None:
        before = time.perf_counter()
        try:
            fsync(fd)
        finally:
            waits[0] += time.perf_counter() - before

    os.fsync = timed
    try:
        yield lambda: waits[0]
    finally:
        os.fsync = fsync


def filesystem(path: Path) -> str:
    """The type of the filesystem of `path`; ``unknown`` if it cannot be detected."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    target = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in mounts:
        _, place, type_ = line.split()[:3]
        under = target == place or target.startswith(place.rstrip("/") + "/")
        if under and len(place) >= len(best):
            best, kind = place, type_
    return kind
