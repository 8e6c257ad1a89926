"""Threads at the end of a process: no new ones can be started, and Polars may still read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import threads


@pytest.mark.parametrize("configuration", [{}, {"delta.checkpointPolicy": "v2"}])
def test_a_checkpoint_is_written_after_the_main_thread_has_ended_on_python_3_12(
    configuration: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lakelog.create(
        tmp_path / "t", {"id": pl.Int64}, configuration=configuration, upkeep=False
    )
    for number in range(12):
        table.append(pl.DataFrame({"id": [number]}))

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as shutdown:
        shutdown.setattr(threading.Thread, "start", refused)
        shutdown.setattr(sys, "version_info", (3, 12, 1))
        shutdown.setattr(threads, "ENDING", threading.Event())
        with pytest.raises(RuntimeError, match="new thread"), threads.Pool(1) as pool:
            pool.submit(int)
        threads.ENDING.set()
        reopened = lakelog.open(tmp_path / "t", upkeep=False)
        report = reopened.checkpoint()
        assert report.verified
        assert reopened.snapshot().num_files() == 12
        with threads.Pool(1) as pool, pytest.raises(ValueError, match="invalid literal"):
            pool.submit(int, "x").result()
    assert lakelog.open(tmp_path / "t").verify().is_proved


def test_leaving_a_pool_waits_for_a_call_if_starting_its_thread_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, begun = threading.Thread.start, threading.Event()
    done: list[int] = []

    def call() -> None:
        begun.set()
        time.sleep(0.2)
        done.append(1)

    def interrupted(self: threading.Thread) -> None:
        start(self)
        begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), threads.Pool(1) as pool:
        pool.submit(call)
    assert done == [1]


def test_calls_that_have_not_begun_are_cancelled_if_the_block_of_a_pool_fails() -> None:
    begun, ended = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        ended.wait(60)

    with contextlib.suppress(ZeroDivisionError), threads.Pool(1) as pool:
        pool.submit(hang)
        begun.wait(60)
        waiting = pool.submit(int)
        waiting.add_done_callback(lambda _: ended.set())
        raise ZeroDivisionError
    assert waiting.cancelled()


def test_daemon_pool_calls_in_its_threads_and_skips_cancelled_calls() -> None:
    ended, begun = threading.Event(), threading.Event()
    calls: list[int] = []

    def hang() -> None:
        begun.set()
        ended.wait()

    with threads.DaemonPool(1, "lakelog-test") as pool:
        first = pool.submit(hang)
        begun.wait()
        cancelled = pool.submit(calls.append, 1)
        last = pool.submit(int, "x")
        assert cancelled.cancel()
    assert not first.done()
    ended.set()
    with pytest.raises(ValueError, match="invalid literal"):
        last.result()
    assert calls == []


def test_the_flag_is_set_when_the_main_thread_has_ended() -> None:
    assert not threads.ENDING.is_set()
    assert threads.can_start()


def test_a_thread_reads_a_table_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    for number in range(3):
        lakelog.write(tmp_path / "t", pl.DataFrame({"id": [number]}))
    script = """
import sys, threading, time
import lakelog
from lakelog import threads

def late():
    threads.ENDING.wait(60)
    time.sleep(0.1)
    with threads.Pool(2) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    table = lakelog.open(sys.argv[1], upkeep=False)
    table.checkpoint()
    print(sorted(table.to_polars()["id"]))

threading.Thread(target=late).start()
"""
    done = _run(script, tmp_path / "t")
    assert done.stdout == "[0, 1, 2]\n", done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "print(rows.filter(pl.col('id') % 7 == 3).head(3).collect().height)",
        "for batch in rows.collect_batches(): print(3); break",
    ],
    ids=["head", "first batch"],
)
def test_a_process_ends_normally_while_polars_still_reads(script: str, tmp_path: Path) -> None:
    ids = pl.int_range(1_000_000, eager=True).alias("id")
    lakelog.write(tmp_path / "t", ids.to_frame().with_columns(text=ids.cast(pl.String)))
    start = """
import sys
import lakelog
import polars as pl
rows = lakelog.open(sys.argv[1]).scan()
"""
    done = _run(start + script, tmp_path / "t")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_source_that_the_exit_of_the_process_ends_raises() -> None:
    values = threads.read_by_polars(iter([1, 2]))
    assert next(values) == 1
    threads._end()
    with pytest.raises(CancelledError):
        next(values)
    assert list(threads.read_by_polars(iter([1, 2]))) == [1, 2]  # of a later function at exit


def test_a_source_that_begins_while_the_exit_of_the_process_waits_raises() -> None:
    begun, late = threading.Event(), list[int]()

    def slow() -> Iterator[int]:
        begun.set()
        time.sleep(0.3)
        with pytest.raises(CancelledError):
            late.extend(threads.read_by_polars(iter([1, 2])))
        yield 3

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: next(threads.read_by_polars(slow())))
        begun.wait(60)
        threads._end()
        assert first.done()
        assert (first.result(), late) == (3, [])


def test_the_exit_of_the_process_does_not_wait_for_sources_that_were_read_to_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_SOURCE_QUIET_S", 60)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    assert list(threads.read_by_polars(iter([1, 2]))) == [1, 2]
    begin_s = time.monotonic()
    threads._end()
    assert time.monotonic() - begin_s < threads._SOURCE_WAIT_S / 2


def test_interrupt_while_the_exit_of_the_process_waits_prints_nothing(tmp_path: Path) -> None:
    script = """
import os, signal, threading, time
from lakelog import threads

def slow():
    time.sleep(60)
    yield 1

def interrupt():
    threads.ENDING.wait()
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

for target in (lambda: next(threads.read_by_polars(slow())), interrupt):
    threading.Thread(target=target, daemon=True).start()
"""
    done = _run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def _run(script: str, table: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(table)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_interrupt_when_a_row_group_was_read_is_raised_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lakelog.write(tmp_path / "t", pl.DataFrame({"id": [1, 2]}))
    assert table.version == 0
    lakelog.open(tmp_path / "t", upkeep=False).checkpoint()
    set_result = Future.set_result

    def interrupted(self: Future[object], result: object) -> None:
        set_result(self, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "set_result", interrupted)
    files = lakelog.open(tmp_path / "t", upkeep=False).snapshot().files()
    with pytest.raises(KeyboardInterrupt):
        files.collect()


def test_interrupt_after_the_main_thread_has_ended_is_raised_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_result = Future.set_result

    def interrupted(self: Future[object], result: object) -> None:
        set_result(self, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "ENDING", threading.Event())
    threads.ENDING.set()
    monkeypatch.setattr(Future, "set_result", interrupted)
    with threads.Pool(1) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(int)
