"""``lakelog top``: follows the commits of a table.

On a terminal, one screen is refreshed; in a pipe, a header is followed by one line per commit. A
commit was rebased if its commitInfo has a ``readVersion`` below the version before it: other
writers were faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

import click

from lakelog.cli import options
from lakelog.cli.options import Target
from lakelog.cli.text import count, seconds_text, time_text
from lakelog.display import plain
from lakelog.errors import UnavailableError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from lakelog.table import Table

_SCREEN_COMMITS = 15
_FIRST_COMMITS = 50
_COLUMNS = ("version", "timestamp", "operation", "userName", "rebased", "operationMetrics")
_LINE = (9, 24, 16, 12, 7, 0)
"""Least width of each column of a line, in characters; a longer value moves the ones after it."""


@dataclass(frozen=True)
class Reading:
    """One reading of the log.

    Attributes:
        version: The latest version.
        files: Number of live files.
        size_bytes: Their size.
        commits: The commits within the window, newest first, and at least the latest one; columns
            `_COLUMNS`.
        new: Number of `commits` that the reading before did not have.
        at_ms: Time of the reading.
    """

    version: int
    files: int
    size_bytes: int
    commits: pl.DataFrame
    new: int
    at_ms: int


@options.command(
    "lakelog top orders",
    'lakelog top orders --interval "10 seconds" --window "1 hour"',
    "lakelog top orders --count 1",
)
@options.target
@click.option(
    "--interval",
    "interval_ms",
    type=options.Duration(),
    default="2 seconds",
    show_default=True,
    help="Time between two readings of the log.",
)
@click.option(
    "--window",
    "window_ms",
    type=options.Duration(),
    default="10 minutes",
    show_default=True,
    help="Commits are counted over this time.",
)
@click.option(
    "--count",
    "readings",
    type=click.IntRange(min=1),
    help="Number of readings; by default, until Ctrl-C.",
)
def top(target: Target, interval_ms: int, window_ms: int, readings: int | None) -> None:
    """Follow the commits of a table: rate, files, size, age of the last commit, conflicts.

    A terminal shows one screen, a pipe gets a header and one line per commit. A commit is rebased
    if other writers committed after its transaction began.
    """
    table = target.open()
    found = _readings(table, interval_ms / 1000, window_ms, readings)
    try:
        if sys.stdout.isatty():
            _show_screens(target.path, found, window_ms)
        else:
            _show_lines(found)
    except KeyboardInterrupt:
        return


def _readings(
    table: Table, interval_s: float, window_ms: int, readings: int | None
) -> Iterator[Reading | UnavailableError]:
    """Readings of the log, or the error of a store that cannot be reached; the first one raises."""
    snapshot = table.snapshot()
    commits = _commits(table, window_ms, snapshot.version)
    last = -1
    while True:
        now_ms = table.log.clock()
        since = commits["version"].max()
        assert isinstance(since, int)
        yield Reading(
            snapshot.version,
            snapshot.num_files(),
            snapshot.total_size(),
            commits,
            commits.filter(commits["version"] > last).height,
            now_ms,
        )
        last = since
        while True:
            if readings is not None:
                readings -= 1
                if readings == 0:
                    return
            sleep(interval_s)
            try:
                later = snapshot.update()
                if later is not snapshot:
                    commits = _commits(table, window_ms, later.version)
                    snapshot = later
                break
            except UnavailableError as error:
                yield error


def _commits(table: Table, window_ms: int, version: int) -> pl.DataFrame:
    """The commits up to a version within the window, newest first; at least the latest one. They
    begin above a commit that cannot be read.
    """
    import polars as pl

    from lakelog.log.history import read_above_damage

    start_ms = table.log.clock() - window_ms

    def commits(above: int) -> pl.DataFrame:
        if above >= 0:
            return table.history(version - above)
        limit = _FIRST_COMMITS
        while True:
            found = table.history(limit)
            times = found["timestamp"].dt.epoch("ms")
            if found.height < limit or (times < start_ms).any():
                return found
            limit *= 4

    history, _ = read_above_damage(table.log, version, commits, "commits are shown")
    read = pl.col("extra").str.json_path_match("$.readVersion").cast(pl.Int64, strict=False)
    behind = pl.col("version") - 1 - read
    is_shown = (pl.col("timestamp").dt.epoch("ms") >= start_ms) | (pl.int_range(pl.len()) == 0)
    return (
        history.filter(pl.col("version") <= version)
        .with_columns(pl.when(behind > 0).then(behind).alias("rebased"))
        .filter(is_shown)
        .select(_COLUMNS)
    )


def _facts(reading: Reading, first: Reading, window_ms: int) -> list[tuple[str, str]]:
    from lakelog.display import size_text

    commits = reading.commits
    recent = commits.filter(commits["timestamp"].dt.epoch("ms") >= reading.at_ms - window_ms)
    latest = commits["timestamp"].dt.epoch("ms")[0]
    age = "unknown" if latest is None else seconds_text(max(0, reading.at_ms - latest) / 1000)
    rebased = recent.filter(recent["rebased"].is_not_null()).height
    grown = reading.files - first.files
    per_minute = recent.height / (window_ms / 60_000)
    return [
        ("version", f"{reading.version}, committed {age} ago"),
        ("commits", f"{per_minute:.1f} per minute over {seconds_text(window_ms / 1000)}"),
        ("files", f"{reading.files:,} ({grown:+,} since the start of this command)"),
        ("size", size_text(reading.size_bytes)),
        ("conflicts", f"{count(rebased, 'commit')} of {recent.height:,} rebased"),
    ]


def _show_screens(
    name: str, readings: Iterator[Reading | UnavailableError], window_ms: int
) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from lakelog.cli import rendering

    console = Console(highlight=False)
    parts: list[RenderableType] = []
    first: Reading | None = None
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for reading in readings:
            if isinstance(reading, UnavailableError):
                notice = Text(f"unreachable, trying again: {plain(reading.message)}", style="red")
                live.update(Group(*parts, notice), refresh=True)
                continue
            first = first or reading
            latest = reading.commits.head(_SCREEN_COMMITS)
            empty = [name for name in latest.columns if latest[name].is_null().all()]
            shown = rendering.fitting(latest.drop(empty), console.width)
            parts = [
                Text(f"{plain(name)} at {_clock(reading)}", style="bold"),
                rendering.facts_table(_facts(reading, first, window_ms)),
                Text(),
                rendering.rich_table(shown),
            ]
            live.update(Group(*parts), refresh=True)
    console.print(*parts, sep="\n")  # the screen is left, so its last content is shown again


def _show_lines(readings: Iterator[Reading | UnavailableError]) -> None:
    from lakelog.cli import rendering

    def show(values: Sequence[str]) -> None:
        padded = (value.ljust(width) for value, width in zip(values, _LINE, strict=True))
        click.echo("  ".join(padded).rstrip())

    show(_COLUMNS)
    for reading in readings:
        if isinstance(reading, UnavailableError):
            click.echo(f"unreachable, trying again: {plain(reading.message)}", err=True)
            continue
        for row in reading.commits.head(reading.new).reverse().iter_slices(1):
            show(rendering.row_texts(row))
        sys.stdout.flush()


def _clock(reading: Reading) -> str:
    import datetime as dt

    return time_text(dt.datetime.fromtimestamp(reading.at_ms // 1000, dt.UTC))


COMMANDS = (top,)
"""The commands of this module."""
