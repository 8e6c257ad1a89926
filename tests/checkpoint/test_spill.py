"""Rows on disk are read back by partition and in order; sets have no false negatives."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.checkpoint.bounded_memory import PathMask, Repeats, Spill, hashes_of, partition_of
from lakelog.model import actions
from tests.budget import share_of


def _rows(seed: int, height: int) -> pl.DataFrame:
    rng = random.Random(seed)
    return pl.DataFrame(
        {
            "actionType": [rng.choice(["add", "remove"]) for _ in range(height)],
            "path": [f"é {rng.randrange(height + 1)}" for _ in range(height)],
            "size": [rng.choice([None, 1, 2**63 - 1]) for _ in range(height)],
            "partitionValues": [[{"key": "p", "value": rng.choice(["a", None])}]] * height,
            "stats_parsed": [{"numRecords": n, "minValues": {"id": n}} for n in range(height)],
        },
        schema_overrides={"partitionValues": pl.Map(pl.String, pl.String)},
    )


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("flush_bytes", [1, 5_000, 1 << 30])
def test_rows_are_read_back_in_order(partitions: int, flush_bytes: int) -> None:
    batches = [_rows(seed, 50) for seed in range(5)]
    narrow = pl.DataFrame({"actionType": ["remove"], "path": ["é 3"], "extra": ["{}"]})
    with Spill(partitions, flush_bytes) as spill:
        for batch in (*batches, narrow):
            spill.append(batch)
        whole = pl.concat([*batches, narrow], how="diagonal_relaxed").with_row_index()
        own = partition_of(whole["path"], partitions)
        for number in range(partitions):
            expected = whole.filter(own == number).drop("index")
            found = spill.read(number)
            whole_width = pl.concat([expected.clear(), found], how="diagonal_relaxed")
            assert whole_width.equals(expected)
            assert spill.read(number).equals(found)  # a second read gives the same rows
        assert (spill.size_bytes > 0) == (partitions > 1 or flush_bytes < 1 << 30)


def test_partition_without_rows_is_empty() -> None:
    with Spill(3, 10) as spill:
        assert spill.read(1).height == 0
        assert spill.size_bytes == 0


def test_temporary_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Spill(2, 1) as spill, Repeats(8) as repeats:
        spill.append(_rows(1, 10))
        repeats.add(pl.Series([1, 2, 3], dtype=pl.UInt64))
        assert spill.size_bytes > 0
        assert list(tmp_path.iterdir()) == []


@settings(max_examples=share_of(60), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 9)), max_size=6),
    st.sampled_from([None, 8, 64]),
)
def test_repeated_values_are_found(batches: list[list[int]], held_bytes: int | None) -> None:
    every = [value for batch in batches for value in batch]
    with Repeats(held_bytes) as repeats:
        for batch in batches:
            repeats.add(pl.Series(batch, dtype=pl.UInt64))
        assert repeats.repeated().to_list() == sorted({v for v in every if every.count(v) > 1})


def test_mask_has_no_false_negatives() -> None:
    rng = np.random.default_rng(1)
    held = pl.Series([f"p{n}" for n in rng.integers(0, 1 << 40, 500)])
    others = pl.Series([f"q{n}" for n in range(20_000)])
    mask = PathMask(1 << 12)
    mask.add(hashes_of(held))
    mask.add(hashes_of(held[:0]))
    assert mask.may_hold(hashes_of(held)).all()
    assert mask.may_hold(hashes_of(others)).sum() < 0.05 * len(others)
    assert mask.may_hold(hashes_of(others[:0])).len() == 0


def test_contract_columns_are_read_back_from_disk() -> None:
    full = actions.conform(_rows(2, 20).drop("stats_parsed"))
    with Spill(2, 1) as spill:
        spill.append(full)
        found = pl.concat([spill.read(0), spill.read(1)])
    assert found.schema == full.schema
