"""Options of checkpoints: each has its own name, and none is ignored."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.registry import named
from lakelog.errors import InvalidPropertyError

DAY_MS = 86_400_000
ITX = "spark.indextables."

SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("delta.checkpointInterval", "5", {"interval": 5}),
    ("delta.checkpointPolicy", "V2", {"policy": "v2"}),
    ("delta.checkpoint.writeStatsAsJson", "false", {"stats_as_json": False}),
    ("delta.checkpoint.writeStatsAsStruct", "FALSE", {"stats_as_struct": False}),
    ("delta.checkpointRetentionDuration", "1 day", {"checkpoint_retention_ms": DAY_MS}),
    ("delta.logRetentionDuration", "interval 2 days", {"log_retention_ms": 2 * DAY_MS}),
    ("delta.deletedFileRetentionDuration", "interval 0 hours", {"deleted_file_retention_ms": 0}),
    ("delta.enableExpiredLogCleanup", "false", {"cleanup_enabled": False}),
    ("lakelog.checkpoint.intervalBytes", "1048576", {"bytes_interval": 1_048_576}),
    ("lakelog.checkpoint.intervalBytes", "0", {"bytes_interval": None}),
    (ITX + "checkpoint.enabled", "false", {"enabled": False}),
    (ITX + "checkpoint.interval", "7", {"interval": 7}),
    (ITX + "checkpoint.interval", "0", {"interval": 0, "enabled": False}),
    (ITX + "checkpoint.retention", "3", {"retain_versions": 3}),
    (ITX + "checkpoint.compression", "GZIP", {"compression": "gzip"}),
    (ITX + "checkpoint.compression", "uncompressed", {"compression": "none"}),
    (ITX + "checkpoint.maxFileSize", "1000000", {"max_file_bytes": 1_000_000}),
    (ITX + "checkpoint.parallelism", "9", {}),  # of every read: `read_limits`
    (ITX + "checkpoint.read.timeoutSeconds", "60", {}),
    (ITX + "checkpoint.actionsPerPart", "50", {"part_actions": 50}),
    (ITX + "checkpoint.multiPart.enabled", "false", {"multi_part": False, "part_actions": None}),
    (ITX + "checkpoint.format", "JSON", {"format": "json"}),
    (ITX + "logRetention.duration", "86400000", {"log_retention_ms": DAY_MS}),
    (ITX + "checkpointRetention.duration", "0", {"checkpoint_retention_ms": 0}),
    (ITX + "cleanup.enabled", "false", {"cleanup_enabled": False}),
    (ITX + "cleanup.dryRun", "true", {"cleanup_enabled": False}),
    (ITX + "cleanup.failurePolicy", "fail", {"cleanup_failure_policy": "fail"}),
]


@pytest.mark.parametrize("format_", ["delta", "indextables"])
@pytest.mark.parametrize(("key", "value", "expected"), SETTINGS)
def test_property_sets_its_option_and_no_other(
    format_: str, key: str, value: str, expected: dict[str, Any]
) -> None:
    if key.startswith("delta.") and format_ == "indextables":
        with pytest.raises(InvalidPropertyError, match="have no effect"):
            CheckpointOptions.of({key: value}, named(format_))
        return
    defaults = CheckpointOptions.of({"owner": "us"}, named(format_))
    assert CheckpointOptions.of({key: value}, named(format_)) == replace(defaults, **expected)


def test_every_option_can_be_set() -> None:
    assert {name for *_, expected in SETTINGS for name in expected} == {
        field.name for field in fields(CheckpointOptions)
    }


def test_defaults_of_indextables_are_those_of_its_specification() -> None:
    options = CheckpointOptions.of({}, INDEXTABLES)
    assert (options.enabled, options.interval) == (True, 10)
    assert (options.compression, options.max_file_bytes) == ("snappy", 134_217_728)
    assert options.part_actions == 100_000
    assert options.retain_versions == 30
    assert options.log_retention_ms == 2_592_000_000
    assert options.checkpoint_retention_ms == 7_200_000
    assert (options.cleanup_enabled, options.cleanup_failure_policy) == (True, "continue")


def test_defaults_of_delta_are_those_of_delta_lake() -> None:
    options = CheckpointOptions.of({}, DELTA)
    assert (options.interval, options.policy) == (10, "classic")
    assert (options.stats_as_json, options.stats_as_struct) == (True, True)
    assert options.part_actions is None
    assert options.log_retention_ms == 30 * DAY_MS
    assert options.checkpoint_retention_ms == 2 * DAY_MS
    assert options.deleted_file_retention_ms == 7 * DAY_MS
    assert options.retain_versions is None


def test_multi_part_checkpoints_can_be_switched_off() -> None:
    off = {ITX + "checkpoint.multiPart.enabled": "false", ITX + "checkpoint.actionsPerPart": "5"}
    assert CheckpointOptions.of(off, INDEXTABLES).part_actions is None


def test_delta_property_takes_precedence_on_a_delta_table() -> None:
    both = {
        ITX + "checkpoint.interval": "3",
        "delta.checkpointInterval": "4",
        ITX + "logRetention.duration": "1",
        "delta.logRetentionDuration": "interval 2 milliseconds",
        ITX + "cleanup.enabled": "false",
        "delta.enableExpiredLogCleanup": "true",
    }
    options = CheckpointOptions.of(both, DELTA)
    assert (options.interval, options.log_retention_ms) == (4, 2)
    assert options.cleanup_enabled


def test_indextables_keys_are_case_insensitive_and_must_not_conflict() -> None:
    key = "SPARK.IndexTables.checkpoint.INTERVAL"
    assert CheckpointOptions.of({key: "3"}, INDEXTABLES).interval == 3
    assert CheckpointOptions.of({key: "3", key.lower(): "3"}, INDEXTABLES).interval == 3
    with pytest.raises(InvalidPropertyError, match="set twice") as refused:
        CheckpointOptions.of({key: "3", key.lower(): "4"}, INDEXTABLES)
    assert refused.value.path == key.lower()
    assert refused.value.expected == f"{key} = 3"


@pytest.mark.parametrize("format_", ["delta", "indextables"])
@pytest.mark.parametrize(
    "key",
    [
        ITX + "checkpoint.intervall",
        ITX + "checkpoint.",
        ITX + "logRetention.days",
        ITX + "checkpointRetention.durationMs",
        ITX + "cleanup.enable",
        "lakelog.checkpoint.interval",
    ],
)
def test_unknown_option_is_named(format_: str, key: str) -> None:
    with pytest.raises(InvalidPropertyError, match="unknown") as refused:
        CheckpointOptions.of({key: "1"}, named(format_))
    assert refused.value.path == key
    assert refused.value.expected


@pytest.mark.parametrize("key", ["delta.checkpointIntervals", "delta.logRetention"])
def test_unknown_option_of_delta_is_named(key: str) -> None:
    with pytest.raises(InvalidPropertyError, match="unknown") as refused:
        CheckpointOptions.of({key: "1"}, DELTA)
    assert refused.value.path == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.checkpointInterval", "0"),
        ("delta.checkpointPolicy", "v3"),
        ("delta.checkpoint.writeStatsAsJson", "%WRITE_STATS_AS_JSON%"),
        ("delta.logRetentionDuration", "interval 1 month"),
        ("delta.enableExpiredLogCleanup", None),
        (ITX + "checkpoint.enabled", "yes"),
        (ITX + "checkpoint.interval", "ten"),
        (ITX + "checkpoint.compression", "lzo"),
        (ITX + "checkpoint.maxFileSize", "0"),
        (ITX + "checkpoint.read.timeoutSeconds", "0"),
        (ITX + "logRetention.duration", "30 days"),
        (ITX + "cleanup.failurePolicy", "ignore"),
        ("lakelog.checkpoint.intervalBytes", "-1"),
    ],
)
def test_malformed_option_is_named(key: str, value: str | None) -> None:
    with pytest.raises(InvalidPropertyError, match="invalid value") as refused:
        CheckpointOptions.of({key: value}, DELTA)
    assert (refused.value.path, refused.value.found) == (key, value)


def test_unrelated_properties_are_ignored() -> None:
    others = {"delta.fromTheFuture": "1", ITX + "aws.region": "x", "owner": None}
    assert CheckpointOptions.of(others, DELTA) == CheckpointOptions()
