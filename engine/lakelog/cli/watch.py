"""Counts the reads of a command and shows a progress bar.

A `MeteredStore` wraps the store of a table, so that lower layers do not depend on progress bars.
The bar polls the meter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, cast

import lakelog
from lakelog.cli.options import Target
from lakelog.storage import LogStore, StoreWrapper
from lakelog.storage.wrapper import FileWrapper

if TYPE_CHECKING:
    from lakelog.table import Table

_PATIENCE_SECONDS = 0.4
_REFRESH_SECONDS = 0.1


class Meter:
    """Counts of files and bytes read.

    Attributes:
        files: Number of file reads; a file that is read twice counts twice.
        size_bytes: Bytes read.
    """

    def __init__(self) -> None:
        self.files = 0
        self.size_bytes = 0
        self._lock = threading.Lock()

    def add(self, *, files: int = 0, size_bytes: int = 0) -> None:
        """Count; safe to call from several threads."""
        with self._lock:
            self.files += files
            self.size_bytes += size_bytes


class MeteredStore(StoreWrapper):
    """A `LogStore` that counts what is read through it."""

    def __init__(self, store: LogStore, meter: Meter) -> None:
        super().__init__(store)
        self._meter = meter

    def read(self, path: str) -> bytes:
        """As the store below, counted."""
        data = self._store.read(path)
        self._meter.add(files=1, size_bytes=len(data))
        return data

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the store below, counted."""
        for data in self._store.read_many(paths):
            self._meter.add(files=1, size_bytes=len(data))
            yield data

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the store below, counted."""
        file = self._store.open(path, size_bytes)
        self._meter.add(files=1)
        return cast("BinaryIO", _MeteredFile(file, self._meter))


class _MeteredFile(FileWrapper):
    """A seekable reader that counts."""

    def __init__(self, file: BinaryIO, meter: Meter) -> None:
        super().__init__(file)
        self._meter = meter

    def read(self, size: int = -1, /) -> bytes:
        data = super().read(size)
        self._meter.add(size_bytes=len(data))
        return data


def open_metered(target: Target) -> tuple[Table, Meter]:
    """Open a table whose reads are counted; raises as `lakelog.open`."""
    from lakelog.table import Table

    table = lakelog.open(target.path, target.storage_options, read_timeout=target.read_timeout)
    meter = Meter()
    log = table.log
    return Table(replace(log, store=MeteredStore(log.store, meter))), meter


class Watch:
    """The progress bar of one task; `expect` sets the number of bytes to read, `tell` the step
    and its progress.
    """

    def __init__(self, meter: Meter) -> None:
        self._begin = meter.size_bytes
        self.total_bytes: int | None = None
        self.step: tuple[str, int, int | None] | None = None

    def tell(self, step: str, done: int, total: int | None) -> None:
        """Show a step, such as ``write``, and its progress."""
        self.step = (step, done, total)

    def expect(self, size_bytes: int) -> None:
        """Set the number of bytes that the whole task will read."""
        self.total_bytes = size_bytes

    def done_bytes(self, meter: Meter) -> int:
        """Bytes read since the start, at most the expected number."""
        done = meter.size_bytes - self._begin
        return done if self.total_bytes is None else min(done, self.total_bytes)


@contextmanager
def progress(title: str, meter: Meter) -> Iterator[Watch]:
    """Show a bar on standard error during the task, if that is a terminal.

    A short task shows no bar.
    """
    watch = Watch(meter)
    if not sys.stderr.isatty():
        yield watch
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(title, meter, watch, ended), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def _show(title: str, meter: Meter, watch: Watch, ended: threading.Event) -> None:
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
    from lakelog.log.display import size_text

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, read="")
        while True:
            over = ended.wait(_REFRESH_SECONDS)
            read = f"{meter.files:,} files, {size_text(meter.size_bytes)} read"
            done, total, words = watch.done_bytes(meter), watch.total_bytes, title
            if watch.step is not None:
                step, done, total = watch.step
                words = f"{title}: {step}"
            bar.update(task, description=words, total=total, completed=done, read=read)
            if over:
                return
