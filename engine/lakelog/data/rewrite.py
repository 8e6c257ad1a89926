"""Finds the files whose rows a condition concerns, and replaces them.

Files are judged in three steps, of which each looks only at what the one before left open: the log
names the files that may hold a matching row (`Transaction.read`); partition values and statistics
show the files all of whose rows match; the columns of the condition are read from the others, with
row groups skipped. Only files that hold matching rows and others are then read whole, or get a
deletion vector.

Source: Delta protocol, Add File and Remove File; Deletion Vectors; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.deletion_vectors import Vector, VectorReader, VectorWriter
from lakelog.data.file_opening import Sources
from lakelog.data.files import ReadPlan
from lakelog.data.read import FILE_INDEX, ROW_INDEX, read_files
from lakelog.data.write_plan import CHANGE_TYPE
from lakelog.errors import UnsupportedFeatureError
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.metadata import is_on
from lakelog.skipping.prune import keep_mask, referenced_columns
from lakelog.skipping.statistics import stats_from_json
from lakelog.skipping.values import PREFIX, typed_partitions
from lakelog.storage import LogStore
from lakelog.transaction.row_tracking import ENABLED, num_records

_HOLDS, _ROW = "\x00holds", "\x00row"  # no column is called so
_TIGHT_BOUNDS = '"tightBounds"'


@dataclass(frozen=True)
class Targets:
    """The files that hold rows for which a condition is true.

    Attributes:
        whole: Files all of whose rows match, as `Snapshot.files` has them.
        partly: Files some of whose rows do.
        rows_matched: Matching rows of `partly`.
    """

    whole: pl.DataFrame
    partly: pl.DataFrame
    rows_matched: int = 0

    @property
    def files(self) -> pl.DataFrame:
        """All of them."""
        return pl.concat([self.whole, self.partly])


def _split_whole(
    snapshot: LogSnapshot, candidates: pl.DataFrame, where: pl.Expr | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files all of whose rows match by what the log records of them, and files that have to be
    read; those that cannot match are in neither.
    """
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
        where.not_() | where.is_null(),
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


def find_targets(
    snapshot: LogSnapshot, candidates: pl.DataFrame, where: pl.Expr | None, store: LogStore
) -> Targets:
    """Judge files that may hold matching rows. Where the log does not settle it, the condition's
    columns are read.
    """
    whole, unsettled = _split_whole(snapshot, candidates, where)
    if where is None or not unsettled.height:
        return Targets(whole, unsettled)
    matched = np.zeros(unsettled.height, np.int64)
    counting = ReadPlan.of(snapshot, ())
    for batch in read_files(counting, unsettled, predicate=where, store=store, positions=True):
        matched += np.bincount(batch[FILE_INDEX].to_numpy(), minlength=unsettled.height)
    counts = pl.Series("matched", matched)
    hit = unsettled.filter(counts > 0)
    counts = counts.filter(counts > 0)
    rows = _live_rows(snapshot, hit, store)
    return Targets(
        pl.concat([whole, hit.filter(counts == rows)]),
        hit.filter(counts < rows),
        int(counts.filter(counts < rows).sum()),
    )


def _live_rows(snapshot: LogSnapshot, files: pl.DataFrame, store: LogStore) -> pl.Series:
    """The number of rows of each file without the deleted ones; where the log does not record it,
    from the file's footer.
    """
    counts = num_records(files["stats"]) - files["dvCardinality"].fill_null(0)
    unknown = counts.is_null()
    if not unknown.any():
        return counts
    uncounted = files.filter(unknown)
    found = np.zeros(uncounted.height, np.int64)
    for batch in read_files(ReadPlan.of(snapshot, ()), uncounted, store=store, positions=True):
        found += np.bincount(batch[FILE_INDEX].to_numpy(), minlength=uncounted.height)
    return counts.scatter(unknown.arg_true(), pl.Series(found))


def require_rows_copyable(snapshot: LogSnapshot) -> None:
    """Refuse to copy or update rows whose ids would be lost."""
    if is_on(snapshot.metadata.configuration, ENABLED):
        raise UnsupportedFeatureError(
            "the table has row tracking, and copied rows would lose their row ids",
            path=snapshot.path,
            version=snapshot.version,
            expected="a predicate that is true for all rows of a file, or for none",
            found="rowTracking",
            hint="choose the rows by partition columns, delete them in a table with deletion "
            "vectors, or use an engine that preserves row ids",
        )


