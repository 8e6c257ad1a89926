"""Killed writers: SIGKILL before and after every operation, every call of the operating system, and
at any time. Afterwards lakelog and deltalake open the table, its versions are contiguous, it reads
as before or as after, acknowledged commits exist, and the next writer is not affected by leftover
files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import lakelog
from lakelog.testing import WRITES
from tests.budget import seeded, share_of
from tests.faults.commit_cases import (
    FOLDERS,
    RUN_IDS,
    RUNS,
    Case,
    Expected,
    State,
    commit_again,
    copy_to,
    expect,
    prepare,
    read,
)
from tests.faults.killers import started

KILLER = Path(__file__).with_name("commit_killer.py")

Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run one writer to its end; return its exit code, negative if a signal ended it."""
    with started(KILLER) as run_order:
        yield lambda do, **order: run_order({"do": do, **order})


def acknowledged(ack: Path) -> list[int]:
    """Versions whose commits have returned to the writer."""
    return [int(line) for line in ack.read_text().splitlines()] if ack.exists() else []


def check_the_log(location: str, form: str, state: State) -> None:
    """Versions are contiguous, and deltalake reads the same."""
    if state is None:
        return
    names = os.listdir(Path(location, FOLDERS[form]))
    versions = sorted(int(name[:20]) for name in names if name.endswith(".json"))
    assert versions == list(range(versions[0], state["version"] + 1))
    if form != "delta":
        return
    peer = DeltaTable(location)
    assert peer.version() == state["version"]
    assert sorted(peer.get_add_actions().column("path").to_pylist()) == sorted(
        row["path"] for row in state["files"]
    )


def check(location: str, form: str, expected: Expected, ack: Path, what: str) -> None:
    """The table reads as before or as after, and contains the acknowledged commits."""
    found = read(location)
    assert found in [*expected.befores, expected.after], what
    if acknowledged(ack):
        assert found is not None
        assert found == expected.after, f"{what}: acknowledged, but missing"
        assert acknowledged(ack) == [found["version"]]
    check_the_log(location, form, found)
    commit_again(location, form, found)


def kill_at_each(
    run: Run, folder: Path, case: Case, form: str, expected: Expected, do: str, **order: Any
) -> None:
    """Kill a writer at its first operation, then at its second, and so on until it ends."""
    for nth in count(1):
        location, ack = folder / str(nth), folder / f"{nth}.ack"
        copy_to(str(location), expected.files)
        given = {**order, "case": case.name, "location": str(location), "ack": str(ack)}
        ended = run(do, nth=nth, **given)
        assert ended in {0, -signal.SIGKILL}
        check(str(location), form, expected, ack, f"{order} at {nth}")
        if ended == 0:
            break


@pytest.mark.sampled(4, keep=("case",))
@pytest.mark.parametrize(("case", "form"), RUNS, ids=RUN_IDS)
def test_commit_killed_at_any_operation_exists_completely_or_not_at_all(
    tmp_path: Path, run: Run, case: Case, form: str
) -> None:
    expected = expect(str(tmp_path / "clean"), case, form)
    # A read leaves the table as the write before it did.
    for fault in ("kill_before", "kill_after"):
        order = {"fault": fault, "kinds": WRITES}
        kill_at_each(run, tmp_path / fault, case, form, expected, "write_case", **order)


OS_RUNS = [(c, f) for c, f in RUNS if c.name in {"append", "create delta", "app id"}]


@pytest.mark.sampled(4, keep=("when",))
@pytest.mark.parametrize("when", ["before", "after", "torn"])
@pytest.mark.parametrize(("case", "form"), OS_RUNS, ids=[f"{c}-{f}" for c, f in OS_RUNS])
def test_commit_killed_at_any_system_call_exists_completely_or_not_at_all(
    tmp_path: Path, run: Run, case: Case, form: str, when: str
) -> None:
    expected = expect(str(tmp_path / "clean"), case, form)
    order = {"after": when == "after", "torn": when == "torn"}
    kill_at_each(run, tmp_path / when, case, form, expected, "write_case_on_disk", **order)


@pytest.mark.parametrize("form", list(FOLDERS))
def test_writers_killed_at_any_time_lose_no_acknowledged_commit(
    tmp_path: Path, run: Run, form: str
) -> None:
    rng = seeded()
    location = str(tmp_path / "t")
    prepare(location, RUNS[2][0], form)
    versions: list[int] = []
    for number in range(share_of(10, 3)):
        ack = tmp_path / f"{number}.ack"
        ended = run(
            "write_forever",
            location=location,
            ack=str(ack),
            name=f"writer{number}",
            after_s=rng.random() * 0.1,
        )
        assert ended == -signal.SIGKILL
        versions += acknowledged(ack)
        state = read(location)
        assert state is not None
        check_the_log(location, form, state)
        assert state["version"] - versions[-1] in {0, 1}, "at most one commit was in progress"
        adds = lakelog.open(location).actions().collect()
        adds = adds.filter((adds["actionType"] == "add") & adds["path"].str.starts_with("writer"))
        assert adds["path"].is_unique().all()
        assert set(versions) <= set(adds["version"])


def test_writers_killed_during_a_race_do_not_affect_other_writers(tmp_path: Path, run: Run) -> None:
    rng = seeded()
    location = str(tmp_path / "t")
    prepare(location, RUNS[2][0], "delta")
    acks = [tmp_path / f"{number}.ack" for number in range(6)]
    orders = [
        {
            "do": "write_forever",
            "location": location,
            "ack": str(ack),
            "name": f"writer{number}",
            "after_s": rng.random() * 0.2,
        }
        for number, ack in enumerate(acks)
    ]
    assert run("several", several=orders) == -signal.SIGKILL
    state = read(location)
    assert state is not None
    check_the_log(location, "delta", state)
    by_path = dict(
        lakelog.open(location).snapshot().files().select("path", "version").collect().iter_rows()
    )
    for number, ack in enumerate(acks):
        versions = acknowledged(ack)
        written = [by_path.pop(f"writer{number}-{n}") for n in range(len(versions))]
        assert written == versions, "each writer commits in order and returns its versions"
        by_path.pop(f"writer{number}-{len(versions)}", None)  # the commit in progress
    assert all(not path.startswith("writer") for path in by_path)
    commit_again(location, "delta", state)
