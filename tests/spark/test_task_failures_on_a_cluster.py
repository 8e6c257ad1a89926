"""Failures of Spark's own making, on executors of their own; see `writer_killer`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.spark_side import ids, new_table, orphans
from tests.spark.test_task_failures import vacuum_takes

PROGRAM = Path(__file__).with_name("writer_killer.py")


def test_rows_are_written_once_while_tasks_fail_and_an_executor_dies(tmp_path: Path) -> None:
    table, marks = tmp_path / "table", tmp_path / "marks"
    marks.mkdir()
    new_table(table)
    done = subprocess.run(
        [sys.executable, PROGRAM, table, marks],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert {mark.name for mark in marks.iterdir()} == {
        "failed in its midst",
        "failed with its files written",
        "killed with its files written",
    }
    assert ids(table) == list(range(30))
    # Of two tasks, files of two days.
    left = orphans(table)
    assert len(left) == 4
    assert vacuum_takes(table) == left
