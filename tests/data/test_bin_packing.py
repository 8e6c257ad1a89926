"""Distribution of files to bins."""

from __future__ import annotations

import random

import polars as pl
import pytest

from lakelog.data.files import pack
from lakelog.errors import InvalidInputError


@pytest.mark.parametrize("seed", range(20))
def test_bins_are_numbered_from_zero_not_empty_and_near_the_target(seed: int) -> None:
    random.seed(seed)
    count = random.randrange(1, 400)
    numbers = [int(random.expovariate(1 / 1000)) for _ in range(count)]
    sizes = pl.Series(numbers)
    target, cost, wanted = (
        random.randrange(1, 20_000),
        random.randrange(500),
        random.randrange(1, 9),
    )
    bins = pack(sizes, target_bytes=target, open_cost_bytes=cost, at_least=wanted)
    assert bins.dtype == pl.UInt32
    assert bins.len() == count
    used = sorted(set(bins.to_list()))
    assert used == list(range(len(used))), f"seed {seed}"
    assert len(used) >= min(wanted, count), f"seed {seed}"
    loads = [0] * len(used)
    for number, size in zip(bins.to_list(), numbers, strict=True):
        loads[number] += size + cost
    assert max(loads) <= target + max(numbers) + cost, f"seed {seed}"
    again = pack(sizes, target_bytes=target, open_cost_bytes=cost, at_least=wanted)
    assert again.equals(bins)


def test_neighbouring_files_share_a_bin() -> None:
    bins = pack(pl.Series([10] * 100), target_bytes=250, open_cost_bytes=0)
    assert bins.is_sorted()
    assert bins.value_counts()["count"].to_list() == [25] * 4


def test_small_files_are_distributed_next_to_a_large_one() -> None:
    bins = pack(pl.Series([1000, 1, 1, 1]), target_bytes=1 << 30, open_cost_bytes=1, at_least=4)
    assert sorted(bins.to_list()) == [0, 1, 2, 3]


def test_no_files_give_no_bin_and_unknown_sizes_count_as_zero() -> None:
    assert pack(pl.Series([], dtype=pl.Int64)).to_list() == []
    assert pack(pl.Series([None, 5, -3], dtype=pl.Int64), open_cost_bytes=0).to_list() == [0, 0, 0]
    assert pack(pl.Series([0, 0]), open_cost_bytes=0, at_least=2).to_list() == [0, 1]


@pytest.mark.parametrize("wrong", [{"target_bytes": 0}, {"open_cost_bytes": -1}, {"at_least": 0}])
def test_invalid_bounds_raise(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        pack(pl.Series([1]), **wrong)
