"""Cleaners run concurrently with a committer, a checkpointer and readers, in two processes.

Readers never fail and never get a wrong answer. A version is known from its number: version v has v
files. Old versions get old times, so that there is always a file to clean up; files that readers of
the latest version open do not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lakelog
from lakelog import LakelogError
from tests.maintenance.cleaner import clean_for
from tests.transaction.tables import new_table

SECONDS = 5.0
LAG = 25
"""Number of versions after which a version's files get old times."""


def make_old(where: Path, version: int) -> None:
    """Set old times of a version's files: the older the version, the older they are."""
    at = time.time() - 90 * 86_400 + version
    for path in (where / "_delta_log").glob(f"{version:020d}.*"):
        try:
            os.utime(path, (at, at))
        except FileNotFoundError:
            continue  # somebody cleaned up


class Race:
    """Threads that run until they are stopped; the first failure is kept."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def run(self, step: Callable[[], object]) -> None:
        def loop() -> None:
            try:
                while not self.over.is_set():
                    step()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self.failures.append(error)
                self.over.set()

        self._threads.append(threading.Thread(target=loop))

    def start(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", ["classic", "multipart", "v2"])
def test_readers_never_fail_while_others_clean_up(tmp_path: Path, layout: str) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    where = tmp_path / "table"
    policy = {"delta.checkpointPolicy": "v2"} if layout == "v2" else {}
    writer = new_table(str(where), configuration={"delta.checkpointInterval": "1000", **policy})
    race = Race()
    reached = [0]

    def commit() -> None:
        with writer.transaction() as tx:
            tx.add(path=f"f{reached[0] + 1}.parquet", size=1)
        assert tx.version is not None
        reached[0] = tx.version
        if tx.version >= LAG:
            make_old(where, tx.version - LAG)

    def checkpoint() -> None:
        table = lakelog.open(where)
        table.checkpoint(layout="v2-json" if layout == "v2" else layout)
        time.sleep(rng.random() * 0.05)

    def clean() -> None:
        assert clean_for(str(where), 0.2, rng.randrange(1000)) >= 0

    def read_latest() -> None:
        snapshot = lakelog.open(where).snapshot()
        assert snapshot.num_files() == snapshot.version

    def hold_an_older_one() -> None:
        table = lakelog.open(where)
        low, high = table.versions()[-1]
        version = rng.randrange(low, high + 1)
        try:
            snapshot = table.snapshot(version)
            time.sleep(rng.random() * 0.1)
            assert snapshot.num_files() == version
        except LakelogError:
            # It may go while it is read, and then that is said.
            if version > table.version() - LAG + 5:
                raise

    for step in (commit, checkpoint, clean, clean, read_latest, hold_an_older_one):
        race.run(step)
    other = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cleaner.py")), where, str(SECONDS), "7"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    race.start(SECONDS)
    _, problems = other.communicate(timeout=240)
    if race.failures:
        race.failures[0].add_note(f"seed {seed}")
        raise race.failures[0]
    assert other.returncode == 0, problems
    final = lakelog.open(where).snapshot()
    assert final.num_files() == final.version == reached[0]
    assert final.version > LAG
    assert lakelog.open(where).versions()[-1][0] > 0, "nothing was ever cleaned up"
