"""Real Parquet data files for tables whose log lakelog writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

_ORDERED = (pl.Int64, pl.Int32, pl.String)


def data_file(
    table: str, name: str, rows: pl.DataFrame, values: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Write a data file; the fields of its add action.

    Args:
        table: The table's folder.
        name: The file's path relative to it, as on disk.
        rows: The rows, without partition columns.
        values: Partition values.
    """
    file = Path(table, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(file, compression="snappy")
    ordered = [column for column in rows.columns if rows.schema[column] in _ORDERED]
    bounded = [column for column in ordered if rows[column].count()]
    stats = {
        "numRecords": rows.height,
        "minValues": {column: rows[column].min() for column in bounded},
        "maxValues": {column: rows[column].max() for column in bounded},
        "nullCount": {column: rows[column].null_count() for column in ordered},
    }
    found = file.stat()
    return {
        "path": name,
        "partitionValues": dict(values or {}),
        "size": found.st_size,
        "modificationTime": int(found.st_mtime * 1000),
        "stats": json.dumps(stats),
    }


def ids(*numbers: int) -> pl.DataFrame:
    """Rows of one column `id`."""
    return pl.DataFrame({"id": numbers}, schema={"id": pl.Int64})
