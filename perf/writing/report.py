"""The report of the commit benchmarks: a table of figures, and a table of targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perf import tables
from perf.report import print_table
from perf.writing import syncs
from perf.writing.contended import WRITERS
from perf.writing.measure import WriteResult

_FIGURES = (
    *(
        "workload",
        "contender",
        "seconds",
        "per second",
        "ms per commit",
        "99th",
        "own ms",
        "first ms",
    ),
    *("cpu s", "decode s", "files s", "get s", "MB written", "peak MB", "grown MB"),
)
_PROMISES = ("workload", "compared", "reached", "promise", "kept")
_COUNTED = ("lakelog", "deltalake", "deltalake_synced")


def show(results: Sequence[WriteResult], where: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print both tables and the notes; aligned plain text without a terminal."""
    print_table(_FIGURES, [row for r in results for row in _figure_rows(r)], left=2)
    print()
    print_table(_PROMISES, [row for r in results for row in _promise_rows(r)], left=2, last=True)
    print()
    for line in [*_general(where), *notes]:
        print(line)


def as_json(results: Sequence[WriteResult], notes: Sequence[str]) -> dict[str, Any]:
    """All figures: medians, single runs, and ratios with their targets."""
    return {
        "notes": list(notes),
        "workloads": [
            {
                "name": r.workload.name,
                "size": r.size,
                "compared": [
                    {
                        "name": c.name,
                        "reached": reached,
                        "promised": c.promised,
                        "target": c.target,
                        "kept": kept,
                    }
                    for c, reached, kept in r.compared
                ],
                "missed": r.missed,
                "contenders": {
                    name: {"medians": r.figures[name], "runs": runs}
                    for name, runs in r.runs.items()
                },
            }
            for r in results
        ],
    }


def durability_notes(
    results: Sequence[WriteResult],
    count: Callable[[str], float | None] = syncs.per_commit,
) -> list[str]:
    """The filesystem, and the fsync calls of each contender of the small commits."""
    lines = [f"written to {syncs.filesystem(tables.cache_directory())}"]
    if any(r.workload.name == "commits_small_local" for r in results):
        counts = [(name, count(name)) for name in _COUNTED]
        if any(number is None for _, number in counts):
            lines.append("fsyncs per commit: not counted, strace is not available")
        else:
            counted = ", ".join(f"{name} {number:.2f}" for name, number in counts)
            lines.append(f"fsyncs per commit, counted by strace: {counted}")
    return lines


def _general(where: Mapping[str, Any]) -> Iterable[str]:
    yield f"scale {where['scale']:g}, medians of {where['runs']} interleaved runs"
    yield "every run: new process, new copy of the table; every table is read back and compared,"
    yield "a Delta log through lakelog and through deltalake, versions without gaps"
    yield "lakelog fsyncs file and folder before a commit is acknowledged; deltalake neither."
    yield "_synced: the benchmark fsyncs both after each commit of deltalake."
    yield "_unsynced: lakelog without fsync, only for the comparison."
    yield "_no_checkpoints: deltalake without the checkpoint that it writes every 100 commits,"
    yield "which saves reading its own commits again; the faster one is compared."
    yield "_from_arrow: includes creating AddAction objects from the table."
    yield "own ms: time of a commit without its fsyncs, which depend on the disk"
    yield f"commits_8_writers: {WRITERS} processes, timed from a common start"
    yield "wal_, keyed_: every log, database and store is read back, and compared with the expected"
    yield "records; plain: record by record, as the specifications' programs; sqlite: WAL mode,"
    yield "synchronous=FULL; bytes: the bytes of the log's segments, with one fsync"
    yield "decode s: the bytes of the commit to all columns of its actions; files s: from open to"
    yield "all columns of the table's files; get s: from open to the first value read"
    yield "rows_: CPU seconds of all threads; every table's rows read back by lakelog and by"
    yield "deltalake; MB written: new data files, change data and deletion vectors"
    yield "rows_*_vectors_: lakelog marks rows by deletion vectors; deltalake, which cannot write"
    yield "them, copies the other rows of each file of its own table"
    yield "peak MB: the whole process, including the actions to write; grown MB: growth since"
    yield "imports and preparation"


def _figure_rows(r: WriteResult) -> Iterable[list[str]]:
    for name, figures in r.figures.items():
        yield [
            f"{r.workload.name} ({r.size:,})",
            name,
            _number(figures["seconds"]),
            f"{r.size / figures['seconds']:,.0f}",
            _number(figures.get("commit_ms")),
            _number(figures.get("p99_ms")),
            _number(figures.get("own_ms")),
            _number(figures.get("first_ms")),
            _number(figures.get("cpu_seconds")),
            _number(figures.get("decode_s")),
            _number(figures.get("read_s")),
            _number(figures.get("first_s")),
            _number(figures["bytes"] / 1e6) if "bytes" in figures else "",
            f"{figures['peak_mb']:,.0f}",
            _number(figures.get("grown_mb")),
        ]


def _promise_rows(r: WriteResult) -> Iterable[list[str]]:
    for comparison, reached, kept in r.compared:
        verdict = {True: "yes", False: "no", None: ""}[kept]
        yield [
            r.workload.name,
            comparison.name,
            comparison.as_text(reached),
            comparison.target,
            verdict,
        ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
