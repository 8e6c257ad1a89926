"""Batch readers of the data source: rows, state and history.

The driver opens the table, skips files that cannot match, and distributes the others; executors get
a plan, and their share as Arrow bytes. The driver also reads the log, which is small compared with
the rows; only actions are decoded by executors, from ranges of commits.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import lakelog
from lakelog.data.change_feed import change_range, change_schema
from lakelog.data.files import FILE_COLUMNS, ReadPlan, pack, require_single
from lakelog.data.read import read_files
from lakelog.errors import LakelogError
from lakelog.lazy import cached_property
from lakelog.log.context import Timestamp, utc_time
from lakelog.log.diff import DIFF_SCHEMA
from lakelog.log.history import HISTORY_COLUMNS, by_size, commits_between
from lakelog.model import contract
from lakelog.model.contract import Field, Primitive
from lakelog.spark.options import SourceOptions
from lakelog.spark.types import arrow_schema, check_asked, fit, spark_schema
from lakelog.sql.condition import condition
from lakelog.storage.bounded import DEFAULT_TIMEOUT_S
from lakelog.table import Table
from lakelog.transaction.schema_conversion import struct_of

if TYPE_CHECKING:
    import pyarrow as pa

    from lakelog.snapshot import Snapshot

_TASKS_PER_CORE = 2
"""Shares of small files per concurrent task, to balance slow tasks."""

OPEN_COST_BYTES = 131_072
"""Cost of opening a file, in bytes that can be read in the same time. Spark's estimate, 4 MB, is
for readers that open files sequentially: it would distribute 10,000 small files to 300 nearly idle
tasks.
"""

_ROWS_PER_BATCH = 65_536
_ROWS_PER_SHARE = 4 * _ROWS_PER_BATCH


class Share(InputPartition):
    """The input of one task: Arrow bytes of a frame, or a range of versions."""


def open_table(options: SourceOptions) -> Table:
    """The table in the options, without upkeep."""
    with options.opening():
        return lakelog.open(
            options.path,
            dict(options.storage_options),
            upkeep=False,
            allow_external=options.get("allowExternal", False),
            read_timeout=options.get("readTimeout", DEFAULT_TIMEOUT_S),
        )


def _open_snapshot(options: SourceOptions, pinned: int | None = None) -> Snapshot:
    """The version in the options, else the version pinned before, else the latest."""
    version = options.get("version", pinned)
    timestamp = options.get("timestamp") if version is None else None
    return open_table(options).snapshot(version, timestamp)


def schema_of(options: SourceOptions) -> tuple[StructType, int | None]:
    """The schema for the options, and the version that it belongs to."""
    columns = options.get("columns")
    if options.table == "changes":
        table = open_table(options)
        end = options.get("endVersion")
        snapshot = table.snapshot(end, options.get("endTimestamp") if end is None else None)
        return spark_schema(change_schema(snapshot), columns), snapshot.version
    if options.table in {"history", "actions", "diff"}:
        return spark_schema(_log_struct(options.table, None), columns), None
    snapshot = _open_snapshot(options)
    struct = snapshot.schema if options.table == "rows" else _log_struct(options.table, snapshot)
    return spark_schema(struct, columns), snapshot.version


def reader_of(
    options: SourceOptions, schema: StructType, pinned: int | None, parallelism: int | None
) -> DataSourceReader:
    """The reader for the options."""
    if options.table == "actions":
        return ActionsReader(options, schema)
    if options.table == "changes":
        tasks = options.get("parallelism", parallelism) or os.cpu_count() or 1
        return ChangesReader(options, schema, pinned, tasks)
    if options.table != "rows":
        return LogReader(options, schema, pinned)
    tasks = options.get("parallelism", parallelism) or os.cpu_count() or 1
    return RowsReader(options, schema, pinned, tasks)


def _log_struct(table: str, snapshot: Snapshot | None) -> contract.Struct:
    """Schema of a table of the log."""
    if table == "actions":
        return contract.load("actions")
    if table == "diff":
        return struct_of(DIFF_SCHEMA)
    if table == "history":
        own = (Field("version", Primitive("long")), Field("timestamp", Primitive("timestamp")))
        fields = {field.name: field for field in contract.load("actions").fields}
        text = Primitive("string")
        columns = (fields.get(name, Field(name, text)) for name in HISTORY_COLUMNS)
        return contract.Struct((*own, *columns))
    assert snapshot is not None, "files and skips need a version"
    frame = snapshot.files() if table == "files" else snapshot.skips()
    return struct_of(frame.collect_schema())


class _Reader(DataSourceReader):
    """Base class of readers: exact batches, and readable errors."""

    def __init__(self, schema: StructType) -> None:
        self._arrow = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one share with exactly the schema that Spark expects."""
        if partition.value is None:  # Spark's own partition, if there is nothing to distribute
            return
        try:
            for batch in self.batches(partition.value):
                yield fit(batch, self._arrow)
        except LakelogError as error:
            raise error.with_traceback(None) from None

    def batches(self, share: Any) -> Iterator[pa.RecordBatch]:
        """Batches of one share with at least the requested columns."""
        raise NotImplementedError


