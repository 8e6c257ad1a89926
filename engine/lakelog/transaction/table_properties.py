"""The known table properties and their allowed values.

Keys of ``delta.*`` are the format's own: one that is not known is refused, since a writer that
does not know it could not honour it. All other keys are the user's and free. Of
``spark.indextables.*`` the known ones are checked and the others taken as they are: the reference
adds options with each release, reads them by name, and none of them changes what a log means.
Only what would govern commits, checkpoints, retention and cleanup is refused where it is unknown: a
misspelt retention must not pass for the default one. A known one without an effect here is accepted
with a warning (`without_effect`). ``schemas/properties.md`` lists them all.

Values are texts, as the log holds them. Source: Delta Lake, DeltaConfig; Delta protocol, Table
Properties; IndexTables4Spark, Checkpoint Configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.log.properties import parse_interval_ms
from lakelog.transaction.features import CONSTRAINT_PROPERTY, DELTA, FEATURE_PROPERTY, is_on

_UNIVERSAL_FORMAT = "delta.universalformat.config."
_INDEXTABLES = "spark.indextables."

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT_BITS, _LONG_BITS = 31, 63


@dataclass(frozen=True)
class Kind:
    """What the value of a property may be.

    Attributes:
        text: What is expected, in words.
        accepts: Whether a value is of the kind.
    """

    text: str
    accepts: Callable[[str], bool]


def _whole(least: int | None = None, bits: int = _INT_BITS) -> Kind:
    low = -(1 << bits) if least is None else least

    def accepts(value: str) -> bool:
        return bool(_WHOLE.fullmatch(value)) and low <= int(value) < 1 << bits

    return Kind("an integer" + ("" if least is None else f" of at least {least}"), accepts)


def _one_of(*values: str) -> Kind:
    return Kind("one of " + ", ".join(values), lambda value: value in values)


def _is_interval(value: str) -> bool:
    try:
        return parse_interval_ms(value.strip()) >= 0
    except InvalidInputError:
        return False


def _is_map_of_texts(value: str) -> bool:
    try:
        parsed = json.loads(value)
    except ValueError:
        return False
    return isinstance(parsed, dict) and all(isinstance(v, str) for v in parsed.values())


def _are_formats(value: str) -> bool:
    names = value.split(",") if value else []
    return len(set(names)) == len(names) and set(names) <= {"iceberg", "hudi"}


def _any_case(kind: Kind) -> Kind:
    return Kind(kind.text, lambda value: kind.accepts(value.lower()))


_BOOLEAN = _any_case(_one_of("true", "false"))
_INTERVAL = Kind(
    "a calendar interval without months and years, such as 'interval 2 weeks'", _is_interval
)
_TEXT = Kind("a text", lambda _: True)
_NAME = Kind("a name", bool)
_MAP = Kind("a JSON object of strings", _is_map_of_texts)
_INTEGER, _LONG = _whole(), _whole(bits=_LONG_BITS)
_COUNT, _POSITIVE = _whole(0), _whole(1)
_LONG_COUNT = _whole(0, _LONG_BITS)
_SIZE = Kind(
    "a size in bytes, with or without a unit, such as '104857600' or '100mb'",
    lambda value: bool(re.fullmatch(r"[0-9]+\s*[kmgtp]?i?b?", value.lower(), re.ASCII)),
)
_CODEC = _any_case(
    _one_of("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "lzo", "brotli", "zstd")
)
_CHECKPOINT_CODEC = _any_case(
    _one_of("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "brotli", "zstd")
)
_PARQUET_VERSION = Kind(
    "1.0.0 or 2.x.y",
    lambda value: bool(re.fullmatch(r"1\.0\.0|2\.[0-9]+\.[0-9]+", value, re.ASCII)),
)

DELTA_PROPERTIES: Mapping[str, Kind] = {
    f"delta.{key}": kind
    for kind, keys in (
        (
            _BOOLEAN,
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
            _INTERVAL,
            (
                "checkpointRetentionDuration deletedFileRetentionDuration "
                "dropFeatureTruncateHistory.retentionDuration logRetentionDuration "
                "sampleRetentionDuration setTransactionRetentionDuration"
            ),
        ),
        (_POSITIVE, "checkpointInterval randomPrefixLength"),
        (_COUNT, "dataSkippingStringPrefixLength"),
        (_whole(-1), "dataSkippingNumIndexedCols"),
        (_LONG, "inCommitTimestampEnablementTimestamp inCommitTimestampEnablementVersion"),
        (_LONG_COUNT, "columnMapping.maxColumnId requireCheckpointProtectionBeforeVersion"),
        (
            _NAME,
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
        (_SIZE, "targetFileSize"),
        (_CODEC, "parquet.compression.codec"),
        (_PARQUET_VERSION, "parquet.format.version"),
        (_any_case(_one_of("true", "false", "auto")), "autoOptimize.autoCompact"),
        (_any_case(_one_of("none", "name", "id")), "columnMapping.mode"),
        (_any_case(_one_of("classic", "v2")), "checkpointPolicy"),
        # Delta on Spark takes Serializable only; other writers, and Databricks, write the second.
        (_one_of("Serializable", "WriteSerializable"), "isolationLevel"),
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

INDEXTABLES_PROPERTIES: Mapping[str, Kind] = {
    f"{_INDEXTABLES}{key}": kind
    for kind, keys in (
        (
            _BOOLEAN,
            (
                "checkpoint.checksumValidation.enabled checkpoint.compression.enabled "
                "checkpoint.enabled checkpoint.multiPart.enabled cleanup.dryRun cleanup.enabled "
                "protocol.autoUpgrade protocol.checkEnabled protocol.enforceReaderVersion "
                "protocol.enforceWriterVersion "
                "skippedFiles.trackingEnabled stats.truncation.enabled "
                "transaction.allowDirectUsage transaction.cache.enabled "
                "transaction.compression.enabled transaction.useOptimized"
            ),
        ),
        (
            _POSITIVE,
            (
                "checkpoint.actionsPerPart checkpoint.parallelism "
                "checkpoint.read.timeoutSeconds stats.truncation.maxLength "
                "transaction.cache.expirationSeconds transaction.maxConcurrentReads "
                "transaction.cache.fileList.capacity transaction.cache.snapshot.capacity "
                "transaction.cache.version.capacity transaction.retry.maxAttempts"
            ),
        ),
        # An interval of 0 switches checkpoints off.
        (
            _COUNT,
            (
                "checkpoint.interval checkpoint.maxRetries checkpoint.retention "
                "skippedFiles.cooldownDuration transaction.maxRetries"
            ),
        ),
        (_whole(-1), "dataSkippingNumIndexedCols"),
        (
            _LONG_COUNT,
            (
                "checkpointRetention.duration logRetention.duration "
                "transaction.cache.fileList.ttl.ms transaction.cache.metadata.ttl.ms "
                "transaction.cache.snapshot.ttl.ms transaction.cache.ttl.ms "
                "transaction.cache.version.ttl.ms"
            ),
        ),
        (
            _whole(1, _LONG_BITS),
            "checkpoint.maxFileSize transaction.retry.baseDelayMs transaction.retry.maxDelayMs",
        ),
        (_any_case(_one_of("gzip", "none")), "transaction.compression.codec"),
        (
            Kind("an integer from 0 to 9", lambda value: bool(re.fullmatch(r"[0-9]", value))),
            "transaction.compression.gzip.level",
        ),
        (_NAME, "dataSkippingStatsColumns"),
        (_CHECKPOINT_CODEC, "checkpoint.compression"),
        (_one_of("continue", "fail"), "cleanup.failurePolicy"),
        (_any_case(_one_of("json", "parquet")), "checkpoint.format"),
    )
    for key in keys.split()
}
"""Properties of IndexTables that are checked, by key; the reference reads keys in any case."""

_NO_STATISTICS = "statistics of IndexTables files are written unchanged"
_OWN_CACHE = (
    "a handle validates its cache against the log on each use; see Table.snapshot(max_staleness=)"
)
_BOTH, _DELTA_ONLY = ("delta", "indextables"), ("delta",)

_WITHOUT_EFFECT: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    f"{_INDEXTABLES}{key}".lower(): (reason, formats, same)
    for reason, formats, same, keys in (
        (
            "each checkpoint is verified; pass verify=False to Table.checkpoint",
            _BOTH,
            "true",
            "checkpoint.checksumValidation.enabled",
        ),
        ("stores retry failed requests themselves", _BOTH, "", "checkpoint.maxRetries"),
        ("Delta's checkpoints are Parquet", _DELTA_ONLY, "parquet", "checkpoint.format"),
        (
            "Delta's commits and manifests are not compressed",
            _DELTA_ONLY,
            "",
            (
                "checkpoint.compression.enabled transaction.compression.enabled "
                "transaction.compression.codec transaction.compression.gzip.level"
            ),
        ),
        (
            "the protocol is always checked",
            _BOTH,
            "true",
            "protocol.checkEnabled protocol.enforceReaderVersion protocol.enforceWriterVersion",
        ),
        (
            "a commit that needs a feature raises the protocol; see Transaction.set_protocol",
            _BOTH,
            "true",
            "protocol.autoUpgrade",
        ),
        ("skips are always recorded and read", _BOTH, "true", "skippedFiles.trackingEnabled"),
        ("a Delta log has no skips", _DELTA_ONLY, "", "skippedFiles.cooldownDuration"),
        (_NO_STATISTICS, _BOTH, "", "stats.truncation.enabled stats.truncation.maxLength"),
        (
            "set delta.dataSkipping* on a Delta table; " + _NO_STATISTICS,
            _BOTH,
            "",
            "dataSkippingNumIndexedCols dataSkippingStatsColumns",
        ),
        ("lakelog has one implementation of the log", _BOTH, "true", "transaction.useOptimized"),
        ("it is a switch of the reference's own tests", _BOTH, "", "transaction.allowDirectUsage"),
        ("set transaction.retry.maxAttempts", _BOTH, "", "transaction.maxRetries"),
        (_OWN_CACHE, _BOTH, "true", "transaction.cache.enabled"),
        (
            _OWN_CACHE,
            _BOTH,
            "",
            (
                "transaction.cache.expirationSeconds transaction.cache.fileList.capacity "
                "transaction.cache.fileList.ttl.ms transaction.cache.metadata.ttl.ms "
                "transaction.cache.snapshot.capacity transaction.cache.snapshot.ttl.ms "
                "transaction.cache.ttl.ms transaction.cache.version.capacity "
                "transaction.cache.version.ttl.ms"
            ),
        ),
    )
    for key in keys.split()
}
"""Properties without an effect, by their key in lower case: the reason, the formats of tables where
there is none, and the value that describes what lakelog does anyway (empty where no value does)."""

LAKELOG_PROPERTIES: Mapping[str, Kind] = {
    "lakelog.checkpoint.intervalBytes": _LONG_COUNT,
}
"""lakelog's own properties, by their exact key; they count on tables of any format."""

