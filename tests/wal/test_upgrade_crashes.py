"""An upgrade stopped by a crash or a fault at any operation loses nothing, and continues."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import UnavailableError, UnsupportedError
from lakelog.wal.historic.reader import read_historic
from lakelog.wal.historic.upgrade import MARKER_NAME, upgrade
from lakelog.wal.log import WriteAheadLog
from tests.budget import share_of
from tests.wal.crash_disk import Counting, Crash, CrashDisk, Operation, crash, fail
from tests.wal.historic_logs import LOGS, log_002, rows
from tests.wal.historic_model import Writer002, record_002

ROUNDS = int(os.environ.get("LAKELOG_ROUNDS", "2"))
SECTOR_BYTES = 16  # small, so that small logs have many


class StopAt(Counting):
    """Acts on an operation; every write stops after a part of its bytes."""

    def __call__(self, operation: Operation) -> None:
        if operation.kind == "write":
            operation.taken = max(1, operation.size_bytes * 2 // 3)
        super().__call__(operation)


def disk_with(files: dict[str, bytes]) -> CrashDisk:
    return CrashDisk(
        {f"log/{name}": data for name, data in files.items()}, sector_bytes=SECTOR_BYTES
    )


def upgraded(
    disk: CrashDisk, stop_at: int = 0, act: Callable[[Operation], None] = crash, **settings: Any
) -> bool:
    """Upgrade; whether it completed."""
    disk.watch = StopAt(stop_at, act)
    try:
        upgrade("log", disk=disk, **settings)
    except (Crash, UnavailableError):
        return False
    finally:
        disk.watch = StopAt(0, act)
    return True


def contents(disk: CrashDisk) -> list[dict[str, object]]:
    with WriteAheadLog("log", disk=disk) as log:
        assert log.recovery is None
        return rows(log.replay())


def old_contents(files: dict[str, bytes]) -> list[dict[str, object]]:
    return rows(read_historic("log", disk=disk_with(files)).replay())


def runs(
    files: dict[str, bytes], act: Callable[[Operation], None], **settings: bool
) -> Iterator[tuple[int, CrashDisk]]:
    """The upgrade stopped at its first operation, its second one, and so on until it completes."""
    for place in itertools.count(1):
        disk = disk_with(files)
        if upgraded(disk, place, act, **settings):
            assert place > 10
            return
        yield place, disk


@pytest.mark.sampled(4, keep=("log",))
@pytest.mark.parametrize("log", ["002", "003 with checksums"])
@pytest.mark.parametrize("keep_old", [True, False])
def test_a_crash_at_every_operation_loses_nothing(log: str, keep_old: bool) -> None:
    files = LOGS[log]
    expected = old_contents(files)
    for place, disk in runs(files, crash, keep_old=keep_old):
        for seed in range(ROUNDS):
            rng = random.Random(f"{place} {seed}")
            left = disk.clone(rng)
            # The upgrade is stopped a second time, and then completed.
            if not upgraded(left, rng.randint(1, 12), keep_old=keep_old):
                left = left.clone(rng)
            assert upgraded(left, keep_old=keep_old)
            assert contents(left) == expected, (place, seed)
            kept = [name for name in left.list("log") if name.endswith(".upgraded")]
            assert len(kept) == (len(files) if keep_old else 0), (place, seed)
            assert MARKER_NAME not in left.list("log")


CALL = st.one_of(
    st.tuples(st.sampled_from(["PUT", "DELETE", "CHECKPOINT"]), st.binary(max_size=5)),
    st.lists(st.binary(max_size=5), max_size=4),
)


@given(
    st.lists(CALL, max_size=25),
    st.booleans(),
    st.booleans(),
    st.integers(1, 1_000),
    st.binary(max_size=20),
    st.integers(1, 40),
)
@settings(max_examples=share_of(40), deadline=None)
def test_upgrade_of_any_log_replays_the_same_after_a_crash(
    calls: list[tuple[str, bytes] | list[bytes]],
    marks_batches: bool,
    ends_in_a_batch: bool,
    first_seq: int,
    torn: bytes,
    place: int,
) -> None:
    writer = Writer002(marks_batches=marks_batches, rotate_bytes=80, first_seq=first_seq)
    for call in calls:
        if isinstance(call, tuple):
            writer.append(call[0], call[1], b"value")
        else:
            writer.append_batch([("PUT", key, b"") for key in call])
        writer.rotate()
    if ends_in_a_batch:
        writer.append_batch([("PUT", b"half", b"1")], is_finished=False)
    files = writer.named()
    if writer.records:  # without records, the format of a few bytes is ambiguous
        files[max(files)] += record_002(1 << 40, "PUT", torn)[: len(torn)]
    old = read_historic("log", "002", disk=disk_with(files))
    disk = disk_with(files)
    if not upgraded(disk, place, format="002"):
        disk = disk.clone(random.Random(place))
        assert upgraded(disk, format="002")
    assert contents(disk) == rows(old.replay())
    with WriteAheadLog("log", disk=disk) as log:
        assert log.append("PUT", b"new", b"v") == max(old.last_seq, 0) + 1


class FirstIsLost(random.Random):
    """Of the names that were not durable, a crash loses the first change, and nothing else."""

    def __init__(self) -> None:
        super().__init__(0)
        self._asked = 0

    def choice(self, seq: Any) -> Any:
        return seq[-1]

    def random(self) -> float:
        self._asked += 1
        return float(self._asked == 1)


@pytest.mark.parametrize("keep_old", [True, False])
def test_a_crash_after_the_process_was_killed_loses_nothing(keep_old: bool) -> None:
    # The next process sees changes of the killed one that may not be durable yet.
    files = LOGS["003 with checksums"]
    expected = old_contents(files)
    for more in range(1, 5):
        for place, disk in runs(files, crash, keep_old=keep_old):
            upgraded(disk, more, keep_old=keep_old)
            left = disk.clone(FirstIsLost())
            assert upgraded(left, keep_old=keep_old)
            assert contents(left) == expected, (place, more)


@pytest.mark.parametrize("log", ["002", "003 with checksums"])
def test_log_is_complete_or_refused_after_every_crash(log: str) -> None:
    expected = old_contents(LOGS[log])
    refused = taken = 0
    for place, disk in runs(LOGS[log], crash):
        for seed in range(ROUNDS):
            left = disk.clone(random.Random(f"{place} {seed}"))
            try:
                assert contents(left) == expected, (place, seed)
                taken += 1
            except UnsupportedError:
                refused += 1
    assert refused > 10
    assert taken > 0


@pytest.mark.parametrize("log", ["002", "003"])
def test_upgrade_is_completed_after_a_fault_at_any_operation(log: str) -> None:
    expected = old_contents(LOGS[log])
    for place, disk in runs(LOGS[log], fail(errno.EIO)):
        assert upgraded(disk)
        assert contents(disk) == expected, place


def test_fault_message_states_that_no_data_is_lost() -> None:
    disk = disk_with(log_002())
    disk.watch = StopAt(3, fail(errno.ENOSPC))
    with pytest.raises(UnavailableError, match="no data is lost") as caught:
        upgrade("log", disk=disk)
    assert caught.value.hint is not None
    assert sorted(disk.list("log")) == sorted(log_002())
