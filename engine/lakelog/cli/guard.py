"""Error handling of the command line: exit codes, messages, notes.

Exit codes: 0 for success, 1 for an error or a damaged table, 2 for invalid usage, 130 for an
interrupt by the user, 141 for a closed pipe.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click

from lakelog.cli.terminal import plain
from lakelog.errors import InvalidInputError, LakelogError, LakelogWarning

REFUSED, WRONG_CALL, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_DEBUG = "lakelog.debug"


def set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Callback of ``--debug``, which is valid before and after the command's name."""
    if value:
        context.meta[_DEBUG] = True


class GuardedGroup(click.Group):
    """A group whose commands end with an exit code and a message, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and convert exceptions to an exit code."""
        try:
            with _notes(debug=_debug(ctx)):
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result
        except BrokenPipeError:
            # `lakelog files ... | head` is valid usage; avoid an error at interpreter exit too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(PIPE_CLOSED)
        except LakelogError as error:
            _show_traceback(ctx, error)
            _show(error)
            ctx.exit(WRONG_CALL if isinstance(error, InvalidInputError) else REFUSED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt):
            raise
        except BaseException as error:
            # A panic of Polars is not an Exception. SystemExit and KeyboardInterrupt are re-raised.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            _show_traceback(ctx, error)
            reason = (str(error).splitlines() or [""])[0]
            _complain(f"something unexpected went wrong: {type(error).__name__}: {reason}")
            if not _debug(ctx):
                _hint("run the command again with --debug, and report what it shows")
            ctx.exit(REFUSED)


def run(group: click.Group, arguments: Sequence[str] | None) -> int:
    """Run a group and return the exit code."""
    try:
        outcome = group.main(
            arguments, prog_name="lakelog", standalone_mode=False, color=_colour_wanted()
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def _colour_wanted() -> bool | None:
    """False if the user asked for plain text (NO_COLOR, TERM=dumb); None: click decides."""
    plain_text = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if plain_text else None


def _debug(context: click.Context) -> bool:
    return bool(context.meta.get(_DEBUG))


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
