"""Reading while a writer runs: a consistent state of the store, and no byte written."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LogLockedError,
    NotFoundError,
    UnavailableError,
)
from lakelog.keyed import manifest
from lakelog.keyed.store import KeyedStore
from tests.faults.killers import killer_process
from tests.keyed.test_store import state
from tests.wal.crash_disk import CrashDisk, Operation, quiet

KILLER = Path(__file__).with_name("keyed_killer.py")
PATH = "store"

State = dict[bytes, bytes]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("read_only", [False, True])
def test_store_cannot_be_copied(
    tmp_path: Path, duplicate: Callable[[Any], Any], *, read_only: bool
) -> None:
    KeyedStore(tmp_path).close()
    with KeyedStore(tmp_path, read_only=read_only) as store:
        with pytest.raises(InvalidInputError, match="keyed store cannot be copied") as raised:
            duplicate(store)
        assert raised.value.path == str(tmp_path)


def test_reader_sees_the_state_of_its_opening_or_last_refresh(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        with KeyedStore(tmp_path, read_only=True) as reader:
            assert state(reader) == {b"a": b"1"}
            assert reader.files == []
            snapshots: list[State] = [{b"a": b"1"}]
            for step in (
                lambda: store.put("b", "2"),
                store.flush,
                lambda: store.delete("a"),
                store.flush,
                store.compact,
                lambda: store.delete("b"),
                store.compact,
            ):
                step()
                assert state(reader) == snapshots[-1], "deleted files must still be read"
                assert reader.get("a") == snapshots[-1].get(b"a")
                reader.refresh()
                snapshots.append(state(store))
                assert state(reader) == snapshots[-1]
                assert reader.files == store.files
            assert snapshots[-1] == {}
            store.refresh()
            assert state(store) == {}


def test_reader_follows_a_store_that_was_created_again(tmp_path: Path) -> None:
    with KeyedStore(tmp_path / "store") as store:
        store.put("a", "old")
        store.flush()
    with KeyedStore(tmp_path / "store", read_only=True) as reader:
        assert reader.get("a") == b"old"
        shutil.rmtree(tmp_path / "store")
        with KeyedStore(tmp_path / "store") as store:
            store.put("a", "new")
            store.put("b", "x")
            store.flush()
        reader.refresh()
        assert (reader.get("a"), reader.get("b")) == (b"new", b"x")


def test_refresh_reuses_open_files_that_are_still_current(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        store.flush()
        with KeyedStore(tmp_path, read_only=True) as reader:
            (before,) = reader._view.files
            store.put("b", "2")
            store.flush()
            reader.refresh()
            assert reader._view.files[0] is before
            assert reader.get("b") == b"2"


def test_reader_writes_nothing() -> None:
    disk = CrashDisk()
    with KeyedStore(PATH, disk=disk) as store:
        store.put("a", "1")
        store.flush()
        store.put("b", "2")
    disk.put(f"{PATH}/{7:020}.tmp", disk.contents()[f"{PATH}/manifest.json"])  # left by a crash
    before = disk.contents()

    def watch(operation: Operation) -> None:
        assert operation.kind in {"list", "read"}

    disk.watch = watch
    with KeyedStore(PATH, read_only=True, disk=disk) as reader:
        reader.refresh()
        assert state(reader) == {b"a": b"1", b"b": b"2"}
        for use in (
            lambda: reader.put("c", "3"),
            lambda: reader.put_many({"c": "3"}),
            lambda: reader.delete("a"),
            reader.flush,
            reader.compact,
        ):
            with pytest.raises(InvalidInputError, match="reading only"):
                use()
    with pytest.raises(InvalidInputError, match="closed"):
        reader.refresh()
    assert disk.contents() == before


def test_reader_of_a_missing_store_raises_and_creates_nothing(tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(NotFoundError, match="keyed store not found"):
            KeyedStore(directory, read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "wal").mkdir()
    with pytest.raises(NotFoundError, match="keyed store not found"):
        KeyedStore(tmp_path, read_only=True)


def test_missing_files_raise_the_same_error_for_readers_and_writers() -> None:
    for lost, message in (
        (manifest.NAME, "manifest of the keyed store is missing"),
        (f"{1:020}.parquet", "sorted file of the keyed store is missing"),
        ("wal", "log of the keyed store is missing"),
    ):
        disk = CrashDisk()
        with KeyedStore(PATH, disk=disk) as store:
            store.put("a", "1")
            store.flush()
        for name in disk.contents():
            if name.startswith(f"{PATH}/{lost}"):
                disk.put(name, None)
        before = {name: data for name, data in disk.contents().items() if "/wal/" not in name}
        for read_only in (True, False):
            with pytest.raises(CorruptionError, match=message) as caught:
                KeyedStore(PATH, read_only=read_only, disk=disk)
            assert str(caught.value.path).startswith(f"{PATH}/{lost}")
            assert disk.contents().items() >= before.items(), "no file is a leftover"
            assert lost != "wal" or disk.contents() == before, "no log is created"


STEPS: tuple[Callable[[KeyedStore], object], ...] = (
    lambda store: store.put("a", "1"),
    lambda store: store.flush(),
    lambda store: store.put_many({"a": "2", "b": "3"}),
    lambda store: store.flush(),
    lambda store: store.delete("a"),
    lambda store: store.compact(),
    lambda store: store.put("c", "4"),
)


def test_reader_opened_at_any_operation_of_the_writer_sees_an_acknowledged_state() -> None:
    disk = CrashDisk()
    acknowledged: list[State] = [{}]
    seen: list[State] = []

    def read(operation: Operation) -> None:
        disk.watch = quiet
        with KeyedStore(PATH, read_only=True, disk=disk) as reader:
            seen.append(state(reader))
        disk.watch = read

    with KeyedStore(PATH, disk=disk) as store:
        for step in STEPS:
            seen.clear()
            disk.watch = read
            step(store)
            disk.watch = quiet
            acknowledged.append(state(store))
            assert seen
            assert all(each in acknowledged[-2:] for each in seen)
            order = [acknowledged.index(each) for each in seen]
            assert order == sorted(order), "a later reader must not see an older state"


def state_read_during_writes(disk: CrashDisk, store: KeyedStore, at: set[int]) -> tuple[State, int]:
    """The state read while the writer changes the store, and the reader's number of operations."""
    operations = 0

    def write(operation: Operation) -> None:
        nonlocal operations
        operations += 1
        if operations in at:
            disk.watch = quiet
            store.put("d", str(operations))
            store.compact()
            disk.watch = write

    disk.watch = write
    with KeyedStore(PATH, read_only=True, disk=disk) as reader:
        found = state(reader)
    disk.watch = quiet
    return found, operations


