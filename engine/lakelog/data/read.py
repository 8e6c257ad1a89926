"""`read_files`: the rows of data files with the schema of the table.

Files are read in order: columns are found and converted, deleted rows are omitted, partition values
are added. Small files are read concurrently and their rows returned together; a large file is
returned batch by batch. A file that cannot be read correctly raises an error with its name.

Row groups that cannot match a predicate are skipped by their statistics, with the sets of values of
`lakelog.skipping.prune`: unknown bounds and unknown expressions keep the group. Only columns whose
values are stored as the table has them count, and none inside structs, lists and maps.

Source: Delta protocol, Reader Requirements of Deletion Vectors and of Column Mapping; Partition
Value Serialization.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.data.columns import Columns, require_values
from lakelog.data.deletion_vectors import Vector, VectorReader
from lakelog.data.file_opening import Sources, explained, require_contents
from lakelog.data.files import ReadPlan
from lakelog.dialects.parquet_footers import require_sound_chunks
from lakelog.errors import CorruptionError, InvalidInputError
from lakelog.model import contract
from lakelog.skipping.prune import keep_mask, referenced_columns
from lakelog.skipping.statistics import has_bounds, stats_from_struct
from lakelog.skipping.values import TypedPartitions, typed_partitions
from lakelog.storage import LogStore
from lakelog.threads import Pool

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from lakelog.data.deletion_vectors import Rows

BATCH_ROWS = 65_536

FILE_INDEX, ROW_INDEX = "\0file", "\0row"
"""Columns of positions: the file's row among the given ones, and the row in the file as it is
stored, deleted rows included. No column of a table is named so.
"""

_WHOLE_BYTES = 1 << 20  # of a file that is read to its end ahead of its turn
_WHOLE_MEMORY_BYTES = 16 << 20  # of its rows in memory; encoded, a repeated value takes little
_PREFETCH_BYTES = 32 << 20
_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
_KEPT_SCHEMAS = 16
_POSITIONS = tuple(pa.field(name, pa.int64(), nullable=False) for name in (FILE_INDEX, ROW_INDEX))


def read_files(
    plan: ReadPlan,
    files: pl.DataFrame,
    *,
    predicate: pl.Expr | None = None,
    store: LogStore | None = None,
    batch_rows: int = BATCH_ROWS,
    positions: bool = False,
    only: Sequence[Vector | None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of data files, without those that deletion vectors delete.

    Args:
        plan: How the rows look, and which columns are wanted.
        files: Rows of `Snapshot.files`, with at least the columns `ReadPlan.file_columns`.
        predicate: A Polars expression over the table's columns, wanted or not, that gives a
            Boolean; only rows for which it is true come. Row groups that cannot hold one are not
            read. Files are not left out: `Snapshot.files` does that with ``where``.
        store: The table's store; None opens the plan's location.
        batch_rows: Rows of a batch at most.
        positions: Whether the batches end with the columns `FILE_INDEX` and `ROW_INDEX` (int64).
        only: For each file, a vector, or None: of a file with one, only the rows that it names are
            read, and only the row groups that have any.

    Returns:
        Batches of `ReadPlan.arrow_schema`, none of them empty; without columns they still count
        their rows. In the order of the files, and in each of its rows.

    Raises:
        InvalidInputError: At once: `files` lacks a column, or the predicate does not fit the table.
        NotFoundError: A data file, or one of deletion vectors, is not there.
        ExternalPathError: One is outside the table's folder, and `lakelog.open` was not allowed to
            open it.
        CorruptionError: The plan has row ids, and a file no base row id; a data file is cut short
            or damaged, has another length or number of rows than the log records, lacks a column
            in which the log records values, has a column of a wrong type, values that do not fit or
            nulls where none may be; a deletion vector is not what the log says; a partition value
            is missing or none of its type. ``path`` and ``version`` say where.
        UnavailableError: The store failed, or a batch needs more memory than is left.

    Memory: of two large files a megabyte a column, or, on a remote store, one row group's columns,
    encoded, and two batches; of small files, of a megabyte at most, up to 16 read side by side,
    each to 16 MB and a batch ahead; and 8 bytes per deleted row, or per row of a file of `only`.

    Source: Delta protocol, Action Reconciliation: the rows of a table are those of its live files.
    """
    lacking = [name for name in plan.file_columns if name not in files.columns]
    if lacking:
        raise InvalidInputError(
            "the files frame lacks columns that reading requires",
            expected=", ".join(plan.file_columns),
            found=f"no {', '.join(lacking)}",
            hint="pass rows of Snapshot.files() with all their columns",
        )
    if batch_rows < 1:
        raise InvalidInputError("invalid batch_rows", expected="batch_rows > 0", found=batch_rows)
    roots = () if predicate is None else referenced_columns(predicate, plan.schema)
    wanted = plan.select(list(dict.fromkeys((*plan.columns, *roots))))
    reading = _Reading(wanted, batch_rows, _POSITIONS if positions else ())
    reading.prepare(files, Sources(plan.reach, store), only or [None] * files.height)
    if predicate is not None:
        reading.keep_where(predicate, roots)
    schema = plan.arrow_schema
    for column in _POSITIONS if positions else ():
        schema = schema.append(column)
    batches = (batch.select(schema.names) for batch in reading.batches())
    return _gathered(batches, schema, batch_rows)


