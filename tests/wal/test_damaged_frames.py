"""One test for each kind of damage within a segment: what is recovered, lost, and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.frames import Seal
from lakelog.wal.log import WriteAheadLog
from tests.wal import plain
from tests.wal.damage import (
    LAST,
    LOG_ID,
    PER_SEGMENT,
    SEGMENTS,
    Damage,
    change,
    content,
    flip,
    frames,
    make,
    of_frame,
    segments,
    seqs,
    settings,
    value_of,
)

FIELDS = {
    "magic": (0, "no frame begins at the expected position", "a frame, which begins with 4b51a3f7"),
    "payload length": (5, "", ""),
    "first sequence number": (8, "checksum", "a frame with its checksum"),
    "records": (16, "checksum", "a frame with its checksum"),
    "kind": (20, "checksum", "a frame with its checksum"),
    "codec": (21, "checksum", "a frame with its checksum"),
    "flags": (22, "checksum", "a frame with its checksum"),
    "raw length": (24, "checksum", "a frame with its checksum"),
    "bytes of keys": (28, "checksum", "a frame with its checksum"),
    "payload": (40, "checksum", "a frame with its checksum"),
    "unsynced bytes": (-8, "checksum", "a frame with its checksum"),
    "checksum": (-4, "checksum", "a frame with its checksum"),
}


@pytest.mark.parametrize("segment", range(SEGMENTS))
@pytest.mark.parametrize("field", list(FIELDS))
def test_a_flipped_field_of_a_frame_is_found(directory: Path, field: str, segment: int) -> None:
    """In the first segment, in the middle and in the last one; the second frame of each."""
    path = segments(directory)[segment]
    frame = frames(path)[1]
    offset, message, expected = FIELDS[field]
    flip(path, (frame.offset if offset >= 0 else frame.end) + offset)
    of_frame(
        directory, segment, 1, start=frame.offset, message=message, expected=expected, found=""
    ).check(directory)


@pytest.mark.parametrize("segment", range(SEGMENTS - 1))
def test_a_damaged_last_frame_of_a_segment_that_is_not_the_last_is_found(
    directory: Path, segment: int
) -> None:
    path = segments(directory)[segment]
    frame = frames(path)[PER_SEGMENT - 1]
    flip(path, frame.offset + 50)
    of_frame(
        directory, segment, PER_SEGMENT - 1, message="checksum", expected="checksum", found="bytes"
    ).check(directory)


def test_segment_that_ends_early_is_found(directory: Path) -> None:
    path = segments(directory)[1]
    frame = frames(path)[2]
    path.write_bytes(path.read_bytes()[: frame.offset + 30])
    of_frame(
        directory,
        1,
        2,
        message="does not end at its recorded length",
        expected="a frame of at least 40 bytes",
        found="30 bytes",
        lost_records=PER_SEGMENT,
    ).check(directory)


def test_zero_bytes_in_the_middle_of_a_segment_are_found(directory: Path) -> None:
    path = segments(directory)[-1]
    frame = frames(path)[1]
    change(path, frame.offset, bytes(frame.end - frame.offset))
    of_frame(
        directory, 2, 1, message="no frame begins", expected="4b51a3f7", found="00000000"
    ).check(directory)


@pytest.mark.parametrize(
    ("order", "wrong", "expected", "found"),
    [
        pytest.param([0, 1, 1, 2], 2, LAST - 1, LAST - 2, id="twice"),
        pytest.param([0, 2], 1, LAST - 2, LAST - 1, id="missing"),
        pytest.param([0, 2, 1], 1, LAST - 2, LAST - 1, id="in another order"),
    ],
)
def test_frames_with_noncontiguous_sequence_numbers_are_found(
    directory: Path, order: list[int], wrong: int, expected: int, found: int
) -> None:
    path = segments(directory)[-1]
    data, whole = path.read_bytes(), frames(path)
    pieces = [data[whole[n].offset : whole[n].end] for n in order]
    path.write_bytes(data[: whole[0].offset] + b"".join(pieces) + data[whole[2].end :])
    of_frame(
        directory,
        2,
        wrong,
        message="sequence numbers are not contiguous",
        expected=f"sequence number {expected}",
        found=f"sequence number {found}",
        lost_records=len(order) + 1 - wrong,
    ).check(directory)


def test_frames_after_a_seal_are_found(directory: Path) -> None:
    path = segments(directory)[0]
    frame = frames(segments(directory)[1])[0]
    seal = frames(path)[-1]
    more = segments(directory)[1].read_bytes()[frame.offset : frame.end]
    path.write_bytes(path.read_bytes() + more)
    of_frame(
        directory,
        0,
        PER_SEGMENT,
        start=seal.end,
        message="data follows the end",
        expected="the end of the file",
        found="a frame",
        lost_records=LAST - PER_SEGMENT + 1,
    ).check(directory)


def resealed(path: Path, frame: plain.Frame, offset: int, data: bytes) -> None:
    """Change a frame and correct its checksum."""
    change(path, frame.offset + offset, data)
    body = path.read_bytes()[frame.offset : frame.end - 4]
    change(path, frame.end - 4, Seal.of(LOG_ID).checksum([body]).to_bytes(4, "little"))


@pytest.mark.parametrize(("offset", "data"), [(20, b"\x09"), (21, b"\x07"), (22, b"\x80")])
@pytest.mark.parametrize("read_only", [True, False])
def test_frame_of_a_later_version_raises_unsupported_error(
    directory: Path, offset: int, data: bytes, read_only: bool
) -> None:
    path = segments(directory)[-1]
    frame = frames(path)[1]
    resealed(path, frame, offset, data)
    before = content(directory)
    for strict in (True, False):
        with pytest.raises(UnsupportedError, match="later version") as caught:
            WriteAheadLog(directory, strict=strict, read_only=read_only).replay()
        assert (caught.value.path, caught.value.byte_offset) == (str(path), frame.offset)
    assert content(directory) == before


def test_batch_interrupted_by_other_frames_is_found(tmp_path: Path) -> None:
    make(tmp_path, last=2)
    (path,) = segments(tmp_path)
    with WriteAheadLog(tmp_path, **settings(frame_bytes=200)) as log:
        log.append_batch([("PUT", b"batch", value_of(n)) for n in range(4)])
        last = log.append("PUT", b"key", b"value")
    first, *_, behind = frames(path)[2:]
    # The first frame announces more frames of its batch; the next one is not of a batch.
    resealed(path, behind, 8, first.first_seq.to_bytes(8, "little"))
    data = path.read_bytes()
    resealed(path, first, 16, (0).to_bytes(4, "little"))
    data = path.read_bytes()
    path.write_bytes(data[: first.end] + data[behind.offset :])
    behind_at = first.end
    Damage(
        path=path,
        offset=behind_at,
        message="a batch is not continued",
        expected="a frame of the same batch",
        found="other data",
        safe=[1, 2],
        lost_records=1,
        lost_bytes=path.stat().st_size - first.offset,
        set_aside=[f"{path.name}.damaged"],
        next_seq=4,
    ).check(tmp_path)
    assert last == 8


@pytest.mark.parametrize(("frame", "kept"), [(None, []), (2, []), (8, [7, 8])])
def test_truncated_records_stay_truncated_if_the_mark_follows_the_damage(
    tmp_path: Path, frame: int | None, kept: list[int]
) -> None:
    with WriteAheadLog(tmp_path, **settings()) as log:
        for seq in range(1, 13):
            assert log.append("PUT", b"key %d" % seq, value_of(seq)) == seq
            if seq == 10:
                log.truncate(6)
    (path,) = segments(tmp_path)
    flip(path, 48 if frame is None else frames(path)[frame].offset + 40)
    with pytest.raises(WalCorruptionError) as caught:
        WriteAheadLog(tmp_path)
    safe = kept[-1] if kept else 6
    assert (caught.value.safe_seq, caught.value.safe_records) == (safe, len(kept))
    with WriteAheadLog(tmp_path, read_only=True, strict=False) as reader:
        assert seqs(reader) == kept
        assert reader.truncated_to == 6
    with WriteAheadLog(tmp_path, strict=False) as log:
        assert seqs(log) == kept
        assert (log.truncated_to, log.append("PUT", b"key 13", value_of(13))) == (6, 13)
        assert seqs(log) == [*kept, 13]
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        assert seqs(log) == [*kept, 13]
        assert log.truncated_to == 6
