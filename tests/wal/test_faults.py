"""Every operation of the disk fails, the first, the second, and so on until none is left.

Whoever was told that a record was written finds it, after opening again as well. Whoever was told
that it was not does not, ever. Who was told that nobody knows may find it or not, but whole.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import (
    LakelogError,
    LogPoisonedError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.wal.disk import LocalFile
from lakelog.wal.log import WriteAheadLog
from tests.wal.deeds import BATCH, LONG, WRITES
from tests.wal.failing import FailingDisk, FailingFile, settings


def keys(log: WriteAheadLog) -> list[bytes]:
    return list(log.replay()["key"].to_pylist())


def is_whole(found: list[bytes]) -> bool:
    """Whether of each batch all is there or nothing."""
    return all(
        sum(key.startswith(kind) for key in found) in {0, count}
        for kind, count in ((b"batch", len(BATCH)), (b"long", len(LONG)))
    )


@pytest.mark.sampled(8, keep=("name", "times"))
@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
@pytest.mark.parametrize("taken", [0, 13, 5000])
@pytest.mark.parametrize("times", [1, 2, 99])
@pytest.mark.parametrize("name", list(WRITES))
def test_an_operation_that_fails_leaves_what_was_promised(
    tmp_path: Path, name: str, times: int, taken: int, sync: Any
) -> None:
    fail_at = 0
    while True:
        fail_at += 1
        directory = tmp_path / str(fail_at)
        disk = FailingDisk()
        how = settings(disk=disk, sync=sync, segment_bytes=900, frame_bytes=2000, batch_appends=2)
        log = WriteAheadLog(directory, **how)
        for n in range(5):
            log.append("PUT", f"before {n}", "v" * 100)
        before = keys(log)
        last = log.current_seq_num()
        disk.arm(fail_at, times=times, taken=taken)
        told: LakelogError | None = None
        try:
            WRITES[name](log)
        except LakelogError as error:
            told = error
        ended = not disk.failed
        disk.arm(0)
        truncates = name.startswith("truncation")
        if isinstance(told, OutcomeUnknownError):
            for use in (log.replay, log.state, log.sync, log.checkpoint):
                with pytest.raises(LogPoisonedError):
                    use()
        else:
            assert told is None or isinstance(told, UnavailableError)
            now = keys(log)
            if told is not None and not truncates and name != "rotation":
                assert now == before
                assert log.current_seq_num() == last
            if not truncates:
                assert now[: len(before)] == before
            assert log.append("PUT", "later") == log.current_seq_num()
            assert keys(log)[-1] == b"later"
        seen = None if isinstance(told, OutcomeUnknownError) else keys(log)
        log.close()
        with WriteAheadLog(directory, **how) as again:
            found = keys(again)
            if seen is not None:
                assert found == seen
            assert is_whole(found)
            if not truncates:
                assert found[: len(before)] == before
            else:
                assert set(before) >= set(found) - {b"later"}
                assert again.current_seq_num() >= last
            assert again.append("PUT", "again") == again.current_seq_num() > last
            assert again.recovery is None or again.recovery.damage is None
        if ended:
            assert told is None
            return


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_log_usable_once_there_is_room(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk(error=error)
    acknowledged = []
    with WriteAheadLog(tmp_path, **settings(disk=disk, segment_bytes=700)) as log:
        for n in range(60):
            # Of every four writes and creations the disk has room for two.
            monkeypatch.setattr(disk, "step", _full_now_and_then(disk, n % 4 > 1))
            with contextlib.suppress(UnavailableError):
                log.append("PUT", f"key {n}", "v" * 50)
                acknowledged.append(f"key {n}".encode())
            assert keys(log) == acknowledged
    assert 20 < len(acknowledged) < 60
    with WriteAheadLog(tmp_path) as log:
        assert keys(log) == acknowledged


def _full_now_and_then(disk: FailingDisk, is_full: bool) -> Callable[[str], None]:
    def step(what: str) -> None:
        if is_full and what in {"write", "create"}:
            raise OSError(disk.error, "full")

    return step


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailingFile, "write", lambda file, data: LocalFile.write(file, data[:7]))
    with WriteAheadLog(tmp_path, **settings(disk=FailingDisk())) as log:
        log.append_batch(LONG)
        assert len(keys(log)) == len(LONG)
    monkeypatch.setattr(FailingFile, "write", lambda file, data: 0)
    with WriteAheadLog(tmp_path, **settings(disk=FailingDisk())) as log:
        with pytest.raises(UnavailableError, match="no more"):
            log.append("PUT", "k")
        assert len(keys(log)) == len(LONG)


def test_the_first_to_hear_of_a_failed_sync_learns_that_nobody_knows(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = WriteAheadLog(tmp_path, **settings(disk=disk))
    log.append("PUT", "before")
    disk.arm(2, error=errno.EIO)  # a write, then its sync
    with pytest.raises(OutcomeUnknownError, match="fsync failed") as first:
        log.append("PUT", "unknown")
    assert isinstance(first.value.__cause__, OSError)
    assert first.value.path is not None
    with pytest.raises(LogPoisonedError, match="fsync failed") as later:
        log.append("PUT", "later")
    assert later.value.hint is not None
    log.close()
    with WriteAheadLog(tmp_path) as again:
        assert keys(again) in ([b"before"], [b"before", b"unknown"])
        assert again.append("PUT", "goes on") == again.current_seq_num()


def test_closing_tells_of_a_sync_that_failed_and_closes(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = WriteAheadLog(tmp_path, **settings(disk=disk, sync="batch"))
    log.append("PUT", "k")
    disk.arm(1)
    with pytest.raises(OutcomeUnknownError):
        log.close()
    log.close()
    with WriteAheadLog(tmp_path) as again:
        assert again.current_seq_num() == 1


@pytest.mark.parametrize("sync", ["sync", "batch", "none"])
def test_each_mode_syncs_when_it_says(tmp_path: Path, sync: Any) -> None:
    disk = FailingDisk()
    log = WriteAheadLog(tmp_path, **settings(disk=disk, sync=sync, batch_appends=10))

    def syncs(action: Callable[[WriteAheadLog], Any]) -> int:
        disk.arm(0)
        action(log)
        return disk.done.count("sync")

    def append_25(log: WriteAheadLog) -> None:
        for n in range(25):
            log.append("PUT", str(n))

    assert syncs(append_25) == {"sync": 25, "batch": 2, "none": 0}[sync]
    assert syncs(lambda log: log.checkpoint()) == {"sync": 1, "batch": 1, "none": 0}[sync]
    assert syncs(lambda log: log.append("PUT", "k")) == {"sync": 1, "batch": 0, "none": 0}[sync]
    assert syncs(lambda log: log.sync()) == {"sync": 0, "batch": 1, "none": 1}[sync]
    log.append("PUT", "k")
    assert syncs(lambda log: log.close()) == {"sync": 0, "batch": 1, "none": 0}[sync]
