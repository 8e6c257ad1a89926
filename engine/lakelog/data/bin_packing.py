"""`pack`: distributes files among tasks, deterministically."""

from __future__ import annotations

import heapq

import polars as pl

from lakelog.errors import InvalidInputError

TARGET_BYTES = 134_217_728
OPEN_COST_BYTES = 4_194_304


def pack(
    sizes: pl.Series,
    *,
    target_bytes: int = TARGET_BYTES,
    open_cost_bytes: int = OPEN_COST_BYTES,
    at_least: int = 1,
) -> pl.Series:
    """The bin of each file.

    Neighbours stay together: bins are stretches of the files as they come, cut where the bytes
    reach the target. Where that would make fewer bins than are wanted, the largest files are dealt
    out first, each to the bin that has least.

    Memory: some 32 bytes per file.

    >>> pack(pl.Series([60, 60, 60, 60]), target_bytes=120, open_cost_bytes=0).to_list()
    [0, 0, 1, 1]
    >>> pack(pl.Series([100, 1, 1]), open_cost_bytes=0, at_least=2).to_list()
    [0, 1, 1]
    """
    if target_bytes < 1 or open_cost_bytes < 0 or at_least < 1:
        raise InvalidInputError(
            "invalid sizes for bin packing",
            expected="target_bytes > 0, at_least > 0, open_cost_bytes >= 0",
            found=f"{target_bytes}, {at_least}, {open_cost_bytes}",
        )
    weights = sizes.fill_null(0).cast(pl.Int64).clip(0) + open_cost_bytes
    wanted = min(at_least, weights.len())
    total = int(weights.sum())
    stretch = min(target_bytes, total // at_least + 1)
    # The bin in which a file's middle is; numbers of empty bins are passed over.
    bins = ((weights.cum_sum() - weights + weights // 2) // stretch).rle_id().cast(pl.UInt32)
    if bins.n_unique() < wanted:
        bins = _dealt(weights.to_list(), max(wanted, -(-total // target_bytes)))
    return bins.alias("bin")


def _dealt(weights: list[int], count: int) -> pl.Series:
    """Largest first, each to the bin that has least; of few files, so a loop is cheap."""
    heap = [(0, number) for number in range(min(count, len(weights)))]
    bins = [0] * len(weights)
    for index in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        held, number = heapq.heappop(heap)
        bins[index] = number
        heapq.heappush(heap, (held + max(1, weights[index]), number))
    return pl.Series(bins, dtype=pl.UInt32)
