"""Sorted files: written data is read back by key and by range, and damage raises an error."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import CorruptionError
from lakelog.keyed import rows, sorted_file
from lakelog.keyed.sorted_file import FileFacts, GroupCache, SortedFile
from tests.budget import share_of

CONTENTS = st.dictionaries(
    st.binary(max_size=3), st.none() | st.binary(max_size=3), min_size=1, max_size=30
)


def frame(contents: dict[bytes, bytes | None]) -> pl.DataFrame:
    keys = sorted(contents)
    numbers = [1 + n * 7 % len(keys) for n in range(len(keys))]
    values = [contents[key] for key in keys]
    return pl.DataFrame({"seqNum": numbers, "key": keys, "value": values}, rows.SCHEMA)


def written(*chunks: pl.DataFrame) -> tuple[bytes, FileFacts]:
    sink = io.BytesIO()
    facts = sorted_file.write(sink, chunks)
    assert facts is not None
    return sink.getvalue(), facts


def opened(data: bytes, facts: FileFacts, cache_bytes: int = 1 << 20) -> SortedFile:
    return SortedFile("1", "store/1", pa.py_buffer(data), facts, GroupCache(cache_bytes))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_file.groups, "__defaults__", (4, sorted_file.GROUP_BYTES))


@settings(max_examples=share_of(80))
@given(CONTENTS, st.integers(0, 30), st.binary(max_size=3), st.binary(max_size=3))
def test_written_rows_are_read_back(
    contents: dict[bytes, bytes | None], cut: int, start: bytes, end: bytes
) -> None:
    whole = frame(contents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_file.groups, "__defaults__", (4, 12))
        data, facts = written(whole[:cut], whole[cut:])
    assert facts.rows == len(contents)
    assert facts.tombstones == whole["value"].null_count()
    assert (facts.min_key, facts.max_key) == (whole["key"][0], whole["key"][-1])
    assert (facts.min_seq_num, facts.max_seq_num) == (1, whole["seqNum"].max())
    file = opened(data, facts)
    assert sum(count for _, count, _ in file.groups) == facts.rows
    assert file.between(None, None).equals(whole)
    assert file.between(start, end).equals(rows.between(whole, start, end))
    for key in [*contents, start, end]:
        place = whole.filter(pl.col("key") == pl.lit(key))
        expected = (place["seqNum"][0], contents[key]) if key in contents else None
        assert file.get(key) == expected


def test_nothing_is_written_without_rows() -> None:
    sink = io.BytesIO()
    assert sorted_file.write(sink, [rows.empty(), rows.empty()]) is None
    assert sink.getvalue() == b""


def test_get_decodes_one_row_group_and_later_uses_the_cache(
    small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(*written(frame({b"%03d" % n: b"v" for n in range(100)})))
    decoded: list[tuple[int, int]] = []
    decode = SortedFile._decode

    def counted(self: SortedFile, first: int, stop: int) -> pl.DataFrame:
        decoded.append((first, stop))
        return decode(self, first, stop)

    monkeypatch.setattr(SortedFile, "_decode", counted)
    assert file.get(b"041") is not None
    assert file.get(b"042") is not None
    assert file.get(b"0415") is None
    assert file.get(b"~") is None
    assert decoded == [(10, 11)]
    assert file.between(b"010", b"014").height == 4
    assert decoded == [(10, 11), (2, 4)]


def test_cache_size_is_bounded() -> None:
    cache = GroupCache(1000)
    frames = [pl.DataFrame({"key": ["x" * 400]}) for _ in range(5)]
    for n, one in enumerate(frames):
        cache.put("f", n, one)
        cache.get("f", 0)
    held = [n for n in range(5) if cache.get("f", n) is not None]
    assert held == [0, 4]
    cache.put("f", 9, pl.DataFrame({"key": ["x" * 2000]}))
    assert cache.get("f", 9) is None
    assert cache._held_bytes <= 1000


def test_keys_and_values_longer_than_any_statistics_are_found() -> None:
    contents: dict[bytes, bytes | None] = {b"k" * 5000 + b"%d" % n: b"v" * 100 for n in range(9)}
    contents[b"large"] = b"x" * (sorted_file.GROUP_BYTES + 1)
    file = opened(*written(frame(contents)))
    for key, value in contents.items():
        found = file.get(key)
        assert found is not None
        assert found[1] == value
    assert file.get(b"k" * 5000) is None


@pytest.mark.parametrize(
    "keys",
    [
        [b"\xff" * size for size in (0, 1, 8, 64, 4095, 4096, 4097, 65536)],
        [b"k" * 5000 + b"%d" % n for n in range(6)],
        [b"\0", b"\0\0", b"\x7f", b"\x80", b"\x80\0", b"\xc3\x28", b"abc", b"abc\0d"],
    ],
    ids=["long", "common prefix", "binary"],
)
def test_no_engine_skips_a_row_group_that_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[bytes]
) -> None:
    monkeypatch.setattr(sorted_file.groups, "__defaults__", (2, sorted_file.GROUP_BYTES))
    keys = sorted(keys)
    data, _ = written(frame(dict.fromkeys(keys, b"v")))
    path = tmp_path / "file.parquet"
    path.write_bytes(data)
    for place, key in enumerate(keys):
        for condition, predicate, expected in (
            ("= ?", pl.col("key") == pl.lit(key), 1),
            (">= ?", pl.col("key") >= pl.lit(key), len(keys) - place),
            ("< ?", pl.col("key") < pl.lit(key), place),
        ):
            query = f"SELECT count(*) FROM '{path}' WHERE key {condition}"
            assert duckdb.execute(query, [key]).fetchall() == [(expected,)]
            assert pl.scan_parquet(path).filter(predicate).collect().height == expected


def test_flipped_byte_raises_corruption_error(small_groups: None) -> None:
    contents: dict[bytes, bytes | None] = {b"%d" % n: b"value %d" % n for n in range(10, 18)}
    data, facts = written(frame(contents))
    located = 0
    for offset in range(4, len(data)):
        damaged = data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]
        with pytest.raises(CorruptionError) as caught:
            opened(damaged, facts).between(None, None)
        assert caught.value.path == "store/1"
        assert caught.value.byte_offset is not None
        located += caught.value.byte_offset <= offset
    assert located == len(data) - 4


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: b""])
def test_file_of_a_wrong_size_raises_corruption_error(change: Callable[[bytes], bytes]) -> None:
    data, facts = written(frame({b"a": b"1"}))
    with pytest.raises(CorruptionError, match="size"):
        opened(change(data), facts)


def test_different_file_of_the_same_size_raises_corruption_error() -> None:
    data, facts = written(frame({b"a": b"1"}))
    other, _ = written(frame({b"b": b"1"}))
    assert len(data) == len(other)
    with pytest.raises(CorruptionError, match="footer"):
        opened(other, facts)
    tiny = replace(facts, size_bytes=3)
    with pytest.raises(CorruptionError, match="footer"):
        opened(b"abc", tiny)


def test_intact_row_group_is_read_next_to_a_damaged_one(small_groups: None) -> None:
    data, facts = written(frame({b"%d" % n: b"v" for n in range(10, 18)}))
    damaged = data[:10] + bytes([data[10] ^ 1]) + data[11:]
    file = opened(damaged, facts)
    assert file.get(b"17") is not None
    with pytest.raises(CorruptionError, match="row group"):
        file.get(b"10")


def test_failed_sink_raises_and_leaves_no_open_writer() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        sorted_file.write(Full(), [frame({b"a": b"1"})])
    gc.collect()  # a writer that was not closed would warn now


def test_duckdb_polars_and_pyarrow_read_a_sorted_file(tmp_path: object, small_groups: None) -> None:
    contents = {b"\xff": b"", b"a": None, b"b": b"2", b"\0": b"0"}
    data, _ = written(frame(contents))
    path = f"{tmp_path}/file.parquet"
    with open(path, "wb") as file:
        file.write(data)
    keys = sorted(contents)
    expected = [("DELETE" if contents[key] is None else "PUT", key, contents[key]) for key in keys]
    assert pl.read_parquet(path).select("op", "key", "value").rows() == expected
    assert pl.read_parquet(path).schema == {
        "seqNum": pl.Int64,
        "op": pl.String,
        "key": pl.Binary,
        "value": pl.Binary,
    }
    query = f"select op, key, value from '{path}'"
    assert duckdb.execute(query).fetchall() == expected
    narrow = f"select count(*) from '{path}' where key >= '\\xFF'::blob"
    assert duckdb.execute(narrow).fetchall() == [(1,)]
    footer = pq.read_metadata(path)
    assert footer.row_group(0).sorting_columns == (pq.SortingColumn(2),)
    assert footer.row_group(0).column(2).statistics.min == b"\0"
