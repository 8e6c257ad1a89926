"""The memory cost of one large value: the number of its copies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

VALUE_BYTES = 16 << 20
_WORK = f"""
import json, os
from lakelog.keyed.store import KeyedStore

def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) << 10 for l in file if l.startswith("VmHWM"))

with KeyedStore("small") as store:  # imports and allocations that happen once
    store.put("k", b"v")
    store.flush()
    store.get("k"), store.scan()
    store.put("l", b"v")
    store.compact()
before = peak_bytes()
value = os.urandom({VALUE_BYTES})
found = {{}}
with KeyedStore("large", memtable_bytes=1 << 40) as store:
    store.put("k", value)
    found["put"] = peak_bytes() - before
    store.flush()
    found["flush"] = peak_bytes() - before
    assert store.get("k") == value
    found["get"] = peak_bytes() - before
    store.put("l", b"v")
    store.compact()
    found["compact"] = peak_bytes() - before
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_value_is_copied_a_bounded_number_of_times(repository: Path, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", _WORK],
        cwd=tmp_path,
        env={"PYTHONPATH": str(repository / "engine")},
        capture_output=True,
        check=True,
    )
    copies = {step: peak / VALUE_BYTES for step, peak in json.loads(outcome.stdout).items()}
    assert copies["put"] < 2, copies  # the value itself
    # Two copies in the memtable; in the Parquet writer a column, a page, a compressed page, bytes.
    assert copies["flush"] < 9, copies
    assert copies["get"] < 10, copies
    assert copies["compact"] < 13, copies
