"""The commit loop: a commit is written once or not at all, whatever the store responds."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog import (
    CommitOutcomeUnknown,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConflictError,
    InvalidPropertyError,
    MetadataChangedError,
    Table,
    TooManyConflictsError,
)
from lakelog.storage import open_store
from lakelog.testing import Fault, Rule
from lakelog.transaction.commit_loop import Retry
from tests.transaction.tables import (
    append,
    each_format,
    each_store,
    infos,
    location,
    new_table,
    open_with_rules,
    paths,
    runtime,
)

# --- faults ------------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("fault", ["lost", "unknown", "late"])
@pytest.mark.parametrize("reads", [1, 3])
def test_lost_response_is_resolved_even_if_the_first_read_fails(
    tmp_path: Path, form: str, fault: Fault, reads: int
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    path = lakelog.open(where).log.dialect.commit_path(1)
    rules = [Rule(fault, "put_if_absent"), Rule("fail", "read", times=reads, path=path)]
    table, store = open_with_rules(where, form, rules)
    assert append(table, "a") == 1
    store.arrive()
    assert paths(lakelog.open(where)) == ["a"]


@each_format
@pytest.mark.parametrize("fault", ["lost", "unknown", "lost_taken"])
def test_outcome_that_cannot_be_read_back_is_reported_as_unknown(
    tmp_path: Path, form: str, fault: Fault
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    path = lakelog.open(where).log.dialect.commit_path(1)
    rules = [Rule(fault, "put_if_absent"), Rule("fail", "read", times=None, path=path)]
    table, _ = open_with_rules(where, form, rules)
    tx = table.transaction()
    tx.add(path="a", size=1)
    with pytest.raises(CommitOutcomeUnknown) as error:
        tx.commit()
    assert error.value.version == 1
    assert error.value.path == path
    assert tx.txn_id in str(error.value)
    assert tx.version is None
    assert not tx.committed
    assert lakelog.open(where).version() == (0 if fault == "unknown" else 1)


def test_outcome_is_unknown_if_the_store_fails_after_a_lost_response(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    rules = [Rule("late", "put_if_absent"), Rule("fail", "put_if_absent", nth=2)]
    table, store = open_with_rules(where, "delta", rules)
    with pytest.raises(CommitOutcomeUnknown, match="version 1"):
        append(table, "a")
    store.arrive()
    assert paths(lakelog.open(where)) == ["a"]


def test_outcome_is_unknown_if_the_store_never_responds(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    table, _ = open_with_rules(where, "delta", [Rule("unknown", "put_if_absent", times=None)])
    with pytest.raises(CommitOutcomeUnknown):
        append(table, "a")


@each_format
def test_commit_of_another_writer_is_not_mistaken_for_ours_after_a_lost_response(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = open_with_rules(where, form, [Rule("unknown", "put_if_absent")])
    tx = table.transaction()
    tx.add(path="ours", size=1)
    put = store.put_if_absent

    def raced(path: str, data: bytes) -> bool:
        try:
            return put(path, data)
        except lakelog.OutcomeUnknownError:
            append(lakelog.open(where), "theirs")
            raise

    monkeypatch.setattr(store, "put_if_absent", raced)
    assert tx.commit() == 2
    assert paths(lakelog.open(where), 1) == ["theirs"]
    assert paths(lakelog.open(where)) == ["ours", "theirs"]


# --- races -------------------------------------------------------------------------------------


@each_store
@each_format
def test_two_appends_from_one_version_both_succeed(tmp_path: Path, kind: str, form: str) -> None:
    where = location(kind, tmp_path)
    new_table(where, form)
    one, _ = open_with_rules(where, form)
    other, _ = open_with_rules(where, form)
    first, second = one.transaction(), other.transaction()
    first.add(path="a", size=1)
    second.add(path="b", size=1)
    assert first.commit() == 1
    assert second.commit() == 2
    assert paths(lakelog.open(where)) == ["a", "b"]
    assert infos(lakelog.open(where))[2]["readVersion"] == 0


@each_format
def test_two_attempts_suffice_after_any_number_of_other_commits(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = open_with_rules(where, form)
    tx = table.transaction()
    tx.add(path="ours", size=1)
    other, _ = open_with_rules(where, form)
    for index in range(7):
        append(other, f"theirs-{index}")
    before = len(store.operations)
    assert tx.commit() == 8
    puts = [path for kind, path in store.operations[before:] if kind == "put_if_absent"]
    assert puts == [table.log.dialect.commit_path(version) for version in (1, 8)]


def test_writers_that_remove_the_same_file_conflict(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    append(new_table(where), "a")
    one, _ = open_with_rules(where, "delta")
    other, _ = open_with_rules(where, "delta")
    first, second = one.transaction(operation="CLEAN"), other.transaction()
    for tx in (first, second):
        tx.remove(path="a")
    first.commit()
    with pytest.raises(ConcurrentDeleteDeleteError) as error:
        second.commit()
    assert error.value.version == 2
    assert error.value.operation == "CLEAN"
    assert error.value.rule == "deleted_by_both"
    assert error.value.path == where
    assert second.version is None
    assert lakelog.open(where).version() == 2


@pytest.mark.parametrize("day", ["x", "y"])
def test_read_predicate_conflicts_only_with_files_that_may_match(tmp_path: Path, day: str) -> None:
    where = location("local", tmp_path)
    new_table(where, partition_by=["day"])
    one, _ = open_with_rules(where, "delta")
    other, _ = open_with_rules(where, "delta")
    reader, writer = one.transaction(isolation="Serializable"), other.transaction()
    reader.read(pl.col("day") == day)
    reader.add(path="r", size=1, partitionValues={"day": day})
    writer.add(path="w", size=1, partitionValues={"day": "y"})
    writer.commit()
    if day == "y":
        with pytest.raises(ConcurrentAppendError):
            reader.commit()
    else:
        assert reader.commit() == 2


def test_metadata_change_conflicts_with_a_transaction_under_the_old_metadata(
    tmp_path: Path,
) -> None:
    where = location("local", tmp_path)
    new_table(where)
    one, _ = open_with_rules(where, "delta")
    other, _ = open_with_rules(where, "delta")
    appender, changer = one.transaction(), other.transaction()
    appender.add(path="a", size=1)
    changer.set_metadata(configuration={"delta.appendOnly": "true"})
    changer.commit()
    with pytest.raises(MetadataChangedError):
        appender.commit()
    assert append(one, "a") == 2


def test_rebase_on_a_compatible_protocol_change_assigns_row_ids(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    one, _ = open_with_rules(where, "delta")
    other, _ = open_with_rules(where, "delta")
    appender = one.transaction()
    appender.add(path="a", size=1, stats={"numRecords": 4})
    with other.transaction() as tx:
        tx.set_protocol(features=["rowTracking"])
    assert appender.commit() == 2
    row = lakelog.open(where).snapshot().files().collect().row(0, named=True)
    assert (row["baseRowId"], row["defaultRowCommitVersion"]) == (0, 2)


# --- bounds ------------------------------------------------------------------------------------


def test_attempts_are_bounded_with_a_wait_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location("local", tmp_path)
    new_table(where)
    waits: list[float] = []
    table, store = open_with_rules(where, "delta")
    table = Table(table.log, runtime(waits))
    put = store.put_if_absent
    other = lakelog.open(where)

    def put_after_another_commit(path: str, data: bytes) -> bool:
        append(other, f"theirs-{other.version()}")
        return put(path, data)

    monkeypatch.setattr(store, "put_if_absent", put_after_another_commit)
    with pytest.raises(TooManyConflictsError) as error, table.transaction(max_attempts=4) as tx:
        tx.add(path="ours", size=1)
    assert error.value.version == 4
    assert len(waits) == 3
    assert "ours" not in paths(other)


def test_retry_properties_of_the_table_are_used() -> None:
    prefix = "spark.indextables.transaction.retry."
    retry = Retry.of({prefix + "maxAttempts": "7", prefix + "baseDelayMs": "50"})
    assert (retry.attempts, retry.base_s, retry.cap_s) == (7, 0.05, 5.0)
    assert Retry.of({prefix + "maxAttempts": "7"}, 3).attempts == 3
    for wrong in ("0", "-1", "x", "1.5"):
        with pytest.raises(InvalidPropertyError):
            Retry.of({prefix + "maxAttempts": wrong})


# --- stale log tails ---------------------------------------------------------------------------


def test_writer_with_a_cleaned_up_log_tail_does_not_fork_the_table(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    stale = lakelog.open(where)
    append(stale, "a")
    waiting = stale.transaction()
    waiting.add(path="late", size=1)
    other = lakelog.open(where)
    for index in range(6):
        append(other, f"b-{index}")
    DeltaTable(where).create_checkpoint()
    for version in range(7):
        open_store(where).delete(other.log.dialect.commit_path(version))
    with pytest.raises(ConflictError) as error:
        waiting.commit()
    assert error.value.rule == "commits_cleaned_up"
    assert append(stale, "c") == 8
    assert len(paths(other)) == 8


def test_table_with_only_a_checkpoint_accepts_commits(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    append(new_table(where), "a")
    DeltaTable(where).create_checkpoint()
    for version in range(2):
        open_store(where).delete(lakelog.open(where).log.dialect.commit_path(version))
    table = lakelog.open(where)
    assert [append(table, name) for name in ("b", "c")] == [2, 3]
    assert paths(table) == ["a", "b", "c"]


@each_format
def test_concurrent_checkpoints_do_not_conflict(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    for table in (lakelog.open(where), open_with_rules(where, form)[0]):
        tx = table.transaction()
        tx.add(path=tx.txn_id, size=1)
        other = lakelog.open(where)
        version = append(other, f"theirs-{tx.txn_id}")
        if form == "delta":
            DeltaTable(where).create_checkpoint()
        assert tx.commit() == (version or 0) + 1


@each_format
def test_second_append_only_lists_and_writes(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = open_with_rules(where, form)
    append(table, "a")
    before = len(store.operations)
    append(table, "b")
    kinds = [kind for kind, _ in store.operations[before:]]
    assert kinds == ["list", "put_if_absent"]
