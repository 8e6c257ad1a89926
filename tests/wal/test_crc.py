from __future__ import annotations

import zlib
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.wal.crc import Bytes, Checksums, Offsets, crc32_bridges, crc32_spans, crc32c_spans

ManySpans = Callable[[Bytes, Offsets, Offsets, Checksums | int], Checksums]
OneSpan = Callable[[bytes, int], int]


def _crc32c(data: bytes, initial: int) -> int:
    return int(google_crc32c.extend(initial, data))


KINDS = [
    pytest.param(crc32_spans, zlib.crc32, id="crc32"),
    pytest.param(crc32c_spans, _crc32c, id="crc32c"),
]

LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from([255, 383, 384, 385, 1000]))
PIECES = st.lists(
    st.tuples(st.integers(0, 1_000), LENGTHS, st.integers(0, 0xFFFFFFFF)), max_size=40
)


@pytest.mark.parametrize(("many", "one"), KINDS)
@given(PIECES, st.integers(0, 20))
def test_checksums_of_many_spans_are_those_of_each_span(
    many: ManySpans, one: OneSpan, pieces: list[tuple[int, int, int]], room: int
) -> None:
    size = max((length for _, length, _ in pieces), default=0) + room
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    spans = [(place % (size - length + 1), length, before) for place, length, before in pieces]
    starts = np.array([start for start, _, _ in spans], dtype=np.int64)
    lengths = np.array([length for _, length, _ in spans], dtype=np.int64)
    initial = np.array([before for _, _, before in spans], dtype=np.uint32)
    expected = [
        one(data[start : start + length].tobytes(), before) for start, length, before in spans
    ]
    assert many(data, starts, lengths, initial).tolist() == expected


@pytest.mark.parametrize(("many", "one"), KINDS)
def test_every_short_length_at_every_alignment_is_right(many: ManySpans, one: OneSpan) -> None:
    data = np.random.default_rng(7).integers(0, 256, 128, dtype=np.uint8)
    pairs = [(start, length) for start in range(24) for length in range(80)]
    starts, lengths = np.array(pairs, dtype=np.int64).T.copy()
    for initial in (0, 1, 0xDEADBEEF):
        expected = [one(data[a : a + n].tobytes(), initial) for a, n in pairs]
        assert many(data, starts, lengths, initial).tolist() == expected


@pytest.mark.parametrize(("many", "one"), KINDS)
def test_more_spans_than_one_chunk_keep_their_order(many: ManySpans, one: OneSpan) -> None:
    rng = np.random.default_rng(11)
    data = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
    starts = rng.integers(0, len(data) - 500, 70_000)
    lengths = rng.integers(0, 60, 70_000)
    lengths[::9_000] = 400
    found = many(data, starts, lengths, 0)
    for at in [*range(0, 70_000, 997), *range(0, 70_000, 9_000)]:
        start, length = int(starts[at]), int(lengths[at])
        assert found[at] == one(data[start : start + length].tobytes(), 0)


@pytest.mark.parametrize(("many", "one"), KINDS)
def test_pieces_chain_like_one_span(many: ManySpans, one: OneSpan) -> None:
    data = np.frombuffer(b"somewhere: op, key and value, with lengths between", dtype=np.uint8)
    first = many(data, np.array([11]), np.array([2]), 0)
    second = many(data, np.array([15]), np.array([3]), first)
    assert second[0] == one(b"opkey", 0)


@pytest.mark.parametrize(("many", "one"), KINDS)
def test_no_spans_and_read_only_bytes_are_fine(many: ManySpans, one: OneSpan) -> None:
    nothing = np.array([], dtype=np.int64)
    assert many(np.frombuffer(b"", dtype=np.uint8), nothing, nothing, 0).tolist() == []
    data = np.frombuffer(b"x" * 600, dtype=np.uint8)
    found = many(data, np.array([9, 100]), np.array([20, 500]), 0)
    assert found.tolist() == [one(b"x" * 20, 0), one(b"x" * 500, 0)]


@given(
    st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=5),
    st.one_of(st.just(0), st.integers(0, 0xFFFFFFFF)),
    st.integers(0, 40),
)
def test_a_bridge_leads_from_one_checksum_to_another(
    before: list[int], after: int, zeros: int
) -> None:
    bridges = crc32_bridges(np.array(before, dtype=np.uint32), after, zeros)
    for crc, bridge in zip(before, bridges.astype("<u4"), strict=True):
        assert zlib.crc32(bridge.tobytes() + bytes(zeros), crc) == after
