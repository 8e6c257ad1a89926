"""One suite that every store passes, and what opens which."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lakelog.errors import (
    InvalidInputError,
    MissingDependencyError,
    NotFoundError,
    UnavailableError,
)
from lakelog.storage import LogStore, open_store
from lakelog.storage import local as local_module
from lakelog.storage.fsspec_store import FsspecStore, _modified_ms
from lakelog.storage.local import LocalStore

Write = Callable[[str, bytes], None]


class StoreContract:
    """What any `LogStore` promises. A subclass gives `store`, and `write` to put files into it."""

    @pytest.fixture
    def store(self) -> LogStore:
        raise AssertionError("a subclass gives it")

    @pytest.fixture
    def write(self) -> Write:
        raise AssertionError("a subclass gives it")

    def test_a_listing_is_sorted_by_name_and_leaves_folders_out(
        self, store: LogStore, write: Write
    ) -> None:
        for name in ("b", "a", "B", "é", "10", "9", "deeper/x"):
            write(f"log/{name}", name.encode())
        assert [e.name for e in store.list_from("log")] == ["10", "9", "B", "a", "b", "é"]
        sizes = {e.name: e.size_bytes for e in store.list_from("log")}
        assert sizes == {"10": 2, "9": 1, "B": 1, "a": 1, "b": 1, "é": 2}

    def test_a_listing_starts_at_a_name_that_need_not_exist(
        self, store: LogStore, write: Write
    ) -> None:
        for name in ("1", "2", "4"):
            write(f"log/{name}", b"")
        assert [e.name for e in store.list_from("log", "2")] == ["2", "4"]
        assert [e.name for e in store.list_from("log", "3")] == ["4"]
        assert store.list_from("log", "5") == []

    def test_a_listing_sees_what_was_written_since_the_last(
        self, store: LogStore, write: Write
    ) -> None:
        write("log/1", b"")
        assert len(store.list_from("log")) == 1
        write("log/2", b"")
        assert len(store.list_from("log")) == 2

    def test_times_are_milliseconds_of_the_present(self, store: LogStore, write: Write) -> None:
        write("log/1", b"")
        (entry,) = store.list_from("log")
        assert abs(entry.modified_ms - time.time() * 1000) < 60_000

    def test_folders_are_listed_without_files(self, store: LogStore, write: Write) -> None:
        for name in ("log/b/x", "log/a/y/z", "log/file"):
            write(name, b"")
        assert store.list_folders("log") == ["a", "b"]
        assert store.list_folders("") == ["log"]

    def test_a_folder_that_does_not_exist_is_empty(self, store: LogStore) -> None:
        assert store.list_from("nowhere") == []
        assert store.list_folders("nowhere") == []

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
    def test_a_file_is_read_whole(self, store: LogStore, write: Write, size: int) -> None:
        data = os.urandom(size)
        write("log/f", data)
        assert store.read("log/f") == data

    def test_a_file_that_is_not_there_is_not_found(self, store: LogStore, write: Write) -> None:
        write("log/f", b"")
        for path in ("log/g", "nowhere/f"):
            with pytest.raises(NotFoundError) as read:
                store.read(path)
            assert read.value.path == path
            with pytest.raises(NotFoundError):
                store.open(path)
            assert store.stat(path) is None

    def test_a_folder_is_no_file(self, store: LogStore, write: Write) -> None:
        write("log/f", b"")
        with pytest.raises(NotFoundError):
            store.read("log")

    @pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
    def test_many_files_come_in_the_order_asked_for(
        self, store: LogStore, write: Write, count: int
    ) -> None:
        names = [f"log/{n}" for n in range(count)]
        for name in names:
            write(name, name.encode() * 10)
        names.reverse()
        assert list(store.read_many(names)) == [name.encode() * 10 for name in names]

    @pytest.mark.parametrize("missing", [0, 5, 90])
    def test_a_missing_file_among_many_is_not_found_at_its_turn(
        self, store: LogStore, write: Write, missing: int
    ) -> None:
        names = [f"log/{n:03d}" for n in range(100)]
        for n, name in enumerate(names):
            if n != missing:
                write(name, b"x")
        with pytest.raises(NotFoundError) as refused:
            list(store.read_many(names))
        assert refused.value.path == names[missing]

    def test_an_open_file_seeks(self, store: LogStore, write: Write) -> None:
        write("log/f", bytes(range(256)))
        with store.open("log/f") as file:
            assert file.seek(250) == 250
            assert file.read() == bytes(range(250, 256))
            file.seek(-3, os.SEEK_END)
            assert file.read(2) == bytes([253, 254])

    def test_stat_tells_of_one_file(self, store: LogStore, write: Write) -> None:
        write("log/f", b"abc")
        entry = store.stat("log/f")
        assert entry == store.list_from("log")[0]
        assert entry is not None
        assert (entry.name, entry.size_bytes) == ("f", 3)

    @pytest.mark.parametrize("name", ["a b", "50%", "%2F", "#1", "q?", "x+y", "é雪😀", "a=b", "~"])
    def test_names_are_taken_as_they_are(self, store: LogStore, write: Write, name: str) -> None:
        write(f"log/{name}", b"x")
        assert [e.name for e in store.list_from("log")] == [name]
        assert store.read(f"log/{name}") == b"x"


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LogStore:
        return LocalStore(str(tmp_path / "t"))

    @pytest.fixture
    def write(self, tmp_path: Path) -> Write:
        def write(name: str, data: bytes) -> None:
            path = tmp_path / "t" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        return write

    def test_a_slow_disk_is_read_ahead_in_order(
        self, store: LogStore, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_module, "_CACHED_SECONDS", -1.0)
        monkeypatch.setattr(local_module, "_BATCH", 3)
        names = [f"log/{n}" for n in range(100)]
        for name in names:
            write(name, name.encode())
        assert list(store.read_many(names)) == [name.encode() for name in names]
        (Path(store.root) / "log/77").unlink()
        with pytest.raises(NotFoundError):
            list(store.read_many(names))

    def test_a_link_to_a_file_is_a_file_and_a_dangling_one_is_nothing(
        self, store: LogStore, write: Write
    ) -> None:
        write("log/f", b"x")
        (Path(store.root) / "log/link").symlink_to("f")
        (Path(store.root) / "log/dangling").symlink_to("gone")
        assert [e.name for e in store.list_from("log")] == ["f", "link"]

    def test_a_failing_disk_is_unavailable(
        self, store: LogStore, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write("log/f", b"x")

        def fail(*_: object, **__: object) -> Any:
            raise PermissionError(13, "Permission denied")

        for name in ("open", "stat", "scandir"):
            monkeypatch.setattr(f"lakelog.storage.local.os.{name}", fail)
        monkeypatch.setattr("builtins.open", fail)
        calls: list[Callable[[], object]] = [
            lambda: store.read("log/f"),
            lambda: store.open("log/f"),
            lambda: store.stat("log/f"),
            lambda: store.list_from("log"),
            lambda: store.list_folders("log"),
        ]
        for call in calls:
            with pytest.raises(UnavailableError, match="Permission denied"):
                call()


class TestFsspecStore(StoreContract):
    @pytest.fixture
    def base(self) -> Iterator[str]:
        base = f"/{uuid.uuid4().hex}"
        yield base
        filesystem = fsspec.filesystem("memory")
        if filesystem.exists(base):
            filesystem.rm(base, recursive=True)

    @pytest.fixture
    def store(self, base: str) -> LogStore:
        return open_store(f"memory:/{base}/t")

    @pytest.fixture
    def write(self, base: str) -> Write:
        filesystem = fsspec.filesystem("memory")
        return lambda name, data: filesystem.pipe_file(f"{base}/t/{name}", data)

    def test_it_is_an_fsspec_store_of_the_location(self, store: LogStore, base: str) -> None:
        assert isinstance(store, FsspecStore)
        assert store.root == f"memory:/{base}/t"


class Failing:
    """A driver whose every call raises what its client library would."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> Any:
            raise self.error

        return fail


