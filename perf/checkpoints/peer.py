"""deltalake on the workloads of checkpoints."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from perf.cases import peer as reading
from perf.writing.base import Case, Figures, Job
from perf.writing.peer import append


def _given(job: Job) -> Job:
    return job


def _write(job: Job) -> Figures:
    start = time.perf_counter()
    table = DeltaTable(job.path)
    table.create_checkpoint()
    seconds = time.perf_counter() - start
    written = Path(job.path, "_delta_log", f"{table.version():020d}.checkpoint.parquet")
    return {"seconds": seconds, "bytes": float(written.stat().st_size)}


def _with_checkpoint(job: Job) -> Job:
    """A table with a checkpoint that deltalake wrote, and one commit above it."""
    DeltaTable(job.path).create_checkpoint()
    append(DeltaTable(job.path), 0)
    return job


def _again(job: Job) -> Figures:
    gc.collect()
    start = time.perf_counter()
    table = DeltaTable(job.path)
    table.create_checkpoint()
    seconds = time.perf_counter() - start
    append(table, 1)
    start = time.perf_counter()
    table.update_incremental()
    table.create_checkpoint()
    return {"seconds": seconds, "open_table_s": time.perf_counter() - start}


def _own_checkpoint(job: Job) -> Job:
    DeltaTable(job.path).create_checkpoint()
    return job


def _typed(job: Job) -> Figures:
    gc.collect()
    start = time.perf_counter()
    reading.CASES["stats_typed_1m"].run(Path(job.path))
    return {"seconds": time.perf_counter() - start}


CASES: dict[str, dict[str, Any]] = {
    "checkpoint_1m_files": {"deltalake": Case(_given, _write)},
    "checkpoint_after_one_commit_1m": {"deltalake": Case(_with_checkpoint, _again)},
    "stats_typed_from_own_checkpoint_1m": {"deltalake": Case(_own_checkpoint, _typed)},
}
