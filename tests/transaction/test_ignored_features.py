"""Properties whose feature the protocol does not support are ignored until a change asks for it.

deltalake writes such metadata: ``set_table_properties`` does not upgrade the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import polars as pl
import pytest

import lakelog
from lakelog import Table
from lakelog.errors import (
    ConstraintViolationError,
    InvalidPropertyError,
    InvalidTransactionError,
    UnsupportedFeatureError,
)

ROWS = pl.DataFrame({"id": [1, 2]})
WIDER = pl.DataFrame({"id": [3], "q": [30]})

CHANGES: dict[str, Callable[[Table], object]] = {
    "comment": lambda t: t.alter.set_comment("text"),
    "add column": lambda t: t.alter.add_columns({"q": pl.Int64}),
    "append": lambda t: t.append(WIDER, schema_mode="merge"),
    "upsert": lambda t: t.upsert(WIDER, on="id", schema_mode="merge"),
    "other property": lambda t: t.alter.set_properties({"delta.enableDeletionVectors": "true"}),
    "other feature": lambda t: t.alter.upgrade(["domainMetadata"]),
}


def ignoring(where: Path, key: str, value: str) -> Table:
    """A table of deltalake with rows, whose protocol lacks the property's feature."""
    deltalake.write_deltalake(where, ROWS)
    delta = deltalake.DeltaTable(where)
    delta.alter.set_table_properties({key: value}, raise_if_not_exists=False)
    assert delta.protocol().min_writer_version == 2
    return lakelog.open(where, upkeep=False)


def edited(where: Path, key: str, value: str) -> Table:
    """A table with rows, of which the protocol ignores a property and the physical names."""
    table = lakelog.create(where, ROWS.schema, upkeep=False)
    path = where / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    (metadata,) = (a["metaData"] for a in actions if "metaData" in a)
    metadata["configuration"][key] = value
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] |= {"delta.columnMapping.physicalName": "col-1"}
    metadata["schemaString"] = json.dumps(schema)
    path.write_text("".join(json.dumps(a) + "\n" for a in actions), "utf-8")
    table = lakelog.open(where, upkeep=False)
    table.append(ROWS)
    return table


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_changes_do_not_enable_row_tracking(
    tmp_path: Path, change: Callable[[Table], object]
) -> None:
    table = ignoring(tmp_path, "delta.enableRowTracking", "true")
    change(table)
    assert not table.snapshot().table_configuration.supports("rowTracking")
    table.update({"id": "id + 10"}, "id = 1")
    assert table.to_polars()["id"].sort().to_list()[0] == 2


def test_properties_of_column_mapping_can_be_removed_until_it_is_supported(tmp_path: Path) -> None:
    greatest = "delta.columnMapping.maxColumnId"
    table = ignoring(tmp_path, greatest, "7")
    with pytest.raises(InvalidPropertyError, match="greatest column id"):
        table.alter.set_properties({greatest: "8"})
    table.alter.unset_properties([greatest])
    assert greatest not in table.snapshot().metadata.configuration
    table.alter.upgrade(["columnMapping"])
    table.alter.set_properties({"delta.columnMapping.mode": "name"})
    with pytest.raises(InvalidPropertyError, match="greatest column id"):
        table.alter.unset_properties(["delta.columnMapping.mode", greatest])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_changes_do_not_map_columns(
    tmp_path: Path, change: Callable[[Table], object]
) -> None:
    table = edited(tmp_path, "delta.columnMapping.mode", "name")
    change(table)
    rows = table.to_polars().sort("id")
    assert rows["id"].to_list()[:2] == [1, 2]
    if rows.height == 3:
        assert rows["q"].to_list() == [None, None, 30]


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.alter.upgrade(["columnMapping"]),
        lambda t: t.alter.set_properties({"delta.columnMapping.mode": "name"}),
    ],
)
def test_mapping_that_is_asked_for_keeps_the_names_of_files(
    tmp_path: Path, ask: Callable[[Table], object]
) -> None:
    table = edited(tmp_path, "delta.columnMapping.mode", "name")
    ask(table)
    assert table.snapshot().table_configuration.column_mapping == "name"
    table.alter.rename_column("id", "key")
    table.append(pl.DataFrame({"key": [3]}))
    assert table.to_polars()["key"].sort().to_list() == [1, 2, 3]


def test_mapping_by_id_is_not_enabled_on_a_table_with_files(tmp_path: Path) -> None:
    table = edited(tmp_path, "delta.columnMapping.mode", "id")
    with pytest.raises(lakelog.SchemaEvolutionError, match="mapping mode"):
        table.alter.upgrade(["columnMapping"])
    assert table.to_polars()["id"].to_list() == [1, 2]


def test_row_tracking_that_is_asked_for_needs_row_ids(tmp_path: Path) -> None:
    on = "delta.enableRowTracking"
    table = ignoring(tmp_path, on, "true")
    with pytest.raises(InvalidTransactionError, match="every file has row ids") as error:
        table.alter.upgrade(["rowTracking"])
    assert "to false, which has no effect yet" in str(error.value.hint)
    with pytest.raises(InvalidTransactionError, match="every file has row ids"):
        table.alter.set_properties({on: "true"})
    table.alter.set_properties({on: "false"})
    table.alter.upgrade(["rowTracking"])
    with table.transaction() as tx:
        tx.add(tx.read().collect(), dataChange=False)
    table.alter.set_properties({on: "true"})
    assert table.scan(row_ids=True).collect()["_row_id"].to_list() == [0, 1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.alter.upgrade(["inCommitTimestamp"]),
        lambda t: t.alter.set_properties({"delta.enableInCommitTimestamps": "true"}),
    ],
)
def test_first_in_commit_timestamp_that_is_asked_for_is_recorded(
    tmp_path: Path, ask: Callable[[Table], object]
) -> None:
    table = edited(tmp_path, "delta.enableInCommitTimestamps", "true")
    ask(table)
    configuration = table.snapshot().metadata.configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "2"
    table.append(ROWS)
    assert table.history()["version"].to_list() == [3, 2, 1, 0]


def test_constraints_are_enforced_only_after_the_rows_were_checked(tmp_path: Path) -> None:
    table = ignoring(tmp_path, "delta.constraints.large", "id > 1")
    table.append(WIDER, schema_mode="merge")
    assert not table.snapshot().table_configuration.supports("checkConstraints")
    with pytest.raises(UnsupportedFeatureError, match="CHECK constraint") as error:
        table.alter.upgrade(["checkConstraints"])
    assert "dropped first" in str(error.value.hint)
    with pytest.raises(ConstraintViolationError, match="large"):
        table.alter.add_constraint("small", "id < 100")
    table.delete("id = 1")
    table.alter.add_constraint("small", "id < 100")
    for row in (0, 100):
        with pytest.raises(ConstraintViolationError):
            table.append(pl.DataFrame({"id": [row]}))


def test_change_feed_that_is_ignored_does_not_concern_a_merge_with_new_columns(
    tmp_path: Path,
) -> None:
    table = edited(tmp_path, "delta.enableChangeDataFeed", "true")
    table.upsert(pl.DataFrame({"id": [1], "q": [10]}), on="id", schema_mode="merge")
    assert table.to_polars().sort("id").rows() == [(1, 10), (2, None)]
