"""Writes the files of a checkpoint incrementally and atomically."""

from __future__ import annotations

import posixpath
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.delta.checkpoint_rows import TypedCopies, action_rows, encoded
from lakelog.dialects.delta.checkpoint_schema import sidecar_schema
from lakelog.dialects.delta.names import SIDECAR_FOLDER
from lakelog.dialects.delta.parquet import RECONCILED, reconciled_mark
from lakelog.dialects.delta.path_filters import filter_options
from lakelog.dialects.delta.paths import spell_paths
from lakelog.dialects.delta.typed_bounds import TypedBoundsRecorder
from lakelog.dialects.encode import encode_rows
from lakelog.dialects.log_content import CheckpointPlan, StagedFile, statistics_text
from lakelog.dialects.parquet_files import DECIMALS_AS_INTEGERS, leaf_paths
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.storage import LogStore
from lakelog.storage.base import Upload
from lakelog.storage.upload import UploadSink
from lakelog.threads import Pool

_T = TypeVar("_T")

_WORKERS = 2
_LEAST_IN_FLIGHT = 2
"""Minimum number of pieces in progress, of any size."""


class OrderedTasks:
    """Prepares pieces in parallel and finishes those of a queue in order. After an error, later
    pieces of the queue fail with it, and `put` and `wait` raise it.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        # Two pools, so that the next row group is prepared while a file writes the current one.
        self._preparing = Pool(_WORKERS, thread_name_prefix="lakelog-prepare")
        self._pool = Pool(_WORKERS, thread_name_prefix="lakelog-checkpoint")
        self._last: dict[object, Future[object]] = {}
        self._running: deque[tuple[Future[object], int]] = deque()

    def put(
        self,
        queue: object,
        rows: int,
        prepare: Callable[[], _T],
        carry_out: Callable[[_T], object],
    ) -> None:
        """Add a piece; waits while enough are in progress."""
        while len(self._running) >= _LEAST_IN_FLIGHT and self._rows() >= self._most_rows:
            self._running.popleft()[0].result()
        earlier = self._last.get(queue)
        prepared = self._preparing.submit(prepare)
        piece: Future[object] = self._pool.submit(_run, earlier, prepared, carry_out)
        self._last[queue] = piece
        self._running.append((piece, rows))

    def _rows(self) -> int:
        return sum(rows for _, rows in self._running)

    def wait(self) -> None:
        """Wait for every piece."""
        while self._running:
            self._running.popleft()[0].result()

    def stop(self) -> None:
        """Wait for running pieces, drop the others, and ignore their errors."""
        self._preparing.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._running.clear()


def _run(
    earlier: Future[object] | None, prepared: Future[_T], carry_out: Callable[[_T], object]
) -> None:
    # Pieces start in order, so an earlier one always has a thread.
    if earlier is not None:
        earlier.result()
    carry_out(prepared.result())


_ZSTD_LEVEL = 1
_ENCODED_ROWS = 1 << 13
_WRITE_BYTES = 1 << 20
"""Bytes that Arrow buffers per write, because each write waits for Python's lock."""
_DICTIONARY = ("partitionValues", "tags", "storageType", "clusteringProvider")
"""Fields with few distinct values; writers give up dictionaries of the others."""
_NO_BOUNDS = ("add.stats",)
"""Columns whose bounds would lengthen the footer without use."""
_NOT_IN_REMOVES = ("stats", "tags")


_MOST_TEXT_BYTES = 1 << 30
"""Maximum bytes of statistics in one Arrow array, whose offsets have 32 bits."""


class CheckpointFile(Protocol):
    """A file that is appended to; only `prepare` may run ahead, in any thread."""

    path: str
    target: str
    num_actions: int

    def prepare(self, rows: pl.DataFrame, kind: str) -> Any:
        """The rows of one action type, as the file stores them."""
        ...

    def append(self, prepared: Any) -> None:
        """Append rows."""
        ...

    def close(self) -> StagedFile:
        """Create the file, atomically."""
        ...

    def abandon(self) -> None:
        """Delete an unfinished file."""
        ...


