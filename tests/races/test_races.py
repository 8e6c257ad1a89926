"""Many processes on one table: no commit is lost or duplicated, and every reader sees a prefix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from tests.budget import IS_WHOLE
from tests.model import replay
from tests.model.observe import disagreements
from tests.races.racers import digest_of
from tests.storage.conftest import BackendOf

RACERS = Path(__file__).with_name("racers.py")
SCHEMA = {"p": pl.String, "x": pl.Int64}
PROCESSES = 8
COMMITS = 200 if IS_WHOLE else 20


def race(location: str, racers: list[dict[str, Any]], options: dict[str, Any] | None = None) -> Any:
    """The return values of the racers."""
    order = {"location": location, "options": options, "racers": racers}
    done = subprocess.run(
        [sys.executable, str(RACERS)],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout)


def appenders(count: int, commits: int, does: str = "append") -> list[dict[str, Any]]:
    return [{"does": does, "commits": commits} for _ in range(count)]


def watcher(pause_s: float) -> dict[str, Any]:
    return {"does": "watch", "pause_s": pause_s}


def check_appends(
    table: lakelog.Table, expected: set[str], answers: list[list[int]], seen: list[list[Any]]
) -> None:
    """Assert that every add exists once, in a version of its own, and every reader saw a prefix."""
    actions = table.actions().collect()
    adds = actions.filter(actions["actionType"] == "add").sort("version")
    assert Counter(adds["path"].to_list()) == Counter(expected)
    last = len(expected)
    assert table.version() == last
    assert table.versions() == [(0, last)]
    assert adds["version"].to_list() == list(range(1, last + 1))
    by_path = dict(adds.select("path", "version").iter_rows())
    for me, versions in enumerate(answers):
        assert versions == sorted(versions), "a writer's own commits keep their order"
        assert versions == [by_path[f"lakelog-{me}-{n}"] for n in range(len(versions))]
    prefixes = [0]
    for path in adds["path"]:
        prefixes.append(prefixes[-1] ^ digest_of([path]))
    for of_reader in seen:
        versions = [version for version, *_ in of_reader]
        assert versions == sorted(versions)
        assert versions[-1] == last
        for version, files, digest, counted in of_reader:
            assert (files, digest, counted) == (version, prefixes[version], version)
        assert len(set(versions)) > 3, "the reader read intermediate versions"


def names(count: int, commits: int, engine: str = "lakelog", first: int = 0) -> set[str]:
    return {f"{engine}-{me}-{n}" for me in range(first, first + count) for n in range(commits)}


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_eight_processes_write_many_commits_each_on_local_disk(tmp_path: Path, form: str) -> None:
    commits = COMMITS if form == "delta" else min(25, COMMITS // 2)
    location = str(tmp_path / "t")
    table = lakelog.create(location, SCHEMA, ["p"], form)
    racers = [*appenders(PROCESSES, commits), watcher(0.02)]
    *answers, seen = race(location, racers)
    check_appends(table, names(PROCESSES, commits), answers, [seen])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "commits"),
    [("gcs", COMMITS), ("ministack", 10 if IS_WHOLE else 5), ("azurite", 10 if IS_WHOLE else 5)],
    ids=["gcs", "s3, shorter", "azure, shorter"],
)
def test_eight_processes_write_many_commits_each_on_an_object_store(
    backend_of: BackendOf, name: str, commits: int
) -> None:
    backend = backend_of(name)
    location = backend.fresh()
    table = lakelog.create(location, SCHEMA, ["p"], storage_options=backend.options)
    racers = [*appenders(PROCESSES, commits), watcher(0.1)]
    *answers, seen = race(location, racers, backend.options)
    check_appends(table, names(PROCESSES, commits), answers, [seen])


def test_lakelog_and_deltalake_write_to_one_table_and_lose_nothing(tmp_path: Path) -> None:
    ours = 40 if IS_WHOLE else 16
    location = str(tmp_path / "t")
    table = lakelog.create(location, SCHEMA, ["p"])
    racers = [*appenders(4, ours), *appenders(4, ours // 2, "append_by_deltalake"), watcher(0.02)]
    *answers, seen = race(location, racers)
    expected = names(4, ours) | names(4, ours // 2, "deltalake", first=4)
    check_appends(table, expected, answers[:4], [seen])
    peer = DeltaTable(location)
    assert peer.version() == len(expected)
    assert set(peer.get_add_actions().column("path").to_pylist()) == expected
    assert disagreements(replay.replay(Path(location)), table.snapshot()) == []


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_exactly_one_of_many_creators_creates_the_table(tmp_path: Path, form: str) -> None:
    rounds = 10 if IS_WHOLE else 4
    racers = [{"does": "create", "rounds": rounds, "format": form} for _ in range(PROCESSES)]
    answers = race(str(tmp_path), racers)
    for number in range(rounds):
        of_round = [answers[me][number] for me in range(PROCESSES)]
        assert sorted(of_round) == ["created", *["table_exists"] * (PROCESSES - 1)]
        table = lakelog.open(tmp_path / str(number))
        assert table.version() == 0
        assert table.snapshot().metadata.name == f"by {of_round.index('created')}"


def test_one_of_many_writers_of_the_same_application_version_commits_it(tmp_path: Path) -> None:
    rounds = 15 if IS_WHOLE else 6
    table = lakelog.create(tmp_path / "t", SCHEMA, ["p"])
    racers = [{"does": "identify", "rounds": rounds} for _ in range(PROCESSES)]
    answers = race(str(tmp_path / "t"), racers)
    files = dict(table.snapshot().files().select("version", "path").collect().iter_rows())
    for number in range(rounds):
        of_round = [answers[me][number] for me in range(PROCESSES)]
        [winner] = [me for me in range(PROCESSES) if of_round[me] is not None]
        assert files.pop(of_round[winner]) == f"{number}-by-{winner}"
    assert files == {}
    assert table.version() == rounds


def test_exactly_one_writer_per_partition_commits(
    tmp_path: Path,
) -> None:
    rounds = 10 if IS_WHOLE else 4
    partitions = ["a", "b", "c", "c", "c", "d", "d", "e"]
    table = lakelog.create(tmp_path / "t", SCHEMA, ["p"])
    with table.transaction() as tx:
        for p in sorted(set(partitions)):
            tx.add(path=f"{p}-start", size=1, partitionValues={"p": p})
    answers = race(
        str(tmp_path / "t"),
        [{"does": "replace", "rounds": rounds, "partition": p} for p in partitions],
    )
    committed = Counter(
        (number, partitions[me])
        for me, of_racer in enumerate(answers)
        for number, answer in enumerate(of_racer)
        if isinstance(answer, int)
    )
    assert committed == Counter({(n, p): 1 for n in range(rounds) for p in set(partitions)})
    conflicts = [a for of_racer in answers for a in of_racer if not isinstance(a, int)]
    assert {(kind, rule) for kind, rule, _ in conflicts} == {
        ("concurrent_delete_delete", "deleted_by_both")
    }
    assert table.version() == 1 + rounds * len(set(partitions))
    files = table.snapshot().files().select("path").collect()["path"].to_list()
    assert sorted(path[:3] for path in files) == [f"{p}-{rounds - 1}" for p in "abcde"]
