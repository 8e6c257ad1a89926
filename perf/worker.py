"""One measurement in a separate process: ``python -m perf.worker CONTENDER WORKLOAD SCALE``.

In a new process, the peak memory does not include allocations of another contender, another run or
the generation of the table. Imports happen before the measurement. The last line of output is one
JSON object.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any

from perf import cases, tables, workloads


def peak_memory_mb() -> float:
    """The peak resident memory of this process, in megabytes (1e6 bytes).

    On Linux a process inherits ``ru_maxrss`` of its parent, so VmHWM is read there.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            line = next(row for row in status if row.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(contender: str, workload: str, scale: float) -> dict[str, Any]:
    """Run one case once.

    Returns:
        seconds (wall clock), cpu_seconds (all threads, user and system), base_mb (peak memory
        after imports), prepared_mb (after `prepare`), peak_mb (after the run), result_mb (the size
        of the result, if the case reports it) and the answer.
    """
    case = cases.load(contender, workload)
    table = tables.ensure(workloads.find(workload).table, scale)
    base = peak_memory_mb()
    with ExitStack() as stack:
        prepared = case.prepare(table, stack)
        prepared_mb = peak_memory_mb()
        gc.collect()
        cpu, start = time.process_time(), time.perf_counter()
        result = case.run(prepared)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        peak = peak_memory_mb()
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "base_mb": base,
            "prepared_mb": prepared_mb,
            "peak_mb": peak,
            "result_mb": case.size_bytes(result) / 1e6 if case.size_bytes else None,
            "answer": case.answer(result),
        }


def main() -> None:
    """Print the result of `measure`."""
    contender, workload, scale = sys.argv[1:]
    print(json.dumps(measure(contender, workload, float(scale))))


if __name__ == "__main__":
    main()
