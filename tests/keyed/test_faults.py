"""A keyed store whose disk operations each fail in turn, or are the last one of its process."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import pytest

from lakelog.errors import CorruptionError, LakelogError, OutcomeUnknownError, UnavailableError
from lakelog.keyed import manifest
from lakelog.keyed.store import KeyedStore
from lakelog.wal.log import WriteAheadLog
from tests.budget import IS_WHOLE, points, seed_of
from tests.wal.crash_disk import CHANGES, Counting, Crash, CrashDisk, Operation, crash, fail, quiet

Step = tuple[Any, ...]
State = dict[bytes, bytes]

PATH = "store"
SEED = int(os.environ.get("LAKELOG_SEED", "20261121"))
ROUNDS = int(os.environ.get("LAKELOG_ROUNDS", "1"))

STEPS: Sequence[Step] = (
    ("put", b"a", b"1"),
    ("put", b"b", b"2"),
    ("delete", b"a"),
    ("flush",),
    ("put", b"a", b""),
    ("put_many", {b"c": b"3", b"d": b"4", b"a": b"5"}),
    ("delete", b"b"),
    ("flush",),
    ("put", b"e", b"6"),
    ("delete", b"d"),
    ("compact",),
    ("put", b"d", b"7"),
    ("delete", b"a"),
    ("delete", b"c"),
    ("flush",),
    ("put", b"f", b"8" * 600),
    ("compact",),
    ("delete", b"e"),
    ("flush",),
    ("flush",),
)


def apply(state: State, step: Step) -> State:
    """The expected content after a step."""
    name, *arguments = step
    if name == "put":
        return {**state, arguments[0]: arguments[1]}
    if name == "put_many":
        return {**state, **arguments[0]}
    if name == "delete":
        return {key: value for key, value in state.items() if key != arguments[0]}
    return state


def do(store: KeyedStore, step: Step) -> None:
    name, *arguments = step
    getattr(store, name)(*arguments)


def contents(store: KeyedStore) -> State:
    found = store.scan()
    state = dict(zip(found["key"], found["value"], strict=True))
    assert found["key"].to_list() == sorted(state)
    for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
        assert store.get(key) == state.get(key)
    return state


def check_without_manifest(disk: CrashDisk, told: str) -> None:
    """Verify that a reader of all files finds at least the content of the manifest's files."""
    files = {os.path.basename(name): data for name, data in disk.contents().items()}
    current = manifest.StoreManifest()
    if manifest.NAME in files:
        current = manifest.decode(files[manifest.NAME], manifest.NAME)
    named = {name for name, _ in current.files}
    every = {name for name in files if name.endswith(".parquet")}
    assert named <= every, told
    if named == every:
        return

    def view(names: set[str]) -> list[tuple[bytes, bytes]]:
        rows = pl.concat(pl.read_parquet(files[name]) for name in names)
        rows = rows.filter(pl.col("seqNum") <= current.flushed_seq_num)
        rows = rows.sort("seqNum").unique("key", keep="last").filter(pl.col("op") == "PUT")
        return rows.select("key", "value").sort("key").rows()

    assert view(every) == (view(named) if named else []), told


def check_reopened(disk: CrashDisk, allowed: Sequence[State], told: str) -> None:
    """Open the files that remain, verify their content, and verify that the store can continue."""
    check_without_manifest(disk, told)
    with KeyedStore(PATH, disk=disk) as store:
        found = contents(store)
        assert found in allowed, told
        named = {os.path.basename(file.path) for file in store.files}
        left = {os.path.basename(name) for name in disk.contents() if name.count("/") == 1}
        assert left - {manifest.NAME} == named, f"{told}: leftovers"
        store.put(b"z", b"new")
        store.flush()
    with KeyedStore(PATH, disk=disk) as store:
        assert contents(store) == found | {b"z": b"new"}, told
        store.compact()
        assert contents(store) == found | {b"z": b"new"}, told


@dataclass(frozen=True)
class Left:
    """The files that remain of a run that ended before an operation.

    Attributes:
        disk: The disk after a crash; a seed decides which unsynced writes survive.
        allowed: The contents that the store may have then.
        told: A description of that operation.
    """

    disk: CrashDisk
    allowed: Sequence[State]
    told: str


Ways = Sequence[Callable[[CrashDisk, Operation], CrashDisk]]


def crashes(ways: Callable[[int], Ways], sync: Literal["sync", "none"] = "sync") -> list[Left]:
    """All steps, and a crash before each operation of the disk, in ways that depend on its number.

    A state that occurred before with the same allowed contents is skipped.
    """
    disk = CrashDisk()
    states: list[State] = [{}]
    step: Step = ("open",)
    found: list[Left] = []
    number = 0
    seen = set()

    def stop(operation: Operation) -> None:
        nonlocal number
        number += 1
        allowed = [*states, apply(states[-1], step)]
        for n, way in enumerate(ways(number)):
            left = way(disk, operation)
            told = f"seed {SEED}, killed at operation {number}, {operation.kind} in {step}, way {n}"
            key = repr((sorted(left.contents().items()), allowed))
            if key not in seen:
                seen.add(key)
                found.append(Left(left, allowed, told))

    disk.watch = stop
    store = KeyedStore(PATH, disk=disk, sync=sync)
    for each in STEPS:
        step = each
        do(store, step)
        states.append(apply(states[-1], step))
        if sync == "sync" or step[0] in {"flush", "compact"}:
            del states[:-1]
    step = ("close",)
    store.close()
    assert number > 100
    return found


