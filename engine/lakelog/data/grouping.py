"""Rows by partition, found in whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from lakelog import contract
from lakelog.data import layout


@dataclass(frozen=True)
class Groups:
    """Rows by partition.

    Attributes:
        texts: Partition values of each.
        counts: How many rows each has.
        order: Rows of one partition after those of another, in the order that they came.
    """

    texts: list[tuple[str | None, ...]]
    counts: list[int]
    order: pa.Array

    def __len__(self) -> int:
        return len(self.texts)


def group_rows(table: pa.Table, fields: Sequence[contract.Field]) -> Groups:
    """Where the rows of each partition stand."""
    columns = []
    for index, key in enumerate(fields):
        values = pl.Series(str(index), table.column(key.name))
        if values.dtype == pl.String:
            values = values.set(values == "", None)
        elif values.dtype == pl.Binary:  # Polars takes bytes on the right for so many numbers
            values = values.set(values.bin.size() == 0, None)
        columns.append(values)
    names = [series.name for series in columns]
    grouped = (
        pl.DataFrame(columns)
        .with_row_index("row")
        .group_by(names, maintain_order=True)
        .agg(pl.col("row"))
    )
    texts = [
        layout.partition_texts(grouped[name].alias(key.name), key.type).to_list()
        for name, key in zip(names, fields, strict=True)
    ]
    return Groups(
        list(zip(*texts, strict=True)),
        grouped["row"].list.len().to_list(),
        grouped["row"].explode().to_arrow(),
    )
