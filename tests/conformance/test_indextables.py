"""Every IndexTables log of the corpus: the latest state, and each existing state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lakelog
from tests.conformance.tables import each, indextables
from tests.conftest import find_corpus
from tests.model.compare import rows_of

pytestmark = pytest.mark.corpus

TABLES = indextables()


def _path(name: str) -> Path:
    root = find_corpus()
    assert root is not None
    return root / "indextables" / name


def _file_rows(snapshot: Any) -> list[tuple[Any, ...]]:
    columns = ("path", "size", "numRecords", "partitionValues")
    rows = rows_of(snapshot.files().select(columns))
    return sorted(
        (r["path"], r["size"], r["numRecords"], sorted((r["partitionValues"] or {}).items()))
        for r in rows
    )


def _expected_rows(state: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (f["path"], f["size"], f["numRecords"], sorted(f["partitionValues"].items()))
        for f in state["activeFiles"]
    )


@each(TABLES)
def test_latest_snapshot_has_every_fact_of_the_manifest(name: str) -> None:
    expected = TABLES[name]["expected"]
    table = lakelog.open(_path(name))
    snapshot = table.snapshot()
    assert table.format == "indextables"
    assert snapshot.version == expected["latestVersion"]
    assert snapshot.num_files() == expected["activeFileCount"]
    assert snapshot.total_size() == expected["totalBytes"]
    files = snapshot.files().collect()
    assert sorted(files["path"]) == sorted(expected["activeFiles"])
    assert files["numRecords"].sum() == expected["totalRecords"]
    assert snapshot.protocol.min_reader_version == expected["protocol"]["minReaderVersion"]
    assert snapshot.protocol.min_writer_version == expected["protocol"]["minWriterVersion"]
    assert snapshot.protocol.reader_features is None
    assert snapshot.metadata.id == expected["tableId"]
    assert list(snapshot.metadata.partition_columns) == expected["partitionColumns"]
    assert snapshot.metadata.schema_string == expected["schemaString"]


@each(TABLES)
def test_every_state_on_disk_is_reached_by_time_travel(name: str) -> None:
    table, expected = lakelog.open(_path(name)), TABLES[name]["expected"]
    for state in TABLES[name]["states"].values():
        if state["stateVersion"] == 0:
            continue  # written late by a purge; version 0 is the JSON commit
        snapshot = table.snapshot(version=state["stateVersion"])
        assert _file_rows(snapshot) == _expected_rows(state)
        assert snapshot.total_size() == state["totalBytes"]
        found = (snapshot.metadata.id, snapshot.metadata.schema_string)
        assert found == (expected["tableId"], expected["schemaString"])
        assert snapshot.protocol.min_reader_version == expected["protocol"]["minReaderVersion"]


@each(TABLES)
def test_updating_version_by_version_gives_every_state(name: str) -> None:
    states = {s["stateVersion"]: s for s in TABLES[name]["states"].values()}
    states.pop(0, None)
    versions = sorted(states)
    snapshot = lakelog.open(_path(name)).snapshot(version=versions[0])
    for version in versions[1:]:
        snapshot = snapshot.update(version=version)
        assert snapshot.version == version
        assert _file_rows(snapshot) == _expected_rows(states[version])


@each(TABLES)
def test_version_without_a_file_is_refused(name: str) -> None:
    table = lakelog.open(_path(name))
    with pytest.raises(lakelog.LakelogError) as refused:
        table.snapshot(version=TABLES[name]["expected"]["latestVersion"] + 1)
    assert refused.value.kind == "version_not_found"
