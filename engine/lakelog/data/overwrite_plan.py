"""Selects the files that an overwrite removes, and the rows that it copies.

Files that hold nothing but rows to be replaced go whole. Of the others the remaining rows are
copied into new files; a predicate over partition columns alone never needs that, for it holds of a
file's rows all or none.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import polars as pl
import pyarrow as pa

from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.errors import UnsupportedFeatureError
from lakelog.log.snapshot import Snapshot
from lakelog.skipping.prune import referenced_columns
from lakelog.skipping.values import PREFIX, typed_partitions
from lakelog.storage import LogStore
from lakelog.transaction.features import is_on
from lakelog.transaction.row_tracking import ENABLED

_HOLDS, _ROW = "\x00holds", "\x00row"  # no column is called so


@dataclass(frozen=True)
class Replaced:
    """What becomes of a table's files.

    Attributes:
        whole: Files all of whose rows are replaced, as `Snapshot.files` has them.
        partly: Files some of whose rows are.
        rows_deleted: Rows of `partly` that are replaced.
    """

    whole: pl.DataFrame
    partly: pl.DataFrame
    rows_deleted: int = 0

    @property
    def files(self) -> pl.DataFrame:
        """Every file that is removed."""
        return pl.concat([self.whole, self.partly])


def find_replaced(
    snapshot: Snapshot,
    candidates: pl.DataFrame,
    where: pl.Expr | None,
    mapping: str,
    store: LogStore,
) -> Replaced:
    """Judge files that may hold rows to be replaced.

    Where data columns decide, these columns of every candidate are read.
    """
    none = candidates.clear()
    if where is None or not candidates.height:
        return Replaced(candidates, none)
    metadata = snapshot.metadata
    columns = referenced_columns(where, metadata.schema)
    if set(columns) <= set(metadata.partition_columns):
        held = _of_partitions(snapshot, candidates, where, columns, mapping)
        return Replaced(candidates.filter(held), none)
    plan = ReadPlan.of(snapshot, columns)
    whole: list[pl.DataFrame] = []
    partly: list[pl.DataFrame] = []
    deleted = 0
    for file in candidates.iter_slices(1):
        hit = rows = 0
        for batch in read_files(plan, file, store=store):
            hit += int(holds(pl.DataFrame(pa.Table.from_batches([batch])), where).sum())
            rows += batch.num_rows
        if hit == rows:
            whole.append(file)
        elif hit:
            partly.append(file)
            deleted += hit
    if partly and is_on(metadata.configuration, ENABLED):
        raise UnsupportedFeatureError(
            "the table has row tracking, and copied rows would lose their row ids",
            path=snapshot.path,
            version=snapshot.version,
            expected="a predicate that is true for all rows of a file, or for none",
            found="rowTracking",
            hint="overwrite by partition columns, or with an engine that preserves row ids",
        )
    return Replaced(pl.concat([none, *whole]), pl.concat([none, *partly]), deleted)


def partitions_of(snapshot: Snapshot, adds: pl.DataFrame, mapping: str) -> pl.Expr:
    """The rows of every partition that some of the files are of, as a predicate.

    Memory grows with the number of partitions.
    """
    columns = snapshot.metadata.partition_columns
    typed = typed_partitions(adds["partitionValues"], snapshot.schema, columns, mapping=mapping)
    *outer, last = (series.alias(series.name.removeprefix(PREFIX)) for series in typed.values)
    # Values of the last column are given as lists, so that the predicate stays small.
    groups = pl.DataFrame([*outer, last]).unique()
    parts = groups.partition_by([s.name for s in outer]) if outer else [groups]
    each = [
        reduce(operator.and_, [_is_one_of(series.unique()) for series in part]) for part in parts
    ]
    while len(each) > 1:  # pairs of pairs: a chain of thousands would be too deep
        each = [reduce(operator.or_, each[n : n + 2]) for n in range(0, len(each), 2)]
    return each[0]


def _is_one_of(values: pl.Series) -> pl.Expr:
    """Whether the column of that name has one of the values, which may be null."""
    column, known = pl.col(values.name), values.drop_nulls()
    if known.len() == values.len():
        return column.is_in(known.implode())
    return column.is_null() | column.is_in(known.implode()) if known.len() else column.is_null()


def keeping(where: pl.Expr) -> pl.Expr:
    """The rows that stay: those for which `where` is false, and those for which it is null."""
    return where.fill_null(value=False).not_()


def _of_partitions(
    snapshot: Snapshot,
    files: pl.DataFrame,
    where: pl.Expr,
    columns: Sequence[str],
    mapping: str,
) -> pl.Series:
    """Whether the predicate holds of each file's rows, by its partition values."""
    typed = typed_partitions(files["partitionValues"], snapshot.schema, columns, mapping=mapping)
    for known in typed.known.get_columns():
        if not known.all():
            raise UnsupportedFeatureError(
                "a file has an invalid partition value, so whether its rows match the "
                "predicate is unknown",
                path=files["path"].filter(~known)[0],
                version=snapshot.version,
                expected=known.name.removeprefix(PREFIX),
                found=str(files["partitionValues"].filter(~known)[0]),
            )
    values = [series.alias(series.name.removeprefix(PREFIX)) for series in typed.values]
    return holds(pl.DataFrame(values) if values else typed.values, where)


def holds(rows: pl.DataFrame, where: pl.Expr) -> pl.Series:
    """Of which rows a predicate is true; null is not true."""
    # A predicate without columns still speaks of every row.
    counted = rows.with_row_index(_ROW)
    return counted.with_columns(where.alias(_HOLDS))[_HOLDS].fill_null(value=False)
