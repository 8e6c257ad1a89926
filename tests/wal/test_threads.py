"""Segments are read in parallel, with the same result."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lakelog.errors import WalCorruptionError
from lakelog.wal import segments
from lakelog.wal.log import WriteAheadLog


def test_segments_read_in_parallel_are_returned_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WriteAheadLog(tmp_path, sync="none", segment_bytes=2000) as log:
        for n in range(100):
            value = "v" * n if n % 5 == 0 else ("" if n % 3 else None)
            log.append("PUT" if n % 3 else "DELETE", str(n), value)
        expected = log.replay()
    monkeypatch.setattr(segments, "_WORTH_BYTES", 0)
    monkeypatch.setattr(segments, "_PART_BYTES", 300)
    with WriteAheadLog(tmp_path) as log, WriteAheadLog(tmp_path, read_only=True) as reader:
        assert log.replay() == expected
        assert reader.replay() == expected
        assert log.replay(50) == expected.slice(50)
    path = sorted(tmp_path.glob("*.wal"))[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with (
        pytest.raises(WalCorruptionError) as caught,
        WriteAheadLog(tmp_path, read_only=True) as reader,
    ):
        reader.replay()
    assert caught.value.path == str(path)
    assert not [each for each in threading.enumerate() if each.name.startswith("lakelog-wal")]
