"""One test for each kind of damage to whole segments, and for harmless states that look like it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.frames import MAX_SEQ, SEGMENT_HEADER_BYTES
from lakelog.wal.log import WriteAheadLog
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
    of_segment,
    segments,
    seqs,
    settings,
    value_of,
)

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
def test_segment_of_a_later_version_raises_unsupported_error(directory: Path, version: int) -> None:
    path = segments(directory)[1]
    change(path, 4, version.to_bytes(2, "little"))
    crc = int(google_crc32c.value(path.read_bytes()[:60]))
    change(path, 60, crc.to_bytes(4, "little"))
    before = content(directory)
    for strict in (True, False):
        with pytest.raises(UnsupportedError, match="later version"):
            WriteAheadLog(directory, strict=strict)
    assert content(directory) == before


def without_records_of(directory: Path, segment: int, **report: Any) -> Damage:
    """The expected report of a segment without any frame. If it is the last one, its numbers are
    used again; one is left out.
    """
    is_last = segment == SEGMENTS - 1
    return of_segment(
        directory,
        segment,
        lost_records=LAST - (segment + 1) * PER_SEGMENT,
        next_seq=LAST - PER_SEGMENT + 2 if is_last else LAST + 1,
        **report,
    )


# Before an empty last segment, a seal shows that it was durable.
@pytest.mark.parametrize(("segment", "left"), [(0, 0), (0, 63), (1, 0), (1, 63), (SEGMENTS - 1, 0)])
def test_an_empty_segment_is_found(directory: Path, segment: int, left: int) -> None:
    path = segments(directory)[segment]
    path.write_bytes(path.read_bytes()[:left])
    without_records_of(
        directory,
        segment,
        offset=0,
        message="too short",
        expected="64 bytes",
        found=f"{left} bytes",
    ).check(directory)


@pytest.mark.parametrize("missing", range(SEGMENTS - 1))
def test_a_missing_segment_is_found(directory: Path, missing: int) -> None:
    segments(directory)[missing].unlink()
    of_segment(
        directory,
        missing,
        offset=24,
        message="a segment is missing before this one",
        expected=f"sequence number {missing * PER_SEGMENT + 1}",
        found=f"sequence number {(missing + 1) * PER_SEGMENT + 1}",
        lost_records=LAST - (missing + 1) * PER_SEGMENT,
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
        next_seq=LAST - PER_SEGMENT + 1,
    ).check(directory)


def test_a_duplicated_segment_is_found(directory: Path) -> None:
    original = segments(directory)[1]
    copy = directory / f"{PER_SEGMENT + 2:020d}.wal"
    copy.write_bytes(original.read_bytes())
    of_segment(
        directory,
        2,
        offset=24,
        message="a segment has the file name of another one",
        expected=original.name,
        found=copy.name,
        lost_records=2 * PER_SEGMENT,
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
        message="a segment has the file name of another one",
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
    of_segment(
        tmp_path,
        1,
        offset=24,
        message="two segments contain the same sequence numbers",
        expected=f"sequence number {PER_SEGMENT + 1}",
        found=f"sequence number {PER_SEGMENT}",
    ).check(tmp_path)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_foreign_file_with_a_segment_name_is_found(directory: Path, segment: int) -> None:
    path = segments(directory)[segment]
    path.write_bytes(b"something that somebody put here; it is not a log. " * 5)
    without_records_of(
        directory,
        segment,
        offset=0,
        message="not a segment of a write-ahead log",
        expected="894c4b57",
        found=b"some".hex(),
    ).check(directory)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_a_segment_of_another_log_is_found(tmp_path: Path, directory: Path, segment: int) -> None:
    other = bytes(reversed(LOG_ID))
    make(tmp_path / "other", log_id=other)
    path = segments(directory)[segment]
    path.write_bytes(segments(tmp_path / "other")[segment].read_bytes())
    without_records_of(
        directory,
        segment,
        offset=8,
        message="belongs to another write-ahead log",
        expected=f"log id {LOG_ID.hex()}",
        found=f"log id {other.hex()}",
    ).check(directory)


def foreign_files() -> Iterator[tuple[str, bytes]]:
    yield "notes.txt", b"not a segment"
    yield "notes.tmp", b"not a segment that was being made"
    yield f"{1:020d}.wal.bak", b"a copy"
    yield "12.wal", b"no such name"
    yield f"{5:020d}.wal.damaged", b"set aside before"


def test_files_with_other_names_are_ignored_and_kept(directory: Path) -> None:
    for name, data in foreign_files():
        (directory / name).write_bytes(data)
    with WriteAheadLog(directory) as log:
        assert log.recovery is None
        assert seqs(log) == list(range(1, LAST + 1))
        log.truncate(LAST)
    for name, data in foreign_files():
        assert (directory / name).read_bytes() == data


def test_damage_in_truncated_records_is_ignored(directory: Path) -> None:
    """Truncated records are not missed: a crash may leave some of the files of a truncation."""
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


@pytest.mark.parametrize("read_only", [True, False])
def test_sequence_numbers_are_not_reused_if_the_log_id_is_damaged(
    tmp_path: Path, *, read_only: bool
) -> None:
    with WriteAheadLog(tmp_path) as log:
        for n in range(70):
            log.append("PUT", str(n), "v" * (n % 7))
        last = log.append_batch([("PUT", "k", "v")] * 5)
    (path,) = segments(tmp_path)
    flip(path, HEADER_FIELDS["log id"])
    with pytest.raises(WalCorruptionError, match="header is wrong") as caught:
        WriteAheadLog(tmp_path, read_only=read_only)
    assert caught.value.safe_records == 0
    with WriteAheadLog(tmp_path, strict=False) as log:
        assert log.recovery is not None
        assert log.recovery.dropped_records == last
        assert log.replay().num_rows == 0
        assert log.append("PUT", "new", b"") == last + 1
        assert log.replay(after_seq=last).num_rows == 1


def test_sequence_numbers_outside_the_frame_chain_are_ignored(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        for n in range(4):
            log.append("PUT", str(n), b"")
    (path,) = segments(tmp_path)
    flip(path, HEADER_FIELDS["log id"])
    frame_bytes = (path.stat().st_size - SEGMENT_HEADER_BYTES) // 4
    third = SEGMENT_HEADER_BYTES + 2 * frame_bytes
    change(path, third + 8, (1 << 60).to_bytes(8, "little"))
    with WriteAheadLog(tmp_path, strict=False) as log:
        assert log.current_seq_num() == 2


@pytest.mark.parametrize("name", [MAX_SEQ, MAX_SEQ + 1, 10**20 - 1])
def test_file_name_beyond_the_last_sequence_number_uses_up_none(directory: Path, name: int) -> None:
    (directory / f"{name:020d}.wal").write_bytes(b"no segment" * 9)
    with pytest.raises(WalCorruptionError, match="not a segment"):
        WriteAheadLog(directory)
    with WriteAheadLog(directory, read_only=True, strict=False) as reader:
        assert (seqs(reader), reader.current_seq_num()) == (list(range(1, LAST + 1)), LAST)
    with WriteAheadLog(directory, strict=False) as log:
        assert log.append("PUT", "k", b"") == LAST + 1
    with WriteAheadLog(directory) as log:
        assert (log.recovery, log.current_seq_num()) == (None, LAST + 1)


def test_reader_keeps_reporting_damage_that_a_later_read_skips(directory: Path) -> None:
    segments(directory)[1].unlink()
    with WriteAheadLog(directory, read_only=True, strict=False) as reader:
        reported = reader.recovery
        assert reported is not None
        assert reported.safe_seq == PER_SEGMENT
        assert seqs(reader) == list(range(1, PER_SEGMENT + 1))
        assert reader.current_seq_num() == LAST
        assert reader.replay(after_seq=LAST - 1).num_rows == 1
        assert reader.recovery == reported
        make(directory.parent / "whole")
        missing = segments(directory.parent / "whole")[1]
        (directory / missing.name).write_bytes(missing.read_bytes())
        assert seqs(reader) == list(range(1, LAST + 1))
        assert reader.recovery is None


@pytest.mark.parametrize("up_to_seq", [2, 3, 4])
def test_log_continues_after_repeated_damage_where_numbers_were_skipped(
    tmp_path: Path, up_to_seq: int
) -> None:
    with WriteAheadLog(tmp_path, **settings()) as log:
        for seq in range(1, 5):
            log.append("PUT", b"key %d" % seq, value_of(seq))
    (path,) = segments(tmp_path)
    flip(path, frames(path)[2].offset + 40)
    with WriteAheadLog(tmp_path, strict=False) as log:
        assert log.append("PUT", b"key 5", value_of(5)) == 5
        assert log.append("PUT", b"key 6", value_of(6)) == 6
        assert log.append("PUT", b"key 7", value_of(7)) == 7
        log.truncate(up_to_seq)
        assert seqs(log) == [5, 6, 7]
    path = segments(tmp_path)[-1]
    flip(path, frames(path)[0].offset + 40)
    with WriteAheadLog(tmp_path, strict=False) as log:
        assert log.recovery is not None
        assert log.append("PUT", b"key 8", value_of(8)) == 8
        assert seqs(log) == [8]
    with WriteAheadLog(tmp_path) as log:
        assert (log.recovery, log.truncated_to, seqs(log)) == (None, up_to_seq, [8])