@dataclass(eq=False)
class ParquetFile:
    """A Parquet file of a checkpoint, written to `path` and later published as `target`.
    `reconciled` is the version if the file is a whole verified checkpoint; `record` describes its
    row groups once it is closed.
    """

    store: LogStore
    path: str
    target: str
    schema: pa.Schema
    compression: str
    row_group_rows: int
    typed: TypedCopies | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reconciled: int | None = None
    num_actions: int = 0
    record: str = ""
    _tables: list[pa.Table] = field(default_factory=list)
    _waiting: int = 0
    _upload: Upload | None = None
    _writer: pq.ParquetWriter | None = None
    _sink: UploadSink = field(init=False)
    _recorder: TypedBoundsRecorder = field(init=False)
    _buffered: pa.BufferedOutputStream = field(init=False)

    def prepare(self, rows: pl.DataFrame, kind: str) -> pa.Table:
        """See `CheckpointFile`. Memory: a copy of the rows."""
        if kind not in {"add", "remove"}:
            return action_rows(rows, kind, self.schema)
        height = max(1, rows.height * _MOST_TEXT_BYTES // max(1, _text_bytes(rows)))
        return pa.concat_tables(
            self._file_rows(part, kind) for part in rows.iter_slices(min(height, rows.height))
        )

    def _file_rows(self, rows: pl.DataFrame, kind: str) -> pa.Table:
        derived = {}
        if kind == "add":
            rows = rows.with_columns(statistics_text(rows))
            derived = self.typed.columns(rows) if self.typed is not None else {}
        return action_rows(encoded(rows), kind, self.schema, derived)

    def append(self, prepared: pa.Table) -> None:
        """See `CheckpointFile`; full row groups are written, the rest is buffered."""
        self.num_actions += prepared.num_rows
        self._waiting += prepared.num_rows
        self._tables.append(prepared)
        if self._waiting >= self.row_group_rows:
            self._write(self._waiting - self._waiting % self.row_group_rows)

    def _write(self, rows: int) -> None:
        table = pa.concat_tables(self._tables)
        writer = self._writer if self._writer is not None else self._start()
        with Pool(1, thread_name_prefix="lakelog-bounds") as pool:
            recorded = pool.submit(self._record, table[:rows])
            writer.write_table(table[:rows], row_group_size=self.row_group_rows)
            recorded.result()
        rest = table[rows:]
        self._waiting = rest.num_rows
        self._tables = [rest] if self._waiting else []

    def _record(self, table: pa.Table) -> None:
        for start in range(0, table.num_rows, self.row_group_rows):
            self._recorder.add(table[start : start + self.row_group_rows])

    def _start(self) -> pq.ParquetWriter:
        self._upload = self.store.upload(self.path)
        self._sink = UploadSink(self._upload)
        self._recorder = TypedBoundsRecorder(self.schema)
        leaves = [leaf for field in self.schema for leaf in leaf_paths(field.name, field.type)]
        self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), _WRITE_BYTES)
        self._writer = pq.ParquetWriter(
            self._buffered,
            self.schema,
            compression=self.compression,
            compression_level=_ZSTD_LEVEL if self.compression == "zstd" else None,
            use_dictionary=[leaf for leaf in leaves if set(leaf.split(".")) & set(_DICTIONARY)],
            write_statistics=[leaf for leaf in leaves if not leaf.startswith(_NO_BOUNDS)],
            write_page_checksum=True,
            write_batch_size=_ENCODED_ROWS,
            store_schema=False,
            **DECIMALS_AS_INTEGERS,
            **self.options,
        )
        return self._writer

    def close(self) -> StagedFile:
        """See `CheckpointFile`."""
        if self._waiting:
            self._write(self._waiting)
        writer = self._writer if self._writer is not None else self._start()
        self.record = self._recorder.record(posixpath.basename(self.target), self._buffered.tell())
        writer.add_key_value_metadata({RECORD_KEY: self.record})
        if self.reconciled is not None:
            mark = reconciled_mark(self.reconciled, self.num_actions, self._buffered.tell())
            writer.add_key_value_metadata({RECONCILED: mark})
        writer.close()
        self._buffered.flush()
        assert self._upload is not None
        size_bytes = self._upload.tell()
        self._upload.close()
        return StagedFile(self.path, self.target, size_bytes, self.num_actions)

    def abandon(self) -> None:
        """See `CheckpointFile`."""
        if self._upload is None:
            return
        if self._writer is not None and self._writer.is_open:
            self._sink.give_up(self._writer)
        self._upload.abandon()


def new_sidecar(
    store: LogStore,
    plan: CheckpointPlan,
    unique: uuid.UUID,
    columns: Sequence[pa.Field],
    typed: TypedCopies | None,
) -> ParquetFile:
    """An empty sidecar with filters of its paths, under its final name."""
    path = f"{SIDECAR_FOLDER}/{unique}.parquet"
    return ParquetFile(
        store,
        path,
        path,
        sidecar_schema(columns),
        plan.compression,
        plan.row_group_rows,
        typed,
        filter_options(plan.row_group_rows),
    )


@dataclass(eq=False)
class JsonFile:
    """A manifest of NDJSON, with the attributes of `ParquetFile`."""

    store: LogStore
    path: str
    target: str
    stats_as_json: bool = True
    num_actions: int = 0
    _upload: Upload | None = None

    def prepare(self, rows: pl.DataFrame, kind: str) -> tuple[bytes, int]:
        """See `CheckpointFile`. Memory: the texts."""
        if kind in {"add", "remove"}:
            if kind == "add":
                rows = rows.with_columns(statistics_text(rows))
            else:
                rows = rows.drop(_NOT_IN_REMOVES, strict=False)
            rows = rows.with_columns(pl.lit(value=False).alias("dataChange"))
            rows = rows.drop("extra", *(() if self.stats_as_json else ("stats",)), strict=False)
        elif kind != "checkpointMetadata":
            rows = rows.drop("extra", strict=False)
        return b"".join(encode_rows(rows, "delta", spell_paths, ahead=False)), rows.height

    def append(self, prepared: tuple[bytes, int]) -> None:
        """See `CheckpointFile`."""
        if self._upload is None:
            self._upload = self.store.upload(self.path)
        text, rows = prepared
        self._upload.write(text)
        self.num_actions += rows

    def close(self) -> StagedFile:
        """See `CheckpointFile`."""
        if self._upload is None:
            self._upload = self.store.upload(self.path)
        size_bytes = self._upload.tell()
        self._upload.close()
        return StagedFile(self.path, self.target, size_bytes, self.num_actions)

    def abandon(self) -> None:
        """See `CheckpointFile`."""
        if self._upload is not None:
            self._upload.abandon()


def _text_bytes(rows: pl.DataFrame) -> int:
    if "stats" not in rows.columns:
        return 0
    return int(rows["stats"].str.len_bytes().sum() or 0)
