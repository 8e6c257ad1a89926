"""Reading while a writer runs: the reader changes nothing, and gets a part of the log."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lakelog.errors import InvalidInputError
from lakelog.wal.disk import LocalDisk
from lakelog.wal.log import WriteAheadLog
from tests.wal.damage import settings


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "a", "1")
    (tmp_path / "wal.lock").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with WriteAheadLog(tmp_path, read_only=True) as reader:
        for use in (
            lambda: reader.append("PUT", "k", b""),
            lambda: reader.append_batch([]),
            lambda: reader.truncate(0),
            reader.checkpoint,
            reader.sync,
        ):
            with pytest.raises(InvalidInputError, match="reading only"):
                use()
        assert reader.recovery is None
        assert reader.replay().num_rows == 1
    with pytest.raises(InvalidInputError, match="closed"):
        reader.replay()
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_concurrent_readers_see_contiguous_records(tmp_path: Path) -> None:
    done = threading.Event()
    failures: list[BaseException] = []
    seen = 0

    def read() -> None:
        nonlocal seen
        try:
            reader = WriteAheadLog(tmp_path, read_only=True)
            last = 0
            while not done.is_set():
                numbers = [record.seq_num for record in reader.records()]
                if numbers:
                    assert numbers == list(range(numbers[0], numbers[-1] + 1))
                    assert numbers[-1] >= last
                    last = numbers[-1]
                seen += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    with WriteAheadLog(tmp_path, **settings(sync="none", segment_bytes=3000)) as log:
        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in readers:
            thread.start()
        for n in range(600):
            log.append("PUT", f"key {n}", "v" * (n % 200))
            if n % 7 == 0:
                log.append_batch([("PUT", f"batch {n} {m}", "v" * 50) for m in range(30)])
            if n % 50 == 49:
                log.truncate(log.current_seq_num() - 100)
        while seen < 3 and not failures:
            pass
        done.set()
        for thread in readers:
            thread.join()
    assert failures == []


class ChangingDisk(LocalDisk):
    """A writer rotates and truncates between the reader's listings of the log."""

    def __init__(self, log: WriteAheadLog, changes: int) -> None:
        self.log = log
        self.changes = changes

    def list(self, directory: str) -> list[str]:
        names = super().list(directory)
        if self.changes:
            self.changes -= 1
            for n in range(20):
                self.log.append("PUT", f"more {n}", "v" * 50)
            self.log.truncate(self.log.current_seq_num())
        return names


@pytest.mark.parametrize("changes", [1, 3])
def test_reader_lists_again_after_concurrent_rotation_and_truncation(
    tmp_path: Path, changes: int
) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=300) as log:
        for n in range(20):
            log.append("PUT", str(n), "v" * 50)
        disk = ChangingDisk(log, 0)
        reader = WriteAheadLog(tmp_path, read_only=True, disk=disk)
        disk.changes = changes
        assert reader.replay().num_rows == 0
        assert reader.current_seq_num() == 20 * (changes + 1)


def test_reader_does_not_map_segments_that_may_be_truncated(tmp_path: Path) -> None:
    """The last one; or the one before it, if the creation of the last one was stopped."""
    with WriteAheadLog(tmp_path, segment_bytes=500) as log:
        for n in range(30):
            log.append("PUT", str(n), "v" * 50)
    mapped_by_path: dict[str, bool] = {}

    class RecordingDisk(LocalDisk):
        def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
            mapped_by_path[path] = mapped
            return super().read(path, mapped=mapped)

    WriteAheadLog(tmp_path, read_only=True, disk=RecordingDisk()).replay()
    *settled, before, last = [mapped_by_path[path] for path in sorted(mapped_by_path)]
    assert len(settled) > 2
    assert all(settled)
    assert not before
    assert not last


def test_reader_reads_only_the_segments_that_it_needs(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=500) as log:
        for n in range(100):
            log.append("PUT", str(n), "v" * 50)

    class CountingDisk(LocalDisk):
        reads = 0

        def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
            self.reads += 1
            return super().read(path, mapped=mapped)

    disk = CountingDisk()
    with WriteAheadLog(tmp_path, read_only=True, disk=disk) as reader:
        disk.reads = 0
        assert reader.replay(95)["seqNum"].to_pylist() == [96, 97, 98, 99, 100]
        assert disk.reads <= 3
        disk.reads = 0
        assert reader.replay().num_rows == 100
        assert disk.reads > 10
