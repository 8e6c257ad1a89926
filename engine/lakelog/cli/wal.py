"""Definitions of the commands for write-ahead logs. Imports nothing heavy.

Their work is in `lakelog.cli.wal_work`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lakelog.cli import options
from lakelog.cli.options import as_output, examples

_F = TypeVar("_F", bound=Callable[..., Any])

_HISTORIC = click.Choice(("002", "003", "003-crc"))


def _directory(command: _F) -> _F:
    return click.argument("directory", metavar="DIRECTORY", callback=_named)(command)


def _named(_context: click.Context, _parameter: click.Parameter, directory: str) -> str:
    """Refuse no name: to a program it would be the folder that it runs in."""
    if not directory:
        raise click.BadParameter("it is empty; name the log's folder")
    return directory


def _format(command: _F) -> _F:
    return click.option(
        "--format",
        "form",
        type=_HISTORIC,
        help="The format of a historic log, where it cannot be told by what its files hold.",
    )(command)


def _safe(command: _F) -> _F:
    return click.option(
        "--safe",
        is_flag=True,
        help="Of a damaged log take what is safe, and end with exit code 1, rather than refuse.",
    )(command)


@click.group(
    epilog=examples(
        "lakelog wal inspect events",
        "lakelog wal replay events --after 1000 --output parquet --to new.parquet",
        "lakelog wal upgrade events",
        "lakelog wal truncate events 1000 --apply",
    )
)
@options.debug
def wal() -> None:
    """Look at a write-ahead log, replay, upgrade or truncate it.

    DIRECTORY is where the log is, on local disk. Logs of the two historic formats are looked at and
    replayed as well; upgrade makes them logs of today.
    """


@wal.command(
    epilog=examples(
        "lakelog wal inspect events",
        "lakelog wal inspect events --output json",
        "lakelog wal inspect old/wal.log --format 003",
    )
)
@_directory
@_format
@options.rows
@options.debug
def inspect(
    directory: str,
    form: str | None,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """The files of a log: times, sizes, sequence numbers, damage.

    Works on damaged logs, and next to a writer; changes nothing. The exit code is 1 where something
    is found: damage, a torn tail, an unfinished batch or upgrade. What cannot be known of a
    historic log is reported as being in doubt, and is not a finding.
    """
    from lakelog.cli import wal_work

    return wal_work.inspect(directory, form, as_output(output, to, limit, columns))


@wal.command(
    epilog=examples(
        "lakelog wal replay events",
        "lakelog wal replay events --state --text --output json",
        "lakelog wal replay events --after 1000 --output parquet --to new.parquet",
    )
)
@_directory
@_format
@click.option(
    "--after",
    "after_seq",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Only records with a greater sequence number.",
)
@click.option("--state", is_flag=True, help="Of each key that is not deleted, its last value.")
@click.option("--text", is_flag=True, help="Keys and values as text, not as bytes.")
@_safe
@options.rows
@options.debug
def replay(
    directory: str,
    form: str | None,
    after_seq: int,
    state: bool,
    text: bool,
    safe: bool,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> int:
    """The PUT and DELETE records of a log, in order.

    Without the records of batches that were not finished. In JSON and CSV, bytes are base64 unless
    --text is given. Changes nothing.
    """
    from lakelog.cli import wal_work

    return wal_work.replay(
        directory,
        form,
        after_seq,
        as_output(output, to, limit, columns),
        state=state,
        text=text,
        safe=safe,
    )


@wal.command(
    epilog=examples(
        "lakelog wal upgrade old",
        "lakelog wal upgrade old --format 003 --remove-old",
    )
)
@_directory
@_format
@click.option(
    "--remove-old",
    is_flag=True,
    help="Remove the old files once the new log is durable and proved. Without it, and where bytes "
    "of theirs are in no record, they stay under names that end in .upgraded.",
)
@_safe
@options.output
@options.debug
def upgrade(
    directory: str,
    form: str | None,
    remove_old: bool,
    safe: bool,
    output: str | None,
    to: str | None,
) -> int:
    """Make a historic log one of today, in place.

    No crash loses a record, and sequence numbers stay; called again, it continues where it was
    stopped. Stop the program that writes the old log first: it knows no lock.
    """
    from lakelog.cli import wal_work

    return wal_work.upgrade(
        directory, form, as_output(output, to), remove_old=remove_old, safe=safe
    )


@wal.command(
    epilog=examples("lakelog wal truncate events 1000", "lakelog wal truncate events 1000 --apply")
)
@_directory
@click.argument("up_to_seq", metavar="SEQ", type=click.IntRange(min=0))
@options.apply
@options.rows
@options.debug
def truncate(
    directory: str,
    up_to_seq: int,
    apply: bool,
    output: str | None,
    to: str | None,
    limit: int | None,
    columns: str,
) -> None:
    """Make records up to SEQ void, and remove files without others.

    For records that are stored elsewhere by now. Sequence numbers continue where they are.
    """
    from lakelog.cli import wal_work

    wal_work.truncate(directory, up_to_seq, as_output(output, to, limit, columns), apply=apply)
