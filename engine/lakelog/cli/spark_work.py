"""What the commands that run on Spark do, once their options are understood."""

from __future__ import annotations

import polars as pl

from lakelog.cli.options import Output
from lakelog.cli.output import View, check, emit
from lakelog.cli.reports import FINDINGS, GOOD
from lakelog.cli.watch import Meter, progress
from lakelog.spark.pipeline import Pipeline
from lakelog.spark.session import active_session

# What fails is told in a sentence; Spark would tell it too, at length. The file may say otherwise.
_QUIET = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
_COLUMNS = ("step", "status", "rows", "files", "bytes", "removed", "skips", "seconds", "version")


def run(file: str, steps: tuple[str, ...], output: Output) -> int:
    """``lakelog spark run``; gives the exit code."""
    check(output)
    pipeline = Pipeline.from_toml(file)
    pipeline.chosen(steps)
    found = active_session()
    spark = found or pipeline.session(_QUIET)
    try:
        with progress(pipeline.name, Meter()) as watch:
            report = pipeline.run(spark, steps or None, watch.tell)
    finally:
        if found is None:
            spark.stop()
    emit(report.to_polars().lazy(), output, View("step", (*_COLUMNS, "notes"), (), _notes, _hidden))
    return GOOD if report.is_complete else FINDINGS


def _notes(rows: pl.DataFrame) -> list[str]:
    told = rows.select("step", "notes").explode("notes").drop_nulls()
    return [f"{step}: {note}" for step, note in told.iter_rows()]


def _hidden(_rows: pl.DataFrame) -> list[str]:
    return ["notes"]
