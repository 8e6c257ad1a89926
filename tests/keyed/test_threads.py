"""Concurrent writers, readers and flushes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lakelog.keyed.store import KeyedStore, SharedLock
from lakelog.wal.frames import Op
from lakelog.wal.log import WriteAheadLog
from tests.concurrency import run_concurrently


def test_concurrent_puts_gets_scans_flushes_and_merges(tmp_path: Path) -> None:
    store = KeyedStore(tmp_path, sync="none", memtable_bytes=6_000)
    done = threading.Event()

    def write(lane: int) -> None:
        for n in range(400):
            key = b"%d/%03d" % (lane, n % 50)
            if n % 7 == 6:
                store.delete(key)
                assert store.get(key) is None
            else:
                store.put(key, b"%d" % n)
                assert store.get(key) == b"%d" % n

    def writers() -> None:
        run_concurrently(*(lambda lane=lane: write(lane) for lane in range(4)))
        done.set()

    def maintain() -> None:
        while not done.is_set():
            store.flush()
            store.compact()

    def read() -> None:
        while not done.is_set():
            found = store.scan("0/", "3/")
            assert found["key"].is_sorted()
            assert found["key"].n_unique() == found.height

    run_concurrently(writers, maintain, read)
    expected = {}
    for lane in range(4):
        for n in range(400):
            key = b"%d/%03d" % (lane, n % 50)
            expected[key] = None if n % 7 == 6 else b"%d" % n
    live = {key: value for key, value in expected.items() if value is not None}
    for reopened in (False, True):
        if reopened:
            store.close()
            store = KeyedStore(tmp_path)
        found = store.scan()
        assert dict(zip(found["key"], found["value"], strict=True)) == live
    assert store.upkeep_error is None
    store.close()


def test_flush_waits_for_a_record_between_the_log_and_the_memtable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended, resume = threading.Event(), threading.Event()
    append = WriteAheadLog.append

    def slow(self: WriteAheadLog, op: Op, key: bytes, value: bytes | None = None) -> int:
        seq_num = append(self, op, key, value)
        if key == b"slow":
            appended.set()
            assert resume.wait(60)
        return seq_num

    monkeypatch.setattr(WriteAheadLog, "append", slow)
    store = KeyedStore(tmp_path)
    store.put("first", "1")
    writer = threading.Thread(target=store.put, args=("slow", "2"))
    writer.start()
    assert appended.wait(60)
    flusher = threading.Thread(target=store.flush)
    flusher.start()
    time.sleep(0.05)
    assert flusher.is_alive()
    assert store.files == []
    resume.set()
    writer.join()
    flusher.join()
    assert [file.rows for file in store.files] == [2]
    store.close()
    with KeyedStore(tmp_path) as again:
        assert again.get("slow") == b"2"


def test_put_during_a_flush_stays_in_the_memtable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyedStore(tmp_path)
    store.put("a", "old")
    write = store._files_directory.write

    def writing(chunks: Any) -> Any:
        store.put("a", "new")
        store.delete("b")
        assert store.get("a") == b"new"
        assert store.scan()["value"].to_list() == [b"new"]
        return write(chunks)

    monkeypatch.setattr(store._files_directory, "write", writing)
    report = store.flush()
    assert report is not None
    assert (report.rows, report.flushed_seq_num) == (1, 1)
    assert store.get("a") == b"new"
    store.close()
    with KeyedStore(tmp_path) as again:
        assert again.get("a") == b"new"


def test_exclusive_lock_excludes_other_threads() -> None:
    lock = SharedLock()
    inside = 0
    counts: list[int] = []

    def hold_shared() -> None:
        nonlocal inside
        for _ in range(300):
            with lock.shared():
                inside += 1
                inside -= 1

    def hold_exclusive() -> None:
        for _ in range(100):
            with lock.exclusive():
                counts.append(inside)

    run_concurrently(hold_shared, hold_shared, hold_exclusive, hold_exclusive)
    assert set(counts) == {0}
