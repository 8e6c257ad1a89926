"""Checks that lakelog supports the protocol of a table.

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

from collections.abc import Collection, Mapping

from lakelog.errors import CorruptionError, UnsupportedFeatureError

MIN_READER_VERSION = 1
MAX_READER_VERSION = 4
STATE_PROTOCOL = 4
"""Least reader version whose readers take ``_last_checkpoint`` for an Avro state."""

READER_FEATURES = frozenset(
    {
        "skippedFiles",
        "extendedMetadata",
        "footerOffsets",
        "multiPartCheckpoint",
        "schemaDeduplication",
        "avroState",
        "columnarCommits",
    }
)
"""Reader features that this reader honours, by the names of the reference; ``columnarCommits`` is
lakelog's own."""

OWN_FEATURE = "columnarCommits"
"""The reader feature that lakelog brought: who reads a table that has it knows ``schemas/``, and so
flattened checkpoints."""


def knows_flattened(reader_features: Collection[str] | None) -> bool:
    """Whether every reader that may open a table knows flattened checkpoints.

    >>> knows_flattened(None), knows_flattened(["columnarCommits"])
    (False, True)
    """
    return OWN_FEATURE in (reader_features or ())


def check_readable(protocol: Mapping[str, object], table: str) -> None:
    """Refuse a protocol that this reader does not honour."""
    version = protocol.get("minReaderVersion")
    if not isinstance(version, int) or version < MIN_READER_VERSION:
        raise CorruptionError(
            "the protocol has no minReaderVersion",
            path=table,
            expected=f"minReaderVersion {MIN_READER_VERSION} to {MAX_READER_VERSION}",
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
    # Lists belong to version 3 and later. An older protocol that carries one all the same is
    # still asking for what it names.
    features = protocol.get("readerFeatures")
    listed = [str(f) for f in features] if isinstance(features, list | tuple | set) else []
    for feature in sorted(set(listed) - READER_FEATURES):
        raise UnsupportedFeatureError(
            f"the table needs the reader feature {feature!r}",
            path=table,
            expected=", ".join(sorted(READER_FEATURES)),
            found=feature,
            hint="upgrade lakelog",
        )