@pytest.mark.parametrize(
    "error",
    [OSError("reset"), RuntimeError("503"), TimeoutError("slow"), TypeError("bad")],
    ids=repr,
)
def test_whatever_a_driver_raises_is_unavailable_with_its_cause(error: Exception) -> None:
    store = FsspecStore(Failing(error), "bucket/t", "s3://bucket/t")
    calls: list[Callable[[], object]] = [
        lambda: store.read("f"),
        lambda: list(store.read_many(["f", "g"])),
        lambda: store.open("f"),
        lambda: store.stat("f"),
        lambda: store.list_from("log"),
        lambda: store.list_folders("log"),
    ]
    for call in calls:
        with pytest.raises(UnavailableError) as refused:
            call()
        assert refused.value.__cause__ is error
        assert refused.value.hint is not None


def test_a_driver_without_refresh_has_its_cache_dropped() -> None:
    class Old:
        def __init__(self) -> None:
            self.dropped = 0

        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            return [{"name": f"{path}/f", "type": "file", "size": None}]

        def invalidate_cache(self) -> None:
            self.dropped += 1

    driver = Old()
    (entry,) = FsspecStore(driver, "b", "x://b").list_from("log")
    assert (entry.name, entry.size_bytes, entry.modified_ms, driver.dropped) == ("f", 0, 0, 1)


