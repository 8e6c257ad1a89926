"""The cost of queries and commits at growing sizes of a table: ``python -m perf.scale 1 10``.

For each size (in millions of files), a table with a V2 checkpoint is generated once, and every
operation runs in a new process on a copy. Prints one row per operation and size: requests, round
trips, bytes read and written, CPU seconds, and memory above that of the imports. Requests, trips
and bytes do not depend on the machine. `docs/scale.md` explains the figures.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

import lakelog
import lakelog.table
from lakelog.storage import open_store
from lakelog.testing import InjectingStore
from perf import generate, tables
from perf.worker import peak_memory_mb

_MILLION = 1_000_000
_DAY = dt.date(2024, 3, 5)
_WRITES = ("put", "put_if_absent", "upload", "move", "delete")
_FIELDS = ("requests", "trips", "read_kb", "written_kb", "cpu_s", "memory_mb", "answer")


def build(folder: Path, files: int) -> None:
    """A table of `files` files in 2,920 partitions, its last version in a V2 checkpoint."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    generate.multipart_checkpoint(log, files / 10_000_000, partitioned=True)
    table = lakelog.open(str(folder))
    table.alter.set_properties({"delta.checkpointPolicy": "v2"})
    table.checkpoint(memory_limit=2 << 30)
    for old in log.glob(f"{generate.CHECKPOINT_VERSION:020d}*"):
        old.unlink()


def _one_day(table: lakelog.Table) -> int:
    files = table.snapshot().files(where=pl.col("date") == _DAY)
    return files.select("path", "size").collect().height


def _ten_ids(table: lakelog.Table) -> int:
    one = 64  # the first file of 5 March 2024
    where = (pl.col("date") == _DAY) & pl.col("id").is_between(one * 10, one * 10 + 9)
    return table.snapshot().files(where=where).select("path", "size").collect().height


def _count(table: lakelog.Table) -> int:
    return table.snapshot().num_files()


def _all_paths(table: lakelog.Table) -> int:
    return table.snapshot().files().select("path", "size").collect().height


def _commit(table: lakelog.Table) -> int:
    with table.transaction() as tx:
        tx.add(
            path="date=2024-03-05/region=r0/new.parquet",
            partitionValues={"date": "2024-03-05", "region": "r0"},
            size=1,
            stats='{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1},"nullCount":{"id":0}}',
        )
    return table.version()


def _incremental_checkpoint(table: lakelog.Table) -> int:
    return table.checkpoint().num_adds


def _cleanup_plan(table: lakelog.Table) -> int:
    return len(table.cleanup(plan=True).files)


OPERATIONS: dict[str, Callable[[lakelog.Table], int]] = {
    "files of one day of 365": _one_day,
    "files that can hold one of ten ids of one day": _ten_ids,
    "number of files": _count,
    "one commit": _commit,
    "checkpoint after one commit": _incremental_checkpoint,
    "cleanup plan": _cleanup_plan,
    "path and size of all files": _all_paths,
}


def measure(folder: Path, name: str, latency_s: float = 0.5) -> dict[str, float]:
    """One operation on a copy of the log with hard links, in this process; and again on a store
    with a latency per request, for the number of round trips.
    """
    row = _once(folder, name, 0.0)
    return row | {"trips": _once(folder, name, latency_s)["trips"]}


def _once(folder: Path, name: str, latency_s: float) -> dict[str, float]:
    starts: list[float] = []

    def wait(seconds: float) -> None:
        starts.append(time.perf_counter())
        time.sleep(seconds)

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="copy-") as copy:
        shutil.copytree(folder, copy, copy_function=os.link, dirs_exist_ok=True)
        if name == "checkpoint after one commit":
            _commit(lakelog.open(copy))
        before = {path: path.stat().st_ino for path in Path(copy).rglob("*")}
        store = InjectingStore(open_store(copy), latency_s=latency_s, sleep=wait)
        base, cpu = peak_memory_mb(), time.process_time()
        answer = OPERATIONS[name](lakelog.open(store=store))
        cpu = time.process_time() - cpu
        new = [path for path in Path(copy).rglob("*") if before.get(path) != path.stat().st_ino]
        return {
            "requests": len(store.operations),
            "trips": count_trips(starts, latency_s),
            "writes": sum(kind in _WRITES for kind, _ in store.operations),
            "read_kb": store.bytes_read / 1e3,
            "written_kb": sum(p.stat().st_size for p in new if p.is_file()) / 1e3,
            "cpu_s": cpu,
            "memory_mb": peak_memory_mb() - base,
            "answer": answer,
        }


def count_trips(starts: Sequence[float], latency_s: float) -> int:
    """Round trips of requests that started at some times; those that start before the first of a
    trip is answered belong to it.
    """
    trips, end = 0, float("-inf")
    for start in sorted(starts):
        if start >= end:
            trips, end = trips + 1, start + latency_s
    return trips


def _child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "perf.scale", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure every operation at each size, and print the rows as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("millions", nargs="*", type=float, default=[1, 10])
    parser.add_argument("--build", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = tables.cache_directory() / "scale-{:g}"
    if options.build is not None:
        partial = Path(f"{folder}.partial".format(options.build))
        shutil.rmtree(partial, ignore_errors=True)
        start = time.process_time()
        build(partial, round(options.build * _MILLION))
        partial.rename(str(folder).format(options.build))
        print(json.dumps({"cpu_s": time.process_time() - start, "peak_mb": peak_memory_mb()}))
    elif options.measure is not None:
        size, name = options.measure
        print(json.dumps(measure(Path(str(folder).format(float(size))), name)))
    else:
        print("| operation | files |", " | ".join(_FIELDS), "|")
        print("|---" * (2 + len(_FIELDS)) + "|")
        for size in options.millions:
            if not Path(str(folder).format(size)).exists():
                built = _child("--build", str(size))
                print(f"built {size:g}M files: {built}", file=sys.stderr)
            for name in OPERATIONS:
                row = _child("--measure", str(size), name)
                values = (f"{row[field]:,.4g}" for field in _FIELDS)
                print(f"| {name} | {size:g}M |", " | ".join(values), "|", flush=True)


if __name__ == "__main__":
    main()
