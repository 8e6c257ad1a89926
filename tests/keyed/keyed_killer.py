"""Runs writers of a keyed store that are killed: one JSON command per line on standard input.

``{"directory": …, "from": n}`` starts one, as a fork of this process, which has imported everything
and run nothing. ``{"kill": true}`` kills it. Each event is one line on standard output: ``opened``,
``wrote <number>``, ``ended <code>``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import count

from lakelog.keyed.store import KeyedStore
from tests.faults.killers import write_event


def write(directory: str, first: int) -> None:
    """Write until the process is killed: each number under two keys, in one batch."""
    with KeyedStore(directory, memtable_bytes=400) as store:
        write_event("opened")
        for number in count(first):
            pairs = {f"{lane}/{number:06}": str(number) for lane in "ab"}
            store.put_many(pairs)
            write_event("wrote", number)
            if number % 97 == 0:
                store.compact()
            time.sleep(0.0005)  # the parent process is to read intermediate states


def main() -> None:
    child = 0
    for line in sys.stdin:
        order = json.loads(line)
        if "kill" in order:
            os.kill(child, signal.SIGKILL)
            write_event("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            continue
        child = os.fork()
        if child == 0:
            try:
                write(order["directory"], order["from"])
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
