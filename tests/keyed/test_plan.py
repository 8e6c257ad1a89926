"""Decisions of a keyed store: row groups, ranges of a merge, which files to compact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakelog.keyed import sorted_file

KEYS = st.binary(max_size=2)


@given(st.lists(st.integers(0, 12)), st.integers(1, 5), st.integers(0, 20))
def test_row_groups_cover_all_rows_and_keep_both_bounds(
    sizes: list[int], rows: int, size_bytes: int
) -> None:
    starts = sorted_file.groups(np.array(sizes, dtype=np.int64), rows, size_bytes)
    assert starts[0] == 0
    assert starts[-1] == len(sizes)
    for start, stop in pairwise(starts):
        assert 0 < stop - start <= rows
        assert stop - start == 1 or sum(sizes[start:stop]) <= size_bytes
        if stop < len(sizes) and stop - start < rows:
            assert sum(sizes[start : stop + 1]) > size_bytes, "a group ends early for no reason"


GROUPS = st.lists(
    st.dictionaries(KEYS, st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1), max_size=4
)


@given(GROUPS, st.integers(1, 12), st.integers(1, 30))
def test_ranges_are_contiguous_and_bounded_in_rows_and_bytes(
    files: list[dict[bytes, tuple[int, int]]], rows: int, size_bytes: int
) -> None:
    groups = [[(key, *size) for key, size in sorted(file.items())] for file in files]
    found = sorted_file.ranges(groups, rows, size_bytes)
    assert found[0][0] is None
    assert found[-1][1] is None
    for (start, end), (following, _) in pairwise(found):
        assert end is not None
        assert end == following
        assert start is None or start < end
    for start, end in found:
        within = [
            group
            for file in groups
            for group in file
            if (start is None or group[0] >= start) and (end is None or group[0] < end)
        ]
        if len({key for key, _, _ in within}) > 1:
            assert sum(count for _, count, _ in within) <= rows
            assert sum(size for _, _, size in within) <= size_bytes


def test_few_files_are_not_compacted() -> None:
    assert sorted_file.compaction([]) is None
    assert sorted_file.compaction([5] * sorted_file.MOST_FILES) is None


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.integers(1, 8))
def test_compaction_leaves_few_files_and_skips_a_much_larger_one(
    sizes: list[int], most: int
) -> None:
    first = sorted_file.compaction(sizes, most)
    if len(sizes) <= most:
        assert first is None
    else:
        assert first is not None
        assert first + 1 <= most
        assert len(sizes) - first >= 2, "merging one file changes nothing"
        assert first == 0 or sizes[first - 1] > 2 * sum(sizes[first:])


def test_flushes_of_equal_size_have_a_write_amplification_below_8() -> None:
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        sizes.append(1)
        if (first := sorted_file.compaction(sizes)) is not None:
            merged = sum(sizes[first:])
            written += merged
            sizes = [*sizes[:first], merged]
    assert written / 1000 < 8
