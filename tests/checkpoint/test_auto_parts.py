"""Layout ``auto``, and the properties that limit the size of a checkpoint file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import polars as pl
import pytest

import lakelog
from tests.checkpoint import tables

MAX_FILE = "spark.indextables.checkpoint.maxFileSize"
FORMAT = "spark.indextables.checkpoint.format"
NO_CHECKPOINTS = {"spark.indextables.checkpoint.enabled": "false"}
V2_FEATURE = {"delta.feature.v2Checkpoint": "supported"}


def _table(root: Path, properties: dict[str, str], files: int = 200) -> lakelog.Table:
    table = lakelog.create(root, {"id": pl.Int64}, configuration={**NO_CHECKPOINTS, **properties})
    with table.transaction() as tx:
        for number in range(files):
            tx.add(path=f"{number}.parquet", partitionValues={}, size=1, modificationTime=1)
    return table


@pytest.mark.parametrize(
    ("properties", "expected", "parts"),
    [
        ({}, "classic", 1),
        ({MAX_FILE: "12800"}, "multipart", 4),
        ({MAX_FILE: "12800", **V2_FEATURE}, "v2-json", 5),
    ],
    ids=["one-file", "multipart", "v2"],
)
def test_delta_checkpoint_is_split_at_the_size_limit(
    tmp_path: Path, properties: dict[str, str], expected: str, parts: int
) -> None:
    table = _table(tmp_path / "t", properties)
    report = table.checkpoint()
    assert (report.layout, report.parts, report.verified) == (expected, parts, True)
    before = tables.state_of(table.log)
    with table.transaction() as tx:
        tx.remove(path="3.parquet", deletionTimestamp=1 << 50, partitionValues={})
    # Again, above the checkpoint in parts.
    assert table.checkpoint().layout == expected
    fresh = lakelog.open(tmp_path / "t", upkeep=False).snapshot()
    assert fresh.num_files() == 199
    assert tables.state_of(table.log) != before


def test_wide_statistics_are_split_at_the_size_limit(tmp_path: Path) -> None:
    root, limit = tmp_path / "t", 150_000
    properties = {
        **NO_CHECKPOINTS,
        MAX_FILE: str(limit),
        "delta.checkpoint.writeStatsAsStruct": "false",
    }
    table = lakelog.create(root, {"id": pl.Int64}, configuration=properties)
    texts = [Random(number).randbytes(2_500).hex() for number in range(200)]
    with table.transaction() as tx:
        for number, text in enumerate(texts):
            stats = json.dumps({"numRecords": 1, "of another writer": text})
            tx.add(path=f"{number}.parquet", partitionValues={}, size=1, stats=stats)
    # First estimated from the text of the commit, then from the existing checkpoint.
    for times in (3, 1.3):
        report = table.checkpoint()
        assert report.layout == "multipart"
        assert max((root / path).stat().st_size for path in report.paths) < times * limit
        with table.transaction() as tx:
            tx.remove(path=f"{report.version}.parquet", partitionValues={})
    assert lakelog.open(root, upkeep=False).snapshot().num_files() == 198


def test_flattened_checkpoint_is_split_at_the_size_limit(tmp_path: Path) -> None:
    root = tmp_path / "t"
    limit = {**NO_CHECKPOINTS, FORMAT: "parquet", MAX_FILE: "2560"}
    table = lakelog.create(root, {"id": pl.Int64}, format="indextables", configuration=limit)
    with table.transaction() as tx:
        for number in range(40):
            tx.add(path=f"{number}.split", partitionValues={}, size=1, modificationTime=1)
    report = table.checkpoint()
    assert (report.layout, report.verified) == ("flattened", True)
    assert report.parts >= 3
    assert lakelog.open(root, upkeep=False).snapshot().num_files() == 40


def _batch(table: lakelog.Table, number: int) -> None:
    with table.transaction() as tx:
        tx.add(path=f"batch_{number}.split", size=100, modificationTime=1, numRecords=100)


def test_parquet_checkpoint_of_specification_004_exists_after_15_commits(tmp_path: Path) -> None:
    root = tmp_path / "t"
    parquet = {FORMAT: "parquet"}
    table = lakelog.create(
        root, {"id": pl.Int64, "name": pl.String}, format="indextables", configuration=parquet
    )
    assert table.scheduler is not None
    for number in range(15):
        _batch(table, number)
        assert table.scheduler.wait(60)
    name = "00000000000000000010.checkpoint.parquet"
    assert (root / "_transaction_log" / "_checkpoints" / name).exists()
    snapshot = lakelog.open(root, upkeep=False).snapshot()
    assert snapshot.num_files() == 15
    assert any(path.endswith(f"_checkpoints/{name}") for path in snapshot.provenance.files)


def test_parquet_checkpoint_keeps_pointer_and_commits_for_readers_of_json(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = lakelog.create(
        root,
        {"id": pl.Int64},
        format="indextables",
        configuration={**NO_CHECKPOINTS, FORMAT: "parquet"},
    )
    for number in range(12):
        _batch(table, number)
    log = root / "_transaction_log"
    table.checkpoint(layout="json", version=5)
    pointer = (log / "_last_checkpoint").read_bytes()
    report = table.checkpoint()
    assert (report.layout, report.pointer_moved) == ("flattened", False)
    assert (log / "_last_checkpoint").read_bytes() == pointer
    plan = table.cleanup(retention=0, checkpoint_retention=0, force=True)
    planned = plan.files["path"].to_list()
    commits = [f"_transaction_log/{version:020d}.json" for version in range(6, 13)]
    assert not {path for path in planned if path in commits}
