"""The written content: the same files for every contender, in its fastest input format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from perf import answers, columns
from perf.answers import Answer
from perf.writing.base import FIRST_FILE


def single_adds(start: int, count: int) -> Iterator[dict[str, Any]]:
    """One file after another, with the names of the protocol."""
    for row in columns.files(FIRST_FILE + start, count).iter_rows(named=True):
        values = {name: row.pop(name) for name in columns.PARTITIONS}
        yield {**row, "partitionValues": values, "dataChange": True}


def arrow_table(count: int) -> pa.Table:
    """Files as one Arrow table: partition values as a map, statistics as JSON text."""
    frame = columns.files(FIRST_FILE, count)
    table = frame.drop(columns.PARTITIONS).with_columns(dataChange=True)
    return table.to_arrow(compat_level=pl.CompatLevel.oldest()).append_column(
        "partitionValues", partition_map(frame)
    )


def partition_map(frame: pl.DataFrame) -> pa.Array:
    """The partition columns of `frame` as one map column."""
    return map_of(frame, {name: name for name in columns.PARTITIONS})


def map_of(frame: pl.DataFrame, sources: dict[str, str]) -> pa.Array:
    """A map column of texts: each key's values are those of a column of `frame`."""
    width = len(sources)
    both = frame.select(
        keys=pl.concat_list(pl.lit(name) for name in sources),
        values=pl.concat_list(sources.values()),
    ).explode("keys", "values")
    offsets = pa.array(np.arange(frame.height + 1, dtype=np.int32) * width)
    return pa.MapArray.from_arrays(offsets, _strings(both["keys"]), _strings(both["values"]))


def _strings(column: pl.Series) -> pa.Array:
    return column.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def expected(added: int, held: pl.DataFrame | None = None) -> Answer:
    """The answer of a table that contains `held` and the first `added` new files."""
    frame = columns.files(FIRST_FILE, added)
    return of_files(frame if held is None else pl.concat([held, frame]))


def of_files(frame: pl.DataFrame) -> Answer:
    """The answer for live files: path, date, region, size, modificationTime, stats (text)."""
    stats = {} if "stats" not in frame.columns else {"stats": _stats_answer(frame)}
    return answers.of_files(frame.drop("stats", strict=False)) | stats


def _stats_answer(frame: pl.DataFrame) -> str:
    return answers.hash_rows(frame.select("path", "stats"))
