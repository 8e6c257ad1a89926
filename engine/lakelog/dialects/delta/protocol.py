"""Delta's protocol: the features that lakelog reads, writes or rejects, versions and lists.

Source: Delta protocol, Table Features; Reader Version Requirements; Writer Version Requirements.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakelog.dialects.features import (
    FEATURE_PROPERTY,
    ROWS_ONLY,
    Feature,
    Stance,
    field_key,
    listed,
    property_on,
    property_set,
    type_used,
    writer_version,
)
from lakelog.dialects.protocol_rules import ProtocolRules, check_names, in_order
from lakelog.errors import CorruptionError, InvalidProtocolError, UnsupportedFeatureError
from lakelog.model.contract import CURRENT_DEFAULT
from lakelog.model.metadata import Metadata, Protocol, is_on

_READER_LISTS = 3
"""Reader version from which readers' features are listed."""

_WRITER_LISTS = 7
"""Writer version from which features are listed."""

_REPAIR = "repair the protocol with Transaction.set_protocol"

_CHANGE_DATA_KEYS = ("delta.enableChangeDataFeed", "delta.enableChangeDataCapture")

MAX_READER_VERSION = 3

REFUSED = {
    "catalogManaged": "only the table's catalog knows which commits are ratified",
    "catalogOwned": "only the table's catalog knows which commits are ratified",
    "catalogOwned-preview": "only the table's catalog knows which commits are ratified",
    "adaptiveMetadata": "it replaces the checkpoints that lakelog reads",
    "adaptiveMetadata-preview": "it replaces the checkpoints that lakelog reads",
}
"""Features that would change the file-level state, with the reason why they are rejected."""


def _change_data_feed_on(metadata: Metadata) -> bool:
    """Whether the metadata enables change data, under the current key or the old one."""
    today, old = _CHANGE_DATA_KEYS
    return is_on(metadata.configuration, today if today in metadata.configuration else old)


_ICEBERG = "the Iceberg requirements on data files cannot be checked from the log"
_CATALOG = "commits are made through the table's catalog, not in the log folder"

_OK, _IF, _NO = Stance.HONOURED, Stance.CONDITIONAL, Stance.REFUSED

