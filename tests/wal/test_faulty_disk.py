"""A disk that fails, and a machine that stops afterwards: no acknowledgement was wrong.

Each operation of the disk fails in turn, while a log is opened, written, rotated, truncated,
closed. `CrashDisk` then also shows the state after a crash.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import (
    LakelogError,
    LogPoisonedError,
    OutcomeUnknownError,
    UnavailableError,
    WalCorruptionError,
)
from lakelog.wal.log import WriteAheadLog
from tests.budget import seeded
from tests.concurrency import run_concurrently
from tests.wal.crash_disk import CHANGES, Counting, CrashDisk, Operation, fail
from tests.wal.log_operations import ACTIONS, BATCH, LONG

DIRECTORY = "somewhere/log"
CLONES = 4
ERRORS = [
    pytest.param(errno.EIO, 0.0, id="EIO"),
    pytest.param(errno.ENOSPC, 0.6, id="ENOSPC after a part"),
]


def healthy(disk: CrashDisk) -> CrashDisk:
    disk.watch = lambda operation: None
    return disk


def opened(disk: CrashDisk, **settings: Any) -> WriteAheadLog:
    how = {"segment_bytes": 700, "frame_bytes": 1500, "batch_appends": 3, **settings}
    return WriteAheadLog(DIRECTORY, disk=disk, **how)


def keys(log: WriteAheadLog) -> list[str]:
    found = [key.decode() for key in log.replay()["key"].to_pylist()]
    for kind, count in (("batch", len(BATCH)), ("long", len(LONG))):
        assert sum(key.startswith(kind) for key in found) in {0, count}, "a batch is incomplete"
    return found


def runs(
    prepare: Callable[[], CrashDisk], error: int, share: float, times: int = 1
) -> Iterator[tuple[CrashDisk, Counting]]:
    """A disk whose first operation fails, then its second, and so on until none does."""
    for at in itertools.count(1):
        assert at < 60
        disk = prepare()
        disk.watch = counting = Counting(at, fail(error, share), times)
        yield disk, counting
        if not counting.has_acted:
            return


@pytest.mark.sampled(12, keep=("name", "error"))
@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
@pytest.mark.parametrize("times", [1, 2, 99])
@pytest.mark.parametrize(("error", "share"), ERRORS)
@pytest.mark.parametrize("name", list(ACTIONS))
def test_crash_after_a_fault_keeps_acknowledged_records(
    name: str, error: int, share: float, times: int, sync: Any
) -> None:
    rng = seeded()
    made: list[WriteAheadLog] = []

    def prepare() -> CrashDisk:
        disk = CrashDisk()
        made.append(opened(disk, sync=sync))
        for n in range(8):
            made[-1].append("PUT", f"before {n}", "v" * 100)
        return disk

    for disk, counting in runs(prepare, error, share, times):
        log = made[-1]
        last = log.current_seq_num()
        before = [f"before {n}" for n in range(8)]
        raised: LakelogError | None = None
        try:
            ACTIONS[name](log)
        except LakelogError as caught:
            raised = caught
        healthy(disk)
        assert raised is None or isinstance(raised, OutcomeUnknownError | UnavailableError)
        truncates = name.startswith("truncation")
        known: list[str] | None = None
        if isinstance(raised, OutcomeUnknownError):
            if name != "close":
                for use in (log.checkpoint, log.replay, log.state, log.sync):
                    with pytest.raises(LogPoisonedError):
                        use()
        elif name != "close":
            if raised is not None and name != "rotation" and not truncates:
                assert (keys(log), log.current_seq_num()) == (before, last)
            assert log.append("PUT", "later", b"") == log.current_seq_num()
            if sync != "none":
                log.checkpoint()  # from here on all is durable
            else:
                log.sync()
            known = keys(log)
        for _ in range(CLONES):
            with opened(disk.clone(rng)) as again:
                assert again.recovery is None or again.recovery.damage is None
                found = keys(again)
                if known is not None:
                    assert found == known
                elif not truncates and sync == "sync":
                    assert found[: len(before)] == before
                else:
                    assert found == sorted(found[:8]) + found[8:]
                assert again.append("PUT", "again", b"") == again.current_seq_num()
        log.close()
        assert found_again(disk, rng) == known or known is None
        if not counting.has_acted:
            assert raised is None


def found_again(disk: CrashDisk, rng: random.Random) -> list[str]:
    """The records after opening.

    A record whose sync failed may be among them. Then records appended after it must not exist
    without it.
    """
    with opened(disk) as log:
        there = keys(log)
        log.append("PUT", "behind", b"")
    for _ in range(CLONES):
        with opened(disk.clone(rng)) as log:
            assert keys(log) == [*there, "behind"]
    return there


def test_a_short_write_is_continued_and_an_empty_one_fails() -> None:
    disk = CrashDisk()
    taken = 7

    def short(operation: Operation) -> None:
        if operation.kind == "write":
            operation.taken = min(taken, operation.size_bytes)

    disk.watch = short
    with opened(disk) as log:
        log.append_batch(LONG)
        assert len(keys(log)) == len(LONG)
        taken = 0
        with pytest.raises(UnavailableError, match="no more"):
            log.append("PUT", "k", b"")
        assert len(keys(log)) == len(LONG)


@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
def test_each_mode_syncs_as_documented(sync: Any) -> None:
    disk = CrashDisk()
    log = opened(disk, sync=sync, segment_bytes=1 << 20, batch_appends=10)

    def syncs(action: Callable[[], Any], times: int = 1) -> int:
        kinds: list[str] = []
        disk.watch = lambda operation: kinds.append(operation.kind)
        for _ in range(times):
            action()
        return kinds.count("sync")

    def append() -> int:
        return log.append("PUT", "k", b"")

    assert syncs(append, 25) == {"sync": 25, "batch": 2, "none": 0}[sync]
    assert syncs(log.checkpoint) == {"sync": 1, "batch": 1, "none": 0}[sync]
    assert syncs(append) == {"sync": 1, "batch": 0, "none": 0}[sync]
    assert syncs(log.sync) == {"sync": 0, "batch": 1, "none": 1}[sync]
    log.append("PUT", "k", b"")
    assert syncs(log.close) == {"sync": 0, "batch": 1, "none": 0}[sync]


def disk_with_failed_sync() -> CrashDisk:
    """A log of two records; the sync of the second one failed."""
    disk = CrashDisk()
    log = opened(disk, segment_bytes=1 << 20)
    log.append("PUT", "before", "v" * 600)
    disk.watch = Counting(1, fail(errno.EIO), kinds=frozenset({"sync"}))
    with pytest.raises(OutcomeUnknownError, match="fsync failed") as first:
        log.append("PUT", "unknown", "v" * 1200)
    assert isinstance(first.value.__cause__, OSError)
    assert first.value.path is not None
    with pytest.raises(LogPoisonedError, match="fsync failed") as later:
        log.append("PUT", "later", b"")
    assert later.value.hint is not None
    log.close()
    return disk


def test_data_of_a_failed_sync_is_rewritten_before_the_next_append() -> None:
    disk = disk_with_failed_sync()
    assert keys(opened(disk.clone(random.Random(1)))) == ["before"]
    with opened(healthy(disk)) as again:
        assert keys(again) == ["before", "unknown"]
        again.append("PUT", "behind", b"")
    for seed in range(20):
        with opened(disk.clone(random.Random(seed))) as left:
            assert keys(left) == ["before", "unknown", "behind"]


def test_data_of_a_failed_sync_is_rewritten_before_damage_is_set_aside() -> None:
    disk = disk_with_failed_sync()
    foreign = healthy(disk).open_append(f"{DIRECTORY}/{9:020d}.wal", create=True)
    foreign.write(b"what somebody put here" * 9)
    with opened(disk, strict=False) as again:
        assert again.recovery is not None
        assert keys(again) == ["before", "unknown"]
        again.append("PUT", "behind", b"")
    for seed in range(20):
        with opened(disk.clone(random.Random(seed))) as left:
            assert keys(left) == ["before", "unknown", "behind"]


def test_only_data_not_known_to_be_durable_is_rewritten() -> None:
    disk = CrashDisk()
    written: list[int] = []

    def note(operation: Operation) -> None:
        if operation.kind == "rewrite":
            written.append(operation.size_bytes)

    disk.watch = note
    how = {"segment_bytes": 1 << 30, "frame_bytes": 1 << 29}
    log = opened(disk, **how)
    log.append("PUT", "much", "v" * (3 << 20))
    log.append("PUT", "last", "v" * 100)
    for _ in range(2):
        disk.unlock()
        log = opened(disk, **how)
    assert written == [176, 176]
    log.append_batch([("PUT", "much more", "v" * (5 << 19))])
    disk.unlock()
    written.clear()
    opened(disk)
    assert sum(written) > 5 << 19
    # Frames record that much as durable, so it is not written a third time.
    written.clear()
    for _ in range(2):
        disk.unlock()
        assert keys(opened(disk)) == ["much", "last", "much more"]
    assert written == [48, 48]


def test_closing_reports_a_failed_sync_and_closes() -> None:
    disk = CrashDisk()
    log = opened(disk, sync="batch")
    log.append("PUT", "k", b"")
    disk.watch = Counting(1, fail(errno.EIO))
    with pytest.raises(OutcomeUnknownError):
        log.close()
    log.close()
    with opened(healthy(disk)) as again:
        assert keys(again) == ["k"]


@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
def test_cleanly_closed_log_is_not_rewritten(sync: Any) -> None:
    disk = CrashDisk()
    kinds: list[str] = []
    with opened(disk, sync=sync, segment_bytes=1 << 20) as log:
        for n in range(5):
            log.append("PUT", str(n), "v" * 600)
    disk.watch = lambda operation: kinds.append(operation.kind)
    with opened(disk) as log:
        log.append("PUT", "behind", b"")
    assert "rewrite" not in kinds
    for seed in range(9):
        with opened(disk.clone(random.Random(seed))) as left:
            assert keys(left) == [*"01234", "behind"]


# --- opening --------------------------------------------------------------------------------------


def files() -> dict[str, bytes]:
    """A log of several segments; the last one has more than one frame."""
    disk = CrashDisk()
    with opened(disk) as log:
        for n in range(12):
            log.append("PUT", f"key {n:02}", "v" * 100)
    return disk.contents()


ALL = [f"key {n:02}" for n in range(12)]


def torn(content: dict[str, bytes]) -> list[str]:
    last = max(content)
    content[last] = content[last][:-20]
    return ALL[:-1]


def without_header(content: dict[str, bytes]) -> list[str]:
    content[f"{DIRECTORY}/{13:020d}.wal"] = b"\0" * 30
    return ALL


def interrupted_truncation(content: dict[str, bytes]) -> list[str]:
    before = dict(content)
    disk = CrashDisk(dict(content))
    with opened(disk) as log:
        log.truncate(9)
    content.clear()
    content.update({**before, **disk.contents(), f"{DIRECTORY}/{1:020d}.wal.tmp": b"a part"})
    return ALL[9:]


def damaged_in_the_middle(content: dict[str, bytes]) -> list[str]:
    _, second, *_ = sorted(content)
    data = bytearray(content[second])
    data[-200] ^= 1
    content[second] = bytes(data)
    disk = CrashDisk(dict(content))
    with pytest.raises(WalCorruptionError) as caught:
        opened(disk)
    assert caught.value.path == second
    assert 0 < (caught.value.safe_records or 0) < len(ALL)
    return ALL[: caught.value.safe_records]


STATES = [torn, without_header, interrupted_truncation, damaged_in_the_middle]


@pytest.mark.parametrize(("error", "share"), ERRORS)
@pytest.mark.parametrize("state", STATES)
def test_failed_opening_loses_nothing_for_the_next_one(
    state: Callable[[dict[str, bytes]], list[str]], error: int, share: float
) -> None:
    rng = seeded()
    content = files()
    expected = state(content)
    is_damaged = state is damaged_in_the_middle
    for disk, counting in runs(lambda: CrashDisk(dict(content)), error, share):
        counting.kinds = CHANGES | {"list", "read"}
        try:
            log = opened(disk, strict=False)
        except (OutcomeUnknownError, UnavailableError):
            assert counting.has_acted
        else:
            healthy(disk)
            assert keys(log) == expected
            log.close()
        healthy(disk)
        for left in [disk, *(disk.clone(rng) for _ in range(CLONES))]:
            with opened(left, strict=False) as log:
                assert keys(log) == expected
                assert log.append("PUT", "new", b"") >= (12 if state is torn else 13)
            with opened(left) as log:
                assert keys(log) == [*expected, "new"]
                assert log.recovery is None
            if is_damaged:
                # No content is lost: each old file is a part of some file.
                now = left.contents().values()
                assert all(any(data in other for other in now) for data in content.values())


@pytest.mark.parametrize(("error", "share"), ERRORS)
def test_failed_creation_is_completed_by_the_next_opening(error: int, share: float) -> None:
    rng = seeded()
    for disk, counting in runs(CrashDisk, error, share):
        try:
            opened(disk).close()
        except (OutcomeUnknownError, UnavailableError):
            assert counting.has_acted
        healthy(disk)
        for left in [disk.clone(rng), disk]:
            with opened(left) as log:
                assert log.append("PUT", "first", b"") == 1


# --- threads, and room ----------------------------------------------------------------------------


def append_in_threads(log: WriteAheadLog, name: str) -> tuple[list[str], list[str]]:
    """Threads append; returns the acknowledged and the uncertain units."""
    acknowledged: list[str] = []
    unknown: list[str] = []

    def work(thread: int) -> None:
        for n in range(12):
            key = f"{name} {thread} {n:02}"
            try:
                if n % 4:
                    log.append("PUT", key, "v" * 50)
                else:
                    log.append_batch([("PUT", key, "v")] * 5)
            except UnavailableError:
                continue
            except OutcomeUnknownError:
                unknown.append(key)
            else:
                acknowledged.append(key)

    run_concurrently(*(partial(work, n) for n in range(4)))
    return acknowledged, unknown


def unit_keys(log: WriteAheadLog) -> list[str]:
    """The key of each unit; a batch has its key five times."""
    found = log.replay()["key"].to_pylist()
    for key, times in ((key, found.count(key)) for key in set(found)):
        assert times == (1 if int(key[-2:]) % 4 else 5), f"{key} is there {times} times"
    return [key.decode() for key in dict.fromkeys(found)]


@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
def test_threads_get_correct_outcomes_on_an_intermittently_full_disk(sync: Any) -> None:
    rng = seeded()
    disk = CrashDisk()
    log = opened(disk, sync=sync)

    def full(operation: Operation) -> None:
        if operation.kind in {"write", "create"} and rng.random() < 0.3:
            fail(errno.ENOSPC, rng.random())(operation)

    disk.watch = full
    acknowledged, unknown = append_in_threads(log, "full")
    healthy(disk)
    assert not unknown
    assert len(acknowledged) > 5
    assert sorted(unit_keys(log)) == sorted(acknowledged)
    assert log.append("PUT", "room 0 01", b"") == log.current_seq_num()
    log.sync()
    for _ in range(CLONES):
        with opened(disk.clone(rng)) as again:
            assert sorted(unit_keys(again)) == sorted([*acknowledged, "room 0 01"])
    log.close()


def test_threads_get_correct_outcomes_on_a_flaky_disk() -> None:
    rng = seeded()
    disk = CrashDisk()

    def flaky(operation: Operation) -> None:
        share = 0.02 if operation.kind in {"sync", "sync_directory", "truncate"} else 0.1
        if operation.kind in CHANGES and rng.random() < share:
            fail(errno.EIO, rng.random())(operation)

    acknowledged: set[str] = set()
    unknown: set[str] = set()
    for number in range(12):
        log = opened(disk, segment_bytes=1500)
        disk.watch = flaky
        done, perhaps = append_in_threads(log, f"round {number:02}")
        healthy(disk)
        acknowledged.update(done)
        unknown.update(perhaps)
        log.close()
        # In half of the rounds the machine stops too.
        disk = disk.clone(rng) if rng.random() < 0.5 else disk
        with opened(disk) as log:
            found = set(unit_keys(log))
            assert acknowledged <= found, "acknowledged, and lost"
            assert found <= acknowledged | unknown, "reported as failed, but it exists"
            # From here on the outcome is known.
            acknowledged, unknown = found, set()
    assert acknowledged


def test_full_disk_keeps_acknowledged_records_and_accepts_more_after_space_is_freed() -> None:
    rng = seeded()
    disk = CrashDisk()
    room = 3000

    def limited(operation: Operation) -> None:
        used = sum(map(len, disk.contents().values()))
        if operation.kind == "create" and used + 64 > room:
            fail(errno.ENOSPC)(operation)
        if operation.kind == "write" and used + operation.size_bytes > room:
            operation.taken = room - used
            if operation.taken == 0:
                fail(errno.ENOSPC)(operation)

    disk.watch = limited
    log = opened(disk)
    acknowledged, hints = [], set()
    for n in range(60):
        if n == 40:
            room = 6000
        try:
            log.append("PUT", f"key {n}", "v" * 80)
            acknowledged.append(f"key {n}")
        except UnavailableError as error:
            hints.add(error.hint)
        assert keys(log) == acknowledged
        with opened(disk.clone(rng), read_only=True) as reader:
            assert keys(reader) == acknowledged
    assert all("free disk space" in str(hint) for hint in hints)
    assert 5 < sum(int(key[4:]) < 40 for key in acknowledged) < 40
    assert sum(int(key[4:]) >= 40 for key in acknowledged) > 5
    # Truncation frees space for new records.
    room = sum(map(len, disk.contents().values())) + 64
    log.truncate(log.current_seq_num() - 3)
    log.append("PUT", "continues", b"")
    assert keys(log) == [*acknowledged[-3:], "continues"]
    log.close()


def test_disk_error_is_the_cause_of_the_raised_error(tmp_path: Path) -> None:
    disk = CrashDisk()
    log = opened(disk)
    disk.watch = Counting(1, fail(errno.ENOSPC))
    with pytest.raises(UnavailableError, match="write fails") as caught:
        log.append("PUT", "k", b"")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert caught.value.path == f"{DIRECTORY}/{1:020d}.wal"
