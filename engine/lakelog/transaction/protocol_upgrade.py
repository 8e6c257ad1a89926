"""The features that a table needs, upgrades of the protocol, and allowed changes.

`upgrade` is the one function that turns features into versions and lists. Pure; nothing is ever
removed from a protocol here.

Source: Delta protocol, Protocol Evolution, Table Features; facts on IndexTables' protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakelog.errors import InvalidProtocolError, UnsupportedFeatureError
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.features import (
    DELTA,
    FEATURE_PROPERTY,
    Feature,
    Stance,
    features_of,
    listed,
    supported,
    with_required,
    writer_version,
)

READER_LISTS = 3
"""Delta reader version from which readers' features are listed."""

WRITER_LISTS = 7
"""Delta writer version from which features are listed."""

INDEXTABLES_LISTS = 3
"""IndexTables version from which features may be listed."""

DEFAULT_PROTOCOL = {"delta": Protocol(1, 2), "indextables": Protocol(2, 2)}
"""What a new table has that needs no feature.

IndexTables begins at 2, the default of the specification (001, Version History), though its later
clients begin at what they know best. A client of the specification's date refuses a table whose
``minReaderVersion`` is 3, versions never fall, and all that 3 would give a table without mappings
by reference is checkpoints in parts, above 100,000 files. A table that grows so large is raised
then, with ``set_protocol(features=["multiPartCheckpoint"])``.
"""

_LAST_VERSIONS = {"delta": (READER_LISTS, WRITER_LISTS), "indextables": (4, 4)}


def features_needed(metadata: Metadata, format: str) -> frozenset[str]:
    """Features that the metadata switches on, by properties and by the schema.

    ``delta.feature.<name>`` asks for a feature by name, in any case; a name that is not known
    comes back as it is, and `upgrade` refuses it. Dependencies are left to `upgrade`.

    Source: Delta protocol, Active Features.

    >>> plain = Metadata("id", None, None, "parquet", {}, None, (),
    ...                  {"delta.enableChangeDataFeed": "true"}, None)
    >>> sorted(features_needed(plain, "delta"))
    ['changeDataFeed']
    """
    if format == "indextables":
        by_reference = any(key.startswith("docMappingSchema.") for key in metadata.configuration)
        return frozenset({"schemaDeduplication"} if by_reference else ())
    needed = {f.name for f in DELTA.values() if f.switch is not None and f.switch(metadata)}
    by_lower_name = {name.lower(): name for name in DELTA}
    for key in metadata.configuration:
        if key.lower().startswith(FEATURE_PROPERTY):
            asked = key[len(FEATURE_PROPERTY) :]
            needed.add(by_lower_name.get(asked.lower(), asked))
    return frozenset(needed)


def upgrade(
    protocol: Protocol | None,
    features: Iterable[str],
    format: str,
) -> Protocol:
    """The least protocol that supports all that `protocol` supports, and `features` besides.

    Source: Delta protocol, Table Features for New and Existing Tables.

    >>> upgrade(Protocol(1, 2), ["changeDataFeed"], "delta")
    Protocol(min_reader_version=1, min_writer_version=4, reader_features=None, writer_features=None)
    >>> upgrade(None, ["domainMetadata"], "delta").writer_features
    ('appendOnly', 'domainMetadata', 'invariants')
    """
    base = protocol or DEFAULT_PROTOCOL[format]
    known = features_of(format)
    there = supported(base, format)
    asked = _not_satisfied(features, there, format)
    missing = _not_satisfied(with_required(asked, format), there, format)
    for name in (*sorted(asked), *sorted(missing - asked)):
        _refuse_unwritable(name, format)
    if not missing:
        return base
    added = [known[name] for name in missing]
    if format == "indextables":
        return _indextables(base, added)
    return _delta(base, added, there)


def check_protocol_change(old: Protocol | None, new: Protocol, format: str) -> None:
    """Refuse a protocol that no table may have, or that takes something back.

    Source: Delta protocol, Protocol Evolution; Table Features; Supported Features.
    """
    _check_versions(new, format)
    if format == "indextables":
        _check_indextables_lists(new)
    else:
        _check_delta_lists(new)
    there = supported(new, format)
    before = frozenset() if old is None else supported(old, format)
    for name in sorted(there - before):
        _refuse_unwritable(name, format)
        requires = features_of(format)[name].requires
        for needed in sorted(_not_satisfied(requires, there, format)):
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


def _not_satisfied(names: Iterable[str], there: frozenset[str], format: str) -> set[str]:
    known = features_of(format)
    return {
        name
        for name in names
        if name not in there and not (name in known and there.intersection(known[name].replaces))
    }


