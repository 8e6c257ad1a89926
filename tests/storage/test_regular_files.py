"""On local disk only regular files are opened: a FIFO, a socket or a device is a typed error."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.errors import NotFoundError, NotRegularFileError
from lakelog.storage import open_store
from lakelog.storage.local import _is_remote
from tests.handmade import Handmade, add, metadata, protocol


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        # A short name: that of a socket may have 108 bytes.
        here = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


KINDS = [(fifo, "a FIFO"), (device, "a character device"), (listener, "a socket")]


@pytest.mark.parametrize(("make", "found"), KINDS, ids=["fifo", "device", "socket"])
def test_special_file_raises_not_regular_file_error(
    tmp_path: Path, make: Callable[[Path], None], found: str
) -> None:
    make(tmp_path / "x")
    store = open_store(tmp_path)
    for read in (store.read, store.open, lambda path: list(store.read_many([path]))):
        with pytest.raises(NotRegularFileError) as caught:
            read("x")
        assert (caught.value.path, caught.value.found) == ("x", found)


def test_directory_raises_not_found_error_and_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    store = open_store(tmp_path)
    assert store.read("link") == b"content"
    for read in (store.read, store.open):
        with pytest.raises(NotFoundError, match="a directory has the name"):
            read("folder")


def test_files_of_every_size_are_read_completely(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for size in (0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 20):
        (tmp_path / "x").write_bytes(bytes(size))
        assert store.read("x") == bytes(size)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="of Linux")
def test_file_with_a_wrong_stat_size_is_read_completely() -> None:
    assert open_store("/proc/self").read("status").startswith(b"Name:")


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
@pytest.mark.parametrize("make", [fifo, device], ids=["fifo", "device"])
def test_special_file_in_a_table_does_not_block_readers(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    table = lakelog.create(tmp_path / "t", pl.Schema({"a": pl.Int64}), upkeep=False)
    table.append(pl.DataFrame({"a": [1]}))
    table.checkpoint()
    table.append(pl.DataFrame({"a": [2]}))
    log = tmp_path / "t" / "_delta_log"

    make(log / "_last_checkpoint")  # a hint
    assert lakelog.open(table.path).snapshot().num_files() == 2
    make(log / f"{1:020d}.checkpoint.parquet")  # ignored: its commits exist
    snapshot = lakelog.open(table.path).snapshot()
    assert snapshot.num_files() == 2
    data = Path(table.path) / snapshot.files().collect()["path"][0]
    make(log / f"{2:020d}.json")
    with pytest.raises(NotRegularFileError):
        lakelog.open(table.path).snapshot().num_files()
    make(data)
    with pytest.raises(Exception, match="was not read"):
        snapshot.scan().collect()


def test_data_file_larger_than_recorded_is_not_read_into_memory(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.commit(0, protocol(), metadata(), add("f.parquet", 100))
    with (tmp_path / "t" / "f.parquet").open("wb") as file:
        file.truncate(1 << 42)  # a hole
    with pytest.raises(Exception, match="the length of a data file differs from the log"):
        made.table.snapshot().scan().collect()


def test_a_log_file_larger_than_memory_is_refused(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start()
    with made.commit(1).open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(lakelog.LakelogError):
        made.table.snapshot().num_files()


def test_remote_mount_is_detected(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /data rw shared:1 - nfs4 server:/x rw\n"
        "3 2 8:2 / /data/scratch rw - xfs /dev/sdb rw\n"
        "4 1 0:41 / /my\\040share\\134x rw - cifs //server/x rw\n"
    )
    remote = {
        root: _is_remote(root, str(mounts))
        for root in (
            *("/data", "/data/t", "/data/scratch/t", "/database", "/home"),
            *("/my share\\x/t", "/my"),
        )
    }
    found = [root for root, found in remote.items() if found]
    assert found == ["/data", "/data/t", "/my share\\x/t"]
    assert not _is_remote("/data", str(tmp_path / "missing"))
