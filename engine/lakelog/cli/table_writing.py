"""The commands that write the rows of a table. Imports nothing heavy.

Those that change rows only plan without ``--apply``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import click

import lakelog
from lakelog.cli import options
from lakelog.cli.options import Output, Target
from lakelog.cli.output import FINDINGS, GOOD, PLANNED, View, emit, write_report
from lakelog.cli.text import count
from lakelog.cli.watch import Meter, open_metered, open_with_progress, progress
from lakelog.errors import LakelogWarning

_COMPACTED = (
    "version num_commits num_rows num_files num_bytes num_removed_files skipped is_complete"
)

_RESTORE = (
    "restored_version version num_restored_files restored_bytes num_removed_files removed_bytes "
    "changes_metadata num_files num_bytes unchecked_files"
)
_CONVERT = "version num_files num_rows num_bytes num_other_files schema partition_by"
_CLONE = "path num_files num_bytes"
_DELETE = (
    "version num_deleted_rows num_removed_files num_deletion_vectors num_copied_rows num_files "
    "num_bytes"
)


@dataclass(frozen=True)
class _Clone:
    """The result of ``clone``."""

    path: str
    num_files: int
    num_bytes: int


def _planned_facts(facts: list[tuple[str, str]], *, apply: bool) -> list[tuple[str, str]]:
    """The facts of a report, or of its plan, which has no version."""
    return facts if apply else [*facts[1:], ("plan", PLANNED)]


@options.command(
    "lakelog restore orders --version 10", "lakelog restore orders --timestamp 2026-01-05 --apply"
)
@options.target
@options.external
@options.travel
@options.apply
@options.output
def restore(
    target: Target, version: int | None, timestamp: str | None, apply: bool, output: Output
) -> None:
    """Restore an earlier version of a table, in one commit.

    Without --apply, checks that the files of the version exist, and shows what would change.
    Files outside of the table's folder are checked if --allow-external includes them.
    """
    if (version is None) == (timestamp is None):
        raise click.UsageError("pass either --version or --timestamp")
    with open_with_progress(target, "restore") as (table, _):
        report = table.restore(version, timestamp, plan=not apply)
    write_report(report, _planned_facts(report.facts, apply=apply), _RESTORE, output)


def _columns(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return options.comma_separated(value)


@options.command(
    "lakelog compact orders",
    "lakelog compact orders --where \"day >= '2026-01-05'\" --target-bytes 256MB",
    "lakelog compact orders --zorder-by customer,product",
)
@options.target
@options.external
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
    import polars as pl

    with open_with_progress(target, "compact") as (table, watch), warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)  # the report has the skipped files
        report = table.compact(
            target_bytes=target_bytes,
            where=where,
            order_by=order_by,
            zorder_by=zorder_by,
            progress=watch.show_step,
        )
    skipped = (pl.Map(pl.String(), pl.String()), dict(report.skipped))
    write_report(report, report.facts, _COMPACTED, output, skipped=skipped)
    return FINDINGS if report.skipped else GOOD


@options.command(
    "lakelog delete orders --where \"day < '2025-01-01'\"",
    'lakelog delete orders --where "customer = 7" --apply',
)
@options.target
@options.external
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    help="Condition over the table's columns; `true` deletes all rows.",
)
@options.apply
@options.rows
def delete(target: Target, where: str, apply: bool, output: Output) -> None:
    """Delete the rows for which a condition is true.

    The plan lists the files that change, and counts the rows: `remove` for a file all of whose rows
    match, otherwise `mark` (a deletion vector) or `copy` (the other rows).
    """
    from lakelog.data.update import delete_plan
    from lakelog.display import size_text

    table, meter = open_metered(target)
    if not apply:
        with progress("reading", meter):
            files, rows = delete_plan(table.snapshot(), where)
        summary = [f"{_count_of_rows(rows)} can be deleted", PLANNED]
        emit(files.lazy(), output, View("file", tuple(files.columns), (), lambda _: summary))
        return
    with progress("deleting", meter):
        report = table.delete(where)
    facts = [
        ("version", "no row matches" if report.version is None else str(report.version)),
        ("deleted", _count_of_rows(report.num_deleted_rows)),
        ("removed", count(report.num_removed_files, "file")),
        ("marked", count(report.num_deletion_vectors, "file")),
        ("copied", count(report.num_copied_rows, "row")),
        ("written", f"{count(report.num_files, 'file')}, {size_text(report.num_bytes)}"),
    ]
    write_report(report, facts, _DELETE, output)


def _count_of_rows(number: int | None) -> str:
    """A number of rows; None is unknown."""
    return "an unknown number of rows" if number is None else count(number, "row")


@options.command(
    "lakelog convert landing/orders",
    "lakelog convert landing/orders --partition-by day,region --apply",
    "lakelog convert landing/orders --partition-by 'month int' --apply",
)
@options.target
@click.option(
    "--partition-by",
    metavar="A,B",
    default="",
    callback=_columns,
    help="The partition columns, in the order of the folders, each with its type if it shall not "
    "be inferred (`month int`); the names of the folders by default.",
)
@options.apply
@options.output
def convert(target: Target, partition_by: tuple[str, ...], apply: bool, output: Output) -> None:
    """Make a Delta table of a folder of Parquet files, in place.

    No file is modified. Without --apply, reads the footers of the files and shows the table.
    """
    with progress("convert", Meter()):
        report = lakelog.convert(
            target.path,
            _with_types(partition_by),
            plan=not apply,
            storage_options=target.storage_options or None,
        )
    write_report(report, _planned_facts(report.facts, apply=apply), _CONVERT, output)


def _with_types(columns: tuple[str, ...]) -> tuple[str, ...] | dict[str, Any] | None:
    """Names between commas, as `lakelog.convert` takes them; each with a type if one has."""
    if not any(" " in column for column in columns):
        return columns or None
    pairs = (column.partition(" ") for column in columns)
    names = {"int": "integer", "bigint": "long"}
    fields = [
        {"name": name, "type": names.get(text := type_.strip().lower(), text or "string")}
        for name, _, type_ in pairs
    ]
    return {"type": "struct", "fields": fields}


@options.command(
    "lakelog clone orders orders-test",
    "lakelog clone orders orders-test --version 10",
    "lakelog clone s3://prod/orders s3://test/orders --storage-option profile=prod "
    "--to-option profile=test",
)
@options.target
@options.travel
@options.destination
@options.output
def clone(
    target: Target,
    version: int | None,
    timestamp: str | None,
    destination: Target,
    output: Output,
) -> None:
    """Make a shallow clone at LOCATION: a new table with the files of TABLE, none of which is
    copied.

    A vacuum of TABLE does not know of the clone.
    """
    from lakelog.display import argument, size_text

    with open_with_progress(target, "clone") as (table, _):
        there = destination.storage_options or None
        made = table.clone(destination.path, version, timestamp, storage_options=there)
        snapshot = made.snapshot()
        report = _Clone(made.path, snapshot.num_files(), snapshot.total_size())
    facts = [
        ("clone", report.path),
        ("files", f"{count(report.num_files, 'file')}, {size_text(report.num_bytes)}"),
        ("in Python", f"lakelog.open({made.path!r}, allow_external={table.path!r})"),
        ("its rows", f"lakelog rows {argument(made.path)} --allow-external {argument(table.path)}"),
    ]
    write_report(report, facts, _CLONE, output)


COMMANDS = (compact, restore, delete, convert, clone)
"""The commands of this module."""
