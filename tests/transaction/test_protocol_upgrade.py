"""Protocols: a table's requirements, how they are added, and which changes are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.features import Stance, listed
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.errors import CorruptionError, InvalidProtocolError, UnsupportedFeatureError
from lakelog.model.metadata import Protocol
from tests import handmade
from tests.budget import share_of
from tests.handmade import Handmade
from tests.transaction.builders import column, struct, table

RULES = DELTA.protocol_rules
INDEXTABLES_RULES = INDEXTABLES.protocol_rules

WRITTEN = sorted(f.name for f in RULES.features.values() if f.stance is not Stance.REFUSED)
REFUSED = sorted(f.name for f in RULES.features.values() if f.stance is Stance.REFUSED)

legacy = st.sampled_from([Protocol(1, w) for w in range(1, 7)] + [Protocol(2, 5), Protocol(2, 6)])
features = st.sets(st.sampled_from(WRITTEN), max_size=6)


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    return RULES.upgrade(draw(st.none() | legacy), draw(features))


@settings(max_examples=share_of(150))
@given(protocols(), features)
def test_upgrade_adds_the_requested_features_and_drops_none(
    old: Protocol, requested: set[str]
) -> None:
    new = RULES.upgrade(old, requested)
    supported = RULES.supported(new)
    assert RULES.supported(old) <= supported
    added = supported - RULES.supported(old)
    for name in requested | RULES.with_required(added):
        assert name in supported or supported.intersection(RULES.features[name].replaces)
    assert new.min_reader_version >= old.min_reader_version
    assert (new.min_writer_version or 0) >= (old.min_writer_version or 0)


@settings(max_examples=share_of(150))
@given(protocols(), features)
def test_upgrade_is_valid_readable_and_idempotent(old: Protocol, requested: set[str]) -> None:
    new = RULES.upgrade(old, requested)
    RULES.check_change(old, new)
    RULES.check_readable(new, "t")
    assert RULES.upgrade(new, requested) is new
    assert RULES.upgrade(new, ()) is new


@settings(max_examples=share_of(100))
@given(protocols(), features, features)
def test_upgrade_in_two_steps_supports_the_features_of_one_step(
    old: Protocol, first: set[str], second: set[str]
) -> None:
    stepped = RULES.upgrade(RULES.upgrade(old, first), second)
    at_once = RULES.upgrade(old, first | second)
    # Of a feature and its preview, the one that is added first makes the other unnecessary.
    forms = {name for f in RULES.features.values() if f.replaces for name in (f.name, *f.replaces)}
    assert RULES.supported(stepped) - forms >= RULES.supported(at_once) - forms


@pytest.mark.parametrize(
    ("requested", "versions"),
    [
        (["appendOnly"], (1, 2)),
        (["checkConstraints"], (1, 3)),
        (["changeDataFeed", "appendOnly"], (1, 4)),
        (["columnMapping"], (2, 5)),
        (["identityColumns"], (1, 6)),
        (["identityColumns", "columnMapping"], (2, 6)),
    ],
)
def test_legacy_features_need_no_feature_list(
    requested: list[str], versions: tuple[int, int]
) -> None:
    assert RULES.upgrade(None, requested) == Protocol(*versions)


def test_first_listed_feature_lists_the_implied_features_too() -> None:
    new = RULES.upgrade(Protocol(1, 4), ["domainMetadata"])
    implied = ("appendOnly", "changeDataFeed", "checkConstraints")
    assert new == Protocol(1, 7, None, (*implied, "domainMetadata", "generatedColumns",
                                        "invariants"))  # fmt: skip


def test_writer_feature_does_not_change_reader_version_2() -> None:
    new = RULES.upgrade(Protocol(2, 5), ["domainMetadata"])
    assert (new.min_reader_version, new.reader_features) == (2, None)
    assert "columnMapping" in (new.writer_features or ())


def test_reader_feature_lists_the_implied_column_mapping_for_readers_too() -> None:
    new = RULES.upgrade(Protocol(2, 5), ["deletionVectors"])
    assert new.reader_features == ("columnMapping", "deletionVectors")


def test_column_mapping_implied_by_the_reader_version_is_kept() -> None:
    assert "columnMapping" in (RULES.upgrade(Protocol(2, 3), ["v2Checkpoint"])
                               .reader_features or ())  # fmt: skip


def test_required_features_are_added() -> None:
    writer = RULES.upgrade(None, ["rowTracking", "variantShredding"]).writer_features or ()
    assert {"domainMetadata", "variantType"} <= set(writer)


def test_feature_lists_keep_their_order_and_new_names_are_appended() -> None:
    old = Protocol(1, 7, None, ("invariants", "appendOnly"))
    assert RULES.upgrade(old, ["rowTracking"]).writer_features == (
        "invariants", "appendOnly", "domainMetadata", "rowTracking",
    )  # fmt: skip


def test_feature_is_not_added_if_its_preview_is_supported() -> None:
    old = RULES.upgrade(None, ["typeWidening-preview"])
    assert RULES.upgrade(old, ["typeWidening"]) is old


@pytest.mark.parametrize("name", [*REFUSED, "fromTheFuture", "", "AppendOnly"])
def test_unsupported_feature_raises_and_is_named(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as refused:
        RULES.upgrade(None, [name])
    assert refused.value.found == name


def test_unsupported_feature_that_the_table_has_is_not_an_upgrade() -> None:
    old = Protocol(3, 7, ("catalogManaged",), ("catalogManaged",))
    assert RULES.upgrade(old, ["catalogManaged"]) is old


@pytest.mark.parametrize(
    ("properties", "needed"),
    [
        ({}, set()),
        ({"delta.appendOnly": "true"}, {"appendOnly"}),
        ({"delta.appendOnly": "false"}, set()),
        ({"delta.enableChangeDataFeed": "True"}, {"changeDataFeed"}),
        ({"delta.enableChangeDataCapture": "true"}, {"changeDataFeed"}),
        ({"delta.constraints.positive": "id > 0"}, {"checkConstraints"}),
        ({"delta.columnMapping.mode": "name"}, {"columnMapping"}),
        ({"delta.columnMapping.mode": "none"}, set()),
        ({"delta.checkpointPolicy": "v2"}, {"v2Checkpoint"}),
        ({"delta.enableDeletionVectors": "true"}, {"deletionVectors"}),
        ({"delta.enableRowTracking": "true"}, {"rowTracking"}),
        ({"delta.enableInCommitTimestamps": "true"}, {"inCommitTimestamp"}),
        ({"delta.enableTypeWidening": "true"}, {"typeWidening"}),
        ({"delta.enableVariantShredding": "true"}, {"variantShredding"}),
        ({"delta.feature.domainmetadata": "supported"}, {"domainMetadata"}),
        ({"delta.feature.fromTheFuture": "supported"}, {"fromTheFuture"}),
        ({"delta.enableIcebergCompatV2": "true"}, {"icebergCompatV2"}),
        ({"delta.coordinatedCommits.commitCoordinator-preview": "x"},
         {"coordinatedCommits-preview"}),
    ],
)  # fmt: skip
def test_properties_enable_features(properties: dict[str, str], needed: set[str]) -> None:
    assert RULES.needed(table(properties=properties)) == needed


@pytest.mark.parametrize(
    ("field", "needed"),
    [
        (column("t", "timestamp_ntz"), "timestampNtz"),
        (column("v", "variant"), "variantType"),
        (column("g", "geometry(OGC:CRS84)"), "geospatial"),
        (column("x", meta={"delta.invariants": "{}"}), "invariants"),
        (column("x", meta={"delta.generationExpression": "id + 1"}), "generatedColumns"),
        (column("x", meta={"delta.identity.start": 1}), "identityColumns"),
        (column("x", CURRENT_DEFAULT="1"), "allowColumnDefaults"),
        (column("x", "string", __COLLATIONS={"x": "icu.UNICODE"}), "collations"),
    ],
)
def test_schema_enables_features_at_any_depth(field: dict[str, Any], needed: str) -> None:
    values = {"keyType": "string", "valueType": struct(field), "valueContainsNull": True}
    inside = column("s", {"type": "map", **values})
    assert RULES.needed(table(field)) == {needed}
    assert RULES.needed(table(inside)) == {needed}


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (Protocol(0, 2), "at least 1"),
        (Protocol(3, 6, ("v2Checkpoint",), None), "writer version 7"),
        (Protocol(3, 7, None, ("appendOnly",)), "readerFeatures is missing"),
        (Protocol(1, 7, None, None), "writerFeatures is missing"),
        (Protocol(1, 7, ("v2Checkpoint",), ("v2Checkpoint",)), "readerFeatures is not allowed"),
        (Protocol(1, 2, None, ("appendOnly",)), "writerFeatures is not allowed"),
        (Protocol(3, 7, ("appendOnly",), ("appendOnly",)), "writer-only"),
        (Protocol(3, 7, ("v2Checkpoint",), ()), "writerFeatures does not"),
        (Protocol(3, 7, (), ("v2Checkpoint",)), "must also be in readerFeatures"),
        (Protocol(1, 7, None, ("columnMapping",)), "must also be in readerFeatures"),
        (Protocol(1, 7, None, ("appendOnly", "appendOnly")), "twice"),
        (Protocol(1, 7, None, ("rowTracking",)), "depends on 'domainMetadata'"),
    ],
)
def test_contradictory_protocol_raises(new: Protocol, why: str) -> None:
    with pytest.raises(InvalidProtocolError, match=why):
        RULES.check_change(None, new)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (Protocol(1, 4), Protocol(1, 3), "minWriterVersion must not decrease"),
        (Protocol(2, 5), Protocol(1, 5), "minReaderVersion must not decrease"),
        (Protocol(1, 4), Protocol(1, 7, None, ("appendOnly",)), "lose the feature"),
        (Protocol(1, 7, None, ("appendOnly", "invariants")),
         Protocol(1, 7, None, ("appendOnly",)), "lose the feature 'invariants'"),
    ],
)  # fmt: skip
def test_protocol_downgrade_raises(old: Protocol, new: Protocol, why: str) -> None:
    with pytest.raises(InvalidProtocolError, match=why):
        RULES.check_change(old, new)


@pytest.mark.parametrize("new", [Protocol(4, 7, (), ()), Protocol(1, 8)])
def test_future_version_raises(new: Protocol) -> None:
    with pytest.raises(UnsupportedFeatureError, match="higher than"):
        RULES.check_change(None, new)


def test_column_mapping_without_reader_features_is_valid() -> None:
    new = Protocol(2, 7, None, ("appendOnly", "columnMapping", "invariants"))
    RULES.check_change(Protocol(1, 2), new)


MISLISTED = [
    (3, 7, ["v2Checkpoint"], [], "v2Checkpoint"),
    (3, 7, [], ["deletionVectors"], "deletionVectors"),
    (1, 7, ["deletionVectors"], ["deletionVectors"], "deletionVectors"),
    (1, 7, [], ["columnMapping"], "columnMapping"),
    (1, 2, ["deletionVectors"], ["deletionVectors"], "deletionVectors"),
    (1, 4, [], ["domainMetadata", "rowTracking"], "rowTracking"),
    (1, 2, [], ["changeDataFeed"], "changeDataFeed"),
]
"""Protocols that other engines refuse, or of which they ignore the last feature."""


def mislisted(
    path: Path, reader: int, writer: int, readers: list[str], writers: list[str]
) -> Handmade:
    log = Handmade(path)
    protocol = handmade.protocol(reader, writer, readerFeatures=readers, writerFeatures=writers)
    log.commit(0, protocol, handmade.metadata())
    log.commit(1, handmade.add("a"))
    return log


@pytest.mark.parametrize(("reader", "writer", "readers", "writers", "feature"), MISLISTED)
def test_table_with_a_feature_outside_of_a_list_that_counts_is_read_and_not_written(
    tmp_path: Path, reader: int, writer: int, readers: list[str], writers: list[str], feature: str
) -> None:
    log = mislisted(tmp_path, reader, writer, readers, writers)
    assert log.table.snapshot().num_files() == 1
    for write in (lambda: log.table.delete(None), log.table.checkpoint):
        with pytest.raises(CorruptionError, match=f"'{feature}', but not in|'domainMetadata'"):
            write()
    with pytest.raises(CorruptionError, match="but not in"), log.table.transaction() as tx:
        tx.add(path="b", size=1, modificationTime=1)
    assert log.table.snapshot().version == 1


@pytest.mark.parametrize(
    ("reader", "writer", "readers", "writers", "feature"),
    [*MISLISTED, (3, 2, ["deletionVectors"], [], "deletionVectors")],
)
def test_upgrade_to_a_feature_outside_of_a_list_that_counts_repairs_the_protocol(
    tmp_path: Path, reader: int, writer: int, readers: list[str], writers: list[str], feature: str
) -> None:
    log = mislisted(tmp_path, reader, writer, readers, writers)
    before = RULES.supported(log.table.snapshot().protocol)
    assert log.table.alter.upgrade([feature]) == 2
    repaired = log.table.snapshot().protocol
    RULES.check_change(None, repaired)
    assert RULES.supported(repaired) >= before
    log.table.checkpoint()
    assert log.table.alter.upgrade([feature]) is None


def test_lists_that_the_versions_imply_or_that_are_empty_do_not_refuse_commits(
    tmp_path: Path,
) -> None:
    for number, protocol in enumerate(
        [
            (1, 2, [], []),
            (1, 4, [], ["changeDataFeed"]),
            (2, 7, ["columnMapping"], ["columnMapping"]),
        ]
    ):
        log = mislisted(tmp_path / str(number), *protocol)
        assert log.table.delete(None).version == 2


def test_indextables_upgrade_uses_the_version_that_introduced_the_feature() -> None:
    assert INDEXTABLES_RULES.upgrade(None, []) == Protocol(2, 2)
    assert INDEXTABLES_RULES.upgrade(Protocol(1, 1), ["skippedFiles"]) == Protocol(2, 2)
    in_parts = INDEXTABLES_RULES.upgrade(None, ["multiPartCheckpoint"])
    assert in_parts == Protocol(3, 3, ("multiPartCheckpoint",), ("multiPartCheckpoint",))
    columnar = INDEXTABLES_RULES.upgrade(None, ["columnarCommits"])
    assert columnar == Protocol(3, 3, ("columnarCommits",), ("columnarCommits",))
    assert INDEXTABLES_RULES.upgrade(columnar, ["columnarCommits"]) is columnar
    assert INDEXTABLES_RULES.upgrade(Protocol(3, 3), ["schemaDeduplication"]) == Protocol(3, 3)


@pytest.mark.parametrize(
    "names", [[f] for f in INDEXTABLES_RULES.features] + [["columnarCommits", "checkpoint"]]
)
def test_indextables_upgrades_are_valid(names: list[str]) -> None:
    if "avroState" in names:
        with pytest.raises(UnsupportedFeatureError, match="state directories"):
            INDEXTABLES_RULES.upgrade(None, names)
        return
    new = INDEXTABLES_RULES.upgrade(Protocol(1, 1), names)
    INDEXTABLES_RULES.check_change(Protocol(1, 1), new)
    assert set(names) <= INDEXTABLES_RULES.supported(new)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (Protocol(2, 2, ("skippedFiles",), ("skippedFiles",)), "below version 3"),
        (Protocol(3, 3, (), ("columnarCommits",)), "must also be in readerFeatures"),
        (Protocol(3, 3, ("checkpoint",), ("checkpoint",)), "writer-only"),
    ],
)
def test_contradictory_indextables_protocol_raises(new: Protocol, why: str) -> None:
    with pytest.raises(InvalidProtocolError, match=why):
        INDEXTABLES_RULES.check_change(None, new)


def test_references_to_document_mappings_need_their_feature() -> None:
    metadata = table(properties={"docMappingSchema.abc": "{}"})
    assert INDEXTABLES_RULES.needed(metadata) == {"schemaDeduplication"}


PEER = [
    ({}, ()),
    ({"delta.appendOnly": "true"}, ()),
    ({"delta.enableChangeDataFeed": "true"}, ()),
    ({"delta.columnMapping.mode": "name"}, ()),
    ({"delta.enableDeletionVectors": "true"}, ()),
    ({"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}, ()),
    ({}, ("timestamp_ntz",)),
]


@pytest.mark.reference
@pytest.mark.parametrize(("properties", "types"), PEER)
def test_new_tables_have_the_protocol_versions_of_deltalake(
    tmp_path: Path, properties: dict[str, str], types: tuple[str, ...]
) -> None:
    deltalake = pytest.importorskip("deltalake")
    fields = [deltalake.Field("id", "long"), *(deltalake.Field(t, t) for t in types)]
    deltalake.DeltaTable.create(
        str(tmp_path), schema=deltalake.Schema(fields), configuration=properties
    )
    log = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text("utf-8")
    written = next(
        json.loads(line)["protocol"] for line in log.splitlines() if line.startswith('{"protocol"')
    )
    theirs = Protocol(
        written["minReaderVersion"],
        written["minWriterVersion"],
        tuple(written["readerFeatures"]) if "readerFeatures" in written else None,
        tuple(written["writerFeatures"]) if "writerFeatures" in written else None,
    )
    metadata = table(column("id"), *(column(t, t) for t in types), properties=properties)
    ours = RULES.upgrade(None, RULES.needed(metadata))
    assert (ours.min_reader_version, ours.min_writer_version) == (
        theirs.min_reader_version,
        theirs.min_writer_version,
    )
    # deltalake lists variantType with deletion vectors although no column needs it, and with
    # timestampNtz it omits the features that version 2 implied.
    extra = listed(theirs) - {"variantType"}
    assert extra <= RULES.supported(ours)
    assert RULES.supported(ours) - RULES.supported(theirs) <= {"appendOnly", "invariants"}


@pytest.mark.reference
@pytest.mark.parametrize(
    "name",
    ["AppendOnly", "CheckConstraints", "ColumnMapping", "DeletionVectors", "DomainMetadata",
     "V2Checkpoint", "TimestampWithoutTimezone", "VariantType"],
)  # fmt: skip
def test_upgrades_support_the_features_that_deltalake_adds(tmp_path: Path, name: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    made = deltalake.DeltaTable.create(
        str(tmp_path), schema=deltalake.Schema([deltalake.Field("id", "long")])
    )
    made.alter.add_feature(
        getattr(deltalake.TableFeatures, name), allow_protocol_versions_increase=True
    )
    theirs = deltalake.DeltaTable(str(tmp_path)).protocol()
    names = set(theirs.reader_features or ()) | set(theirs.writer_features or ())
    ours = RULES.upgrade(Protocol(1, 2), names)
    assert names <= RULES.supported(ours)
    assert ours.min_reader_version <= theirs.min_reader_version
    assert (ours.min_writer_version or 0) <= theirs.min_writer_version
