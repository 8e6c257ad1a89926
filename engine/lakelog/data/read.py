"""`read_files`: the rows of data files with the schema of the table.

Files are read in order: columns are found and converted, deleted rows are omitted, partition values
are added. Small files are read concurrently, converted together where their schemas are equal, and
their rows returned together; a large file is returned batch by batch. A file that cannot be read
correctly raises an error with its name.

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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.arrow_arrays import as_int64, as_mask
from lakelog.data.columns import Columns, require_values
from lakelog.data.deletion_vectors import Vector, VectorReader
from lakelog.data.file_opening import Sources, raise_explained, require_contents
from lakelog.data.file_records import partition_values
from lakelog.data.files import ReadPlan
from lakelog.dialects.legacy_calendar import Calendar
from lakelog.dialects.parquet_footers import is_of_old_writer, require_valid_chunks
from lakelog.errors import CorruptionError, InvalidInputError, LakelogError
from lakelog.model import actions, contract
from lakelog.skipping.prune import keep_mask, outcome_of, referenced_columns
from lakelog.skipping.statistics import has_bounds, stats_from_struct
from lakelog.skipping.values import TypedPartitions
from lakelog.storage import LogStore
from lakelog.threads import Pool

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from lakelog.data.deletion_vectors import Rows

BATCH_ROWS = 65_536

FILE_INDEX, ROW_INDEX = "\0file", "\0row"
"""Columns of positions: the number of the file among the given ones, and of the row in the file,
counting deleted rows. No column of a table has these names.
"""

_WHOLE_BYTES = 1 << 20  # maximum length of a file that is read ahead completely
_WHOLE_MEMORY_BYTES = 16 << 20  # of its rows, because encoded repeated values expand
_PREFETCH_BYTES = 32 << 20
_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
_KEPT_SCHEMAS = 16
_READ_ERRORS = (LakelogError, pa.ArrowException, MemoryError, OSError, ValueError, IndexError)
# Arrow's default pool returns large blocks to the system, which then clears all pages again.
_POOL = pa.system_memory_pool()
_POSITIONS = tuple(pa.field(name, pa.int64(), nullable=False) for name in (FILE_INDEX, ROW_INDEX))


def read_files(
    plan: ReadPlan,
    files: pl.DataFrame,
    *,
    predicate: pl.Expr | None = None,
    satisfied: bool = True,
    store: LogStore | None = None,
    batch_rows: int = BATCH_ROWS,
    positions: bool = False,
    only: Sequence[Vector | None] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of data files, in order and without deleted rows (Delta protocol, Action
    Reconciliation), as non-empty batches of `ReadPlan.arrow_schema`; without columns, batches still
    count their rows. Only rows for which `predicate` is true are returned, or, without `satisfied`,
    those for which it is false or null; row groups that cannot hold one are not read. With
    `positions`, batches end with `FILE_INDEX` and `ROW_INDEX`.
    Of a file with a vector in `only`, only the rows in it are read.

    Raises InvalidInputError at once; NotFoundError, ExternalPathError, UnavailableError, and
    CorruptionError for a file, a vector or a partition value that differs from the log.

    Memory: of two large files a megabyte per column, or, on a remote store, one row group's
    columns, encoded, and two batches; of files of up to a megabyte, up to 16 read concurrently,
    each up to 16 MB and a batch ahead; and 8 bytes per deleted row, or per row of a file of `only`.
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
    reading.prepare(
        files, Sources(plan.allowed_locations, store, plan.limits), only or [None] * files.height
    )
    if predicate is not None:
        reading.keep_where(predicate, roots, satisfied)
    schema = plan.arrow_schema
    for column in _POSITIONS if positions else ():
        schema = schema.append(column)
    return _selected(reading, schema, batch_rows)


def _selected(
    reading: _Reading, schema: pa.Schema, batch_rows: int
) -> Generator[pa.RecordBatch, None, None]:
    # Closed explicitly, because garbage collection may run in a starting thread of the pool, which
    # would wait for itself.
    with closing(reading.batches()) as batches:
        selected = (batch.select(schema.names) for batch in batches)
        yield from _gathered(selected, schema, batch_rows)


@dataclass(frozen=True)
class _File:
    """A data file, its number, deleted rows, the only rows to read, and row tracking."""

    index: int
    path: str
    size_bytes: int | None
    vector: Vector | None
    only: Vector | None
    tracking: tuple[int, int] | None = None


class _Piece(NamedTuple):
    """Rows of a file, `first` to before `last`, without deleted ones; `raw` is None if the file has
    none of the wanted columns.
    """

    file: _File
    columns: Columns | None
    raw: pa.RecordBatch | None
    first: int
    last: int
    deleted: Rows | None
    num_rows: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers of the rows that are not deleted."""
        rows = np.arange(self.first, self.last)
        if self.deleted is None:
            return rows
        low, high = np.searchsorted(self.deleted, (self.first, self.last))
        return np.delete(rows, self.deleted[low:high].astype(np.int64) - self.first)


