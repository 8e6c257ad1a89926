"""Changes between two versions and the commits that made them; and the history of a file."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.errors import InvalidInputError, NotFoundError, VersionNotFoundError
from lakelog.log.blame import BLAME_SCHEMA, blame
from lakelog.log.context import Log
from lakelog.log.diff import DIFF_SCHEMA, diff
from tests.handmade import (
    FIRST_MS,
    ID_NAME,
    Handmade,
    add,
    field,
    info,
    metadata,
    protocol,
    remove,
    time_of,
    vector,
)

Row = tuple[Any, ...]
WEEK = dt.timedelta(weeks=1)


def changes(log: Log, a: int, b: int) -> list[Row]:
    """(kind, change, name, before, after, version) of every row."""
    frame = diff(log, a, b)
    assert dict(frame.schema) == DIFF_SCHEMA
    return frame.select(list(DIFF_SCHEMA)[:6]).rows()


def both_ways(log: Log, a: int, b: int) -> list[Row]:
    """The changes from `a` to `b`, after asserting that the opposite direction mirrors them."""
    swap = {"added": "removed", "removed": "added"}
    forth = changes(log, a, b)
    mirrored = [
        (kind, swap.get(change, change), name, after, before, version)
        for kind, change, name, before, after, version in forth
    ]
    back = changes(log, b, a)
    if not any(row[1] == "renamed" for row in forth):
        assert sorted(back, key=repr) == sorted(mirrored, key=repr)
    return forth


# --- files ---------------------------------------------------------------------------------------


def test_added_removed_and_changed_files_name_their_commit(made: Handmade) -> None:
    made.start(add("stays"), add("goes", 2), add("grows", 3), add("tagged", 4))
    made.commit(1, info("DELETE"), remove("goes"))
    made.commit(2, info("WRITE"), add("comes", 5), add("passes", 9))
    made.commit(3, info("MERGE"), add("grows", 30), remove("passes"))
    made.commit(4, info("COMPUTE STATS"), add("tagged", 4, tags={"k": "v"}))
    assert both_ways(made.context(), 0, 4) == [
        ("file", "removed", "goes", "2", None, 1),
        ("file", "added", "comes", None, "5", 2),
        ("file", "changed", "grows", "3", "30", 3),
        ("file", "changed", "tagged", "4", "4", 4),
    ]


def test_change_has_the_time_and_operation_of_its_commit(made: Handmade) -> None:
    made.start()
    made.commit(1, info("WRITE"), add("a"))
    made.commit(2, info("DELETE"))
    made.commit(3, add("b"))
    rows = diff(made.context(), 0, 3).select("version", "timestamp", "operation").rows()
    assert rows == [(1, time_of(1), "WRITE"), (3, time_of(3), None)]


def test_deletion_vector_is_one_change_of_its_file(made: Handmade) -> None:
    made.start(add("gets"), add("swaps", **vector("x")), add("loses", **vector("y")))
    made.commit(1, add("gets", **vector("a")), remove("gets"))
    made.commit(2, remove("swaps", **vector("x")), add("swaps", **vector("b")))
    made.commit(3, remove("loses", **vector("y")), add("loses"))
    assert both_ways(made.context(), 0, 3) == [
        ("deletionVector", "added", "gets", None, "ua@1", 1),
        ("deletionVector", "changed", "swaps", "ux@1", "ub@1", 2),
        ("deletionVector", "removed", "loses", "uy@1", None, 3),
    ]


def test_file_that_had_deletion_vectors_names_the_commit_that_added_or_removed_it(
    made: Handmade,
) -> None:
    first, second = vector("ab"), vector("cd")
    made.start(add("removed"), add("stays"))
    made.commit(1, info("WRITE"), add("added"))
    made.commit(2, info("DELETE"), remove("removed"), add("removed", **first))
    made.commit(3, info("DELETE"), remove("added"), add("added", **second))
    made.commit(4, info("OPTIMIZE"), remove("removed", **first))
    made.commit(5, info("COMPUTE STATS"), add("added", **second, tags={"k": "v"}))
    assert both_ways(made.context(), 0, 5) == [
        ("file", "added", "added", None, "1", 1),
        ("file", "removed", "removed", "1", None, 4),
    ]


def test_file_removed_and_added_again_unchanged_is_not_a_change(made: Handmade) -> None:
    made.start(add("a"))
    made.commit(1, remove("a"))
    made.commit(2, add("a"))
    assert both_ways(made.context(), 0, 2) == changes(made.context(), 2, 2) == []


def test_changes_of_deleted_commits_have_no_version(made: Handmade) -> None:
    made.start(add("stays"), add("goes", 2), add("swaps"))
    base = (protocol(), metadata(properties={"p": "1"}), add("stays"), add("comes"))
    made.checkpoint(0, protocol(), metadata(), add("stays"), add("goes", 2), add("swaps"))
    made.commit(1, remove("goes"), remove("swaps"), add("swaps", **vector("v")))
    made.commit(2, add("comes"), metadata(properties={"p": "1"}))
    made.checkpoint(2, *base, add("swaps", **vector("v")), remove("goes"))
    made.forget(1)
    assert both_ways(made.context(), 0, 2) == [
        ("deletionVector", "added", "swaps", None, "uv@1", None),
        ("file", "removed", "goes", "2", None, None),
        ("file", "added", "comes", None, "1", 2),
        ("property", "added", "p", None, "1", 2),
    ]
    made.forget(2)
    assert {row[5] for row in both_ways(made.context(), 0, 2)} == {None}
    assert len(changes(made.context(), 0, 2)) == 4


def test_version_that_cannot_be_rebuilt_is_refused(made: Handmade) -> None:
    made.start()
    with pytest.raises(VersionNotFoundError):
        diff(made.context(), 0, 5)


# --- schema, properties, protocol ----------------------------------------------------------------


def test_added_removed_and_retyped_columns(made: Handmade) -> None:
    made.commit(0, protocol(), metadata(field("a"), field("b", "integer"), field("gone", "date")))
    made.commit(1, metadata(field("a"), field("b", "integer")))
    made.commit(2, metadata(field("a"), field("b", "long")))
    struct = {"type": "struct", "fields": [field("x", "string")]}
    made.commit(3, metadata(field("a"), field("b", "long"), field("s", struct)))
    assert both_ways(made.context(), 0, 3) == [
        ("schema", "removed", "gone", "date", None, 1),
        ("schema", "changed", "b", "integer", "long", 2),
        ("schema", "added", "s", None, "struct", 3),
        ("schema", "added", "s.x", None, "string", 3),
    ]


def test_nullability_and_comments_and_nested_types_are_part_of_a_type(made: Handmade) -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    map_ = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    made.commit(0, protocol(), metadata(field("a"), field("b"), field("c"), field("d")))
    not_null = {**field("a"), "nullable": False}
    made.commit(
        1, metadata(not_null, field("b", comment="why"), field("c", array), field("d", map_))
    )
    assert both_ways(made.context(), 0, 1) == [
        ("schema", "changed", "a", "long", "long not null", 1),
        ("schema", "changed", "b", "long", "long -- why", 1),
        ("schema", "changed", "c", "long", "array<long>", 1),
        ("schema", "changed", "d", "long", "map<string,long>", 1),
    ]


MAPPED = {"delta.columnMapping.mode": "name"}


def mapped(name: str, number: int, type_: str = "long") -> dict[str, Any]:
    names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return {**field(name, type_), "metadata": names}


def test_column_with_the_same_mapping_id_is_renamed(made: Handmade) -> None:
    made.commit(0, protocol(2, 5), metadata(mapped("a", 1), mapped("b", 2), properties=MAPPED))
    made.commit(1, metadata(mapped("new", 1), mapped("b", 2), properties=MAPPED))
    made.commit(2, metadata(mapped("new", 1), properties=MAPPED))
    log = made.context()
    assert both_ways(log, 0, 2) == [
        ("schema", "renamed", "new", "a", "new", 1),
        ("schema", "removed", "b", "long", None, 2),
    ]
    assert ("schema", "renamed", "a", "new", "a", 1) in changes(log, 2, 0)


def test_column_that_is_dropped_and_created_again_is_not_renamed(made: Handmade) -> None:
    made.commit(0, protocol(2, 5), metadata(mapped("a", 1), properties=MAPPED))
    made.commit(1, metadata(mapped("a", 2), properties=MAPPED))
    made.commit(2, metadata(mapped("b", 3), properties=MAPPED))
    assert changes(made.context(), 1, 2) == [
        ("schema", "removed", "a", "long", None, 2),
        ("schema", "added", "b", None, "long", 2),
    ]


def test_renamed_and_widened_column_has_both_changes(made: Handmade) -> None:
    made.commit(0, protocol(2, 5), metadata(mapped("a", 1, "integer"), properties=MAPPED))
    made.commit(1, metadata(mapped("a", 1), properties=MAPPED))
    made.commit(2, metadata(mapped("b", 1), properties=MAPPED))
    assert changes(made.context(), 0, 2) == [
        ("schema", "changed", "b", "integer", "long", 1),
        ("schema", "renamed", "b", "a", "b", 2),
    ]


def test_column_with_the_name_of_a_dropped_column_is_a_new_column(made: Handmade) -> None:
    made.commit(0, protocol(2, 5), metadata(mapped("a", 1), mapped("b", 2), properties=MAPPED))
    made.commit(1, metadata(mapped("a", 1), properties=MAPPED))
    made.commit(2, metadata(mapped("b", 1), properties=MAPPED))
    made.commit(3, metadata(mapped("b", 1), mapped("a", 3), properties=MAPPED))
    assert changes(made.context(), 0, 3) == [
        ("schema", "removed", "b", "long", None, 1),
        ("schema", "renamed", "b", "a", "b", 2),
        ("schema", "added", "a", None, "long", 3),
    ]


def test_enabling_column_mapping_changes_no_column(made: Handmade) -> None:
    made.start()
    properties = {**MAPPED, "delta.columnMapping.maxColumnId": "2"}
    columns = [mapped("id", 1), mapped("name", 2, "string")]
    made.commit(1, protocol(2, 5), metadata(*columns, properties=properties))
    assert [row for row in changes(made.context(), 0, 1) if row[0] == "schema"] == []


def test_columns_that_swap_names_are_both_renamed(made: Handmade) -> None:
    made.commit(0, protocol(2, 5), metadata(mapped("a", 1), mapped("b", 2), properties=MAPPED))
    made.commit(1, metadata(mapped("b", 1), mapped("a", 2), properties=MAPPED))
    assert changes(made.context(), 0, 1) == [
        ("schema", "renamed", "a", "b", "a", 1),
        ("schema", "renamed", "b", "a", "b", 1),
    ]


def test_nested_column_with_the_same_mapping_id_is_renamed(made: Handmade) -> None:
    def columns(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
        struct = {"type": "struct", "fields": list(fields)}
        array = {"type": "array", "elementType": struct, "containsNull": True}
        return metadata(mapped(name, 1) | {"type": array}, properties=MAPPED)

    made.commit(0, protocol(2, 5), columns("s", mapped("a", 2), mapped("b", 3)))
    made.commit(1, columns("s", mapped("z", 2), mapped("b", 3)))
    made.commit(2, columns("t", mapped("z", 2), mapped("b", 3)))
    made.commit(3, columns("t", mapped("z", 2), mapped("b", 4)))
    log = made.context()
    assert both_ways(log, 0, 1) == [
        ("schema", "renamed", "s.element.z", "s.element.a", "s.element.z", 1)
    ]
    assert both_ways(log, 0, 2) == [
        ("schema", "renamed", "t.element.z", "s.element.a", "t.element.z", 1),
        ("schema", "renamed", "t", "s", "t", 2),
    ]
    assert changes(log, 2, 3) == [
        ("schema", "removed", "t.element.b", "long", None, 3),
        ("schema", "added", "t.element.b", None, "long", 3),
    ]


def test_added_changed_and_removed_properties(made: Handmade) -> None:
    made.commit(0, protocol(), metadata(properties={"a": "1", "b": "1", "same": "x"}))
    made.commit(1, metadata(properties={"a": "2", "b": "1", "same": "x"}))
    made.commit(2, metadata(properties={"a": "2", "c": "3", "same": "x"}))
    made.commit(3, metadata(properties={"a": "2", "c": "3", "same": "x"}))
    assert both_ways(made.context(), 0, 3) == [
        ("property", "changed", "a", "1", "2", 1),
        ("property", "removed", "b", "1", None, 2),
        ("property", "added", "c", None, "3", 2),
    ]


def test_property_changed_several_times_names_the_last_commit(made: Handmade) -> None:
    made.commit(0, protocol(), metadata(properties={"a": "1"}))
    for version, value in enumerate("2132", 1):
        made.commit(version, metadata(properties={"a": value}))
    assert changes(made.context(), 0, 4) == [("property", "changed", "a", "1", "2", 4)]


def test_changes_of_the_metadata(made: Handmade) -> None:
    made.commit(0, protocol(), metadata(name="old"))
    more: dict[str, Any] = {"name": "new", "description": "text", "table_id": "id-1"}
    made.commit(1, metadata(*ID_NAME, partitioned=["id"], **more))
    assert both_ways(made.context(), 0, 1) == [
        ("metadata", "added", "description", None, "text", 1),
        ("metadata", "changed", "id", "id-0", "id-1", 1),
        ("metadata", "changed", "name", "old", "new", 1),
        ("metadata", "changed", "partitionColumns", "[]", '["id"]', 1),
    ]


def test_versions_and_features_of_the_protocol(made: Handmade) -> None:
    made.start()
    made.commit(1, protocol(1, 4))
    features = ["deletionVectors"]
    made.commit(2, protocol(3, 7, readerFeatures=features, writerFeatures=[*features, "x"]))
    assert both_ways(made.context(), 0, 2) == [
        ("protocol", "changed", "minReaderVersion", "1", "3", 2),
        ("protocol", "changed", "minWriterVersion", "2", "7", 2),
        ("protocol", "added", "readerFeatures.deletionVectors", None, "supported", 2),
        ("protocol", "added", "writerFeatures.deletionVectors", None, "supported", 2),
        ("protocol", "added", "writerFeatures.x", None, "supported", 2),
    ]


# --- transactions, domains, skips ----------------------------------------------------------------


def test_transactions_name_the_last_commit_of_their_application(made: Handmade) -> None:
    made.start({"txn": {"appId": "a", "version": 5}}, {"txn": {"appId": "same", "version": 1}})
    made.commit(1, {"txn": {"appId": "b", "version": 1}})
    made.commit(2, {"txn": {"appId": "a", "version": 4}})
    assert both_ways(made.context(), 0, 2) == [
        ("txn", "added", "b", None, "1", 1),
        ("txn", "changed", "a", "5", "4", 2),
    ]


def domain(name: str, configuration: str, removed: bool = False) -> dict[str, Any]:
    body = {"domain": name, "configuration": configuration, "removed": removed}
    return {"domainMetadata": body}


def test_added_changed_and_removed_domains(made: Handmade) -> None:
    made.start(domain("goes", "1"), domain("turns", "1"))
    made.commit(1, domain("goes", "1", removed=True))
    made.commit(2, domain("turns", "2"), domain("comes", "3"))
    assert both_ways(made.context(), 0, 2) == [
        ("domain", "removed", "goes", "1", None, 1),
        ("domain", "added", "comes", None, "3", 2),
        ("domain", "changed", "turns", "1", "2", 2),
    ]


def test_skips_of_an_indextables_log(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.log = made.root / "_transaction_log"
    made.log.mkdir()
    skip = {"path": "bad", "reason": "merge", "skipTimestamp": 1, "operation": "merge"}
    made.commit(0, protocol(2, 2), metadata(), add("a"))
    made.commit(1, {"mergeskip": {**skip, "skipCount": 1}})
    made.commit(2, {"skip": {**skip, "skipCount": 2}})
    log = made.context(dialect=INDEXTABLES)
    assert both_ways(log, 0, 2) == [("skip", "added", "bad", None, "2", 2)]
    assert both_ways(log, 1, 2) == [("skip", "changed", "bad", "1", "2", 2)]


# --- blame ---------------------------------------------------------------------------------------


def file_history(log: Log, path: str) -> list[dict[str, Any]]:
    frame = blame(log, path)
    assert dict(frame.schema) == BLAME_SCHEMA
    return frame.rows(named=True)


def test_blame_lists_every_commit_that_changed_the_file(made: Handmade) -> None:
    made.start(add("a", 7))
    made.commit(1, info("UPDATE", userName="u", engineInfo="e"), add("b"))
    made.commit(2, remove("a"), add("a", 7, dataChange=False, **vector("v", 3)))
    made.commit(3, info("DELETE", userName="u", engineInfo="e"), remove("a", **vector("v", 3)))
    rows = file_history(made.context(), "a")
    assert [(r["version"], r["actionType"], r["dvId"], r["dvCardinality"]) for r in rows] == [
        (0, "add", None, None),
        (2, "remove", None, None),
        (2, "add", "uv@1", 3),
        (3, "remove", "uv@1", 3),
    ]
    assert rows[0]["operation"] == "CREATE TABLE"
    assert (rows[0]["size"], rows[0]["dataChange"], rows[2]["dataChange"]) == (7, True, False)
    assert (rows[3]["operation"], rows[3]["userName"], rows[3]["engineInfo"]) == (
        "DELETE",
        "u",
        "e",
    )
    assert [r["timestamp"] for r in rows] == [time_of(0), time_of(2), time_of(2), time_of(3)]


def test_live_file_has_no_vacuum_time(made: Handmade) -> None:
    made.start(add("a"))
    made.commit(1, remove("a", deletionTimestamp=FIRST_MS))
    made.commit(2, add("a"))
    assert [r["vacuumAfter"] for r in file_history(made.context(), "a")] == [None, None, None]


@pytest.mark.parametrize(
    ("properties", "retention"),
    [
        ({}, WEEK),
        ({"delta.deletedFileRetentionDuration": "interval 2 days"}, dt.timedelta(days=2)),
        ({"delta.deletedFileRetentionDuration": "interval 0 seconds"}, dt.timedelta(0)),
    ],
    ids=["default", "configured", "zero"],
)
def test_removed_file_may_be_vacuumed_after_the_retention(
    made: Handmade, properties: dict[str, str], retention: dt.timedelta
) -> None:
    made.start(add("a"), properties=properties)
    made.commit(1, remove("a", deletionTimestamp=FIRST_MS + 5))
    first, last = file_history(made.context(), "a")
    deleted = dt.datetime.fromtimestamp(FIRST_MS / 1000, dt.UTC) + dt.timedelta(milliseconds=5)
    assert first["vacuumAfter"] is None
    assert last["deletionTimestamp"] == deleted
    assert last["vacuumAfter"] == deleted + retention


def test_removed_file_has_no_vacuum_time_if_the_retention_is_malformed(made: Handmade) -> None:
    made.start(add("a"), properties={"delta.deletedFileRetentionDuration": "a while"})
    made.commit(1, remove("a", deletionTimestamp=FIRST_MS))
    assert [r["vacuumAfter"] for r in file_history(made.context(), "a")] == [None, None]


def test_remove_without_a_time_counts_from_the_epoch(made: Handmade) -> None:
    made.start(add("a"))
    made.commit(1, remove("a"))
    assert file_history(made.context(), "a")[-1]["vacuumAfter"] == dt.datetime(
        1970, 1, 8, tzinfo=dt.UTC
    )


def test_live_file_with_a_new_deletion_vector_has_no_vacuum_time(
    made: Handmade,
) -> None:
    made.start(add("a"))
    made.commit(1, add("a", **vector("v")), remove("a", deletionTimestamp=FIRST_MS))
    assert [r["vacuumAfter"] for r in file_history(made.context(), "a")] == [None, None, None]


@pytest.mark.parametrize("deleted_ms", [2**62, 253_402_300_799_999, -(2**62)])
def test_extreme_deletion_time_gives_a_valid_datetime(made: Handmade, deleted_ms: int) -> None:
    made.start(add("a"))
    made.commit(1, remove("a", deletionTimestamp=deleted_ms))
    _, last = file_history(made.context(), "a")
    assert last["deletionTimestamp"] <= last["vacuumAfter"]


def test_file_that_is_only_in_a_checkpoint_has_a_row_without_a_version(made: Handmade) -> None:
    made.commit(3, add("c"))
    removed = remove("removed", deletionTimestamp=FIRST_MS)
    made.checkpoint(2, protocol(), metadata(), add("live", 4), removed)
    (row,) = file_history(made.context(), "live")
    assert (row["version"], row["actionType"], row["size"], row["vacuumAfter"]) == (
        None,
        "add",
        4,
        None,
    )
    (row,) = file_history(made.context(), "removed")
    assert (row["version"], row["actionType"]) == (None, "remove")
    assert row["vacuumAfter"] == dt.datetime.fromtimestamp(FIRST_MS / 1000, dt.UTC) + WEEK


@pytest.mark.parametrize(
    "given", ["p=a b/é.parquet", "p=a%20b/%C3%A9.parquet", "{root}/p=a b/é.parquet"]
)
def test_path_may_be_given_decoded_or_encoded(made: Handmade, given: str) -> None:
    made.start(add("p=a%20b/%C3%A9.parquet"))
    (row,) = file_history(made.context(), given.format(root=made.root))
    assert row["version"] == 0


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_names_that_differ_by_an_escape_are_two_files(made: Handmade, in_checkpoint: bool) -> None:
    live, removed = "a%2520b", "a%20b"  # as the log writes the names a%20b and "a b"
    made.start(add(live, 7))
    made.commit(1, add(removed, 8))
    made.commit(2, remove(removed))
    if in_checkpoint:
        made.checkpoint(0, protocol(), metadata(), add(live, 7))
        made.forget(0)
    log = made.context()
    (own,) = file_history(log, "a%20b")
    assert (own["actionType"], own["size"], own["vacuumAfter"]) == ("add", 7, None)
    assert file_history(log, "a%2520b") == [own]
    assert [(r["version"], r["actionType"]) for r in file_history(log, "a b")] == [
        (1, "add"),
        (2, "remove"),
    ]


def test_unknown_path_is_refused(made: Handmade) -> None:
    made.start(add("a"))
    with pytest.raises(NotFoundError, match="does not contain this file"):
        blame(made.context(), "b")
    with pytest.raises(InvalidInputError, match="empty"):
        blame(made.context(), "")
