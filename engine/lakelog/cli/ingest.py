"""The command ``ingest``: rows of files or of standard input. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import click

from lakelog.cli import options
from lakelog.cli.options import Output, Target
from lakelog.cli.output import FINDINGS, GOOD, write_report
from lakelog.cli.text import count
from lakelog.errors import InvalidInputError
from lakelog.input_validation import is_unicode, local_path

if TYPE_CHECKING:
    from lakelog.ingest.files import Format
    from lakelog.ingest.ingestor import Ingestor
    from lakelog.ingest.records import Position
    from lakelog.ingest.rows import FileRows

_INTERRUPTED = 130
_STANDARD_INPUT = "-"
_REFRESH_S = 0.5
_REPORT = (
    "directory rows_durable rows_committed rows_diverted incomplete_files version seconds "
    "is_interrupted"
)


@dataclass(frozen=True)
class _Report:
    """The result of the command."""

    directory: str
    rows_durable: int
    rows_committed: int
    rows_diverted: int
    incomplete_files: tuple[str, ...]
    version: int | None
    seconds: float
    is_interrupted: bool

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        facts = [
            ("read", count(self.rows_durable, "row")),
            ("committed", count(self.rows_committed, "row")),
            ("version", "nothing was committed" if self.version is None else str(self.version)),
            ("directory", self.directory),
        ]
        if self.rows_diverted:
            facts.insert(2, ("diverted", count(self.rows_diverted, "row")))
        facts += [
            ("incomplete", f"the last line of {name}: continue with --resume")
            for name in self.incomplete_files
        ]
        if self.is_interrupted:
            facts.append(("interrupted", "continue files with --resume"))
        return facts


class _Interrupt:
    """The first Ctrl-C or SIGTERM ends reading after the current write; the second, the command."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_reading = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals in the block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        for each in before:
            signal.signal(each, self._handle)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.is_set or self._is_reading:
            self.is_set = True
            self._is_reading = False
            raise KeyboardInterrupt
        self.is_set = True

    def each(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches until the interrupt. Only waiting for the next one is cut short, because an
        interrupted write would leave the state of the log unknown.
        """
        while not self.is_set:
            try:
                self._is_reading = True
                found = next(batches, None)
                self._is_reading = False
            except KeyboardInterrupt:
                return
            if found is None:
                return
            yield found


@options.command(
    "lakelog ingest events events.ndjson more.parquet",
    "lakelog ingest events --on-bad-row divert < events.ndjson",
    "lakelog ingest events big.csv --resume",
    "lakelog ingest users changes.ndjson --key id",
)
@options.target
@options.external
@click.argument("files", nargs=-1, metavar="[FILES]...", shell_complete=options.paths)
@click.option(
    "--directory",
    shell_complete=options.paths,
    metavar="DIR",
    help="Directory of the write-ahead log; by default one for the table in lakelog-ingest.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("ndjson", "csv", "parquet", "arrow")),
    help="Format of the input; by default of the suffix of a file, NDJSON for standard input.",
)
@click.option("--key", metavar="A,B", help="Key columns: a row replaces the one with its key.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Rows per commit.",
)
@click.option("--max-bytes", type=options.Size(), default="128MB", help="Log bytes per commit.")
@click.option(
    "--max-seconds",
    type=float,
    default=10.0,
    show_default=True,
    help="Longest time that a row waits for its commit.",
)
@click.option(
    "--on-bad-row",
    type=click.Choice(("raise", "divert")),
    default="raise",
    show_default=True,
    help="Stop at a row that does not fit, or write it to rejected.ndjson with the reason.",
)
@click.option("--resume", is_flag=True, help="Continue files after their last durable row.")
@options.output
def ingest(
    target: Target,
    files: tuple[str, ...],
    directory: str | None,
    form: Format | None,
    key: str | None,
    max_rows: int,
    max_bytes: int,
    max_seconds: float,
    on_bad_row: Literal["raise", "divert"],
    resume: bool,
    output: Output,
) -> int:
    """Write rows of files, or of standard input, to a table.

    Rows are durable in a local write-ahead log first, and committed in the background, each exactly
    once. NDJSON, CSV (with a header), Parquet and Arrow IPC are read. Ctrl-C commits what was read,
    and ends with exit code 130. The exit code is 1 if rows were diverted, or if the last line of a
    file is incomplete: with --on-bad-row divert it is left to the next call with --resume.
    """
    from lakelog.ingest.ingestor import Ingestor

    begin_s = time.monotonic()
    inputs = _inputs(files, form)
    interrupt = _Interrupt()
    table = target.open()
    directory = directory or _default_directory(table.path)
    with (
        interrupt.installed(),
        Ingestor(
            table,
            directory,
            key=None if key is None else options.comma_separated(key),
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_seconds=max_seconds,
            on_bad_row=on_bad_row,
        ) as ingestor,
    ):
        starts = _starts(inputs, ingestor, resume=resume)
        line = _ProgressLine(ingestor)
        waits = on_bad_row == "divert"
        incomplete = [
            name
            for name, kind in inputs
            if not _read(name, kind, starts.get(name), ingestor, interrupt, line, waits=waits)
        ]
        line.clear()
        ingestor.flush()
        status = ingestor.status()
    report = _Report(
        ingestor.directory,
        status.rows_durable,
        status.rows_committed,
        status.rows_diverted,
        tuple(incomplete),
        status.version,
        time.monotonic() - begin_s,
        interrupt.is_set,
    )
    write_report(report, report.facts, _REPORT, output)
    if report.is_interrupted:
        return _INTERRUPTED
    return FINDINGS if report.rows_diverted or report.incomplete_files else GOOD


def _inputs(files: tuple[str, ...], form: Format | None) -> list[tuple[str, Format]]:
    """Absolute paths, of files without links, which name a file once; or standard input; with their
    formats.
    """
    from lakelog.ingest.files import format_of

    found: list[tuple[str, Format]] = []
    for name in files or (_STANDARD_INPUT,):
        if name == _STANDARD_INPUT:
            if form == "parquet":
                raise click.UsageError("Parquet cannot be read from standard input: name the file")
            found.append((name, form or "ndjson"))
        elif not is_unicode(name):
            raise InvalidInputError(
                "the name of the file is not UTF-8, and its position cannot be recorded",
                path=name,
                hint="rename the file, or read it through standard input with < and --format",
            )
        elif os.path.isdir(name):
            raise InvalidInputError(
                "the path is a folder, not a file",
                path=name,
                hint=f"name the files in it, such as {os.path.join(name, '*.ndjson')}",
            )
        else:
            kind = form or format_of(name)
            if kind == "parquet" and not _can_be_read_again(name):
                raise click.UsageError(f"Parquet cannot be read from a pipe: {name}")
            path = os.path.realpath(name) if os.path.isfile(name) else os.path.abspath(name)
            found.append((path, kind))
    if len({name for name, _ in found}) < len(found):
        raise click.UsageError("a file is named twice")
    return found


def _can_be_read_again(name: str) -> bool:
    """Whether a position in an input has a meaning: not in standard input, nor in a pipe such as
    ``<(...)`` of a shell.
    """
    return name != _STANDARD_INPUT and (os.path.isfile(name) or not os.path.exists(name))


def _default_directory(location: str) -> str:
    """A directory of the table's own, below the working directory: one for all spellings of its
    location.

    >>> _default_directory("s3://bucket/events/")
    'lakelog-ingest/events-20698a0a'
    """
    where = location.rstrip("/")
    where = where if "://" in where else os.path.realpath(local_path(where))
    name = re.sub(r"[^\w.-]", "_", where.rpartition("/")[2])
    return f"lakelog-ingest/{name}-{hashlib.sha256(where.encode()).hexdigest()[:8]}"


def _starts(
    inputs: list[tuple[str, Format]], ingestor: Ingestor, *, resume: bool
) -> dict[str, Position]:
    """Where to begin in each file."""
    known = ingestor.positions()
    begun = {n: known[n] for n, _ in inputs if n in known and _can_be_read_again(n)}
    if begun and not resume:
        path, position = next(iter(begun.items()))
        raise InvalidInputError(
            "rows of the file are durable in this directory or committed",
            path=path,
            found=f"position {position.offset}",
            hint="pass --resume to continue after them; to write them again, use another directory",
        )
    return begun


def _read(
    name: str,
    form: Format,
    start: Position | None,
    ingestor: Ingestor,
    interrupt: _Interrupt,
    line: _ProgressLine,
    *,
    waits: bool,
) -> bool:
    """Write the rows of an input. False if it `waits` for the rest of the last line."""
    from lakelog.ingest.files import STANDARD_INPUT, read_file, read_stream

    columns = ingestor.table.snapshot(max_staleness=60).schema.names
    is_file = _can_be_read_again(name)
    if name == _STANDARD_INPUT:
        stream: BinaryIO = sys.stdin.buffer
        batches = read_stream(stream, form, columns)
    else:
        batches = read_file(name, form, columns, *(start or ()))
    position = start.offset if start else 0
    for rows, after in interrupt.each(batches):
        if rows.is_incomplete and waits:
            return False
        try:
            if is_file:
                ingestor.write(rows, source=name, offset=after)
            else:
                ingestor.write(rows)
        except InvalidInputError as error:
            error.path = error.path or rows.file or STANDARD_INPUT
            known = {column.lower() for column in columns}
            if error.column is None or error.column.lower() in known:
                step = _next_step(rows, position, is_file=is_file)
                error.hint = f"{error.hint}; {step}" if error.hint else step
            elif form == "csv":
                error.line, error.hint = 1, f"correct the header, and repeat the command; {_ADD}"
            else:
                error.hint = f"{_next_step(rows, position, is_file=is_file)}; {_ADD}"
            raise
        position = after
        line.show()
    return True


_ADD = "or add the column first, in Python: Table.alter.add_columns"


def _next_step(rows: FileRows, position: int, *, is_file: bool) -> str:
    """What to do after a bad row of a batch, of which nothing was written."""
    durable = f"the rows before {rows.unit} {rows.numbers()[0]} are" if position else "no row is"
    if rows.is_incomplete:
        return f"{durable} durable: pass --resume when this line is complete"
    again = "pass --resume" if is_file else "pass it and the later ones"
    return f"{durable} durable: correct the row and {again}, or pass --on-bad-row divert"


class _ProgressLine:
    """A line on a terminal: rows, rows per second, lag and backlog."""

    def __init__(self, ingestor: Ingestor) -> None:
        self._ingestor = ingestor
        self._is_shown = sys.stderr.isatty()
        self._begin_s = self._last_s = time.monotonic()

    def show(self) -> None:
        """Update the line, if it is old enough."""
        now_s = time.monotonic()
        if not self._is_shown or now_s - self._last_s < _REFRESH_S:
            return
        from lakelog.display import size_text

        self._last_s = now_s
        status = self._ingestor.status()
        rate = status.rows_durable / (now_s - self._begin_s)
        text = (
            f"{status.rows_durable:,} rows, {rate:,.0f} rows/s, {status.rows_committed:,} "
            f"committed, lag {status.lag_seconds:.1f} s, backlog {size_text(status.backlog_bytes)}"
        )
        click.echo(f"\r\033[K{text}", nl=False, err=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            click.echo("\r\033[K", nl=False, err=True)


COMMANDS = (ingest,)
"""The commands of this module."""
