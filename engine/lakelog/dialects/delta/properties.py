"""Delta's table properties.

Keys of ``delta.*`` belong to the format: unknown ones are rejected, because a writer could not obey
them. ``delta.constraints.*`` and ``delta.universalFormat.config.*`` have any text.
``delta.feature.<name>`` is ``supported`` or ``enabled`` for a known feature; such a request is not
written to the metadata.

Source: Delta Lake, DeltaConfig; Delta protocol, Table Properties.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from lakelog.dialects.delta.protocol import DELTA_PROTOCOL
from lakelog.dialects.features import FEATURE_PROPERTY
from lakelog.dialects.properties import (
    BOOLEAN,
    COUNT,
    INTERVAL,
    LONG,
    LONG_COUNT,
    NAME,
    POSITIVE,
    SIZE,
    SPARK_INDEXTABLES,
    WITHOUT_EFFECT,
    Kind,
    PropertyRules,
    any_case,
    check_value,
    one_of,
    whole,
)
from lakelog.errors import InvalidPropertyError
from lakelog.model.metadata import CONSTRAINT_PROPERTY, is_on

_RESERVED_CONSTRAINT = f"{CONSTRAINT_PROPERTY}__char_varchar_string_length_check__"
_UNIVERSAL_FORMAT = "delta.universalformat.config."


def _is_map_of_texts(value: str) -> bool:
    try:
        parsed = json.loads(value)
    except ValueError:
        return False
    return isinstance(parsed, dict) and all(isinstance(v, str) for v in parsed.values())


def _are_formats(value: str) -> bool:
    names = value.split(",") if value else []
    return len(set(names)) == len(names) and set(names) <= {"iceberg", "hudi"}


_TEXT = Kind("a string", lambda _: True)
_MAP = Kind("a JSON object of strings", _is_map_of_texts)
_CODEC = any_case(
    one_of("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "lzo", "brotli", "zstd")
)
_PARQUET_VERSION = Kind(
    "1.0.0 or 2.x.y",
    lambda value: bool(re.fullmatch(r"1\.0\.0|2\.[0-9]+\.[0-9]+", value, re.ASCII)),
)

DELTA_PROPERTIES: Mapping[str, Kind] = {
    f"delta.{key}": kind
    for kind, keys in (
        (
            BOOLEAN,
            (
                "appendOnly autoOptimize autoOptimize.optimizeWrite castIcebergTimeType "
                "checkpoint.writeStatsAsJson checkpoint.writeStatsAsStruct "
                "compatibility.symlinkFormatManifest.enabled enableChangeDataCapture "
                "enableChangeDataFeed enableDeletionVectors enableExpiredLogCleanup "
                "enableFullRetentionRollback enableIcebergCompatV1 enableIcebergCompatV2 "
                "enableIcebergCompatV3 enableIcebergWriterCompatV1 enableIcebergWriterCompatV3 "
                "enableInCommitTimestamps enableMaterializePartitionColumnsFeature "
                "enableRowTracking enableTypeWidening enableVariantShredding "
                "ignoreIcebergBucketPartition randomizeFilePrefixes rowTrackingSuspended "
                "tuneFileSizesForRewrites universalFormat.iceberg.atomicConversion.supported "
                "writePartitionColumnsToParquet"
            ),
        ),
        (
            INTERVAL,
            (
                "checkpointRetentionDuration deletedFileRetentionDuration "
                "dropFeatureTruncateHistory.retentionDuration logRetentionDuration "
                "sampleRetentionDuration setTransactionRetentionDuration"
            ),
        ),
        (POSITIVE, "checkpointInterval randomPrefixLength"),
        (COUNT, "dataSkippingStringPrefixLength"),
        (whole(-1), "dataSkippingNumIndexedCols"),
        (LONG, "inCommitTimestampEnablementTimestamp inCommitTimestampEnablementVersion"),
        (LONG_COUNT, "columnMapping.maxColumnId requireCheckpointProtectionBeforeVersion"),
        (
            NAME,
            (
                "coordinatedCommits.commitCoordinator-preview dataSkippingStatsColumns "
                "redirectReaderWriter-preview redirectWriterOnly-preview "
                "rowTracking.materializedRowCommitVersionColumnName "
                "rowTracking.materializedRowIdColumnName"
            ),
        ),
        (
            _MAP,
            "coordinatedCommits.commitCoordinatorConf-preview coordinatedCommits.tableConf-preview",
        ),
        (SIZE, "targetFileSize"),
        (_CODEC, "parquet.compression.codec"),
        (_PARQUET_VERSION, "parquet.format.version"),
        (any_case(one_of("true", "false", "auto")), "autoOptimize.autoCompact"),
        (any_case(one_of("none", "name", "id")), "columnMapping.mode"),
        (any_case(one_of("classic", "v2")), "checkpointPolicy"),
        # Delta on Spark accepts only Serializable; other writers, and Databricks, write the second.
        (one_of("Serializable", "WriteSerializable"), "isolationLevel"),
        (
            Kind("comma-separated: iceberg, hudi, both or none", _are_formats),
            "universalFormat.enabledFormats",
        ),
    )
    for key in keys.split()
}
"""Properties of Delta by their exact key."""

_OF_THE_PROTOCOL = {
    "delta.minReaderVersion": "the protocol action stores the versions: set the protocol instead",
    "delta.minWriterVersion": "the protocol action stores the versions: set the protocol instead",
    "delta.ignoreProtocolDefaults": "it is a setting of Spark, and no log stores it",
}

_IGNORED = {
    f"{SPARK_INDEXTABLES}{key}".lower(): (reason, same)
    for reason, same, keys in (
        ("Delta's checkpoints are Parquet", "parquet", "checkpoint.format"),
        (
            "Delta's commits and manifests are not compressed",
            "",
            (
                "checkpoint.compression.enabled transaction.compression.enabled "
                "transaction.compression.codec transaction.compression.gzip.level"
            ),
        ),
        ("a Delta log has no skips", "", "skippedFiles.cooldownDuration"),
    )
    for key in keys.split()
}
_EXCLUSIVE = ("delta.enableRowTracking", "delta.rowTrackingSuspended")
_BY_LOWER = {key.lower(): key for key in (*DELTA_PROPERTIES, *_OF_THE_PROTOCOL)}
_FEATURES_BY_LOWER = {name.lower() for name in DELTA_PROTOCOL.features}


class DeltaProperties(PropertyRules):
    """Delta's rules for table properties."""

    ignored: Mapping[str, tuple[str, str]] = {**WITHOUT_EFFECT, **_IGNORED}

    def check_together(
        self, changed: Mapping[str, str | None], configuration: Mapping[str, str | None]
    ) -> None:
        """Row tracking is on or suspended."""
        if any(is_on(changed, key) for key in _EXCLUSIVE) and all(
            is_on(configuration, key) for key in _EXCLUSIVE
        ):
            raise InvalidPropertyError(
                "row tracking cannot be both on and suspended",
                path="delta.rowTrackingSuspended",
                expected="false",
                found="true",
                hint="set delta.enableRowTracking to false to suspend it; to turn it on, set "
                "delta.rowTrackingSuspended to false",
            )

    def check_one(self, key: str, lower: str, value: str | None) -> None:
        """Known keys of ``delta.*``, which are case-sensitive."""
        if lower.startswith("delta."):
            _check_delta(key, lower, value)
        else:
            super().check_one(key, lower, value)


