"""A `Table` that is sent to another process."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import InvalidInputError, Table
from lakelog.storage import StoreWrapper
from lakelog.storage.bounded import BoundedStore

ROWS = pl.DataFrame({"n": [1, 2]})


def appended(table: Table) -> tuple[int | None, list[int]]:
    """Append to the table in another process."""
    version = table.append(ROWS + 2).version
    return version, table.snapshot().scan().collect()["n"].sort().to_list()


def test_pickled_table_can_write_in_a_spawned_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = lakelog.create("t", {"n": pl.Int64}, upkeep=False)
    table.append(ROWS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(appended, (table,)) == (2, [1, 2, 3, 4])
    assert table.version() == 2


def test_pickled_table_keeps_its_options_and_repr_has_no_secrets(tmp_path: Path) -> None:
    lakelog.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    options = {"auto_mkdir": True}
    table = lakelog.open(tmp_path, options, read_timeout=7, parallelism=3, allow_external=True)
    again = pickle.loads(pickle.dumps(table))
    stores = (again.log.store, table.log.store)
    requested = [store.requested for store in stores if isinstance(store, BoundedStore)]
    assert len(requested) == 2
    assert requested[0] == requested[1]
    assert again.log.external == table.log.external
    assert again.log.storage_options == options
    assert (again.path, again.format) == (str(tmp_path), "delta")
    assert "auto_mkdir" not in repr(again) + repr(again.log)
    plain = pickle.loads(pickle.dumps(lakelog.open(tmp_path, upkeep=False)))
    assert plain.scheduler is None
    assert again.scheduler is not None


def test_table_over_a_custom_store_cannot_be_pickled(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    own = Table(replace(table.log, store=StoreWrapper(table.log.store)))
    with pytest.raises(InvalidInputError, match="pickled"):
        pickle.dumps(own)
