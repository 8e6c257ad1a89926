"""The table properties of all dialects, and how a dialect declares its own.

Known keys of ``spark.indextables.*`` are checked. Unknown ones are accepted, because the reference
implementation adds options with each release, except those with a prefix of commits, checkpoints,
retention or cleanup: a misspelled retention must not become the default. Known keys without effect
are accepted with a warning (`PropertyRules.without_effect`). Other families belong to the user.
``schemas/properties.md`` lists all keys. Values are texts.

Source: IndexTables4Spark, Checkpoint Configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model.durations import parse_interval_ms
from lakelog.model.metadata import CONSTRAINT_PROPERTY

SPARK_INDEXTABLES = "spark.indextables."

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT_BITS, LONG_BITS = 31, 63


@dataclass(frozen=True)
class Kind:
    """A description of the valid values of a property, and whether a value is one."""

    text: str
    accepts: Callable[[str], bool]


def whole(least: int | None = None, bits: int = _INT_BITS) -> Kind:
    """Integers of at most `bits` bits, from `least` on."""
    low = -(1 << bits) if least is None else least

    def accepts(value: str) -> bool:
        return bool(_WHOLE.fullmatch(value)) and low <= int(value) < 1 << bits

    return Kind("an integer" + ("" if least is None else f" of at least {least}"), accepts)


def one_of(*values: str) -> Kind:
    """Exactly one of these texts."""
    return Kind("one of " + ", ".join(values), lambda value: value in values)


def _is_interval(value: str) -> bool:
    try:
        return parse_interval_ms(value.strip()) >= 0
    except InvalidInputError:
        return False


def any_case(kind: Kind) -> Kind:
    """The same kind in any letter case."""
    return Kind(kind.text, lambda value: kind.accepts(value.lower()))


BOOLEAN = any_case(one_of("true", "false"))
INTERVAL = Kind(
    "a calendar interval without months and years, such as 'interval 2 weeks'", _is_interval
)
NAME = Kind("a name", bool)
LONG = whole(bits=LONG_BITS)
COUNT, POSITIVE = whole(0), whole(1)
LONG_COUNT = whole(0, LONG_BITS)
_CHECKPOINT_CODEC = any_case(
    one_of("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "brotli", "zstd")
)
SIZE = Kind(
    "a size in bytes, with or without a unit, such as '104857600' or '100mb'",
    lambda value: bool(re.fullmatch(r"[0-9]{1,30}\s*[kmgtp]?i?b?", value.lower(), re.ASCII)),
)

INDEXTABLES_PROPERTIES: Mapping[str, Kind] = {
    f"{SPARK_INDEXTABLES}{key}": kind
    for kind, keys in (
        (
            BOOLEAN,
            """checkpoint.checksumValidation.enabled checkpoint.compression.enabled
            checkpoint.enabled checkpoint.multiPart.enabled cleanup.dryRun cleanup.enabled
            protocol.autoUpgrade protocol.checkEnabled protocol.enforceReaderVersion
            protocol.enforceWriterVersion skippedFiles.trackingEnabled stats.truncation.enabled
            transaction.allowDirectUsage transaction.cache.enabled
            transaction.compression.enabled transaction.useOptimized""",
        ),
        (
            POSITIVE,
            """checkpoint.actionsPerPart checkpoint.parallelism checkpoint.read.timeoutSeconds
            stats.truncation.maxLength transaction.cache.expirationSeconds
            transaction.maxConcurrentReads transaction.cache.fileList.capacity
            transaction.cache.snapshot.capacity transaction.cache.version.capacity
            transaction.retry.maxAttempts""",
        ),
        # An interval of 0 disables checkpoints.
        (
            COUNT,
            """checkpoint.interval checkpoint.maxRetries checkpoint.retention
            skippedFiles.cooldownDuration transaction.maxRetries""",
        ),
        (whole(-1), "dataSkippingNumIndexedCols"),
        (
            LONG_COUNT,
            """checkpointRetention.duration logRetention.duration
            transaction.cache.fileList.ttl.ms transaction.cache.metadata.ttl.ms
            transaction.cache.snapshot.ttl.ms transaction.cache.ttl.ms
            transaction.cache.version.ttl.ms""",
        ),
        (
            whole(1, LONG_BITS),
            "checkpoint.maxFileSize transaction.retry.baseDelayMs transaction.retry.maxDelayMs",
        ),
        (any_case(one_of("gzip", "none")), "transaction.compression.codec"),
        (
            Kind("an integer from 0 to 9", lambda value: bool(re.fullmatch(r"[0-9]", value))),
            "transaction.compression.gzip.level",
        ),
        (NAME, "dataSkippingStatsColumns"),
        (_CHECKPOINT_CODEC, "checkpoint.compression"),
        (one_of("continue", "fail"), "cleanup.failurePolicy"),
        (any_case(one_of("json", "parquet")), "checkpoint.format"),
    )
    for key in keys.split()
}
"""Checked properties of IndexTables, by key; the reference implementation reads keys in any
case.
"""

_NO_STATISTICS = "statistics of IndexTables files are written unchanged"
_OWN_CACHE = (
    "a handle validates its cache against the log on each use; see Table.snapshot(max_staleness=)"
)

WITHOUT_EFFECT: Mapping[str, tuple[str, str]] = {
    f"{SPARK_INDEXTABLES}{key}".lower(): (reason, same)
    for reason, same, keys in (
        (
            "each checkpoint is verified; pass verify=False to Table.checkpoint",
            "true",
            "checkpoint.checksumValidation.enabled",
        ),
        ("stores retry failed requests themselves", "", "checkpoint.maxRetries"),
        (
            "the protocol is always checked",
            "true",
            "protocol.checkEnabled protocol.enforceReaderVersion protocol.enforceWriterVersion",
        ),
        (
            "a commit that needs a feature raises the protocol; see Transaction.set_protocol",
            "true",
            "protocol.autoUpgrade",
        ),
        ("skips are always recorded and read", "true", "skippedFiles.trackingEnabled"),
        (_NO_STATISTICS, "", "stats.truncation.enabled stats.truncation.maxLength"),
        (
            "set delta.dataSkipping* on a Delta table; " + _NO_STATISTICS,
            "",
            "dataSkippingNumIndexedCols dataSkippingStatsColumns",
        ),
        ("lakelog has one implementation of the log", "true", "transaction.useOptimized"),
        ("it is a switch of the reference's own tests", "", "transaction.allowDirectUsage"),
        ("set transaction.retry.maxAttempts", "", "transaction.maxRetries"),
        (_OWN_CACHE, "true", "transaction.cache.enabled"),
        (
            _OWN_CACHE,
            "",
            """transaction.cache.expirationSeconds transaction.cache.fileList.capacity
            transaction.cache.fileList.ttl.ms transaction.cache.metadata.ttl.ms
            transaction.cache.snapshot.capacity transaction.cache.snapshot.ttl.ms
            transaction.cache.ttl.ms transaction.cache.version.capacity
            transaction.cache.version.ttl.ms""",
        ),
    )
    for key in keys.split()
}
"""Properties that have no effect on tables of any dialect, by lower-case key: the reason, and the
value that matches lakelog's behaviour (empty if none does).
"""

LAKELOG_PROPERTIES: Mapping[str, Kind] = {
    "lakelog.checkpoint.intervalBytes": LONG_COUNT,
}
"""lakelog's own properties, by their exact key; they apply to tables of any format."""

