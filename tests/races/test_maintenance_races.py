"""Checkpointers, a cleaner, a vacuum and readers race with a committer.

Readers never fail and never read a wrong state, and the remaining log is valid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog.checkpoint.verify import verify_one
from tests.budget import IS_WHOLE, seeded
from tests.races import maintenance_racers
from tests.races.test_races import race

SECONDS = 4.0 if IS_WHOLE else 2.5
V2 = {"delta.checkpointPolicy": "v2"}
CASES: dict[str, tuple[str, dict[str, str], tuple[list[str], list[str]]]] = {
    "classic": ("delta", {}, (["classic"], ["multipart", "classic"])),
    "v2": ("delta", V2, (["v2-json", "classic"], ["v2-parquet", "v2-json"])),
    "indextables": ("indextables", {}, (["json"], ["flattened", "json"])),
}
MAY_FAIL = [
    "version_not_found",
    "not_found",
    "malformed_log",
    "log_gap",
    "checkpoint_write",
    "checkpoint_corruption",
    "checkpoint_validation",
]
"""Errors of a checkpointer while a cleaner without retention deletes the files that it reads.

In these cases no checkpoint is published.
"""


def racers(layouts: tuple[list[str], list[str]], seconds: float) -> list[dict[str, Any]]:
    rng = seeded()

    def racer(does: str, **given: Any) -> dict[str, Any]:
        return {"does": does, "seed": rng.randrange(1 << 32), "pause_s": 0.05, **given}

    return [
        racer("commit_versions", seconds=seconds, pause_s=0.005),
        *(racer("checkpoint", layouts=each, may_fail=MAY_FAIL) for each in layouts),
        racer("clean", may_fail=["unsafe_retention"]),
        racer("read_versions"),
        racer("read_versions"),
    ]


def check_remaining_log(table: lakelog.Table, last: int, promised: int) -> None:
    """Assert that every version that can be rebuilt is unchanged, and every checkpoint is valid."""
    assert table.version() == last
    ranges = table.versions()
    assert any(first <= promised and end == last for first, end in ranges), (ranges, promised)
    for first, end in ranges:
        for version in range(first, end + 1):
            maintenance_racers.check(table.snapshot(version), table.format)
    listing = table.log.list_all()
    assert listing.checkpoints
    for checkpoint in listing.checkpoints:
        report = verify_one(table.log, checkpoint)
        assert report.verdict in {"proved", "unprovable"}, report
        assert (report.reason is not None) >= (report.verdict == "unprovable")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_readers_never_fail_during_maintenance_on_local_disk(tmp_path: Path, name: str) -> None:
    form, properties, layouts = CASES[name]
    location = str(tmp_path / "t")
    table = lakelog.create(location, {"x": pl.Int64}, (), form, properties)
    maintenance_racers.age(table, 0)
    given = racers(layouts, SECONDS)
    if form == "delta":
        given.append({"does": "vacuum", "pause_s": 0.3})
    last, *checkpoints, cleaned, one, other = race(location, given)[:6]
    print(last, checkpoints, cleaned, one, other)
    check_remaining_log(table, last, cleaned[1])
    live = maintenance_racers.expected(last, form)["files"]
    assert all((tmp_path / "t" / name).exists() for name in live)
    assert not list((tmp_path / "t").rglob(".lakelog-*.tmp"))
    if form == "delta":
        peer = DeltaTable(location)
        assert peer.version() == last
        assert sorted(map(unquote, peer.get_add_actions().column("path").to_pylist())) == live
