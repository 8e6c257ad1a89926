"""The command ``lakelog``: its group, exit codes, error messages and notes. Imports nothing heavy.

Exit codes: 0 for success, 1 for an error or a damaged table, 2 for an `InvalidInputError` (the call
has to be changed; a file, table or version that was not found is another error), 3 if `doctor`
could not examine the table, 130 for an interrupt by the user, 141 for a closed pipe.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click

import lakelog
from lakelog.cli import (
    health,
    ingest,
    log_files,
    options,
    retention,
    spark,
    table,
    table_writing,
    top,
    wal,
)
from lakelog.cli.options import DEBUG, FAILURE_CODE, Output, examples
from lakelog.cli.output import View, emit
from lakelog.cli.text import colour_wanted
from lakelog.display import plain
from lakelog.errors import InvalidInputError, LakelogError, LakelogWarning, UnavailableError

REFUSED, WRONG_CALL, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

SECTIONS = {
    "Read a table": "info rows files history changes actions diff blame replay top",
    "Examine a table": "doctor report compat verify simulate",
    "Write rows": "ingest delete compact restore convert clone",
    "Maintain a log": "checkpoint checksum compact-log cleanup vacuum repair undo replicate",
}
"""Sections of the list of commands; commands that are in none are listed last."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class GuardedGroup(click.Group):
    """A group whose commands end with an exit code and a message, never with a traceback."""

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        rest = set(self.commands)
        sections = {title: names.split() for title, names in SECTIONS.items()}
        for names in sections.values():
            rest -= set(names)
        for title, names in (sections | {"Other commands": sorted(rest)}).items():
            found = [self.commands[name] for name in names if name in self.commands]
            limit = formatter.width - 16
            with formatter.section(title):
                formatter.write_dl([(str(c.name), c.get_short_help_str(limit)) for c in found])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and convert exceptions to an exit code."""
        try:
            with _notes(debug=_debug(ctx)):
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result
        except BrokenPipeError:
            # `lakelog files ... | head` is valid usage.
            _discard_output()
            ctx.exit(PIPE_CLOSED)
        except LakelogError as error:
            _show_traceback(ctx, error)
            _show(error)
            ctx.exit(WRONG_CALL if isinstance(error, InvalidInputError) else _failure_code(ctx))
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt):
            raise
        except BaseException as error:
            # A panic of Polars is not an Exception. SystemExit and KeyboardInterrupt are re-raised.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            _show_traceback(ctx, error)
            if _is_full_output(error):
                _show_full_output(error)
                ctx.exit(_failure_code(ctx))
            reason = (str(error).splitlines() or [""])[0]
            _complain(f"something unexpected went wrong: {type(error).__name__}: {reason}")
            if not _debug(ctx):
                _hint("run the command again with --debug, and report a bug with its output")
            ctx.exit(_failure_code(ctx))


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
    log, as a path or an fsspec URL. Only ingest, checkpoint, checksum, clone, compact, compact-log,
    undo, spark, and commands with --apply, write. wal reads and maintains write-ahead logs, which
    need no table.
    """


for command in (
    *table.COMMANDS,
    *table_writing.COMMANDS,
    *ingest.COMMANDS,
    *health.COMMANDS,
    *log_files.COMMANDS,
    *retention.COMMANDS,
    *top.COMMANDS,
    spark.spark,
    wal.wal,
):
    app.add_command(command)


@options.command("lakelog demo", "lakelog demo --dir playground --commits 1000", group=app)
@click.option(
    "--dir",
    "--directory",
    "directory",
    shell_complete=options.paths,
    metavar="DIR",
    help="Folder for the demo; a new temporary folder by default. It is not deleted.",
)
@click.option(
    "--commits",
    type=click.IntRange(min=40),
    default=150,
    show_default=True,
    help="Number of commits.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Seed of the random rows.",
)
def demo(directory: str | None, commits: int, seed: int) -> None:
    """Create a table and demonstrate the main operations on it.

    The demo opens the table, prunes its files, reads rows and statistics, reads its history,
    travels in time, compacts, writes a checkpoint, plans a cleanup, and writes the state as
    Parquet. Each step reports its time and the bytes that it read.

    The table is a Delta table on local disk: orders by day and region, appended, compacted,
    deleted and restored, with a checkpoint.
    """
    from lakelog.cli.demo import run_demo

    run_demo(directory, commits, seed)


