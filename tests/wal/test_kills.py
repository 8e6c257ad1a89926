"""Writers under load killed with SIGKILL at any time: all acknowledged records exist.

A few rounds, or ``LAKELOG_ROUNDS``; all on one log, which the next writer opens immediately.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lakelog.wal.log import WriteAheadLog
from tests.faults.killers import asked

KILLER = Path(__file__).with_name("wal_killer.py")
ROUNDS = max(6, int(os.environ.get("LAKELOG_ROUNDS", "0")))

Run = Callable[[dict[str, Any]], list[list[str]]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs one writer until it is killed, and returns its output."""
    with asked(KILLER) as ask:

        def run_order(order: dict[str, Any]) -> list[list[str]]:
            told = []
            for line in ask(order):
                told.append(line.split())
                if told[-1][0] == "ended":
                    return told
            raise AssertionError("the killer itself has died")

        yield run_order


@dataclass
class Known:
    """The acknowledgements of the writers, and the records found last.

    Attributes:
        wrote: Each unit's last sequence number.
        void: Records up to this one are truncated.
        may_be_void: Truncations that were begun and never completed.
        found: Each record that was found, by its sequence number.
    """

    wrote: dict[str, int] = field(default_factory=dict)
    void: int = 0
    may_be_void: set[int] = field(default_factory=set)
    found: dict[int, tuple[str, bytes, bytes | None]] = field(default_factory=dict)

    def hear(self, told: list[list[str]]) -> None:
        for event, number, *unit in told:
            if event == "wrote":
                self.wrote[unit[0]] = int(number)
            elif event == "truncating":
                self.may_be_void.add(int(number))
            elif event == "truncated":
                self.void = max(self.void, int(number))

    def check(self, log: WriteAheadLog) -> None:
        found: dict[int, tuple[str, bytes, bytes | None]] = {}
        for part in log.iterate():
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            found.update({seq: (op, key, value) for seq, op, key, value in rows})
        last = log.current_seq_num()
        first = next(iter(found), last + 1)
        assert list(found) == list(range(first, last + 1)), "order, or a gap"
        assert last >= max([self.void, *self.wrote.values(), *self.found])
        assert first - 1 in {self.void, *self.may_be_void}, "what is void is not what was truncated"
        for seq, record in self.found.items():
            assert seq < first or found[seq] == record, f"{seq} was there before"
        there = units_of(found)
        for unit, seq in self.wrote.items():
            assert seq < first or seq == first == there.get("") or there.get(unit) == seq, (
                f"{unit} at {seq} is lost"
            )
        self.void = first - 1
        self.may_be_void.clear()
        self.wrote = {unit: seq for unit, seq in self.wrote.items() if seq >= first}
        self.found = found


def units_of(found: dict[int, tuple[str, bytes, bytes | None]]) -> dict[str, int]:
    """Each unit's last sequence number; no unit is partial, except by truncation.

    A unit that was truncated up to its COMMIT has no name.
    """
    units: dict[str, int] = {}
    first = seq = next(iter(found), 1)
    while seq in found:
        op, key, _ = found[seq]
        if op == "COMMIT":
            assert seq == first, f"a COMMIT of nothing at {seq}"
            units[""] = seq
            seq += 1
            continue
        unit, place, size = key.decode().rsplit("-", 2)
        assert place == "0" or seq == first, f"the first part of {unit} is missing"
        for n in range(int(place), int(size)):
            assert found[seq][:2] == ("PUT", f"{unit}-{n}-{size}".encode()), f"{unit} is half there"
            seq += 1
        if int(size) > 1:
            assert found[seq][0] == "COMMIT", f"{unit} is half there"
            seq += 1
        units[unit] = seq - 1
    return units


@pytest.mark.timeout(10 * ROUNDS + 240)
def test_a_writer_killed_at_any_time_has_written_what_it_was_told(tmp_path: Path, run: Run) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    known = Known()
    wrote = opened = 0
    for number in range(ROUNDS):
        settings = {
            "sync": rng.choice(["sync", "batch", "none"]),
            "segment_bytes": rng.choice([3_000, 30_000, 1 << 20]),
            "compression": rng.choice(["none", "zstd"]),
            "frame_bytes": rng.choice([1_000, 1 << 20]),
        }
        told = run(
            {
                "directory": str(tmp_path / "log"),
                "settings": settings,
                "round": number,
                "seed": rng.random(),
                "waits": number % 4 > 0,  # until the log is open; else it may die while opening it
                "after_s": rng.choice([0.004, 0.02, 0.05]) * (0.5 + rng.random()),
            }
        )
        assert told[-1] == ["ended", str(-signal.SIGKILL)]
        opened += told[0][0] == "opened"
        wrote += sum(event == "wrote" for event, *_ in told)
        known.hear(told)
        # The killed process's lock is free at once; its torn tail is not reported as damage.
        with WriteAheadLog(tmp_path / "log", sync="none") as log:
            assert log.recovery is None or log.recovery.damage is None
            known.check(log)
    print(f"{ROUNDS} rounds, {opened} opened, {wrote} acknowledged")
    assert opened
    assert wrote
