"""`Runtime`: clock, randomness and waiting of a writer, injectable for tests."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakelog import telemetry


@dataclass(frozen=True)
class Committed:
    """A written commit: version, size in bytes, and the table's properties after it."""

    version: int
    size_bytes: int
    configuration: Mapping[str, str | None]


@dataclass(frozen=True)
class Runtime:
    """Sleep, randomness and monotonic time. The default `rng` uses the operating system, because a
    forked process would inherit a generator's state. Errors of `on_commit` are logged.
    """

    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.SystemRandom)
    monotonic: Callable[[], float] = time.monotonic
    on_commit: Callable[[Committed], None] | None = None

    def new_id(self) -> str:
        """A random UUID (version 4), as text."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def notify(self, committed: Committed) -> None:
        """Call `on_commit`, and log its errors."""
        if self.on_commit is None:
            return
        try:
            self.on_commit(committed)
        except Exception as error:  # noqa: BLE001 - what follows a commit must not undo it
            telemetry.event(
                "commit.follow_up_failed", logging.ERROR, version=committed.version, error=error
            )
