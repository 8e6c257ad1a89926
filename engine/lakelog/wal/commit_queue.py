"""A queue of writers: one thread leads and writes for all that wait.

A thread that comes while no thread writes becomes the writer. A thread that comes later waits in a
queue; when the writer is done, the first of the queue writes for the whole of it, and the others
find their work done. So concurrent appends share one write and one fsync, and no thread is kept for
it.

An interrupt (``KeyboardInterrupt``) may come at any place. The thread that gets it hands on what is
his, so that no process waits for ever; what is handed on can be handed on twice without harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from lakelog.errors import InvalidInputError

_LEADING_SECONDS = 0.001
"""How long a thread continues to write for others when its own work is done, once they wait: to
hand the turn over takes longer than a fast disk takes to sync."""


class Turn:
    """A piece of work that waits for its turn. Made for one use."""

    # Said by the class, for most turns are never waited for.
    gate: threading.Lock | None = None
    is_done = False
    thread = 0


T = TypeVar("T", bound=Turn)


class Turns(Generic[T]):
    """The queue."""

    def __init__(self, serve: Callable[[Sequence[T]], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._leader: T | None = None  # whose thread writes, or is to
        self._waiting: list[T] = []
        self._serving: list[T] = []  # the leader's

    def take(self, turn: T) -> None:
        """Return once the work is done, by this thread or by another one."""
        turn.thread = threading.get_ident()
        leader = self._leader
        if leader is not None and leader.thread == turn.thread:
            raise InvalidInputError(
                "this thread already uses the log",
                hint="in a signal handler only set a flag, and check it where the log is used",
            )
        try:
            with self._lock:
                if self._leader is None:
                    self._leader = turn
                    self._serving = [turn]
                else:
                    turn.gate = threading.Lock()
                    turn.gate.acquire()
                    self._waiting.append(turn)
            if turn.gate is None or not self._wait(turn, turn.gate):
                self._lead(turn)
        except BaseException:
            self._give_up(turn)
            raise

    def _wait(self, turn: T, gate: threading.Lock) -> bool:
        """Wait until the work is done, or this thread is to lead; whether it is done."""
        while True:
            gate.acquire()
            if turn.is_done:
                return True
            with self._lock:
                if self._leader is turn:
                    self._serving, self._waiting = self._waiting, []
                    return False

    def _lead(self, turn: T) -> None:
        """Serve all who wait, until no process does or another thread is to."""
        until = time.perf_counter() + _LEADING_SECONDS
        while self._leader is turn:
            self._serve(self._serving)
            self._let_go()
            if time.perf_counter() > until:
                self._pass_on(turn)
                return
            with self._lock:
                self._serving, self._waiting = self._waiting, []
                if not self._serving:
                    self._leader = None

    def _let_go(self) -> None:
        """Let those go whose work is done."""
        for each in self._serving:
            each.is_done = True
            _open(each)

    def _pass_on(self, turn: T) -> None:
        """Let the first who waits lead, if it is still this thread that does."""
        with self._lock:
            if self._leader is turn:
                self._serving = []
                if self._waiting:
                    _open(self._waiting[0])  # it wakes, and waits for the lock that is held here
                self._leader = self._waiting[0] if self._waiting else None

    def _give_up(self, turn: T) -> None:
        """Interrupted. Work that no process has begun is taken back; of work that another process
        has, the end is waited for no longer.
        """
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            is_leader = self._leader is turn
        if is_leader:
            self._let_go()
            self._pass_on(turn)


def _open(turn: Turn) -> None:
    if turn.gate is not None and turn.gate.locked():
        turn.gate.release()