_OWN_FAMILY = "lakelog.checkpoint."
_INDEXTABLES_FAMILIES = tuple(
    f"{_INDEXTABLES}{family}."
    for family in ("checkpoint", "checkpointretention", "cleanup", "logretention")
)
_REFUSED_FAMILIES = (*_INDEXTABLES_FAMILIES, f"{_INDEXTABLES}transaction.")
CHECKPOINT_FAMILIES = (
    _OWN_FAMILY,
    *_INDEXTABLES_FAMILIES,
    "delta.checkpoint",
    "delta.deletedfileretention",
    "delta.enableexpiredlogcleanup",
    "delta.logretention",
)
"""Beginnings, in lower case, of the keys that govern checkpoints, retention and cleanup: what
begins so and is not known is refused, in either format.
"""

_SECRETS = re.compile(
    r"(?:secretkey|sessiontoken|accountkey|clientsecret|bearertoken|connectionstring|"
    r"serviceaccountkey|\.token|\.credential)$"
)

_DELTA_BY_LOWER = {key.lower(): key for key in (*DELTA_PROPERTIES, *_OF_THE_PROTOCOL)}
_INDEXTABLES_BY_LOWER = {key.lower(): kind for key, kind in INDEXTABLES_PROPERTIES.items()}
_FEATURES_BY_LOWER = {name.lower() for name in DELTA}


