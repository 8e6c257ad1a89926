"""Scheduled checkpoints: when they are due, one at a time, and without blocking a commit."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.checkpoint.schedule import (
    CLEANUP_PAUSE_S,
    Lag,
    Scheduler,
    Stopped,
    is_due,
    log_lag,
    start_daemon,
)
from lakelog.dialects import delta, indextables
from lakelog.dialects.base import Dialect
from lakelog.dialects.registry import named
from lakelog.errors import InvalidInputError, InvalidPropertyError, LakelogWarning, UnavailableError
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.transaction.runtime import Committed
from tests.budget import share_of
from tests.transaction.tables import append, location, new_table

DIALECTS: dict[str, Dialect] = {"delta": delta.DIALECT, "indextables": indextables.DIALECT}
NOTHING = Lag()


def options(**settings_: Any) -> CheckpointOptions:
    return CheckpointOptions(**settings_)


@settings(max_examples=share_of(50))
@given(st.integers(0, 60), st.integers(0, 12), st.none() | st.integers(0, 60), st.booleans())
def test_no_checkpoint_is_due_if_disabled_or_already_written(
    version: int, interval: int, last: int | None, enabled: bool
) -> None:
    off = options(interval=interval, enabled=False)
    on = options(interval=interval or 1, enabled=enabled, bytes_interval=1)
    for form in DIALECTS:
        assert not is_due(version, off, named(form), Lag(last, 10))
        if last is not None and last >= version:
            assert not is_due(version, on, named(form), Lag(last, 10))


class Recorder:
    """A run that records its calls, and may fail."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.failing = False

    def __call__(self, version: int, check: Callable[[], None]) -> str:
        check()
        self.versions.append(version)
        if self.failing:
            raise UnavailableError("the disk is full")
        return f"checkpoint {version}"


class Bench:
    """A scheduler over an empty log, with a manual clock and manual threads."""

    def __init__(self, tmp_path: Path, form: str = "delta", **more: Any) -> None:
        self.run = Recorder()
        self.now_s = 0.0
        self.seen: Lag | Exception = NOTHING
        self.listings = 0
        self.waiting: list[Callable[[], None]] = []
        self.inline = True
        given_: dict[str, Any] = {"run": self.run, "start": self.start}
        given_ |= {"lag_of": self.lag_of} | more
        log = Log(open_store(str(tmp_path)), DIALECTS[form])
        self.scheduler = Scheduler(log, monotonic=lambda: self.now_s, **given_)

    def start(self, work: Callable[[], None]) -> None:
        if self.inline:
            work()
        else:
            self.waiting.append(work)

    def lag_of(self, _: Log) -> Lag:
        self.listings += 1
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def commit(self, version: int, size_bytes: int = 1, **properties: str) -> None:
        configuration = {key.replace("__", "."): value for key, value in properties.items()}
        self.scheduler.after_commit(Committed(version, size_bytes, configuration))


def test_delta_checkpoints_by_interval_need_no_listing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for version in range(31):
        bench.commit(version)
    assert bench.run.versions == [10, 20, 30]
    assert bench.listings == 0
    assert bench.scheduler.last_report == "checkpoint 30"


def test_indextables_checkpoints_need_a_listing_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "indextables")
    bench.seen = Lag(7)
    for version in range(9, 30):
        bench.commit(version)
    assert bench.run.versions == [17, 27]
    # At 10 to find the checkpoint at 7, and before each due one, which others may have written.
    assert bench.listings == 3


def test_checkpoint_of_another_writer_postpones_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "indextables")
    bench.seen = Lag(7)
    bench.commit(10)
    bench.seen = Lag(16)
    bench.commit(17)
    assert bench.run.versions == []
    bench.commit(25)
    bench.commit(26)
    assert bench.run.versions == [26]


def test_bytes_of_commits_are_counted_from_the_last_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.seen = Lag(None, 40)
    properties = {"lakelog__checkpoint__intervalBytes": "100"}
    bench.commit(1, 40, **properties)
    assert bench.listings == 1
    bench.commit(2, 30, **properties)
    assert bench.run.versions == []
    bench.seen = Lag(None, 110)
    bench.commit(3, 40, **properties)
    assert bench.run.versions == [3]
    bench.commit(4, 60, **properties)
    assert bench.run.versions == [3]
    bench.seen = Lag(3, 120)
    bench.commit(5, 60, **properties)
    assert bench.run.versions == [3, 5]
    bench.scheduler.checkpointed(6)
    bench.commit(7, 99, **properties)
    assert bench.run.versions == [3, 5]


