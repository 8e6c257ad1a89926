"""A merge with a memory limit, whose source and target are each much larger."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import LakelogError, UnavailableError

ROWS, STEP = 50_000, 1_000
LIMIT_MB = 32
LIBRARIES_MB = 250
"""Memory that threads and allocators of the libraries keep, and that creating the rows needs."""
SCRIPT = f"""
import json, sys, threading
import polars as pl, pyarrow as pa
import lakelog, lakelog.data.merge
from tests.data.test_merge_memory import texts

def anonymous_mb():  # without pages of mapped files, which the system can reclaim
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))

def batches():
    for start in range(0, {ROWS}, {STEP}):
        rows = texts(start, {STEP}, "new").with_columns(pl.col("id") * 2)
        yield rows.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()[0]

def watch():
    while not over.wait(0.005):
        seen.append(anonymous_mb())

schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
source = pa.RecordBatchReader.from_batches(schema, batches())
table = lakelog.open(sys.argv[1], upkeep=False)
before, seen, over = anonymous_mb(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
merge = table.merge(source, "id", memory_limit={LIMIT_MB << 20})
report = merge.when_matched_update_all().when_not_matched_insert_all().execute()
over.set()
watcher.join()
print(json.dumps([report.num_updated_rows, report.num_rows, max(seen) - before]))
"""


def texts(start: int, count: int, kind: str) -> pl.DataFrame:
    """Rows with a text of 3,000 characters, which hardly compresses."""
    data = np.random.default_rng(start).bytes(count * 1_500).hex()
    found = [f"{kind} {data[at * 3_000 : at * 3_000 + 2_996]}" for at in range(count)]
    return pl.DataFrame({"id": range(start, start + count), "text": found})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_merge_is_bounded_by_its_limit(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.concat(texts(at, STEP, "old") for at in range(0, ROWS, STEP)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    updated, inserted, grown_mb = json.loads(done.stdout)
    assert (updated, inserted) == (ROWS // 2, ROWS // 2)
    assert grown_mb < LIMIT_MB + LIBRARIES_MB
    found = (
        lakelog.open(tmp_path).scan().select(pl.len(), pl.col("text").str.starts_with("new").sum())
    )
    assert found.collect().row(0) == (ROWS + ROWS // 2, ROWS)


def test_errors_of_the_source_and_of_its_temporary_file_are_distinct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakelog.write(tmp_path / "t", pl.DataFrame({"id": [1]}))
    rows = pl.DataFrame({"id": range(10)}).to_arrow().to_batches()

    def upsert(batches: Iterable[pa.RecordBatch]) -> None:
        reader = pa.RecordBatchReader.from_batches(rows[0].schema, batches)
        lakelog.open(tmp_path / "t").upsert(reader, on="id", memory_limit=1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost") as raised:
        upsert(failing())
    assert not isinstance(raised.value, LakelogError)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UnavailableError, match="cannot be written to disk"):
        upsert(rows)
    if Path("/dev/full").exists():
        full = Path("/dev/full").open
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full("w+b"))
        with pytest.raises(UnavailableError, match="No space left on device"):
            upsert(rows)
