"""What opening a log makes of what a crash left, and of damage."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import OutcomeUnknownError, UnavailableError, WalCorruptionError
from lakelog.wal import opening, recovery
from lakelog.wal.disk import LocalFile
from lakelog.wal.encode import Framing, pack_records
from lakelog.wal.frames import FLAG_BATCH, FrameHeader, Seal, SegmentHeader, frame_pieces
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.segments import Segment
from tests.wal import plain
from tests.wal.failing import FailingDisk, settings

LOG_ID = bytes(range(16))
FRAMING = Framing(Seal.of(LOG_ID), "none", 1 << 20)
FIRST = "00000000000000000001.wal"


def keys(log: WriteAheadLog) -> list[bytes]:
    return list(log.replay()["key"].to_pylist())


def fill(directory: Path, count: int = 6, **how: Any) -> list[bytes]:
    """A log of records `0`, `1`, …; their keys."""
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
    """The error of opening, which changes nothing; a reader's is the same."""
    before = {path.name: path.read_bytes() for path in directory.glob("*.wal*")}
    with pytest.raises(WalCorruptionError) as caught:
        WriteAheadLog(directory)
    with (
        pytest.raises(WalCorruptionError) as read,
        WriteAheadLog(directory, read_only=True) as log,
    ):
        log.replay()
    assert read.value.as_dict() == caught.value.as_dict()
    assert {path.name: path.read_bytes() for path in directory.glob("*.wal*")} == before
    return caught.value


def test_a_torn_tail_is_trimmed_reported_and_written_over(tmp_path: Path) -> None:
    whole = fill(tmp_path)
    path = tmp_path / FIRST
    last = frames_of(path)[-1]
    path.write_bytes(path.read_bytes()[: last.offset + 50])
    with WriteAheadLog(tmp_path, read_only=True) as reader:
        assert keys(reader) == whole[:-1]
    assert path.stat().st_size == last.offset + 50
    with WriteAheadLog(tmp_path) as log:
        report = log.recovery
        assert report is not None
        assert (report.path, report.byte_offset) == (str(path), last.offset)
        assert (report.dropped_bytes, report.dropped_records) == (50, 0)
        assert report.safe_seq == 5
        assert report.reason == "a frame that was not written completely"
        assert report.damage is None
        assert path.stat().st_size == last.offset
        assert log.append("PUT", "next") == 6
        assert keys(log) == [*whole[:-1], b"next"]
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        assert keys(log) == [*whole[:-1], b"next"]


def test_an_unfinished_batch_is_trimmed_whole(tmp_path: Path) -> None:
    whole = fill(tmp_path, frame_bytes=300)
    with WriteAheadLog(tmp_path, frame_bytes=300) as log:
        log.append_batch([("PUT", f"b{n}", "v" * 100) for n in range(9)])
    path = tmp_path / FIRST
    frames = frames_of(path)
    batch = [frame for frame in frames if frame.flags & FLAG_BATCH]
    assert len(batch) > 3
    for frame in reversed(batch):
        path.write_bytes(path.read_bytes()[: frame.offset])
        with WriteAheadLog(tmp_path, read_only=True) as reader:
            assert keys(reader) == whole
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy)
        with WriteAheadLog(copy) as log:
            assert keys(log) == whole
            assert log.append("PUT", "next") == len(whole) + 1
            if frame is not batch[0]:
                assert log.recovery is not None
                assert log.recovery.byte_offset == batch[0].offset
                assert log.recovery.reason == "a batch that was not written completely"
        shutil.rmtree(copy)


def test_what_was_never_synced_may_be_torn_anywhere(tmp_path: Path) -> None:
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


def test_what_was_synced_may_not(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    path = tmp_path / FIRST
    sixth = frames_of(path)[5]
    flip(path, sixth.offset + 60)
    error = refused(tmp_path)
    assert (error.path, error.byte_offset) == (str(path), sixth.offset)
    assert (error.safe_seq, error.safe_records) == (5, 5)
    assert error.expected is not None
    assert error.found is not None
    assert "strict=False" in (error.hint or "")


def test_a_truncation_is_not_torn_with_what_follows_it(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, **settings()) as log:
        for n in range(4):
            log.append("PUT", str(n))
        log.truncate(2)
        log.append("PUT", "after")
    path = tmp_path / FIRST
    mark = frames_of(path)[4]
    assert mark.kind == 2
    flip(path, mark.offset + 33)
    error = refused(tmp_path)
    assert error.byte_offset == mark.offset
    assert error.safe_seq == 4


def test_an_older_frame_inside_a_torn_value_proves_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    path = tmp_path / FIRST
    copied = path.read_bytes()[64:]
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "a copy of the log", copied + b"the end")
    last = frames_of(path)[-1]
    path.write_bytes(path.read_bytes()[: last.end - 16])
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is not None
        assert log.recovery.byte_offset == last.offset
        assert log.current_seq_num() == 3


