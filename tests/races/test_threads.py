"""Threads that share one table and one store, which sometimes loses answers and fails."""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import CommitOutcomeUnknown, ConflictError, Snapshot, Table, UnavailableError
from lakelog.log.context import Log
from lakelog.storage import LogStore, open_store
from lakelog.testing import Fault, InjectingStore
from tests.budget import IS_WHOLE, seeded
from tests.races.racers import digest_of

SCHEMA = {"p": pl.String, "x": pl.Int64}
THREADS = 8
COMMITS = 12 if IS_WHOLE else 5
FAULTS: tuple[Fault, ...] = ("fail", "unknown", "lost", "lost_taken", "late")


class Flaky(InjectingStore):
    """A third of the file creations have a fault, and a few of the reads fail."""

    def __init__(self, store: LogStore, rng: random.Random) -> None:
        super().__init__(store)
        self._rng = rng

    def _begin(self, kind: Any, path: str, trips: int = 1) -> Fault | None:
        super()._begin(kind, path, trips)
        with self._lock:
            draw = self._rng.random()
            fault = self._rng.choice(FAULTS)
        if kind != "put_if_absent":
            fault = "fail"
        if draw >= (0.35 if kind == "put_if_absent" else 0.03):
            return None
        if fault == "fail":
            raise UnavailableError("the store failed before the operation (injected)", path=path)
        return fault


def location(kind: str, folder: Path) -> str:
    return f"memory://{uuid.uuid4().hex}/t" if kind == "memory" else str(folder / "t")


def commit_until_it_exists(table: Table, path: str, app: tuple[str, int] | None) -> int | None:
    """Try again until the commit is known to exist; None if an earlier attempt created it.

    An attempt whose answer was lost may arrive at any time. Without an application, each attempt
    searches the same state that it is checked against: a later arrival is a conflict.
    """
    while True:
        try:
            tx = table.transaction(*(app or ()))
            if app is None and is_in(tx.snapshot, path):
                return None
            tx.add(path=path, size=1, partitionValues={"p": "a"})
            return tx.commit()
        except (UnavailableError, CommitOutcomeUnknown):
            continue
        except ConflictError as conflict:
            if conflict.rule != "file_added_by_both" or app is not None:
                raise
            return None


def is_in(snapshot: Snapshot, path: str) -> bool:
    return path in snapshot.files().select("path").collect()["path"]


@pytest.mark.parametrize("form", ["delta", "indextables"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_threads_share_a_table_over_a_flaky_store_and_commit_everything_once(
    tmp_path: Path, kind: str, form: str
) -> None:
    where = location(kind, tmp_path)
    plain = lakelog.create(where, SCHEMA, ["p"], form)
    store = Flaky(open_store(where), seeded())
    table = Table(Log(store, plain.log.dialect))
    barrier = threading.Barrier(THREADS + 1)
    finished = threading.Event()

    def write(me: int) -> list[int]:
        barrier.wait(60)
        versions = []
        for number in range(COMMITS):
            path = f"{me}-{number}"
            app = (f"app{me}", number) if form == "delta" else None
            version = commit_until_it_exists(table, path, app)
            if version is not None:
                versions.append(version)
        return versions

    def watch() -> list[tuple[int, int, int]]:
        snapshot = plain.snapshot()
        barrier.wait(60)
        seen = []
        while not finished.wait(0.005):
            snapshot = snapshot.update()
            paths = snapshot.files().select("path").collect()["path"].to_list()
            seen.append((snapshot.version, len(paths), digest_of(paths)))
        return seen

    with ThreadPoolExecutor(THREADS + 1) as pool:
        watching = pool.submit(watch)
        writing = [pool.submit(write, me) for me in range(THREADS)]
        try:
            versions = [version for each in writing for version in each.result(120)]
        finally:
            finished.set()
        seen = watching.result(60)
    store.arrive()
    wanted = {f"{me}-{number}" for me in range(THREADS) for number in range(COMMITS)}
    actions = plain.actions().collect()
    adds = actions.filter(actions["actionType"] == "add").sort("version")
    assert sorted(adds["path"]) == sorted(wanted)
    assert adds["version"].to_list() == list(range(1, len(wanted) + 1))
    assert plain.version() == len(wanted)
    assert len(versions) == len(set(versions))
    assert set(versions) <= set(adds["version"])
    prefixes = [0]
    for path in adds["path"]:
        prefixes.append(prefixes[-1] ^ digest_of([path]))
    assert [(version, digest) for version, _, digest in seen] == [
        (version, prefixes[version]) for version, _, _ in seen
    ]
    assert all(version == files for version, files, _ in seen)
    assert seen == sorted(seen)


def test_one_of_the_concurrent_transactions_of_several_threads_commits(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", SCHEMA, ["p"])
    with table.transaction() as tx:
        tx.add(path="shared", size=1, partitionValues={"p": "a"})
    barrier = threading.Barrier(THREADS)

    def replace(me: int) -> list[str | int | None]:
        answers: list[str | int | None] = []
        for number in range(5):
            barrier.wait(60)
            tx = table.transaction()
            tx.remove(tx.read(pl.col("p") == "a"))
            tx.add(path=f"{number}-by-{me}", size=1, partitionValues={"p": "a"})
            barrier.wait(60)
            try:
                answers.append(tx.commit())
            except ConflictError as conflict:
                answers.append(conflict.rule)
        return answers

    with ThreadPoolExecutor(THREADS) as pool:
        by_thread = list(pool.map(replace, range(THREADS)))
    for number, of_round in enumerate(zip(*by_thread, strict=True)):
        assert [a for a in of_round if isinstance(a, int)] == [number + 2]
        assert of_round.count("deleted_by_both") == THREADS - 1
    assert table.version() == 6
    assert table.snapshot().num_files() == 1
