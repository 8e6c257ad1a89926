"""Groups rows by partition, column-wise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from lakelog.data import layout
from lakelog.model import contract


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
    """Where the rows of each partition are.

    Zero and negative zero are partitions of their own, and all values that are not numbers are one.
    """
    columns = [pl.Series(str(i), table.column(key.name)) for i, key in enumerate(fields)]
    names = [series.name for series in columns]
    # Polars groups the two zeros together.
    signs = [(each == 0) & (1 / each < 0) for each in columns if each.dtype.is_float()]
    signs = [sign.alias(f"sign {i}") for i, sign in enumerate(signs)]
    grouped = (
        pl.DataFrame([*columns, *signs])
        .with_row_index("row")
        .group_by([*names, *(sign.name for sign in signs)], maintain_order=True)
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
