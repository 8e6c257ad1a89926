"""Table features, and the metadata that enable them.

Each dialect has a table of its features: which readers and writers must support each, which old
protocol versions imply it, its dependencies, the metadata that enable it, and whether lakelog
writes tables with it. A feature that is not in the table is rejected by name.

lakelog writes logs, not rows: a commit refers to files that another process has written. A feature
whose rules concern the content of files is therefore supported only if the log shows compliance.

Source: Delta protocol, Table Features, Valid Feature Names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lakelog.errors import CorruptionError
from lakelog.model import contract
from lakelog.model.contract import fields_of, leaf_types
from lakelog.model.metadata import Metadata, Protocol, is_on

FEATURE_PROPERTY = "delta.feature."
"""Prefix of properties that request a feature by name when a table is created or altered."""

ROWS_ONLY = "only writers of rows must support it"
"""Note of features without requirements for writers of logs."""


class Stance(Enum):
    """Support for tables with a feature."""

    HONOURED = "honoured"
    CONDITIONAL = "supported if its rule is fulfilled, which is checked at each commit"
    REFUSED = "refused"


@dataclass(frozen=True)
class Feature:
    """One table feature. `implied_from` are the protocol versions (reader, writer) that imply it;
    None if it must be listed; for IndexTables, the minimum versions. `replaces` are earlier forms,
    any of which is sufficient. `switch` returns whether metadata enable it. `refused_if_active` is
    why a table with the active feature is not written.
    """

    name: str
    stance: Stance
    note: str
    reader: bool = False
    implied_from: tuple[int, int] | None = None
    requires: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    switch: Callable[[Metadata], bool] | None = None
    refused_if_active: str = ""
    remedy: str = "write the table with an engine that supports it"


def has_field_key(metadata: Metadata, *keys: str) -> bool:
    """Whether a column at any depth has one of `keys` in its field metadata."""
    if metadata.schema_string is None or not any(key in metadata.schema_string for key in keys):
        return False  # a key that is not in the text is in no field, and most tables have none
    return any(key in at.field.metadata for at in fields_of(metadata.schema) for key in keys)


def property_on(key: str) -> Callable[[Metadata], bool]:
    """A switch: a Boolean property is true."""
    return lambda metadata: is_on(metadata.configuration, key)


def property_set(key: str) -> Callable[[Metadata], bool]:
    """A switch: a property is set."""
    return lambda metadata: metadata.configuration.get(key) is not None


def field_key(*keys: str) -> Callable[[Metadata], bool]:
    """A switch: a column at any depth has one of `keys` in its field metadata."""
    return lambda metadata: has_field_key(metadata, *keys)


def type_used(*prefixes: str) -> Callable[[Metadata], bool]:
    """A switch: a column has a type whose name begins with one of `prefixes`."""

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
    """Names in the protocol's lists, at any version."""
    return frozenset(protocol.reader_features or ()) | frozenset(protocol.writer_features or ())