def _refuse_unwritable(name: str, format: str) -> None:
    feature = features_of(format).get(name)
    if feature is None or feature.stance is Stance.REFUSED:
        reason = "lakelog does not support it" if feature is None else feature.note
        raise UnsupportedFeatureError(
            f"lakelog could not write a table with the feature {name!r}: {reason}",
            expected=", ".join(
                f.name for f in features_of(format).values() if f.stance is not Stance.REFUSED
            ),
            found=name,
        )


def _delta(base: Protocol, added: list[Feature], there: frozenset[str]) -> Protocol:
    writer = writer_version(base)
    if writer < WRITER_LISTS and all(f.implied_from is not None for f in added):
        versions = [f.implied_from for f in added if f.implied_from is not None]
        return Protocol(
            max(base.min_reader_version, *(reader for reader, _ in versions)),
            max(writer, *(version for _, version in versions)),
            base.reader_features,
            base.writer_features,
        )
    names = {*there, *(f.name for f in added)}
    if base.min_reader_version == READER_LISTS - 1:
        # Readers of version 2 map columns whatever the writer version says.
        names.add("columnMapping")
    readers = {name for name in names if name in DELTA and DELTA[name].reader}
    readers |= set(base.reader_features or ())
    # Version 2 says "columnMapping" without a list; any other feature of readers must be listed.
    unlisted = {"columnMapping"} if base.min_reader_version == READER_LISTS - 1 else set()
    if base.min_reader_version < READER_LISTS and readers <= unlisted:
        return Protocol(
            base.min_reader_version, WRITER_LISTS, None, _ordered(base.writer_features, names)
        )
    return Protocol(
        READER_LISTS,
        WRITER_LISTS,
        _ordered(base.reader_features, readers),
        _ordered(base.writer_features, names),
    )


def _indextables(base: Protocol, added: list[Feature]) -> Protocol:
    reader, writer = base.min_reader_version, writer_version(base)
    for feature in added:
        needs_reader, needs_writer = feature.implied_from or (INDEXTABLES_LISTS, INDEXTABLES_LISTS)
        writer = max(writer, needs_writer)
        if feature.reader:
            reader = max(reader, needs_reader)
    # What came with version 2 has no list to be in.
    names = {f.name for f in added if f.implied_from is None or f.implied_from[1] > 2}
    readers = {f.name for f in added if f.name in names and f.reader}
    return Protocol(
        reader,
        writer,
        _ordered(base.reader_features, readers | set(base.reader_features or ())) or None,
        _ordered(base.writer_features, names | set(base.writer_features or ())) or None,
    )


def _ordered(old: tuple[str, ...] | None, names: Iterable[str]) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(old or ()))
    return (*kept, *sorted(set(names) - set(kept)))


def _check_versions(protocol: Protocol, format: str) -> None:
    last_reader, last_writer = _LAST_VERSIONS[format]
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


def _check_names(protocol: Protocol, format: str) -> None:
    known = features_of(format)
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


def _check_delta_lists(protocol: Protocol) -> None:
    reader, writer = protocol.min_reader_version, writer_version(protocol)
    if reader == READER_LISTS and writer != WRITER_LISTS:
        raise InvalidProtocolError(
            "reader version 3 requires writer version 7", expected=WRITER_LISTS, found=writer
        )
    for field, names, belongs in (
        ("readerFeatures", protocol.reader_features, reader == READER_LISTS),
        ("writerFeatures", protocol.writer_features, writer == WRITER_LISTS),
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
    _check_names(protocol, "delta")
    for name in protocol.writer_features or ():
        if name not in DELTA or not DELTA[name].reader:
            continue
        implied = name == "columnMapping" and reader == READER_LISTS - 1
        if not implied and name not in (protocol.reader_features or ()):
            raise InvalidProtocolError(
                f"writerFeatures contains {name!r}, which must also be in readerFeatures",
                expected=f"{name} in readerFeatures, at reader version 3",
                found=list(protocol.reader_features or ()),
            )


def _check_indextables_lists(protocol: Protocol) -> None:
    _check_names(protocol, "indextables")
    version = min(protocol.min_reader_version, writer_version(protocol))
    names = listed(protocol)
    if names and writer_version(protocol) < INDEXTABLES_LISTS:
        raise InvalidProtocolError(
            "features are listed below version 3", expected=INDEXTABLES_LISTS, found=version
        )
    for name in sorted(names & features_of("indextables").keys()):
        feature = features_of("indextables")[name]
        needs = (feature.implied_from or (INDEXTABLES_LISTS, INDEXTABLES_LISTS))[1]
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
