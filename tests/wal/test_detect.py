from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.errors import InvalidInputError, NotFoundError, UnavailableError, WalCorruptionError
from lakelog.wal.disk import LocalDisk
from lakelog.wal.historic.log import HistoricFormat
from lakelog.wal.historic.reader import detect, historic_names, read_historic
from lakelog.wal.log import WriteAheadLog
from tests.wal.historic_model import Writer002, file_003, record_002

RECORDS = [(b"key-%d" % n, b"value-%d" % n) for n in range(20)]


def format_of(*files: bytes, name: str = "some file") -> str:
    return detect([(name, data) for data in files])


def log_002(*, marks_batches: bool, first_seq: int = 1) -> bytes:
    writer = Writer002(marks_batches=marks_batches, first_seq=first_seq)
    writer.append_batch([("PUT", key, value) for key, value in RECORDS])
    return bytes(writer.files[0])


PLAIN = file_003(RECORDS, is_checked=False)
CHECKED = file_003(RECORDS, is_checked=True)
ALL_FORMATS = [
    pytest.param(log_002(marks_batches=False), "002", id="002"),
    pytest.param(log_002(marks_batches=True), "002", id="002 with BEGIN"),
    pytest.param(PLAIN, "003", id="003"),
    pytest.param(CHECKED, "003-crc", id="003 with checksums"),
]


@pytest.mark.parametrize(("data", "expected"), ALL_FORMATS)
def test_format_is_detected_from_the_content(data: bytes, expected: str) -> None:
    assert format_of(data) == expected


@pytest.mark.parametrize(("data", "expected"), ALL_FORMATS)
def test_format_is_detected_with_a_torn_tail_or_zero_bytes(data: bytes, expected: str) -> None:
    assert format_of(data[:-3]) == expected
    assert format_of(data + bytes(100)) == expected
    assert format_of(data[: len(data) // 2]) == expected


@pytest.mark.parametrize(("data", "expected"), [ALL_FORMATS[0], ALL_FORMATS[1], ALL_FORMATS[3]])
def test_format_with_checksums_is_detected_if_the_first_record_is_damaged(
    data: bytes, expected: str
) -> None:
    for at in range(12):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        assert format_of(bytes(damaged)) == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"{}", id="two bytes"),
        pytest.param(bytes(1_000), id="zero bytes"),
        pytest.param(b"a text that is no log at all\n" * 40, id="text"),
        pytest.param(record_002(1, "PUT", b"k", b"v")[:-1], id="one torn record of 002"),
        pytest.param(file_003(RECORDS[:1], is_checked=True)[:-1], id="one torn record of 003"),
        pytest.param(b"\x7f" + PLAIN[1:], id="003, the first length damaged"),
    ],
)
def test_ambiguous_content_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="cannot be determined") as caught:
        format_of(data)
    assert caught.value.hint is not None
    assert "format=" in caught.value.hint


def test_plain_file_with_checked_records_as_values_is_refused() -> None:
    data = file_003([(b"copy", CHECKED), (b"k", b"v")], is_checked=False)
    with pytest.raises(InvalidInputError):
        format_of(data)


def test_wrong_requested_format_is_reported(tmp_path: Path) -> None:
    # As a log of the wrong format, the whole file may look like one torn append.
    path = tmp_path / "log"
    logs: dict[HistoricFormat, bytes] = {
        "002": log_002(marks_batches=True),
        "003": PLAIN,
        "003-crc": CHECKED,
    }
    for form, data in logs.items():
        path.write_bytes(data)
        for named in logs:
            if named == form:
                assert read_historic(path, named).format == form
                continue
            with pytest.raises(InvalidInputError, match="not have the requested format") as caught:
                read_historic(path, named, strict=False)
            assert caught.value.found == f"one of specification {form}"
    # The requested format is used if the content is ambiguous.
    path.write_bytes(file_003(RECORDS[:1], is_checked=True)[:-1])
    assert read_historic(path, "003-crc").records.num_rows == 0


