"""Table properties: known keys, valid values, and values that must not be written to a log."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.properties import DELTA_PROPERTIES
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.properties import INDEXTABLES_PROPERTIES, changed
from lakelog.dialects.registry import named
from lakelog.errors import InvalidPropertyError

GOOD = [
    ("delta.appendOnly", "TRUE"),
    ("delta.checkpointInterval", "10"),
    ("delta.checkpointInterval", "+7"),
    ("delta.dataSkippingNumIndexedCols", "-1"),
    ("delta.logRetentionDuration", "interval 30 days"),
    ("delta.deletedFileRetentionDuration", "2 weeks 3 days"),
    ("delta.columnMapping.mode", "Name"),
    ("delta.columnMapping.maxColumnId", "17"),
    ("delta.isolationLevel", "WriteSerializable"),
    ("delta.checkpointPolicy", "v2"),
    ("delta.autoOptimize.autoCompact", "auto"),
    ("delta.parquet.compression.codec", "ZSTD"),
    ("delta.parquet.format.version", "2.12.0"),
    ("delta.universalFormat.enabledFormats", "iceberg,hudi"),
    ("delta.universalFormat.config.iceberg.anything", ""),
    ("delta.constraints.positive", "id > 0"),
    ("delta.feature.DomainMetadata", "supported"),
    ("delta.targetFileSize", "100mb"),
    ("delta.coordinatedCommits.tableConf-preview", '{"a":"b"}'),
    ("owner", None),
    ("DELTA", "x"),
]

BAD = [
    ("delta.appendOnly", "yes"),
    ("delta.appendOnly", None),
    ("delta.checkpointInterval", "0"),
    ("delta.checkpointInterval", "ten"),
    ("delta.checkpointInterval", "2147483648"),
    ("delta.dataSkippingNumIndexedCols", "-2"),
    ("delta.logRetentionDuration", "interval 1 month"),
    ("delta.logRetentionDuration", "interval -1 days"),
    ("delta.logRetentionDuration", ""),
    ("delta.columnMapping.mode", "position"),
    ("delta.isolationLevel", "Snapshot"),
    ("delta.checkpointPolicy", "v3"),
    ("delta.parquet.compression.codec", "zip"),
    ("delta.parquet.format.version", "3.0.0"),
    ("delta.universalFormat.enabledFormats", "iceberg,iceberg"),
    ("delta.constraints.positive", ""),
    ("delta.feature.domainMetadata", "maybe"),
    ("delta.targetFileSize", "large"),
    ("delta.targetFileSize", "9" * 5000),
    ("delta.coordinatedCommits.tableConf-preview", '{"a":1}'),
    ("delta.inCommitTimestampEnablementVersion", "1.5"),
]


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_valid_value_is_accepted(key: str, value: str | None) -> None:
    DELTA.properties.check({key: value})


@pytest.mark.parametrize(("key", "value"), BAD)
def test_invalid_value_raises(key: str, value: str | None) -> None:
    with pytest.raises(InvalidPropertyError, match="invalid value") as refused:
        DELTA.properties.check({key: value})
    assert (refused.value.path, refused.value.found) == (key, value)
    assert refused.value.expected


@pytest.mark.parametrize("key", ["delta.fromTheFuture", "delta.", "delta.liquid.clusteringColumns"])
def test_unknown_delta_key_raises(key: str) -> None:
    with pytest.raises(InvalidPropertyError, match="unknown"):
        DELTA.properties.check({key: "1"})


def test_key_in_the_wrong_letter_case_raises_with_the_correct_spelling() -> None:
    with pytest.raises(InvalidPropertyError, match="letter case") as refused:
        DELTA.properties.check({"delta.appendonly": "true"})
    assert refused.value.expected == "delta.appendOnly"


def test_key_that_is_not_case_sensitive_replaces_another_spelling(tmp_path: Path) -> None:
    key = "spark.indextables.checkpoint.interval"
    other = "spark.indextables.Checkpoint.Interval"
    schema = {"id": pl.Int64}
    with pytest.raises(InvalidPropertyError, match="set twice") as error:
        lakelog.create(tmp_path, schema, format="indextables", configuration={key: "2", other: "3"})
    assert (error.value.path, error.value.found) == (other, "3")
    table = lakelog.create(tmp_path, schema, format="indextables", configuration={key: "2"})
    table.alter.set_properties({other: "3"})
    assert table.snapshot().metadata.configuration == {other: "3"}
    assert table.checkpoint().version == 1
    table.alter.unset_properties([key])
    assert table.snapshot().metadata.configuration == {}


@pytest.mark.parametrize("key", ["delta.minReaderVersion", "delta.minWriterVersion"])
def test_protocol_version_as_a_property_raises(key: str) -> None:
    with pytest.raises(InvalidPropertyError, match="must not be stored") as refused:
        DELTA.properties.check({key: "7"})
    assert "protocol" in str(refused.value.hint)


def test_property_for_an_unknown_feature_raises() -> None:
    with pytest.raises(InvalidPropertyError, match="unknown feature") as refused:
        DELTA.properties.check({"delta.feature.fromTheFuture": "supported"})
    assert refused.value.found == "fromTheFuture"


def test_row_tracking_that_is_on_is_suspended_only_if_it_is_turned_off(tmp_path: Path) -> None:
    on, suspended = "delta.enableRowTracking", "delta.rowTrackingSuspended"
    with pytest.raises(InvalidPropertyError, match="suspended"):
        lakelog.create(tmp_path, {"id": pl.Int64}, configuration={on: "true", suspended: "true"})
    table = lakelog.create(tmp_path, {"id": pl.Int64}, configuration={on: "true"})
    with pytest.raises(InvalidPropertyError, match="suspended"):
        table.alter.set_properties({suspended: "true"})
    table.alter.set_properties({suspended: "true", on: "false"})
    with pytest.raises(InvalidPropertyError, match="suspended"):
        table.alter.set_properties({on: "true"})
    table.alter.set_properties({suspended: "false", on: "true"})
    table.append(pl.DataFrame({"id": [1]}))
    assert table.scan(row_ids=True).collect()["_row_id"].to_list() == [0]


def test_changed_returns_new_and_changed_properties() -> None:
    assert changed({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x"}) == {"b": "2", "c": "3"}


@pytest.mark.parametrize("key", DELTA_PROPERTIES)
def test_every_delta_property_rejects_a_missing_value(key: str) -> None:
    with pytest.raises(InvalidPropertyError):
        DELTA.properties.check({key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.indextables.checkpoint.interval", "10"),
        ("spark.indextables.checkpoint.enabled", "false"),
        ("spark.indextables.LOGRETENTION.duration", "2592000000"),
        ("spark.indextables.cleanup.failurePolicy", "continue"),
        ("spark.indextables.indexing.typemap.content", "text"),
        ("docMappingSchema.abc", "{}"),
    ],
)
def test_valid_indextables_value_is_accepted(key: str, value: str) -> None:
    INDEXTABLES.properties.check({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.indextables.checkpoint.interval", "-1"),
        ("spark.indextables.checkpoint.enabled", "on"),
        ("spark.indextables.logretention.duration", "30 days"),
        ("spark.indextables.cleanup.failurePolicy", "ignore"),
    ],
)
def test_invalid_indextables_value_raises(key: str, value: str) -> None:
    with pytest.raises(InvalidPropertyError, match="invalid value"):
        INDEXTABLES.properties.check({key: value})


@pytest.mark.parametrize("family", ["transaction", "transaction.cache", "checkpoint", "cleanup"])
def test_unknown_key_of_an_indextables_family_raises(family: str) -> None:
    with pytest.raises(InvalidPropertyError, match="unknown table property"):
        INDEXTABLES.properties.check({f"spark.indextables.{family}.nosuch": "1"})


@pytest.mark.parametrize("format_", ["delta", "indextables"])
@pytest.mark.parametrize(
    "key",
    ["spark.indextables.aws.secretKey", "spark.indextables.azure.accountkey",
     "spark.indextables.iceberg.token"],
)  # fmt: skip
def test_credential_raises_and_is_not_in_the_error(key: str, format_: str) -> None:
    with pytest.raises(InvalidPropertyError, match="credential") as refused:
        named(format_).properties.check({key: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_delta_property_of_an_indextables_table_raises() -> None:
    with pytest.raises(InvalidPropertyError, match="have no effect"):
        INDEXTABLES.properties.check({"delta.appendOnly": "true"})


@pytest.mark.parametrize("key", INDEXTABLES_PROPERTIES)
def test_every_indextables_property_rejects_a_missing_value(key: str) -> None:
    with pytest.raises(InvalidPropertyError):
        INDEXTABLES.properties.check({key: None})
