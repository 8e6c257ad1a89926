"""Cleanup deletes files between two operations of a call that reads a table or maintains its log.

A read gives the same result, without a warning. A call that needs the commits lists again, and uses
the files that exist, without a gap.
"""

from __future__ import annotations

import json
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
from tests.maintenance.test_repair import lose_files
from tests.races import maintenance_racers
from tests.transaction.tables import NO_CHECKPOINTS

LAST = 12
V2 = {"delta.checkpointPolicy": "v2"}
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "classic": ("delta", {}),
    "multipart": ("delta", {}),
    "v2-json": ("delta", V2),
    "v2-parquet": ("delta", V2),
    "json": ("indextables", {}),
    "flattened": ("indextables", {}),
}


class ChangingStore(StoreWrapper):
    """A store whose files change before one reading operation, which `left` counts down to."""

    def __init__(self, store: LogStore, nth: int, change: Callable[[], object]) -> None:
        super().__init__(store)
        self.left = nth
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


class CleanedTable:
    """A table over an old checkpoint, and the same after a new one and a cleanup."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root, self.layout = root, layout
        form, properties = LAYOUTS[layout]
        before = root / "before"
        properties = {**properties, **NO_CHECKPOINTS[form]}
        table = lakelog.create(before, {"x": pl.Int64}, (), form, properties, upkeep=False)
        if layout == "flattened":
            table = require_flattened_checkpoints(before)
        maintenance_racers.age(table, 0)
        for version in range(1, LAST + 1):
            maintenance_racers.commit(table, version, str(before))
            if version == LAST // 2:
                table.checkpoint(layout=layout)
        self.folder = table.log.dialect.log_folder
        shutil.copytree(before, root / "after")
        cleaned = lakelog.open(root / "after", upkeep=False)
        for version in range(LAST + 1):
            at = 1_700_000_000 + version
            os.utime(root / "after" / self.folder / f"{version:020d}.json", (at, at))
        cleaned.checkpoint(layout=layout)
        report = cleaned.cleanup(
            plan=False, retention=0, checkpoint_retention=0, force=True, failure_policy="fail"
        )
        assert {"commit", "checkpoint"} <= set(report.files["kind"])
        assert cleaned.versions() == [(LAST, LAST)]

    def copied(self, where: Path) -> Table:
        """The table before the cleanup."""
        shutil.copytree(self.root / "before", where, copy_function=os.link)
        return lakelog.open(where, upkeep=False)

    def clean(self, where: Path) -> None:
        """Write a checkpoint and clean up in a copy of the table."""
        new, old = self.root / "after" / self.folder, where / self.folder
        shutil.copytree(new, old, dirs_exist_ok=True, copy_function=_relink)
        for path in [p for p in old.rglob("*") if p.is_file()]:
            if not (new / path.relative_to(old)).exists():
                path.unlink()

    def table_cleaned_before(self, where: Path, nth: int) -> tuple[Table, ChangingStore]:
        """The table, which is cleaned up immediately before an operation."""
        log = self.copied(where).log
        store = ChangingStore(log.store, nth, lambda: self.clean(where))
        return Table(replace(log, store=store)), store


def _relink(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


def require_flattened_checkpoints(where: Path) -> Table:
    """An IndexTables table whose protocol requires flattened checkpoints from the first version on.

    Only in such tables does cleanup delete files below a flattened checkpoint.
    """
    first = where / f"_transaction_log/{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    versions = {"minReaderVersion": 3, "minWriterVersion": 3}
    lists = {"readerFeatures": ["columnarCommits"], "writerFeatures": ["columnarCommits"]}
    for line in lines:
        if "protocol" in line:
            line["protocol"] |= versions | lists
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lakelog.open(where, upkeep=False)


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CleanedTable:
    return CleanedTable(tmp_path_factory.mktemp("cleanup"), request.param)


def sweep(
    made: CleanedTable,
    folder: Path,
    call: Callable[[Table, CleanedTable], object],
    step: int,
    first: int,
) -> None:
    """Call with a cleanup before the operation `first`, then before a later one, until the end."""
    stride = step if IS_WHOLE else 4 * step
    start = seed_of(f"{call.__name__} {made.layout}") % stride
    for nth in count(first + start, stride):
        table, store = made.table_cleaned_before(folder / str(nth), nth)
        try:
            call(table, made)
        except BaseException as error:
            error.add_note(f"cleaned up before operation {nth}")
            raise
        if store.left > 0:
            break
    assert nth > first + 1


# Calls on a table that is cleaned up between two of their operations.


def open_latest(table: Table, _made: CleanedTable) -> None:
    maintenance_racers.check(table.snapshot(), table.format)


def open_by_version(table: Table, _made: CleanedTable) -> None:
    maintenance_racers.check(table.snapshot(LAST), table.format)


def read_history(table: Table, _made: CleanedTable) -> None:
    versions = table.history()["version"].to_list()
    assert versions in ([*range(LAST, -1, -1)], [LAST])


@pytest.mark.parametrize("read", [open_latest, open_by_version, read_history])
def test_reader_gives_the_same_answer_if_cleanup_runs_between_its_operations(
    made: CleanedTable, tmp_path: Path, read: Callable[[Table, CleanedTable], None]
) -> None:
    sweep(made, tmp_path, read, 1, 1)


def actions(table: Table, _made: CleanedTable) -> None:
    rows = table.actions().select("version", "timestamp", "path").collect()
    versions = rows["version"].unique().sort().to_list()
    assert versions == list(range(versions[0], LAST + 1))
    assert rows["timestamp"].null_count() == 0


def blame(table: Table, _made: CleanedTable) -> None:
    rows = table.blame(maintenance_racers.name_of(LAST))
    assert rows["actionType"].to_list() == ["add"]


def checkpoint(table: Table, made: CleanedTable) -> None:
    report = table.checkpoint(layout=made.layout)
    assert report.version == LAST
    assert report.verified or report.reused
    maintenance_racers.check(lakelog.open(table.path).snapshot(), table.format)


def verify(table: Table, _made: CleanedTable) -> None:
    report = table.verify()
    assert report.verdict in {"proved", "unprovable"}
    assert "damaged" not in (report.reason or "")


def cleanup(table: Table, _made: CleanedTable) -> None:
    report: Any = table.cleanup(plan=False, retention=0, checkpoint_retention=0, force=True)
    assert not report.errors
    maintenance_racers.check(lakelog.open(table.path).snapshot(), table.format)


def vacuum(table: Table, _made: CleanedTable) -> None:
    table.vacuum(plan=False, keep_history=table.format == "delta")
    maintenance_racers.check(lakelog.open(table.path).snapshot(), table.format)


@pytest.mark.parametrize("made", ["classic", "v2-json", "json"], indirect=True)
@pytest.mark.parametrize(
    ("call", "step"),
    [(actions, 1), (blame, 2), (checkpoint, 2), (verify, 1), (cleanup, 4), (vacuum, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_call_lists_again_after_concurrent_cleanup(
    made: CleanedTable, tmp_path: Path, call: Callable[[Table, CleanedTable], None], step: int
) -> None:
    with warnings.catch_warnings():
        # Commits that are no longer on disk are reported by a warning.
        warnings.simplefilter("ignore", LakelogWarning)
        sweep(made, tmp_path, call, step, 2)  # the first operation is the first listing


def test_verification_that_finds_a_difference_lists_again_after_concurrent_cleanup(
    tmp_path: Path,
) -> None:
    before, location = tmp_path / "before", tmp_path / "t"
    table = lakelog.create(before, {"x": pl.Int64}, upkeep=False)
    for version in range(1, 11):
        with table.transaction() as tx:
            tx.add(path=f"f{version}", size=version)
        if version == 8:
            table.checkpoint()
    lose_files(before)  # of version 8

    def clean() -> None:
        log = location / "_delta_log"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LakelogWarning)
            lakelog.open(location, upkeep=False).checkpoint()
        for version in range(10):
            (log / f"{version:020d}.json").unlink()
        (log / f"{8:020d}.checkpoint.parquet").unlink()

    verdicts = set()
    for nth in count(2, 3):
        shutil.rmtree(location, ignore_errors=True)
        shutil.copytree(before, location)
        log = lakelog.open(location, upkeep=False).log
        store = ChangingStore(log.store, nth, clean)
        report = Table(replace(log, store=store)).verify()
        verdicts.add((report.version, report.verdict))
        if store.left > 0:
            break
    assert verdicts == {(10, "unprovable"), (8, "wrong")}


def test_open_snapshot_stays_readable_after_its_files_are_deleted(
    made: CleanedTable, tmp_path: Path
) -> None:
    location = tmp_path / "t"
    table = made.copied(location)
    opened, read_before = table.snapshot(), lakelog.open(location).snapshot()
    maintenance_racers.check(read_before, table.format)
    made.clean(location)
    for snapshot in (opened, read_before):
        maintenance_racers.check(snapshot, table.format)
        assert snapshot.tombstones().collect().height == LAST - maintenance_racers.WINDOW
        maintenance_racers.check(snapshot.update(), table.format)


def test_error_for_a_version_deleted_by_cleanup_names_the_readable_version(
    made: CleanedTable, tmp_path: Path
) -> None:
    location = tmp_path / "t"
    snapshot = made.copied(location).snapshot(LAST - 3)
    made.clean(location)
    try:
        # Recent sidecars are not deleted: then it can still be read.
        maintenance_racers.check(snapshot, snapshot.format)
    except lakelog.VersionNotFoundError as error:
        assert str(LAST) in str(error.expected)  # noqa: PT017 - it need not be raised
    maintenance_racers.check(snapshot.update(), snapshot.format)
