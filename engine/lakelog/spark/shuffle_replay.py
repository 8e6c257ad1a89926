"""Replay in executors: they decode the log's files with lakelog's readers, rows are shuffled by
path, and each partition is reconciled with Polars.

Rows have the requested columns and their position in the log: checkpoint rows first, then (version,
position). Columns are selected by name after each Spark step, because ``mapInArrow`` matches by
position and would swap columns of one type silently.

Source: Delta protocol, Action Reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import STRUCT_STATISTICS, Checkpoint, CommitFile, statistics_text
from lakelog.dialects.registry import named
from lakelog.errors import InvalidActionError
from lakelog.log.context import Log
from lakelog.log.files import file_columns, tombstone_columns
from lakelog.log.history import with_derived_statistics
from lakelog.log.replay import reconcile_files, with_path_texts
from lakelog.log.state import State
from lakelog.model import actions, contract
from lakelog.model.actions import PATH_TEXT
from lakelog.spark.checkpoint_rows import DERIVED, with_nulls
from lakelog.spark.strategy import Choice
from lakelog.storage import LogStore
from lakelog.storage.bounded import DEFAULT_LIMITS, ReadLimits, limits_of, open_bounded

BATCH_ROWS = 1 << 14
"""Number of rows per batch for Spark, which buffers several."""

_ORDER = ("orderLayer", "orderVersion", "orderPosition")
_TYPES = {"orderLayer": "integer", "orderVersion": "long", "orderPosition": "long"}
_COMMIT_BYTES = 32 << 20
_BY_FILE = ("classic", "multipart", "v2-parquet", "flattened")


@dataclass(frozen=True)
class TableLocation:
    """The information with which an executor opens a table; options are never printed."""

    location: str
    storage_options: Mapping[str, Any] | None = field(repr=False)
    format: str
    limits: ReadLimits = DEFAULT_LIMITS

    @staticmethod
    def of(log: Log, storage_options: Mapping[str, Any] | None) -> TableLocation:
        """The location of an open table; without options, those with which it was opened."""
        options = log.storage_options if storage_options is None else storage_options
        return TableLocation(log.location, options, log.dialect.name, limits_of(log.store))

    def store(self) -> LogStore:
        """The store, opened again, because stores are not sent to executors."""
        return open_bounded(self.location, self.storage_options, self.limits)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the log."""
        return named(self.format)


@dataclass(frozen=True)
class LogSplit:
    """The input of one decoding task: files of a checkpoint, or commits."""

    checkpoint: Checkpoint | None = None
    commits: tuple[CommitFile, ...] = ()


def log_splits(state: State, paths: Sequence[str]) -> list[LogSplit]:
    """The splits of a state's log."""
    pieces: list[LogSplit] = []
    checkpoint = state.segment.checkpoint
    if checkpoint is not None:
        alone = checkpoint.layout in _BY_FILE and bool(paths)
        layout = "flattened" if checkpoint.layout == "flattened" else "multipart"
        pieces += (
            [LogSplit(Checkpoint(checkpoint.version, layout, 1, (path,))) for path in paths]
            if alone
            else [LogSplit(checkpoint)]
        )
    waiting: list[CommitFile] = []
    size = 0
    for commit in state.segment.commits:
        waiting.append(commit)
        size += commit.size_bytes
        if size >= _COMMIT_BYTES:
            pieces.append(LogSplit(commits=tuple(waiting)))
            waiting, size = [], 0
    if waiting:
        pieces.append(LogSplit(commits=tuple(waiting)))
    return pieces


def replay_in_partitions(
    spark: Any,
    place: TableLocation,
    pieces: Sequence[LogSplit],
    columns: Sequence[str],
    choice: Choice,
    meta: pl.DataFrame,
    *,
    about_rows: int,
    exact_times: bool = False,
) -> Any:
    """The file actions of a state, lazily; a reconciling task holds all rows of its partition."""
    # Two thirds of the columns belong to the other format, and would be sent as nulls; but batches
    # without columns would have no rows.
    held = [name for name in columns if name in _held(place.dialect)] or ["actionType"]
    sources = _sources(held, place.dialect)
    carried = [*_ORDER, *sources]
    decoder = Decoder(place, tuple(pieces), tuple(sources), exact_times)
    rows = _numbers(spark, max(1, len(pieces)), about_rows, flattened_schema(held))
    rows = rows.mapInArrow(decoder, flattened_schema(carried)).repartition(
        choice.partitions, "path"
    )
    unique = place.dialect.reconciled_checkpoints
    reconciler = Reconciler(place, tuple(carried), tuple(held), unique, meta)
    rows = rows.mapInArrow(reconciler, flattened_schema(held))
    return with_nulls(rows, held, columns)


def _numbers(spark: Any, count: int, about_rows: int, schema: Any) -> Any:
    """The numbers below `count`, each in its own partition. Spark estimates the output of
    ``mapInArrow`` from its input, and would broadcast the result of a few numbers. Each number is
    therefore selected from as many rows as it represents, with a null of the rows' type.
    """
    share = max(1, -(-2 * about_rows // count))
    numbers = spark.range(0, count * share, 1, count).filter(f"id % {share} = 0")
    row = f"CAST(NULL AS {schema.simpleString()}) AS row"
    return numbers.selectExpr(f"id DIV {share} AS number", row)


def to_batches(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A frame's `columns`, in this order and in the contract's Arrow types, in small batches."""
    conformed = actions.conform(frame, columns)
    yield from to_table(conformed).to_batches(max_chunksize=BATCH_ROWS)


def to_table(frame: pl.DataFrame) -> pa.Table:
    """A frame of flattened columns as an Arrow table of the contract's types."""
    fields = actions.fields()
    schema = pa.schema([(name, contract.to_arrow(fields[name].type)) for name in frame.columns])
    if not frame.height:
        return schema.empty_table()
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


def frames_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """Batches from Spark as frames; columns of the contract in its dtypes."""
    for batch in batches:
        frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch])))
        own = [name for name in frame.columns if name in actions.fields()]
        rest = frame.drop(own)
        yield pl.concat([actions.conform(frame, own), rest], how="horizontal")


