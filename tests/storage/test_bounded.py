"""Reads within limits: a maximum number at a time, and a deadline for each."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog import Table
from lakelog.errors import InvalidInputError, NotFoundError, ReadTimeoutError
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import FileEntry, StoreWrapper, report_progress
from lakelog.storage.bounded import (
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUT_S,
    BoundedStore,
    ReadLimits,
    bounded,
    on_local_disk,
)
from lakelog.storage.ranged import Range, RangedFile
from lakelog.testing import InjectingStore, Rule
from tests.handmade import Handmade, add, metadata, protocol


class HangingStore(StoreWrapper):
    """A store that does not answer for some files until it is released, and records its readers."""

    def __init__(self, root: Path, hanging: Sequence[str] = (), pause_s: float = 0.0) -> None:
        super().__init__(open_store(root))
        self.hanging = set(hanging)
        self.released = threading.Event()
        self.pause_s = pause_s
        self.reading = 0
        self.most = 0
        self._lock = threading.Lock()

    def read(self, path: str) -> bytes:
        with self._lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
        if path.rsplit("/", 1)[-1] in self.hanging:
            self.released.wait()
        time.sleep(self.pause_s)
        data = super().read(path)
        with self._lock:
            self.reading -= 1
        return data

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        if path.rsplit("/", 1)[-1] in self.hanging:
            self.released.wait()
        return super().open(path, size_bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(40):
        (tmp_path / f"{index:02d}").write_bytes(f"{index}".encode())
    return tmp_path


NAMES = [f"{index:02d}" for index in range(40)]
CONTENTS = [f"{index}".encode() for index in range(40)]


def test_files_are_read_in_order_with_limited_parallelism(folder: Path) -> None:
    store = HangingStore(folder, pause_s=0.02)
    limited = BoundedStore(store, ReadLimits(parallelism=3))
    assert list(limited.read_many(NAMES)) == CONTENTS
    assert store.most == 3


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, 40),
    parallelism=st.integers(1, 50),
    taken=st.integers(0, 40),
    sizes=st.lists(st.sampled_from([1, 70_000]), min_size=40, max_size=40),
)
def test_limits_do_not_change_the_content(
    count: int, parallelism: int, taken: int, sizes: list[int]
) -> None:
    contents = {f"{index}": b"x" * size + b"%d" % index for index, size in enumerate(sizes[:count])}

    class Memory(StoreWrapper):
        def read(self, path: str) -> bytes:
            return contents[path]

    limited = BoundedStore(Memory(open_store(".")), ReadLimits(parallelism, 5.0))
    found = iter(limited.read_many(list(contents)))
    wanted = list(contents.values())[:taken]
    assert [data for data, _ in zip(found, wanted, strict=False)] == wanted


def test_timeout_error_names_the_hanging_files(folder: Path) -> None:
    store = HangingStore(folder, hanging=["07", "31"])
    limited = BoundedStore(store, ReadLimits(timeout_s=2))
    found = iter(limited.read_many(NAMES))
    assert [next(found) for _ in range(7)] == CONTENTS[:7]
    with pytest.raises(ReadTimeoutError, match="2 of 40 files were not read") as caught:
        next(found)
    store.released.set()
    assert caught.value.path == "07"
    assert caught.value.found == "07, 31"
    assert isinstance(caught.value, TimeoutError)


def test_timeout_error_counts_many_hanging_files(folder: Path) -> None:
    store = HangingStore(folder, hanging=NAMES)
    limited = BoundedStore(store, ReadLimits(parallelism=2, timeout_s=0.1))
    with pytest.raises(ReadTimeoutError) as caught:
        list(limited.read_many(NAMES))
    store.released.set()
    assert str(caught.value.found).startswith("00, 01, ")
    assert str(caught.value.found).endswith(" and 20 more")


def test_slow_reads_with_progress_do_not_time_out(folder: Path) -> None:
    store = HangingStore(folder, pause_s=0.15)
    limited = BoundedStore(store, ReadLimits(parallelism=2, timeout_s=2))
    assert list(limited.read_many(NAMES)) == CONTENTS  # three seconds in all


def test_read_error_is_raised_at_the_position_of_its_file(folder: Path) -> None:
    limited = BoundedStore(open_store(folder), ReadLimits(timeout_s=5.0))
    found = iter(limited.read_many(["00", "missing", "01"]))
    assert next(found) == b"0"
    with pytest.raises(NotFoundError) as caught:
        next(found)
    assert caught.value.path == "missing"


def test_closing_the_generator_early_ends_the_threads(folder: Path) -> None:
    limited = BoundedStore(open_store(folder), ReadLimits(parallelism=4))

    def threads() -> int:
        return sum(t.name == "lakelog-read" for t in threading.enumerate())

    found = limited.read_many(NAMES)
    assert isinstance(found, Generator)
    next(found)
    found.close()
    until = time.monotonic() + 120
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads()


def test_single_read_times_out(folder: Path) -> None:
    store = HangingStore(folder, hanging=["01"])
    limited = BoundedStore(store, ReadLimits(timeout_s=60))
    assert limited.read("00") == b"0"
    with limited.open("02") as file:
        assert file.seekable()
        assert file.readable()
        assert file.seek(1) == 1
        file.seek(0)
        assert file.read() == b"2"
        assert file.tell() == 1
    with pytest.raises(NotFoundError):
        limited.read("missing")
    limited = BoundedStore(store, ReadLimits(timeout_s=0.1))
    with pytest.raises(ReadTimeoutError) as caught:
        limited.read("01")
    assert caught.value.found == "01"
    with pytest.raises(ReadTimeoutError):
        limited.open("01")
    store.released.set()


def test_read_of_an_open_file_times_out(folder: Path) -> None:
    released = threading.Event()

    class Stuck(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            released.wait()
            return super().read(size)

    class Sticky(StoreWrapper):
        def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
            return Stuck(b"content")

    limited = BoundedStore(Sticky(open_store(folder)), ReadLimits(timeout_s=0.5))
    file = limited.open("01")
    with pytest.raises(ReadTimeoutError):
        file.read()
    file.close()
    released.set()


def test_store_without_limits_is_unchanged(folder: Path) -> None:
    store = InjectingStore(open_store(folder), [Rule("fail", "read", nth=3)])
    plain = BoundedStore(store)
    assert list(plain.read_many(["00", "01"])) == [b"0", b"1"]
    assert plain.read_many([]) is not None
    assert bounded(InjectingStore(plain)) is plain
    assert bounded(store) is None
    assert on_local_disk(BoundedStore(open_store(folder)))
    assert not on_local_disk(plain)


@pytest.mark.parametrize("wrong", [(0, None), (-1, None), (None, 0.0), (None, float("nan"))])
def test_limits_must_be_positive(wrong: tuple[int | None, float | None]) -> None:
    with pytest.raises(InvalidInputError):
        ReadLimits(*wrong)


def test_timeout_error_of_a_table_names_the_hanging_commits(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start()
    for version in range(1, 9):
        made.commit(version, add(f"f{version}"))
    store = HangingStore(made.root, hanging=[f"{5:020d}.json"])
    table = lakelog.open(store=store, read_timeout=2)
    with pytest.raises(ReadTimeoutError) as caught:
        table.snapshot()
    assert caught.value.found == f"_delta_log/{5:020d}.json"
    store.released.set()
    assert table.snapshot().num_files() == 8


def test_limits_are_taken_from_the_call_or_from_the_table(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    properties = {
        "spark.indextables.checkpoint.parallelism": "2",
        "spark.indextables.checkpoint.read.timeoutSeconds": "7",
    }
    made.commit(0, protocol(), metadata(properties=properties))

    def limits(table: Table) -> ReadLimits:
        store = bounded(table.log.store)
        assert store is not None
        return store.limits

    table = lakelog.open(made.root)
    assert limits(table) == ReadLimits()
    table.snapshot()
    assert limits(table) == ReadLimits(2, 7.0)
    table = lakelog.open(made.root, parallelism=3, read_timeout=1.5)
    table.snapshot()
    assert limits(table) == ReadLimits(3, 1.5)
    table = lakelog.open(made.root, parallelism=3)
    table.snapshot()
    assert limits(table) == ReadLimits(3, 7.0)
    made.commit(1, metadata(properties={"spark.indextables.checkpoint.parallelism": "many"}))
    table.snapshot()
    assert limits(table) == ReadLimits(3, None)  # a malformed one is reported by the checkpoint
    made.commit(2, metadata(properties={"spark.indextables.checkpoint.parallelism": "9999"}))
    table.snapshot()
    assert limits(table) == ReadLimits(3, None)
    table = lakelog.open(made.root)
    table.snapshot()
    assert limits(table) == ReadLimits(64, None)  # each is a thread


HANGING: dict[str, Callable[[LogStore], object]] = {
    "list_from": lambda store: store.list_from(""),
    "list_folders": lambda store: store.list_folders(""),
    "has_folders": lambda store: store.has_folders(["a"]),
    "walk": lambda store: list(store.walk()),
    "stat": lambda store: store.stat("01"),
    "read": lambda store: store.read("01"),
    "read_many": lambda store: list(store.read_many(["01", "02"])),
    "open": lambda store: store.open("01"),
}


class UnresponsiveStore(StoreWrapper):
    """A store whose operations of some names do not answer until it is released."""

    def __init__(self, root: Path, operations: Sequence[str]) -> None:
        super().__init__(open_store(root))
        self.released = threading.Event()
        for name in operations:
            setattr(self, name, self._wait)

    def _wait(self, *_: object) -> None:
        self.released.wait()
        raise NotFoundError("released")


@pytest.mark.parametrize("operation", HANGING)
def test_every_read_operation_times_out(folder: Path, operation: str) -> None:
    hanging = {"read_many": "read"}.get(operation, operation)
    store = UnresponsiveStore(folder, [hanging])
    with pytest.raises(ReadTimeoutError) as caught:
        HANGING[operation](BoundedStore(store, ReadLimits(timeout_s=0.05)))
    store.released.set()
    assert "read_timeout" in str(caught.value.hint)


def test_first_read_of_an_unresponsive_store_times_out(tmp_path: Path) -> None:
    Handmade(tmp_path / "t").start()
    store = UnresponsiveStore(tmp_path / "t", list(HANGING))
    with pytest.raises(ReadTimeoutError):
        lakelog.open(store=store, read_timeout=0.05)
    store.released.set()
    assert inspect.signature(lakelog.open).parameters["read_timeout"].default == 30


HANGING_READ = """
from lakelog.storage import open_store
from lakelog.storage.base import StoreWrapper
from lakelog.storage.bounded import BoundedStore, ReadLimits

