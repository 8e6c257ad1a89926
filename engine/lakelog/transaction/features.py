"""The table features that lakelog knows, and whether it may write tables that use them.

One table a format. Owns what a feature is: who must know it, which old protocol versions imply it,
what it depends on, what in the metadata switches it on, and lakelog's stance on it. The rules that
a feature brings are in `lakelog.transaction.write_support` and `lakelog.transaction.consistency`.
A feature that is not in the table is refused by its name.

lakelog writes logs, not rows: a commit names files that another process has written. So a feature
whose rules concern the bytes of files is honoured only where the log shows them.

Source: Delta protocol, Table Features, Valid Feature Names; facts on IndexTables' protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from lakelog.errors import CorruptionError
from lakelog.model import contract
from lakelog.model.contract import fields_of, leaf_types
from lakelog.model.metadata import Metadata, Protocol

FEATURE_PROPERTY = "delta.feature."
"""Prefix of properties that ask for a feature by name when a table is made or altered."""

CONSTRAINT_PROPERTY = "delta.constraints."
"""Prefix of properties that hold CHECK constraints."""

_CHANGE_DATA_KEYS = ("delta.enableChangeDataFeed", "delta.enableChangeDataCapture")


class Stance(Enum):
    """What lakelog does with a table that has a feature."""

    HONOURED = "honoured"
    CONDITIONAL = "honoured where its rule holds, which is checked at each commit"
    REFUSED = "refused"


@dataclass(frozen=True)
class Feature:
    """One table feature.

    Attributes:
        name: Name in the protocol's lists.
        stance: Whether tables that have it are written.
        note: The rule that is checked, or the reason to refuse.
        reader: Whether readers must know it too.
        implied_from: Protocol versions (reader, writer) that imply it, without lists; None where
            it must be listed. For IndexTables the versions that it needs at least.
        requires: Features that it depends on.
        replaces: Names of earlier forms; a table that has one of them needs no other.
        switch: Says whether metadata switches it on; None where nothing in the metadata does.
    """

    name: str
    stance: Stance
    note: str
    reader: bool = False
    implied_from: tuple[int, int] | None = None
    requires: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    switch: Callable[[Metadata], bool] | None = None


def is_on(configuration: Mapping[str, str | None], key: str) -> bool:
    """Whether a Boolean property is true, as Spark reads it: in any case."""
    return (configuration.get(key) or "").lower() == "true"


def has_field_key(metadata: Metadata, *keys: str) -> bool:
    """Whether a column at any depth carries one of `keys` in its field metadata."""
    if metadata.schema_string is None or not any(key in metadata.schema_string for key in keys):
        return False  # a key that is not in the text is in no field, and most tables have none
    return any(key in at.field.metadata for at in fields_of(metadata.schema) for key in keys)


def change_data_feed_on(metadata: Metadata) -> bool:
    """Whether the metadata asks for change data, under the key of today or the old one."""
    today, old = _CHANGE_DATA_KEYS
    return is_on(metadata.configuration, today if today in metadata.configuration else old)


def constraints(metadata: Metadata) -> dict[str, str | None]:
    """The CHECK constraints: property key to SQL expression."""
    return {
        key: text
        for key, text in metadata.configuration.items()
        if key.lower().startswith(CONSTRAINT_PROPERTY)
    }


def _property(key: str) -> Callable[[Metadata], bool]:
    return lambda metadata: is_on(metadata.configuration, key)


def _property_set(key: str) -> Callable[[Metadata], bool]:
    return lambda metadata: metadata.configuration.get(key) is not None


def _field_key(*keys: str) -> Callable[[Metadata], bool]:
    return lambda metadata: has_field_key(metadata, *keys)


def _type(*prefixes: str) -> Callable[[Metadata], bool]:
    def found(metadata: Metadata) -> bool:
        text = metadata.schema_string
        return (
            text is not None
            and any(prefix in text for prefix in prefixes)
            and any(
                isinstance(leaf, contract.Primitive) and leaf.name.startswith(prefixes)
                for leaf in leaf_types(metadata.schema)
            )
        )

    return found


_ICEBERG = "the Iceberg requirements on data files cannot be checked from the log"
_CATALOG = "commits are made through the table's catalog, not in the log folder"
_ROWS = "only writers of rows must support it"

_OK, _IF, _NO = Stance.HONOURED, Stance.CONDITIONAL, Stance.REFUSED

_DELTA = (
    Feature(
        "appendOnly",
        _OK,
        "with delta.appendOnly, removes with dataChange true are rejected",
        implied_from=(1, 2),
        switch=_property("delta.appendOnly"),
    ),
    Feature(
        "invariants",
        _IF,
        "with an invariant on a column, adds with dataChange true are rejected",
        implied_from=(1, 2),
        switch=_field_key("delta.invariants"),
    ),
    Feature(
        "checkConstraints",
        _IF,
        "with a constraint, adds with dataChange true are rejected",
        implied_from=(1, 3),
        switch=lambda metadata: bool(constraints(metadata)),
    ),
    Feature(
        "changeDataFeed",
        _IF,
        "commits that both add and remove data must contain their cdc actions",
        implied_from=(1, 4),
        switch=change_data_feed_on,
    ),
    Feature(
        "generatedColumns",
        _IF,
        "with a generated column, adds with dataChange true are rejected",
        implied_from=(1, 4),
        switch=_field_key("delta.generationExpression"),
    ),
    Feature(
        "columnMapping",
        _IF,
        "columns need ids and physical names, and files need partition values by physical name",
        reader=True,
        implied_from=(2, 5),
        switch=lambda metadata: metadata.column_mapping_mode != "none",
    ),
    Feature(
        "identityColumns",
        _IF,
        "with an identity column, adds with dataChange true are rejected",
        implied_from=(1, 6),
        switch=_field_key("delta.identity.start", "delta.identity.step"),
    ),
    Feature("allowColumnDefaults", _OK, _ROWS, switch=_field_key("CURRENT_DEFAULT")),
    Feature(
        "deletionVectors",
        _IF,
        "an add with a deletion vector must have numRecords",
        reader=True,
        switch=_property("delta.enableDeletionVectors"),
    ),
    Feature(
        "rowTracking",
        _IF,
        "an add must have numRecords, from which row ids are assigned",
        requires=("domainMetadata",),
        switch=_property("delta.enableRowTracking"),
    ),
    Feature("domainMetadata", _IF, "domains of the system (delta.*) cannot be set by the user"),
    Feature(
        "clustering",
        _IF,
        "adds must have statistics, and the table no partition columns",
        requires=("domainMetadata",),
    ),
    Feature(
        "inCommitTimestamp",
        _OK,
        "each commit contains its time",
        switch=_property("delta.enableInCommitTimestamps"),
    ),
    Feature("timestampNtz", _OK, _ROWS, reader=True, switch=_type("timestamp_ntz")),
    Feature(
        "v2Checkpoint",
        _OK,
        "it applies only to checkpoints",
        reader=True,
        switch=lambda m: (m.configuration.get("delta.checkpointPolicy") or "").lower() == "v2",
    ),
    Feature("vacuumProtocolCheck", _OK, "it applies only to vacuum", reader=True),
    Feature("checkpointProtection", _OK, "it applies only to log cleanup"),
    Feature(
        "typeWidening",
        _IF,
        "a column's type can only be widened, and the change is recorded",
        reader=True,
        replaces=("typeWidening-preview",),
        switch=_property("delta.enableTypeWidening"),
    ),
    Feature("typeWidening-preview", _IF, "as typeWidening", reader=True),
    Feature(
        "variantType",
        _OK,
        _ROWS,
        reader=True,
        replaces=("variantType-preview",),
        switch=_type("variant"),
    ),
    Feature("variantType-preview", _OK, _ROWS, reader=True),
    Feature(
        "variantShredding",
        _OK,
        _ROWS,
        reader=True,
        requires=("variantType",),
        replaces=("variantShredding-preview",),
        switch=_property("delta.enableVariantShredding"),
    ),
    Feature("variantShredding-preview", _OK, _ROWS, reader=True),
    Feature(
        "materializePartitionColumns",
        _IF,
        "adds to a partitioned table are rejected",
        switch=_property("delta.enableMaterializePartitionColumnsFeature"),
    ),
    Feature(
        "icebergCompatV1",
        _IF,
        "rejected if delta.enableIcebergCompatV1 is on",
        requires=("columnMapping",),
        switch=_property("delta.enableIcebergCompatV1"),
    ),
    Feature(
        "icebergCompatV2",
        _IF,
        "rejected if delta.enableIcebergCompatV2 is on",
        requires=("columnMapping",),
        switch=_property("delta.enableIcebergCompatV2"),
    ),
    Feature(
        "icebergCompatV3",
        _NO,
        _ICEBERG,
        requires=("columnMapping", "rowTracking"),
        switch=_property("delta.enableIcebergCompatV3"),
    ),
    Feature("icebergWriterCompatV1", _NO, _ICEBERG, requires=("icebergCompatV2",)),
    Feature("icebergWriterCompatV3", _NO, _ICEBERG, requires=("icebergCompatV3",)),
    Feature(
        "collations",
        _NO,
        "lakelog does not support statistics of collated strings",
        requires=("domainMetadata",),
        switch=_field_key("__COLLATIONS"),
    ),
    Feature("collations-preview", _NO, "as collations", requires=("domainMetadata",)),
    Feature(
        "geospatial",
        _NO,
        "lakelog does not support its types",
        reader=True,
        replaces=("geospatial-dev",),
        switch=_type("geometry", "geography"),
    ),
    Feature("geospatial-dev", _NO, "lakelog does not support its types", reader=True),
    Feature("timestampNanos", _NO, "lakelog does not support its type", reader=True),
    Feature(
        "catalogManaged",
        _NO,
        _CATALOG,
        reader=True,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
    ),
    Feature("catalogOwned", _NO, _CATALOG, reader=True),
    Feature("catalogOwned-preview", _NO, _CATALOG, reader=True),
    Feature(
        "coordinatedCommits-preview",
        _NO,
        _CATALOG,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
        switch=_property_set("delta.coordinatedCommits.commitCoordinator-preview"),
    ),
    Feature("managedCommit-preview", _NO, _CATALOG),
    Feature(
        "adaptiveMetadata",
        _NO,
        "it replaces the log format that lakelog writes",
        reader=True,
        requires=("catalogManaged", "columnMapping", "deletionVectors", "rowTracking"),
    ),
    Feature("adaptiveMetadata-preview", _NO, "as adaptiveMetadata", reader=True),
    Feature(
        "redirectReaderWriter-preview",
        _NO,
        "the table was moved, and its writers must use the new location",
        reader=True,
        switch=_property_set("delta.redirectReaderWriter-preview"),
    ),
    Feature(
        "redirectWriterOnly-preview",
        _NO,
        "the table was moved, and its writers must use the new location",
        switch=_property_set("delta.redirectWriterOnly-preview"),
    ),
)

_INDEXTABLES = (
    Feature("skippedFiles", _OK, "mergeskip actions", reader=True, implied_from=(2, 2)),
    Feature("extendedMetadata", _OK, "more fields of an add", reader=True, implied_from=(2, 2)),
    Feature("footerOffsets", _OK, "footer offsets of an add", reader=True, implied_from=(2, 2)),
    Feature("checkpoint", _OK, "it applies only to checkpoints", implied_from=(2, 2)),
    Feature("optimizeWrite", _OK, _ROWS, implied_from=(2, 2)),
    Feature("multiPartCheckpoint", _OK, "checkpoints only", reader=True, implied_from=(3, 3)),
    Feature("schemaDeduplication", _OK, "docMappingRef", reader=True, implied_from=(3, 3)),
    Feature("columnarCommits", _OK, "a commit may be one Parquet file", reader=True),
    Feature(
        "avroState",
        _NO,
        "IndexTables commits to such a table by state directories, which a JSON commit "
        "of the same version does not exclude, so one of the two would be lost; a "
        "checkpoint of IndexTables raises a table to this protocol even if it has no "
        "state yet",
        reader=True,
        implied_from=(4, 4),
    ),
)

DELTA: Mapping[str, Feature] = {feature.name: feature for feature in _DELTA}
"""Features of Delta by name."""

INDEXTABLES: Mapping[str, Feature] = {feature.name: feature for feature in _INDEXTABLES}
"""Features of IndexTables by name; ``implied_from`` is the version that brought each."""


def features_of(format: str) -> Mapping[str, Feature]:
    """The features of a format, ``delta`` or ``indextables``, by name."""
    return INDEXTABLES if format == "indextables" else DELTA


def writer_version(protocol: Protocol) -> int:
    """``minWriterVersion``."""
    if protocol.min_writer_version is None:
        raise CorruptionError(
            "the protocol has no minWriterVersion",
            expected="minWriterVersion",
            hint="the protocol action violates the format's rules; repair the log",
        )
    return protocol.min_writer_version


def listed(protocol: Protocol) -> frozenset[str]:
    """Names in the protocol's lists, at any version: who lists a feature asks for it."""
    return frozenset(protocol.reader_features or ()) | frozenset(protocol.writer_features or ())


