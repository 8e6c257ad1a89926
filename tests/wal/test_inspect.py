from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.errors import InvalidInputError, NotFoundError, UnavailableError
from lakelog.wal.disk import LocalDisk
from lakelog.wal.historic.upgrade import MARKER_NAME, upgrade
from lakelog.wal.inspect import WalReport, inspect
from lakelog.wal.log import WriteAheadLog
from tests.wal.historic_model import Writer002, file_003, record_002

PAIRS = [(b"key-%d" % n, b"value-%d" % n) for n in range(20)]


def made(folder: Path, appends: int = 9) -> Path:
    """A log with three records per segment."""
    with WriteAheadLog(folder, segment_bytes=200, clock=lambda: 1_700_000_000_000) as log:
        for n in range(appends):
            log.append("PUT", f"key-{n}", "value")
    return folder


def ranges(report: WalReport) -> list[tuple[str, int | None, int | None]]:
    return [(each.status, each.first_seq, each.last_seq) for each in report.segments]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_valid_log_is_reported_with_times_sizes_and_ranges(tmp_path: Path) -> None:
    report = inspect(made(tmp_path), modified=lambda _: 7)
    assert (report.format, report.findings, report.is_damaged) == ("lakelog", (), False)
    assert report.log_id is not None
    assert len(report.log_id) == 32
    assert (report.records, report.safe_seq, report.truncated_to) == (9, 9, 0)
    assert report.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.wal"))
    firsts = [each.first_seq for each in report.segments if each.records]
    assert firsts[0] == 1
    assert len(firsts) > 2
    assert sum(each.records for each in report.segments) == 9
    for each in report.segments:
        assert (each.status, each.created_ms, each.modified_ms) == ("live", 1_700_000_000_000, 7)


def test_inspect_takes_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "k", "v")
        assert inspect(tmp_path).records == 1
    last = max(tmp_path.glob("*.wal"))
    last.write_bytes(last.read_bytes() + b"torn")
    before = contents(tmp_path)
    inspect(tmp_path)
    assert contents(tmp_path) == before


def test_torn_tail_is_reported_and_is_not_damage(tmp_path: Path) -> None:
    made(tmp_path)
    last = max(tmp_path.glob("*.wal"))
    size = last.stat().st_size
    last.write_bytes(last.read_bytes() + b"torn")
    report = inspect(tmp_path)
    (finding,) = report.findings
    assert (finding.kind, finding.path) == ("torn_tail", str(last))
    assert (finding.byte_offset, finding.size_bytes) == (size, 4)
    assert (report.records, report.safe_seq, report.is_damaged) == (9, 9, False)


def test_segment_without_header_is_listed(tmp_path: Path) -> None:
    made(tmp_path, appends=1)
    (tmp_path / f"{2:020d}.wal").write_bytes(bytes(20))
    report = inspect(tmp_path)
    assert [finding.kind for finding in report.findings] == ["torn_tail"]
    assert ranges(report) == [("live", 1, 1), ("live", None, None)]


def test_damage_is_reported_with_the_safe_records(tmp_path: Path) -> None:
    made(tmp_path)
    segments = sorted(tmp_path.glob("*.wal"))
    data = bytearray(segments[1].read_bytes())
    data[-90] ^= 1  # before the mark at the segment's end
    segments[1].write_bytes(data)
    report = inspect(tmp_path)
    (finding,) = report.findings
    assert report.is_damaged
    assert finding.path == str(segments[1])
    first = int(segments[1].stem)
    assert first - 1 <= report.safe_seq < int(segments[2].stem) - 1
    assert report.records == report.safe_seq
    assert [each.status for each in report.segments][:3] == ["live", "damaged", "damaged"]
    assert finding.size_bytes > 0


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    made(tmp_path)
    segments = sorted(tmp_path.glob("*.wal"))
    segments[1].unlink()
    report = inspect(tmp_path)
    assert report.is_damaged
    assert report.safe_seq == int(segments[1].stem) - 1


def test_truncation_and_files_set_aside_are_reported(tmp_path: Path) -> None:
    made(tmp_path)
    with WriteAheadLog(tmp_path) as log:
        log.truncate(5)
    (tmp_path / "00000000000000000001.wal.damaged").write_bytes(b"")
    report = inspect(tmp_path)
    assert (report.truncated_to, report.safe_seq, report.records) == (5, 9, 4)
    assert report.set_aside == (str(tmp_path / "00000000000000000001.wal.damaged"),)


