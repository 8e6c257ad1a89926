"""Rows under faults: after any failure, at any operation, they are in the table once or not at all.
Every verb is run repeatedly, failing at its first operation on the store, then at its
second, and so on until it succeeds. Each time the table is read again, and compared with the
writer's result.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import CommitOutcomeUnknown, ConflictError, Table, UnavailableError
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.errors import LakelogError, OutcomeUnknownError
from lakelog.log.context import Log
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import StoreWrapper, Upload
from lakelog.testing import WRITES, Fault, InjectingStore, Kind, Rule
from lakelog.transaction.runtime import Runtime
from tests.budget import points

SCHEMA = {"p": pl.String, "id": pl.Int64, "other": pl.Int64}
BEFORE = pl.DataFrame({"p": ["a", "a", "b"], "id": [1, 2, 3], "other": 0}, schema=SCHEMA)
NEW = pl.DataFrame({"p": ["a"], "id": [10], "other": 0}, schema=SCHEMA)


@pytest.fixture(autouse=True)
def _small_files_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates copy the chunks of other columns of small files too."""
    monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", 0)


def merge_rows(table: Table) -> Any:
    """Deletes the row 1, moves the row 3 to another partition, and keeps the row 2."""
    merge = table.merge(pl.DataFrame({"id": [1, 3]}), "id")
    merge = merge.when_matched_update({"id": "10", "p": "'c'"}, "target.id = 3")
    return merge.when_matched_delete().execute()


Write = Callable[[Table], Any]
VERBS: dict[str, tuple[Write, list[int]]] = {
    "append": (lambda table: table.append(NEW), [1, 2, 3, 10]),
    "append once": (lambda t: t.append(NEW, app_id="app", app_version=1), [1, 2, 3, 10]),
    "overwrite": (lambda table: table.overwrite(NEW), [10]),
    "overwrite a partition": (lambda t: t.overwrite(NEW, pl.col("p") == "a"), [3, 10]),
    "overwrite some rows": (
        lambda t: t.overwrite(NEW, (pl.col("id") == 1) | (pl.col("id") > 3)),
        [2, 3, 10],
    ),
    "delete by copying": (lambda t: t.delete("id = 1 OR id > 3"), [2, 3]),
    "delete": (lambda t: t.delete("id = 1 OR id > 3"), [2, 3]),
    "update": (lambda t: t.update({"id": pl.col("id") + 9}, "id = 1 OR id > 3"), [2, 3, 10]),
    "update by copying": (
        lambda t: t.update({"id": pl.col("id") + 9}, "id = 1 OR id > 3"),
        [2, 3, 10],
    ),
    "restore": (lambda table: table.restore(0), []),
    "merge by copying": (merge_rows, [2, 10]),
    "merge": (merge_rows, [2, 10]),
}
VECTORS = {"delete", "update", "merge"}
"""Verbs that are tested on a table with deletion vectors."""
FAULTS: dict[Fault, tuple[Kind, ...]] = {"fail": (), "unknown": WRITES, "lost": WRITES}


def prepared(verb: str = "") -> str:
    """A new table with rows."""
    location = f"memory://{uuid.uuid4().hex}"
    source, target = open_store(_table(vectors=verb in VECTORS)), open_store(location)
    for entry in itertools.chain.from_iterable(source.walk()):
        target.put_if_absent(entry.name, source.read(entry.name))
    return location


@cache
def _table(*, vectors: bool) -> str:
    location = f"memory://{uuid.uuid4().hex}"
    configuration = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": str(vectors).lower(),
    }
    table = lakelog.create(location, SCHEMA, ["p"], configuration=configuration, upkeep=False)
    table.append(BEFORE)
    return location


def open_with_store(location: str, wrap: Callable[[LogStore], LogStore]) -> Table:
    """The same table on another store. Its clock does not move, because a write of more than a
    second lists the log once more, which a sweep over its operations does not expect.
    """
    clean = lakelog.open(location, upkeep=False)
    runtime = Runtime(monotonic=lambda: 0.0)
    return Table(Log(wrap(open_store(location)), clean.log.dialect), runtime)


def ids(location: str) -> list[int]:
    rows = lakelog.open(location, upkeep=False).snapshot().scan().collect()
    return sorted(rows["id"].to_list())


def orphans(location: str) -> set[str]:
    """Data files that are in no commit."""
    table = lakelog.open(location, upkeep=False)
    actions = table.actions().collect()
    named = {*actions["path"].drop_nulls(), *vector_paths(actions).drop_nulls()}
    walked = {entry.name for batch in open_store(location).walk() for entry in batch}
    return {name for name in walked if not name.startswith("_delta_log/")} - named


@pytest.mark.sampled(3, keep=("verb",))
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", VERBS)
def test_rows_are_written_once_or_not_at_all_under_store_faults(verb: str, fault: Fault) -> None:
    write, after = VERBS[verb]
    kinds = FAULTS[fault]
    unfaulted: list[InjectingStore] = []

    def watched(store: LogStore) -> LogStore:
        unfaulted.append(InjectingStore(store))
        return unfaulted[-1]

    for _ in range(2):  # the first call of a process may find state of another handle
        write(open_with_store(prepared(verb), watched))
    for nth in points(each for each in unfaulted[-1].operations if not kinds or each[0] in kinds):
        location = prepared(verb)
        stores: list[InjectingStore] = []

        def faulty(
            store: LogStore, nth: int = nth, stores: list[InjectingStore] = stores
        ) -> LogStore:
            stores.append(InjectingStore(store, [Rule(fault, kinds, nth=nth)]))
            return stores[-1]

        outcome: Any
        try:
            outcome = write(open_with_store(location, faulty))
        except (UnavailableError, CommitOutcomeUnknown) as error:
            outcome = error  # an unknown outcome of a data file leaves nothing in doubt
        injected = [op for op in stores[0].operations if not kinds or op[0] in kinds][nth - 1 :]
        description = f"{verb}, {fault} at {nth}: {injected[:1]} gave {outcome!r}"
        found = ids(location)
        if not isinstance(outcome, LakelogError):
            assert found == after, description
        elif not isinstance(outcome, CommitOutcomeUnknown):
            assert found == [1, 2, 3], description
        else:
            assert found in ([1, 2, 3], after), description
        left = orphans(location)
        assert not left, f"{description}; left {left}"
        if verb == "append once":
            write(lakelog.open(location, upkeep=False))
            assert ids(location) == after, description
        if not injected:
            assert not isinstance(outcome, LakelogError), description
            return
    pytest.fail("every number of operations was faulty")


class _Unreadable(StoreWrapper):
    """Loses the response of the commit, and cannot be read from then on."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(store)
        self.lost = False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        super().put_if_absent(path, data)
        self.lost = True
        raise OutcomeUnknownError("the response was lost", path=path)

    def read(self, path: str) -> bytes:
        if self.lost:
            raise UnavailableError("the store is unavailable", path=path)
        return super().read(path)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "restore"])  # it has no files
def test_files_are_kept_if_the_outcome_of_the_commit_is_unknown(verb: str) -> None:
    write, after = VERBS[verb]
    location = prepared(verb)
    with pytest.raises(CommitOutcomeUnknown) as unknown:
        write(open_with_store(location, _Unreadable))
    assert "data files of this write are kept" in str(unknown.value.__notes__)
    assert ids(location) == after


class _RejectedCommit(StoreWrapper):
    """Rejects commits; optionally, cannot be listed from then on."""

    def __init__(self, store: LogStore, *, unavailable: bool) -> None:
        super().__init__(store)
        self._unavailable, self._refused = unavailable, False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._refused = True
        raise UnavailableError("no room", path=path)

    def list_from(self, folder: str, start: str = "") -> list[Any]:
        if self._refused and self._unavailable:
            raise UnavailableError("the store is unavailable", path=folder)
        return super().list_from(folder, start)


@pytest.mark.parametrize("unavailable", [False, True])
def test_files_are_deleted_only_after_the_log_was_read_again(unavailable: bool) -> None:
    location = prepared()
    with pytest.raises(UnavailableError, match="no room") as failed:
        open_with_store(
            location, lambda store: _RejectedCommit(store, unavailable=unavailable)
        ).append(NEW)
    assert len(orphans(location)) == unavailable
    assert ids(location) == [1, 2, 3]
    notes = str(getattr(failed.value, "__notes__", ""))
    assert ("cannot be read" in notes) == unavailable


class _FalseFailure(StoreWrapper):
    """Executes the commit, and reports a failure."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        super().put_if_absent(path, data)
        raise UnavailableError("no room", path=path)


