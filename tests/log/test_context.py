"""Commit times, and the version at a time."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.log_content import CommitFile
from lakelog.errors import TableNotFoundError, VersionNotFoundError
from lakelog.log import context
from lakelog.log.context import Log, commit_times, iso_text
from lakelog.log.snapshot import LogSnapshot
from tests.handmade import FIRST_MS, MINUTE_MS, Handmade, add, info, metadata, protocol


def times(*modified_ms: int) -> list[int]:
    commits = [CommitFile(v, f"{v}.json", 1, ms) for v, ms in enumerate(modified_ms)]
    frame = commit_times(commits)
    assert frame["version"].to_list() == list(range(len(commits)))
    return frame["timestamp"].to_list()


@given(st.lists(st.integers(0, 20)))
def test_commit_times_equal_a_sequential_adjustment(modified: list[int]) -> None:
    forced: list[int] = []
    for ms in modified:
        forced.append(max(ms, forced[-1] + 1) if forced else ms)
    assert times(*modified) == forced


# --- the version at a time -----------------------------------------------------------------------


def version_at(log: Log, timestamp_ms: int) -> int:
    return context.version_at(log, timestamp_ms, lambda: LogSnapshot.open(log).metadata)


def three_commits(made: Handmade) -> None:
    made.start()
    made.commit(1, add("a"))
    made.commit(2, add("b"))


def test_version_at_a_time_is_the_last_commit_up_to_that_time(made: Handmade) -> None:
    three_commits(made)
    log = made.context()
    at = {FIRST_MS: 0, FIRST_MS + 1: 0, FIRST_MS + MINUTE_MS - 1: 0, FIRST_MS + MINUTE_MS: 1}
    at |= {FIRST_MS + 2 * MINUTE_MS: 2, FIRST_MS + 10**12: 2}
    assert {ms: version_at(log, ms) for ms in at} == at


def test_error_for_a_time_before_the_first_commit_names_the_available_versions(
    made: Handmade,
) -> None:
    three_commits(made)
    with pytest.raises(VersionNotFoundError) as refused:
        version_at(made.context(), FIRST_MS - 1)
    assert refused.value.expected == "versions 0 to 2, from 2023-11-14T22:13:20.000Z"


def test_file_times_out_of_order_are_adjusted_to_increase(made: Handmade) -> None:
    made.start()
    made.commit(1, add("a"), at_ms=FIRST_MS + 100)
    made.commit(2, add("b"), at_ms=FIRST_MS - 5000)
    made.commit(3, add("c"), at_ms=FIRST_MS + 50)
    log = made.context()
    assert [version_at(log, FIRST_MS + ms) for ms in (99, 100, 101, 102, 9999)] == [0, 1, 2, 3, 3]


def test_times_before_the_first_readable_version_are_refused(made: Handmade) -> None:
    three_commits(made)
    made.checkpoint(2, protocol(), metadata())
    made.forget(0)
    log = made.context()
    assert version_at(log, FIRST_MS + 2 * MINUTE_MS) == 2
    with pytest.raises(VersionNotFoundError, match="committed at or before"):
        version_at(log, FIRST_MS + MINUTE_MS)


@pytest.mark.parametrize("in_commit", [False, True])
def test_times_below_a_missing_commit_lead_to_their_versions(
    made: Handmade, in_commit: bool
) -> None:
    properties = ENABLED if in_commit else {}
    start, step = (LATER, 1000) if in_commit else (FIRST_MS, MINUTE_MS)
    made.commit(0, stamped(0), protocol(), metadata(properties=properties))
    for version in range(1, 9):
        made.commit(version, stamped(version), add(f"f{version}"))
    made.checkpoint(8, protocol(), metadata(properties=properties))
    made.forget(4)
    table = made.table
    assert table.versions() == [(0, 3), (8, 8)]
    for version in (0, 1, 2, 3, 8):
        at = start + version * step
        assert table.snapshot(version).timestamp_ms == at
        assert table.snapshot(timestamp=at).version == version
    assert table.snapshot(timestamp=start + 3 * step - 1).version == 2
    for at in (start + 3 * step + 1, start + 4 * step, start + 8 * step - 1):
        with pytest.raises(VersionNotFoundError, match="commit 4 is missing, and its time"):
            table.snapshot(timestamp=at)
    with pytest.raises(VersionNotFoundError, match="committed at or before") as refused:
        table.snapshot(timestamp=start - 1)
    assert refused.value.expected == f"versions 0 to 3, 8, from {iso_text(start)}"


def test_log_without_commits_has_no_times(made: Handmade) -> None:
    made.checkpoint(2, protocol(), metadata())
    with pytest.raises(VersionNotFoundError) as refused:
        version_at(made.context(), FIRST_MS)
    assert "have no commit time" in str(refused.value.expected)
    snapshot = made.table.snapshot()
    assert snapshot.timestamp_ms is None
    assert "unknown" in repr(snapshot)


def test_empty_log_has_no_versions(made: Handmade) -> None:
    with pytest.raises(TableNotFoundError):
        version_at(made.context(), FIRST_MS)


# --- in-commit timestamps ------------------------------------------------------------------------

ENABLED = {"delta.enableInCommitTimestamps": "true"}
LATER = (
    FIRST_MS + 10**9
)  # in-commit times differ from file times, so that tests can distinguish them


def stamped(n: int) -> dict[str, object]:
    return info(inCommitTimestamp=LATER + n * 1000)


def test_in_commit_timestamps_are_used_if_every_commit_has_one(made: Handmade) -> None:
    made.commit(0, stamped(0), protocol(), metadata(properties=ENABLED))
    for version in range(1, 6):
        made.commit(version, stamped(version), add(f"f{version}"))
    log = made.context()
    found = [version_at(log, LATER + ms) for ms in (0, 999, 1000, 3500, 5000, 10**6)]
    assert found == [0, 0, 1, 3, 5, 5]
    with pytest.raises(VersionNotFoundError) as refused:
        version_at(log, LATER - 1)
    assert iso_text(LATER) in str(refused.value.expected)
    assert made.table.snapshot(3).timestamp_ms == LATER + 3000


def test_file_times_are_used_before_in_commit_timestamps_were_enabled(made: Handmade) -> None:
    made.start()
    made.commit(1, info(), add("a"))
    made.commit(2, stamped(2), metadata(properties=ENABLED))
    made.commit(3, stamped(3), add("b"))
    log = made.context()
    assert version_at(log, FIRST_MS) == 0
    assert version_at(log, FIRST_MS + MINUTE_MS) == 1
    assert version_at(log, FIRST_MS + 3 * MINUTE_MS) == 1
    assert version_at(log, LATER + 2000) == 2
    assert version_at(log, LATER + 3000) == 3
    shown = made.table.history().select(pl.col("timestamp").dt.epoch("ms"))["timestamp"]
    assert shown.to_list() == [LATER + 3000, LATER + 2000, FIRST_MS + MINUTE_MS, FIRST_MS]


def test_in_commit_timestamps_are_used_again_after_they_were_disabled(made: Handmade) -> None:
    made.commit(0, stamped(0), protocol(), metadata(properties=ENABLED))
    for version in range(1, 10):
        made.commit(version, info() if version == 6 else stamped(version), add(f"f{version}"))
    log = made.context()
    assert [version_at(log, LATER + ms) for ms in (7000, 8500, 9000)] == [7, 8, 9]
    assert version_at(log, LATER + 6500) == 6


@pytest.mark.parametrize("since", [2, None], ids=["enabled", "never"])
def test_in_commit_timestamps_before_they_were_enabled_are_ignored(
    made: Handmade, since: int | None
) -> None:
    made.commit(0, stamped(10**6), protocol(), metadata())
    made.commit(1, stamped(10**6 + 1), add("a"))
    if since is not None:
        begun = {"delta.inCommitTimestampEnablementVersion": str(since)}
        made.commit(since, stamped(since), metadata(properties=ENABLED | begun))
        made.commit(since + 1, stamped(since + 1), add("b"))
    for version, at in ((0, 0), (0, MINUTE_MS - 1), (1, MINUTE_MS), (1, 3 * MINUTE_MS)):
        assert made.table.snapshot(timestamp=FIRST_MS + at).version == version
    if since is not None:
        assert made.table.snapshot(timestamp=LATER + 2000).version == 2
        assert made.table.snapshot(timestamp=LATER + 10**9).version == 3


def test_commit_times_lead_back_to_their_versions_after_in_commit_timestamps_were_off(
    made: Handmade,
) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    later = ENABLED | {"delta.inCommitTimestampEnablementVersion": "6"}
    made.commit(0, info(), protocol(), metadata(properties=feed))
    made.commit(1, info(), add("a"))
    made.commit(2, stamped(2), metadata(properties=feed | ENABLED))
    made.commit(3, stamped(3), add("b"))
    assert made.table.history(1)["timestamp"].dt.epoch("ms").to_list() == [LATER + 3000]
    made.commit(4, info(), metadata(properties=feed))
    made.commit(5, info(), add("c"))
    expected = {version: FIRST_MS + version * MINUTE_MS for version in range(6)}
    for _ in range(2):
        table, rows = made.table, pl.col("timestamp").dt.epoch("ms")
        shown = dict(table.history().select("version", rows).iter_rows())
        assert shown == expected
        for version, at in expected.items():
            assert table.snapshot(timestamp=at).version == version
            assert table.snapshot(version).timestamp_ms == at
        for limit in range(1, len(expected)):
            newest = table.history(limit).select("version", rows).iter_rows()
            assert dict(newest) == {v: expected[v] for v in list(expected)[-limit:]}
        acts = table.actions().select("version", "timestamp").unique().collect()
        assert dict(acts.iter_rows()) == expected
        changed = table.diff(0, 3).filter(kind="file").select("version", rows)
        assert set(changed.iter_rows()) == {(v, expected[v]) for v in (1, 3)}
        made.commit(6, stamped(6), metadata(properties=feed | later))
        made.commit(7, stamped(7), add("d"))
        expected |= {6: LATER + 6000, 7: LATER + 7000}


def test_in_commit_timestamps_under_the_name_of_the_preview_are_used(made: Handmade) -> None:
    properties = {f"{key}-preview": value for key, value in ENABLED.items()}
    made.commit(0, stamped(0), protocol(), metadata(properties=properties))
    assert made.table.snapshot().timestamp_ms == LATER
    assert made.table.snapshot(timestamp=LATER).version == 0
    with pytest.raises(VersionNotFoundError):
        made.table.snapshot(timestamp=LATER - 1)


@pytest.mark.parametrize("value", ["text", 1.5, None, True, 2**63])
def test_invalid_in_commit_timestamp_is_ignored(made: Handmade, value: object) -> None:
    made.commit(0, info(inCommitTimestamp=value), protocol(), metadata())
    assert made.table.snapshot().timestamp_ms == FIRST_MS
    assert version_at(made.context(), FIRST_MS) == 0


def test_listings_contain_the_commits_from_their_start(made: Handmade) -> None:
    three_commits(made)
    made.checkpoint(1, protocol(), metadata(), add("a"))
    made.write("_last_checkpoint", b'{"version":1}')
    log = made.context()
    assert [c.version for c in log.list_all().commits] == [0, 1, 2]
    assert [c.version for c in log.list_latest().commits] == [1, 2]
    assert [c.version for c in log.list_since(2).commits] == [2]
    assert log.latest_version() == 2
