"""``lakelog demo``: creates a table and runs the main job step by step, with timings."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import polars as pl
from rich.padding import Padding
from rich.text import Text

from lakelog.cli import rendering
from lakelog.cli.options import Target
from lakelog.cli.text import count, seconds_text, time_text
from lakelog.cli.watch import Meter, open_metered
from lakelog.demo import (
    Calendar,
    append_commit,
    commit_ms,
    local_folder,
    make_table,
    plan,
    set_times,
)
from lakelog.display import argument, size_text
from lakelog.errors import ConflictError, InternalError

if TYPE_CHECKING:
    from lakelog.snapshot import Snapshot
    from lakelog.table import Table

_SHOWN = 5
_PART_BYTES = 64 << 10


def run_demo(directory: str | None, commits: int, seed: int) -> None:
    """Create the table in `directory` (None: a temporary folder) and show the main operations."""
    calendar = plan(commits)  # raises for too few commits before anything is created
    mistake = calendar.mistake_version
    # A compaction leaves one file in each partition, and the next commit is that of another day.
    more = 2 if calendar.operations[-1] == "OPTIMIZE" else 1
    begin = time.perf_counter()
    show = _Show()
    root = local_folder(directory or tempfile.mkdtemp(prefix="lakelog-demo-"))
    table_path, state_path = str(root / "table"), str(root / "parquet")
    _make(show, table_path, calendar, seed)
    table, meter = open_metered(Target(table_path, {}))
    show.meter = meter
    snapshot = _open(show, table)
    where = _condition(snapshot)
    _prune(show, snapshot, where)
    _read_rows(show, table, snapshot, where)
    _measure(show, snapshot)
    _history(show, table)
    restored = _differ(show, table, mistake)
    _travel(show, table, mistake)
    _blame(show, table, restored)
    snapshot = _update(show, snapshot, more, seed)
    snapshot = _commit(show, table, snapshot)
    _checkpoint(show, table, snapshot)
    _cleanup(show, table)
    _replay(show, snapshot, state_path)
    _read_back(show, snapshot, state_path)
    show.ending(table_path, state_path, time.perf_counter() - begin)


def _make(show: _Show, path: str, calendar: Calendar, seed: int) -> None:
    commits = len(calendar.operations)
    with show.step("Make a table", f"lakelog.demo.make_table({path!r}, {commits}, {seed})"):
        make_table(path, commits, seed)
    log = Path(path, "_delta_log")
    actions = sum(file.read_bytes().count(b"\n") for file in log.glob("*.json"))
    size_bytes = sum(file.stat().st_size for file in log.iterdir())
    show.print_paragraph(
        f"Seed {seed}: {count(commits, 'commit')} with {actions:,} actions and a checkpoint at "
        f"{calendar.checkpoint_version}, {size_text(size_bytes)}."
    )


def _open(show: _Show, table: Table) -> Snapshot:
    with show.step("Open it and replay its log", "snapshot = lakelog.open(path).snapshot()"):
        snapshot = table.snapshot()
        files, size_bytes = snapshot.num_files(), snapshot.total_size()
    provenance = snapshot.provenance
    assert provenance.checkpoint is not None
    committed = time_text(snapshot.facts()["timestamp"])
    show.print_paragraph(
        f"Version {snapshot.version}, committed {committed}: {count(files, 'live file')}, "
        f"{size_text(size_bytes)}; from the checkpoint at {provenance.checkpoint.version} and "
        f"{count(len(provenance.commits), 'commit')} above it."
    )
    return snapshot


def _prune(show: _Show, snapshot: Snapshot, where: str) -> None:
    code = f'lakelog files {argument(snapshot.path)} --where "{where}"'
    with show.step("Ask which files may hold rows", code):
        kept = snapshot.files(where=where).select("path", "size", "version").collect()
    show.print_paragraph(
        f"{kept.height:,} of {count(snapshot.num_files(), 'file')}, by partition value and by "
        "statistics; the largest:"
    )
    show.rows(kept.sort("size", "path", descending=[True, False]).head(_SHOWN))


def _condition(snapshot: Snapshot) -> str:
    """A condition that few files may satisfy."""
    day = dt.datetime.fromtimestamp(commit_ms(snapshot.version) / 1000, dt.UTC).date()
    return f"day >= '{day - dt.timedelta(days=1)}' and amount > 1500"


def _read_rows(show: _Show, table: Table, snapshot: Snapshot, where: str) -> None:
    with show.step("Read rows", f'table.to_polars("{where}")'):
        rows = table.to_polars(where)
    recorded = snapshot.num_rows()
    _agree("rows by the log and in the files", recorded, table.to_polars().height)
    show.print_paragraph(
        f"{rows.height:,} of {count(recorded, 'row')}; files that cannot match were not opened:"
    )
    show.rows(rows.sort("amount", descending=True).head(_SHOWN))


def _measure(show: _Show, snapshot: Snapshot) -> None:
    with show.step("Read typed statistics", "snapshot.files(stats=True, flatten=True)"):
        by_region = (
            snapshot.files(stats=True, flatten=True)
            .group_by(pl.col("partition.region").alias("region"))
            .agg(
                pl.len().alias("files"),
                pl.col("size").sum(),
                pl.col("numRecords").sum().alias("rows"),
                pl.col("max").struct.field("amount").max().alias("highest amount"),
                pl.col("max").struct.field("placed_at").max().alias("last order"),
            )
            .sort("region")
            .collect()
        )
    show.print_paragraph("The values of the table, without opening a data file:")
    show.rows(by_region)


def _history(show: _Show, table: Table) -> None:
    with show.step("Read its history", "table.history()"):
        history = table.history()
    by_operation = (
        history.group_by("operation", "userName")
        .agg(pl.len().alias("commits"), pl.col("version").max().alias("last version"))
        .sort("commits", "operation", descending=[True, False])
    )
    show.print_paragraph(f"Operations and users of {count(history.height, 'commit')}:")
    show.rows(by_operation)


def _differ(show: _Show, table: Table, mistake: int) -> str:
    """Show the effect of the mistaken deletion; returns a file that it removed."""
    before = mistake - 1
    with show.step("Find out what a commit did", f"table.diff({before}, {mistake})"):
        changes = table.diff(before, mistake)
    removed = changes.filter((pl.col("kind") == "file") & (pl.col("change") == "removed"))
    added = changes.filter((pl.col("kind") == "file") & (pl.col("change") == "added"))
    show.print_paragraph(
        f"A mistaken deletion removed {count(removed.height, 'file')} and wrote the remaining rows "
        f"to {count(added.height, 'file')}."
    )
    show.rows(changes.select("version", "operation", "kind", "change", "name").head(_SHOWN))
    return str(removed["name"][0])


def _travel(show: _Show, table: Table, mistake: int) -> None:
    moment = commit_ms(mistake) - 1
    with show.step("Travel in time", f"table.snapshot(timestamp={moment})"):
        early = table.snapshot(timestamp=moment)
        by_version = table.snapshot(version=mistake - 1)
        counts = early.num_files(), by_version.num_files()
    _agree("files by timestamp and by version", *counts)
    show.print_paragraph(
        f"A millisecond before that deletion the table was at version {early.version}, with "
        f"{count(counts[0], 'file')}; by timestamp and by version alike."
    )


def _blame(show: _Show, table: Table, path: str) -> None:
    with show.step(
        "Follow one file's life", f'table.blame("{rendering.clip(path, 40, middle=True)}")'
    ):
        life = table.blame(path)
    show.print_paragraph("Added, deleted by mistake and restored, among other commits:")
    show.rows(life.select("version", "timestamp", "actionType", "operation", "userName", "size"))


def _update(show: _Show, snapshot: Snapshot, more: int, seed: int) -> Snapshot:
    versions = range(snapshot.version + 1, snapshot.version + more + 1)
    added = sum(append_commit(snapshot.path, version, seed) for version in versions)
    files = snapshot.num_files()
    with show.step(f"Keep up after {count(more, 'more commit')}", "snapshot = snapshot.update()"):
        later = snapshot.update()
    _agree("files after the update", later.num_files(), files + added)
    show.print_paragraph(
        f"Version {later.version} has {count(added, 'file')} more. An update costs the new "
        "commits, not the table."
    )
    return later


def _commit(show: _Show, table: Table, snapshot: Snapshot) -> Snapshot:
    partition = ["partition.day", "partition.region"]
    files = snapshot.files(flatten=True).select(*partition)
    groups = files.group_by(partition).agg(pl.len()).collect()
    day, region, many = groups.sort("len", *partition, descending=True).row(0)
    where = f"day = '{day}' and region = '{region}'"
    slow = table.transaction(operation="DELETE")
    old = snapshot.files(where=where).collect()
    hour = commit_ms(snapshot.version + 1)  # the next one of the table, and not today's
    then = type(table)(replace(table.log, clock=lambda: hour))
    then.snapshot()
    with show.step("Compact a partition", f'table.compact(where="{where}")'):
        report = then.compact(where=where, user_name="housekeeping")
        later = snapshot.update()
    set_times(Path(snapshot.path, "_delta_log"), range(later.version, later.version + 1))
    _agree("files after the compaction", later.num_files(), snapshot.num_files() - many + 1)
    show.print_paragraph(
        f"Version {report.version} has {count(many, 'file')} of {day}, {region} merged into one. "
        "A slower writer that started before, and removes one of them, gets a conflict:"
    )
    slow.remove(old.head(1))
    try:
        slow.commit()
    except ConflictError as conflict:
        show.print_paragraph(f"{type(conflict).__name__}: {conflict.message}")
    else:
        raise InternalError("the demonstration's second writer met no conflict")
    return later


def _checkpoint(show: _Show, table: Table, snapshot: Snapshot) -> None:
    with show.step("Write a checkpoint, verified", "table.checkpoint()"):
        report = table.checkpoint()
    files = snapshot.num_files()
    _agree("the checkpoint", (report.verified, report.num_adds), (True, files))
    before, now = snapshot.provenance.commits, open_metered(Target(snapshot.path, {}))[0].snapshot()
    _agree("files from the checkpoint", now.num_files(), files)
    show.print_paragraph(
        f"Version {report.version}, {report.layout}: {count(files, 'live file')} in "
        f"{size_text(report.size_bytes)}, read back and compared with replay in "
        f"{seconds_text(report.verify_seconds)} before publication. Opening the table read "
        f"{count(len(before), 'commit')} before, and reads {len(now.provenance.commits)} now."
    )


def _cleanup(show: _Show, table: Table) -> None:
    with show.step("Plan a cleanup of the log", "plan = table.cleanup()"):
        plan = table.cleanup()
    if plan.files.is_empty():
        show.print_paragraph("No file can be deleted: the table's retention keeps every version.")
        return
    show.print_paragraph(
        f"{count(plan.files.height, 'file')}, {size_text(plan.size_bytes)}, can be deleted: the "
        f"table's retention keeps versions from {plan.oldest_promised} on, and the checkpoint at "
        f"{plan.checkpoint_version} replaces the older files. plan.apply() verifies that "
        "checkpoint, then deletes:"
    )
    show.rows(
        plan.files.group_by("kind")
        .agg(
            pl.len().alias("files"),
            pl.col("size_bytes").sum().alias("size"),
            pl.col("version").min().alias("first version"),
            pl.col("version").max().alias("last version"),
        )
        .sort("files", "kind", descending=[True, False])
    )


def _replay(show: _Show, snapshot: Snapshot, path: str) -> None:
    with show.step("Write the state as Parquet", f"snapshot.write_parquet({path!r})"):
        manifest = snapshot.write_parquet(path, _PART_BYTES)
    show.print_paragraph(
        f"{count(manifest.num_rows, 'row')}: {count(manifest.num_files, 'live file')}, "
        f"{count(manifest.num_tombstones, 'tombstone')} and the rest of the state, in "
        f"{count(len(manifest.parts), 'part')}, "
        f"{size_text(sum(p.size_bytes for p in manifest.parts))}, and a manifest."
    )


def _read_back(show: _Show, snapshot: Snapshot, path: str) -> None:
    with show.step("Read it back with Polars", f'pl.scan_parquet("{path}/*.parquet")'):
        written = (
            pl.scan_parquet(f"{path}/*.parquet").select("actionType", "path", "size").collect()
        )
    adds = written.filter(pl.col("actionType") == "add").select("path", "size").sort("path")
    live = snapshot.files().select("path", "size").collect().sort("path")
    tombstones = snapshot.tombstones().select(pl.len()).collect().item()
    _agree("live files read back", adds.rows(), live.rows())
    _agree(
        "tombstones read back",
        written.filter(pl.col("actionType") == "remove").height,
        tombstones,
    )
    show.print_paragraph(
        f"The same {count(adds.height, 'file')}, {size_text(int(adds['size'].sum()))} and "
        f"{count(tombstones, 'tombstone')}. DuckDB and Spark read the folder directly, too."
    )


def _agree(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise InternalError(f"the demonstration contradicts itself: {what}", hint="report a bug")


class _Show:
    """Prints the numbered steps with their time and reads."""

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self._number = 0

    @contextmanager
    def step(self, title: str, code: str) -> Iterator[None]:
        """Time one step and count what it reads, then print its heading."""
        if not self._number:
            self._print(Text("From a Delta log to the state of the table.", style="bold"))
        self._number += 1
        files, size_bytes = self._read()
        begin = time.perf_counter()
        yield
        cost = [seconds_text(time.perf_counter() - begin)]
        files_now, size_now = self._read()
        if files_now > files:
            read = f"{count(files_now - files, 'file')} read, {size_text(size_now - size_bytes)}"
            cost.append(read)
        heading = Text.assemble(
            (f"\n{self._number:>2}  ", "cyan"), (title, "bold"), (f"   {', '.join(cost)}", "green")
        )
        self._print(heading, Padding(Text(code, style="dim"), (0, 0, 0, 4)))

    def _read(self) -> tuple[int, int]:
        return (self.meter.files, self.meter.size_bytes) if self.meter else (0, 0)

    def print_paragraph(self, text: str) -> None:
        """Print the result of a step."""
        self._print(Padding(Text(text), (0, 0, 0, 4)))

    def rows(self, frame: pl.DataFrame) -> None:
        """Print some rows of the result of a step."""
        self._print(Padding(rendering.rich_table(frame), (0, 0, 0, 4)))

    def ending(self, table_path: str, state_path: str, seconds: float) -> None:
        """Print the locations of the results, and commands to try."""
        self._print(Text(f"\nDone in {seconds_text(seconds)}. The files were kept:", style="bold"))
        self._print(
            Padding(
                rendering.facts_table([("table", table_path), ("Parquet", state_path)]),
                (0, 0, 0, 4),
            )
        )
        self._print(Text("Try:", style="bold"))
        table = argument(table_path)
        for command in (
            f"lakelog info {table}",
            f"lakelog rows {table} --where \"day = '2026-01-02'\" --limit 5",
            f"lakelog history {table} --limit 5",
            f"lakelog cleanup {table}",
        ):
            self._print(Padding(Text(command), (0, 0, 0, 4)))

    def _print(self, *things: Any) -> None:
        # Each step is shown as soon as it ends.
        click.echo(rendering.render(things), color=True)
