"""The commands that write the rows of a table. Imports nothing heavy.

Those that change rows only plan without ``--apply``.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from lakelog.cli import options
from lakelog.cli.options import Output, Target, examples
from lakelog.cli.output import FINDINGS, GOOD, PLANNED, write_report
from lakelog.cli.watch import open_metered, progress
from lakelog.errors import LakelogWarning

if TYPE_CHECKING:
    import polars as pl

_COMPACTED = (
    "version num_commits num_rows num_files num_bytes num_removed_files skipped is_complete"
)

_RESTORE = (
    "restored_version version num_restored_files restored_bytes num_removed_files removed_bytes "
    "changes_metadata num_files num_bytes"
)


@click.command(
    epilog=examples(
        "lakelog restore orders --version 10",
        "lakelog restore orders --timestamp 2026-01-05 --apply",
    )
)
@options.target
@options.travel
@options.apply
@options.output
@options.debug
def restore(
    target: Target, version: int | None, timestamp: str | None, apply: bool, output: Output
) -> None:
    """Make a table what it was at an earlier version, in one commit.

    Without --apply, checks that the files of the version exist, and shows what would change.
    """
    if (version is None) == (timestamp is None):
        raise click.UsageError("pass either --version or --timestamp")
    table, meter = open_metered(target)
    with progress("restore", meter):
        report = table.restore(version, timestamp, plan=not apply)
    facts = report.facts if apply else [*report.facts[1:], ("plan", PLANNED)]
    write_report(report, facts, _RESTORE, output)


def _columns(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


@click.command(
    epilog=examples(
        "lakelog compact orders",
        "lakelog compact orders --where \"day >= '2026-01-05'\" --target-bytes 256MB",
        "lakelog compact orders --zorder-by customer,product",
    )
)
@options.target
@click.option(
    "--target-bytes", type=options.Size(), help="Target size of a file; the table's by default."
)
@click.option(
    "--where",
    metavar="SQL",
    help="SQL condition over the table's columns; only files that can contain a matching row.",
)
@click.option(
    "--order-by", metavar="A,B", default="", callback=_columns, help="Sort rows by these columns."
)
@click.option(
    "--zorder-by",
    metavar="A,B",
    default="",
    callback=_columns,
    help="Sort rows along a Z-order curve through these columns.",
)
@options.output
@options.debug
def compact(
    target: Target,
    target_bytes: int | None,
    where: str | None,
    order_by: tuple[str, ...],
    zorder_by: tuple[str, ...],
    output: Output,
) -> int:
    """Merge small data files, and drop deleted rows; or sort rows.

    No row changes. A file that cannot be read is skipped, and the exit code is 1.
    """
    table, meter = open_metered(target)
    with progress("compact", meter) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)  # the report has the skipped files
        report = table.compact(
            target_bytes=target_bytes,
            where=where,
            order_by=order_by,
            zorder_by=zorder_by,
            progress=watch.show_step,
        )
    skipped = (_reasons_type(), dict(report.skipped))
    write_report(report, report.facts, _COMPACTED, output, skipped=skipped)
    return FINDINGS if report.skipped else GOOD


def _reasons_type() -> pl.DataType:
    """The type of paths with reasons."""
    import polars as pl

    return pl.Map(pl.String(), pl.String())


COMMANDS = (compact, restore)
"""The commands of this module."""
