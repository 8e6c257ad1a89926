"""Many processes race to create the same names: ``racer.py``, with JSON on standard input.

The JSON object has ``location``, ``options``, ``processes``, ``rounds``. The result is JSON on
standard output: for each round the outcome of each process, "won", "taken", or an error. The
processes are forked before anything starts a thread, so that the drivers are imported once; each
then opens the store itself. A barrier starts each round.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import threading
from typing import Any

DRIVERS = {"s3": ("s3fs", "aiobotocore.session"), "az": ("adlfs",), "gs": ("gcsfs",)}
_ROUND_SECONDS = 60


def content(process: int) -> bytes:
    """The content that a process writes; long enough for partial writes to show."""
    return b"writer %d\n" % process * 500


def name(number: int) -> str:
    """The name of a round."""
    return f"log/{number:020d}.json"


def race(orders: dict[str, Any], process: int, barrier: Any, answers: Any) -> None:
    from lakelog.storage import open_store

    store = open_store(orders["location"], orders["options"])
    outcomes = []
    # The first connection is slow, and would let the same process win every round.
    store.put_if_absent(f"warm/{process}", b"x")
    for number in range(orders["rounds"]):
        barrier.wait(_ROUND_SECONDS)
        try:
            outcomes.append(
                "won" if store.put_if_absent(name(number), content(process)) else "taken"
            )
        except Exception as error:  # noqa: BLE001 - every error is an outcome
            outcomes.append(f"{type(error).__name__}: {error}")
    answers.put((process, outcomes))


def main() -> None:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    orders = json.load(sys.stdin)
    for driver in DRIVERS.get(orders["location"].partition("://")[0], ()):
        importlib.import_module(driver)
    importlib.import_module("lakelog.storage")
    assert threading.active_count() == 1
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(orders["processes"])
    answers = context.Queue()
    racers = [
        context.Process(target=race, args=(orders, process, barrier, answers), daemon=True)
        for process in range(orders["processes"])
    ]
    for racer in racers:
        racer.start()
    outcomes = dict(answers.get(timeout=300) for _ in racers)
    for racer in racers:
        racer.join(120)
    by_process = [outcomes[process] for process in range(orders["processes"])]
    json.dump([list(of_round) for of_round in zip(*by_process, strict=True)], sys.stdout)


if __name__ == "__main__":
    main()
