"""Replicas: the same state at another location, or nothing new there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog import (
    CheckpointCorruptionError,
    CheckpointValidationError,
    CheckpointWriteError,
    InvalidInputError,
    NotFoundError,
    TableNotFoundError,
)
from lakelog.checkpoint.replicate import replicate
from lakelog.log.context import Log
from lakelog.storage import StoreWrapper, open_store
from lakelog.storage.base import Upload
from lakelog.testing import Fault, InjectingStore, Kind, Rule
from tests.budget import points
from tests.replaced_tables import replaced
from tests.transaction.tables import DIALECTS, NO_CHECKPOINTS, each_format, new_table, paths

WRITES: tuple[Kind, ...] = ("upload", "move", "delete", "put", "put_if_absent")
LAYOUTS = [
    ("delta", "classic", {}),
    ("delta", "multipart", {}),
    ("delta", "v2-json", {"delta.checkpointPolicy": "v2"}),
    ("delta", "v2-parquet", {"delta.checkpointPolicy": "v2"}),
    ("indextables", "json", {}),
    ("indextables", "flattened", {}),
]


def checkpointed(
    where: Path,
    form: str = "delta",
    layout: str = "auto",
    configuration: dict[str, str] | None = None,
    files: int = 0,
) -> lakelog.Table:
    table = new_table(str(where), form, configuration=configuration)
    for n in range(1, 9):
        with table.transaction() as tx:
            tx.add(path=f"f{n}", size=n)
            if n == 1 and files:
                tx.add(pl.DataFrame({"path": [f"g{k}" for k in range(files)], "size": 1}))
        if n in {4, 8}:
            table.checkpoint(layout=layout)
    return table


def state(where: Path, version: int | None = None) -> pl.DataFrame:
    return lakelog.open(str(where)).snapshot(version).files().sort("path").collect()


@pytest.mark.parametrize(("form", "layout", "configuration"), LAYOUTS)
def test_replica_gives_the_same_state(
    tmp_path: Path, form: str, layout: str, configuration: dict[str, str]
) -> None:
    table = checkpointed(tmp_path / "table", form, layout, configuration)
    report = table.replicate(tmp_path / "copy")
    assert (report.version, report.layout, report.verdict) == (8, layout, "proved")
    assert report.pointer_moved == (layout != "flattened")  # other readers do not support it
    assert report.copied == len(report.paths)
    assert "copied" in str(report)
    assert "copied" in report._repr_html_()
    assert state(tmp_path / "copy").equals(state(tmp_path / "table"))
    copy = lakelog.open(str(tmp_path / "copy"))
    assert copy.version() == 8
    assert copy.history()["version"].to_list() == [8]
    if form == "delta":
        assert DeltaTable(str(tmp_path / "copy")).version() == 8


def test_second_replica_copies_only_new_files_and_keeps_the_older_version(tmp_path: Path) -> None:
    table = checkpointed(
        tmp_path / "table", configuration={"delta.checkpointPolicy": "v2"}, files=20_000
    )
    first = table.replicate(tmp_path / "copy", 4)
    assert table.replicate(tmp_path / "copy", 4).copied == 0
    assert lakelog.open(str(tmp_path / "copy")).version() == 4
    second = table.replicate(tmp_path / "copy")
    assert second.copied < len(second.paths)
    assert set(first.paths) & set(second.paths)
    for version in (4, 8):
        assert state(tmp_path / "copy", version).equals(state(tmp_path / "table", version))
    # The pointer only moves forward.
    assert not table.replicate(tmp_path / "copy", 4).pointer_moved
    pointer = json.loads((tmp_path / "copy/_delta_log/_last_checkpoint").read_text())
    assert pointer["version"] == 8


def test_location_of_another_table_is_refused(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table")
    other = new_table(str(tmp_path / "other"))
    with pytest.raises(InvalidInputError, match="another table"):
        table.replicate(tmp_path / "other")
    assert other.version() == 0


def content(where: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in where.rglob("*") if f.is_file()}


@each_format
@pytest.mark.parametrize("theirs", ["g1", "longer name"])
def test_copy_with_commits_of_its_own_is_refused(tmp_path: Path, form: str, theirs: str) -> None:
    table = new_table(str(tmp_path / "table"), form)
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    for where, path in (("table", "f1"), ("copy", theirs)):
        with lakelog.open(str(tmp_path / where)).transaction() as tx:
            tx.add(path=path, size=1)
    table.checkpoint()
    before = content(tmp_path / "copy")
    with pytest.raises(InvalidInputError, match="differs from the table's commit") as error:
        table.replicate(tmp_path / "copy")
    assert (error.value.version, error.value.table) == (1, str(tmp_path / "copy"))
    assert content(tmp_path / "copy") == before


def test_commit_that_the_table_no_longer_has_is_refused_unless_it_has_a_checkpoint(
    tmp_path: Path,
) -> None:
    table = checkpointed(tmp_path / "table", configuration=NO_CHECKPOINTS["delta"])
    table.replicate(tmp_path / "replica", 4)
    shutil.copytree(tmp_path / "replica", tmp_path / "changed")
    with lakelog.open(str(tmp_path / "changed")).transaction() as tx:
        tx.add(path="own", size=1)
    for version in range(8):
        (tmp_path / f"table/_delta_log/{version:020d}.json").unlink()
    before = content(tmp_path / "changed")
    with pytest.raises(InvalidInputError, match="is missing in the table"):
        table.replicate(tmp_path / "changed")
    assert content(tmp_path / "changed") == before
    assert table.replicate(tmp_path / "replica").pointer_moved


def test_copy_of_the_table_with_a_checkpoint_of_its_own_is_refused(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table", configuration=NO_CHECKPOINTS["delta"])
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    copy = lakelog.open(str(tmp_path / "copy"))
    for each, name in ((copy, "own"), (table, "a"), (table, "b")):
        with each.transaction() as tx:
            tx.add(path=name, size=1)
        each.checkpoint()
    for version in range(10):
        (tmp_path / f"table/_delta_log/{version:020d}.json").unlink()
    before = content(tmp_path / "copy")
    with pytest.raises(InvalidInputError, match="is missing in the table"):
        table.replicate(tmp_path / "copy")
    assert content(tmp_path / "copy") == before


class _RacingStore(StoreWrapper):
    """Another writer commits before the first file is renamed."""

    def move(self, source: str, target: str) -> None:
        self.put_if_absent(f"_delta_log/{8:020d}.json", b"{}")
        super().move(source, target)


def test_commit_that_is_written_during_the_copy_is_not_replaced(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table")
    other = Log(_RacingStore(open_store(str(tmp_path / "copy"))), table.log.dialect)
    with pytest.raises(InvalidInputError, match="differs from the table's commit"):
        replicate(table.log, other)
    assert (tmp_path / f"copy/_delta_log/{8:020d}.json").read_bytes() == b"{}"


def test_replica_of_a_table_that_was_replaced_later_is_updated(tmp_path: Path) -> None:
    table = replaced(tmp_path / "table", "commits")
    for version in (1, 3):
        table.checkpoint(version)
        assert table.replicate(tmp_path / "copy", version).pointer_moved
    assert state(tmp_path / "copy").equals(state(tmp_path / "table"))


def test_broken_or_missing_checkpoint_is_not_replicated(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table")
    with pytest.raises(NotFoundError, match="no complete checkpoint"):
        table.replicate(tmp_path / "copy", 5)
    (file,) = (tmp_path / "table" / "_delta_log").glob("*8.checkpoint.parquet")
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(CheckpointCorruptionError):
        table.replicate(tmp_path / "copy")
    with pytest.raises(TableNotFoundError):
        lakelog.open(str(tmp_path / "copy"))


class _CorruptingStore(StoreWrapper):
    """Writes other bytes than given."""

    def upload(self, path: str) -> Upload:
        below = super().upload(path)
        below.write(b"x")
        return below


def test_wrong_copy_is_not_published(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table")
    other = Log(_CorruptingStore(open_store(str(tmp_path / "copy"))), table.log.dialect)
    with pytest.raises(CheckpointValidationError, match="differs from its source"):
        replicate(table.log, other)
    assert not [f for f in (tmp_path / "copy").rglob("*") if f.is_file()]


def test_error_of_a_partial_copy_does_not_deny_the_copied_files(tmp_path: Path) -> None:
    table = checkpointed(tmp_path / "table")
    store = InjectingStore(open_store(str(tmp_path / "copy")), [Rule("fail", ["put_if_absent"])])
    with pytest.raises(CheckpointWriteError) as raised:
        replicate(table.log, Log(store, DIALECTS["delta"]))
    assert list((tmp_path / "copy").rglob("*.checkpoint.parquet"))
    assert "the files that were copied are complete" in (raised.value.hint or "")
    table.replicate(tmp_path / "copy")
    assert paths(lakelog.open(tmp_path / "copy")) == paths(table)


@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_older_replica_is_readable_after_any_failure(tmp_path: Path, fault: Fault) -> None:
    table = checkpointed(tmp_path / "table", configuration={"delta.checkpointPolicy": "v2"})
    expected = {version: paths(table, version) for version in (4, 8)}
    table.replicate(tmp_path / "faultless", 4)
    faultless = InjectingStore(open_store(str(tmp_path / "faultless")))
    replicate(table.log, Log(faultless, DIALECTS["delta"]))
    for nth in points(each for each in faultless.operations if each[0] in WRITES):
        where = tmp_path / f"copy-{nth}"
        table.replicate(where, 4)
        store = InjectingStore(open_store(str(where)), [Rule(fault, WRITES, nth=nth)])
        done = False
        try:
            replicate(table.log, Log(store, DIALECTS["delta"]))
            done = True
        except (CheckpointWriteError, lakelog.UnavailableError, lakelog.OutcomeUnknownError):
            pass
        copy = lakelog.open(str(where))
        assert paths(copy) == expected[copy.version()], nth
        assert not done or copy.version() == 8
        assert paths(copy, 4) == expected[4]
        table.replicate(where)
        assert paths(copy) == expected[8]
        if sum(kind in WRITES for kind, _ in store.operations) < nth:
            break
    else:
        pytest.fail("no attempt succeeds")