def test_reader_opened_during_a_flush_and_a_merge_sees_a_consistent_state() -> None:
    number = operations = 0
    while number <= operations:
        number += 1
        disk = CrashDisk()
        with KeyedStore(PATH, disk=disk) as store:
            for step in STEPS:
                step(store)
            before = state(store)
            at = {number, number + 5}
            found, operations = state_read_during_writes(disk, store, at)
            assert found in [before, *(before | {b"d": b"%d" % n} for n in at)]
    assert number > 8


def test_reader_raises_if_the_store_changes_during_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashDisk()
    with KeyedStore(PATH, disk=disk) as store:
        store.put("a", "1")
        store.flush()
        files_directory = store._files_directory
        monkeypatch.setattr("lakelog.keyed.opening._ATTEMPTS", 3)

        def write(operation: Operation) -> None:
            disk.watch = quiet
            if operation.kind == "read":
                files_directory.publish(1, store._view.files)
                for path in list(disk.contents()):
                    if path.endswith(".parquet"):
                        disk.put(path, b"another one")
            disk.watch = write

        disk.watch = write
        with pytest.raises(UnavailableError, match="changes too fast"):
            KeyedStore(PATH, read_only=True, disk=disk)
        disk.watch = quiet


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_store_of_another_process_is_read_while_it_writes_and_after_its_kill(
    tmp_path: Path,
) -> None:
    """The process puts every number under two keys in one batch, prints it, flushes and merges."""
    rounds = max(2, int(os.environ.get("LAKELOG_ROUNDS", "0")))
    acknowledged = 0
    generations = set()
    with killer_process(KILLER) as ask:
        for _ in range(rounds):
            answers = ask({"directory": str(tmp_path), "from": acknowledged + 1})
            assert answers.readline() == "opened\n"
            with KeyedStore(tmp_path, read_only=True) as reader:
                with pytest.raises(LogLockedError):
                    KeyedStore(tmp_path)
                last = acknowledged
                for _ in range(40):
                    acknowledged = number_of_event(answers, "wrote")
                    reader.refresh()
                    found = state(reader)
                    last = check_numbers(found, at_least=max(last, acknowledged))
                    assert reader.get(b"b/%06d" % last) == b"%d" % last
                    generations.add(reader._view.manifest.generation)
            ask({"kill": True})
            for line in answers:
                word, number = line.split()
                if word == "ended":
                    break
                acknowledged = int(number)
            assert int(number) == -signal.SIGKILL
            with KeyedStore(tmp_path) as store:
                acknowledged = check_numbers(state(store), at_least=acknowledged)
    assert len(generations) > 3


def number_of_event(answers: Any, expected: str) -> int:
    word, number = answers.readline().split()
    assert word == expected
    return int(number)


def check_numbers(found: State, at_least: int) -> int:
    """Check that the store has each number up to the last under both keys; return the last."""
    last = len(found) // 2
    expected = {
        b"%s/%06d" % (lane, n): b"%d" % n for lane in (b"a", b"b") for n in range(1, last + 1)
    }
    assert found == expected
    assert last >= at_least
    return last
