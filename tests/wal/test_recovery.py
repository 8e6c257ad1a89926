"""Opening a log after a crash: cases that the tables of torn tails and of damage lack."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import UnavailableError, WalCorruptionError
from lakelog.wal.disk import LocalDisk
from lakelog.wal.encode import Framing, pack_records
from lakelog.wal.frames import FrameHeader, Seal, SegmentHeader, frame_pieces
from lakelog.wal.log import WriteAheadLog
from tests.wal import plain
from tests.wal.crash_disk import Counting, CrashDisk, fail
from tests.wal.damage import settings

LOG_ID = bytes(range(16))
FRAMING = Framing(Seal.of(LOG_ID), "none", 1 << 20)
FIRST = "00000000000000000001.wal"
DIRECTORY = "somewhere/log"


def keys(log: WriteAheadLog) -> list[bytes]:
    return list(log.replay()["key"].to_pylist())


def fill(directory: Path, count: int = 6, **how: Any) -> list[bytes]:
    """A log of records `0`, `1`, …; returns their keys."""
    with WriteAheadLog(directory, **settings(**how)) as log:
        for n in range(count):
            log.append("PUT", str(n), "v" * 100)
        return keys(log)


def frames_of(path: Path) -> list[plain.Frame]:
    return plain.read_frames(path.read_bytes(), LOG_ID)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def refused(directory: Path) -> WalCorruptionError:
    """The error of opening, which changes nothing; a reader gets the same."""
    before = {path.name: path.read_bytes() for path in directory.glob("*.wal*")}
    with pytest.raises(WalCorruptionError) as caught:
        WriteAheadLog(directory)
    with pytest.raises(WalCorruptionError) as read, WriteAheadLog(directory, read_only=True) as log:
        log.replay()
    assert read.value.as_dict() == caught.value.as_dict()
    assert {path.name: path.read_bytes() for path in directory.glob("*.wal*")} == before
    return caught.value


def test_unsynced_frames_may_be_torn_anywhere(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    fill(tmp_path, 6, sync="none")
    path = tmp_path / FIRST
    sixth = frames_of(path)[5]
    flip(path, sixth.offset + 60)
    with WriteAheadLog(tmp_path) as log:
        assert [record.seq_num for record in log.records()] == [1, 2, 3, 4, 5]
        report = log.recovery
        assert report is not None
        assert report.byte_offset == sixth.offset
        assert report.dropped_records == 4
        assert report.reason == "a frame that was not written completely"
        assert report.damage is None


def test_damaged_truncation_mark_before_durable_frames_is_damage(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, **settings()) as log:
        for n in range(4):
            log.append("PUT", str(n), b"")
        log.truncate(2)
        log.append("PUT", "after", b"")
    path = tmp_path / FIRST
    mark = frames_of(path)[4]
    assert mark.kind == 2
    flip(path, mark.offset + 33)
    error = refused(tmp_path)
    assert error.byte_offset == mark.offset
    assert error.safe_seq == 4


def test_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    for kept in (0, 10, 63):
        directory = tmp_path / str(kept)
        fill(directory, 0)
        path = directory / FIRST
        path.write_bytes(path.read_bytes()[:kept])
        with WriteAheadLog(directory) as log:
            assert log.append("PUT", "k", b"") == 1


def test_skipped_sequence_numbers_are_not_a_gap(tmp_path: Path) -> None:
    header = SegmentHeader(LOG_ID, 1, 1, 0, 0).pack()
    (one,) = pack_records(b"\1", [b"a"], [b"1"], 1, 0, FRAMING)
    jump = FrameHeader(40, 5, 1, 1, 0, 4, 40, 1)
    payload = one[32:-8]
    jumped = b"".join(bytes(piece) for piece in frame_pieces(jump, [payload], 0, FRAMING.seal))
    (tmp_path / FIRST).write_bytes(header + one + jumped)
    with WriteAheadLog(tmp_path) as log:
        assert [record.seq_num for record in log.records()] == [1, 5]
        assert log.append("PUT", "b", b"") == 6
    without_jump = FrameHeader(40, 5, 1, 1, 0, 0, 40, 1)
    gapped = b"".join(
        bytes(piece) for piece in frame_pieces(without_jump, [payload], 0, FRAMING.seal)
    )
    (tmp_path / FIRST).write_bytes(header + one + gapped)
    error = refused(tmp_path)
    assert error.byte_offset == 64 + len(one)
    assert (error.expected, error.found) == ("sequence number 2", "sequence number 5")


def large(disk: CrashDisk) -> None:
    """A log whose only segment is large enough to be synced while it is read."""
    with WriteAheadLog(DIRECTORY, disk=disk, sync="none") as log:
        log.append("PUT", "0", "v" * (1 << 20))


def test_failed_sync_during_the_read_of_a_large_segment_is_raised_and_repaired() -> None:
    disk = CrashDisk()
    large(disk)
    disk.watch = Counting(1, fail(errno.EIO), kinds=frozenset({"sync"}))
    with pytest.raises(UnavailableError, match="sync fails"):
        WriteAheadLog(DIRECTORY, disk=disk)
    kinds: list[str] = []
    disk.watch = lambda operation: kinds.append(operation.kind)
    with WriteAheadLog(DIRECTORY, disk=disk) as log:
        assert keys(log) == [b"0"]
    assert "rewrite" in kinds  # because the failed sync may have lost the data
    assert kinds.count("open") == 1  # and nothing is synced before that


def test_a_large_segment_is_synced_even_if_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    disk = CrashDisk()
    large(disk)
    kinds: list[str] = []
    disk.watch = lambda operation: kinds.append(operation.kind)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    with WriteAheadLog(DIRECTORY, disk=disk) as log:
        assert keys(log) == [b"0"]
    assert "sync" in kinds


class DiskThatNeverRenames(LocalDisk):
    def rename(self, source: str, target: str) -> None:
        raise OSError(errno.EIO, f"{source} stays")


@pytest.mark.parametrize("up_to_seq", [0, 2])
def test_segment_damaged_at_its_start_is_set_aside_after_a_failed_attempt(
    tmp_path: Path, up_to_seq: int
) -> None:
    """The segment after it already existed then; it only follows truncated records."""
    fill(tmp_path)
    with WriteAheadLog(tmp_path) as log:
        log.truncate(up_to_seq)
    flip(tmp_path / FIRST, frames_of(tmp_path / FIRST)[0].offset + 40)
    damaged = (tmp_path / FIRST).read_bytes()
    with pytest.raises(UnavailableError, match="stays"):
        WriteAheadLog(tmp_path, strict=False, disk=DiskThatNeverRenames())
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is not None
        assert log.recovery.set_aside == (str(tmp_path / f"{FIRST}.damaged"),)
        assert log.recovery.dropped_records == 6 - max(1, up_to_seq)
        assert (keys(log), log.append("PUT", "new", b"")) == ([], 7)
    assert (tmp_path / f"{FIRST}.damaged").read_bytes() == damaged
    with WriteAheadLog(tmp_path) as log:
        assert (log.recovery, keys(log)) == (None, [b"new"])