def test_going_on_from_damage_keeps_what_is_safe_and_the_rest_aside(tmp_path: Path) -> None:
    whole = fill(tmp_path, 30, segment_bytes=900)
    paths = sorted(tmp_path.glob("*.wal"))
    assert len(paths) >= 4
    damaged = paths[1]
    frame = frames_of(damaged)[2]
    originals = {path.name: path.read_bytes() for path in paths}
    flip(damaged, frame.offset + 60)
    bytes_before = damaged.read_bytes()
    error = refused(tmp_path)
    assert error.path == str(damaged)
    safe = frame.first_seq - 1
    assert (error.safe_seq, error.safe_records) == (safe, safe)

    with WriteAheadLog(tmp_path, read_only=True, strict=False) as reader:
        assert keys(reader) == whole[:safe]
        assert reader.recovery is not None
        assert reader.recovery.set_aside == ()
    assert sorted(tmp_path.glob("*.damaged")) == []

    with WriteAheadLog(tmp_path, strict=False) as log:
        report = log.recovery
        assert report is not None
        assert report.path == str(damaged)
        assert report.byte_offset == frame.offset
        assert report.dropped_records == 30 - safe - 1  # the damaged one cannot be counted
        assert report.safe_seq == safe
        assert report.damage is not None
        assert report.damage["kind"] == "wal_corruption"
        assert keys(log) == whole[:safe]
        # Nobody who has seen a later number misses what comes now.
        assert log.current_seq_num() == 30
        assert log.append("PUT", "next") == 31
        aside = {Path(path).name: Path(path).read_bytes() for path in report.set_aside}
    assert aside == {f"{damaged.name}.damaged": bytes_before} | {
        f"{path.name}.damaged": originals[path.name] for path in paths[2:]
    }
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        assert keys(log) == [*whole[:safe], b"next"]
        assert [table["seqNum"][-1].as_py() for table in log.iterate(safe)] == [31]
        log.truncate(31)
        assert log.current_seq_num() == 31