@dataclass(frozen=True)
class _File:
    """A data file: its row among those of the log, where it is, what of it is deleted, the only
    rows of it to read, its values of partition columns, and its base row id and commit version.
    """

    index: int
    path: str
    size_bytes: int | None
    vector: Vector | None
    only: Vector | None
    partition_values: Sequence[pa.Scalar]
    tracking: tuple[int, int] | None = None


class _Reading:
    """One call of `read_files`: what all its files share."""

    def __init__(self, plan: ReadPlan, batch_rows: int, positions: Sequence[pa.Field] = ()) -> None:
        self._plan = plan
        self._batch_rows = batch_rows
        self._fields = [plan.fields[n] for n in plan.columns if n not in plan.partition_columns]
        self._ids = plan.row_ids
        self._fields += [contract.Field(n, contract.Primitive("long")) for n in plan.row_ids or ()]
        self._partitions = [n for n in plan.columns if n in plan.partition_columns]
        self._schema = plan.arrow_schema
        self._positions = positions
        self._columns: list[tuple[pa.Schema, Columns]] = []
        self._files: list[_File] = []
        self._predicate: pl.Expr | None = None
        self._roots: tuple[str, ...] = ()

    def prepare(self, files: pl.DataFrame, sources: Sources, only: Sequence[Vector | None]) -> None:
        """Work out what the log says of each file; nothing is opened yet."""
        self._sources = sources
        self._stats = files["stats"]
        self._vectors = VectorReader(sources.open)
        values = self._partition_values(files)
        # 0 is how some writers record a size that they do not know.
        sizes = files.select(pl.when(pl.col("size") > 0).then("size")).to_series()
        self._files = [
            _File(index, path, size, vector, only_, tuple(c[index] for c in values), ids)
            for index, (path, size, vector, only_, ids) in enumerate(
                zip(
                    files["path"].to_list(),
                    sizes.to_list(),
                    Vector.of(files),
                    only,
                    self._tracking(files),
                    strict=True,
                )
            )
        ]

    def _tracking(self, files: pl.DataFrame) -> Sequence[tuple[int, int] | None]:
        """The base row id and the commit version of each file."""
        if self._ids is None:
            return [None] * files.height
        tracking = files.select("baseRowId", "defaultRowCommitVersion")
        unknown = tracking["baseRowId"].is_null() | tracking["defaultRowCommitVersion"].is_null()
        if unknown.any():
            raise CorruptionError(
                "the table has row tracking, and a file has no base row id or no commit version",
                path=files["path"].filter(unknown)[0],
                version=self._plan.version,
                expected="baseRowId and defaultRowCommitVersion",
                found=tracking.filter(unknown).row(0),
                hint="the writer of the file violated the Delta protocol; repair the log",
            )
        return tracking.rows()

    def keep_where(self, predicate: pl.Expr, roots: tuple[str, ...]) -> None:
        """Keep only rows for which `predicate`, over the columns `roots`, is true."""
        self._predicate = predicate
        self._roots = roots

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, file by file, read ahead by threads."""
        threads = _LOCAL_THREADS if self._sources.is_local else _REMOTE_THREADS
        threads = max(1, min(threads, len(self._files), 2 * (os.cpu_count() or 1)))
        pending: deque[Future[_Opened]] = deque()
        waiting = deque(self._files)
        ahead_bytes: deque[int] = deque()
        pool = Pool(threads, thread_name_prefix="lakelog-rows")
        try:
            while waiting or pending:
                # The file whose turn it is, the one after it, and more where they are small.
                while waiting and (
                    len(pending) < 2
                    or (len(pending) < 2 * threads and sum(ahead_bytes) < _PREFETCH_BYTES)
                ):
                    file = waiting.popleft()
                    pending.append(pool.submit(self._open, file))
                    ahead_bytes.append(file.size_bytes or _WHOLE_BYTES)
                opened = pending.popleft().result()
                ahead_bytes.popleft()
                if opened.rest is None:
                    yield from opened.batches
                else:
                    yield from _prefetched(opened, pool)
        finally:
            for future in pending:
                future.cancel()
            pool.shutdown(wait=True, cancel_futures=True)
            for future in pending:
                if not future.cancelled() and future.exception() is None:
                    future.result().close()
            self._vectors.close()

    def _open(self, file: _File) -> _Opened:
        """A small file's rows, or the first of a large one's."""
        batches = self._filtered(file)
        room = 0
        if file.size_bytes is not None and file.size_bytes <= _WHOLE_BYTES:
            room = _WHOLE_MEMORY_BYTES
        taken: list[pa.RecordBatch] = []
        for batch in batches:
            taken.append(batch)
            room -= batch.nbytes
            if room < 0:
                return _Opened(taken, batches)
        return _Opened(taken, None)

    def _read(self, file: _File) -> Iterator[pa.RecordBatch]:
        with explained(file.path, self._plan.version, self._sources, file.size_bytes):
            parquet, by_group = self._sources.parquet(file.path, file.size_bytes)
            try:
                deleted = None
                if file.vector is not None:
                    deleted = self._vectors.read(file.vector, parquet.metadata.num_rows)
                self._check(file, parquet, deleted)
                kept = None
                if file.only is not None:
                    kept = self._kept(file.only, deleted, parquet.metadata.num_rows)
                    deleted = _others(kept, parquet.metadata.num_rows)
                for first, last, arrays in self._rows(parquet, deleted, kept, by_group):
                    yield self._assembled(first, last, deleted, arrays, file)
            finally:
                parquet.close(force=True)

    def _check(self, file: _File, parquet: pq.ParquetFile, deleted: Rows | None) -> None:
        """Refuse a file that is not the one that the log means."""
        num_rows = parquet.metadata.num_rows
        require_contents(
            self._stats[file.index],
            num_rows,
            0 if deleted is None else len(deleted),
            self._columns_of(parquet).absent if self._fields else (),
        )
        _check_deleted(deleted, num_rows)

    def _kept(self, only: Vector, deleted: Rows | None, num_rows: int) -> Rows:
        """The rows of `only` that are not deleted."""
        kept = self._vectors.read(only, num_rows)
        _check_deleted(kept, num_rows)
        return kept if deleted is None else np.setdiff1d(kept, deleted, assume_unique=True)

    def _filtered(self, file: _File) -> Iterator[pa.RecordBatch]:
        """A file's rows for which the predicate is true. What it raises is not the file's fault."""
        for batch in self._read(file):
            kept = batch if self._predicate is None else self._matching(batch, self._predicate)
            if kept.num_rows:
                yield kept

    def _matching(self, batch: pa.RecordBatch, predicate: pl.Expr) -> pa.RecordBatch:
        if not self._roots:  # one answer for all rows
            return batch if pl.select(predicate).item() else batch.slice(0, 0)
        frame = pl.DataFrame(pl.from_arrow(batch.select(list(self._roots))))
        mask = frame.select(predicate.alias("mask"))["mask"]
        if mask.all(ignore_nulls=False):
            return batch
        return batch.filter(mask.fill_null(False).to_arrow())

    def _rows(
        self, parquet: pq.ParquetFile, deleted: Rows | None, kept: Rows | None, by_group: bool
    ) -> Iterator[tuple[int, int, list[pa.Array]]]:
        """Stretches of rows, their ends, and the columns in the file of those that are left."""
        columns = self._columns_of(parquet) if self._fields else None
        for start, end, groups in self._runs(parquet, kept, by_group):
            if columns is None or not columns.leaves:
                for first in range(start, end, self._batch_rows):
                    last = min(first + self._batch_rows, end)
                    yield first, last, self._nulls(_num_left(first, last, deleted))
                continue
            first = start
            for raw in parquet.reader.iter_batches(
                self._batch_rows,
                row_groups=groups,
                column_indices=columns.leaves,
                use_threads=parquet.metadata.num_rows > self._batch_rows,
            ):
                last = first + raw.num_rows
                batch = raw if deleted is None else _without(raw, first, deleted)
                yield first, last, columns.convert(batch)
                first = last
            if first != end:
                raise CorruptionError(
                    "the number of rows in a data file differs from its footer",
                    expected=end - start,
                    found=first - start,
                    hint="restore the file from a copy; its rows cannot be read",
                )

    def _runs(
        self, parquet: pq.ParquetFile, kept_rows: Rows | None, by_group: bool
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Stretches of row groups that are read: first row, the one after the last, and groups."""
        metadata = parquet.metadata
        count = metadata.num_row_groups
        if count <= 1 or (self._predicate is None and kept_rows is None and not by_group):
            yield 0, metadata.num_rows, list(range(count))
            return
        keep = [True] * count
        if self._predicate is not None:
            leaves = self._columns_of(parquet).plain if self._fields else {}
            keep = row_groups(metadata, self._predicate, self._plan.fields, leaves)
        if kept_rows is not None:
            ends = np.cumsum([metadata.row_group(group).num_rows for group in range(count)])
            counts = np.diff(np.searchsorted(kept_rows, ends), prepend=0)
            keep = [kept and number > 0 for kept, number in zip(keep, counts, strict=True)]
        start = end = 0
        groups: list[int] = []
        for group, kept in enumerate(keep):
            if groups and (by_group or not kept):
                yield start, end, groups
                groups = []
            if not groups:
                start = end
            end += metadata.row_group(group).num_rows
            if kept:
                groups.append(group)
        if groups:
            yield start, end, groups

    def _nulls(self, count: int) -> list[pa.Array]:
        """The columns of a file that has none of them."""
        arrays = []
        for field in self._fields:
            own = self._schema.field(field.name)
            array = pa.nulls(count, own.type)
            require_values(array, own)
            arrays.append(array)
        return arrays

    def _columns_of(self, parquet: pq.ParquetFile) -> Columns:
        schema = parquet.schema_arrow
        for known, columns in self._columns:
            if known is schema or known.equals(schema, check_metadata=True):
                return columns
        columns = Columns.of(schema, self._fields, self._plan.mapping)
        self._columns = [(schema, columns), *self._columns[: _KEPT_SCHEMAS - 1]]
        return columns

    def _assembled(
        self, first: int, last: int, deleted: Rows | None, arrays: list[pa.Array], file: _File
    ) -> pa.RecordBatch:
        """A batch of the plan's columns, and of positions where they are asked for."""
        count = _num_left(first, last, deleted)
        if not self._schema.names and not self._positions:
            return _uncolumned(count)
        parts = dict(zip((f.name for f in self._fields), arrays, strict=True))
        for name, value in zip(self._partitions, file.partition_values, strict=True):
            field = self._schema.field(name)
            parts[name] = pa.repeat(value, count) if value.is_valid else pa.nulls(count, field.type)
            require_values(parts[name], field)
        if file.tracking is not None and self._ids is not None:
            (id_, version), (base, since) = self._ids, file.tracking
            places = pa.array(_left(first, last, deleted) + base)
            parts[id_] = _or_else(parts[id_], places)
            parts[version] = _or_else(parts[version], pa.repeat(pa.scalar(since), count))
        batch = [parts[name] for name in self._schema.names]
        if not self._positions:
            return pa.RecordBatch.from_arrays(batch, schema=self._schema)
        rows = pa.array(_left(first, last, deleted))
        batch += [pa.repeat(pa.scalar(file.index, pa.int64()), count), rows]
        return pa.RecordBatch.from_arrays(
            batch, schema=pa.schema([*self._schema, *self._positions])
        )

    def _partition_values(self, files: pl.DataFrame) -> list[pa.Array]:
        """For each partition column wanted, its values, one a file.

        Raises:
            CorruptionError: A value is missing, or none of the column's type.
        """
        plan = self._plan
        if not self._partitions:
            return []
        typed = typed_partitions(
            files["partitionValues"], plan.schema, self._partitions, mapping=plan.mapping
        )
        columns: list[pa.Array] = []
        for name, values, known in zip(self._partitions, typed.values, typed.known, strict=True):
            if not known.all():
                row = int((~known).arg_true()[0])
                raise _unknown_value(plan, plan.fields[name], files, row)
            columns.append(values.to_arrow().cast(self._schema.field(name).type))
        return columns


