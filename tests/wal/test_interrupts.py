"""An interrupt (Ctrl-C) of the writing thread: no caller waits forever, no result is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lakelog.wal.disk import HeldLock, LocalDisk
from tests.wal.interrupted_writer import ACTIONS
from tests.wal.interrupts import Interrupts

INTERRUPTED = Path(__file__).with_name("interrupted_writer.py")


def test_interrupt_at_any_place_leaves_no_waiting_caller_and_no_wrong_result() -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", INTERRUPTED, *ACTIONS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_finalizers_are_not_interrupted(tmp_path: Path) -> None:
    """Python ignores what a finalizer raises, and reports it; which object it affects is random."""
    held: list[HeldLock] = [LocalDisk().lock(str(tmp_path / "lock"), "an owner")]
    with Interrupts(1) as interrupts:
        held.clear()
    assert not interrupts.has_acted
    LocalDisk().lock(str(tmp_path / "lock"), "another").release()
