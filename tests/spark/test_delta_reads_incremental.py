"""Delta Lake on Spark reads chains of incremental V2 checkpoints, with no other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from tests.spark.reference import assert_same_state

pytestmark = pytest.mark.reference


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["v2-json", "v2-parquet"])
def test_spark_reads_each_checkpoint_of_a_chain(delta: Any, tmp_path: Path, layout: str) -> None:
    path = str(tmp_path / "table")
    configuration = {
        "delta.checkpointPolicy": "v2",
        "spark.indextables.checkpoint.enabled": "false",
        "spark.indextables.checkpoint.actionsPerPart": "300",
    }
    table = lakelog.create(path, {"id": pl.Int64}, configuration=configuration)
    base = [f"part-{n:05d}.parquet" for n in range(1_000)]
    with table.transaction() as tx:
        tx.add(pl.DataFrame({"path": base, "size": 7, "modificationTime": 1}))
    kept = [table.checkpoint(layout=layout).reused_files]
    for step in range(3):
        with table.transaction() as tx:
            for n in range(5):
                tx.add(path=f"new-{step}-{n}.parquet", size=n, modificationTime=step)
        if step == 1:
            with table.transaction() as tx:
                tx.remove(path=base[3], size=7, partitionValues={})
                tx.remove(path="new-0-0.parquet", size=0, partitionValues={})
        if step == 2:
            with table.transaction() as tx:
                tx.add(path=base[3], size=8, modificationTime=9)
        report = table.checkpoint(layout=layout)
        kept.append(report.reused_files)
        # Everything that this checkpoint does not contain is deleted.
        log = Path(path, "_delta_log")
        for file in log.glob("*.json"):
            if file.name[:20].isdigit() and int(file.name[:20]) < report.version:
                file.unlink(missing_ok=".checkpoint" in file.name)
        delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        found = assert_same_state(delta, path)
        assert found["version"] == report.version
        assert len(found["files"]) == table.snapshot().num_files()
    assert any(kept), "no sidecar was ever kept"
