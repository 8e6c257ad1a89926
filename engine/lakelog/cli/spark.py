"""The commands that run on Spark. Imports nothing heavy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from lakelog.cli import options
from lakelog.cli.options import Output, examples
from lakelog.cli.output import FINDINGS, GOOD, View, emit
from lakelog.cli.watch import Meter, progress
from lakelog.errors import InvalidInputError, LakelogError, UnavailableError

if TYPE_CHECKING:
    import polars as pl

_EXAMPLES = (
    "lakelog spark run pipeline.toml",
    "lakelog spark run pipeline.toml --only compact --only vacuum",
    "lakelog spark run pipeline.toml --output json",
)


@click.group(epilog=examples(*_EXAMPLES))
@options.debug
def spark() -> None:
    """Run the data pipeline of a table on Spark.

    Requires lakelog[spark]. It runs on the cluster that SPARK_REMOTE or the file names, otherwise
    on this machine.
    """


# Errors are reported in a sentence; Spark would also log them in detail. The file can override
# these settings.
_QUIET = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}

_COLUMNS = ("step", "status", "rows", "files", "bytes", "removed", "skips", "seconds", "version")


@options.command(*_EXAMPLES, group=spark)
@click.argument("file", metavar="FILE", shell_complete=options.paths)
@click.option(
    "--only",
    "steps",
    multiple=True,
    metavar="STEP",
    help="Only this step of the file: ingest, compact, checkpoint, cleanup or vacuum; repeatable.",
)
@options.output
def run(file: str, steps: tuple[str, ...], output: Output) -> int:
    """Run the steps of a TOML file, one after another.

    The steps are ingest, compact, checkpoint, cleanup and vacuum. Each continues where the last run
    ended, and changes nothing if there is nothing to do. The exit code is 1 if a file was skipped
    or a step is incomplete.
    """
    from lakelog.spark.pipeline import Pipeline
    from lakelog.spark.session import active_session, errors_unlogged

    pipeline = Pipeline.from_toml(file)
    pipeline.check(steps or None)
    found = active_session()
    spark = found
    try:
        spark = spark or pipeline.session(_QUIET)
        with errors_unlogged(), progress(pipeline.name, Meter()) as watch:
            report = pipeline.run(spark, steps or None, watch.show_step)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise _of_spark(error, file) from error
    finally:
        if found is None and spark is not None:
            spark.stop()
    emit(report.to_polars().lazy(), output, View("step", (*_COLUMNS, "notes"), (), _notes, _hidden))
    return GOOD if report.is_complete else FINDINGS


def _of_spark(error: Exception, file: str) -> LakelogError:
    """Convert an error of Spark: SQLSTATE 42 is invalid input; only its cause is kept."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    # The first line of Py4J names its own call; a Python traceback ends with the error.
    lines = [line for line in lines if line.startswith(": ")] or lines
    if any("Traceback (most recent" in line for line in lines):
        lines = [line for line in lines if re.match(r"[\w.]+: ", line)][-1:] or lines
    reason = (lines or [type(error).__name__])[0].removeprefix(": ")
    state = re.search(r"SQLSTATE: (\w+)", str(error))
    converted: LakelogError
    if state and state[1].startswith("42"):
        converted = InvalidInputError(
            f"Spark cannot run the pipeline: {reason}",
            path=file,
            hint="correct the file; --debug shows Spark's full output",
        )
    else:
        converted = UnavailableError(
            f"Spark failed: {reason}", path=file, hint="--debug shows Spark's full output"
        )
    for note in getattr(error, "__notes__", ()):
        converted.add_note(note)
    return converted


def _notes(rows: pl.DataFrame) -> list[str]:
    notes = rows.select("step", "notes").explode("notes").drop_nulls()
    return [f"{step}: {note}" for step, note in notes.iter_rows()]


def _hidden(_rows: pl.DataFrame) -> list[str]:
    return ["notes"]
