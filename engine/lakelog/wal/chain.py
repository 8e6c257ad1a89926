"""Locates the records of a frame chain without a loop over records.

In a log whose records say how long they are, each record's end is the next one's beginning, so
that finding them looks sequential. Two ways around it, both exact:

- `reachable`: where candidates for beginnings can be searched for (an aligned magic number), the
  records are the candidates that the first one reaches.
- `walk`: where they cannot, many walkers begin at guessed places at once and advance in step. What
  a walker found counts only where the walk before it arrives; a wrong guess costs time, never an
  answer.

Both are pure: they see offsets, not files. What a record looks like is the caller's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

Step = Callable[[Offsets], Offsets]
"""Of each offset, where a record that begins there ends, or anything beyond the bytes' end where
none does."""

StepOne = Callable[[int], int]
"""`Step` for one offset."""

NOWHERE = 1 << 62
"""Beyond the end of all bytes."""

_WALK_BY_ONE_BYTES = 1 << 14  # in fewer bytes a plain walk is over before a guess is made
_WALK_BY_ONE_RECORD_BYTES = 384  # so it is where records are longer: few of them take long to find
_SAMPLE_RECORDS = 64
_MOST_WALKERS = 1 << 12
_LOOKAHEAD_RECORDS = 4  # a guess must begin so many records in a row
_LEAST_LOOK_BYTES = 64
_LOOKS = 2
# How many offsets can be looked at in the time that one step of all walkers takes next to what it
# takes for each of them; so more walkers save steps and cost guesses.
_STEP_OFFSETS = 600
_SPARE_ROOM = 1.25  # walkers find more records than the average, most of them not so many


class Walk(NamedTuple):
    """What a walk found.

    Attributes:
        positions: int64, where each record begins, ascending; each ends where the next begins.
        end: Where the last record ends: where the walk was to stop, or where no record begins.
    """

    positions: Offsets
    end: int


def reachable(positions: Offsets, ends: Offsets, start: int) -> Offsets:
    """Which candidates lie on the chain that begins at an offset.

    Example:
        >>> positions, ends = np.array([0, 3, 8, 9]), np.array([8, 9, 20, 12])
        >>> reachable(positions, ends, 0).tolist()
        [0, 2]
    """
    first = int(np.searchsorted(positions, start))
    if first == len(positions) or positions[first] != start:
        return np.empty(0, dtype=np.int64)
    positions, ends = positions[first:], ends[first:]
    joined = positions[1:] == ends[:-1]
    # Runs of candidates of which each ends at the next; runs are the nodes from here on.
    lasts = np.append(np.flatnonzero(~joined), len(positions) - 1)
    if len(lasts) == 1:
        return np.arange(first, first + len(positions))
    target = np.searchsorted(positions, ends[lasts])
    is_end = target == len(positions)
    target[is_end] = 0
    is_end |= positions[target] != ends[lasts]
    following = np.searchsorted(lasts, target)
    following[is_end] = len(lasts)
    runs = _path(following)
    entries = np.zeros(len(runs), dtype=np.int64)
    entries[1:] = target[runs[:-1]]
    counts = lasts[runs] - entries + 1
    before = np.cumsum(counts) - counts
    return first + np.repeat(entries - before, counts) + np.arange(int(counts.sum()))


def _path(following: Offsets) -> Offsets:
    """The nodes from node 0 on, where each is followed by a later one, or by the number of nodes
    for none. By doubling: after n rounds the first 2**n nodes of the path are known.
    """
    nodes = len(following)
    jump = np.append(following, nodes)
    path = np.zeros(1, dtype=np.int64)
    while True:
        reached = jump[path]
        reached = reached[reached < nodes]
        if not len(reached):
            return path
        path = np.concatenate([path, reached])
        if len(reached) < len(path) - len(reached):
            return path
        jump = jump[jump]


def walk(
    step: Step, step_one: StepOne, start: int, stop: int, *, least: int, look: Step | None = None
) -> Walk:
    r"""Follow a chain of records from an offset.

    Args:
        step: Of each offset (int64, any from ``start`` on that leaves ``least`` bytes), where a
            record that begins there ends: behind it; or anything beyond ``stop``. It decides by
            the bytes alone.
        step_one: The same of one offset; for short chains, and where guesses fail.
        start: Where the first record begins.
        stop: Where the bytes end.
        least: No record has fewer bytes.
        look: As ``step``, but may refuse more of what is not a record. Guesses are made by it.

    Returns:
        The records that ``step_one`` gives when it is called with each end in turn, from
        ``start`` until it gives none, or fewer than ``least`` bytes are left.

    Example:
        >>> data = np.frombuffer(b"\x02a\x03bc\x01\x09", np.uint8)
        >>> def step_one(at: int) -> int:
        ...     return int(at + data[at])
        >>> walk(np.vectorize(step_one), step_one, 0, 7, least=1)
        Walk(positions=array([0, 2, 5]), end=6)
    """
    last = stop - least
    if stop - start < _WALK_BY_ONE_BYTES:
        return _plain(step_one, start, last, stop)
    sample = _plain(step_one, start, last, stop, _SAMPLE_RECORDS)
    record_bytes = (sample.end - start) // _SAMPLE_RECORDS + 1
    if len(sample.positions) < _SAMPLE_RECORDS:
        return sample
    if record_bytes > _WALK_BY_ONE_RECORD_BYTES:
        return _plain(step_one, start, last, stop)
    guesses = _guess(look or step, start, last, stop, record_bytes)
    return _join(step_one, last, stop, _Lanes(step, guesses, last, stop, record_bytes))


def _plain(step_one: StepOne, start: int, last: int, stop: int, most: int | None = None) -> Walk:
    found: list[int] = []
    at = start
    while at <= last and len(found) != most:
        end = step_one(at)
        if end > stop:
            break
        found.append(at)
        at = end
    return Walk(np.array(found, dtype=np.int64), at)


class _Lanes:
    """Chains from many guesses at once.

    Attributes:
        starts: Where each lane began, ascending; the first is not a guess.
        ends: Of each lane, the first offset at or behind the next lane's start, or where no
            record began.
        is_broken: Of each lane, whether no record begins at its end.
        last_joined: Of each lane, the last one of those that it leads to, each of which ends where
            the next begins.
    """

    def __init__(
        self, step: Step, guesses: Offsets, last: int, stop: int, record_bytes: int
    ) -> None:
        self.starts = guesses.tolist()
        self._ends = np.empty(len(guesses), dtype=np.int64)
        self._is_broken = np.zeros(len(guesses), dtype=bool)
        records = (stop - self.starts[0]) // record_bytes
        cells = int(records * _SPARE_ROOM) + 8 * len(guesses)
        lanes, at, bounds = np.arange(len(guesses)), guesses, np.append(guesses[1:], last + 1)
        tables = []
        while len(lanes):  # more than once only where some lanes are far longer than others
            table, lanes, at, bounds = self._fill(step, lanes, at, bounds, stop, cells)
            tables.append(table)
        of_lane, self._positions = _in_order(tables)
        counts = np.bincount(of_lane, minlength=len(guesses))
        self._limits = np.append(0, np.cumsum(counts)).tolist()
        is_joined = (self._ends[:-1] == guesses[1:]) & ~self._is_broken[:-1]
        lasts = np.append(np.flatnonzero(~is_joined), len(guesses) - 1)
        self.last_joined = np.repeat(lasts, np.diff(lasts, prepend=-1)).tolist()
        self.ends = self._ends.tolist()
        self.is_broken = self._is_broken.tolist()

    def _fill(
        self, step: Step, lanes: Offsets, at: Offsets, bounds: Offsets, stop: int, cells: int
    ) -> tuple[tuple[Offsets, Offsets], Offsets, Offsets, Offsets]:
        """Advance lanes until they are through or the room for what they find is taken."""
        room = cells // len(lanes)
        found = np.empty(len(lanes) * room, dtype=np.int64)
        counts = np.full(len(lanes), room)
        rows = np.arange(len(lanes))
        slots = rows * room
        for taken in range(room):
            found[slots] = at
            reached = step(at)
            is_going = reached < bounds
            if is_going.all():
                at = reached
                slots += 1
                continue
            is_through = ~is_going
            through, end = rows[is_through], reached[is_through]
            is_broken = end > stop
            self._ends[lanes[through]] = np.where(is_broken, at[is_through], end)
            self._is_broken[lanes[through]] = is_broken
            counts[through] = taken + 1 - is_broken
            rows, at, bounds = rows[is_going], reached[is_going], bounds[is_going]
            if not len(rows):
                break
            slots = slots[is_going] + 1
        is_found = np.arange(room) < counts[:, None]
        table = np.repeat(lanes, counts), found.reshape(-1, room)[is_found]
        return table, lanes[rows], at, bounds

    def positions(self, lane: int, last: int) -> Offsets:
        """Where the records of some lanes begin."""
        return self._positions[self._limits[lane] : self._limits[last + 1]]

    def find(self, at: int) -> tuple[int, int] | None:
        """The lane that found a record at an offset, and how many it had found before."""
        lane = bisect_right(self.starts, at) - 1
        positions = self.positions(lane, lane)
        index = int(np.searchsorted(positions, at))
        if index < len(positions) and positions[index] == at:
            return lane, index
        return None


def _in_order(tables: list[tuple[Offsets, Offsets]]) -> tuple[Offsets, Offsets]:
    """What lanes found, lane by lane, of what they found in turns."""
    if len(tables) == 1:
        return tables[0]
    of_lane = np.concatenate([lanes for lanes, _ in tables])
    order = np.argsort(of_lane.astype(np.uint16), kind="stable")
    return of_lane, np.concatenate([found for _, found in tables])[order]


def _guess(look: Step, start: int, last: int, stop: int, record_bytes: int) -> Offsets:
    """The chain's start, and in each of many blocks the first offset at which it looks as if
    records began.
    """
    width = max(2 * record_bytes, _LEAST_LOOK_BYTES)
    records = (stop - start) // record_bytes
    blocks = min(math.isqrt(records * _STEP_OFFSETS // width) + 1, _MOST_WALKERS)
    low = start + (np.arange(1, blocks) * (stop - start)) // blocks
    # Bytes that lead far away look like a record's length by chance.
    limits = np.minimum(low + 2 * (stop - start) // blocks, stop)
    found = [np.array([start])]
    for _ in range(_LOOKS):
        offsets = (low[:, None] + np.arange(width)).ravel()
        inside = np.flatnonzero(offsets <= last)
        at, most = offsets[inside], np.repeat(limits, width)[inside]
        for _ in range(_LOOKAHEAD_RECORDS):
            # Where the bytes end, a chain that arrives there has shown all that it can.
            reached = np.where(at <= last, look(np.minimum(at, last)), at)
            kept = reached <= most
            inside, at, most = inside[kept], reached[kept], most[kept]
        rows, where = np.unique(inside // width, return_index=True)
        found.append(offsets[inside[where]])
        rest = np.ones(len(low), dtype=bool)
        rest[rows] = False
        low, limits = low[rest] + width, limits[rest]
        width *= 4
    return np.unique(np.concatenate(found))


def _join(step_one: StepOne, last: int, stop: int, lanes: _Lanes) -> Walk:
    """Of the lanes, what the chain from the start arrives at; between them, single steps."""
    pieces: list[Offsets] = []
    at = lanes.starts[0]
    place: tuple[int, int] | None = (0, 0)
    while place is not None:
        lane, skipped = place
        joined = lanes.last_joined[lane]
        pieces.append(lanes.positions(lane, joined)[skipped:])
        at = lanes.ends[joined]
        if at > last or lanes.is_broken[joined]:
            break
        place = lanes.find(at)
        if place is None:
            singles = []
            while at <= last and place is None and (end := step_one(at)) <= stop:
                singles.append(at)
                at = end
                place = lanes.find(at)
            pieces.append(np.array(singles, dtype=np.int64))
    return Walk(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), at)
