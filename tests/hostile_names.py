"""Delta tables with hostile partition values and file names, for tests with other engines."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

import lakelog
from lakelog import Table
from tests.handmade import Handmade, add, metadata, protocol

CHARACTERS = (
    *map(chr, range(1, 256)),
    "e\u0301",  # the same letter as \xe9 in another normal form: another name
    "\u2028",
    "\u3000",
    "\U0001f600",
    "\u65e5\u672c",
)
"""One character per code point 1 to 255, two normal forms of one letter, and wide ones."""

VALUES = (*CHARACTERS, "a b", "100%", "%41", "%C3%A9", "..", "a/../b", "a:b/c")
"""Partition values, each of another partition."""

SCHEMA = {"p": pl.String, "x": pl.Int64}


def file_names() -> list[str]:
    """Names of data files, relative to the table's root: one per character that is allowed in a
    name, in a folder and in the root.
    """
    allowed = [c for c in CHARACTERS if c not in "/:"]  # Hadoop opens no name with a colon
    odd = ["%41", "%C3%A9", "%zz", "a%", "a b"]
    return [f"{folder}x{c}y.parquet" for c in [*allowed, *odd] for folder in ("", "d/")]


def partitioned_table(root: Path) -> Table:
    """A table of one row per value of `VALUES`, partitioned by it, written by `Table.append`."""
    table = lakelog.create(root, SCHEMA, partition_by=["p"])
    table.append(pl.DataFrame({"p": VALUES, "x": range(len(VALUES))}, schema=SCHEMA))
    return table


def named_table(root: Path) -> Table:
    """A table of one row per name of `file_names`, whose files a transaction added."""
    table = lakelog.create(root, SCHEMA)
    with table.transaction() as tx:
        for number, name in enumerate(file_names()):
            path = root / name
            path.parent.mkdir(exist_ok=True)
            rows = pl.DataFrame({"p": [name], "x": [number]}, schema=SCHEMA)
            rows.write_parquet(path)
            tx.add(path=name, size=path.stat().st_size, stats={"numRecords": 1})
    return table


TEXTS = [
    "é",
    "%C3%A8",
    "%c3%aa",
    "e%CC%81",
    "a*b",
    "a%2Ac",
    "q(1)",
    "q%282%29",
    "p=1/x%20y",
    "%2Bz",
]
"""Paths as other writers encode them in the log."""


def table_of_another_writer(root: Path, *features: str) -> Table:
    made = Handmade(root)
    v2 = protocol(3, 7, readerFeatures=features, writerFeatures=features)
    made.commit(0, v2 if features else protocol(), metadata())
    made.commit(1, *map(add, TEXTS[:6]))
    made.commit(2, *map(add, TEXTS[6:]))
    return lakelog.open(root, upkeep=False)


def texts_in_checkpoint(root: Path, kind: str) -> list[str]:
    """The paths of the adds or removes of the newest checkpoint, as text."""
    log = root / "_delta_log"
    newest = max(file.name[:20] for file in log.glob("*.checkpoint.*"))
    files = [*log.glob(f"{newest}.checkpoint*.parquet"), *log.glob("_sidecars/*.parquet")]
    tables = [pq.read_table(file) for file in files]
    rows = [table[kind] for table in tables if kind in table.column_names]
    return sorted(row["path"] for column in rows for row in column.to_pylist() if row)
