"""Conflicts, rule by rule: what one commit means to one transaction, and what the error says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from lakelog.commit import conflicts
from lakelog.commit.conflicts import RULES, find_conflict, may_match, rebase
from lakelog.commit.intent import Intent, Reads, Winner
from lakelog.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainError,
    ConcurrentTransactionError,
    ConflictError,
    InvalidInputError,
    MetadataChangedError,
    ProtocolChangedError,
)
from lakelog.formats.base import Actions
from tests.commit.conflict_cases import (
    COLUMNS,
    METADATA,
    at,
    bounds,
    changed,
    decoded,
    intent,
    metadata_of,
    protocol_of,
    winner,
    with_properties,
)
from tests.handmade import Action, add, field, info, metadata, protocol, remove, vector
from tests.steps import assert_columnar

p, q, x = pl.col("p"), pl.col("q"), pl.col("x")
SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"
BLIND = info("WRITE", isBlindAppend=True)
NOT_BLIND = info("MERGE", isBlindAppend=False)


def rule_of(mine: Intent, won: Winner, format_: str = "delta") -> str | None:
    error = find_conflict(mine, won, format=format_)
    return None if error is None else error.rule


def txn(app_id: str, version: int = 1) -> Action:
    return {"txn": {"appId": app_id, "version": version}}


def domain(name: str, configuration: str = "{}") -> Action:
    body = {"domain": name, "configuration": configuration, "removed": False}
    return {"domainMetadata": body}


def listing(*features: str) -> Action:
    """A protocol that lists features for writers, and those for readers too that must be."""
    readers = [f for f in features if f in {"deletionVectors", "columnMapping", "v2Checkpoint"}]
    return protocol(3, 7, readerFeatures=readers, writerFeatures=list(features))


# Files.


def test_two_blind_appends_both_win() -> None:
    won = winner(BLIND, add("theirs", **at("a")))
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        assert rule_of(intent(add("ours", **at("a")), isolation=isolation), won) is None


def test_two_writers_on_different_partitions_both_win() -> None:
    mine = intent(
        remove("old", **at("a")), add("new", **at("a")), where=[p == "a"], isolation=SERIALIZABLE
    )
    assert rule_of(mine, winner(NOT_BLIND, remove("f", **at("b")), add("g", **at("b")))) is None


def test_a_file_added_to_the_partition_that_was_read_conflicts_and_the_error_says_all() -> None:
    mine = intent(remove("old", **at("a")), where=[p == "a"])
    won = winner(NOT_BLIND, add("p=b/one", **at("b")), add("p=a/two", **at("a")), version=12)
    error = find_conflict(mine, won, format="delta")

    assert isinstance(error, ConcurrentAppendError)
    assert (error.version, error.operation, error.rule) == (12, "MERGE", "read_files_appended")
    assert error.found == "p=a/two"
    assert error.hint == RULES["read_files_appended"].hint
    for part in ("version 12", "MERGE", "read_files_appended"):
        assert part in str(error)


def test_a_blind_append_to_what_was_read_conflicts_only_under_serializable() -> None:
    won = winner(BLIND, add("theirs", **at("a")))
    for where, whole in (([p == "a"], False), ([], True)):
        deletes = [remove("old", **at("a"))]
        loose = intent(*deletes, where=where, whole=whole)
        assert rule_of(loose, won) is None
        strict = intent(*deletes, where=where, whole=whole, isolation=SERIALIZABLE)
        assert rule_of(strict, won) == "read_files_appended"


def test_a_blind_append_conflicts_with_a_reader_that_changes_the_metadata() -> None:
    mine = intent(changed(METADATA, name="other"), where=[p == "a"])
    assert rule_of(mine, winner(BLIND, add("theirs", **at("a")))) == "read_files_appended"


@pytest.mark.parametrize(
    "infos", [[], [info("WRITE")], [info("WRITE", isBlindAppend=None)], [{"commitInfo": {}}]]
)
def test_an_append_that_does_not_say_that_it_is_blind_is_not(infos: list[Action]) -> None:
    mine = intent(remove("old", **at("a")), where=[p == "a"])
    assert rule_of(mine, winner(*infos, add("theirs", **at("a")))) == "read_files_appended"


def test_a_blind_append_that_removes_files_is_not_blind() -> None:
    mine = intent(add("ours", **at("b")), where=[p == "a"])
    won = winner(BLIND, remove("old", **at("b")), add("theirs", **at("a")))
    assert rule_of(mine, won) == "read_files_appended"


def test_appends_of_the_other_dialect_are_not_blind_for_they_have_no_commit_info() -> None:
    mine = intent(remove("old", **at("a")), where=[p == "a"], format_="indextables")
    won = winner(add("theirs", **at("a")), format_="indextables")
    error = find_conflict(mine, won, format="indextables")
    assert error is not None
    assert (error.rule, error.operation) == ("read_files_appended", None)
    assert "unknown operation" in str(error)
    assert rule_of(mine, winner(add("theirs", **at("b")), format_="indextables")) is None


def test_the_other_dialects_spelling_of_null_is_a_null_partition() -> None:
    hive: dict[str, Any] = {"partitionValues": {"p": "__HIVE_DEFAULT_PARTITION__", "q": "1"}}
    won = winner(add("theirs", **hive), format_="indextables")
    for where, rule in ((p.is_null(), "read_files_appended"), (p.is_not_null(), None)):
        mine = intent(remove("old", **at("a")), where=[where], format_="indextables")
        assert rule_of(mine, won, "indextables") == rule


def test_statistics_of_the_other_dialect_tell_files_apart() -> None:
    stats: dict[str, Any] = {"numRecords": 3, "minValues": {"x": "2"}, "maxValues": {"x": "10"}}
    won = winner(add("theirs", **at("a"), **stats), format_="indextables")
    for where, rule in ((x > 10, None), (x > 9, "read_files_appended")):
        mine = intent(remove("old", **at("a")), where=[where], format_="indextables")
        assert rule_of(mine, won, "indextables") == rule


def test_a_file_removed_by_both_conflicts_whatever_was_read() -> None:
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        mine = intent(remove("f", **at("a")), whole=True, isolation=isolation)
        error = find_conflict(mine, winner(info("DELETE"), remove("f")), format="delta")
        assert isinstance(error, ConcurrentDeleteDeleteError)
        assert (error.rule, error.found, error.operation) == ("deleted_by_both", "f", "DELETE")
    assert rule_of(intent(remove("f")), winner(remove("f"))) == "deleted_by_both"
    assert rule_of(intent(remove("f")), winner(remove("g"))) is None


def test_paths_are_compared_decoded() -> None:
    mine = intent(remove("p=a%2520b/%C3%BC%20%3D"))
    error = find_conflict(mine, winner(remove("p=a%2520b/ü =")), format="delta")
    assert error is not None
    assert error.found == "p=a%20b/ü ="


@pytest.mark.parametrize(
    "ours",
    [
        [remove("f", **vector("one")), add("f", **vector("three"))],
        [remove("f", **vector("one"))],
        [remove("f")],
    ],
)
def test_a_changed_deletion_vector_conflicts_with_every_removal_of_the_path(
    ours: list[Action],
) -> None:
    won = winner(info("DELETE"), remove("f", **vector("one")), add("f", **vector("two")))
    assert rule_of(intent(*ours), won) == "deleted_by_both"


def test_another_deletion_vector_for_a_path_conflicts_even_where_none_is_removed() -> None:
    won = winner(add("f", **vector("two")))
    assert rule_of(intent(remove("f")), won) == "removed_file_added"
    assert rule_of(intent(add("f", **vector("three"))), won) == "file_added_by_both"


def test_the_same_path_added_by_both_conflicts() -> None:
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        mine = intent(add("f", **at("a")), isolation=isolation)
        error = find_conflict(mine, winner(BLIND, add("f", **at("a"))), format="delta")
        assert isinstance(error, ConcurrentAppendError)
        assert (error.rule, error.found) == ("file_added_by_both", "f")


def test_a_removed_file_is_not_brought_back() -> None:
    mine = intent(add("f", **at("a"), dataChange=False))
    error = find_conflict(mine, winner(info("DELETE"), remove("f")), format="delta")
    assert isinstance(error, ConcurrentDeleteReadError)
    assert error.rule == "deleted_file_added"


def test_a_removed_file_that_was_read_conflicts() -> None:
    won = winner(info("DELETE"), remove("f", **at("a"), **bounds(1, 5)))
    for where in (p == "a", x < 2, (p == "a") & (x > 4)):
        error = find_conflict(intent(add("g"), where=[where]), won, format="delta")
        assert isinstance(error, ConcurrentDeleteReadError)
        assert (error.rule, error.found) == ("read_files_deleted", "f")
    for where in (p == "b", x > 5, (p == "a") & (x > 5)):
        assert rule_of(intent(add("g"), where=[where]), won) is None


def test_a_removed_file_without_partition_values_may_have_been_read() -> None:
    mine = intent(add("g"), where=[p == "a"])
    assert rule_of(mine, winner(remove("f"))) == "read_files_deleted"
    assert rule_of(mine, winner(remove("f", partitionValues={}))) == "read_files_deleted"


def test_a_whole_table_read_conflicts_with_any_file_and_with_no_other_action() -> None:
    mine = intent(add("g"), whole=True)
    assert rule_of(mine, winner(info("OPTIMIZE"), remove("f"))) == "read_files_deleted"
    assert rule_of(mine, winner(NOT_BLIND, add("f"))) == "read_files_appended"
    assert rule_of(mine, winner(info("X"), txn("app"), domain("d"))) is None


def test_one_of_several_predicates_is_enough() -> None:
    won = winner(NOT_BLIND, add("f", **at("b")))
    assert rule_of(intent(remove("o"), where=[p == "a", p == "b"]), won) == "read_files_appended"
    assert rule_of(intent(remove("o"), where=[p == "a", p == "c"]), won) is None


def test_data_that_is_only_rearranged_by_the_other_commit_counts_as_in_delta() -> None:
    won = winner(
        info("OPTIMIZE", isBlindAppend=False),
        remove("f", **at("a"), dataChange=False),
        add("g", **at("a"), dataChange=False),
    )
    mine = intent(remove("o", **at("a")), where=[p == "a"])
    assert rule_of(mine, won) == "read_files_deleted"
    broken = [rule for rule, _ in conflicts.broken_rules(mine, won, format="delta")]
    assert broken == ["read_files_deleted", "read_files_appended"]


def test_row_trackings_backfill_appends_nothing() -> None:
    mine = intent(remove("o", **at("a")), where=[p == "a"], isolation=SERIALIZABLE)
    backfill = info("ROW TRACKING BACKFILL", isBlindAppend=False)
    again = add("f", **at("a"), dataChange=False)
    assert rule_of(mine, winner(backfill, again)) is None
    assert rule_of(mine, winner(backfill, changed(again, dataChange=True))) == "read_files_appended"
    assert rule_of(mine, winner(info("OPTIMIZE"), again)) == "read_files_appended"


def test_a_transaction_that_only_rearranges_data_need_not_see_appends() -> None:
    ours = [remove("o", **at("a"), dataChange=False), add("n", **at("a"), dataChange=False)]
    won = winner(NOT_BLIND, add("theirs", **at("a")))
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        mine = intent(*ours, domain("delta.rowTracking"), where=[p == "a"], isolation=isolation)
        assert rule_of(mine, won) is None
        for more in (txn("app"), domain("mine"), changed(METADATA, name="n"), add("d")):
            mine = intent(*ours, more, where=[p == "a"], isolation=isolation)
            assert rule_of(mine, won) == "read_files_appended"
        mine = intent(*ours, where=[p == "a"], isolation=isolation)
        deleted = winner(info("DELETE"), remove("f", **at("a")))
        assert rule_of(mine, deleted) == "read_files_deleted"


# What a predicate proves.


@pytest.mark.parametrize("stats", [{}, {"stats": None}, {"stats": "{}"}, {"stats": '{"numRec'}])
def test_missing_statistics_prove_nothing(stats: dict[str, Any]) -> None:
    won = winner(NOT_BLIND, add("f", **at("a"), **stats))
    assert rule_of(intent(remove("o"), where=[x > 100]), won) == "read_files_appended"


def test_statistics_prove_a_file_away_only_beyond_both_bounds() -> None:
    mine = intent(remove("o"), where=[x > 100])
    assert rule_of(mine, winner(NOT_BLIND, add("f", **at("a"), **bounds(1, 100)))) is None
    for low, high in ((1, 101), (1, None)):
        won = winner(NOT_BLIND, add("f", **at("a"), **bounds(low, high)))
        assert rule_of(mine, won) == "read_files_appended"


def test_a_truncated_greatest_string_is_taken_as_a_prefix() -> None:
    read = metadata(*COLUMNS, field("s", "string"), partitioned=("p", "q"))
    cut = "k" * 32
    stats = json.dumps({"numRecords": 1, "minValues": {"s": "a"}, "maxValues": {"s": cut}})
    won = winner(NOT_BLIND, add("f", **at("a"), stats=stats))
    for bound, rule in ((cut + "zz", "read_files_appended"), ("l", None)):
        mine = intent(remove("o"), where=[pl.col("s") >= bound], read_metadata=read)
        assert rule_of(mine, won) == rule


def test_null_partition_values_match_is_null_and_no_comparison() -> None:
    for value in (None, ""):
        won = winner(NOT_BLIND, add("f", **at(value)))
        for where, rule in (
            (p.is_null(), "read_files_appended"),
            (p == "a", None),
            (p != "a", None),
            (p.eq_missing(pl.lit(None, dtype=pl.String)), "read_files_appended"),
        ):
            assert rule_of(intent(remove("o"), where=[where]), won) == rule


def test_partition_values_that_the_type_does_not_admit_match_everything() -> None:
    won = winner(NOT_BLIND, add("f", partitionValues={"p": "a", "q": "many"}))
    assert rule_of(intent(remove("o"), where=[q == 1]), won) == "read_files_appended"
    assert rule_of(intent(remove("o"), where=[(q == 1) & (p == "b")]), won) is None


@pytest.mark.parametrize("name", ["a b", "ü=%20", "x.y", "back`tick", "日本", "Q"])
def test_partition_columns_with_special_names_and_values_tell_files_apart(name: str) -> None:
    read = metadata(field(name, "string"), field("x"), partitioned=(name,))
    values: dict[str, Any] = {"partitionValues": {name: "50% / ü=\n"}}
    won = winner(NOT_BLIND, add("f", **values))
    for value, rule in (("50% / ü=\n", "read_files_appended"), ("50%25 / ü=", None)):
        mine = intent(remove("o"), where=[pl.col(name) == value], read_metadata=read)
        assert rule_of(mine, won) == rule


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_looked_up_by_their_physical_names(mode: str) -> None:
    def mapped(name: str, type_: str, identity: int) -> dict[str, Any]:
        key = "delta.columnMapping."
        return field(name, type_, **{f"{key}physicalName": f"col-{name}", f"{key}id": identity})

    read = metadata(
        mapped("p", "string", 1),
        mapped("x", "long", 2),
        partitioned=("p",),
        properties={"delta.columnMapping.mode": mode},
    )
    stats = json.dumps(
        {"numRecords": 1, "minValues": {"col-x": 3}, "maxValues": {"col-x": 4, "x": 100}}
    )
    won = winner(NOT_BLIND, add("f", partitionValues={"col-p": "a", "p": "b"}, stats=stats))
    for where, rule in (
        (p == "a", "read_files_appended"),
        (p == "b", None),
        (x == 4, "read_files_appended"),
        (x > 4, None),
    ):
        mine = intent(remove("o"), where=[where], read_metadata=read)
        assert rule_of(mine, won) == rule


@pytest.mark.parametrize(
    "text",
    ["2024-01-31T10:20:30.456789Z", "2024-01-31 10:20:30.456789"],
)
def test_timestamps_are_compared_as_times(text: str) -> None:
    read = metadata(field("t", "timestamp"), field("u", "timestamp"), partitioned=("t",))
    # Statistics are cut to milliseconds, so the greatest may lie up to one above what they say.
    stats = json.dumps({"numRecords": 1, "maxValues": {"u": "2024-01-31T10:20:30.456Z"}})
    won = winner(NOT_BLIND, add("f", partitionValues={"t": text}, stats=stats))
    moment = datetime(2024, 1, 31, 10, 20, 30, 456789, tzinfo=UTC)
    after = datetime(2024, 1, 31, 10, 20, 30, 457000, tzinfo=UTC)
    t, u = pl.col("t"), pl.col("u")
    for where, rule in (
        (t == moment, "read_files_appended"),
        (t > moment, None),
        (u == moment, "read_files_appended"),
        (u > after, None),
    ):
        mine = intent(remove("o"), where=[where], read_metadata=read)
        assert rule_of(mine, won) == rule


def test_a_predicate_that_is_not_understood_matches_every_file() -> None:
    hidden = x.map_batches(lambda values: values > 1_000, return_dtype=pl.Boolean)
    won = winner(NOT_BLIND, add("f", **at("a"), **bounds(1, 2)))
    for where in (hidden, hidden & (p == "b"), x * x > 1_000):
        assert rule_of(intent(remove("o"), where=[where]), won) == "read_files_appended"
    assert rule_of(intent(remove("o"), where=[(x * x > 1_000) & (p == "b")]), won) is None


def test_a_predicate_over_columns_that_are_not_there_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not have: nowhere"):
        find_conflict(
            intent(add("g"), where=[pl.col("nowhere") == 1]), winner(add("f")), format="delta"
        )


def test_matching_may_be_left_to_the_caller_whose_unknown_matches() -> None:
    mine = intent(remove("o"), where=[p == "b"])
    won = winner(NOT_BLIND, add("f", **at("b")), add("g", **at("b")))

    def answers(*given: bool | None) -> str | None:
        error = find_conflict(
            mine, won, format="delta", matches=lambda _files, _where: pl.Series(given)
        )
        return None if error is None else str(error.found)

    assert answers(False, False) is None
    assert answers(False, True) == "g"
    assert answers(None, True) == "f"


def test_the_matching_files_are_those_that_a_listing_by_predicate_keeps() -> None:
    files = decoded([add("f", **at("a"), **bounds(1, 2)), add("g", **at("b")), add("h")]).files
    mask = may_match(files, (p == "a", x > 5), metadata_of(METADATA), "delta")
    assert mask.to_list() == [True, True, True]
    assert may_match(files, (x > 5,), metadata_of(METADATA), "delta").to_list() == [
        False,
        True,
        True,
    ]
    assert may_match(files, (), metadata_of(METADATA), "delta").to_list() == [False] * 3


# Transactions and domains.


def test_an_application_that_was_read_or_is_written_conflicts() -> None:
    won = winner(info("STREAMING UPDATE"), txn("app", 5))
    for mine in (intent(add("f"), app_ids=["app"]), intent(txn("app", 6), add("f"))):
        error = find_conflict(mine, won, format="delta")
        assert isinstance(error, ConcurrentTransactionError)
        assert (error.rule, error.found) == ("app_id_written", "app")
    assert rule_of(intent(txn("App"), app_ids=["other"]), won) is None


def test_a_domain_written_by_both_conflicts_unless_row_tracking_assigns_it_anew() -> None:
    error = find_conflict(
        intent(domain("mine")), winner(domain("mine"), domain("d")), format="delta"
    )
    assert isinstance(error, ConcurrentDomainError)
    assert (error.rule, error.found) == ("domain_written_by_both", "mine")
    tracking = domain("delta.rowTracking")
    assert rule_of(intent(tracking), winner(tracking)) is None
    assert rule_of(intent(domain("mine")), winner(domain("Mine"))) is None
    assert rule_of(intent(domain("delta.clustering")), winner(domain("delta.clustering"))) == (
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
    mine = intent(skip, format_="indextables")
    assert rule_of(mine, winner(skip, format_="indextables"), "indextables") is None


# Metadata.


def test_changed_metadata_conflicts_with_a_transaction_that_read_nothing() -> None:
    mine = intent(add("f"))
    wider = metadata(*COLUMNS, field("new"), partitioned=("p", "q"))
    error = find_conflict(mine, winner(info("ADD COLUMNS"), wider), format="delta")
    assert isinstance(error, MetadataChangedError)
    assert (error.rule, error.found) == ("metadata_changed", "schemaString")
    for new, found in (
        (changed(METADATA, name="n"), "name"),
        (changed(METADATA, id="other", description="d"), "description, id"),
        (metadata(*COLUMNS, partitioned=("q", "p")), "partitionColumns"),
        (with_properties(METADATA, delta__appendOnly="true"), "configuration.delta.appendOnly"),
    ):
        error = find_conflict(mine, winner(new), format="delta")
        assert error is not None
        assert error.found == found


def test_metadata_written_by_both_conflicts_even_if_nothing_in_it_changed() -> None:
    mine = intent(changed(METADATA, name="n"))
    error = find_conflict(mine, winner(METADATA), format="delta")
    assert isinstance(error, MetadataChangedError)
    assert error.rule == "metadata_changed_by_both"


def test_metadata_written_again_unchanged_does_not_conflict() -> None:
    assert rule_of(intent(add("f")), winner(METADATA)) is None
    spaced = changed(
        METADATA,
        schemaString=json.dumps(json.loads(METADATA["metaData"]["schemaString"]), indent=1),
    )
    assert rule_of(intent(add("f")), winner(spaced)) is None


def test_an_identity_columns_high_water_mark_may_rise_under_way() -> None:
    def marked(mark: int, start: int = 1) -> Action:
        keys = {"delta.identity.start": start, "delta.identity.highWaterMark": mark}
        return metadata(*COLUMNS, field("i", "long", **keys), partitioned=("p", "q"))

    mine = intent(remove("f"), read_metadata=marked(1))
    assert rule_of(mine, winner(marked(9))) is None
    assert rule_of(mine, winner(marked(9, start=2))) == "metadata_changed"


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
def test_a_feature_may_be_enabled_under_way_where_the_protocol_supports_it(
    feature: str, properties: dict[str, str]
) -> None:
    enabled = with_properties(METADATA, **properties)
    supporting = listing("appendOnly", "invariants", feature)
    assert rule_of(intent(add("f"), read_protocol=supporting), winner(enabled)) is None
    assert rule_of(intent(add("f")), winner(supporting, enabled)) is None
    assert rule_of(intent(add("f")), winner(enabled)) == "metadata_changed"
    disabled = intent(add("f"), read_protocol=supporting, read_metadata=enabled)
    assert rule_of(disabled, winner(METADATA)) == "metadata_changed"


@pytest.mark.parametrize(("feature", "properties"), ENABLED[2:])
def test_what_came_with_a_feature_does_not_change_once_it_is_there(
    feature: str, properties: dict[str, str]
) -> None:
    enabled = with_properties(METADATA, **properties)
    supporting = listing("appendOnly", "invariants", feature)
    for name in list(properties)[1:]:
        mine = intent(add("f"), read_protocol=supporting, read_metadata=enabled)
        won = winner(with_properties(enabled, **{name: "8"}))
        assert rule_of(mine, won) == "metadata_changed"


def test_column_names_of_row_tracking_do_not_come_without_it() -> None:
    name = with_properties(METADATA, delta__rowTracking__materializedRowIdColumnName="r")
    mine = intent(add("f"), read_protocol=listing("rowTracking", "domainMetadata"))
    assert rule_of(mine, winner(name)) == "metadata_changed"


def test_the_registry_of_document_mappings_may_grow_under_way() -> None:
    mine = intent(add("f", **at("a")), format_="indextables")
    registered = with_properties(METADATA, docMappingSchema__abc="{}")
    grown = winner(registered, format_="indextables")
    assert rule_of(mine, grown, "indextables") is None
    changed_ = with_properties(METADATA, docMappingSchema__abc='{"a":1}')
    later = intent(add("f", **at("a")), read_metadata=registered, format_="indextables")
    assert rule_of(later, winner(changed_, format_="indextables"), "indextables") == (
        "metadata_changed"
    )


@pytest.mark.parametrize(
    "new",
    [
        metadata(*COLUMNS, partitioned=("q", "p")),
        metadata(*COLUMNS),
        with_properties(METADATA, delta__constraints__positive="x > 0"),
        with_properties(METADATA, delta__enableRowTracking="true"),
    ],
)
def test_metadata_that_speaks_of_every_file_conflicts_with_a_file_added_unseen(
    new: Action,
) -> None:
    error = find_conflict(intent(new), winner(BLIND, add("f")), format="delta")
    assert isinstance(error, ConcurrentAppendError)
    assert (error.rule, error.found) == ("all_files_appended", "f")
    assert rule_of(intent(new), winner(info("DELETE"), remove("f"))) is None


def test_other_metadata_does_not_conflict_with_an_append() -> None:
    wider = metadata(*COLUMNS, field("new"), partitioned=("p", "q"))
    assert rule_of(intent(wider), winner(BLIND, add("f"))) is None


# Protocol.


def test_a_protocol_written_by_both_conflicts() -> None:
    mine = intent(listing("appendOnly", "invariants", "deletionVectors"))
    error = find_conflict(mine, winner(info("UPGRADE PROTOCOL"), protocol()), format="delta")
    assert isinstance(error, ProtocolChangedError)
    assert error.rule == "protocol_changed_by_both"


def test_a_dropped_feature_conflicts_even_with_a_blind_append() -> None:
    mine = intent(add("f"), read_protocol=listing("appendOnly", "deletionVectors"))
    error = find_conflict(mine, winner(listing("appendOnly")), format="delta")
    assert isinstance(error, ProtocolChangedError)
    assert (error.rule, error.found) == ("feature_dropped", "deletionVectors")


def test_a_legacy_versions_features_are_dropped_when_lists_leave_them_out() -> None:
    error = find_conflict(intent(add("f")), winner(listing("invariants")), format="delta")
    assert error is not None
    assert (error.rule, error.found) == ("feature_dropped", "appendOnly")


@pytest.mark.parametrize(
    "feature", ["deletionVectors", "v2Checkpoint", "inCommitTimestamp", "rowTracking"]
)
def test_a_feature_that_binds_nobody_yet_may_be_added_under_way(feature: str) -> None:
    mine = intent(add("f"), where=[p == "a"])
    assert rule_of(mine, winner(listing("appendOnly", "invariants", feature))) is None


@pytest.mark.parametrize("feature", ["checkConstraints", "clustering", "ofTheFuture"])
def test_a_feature_that_may_bind_writers_at_once_conflicts(feature: str) -> None:
    won = winner(listing("appendOnly", "invariants", feature))
    error = find_conflict(intent(add("f")), won, format="delta")
    assert error is not None
    assert (error.rule, error.found) == ("feature_added", feature)


def test_legacy_versions_and_unknown_versions_stand_for_what_they_imply() -> None:
    mine = intent(add("f"))
    for new, found in (
        (protocol(1, 3), "checkConstraints"),
        (protocol(1, 4), "checkConstraints, generatedColumns"),
        (protocol(1, 5), "checkConstraints, generatedColumns"),
        (protocol(3, 8, writerFeatures=["appendOnly", "invariants"]), "minWriterVersion 8"),
    ):
        error = find_conflict(mine, winner(new), format="delta")
        assert error is not None
        assert (error.rule, error.found) == ("feature_added", found)


def test_a_legacy_version_implies_column_mapping_only_where_readers_know_it_too() -> None:
    mine = intent(add("f"), read_protocol=protocol(1, 5))
    lists = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"]
    assert rule_of(mine, winner(listing(*lists))) is None
    mapped = intent(add("f"), read_protocol=protocol(2, 5))
    assert rule_of(mapped, winner(listing(*lists))) == "feature_dropped"


def test_every_version_of_the_other_dialect_counts() -> None:
    mine = intent(add("f"), read_protocol=protocol(2, 2), format_="indextables")
    for new, rule in (
        (protocol(2, 2), None),
        (protocol(2, 3), "feature_added"),
        (protocol(2, 1), "feature_dropped"),
    ):
        assert rule_of(mine, winner(new, format_="indextables"), "indextables") == rule


def test_a_drop_of_a_feature_conflicts_with_whatever_may_use_it() -> None:
    mine = intent(listing("appendOnly"), read_protocol=listing("appendOnly", "deletionVectors"))
    for used in (add("f"), remove("f"), METADATA, domain("d")):
        error = find_conflict(mine, winner(used), format="delta")
        assert error is not None
        assert (error.rule, error.found) == ("feature_drop_overtaken", "deletionVectors")
    assert rule_of(mine, winner(txn("app"))) is None


# The whole.


def test_the_most_exact_rule_is_the_one_that_is_told() -> None:
    mine = intent(remove("f", **at("a")), txn("app"), where=[p == "a"])
    won = [NOT_BLIND, remove("f", **at("a")), add("g", **at("a"))]
    broken = [rule for rule, _ in conflicts.broken_rules(mine, winner(*won), format="delta")]
    assert broken == ["deleted_by_both", "read_files_deleted", "read_files_appended"]
    assert rule_of(mine, winner(*won, txn("app"))) == "app_id_written"
    assert list(RULES).index("app_id_written") < list(RULES).index("deleted_by_both")


def test_rebasing_takes_over_protocol_and_metadata() -> None:
    new_protocol = listing("appendOnly", "invariants", "deletionVectors")
    enabled = with_properties(METADATA, delta__enableDeletionVectors="true")
    mine = intent(add("f"))
    first = winner(new_protocol, enabled)
    assert rule_of(mine, first) is None
    rebased = rebase(mine, first)
    assert rebased.protocol == protocol_of(new_protocol)
    assert rebased.metadata == metadata_of(enabled)
    assert rebased.files is mine.files
    # What the first winner changed is no news any more, and taking it back is.
    assert rule_of(rebased, winner(new_protocol, enabled)) is None
    assert rule_of(rebased, winner(METADATA)) == "metadata_changed"
    assert rebase(mine, winner(add("g"))) == mine


def test_what_the_error_quotes_is_bounded_and_the_operation_may_be_anything() -> None:
    path = "d/" * 500
    won = winner({"commitInfo": {"operation": "W" * 900}}, remove(path))
    error = find_conflict(intent(remove(path)), won, format="delta")
    assert error is not None
    assert len(str(error.found)) == len(error.operation or "") == 200
    odd = Winner(3, Actions(files=won.actions.files))
    error = find_conflict(intent(remove(path)), odd, format="delta")
    assert error is not None
    assert error.operation is None


def test_an_unknown_isolation_level_is_refused() -> None:
    mine = intent(add("f"), isolation="SnapshotIsolation")
    with pytest.raises(InvalidInputError, match="isolation level"):
        find_conflict(mine, winner(add("g")), format="delta")


def test_empty_transactions_and_commits_do_not_conflict() -> None:
    assert rule_of(intent(), winner()) is None
    assert rule_of(intent(whole=True), winner(info("WRITE"))) is None
    assert rule_of(intent(where=[p == "a"]), winner(NOT_BLIND, add("f", **at("a")))) is None


def test_every_rule_is_in_the_table_of_the_module() -> None:
    table = (conflicts.__doc__ or "").split("====")
    for rule, (error, _, _) in RULES.items():
        assert any(f"\n{rule} " in part and f"`{error.__name__}`" in part for part in table)
        assert issubclass(error, ConflictError)


def test_files_are_judged_without_a_loop_over_rows() -> None:
    def files(part: str, count: int) -> pl.DataFrame:
        number = pl.int_range(count, eager=True).cast(pl.String)
        values = pl.Series([{"p": part, "q": "1"}], dtype=pl.Map(pl.String, pl.String))
        text = pl.lit('{"numRecords":1,"minValues":{"x":') + number + '},"maxValues":{"x":'
        return pl.select(
            actionType=pl.lit("add"),
            path=pl.lit(f"p={part}/") + number,
            dataChange=pl.lit(True),
            stats=text + number + "}}",
        ).with_columns(values.new_from_index(0, count).alias("partitionValues"))

    def judge(count: int) -> Callable[[], None]:
        theirs = Winner(7, Actions(files=files("b", count)))
        nothing = intent(where=[p == "a", (p == "b") & (x >= count)], isolation=SERIALIZABLE)
        mine = dataclasses.replace(nothing, staged=files("a", count))
        last = dataclasses.replace(mine, reads=Reads(where=(x >= count - 1,)))

        def both() -> None:
            assert rule_of(mine, theirs) is None
            error = find_conflict(last, theirs, format="delta")
            assert error is not None
            assert error.found == f"p=b/{count - 1}"

        return both

    assert_columnar(judge)