@dataclass(frozen=True)
class _Opened:
    """What a thread made of a file: all its batches, or those that are still to be read."""

    batches: list[pa.RecordBatch]
    rest: Iterator[pa.RecordBatch] | None

    def close(self) -> None:
        """Leave the rest unread."""
        if self.rest is not None and (close := getattr(self.rest, "close", None)):
            close()


def _prefetched(opened: _Opened, pool: Pool) -> Iterator[pa.RecordBatch]:
    """All batches of a large file, each read while the one before it is looked at."""
    rest = opened.rest or iter(())
    step: Callable[[], pa.RecordBatch | None] = lambda: next(rest, None)
    future = pool.submit(step)
    try:
        while opened.batches:
            yield opened.batches.pop(0)
        while (batch := future.result()) is not None:
            future = pool.submit(step)
            yield batch
    finally:
        if not future.cancel():
            future.exception()  # a generator at work cannot be closed
        opened.close()


def _check_deleted(deleted: Rows | None, rows: int) -> None:
    if deleted is not None and len(deleted) and int(deleted[-1]) >= rows:
        raise CorruptionError(
            "a deletion vector deletes rows beyond the end of the data file",
            expected=f"below {rows}",
            found=int(deleted[-1]),
            hint=(
                "the file or the deletion vector is not the one that the log refers to; "
                "restore it from a copy"
            ),
        )


