"""Simulated retentions report what cleanup and vacuum would do then, and change nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog import InvalidInputError
from lakelog.display import size_text
from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
from lakelog.maintenance.retention_simulation import SCHEMA
from tests.budget import share_of
from tests.maintenance.logs import DAY_MS, NOW_MS, MadeLog, fresh


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    log = MadeLog(tmp_path / "table")
    log.commits(60 - i for i in range(40))
    for version in (5, 10, 20, 30, 39):
        log.checkpoint(version, 60 - version)
    return log


def test_first_row_is_the_current_retention(made: MadeLog) -> None:
    names = made.names()
    found = made.table().simulate_retention()
    assert found.schema == SCHEMA
    [row] = found.iter_rows(named=True)
    planned = made.table().cleanup()
    assert isinstance(planned, CleanupPlan)
    assert row["proposal"] == "current"
    assert (row["log_files"], row["log_bytes"]) == (planned.files.height, planned.size_bytes)
    assert (row["oldest_version"], row["versions_lost"]) == (20, 20)
    assert row["oldest_time"] == dt.datetime.fromtimestamp(
        made.clock.now_ms / 1000 - 40 * 86_400, dt.UTC
    )
    assert row["change_feed_from"] is None
    assert made.names() == names


def test_oldest_time_is_the_in_commit_timestamp_also_without_a_checkpoint(tmp_path: Path) -> None:
    made = MadeLog(
        tmp_path / "table",
        configuration={"delta.enableInCommitTimestamps": "true"},
        writer_features=("inCommitTimestamp",),
        in_commit=lambda version: NOW_MS - (60 - version) * DAY_MS,
    )
    made.commits(0 for _ in range(3))  # a copy of today
    [row] = made.table().simulate_retention().iter_rows(named=True)
    assert (row["gate"], row["oldest_version"]) == ("no-cut-off-checkpoint", 0)
    assert row["oldest_time"] == dt.datetime.fromtimestamp(NOW_MS / 1000 - 60 * 86_400, dt.UTC)


def test_each_proposal_has_a_row(made: MadeLog) -> None:
    found = made.table().simulate_retention(
        log_retention=["90 days", dt.timedelta(days=50), 21 * DAY_MS, "1 day"]
    )
    assert found["proposal"].to_list() == ["current", "1", "2", "3", "4"]
    assert found["oldest_version"].to_list() == [20, 0, 5, 30, 39]
    assert found["gate"].to_list() == [None, "no-cut-off-commit", None, None, None]
    assert found["versions_lost"].to_list() == [20, 0, 5, 30, 39]


def test_simulation_prints_the_differences_between_proposals(made: MadeLog) -> None:
    found = made.table().simulate_retention(
        log_retention=["90 days", "1 day"], consumers={"billing": 25, "audit": 39}
    )
    assert str(found) == repr(found)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 120
    header = [name.strip() for name in lines[1].strip("│").split("┆")]
    assert header == [
        *("proposal", "log retention", "oldest version"),
        *("log files freed", "data files freed", "breaks", "all kept, because"),
    ]
    cells = [[cell.strip() for cell in line.strip("│").split("┆")] for line in lines[3:-1]]
    # A cell continues on the next line, in a row without a name.
    begins = [number for number, row in enumerate(cells) if row[0]]
    rows = [
        [" ".join(filter(None, cell)) for cell in zip(*cells[begin:end], strict=True)]
        for begin, end in zip(begins, [*begins[1:], len(cells)], strict=True)
    ]
    freed = found["log_bytes"].to_list()
    assert [row[:3] for row in rows] == [
        ["current", "30 days", "20"],
        ["1", "90 days", "0"],
        ["2", "1 day", "39"],
    ]
    assert rows[1][3] == "-"
    assert rows[2][3] == f"{found['log_files'][2]} ({size_text(freed[2])})"
    breaks = [", ".join(names) for names in found["broken_consumers"].to_list()]
    assert [row[5] for row in rows] == breaks
    assert "billing" in breaks
    assert rows[1][6] == "no version is older than the retention"
    assert "90 days" in found._repr_html_()
    assert "log_retention_ms" not in found._repr_html_()
    # A selection is a frame like any other.
    assert "versions_lost" in str(found.select("proposal", "versions_lost"))
    assert "breaks" not in str(made.table().simulate_retention())


def test_removed_data_files_are_counted_once_they_are_old_enough(made: MadeLog) -> None:
    found = made.table().simulate_retention(deleted_file_retention=["100 days", "50 days"])
    # Every third version from 2 on removes a file of ten bytes.
    removals = [v for v in range(40) if v % 3 == 2]
    expected = [len(removals), 0, sum(60 - v >= 50 for v in removals)]
    assert found["data_files"].to_list() == expected
    assert found["data_bytes"].to_list() == [10 * count for count in expected]
    assert found["oldest_whole_version"].to_list() == [38, 20, 20]


def test_consumers_that_would_break_are_listed(made: MadeLog) -> None:
    found = made.table().simulate_retention(
        log_retention=["90 days", "1 day"],
        deleted_file_retention="365 days",
        consumers={"slow": 12, "fast": 39, "slowest": 3},
    )
    assert found["stream_from"].to_list() == [38, 0, 39]
    assert found["broken_consumers"].to_list() == [["slow", "slowest"], [], ["slow", "slowest"]]


def test_change_feed_begins_where_its_files_are_retained(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table", configuration={"delta.enableChangeDataFeed": "true"})
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    found = made.table().simulate_retention("90 days", ["365 days", "30 days"])
    assert found["change_feed_from"].to_list() == [40, 0, 31]


def test_invalid_durations_are_refused(made: MadeLog) -> None:
    table = made.table()
    wrong: list[Any] = ["a month", -1, [], 1.5, True]
    for value in wrong:
        with pytest.raises(InvalidInputError):
            table.simulate_retention(value)
    with pytest.raises(InvalidInputError, match="equal lengths"):
        table.simulate_retention([1, 2], [1, 2, 3])


@given(days=st.integers(0, 70))
@settings(max_examples=share_of(10))
def test_simulation_equals_cleanup(tmp_path_factory: pytest.TempPathFactory, days: int) -> None:
    made = MadeLog(tmp_path_factory.mktemp("log") / "table")
    made.commits(60 - 3 * i for i in range(20))
    for version in (3, 9, 15):
        made.checkpoint(version, 50)
    simulated = made.table().simulate_retention(dt.timedelta(days=days)).row(1, named=True)
    done = made.table().cleanup(plan=False, retention=days * DAY_MS, force=True)
    assert isinstance(done, CleanupReport)
    assert (simulated["log_files"], simulated["log_bytes"]) == (done.files.height, done.size_bytes)
    assert fresh(made).versions() == [(simulated["oldest_version"], 19)]
