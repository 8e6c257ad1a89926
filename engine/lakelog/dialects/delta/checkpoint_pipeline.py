"""Encodes the files of a checkpoint in parallel with reading, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_WORKERS = 2
_LEAST_IN_FLIGHT = 2
"""Pieces that are being worked on while the caller makes the next, however large they are."""


class Lanes:
    """Pieces of work in lanes: each is prepared whenever there is a thread for it, and done after
    all earlier ones of its lane. What one raises, all later ones of its lane raise, and `put` and
    `wait` hand it on.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        # Two pools, for a file that is busy with a row group must find the next one prepared.
        self._preparing = ThreadPoolExecutor(_WORKERS, thread_name_prefix="lakelog-prepare")
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="lakelog-checkpoint")
        self._last: dict[object, Future[object]] = {}
        self._running: deque[tuple[Future[object], int]] = deque()

    def put(
        self,
        lane: object,
        rows: int,
        prepare: Callable[[], _T],
        carry_out: Callable[[_T], object],
    ) -> None:
        """Add a piece; waits while enough are under way."""
        while len(self._running) >= _LEAST_IN_FLIGHT and self._rows() >= self._most_rows:
            self._running.popleft()[0].result()
        earlier = self._last.get(lane)
        prepared = self._preparing.submit(prepare)
        piece: Future[object] = self._pool.submit(_run, earlier, prepared, carry_out)
        self._last[lane] = piece
        self._running.append((piece, rows))

    def _rows(self) -> int:
        return sum(rows for _, rows in self._running)

    def wait(self) -> None:
        """Wait for every piece."""
        while self._running:
            self._running.popleft()[0].result()

    def stop(self) -> None:
        """Wait for what is running, drop the rest, and raise nothing of theirs."""
        self._preparing.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._running.clear()


def _run(
    earlier: Future[object] | None, prepared: Future[_T], carry_out: Callable[[_T], object]
) -> None:
    # Pieces start in the order in which they came, so an earlier one always has a thread.
    if earlier is not None:
        earlier.result()
    carry_out(prepared.result())
