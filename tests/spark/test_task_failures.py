"""Failures at every stage of a write: rows exist exactly once or not at all.

The table is readable, and vacuum deletes all leftovers and nothing else. Spark's part is simulated
by `tests.spark.spark_side`; `test_on_a_cluster` uses Spark.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import CommitOutcomeUnknown, ConflictError, LakelogError, LakelogWarning, Table
from lakelog.data import write as data_write
from lakelog.log.context import Log
from lakelog.spark import task_commit
from lakelog.storage import open_store
from lakelog.testing import KINDS, WRITES, Fault, InjectingStore, Kind, Rule
from tests.spark.spark_side import (
    finish,
    ids,
    named,
    new_table,
    on_disk,
    orphans,
    rows,
    task,
    writer,
)

FAULTS = ("fail", "unknown", "lost", "lost_taken", "late")


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A table of rows 0 and 1."""
    where = tmp_path / "t"
    new_table(where).append(pl.DataFrame(rows(0, 1)))
    return where


def breaking(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("the task's input broke")


def vacuum_deletes(where: Path) -> set[str]:
    """The files that vacuum deletes, once they are old enough."""
    for path in on_disk(where):
        os.utime(where / path, (1e9, 1e9))
    plan = lakelog.open(where).vacuum(retention=dt.timedelta(0), force=True, keep_history=True)
    return set(plan.files["path"])


# --- tasks -------------------------------------------------------------------------------------


def test_failed_task_leaves_no_file_and_another_attempt_writes_its_rows(where: Path) -> None:
    made = writer(where)
    before = on_disk(where)
    with pytest.raises(ValueError, match="input broke"):
        made.write(breaking(rows(2, 3)))
    assert on_disk(where) == before
    assert finish(made, [task(made, rows(2, 3)), task(made, rows(4))]) is None
    assert ids(where) == [0, 1, 2, 3, 4]
    assert orphans(where) == set()


def test_files_of_an_unused_attempt_are_orphans_that_vacuum_deletes(where: Path) -> None:
    made = writer(where)
    winner, loser = task(made, rows(2)), task(made, rows(2))
    left = {path for path in on_disk(where) if path not in named(where)}
    assert len(left) == 2
    assert finish(made, [winner]) is None
    assert ids(where) == [0, 1, 2]
    assert len(orphans(where)) == 1
    assert vacuum_deletes(where) == orphans(where)
    assert loser.written.adds != winner.written.adds


def test_failed_job_leaves_the_table_and_its_folder_unchanged(
    where: Path,
) -> None:
    made, before = writer(where), on_disk(where)
    assert finish(made, [task(made, rows(2)), None, task(made, rows(4, 5))]) is None
    assert on_disk(where) == before
    assert ids(where) == [0, 1]
    assert lakelog.open(where).version() == 1


@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "late"])
def test_a_task_whose_store_fails_at_any_operation_fails_or_writes_its_rows(
    where: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    for nth in range(1, 20):
        store = InjectingStore(open_store(where), [Rule(fault, WRITES, nth)])
        made = writer(where)
        with monkeypatch.context() as patch:
            patch.setattr(data_write, "open_store", lambda *_, store=store: store)
            try:
                message = made.write(iter([rows(nth * 10, nth * 10 + 1)]))
            except LakelogError:
                store.arrive()
                continue
        assert finish(made, [message]) is None
        written += [nth * 10, nth * 10 + 1]
        if len(store.operations) < nth:
            break
    else:
        pytest.fail("every run had a fault")
    assert ids(where) == [0, 1, *written]
    # What is late may arrive after the task has cleaned up.
    assert fault == "late" or orphans(where) == set()
    assert vacuum_deletes(where) == orphans(where)


# --- the driver --------------------------------------------------------------------------------


def over(where: Path, rules: list[Rule], monkeypatch: pytest.MonkeyPatch) -> InjectingStore:
    """Drivers see the table through a store that applies rules."""
    store = InjectingStore(open_store(where), rules)
    dialect = lakelog.open(where).log.dialect
    table = Table(Log(store, dialect))
    monkeypatch.setattr(task_commit, "_handle", lambda *_: table)
    return store


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_commit_with_a_fault_at_any_operation_is_atomic_and_can_be_repeated(
    where: Path, fault: Fault, replaces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: Sequence[Kind] = {"lost_taken": ("put_if_absent",), "fail": KINDS}.get(fault, WRITES)
    after = [2, 3] if replaces else [0, 1, 2, 3]
    for nth in range(1, 40):
        here = where.with_name(f"{nth}")
        shutil.copytree(where, here)

        def run(rules: list[Rule], here: Path = here) -> tuple[LakelogError | None, InjectingStore]:
            made = writer(here, overwrite=replaces, txnAppId="job", txnVersion="7")
            messages = [task(made, rows(2)), task(made, rows(3))]
            with monkeypatch.context() as patch:
                store = over(here, rules, patch)
                error = finish(made, messages)
            store.arrive()
            return error, store

        error, store = run([Rule(fault, kinds, nth)])
        found = ids(here)
        assert found in ([0, 1], after), f"{fault} at {nth}"
        assert error is not None or found == after
        assert run([])[0] is None
        assert ids(here) == after, f"{fault} at {nth}, and once more"
        assert vacuum_deletes(here) == orphans(here)
        if sum(kind in kinds for kind, _ in store.operations) < nth:
            return
    pytest.fail("every run had a fault")


def test_files_are_kept_after_a_commit_with_unknown_outcome(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(where)
    messages = [task(made, rows(2))]
    with monkeypatch.context() as patch:
        rules = [Rule("late", "put_if_absent"), Rule("fail", "read", 1, None, "*2.json")]
        store = over(where, rules, patch)
        error = finish(made, messages)
        assert isinstance(error, CommitOutcomeUnknown)
        assert ids(where) == [0, 1]
        store.arrive()
    assert ids(where) == [0, 1, 2], "the late commit arrived, and its files exist"


def test_refused_commit_deletes_its_files(where: Path) -> None:
    made = writer(where, overwrite=True)
    messages = [task(made, rows(2))]
    before = on_disk(where) - named(where)
    assert before
    lakelog.open(where).overwrite(pl.DataFrame(rows(7)))
    error = finish(made, messages)
    assert isinstance(error, ConflictError)
    assert ids(where) == [7]
    assert not before & on_disk(where)
    assert orphans(where) == set()


def test_files_in_the_log_are_never_deleted(where: Path) -> None:
    made = writer(where)
    messages = [task(made, rows(2)), task(made, rows(3))]
    assert finish(made, messages) is None
    adds = task_commit.unpacked([m.written for m in messages])
    assert task_commit.discard(lakelog.open(where), [adds], made.version) == []
    # Spark may abort a job although its commit succeeded.
    made.abort(list(messages))
    made.abort([*messages, None])
    assert ids(where) == [0, 1, 2, 3]


def test_files_of_an_undecidable_commit_are_left_for_vacuum(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(where)
    messages = [task(made, rows(2)), None]
    table = lakelog.open(where)
    table.append(pl.DataFrame(rows(5)))
    table.append(pl.DataFrame(rows(6)))
    table.checkpoint()
    for version in range(3):
        (where / f"_delta_log/{version:020}.json").unlink()
    assert finish(made, messages) is None
    assert vacuum_deletes(where) & on_disk(where)
    with monkeypatch.context() as patch:
        over(where, [Rule("fail", "list", 1, None)], patch)
        with pytest.warns(LakelogWarning, match="remain for vacuum"):
            made.abort([task(made, rows(8)), None])
    assert ids(where) == [0, 1, 5, 6]