class RowsReader(_Reader):
    """The rows of a version, from its data files. Memory: the log's rows of its files, with their
    statistics, on the driver; a batch of rows per task.

    Filters are read from option ``where`` and never pushed down: Spark 4.2 keeps one reader per
    dataframe, so rows that one query skips would be missing in the next.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, pinned: int | None, tasks: int
    ) -> None:
        super().__init__(schema)
        self._snapshot: Snapshot | None = _open_snapshot(options, pinned)
        check_asked(schema, spark_schema(self._snapshot.schema, schema.names))
        self._plan: ReadPlan = ReadPlan.of(self._snapshot, schema.names, options.storage_options)
        self._tasks = tasks
        # Parsed here, so that an invalid condition fails before anything runs.
        self._where = self._snapshot.condition(options.get("where"))

    def partitions(self) -> Sequence[Share]:
        """Files grouped into shares of about equal work."""
        assert self._snapshot is not None, "shares can be computed only on the driver"
        files = self._snapshot.files(where=self._where).select(FILE_COLUMNS).collect()
        require_single(files, self._snapshot.version)
        return share_files(files, self._tasks)

    def batches(self, share: bytes) -> Iterator[pa.RecordBatch]:
        """Rows of the files of one share."""
        yield from read_files(self._plan, unpack(share), predicate=self._where)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs, without the log."""
        return self.__dict__ | {"_snapshot": None}


