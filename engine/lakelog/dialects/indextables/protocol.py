"""IndexTables' protocol: the features that lakelog reads, writes or rejects, and versions.

=======  ==================================================================
version  adds
=======  ==================================================================
1        add, remove, metaData; tables without a protocol action
2        mergeskip, footer offsets, extended add fields
3        multi-part checkpoints, docMappingRef, feature lists (columnarCommits among them)
4        Avro state
=======  ==================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lakelog.dialects.features import ROWS_ONLY, Feature, Stance, listed, writer_version
from lakelog.dialects.indextables.docmapping import REGISTRY_PREFIX
from lakelog.dialects.protocol_rules import ProtocolRules, check_names, in_order
from lakelog.errors import CorruptionError, InvalidProtocolError, UnsupportedFeatureError
from lakelog.model.metadata import Metadata, Protocol

LISTS_FROM = 3
"""Version from which features may be listed."""

_MIN_READER_VERSION = 1
MAX_READER_VERSION = 4
STATE_PROTOCOL = 4
"""Minimum reader version of tables whose readers assume that ``_last_checkpoint`` refers to an Avro
state.
"""

OWN_FEATURE = "columnarCommits"
"""lakelog's own reader feature: readers of a table with it implement ``schemas/``, and therefore
support flattened checkpoints.
"""


def has_flattened_checkpoints(reader_features: Collection[str] | None) -> bool:
    """Whether every reader of a table supports flattened checkpoints."""
    return OWN_FEATURE in (reader_features or ())


def check_readable(version: int | None, features: Iterable[str] | None, table: str) -> None:
    """Raise for a protocol above 4, or an unknown reader feature."""
    if version is None or version < _MIN_READER_VERSION:
        raise CorruptionError(
            "the protocol has no valid minReaderVersion",
            path=table,
            expected=f"minReaderVersion {_MIN_READER_VERSION} to {MAX_READER_VERSION}",
            found=version,
        )
    if version > MAX_READER_VERSION:
        raise UnsupportedFeatureError(
            "the table needs a newer reader",
            path=table,
            expected=f"minReaderVersion up to {MAX_READER_VERSION}",
            found=f"minReaderVersion {version}",
            hint="upgrade lakelog",
        )
    # Lists belong to version 3 and later. If an older protocol has one, its features are required
    # too.
    for feature in sorted(set(features or ()) - READER_FEATURES):
        raise UnsupportedFeatureError(
            f"the table needs the reader feature {feature!r}",
            path=table,
            expected=", ".join(sorted(READER_FEATURES)),
            found=feature,
            hint="upgrade lakelog",
        )


def is_raised(found: Protocol, expected: Protocol) -> bool:
    """Whether a protocol has higher versions than another, and the same features."""
    versions = (found.min_reader_version, found.min_writer_version or 0)
    least = (expected.min_reader_version, expected.min_writer_version or 0)
    return (
        versions != least
        and all(a >= b for a, b in zip(versions, least, strict=True))
        and set(found.reader_features or ()) == set(expected.reader_features or ())
        and set(found.writer_features or ()) == set(expected.writer_features or ())
    )


_OK, _NO = Stance.HONOURED, Stance.REFUSED

_INDEXTABLES = (
    Feature("skippedFiles", _OK, "mergeskip actions", reader=True, implied_from=(2, 2)),
    Feature("extendedMetadata", _OK, "more fields of an add", reader=True, implied_from=(2, 2)),
    Feature("footerOffsets", _OK, "footer offsets of an add", reader=True, implied_from=(2, 2)),
    Feature("checkpoint", _OK, "it applies only to checkpoints", implied_from=(2, 2)),
    Feature("optimizeWrite", _OK, ROWS_ONLY, implied_from=(2, 2)),
    Feature("multiPartCheckpoint", _OK, "checkpoints only", reader=True, implied_from=(3, 3)),
    Feature("schemaDeduplication", _OK, "docMappingRef", reader=True, implied_from=(3, 3)),
    Feature(OWN_FEATURE, _OK, "a commit may be one Parquet file", reader=True),
    Feature(
        "avroState",
        _NO,
        "IndexTables commits to such a table by state directories, which a JSON commit "
        "of the same version does not exclude, so one of the two would be lost; a "
        "checkpoint of IndexTables raises a table to this protocol even if it has no "
        "state yet",
        reader=True,
        implied_from=(4, 4),
        remedy="write the table with IndexTables only; a table that both write must remain "
        "below protocol 4: set spark.indextables.state.format to json and "
        "spark.indextables.checkpoint.enabled to false in each IndexTables session, "
        "and let lakelog write the checkpoints",
    ),
)

READER_FEATURES = frozenset(feature.name for feature in _INDEXTABLES if feature.reader)
"""Supported reader features, by the names of the reference implementation; ``columnarCommits`` is
lakelog's own.
"""


class IndexTablesProtocol(ProtocolRules):
    """IndexTables' protocol rules. New tables have version 2: older clients refuse 3, which adds
    only multi-part checkpoints.
    """

    features: Mapping[str, Feature] = {feature.name: feature for feature in _INDEXTABLES}
    default = Protocol(2, 2)
    last_versions = (4, 4)

    def implies(self, protocol: Protocol, feature: Feature) -> bool:
        """A version includes the features of all lower ones, except ``columnarCommits``."""
        version = protocol.min_reader_version if feature.reader else writer_version(protocol)
        return version >= (feature.implied_from or (0, 0))[1]

    def needed(self, metadata: Metadata) -> frozenset[str]:
        """Registered document mappings need ``schemaDeduplication``."""
        by_reference = any(key.startswith(REGISTRY_PREFIX) for key in metadata.configuration)
        return frozenset({"schemaDeduplication"} if by_reference else ())

    def with_features(
        self,
        base: Protocol,
        added: list[Feature],
        supported: frozenset[str],  # noqa: ARG002 - features of a version need no list
    ) -> Protocol:
        """Sufficiently high versions; only features later than version 2 are listed."""
        reader, writer = base.min_reader_version, writer_version(base)
        for feature in added:
            needs_reader, needs_writer = feature.implied_from or (LISTS_FROM, LISTS_FROM)
            writer = max(writer, needs_writer)
            if feature.reader:
                reader = max(reader, needs_reader)
        # Features of version 2 are never listed.
        names = {f.name for f in added if f.implied_from is None or f.implied_from[1] > 2}
        readers = {f.name for f in added if f.name in names and f.reader}
        return Protocol(
            reader,
            writer,
            in_order(base.reader_features, readers | set(base.reader_features or ())) or None,
            in_order(base.writer_features, names | set(base.writer_features or ())) or None,
        )

    def check_readable(self, protocol: Protocol, table: str) -> None:
        """As `check_readable`."""
        check_readable(protocol.min_reader_version, protocol.reader_features, table)

    def check_readable_by_writer(self, protocol: Protocol, table: str) -> None:
        """As `check_readable`, but known features are left to the check of writers."""
        features = [f for f in protocol.reader_features or () if f not in self.features]
        check_readable(protocol.min_reader_version, features, table)

    def is_harmless_change(
        self,
        key: str,
        old: Mapping[str, str | None],
        new: Mapping[str, str | None],
        features: frozenset[str],
    ) -> bool:
        """A schema added to the registry, whose keys contain the hash of their value."""
        del new, features
        return key.startswith(REGISTRY_PREFIX) and key not in old

    def check_lists(self, protocol: Protocol) -> None:
        """Lists require version 3, and each feature its version."""
        check_names(self, protocol)
        version = min(protocol.min_reader_version, writer_version(protocol))
        names = listed(protocol)
        if names and writer_version(protocol) < LISTS_FROM:
            raise InvalidProtocolError(
                "features are listed below version 3", expected=LISTS_FROM, found=version
            )
        for name in sorted(names & self.features.keys()):
            feature = self.features[name]
            needs = (feature.implied_from or (LISTS_FROM, LISTS_FROM))[1]
            has = version if feature.reader else writer_version(protocol)
            if has < needs:
                raise InvalidProtocolError(
                    f"the feature {name!r} requires version {needs}", expected=needs, found=has
                )
            if feature.reader and name not in (protocol.reader_features or ()):
                raise InvalidProtocolError(
                    f"writerFeatures contains {name!r}, which must also be in readerFeatures",
                    expected=f"{name} in readerFeatures",
                    found=list(protocol.reader_features or ()),
                )


INDEXTABLES_PROTOCOL = IndexTablesProtocol()
