"""Options and parameter types that several commands share."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

import lakelog
from lakelog.display import parse_size
from lakelog.errors import InvalidInputError
from lakelog.model.durations import to_duration_ms

if TYPE_CHECKING:
    from lakelog.table import Table

FORMATS = ("table", "json", "ndjson", "csv", "parquet", "arrow")
_ALIASES = {"jsonl": "ndjson", "pq": "parquet", "arrows": "arrow"}
ARROW_FILE = "arrow file"
"""The format of a file named ``.arrow``; ``arrow`` is a stream, in any other file or a pipe."""

_QUOTED = re.compile(r'^"|[,\r\n]')
_TEXT = ("", "txt")
"""Suffixes of files with a text table."""

DEBUG = "lakelog.debug"
"""Key of ``--debug`` in the metadata of a context."""

FAILURE_CODE = "lakelog.failure_code"
"""Key of the exit code of errors other than invalid usage, in the metadata of a context."""

_READ_TIMEOUT = "lakelog.read_timeout"
_ALLOW_EXTERNAL = "lakelog.allow_external"
_MOST_ROWS = (1 << 32) - 1  # of a frame of Polars
_F = TypeVar("_F", bound=Callable[..., Any])
_SHORT_UNITS = {
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_DURATION = re.compile(r"(\d+)\s*([a-z]+)")


def _read_timeout() -> float | None:
    from lakelog.storage.bounded import DEFAULT_TIMEOUT_S

    context = click.get_current_context(silent=True)
    given = None if context is None else context.meta.get(_READ_TIMEOUT)
    return DEFAULT_TIMEOUT_S if given is None else float(given) or None


def _allow_external() -> tuple[str, ...]:
    context = click.get_current_context(silent=True)
    return () if context is None else tuple(context.meta.get(_ALLOW_EXTERNAL, ()))


@dataclass(frozen=True)
class Target:
    """The table of a command."""

    path: str
    storage_options: dict[str, Any]
    read_timeout: float | None = field(default_factory=_read_timeout)
    allow_external: tuple[str, ...] = field(default_factory=_allow_external)

    def open(self) -> Table:
        """The table; raises as `lakelog.open`."""
        return lakelog.open(
            self.path,
            self.storage_options,
            read_timeout=self.read_timeout,
            allow_external=self.allow_external,
        )


@dataclass(frozen=True)
class Output:
    """Where and how the rows of a command are written: format, file (None: standard output), limit
    and columns (None or empty: the format's default).
    """

    format: str
    to: str | None
    limit: int | None = None
    columns: tuple[str, ...] = ()


def paths(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """The completion of a path, which the shell knows."""
    return [CompletionItem(start, type="file")]


def completed(
    choices: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The completion of a parameter whose choices need an import."""
    return lambda _context, _parameter, start: [c for c in choices() if c.startswith(start)]


class StorageOption(click.ParamType[tuple[str, Any]]):
    """``KEY=VALUE``; a JSON value is parsed, any other is text."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """The pair."""
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail("write KEY=VALUE, such as anon=true", param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


class VersionOrTime(click.ParamType[int | str]):
    """A version, or a time in ISO 8601."""

    name = "VERSION|TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Digits are a version, any other text is a time."""
        text = str(value).strip()
        if text.isdecimal():
            return int(text)
        try:
            dt.datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"invalid version or time {value!r}: write 10 or 2026-01-05", param, ctx)
        return text


class Consumer(click.ParamType[tuple[str, int]]):
    """``NAME=VERSION``: a reader of a table's changes, and the version that it reads next."""

    name = "NAME=VERSION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """The pair."""
        consumer, _, version = str(value).rpartition("=")
        if not consumer or not version.isdecimal():
            self.fail("write NAME=VERSION, such as billing=120", param, ctx)
        return consumer, int(version)


class Size(click.ParamType[int]):
    """Bytes, with an optional unit: ``1048576``, ``64MB``, ``128MiB`` (all binary)."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        size = parse_size(str(value))
        if size is None:
            self.fail(f"invalid size {value!r}: write 134217728, 128MB or 1G", param, ctx)
        return size


class Duration(click.ParamType[int]):
    """A duration, as whole milliseconds: ``30 days``, ``12h``, ``90 minutes``, ``500ms``."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of milliseconds."""
        text = str(value).strip().lower()
        if match := _DURATION.fullmatch(text):
            text = f"{match[1]} {_SHORT_UNITS.get(match[2], match[2])}"
        try:
            return to_duration_ms(text)
        except InvalidInputError:
            self.fail(f"invalid duration {value!r}: write 30 days, 12h or 500ms", param, ctx)


def examples(*lines: str) -> str:
    """The end of a command's help; the first line makes click keep the line breaks."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _keep(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Keeps the value of an option, if it is given, in the context, which groups and their commands
    share.
    """

    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            context.meta[key] = value

    return keep


debug = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_keep(DEBUG),
    help="Show the traceback of an error.",
)
"""``--debug``, which is valid before and after the command's name."""