def test_requests_during_a_checkpoint_keep_only_the_newest_version(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inline = False
    bench.commit(10)
    assert bench.scheduler.running
    bench.commit(30)
    bench.commit(20)
    assert len(bench.waiting) == 1
    bench.waiting.pop()()
    assert bench.run.versions == [30]
    assert not bench.scheduler.running


def test_late_request_for_an_earlier_version_is_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inline = False
    bench.commit(30)
    work = bench.waiting.pop()
    inner = bench.run.__call__

    def run(version: int, check: Callable[[], None]) -> str:
        bench.commit(20)
        return inner(version, check)

    bench.scheduler._run = run
    work()
    assert bench.run.versions == [30]


def test_at_most_one_checkpoint_runs_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0
    lock = threading.Lock()
    seen: list[int] = []

    def run(version: int, check: Callable[[], None]) -> None:
        nonlocal inside, most
        check()
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with lock:
            inside -= 1
            seen.append(version)

    bench = Bench(tmp_path, run=run, start=start_daemon)

    def commit_some(first: int) -> None:
        for version in range(first, first + 50):
            bench.commit(version * 10)

    threads = [threading.Thread(target=commit_some, args=(1 + 50 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    with bench.scheduler.turn():
        inside += 1
        time.sleep(0.02)
        inside -= 1
    for thread in threads:
        thread.join()
    assert bench.scheduler.wait(120)
    assert most == 1
    assert seen == sorted(set(seen))
    assert seen[-1] == 2000


def test_checkpoint_is_followed_by_a_pause_and_then_the_newest_version(tmp_path: Path) -> None:
    written: list[int] = []
    first, second = threading.Event(), threading.Event()

    def run(version: int, check: Callable[[], None]) -> None:
        check()
        written.append(version)
        bench.now_s += 0.002
        (second if len(written) == 2 else first).set()

    bench = Bench(tmp_path, run=run, start=start_daemon)
    bench.commit(10)
    assert first.wait(120)
    began_s = time.monotonic()
    with bench.scheduler._lock:  # all before the pause ends, even on a slow machine
        for version in (20, 30, 40):
            bench.commit(version)
    assert second.wait(120)  # it is written without another request
    assert time.monotonic() - began_s > 0.01
    assert written == [10, 40]


@pytest.mark.parametrize("end", ["wait", "close"])
def test_wait_and_close_do_not_wait_for_the_pause(tmp_path: Path, end: str) -> None:
    written: list[int] = []

    def run(version: int, check: Callable[[], None]) -> None:
        check()
        written.append(version)
        bench.now_s += 3600

    bench = Bench(tmp_path, run=run, start=start_daemon)
    bench.commit(10)
    assert bench.scheduler.wait(120)
    assert bench.scheduler._rested_s - bench.now_s == 60  # not nine hours
    began_s = time.monotonic()
    bench.commit(20)
    bench.commit(30)
    assert bench.scheduler.running
    assert written == [10]
    assert getattr(bench.scheduler, end)(120)
    assert written == [10, 30]
    assert time.monotonic() - began_s < 120


def test_warning_raised_as_an_error_does_not_fail_the_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run.failing = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.commit(10)
    assert bench.run.versions == [10]
    assert bench.scheduler.last_error is not None
    assert not bench.scheduler.running


@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_retries_after_failures_become_less_frequent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "indextables")
    bench.run.failing = True
    tried: list[float] = []
    for version in range(10, 2000):
        before = len(bench.run.versions)
        bench.commit(version)
        if len(bench.run.versions) > before:
            tried.append(bench.now_s)
        bench.now_s += 1.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert gaps[:5] == [1, 2, 4, 8, 16]
    assert max(gaps) == 600
    bench.run.failing = False
    bench.now_s += 600
    bench.commit(2000)
    assert bench.scheduler.last_error is None


@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_failed_listing_is_recorded_as_a_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "indextables")
    bench.seen = UnavailableError("no answer")
    bench.commit(10)
    assert isinstance(bench.scheduler.last_error, UnavailableError)
    assert bench.run.versions == []


def test_misspelled_property_is_reported_once_and_does_not_fail_the_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.warns(LakelogWarning, match=r"checkpoint\.intervall"):
        bench.commit(10, spark__indextables__checkpoint__intervall="1")
    with warnings.catch_warnings(record=True) as caught:
        bench.commit(20, spark__indextables__checkpoint__intervall="1")
    assert caught == []
    assert isinstance(bench.scheduler.last_error, InvalidPropertyError)
    assert bench.run.versions == []
    bench.commit(40)
    assert bench.run.versions == [40]


def test_cleanup_follows_a_checkpoint_only_if_enabled(tmp_path: Path) -> None:
    cleaned: list[int] = []
    bench: Bench = Bench(tmp_path, clean_up=lambda: cleaned.append(bench.run.versions[-1]))
    bench.commit(10, delta__enableExpiredLogCleanup="false")
    assert cleaned == []
    bench.commit(20, delta__enableExpiredLogCleanup="true")
    assert cleaned == [20]
    bench.run.failing = True
    bench.now_s += CLEANUP_PAUSE_S
    with pytest.warns(LakelogWarning):
        bench.commit(30, delta__enableExpiredLogCleanup="true")
    assert cleaned == [20]


def test_cleanup_runs_once_per_hour(tmp_path: Path) -> None:
    cleaned: list[float] = []
    bench: Bench = Bench(tmp_path, clean_up=lambda: cleaned.append(bench.now_s))
    times_s = (0.0, 1.0, CLEANUP_PAUSE_S - 1, CLEANUP_PAUSE_S, CLEANUP_PAUSE_S + 1)
    for number, bench.now_s in enumerate(times_s, 1):
        bench.commit(10 * number)
    assert cleaned == [0.0, CLEANUP_PAUSE_S]


def test_failed_cleanup_is_reported_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    def clean_up() -> None:
        raise UnavailableError("cannot delete")

    bench = Bench(tmp_path, clean_up=clean_up)
    with pytest.warns(LakelogWarning, match="cleaning up the log"):
        bench.commit(10)
    assert bench.scheduler.last_report == "checkpoint 10"
    assert isinstance(bench.scheduler.last_error, UnavailableError)


def test_commit_succeeds_if_no_thread_can_be_started(tmp_path: Path) -> None:
    def start(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    bench = Bench(tmp_path, start=start)
    with pytest.warns(LakelogWarning, match="new thread"):
        bench.commit(10)
    assert not bench.scheduler.running
    assert bench.scheduler.wait(0)


def test_closed_scheduler_ignores_commits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.scheduler.close()
    bench.commit(10)
    assert bench.run.versions == []
    assert bench.scheduler.close(0)


def test_wait_and_close_have_a_timeout_and_close_stops_a_running_checkpoint(tmp_path: Path) -> None:
    started, unwound = threading.Event(), threading.Event()

    def run(_: int, check: Callable[[], None]) -> None:
        started.set()
        try:
            while True:
                check()
                time.sleep(0.001)
        except Stopped:
            unwound.set()
            raise

    bench = Bench(tmp_path, run=run, start=start_daemon)
    bench.commit(10)
    assert started.wait(120)
    assert not bench.scheduler.wait(0.01)
    with pytest.raises(InvalidInputError, match="negative"):
        bench.scheduler.wait(-1)
    assert bench.scheduler.close(0.01)
    assert unwound.is_set()
    assert bench.scheduler.last_error is None


@pytest.mark.parametrize("form", DIALECTS)
def test_lag_of_a_log_without_a_checkpoint_has_the_bytes_of_all_commits(
    tmp_path: Path, form: str
) -> None:
    table = new_table(location("local", tmp_path), form)
    append(table, "a")
    sizes = [commit.size_bytes for commit in table.log.list_all().commits]
    assert log_lag(table.log) == Lag(None, sum(sizes))


SCRIPT = """
import sys, time
from lakelog.checkpoint.schedule import Scheduler
from lakelog.transaction.runtime import Committed
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import open_store

def run(version, check):
{body}

scheduler = Scheduler(Log(open_store(sys.argv[1]), DIALECT), run, exit_wait_s={wait})
scheduler.after_commit(Committed(10, 1, {{}}))
print("the script is done", flush=True)
"""


def end_of_program(tmp_path: Path, body: str, wait: float) -> tuple[str, float]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=textwrap.indent(textwrap.dedent(body), "    "), wait=wait))
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout, time.monotonic() - started_s


def test_program_stops_a_long_checkpoint_at_exit(tmp_path: Path) -> None:
    body = """
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            print("unwound", flush=True)
    """
    output, _ = end_of_program(tmp_path, body, 0.2)
    assert output.splitlines() == ["the script is done", "unwound"]


def test_program_exits_despite_a_checkpoint_that_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
        import lakelog.checkpoint.schedule as schedule
        schedule._STOP_WAIT_S = 0.2
        time.sleep(3600)
    """
    output, seconds = end_of_program(tmp_path, body, 0.2)
    assert output.splitlines() == ["the script is done"]
    assert seconds < 240


def _in_child(scheduler: Scheduler, report: Any) -> None:
    scheduler.after_commit(Committed(20, 1, {}))
    report.put(scheduler.wait(120))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not available")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_scheduler_works_in_a_forked_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    report: Any = context.Queue()
    release = threading.Event()

    def run(version: int, _: Callable[[], None]) -> None:
        if version == 10:
            release.wait(120)

    scheduler = Scheduler(Log(open_store(str(tmp_path)), delta.DIALECT), run)
    scheduler.after_commit(Committed(10, 1, {}))
    assert scheduler.running
    child = context.Process(target=_in_child, args=(scheduler, report))
    child.start()
    assert report.get(timeout=120) is True
    child.join(120)
    release.set()
    assert scheduler.wait(120)
    assert child.exitcode == 0


def test_checkpoints_are_written_if_another_writer_commits_the_multiples(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"id": pl.Int64})
    other = lakelog.open(tmp_path, upkeep=False)
    for _ in range(12):
        table.append(pl.DataFrame({"id": [1]}))  # versions 1, 3, 5, ...
        other.append(pl.DataFrame({"id": [2]}))
    assert table.scheduler is not None
    assert table.scheduler.wait(120)
    assert len(list(tmp_path.glob("_delta_log/*.checkpoint.parquet"))) == 2
