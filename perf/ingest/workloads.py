"""The workloads of ingestion, their contenders and targets."""

from __future__ import annotations

from perf.writing.workloads import Limit, Ratio, Times, WriteWorkload

PACKAGE = "perf.ingest"
CHECKER = "perf.ingest.check"
THREADS = 8
BATCH_ROWS = 1_000
LAG_SECONDS = 0.5
"""``max_seconds`` of the workload that measures the lag."""
DELTALAKE_SHARE = 500
"""deltalake writes one in this many of the single rows; the time per row is compared."""

INGEST_WORKLOADS = (
    WriteWorkload(
        "ingest_single_rows_8_threads",
        dict.fromkeys(("lakelog", "lakelog_log", "deltalake")),
        size=100_000,
        least=800,
        comparisons=(
            Ratio(
                "write_deltalake row by row, per row", "row_us", ("lakelog",), ("deltalake",), 100
            ),
            Times("of the bare write-ahead log", "row_us", "lakelog", "lakelog_log", 1.5),
            Times("of its CPU time", "row_cpu_us", "lakelog", "lakelog_log"),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "ingest_batches_of_1000_10m_rows",
        dict.fromkeys(("lakelog", "lakelog_tenth", "lakelog_append")),
        size=10_000_000,
        least=16_000,
        comparisons=(
            Times("of append in one call", "seconds", "lakelog", "lakelog_append", 1.5),
            Times("of its CPU time", "cpu_seconds", "lakelog", "lakelog_append"),
            Times("memory, of a tenth of the rows", "grown_mb", "lakelog", "lakelog_tenth", 1.5),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "ingest_lag",
        {"lakelog": None},
        size=1_000,
        least=100,
        comparisons=(
            Limit(
                "lag beyond max_seconds and the longest flush", "over_ms", ("lakelog",), 100, "ms"
            ),
            Limit("longest flush", "flush_ms", ("lakelog",), None, "ms"),
            Limit(
                "lag from write to a commit that readers see", "lag_ms", ("lakelog",), None, "ms"
            ),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
)
"""In the order in which they are measured and shown.

``lakelog_log`` appends the same bytes to a `WriteAheadLog`. The time of ``lakelog`` includes the
last flush, except in the first workload, which ends when all rows are durable.
"""
