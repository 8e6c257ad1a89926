"""Ingestors under load that are killed with SIGKILL at any time, and run next to other writers. A
few rounds, or ``LAKELOG_ROUNDS`` rounds; all in one directory, which the next process opens
immediately.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import ConflictError
from tests.budget import seed_of
from tests.concurrency import run_concurrently
from tests.faults.killers import killed

KILLER = Path(__file__).with_name("ingest_killer.py")
ROUNDS = max(3, int(os.environ.get("LAKELOG_ROUNDS", "0")))

Run = Callable[[dict[str, Any]], list[list[str]]]


@pytest.fixture
def run() -> Iterator[Run]:
    with killed(KILLER) as run_order:
        yield run_order


@pytest.mark.timeout(300 + 30 * ROUNDS)
@pytest.mark.parametrize("key", [None, "id"])
def test_acknowledged_rows_of_killed_processes_are_in_the_table_once(
    tmp_path: Path, run: Run, key: str | None
) -> None:
    seed = seed_of("ingest kills")
    print("seed", seed)
    rng = random.Random(seed)
    schema = {"id": pl.String, "value": pl.Int64}
    table = lakelog.create(tmp_path / "table", schema, upkeep=False)
    directory = tmp_path / "ingest"
    acknowledged: set[str] = set()
    order = {"table": str(tmp_path / "table"), "directory": str(directory), "key": key}
    for number in range(ROUNDS):
        events = run({**order, "round": number, "after_s": rng.uniform(0.0, 0.3)})
        acknowledged.update(event[1] for event in events if event[0] == "wrote")
        if number % 10 == 9 or number == ROUNDS - 1:
            with lakelog.Ingestor(table, directory, key=key, max_seconds=3600) as ingestor:
                check_rows(ingestor.read_your_writes().collect(), acknowledged, key)
            check_rows(table.to_polars(), acknowledged, key)
            table.compact()
            table.checkpoint()
    assert acknowledged


def check_rows(rows: pl.DataFrame, acknowledged: set[str], key: str | None) -> None:
    names = rows["id"]
    assert names.is_unique().all(), "a row is duplicated"
    assert acknowledged <= set(names), "an acknowledged row is missing"
    assert not names.str.starts_with("refused").any(), "a rejected row is in the table"
    if key is not None:
        last = rows.filter(pl.col("id").is_in(list(acknowledged)))["value"]
        assert (last == 2).all(), "a key has an older value"


def test_rows_are_inserted_once_while_other_writers_change_the_table(tmp_path: Path) -> None:
    schema = {"id": pl.Int64, "day": pl.Int64}
    table = lakelog.create(tmp_path / "table", schema, upkeep=False)
    table.append(pl.DataFrame({"id": [-1], "day": [0]}))
    own = lakelog.open(tmp_path / "table", upkeep=False)
    is_over = threading.Event()
    changes: list[str] = []

    def disturb() -> None:
        rng = random.Random(7)
        while not is_over.is_set() or len(changes) < 4:
            name = rng.choice(["compact", "restore", "delete", "checkpoint", "append"])
            with suppress(ConflictError):
                if name == "compact":
                    table.compact()
                elif name == "restore":
                    table.restore(rng.randint(1, table.version()))
                elif name == "delete":
                    table.delete(f"id % 7 = {rng.randint(0, 6)}")
                elif name == "checkpoint":
                    table.checkpoint()
                else:
                    table.append(pl.DataFrame({"id": [-1], "day": [0]}))
                changes.append(name)

    other = threading.Thread(target=disturb)
    with lakelog.Ingestor(own, tmp_path / "ingest", max_rows=40, max_seconds=0.02) as ingestor:
        app_id = ingestor.app_id

        def write(first: int) -> None:
            for number in range(first, first + 60):
                ingestor.write({"id": number, "day": 0})

        other.start()
        run_concurrently(*(partial(write, n * 60) for n in range(8)))
        ingestor.flush()
        is_over.set()
        other.join()
    actions = table.actions()
    own_versions = actions.filter(actionType="txn", appId=app_id).collect()["version"]
    fed = table.changes(0).filter(pl.col("_commit_version").is_in(own_versions.implode()))
    inserted = fed.collect()
    assert set(inserted["_change_type"]) == {"insert"}
    assert sorted(inserted["id"]) == list(range(480))
