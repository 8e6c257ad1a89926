"""`DataFileWriter`: writes rows to data files, by partition, in bounded memory.

A writer converts batches of rows to the table's schema, and returns the rows of the ``add`` actions
for its files. It commits nothing: until the log names the files, no reader sees them, and
`DataFileWriter.abort` deletes them.

Rows wait in memory by partition and are written a row group at a time. If there are more partitions
than files may be open, the rows of the others wait on local disk. The names of files contain the
attempt, so that two attempts of one task never collide.

Source: Delta protocol, Data Files; Partition Value Serialization.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import count, zip_longest
from typing import Any, Self

import polars as pl
import pyarrow as pa

from lakelog.arrow_arrays import renamed
from lakelog.data import layout
from lakelog.data.conform import Conform, Rows, wide_field
from lakelog.data.layout import group_rows
from lakelog.data.parquet_file import CopySource, ParquetCopy, ParquetFile, ParquetGroups
from lakelog.data.write_plan import WritePlan
from lakelog.errors import InvalidInputError, LakelogError
from lakelog.model import contract
from lakelog.storage import LogStore, open_store
from lakelog.storage.bounded import on_local_disk
from lakelog.storage.scratch import ScratchFile, ScratchRange
from lakelog.threads import Pool
from lakelog.transaction.file_rules import CHANGE_DATA_FOLDER

__all__ = ["DataFileWriter", "WritePlan", "discard"]

_MEMORY_BYTES = 256 << 20
"""Maximum size of the rows that wait in memory, in bytes."""

_OPEN_FILES = 128
"""Maximum number of open files, on local disk."""

_REMOTE_OPEN_FILES = 16
"""The same on an object store, where each holds parts that are being uploaded."""

# Files that are finished concurrently: they wait for the disk or for requests, not the processor.
_FINISHERS, _REMOTE_FINISHERS = 4, 8

_ROW_GROUP_BYTES = 64 << 20  # of rows in memory
_ROW_GROUP_ROWS = 1 << 20
_SPLIT_ROWS, _SPLIT_BYTES = 1 << 20, 64 << 20
_PIECE_ROWS = 1 << 18  # of rows without partitions: several pieces make a row group
_LEAST_GROUP_ROWS = 1 << 17  # of the row groups that several threads encode for one file
_ATTEMPT_CHARACTERS = 12
_MAP = pl.Map(pl.String, pl.String)
_RANGES_AT_ONCE = 64  # batches read back from local disk for one write


@dataclass(eq=False)
class _Partition:
    """A partition's waiting rows (those on local disk, `ranges`, precede those in memory), and its
    open file; the `number` of the next file, None until the first row.
    """

    texts: tuple[str | None, ...]
    folder: str
    number: int | None
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    ranges: list[ScratchRange] = field(default_factory=list)
    file: ParquetFile | ParquetGroups | None = None
    writing: tuple[Future[None], int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has a file, or a thread is creating one."""
        return self.file is not None or self.writing is not None

    def take(self, share: float = 1) -> tuple[pa.Table, int]:
        """The first rows in memory and their bytes, which are removed from the partition."""
        table = pa.concat_tables(self.tables)
        rows, size_bytes = round(self.rows * share), round(self.size_bytes * share)
        self.tables = [table.slice(rows)] if rows < self.rows else []
        self.rows -= rows
        self.size_bytes -= size_bytes
        return table.slice(0, rows), size_bytes


