"""One test for each kind of damage: what is recovered, what is lost, and what is told of it.

Each log here is looked at three times: by a strict writer, which refuses it and changes nothing; by
a reader, which changes nothing; and by a writer that is not strict, which goes on from what is
safe and keeps the rest under another name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.frames import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, Seal
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.opening import RecoveryReport
from tests.wal import plain

LOG_ID = bytes(range(16))
SEGMENTS = 3
PER_SEGMENT = 4  # records, one a frame
LAST = SEGMENTS * PER_SEGMENT


def settings(**given: Any) -> dict[str, Any]:
    return {"clock": lambda: 1_700_000_000_000, "new_id": lambda: LOG_ID, **given}


def value_of(seq: int) -> bytes:
    return b"value %d " % seq * 9


def make(directory: Path, log_id: bytes = LOG_ID, last: int = LAST) -> None:
    """A log of three segments, four frames each, and its seals."""
    per_frame = (FRAME_HEADER_BYTES + 150) * (PER_SEGMENT - 1)
    how = settings(segment_bytes=per_frame, new_id=lambda: log_id)
    with WriteAheadLog(directory, **how) as log:
        for seq in range(1, last + 1):
            assert log.append("PUT", b"key %d" % seq, value_of(seq)) == seq


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path / "log")
    assert len(segments(tmp_path / "log")) == SEGMENTS
    return tmp_path / "log"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.wal"))


def frames(path: Path) -> list[plain.Frame]:
    return plain.read_frames(path.read_bytes(), LOG_ID)


def change(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, offset: int) -> None:
    change(path, offset, bytes([path.read_bytes()[offset] ^ 0x20]))


def seqs(log: WriteAheadLog) -> list[int]:
    found: list[int] = log.replay()["seqNum"].to_pylist()
    for seq, record in zip(found, log.records(), strict=True):
        assert (record.seq_num, record.key, record.value) == (seq, b"key %d" % seq, value_of(seq))
    return found


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".lock"}


@dataclass
class Damage:
    """What has to be told.

    Attributes:
        path: The segment.
        offset: Where in it.
        message: What is said.
        expected: What should have been there, or a part of that text.
        found: What was there, or a part of that text.
        safe: Sequence numbers of the records that are to be had.
        lost_records: Whole records behind these.
        lost_bytes: Bytes that are not kept.
        set_aside: Names of the files that hold what was dropped.
        goes_on: The sequence number that the next record gets.
    """

    path: Path
    offset: int
    message: str
    expected: str
    found: str
    safe: list[int]
    lost_records: int
    lost_bytes: int
    set_aside: list[str]
    goes_on: int

    def check_error(self, error: WalCorruptionError) -> None:
        assert (error.path, error.byte_offset) == (str(self.path), self.offset)
        assert self.message in error.message
        assert self.expected in str(error.expected)
        assert self.found in str(error.found)
        assert error.safe_seq == (self.safe[-1] if self.safe else 0)
        assert error.safe_records == len(self.safe)
        assert "strict=False" in str(error.hint)

    def check_report(self, report: RecoveryReport | None, directory: Path, *, moved: bool) -> None:
        assert report is not None
        assert (report.path, report.byte_offset) == (str(self.path), self.offset)
        assert self.message in report.reason
        assert report.safe_seq == (self.safe[-1] if self.safe else 0)
        assert report.dropped_records == self.lost_records
        assert report.dropped_bytes == self.lost_bytes
        assert report.damage is not None
        assert report.damage["kind"] == "wal_corruption"
        kept = [str(directory / name) for name in self.set_aside] if moved else []
        assert list(report.set_aside) == kept

    def check(self, directory: Path) -> None:
        before = content(directory)
        with pytest.raises(WalCorruptionError) as caught:
            WriteAheadLog(directory)
        self.check_error(caught.value)
        with pytest.raises(WalCorruptionError) as caught:
            WriteAheadLog(directory, read_only=True).replay()
        self.check_error(caught.value)
        with WriteAheadLog(directory, read_only=True, strict=False) as reader:
            assert seqs(reader) == self.safe
            self.check_report(reader.recovery, directory, moved=False)
        assert content(directory) == before, "looking changed something"
        with WriteAheadLog(directory, **settings(strict=False)) as log:
            self.check_report(log.recovery, directory, moved=True)
            assert seqs(log) == self.safe
            assert log.append("PUT", b"key %d" % self.goes_on, value_of(self.goes_on)) == (
                self.goes_on
            )
        after = content(directory)
        for name in self.set_aside:
            assert after[name] == before[name.removesuffix(".damaged")], "not all was kept"
        with WriteAheadLog(directory) as log:
            assert log.recovery is None
            assert seqs(log) == [*self.safe, self.goes_on]
        with WriteAheadLog(directory, read_only=True) as reader:
            assert seqs(reader) == [*self.safe, self.goes_on]


def of_frame(directory: Path, segment: int, frame: int, **told: Any) -> Damage:
    """What has to be told of damage that begins with a frame."""
    paths = segments(directory)
    path = paths[segment]
    start = SEGMENT_HEADER_BYTES
    if frame:
        start = told.pop("start", None) or frames(path)[frame - 1].end
    lost = paths[segment:]
    safe = segment * PER_SEGMENT + frame
    sizes = [each.stat().st_size for each in lost]
    defaults = {
        "path": path,
        "offset": start,
        "safe": list(range(1, safe + 1)),
        "lost_records": LAST - safe - 1,  # the damaged one is none any more
        "lost_bytes": sum(sizes) - (start if frame else 0),
        "set_aside": [f"{each.name}.damaged" for each in lost],
        "goes_on": LAST + 1,
    }
    return Damage(**{**defaults, **told})


# --- a torn tail is no damage ---------------------------------------------------------------------


def torn(directory: Path, size: int, reason: str, dropped: tuple[int, int], left: int) -> None:
    """A log whose end is torn is opened by everybody, and said to have been torn."""
    path = segments(directory)[-1]
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
        assert (report.safe_seq, report.damage, report.set_aside) == (left, None, ())
        assert path.stat().st_size == size
        assert seqs(log) == list(range(1, left + 1))
        assert log.append("PUT", b"key %d" % (left + 1), value_of(left + 1)) == left + 1
    with WriteAheadLog(directory) as log:
        assert log.recovery is None
        assert seqs(log) == list(range(1, left + 2))


def test_a_tail_torn_at_any_byte_of_the_last_frame_is_trimmed_and_told_of(tmp_path: Path) -> None:
    make(tmp_path, last=3)
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    last = frames(path)[-1]
    for cut in range(last.offset + 1, last.end):
        path.write_bytes(data[:cut])
        reason = "a frame that was not written to its end"
        torn(tmp_path, last.offset, reason, (cut - last.offset, 0), 2)
    path.write_bytes(data[: last.offset])
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        assert seqs(log) == [1, 2]


def test_a_tail_of_zeros_is_trimmed_and_told_of(directory: Path) -> None:
    path = segments(directory)[-1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(5001))
    torn(directory, size, "zero bytes up to the end of the file", (5001, 0), LAST)


def test_a_last_frame_that_became_zeros_is_trimmed_and_told_of(directory: Path) -> None:
    path = segments(directory)[-1]
    last = frames(path)[-1]
    size = last.end - last.offset
    change(path, last.offset, bytes(size))
    torn(directory, last.offset, "zero bytes up to the end of the file", (size, 0), LAST - 1)


@pytest.mark.parametrize("field", ["header", "payload", "trailer"])
def test_a_last_frame_with_other_bytes_is_trimmed_and_told_of(directory: Path, field: str) -> None:
    # Nothing proves that it was ever durable: a crash may leave the same.
    path = segments(directory)[-1]
    last = frames(path)[-1]
    at = {"header": 12, "payload": FRAME_HEADER_BYTES + 5, "trailer": last.end - last.offset - 3}
    flip(path, last.offset + at[field])
    dropped = (last.end - last.offset, 0)
    torn(directory, last.offset, "a frame that was not written whole", dropped, LAST - 1)


def test_bytes_that_are_no_frame_at_the_end_are_trimmed_and_told_of(directory: Path) -> None:
    path = segments(directory)[-1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"something else")
    torn(directory, size, "bytes that are no frame", (14, 0), LAST)


def test_frames_of_another_log_in_recycled_space_are_never_taken(tmp_path: Path) -> None:
    make(tmp_path / "log", last=2)
    make(tmp_path / "other", log_id=bytes(16), last=4)
    (path,), (other,) = segments(tmp_path / "log"), segments(tmp_path / "other")
    size = path.stat().st_size
    rest = other.read_bytes()[size:]  # there its third and fourth frame begin, whole
    assert [frame.first_seq for frame in plain.read_frames(other.read_bytes(), bytes(16))][2:] == [
        *(3, 4)
    ]
    path.write_bytes(path.read_bytes() + rest)
    reason = "a frame that was not written whole"
    torn(tmp_path / "log", size, reason, (len(rest), 0), 2)


def test_an_old_frame_of_the_same_log_within_a_torn_one_proves_nothing(tmp_path: Path) -> None:
    """A value that holds a whole frame of the log, in a frame that was torn."""
    make(tmp_path, last=2)
    (path,) = segments(tmp_path)
    size = path.stat().st_size
    old = path.read_bytes()[SEGMENT_HEADER_BYTES:size]
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"a log", bytes(-len(old) % 8) + old + bytes(500))
    data = path.read_bytes()
    assert old in data[size:]
    path.write_bytes(data[:-100])
    torn(tmp_path, size, "a frame that was not written to its end", (len(data) - 100 - size, 0), 2)


@pytest.mark.parametrize("left", [0, 1, 63, "zeros"])
def test_a_segment_that_was_never_begun_is_removed_and_told_of(
    directory: Path, left: int | str
) -> None:
    """A crash while a segment was being made; the seal of the one before was not written yet."""
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
        assert (report.reason, report.damage) == ("the segment was never begun", None)
        assert not made.exists()
        assert log.append("PUT", b"key %d" % (last + 1), value_of(last + 1)) == last + 1
        assert seqs(log) == list(range(1, last + 2))


def test_an_unfinished_batch_at_the_end_is_trimmed_and_told_of(tmp_path: Path) -> None:
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
        torn(tmp_path, size, "a batch that was not written to its end", dropped, 2)


# --- frames ---------------------------------------------------------------------------------------

FIELDS = {
    "magic": (0, "no frame begins where one has to", "a frame, which begins with 4b51a3f7"),
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


def test_a_segment_that_ends_before_the_next_one_begins_is_found(directory: Path) -> None:
    path = segments(directory)[1]
    frame = frames(path)[2]
    path.write_bytes(path.read_bytes()[: frame.offset + 30])
    of_frame(
        directory,
        1,
        2,
        message="does not end where it says",
        expected="a frame of at least 40 bytes",
        found="30 bytes",
        lost_records=PER_SEGMENT,
    ).check(directory)


def test_zeros_in_the_midst_of_a_segment_are_found(directory: Path) -> None:
    path = segments(directory)[-1]
    frame = frames(path)[1]
    change(path, frame.offset, bytes(frame.end - frame.offset))
    of_frame(
        directory, 2, 1, message="no frame begins", expected="4b51a3f7", found="00000000"
    ).check(directory)


def test_a_frame_that_is_there_twice_is_found(directory: Path) -> None:
    path = segments(directory)[-1]
    frame = frames(path)[1]
    data = path.read_bytes()
    path.write_bytes(data[: frame.end] + data[frame.offset :])
    of_frame(
        directory,
        2,
        2,
        message="sequence numbers do not follow",
        expected=f"sequence number {LAST - 1}",
        found=f"sequence number {LAST - 2}",
        lost_records=3,
    ).check(directory)


def test_a_frame_that_is_missing_is_found(directory: Path) -> None:
    path = segments(directory)[-1]
    frame = frames(path)[1]
    data = path.read_bytes()
    path.write_bytes(data[: frame.offset] + data[frame.end :])
    of_frame(
        directory,
        2,
        1,
        message="sequence numbers do not follow",
        expected=f"sequence number {LAST - 2}",
        found=f"sequence number {LAST - 1}",
        lost_records=2,
    ).check(directory)


def test_frames_in_another_order_are_found(directory: Path) -> None:
    path = segments(directory)[-1]
    one, two = frames(path)[1:3]
    data = path.read_bytes()
    path.write_bytes(
        data[: one.offset] + data[one.end : two.end] + data[one.offset : one.end] + data[two.end :]
    )
    of_frame(
        directory,
        2,
        1,
        message="sequence numbers do not follow",
        expected=f"sequence number {LAST - 2}",
        found=f"sequence number {LAST - 1}",
        lost_records=3,
    ).check(directory)


def test_frames_behind_a_seal_are_found(directory: Path) -> None:
    path = segments(directory)[0]
    frame = frames(segments(directory)[1])[0]
    seal = frames(path)[-1]
    more = segments(directory)[1].read_bytes()[frame.offset : frame.end]
    path.write_bytes(path.read_bytes() + more)
    paths = segments(directory)
    Damage(
        path=path,
        offset=seal.end,
        message="goes on behind its end",
        expected="the end of the file",
        found="a frame",
        safe=list(range(1, PER_SEGMENT + 1)),
        lost_records=LAST - PER_SEGMENT + 1,
        lost_bytes=sum(each.stat().st_size for each in paths) - seal.end,
        set_aside=[f"{each.name}.damaged" for each in paths],
        goes_on=LAST + 1,
    ).check(directory)


def resealed(path: Path, frame: plain.Frame, offset: int, data: bytes) -> None:
    """Change a frame so that its checksum is right."""
    change(path, frame.offset + offset, data)
    body = path.read_bytes()[frame.offset : frame.end - 4]
    change(path, frame.end - 4, Seal.of(LOG_ID).checksum([body]).to_bytes(4, "little"))


@pytest.mark.parametrize(("offset", "data"), [(20, b"\x09"), (21, b"\x07"), (22, b"\x80")])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_frame_of_a_later_version_is_refused_as_such(
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


def test_a_batch_that_breaks_off_before_other_frames_is_found(tmp_path: Path) -> None:
    make(tmp_path, last=2)
    (path,) = segments(tmp_path)
    with WriteAheadLog(tmp_path, **settings(frame_bytes=200)) as log:
        log.append_batch([("PUT", b"batch", value_of(n)) for n in range(4)])
        last = log.append("PUT", b"key", b"value")
    first, *_, behind = frames(path)[2:]
    # The first frame says that the batch goes on; what goes on now is no batch.
    resealed(path, behind, 8, first.first_seq.to_bytes(8, "little"))
    data = path.read_bytes()
    resealed(path, first, 16, (0).to_bytes(4, "little"))
    data = path.read_bytes()
    path.write_bytes(data[: first.end] + data[behind.offset :])
    behind_at = first.end
    Damage(
        path=path,
        offset=behind_at,
        message="a batch does not go on",
        expected="a frame of the same batch",
        found="something else",
        safe=[1, 2],
        lost_records=1,
        lost_bytes=path.stat().st_size - first.offset,
        set_aside=[f"{path.name}.damaged"],
        goes_on=4,
    ).check(tmp_path)
    assert last == 8


# --- segments -------------------------------------------------------------------------------------

HEADER_FIELDS = {
    "magic": 0,
    "format version": 4,
    "flags": 6,
    "log id": 8,
    "first sequence number": 24,
    "sequence number before": 32,
    "truncated to": 40,
    "time": 48,
    "unused": 56,
    "checksum": 60,
}


def of_segment(directory: Path, segment: int, **told: Any) -> Damage:
    """What has to be told of a segment that cannot be used; all its frames are lost."""
    return of_frame(directory, segment, 0, **{"lost_records": LAST - segment * PER_SEGMENT, **told})


@pytest.mark.parametrize("segment", range(SEGMENTS))
@pytest.mark.parametrize("field", list(HEADER_FIELDS))
def test_a_flipped_field_of_a_segments_header_is_found(
    directory: Path, field: str, segment: int
) -> None:
    path = segments(directory)[segment]
    flip(path, HEADER_FIELDS[field])
    is_magic = field == "magic"
    of_segment(
        directory,
        segment,
        offset=0 if is_magic else SEGMENT_HEADER_BYTES - 4,
        message="not a segment" if is_magic else "checksum of a segment's header is wrong",
        expected="894c4b57" if is_magic else "",
        found="a94c4b57" if is_magic else "",
    ).check(directory)


@pytest.mark.parametrize("version", [2, 99])
def test_a_segment_of_a_later_version_is_refused_as_such(directory: Path, version: int) -> None:
    path = segments(directory)[1]
    change(path, 4, version.to_bytes(2, "little"))
    crc = int(google_crc32c.value(path.read_bytes()[:60]))
    change(path, 60, crc.to_bytes(4, "little"))
    before = content(directory)
    for strict in (True, False):
        with pytest.raises(UnsupportedError, match="later version"):
            WriteAheadLog(directory, strict=strict)
    assert content(directory) == before


@pytest.mark.parametrize("segment", range(SEGMENTS - 1))
@pytest.mark.parametrize("left", [0, 63])
def test_an_empty_segment_is_found(directory: Path, segment: int, left: int) -> None:
    path = segments(directory)[segment]
    path.write_bytes(path.read_bytes()[:left])
    of_segment(
        directory,
        segment,
        offset=0,
        message="too short",
        expected="64 bytes",
        found=f"{left} bytes",
        lost_records=LAST - (segment + 1) * PER_SEGMENT,
    ).check(directory)


def test_an_empty_last_segment_that_was_begun_is_found(directory: Path) -> None:
    """The segment before it has its seal, so this one was durable."""
    segments(directory)[-1].write_bytes(b"")
    of_segment(
        directory,
        SEGMENTS - 1,
        offset=0,
        message="too short",
        expected="64 bytes",
        found="0 bytes",
        lost_records=0,
        goes_on=LAST - PER_SEGMENT + 2,
    ).check(directory)


def test_a_missing_segment_is_found(directory: Path) -> None:
    paths = segments(directory)
    paths[1].unlink()
    Damage(
        path=paths[2],
        offset=24,
        message="a segment is missing before this one",
        expected=f"sequence number {PER_SEGMENT + 1}",
        found=f"sequence number {2 * PER_SEGMENT + 1}",
        safe=list(range(1, PER_SEGMENT + 1)),
        lost_records=PER_SEGMENT,
        lost_bytes=paths[2].stat().st_size,
        set_aside=[f"{paths[2].name}.damaged"],
        goes_on=LAST + 1,
    ).check(directory)


def test_a_missing_first_segment_is_found(directory: Path) -> None:
    first, *rest = segments(directory)
    first.unlink()
    Damage(
        path=rest[0],
        offset=24,
        message="a segment is missing before this one",
        expected="sequence number 1",
        found=f"sequence number {PER_SEGMENT + 1}",
        safe=[],
        lost_records=2 * PER_SEGMENT,
        lost_bytes=sum(each.stat().st_size for each in rest),
        set_aside=[f"{each.name}.damaged" for each in rest],
        goes_on=LAST + 1,
    ).check(directory)


def test_a_missing_last_segment_is_found(directory: Path) -> None:
    *_, before, last = segments(directory)
    last.unlink()
    seal = frames(before)[-1]
    Damage(
        path=before,
        offset=seal.offset,
        message="the last segment is missing",
        expected=last.name,
        found="no such file",
        safe=list(range(1, LAST - PER_SEGMENT + 1)),
        lost_records=0,
        lost_bytes=0,
        set_aside=[f"{before.name}.damaged"],
        goes_on=LAST - PER_SEGMENT + 1,
    ).check(directory)


def test_a_duplicated_segment_is_found(directory: Path) -> None:
    paths = segments(directory)
    copy = directory / f"{PER_SEGMENT + 2:020d}.wal"
    copy.write_bytes(paths[1].read_bytes())
    Damage(
        path=copy,
        offset=24,
        message="a segment has the name of another one",
        expected=paths[1].name,
        found=copy.name,
        safe=list(range(1, 2 * PER_SEGMENT + 1)),
        lost_records=2 * PER_SEGMENT,
        lost_bytes=copy.stat().st_size + paths[2].stat().st_size,
        set_aside=[f"{copy.name}.damaged", f"{paths[2].name}.damaged"],
        goes_on=LAST + 1,
    ).check(directory)


def test_segments_in_another_order_are_found(directory: Path) -> None:
    one, two = segments(directory)[1:]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    of_segment(
        directory,
        1,
        offset=24,
        message="a segment has the name of another one",
        expected=two.name,
        found=one.name,
    ).check(directory)


def test_two_segments_with_the_same_numbers_are_found(tmp_path: Path) -> None:
    """A segment of the same log that was restored from a copy of another time."""
    make(tmp_path)
    paths = segments(tmp_path)
    header = bytearray(paths[1].read_bytes()[:SEGMENT_HEADER_BYTES])
    header[24:40] = (PER_SEGMENT).to_bytes(8, "little") * 2
    header[60:] = int(google_crc32c.value(bytes(header[:60]))).to_bytes(4, "little")
    other = tmp_path / f"{PER_SEGMENT:020d}.wal"
    other.write_bytes(header)
    Damage(
        path=other,
        offset=24,
        message="two segments hold the same sequence numbers",
        expected=f"sequence number {PER_SEGMENT + 1}",
        found=f"sequence number {PER_SEGMENT}",
        safe=list(range(1, PER_SEGMENT + 1)),
        lost_records=2 * PER_SEGMENT,
        lost_bytes=sum(each.stat().st_size for each in [other, *paths[1:]]),
        set_aside=[f"{each.name}.damaged" for each in [other, *paths[1:]]],
        goes_on=LAST + 1,
    ).check(tmp_path)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_a_file_of_something_else_in_a_segments_place_is_found(
    directory: Path, segment: int
) -> None:
    path = segments(directory)[segment]
    path.write_bytes(b"something that somebody put here; it is not a log. " * 5)
    of_segment(
        directory,
        segment,
        offset=0,
        message="not a segment of a write-ahead log",
        expected="894c4b57",
        found=b"some".hex(),
        lost_records=LAST - (segment + 1) * PER_SEGMENT,
        goes_on=LAST + 1 if segment < SEGMENTS - 1 else LAST - PER_SEGMENT + 2,
    ).check(directory)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_a_segment_of_another_log_is_found(tmp_path: Path, directory: Path, segment: int) -> None:
    other = bytes(reversed(LOG_ID))
    make(tmp_path / "other", log_id=other)
    path = segments(directory)[segment]
    path.write_bytes(segments(tmp_path / "other")[segment].read_bytes())
    of_segment(
        directory,
        segment,
        offset=8,
        message="belongs to another write-ahead log",
        expected=f"log id {LOG_ID.hex()}",
        found=f"log id {other.hex()}",
        lost_records=LAST - (segment + 1) * PER_SEGMENT,
        goes_on=LAST + 1 if segment < SEGMENTS - 1 else LAST - PER_SEGMENT + 2,
    ).check(directory)


# --- what does no harm ----------------------------------------------------------------------------


def strangers() -> Iterator[tuple[str, bytes]]:
    yield "notes.txt", b"not a segment"
    yield f"{1:020d}.wal.bak", b"a copy"
    yield "12.wal", b"no such name"
    yield f"{5:020d}.wal.damaged", b"set aside before"


def test_files_with_other_names_are_left_alone(directory: Path) -> None:
    for name, data in strangers():
        (directory / name).write_bytes(data)
    with WriteAheadLog(directory) as log:
        assert log.recovery is None
        assert seqs(log) == list(range(1, LAST + 1))
        log.truncate(LAST)
    for name, data in strangers():
        assert (directory / name).read_bytes() == data


def test_damage_before_a_truncation_is_no_loss(directory: Path) -> None:
    """What is void is not missed: a crash may leave some of the files of a truncation."""
    saved = segments(directory)[0].read_bytes()
    with WriteAheadLog(directory) as log:
        log.truncate(2 * PER_SEGMENT)
    left = segments(directory)
    assert len(left) == 1
    (directory / f"{1:020d}.wal").write_bytes(saved)
    flip(directory / f"{1:020d}.wal", 200)
    with WriteAheadLog(directory, read_only=True) as reader:
        assert seqs(reader) == list(range(2 * PER_SEGMENT + 1, LAST + 1))
    with WriteAheadLog(directory) as log:
        assert log.recovery is None
        assert seqs(log) == list(range(2 * PER_SEGMENT + 1, LAST + 1))
    assert segments(directory) == left
