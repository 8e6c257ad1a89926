"""Checkpoints, cleanup, vacuum, repair and undo on the command line: output and effect."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog as engine
from lakelog.cli.watch import Meter, progress
from lakelog.errors import UnavailableError
from lakelog.storage.base import Deleted
from lakelog.storage.local import LocalStore
from tests.cli.conftest import wait_for
from tests.cli.test_tables import ANSI, on_a_terminal

LATEST = 59
OLD_MS = 86_400_000 * 400


@pytest.fixture
def orders(table: str, tmp_path: Path) -> Path:
    """A writable copy of a log whose files are all old."""
    return Path(shutil.copytree(table, tmp_path / "orders"))


def log_of(table: Path) -> list[str]:
    return sorted(path.name for path in (table / "_delta_log").iterdir() if path.is_file())


def rows(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    assert isinstance(found, list)
    return found


# --- checkpoint and verify ------------------------------------------------------------------------


def test_checkpoint_is_written_and_reported(lakelog: Any, orders: Path) -> None:
    outcome = lakelog("checkpoint", orders)
    assert outcome.code == 0
    assert f"{LATEST:020d}.checkpoint.parquet" in log_of(orders)
    facts = dict(line.split(maxsplit=1) for line in outcome.text.splitlines() if line[0] != " ")
    assert facts["version"] == str(LATEST)
    assert facts["layout"] == "classic"
    assert facts["verified"].startswith("verified against replay in ")
    assert facts["pointer"] == "updated"
    assert engine.open(orders).snapshot().provenance.commits == ()


def test_checkpoint_of_an_older_version_in_json(lakelog: Any, orders: Path) -> None:
    words = ("--version", 20, "--no-verify", "--memory-limit", "8GB", "-o", "json")
    (row,) = rows(lakelog("checkpoint", orders, *words).text)
    assert (row["version"], row["verified"], row["pointer_moved"]) == (20, False, False)
    assert row["num_adds"] == engine.open(orders).snapshot(20).num_files()
    assert row["paths"] == [f"_delta_log/{20:020d}.checkpoint.parquet"]


def test_invalid_layout_or_version_is_an_error(lakelog: Any, orders: Path) -> None:
    before = log_of(orders)
    assert lakelog("checkpoint", orders, "--layout", "spiral").code == 2
    assert lakelog("checkpoint", orders, "--version", 10**6).code == 1
    assert log_of(orders) == before


def test_valid_checkpoint_is_proved(lakelog: Any, orders: Path) -> None:
    outcome = lakelog("verify", orders)
    assert outcome.code == 0
    assert "verdict   proved" in outcome.text
    (row,) = rows(lakelog("verify", orders, "-o", "json").text)
    assert (row["verdict"], row["differences"]) == ("proved", [])
    assert row["files"][0].endswith(".checkpoint.parquet")


def test_checkpoint_with_a_missing_file_is_a_finding(lakelog: Any, orders: Path) -> None:
    (path,) = (orders / "_delta_log").glob("*.checkpoint.parquet")
    frame = pl.read_parquet(path)
    adds = frame.with_row_index().filter(pl.col("add").is_not_null())["index"]
    frame.filter(pl.int_range(pl.len()) != adds[0]).write_parquet(path)
    outcome = lakelog("verify", orders)
    assert outcome.code == 1
    assert "wrong" in outcome.text or "broken" in outcome.text
    assert f"lakelog repair {orders}" in outcome.text
    if "wrong" in outcome.text:
        assert "missing" in outcome.text
        assert "1 difference at least" in outcome.text


def test_unprovable_checkpoint_is_a_finding_only_with_strict(lakelog: Any, orders: Path) -> None:
    for path in (orders / "_delta_log").glob("*.json"):
        if int(path.stem) <= 40:
            path.unlink()
    assert lakelog("verify", orders).code == 0
    assert "unprovable" in lakelog("verify", orders).text
    assert lakelog("verify", orders, "--strict").code == 1


def test_verifying_without_a_checkpoint_is_refused(lakelog: Any, orders: Path) -> None:
    (path,) = (orders / "_delta_log").glob("*.checkpoint.parquet")
    path.unlink()
    refused = lakelog("verify", orders)
    assert refused.code == 1
    assert f"lakelog checkpoint {orders}" in refused.errors


# --- cleanup and undo -----------------------------------------------------------------------------


def test_a_cleanup_is_planned_first(lakelog: Any, orders: Path) -> None:
    before = log_of(orders)
    outcome = lakelog("cleanup", orders)
    assert outcome.code == 0
    assert log_of(orders) == before
    assert "nothing is changed without --apply" in outcome.text
    assert "covered by _delta_log/" in outcome.text
    planned = rows(lakelog("cleanup", orders, "-o", "json").text)
    assert {row["action"] for row in planned} == {"delete"}
    every = rows(lakelog("cleanup", orders, "--all", "-o", "json").text)
    assert {row["action"] for row in every} == {"delete", "keep"}
    assert len(every) > len(planned)


def test_cleanup_to_quarantine_can_be_undone(lakelog: Any, orders: Path) -> None:
    before = log_of(orders)
    planned = len(rows(lakelog("cleanup", orders, "-o", "json").text))
    outcome = lakelog("cleanup", orders, "--apply", "--quarantine")
    assert outcome.code == 0
    assert len(log_of(orders)) == len(before) - planned
    (held,) = rows(lakelog("undo", orders, "-o", "json").text)
    assert (held["files"], held["by"]) == (planned, "cleanup")
    assert f"lakelog undo {orders} {held['id']}" in outcome.text
    back = lakelog("undo", orders, held["id"], "-o", "json")
    assert back.code == 0
    assert {row["outcome"] for row in rows(back.text)} == {"back"}
    assert log_of(orders) == before


def test_undo_warns_of_the_automatic_cleanup_unless_it_is_disabled(
    lakelog: Any, orders: Path
) -> None:
    def undone() -> str:
        lakelog("cleanup", orders, "--apply", "--quarantine", "--force")
        (held,) = rows(lakelog("undo", orders, "-o", "json").text)
        return str(lakelog("undo", orders, held["id"]).text)

    assert "set delta.enableExpiredLogCleanup to false" in undone()
    table = engine.open(orders, upkeep=False)
    table.alter.set_properties({"delta.enableExpiredLogCleanup": "false"})
    assert "enableExpiredLogCleanup" not in undone()


def test_a_quarantine_is_purged(lakelog: Any, orders: Path) -> None:
    lakelog("cleanup", orders, "--apply", "--quarantine")
    assert "0 quarantines" in lakelog("undo", orders, "--purge", "1 day").text
    assert "1 quarantine · deleted permanently" in lakelog("undo", orders, "--purge", "0s").text
    assert "0 quarantines" in lakelog("undo", orders).text
    assert lakelog("undo", orders, "20260101T000000Z-00000000").code == 2
    assert lakelog("undo", orders, "x", "--purge", "1d").code == 2


def test_retention_shorter_than_the_tables_is_refused(lakelog: Any, orders: Path) -> None:
    outcome = lakelog("cleanup", orders, "--retention", "1 hour")
    assert outcome.code == 2
    assert "unsafe_retention" in outcome.errors
    assert lakelog("cleanup", orders, "--retention", "1 hour", "--force").code == 0
    assert lakelog("vacuum", orders, "--retention", "1h").code == 2


def test_files_that_cannot_be_deleted_are_reported(
    lakelog: Any, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: LocalStore, paths: list[str]) -> Deleted:
        return Deleted([UnavailableError("the disk refuses", path=path) for path in paths])

    monkeypatch.setattr(LocalStore, "delete_existing", refuse)
    outcome = lakelog("cleanup", orders, "--apply")
    assert outcome.code == 1
    assert "not deleted: _delta_log/" in outcome.errors
    assert " files not deleted · " in outcome.text
    assert "the disk refuses" in outcome.errors
    assert lakelog("cleanup", orders, "--apply", "--fail-fast").code == 1


# --- vacuum ---------------------------------------------------------------------------------------


def test_a_vacuum_is_planned_and_applied(lakelog: Any, orders: Path, tmp_path: Path) -> None:
    stray = orders / "stray.parquet"
    stray.write_bytes(b"x" * 2048)
    inventory = tmp_path / "inventory.csv"
    pl.DataFrame(
        {"path": ["stray.parquet"], "size": [2048], "modificationTime": [OLD_MS]}
    ).write_csv(inventory)
    assert "0 files" in lakelog("vacuum", orders).text  # it is recent
    plan = lakelog("vacuum", orders, "--inventory", inventory)
    assert plan.code == 0
    header, row, summary = plan.text.splitlines()
    assert "stray.parquet" in row
    assert "2.0 KiB" in row
    assert "why" not in header  # a reason that all files share is shown once
    assert "no retained version refers to it" in summary
    assert stray.exists()
    done = lakelog("vacuum", orders, "--inventory", inventory, "--apply", "-o", "json")
    assert rows(done.text)[0]["deleted"] == 1
    assert not stray.exists()
    again = lakelog("vacuum", orders, "--inventory", inventory, "--apply", "--keep-history")
    assert again.code == 0
    assert "deleted" in again.text


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_name_of_an_inventory_is_not_a_pattern(
    lakelog: Any, orders: Path, tmp_path: Path, suffix: str
) -> None:
    for name, path in (("inv[1]", "stray.parquet"), ("inv1", "other.parquet")):
        (orders / path).write_bytes(b"x")
        frame = pl.DataFrame({"path": [path], "size": [1], "modificationTime": [OLD_MS]})
        getattr(frame, f"write_{suffix}")(tmp_path / f"{name}.{suffix}")
    plan = lakelog("vacuum", orders, "--inventory", tmp_path / f"inv[1].{suffix}", "-o", "json")
    assert [row["path"] for row in rows(plan.text)] == ["stray.parquet"]


@pytest.mark.parametrize(("name", "code"), [("inventory.txt", 2), ("missing.csv", 1)])
def test_unreadable_inventory_is_an_error(lakelog: Any, orders: Path, name: str, code: int) -> None:
    outcome = lakelog("vacuum", orders, "--inventory", name)
    assert outcome.code == code
    assert "inventory" in outcome.errors


# --- repair ---------------------------------------------------------------------------------------


def test_valid_log_has_no_findings(lakelog: Any, orders: Path) -> None:
    outcome = lakelog("repair", orders)
    assert outcome.code == 0
    result = "no problem was found in the log; the data files were not checked"
    assert f"0 findings · {result}" in outcome.text
    assert result in str(engine.open(orders).repair())


def test_broken_checkpoint_is_found_and_repaired(
    lakelog: Any, orders: Path, repository: Path
) -> None:
    (path,) = (orders / "_delta_log").glob("*.checkpoint.parquet")
    path.write_bytes(path.read_bytes()[:500])
    before = log_of(orders)
    plan = lakelog("repair", orders)
    assert plan.code == 1
    assert plan.errors.count("was ignored") == 1
    assert plan.text.count("cannot be read") == 1
    wrapped = ANSI.sub("", on_a_terminal(repository, "repair", str(orders), columns=110))
    assert "…" not in wrapped.replace("oint.parquet", "").replace("_delta_log/0…", "")
    assert max(map(len, wrapped.splitlines())) <= 110
    words = " ".join(wrapped.split())
    for word in plan.text.splitlines()[1].split("  ")[-1].split():  # the complete reason
        assert word in words
    assert "nothing is changed without --apply" in plan.text
    assert log_of(orders) == before
    done = lakelog("repair", orders, "--apply", "-o", "json")
    assert done.code == 0
    assert {row["outcome"] for row in rows(done.text)} == {"repaired"}
    assert lakelog("repair", orders).code == 0
    assert lakelog("verify", orders).code == 0


# --- compact --------------------------------------------------------------------------------------


def test_commits_are_compacted(lakelog: Any, orders: Path) -> None:
    outcome = lakelog("compact-log", orders, 45, 54)
    assert outcome.code == 0
    assert "versions       45 to 54" in outcome.text
    (row,) = rows(lakelog("compact-log", orders, 45, 54, "-o", "json").text)
    assert (row["start"], row["end"], row["written"]) == (45, 54, False)
    assert "no, it existed" in lakelog("compact-log", orders, 45, 54).text
    assert engine.open(orders).snapshot().provenance.compactions == (row["path"],)
    assert lakelog("compact-log", orders, 9, 3).code == 2


# --- checksum and replicate -----------------------------------------------------------------------


def test_checksum_is_written_and_a_wrong_one_is_a_finding(lakelog: Any, orders: Path) -> None:
    for path in (orders / "_delta_log").glob("*.crc"):
        path.unlink()
    outcome = lakelog("checksum", orders)
    assert outcome.code == 0
    assert f"{LATEST:020d}.crc" in log_of(orders)
    files = engine.open(orders).snapshot().num_files()
    assert outcome.text.splitlines()[-2].split() == ["files", f"{files:,}"]
    again = lakelog("checksum", orders, "--memory-limit", "8GB")
    assert again.code == 0
    assert "no, it existed" in again.text
    assert "differs in  nothing" in again.text
    path = orders / "_delta_log" / f"{LATEST:020d}.crc"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"numFiles": files + 1}))
    wrong = lakelog("checksum", orders, "--version", LATEST, "-o", "json")
    assert wrong.code == 1
    (row,) = rows(wrong.text)
    assert (row["version"], row["written"]) == (LATEST, False)
    assert row["disagreements"] == ["numFiles"]
    assert json.loads(row["body"])["numFiles"] == files


def test_a_checkpoint_is_replicated(lakelog: Any, orders: Path, tmp_path: Path) -> None:
    lakelog("checkpoint", orders)
    copy = tmp_path / "copy"
    outcome = lakelog("replicate", orders, copy, "--to-option", "auto_mkdir=true")
    assert outcome.code == 0
    assert "pointer   updated" in outcome.text
    assert "original  proved" in outcome.text
    ours, theirs = (engine.open(where).snapshot() for where in (orders, copy))
    assert theirs.version == LATEST
    assert theirs.num_files() == ours.num_files()
    (row,) = rows(lakelog("replicate", orders, copy, "--version", LATEST, "-o", "json").text)
    assert (row["version"], row["copied"], row["verdict"]) == (LATEST, 0, "proved")
    assert lakelog("replicate", orders, copy, "--version", 3).code == 1
    assert lakelog("replicate", orders).code == 2


# --- simulate -------------------------------------------------------------------------------------


def test_simulation_reports_deletable_files_and_broken_consumers(
    lakelog: Any, orders: Path
) -> None:
    before = log_of(orders)
    words = ("--log-retention", "30 days", "--log-retention", "20000 days")
    more = ("--consumer", "billing=3", "--consumer", "audit=59", "--consumer", "billing=50")
    found = rows(lakelog("simulate", orders, *words, *more, "-o", "json").text)
    assert [row["proposal"] for row in found] == ["current", "1", "2"]
    month, long = found[1:]
    assert month["log_retention_ms"] == 30 * 86_400_000
    assert month["log_files"] == len(rows(lakelog("cleanup", orders, "-o", "json").text))
    assert (month["broken_consumers"], long["log_files"]) == (["billing"], 0)
    shown = lakelog("simulate", orders, *words, *more)
    assert shown.code == 0
    assert "log_retention" in shown.text
    assert "checkpoint_retention" not in shown.text
    assert "3 settings · nothing is changed" in shown.text
    assert log_of(orders) == before


def test_broken_consumers_are_shown_on_a_narrow_terminal(
    lakelog: Any, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--log-retention", "30 days", "--consumer", "billing=3")
    header = lakelog("simulate", orders, *words).text.splitlines()[0]
    assert "broken_consumers" in header


def test_durations_are_shown_with_units(lakelog: Any, orders: Path) -> None:
    words = ("--deleted-file-retention", "36h", "--checkpoint-retention", "0s")
    columns = "proposal,deleted_file_retention,checkpoint_retention,broken_consumers"
    lines = lakelog("simulate", orders, *words, "--columns", columns).text.splitlines()
    assert lines[2].split() == ["1", "1", "day", "12", "hours", "0", "milliseconds"]


@pytest.mark.parametrize("wrong", ["billing", "=3", "billing=", "billing=-1", "billing=x"])
def test_invalid_consumer_is_a_usage_error(lakelog: Any, orders: Path, wrong: str) -> None:
    outcome = lakelog("simulate", orders, "--consumer", wrong)
    assert outcome.code == 2
    assert "billing=120" in outcome.errors


def test_different_numbers_of_retentions_are_a_usage_error(lakelog: Any, orders: Path) -> None:
    words = ("--log-retention", "1d", "--log-retention", "2d", "--log-retention", "3d")
    more = ("--checkpoint-retention", "1d", "--checkpoint-retention", "2d")
    assert lakelog("simulate", orders, *words, *more).code == 2


# --- options and the bar --------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["30", "30 moons", "days", "-1d", "1.5h"])
def test_invalid_duration_is_a_usage_error(lakelog: Any, orders: Path, wrong: str) -> None:
    outcome = lakelog("cleanup", orders, "--retention", wrong)
    assert outcome.code == 2
    assert "30 days, 12h or 500ms" in outcome.errors


@pytest.mark.parametrize("right", ["2000 days", "300w", "48000h", "9000000000000ms", "90 WEEKS"])
def test_durations_are_parsed_with_common_units(lakelog: Any, orders: Path, right: str) -> None:
    assert "0 files" in lakelog("cleanup", orders, "--retention", right).text


def test_progress_bar_shows_the_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("lakelog.cli.watch._PATIENCE_SECONDS", 0.0)
    with progress("checkpoint", Meter()) as watch:
        watch.show_step("write", 5, 10)
        wait_for("checkpoint: write", capsys)
        watch.show_step("verify", 0, None)
        wait_for("checkpoint: verify", capsys)


# --- rows -----------------------------------------------------------------------------------------


def test_small_files_are_compacted_and_missing_ones_are_a_finding(
    lakelog: Any, tmp_path: Path
) -> None:
    table = engine.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    for number in range(3):
        table.append(pl.DataFrame({"n": [2 - number]}))
    (row,) = rows(lakelog("compact", tmp_path, "--order-by", "n", "-o", "json").text)
    assert (row["num_files"], row["num_removed_files"]) == (1, 3)
    assert table.snapshot().scan().collect()["n"].to_list() == [0, 1, 2]
    assert "nothing to do" in lakelog("compact", tmp_path).text
    table.append(pl.DataFrame({"n": [3]}))
    table.append(pl.DataFrame({"n": [4]}))
    (tmp_path / table.snapshot().files().sort("version").collect()["path"][-1]).unlink()
    outcome = lakelog("compact", tmp_path)
    assert (outcome.code, "was not found" in outcome.text) == (1, True)


def test_convert_shows_a_plan_and_writes_with_apply(lakelog: Any, tmp_path: Path) -> None:
    for month in ("01", "12"):
        (tmp_path / f"month={month}").mkdir()
        pl.DataFrame({"id": [1, 2]}).write_parquet(tmp_path / f"month={month}/a.parquet")
    plan = lakelog("convert", tmp_path)
    assert plan.code == 0
    assert "id long, month string" in plan.text
    assert not (tmp_path / "_delta_log").exists()
    call = ("convert", tmp_path, "--partition-by", "month int", "--apply", "-o", "json")
    (row,) = rows(lakelog(*call).text)
    assert (row["version"], row["num_rows"], row["partition_by"]) == (0, 4, ["month"])
    assert lakelog("rows", tmp_path, "--where", "month = 12").code == 0
    assert lakelog("convert", tmp_path).code != 0


def test_clone_makes_a_table_with_the_files_of_another(lakelog: Any, tmp_path: Path) -> None:
    source = tmp_path / "t"
    table = engine.create(source, {"n": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"n": [1]}))
    call = ("clone", source, tmp_path / "clone", "--version", 1)
    (row,) = rows(lakelog(*call, "-o", "json").text)
    assert (row["path"], row["num_files"]) == (str(tmp_path / "clone"), 1)
    clone = engine.open(tmp_path / "clone", allow_external=source)
    assert clone.to_polars()["n"].to_list() == [1]
    assert "allow_external" in lakelog("clone", source, tmp_path / "other").text
    assert lakelog(*call).code != 0  # it exists


def test_restore_shows_a_plan_and_commits_with_apply(lakelog: Any, tmp_path: Path) -> None:
    source = tmp_path / "t"
    table = engine.create(source, {"n": pl.Int64}, upkeep=False)
    for number in range(3):
        table.append(pl.DataFrame({"n": [number]}))
    plan = lakelog("restore", source, "--version", 1)
    assert (plan.code, table.version()) == (0, 3)
    assert "nothing is changed without --apply" in plan.text
    (row,) = rows(lakelog("restore", source, "--version", 1, "--apply", "-o", "json").text)
    assert (row["version"], row["num_files"], row["num_removed_files"]) == (4, 1, 2)
    assert lakelog("restore", source).code == 2
    table.clone(tmp_path / "clone").delete("n >= 0")
    call = ("restore", tmp_path / "clone", "--version", 0, "-o", "json")
    for more, count in (((), 1), (("--allow-external", source), 0)):
        (row,) = rows(lakelog(*call, *more).text)
        assert (row["num_restored_files"], row["unchecked_files"]) == (1, count)


def test_delete_shows_a_plan_and_commits_with_apply(lakelog: Any, tmp_path: Path) -> None:
    table = engine.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"n": [1, 2]}))
    table.append(pl.DataFrame({"n": [3, 4]}))
    where = ("--where", "n BETWEEN 2 AND 4 AND n % 5 > 0")
    plan = lakelog("delete", tmp_path, *where)
    assert (plan.code, table.version()) == (0, 2)
    assert "3 rows can be deleted" in plan.text
    assert "nothing is changed without --apply" in plan.text
    planned = rows(lakelog("delete", tmp_path, *where, "-o", "json").text)
    assert sorted(row["action"] for row in planned) == ["copy", "remove"]
    (row,) = rows(lakelog("delete", tmp_path, *where, "--apply", "-o", "json").text)
    assert (row["version"], row["num_deleted_rows"], row["num_copied_rows"]) == (3, 3, 1)
    again = lakelog("delete", tmp_path, *where, "--apply")
    assert "no row matches" in again.text
    assert lakelog("delete", tmp_path).code == 2
