"""The demonstration: its table is realistic, its rows follow from a seed, its steps run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog as engine
from lakelog.demo import MIN_COMMITS, append_commit, make_table, plan
from lakelog.errors import InvalidInputError

STEPS = (
    "Make a table",
    "Open it and replay its log",
    "Ask which files may hold rows",
    "Read rows",
    "Read typed statistics",
    "Read its history",
    "Find out what a commit did",
    "Travel in time",
    "Follow one file's life",
    "Keep up after",
    "Compact a partition",
    "ConcurrentDeleteDeleteError",
    "Write a checkpoint, verified",
    "Plan a cleanup of the log",
    "Write the state as Parquet",
    "Read it back with Polars",
)


@pytest.mark.parametrize(("commits", "more"), [(MIN_COMMITS, 1), (48, 2)])
def test_demo_completes_all_steps_in_its_own_folder(
    lakelog: Any, tmp_path: Path, commits: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert (plan(commits).operations[-1] == "OPTIMIZE") == (more == 2)
    outcome = lakelog("demo", "--commits", commits, "--seed", 11)
    assert (outcome.code, outcome.errors) == (0, "")
    positions = [outcome.text.index(step) for step in STEPS]
    assert positions == sorted(positions)
    assert f"Seed 11: {commits} commits" in outcome.text
    assert f"Version {commits + more - 1} has" in outcome.text
    assert "\x1b" not in outcome.text
    (folder,) = tmp_path.iterdir()
    assert f"{folder}/parquet" in outcome.text
    assert (folder / "parquet" / "_manifest.json").is_file()
    table = engine.open(folder / "table")
    assert table.version() == commits + more
    written = pl.read_parquet(folder / "parquet" / "*.parquet")
    live = table.snapshot().state.to_polars()
    adds = written.filter(pl.col("actionType") == "add")
    assert sorted(adds["path"]) == sorted(live["path"])
    hours = table.history()["timestamp"].diff().drop_nulls().dt.total_seconds()
    assert hours.unique().to_list() == [-3600]


def test_printed_commands_work_in_a_folder_with_an_awkward_name(
    lakelog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = lakelog("demo", "--directory=-my dash", "--commits", MIN_COMMITS).text
    commands = [line.strip() for line in shown.splitlines() if line.startswith("    lakelog ")]
    assert len(commands) == 5
    for command in commands:
        name, *words = shlex.split(command)
        assert (name, lakelog(*words).code) == ("lakelog", 0), command


def test_usage_error_leaves_no_files(
    lakelog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lakelog("demo", "--commits", MIN_COMMITS - 1).code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_rows_and_commit_times_in_any_kind_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    columns = ("version", "timestamp", "operation", "userName")
    first, second, other = (
        engine.open(make_table(location, MIN_COMMITS, seed))
        for location, seed in (("~/a b", 3), (f"file://{tmp_path}/c%20d", 3), (tmp_path / "e", 4))
    )
    assert {path.name for path in tmp_path.iterdir()} == {"a b", "c d", "e"}
    assert first.version() == MIN_COMMITS - 1
    assert first.history().select(columns).equals(second.history().select(columns))
    rows = [table.to_polars().sort("order_id") for table in (first, second, other)]
    assert rows[0].equals(rows[1])
    assert not rows[0].equals(rows[2])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> engine.Table:
    return engine.open(make_table(tmp_path_factory.mktemp("demo") / "t"), upkeep=False)


def test_demo_table_has_every_kind_of_action_and_operation(large: engine.Table) -> None:
    rows = large.actions().collect()
    assert rows["version"].max() == 149
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
    assert "coupon" not in large.snapshot(version=49).schema.names


def test_restored_rows_are_those_before_the_mistake(large: engine.Table) -> None:
    mistake = plan(150).mistake_version
    before, after, restored = (
        large.snapshot(version=mistake + change).to_polars().sort("order_id")
        for change in (-1, 0, 1)
    )
    assert restored.equals(before)
    assert after.height < before.height


@pytest.mark.reference
def test_another_engine_reads_the_same_rows(large: engine.Table) -> None:
    from deltalake import DeltaTable

    for version in (67, 120, 149):
        peer = pl.from_arrow(DeltaTable(large.path, version=version).to_pyarrow_table())
        assert isinstance(peer, pl.DataFrame)
        ours = large.snapshot(version=version).to_polars()
        assert peer.select(ours.columns).sort("order_id").equals(ours.sort("order_id"))


def test_statistics_are_complete_and_typed(large: engine.Table) -> None:
    typed = large.snapshot().files(stats=True).collect()
    assert typed["numRecords"].null_count() == 0
    for column in ("order_id", "customer", "amount", "quantity", "placed_at"):
        low, high = (typed[side].struct.field(column) for side in ("min", "max"))
        assert low.null_count() == high.null_count() == 0
        assert (low <= high).all()


def test_too_few_commits_and_full_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="commits must be"):
        make_table(tmp_path / "few", commits=MIN_COMMITS - 1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InvalidInputError, match="not empty"):
        make_table(tmp_path / "full")
    for odd in ({"commits": 60.0}, {"seed": -1}, {"directory": "memory://demo"}):
        with pytest.raises(InvalidInputError):
            make_table(**({"directory": tmp_path / "few"} | odd))
    assert not (tmp_path / "few").exists()


def test_another_commit_continues_the_table(tmp_path: Path) -> None:
    table = engine.open(make_table(tmp_path / "t", commits=MIN_COMMITS), upkeep=False)
    rows = table.snapshot().num_rows()
    added = append_commit(tmp_path / "t", MIN_COMMITS)
    changed = table.diff(MIN_COMMITS - 1, MIN_COMMITS)
    assert changed.filter(kind="file", change="added").height == added > 0
    assert table.to_polars().height == table.snapshot().num_rows() > rows
    times = table.history()["timestamp"]
    assert (times[0] - times[1]).total_seconds() == 3600


def test_every_length_has_a_mistake_a_restore_and_a_checkpoint() -> None:
    for commits in (*range(MIN_COMMITS, 120), 408, 1000):
        calendar = plan(commits)
        assert len(calendar.operations) == commits
        assert calendar.operations[calendar.mistake_version] == "DELETE"
        assert calendar.operations[calendar.mistake_version + 1] == "RESTORE"
        for operation in ("CREATE TABLE", "ADD COLUMNS", "SET TBLPROPERTIES", "RESTORE"):
            assert calendar.operations.count(operation) == 1, commits
        assert "OPTIMIZE" in calendar.operations
        assert calendar.mistake_version < calendar.checkpoint_version < commits
