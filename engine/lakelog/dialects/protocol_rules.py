"""The protocol rules of a dialect, and the configuration of one table under them.

Each dialect declares `ProtocolRules`: its features, its versions, and how its protocol is upgraded.
Everything else is derived from that. Pure; upgrades never remove a feature.

Source: Delta protocol, Protocol Evolution, Table Features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

from lakelog.dialects.features import Feature, Stance, listed, writer_version
from lakelog.dialects.properties import changed
from lakelog.errors import CorruptionError, InvalidProtocolError, UnsupportedFeatureError
from lakelog.model import contract
from lakelog.model.metadata import Metadata, Protocol, mapping_mode

if TYPE_CHECKING:
    from lakelog.dialects.base import Dialect


class ProtocolRules(ABC):
    """The protocol rules of a dialect; one stateless instance per dialect."""

    features: Mapping[str, Feature]
    """The features that lakelog knows, by name."""

    default: Protocol
    """Protocol of a new table that needs no feature."""

    last_versions: tuple[int, int]
    """The highest reader and writer version that lakelog supports."""

    summed_versions: tuple[int, int] = (0, 0)
    """Reader and writer versions up to which a version implies all features of lower ones, and
    nothing else.
    """

    @abstractmethod
    def implies(self, protocol: Protocol, feature: Feature) -> bool:
        """Whether the versions of `protocol` imply `feature`, which has ``implied_from``."""

    @abstractmethod
    def with_features(
        self, base: Protocol, added: list[Feature], supported: frozenset[str]
    ) -> Protocol:
        """The lowest protocol with all of `supported`, which `base` supports, and `added`."""

    @abstractmethod
    def check_readable(self, protocol: Protocol, table: str) -> None:
        """Raise UnsupportedFeatureError (version or feature in ``found``) for a protocol that
        lakelog cannot read, CorruptionError for an invalid one.
        """

    def check_readable_by_writer(self, protocol: Protocol, table: str) -> None:
        """As `check_readable`, before the check of writers."""
        self.check_readable(protocol, table)

    def needed(self, metadata: Metadata) -> frozenset[str]:
        """Features that the metadata enable, without their dependencies, which `upgrade` adds."""
        return frozenset(
            f.name for f in self.features.values() if f.switch is not None and f.switch(metadata)
        )

    def mislisted(self, protocol: Protocol) -> Mapping[str, str]:  # noqa: ARG002 - a dialect need not have lists
        """Features of a table's protocol that a list lacks, with the list; `upgrade` adds them."""
        return {}

    def check_lists(self, protocol: Protocol) -> None:
        """Raise InvalidProtocolError for lists that contradict each other or the versions."""
        check_names(self, protocol)

    def check_lists_of_table(self, protocol: Protocol, table: str) -> None:  # noqa: B027 - a dialect need not have lists
        """Raise CorruptionError if a table's protocol lacks a list or contradicts itself."""

    def is_harmless_change(
        self,
        key: str,
        old: Mapping[str, str | None],
        new: Mapping[str, str | None],
        features: frozenset[str],
    ) -> bool:
        """Whether prepared work remains valid if property `key` changes concurrently."""
        del key, old, new, features
        return False

    def supported(self, protocol: Protocol) -> frozenset[str]:
        """Features that a protocol supports: those listed, and those that its versions imply."""
        return _supported(self, protocol)

    def unknown_to_writers(self, protocol: Protocol) -> list[str]:
        """What a protocol requires of writers that lakelog does not know: version and features."""
        last = self.last_versions[1]
        version = protocol.min_writer_version
        if version is None:
            return []
        newer = [f"minWriterVersion {version}"] if version > last else []
        return newer + sorted(self.supported(protocol) - self.features.keys())

    def with_required(self, names: Iterable[str]) -> frozenset[str]:
        """`names` and all their direct and indirect dependencies; unknown names are kept."""
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.features[name].requires if name in self.features else ()
        return frozenset(found)

    def upgrade(self, protocol: Protocol | None, features: Iterable[str]) -> Protocol:
        """The lowest protocol with all features of `protocol`, and `features` (Delta protocol,
        Table Features for New and Existing Tables).
        """
        base = protocol or self.default
        supported = self.supported(base)
        there = supported - self.mislisted(base).keys()
        asked = self._not_satisfied(features, there)
        missing = self._not_satisfied(self.with_required(asked), there)
        for name in (*sorted(asked), *sorted(missing - asked)):
            self._refuse_unwritable(name)
        if not missing:
            return base
        return self.with_features(base, [self.features[name] for name in missing], supported)

    def check_change(self, old: Protocol | None, new: Protocol) -> None:
        """Raise for an invalid protocol, or one that removes support (Delta protocol, Protocol
        Evolution; Table Features; Supported Features).
        """
        self._check_versions(new)
        self.check_lists(new)
        there = self.supported(new)
        before = frozenset() if old is None else self.supported(old)
        for name in sorted(there - before):
            self._refuse_unwritable(name)
            for needed in sorted(self._not_satisfied(self.features[name].requires, there)):
                raise InvalidProtocolError(
                    f"the feature {name!r} depends on {needed!r}, which the protocol lacks",
                    expected=needed,
                    found=sorted(there),
                )
        if old is None:
            return
        for reader_or_writer, had, has in (
            ("minReaderVersion", old.min_reader_version, new.min_reader_version),
            ("minWriterVersion", writer_version(old), writer_version(new)),
        ):
            if has < had:
                raise InvalidProtocolError(
                    f"{reader_or_writer} must not decrease", expected=f"at least {had}", found=has
                )
        for name in sorted(before - there):
            raise InvalidProtocolError(
                f"the protocol would lose the feature {name!r}",
                expected=name,
                found=sorted(there),
                hint="drop the feature with an engine that removes its traces first",
            )

    def _check_versions(self, protocol: Protocol) -> None:
        last_reader, last_writer = self.last_versions
        for name, version, last in (
            ("minReaderVersion", protocol.min_reader_version, last_reader),
            ("minWriterVersion", writer_version(protocol), last_writer),
        ):
            if version < 1:
                raise InvalidProtocolError(
                    f"{name} must be at least 1", expected=f"1 to {last}", found=version
                )
            if version > last:
                raise UnsupportedFeatureError(
                    f"{name} is higher than lakelog supports",
                    expected=f"{name} 1 to {last}",
                    found=version,
                    hint="upgrade lakelog",
                )

    def without_satisfied(self, names: Iterable[str], protocol: Protocol) -> frozenset[str]:
        """The features that a protocol does not support, nor another one that replaces them."""
        return frozenset(self._not_satisfied(names, self.supported(protocol)))

    def _not_satisfied(self, names: Iterable[str], there: frozenset[str]) -> set[str]:
        known = self.features
        return {
            name
            for name in names
            if name not in there
            and not (name in known and there.intersection(known[name].replaces))
        }

    def _refuse_unwritable(self, name: str) -> None:
        feature = self.features.get(name)
        if feature is None or feature.stance is Stance.REFUSED:
            reason = "lakelog does not support it" if feature is None else feature.note
            raise UnsupportedFeatureError(
                f"lakelog could not write a table with the feature {name!r}: {reason}",
                expected=", ".join(
                    f.name for f in self.features.values() if f.stance is not Stance.REFUSED
                ),
                found=name,
            )