def ways_of(rng: random.Random, random_ways: int) -> Callable[[int], Ways]:
    """Ways to crash: all writes survive, only synced ones, or a random part, in turns."""

    def synced(disk: CrashDisk, operation: Operation) -> CrashDisk:
        return disk.clone(None)

    def some(disk: CrashDisk, operation: Operation) -> CrashDisk:
        return disk.clone(rng)

    return lambda number: [(CrashDisk.killed, synced, some)[number % 3], *[some] * random_ways]


def share_of_all(found: list[Left]) -> list[Left]:
    """One crash in three, from a start that changes every day."""
    return found if IS_WHOLE else found[seed_of("crashes") % 3 :: 3]


def interrupted(operation: Operation) -> None:
    raise KeyboardInterrupt


FAILURES = {"EIO": fail(errno.EIO, 0.5), "ENOSPC": fail(errno.ENOSPC, 0.5), "Ctrl-C": interrupted}
EVERY = CHANGES | {"list", "read", "lock"}


def test_killed_at_any_operation_every_acknowledged_key_is_there() -> None:
    for each in share_of_all(crashes(ways_of(random.Random(SEED), ROUNDS))):
        check_reopened(each.disk, each.allowed, each.told)


def test_without_syncs_a_crash_takes_the_last_records_and_nothing_that_was_flushed() -> None:
    for each in share_of_all(crashes(ways_of(random.Random(SEED), 0), "none")):
        check_reopened(each.disk, each.allowed, each.told)


def test_killed_again_while_it_opens_after_a_crash() -> None:
    rng = random.Random(SEED)
    some = ways_of(rng, 1)
    for each in share_of_all(crashes(lambda number: some(number)[1:] if number % 17 == 0 else ())):
        disk = each.disk
        again: list[CrashDisk] = []
        disk.watch = lambda operation: again.append(disk.clone(rng))  # noqa: B023 - used before the next turn
        KeyedStore(PATH, disk=disk).close()
        assert len(again) > 5
        for second, left in enumerate(again):
            check_reopened(left, each.allowed, f"{each.told}, then at {second} of opening")


@pytest.mark.parametrize("turn", range(min(ROUNDS, len(FAILURES))))
def test_failing_or_interrupted_at_any_operation_it_loses_nothing_and_says_so(turn: int) -> None:
    operations: list[tuple[str, str]] = []
    calm = CrashDisk(watch=lambda operation: operations.append((operation.kind, "")))
    run_past_failures(calm, "calm")
    failed = True
    for number in points(operations):
        name = list(FAILURES)[(number + turn) % len(FAILURES)]
        disk = CrashDisk(watch=Counting(number, FAILURES[name], kinds=EVERY))
        told = f"operation {number} failed with {name}"
        state, failed = run_past_failures(disk, told)
        disk.watch = quiet
        (way,) = ways_of(random.Random(SEED), 0)(number)
        check_reopened(way(disk, Operation("end", "")), [state], told)
    assert not failed
    assert len(operations) > 100


def run_past_failures(disk: CrashDisk, told: str) -> tuple[State, bool]:
    """Run all steps, retrying the failed one once; a poisoned log is opened again.

    Returns:
        The state that was acknowledged; whether anything failed.
    """
    state: State = {}
    failures: list[BaseException] = []
    store: KeyedStore | None = None
    for step in (*STEPS, ("close",)):
        for _ in range(2):
            try:
                store = store or KeyedStore(PATH, disk=disk)
                do(store, step)
                break
            except (LakelogError, KeyboardInterrupt) as error:
                failures.append(error)
            if store is not None:
                # What is in memory is still right, whatever the disk did.
                assert contents(store) == state, told
                store = reopened_if_poisoned(store, disk)
                assert contents(store) in (state, apply(state, step)), told
        else:
            pytest.fail(f"{told}: {step} failed twice")
        state = apply(state, step)
    assert len(failures) <= 1, told
    expected = UnavailableError | OutcomeUnknownError | KeyboardInterrupt
    assert all(isinstance(error, expected) for error in failures), told
    return state, bool(failures)


def reopened_if_poisoned(store: KeyedStore, disk: CrashDisk) -> KeyedStore:
    try:
        store._wal.sync()
    except LakelogError:
        store.close()
        return KeyedStore(PATH, disk=disk)
    return store


