"""Turns at writing: one thread at a time writes, and it writes for all that wait.

Whoever comes while nobody writes, writes. Whoever comes meanwhile waits in a queue; when the
writer is done, the first of the queue writes for the whole of it, and the others find their work
done. So concurrent appends share one write and one fsync, and no thread is kept for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_LEADING_SECONDS = 0.001
"""How long a thread goes on to write for others when its own work is done, once they wait: to hand
the turn over takes longer than a fast disk takes to sync."""


class Turn:
    """A piece of work that waits for its turn. Made for one use."""

    # Said by the class, for most turns are never waited for.
    gate: threading.Lock | None = None
    is_done = False
    is_first = False


T = TypeVar("T", bound=Turn)


class Turns(Generic[T]):
    """The queue.

    Args:
        serve: Does all the pieces of work that it is given, in order, and leaves in each what came
            of it. Never called by two threads at once. If it raises, which only an interrupt of
            the thread can have it do, each piece must have been told that it failed.
    """

    def __init__(self, serve: Callable[[Sequence[T]], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: list[T] = []

    def take(self, turn: T) -> None:
        """Return once the work is done, by this thread or by another one."""
        lock = self._lock
        lock.acquire()
        if self._is_taken:
            turn.gate = threading.Lock()
            turn.gate.acquire()
            self._waiting.append(turn)
            lock.release()
            self._wait(turn)
            if turn.is_done:
                return
            with lock:
                turns, self._waiting = self._waiting, []
        else:
            self._is_taken = True
            lock.release()
            turns = [turn]
        until = time.perf_counter() + _LEADING_SECONDS
        while turns:
            try:
                self._serve(turns)
            except BaseException:
                self._release(turns, turn)
                self._pass_on()
                raise
            self._release(turns, turn)
            turns = self._next(until)

    def _release(self, turns: Sequence[T], own: T) -> None:
        """Let those go whose work is done."""
        for each in turns:
            each.is_done = True
            if each is not own and each.gate is not None:
                each.gate.release()

    def _next(self, until: float) -> list[T]:
        """What to serve next; nothing if another thread does that, or there is nothing."""
        if time.perf_counter() > until:
            self._pass_on()
            return []
        with self._lock:
            turns, self._waiting = self._waiting, []
            self._is_taken = bool(turns)
        return turns

    def _wait(self, turn: T) -> None:
        """Wait until the work is done, or is first in the queue with nobody writing."""
        assert turn.gate is not None
        try:
            turn.gate.acquire()
        except BaseException:
            # Interrupted. Work that nobody has begun is taken back; else its end is waited for no
            # longer, and what becomes of it is not known to the caller.
            with self._lock:
                is_waiting = turn in self._waiting
                if is_waiting:
                    self._waiting.remove(turn)
            if is_waiting and turn.is_first:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._is_taken = False
                return
            first = self._waiting[0]
            first.is_first = True
        assert first.gate is not None
        first.gate.release()
