"""Reads the partition values of a row group as dictionaries: each distinct map once.

A table has few partitions, and Parquet writers store a repeated value once. Decoded as
dictionaries, the values of a million files take a fraction of the time, and a condition is
evaluated once per partition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.arrow_arrays import array_of, as_int64, numbers_of, valid_mask

_MOST_ENTRIES = 1 << 23  # of the maps of a row group, decoded at once


class DistinctPartitions(NamedTuple):
    """Distinct partition maps of live files, each file's map, and the mask of live files."""

    maps: pa.MapArray
    positions: pl.Series
    valid: pa.BooleanArray | None


def partition_leaves(file: pq.ParquetFile) -> list[str]:
    """Leaves of the partition values of live files."""
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    return [column.path for column in columns if column.path.startswith("add.partitionValues.")]


def distinct_partitions(file: pq.ParquetFile, group: int) -> DistinctPartitions | None:
    """The distinct partition values of a row group read as dictionaries; None unless they are one
    dictionary, and maps are small and of one size. Memory: 24 bytes per map entry.
    """
    leaves = partition_leaves(file)
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(i) for i in range(metadata.num_columns))
    if any(c.path_in_schema in leaves and c.num_values > _MOST_ENTRIES for c in chunks):
        return None
    try:
        table = file.read_row_group(group, leaves, use_threads=False)
    except pa.ArrowNotImplementedError:
        return None
    table.validate()
    if len(table) != metadata.num_rows:
        raise pa.ArrowInvalid(f"only {len(table)} rows of {metadata.num_rows} can be read")
    if table.column(0).num_chunks != 1:
        return None
    adds = table.column(0).chunk(0)
    if not pa.types.is_struct(adds.type) or not _is_encoded(adds.type.field(0).type):
        return None
    maps, valid = adds.field(0), adds.is_valid()
    lengths = np.diff(numbers_of(maps.offsets))
    size = int(lengths.max(initial=0))
    if not size or not np.array_equal(lengths, valid_mask(adds) * size):
        return None
    keys, items = maps.keys, maps.items
    with_null = len(items.dictionary) + 1
    choices = len(keys.dictionary) * with_null
    if keys.null_count or choices**size >= 1 << 63:
        return None
    # Each entry is a number below `choices`, and each map a number of `size` such digits.
    weights = choices ** np.arange(size, dtype=np.int64)
    entries = numbers_of(keys.indices).astype(np.int64) * with_null
    entries += numbers_of(items.indices.fill_null(-1)) + 1
    codes = pl.Series(entries.reshape(-1, size) @ weights)
    distinct = codes.unique()
    positions = codes.replace_strict(
        distinct, pl.int_range(len(distinct), dtype=pl.UInt32, eager=True)
    )
    key, item = np.divmod(distinct.to_numpy()[:, None] // weights % choices, with_null)
    given = pl.Series(as_int64(item.ravel())).replace(0, None) - 1
    return DistinctPartitions(
        pa.MapArray.from_arrays(
            array_of(pa.int32(), np.arange(len(distinct) + 1, dtype=np.int32) * size),
            keys.dictionary.take(as_int64(key.ravel())).cast(pa.string()),
            items.dictionary.take(given.to_arrow()).cast(pa.string()),
        ),
        positions,
        valid if adds.null_count else None,
    )


def _is_encoded(type_: pa.DataType) -> bool:
    texts = (pa.string(), pa.large_string(), pa.string_view())
    return pa.types.is_map(type_) and all(
        pa.types.is_dictionary(own) and own.value_type in texts
        for own in (type_.key_type, type_.item_type)
    )
