"""Racers that maintain a log: one commits, others checkpoint, clean up, vacuum, compact and read.

The content of a version is known from its number alone: version `v` adds ``part-v`` and removes
``part-(v - WINDOW)``, records `v` for one application, and every seventh changes a property. So
each reader can verify its result alone.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.races.racers import Racer

WINDOW = 9
SEVENTH = 7
SCHEMA = {"x": "Int64"}
DAYS_AGO_MS = 3 * 86_400_000


def name_of(version: int) -> str:
    """The file that a version adds, with characters that a log escapes."""
    return f"part {version} 50%.parquet"


def expected(version: int, form: str) -> dict[str, Any]:
    """The expected content of a version."""
    return {
        "version": version,
        "files": sorted(name_of(v) for v in range(max(1, version - WINDOW + 1), version + 1)),
        "property": str(version // SEVENTH) if version >= SEVENTH else None,
        "application": version if form == "delta" and version else None,
    }


def found(snapshot: Any) -> dict[str, Any]:
    """The content of a snapshot."""
    paths = snapshot.files().select("path").collect()["path"].to_list()
    assert snapshot.num_files() == len(paths)
    seen = snapshot.transactions().collect()
    return {
        "version": snapshot.version,
        "files": sorted(paths),
        "property": snapshot.metadata.configuration.get("seventh"),
        "application": dict(seen.select("appId", "txnVersion").iter_rows()).get("keeper"),
    }


def check(snapshot: Any, form: str) -> None:
    """Assert that a snapshot has the content of its version."""
    seen, wanted = found(snapshot), expected(snapshot.version, form)
    assert seen == wanted, f"{seen}\n{wanted}\n{snapshot.provenance}"


def with_late_clock(log: Any) -> Any:
    """The same log, for a writer whose clock is days late."""
    return replace(log, clock=lambda: log.clock() - DAYS_AGO_MS)


def age(table: Any, version: int) -> None:
    """Set a commit's time on local disk to days ago, so that cleanup has work.

    Tables with in-commit timestamps do not need this.
    """
    then = time.time() - DAYS_AGO_MS / 1000
    os.utime(Path(table.path, table.log.dialect.log_folder, f"{version:020d}.json"), (then, then))


def commit(table: Any, version: int, folder: str | None) -> None:
    """The commit of a version; on local disk with its data file."""
    if folder is not None:
        file = Path(folder, name_of(version))
        file.write_bytes(b"x" * version)
        # On a busy machine, a commit may take longer than vacuum keeps files that it does not name.
        os.utime(file, (time.time() + 60, time.time() + 60))
    app = ("keeper", version) if table.format == "delta" else ()
    with table.transaction(*app) as tx:
        tx.add(path=name_of(version), size=version, partitionValues={}, stats="{}")
        if version > WINDOW:
            tx.remove(path=name_of(version - WINDOW))
        if version % SEVENTH == 0:
            tx.set_metadata(configuration={"seventh": str(version // SEVENTH)})
    assert tx.version == version
    if folder is not None:
        os.utime(file)
        age(table, version)


def commit_versions(racer: Racer) -> Any:
    """Commit versions in a loop for a number of seconds; returns the last one."""
    import lakelog

    table = racer.open()
    arguments = racer.arguments
    version = table.version()
    folder = racer.race["location"] if racer.race["options"] is None else None
    if folder is None:
        table = lakelog.Table(with_late_clock(table.log))
    racer.wait()
    end = time.monotonic() + arguments["seconds"]
    while time.monotonic() < end:
        version += 1
        commit(table, version, folder)
        time.sleep(arguments["pause_s"])
    return version


def checkpoint(racer: Racer) -> Any:
    """Write checkpoints of the latest and of other versions until the committer ends.

    Returns:
        Number of times that each outcome occurred.
    """
    import lakelog

    rng = random.Random(racer.arguments["seed"])
    table = racer.open()
    racer.wait()
    outcomes: Counter[str] = Counter()
    while racer.others_write():
        version = None
        if rng.random() < 0.3:
            first, last = rng.choice(table.versions())
            version = rng.randint(first, last)
        layout = rng.choice(racer.arguments["layouts"])
        try:
            report = table.checkpoint(version, layout)
        except lakelog.LakelogError as error:
            if error.kind not in racer.arguments["may_fail"]:
                raise
            outcomes[error.kind] += 1
        else:
            outcomes["reused" if report.reused else layout] += 1
        time.sleep(rng.random() * racer.arguments["pause_s"])
    return outcomes


def clean(racer: Racer) -> Any:
    """Clean up without any retention, to quarantine or permanently; returns what was deleted."""
    import lakelog

    rng = random.Random(racer.arguments["seed"])
    table = racer.open()
    racer.wait()
    deleted = 0
    promised = 0
    refused: Counter[str] = Counter()
    while racer.others_write():
        quarantine = rng.random() < 0.5
        try:
            report = table.cleanup(
                plan=False, quarantine=quarantine, retention=0, checkpoint_retention=0, force=True
            )
        except lakelog.LakelogError as error:
            if error.kind not in racer.arguments["may_fail"]:
                raise
            refused[error.kind] += 1
        else:
            assert not report.errors, report.errors
            deleted += report.files.height
            promised = max(promised, report.oldest_promised or 0)
        if quarantine and rng.random() < 0.3:
            table.purge_quarantines(dt.timedelta(0))
        time.sleep(rng.random() * racer.arguments["pause_s"])
    return deleted, promised, refused


def vacuum(racer: Racer) -> Any:
    """Vacuum with a retention of a second until the committer ends; returns the number of
    deletions.
    """
    table = racer.open()
    racer.wait()
    deleted = 0
    while racer.others_write():
        report = table.vacuum(plan=False, retention=dt.timedelta(seconds=1), force=True)
        assert not report.errors, report.errors
        deleted += report.deleted
        time.sleep(racer.arguments["pause_s"])
    return deleted


def read_versions(racer: Racer) -> Any:
    """Open and read in every way until the committer ends; counts the reads and refusals."""
    import lakelog

    rng = random.Random(racer.arguments["seed"])
    kept = racer.open()
    held = kept.snapshot()
    racer.wait()
    least = kept.version()
    seen: Counter[str] = Counter()
    last = False
    while not last:
        last = not racer.others_write()
        way = rng.choice(("fresh", "kept", "held", "history", "travel"))
        if way == "fresh":
            snapshot = racer.open().snapshot()
        elif way == "kept":
            snapshot = kept.snapshot()
        else:
            snapshot = held = held.update()
        if way == "history":
            versions = kept.history()["version"].to_list()
            # Commits that are being deleted may leave gaps.
            assert versions == sorted(set(versions), reverse=True)
            assert versions[0] >= least
        assert snapshot.version >= least, f"{way} went back from {least} to {snapshot.version}"
        least = snapshot.version
        check(snapshot, kept.format)
        if way == "travel":
            version = max(0, snapshot.version - rng.randrange(12))
            try:
                check(racer.open().snapshot(version), kept.format)
            except lakelog.VersionNotFoundError:
                way = "travel, version not found"
        seen[way] += 1
    return seen