@lru_cache(maxsize=64)
def supported(protocol: Protocol, format: str) -> frozenset[str]:
    """Features that a protocol supports: those listed, and those that its versions imply.

    A Delta feature is implied only below writer version 7, and one for readers only below reader
    version 3. IndexTables' versions imply all that came with them.

    Source: Delta protocol, Supported Features; Writer Version Requirements.

    >>> sorted(supported(Protocol(1, 3), "delta"))
    ['appendOnly', 'checkConstraints', 'invariants']
    """
    writer = writer_version(protocol)
    implied = set()
    for feature in features_of(format).values():
        if feature.implied_from is None:
            continue
        reader_from, writer_from = feature.implied_from
        if format == "indextables":
            # columnarCommits aside, a version is the sum of what it brought.
            enough = (protocol.min_reader_version if feature.reader else writer) >= writer_from
        else:
            by_reader = not feature.reader or reader_from <= protocol.min_reader_version < 3
            enough = by_reader and writer_from <= writer < 7
        if enough:
            implied.add(feature.name)
    return listed(protocol) | implied


def supports(protocol: Protocol, *names: str) -> bool:
    """Whether a Delta protocol supports one of `names`."""
    return not supported(protocol, "delta").isdisjoint(names)


def is_active(name: str, protocol: Protocol, metadata: Metadata) -> bool:
    """Whether a Delta feature is supported, and switched on by the metadata.

    Source: Delta protocol, Active Features.
    """
    switch = DELTA[name].switch
    return supports(protocol, name) and (switch is None or switch(metadata))


def with_required(names: Iterable[str], format: str) -> frozenset[str]:
    """`names` and all that they depend on, at any remove; unknown names are kept as they are."""
    known = features_of(format)
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += known[name].requires if name in known else ()
    return frozenset(found)
