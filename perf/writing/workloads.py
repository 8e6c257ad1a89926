"""The workloads of writing, their contenders and targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


class Comparison(ABC):
    """A value computed from the figures of some contenders, and its target.

    Attributes:
        name: Description of the comparison.
        figure: The figure.
        promised: Maximum or minimum target; None without a target.
        is_at_least: Whether the target is a minimum.
    """

    __slots__ = ()

    name: str
    figure: str
    promised: float | None
    is_at_least: ClassVar[bool] = False

    @abstractmethod
    def reached(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The value, computed from the figures of each contender."""

    @property
    def _unit(self) -> str:
        return "x"

    def kept(self, reached: float) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.promised is None:
            return None
        return reached >= self.promised if self.is_at_least else reached <= self.promised

    @property
    def target(self) -> str:
        """The target as text."""
        if self.promised is None:
            return ""
        return f"{'>=' if self.is_at_least else '<='} {self.promised:g}{self._unit}"

    def as_text(self, reached: float) -> str:
        """The value as text."""
        return f"{reached:,.2f}{self._unit}"


@dataclass(frozen=True, slots=True)
class Ratio(Comparison):
    """The ratio of a figure of other contenders to that of lakelog.

    Attributes:
        name: Description of the comparison.
        figure: The compared figure, of which less is better.
        ours: Contenders of lakelog; the slowest is compared.
        theirs: Other contenders; the fastest is compared.
        promised: Minimum ratio of theirs to ours; None without a target.
    """

    name: str
    figure: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    promised: float | None = None

    is_at_least: ClassVar[bool] = True

    def reached(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The ratio, given the figures of each contender."""
        ours = max(figures[name][self.figure] for name in self.ours)
        return _ratio(min(figures[name][self.figure] for name in self.theirs), ours)


def _ratio(figure: float, other: float) -> float:
    """A figure at a small scale can be 0, such as memory that did not grow."""
    return figure / other if other else math.inf if figure else 1.0


@dataclass(frozen=True, slots=True)
class Spread(Comparison):
    """The ratio of the largest of some figures to the smallest.

    Attributes:
        name: Description of the comparison.
        figure: The figure.
        among: Contenders.
        promised: Maximum; None without a target.
    """

    name: str
    figure: str
    among: tuple[str, ...]
    promised: float | None = None

    def reached(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The ratio, given the figures of each contender."""
        values = [figures[name][self.figure] for name in self.among]
        return _ratio(max(values), min(values))


@dataclass(frozen=True, slots=True)
class Limit(Comparison):
    """The maximum of a figure of lakelog.

    Attributes:
        name: Description of the measurement.
        figure: The figure.
        among: Contenders; the slowest is compared.
        promised: Maximum; None without a target.
        unit: Unit of the figure.
    """

    name: str
    figure: str
    among: tuple[str, ...]
    promised: float | None
    unit: str

    def reached(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The maximum, given the figures of each contender."""
        return max(figures[name][self.figure] for name in self.among)

    @property
    def _unit(self) -> str:
        return f" {self.unit}"


@dataclass(frozen=True, slots=True)
class Times(Comparison):
    """The ratio of a figure of lakelog to that of another contender.

    Attributes:
        name: Description of the comparison.
        figure: The compared figure.
        ours: Contender of lakelog.
        theirs: The other contender.
        promised: Maximum; None without a target.
    """

    name: str
    figure: str
    ours: str
    theirs: str
    promised: float | None = None

    def reached(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """The ratio, given the figures of each contender."""
        return _ratio(figures[self.ours][self.figure], figures[self.theirs][self.figure])


@dataclass(frozen=True, slots=True)
class WriteWorkload:
    """One workload to measure.

    Attributes:
        name: Description of the shape.
        tables: The table that each contender writes to (a key of `perf.generate.TABLES`); None:
            each contender creates its own.
        size: Number of commits, or of actions of a single commit, at full scale.
        least: The same at the smallest scale.
        comparisons: Comparisons with their targets.
        package: Package of its contenders.
        checker: Module whose ``given(job, commits)`` returns the result of a run as read back, and
            the expected one.
        one_commit: Whether a run is a single commit of `size` actions.
        most_runs: Maximum number of turns, if a run takes minutes.
    """

    name: str
    tables: Mapping[str, str | None]
    size: int
    least: int
    comparisons: tuple[Comparison, ...]
    package: str = "perf.writing"
    checker: str = "perf.writing.check"
    one_commit: bool = False
    most_runs: int | None = None

    def commits(self, size: int) -> int:
        """The number of commits of a run with a size."""
        return 1 if self.one_commit else size

    @property
    def contenders(self) -> tuple[str, ...]:
        """All contenders, in the order of their turns."""
        return tuple(self.tables)

    def scaled(self, scale: float) -> int:
        """The size at a scale."""
        return max(self.least, round(self.size * scale))


def _all_on(table: str | None, *contenders: str) -> dict[str, str | None]:
    return dict.fromkeys(contenders, table)


_SIZES = ("1k", "100k", "1m")
_OURS = tuple(f"lakelog_{size}" for size in _SIZES)
_PEERS = tuple(f"deltalake_{size}" for size in _SIZES)
_FAST_PEERS = ("deltalake", "deltalake_no_checkpoints")
_SYNCED_PEERS = ("deltalake_synced", "deltalake_synced_no_checkpoints")

WRITE_WORKLOADS = (
    WriteWorkload(
        "commits_small_local",
        _all_on("empty", "lakelog", "lakelog_unsynced", *_FAST_PEERS, *_SYNCED_PEERS),
        size=300,
        least=12,
        comparisons=(
            Ratio("both fsync", "seconds", ("lakelog",), _SYNCED_PEERS, promised=5),
            Ratio(
                "both fsync, no checkpoints",
                "seconds",
                ("lakelog",),
                ("deltalake_synced_no_checkpoints",),
            ),
            Ratio("neither fsyncs", "seconds", ("lakelog_unsynced",), _FAST_PEERS),
            Ratio("as they are", "seconds", ("lakelog",), _FAST_PEERS),
        ),
    ),
    WriteWorkload(
        "commit_100k_adds",
        _all_on("empty", "lakelog", "deltalake", "deltalake_from_arrow"),
        size=100_000,
        least=100,
        comparisons=(
            Ratio("objects ready for the peer", "seconds", ("lakelog",), ("deltalake",), 3),
            Ratio("both from Arrow", "seconds", ("lakelog",), ("deltalake_from_arrow",)),
        ),
        one_commit=True,
    ),
    WriteWorkload(
        "commits_8_writers",
        _all_on("empty", "lakelog", *_FAST_PEERS),
        size=400,
        least=16,
        comparisons=(Ratio("commits per second", "seconds", ("lakelog",), _FAST_PEERS, 2),),
    ),
    WriteWorkload(
        "commit_cost_by_table_size",
        {
            f"{contender}_{size}": f"checkpoint_{size}_files"
            for contender in ("lakelog", "deltalake")
            for size in _SIZES
        },
        size=21,
        least=3,
        comparisons=(
            Spread("a commit without its fsyncs, 1k to 1m files", "own_ms", _OURS, 1.5),
            Spread("a commit, 1k to 1m files", "commit_ms", _OURS),
            Spread("open and first commit", "first_ms", _OURS),
            Spread("a commit, deltalake", "commit_ms", _PEERS),
            Spread("open and first commit, deltalake", "first_ms", _PEERS),
        ),
    ),
    WriteWorkload(
        "columnar_commit_1m_adds",
        _all_on(None, "columnar", "json"),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Ratio("bytes, as JSON", "bytes", ("columnar",), ("json",), 5),
            Ratio("reading the commit back, as JSON", "decode_s", ("columnar",), ("json",), 5),
            Ratio("open and all files, as JSON", "read_s", ("columnar",), ("json",)),
            Ratio("committing, as JSON", "seconds", ("columnar",), ("json",)),
        ),
        checker="perf.writing.columnar",
        one_commit=True,
    ),
)
"""The workloads in order of measurement. deltalake is measured with its own checkpoints (every 100
commits, which save reading its commits again) and without; the faster one is compared.
"""
