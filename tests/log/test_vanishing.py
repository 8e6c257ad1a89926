"""Cleanup between any two operations of a reader: the same result, without a warning."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pytest

import lakelog
from lakelog.storage import LogStore, StoreWrapper
from lakelog.storage.base import FileEntry
from tests.budget import IS_WHOLE, seed_of
from tests.races import keepers
from tests.transaction.tables import NO_CHECKPOINTS

LAST = 25
LAYOUTS = {
    "classic": ("delta", {}),
    "multipart": ("delta", {}),
    "v2-json": ("delta", {"delta.checkpointPolicy": "v2"}),
    "v2-parquet": ("delta", {"delta.checkpointPolicy": "v2"}),
    "json": ("indextables", {}),
    "flattened": ("indextables", {}),
}


class Interrupted(StoreWrapper):
    """A store that runs a callback before its nth reading operation."""

    def __init__(self, store: LogStore, nth: int, between: Callable[[], None]) -> None:
        super().__init__(store)
        self.operations = 0
        self._nth, self._between = nth, between

    def _count(self) -> None:
        self.operations += 1
        if self.operations == self._nth:
            self._between()

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        self._count()
        return super().list_from(folder, start)

    def read(self, path: str) -> bytes:
        self._count()
        return super().read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        self._count()
        return super().read_many(paths)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        self._count()
        return super().open(path, size_bytes)


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table over an old checkpoint, and the same after a new one and a cleanup."""
    layout: str = request.param
    form, properties = LAYOUTS[layout]
    folder = tmp_path_factory.mktemp("made")
    before, after = folder / "before", folder / "after"
    table = lakelog.create(before, {"x": pl.Int64}, (), form, properties | NO_CHECKPOINTS[form])
    if layout == "flattened":
        table = read_by_lakelog_alone(before)
    keepers.age(table, 0)
    for version in range(1, LAST + 1):
        keepers.commit(table, version, str(before))
        if version == 10:
            table.checkpoint(layout=layout)
    shutil.copytree(before, after)
    cleaned = lakelog.open(after)
    for version in range(LAST + 1):
        at = 1.7e9 + version
        os.utime(after / cleaned.log.dialect.log_folder / f"{version:020d}.json", (at, at))
    cleaned.checkpoint(layout=layout)
    report = cleaned.cleanup(
        plan=False, retention=0, checkpoint_retention=0, force=True, failure_policy="fail"
    )
    assert {"commit", "checkpoint"} <= set(report.files["kind"])
    return folder


def read_by_lakelog_alone(where: Path) -> lakelog.Table:
    """An IndexTables table whose protocol requires flattened checkpoints from the first version on.

    Only in such tables is anything cleaned up below a flattened checkpoint.
    """
    first = where / f"_transaction_log/{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    feature = ["columnarCommits"]
    for line in lines:
        if "protocol" in line:
            line["protocol"] |= {
                "minReaderVersion": 3,
                "minWriterVersion": 3,
                "readerFeatures": feature,
                "writerFeatures": feature,
            }
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lakelog.open(where)


def clean(made: Path, table: Path) -> None:
    """Write a checkpoint and clean up in a copy of the table."""
    names = [
        {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        for root in (made / "after", table)
    ]
    for name in names[0]:
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made / "after" / name, table / name)
    for name in names[1] - names[0]:
        (table / name).unlink()


def open_it(table: lakelog.Table) -> None:
    keepers.check(table.snapshot(), table.format)


def open_it_by_number(table: lakelog.Table) -> None:
    keepers.check(table.snapshot(LAST), table.format)


def tell_its_history(table: lakelog.Table) -> None:
    versions = table.history()["version"].to_list()
    assert versions in ([*range(LAST, -1, -1)], [LAST])


@pytest.mark.parametrize("read", [open_it, open_it_by_number, tell_its_history])
def test_a_cleanup_between_any_two_operations_of_a_reader_is_not_noticed(
    made: Path, tmp_path: Path, read: Callable[[lakelog.Table], Any]
) -> None:
    stride = 1 if IS_WHOLE else 4
    start = seed_of(f"{read.__name__} {made.name}") % stride
    for nth in count(1 + start, stride):
        location = tmp_path / str(nth)
        shutil.copytree(made / "before", location)
        log = lakelog.open(location).log
        store = Interrupted(log.store, nth, lambda: clean(made, location))  # noqa: B023 - used before the next turn
        read(lakelog.Table(replace(log, store=store)))
        if store.operations < nth:
            break
    assert nth > 2


def test_a_snapshot_outlives_the_files_that_it_was_opened_from(made: Path, tmp_path: Path) -> None:
    location = tmp_path / "t"
    shutil.copytree(made / "before", location)
    table = lakelog.open(location)
    opened, read_before = table.snapshot(), lakelog.open(location).snapshot()
    keepers.check(read_before, table.format)
    clean(made, location)
    for snapshot in (opened, read_before):
        keepers.check(snapshot, table.format)
        assert snapshot.tombstones().collect().height == LAST - keepers.WINDOW
        keepers.check(snapshot.update(), table.format)


def test_a_version_that_went_is_named(made: Path, tmp_path: Path) -> None:
    location = tmp_path / "t"
    shutil.copytree(made / "before", location)
    snapshot = lakelog.open(location).snapshot(LAST - 3)
    clean(made, location)
    try:
        # Young sidecars stay: then it can still be read.
        keepers.check(snapshot, snapshot.format)
    except lakelog.VersionNotFoundError as gone:
        assert str(LAST) in str(gone.expected)  # noqa: PT017 - it need not be raised
    keepers.check(snapshot.update(), snapshot.format)
