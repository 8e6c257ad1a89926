"""Finds the files that contain rows for which a condition is true.

Each of three steps decides about the files that the previous one left undecided: the log names the
files that may contain a matching row (`Transaction.read`); partition values and statistics show the
files all of whose rows match; the columns of the condition are read from the others, with row
groups skipped.

Source: Delta protocol, Per-file Statistics; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.arrow_arrays import as_mask, numbers_of
from lakelog.data.files import ReadPlan
from lakelog.data.read import FILE_INDEX, read_files
from lakelog.errors import LakelogError, UnsupportedFeatureError
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.actions import DV_COLUMNS
from lakelog.skipping.prune import keep_mask, outcome_of, referenced_columns
from lakelog.skipping.statistics import num_records, stats_from_json
from lakelog.skipping.values import PREFIX, typed_partitions
from lakelog.storage import LogStore

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Selection:
    """The rows that a change concerns, by default those that match `where`; reads `columns`."""

    columns: Sequence[str] = ()

    def __init__(self, where: pl.Expr | None) -> None:
        self.where = where

    def touches(self, _rows: pa.Table) -> NDArray[np.bool_] | None:
        """Which of the rows that match `where` are concerned; None is all."""
        return None


@dataclass(frozen=True)
class Targets:
    """Files with matching rows: all rows of `whole` match, and `rows_matched` of `partly`."""

    whole: pl.DataFrame
    partly: pl.DataFrame
    rows_matched: int = 0

    @property
    def files(self) -> pl.DataFrame:
        """The files of both kinds."""
        return pl.concat([self.whole, self.partly])


def find_targets(
    snapshot: LogSnapshot, candidates: pl.DataFrame, where: pl.Expr | None, store: LogStore
) -> Targets:
    """The files with matching rows; reads the condition's columns if the log does not decide."""
    whole, unsettled = split_whole(snapshot, candidates, where)
    found = _read_targets(snapshot, unsettled, Selection(where), store)
    return Targets(pl.concat([whole, found.whole]), found.partly, found.rows_matched)


def _read_targets(
    snapshot: LogSnapshot, files: pl.DataFrame, selection: Selection, store: LogStore
) -> Targets:
    """Find targets by reading rows."""
    matched = np.zeros(files.height, np.int64)
    plan = ReadPlan.of(snapshot, selection.columns)
    for rows in touched_rows(plan, files, selection, store) if files.height else ():
        matched += np.bincount(numbers_of(rows[FILE_INDEX]), minlength=files.height)
    counts = pl.Series("matched", matched)
    hit, counts = files.filter(counts > 0), counts.filter(counts > 0)
    is_whole = counts == live_rows(snapshot, hit, store)
    return Targets(hit.filter(is_whole), hit.filter(~is_whole), int(counts.filter(~is_whole).sum()))


def touched_rows(
    plan: ReadPlan, files: pl.DataFrame, selection: Selection, store: LogStore
) -> Generator[pa.Table, None, None]:
    """The rows that change, with their positions."""
    for batch in read_files(plan, files, predicate=selection.where, store=store, positions=True):
        rows = pa.Table.from_batches([batch])
        mask = selection.touches(rows)
        yield rows if mask is None else rows.filter(as_mask(mask))


def live_rows(snapshot: LogSnapshot, files: pl.DataFrame, store: LogStore) -> pl.Series:
    """The rows of each file without the deleted ones; from the footer if the log lacks it."""
    counts = recorded_rows(files)
    unknown = counts.is_null()
    if not unknown.any():
        return counts
    uncounted = files.filter(unknown)
    found = np.zeros(uncounted.height, np.int64)
    for batch in read_files(ReadPlan.of(snapshot, ()), uncounted, store=store, positions=True):
        found += np.bincount(numbers_of(batch[FILE_INDEX]), minlength=uncounted.height)
    return counts.scatter(unknown.arg_true(), pl.Series(found))


