"""Tables whose id a commit changed."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
from deltalake import DeltaTable, write_deltalake

import lakelog
from lakelog import Table
from tests.handmade import Handmade, add, info, metadata, protocol, remove

WRITERS = ("deltalake", "lakelog", "commits")


def replaced(where: Path, writer: str = "deltalake", *, age: bool = False) -> Table:
    """A table with the commits 0 to 3, whose id changes in one of them, and one live file.

    deltalake replaced it (`DeltaTable.create(mode="overwrite")`); or lakelog gave an id to a table
    without one, the only change of an id that it makes; or the commits replace it twice.
    """
    rows = pl.DataFrame({"id": [1]})
    if writer == "deltalake":
        write_deltalake(where, rows)
        DeltaTable.create(where, schema=DeltaTable(where).schema(), mode="overwrite")
        write_deltalake(where, rows, mode="append")
        write_deltalake(where, rows, mode="overwrite")
    elif writer == "lakelog":
        made = Handmade(where)
        nameless = metadata()
        del nameless["metaData"]["id"]
        made.commit(0, info("CREATE TABLE"), protocol(), nameless)
        table = lakelog.open(where, upkeep=False)
        table.append(rows)
        with table.transaction() as tx:
            tx.set_metadata(id="given")
        table.overwrite(rows)
    else:
        made = Handmade(where)
        made.start(add("a"))
        made.commit(1, metadata(table_id="id-1"), remove("a"), add("b"))
        made.commit(2, metadata(table_id="id-0"), remove("b"))
        made.commit(3, add("c"))
    for file in (where / "_delta_log").glob("*.json") if age else ():
        os.utime(file, (1, 1))
    return lakelog.open(where, upkeep=False)
