"""A table of many small data files, generated once and cached (as in `perf.tables`)."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import lakelog
from perf import tables

ROWS = 100
"""Rows per file."""
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("quantity", pa.int32())]
)


def ensure(files: int) -> Path:
    """A Delta table without partitions, of `files` files of `ROWS` rows, with statistics."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:10]
    final = tables.cache_directory() / f"small_files-{files}-{recipe}"
    if final.is_dir():
        return final
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    table = lakelog.create(partial, SCHEMA, upkeep=False)
    names, sizes, stats = [], [], []
    for number in range(files):
        name = f"part-{number:06d}.parquet"
        pq.write_table(_rows(number), partial / name, compression="snappy")
        first, last = number * ROWS, number * ROWS + ROWS - 1
        names.append(name)
        sizes.append((partial / name).stat().st_size)
        stats.append(
            f'{{"numRecords":{ROWS},"minValues":{{"id":{first}}},"maxValues":{{"id":{last}}},'
            '"nullCount":{"id":0}}'
        )
    with table.transaction() as tx:
        tx.add(pl.DataFrame({"path": names, "size": sizes, "stats": stats}))
    table.checkpoint()
    partial.rename(final)
    return final


def paths(table: Path) -> list[str]:
    """The data files, as Spark reads them."""
    return sorted(os.fspath(path) for path in table.glob("part-*.parquet"))


def totals(files: int) -> tuple[int, int, int, float, int]:
    """Rows, and the sums of ids, lengths of names, prices and quantities, of the whole table."""
    count = files * ROWS
    ids = np.arange(count)
    lengths = int(np.char.str_len(np.char.mod("name %d", ids)).sum())
    return count, int(ids.sum()), lengths, float((ids / 4).sum()), int((ids % 7).sum())


def _rows(number: int) -> pa.Table:
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    names = pa.array(np.char.mod("name %d", ids).tolist())
    columns = [pa.array(ids), names, pa.array(ids / 4), pa.array((ids % 7).astype(np.int32))]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
