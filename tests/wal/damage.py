"""Logs of three segments to damage, and the expected reports.

Each damaged log is opened three times: by a strict writer, which refuses it and changes nothing; by
a reader, which changes nothing; and by a writer that is not strict, which continues from the safe
records and keeps the rest under another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import WalCorruptionError
from lakelog.wal.frames import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.opening import RecoveryReport
from tests.wal import plain

LOG_ID = bytes(range(16))
SEGMENTS = 3
PER_SEGMENT = 4  # records, one per frame
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
    """The expected report.

    Attributes:
        path: The segment.
        offset: Byte offset in it.
        message: The message.
        expected: The expected value, or a part of that text.
        found: The found value, or a part of that text.
        safe: Sequence numbers of the records that can be read.
        lost_records: Number of complete records after these.
        lost_bytes: Number of bytes that are dropped.
        set_aside: Names of the files with the dropped bytes.
        next_seq: The sequence number of the next record.
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
    next_seq: int

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
        assert content(directory) == before, "reading changed a file"
        with WriteAheadLog(directory, **settings(strict=False)) as log:
            self.check_report(log.recovery, directory, moved=True)
            assert seqs(log) == self.safe
            assert log.append("PUT", b"key %d" % self.next_seq, value_of(self.next_seq)) == (
                self.next_seq
            )
        after = content(directory)
        for name in self.set_aside:
            assert after[name] == before[name.removesuffix(".damaged")], (
                "dropped bytes were not kept"
            )
        with WriteAheadLog(directory) as log:
            assert log.recovery is None
            assert seqs(log) == [*self.safe, self.next_seq]
        with WriteAheadLog(directory, read_only=True) as reader:
            assert seqs(reader) == [*self.safe, self.next_seq]


def of_frame(directory: Path, segment: int, frame: int, **overrides: Any) -> Damage:
    """The expected report of damage that begins with a frame."""
    paths = segments(directory)
    path = paths[segment]
    start = SEGMENT_HEADER_BYTES
    if frame:
        start = overrides.pop("start", None) or frames(path)[frame - 1].end
    lost = paths[segment:]
    safe = segment * PER_SEGMENT + frame
    sizes = [each.stat().st_size for each in lost]
    defaults = {
        "path": path,
        "offset": start,
        "safe": list(range(1, safe + 1)),
        "lost_records": LAST - safe - 1,  # the damaged record is not counted
        "lost_bytes": sum(sizes) - (start if frame else 0),
        "set_aside": [f"{each.name}.damaged" for each in lost],
        "next_seq": LAST + 1,
    }
    return Damage(**{**defaults, **overrides})


def of_segment(directory: Path, segment: int, **overrides: Any) -> Damage:
    """The expected report of a segment that cannot be used; all its frames are lost."""
    return of_frame(
        directory, segment, 0, **{"lost_records": LAST - segment * PER_SEGMENT, **overrides}
    )


def whole_log(directory: Path) -> Path:
    """A log of `SEGMENTS` segments, in a folder of its own."""
    make(directory / "log")
    assert len(segments(directory / "log")) == SEGMENTS
    return directory / "log"
