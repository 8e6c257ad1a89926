"""Measurement: new processes, contenders in turns, medians, comparison of answers."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import answers, tables
from perf.workloads import Workload

_ROOT = Path(__file__).parent.parent
_PATIENCE_S = 900


class FailedRunError(Exception):
    """A contender did not finish a workload."""


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of one contender on one workload; times in seconds, memory in 1e6 bytes."""

    measured: list[dict[str, Any]]

    def median(self, key: str) -> float:
        """The median of one figure over the runs."""
        return float(statistics.median(run[key] for run in self.measured))

    @property
    def seconds(self) -> float:
        """Median wall clock."""
        return self.median("seconds")

    @property
    def peak_mb(self) -> float:
        """Median peak memory of the whole process."""
        return self.median("peak_mb")

    @property
    def result_mb(self) -> float | None:
        """The size of the result, if the case reports it."""
        size: float | None = self.measured[0]["result_mb"]
        return size


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one workload for all its contenders, and the targets."""

    workload: Workload
    facts: dict[str, int]
    runs: dict[str, Runs] = field(default_factory=dict)

    @property
    def faster(self) -> float | None:
        """The time of deltalake divided by that of lakelog."""
        return self._over("deltalake", "seconds", inverse=True)

    @property
    def memory(self) -> float | None:
        """The peak memory of lakelog divided by that of deltalake."""
        return self._over("deltalake", "peak_mb")

    @property
    def fastest_raw(self) -> str | None:
        """The faster of the raw decoders; the target refers to it."""
        raws = [name for name in self.runs if name.startswith("raw_")]
        return min(raws, key=lambda name: self.runs[name].seconds, default=None)

    @property
    def raw(self) -> float | None:
        """The time of lakelog divided by that of the fastest raw decode."""
        return self._over(self.fastest_raw, "seconds") if self.fastest_raw else None

    @property
    def rows_per_second(self) -> float:
        """Rows of the table that lakelog processes per second."""
        return self.facts[self.workload.rows] / self.runs["lakelog"].seconds

    @property
    def missed(self) -> list[str]:
        """The missed targets, as text; empty if all were met or there is none."""
        held = (
            ("speed", self.faster, self.workload.faster, 1),
            ("raw", self.raw, self.workload.raw, -1),
            ("memory", self.memory, self.workload.memory, -1),
        )
        return [
            name
            for name, reached, promised, sign in held
            if promised is not None and (reached is None or sign * reached < sign * promised)
        ]

    @property
    def promises(self) -> bool:
        """Whether issue 2 has a target for this workload."""
        w = self.workload
        return any(target is not None for target in (w.faster, w.raw, w.memory))

    def _over(self, other: str, key: str, *, inverse: bool = False) -> float | None:
        if other not in self.runs or "lakelog" not in self.runs:
            return None
        ours, theirs = self.runs["lakelog"].median(key), self.runs[other].median(key)
        return theirs / ours if inverse else ours / theirs


def measure(
    workload: Workload,
    scale: float,
    runs: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measure every contender of `workload` `runs` times, in turns, and compare their answers.

    Args:
        workload: What to measure.
        scale: The table's size relative to the full one.
        runs: Number of turns; each starts one new process per contender.
        progress: Called with the name of each run.

    Raises:
        FailedRunError: A contender raised, was killed, or timed out.
        WrongAnswerError: Answers differ between contenders, or from the generator's facts.
    """
    progress(f"{workload.table}: table")
    table = tables.ensure(workload.table, scale)
    warm(table.path)
    gathered: dict[str, list[dict[str, Any]]] = {name: [] for name in workload.contenders}
    for turn in range(runs):
        for contender in workload.contenders:
            progress(f"{workload.name}: {contender}, run {turn + 1} of {runs}")
            gathered[contender].append(run_worker("perf.worker", contender, workload.name, scale))
    given = [(name, run["answer"]) for name, done in gathered.items() for run in done]
    answers.check([("the generator", dict(table.facts)), *given])
    return Result(workload, table.facts, {name: Runs(done) for name, done in gathered.items()})


def run_worker(module: str, contender: str, workload: str, scale: float) -> dict[str, Any]:
    """Run `module` in a new process and return its measurement.

    Raises:
        FailedRunError: The process raised, was killed, or timed out.
    """
    command = [sys.executable, "-m", module, contender, workload, repr(scale)]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise FailedRunError(f"{contender} on {workload}: not done after {_PATIENCE_S} s") from late
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise FailedRunError(
            f"{contender} on {workload}: exit code {done.returncode}\n{done.stderr[-4000:]}"
        )
    measured: dict[str, Any] = json.loads(lines[-1])
    return measured


def warm(path: Path) -> None:
    """Load the log into the page cache, so that the first contender does not wait for the disk."""
    for file in (path / "_delta_log").iterdir():
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass
