"""Writers that stay open while their table is deleted, created again, or replaced by a copy."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import ConflictError, Table
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import StoreWrapper
from lakelog.transaction.runtime import Runtime
from tests.transaction.test_stale_log_tails import Clock

A_MOMENT_S, LONG_S = 0.1, 2.0


@pytest.fixture(params=["local", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a table that does not exist yet."""
    memory = request.param == "memory"
    return f"memory://{uuid.uuid4().hex}/t" if memory else str(tmp_path / "t")


def build(where: str, *ids: int) -> None:
    """Write a version per row."""
    for number in ids:
        lakelog.write(where, pl.DataFrame({"id": [number]}))


def delete(where: str) -> None:
    store = open_store(where)
    for batch in list(store.walk()):
        store.delete_many([entry.name for entry in batch])


def ids(where: str) -> list[int]:
    found: list[int] = lakelog.open(where).to_polars()["id"].sort().to_list()
    return found


def written(where: str) -> Table:
    """A handle that has written a version."""
    build(where, 1, 2)
    table = lakelog.open(where, upkeep=False)
    table.append(pl.DataFrame({"id": [3]}))
    return table


def scanned(table: Table) -> None:
    with table.transaction() as tx:
        assert tx.scan().collect().height == 5
        tx.append(pl.DataFrame({"id": [9]}))


VERBS: dict[str, tuple[Callable[[Table], object], list[int]]] = {
    "upsert": (
        lambda t: t.upsert(pl.DataFrame({"id": [100]}), on="id"),
        [100, 101, 102, 103, 104],
    ),
    "overwrite": (lambda t: t.overwrite(pl.DataFrame({"id": [9]})), [9]),
    "delete": (lambda t: t.delete("id > 101"), [100, 101]),
    "compact": (lambda t: t.compact(), [100, 101, 102, 103, 104]),
    "scan": (scanned, [9, 100, 101, 102, 103, 104]),
}


@pytest.mark.parametrize("verb", list(VERBS))
def test_handle_that_has_written_changes_the_rows_of_the_new_table(where: str, verb: str) -> None:
    table = written(where)
    delete(where)
    build(where, 100, 101, 102, 103, 104)
    change, expected = VERBS[verb]
    change(table)
    assert ids(where) == expected
    assert table.to_polars()["id"].sort().to_list() == expected


def test_rows_are_checked_against_the_schema_of_the_new_table(where: str) -> None:
    table = written(where)
    delete(where)
    for text in "abcd":
        lakelog.write(where, pl.DataFrame({"id": [text]}))
    with pytest.raises(lakelog.InvalidInputError, match="another type"):
        table.append(pl.DataFrame({"id": [9]}))


