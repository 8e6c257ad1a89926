"""A peer engine reads encoded commits: the same files, with any names and values."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.dialects.delta.dialect import DIALECT, commit_path
from lakelog.dialects.log_content import CommitContent
from tests.dialects.commit_rows import content

pytestmark = pytest.mark.reference

VALUES = [
    "plain",
    "a b",
    "100%",
    "%41",
    "é ü 日本",
    "x=y",
    'q"<>#?[]^`{|}',
    "s;t&u+v@w,$!'()*~",
    None,
]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {}},
    ],
}


def write(table: Path, version: int, commit: CommitContent) -> None:
    target = table / commit_path(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(DIALECT.encode(commit))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    root = tmp_path / "t"
    protocol = {"actionType": "protocol", "minReaderVersion": 1, "minWriterVersion": 2}
    metadata = {
        "actionType": "metaData",
        "metadataId": "0b5e8a52-5b5e-4d6c-9a0e-000000000000",
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["p"],
        "createdTime": 1_700_000_000_000,
    }
    write(root, 0, content({"operation": "CREATE TABLE"}, [metadata, protocol], []))
    adds = []
    for number, value in enumerate(VALUES):
        path = f"p={value}/part {number}%20.parquet"
        (root / path).parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), root / path)
        size = (root / path).stat().st_size
        adds.append(
            {
                "actionType": "add",
                "path": path,
                "partitionValues": {"p": value},
                "size": size,
                "modificationTime": 1_700_000_000_000,
                "dataChange": True,
                "stats": json.dumps({"numRecords": 1, "minValues": {"id": number}}),
                "tags": {"odd": 'é"\\\n'},
            }
        )
    write(root, 1, content({"operation": "WRITE", "timestamp": 1_700_000_000_000}, [], adds))
    return root


def test_deltalake_reads_every_row_of_a_table_that_was_encoded_here(table: Path) -> None:
    peer = deltalake.DeltaTable(str(table))
    assert peer.version() == 1
    found = pl.DataFrame(peer.to_pyarrow_table()).sort("id")
    assert found["id"].to_list() == list(range(len(VALUES)))
    assert found["p"].to_list() == VALUES


def test_deltalake_sees_the_same_history_and_forgets_what_was_removed(table: Path) -> None:
    gone = {
        "actionType": "remove",
        "path": "p=a b/part 1%20.parquet",
        "deletionTimestamp": 1_700_000_000_001,
        "partitionValues": {"p": "a b"},
        "extendedFileMetadata": True,
        "size": 1,
    }
    write(table, 2, content({"operation": "DELETE", "txnId": "t"}, [], [gone]))
    peer = deltalake.DeltaTable(str(table))
    assert [entry["operation"] for entry in peer.history()] == ["DELETE", "WRITE", "CREATE TABLE"]
    left = pl.DataFrame(peer.to_pyarrow_table())["p"].to_list()
    assert sorted(left, key=str) == sorted((v for v in VALUES if v != "a b"), key=str)
