"""Changes rows of files: marks them by deletion vectors, or copies the other rows.

Source: Delta protocol, Add File and Remove File; Deletion Vectors; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.arrow_arrays import array_of, as_int64, as_mask, numbers_of, retyped
from lakelog.data.conform import Conform
from lakelog.data.deletion_vectors import Vector, VectorReader, VectorWriter
from lakelog.data.file_opening import Sources
from lakelog.data.files import ReadPlan, row_id_columns
from lakelog.data.layout import IN_MEMORY
from lakelog.data.parquet_file import CopySource
from lakelog.data.read import BATCH_ROWS, FILE_INDEX, ROW_INDEX, read_files
from lakelog.data.row_commit import RowCommit, WriteReport
from lakelog.data.targets import Selection, Targets, known_rows, live_rows, touched_rows
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.data.write_plan import CHANGE_TYPE
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.metadata import is_on
from lakelog.skipping.statistics import num_records
from lakelog.storage import LogStore
from lakelog.threads import Pool
from lakelog.transaction.file_rules import added_again

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VECTORS = "delta.enableDeletionVectors"
_LANE, _GROUP, _GROUP_ROWS = "\x00lane", "\x00group", 4_000_000
_MEMORY_BYTES, _LEAST_BYTES = 256 << 20, 4 << 20
_TOUCHED_BYTES = 64  # peak memory per row of a group
_WRITER_SHARE, _BATCH_SHARE = 4, 16
_ROW_BITS = 40
_COPIED_BYTES, _COPIED_CHUNKS = 1 << 20, 64  # smaller files are joined, shorter chunks decoded
_OPENERS = 8
_RAW = {32: pa.int32(), 64: pa.int64()}
_TIGHT_BOUNDS = '"tightBounds"'


@dataclass(frozen=True)
class Outcome:
    """The positions of changing rows, ascending, and the rows before and after (None: deleted)."""

    rows: NDArray[np.intp]
    before: pa.Table
    after: pa.Table | None = None


@dataclass(frozen=True)
class UpdatedColumns:
    """Columns that are assigned, and columns that the new values and the table's rules read."""

    assigned: frozenset[str]
    read: frozenset[str]


class Change(Selection):
    """Which rows change, and how; this one deletes all rows for which a condition is true.
    `updates`: `outcomes` may give other than deleted rows, and so reads all columns. `updated`: the
    columns of updated rows, None if rows may be deleted. No new version of a row depends on the old
    values of `overwritten`.
    """

    updates = False
    writes = False
    updated: UpdatedColumns | None = None
    overwritten: frozenset[str] = frozenset()

    def outcomes(self, rows: pa.Table) -> Iterator[Outcome]:
        """The outcomes of changing rows."""
        yield Outcome(np.arange(rows.num_rows), rows)


def marks_rows(snapshot: LogSnapshot) -> bool:
    """Whether deletion vectors mark changing rows, so that the others are not copied."""
    table = snapshot.table_configuration
    is_wanted = is_on(table.metadata.configuration, _VECTORS)
    return is_wanted and table.supports("deletionVectors")


class _Marking:
    """Marks deleted rows, which are passed file by file, by deletion vectors."""

    def __init__(
        self, snapshot: LogSnapshot, files: pl.DataFrame, writer: VectorWriter, store: LogStore
    ) -> None:
        self._files, self._writer = files, writer
        self._live = live_rows(snapshot, files, store)
        self._old = Vector.of(files)
        self._reader = VectorReader(
            Sources(ReadPlan.of(snapshot, ()).allowed_locations, store).open
        )
        self._current = -1
        self._pending: list[Any] = []
        self._whole: list[int] = []
        self._marked: list[int] = []
        self._vectors: list[dict[str, Any]] = []
        self.rows_matched = 0

    def take(self, batch: pa.Table) -> None:
        """Add the positions of rows, as `read_files` returns them."""
        if not batch.num_rows:
            return
        files, rows = numbers_of(batch[FILE_INDEX]), numbers_of(batch[ROW_INDEX])
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
        """The removed files, and the files with vectors that replace those with other rows."""
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
    """Wide statistics of a file; the text is kept, because a parser could round numbers."""
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


