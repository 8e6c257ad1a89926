"""The queue of group commit: each request is served once, in order, by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.errors import InvalidInputError
from lakelog.wal import group_commit
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
        self.finished: list[int] = []  # threads of `run`
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
            request = Work((thread, n))
            bench.requests.take(request)
            assert request.by is not None
            done.append(request)
        bench.finished.append(thread)

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


def test_threads_that_come_again_share_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    serve, queue = bench.serve, bench.requests
    now_s = 0.0

    def is_any_running() -> bool:
        """Whether a thread neither waits, nor is served, nor is finished."""
        return len(bench.finished) + len(queue._waiting) + len(queue._serving) < 8

    def sleep(seconds: float) -> None:
        nonlocal now_s
        if is_any_running():
            time.sleep(0.0001)  # the clock stops, so a busy machine makes no difference
        else:
            now_s += seconds

    def slowly(works: Sequence[Work]) -> None:
        nonlocal now_s
        while is_any_running():
            time.sleep(0.0001)
        now_s += 0.003
        serve(works)

    clock = SimpleNamespace(perf_counter=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(group_commit, "time", clock)
    bench.serving_as = slowly
    run(bench, 8, 20)
    first, *middle = map(len, bench.groups[:20])
    assert middle == [8] * 19
    # Without waiting for it, the first thread that returns has every second group for itself: 40.
    assert [len(group) for group in bench.groups[20:]] == [8 - first] * (first < 8)


def test_waiting_thread_is_served_or_becomes_the_leader() -> None:
    bench = Bench(0.002)
    done = run(bench, 6, 10)
    # No thread leads forever: each request here takes longer than the limit of a millisecond.
    assert len({work.by for work in done}) > 1


def test_thread_that_writes_does_not_wait_for_its_own_request() -> None:
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


def test_interrupted_writer_does_not_block_the_others() -> None:
    bench = Bench(0.01)
    serve = bench.serve
    others = [threading.Thread(target=bench.requests.take, args=(Work(n),)) for n in range(3)]

    def interrupted(works: Sequence[Work]) -> None:
        if works[0].name == "first":
            for thread in others:  # they wait while the first one is served
                thread.start()
        serve(works)
        if works[0].name == "first":
            raise KeyboardInterrupt

    bench.serving_as = interrupted
    with pytest.raises(KeyboardInterrupt):
        bench.requests.take(Work("first"))
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


def test_interrupted_waiter_leaves_no_gap() -> None:
    for at in range(1, 10_000):
        bench = Bench()
        impatient = Impatient(bench, at)
        after = threading.Thread(target=bench.requests.take, args=(Work("after"),), daemon=True)
        if not serve_while_waiting(bench, impatient, after):
            return
    pytest.fail("no interrupt was too late")


def serve_while_waiting(bench: Bench, impatient: Impatient, after: threading.Thread) -> bool:
    """Serve while both wait; whether there was an interrupt."""
    serve = bench.serve

    def slowly(works: Sequence[Work]) -> None:
        if works[0].name == "first":
            impatient.start()
            after.start()
            time.sleep(0.002)  # longer than any thread leads, and time for an interrupt
        serve(works)

    bench.serving_as = slowly
    bench.requests.take(Work("first"))
    for thread in (impatient, after):
        thread.join(120)
        assert not thread.is_alive(), f"waits forever, interrupted at {impatient.interrupts.at}"
    bench.requests.take(Work("last"))
    served = [name for group in bench.groups for name in group]
    assert {"first", "last"} <= set(served)
    assert len(served) == len(set(served))
    if not impatient.interrupts.has_acted:
        assert sorted(served) == ["after", "first", "impatient", "last"]
    return impatient.interrupts.has_acted
