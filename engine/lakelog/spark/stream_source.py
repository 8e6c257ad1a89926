"""The stream reader of the data source: rows in the order of their commits.

Spark keeps one reader on the driver while a query runs; it determines the end of each batch
(`lakelog.spark.stream_planner`) and distributes its files. The readers in tasks have only their
share. The schema of a stream is the table's schema when the query was started; a stream that was
loaded as all columns of the table is refused if the table has others by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lakelog.errors import InvalidInputError, LakelogError, StreamMismatchError
from lakelog.lazy import cached_property
from lakelog.spark.error_display import readable
from lakelog.spark.options import SourceOptions
from lakelog.spark.reading import (
    Share,
    change_batches,
    open_table,
    share_files,
    share_versions,
    unpack,
)
from lakelog.spark.stream_planner import Limit, Offset, StreamPlanner
from lakelog.spark.types import arrow_schema, check_asked, fit, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from lakelog.data.files import ReadPlan
    from lakelog.model import contract
    from lakelog.snapshot import Snapshot

_FILES_PER_TRIGGER = 1000
"""Default maximum number of files per batch, as in Delta's source."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that commits add, each once. Memory: the log's rows of the files of a batch
    and of the initial version, with their statistics, on the driver; a batch of rows per task.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, tasks: int, *, whole: bool
    ) -> None:
        self._options = options
        self._whole = whole
        self._schema = schema
        self._tasks = tasks
        self._arrow = arrow_schema(schema)
        self._last: int | None = None

    @cached_property
    def _backlog(self) -> StreamPlanner:
        options = self._options
        return StreamPlanner(
            open_table(options),
            skip_change_commits=options.get("skipChangeCommits", False),
            fail_on_data_loss=options.get("failOnDataLoss", True),
            changes=options.get("readChangeFeed", False),
        )

    def _check_columns(self, snapshot: Snapshot, struct: contract.Struct) -> None:
        """Raise unless the stream's columns are in the table, and all of them if it is `whole`."""
        check_asked(self._schema, spark_schema(struct, self._schema.names))
        added = [name for name in struct.names if name not in self._schema.names]
        if self._whole and added:
            raise StreamMismatchError(
                f"the table has a column that the stream was loaded without: {added[0]}",
                path=snapshot.path,
                version=snapshot.version,
                expected=", ".join(self._schema.names),
                found=", ".join(struct.names),
                hint="load the stream again; to leave columns out, pass option columns or a schema",
            )

    @cached_property
    def _plan(self) -> ReadPlan:
        from lakelog.data.files import ReadPlan

        snapshot = self._backlog.snapshot
        self._check_columns(snapshot, snapshot.schema)
        return ReadPlan.of(snapshot, self._schema.names, self._options.storage_options)

    @readable
    def initialOffset(self) -> dict[str, Any]:
        """The start without a checkpoint: the table's content, or an option's position."""
        version, time = (self._options.get(f"starting{what}") for what in ("Version", "Timestamp"))
        if time is not None:
            return self._backlog.from_time(time).as_json()
        if version is None:
            return self._backlog.beginning().as_json()
        if version.strip().lower() == "latest":
            return self._backlog.from_now().as_json()
        if not (version.strip().isascii() and version.strip().isdigit()):
            raise InvalidInputError(
                "option startingVersion is malformed",
                expected="a version, or latest",
                found=version,
            )
        return self._backlog.from_version(int(version)).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch from the options; `_FILES_PER_TRIGGER` files by default."""
        files, size_bytes = (
            self._options.get(f"max{what}PerTrigger") for what in ("Files", "Bytes")
        )
        if files is None and size_bytes is not None:
            return ReadMaxBytes(size_bytes)
        return ReadMaxFiles(files or _FILES_PER_TRIGGER)

    @readable
    def prepareForTriggerAvailableNow(self) -> None:
        """Ignore commits from now on, but none of the version that a new stream begins with."""
        began = self._backlog.snapshot.version
        self._last = max(began, open_table(self._options).version())

    @readable
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at `start`; errors as `StreamPlanner.advance`."""
        return self._backlog.advance(Offset.of(start), self._limit(limit), self._last).as_json()

    def _limit(self, limit: ReadLimit) -> Limit:
        match limit:
            case ReadAllAvailable():
                return Limit()
            case ReadMaxBytes(size_bytes):
                return Limit(size_bytes=size_bytes)
            case ReadMaxFiles(files):
                # Spark passes one limit, but both apply if both are set.
                return Limit(files, self._options.get("maxBytesPerTrigger"))
        raise InvalidInputError("the limit of a batch has the wrong type", found=repr(limit))

    @readable
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Share]:
        """The files between two offsets, grouped into shares; errors as `StreamPlanner.files`."""
        files = self._backlog.files(Offset.of(start), Offset.of(end))
        plan = self._plan
        return [Share(_Rows(plan, share.value)) for share in share_files(files, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one share with exactly the schema that Spark expects."""
        try:
            for batch in partition.value.batches(self._arrow.names):
                yield fit(batch, self._arrow)
        except LakelogError as error:
            raise error.with_traceback(None) from None

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs, without the log and the options."""
        return {"_arrow": self._arrow}


class ChangeStreamReader(StreamReader):
    """Reads the rows that commits change, in whole commits; without a start in the options, first
    all rows of the latest version as inserts. Memory: the actions of a batch on the driver.
    """

    @cached_property
    def _end(self) -> int:
        """The version whose columns the changes have."""
        from lakelog.data.change_feed import change_schema

        snapshot = self._backlog.snapshot
        self._check_columns(snapshot, change_schema(snapshot))
        return snapshot.version

    @readable
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at `start`, as `StreamPlanner.advance_commits`."""
        begin, most = Offset.of(start), self._limit(limit)
        return self._backlog.advance_commits(begin, most, self._last).as_json()

    @readable
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Share]:
        """Commits, or files of the initial version; errors as `StreamPlanner.commits`."""
        to = Offset.of(end)
        begin = Offset.of(start).where_began(to)
        columns = self._end
        if begin.is_initial:  # a batch ends with the initial version
            return self._initial(begin, to)
        found = self._backlog.commits(begin, to)
        if found is None:
            return []
        columns = max(columns, found[1])
        parts = share_versions(*found, self._tasks)
        return [Share(_Changes(self._options, part, columns)) for part in parts]

    def _initial(self, start: Offset, end: Offset) -> list[Share]:
        from lakelog.data.change_feed import insert_columns
        from lakelog.data.files import ReadPlan

        snapshot = self._backlog.snapshot
        names = [name for name in snapshot.schema.names if name in self._schema.names]
        # A batch without columns has no rows.
        plan = ReadPlan.of(
            snapshot, names or snapshot.schema.names[:1], self._options.storage_options
        )
        at_ms = open_table(self._options).snapshot(start.version).timestamp_ms
        added = insert_columns(start.version, at_ms)
        files = self._backlog.files(start, end)
        return [Share(_Rows(plan, share.value, added)) for share in share_files(files, self._tasks)]


@dataclass(frozen=True)
class _Changes:
    """The changes of a range of commits."""

    options: SourceOptions
    versions: tuple[int, int]
    end: int

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return change_batches(self.options, self.versions, self.end, columns)


@dataclass(frozen=True)
class _Rows:
    """Rows of files; with the columns `added` of a change, if they are inserts."""

    plan: ReadPlan
    files: bytes
    added: Mapping[str, pa.Scalar] | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from lakelog.data.read import read_files

        for batch in read_files(self.plan, unpack(self.files)):
            if self.added is None:
                yield batch
                continue
            every = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name, value in self.added.items():
                every[name] = pa.repeat(value, batch.num_rows)
            yield pa.RecordBatch.from_pydict({name: every[name] for name in columns})


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of an invalid stream: every method raises the error."""

    def __init__(self, error: LakelogError) -> None:
        self._error = error

    @readable
    def _refuse(self, *_arguments: Any, **_named: Any) -> Any:
        raise self._error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse
    latestOffset = partitions = read = _refuse


def stream_reader(
    options: SourceOptions, schema: StructType, parallelism: int | None, *, whole: bool = False
) -> StreamReader:
    """The reader of a stream; `whole` if it was loaded as all columns of the table."""
    tasks = options.get("parallelism", parallelism) or os.cpu_count() or 1
    kind = ChangeStreamReader if options.get("readChangeFeed") else StreamReader
    return kind(options, schema, tasks, whole=whole)
