"""The tally: files counted by hash, and subtracted by key."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader
from lakelog.log.base_checkpoint import Tally, sum_sizes
from lakelog.log.opening import open_state, update_state
from lakelog.model import actions
from tests.handmade import Handmade, add, metadata, protocol, remove, vector

BASE = (protocol(), metadata())


def keys(*rows: tuple[str, str | None]) -> pl.DataFrame:
    schema = {c: actions.schema()[c] for c in actions.KEY}
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def test_batches_with_and_without_vectors_hash_alike() -> None:
    with_vectors = pl.DataFrame({"path": ["a", "b"], "size": [1, 2], "dvId": [None, "u1"]})
    tally = Tally.of([with_vectors, pl.DataFrame({"path": ["c"], "size": [4]})])
    assert tally.without(keys(("a", None), ("c", None))) == (1, 2)


def test_sizes_sum_beyond_64_bits_and_a_missing_size_is_zero() -> None:
    sizes = pl.DataFrame({"size": [2**63 - 1, 2**63 - 1, None]})
    assert sum_sizes(sizes) == 2**64 - 2
    assert sum_sizes(pl.DataFrame({"path": ["a"]})) == 0


def test_update_counts_without_reading_the_checkpoint_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Handmade(tmp_path / "t")
    made.checkpoint(1, *BASE, add("a", 1), add("b", 2), add("v", 4, **vector("1")))
    state = open_state(made.context())
    assert state.totals == (3, 7)
    monkeypatch.setattr(DeltaCheckpointReader, "iter_files", lambda *_: pytest.fail("read again"))
    made.commit(2, remove("a"), add("c", 8))
    made.commit(3, add("v", 16, **vector("2")), remove("v", **vector("1")))
    made.commit(4, add("a", 32), remove("c"))
    later = update_state(state)
    assert later.totals == (3, 2 + 16 + 32)
    assert state.totals == (3, 7)
