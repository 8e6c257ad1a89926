"""Measurement: contenders run in turns in new processes; medians; every table is checked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perf import answers, tables
from perf.measure import run_worker, warm
from perf.writing.workloads import Comparison, WriteWorkload

_MODULE = "perf.writing.worker"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The results of one workload for all its contenders.

    Attributes:
        workload: The measured workload.
        size: Number of commits or actions per run.
        runs: The runs of each contender, each with its figures and its answer.
    """

    workload: WriteWorkload
    size: int
    runs: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """The median of each figure, for each contender."""
        return {name: _medians(runs) for name, runs in self.runs.items()}

    @property
    def compared(self) -> list[tuple[Comparison, float, bool | None]]:
        """Each comparison, its ratio, and whether its target was met."""
        figures = self.figures
        reached = ((c, c.reached(figures)) for c in self.workload.comparisons)
        return [(c, ratio, c.kept(ratio)) for c, ratio in reached]

    @property
    def missed(self) -> list[str]:
        """The missed targets, as text."""
        return [comparison.name for comparison, _, kept in self.compared if kept is False]


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {
        key: float(statistics.median(run[key] for run in runs))
        for key, value in runs[0].items()
        if isinstance(value, int | float)
    }


def measure(
    workload: WriteWorkload,
    scale: float,
    runs: int,
    progress: Callable[[str], None] = lambda _: None,
) -> WriteResult:
    """Run every contender of `workload` `runs` times, in turns.

    Args:
        workload: What to measure.
        scale: Its size relative to the full one.
        runs: Number of turns; each starts one new process per contender. A workload can limit it.
        progress: Called with the name of each run.

    Raises:
        FailedRunError: A contender raised, was killed, timed out, or wrote unexpected content.
        WrongAnswerError: The tables of two contenders differ.
    """
    for name in sorted({name for name in workload.tables.values() if name is not None}):
        progress(f"{name}: table")
        warm(tables.ensure(name, scale).path)
    gathered: dict[str, list[dict[str, Any]]] = {name: [] for name in workload.contenders}
    turns = min(runs, workload.most_runs or runs)
    for turn in range(turns):
        for contender in workload.contenders:
            progress(f"{workload.name}: {contender}, run {turn + 1} of {turns}")
            gathered[contender].append(run_worker(_MODULE, contender, workload.name, scale))
    for table in set(workload.tables.values()):
        own = [name for name in workload.contenders if workload.tables[name] == table]
        answers.check((name, run["answer"]) for name in own for run in gathered[name])
    return WriteResult(workload, workload.scaled(scale), gathered)
