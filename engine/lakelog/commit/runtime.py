"""`Runtime`: what a writer takes from its surroundings, so that tests can hold it still."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Runtime:
    """Waiting, randomness and the passing of time. The time of day is the log's `clock`.

    Attributes:
        sleep: Waits for so many seconds.
        rng: Gives jitter and the bits of identifiers. The default asks the operating system, for
            a generator that a forked process inherits would give two writers one identifier.
        monotonic: Seconds on a clock that is never set.
    """

    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.SystemRandom)
    monotonic: Callable[[], float] = time.monotonic

    def new_id(self) -> str:
        """A random UUID (version 4), as text."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
