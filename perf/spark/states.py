"""Each contender's state of many files as a DataFrame, and its checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakelog.spark
from perf.answers import WrongAnswerError
from perf.spark import large_states, sessions
from perf.writing.base import Case, Figures, Job
from tests.spark.reference import delta_log

COMMITS = 1_000
_SUMS = (
    "count(*) files",
    "sum(size) bytes",
    "sum(length(path)) paths",
    "sum(length(stats)) statistics",
    "sum(modificationTime + cardinality(partitionValues))",
)
"""Sums over every column of a live file, which verify the result."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session, and a table."""

    spark: Any
    path: str
    facts: large_states.Facts


_COLUMNS = ("actionType", "path", "partitionValues", "size", "modificationTime", "stats")
"""Columns of the sums; with ``hash``, other columns are not sent."""

Live = Callable[[Prepared], Any]


def _table(commits: int, **session: str) -> Callable[[Job], Prepared]:
    def prepare(job: Job) -> Prepared:
        few = max(3, min(commits, job.size // 100))
        made, facts = large_states.ensure(job.size, few)
        own = Path(job.path) / "_delta_log"
        own.mkdir(parents=True, exist_ok=True)
        (Path(job.path) / large_states.FACTS).write_text(json.dumps(facts), encoding="utf-8")
        for file in (made / "_delta_log").iterdir():
            # Hard links: a run may add files, and replaces only the pointer.
            if file.name == "_last_checkpoint":
                (own / file.name).write_bytes(file.read_bytes())
            else:
                (own / file.name).hardlink_to(file)
        return Prepared(sessions.start(job.path, **session), job.path, facts)

    return prepare


def _state(live: Live, *, exact: bool = True) -> Callable[[Prepared], Figures]:
    """Read every column of every live file, twice: the first query of a session also loads and
    compiles code. The result of plain Spark is not a state, and is not checked.
    """

    def run(prepared: Prepared) -> Figures:
        return {"seconds": once(prepared), "again_s": once(prepared)}

    def once(prepared: Prepared) -> float:
        start = time.perf_counter()
        found = live(prepared).selectExpr(*_SUMS).first().asDict()
        seconds = time.perf_counter() - start
        wanted = {name: prepared.facts[name] for name in found if name in prepared.facts}
        if exact and {name: found[name] for name in wanted} != wanted:
            raise WrongAnswerError(f"the state: {found} in place of {wanted}")
        return seconds

    return run


def _replayed(strategy: str, columns: Sequence[str] | None = None) -> Live:
    def live(prepared: Prepared) -> Any:
        frame = lakelog.spark.replay(
            prepared.spark, prepared.path, strategy=strategy, columns=columns
        )
        return frame.where("actionType = 'add'")

    return live


def _parquet(prepared: Prepared) -> Any:
    parts = large_states.parts(Path(prepared.path))
    return prepared.spark.read.parquet(*parts).where("add is not null").select("add.*")


def _delta(prepared: Prepared) -> Any:
    from pyspark.sql import DataFrame

    snapshot = delta_log(prepared.spark, prepared.path).unsafeVolatileSnapshot()
    return DataFrame(snapshot.allFiles().toDF(), prepared.spark)


def _checkpoint(write: Callable[[Prepared], object]) -> Callable[[Prepared], Figures]:
    def run(prepared: Prepared) -> Figures:
        start = time.perf_counter()
        write(prepared)
        seconds = time.perf_counter() - start
        return {"seconds": seconds}

    return run


def _by_executors(*, verify: bool) -> Callable[[Prepared], object]:
    def write(prepared: Prepared) -> object:
        return lakelog.spark.checkpoint(
            prepared.spark, prepared.path, layout="multipart", verify=verify
        )

    return write


def _by_delta(prepared: Prepared) -> object:
    return delta_log(prepared.spark, prepared.path).checkpoint()


_checkpointed = _table(10, master=sessions.TWO_EXECUTORS)

STATE_CASES: Mapping[str, Mapping[str, Case]] = {
    "spark_state_5m_files_1000_commits": {
        "lakelog": Case(_table(COMMITS), _state(_replayed("auto"))),
        "lakelog_hash": Case(_table(COMMITS), _state(_replayed("hash", _COLUMNS))),
        "spark": Case(_table(COMMITS), _state(_parquet, exact=False)),
        "delta": Case(_table(COMMITS), _state(_delta)),
    },
    "spark_checkpoint_10m_files": {
        "lakelog": Case(_checkpointed, _checkpoint(_by_executors(verify=True))),
        "lakelog_unverified": Case(_checkpointed, _checkpoint(_by_executors(verify=False))),
        "delta": Case(_checkpointed, _checkpoint(_by_delta)),
    },
}
