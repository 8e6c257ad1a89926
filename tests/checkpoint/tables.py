"""Small tables for the tests of checkpoint writers: one of each kind, with every content of a
checkpoint, and an earlier checkpoint.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.base import Dialect
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.log.context import Log
from lakelog.snapshot import Snapshot
from lakelog.storage import LogStore, open_store

NOW_MS = 1_700_000_000_000
EARLIER = 3
LATEST = 6


@dataclass(frozen=True)
class Kind:
    """A table and a layout to write.

    Attributes:
        layout: The layout.
        dialect: Dialect of the table.
        properties: Its properties.
        options: Options that replace those of its properties.
        reader: Minimum reader version.
    """

    layout: str
    dialect: Dialect
    properties: tuple[tuple[str, str], ...] = ()
    options: CheckpointOptions | None = None
    reader: int | None = None

    def __str__(self) -> str:
        return self.layout


# A first, a middle and a last part: every further part only adds points for faults.
_SMALL = CheckpointOptions(part_actions=9, max_file_bytes=6_000, compression="snappy")
_V2 = (("delta.checkpointPolicy", "v2"),)

CLASSIC = Kind("classic", DELTA)
MULTIPART = Kind("multipart", DELTA)
V2_JSON = Kind("v2-json", DELTA, _V2, _SMALL)
V2_PARQUET = Kind("v2-parquet", DELTA, _V2, _SMALL)
JSON = Kind("json", INDEXTABLES)
JSON_PARTS = Kind("json-multipart", INDEXTABLES, options=_SMALL, reader=3)
FLATTENED = Kind("flattened", INDEXTABLES)
FLATTENED_PARTS = Kind("flattened", INDEXTABLES, options=_SMALL, reader=3)
KINDS = (CLASSIC, MULTIPART, V2_JSON, V2_PARQUET, JSON, JSON_PARTS, FLATTENED_PARTS)


def log_at(location: str | Path, dialect: Dialect) -> Log:
    """The log of a table, with a fixed clock."""
    return Log(open_store(str(location)), dialect, clock=lambda: NOW_MS)


def over(store: LogStore, dialect: Dialect) -> Log:
    """The same log on another store."""
    return Log(store, dialect, clock=lambda: NOW_MS)


def make(kind: Kind, root: Path) -> Path:
    """Write the table: versions 0 to 6, with a checkpoint of version 3, into a new folder."""
    shutil.copytree(made_once(kind), root)
    return root


@cache
def made_once(kind: Kind) -> Path:
    """The table that `make` copies; tests that patch the writer call this before."""
    root = Path(mkdtemp()) / "t"
    table = lakelog.create(
        root,
        {"id": pl.Int64, "p": pl.String},
        partition_by=("p",),
        format=kind.dialect.name,
        configuration=dict(kind.properties),
    )
    for version in range(1, LATEST + 1):
        with table.transaction() as tx:
            _commit(tx, kind, version)
    lakelog.Table(log_at(root, kind.dialect)).checkpoint(EARLIER)
    return root


def _commit(tx: Any, kind: Kind, version: int) -> None:
    delta = kind.dialect.name == "delta"
    if version == 1 and kind.reader is not None:
        tx.set_protocol(minReaderVersion=kind.reader, minWriterVersion=kind.reader)
    for number in range(4):
        own: dict[str, Any] = {"tags": {"k": str(number), "l": "é"}} if delta else {}
        own |= {"stats": _STATS % (number, number)} if delta else {"numRecords": number}
        tx.add(
            path=_path(version, number),
            partitionValues={"p": str(number)},
            size=100 * version + number,
            modificationTime=NOW_MS,
            **own,
        )
    if version > 1:
        tx.remove(path=_path(version - 1, 0), deletionTimestamp=NOW_MS, partitionValues={"p": "0"})
    if delta:
        tx.set_txn(appId=f"app-{version % 2}", version=version)


_STATS = '{"numRecords":3,"minValues":{"id":%d},"maxValues":{"id":%d},"nullCount":{"id":0}}'


def _path(version: int, number: int) -> str:
    return f"p={number}/part {version}-{number} [x].parquet"


def state_of(log: Log, version: int | None = None) -> dict[str, list[Any]]:
    """The complete state of a version, in canonical order."""
    snapshot = Snapshot.open(log, version)
    found = {
        "files": snapshot.files().drop("version", "extra"),
        "tombstones": snapshot.tombstones().select("path", "deletionTimestamp"),
        "transactions": snapshot.transactions().drop("version"),
    }
    rows = {name: sorted(map(repr, f.collect().rows())) for name, f in found.items()}
    return {**rows, "about": [repr(snapshot.protocol), repr(snapshot.metadata)]}
