"""Encoding a checkpoint's files beside the reading of its rows, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_WORKERS = 2
_IN_FLIGHT = 2
"""Pieces that are being worked on while the caller makes the next."""


class Lanes:
    """Pieces of work in lanes: each is prepared whenever there is a thread for it, and done after
    all earlier ones of its lane. What one raises, all later ones of its lane raise, and `put` and
    `wait` hand it on.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="lakelog-checkpoint")
        self._last: dict[object, Future[object]] = {}
        self._running: deque[Future[object]] = deque()

    def put(
        self, lane: object, prepare: Callable[[], _T], carry_out: Callable[[_T], object]
    ) -> None:
        """Add a piece; waits while more than two are under way.

        Args:
            lane: What the piece belongs to; compared by identity or equality.
            prepare: Work that depends on no other piece.
            carry_out: What is done with its result, in order.
        """
        while len(self._running) >= _IN_FLIGHT:
            self._running.popleft().result()
        earlier = self._last.get(lane)
        piece: Future[object] = self._pool.submit(_run, earlier, prepare, carry_out)
        self._last[lane] = piece
        self._running.append(piece)

    def wait(self) -> None:
        """Wait for every piece."""
        while self._running:
            self._running.popleft().result()

    def stop(self) -> None:
        """Wait for what is running, drop the rest, and raise nothing of theirs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._running.clear()


def _run(
    earlier: Future[object] | None, prepare: Callable[[], _T], carry_out: Callable[[_T], object]
) -> None:
    prepared = prepare()
    # Pieces start in the order in which they came, so an earlier one always has a thread.
    if earlier is not None:
        earlier.result()
    carry_out(prepared)
