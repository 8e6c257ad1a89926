"""`replay`: a version's state as a Spark DataFrame in the flattened schema.

The driver chooses the files, checks the protocol and handles a broken checkpoint, as without Spark.
Spark processes the rows, by a strategy chosen by size (`lakelog.spark.strategy`).

Source: Delta protocol, Action Reconciliation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import polars as pl

from lakelog import telemetry
from lakelog.dialects.indextables.docmapping import registry_of_meta
from lakelog.dialects.log_content import CHECKPOINT_META, NO_TEXTS
from lakelog.errors import InvalidInputError
from lakelog.input_validation import as_names
from lakelog.log.export import iter_state
from lakelog.log.replay import live_domains, with_path_texts
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.snapshot import Snapshot
from lakelog.spark.checkpoint_rows import (
    carried_columns,
    has_vectors,
    held_columns,
    read_base,
    with_nulls,
    with_statistics,
)
from lakelog.spark.footers import Footers, read_footers, spark_path
from lakelog.spark.package_upload import is_connect, ship
from lakelog.spark.shuffle_replay import (
    TableLocation,
    flattened_schema,
    log_splits,
    replay_in_partitions,
    to_table,
)
from lakelog.spark.sql_functions import functions_of
from lakelog.spark.strategy import AUTO, BROADCAST, HASH, POLARS, Choice, Sizes, choose
from lakelog.storage.bounded import require_openable_elsewhere
from lakelog.table import Table
from lakelog.table_functions import open as open_table

_VERIFIED_ROWS = 1_000_000
"""Number of checkpoint rows up to which checks are cheap: by default, repeated files are searched,
and unusual path encodings are decoded instead of rejected.
"""

_ROWS_OF_DRIVER = 4_000_000
"""Number of checkpoint rows up to which the driver searches for repeated files, with 45 bytes each:
on one machine, a job on executors takes several times longer.
"""

_LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_turn = Lock()


@dataclass(frozen=True)
class Replay:
    """A version's state on Spark, and its plan.

    Attributes:
        frame: The state; see `replay`.
        version: The version.
        choice: The strategy, and the reason.
        sizes: Sizes of the log and the checkpoint.
        files: Files of the log that the state depends on, relative to the table root.
        warnings: Warnings about damage that was found and avoided, one sentence each.
    """

    frame: Any = field(repr=False)
    version: int
    choice: Choice
    sizes: Sizes
    files: tuple[str, ...] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()

    def explain(self) -> str:
        """The strategy and its reason, in one line."""
        return f"version {self.version} by {self.choice}"

    def __str__(self) -> str:
        return self.explain()


def replay(
    spark: Any,
    table: Table | str | os.PathLike[str],
    version: int | None = None,
    strategy: str = AUTO,
    *,
    columns: str | Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool | None = None,
) -> Any:
    """A version's state as a Spark DataFrame.

    Args:
        spark: The session, classic or Connect.
        table: The table, or its location.
        version: The version; None for the latest.
        strategy: ``broadcast``, ``hash``, ``polars``, or ``auto``; see `lakelog.spark.strategy`.
        columns: The flattened column, or several in order; None for all. With ``broadcast``,
            columns that a query does not use are never read.
        storage_options: Passed to the fsspec filesystem of the location, and, for ``hash``, on
            executors; None for those with which `table` was opened.
        verify: Whether the checkpoint is first searched for repeated files, which show that a part
            was copied over another. None does so for up to a million rows, and if two files look
            alike. ``hash`` and ``polars`` always do.

    Returns:
        A lazy DataFrame with the columns of ``schemas/actions.json`` and the content of
        `lakelog.Snapshot.iter_state`, unordered. Paths are percent-decoded, and ``dataChange`` is
        false. A query fails if a file of the checkpoint is missing or damaged, or, with
        ``broadcast`` over a million rows, if a path is not percent-encoded UTF-8 (``hash`` returns
        it unchanged). The strategy is logged (``replay.planned``); `plan_replay` returns it.

    Raises:
        InvalidInputError: The strategy or a column is unknown, or the strategy is not possible.
        TableNotFoundError: The table does not exist.
        VersionNotFoundError: The version cannot be rebuilt.
        UnsupportedFeatureError: The table has a feature that lakelog does not support.
        CorruptionError: The log is damaged, and no valid files replace the damaged ones.

    Memory: on the driver the decoded commits above the checkpoint, and one footer per file; with
    ``polars`` the state; with ``hash`` only footers.
    """
    return plan_replay(
        spark,
        table,
        version,
        strategy,
        columns=columns,
        storage_options=storage_options,
        verify=verify,
    ).frame


def plan_replay(
    spark: Any,
    table: Table | str | os.PathLike[str],
    version: int | None = None,
    strategy: str = AUTO,
    *,
    columns: str | Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool | None = None,
) -> Replay:
    """As `replay`, with the strategy and its reason."""
    wanted = _known(as_names(columns))
    opened = table if isinstance(table, Table) else open_table(table, storage_options, upkeep=False)
    require_openable_elsewhere(opened.log.store)
    ship(spark)
    snapshot = Snapshot.open(opened.log, version)
    return snapshot.read_state(
        lambda state: replay_state(
            spark, state, strategy, wanted, storage_options=storage_options, verify=verify
        )
    )


def replay_state(
    spark: Any,
    state: State,
    strategy: str,
    columns: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool | None = None,
    exact_times: bool = False,
) -> Replay:
    """Replay one state on Spark; see `plan_replay`. `columns` may include `PATH_TEXT`: the path as
    in the log, null where `encode_paths` returns it. `exact_times` as `statistics_text`. A damaged
    checkpoint raises.
    """
    state.ensure_readable()
    log = state.log
    footers = read_footers(state)
    paths = [spark_path(log.location, path) for path in footers.paths]
    sizes = _sizes(state, footers, paths)
    choice = choose(sizes, strategy)
    if choice.strategy == HASH:
        state.require_settled()
        if state.settled.height:  # the tasks have only the checkpoint's rows
            choice = choose(sizes, POLARS if sizes.obstacle is not None else BROADCAST)
    telemetry.event(
        "replay.planned",
        path=log.table,
        version=state.version,
        strategy=choice.strategy,
        reason=choice.reason,
    )
    if choice.strategy == POLARS:
        frame = frame_of(spark, list(_state_rows(state, columns, exact_times)), columns)
    elif choice.strategy == BROADCAST:
        known = [path for path in paths if path is not None]
        _verify(spark, state, footers, known, verify)
        frame = _broadcast(spark, state, footers, known, columns, exact_times)
    else:
        place = TableLocation.of(log, storage_options)
        pieces = log_splits(state, footers.paths)
        files = replay_in_partitions(
            spark,
            place,
            pieces,
            columns,
            choice,
            state.references,
            about_rows=sizes.rows,
            exact_times=exact_times,
        )
        frame = frame_of(spark, _meta(state, columns), columns).union(files)
    base = () if state.base is None else state.base.files
    commits = (commit.path for commit in state.segment.commits)
    return Replay(frame, state.version, choice, sizes, (*base, *commits), state.notes)


def frame_of(spark: Any, frames: Sequence[pl.DataFrame], columns: Sequence[str]) -> Any:
    """Frames of flattened columns as one DataFrame; memory: three copies of them."""
    whole = pl.concat([actions.empty(columns), *frames])
    held = _held([whole], columns) or list(columns[:1])
    return with_nulls(_rows_of(spark, whole.select(held)), held, columns)


def _rows_of(spark: Any, frame: pl.DataFrame) -> Any:
    """A frame of flattened columns as a DataFrame with the same columns."""
    return spark.createDataFrame(to_table(frame), schema=flattened_schema(frame.columns))


def _held(frames: Sequence[pl.DataFrame], columns: Sequence[str]) -> list[str]:
    """Columns with values: most columns belong to other actions, or to the other format."""
    return [c for c in columns if any(f[c].null_count() < f.height for f in frames)]


def _known(columns: Sequence[str] | None) -> tuple[str, ...]:
    every = tuple(actions.schema())
    if columns is None:
        return every
    unknown = [name for name in columns if name not in every]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InvalidInputError(
            "unknown or repeated column of the flattened schema",
            found=", ".join(unknown or columns),
            expected="unique names from schemas/actions.json",
        )
    return tuple(columns)


def _sizes(state: State, footers: Footers, paths: Sequence[str | None]) -> Sizes:
    checkpoint = state.segment.checkpoint
    obstacle = footers.obstacle
    if obstacle is None and None in paths:
        obstacle = "Spark cannot access its files, or would ignore their names"
    if obstacle is None and checkpoint is not None and not paths:
        obstacle = "it has no Parquet files"
    tail = sum(c.size_bytes for c in state.segment.commits)
    layout = checkpoint.layout if checkpoint is not None else None
    return Sizes(footers.rows, tail, layout, obstacle)


def _verify(
    spark: Any, state: State, footers: Footers, paths: Sequence[str], verify: bool | None
) -> None:
    """Search for repeated files; raises `CheckpointCorruptionError`."""
    wanted = footers.may_repeat or footers.rows <= _VERIFIED_ROWS if verify is None else verify
    if wanted or footers.may_repeat:
        few = footers.rows <= _ROWS_OF_DRIVER
        if few or _may_repeat(spark, state, footers, paths):
            _ = state.base_is_unique
    elif verify is None:
        state.require_settled()


def _may_repeat(spark: Any, state: State, footers: Footers, paths: Sequence[str]) -> bool:
    """Whether the checkpoint may contain a logical file twice; False is certain. Executors
    determine it, because the driver would need memory for each file.
    """
    sql = functions_of(spark)
    dialect = state.log.dialect
    key = ["path", "dvId"] if dialect.has_deletion_vectors and has_vectors(footers) else ["path"]
    odd = footers.rows <= _VERIFIED_ROWS
    rows = read_base(spark, paths, footers, key, dialect=dialect, registry={}, odd_paths=odd)
    hashes = rows.select(sql.xxhash64(*map(sql.col, key)).alias("hash"))
    try:
        found = hashes.groupBy("hash").count().filter("count > 1").limit(1).toArrow()
    except Exception:  # noqa: BLE001 - of a damaged file, for one: the driver reports it better
        return True
    return bool(found.num_rows)


def _meta(state: State, columns: Sequence[str]) -> Sequence[pl.DataFrame]:
    """Non-file actions, as in `iter_state`."""
    meta = state.meta
    kinds = {kind: actions.of_type(meta, kind) for kind in CHECKPOINT_META}
    kinds["domainMetadata"] = live_domains(meta)
    return [actions.conform(rows, columns) for rows in kinds.values() if rows.height]


def _broadcast(
    spark: Any,
    state: State,
    footers: Footers,
    paths: Sequence[str],
    columns: Sequence[str],
    exact_times: bool,
) -> Any:
    """The commits' rows from the driver, and the checkpoint's rows that they do not override."""
    dialect = state.log.dialect
    carried = carried_columns(columns, dialect)
    frames = [*_meta(state, carried), *_live(state, carried)]
    # Spark's planning time grows with the columns of every step, so null columns are added last;
    # but a frame without columns would have no rows.
    above, below = _held(frames, carried), held_columns(footers, dialect)
    held = [name for name in carried if name in above or name in below] or list(carried[:1])
    with _rows_stay_with_tasks(spark):
        rows = _rows_of(spark, pl.concat([actions.empty(carried), *frames]).select(held))
    rows = rows.union(_below(spark, state, footers, paths, held, exact_times))
    return with_statistics(rows, held, columns, dialect)


@contextmanager
def _rows_stay_with_tasks(spark: Any) -> Iterator[None]:
    """Let tasks decode rows that are passed to Spark: it would otherwise evaluate filters on few
    rows in the driver, row by row, at each planning.
    """
    if is_connect(spark):
        yield
        return
    with _turn:  # otherwise one thread could mistake another's setting for the user's
        before = spark.conf.get(_LOCAL_BYTES, None)
        spark.conf.set(_LOCAL_BYTES, "0")
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_LOCAL_BYTES)
            else:
                spark.conf.set(_LOCAL_BYTES, before)


def _below(
    spark: Any,
    state: State,
    footers: Footers,
    paths: Sequence[str],
    columns: Sequence[str],
    exact_times: bool,
) -> Any:
    """The checkpoint's file actions that the commits above do not override."""
    sql = functions_of(spark)
    dialect = state.log.dialect
    registry = registry_of_meta(state.references)
    vectors = dialect.has_deletion_vectors and has_vectors(footers)
    wanted = tuple(dict.fromkeys((*columns, "path", *(("dvId",) if vectors else ()))))
    base = read_base(
        spark,
        paths,
        footers,
        wanted,
        dialect=dialect,
        registry=registry,
        odd_paths=footers.rows <= _VERIFIED_ROWS,
        exact_times=exact_times,
    )
    keys = state.layers.keys().unique()
    same = "path = gone_path"
    if vectors:
        same += " AND dvId <=> gone_dvId"
    else:
        # No row below has a vector, so comparing the path is sufficient and faster.
        keys = keys.filter(pl.col("dvId").is_null()).select("path")
    if keys.height:
        rows = to_table(keys).rename_columns([f"gone_{name}" for name in keys.columns])
        excluded = sql.broadcast(spark.createDataFrame(rows))
        base = base.join(excluded, sql.expr(same), "left_anti")
    return base if wanted == tuple(columns) else base.select(*columns)


def _state_rows(state: State, columns: Sequence[str], exact_times: bool) -> Iterator[pl.DataFrame]:
    """The whole state, replayed by the driver."""
    texts = state.path_texts() if PATH_TEXT in columns else NO_TEXTS
    replayed = dict.fromkeys((*columns, "path"))
    replayed.pop(PATH_TEXT, None)
    for rows in iter_state(state, list(replayed), exact_times=exact_times):
        yield actions.conform(with_path_texts(rows, texts), columns)


def _live(state: State, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The file actions of the commits above the checkpoint."""
    dialect = state.log.dialect
    texts = NO_TEXTS
    if PATH_TEXT in columns:
        paths = state.layers.keys()["path"]
        texts = dialect.path_texts(state.log.store, None, state.segment.commits, paths)
    for kind in actions.FILE_ACTIONS:
        rows = state.layers.live(kind)
        if rows.height:
            resolved = with_path_texts(dialect.resolve_references(rows, state.references), texts)
            unchanged = resolved.with_columns(pl.lit(value=False).alias("dataChange"))
            yield actions.conform(unchanged, columns)
