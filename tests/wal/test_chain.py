from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.wal.scan import reachable
from tests.budget import share_of

CANDIDATES = st.dictionaries(st.integers(0, 300), st.integers(1, 40), max_size=80)


def _reachable_step_by_step(candidates: dict[int, int], start: int) -> list[int]:
    found = []
    while start in candidates:
        found.append(start)
        start += candidates[start]
    return found


@given(CANDIDATES, st.integers(0, 300))
def test_reachable_equals_following_each_end_in_turn(
    candidates: dict[int, int], start: int
) -> None:
    positions = np.array(sorted(candidates), dtype=np.int64)
    ends = np.array([at + candidates[at] for at in sorted(candidates)], dtype=np.int64)
    found = positions[reachable(positions, ends, start)]
    assert found.tolist() == _reachable_step_by_step(candidates, start)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2_000), st.integers(1, 6))
@settings(max_examples=share_of(40))
def test_reachable_is_correct_with_mostly_false_candidates(
    seed: int, count: int, reach: int
) -> None:
    rng = np.random.default_rng(seed)
    positions = np.arange(count)
    ends = positions + rng.integers(1, reach + 1, count)
    candidates = dict(enumerate((ends - positions).tolist()))
    expected = _reachable_step_by_step(candidates, 0)
    assert positions[reachable(positions, ends, 0)].tolist() == expected


def test_chain_without_false_candidates_is_returned_completely() -> None:
    positions = np.arange(0, 1_000, 8)
    assert reachable(positions, positions + 8, 80).tolist() == list(range(10, 125))
