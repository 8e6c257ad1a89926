"""A keyed store after a failure of each disk operation, and after a crash at each of them."""

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


def run_step(store: KeyedStore, step: Step) -> None:
    name, *arguments = step
    getattr(store, name)(*arguments)


def contents(store: KeyedStore) -> State:
    found = store.scan()
    state = dict(zip(found["key"], found["value"], strict=True))
    assert found["key"].to_list() == sorted(state)
    for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
        assert store.get(key) == state.get(key)
    return state


def check_without_manifest(disk: CrashDisk, description: str) -> None:
    """Verify that a reader of all files finds at least the content of the manifest's files."""
    files = {os.path.basename(name): data for name, data in disk.contents().items()}
    current = manifest.StoreManifest()
    if manifest.NAME in files:
        current = manifest.decode(files[manifest.NAME], manifest.NAME)
    named = {name for name, _ in current.files}
    every = {name for name in files if name.endswith(".parquet")}
    assert named <= every, description
    if named == every:
        return

    def view(names: set[str]) -> list[tuple[bytes, bytes]]:
        rows = pl.concat(pl.read_parquet(files[name]) for name in names)
        rows = rows.filter(pl.col("seqNum") <= current.flushed_seq_num)
        rows = rows.sort("seqNum").unique("key", keep="last").filter(pl.col("op") == "PUT")
        return rows.select("key", "value").sort("key").rows()

    assert view(every) == (view(named) if named else []), description


def check_reopened(disk: CrashDisk, allowed: Sequence[State], description: str) -> None:
    """Open the files that remain, verify their content, and verify that the store can continue."""
    check_without_manifest(disk, description)
    with KeyedStore(PATH, disk=disk) as store:
        found = contents(store)
        assert found in allowed, description
        named = {os.path.basename(file.path) for file in store.files}
        remaining = {os.path.basename(name) for name in disk.contents() if name.count("/") == 1}
        assert remaining - {manifest.NAME} == named, f"{description}: leftovers"
        store.put(b"z", b"new")
        store.flush()
    with KeyedStore(PATH, disk=disk) as store:
        assert contents(store) == found | {b"z": b"new"}, description
        store.compact()
        assert contents(store) == found | {b"z": b"new"}, description


@dataclass(frozen=True)
class CrashState:
    """The files that remain of a run that ended before an operation.

    Attributes:
        disk: The disk after a crash; a seed decides which unsynced writes survive.
        allowed: The contents that the store may have then.
        description: The operation and the crash mode, for the messages of assertions.
    """

    disk: CrashDisk
    allowed: Sequence[State]
    description: str


CrashModes = Sequence[Callable[[CrashDisk, Operation], CrashDisk]]


def crashes(
    crash_modes: Callable[[int], CrashModes], sync: Literal["sync", "none"] = "sync"
) -> list[CrashState]:
    """All steps, and a crash before each disk operation, in modes that depend on its number.

    A state that occurred before with the same allowed contents is skipped.
    """
    disk = CrashDisk()
    states: list[State] = [{}]
    step: Step = ("open",)
    found: list[CrashState] = []
    number = 0
    seen = set()

    def stop(operation: Operation) -> None:
        nonlocal number
        number += 1
        allowed = [*states, apply(states[-1], step)]
        for n, mode in enumerate(crash_modes(number)):
            crashed = mode(disk, operation)
            description = (
                f"seed {SEED}, killed at operation {number}, {operation.kind} in {step}, mode {n}"
            )
            key = repr((sorted(crashed.contents().items()), allowed))
            if key not in seen:
                seen.add(key)
                found.append(CrashState(crashed, allowed, description))

    disk.watch = stop
    store = KeyedStore(PATH, disk=disk, sync=sync)
    for each in STEPS:
        step = each
        run_step(store, step)
        states.append(apply(states[-1], step))
        if sync == "sync" or step[0] in {"flush", "compact"}:
            del states[:-1]
    step = ("close",)
    store.close()
    assert number > 100
    return found


def crash_modes_of(rng: random.Random, random_modes: int) -> Callable[[int], CrashModes]:
    """Crash modes in rotation: all writes survive, only synced ones, or a random part."""

    def synced(disk: CrashDisk, operation: Operation) -> CrashDisk:
        return disk.clone(None)

    def some(disk: CrashDisk, operation: Operation) -> CrashDisk:
        return disk.clone(rng)

    return lambda number: [(CrashDisk.killed, synced, some)[number % 3], *[some] * random_modes]


def daily_sample(found: list[CrashState]) -> list[CrashState]:
    """One crash in three; the first one changes every day."""
    return found if IS_WHOLE else found[seed_of("crashes") % 3 :: 3]


def interrupted(operation: Operation) -> None:
    raise KeyboardInterrupt


FAILURES = {"EIO": fail(errno.EIO, 0.5), "ENOSPC": fail(errno.ENOSPC, 0.5), "Ctrl-C": interrupted}
ALL_KINDS = CHANGES | {"list", "read", "lock"}


def test_acknowledged_keys_survive_a_kill_at_any_operation() -> None:
    for each in daily_sample(crashes(crash_modes_of(random.Random(SEED), ROUNDS))):
        check_reopened(each.disk, each.allowed, each.description)


def test_crash_without_syncs_loses_only_records_after_the_last_flush() -> None:
    for each in daily_sample(crashes(crash_modes_of(random.Random(SEED), 0), "none")):
        check_reopened(each.disk, each.allowed, each.description)


