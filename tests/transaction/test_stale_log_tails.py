"""Writers that live longer than the commits that they have read, which cleanup deletes.

No commit is lost below the checkpoint, and a sound table does not look damaged.
"""

from __future__ import annotations

import gc
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import ConflictError, Table
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.transaction import log_tail
from lakelog.transaction.runtime import Runtime
from tests import checkpoint_writer
from tests.model import replay

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


def append(table: Table, path: str) -> int | None:
    with table.transaction() as tx:
        tx.add(path=path, size=1)
    return tx.version


def paths(table: Table) -> list[str]:
    return sorted(table.snapshot().files().select("path").collect()["path"])


def clean_up(where: str, tmp_path: Path) -> None:
    """A checkpoint of the latest version, without the commits below it; older checkpoints stay."""
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
    return Table(log, Runtime(lambda _: None, random.Random(1), clock)), clock


def test_a_transaction_is_not_written_where_a_version_was_cleaned_up(
    where: str, tmp_path: Path
) -> None:
    table, clock = table_and_clock(where)
    waiting = table.transaction()
    waiting.add(path="late", size=1)
    clock.now_s += A_WHILE_S
    for number in range(4):
        append(lakelog.open(where), f"other-{number}")
    clean_up(where, tmp_path)
    # The same table has only just seen the end of the log: the transaction has not.
    assert append(table, "own") == 5
    with pytest.raises(ConflictError) as error:
        waiting.commit()
    assert error.value.rule == "commits_cleaned_up"
    assert paths(lakelog.open(where)) == [*(f"other-{n}" for n in range(4)), "own"]
    assert append(table, "late") == 6


Ask = Callable[[Table], object]
ASKS: dict[str, Ask] = {
    "read": lambda table: table.transaction().read().collect(),
    "files": lambda table: table.transaction().snapshot.files().collect(),
    "app": lambda table: table.transaction(app_id="a", app_version=0).duplicate,
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("asked", list(ASKS))
def test_a_table_that_was_long_open_reads_what_clean_up_left(
    where: str, tmp_path: Path, asked: str, checkpointed: bool
) -> None:
    if checkpointed:
        clean_up(where, tmp_path)
    table, clock = table_and_clock(where)
    for number in range(3):
        append(table, f"own-{number}")
    clock.now_s += A_WHILE_S
    clean_up(where, tmp_path)
    ASKS[asked](table)
    with table.transaction() as tx:
        found = tx.read().select("path").collect()["path"]
        assert sorted(found) == ["own-0", "own-1", "own-2"]
        tx.remove(path="own-0")
    assert tx.version == 4


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_writer_does_not_remember_every_commit_that_it_has_made(
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