@dataclass(frozen=True)
class Decoder:
    """Decodes splits by number; Spark calls it with batches of numbers."""

    place: TableLocation
    pieces: tuple[LogSplit, ...]
    columns: tuple[str, ...]
    exact_times: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of the splits with these numbers, with their position in log order."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number < len(self.pieces):
                    yield from self._decode(self.pieces[number])

    def _decode(self, piece: LogSplit) -> Iterator[pa.RecordBatch]:
        store, dialect = self.place.store(), self.place.dialect
        if piece.checkpoint is not None:
            reader = dialect.open_checkpoint(store, piece.checkpoint)
            wanted = [*self.columns, STRUCT_STATISTICS] if "stats" in self.columns else self.columns
            for frame in reader.iter_files(wanted):
                if STRUCT_STATISTICS in frame.columns:
                    text = statistics_text(frame, exact_times=self.exact_times)
                    frame = frame.with_columns(text)  # noqa: PLW2901 - with the text
                yield from self._batches(frame, None)
        for decoded in dialect.decode_pieces(store, piece.commits, _COMMIT_BYTES):
            files = decoded.files
            if PATH_TEXT in self.columns and files.height:
                texts = dialect.path_texts(store, None, piece.commits, files["path"])
                files = with_path_texts(files, texts)
            yield from self._batches(files, 1)

    def _batches(self, frame: pl.DataFrame, layer: int | None) -> Iterator[pa.RecordBatch]:
        if not frame.height:
            return
        rows = to_table(actions.conform(frame, self.columns))
        nothing = actions.conform(frame, actions.ORDER)
        above = layer is not None
        order = {
            "orderLayer": pa.array([layer or 0] * frame.height, pa.int32()),
            "orderVersion": nothing["version"].to_arrow() if above else pa.nulls(frame.height),
            "orderPosition": nothing["position"].to_arrow() if above else pa.nulls(frame.height),
        }
        types = {name: contract.to_arrow(contract.Primitive(t)) for name, t in _TYPES.items()}
        columns = [order[name].cast(types[name]) for name in _ORDER]
        whole = pa.table([*columns, *rows.columns], names=[*_ORDER, *rows.column_names])
        yield from whole.to_batches(max_chunksize=BATCH_ROWS)


@dataclass(frozen=True)
class Reconciler:
    """Reconciles the rows of one partition; `unique`: the checkpoint has no duplicate files."""

    place: TableLocation
    carried: tuple[str, ...]
    columns: tuple[str, ...]
    unique: bool
    meta: pl.DataFrame

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The live rows; memory: all of the partition."""
        frames = list(frames_of(batches))
        if not frames:
            return
        rows = pl.concat(frames)
        del frames
        rows = rows.sort(_ORDER, maintain_order=True)
        if self.unique:
            self._refuse_repeats(rows.filter(pl.col("orderLayer") == 0))
        live = reconcile_files(rows).drop(_ORDER)
        del rows
        live = self.place.dialect.resolve_references(live, self.meta)
        for part in live.iter_slices(BATCH_ROWS):
            yield from to_batches(finish(part, self.place.dialect), self.columns)

    def _refuse_repeats(self, base: pl.DataFrame) -> None:
        keys = actions.conform(base, actions.KEY)
        repeated = keys.filter(keys.is_duplicated())
        if repeated.height:
            raise InvalidActionError(
                "the checkpoint contains the same file twice, so it is not reconciled",
                path=self.place.location,
                expected="each (path, dvId) once",
                found=repeated["path"][0],
            )


def finish(files: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """File actions as in a state: no data change, Delta's statistics in columns if requested."""
    rows = files.with_columns(pl.lit(value=False).alias("dataChange"))
    return rows if dialect.map_statistics else with_derived_statistics(rows)


def _held(dialect: Dialect) -> frozenset[str]:
    """Flattened columns of a format's file actions."""
    own = (*file_columns(dialect), *tombstone_columns(dialect), *actions.ORDER, "actionType")
    return frozenset(own if dialect.map_statistics else (*own, *DERIVED, PATH_TEXT))


def _sources(columns: Sequence[str], dialect: Dialect) -> list[str]:
    """Columns that must be read and sent for the requested columns."""
    wanted = dict.fromkeys(("actionType", *actions.KEY, *columns))
    for name in ("dataChange", "timestamp"):
        wanted.pop(name, None)
    if not dialect.map_statistics:
        derived = [name for name in DERIVED if name in wanted]
        for name in derived:
            wanted.pop(name)
        if derived:
            wanted["stats"] = None
        if "dvId" in wanted:
            wanted |= dict.fromkeys(actions.DV_ID_COLUMNS)
    if "docMappingJson" in wanted:
        wanted["docMappingRef"] = None
    return [name for name in actions.fields() if name in wanted]


def flattened_schema(columns: Sequence[str]) -> Any:
    """Spark's schema of flattened columns and the columns of the order."""
    from pyspark.sql.types import StructType

    known = {name: field.type for name, field in actions.fields().items()}
    types = known | {name: contract.Primitive(type_) for name, type_ in _TYPES.items()}
    fields = tuple(contract.Field(name, types[name]) for name in columns)
    return StructType.fromJson(contract.to_json(contract.Struct(fields)))