def command(
    *lines: str, group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with these examples and ``--debug``, added to `group` if it is given."""

    def make(function: Callable[..., Any]) -> click.Command:
        made = debug(click.command(name, epilog=examples(*lines))(function))
        if group is not None:
            group.add_command(made)
        return made

    return make


_read_timeout_option = click.option(
    "--read-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    expose_value=False,
    callback=_keep(_READ_TIMEOUT),
    help="Time-out of a read without progress; 0 disables it. Default: the table's property, "
    "otherwise 30.",
)
"""``--read-timeout``, which `Target` takes from the context."""

external = click.option(
    "--allow-external",
    multiple=True,
    shell_complete=paths,
    metavar="FOLDER",
    expose_value=False,
    callback=_keep(_ALLOW_EXTERNAL),
    help="Folder or URL outside of the table's folder whose files may be opened, such as the "
    "source of a clone; repeatable.",
)
"""``--allow-external``, for commands that open data files; `Target` takes it from the context."""

apply = click.option(
    "--apply", is_flag=True, help="Apply the plan; without this option, nothing is changed."
)
"""``--apply``."""

inventory = click.option(
    "--inventory",
    shell_complete=paths,
    metavar="FILE",
    help="Inventory of the table's folder, as Parquet, CSV or JSON with path, size and "
    "modificationTime, instead of a listing.",
)
"""``--inventory``."""

memory = click.option("--memory-limit", type=Size(), help="Limit of the memory of the process.")
"""``--memory-limit``."""


def target(command: _F) -> _F:
    """TABLE, ``--storage-option`` and ``--read-timeout``; the command takes ``target``."""

    @wraps(command)
    def call(*, table: str, storage_option: tuple[tuple[str, Any], ...], **others: Any) -> Any:
        return command(target=Target(table, dict(storage_option)), **others)

    option = click.option(
        "--storage-option",
        multiple=True,
        type=StorageOption(),
        help="Option of the fsspec filesystem, for example anon=true; repeatable.",
    )
    return click.argument("table", metavar="TABLE", shell_complete=paths)(
        option(_read_timeout_option(cast("_F", call)))
    )


def destination(command: _F) -> _F:
    """LOCATION and ``--to-option``; the command takes ``destination``."""

    @wraps(command)
    def call(*, location: str, to_option: tuple[tuple[str, Any], ...], **others: Any) -> Any:
        return command(destination=Target(location, dict(to_option)), **others)

    option = click.option(
        "--to-option",
        multiple=True,
        type=StorageOption(),
        help="Option of the fsspec filesystem of LOCATION, as --storage-option; repeatable.",
    )
    return click.argument("location", metavar="LOCATION", shell_complete=paths)(
        option(cast("_F", call))
    )


def version(text: str) -> Callable[[_F], _F]:
    """Adds ``--version`` with this help."""
    return click.option("--version", "-v", type=click.IntRange(min=0), help=text)


def travel(command: _F) -> _F:
    """``--version`` and ``--timestamp``."""
    timestamp = click.option(
        "--timestamp",
        metavar="TIME",
        help="Read the table at this time: ISO 8601 (UTC by default), or ms since 1970.",
    )
    return version("Read the table at this version.")(timestamp(command))


def output(command: _F) -> _F:
    """``--output`` and ``--to``; the command takes ``output``."""

    @wraps(command)
    def call(
        *,
        output: str | None,
        to: str | None,
        limit: int | None = None,
        columns: str = "",
        **others: Any,
    ) -> Any:
        return command(output=_as_output(output, to, limit, columns), **others)

    form = click.option(
        "--output",
        "-o",
        type=click.Choice(FORMATS),
        help="Format of the result; a table by default, or the format of the suffix of --to.",
    )
    to = click.option(
        "--to",
        shell_complete=paths,
        metavar="FILE",
        help="Write to this file instead of standard output.",
    )
    return form(to(cast("_F", call)))


def rows(command: _F) -> _F:
    """``--limit`` and ``--columns``, in addition to `output`."""
    limit = click.option(
        "--limit", "-n", type=click.IntRange(0, _MOST_ROWS), help="Maximum number of rows."
    )
    columns = click.option(
        "--columns", metavar="A,B", help='Only these columns, in this order: id,"a,b".', default=""
    )
    return output(limit(columns(command)))


def _as_output(form: str | None, to: str | None, limit: int | None, columns: str) -> Output:
    """The options of `rows` as one value; binary output to a terminal is refused."""
    suffix = os.path.splitext(to or "")[1].removeprefix(".").lower()
    if form is None:
        form = _ALIASES.get(suffix, suffix)
        if form not in (*FORMATS, *_TEXT):
            raise click.UsageError(f"no format for .{suffix}: pass --output {'|'.join(FORMATS)}")
        form = "table" if form in _TEXT else form
    if form in ("parquet", "arrow") and to is None and sys.stdout.isatty():
        raise InvalidInputError(
            f"{form} is binary and would garble the terminal",
            hint=f"add --to FILE, or pipe the output: ... --output {form} > FILE",
        )
    if (form, suffix) == ("arrow", "arrow"):
        form = ARROW_FILE
    return Output(form, to, limit, comma_separated(columns))


def comma_separated(text: str) -> tuple[str, ...]:
    """The comma-separated names of an option; a name with a comma or a line break is in double
    quotes, as in CSV.

    >>> comma_separated('id, "last, first",')
    ('id', 'last, first')
    """
    lines = list(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True))
    if len(lines) > 1:
        raise click.UsageError(f"the names {text!r} have a line break outside of double quotes")
    return tuple(name.strip() for line in lines for name in line if name.strip())


def name_text(name: str) -> str:
    """A name as `comma_separated` takes it."""
    return '"' + name.replace('"', '""') + '"' if _QUOTED.search(name) else name
