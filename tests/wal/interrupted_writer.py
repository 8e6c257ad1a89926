"""Interrupts (Ctrl-C) the writing thread: ``interrupted_writer.py ACTION...``.

In a separate process, the interrupt happens at the first place of the action, the second, and so
on, while other threads wait for it. A wrong result ends the process with an exception.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lakelog.errors import InvalidInputError, LogPoisonedError, OutcomeUnknownError
from lakelog.wal.log import WriteAheadLog
from tests.wal.crash_disk import CrashDisk, Operation
from tests.wal.interrupts import Interrupts

DIRECTORY = "somewhere/log"
FOLLOWERS = 2

Action = Callable[[WriteAheadLog], Any]

ACTIONS: dict[str, Action] = {
    "append": lambda log: log.append("PUT", "leads", "v" * 10),
    "rotation": lambda log: log.append("PUT", "leads", "v" * 300),
    "batch": lambda log: log.append_batch([("PUT", f"leads {n}", "v" * 9) for n in range(3)]),
    "truncation by a mark": lambda log: log.truncate(2),
    "truncation of all": lambda log: log.truncate(4),
    "replay": lambda log: log.replay(),
    "close": lambda log: log.close(),
}


def followers(log: WriteAheadLog, outcomes: dict[str, Any]) -> list[threading.Thread]:
    def follow(key: str) -> None:
        try:
            outcomes[key] = log.append("PUT", key, b"")
        except (InvalidInputError, LogPoisonedError, OutcomeUnknownError) as error:
            outcomes[key] = error

    return [
        threading.Thread(target=follow, args=(f"follows {n}",), daemon=True)
        for n in range(FOLLOWERS)
    ]


def interrupted(name: str, at: int) -> bool:
    """One run; whether there was an n-th place."""
    disk = CrashDisk()
    log = WriteAheadLog(DIRECTORY, disk=disk, segment_bytes=400)
    sizes = [300] if name == "rotation" else [10]
    before = [log.append("PUT", f"before {n}", "v" * size) for n, size in enumerate(sizes * 4)]
    outcomes: dict[str, Any] = {}
    threads = followers(log, outcomes)

    def start_followers(operation: Operation) -> None:
        if operation.kind not in {"write", "sync", "create"} or threads[0].ident is not None:
            return
        for thread in threads:
            thread.start()
        while len(log._queue._waiting) < FOLLOWERS:
            time.sleep(0.0001)

    disk.watch = start_followers
    with Interrupts(at) as interrupts:
        ACTIONS[name](log)
    assert interrupts.was_raised == interrupts.has_acted
    for thread in threads:
        if thread.ident is None:
            thread.start()
        thread.join(120)
        assert not thread.is_alive(), f"{thread.name} waits forever"
    assert len(outcomes) == FOLLOWERS
    if name == "replay":
        log.append("PUT", "later", b"")  # a replay leaves the log unchanged
    acknowledged = {key: seq for key, seq in outcomes.items() if isinstance(seq, int)}
    assert all(seq > len(before) for seq in acknowledged.values()), outcomes
    log.close()
    log.close()
    with WriteAheadLog(DIRECTORY, disk=disk) as again:
        found = {record.key.decode(): record.seq_num for record in again.records() if record.key}
        numbers = [record.seq_num for record in again.records()]
        assert numbers == list(range(again.truncated_to + 1, again.current_seq_num() + 1))
        assert acknowledged.items() <= found.items()
        assert again.truncated_to in {0, *((2, 4) if name.startswith("truncation") else ())}
        leads = sum(key.startswith("leads") for key in found)
        assert leads in {0, 3 if name == "batch" else 1}
        assert again.append("PUT", "again", b"") == again.current_seq_num()
    return interrupts.has_acted


def interrupted_anywhere(name: str) -> None:
    """Interrupt an action at every place."""
    # Most of a replay is not done in turns, and is long.
    for at in itertools.count(1, 7 if name == "replay" else 1):
        assert at < 2000
        if not interrupted(name, at):
            return


if __name__ == "__main__":
    for each in sys.argv[1:]:
        try:
            interrupted_anywhere(each)
        except BaseException as error:
            error.add_note(f"interrupted: {each}")
            raise