def test_files_in_the_log_are_kept_although_the_store_reported_a_failure() -> None:
    location = prepared()
    with pytest.raises(UnavailableError, match="no room") as failed:
        open_with_store(location, _FalseFailure).append(NEW)
    assert "the log refers to them" in str(failed.value.__notes__)
    assert ids(location) == [1, 2, 3, 10]


class _Interrupted(StoreWrapper):
    """Interrupts the commit, before or after it is written."""

    def __init__(self, store: LogStore, *, after: bool) -> None:
        super().__init__(store)
        self._after = after

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self._after:
            super().put_if_absent(path, data)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
def test_interrupt_during_the_commit_deletes_no_file(after: bool) -> None:
    location = prepared()
    with pytest.raises(KeyboardInterrupt):
        open_with_store(location, lambda store: _Interrupted(store, after=after)).append(NEW)
    assert ids(location) == ([1, 2, 3, 10] if after else [1, 2, 3])
    assert len(orphans(location)) == (not after)


def test_files_of_a_conflicting_write_are_deleted() -> None:
    location = prepared()

    class OtherCommitFirst(StoreWrapper):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            if path.endswith("2.json"):
                lakelog.open(location, upkeep=False).overwrite(NEW)
            return super().put_if_absent(path, data)

    with pytest.raises(ConflictError):
        open_with_store(location, OtherCommitFirst).overwrite(NEW, pl.col("p") == "a")
    assert ids(location) == [10]
    assert orphans(location) == set()


class FullDisk(StoreWrapper):
    """A store with space for 100 kB per file."""

    def upload(self, path: str) -> Upload:
        real = super().upload(path)
        write = real.write

        def limited(data: Any) -> int:
            if real.tell() + len(data) > 100_000:
                raise UnavailableError("nothing was written: no space left", path=path)
            return write(data)

        real.write = limited  # type: ignore[method-assign]
        return real


@pytest.mark.parametrize("verb", ["append", "overwrite"])
def test_disk_that_is_full_in_the_middle_of_a_file_is_reported(verb: str) -> None:
    location = prepared()
    rows = pl.DataFrame({"id": range(200_000)}).select(
        p=pl.lit("a"), id=pl.col("id").hash().reinterpret(signed=True)
    )
    with pytest.raises(UnavailableError, match="no space left"):
        getattr(open_with_store(location, FullDisk), verb)(rows)
    table = lakelog.open(location, upkeep=False)
    assert sorted(table.snapshot().scan().collect()["id"]) == [1, 2, 3]


@pytest.mark.parametrize("verb", ["write", "append", "delete"])
def test_unknown_outcome_of_a_new_file_is_a_failure(verb: str) -> None:
    new = f"memory://{uuid.uuid4().hex}/t"
    location = new if verb == "write" else prepared("delete")
    store = InjectingStore(open_store(location), [Rule("lost", ("upload",), nth=2)])
    if verb == "delete":
        many = pl.DataFrame({"id": range(30_000)}).with_columns(p=pl.lit("a"), other=pl.lit(0))
        lakelog.open(location, upkeep=False).append(many)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: lakelog.write(None, NEW, store=store),
        "append": lambda: open_with_store(location, lambda _: store).append(NEW),
        "delete": lambda: open_with_store(location, lambda _: store).delete("id % 3 = 0"),
    }
    with pytest.raises(UnavailableError, match="nothing was committed") as error:
        calls[verb]()
    assert isinstance(error.value.__cause__, OutcomeUnknownError)