class LogReader(_Reader):
    """Reads ``files``, ``history``, ``diff`` or ``skips`` on the driver."""

    def __init__(self, options: SourceOptions, schema: StructType, pinned: int | None) -> None:
        super().__init__(schema)
        self._options = options
        self._pinned = pinned
        snapshot = self._snapshot if options.table in {"files", "skips"} else None
        check_asked(schema, spark_schema(_log_struct(options.table, snapshot)))

    @cached_property
    def _snapshot(self) -> Snapshot:
        return _open_snapshot(self._options, self._pinned)

    @cached_property
    def _frame(self) -> pl.LazyFrame:
        options = self._options
        if options.table == "history":
            return open_table(options).history(options.get("limit")).lazy()
        if options.table == "diff":
            table = open_table(options)
            end = options.get("endVersion")
            end = table.version() if end is None else end
            return table.diff(options.get("startVersion"), end).lazy()
        return self._snapshot.files() if options.table == "files" else self._snapshot.skips()

    def partitions(self) -> Sequence[Share]:
        """The frame, in shares of one batch per task."""
        frame = self._frame.select(self._arrow.names).collect()
        return [Share(serialize_frame(each)) for each in frame.iter_slices(_ROWS_PER_SHARE)]

    def batches(self, share: bytes) -> Iterator[pa.RecordBatch]:
        """Rows of one share."""
        return _batches_of(unpack(share))

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs, without the log and the options."""
        return {"_arrow": self._arrow}


class ActionsReader(_Reader):
    """Every action of a range of commits, in order within a task; executors decode them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(schema)
        check_asked(schema, spark_schema(contract.load("actions")))
        self._options = options

    def partitions(self) -> Sequence[Share]:
        """Ranges of commits of about 64 MB."""
        start, end = self._options.get("startVersion", 0), self._options.get("endVersion")
        log = open_table(self._options).log
        commits = commits_between(log, log.list_all(), start, end)
        return [Share((run[0].version, run[-1].version)) for run in by_size(commits)]

    def batches(self, share: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """Actions of one range."""
        frame = open_table(self._options).actions(*share)
        return _batches_of(frame.select(self._arrow.names).collect())


class ChangesReader(_Reader):
    """The rows that a range of commits changed, read by executors commit by commit."""

    def __init__(
        self, options: SourceOptions, schema: StructType, pinned: int | None, tasks: int
    ) -> None:
        super().__init__(schema)
        table = open_table(options)
        self._start, self._end = _range_of(options, table, pinned)
        columns = change_schema(table.snapshot(self._end))
        check_asked(schema, spark_schema(columns, schema.names))
        self._options, self._tasks = options, tasks
        # Parsed once: the tasks evaluate the condition for the same moment.
        self._where = condition(options.get("where"), columns, table.log.clock() * 1000)
        if self._start <= self._end:  # else two times without a commit in between
            table.changes(self._start, self._end, self._where)  # refuses a wrong call early

    def partitions(self) -> Sequence[Share]:
        """Ranges of versions of about the same number of commits."""
        return [Share(part) for part in share_versions(self._start, self._end, self._tasks)]

    def batches(self, share: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """Changes of one range, with the columns of the last version of all."""
        return change_batches(self._options, share, self._end, self._arrow.names, self._where)


def share_versions(start: int, end: int, tasks: int) -> list[tuple[int, int]]:
    """A range of versions as ranges of about the same number of commits, for this many tasks."""
    count = end - start + 1
    shares = min(count, tasks * _TASKS_PER_CORE)
    if not shares:  # times without a commit in between
        return []
    begins = [start + count * n // shares for n in range(shares + 1)]
    return [(a, b - 1) for a, b in pairwise(begins)]


def change_batches(
    options: SourceOptions,
    share: tuple[int, int],
    end: int,
    columns: Sequence[str],
    where: pl.Expr | None = None,
) -> Iterator[pa.RecordBatch]:
    """The changes of a range of commits, with the columns that the table has at version `end`."""
    feed = open_table(options).changes(share[0], end, where)
    some = feed.filter(pl.col("_commit_version").is_between(*share))
    some = some.select(map(contract.column_named, columns))
    for frame in some.collect_batches(chunk_size=_ROWS_PER_BATCH, lazy=True):
        yield from _batches_of(frame)


def _range_of(options: SourceOptions, table: Table, pinned: int | None = None) -> tuple[int, int]:
    """The first and the last version of a change feed."""
    start, end = (
        options.get(f"{name}Version", _moment(options.get(f"{name}Timestamp")))
        for name in ("start", "end")
    )
    last = pinned if end is None else end
    first, last = change_range(table.log, table.snapshot, start, last)
    return first, table.version() if last is None else last


def _moment(time_ms: int | None) -> Timestamp | None:
    """A time as `change_range` takes it, in which a whole number is a version."""
    return None if time_ms is None else utc_time(time_ms) or str(time_ms)


def share_files(files: pl.DataFrame, tasks: int) -> list[Share]:
    """Files grouped into shares of about equal work, as Arrow bytes."""
    if files.is_empty():
        return []
    least = min(files.height, tasks * _TASKS_PER_CORE)
    bins = pack(files["size"], open_cost_bytes=OPEN_COST_BYTES, at_least=least)
    shares = files.with_columns(bins.alias("#")).partition_by("#", include_key=False)
    return [Share(serialize_frame(each)) for each in shares]


def serialize_frame(frame: pl.DataFrame) -> bytes:
    """A frame as a compressed Arrow IPC stream."""
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compression="zstd")
    return buffer.getvalue()


def unpack(share: bytes) -> pl.DataFrame:
    """The frame of `serialize_frame`."""
    return pl.read_ipc_stream(io.BytesIO(share))


def _batches_of(frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    """A frame as Arrow batches."""
    yield from frame.to_arrow().to_batches(max_chunksize=_ROWS_PER_BATCH)
