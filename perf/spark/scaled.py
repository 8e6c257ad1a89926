"""A distributed checkpoint at two sizes, and what follows for a larger one.

``python -m perf.spark.scaled --files 1000000 --files 10000000 --predict 100000000``

The smaller sizes are measured, each in a process of its own. From the smallest, the others and the
one to predict are worked out as `perf/spark/scaled.md` describes, so that each measured size but
the first also says how good the prediction is. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PART_ROWS = 524_288
"""Rows of a part where the table does not say: 128 MiB at 256 bytes."""

_SAMPLED_S = 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """What a checkpoint of so many files takes.

    Attributes:
        files: Live files.
        tasks: Parts, each one task's.
        cores: Tasks that run at a time.
        seconds: Wall clock, with reading back.
        seconds_per_part: Of one task, about: ``seconds * cores / tasks``.
        driver_mb: Peak of the driver's Python, in 1e6 bytes.
        worker_mb: Peak of the largest Python worker.
        jvm_mb: Peak of the JVM, which is driver and executor at once here.
    """

    files: int
    tasks: int
    cores: int
    seconds: float
    seconds_per_part: float
    driver_mb: float
    worker_mb: float
    jvm_mb: float


DRIVER_BYTES_PER_FILE = 24
"""What the driver holds while it looks for repeated files: a hash of each path, and its sorting."""


def count_parts(files: int) -> int:
    """How many parts a multi-part checkpoint of so many files has."""
    return max(2, -(-files // PART_ROWS))


def predict(known: Cost, files: int, cores: int | None = None) -> Cost:
    """The cost of another size, from a measured one.

    A part takes as long as its rows; parts run `cores` at a time, the last round as long as a full
    one. A worker holds a row group and its batches, whatever the size; the driver holds
    `DRIVER_BYTES_PER_FILE` a file besides what it starts with.

    >>> known = Cost(1_000_000, 2, 2, 20.0, 20.0, 500.0, 700.0, 1500.0)
    >>> far = predict(known, 100_000_000)
    >>> far.tasks, round(far.seconds), round(far.driver_mb)
    (191, 2010, 2876)
    """
    cores = known.cores if cores is None else cores
    tasks = count_parts(files)
    rows, known_rows = files / tasks, known.files / known.tasks
    each = known.seconds_per_part * rows / known_rows
    rounds = -(-tasks // cores)
    more = DRIVER_BYTES_PER_FILE * (files - known.files) / 1e6
    return Cost(
        files,
        tasks,
        cores,
        rounds * each,
        each,
        known.driver_mb + more,
        known.worker_mb,
        known.jvm_mb,
    )


def measure(files: int) -> Cost:
    """Write the checkpoint of a table of so many files, and look at the processes meanwhile."""
    import psutil

    import lakelog.spark
    from perf.spark import large_states, sessions
    from perf.worker import peak_memory_mb

    made, _ = large_states.ensure(files, 10)
    own = psutil.Process()
    peaks = {"python": 0.0, "java": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLED_S):
            for process in own.children(recursive=True):
                try:
                    name, size = process.name(), process.memory_info().rss / 1e6
                except psutil.Error:
                    continue
                kind = "java" if "java" in name else "python"
                peaks[kind] = max(peaks[kind], size)

    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        log = Path(scratch) / "table" / "_delta_log"
        log.mkdir(parents=True)
        for file in (made / "_delta_log").iterdir():
            if file.name != "_last_checkpoint":
                (log / file.name).hardlink_to(file)
        spark = sessions.start(scratch)
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        start = time.perf_counter()
        report = lakelog.spark.checkpoint(spark, log.parent, layout="multipart")
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
        spark.stop()
    cores, tasks = sessions.CORES, report.parts
    return Cost(
        report.num_adds,
        tasks,
        cores,
        seconds,
        seconds * cores / tasks,
        peak_memory_mb(),
        peaks["python"],
        peaks["java"],
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, and predict; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m perf.spark.scaled", description=__doc__)
    parser.add_argument("--files", type=int, action="append", required=True, help="a size (repeat)")
    parser.add_argument("--predict", type=int, help="a size that is only worked out")
    parser.add_argument("--cores", type=int, help="tasks at a time where it is to run")
    options = parser.parse_args(arguments)
    if len(options.files) == 1 and options.predict is None:
        _tell("measured", measure(options.files[0]))
        return 0
    measured: list[Cost] = []
    for files in sorted(options.files):
        command = [sys.executable, "-m", "perf.spark.scaled", "--files", str(files)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        body = json.loads(found.stdout.splitlines()[-1])
        body.pop("what")
        measured.append(Cost(**body))
        if measured[1:]:
            _tell("predicted", predict(measured[0], measured[-1].files))
        _tell("measured", measured[-1])
    if options.predict is not None:
        _tell("predicted", predict(measured[-1], options.predict, options.cores))
    return 0


def _tell(what: str, cost: Cost) -> None:
    print(json.dumps({"what": what, **asdict(cost)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
