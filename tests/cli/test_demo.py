"""The demonstration: its table is realistic and deterministic; its steps run to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog as engine
from lakelog.demo import append_commit, build_log, make_table, next_commit
from lakelog.demo.schedule import MIN_COMMITS, plan
from lakelog.errors import InvalidInputError

STEPS = (
    "Make a table",
    "Open it and replay its log",
    "Ask which files may hold rows",
    "Read typed statistics",
    "Read its history",
    "Find out what a commit did",
    "Travel in time",
    "Follow one file's life",
    "Keep up after one more commit",
    "Merge a partition's files in a transaction",
    "ConcurrentDeleteDeleteError",
    "Write a checkpoint, verified",
    "Plan a cleanup of the log",
    "Write the state as Parquet",
    "Read it back with Polars",
)


@pytest.mark.parametrize("commits", [MIN_COMMITS, 60, 137])
def test_demo_completes_all_steps(lakelog: Any, tmp_path: Path, commits: int) -> None:
    outcome = lakelog("demo", "--dir", tmp_path, "--commits", commits, "--seed", 11)
    assert (outcome.code, outcome.errors) == (0, "")
    positions = [outcome.text.index(step) for step in STEPS]
    assert positions == sorted(positions)
    assert f"Seed 11: {commits} commits" in outcome.text
    assert f"Version {commits} has" in outcome.text
    assert "\x1b" not in outcome.text
    table = engine.open(tmp_path / "table")
    assert table.version() == commits + 1
    written = pl.read_parquet(tmp_path / "parquet" / "*.parquet")
    live = table.snapshot().state.to_polars()
    adds = written.filter(pl.col("actionType") == "add")
    assert sorted(adds["path"]) == sorted(live["path"])


def test_demo_creates_and_keeps_its_own_folder(
    lakelog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = lakelog("demo", "--commits", MIN_COMMITS)
    (folder,) = tmp_path.iterdir()
    assert outcome.code == 0
    assert f"{folder}/parquet" in outcome.text
    assert (folder / "parquet" / "_manifest.json").is_file()


def test_usage_error_leaves_no_files(
    lakelog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lakelog("demo", "--commits", MIN_COMMITS - 1).code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_second_demo_in_one_folder_is_refused(lakelog: Any, tmp_path: Path) -> None:
    words = ("demo", "--directory", tmp_path, "--commits", MIN_COMMITS)
    assert lakelog(*words).code == 0
    outcome = lakelog(*words)
    assert outcome.code == 2
    assert "not empty" in outcome.errors


def test_the_same_seed_gives_the_same_log() -> None:
    assert build_log(60, 3) == build_log(60, 3)
    assert build_log(60, 3).commits[1:] != build_log(60, 4).commits[1:]
    assert next_commit(60, 3) == next_commit(60, 3)


def test_the_same_seed_gives_the_same_commit_times(tmp_path: Path) -> None:
    first, second = (engine.open(make_table(tmp_path / n, 40)).history() for n in "ab")
    assert first.equals(second)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> engine.Table:
    return engine.open(make_table(tmp_path_factory.mktemp("demo") / "t"))


def test_demo_table_has_every_kind_of_action_and_operation(large: engine.Table) -> None:
    rows = large.actions().collect()
    assert rows["version"].max() == 299
    assert set(rows["actionType"]) == {"add", "remove", "metaData", "protocol", "txn", "commitInfo"}
    assert set(rows["operation"].drop_nulls()) >= {
        "STREAMING UPDATE",
        "WRITE",
        "OPTIMIZE",
        "DELETE",
        "RESTORE",
        "ADD COLUMNS",
        "SET TBLPROPERTIES",
    }
    again = rows.filter(pl.col("actionType") == "add")["path"].is_duplicated().sum()
    assert again >= 2
    snapshot = large.snapshot()
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.layout == "classic"
    assert "coupon" in snapshot.schema.names
    assert "coupon" not in large.snapshot(version=99).schema.names


@pytest.mark.parametrize("version", [40, 168, 169, 170, 199, 200, 299])
def test_checkpoint_and_commits_have_the_same_content(large: engine.Table, version: int) -> None:
    rows = (
        large.actions(0, version)
        .filter(pl.col("actionType").is_in(["add", "remove"]))
        .collect()
        .unique("path", keep="last", maintain_order=True)
    )
    live = rows.filter(pl.col("actionType") == "add")
    removed = rows.filter(pl.col("actionType") == "remove")
    snapshot = large.snapshot(version=version)
    assert sorted(snapshot.state.to_polars()["path"]) == sorted(live["path"])
    assert sorted(snapshot.tombstones().collect()["path"]) == sorted(removed["path"])
    assert all(at <= version for at in snapshot.transactions().collect()["txnVersion"])


@pytest.mark.reference
def test_another_engine_reads_the_same_files(large: engine.Table) -> None:
    from deltalake import DeltaTable

    for version in (170, 250, 299):
        peer = pl.DataFrame(DeltaTable(large.path, version=version).get_add_actions())
        ours = large.snapshot(version=version).state.to_polars()
        assert sorted(peer["path"]) == sorted(ours["path"])


def test_statistics_are_complete_and_typed(large: engine.Table) -> None:
    typed = large.snapshot().files(stats=True).collect()
    assert typed["numRecords"].null_count() == 0
    for column in ("order_id", "customer", "amount", "quantity", "placed_at"):
        low, high = (typed[side].struct.field(column) for side in ("min", "max"))
        assert low.null_count() == high.null_count() == 0
        assert (low <= high).all()


def test_removed_file_was_added_before_and_is_removed_once(large: engine.Table) -> None:
    rows = large.actions().filter(pl.col("actionType").is_in(["add", "remove"])).collect()
    step = pl.col("actionType").shift(1).over("path")
    assert rows.filter(pl.col("actionType") == step).is_empty()
    assert rows.filter(step.is_null() & (pl.col("actionType") == "remove")).is_empty()


def test_too_few_commits_and_full_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="more commits"):
        make_table(tmp_path / "few", commits=MIN_COMMITS - 1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InvalidInputError, match="not empty"):
        make_table(tmp_path / "full")
    assert not (tmp_path / "few").exists()


def test_existing_commit_is_never_overwritten(tmp_path: Path) -> None:
    path = make_table(tmp_path / "t", commits=MIN_COMMITS)
    with pytest.raises(FileExistsError):
        append_commit(path, MIN_COMMITS - 1)


@pytest.mark.parametrize("commits", [*range(MIN_COMMITS, 120), 408, 1000])
def test_every_length_has_a_mistake_a_restore_and_a_checkpoint(commits: int) -> None:
    calendar = plan(commits)
    operations = dict(calendar.operations.iter_rows())
    assert operations[calendar.mistake_version] == "DELETE"
    assert operations[calendar.mistake_version + 1] == "RESTORE"
    assert operations[calendar.schema_version] == "ADD COLUMNS"
    assert operations[calendar.property_version] == "SET TBLPROPERTIES"
    assert calendar.mistake_version < calendar.checkpoint_version < commits