def check_properties(configuration: Mapping[str, str | None], format: str) -> None:
    """Refuse table properties that are unknown, or whose values are not of their kind.

    ``delta.constraints.*`` and ``delta.universalFormat.config.*`` hold any text.
    ``delta.feature.<name>`` is ``supported`` or ``enabled`` for a known feature: a request that
    `without_requests` takes out before the metadata is written.

    >>> check_properties({"delta.appendOnly": "true", "owner": "us"}, "delta")
    """
    for key, value in configuration.items():
        lower = key.lower()
        if lower.startswith("delta."):
            if format == "indextables":
                raise InvalidPropertyError(
                    "properties of Delta have no effect on an IndexTables table",
                    path=key,
                    expected=f"{_INDEXTABLES}* or a key of your own",
                    found=value,
                )
            _check_delta(key, lower, value)
        elif lower.startswith(_INDEXTABLES):
            _check_indextables(key, lower, value)
        elif lower.startswith(_OWN_FAMILY):
            _check_own(key, value)
    if is_on(configuration, "delta.enableRowTracking") and is_on(
        configuration, "delta.rowTrackingSuspended"
    ):
        raise InvalidPropertyError(
            "row tracking cannot be both on and suspended",
            path="delta.rowTrackingSuspended",
            expected="false",
            found="true",
        )


