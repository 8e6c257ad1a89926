"""deltalake, row by row."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from perf.ingest import ours
from perf.ingest.workloads import DELTALAKE_SHARE
from perf.writing.base import Case, Figures, Job


def _single(job: Job) -> Figures:
    ours.single_table(job)
    count = max(1, job.size // DELTALAKE_SHARE)
    ours.expect(job, count)
    cpu, start = time.process_time(), time.perf_counter()
    for number in range(count):
        row = {"id": number, **ours.ROW}
        write_deltalake(job.path, pa.table({k: [v] for k, v in row.items()}), mode="append")
    figures = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return ours.per_row(figures, count)


CASES: dict[str, dict[str, Any]] = {
    "ingest_single_rows_8_threads": {"deltalake": Case(lambda job: job, _single)},
}
