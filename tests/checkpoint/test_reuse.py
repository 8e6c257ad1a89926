"""The choice of kept sidecars: small ones never accumulate, and rows are seldom rewritten."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.checkpoint.incremental import MOST_SMALL, Sidecar, plan_reuse
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import SidecarFile
from tests.budget import share_of

TARGET = 100


def sidecar(adds: int, removes: int = 0, superseded: int = 0, expired: int = 0) -> Sidecar:
    file = SidecarFile(f"_delta_log/_sidecars/{adds}-{removes}.parquet", adds + removes, 0)
    return Sidecar(file, adds, removes, Digest(), superseded, expired)


@st.composite
def sidecars(draw: st.DrawFn) -> Sidecar:
    adds, removes = draw(st.integers(0, 3 * TARGET)), draw(st.integers(0, TARGET))
    rows = adds + removes
    superseded = draw(st.one_of(st.just(0), st.integers(0, rows)))
    return sidecar(adds, removes, superseded, draw(st.sampled_from([0, removes])))


SOME = st.lists(sidecars(), max_size=40)


@given(SOME, st.integers(0, 500))
@settings(max_examples=share_of(200), deadline=None)
def test_few_small_sidecars_remain_and_new_ones_are_near_the_target_size(
    held: list[Sidecar], incoming: int
) -> None:
    reuse = plan_reuse(held, incoming, TARGET)
    both = [*reuse.kept, *reuse.rewritten]
    assert sorted(map(id, both)) == sorted(map(id, held))
    assert [s for s in held if any(s is k for k in reuse.kept)] == list(reuse.kept)
    for kept in reuse.kept:
        assert not kept.superseded
        assert kept.rows > 2 * kept.expired
    assert sum(s.rows * 2 < TARGET for s in reuse.kept) <= MOST_SMALL
    left = [max(0, s.rows - s.superseded - s.expired) for s in reuse.rewritten]
    pool = incoming + sum(left)
    assert bool(reuse.parts) == bool(pool)
    if pool * 2 >= TARGET:
        assert pool / reuse.parts + 1 >= TARGET * 2 / 3 or reuse.parts == 1
        assert reuse.part_rows <= TARGET * 1.5
    if pool:
        assert (reuse.parts - 1) * reuse.part_rows < pool <= reuse.parts * reuse.part_rows


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300))
@settings(max_examples=share_of(60), deadline=None)
def test_appends_write_each_row_only_a_few_times(sizes: list[int]) -> None:
    held: list[Sidecar] = []
    written = 0
    for rows in sizes:
        reuse = plan_reuse(held, rows, TARGET)
        pool = rows + sum(s.rows for s in reuse.rewritten)
        written += pool
        cuts = [pool * n // reuse.parts for n in range(reuse.parts + 1)]
        new = [sidecar(b - a) for a, b in pairwise(cuts)]
        held = [*reuse.kept, *new]
        small = sorted(s.rows for s in held if s.rows * 2 < TARGET)
        assert all(b > 2 * a for a, b in pairwise(small))
        assert not any(s.rows * 2 >= TARGET for s in reuse.rewritten)
    total = sum(sizes)
    assert sum(s.rows for s in held) == total
    assert written <= 8 * total  # log2 of the target, and one


def test_no_change_writes_nothing() -> None:
    reuse = plan_reuse([sidecar(100), sidecar(3)], 0, TARGET)
    assert (len(reuse.kept), reuse.rewritten, reuse.parts) == (2, (), 0)


def test_sidecar_without_remaining_rows_is_dropped() -> None:
    reuse = plan_reuse([sidecar(100), sidecar(2, superseded=2), sidecar(0)], 0, TARGET)
    assert (len(reuse.kept), len(reuse.rewritten), reuse.parts) == (1, 2, 0)


def test_sidecar_is_rewritten_if_half_of_it_is_expired_tombstones() -> None:
    half, less = sidecar(60, 60, expired=60), sidecar(61, 60, expired=60)
    reuse = plan_reuse([half, less], 0, TARGET)
    assert (reuse.kept, reuse.rewritten, reuse.parts) == ((less,), (half,), 1)


def test_small_sidecars_of_another_writer_are_merged_at_once() -> None:
    reuse = plan_reuse([sidecar(100), *(sidecar(40) for _ in range(30))], 1, TARGET)
    assert (len(reuse.kept), reuse.parts) == (1, 12)
