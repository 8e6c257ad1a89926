"""Runs writers that are killed: ``wal_killer.py``, one JSON command per line on standard input.

A writer is a fork of this process, which has imported everything and run nothing, so a kill costs
milliseconds. The acknowledgements of a writer go to standard output, one line per event, each in
one write that is complete or absent: ``opened <last number>``, ``wrote <last number> <unit>``,
``truncating <number>``, ``truncated <number>``. The last line of a command is ``ended <code>``.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any

from lakelog.wal.log import WriteAheadLog
from tests.faults.killers import kill_each, write_event

THREADS = 4


def write(order: dict[str, Any], opened: int) -> None:
    log = WriteAheadLog(order["directory"], **order["settings"])
    write_event("opened", log.current_seq_num())
    os.write(opened, b".")
    rng = random.Random(order["seed"])
    threads = [
        threading.Thread(
            target=work, args=(log, f"{order['round']}-{n}", random.Random(rng.random()))
        )
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(log: WriteAheadLog, writer: str, rng: random.Random) -> None:
    """Write without end; each key has its unit, its place in it and the size of the unit."""
    number = 0
    while True:
        number += 1
        unit = f"{writer}-{number}"
        size = rng.choice([1, 1, 1, 3, 40])
        keys = [f"{unit}-{place}-{size}" for place in range(size)]
        value = rng.randbytes(rng.choice([10, 100, 2000]))
        if size == 1:
            seq = log.append("PUT", keys[0], value)
        else:
            seq = log.append_batch([("PUT", key, value) for key in keys])
        write_event("wrote", seq, unit)
        if writer.endswith("-0") and rng.random() < 0.1:
            up_to = max(0, log.current_seq_num() - rng.choice([0, 5, 300]))
            write_event("truncating", up_to)
            log.truncate(up_to)
            write_event("truncated", up_to)


if __name__ == "__main__":
    kill_each(write)
