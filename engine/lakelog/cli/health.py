"""The commands that examine a table as a whole. Imports nothing heavy."""

from __future__ import annotations

import click

from lakelog.cli import options
from lakelog.cli.options import FAILURE_CODE, Output, Target
from lakelog.cli.output import FINDINGS, GOOD, NOT_EXAMINED, View, emit, write_facts, write_report
from lakelog.cli.watch import open_with_progress

_files = click.option(
    "--files",
    is_flag=True,
    help="Also list the data: find missing and damaged files, and count those that vacuum deletes.",
)


@options.command(
    "lakelog doctor orders",
    "lakelog doctor orders --files",
    "lakelog doctor clone --files --allow-external orders",
    "lakelog doctor s3://bucket/orders --output json",
)
@options.target
@_files
@options.external
@options.output
def doctor(target: Target, files: bool, output: Output) -> int:
    """Report what needs doing, and the command that does it.

    The exit code is 0 if nothing needs doing, 1 if there is an error or a warning (a note needs
    nothing), 2 for invalid usage, and 3 if the table was not examined: it does not exist, its
    store cannot be reached, or its log cannot be read, which is shown as a finding. Changes
    nothing. Repair and verify check more: every checkpoint, and the existence of the data files.
    Row counts of data files are compared with the log only when the files are read.
    """
    click.get_current_context().meta[FAILURE_CODE] = NOT_EXAMINED
    with open_with_progress(target, "examining") as (table, _):
        report = table.doctor(files=files)
    if output.format == "table":
        write_facts(report.facts, output)
    else:
        emit(report.to_polars().lazy(), output, View("finding", ()))
    if not report.is_examined:
        return NOT_EXAMINED
    return FINDINGS if report.problems else GOOD


@options.command(
    "lakelog report orders --out report.html",
    "lakelog report s3://bucket/orders --out orders.html --files",
)
@options.target
@click.option(
    "--out",
    shell_complete=options.paths,
    required=True,
    metavar="FILE",
    help="The page; a file on local disk.",
)
@_files
@options.external
@options.output
def report(target: Target, out: str, files: bool, output: Output) -> None:
    """Write an HTML page about a table.

    What needs doing, with commands; sizes, commits, churn, file sizes, partitions, retention,
    deletions and schema over time. The page is one file and needs no network. Needs lakelog[plot].
    """
    with open_with_progress(target, "reporting") as (table, _):
        written = table.report(out, files=files)
    write_report(written, written.facts, "path size_bytes", output)


COMMANDS = (doctor, report)