def _others(rows: Rows, num_rows: int) -> Rows:
    """The rows of a file that are not among some."""
    mask = np.ones(num_rows, bool)
    mask[rows.astype(np.int64)] = False
    return np.flatnonzero(mask).astype(np.uint64)


def _without(batch: pa.RecordBatch, first: int, deleted: Rows) -> pa.RecordBatch:
    """A batch, whose first row has the index `first` in its file, without deleted rows."""
    low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
    if low == high:
        return batch
    keep = np.ones(batch.num_rows, bool)
    keep[deleted[low:high].astype(np.int64) - first] = False
    return batch.filter(pa.array(keep))


def _num_left(first: int, last: int, deleted: Rows | None) -> int:
    """How many of the rows from `first` to before `last` are not deleted."""
    if deleted is None:
        return last - first
    low, high = np.searchsorted(deleted, (first, last))
    return last - first - int(high - low)


def _left(first: int, last: int, deleted: Rows | None) -> NDArray[np.int64]:
    """Which of the rows from `first` to before `last` are not deleted."""
    rows = np.arange(first, last)
    if deleted is None:
        return rows
    low, high = np.searchsorted(deleted, (first, last))
    return np.delete(rows, deleted[low:high].astype(np.int64) - first)


def _or_else(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, and the others where they are null."""
    if values.null_count == len(values):
        return others
    return pc.coalesce(values, others) if values.null_count else values


def _uncolumned(count: int) -> pa.RecordBatch:
    """A batch of no columns that has rows none the less."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["rows"]).select([])


def _gathered(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: those of many small files, joined."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if rows + batch.num_rows > batch_rows:
            yield from _joined(pending, schema)
            pending, rows = [], 0
        pending.append(batch)
        rows += batch.num_rows
        if 2 * rows >= batch_rows:
            yield from _joined(pending, schema)
            pending, rows = [], 0
    yield from _joined(pending, schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Sequence[pa.RecordBatch]:
    if len(batches) <= 1:
        return batches
    if not schema.names:
        return [_uncolumned(sum(batch.num_rows for batch in batches))]
    joined: list[Any] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined


def _unknown_value(
    plan: ReadPlan, field: contract.Field, files: pl.DataFrame, row: int
) -> CorruptionError:
    values = dict(files["partitionValues"][row] or {})
    text = values.get(contract.physical_name(field, plan.mapping))
    path = files["path"][row]
    type_ = str(contract.to_json(field.type))
    return CorruptionError(
        (
            f"a file's partition value of {field.name!r} is missing, or does not have the "
            "column's type"
        ),
        path=path,
        version=plan.version,
        expected=type_,
        found="no value" if text is None else repr(text),
        hint="repair the log: without the value the file's rows cannot be read",
    )


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
