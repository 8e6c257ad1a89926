"""Local disk under faults of the operating system: durable, uncertain and remaining files."""

from __future__ import annotations

import contextlib
import errno
import inspect
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import (
    ExternalPathError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedStoreError,
)
from lakelog.storage import durable
from lakelog.storage.local import LocalStore

OS = "lakelog.storage.durable.os"
DATA = b"x" * 5000
LARGE = bytes(range(256)) * 10_000  # more than two pieces of an upload
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
    store.put_if_absent("log/0", b"first")  # creates the folders durably
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


def upload(store: LocalStore, path: str = "log/1", data: bytes = LARGE) -> None:
    with store.upload(path) as each:
        each.write(data)


@pytest.fixture
def synced(monkeypatch: Patch) -> list[str]:
    """The files and folders that were synced: ``file``, or the path of the folder."""
    found: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        found.append(path if os.path.isdir(path) else "file")
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    return found


CHANGES: dict[str, Callable[[LocalStore], object]] = {
    "create": lambda store: store.put_if_absent("log/1", DATA),
    "replace": lambda store: store.put("log/1", DATA),
    "upload": lambda store: upload(store, data=DATA),
    "move": lambda store: store.move("log/0", "log/1"),
}
change_of = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@change_of
def test_failed_folder_sync_raises_outcome_unknown_error(
    store: LocalStore, monkeypatch: Patch, change: Callable[[LocalStore], object]
) -> None:
    monkeypatch.setattr(durable, "_sync_descriptor", failing(errno.EIO))
    with pytest.raises(OutcomeUnknownError, match="crash"):
        change(store)
    assert names(store) == (["1"] if change is CHANGES["move"] else ["0", "1"])


@change_of
@pytest.mark.parametrize("is_linked", [True, False])
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
def test_failed_rename_or_link_is_unavailable_or_of_unknown_outcome(
    store: LocalStore,
    monkeypatch: Patch,
    change: Callable[[LocalStore], object],
    is_linked: bool,
    number: int,
    error: type[Exception],
) -> None:
    without_anonymous_files(monkeypatch, store)
    without_links(monkeypatch, store, number if is_linked else errno.EPERM)
    monkeypatch.setattr(durable, "_renameat2", failing(number))
    monkeypatch.setattr(f"{OS}.replace", failing(number))
    with pytest.raises(error):
        change(store)
    assert names(store) == ["0"]


@way
@pytest.mark.parametrize("call", ["write", "fsync", "link", "replace"])
def test_an_interrupt_leaves_no_temporary_file(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None], call: str
) -> None:
    way(monkeypatch, store)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{OS}.{call}", interrupt)
    for change in CHANGES.values():
        with contextlib.suppress(KeyboardInterrupt):
            change(store)
    assert temporaries(store) == []


