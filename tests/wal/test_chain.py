from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.wal import chain
from lakelog.wal.chain import Offsets, Walk, reachable, walk
from tests.budget import share_of

CANDIDATES = st.dictionaries(st.integers(0, 300), st.integers(1, 40), max_size=80)


def _plainly_reachable(candidates: dict[int, int], start: int) -> list[int]:
    found = []
    while start in candidates:
        found.append(start)
        start += candidates[start]
    return found


@given(CANDIDATES, st.integers(0, 300))
def test_reachable_is_what_following_one_end_after_another_gives(
    candidates: dict[int, int], start: int
) -> None:
    positions = np.array(sorted(candidates), dtype=np.int64)
    ends = np.array([at + candidates[at] for at in sorted(candidates)], dtype=np.int64)
    found = positions[reachable(positions, ends, start)]
    assert found.tolist() == _plainly_reachable(candidates, start)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2_000), st.integers(1, 6))
@settings(max_examples=share_of(40))
def test_reachable_is_right_where_most_candidates_are_false(
    seed: int, count: int, reach: int
) -> None:
    rng = np.random.default_rng(seed)
    positions = np.arange(count)
    ends = positions + rng.integers(1, reach + 1, count)
    candidates = dict(enumerate((ends - positions).tolist()))
    expected = _plainly_reachable(candidates, 0)
    assert positions[reachable(positions, ends, 0)].tolist() == expected


def test_a_chain_without_false_candidates_is_taken_whole() -> None:
    positions = np.arange(0, 1_000, 8)
    assert reachable(positions, positions + 8, 80).tolist() == list(range(10, 125))


def _steps(data: bytes) -> tuple[chain.Step, chain.StepOne]:
    """Records of one length byte and as many bytes; a length of 255 is none."""
    array = np.frombuffer(data, dtype=np.uint8)

    def step_one(at: int) -> int:
        end = at + 1 + data[at]
        return chain.NOWHERE if data[at] == 255 else end

    def step(at: Offsets) -> Offsets:
        lengths = array[at].astype(np.int64)
        ends = at + 1 + lengths
        return np.where(lengths == 255, chain.NOWHERE, ends)

    return step, step_one


def _plain_walk(step_one: chain.StepOne, start: int, stop: int) -> tuple[list[int], int]:
    found = []
    while start < stop and (end := step_one(start)) <= stop:
        found.append(start)
        start = end
    return found, start


def _agree(data: bytes, start: int, stop: int) -> Walk:
    step, step_one = _steps(data)
    found = walk(step, step_one, start, stop, least=1)
    assert (found.positions.tolist(), found.end) == _plain_walk(step_one, start, stop)
    assert found.positions.dtype == np.int64
    return found


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 254),
    st.integers(0, 60_000),
    st.integers(0, 50),
    st.sampled_from([0.0, 0.00005, 0.01]),
    st.booleans(),
)
@settings(max_examples=share_of(60), deadline=None)
def test_a_walk_is_the_plain_walk_whatever_the_bytes_look_like(
    seed: int, longest: int, size: int, start: int, broken: float, is_ambiguous: bool
) -> None:
    # Every byte of such data is a length, so that most guesses are wrong.
    rng = np.random.default_rng(seed)
    array = rng.integers(0, longest + 1, size + start, dtype=np.uint8)
    if not is_ambiguous:
        at = start
        while at < len(array):
            length = int(array[at])
            array[at + 1 : at + 1 + length] = 255
            at += 1 + length
    array[rng.random(len(array)) < broken] = 255
    _agree(array.tobytes(), start, len(array))


def test_a_long_chain_is_walked_by_many_at_once_and_ends_at_its_end() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(20, 60, 20_000, dtype=np.uint8)
    data = b"".join(bytes([length]) + b"\xff" * length for length in lengths.tolist())
    found = _agree(data, 0, len(data))
    assert (len(found.positions), found.end) == (20_000, len(data))


def test_a_walk_ends_where_no_record_begins() -> None:
    data = (b"\x03abc" * 10_000) + b"\xff" + (b"\x03abc" * 10_000)
    assert _agree(data, 0, len(data)).end == 40_000


def test_a_walk_ends_where_a_record_would_reach_beyond_the_bytes() -> None:
    data = (b"\x07" + b"\xff" * 7) * 10_000
    assert _agree(data, 0, len(data) - 1).end == len(data) - 8


@pytest.mark.parametrize("shift", range(4))
def test_records_within_a_record_are_not_taken_for_records(shift: int) -> None:
    inner = b"\x03abc" * 60
    data = b"".join(bytes([len(inner) + shift]) + b"\xff" * shift + inner for _ in range(2_000))
    assert len(_agree(data, 0, len(data)).positions) == 2_000


def test_no_bytes_hold_no_records() -> None:
    assert _agree(b"", 0, 0).end == 0