@options.command(
    "lakelog cache",
    "lakelog cache --directory /var/cache/lakelog --output json",
    "lakelog cache --clear",
    group=app,
)
@click.option(
    "--directory",
    shell_complete=options.paths,
    metavar="DIR",
    envvar="LAKELOG_CACHE",
    help="Folder of the cache; by default the one in LAKELOG_CACHE.",
)
@click.option("--clear", is_flag=True, help="Delete all entries.")
@options.output
def cache(directory: str | None, clear: bool, output: Output) -> None:
    """Show or clear the disk cache of decoded checkpoints.

    All commands keep decoded columns of checkpoints in the folder that the environment variable
    LAKELOG_CACHE names, if it is set. Reads of the same checkpoint by later commands and programs
    are then several times faster, and read only the commits above it from a remote store.
    """
    from lakelog.display import size_text
    from lakelog.log.disk_cache import DiskCache

    if directory is None:
        raise click.UsageError("set LAKELOG_CACHE, or pass --directory")
    kept = DiskCache(directory)
    entries = kept.entries()
    size = size_text(int(entries["size_bytes"].sum()))
    if clear:
        size = f"{size_text(kept.clear())} deleted"
    columns = ("table", "version", "columns", "size_bytes", "used_at")
    emit(entries.lazy(), output, View("checkpoint", columns, (), lambda _: (size,)))


def _subcommands(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """The completion of the next word of a command."""
    found: click.Command | None = app
    for name in ctx.params.get("command") or ():
        found = found.commands.get(name) if isinstance(found, click.Group) else None
    commands = found.commands if isinstance(found, click.Group) else ()
    return [name for name in commands if name.startswith(start)]


@app.command("help", epilog=examples("lakelog help", "lakelog help wal replay"))
@click.argument("command", nargs=-1, shell_complete=_subcommands)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of a command, as --help does."""
    found: click.Command = app
    context = ctx.find_root()
    for name in command:
        below = found.get_command(context, name) if isinstance(found, click.Group) else None
        if below is None:
            known = sorted(found.commands) if isinstance(found, click.Group) else []
            raise InvalidInputError(
                f"unknown command: {name}", expected=", ".join(known) or "no subcommand"
            )
        found = below
        context = found.make_context(name, ["--help"], parent=context, resilient_parsing=True)
    click.echo(found.get_help(context))


_STARTUP_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/lakelog.fish",
}


@app.command(epilog=examples("lakelog completion bash", "lakelog completion fish"))
@click.argument("shell", type=click.Choice(list(_STARTUP_FILES)))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, paths and values in a shell.

    Append it to the start-up file of the shell (fish: write it to
    ~/.config/fish/completions/lakelog.fish), then start a new shell. bash needs version 4.4.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, "lakelog", "_LAKELOG_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # of what the locale cannot represent
    sys.exit(run(app, arguments))


def run(group: click.Group, arguments: Sequence[str] | None) -> int:
    """Run a group and return the exit code."""
    try:
        outcome = group.main(
            arguments, prog_name="lakelog", standalone_mode=False, color=colour_wanted()
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except OSError as error:  # of help and usage, which are written outside of a command
        if isinstance(error, BrokenPipeError):
            _discard_output()
            return PIPE_CLOSED
        if not _is_full_output(error):
            raise
        _show_full_output(error)
        return REFUSED
    return outcome if isinstance(outcome, int) else 0


def _is_full_output(error: BaseException) -> bool:
    """Whether standard output cannot be written; stores report their errors with a path."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.errno in full and error.filename is None


def _show_full_output(error: BaseException) -> None:
    _discard_output()
    _show(UnavailableError(f"the output cannot be written: {error}"))


def _discard_output() -> None:
    """Avoid a second error when the interpreter flushes standard output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failure_code(context: click.Context) -> int:
    return int(context.meta.get(FAILURE_CODE, REFUSED))


def _debug(context: click.Context) -> bool:
    return bool(context.meta.get(DEBUG))


@contextmanager
def _notes(*, debug: bool) -> Iterator[None]:
    """Show each `LakelogWarning` once, as a note; warnings of other libraries only with --debug."""
    seen: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, LakelogWarning):
                usual(message, category, filename, lineno, file, line)
            elif str(message) not in seen:
                seen.add(str(message))
                click.echo(f"{click.style('note:', fg='yellow')} {plain(str(message))}", err=True)

        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("always", LakelogWarning)
        warnings.showwarning = show
        yield


def _show_traceback(context: click.Context, error: BaseException) -> None:
    if _debug(context):
        traceback.print_exception(error)


def _show(error: LakelogError) -> None:
    _complain(error.message)
    fields = {k: v for k, v in error.as_dict().items() if k not in ("message", "hint")}
    width = max(map(len, fields))
    for name, value in fields.items():
        label = click.style(name.replace("_", " ").ljust(width), dim=True)
        click.echo(f"  {label}  {plain(str(value))}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(plain(note), err=True)
    if error.hint:
        _hint(error.hint)


def _complain(message: str) -> None:
    click.echo(f"{click.style('lakelog:', fg='red', bold=True)} {plain(message)}", err=True)


def _hint(text: str) -> None:
    click.echo(f"{click.style('Next:', bold=True)} {plain(text)}", err=True)
