"""Runs maintenance processes that are killed: ``maintenance_killer.py``, one order per line of JSON
on standard input. An order names the operation, the table, and the time after which it is killed;
the result is its exit code. Each is a fork of this process, which has imported everything and run
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import lakelog.table_functions


def maintain(order: dict[str, Any]) -> None:
    """Execute an order once."""
    warnings.simplefilter("ignore", lakelog.errors.LakelogWarning)
    table = lakelog.open(order["location"])
    given = order["given"]
    match order["does"]:
        case "checkpoint":
            table.checkpoint(**given)
        case "cleanup":
            table.cleanup(plan=False, retention=0, checkpoint_retention=0, **given)
        case "repair":
            table.repair(plan=False)
        case "compact":
            table.compact_log(**given)


def run(order: dict[str, Any]) -> int:
    """Fork a process, and kill it in time; return its exit code, negative if it was killed."""
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        failed = True
        try:
            os.write(started, b".")
            maintain(order)
            failed = False
        except Exception:  # noqa: BLE001 - it is printed for the test
            traceback.print_exc()
        finally:
            os._exit(int(failed))
    os.read(ready, 1)
    os.close(ready)
    os.close(started)
    time.sleep(order["after_s"])
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(f"{run(json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
