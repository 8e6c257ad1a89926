"""Log compactions and version checksums that lakelog writes, used by Delta Lake on Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from tests.spark.data_files import data_file, ids
from tests.spark.reference import assert_same_state, delta_log

pytestmark = pytest.mark.reference


def _table(path: str, **configuration: str) -> lakelog.Table:
    """Five commits: files are added, removed and added again; a domain and an identifier."""
    table = lakelog.create(
        path, {"id": pl.Int64, "p": pl.String}, ["p"], configuration=configuration
    )
    for number in range(4):
        with table.transaction(app_id="app", app_version=number) as tx:
            name = f"p=a b/part %{number} ü.parquet"
            tx.add(**data_file(path, name, ids(number), {"p": "a b"}))
            if number == 2:
                removed = table.snapshot().files().filter(pl.col("path").str.contains("%1"))
                tx.remove(removed)
    return table


def test_delta_reads_a_table_over_a_log_compaction(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = _table(path)
    before = assert_same_state(delta, path)
    report = table.compact_log(1, 3)
    delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    after = assert_same_state(delta, path)
    assert after == before
    segment = delta_log(delta, path).unsafeVolatileSnapshot().logSegment()
    names = [os.path.basename(d.getPath().toString()) for d in _each(segment.deltas())]
    assert os.path.basename(report.path) in names
    assert delta.read.format("delta").load(path).count() == 3


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(n) for n in range(sequence.size())]


def test_deltalake_ignores_a_log_compaction(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "t")
    table = _table(path)
    before = sorted(deltalake.DeltaTable(path).file_uris())
    table.compact_log(0, 4)
    table.write_checksum()
    assert sorted(deltalake.DeltaTable(path).file_uris()) == before


@pytest.mark.parametrize("timed", [False, True])
def test_delta_reads_and_validates_a_checksum(timed: bool, delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    properties = {"delta.enableDeletionVectors": "true"}
    if timed:
        properties["delta.enableInCommitTimestamps"] = "true"
    table = _table(path, **properties)
    report = table.write_checksum()
    delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    snapshot = delta_log(delta, path).unsafeVolatileSnapshot()
    read = snapshot.checksumOpt().get()
    assert read.numFiles() == report.body["numFiles"]
    assert read.metadata().id() == report.body["metadata"]["id"]
    scala = delta._jvm.scala.collection.immutable
    assert snapshot.validateChecksum(getattr(getattr(scala, "Map$"), "MODULE$").empty())
    assert_same_state(delta, path)
    # Delta's own checksum of the next version is derived from it.
    frame = delta.createDataFrame([(9, "x")], "id long, p string")
    frame.write.format("delta").mode("append").save(path)
    theirs = json.loads(next(Path(path, "_delta_log").glob(f"{5:020d}.crc")).read_bytes())
    assert theirs["numFiles"] == report.body["numFiles"] + 1
    checked = lakelog.open(path).snapshot().version_checksum()
    assert checked is not None
    assert checked["agrees"].all(), checked
