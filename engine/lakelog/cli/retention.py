"""Definitions of the commands that delete files or simulate deletion. Imports nothing heavy.

`cleanup` and `vacuum` only plan without ``--apply``. `lakelog.cli.retention_work` implements the
commands.
"""

from __future__ import annotations

from typing import Any

import click

from lakelog.cli import options
from lakelog.cli.options import Target, as_output, examples

StorageOptions = tuple[tuple[str, Any], ...]

_force = click.option(
    "--force", is_flag=True, help="Accept a retention shorter than the table's own."
)


@click.command(
    epilog=examples(
        "lakelog cleanup orders",
        'lakelog cleanup orders --retention "60 days" --all --output csv',
        "lakelog cleanup orders --apply --quarantine",
    )
)
@options.target
@options.apply
@click.option(
    "--quarantine",
    is_flag=True,
    help="Move the files to quarantine; `lakelog undo` moves them back.",
)
@click.option(
    "--retention",
    type=options.Duration(),
    help="How long replaced versions stay readable; by default the table's retention.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    help="How long replaced checkpoints are kept; by default the table's retention.",
)
@_force
@click.option(
    "--all", "keep", is_flag=True, help="Also show the files that are kept, with the reason."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first file that cannot be deleted.")
@options.rows
@options.debug
def cleanup(
    table: str,
    storage_option: StorageOptions,
    apply: bool,
    quarantine: bool,
    retention: int | None,
    checkpoint_retention: int | None,
    force: bool,
    keep: bool,
    fail_fast: bool,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """Find and delete log files that no retained version needs.

    Each file is reported with the checkpoint that replaces it. The checkpoint is verified before
    any file is deleted. Every version within the retention stays readable.
    """
    from lakelog.cli import retention_work

    return retention_work.cleanup(
        Target(table, dict(storage_option)),
        as_output(output, to, limit, columns),
        apply=apply,
        quarantine=quarantine,
        retention=retention,
        checkpoint_retention=checkpoint_retention,
        force=force,
        keep=keep,
        failure_policy="fail" if fail_fast else None,
    )


@click.command(
    epilog=examples(
        "lakelog vacuum orders",
        'lakelog vacuum orders --retention "14 days" --output parquet --to doomed.parquet',
        "lakelog vacuum orders --apply --keep-version 10",
    )
)
@options.target
@options.apply
@click.option(
    "--retention",
    type=options.Duration(),
    help="How long removed files are kept; by default the table's retention.",
)
@_force
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Keep the files of this version, whatever its age; repeatable.",
)
@click.option(
    "--keep-history", is_flag=True, help="Keep the files of every version that can be rebuilt."
)
@options.inventory
@options.rows
@options.debug
def vacuum(
    table: str,
    storage_option: StorageOptions,
    apply: bool,
    retention: int | None,
    force: bool,
    keep_versions: tuple[int, ...],
    keep_history: bool,
    inventory: str | None,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """Find and delete data files that no retained version needs."""
    from lakelog.cli import retention_work

    return retention_work.vacuum(
        Target(table, dict(storage_option)),
        inventory,
        as_output(output, to, limit, columns),
        apply=apply,
        retention_ms=retention,
        force=force,
        keep_versions=keep_versions,
        keep_history=keep_history,
    )


@click.command(
    epilog=examples(
        'lakelog simulate orders --log-retention "7 days" --consumer billing=120',
        "lakelog simulate orders --log-retention 7d --log-retention 14d --output json",
        'lakelog simulate orders --deleted-file-retention "1 day" --checkpoint-retention 1h',
    )
)
@options.target
@click.option(
    "--log-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which replaced versions stay readable; repeatable.",
)
@click.option(
    "--deleted-file-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which removed data files are kept; repeatable.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which replaced checkpoints are kept; repeatable.",
)
@click.option(
    "--consumer",
    "consumers",
    type=options.Consumer(),
    multiple=True,
    help="A reader of the table's changes, and the version that it reads next; repeatable.",
)
@options.rows
@options.debug
def simulate(
    table: str,
    storage_option: StorageOptions,
    log_retention: tuple[int, ...],
    deleted_file_retention: tuple[int, ...],
    checkpoint_retention: tuple[int, ...],
    consumers: tuple[tuple[str, int], ...],
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """Compare the effects of other retentions.

    Shows readable versions, freed bytes and readers that would fail. Nothing is deleted. The first
    row is the current retention, followed by one row per proposal.
    """
    from lakelog.cli import retention_work

    retention_work.simulate(
        Target(table, dict(storage_option)),
        consumers,
        as_output(output, to, limit, columns),
        log_retention=log_retention,
        deleted_file_retention=deleted_file_retention,
        checkpoint_retention=checkpoint_retention,
    )


@click.command(
    epilog=examples(
        "lakelog undo orders",
        "lakelog undo orders 20260105T101500Z-3f9ac2d1",
        'lakelog undo orders --purge "7 days"',
    )
)
@options.target
@click.argument("quarantine", metavar="[ID]", required=False)
@click.option(
    "--purge",
    type=options.Duration(),
    help="Permanently delete files that have been in quarantine for longer than this.",
)
@options.rows
@options.debug
def undo(
    table: str,
    storage_option: StorageOptions,
    quarantine: str | None,
    purge: int | None,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """Restore files from the quarantine of a cleanup or repair.

    Without an ID, lists the quarantines.
    """
    if quarantine is not None and purge is not None:
        raise click.UsageError("give an ID or --purge, not both")
    from lakelog.cli import retention_work

    target = Target(table, dict(storage_option))
    return retention_work.undo(target, quarantine, purge, as_output(output, to, limit, columns))


COMMANDS = (cleanup, vacuum, simulate, undo)
"""The commands of this module."""
