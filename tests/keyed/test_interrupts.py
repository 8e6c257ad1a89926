"""A keyed store whose callers are interrupted or forked: no data is lost, no caller hangs."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.errors import InvalidInputError
from lakelog.keyed import sorted_file
from lakelog.keyed.memtable import Memtable
from lakelog.keyed.store import KeyedStore, SharedLock


def test_lock_is_free_after_an_interrupt_while_waiting_for_exclusive_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = SharedLock()

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with lock.shared():
        monkeypatch.setattr(lock._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), lock.exclusive():
            pass
        monkeypatch.undo()
    passed = threading.Thread(target=lambda: lock.shared().__enter__(), daemon=True)
    passed.start()
    passed.join(120)
    assert not passed.is_alive()


@pytest.mark.parametrize("flushed_before", [False, True])
def test_flush_includes_records_that_an_interrupt_kept_out_of_the_memtable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed_before: bool
) -> None:
    def interrupted(self: Memtable, *record: object) -> None:
        raise KeyboardInterrupt

    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        if flushed_before:
            store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(Memtable, "put", interrupted)
            patch.setattr(Memtable, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.put("b", "2")
            with pytest.raises(KeyboardInterrupt):
                store.put_many({"c": "3"})
        store.put("d", "4")
        report = store.flush()
        assert report is not None
        assert report.rows == 3 + (not flushed_before)
        assert store.flush() is None
        found = store.scan()
    with KeyedStore(tmp_path) as store:
        assert store.scan().equals(found)
        assert found["key"].to_list() == [b"a", b"b", b"c", b"d"]
        assert found["seqNum"].to_list() == [1, 2, 3, 5]


def test_interrupted_flush_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        with monkeypatch.context() as patch:
            patch.setattr(sorted_file._Seen, "facts", fails)
            with pytest.raises(KeyboardInterrupt):
                store.flush()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["wal"]
        assert store.get("a") == b"1"
        assert store.flush() is not None


def test_forked_process_cannot_use_the_store_but_can_close_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KeyedStore(tmp_path) as store:
        for number in range(2):
            store.put("a", str(number))
            store.flush()
        before = sorted(path.name for path in tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            for use in (store.flush, store.compact, store.scan, lambda: store.get("a")):
                with pytest.raises(InvalidInputError, match="another process"):
                    use()
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        fork = object.__new__(KeyedStore)
        fork.__dict__ |= store.__dict__ | {
            "_upkeep": threading.Lock(),
            "_access": replace(store._access),
        }
        fork._upkeep.acquire()  # a thread of the parent may have held the lock
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            fork.close()
        assert store.put("a", "2") == 3