def known_rows(snapshot: LogSnapshot, files: pl.DataFrame, store: LogStore) -> int | None:
    """The sum of `live_rows`; None if a file whose rows the log does not record cannot be read."""
    try:
        return int(live_rows(snapshot, files, store).sum())
    except LakelogError:
        return None


def with_row_counts(snapshot: LogSnapshot, files: pl.DataFrame, store: LogStore) -> pl.DataFrame:
    """Files, those with a deletion vector with ``numRecords``, as a writer must record it; where
    the log does not, from the footer.
    """
    if "dvStorageType" not in files.columns:
        return files
    uncounted = files["dvStorageType"].is_not_null() & num_records(files["stats"]).is_null()
    if not uncounted.any():
        return files
    lacking = files.filter(uncounted)
    counts = live_rows(
        snapshot,
        lacking.with_columns(pl.lit(None, files.schema[name]).alias(name) for name in DV_COLUMNS),
        store,
    )
    stats = [f'{{"numRecords":{count},"tightBounds":false}}' for count in counts]
    return files.with_columns(files["stats"].scatter(uncounted.arg_true(), stats))


def recorded_rows(files: pl.DataFrame) -> pl.Series:
    """The number of rows of each file without deleted ones, as the log records it, or null. Trino's
    ANALYZE records the remaining rows as ``numRecords``, although the protocol demands all; writers
    that follow the protocol mark such statistics as wide.
    """
    counts, deleted = num_records(files["stats"]), files["dvCardinality"].fill_null(0)
    marked = files["dvStorageType"].is_not_null()
    known = deleted.is_between(0, counts)
    if marked.any():
        wide = files["stats"].filter(marked).str.json_path_match("$.tightBounds") == "false"
        known = known & (~marked).scatter(marked.arg_true(), wide.fill_null(value=False))
    return (counts - deleted).set(~known.fill_null(value=False), None)


def split_whole(
    snapshot: LogSnapshot, candidates: pl.DataFrame, where: pl.Expr | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files all of whose rows match by the log, and files to read; others cannot match."""
    if where is None or not candidates.height:
        return candidates, candidates.clear()
    metadata = snapshot.metadata
    mapping = snapshot.table_configuration.column_mapping
    columns = referenced_columns(where, metadata.schema)
    if set(columns) <= set(metadata.partition_columns):
        matches = _of_partitions(snapshot, candidates, where, columns, mapping)
        return candidates.filter(matches), candidates.clear()
    bounded = [name for name in columns if name not in metadata.partition_columns]
    may_stay = keep_mask(
        where,
        satisfied=False,
        schema=metadata.schema,
        partition_columns=metadata.partition_columns,
        partitions=typed_partitions(
            candidates["partitionValues"],
            metadata.schema,
            metadata.partition_columns,
            mapping=mapping,
        ),
        stats=stats_from_json(
            candidates["stats"], metadata.schema, columns=bounded, mapping=mapping
        ),
    )
    return candidates.filter(~may_stay), candidates.filter(may_stay)


def _of_partitions(
    snapshot: LogSnapshot,
    files: pl.DataFrame,
    where: pl.Expr,
    columns: Sequence[str],
    mapping: str,
) -> pl.Series:
    """Whether the predicate is true for each file's rows, by its partition values."""
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


def matching_rows(
    snapshot: LogSnapshot, targets: Targets, where: pl.Expr | None, store: LogStore
) -> Iterator[pa.RecordBatch]:
    """The rows of the files that match."""
    plan = ReadPlan.of(snapshot)
    for files, predicate in ((targets.whole, None), (targets.partly, where)):
        if files.height:
            yield from read_files(plan, files, predicate=predicate, store=store)


def holds(rows: pl.DataFrame, where: pl.Expr) -> pl.Series:
    """For which rows a predicate is true; null is not true."""
    return outcome_of(where, rows).fill_null(value=False)