class _Reading:
    """One call of `read_files`: the state that all its files share."""

    def __init__(self, plan: ReadPlan, batch_rows: int, positions: Sequence[pa.Field] = ()) -> None:
        self._plan = plan
        self._batch_rows = batch_rows
        self._fields = [plan.fields[n] for n in plan.columns if n not in plan.partition_columns]
        self._ids = plan.row_ids
        self._fields += [contract.Field(n, contract.Primitive("long")) for n in plan.row_ids or ()]
        self._partitions = [n for n in plan.columns if n in plan.partition_columns]
        self._schema = plan.arrow_schema
        self._positions = positions
        self._columns: list[tuple[pa.Schema, Calendar, Columns]] = []
        self._files: list[_File] = []
        self._predicate: pl.Expr | None = None
        self._satisfied = True
        self._roots: tuple[str, ...] = ()

    def prepare(self, files: pl.DataFrame, sources: Sources, only: Sequence[Vector | None]) -> None:
        """Prepare the log's facts about each file; nothing is opened yet."""
        self._sources = sources
        self._stats = files["stats"]
        self._vectors = VectorReader(sources.open)
        self._values = self._partition_values(files)
        # Some writers record 0 or -1 for an unknown size.
        sizes = files.select(pl.when(pl.col("size") > 0).then("size")).to_series()
        self._files = [
            _File(index, path, size, vector, only_, ids)
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
        tracking = files.select(actions.ROW_IDS)
        unknown = tracking["baseRowId"].is_null() | tracking["defaultRowCommitVersion"].is_null()
        if unknown.any():
            raise CorruptionError(
                "the table has row tracking, and a file has no base row id or no commit version",
                path=files["path"].filter(unknown)[0],
                version=self._plan.version,
                expected="baseRowId and defaultRowCommitVersion",
                found=tracking.filter(unknown).row(0),
                hint="the writer of the file violated the Delta protocol: set "
                "delta.enableRowTracking to false, add the files again "
                "(tx.add(tx.read().collect(), dataChange=False)), and set it to true",
            )
        return tracking.rows()

    def keep_where(self, predicate: pl.Expr, roots: tuple[str, ...], satisfied: bool) -> None:
        """Keep only rows for which `predicate`, over the columns `roots`, is true, or the others.

        The predicate is never part of another expression: in one, Polars gives other outcomes for
        some nulls, such as that of `is_between`.
        """
        self._predicate, self._satisfied = predicate, satisfied
        self._roots = roots

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, file by file, read ahead by threads."""
        is_local = self._sources.is_local
        threads = _LOCAL_THREADS if is_local else _REMOTE_THREADS
        threads = max(1, min(threads, len(self._files), 2 * (os.cpu_count() or 1)))
        pending: deque[Future[_Opened]] = deque()
        waiting = deque(_groups(self._files) if is_local else ([file] for file in self._files))
        ahead_bytes: deque[int] = deque()
        pool = Pool(threads, thread_name_prefix="lakelog-rows")
        try:
            while waiting or pending:
                # The current files, the next ones, and more if they are small.
                while waiting and (
                    len(pending) < 2
                    or (len(pending) < 2 * threads and sum(ahead_bytes) < _PREFETCH_BYTES)
                ):
                    files = waiting.popleft()
                    pending.append(pool.submit(self._open, files))
                    ahead_bytes.append(sum(file.size_bytes or _WHOLE_BYTES for file in files))
                opened = pending.popleft().result()
                ahead_bytes.popleft()
                if opened.rest is None:
                    yield from opened.batches
                    if opened.error is not None:
                        raise opened.error
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

    def _open(self, files: Sequence[_File]) -> _Opened:
        """The rows of small files, or the first rows of a large one."""
        batches = self._filtered(files)
        room = 0
        if all(f.size_bytes is not None and f.size_bytes <= _WHOLE_BYTES for f in files):
            room = _WHOLE_MEMORY_BYTES
        taken: list[pa.RecordBatch] = []
        try:
            for batch in batches:
                taken.append(batch)
                room -= batch.get_total_buffer_size()
                if room < 0:
                    return _Opened(taken, batches)
        except Exception as error:  # noqa: BLE001 - raised after the rows of the files before
            return _Opened(taken, None, error)
        return _Opened(taken, None)

    def _filtered(self, files: Sequence[_File]) -> Iterator[pa.RecordBatch]:
        """The rows for which the predicate is true; its errors do not name the file."""
        for pieces in self._pieces(files):
            for batch in self._assembled(pieces):
                kept = batch if self._predicate is None else self._matching(batch, self._predicate)
                if kept.num_rows:
                    yield kept

    def _pieces(self, files: Sequence[_File]) -> Iterator[list[_Piece]]:
        """The rows of files of one schema together, up to the rows of a batch."""
        pending: list[_Piece] = []
        rows = size_bytes = 0
        try:
            for file in files:
                for piece in self._read(file):
                    if not piece.num_rows:
                        continue
                    if pending and (
                        piece.columns is not pending[0].columns
                        or rows + piece.num_rows > self._batch_rows
                    ):
                        yield pending
                        pending, rows, size_bytes = [], 0, 0
                    pending.append(piece)
                    rows += piece.num_rows
                    size_bytes += 0 if piece.raw is None else piece.raw.get_total_buffer_size()
                    if rows >= self._batch_rows or size_bytes >= _WHOLE_MEMORY_BYTES:
                        yield pending
                        pending, rows, size_bytes = [], 0, 0
        except Exception:
            if pending:
                yield pending
            raise
        if pending:
            yield pending

    def _read(self, file: _File) -> Iterator[_Piece]:
        try:
            parquet, by_group = self._sources.parquet(file.path, file.size_bytes)
            try:
                num_rows = parquet.metadata.num_rows
                deleted = None
                if file.vector is not None:
                    deleted = self._vectors.read(file.vector, num_rows)
                columns = self._columns_of(parquet) if self._fields else None
                require_contents(
                    self._stats[file.index],
                    num_rows,
                    0 if deleted is None else len(deleted),
                    () if columns is None else columns.absent,
                )
                _check_deleted(deleted, num_rows)
                kept = None
                if file.only is not None:
                    kept = self._kept(file.only, deleted, num_rows)
                    deleted = _others(kept, num_rows)
                for first, last, raw in self._rows(parquet, columns, deleted, kept, by_group):
                    left = _num_left(first, last, deleted)
                    yield _Piece(file, columns, raw, first, last, deleted, left)
            finally:
                parquet.close(force=True)
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_explained(error, file)

    def _raise_explained(self, error: Exception, file: _File) -> NoReturn:
        version = self._plan.version
        raise_explained(error, file.path, version, self._sources, file.size_bytes)

    def _kept(self, only: Vector, deleted: Rows | None, num_rows: int) -> Rows:
        """The rows of `only` that are not deleted."""
        kept = self._vectors.read(only, num_rows)
        _check_deleted(kept, num_rows)
        return kept if deleted is None else np.setdiff1d(kept, deleted, assume_unique=True)

    def _matching(self, batch: pa.RecordBatch, predicate: pl.Expr) -> pa.RecordBatch:
        if not self._roots:  # one result for all rows
            is_true = bool(pl.select(predicate).item())
            return batch if is_true == self._satisfied else batch.slice(0, 0)
        frame = pl.DataFrame(pl.from_arrow(batch.select(list(self._roots))))
        mask = outcome_of(predicate, frame).fill_null(value=False)
        mask = mask if self._satisfied else ~mask
        return batch if mask.all() else batch.filter(mask.to_arrow())

    def _rows(
        self,
        parquet: pq.ParquetFile,
        columns: Columns | None,
        deleted: Rows | None,
        kept: Rows | None,
        by_group: bool,
    ) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
        """Ranges of rows: first row, end, and the leaves of those that are not deleted."""
        for start, end, groups in self._runs(parquet, columns, kept, by_group):
            if columns is None or not columns.leaves:
                for first in range(start, end, self._batch_rows):
                    yield first, min(first + self._batch_rows, end), None
                continue
            first = start
            for raw in parquet.reader.iter_batches(
                self._batch_rows,
                row_groups=groups,
                column_indices=columns.leaves,
                use_threads=parquet.metadata.num_rows > self._batch_rows,
            ):
                last = first + raw.num_rows
                yield first, last, raw if deleted is None else _without(raw, first, deleted)
                first = last
            if first != end:
                raise CorruptionError(
                    "the number of rows in a data file differs from its footer",
                    expected=end - start,
                    found=first - start,
                    hint="restore the file from a copy; its rows cannot be read",
                )

    def _runs(
        self,
        parquet: pq.ParquetFile,
        columns: Columns | None,
        kept_rows: Rows | None,
        by_group: bool,
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Contiguous row groups to read: first row, end, and numbers of the groups."""
        metadata = parquet.metadata
        count = metadata.num_row_groups
        if count <= 1 or (self._predicate is None and kept_rows is None and not by_group):
            yield 0, metadata.num_rows, list(range(count))
            return
        keep = [True] * count
        if self._predicate is not None:
            leaves = {} if columns is None else columns.plain
            fields, satisfied = self._plan.fields, self._satisfied
            keep = row_groups(metadata, self._predicate, fields, leaves, satisfied=satisfied)
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
        """Null columns, for a file that has none of the columns."""
        arrays = []
        for field in self._fields:
            own = self._schema.field(field.name)
            array = pa.nulls(count, own.type)
            require_values(array, own)
            arrays.append(array)
        return arrays

    def _columns_of(self, parquet: pq.ParquetFile) -> Columns:
        schema, calendar = parquet.schema_arrow, Calendar.of(parquet.metadata)
        for known, days, columns in self._columns:
            if days == calendar and (known is schema or known.equals(schema, check_metadata=True)):
                return columns
        columns = Columns.of(schema, self._fields, self._plan.mapping, calendar)
        self._columns = [(schema, calendar, columns), *self._columns[: _KEPT_SCHEMAS - 1]]
        return columns

    def _assembled(self, pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
        """Batches of the plan's columns, and of positions if they were requested."""
        if len(pieces) > 1:
            joined = None
            with suppress(*_READ_ERRORS):  # read separately below, to name the file that fails
                joined = self._batch(pieces)
            if joined is not None:
                yield joined
                return
        for piece in pieces:
            try:
                batch = self._batch([piece])
            except Exception as error:  # noqa: BLE001 - raised again
                self._raise_explained(error, piece.file)
            yield batch

    def _batch(self, pieces: list[_Piece]) -> pa.RecordBatch:
        count = sum(piece.num_rows for piece in pieces)
        if not self._schema.names and not self._positions:
            return _uncolumned(count)
        columns, raw = pieces[0].columns, [p.raw for p in pieces if p.raw is not None]
        arrays = self._nulls(count) if columns is None or not raw else columns.convert(_one(raw))
        parts = dict(zip((f.name for f in self._fields), arrays, strict=True))
        indices = as_int64(np.array([piece.file.index for piece in pieces]))
        for name, values in zip(self._partitions, self._values, strict=True):
            field = self._schema.field(name)
            parts[name] = _repeated(values.take(indices), pieces)
            require_values(parts[name], field)
        if self._ids is not None:
            tracking = np.array([piece.file.tracking for piece in pieces], np.int64)
            bases = zip(pieces, tracking[:, 0], strict=True)
            ids = as_int64(np.concatenate([piece.rows + base for piece, base in bases]))
            since = _repeated(as_int64(tracking[:, 1]), pieces)
            for name, values in zip(self._ids, (ids, since), strict=True):
                parts[name] = _or_else(parts[name], values)
        batch = [parts[name] for name in self._schema.names]
        if not self._positions:
            return pa.RecordBatch.from_arrays(batch, schema=self._schema)
        batch.append(_repeated(indices, pieces))
        batch.append(as_int64(np.concatenate([piece.rows for piece in pieces])))
        return pa.RecordBatch.from_arrays(
            batch, schema=pa.schema([*self._schema, *self._positions])
        )

    def _partition_values(self, files: pl.DataFrame) -> list[pa.Array]:
        """The values of each partition column, one per file, as Arrow arrays."""
        typed = partition_values(files, self._plan, self._partitions)
        return [
            values.to_arrow().cast(self._schema.field(name).type)
            for name, values in zip(self._partitions, typed, strict=True)
        ]


@dataclass(frozen=True)
class _Opened:
    """Batches that a thread has read, and the iterator of the rest, or the error after them."""

    batches: list[pa.RecordBatch]
    rest: Iterator[pa.RecordBatch] | None
    error: Exception | None = None

    def close(self) -> None:
        """Close the iterator of the rest."""
        if self.rest is not None and (close := getattr(self.rest, "close", None)):
            close()


def _prefetched(opened: _Opened, pool: Pool) -> Iterator[pa.RecordBatch]:
    """All batches of a large file, each read while the caller processes the previous one."""
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
            future.exception()  # a running generator cannot be closed
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
    """The rows of a file except `rows`."""
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
    return batch.filter(as_mask(keep))


def _groups(files: Sequence[_File]) -> Iterator[list[_File]]:
    """The files that one thread reads; groups grow, because a caller may need few rows."""
    group: list[_File] = []
    size_bytes, most = 0, 1
    for file in files:
        size = file.size_bytes or _WHOLE_BYTES
        if group and (len(group) == most or size_bytes + size > _WHOLE_BYTES):
            yield group
            group, size_bytes, most = [], 0, 2 * most
        group.append(file)
        size_bytes += size
    if group:
        yield group


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of batches of one schema as one batch."""
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks(_POOL).to_batches()
    return joined


def _repeated(values: pa.Array, pieces: Sequence[_Piece]) -> pa.Array:
    """Each piece's value, repeated for each of its rows."""
    ends = np.cumsum([piece.num_rows for piece in pieces])
    type_ = pa.run_end_encoded(pa.int64(), values.type)
    # `from_arrays` would import pandas if it is installed.
    runs = pa.RunEndEncodedArray.from_buffers(
        type_, int(ends[-1]), [None], children=[as_int64(ends), values]
    )
    return pc.run_end_decode(runs, memory_pool=_POOL)


def _num_left(first: int, last: int, deleted: Rows | None) -> int:
    """Number of rows from `first` to before `last` that are not deleted."""
    if deleted is None:
        return last - first
    low, high = np.searchsorted(deleted, (first, last))
    return last - first - int(high - low)


def _or_else(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, or the others if null."""
    if values.null_count == len(values):
        return others
    return pc.coalesce(values, others) if values.null_count else values


def _uncolumned(count: int) -> pa.RecordBatch:
    """A batch with rows and without columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["rows"]).select([])


def _gathered(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches; one of a quarter of `batch_rows` is not copied."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if rows + batch.num_rows > batch_rows:
            yield from _joined(pending, schema)
            pending, rows = [], 0
        pending.append(batch)
        rows += batch.num_rows
        if 4 * rows >= batch_rows:
            yield from _joined(pending, schema)
            pending, rows = [], 0
    yield from _joined(pending, schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Sequence[pa.RecordBatch]:
    if len(batches) <= 1:
        return batches
    if not schema.names:
        return [_uncolumned(sum(batch.num_rows for batch in batches))]
    joined: list[Any] = pa.Table.from_batches(batches, schema).combine_chunks(_POOL).to_batches()
    return joined


def row_groups(
    metadata: pq.FileMetaData,
    predicate: pl.Expr,
    fields: Mapping[str, contract.Field],
    leaves: Mapping[str, int],
    *,
    satisfied: bool,
) -> list[bool]:
    """For each row group, whether it may contain a row for which `predicate` is true, or another
    one, as `satisfied` demands.
    """
    count = metadata.num_row_groups
    known = {
        name: leaf
        for name, leaf in leaves.items()
        if name in predicate.meta.root_names()
        and has_bounds(fields[name].type)
        and _is_ordered(metadata, leaf)
    }
    if not known:
        return [True] * count
    require_valid_chunks(metadata, range(count), list(known.values()))
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
        predicate,
        schema=schema,
        partition_columns=(),
        partitions=partitions,
        stats=stats,
        satisfied=satisfied,
    )
    return keep.to_list()


def _is_ordered(metadata: pq.FileMetaData, leaf: int) -> bool:
    """Whether the bounds of a column are in the order of its values: parquet-mr before 1.10 ordered
    decimals in bytes by their bytes, and Arrow does not drop these bounds.
    """
    column = metadata.schema.column(leaf)
    in_bytes = column.physical_type in {"FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY"}
    writer = metadata.created_by
    is_known = bool(writer) and not is_of_old_writer(writer)
    return is_known or not in_bytes or column.logical_type.type != "DECIMAL"


def _bounds(statistics: Any) -> tuple[Any, Any, int | None]:
    """Least and greatest value and number of nulls; None if unknown."""
    if statistics is None:
        return None, None, None
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return None, None, nulls
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError):  # outside Python's range, or not valid text
        return None, None, nulls
    if any(isinstance(value, float) and math.isnan(value) for value in (low, high)):
        return None, None, nulls
    return low, high, nulls
