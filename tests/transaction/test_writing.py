"""The commit loop: exactly once or not at all, with any answer of the store, and never a gap."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog import (
    CommitOutcomeUnknown,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentTransactionError,
    ConflictError,
    InvalidPropertyError,
    LakelogError,
    MetadataChangedError,
    Table,
    TableExistsError,
    TooManyConflictsError,
    UnavailableError,
)
from lakelog.storage import open_store
from lakelog.testing import Fault, InjectingStore, Rule
from lakelog.transaction.commit_loop import Retry
from tests.transaction.tables import (
    append,
    create_over,
    infos,
    location,
    new_table,
    over,
    paths,
    runtime,
)

FORMATS = ("delta", "indextables")
STORES = ("local", "memory")
UNKNOWN: tuple[Fault, ...] = ("lost", "lost_taken", "unknown", "late")

each_format = pytest.mark.parametrize("form", FORMATS)
each_store = pytest.mark.parametrize("kind", STORES)


def write_append(table: Table) -> None:
    append(table, "new-1", "new-2")


def write_metadata(table: Table) -> None:
    with table.transaction() as tx:
        tx.set_metadata(name="renamed")


def write_remove(table: Table) -> None:
    with table.transaction() as tx:
        tx.remove(tx.read())


def write_identified(table: Table) -> None:
    append(table, "new-1", app_id="app", app_version=1)


WRITES = {
    "append": write_append,
    "metadata": write_metadata,
    "remove": write_remove,
    "identified": write_identified,
}


def state(where: str) -> tuple[Any, ...]:
    """The state that a reader sees, except versions and times."""
    table = lakelog.open(where)
    snapshot = table.snapshot()
    transactions = snapshot.transactions().select("appId", "txnVersion").collect().rows()
    return paths(table), snapshot.metadata, snapshot.protocol, transactions


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.sampled(6, keep=("write",))
@each_store
@each_format
@pytest.mark.parametrize("write", WRITES)
def test_a_failure_at_any_operation_leaves_the_table_as_before_or_as_after(
    tmp_path: Path, kind: str, form: str, write: str
) -> None:
    if form == "indextables" and write == "identified":
        return  # it has no application identifiers
    where = location(kind, tmp_path)
    append(new_table(where, form), "old")
    before = state(where)
    for nth in range(1, 100):
        table, store = over(where, form, [Rule("fail", nth=nth)])
        try:
            WRITES[write](table)
        except UnavailableError:
            assert state(where) == before
            continue
        # A hint that cannot be read stops nobody, so one run may get through its fault.
        if len(store.operations) < nth:
            break
        assert state(where) != before
        where = location(kind, tmp_path)
        append(new_table(where, form), "old")
        before = state(where)
    assert state(where) != before
    assert nth > 4
    versions = lakelog.open(where).versions()
    assert versions == [(0, 2)], "each failed run left nothing behind"


@each_store
@each_format
def test_a_failure_at_any_operation_of_create_leaves_no_table_or_a_whole_one(
    tmp_path: Path, kind: str, form: str
) -> None:
    where = location(kind, tmp_path)
    for nth in range(1, 100):
        store = InjectingStore(open_store(where), [Rule("fail", nth=nth)])
        try:
            create_over(store, form)
        except UnavailableError:
            with pytest.raises(lakelog.TableNotFoundError):
                lakelog.open(where).version()
            continue
        break
    assert len(store.operations) < nth
    assert lakelog.open(where).snapshot().schema.names == ("id", "day")


@pytest.mark.sampled(8, keep=("fault", "write"))
@each_store
@each_format
@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("write", WRITES)
def test_an_answer_that_is_lost_commits_exactly_once(
    tmp_path: Path, kind: str, form: str, fault: Fault, write: str
) -> None:
    if form == "indextables" and write == "identified":
        return
    where = location(kind, tmp_path)
    append(new_table(where, form), "old")
    table, store = over(where, form, [Rule(fault, "put_if_absent")])
    WRITES[write](table)
    store.arrive()
    assert lakelog.open(where).versions() == [(0, 2)]
    ids = [info["txnId"] for info in infos(lakelog.open(where))]
    assert len(ids) == len(set(ids)) == 3


@each_format
@pytest.mark.parametrize("fault", UNKNOWN)
def test_an_answer_that_is_lost_creates_a_table_once(
    tmp_path: Path, form: str, fault: Fault
) -> None:
    where = location("local", tmp_path)
    store = InjectingStore(open_store(where), [Rule(fault, "put_if_absent")])
    create_over(store, form)
    store.arrive()
    assert lakelog.open(where).versions() == [(0, 0)]


@each_format
@pytest.mark.parametrize("fault", ["lost", "unknown", "late"])
@pytest.mark.parametrize("reads", [1, 3])
def test_a_lost_answer_is_settled_even_if_reading_back_fails_at_first(
    tmp_path: Path, form: str, fault: Fault, reads: int
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    path = lakelog.open(where).log.dialect.commit_path(1)
    rules = [Rule(fault, "put_if_absent"), Rule("fail", "read", times=reads, path=path)]
    table, store = over(where, form, rules)
    assert append(table, "a") == 1
    store.arrive()
    assert paths(lakelog.open(where)) == ["a"]


@each_format
@pytest.mark.parametrize("fault", ["lost", "unknown", "lost_taken"])
def test_an_outcome_that_cannot_be_read_back_is_said_to_be_unknown(
    tmp_path: Path, form: str, fault: Fault
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    path = lakelog.open(where).log.dialect.commit_path(1)
    rules = [Rule(fault, "put_if_absent"), Rule("fail", "read", times=None, path=path)]
    table, _ = over(where, form, rules)
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


def test_a_store_that_fails_after_a_lost_answer_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    rules = [Rule("late", "put_if_absent"), Rule("fail", "put_if_absent", nth=2)]
    table, store = over(where, "delta", rules)
    with pytest.raises(CommitOutcomeUnknown, match="version 1"):
        append(table, "a")
    store.arrive()
    assert paths(lakelog.open(where)) == ["a"]


def test_a_store_that_never_answers_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    table, _ = over(where, "delta", [Rule("unknown", "put_if_absent", times=None)])
    with pytest.raises(CommitOutcomeUnknown):
        append(table, "a")


@each_format
def test_a_lost_answer_behind_which_another_writer_won_is_no_commit_of_ours(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = over(where, form, [Rule("unknown", "put_if_absent")])
    tx = table.transaction()
    tx.add(path="mine", size=1)
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
    assert paths(lakelog.open(where)) == ["mine", "theirs"]


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_amid_the_put_says_what_became_of_the_commit(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location("local", tmp_path)
    new_table(where)
    table, store = over(where, "delta")
    put = store.put_if_absent

    def interrupted(path: str, data: bytes) -> bool:
        if after:
            put(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "put_if_absent", interrupted)
    tx = table.transaction()
    tx.add(path="a", size=1)
    with pytest.raises(KeyboardInterrupt) as error:
        tx.commit()
    assert tx.committed is after
    assert tx.version == (1 if after else None)
    said = " ".join(error.value.__notes__)
    assert ("committed as version 1" in said) is after
    assert lakelog.open(where).version() == (1 if after else 0)


# --- races -------------------------------------------------------------------------------------


@each_store
@each_format
def test_two_appends_from_one_version_both_win(tmp_path: Path, kind: str, form: str) -> None:
    where = location(kind, tmp_path)
    new_table(where, form)
    one, _ = over(where, form)
    other, _ = over(where, form)
    first, second = one.transaction(), other.transaction()
    first.add(path="a", size=1)
    second.add(path="b", size=1)
    assert first.commit() == 1
    assert second.commit() == 2
    assert paths(lakelog.open(where)) == ["a", "b"]
    assert infos(lakelog.open(where))[2]["readVersion"] == 0


@each_format
def test_however_many_others_came_first_two_attempts_are_enough(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = over(where, form)
    tx = table.transaction()
    tx.add(path="mine", size=1)
    other, _ = over(where, form)
    for index in range(7):
        append(other, f"theirs-{index}")
    before = len(store.operations)
    assert tx.commit() == 8
    puts = [path for kind, path in store.operations[before:] if kind == "put_if_absent"]
    assert puts == [table.log.dialect.commit_path(version) for version in (1, 8)]


def test_writers_that_remove_the_same_file_conflict(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    append(new_table(where), "a")
    one, _ = over(where, "delta")
    other, _ = over(where, "delta")
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


@pytest.mark.parametrize("mine", ["x", "y"])
def test_a_declared_predicate_conflicts_only_with_what_it_may_hold(
    tmp_path: Path, mine: str
) -> None:
    where = location("local", tmp_path)
    new_table(where, partition_by=["day"])
    one, _ = over(where, "delta")
    other, _ = over(where, "delta")
    reader, writer = one.transaction(isolation="Serializable"), other.transaction()
    reader.read(pl.col("day") == mine)
    reader.add(path="r", size=1, partitionValues={"day": mine})
    writer.add(path="w", size=1, partitionValues={"day": "y"})
    writer.commit()
    if mine == "y":
        with pytest.raises(ConcurrentAppendError):
            reader.commit()
    else:
        assert reader.commit() == 2


def test_a_change_of_the_metadata_stops_who_was_prepared_under_the_old(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    one, _ = over(where, "delta")
    other, _ = over(where, "delta")
    appender, changer = one.transaction(), other.transaction()
    appender.add(path="a", size=1)
    changer.set_metadata(configuration={"delta.appendOnly": "true"})
    changer.commit()
    with pytest.raises(MetadataChangedError):
        appender.commit()
    assert append(one, "a") == 2


def test_after_a_harmless_protocol_change_the_gates_are_asked_again(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    one, _ = over(where, "delta")
    other, _ = over(where, "delta")
    appender = one.transaction()
    appender.add(path="a", size=1, stats={"numRecords": 4})
    with other.transaction() as tx:
        tx.set_protocol(features=["rowTracking"])
    assert appender.commit() == 2
    row = lakelog.open(where).snapshot().files().collect().row(0, named=True)
    assert (row["baseRowId"], row["defaultRowCommitVersion"]) == (0, 2)


@each_format
def test_an_application_version_is_written_once_even_in_a_race(tmp_path: Path, form: str) -> None:
    if form == "indextables":
        return
    where = location("local", tmp_path)
    new_table(where, form)
    one, _ = over(where, form)
    other, _ = over(where, form)
    first = one.transaction(app_id="app", app_version=5)
    second = other.transaction(app_id="app", app_version=5)
    later = over(where, form)[0].transaction(app_id="app", app_version=4)
    newer = over(where, form)[0].transaction(app_id="app", app_version=6)
    for tx in (first, second, later, newer):
        tx.add(path=f"{id(tx)}", size=1)
        assert not tx.duplicate
    assert first.commit() == 1
    assert second.commit() is None
    assert second.duplicate
    assert later.commit() is None
    assert later.duplicate
    with pytest.raises(ConcurrentTransactionError):
        newer.commit()
    assert lakelog.open(where).version() == 1
    again = one.transaction(app_id="app", app_version=5)
    assert again.duplicate


@each_format
def test_one_of_two_creators_wins(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    stores = [InjectingStore(open_store(where)) for _ in range(2)]
    create_over(stores[0], form)
    with pytest.raises(TableExistsError):
        create_over(stores[1], form)


def test_of_racing_creators_exactly_one_wins(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    outcomes: list[str] = []
    gate = threading.Barrier(6)

    def create() -> None:
        gate.wait()
        try:
            create_over(open_store(where), "delta")
            outcomes.append("won")
        except TableExistsError:
            outcomes.append("lost")

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 5 + ["won"]


@each_store
def test_threads_that_share_a_table_lose_nothing(tmp_path: Path, kind: str) -> None:
    where = location(kind, tmp_path)
    table = new_table(where)
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for index in range(10):
                append(table, f"{writer}-{index}")
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert table.versions() == [(0, 40)]
    assert paths(table) == sorted(f"{w}-{i}" for w in range(4) for i in range(10))


# --- bounds ------------------------------------------------------------------------------------


def test_attempts_are_bounded_and_each_wait_is_longer_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location("local", tmp_path)
    new_table(where)
    waits: list[float] = []
    table, store = over(where, "delta")
    table = Table(table.log, runtime(waits))
    put = store.put_if_absent
    other = lakelog.open(where)

    def beaten(path: str, data: bytes) -> bool:
        append(other, f"theirs-{other.version()}")
        return put(path, data)

    monkeypatch.setattr(store, "put_if_absent", beaten)
    with pytest.raises(TooManyConflictsError) as error, table.transaction(max_attempts=4) as tx:
        tx.add(path="mine", size=1)
    assert error.value.version == 4
    assert len(waits) == 3
    assert "mine" not in paths(other)


def test_a_table_says_how_often_to_try() -> None:
    prefix = "spark.indextables.transaction.retry."
    retry = Retry.of({prefix + "maxAttempts": "7", prefix + "baseDelayMs": "50"})
    assert (retry.attempts, retry.base_s, retry.cap_s) == (7, 0.05, 5.0)
    assert Retry.of({prefix + "maxAttempts": "7"}, 3).attempts == 3
    for wrong in ("0", "-1", "x", "1.5"):
        with pytest.raises(InvalidPropertyError):
            Retry.of({prefix + "maxAttempts": wrong})


# --- stale heads -------------------------------------------------------------------------------


@each_store
def test_a_writer_whose_head_was_cleaned_away_does_not_fork_the_table(
    tmp_path: Path, kind: str
) -> None:

    if kind == "memory":
        return  # the peer cannot write there
    where = location(kind, tmp_path)
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


def test_a_head_that_only_a_checkpoint_holds_can_be_written_upon(tmp_path: Path) -> None:

    where = location("local", tmp_path)
    append(new_table(where), "a")
    DeltaTable(where).create_checkpoint()
    for version in range(2):
        open_store(where).delete(lakelog.open(where).log.dialect.commit_path(version))
    table = lakelog.open(where)
    assert [append(table, name) for name in ("b", "c")] == [2, 3]
    assert paths(table) == ["a", "b", "c"]


@each_format
def test_checkpoints_that_others_write_stop_nobody(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    for table in (lakelog.open(where), over(where, form)[0]):
        tx = table.transaction()
        tx.add(path=tx.txn_id, size=1)
        other = lakelog.open(where)
        version = append(other, f"theirs-{tx.txn_id}")
        if form == "delta":
            DeltaTable(where).create_checkpoint()
        assert tx.commit() == (version or 0) + 1


@each_format
def test_an_append_reads_nothing_of_what_it_knows(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    table, store = over(where, form)
    append(table, "a")
    before = len(store.operations)
    append(table, "b")
    kinds = [kind for kind, _ in store.operations[before:]]
    assert kinds == ["list", "put_if_absent"]


@each_format
def test_every_error_says_what_to_do_next(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    new_table(where, form)
    with pytest.raises(LakelogError) as error:
        create_over(open_store(where), form)
    assert error.value.hint
