"""The memory limit as the system measures it, in a process of its own.

Linux only: elsewhere a process does not know its own peak since it began.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf import columns
from tests import handmade

LIMIT = 400 << 20
FILES = 150_000

CHILD = """
import json, sys
import lakelog
from lakelog.errors import InvalidInputError

def peak():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) << 10 for l in file if l.startswith("VmHWM"))

table = lakelog.open(sys.argv[1])
limit = int(sys.argv[2]) or None
report = table.checkpoint(memory_limit=limit)
after = table.write_checksum(memory_limit=limit).body
print(json.dumps([peak(), report.num_adds, report.verified, after["numFiles"]]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _run(root: Path, limit: int) -> tuple[int, int, bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), str(limit)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    peak, adds, verified, counted = json.loads(done.stdout)
    return peak, adds, verified, counted


@pytest.mark.timeout(600)
def test_a_commit_that_does_not_fit_is_checkpointed_within_the_limit(tmp_path: Path) -> None:
    log = handmade.Handmade(tmp_path / "t").start()
    lines = columns.add_lines(columns.files(0, FILES))
    log.write(f"{1:020d}.json", ("\n".join(lines) + "\n").encode())
    removed = columns.files(0, 10)["path"].to_list()
    log.commit(2, *(handmade.remove(path, deletionTimestamp=1) for path in removed))
    del lines
    peak, adds, verified, counted = _run(tmp_path / "t", LIMIT)
    assert (adds, verified, counted) == (FILES - 10, True, FILES - 10)
    assert peak <= LIMIT, f"{peak >> 20} MB of {LIMIT >> 20}"