def test_segment_of_the_current_format_is_not_read_as_historic(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"k", b"v")
    with pytest.raises(InvalidInputError, match="log of the current format") as caught:
        read_historic(min(tmp_path.glob("*.wal")))
    assert "folder" in (caught.value.hint or "")


def test_unlistable_folder_raises_unavailable_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnavailableError, match="cannot be read"):
        read_historic(tmp_path / "loop")


def test_path_inside_a_file_raises_not_found_error(tmp_path: Path) -> None:
    (tmp_path / "wal.log").touch()
    with pytest.raises(NotFoundError):
        read_historic(tmp_path / "wal.log" / "000001.wal")


def test_format_of_an_empty_log_follows_from_its_file_name() -> None:
    assert format_of(b"", name="folder/wal.log") == "003"
    assert format_of(b"", b"", name="folder/000001.wal") == "002"


def test_historic_file_names_are_sorted_by_number() -> None:
    names = ["1000000.wal", "000002.wal", "999999.wal", "wal.lock", "x.wal", "0" * 20 + ".wal"]
    assert historic_names(names) == ["000002.wal", "999999.wal", "1000000.wal"]
    assert historic_names(["wal.log", "other"]) == ["wal.log"]
    with pytest.raises(InvalidInputError, match="two logs"):
        historic_names(["wal.log", "000001.wal"])
    with pytest.raises(InvalidInputError, match="same number"):
        historic_names(["000001.wal", "0000001.wal"])


def test_a_folder_and_a_single_file_of_any_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    writer = Writer002(marks_batches=True, rotate_bytes=100)
    for key, value in RECORDS:
        writer.append("PUT", key, value)
        writer.rotate()
    for name, data in writer.named().items():
        (tmp_path / "log" / name).write_bytes(data)
    log = read_historic(tmp_path / "log")
    assert (log.format, log.last_seq, len(log.files)) == ("002", 20, len(writer.files))
    (tmp_path / "copy.bin").write_bytes(CHECKED)
    log = read_historic(tmp_path / "copy.bin")
    assert (log.format, log.last_seq) == ("003-crc", 20)
    assert log.files[0].path == str(tmp_path / "copy.bin")


def test_requested_format_overrides_detection(tmp_path: Path) -> None:
    (tmp_path / "wal.log").write_bytes(file_003([(b"copy", CHECKED)], is_checked=False))
    with pytest.raises(InvalidInputError):
        read_historic(tmp_path)
    assert read_historic(tmp_path, "003").last_seq == 1
    assert read_historic(tmp_path, "003-crc", strict=False).last_seq == 0
    with pytest.raises(WalCorruptionError):
        read_historic(tmp_path, "003-crc")
    with pytest.raises(InvalidInputError, match="unknown"):
        read_historic(tmp_path, "004")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["003", "003-crc"])
def test_a_log_of_003_is_one_file(tmp_path: Path, format: HistoricFormat) -> None:
    for name in ("000001.wal", "000002.wal"):
        (tmp_path / name).write_bytes(PLAIN)
    with pytest.raises(InvalidInputError, match="one file"):
        read_historic(tmp_path, format)


def test_missing_log_raises_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_historic(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="historic log not found"):
        read_historic(tmp_path)


def test_read_error_raises_unavailable_error(tmp_path: Path) -> None:
    class Broken(LocalDisk):
        def read(self, path: str, *, mapped: bool = False) -> object:
            raise OSError(5, "Input/output error")

    (tmp_path / "wal.log").write_bytes(PLAIN)
    with pytest.raises(UnavailableError, match="Input/output"):
        read_historic(tmp_path, disk=Broken())


def test_reading_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "wal.log").write_bytes(PLAIN[:-1])
    read_historic(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["wal.log"]
    assert (tmp_path / "wal.log").read_bytes() == PLAIN[:-1]
