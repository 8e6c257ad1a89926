"""Concurrent processes on one log: one of them writes, any number of others read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lakelog.errors import LogLockedError
from lakelog.wal.log import WriteAheadLog
from tests.concurrency import outcomes

SCRIPT = Path(__file__).with_name("concurrent_process.py")
SECONDS = 1.5 * max(1, int(os.environ.get("LAKELOG_ROUNDS", "0")))


@contextlib.contextmanager
def process(what: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has opened the log."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), what, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("open ")
            yield child
        finally:
            child.kill()


def end(child: subprocess.Popen[str]) -> list[int]:
    """End a process; returns its output."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    output = child.stdout.read()
    assert child.wait(120) == 0
    return [int(word) for word in output.split()[1:]]


def test_lock_error_names_the_owner_process_until_it_is_dead(tmp_path: Path) -> None:
    with process("hold", tmp_path) as owner:
        before = sorted(path.name for path in tmp_path.iterdir())
        for signal_number in (signal.SIGCONT, signal.SIGSTOP):
            owner.send_signal(signal_number)  # a stopped process may continue to write
            with pytest.raises(LogLockedError) as caught:
                WriteAheadLog(tmp_path)
            assert f"process {owner.pid} on " in str(caught.value.found)
            assert caught.value.path == f"{tmp_path}/wal.lock"
            assert "read_only" in str(caught.value.hint)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        with WriteAheadLog(tmp_path, read_only=True) as reader:
            assert reader.current_seq_num() == 0
        owner.kill()
        owner.wait(60)
        # Its forked child is still alive.
        with WriteAheadLog(tmp_path) as log:
            assert log.append("PUT", "k", b"") == 1
            with pytest.raises(LogLockedError, match=f"process {os.getpid()} "):
                WriteAheadLog(tmp_path)


def test_one_of_several_concurrent_writers_gets_the_log(tmp_path: Path) -> None:
    for number in range(30):
        found = outcomes(*[partial(WriteAheadLog, tmp_path, sync="none")] * 4)
        (log,) = [each for each in found if isinstance(each, WriteAheadLog)]
        assert sum(isinstance(each, LogLockedError) for each in found) == 3
        assert log.append("PUT", "k", b"") == number + 1
        log.close()


def test_readers_see_no_error_and_no_gap_while_a_writer_rotates_and_truncates(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(process("churn", tmp_path))
        readers = [stack.enter_context(process("read", tmp_path)) for _ in range(2)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(0.05)
            for child in (writer, *readers):
                assert child.poll() is None, "it ended with an error"
        (wrote,) = end(writer)
        assert wrote > 0
        for reader in readers:
            rounds, last = end(reader)
            assert rounds > 1
            assert last == wrote  # it read once more after the writer had ended
