"""Reads the rows of a run back: each id, counted from 0, occurs once."""

from __future__ import annotations

from pathlib import Path

import orjson
import polars as pl

import lakelog
from perf.answers import Answer
from perf.ingest import ours
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:  # noqa: ARG001 - as every checker
    """See `perf.writing.workloads.WriteWorkload`. The answer does not depend on the number of rows,
    which differs between contenders.
    """
    folder = Path(job.path)
    count = int((folder / ours.COUNT).read_text("ascii"))
    if (folder / ours.LOG).exists():
        with lakelog.WriteAheadLog(folder / ours.LOG, read_only=True) as log:
            ids = pl.Series([orjson.loads(record.value or b"")["id"] for record in log.replay()])
    else:
        ids = lakelog.open(job.path).to_polars(columns=["id"])["id"]
    found: Answer = {
        "missing": count - int(ids.is_in(range(count)).sum()),
        "twice": ids.len() - ids.n_unique(),
    }
    return [("expected", {"missing": 0, "twice": 0}), ("found", found)]
