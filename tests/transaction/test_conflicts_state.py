"""Conflicts over actions without files: applications, domains, skips, metadata and protocol."""

from __future__ import annotations

import json

import pytest

from tests.handmade import Action, add, field, info, metadata, protocol, remove
from tests.transaction.conflict_cases import (
    BLIND,
    COLUMNS,
    METADATA,
    at,
    changed,
    conflict_of,
    domain,
    listed_protocol,
    p,
    pending,
    rule_of,
    txn,
    winner,
    with_properties,
)


def test_application_that_was_read_or_is_written_conflicts() -> None:
    won = winner(info("STREAMING UPDATE"), txn("app", 5))
    for tx in (pending(add("f"), app_ids=["app"]), pending(txn("app", 6), add("f"))):
        assert conflict_of(tx, won) == ("app_id_written", "app")
    assert rule_of(pending(txn("App"), app_ids=["other"]), won) is None


def test_domain_written_by_both_conflicts_except_for_row_tracking() -> None:
    assert conflict_of(pending(domain("mine")), winner(domain("mine"), domain("d"))) == (
        "domain_written_by_both",
        "mine",
    )
    tracking = domain("delta.rowTracking")
    assert rule_of(pending(tracking), winner(tracking)) is None
    assert rule_of(pending(domain("mine")), winner(domain("Mine"))) is None
    assert rule_of(pending(domain("delta.clustering")), winner(domain("delta.clustering"))) == (
        "domain_written_by_both"
    )


def test_skips_of_the_same_file_do_not_conflict() -> None:
    skip = {
        "mergeskip": {
            "path": "f",
            "skipTimestamp": 1,
            "reason": "broken",
            "operation": "merge",
            "skipCount": 1,
        }
    }
    tx = pending(skip, format_="indextables")
    assert rule_of(tx, winner(skip, format_="indextables")) is None


def test_changed_metadata_conflicts_with_a_transaction_that_read_nothing() -> None:
    tx = pending(add("f"))
    wider = metadata(*COLUMNS, field("new"), partitioned=("p", "q"))
    assert conflict_of(tx, winner(info("ADD COLUMNS"), wider)) == (
        "metadata_changed",
        "schemaString",
    )
    for new, found in (
        (changed(METADATA, name="n"), "name"),
        (changed(METADATA, id="other", description="d"), "description, id"),
        (metadata(*COLUMNS, partitioned=("q", "p")), "partitionColumns"),
        (with_properties(METADATA, delta__appendOnly="true"), "configuration.delta.appendOnly"),
    ):
        assert conflict_of(tx, winner(new))[1] == found


def test_metadata_written_by_both_conflicts_even_if_unchanged() -> None:
    tx = pending(changed(METADATA, name="n"))
    assert rule_of(tx, winner(METADATA)) == "metadata_changed_by_both"


def test_metadata_written_again_unchanged_does_not_conflict() -> None:
    assert rule_of(pending(add("f")), winner(METADATA)) is None
    spaced = changed(
        METADATA,
        schemaString=json.dumps(json.loads(METADATA["metaData"]["schemaString"]), indent=1),
    )
    assert rule_of(pending(add("f")), winner(spaced)) is None


def test_increased_high_water_mark_of_an_identity_column_does_not_conflict() -> None:
    def marked(mark: int, start: int = 1) -> Action:
        keys = {"delta.identity.start": start, "delta.identity.highWaterMark": mark}
        return metadata(*COLUMNS, field("i", "long", **keys), partitioned=("p", "q"))

    tx = pending(remove("f"), read_metadata=marked(1))
    assert rule_of(tx, winner(marked(9))) is None
    assert rule_of(tx, winner(marked(9, start=2))) == "metadata_changed"


ENABLED = [
    ("deletionVectors", {"delta__enableDeletionVectors": "true"}),
    ("v2Checkpoint", {"delta__checkpointPolicy": "v2"}),
    (
        "inCommitTimestamp",
        {
            "delta__enableInCommitTimestamps": "true",
            "delta__inCommitTimestampEnablementVersion": "7",
            "delta__inCommitTimestampEnablementTimestamp": "9",
        },
    ),
    (
        "rowTracking",
        {
            "delta__enableRowTracking": "true",
            "delta__rowTracking__materializedRowIdColumnName": "r",
            "delta__rowTracking__materializedRowCommitVersionColumnName": "v",
        },
    ),
]


@pytest.mark.parametrize(("feature", "properties"), ENABLED)
def test_enabled_feature_does_not_conflict_if_the_protocol_supports_it(
    feature: str, properties: dict[str, str]
) -> None:
    enabled = with_properties(METADATA, **properties)
    supporting = listed_protocol("appendOnly", "invariants", feature)
    assert rule_of(pending(add("f"), read_protocol=supporting), winner(enabled)) is None
    assert rule_of(pending(add("f")), winner(supporting, enabled)) is None
    assert rule_of(pending(add("f")), winner(enabled)) == "metadata_changed"
    disabled = pending(add("f"), read_protocol=supporting, read_metadata=enabled)
    assert rule_of(disabled, winner(METADATA)) == "metadata_changed"


@pytest.mark.parametrize(("feature", "properties"), ENABLED[2:])
def test_changed_property_of_an_enabled_feature_conflicts(
    feature: str, properties: dict[str, str]
) -> None:
    enabled = with_properties(METADATA, **properties)
    supporting = listed_protocol("appendOnly", "invariants", feature)
    for name in list(properties)[1:]:
        tx = pending(add("f"), read_protocol=supporting, read_metadata=enabled)
        won = winner(with_properties(enabled, **{name: "8"}))
        assert rule_of(tx, won) == "metadata_changed"


