"""A torn tail is not corruption: bytes after the last complete record are trimmed after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.wal.frames import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from lakelog.wal.log import WriteAheadLog
from tests.wal import plain
from tests.wal.damage import (
    LAST,
    PER_SEGMENT,
    content,
    flip,
    frames,
    make,
    segments,
    seqs,
    settings,
    value_of,
)


def check_torn(
    directory: Path,
    size: int,
    reason: str,
    dropped: tuple[int, int],
    left: int,
    *,
    is_plain: bool = True,
) -> None:
    """All callers can open a torn log, and get a report; larger leftovers are kept."""
    path = segments(directory)[-1]
    aside = [] if is_plain else [f"{path}.tail.damaged"]
    before = content(directory)
    for strict in (True, False):
        with WriteAheadLog(directory, read_only=True, strict=strict) as reader:
            assert seqs(reader) == list(range(1, left + 1))
            assert reader.current_seq_num() == left
            assert reader.recovery is None
    assert content(directory) == before
    with WriteAheadLog(directory) as log:
        report = log.recovery
        assert report is not None
        assert (report.path, report.byte_offset, report.reason) == (str(path), size, reason)
        assert (report.dropped_bytes, report.dropped_records) == dropped
        assert (report.safe_seq, report.damage) == (left, None)
        assert list(report.set_aside) == aside
        assert all(Path(each).read_bytes() == before[path.name][size:] for each in aside)
        assert path.stat().st_size == size
        assert seqs(log) == list(range(1, left + 1))
        assert log.append("PUT", b"key %d" % (left + 1), value_of(left + 1)) == left + 1
    with WriteAheadLog(directory) as log:
        assert log.recovery is None
        assert seqs(log) == list(range(1, left + 2))


def test_tail_torn_at_any_byte_of_the_last_frame_is_trimmed_and_reported(tmp_path: Path) -> None:
    make(tmp_path, last=3)
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    last = frames(path)[-1]
    for cut in range(last.offset + 1, last.end):
        path.write_bytes(data[:cut])
        reason = "a frame that was not written completely"
        check_torn(tmp_path, last.offset, reason, (cut - last.offset, 0), 2)
    path.write_bytes(data[: last.offset])
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        assert seqs(log) == [1, 2]


@pytest.mark.parametrize("frames_lost", [0, 1])
def test_tail_of_zero_bytes_is_trimmed_and_reported(directory: Path, frames_lost: int) -> None:
    path = segments(directory)[-1]
    last = frames(path)[-1]
    end = last.offset if frames_lost else last.end
    size = last.end - last.offset if frames_lost else 5001
    path.write_bytes(path.read_bytes()[:end] + bytes(size))
    reason = "zero bytes up to the end of the file"
    check_torn(directory, end, reason, (size, 0), LAST - frames_lost)


@pytest.mark.parametrize("field", ["header", "payload", "trailer"])
def test_last_frame_with_changed_bytes_is_trimmed_and_reported(directory: Path, field: str) -> None:
    # Nothing proves that it was durable: a crash may leave the same. But it may have been.
    path = segments(directory)[-1]
    last = frames(path)[-1]
    at = {"header": 12, "payload": FRAME_HEADER_BYTES + 5, "trailer": last.end - last.offset - 3}
    flip(path, last.offset + at[field])
    dropped = (last.end - last.offset, 0)
    check_torn(
        directory,
        last.offset,
        "a frame that was not written completely",
        dropped,
        LAST - 1,
        is_plain=False,
    )


def test_trailing_bytes_that_are_not_a_frame_are_trimmed_and_reported(directory: Path) -> None:
    path = segments(directory)[-1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"something else")
    check_torn(directory, size, "bytes that are not a frame", (14, 0), LAST, is_plain=False)


def test_frames_of_another_log_in_recycled_space_are_never_read(tmp_path: Path) -> None:
    make(tmp_path / "log", last=2)
    make(tmp_path / "other", log_id=bytes(16), last=4)
    (path,), (other,) = segments(tmp_path / "log"), segments(tmp_path / "other")
    size = path.stat().st_size
    rest = other.read_bytes()[size:]  # its third and fourth frame, complete
    assert [frame.first_seq for frame in plain.read_frames(other.read_bytes(), bytes(16))][2:] == [
        *(3, 4)
    ]
    path.write_bytes(path.read_bytes() + rest)
    reason = "a frame that was not written completely"
    check_torn(tmp_path / "log", size, reason, (len(rest), 0), 2, is_plain=False)


def test_old_frame_inside_a_torn_frame_does_not_prove_durability(tmp_path: Path) -> None:
    """A value that contains a complete frame of the log, in a frame that was torn."""
    make(tmp_path, last=2)
    (path,) = segments(tmp_path)
    size = path.stat().st_size
    old = path.read_bytes()[SEGMENT_HEADER_BYTES:size]
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"a log", bytes(-len(old) % 8) + old + bytes(500))
    data = path.read_bytes()
    assert old in data[size:]
    path.write_bytes(data[:-100])
    check_torn(
        tmp_path, size, "a frame that was not written completely", (len(data) - 100 - size, 0), 2
    )


@pytest.mark.parametrize("left", [0, 1, 63, "zeros"])
def test_segment_without_header_is_removed_and_reported(directory: Path, left: int | str) -> None:
    """A crash while a segment was created; the seal of the one before was not written yet."""
    made, before = segments(directory)[-1], segments(directory)[-2]
    seal = frames(before)[-1]
    before.write_bytes(before.read_bytes()[: seal.offset])
    part = bytes(4096) if left == "zeros" else made.read_bytes()[: int(left)]
    made.write_bytes(part)
    last = LAST - PER_SEGMENT
    held = content(directory)
    with WriteAheadLog(directory, read_only=True) as reader:
        assert seqs(reader) == list(range(1, last + 1))
        assert reader.current_seq_num() == last
        assert reader.replay(last).num_rows == 0
        assert reader.recovery is None
    assert content(directory) == held
    with WriteAheadLog(directory, **settings()) as log:
        report = log.recovery
        assert report is not None
        assert (report.path, report.byte_offset) == (str(made), 0)
        assert (report.dropped_bytes, report.dropped_records) == (len(part), 0)
        assert (report.reason, report.damage) == ("the segment has no header", None)
        assert not made.exists()
        assert log.append("PUT", b"key %d" % (last + 1), value_of(last + 1)) == last + 1
        assert seqs(log) == list(range(1, last + 2))


def test_unfinished_batch_at_the_end_is_trimmed_and_reported(tmp_path: Path) -> None:
    make(tmp_path, last=2)
    (path,) = segments(tmp_path)
    size = path.stat().st_size
    with WriteAheadLog(tmp_path, **settings(frame_bytes=200)) as log:
        log.append_batch([("PUT", b"batch", value_of(n)) for n in range(9)])
    of_batch = frames(path)[2:]
    assert len(of_batch) > 2
    data = path.read_bytes()
    for count in range(1, len(of_batch)):
        path.write_bytes(data[: of_batch[count].offset])
        records = sum(frame.records for frame in of_batch[:count])
        dropped = (of_batch[count].offset - size, records)
        check_torn(tmp_path, size, "a batch that was not written completely", dropped, 2)
