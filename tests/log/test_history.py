"""Commits as dataframes: their authors, and every action in order."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    LakelogWarning,
    LogGapError,
    MalformedLogError,
    TableNotFoundError,
)
from lakelog.log import history as module
from lakelog.log.history import HISTORY_COLUMNS, by_size, commits_between, history, lazy_actions
from lakelog.model import actions
from tests.handmade import (
    FIRST_MS,
    MINUTE_MS,
    Handmade,
    add,
    info,
    metadata,
    protocol,
    remove,
    time_of,
)


def filled(made: Handmade) -> None:
    made.start(add("a"))
    made.commit(1, info("WRITE", operationParameters={"mode": "Append", "n": 1}), add("b"))
    made.commit(2, remove("a"), info("DELETE", userName="u", notebook={"id": 1}))
    made.commit(3, add("c"))


# --- history -------------------------------------------------------------------------------------


def test_commits_are_listed_newest_first_with_their_commit_info(made: Handmade) -> None:
    filled(made)
    frame = history(made.context())
    assert frame.columns == ["version", "timestamp", *HISTORY_COLUMNS]
    assert frame["version"].to_list() == [3, 2, 1, 0]
    assert frame["timestamp"].to_list() == [time_of(v) for v in (3, 2, 1, 0)]
    assert frame["operation"].to_list() == [None, "DELETE", "WRITE", "CREATE TABLE"]
    row = frame.row(2, named=True)
    assert row["operationParameters"] == {"mode": "Append", "n": "1"}
    assert json.loads(frame.row(1, named=True)["extra"]) == {"notebook": {"id": 1}}
    for limit in (0, 1, 3, 4, 99):
        assert history(made.context(), limit)["version"].to_list() == [3, 2, 1, 0][:limit]


def test_user_metadata_is_a_column_of_the_history(made: Handmade) -> None:
    made.start()
    made.commit(1, info("WRITE", userMetadata='why "é"', ticket="T-1"), add("a"))
    made.commit(2, info("WRITE"), add("b"))
    frame = history(made.context())
    assert frame["userMetadata"].to_list() == [None, 'why "é"', None]
    assert json.loads(frame["extra"][1]) == {"userMetadata": 'why "é"', "ticket": "T-1"}


def test_limit_reads_no_older_commit(made: Handmade) -> None:
    filled(made)
    made.write(f"{0:020d}.json", b"damaged")
    assert history(made.context(), 3).height == 3
    with pytest.raises(MalformedLogError):
        history(made.context())


def test_negative_limit_is_refused(made: Handmade) -> None:
    filled(made)
    with pytest.raises(InvalidInputError, match="negative"):
        history(made.context(), -1)


def test_first_of_two_commit_infos_is_used(made: Handmade) -> None:
    made.start()
    made.commit(1, info("FIRST"), add("a"), info("SECOND"))
    assert history(made.context(), 1)["operation"].to_list() == ["FIRST"]


def test_history_needs_no_checkpoint_and_no_complete_log(made: Handmade) -> None:
    filled(made)
    made.forget(0, 2)
    assert history(made.context())["version"].to_list() == [3, 1]


def test_log_of_one_checkpoint_has_an_empty_history(made: Handmade) -> None:
    made.checkpoint(4, protocol(), metadata())
    frame = history(made.context())
    assert frame.height == 0
    assert frame.columns == ["version", "timestamp", *HISTORY_COLUMNS]


def test_empty_log_has_no_history(made: Handmade) -> None:
    with pytest.raises(TableNotFoundError):
        history(made.context())


def test_in_commit_times_are_used_if_the_commit_that_enabled_them_is_missing(
    tmp_path: Path,
) -> None:
    table = lakelog.create(tmp_path, {"a": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"a": [1]}))
    table.alter.set_properties({"delta.enableInCommitTimestamps": "true"})
    table.append(pl.DataFrame({"a": [2]}))
    table.checkpoint()
    table.append(pl.DataFrame({"a": [3]}))
    expected = table.history(2)["timestamp"].to_list()
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    for version in (3, 4):
        os.utime(tmp_path / "_delta_log" / f"{version:020d}.json", (1, 1))
    found = lakelog.open(tmp_path).history()
    assert found["version"].to_list() == [4, 3, 1, 0]
    assert found["timestamp"].to_list()[:2] == expected


@pytest.mark.parametrize("at_ms", [2**62, -(2**62)])
def test_time_beyond_the_range_of_datetime_is_clamped(made: Handmade, at_ms: int) -> None:
    stamps = {"delta.enableInCommitTimestamps": "true"}
    made.commit(0, info(inCommitTimestamp=at_ms), protocol(), metadata(properties=stamps))
    (row,) = history(made.context()).rows(named=True)
    assert row["timestamp"].year in {1, 9999}


# --- actions -------------------------------------------------------------------------------------


def test_actions_are_returned_in_order_with_the_flattened_schema(made: Handmade) -> None:
    filled(made)
    made.commit(4, {"newAction": {"x": 1}}, {"cdc": {"path": "c%20d"}}, info())
    frame = lazy_actions(made.context()).collect()
    assert frame.schema == actions.schema()
    assert frame.select("version", "position", "actionType").rows() == [
        *((0, 0, "commitInfo"), (0, 1, "protocol"), (0, 2, "metaData"), (0, 3, "add")),
        *((1, 0, "commitInfo"), (1, 1, "add")),
        *((2, 0, "remove"), (2, 1, "commitInfo")),
        (3, 0, "add"),
        *((4, 0, "newAction"), (4, 1, "cdc"), (4, 2, "commitInfo")),
    ]
    assert frame["timestamp"].unique().sort().to_list() == [
        FIRST_MS + v * MINUTE_MS for v in range(5)
    ]
    assert frame.row(9, named=True)["extra"] == '{"x":1}'
    assert frame.row(10, named=True)["path"] == "c d"


def test_statistics_are_also_returned_as_maps(made: Handmade) -> None:
    made.start(add("a", stats='{"numRecords":3,"minValues":{"id":1},"nullCount":{"id":0}}'))
    frame = lazy_actions(made.context()).filter(pl.col("actionType") == "add").collect()
    row = frame.row(0, named=True)
    assert (row["numRecords"], row["minValues"], row["nullCount"]) == (3, {"id": "1"}, {"id": "0"})
    assert row["maxValues"] is None


@pytest.mark.parametrize(
    ("start", "end", "versions"),
    [(0, None, [0, 1, 2, 3]), (1, 2, [1, 2]), (3, 3, [3]), (2, None, [2, 3])],
)
def test_range_is_inclusive(
    made: Handmade, start: int, end: int | None, versions: list[int]
) -> None:
    filled(made)
    frame = lazy_actions(made.context(), start, end).select("version").unique().collect()
    assert sorted(frame["version"]) == versions


@pytest.mark.parametrize(("start", "end"), [(-1, None), (2, 1), (0, 4), (4, None), (9, 9)])
def test_range_that_is_empty_or_beyond_the_log_is_refused(
    made: Handmade, start: int, end: int | None
) -> None:
    filled(made)
    with pytest.raises(InvalidInputError):
        commits_between(made.context(), made.context().list_all(), start, end)


def test_commits_deleted_by_cleanup_are_reported_by_a_warning(made: Handmade) -> None:
    filled(made)
    made.forget(0, 1)
    with pytest.warns(LakelogWarning, match="commits 0 to 1 were not found on disk"):
        found = commits_between(made.context(), made.context().list_all(), 0, None)
    assert [c.version for c in found] == [2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(commits_between(made.context(), made.context().list_all(), 2, None)) == 2
    with pytest.raises(LakelogError, match="not found on disk"):
        commits_between(made.context(), made.context().list_all(), 0, 1)


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_gap_within_the_range_is_refused(made: Handmade, gap: int) -> None:
    filled(made)
    made.forget(gap)
    with pytest.raises(LogGapError):
        commits_between(made.context(), made.context().list_all(), 0, 3)
    with pytest.raises(LogGapError):
        commits_between(made.context(), made.context().list_all(), 0, gap)


def test_projection_filter_and_limit_use_the_same_rows(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(made)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1)  # so that each commit is a chunk
    lazy = lazy_actions(made.context())
    whole = lazy.collect()
    adds = lazy.filter(pl.col("actionType") == "add")
    assert adds.select("path").collect()["path"].to_list() == ["a", "b", "c"]
    assert adds.head(2).collect()["path"].to_list() == ["a", "b"]
    for n in (0, 1, 5, 99):
        assert lazy.head(n).collect().equals(whole.head(n))
    assert lazy.filter(pl.col("path") == "nothing").collect().schema == actions.schema()


def test_nothing_is_read_before_collect(made: Handmade) -> None:
    filled(made)
    made.write(f"{1:020d}.json", b"damaged")
    lazy = lazy_actions(made.context())
    with pytest.raises(MalformedLogError):
        lazy.collect()


def test_commits_are_grouped_by_size(made: Handmade, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(made)
    commits = made.context().list_all().commits
    monkeypatch.setattr(module, "_CHUNK_BYTES", commits[0].size_bytes + commits[1].size_bytes)
    runs = list(by_size(commits))
    assert [c for run in runs for c in run] == list(commits)
    assert len(runs[0]) == 2
    assert list(by_size(())) == []


def test_compaction_or_checkpoint_does_not_change_the_history(made: Handmade) -> None:
    filled(made)
    before: Any = lazy_actions(made.context()).collect()
    made.compaction(1, 2, add("wrong"))
    made.checkpoint(3, protocol(), metadata(), add("wrong"))
    assert lazy_actions(made.context()).collect().equals(before)