@lru_cache(maxsize=64)
def _supported(rules: ProtocolRules, protocol: Protocol) -> frozenset[str]:
    writer_version(protocol)  # a protocol without it is damaged
    implied = (
        feature.name
        for feature in rules.features.values()
        if feature.implied_from is not None and rules.implies(protocol, feature)
    )
    return listed(protocol) | frozenset(implied)


def check_names(rules: ProtocolRules, protocol: Protocol) -> None:
    """Raise for a repeated name, a name in the wrong list, or one that only readers have."""
    known = rules.features
    for field, names in (
        ("readerFeatures", protocol.reader_features or ()),
        ("writerFeatures", protocol.writer_features or ()),
    ):
        for name in names:
            if names.count(name) > 1:
                raise InvalidProtocolError(f"{field} contains {name!r} twice", found=list(names))
            if field == "readerFeatures" and name in known and not known[name].reader:
                raise InvalidProtocolError(
                    f"{name!r} is a writer-only feature",
                    expected="writerFeatures",
                    found=field,
                )
    for name in protocol.reader_features or ():
        if name not in (protocol.writer_features or ()):
            raise InvalidProtocolError(
                f"readerFeatures contains {name!r}, but writerFeatures does not",
                expected=name,
                found=list(protocol.writer_features or ()),
            )