_OWN_FAMILY = "lakelog.checkpoint."
_INDEXTABLES_FAMILIES = tuple(
    f"{SPARK_INDEXTABLES}{family}."
    for family in ("checkpoint", "checkpointretention", "cleanup", "logretention")
)
_REFUSED_FAMILIES = (*_INDEXTABLES_FAMILIES, f"{SPARK_INDEXTABLES}transaction.")
CHECKPOINT_FAMILIES = (
    _OWN_FAMILY,
    *_INDEXTABLES_FAMILIES,
    "delta.checkpoint",
    "delta.deletedfileretention",
    "delta.enableexpiredlogcleanup",
    "delta.logretention",
)
"""Lower-case prefixes of the keys for checkpoints, retention and cleanup: unknown keys with these
prefixes are rejected, in either format.
"""

_SECRETS = re.compile(
    r"(?:secretkey|sessiontoken|accountkey|clientsecret|bearertoken|connectionstring|"
    r"serviceaccountkey|\.token|\.credential)$"
)

_INDEXTABLES_BY_LOWER = {key.lower(): kind for key, kind in INDEXTABLES_PROPERTIES.items()}


class PropertyRules:
    """The properties that all dialects accept. `ignored` have no effect, by lower-case key, with
    the reason and the value that matches lakelog's behaviour.
    """

    ignored: Mapping[str, tuple[str, str]] = WITHOUT_EFFECT

    def check(self, configuration: Mapping[str, str | None]) -> None:
        """Raise InvalidPropertyError (key in ``path``) for unknown keys and invalid values."""
        seen: dict[str, str] = {}
        for key, value in configuration.items():
            lower = key.lower()
            self.check_one(key, lower, value)
            if value is None or not lower.startswith(SPARK_INDEXTABLES):
                continue
            other = seen.setdefault(lower, key)
            if configuration[other] != value:
                raise InvalidPropertyError(
                    "the property is set twice, in different letter case, with different values",
                    path=key,
                    expected=f"{other} = {configuration[other]}",
                    found=value,
                )

    def check_together(
        self, changed: Mapping[str, str | None], configuration: Mapping[str, str | None]
    ) -> None:
        """Raise InvalidPropertyError if a changed property excludes another of `configuration`."""

    def check_one(self, key: str, lower: str, value: str | None) -> None:
        """Check one property; `lower` is its key in lower case."""
        if lower.startswith(SPARK_INDEXTABLES):
            _check_indextables(key, lower, value)
        elif lower.startswith(_OWN_FAMILY):
            _check_own(key, value)

    def without_effect(self, configuration: Mapping[str, str | None]) -> list[str]:
        """A sentence for each property without effect, unless its value is what lakelog does."""
        found = []
        for key, value in configuration.items():
            ignored = self.ignored.get(key.lower())
            if ignored is not None and (value or "").lower() != (ignored[1] or None):
                found.append(f"the property {key} has no effect: {ignored[0]}")
        return found


