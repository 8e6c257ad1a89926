"""Definitions of the commands for checkpoints, compactions, checksums and repair. Imports nothing
heavy.

`repair` only plans without ``--apply``. `lakelog.cli.upkeep_work` implements the commands.
"""

from __future__ import annotations

from typing import Any

import click

from lakelog.cli import options
from lakelog.cli.options import Target, as_output, examples

StorageOptions = tuple[tuple[str, Any], ...]


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
    "flattened for IndexTables; auto selects by protocol, properties and size.",
)
@options.memory
@click.option("--no-verify", is_flag=True, help="Skip the verification.")
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
    """Write a checkpoint, verify it, publish it.

    The checkpoint is read back and compared with replay before publication. The pointer is written
    last, and only moves forward.
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
@options.memory
@click.option("--strict", is_flag=True, help="Treat an unprovable checkpoint as a finding.")
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
    """Verify a checkpoint by a replay that does not use it.

    The result is proved, unprovable (the commits below it were deleted), wrong or broken. The exit
    code is 1 for wrong and broken.
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
@options.apply
@click.option("--check-files", is_flag=True, help="Search for missing live files.")
@click.option(
    "--remove-missing",
    is_flag=True,
    help="Remove missing files from the table, in one commit; their rows are lost.",
)
@options.inventory
@click.option("--strict", is_flag=True, help="Repair nothing if any problem cannot be repaired.")
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
    """Find and repair problems of the log.

    Checkpoints, the pointer and checksums are rewritten if that is provably correct. Other problems
    are reported with the reason. The exit code is 1 if any problem remains.
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
    epilog=examples("lakelog compact orders 10 19", "lakelog compact orders 0 99 --output json")
)
@options.target
@click.argument("a", type=click.IntRange(min=0), metavar="A")
@click.argument("b", type=click.IntRange(min=0), metavar="B")
@options.memory
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

    Readers may use it instead of the commits, which are kept. It is read back and compared with
    the commits before publication. Delta only.
    """
    from lakelog.cli import upkeep_work

    target = Target(table, dict(storage_option))
    upkeep_work.compact(target, a, b, memory_limit, as_output(output, to))


@click.command(
    epilog=examples("lakelog checksum orders", "lakelog checksum orders --version 10 --output json")
)
@options.target
@click.option("--version", "-v", type=click.IntRange(min=0), help="The latest by default.")
@options.memory
@options.output
@options.debug
def checksum(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    memory_limit: int | None,
    output: str | None,
    to: str | None,
) -> int:
    """Write the checksum file of a version, unless it exists.

    An existing checksum is compared with replay and not changed. The exit code is 1 if they differ.
    Delta only.
    """
    from lakelog.cli import upkeep_work

    target = Target(table, dict(storage_option))
    return upkeep_work.checksum(target, version, memory_limit, as_output(output, to))


@click.command(
    epilog=examples(
        "lakelog replicate orders /mnt/backup/orders",
        "lakelog replicate orders s3://backup/orders --to-option anon=false --version 10",
    )
)
@options.target
@click.argument("location", metavar="LOCATION")
@click.option(
    "--version", "-v", type=click.IntRange(min=0), help="The newest checkpoint by default."
)
@click.option(
    "--to-option",
    multiple=True,
    type=options.StorageOption(),
    help="Option of the fsspec filesystem of LOCATION, as --storage-option; repeatable.",
)
@options.output
@options.debug
def replicate(
    table: str,
    storage_option: StorageOptions,
    location: str,
    version: int | None,
    to_option: StorageOptions,
    output: str | None,
    to: str | None,
) -> None:
    """Copy a checkpoint to another location.

    The checkpoint is verified first. The copy is read back before publication, and its pointer is
    written last. LOCATION is a folder, as a path or an fsspec URL, that is empty or contains a
    replica of TABLE.
    """
    from lakelog.cli import upkeep_work

    upkeep_work.replicate(
        Target(table, dict(storage_option)),
        Target(location, dict(to_option)),
        version,
        as_output(output, to),
    )


COMMANDS = (checkpoint, verify, repair, compact, checksum, replicate)
"""The commands of this module."""
