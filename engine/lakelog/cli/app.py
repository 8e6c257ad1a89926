"""Command definitions, options and help texts. Imports nothing heavy.

The help of every command ends with examples. `lakelog.cli.commands` implements the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import lakelog
from lakelog.cli import options, retention, spark, upkeep, wal
from lakelog.cli.guard import GuardedGroup, run
from lakelog.cli.options import Target, as_output, examples

StorageOptions = tuple[tuple[str, Any], ...]

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    sys.exit(run(app, arguments))


@click.group(
    cls=GuardedGroup,
    context_settings=_SETTINGS,
    epilog=examples(
        "lakelog demo",
        "lakelog info s3://bucket/orders --storage-option anon=true",
        "lakelog files orders --where \"day >= '2026-01-05'\" --output csv",
        "lakelog history orders --limit 5",
        "lakelog replay orders --out state",
        "lakelog checkpoint orders",
    ),
)
@click.version_option(lakelog.__version__, "--version", message="lakelog %(version)s")
@options.debug
def app() -> None:
    """Read and maintain the log of a lake table.

    State, history, checkpoints, cleanup, repair. TABLE is a folder with a Delta or an IndexTables
    log, as a path or an fsspec URL. Only checkpoint, checksum, compact, undo, spark, and commands
    with --apply, write to it. wal reads and maintains write-ahead logs, which need no table.
    """


for command in (*upkeep.COMMANDS, *retention.COMMANDS, spark.spark, wal.wal):
    app.add_command(command)


@app.command(epilog=examples("lakelog demo", "lakelog demo --dir playground --commits 1000"))
@click.option(
    "--dir",
    "--directory",
    "directory",
    metavar="DIR",
    help="Folder for the demo; a new temporary folder by default. It is not deleted.",
)
@click.option("--commits", type=int, default=300, show_default=True, help="Number of commits.")
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of the random log.")
@options.debug
def demo(directory: str | None, commits: int, seed: int) -> None:
    """Create a table and demonstrate the main operations on it.

    The demo opens the table, prunes and counts its files, reads its history, travels in time,
    commits, writes a checkpoint, plans a cleanup, and writes the state as Parquet. Each step
    reports its time and the bytes that it read.

    The table is a Delta log on local disk (orders by day and region, with statistics, removes,
    restored files and a checkpoint). Its data files do not exist, because reading a log does not
    need them.
    """
    from lakelog.cli.demo import run_demo

    run_demo(directory, commits, seed)


@app.command(
    epilog=examples("lakelog info orders", "lakelog info orders --version 10 --output json")
)
@options.target
@options.travel
@options.output
@options.debug
def info(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    timestamp: str | None,
    output: str | None,
    to: str | None,
) -> None:
    """Show facts about a table: schema, protocol, sizes.

    Also shows the log files that were read, and the versions that can be rebuilt.
    """
    from lakelog.cli import commands

    commands.info(_target(table, storage_option), version, timestamp, as_output(output, to))


@app.command(
    epilog=examples(
        "lakelog files orders",
        "lakelog files orders --where \"day >= '2026-01-05' and amount > 1000\" --stats",
        "lakelog files orders --version 10 --columns path,size --output csv",
        "lakelog files orders --output parquet --to files.parquet",
    )
)
@options.target
@options.travel
@click.option(
    "--where",
    metavar="SQL",
    help="SQL condition over the table's columns. Skips files that cannot contain a matching "
    "row, by partition values and statistics.",
)
@click.option(
    "--stats", is_flag=True, help="Add typed statistics: numRecords, min, max, nullCount."
)
@click.option("--flatten", is_flag=True, help="Add one typed column per partition column.")
@options.rows
@options.debug
def files(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    timestamp: str | None,
    where: str | None,
    stats: bool,
    flatten: bool,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """List the live files, one row per file.

    The version of a file is that of the commit that added it, if the log still contains it.
    """
    from lakelog.cli import commands

    commands.files(
        _target(table, storage_option),
        version,
        timestamp,
        where,
        as_output(output, to, limit, columns),
        stats=stats,
        flatten=flatten,
    )


@app.command(
    epilog=examples("lakelog history orders --limit 5", "lakelog history orders --output json")
)
@options.target
@options.rows
@options.debug
def history(
    table: str,
    storage_option: StorageOptions,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """List the commits, newest first: time, operation, user."""
    from lakelog.cli import commands

    commands.history(_target(table, storage_option), as_output(output, to, limit, columns))


@app.command(
    epilog=examples(
        "lakelog actions orders --start 10 --end 20",
        "lakelog actions orders --type remove --type add --columns version,actionType,path",
        "lakelog actions orders --output parquet --to actions.parquet",
    )
)
@options.target
@click.option(
    "--start", type=click.IntRange(min=0), default=0, show_default=True, help="First version."
)
@click.option(
    "--end", type=click.IntRange(min=0), help="Last version, inclusive; the latest by default."
)
@click.option(
    "--type",
    "kinds",
    multiple=True,
    metavar="TYPE",
    help="Only actions of this type, such as add or txn; repeatable.",
)
@options.rows
@options.debug
def actions(
    table: str,
    storage_option: StorageOptions,
    start: int,
    end: int | None,
    kinds: tuple[str, ...],
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """List every action of a range of commits.

    The actions of all types, of both table formats, have one schema.
    """
    from lakelog.cli import commands

    commands.actions(
        _target(table, storage_option),
        start,
        end,
        kinds,
        as_output(output, to, limit, columns),
    )


@app.command(epilog=examples("lakelog diff orders 10 20", "lakelog diff orders 10 --output csv"))
@options.target
@click.argument("a", type=click.IntRange(min=0), metavar="A")
@click.argument("b", type=click.IntRange(min=0), metavar="[B]", required=False)
@options.rows
@options.debug
def diff(
    table: str,
    storage_option: StorageOptions,
    a: int,
    b: int | None,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """Compare version A with version B.

    Shows changed files, deletion vectors, schema, properties, protocol and txns, each with its
    commit. B is the latest version by default.
    """
    from lakelog.cli import commands

    commands.diff(_target(table, storage_option), a, b, as_output(output, to, limit, columns))


@app.command(
    epilog=examples(
        "lakelog blame orders day=2026-01-05/region=eu/part-00003.parquet",
        'lakelog blame orders "$(lakelog files orders -o csv --columns path | tail -1)"',
    )
)
@options.target
@click.argument("path", metavar="PATH")
@options.rows
@options.debug
def blame(
    table: str,
    storage_option: StorageOptions,
    path: str,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """Show the history of one data file, commit by commit.

    For a removed file, shows when vacuum may delete it. PATH is the path as in the log, or as
    `lakelog files` shows it.
    """
    from lakelog.cli import commands

    commands.blame(_target(table, storage_option), path, as_output(output, to, limit, columns))


@app.command(
    epilog=examples(
        "lakelog replay orders --out state",
        "lakelog replay orders --version 10 --out state-10 --max-part-bytes 64MB",
    )
)
@options.target
@options.travel
@click.option("--out", required=True, metavar="DIR", help="New or empty folder, or any fsspec URL.")
@click.option(
    "--max-part-bytes",
    type=options.Size(),
    default="128MiB",
    show_default=True,
    help="Start a new part when a part has reached this size.",
)
@options.output
@options.debug
def replay(
    table: str,
    storage_option: StorageOptions,
    version: int | None,
    timestamp: str | None,
    out: str,
    max_part_bytes: int,
    output: str | None,
    to: str | None,
) -> None:
    """Write the replayed state as Parquet.

    The folder contains flattened Parquet in parts, and a manifest. Spark, Polars and DuckDB read
    it directly.
    """
    from lakelog.cli import commands

    commands.replay(
        _target(table, storage_option),
        version,
        timestamp,
        out,
        max_part_bytes,
        as_output(output, to),
    )


def _target(path: str, storage_options: StorageOptions) -> Target:
    return Target(path, dict(storage_options))
