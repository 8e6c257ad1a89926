"""Definitions of the commands for write-ahead logs. Imports nothing heavy.

`lakelog.cli.wal_work` implements the commands.
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
    """Refuse an empty name: it would be resolved to the working directory."""
    if not directory:
        raise click.BadParameter("it is empty; name the log's folder")
    return directory


def _format(command: _F) -> _F:
    return click.option(
        "--format",
        "form",
        type=_HISTORIC,
        help="Format of a historic log, if it cannot be detected from its files.",
    )(command)


def _safe(command: _F) -> _F:
    return click.option(
        "--safe",
        is_flag=True,
        help="Use the safe part of a damaged log, and exit with code 1, instead of refusing it.",
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
    """Inspect, replay, upgrade or truncate a write-ahead log.

    DIRECTORY is the folder of the log, on local disk. inspect and replay also read the two historic
    formats; upgrade converts them to the current format.
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
    """List the files of a log: times, sizes, sequence numbers, damage.

    Works on damaged logs and concurrently with a writer. Changes nothing. The exit code is 1 if
    there are findings: damage, a torn tail, an unfinished batch or upgrade. Damage that a historic
    format cannot reveal is listed as a doubt, which is not a finding.
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
    help="Only records with a higher sequence number.",
)
@click.option("--state", is_flag=True, help="The last value of each key that is not deleted.")
@click.option("--text", is_flag=True, help="Return keys and values as text instead of bytes.")
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
    """List the PUT and DELETE records of a log, in order.

    Records of unfinished batches are omitted. In JSON and CSV, bytes are base64 unless --text is
    given. Changes nothing.
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
    help="Delete the old files once the new log is durable and verified. Without this option, or "
    "if some of their bytes are not in any record, they are kept with the suffix .upgraded.",
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
    """Upgrade a historic log to the current format, in place.

    No crash loses a record, and records keep their sequence numbers. An interrupted upgrade
    continues when it is called again. First stop the program that writes the old log, because it
    does not use a lock.
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
    """Truncate records up to SEQ, and delete files without later records.

    Use it after the records were stored elsewhere. Sequence numbers continue.
    """
    from lakelog.cli import wal_work

    wal_work.truncate(directory, up_to_seq, as_output(output, to, limit, columns), apply=apply)
