"""Definitions of the commands that run on Spark. Imports nothing heavy.

`lakelog.cli.spark_work` implements the commands.
"""

from __future__ import annotations

import click

from lakelog.cli import options
from lakelog.cli.options import as_output, examples

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


@spark.command(epilog=examples(*_EXAMPLES))
@click.argument("file", metavar="FILE")
@click.option(
    "--only",
    "steps",
    multiple=True,
    metavar="STEP",
    help="Only this step of the file: ingest, compact, checkpoint, cleanup or vacuum; repeatable.",
)
@options.output
@options.debug
def run(file: str, steps: tuple[str, ...], output: str | None, to: str | None) -> int:
    """Run the steps of a TOML file, one after another.

    The steps are ingest, compact, checkpoint, cleanup and vacuum. Each continues where the last run
    ended, and changes nothing if there is nothing to do. The exit code is 1 if a file was skipped
    or a step is incomplete.
    """
    from lakelog.cli import spark_work

    return spark_work.run(file, steps, as_output(output, to))
