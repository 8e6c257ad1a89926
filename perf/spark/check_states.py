"""Reads the table of a run back, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

import lakelog
from perf.answers import Answer
from perf.spark import large_states
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:  # noqa: ARG001 - as every checker
    """See `perf.writing.workloads.WriteWorkload`."""
    facts = json.loads((Path(job.path) / large_states.FACTS).read_text("utf-8"))
    snapshot = lakelog.open(job.path, upkeep=False).snapshot()
    files = snapshot.files().select(
        files=pl.len(), bytes=pl.col("size").sum(), paths=pl.col("path").str.len_bytes().sum()
    )
    found = {"version": snapshot.version, **files.collect().row(0, named=True)}
    return [("the table", {name: facts[name] for name in found}), ("expected state", found)]
