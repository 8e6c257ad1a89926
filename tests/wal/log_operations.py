"""Operations on a log while its disk fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakelog.wal.log import WriteAheadLog

BATCH = [("PUT", f"batch {n}", "b" * 30) for n in range(10)]
LONG = [("PUT", f"long {n}", "l" * 200) for n in range(30)]

WRITES: dict[str, Callable[[WriteAheadLog], Any]] = {
    "append": lambda log: log.append("PUT", "new", "value"),
    "batch": lambda log: log.append_batch(BATCH),
    "batch in several frames": lambda log: log.append_batch(LONG),
    "checkpoint": lambda log: log.checkpoint(),
    "truncation by a mark": lambda log: log.truncate(log.current_seq_num() - 1),
    "truncation of all": lambda log: log.truncate(log.current_seq_num()),
    "rotation": lambda log: [log.append("PUT", f"fill {n}", "f" * 400) for n in range(4)],
}
"""Records that are new, and the end of old ones."""

ACTIONS = WRITES | {"sync": lambda log: log.sync(), "close": lambda log: log.close()}
