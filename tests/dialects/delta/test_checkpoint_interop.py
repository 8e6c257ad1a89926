"""deltalake reads the checkpoints that lakelog writes, of every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakelog.dialects.delta.dialect import DIALECT
from lakelog.dialects.log_content import CheckpointPlan
from lakelog.model import actions, contract
from lakelog.storage import open_store

pytestmark = pytest.mark.reference

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in (("id", "long"), ("at", "timestamp"), ("d", "decimal(12,2)"))
        ]
        + [{"name": "p", "type": "date", "nullable": True, "metadata": {}}],
    }
)
COUNT = 300


def stats(number: int) -> str:
    low = {"id": number, "at": "2024-01-01T00:00:00.001Z", "d": number / 4}
    return json.dumps({"numRecords": 3, "minValues": low, "maxValues": low, "nullCount": {"id": 0}})


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("compression", ["zstd", "snappy"])
@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_deltalake_reads_the_same_files(
    tmp_path: Path, layout: str, compression: str, typed: bool
) -> None:
    features = ["v2Checkpoint"] if layout.startswith("v2") else []
    meta: list[dict[str, Any]] = [
        {
            "actionType": "protocol",
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        },
        {
            "actionType": "metaData",
            "metadataId": "t",
            "formatProvider": "parquet",
            "formatOptions": {},
            "schemaString": SCHEMA,
            "partitionColumns": ["p"],
            "configuration": {"k": "v"},
        },
        {"actionType": "txn", "appId": "a", "txnVersion": 7},
    ]
    files: list[dict[str, Any]] = [
        {
            "actionType": "add",
            "path": f"p=2024-01-0{n % 9 + 1}/{n} %.parquet",
            "partitionValues": {"p": f"2024-01-0{n % 9 + 1}" if n else None},
            "size": n,
            "modificationTime": n,
            "stats": stats(n),
            "tags": {"t": "x"} if n % 2 else None,
        }
        for n in range(COUNT)
    ]
    removed = [{"actionType": "remove", "path": "removed", "deletionTimestamp": 10**15}]
    store = open_store(str(tmp_path))
    plan = CheckpointPlan(
        5,
        layout,
        3 if layout == "multipart" else 1,
        contract.parse_schema(SCHEMA),
        ("p",),
        stats_as_struct=typed,
        compression=compression,
        row_group_rows=64,
        part_actions=100,
    )
    writer = DIALECT.checkpoint_writer(store, plan)
    writer.write_meta(pl.DataFrame(meta, schema=actions.schema()))
    for rows in (files, removed):
        writer.write_files(pl.DataFrame(rows, schema=actions.schema()))
    staged = writer.finish()
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)
    assert staged.pointer is not None
    store.put(*staged.pointer)
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE"}}
    store.put(DIALECT.commit_path(5), (json.dumps(info) + "\n").encode())

    table = DeltaTable(str(tmp_path))
    assert table.version() == 5
    assert table.metadata().configuration == {"k": "v"}
    assert table.transaction_version("a") == 7
    found = pl.DataFrame(pa.table(table.get_add_actions(flatten=True))).sort("size_bytes")
    assert found["size_bytes"].to_list() == list(range(COUNT))
    assert found["min.id"].to_list() == list(range(COUNT))
    assert found["num_records"].to_list() == [3] * COUNT
    assert found["partition.p"].null_count() == 1
    if typed:
        assert found["min.d"].cast(pl.Float64).to_list() == [n / 4 for n in range(COUNT)]
    assert sorted(found["path"].to_list()) == sorted(
        file["path"].replace(" ", "%20").replace("%.", "%25.") for file in files
    )