def test_a_driver_without_refresh_lists_a_folder_that_is_not_there_as_empty() -> None:
    class Old:
        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            raise FileNotFoundError(path)

        def invalidate_cache(self) -> None:
            pass

    assert FsspecStore(Old(), "b", "x://b").list_from("log") == []


@pytest.mark.parametrize(
    ("info", "modified_ms"),
    [
        ({"mtime": 1.5}, 1500),
        ({"LastModified": "1970-01-01T00:00:02+00:00"}, 2000),
        ({"updated": "1970-01-01T00:00:03Z"}, 3000),
        ({"created": None}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_the_modification_time_is_found_under_each_drivers_name(
    info: dict[str, Any], modified_ms: int
) -> None:
    assert _modified_ms(info) == modified_ms


# --- what opens which ----------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "file:{}"])
def test_a_path_and_a_file_url_open_the_local_disk(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "f").write_bytes(b"x")
    location = spelling.format(tmp_path / "a b")
    store = open_store(location if spelling == "{}" else location.replace(" ", "%20"))
    assert isinstance(store, LocalStore)
    assert store.read("f") == b"x"


def test_a_path_object_and_a_colon_in_a_name_are_local(tmp_path: Path) -> None:
    assert open_store(tmp_path).root == str(tmp_path)
    assert isinstance(open_store("a:b"), LocalStore)


def test_an_empty_location_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        open_store("")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be opened"):
        open_store("nosuchprotocol://bucket/t")


def failing_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)


@pytest.mark.parametrize(
    ("url", "command"),
    [("s3://b/t", "lakelog[s3]"), ("s3a://b/t", "lakelog[s3]"), ("hdfs://b/t", "hdfsfs")],
)
def test_a_driver_that_is_not_installed_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, url: str, command: str
) -> None:
    failing_with(monkeypatch, ImportError("no driver"))
    with pytest.raises(MissingDependencyError) as refused:
        open_store(url)
    assert re.search(rf"pip install '?{re.escape(command)}", refused.value.hint or "")


def test_a_driver_that_refuses_its_options_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(monkeypatch, RuntimeError("no credentials"))
    with pytest.raises(UnavailableError, match="no credentials") as refused:
        open_store("gs://b/t", {"token": "secret"})
    assert "secret" not in str(refused.value)


def test_options_go_to_the_driver() -> None:
    store = open_store("memory://t", {"skip_instance_cache": True})
    assert store.list_from("") == []