class DataFileWriter:
    """Writes rows as data files, for one thread at a time; leaving the block without `finish`
    deletes them.
    """

    def __init__(
        self,
        plan: WritePlan,
        *,
        number: int = 0,
        store: LogStore | None = None,
        new_id: Callable[[], str] | None = None,
        clock: Callable[[], int] | None = None,
        workers: int = 1,
        memory_bytes: int = _MEMORY_BYTES,
        open_files: int | None = None,
    ) -> None:
        self._plan = plan
        self._store = store or open_store(plan.location, plan.storage_options)
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        attempt = (new_id or (lambda: str(uuid.uuid4())))()
        self._attempt = attempt.replace("-", "")[:_ATTEMPT_CHARACTERS]
        self._number = number
        self._workers = max(1, workers)
        self._memory_bytes = memory_bytes
        self._is_local = on_local_disk(self._store)
        usual = _OPEN_FILES if self._is_local else _REMOTE_OPEN_FILES
        self._open_files = max(1, usual if open_files is None else open_files)
        self._codec = layout.codec_of(plan.compression)
        self._conform = Conform(plan.row_fields, plan.partition_columns)
        self._conform_new = Conform(plan.row_fields, plan.partition_columns, plan.rules)
        self._schema = pa.schema([wide_field(f, plan.mapping) for f in plan.file_fields])
        self._keys = [contract.physical_name(f, plan.mapping) for f in plan.partition_fields]
        # A row group in memory for each file that is being written, and as much again.
        self._row_group_bytes = min(_ROW_GROUP_BYTES, max(1, memory_bytes // (2 * self._workers)))
        self._partitions: dict[tuple[tuple[str | None, ...], int], _Partition] = {}
        self._lane = 0
        self._is_last = False  # whether one partition is left, with rows for several threads
        self._pool = Pool(self._workers, thread_name_prefix="lakelog-encode")
        self._unsplit: list[pa.Table] = []
        self._unsplit_rows = self._unsplit_bytes = 0
        self._held_bytes = 0
        self._writing: set[_Partition] = set()
        self._spill = RowSpill(self._schema)
        self.num_rows = 0
        self._numbers = count()
        self._paths: list[str] = []
        self._done: list[dict[str, Any]] = []
        self._over = False
        if not self._schema.names:
            names = [f.name for f in plan.schema.fields if f.name not in plan.partition_columns]
            raise InvalidInputError(
                "the table has no column that can be stored in data files",
                expected="a data column with a type",
                found=", ".join(f"{name!r} without a type" for name in names) or "no columns",
                hint="give the column a type, such as pl.String, or add another column",
            )

    def write(self, batch: Rows) -> None:
        """Write new rows, which must satisfy the table's rules."""
        self._take(batch, self._conform_new)

    def copy(self, batch: Rows, lane: int | None = None) -> None:
        """Write rows that were checked before. Those of an unpartitioned table with the same `lane`
        are in the same files, in order; without one, several files are filled in turn with whole
        row groups.
        """
        self._take(batch, self._conform, lane)

    def copy_file(self, source: CopySource, groups: Iterable[pa.Table]) -> None:
        """Copy a file with new values in the plan's columns, by row group; the other columns are
        copied as they are encoded. Memory: the new columns of a row group, for each open file.
        """
        self._require_open()
        texts = tuple(source.partition[key] or None for key in self._keys)
        copy = self._partition(texts, -1 - len(self._partitions))  # files of their own
        copy.file = ParquetCopy(
            self._store, self._new_path(copy), source, self._codec, self._plan.stats
        )
        names = [each.name for each in self._plan.file_fields]
        for group in groups:
            rows = self._rows_of(self._conform.table(group.select(names)))
            self.num_rows += rows.num_rows
            self._held_bytes += rows.nbytes
            self._run(self._write_group, copy, rows, rows.nbytes)

    def open_lanes(self, rows: int, size_bytes: int) -> int:
        """Open as many lanes as the rows are worth, numbered in order, and return their number."""
        groups = max(rows // _ROW_GROUP_ROWS, size_bytes // self._row_group_bytes)
        lanes = 1 if self._keys else max(1, min(self._workers, groups))
        for lane in range(lanes if lanes > 1 else 0):
            self._partition((), lane)
        return lanes

    def pieces(self, batch: Rows, *, in_order: bool = False) -> Iterator[tuple[int | None, Rows]]:
        """Slices of rows with their lanes. Rows for several files are ranges of equal length, taken
        in turn unless `in_order`, so that each file has neighbouring rows.
        """
        most = _SPLIT_ROWS if self._keys else _PIECE_ROWS
        lanes = 1 if in_order else self.open_lanes(len(batch), _size_bytes(batch))
        if lanes == 1:
            yield from ((None, piece) for piece in slices(batch, most))
            return
        length = math.ceil(len(batch) / lanes)
        ranges = (slices(batch.slice(n * length, length), most) for n in range(lanes))
        for at_once in zip_longest(*ranges):
            yield from ((n, piece) for n, piece in enumerate(at_once) if piece is not None)

    def _take(self, batch: Rows, conform: Conform, lane: int | None = None) -> None:
        self._require_open()
        in_order = lane is not None or conform.numbers_rows
        for range_lane, piece in self.pieces(batch, in_order=in_order):
            table = conform.table(piece)
            self.num_rows += table.num_rows
            if self._keys:
                self._wait_to_split(table)
            else:
                own = next(n for n in (lane, range_lane, self._lane) if n is not None)
                partition = self._partition((), own)
                self._hold(partition, self._rows_of(table), table.nbytes)
                if lane is None and range_lane is None and own != self._lane and partition.rows:
                    rows, size_bytes = partition.take()  # so that neighbouring rows stay together
                    self._held_bytes -= size_bytes
                    self._hold(self._partition((), self._lane), rows, size_bytes)

    def _rows_of(self, table: pa.Table) -> pa.Table:
        """The columns that are stored in files, under their physical names."""
        columns = []
        for source, target in zip(self._plan.file_fields, self._schema, strict=True):
            column = table.column(source.name)
            if not column.type.equals(target.type):
                chunks = [renamed(chunk, target.type) for chunk in column.chunks]
                column = pa.chunked_array(chunks, type=target.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _wait_to_split(self, table: pa.Table) -> None:
        self._unsplit.append(table)
        self._unsplit_rows += table.num_rows
        self._unsplit_bytes += table.nbytes
        if self._unsplit_rows >= _SPLIT_ROWS or self._unsplit_bytes >= _SPLIT_BYTES:
            self._split()

    def _split(self) -> None:
        """Assign the waiting rows to their partitions, many at a time."""
        if not self._unsplit_rows:
            return
        table = pa.concat_tables(self._unsplit)
        row_bytes = self._unsplit_bytes / self._unsplit_rows
        self._unsplit, self._unsplit_rows, self._unsplit_bytes = [], 0, 0
        groups = group_rows(table, self._plan.partition_fields)
        rows = self._rows_of(table)
        if len(groups) > 1:
            rows = rows.combine_chunks().take(groups.order)
        start = 0
        for texts, height in zip(groups.texts, groups.counts, strict=True):
            slice_ = rows.slice(start, height)
            self._hold(self._partition(texts), slice_, int(row_bytes * height))
            start += height

    def _partition(self, texts: tuple[str | None, ...], lane: int = 0) -> _Partition:
        found = self._partitions.get((texts, lane))
        if found is None:
            folder = layout.partition_folder(self._keys, texts)
            found = self._partitions[texts, lane] = _Partition(texts, folder, next(self._numbers))
        return found

    def _hold(self, partition: _Partition, rows: pa.Table, size_bytes: int) -> None:
        if not rows.num_rows:
            return
        partition.tables.append(rows)
        partition.rows += rows.num_rows
        partition.size_bytes += size_bytes
        self._held_bytes += size_bytes
        groups = max(partition.size_bytes / self._row_group_bytes, partition.rows / _ROW_GROUP_ROWS)
        # The rest, half a row group or more, may be the last one of its file.
        if groups >= 1.5 and (partition.is_open or self._num_open() < self._open_files):
            self._run(
                self._write_rows, partition, *partition.take(math.floor(groups - 0.5) / groups)
            )
            self._lane = (self._lane + 1) % self._workers
        while self._held_bytes >= self._memory_bytes and self._await_writing():
            pass
        if self._held_bytes >= self._memory_bytes:
            self._drain()

    def _num_open(self) -> int:
        return sum(1 for each in self._partitions.values() if each.is_open)

    def _run(
        self,
        write: Callable[[_Partition, pa.Table], None],
        partition: _Partition,
        rows: pa.Table,
        size_bytes: int,
    ) -> None:
        """Write rows of a partition in a thread, once one is free."""
        self._settle(partition)
        if self._workers == 1:
            self._held_bytes -= size_bytes
            write(partition, rows)
            return
        if len(self._writing) >= self._workers:
            self._await_writing()
        partition.writing = self._pool.submit(write, partition, rows), size_bytes
        self._writing.add(partition)

    def _await_writing(self) -> bool:
        """Wait until a thread has written its rows; False if none is writing."""
        busy = {each.writing[0]: each for each in self._writing if each.writing}
        if busy:
            for done in wait(busy, return_when=FIRST_COMPLETED).done:
                self._settle(busy[done])
        return bool(busy)

    def _settle(self, partition: _Partition) -> None:
        """Wait for the rows that a thread is writing."""
        writing, partition.writing = partition.writing, None
        if writing is not None:
            self._writing.discard(partition)
            self._held_bytes -= writing[1]
            writing[0].result()

    def _drain(self) -> None:
        """Write all rows in memory, to open files or to the spill file."""
        for each in self._partitions.values():
            self._settle(each)
        waiting = [each for each in self._partitions.values() if each.rows]
        waiting.sort(key=lambda each: (each.file is None, -each.size_bytes))
        open_ = self._num_open()
        direct = []
        for each in waiting:
            if each.file is not None or open_ < self._open_files:
                open_ += each.file is None
                direct.append(each)
            else:
                each.ranges += self._spill.append(each.take()[0].combine_chunks())
        self._held_bytes = 0
        self._each(self._write_out, direct)

    def _each(
        self,
        work: Callable[[_Partition], None],
        partitions: Iterable[_Partition],
        workers: int | None = None,
    ) -> None:
        """Call `work` for every partition, for several concurrently."""
        todo = list(partitions)
        workers = workers or self._workers
        if workers == 1 or len(todo) < 2:
            for each in todo:
                work(each)
            return
        with Pool(workers, thread_name_prefix="lakelog-write") as pool:
            done = [pool.submit(work, each) for each in todo]
            try:
                for each_done in done:
                    each_done.result()
            except BaseException:
                for each_done in done:
                    each_done.cancel()
                raise

    def _write_out(self, partition: _Partition) -> None:
        """Write the rows of a partition in memory, and leave its file open."""
        self._write_rows(partition, partition.take()[0])

    def _write_rows(self, partition: _Partition, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        row_bytes = max(1, rows.nbytes // rows.num_rows)
        # A file ends between row groups, so a short file needs short ones.
        group_bytes = min(self._row_group_bytes, layout.IN_MEMORY * self._plan.target_file_bytes)
        step = min(_ROW_GROUP_ROWS, max(1, group_bytes // row_bytes))
        step = math.ceil(rows.num_rows / max(1, round(rows.num_rows / step)))  # of equal length
        if self._is_last and partition.file is None and step == rows.num_rows:
            self._write_last(partition, rows)
            return
        for start in range(0, rows.num_rows, step):
            if partition.file is None:
                path = self._new_path(partition)
                partition.file = ParquetFile(self._store, path, self._codec, self._plan.stats)
            partition.file.write(rows.slice(start, step))
            if partition.file.size_bytes >= self._plan.target_file_bytes:
                self._close(partition)

    def _write_last(self, partition: _Partition, rows: pa.Table) -> None:
        """Write the last file, whose row groups all threads encode."""
        file = ParquetGroups(self._store, self._new_path(partition), self._codec, self._plan.stats)
        partition.file = file
        groups = max(1, min(self._workers, rows.num_rows // _LEAST_GROUP_ROWS))
        encoding = self._pool.map(file.encode, slices(rows, math.ceil(rows.num_rows / groups)))
        file.see(rows)
        for encoded in encoding:
            file.add(encoded)
        self._close(partition)

    def _write_group(self, copy: _Partition, rows: pa.Table) -> None:
        """Write the next row group of a copied file, and close the file after the last one."""
        assert isinstance(copy.file, ParquetCopy)
        copy.file.write(rows)
        if copy.file.is_complete:
            self._close(copy)

    def _new_path(self, partition: _Partition) -> str:
        """The path of a partition's next file."""
        changes = self._plan.change_data
        number, partition.number = partition.number, None
        name = layout.file_name(
            self._number,
            self._plan.token,
            self._attempt,
            next(self._numbers) if number is None else number,
            self._codec,
            "cdc" if changes else "part",
        )
        path = "/".join(
            filter(None, (CHANGE_DATA_FOLDER if changes else "", partition.folder, name))
        )
        self._paths.append(path)
        return path

    def _close(self, partition: _Partition) -> None:
        file = partition.file
        assert file is not None
        texts = file.close()
        partition.file = None
        self._done.append(
            {
                "path": file.path,
                "partitionValues": dict(zip(self._keys, partition.texts, strict=True)),
                "size": file.size_bytes,
                "modificationTime": self._clock(),
                "dataChange": not self._plan.change_data,
                "stats": texts,
            }
        )

    def _complete(self, partition: _Partition) -> None:
        """Write all waiting rows of a partition, and close its file."""
        self._settle(partition)
        ranges, partition.ranges = partition.ranges, []
        for start in range(0, len(ranges), _RANGES_AT_ONCE):
            self._write_rows(partition, self._spill.read(ranges[start : start + _RANGES_AT_ONCE]))
        if partition.rows:
            self._write_out(partition)
        if partition.file is not None:
            self._close(partition)

    def finish(self) -> pl.DataFrame:
        """Write the remaining rows, and make all files visible and durable."""
        self._require_open()
        self._split()
        finishers = _FINISHERS if self._is_local else _REMOTE_FINISHERS
        left = [p for p in self._partitions.values() if p.rows or p.ranges or p.is_open]
        is_large = len(left) == 1 and left[0].rows >= 2 * _LEAST_GROUP_ROWS
        self._is_last = is_large and self._workers > 1
        self._each(self._complete, self._partitions.values(), max(self._workers, finishers))
        self._pool.shutdown()
        self._spill.close()
        files = _frame(sorted(self._done, key=lambda file: str(file["path"])))
        self._over = True  # last, so that an interrupt before it deletes the files
        return files.drop("modificationTime", "stats") if self._plan.change_data else files

    @property
    def paths(self) -> list[str]:
        """Every file that was created, in no order."""
        return list(self._paths)

    def abort(self) -> None:
        """Delete all files of this writer, which no log may name; vacuum deletes the others."""
        self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._spill.close()
        for partition in self._partitions.values():
            partition.tables = []
            if partition.file is not None:
                partition.file.abandon()
                partition.file = None
        discard(self._store, self._paths)

    def _require_open(self) -> None:
        if self._over:
            raise InvalidInputError("the writer is finished", hint="create another one")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over:
            self.abort()


def discard(store: LogStore, paths: Sequence[str]) -> list[LakelogError]:
    """Delete files that no log names; return the errors of those that remain, for vacuum."""
    return store.delete_many(paths) if paths else []


def slices(batch: Rows, rows: int = _SPLIT_ROWS) -> Iterator[Rows]:
    """Slices of at most so many rows."""
    if len(batch) <= rows:
        yield batch
        return
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _size_bytes(batch: Rows) -> int:
    """Size of rows in memory."""
    return int(batch.estimated_size() if isinstance(batch, pl.DataFrame) else batch.nbytes)


def no_files() -> pl.DataFrame:
    """The result of a writer that wrote no file."""
    return _frame(())


def _frame(files: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    schema = {
        "path": pl.String(),
        "partitionValues": _MAP,
        "size": pl.Int64(),
        "modificationTime": pl.Int64(),
        "dataChange": pl.Boolean(),
        "stats": pl.String(),
    }
    return pl.DataFrame(
        [
            pl.Series(name, [file[name] for file in files], dtype=dtype)
            for name, dtype in schema.items()
        ]
    )


class RowSpill:
    """Batches of rows in a temporary file, appended in one thread and read in several."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = ScratchFile(instead="write fewer partitions")

    def append(self, rows: pa.Table) -> list[ScratchRange]:
        """Write rows; returns their byte ranges."""
        return [self._file.append(batch.serialize(), "rows") for batch in rows.to_batches()]

    def read(self, ranges: list[ScratchRange]) -> pa.Table:
        """The rows of these ranges."""
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(self._file.read(range_)), self._schema)
            for range_ in ranges
        ]
        return pa.Table.from_batches(batches, self._schema)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
