"""Runs Ingestors that die: one order per line of JSON on standard input. A process is a fork of
this one, which has imported everything and opened nothing. Events are written to standard output,
one per line: ``wrote <id>`` after a write returned, ``ended <code>``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import lakelog
from lakelog.errors import InvalidInputError

THREADS = 8


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write(order: dict[str, Any], opened: int) -> None:
    table = lakelog.open(order["table"], upkeep=False)
    ingestor = lakelog.Ingestor(
        table, order["directory"], key=order["key"], max_rows=60, max_seconds=0.02
    )
    os.write(opened, b".")
    threads = [
        threading.Thread(target=work, args=(ingestor, f"{order['round']}-{n}", order["key"]))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(ingestor: lakelog.Ingestor, writer: str, key: str | None) -> None:
    """Write endlessly: single rows, batches, and rejected rows; with a key, also rows that were
    written before.
    """
    rng = random.Random(writer)
    number = 0
    while True:
        number += 1
        names = [f"{writer}-{number}-{n}" for n in range(rng.choice([1, 1, 1, 5]))]
        rows = [{"id": name, "value": 1} for name in names]
        ingestor.write(rows[0] if len(rows) == 1 else rows)
        if key is not None:
            ingestor.write([{"id": name, "value": 2} for name in names])
        for name in names:
            tell("wrote", name)
        try:
            ingestor.write({"id": f"refused-{writer}-{number}", "value": "text"})
        except InvalidInputError:
            continue
        os._exit(3)


def main() -> None:
    import pyarrow as pa

    pa.set_cpu_count(1)  # threads of Arrow do not survive a fork
    for line in sys.stdin:
        order = json.loads(line)
        is_open, opened = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write(order, opened)
            finally:
                os._exit(1)
        os.close(opened)
        os.read(is_open, 1)
        time.sleep(order["after_s"])
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(is_open)
        tell("ended", code)


if __name__ == "__main__":
    main()
