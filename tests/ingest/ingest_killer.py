"""Runs Ingestors in processes that are killed: one order per line of JSON on standard input. A
process is a fork of this one, which has imported everything and opened nothing. Events are written
to standard output, one per line: ``wrote <id>`` after a write returned, ``ended <code>``.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pyarrow as pa

import lakelog
from lakelog.errors import InvalidInputError
from tests.faults.killers import kill_each, write_event

THREADS = 8
SCHEMA = pa.schema([("id", pa.string()), ("value", pa.int64())])


def write(order: dict[str, Any], opened: int) -> None:
    table = lakelog.open(order["table"], upkeep=False)
    ingestor = lakelog.Ingestor(
        table, order["directory"], key=order["key"], max_rows=160, max_seconds=0.02
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
    """Write until the process is killed: single rows, batches, and rejected rows; with a key, also
    rows that were written before.
    """
    rng = random.Random(writer)
    number = 0
    while True:
        number += 1
        names = [f"{writer}-{number}-{n}" for n in range(rng.choice([1, 1, 1, 5]))]
        rows = [{"id": name, "value": 1} for name in names]
        if rng.random() < 0.5:
            ingestor.write(pa.Table.from_pylist(rows, SCHEMA))  # shares a record with others
        else:
            ingestor.write(rows[0] if len(rows) == 1 else rows)
        if key is not None:
            ingestor.write([{"id": name, "value": 2} for name in names])
        for name in names:
            write_event("wrote", name)
        try:
            ingestor.write({"id": f"refused-{writer}-{number}", "value": "text"})
        except InvalidInputError:
            continue
        os._exit(3)


if __name__ == "__main__":
    pa.set_cpu_count(1)  # threads of Arrow do not survive a fork
    kill_each(write)