def test_a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_there_is_room() -> None:
    disk = CrashDisk()
    store = KeyedStore(PATH, disk=disk, memtable_bytes=300)

    full = Counting(1, fail(errno.ENOSPC), times=1 << 30, kinds=frozenset({"create"}))

    expected = {}
    for number in range(20):
        if number == 5:
            disk.watch = full
        expected[b"%02d" % number] = b"v" * 40
        store.put(b"%02d" % number, b"v" * 40)  # done, though it cannot flush
    assert isinstance(store.upkeep_error, UnavailableError)
    with pytest.raises(UnavailableError, match="sorted file"):
        store.flush()
    found = store.scan()
    assert dict(zip(found["key"], found["value"], strict=True)) == expected
    disk.watch = quiet
    report = store.flush()
    assert report is not None
    store.put(b"99", b"v" * 400)
    told: LakelogError | None = store.upkeep_error
    assert told is None
    store.close()
    with KeyedStore(PATH, disk=disk) as again:
        assert again.scan()["key"].to_list() == [*expected, b"99"]


def flushed_disk() -> CrashDisk:
    disk = CrashDisk()
    with KeyedStore(PATH, disk=disk) as store:
        for number in range(3):
            store.put(b"k%d" % number, b"v")
            store.flush()
        store.put(b"k9", b"v")
    return disk


def test_a_missing_manifest_a_missing_file_and_an_older_log_are_found_out() -> None:
    disk = flushed_disk()
    (name, *_) = sorted(name for name in disk.contents() if name.endswith(".parquet"))
    disk.put(name, None)
    with pytest.raises(CorruptionError, match="missing") as caught:
        KeyedStore(PATH, disk=disk)
    assert caught.value.path == name

    disk = flushed_disk()
    for name in disk.contents():
        if "/wal/" in name:
            disk.put(name, None)
    before = disk.contents()
    with pytest.raises(CorruptionError, match="log of the keyed store is missing"):
        KeyedStore(PATH, disk=disk)
    assert disk.contents() == before, "the log is not made anew, nor are files taken for leftovers"
    disk.put(f"{PATH}/{manifest.NAME}", None)
    with pytest.raises(CorruptionError, match="log of the keyed store is missing"):
        KeyedStore(PATH, disk=disk)
    assert len(disk.contents()) == len(before) - 1

    disk = flushed_disk()
    for name in disk.contents():
        if "/wal/" in name:
            disk.put(name, None)
    WriteAheadLog(f"{PATH}/wal", disk=disk).close()
    with pytest.raises(CorruptionError, match="log of the keyed store is older"):
        KeyedStore(PATH, disk=disk)

    disk = flushed_disk()
    disk.put(f"{PATH}/{manifest.NAME}", None)
    before = disk.contents()
    with pytest.raises(CorruptionError, match="manifest of the keyed store is"):
        KeyedStore(PATH, disk=disk)
    left = disk.contents()
    assert all(left[name] == data for name, data in before.items() if "/wal/" not in name)


def test_a_flush_truncates_what_a_crash_kept_the_one_before_from_truncating() -> None:
    number = 0
    truncated = 0
    while number < 60:
        number += 1
        disk = CrashDisk()
        with KeyedStore(PATH, disk=disk) as store:
            store.put(b"k", b"v" * 5000)
            disk.watch = Counting(number, crash, kinds=EVERY)
            try:
                store.flush()
                break
            except Crash:
                pass
        disk = CrashDisk(disk.contents())
        with KeyedStore(PATH, disk=disk) as store:
            store.flush()
            left = [data for name, data in disk.contents().items() if "/wal/" in name]
            assert sum(map(len, left)) < 1000
            truncated += 1
    assert truncated > 10


def test_an_older_manifest_is_found_out() -> None:
    disk = flushed_disk()
    older = disk.contents()[f"{PATH}/{manifest.NAME}"]
    with KeyedStore(PATH, disk=disk) as store:
        store.flush()
    disk.put(f"{PATH}/{manifest.NAME}", older)
    with pytest.raises(CorruptionError, match="manifest of the keyed store is"):
        KeyedStore(PATH, disk=disk)


def test_a_damaged_file_is_an_error_where_it_is_read_and_stays_as_it_is() -> None:
    disk = flushed_disk()
    name = min(name for name in disk.contents() if name.endswith(".parquet"))
    data = bytearray(disk.contents()[name])
    data[8] ^= 1
    disk.put(name, bytes(data))
    with KeyedStore(PATH, disk=disk) as store:
        assert store.get(b"k1") == b"v"
        for read in (lambda: store.get(b"k0"), store.scan, store.compact):
            with pytest.raises(CorruptionError) as caught:
                read()
            assert caught.value.path == name
            assert caught.value.byte_offset == 4
        left = {path for path in disk.contents() if path.count("/") == 1}
        assert left == {file.path for file in store.files} | {f"{PATH}/{manifest.NAME}"}
        store.put(b"k0", b"again")
        assert store.get(b"k0") == b"again"
    assert disk.contents()[name] == bytes(data)