def test_a_segment_that_a_truncation_did_not_delete_is_truncated(tmp_path: Path) -> None:
    made(tmp_path)
    first = min(tmp_path.glob("*.wal"))
    data = first.read_bytes()
    with WriteAheadLog(tmp_path) as log:
        log.truncate(5)
    first.write_bytes(data)
    report = inspect(tmp_path)
    assert ranges(report)[0] == ("truncated", 1, 2)
    assert {each.status for each in report.segments[1:]} == {"live"}
    assert report.records == 4


def test_historic_log_is_reported_in_the_same_format(tmp_path: Path) -> None:
    writer = Writer002(marks_batches=True, rotate_bytes=100)
    for key, value in PAIRS:
        writer.append("PUT", key, value)
        writer.rotate()
    files = writer.named()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    report = inspect(tmp_path)
    assert (report.format, report.records, report.safe_seq) == ("002", 20, 20)
    assert (report.log_id, report.findings) == (None, ())
    assert [each.first_seq for each in report.segments][:2] == [1, 4]
    first = min(files)
    (tmp_path / first).write_bytes(files[first][:-1])
    report = inspect(tmp_path)
    assert (report.is_damaged, report.safe_seq) == (True, 2)
    assert {each.status for each in report.segments} == {"damaged"}


def test_single_file_of_a_historic_log_is_inspected(tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(file_003(PAIRS, is_checked=True)[:-1])
    report = inspect(tmp_path / "copy")
    assert (report.format, report.records) == ("003-crc", 19)
    assert [finding.kind for finding in report.findings] == ["torn_tail"]
    assert inspect(tmp_path / "copy", "003-crc").records == 19


def test_doubts_about_a_historic_log_are_reported(tmp_path: Path) -> None:
    def doubts(data: bytes) -> tuple[str, ...]:
        (tmp_path / "copy").write_bytes(data)
        return inspect(tmp_path / "copy").doubts

    def is_doubted(words: str, data: bytes) -> bool:
        return any(words in doubt for doubt in doubts(data))

    puts = b"".join(record_002(n, "PUT", b"k", b"v") for n in (1, 2, 3))
    ended = puts + record_002(4, "COMMIT")
    checked = file_003(PAIRS, is_checked=True)
    assert doubts(ended) == doubts(checked) == doubts(checked + bytes(40)) == ()
    assert is_doubted("from number 1 on may be an incomplete batch", puts)
    assert is_doubted("may have been a complete record", ended + puts[:20])
    assert is_doubted("may have been a complete record", checked[:-1])
    assert is_doubted("without checksums", file_003(PAIRS, is_checked=False))
    assert is_doubted("sequence number of the only one", record_002(7, "PUT", b"k", b"v"))
    # After a full truncation, the earlier program numbered from 1 again.
    (tmp_path / "000001.wal").write_bytes(b"")
    assert "sequence numbers that were used" in inspect(tmp_path / "000001.wal").doubts[0]
    assert inspect(made(tmp_path / "log")).doubts == ()


def test_unlistable_folder_raises_unavailable_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnavailableError, match="cannot be read"):
        inspect(tmp_path / "loop")


def test_interrupted_upgrade_is_reported(tmp_path: Path) -> None:
    (tmp_path / "000001.wal").write_bytes(record_002(1, "PUT", b"k", b"v"))
    (tmp_path / MARKER_NAME).write_bytes(b"")
    report = inspect(tmp_path)
    assert [finding.kind for finding in report.findings] == ["unfinished_upgrade"]
    upgrade(tmp_path)
    report = inspect(tmp_path)
    assert (report.format, report.findings) == ("lakelog", ())
    assert report.set_aside == (str(tmp_path / "000001.wal.upgraded"),)


def test_missing_log_raises_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        inspect(tmp_path / "nowhere")
    with pytest.raises(
        NotFoundError,
        match=r"write-ahead log not found.*the directory of an ingest it is named wal",
    ):
        inspect(tmp_path)
    with pytest.raises(InvalidInputError, match="historic log not found"):
        inspect(made(tmp_path), "002")


def test_read_error_raises_unavailable_error(tmp_path: Path) -> None:
    class Broken(LocalDisk):
        def read(self, path: str, *, mapped: bool = False) -> object:
            raise OSError(5, "Input/output error")

    with pytest.raises(UnavailableError, match="Input/output"):
        inspect(made(tmp_path), disk=Broken())


def test_unknown_modification_time_is_none(tmp_path: Path) -> None:
    made(tmp_path)

    class Renamed(LocalDisk):
        def list(self, directory: str) -> list[str]:
            return [name for name in super().list(directory) if name != "wal.lock"]

    report = inspect(tmp_path, disk=Renamed(), modified=lambda _: None)
    assert {each.modified_ms for each in report.segments} == {None}
