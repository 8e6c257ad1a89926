"""What each contender makes durable, and on which filesystem: counted, not believed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perf import tables

_ROOT = Path(__file__).parents[2]
_CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"
_FEW, _MORE = 0.04, 0.14  # scales of commits_small_local: 12 and 42 commits


def per_commit(contender: str) -> float | None:
    """Calls of fsync and its kin that one more commit of commits_small_local makes.

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
    # A call that another thread interrupts is on two lines; it counts where it begins.
    return sum(" resumed>" not in line and "(" in line for line in lines)


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`; ``unknown`` where that cannot be told."""
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
