"""Failures of local disk and of fsspec drivers, and which location opens which store."""

from __future__ import annotations

import itertools
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

import lakelog
from lakelog.errors import (
    ExternalPathError,
    InvalidInputError,
    MissingDependencyError,
    NotFoundError,
    UnavailableError,
)
from lakelog.storage import LogStore, open_store
from lakelog.storage import local as local_module
from lakelog.storage.fsspec_store import FsspecStore, _modified_ms
from lakelog.storage.local import LocalStore
from lakelog.wal.inspect import inspect

Write = Callable[[str, bytes], None]


class TestLocalStore:
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

    def test_link_to_a_file_is_listed_and_a_dangling_link_is_not(
        self, store: LogStore, write: Write
    ) -> None:
        write("log/f", b"x")
        (Path(store.root) / "log/link").symlink_to("f")
        (Path(store.root) / "log/dangling").symlink_to("gone")
        assert [e.name for e in store.list_from("log")] == ["f", "link"]

    def test_link_to_itself_is_absent_and_hides_no_other_file(
        self, store: LogStore, write: Write
    ) -> None:
        write("log/f", b"x")
        (Path(store.root) / "log/loop").symlink_to("loop")
        assert [e.name for e in store.list_from("log")] == ["f"]
        assert [e.name for batch in store.walk() for e in batch] == ["log/f"]
        assert store.list_folders("log") == []
        assert store.list_from("log/loop") == []
        assert list(store.walk("log/loop")) == []
        assert store.has_folders(["log/loop"]) == [False]
        assert store.stat("log/loop") is None
        for read in (store.read, store.open):
            with pytest.raises(NotFoundError, match="a dangling link"):
                read("log/loop")
        assert not store.put_if_absent("log/loop", b"x")

    def test_failing_disk_raises_unavailable_error(
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
            lambda: store.has_folders(["log"]),
        ]
        for call in calls:
            with pytest.raises(UnavailableError, match="Permission denied"):
                call()


def test_a_memory_url_opens_an_fsspec_store_of_the_location() -> None:
    store = open_store("memory://stores/t")
    assert isinstance(store, FsspecStore)
    assert store.root == "memory://stores/t"


class Failing:
    """A driver whose every call raises an error of its client library."""

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
def test_driver_error_raises_unavailable_error_with_its_cause(error: Exception) -> None:
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


class Decoding:
    """A driver whose server decodes names; it returns the requested path."""

    def cat_file(self, path: str) -> bytes:
        return path.encode()


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "%2e%2e/x",
        "..%2Fx",
        "%2E.%2fx",
        "..%5Cx",
        "..\\x",
        "a/..%2F..%2Fx",
        "a%2F%2e%2e%2F%2e%2e%2Fx",
    ],
)
def test_encoded_path_out_of_the_folder_is_refused_by_drivers_that_may_decode_it(
    path: str,
) -> None:
    with pytest.raises(ExternalPathError):
        FsspecStore(Decoding(), "host/t", "webdav://host/t").read(path)


def test_encoded_separators_in_a_name_are_read() -> None:
    store = FsspecStore(Decoding(), "host/t", "webdav://host/t")
    # A partition value: a/../b is encoded by every writer.
    for name in ("p=a%2F..%2Fb/x", "p=../x", "%2e%2ea", "a..%2Fb"):
        assert store.read(name) == f"host/t/{name}".encode()


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


def test_driver_without_refresh_lists_a_missing_folder_as_empty() -> None:
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
def test_modification_time_is_read_under_each_drivers_key(
    info: dict[str, Any], modified_ms: int
) -> None:
    assert _modified_ms(info) == modified_ms


@pytest.mark.parametrize(
    "spelling", ["{}", "file://{}", "file:{}", "FILE://{}", "file://localhost{}"]
)
def test_a_path_and_a_file_url_open_the_local_disk(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "f").write_bytes(b"x")
    location = spelling.format(tmp_path / "a b")
    store = open_store(location if spelling == "{}" else location.replace(" ", "%20"))
    assert isinstance(store, LocalStore)
    assert store.read("f") == b"x"


def test_file_url_whose_path_is_not_certain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pl.DataFrame({"id": [1]})
    monkeypatch.chdir(tmp_path)
    for name in ("t", "t#1", "t?1", "t\n"):
        lakelog.write(tmp_path / name, rows)
    refused = {
        f"file://{tmp_path}/t#1": "#",
        f"file://{tmp_path}/t?1": "?",
        f"file://host{tmp_path}/t": "a host",
        "file://t": "a host",
        "file:": "no path",
        "file://": "no path",
    }
    for url, found in refused.items():
        for call in (
            lambda url: lakelog.write(url, rows, mode="overwrite"),
            lambda url: lakelog.open("t", allow_external=[url]),
        ):
            with pytest.raises(InvalidInputError, match="file: URL") as caught:
                call(url)
            assert found in str(caught.value.found)
    for name in ("t%231", "t%3F1", "t\n", "t%0A"):
        lakelog.write(f"file://{tmp_path}/{name}", rows, mode="overwrite")
    versions = [lakelog.open(name).version() for name in ("t", "t#1", "t?1", "t\n")]
    assert versions == [0, 1, 1, 2]
    with pytest.raises(InvalidInputError, match="not valid text"):
        lakelog.open("file:///t%00")


