"""The workloads of rows, their contenders and targets."""

from __future__ import annotations

from collections.abc import Mapping

from perf.writing.workloads import Comparison, Limit, Ratio, Times, WriteWorkload

PACKAGE = "perf.rows"
CHECKER = "perf.rows.check"
MEMORY_LIMIT = 128 << 20
"""Memory limit of the merge in a process of 512 MB, which includes imports and the interpreter."""
_BOTH = ("lakelog", "deltalake")
_COPYING = "deltalake, which copies the other rows"


def _ratio(name: str, figure: str, promised: float | None, peer: str = "deltalake") -> Ratio:
    return Ratio(name, figure, ("lakelog",), (peer,), promised)


def _times(
    promised: float, *more: Comparison, peer: str = "deltalake", label: str = ""
) -> tuple[Comparison, ...]:
    name = label or peer
    return (
        _ratio(f"{name}, wall clock", "seconds", promised, peer),
        _ratio(f"{name}, CPU time", "cpu_seconds", None, peer),
        *more,
    )


def _workload(
    name: str,
    tables: Mapping[str, str | None],
    comparisons: tuple[Comparison, ...],
    size: int = 10_000_000,
) -> WriteWorkload:
    return WriteWorkload(name, tables, size, 4_000, comparisons, PACKAGE, CHECKER, one_commit=True)


_GROWN = _ratio("memory above that of the imports", "grown_mb", 2)


def _appended(most: float | None) -> tuple[Comparison, ...]:
    """`most` is the target of the time of Polars, which does not fsync."""
    return _times(1, Times("of write_parquet of Polars", "seconds", "lakelog", "polars", most))


ROW_WORKLOADS = (
    _workload(
        "rows_delete_vectors_10m",
        {"lakelog": "rows_100_files_vectors", "deltalake": "rows_100_files"},
        _times(5, _ratio("bytes written", "bytes", 10), label=_COPYING),
    ),
    _workload("rows_update_copy_10m", dict.fromkeys(_BOTH, "rows_100_files"), _times(1.5)),
    _workload(
        "rows_merge_100k_into_10m",
        dict.fromkeys(_BOTH, "rows_100_files"),
        _times(2, _GROWN),
    ),
    _workload(
        "rows_merge_vectors_100k_into_10m",
        {"lakelog": "rows_100_files_vectors", "deltalake": "rows_100_files"},
        _times(2, _GROWN, _ratio("bytes written", "bytes", None), label=_COPYING),
    ),
    _workload(
        "rows_merge_512mb_5gb",
        {"lakelog": "rows_5_gb"},
        (Limit("peak memory", "peak_mb", ("lakelog",), 512, "MB"),),
        size=90_000_000,
    ),
    _workload("rows_compact_1000_files", dict.fromkeys(_BOTH, "rows_1000_files"), _times(1.5)),
    _workload("rows_append_10m", dict.fromkeys((*_BOTH, "polars")), _appended(1.3)),
    _workload("rows_append_1m", dict.fromkeys((*_BOTH, "polars")), _appended(None), size=1_000_000),
    _workload(
        "rows_scan_10k_files",
        dict.fromkeys(("lakelog", "polars"), "rows_10000_files"),
        _times(1, peer="polars"),
    ),
    _workload("rows_changes_1000_commits", dict.fromkeys(_BOTH, "rows_1000_commits"), _times(3)),
)
"""The workloads in order of measurement. deltalake cannot write deletion vectors, and copies the
other rows of a file, so lakelog's vectors are compared with copies. ``polars`` is ``pl.scan_delta``
and ``write_parquet``.
"""
