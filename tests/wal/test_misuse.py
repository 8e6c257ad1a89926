"""What callers may do that nobody thought of: it is refused, or done right, and harms no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakelog.errors import InvalidInputError
from lakelog.wal.disk import LocalDisk
from lakelog.wal.frames import MAX_SEQ, SegmentHeader
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.segments import segment_name


@pytest.mark.parametrize("number", [2.0, 4.0, "2", None])
def test_a_log_is_truncated_to_a_whole_number_or_stays_as_it_is(
    tmp_path: Path, number: Any
) -> None:
    with WriteAheadLog(tmp_path) as log:
        for n in range(4):
            log.append("PUT", str(n))
        with pytest.raises(InvalidInputError, match="whole number"):
            log.truncate(number)
        assert log.append("PUT", "goes on") == 5
        for up_to_seq in (3, 5):
            number = np.int64(up_to_seq)
            log.truncate(number)
            assert log.truncated_to == up_to_seq
    with WriteAheadLog(tmp_path) as log:
        assert log.truncated_to == log.current_seq_num() == 5


def test_a_log_stays_where_it_is_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "log").mkdir(parents=True)
    with WriteAheadLog("log", segment_bytes=100) as log:
        assert log.append("PUT", "here", "v" * 100) == 1
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert log.append("PUT", "and here", "v" * 100) == 2
        assert log.replay()["key"].to_pylist() == [b"here", b"and here"]
    assert len(list((tmp_path / "log").glob("*.wal"))) == 2
    assert list((tmp_path / "elsewhere" / "log").iterdir()) == []


def test_a_directory_is_given_as_text_bytes_or_path(tmp_path: Path) -> None:
    ways: list[Any] = [str(tmp_path), bytes(tmp_path), tmp_path]
    for n, directory in enumerate(ways, 1):
        with WriteAheadLog(directory) as log:
            assert log.append("PUT", "k") == n


def test_a_log_without_numbers_left_refuses_records_and_keeps_those_that_it_has(
    tmp_path: Path,
) -> None:
    first = MAX_SEQ - 3
    header = SegmentHeader(bytes(range(16)), first, first, first - 1, 0)
    (tmp_path / segment_name(first)).write_bytes(header.pack())
    with WriteAheadLog(tmp_path) as log:
        assert log.append("PUT", "one of the last") == first
        assert log.append_batch([("PUT", "the last", "v")]) == MAX_SEQ - 1
    for _ in range(2):
        with WriteAheadLog(tmp_path) as log:
            with pytest.raises(InvalidInputError, match="no sequence numbers"):
                log.append("PUT", "one too many")
            assert log.replay()["seqNum"].to_pylist() == [first, first + 1]
            assert log.replay(MAX_SEQ - 1).num_rows == log.replay(1 << 80).num_rows == 0
            assert log.current_seq_num() == MAX_SEQ - 1


def test_bytes_that_are_written_again_stay_where_and_what_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    disk = LocalDisk()
    file = disk.open_append(path, create=True)
    file.write(b"some bytes")
    disk.rewrite(path, 5, b"bytes")
    file.write(b", and more")
    assert Path(path).read_bytes() == b"some bytes, and more"
    file.close()
