"""`lakelog.open(store=)` and `lakelog.create(store=)`: all operations use that store."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import ArgumentTypeError, InvalidInputError, LakelogError, TableExistsError
from lakelog.storage import LogStore, open_store
from lakelog.testing import InjectingStore, Rule
from tests.storage.own_store import DictStore

DAY_MS = 86_400_000
ROWS = pl.DataFrame({"p": ["a", "b", None], "id": [1, 2, 3]})


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Assert that nothing is written outside the store."""
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == []


@pytest.fixture(params=["dict", "memory", "injecting", "injecting dict"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    """A new store."""
    kind = request.param
    memory = open_store(f"memory://passed/{tmp_path.name}")
    own = DictStore() if "dict" in kind else memory
    return InjectingStore(own) if "injecting" in kind else own


def rows(table: lakelog.Table) -> pl.DataFrame:
    return table.snapshot().scan().collect().sort("id")


def files(store: LogStore) -> list[str]:
    return sorted(entry.name for batch in store.walk() for entry in batch)


def later(table: lakelog.Table) -> lakelog.Table:
    """The table in 60 days."""
    return lakelog.Table(replace(table.log, clock=lambda: table.log.clock() + 60 * DAY_MS))


def test_all_table_operations_use_the_passed_store(store: LogStore) -> None:
    table = lakelog.create(None, ROWS.schema, ["p"], store=store, upkeep=False)
    assert table.path == store.root
    assert table.refusal is None
    table.append(ROWS)
    table.append(ROWS.with_columns(id=pl.col("id") + 10))
    table.overwrite(pl.DataFrame({"p": ["b", "b"], "id": [2, 20]}), pl.col("p") == "b")
    wanted = [1, 2, 3, 11, 13, 20]
    assert rows(table)["id"].to_list() == wanted
    table.checkpoint()
    assert table.verify().is_proved
    again = lakelog.open(store=store)
    assert rows(again)["id"].to_list() == wanted
    assert again.snapshot().scan(pl.col("p") == "b").collect()["id"].sort().to_list() == [2, 20]
    table.append(ROWS.with_columns(id=pl.col("id") + 30))
    before = files(store)
    assert any(name.endswith(".parquet") and not name.startswith("_") for name in before)
    later(table).vacuum(plan=False)
    assert set(files(store)) < set(before)  # the replaced data file is deleted
    assert rows(lakelog.open(store=store))["id"].to_list() == [*wanted, 31, 32, 33]


def test_cleanup_deletes_log_files_through_the_store(store: LogStore) -> None:
    table = lakelog.create(None, ROWS.schema, store=store, upkeep=False)
    for _ in range(3):
        table.append(ROWS)
    table.checkpoint()
    table.append(ROWS)
    commits = [name for name in files(store) if name.endswith(".json")]
    later(table).cleanup(plan=False)
    assert set(commits) - set(files(store))
    assert rows(lakelog.open(store=store)).height == 12


def test_data_files_are_operations_of_an_injecting_store() -> None:
    store = InjectingStore(DictStore())
    table = lakelog.create(None, ROWS.schema, store=store, upkeep=False)
    table.append(ROWS)
    (data,) = [name for name in files(store) if name.endswith(".parquet")]
    assert ("upload", data) in store.operations
    del store.operations[:]
    assert rows(table).equals(ROWS)
    assert ("open", data) in store.operations


@pytest.mark.parametrize("kind", ["upload", "put_if_absent"])
def test_a_failed_write_of_the_store_appends_nothing(kind: Any) -> None:
    below = DictStore()
    lakelog.create(None, ROWS.schema, store=below, upkeep=False)
    failing = lakelog.open(store=InjectingStore(below, [Rule("fail", kind)]), upkeep=False)
    with pytest.raises(LakelogError, match="injected"):
        failing.append(ROWS)
    assert rows(lakelog.open(store=below)).is_empty()
    failing.append(ROWS)
    assert rows(lakelog.open(store=below)).equals(ROWS)


def test_a_failed_read_of_the_store_is_raised_by_collect() -> None:
    below = DictStore()
    lakelog.create(None, ROWS.schema, store=below, upkeep=False).append(ROWS)
    rule = Rule("fail", ("open", "read"), path="*.parquet", times=None)
    table = lakelog.open(store=InjectingStore(below, [rule]))
    with pytest.raises(Exception, match="injected"):
        rows(table)


def test_upkeep_writes_its_checkpoint_through_the_store() -> None:
    store = DictStore()
    often = {"delta.checkpointInterval": "2"}
    table = lakelog.create(None, ROWS.schema, configuration=often, store=store)
    table.append(ROWS)
    table.append(ROWS)
    assert table.scheduler is not None
    assert table.scheduler.wait(60)
    assert [name for name in files(store) if "checkpoint" in name]


def test_an_indextables_log_is_committed_through_the_store() -> None:
    store = DictStore()
    table = lakelog.create(None, ROWS.schema, format="indextables", store=store, upkeep=False)
    with table.transaction() as tx:
        tx.add(path="f", size=1)
    table.checkpoint()
    assert lakelog.open(store=store).snapshot().files().collect()["path"].to_list() == ["f"]


def test_a_table_that_exists_in_the_store_is_not_created_again() -> None:
    store = DictStore()
    lakelog.create(None, ROWS.schema, store=store)
    with pytest.raises(TableExistsError):
        lakelog.create(None, ROWS.schema, store=store)


@pytest.mark.parametrize("store", [DictStore(), open_store("memory://passed/pickled")])
def test_a_table_of_a_passed_store_is_not_pickled(store: LogStore) -> None:
    table = lakelog.create(None, ROWS.schema, store=store, upkeep=False)
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        pickle.dumps(table)


def test_spark_refuses_a_table_of_a_passed_store_before_it_starts() -> None:
    from lakelog.spark.checkpoint import checkpoint
    from lakelog.spark.replay import plan_replay

    table = lakelog.create(None, ROWS.schema, store=DictStore(), upkeep=False)
    with pytest.raises(InvalidInputError, match="passed as an object"):
        checkpoint(None, table)
    with pytest.raises(InvalidInputError, match="passed as an object"):
        plan_replay(None, table)


def test_exactly_one_of_location_and_store_is_required() -> None:
    store = DictStore()
    with pytest.raises(InvalidInputError, match="pass path or store"):
        lakelog.open()
    with pytest.raises(InvalidInputError, match="pass path or store"):
        lakelog.create(None, ROWS.schema)
    with pytest.raises(InvalidInputError, match="pass either"):
        lakelog.open("here", store=store)
    with pytest.raises(InvalidInputError, match="pass either"):
        lakelog.open(storage_options={}, store=store)
    with pytest.raises(InvalidInputError, match="pass either"):
        lakelog.create("here", ROWS.schema, store=store)
    for wrong in ("memory://x", 5, DictStore):
        with pytest.raises(ArgumentTypeError, match="store must be"):
            lakelog.open(store=wrong)  # type: ignore[arg-type]
