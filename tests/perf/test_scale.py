"""`perf.scale` at a small scale: every operation runs and gives the correct answer."""

from __future__ import annotations

from pathlib import Path

from perf import scale


def test_every_operation_is_measured_on_a_copy(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    scale.build(folder, 800)
    before = sorted(path.name for path in (folder / "_delta_log").iterdir())
    rows = {name: scale.measure(folder, name, 0.001) for name in scale.OPERATIONS}
    answers = {name: row["answer"] for name, row in rows.items()}
    assert answers == {
        "files of one day of 365": 3,
        "files that can hold one of ten ids of one day": 1,
        "number of files": 800,
        "one commit": 102,
        "checkpoint after one commit": 801,
        "cleanup plan": 0,
        "path and size of all files": 800,
    }
    writing = {name for name, row in rows.items() if row["writes"]}
    assert writing == {"one commit", "checkpoint after one commit"}
    assert sorted(path.name for path in (folder / "_delta_log").iterdir()) == before


def test_requests_during_a_round_trip_belong_to_it() -> None:
    assert scale.count_trips([0.0, 0.1, 0.5, 0.6, 1.2], 0.5) == 3
    assert scale.count_trips([], 0.5) == 0