def test_acknowledged_keys_survive_a_second_crash_while_opening() -> None:
    rng = random.Random(SEED)
    some = crash_modes_of(rng, 1)
    for each in daily_sample(crashes(lambda number: some(number)[1:] if number % 17 == 0 else ())):
        disk = each.disk
        second_crashes: list[CrashDisk] = []
        disk.watch = lambda operation: second_crashes.append(disk.clone(rng))  # noqa: B023 - called in this iteration
        KeyedStore(PATH, disk=disk).close()
        assert len(second_crashes) > 5
        for number, second in enumerate(second_crashes):
            check_reopened(second, each.allowed, f"{each.description}, then at {number} of opening")


@pytest.mark.parametrize("turn", range(min(ROUNDS, len(FAILURES))))
def test_failure_or_interrupt_at_any_operation_raises_and_loses_no_data(turn: int) -> None:
    operations: list[tuple[str, str]] = []
    faultless = CrashDisk(watch=lambda operation: operations.append((operation.kind, "")))
    run_steps_with_retry(faultless, "without faults")
    failed = True
    for number in points(operations):
        name = list(FAILURES)[(number + turn) % len(FAILURES)]
        disk = CrashDisk(watch=Counting(number, FAILURES[name], kinds=ALL_KINDS))
        description = f"operation {number} failed with {name}"
        state, failed = run_steps_with_retry(disk, description)
        disk.watch = quiet
        (mode,) = crash_modes_of(random.Random(SEED), 0)(number)
        check_reopened(mode(disk, Operation("end", "")), [state], description)
    assert not failed
    assert len(operations) > 100


def run_steps_with_retry(disk: CrashDisk, description: str) -> tuple[State, bool]:
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
                run_step(store, step)
                break
            except (LakelogError, KeyboardInterrupt) as error:
                failures.append(error)
            if store is not None:
                # The contents in memory are correct after any failure of the disk.
                assert contents(store) == state, description
                store = reopened_if_poisoned(store, disk)
                assert contents(store) in (state, apply(state, step)), description
        else:
            pytest.fail(f"{description}: {step} failed twice")
        state = apply(state, step)
    assert len(failures) <= 1, description
    expected = UnavailableError | OutcomeUnknownError | KeyboardInterrupt
    assert all(isinstance(error, expected) for error in failures), description
    return state, bool(failures)


def reopened_if_poisoned(store: KeyedStore, disk: CrashDisk) -> KeyedStore:
    try:
        store._wal.sync()
    except LakelogError:
        store.close()
        return KeyedStore(PATH, disk=disk)
    return store


def test_full_disk_keeps_acknowledged_keys_and_flushes_once_there_is_space() -> None:
    disk = CrashDisk()
    store = KeyedStore(PATH, disk=disk, memtable_bytes=300)

    full = Counting(1, fail(errno.ENOSPC), times=1 << 30, kinds=frozenset({"create"}))

    expected = {}
    for number in range(20):
        if number == 5:
            disk.watch = full
        expected[b"%02d" % number] = b"v" * 40
        store.put(b"%02d" % number, b"v" * 40)  # acknowledged, although the flush fails
    assert isinstance(store.upkeep_error, UnavailableError)
    with pytest.raises(UnavailableError, match="sorted file"):
        store.flush()
    found = store.scan()
    assert dict(zip(found["key"], found["value"], strict=True)) == expected
    disk.watch = quiet
    report = store.flush()
    assert report is not None
    store.put(b"99", b"v" * 400)
    upkeep_error: LakelogError | None = store.upkeep_error
    assert upkeep_error is None
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


def test_missing_or_older_log_raises_corruption_error() -> None:
    disk = flushed_disk()
    for name in disk.contents():
        if name == f"{PATH}/{manifest.NAME}" or "/wal/" in name:
            disk.put(name, None)
    before = disk.contents()
    with pytest.raises(CorruptionError, match="log of the keyed store is missing"):
        KeyedStore(PATH, disk=disk)
    assert disk.contents() == before

    disk = flushed_disk()
    for name in disk.contents():
        if "/wal/" in name:
            disk.put(name, None)
    WriteAheadLog(f"{PATH}/wal", disk=disk).close()
    with pytest.raises(CorruptionError, match="log of the keyed store is older"):
        KeyedStore(PATH, disk=disk)


def test_flush_truncates_the_log_after_a_crashed_flush_did_not() -> None:
    number = 0
    truncated = 0
    while number < 60:
        number += 1
        disk = CrashDisk()
        with KeyedStore(PATH, disk=disk) as store:
            store.put(b"k", b"v" * 5000)
            disk.watch = Counting(number, crash, kinds=ALL_KINDS)
            try:
                store.flush()
                break
            except Crash:
                pass
        disk = CrashDisk(disk.contents())
        with KeyedStore(PATH, disk=disk) as store:
            store.flush()
            remaining = [data for name, data in disk.contents().items() if "/wal/" in name]
            assert sum(map(len, remaining)) < 1000
            truncated += 1
    assert truncated > 10


def test_older_manifest_raises_corruption_error() -> None:
    disk = flushed_disk()
    older = disk.contents()[f"{PATH}/{manifest.NAME}"]
    with KeyedStore(PATH, disk=disk) as store:
        store.flush()
    disk.put(f"{PATH}/{manifest.NAME}", older)
    with pytest.raises(CorruptionError, match="manifest of the keyed store is"):
        KeyedStore(PATH, disk=disk)


def test_damaged_file_raises_when_it_is_read_and_is_not_modified() -> None:
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
        remaining = {path for path in disk.contents() if path.count("/") == 1}
        assert remaining == {file.path for file in store.files} | {f"{PATH}/{manifest.NAME}"}
        store.put(b"k0", b"again")
        assert store.get(b"k0") == b"again"
    assert disk.contents()[name] == bytes(data)
