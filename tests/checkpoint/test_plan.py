"""The plan of a checkpoint, by protocol, properties and size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.checkpoint.plan import (
    SIDECAR_ACTIONS,
    CheckpointOptions,
    choose_layout,
    count_parts,
    plan_checkpoint,
)
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.log_content import PART_ACTIONS, CheckpointPlan
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import InvalidInputError, UnsupportedFeatureError
from lakelog.model.metadata import Protocol
from tests import handmade
from tests.handmade import Handmade
from tests.transaction import builders

V2 = Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint",))
POLICY = {"delta.checkpointPolicy": "v2"}
FORMAT = "spark.indextables.checkpoint.format"
MAX_FILE = "spark.indextables.checkpoint.maxFileSize"
NO_PARTS = {"spark.indextables.checkpoint.multiPart.enabled": "false"}


def delta(protocol: Protocol = builders.V12, **properties: str) -> TableConfiguration:
    return TableConfiguration(DELTA, protocol, builders.table(properties=dict(properties)))


def indextables(version: int = 2, *features: str, **properties: str) -> TableConfiguration:
    protocol = Protocol(version, version, features or None, features or None)
    return TableConfiguration(INDEXTABLES, protocol, builders.table(properties=dict(properties)))


def plan(table: TableConfiguration, layout: str = "auto", **more: Any) -> CheckpointPlan:
    options = CheckpointOptions.of(table.metadata.configuration, table.dialect)
    return plan_checkpoint(
        table,
        "t",
        7,
        replace(options, **more.pop("options", {})),
        layout=layout,
        num_files=10,
        **more,
    )


@pytest.mark.parametrize(
    ("table", "others", "expected"),
    [
        (delta(), 2, "classic"),
        (delta(V2), 2, "classic"),
        (delta(V2, **POLICY), 2, "v2-json"),
        (delta(V2, **POLICY), 20_000, "v2-parquet"),
        (delta(builders.V12, **POLICY), 2, "classic"),
        (indextables(), 2, "json"),
        (indextables(4), 2, "json"),
        (indextables(3, "columnarCommits"), 2, "flattened"),
        (indextables(2, **{FORMAT: "parquet"}), 2, "flattened"),
        (indextables(2, **{FORMAT: "PARQUET"}), 2, "flattened"),
        (indextables(3, "columnarCommits", **{FORMAT: "json"}), 2, "json"),
    ],
)
def test_auto_follows_the_protocol_and_the_policy(
    table: TableConfiguration, others: int, expected: str
) -> None:
    assert plan(table, num_others=others).layout == expected


@pytest.mark.parametrize(
    ("table", "bounded", "expected"),
    [
        (indextables(3), False, "json-multipart"),
        (indextables(3), True, "flattened"),
        (indextables(3, **NO_PARTS), False, "flattened"),
        (indextables(2), False, "flattened"),
        (indextables(4), False, "flattened"),
    ],
)
def test_large_indextables_checkpoint_has_a_layout_that_its_readers_support(
    table: TableConfiguration, bounded: bool, expected: str
) -> None:
    options = CheckpointOptions.of(table.metadata.configuration, table.dialect)
    assert choose_layout(table, "t", options, PART_ACTIONS - 3, 2, bounded=bounded) == "json"
    assert choose_layout(table, "t", options, PART_ACTIONS - 2, 2, bounded=bounded) == expected
    limit = 1 << 30 if bounded else None
    made = plan_checkpoint(table, "t", 7, options, num_files=PART_ACTIONS, memory_limit=limit)
    assert made.layout == expected


@pytest.mark.parametrize(
    ("table", "bounded", "expected"),
    [
        (indextables(3, **{FORMAT: "json"}), True, "json-multipart"),
        (indextables(3, "columnarCommits", **{FORMAT: "json"}), False, "json-multipart"),
        (indextables(2, **{FORMAT: "json"}), False, "json"),
        (indextables(3, **{FORMAT: "parquet"}), False, "flattened"),
    ],
)
def test_configured_format_of_a_large_indextables_table_is_used(
    table: TableConfiguration, bounded: bool, expected: str
) -> None:
    options = CheckpointOptions.of(table.metadata.configuration, table.dialect)
    assert choose_layout(table, "t", options, PART_ACTIONS, 2, bounded=bounded) == expected


@pytest.mark.parametrize(
    ("table", "files", "expected", "parts"),
    [
        (delta(), 524_288, "classic", 1),
        (delta(), 524_289, "multipart", 2),
        (delta(builders.V12, **{MAX_FILE: "25600"}), 1_000, "multipart", 10),
        (delta(V2, **{MAX_FILE: "25600"}), 1_000, "v2-json", 10),
        (delta(V2, **{MAX_FILE: "25600"}), 100, "classic", 1),
        (delta(builders.V12, **{MAX_FILE: "25600"}, **NO_PARTS), 1_000, "classic", 1),
        (
            delta(builders.V12, **{"spark.indextables.checkpoint.actionsPerPart": "400"}),
            1_000,
            "multipart",
            3,
        ),
    ],
)
def test_auto_writes_several_parts_if_one_would_exceed_the_size_limit(
    table: TableConfiguration, files: int, expected: str, parts: int
) -> None:
    options = CheckpointOptions.of(table.metadata.configuration, table.dialect)
    made = plan_checkpoint(table, "t", 7, options, num_files=files)
    assert (made.layout, made.parts) == (expected, parts)


@pytest.mark.parametrize("layout", ["v2", "v2-json", "v2-parquet"])
def test_v2_without_the_feature_is_refused_with_a_hint(layout: str) -> None:
    with pytest.raises(InvalidInputError, match="v2Checkpoint") as refused:
        plan(delta(), layout)
    assert "delta.checkpointPolicy" in str(refused.value.hint)


def test_parts_are_refused_with_the_v2_feature() -> None:
    with pytest.raises(InvalidInputError, match="forbids") as refused:
        plan(delta(V2), "multipart")
    assert refused.value.expected == "classic, v2-json, v2-parquet"
    assert plan(delta(), "multipart").parts == 2


def test_json_parts_need_a_protocol_that_supports_them() -> None:
    with pytest.raises(InvalidInputError, match="manifest") as refused:
        plan(indextables(2), "json-multipart")
    assert refused.value.hint is not None
    assert plan(indextables(3), "json-multipart").part_actions == PART_ACTIONS


@pytest.mark.parametrize("layout", ["", "parquet", "avro-state", "json"])
def test_layout_that_delta_does_not_have_is_refused_by_name(layout: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        plan(delta(), layout)
    assert refused.value.found == layout
    assert "classic" in str(refused.value.expected)


def test_unknown_writer_feature_is_refused_by_name() -> None:
    table = delta(Protocol(1, 7, None, ("appendOnly", "featureOfTomorrow")))
    with pytest.raises(UnsupportedFeatureError) as refused:
        plan(table)
    assert refused.value.found == "featureOfTomorrow"


def test_no_file_of_the_log_is_written_under_a_newer_writer_version(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.commit(0, handmade.protocol(1, 8), handmade.metadata())
    log.commit(1, handmade.add("a"))
    table, before = lakelog.open(str(tmp_path / "t")), sorted(log.log.iterdir())
    for write in (table.checkpoint, table.write_checksum, lambda: table.compact_log(0, 1)):
        with pytest.raises(UnsupportedFeatureError) as refused:
            write()
        assert refused.value.found == "minWriterVersion 8"
    assert sorted(log.log.iterdir()) == before


@pytest.mark.parametrize(
    ("layout", "files", "options", "parts"),
    [
        ("classic", 10**7, {}, 1),
        ("multipart", 10, {}, 2),
        ("multipart", 10**6, {"part_actions": 300_000}, 4),
        ("multipart", 10**6, {"max_file_bytes": 25_600_000}, 10),
        ("v2-json", 10, {}, 1),
        ("v2-json", 10**6, {}, 10**6 // SIDECAR_ACTIONS),
        ("v2-parquet", 100, {"part_actions": 30}, 4),
        ("json", 10**6, {}, 1),
        ("flattened", 10**5, {}, 1),
        ("flattened", 10**6, {"max_file_bytes": 25_600_000}, 10),
        ("flattened", 10**9, {"max_file_bytes": 1}, 10_000),
    ],
)
def test_parts_follow_the_size_and_the_options(
    layout: str, files: int, options: dict[str, Any], parts: int
) -> None:
    assert count_parts(layout, replace(CheckpointOptions(), **options), files) == parts


def test_memory_limit_makes_row_groups_smaller() -> None:
    free = plan(delta()).row_group_rows
    assert plan(delta(), memory_limit=1 << 40).row_group_rows == free
    tight = plan(delta(), memory_limit=256 << 20).row_group_rows
    assert tight < free
    # Parts that are filled by hash are all open at the same time.
    parts = plan(delta(), "multipart", memory_limit=256 << 20).row_group_rows
    assert 2_000 <= parts <= tight // 2 + 1


def test_plan_has_the_settings_of_the_table() -> None:
    features = ("columnMapping", "deletionVectors")
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.checkpoint.writeStatsAsJson": "false",
        "spark.indextables.checkpoint.compression": "snappy",
    }
    table = TableConfiguration(
        DELTA,
        Protocol(3, 7, features, features),
        builders.table(by=["name"], properties=properties),
    )
    found = plan(table, now_ms=5)
    assert (found.version, found.created_ms, found.compression) == (7, 5, "snappy")
    assert (found.mapping, found.deletion_vectors) == ("name", True)
    assert (found.stats_as_json, found.stats_as_struct) == (False, True)
    assert found.partition_columns == ("name",)
    assert [field.name for field in found.schema.fields] == ["id", "name"]


def test_table_with_an_invalid_schema_gets_no_typed_copies() -> None:
    table = TableConfiguration(DELTA, builders.V12, builders.table(schema_string="{"))
    found = plan(table)
    assert not found.stats_as_struct
    assert not found.schema.fields
