"""Definitions of the commands that delete files or simulate deletion. Imports nothing heavy.

`cleanup` and `vacuum` only plan unless ``--apply`` is given. Their work is in
`lakelog.cli.retention_work`.
"""

from __future__ import annotations

from typing import Any

import click

from lakelog.cli import options
from lakelog.cli.options import Target, as_output, examples

StorageOptions = tuple[tuple[str, Any], ...]

_force = click.option(
    "--force", is_flag=True, help="Accept a retention that is shorter than the table's own."
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
    "--quarantine", is_flag=True, help="Move the files aside; `lakelog undo` moves them back."
)
@click.option(
    "--retention",
    type=options.Duration(),
    help="How long versions can be read after they were replaced; the table's by default.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    help="How long replaced checkpoints stay; the table's by default.",
)
@_force
@click.option("--all", "keep", is_flag=True, help="Show the files that stay, too, and why.")
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
    """Find, and delete, log files that no promised version needs.

    Each is reported with the checkpoint that covers it, which is proved before anything goes. No
    version that the retention promises is ever lost.
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
    help="How long files stay after they were removed; the table's by default.",
)
@_force
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="A version whose files stay, however old; repeatable.",
)
@click.option(
    "--keep-history", is_flag=True, help="Files of every version that can be rebuilt stay."
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
    """Find, and delete, data files that no retained version needs."""
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
    help="How long versions could be read after they were replaced; repeated, one proposal each.",
)
@click.option(
    "--deleted-file-retention",
    type=options.Duration(),
    multiple=True,
    help="How long removed data files would stay; likewise.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    multiple=True,
    help="How long replaced checkpoints would stay; likewise.",
)
@click.option(
    "--consumer",
    "consumers",
    type=options.Consumer(),
    multiple=True,
    help="Who reads the table's changes, and the version that is read next; repeatable.",
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
    """Show what other retentions would leave, free and break.

    Nothing is deleted. The first row is the table as it is; then follows one for each proposal.
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
    help="Delete for good what has lain in quarantine for so long.",
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
    """Move what a cleanup or a repair put into quarantine back.

    Without an ID it lists the quarantines.
    """
    if quarantine is not None and purge is not None:
        raise click.UsageError("give an ID or --purge, not both")
    from lakelog.cli import retention_work

    target = Target(table, dict(storage_option))
    return retention_work.undo(target, quarantine, purge, as_output(output, to, limit, columns))


COMMANDS = (cleanup, vacuum, simulate, undo)
"""The commands of this module."""
