"""Spark reads the output of `write_parquet` directly: every column, and maps as maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.model import contract

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "day", "type": "date", "nullable": True, "metadata": {}},
        ],
    }
)


def write_table(root: Path, commits: int) -> None:
    """A Delta log of `commits` commits that each add a file and remove the one before."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    start: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "5f2c0d2e-0000-4000-8000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": SCHEMA,
                "partitionColumns": ["day"],
                "configuration": {"owner": "an owner"},
            }
        },
    ]
    for version in range(commits):
        actions: list[dict[str, Any]] = [] if version else [*start]
        day = f"2026-01-{version % 28 + 1:02}"
        actions.append(
            {
                "add": {
                    "path": f"day={day}/{version:05}.parquet",
                    "partitionValues": {"day": None if version == 3 else day},
                    "size": version,
                    "modificationTime": version,
                    "dataChange": True,
                    "tags": {"n": str(version)},
                }
            }
        )
        if version % 2:
            removed_path = f"day=2026-01-{(version - 1) % 28 + 1:02}/{version - 1:05}.parquet"
            actions.append(
                {"remove": {"path": removed_path, "deletionTimestamp": version, "dataChange": True}}
            )
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (log / f"{version:020}.json").write_text(text)


def test_spark_reads_every_part_with_maps_as_maps(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.types import StructType

    monkeypatch.setattr("lakelog.log.export._GROUP_ROWS", 8)

    write_table(tmp_path / "table", 40)
    snapshot = lakelog.open(str(tmp_path / "table")).snapshot()
    snapshot.write_parquet(str(tmp_path / "state"), max_part_bytes=1)
    assert len(list((tmp_path / "state").glob("*.parquet"))) > 1

    frame = spark.read.parquet(str(tmp_path / "state"))
    expected = StructType.fromJson(contract.to_json(contract.load("actions")))
    assert {f.name: f.dataType for f in frame.schema} == {f.name: f.dataType for f in expected}

    rows = [row.asDict() for row in frame.collect()]
    adds = {row["path"]: row for row in rows if row["actionType"] == "add"}
    ours = {row["path"]: row for row in snapshot.files().collect().to_dicts()}
    assert set(adds) == set(ours)
    for path, row in adds.items():
        version = int(path[-13:-8])
        day = None if version == 3 else path[4:14]
        assert row["partitionValues"] == {"day": day}
        assert row["tags"] == {"n": str(version)}
        assert row["size"] == version
        assert row["version"] == version
    kinds = [row["actionType"] for row in rows]
    assert kinds.count("remove") == 20
    assert kinds.count("protocol") == kinds.count("metaData") == 1
    (metadata,) = (row for row in rows if row["actionType"] == "metaData")
    assert metadata["configuration"] == {"owner": "an owner"}
    assert metadata["partitionColumns"] == ["day"]
