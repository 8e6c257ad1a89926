"""`Ingestor`: rows of every form are durable, invalid ones raise or are diverted."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import errno
import gc
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    LogLockedError,
    OutcomeUnknownError,
    StreamMismatchError,
    UnavailableError,
    UnsupportedFeatureError,
)
from lakelog.ingest import committer, records
from lakelog.wal import encode
from lakelog.wal.disk import LocalFile
from lakelog.wal.encode import RECORD_BYTES
from tests.concurrency import run_concurrently
from tests.handmade import set_unchecked_metadata
from tests.ingest.ingestors import SCHEMA, FailingTable, ids, quiet


def test_rows_of_every_form_are_committed_in_one_file(
    table: lakelog.Table, directory: Path
) -> None:
    now = dt.datetime(2026, 1, 5, 12, 30, 0, 123456, dt.UTC)
    with quiet(table, directory) as ingestor:
        numbers = [
            ingestor.write({"id": 1, "name": "Ä\n", "at": now}),
            ingestor.write([{"id": 2}, {"id": 3, "name": None}]),
            ingestor.write(pl.DataFrame({"id": [4]})),
            ingestor.write(pa.table({"id": pa.array([5], pa.int32())})),
            ingestor.write(pa.table({"id": [6]}).to_reader()),
            ingestor.write(b'{"id": 7, "at": "2026-01-05T12:30:00.123456Z"}\n\n{"id": 8}'),
            ingestor.write(pl.LazyFrame({"id": [9]})),
        ]
        assert numbers == [1, 2, 3, 4, 5, 6, 7]
        assert ingestor.flush() == 7
        assert ingestor.status().version == 1
    rows = table.to_polars().sort("id")
    assert ids(rows) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert rows.row(0) == (1, "Ä\n", now)
    assert rows.row(6, named=True)["at"] == now
    assert table.snapshot().num_files() == 1


@pytest.mark.parametrize("key", [None, "id"])
def test_tables_that_threads_write_at_the_same_time_share_records(
    table: lakelog.Table, directory: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = table.to_arrow().schema
    sync = LocalFile.sync

    def slow_sync(file: LocalFile) -> None:
        """Other threads queue meanwhile."""
        time.sleep(0.002)
        sync(file)

    monkeypatch.setattr(LocalFile, "sync", slow_sync)
    with quiet(table, directory, key=key, sync="sync", max_rows=1000) as ingestor:
        ingestor.write(pa.table({"id": [-1], "name": ["x"], "at": [None]}, schema))
        numbers: dict[int, list[int]] = {}

        def write(thread: int) -> None:
            own = numbers[thread] = []
            for number in range(thread * 60, thread * 60 + 60, 3):
                names = [str(thread)] * 3
                three = {"id": range(number, number + 3), "name": names, "at": [None] * 3}
                rows = pa.table(three, schema)
                match number % 4:
                    case 0:
                        own.append(ingestor.write(rows.to_pylist()))
                    case 1:
                        own.append(ingestor.write(rows, source="s", offset=number))
                    case _:
                        own += [ingestor.write(rows[:1]), ingestor.write(rows[1:])]

        run_concurrently(*(partial(write, n) for n in range(8)))
        assert all(own == sorted(own) for own in numbers.values())
        seqs = [seq for own in numbers.values() for seq in own]
        assert len(set(seqs)) < len(seqs), "no record was shared"
        assert max(seqs) == ingestor.status().durable_seq
        assert ids(ingestor.read_your_writes()) == list(range(-1, 480))
        backlog = ingestor.status().backlog_bytes
        waiting = ingestor._committer.waiting()
        assert backlog == waiting.size_bytes + RECORD_BYTES * waiting.records
        assert waiting.rows == ingestor._backlog_rows
        ingestor.flush()
        assert (ingestor.status().backlog_bytes, ingestor._backlog_rows) == (0, 0)
    assert ids(table.scan()) == list(range(-1, 480))


def test_rows_far_larger_than_the_last_ones_are_written(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = table.to_arrow().schema
    monkeypatch.setattr(encode, "PAYLOAD_LIMIT_BYTES", 10_000_000)
    with quiet(table, directory) as ingestor:
        for name in ("x", "x", "y" * 6_000_000, "z"):
            ingestor.write(pa.table({"id": [1, 2], "name": [name] * 2, "at": [None] * 2}, schema))
        assert ingestor.status().rows_durable == 8
    assert table.to_polars()["name"].str.len_bytes().sum() == 12_000_006


STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


BAD: list[tuple[Any, str]] = [
    ({"id": "1"}, "has another type"),
    ({"id": 1.5}, "cannot be cast"),
    ({"id": 1 << 64}, "'id'"),
    ({"name": "no id"}, "NOT NULL"),
    ({"id": None}, "NOT NULL"),
    ({"id": 1, "colour": "red"}, "no column 'colour'"),
    ({"id": 1, "at": dt.datetime(2026, 1, 1)}, "another type"),
    ({"id": 1, "name": "\ud800"}, "'name'"),
    ({5: 1}, "must be str"),
    ({}, "a row has no columns"),
    ([{"id": 1}, {}], "a row has no columns"),
    ([{"id": 1}, {"id": "x"}], "has another type"),
    (pl.DataFrame({"id": ["a"]}), "has another type"),
    (b'{"id": 1}\n{"id": "a"}', "not a JSON object"),
    (b'{"id": 1', "not a JSON object"),
    (b'{"id": 1}{"id": 2}', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"id": 1}\n null\n', "not a JSON object"),
    (b'{"id": 1}\n{ }', "not a JSON object"),
    (b'{"id": 1, "name": "\xe4"}', "not a JSON object"),
    (pa.table({"x": [1]}).select([]), "NOT NULL"),
    (pa.table({"id": [None], "name": ["a"], "at": [None]}, STRICT), "NOT NULL"),
    (7, "not a row, rows or a frame"),
    ([7], "must contain mappings"),
]


@pytest.mark.parametrize(("rows", "reason"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_invalid_row_raises_in_write_and_is_not_logged(
    tmp_path: Path, directory: Path, rows: Any, reason: str
) -> None:
    table = lakelog.create(tmp_path / "strict", STRICT, upkeep=False)
    with quiet(table, directory) as ingestor:
        with pytest.raises(InvalidInputError, match=reason):
            ingestor.write(rows)
        assert ingestor.status().durable_seq == 0
        assert ingestor.status().backlog_bytes == 0
        assert ingestor.write({"id": 5}) == 1


def test_unknown_field_of_json_is_named(tmp_path: Path, directory: Path) -> None:
    inner = pl.Struct({"x": pl.Int64, "at": pl.Datetime("us")})
    schema = {"id": pl.Int64, "s": inner, "all": pl.List(inner)}
    table = lakelog.create(tmp_path / "nested", schema, upkeep=False)
    table.alter.add_columns(pa.schema({"m": pa.map_(pa.string(), pa.int64())}))
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write(
            b'{"id": 1}\n{"id": 2, "colour": "red"}\n{"id": NaN, "s": {"x": 1, "y": 2}}\n'
            b'{"all": [{"x": 1}, {"z": 2}]}\n{"m": {"a": 1}}\n{"ID": 3}\n'
            b'{"s": {"at": "2026-01-05T12:00:00Z"}}'
        )
        rows = ingestor.rejected()
    assert rows["column"].to_list() == ["colour", "s.y", "all.element.z", "m", "ID", "s"]
    reasons = rows["reason"].to_list()
    for name, reason in zip(rows["column"], reasons, strict=True):
        assert repr(name) in reason
    assert "'m' cannot be read from JSON" in reasons[3]
    assert "expected no zone offset" in reasons[5]
    assert ids(table.scan()) == [1]


def test_time_with_an_offset_is_refused_in_a_column_without_a_zone(
    tmp_path: Path, directory: Path
) -> None:
    table = lakelog.create(tmp_path / "local", {"id": pl.Int64, "at": pl.Datetime("us")})
    noon = "2026-01-05T12:00:00"
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        lines = [{"id": n, "at": f"{noon}{end}"} for n, end in enumerate(["", "+02:00", "Z", ".5"])]
        ingestor.write(b"\n".join(map(orjson.dumps, lines)))
        ingestor.write({"id": 4, "at": dt.datetime(2026, 1, 5, 12)})
        assert ingestor.rejected()["column"].to_list() == ["at", "at"]
        assert "expected no zone offset" in ingestor.rejected()["reason"][0]
    assert table.to_polars().sort("id")["at"].dt.hour().to_list() == [12, 12, 12]


def test_number_that_a_column_cannot_hold_is_refused_in_json(
    tmp_path: Path, directory: Path
) -> None:
    schema = {"price": pl.Decimal(6, 2), "weight": pl.Float32, "far": pl.Float64}
    table = lakelog.create(tmp_path / "numbers", schema, upkeep=False)
    with quiet(table, directory) as ingestor:
        for bad in (b'{"price": 12345}', b'{"price": -10000.0}', b'{"weight": 1e300}'):
            with pytest.raises(InvalidInputError, match="not a JSON object with values"):
                ingestor.write(bad)
        ingestor.write(b'{"price": 9999.99, "weight": 1e38, "far": 1e300}\n{"far": Infinity}')
    assert table.to_polars()["price"].to_list() == [decimal.Decimal("9999.99"), None]
    assert table.to_polars()["far"].to_list() == [1e300, float("inf")]


def test_number_too_large_for_a_float_is_refused_wherever_it_is(
    tmp_path: Path, directory: Path
) -> None:
    floats = {"f": pl.Float32, "d": pl.Float64}
    schema = {**floats, "text": pl.String, "s": pl.Struct(floats), "l": pl.List(pl.Float32)}
    table = lakelog.create(tmp_path / "numbers", schema, upkeep=False)
    with quiet(table, directory) as ingestor:
        for bad in (b'"f":1e39', b'"d":1e400', b'"s":{"f":1e39}', b'"l":[1,-1e39]'):
            for other in (b"", b',"text":"Information: Infinity, and more"'):
                with pytest.raises(InvalidInputError, match=r"too (large|big)"):
                    ingestor.write(b"{%s%s}" % (bad, other))
                with pytest.raises(InvalidInputError, match=r"too (large|big)"):
                    ingestor.write(b'{%s}\n{"d": -Infinity%s}' % (bad, other))
        ingestor.write(b'{"f":Infinity,"s":{"f": -Inf ,"d":1},"l":[1, Infinity],"text":"Inf"}')
    (row,) = table.to_polars().rows()
    infinity = float("inf")
    assert row == (infinity, None, "Inf", {"f": -infinity, "d": 1.0}, [1.0, infinity])


def test_python_floats_become_the_nearest_floats_of_their_column(
    tmp_path: Path, directory: Path
) -> None:
    schema: dict[str, Any] = {
        "f": pl.Float32,
        "s": pl.Struct({"f": pl.Float32}),
        "l": pl.List(pl.Float32),
    }
    table = lakelog.create(tmp_path / "numbers", schema, upkeep=False)
    row: dict[str, Any] = {"f": 0.1, "s": {"f": 0.1}, "l": [0.1, float("inf"), None]}
    with quiet(table, directory) as ingestor:
        ingestor.write(row)
        ingestor.write([row, {"l": None}])
        for bad in ({"f": 1e39}, {"s": {"f": -1e39}}, {"l": [1.0, 1e39]}):
            with pytest.raises(InvalidInputError, match="without loss"):
                ingestor.write(bad)
        with pytest.raises(InvalidInputError, match="without loss"):
            ingestor.write(pl.DataFrame({"f": [0.1]}))
    expected = pl.DataFrame([row, row, dict.fromkeys(schema)], schema)
    assert table.to_polars().equals(expected)


NO_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xe4")]
)


@pytest.mark.parametrize("on_bad_row", ["raise", "divert"])
@pytest.mark.parametrize("known", [False, True])
def test_text_that_is_not_utf_8_is_refused_and_blocks_nothing(
    tmp_path: Path, directory: Path, known: bool, on_bad_row: str
) -> None:
    table = lakelog.create(tmp_path / "texts", {"name": pl.String}, upkeep=False)
    with quiet(table, directory, on_bad_row=on_bad_row) as ingestor:
        if known:
            ingestor.write(pa.table({"name": ["first"]}))
        with pytest.raises(InvalidInputError, match="a value that its type does not allow"):
            ingestor.write(pa.table({"name": NO_UTF8}))
        ingestor.write(pa.table({"name": ["good"]}))
    assert table.to_polars()["name"].to_list() == ["first"] * known + ["good"]


def test_error_of_many_rows_shows_the_first_bad_one(tmp_path: Path, directory: Path) -> None:
    table = lakelog.create(tmp_path / "strict", STRICT, upkeep=False)
    good: list[dict[str, Any]] = [{"id": number} for number in range(700)]
    with quiet(table, directory) as ingestor:
        for bad in ({"id": 3, "size": 1}, {"id": "three"}, {}):
            rows = [*good, bad, *good, {"id": None}]
            with pytest.raises(InvalidInputError) as raised:
                ingestor.write(rows)
            assert str(raised.value.found).startswith(f"row 700: {bad}: ")
            with pytest.raises(InvalidInputError) as raised:
                ingestor.write(b"\n".join(map(orjson.dumps, rows)))
            if bad:
                text = orjson.dumps(bad).decode()
                reason = "the table has no column 'size'" if "size" in bad else "JSON parse error"
                assert str(raised.value.found).startswith(f"row 700: {text}: {reason}")
                assert raised.value.column == [*bad][-1]
        assert ingestor.status().durable_seq == 0


def test_values_of_every_type_survive_the_log(tmp_path: Path, directory: Path) -> None:
    day, time = dt.date(2026, 1, 5), dt.datetime(2026, 1, 5, 1, 2, 3, 4, dt.UTC)
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    rows: list[dict[str, Any]] = [
        {"b": True, "i8": -128, "i16": 32767, "i32": -5, "i64": -(1 << 63), "f32": 0.5, "f64": 0.1},
        {
            "f64": float("nan"),
            "text": "",
            "day": day,
            "time": time,
            "naive": time.replace(tzinfo=None),
        },
        {"f64": float("-inf"), "bytes": b"\x00\xff", "dec": decimal.Decimal("-1.25")},
        {"f64": 3, "list": [1, None], "struct": {"x": day}, "map": {"a": 1}},
        {"f64": -0.0, "time": time.astimezone(zone), "day": dt.date(1, 1, 1), "text": "\0 \u2028"},
        {"naive": dt.datetime(9999, 12, 31, 23, 59, 59, 999999)},
        {},
    ]
    schema = pa.schema(
        [
            ("b", pa.bool_()),
            ("i8", pa.int8()),
            ("i16", pa.int16()),
            ("i32", pa.int32()),
            ("i64", pa.int64()),
            ("f32", pa.float32()),
            ("f64", pa.float64()),
            ("text", pa.string()),
            ("day", pa.date32()),
            ("time", pa.timestamp("us", "UTC")),
            ("naive", pa.timestamp("us")),
            ("bytes", pa.binary()),
            ("dec", pa.decimal128(10, 2)),
            ("list", pa.list_(pa.int64())),
            ("struct", pa.struct([("x", pa.date32())])),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("n", pa.int64()),
        ]
    )
    table = lakelog.create(tmp_path / "all", schema, upkeep=False)
    with quiet(table, directory) as ingestor:
        for number, row in enumerate(rows):
            ingestor.write({**row, "n": number})
        pending = ingestor.read_your_writes().sort("n").collect()
    committed = table.to_arrow().sort_by("n").to_pylist()
    assert pending.equals(table.to_polars().sort("n"), null_equal=True)
    for row, found in zip(rows, committed, strict=True):
        for name, value in row.items():
            seen = dict(found[name]) if name == "map" else found[name]
            assert seen == value or (value != value and seen != seen), name  # noqa: PLR0124
        assert all(found[name] is None for name in found if name not in row and name != "n")


def test_missing_value_is_replaced_by_the_default_of_its_column(
    tmp_path: Path, directory: Path
) -> None:
    field = {"type": "string", "nullable": True, "metadata": {"CURRENT_DEFAULT": "'new'"}}
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "state", **field},
        ],
    }
    features = {"delta.feature.allowColumnDefaults": "supported"}
    table = lakelog.create(tmp_path / "defaults", schema, configuration=features, upkeep=False)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        ingestor.write({"id": 2, "state": None})
        ingestor.write([{"id": 3}, {"id": 4, "state": "old"}])
    assert table.to_polars().sort("id")["state"].to_list() == ["new", None, "new", "old"]


# --- the directory ---------------------------------------------------------------------------


def test_second_ingestor_of_a_directory_raises_log_locked_error(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory), pytest.raises(LogLockedError, match="close the other Ingestor"):
        quiet(table, directory)


def test_directory_of_another_table_or_key_raises(
    table: lakelog.Table, directory: Path, tmp_path: Path
) -> None:
    quiet(table, directory).close()
    other = lakelog.create(tmp_path / "other", SCHEMA, upkeep=False)
    with pytest.raises(StreamMismatchError, match="another table"):
        quiet(other, directory)
    with pytest.raises(StreamMismatchError, match="another key"):
        quiet(table, directory, key="id")
    quiet(table, directory).close()


def test_missing_or_damaged_state_file_raises_corruption_error(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
    state = directory / "ingest.json"
    text = state.read_bytes()
    state.write_bytes(text[:20])
    with pytest.raises(CorruptionError, match="damaged"):
        quiet(table, directory)
    state.unlink()
    with pytest.raises(CorruptionError, match=r"missing.*if it is a keyed store, choose another"):
        quiet(table, directory)
    state.write_bytes(text)
    quiet(table, directory).close()


@pytest.mark.parametrize("is_reachable", [True, False])
@pytest.mark.parametrize("lost", ["folder", "records"])
def test_directory_without_the_log_of_its_commits_raises_and_accepts_no_row(
    table: lakelog.Table, directory: Path, lost: str, *, is_reachable: bool
) -> None:
    """The next rows would have the sequence numbers of committed ones."""
    with quiet(table, directory) as ingestor:
        ingestor.write([{"id": 1}])
        ingestor.write([{"id": 2}])
    shutil.rmtree(directory / "wal")
    if lost == "records":
        lakelog.WriteAheadLog(directory / "wal").close()
    failing = FailingTable(table)
    failing.fails = not is_reachable
    match = "is missing" if lost == "folder" else "older than its state"
    for _ in range(2):
        with pytest.raises(CorruptionError, match=match) as raised:
            quiet(failing.table, directory)
        assert raised.value.path == str(directory / "wal")
        assert "pending_rows(directory) that the table lacks" in str(raised.value.hint)
    assert ids(table.scan()) == [1, 2]


@pytest.mark.parametrize("key", [None, "id"])
def test_ingestor_opens_while_another_writer_renames_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    lakelog.create(tmp_path / "t", {"id": pl.Int64, "a": pl.Int64}, configuration=mapped)
    table, real = lakelog.open(tmp_path / "t"), committer._require_writable
    names = ["b", "c"]

    def meanwhile(*args: Any) -> None:
        if names:
            column = table.snapshot().schema.names[1]
            lakelog.open(tmp_path / "t").alter.rename_column(column, names.pop(0))
        real(*args)

    monkeypatch.setattr(committer, "_require_writable", meanwhile)
    with lakelog.Ingestor(table, tmp_path / "ingest", key=key) as ingestor:
        ingestor.write({"id": 1, "c": 2})
        ingestor.flush()
    assert table.to_polars().rows() == [(1, 2)]


def test_unsupported_table_raises_when_the_ingestor_is_opened(tmp_path: Path) -> None:
    other = lakelog.create(tmp_path / "x", SCHEMA, format="indextables", upkeep=False)
    with pytest.raises(UnsupportedFeatureError):
        quiet(other, tmp_path / "ingest")
    rule = {"delta.constraints.c": "id > rand()"}
    ruled = lakelog.create(tmp_path / "y", SCHEMA, upkeep=False)
    set_unchecked_metadata(ruled, configuration=rule)
    with pytest.raises(UnsupportedFeatureError, match="the CHECK constraint 'c'"):
        quiet(ruled, tmp_path / "ingest")


def test_calls_of_a_closed_ingestor_raise(table: lakelog.Table, directory: Path) -> None:
    ingestor = quiet(table, directory)
    ingestor.close()
    ingestor.close()
    for call in (
        lambda: ingestor.write({"id": 1}),
        ingestor.flush,
        ingestor.read_your_writes,
        ingestor.status,
        ingestor.offsets,
    ):
        with pytest.raises(InvalidInputError, match="closed"):
            call()


def test_asynchronous_calls_after_close_raise_and_closing_twice_does_not(
    table: lakelog.Table, directory: Path
) -> None:
    async def main() -> None:
        ingestor = lakelog.AsyncIngestor(quiet(table, directory))
        await ingestor.write({"id": 1})
        await asyncio.gather(ingestor.close(), ingestor.close())
        for call in (ingestor.flush, ingestor.offsets, partial(ingestor.write, {"id": 2})):
            with pytest.raises(InvalidInputError, match="closed"):
                await call()

    asyncio.run(main())
    assert ids(table.scan()) == [1]


def test_asynchronous_close_that_was_cancelled_ends_nevertheless(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    async def main() -> None:
        inner = quiet(table, directory)
        ingestor = lakelog.AsyncIngestor(inner, threads=1)
        await ingestor.write({"id": 1})
        monkeypatch.setattr(inner, "offsets", lambda: free.wait(30))
        busy = asyncio.create_task(ingestor.offsets())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ingestor.close(), 0.1)
        free.set()
        await ingestor.close()
        assert inner.is_closed
        await busy

    asyncio.run(main())
    assert ids(table.scan()) == [1]


@pytest.mark.parametrize("is_other_loop", [False, True])
def test_asynchronous_close_after_a_cancelled_one_waits_and_raises_its_error(
    table: lakelog.Table,
    directory: Path,
    is_other_loop: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed, free = threading.Event(), threading.Event()
    close = lakelog.Ingestor.close

    def closed_late(inner: lakelog.Ingestor, *, flush: bool) -> None:
        """Waits after it has closed the Ingestor, as for a compaction."""
        try:
            close(inner, flush=flush)
        finally:
            closed.set()
            assert free.wait(30)

    async def begin(ingestor: lakelog.AsyncIngestor, store: FailingTable) -> None:
        await ingestor.write({"id": 1})
        store.fails = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ingestor.close(), 0.1)

    async def end(ingestor: lakelog.AsyncIngestor) -> None:
        assert closed.wait(30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ingestor.close(), 0.1)
        free.set()
        with pytest.raises(UnavailableError, match="the store is down"):
            await ingestor.close()

    def both() -> None:
        store = FailingTable(table)
        ingestor = lakelog.AsyncIngestor(quiet(store.table, directory))
        with asyncio.Runner() as first, asyncio.Runner() as other:
            first.run(begin(ingestor, store))
            (other if is_other_loop else first).run(end(ingestor))
        assert ingestor.ingestor.is_closed

    monkeypatch.setattr(lakelog.Ingestor, "close", closed_late)
    both()
    gc.collect()
    assert is_other_loop or "never retrieved" not in caplog.text


_INTERRUPTED = """
import signal, sys, threading, time
import lakelog
from lakelog.testing import InjectingStore

