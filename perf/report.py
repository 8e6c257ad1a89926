"""The report: a table of ratios, and all results as JSON."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from perf.measure import Result

_PACKAGES = ("lakelog", "deltalake", "polars", "pyarrow")
_COLUMNS = (
    "workload",
    "lakelog s",
    "deltalake s",
    "faster",
    "promise",
    "raw s",
    "x raw",
    "promise",
    "peak MB",
    "deltalake",
    "share",
    "promise",
    "base MB",
    "rows/s",
    "log MB",
    "reached",
)


def environment(scale: float, runs: int) -> dict[str, Any]:
    """The machine and the versions of the libraries."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in _PACKAGES},
        "scale": scale,
        "runs": runs,
    }


def as_json(results: Sequence[Result], where: dict[str, Any]) -> dict[str, Any]:
    """All figures: the medians and ratios, each single run, and the answers that agreed."""
    return {
        "environment": where,
        "workloads": [
            {
                "name": r.workload.name,
                "facts": r.facts,
                "faster": r.faster,
                "fastest_raw": r.fastest_raw,
                "raw": r.raw,
                "memory": r.memory,
                "promised": {
                    "faster": r.workload.faster,
                    "raw": r.workload.raw,
                    "memory": r.workload.memory,
                },
                "missed": r.missed,
                "rows_per_second": r.rows_per_second,
                "contenders": {
                    name: {
                        "median_seconds": runs.seconds,
                        "median_cpu_seconds": runs.median("cpu_seconds"),
                        "median_peak_mb": runs.peak_mb,
                        "runs": runs.measured,
                    }
                    for name, runs in r.runs.items()
                },
            }
            for r in results
        ],
    }


def show(results: Sequence[Result], where: dict[str, Any]) -> None:
    """Print the table and the environment; aligned plain text without a terminal."""
    print_table(_COLUMNS, [_row(r) for r in results], last=True)
    print()
    for line in _notes(results, where):
        print(line)


def _row(r: Result) -> list[str]:
    ours, peer = r.runs["lakelog"], r.runs.get("deltalake")
    raw = r.fastest_raw
    return [
        r.workload.name,
        _seconds(ours.seconds),
        _seconds(peer.seconds) if peer else "",
        _times(r.faster),
        _times(r.workload.faster),
        f"{_seconds(r.runs[raw].seconds)} {raw.removeprefix('raw_')}" if raw else "",
        _times(r.raw),
        f"<= {r.workload.raw:g}" if r.workload.raw else "",
        f"{ours.peak_mb:,.0f}",
        f"{peer.peak_mb:,.0f}" if peer else "",
        f"{r.memory:.2f}" if r.memory else "",
        f"<= {r.workload.memory:g}" if r.workload.memory else "",
        f"{ours.median('base_mb'):.0f}" + (f" / {peer.median('base_mb'):.0f}" if peer else ""),
        f"{r.rows_per_second:,.0f}",
        f"{r.facts['log_bytes'] / 1e6:,.0f}",
        ("no: " + ", ".join(r.missed) if r.missed else "yes") if r.promises else "",
    ]


def _notes(results: Sequence[Result], where: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines = [
        f"{where['cores']} cores, Python {where['python']}, {where['system']}, {versions}",
        f"{where['date']}, scale {where['scale']:g}, medians of {where['runs']} interleaved runs",
        "new processes, warm page cache; all answers agree",
        "time: from open to the answer, without interpreter start and imports",
        "peak MB: the whole process; base MB of it (lakelog / deltalake) before the work",
        "x raw: relative to the faster raw decode of the same bytes:",
    ]
    for r in results:
        raws = ", ".join(
            f"{name.removeprefix('raw_')} {_seconds(runs.seconds)} s {runs.peak_mb:,.0f} MB"
            for name, runs in r.runs.items()
            if name.startswith("raw_")
        )
        if raws:
            lines.append(f"  {r.workload.name}: {raws}")
    lines += [
        f"{r.workload.name}: the result itself is {size:,.0f} MB"
        for r in results
        if (size := r.runs["lakelog"].result_mb)
    ]
    return lines


def print_table(
    header: Sequence[str], rows: list[list[str]], *, left: int = 1, last: bool = False
) -> None:
    """Print a table: with rich on a terminal, as aligned plain text elsewhere.

    Args:
        header: Names of the columns.
        rows: One text per column.
        left: Number of leading columns with text; the others have numbers.
        last: Whether the last column is ``yes…`` or ``no…``, which sets the colour of the row.
    """
    if not (sys.stdout.isatty() and _print_rich(header, rows, left, last=last)):
        _print_plain(header, rows, left)


def _print_rich(header: Sequence[str], rows: list[list[str]], left: int, *, last: bool) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(box=None, header_style="bold")
    for k, name in enumerate(header):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold")
    for row in rows:
        colour = {"y": "green", "n": "red"}.get(row[-1][:1], "") if last else ""
        table.add_row(*row, style=colour)
    Console().print(table)
    return True


def _print_plain(header: Sequence[str], rows: list[list[str]], left: int) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            c.ljust(w) if k < left else c.rjust(w)
            for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def _times(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}x" if value < 20 else f"{value:,.0f}x"


def _version(package: str) -> str:
    if package == "lakelog":
        import lakelog

        return lakelog.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
