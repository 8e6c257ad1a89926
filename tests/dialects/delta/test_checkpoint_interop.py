"""deltalake reads the checkpoints that lakelog writes, of every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import lakelog

pytestmark = pytest.mark.reference

SCHEMA = {"id": pl.Int64, "at": pl.Datetime("us", "UTC"), "d": pl.Decimal(12, 2), "p": pl.Date}
COUNT = 300


def file(number: int) -> dict[str, Any]:
    day = f"2024-01-0{number % 9 + 1}"
    low = {"id": number, "at": "2024-01-01T00:00:00.001Z", "d": number / 4}
    stats = {"numRecords": 3, "minValues": low, "maxValues": low, "nullCount": {"id": 0}}
    return {
        "path": f"p={day}/{number} %.parquet",
        "partitionValues": {"p": day if number else None},
        "size": number,
        "modificationTime": number,
        "stats": json.dumps(stats),
        "tags": {"t": "x"} if number % 2 else {},
    }


@pytest.mark.parametrize("typed", ["false", "true"])
@pytest.mark.parametrize("compression", ["zstd", "snappy"])
@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_deltalake_reads_the_same_files(
    tmp_path: Path, layout: str, compression: str, typed: str
) -> None:
    configuration = {
        "delta.checkpointPolicy": "v2" if layout.startswith("v2") else "classic",
        "delta.checkpoint.writeStatsAsStruct": typed,
        "spark.indextables.checkpoint.compression": compression,
        "spark.indextables.checkpoint.actionsPerPart": "100",
    }
    table = lakelog.create(tmp_path, SCHEMA, ["p"], configuration=configuration, upkeep=False)
    files = [file(number) for number in range(COUNT)]
    with table.transaction(app_id="a", app_version=7) as tx:
        for each in [*files, file(COUNT)]:
            tx.add(**each)
    with table.transaction() as tx:
        tx.remove(path=file(COUNT)["path"])
    assert (len(table.checkpoint(layout=layout).paths) > 3) == (layout != "classic")
    for version in range(2):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()

    theirs = DeltaTable(str(tmp_path))
    assert theirs.version() == 2
    assert theirs.metadata().configuration == configuration
    assert theirs.transaction_version("a") == 7
    found = pl.DataFrame(pa.table(theirs.get_add_actions(flatten=True))).sort("size_bytes")
    assert found["size_bytes"].to_list() == list(range(COUNT))
    assert found["min.id"].to_list() == list(range(COUNT))
    assert found["num_records"].to_list() == [3] * COUNT
    assert found["partition.p"].null_count() == 1
    if typed == "true":
        assert found["min.d"].cast(pl.Float64).to_list() == [n / 4 for n in range(COUNT)]
    assert sorted(found["path"].to_list()) == sorted(
        each["path"].replace(" ", "%20").replace("%.", "%25.") for each in files
    )
