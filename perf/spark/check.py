"""Reads the result of a run on Spark back, without Spark."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import lakelog
from perf.answers import Answer
from perf.spark.ours import PARTITIONS
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:  # noqa: ARG001 - as every checker
    """See `perf.writing.workloads.WriteWorkload`."""
    written = Path(job.path) / "written"
    if not written.is_dir():
        return [("the run itself", {"files": job.size})]  # it compared every row
    wanted: Answer = {
        "rows": job.size,
        "ids": job.size * (job.size - 1) // 2,
        "partitions": min(PARTITIONS, job.size),
    }
    as_parquet = written.with_name("written-parquet")
    if as_parquet.is_dir():
        rows = pl.scan_parquet(as_parquet / "**/*.parquet", hive_partitioning=True)
    else:
        rows = lakelog.open(written).snapshot().scan()
    found = rows.select(
        rows=pl.len(), ids=pl.col("id").sum(), partitions=pl.col("p").n_unique()
    ).collect()
    return [("expected rows", wanted), ("read back", found.row(0, named=True))]
