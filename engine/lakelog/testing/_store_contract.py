"""`StoreContract`: the tests that every `LogStore` passes."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.errors import InvalidInputError, NotFoundError, UnavailableError
from lakelog.storage import LogStore
from lakelog.storage.base import delete_files

# Names that URLs, listings or drivers treat specially.
_ODD_NAMES = (
    "00000000000000000001.json",
    "_last_checkpoint",
    "a b",
    "a  b",
    "a+b",
    "a%20b",
    "a%2Fb",
    "100%",
    "a&b=c",
    "a;b",
    "a,b",
    "a:b",
    "a@b",
    "a#b",
    "a?b",
    "a!b",
    "a'b",
    'a"b',
    "a~b",
    "a(b)",
    "a[b]",
    "a{b}",
    "a*b",
    "a$b",
    "é",
    "e\u0301",
    "日本語.json",
    "\ufb01",
    "\U0001f600",
    "part=x",
    "-",
    "A",
    "Z",
)
# Ends of names that drivers take for a version, or drop.
_ENDS_OF_NAMES = ("?versionId=null", "?versionid=1", "?generation=1", "#1", "?a#b", "?", "#")
_LARGE_BYTES = (8 << 20) + 3
_UPLOAD_STEP = 700_001
_LARGE_UPLOAD = (16 << 20) + 5  # more than two parts of an object store's upload
_UPLOAD_SIZES = (0, 1, 1 << 20, (1 << 20) + 1, 8 << 20, (8 << 20) + 1, 16 << 20, _LARGE_UPLOAD)
_MOST_OF_A_BATCH = 5000
_THREADS = 16
_SEEDERS = 8


E = TypeVar("E", bound=Exception)
T = TypeVar("T")


class _Caught(Generic[E]):
    """The exception that a block raised."""

    error: E


@contextlib.contextmanager
def _raises(wanted: type[E]) -> Iterator[_Caught[E]]:
    """Require that the block raises an error of a type."""
    caught = _Caught[E]()
    try:
        yield caught
    except wanted as error:
        caught.error = error
    else:
        raise AssertionError(f"{wanted.__name__} was not raised")


def _each(values: Sequence[T]) -> Callable[[Callable[[Any, T], None]], Callable[[Any], None]]:
    """Call a test with each of some values; an error gets a note that names the value."""

    def decorate(test: Callable[[Any, T], None]) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: Any) -> None:
            for value in values:
                try:
                    test(self, value)
                except Exception as error:
                    error.add_note(f"case: {value!r}")
                    raise

        del run.__wrapped__  # otherwise pytest would use its parameters
        return run

    return decorate


class StoreContract:
    """The tests of the guarantees of every `LogStore`.

    Subclass it, name the subclass ``Test...`` and override `make_store`; pytest then collects the
    methods ``test_*``. They are plain methods without arguments, so any other runner can call them.
    With ``pytest.register_assert_rewrite("lakelog.testing")``, called before the import, pytest
    shows the values of a failed assertion.

    Attributes:
        has_real_folders: Whether a file and a folder cannot have the same name, as on local disk.
        page_names: Number of names in one page of the store's listing. Tests create a tenth more
            files, and at least two.

    Example:
        >>> from lakelog.storage import open_store
        >>> class TestMyStore(StoreContract):
        ...     has_real_folders = True
        ...
        ...     def make_store(self):
        ...         return open_store(f"memory://contract/{id(self)}")
        >>> TestMyStore().test_put_creates_and_replaces()
    """

    has_real_folders: ClassVar[bool] = False
    page_names: ClassVar[int] = 1000

    def make_store(self) -> LogStore:
        """Return a store of a location that no other test uses."""
        raise NotImplementedError("a subclass of StoreContract returns a new store here")

    def reopen(self, store: LogStore) -> LogStore:
        """Return another handle of a store's location, as another process opens it.

        By default, the store itself; tests of what other processes see then have no effect.
        """
        return store

    def seed(self, store: LogStore, files: Mapping[str, bytes]) -> None:
        """Write many files, some of them empty. Override it if a faster way exists."""

        def write(item: tuple[str, bytes]) -> None:
            with store.upload(item[0]) as upload:
                upload.write(item[1])

        with ThreadPoolExecutor(_SEEDERS) as pool:
            list(pool.map(write, files.items()))

    @property
    def _many_names(self) -> int:
        """Number of names that exceed one page of the store's listing."""
        return self.page_names + max(2, self.page_names // 10)

    def test_store_supports_put_if_absent(self) -> None:
        store = self.make_store()
        assert store.refusal is None

    def test_create_fails_if_the_name_exists_and_keeps_the_first_content(self) -> None:
        store = self.make_store()
        assert store.put_if_absent("log/1", b"first") is True
        assert store.put_if_absent("log/1", b"second") is False
        assert store.put_if_absent("log/1", b"first") is False
        assert store.read("log/1") == b"first"

    def test_create_fails_if_another_store_object_created_the_name(self) -> None:
        store = self.make_store()
        other = self.reopen(store)
        assert other.list_from("log") == []
        assert store.put_if_absent("log/1", b"first") is True
        assert other.put_if_absent("log/1", b"second") is False
        assert other.read("log/1") == b"first"

    def test_create_fails_after_put_of_the_same_name(self) -> None:
        store = self.make_store()
        store.put("log/1", b"put")
        assert store.put_if_absent("log/1", b"created") is False
        assert store.read("log/1") == b"put"

    def test_create_fails_if_an_upload_or_a_move_made_the_name(self) -> None:
        store = self.make_store()
        with store.upload("log/1") as upload:
            upload.write(b"uploaded")
        store.put("aside/2", b"moved")
        store.move("aside/2", "log/2")
        for handle in (store, self.reopen(store)):
            for name in ("1", "2"):
                assert handle.put_if_absent(f"log/{name}", b"created") is False
        assert list(store.read_many(["log/1", "log/2"])) == [b"uploaded", b"moved"]

    def test_name_can_be_created_again_after_delete(self) -> None:
        store = self.make_store()
        assert store.put_if_absent("log/1", b"first") is True
        store.delete("log/1")
        assert store.put_if_absent("log/1", b"second") is True
        assert store.read("log/1") == b"second"

    def test_create_rejects_empty_content(self) -> None:
        store = self.make_store()
        with _raises(InvalidInputError):
            store.put_if_absent("log/1", b"")
        assert store.stat("log/1") is None
        assert store.list_from("log") == []

    def test_every_byte_value_is_read_back_unchanged(self) -> None:
        store = self.make_store()
        every = bytes(range(256)) * 3 + b"\r\n--==0==\r\n\x00"
        assert store.put_if_absent("log/created", every) is True
        store.put("log/put", every)
        assert store.read("log/created") == every
        assert store.read("log/put") == every

    def test_large_file_is_created_once_and_completely(self) -> None:
        store = self.make_store()
        large = os.urandom(_LARGE_BYTES)
        assert store.put_if_absent("log/large", large) is True
        assert store.put_if_absent("log/large", b"small") is False
        assert store.read("log/large") == large
        found = store.stat("log/large")
        assert found is not None
        assert found.size_bytes == _LARGE_BYTES

    def test_create_makes_missing_parent_folders(self) -> None:
        store = self.make_store()
        assert store.put_if_absent("a/b/c/d", b"x") is True
        assert store.list_folders("a/b") == ["c"]
        assert store.read("a/b/c/d") == b"x"

    def test_put_creates_and_replaces(self) -> None:
        store = self.make_store()
        store.put("log/_last", b"long content")
        assert store.read("log/_last") == b"long content"
        store.put("log/_last", b"short")
        assert store.read("log/_last") == b"short"
        found = store.stat("log/_last")
        assert found is not None
        assert found.size_bytes == 5
        assert [(e.name, e.size_bytes) for e in store.list_from("log")] == [("_last", 5)]

    def test_replaced_file_is_read_with_its_new_content(self) -> None:
        store = self.make_store()
        handles = (store, self.reopen(store))
        for content in (b"old and longer", b"new"):
            store.put("log/1", content)
            for handle in handles:
                assert handle.read("log/1") == content
                assert list(handle.read_many(["log/1"])) == [content]
                with handle.open("log/1") as file:
                    assert file.read() == content

    def test_delete_is_idempotent(self) -> None:
        store = self.make_store()
        store.put("log/1", b"x")
        store.put("log/2", b"y")
        store.delete("log/1")
        store.delete("log/1")
        store.delete("nowhere/1")
        assert store.stat("log/1") is None
        assert [e.name for e in store.list_from("log")] == ["2"]
        with _raises(NotFoundError):
            store.read("log/1")

    @_each(_UPLOAD_SIZES)
    def test_upload_is_visible_only_after_close(self, size_bytes: int) -> None:
        store = self.make_store()
        content = os.urandom(size_bytes)
        upload = store.upload("new/part")
        for at in range(0, size_bytes, _UPLOAD_STEP):
            step = memoryview(content)[at : at + _UPLOAD_STEP]
            assert upload.write(step) == len(step)
            assert upload.tell() == at + len(step)
        assert store.stat("new/part") is None
        assert [e for e in store.list_from("new") if not e.name.startswith(".")] == []
        states = [upload.closed]
        upload.close()
        assert [*states, upload.closed] == [False, True]
        upload.close()
        upload.abandon()
        assert store.read("new/part") == content
        assert [(e.name, e.size_bytes) for e in store.list_from("new")] == [("part", size_bytes)]
        with _raises(InvalidInputError):
            upload.write(b"more")
        assert _below(store) == ["new/part"]

    @_each([1, _LARGE_UPLOAD])
    def test_upload_replaces_an_existing_file(self, size_bytes: int) -> None:
        store = self.make_store()
        store.put("log/part", b"before")
        with store.upload("log/part") as upload:
            upload.write(bytes(size_bytes))
            assert store.read("log/part") == b"before"
        assert store.read("log/part") == bytes(size_bytes)

    @_each([0, 1, _LARGE_UPLOAD])
    def test_an_abandoned_upload_leaves_nothing(self, size_bytes: int) -> None:
        store = self.make_store()
        store.put("log/other", b"x")
        upload = store.upload("log/part")

        def write_and_fail() -> None:
            with upload:
                upload.write(bytes(size_bytes))
                raise KeyError

        with _raises(KeyError):
            write_and_fail()
        assert upload.closed
        upload.close()  # does nothing
        assert _below(store) == ["log/other"]

    def test_concurrent_uploads_of_one_name_do_not_mix(self) -> None:
        store = self.make_store()
        one, other = store.upload("log/part"), store.upload("log/part")
        for upload, letter in ((one, b"a"), (other, b"b"), (one, b"a"), (other, b"b")):
            upload.write(letter * (_LARGE_UPLOAD // 2))
        closed = []
        for upload in (one, other):
            with contextlib.suppress(UnavailableError):  # Azure keeps the blocks of only one
                upload.close()
                closed.append(b"a" if upload is one else b"b")
        assert store.read("log/part") == closed[-1] * (_LARGE_UPLOAD // 2 * 2)
        assert _below(store) == ["log/part"]

    def test_pyarrow_writes_parquet_to_an_upload(self) -> None:
        store = self.make_store()
        table = pa.table({"a": pa.array(range(50_000))})
        with store.upload("log/x.parquet") as upload, pq.ParquetWriter(upload, table.schema) as w:
            for batch in table.to_batches(10_000):
                w.write_batch(batch)
        with store.open("log/x.parquet") as file:
            assert pq.ParquetFile(file).read().equals(table)

    def test_move_renames_the_file(self) -> None:
        store = self.make_store()
        store.put("log/a", b"content")
        store.move("log/a", "aside/2020/a")
        assert _below(store) == ["aside/2020/a"]
        assert store.read("aside/2020/a") == b"content"
        assert [entry.name for entry in store.list_from("aside/2020")] == ["a"]
        with _raises(NotFoundError):
            store.read("log/a")

    def test_move_replaces_an_existing_file(self) -> None:
        store = self.make_store()
        store.put("log/a", b"new")
        store.put("log/b", b"old and longer")
        store.move("log/a", "log/b")
        assert _below(store) == ["log/b"]
        assert store.read("log/b") == b"new"

    def test_move_to_the_same_name_keeps_the_file(self) -> None:
        store = self.make_store()
        store.put("log/a", b"content")
        store.move("log/a", "log/a")
        assert store.read("log/a") == b"content"

    @_each(["log/b", "log", "nowhere/a"])
    def test_move_of_a_missing_file_raises_not_found(self, source: str) -> None:
        store = self.make_store()
        store.put("log/a", b"content")
        store.put("target", b"old")
        for target in ("target", source, "new/target"):
            with _raises(NotFoundError) as caught:
                store.move(source, target)
            assert caught.error.path == source
        assert _below(store) == ["log/a", "target"]
        assert store.read("target") == b"old"

    def test_large_file_is_moved_completely(self) -> None:
        store = self.make_store()
        content = os.urandom(_LARGE_BYTES)
        store.put("log/a", content)
        store.move("log/a", "log/b")
        assert store.read("log/b") == content

    def test_delete_many_ignores_missing_files(self) -> None:
        store = self.make_store()
        count = self._many_names
        self.seed(store, {f"log/{i}": b"x" for i in range(count)})
        deleted = [f"log/{i}" for i in range(count) if i % 100]
        assert store.delete_many([*deleted, "log/nothing", "nowhere/1", deleted[0]]) == []
        assert _below(store) == sorted(f"log/{i}" for i in range(0, count, 100))
        assert store.delete_many([]) == []

    def test_only_missing_files_are_reported_as_missing(self) -> None:
        store = self.make_store()
        store.put("log/a", b"x")
        found = delete_files(store, ["log/a", "log/b"])
        assert found.errors == []
        assert set(found.missing) <= {"log/b"}
        assert _below(store) == []

    def test_walk_finds_files_at_every_depth(self) -> None:
        store = self.make_store()
        written = ["a", "b/c", "b/d/e/f", "b2/g", "part=x y/é/h.parquet", "b/.hidden"]
        for name in written:
            store.put(name, name.encode())
        assert _below(store) == sorted(written)
        assert _below(store, "b") == [".hidden", "c", "d/e/f"]
        assert _below(store, "b/d") == ["e/f"]
        assert _below(store, "nowhere") == []
        found = {e.name: e for batch in store.walk() for e in batch}
        assert found["b/d/e/f"].size_bytes == 7
        assert abs(found["a"].modified_ms - time.time() * 1000) < 60_000

    def test_walk_of_several_pages_is_complete_and_in_small_batches(self) -> None:
        store = self.make_store()
        wanted = [f"log/{i % 7}/{i:05d}" for i in range(self._many_names)]
        self.seed(store, dict.fromkeys(wanted, b"x"))
        batches = list(store.walk())
        assert max(map(len, batches)) <= _MOST_OF_A_BATCH
        assert sorted(e.name for batch in batches for e in batch) == sorted(wanted)
        first = next(iter(store.walk()))  # without reading the others
        assert first

    @_each(_ODD_NAMES)
    def test_upload_move_walk_and_delete_keep_the_spelling_of_a_name(self, name: str) -> None:
        store = self.make_store()
        with store.upload(f"log/{name}") as upload:
            upload.write(name.encode())
        assert _below(store, "log") == [name]
        store.move(f"log/{name}", f"{name}/x")
        assert _below(store) == [f"{name}/x"]
        store.move(f"{name}/x", f"log/{name}")
        assert store.read(f"log/{name}") == name.encode()
        assert store.delete_many([f"log/{name}", f"{name}/x"]) == []
        assert _below(store) == []

    def test_listing_is_in_code_point_order_without_folders(self) -> None:
        store = self.make_store()
        written = ["b", "a", "B", "é", "10", "9", "\ufb01", "\U0001f600", "deeper/x"]
        if not self.has_real_folders:
            written.append("a/y")
        for name in written:
            store.put(f"log/{name}", name.encode())
        found = store.list_from("log")
        assert [e.name for e in found] == [
            *("10", "9", "B", "a", "b", "é", "\ufb01", "\U0001f600"),
        ]
        assert {e.name: e.size_bytes for e in found}["\U0001f600"] == 4

    def test_listing_start_is_inclusive(self) -> None:
        store = self.make_store()
        for name in ("1", "2", "2.a", "4", "é"):
            store.put(f"log/{name}", b"x")
        assert _names(store, "1") == ["1", "2", "2.a", "4", "é"]
        assert _names(store, "2") == ["2", "2.a", "4", "é"]
        assert _names(store, "2.") == ["2.a", "4", "é"]
        assert _names(store, "2.a") == ["2.a", "4", "é"]
        assert _names(store, "3") == ["4", "é"]
        assert _names(store, "5") == ["é"]
        assert _names(store, "é") == ["é"]
        assert _names(store, "ê") == []

    def test_listing_start_does_not_depend_on_the_number_of_digits(self) -> None:
        store = self.make_store()
        versions = [0, 9, 10, 99, 100, 101, 109, 110, 199, 200, 999, 1000]
        for version in versions:
            store.put(f"log/{version:020d}.json", b"x")
        for start in (0, 1, 9, 10, 11, 99, 100, 105, 200, 201, 999, 1000, 1001):
            wanted = [f"{v:020d}.json" for v in versions if v >= start]
            assert _names(store, f"{start:020d}") == wanted
            assert _names(store, f"{start:020d}.json") == wanted

    def test_listing_excludes_other_folders_and_subfolders(self) -> None:
        store = self.make_store()
        for name in ("log/1", "log/deep/2", "log2/3", "lo/4", "5"):
            store.put(name, b"x")
        assert _names(store) == ["1"]
        assert [e.name for e in store.list_from("")] == ["5"]
        assert store.list_folders("") == ["lo", "log", "log2"]
        assert store.list_folders("log") == ["deep"]

    def test_listing_of_a_missing_folder_is_empty(self) -> None:
        store = self.make_store()
        assert store.list_from("nowhere") == []
        assert store.list_from("nowhere", "5") == []
        assert store.list_folders("nowhere") == []

    def test_listing_of_a_file_as_a_folder_is_empty(self) -> None:
        """Nothing is in a folder with the path of a file."""
        store = self.make_store()
        store.put("log/a", b"a")
        assert store.list_from("log/a") == []
        assert store.list_folders("log/a") == []
        assert store.has_folders(["log/a", "log"]) == [False, True]
        assert list(store.walk("log/a")) == []

    def test_listing_of_several_pages_is_complete_from_any_start(self) -> None:
        store = self.make_store()
        page, many = self.page_names, self._many_names
        wanted = [f"{i:020d}.json" for i in range(many)]
        self.seed(store, {f"log/{name}": b"%d" % i for i, name in enumerate(wanted)})
        assert _names(store) == wanted
        for first in (1, page - 1, page, page + 1, many - 1):
            assert _names(store, wanted[first]) == wanted[first:]
        assert _names(store, f"{many:020d}") == []

    def test_listing_sees_earlier_writes_and_deletes(self) -> None:
        store = self.make_store()
        other = self.reopen(store)
        for count in range(1, 4):
            store.put_if_absent(f"log/{count}", b"x")
            assert len(store.list_from("log")) == count
            assert len(other.list_from("log")) == count
        other.delete("log/2")
        assert _names(store) == ["1", "3"]
        store.put_if_absent("log/deep/1", b"x")
        assert other.list_folders("log") == ["deep"]

    @_each(_ODD_NAMES)
    def test_create_read_and_list_keep_the_spelling_of_a_name(self, name: str) -> None:
        store = self.make_store()
        content = name.encode()
        assert store.put_if_absent(f"log/{name}", content) is True
        assert store.put_if_absent(f"log/{name}", b"other") is False
        assert _names(store) == [name]
        assert _names(store, name) == [name]
        assert store.read(f"log/{name}") == content
        assert list(store.read_many([f"log/{name}"] * 2)) == [content] * 2
        with store.open(f"log/{name}") as file:
            assert file.read() == content
        found = store.stat(f"log/{name}")
        assert found is not None
        assert (found.name, found.size_bytes) == (name, len(content))
        store.delete(f"log/{name}")
        assert _names(store) == []

    @_each(_ENDS_OF_NAMES)
    def test_name_that_ends_as_a_url_is_another_file(self, end: str) -> None:
        store = self.make_store()
        store.put("log/1", b"live")
        store.put(f"log/1{end}", b"other")
        store.move(f"log/1{end}", f"aside/1{end}")
        assert store.read(f"aside/1{end}") == b"other"
        store.delete(f"aside/1{end}")
        assert _below(store) == ["log/1"]
        assert store.read("log/1") == b"live"
        for folder in ("log", "aside"):
            with _raises(NotFoundError):
                store.read(f"{folder}/1{end}")

    def test_read_many_returns_files_in_the_given_order(self) -> None:
        store = self.make_store()
        count = 60
        for i in range(count):
            store.put(f"log/{i}", b"%d" % i)
        order = [(i * 37) % count for i in range(2 * count)]
        assert list(store.read_many([f"log/{i}" for i in order])) == [b"%d" % i for i in order]
        assert list(store.read_many([])) == []

    @_each([0, 1, 30, 59])
    def test_read_many_stops_at_a_missing_file(self, at: int) -> None:
        store = self.make_store()
        self.seed(store, {f"log/{i}": b"%d" % i for i in range(60) if i != at})
        found: list[bytes] = []
        with _raises(NotFoundError) as caught:
            found.extend(store.read_many([f"log/{i}" for i in range(60)]))
        assert found == [b"%d" % i for i in range(len(found))]
        assert len(found) <= at
        assert caught.error.path == f"log/{at}"

    def test_missing_file_raises_not_found(self) -> None:
        store = self.make_store()
        store.put("log/1", b"x")
        assert store.stat("log/2") is None
        assert store.stat("log") is None
        with _raises(NotFoundError) as caught:
            store.read("log/2")
        assert caught.error.path == "log/2"
        with _raises(NotFoundError), store.open("log/2") as file:
            file.read()
        with _raises(NotFoundError):
            store.read("log/1/deeper")

    def test_empty_file_is_read_as_empty(self) -> None:
        store = self.make_store()
        self.seed(store, {"log/empty": b"", "log/full": b"x"})
        assert store.read("log/empty") == b""
        assert list(store.read_many(["log/empty", "log/full", "log/empty"])) == [b"", b"x", b""]
        with store.open("log/empty") as file:
            assert file.read() == b""
        found = store.stat("log/empty")
        assert found is not None
        assert found.size_bytes == 0

    @_each([False, True])
    def test_open_file_is_read_from_any_offset(self, size_is_known: bool) -> None:
        store = self.make_store()
        content = os.urandom(300_000)
        store.put("log/x.parquet", content)
        size = len(content) if size_is_known else None
        with store.open("log/x.parquet", size) as file:
            assert file.seekable()
            assert file.readable()
            assert file.seek(-8, io.SEEK_END) == len(content) - 8
            assert file.read(8) == content[-8:]
            assert file.read(8) == b""
            assert file.seek(100_000) == 100_000
            assert _whole(file, 50_000) == content[100_000:150_000]
            assert file.tell() == 150_000
            file.seek(10, io.SEEK_CUR)
            assert _whole(file, 5) == content[150_010:150_015]
            file.seek(0)
            assert file.read() == content

    def test_info_returns_size_and_recent_modification_time(self) -> None:
        store = self.make_store()
        store.put_if_absent("log/1", b"12345")
        (listed,) = store.list_from("log")
        looked_at = store.stat("log/1")
        assert looked_at is not None
        assert listed.name == looked_at.name == "1"
        assert listed.size_bytes == looked_at.size_bytes == 5
        # S3 has seconds only.
        assert abs(listed.modified_ms - looked_at.modified_ms) < 1000
        assert abs(listed.modified_ms - time.time() * 1000) < 60_000

    def test_one_of_several_threads_creates_each_name(self) -> None:
        store = self.make_store()
        rounds = 5
        barrier = threading.Barrier(_THREADS)
        # Two threads share each handle: a lock of one excludes neither other handles nor processes.
        handles = [self.reopen(store) for _ in range(_THREADS // 2)]

        def work(me: int) -> list[bool]:
            won = []
            store = handles[me // 2]
            for i in range(rounds):
                barrier.wait(60)
                won.append(store.put_if_absent(f"log/{i}", b"%d" % me))
                assert store.read(f"log/{i}")
                assert len(store.list_from("log", str(i))) >= 1
                assert store.put_if_absent(f"own/{me}-{i}", b"x") is True
            return won

        with ThreadPoolExecutor(_THREADS) as pool:
            outcomes = list(pool.map(work, range(_THREADS)))
        for i in range(rounds):
            winners = [me for me in range(_THREADS) if outcomes[me][i]]
            assert len(winners) == 1
            assert store.read(f"log/{i}") == b"%d" % winners[0]
        assert len(store.list_from("own")) == _THREADS * rounds


def _names(store: LogStore, start: str = "") -> list[str]:
    """The names of `log` from `start` on."""
    return [entry.name for entry in store.list_from("log", start)]


def _below(store: LogStore, folder: str = "") -> list[str]:
    """Every file below a folder, sorted."""
    return sorted(entry.name for batch in store.walk(folder) for entry in batch)


def _whole(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes from a reader that may return fewer at once, as `io.RawIOBase` may."""
    parts: list[bytes] = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