@dataclass
class _Waiting:
    """Rows to be written to the files of one lane, and which of them change."""

    lane: int | None
    most_bytes: int
    tables: list[pa.Table] = field(default_factory=list)
    masks: list[NDArray[np.bool_]] = field(default_factory=list)
    size_bytes: int = 0


class Rewriter:
    """Changes rows of files, and adds the files' actions to the transaction. Deletion vectors mark
    rows that change; without them, the other rows of their files are copied. Copied and updated
    rows keep their row ids. Memory: about `memory_limit` bytes.
    """

    def __init__(self, commit: RowCommit, change: Change, memory_limit: int | None = None) -> None:
        self._commit, self._change = commit, change
        self._snapshot, self._store = commit.snapshot, commit.log.store
        self._marks_rows = marks_rows(self._snapshot)
        self._memory_bytes = max(_LEAST_BYTES, memory_limit or _MEMORY_BYTES)
        self._batch_bytes = self._memory_bytes // _BATCH_SHARE
        self._row_ids: tuple[str, str] | None = None
        self._plan: WritePlan | None = None
        self._conform: Conform | None = None
        self._data: DataFileWriter | None = None
        self._copies: DataFileWriter | None = None
        self._changes: DataFileWriter | None = None
        self._removed_files: list[pl.DataFrame] = []
        self._again = pl.DataFrame()
        self._deleted = self._updated = self._copied = self._inserted = 0
        self._removed_rows: int | None = 0

    def remove(self, files: pl.DataFrame) -> None:
        """Delete all rows of files without reading them; call this last, because the commit's
        change data, which readers use alone, must then include these rows.
        """
        if not files.height:
            return
        self._removed_files.append(files)
        self._removed_rows = known_rows(self._snapshot, files, self._store)
        if self._changes is not None or (self._commit.joins and self._commit.keeps_changes):
            for batch in read_files(ReadPlan.of(self._snapshot), files, store=self._store):
                self._record("delete", pa.Table.from_batches([batch]))

    def change(self, files: pl.DataFrame) -> None:
        """Read files, and change their rows."""
        if not files.height:
            return
        keeps_changes = self._commit.keeps_changes
        self._commit.require_allowed("add", "remove", *(["cdc"] if keeps_changes else []))
        if self._change.writes:
            self._planned()  # refuses rules that cannot be evaluated
        if self._marks_rows:
            self._mark(files)
        else:
            self._copy(files)

    def insert(self, rows: pa.Table) -> None:
        """Write new rows."""
        plan = self._planned()
        if self._conform is None:
            self._conform = self._commit.conform(plan)
        rows = self._conform.table(rows)
        self._inserted += rows.num_rows
        self._write(rows)
        self._record("insert", rows)

    def _mark(self, files: pl.DataFrame) -> None:
        change = self._change
        columns = set(change.columns)
        if change.updates or self._commit.keeps_changes:
            columns |= set(self._snapshot.schema.names)
        if not self._commit.keeps_changes:
            columns -= change.overwritten
        plan = ReadPlan.of(self._snapshot, self._in_order(columns), row_ids=change.updates)
        self._row_ids = plan.row_ids
        wanted = ReadPlan.of(self._snapshot, row_ids=True).arrow_schema if change.updates else None
        vectors = self._commit.vector_writer()
        marking = _Marking(self._snapshot, files, vectors, self._store)
        waiting = _Waiting(None, self._batch_bytes)
        with closing(touched_rows(plan, files, self._change, self._store)) as batches:
            for rows in batches:
                marking.take(rows)
                mask = np.ones(rows.num_rows, bool)
                touched = rows.drop_columns([FILE_INDEX, ROW_INDEX])
                self._put(waiting, _completed(touched, wanted), mask)
        self._write_waiting(waiting)
        targets, again = marking.finish()
        self._again = added_again(again, self._snapshot.table_configuration)
        self._removed_files.append(targets.files)

    def _copy(self, files: pl.DataFrame) -> None:
        """Copy files, in several contiguous lanes in turn, each to files of its own."""
        rows = num_records(files["stats"]).fill_null(_GROUP_ROWS)
        before = rows.cum_sum() - rows
        size_bytes = IN_MEMORY * int(files["size"].sum())
        lanes = self._data_writer().open_lanes(int(rows.sum()), size_bytes)
        most = min(_GROUP_ROWS, self._memory_bytes // _TOUCHED_BYTES) // lanes
        # A group's positions fit in memory, and its pages are still in the page cache.
        groups = files.with_columns(
            (before * lanes // max(1, int(rows.sum()))).alias(_LANE), (before // most).alias(_GROUP)
        )
        shares = groups.partition_by(_LANE, maintain_order=True, include_key=False)
        # A single large file is copied to several files in turn.
        numbers = range(len(shares)) if len(shares) > 1 else [None]
        copying = [
            self._copy_share(share, _Waiting(lane, self._batch_bytes // lanes))
            for lane, share in zip(numbers, shares, strict=True)
        ]
        with ExitStack() as stack:
            for each in copying:
                stack.enter_context(closing(each))
            while copying:
                copying = [each for each in copying if next(each, None) is not None]

    def _copy_share(self, files: pl.DataFrame, waiting: _Waiting) -> Generator[int, None, None]:
        """Copy files; yields the number of rows after each batch."""
        for group in files.partition_by(_GROUP, maintain_order=True, include_key=False):
            with closing(self._copied_rows(group, waiting.most_bytes)) as batches:
                for rows, mask in batches:
                    self._put(waiting, rows, mask)
                    yield rows.num_rows
        self._write_waiting(waiting)

    def _copied_rows(
        self, files: pl.DataFrame, batch_bytes: int
    ) -> Generator[tuple[pa.Table, NDArray[np.bool_]], None, None]:
        """The rows of files with changing rows, and which of them change."""
        plan = ReadPlan.of(self._snapshot, self._change.columns)
        found = [_places(rows) for rows in touched_rows(plan, files, self._change, self._store)]
        touched = np.concatenate([np.empty(0, np.int64), *found])
        counts = np.bincount(touched >> _ROW_BITS, minlength=files.height)
        hit = np.flatnonzero(counts)
        is_whole = counts[hit] == live_rows(self._snapshot, files[hit], self._store).to_numpy()
        self._removed_files.append(files[hit])
        if not self._change.updates and not self._commit.keeps_changes:
            self._deleted += int(counts[hit][is_whole].sum())
            hit = hit[~is_whole]
        hit = np.setdiff1d(hit, self._copy_columns(files, hit, touched))
        # Without rows of files that are not read again, which `_with_mask` would misplace.
        touched = touched[np.isin(touched >> _ROW_BITS, hit)]
        plan = ReadPlan.of(self._snapshot, row_ids=True)
        self._row_ids = plan.row_ids
        batches = read_files(
            plan,
            files[hit],
            store=self._store,
            batch_rows=_batch_rows(files, batch_bytes),
            positions=True,
        )
        for batch in batches:
            yield _with_mask(pa.Table.from_batches([batch]), hit, touched)

    def _copy_columns(
        self, files: pl.DataFrame, hit: NDArray[np.intp], touched: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Copy files with new columns, without decoding the others; returns their numbers."""
        sources = self._copy_sources(files, hit)
        updated = self._change.updated
        if not sources or updated is None:
            return hit[:0]
        numbers = np.array(list(sources))
        columns = None if self._commit.keeps_changes else self._in_order(updated.read)
        plan = ReadPlan.of(self._snapshot, columns, row_ids=True)
        self._row_ids = plan.row_ids
        if self._copies is None:
            written = (*self._in_order(updated.assigned), *(plan.row_ids or ()))
            writer = self._planned().with_row_ids(plan.row_ids).of_columns(written)
            self._copies = self._writer(writer)
        with closing(read_files(plan, files[numbers], store=self._store)) as batches:
            rows = _Rows(batches)
            for number, source in sources.items():
                first = number << _ROW_BITS
                low, high = np.searchsorted(touched, (first, first + (1 << _ROW_BITS)))
                groups = self._changed_groups(source, rows, touched[low:high] - first)
                self._copies.copy_file(source, groups)
        return numbers

    def _changed_groups(
        self, source: CopySource, rows: _Rows, touched: NDArray[np.int64]
    ) -> Iterator[pa.Table]:
        """The row groups of a file with new values in the rows `touched`."""
        start = 0
        for group in source.groups:
            mask = np.zeros(group.num_rows, bool)
            low, high = np.searchsorted(touched, (start, start + group.num_rows))
            mask[touched[low:high] - start] = True
            yield self._changed(rows.take(group.num_rows), mask)[0]
            start += group.num_rows

    def _copy_sources(self, files: pl.DataFrame, hit: NDArray[np.intp]) -> dict[int, CopySource]:
        """The files of which columns can be copied as they are encoded, by number."""
        updated, options = self._change.updated, self._commit.options
        metadata = self._snapshot.metadata
        if (
            updated is None
            or not updated.assigned.isdisjoint(metadata.partition_columns)
            or options.compression is not None
            or options.target_file_bytes is not None
        ):
            return {}
        is_large = (files["size"].fill_null(0) >= _COPIED_BYTES) & files["dvStorageType"].is_null()
        numbers = hit[is_large.to_numpy()[hit]]
        plan = self._planned()
        kept = [field for field in plan.file_fields if field.name not in updated.assigned]
        keeps_changes = self._commit.keeps_changes
        read = [f for f in plan.file_fields if keeps_changes or f.name in updated.read]
        sources = Sources(ReadPlan.of(self._snapshot, ()).allowed_locations, self._store)
        # The more columns are copied, the larger a row group may be to decode.
        group_bytes = self._memory_bytes // 2 * len(kept) // len(plan.file_fields)
        copied = added_again(files[numbers], self._snapshot.table_configuration)

        def source(file: Mapping[str, Any]) -> CopySource | None:
            if len(file["partitionValues"] or ()) < len(metadata.partition_columns):
                return None  # reading the file raises an error
            return CopySource.of(
                file,
                sources,
                kept,
                read,
                plan.mapping,
                group_bytes=group_bytes,
                chunk_bytes=_COPIED_BYTES // _COPIED_CHUNKS,
            )

        with Pool(_OPENERS, thread_name_prefix="lakelog-footers") as pool:
            found = pool.map(source, copied.iter_rows(named=True))
            pairs = zip(numbers.tolist(), found, strict=True)
            return {number: source for number, source in pairs if source is not None}

    def _in_order(self, columns: Collection[str]) -> list[str]:
        """Columns in the order of the table's schema."""
        return [name for name in self._snapshot.schema.names if name in columns]

    def _put(self, waiting: _Waiting, rows: pa.Table, mask: NDArray[np.bool_]) -> None:
        """Add rows, some of which change; they wait, because each call of `outcomes` has a cost."""
        if not rows.num_columns:  # concatenated tables without columns lose their rows
            self._deleted += rows.num_rows
            return
        waiting.tables.append(rows)
        waiting.masks.append(mask)
        waiting.size_bytes += rows.nbytes
        if waiting.size_bytes >= waiting.most_bytes:
            self._write_waiting(waiting)

    def _write_waiting(self, waiting: _Waiting) -> None:
        """Write the waiting rows, in order."""
        if not waiting.tables:
            return
        rows = pa.concat_tables(waiting.tables)
        mask = np.concatenate(waiting.masks)
        waiting.tables, waiting.masks, waiting.size_bytes = [], [], 0
        rows, deleted = self._changed(rows, mask)
        self._write(rows.filter(as_mask(~deleted)) if deleted.any() else rows, waiting.lane)

    def _changed(
        self, rows: pa.Table, mask: NDArray[np.bool_]
    ) -> tuple[pa.Table, NDArray[np.bool_]]:
        """The rows with the new versions of changing ones, and which are deleted."""
        positions = np.flatnonzero(mask)
        self._copied += len(mask) - len(positions)
        if not len(positions):
            return rows, mask
        touched = rows.filter(as_mask(mask)).combine_chunks()
        updated: list[Outcome] = []
        deleted = mask  # cleared for rows with a new version
        for outcome in self._change.outcomes(touched):
            if outcome.after is None:
                self._deleted += len(outcome.rows)
                self._record("delete", outcome.before)
                continue
            self._updated += len(outcome.rows)
            rules = self._planned().rules
            if rules is not None:
                rules.check(outcome.after)
            self._record("update_preimage", outcome.before)
            self._record("update_postimage", outcome.after)
            after = outcome.after
            if self._row_ids is not None:  # null: the row commit version is this commit's
                index = after.column_names.index(self._row_ids[1])
                unset = pa.nulls(after.num_rows, after.schema.field(index).type)
                after = after.set_column(index, after.schema.field(index), unset)
            updated.append(replace(outcome, after=after))
            deleted[positions[outcome.rows]] = False
        return _updated(rows, positions, updated) if updated else rows, deleted

    def _write(self, rows: pa.Table, lane: int | None = None) -> None:
        if rows.num_rows:
            self._data_writer().copy(rows, lane)

    def _data_writer(self) -> DataFileWriter:
        if self._data is None:
            row_ids = row_id_columns(self._snapshot)
            self._data = self._writer(self._planned().with_row_ids(row_ids))
        return self._data

    def _record(self, kind: str, rows: pa.Table) -> None:
        if not self._commit.keeps_changes or not rows.num_rows:
            return
        if self._changes is None:
            self._changes = self._writer(self._planned().of_changes())
        rows = rows.drop_columns([n for n in self._row_ids or () if n in rows.column_names])
        self._changes.copy(marked(rows, kind))

    def _writer(self, plan: WritePlan) -> DataFileWriter:
        return self._commit.writer(plan, memory_bytes=self._memory_bytes // _WRITER_SHARE)

    def _planned(self) -> WritePlan:
        if self._plan is None:
            self._plan = self._commit.write_plan(new_rows=self._change.writes)
        return self._plan

    def finish(self) -> Rewritten:
        """Finish the files, and add their actions to the transaction."""
        tx = self._commit.tx
        writers = [each for each in (self._data, self._copies) if each is not None]
        files = pl.concat([each.finish() for each in writers]) if writers else pl.DataFrame()
        changes = pl.DataFrame() if self._changes is None else self._changes.finish()
        removed_files = pl.concat(self._removed_files) if self._removed_files else pl.DataFrame()
        for frame, put in (
            (files, self._commit.put_files),
            (self._again, self._commit.put_files),
            (removed_files, self._commit.remove_files),
            (changes, tx.cdc),
        ):
            if frame.height:
                put(frame)
        return Rewritten(
            files,
            changes,
            removed_files,
            self._again,
            deleted=None if self._removed_rows is None else self._deleted + self._removed_rows,
            updated=self._updated,
            copied=self._copied,
            inserted=self._inserted,
        )


class _Rows:
    """Takes rows from batches in any number."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: list[pa.RecordBatch] = []

    def take(self, count: int) -> pa.Table:
        """The next `count` rows, which must exist."""
        taken = self._rest
        rows = sum(batch.num_rows for batch in taken)
        while rows < count:
            taken.append(next(self._batches))
            rows += taken[-1].num_rows
        last = taken[-1]
        inside = last.num_rows - (rows - count)
        self._rest = [last.slice(inside)] if rows > count else []
        return pa.Table.from_batches([*taken[:-1], last.slice(0, inside)])


def _with_mask(
    table: pa.Table, files: NDArray[np.intp], touched: NDArray[np.int64]
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Rows of files without their positions, and which of them change."""
    places = _places(table, files)
    low, high = np.searchsorted(touched, (places[0], places[-1] + 1))
    mask = np.zeros(len(places), bool)
    mask[np.searchsorted(places, touched[low:high])] = True
    return table.drop_columns([FILE_INDEX, ROW_INDEX]), mask


def _batch_rows(files: pl.DataFrame, batch_bytes: int) -> int:
    """Number of rows to read at once, with all columns."""
    rows = max(1, int(num_records(files["stats"]).sum() or 0))
    row_bytes = max(1, IN_MEMORY * int(files["size"].sum()) // rows)
    return max(1, min(BATCH_ROWS, batch_bytes // row_bytes))


def _updated(rows: pa.Table, positions: NDArray[np.intp], outcomes: Sequence[Outcome]) -> pa.Table:
    """The rows with the new versions at `positions`; columns without new values are not copied."""
    places = np.concatenate([positions[outcome.rows] for outcome in outcomes])
    order = np.arange(rows.num_rows)
    order[places] = np.arange(rows.num_rows, rows.num_rows + len(places))
    columns = rows.columns
    for index, own in enumerate(rows.schema):
        before, after = [], []
        for outcome in outcomes:
            assert outcome.after is not None
            before.append(outcome.before.column(index))
            after.append(outcome.after.column(index))
        if all(map(_is_same, before, after)):
            continue
        new = [chunk for column in after for chunk in _narrowed(column, own).chunks]
        columns[index] = _placed(columns[index], pa.chunked_array(new, own.type), places, order)
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _narrowed(column: pa.ChunkedArray, own: pa.Field) -> pa.ChunkedArray:
    """Values of the type of `Conform.table` in a field's own type, in which fields of a struct that
    is null may be required.
    """
    if not pa.types.is_nested(own.type):
        return column.cast(own.type)
    (field,) = contract.from_arrow(pa.schema([own]), void=True).fields
    return retyped(column.cast(contract.to_arrow(contract.nullable(field).type)), own.type)


def _placed(
    column: pa.ChunkedArray,
    values: pa.ChunkedArray,
    places: NDArray[np.intp],
    order: NDArray[np.int64],
) -> pa.Array:
    """A column with new values in some places; `order` gathers the result from both together."""
    own = column.type
    raw = _RAW.get(own.bit_width) if pa.types.is_primitive(own) else None
    if raw is not None and not column.null_count and not values.null_count:
        old, new = ([chunk.view(raw) for chunk in each.chunks] for each in (column, values))
        numbers = np.concatenate([numbers_of(chunk) for chunk in old])
        numbers[places] = np.concatenate([numbers_of(chunk) for chunk in new])
        return array_of(own, numbers)
    return pa.concat_arrays([*column.chunks, *values.chunks]).take(as_int64(order))


def _is_same(column: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether two columns share their memory; equal values may still differ, as 0.0 and -0.0."""
    ours, theirs = (
        [(chunk.offset, *(b and b.address for b in chunk.buffers())) for chunk in each.chunks]
        for each in (column, other)
    )
    return ours == theirs


def _completed(rows: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """The rows with nulls in the columns of a schema that they lack."""
    if schema is None or rows.schema.names == schema.names:
        return rows
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _places(rows: pa.Table, files: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
    """The positions of rows as one ascending number each; `files` are the numbers of the files."""
    numbers = numbers_of(rows[FILE_INDEX])
    numbers = numbers if files is None else files[numbers]
    places: NDArray[np.int64] = (numbers << _ROW_BITS) + numbers_of(rows[ROW_INDEX])
    return places


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite: new files, removed files (`again` are those with a new deletion
    vector), and numbers of rows (`deleted` None: rows of a file were not counted).
    """

    files: pl.DataFrame
    changes: pl.DataFrame
    removed_files: pl.DataFrame
    again: pl.DataFrame
    deleted: int | None
    updated: int
    copied: int
    inserted: int

    @property
    def num_removed_files(self) -> int:
        """Number of data files that no longer exist in the table."""
        return self.removed_files.height - self.again.height

    def report(self) -> WriteReport:
        """The report, before the commit."""
        return WriteReport(
            None,
            num_rows=self.inserted,
            num_files=self.files.height,
            num_bytes=_bytes(self.files),
            num_removed_files=self.num_removed_files,
            num_copied_rows=self.copied,
            num_deleted_rows=self.deleted,
            num_updated_rows=self.updated,
            num_deletion_vectors=self.again.height,
        )

    @property
    def vectors(self) -> tuple[int, int, int]:
        """Number of deletion vectors that are added, removed, and replaced."""
        if not self.removed_files.height:
            return 0, 0, 0
        had = self.removed_files.filter(pl.col("dvStorageType").is_not_null())["path"]
        again = self.again["path"] if self.again.height else had.clear()
        return len(again), len(had), int(had.is_in(again.implode()).sum())

    def metrics(self) -> dict[str, int]:
        """Metrics of files under Delta's names for DELETE and UPDATE."""
        added, removed, updated = self.vectors
        return {
            "numAddedFiles": self.files.height,
            "numRemovedFiles": self.num_removed_files,
            "numAddedBytes": _bytes(self.files),
            "numRemovedBytes": _bytes(self.removed_files) - _bytes(self.again),
            "numAddedChangeFiles": self.changes.height,
            "numCopiedRows": self.copied,
            "numDeletionVectorsAdded": added,
            "numDeletionVectorsRemoved": removed,
            "numDeletionVectorsUpdated": updated,
        }


def _bytes(files: pl.DataFrame) -> int:
    return int(files["size"].sum()) if files.height else 0


def marked(rows: pa.Table | pa.RecordBatch, kind: str) -> pa.Table:
    """Rows of change data, with the kind of the change."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    return table.append_column(CHANGE_TYPE, pa.repeat(kind, table.num_rows))
