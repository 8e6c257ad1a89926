"""Undo of a repair: what it replaces is kept in a quarantine, and no version becomes unreadable,
also after a failure or a power cut at any of its operations.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import Table, UnavailableError
from lakelog.cli import main
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.testing import InjectingStore, Kind, Rule
from tests.budget import points
from tests.maintenance.test_cleanup_faults import KilledStore, PowerCut
from tests.maintenance.test_repair import checkpointed, repaired
from tests.transaction.tables import DIALECTS, paths, runtime

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")

BROKEN = b"not parquet"
WRITES: list[Kind] = ["put", "put_if_absent", "upload", "move", "delete"]


def checkpoint_of(where: Path, version: int) -> Path:
    return where / "_delta_log" / f"{version:020d}.checkpoint.parquet"


def with_repair(where: Path) -> tuple[Table, str]:
    """A table whose checkpoint of version 4 was unreadable and is repaired, with one more commit,
    which alone is not expired; and the id of the quarantine.
    """
    table = lakelog.create(where, {"a": pl.Int64}, upkeep=False)
    for n in range(4):
        table.append(pl.DataFrame({"a": [n]}))
    table.checkpoint()
    checkpoint_of(where, 4).write_bytes(BROKEN)
    report = repaired(lakelog.open(where, upkeep=False))
    assert report.quarantine is not None
    append_after_expiry(where, 4)
    return lakelog.open(where, upkeep=False), report.quarantine


def append_after_expiry(where: Path, n: int) -> None:
    for file in (where / "_delta_log").glob("*.*"):
        os.utime(file, (1, 1))
    lakelog.open(where, upkeep=False).append(pl.DataFrame({"a": [n]}))


def rows_of(where: Path) -> list[int]:
    return sorted(lakelog.open(where, upkeep=False).to_polars()["a"])


def test_undo_does_not_replace_a_checkpoint_that_the_table_needs(tmp_path: Path) -> None:
    table, quarantine = with_repair(tmp_path)
    table.cleanup(plan=False)
    proved = checkpoint_of(tmp_path, 4).read_bytes()
    (row,) = table.undo_cleanup(quarantine, replace=True).rows(named=True)
    assert (row["outcome"], row["quarantine"]) == ("kept", None)
    assert "version 4 could not be read" in row["why"]
    assert checkpoint_of(tmp_path, 4).read_bytes() == proved
    assert rows_of(tmp_path) == [0, 1, 2, 3, 4]
    assert table.quarantines()["id"].to_list() == [quarantine]


def test_checkpoint_that_undo_replaced_is_restored_by_another_undo(tmp_path: Path) -> None:
    table, quarantine = with_repair(tmp_path)
    proved = checkpoint_of(tmp_path, 4).read_bytes()
    (row,) = table.undo_cleanup(quarantine, replace=True).rows(named=True)
    assert row["outcome"] == "back"
    assert checkpoint_of(tmp_path, 4).read_bytes() == BROKEN
    assert rows_of(tmp_path) == [0, 1, 2, 3, 4]
    held = table.quarantines().select("id", "by", "files").rows()
    assert held == [(row["quarantine"], "undo", 1)]
    (again,) = table.undo_cleanup(row["quarantine"], replace=True).rows(named=True)
    assert again["outcome"] == "back"
    assert checkpoint_of(tmp_path, 4).read_bytes() == proved
    assert table.quarantines()["id"].to_list() == [again["quarantine"]]


def test_record_names_the_first_file_of_each_checkpoint(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"a": pl.Int64}, upkeep=False)
    for layout in ("multipart", "classic"):
        table.append(pl.DataFrame({"a": [1]}))
        table.checkpoint(layout=layout)
    files = sorted((tmp_path / "_delta_log").glob("*.checkpoint*"))
    assert len(files) == 3
    for file in files:
        file.write_bytes(BROKEN)
    id_ = str(repaired(table).quarantine)
    folder = tmp_path / "_delta_log" / ".lakelog-quarantine" / id_
    held = json.loads((folder / "quarantine.json").read_bytes())["files"]
    # Undo moves the first file of a checkpoint last: it is complete only then.
    leads = {file["path"].rpartition("/")[2]: file["leads"] for file in held}
    assert leads == {file.name: file != files[1] for file in files}


def test_command_prints_how_to_restore_what_undo_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, quarantine = with_repair(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["undo", str(tmp_path), quarantine, "--replace"])
    (id_,) = table.quarantines()["id"]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"to undo: lakelog undo {tmp_path} {id_} --replace" in shown


@pytest.mark.parametrize("replace", [False, True])
def test_undo_does_not_restore_a_damaged_checkpoint_of_a_version_that_was_cleaned_up(
    tmp_path: Path, replace: bool
) -> None:
    table, quarantine = with_repair(tmp_path)
    table.checkpoint()
    append_after_expiry(tmp_path, 5)
    table.cleanup(plan=False)
    assert not checkpoint_of(tmp_path, 4).exists()
    (row,) = table.undo_cleanup(quarantine, replace=replace).rows(named=True)
    assert row["outcome"] == "kept"
    assert "version 4 could not be read" in row["why"]
    assert lakelog.open(tmp_path, upkeep=False).versions() == [(5, 6)]


def with_repaired_checkpoint(where: Path, layout: str) -> tuple[Table, dict[str, bytes]]:
    """A table whose newest checkpoint was truncated and is repaired; and its truncated files."""
    table = checkpointed(where, layout=layout)
    files = sorted((where / "_delta_log").glob("*8.checkpoint*"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    broken = {file.name: file.read_bytes() for file in files}
    assert repaired(table).left.is_empty()
    return table, broken


def test_files_of_two_checkpoints_are_not_mixed(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table, broken = with_repaired_checkpoint(where, "multipart")
    (quarantine,) = table.quarantines()["id"]
    first = where / "_delta_log" / min(broken)
    first.unlink()  # as after a power cut, while undo replaces the files
    undone = table.undo_cleanup(quarantine)
    assert undone["outcome"].to_list() == ["kept"] * len(broken)
    assert "other files of the checkpoint" in undone.sort("path")["why"][0]
    assert not first.exists()
    undone = table.undo_cleanup(quarantine, replace=True)
    assert undone["outcome"].to_list() == ["back"] * len(broken)
    assert first.read_bytes() == broken[first.name]


class Trial:
    """A table with a repaired checkpoint, whose undo is interrupted."""

    def __init__(self, origin: Path, where: Path, broken: dict[str, bytes]) -> None:
        shutil.copytree(origin, where)
        self.where = where
        self.broken = broken
        self.proved = self.files()
        self.plain = self.over(open_store(str(where)))
        (self.quarantine,) = self.plain.quarantines()["id"]
        self.expected = paths(self.plain)

    def over(self, store: InjectingStore | object) -> Table:
        return Table(Log(store, DIALECTS["delta"]), runtime())  # type: ignore[arg-type]

    def files(self) -> dict[str, bytes]:
        found = {name: self.where / "_delta_log" / name for name in self.broken}
        return {name: path.read_bytes() for name, path in found.items() if path.exists()}

    def check(self) -> None:
        """The table reads as before, and the next undos complete and revert the work."""
        assert paths(lakelog.open(str(self.where))) == self.expected
        stored = {f.read_bytes() for f in self.where.rglob("*.parquet")}
        assert stored >= {*self.proved.values(), *self.broken.values()}
        if self.quarantine in self.plain.quarantines()["id"]:
            done = self.plain.undo_cleanup(self.quarantine, replace=True)
            assert set(done["outcome"]) <= {"back", "there"}
        assert self.files() == self.broken
        assert paths(lakelog.open(str(self.where))) == self.expected
        fullest = self.plain.quarantines().filter(by="undo").sort("files")["id"][-1]
        self.plain.undo_cleanup(fullest, replace=True)
        assert self.files() == self.proved
        assert paths(lakelog.open(str(self.where))) == self.expected


@pytest.mark.parametrize("fault", ["fail", "lost", "killed before", "killed after"])
@pytest.mark.parametrize("layout", ["classic", "multipart"])
def test_undo_that_replaces_files_can_be_interrupted_at_any_point(
    tmp_path: Path, layout: str, fault: Any
) -> None:
    origin = tmp_path / "origin"
    _, broken = with_repaired_checkpoint(origin, layout)
    assert (len(broken) > 1) == (layout == "multipart")
    calm = Trial(origin, tmp_path / "calm", broken)
    store = InjectingStore(open_store(str(calm.where)))
    calm.over(store).undo_cleanup(calm.quarantine, replace=True)
    calm.check()
    for nth in points(each for each in store.operations if each[0] in WRITES):
        trial = Trial(origin, tmp_path / str(nth), broken)
        inner = open_store(str(trial.where))
        if fault in {"fail", "lost"}:
            armed = InjectingStore(inner, [Rule(fault, WRITES, nth=nth)])
        else:
            armed = KilledStore(inner, nth, after=fault == "killed after")
        is_complete = True
        try:
            trial.over(armed).undo_cleanup(trial.quarantine, replace=True)
        except (PowerCut, UnavailableError):
            is_complete = False
        trial.check()
    assert is_complete  # without a fault, which the last point is past
