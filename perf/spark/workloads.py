"""The workloads of lakelog on Spark, their contenders and targets."""

from __future__ import annotations

from perf.writing.workloads import Ratio, Times, WriteWorkload

PACKAGE = "perf.spark"
CHECKER = "perf.spark.check"
STATE_CHECKER = "perf.spark.check_states"
_EVERYONE = ("lakelog", "spark", "delta")

SPARK_WORKLOADS = (
    WriteWorkload(
        "spark_rows_10k_small_files",
        dict.fromkeys(_EVERYONE),
        size=10_000,
        least=20,
        comparisons=(
            Ratio("read.parquet of the paths", "seconds", ("lakelog",), ("spark",), 3),
            Ratio("Delta on Spark", "seconds", ("lakelog",), ("delta",), 1.5),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "spark_write_10m_rows_100_partitions",
        dict.fromkeys(_EVERYONE),
        size=10_000_000,
        least=1_000,
        comparisons=(
            Times("of write.parquet", "seconds", "lakelog", "spark", 1.2),
            Ratio("Delta on Spark", "seconds", ("lakelog",), ("delta",)),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "spark_state_5m_files_1000_commits",
        dict.fromkeys(("lakelog", "lakelog_hash", "spark", "delta")),
        size=5_000_000,
        least=2_000,
        comparisons=(
            Times("of read.parquet, session's first", "seconds", "lakelog", "spark", 1.3),
            Times("of read.parquet, once more", "again_s", "lakelog", "spark", 1.3),
            Ratio("Delta on Spark's snapshot", "seconds", ("lakelog",), ("delta",), 3),
            Times("by hash partitions, of read.parquet", "seconds", "lakelog_hash", "spark"),
        ),
        package=PACKAGE,
        checker=STATE_CHECKER,
        most_runs=2,
    ),
    WriteWorkload(
        "spark_checkpoint_10m_files",
        dict.fromkeys(("lakelog", "lakelog_unverified", "delta")),
        size=10_000_000,
        least=2_000,
        comparisons=(
            Ratio("Delta on Spark's, verified", "seconds", ("lakelog",), ("delta",), 1),
            Ratio("not verified", "seconds", ("lakelog_unverified",), ("delta",)),
        ),
        package=PACKAGE,
        checker=STATE_CHECKER,
        most_runs=1,
    ),
)
"""The workloads in order of measurement."""
