"""Round trips: how often opening a table waits for the store; simultaneous requests count once.

Measured by the clock, because the requests of several threads overlap: with a latency much longer
than the work, minus the time of the work without it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.checkpoint import plan
from lakelog.dialects.registry import detect_dialect
from lakelog.log.context import Log
from lakelog.storage import FileEntry, StoreWrapper, open_store
from lakelog.table import Table
from lakelog.testing import InjectingStore
from tests.handmade import Handmade, add, info, metadata, protocol

LATENCY_S = 0.03
COMMITS = 100
MOST_TRIES = 30  # on a busy machine


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classic checkpoint of 1,000 files with a pointer to it, and 100 commits above it."""
    log = Handmade(tmp_path_factory.mktemp("latency") / "t").start()
    files = [add(f"below-{n}") for n in range(1000)]
    log.checkpoint(1000, protocol(), metadata(), *files)
    log.write("_last_checkpoint", b'{"version":1000,"size":1002}')
    for version in range(1000, 1001 + COMMITS):
        log.commit(version, info(), add(f"above-{version}"))
    return log.root


def opened(root: Path, latency_s: float) -> Table:
    store = InjectingStore(open_store(root), latency_s=latency_s)
    return Table(Log(store, detect_dialect(store)))


def trips(operation: Callable[[float], object], at_most: float) -> float:
    """Round trips that an operation waits for, given the latency.

    The minimum of one measurement, or of more if the machine is busy.
    """
    found = float("inf")
    operation(0.0)  # imports, caches
    for _ in range(MOST_TRIES):
        if found < at_most:
            break
        start = time.perf_counter()
        operation(0.0)
        middle = time.perf_counter()
        operation(LATENCY_S)
        end = time.perf_counter()
        found = min(found, ((end - middle) - (middle - start)) / LATENCY_S)
    return found


def read_state(table: Table) -> int:
    snapshot = table.snapshot()
    assert snapshot.protocol.min_reader_version == 1
    assert snapshot.metadata.id == "id-0"
    return snapshot.files().collect().height


def test_opening_a_checkpoint_and_100_commits_takes_five_round_trips(root: Path) -> None:
    assert read_state(opened(root, 0.0)) == 1000 + COMMITS
    assert trips(lambda latency_s: read_state(opened(root, latency_s)), 5.9) < 5.9


def test_loaded_snapshot_reads_no_file_again(root: Path) -> None:
    table = opened(root, 0.0)
    snapshot = table.snapshot()
    snapshot.files().collect()
    store = table.log.store
    assert isinstance(store, InjectingStore)
    before = len(store.operations)
    assert snapshot.num_files() == 1000 + COMMITS
    snapshot.transactions().collect()
    assert [kind for kind, _ in store.operations[before:] if kind == "read"] == []


def test_latest_version_is_listed_from_the_checkpoint(root: Path) -> None:
    class Counting(StoreWrapper):
        names = 0

        def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
            found = super().list_from(folder, start)
            self.names += len(found)
            return found

    store = Counting(open_store(root))
    assert Table(Log(store, detect_dialect(store))).version() == 1000 + COMMITS
    assert store.names == COMMITS + 3  # the checkpoint, its own commit, and the pointer


def test_an_update_that_finds_nothing_new_lists_once(root: Path) -> None:
    snapshots = {latency_s: opened(root, latency_s).snapshot() for latency_s in (0.0, LATENCY_S)}
    assert trips(lambda latency_s: snapshots[latency_s].update(), 2) < 2


FILES = 40_000
DAYS = 40


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a table of 40,000 files, a thousand per value of a partition column.

    Its checkpoint has thirty row groups in the requested layout.
    """
    folder = tmp_path_factory.mktemp("days")
    schema = pl.Schema({"day": pl.Int64, "i": pl.Int64})
    files = [
        add(
            f"day={n % DAYS}/{hashlib.sha512(b'%d' % n).hexdigest()}.parquet",
            n,
            partitionValues={"day": str(n % DAYS)},
            stats=json.dumps({"numRecords": 1, "minValues": {"i": n}, "maxValues": {"i": n}}),
        )
        for n in range(FILES)
    ]

    def made(layout: str) -> Path:
        root = folder / layout
        if not root.exists():
            configuration = {"spark.indextables.checkpoint.actionsPerPart": str(FILES // 2)}
            if layout == "v2":
                configuration["delta.checkpointPolicy"] = "v2"
            lakelog.create(root, schema, ["day"], configuration=configuration)
            lines = "\n".join(map(json.dumps, [info(), *files]))
            (root / "_delta_log" / f"{1:020d}.json").write_text(lines + "\n")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plan, "_ROW_GROUP_ROWS", FILES // 30)
                lakelog.open(root).checkpoint(layout=layout)
        return root

    return made


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2"])
def test_one_partition_takes_seven_round_trips_and_a_small_part_of_the_checkpoint(
    days: Callable[[str], Path], layout: str
) -> None:
    root = days(layout)

    def ask(latency_s: float) -> tuple[InjectingStore, list[int]]:
        store = InjectingStore(open_store(root), latency_s=latency_s)
        table = Table(Log(store, detect_dialect(store)))
        found = table.snapshot().files(where=pl.col("day") == 31).select("path", "size")
        return store, sorted(found.collect()["size"])

    store, sizes = ask(0.0)
    assert sizes == list(range(31, FILES, DAYS))
    assert len(store.operations) <= {"classic": 10, "multipart": 13, "v2": 10}[layout]
    checkpoint = sum(p.stat().st_size for p in root.rglob("*.parquet"))
    assert store.bytes_read < {"classic": 0.15, "multipart": 0.25, "v2": 0.15}[layout] * checkpoint
    assert trips(ask, 8.5) < 8.5  # seven, plus the noise of the machine


@pytest.mark.parametrize("wrong", [-70_000, -1, 1, 70_000])
def test_a_sidecar_whose_manifest_records_another_length_is_read_by_its_own(
    days: Callable[[str], Path], tmp_path: Path, wrong: int
) -> None:
    root = tmp_path / "t"
    shutil.copytree(days("v2"), root)
    (manifest,) = root.rglob("*.checkpoint.*.json")
    manifest_text = re.sub(
        rb'"sizeInBytes":(\d+)',
        lambda m: b'"sizeInBytes":%d' % (int(m[1]) + wrong),
        manifest.read_bytes(),
    )
    manifest.write_bytes(re.sub(rb'"sidecarSizeInBytes":"\d+",?', b"", manifest_text))
    snapshot = opened(root, 0.0).snapshot()
    found = snapshot.files(where=pl.col("day") == 31).select("size").collect()["size"]
    assert sorted(found) == list(range(31, FILES, DAYS))
    assert snapshot.files().select("path").collect().height == FILES
