"""`RangedFile`: fast paths equal plain reading, and each fetch is counted."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import pytest

from lakelog.errors import UnavailableError
from lakelog.storage.ranged import WHOLE_BYTES, Range, RangedFile
from tests.budget import seeded

MIB = 1 << 20
BLOCK = 1 << 15


class Source:
    """A file that records its fetched ranges."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.trips: list[list[Range]] = []

    def fetch(self, ranges: Sequence[Range]) -> list[bytes]:
        self.trips.append(list(ranges))
        return [self.data[start:end] for start, end in ranges]

    def open(self) -> RangedFile:
        return RangedFile(self.fetch, len(self.data))


@pytest.mark.parametrize("size", [1, 1000, BLOCK + 1, MIB])
def test_small_file_is_fetched_in_one_trip(size: int) -> None:
    source = Source(os.urandom(size))
    with source.open() as file:
        assert file.read() == source.data
        file.seek(size // 2)
        assert file.read(10) == source.data[size // 2 : size // 2 + 10]
        assert file.reopen().read(3) == source.data[:3]
    assert len(source.trips) == 1


def test_closed_file_is_not_read() -> None:
    file = Source(b"content").open()
    other = file.reopen()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(ValueError, match="closed"):
        file.seek(0)
    assert other.read() == b"content"


def test_an_empty_file_needs_no_trip() -> None:
    source = Source(b"")
    assert source.open().read() == b""
    assert source.trips == []


@pytest.mark.parametrize("size", [WHOLE_BYTES, WHOLE_BYTES + 1, 3 * WHOLE_BYTES + 12345])
def test_ranged_file_reads_like_a_plain_file(size: int) -> None:
    chance = seeded()
    data = chance.randbytes(1 << 16) * (size // (1 << 16) + 1)
    source = Source(data[:size])
    ours, plain = source.open(), io.BytesIO(source.data)
    for _ in range(200):
        match chance.randrange(4):
            case 0:
                offset = chance.randrange(size + 100)
                assert ours.seek(offset) == plain.seek(offset)
            case 1:
                back = -chance.randrange(size)
                assert ours.seek(back, io.SEEK_END) == plain.seek(back, io.SEEK_END)
            case 2:
                step = chance.randrange(1000)
                assert ours.seek(step, io.SEEK_CUR) == plain.seek(step, io.SEEK_CUR)
            case _:
                count = chance.choice([0, 1, 100, MIB, 6 * MIB])
                assert ours.read(count) == plain.read(count)
        assert ours.tell() == plain.tell()
    into = bytearray(5)
    ours.seek(size - 3)
    assert (ours.readinto(into), bytes(into[:3])) == (3, source.data[-3:])
    ours.seek(-7, io.SEEK_END)
    assert ours.readall() == source.data[-7:]
    with pytest.raises(ValueError, match="position"):
        ours.seek(-1)


def test_end_of_a_large_file_is_fetched_first_and_not_again() -> None:
    source = Source(bytes(WHOLE_BYTES + 5))
    file = source.open()
    assert source.trips == [[(WHOLE_BYTES - 2 * BLOCK, WHOLE_BYTES + 5)]]
    file.seek(-8, io.SEEK_END)
    file.read()
    assert len(source.trips) == 1


def test_a_long_read_is_one_trip_of_several_requests() -> None:
    source = Source(bytes(8 * MIB))
    file = source.open()
    file.read(6 * MIB)
    assert source.trips[1:] == [[(0, 4 * MIB), (4 * MIB, 6 * MIB)]]
    file.seek(5 * MIB)
    file.read(MIB)
    assert len(source.trips) == 2


def test_prefetched_ranges_are_fetched_in_one_trip_with_small_gaps() -> None:
    source = Source(os.urandom(8 * MIB))
    file = source.open()
    ranges = [(10, 20), (3 * BLOCK, 3 * BLOCK + 1), (MIB, 2 * MIB), (8 * MIB - 5, 9 * MIB), (7, 7)]
    file.prefetch(ranges)
    assert source.trips[1:] == [[(0, 4 * BLOCK), (MIB, 2 * MIB)]]
    for start, end in ranges[:3]:
        file.seek(start)
        assert file.read(end - start) == source.data[start:end]
    assert len(source.trips) == 2


def test_memory_is_bounded() -> None:
    source = Source(bytes(64 * MIB))
    file = source.open()
    while file.read(MIB):
        pass
    assert len(file._blocks._kept) * BLOCK == 48 * MIB
    file.keep_at_most(MIB)
    file.seek(0)
    file.read(1)
    assert len(file._blocks._kept) * BLOCK == MIB


def test_file_shorter_than_listed_raises_unavailable_error() -> None:
    source = Source(b"abc")
    with pytest.raises(UnavailableError, match="fewer bytes") as refused:
        RangedFile(source.fetch, 5)
    assert (refused.value.expected, refused.value.found) == (5, 3)
