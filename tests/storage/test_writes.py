"""Writes on local disk and in memory beyond the contract of stores: real folders, and readers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from lakelog.errors import NotFoundError, UnavailableError
from lakelog.storage import LogStore, open_store

WRITERS = 8
ROUNDS = 40


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    if request.param == "local":
        yield open_store(str(tmp_path / "t"))
        return
    base = f"/{uuid.uuid4().hex}"
    yield open_store(f"memory:/{base}/t")
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(base):
        filesystem.rm(base, recursive=True)


def test_writes_below_a_file_are_refused(store: LogStore) -> None:
    store.put("file", b"x")
    for write in (store.put_if_absent, store.put):
        with pytest.raises(UnavailableError):
            write("file/1", b"y")
    with pytest.raises(UnavailableError), store.upload("file/1") as upload:
        upload.write(b"y")
    store.put("other", b"y")
    with pytest.raises(UnavailableError):
        store.move("other", "file/1")
    assert store.read("file") == b"x"
    assert store.read("other") == b"y"


def test_name_of_a_folder_is_taken_but_cannot_be_read(store: LogStore) -> None:
    store.put("log/folder/1", b"x")
    assert not store.put_if_absent("log/folder", b"y")
    with pytest.raises(NotFoundError):
        store.read("log/folder")


def test_an_opened_file_keeps_its_own_position(store: LogStore) -> None:
    store.put("log/1", b"abcdef")
    with store.open("log/1", 6) as one, store.open("log/1") as other:
        assert one.read(3) == b"abc"
        assert other.read(2) == b"ab"
        assert one.read() == b"def"


def test_one_of_racing_writers_succeeds_and_readers_see_no_partial_file(store: LogStore) -> None:
    # Different sizes, so that a torn file cannot be mistaken for a complete one.
    contents = {bytes([65 + n]) * (100_000 + n) for n in range(WRITERS)}
    start = threading.Barrier(WRITERS + 1)
    created: list[tuple[int, bytes]] = []
    torn: list[int] = []
    done = threading.Event()

    def write(data: bytes) -> None:
        for n in range(ROUNDS):
            start.wait()
            if store.put_if_absent(f"log/{n:03d}", data):
                created.append((n, data))

    def read() -> None:
        while not done.is_set():
            for entry in store.list_from("log"):
                data = store.read(f"log/{entry.name}")
                if data not in contents or len(data) != entry.size_bytes:
                    torn.append(len(data))

    writers = [threading.Thread(target=write, args=(data,)) for data in sorted(contents)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for _ in range(ROUNDS):
        start.wait()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert sorted(n for n, _ in created) == list(range(ROUNDS))
    assert all(store.read(f"log/{n:03d}") == data for n, data in created)
    assert torn == []
    assert len(store.list_from("log")) == ROUNDS


def test_readers_of_a_replaced_file_see_the_old_or_the_new_content(store: LogStore) -> None:
    versions = [bytes([65 + n]) * (50_000 + n) for n in range(10)]
    store.put("log/pointer", versions[0])
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(store.read("log/pointer"))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for data in versions:
            store.put("log/pointer", data)
    done.set()
    reader.join()
    assert seen <= set(versions)
