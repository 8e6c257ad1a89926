"""Processes that race on one table: ``racers.py``, one race as JSON on standard input.

A race is a ``location``, storage ``options``, and a list of ``racers``: each names a function of
this module and its arguments. The result is JSON on standard output: the return values of all, in
order. The racers are forks of this process, which has imported everything and run nothing, and a
barrier starts them together. So eight of them cost the imports of one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any

from tests.races import maintenance_racers

TIMEOUT_S = 240.0
DRIVERS = {"s3": ("s3fs", "aiobotocore.session"), "az": ("adlfs",), "gs": ("gcsfs",)}
SCHEMA = {"p": "String", "x": "Int64"}


def digest_of(paths: Iterable[str]) -> int:
    """A number for a set of paths that does not depend on their order."""
    found = 0
    for path in paths:
        found ^= int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big")
    return found


class Racer:
    """One process of a race.

    Attributes:
        me: Its number.
        race: The race.
        arguments: Its arguments.
    """

    def __init__(self, me: int, race: dict[str, Any], barrier: Any, writing: Any) -> None:
        self.me, self.race, self.arguments = me, race, race["racers"][me]
        self._barrier, self._writing = barrier, writing

    def open(self) -> Any:
        import lakelog

        # Without checkpoints, which do not record the writer of a file: the tests read the commits.
        return lakelog.open(self.race["location"], self.race["options"], upkeep=False)

    def wait(self) -> None:
        """Wait until all racers have started."""
        self._barrier.wait(TIMEOUT_S)

    def done(self) -> None:
        """Record that a writer has ended."""
        with self._writing.get_lock():
            self._writing.value -= 1

    def others_write(self) -> bool:
        return bool(self._writing.value > 0)


def append(racer: Racer) -> Any:
    """Commit one add after the other; returns the versions."""
    table = racer.open()
    name = f"lakelog-{racer.me}"
    racer.wait()
    versions = []
    for number in range(racer.arguments["commits"]):
        with table.transaction() as tx:
            path = f"{name}-{number}"
            tx.add(path=path, size=number, partitionValues={"p": str(racer.me)}, stats="{}")
        versions.append(tx.version)
    return versions


def append_by_deltalake(racer: Racer) -> Any:
    """Like `append`, through deltalake, retrying after conflicts."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction

    table = DeltaTable(racer.race["location"])
    schema = table.schema()
    racer.wait()
    for number in range(racer.arguments["commits"]):
        values: dict[str, str | None] = {"p": str(racer.me)}
        path = f"deltalake-{racer.me}-{number}"
        action = AddAction(path, number, values, 0, data_change=True, stats="{}")
        for _ in range(200):
            try:
                table.create_write_transaction([action], "append", schema, ["p"])
                break
            except CommitFailedError:
                table.update_incremental()
        else:
            raise AssertionError("deltalake could not commit")
    return []


def watch(racer: Racer) -> Any:
    """Update one snapshot repeatedly; returns each version with its number and digest."""
    snapshot = racer.open().snapshot()
    racer.wait()
    seen = []
    last = False
    while True:
        paths = snapshot.files().select("path").collect()["path"].to_list()
        seen.append((snapshot.version, len(paths), digest_of(paths), snapshot.num_files()))
        if last:
            return seen
        last = not racer.others_write()
        time.sleep(racer.arguments["pause_s"])
        snapshot = snapshot.update()


def create(racer: Racer) -> Any:
    """Create tables one after the other; returns which of them this racer created."""
    import polars as pl

    import lakelog

    outcomes = []
    for number in range(racer.arguments["rounds"]):
        location = f"{racer.race['location']}/{number}"
        schema = {name: getattr(pl, type_) for name, type_ in SCHEMA.items()}
        racer.wait()
        try:
            lakelog.create(
                location,
                schema,
                format=racer.arguments["format"],
                storage_options=racer.race["options"],
                name=f"by {racer.me}",
            )
            outcomes.append("created")
        except lakelog.TableExistsError as error:
            outcomes.append(error.kind)
    return outcomes


def identify(racer: Racer) -> Any:
    """Commit the same versions of one application; returns versions, None if another racer
    committed it."""
    table = racer.open()
    versions = []
    for number in range(racer.arguments["rounds"]):
        racer.wait()
        with table.transaction(app_id="app", app_version=number) as tx:
            tx.add(path=f"{number}-by-{racer.me}", size=1, partitionValues={"p": None})
        assert tx.duplicate == (tx.version is None)
        versions.append(tx.version)
    return versions


def replace(racer: Racer) -> Any:
    """Replace the file of a partition after reading it; returns versions and violated rules."""
    import polars as pl

    import lakelog

    table = racer.open()
    p = racer.arguments["partition"]
    answers: list[Any] = []
    for number in range(racer.arguments["rounds"]):
        racer.wait()
        tx = table.transaction()
        tx.remove(tx.read(pl.col("p") == p))
        tx.add(path=f"{p}-{number}-by-{racer.me}", size=1, partitionValues={"p": p})
        racer.wait()
        try:
            answers.append(tx.commit())
        except lakelog.ConflictError as error:
            answers.append([error.kind, error.rule, error.version])
    return answers


WRITERS = {"append", "append_by_deltalake", "commit_versions"}


def _run(me: int, race: dict[str, Any], barrier: Any, writing: Any, answers: Any) -> None:
    racer = Racer(me, race, barrier, writing)
    try:
        does = racer.arguments["does"]
        answer = (globals().get(does) or getattr(maintenance_racers, does))(racer)
        answers.put((me, answer, None))
    except BaseException:  # noqa: BLE001 - it is reported to the parent
        barrier.abort()
        answers.put((me, None, traceback.format_exc()))
    finally:
        if racer.arguments["does"] in WRITERS:
            racer.done()


def main() -> int:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    race = json.load(sys.stdin)
    for driver in DRIVERS.get(race["location"].partition("://")[0], ()):
        importlib.import_module(driver)
    for module in ("lakelog.table_functions", "deltalake.transaction"):
        importlib.import_module(module)
    warnings.simplefilter("error")
    context = multiprocessing.get_context("fork")
    racers = race["racers"]
    barrier = context.Barrier(len(racers))
    writing = context.Value("i", sum(r["does"] in WRITERS for r in racers))
    answers = context.Queue()
    processes = [
        context.Process(target=_run, args=(me, race, barrier, writing, answers), daemon=True)
        for me in range(len(racers))
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    for _ in processes:
        me, answer, error = answers.get(timeout=TIMEOUT_S)
        if error is not None:
            sys.stderr.write(f"racer {me}:\n{error}\n")
            return 1
        found[me] = answer
    for process in processes:
        process.join(120)
    json.dump([found[me] for me in range(len(racers))], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
