"""Separate executors, which receive the package, fail and are killed; and a killed driver.

Their code is in `cluster`: one session for all tests, since a start costs seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
import lakelog.spark
from lakelog.model import contract
from lakelog.spark import Pipeline
from lakelog.spark.pipeline import Compact, Target
from tests.checkpoint import tables
from tests.spark.cluster import ANSWER
from tests.spark.pipeline_side import contents, live, small_files, some_rows
from tests.spark.spark_side import ids, new_table, orphans, rows
from tests.spark.test_task_failures import vacuum_deletes

PROGRAM = Path(__file__).with_name("cluster.py")


class Cluster:
    """The program, started on first use."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self._folder = folder
        self._paths = [str(repository / "engine"), str(repository)]
        self._log = folder / "log"
        self._process: subprocess.Popen[str] | None = None
        self._java = 0

    def send(self, job: str, **order: Any) -> None:
        """Send a command."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **order}, default=str) + "\n")
        self._process.stdin.flush()

    def ask(self, job: str, **order: Any) -> Any:
        """Send a command, and return its answer."""
        self.send(job, **order)
        return self._answer()

    def kill(self) -> None:
        """Kill the driver: first its JVM, which knows the tasks, then its Python."""
        assert self._process is not None
        os.kill(self._java, signal.SIGKILL)
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Wait until it ends."""
        if self._process is not None:
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.communicate(timeout=60)
        self._process = None

    def _start(self) -> None:
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, PROGRAM, self._folder / "local"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(self._paths),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )
        self._java = self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError(self._log.read_text()[-6000:])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Cluster]:
    """A cluster of two executors."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), repository)
    yield made
    made.stop()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder for markers of ended tasks."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_executors_without_lakelog_receive_it(cluster: Cluster, tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64})
    for number in range(3):
        table.append(pl.DataFrame({"id": [number]}))
    found = cluster.ask("inspect_executors", table=table.path)
    files, fields = zip(*found["seen"], strict=True)
    # Not from the checkout, nor from an installation, though there may be one.
    assert all(".zip/lakelog/__init__.py" in file for file in files), files
    assert set(fields) == {str(len(contract.load("actions").fields))}
    assert found["ids"] == [0, 1, 2]


def test_rows_are_written_once_while_tasks_fail_and_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path, marks: Path
) -> None:
    table = tmp_path / "table"
    new_table(table)
    cluster.ask("write", table=table, marks=marks)
    assert names(marks) == {"failed midway", "failed", "killed"}
    assert ids(table) == list(range(30))
    # Of two tasks, files of two days.
    left = orphans(table)
    assert len(left) >= 4
    assert vacuum_deletes(table) == left


def test_stream_writes_rows_once_while_a_task_fails_and_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path, marks: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    read = new_table(source, partition_by=[])
    new_table(target, partition_by=[])
    order = {"source": source, "target": target, "checkpoint": tmp_path / "c", "marks": marks}
    for number in range(6):
        read.append(pl.DataFrame(rows(number)))
    cluster.ask("stream", **order)
    assert names(marks) == {"failed", "killed"}
    assert ids(target) == list(range(6))
    left = orphans(target)
    assert len(left) >= 2
    read.append(pl.DataFrame(rows(6)))
    cluster.ask("stream", **order)
    assert ids(target) == list(range(7))
    assert lakelog.open(target).version() == 3
    assert vacuum_deletes(target) == orphans(target) == left


def test_checkpoint_is_complete_although_tasks_fail_and_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path, marks: Path
) -> None:
    root = tables.make(tables.V2_PARQUET, tmp_path / "t")
    table = lakelog.open(root, upkeep=False)
    sidecars = root / "_delta_log" / "_sidecars"
    before = names(sidecars)
    expected = sorted(
        [row["actionType"], row["path"] or ""]
        for batch in table.snapshot().iter_state(("actionType", "path"))
        for row in batch.iter_rows(named=True)
    )
    assert cluster.ask("replay", table=root, marks=marks) == expected
    found = cluster.ask("checkpoint", table=root, marks=marks)
    assert names(marks) == {"decoding", "reconciling", "killed", "failed"}

    assert found["verified"]
    assert table.verify().is_proved
    written = {Path(path).name for path in found["paths"]}
    left = names(sidecars) - before - written
    # The killed task and the one with the lost answer left their sidecars.
    assert len(left) >= 2
    named = set(table.snapshot().provenance.checkpoint_files)
    assert not any(orphan in path for orphan in left for path in named)
    assert not list((root / "_delta_log").glob(".lakelog-*"))


def test_compaction_loses_no_row_although_a_task_fails_and_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path, marks: Path
) -> None:
    table = small_files(tmp_path / "t", [some_rows(n, day="ab"[n % 2]) for n in range(6)])
    before = contents(table)
    found = cluster.ask("compact", table=table.path, marks=marks)
    assert found == {"status": "done", "rows": 6, "removed": 6}
    assert names(marks) == {"killed", "failed"}
    assert contents(table).equals(before)
    assert len(live(table)) == 2
    left = orphans(table.path)
    assert len(left) >= 2
    again = cluster.ask("compact", table=table.path, marks=marks)
    assert again["status"] == "nothing to do"
    assert vacuum_deletes(Path(table.path)) == orphans(table.path) == left


def test_connect_server_without_lakelog_receives_it(cluster: Cluster, tmp_path: Path) -> None:
    """Second to last: executors that start later fail on files of closed sessions."""
    from pyspark.sql.connect.session import SparkSession as Client

    source, target = tmp_path / "source", tmp_path / "target"
    read = new_table(source)
    for number in range(3):
        read.append(pl.DataFrame(rows(number)))
    new_table(target)
    client: Any = Client.builder.remote(cluster.ask("connect")).create()
    try:
        lakelog.spark.register(client)
        frame = lakelog.spark.replay(client, source, strategy="hash", columns=("path",))
        assert frame.where("path IS NOT NULL").count() == 3
        assert lakelog.spark.checkpoint(client, source, parts=2, strategy="hash").verified
        write = client.readStream.format("lakelog").load(str(source)).writeStream.format("lakelog")
        write = write.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        assert write.start(str(target)).awaitTermination(120)
    finally:
        client.stop()
    assert ids(target) == [0, 1, 2]


def test_compaction_whose_driver_is_killed_is_finished_by_the_next_run(
    cluster: Cluster, spark: Any, tmp_path: Path, marks: Path
) -> None:
    table = small_files(tmp_path / "t", [some_rows(n, day="ab"[n % 2]) for n in range(6)])
    before = contents(table)
    cluster.send("compact_and_wait", table=table.path, marks=marks)
    deadline = time.monotonic() + 120
    while "waiting" not in names(marks):
        assert time.monotonic() < deadline, names(marks)
        time.sleep(0.05)
    cluster.kill()
    # One partition is compacted; the new file of the other is not in the log.
    assert contents(table).equals(before)
    assert len(live(table)) == 1 + 3
    left = orphans(table.path)
    assert len(left) >= 1
    pipeline = Pipeline("c", Target(path=table.path), compact=Compact())
    report = pipeline.run(spark)["compact"]
    assert (report.status, report.rows, report.removed) == ("done", 3, 3)
    assert contents(table).equals(before)
    assert len(live(table)) == 2
    assert vacuum_deletes(Path(table.path)) == orphans(table.path) == left
