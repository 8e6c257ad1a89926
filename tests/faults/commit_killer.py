"""Runs writers that are killed: ``commit_killer.py``, one order per line of JSON on standard input.
An order names a case of `commit_cases`, a location and where the writer is killed; the result is a
line of JSON: its exit code. Each writer is a fork of this process, which has imported everything
and run nothing, so a kill costs milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lakelog
from lakelog.storage import LogStore
from lakelog.testing import InjectingStore, Rule
from tests.faults.commit_cases import CASES, store_replaced
from tests.faults.faulty_os import CALLS, FaultyOs, os_replaced

TIMEOUT_S = 60.0


def acknowledge(path: str, version: int | None) -> None:
    """Record durably that a commit has returned."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{version}\n")
        file.flush()
        os.fsync(file.fileno())


def write_case(order: dict[str, Any]) -> None:
    """Write one case; the process is killed at the nth operation of the store."""
    [case] = [c for c in CASES if c.name == order["case"]]

    def inject(store: LogStore) -> LogStore:
        return InjectingStore(store, [Rule(order["fault"], order["kinds"], nth=order["nth"])])

    with store_replaced(inject):
        acknowledge(order["ack"], case.write(order["location"]))


def write_case_on_disk(order: dict[str, Any]) -> None:
    """Write one case; the process is killed at the nth call of the operating system."""
    [case] = [c for c in CASES if c.name == order["case"]]

    def die(_: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(TIMEOUT_S)

    faulty = FaultyOs(CALLS, order["nth"], die, after=order["after"], torn=order["torn"])
    with os_replaced(faulty):
        version = case.write(order["location"])
    acknowledge(order["ack"], version)


def write_forever(order: dict[str, Any]) -> None:
    """Commit repeatedly, until the process is killed."""
    # Without checkpoints, which do not record the writer of a file: the tests read the commits.
    table = lakelog.open(order["location"], upkeep=False)
    for number in range(1_000_000):
        app = (order["name"], number) if table.format == "delta" else ()
        with table.transaction(*app) as tx:
            tx.add(path=f"{order['name']}-{number}", size=number, partitionValues={"p": "a"})
        acknowledge(order["ack"], tx.version)


def start(order: dict[str, Any]) -> int:
    """Fork a writer; return its process id."""
    child = os.fork()
    if child == 0:
        failed = True
        try:
            globals()[order["do"]](order)
            failed = False
        finally:
            os._exit(int(failed))
    return child


def run(order: dict[str, Any]) -> int:
    """Start a writer, or ``several``, kill those that are to be killed, and wait for all; return
    the wait status of the last.
    """
    orders = order.get("several", [order])
    children = [start(each) for each in orders]
    status = 0
    for child, each in zip(children, orders, strict=True):
        if "after_s" in each:
            # After its first commit, so that it is not killed during its imports.
            deadline = time.monotonic() + TIMEOUT_S
            while not os.path.exists(each["ack"]) and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(each["after_s"])
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return status


def main() -> None:
    for line in sys.stdin:
        status = run(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
