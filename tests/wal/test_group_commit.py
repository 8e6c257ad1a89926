"""Concurrent appends share a write and an fsync, and each gets its own result."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pytest

from lakelog.errors import (
    InvalidInputError,
    LogPoisonedError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.wal.encode import LARGE_BYTES, RECORD_BYTES
from lakelog.wal.log import WriteAheadLog, append_part
from tests.concurrency import outcomes
from tests.wal import plain
from tests.wal.crash_disk import Counting, CrashDisk, Operation, fail
from tests.wal.damage import LOG_ID, settings

THREADS = 8


DIRECTORY = "somewhere/log"


def slow(watch: Callable[[Operation], None] = lambda operation: None) -> CrashDisk:
    """An fsync is slow, as on a real disk, so that the other threads queue."""

    def wait(operation: Operation) -> None:
        if operation.kind == "sync":
            time.sleep(0.003)
        watch(operation)

    return CrashDisk(watch=wait)


def opened(disk: CrashDisk, **how: Any) -> WriteAheadLog:
    return WriteAheadLog(DIRECTORY, **settings(disk=disk, **how))


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The result or the exception of each thread."""
    return outcomes(*(partial(work, n) for n in range(count)))


def test_concurrent_appends_share_fsyncs_and_keep_their_order() -> None:
    kinds: list[str] = []
    with opened(slow(lambda operation: kinds.append(operation.kind))) as log:
        kinds.clear()

        def work(thread: int) -> list[int]:
            return [log.append("PUT", f"{thread} {n}", b"") for n in range(12)]

        numbers = together(THREADS, work)
        assert kinds.count("sync") < THREADS * 12 * 0.7
        assert sorted(chain(*numbers)) == list(range(1, THREADS * 12 + 1))
        by_number = {record.seq_num: record.key.decode() for record in log.records()}
    for thread, own in enumerate(numbers):
        assert own == sorted(own)
        assert [by_number[seq] for seq in own] == [f"{thread} {n}" for n in range(12)]


def test_batches_and_single_records_of_one_group_have_separate_frames() -> None:
    disk = slow()
    with opened(disk, frame_bytes=500) as log:

        def work(thread: int) -> None:
            for n in range(6):
                match (thread + n) % 4:
                    case 0:
                        log.append_batch([("PUT", f"{thread} {n} {m}", b"") for m in range(5)])
                    case 1:
                        log.append_batch([("PUT", f"{thread} {n} {m}", "v") for m in range(60)])
                    case _:
                        log.append("PUT", f"{thread} {n}", b"")

        assert together(THREADS, work) == [None] * THREADS
        seen = [tuple(record) for record in log.records()]
    frames = plain.read_frames(disk.contents()[f"{DIRECTORY}/{1:020d}.wal"], LOG_ID)
    assert [tuple(r) for frame in frames for r in plain.frame_records(frame)] == seen
    batch: list[plain.Record] = []
    for frame in frames:
        records = plain.frame_records(frame)
        if not frame.flags & 2:
            assert all(record.op == "PUT" for record in records)
            continue
        batch += records
        if not frame.flags & 1:
            assert [r.op for r in batch] == ["PUT"] * (len(batch) - 1) + ["COMMIT"]
            assert len({r.key.rsplit(b" ", 1)[0] for r in batch[:-1]}) == 1
            batch = []
    assert len(frames) < len(seen) / 4


