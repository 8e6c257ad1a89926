"""Logs that are not upgraded: the error has the reason, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.errors import (
    InternalError,
    InvalidInputError,
    LogLockedError,
    NotFoundError,
    UnavailableError,
    WalCorruptionError,
)
from lakelog.wal.disk import LocalDisk
from lakelog.wal.historic import upgrade as module
from lakelog.wal.historic.log import HistoricFormat
from lakelog.wal.historic.upgrade import MARKER_NAME, upgrade
from lakelog.wal.log import WriteAheadLog
from tests.wal.historic_logs import PAIRS, log_002, names, write
from tests.wal.historic_model import file_003


def test_damaged_log_is_refused_and_unchanged(tmp_path: Path) -> None:
    files = log_002()
    files["000001.wal"] = files["000001.wal"][:30] + b"\xff" + files["000001.wal"][31:]
    write(tmp_path, files)
    with pytest.raises(WalCorruptionError):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*files, "wal.lock"])
    for name, data in files.items():
        assert (tmp_path / name).read_bytes() == data


@pytest.mark.parametrize("form", ["002", "003-crc"])
def test_wrong_requested_format_removes_nothing(tmp_path: Path, form: HistoricFormat) -> None:
    files = {"wal.log": file_003(PAIRS, is_checked=False)}
    write(tmp_path, files)
    for strict in (True, False):
        with pytest.raises(InvalidInputError, match="not have the requested format"):
            upgrade(tmp_path, form, keep_old=False, strict=strict)
    assert (tmp_path / "wal.log").read_bytes() == files["wal.log"]


def test_unrelated_new_log_is_not_accepted_as_the_upgrade(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"k", b"v")
    write(tmp_path, log_002())
    before = names(tmp_path)
    with pytest.raises(InvalidInputError, match="not made from it"):
        upgrade(tmp_path)
    write(tmp_path, {MARKER_NAME: b"an upgrade of something else"})
    with pytest.raises(InvalidInputError, match="not made from it"):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*before, MARKER_NAME])


def test_file_in_place_of_a_folder_raises_not_found_error(tmp_path: Path) -> None:
    write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=True)})
    with pytest.raises(NotFoundError, match="the path is a file") as caught:
        upgrade(tmp_path / "wal.log")
    assert "folder" in (caught.value.hint or "")


def test_foreign_temporary_files_are_not_removed_as_leftovers(tmp_path: Path) -> None:
    others = {"copy.wal.tmp": b"somebody's", "000001.wal.tmp": b"somebody's, too"}
    left = {f"{9:020d}.wal.tmp": b"of an upgrade that a crash stopped"}
    upgrade(write(tmp_path, log_002() | others | left))
    assert set(others) <= set(names(tmp_path))
    assert not set(left) & set(names(tmp_path))


def test_missing_log_raises_not_found_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError):
            upgrade(folder)
    assert names(tmp_path) == []


def test_upgrade_of_a_locked_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path, log_002())
    held = LocalDisk().lock(f"{tmp_path}/wal.lock", "an owner")
    with pytest.raises(LogLockedError):
        upgrade(tmp_path)
    held.release()
    upgrade(tmp_path)


def test_files_set_aside_earlier_are_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=True), "wal.log.upgraded": b"older"})
    report = upgrade(tmp_path)
    assert report.old_files == (str(tmp_path / "wal.log.2.upgraded"),)
    assert (tmp_path / "wal.log.upgraded").read_bytes() == b"older"


def test_new_log_that_reads_differently_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_same", lambda found, records: False)
    write(tmp_path, log_002())
    with pytest.raises(InternalError):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*log_002(), "wal.lock"])


@pytest.mark.parametrize("is_renamed", [False, True])
def test_upgrade_that_lost_its_lock_keeps_the_old_files(
    tmp_path: Path, *, is_renamed: bool
) -> None:
    write(tmp_path, log_002())

    class LosingDisk(LocalDisk):
        """Loses the lock to another upgrade, which begins to write its own temporary file."""

        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            temporary = list(tmp_path.glob("*.tmp"))
            if bool(temporary) != is_renamed and (tmp_path / "wal.lock").exists():
                (tmp_path / "wal.lock").unlink()
                for each in temporary:
                    each.write_bytes(each.read_bytes()[:100])

    with pytest.raises(UnavailableError, match="the upgrade stopped: its lock file was deleted"):
        upgrade(tmp_path, keep_old=False, disk=LosingDisk())
    for name, data in log_002().items():
        assert (tmp_path / name).read_bytes() == data
    upgrade(tmp_path, keep_old=False)
    with WriteAheadLog(tmp_path) as log:
        assert len(log.replay()) == 12