def in_order(old: tuple[str, ...] | None, names: Iterable[str]) -> tuple[str, ...]:
    """The names of an old list, then new ones of `names`, sorted."""
    kept = tuple(dict.fromkeys(old or ()))
    return (*kept, *sorted(set(names) - set(kept)))


@dataclass(frozen=True)
class TableConfiguration:
    """Protocol and metadata of one table version, under the rules of its dialect."""

    dialect: Dialect
    protocol: Protocol
    metadata: Metadata

    @property
    def rules(self) -> ProtocolRules:
        """The protocol rules of its dialect."""
        return self.dialect.protocol_rules

    def changed(
        self, protocol: Protocol | None = None, metadata: Metadata | None = None
    ) -> TableConfiguration:
        """The configuration with another protocol or metadata, if given."""
        return TableConfiguration(
            self.dialect, protocol or self.protocol, metadata or self.metadata
        )

    def supports(self, *names: str) -> bool:
        """Whether the dialect has one of the features `names`, and the protocol supports it."""
        known = self.rules.features
        there = self.rules.supported(self.protocol)
        return any(name in known and name in there for name in names)

    def is_active(self, name: str) -> bool:
        """Whether a feature is supported and enabled (Delta protocol, Active Features)."""
        if not self.supports(name):
            return False
        switch = self.rules.features[name].switch
        return switch is None or switch(self.metadata)

    def needed_by(self, metadata: Metadata, asked: Collection[str] = ()) -> frozenset[str]:
        """Features that a change to `metadata` needs. Those that the metadata enabled before,
        against the protocol, stay ignored, unless a property that is changed or `asked` for, or a
        changed column, enables them.
        """
        needed = self.rules.needed(metadata)
        if not (ignored := self.ignored() & needed):
            return needed
        fields = [without_comment(f) for f in self.metadata.schema.fields]
        schema = contract.Struct(
            tuple(f for f in metadata.schema.fields if without_comment(f) not in fields)
        )
        new, old = metadata.configuration, self.metadata.configuration
        properties = changed(new, old) | {key: new[key] for key in asked if key in new}
        return needed - ignored | self.rules.needed(_part(metadata, schema, properties))

    def metadata_before(self, later: TableConfiguration) -> Metadata:
        """The metadata, without properties that were ignored, because the protocol did not support
        their features, and that `later` applies.
        """
        if later.protocol == self.protocol:
            return self.metadata
        ignored = frozenset(name for name in self.ignored() if later.supports(name))
        if not ignored:
            return self.metadata
        empty, properties = contract.Struct(()), self.metadata.configuration
        kept = {
            key: value
            for key, value in properties.items()
            if not ignored & self.rules.needed(_part(self.metadata, empty, {key: value}))
        }
        return replace(self.metadata, configuration=kept)

    def ignored(self) -> frozenset[str]:
        """Features that the metadata enable, and the protocol does not support. Readers of version
        2 map columns also if the protocol does not support it for writers.
        """
        try:
            needed = self.rules.needed(self.metadata)
        except CorruptionError:
            return frozenset()
        mapped = {"columnMapping"} if self.column_mapping != "none" else set()
        return self.rules.without_satisfied(needed - mapped, self.protocol)

    @property
    def column_mapping(self) -> str:
        """Effective column mapping mode: ``none`` if the dialect has no mapping."""
        if "columnMapping" not in self.rules.features:
            return "none"
        return mapping_mode(self.protocol, self.metadata)


def without_comment(field: contract.Field) -> contract.Field:
    """A column without its comment."""
    return replace(field, metadata={k: v for k, v in field.metadata.items() if k != "comment"})


def _part(
    metadata: Metadata, schema: contract.Struct, properties: Mapping[str, str | None]
) -> Metadata:
    text = orjson.dumps(contract.to_json(schema)).decode()
    return replace(metadata, schema_string=text, configuration=dict(properties))
