"""Only one process writes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import (
    ExternalPathError,
    InvalidInputError,
    LogLockedError,
    LogPoisonedError,
    OutcomeUnknownError,
    UnavailableError,
    WalCorruptionError,
)
from lakelog.wal import disk as wal_disk
from lakelog.wal.disk import LocalDisk, LocalFile
from lakelog.wal.log import WriteAheadLog

CHILD = """
import sys, time
from lakelog.wal.log import WriteAheadLog
log = WriteAheadLog(sys.argv[1])
log.append("PUT", "from the child", "value")
print("ready", flush=True)
time.sleep(100)
"""


def test_second_writer_gets_an_error_that_names_the_owner(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        with pytest.raises(LogLockedError) as caught:
            WriteAheadLog(tmp_path)
        assert f"process {os.getpid()} on " in str(caught.value.found)
        assert caught.value.path == str(tmp_path / "wal.lock")
        assert "read_only" in (caught.value.hint or "")
        assert log.append("PUT", "k", b"") == 1
    with WriteAheadLog(tmp_path) as log:
        assert log.append("PUT", "k", b"") == 2


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("sync", ["sync", "none"])
def test_writer_stops_writing_if_its_lock_file_is_missing(
    tmp_path: Path, sync: Any, replace: bool
) -> None:
    log = WriteAheadLog(tmp_path, sync=sync)
    log.append("PUT", "a", b"1")
    (tmp_path / "wal.lock").unlink()
    other = WriteAheadLog(tmp_path) if replace else None
    with pytest.raises(OutcomeUnknownError, match="lock file"):
        log.append("PUT", "b", b"2")
    with pytest.raises(LogPoisonedError):
        log.append("PUT", "c", b"3")
    log.close()
    if other is not None:
        other.append("PUT", "d", b"4")
        other.close()
    with WriteAheadLog(tmp_path) as again:
        kept = ["a", "d"] if replace else ["a"]
        assert [record.key.decode() for record in again.replay()] == kept


@pytest.mark.parametrize("moved", ["log", "log/wal.lock"])
def test_writer_stops_if_its_directory_or_lock_file_was_renamed(tmp_path: Path, moved: str) -> None:
    first = WriteAheadLog(tmp_path / "log")
    first.append("PUT", "a", b"1")
    (tmp_path / moved).rename(tmp_path / "old")
    with WriteAheadLog(tmp_path / "log") as second:
        second.append("PUT", "b", b"2")
        with pytest.raises(OutcomeUnknownError, match="deleted or moved"):
            first.append("PUT", "c", b"3")
        first.close()
    with WriteAheadLog(tmp_path / "log") as again:
        kept = ["b"] if moved == "log" else ["a", "b"]
        assert [record.key.decode() for record in again.replay()] == kept


def test_writer_without_its_lock_does_not_sync_or_truncate(tmp_path: Path) -> None:
    for call in ("sync", "truncate"):
        log = WriteAheadLog(tmp_path / call)
        log.append("PUT", "a", b"1")
        log.truncate(1)
        (tmp_path / call / "wal.lock").unlink()
        with pytest.raises(OutcomeUnknownError, match="deleted or moved"):
            log.sync() if call == "sync" else log.truncate(1)
        log.close()


class _LockLosingDisk(LocalDisk):
    """Loses the lock of a log to another writer, which appends a record, at the first operation of
    a kind on its segment.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory, self.kind = directory, kind
        self.other: WriteAheadLog | None = None

    def lose(self, path: str, kind: str) -> bool:
        if kind != self.kind or not path.endswith(".wal") or self.other is not None:
            return False
        (self.directory / "wal.lock").unlink()
        self.other = WriteAheadLog(self.directory)
        self.other.append("PUT", "other", b"2")
        return True

    def read(self, path: str, *, mapped: bool = False) -> Any:
        found = super().read(path, mapped=mapped)
        self.lose(path, "read")
        return found

    def open_append(self, path: str, *, create: bool = False) -> LocalFile:
        file = super().open_append(path, create=create)
        write = file.write

        def failing(data: Any) -> int:
            if self.lose(path, "write"):
                raise OSError(errno.ENOSPC, "no space left on device")
            return write(data)

        file.write = failing  # type: ignore[method-assign]
        return file


def kept_keys(directory: Path) -> list[str]:
    with WriteAheadLog(directory, read_only=True) as log:
        return [record.key.decode() for record in log.replay()]


def test_failed_write_is_not_undone_in_the_file_of_the_next_writer(tmp_path: Path) -> None:
    WriteAheadLog(tmp_path).close()
    disk = _LockLosingDisk(tmp_path, "")
    with WriteAheadLog(tmp_path, disk=disk) as log:
        log.append("PUT", "first", b"1")
        disk.kind = "write"
        with pytest.raises(OutcomeUnknownError, match="could not be undone"):
            log.append("PUT", "lost", b"2")
        assert disk.other is not None
        disk.other.close()
    assert kept_keys(tmp_path) == ["first", "other"]


