"""Rows written to object stores and read back, with unusual names; failed writes leave no files,
and vacuum deletes the files that it lists.
"""

from __future__ import annotations

import datetime as dt
import time

import polars as pl
import pytest

import lakelog
from lakelog.errors import InvalidInputError
from tests.storage.conftest import CLOUDS, BackendOf

ROWS = pl.DataFrame({"p": ["a b/ü%", None, "a b/ü%"], "id": [1, 2, 3]})


@pytest.mark.parametrize("name", CLOUDS)
def test_rows_are_appended_and_overwritten_on_object_stores(
    name: str, backend_of: BackendOf
) -> None:
    backend = backend_of(name)
    location = backend.fresh()
    table = lakelog.create(
        location, ROWS.schema, ["p"], storage_options=backend.options, upkeep=False
    )
    table.append(ROWS)
    table.overwrite(ROWS.filter(id=3), pl.col("id") == 3)
    assert table.snapshot().scan().collect().sort("id").equals(ROWS)
    store = backend.open(location)
    before = sum(len(batch) for batch in store.walk())
    with pytest.raises(InvalidInputError):
        table.overwrite(ROWS, pl.col("id") == 3)
    assert sum(len(batch) for batch in store.walk()) == before


@pytest.mark.parametrize("name", CLOUDS)
def test_vacuum_of_a_file_with_a_version_in_its_name_keeps_the_live_file(
    name: str, backend_of: BackendOf
) -> None:
    backend = backend_of(name)
    location = backend.fresh()
    table = lakelog.create(
        location,
        ROWS.schema,
        configuration={"delta.deletedFileRetentionDuration": "interval 0 seconds"},
        storage_options=backend.options,
        upkeep=False,
    )
    table.append(ROWS)
    (live,) = table.snapshot().files().collect()["path"]
    store = backend.open(location)
    for key in ("versionId", "versionid", "generation"):
        # One at a time: a request that deletes many files has their exact names.
        stray = f"{live}?{key}=null"
        store.put(stray, b"x")
        time.sleep(0.01)
        table.vacuum(retention=dt.timedelta(0)).apply()
        assert store.stat(stray) is None
    assert table.to_polars().height == ROWS.height