class Marking:
    """Collects the deleted rows of files, and marks them by deletion vectors.

    Rows come by file, in the order of the files. Memory: the deleted rows of one file.
    """

    def __init__(
        self, snapshot: LogSnapshot, files: pl.DataFrame, writer: VectorWriter, store: LogStore
    ) -> None:
        self._files, self._writer = files, writer
        self._live = _live_rows(snapshot, files, store)
        self._old = Vector.of(files)
        self._reader = VectorReader(Sources(ReadPlan.of(snapshot, ()).reach, store).open)
        self._current = -1
        self._pending: list[Any] = []
        self._whole: list[int] = []
        self._marked: list[int] = []
        self._vectors: list[dict[str, Any]] = []
        self.rows_matched = 0
        """Rows taken."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take the positions of rows, as `read_files` gives them."""
        files, rows = batch[FILE_INDEX].to_numpy(), batch[ROW_INDEX].to_numpy()
        self.rows_matched += len(rows)
        starts = np.flatnonzero(np.diff(files, prepend=-1))
        for start, part in zip(starts, np.split(rows, starts[1:]), strict=True):
            if files[start] != self._current:
                self._close_file()
                self._current = int(files[start])
            self._pending.append(part)

    def _close_file(self) -> None:
        """Store the vector of the current file."""
        if not self._pending:
            return
        rows = np.concatenate(self._pending).astype(np.uint64)
        self._pending = []
        if len(rows) == self._live[self._current]:
            self._whole.append(self._current)
            return
        old = self._old[self._current]
        if old is not None:
            rows = np.union1d(rows, self._reader.read(old))
        self._marked.append(self._current)
        self._vectors.append(self._writer.add(rows))

    def finish(self) -> tuple[Targets, pl.DataFrame]:
        """The files that held the rows, and those to be added in place of the files of which rows
        are left.
        """
        self._close_file()
        self._reader.close()
        self._writer.finish()
        whole, partly = self._files[self._whole], self._files[self._marked]
        targets = Targets(
            whole, partly, self.rows_matched - int(self._live.gather(self._whole).sum())
        )
        if not partly.height:
            return targets, partly
        records = self._live.gather(self._marked) + partly["dvCardinality"].fill_null(0)
        columns = [name for name in partly.columns if name.startswith("dv")]
        vectors = pl.DataFrame(
            self._vectors,
            schema={name: partly.schema[name] for name in self._vectors[0]},
        )
        texts = map(_with_wide_bounds, partly["stats"], records)
        stats = pl.Series("stats", list(texts), dtype=pl.String)
        return targets, partly.drop(columns).with_columns(*vectors, stats)


def _with_wide_bounds(stats: str | None, records: int) -> str:
    """Statistics of a file of which rows are deleted.

    The text is kept, because a parser could round its numbers.
    """
    wide = f"{_TIGHT_BOUNDS}:false"
    text = (stats or "").strip()
    try:
        body = orjson.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or body.get("numRecords") != records:
        return f'{{"numRecords":{records},{wide}}}'
    if body.get("tightBounds") is False:
        return text
    if _TIGHT_BOUNDS not in text:
        return f"{text[:-1]},{wide}}}"
    kept = text.replace(f"{_TIGHT_BOUNDS}:true", wide)
    if kept.count(_TIGHT_BOUNDS) == 1 and kept.count(wide) == 1:
        return kept
    return f'{{"numRecords":{records},{wide}}}'


def keeping(where: pl.Expr) -> pl.Expr:
    """The rows that stay: those for which `where` is false, and those for which it is null."""
    return where.fill_null(value=False).not_()


def marked(rows: pa.Table | pa.RecordBatch, kind: str) -> pa.Table:
    """Rows of change data, with the kind of the change."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    return table.append_column(CHANGE_TYPE, pa.repeat(kind, table.num_rows))


def matching_rows(
    snapshot: LogSnapshot, targets: Targets, where: pl.Expr | None, store: LogStore
) -> Iterator[pa.RecordBatch]:
    """The rows of the files that match."""
    plan = ReadPlan.of(snapshot)
    for files, predicate in ((targets.whole, None), (targets.partly, where)):
        if files.height:
            yield from read_files(plan, files, predicate=predicate, store=store)


def _of_partitions(
    snapshot: LogSnapshot,
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
