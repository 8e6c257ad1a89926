"""Reads the result of a run back with lakelog and with deltalake.

Imported after the measurement, so that the process of a contender contains no code of another
contender while it is measured.
"""

from __future__ import annotations

import os
from itertools import pairwise

import polars as pl
from deltalake import DeltaTable

import lakelog
from perf import columns
from perf.answers import Answer
from perf.writing import contents
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:
    """See `perf.writing.workloads.WriteWorkload`."""
    version = {"version": job.facts["last_version"] + commits, "gaps": 0}
    wanted: Answer = {**version, **contents.expected(job.size, _held(job))}
    return [("expected files", wanted), *read_back(job.path)]


def _held(job: Job) -> pl.DataFrame | None:
    """The files that the table contained before the run (`perf.generate.checkpointed`)."""
    count = job.facts["files"]
    if not count:
        return None
    return pl.concat([columns.files(0, count - 10), columns.files(3_000_000, 10)])


def read_back(path: str) -> list[tuple[str, Answer]]:
    """The results of both readers on a Delta table, and facts of its log."""
    return [
        ("lakelog, reading", by_lakelog(path)),
        ("deltalake, reading", by_deltalake(path)),
        ("the log", _log(path)),
    ]


def by_lakelog(path: str) -> Answer:
    """The live files that lakelog finds."""
    snapshot = lakelog.open(path).snapshot()
    values = pl.col("partitionValues").map
    frame = (
        snapshot.files()
        .select(
            "path",
            "size",
            "modificationTime",
            "stats",
            date=values.get("date"),
            region=values.get("region"),
        )
        .collect()
    )
    return {"version": snapshot.version, **contents.of_files(frame)}


def by_deltalake(path: str) -> Answer:
    """The live files that deltalake finds."""
    table = DeltaTable(path)
    partition = pl.col("partition").struct
    frame = pl.DataFrame(table.get_add_actions()).select(
        "path",
        size="size_bytes",
        modificationTime="modification_time",
        date=partition.field("date").dt.to_string("%Y-%m-%d"),
        region=partition.field("region"),
    )
    return {"version": table.version(), **contents.of_files(frame)}


def _log(path: str) -> Answer:
    """The last version, if the versions from the first commit on are contiguous."""
    names = sorted(n for n in os.listdir(f"{path}/_delta_log") if n.endswith(".json"))
    versions = [int(name[:20]) for name in names]
    gaps = sum(b - a != 1 for a, b in pairwise(versions))
    return {"version": versions[-1], "gaps": gaps}
