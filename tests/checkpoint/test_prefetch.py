"""`prefetch` works ahead in another thread if an item is large, in order and to the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.checkpoint import write
from lakelog.checkpoint.bounded_memory import prefetch
from lakelog.checkpoint.write import write_checkpoint
from tests.checkpoint.tables import CLASSIC, log_at, make

SIZES = st.lists(st.integers(0, 3), max_size=6)


class Failed(Exception):  # noqa: N818 - of these tests
    """An error of an item."""


class Source:
    """Items, each one's thread, and whether the source is closed; can fail after the last."""

    def __init__(self, sizes: list[int], *, fails: bool = False) -> None:
        self.sizes, self.fails = sizes, fails
        self.threads: list[threading.Thread] = []
        self.closed = False

    def items(self) -> Iterator[int]:
        try:
            for size in self.sizes:
                self.threads.append(threading.current_thread())
                yield size
            if self.fails:
                raise Failed
        finally:
            self.closed = True


@given(SIZES, st.integers(0, 4), st.booleans())
def test_items_and_errors_are_returned_in_order(sizes: list[int], large: int, fails: bool) -> None:
    source = Source(sizes, fails=fails)
    found: list[int] = []
    try:
        for item in prefetch(source.items(), is_large=lambda size: size >= large):
            found += [item]
    except Failed:
        assert fails
    else:
        assert not fails
    assert found == sizes
    assert source.closed
    first = next((n for n, size in enumerate(sizes) if size >= large), len(sizes))
    here = threading.current_thread()
    assert all((thread is here) == (n <= first) for n, thread in enumerate(source.threads))


@given(SIZES.filter(bool), st.integers(0, 4), st.integers(1, 6))
def test_closing_early_closes_the_source(sizes: list[int], large: int, taken: int) -> None:
    source = Source(sizes)
    items = prefetch(source.items(), is_large=lambda size: size >= large)
    for _, _ in zip(range(taken), items, strict=False):
        pass
    getattr(items, "close")()  # noqa: B009 - it is a generator
    assert source.closed


@pytest.mark.parametrize("sizes", [[], [1, 2]])
def test_items_without_a_size_are_produced_in_another_thread(sizes: list[int]) -> None:
    source = Source(sizes)
    assert list(prefetch(source.items())) == sizes
    assert threading.current_thread() not in source.threads
    assert source.closed


def test_checkpoint_is_the_same_with_and_without_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for few in (-1, 1 << 20):
        monkeypatch.setattr(write, "_FEW_ROWS", few)
        root = make(CLASSIC, tmp_path / f"t{few}")
        digests.append(write_checkpoint(log_at(root, CLASSIC.dialect)).digest)
        assert lakelog.open(root).verify().is_proved
    assert digests[0].counts == digests[1].counts