class UnresponsiveStore(StoreWrapper):
    def read(self, path):
        threading.Event().wait()

store = BoundedStore(UnresponsiveStore(open_store(".")), ReadLimits(timeout_s=0.05))
call = lambda: list(store.read_many(["a", "b"]))
"""
HANGING_LISTING = """
import fsspec
from fsspec.spec import AbstractFileSystem

class Unresponsive(AbstractFileSystem):
    protocol = "unresponsive"

    def ls(self, path, detail=True, **options):
        threading.Event().wait()

fsspec.register_implementation("unresponsive", Unresponsive)
call = lambda: lakelog.open("unresponsive://t", read_timeout=0.05)
"""


@pytest.mark.parametrize("hanging", [HANGING_READ, HANGING_LISTING], ids=["read", "first listing"])
def test_process_can_exit_while_a_call_hangs(hanging: str, tmp_path: Path) -> None:
    code = f"""
import threading
import lakelog
{hanging}
try:
    call()
except lakelog.ReadTimeoutError:
    print("given up")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "given up"


def test_timeout_allows_for_file_size_and_listing_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.storage.bounded._SLOWEST_BYTES_A_SECOND", 1 / 60)
    late = threading.Event()

    class Large(StoreWrapper):
        def stat(self, path: str) -> FileEntry | None:
            late.set()  # a late read requests the size
            return super().stat(path)

        def read(self, path: str) -> bytes:
            late.wait()
            return super().read(path)

        def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
            for _ in range(10):
                time.sleep(0.02)
                report_progress()
            return super().list_from(folder, start)

    limited = BoundedStore(Large(open_store(folder)), ReadLimits(timeout_s=0.5))
    assert limited.read("01") == b"1"
    late.clear()
    assert list(limited.read_many(["01"])) == [b"1"]
    assert len(BoundedStore(limited._store, ReadLimits(timeout_s=5)).list_from("")) == 40


