"""The memory limit as the system measures it, each step in a process of its own.

The memory of a process before its work differs by machine: pages of its libraries, arenas of its
threads, memory that allocators retain. Therefore each process asks for the minimum, which the error
for a lower limit reports, and gets the same amount above it on every machine.

Linux only: other systems do not report the peak memory of a process since its start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perf import columns
from tests import handmade

ABOVE_FLOOR = 40 << 20
FILES = 90_000

CHILD = """
import json, re, sys
import lakelog
from lakelog.errors import InvalidInputError

def peak():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) << 10 for l in file if l.startswith("VmHWM"))

def checkpoint(limit):
    report = table.checkpoint(memory_limit=limit)
    return [report.num_adds, report.verified]

def checksum(limit):
    return [table.write_checksum(memory_limit=limit).body["numFiles"]]

table = lakelog.open(sys.argv[1])
do, above = globals()[sys.argv[2]], int(sys.argv[3])
limit = None
if above:
    try:
        do(1)
    except InvalidInputError as error:
        least = re.fullmatch(r"at least ([\\d,]+) MiB", error.expected)[1]
        limit = int(least.replace(",", "")) * 2**20 + above
found = do(limit)
print(json.dumps([peak(), limit, found]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Outcome(NamedTuple):
    """The peak memory of a process, its limit, both in bytes, and its result."""

    peak: int
    limit: int | None
    found: list[Any]


def _run(root: Path, step: str, above_floor: int = ABOVE_FLOOR) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), step, str(above_floor)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return Outcome(*json.loads(done.stdout))


@pytest.mark.timeout(600)
def test_commit_larger_than_the_limit_is_checkpointed_within_the_limit(tmp_path: Path) -> None:
    root = tmp_path / "t"
    log = handmade.Handmade(root).start()
    lines = columns.add_lines(columns.files(0, FILES))
    log.write(f"{1:020d}.json", ("\n".join(lines) + "\n").encode())
    removed = columns.files(0, 10)["path"].to_list()
    log.commit(2, *(handmade.remove(path, deletionTimestamp=1) for path in removed))
    del lines
    bounded = _run(root, "checkpoint")
    checksum = _run(root, "checksum")
    for path in (root / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    free = _run(root, "checkpoint", above_floor=0)
    print(f"{bounded=} {checksum=} {free=}")
    assert bounded.found == free.found == [FILES - 10, True]
    assert checksum.found == [FILES - 10]
    assert bounded.limit is not None
    assert checksum.limit is not None
    assert bounded.peak <= bounded.limit
    assert checksum.peak <= checksum.limit
    assert free.peak > bounded.peak, "the limit did not reduce the peak"
