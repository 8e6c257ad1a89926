"""The implementations of the workloads, all on Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakelog
from perf.answers import WrongAnswerError
from perf.spark import sessions, small_files
from perf.spark.states import STATE_CASES
from perf.writing.base import Case, Figures, Job

PARTITIONS = 100


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session, and the folder of the run."""

    spark: Any
    job: Job
    path: str


Read = Callable[[Prepared], Any]


def _small_files(job: Job) -> Prepared:
    table = small_files.ensure(job.size)
    return Prepared(sessions.start(job.path), job, str(table))


def _totals(read: Read) -> Callable[[Prepared], Figures]:
    """Read every column of every row; the sums verify the result."""

    def run(prepared: Prepared) -> Figures:
        start = time.perf_counter()
        rows = read(prepared).selectExpr(
            "count(*)", "sum(id)", "sum(length(name))", "sum(price)", "sum(quantity)"
        )
        found = tuple(rows.first())
        seconds = time.perf_counter() - start
        wanted = small_files.totals(prepared.job.size)
        if found != wanted:
            raise WrongAnswerError(f"rows: {found} in place of {wanted}")
        return {"seconds": seconds}

    return run


def _paths(prepared: Prepared) -> Any:
    return prepared.spark.read.parquet(*small_files.paths(Path(prepared.path)))


def _of_format(name: str) -> Read:
    return lambda prepared: prepared.spark.read.format(name).load(prepared.path)


def _empty(job: Job) -> Prepared:
    path = f"{job.path}/written"
    schema = {"id": "long", "p": "integer", "price": "double", "name": "string"}
    fields = ({"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in schema.items())
    struct = {"type": "struct", "fields": list(fields)}
    lakelog.create(path, struct, partition_by=["p"], upkeep=False)
    return Prepared(sessions.start(job.path), job, path)


def _write(save: Callable[[Any, str], None]) -> Callable[[Prepared], Figures]:
    def run(prepared: Prepared) -> Figures:
        rows = prepared.spark.range(prepared.job.size, numPartitions=sessions.CORES).selectExpr(
            "id",
            f"cast(id % {PARTITIONS} as int) as p",
            "id / 4 as price",
            "concat('name ', id % 1000) as name",
        )
        start = time.perf_counter()
        save(rows, prepared.path)
        seconds = time.perf_counter() - start
        return {"seconds": seconds}

    return run


def _as_parquet(rows: Any, path: str) -> None:
    rows.write.partitionBy("p").parquet(f"{path}-parquet")


def _as_lakelog(rows: Any, path: str) -> None:
    rows.write.format("lakelog").mode("append").save(path)


def _as_delta(rows: Any, path: str) -> None:
    rows.write.format("delta").mode("append").save(path)


CASES: Mapping[str, Mapping[str, Case]] = {
    "spark_rows_10k_small_files": {
        "lakelog": Case(_small_files, _totals(_of_format("lakelog"))),
        "spark": Case(_small_files, _totals(_paths)),
        "delta": Case(_small_files, _totals(_of_format("delta"))),
    },
    "spark_write_10m_rows_100_partitions": {
        "lakelog": Case(_empty, _write(_as_lakelog)),
        "spark": Case(_empty, _write(_as_parquet)),
        "delta": Case(_empty, _write(_as_delta)),
    },
    **STATE_CASES,
}
