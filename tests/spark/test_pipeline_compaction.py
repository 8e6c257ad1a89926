"""Compaction changes no row, with any concurrent change; an unreadable file does not stop it.

Spark's part is simulated by `tests.spark.pipeline_side`; `test_pipeline` uses Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import (
    CommitOutcomeUnknown,
    ConflictError,
    Table,
    UnavailableError,
    UnsupportedFeatureError,
)
from lakelog.data import compact as module
from lakelog.data.bin_rewrite import BinRewriter
from lakelog.data.compact import SKIP
from lakelog.data.read import read_files
from lakelog.testing import Fault, InjectingStore, Rule
from lakelog.transaction.transaction import LogTransaction
from tests.budget import seeded
from tests.spark.pipeline_side import (
    DAY_MS,
    Clock,
    Side,
    contents,
    live,
    on_disk,
    run_compact,
    small_files,
    some_rows,
)


def skips(table: Table) -> dict[str, Mapping[str, Any]]:
    files = lakelog.open(table.path).snapshot().files().collect()
    tags = dict(zip(files["path"], files["tags"].to_list(), strict=True))
    return {p: orjson.loads(t[SKIP]) for p, t in tags.items() if t and SKIP in t}


def break_file(table: Table, path: str) -> bytes:
    file = Path(table.path, path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    return whole


# --- rows --------------------------------------------------------------------------------------


def test_rows_are_the_same_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    chance = seeded()
    for number in range(4):
        days = ["a", "b/ c=%", "", None][: chance.randint(1, 4)]
        batches = [
            some_rows(*chance.choices(range(100), k=chance.randint(1, 20)), day=chance.choice(days))
            for _ in range(chance.randint(2, 8))
        ]
        mode = chance.choice(["none", "name"])
        table = small_files(
            tmp_path / str(number),
            batches,
            partition_by=chance.choice([(), ("day",)]),
            configuration={} if mode == "none" else {"delta.columnMapping.mode": mode},
        )
        before, files = contents(table), live(table)
        target = chance.choice([1_500, 4_000, 1 << 20])
        report = run_compact(table, target_bytes=target, commit_bytes=chance.choice([1, 1 << 30]))
        assert_frame_equal(contents(table), before)
        assert len(live(table)) <= len(files)
        assert report.removed - report.files == len(files) - len(live(table))
        again = run_compact(table, target_bytes=target)
        assert (again.status, again.version) == ("nothing to do", report.version)


def test_commit_has_the_fields_of_optimize(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(3)])
    report = run_compact(table)
    assert (report.status, report.rows, report.files, report.removed) == ("done", 3, 1, 3)
    commit = table.history(limit=1).row(0, named=True)
    assert commit["operation"] == "OPTIMIZE"
    assert commit["operationParameters"]["predicate"] == "[]"
    metrics = commit["operationMetrics"]
    assert (metrics["numRemovedFiles"], metrics["numAddedFiles"]) == ("3", "1")
    assert metrics["maxFileSize"] == metrics["numAddedBytes"] == str(report.bytes)
    actions = table.actions(end=report.version).filter(version=report.version).collect()
    changes = actions.filter(pl.col("actionType").is_in(["add", "remove"]))["dataChange"]
    assert not changes.any()


def test_only_files_that_may_match_the_condition_are_compacted(tmp_path: Path) -> None:
    batches = [some_rows(n, day="ab"[n % 2]) for n in range(4)]
    table = small_files(tmp_path / "t", batches)
    assert run_compact(table, where="day = 'b'").removed == 2
    assert len(live(table)) == 3


def test_append_only_table_with_a_change_data_feed_is_compacted(tmp_path: Path) -> None:
    table = small_files(
        tmp_path / "t",
        [some_rows(1), some_rows(2)],
        configuration={"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"},
    )
    assert run_compact(table).removed == 2
    assert not table.actions().filter(actionType="cdc").collect().height


def test_table_with_constraints_is_compacted(tmp_path: Path) -> None:
    rule = {"delta.constraints.positive": "id > 0"}
    table = small_files(tmp_path / "t", [some_rows(1), some_rows(2)], configuration=rule)
    before = contents(table)
    assert run_compact(table).files == 1
    assert_frame_equal(contents(table), before)


def test_row_ids_are_kept(tmp_path: Path) -> None:
    table = small_files(
        tmp_path / "t",
        [some_rows(1), some_rows(2)],
        configuration={"delta.enableRowTracking": "true"},
    )
    before = table.scan(row_ids=True).collect().sort("_row_id")
    assert run_compact(table).files == 1
    assert_frame_equal(table.scan(row_ids=True).collect().sort("_row_id"), before)


def test_an_indextables_table_is_refused(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format="indextables")
    with pytest.raises(UnsupportedFeatureError, match="Parquet"):
        run_compact(table)


# --- files that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize("harm", ["cut short", "missing"])
def test_unreadable_file_is_skipped_during_its_cooldown_and_then_retried(
    tmp_path: Path, harm: str
) -> None:
    clock = Clock()
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(4)], clock=clock)
    bad = live(table)[1]
    whole = break_file(table, bad)
    if harm == "missing":
        Path(table.path, bad).unlink()
    before = on_disk(table)
    report = run_compact(table)
    assert (report.status, report.rows, report.removed, report.skips) == ("done", 3, 3, 1)
    assert bad in report.notes[0]
    assert bad in live(table)
    assert len(live(table)) == 2
    new = set(live(table)) - before - {bad}
    assert on_disk(table) - before == new, "nothing is left of the attempt"
    record = skips(table)[bad]
    assert (record["count"], record["retryAfter"]) == (1, clock.now_ms + DAY_MS)

    clock.now_ms += DAY_MS - 1
    side = Side()
    assert run_compact(table, side).status == "nothing to do"
    assert side.jobs == [], "it is skipped"

    clock.now_ms += 1
    again = run_compact(table, cooldown="2 hours")
    assert (again.skips, again.removed, skips(table)[bad]["count"]) == (1, 0, 2)

    Path(table.path, bad).write_bytes(whole)
    clock.now_ms += 2 * DAY_MS // 24
    repaired = run_compact(table)
    assert (repaired.removed, repaired.skips, len(live(table))) == (2, 0, 1)
    assert contents(table)["id"].to_list() == [0, 1, 2, 3]
    assert skips(table) == {}


def test_bin_of_only_unreadable_files_is_skipped(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(1), some_rows(2)])
    for path in live(table):
        break_file(table, path)
    report = run_compact(table)
    assert (report.skips, report.removed, len(skips(table))) == (2, 0, 2)
    assert run_compact(table).status == "nothing to do"


def test_file_whose_store_fails_is_skipped_without_a_cooldown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(3)])
    bad = live(table)[0]
    real = read_files

    def failing(plan: Any, files: pl.DataFrame, **more: Any) -> Any:
        if bad in files["path"].to_list():
            raise UnavailableError("not now", path=bad)
        return real(plan, files, **more)

    monkeypatch.setattr("lakelog.data.bin_rewrite.read_files", failing)
    report = run_compact(table)
    assert (report.status, report.removed, report.skips) == ("incomplete", 2, 1)
    assert skips(table) == {}
    again = run_compact(table)
    assert (again.status, again.skips, again.version) == ("incomplete", 1, report.version)
    monkeypatch.undo()
    assert run_compact(table).removed == 2


def test_files_with_a_wrong_number_of_rows_are_skipped(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(n, day="ab"[n % 2]) for n in range(4)])
    path = next(p for p in live(table) if p.startswith("day=a"))
    with table.transaction() as tx:
        file = tx.snapshot.files().filter(path=path).with_columns(stats=pl.lit('{"numRecords":2}'))
        tx.add(file)
    before = on_disk(table)
    report = run_compact(table)
    assert (report.removed, report.skips) == (2, 1)
    assert path in report.notes[0]
    assert "number of rows of a data file differs from the log" in report.notes[0]
    assert on_disk(table) - before == set(live(table)) - before, "what was written is deleted"
    assert path in live(table)
    with pytest.raises(lakelog.CorruptionError, match="number of rows"):
        contents(table)


# --- concurrent writers
# ----------------------------------------------------------------------------


def test_file_removed_by_a_concurrent_commit_is_not_restored(tmp_path: Path) -> None:
    batches = [some_rows(n, day="ab"[n % 2]) for n in range(6)]
    table = small_files(tmp_path / "t", batches)
    before = on_disk(table)
    removed: list[str] = []

    def interfere() -> None:
        if not removed:
            removed.append(next(p for p in live(table) if p.startswith("day=a")))
            with lakelog.open(table.path).transaction() as tx:
                tx.remove(path=removed[0], partitionValues={"day": "a"})

    side = Side(interfere)
    report = run_compact(table, side)
    assert side.jobs == [2, 1], "the bin that lost a file is planned again, the other committed"
    assert (report.status, report.removed) == ("done", 5)
    assert contents(table).height == 5
    assert on_disk(table) - before == set(live(table)), "files of the failed attempt are deleted"


def test_concurrently_added_column_is_planned_again(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(1), some_rows(2)])
    wider = some_rows(3).with_columns(more=pl.lit(1, pl.Int64))
    once = iter([1])

    def interfere() -> None:
        for _ in once:
            lakelog.open(table.path).append(wider, schema_mode="merge")

    side = Side(interfere)
    assert run_compact(table, side).removed == 2
    assert side.jobs == [1, 1]
    assert contents(table)["more"].to_list() == [None, None, 1]


def test_concurrently_added_files_are_compacted_by_the_next_run(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(3)])
    side = Side(lambda: None)

    def interfere() -> None:
        lakelog.open(table.path).append(some_rows(10 + len(side.jobs)))

    side.during = interfere
    report = run_compact(table, side)
    assert (report.status, report.removed, side.jobs) == ("done", 3, [1])
    assert run_compact(table).removed == 2
    assert contents(table)["id"].to_list() == [0, 1, 2, 11]


def test_files_without_statistics_and_tables_without_files_are_supported(tmp_path: Path) -> None:
    assert run_compact(small_files(tmp_path / "none", [])).status == "nothing to do"
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(3)])
    with table.transaction() as tx:
        tx.add(tx.snapshot.files().drop("stats"))
    assert (run_compact(table).removed, contents(table)["id"].to_list()) == (3, [0, 1, 2])


def test_permanent_conflicts_leave_compaction_incomplete(tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(8)])

    def interfere() -> None:
        paths = live(table)
        with lakelog.open(table.path).transaction() as tx:
            tx.remove(path=paths[0], partitionValues={"day": "a"})

    report = run_compact(table, Side(interfere))
    assert (report.status, report.removed) == ("incomplete", 0)
    assert contents(table).height == 3
    assert on_disk(table) >= set(live(table))


# --- failed jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [RuntimeError("lost executor"), UnavailableError("no store")])
def test_files_of_finished_tasks_are_deleted_if_another_task_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    table = small_files(tmp_path / "t", [some_rows(n, day="ab"[n % 2]) for n in range(4)])
    before, rows, real, written = on_disk(table), contents(table), BinRewriter.rewrite, [0]

    def failing(self: Any, number: int, *more: Any) -> Any:
        if number == 1:
            written[0] = len(on_disk(table) - before)
            raise failure
        return real(self, number, *more)

    monkeypatch.setattr(BinRewriter, "rewrite", failing)
    with pytest.raises(UnavailableError, match=str(failure)):
        run_compact(table)
    assert (written, on_disk(table)) == ([1], before)
    assert_frame_equal(contents(table), rows)
    monkeypatch.undo()
    assert run_compact(table).removed == 4


# --- interrupted -------------------------------------------------------------------------------


def test_a_run_killed_between_commits_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [some_rows(n, day="abc"[n % 3]) for n in range(9)]
    table = small_files(tmp_path / "t", batches)
    before = contents(table)
    real, done = module._transaction, list[int]()

    def killed(*args: Any) -> LogTransaction:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return real(*args)

    monkeypatch.setattr(module, "_transaction", killed)
    with pytest.raises(KeyboardInterrupt):
        run_compact(table, commit_bytes=1)
    assert_frame_equal(contents(table), before)
    assert len(live(table)) == 7
    monkeypatch.undo()
    assert run_compact(table).removed == 6
    assert_frame_equal(contents(table), before)


@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "late"])
def test_a_commit_that_fails_loses_no_row_and_no_file(tmp_path: Path, fault: Fault) -> None:
    table = small_files(tmp_path / "t", [some_rows(n) for n in range(3)])
    before = contents(table)
    rule = Rule(fault, "put_if_absent")
    store = InjectingStore(table.log.store, [rule])
    faulty = Table(replace(table.log, store=store))
    with suppress(UnavailableError, CommitOutcomeUnknown, ConflictError):
        run_compact(faulty)
    assert_frame_equal(contents(table), before)
    run_compact(table)
    assert_frame_equal(contents(table), before)
    assert len(live(table)) == 1
