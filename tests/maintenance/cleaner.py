"""A second process that cleans up: ``cleaner.py <table> <seconds> <seed>``."""

from __future__ import annotations

import datetime as dt
import random
import sys
import time

import lakelog
from lakelog.maintenance.cleanup import CleanupReport


def clean_for(where: str, seconds: float, seed: int) -> int:
    """Clean up repeatedly, sometimes deleting, sometimes moving to quarantine, and purge.

    Returns:
        Number of files deleted.
    """
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    gone = 0
    while time.monotonic() < until:
        table = lakelog.open(where)
        report = table.cleanup(plan=False, quarantine=rng.random() < 0.5)
        assert isinstance(report, CleanupReport)
        assert not report.errors, report.errors
        gone += report.files.height
        if rng.random() < 0.3:
            table.purge_quarantines(dt.timedelta(0))
        time.sleep(rng.random() * 0.05)
    return gone


if __name__ == "__main__":
    clean_for(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