def test_column_name_of_row_tracking_without_the_enabled_feature_conflicts() -> None:
    name = with_properties(METADATA, delta__rowTracking__materializedRowIdColumnName="r")
    tx = pending(add("f"), read_protocol=listed_protocol("rowTracking", "domainMetadata"))
    assert rule_of(tx, winner(name)) == "metadata_changed"


def test_added_document_mapping_does_not_conflict_and_a_changed_one_does() -> None:
    tx = pending(add("f", **at("a")), format_="indextables")
    registered = with_properties(METADATA, docMappingSchema__abc="{}")
    grown = winner(registered, format_="indextables")
    assert rule_of(tx, grown) is None
    changed_ = with_properties(METADATA, docMappingSchema__abc='{"a":1}')
    later = pending(add("f", **at("a")), read_metadata=registered, format_="indextables")
    assert rule_of(later, winner(changed_, format_="indextables")) == ("metadata_changed")


@pytest.mark.parametrize(
    "new",
    [
        metadata(*COLUMNS, partitioned=("q", "p")),
        metadata(*COLUMNS),
        with_properties(METADATA, delta__constraints__positive="x > 0"),
        with_properties(METADATA, delta__enableRowTracking="true"),
    ],
)
def test_metadata_that_applies_to_every_file_conflicts_with_an_added_file(new: Action) -> None:
    assert conflict_of(pending(new), winner(BLIND, add("f"))) == ("all_files_appended", "f")
    assert rule_of(pending(new), winner(info("DELETE"), remove("f"))) is None


def test_other_metadata_does_not_conflict_with_an_append() -> None:
    wider = metadata(*COLUMNS, field("new"), partitioned=("p", "q"))
    assert rule_of(pending(wider), winner(BLIND, add("f"))) is None


def test_protocol_written_by_both_conflicts() -> None:
    tx = pending(listed_protocol("appendOnly", "invariants", "deletionVectors"))
    assert rule_of(tx, winner(info("UPGRADE PROTOCOL"), protocol())) == "protocol_changed_by_both"


def test_dropped_feature_conflicts_even_with_a_blind_append() -> None:
    tx = pending(add("f"), read_protocol=listed_protocol("appendOnly", "deletionVectors"))
    assert conflict_of(tx, winner(listed_protocol("appendOnly"))) == (
        "feature_dropped",
        "deletionVectors",
    )


def test_feature_of_a_legacy_version_is_dropped_if_the_list_omits_it() -> None:
    assert conflict_of(pending(add("f")), winner(listed_protocol("invariants"))) == (
        "feature_dropped",
        "appendOnly",
    )


@pytest.mark.parametrize(
    "feature", ["deletionVectors", "v2Checkpoint", "inCommitTimestamp", "rowTracking"]
)
def test_added_feature_without_immediate_effect_does_not_conflict(feature: str) -> None:
    tx = pending(add("f"), where=[p == "a"])
    assert rule_of(tx, winner(listed_protocol("appendOnly", "invariants", feature))) is None


@pytest.mark.parametrize("feature", ["checkConstraints", "clustering", "ofTheFuture"])
def test_added_feature_that_may_affect_writers_immediately_conflicts(feature: str) -> None:
    won = winner(listed_protocol("appendOnly", "invariants", feature))
    assert conflict_of(pending(add("f")), won) == ("feature_added", feature)


def test_legacy_and_unknown_versions_conflict_by_the_features_that_they_imply() -> None:
    tx = pending(add("f"))
    for new, found in (
        (protocol(1, 3), "checkConstraints"),
        (protocol(1, 4), "checkConstraints, generatedColumns"),
        (protocol(1, 5), "checkConstraints, generatedColumns"),
        (protocol(3, 8, writerFeatures=["appendOnly", "invariants"]), "minWriterVersion 8"),
    ):
        assert conflict_of(tx, winner(new)) == ("feature_added", found)


def test_legacy_version_implies_column_mapping_only_with_reader_version_2() -> None:
    tx = pending(add("f"), read_protocol=protocol(1, 5))
    lists = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"]
    assert rule_of(tx, winner(listed_protocol(*lists))) is None
    mapped = pending(add("f"), read_protocol=protocol(2, 5))
    assert rule_of(mapped, winner(listed_protocol(*lists))) == "feature_dropped"


def test_changed_version_of_indextables_conflicts() -> None:
    tx = pending(add("f"), read_protocol=protocol(2, 2), format_="indextables")
    for new, rule in (
        (protocol(2, 2), None),
        (protocol(2, 3), "feature_added"),
        (protocol(2, 1), "feature_dropped"),
    ):
        assert rule_of(tx, winner(new, format_="indextables")) == rule


def test_dropped_feature_conflicts_with_actions_that_may_use_it() -> None:
    tx = pending(
        listed_protocol("appendOnly"),
        read_protocol=listed_protocol("appendOnly", "deletionVectors"),
    )
    for used in (add("f"), remove("f"), METADATA, domain("d")):
        assert conflict_of(tx, winner(used)) == ("feature_drop_overtaken", "deletionVectors")
    assert rule_of(tx, winner(txn("app"))) is None
