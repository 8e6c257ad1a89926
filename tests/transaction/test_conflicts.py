"""Conflicts over files, rule by rule, and the content of the error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from lakelog.dialects.log_content import Actions
from lakelog.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConflictError,
    InvalidInputError,
)
from lakelog.transaction import conflicts
from lakelog.transaction.conflicts import RULES, find_conflict, rebase
from lakelog.transaction.pending_commit import Reads, Winner
from tests.handmade import Action, add, info, remove, vector
from tests.steps import assert_columnar
from tests.transaction.conflict_cases import (
    BLIND,
    METADATA,
    NOT_BLIND,
    SERIALIZABLE,
    WRITE_SERIALIZABLE,
    at,
    bounds,
    changed,
    conflict_of,
    domain,
    listed_protocol,
    metadata_of,
    p,
    pending,
    protocol_of,
    rule_of,
    txn,
    winner,
    with_properties,
    x,
)


def test_two_blind_appends_do_not_conflict() -> None:
    won = winner(BLIND, add("theirs", **at("a")))
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        assert rule_of(pending(add("ours", **at("a")), isolation=isolation), won) is None


def test_writers_of_different_partitions_do_not_conflict() -> None:
    tx = pending(
        remove("old", **at("a")), add("new", **at("a")), where=[p == "a"], isolation=SERIALIZABLE
    )
    assert rule_of(tx, winner(NOT_BLIND, remove("f", **at("b")), add("g", **at("b")))) is None


def test_file_added_to_a_read_partition_conflicts_and_the_error_names_it() -> None:
    tx = pending(remove("old", **at("a")), where=[p == "a"])
    won = winner(NOT_BLIND, add("p=b/one", **at("b")), add("p=a/two", **at("a")), version=12)
    error = find_conflict(tx, won)

    assert isinstance(error, ConcurrentAppendError)
    assert (error.version, error.operation, error.rule) == (12, "MERGE", "read_files_appended")
    assert error.found == "p=a/two"
    assert error.hint == RULES["read_files_appended"].hint
    for part in ("version 12", "MERGE", "read_files_appended"):
        assert part in str(error)


def test_blind_append_to_a_read_partition_or_table_conflicts_only_under_serializable() -> None:
    won = winner(BLIND, add("theirs", **at("a")))
    for where, whole in (([p == "a"], False), ([], True)):
        deletes = [remove("old", **at("a"))]
        loose = pending(*deletes, where=where, whole=whole)
        assert rule_of(loose, won) is None
        strict = pending(*deletes, where=where, whole=whole, isolation=SERIALIZABLE)
        assert rule_of(strict, won) == "read_files_appended"


def test_blind_append_conflicts_with_a_reader_that_changes_the_metadata() -> None:
    tx = pending(changed(METADATA, name="other"), where=[p == "a"])
    assert rule_of(tx, winner(BLIND, add("theirs", **at("a")))) == "read_files_appended"


@pytest.mark.parametrize(
    "infos", [[], [info("WRITE")], [info("WRITE", isBlindAppend=None)], [{"commitInfo": {}}]]
)
def test_append_without_is_blind_append_is_not_blind(infos: list[Action]) -> None:
    tx = pending(remove("old", **at("a")), where=[p == "a"])
    assert rule_of(tx, winner(*infos, add("theirs", **at("a")))) == "read_files_appended"


def test_blind_append_that_removes_files_is_not_blind() -> None:
    tx = pending(add("ours", **at("b")), where=[p == "a"])
    won = winner(BLIND, remove("old", **at("b")), add("theirs", **at("a")))
    assert rule_of(tx, won) == "read_files_appended"


def test_appends_to_indextables_without_commit_info_are_not_blind() -> None:
    tx = pending(remove("old", **at("a")), where=[p == "a"], format_="indextables")
    won = winner(add("theirs", **at("a")), format_="indextables")
    error = find_conflict(tx, won)
    assert error is not None
    assert (error.rule, error.operation) == ("read_files_appended", None)
    assert "unknown operation" in str(error)
    assert rule_of(tx, winner(add("theirs", **at("b")), format_="indextables")) is None


def test_hive_null_of_indextables_is_a_null_partition() -> None:
    hive: dict[str, Any] = {"partitionValues": {"p": "__HIVE_DEFAULT_PARTITION__", "q": "1"}}
    won = winner(add("theirs", **hive), format_="indextables")
    for where, rule in ((p.is_null(), "read_files_appended"), (p.is_not_null(), None)):
        tx = pending(remove("old", **at("a")), where=[where], format_="indextables")
        assert rule_of(tx, won) == rule


def test_statistics_of_indextables_exclude_files() -> None:
    stats: dict[str, Any] = {"numRecords": 3, "minValues": {"x": "2"}, "maxValues": {"x": "10"}}
    won = winner(add("theirs", **at("a"), **stats), format_="indextables")
    for where, rule in ((x > 10, None), (x > 9, "read_files_appended")):
        tx = pending(remove("old", **at("a")), where=[where], format_="indextables")
        assert rule_of(tx, won) == rule


def test_file_removed_by_both_always_conflicts() -> None:
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        tx = pending(remove("f", **at("a")), whole=True, isolation=isolation)
        error = find_conflict(tx, winner(info("DELETE"), remove("f")))
        assert isinstance(error, ConcurrentDeleteDeleteError)
        assert (error.rule, error.found, error.operation) == ("deleted_by_both", "f", "DELETE")
    assert rule_of(pending(remove("f")), winner(remove("f"))) == "deleted_by_both"
    assert rule_of(pending(remove("f")), winner(remove("g"))) is None


def test_paths_are_compared_decoded() -> None:
    tx = pending(remove("p=a%2520b/%C3%BC%20%3D"))
    assert conflict_of(tx, winner(remove("p=a%2520b/ü =")))[1] == "p=a%20b/ü ="


@pytest.mark.parametrize(
    "ours",
    [
        [remove("f", **vector("one")), add("f", **vector("three"))],
        [remove("f", **vector("one"))],
        [remove("f")],
    ],
)
def test_changed_deletion_vector_conflicts_with_every_removal_of_the_path(
    ours: list[Action],
) -> None:
    won = winner(info("DELETE"), remove("f", **vector("one")), add("f", **vector("two")))
    assert rule_of(pending(*ours), won) == "deleted_by_both"


def test_new_deletion_vector_of_a_path_conflicts_even_without_a_remove() -> None:
    won = winner(add("f", **vector("two")))
    assert rule_of(pending(remove("f")), won) == "removed_file_added"
    assert rule_of(pending(add("f", **vector("three"))), won) == "file_added_by_both"


def test_same_path_added_by_both_conflicts() -> None:
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        tx = pending(add("f", **at("a")), isolation=isolation)
        assert conflict_of(tx, winner(BLIND, add("f", **at("a")))) == (
            "file_added_by_both",
            "f",
        )


def test_adding_a_concurrently_removed_file_conflicts() -> None:
    tx = pending(add("f", **at("a"), dataChange=False))
    assert rule_of(tx, winner(info("DELETE"), remove("f"))) == "deleted_file_added"


def test_removed_file_that_was_read_conflicts() -> None:
    won = winner(info("DELETE"), remove("f", **at("a"), **bounds(1, 5)))
    for where in (p == "a", x < 2, (p == "a") & (x > 4)):
        assert conflict_of(pending(add("g"), where=[where]), won) == ("read_files_deleted", "f")
    for where in (p == "b", x > 5, (p == "a") & (x > 5)):
        assert rule_of(pending(add("g"), where=[where]), won) is None


def test_removed_file_without_partition_values_may_have_been_read() -> None:
    tx = pending(add("g"), where=[p == "a"])
    assert rule_of(tx, winner(remove("f"))) == "read_files_deleted"
    assert rule_of(tx, winner(remove("f", partitionValues={}))) == "read_files_deleted"


def test_whole_table_read_conflicts_with_any_file_and_with_no_other_action() -> None:
    tx = pending(add("g"), whole=True)
    assert rule_of(tx, winner(info("OPTIMIZE"), remove("f"))) == "read_files_deleted"
    assert rule_of(tx, winner(NOT_BLIND, add("f"))) == "read_files_appended"
    assert rule_of(tx, winner(info("X"), txn("app"), domain("d"))) is None


def test_match_of_one_of_several_predicates_conflicts() -> None:
    won = winner(NOT_BLIND, add("f", **at("b")))
    assert rule_of(pending(remove("o"), where=[p == "a", p == "b"]), won) == "read_files_appended"
    assert rule_of(pending(remove("o"), where=[p == "a", p == "c"]), won) is None


def test_rearranged_data_of_the_winner_conflicts_as_in_delta() -> None:
    won = winner(
        info("OPTIMIZE", isBlindAppend=False),
        remove("f", **at("a"), dataChange=False),
        add("g", **at("a"), dataChange=False),
    )
    tx = pending(remove("o", **at("a")), where=[p == "a"])
    assert rule_of(tx, won) == "read_files_deleted"
    broken = [rule for rule, _ in conflicts.broken_rules(tx, won)]
    assert broken == ["read_files_deleted", "read_files_appended"]


def test_row_tracking_backfill_does_not_count_as_an_append() -> None:
    tx = pending(remove("o", **at("a")), where=[p == "a"], isolation=SERIALIZABLE)
    backfill = info("ROW TRACKING BACKFILL", isBlindAppend=False)
    again = add("f", **at("a"), dataChange=False)
    assert rule_of(tx, winner(backfill, again)) is None
    assert rule_of(tx, winner(backfill, changed(again, dataChange=True))) == "read_files_appended"
    assert rule_of(tx, winner(info("OPTIMIZE"), again)) == "read_files_appended"


def test_transaction_that_only_rearranges_data_does_not_conflict_with_appends() -> None:
    ours = [remove("o", **at("a"), dataChange=False), add("n", **at("a"), dataChange=False)]
    won = winner(NOT_BLIND, add("theirs", **at("a")))
    for isolation in (WRITE_SERIALIZABLE, SERIALIZABLE):
        tx = pending(*ours, domain("delta.rowTracking"), where=[p == "a"], isolation=isolation)
        assert rule_of(tx, won) is None
        for more in (txn("app"), domain("mine"), changed(METADATA, name="n"), add("d")):
            tx = pending(*ours, more, where=[p == "a"], isolation=isolation)
            assert rule_of(tx, won) == "read_files_appended"
        tx = pending(*ours, where=[p == "a"], isolation=isolation)
        deleted = winner(info("DELETE"), remove("f", **at("a")))
        assert rule_of(tx, deleted) == "read_files_deleted"


def test_most_specific_rule_is_reported() -> None:
    tx = pending(remove("f", **at("a")), txn("app"), where=[p == "a"])
    won = [NOT_BLIND, remove("f", **at("a")), add("g", **at("a"))]
    broken = [rule for rule, _ in conflicts.broken_rules(tx, winner(*won))]
    assert broken == ["deleted_by_both", "read_files_deleted", "read_files_appended"]
    assert rule_of(tx, winner(*won, txn("app"))) == "app_id_written"
    assert list(RULES).index("app_id_written") < list(RULES).index("deleted_by_both")


def test_rebase_adopts_protocol_and_metadata_of_the_winner() -> None:
    new_protocol = listed_protocol("appendOnly", "invariants", "deletionVectors")
    enabled = with_properties(METADATA, delta__enableDeletionVectors="true")
    tx = pending(add("f"))
    first = winner(new_protocol, enabled)
    assert rule_of(tx, first) is None
    rebased = rebase(tx, first)
    assert rebased.protocol == protocol_of(new_protocol)
    assert rebased.metadata == metadata_of(enabled)
    assert rebased.files is tx.files
    # The change of the first winner is now the base: repeating it has no effect.
    assert rule_of(rebased, winner(new_protocol, enabled)) is None
    assert rule_of(rebased, winner(METADATA)) == "metadata_changed"
    assert rebase(tx, winner(add("g"))) == tx


def test_texts_in_the_error_are_truncated_and_the_operation_may_be_missing() -> None:
    path = "d/" * 500
    won = winner({"commitInfo": {"operation": "W" * 900}}, remove(path))
    error = find_conflict(pending(remove(path)), won)
    assert error is not None
    assert len(str(error.found)) == len(error.operation or "") == 200
    odd = Winner(3, Actions(files=won.actions.files))
    error = find_conflict(pending(remove(path)), odd)
    assert error is not None
    assert error.operation is None


def test_unknown_isolation_level_raises() -> None:
    tx = pending(add("f"), isolation="SnapshotIsolation")
    with pytest.raises(InvalidInputError, match="isolation level"):
        find_conflict(tx, winner(add("g")))


def test_empty_transactions_and_commits_do_not_conflict() -> None:
    assert rule_of(pending(), winner()) is None
    assert rule_of(pending(whole=True), winner(info("WRITE"))) is None
    assert rule_of(pending(where=[p == "a"]), winner(NOT_BLIND, add("f", **at("a")))) is None


def test_every_rule_is_in_the_table_of_the_module_docstring() -> None:
    table = (conflicts.__doc__ or "").split("====")
    for rule, (error, _, _) in RULES.items():
        assert any(f"\n{rule} " in part and f"`{error.__name__}`" in part for part in table)
        assert issubclass(error, ConflictError)


def test_files_are_checked_without_a_loop_over_rows() -> None:
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

    def check_of(count: int) -> Callable[[], None]:
        theirs = Winner(7, Actions(files=files("b", count)))
        serializable = pending(where=[p == "a", (p == "b") & (x >= count)], isolation=SERIALIZABLE)
        tx = dataclasses.replace(serializable, staged=files("a", count))
        last = dataclasses.replace(tx, reads=Reads(where=(x >= count - 1,)))

        def check() -> None:
            assert rule_of(tx, theirs) is None
            assert conflict_of(last, theirs)[1] == f"p=b/{count - 1}"

        return check

    assert_columnar(check_of)