_DELTA = (
    Feature(
        "appendOnly",
        _OK,
        "with delta.appendOnly, removes with dataChange true are rejected",
        implied_from=(1, 2),
        switch=property_on("delta.appendOnly"),
    ),
    Feature(
        "invariants",
        _IF,
        "with an invariant on a column, adds with dataChange true need checked rows",
        implied_from=(1, 2),
        switch=field_key("delta.invariants"),
    ),
    Feature(
        "checkConstraints",
        _IF,
        "with a constraint, adds with dataChange true need checked rows",
        implied_from=(1, 3),
        switch=lambda metadata: bool(metadata.constraints),
    ),
    Feature(
        "changeDataFeed",
        _IF,
        "commits that both add and remove data must contain their cdc actions",
        implied_from=(1, 4),
        switch=_change_data_feed_on,
    ),
    Feature(
        "generatedColumns",
        _IF,
        "with a generated column, adds with dataChange true need checked rows",
        implied_from=(1, 4),
        switch=field_key("delta.generationExpression"),
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
        "with an identity column, adds with dataChange true need checked rows",
        implied_from=(1, 6),
        switch=field_key("delta.identity.start", "delta.identity.step"),
    ),
    Feature("allowColumnDefaults", _OK, ROWS_ONLY, switch=field_key(CURRENT_DEFAULT)),
    Feature(
        "deletionVectors",
        _IF,
        "an add with a deletion vector must have numRecords",
        reader=True,
        switch=property_on("delta.enableDeletionVectors"),
    ),
    Feature(
        "rowTracking",
        _IF,
        "an add must have numRecords, from which row ids are assigned",
        requires=("domainMetadata",),
        switch=property_on("delta.enableRowTracking"),
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
        switch=property_on("delta.enableInCommitTimestamps"),
    ),
    Feature("timestampNtz", _OK, ROWS_ONLY, reader=True, switch=type_used("timestamp_ntz")),
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
        switch=property_on("delta.enableTypeWidening"),
    ),
    Feature("typeWidening-preview", _IF, "as typeWidening", reader=True),
    Feature(
        "variantType",
        _OK,
        ROWS_ONLY,
        reader=True,
        replaces=("variantType-preview",),
        switch=type_used("variant"),
    ),
    Feature("variantType-preview", _OK, ROWS_ONLY, reader=True),
    Feature(
        "variantShredding",
        _OK,
        ROWS_ONLY,
        reader=True,
        requires=("variantType",),
        replaces=("variantShredding-preview",),
        switch=property_on("delta.enableVariantShredding"),
    ),
    Feature("variantShredding-preview", _OK, ROWS_ONLY, reader=True),
    Feature(
        "materializePartitionColumns",
        _IF,
        "adds to a partitioned table are rejected",
        switch=property_on("delta.enableMaterializePartitionColumnsFeature"),
    ),
    Feature(
        "icebergCompatV1",
        _IF,
        "rejected if delta.enableIcebergCompatV1 is on",
        requires=("columnMapping",),
        switch=property_on("delta.enableIcebergCompatV1"),
        refused_if_active=_ICEBERG,
    ),
    Feature(
        "icebergCompatV2",
        _IF,
        "rejected if delta.enableIcebergCompatV2 is on",
        requires=("columnMapping",),
        switch=property_on("delta.enableIcebergCompatV2"),
        refused_if_active=_ICEBERG,
    ),
    Feature(
        "icebergCompatV3",
        _NO,
        _ICEBERG,
        requires=("columnMapping", "rowTracking"),
        switch=property_on("delta.enableIcebergCompatV3"),
    ),
    Feature("icebergWriterCompatV1", _NO, _ICEBERG, requires=("icebergCompatV2",)),
    Feature("icebergWriterCompatV3", _NO, _ICEBERG, requires=("icebergCompatV3",)),
    Feature(
        "collations",
        _NO,
        "lakelog does not support statistics of collated strings",
        requires=("domainMetadata",),
        switch=field_key("__COLLATIONS"),
    ),
    Feature("collations-preview", _NO, "as collations", requires=("domainMetadata",)),
    Feature(
        "geospatial",
        _NO,
        "lakelog does not support its types",
        reader=True,
        replaces=("geospatial-dev",),
        switch=type_used("geometry", "geography"),
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
        switch=property_set("delta.coordinatedCommits.commitCoordinator-preview"),
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
        switch=property_set("delta.redirectReaderWriter-preview"),
    ),
    Feature(
        "redirectWriterOnly-preview",
        _NO,
        "the table was moved, and its writers must use the new location",
        switch=property_set("delta.redirectWriterOnly-preview"),
    ),
)

READER_FEATURES = frozenset(
    each.name for each in _DELTA if each.reader and each.stance is not Stance.REFUSED
)
"""Reader features of tables that lakelog reads."""

# Properties that may be set to this value concurrently, if the protocol supports the feature.
# Source: ConflictChecker.checkConfigurationChangesForConflicts.
_HARMLESS_WHEN_SET = {
    "delta.checkpointPolicy": ("v2Checkpoint", "v2"),
    "delta.enableDeletionVectors": ("deletionVectors", "true"),
    "delta.enableInCommitTimestamps": ("inCommitTimestamp", "true"),
    "delta.enableRowTracking": ("rowTracking", "true"),
}
_HARMLESS_WHEN_NEW = frozenset(
    {
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        "delta.rowTracking.materializedRowIdColumnName",
    }
)