def without_effect(configuration: Mapping[str, str | None], format: str) -> list[str]:
    """A sentence for each property that is accepted and has no effect, with the reason.

    Args:
        configuration: Properties to be written; of an existing table, those that change.
        format: ``delta`` or ``indextables``.

    A property whose value describes what lakelog does anyway gets none.

    >>> without_effect({"spark.indextables.checkpoint.maxRetries": "5"}, "indextables")
    ['the property spark.indextables.checkpoint.maxRetries has no effect: stores retry failed \
requests themselves']
    """
    found = []
    for key, value in configuration.items():
        reason, formats, same = _WITHOUT_EFFECT.get(key.lower(), ("", (), ""))
        if format in formats and (value or "").lower() != (same or None):
            found.append(f"the property {key} has no effect: {reason}")
    return found


def without_requests(configuration: Mapping[str, str | None]) -> dict[str, str | None]:
    """The properties without ``delta.feature.*``: those ask for features when a table is made or
    altered, and what they asked for is in the protocol afterwards.
    """
    return {
        key: value
        for key, value in configuration.items()
        if not key.lower().startswith(FEATURE_PROPERTY)
    }


def changed(new: Mapping[str, str | None], old: Mapping[str, str | None]) -> dict[str, str | None]:
    """Properties of `new` that `old` has not, or has with another value."""
    return {k: v for k, v in new.items() if k not in old or old[k] != v}


def _check_delta(key: str, lower: str, value: str | None) -> None:
    if lower.startswith((CONSTRAINT_PROPERTY, _UNIVERSAL_FORMAT)):
        _check_value(key, value, _NAME if lower.startswith(CONSTRAINT_PROPERTY) else _TEXT)
        return
    if lower.startswith(FEATURE_PROPERTY):
        if lower[len(FEATURE_PROPERTY) :] not in _FEATURES_BY_LOWER:
            raise InvalidPropertyError(
                "the property enables an unknown feature",
                path=key,
                expected=", ".join(sorted(DELTA)),
                found=key[len(FEATURE_PROPERTY) :],
            )
        _check_value(key, value, _any_case(_one_of("supported", "enabled")))
        return
    spelled = _DELTA_BY_LOWER.get(lower)
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
    _check_value(key, value, DELTA_PROPERTIES[spelled])


def _check_indextables(key: str, lower: str, value: str | None) -> None:
    if _SECRETS.search(lower):
        raise InvalidPropertyError(
            "a credential must not be stored in the log, where every reader could read it",
            path=key,
            hint="pass it to the session or in storage_options",
        )
    if (kind := _INDEXTABLES_BY_LOWER.get(lower)) is not None:
        _check_value(key, value, kind)
    elif lower.startswith(_REFUSED_FAMILIES):
        raise InvalidPropertyError(
            "unknown table property, and its prefix governs commits, checkpoints or cleanup",
            path=key,
            expected=", ".join(
                sorted(
                    known
                    for known in INDEXTABLES_PROPERTIES
                    if known.lower().startswith(_REFUSED_FAMILIES)
                )
            ),
            found=value,
        )


def _check_own(key: str, value: str | None) -> None:
    if (kind := LAKELOG_PROPERTIES.get(key)) is None:
        raise InvalidPropertyError(
            "unknown table property", path=key, expected=", ".join(LAKELOG_PROPERTIES), found=value
        )
    _check_value(key, value, kind)


def _check_value(key: str, value: str | None, kind: Kind) -> None:
    if value is None or not kind.accepts(value):
        raise InvalidPropertyError(
            "invalid value of a table property", path=key, expected=kind.text, found=value
        )
