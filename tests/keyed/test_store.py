"""KeyedStore: its guarantees to callers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    InvalidInputError,
    KeyNotFoundError,
    LogLockedError,
    OutcomeUnknownError,
)
from lakelog.keyed import rows, sorted_file
from lakelog.keyed.store import KeyedStore


def state(store: KeyedStore) -> dict[bytes, bytes]:
    found = store.scan()
    return dict(zip(found["key"], found["value"], strict=True))


def test_keyed_store_is_exported_and_is_a_context_manager(tmp_path: Path) -> None:
    assert lakelog.KeyedStore is KeyedStore
    with lakelog.KeyedStore(tmp_path / "deep" / "store") as store:
        store.put("k", "v")
        assert repr(store) == f"KeyedStore({str(tmp_path / 'deep' / 'store')!r})"
    store.close()
    with pytest.raises(InvalidInputError, match="closed"):
        store.put("k", "v")
    with pytest.raises(InvalidInputError, match="closed"):
        store.get("k")
    with pytest.raises(InvalidInputError, match="closed"):
        store.flush()


def test_relative_directory_is_resolved_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with KeyedStore("store") as store:
        store.put("a", "1")
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.flush()
        store.put("a", "2")
        store.compact()
        assert state(store) == {b"a": b"2"}
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("end", ["memory", "log", "file", "merged"])
def test_key_is_read_overwritten_and_deleted_in_memory_log_and_files(
    tmp_path: Path, end: str
) -> None:
    def settle(store: KeyedStore) -> KeyedStore:
        if end == "log":
            store.close()
            return KeyedStore(tmp_path)
        if end == "file":
            store.flush()
        elif end == "merged":
            store.compact()
        return store

    store = KeyedStore(tmp_path)
    store.put("a", "1")
    store.put(b"b", b"")
    store.put("ü", "2")
    store = settle(store)
    assert [store.get(k) for k in ("a", b"b", "ü", "c")] == [b"1", b"", b"2", None]
    assert state(store) == {b"a": b"1", b"b": b"", "ü".encode(): b"2"}
    store.put("a", "3")
    store.delete("ü")
    store.delete("missing")
    store = settle(store)
    assert [store.get(k) for k in ("a", b"b", "ü")] == [b"3", b"", None]
    assert state(store) == {b"a": b"3", b"b": b""}
    store.put("ü", "4")
    store = settle(store)
    assert store.get("ü") == b"4"
    assert store.scan()["seqNum"].is_sorted() is False
    store.close()


@pytest.mark.parametrize("items", [["ab", "cd"], [b"ab"], "ab", b"ab", ["abc"]])
def test_text_is_not_a_key_and_a_value(tmp_path: Path, items: Any) -> None:
    with KeyedStore(tmp_path) as store:
        with pytest.raises(InvalidInputError, match="a batch must contain keys and values"):
            store.put_many(items)
        assert state(store) == {}


def test_prefix_selects_the_keys_that_begin_with_it(tmp_path: Path) -> None:
    keys = [b"", b"a", b"a\xfe", b"a\xff", b"a\xff\xff", b"ab", b"b", b"\xff", b"\xff\xffz"]
    with KeyedStore(tmp_path) as store:
        store.put_many(dict.fromkeys(keys, b"v"))
        for settle in (lambda: None, store.flush):
            settle()
            for prefix in (b"", b"a", b"a\xff", b"\xff", b"\xff\xff", b"c"):
                found = store.scan(prefix=prefix)["key"].to_list()
                assert found == sorted(key for key in keys if key.startswith(prefix)), prefix
        assert store.scan(prefix="a").equals(store.scan(prefix=b"a"))
        for bounds in ({"start": "a"}, {"end": "b"}):
            with pytest.raises(InvalidInputError, match="prefix cannot be combined"):
                store.scan(prefix="a", **bounds)


def test_store_has_get_many_and_the_methods_of_a_mapping(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put_many({"b": "2", "a": "1", "empty": ""})
        store.put("deleted", "x")
        store.flush()
        store.delete("deleted")
        keys: list[bytes | str] = ["a", "deleted", b"b", "missing", "a", "empty"]
        assert store.get_many(keys) == [b"1", None, b"2", None, b"1", b""]
        assert store.get_many([]) == []
        assert [key in store for key in ("a", b"empty", "deleted", "missing")] == [
            True,
            True,
            False,
            False,
        ]
        assert 5 not in store
        assert bytearray(b"empty") in store
        assert list(store) == [b"a", b"b", b"empty"]
        assert (len(store), store["a"], store[b"empty"]) == (3, b"1", b"")
        store["new"] = "5"
        assert store["new"] == b"5"
        del store["new"]
        for key in ("deleted", b"new"):
            with pytest.raises(KeyError, match="key not found") as missing:
                store[key]
            assert isinstance(missing.value, KeyNotFoundError)
            with pytest.raises(KeyNotFoundError):
                del store[key]
        with pytest.raises(InvalidInputError, match="a key must be bytes or text"):
            store.get_many([5])  # type: ignore[list-item]
        not_lists: list[Any] = ["ab", b"ab", 5, None]
        for each in not_lists:
            with pytest.raises(InvalidInputError, match="must be a list"):
                store.get_many(each)
    with pytest.raises(InvalidInputError):
        store.get_many(["a"])


def test_scan_has_the_same_schema_with_and_without_rows(tmp_path: Path) -> None:
    schema = {"key": pl.Binary, "value": pl.Binary, "seqNum": pl.Int64}
    with KeyedStore(tmp_path) as store:
        assert store.scan().schema == schema
        store.put("a", "1")
        assert store.scan().schema == schema
        store.flush()
        assert store.scan().schema == schema
        assert store.scan("b").schema == schema


def test_sequence_numbers_increase_across_flushes_and_reopening(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with KeyedStore(tmp_path) as store:
            numbers.append(store.put("k", "v"))
            numbers.append(store.put_many({"a": "1", "b": "2"}))
            numbers.append(store.delete("k"))
            store.flush()
    assert numbers == sorted(set(numbers))
    assert numbers[:3] == [1, 4, 5]


def test_tables_are_batches_with_puts_and_deletes(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put("x", "old")
        arrow = pa.table({"key": ["a", "b", "a"], "value": pa.array([b"1", b"2", b"3"])})
        store.put_table(arrow)
        ops = ["PUT", "DELETE", "PUT", "DELETE"]
        keys = ["c", "b", "x", "c"]
        store.put_table(pl.DataFrame({"key": keys, "value": ["1", None, "", None], "op": ops}))
        assert store.put_table(arrow.slice(0, 0)) == 0
        assert store.put_many([]) == 0
        expected = {b"a": b"3", b"x": b""}
        assert state(store) == expected
    with KeyedStore(tmp_path) as store:
        assert state(store) == expected
        assert store.get("a") == b"3"


def test_invalid_key_or_value_raises_and_nothing_is_written(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        for key, value in ((1, b""), (b"", None), (None, b""), ("\ud800", b""), (b"", 1.5)):
            with pytest.raises(InvalidInputError):
                store.put(key, value)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            store.get(3)  # type: ignore[arg-type]
        for table in (
            None,
            {"key": [b""], "value": [b""]},
            pl.DataFrame({"key": [1], "value": [b""]}),
            pl.DataFrame({"key": [b""]}),
            pl.DataFrame({"key": [b"", None], "value": [b"", b""]}),
            pl.DataFrame({"key": [b"", b""], "value": [b"", None]}),
            pl.DataFrame({"key": [b""], "value": [b""], "op": ["COMMIT"]}),
            pl.DataFrame({"key": [b""], "value": [b""], "op": [None]}),
        ):
            with pytest.raises(InvalidInputError):
                store.put_table(table)
        with pytest.raises(InvalidInputError):
            store.put_many([("a", "1"), ("b", 2)])  # type: ignore[list-item]
        assert state(store) == {}
        assert store.put("a", "1") == 1
    with pytest.raises(InvalidInputError):
        KeyedStore(tmp_path, memtable_bytes=0)


def test_second_open_for_writing_raises_log_locked_error(tmp_path: Path) -> None:
    with KeyedStore(tmp_path), pytest.raises(LogLockedError):
        KeyedStore(tmp_path)
    KeyedStore(tmp_path).close()


def test_full_memtable_is_flushed_and_files_are_compacted_automatically(tmp_path: Path) -> None:
    expected: dict[bytes, bytes] = {}
    with KeyedStore(tmp_path, memtable_bytes=1000, sync="none") as store:
        for number in range(600):
            key = b"%04d" % (number * 7919 % 400)
            if number % 5 == 4:
                store.delete(key)
                expected.pop(key, None)
            else:
                store.put(key, b"%d" % number * 10)
                expected[key] = b"%d" % number * 10
        assert store.upkeep_error is None
        assert 0 < len(store.files) <= sorted_file.MOST_FILES
        assert state(store) == expected
    with KeyedStore(tmp_path) as store:
        assert state(store) == expected
        assert all(store.get(key) == value for key, value in expected.items())
        report = store.compact()
        assert report is not None
        assert (report.rows, report.tombstones) == (len(expected), 0)
        assert [file.path for file in store.files] == [report.path]
        assert sorted(tmp_path.glob("*.parquet")) == [Path(report.path)]
        assert store.compact() == report


def test_flush_truncates_the_log_and_returns_a_report(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put_many({b"%05d" % n: b"v" * 100 for n in range(2000)})
        store.delete(b"00001")
        before = sum(f.stat().st_size for f in (tmp_path / "wal").iterdir())
        report = store.flush()
        assert report is not None
        assert (report.rows, report.tombstones) == (2000, 1)
        assert report.size_bytes == Path(report.path).stat().st_size
        assert report.flushed_seq_num == 2002
        assert sum(f.stat().st_size for f in (tmp_path / "wal").iterdir()) < before / 10
        assert store.flush() is None


def test_compaction_after_deleting_every_key_leaves_no_file(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        assert store.compact() is None
        store.put("a", "1")
        store.flush()
        store.delete("a")
        assert store.compact() is None
        assert store.files == []
        assert list(tmp_path.glob("*.parquet")) == []
        store.put("b", "1")
    with KeyedStore(tmp_path) as store:
        assert state(store) == {b"b": b"1"}


def test_merge_works_range_by_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_file.groups, "__defaults__", (4, sorted_file.GROUP_BYTES))
    monkeypatch.setattr(sorted_file.ranges, "__defaults__", (10, sorted_file.MERGE_BYTES))
    expected: dict[bytes, bytes] = {}
    with KeyedStore(tmp_path) as store:
        for turn in range(4):
            puts = {b"%03d" % n: b"%d" % turn for n in range(turn, 100, turn + 1)}
            store.put_many(puts)
            expected |= puts
            for n in range(turn, 100, 13):
                store.delete(b"%03d" % n)
                expected.pop(b"%03d" % n, None)
            store.flush()
        assert store.compact() is not None
        assert state(store) == expected


def test_merge_without_the_oldest_file_keeps_tombstones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_file.compaction, "__defaults__", (3,))
    with KeyedStore(tmp_path) as store:
        store.put_many({b"%04d" % n: b"%d" % n * 20 for n in range(3000)})
        store.flush()
        (oldest,) = store.files
        store.delete("0007")
        store.flush()
        for number in range(2):
            store.put("new", str(number))
            store.flush()
        assert [file.path == oldest.path for file in store.files] == [True, False]
        assert [file.tombstones for file in store.files] == [0, 1]
        assert store.get("0007") is None
    with KeyedStore(tmp_path) as store:
        assert store.get("0007") is None
        assert store.get("0008") is not None
        assert store.scan("0006", "0009")["key"].to_list() == [b"0006", b"0008"]


def test_memory_of_a_merge_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_file.groups, "__defaults__", (sorted_file.GROUP_ROWS, 2_000))
    monkeypatch.setattr(sorted_file.ranges, "__defaults__", (sorted_file.MERGE_ROWS, 10_000))
    held: list[int] = []
    newest = rows.newest

    def counted(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
        frames = list(frames)
        held.append(sum(int(frame.estimated_size()) for frame in frames))
        return newest(frames)

    with KeyedStore(tmp_path) as store:
        for turn in range(3):
            store.put_many({b"%03d" % n: b"%d" % turn * 900 for n in range(turn, 100, turn + 1)})
            store.flush()
        monkeypatch.setattr(rows, "newest", counted)
        report = store.compact()
        assert report is not None
        assert report.rows == 100
        assert len(held) > 5
        assert max(held) < 20_000


def test_file_names_are_never_reused(tmp_path: Path) -> None:
    names: list[str] = []
    for turn in range(4):
        with KeyedStore(tmp_path) as store:
            store.put("a", str(turn))
            store.flush()
            names += [file.path for file in store.files]
            store.delete("a")
            store.compact()
            assert store.files == []
    assert names == sorted(set(names))


def test_foreign_files_in_the_directory_are_not_deleted(tmp_path: Path) -> None:
    for name in ("notes.txt", "user.parquet", "1.tmp"):
        (tmp_path / name).write_text("user data")
    KeyedStore(tmp_path).close()
    (tmp_path / f"{7:020}.tmp").write_text("left by a crash")
    (tmp_path / f"{5:020}.parquet").write_text("left by a crash")
    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        report = store.flush()
        assert report is not None
        assert Path(report.path).name == f"{8:020}.parquet", "no name is used twice"
    found = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert found == {"notes.txt", "user.parquet", "1.tmp", "manifest.json", f"{8:020}.parquet"}


def test_delete_in_a_table_ignores_the_value_of_its_row(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put_many({"a": "1", "b": "2"})
        store.put_table(pl.DataFrame({"key": ["a"], "value": ["old"], "op": ["DELETE"]}))
        assert (store.get("a"), state(store)) == (None, {b"b": b"2"})
    for flushes in (False, True):
        with KeyedStore(tmp_path) as store:
            if flushes:
                store.flush()
            assert (store.get("a"), state(store)) == (None, {b"b": b"2"})


def test_documented_duckdb_and_polars_queries_return_the_contents(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put_many({"a": "1", "b": "", "c": "3"})
        store.flush()
        store.put("a", "9")
        store.delete("c")
        store.flush()
        expected = [(b"a", b"9"), (b"b", b"")]
        names = [file.path for file in store.files]
        found = duckdb.execute(
            f"SELECT key, value FROM read_parquet({names}) QUALIFY row_number() OVER "
            "(PARTITION BY key ORDER BY seqNum DESC) = 1 AND op = 'PUT' ORDER BY key"
        ).fetchall()
        assert found == expected
        frame = pl.scan_parquet(names).sort("seqNum").unique("key", keep="last")
        frame = frame.filter(pl.col("op") == "PUT").sort("key").select("key", "value")
        assert frame.collect().rows() == expected
        store.compact()
        plain = duckdb.execute(f"SELECT key, value FROM '{tmp_path}/*.parquet'").fetchall()
        assert plain == expected


def test_directory_of_a_log_raises_and_is_not_modified(tmp_path: Path) -> None:
    with KeyedStore(tmp_path / "store") as store:
        store.put("a", "1")
    with lakelog.WriteAheadLog(tmp_path / "log") as log:
        log.append("PUT", "a", "1")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "000001.wal").touch()
    for directory in (tmp_path / "store" / "wal", tmp_path / "log", tmp_path / "old"):
        before = sorted(directory.iterdir())
        for read_only in (False, True):
            with pytest.raises(InvalidInputError, match="not a keyed store"):
                KeyedStore(directory, read_only=read_only)
        assert sorted(directory.iterdir()) == before


def test_put_table_accepts_arrow_polars_and_pandas_tables(tmp_path: Path) -> None:
    table = pl.DataFrame({"key": ["a", "b"], "value": ["1", None], "op": ["PUT", "DELETE"]})
    coded = table.with_columns(pl.col("key", "op").cast(pl.Categorical))
    arrow = table.to_arrow()
    entries = arrow.set_column(0, "key", arrow["key"].combine_chunks().dictionary_encode())
    tables = (table.lazy(), coded, arrow.to_reader(), entries, arrow.to_pandas())
    with KeyedStore(tmp_path, "none") as store:
        for each in (*tables, *arrow.to_batches()):
            store.put_many({"a": "0", "b": "0"})
            store.put_table(each)
            assert state(store) == {b"a": b"1"}
        for wrong in (None, [table], {"key": ["a"]}, pa.array([1])):
            with pytest.raises(InvalidInputError, match="an Arrow or a Polars table"):
                store.put_table(wrong)
        pairs: list[Any] = [None, [("a",)], 5, [("a", "b", "c")]]
        for none in pairs:
            with pytest.raises(InvalidInputError, match="keys and values"):
                store.put_many(none)
        assert state(store) == {b"a": b"1"}


@pytest.mark.parametrize("call", ["flush", "compact"])
@pytest.mark.parametrize("deleted_lock", [True, False])
def test_writer_without_its_lock_changes_no_file_of_the_next_writer(
    tmp_path: Path, call: str, deleted_lock: bool
) -> None:
    first = KeyedStore(tmp_path / "store")
    first.put("a", "1")
    first.flush()
    first.put("b", "2")
    if call == "compact":
        first.flush()
    if deleted_lock:
        (tmp_path / "store" / "wal" / "wal.lock").unlink()
    else:
        (tmp_path / "store").rename(tmp_path / "moved")
    with KeyedStore(tmp_path / "store") as second:
        second.put("c", "3")
        second.flush()
        second.put("d", "4")
        second.compact()
        with pytest.raises(OutcomeUnknownError, match="lock file"):
            getattr(first, call)()
    first.close()
    with KeyedStore(tmp_path / "store") as again:
        kept = {b"c": b"3", b"d": b"4"}
        assert state(again) == (kept | {b"a": b"1", b"b": b"2"} if deleted_lock else kept)


@pytest.mark.parametrize("read_only", [True, False])
def test_files_of_another_log_in_the_directory_are_named(tmp_path: Path, read_only: bool) -> None:
    with lakelog.WriteAheadLog(tmp_path / "log") as log:
        log.append("PUT", "a", "1")
    with KeyedStore(tmp_path / "store") as store:
        store.put("b", "2")
    name = "00000000000000000001.wal"
    shutil.copy(tmp_path / "log" / name, tmp_path / "store")
    with pytest.raises(InvalidInputError, match="files of another write-ahead log") as refused:
        KeyedStore(tmp_path / "store", read_only=read_only)
    assert refused.value.found == name
    (tmp_path / "store" / name).unlink()
    with KeyedStore(tmp_path / "store", read_only=read_only) as store:
        assert state(store) == {b"b": b"2"}