@way
def test_each_method_creates_exclusively_and_durably(
    store: LocalStore,
    monkeypatch: Patch,
    synced: list[str],
    way: Callable[[Patch, LocalStore], None],
) -> None:
    way(monkeypatch, store)
    for name in ("log/1", "log/2"):
        assert store.put_if_absent(name, DATA)
        assert synced[-2:] == ["file", f"{store.root}/log"]
    monkeypatch.setattr(
        f"{OS}.path.lexists", lambda _: False
    )  # a race that is lost at the last step
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
    store.put("log/pointer", DATA)  # the last writer may win here
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
def test_full_disk_leaves_no_file(
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


def test_short_write_is_continued(store: LocalStore, monkeypatch: Patch) -> None:
    real = os.write
    monkeypatch.setattr(f"{OS}.write", lambda file, data: real(file, data[:7]))
    assert store.put_if_absent("log/1", DATA)
    store.put("log/2", DATA)
    assert store.read("log/1") == store.read("log/2") == DATA


@way
def test_disk_that_fills_up_during_a_write_leaves_no_file(
    store: LocalStore, monkeypatch: Patch, way: Callable[[Patch, LocalStore], None]
) -> None:
    way(monkeypatch, store)
    real = os.write
    short = lambda file, data: real(file, data[:7])
    monkeypatch.setattr(f"{OS}.write", failing(errno.ENOSPC, after=3, real=short))
    with pytest.raises(UnavailableError):
        store.put_if_absent("log/1", DATA)
    assert names(store) == ["0"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_filesystem_without_folder_sync_is_accepted(
    store: LocalStore, monkeypatch: Patch, number: int
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(f"{OS}.fsync", fsync)
    assert store.put_if_absent("log/1", DATA)


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
@pytest.mark.parametrize("anonymous", [True, False])
def test_link_that_succeeded_despite_an_error_is_recognised(
    store: LocalStore, monkeypatch: Patch, number: int, anonymous: bool
) -> None:
    """Like NFS, where a request whose answer was lost is repeated."""
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


def test_a_temporary_file_of_a_killed_writer_is_not_listed(store: LocalStore) -> None:
    Path(store.root, "log", f".lakelog-{'0' * 32}.tmp").write_bytes(b"half")
    Path(store.root, "log", ".other").write_bytes(b"x")
    assert [e.name for e in store.list_from("log")] == [".other", "0"]


def test_new_folders_are_synced_in_their_parents(tmp_path: Path, synced: list[str]) -> None:
    store = LocalStore(str(tmp_path / "new" / "t"))
    store.put_if_absent("log/1", DATA)
    folders = [Path(each) for each in synced if each != "file"]
    table = tmp_path / "new" / "t"
    assert set(folders) == {tmp_path, tmp_path / "new", table, table / "log"}
    assert folders[-1] == table / "log"


def test_folders_of_another_process_are_synced_once(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "t" / "log").mkdir(parents=True)
    store = LocalStore(str(tmp_path / "t"))
    store.put_if_absent("log/1", DATA)
    assert len(synced) == 4  # the file, its folder, the table, and the folder that the table is in
    store.put_if_absent("log/2", DATA)
    assert len(synced) == 6


def test_store_can_write_after_its_folder_was_deleted(store: LocalStore) -> None:
    os.unlink(f"{store.root}/log/0")
    os.rmdir(f"{store.root}/log")
    assert store.put_if_absent("log/1", DATA)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EMFILE])
def test_failed_folder_creation_raises_unavailable_error(
    tmp_path: Path, monkeypatch: Patch, number: int
) -> None:
    monkeypatch.setattr(f"{OS}.mkdir", failing(number))
    store = LocalStore(str(tmp_path / "t"))
    for write in (store.put_if_absent, store.put):
        with pytest.raises(UnavailableError):
            write("log/1", DATA)


def test_link_without_a_target_raises_unavailable_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    with pytest.raises(UnavailableError):
        LocalStore(str(tmp_path / "link")).put_if_absent("folder/x", DATA)


def test_more_folders_than_calls_may_nest_are_created(
    store: LocalStore,
) -> None:
    depth, limit = len(inspect.stack()), sys.getrecursionlimit()
    path = "a/" * 200 + "x"
    sys.setrecursionlimit(depth + 150)
    try:
        assert store.put_if_absent(path, DATA)
    finally:
        sys.setrecursionlimit(limit)
    assert store.read(path) == DATA


@pytest.mark.parametrize("path", ["x" * 300, "log/" + "é" * 200, f"{'x' * 300}/y"])
def test_name_that_is_too_long_is_absent_and_not_written(store: LocalStore, path: str) -> None:
    assert store.stat(path) is None
    assert store.has_folders([path]) == [False]
    for read in (store.read, lambda path: store.move(path, "log/1")):
        with pytest.raises(NotFoundError):
            read(path)
    store.delete(path)
    for write in (store.put_if_absent, store.put, lambda path, _: store.move("log/0", path)):
        with pytest.raises(UnavailableError, match="nothing was written"):
            write(path, DATA)
    assert names(store) == ["0"]


def test_path_that_is_too_long_is_not_reported_as_absent(store: LocalStore) -> None:
    with pytest.raises(UnavailableError):
        store.stat("x/" * 5000)


def test_failed_deletion_raises_unavailable_error(store: LocalStore, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lakelog.storage.local.os.unlink", failing(errno.EACCES))
    with pytest.raises(UnavailableError):
        store.delete("log/0")


def test_created_file_has_the_permissions_of_the_umask(store: LocalStore) -> None:
    before = os.umask(0o027)
    try:
        store.put_if_absent("log/1", DATA)
        store.put("log/2", DATA)
    finally:
        os.umask(before)
    modes = {os.stat(f"{store.root}/log/{n}").st_mode & 0o777 for n in (1, 2)}
    assert modes == {0o640}


# --- uploads -------------------------------------------------------------------------------------


def temporaries(store: LocalStore) -> list[str]:
    return [name for name in names(store) if durable.TEMPORARY.fullmatch(name)]


def test_upload_uses_a_hidden_name_and_is_durable_after_close(
    store: LocalStore, synced: list[str]
) -> None:
    synced.clear()
    each = store.upload("log/1")
    each.write(LARGE)
    (temporary,) = temporaries(store)
    assert 0 < os.path.getsize(f"{store.root}/log/{temporary}") <= len(LARGE)
    assert [e.name for e in store.list_from("log")] == ["0"]
    assert synced == []
    each.close()
    assert synced == ["file", f"{store.root}/log"]
    assert names(store) == ["0", "1"]
    assert store.read("log/1") == LARGE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_upload_to_a_full_disk_leaves_no_file(
    store: LocalStore, monkeypatch: Patch, number: int, call: str
) -> None:
    store.put("log/1", b"before")
    each = store.upload("log/1")
    with monkeypatch.context() as patch:
        patch.setattr(f"{OS}.{call}", failing(number))

        def write_and_close() -> None:
            each.write(LARGE)
            each.close()

        with pytest.raises(UnavailableError, match="nothing was written"):
            write_and_close()
    assert each.closed
    assert names(store) == ["0", "1"]
    assert store.read("log/1") == b"before"
    each.abandon()


def test_close_after_a_failed_write_does_not_publish_the_upload(
    store: LocalStore, monkeypatch: Patch
) -> None:
    each = store.upload("log/1")
    with monkeypatch.context() as patch:
        patch.setattr(f"{OS}.write", failing(errno.ENOSPC))
        with pytest.raises(UnavailableError):
            each.write(LARGE)
    with pytest.raises(UnavailableError, match="earlier"):
        each.write(b"more")
    with pytest.raises(UnavailableError, match="earlier"):
        each.close()
    each.close()
    assert names(store) == ["0"]


def _open_files(store: LocalStore) -> list[str]:
    """What this process has open in the store; other threads of the run open files elsewhere."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder that was listed
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith(str(store.root)))


def test_failed_start_of_an_upload_leaves_no_open_file(
    store: LocalStore, monkeypatch: Patch
) -> None:
    before = _open_files(store)
    real = os.open

    def opened(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(f"{OS}.open", opened)
    with pytest.raises(UnavailableError, match=r"ulimit -n"):
        store.upload("log/1")
    upload_of_another = LocalStore(str(store.root))
    with pytest.raises(UnavailableError):
        upload_of_another.upload("log/1")
    assert _open_files(store) == before


def _upload_until_killed(root: str) -> None:
    each = LocalStore(root).upload("log/1")
    each.write(LARGE)
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_upload_leaves_a_temporary_file_that_walk_lists(store: LocalStore) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_upload_until_killed, args=(store.root,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [e.name for e in store.list_from("log")] == ["0"]
    (left,) = temporaries(store)
    (batch,) = store.walk("log")
    assert sorted(e.name for e in batch) == [left, "0"]
    assert store.delete_many([f"log/{left}"]) == []
    assert names(store) == ["0"]


# --- moves ---------------------------------------------------------------------------------------


def test_move_syncs_the_new_name_before_the_old_one(store: LocalStore, synced: list[str]) -> None:
    store.put("aside/x", b"x")
    synced.clear()
    store.move("log/0", "aside/0")
    aside, log = (f"{store.root}/{name}" for name in ("aside", "log"))
    assert synced == [aside, log]
    store.move("aside/0", "aside/1")
    assert synced == [aside, log, aside]
    assert store.read("aside/1") == b"first"


def test_move_to_another_filesystem_raises_unavailable_error(
    store: LocalStore, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(f"{OS}.replace", failing(errno.EXDEV))
    with pytest.raises(UnavailableError):
        store.move("log/0", "log/1")
    assert names(store) == ["0"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO])
def test_move_that_succeeded_despite_an_error_is_recognised(
    store: LocalStore, monkeypatch: Patch, number: int
) -> None:
    """Like NFS, where a request whose answer was lost is repeated."""
    real = os.replace

    def replace(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"{OS}.replace", replace)
    store.move("log/0", "log/1")
    assert names(store) == ["1"]


def test_move_of_a_concurrently_deleted_file_raises_not_found_error(
    store: LocalStore, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(f"{OS}.replace", failing(errno.ENOENT))
    with pytest.raises(NotFoundError):
        store.move("log/0", "log/1")


def test_a_file_is_not_moved_over_a_folder(store: LocalStore) -> None:
    store.put("log/deep/1", b"x")
    with pytest.raises(UnavailableError):
        store.move("log/0", "log/deep")
    assert store.read("log/0") == b"first"
    assert store.read("log/deep/1") == b"x"


# --- deleting many, walking ----------------------------------------------------------------------


def test_failed_deletions_are_reported_and_the_other_files_are_deleted(
    store: LocalStore, monkeypatch: Patch
) -> None:
    for n in range(1, 5):
        store.put(f"log/{n}", DATA)
    real = os.unlink

    def unlink(name: str) -> None:
        if name.endswith(("1", "3")):
            raise OSError(errno.EACCES, "Permission denied")
        real(name)

    monkeypatch.setattr("lakelog.storage.local.os.unlink", unlink)
    errors = store.delete_many([f"log/{n}" for n in range(7)])
    assert [(type(e), e.path) for e in errors] == [
        (UnavailableError, "log/1"),
        (UnavailableError, "log/3"),
    ]
    assert names(store) == ["1", "3"]


def test_walk_does_not_follow_linked_folders_and_skips_dangling_links(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"x")
    os.symlink(tmp_path / "outside", f"{store.root}/log/out")
    os.symlink(store.root, f"{store.root}/log/round")
    os.symlink(f"{store.root}/nothing", f"{store.root}/log/gone")
    os.symlink(tmp_path / "outside" / "x", f"{store.root}/log/file")
    (batch,) = store.walk()
    assert sorted(e.name for e in batch) == ["log/0", "log/file"]


@pytest.mark.parametrize("link", ["log", "log/deep"])
def test_changes_through_a_linked_folder_are_refused(
    store: LocalStore, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"x")
    folder = Path(store.root) / link
    if folder.exists():
        folder.rename(tmp_path / "moved")
    folder.symlink_to(outside)
    changes: list[Callable[[], object]] = [
        lambda: store.put_if_absent(f"{link}/new", b"n"),
        lambda: store.put(f"{link}/x", b"n"),
        lambda: store.upload(f"{link}/x"),
        lambda: store.move(f"{link}/x", "other"),
        lambda: store.move("other", f"{link}/x"),
        lambda: store.delete(f"{link}/x"),
    ]
    (Path(store.root) / "other").write_bytes(b"o")
    for change in changes:
        with pytest.raises(ExternalPathError, match="symbolic link"):
            change()
    (error,) = store.delete_many([f"{link}/x", "other"])
    assert isinstance(error, ExternalPathError)
    assert error.path == f"{link}/x"
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("x", b"x")]
    assert store.read(f"{link}/x") == b"x"


def test_changes_apply_to_the_link_and_not_to_its_target(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    link = Path(store.root) / "log/link"
    link.symlink_to(outside)
    store.put("log/link", b"n")
    assert not link.is_symlink()
    link.unlink()
    link.symlink_to(outside)
    store.delete("log/link")
    assert not link.is_symlink()
    assert outside.read_bytes() == b"x"


@pytest.mark.parametrize("path", ["../x", "log/../../x", "log/..", "a\0b"])
def test_path_outside_the_folder_is_refused(store: LocalStore, path: str) -> None:
    actions: list[Callable[[], object]] = [
        lambda: store.read(path),
        lambda: store.open(path),
        lambda: store.stat(path),
        lambda: store.list_from(path),
        lambda: store.put(path, b"x"),
        lambda: store.put_if_absent(path, b"x"),
        lambda: store.move("log/0", path),
        lambda: store.move(path, "log/9"),
        lambda: store.upload(path),
        lambda: store.delete(path),
        lambda: list(store.walk(path)),
    ]
    for action in actions:
        with pytest.raises(ExternalPathError):
            action()


def test_failed_walk_raises_unavailable_error(store: LocalStore, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lakelog.storage.local.os.scandir", failing(errno.EACCES))
    with pytest.raises(UnavailableError):
        list(store.walk())
