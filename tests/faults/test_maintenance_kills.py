"""Maintenance processes killed at any moment: the table is unchanged, and the next run succeeds."""

from __future__ import annotations

import random
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog.checkpoint.verify import verify_one
from lakelog.errors import LakelogWarning
from tests.budget import seeded, share_of
from tests.faults.killers import started
from tests.races import maintenance_racers
from tests.transaction.tables import NO_CHECKPOINTS

KILLER = Path(__file__).with_name("maintenance_killer.py")
ROUNDS = share_of(8, 3)
V2 = {"delta.checkpointPolicy": "v2"}
CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "classic": ("delta", NO_CHECKPOINTS["delta"], ["classic", "multipart"]),
    "v2": ("delta", NO_CHECKPOINTS["delta"] | V2, ["v2-json", "v2-parquet"]),
    "indextables": ("indextables", NO_CHECKPOINTS["indextables"], ["json", "flattened"]),
}

Run = Callable[[dict[str, Any]], int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run one process to its end; return its exit code, negative if a signal ended it."""
    with started(KILLER) as run:
        yield run


def damage(table: lakelog.Table, rng: random.Random) -> None:
    """Truncate the newest checkpoint, which can be rewritten, and tear the pointer."""
    newest = table.log.list_all().checkpoints[-1]
    file = Path(table.path, newest.paths[0])
    whole = file.read_bytes()
    file.write_bytes(whole[: rng.randrange(1, len(whole))])
    Path(table.path, table.log.dialect.log_folder, "_last_checkpoint").write_bytes(b'{"vers')


def check(location: Path, last: int, promised: int, *, damaged: bool) -> None:
    """Every version within the retention is correct, and no checkpoint is incomplete."""
    table = lakelog.open(location)
    with warnings.catch_warnings():
        if damaged:
            warnings.simplefilter("ignore", LakelogWarning)
        maintenance_racers.check(table.snapshot(), table.format)
        for version in range(promised, last + 1):
            maintenance_racers.check(table.snapshot(version), table.format)
    for checkpoint in table.log.list_all().checkpoints:
        verdict = verify_one(table.log, checkpoint).verdict
        assert verdict in {"proved", "unprovable"} or damaged, checkpoint
    if table.format == "delta" and not damaged:
        peer = DeltaTable(location)
        assert peer.version() == last
        live = sorted(map(unquote, peer.get_add_actions().column("path").to_pylist()))
        assert live == maintenance_racers.expected(last, "delta")["files"]


def random_order(rng: random.Random, layouts: list[str], form: str, last: int) -> dict[str, Any]:
    """The order for a process."""
    does = rng.choice(["checkpoint", "checkpoint", "cleanup", "cleanup", "repair", "compact"])
    given: dict[str, Any] = {}
    match does:
        case "checkpoint":
            given = {"layout": rng.choice(layouts)}
        case "cleanup":
            given = {"quarantine": rng.random() < 0.5, "force": True}
        case "compact" if form == "delta":
            given = {"a": last - 3, "b": last}
        case "compact":
            does = "repair"
    return {"does": does, "given": given}


def finish(location: Path, order: dict[str, Any]) -> int:
    """Run it again, to the end; return the oldest version within the retention."""
    table = lakelog.open(location)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        match order["does"]:
            case "checkpoint":
                assert table.checkpoint(**order["given"]).version == table.version()
            case "cleanup":
                report: Any = table.cleanup(
                    plan=False, retention=0, checkpoint_retention=0, **order["given"]
                )
                assert not report.errors
                return int(report.oldest_promised or 0)
            case "repair":
                repaired: Any = table.repair(plan=False)
                assert not repaired.left.height, repaired.left.to_dicts()
                assert lakelog.open(location).repair().is_clean
            case "compact":
                table.compact_log(**order["given"])
    return 0


@pytest.mark.parametrize("name", CASES)
def test_killed_maintenance_leaves_the_table_readable_and_can_be_repeated(
    tmp_path: Path, run: Run, name: str
) -> None:
    rng = seeded()
    form, properties, layouts = CASES[name]
    location = tmp_path / "t"
    table = lakelog.create(location, {"x": pl.Int64}, (), form, properties)
    maintenance_racers.age(table, 0)
    last = promised = 0
    ends: Counter[tuple[str, int]] = Counter()
    for _ in range(ROUNDS):
        for _ in range(4):
            last += 1
            maintenance_racers.commit(table, last, str(location))
        order = random_order(rng, layouts, form, last)
        damaged = order["does"] == "repair"
        if damaged:
            table.checkpoint(layout=rng.choice(layouts))
            damage(table, rng)
        if order["does"] == "cleanup":
            table.checkpoint(last - 1, rng.choice(layouts))
            promised = last  # without any retention, the latest version alone
        ended = run({**order, "location": str(location), "after_s": rng.random() * 0.25})
        ends[order["does"], ended] += 1
        assert ended in {0, -signal.SIGKILL}, order
        check(location, last, promised, damaged=damaged)
        promised = max(promised, finish(location, order))
        check(location, last, promised, damaged=False)
    print(dict(ends))
