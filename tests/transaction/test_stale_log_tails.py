"""Writers that stay open after cleanup deleted the commits that they have read.

No commit is lost below the checkpoint, and a valid table is not reported as damaged.
"""

from __future__ import annotations

import gc
import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import ConflictError, Table
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log, now_ms
from lakelog.storage import open_store
from lakelog.transaction import log_tail
from lakelog.transaction.runtime import Runtime
from tests import checkpoint_writer
from tests.concurrency import run_concurrently
from tests.model import replay
from tests.transaction.tables import append, paths

A_WHILE_S = 3600.0


class Clock:
    """Seconds that advance on request."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["local", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a table with one commit."""
    memory = request.param == "memory"
    where = f"memory://{uuid.uuid4().hex}/t" if memory else str(tmp_path / "t")
    lakelog.create(where, {"x": pl.Int64})
    return where


def clean_up(where: str, tmp_path: Path) -> None:
    """Write a checkpoint of the latest version and delete the commits below it."""
    store = open_store(where)
    copy = tmp_path / uuid.uuid4().hex
    (copy / "_delta_log").mkdir(parents=True)
    for entry in store.list_from("_delta_log"):
        name = f"_delta_log/{entry.name}"
        (copy / name).write_bytes(store.read(name))
    state = replay.replay(copy)
    [made] = checkpoint_writer.write(copy, state, "classic", random.Random(1))
    store.put(f"_delta_log/{made.name}", made.read_bytes())
    for entry in store.list_from("_delta_log"):
        name = entry.name.removesuffix(".json")
        if name != entry.name and int(name) < state.version:
            store.delete(f"_delta_log/{entry.name}")


def table_and_clock(where: str) -> tuple[Table, Clock]:
    clock = Clock()
    log = Log(open_store(where), DIALECT)
    return Table(log, Runtime(lambda _: None, monotonic=clock)), clock


def test_transaction_conflicts_if_cleanup_deleted_later_commits(where: str, tmp_path: Path) -> None:
    table, clock = table_and_clock(where)
    waiting = table.transaction()
    waiting.add(path="late", size=1)
    clock.now_s += A_WHILE_S
    for number in range(4):
        append(lakelog.open(where), f"other-{number}")
    clean_up(where, tmp_path)
    # The table has just read the end of the log; the transaction has not.
    assert append(table, "own") == 5
    with pytest.raises(ConflictError) as error:
        waiting.commit()
    assert error.value.rule == "commits_cleaned_up"
    assert paths(lakelog.open(where)) == [*(f"other-{n}" for n in range(4)), "own"]
    assert append(table, "late") == 6


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "read": lambda table: table.transaction().read().collect(),
    "files": lambda table: table.transaction().snapshot.files().collect(),
    "app": lambda table: table.transaction(app_id="a", app_version=0).duplicate,
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_table_that_stays_open_reads_the_log_after_cleanup(
    where: str, tmp_path: Path, operation: str, checkpointed: bool
) -> None:
    if checkpointed:
        clean_up(where, tmp_path)
    table, clock = table_and_clock(where)
    for number in range(3):
        append(table, f"own-{number}")
    clock.now_s += A_WHILE_S
    clean_up(where, tmp_path)
    OPERATIONS[operation](table)
    with table.transaction() as tx:
        found = tx.read().select("path").collect()["path"]
        assert sorted(found) == ["own-0", "own-1", "own-2"]
        tx.remove(path="own-0")
    assert tx.version == 4


@pytest.mark.parametrize("is_stream", [False, True])
def test_writer_keeps_a_bounded_number_of_log_tails(
    is_stream: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "MOST_STEPS", 5 * log_tail.META_STEPS if is_stream else 5)
    table, other = (lakelog.open(where, upkeep=False) for _ in range(2))
    for number in range(12):
        writer = other if number % 3 == 2 else table
        app: dict[str, Any] = {"app_id": "a", "app_version": number} if is_stream else {}
        with writer.transaction(**app) as tx:
            tx.add(path=f"f{number:02}", size=1)
        assert tx.version == number + 1
    gc.collect()
    alive = [each for each in gc.get_objects() if isinstance(each, log_tail.LogTail)]
    assert sum(each.log is table.log for each in alive) <= 6
    assert paths(lakelog.open(where)) == [f"f{number:02}" for number in range(12)]
    with table.transaction() as tx:
        assert tx.snapshot.files().collect().height == 12


def test_in_commit_timestamps_increase_after_the_last_commit_was_deleted(tmp_path: Path) -> None:
    stamped = {"delta.enableInCommitTimestamps": "true"}
    table = lakelog.create(tmp_path, {"id": pl.Int64}, configuration=stamped, upkeep=False)
    hour_ms = 3_600_000
    ahead = Table(replace(table.log, clock=lambda: now_ms() + hour_ms))  # another writer's clock
    append(ahead, "a")
    ahead.checkpoint()
    last = ahead.snapshot().in_commit_timestamp
    assert last is not None
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    behind = lakelog.open(tmp_path, upkeep=False)
    append(behind, "b")
    assert behind.snapshot().in_commit_timestamp == last + 1


def test_threads_share_a_log_tail(where: str) -> None:
    table = lakelog.open(where, upkeep=False)
    tails = log_tail.LogTails(table.log, Runtime())
    tails.latest()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(150):
            with table.transaction(app_id="a", app_version=number) as tx:
                tx.add(path=f"f{number}", size=1)
            tail = tails.latest()
            by_meta, by_snapshot = (
                partial(getattr, tail, "meta"),
                partial(getattr, tail, "snapshot"),
            )
            found = run_concurrently(*[by_meta, by_snapshot] * 3)
            assert [each.version for each in found[1::2]] == [number + 1] * 3
    finally:
        sys.setswitchinterval(interval)
