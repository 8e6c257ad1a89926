"""`Ingestor` with a key: rows replace and delete those of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import (
    InvalidInputError,
    StreamMismatchError,
)
from tests.ingest.ingestors import quiet


def keyed_rows(rows: pl.LazyFrame | pl.DataFrame) -> dict[int, str]:
    frame = rows.lazy().select("id", "name").collect()
    assert frame["id"].is_unique().all()
    return dict(frame.rows())


def test_last_change_of_a_key_is_committed(table: lakelog.Table, directory: Path) -> None:
    with quiet(table, directory, key="id") as ingestor:
        ingestor.write([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"}])
        ingestor.delete({"id": 2})
        ingestor.write(pl.DataFrame({"id": [3, 4], "name": ["d", "e"]}))
        ingestor.delete([{"id": 4}])
        ingestor.write({"id": 4, "name": "f"})
        expected = {1: "c", 3: "d", 4: "f"}
        assert keyed_rows(ingestor.read_your_writes()) == expected
        ingestor.flush()
        assert keyed_rows(table.scan()) == keyed_rows(ingestor.read_your_writes()) == expected
        ingestor.delete(pl.DataFrame({"id": [1, 77]}))
        ingestor.write({"id": 3})
        expected = {3: None, 4: "f"}  # type: ignore[dict-item]
        assert keyed_rows(ingestor.read_your_writes()) == expected
        ingestor.flush()
        ingestor.delete({"id": 99})  # nothing to commit
        ingestor.flush()
        ingestor.write({"id": 5, "name": "g"})
    assert keyed_rows(table.scan()) == {**expected, 5: "g"}


@pytest.mark.parametrize("keys", [[1, 1, 2, 3, 3], [0.0, -0.0, 2.0, 3.0, 3.0]])
def test_every_row_of_a_key_that_the_table_has_twice_is_replaced(
    tmp_path: Path, directory: Path, keys: list[Any]
) -> None:
    rows = pl.DataFrame({"key": keys, "part": ["a"] * 5, "name": ["old"] * 5})
    table = lakelog.create(tmp_path / "twice", rows.schema, upkeep=False)
    table.append(rows)
    with quiet(table, directory, key=["key", "part"]) as ingestor:
        for key in (keys[0], 4):
            ingestor.write({"key": key, "part": "a", "name": "new"})
        ingestor.delete({"key": keys[3], "part": "a"})
        seen = ingestor.read_your_writes().sort("key", "name").collect()
        some = ingestor.read_your_writes().filter(pl.col("name") == "new").select("key").collect()
        ingestor.flush()
    assert table.to_polars().sort("key", "name").rows() == seen.rows()
    assert seen["name"].to_list() == ["new", "new", "old", "new"]
    assert some.height == 3


def test_key_columns_named_like_patterns_are_compared_by_their_names(tmp_path: Path) -> None:
    rows = pl.DataFrame({"*": [1, 2], "^a$": [10, 20], "a": [7, 7]})
    lakelog.write(tmp_path / "t", rows)
    table = lakelog.open(tmp_path / "t")
    with quiet(table, tmp_path / "i", key=["^a$", "*"]) as ingestor:
        for number in (8, 9):
            ingestor.write(rows.with_columns(a=number))
        ingestor.write({"*": 3, "^a$": 10, "a": 9})
        ingestor.delete({"*": 2, "^a$": 20})
        expected = [(1, 10, 9), (3, 10, 9)]
        assert sorted(ingestor.read_your_writes().collect().rows()) == expected
        ingestor.flush()
        assert sorted(table.to_polars().rows()) == expected


def test_missing_or_invalid_key_raises(
    table: lakelog.Table, directory: Path, tmp_path: Path
) -> None:
    with quiet(table, directory, key=["id"]) as ingestor:
        for call, row, reason in (
            (ingestor.write, {"id": None, "name": "a"}, "key column 'id'"),
            (ingestor.write, {"name": "a"}, "key column 'id'"),
            (ingestor.delete, {"name": "a"}, "'name' is not a key column"),
            (ingestor.delete, {"id": None}, "key column 'id'"),
        ):
            with pytest.raises(InvalidInputError, match=reason):
                call(row)
    with quiet(table, tmp_path / "b") as plain, pytest.raises(InvalidInputError, match="by key"):
        plain.delete({"id": 1})
    with pytest.raises(InvalidInputError, match="no key column"):
        quiet(table, tmp_path / "c", key="nope")
    with pytest.raises(InvalidInputError, match="twice"):
        quiet(table, tmp_path / "c", key=["id", "id"])
    table.alter.set_properties({"delta.appendOnly": "true"})
    with pytest.raises(StreamMismatchError, match="append-only"):
        quiet(table, tmp_path / "d", key="id")


# --- asyncio ---------------------------------------------------------------------------------
