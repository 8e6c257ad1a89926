"""`Projections`: file columns of checkpoints that were asked for twice, kept within a bound.

Most readers ask once, and keep nothing that way. A process that asks for the same columns of the
same checkpoint again, because a commit has come on top of it or because another version depends on
it, finds them from the third time on: a million paths and sizes then take a third of the time.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import polars as pl

Key = tuple[weakref.ref[object], frozenset[str], tuple[str, ...]]


class Projections:
    """Kept file columns of checkpoints. Safe under threads."""

    def __init__(self, max_bytes: int, count: Callable[[bool], None]) -> None:
        self._max_bytes = max_bytes
        self._count = count
        self._lock = threading.Lock()
        self._asked: OrderedDict[Key, None] = OrderedDict()
        self._kept: OrderedDict[Key, tuple[list[pl.DataFrame], int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Bytes kept."""
        with self._lock:
            self._purge()
            return sum(size for _, size in self._kept.values())

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()
            self._asked.clear()

    def iter_files(
        self,
        owner: object,
        columns: Sequence[str],
        kinds: tuple[str, ...],
        read: Callable[[], Iterable[pl.DataFrame]],
    ) -> Iterator[pl.DataFrame]:
        """The frames that `read` gives, or those that it gave before.

        Memory: `max_bytes`, and what `read` needs.
        """
        key = (weakref.ref(owner), frozenset(columns), kinds)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            wanted = key in self._asked
            self._asked[key] = None
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        self._count(found is not None)
        if found is not None:
            yield from found[0]
            return
        frames: list[pl.DataFrame] | None = [] if wanted else None
        size = 0
        for frame in read():
            if frames is not None:
                frames.append(frame)
                size += int(frame.estimated_size())
                if size > self._max_bytes:
                    frames = None
            yield frame
        if frames is not None:
            self._keep(key, frames, size)

    def _keep(self, key: Key, frames: list[pl.DataFrame], size: int) -> None:
        with self._lock:
            self._kept[key] = (frames, size)
            self._purge()
            total = sum(kept for _, kept in self._kept.values())
            while total > self._max_bytes:
                total -= self._kept.popitem(last=False)[1][1]

    def _purge(self) -> None:
        """Let go of what belonged to a checkpoint that no process depends on any more."""
        for key in [key for key in self._kept if key[0]() is None]:
            del self._kept[key]


_REMEMBERED = 256