def test_range_reads_time_out(folder: Path) -> None:
    released = threading.Event()
    calls: list[int] = []

    class Ranges(StoreWrapper):
        def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
            def fetch(ranges: Sequence[Range]) -> list[bytes]:
                calls.append(len(ranges))
                if len(calls) > 1:
                    released.wait()
                return [bytes(end - start) for start, end in ranges]

            return cast("BinaryIO", RangedFile(fetch, 64 << 20))

    file = BoundedStore(Ranges(open_store(folder)), ReadLimits(timeout_s=0.5)).open("x")
    assert isinstance(file, RangedFile)
    file.seek(1 << 20)
    with pytest.raises(ReadTimeoutError):
        file.reopen().read(10)
    released.set()


def test_default_timeout_is_not_applied_to_local_stores(folder: Path) -> None:
    assert BoundedStore(open_store(folder), DEFAULT_LIMITS).limits == ReadLimits()
    assert BoundedStore(open_store("memory://x"), DEFAULT_LIMITS).limits == ReadLimits()
    assert BoundedStore(HangingStore(folder), DEFAULT_LIMITS).limits.timeout_s == 30


def test_timeout_of_the_caller_overrides_the_table(folder: Path) -> None:
    store, own = HangingStore(folder), ReadLimits(timeout_s=7.0)
    for asked, applied in ((DEFAULT_TIMEOUT_S, 7.0), (30.0, 30.0), (2.0, 2.0), (None, None)):
        limited = BoundedStore(store, ReadLimits(timeout_s=asked))
        limited.apply_table_limits(own)
        assert limited.limits.timeout_s == applied