def test_going_on_twice_sets_aside_under_two_names(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    path = tmp_path / FIRST
    for names in (1, 2):
        flip(path, 70)
        with WriteAheadLog(tmp_path, strict=False) as log:
            log.append("PUT", "next")
        assert len(list(tmp_path.glob("*.damaged"))) == names
        if names == 1:
            for other in tmp_path.glob("*.wal"):
                path = other
            with WriteAheadLog(tmp_path) as log:
                log.append("PUT", "more")


@pytest.mark.parametrize("kept", [0, 3, 40])
def test_a_segment_that_was_being_made_is_made_again(tmp_path: Path, kept: int) -> None:
    whole = fill(tmp_path)
    with WriteAheadLog(tmp_path, **settings(segment_bytes=100)) as log:
        log.append("PUT", "rotated")
    first, second = sorted(tmp_path.glob("*.wal"))
    seal = frames_of(first)[-1]
    assert seal.kind == 3
    # Before the seal is written nothing says that the second one was there.
    first.write_bytes(first.read_bytes()[: seal.offset])
    second.write_bytes(second.read_bytes()[:kept])
    with WriteAheadLog(tmp_path, read_only=True) as reader:
        assert keys(reader) == whole
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is not None
        assert (log.recovery.path, log.recovery.byte_offset) == (str(second), 0)
        assert log.append("PUT", "next") == 7
        assert keys(log) == [*whole, b"next"]


def test_a_log_that_was_being_made_is_made_again(tmp_path: Path) -> None:
    for kept in (0, 10, 63):
        directory = tmp_path / str(kept)
        fill(directory, 0)
        path = directory / FIRST
        path.write_bytes(path.read_bytes()[:kept])
        with WriteAheadLog(directory) as log:
            assert log.append("PUT", "k") == 1


def test_a_sealed_segment_misses_the_one_behind_it(tmp_path: Path) -> None:
    fill(tmp_path, 10, segment_bytes=400)
    last = max(tmp_path.glob("*.wal"))
    last.unlink()
    error = refused(tmp_path)
    assert "last segment is missing" in error.message
    assert error.expected == last.name


def test_a_truncation_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    fill(tmp_path, 10, segment_bytes=400)
    copies = {path: path.read_bytes() for path in tmp_path.glob("*.wal")}
    with WriteAheadLog(tmp_path) as log:
        log.truncate(10)
    (left,) = tmp_path.glob("*.wal")
    for back in sorted(copies)[:2]:
        back.write_bytes(copies[back][:-7])
    with WriteAheadLog(tmp_path, read_only=True) as reader:
        assert keys(reader) == []
    with WriteAheadLog(tmp_path) as log:
        assert keys(log) == []
        assert log.current_seq_num() == 10
    assert list(tmp_path.glob("*.wal")) == [left]


def test_numbers_that_were_given_up_are_no_gap(tmp_path: Path) -> None:
    header = SegmentHeader(LOG_ID, 1, 1, 0, 0).pack()
    (one,) = pack_records(b"\1", [b"a"], [b"1"], 1, 0, FRAMING)
    jump = FrameHeader(40, 5, 1, 1, 0, 4, 40, 1)
    payload = one[32:-8]
    jumped = b"".join(bytes(piece) for piece in frame_pieces(jump, [payload], 0, FRAMING.seal))
    (tmp_path / FIRST).write_bytes(header + one + jumped)
    with WriteAheadLog(tmp_path) as log:
        assert [record.seq_num for record in log.records()] == [1, 5]
        assert log.append("PUT", "b") == 6
    plainly = FrameHeader(40, 5, 1, 1, 0, 0, 40, 1)
    gapped = b"".join(bytes(piece) for piece in frame_pieces(plainly, [payload], 0, FRAMING.seal))
    (tmp_path / FIRST).write_bytes(header + one + gapped)
    error = refused(tmp_path)
    assert error.byte_offset == 64 + len(one)
    assert (error.expected, error.found) == ("sequence number 2", "sequence number 5")


def torn(directory: Path) -> None:
    path = directory / FIRST
    path.write_bytes(path.read_bytes()[:-9])


def unborn(directory: Path) -> None:
    torn(directory)
    (directory / "00000000000000000006.wal").write_bytes(b"")


def damaged(directory: Path) -> None:
    flip(directory / FIRST, 300)


def void(directory: Path) -> None:
    path = directory / FIRST
    copy = path.read_bytes()
    with WriteAheadLog(directory) as log:
        log.truncate(log.current_seq_num())
    path.write_bytes(copy)
    (directory / "00000000000000000007.wal.tmp").write_bytes(b"left")


@pytest.mark.parametrize("times", [1, 2, 99])
@pytest.mark.parametrize("spoil", [torn, unborn, damaged, void])
def test_opening_that_fails_at_any_operation_can_be_done_again(
    tmp_path: Path, spoil: Any, times: int
) -> None:
    model = tmp_path / "model"
    fill(model, 6)
    spoil(model)
    calm = tmp_path / "calm"
    shutil.copytree(model, calm)
    with WriteAheadLog(calm, strict=False, **settings()) as log:
        expected, last = keys(log), log.current_seq_num()
    fail_at = 0
    while True:
        fail_at += 1
        directory = tmp_path / str(fail_at)
        shutil.copytree(model, directory)
        disk = FailingDisk(fail_at, times)
        with contextlib.suppress(UnavailableError, OutcomeUnknownError):
            WriteAheadLog(directory, strict=False, **settings(disk=disk)).close()
        with WriteAheadLog(directory, strict=False, **settings()) as log:
            assert keys(log) == expected
            assert log.current_seq_num() >= last
            assert log.append("PUT", "next") > last
        with WriteAheadLog(directory) as log:
            assert log.recovery is None
            assert keys(log) == [*expected, b"next"]
        assert list(directory.glob("*.tmp")) == []
        if not disk.failed:
            return


def test_a_large_last_segment_is_synced_while_it_is_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fill(tmp_path, sync="none")
    monkeypatch.setattr(opening, "_MANY_BYTES", 100)
    synced = threading.Event()
    with_frames = recovery.with_frames

    def looked_through(segment: Segment, log_id: bytes) -> Segment:
        assert synced.wait(120), "what is looked through is not synced meanwhile"
        return with_frames(segment, log_id)

    def sync(file: LocalFile) -> None:
        synced.set()

    monkeypatch.setattr(recovery, "with_frames", looked_through)
    monkeypatch.setattr(LocalFile, "sync", sync)
    with WriteAheadLog(tmp_path) as log:
        assert keys(log) == found


def test_a_sync_that_fails_beside_looking_through_is_told_and_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fill(tmp_path, sync="none")
    monkeypatch.setattr(opening, "_MANY_BYTES", 100)
    disk = FailingDisk(2)
    with pytest.raises(UnavailableError, match="sync fails"):
        WriteAheadLog(tmp_path, disk=disk)
    assert disk.done == ["open", "sync"]
    disk.arm(0)
    with WriteAheadLog(tmp_path, disk=disk) as log:
        assert keys(log) == found
        assert "rewrite" in disk.done  # for the sync that failed may have given it up
        assert disk.done.count("open") == 1  # and nothing is synced before that


def test_a_large_last_segment_is_synced_even_where_no_thread_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fill(tmp_path, sync="none")
    monkeypatch.setattr(opening, "_MANY_BYTES", 100)

    def refused(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    disk = FailingDisk(0)
    with WriteAheadLog(tmp_path, disk=disk) as log:
        assert keys(log) == found
    assert "sync" in disk.done


class DiskThatNeverRenames(FailingDisk):
    def rename(self, source: str, target: str) -> None:
        raise OSError(errno.EIO, f"{source} stays")


@pytest.mark.parametrize("up_to_seq", [0, 2])
def test_what_is_damaged_at_its_beginning_is_set_aside_where_that_failed_before(
    tmp_path: Path, up_to_seq: int
) -> None:
    """A segment behind it was made by then, which follows nothing but what is void."""
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
        assert (keys(log), log.append("PUT", "new")) == ([], 7)
    assert (tmp_path / f"{FIRST}.damaged").read_bytes() == damaged
    with WriteAheadLog(tmp_path) as log:
        assert (log.recovery, keys(log)) == (None, [b"new"])
