"""Tests that the Java Kernel still has each listed deviation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

import lakelog
from tests.handmade import Handmade, add, remove
from tests.kernel.deviations import DEVIATIONS
from tests.kernel.engine import Kernel
from tests.kernel.tables import ID, create
from tests.spark.data_files import data_file, ids

pytestmark = pytest.mark.reference

NOW_MS = 4_000_000_000_000


def checkpoint_rows(root: Path, version: int) -> list[dict[str, Any]]:
    """The actions of a classic checkpoint."""
    found = pq.read_table(root / "_delta_log" / f"{version:020d}.checkpoint.parquet").to_pylist()
    return [{kind: body for kind, body in row.items() if body is not None} for row in found]


def paths(root: Path, version: int, kind: str) -> list[str]:
    return sorted(row[kind]["path"] for row in checkpoint_rows(root, version) if kind in row)


def test_every_deviation_is_shown_by_a_test() -> None:
    shown = {name for name in globals() if name.startswith("test_")}
    assert {f"test_{deviation.name}" for deviation in DEVIATIONS} <= shown


def test_a_checkpoint_keeps_the_remove_of_a_file_that_was_added_again(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = Handmade(tmp_path).start(add("a"), add("b"))
    made.commit(1, remove("a", deletionTimestamp=NOW_MS))
    made.commit(2, add("a", size=2))
    kernel.checkpoint(tmp_path)
    assert paths(tmp_path, 2, "add") == ["a", "b"]
    assert paths(tmp_path, 2, "remove") == ["a"]


def test_a_checkpoint_drops_the_removes_of_the_checkpoint_before(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = Handmade(tmp_path).start(add("a"), add("b"))
    made.commit(1, remove("a", deletionTimestamp=NOW_MS))
    kernel.checkpoint(tmp_path)
    assert paths(tmp_path, 1, "remove") == ["a"]
    made.commit(2, remove("b", deletionTimestamp=NOW_MS))
    kernel.checkpoint(tmp_path)
    assert paths(tmp_path, 2, "remove") == ["b"]


def test_the_pointer_counts_live_files_only(kernel: Kernel, tmp_path: Path) -> None:
    made = Handmade(tmp_path).start(add("a"), add("b"))
    kernel.checkpoint(tmp_path)
    pointer = json.loads((made.log / "_last_checkpoint").read_bytes())
    assert pointer["size"] == 2
    assert not {"sizeInBytes", "numOfAddFiles", "checksum"} & {*pointer}


def test_paths_are_compared_as_the_text_of_a_uri(kernel: Kernel, tmp_path: Path) -> None:
    made = Handmade(tmp_path).start(add("é"), add("%C3%BC"), add("x%2a"), add("y*"))
    made.commit(1, remove("%C3%A9"), remove("ü"), remove("x%2A"), remove("y%2A"))
    # The digits of an escape are compared without their case, and nothing else is.
    assert {path for path, _ in kernel.state(tmp_path)["files"]} == {"é", "ü", "y*"}
    assert made.table.snapshot().num_files() == 0


def test_statistics_are_read_as_json_only(kernel: Kernel, tmp_path: Path) -> None:
    table = create(tmp_path, ID, checkpoint_writeStatsAsJson="false")
    table.append(pl.DataFrame({"id": [1]}))
    table.checkpoint()
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    (file,) = kernel.state(tmp_path)["files"].values()
    assert file["stats"] is None
    assert lakelog.open(tmp_path).snapshot().files(stats=True).collect()["numRecords"].sum() == 1


def test_a_checkpoint_needs_the_commit_of_its_version(kernel: Kernel, tmp_path: Path) -> None:
    made = Handmade(tmp_path).start(add("a"))
    made.commit(1, add("b"))
    made.table.checkpoint()
    made.forget(0)
    assert len(kernel.state(tmp_path)["files"]) == 2
    made.forget(1)
    with pytest.raises(Py4JJavaError, match="Missing delta file for version 1"):
        kernel.state(tmp_path)
    assert made.table.snapshot().num_files() == 2


def test_a_file_name_with_a_colon_cannot_be_opened_on_local_disk(
    kernel: Kernel, tmp_path: Path
) -> None:
    table = create(tmp_path, ID)
    with table.transaction() as tx:
        tx.add(**data_file(str(tmp_path), "x/a:b.parquet", ids(1)))
    assert list(kernel.state(tmp_path)["files"]) == [("x/a:b.parquet", None)]
    with pytest.raises(Py4JJavaError, match="Relative path in absolute URI"):
        kernel.rows(tmp_path)
    assert table.snapshot().scan().collect()["id"].to_list() == [1]
