"""Reading while a writer runs: a consistent state of the store, and no byte written."""

from __future__ import annotations

import os
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
from tests.faults.killers import asked
from tests.wal.crash_disk import CrashDisk, Operation, quiet

KILLER = Path(__file__).with_name("keyed_killer.py")
PATH = "store"

State = dict[bytes, bytes]


def state(store: KeyedStore) -> State:
    found = store.scan()
    return dict(zip(found["key"], found["value"], strict=True))


def test_a_reader_sees_the_moment_it_was_opened_or_refreshed(tmp_path: Path) -> None:
    with KeyedStore(tmp_path) as store:
        store.put("a", "1")
        with KeyedStore(tmp_path, read_only=True) as reader:
            assert state(reader) == {b"a": b"1"}
            assert reader.files == []
            moments: list[State] = [{b"a": b"1"}]
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
                assert state(reader) == moments[-1], "also of files that are gone"
                assert reader.get("a") == moments[-1].get(b"a")
                reader.refresh()
                moments.append(state(store))
                assert state(reader) == moments[-1]
                assert reader.files == store.files
            assert moments[-1] == {}
            store.refresh()
            assert state(store) == {}


def test_a_reader_keeps_open_the_files_that_stay(tmp_path: Path) -> None:
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


def test_a_reader_writes_nothing() -> None:
    disk = CrashDisk()
    with KeyedStore(PATH, disk=disk) as store:
        store.put("a", "1")
        store.flush()
        store.put("b", "2")
    disk.put(f"{PATH}/{7:020}.tmp", disk.contents()[f"{PATH}/manifest.json"])  # of a crash
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


def test_where_no_store_is_none_is_made(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotFoundError, match="keyed store not found"):
            KeyedStore(place, read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "wal").mkdir()
    with pytest.raises(NotFoundError, match="keyed store not found"):
        KeyedStore(tmp_path, read_only=True)


def test_what_is_missing_or_damaged_is_told_to_a_reader_as_to_a_writer() -> None:
    for lost, told in (
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
        for read_only in (True, False):
            with pytest.raises(CorruptionError, match=told):
                KeyedStore(PATH, read_only=read_only, disk=disk)


STEPS: tuple[Callable[[KeyedStore], object], ...] = (
    lambda store: store.put("a", "1"),
    lambda store: store.flush(),
    lambda store: store.put_many({"a": "2", "b": "3"}),
    lambda store: store.flush(),
    lambda store: store.delete("a"),
    lambda store: store.compact(),
    lambda store: store.put("c", "4"),
)


def test_a_reader_that_opens_while_the_writer_is_at_any_operation() -> None:
    disk = CrashDisk()
    acknowledged: list[State] = [{}]
    seen: list[State] = []

    def look(operation: Operation) -> None:
        disk.watch = quiet
        with KeyedStore(PATH, read_only=True, disk=disk) as reader:
            seen.append(state(reader))
        disk.watch = look

    with KeyedStore(PATH, disk=disk) as store:
        for step in STEPS:
            seen.clear()
            disk.watch = look
            step(store)
            disk.watch = quiet
            acknowledged.append(state(store))
            assert seen
            assert all(each in acknowledged[-2:] for each in seen)
            order = [acknowledged.index(each) for each in seen]
            assert order == sorted(order), "what was seen once stays"


def seen_while(disk: CrashDisk, store: KeyedStore, at: set[int]) -> tuple[State, int]:
    """The state that a reader sees while a writer overtakes it; the number of its operations."""
    turns = 0

    def write(operation: Operation) -> None:
        nonlocal turns
        turns += 1
        if turns in at:
            disk.watch = quiet
            store.put("d", str(turns))
            store.compact()
            disk.watch = write

    disk.watch = write
    with KeyedStore(PATH, read_only=True, disk=disk) as reader:
        found = state(reader)
    disk.watch = quiet
    return found, turns


def test_a_writer_that_flushes_and_merges_while_a_reader_opens() -> None:
    number = turns = 0
    while number <= turns:
        number += 1
        disk = CrashDisk()
        with KeyedStore(PATH, disk=disk) as store:
            for step in STEPS:
                step(store)
            before = state(store)
            at = {number, number + 5}
            found, turns = seen_while(disk, store, at)
            assert found in [before, *(before | {b"d": b"%d" % n} for n in at)]
    assert number > 8


def test_a_reader_gives_up_on_a_store_that_never_holds_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashDisk()
    with KeyedStore(PATH, disk=disk) as store:
        store.put("a", "1")
        store.flush()
        room = store._files_directory
        monkeypatch.setattr("lakelog.keyed.opening._ATTEMPTS", 3)

        def write(operation: Operation) -> None:
            disk.watch = quiet
            if operation.kind == "read":
                room.publish(1, store._view.files)
                for path in list(disk.contents()):
                    if path.endswith(".parquet"):
                        disk.put(path, b"another one")
            disk.watch = write

        disk.watch = write
        with pytest.raises(UnavailableError, match="changes too fast"):
            KeyedStore(PATH, read_only=True, disk=disk)
        disk.watch = quiet


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_another_process_is_read_while_it_writes_and_is_killed(tmp_path: Path) -> None:
    """The process puts every number under two keys in one batch, prints it, flushes and merges."""
    rounds = max(2, int(os.environ.get("LAKELOG_ROUNDS", "0")))
    acknowledged = 0
    generations = set()
    with asked(KILLER) as ask:
        for _ in range(rounds):
            answers = ask({"directory": str(tmp_path), "from": acknowledged + 1})
            assert answers.readline() == "opened\n"
            with KeyedStore(tmp_path, read_only=True) as reader:
                with pytest.raises(LogLockedError):
                    KeyedStore(tmp_path)
                last = acknowledged
                for _ in range(40):
                    acknowledged = told(answers, "wrote")
                    reader.refresh()
                    found = state(reader)
                    last = check(found, at_least=max(last, acknowledged))
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
                acknowledged = check(state(store), at_least=acknowledged)
    assert len(generations) > 3


def told(answers: Any, expected: str) -> int:
    word, number = answers.readline().split()
    assert word == expected
    return int(number)


def check(found: State, at_least: int) -> int:
    """Assert that all numbers up to one exist, under both keys and no others."""
    last = len(found) // 2
    expected = {
        b"%s/%06d" % (lane, n): b"%d" % n for lane in (b"a", b"b") for n in range(1, last + 1)
    }
    assert found == expected
    assert last >= at_least
    return last
