"""Histograms of a version checksum: sizes of files, and rows deleted in them.

Source: Delta protocol, File Size Histogram Schema; Deleted Record Counts Histogram Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

_LOW = (1 << 32) - 1
_EXACT_ROWS = 1 << 21
_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30

SIZE_BOUNDS: tuple[int, ...] = (
    0,
    *(_KB << n for n in range(3, 13)),
    *range(8 * _MB, 41 * _MB, 4 * _MB),
    *range(48 * _MB, 121 * _MB, 8 * _MB),
    *range(124 * _MB, 145 * _MB, 4 * _MB),
    *range(160 * _MB, 577 * _MB, 16 * _MB),
    *range(640 * _MB, 1409 * _MB, 64 * _MB),
    *range(1536 * _MB, 2049 * _MB, 128 * _MB),
    *range(2304 * _MB, 4097 * _MB, 256 * _MB),
    *(_GB << n for n in range(3, 9)),
)
"""Where Spark's bins begin, in bytes: it compares histograms over the same bins only."""

DELETED_BOUNDS: tuple[int, ...] = (0, *(10**n for n in range(8)), (1 << 31) - 1)
"""Where the ten bins of deleted rows begin; fixed by the protocol."""


class SizeCounts:
    """A file size histogram that is being counted."""

    def __init__(self, bounds: Sequence[int] = SIZE_BOUNDS) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * len(bounds)
        self._totals = [0] * len(bounds)
        self._is_sound = True

    def add(self, sizes: pl.Series) -> None:
        """Count some live files, by their sizes in bytes."""
        if not sizes.len():
            return
        least = sizes.min()
        if sizes.null_count() or (isinstance(least, int) and least < self._bounds[0]):
            self._is_sound = False
            return
        every = sizes.to_numpy()
        for start in range(0, len(every), _EXACT_ROWS):
            values = every[start : start + _EXACT_ROWS]
            bins = np.searchsorted(self._bounds, values, side="right") - 1
            counts = np.bincount(bins, minlength=len(self._bounds))
            # The sums are floating-point numbers: of 32 bits at a time they are exact.
            low = np.bincount(bins, values & _LOW, len(self._bounds))
            high = np.bincount(bins, values >> 32, len(self._bounds))
            for number in np.flatnonzero(counts).tolist():
                self._counts[number] += int(counts[number])
                self._totals[number] += int(low[number]) + (int(high[number]) << 32)

    def histogram(self) -> dict[str, Any] | None:
        """``sortedBinBoundaries``, ``fileCounts`` and ``totalBytes``; None where a file belongs to
        no bin, or a sum has no room in 64 bits.
        """
        if not self._is_sound or max(self._totals) >= 1 << 63:
            return None
        return {
            "sortedBinBoundaries": self._bounds,
            "fileCounts": self._counts,
            "totalBytes": self._totals,
        }


def count_deleted(cardinalities: Iterable[pl.Series]) -> list[int]:
    """How many files have how many deleted rows, by the bins of `DELETED_BOUNDS`."""
    counts = [0] * len(DELETED_BOUNDS)
    for batch in cardinalities:
        if batch.null_count() == batch.len():
            counts[0] += batch.len()
            continue
        bins = _bins(batch.cast(pl.Int64).fill_null(0).clip(0), DELETED_BOUNDS)
        for number, count in bins.value_counts().iter_rows():
            counts[number] += count
    return counts


def _bins(values: pl.Series, bounds: Sequence[int]) -> pl.Series:
    starts = pl.Series(list(bounds), dtype=pl.Int64)
    return (starts.search_sorted(values, side="right").cast(pl.Int64) - 1).alias("bin")
