"""Where the records of a chain begin, without a walk of one record at a time.

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
"""Of each offset, where a record that begins there ends, or -1 where none does."""

StepOne = Callable[[int], int]
"""`Step` for one offset."""

_WALK_BY_ONE_BYTES = 1 << 14  # in fewer bytes a plain walk is over before a guess is made
_WALK_BY_ONE_RECORD_BYTES = 384  # so it is where records are longer: few of them take long to find
_SAMPLE_RECORDS = 64
_MOST_WALKERS = 1 << 12
_LOOKAHEAD_RECORDS = 4  # a guess must begin so many records in a row
_LEAST_LOOK_BYTES = 64
_LOOKS = 2
# How many offsets can be looked at in the time that one step of all walkers takes beside what it
# takes for each of them; so more walkers save steps and cost guesses.
_STEP_OFFSETS = 380


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

    Args:
        positions: int64, where a record may begin, strictly ascending.
        ends: int64, where each of them would end; behind its position.
        start: Where the chain begins.

    Returns:
        int64, indexes into ``positions``, ascending: the first is at ``start``, each other one
        where the one before it ends, the last ends where no candidate is. Empty where no
        candidate is at ``start``. Runs in O(n), and in O(m log m) for m candidates that are
        followed by one at another place than their end.

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


def walk(step: Step, step_one: StepOne, start: int, stop: int) -> Walk:
    r"""Follow a chain of records from an offset.

    Args:
        step: Of each offset (int64, any, from ``start`` to ``stop``), where a record that begins
            there ends: behind it, and at ``stop`` at most; or -1. It decides by the bytes alone.
        step_one: The same of one offset; for short chains, and where guesses fail.
        start: Where the first record begins.
        stop: Where the bytes end.

    Returns:
        The records that ``step_one`` gives when it is called with each end in turn, from
        ``start`` until it gives -1 or ``stop``.

    Example:
        >>> data = np.frombuffer(b"\x02a\x03bc\x01\x09", np.uint8)
        >>> def step_one(at: int) -> int:
        ...     return -1 if at + data[at] > 7 else int(at + data[at])
        >>> walk(np.vectorize(step_one), step_one, 0, 7)
        Walk(positions=array([0, 2, 5]), end=6)
    """
    if stop - start < _WALK_BY_ONE_BYTES:
        return _plain(step_one, start, stop)
    sample = _plain(step_one, start, stop, _SAMPLE_RECORDS)
    record_bytes = (sample.end - start) // _SAMPLE_RECORDS + 1
    if len(sample.positions) < _SAMPLE_RECORDS:
        return sample
    if record_bytes > _WALK_BY_ONE_RECORD_BYTES:
        return _plain(step_one, start, stop)
    return _join(step_one, start, stop, _Lanes(step, start, stop, record_bytes))


def _plain(step_one: StepOne, start: int, stop: int, most: int | None = None) -> Walk:
    found: list[int] = []
    at = start
    while at < stop and len(found) != most:
        end = step_one(at)
        if end < 0:
            break
        found.append(at)
        at = end
    return Walk(np.array(found, dtype=np.int64), at)


class _Lanes:
    """Chains from many guesses at once.

    Attributes:
        starts: Where each lane began, ascending; the first is no guess.
        ends: Of each lane, the first offset at or behind the next lane's start, or where no
            record began.
        is_broken: Of each lane, whether no record begins at its end.
        last_joined: Of each lane, the last one of those that it leads to, each of which ends where
            the next begins.
    """

    def __init__(self, step: Step, start: int, stop: int, record_bytes: int) -> None:
        guesses = _guess(step, start, stop, record_bytes)
        self.starts = guesses.tolist()
        self._walk(step, guesses, np.append(guesses[1:], stop))

    def _walk(self, step: Step, at: Offsets, bounds: Offsets) -> None:
        lanes = np.arange(len(at))
        ends = np.empty(len(at), dtype=np.int64)
        is_broken = np.zeros(len(at), dtype=bool)
        taken_lanes, taken_at = [], []
        while len(at):
            reached = step(at)
            if reached.min() < 0:
                broken = reached < 0
                ends[lanes[broken]] = at[broken]
                is_broken[lanes[broken]] = True
                kept = ~broken
                at, reached, lanes, bounds = at[kept], reached[kept], lanes[kept], bounds[kept]
            taken_lanes.append(lanes)
            taken_at.append(at)
            is_going = reached < bounds
            at = reached
            if not is_going.all():
                ends[lanes[~is_going]] = reached[~is_going]
                at, lanes, bounds = at[is_going], lanes[is_going], bounds[is_going]
        of_lane = np.concatenate(taken_lanes).astype(np.uint16)
        self._positions = np.concatenate(taken_at)[np.argsort(of_lane, kind="stable")]
        self._limits = np.append(
            0, np.cumsum(np.bincount(of_lane, minlength=len(self.starts)))
        ).tolist()
        is_joined = (ends[:-1] == self.starts[1:]) & ~is_broken[:-1]
        lasts = np.append(np.flatnonzero(~is_joined), len(ends) - 1)
        self.last_joined = np.repeat(lasts, np.diff(lasts, prepend=-1)).tolist()
        self.ends = ends.tolist()
        self.is_broken = is_broken.tolist()

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


def _guess(step: Step, start: int, stop: int, record_bytes: int) -> Offsets:
    """The chain's start, and in each of many blocks the first offset at which it looks as if
    records began.

    Args:
        step: As in `walk`.
        start: As in `walk`.
        stop: As in `walk`.
        record_bytes: What a record takes, about.
    """
    width = max(2 * record_bytes, _LEAST_LOOK_BYTES)
    records = (stop - start) // record_bytes
    blocks = min(math.isqrt(records * _STEP_OFFSETS // width) + 1, _MOST_WALKERS)
    low = start + (np.arange(1, blocks) * (stop - start)) // blocks
    found = [np.array([start])]
    for _ in range(_LOOKS):
        offsets = (low[:, None] + np.arange(width)).ravel()
        inside = np.flatnonzero(offsets < stop)
        at = offsets[inside]
        for _ in range(_LOOKAHEAD_RECORDS):
            # Where the bytes end, a chain that arrives there has shown all that it can.
            reached = np.where(at < stop, step(np.minimum(at, stop - 1)), stop)
            kept = reached >= 0
            inside, at = inside[kept], reached[kept]
        rows, where = np.unique(inside // width, return_index=True)
        found.append(offsets[inside[where]])
        rest = np.ones(len(low), dtype=bool)
        rest[rows] = False
        low = low[rest] + width
        width *= 4
    return np.unique(np.concatenate(found))


def _join(step_one: StepOne, start: int, stop: int, lanes: _Lanes) -> Walk:
    """Of the lanes, what the chain from the start arrives at; between them, single steps."""
    pieces: list[Offsets] = []
    at = start
    place: tuple[int, int] | None = (0, 0)
    while place is not None:
        lane, skipped = place
        last = lanes.last_joined[lane]
        pieces.append(lanes.positions(lane, last)[skipped:])
        at = lanes.ends[last]
        if at >= stop or lanes.is_broken[last]:
            break
        place = lanes.find(at)
        if place is None:
            singles = []
            while at < stop and place is None and (end := step_one(at)) >= 0:
                singles.append(at)
                at = end
                place = lanes.find(at)
            pieces.append(np.array(singles, dtype=np.int64))
    return Walk(np.concatenate(pieces), at)
