"""The effect of a concurrent protocol or metadata change on a transaction.

Pure functions over two values of each, answering with names of what is in the way; which error
that makes is `conflicts`' to say. Whether lakelog may write under the new protocol at all is asked
by the gates, again at every attempt.
"""

from __future__ import annotations

from typing import Any

import orjson

from lakelog.dialects.delta.protocol import constraints
from lakelog.dialects.features import writer_version
from lakelog.dialects.protocol_rules import ProtocolRules
from lakelog.model.metadata import Metadata, Protocol, is_on

# Features that ask nothing of a writer until metadata turns them on (which `metadata_changes`
# judges), or whose demands are met again at every attempt, as row ids and commit timestamps are.
# Source: TableFeature.failConcurrentTransactionsAtUpgrade = false.
_HARMLESS_WHEN_ADDED = frozenset(
    {
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

_IDENTITY_HIGH_WATER_MARK = "delta.identity.highWaterMark"

_FIELDS = {
    "id": "id",
    "name": "name",
    "description": "description",
    "format_provider": "format.provider",
    "format_options": "format.options",
    "partition_columns": "partitionColumns",
    "created_time": "createdTime",
}


def demands(protocol: Protocol, rules: ProtocolRules) -> frozenset[str]:
    """What a protocol asks of a writer: the features that it supports, and versions that are more
    than their features, such as ``minWriterVersion 8``; in IndexTables every version is.
    """
    reader, writer = protocol.min_reader_version, writer_version(protocol)
    summed_reader, summed_writer = rules.summed_versions
    return (
        rules.supported(protocol)
        | {f"minReaderVersion {v}" for v in range(summed_reader + 1, reader + 1)}
        | {f"minWriterVersion {v}" for v in range(summed_writer + 1, writer + 1)}
    )


def dropped_features(old: Protocol, new: Protocol, rules: ProtocolRules) -> list[str]:
    """What `old` asks of a writer and `new` does not, sorted."""
    return sorted(demands(old, rules) - demands(new, rules))


def binding_features(old: Protocol, new: Protocol, rules: ProtocolRules) -> list[str]:
    """What `new` adds and what may bind a writer from that commit on, sorted.

    A feature that is not known to bind no process at first is taken to bind.
    """
    added = demands(new, rules) - demands(old, rules)
    return sorted(added - _HARMLESS_WHEN_ADDED)


def metadata_changes(
    old: Metadata,
    new: Metadata,
    protocol: Protocol,
    rules: ProtocolRules,
) -> list[str]:
    """What `new` changes that a transaction under way may depend on, by name, sorted.

    Left out are changes after which whatever was prepared before is still right: an identity
    column's high water mark, a feature's being turned on that existing files need not follow, and
    schemas added to the IndexTables registry.
    """
    changes = [
        name for field, name in _FIELDS.items() if getattr(old, field) != getattr(new, field)
    ]
    if _schema(old.schema_string) != _schema(new.schema_string):
        changes.append("schemaString")
    features = rules.supported(protocol)
    for key in {*old.configuration, *new.configuration}:
        same = (key in old.configuration) == (key in new.configuration)
        if same and old.configuration.get(key) == new.configuration.get(key):
            continue
        if key not in new.configuration or not rules.is_harmless_change(
            key, old.configuration, new.configuration, features
        ):
            changes.append(f"configuration.{key}")
    return sorted(changes)


def tightened(old: Metadata, new: Metadata) -> str | None:
    """What in `new` speaks of every file of the table, so that a file added unseen may break it:
    the partition columns, a constraint, or row tracking; None where nothing does.
    """
    if old.partition_columns != new.partition_columns:
        return "partitionColumns"
    for key, value in constraints(new).items():
        if old.configuration.get(key) != value:
            return key
    tracking = "delta.enableRowTracking"
    if is_on(new.configuration, tracking) and not is_on(old.configuration, tracking):
        return "delta.enableRowTracking"
    return None


def _schema(text: str | None) -> Any:
    """A schema to compare: its JSON without high water marks; the text where it is not JSON."""
    if text is None:
        return None
    try:
        return _without_high_water_marks(orjson.loads(text))
    except orjson.JSONDecodeError:
        return text


def _without_high_water_marks(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _without_high_water_marks(value)
            for key, value in node.items()
            if key != _IDENTITY_HIGH_WATER_MARK
        }
    if isinstance(node, list):
        return [_without_high_water_marks(value) for value in node]
    return node
