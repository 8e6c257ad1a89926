"""Writers under load killed with SIGKILL at any time: all acknowledged records exist.

A few rounds, or ``LAKELOG_ROUNDS``; all on one log, which the next writer opens immediately.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lakelog.wal.log import WriteAheadLog
from tests.budget import seeded
from tests.faults.killers import killed

KILLER = Path(__file__).with_name("wal_killer.py")
ROUNDS = max(6, int(os.environ.get("LAKELOG_ROUNDS", "0")))

Run = Callable[[dict[str, Any]], list[list[str]]]


@pytest.fixture
def run() -> Iterator[Run]:
    with killed(KILLER) as run_order:
        yield run_order


@dataclass
class Acknowledged:
    """The acknowledgements of the writers, and the records found last.

    Attributes:
        wrote: Each unit's last sequence number.
        truncated_to: Records up to this one are truncated.
        maybe_truncated_to: Truncations that were begun and never completed.
        found: Each record that was found, by its sequence number.
    """

    wrote: dict[str, int] = field(default_factory=dict)
    truncated_to: int = 0
    maybe_truncated_to: set[int] = field(default_factory=set)
    found: dict[int, tuple[str, bytes, bytes | None]] = field(default_factory=dict)

    def add_events(self, events: list[list[str]]) -> None:
        for event, number, *unit in events:
            if event == "wrote":
                self.wrote[unit[0]] = int(number)
            elif event == "truncating":
                self.maybe_truncated_to.add(int(number))
            elif event == "truncated":
                self.truncated_to = max(self.truncated_to, int(number))

    def check(self, log: WriteAheadLog) -> None:
        found: dict[int, tuple[str, bytes, bytes | None]] = {}
        for part in log.iterate():
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            found.update({seq: (op, key, value) for seq, op, key, value in rows})
        last = log.current_seq_num()
        first = next(iter(found), last + 1)
        assert list(found) == list(range(first, last + 1)), "wrong order, or a gap"
        assert last >= max([self.truncated_to, *self.wrote.values(), *self.found])
        assert first - 1 in {self.truncated_to, *self.maybe_truncated_to}, (
            "the first record does not follow a truncation"
        )
        for seq, record in self.found.items():
            assert seq < first or found[seq] == record, f"{seq} was there before"
        there = units_of(found)
        for unit, seq in self.wrote.items():
            assert seq < first or seq == first == there.get("") or there.get(unit) == seq, (
                f"{unit} at {seq} is lost"
            )
        self.truncated_to = first - 1
        self.maybe_truncated_to.clear()
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
            assert seq == first, f"a COMMIT without records at {seq}"
            units[""] = seq
            seq += 1
            continue
        unit, place, size = key.decode().rsplit("-", 2)
        assert place == "0" or seq == first, f"the first part of {unit} is missing"
        for n in range(int(place), int(size)):
            assert found[seq][:2] == ("PUT", f"{unit}-{n}-{size}".encode()), f"{unit} is incomplete"
            seq += 1
        if int(size) > 1:
            assert found[seq][0] == "COMMIT", f"{unit} is incomplete"
            seq += 1
        units[unit] = seq - 1
    return units


@pytest.mark.timeout(10 * ROUNDS + 240)
def test_killed_writer_keeps_every_acknowledged_record(tmp_path: Path, run: Run) -> None:
    rng = seeded()
    known = Acknowledged()
    wrote = opened = 0
    for number in range(ROUNDS):
        settings = {
            "sync": rng.choice(["sync", "batch", "none"]),
            "segment_bytes": rng.choice([3_000, 30_000, 1 << 20]),
            "compression": rng.choice(["none", "zstd"]),
            "frame_bytes": rng.choice([1_000, 1 << 20]),
        }
        events = run(
            {
                "directory": str(tmp_path / "log"),
                "settings": settings,
                "round": number,
                "seed": rng.random(),
                "waits": number % 4 > 0,  # until the log is open
                "after_s": rng.choice([0.004, 0.02, 0.05]) * (0.5 + rng.random()),
            }
        )
        opened += events[0][0] == "opened"
        wrote += sum(event == "wrote" for event, *_ in events)
        known.add_events(events)
        # The killed process's lock is free at once; its torn tail is not reported as damage.
        with WriteAheadLog(tmp_path / "log", sync="none") as log:
            assert log.recovery is None or log.recovery.damage is None
            known.check(log)
    print(f"{ROUNDS} rounds, {opened} opened, {wrote} acknowledged")
    assert opened
    assert wrote