begun, free, ended = threading.Event(), threading.Event(), threading.Event()

class Store(InjectingStore):
    def put_if_absent(self, *args, **options):
        begun.set()
        free.wait(30)
        ended.set()
        return super().put_if_absent(*args, **options)

def own_threads():
    return sum(thread.name == "lakelog-ingest" for thread in threading.enumerate())

location, directory = sys.argv[1:]
table = lakelog.open(store=Store(lakelog.open(location).log.store), upkeep=False)
ingestor = lakelog.Ingestor(
    table,
    directory,
    max_seconds=0.0,
    max_backlog_bytes=1,
    write_timeout=None,
    compact_after_seconds=3600,
)
before = own_threads()
ingestor.write({"id": 1})
assert begun.wait(30)
main = threading.main_thread().ident
for wait in (ingestor.flush, lambda: ingestor.write({"id": 3}), *[ingestor.close] * 3):
    try:
        threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
        wait()
    except KeyboardInterrupt:
        assert not ended.is_set() and not ingestor.is_closed
        assert own_threads() == before, own_threads()
free.set()
ingestor.write({"id": 2})
until = time.monotonic() + 30
while ingestor.status().rows_committed < 2:
    assert time.monotonic() < until
    time.sleep(0.01)
ingestor.close(flush=False)
assert own_threads() == 0
"""


def test_calls_that_wait_for_a_commit_can_be_interrupted_and_the_ingestor_continues(
    table: lakelog.Table, directory: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, table.path, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ids(table.scan()) == [1, 2]


def test_asynchronous_close_does_not_wait_for_writes_that_wait_for_space(
    table: lakelog.Table, directory: Path
) -> None:
    async def main() -> None:
        inner = quiet(table, directory, max_backlog_bytes=100, write_timeout=None)
        ingestor = lakelog.AsyncIngestor(inner, threads=1)
        await ingestor.write({"id": 1, "name": "x" * 50})
        writes = [asyncio.create_task(ingestor.write({"id": 2, "name": "y" * 50}))]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(ingestor.close(), 30)
        await asyncio.gather(*writes)

    asyncio.run(main())
    assert ids(table.scan()) == [1, 2]


def test_directory_inside_the_table_raises(table: lakelog.Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="vacuum"):
        quiet(table, tmp_path / "table" / "ingest")


@pytest.mark.parametrize("seconds", [None, True, -1, float("nan"), "10"])
def test_invalid_max_seconds_raises(table: lakelog.Table, directory: Path, seconds: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_seconds"):
        quiet(table, directory, max_seconds=seconds)


# --- positions -------------------------------------------------------------------------------


def test_offsets_are_durable_with_their_rows_and_survive_commits(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1}, source="a", offset=10)
        ingestor.write([{"id": 2}, {"id": 3}], source="b", offset=7)
        assert ingestor.offsets() == {"a": 10, "b": 7}
        ingestor.flush()
        ingestor.write([], source="a", offset=12)
        assert ingestor.offsets() == {"a": 12, "b": 7}
    with quiet(table, directory) as ingestor:
        assert ingestor.offsets() == {"a": 12, "b": 7}
        with pytest.raises(InvalidInputError, match="together"):
            ingestor.write({"id": 4}, offset=13)
        with pytest.raises(InvalidInputError, match="together"):
            ingestor.write({"id": 4}, source="a")
        with pytest.raises(InvalidInputError, match="an int from 0 to 9223372036854775807"):
            ingestor.write({"id": 4}, source="a", offset=1 << 63)
        for source in ("a\udcff", 1):
            with pytest.raises(InvalidInputError, match="source must be a str"):
                ingestor.write({"id": 4}, source=source, offset=13)  # type: ignore[arg-type]
    assert ids(table.scan()) == [1, 2, 3]


def test_rows_with_a_position_are_one_batch_of_the_log(
    table: lakelog.Table, directory: Path
) -> None:
    large = pl.DataFrame({"id": range(75), "name": ["n" * (1 << 20)] * 75})
    # A second batch would wait for the backlog of the first.
    with quiet(table, directory, max_backlog_bytes=1, write_timeout=0) as ingestor:
        ingestor.write(large, source="a", offset=75)
        assert ingestor.offsets() == {"a": 75}
    assert ids(table.scan()) == list(range(75))


def test_no_row_of_a_stream_with_a_position_is_written_if_one_does_not_fit(
    table: lakelog.Table, directory: Path
) -> None:
    batches = [pa.record_batch({"id": [1.0, 2.0]}), pa.record_batch({"id": [3.0, 3.5]})]
    stream = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with quiet(table, directory) as ingestor:
        with pytest.raises(InvalidInputError):
            ingestor.write(stream, source="a", offset=4)
        assert ingestor.offsets() == {}
        assert ingestor.status().durable_seq == 0


# --- diverted rows ---------------------------------------------------------------------------


def rows_to_write(error: LakelogError) -> int:
    """The first row of the call that is not durable, as the hint names it."""
    found = re.search(r"rows 1 to (\d+) of the call are durable", str(error.hint))
    assert found is not None
    assert "nothing was written" not in str(error.hint)
    return int(found[1])


def test_error_of_a_later_batch_of_a_stream_names_the_durable_rows(
    table: lakelog.Table, directory: Path
) -> None:
    def stream(end: int) -> pa.RecordBatchReader:
        batches = [pa.record_batch({"id": range(n, n + 10)}) for n in range(0, end, 10)]
        return pa.RecordBatchReader.from_batches(batches[0].schema, batches)

    with quiet(table, directory, max_backlog_bytes=1, write_timeout=0.05) as ingestor:
        with pytest.raises(UnavailableError, match="backlog") as full:
            ingestor.write(stream(30))
        ingestor.flush()
        ingestor.write(pl.DataFrame({"id": range(rows_to_write(full.value), 20)}))
        ingestor.flush()

        def interrupted() -> Iterator[pa.RecordBatch]:
            yield from stream(10)
            raise ConnectionError("the source failed")

        schema = stream(10).schema
        with pytest.raises(ConnectionError) as source:
            ingestor.write(pa.RecordBatchReader.from_batches(schema, interrupted()))
        assert "rows 1 to 10 of the call are durable" in source.value.__notes__[0]
    assert ids(table.scan()) == sorted([*range(20), *range(10)])


def test_rows_whose_outcome_is_unknown_are_not_to_be_written_again(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EIO, "the disk failed")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": range(10)})
        monkeypatch.setattr(LocalFile, "sync", fail)
        yield pa.record_batch({"id": range(10, 20)})

    schema = pa.schema({"id": pa.int64()})
    ingestor = quiet(table, directory, sync="sync")
    with pytest.raises(OutcomeUnknownError) as raised:
        ingestor.write(pa.RecordBatchReader.from_batches(schema, batches()))
    assert "rows 1 to 10 of the call are durable" in str(raised.value.hint)
    assert "write only" not in str(raised.value.hint)
    monkeypatch.undo()
    ingestor.close(flush=False)
    quiet(table, directory).close()
    assert ids(table.scan())[:10] == list(range(10))


def test_error_of_a_later_part_of_a_long_batch_names_the_rows_that_remain(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.ingest.ingestor._ATOMIC_BYTES", 1)
    text = "x" * records.RECORD_BYTES
    rows = [{"id": n if n % 4 != 1 else "bad", "name": text} for n in range(10)]
    options = {"max_backlog_bytes": 4 * records.RECORD_BYTES, "write_timeout": 0.05}
    with quiet(table, directory, on_bad_row="divert", **options) as ingestor:
        left: list[Any] = rows
        while left:
            try:
                ingestor.write(left)
                break
            except UnavailableError as error:
                left = left[rows_to_write(error) :]
            ingestor.flush()
        assert 0 < len(left) < 10
    assert ids(table.scan()) == [0, 2, 3, 4, 6, 7, 8]


def test_column_name_that_is_not_unicode_raises(table: lakelog.Table, directory: Path) -> None:
    with lakelog.Ingestor(table, directory, key="id") as ingestor:
        for call in (ingestor.write, ingestor.delete):
            with pytest.raises(InvalidInputError, match="cannot be encoded as text"):
                call({"\ud800": "x"})


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b'{"id": 1, "id": 1}', "id"),
        (b'{"s": {"a": 1, "a": null}}', "s/a"),
        (b'{"l": [{"a": 1}, {"a": 1, "\\u0061": 2}]}', "l/[]/a"),
    ],
)
def test_a_line_with_an_object_that_repeats_a_key_is_refused(
    tmp_path: Path, line: bytes, column: str
) -> None:
    inner = pl.Struct({"a": pl.Int64})
    schema = {"id": pl.Int64, "s": inner, "l": pl.List(inner)}
    table = lakelog.create(tmp_path / "t", schema, upkeep=False)
    with lakelog.Ingestor(table, tmp_path / "i") as ingestor:
        with pytest.raises(InvalidInputError, match="twice") as error:
            ingestor.write(line)
        assert error.value.column == column
        ingestor.flush()
    assert table.snapshot().num_rows() == 0


def test_rows_of_asynchronous_writes_are_durable_when_they_return(
    table: lakelog.Table, directory: Path
) -> None:
    async def main() -> list[int]:
        async with lakelog.AsyncIngestor(quiet(table, directory, key="id")) as ingestor:
            written = [ingestor.write({"id": number}) for number in range(100)]
            numbers = await asyncio.gather(*written)
            await ingestor.delete({"id": 50})
            seen = await (await ingestor.read_your_writes()).collect_async()
            assert ids(seen) == [number for number in range(100) if number != 50]
            assert await ingestor.flush() == ingestor.status().durable_seq == 101
            await ingestor.write([], source="s", offset=3)
            assert await ingestor.offsets() == {"s": 3}
            with pytest.raises(InvalidInputError):
                await ingestor.write({"id": "x"})
        await ingestor.close()
        assert ingestor.ingestor.is_closed
        return numbers

    assert sorted(asyncio.run(main())) == list(range(1, 101))
    assert len(ids(table.scan())) == 99


def test_ingestor_without_its_lock_does_not_replace_the_state_of_the_next(
    table: lakelog.Table, directory: Path
) -> None:
    first = quiet(table, directory)
    (directory / "wal" / "wal.lock").unlink()
    with quiet(table, directory) as second:
        second.write({"id": 1}, source="feed", offset=100)
    table.alter.add_columns({"more": pl.Int64})
    with pytest.raises(OutcomeUnknownError, match="lock file"):
        first.write({"id": 2, "more": 3})
    first.close(flush=False)
    with quiet(table, directory) as again:
        assert again.offsets() == {"feed": 100}
