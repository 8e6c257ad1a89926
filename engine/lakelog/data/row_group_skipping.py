"""Selects the row groups that may match a predicate, by their statistics.

The same sets of values decide that leave out whole files (`lakelog.skipping.prune`): what is not
known, or not understood, keeps the group. Only columns whose values are in the file as the table
has them count, and none inside structs, lists and maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.dialects.delta.footers import require_sound_chunks
from lakelog.model import contract
from lakelog.skipping.prune import keep_mask
from lakelog.skipping.statistics import has_bounds, stats_from_struct
from lakelog.skipping.values import TypedPartitions

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def row_groups(
    metadata: pq.FileMetaData,
    predicate: pl.Expr,
    fields: Mapping[str, contract.Field],
    leaves: Mapping[str, int],
) -> list[bool]:
    """For each row group, whether it may hold a row for which `predicate` is true."""
    count = metadata.num_row_groups
    known = {
        name: leaf
        for name, leaf in leaves.items()
        if name in predicate.meta.root_names() and has_bounds(fields[name].type)
    }
    if not known:
        return [True] * count
    require_sound_chunks(metadata, range(count), list(known.values()))
    rows: list[dict[str, Any]] = []
    for number in range(count):
        group = metadata.row_group(number)
        row: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
        for name, leaf in known.items():
            low, high, nulls = _bounds(group.column(leaf).statistics)
            row["minValues"][name] = low
            row["maxValues"][name] = high
            row["nullCount"][name] = nulls
        rows.append({"numRecords": group.num_rows, **row})
    bounds = pl.Struct({name: contract.to_polars(fields[name].type) for name in known})
    counts = pl.Struct(dict.fromkeys(known, pl.Int64()))
    dtype = pl.Struct(
        {"numRecords": pl.Int64(), "minValues": bounds, "maxValues": bounds, "nullCount": counts}
    )
    schema = contract.Struct(tuple(fields.values()))
    stats = stats_from_struct(pl.Series(rows, dtype=dtype), schema, columns=list(known))
    none = pl.DataFrame(height=count)
    partitions = TypedPartitions(none, none)
    keep = keep_mask(
        predicate, schema=schema, partition_columns=(), partitions=partitions, stats=stats
    )
    return keep.to_list()


def _bounds(statistics: Any) -> tuple[Any, Any, int | None]:
    """Least and greatest value and number of nulls; None for what is not known."""
    if statistics is None:
        return None, None, None
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return None, None, nulls
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError):  # beyond what Python has, or no text
        return None, None, nulls
    if any(isinstance(value, float) and math.isnan(value) for value in (low, high)):
        return None, None, nulls
    return low, high, nulls
