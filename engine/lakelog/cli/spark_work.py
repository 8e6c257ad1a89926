"""Implementations of the commands that run on Spark."""

from __future__ import annotations

import re

import polars as pl

from lakelog.cli.options import Output
from lakelog.cli.output import View, check, emit
from lakelog.cli.reports import FINDINGS, GOOD
from lakelog.cli.watch import Meter, progress
from lakelog.errors import InvalidInputError, LakelogError, UnavailableError
from lakelog.spark.pipeline import Pipeline
from lakelog.spark.session import active_session, errors_unlogged

# Errors are reported in a sentence; Spark would also log them in detail. The file can override
# these settings.
_QUIET = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
_COLUMNS = ("step", "status", "rows", "files", "bytes", "removed", "skips", "seconds", "version")


def run(file: str, steps: tuple[str, ...], output: Output) -> int:
    """``lakelog spark run``; returns the exit code."""
    check(output)
    pipeline = Pipeline.from_toml(file)
    pipeline.chosen(steps)
    found = active_session()
    spark = found
    try:
        spark = spark or pipeline.session(_QUIET)
        with errors_unlogged(), progress(pipeline.name, Meter()) as watch:
            report = pipeline.run(spark, steps or None, watch.tell)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise of_spark(error, file) from error
    finally:
        if found is None and spark is not None:
            spark.stop()
    emit(report.to_polars().lazy(), output, View("step", (*_COLUMNS, "notes"), (), _notes, _hidden))
    return GOOD if report.is_complete else FINDINGS


def of_spark(error: Exception, file: str) -> LakelogError:
    """Convert an error of Spark to one of lakelog.

    SQLSTATE 42 (a column, path or format that does not exist) is invalid input. Other errors are
    failures of Spark. Only the line with the cause is reported; ``--debug`` shows the Java stack
    trace.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    # The first line of Py4J names its own call; a Python traceback ends with the error.
    lines = [line for line in lines if line.startswith(": ")] or lines
    if any("Traceback (most recent" in line for line in lines):
        lines = [line for line in lines if re.match(r"[\w.]+: ", line)][-1:] or lines
    reason = (lines or [type(error).__name__])[0].removeprefix(": ")
    state = re.search(r"SQLSTATE: (\w+)", str(error))
    told: LakelogError
    if state and state[1].startswith("42"):
        told = InvalidInputError(
            f"Spark cannot run the pipeline: {reason}",
            path=file,
            hint="correct the file; --debug shows Spark's full output",
        )
    else:
        told = UnavailableError(
            f"Spark failed: {reason}", path=file, hint="--debug shows Spark's full output"
        )
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def _notes(rows: pl.DataFrame) -> list[str]:
    told = rows.select("step", "notes").explode("notes").drop_nulls()
    return [f"{step}: {note}" for step, note in told.iter_rows()]


def _hidden(_rows: pl.DataFrame) -> list[str]:
    return ["notes"]
