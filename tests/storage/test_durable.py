"""Local disk under faults of the operating system: what is certain, what is not, what is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import OutcomeUnknownError, UnavailableError, UnsupportedStoreError
from lakelog.storage import durable
from lakelog.storage.local import LocalStore

OS = "lakelog.storage.durable.os"
DATA = b"x" * 5000
Patch = pytest.MonkeyPatch


def failing(number: int, *, after: int = 0, real: Callable[..., Any] | None = None) -> Any:
    """A function that fails with an error number, after `after` calls of the real one."""
    calls = [0]

    def fail(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if real is not None and calls[0] <= after:
            return real(*arguments, **keywords)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "t"))
    store.put_if_absent("log/0", b"first")  # folders are made, and known to be durable
    return store


def names(store: LocalStore) -> list[str]:
    return sorted(os.listdir(f"{store.root}/log"))


def without_anonymous_files(patch: Patch, store: LocalStore) -> None:
    patch.setattr(store._writer, "_anonymous", False)


def without_links(patch: Patch, store: LocalStore, number: int = errno.EPERM) -> None:
    patch.setattr(f"{OS}.link", failing(number))


WAYS: dict[str, Callable[[Patch, LocalStore], None]] = {
    "anonymous": lambda _patch, _store: None,
    "link": without_anonymous_files,
    "rename": without_links,
}
way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@way
def test_each_way_creates_once_durably_and_leaves_nothing_else(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None]
) -> None:
    way(monkeypatch, store)
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    assert store.put_if_absent("log/1", DATA)
    assert synced[-2:] == ["file", "folder"]
    assert store.put_if_absent("log/2", DATA)
    assert synced[-2:] == ["file", "folder"]
    monkeypatch.setattr(f"{OS}.path.lexists", lambda _: False)  # a race that is lost at the end
    assert not store.put_if_absent("log/1", b"other")
    assert store.read("log/1") == DATA
    assert names(store) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL]
)
def test_a_filesystem_without_links_and_exclusive_rename_is_refused(
    store: LocalStore, monkeypatch: Patch, number: int
) -> None:
    without_links(monkeypatch, store, number)
    monkeypatch.setattr(durable, "_renameat2", failing(number))
    assert store.refusal is None
    for _ in range(2):
        with pytest.raises(UnsupportedStoreError, match="hard links"):
            store.put_if_absent("log/1", DATA)
    assert "two writers" in str(store.refusal)
    assert names(store) == ["0"]
    store.put("log/pointer", DATA)  # whose last writer may win
    assert store.read("log/pointer") == DATA


def test_a_platform_without_the_calls_is_refused(store: LocalStore, monkeypatch: Patch) -> None:
    without_links(monkeypatch, store)
    monkeypatch.setattr(durable, "_renameat2", None)
    with pytest.raises(UnsupportedStoreError):
        store.put_if_absent("log/1", DATA)


def test_a_kernel_without_anonymous_files_falls_back(store: LocalStore, monkeypatch: Patch) -> None:
    real = os.open

    def opened(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & durable._O_TMPFILE == durable._O_TMPFILE:
            raise OSError(errno.EISDIR, "Is a directory")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(f"{OS}.open", opened)
    assert store.put_if_absent("log/1", DATA)
    assert store._writer._anonymous is False
    assert names(store) == ["0", "1"]


@way
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_writes_nothing_and_leaves_nothing(
    store: LocalStore,
    monkeypatch: Patch,
    way: Callable[[Patch, LocalStore], None],
    number: int,
    call: str,
) -> None:
    way(monkeypatch, store)
    monkeypatch.setattr(f"{OS}.{call}", failing(number))
    for write in (store.put_if_absent, store.put):
        with pytest.raises(UnavailableError, match="nothing was written"):
            write("log/1", DATA)
    assert names(store) == ["0"]


def test_a_short_write_goes_on_until_all_is_written(store: LocalStore, monkeypatch: Patch) -> None:
    real = os.write
    monkeypatch.setattr(f"{OS}.write", lambda file, data: real(file, data[:7]))
    assert store.put_if_absent("log/1", DATA)
    store.put("log/2", DATA)
    assert store.read("log/1") == store.read("log/2") == DATA


@way
def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None]
) -> None:
    way(monkeypatch, store)
    real = os.write
    short = lambda file, data: real(file, data[:7])
    monkeypatch.setattr(f"{OS}.write", failing(errno.ENOSPC, after=3, real=short))
    with pytest.raises(UnavailableError):
        store.put_if_absent("log/1", DATA)
    assert names(store) == ["0"]


@way
def test_a_folder_that_cannot_be_synced_leaves_the_outcome_open(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None]
) -> None:
    way(monkeypatch, store)
    monkeypatch.setattr(durable, "_sync_descriptor", failing(errno.EIO))
    for n, write in enumerate((store.put_if_absent, store.put)):
        with pytest.raises(OutcomeUnknownError, match="crash"):
            write(f"log/w{n}", DATA)
        assert store.read(f"log/w{n}") == DATA
    assert names(store) == ["0", "w0", "w1"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_filesystem_that_syncs_no_folders_is_taken_as_it_is(
    store: LocalStore, monkeypatch: Patch, number: int
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    assert store.put_if_absent("log/1", DATA)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, UnavailableError),
        (errno.EACCES, UnavailableError),
        (errno.EROFS, UnavailableError),
        (errno.EIO, OutcomeUnknownError),
        (errno.ETIMEDOUT, OutcomeUnknownError),
        (errno.ESTALE, OutcomeUnknownError),
    ],
)
def test_naming_that_fails_is_certain_only_where_nothing_can_have_happened(
    store: LocalStore, monkeypatch: Patch, number: int, error: type[Exception]
) -> None:
    without_anonymous_files(monkeypatch, store)
    with monkeypatch.context() as patch:
        patch.setattr(f"{OS}.link", failing(number))
        with pytest.raises(error):
            store.put_if_absent("log/1", DATA)
    without_links(monkeypatch, store)
    monkeypatch.setattr(durable, "_renameat2", failing(number))
    monkeypatch.setattr(f"{OS}.replace", failing(number))
    for write in (store.put_if_absent, store.put):
        with pytest.raises(error):
            write("log/1", DATA)
    assert names(store) == ["0"]


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
@pytest.mark.parametrize("anonymous", [True, False])
def test_a_link_that_was_made_although_it_failed_is_recognised(
    store: LocalStore, monkeypatch: Patch, number: int, anonymous: bool
) -> None:
    """As over NFS, where a request whose answer was lost is repeated."""
    if not anonymous:
        without_anonymous_files(monkeypatch, store)
    real = os.link

    def link(*arguments: Any, **keywords: Any) -> None:
        real(*arguments, **keywords)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"{OS}.link", link)
    assert store.put_if_absent("log/1", DATA)
    assert store.read("log/1") == DATA
    assert names(store) == ["0", "1"]


@way
@pytest.mark.parametrize("call", ["write", "fsync", "link", "replace"])
def test_an_interrupt_leaves_no_temporary_file(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None], call: str
) -> None:
    way(monkeypatch, store)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{OS}.{call}", interrupt)
    for write in (store.put_if_absent, store.put):
        try:
            write("log/1", DATA)
        except KeyboardInterrupt:
            continue
    assert [n for n in names(store) if n.startswith(".")] == []


def test_a_temporary_file_of_a_killed_writer_is_not_listed(store: LocalStore) -> None:
    Path(store.root, "log", f".lakelog-{'0' * 32}.tmp").write_bytes(b"half")
    Path(store.root, "log", ".other").write_bytes(b"x")
    assert [e.name for e in store.list_from("log")] == [".other", "0"]


def test_new_folders_are_synced_in_those_above_them(tmp_path: Path, monkeypatch: Patch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    store = LocalStore(str(tmp_path / "new" / "t"))
    store.put_if_absent("log/1", DATA)
    folders = [Path(each) for each in synced if os.path.isdir(each)]
    table = tmp_path / "new" / "t"
    assert set(folders) == {tmp_path, tmp_path / "new", table, table / "log"}
    assert folders[-1] == table / "log"


def test_folders_that_another_process_made_are_synced_once(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "t" / "log").mkdir(parents=True)
    count = [0]
    real = os.fsync

    def fsync(descriptor: int) -> None:
        count[0] += 1
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    store = LocalStore(str(tmp_path / "t"))
    store.put_if_absent("log/1", DATA)
    assert count[0] == 4  # the file, its folder, the table, and the folder that the table is in
    store.put_if_absent("log/2", DATA)
    assert count[0] == 6


def test_a_table_deleted_under_a_store_can_be_written_again(store: LocalStore) -> None:
    os.unlink(f"{store.root}/log/0")
    os.rmdir(f"{store.root}/log")
    assert store.put_if_absent("log/1", DATA)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EMFILE])
def test_a_folder_that_cannot_be_made_is_unavailable(
    tmp_path: Path, monkeypatch: Patch, number: int
) -> None:
    monkeypatch.setattr(f"{OS}.mkdir", failing(number))
    store = LocalStore(str(tmp_path / "t"))
    for write in (store.put_if_absent, store.put):
        with pytest.raises(UnavailableError):
            write("log/1", DATA)


def test_a_file_that_cannot_be_deleted_is_unavailable(
    store: LocalStore, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lakelog.storage.local.os.unlink", failing(errno.EACCES))
    with pytest.raises(UnavailableError):
        store.delete("log/0")


def test_a_created_file_has_the_rights_that_the_umask_leaves(store: LocalStore) -> None:
    before = os.umask(0o027)
    try:
        store.put_if_absent("log/1", DATA)
        store.put("log/2", DATA)
    finally:
        os.umask(before)
    modes = {os.stat(f"{store.root}/log/{n}").st_mode & 0o777 for n in (1, 2)}
    assert modes == {0o640}
