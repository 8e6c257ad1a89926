"""Statistics without a typed copy: of booleans, as delta-rs writes them, and of columns that the
table does not index. A checkpoint of them equals replay, and its text is complete.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog

SCHEMA = {
    "truth": pl.Boolean,
    "i": pl.Int64,
    "deep": pl.Struct(
        {
            "date": pl.Date,
            "double": pl.Float64,
            "money": pl.Decimal(10, 2),
            "instant": pl.Datetime("us", "UTC"),
            "ntz": pl.Datetime("us"),
            "text": pl.String,
        }
    ),
    "bytes": pl.Binary,
}
VALUES = {
    "truth": False,
    "i": 1,
    "deep": {
        "date": "2020-01-01",
        "double": 1.5,
        "money": 2.25,
        "instant": "2020-01-01T00:00:00.000Z",
        "ntz": "2020-01-01T00:00:00.000",
        "text": "a",
    },
}


def physical(struct: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values under physical names."""
    return {
        f.metadata.get("delta.columnMapping.physicalName", f.name): (
            physical(f.type, values[f.name]) if isinstance(values[f.name], dict) else values[f.name]
        )
        for f in struct.fields
        if f.name in values
    }


@pytest.mark.sampled(4, keep=("properties",))
@pytest.mark.parametrize("json_text", [True, False], ids=["text", "typed only"])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.dataSkippingNumIndexedCols": "2"},
        {"delta.dataSkippingNumIndexedCols": "0"},
        {"delta.columnMapping.mode": "name"},
        {"delta.checkpointPolicy": "v2"},
    ],
    ids=lambda p: "".join(p) or "plain",
)
def test_checkpoint_of_statistics_without_a_typed_copy_is_proved(
    tmp_path: Path, properties: dict[str, str], json_text: bool
) -> None:
    given = {**properties, "delta.checkpoint.writeStatsAsJson": str(json_text).lower()}
    table = lakelog.create(tmp_path / "t", SCHEMA, configuration=given)
    values = physical(table.snapshot().schema, VALUES)
    counts = physical(table.snapshot().schema, {"truth": 0, "i": 0, "bytes": 0})
    stats = {"numRecords": 1, "minValues": values, "maxValues": values, "nullCount": counts}
    for number in range(3):
        with table.transaction() as tx:
            tx.add(path=f"{number}", size=1, partitionValues={}, stats=json.dumps(stats))
        report = table.checkpoint()
        assert report.verified
        assert not report.reused
        found = table.verify()
        assert found.is_proved, found
    texts = lakelog.open(tmp_path / "t").snapshot().files().collect()["stats"]
    if json_text:
        assert [json.loads(text) for text in texts] == [stats] * 3
    assert table.repair().is_clean
