"""Streams and compactions killed with SIGKILL at any operation: every row exists once.

Most kills are of jobs without Spark (`killer`), which cost milliseconds. Spark's own driver is
killed once in a stream, or ``LAKELOG_ROUNDS`` times, and in compaction in `test_on_a_cluster`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.testing import WRITES
from tests.budget import seeded
from tests.faults.killers import started
from tests.spark.pipeline_side import contents, live, run_compact, small_files, some_rows
from tests.spark.spark_side import ids, new_table, orphans, rows
from tests.spark.stream_driver import stream
from tests.spark.test_task_failures import vacuum_deletes

KILLER = Path(__file__).with_name("killer.py")
ROUNDS = 20
COMPACTIONS = 10

Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs one job to its end, and returns its exit code; negative after a signal."""
    with started(KILLER) as run_order:
        yield lambda **order: run_order({"job": "stream", **order})


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """A source with rows, an empty target, and no checkpoint yet."""
    found = {name: str(tmp_path / name) for name in ("source", "target", "checkpoint")}
    new_table(Path(found["target"]))
    source = new_table(Path(found["source"]), partition_by=[])
    for number in range(3):
        source.append(pl.DataFrame(rows(number)))
    return found


def test_a_stream_killed_after_any_write_of_its_sink_writes_every_row_once(
    places: dict[str, Any], run: Run
) -> None:
    options = {"txnAppId": "app"}
    source = lakelog.open(places["source"], upkeep=False)
    order = {**places, "options": options, "files": 2, "fault": "kill_after", "kinds": WRITES}
    expected = 3
    for nth in range(1, 20):
        ended = run(**order, nth=nth)
        assert ended in {0, -signal.SIGKILL}
        source.append(pl.DataFrame(rows(expected)))
        expected += 1
        assert set(ids(places["target"])) <= set(range(expected))
        if ended == 0:
            break
    assert ended == 0, "the stream never got through"
    assert run(**places, options=options, files=5) == 0
    assert ids(places["target"]) == list(range(expected))
    left = orphans(places["target"])
    assert vacuum_deletes(Path(places["target"])) == left


def test_a_stream_killed_at_any_time_writes_every_row_once(
    places: dict[str, Any], run: Run
) -> None:
    rng = seeded()
    source = lakelog.open(places["source"], upkeep=False)
    expected, kills = 3, 0
    for _ in range(ROUNDS):
        for _ in range(2):
            source.append(pl.DataFrame(rows(expected)))
            expected += 1
        ended = run(**places, files=rng.choice([1, 2, 9]), after_s=0.02 + rng.random() * 0.15)
        kills += ended != 0
        found = ids(places["target"])
        assert len(set(found)) == len(found)
        assert set(found) <= set(range(expected))
    assert kills
    assert run(**places, files=9) == 0
    assert ids(places["target"]) == list(range(expected))
    left = orphans(places["target"])
    assert vacuum_deletes(Path(places["target"])) == left


# --- compaction ---------------------------------------------------------------------------------


def add_small_files(table: lakelog.Table, expected: int) -> int:
    """Add one file with one row to each of two partitions; returns the total number of rows."""
    for number in (expected, expected + 1):
        table.append(some_rows(number, day="ab"[number % 2]))
    return expected + 2


def assert_rows_once(table: lakelog.Table, expected: int) -> None:
    found = contents(table)
    assert found["id"].to_list() == list(range(expected))
    assert found.equals(some_rows(*range(expected)).with_columns(day=found["day"]))
    assert found.filter((pl.col("day") == "a") != (pl.col("id") % 2 == 0)).is_empty()


def assert_finished(table: lakelog.Table, run: Run, expected: int) -> None:
    """Assert that the next run completes the work, and that vacuum deletes all leftovers."""
    assert run(job="compact", target=table.path) == 0
    assert_rows_once(table, expected)
    assert len(live(table)) == 2
    left = orphans(table.path)
    assert run_compact(table).status == "nothing to do"
    assert orphans(table.path) == left
    assert vacuum_deletes(Path(table.path)) == left


@pytest.mark.parametrize("fault", ["kill_before", "kill_after"])
def test_compaction_killed_at_any_write_loses_no_row(fault: str, tmp_path: Path, run: Run) -> None:
    table = small_files(tmp_path / "t", [])
    expected = add_small_files(table, 0)
    for nth in range(1, 20):
        expected = add_small_files(table, expected)
        order = {"target": table.path, "fault": fault, "kinds": WRITES, "nth": nth}
        ended = run(job="compact", **order)
        assert ended in {0, -signal.SIGKILL}
        assert_rows_once(table, expected)
        if ended == 0:
            break
    assert ended == 0, "compaction never got through"
    assert nth > 4, "a file and a commit for each of two partitions"
    assert_finished(table, run, expected)


def test_compaction_killed_at_any_time_loses_no_row(tmp_path: Path, run: Run) -> None:
    rng = seeded()
    table = small_files(tmp_path / "t", [])
    expected, kills = add_small_files(table, 0), 0
    for _ in range(COMPACTIONS):
        expected = add_small_files(table, expected)
        kills += run(job="compact", target=table.path, after_s=rng.random() * 0.1) != 0
        assert_rows_once(table, expected)
    assert kills
    assert_finished(table, run, expected)


# --- Spark's own driver ------------------------------------------------------------------------

DRIVER = Path(__file__).with_name("stream_driver.py")
DRIVER_ROUNDS = int(os.environ.get("LAKELOG_ROUNDS", "1"))


def drive(places: dict[str, Any], log: Path, **order: Any) -> subprocess.Popen[str]:
    with log.open("a") as errors:
        return subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps({**places, **order})],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )


@pytest.mark.timeout(120 * DRIVER_ROUNDS + 240)
def test_a_driver_of_spark_killed_at_any_time_writes_every_row_once(
    spark: Any, places: dict[str, Any], tmp_path: Path
) -> None:
    rng = seeded()
    log = tmp_path / "log"
    source = lakelog.open(places["source"], upkeep=False)
    expected, versions = 3, []
    for number in range(DRIVER_ROUNDS):
        for _ in range(12):
            source.append(pl.DataFrame(rows(expected)))
            expected += 1
        with drive(places, log, files=1) as driver:
            assert driver.stdout is not None
            jvm = int(driver.stdout.readline())
            assert driver.stdout.readline() == "started\n", log.read_text()[-4000:]
            target = lakelog.open(places["target"], upkeep=False)
            before = target.version()
            deadline = time.monotonic() + 60
            # Sometimes while the stream starts, otherwise after its first batch.
            while number % 5 < 4 and target.version() == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(rng.random() * 3)
            try:
                os.kill(jvm, signal.SIGKILL)
            except ProcessLookupError:
                pytest.fail(f"round {number}: it ended by itself\n{log.read_text()[-8000:]}")
            finally:
                driver.kill()
        versions.append(target.version())
        found = ids(places["target"])
        assert len(set(found)) == len(found), f"round {number}: a row is duplicated"
        assert set(found) <= set(range(expected))
        print(f"round {number}: version {versions[-1]}, {len(found)} rows of {expected}")
    query = stream(spark, places, files=1000).trigger(availableNow=True).start(places["target"])
    assert query.awaitTermination(200)
    assert ids(places["target"]) == list(range(expected))
    assert versions[-1] > 0, "some batch was committed before its driver was killed"
    left = orphans(places["target"])
    print(f"{len(left)} orphans")
