"""The memtable: comparison with a dictionary, and when it sorts its records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.keyed import rows
from lakelog.keyed.memtable import Memtable
from tests.budget import share_of
from tests.concurrency import run_concurrently

KEYS = st.binary(max_size=2) | st.sampled_from([b"a", b"ab", b"b"])
VALUES = st.none() | st.binary(max_size=3)
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "add", "replayed"]), RECORDS)
    | st.tuples(st.sampled_from(["get", "between", "newest"]), RECORDS),
    max_size=12,
)


def frame(records: list[tuple[bytes, bytes | None]], first: int) -> pl.DataFrame:
    keys, values = zip(*records, strict=True)
    numbers = range(first, first + len(records))
    return pl.DataFrame({"seqNum": numbers, "key": keys, "value": values}, rows.SCHEMA)


def replayed(records: list[tuple[bytes, bytes | None]], first: int) -> pa.Table:
    op = pl.when(pl.col("value").is_null()).then(pl.lit("DELETE")).otherwise(pl.lit("PUT"))
    return frame(records, first).with_columns(op=op).to_arrow()


@settings(max_examples=share_of(150))
@given(STEPS, st.booleans())
def test_memtable_equals_a_dictionary_after_any_steps(
    steps: list[tuple[str, list[tuple[bytes, bytes | None]]]], eager: bool
) -> None:
    memtable = Memtable()
    model: dict[bytes, tuple[int, bytes | None]] = {}
    seq_num = 1
    with pytest.MonkeyPatch.context() as patch:
        if eager:
            patch.setattr("lakelog.keyed.memtable._FOLD_RECORDS", 2)
            patch.setattr("lakelog.keyed.memtable._PATIENCE", 1)
        for step, records in steps:
            if step in {"put", "add", "replayed"}:
                if step == "put":
                    for n, (key, value) in enumerate(records):
                        memtable.put(seq_num + n, key, value)
                elif step == "add":
                    memtable.add(frame(records, seq_num))
                else:
                    memtable.add_replayed(replayed(records, seq_num))
                for key, value in records:
                    model[key] = (seq_num, value)
                    seq_num += 1
            elif step == "get":
                for key, _ in records:
                    assert memtable.get(key) == model.get(key)
            elif step == "between":
                start, end = records[0][0], records[-1][0]
                found = rows.newest(memtable.between(start, end))
                expected = {k: v for k, v in model.items() if start <= k < end}
                assert as_dict(found) == expected
            else:
                found = memtable.newest()
                assert as_dict(found) == model
                assert found["key"].to_list() == sorted(model)
    assert memtable.records == seq_num - 1


def as_dict(found: pl.DataFrame) -> dict[bytes, tuple[int, bytes | None]]:
    assert found["key"].n_unique() == found.height
    return {key: (seq_num, value) for seq_num, key, value in found.iter_rows()}


def test_older_record_that_is_added_later_does_not_replace_a_newer_one() -> None:
    memtable = Memtable()
    memtable.put(6, b"k", b"new")
    memtable.put(5, b"k", b"old")
    assert memtable.get(b"k") == (6, b"new")
    memtable.add(frame([(b"k", b"newest")], 9))
    memtable.put(8, b"k", b"late")
    assert memtable.get(b"k") == (9, b"newest")
    assert memtable.newest()["value"].to_list() == [b"newest"]


def test_replayed_records_are_sorted_once_after_many_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sorts = []
    newest = rows.newest

    def counted(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
        sorts.append(1)
        return newest(frames)

    monkeypatch.setattr(rows, "newest", counted)
    memtable = Memtable()
    memtable.add_replayed(replayed([(b"%d" % n, b"v") for n in range(1000)], 1))
    for n in range(201):
        assert memtable.get(b"%d" % n) == (n + 1, b"v")
    assert len(sorts) == 1
    for n in range(300):
        assert memtable.get(b"%d" % n) == (n + 1, b"v")
    assert len(sorts) == 1


def test_concurrent_puts_gets_and_sorts_return_the_newest_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakelog.keyed.memtable._FOLD_RECORDS", 16)
    monkeypatch.setattr("lakelog.keyed.memtable._PATIENCE", 1)
    memtable = Memtable()

    def work(lane: int) -> None:
        for n in range(300):
            key = b"%d/%d" % (lane, n % 20)
            memtable.put(n * 4 + lane + 1, key, b"%d" % n)
            found = memtable.get(key)
            assert found is not None
            assert found[1] == b"%d" % n
            if n % 50 == lane:
                memtable.newest()

    run_concurrently(*(partial(work, lane) for lane in range(4)))
    assert memtable.newest().height == 80
