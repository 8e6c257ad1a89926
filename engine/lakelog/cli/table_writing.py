"""The commands that write a table's rows. Imports nothing heavy.

Each only plans without ``--apply``.
"""

from __future__ import annotations

import click

from lakelog.cli import options
from lakelog.cli.options import Output, Target, examples
from lakelog.cli.output import PLANNED, write_report
from lakelog.cli.watch import open_metered, progress

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


COMMANDS = (restore,)
"""The commands of this module."""
