"""Executors that die and tasks that fail leave a whole checkpoint, and orphans that nobody sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lakelog
from tests.checkpoint import tables


def test_a_killed_executor_and_failed_tasks_change_nothing(
    spark: Any, tmp_path: Path, repository: Path
) -> None:
    """`spark` is asked for the environment that it sets: a Java, and this Python."""
    root = tables.make(tables.V2_PARQUET, tmp_path / "t")
    marks = tmp_path / "marks"
    marks.mkdir()
    table = lakelog.open(root, upkeep=False)
    before = {p.name for p in (root / "_delta_log" / "_sidecars").iterdir()}
    snapshot = table.snapshot()
    expected = sorted(
        [row["actionType"], row["path"] or ""]
        for batch in snapshot.iter_state(("actionType", "path"))
        for row in batch.iter_rows(named=True)
    )
    paths = os.pathsep.join(map(str, (repository / "engine", repository)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.replay_killer", str(root), str(marks)],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == expected
    assert {p.name for p in marks.iterdir()} == {"Decoder", "Reconciler", "killed", "failed"}

    assert found["verified"]
    assert table.verify().is_proved
    written = {Path(path).name for path in found["paths"]}
    there = {p.name for p in (root / "_delta_log" / "_sidecars").iterdir()}
    orphans = there - before - written
    # The one that was killed, and the one whose answer was lost, left theirs.
    assert len(orphans) <= 2
    named = set(table.snapshot().provenance.checkpoint_files)
    assert not any(orphan in path for orphan in orphans for path in named)
    assert not list((root / "_delta_log").glob(".lakelog-*"))
