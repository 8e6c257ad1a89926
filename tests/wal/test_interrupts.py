"""An interrupt (Ctrl-C) of the writing thread: no caller waits forever, no result is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lakelog.wal.disk import HeldLock, LocalDisk
from tests.wal.interrupted import ACTIONS
from tests.wal.interrupts import Interrupts

INTERRUPTED = Path(__file__).with_name("interrupted.py")


def test_an_interrupt_anywhere_leaves_no_caller_waiting_and_no_wrong_answer() -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", INTERRUPTED, *ACTIONS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_what_is_thrown_away_meanwhile_is_not_interrupted(tmp_path: Path) -> None:
    """Python ignores what a finalizer raises, and reports it; which object it affects is random."""
    held: list[HeldLock] = [LocalDisk().lock(str(tmp_path / "lock"), "an owner")]
    with Interrupts(1) as interrupts:
        held.clear()
    assert not interrupts.has_acted
    LocalDisk().lock(str(tmp_path / "lock"), "another").release()
