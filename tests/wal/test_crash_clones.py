"""The machine stops at any operation of any workload: all durable records survive, and no others.

A lineage of logs on a `CrashDisk`: each runs a random workload until its machine stops, and the
next one continues from the state after the crash. On the way further copies are taken and verified.
It can begin with a historic log, whose upgrade is stopped as well.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from lakelog.errors import LakelogError, NotFoundError
from lakelog.wal.frames import Op
from lakelog.wal.historic.upgrade import upgrade
from lakelog.wal.log import WriteAheadLog
from tests.concurrency import outcomes
from tests.wal.crash_disk import CHANGES, Counting, Crash, CrashDisk, Operation, crash
from tests.wal.historic_model import Writer002, file_003

DIRECTORY = "somewhere/log"
LINEAGES = 12 * int(os.environ.get("LAKELOG_ROUNDS", "1"))
GENERATIONS = 5
BATCH_APPENDS = 4

_DATA: list[Op] = ["PUT", "PUT", "DELETE"]
Found = list[tuple[int, str, bytes, bytes | None]]


@dataclass
class Unit:
    """The records of one call.

    Attributes:
        thread: The writing thread; a thread's units are in the order of their numbers.
        records: Operation, key and value of each record except a COMMIT.
        is_batch: Whether it ends with a COMMIT.
    """

    thread: int
    records: Sequence[tuple[str, bytes, bytes | None]]
    is_batch: bool


@dataclass
class ExpectedLog:
    """The expected content of a log.

    Attributes:
        sync: Its sync mode.
        units: All units that may exist, by number.
        acked: The last sequence number of the acknowledged units.
        floor: A sequence number that was assigned and is durable.
        synced_to: Acknowledged records up to this sequence number are durable.
        truncated_to: Last sequence number of the acknowledged truncations.
        maybe_truncated_to: Last sequence numbers of all truncations begun since.
        old_to: Up to this sequence number the marks are those of a historic log.
    """

    sync: Any
    units: dict[int, Unit] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    floor: int = 0
    synced_to: int = 0
    truncated_to: int = 0
    maybe_truncated_to: list[int] = field(default_factory=list)
    old_to: int = 0

    def copy(self) -> ExpectedLog:
        return replace(
            self,
            units=dict(self.units),
            acked=dict(self.acked),
            maybe_truncated_to=list(self.maybe_truncated_to),
        )

    def durable(self) -> dict[int, int]:
        """Units that no crash may lose, by their last sequence number."""
        by_seq = sorted((seq, number) for number, seq in self.acked.items())
        if self.sync == "batch":
            safe = by_seq[: max(0, len(by_seq) - (BATCH_APPENDS - 1))]
        else:
            safe = by_seq if self.sync == "sync" else []
        known = {seq: number for seq, number in by_seq if seq <= self.synced_to}
        return {**known, **dict(safe)}

    def check(self, found: Found, current_seq: int) -> None:
        """Assert that all durable units exist, none is partial, and their order is correct."""
        durable = self.durable()
        floor = max([self.floor, self.truncated_to, *durable])
        assert current_seq >= floor, f"the number went back from {floor} to {current_seq}"
        first = found[0][0] if found else current_seq + 1
        assert [record[0] for record in found] == list(range(first, current_seq + 1))
        allowed = {self.truncated_to, *self.maybe_truncated_to}
        assert first - 1 in allowed or (
            not found and current_seq == max(self.floor, self.truncated_to)
        ), f"begins at {first}, was truncated to one of {allowed}"
        there: dict[int, int] = {}
        at = 0
        while at < len(found):
            at = self._unit(found, at, there)
        # Only the COMMIT remains of a batch that was truncated up to it.
        seen = {*there.values(), *([first] if found and found[0][1] == "COMMIT" else [])}
        for seq, number in durable.items():
            assert seq < first or seq in seen, f"unit {number} at {seq} is lost"
        for number, seq in there.items():
            assert self.acked.get(number, seq) == seq
        for thread in {unit.thread for unit in self.units.values()}:
            own = [number for number in there if self.units[number].thread == thread]
            assert own == sorted(own)

    def _unit(self, found: Found, at: int, there: dict[int, int]) -> int:
        """Check the unit that begins with a record; returns the start of the next one."""
        seq, op, key, _ = found[at]
        if op == "CHECKPOINT" or (op == "COMMIT" and (at == 0 or seq <= self.old_to)):
            return at + 1
        assert op != "COMMIT", f"a COMMIT without records at {seq}"
        number, index = map(int, key.split(b"."))
        unit = self.units[number]
        assert index == 0 or at == 0, f"the first half of a batch is missing at {seq}"
        rest = list(unit.records[index:])
        if unit.is_batch:
            rest.append(("COMMIT", b"", None))
        part = [record[1:] for record in found[at : at + len(rest)]]
        assert part == rest, f"unit {number} is not complete at {seq}"
        there[number] = seq + len(rest) - 1
        return at + len(rest)

    def reopened(self, found: Found, current_seq: int, sync: Any) -> ExpectedLog:
        """The expected content after opening for writing: all existing records are durable."""
        there: dict[int, int] = {}
        at = 0
        while at < len(found):
            at = self._unit(found, at, there)
        truncated_to = found[0][0] - 1 if found else current_seq
        units = {number: self.units[number] for number in there}
        return ExpectedLog(
            sync, units, there, current_seq, current_seq, truncated_to, [], self.old_to
        )


class Workload:
    """A random workload on a log.

    Args:
        disk: The disk of the log.
        expected: Its expected content.
        rng: Random generator.
        numbers: Numbers the units.
    """

    def __init__(
        self, disk: CrashDisk, expected: ExpectedLog, rng: random.Random, numbers: Callable[[], int]
    ) -> None:
        self.disk = disk
        self.expected = expected
        self.rng = rng
        self.numbers = numbers
        self.how = {
            "disk": disk,
            "sync": expected.sync,
            "segment_bytes": rng.choice([300, 1000, 3000]),
            "compression": rng.choice(["none", "zstd"]),
            "frame_bytes": rng.choice([200, 1000, 1 << 20]),
            "batch_appends": BATCH_APPENDS,
        }

    def open(self, **settings: Any) -> WriteAheadLog:
        return WriteAheadLog(DIRECTORY, **{**self.how, **settings})

    def run(self, log: WriteAheadLog, steps: int) -> None:
        for _ in range(steps):
            name = self.rng.choices(
                [
                    "single_thread",
                    "threads",
                    "truncate",
                    "checkpoint",
                    "sync",
                    "reopen",
                    "compare_reader",
                ],
                [10, 2, 2, 1, 1, 1, 1],
            )[0]
            if name == "reopen":
                log.close()
                log = self.open()
            else:
                getattr(self, name)(log)
        if self.rng.random() < 0.5:
            log.close()

    def single_thread(self, log: WriteAheadLog) -> None:
        self._write(log, 0, self.rng)

    def threads(self, log: WriteAheadLog) -> None:
        """Several threads write at once."""

        def work(thread: int, rng: random.Random) -> None:
            for _ in range(6):
                self._write(log, thread, rng)

        works = [partial(work, n, random.Random(self.rng.random())) for n in range(1, 4)]
        failures = [each for each in outcomes(*works) if each is not None]
        for failure in failures:
            if not isinstance(failure, Crash | LakelogError):
                raise failure
        if failures:
            raise Crash

    def _write(self, log: WriteAheadLog, thread: int, rng: random.Random) -> None:
        number = self.numbers()
        is_batch = rng.random() < 0.4
        records = [
            (
                op,
                b"%d.%d" % (number, index),
                rng.choice([b"" if op == "PUT" else None, rng.randbytes(rng.choice([5, 60, 700]))]),
            )
            for index, op in enumerate(
                rng.choices(_DATA, k=rng.choice([1, 2, 5, 60]) if is_batch else 1)
            )
        ]
        self.expected.units[number] = Unit(thread, records, is_batch)
        if not is_batch:
            seq = log.append(*records[0])
        elif rng.random() < 0.5:
            seq = log.append_batch(records)
        else:
            ops, keys, values = zip(*records, strict=True)
            binary = pa.binary()
            table = pa.table({"op": ops, "key": pa.array(keys, binary)})
            seq = log.append_table(table.append_column("value", pa.array(values, binary)))
        self.expected.acked[number] = seq

    def truncate(self, log: WriteAheadLog) -> None:
        last = log.current_seq_num()
        up_to = self.rng.choice([last, self.rng.randint(0, last), max(0, last - 3)])
        if up_to > self.expected.truncated_to:
            self.expected.maybe_truncated_to.append(up_to)
        log.truncate(up_to)
        if up_to > self.expected.truncated_to:
            self.expected.truncated_to = up_to
            self.expected.maybe_truncated_to.clear()

    def checkpoint(self, log: WriteAheadLog) -> None:
        seq = log.checkpoint()
        if self.expected.sync != "none":
            self.expected.synced_to = self.expected.floor = seq

    def sync(self, log: WriteAheadLog) -> None:
        seq = log.current_seq_num()
        log.sync()
        self.expected.synced_to = self.expected.floor = seq

    def compare_reader(self, log: WriteAheadLog) -> None:
        """Assert that a reader sees what the writer has written."""
        with self.open(read_only=True) as reader:
            assert records_of(reader) == records_of(log)
            assert reader.current_seq_num() == log.current_seq_num()


def records_of(log: WriteAheadLog) -> Found:
    return list(log.records())


def check_clone(clone: CrashDisk, expected: ExpectedLog) -> tuple[Found, int]:
    """Open the state after a crash: as a reader, then as the next writer."""
    seen: tuple[Found, int] | None = None
    try:
        with WriteAheadLog(DIRECTORY, disk=clone, read_only=True) as reader:
            seen = records_of(reader), reader.current_seq_num()
            assert reader.recovery is None
    except NotFoundError:
        assert not expected.durable(), "the log is missing"
        assert not expected.truncated_to
    with WriteAheadLog(DIRECTORY, disk=clone) as log:
        assert log.recovery is None or log.recovery.damage is None
        found = records_of(log), log.current_seq_num()
    if seen is not None:
        assert found == seen, "a reader saw other records than the next writer"
    expected.check(*found)
    with WriteAheadLog(DIRECTORY, disk=clone) as log:
        assert log.recovery is None, "the second opening repaired something"
        assert (records_of(log), log.current_seq_num()) == found
    return found


def crash_within(rng: random.Random, most: int) -> Counting:
    return Counting(rng.randint(1, most), crash, times=1 << 30)


def initial_disk(rng: random.Random, numbers: Callable[[], int]) -> tuple[CrashDisk, ExpectedLog]:
    """An empty disk, or often one with a historic log and an interrupted upgrade."""
    kind = rng.choice(["new", "new", "002", "003"])
    if kind == "new":
        return CrashDisk(), ExpectedLog("sync")
    expected = ExpectedLog("sync", old_to=1 << 40)
    writer = Writer002(marks_batches=True, rotate_bytes=400, first_seq=rng.choice([1, 77]))
    pairs = []
    for _ in range(rng.randint(1, 40)):
        number = numbers()
        key, value = b"%d.0" % number, rng.randbytes(rng.randint(1, 20))
        pairs.append((key, value))
        if rng.random() < 0.3:
            writer.append_batch([("PUT", key, value)])
            seq = writer.records[-2].seq
        else:
            seq = writer.append("PUT", key, value)
            writer.rotate()
        expected.units[number] = Unit(0, [("PUT", key, value)], is_batch=False)
        expected.acked[number] = seq if kind == "002" else len(pairs)
    files = {"wal.log": file_003(pairs, is_checked=True)}
    if kind == "002":
        files = writer.named()
        expected.truncated_to = writer.records[0].seq - 1
    disk = CrashDisk({f"{DIRECTORY}/{name}": data for name, data in files.items()})
    for _ in range(rng.randint(0, 4)):
        disk.watch = crash_within(rng, 16)
        try:
            upgrade(DIRECTORY, disk=disk, keep_old=rng.random() < 0.5)
        except (Crash, LakelogError):
            disk = disk.clone(rng)
    disk.watch = lambda operation: None
    upgrade(DIRECTORY, disk=disk)
    expected.old_to = expected.floor = max(expected.acked.values())
    if kind == "002":
        expected.old_to = expected.floor = writer.records[-1].seq
    return disk, expected


def run_until_crash(
    disk: CrashDisk,
    expected: ExpectedLog,
    rng: random.Random,
    numbers: Callable[[], int],
    stale: bytes,
) -> list[tuple[CrashDisk, ExpectedLog]]:
    """Run a workload until the machine stops; returns the states after crashes until then."""
    clones: list[tuple[CrashDisk, ExpectedLog]] = []
    counting = crash_within(rng, rng.choice([8, 60, 300]))

    def watch(operation: Operation) -> None:
        if operation.kind in CHANGES and rng_of_clones.random() < 0.03 and not counting.has_acted:
            clones.append((disk.clone(rng_of_clones, stale), expected.copy()))
        counting(operation)

    rng_of_clones = random.Random(rng.random())
    disk.watch = watch
    workload = Workload(disk, expected, rng, numbers)
    try:
        workload.run(workload.open(), rng.choice([3, 25, 60]))
    except Crash:
        pass
    except LakelogError:
        if not counting.has_acted:
            raise
    disk.watch = lambda operation: None
    clones += [(disk.clone(rng, stale), expected.copy()) for _ in range(3)]
    return clones


def foreign_frames() -> bytes:
    """A segment of another log, which may remain in reused disk space."""
    disk = CrashDisk()
    with WriteAheadLog(DIRECTORY, disk=disk, sync="none") as log:
        for n in range(1, 100):
            log.append("PUT", b"%d.0" % n, b"of another log")
    return disk.contents()[f"{DIRECTORY}/{1:020d}.wal"]


STALE = foreign_frames()


@pytest.mark.parametrize("number", range(LINEAGES))
def test_crash_at_any_operation_keeps_durable_records_and_no_partial_batch(number: int) -> None:
    seed = int(os.environ.get("LAKELOG_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"lineage {number}: LAKELOG_SEED={seed}")
    rng = random.Random(seed)
    lock, last = threading.Lock(), 0

    def numbers() -> int:
        nonlocal last
        with lock:
            last += 1
            return last

    disk, expected = initial_disk(rng, numbers)
    for _ in range(GENERATIONS):
        clones = run_until_crash(disk, expected, rng, numbers, rng.choice([b"", STALE]))
        for clone, known in clones:
            # Some openings are stopped, and the resulting state is opened again.
            stopped_again = clone
            if rng.random() < 0.4:
                clone.watch = crash_within(rng, 4)
                try:
                    WriteAheadLog(DIRECTORY, disk=clone).close()
                except (Crash, LakelogError):
                    stopped_again = clone.clone(rng)
                clone.watch = lambda operation: None
            found = check_clone(stopped_again, known)
        disk = stopped_again
        expected = known.reopened(*found, rng.choice(["sync", "sync", "batch", "none"]))


def test_crash_keeps_any_part_of_unsynced_data() -> None:
    rng = random.Random(7)
    disk = CrashDisk({f"{DIRECTORY}/kept": b"k" * 600})
    file = disk.open_append(f"{DIRECTORY}/kept")
    file.write(b"n" * 1000)
    disk.open_append(f"{DIRECTORY}/new", create=True)
    left = [disk.clone(rng).contents() for _ in range(300)]
    kept = {each[f"{DIRECTORY}/kept"] for each in left}
    assert {len(each) for each in left} == {1, 2}
    assert all(data.startswith(b"k" * 512) for data in kept)
    assert {b"k" * 600, b"k" * 600 + b"n" * 1000} < kept
    assert any(b"\0" * 512 in data for data in kept)
    file.sync()
    disk.sync_directory(DIRECTORY)
    assert disk.clone(rng).contents() == disk.contents()


def test_log_that_acknowledges_unsynced_records_fails_the_check() -> None:
    """Test of the test: a log that does not sync what it acknowledges fails."""

    def lineages() -> None:
        for seed in range(40):
            rng = random.Random(seed)
            expected = ExpectedLog("none")
            disk = CrashDisk()
            numbers: Sequence[int] = range(1, 1 << 20)
            run_until_crash(disk, expected, rng, iter(numbers).__next__, b"")
            expected.sync = "sync"
            check_clone(disk.clone(rng), expected)

    with pytest.raises(AssertionError, match=r"is lost|went back|begins at|is missing"):
        lineages()
