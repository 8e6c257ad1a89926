"""CommitQueue of writing: each caller is served once, in order, by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lakelog.errors import InvalidInputError
from lakelog.wal.group_commit import CommitQueue, QueuedRequest
from tests.wal.interrupts import Interrupts


class Work(QueuedRequest):
    def __init__(self, name: Any) -> None:
        self.name = name
        self.by: int | None = None


class Bench:
    """Serves slowly, and records the groups."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.groups: list[list[Any]] = []
        self.seconds = seconds
        self.serving = 0
        self.serving_as = self.serve
        self.requests: CommitQueue[Work] = CommitQueue(self.served)

    def served(self, works: Sequence[Work]) -> None:
        self.serving_as(works)

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
    barrier = threading.Barrier(threads)

    def work(thread: int) -> None:
        barrier.wait()
        for n in range(each):
            mine = Work((thread, n))
            bench.requests.take(mine)
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
    # Nobody leads for ever: a millisecond is over with each request here.
    assert len({work.by for work in done}) > 1


def test_who_writes_does_not_wait_for_himself() -> None:
    """For example a signal handler that closes the log while it is written."""
    bench = Bench()
    serve = bench.serve

    def again(works: Sequence[Work]) -> None:
        with pytest.raises(InvalidInputError, match="already uses"):
            bench.requests.take(Work("in between"))
        serve(works)

    bench.serving_as = again
    bench.requests.take(Work("first"))
    bench.serving_as = serve
    bench.requests.take(Work("last"))
    assert bench.groups == [["first"], ["last"]]


def test_an_interrupt_of_who_writes_lets_the_others_go_on() -> None:
    bench = Bench(0.01)
    serve = bench.serve

    def interrupted(works: Sequence[Work]) -> None:
        serve(works)
        if works[0].name == "first":
            raise KeyboardInterrupt

    bench.serving_as = interrupted
    others = [threading.Thread(target=bench.requests.take, args=(Work(n),)) for n in range(3)]

    def begin() -> None:
        for thread in others:
            thread.start()

    starter = threading.Timer(0.003, begin)
    starter.start()
    with pytest.raises(KeyboardInterrupt):
        bench.requests.take(Work("first"))
    starter.join()
    for thread in others:
        thread.join(120)
        assert not thread.is_alive()
    bench.requests.take(Work("last"))
    assert sorted(map(str, (n for group in bench.groups for n in group))) == [
        *("0", "1", "2", "first", "last")
    ]


class Impatient(threading.Thread):
    """Waits for its request, or has it, and is interrupted at the n-th place of that."""

    def __init__(self, bench: Bench, at: int) -> None:
        super().__init__(daemon=True)
        self.bench = bench
        self.interrupts = Interrupts(at)

    def run(self) -> None:
        with self.interrupts:
            self.bench.requests.take(Work("impatient"))


def test_an_interrupt_of_who_waits_leaves_no_gap() -> None:
    for at in range(1, 10_000):
        bench = Bench()
        impatient = Impatient(bench, at)
        after = threading.Thread(target=bench.requests.take, args=(Work("after"),), daemon=True)
        if not served_beside(bench, impatient, after):
            return
    pytest.fail("it never ends")


def served_beside(bench: Bench, impatient: Impatient, after: threading.Thread) -> bool:
    """Serve while both wait; whether there was an interrupt."""
    serve = bench.serve

    def slowly(works: Sequence[Work]) -> None:
        if works[0].name == "first":
            impatient.start()
            after.start()
            time.sleep(0.002)  # longer than anybody leads, and time to be interrupted in
        serve(works)

    bench.serving_as = slowly
    bench.requests.take(Work("first"))
    for thread in (impatient, after):
        thread.join(120)
        assert not thread.is_alive(), f"waits for ever, interrupted at {impatient.interrupts.at}"
    bench.requests.take(Work("last"))
    served = [name for group in bench.groups for name in group]
    assert {"first", "last"} <= set(served)
    assert len(served) == len(set(served))
    if not impatient.interrupts.has_acted:
        assert sorted(served) == ["after", "first", "impatient", "last"]
    return impatient.interrupts.has_acted
