"""A distributed checkpoint at growing sizes, and a prediction for a larger one.

``python -m perf.spark.scaled``

Each size is measured in a separate process. A size is predicted from the two measured before it, as
`perf/spark/scaled.md` describes: 10M files from 1M and 2M, which is then compared with the
measurement; and 100M from 2M and 10M. Prints a table or, with ``--json``, one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PART_ROWS = 524_288
"""Default number of rows per part: 128 MiB at 256 bytes."""

_SAMPLED_S = 0.2
_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a checkpoint.

    Attributes:
        files: Number of live files.
        tasks: Number of parts, one per task.
        cores: Number of concurrent tasks.
        seconds: Wall clock in seconds, including reading back.
        seconds_per_part: Approximate time of one task: ``seconds * cores / tasks``.
        driver_mb: Peak of the driver's Python, in 1e6 bytes.
        worker_mb: Peak of the largest Python worker, in 1e6 bytes.
        jvm_mb: Peak of the JVM, which is driver and executor, in 1e6 bytes.
    """

    files: int
    tasks: int
    cores: int
    seconds: float
    seconds_per_part: float
    driver_mb: float
    worker_mb: float
    jvm_mb: float


def count_parts(files: int) -> int:
    """The number of parts of a multi-part checkpoint of `files` files."""
    return max(2, -(-files // PART_ROWS))


def predict(small: Cost, large: Cost, files: int, cores: int | None = None) -> Cost:
    """The cost of another size, from two measured ones.

    The time of a part is proportional to its rows. `cores` parts run concurrently; the last round
    takes as long as a full one. The constant part of both sizes is the start. The memory of the
    driver grows with the files; that of a worker and the JVM is the one of the larger size.

    >>> small = Cost(1_000_000, 2, 2, 12.0, 12.0, 400.0, 500.0, 1000.0)
    >>> large = Cost(2_000_000, 4, 2, 22.0, 11.0, 440.0, 510.0, 1100.0)
    >>> far = predict(small, large, 100_000_000)
    >>> far.tasks, round(far.seconds), round(far.driver_mb), far.jvm_mb
    (191, 1007, 4360, 1100.0)
    """
    cores = large.cores if cores is None else cores
    tasks = count_parts(files)
    step = large.files - small.files
    each = max(0.0, (large.seconds - small.seconds) / step) * large.cores  # of one core, per file
    start = max(0.0, large.seconds - each * large.files / large.cores)
    rounds = -(-tasks // cores)
    seconds = start + rounds * each * files / tasks
    grown = max(0.0, (large.driver_mb - small.driver_mb) / step)
    return Cost(
        files,
        tasks,
        cores,
        seconds,
        seconds * cores / tasks,
        large.driver_mb + grown * (files - large.files),
        large.worker_mb,
        large.jvm_mb,
    )


def measure(files: int) -> Cost:
    """Write the checkpoint of a table of `files` files, and sample the memory of the processes."""
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
    sizes = [1_000_000, 2_000_000, 10_000_000]
    parser.add_argument("--files", type=int, nargs="+", default=sizes, help="measured sizes")
    parser.add_argument("--predict", type=int, default=100_000_000, help="predicted sizes")
    parser.add_argument("--cores", type=int, help="concurrent tasks of the prediction")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(asdict(measure(options.one))))
        return 0
    if len(set(options.files)) < 2:
        parser.error("a prediction needs at least two measured sizes")
    measured: list[Cost] = []
    if not options.json:
        print(" ".join(f"{name:>{_WIDTH}}" for name in ("", *(f.name for f in fields(Cost)))))
    for files in sorted(set(options.files)):
        command = [sys.executable, "-m", "perf.spark.scaled", "--one", str(files)]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        cost = Cost(**json.loads(found.stdout.splitlines()[-1]))
        if measured[1:]:
            _print_cost(
                "predicted", predict(measured[-2], measured[-1], cost.files), as_json=options.json
            )
        _print_cost("measured", cost, as_json=options.json)
        measured.append(cost)
    far = predict(measured[-2], measured[-1], options.predict, options.cores)
    _print_cost("predicted", far, as_json=options.json)
    return 0


def _print_cost(what: str, cost: Cost, *, as_json: bool) -> None:
    values = asdict(cost)
    if as_json:
        print(json.dumps({"what": what, **values}), flush=True)
        return
    shown = (f"{value:,.1f}" if isinstance(value, float) else value for value in values.values())
    print(" ".join(f"{text:>{_WIDTH}}" for text in (what, *map(str, shown))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