@pytest.mark.parametrize("padding", ["", "x" * LARGE_BYTES])
def test_parts_of_one_group_share_records(padding: str) -> None:
    calls: list[int] = []

    def encode(parts: Sequence[Any]) -> Iterator[tuple[int, bytes, memoryview]]:
        """Records of at most three parts."""
        calls.append(len(parts))
        for start in range(0, len(parts), 3):
            own = parts[start : start + 3]
            if "bad" in own:
                raise ValueError("a part cannot be encoded")
            yield len(own), b"joined", memoryview(bytearray("\n".join(own).encode()))

    with opened(slow(), frame_bytes=500) as log:

        def work(thread: int) -> dict[str, tuple[int, int]]:
            done = {}
            for n in range(12):
                name = f"{thread} {n} {padding}"
                match (thread + n) % 6:
                    case 0:
                        log.append_batch([("PUT", name, b"")])
                    case 1:
                        log.append("PUT", name, b"")
                    case 2 if n % 3 == 0:
                        with pytest.raises(ValueError, match="cannot be encoded"):
                            append_part(log, "PUT", "bad", encode)
                    case _:
                        done[name] = append_part(log, "PUT" if n % 4 else "DELETE", name, encode)
            return done

        outcomes = together(THREADS, work)
        keys = [record.key for record in log.replay()]
        joined = {
            record.seq_num: (record.op_type, (record.value or b"").decode().split("\n"))
            for record in log.replay()
            if record.key == b"joined"
        }
    assert len(keys) - len(joined) == 32
    assert max(calls) > 1
    assert max(len(names) for _, names in joined.values()) > 1
    done = {name: found for each in outcomes for name, found in each.items()}
    assert sorted(chain(*(names for _, names in joined.values()))) == sorted(done)
    for name, (seq, size) in done.items():
        op, names = joined[seq]
        assert op == ("PUT" if int(name.split()[1]) % 4 else "DELETE")
        assert name in names
        size_bytes = len("joined") + len("\n".join(names)) + RECORD_BYTES
        assert size == (size_bytes if name == names[0] else 0)
    for each in outcomes:
        seqs = [seq for seq, _ in each.values()]
        assert seqs == sorted(seqs)


def test_a_group_that_does_not_fit_is_tried_one_by_one() -> None:
    def full(operation: Operation) -> None:
        """The disk accepts writes of 2,000 bytes."""
        if operation.kind == "write" and operation.size_bytes > 2000:
            fail(errno.ENOSPC, 1999 / operation.size_bytes)(operation)

    with opened(slow(full)) as log:

        def work(thread: int) -> list[int]:
            done = []
            for n in range(5):
                try:
                    size = 3000 if thread == 0 else 300
                    done.append(log.append("PUT", f"{thread} {n}", "v" * size))
                except UnavailableError:
                    assert thread == 0
            return done

        numbers = together(THREADS, work)
        assert numbers[0] == []
        assert sorted(chain(*numbers)) == list(range(1, (THREADS - 1) * 5 + 1))
        assert len(list(log.records())) == (THREADS - 1) * 5


@pytest.mark.parametrize("fail_at", [1, 2, 3, 6, 9])
def test_failed_fsync_fails_all_appends_of_its_group_and_all_later_ones(fail_at: int) -> None:
    failing = Counting(0, fail(errno.EIO))
    disk = slow(failing)
    log = opened(disk)
    log.append("PUT", "before", b"")
    failing.at = failing.count + 2 * fail_at  # the sync of that many writes

    def work(thread: int) -> tuple[list[bytes], list[bytes], bool]:
        done: list[bytes] = []
        for n in range(10):
            key = f"{thread} {n}".encode()
            try:
                log.append("PUT", key, b"")
                done.append(key)
            except OutcomeUnknownError:
                return done, [key], True
            except LogPoisonedError:
                return done, [], True
        return done, [], False

    outcomes = together(THREADS, work)
    log.close()
    acknowledged = {key for done, _, _ in outcomes for key in done}
    unknown = {key for _, maybe, _ in outcomes for key in maybe}
    assert all(stopped for _, _, stopped in outcomes)
    assert unknown
    with opened(disk) as again:
        found = set(again.replay()["key"].to_pylist())
    assert acknowledged | {b"before"} <= found <= acknowledged | unknown | {b"before"}


def test_truncations_and_reads_are_serialized_with_appends() -> None:
    with opened(slow(), segment_bytes=2000) as log:

        def work(thread: int) -> None:
            for n in range(12):
                if thread == 0:
                    log.truncate(log.current_seq_num() // 2)
                elif thread == 1:
                    numbers = log.replay()["seqNum"].to_pylist()
                    assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
                else:
                    log.append("PUT", f"{thread} {n}", "v" * 100)

        assert together(THREADS, work) == [None] * THREADS
        assert log.current_seq_num() == (THREADS - 2) * 12


def test_close_lets_waiting_appends_finish() -> None:
    disk = slow()
    log = opened(disk)

    def work(thread: int) -> list[bytes]:
        done: list[bytes] = []
        for n in range(20):
            if thread == 0 and n == 5:
                log.close()
                return done
            try:
                log.append("PUT", f"{thread} {n}", b"")
                done.append(f"{thread} {n}".encode())
            except (InvalidInputError, LogPoisonedError):
                return done
        return done

    outcomes = together(THREADS, work)
    acknowledged = [key for done in outcomes for key in done]
    with opened(disk) as again:
        assert sorted(again.replay()["key"].to_pylist()) == sorted(acknowledged)
