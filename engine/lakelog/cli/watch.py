"""Counts the reads of a command and shows a progress bar.

The store of a table is wrapped in one that counts, so that lower layers do not depend on progress
bars. The bar polls the meter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lakelog.cli.options import Target

if TYPE_CHECKING:
    from lakelog.table import Table

_PATIENCE_SECONDS = 0.4
_REFRESH_SECONDS = 0.1


class Meter:
    """Counts of files and bytes read; a file that is read twice counts twice."""

    def __init__(self) -> None:
        self.files = 0
        self.size_bytes = 0
        self._lock = threading.Lock()

    def add(self, *, files: int = 0, size_bytes: int = 0) -> None:
        """Count; safe to call from several threads."""
        with self._lock:
            self.files += files
            self.size_bytes += size_bytes


def open_metered(target: Target) -> tuple[Table, Meter]:
    """Open a table whose reads are counted; raises as `lakelog.open`."""
    from lakelog.cli.metered_store import MeteredStore
    from lakelog.table import Table

    table = target.open()
    meter = Meter()
    log = table.log
    metered = replace(log, store=MeteredStore(log.store, meter))
    return Table(metered, cache=table.disk_cache), meter


class Watch:
    """The progress bar of a task; `expect` sets the bytes to read, `show_step` shows a step."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._begin = meter.size_bytes
        self.total_bytes: int | None = None
        self.step: tuple[str, int, int | None] | None = None

    def show_step(self, step: str, done: int, total: int | None) -> None:
        """Show a step, such as ``write``, and its progress."""
        self.step = (step, done, total)

    def expect(self, size_bytes: int) -> None:
        """Set the number of bytes that the whole task will read."""
        self.total_bytes = size_bytes

    @property
    def done_bytes(self) -> int:
        """Bytes read since the start, at most the expected number."""
        done = self.meter.size_bytes - self._begin
        return done if self.total_bytes is None else min(done, self.total_bytes)


@contextmanager
def progress(title: str, meter: Meter) -> Iterator[Watch]:
    """Show a progress bar on standard error if it is a terminal and the task is not short."""
    watch = Watch(meter)
    if not sys.stderr.isatty():
        yield watch
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(title, watch, ended), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


@contextmanager
def open_with_progress(target: Target, title: str) -> Iterator[tuple[Table, Watch]]:
    """Open a table, and show the progress of a task that reads it."""
    table, meter = open_metered(target)
    with progress(title, meter) as watch:
        yield table, watch


def _show(title: str, watch: Watch, ended: threading.Event) -> None:
    if ended.wait(_PATIENCE_SECONDS):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[read]}", style="dim"),
        TimeElapsedColumn(),
    )
    from lakelog.display import size_text

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, read="")
        while True:
            over = ended.wait(_REFRESH_SECONDS)
            read = f"{watch.meter.files:,} files, {size_text(watch.meter.size_bytes)} read"
            done, total, words = watch.done_bytes, watch.total_bytes, title
            if watch.step is not None:
                step, done, total = watch.step
                words = f"{title}: {step}"
            bar.update(task, description=words, total=total, completed=done, read=read)
            if over:
                return
