"""Keeps each sidecar of incremental checkpoints a range of the file order.

A sidecar that is rewritten keeps its range: new rows within the range are added to it, and it is
split when it has grown. All other rows are written to new sidecars, in order. If commits follow the
order (for example, by date), ranges never overlap. If commits add files all over the order, their
sidecars overlap the others, and a condition has to read more and more of them. If too many overlap,
a complete checkpoint is written.

Ranges are derived from the records of row groups (`lakelog.dialects.row_group_records`), without
reading rows. They may be too wide, never too narrow.

Source: ``schemas/checkpoint.md``, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from lakelog.dialects.log_content import RowGroups
from lakelog.log.file_order import FileOrder, KeyRanges, Numbers
from lakelog.skipping.statistics import stats_from_struct

_FEW = 8
"""Number of sidecars that may overlap without limit."""
_MOST = 0.5
"""Minimum share of sidecars with bounds of a column, for the column to be part of ranges."""


@dataclass(frozen=True)
class SidecarRanges:
    """Lower and upper bounds of the first keys of the order, one row per sidecar of `paths`."""

    paths: tuple[str, ...]
    least: pl.DataFrame
    greatest: pl.DataFrame

    @staticmethod
    def of(row_groups: Sequence[RowGroups], order: FileOrder) -> SidecarRanges:
        """The ranges from the records of row groups; unknown if a bound is unknown."""
        paths: list[str] = []
        ends: list[pl.DataFrame] = []
        for groups in row_groups:
            live = groups.frame.filter(groups.frame["adds"] > 0)
            if not live.height:
                continue
            first_and_last = live["bounds"].gather([0, live.height - 1])
            typed = stats_from_struct(first_and_last, order.schema, mapping=order.mapping)
            least, greatest = (order.keys_of_bounds(typed[side]) for side in ("min", "max"))
            paths.append(groups.path)
            ends.append(pl.concat([least[:1], greatest[1:]]))
        every = pl.concat(ends) if ends else pl.DataFrame()
        return _known(tuple(paths), every.gather_every(2), every.gather_every(2, 1))

    @property
    def _ranks(self) -> tuple[Numbers, Numbers]:
        """Ranks of the lower and upper bounds among all bounds; equal keys have equal ranks."""
        if not self.paths:
            nothing: Numbers = np.zeros(0, np.int64)
            return nothing, nothing
        keys = pl.concat([self.least, self.greatest])
        ordered = keys.unique().sort(keys.columns, nulls_last=False).with_row_index("rank")
        joined = keys.join(
            ordered, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        ranks = joined["rank"].to_numpy().astype(np.int64)
        return ranks[: len(self.paths)], ranks[len(self.paths) :]

    def overlap_too_much(self) -> bool:
        """Whether a key of the order is, on average, in more than half of the sidecars."""
        count = len(self.paths)
        if count < _FEW:
            return False
        least, greatest = self._ranks
        begun = np.searchsorted(np.sort(least), greatest, "left")
        ended = np.searchsorted(np.sort(greatest), least, "right")
        return bool((begun - ended).mean() > 1 + count / 2)

    def to_keep(self, again: Iterable[str], kept: Iterable[str]) -> KeyRanges | None:
        """The ranges of rewritten sidecars, merged if they overlap, without those that span several
        kept ones.
        """
        numbers = {path: number for number, path in enumerate(self.paths)}
        least, greatest = self._ranks
        others = [numbers[path] for path in kept if path in numbers]
        own: list[tuple[int, int]] = []
        known = [numbers[path] for path in again if path in numbers]
        for number in sorted(known, key=lambda n: (least[n], greatest[n])):
            inside = (least[others] >= least[number]) & (greatest[others] <= greatest[number])
            if inside.sum() > 1:
                continue
            if own and least[number] < greatest[own[-1][1]]:
                last = max(own[-1][1], number, key=lambda n: int(greatest[n]))
                own[-1] = (own[-1][0], last)
            else:
                own.append((number, number))
        if not own:
            return None
        firsts, lasts = ([pair[side] for pair in own] for side in (0, 1))
        return KeyRanges(self.least[firsts], self.greatest[lasts])


def _known(paths: tuple[str, ...], least: pl.DataFrame, greatest: pl.DataFrame) -> SidecarRanges:
    """The ranges with known keys, of as many first columns as nearly all sidecars have."""
    known = np.ones(len(paths), np.bool_)
    columns: list[str] = []
    for name in least.columns:
        more = known & (least[name].is_not_null() & greatest[name].is_not_null()).to_numpy()
        if more.sum() < _MOST * known.sum() or not more.any():
            break
        known = more
        columns.append(name)
    if not columns:
        return SidecarRanges((), pl.DataFrame(), pl.DataFrame())
    rows = np.flatnonzero(known)
    ends = (frame.select(columns)[rows] for frame in (least, greatest))
    return SidecarRanges(tuple(paths[row] for row in rows), *ends)


class SidecarCuts:
    """Counts the live files of each range, to divide them into sidecars. `starts` has the number of
    actions per sidecar by the number of live files before it, complete after the last live file.
    """

    def __init__(self, order: FileOrder, target_rows: int, num_removes: int) -> None:
        self.starts: dict[int, int] = {}
        self._order = order
        self._target_rows = target_rows
        self._num_removes = num_removes

    def counted(self, frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Yield the same frames: live files, then tombstones."""
        sizes = np.zeros(self._order.num_ranges, np.int64)
        for frame in frames:
            if frame.height and frame["actionType"][0] == "add":
                sizes += self._order.count_ranges(frame)
            yield frame
        start = 0
        for number, size in enumerate(sizes.tolist()):
            # Tombstones follow the last live files.
            rows = size + (self._num_removes if number == len(sizes) - 1 else 0)
            if rows:
                self.starts[start] = -(-rows // max(1, round(rows / self._target_rows)))
            start += size
