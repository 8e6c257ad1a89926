"""Reads the rows of a run back with lakelog and with deltalake, or those that it returned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import lakelog
from perf.answers import Answer
from perf.rows import calls
from perf.rows.generate import ARROW, COLUMNS
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:  # noqa: ARG001 - as every checker
    """See `perf.writing.workloads.WriteWorkload`."""
    folder = Path(job.path)
    if (answer := folder / calls.ANSWER).exists():
        return [("returned rows", json.loads(answer.read_text("utf-8")))]
    if (parquet := folder / calls.PARQUET).exists():
        return [("polars", _answer(pl.read_parquet(parquet)))]
    if job.facts.get("rows", 0) > calls.MOST_READ_BACK:
        return [("expected rows", _merged(job)), ("lakelog, reading", _counted(job))]
    readers: tuple[Callable[[Job], pl.DataFrame], ...] = (_by_lakelog, _by_deltalake)
    return [(read.__name__, _answer(read(job))) for read in readers]


def _answer(frame: pl.DataFrame) -> Answer:
    return calls.of_rows(pl.DataFrame(frame.select(COLUMNS).to_arrow().cast(ARROW)))


def _by_lakelog(job: Job) -> pl.DataFrame:
    return lakelog.open(job.path).scan().collect()


def _by_deltalake(job: Job) -> pl.DataFrame:
    query = QueryBuilder().register("t", DeltaTable(job.path))
    return pl.DataFrame(pa.table(query.execute("select * from t")))


def _merged(job: Job) -> Answer:
    """The ids of a table after a merge."""
    count = job.facts["rows"]
    ids = calls.source(job)["id"].to_numpy()
    new = ids[ids >= count]
    return {
        "rows": count + len(new),
        "ids": count * (count - 1) // 2 + int(new.sum(dtype=np.int64)),
    }


def _counted(job: Job) -> Answer:
    found = lakelog.open(job.path).scan().select(pl.len(), ids=pl.col("id").sum()).collect()
    return {"rows": int(found["len"][0]), "ids": int(found["ids"][0])}
