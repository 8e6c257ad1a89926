"""The decoder of the specifications' programs: one record after another, into objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from lakelog.wal.historic.log import HistoricFormat
from perf.wal import records
from perf.writing.base import Case, Figures, Job
from tests.wal import historic_model as model

FORMATS: tuple[HistoricFormat, ...] = ("002", "003-crc", "003")
"""As `lakelog.wal.historic.reader.read_historic` calls them."""


def write(folder: Path, kind: str, count: int) -> Path:
    """Write a historic log. Of 002: files of 10 MiB, one append per record."""
    folder.mkdir()
    if kind == "002":
        writer = model.Writer002(marks_batches=False)
        for key, value in records.rows(count):
            writer.append("PUT", key, value)
            writer.rotate()
        for name, data in writer.named().items():
            (folder / name).write_bytes(data)
    else:
        data = model.file_003(records.rows(count), is_checked=kind == "003-crc")
        (folder / "wal.log").write_bytes(data)
    return folder


def decode(folder: Path, kind: str) -> list[model.Record]:
    """All records."""
    if kind == "002":
        return model.decode_002([file.read_bytes() for file in sorted(folder.glob("*.wal"))])
    return model.decode_003((folder / "wal.log").read_bytes(), is_checked=kind == "003-crc")


def frame(decoded: list[model.Record]) -> pl.DataFrame:
    """Keys and values of records, for comparison."""
    keys, values = [one.key for one in decoded], [one.value for one in decoded]
    return pl.DataFrame({"key": keys, "value": values})


def prepare(name: str, kind: str) -> Callable[[Job], Path]:
    """Write a log to a folder of the run."""
    return lambda job: write(Path(job.path) / name, kind, job.size)


def _run(kind: str) -> Callable[[Path], Figures]:
    def run(folder: Path) -> Figures:
        start = time.perf_counter()
        decode(folder, kind)
        return {"seconds": time.perf_counter() - start}

    return run


CASES = {
    "wal_replay_1m_records": {
        f"plain_{kind}": Case(prepare(f"plain_{kind}", kind), _run(kind)) for kind in FORMATS
    }
}