def test_handle_notices_a_backup_with_the_same_times(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    build(where, 1, 2)
    shutil.copytree(where, tmp_path / "backup")
    table = lakelog.open(where, upkeep=False)
    table.append(pl.DataFrame({"id": [3]}))
    shutil.rmtree(where)
    shutil.copytree(tmp_path / "backup", where)
    build(where, 4, 5)
    table.overwrite(pl.DataFrame({"id": [9]}))
    assert ids(where) == [9]


BATCH = pa.record_batch({"id": pa.array([7], pa.int64())})


def rows(meanwhile: Callable[[], object]) -> pa.RecordBatchReader:
    """Rows of two batches; something happens between them."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        meanwhile()
        yield BATCH

    return pa.RecordBatchReader.from_batches(BATCH.schema, batches())


@pytest.mark.parametrize("verb", ["append", "overwrite"])
@pytest.mark.parametrize("versions", [2, 3, 5])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_table_that_is_replaced_during_a_write_is_a_conflict(
    tmp_path: Path, verb: str, versions: int, checkpointed: bool
) -> None:
    where = str(tmp_path / "t")
    build(where, 1, 2, 3)
    if checkpointed:
        lakelog.open(where).checkpoint()
    new = list(range(100, 100 + versions))

    def replace() -> None:
        delete(where)
        build(where, *new)

    table = lakelog.open(where, upkeep=False)
    with pytest.raises(ConflictError, match="the table was deleted, created again") as error:
        getattr(table, verb)(rows(replace))
    assert error.value.rule == "table_replaced"
    assert ids(where) == new
    assert len(list(Path(where).glob("*.parquet"))) == versions


def touch_commits(where: str) -> None:
    for number, commit in enumerate(sorted(Path(where).rglob("*.json"))):
        os.utime(commit, (1_700_000_000 + number,) * 2)


@pytest.mark.parametrize("own", [False, True])
def test_splits_are_added_while_the_times_of_commits_change(tmp_path: Path, own: bool) -> None:
    folder = tmp_path / "t"
    table = lakelog.create(folder, {"id": pl.Int64}, format="indextables")
    if not own:
        table = lakelog.open(folder)
    for path in ("a.split", "b.split"):
        with table.transaction() as tx:
            tx.add(path=path, size=1, modificationTime=0, partitionValues={})
            touch_commits(str(folder))
    assert lakelog.open(folder).snapshot().num_files() == 2


@pytest.mark.parametrize("writer", ["lakelog", "deltalake"])
def test_rows_are_written_while_the_times_of_commits_change(tmp_path: Path, writer: str) -> None:
    where = str(tmp_path / "t")
    if writer == "lakelog":
        build(where, 1, 2)
    else:
        for number in (1, 2):
            deltalake.write_deltalake(where, pl.DataFrame({"id": [number]}), mode="append")
    lakelog.open(where, upkeep=False).append(rows(lambda: touch_commits(where)))
    assert ids(where) == [1, 2, 7, 7]


def test_commit_of_equal_length_with_another_time_is_a_conflict(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    for number in (1, 2):
        deltalake.write_deltalake(where, pl.DataFrame({"id": [number]}), mode="append")
    last = max(Path(where, "_delta_log").glob("*.json"))
    text = last.read_text("utf-8")
    stamp = re.search(r'"timestamp":(\d+)', text)
    assert stamp is not None
    other = text.replace(stamp[1], str(int(stamp[1]) - 1))

    def replace() -> None:
        last.write_text(other, "utf-8")
        touch_commits(where)

    with pytest.raises(ConflictError) as error:
        lakelog.open(where, upkeep=False).append(rows(replace))
    assert (len(other), error.value.rule) == (len(text), "table_replaced")


def wrapped(where: str) -> tuple[Table, Clock]:
    """The table over a store that is not known to be local disk, and its clock."""
    clock, store = Clock(), StoreWrapper(open_store(where))
    assert isinstance(store, LogStore)
    return Table(Log(store, DIALECT), Runtime(lambda _: None, monotonic=clock)), clock


@pytest.mark.parametrize(
    ("new", "seconds"), [((), LONG_S), ((8, 9), LONG_S), ((8, 9), A_MOMENT_S), ((8,), LONG_S)]
)
def test_replacement_on_other_stores_is_a_conflict(
    where: str, new: tuple[int, ...], seconds: float
) -> None:
    build(where, 1)
    table, clock = wrapped(where)

    def replace() -> None:
        delete(where)
        build(where, *new)
        clock.now_s += seconds

    with pytest.raises(ConflictError) as error:
        table.append(rows(replace))
    assert error.value.rule == "table_replaced"
    if new:
        assert ids(where) == list(new)
    assert sum(map(len, open_store(where).walk())) == 2 * len(new)


class Counts(StoreWrapper):
    """Records the listings and writes."""

    def __init__(self, inner: LogStore) -> None:
        super().__init__(inner)
        self.calls: list[str] = []

    def list_from(self, folder: str, start: str = "") -> list[lakelog.storage.FileEntry]:
        self.calls.append("list")
        return super().list_from(folder, start)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.calls.append("put")
        return super().put_if_absent(path, data)

    def stat(self, path: str) -> lakelog.storage.FileEntry | None:
        self.calls.append("stat")
        return super().stat(path)

    def read(self, path: str) -> bytes:
        self.calls.append("read")
        return super().read(path)


def test_comparison_costs_no_request(where: str) -> None:
    build(where, 1)
    store = Counts(open_store(where))
    table = Table(Log(store, DIALECT), Runtime(lambda _: None, monotonic=Clock()))
    for number in range(3):
        store.calls.clear()
        with table.transaction() as tx:
            tx.add(path=f"f{number}", size=1)
    assert store.calls == ["list", "put"]
