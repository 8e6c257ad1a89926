"""The parameters of every contender for a table of rows: condition, values and source."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from perf import answers
from perf.answers import Answer
from perf.rows.generate import rows
from perf.writing.base import Figures, Job

DELETED = "id % 1000 = 7"
UPDATED = "id % 100 = 7"
PRICE = "price * 1.1e0"
MERGE_ROWS = 100_000
"""Number of rows of a merge's source, for ten million rows of the table; half of them are new."""
ANSWER, PARQUET = "answer.json", "rows.parquet"
MOST_READ_BACK = 20_000_000
"""Maximum number of rows that both readers read back completely; for a larger table, the ids are
summed.
"""


def source(job: Job) -> pa.Table:
    """The source of a merge into the table of a job."""
    count = job.facts["rows"]
    half = max(1, min(MERGE_ROWS // 2, count // 200))
    old = np.random.default_rng(5).choice(count, half, replace=False)
    ids = np.concatenate([old, np.arange(count, count + half)])
    return rows(0, 2 * half, seed=9).set_column(0, "id", pa.array(ids))


def selected(count: int) -> tuple[int, int]:
    """The least and the greatest id that a selective scan looks for."""
    return count // 2, count // 2 + 999


def timed(job: Job, call: Callable[[], Any]) -> Figures:
    """Time a call, and count the bytes of the new files. A call that returns rows reads them; their
    answer is stored for the check.
    """
    folder = Path(job.path)
    before = _sizes(folder)
    gc.collect()
    cpu, start = time.process_time(), time.perf_counter()
    found = call()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    if isinstance(found, pl.DataFrame):
        (folder / ANSWER).write_text(json.dumps(of_rows(found)), encoding="utf-8")
    new = sum(size for path, size in _sizes(folder).items() if path not in before)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": float(new)}


def _sizes(folder: Path) -> dict[Path, int]:
    """The data files, change data files and deletion vectors."""
    kinds = (".parquet", ".bin")
    found = (path for path in folder.rglob("*") if path.suffix in kinds)
    return {path: path.stat().st_size for path in found if "_delta_log" not in path.parts}


def of_rows(frame: pl.DataFrame) -> Answer:
    """The answer for rows; commit times have another unit in each contender."""
    return {
        "rows": frame.height,
        "ids": int(frame["id"].sum()),
        "hash": answers.hash_rows(frame.drop("_commit_timestamp", strict=False)),
    }