def spellings(configuration: Mapping[str, str | None], key: str) -> list[str]:
    """The keys of a configuration that are the same property as `key`."""
    if not key.lower().startswith(SPARK_INDEXTABLES):
        return [key] if key in configuration else []
    return [each for each in configuration if each.lower() == key.lower()]


def with_plain_constraints(
    changes: Mapping[str, str | None], configuration: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Changes of properties, with the names of CHECK constraints in lower case, the only one that
    Delta on Spark finds. They replace or remove the constraints of a name in any case.
    """
    found: dict[str, str | None] = {}
    given: dict[str, str] = {}
    for key, value in changes.items():
        lower = key.lower()
        if not lower.startswith(CONSTRAINT_PROPERTY) or configuration.get(key, "") == value:
            found[key] = value
            continue
        if value is not None and given.setdefault(lower, key) != key:
            raise InvalidPropertyError(
                "two CHECK constraints have the same name (case-insensitive)",
                path=key,
                expected="names that differ in more than their case",
                found=f"{given[lower]}, {key}",
            )
        same = (each for each in configuration if each.lower() == lower)
        found = dict.fromkeys(same) | found
        found[lower] = value if value is not None else found.get(lower)
    return found


def _check_indextables(key: str, lower: str, value: str | None) -> None:
    if _SECRETS.search(lower):
        raise InvalidPropertyError(
            "a credential must not be stored in the log, where every reader could read it",
            path=key,
            hint="pass it to the session or in storage_options",
        )
    if (kind := _INDEXTABLES_BY_LOWER.get(lower)) is not None:
        check_value(key, value, kind)
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
    check_value(key, value, kind)


def check_value(key: str, value: str | None, kind: Kind) -> None:
    """Raise for an invalid value."""
    if value is None or not kind.accepts(value):
        raise InvalidPropertyError(
            "invalid value of a table property", path=key, expected=kind.text, found=value
        )


def changed(new: Mapping[str, str | None], old: Mapping[str, str | None]) -> dict[str, str | None]:
    """Properties of `new` that `old` lacks, or has with another value."""
    return {k: v for k, v in new.items() if k not in old or old[k] != v}
