"""The share of repeated tests that a run executes; it changes by day. ``LAKELOG_SAMPLE=all`` (`make
soak`) executes everything; the value that a run prints repeats its choice.
"""

from __future__ import annotations

import os
import random
import re
import zlib
from collections.abc import Iterable

SAMPLE = os.environ.get("LAKELOG_SAMPLE", "all")
"""Set by conftest.py before the tests are imported."""

IS_WHOLE = SAMPLE == "all"

_NUMBERS = re.compile(r"[0-9a-f]{8,}(?:-[0-9a-f]{4,})*|\d+")


def share_of(most: int, share: int = 8) -> int:
    """Number of repetitions of a random test: one in `share` of `most`, and all in soak."""
    return most if IS_WHOLE else -(-most // share)


def seed_of(name: str) -> int:
    """A seed that is constant within a run and changes every day."""
    return zlib.crc32(f"{SAMPLE} {name}".encode())


def rng_of(name: str) -> random.Random:
    """A random generator with the seed of the day."""
    return random.Random(seed_of(name))


def seeded() -> random.Random:
    """A random generator with another seed each time, which the output of a failed test shows."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def points(operations: Iterable[tuple[str, str]], share: int = 4) -> list[int]:
    """Numbers, from 1, of the operations at which a sweep "the nth operation fails" injects its
    fault.

    Args:
        operations: Kind and path of all operations of a run without faults.
        share: One in `share` of the operations of each kind, and at least one. A kind is what
            remains of the path without its numbers.

    Returns:
        The numbers in order. The last one is past the end, so that the work is also done to its
        end under an armed fault.
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    total = 0
    for total, (kind, path) in enumerate(operations, 1):
        kinds.setdefault((kind, _NUMBERS.sub("#", path)), []).append(total)
    if IS_WHOLE:
        return list(range(1, total + 2))
    chosen = {total + 1}
    for name, numbers in kinds.items():
        chosen.update(rng_of(f"{name}").sample(numbers, -(-len(numbers) // share)))
    return sorted(chosen)
