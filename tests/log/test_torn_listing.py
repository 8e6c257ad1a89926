"""Listings that run while commits arrive.

A folder is listed in pages, so a listing can show a commit and lack the one before it. That is
neither damage nor a shorter log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lakelog
from lakelog import LogGapError, Table
from lakelog.log.context import Log
from lakelog.storage import LogStore, StoreWrapper, open_store
from lakelog.storage.base import FileEntry
from tests.budget import seeded, share_of
from tests.transaction.tables import DIALECTS, NO_CHECKPOINTS, append, new_table

LAST = 80


class CommitsDuringListing(StoreWrapper):
    """A store whose log gets commits while each listing runs; the listing shows some of them.

    The commits exist from the start, and are hidden until their turn.
    """

    def __init__(self, store: LogStore, rng: random.Random, reached: int) -> None:
        super().__init__(store)
        self.reached = reached
        self.listings = 0
        self._rng = rng

    def _hidden_versions(self) -> set[int]:
        """Versions that the next listing does not show."""
        self.listings += 1
        arriving = range(self.reached + 1, min(self.reached + self._rng.randrange(4), LAST) + 1)
        self.reached = arriving.stop - 1
        return {v for v in arriving if self._rng.random() < 0.5} | {*range(self.reached + 1, 99)}

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        hidden = self._hidden_versions()
        return [e for e in self._store.list_from(folder, start) if _version(e.name) not in hidden]

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        hidden = self._hidden_versions()
        for entries in self._store.walk(folder):
            yield [e for e in entries if _version(e.name) not in hidden]


def _version(name: str) -> int | None:
    return int(name[:20]) if name[:20].isdigit() and name.endswith(".json") else None


@pytest.fixture(scope="module", params=DIALECTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table whose version v has v files, with a checkpoint of version 5."""
    form: str = request.param
    folder = tmp_path_factory.mktemp("made") / "t"
    table = new_table(str(folder), form, configuration=NO_CHECKPOINTS[form])
    for version in range(1, LAST + 1):
        append(table, f"f{version}.parquet")
        if version == 5:
            table.checkpoint()
    return table


def open_latest(table: Table, known: int) -> None:
    snapshot = table.snapshot()
    assert snapshot.version >= known
    assert snapshot.num_files() == snapshot.version


def open_version(table: Table, known: int) -> None:
    assert table.snapshot(known).num_files() == known


def update_snapshot(table: Table, known: int) -> None:
    snapshot = table.snapshot(known // 2).update()
    assert snapshot.version >= known
    assert snapshot.num_files() == snapshot.version


def read_history(table: Table, known: int) -> None:
    versions = table.history()["version"].to_list()
    assert versions[0] >= known
    assert versions == list(range(versions[0], -1, -1))


def read_versions(table: Table, known: int) -> None:
    ((first, last),) = table.versions()
    assert first == 0
    assert last >= known


def list_from_version(table: Table, known: int) -> None:
    versions = [c.version for c in table.log.list_since(known // 2).commits]
    assert versions[-1] >= known
    assert versions == list(range(known // 2, versions[-1] + 1))


def plan_cleanup(table: Table, _known: int) -> None:
    assert table.cleanup().gate == "no-cut-off-commit"


def simulate(table: Table, _known: int) -> None:
    current = table.simulate_retention("1 day").row(0, named=True)
    assert (current["oldest_version"], current["versions_lost"]) == (0, 0)


@pytest.mark.parametrize(
    "call",
    [
        open_latest,
        open_version,
        update_snapshot,
        read_history,
        read_versions,
        list_from_version,
        plan_cleanup,
        simulate,
    ],
)
def test_commits_during_a_listing_cause_no_gap(
    made: Table, call: Callable[[Table, int], None]
) -> None:
    rng = seeded()
    for _ in range(share_of(20, 3)):
        known = rng.randrange(10, 40)
        store = CommitsDuringListing(open_store(made.log.table), rng, known)
        call(Table(Log(store, made.log.dialect)), known)


@pytest.mark.parametrize("form", DIALECTS)
def test_commit_absent_from_two_listings_is_missing(tmp_path: Path, form: str) -> None:
    table = new_table(str(tmp_path / "t"), form)
    for version in range(1, 5):
        append(table, f"f{version}.parquet")
    (tmp_path / "t" / table.log.dialect.commit_path(3)).unlink()
    with pytest.raises(LogGapError) as gap:
        lakelog.open(tmp_path / "t").snapshot()
    assert (gap.value.expected, gap.value.found) == (3, 4)


@pytest.mark.parametrize("form", DIALECTS)
def test_log_without_gaps_is_listed_once(tmp_path: Path, form: str) -> None:
    new_table(str(tmp_path / "t"), form)
    store = CommitsDuringListing(open_store(tmp_path / "t"), random.Random(0), LAST)
    Log(store, DIALECTS[form]).list_all()
    once = store.listings
    store.listings = 0
    DIALECTS[form].list_log(store, hint=False)
    assert once == store.listings
