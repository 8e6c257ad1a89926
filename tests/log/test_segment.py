"""The log segment of a version, chosen by file names alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.log_content import Checkpoint, CommitFile, CompactionFile, LogListing
from lakelog.errors import LogGapError, VersionNotFoundError
from lakelog.log.segment import (
    LogSegment,
    choose_segment,
    has_hole,
    rebuildable,
    validate_contiguous,
)


def commit(version: int) -> CommitFile:
    return CommitFile(version, f"{version}.json", 1, version)


def checkpoint(version: int, rank: int = 0) -> Checkpoint:
    return Checkpoint(version, "classic", rank, (f"{version}.{rank}",))


def listing(
    commits: list[int] | range, checkpoints: tuple[int, ...] = (), *spans: tuple[int, int]
) -> LogListing:
    return LogListing(
        tuple(map(commit, sorted(commits))),
        tuple(map(checkpoint, sorted(checkpoints))),
        tuple(CompactionFile(a, b, f"{a}.{b}", 1) for a, b in sorted(spans)),
    )


def shape(segment: LogSegment) -> tuple[int, int | None, list[int], list[tuple[int, int]]]:
    return (
        segment.version,
        segment.checkpoint.version if segment.checkpoint else None,
        [c.version for c in segment.commits],
        [(c.start, c.end) for c in segment.compactions],
    )


def test_latest_checkpoint_at_or_below_the_target_is_chosen() -> None:
    found = listing(range(10), (2, 5, 8))
    assert shape(choose_segment(found)) == (9, 8, [9], [])
    assert shape(choose_segment(found, 8)) == (8, 8, [], [])
    assert shape(choose_segment(found, 7)) == (7, 5, [6, 7], [])
    assert shape(choose_segment(found, 1)) == (1, None, [0, 1], [])


def test_error_for_a_missing_version_names_the_readable_ranges() -> None:
    found = listing([0, 1, 4, 5, 9], (4, 7))
    for version in (2, 3, 6, 8, 9, 10):
        with pytest.raises(VersionNotFoundError) as refused:
            choose_segment(found, version, table="t")
        assert refused.value.expected == "0 to 1, 4 to 5, 7"
        assert refused.value.version == version


def test_compactions_are_used_above_the_checkpoint_up_to_the_target_without_overlap() -> None:
    spans = ((1, 2), (1, 4), (3, 6), (5, 6), (7, 20))
    found = listing(range(10), (), *spans)
    assert shape(choose_segment(found))[3] == [(1, 4), (5, 6)]
    assert shape(choose_segment(found, 4))[3] == [(1, 4)]
    assert shape(choose_segment(found, 3))[3] == [(1, 2)]
    assert shape(choose_segment(listing(range(10), (2,), *spans)))[3] == [(3, 6)]


def test_segment_with_a_gap_is_refused() -> None:
    with pytest.raises(LogGapError):
        LogSegment(3, None, (commit(0), commit(2), commit(3)))
    with pytest.raises(LogGapError):
        LogSegment(3, checkpoint(1), (commit(2),))
    assert LogSegment(1, checkpoint(1), ()).commits == ()


@pytest.mark.parametrize(
    ("versions", "after", "last", "expected"),
    [([1, 2, 4], 0, 4, 3), ([1, 2], 0, 3, 3), ([2], 0, 2, 1), ([1, 1], 0, 2, 2), ([], 0, 1, 1)],
)
def test_gap_names_the_version_that_is_missing(
    versions: list[int], after: int, last: int, expected: int
) -> None:
    with pytest.raises(LogGapError) as refused:
        validate_contiguous(versions, after=after, last=last)
    assert refused.value.expected == expected


def test_versions_whose_commits_were_cleaned_up_are_called_missing() -> None:
    for version, missing in ((0, "commit 0 is missing"), (2, "commits 0 to 2 are missing")):
        with pytest.raises(LogGapError, match=missing):
            LogSegment(version, None, ())


VERSIONS = st.sets(st.integers(0, 12))


@given(VERSIONS, VERSIONS)
def test_rebuildable_versions_are_exactly_those_with_a_segment(
    commits: set[int], starts: set[int]
) -> None:
    found = listing(sorted(commits), tuple(starts))
    if not commits | starts:
        assert rebuildable(found) == []
        return
    ranges = rebuildable(found)
    claimed = {v for a, b in ranges for v in range(a, b + 1)}
    for version in range(14):
        try:
            assert choose_segment(found, version).version == version
            assert version in claimed
        except VersionNotFoundError:
            assert version not in claimed
    assert ranges == sorted(ranges)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(ranges))


@given(VERSIONS, VERSIONS)
def test_listing_without_a_hole_gives_its_latest_version(
    commits: set[int], starts: set[int]
) -> None:
    found = listing(sorted(commits), tuple(starts))
    if not commits | starts or has_hole(found):
        return
    assert choose_segment(found).version == max(commits | starts)


@pytest.mark.parametrize(
    ("commits", "starts", "begin", "holed"),
    [
        (range(5), (), 0, False),
        ([0, 1, 3], (), 0, True),
        ([1, 2], (), 0, True),
        ([1, 2], (), 1, False),
        ([2, 3], (), 1, True),
        ([8, 9], (5, 7), 0, False),
        ([9], (5, 7), 0, True),
        ([4, 5, 6, 7, 8], (2, 7), 0, False),
        ([0, 1, 4], (2, 3), 0, False),
        ([0, (1 << 63) - 1], (), 0, True),
        ([], (3,), 0, False),
        ([], (), 0, False),
    ],
)
def test_hole_is_a_missing_commit_that_replay_needs(
    commits: list[int] | range, starts: tuple[int, ...], begin: int, holed: bool
) -> None:
    assert has_hole(listing(commits, starts), begin) == holed
