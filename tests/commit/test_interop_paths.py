"""Partition values and file names of every byte, on tables that deltalake writes as well.

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
from tests.hostile_names import SCHEMA, VALUES, partitioned_table

pytestmark = pytest.mark.reference

LAST = pa.table({"p": ["last"], "x": pa.array([9], pa.int64())})


def paths_in(root: Path, version: int, kind: str) -> set[str]:
    """The paths of one commit's adds or removes, as text."""
    lines = (root / f"_delta_log/{version:020}.json").read_bytes().splitlines()
    return {action[kind]["path"] for action in map(json.loads, lines) if kind in action}


def test_what_deltalake_overwrites_is_gone_for_every_engine(tmp_path: Path) -> None:
    table = partitioned_table(tmp_path)
    added = table.snapshot().version
    write_deltalake(tmp_path, LAST, mode="overwrite")
    assert paths_in(tmp_path, added + 1, "remove") ^ paths_in(tmp_path, added, "add") == set()
    DeltaTable(tmp_path).create_checkpoint()
    assert pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())["x"].to_list() == [9]
    assert lakelog.open(tmp_path).snapshot().scan().collect()["x"].to_list() == [9]


def test_what_lakelog_overwrites_is_gone_for_deltalake(tmp_path: Path) -> None:
    rows = pa.table({"p": list(VALUES), "x": pa.array(range(len(VALUES)), pa.int64())})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    table = lakelog.open(tmp_path)
    assert sorted(table.snapshot().scan().collect()["x"]) == list(range(len(VALUES)))
    table.overwrite(pl.DataFrame({"p": ["last"], "x": [9]}, schema=SCHEMA))
    assert paths_in(tmp_path, 1, "remove") == paths_in(tmp_path, 0, "add")
    assert pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())["x"].to_list() == [9]


def test_both_engines_name_the_folders_of_partitions_alike(tmp_path: Path) -> None:
    partitioned_table(tmp_path / "ours")
    rows = pa.table({"p": list(VALUES), "x": pa.array(range(len(VALUES)), pa.int64())})
    write_deltalake(tmp_path / "theirs", rows, partition_by=["p"])
    ours, theirs = (
        {path.name for path in (tmp_path / where).iterdir()} for where in ("ours", "theirs")
    )
    assert ours == theirs
