"""Delta tables of hostile partition values and file names, for tests against other engines."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import lakelog
from lakelog import Table

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
"""Partition values; each is another partition."""

SCHEMA = {"p": pl.String, "x": pl.Int64}


def file_names() -> list[str]:
    """Names of data files, relative to the table's root: one per character that a name may hold,
    in a folder and in the root.
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
