"""Reads the result of a run of the log or the keyed store back, for every contender."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

import lakelog
from lakelog.wal.historic.log import HistoricFormat
from lakelog.wal.historic.reader import read_historic
from perf.answers import Answer
from perf.wal import ours, peer, plain, records
from perf.writing.base import Job


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:
    """See `perf.writing.workloads.WriteWorkload`."""
    assert commits in {1, job.size}
    found = [
        (name, records.answer(read(path)))
        for name, read in _READERS.items()
        if (path := Path(job.path) / name).exists()
    ]
    return [("expected records", records.answer(records.pairs(job.size))), *found]


def _log(path: Path) -> pl.DataFrame:
    with ours.open_log(path) as log:
        return pl.DataFrame(log.replay())


def _store(path: Path) -> pl.DataFrame:
    with lakelog.KeyedStore(path) as store:
        return store.scan()


def _sqlite(path: Path) -> pl.DataFrame:
    connection = peer.connect(str(path))
    rows = connection.execute("SELECT key, value FROM log").fetchall()
    connection.close()
    return pl.DataFrame(rows, {"key": pl.Binary, "value": pl.Binary}, orient="row")


def _bytes(path: Path) -> pl.DataFrame:
    log = path.with_name(ours.LOG)
    assert path.read_bytes() == peer.segments(log)
    return _log(log)


def _historic(kind: HistoricFormat, path: Path) -> pl.DataFrame:
    return pl.DataFrame(read_historic(path, kind).replay())


def _plain(kind: str, path: Path) -> pl.DataFrame:
    return plain.frame(plain.decode(path, kind))


_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ours.LOG: _log,
    ours.STORE: _store,
    **{f"lakelog_{kind}": partial(_historic, kind) for kind in plain.FORMATS},
    **{f"plain_{kind}": partial(_plain, kind) for kind in plain.FORMATS},
    peer.DATABASE: _sqlite,
    peer.BYTES: _bytes,
}
