"""Sixteen processes race for one name, many times: one wins, and its content is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import share_of
from tests.storage.backends import Backend
from tests.storage.conftest import CLOUDS, BackendOf
from tests.storage.racer import content, name

RACER = Path(__file__).with_name("racer.py")
PROCESSES = 16
ROUNDS = share_of(100)


def run_race(backend: Backend, location: str) -> list[list[str]]:
    """The outcome of each process, for each round."""
    orders = {
        "location": location,
        "options": backend.options,
        "processes": PROCESSES,
        "rounds": ROUNDS,
    }
    done = subprocess.run(
        [sys.executable, str(RACER)],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes: list[list[str]] = json.loads(done.stdout)
    return outcomes


def check_rounds(backend: Backend, location: str, outcomes: list[list[str]]) -> None:
    others = {o for of_round in outcomes for o in of_round} - {"won", "taken"}
    assert others == set()
    winners = [of_round.index("won") for of_round in outcomes if of_round.count("won") == 1]
    assert len(winners) == len(outcomes) == ROUNDS
    store = backend.open(location)
    found = list(store.read_many([name(i) for i in range(ROUNDS)]))
    assert found == [content(winner) for winner in winners]
    assert [e.name for e in store.list_from("log")] == [
        name(i).removeprefix("log/") for i in range(ROUNDS)
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend_name", ["local", *CLOUDS])
def test_exactly_one_of_sixteen_processes_creates_each_name(
    backend_of: BackendOf, backend_name: str
) -> None:
    backend = backend_of(backend_name)
    location = backend.fresh()
    check_rounds(backend, location, run_race(backend, location))