def test_a_path_object_and_a_colon_in_a_name_are_local(tmp_path: Path) -> None:
    assert open_store(tmp_path).root == str(tmp_path)
    assert isinstance(open_store("a:b"), LocalStore)


def test_a_tilde_is_the_home_folder_in_every_local_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    rows = pl.DataFrame({"id": [1]})
    lakelog.write("~/t", rows)
    table = lakelog.open(Path("~/t"), cache="~/cache", upkeep=False)
    assert table.path == str(home / "t")
    monkeypatch.setenv("LAKELOG_CACHE", "~/other")
    lakelog.open("~/t", upkeep=False)
    table.report("~/report.html")
    table.clone("~/clone", upkeep=False)
    assert lakelog.open("~/clone", allow_external="~/t").to_polars().equals(rows)
    lakelog.WriteAheadLog("~/log").close()
    assert inspect("~/log").directory == str(home / "log")
    lakelog.KeyedStore("~/keyed").close()
    with lakelog.Ingestor("~/t", "~/ingest") as ingestor:
        ingestor.write(rows)
    assert lakelog.Ingestor.pending_rows("~/ingest").height == 0
    assert not (tmp_path / "~").exists()
    made = {"t", "cache", "other", "report.html", "clone", "log", "keyed", "ingest"}
    assert {path.name for path in home.iterdir()} == made


@pytest.mark.parametrize("spelling", ["t", "./t", "link/../t"])
def test_handle_of_a_relative_path_keeps_its_folder_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    rows = pl.DataFrame({"id": [1]})
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/inner")
    folder = tmp_path / ("real/t" if "link" in spelling else "t")
    other = tmp_path / "other"
    lakelog.write(other / "t", rows)
    monkeypatch.chdir(tmp_path)
    table = lakelog.create(spelling, rows.schema, upkeep=False)
    table.append(rows)
    monkeypatch.chdir(other)
    table.append(rows)
    table.delete("id = 2")
    scan = table.scan()
    clone = table.clone(tmp_path / "clone", upkeep=False)
    again = pickle.loads(pickle.dumps(table))
    assert [each.to_polars().height for each in (table, again, clone)] == [2, 2, 2]
    assert scan.collect().height == 2
    assert table.path == spelling
    assert lakelog.open(folder, upkeep=False).to_polars().height == 2
    assert lakelog.open(other / "t", upkeep=False).version() == 0


def test_relative_path_in_a_deleted_working_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    for call in (lakelog.open, lakelog.WriteAheadLog):
        with pytest.raises(InvalidInputError, match="working directory") as refused:
            call("t")
        assert refused.value.path == "t"


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
    [
        ("s3://b/t", "lakelog[s3]"),
        ("s3a://b/t", "lakelog[s3]"),
        ("abfss://b@a.dfs.core.windows.net/t", "adlfs"),
        ("gs://b/t", "gcsfs"),
        ("hdfs://b/t", "hdfsfs"),
    ],
)
def test_missing_driver_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch, url: str, command: str
) -> None:
    failing_with(monkeypatch, ImportError("no driver"))
    with pytest.raises(MissingDependencyError) as refused:
        open_store(url)
    assert re.search(rf"pip install '?{re.escape(command)}", refused.value.hint or "")


def test_driver_that_refuses_its_options_raises_unavailable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_with(monkeypatch, RuntimeError("no credentials"))
    with pytest.raises(UnavailableError, match="no credentials") as refused:
        open_store("gs://b/t", {"token": "secret"})
    assert "secret" not in str(refused.value)


def test_options_are_passed_to_the_driver() -> None:
    store = open_store("memory://t", {"skip_instance_cache": True})
    assert store.list_from("") == []


def test_failed_write_to_s3_has_the_text_of_the_driver() -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "region": "x-y-1"}
    store = open_store("s3://b/t", options | {"config_kwargs": {"retries": {"max_attempts": 0}}})
    with pytest.raises(UnavailableError, match=r"written: EndpointConnectionError: ") as caught:
        store.put_if_absent("f", b"x")
    assert type(caught.value.__cause__).__name__ == "EndpointConnectionError"


def test_opening_a_table_of_an_unreachable_store_names_the_location() -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "region": "x-y-1"}
    with pytest.raises(UnavailableError) as caught:
        lakelog.open("s3://b/t", options | {"config_kwargs": {"retries": {"max_attempts": 0}}})
    assert caught.value.table == "s3://b/t"


def test_no_files_are_read_on_a_slow_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    assert list(LocalStore(str(tmp_path)).read_many([])) == []
