"""One run in a separate process: ``python -m perf.writing.worker CONTENDER WORKLOAD SCALE``.

The last line of output is one JSON object.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from perf import answers, tables
from perf.answers import Answer
from perf.checkpoints.workloads import CHECKPOINT_WORKLOADS
from perf.ingest.workloads import INGEST_WORKLOADS
from perf.rows.workloads import ROW_WORKLOADS
from perf.spark.workloads import SPARK_WORKLOADS
from perf.wal.workloads import WAL_WORKLOADS
from perf.worker import peak_memory_mb
from perf.writing.base import Case, Job, fresh_copy
from perf.writing.workloads import WRITE_WORKLOADS, WriteWorkload

_MODULES = {
    "deltalake": "peer",
    "columnar": "columnar",
    "json": "columnar",
    "plain": "plain",
    "polars": "peer",
    "sqlite": "peer",
    "bytes": "peer",
}


def load(contender: str, workload: WriteWorkload) -> Case:
    """Import a contender and return its case of `workload`."""
    module = _MODULES.get(contender.partition("_")[0], "ours")
    cases: Mapping[str, Mapping[str, Case]] = import_module(f"{workload.package}.{module}").CASES
    return cases[workload.name][contender]


def measure(contender: str, name: str, scale: float) -> dict[str, Any]:
    """Run one case once, read its result back, and check it.

    Returns:
        The figures of the run, base_mb and peak_mb (peak memory of this process after imports,
        and after the run), grown_mb (the growth of the peak since `prepare`), and the answer of all
        readers.

    Raises:
        WrongAnswerError: The written content is not the expected content.
    """
    every = (
        *WRITE_WORKLOADS,
        *ROW_WORKLOADS,
        *CHECKPOINT_WORKLOADS,
        *SPARK_WORKLOADS,
        *WAL_WORKLOADS,
        *INGEST_WORKLOADS,
    )
    workload = {w.name: w for w in every}[name]
    case = load(contender, workload)
    made = workload.tables[contender]
    table = tables.ensure(made, scale) if made is not None else None
    base = peak_memory_mb()
    with fresh_copy(table) as path:
        job = Job(str(path), workload.scaled(scale), dict(table.facts) if table else {})
        prepared = case.prepare(job)
        gc.collect()
        prepared_mb = peak_memory_mb()
        figures = case.run(prepared)
        peak = peak_memory_mb()
        del prepared
        return {
            **figures,
            "base_mb": base,
            "grown_mb": peak - prepared_mb,
            "peak_mb": peak,
            "answer": _checked(job, workload),
        }


def _checked(job: Job, workload: WriteWorkload) -> Answer:
    # Imported late: otherwise its readers would count as memory of the contender.
    given = import_module(workload.checker).given(job, workload.commits(job.size))
    answers.check(given)
    first: Answer = given[0][1]
    return first


def main() -> None:
    """Print the result of `measure`."""
    contender, workload, scale = sys.argv[1:]
    print(json.dumps(measure(contender, workload, float(scale))))


if __name__ == "__main__":
    main()
