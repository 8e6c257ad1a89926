"""Partition values and file names with every byte, on tables that deltalake writes as well.

deltalake compares the paths of add and remove as text: both engines must write one spelling.
"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakelog
from tests.hostile_names import (
    SCHEMA,
    TEXTS,
    VALUES,
    named_table,
    partitioned_table,
    table_of_another_writer,
    texts_in_checkpoint,
)

pytestmark = pytest.mark.reference

LAST = pa.table({"p": ["last"], "x": pa.array([9], pa.int64())})


def paths_in(root: Path, version: int, kind: str) -> set[str]:
    """The paths of one commit's adds or removes, as text."""
    lines = (root / f"_delta_log/{version:020}.json").read_bytes().splitlines()
    return {action[kind]["path"] for action in map(json.loads, lines) if kind in action}


def test_files_overwritten_by_deltalake_are_removed_for_both_engines(tmp_path: Path) -> None:
    table = partitioned_table(tmp_path)
    added = table.snapshot().version
    write_deltalake(tmp_path, LAST, mode="overwrite")
    assert paths_in(tmp_path, added + 1, "remove") ^ paths_in(tmp_path, added, "add") == set()
    DeltaTable(tmp_path).create_checkpoint()
    assert pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())["x"].to_list() == [9]
    assert lakelog.open(tmp_path).snapshot().scan().collect()["x"].to_list() == [9]


def test_files_overwritten_by_lakelog_are_removed_for_deltalake(tmp_path: Path) -> None:
    rows = pa.table({"p": list(VALUES), "x": pa.array(range(len(VALUES)), pa.int64())})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    table = lakelog.open(tmp_path)
    assert sorted(table.snapshot().scan().collect()["x"]) == list(range(len(VALUES)))
    table.overwrite(pl.DataFrame({"p": ["last"], "x": [9]}, schema=SCHEMA))
    assert paths_in(tmp_path, 1, "remove") == paths_in(tmp_path, 0, "add")
    assert pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())["x"].to_list() == [9]


def test_both_engines_give_partition_folders_the_same_names(tmp_path: Path) -> None:
    partitioned_table(tmp_path / "ours")
    rows = pa.table({"p": list(VALUES), "x": pa.array(range(len(VALUES)), pa.int64())})
    write_deltalake(tmp_path / "theirs", rows, partition_by=["p"])
    ours, theirs = (
        {path.name for path in (tmp_path / where).iterdir()} for where in ("ours", "theirs")
    )
    assert ours == theirs
    found = pl.DataFrame(DeltaTable(tmp_path / "ours").to_pyarrow_table()).sort("x")
    assert found["p"].to_list() == list(VALUES)


def test_files_of_any_name_that_lakelog_added_are_removed_by_deltalake(tmp_path: Path) -> None:
    table = named_table(tmp_path)
    added = table.snapshot().version
    table.checkpoint()
    write_deltalake(tmp_path, LAST, mode="overwrite")
    assert paths_in(tmp_path, added + 1, "remove") == paths_in(tmp_path, added, "add")
    DeltaTable(tmp_path).create_checkpoint()
    assert lakelog.open(tmp_path).snapshot().scan().collect()["x"].to_list() == [9]


@pytest.mark.parametrize("layout", ["commits", "classic", "multipart", "v2-json", "v2-parquet"])
def test_path_keeps_the_spelling_of_its_writer(tmp_path: Path, layout: str) -> None:
    table = table_of_another_writer(tmp_path, *(["v2Checkpoint"] if "v2" in layout else []))
    if layout != "commits":
        table.checkpoint(layout=layout)
        assert texts_in_checkpoint(tmp_path, "add") == sorted(TEXTS)
        table = lakelog.open(tmp_path, upkeep=False)
    with table.transaction() as tx:
        tx.remove(tx.read().collect().head(5))
    with table.transaction() as tx:
        rows = tx.read().collect()
        tx.remove(rows.tail(4))
        tx.add(rows.head(1).with_columns(size=pl.lit(7)))
    removed = paths_in(tmp_path, 3, "remove"), paths_in(tmp_path, 4, "remove")
    added = paths_in(tmp_path, 4, "add")
    assert [len(texts) for texts in (*removed, added)] == [5, 4, 1]
    assert set.union(*removed, added) == set(TEXTS)
    table.checkpoint(layout="classic" if layout == "commits" else layout)
    assert set(texts_in_checkpoint(tmp_path, "remove")) == set.union(*removed)
    assert added <= set(texts_in_checkpoint(tmp_path, "add"))


@pytest.mark.parametrize("limit", [None, 8 << 30])
def test_log_compaction_keeps_the_texts_of_paths(tmp_path: Path, limit: int | None) -> None:
    table = table_of_another_writer(tmp_path)
    report = table.compact_log(1, 2, memory_limit=limit)
    lines = (tmp_path / report.path).read_bytes().splitlines()
    actions = [json.loads(line) for line in lines]
    assert {action["add"]["path"] for action in actions if "add" in action} == set(TEXTS)


def test_checkpoint_within_a_memory_limit_keeps_the_texts_of_paths(tmp_path: Path) -> None:
    table = table_of_another_writer(tmp_path)
    table.checkpoint(layout="classic", memory_limit=8 << 30)
    assert texts_in_checkpoint(tmp_path, "add") == sorted(TEXTS)


def test_path_of_a_new_file_is_encoded_like_a_path_of_deltalake(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, SCHEMA)
    with table.transaction() as tx:
        tx.add(path="é*(1) 😀.parquet", size=1, modificationTime=1)
    assert paths_in(tmp_path, 1, "add") == {"%C3%A9%2A(1)%20%F0%9F%98%80.parquet"}