@pytest.mark.parametrize("torn", [b"", b"torn tail"])
def test_opening_without_the_lock_does_not_change_the_file_of_the_next_writer(
    tmp_path: Path, torn: bytes
) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "first", b"1")
    (segment,) = tmp_path.glob("*.wal")
    segment.write_bytes(segment.read_bytes() + torn)
    disk = _LockLosingDisk(tmp_path, "read")
    with pytest.raises(UnavailableError, match="lock file was deleted or moved"):
        WriteAheadLog(tmp_path, disk=disk)
    assert disk.other is not None
    disk.other.close()
    assert kept_keys(tmp_path) == ["first", "other"]


def test_log_without_unsynced_records_is_closed_after_its_directory_was_deleted(
    tmp_path: Path,
) -> None:
    with WriteAheadLog(tmp_path / "log") as log:
        log.append("PUT", "a", b"1")
        shutil.rmtree(tmp_path / "log")


def test_a_dead_owners_lock_is_taken_over(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(LogLockedError) as caught:
            WriteAheadLog(tmp_path)
        assert f"process {child.pid} on " in str(caught.value.found)
        with WriteAheadLog(tmp_path, read_only=True) as reader:
            assert reader.replay()["key"].to_pylist() == [b"from the child"]
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    with WriteAheadLog(tmp_path) as log:
        assert log.append("PUT", "k", b"") == 2


def test_full_disk_does_not_prevent_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no writer could truncate, which frees space."""
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "k", b"")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with WriteAheadLog(tmp_path) as log:
        assert log.current_seq_num() == 1
        with pytest.raises(LogLockedError):
            WriteAheadLog(tmp_path)


def test_lock_records_whether_it_was_released_cleanly(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    disk = LocalDisk()
    for was_closed_cleanly, cleanly in ((False, True), (True, False), (False, True), (True, True)):
        held = disk.lock(path, "an owner")
        assert held.was_closed_cleanly == was_closed_cleanly
        held.release(cleanly=cleanly)
        held.release(cleanly=True)
    held = disk.lock(path, "an owner")
    assert held.was_closed_cleanly
    del held  # as if its process had ended
    assert not disk.lock(path, "an owner").was_closed_cleanly


def test_poisoned_log_does_not_release_its_lock_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(file: LocalFile) -> None:
        raise OSError(errno.EIO, "it does not sync")

    modes: list[Any] = ["batch", "none"]
    for mode in modes:
        log = WriteAheadLog(tmp_path, sync=mode)
        log.append("PUT", "k", b"")
        with monkeypatch.context() as patch:
            patch.setattr(LocalFile, "sync", sync)
            with pytest.raises(OutcomeUnknownError):
                log.sync()
        log.close()
        lock = LocalDisk().lock(str(tmp_path / "wal.lock"), "an owner")
        assert not lock.was_closed_cleanly
        lock.release(cleanly=True)


def test_failed_file_close_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("PUT", "k", b"")

    def close(file: LocalFile) -> None:
        raise OSError(errno.EIO, "it does not close")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "close", close)
        log.close()
    with WriteAheadLog(tmp_path) as log:
        assert log.current_seq_num() == 1


def test_failed_opening_leaves_no_lock(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "k", b"")
        log.append("PUT", "k", b"")
    path = tmp_path / "00000000000000000001.wal"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(bytes(data))
    for _ in range(2):
        with pytest.raises(WalCorruptionError):
            WriteAheadLog(tmp_path)


def test_garbage_collected_log_is_not_locked(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("PUT", "k", b"")
    del log
    with WriteAheadLog(tmp_path) as log:
        assert log.current_seq_num() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_forked_process_must_not_write(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "k", b"")
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_append, args=(log, there))
        child.start()
        assert here.recv() == "the log belongs to another process"
        child.join()
        assert child.exitcode == 0
        assert log.append("PUT", "k", b"") == 2


def _append(log: WriteAheadLog, sender: Connection) -> None:
    try:
        log.append("PUT", "from the fork", b"")
        message = "written"
    except InvalidInputError as error:
        message = error.message
    log.close()
    sender.send(message)


def test_released_lock_and_file_do_nothing_at_interpreter_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = LocalDisk().lock(str(tmp_path / "lock"), "an owner")
    file = LocalDisk().open_append(str(tmp_path / "file"), create=True)
    held.release()
    file.close()
    for name in ("contextlib", "os"):  # modules are emptied then
        monkeypatch.setattr(wal_disk, name, None)
    held.__del__()
    file.__del__()


@pytest.mark.parametrize("name", ["wal.lock", "00000000000000000001.wal"])
def test_symbolic_link_is_not_followed_for_writing(tmp_path: Path, name: str) -> None:
    directory, target = tmp_path / "log", tmp_path / "target"
    with WriteAheadLog(directory) as log:
        log.append("PUT", "k", b"")
    (directory / name).rename(target)
    (directory / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(ExternalPathError, match="symbolic link"), WriteAheadLog(directory) as log:
        log.append("PUT", "another", b"")
    assert target.read_bytes() == before
    with WriteAheadLog(directory, read_only=True) as log:
        assert log.current_seq_num() == 1
