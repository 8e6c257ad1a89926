"""Spark's part in compaction and listing, simulated in this process, and tables of small files.

Tasks run when their rows are requested, each on a pickled copy of its input.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import lakelog
from lakelog import Table
from lakelog.spark.pipeline.compact import compact
from lakelog.spark.pipeline.steps import Compact, StepReport

DAY_MS = 86_400_000
SCHEMA = {"id": pl.Int64, "name": pl.String, "day": pl.String}


@dataclass
class Frame:
    """The part of a dataframe's interface that is used here."""

    rows: pa.Table
    task: Callable[[Any], Any] | None = None
    during: Callable[[], None] = lambda: None

    def repartition(self, _number: int) -> Frame:
        return self

    def repartitionById(self, _number: int, _column: str) -> Frame:
        return self

    def drop(self, column: str) -> Frame:
        return replace(self, rows=self.rows.drop_columns([column]))

    def mapInArrow(self, task: Callable[[Any], Any], _schema: str) -> Frame:
        return replace(self, task=pickle.loads(pickle.dumps(task)))

    def toArrow(self) -> pa.Table:
        assert self.task is not None
        self.during()
        made = [
            batch
            for row in range(self.rows.num_rows)
            for batch in self.task(iter(self.rows.slice(row, 1).to_batches()))
        ]
        return pa.Table.from_batches(made)


@dataclass
class Side:
    """A session; `during` runs while its tasks run."""

    during: Callable[[], None] = lambda: None
    jobs: list[int] = field(default_factory=list)

    def createDataFrame(self, rows: pa.Table) -> Frame:
        self.jobs.append(rows.num_rows)
        return Frame(rows, during=self.during)


@dataclass
class Clock:
    """The current time, which tests set."""

    now_ms: int = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def small_files(
    where: Path,
    batches: list[pl.DataFrame],
    *,
    partition_by: tuple[str, ...] = ("day",),
    configuration: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> Table:
    """A table with one commit per batch."""
    made = lakelog.create(
        where, SCHEMA, partition_by, configuration=dict(configuration or {}), upkeep=False
    )
    table = Table(replace(made.log, clock=clock)) if clock else made
    for batch in batches:
        table.append(batch)
    return table


def some_rows(*numbers: int, day: str | None = "a") -> pl.DataFrame:
    return pl.DataFrame(
        {"id": numbers, "name": [f"n{n}" for n in numbers], "day": day}, schema=SCHEMA
    )


def run_compact(table: Table, side: Side | None = None, **asked: Any) -> StepReport:
    return compact(side or Side(), table, Compact(**asked), {})


def contents(table: Table) -> pl.DataFrame:
    return lakelog.open(table.path).snapshot().scan().collect().sort("id", "name", "day")


def live(table: Table) -> list[str]:
    return sorted(lakelog.open(table.path).snapshot().files().collect()["path"])


def on_disk(table: Table) -> set[str]:
    root = Path(table.path)
    return {p.relative_to(root).as_posix() for p in root.rglob("*.parquet")}
