"""A historic log is upgraded in place: its replay is unchanged, and no weakness remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.historic.reader import read_historic
from lakelog.wal.historic.upgrade import upgrade
from lakelog.wal.log import WriteAheadLog
from tests.wal import plain_reading
from tests.wal.historic_logs import LOGS, PAIRS, log_002, names, rows, write
from tests.wal.historic_model import file_003, record_002


@pytest.mark.parametrize("files", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("keep_old", [True, False])
def test_upgraded_log_replays_like_the_old_one_and_can_be_continued(
    tmp_path: Path, files: dict[str, bytes], keep_old: bool
) -> None:
    old = read_historic(write(tmp_path, files))
    with pytest.raises(UnsupportedError, match="earlier program"):
        WriteAheadLog(tmp_path)
    report = upgrade(tmp_path, keep_old=keep_old)
    assert (report.format, report.records) == (old.format, old.records.num_rows)
    assert (report.last_seq, report.findings) == (old.last_seq, ())
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        for after_seq in (0, old.last_seq - 4):
            assert rows(log.replay(after_seq)) == rows(old.replay(after_seq))
        assert log.append("PUT", b"new", b"v") == old.last_seq + 1
        new = [tuple(each) for each in log.records()]
    assert [tuple(each) for each in plain_reading.read(tmp_path).records] == new
    kept = [f"{name}.upgraded" for name in sorted(files)] if keep_old else []
    assert sorted(report.old_files) == [str(tmp_path / name) for name in kept]
    first = old.records["seqNum"][0].as_py()
    assert names(tmp_path) == sorted([f"{first:020d}.wal", "wal.lock", *kept])
    for name in kept:
        assert (tmp_path / name).read_bytes() == files[name.removesuffix(".upgraded")]


def test_upgrading_twice_changes_nothing(tmp_path: Path) -> None:
    upgrade(write(tmp_path, log_002()))
    before = names(tmp_path)
    report = upgrade(tmp_path)
    assert (report.format, report.records, report.old_files) == (None, None, ())
    assert names(tmp_path) == before


def test_upgrade_of_an_empty_log_is_empty(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, {"wal.log": b""}))
    assert (report.records, report.last_seq) == (0, 0)
    with WriteAheadLog(tmp_path) as log:
        assert (log.replay().num_rows, log.append("PUT", b"k", b"v")) == (0, 1)


def test_an_upgraded_log_may_be_compressed(tmp_path: Path) -> None:
    pairs = [(b"key-%d" % n, b"value" * 20) for n in range(500)]
    write(tmp_path, {"wal.log": file_003(pairs, is_checked=True)})
    report = upgrade(tmp_path, compression="zstd")
    assert Path(report.segment).stat().st_size < 20_000
    with WriteAheadLog(tmp_path, read_only=True) as log:
        assert log.state().num_rows == 500


def test_the_last_number_survives_truncating_an_upgraded_log(tmp_path: Path) -> None:
    # The earlier program began at 1 again, so replay(after_seq) hid new records.
    report = upgrade(write(tmp_path, log_002()))
    assert report.last_seq is not None
    with WriteAheadLog(tmp_path) as log:
        log.truncate(report.last_seq)
    with WriteAheadLog(tmp_path) as log:
        assert log.replay().num_rows == 0
        seq = log.append("PUT", b"new", b"v")
        assert seq == report.last_seq + 1
        assert log.replay(report.last_seq)["key"].to_pylist() == [b"new"]


def test_an_unfinished_batch_keeps_its_numbers_and_is_never_replayed(tmp_path: Path) -> None:
    data = b"".join(
        [
            record_002(1, "PUT", b"k", b"v"),
            record_002(2, "BEGIN"),
            record_002(3, "PUT", b"half", b"a batch"),
            record_002(4, "DELETE", b"half"),
        ]
    )
    report = upgrade(write(tmp_path, {"000001.wal": data + b"torn"}))
    assert [finding.kind for finding in report.findings] == ["unfinished_batch", "torn_tail"]
    with WriteAheadLog(tmp_path) as log:
        # A reader of the old log may have read up to 4: new records must follow.
        assert log.append("PUT", b"new", b"v") == 5
        for after_seq in range(6):
            expected = [seq for seq in (1, 5) if seq > after_seq]
            assert log.replay(after_seq)["seqNum"].to_pylist() == expected
        assert [record.op_type for record in log.records()] == ["PUT", *["COMMIT"] * 3, "PUT"]


def test_an_append_behind_a_torn_tail_is_upgraded(tmp_path: Path) -> None:
    one, two = record_002(1, "PUT", b"a", b"1"), record_002(2, "PUT", b"b", b"2")
    report = upgrade(write(tmp_path, {"000001.wal": one + two[:-3] + two}))
    assert [finding.kind for finding in report.findings] == ["torn_append"]
    with WriteAheadLog(tmp_path) as log:
        assert log.replay()["key"].to_pylist() == [b"a", b"b"]


def test_upgraded_log_detects_damage_that_the_old_format_did_not(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=False)}))
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"new", b"v")
    data = Path(report.segment).read_bytes()
    # The header of the segment, that of the frame with length and sequence number, and records.
    for at in (*range(96), 300):
        for bit in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= bit
            Path(report.segment).write_bytes(damaged)
            with pytest.raises(WalCorruptionError):
                WriteAheadLog(tmp_path)


def test_torn_tail_of_an_upgraded_log_is_trimmed_and_hides_no_later_record(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, log_002()))
    last = report.last_seq or 0
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"new", b"v")
    path = Path(report.segment)
    whole = path.read_bytes()
    for cut in (1, 8, 30):
        path.write_bytes(whole[:-cut])
        with WriteAheadLog(tmp_path) as log:
            assert log.recovery is not None
            assert log.append("PUT", b"again", b"v") == last + 1
        with WriteAheadLog(tmp_path) as log:
            assert log.recovery is None
            assert log.replay(last)["key"].to_pylist() == [b"again"]


def test_torn_segment_of_an_upgraded_log_raises_corruption_error(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, log_002()))
    with WriteAheadLog(tmp_path, segment_bytes=1) as log:
        for _ in range(3):
            log.append("PUT", b"new", b"v")
    path = Path(report.segment)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WalCorruptionError):
        WriteAheadLog(tmp_path)


def test_safe_records_of_a_damaged_log_are_upgraded_and_the_old_files_kept(tmp_path: Path) -> None:
    files = log_002()
    whole = read_historic(write(tmp_path, files))
    data = bytearray(files["000002.wal"])
    data[8] ^= 1  # a sequence number
    (tmp_path / "000002.wal").write_bytes(data)
    safe = read_historic(tmp_path, strict=False)
    report = upgrade(tmp_path, strict=False, keep_old=False)
    assert [finding.kind for finding in report.findings] == ["damage"]
    assert len(report.old_files) == len(files)  # kept despite keep_old=False
    with WriteAheadLog(tmp_path) as log:
        assert rows(log.replay()) == rows(safe.replay())
        assert log.append("PUT", b"new", b"v") > whole.last_seq
        assert log.current_seq_num() < 2 * whole.last_seq + 20
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None


@pytest.mark.parametrize("form", ["002", "003-crc"])
def test_files_with_bytes_outside_records_are_kept(tmp_path: Path, form: str) -> None:
    # A torn tail may be the changed last record: its only copy must be kept.
    if form == "002":
        name, data = "000001.wal", b"".join(record_002(n, "PUT", b"k", b"v") for n in (1, 2, 3))
    else:
        name, data = "wal.log", file_003(PAIRS, is_checked=True)
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    report = upgrade(write(tmp_path, {name: damaged}), keep_old=False)
    assert [finding.kind for finding in report.findings] == ["torn_tail"]
    assert any("may have been a complete record" in doubt for doubt in report.doubts)
    assert (tmp_path / f"{name}.upgraded").read_bytes() == damaged


def test_implausible_sequence_number_is_ignored(tmp_path: Path) -> None:
    one = record_002(1, "PUT", b"a", b"1")
    far = record_002((1 << 63) - 1, "PUT", b"b", b"2")
    upgrade(write(tmp_path, {"000001.wal": one + far}), strict=False)
    with WriteAheadLog(tmp_path) as log:
        assert 2 < log.append("PUT", b"new", b"v") < 10


def test_the_report_names_what_was_done(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, log_002()), clock=lambda: 7, new_id=lambda: bytes(16))
    assert report.directory == str(tmp_path)
    assert report.segment == f"{tmp_path}/00000000000000000001.wal"
