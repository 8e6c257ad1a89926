"""Groups files for compaction. Pure.

Candidates are small files, and files with a large share of deleted rows. Within a partition they
are grouped in order of age, so that rows of similar age stay together. A bin is rewritten if this
reduces the number of files or removes deleted rows. A bin of compacted files only is not
rewritten; otherwise no run would find its work done.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lakelog.data.files import pack

BIN = "bin"
_PARTITION = "\x00partition"  # no column has this name
_DELETED = "\x00deleted"


@dataclass(frozen=True)
class Sizes:
    """The target sizes of compaction.

    Attributes:
        target_bytes: Target size of a file.
        small_bytes: Smaller files are small files.
        deleted_share: Larger files are candidates if a larger share of their rows is deleted.
    """

    target_bytes: int
    small_bytes: int
    deleted_share: float


def find_bins(
    files: pl.DataFrame, keys: tuple[str, ...], sizes: Sizes, now_ms: int
) -> pl.DataFrame:
    """The files to rewrite, with their bins."""
    share = pl.col("dvCardinality").fill_null(0) / pl.col("numRecords")
    # An unknown row count may hide any share of deleted rows.
    deleted = pl.col("dvStorageType").is_not_null() & (
        share.fill_null(1.0).fill_nan(1.0) > sizes.deleted_share
    )
    found = files.with_columns(deleted.alias(_DELETED)).filter(
        pl.col("retryAfter") <= now_ms,
        (pl.col("size") < sizes.small_bytes) | pl.col(_DELETED),
    )
    values = [
        pl.col("partitionValues").map.get(key).replace("", None).alias(str(number))
        for number, key in enumerate(keys)
    ]
    partition = pl.struct(values).rank("dense") if values else pl.lit(0)
    found = found.with_columns(partition.cast(pl.UInt32).alias(_PARTITION))
    fresh = pl.col("compactedTo") < sizes.target_bytes
    # Most partitions need no work; this check is cheap.
    found = found.filter(_worth(fresh, _PARTITION)).sort(_PARTITION, "modificationTime", "path")
    if not found.height:
        return found.drop(_DELETED, _PARTITION).with_columns(pl.lit(0, pl.UInt32).alias(BIN))
    packed, begin = [], 0
    for part in found.partition_by(_PARTITION, maintain_order=True):
        bins = pack(part["size"], target_bytes=sizes.target_bytes, open_cost_bytes=0) + begin
        begin = int(bins[-1]) + 1
        packed.append(bins)
    found = found.with_columns(pl.concat(packed).alias(BIN))
    worth = found.filter(_worth(fresh, BIN)).drop(_PARTITION, _DELETED)
    return worth.with_columns((pl.col(BIN).rank("dense") - 1).cast(pl.UInt32))


def _worth(fresh: pl.Expr, group: str) -> pl.Expr:
    """Whether rewriting the group may reduce its files or remove deleted rows."""
    fewer = (pl.len().over(group) > 1) & fresh.any().over(group)
    return fewer | pl.col(_DELETED).any().over(group)


def first_bins(bins: pl.DataFrame, commit_bytes: int) -> pl.DataFrame:
    """The bins of the next commit: about `commit_bytes` bytes, and at least one bin."""
    sizes = bins["size"].fill_null(0)
    begin = bins.select(BIN, begin=sizes.cum_sum() - sizes)
    return bins.filter(begin.select(pl.col("begin").first().over(BIN) < commit_bytes).to_series())
