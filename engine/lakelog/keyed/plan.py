"""Pure decisions of a keyed store: row groups, merge ranges, compaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

GROUP_ROWS = 8192
"""Most rows of a row group: what a get of one key decodes at most."""

GROUP_BYTES = 4 << 20
"""Most bytes of keys and values in a row group that holds more than one row."""

MERGE_ROWS = 1 << 19
"""Rows that a merge holds in memory at a time, next to one row group of each file."""

MERGE_BYTES = 64 << 20
"""Bytes of them."""

MOST_FILES = 8
"""Files that flushes may leave before the next one merges some."""


def groups(
    sizes: npt.NDArray[np.int64], rows: int = GROUP_ROWS, size_bytes: int = GROUP_BYTES
) -> list[int]:
    """Where row groups begin.

    >>> groups(np.array([1, 1, 1, 9, 1]), rows=2, size_bytes=5)
    [0, 2, 3, 4, 5]
    """
    upto = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    starts = [0]
    while (start := starts[-1]) < len(sizes):
        full = int(np.searchsorted(upto, upto[start] + size_bytes, side="right")) - 1
        starts.append(min(max(full, start + 1), start + rows, len(sizes)))
    return starts


def ranges(
    files: Sequence[Sequence[tuple[bytes, int, int]]],
    rows: int = MERGE_ROWS,
    size_bytes: int = MERGE_BYTES,
) -> list[tuple[bytes | None, bytes | None]]:
    """Key ranges that cover everything, each with about so many rows of all files together.

    >>> ranges([[(b"a", 2, 9), (b"m", 2, 9)], [(b"c", 3, 9)]], rows=5)
    [(None, b'm'), (b'm', None)]
    """
    beginning: Counter[bytes] = Counter()
    bytes_beginning: Counter[bytes] = Counter()
    for file in files:
        for first_key, count, group_bytes in file:
            beginning[first_key] += count
            bytes_beginning[first_key] += group_bytes
    cuts: list[bytes] = []
    held = held_bytes = 0
    for first_key, count in sorted(beginning.items()):
        more_bytes = bytes_beginning[first_key]
        if held and (held + count > rows or held_bytes + more_bytes > size_bytes):
            cuts.append(first_key)
            held = held_bytes = 0
        held += count
        held_bytes += more_bytes
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def compaction(sizes: Sequence[int], most: int = MOST_FILES) -> int | None:
    """Which files to merge after a flush: the newest ones, from an index on.

    Tiers by size: the merge takes in an older file only while that is not much larger than all
    that are merged already, so that a byte is rewritten once for each doubling of the store, not
    at each flush.

    >>> compaction([1000, 10, 9, 8, 7], most=4)
    1
    >>> compaction([1000, 10, 9, 8, 7], most=5)
    """
    if len(sizes) <= most:
        return None
    # At least so many that no more than `most` are left.
    first = most - 1
    merged = sum(sizes[first:])
    while first and sizes[first - 1] <= 2 * merged:
        first -= 1
        merged += sizes[first]
    return first
