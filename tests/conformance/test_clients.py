"""`lakelog compat` reports what the installed releases of the Python clients do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.dialects.clients import compatibility
from lakelog.dialects.delta.clients import CLIENTS
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.registry import named
from lakelog.model.metadata import Metadata, Protocol

RULES = named("delta").protocol_rules
SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}


def table_with(feature: str, root: Path) -> str:
    """A table of two rows that lists a feature, and those that it requires, and uses none."""
    (root / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), root / "a.parquet")
    names = sorted(RULES.with_required([feature]))
    readers = [name for name in names if RULES.features[name].reader]
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if readers else 1,
        "minWriterVersion": 7,
        "writerFeatures": names,
    }
    if readers:
        protocol["readerFeatures"] = readers
    metadata = {
        "id": "i",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": {},
    }
    add = {
        "path": "a.parquet",
        "partitionValues": {},
        "size": (root / "a.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":2}',
    }
    actions = ({"protocol": protocol}, {"metaData": metadata}, {"add": add})
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    (root / "_delta_log" / f"{0:020}.json").write_text(text)
    return os.fspath(root)


def succeeds(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # noqa: BLE001 - any error of a client is a refusal
        return False
    return True


def assert_reported(client: str, path: str, *, reads: bool, writes: bool) -> None:
    """Assert that the compatibility report agrees with what a client did."""
    first, second, _ = (Path(path) / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    listed = json.loads(first)["protocol"]
    protocol = Protocol(
        listed["minReaderVersion"],
        listed["minWriterVersion"],
        tuple(listed["readerFeatures"]) if "readerFeatures" in listed else None,
        tuple(listed["writerFeatures"]),
    )
    metadata = Metadata.from_row({"schemaString": json.loads(second)["metaData"]["schemaString"]})
    # Not by lakelog.open, which refuses some of these features.
    table = TableConfiguration(named("delta"), protocol, metadata)
    shown = compatibility(table).filter(pl.col("client").str.starts_with(client))
    assert shown.select("reads", "writes").rows() == [(reads, writes and reads)], (client, path)


@pytest.mark.reference
@pytest.mark.parametrize("feature", sorted(RULES.features))
def test_python_clients_open_the_tables_that_compat_reports(feature: str, tmp_path: Path) -> None:
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    path = table_with(feature, tmp_path / "t")

    def read() -> None:
        query = QueryBuilder().register("t", DeltaTable(path)).execute("select * from t")
        assert pa.table(query.read_all()).num_rows == 2

    def read_by_polars() -> None:
        assert pl.scan_delta(path).collect().height == 2

    reads, polars_reads = succeeds(read), succeeds(read_by_polars)
    writes = succeeds(lambda: write_deltalake(path, pa.table({"id": [3]}), mode="append"))
    assert_reported("deltalake", path, reads=reads, writes=writes)
    assert_reported("Polars", path, reads=polars_reads, writes=writes)


def test_every_feature_of_a_client_is_one_of_the_dialect() -> None:
    for client in CLIENTS:
        assert {*client.reads, *(client.writes or {})} <= set(RULES.features), client.name
        assert client.source == "tested" or client.source.startswith("https://")


def test_release_is_the_first_that_supports_every_feature(tmp_path: Path) -> None:
    table = lakelog.create(
        tmp_path / "t",
        {"id": pl.Int64},
        configuration={"delta.enableDeletionVectors": "true", "delta.checkpointPolicy": "v2"},
    )
    found = {row["client"]: row for row in table.compatibility().iter_rows(named=True)}
    spark = found["Delta Lake on Spark"]
    assert (spark["reads"], spark["writes"], spark["release"]) == (True, True, "3.0")
    duck = found["DuckDB (extension delta)"]
    assert (duck["reads"], duck["writes"]) == (None, None)
    assert duck["unknown"] == ["appendOnly", "deletionVectors", "invariants", "v2Checkpoint"]
    athena = found["Amazon Athena"]
    assert (athena["reads"], athena["writes"]) == (None, False)
    polars = next(row for name, row in found.items() if name.startswith("Polars"))
    assert polars["unsupported_to_read"] == ["v2Checkpoint"]


def test_every_client_reads_a_table_without_features_of_readers(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64})
    assert table.compatibility()["reads"].all()


def test_indextables_table_is_read_by_its_reference_implementation(tmp_path: Path) -> None:
    plain = lakelog.create(tmp_path / "plain", {"id": pl.Int64}, format="indextables")
    assert plain.compatibility()["reads"].to_list() == [True]
