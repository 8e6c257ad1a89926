"""Cleanup deletes files between two operations of a call that reads commits or maintains the log.

The call lists again, and uses the files that exist, without a gap.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pytest

import lakelog
from lakelog import LakelogWarning, Table
from lakelog.storage.base import FileEntry, LogStore, StoreWrapper
from tests.budget import IS_WHOLE, seed_of
from tests.races import keepers

LAST = 6
CASES = {
    "classic": ("delta", {}, "classic"),
    "v2": ("delta", {"delta.checkpointPolicy": "v2"}, "v2-json"),
    "indextables": ("indextables", {}, "json"),
}


class Overtaken(StoreWrapper):
    """A store whose files change at one operation: a call that lists before it is overtaken."""

    def __init__(self, store: LogStore, after: int, change: Callable[[], object]) -> None:
        super().__init__(store)
        self.left = after
        self._change = change

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._change()

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        self._count()
        return self._store.list_from(folder, start)

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        self._count()
        return self._store.walk(folder)

    def read(self, path: str) -> bytes:
        self._count()
        return self._store.read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        return map(self.read, paths)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        self._count()
        return self._store.open(path, size_bytes)

    def stat(self, path: str) -> FileEntry | None:
        self._count()
        return self._store.stat(path)


class Made:
    """A table, and the same one cleaned up, again and again."""

    def __init__(self, root: Path, name: str) -> None:
        form, properties, self.layout = CASES[name]
        self.root = root
        before = root / "before"
        interval = {
            "delta": "delta.checkpointInterval",
            "indextables": "spark.indextables.checkpoint.interval",
        }
        table = lakelog.create(
            before, {"x": pl.Int64}, (), form, {**properties, interval[form]: "1000"}, upkeep=False
        )
        keepers.age(table, 0)
        for version in range(1, LAST + 1):
            keepers.commit(table, version, str(before))
            if version == LAST // 2:
                table.checkpoint(layout=self.layout)
        self.folder = table.log.dialect.log_folder
        shutil.copytree(before, root / "after")
        cleaned = lakelog.open(root / "after", upkeep=False)
        for version in range(LAST):
            at = 1_700_000_000 + version
            os.utime(root / "after" / self.folder / f"{version:020d}.json", (at, at))
        cleaned.checkpoint(layout=self.layout)
        cleaned.cleanup(plan=False, retention=0, checkpoint_retention=0, force=True)
        assert cleaned.versions() == [(LAST, LAST)]

    def overtaken(self, where: Path, after: int) -> tuple[Table, Overtaken]:
        """The table, which is cleaned up immediately before an operation."""
        shutil.copytree(self.root / "before", where, copy_function=os.link)

        def clean() -> None:
            new = self.root / "after" / self.folder
            old = where / self.folder
            shutil.copytree(new, old, dirs_exist_ok=True, copy_function=_relink)
            for path in [p for p in old.rglob("*") if p.is_file()]:
                if not (new / path.relative_to(old)).exists():
                    path.unlink()

        log = lakelog.open(where, upkeep=False).log
        store = Overtaken(log.store, after, clean)
        return Table(replace(log, store=store)), store


def _relink(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("vanishing"), request.param)


# Each is asked of a table that cleanup overtakes at some moment.


def actions(table: Table, _made: Made) -> None:
    told = table.actions().select("version", "timestamp", "path").collect()
    versions = told["version"].unique().sort().to_list()
    assert versions == list(range(versions[0], LAST + 1))
    assert told["timestamp"].null_count() == 0


def blame(table: Table, _made: Made) -> None:
    told = table.blame(keepers.name_of(LAST))
    assert told["actionType"].to_list() == ["add"]


def checkpoint(table: Table, made: Made) -> None:
    report = table.checkpoint(layout=made.layout)
    assert report.version == LAST
    assert report.verified or report.reused
    keepers.check(lakelog.open(table.path).snapshot(), table.format)


def verify(table: Table, _made: Made) -> None:
    report = table.verify()
    assert report.verdict in {"proved", "unprovable"}
    assert "damaged" not in (report.reason or "")


def cleanup(table: Table, _made: Made) -> None:
    report: Any = table.cleanup(plan=False, retention=0, checkpoint_retention=0, force=True)
    assert not report.errors
    keepers.check(lakelog.open(table.path).snapshot(), table.format)


def vacuum(table: Table, _made: Made) -> None:
    table.vacuum(plan=False, keep_history=table.format == "delta")
    keepers.check(lakelog.open(table.path).snapshot(), table.format)


@pytest.mark.parametrize(
    ("call", "step"),
    [
        (actions, 1),
        (blame, 2),
        (checkpoint, 2),
        (verify, 1),
        (cleanup, 4),
        (vacuum, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_whoever_is_overtaken_by_cleanup_looks_again(
    made: Made, tmp_path: Path, call: Callable[[Table, Made], None], step: int
) -> None:
    stride = step if IS_WHOLE else 4 * step
    start = seed_of(f"{call.__name__} {made.layout}") % stride
    for after in count(2 + start, stride):  # the first operation is the first look
        table, store = made.overtaken(tmp_path / str(after), after)
        with warnings.catch_warnings():
            # That commits are no longer on disk is told, and so it is.
            warnings.simplefilter("ignore", LakelogWarning)
            try:
                call(table, made)
            except BaseException as error:
                error.add_note(f"cleaned up before operation {after}")
                raise
        if store.left > 0:
            break
    assert after > 3
