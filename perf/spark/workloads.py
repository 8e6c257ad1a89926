"""The workloads of lakelog on Spark, who runs them, and what is promised for each."""

from __future__ import annotations

from perf.writing.workloads import Ratio, Times, WriteWorkload

PACKAGE = "perf.spark"
CHECKER = "perf.spark.check"
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
)
"""In the order in which they are measured and shown."""
