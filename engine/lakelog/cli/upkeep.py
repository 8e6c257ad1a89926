"""The commands that look after a log, their options and their help. Imports nothing heavy.

They write, so each says what: `cleanup`, `vacuum` and `repair` only plan unless ``--apply`` is
given. Their work is in `lakelog.cli.upkeep_work`.
"""

from __future__ import annotations

from typing import Any

import click

from lakelog.cli import options
from lakelog.cli.options import Target, as_output, examples

StorageOptions = tuple[tuple[str, Any], ...]

_apply = click.option("--apply", is_flag=True, help="Do it; without this, nothing is changed.")
_force = click.option(
    "--force", is_flag=True, help="Accept a retention that is shorter than the table's own."
)
_inventory = click.option(
    "--inventory",
    metavar="FILE",
    help="What stands in the table's folder, as Parquet, CSV or JSON with path, size and "
    "modificationTime, in place of a listing.",
)
_memory = click.option(
    "--memory-limit", type=options.Size(), help="The most memory that the process may take."
)


@click.command(
    epilog=examples(
        "lakelog checkpoint orders",
        "lakelog checkpoint orders --layout v2 --memory-limit 512MB",
        "lakelog checkpoint orders --version 10 --output json",
    )
)
@options.target
@click.option("--version", "-v", type=click.IntRange(min=0), help="The latest by default.")
@click.option(
    "--layout",
    default="auto",
    show_default=True,
    help="classic, multipart, v2, v2-json or v2-parquet for Delta; json, json-multipart or "
    "flattened for IndexTables; auto chooses by protocol, properties and size.",
)
@_memory
@click.option("--no-verify", is_flag=True, help="Do not read it back and compare.")
@options.output
@options.debug
def checkpoint(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    layout: str,
    memory_limit: int | None,
    no_verify: bool,
    output: str | None,
    to: str | None,
) -> None:
    """Write a checkpoint, prove it, publish it.

    It is read back and compared with replay before anybody can see it; the pointer moves last, and
    only forward.
    """
    from lakelog.cli import upkeep_work

    upkeep_work.checkpoint(
        Target(table, dict(storage_option)),
        version,
        layout,
        memory_limit,
        as_output(output, to),
        verify=not no_verify,
    )


@click.command(
    epilog=examples("lakelog verify orders", "lakelog verify orders --version 10 --output json")
)
@options.target
@click.option(
    "--version", "-v", type=click.IntRange(min=0), help="The newest checkpoint by default."
)
@_memory
@click.option("--strict", is_flag=True, help="A checkpoint that cannot be proved is a finding.")
@options.output
@options.debug
def verify(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    memory_limit: int | None,
    strict: bool,
    output: str | None,
    to: str | None,
) -> int:
    """Prove a checkpoint by a replay without it.

    The verdict is proved, unprovable (the commits below it are gone), wrong or broken; the exit
    code is 1 for the last two.
    """
    from lakelog.cli import upkeep_work

    return upkeep_work.verify(
        Target(table, dict(storage_option)),
        version,
        memory_limit,
        as_output(output, to),
        strict=strict,
    )


@click.command(
    epilog=examples(
        "lakelog repair orders",
        "lakelog repair orders --check-files --output json",
        "lakelog repair orders --apply",
    )
)
@options.target
@_apply
@click.option("--check-files", is_flag=True, help="Look for live files that are not there.")
@click.option(
    "--remove-missing",
    is_flag=True,
    help="Remove these from the table, in one commit; their rows are lost.",
)
@_inventory
@click.option("--strict", is_flag=True, help="Mend nothing where something cannot be mended.")
@options.rows
@options.debug
def repair(
    table: str,
    storage_option: StorageOptions,
    apply: bool,
    check_files: bool,
    remove_missing: bool,
    inventory: str | None,
    strict: bool,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """Find what is wrong with the log, and mend it.

    Checkpoints, the pointer and checksums are made again where that is provably sound; what is not
    is refused, with the reason. The exit code is 1 as long as something is wrong.
    """
    from lakelog.cli import upkeep_work

    return upkeep_work.repair(
        Target(table, dict(storage_option)),
        inventory,
        as_output(output, to, limit, columns),
        apply=apply,
        check_files=check_files,
        remove_missing=remove_missing,
        strict=strict,
    )


@click.command(
    epilog=examples(
        "lakelog cleanup orders",
        'lakelog cleanup orders --retention "60 days" --all --output csv',
        "lakelog cleanup orders --apply --quarantine",
    )
)
@options.target
@_apply
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
    """Find log files that no promised version needs, and delete them.

    Each is told with the checkpoint that covers it, which is proved before anything goes. No
    version that the retention promises is ever lost.
    """
    from lakelog.cli import upkeep_work

    return upkeep_work.cleanup(
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
@_apply
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
@_inventory
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
    """Find data files that no retained version needs, and delete them."""
    from lakelog.cli import upkeep_work

    return upkeep_work.vacuum(
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
    epilog=examples("lakelog compact orders 10 19", "lakelog compact orders 0 99 --output json")
)
@options.target
@click.argument("a", type=click.IntRange(min=0), metavar="A")
@click.argument("b", type=click.IntRange(min=0), metavar="B")
@_memory
@options.output
@options.debug
def compact(
    table: str,
    storage_option: StorageOptions,
    a: int,
    b: int,
    memory_limit: int | None,
    output: str | None,
    to: str | None,
) -> None:
    """Write the log compaction file of versions A to B.

    Readers may take it in place of their commits, which stay; it is read back and compared with
    them first. Delta only.
    """
    from lakelog.cli import upkeep_work

    target = Target(table, dict(storage_option))
    upkeep_work.compact(target, a, b, memory_limit, as_output(output, to))


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
    """Move what a cleanup put into quarantine back.

    Without an ID it lists the quarantines.
    """
    if quarantine is not None and purge is not None:
        raise click.UsageError("give an ID or --purge, not both")
    from lakelog.cli import upkeep_work

    target = Target(table, dict(storage_option))
    return upkeep_work.undo(target, quarantine, purge, as_output(output, to, limit, columns))


COMMANDS = (checkpoint, verify, repair, cleanup, vacuum, compact, undo)
"""The commands of this module."""
