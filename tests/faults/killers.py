"""Processes that run killable work: one order per line in, one exit code per line out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def killer_process(killer: Path) -> Iterator[Callable[[dict[str, Any]], IO[str]]]:
    """Yields a function that sends an order to a process, and the stream of its results."""
    process = subprocess.Popen(
        [sys.executable, str(killer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    orders, answers = process.stdin, process.stdout

    def send(order: dict[str, Any]) -> IO[str]:
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        return answers

    yield send
    orders.close()
    process.wait(120)
    answers.close()


@contextmanager
def started(killer: Path) -> Iterator[Callable[[dict[str, Any]], int]]:
    """Yields a function that runs one order and returns its exit code, negative after a signal."""
    with killer_process(killer) as send:

        def run(order: dict[str, Any]) -> int:
            answer = send(order).readline()
            assert answer, "the killer process has ended"
            return int(answer)

        yield run


@contextmanager
def killed(killer: Path) -> Iterator[Callable[[dict[str, Any]], list[list[str]]]]:
    """Yields a function that runs one order until its process is killed; it returns the words of
    each event of the process.
    """
    with killer_process(killer) as send:

        def run(order: dict[str, Any]) -> list[list[str]]:
            events = []
            for line in send(order):
                events.append(line.split())
                if events[-1][0] == "ended":
                    assert events[-1][1] == str(-signal.SIGKILL)
                    return events
            raise AssertionError("the killer process has ended")

        yield run


def write_event(*words: object) -> None:
    """Write an event to standard output, complete or not at all."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def kill_each(write: Callable[[dict[str, Any], int], object]) -> None:
    """The main function of a killer whose work never ends: for each order, fork, run `write` with
    the order and a pipe to write to when it has opened, and kill the fork after ``after_s``.
    """
    for line in sys.stdin:
        order = json.loads(line)
        is_open, opened = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write(order, opened)
            finally:
                os._exit(1)
        os.close(opened)
        if order.get("waits", True):
            os.read(is_open, 1)
        time.sleep(order["after_s"])
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(is_open)
        write_event("ended", code)
