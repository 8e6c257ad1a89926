"""Every store passes `lakelog.testing.StoreContract`, and a store that breaks a guarantee does not.

Local disk, memory, Ministack and the store of another party run all of it. Moto, Azurite and the
GCS double run a quarter, another one each day, and all of it with LAKELOG_SAMPLE=all.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

import pytest
from azure.storage.blob.aio import ContainerClient

from lakelog import testing
from lakelog.errors import LakelogError, NotFoundError
from lakelog.storage import FileEntry, LogStore
from lakelog.storage.base import StoreWrapper, Upload
from tests.storage.backends import Backend
from tests.storage.conftest import BackendOf
from tests.storage.own_store import DictStore


class StoreContract(testing.StoreContract):
    """The suite over a backend of these tests."""

    backend_name: ClassVar[str]
    backend: Backend

    @pytest.fixture(autouse=True)
    def _start(self, backend_of: BackendOf) -> None:
        self.backend = backend_of(self.backend_name)

    def make_store(self) -> LogStore:
        return self.backend.open(self.backend.fresh())

    def reopen(self, store: LogStore) -> LogStore:
        return self.backend.open(store.root)

    def seed(self, store: LogStore, files: Mapping[str, bytes]) -> None:
        self.backend.seed(store.root, files)


class TestStoreOfAnotherParty(testing.StoreContract):
    """Overrides only the required method."""

    page_names = 100

    def make_store(self) -> LogStore:
        return DictStore()


class TestLocalDisk(StoreContract):
    backend_name = "local"
    has_real_folders = True


class TestMemory(StoreContract):
    backend_name = "memory"
    has_real_folders = True


@pytest.mark.sampled(4, of="class")
class TestS3OfMoto(StoreContract):
    backend_name = "moto"


class TestS3OfMinistack(StoreContract):
    backend_name = "ministack"


@pytest.mark.sampled(4, of="class")
class TestAzureOfAzurite(StoreContract):
    backend_name = "azurite"
    page_names = 100

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Azure returns 5,000 names per page, and Azurite needs half a minute to create them."""
        page = self.page_names
        walk_blobs = ContainerClient.walk_blobs

        def walk_in_pages(self: ContainerClient, *args: Any, **options: Any) -> Any:
            return walk_blobs(self, *args, **{"results_per_page": page, **options})

        monkeypatch.setattr(ContainerClient, "walk_blobs", walk_in_pages)


@pytest.mark.sampled(4, of="class")
class TestGcsDouble(StoreContract):
    backend_name = "gcs"


class OverwritesExistingNames(DictStore):
    def put_if_absent(self, path: str, data: bytes) -> bool:
        super().put(path, data)
        return True


