"""Rows written to object stores and read back, with unusual names; failed writes leave no files."""

from __future__ import annotations

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
