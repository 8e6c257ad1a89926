"""Turns at writing: everybody is served once, in order, by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lakelog.wal.turns import Turn, Turns


class Work(Turn):
    def __init__(self, name: Any) -> None:
        self.name = name
        self.by: int | None = None


class Bench:
    """Serves slowly, and notes in which groups."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.groups: list[list[Any]] = []
        self.seconds = seconds
        self.serving = 0
        self.turns: Turns[Work] = Turns(self.serve)

    def serve(self, works: Sequence[Work]) -> None:
        self.serving += 1
        assert self.serving == 1
        time.sleep(self.seconds)
        self.groups.append([work.name for work in works])
        for work in works:
            assert work.by is None
            work.by = threading.get_ident()
        self.serving -= 1


def run(bench: Bench, threads: int, each: int) -> list[Work]:
    done: list[Work] = []

    def work(thread: int) -> None:
        for n in range(each):
            mine = Work((thread, n))
            bench.turns.take(mine)
            assert mine.by is not None
            done.append(mine)

    started = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return done


def test_one_thread_is_served_at_once() -> None:
    bench = Bench()
    run(bench, 1, 5)
    assert bench.groups == [[(0, n)] for n in range(5)]


@pytest.mark.parametrize("seconds", [0.0, 0.0003, 0.003])
def test_all_are_served_once_and_share(seconds: float) -> None:
    bench = Bench(seconds)
    done = run(bench, 8, 30)
    served = [name for group in bench.groups for name in group]
    assert len(done) == len(served) == len(set(served)) == 240
    for thread in range(8):
        assert [n for at, n in served if at == thread] == list(range(30))
    if seconds:
        assert len(bench.groups) < 160


def test_who_waits_is_served_by_another_thread_or_leads() -> None:
    bench = Bench(0.002)
    done = run(bench, 6, 10)
    # Nobody leads for ever: a millisecond is over with each turn here.
    assert len({work.by for work in done}) > 1


def test_an_interrupt_of_who_writes_lets_the_others_go_on() -> None:
    bench = Bench(0.01)
    serve = bench.serve

    def interrupted(works: Sequence[Work]) -> None:
        serve(works)
        if works[0].name == "first":
            raise KeyboardInterrupt

    bench.turns._serve = interrupted
    others = [threading.Thread(target=bench.turns.take, args=(Work(n),)) for n in range(3)]

    def begin() -> None:
        for thread in others:
            thread.start()

    starter = threading.Timer(0.003, begin)
    starter.start()
    with pytest.raises(KeyboardInterrupt):
        bench.turns.take(Work("first"))
    starter.join()
    for thread in others:
        thread.join(10)
        assert not thread.is_alive()
    bench.turns.take(Work("last"))
    assert sorted(map(str, (n for group in bench.groups for n in group))) == [
        *("0", "1", "2", "first", "last")
    ]


class Interrupted(threading.Thread):
    """Waits for its turn, and is interrupted when it waits, or when the turn is given to it."""

    def __init__(self, bench: Bench, work: Work, when: str) -> None:
        super().__init__()
        self.bench = bench
        self.work = work
        self.when = when
        self.waits = threading.Event()
        self.caught = False

    def run(self) -> None:
        wait = self.bench.turns._wait
        thread = self

        class Gate:
            def __init__(self, gate: Any) -> None:
                self.gate = gate

            def acquire(self) -> None:
                thread.waits.set()
                if thread.when == "its turn":
                    self.gate.acquire()
                raise KeyboardInterrupt

            def release(self) -> None:
                self.gate.release()

        def waiting(turn: Work) -> None:
            turn.gate = Gate(turn.gate)  # type: ignore[assignment]
            wait(turn)

        self.bench.turns._wait = waiting  # type: ignore[method-assign]
        try:
            self.bench.turns.take(self.work)
        except KeyboardInterrupt:
            self.caught = True


@pytest.mark.parametrize("when", ["waiting", "its turn"])
def test_an_interrupt_of_who_waits_takes_its_work_back_and_leaves_no_gap(when: str) -> None:
    bench = Bench(0.02)
    first = threading.Thread(target=bench.turns.take, args=(Work("first"),))
    first.start()
    while not bench.turns._is_taken:
        time.sleep(0.0005)
    wait = bench.turns._wait
    impatient = Interrupted(bench, Work("impatient"), when)
    impatient.start()
    assert impatient.waits.wait(10)
    bench.turns._wait = wait  # type: ignore[method-assign]
    bench.turns.take(Work("after"))
    impatient.join(10)
    first.join(10)
    assert impatient.caught
    served = [name for group in bench.groups for name in group]
    assert served.count("impatient") in ({0} if when == "waiting" else {0, 1})
    assert served[0] == "first"
    assert "after" in served
    bench.turns.take(Work("last"))