class LooksThenPuts(StoreWrapper):
    """Excludes the threads of this handle only."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(store)
        self._turn = threading.Lock()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._turn:
            is_absent = self._store.stat(path) is None
            time.sleep(0.001)
            if is_absent:
                self._store.put(path, data)
            return is_absent


class OverwritesUploadedNames(DictStore):
    def __init__(self) -> None:
        super().__init__()
        self._uploaded: set[str] = set()

    def upload(self, path: str) -> Upload:
        self._uploaded.add(path)
        return super().upload(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path in self._uploaded:
            self.delete(path)
        return super().put_if_absent(path, data)


class OverwritesMovedNames(DictStore):
    def __init__(self) -> None:
        super().__init__()
        self._moved: set[str] = set()

    def move(self, source: str, target: str) -> None:
        super().move(source, target)
        self._moved.add(target)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path in self._moved:
            self.delete(path)
        return super().put_if_absent(path, data)


class DoesNotListMovedNames(OverwritesMovedNames):
    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        found = super().list_from(folder, start)
        return [entry for entry in found if f"{folder}/{entry.name}" not in self._moved]


class KeepsOpenedContent(DictStore):
    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[str, bytes] = {}

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        return io.BytesIO(self._opened.setdefault(path, super().open(path, size_bytes).read()))


class KeepsManyContents(KeepsOpenedContent):
    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        return DictStore.open(self, path, size_bytes)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self._opened.setdefault(path, self.read(path)) for path in paths]


class ListsInAnyOrder(DictStore):
    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        return super().list_from(folder, start)[::-1]


class StartsAfterTheName(DictStore):
    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        return [entry for entry in super().list_from(folder, start) if entry.name != start]


class SkipsMissingFiles(DictStore):
    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return super().read_many([path for path in paths if self.stat(path) is not None])


class RaisesItsOwnErrors(DictStore):
    def read(self, path: str) -> bytes:
        try:
            return super().read(path)
        except NotFoundError as error:
            raise KeyError(path) from error


class FailsToMoveToTheSameName(DictStore):
    def move(self, source: str, target: str) -> None:
        super().move(source, target)
        if source == target:
            super().delete(source)


class DoesNotDeleteTheFirstFile(DictStore):
    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        return super().delete_many(paths[1:])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (OverwritesExistingNames, "create_fails_if_the_name_exists_and_keeps_the_first_content"),
        (OverwritesExistingNames, "create_rejects_empty_content"),
        (OverwritesExistingNames, "one_of_several_threads_creates_each_name"),
        (OverwritesUploadedNames, "create_fails_if_an_upload_or_a_move_made_the_name"),
        (OverwritesMovedNames, "create_fails_if_an_upload_or_a_move_made_the_name"),
        (DoesNotListMovedNames, "move_renames_the_file"),
        (KeepsOpenedContent, "replaced_file_is_read_with_its_new_content"),
        (KeepsManyContents, "replaced_file_is_read_with_its_new_content"),
        (ListsInAnyOrder, "listing_is_in_code_point_order_without_folders"),
        (StartsAfterTheName, "listing_start_is_inclusive"),
        (SkipsMissingFiles, "read_many_stops_at_a_missing_file"),
        (RaisesItsOwnErrors, "delete_is_idempotent"),
        (FailsToMoveToTheSameName, "move_to_the_same_name_keeps_the_file"),
        (DoesNotDeleteTheFirstFile, "upload_move_walk_and_delete_keep_the_spelling_of_a_name"),
    ],
)
def test_store_that_breaks_a_guarantee_fails_the_contract(
    broken: Callable[[], LogStore], test: str
) -> None:
    class Contract(testing.StoreContract):
        def make_store(self) -> LogStore:
            return broken()

    with pytest.raises((AssertionError, KeyError, NotFoundError)):
        getattr(Contract(), f"test_{test}")()


def test_store_that_excludes_only_its_own_threads_fails_the_contract() -> None:
    class Contract(testing.StoreContract):
        def make_store(self) -> LogStore:
            return LooksThenPuts(DictStore())

        def reopen(self, store: LogStore) -> LogStore:
            assert isinstance(store, LooksThenPuts)
            return LooksThenPuts(store._store)

    with pytest.raises(AssertionError):
        Contract().test_one_of_several_threads_creates_each_name()


@pytest.mark.parametrize("names", [1, 9, 19])
def test_contract_of_a_store_with_small_pages(names: int) -> None:
    class Contract(testing.StoreContract):
        page_names = names

        def make_store(self) -> LogStore:
            return DictStore()

    Contract().test_listing_of_several_pages_is_complete_from_any_start()
    Contract().test_delete_many_ignores_missing_files()


def test_contract_without_make_store_raises_not_implemented_error() -> None:
    with pytest.raises(NotImplementedError, match="returns a new store"):
        testing.StoreContract().make_store()


def test_an_error_of_a_looping_test_names_its_case() -> None:
    class Contract(testing.StoreContract):
        def make_store(self) -> LogStore:
            return SkipsMissingFiles()

    with pytest.raises((AssertionError, NotFoundError)) as caught:
        Contract().test_read_many_stops_at_a_missing_file()
    assert caught.value.__notes__ == ["case: 0"]
