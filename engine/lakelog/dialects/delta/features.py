"""Reader features of Delta: those that change the file-level state, and those that change only
rows.

Source: Delta protocol, Valid Feature Names in Table Features; Reader Version Requirements.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakelog.errors import CorruptionError, UnsupportedFeatureError

MAX_READER_VERSION = 3

ROW_ONLY = frozenset(
    {
        "columnMapping",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
    }
)
"""Features that matter to a process that decodes rows; the log reads the same with or without
them.
"""

HONOURED = frozenset({"deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that concern the log, and that lakelog's log reading honours."""

REFUSED = {
    "catalogManaged": "only the table's catalog knows which commits are ratified",
    "catalogOwned": "only the table's catalog knows which commits are ratified",
    "catalogOwned-preview": "only the table's catalog knows which commits are ratified",
    "adaptiveMetadata": "it replaces the checkpoints that lakelog reads",
    "adaptiveMetadata-preview": "it replaces the checkpoints that lakelog reads",
}
"""Features whose meaning would change the file-level state, with the reason to refuse."""


def check_readable(
    min_reader_version: int, reader_features: Iterable[str] | None, table: str
) -> None:
    """Refuse a protocol that lakelog's log reading does not honour."""
    if not 0 <= min_reader_version <= MAX_READER_VERSION:
        raise UnsupportedFeatureError(
            "the table needs a newer reader",
            path=table,
            expected=f"minReaderVersion 1 to {MAX_READER_VERSION}",
            found=min_reader_version,
            hint="upgrade lakelog",
        )
    if min_reader_version == MAX_READER_VERSION and reader_features is None:
        raise CorruptionError(
            "the protocol has reader version 3 but no readerFeatures",
            path=table,
            expected="readerFeatures",
            found=None,
            hint="the protocol action violates the Delta protocol; repair the log",
        )
    for feature in sorted(reader_features or ()):
        if feature in ROW_ONLY or feature in HONOURED:
            continue
        reason = REFUSED.get(feature, "lakelog does not support it")
        raise UnsupportedFeatureError(
            f"the table needs the reader feature {feature!r}: {reason}",
            path=table,
            expected=", ".join(sorted(ROW_ONLY | HONOURED)),
            found=feature,
            hint="read the table through its catalog"
            if "catalog" in feature
            else "upgrade lakelog",
        )
