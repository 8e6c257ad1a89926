"""Spark's Murmur3 of text, compared with a byte-by-byte implementation."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.delta.murmur3 import SEED, hash_columns, part_of, part_of_others

TEXT = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=45),
    st.text("aé雪😀", min_size=100, max_size=300),
)


def plain_hash(data: bytes, seed: int) -> int:
    """`Murmur3_x86_32.hashUnsafeBytes`, one word and then one byte after another."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF

    def mix(hashed: int, word: int) -> int:
        word = rotate(word * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        return (rotate(hashed ^ word, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF

    whole = len(data) - len(data) % 4
    hashed = seed & 0xFFFFFFFF
    for start in range(0, whole, 4):
        hashed = mix(hashed, int.from_bytes(data[start : start + 4], "little"))
    for byte in data[whole:]:
        hashed = mix(hashed, (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF)
    hashed ^= len(data)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def plain_row(texts: Sequence[str | None]) -> int:
    hashed = SEED
    for text in texts:
        hashed = hashed if text is None else plain_hash(text.encode(), hashed)
    return hashed


@pytest.mark.parametrize(
    ("text", "expected"), [("ABC", -757602832), ("Spark", 228093765), ("", 142593372)]
)
def test_hash_equals_known_values_of_spark(text: str, expected: int) -> None:
    assert hash_columns(pl.Series([text])).to_list() == [expected]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=30), st.integers(0, 3))
def test_column_hash_equals_the_hashes_of_single_rows(
    rows: list[tuple[str | None, str | None]], start: int
) -> None:
    first, second = (pl.Series([row[n] for row in rows], dtype=pl.String)[start:] for n in (0, 1))
    kept = rows[start:]
    assert hash_columns(first).to_list() == [plain_row(row[:1]) for row in kept]
    assert hash_columns(first, second).to_list() == [plain_row(row) for row in kept]


def test_every_length_of_tail_is_mixed_byte_by_byte() -> None:
    texts = ["é" * (n // 2) + "x" * (n % 2) for n in range(41)]
    assert hash_columns(pl.Series(texts)).to_list() == [plain_row([text]) for text in texts]


@given(st.lists(TEXT.filter(bool), min_size=1), st.integers(1, 50))
def test_parts_are_the_hash_modulo_and_never_negative(paths: list[str], parts: int) -> None:
    files = pl.DataFrame({"path": paths, "dvId": [None, *paths[1:]]})
    by_path = part_of(files, parts, deletion_vectors=False)
    assert by_path.to_list() == [plain_row([path]) % parts for path in paths]
    by_file = part_of(files, parts, deletion_vectors=True)
    assert by_file.to_list() == [plain_row(row) % parts for row in files.rows()]
    assert part_of(files.drop("dvId"), parts, deletion_vectors=True).equals(by_path)
    assert part_of_others(parts) == plain_row([None]) % parts
