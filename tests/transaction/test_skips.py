"""Skipped files: their count, their cooldown, and the retry after it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import InvalidInputError, InvalidPropertyError, Table, UnsupportedFeatureError
from lakelog.dialects.indextables import DIALECT
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.transaction.action_buffer import COOLDOWN_PROPERTY, cooldown_ms
from tests.dialects.indextables.writing import PROTOCOL, add, metadata, skip
from tests.dialects.indextables.writing import Log as IndexTablesLog
from tests.transaction.tables import NOW_MS, append, location, new_table, open_with_rules

HOUR_MS = 3_600_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = new_table(location("local", tmp_path), "indextables")
    append(table, "a", "b")
    return table


def at(table: Table, now_ms: int) -> Table:
    """The table at a point in time."""
    return Table(Log(open_store(table.path), DIALECT, clock=lambda: now_ms))


def test_skip_is_recorded_with_reason_time_and_cooldown(table: Table) -> None:
    with at(table, NOW_MS).transaction() as tx:
        tx.skip(path="a", reason="broken footer", operation="merge", size=3)
    row = table.snapshot().skips().collect().row(0, named=True)
    assert row["skipReason"] == "broken footer"
    assert row["skipOperation"] == "merge"
    assert row["skipTimestamp"] == NOW_MS
    assert row["retryAfter"] == NOW_MS + 24 * HOUR_MS
    assert row["skipCount"] == 1
    assert row["size"] == 3
    assert table.snapshot().num_files() == 2  # it stays in the table


def test_skip_count_increases_also_after_a_concurrent_skip(table: Table) -> None:
    one, _ = open_with_rules(table.path, "indextables")
    other, _ = open_with_rules(table.path, "indextables")
    first, second = one.transaction(), other.transaction()
    first.skip(path="a", reason="x")
    second.skip(pl.DataFrame({"path": ["a", "b"], "reason": ["y", "z"]}))
    first.commit()
    second.commit()
    skips = table.snapshot().skips().collect().sort("path")
    assert skips["skipCount"].to_list() == [2, 1]


def test_highest_count_is_not_exceeded(tmp_path: Path) -> None:
    log = IndexTablesLog(tmp_path)
    log.commit(0, [PROTOCOL, metadata(), add("a")])
    log.commit(1, [skip("a", skipCount=(1 << 31) - 1)])
    with lakelog.open(tmp_path, upkeep=False).transaction() as tx:
        tx.skip(path="a", reason="x")
    rows = lakelog.open(tmp_path).actions().filter(pl.col("actionType") == "mergeskip").collect()
    assert rows["skipCount"].to_list() == [(1 << 31) - 1] * 2


def test_file_is_excluded_until_its_cooldown_has_passed(table: Table) -> None:
    with at(table, NOW_MS).transaction() as tx:
        tx.skip(path="a", reason="x", cooldown=dt.timedelta(hours=2))
    for hours, cooling in ((0, True), (1, True), (2, False), (30, False)):
        snapshot = at(table, NOW_MS + hours * HOUR_MS).snapshot()
        assert snapshot.in_cooldown("a") is cooling
        assert snapshot.in_cooldown("b") is False
        kept = snapshot.filter_cooldown().collect()["path"].sort().to_list()
        assert kept == (["b"] if cooling else ["a", "b"])
    candidates = pl.LazyFrame({"path": ["z", "a", "b"], "n": [1, 2, 3]})
    left = at(table, NOW_MS).snapshot().filter_cooldown(candidates).collect()
    assert left.rows() == [("z", 1), ("b", 3)]


def test_cooldown_property_is_in_hours_or_an_interval() -> None:
    assert cooldown_ms({}) == 24 * HOUR_MS
    assert cooldown_ms({COOLDOWN_PROPERTY: " 3 "}) == 3 * HOUR_MS
    assert cooldown_ms({COOLDOWN_PROPERTY: "interval 90 minutes"}) == HOUR_MS * 3 // 2
    with pytest.raises(InvalidPropertyError):
        cooldown_ms({COOLDOWN_PROPERTY: "soon"})


def test_cooldown_property_of_the_table_is_used(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table = new_table(where, "indextables", configuration={COOLDOWN_PROPERTY: "2"})
    with at(table, NOW_MS).transaction() as tx:
        tx.skip(path="a", reason="x")
    assert table.snapshot().skips().collect()["retryAfter"].to_list() == [NOW_MS + 2 * HOUR_MS]


def test_skip_without_path_or_reason_raises(table: Table) -> None:
    tx = table.transaction()
    with pytest.raises(InvalidInputError, match="lacks a required field"):
        tx.skip(path="a")
    with pytest.raises(InvalidInputError, match="lacks a required field"):
        tx.skip(reason="x")


def test_skip_on_a_delta_table_raises(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with pytest.raises(UnsupportedFeatureError, match="skipped"), table.transaction() as tx:
        tx.skip(path="a", reason="x")
    assert table.version() == 0