def _check_delta(key: str, lower: str, value: str | None) -> None:
    if lower.startswith((CONSTRAINT_PROPERTY, _UNIVERSAL_FORMAT)):
        check_value(key, value, NAME if lower.startswith(CONSTRAINT_PROPERTY) else _TEXT)
        if lower == _RESERVED_CONSTRAINT:
            raise InvalidPropertyError(
                "the name of the CHECK constraint is reserved for lengths of texts",
                path=key,
                expected="another name",
                found=key,
            )
        return
    if lower.startswith(FEATURE_PROPERTY):
        if lower[len(FEATURE_PROPERTY) :] not in _FEATURES_BY_LOWER:
            raise InvalidPropertyError(
                "the property enables an unknown feature",
                path=key,
                expected=", ".join(sorted(DELTA_PROTOCOL.features)),
                found=key[len(FEATURE_PROPERTY) :],
            )
        check_value(key, value, any_case(one_of("supported", "enabled")))
        return
    spelled = _BY_LOWER.get(lower)
    if spelled in _OF_THE_PROTOCOL:
        raise InvalidPropertyError(
            "the property must not be stored in the metadata",
            path=key,
            found=value,
            hint=_OF_THE_PROTOCOL[spelled],
        )
    if spelled is None:
        raise InvalidPropertyError(
            "unknown table property",
            path=key,
            expected="a known delta.* key, or a key of your own without that prefix",
            found=value,
        )
    if spelled != key:
        raise InvalidPropertyError(
            "the property has the wrong letter case, and readers would not find it",
            path=key,
            expected=spelled,
            found=key,
        )
    check_value(key, value, DELTA_PROPERTIES[spelled])


DELTA_PROPERTY_RULES = DeltaProperties()