class DeltaProtocol(ProtocolRules):
    """Delta's protocol rules.

    >>> DELTA_PROTOCOL.upgrade(Protocol(1, 2), ["changeDataFeed"])
    Protocol(min_reader_version=1, min_writer_version=4, reader_features=None, writer_features=None)
    >>> DELTA_PROTOCOL.upgrade(None, ["domainMetadata"]).writer_features
    ('appendOnly', 'domainMetadata', 'invariants')
    """

    features: Mapping[str, Feature] = {feature.name: feature for feature in _DELTA}
    default = Protocol(1, 2)
    last_versions = (_READER_LISTS, _WRITER_LISTS)
    summed_versions = (_READER_LISTS, _WRITER_LISTS)

    def implies(self, protocol: Protocol, feature: Feature) -> bool:
        """Only below writer version 7, and reader version 3 (Delta protocol, Table Features)."""
        reader_from, writer_from = feature.implied_from or (0, 0)
        by_reader = not feature.reader or reader_from <= protocol.min_reader_version < _READER_LISTS
        return by_reader and writer_from <= writer_version(protocol) < _WRITER_LISTS

    def needed(self, metadata: Metadata) -> frozenset[str]:
        """Features that properties and schema enable; `upgrade` refuses unknown names."""
        needed = set(super().needed(metadata))
        for key in metadata.configuration:
            if key.lower().startswith(FEATURE_PROPERTY):
                asked = key[len(FEATURE_PROPERTY) :]
                needed.add(_BY_LOWER_NAME.get(asked.lower(), asked))
        return frozenset(needed)

    def with_features(
        self, base: Protocol, added: list[Feature], supported: frozenset[str]
    ) -> Protocol:
        """Only versions if they imply all features, else lists."""
        writer = writer_version(base)
        names = {*supported, *(f.name for f in added)}
        versions = [f.implied_from for name in names if (f := self.features.get(name))]
        implied = [each for each in versions if each is not None]
        has_lists = base.min_reader_version == _READER_LISTS or writer == _WRITER_LISTS
        if not has_lists and len(implied) == len(names):
            return Protocol(
                max(base.min_reader_version, *(version for version, _ in implied)),
                max(writer, *(version for _, version in implied)),
            )
        if base.min_reader_version == _READER_LISTS - 1:
            # Readers of version 2 map columns, whatever the writer version is.
            names.add("columnMapping")
        readers = {name for name in names if name in self.features and self.features[name].reader}
        readers |= set(base.reader_features or ())
        # Version 2 implies "columnMapping" without a list; other readers' features must be listed.
        unlisted = {"columnMapping"} if base.min_reader_version == _READER_LISTS - 1 else set()
        if base.min_reader_version < _READER_LISTS and readers <= unlisted:
            return Protocol(
                base.min_reader_version, _WRITER_LISTS, None, in_order(base.writer_features, names)
            )
        return Protocol(
            _READER_LISTS,
            _WRITER_LISTS,
            in_order(base.reader_features, readers),
            in_order(base.writer_features, names),
        )

    def check_readable(self, protocol: Protocol, table: str) -> None:
        """Raise for a reader version or a reader feature that lakelog does not support."""
        if not 0 <= protocol.min_reader_version <= MAX_READER_VERSION:
            raise UnsupportedFeatureError(
                "the table needs a newer reader",
                path=table,
                expected=f"minReaderVersion 1 to {MAX_READER_VERSION}",
                found=protocol.min_reader_version,
                hint="upgrade lakelog",
            )
        if protocol.min_reader_version == MAX_READER_VERSION and protocol.reader_features is None:
            raise CorruptionError(
                "the protocol has reader version 3 but no readerFeatures",
                path=table,
                expected="readerFeatures",
                found=None,
                hint="the protocol action violates the Delta protocol; repair the log",
            )
        for feature in sorted(protocol.reader_features or ()):
            if feature in READER_FEATURES:
                continue
            reason = REFUSED.get(feature, "lakelog does not support it")
            raise UnsupportedFeatureError(
                f"the table needs the reader feature {feature!r}: {reason}",
                path=table,
                expected=", ".join(sorted(READER_FEATURES)),
                found=feature,
                hint="read the table through its catalog"
                if "catalog" in feature
                else "upgrade lakelog",
            )

    def mislisted(self, protocol: Protocol) -> dict[str, str]:
        """Also names in a list that the versions do not have, which other engines ignore."""
        reader, writer = protocol.min_reader_version, writer_version(protocol)
        readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
        known = {name for name, feature in self.features.items() if feature.reader}
        of_readers = known & writers | readers
        by_version = {"columnMapping"} if reader == _READER_LISTS - 1 else set()
        if reader != _READER_LISTS:
            readers = by_version
        if writer != _WRITER_LISTS:
            writers = by_version | self.supported(Protocol(reader, writer))
        return dict.fromkeys(of_readers - readers, "readerFeatures") | dict.fromkeys(
            listed(protocol) - writers, "writerFeatures"
        )

    def check_lists_of_table(self, protocol: Protocol, table: str) -> None:
        """Writer version 7 has a list, reader version 3 requires it, and no name is `mislisted`
        except `columnMapping` at reader version 3, which may be only in that of writers, as for
        other engines.
        """
        reader, writer = protocol.min_reader_version, writer_version(protocol)
        if writer == _WRITER_LISTS and protocol.writer_features is None:
            raise CorruptionError(
                "the protocol has writer version 7 but no writerFeatures",
                path=table,
                expected="writerFeatures",
                hint=_REPAIR,
            )
        if writer != _WRITER_LISTS and reader == _READER_LISTS:
            raise CorruptionError(
                "reader version 3 requires writer version 7",
                path=table,
                expected=7,
                found=writer,
                hint=_REPAIR,
            )
        for name, lacks in sorted(self.mislisted(protocol).items()):
            if (name, lacks, reader) == ("columnMapping", "readerFeatures", _READER_LISTS):
                continue
            version = _READER_LISTS if lacks == "readerFeatures" else _WRITER_LISTS
            raise CorruptionError(
                f"the protocol {reader}/{writer} has the feature {name!r}, but not in {lacks} of "
                f"version {version}: other engines ignore it or refuse the table",
                path=table,
                expected=f"{name} in {lacks}",
                found=[protocol.reader_features, protocol.writer_features],
                hint=f"repair the protocol with Table.alter.upgrade([{name!r}])",
            )

    def is_harmless_change(
        self,
        key: str,
        old: Mapping[str, str | None],
        new: Mapping[str, str | None],
        features: frozenset[str],
    ) -> bool:
        """Enabling a feature that existing files need not follow."""
        if key in _HARMLESS_WHEN_SET:
            feature, value = _HARMLESS_WHEN_SET[key]
            return feature in features and (new[key] or "").lower() == value
        if key.startswith("delta.rowTracking.") and not is_on(new, "delta.enableRowTracking"):
            return False
        return key in _HARMLESS_WHEN_NEW and key not in old

    def check_lists(self, protocol: Protocol) -> None:
        """Lists are allowed only with reader version 3 and writer version 7."""
        reader, writer = protocol.min_reader_version, writer_version(protocol)
        if reader == _READER_LISTS and writer != _WRITER_LISTS:
            raise InvalidProtocolError(
                "reader version 3 requires writer version 7", expected=_WRITER_LISTS, found=writer
            )
        for field, names, belongs in (
            ("readerFeatures", protocol.reader_features, reader == _READER_LISTS),
            ("writerFeatures", protocol.writer_features, writer == _WRITER_LISTS),
        ):
            if (names is not None) != belongs:
                raise InvalidProtocolError(
                    (
                        f"{field} {'is missing' if belongs else 'is not allowed'} at versions "
                        f"{reader}/{writer}"
                    ),
                    expected="readerFeatures at reader version 3 only, writerFeatures at writer "
                    "version 7 only",
                    found=None if names is None else list(names),
                )
        check_names(self, protocol)
        for name in sorted(self.mislisted(protocol)):
            raise InvalidProtocolError(
                f"writerFeatures contains {name!r}, which must also be in readerFeatures",
                expected=f"{name} in readerFeatures, at reader version 3",
                found=list(protocol.reader_features or ()),
            )


DELTA_PROTOCOL = DeltaProtocol()
_BY_LOWER_NAME = {name.lower(): name for name in DELTA_PROTOCOL.features}
