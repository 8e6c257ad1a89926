"""`s.files()`: the live files of a state as a lazy frame.

A Polars IO source: only the columns that the query needs are read, statistics and partition values
are parsed only if the query uses them, and nothing is read before ``collect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import STRUCT_STATISTICS, FileCondition, statistics_text
from lakelog.display import Displayed, size_text
from lakelog.lazy import cached_property
from lakelog.log.base_checkpoint import RowGroupChoice, Transform, path_condition
from lakelog.model import actions, contract
from lakelog.model.contract import field_of
from lakelog.model.metadata import Metadata, Protocol, honoured_mapping
from lakelog.skipping.prune import keep_mask, referenced_columns, required_values
from lakelog.skipping.statistics import (
    stats_from_either,
    stats_from_json,
    stats_from_maps,
    stats_from_struct,
)
from lakelog.skipping.values import PREFIX, TypedPartitions, typed_partitions
from lakelog.threads import read_by_polars

if TYPE_CHECKING:
    from lakelog.log.snapshot import LogSnapshot
    from lakelog.log.state import State


def lazy_frame(
    schema: pl.Schema,
    read: Callable[[Sequence[str], pl.Expr | None], Iterator[pl.DataFrame]],
    name: str,
    *,
    is_pure: bool = False,
) -> pl.LazyFrame:
    """A lazy frame that reads only needed columns; `read` may omit rows without a match."""

    def scan(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        chosen = list(schema) if with_columns is None else with_columns
        roots = [] if predicate is None else predicate.meta.root_names()
        yielded = False
        # With `n_rows`, the predicate applies to these rows: Polars does not push down a limit that
        # follows a filter.
        pushed = predicate if n_rows is None else None
        for batch in read([c for c in schema if c in chosen or c in roots], pushed):
            frame = batch if n_rows is None else batch.head(n_rows)
            if n_rows is not None:
                n_rows -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            if frame.height or not yielded:
                yielded = True
                yield frame.select(chosen)
            if n_rows == 0:
                return

    return register_io_source(
        lambda *asked: read_by_polars(scan(*asked)),
        schema=schema,
        validate_schema=True,
        is_pure=is_pure,
        explain_name=name,
    )


_STATISTICS = ("numRecords", "min", "max", "nullCount")
"""Columns of ``stats=True``, which replace the text of statistics."""

_TEXT_STATISTICS = ("stats", "numRecords", "minValues", "maxValues")
_BOUNDS = ("minValues", "maxValues")
_MAP_STATISTICS = ("numRecords", *_BOUNDS)


class TextNeededError(Exception):
    """Some rows have no typed statistics, and their text has not been read."""


Frames = Callable[[Sequence[str], Transform, FileCondition | None], list[pl.DataFrame]]


@cache
def file_columns(dialect: Dialect) -> tuple[str, ...]:
    """Flattened columns of a live file in a dialect, in contract order."""
    return _columns_of("add", dialect)


@cache
def tombstone_columns(dialect: Dialect) -> tuple[str, ...]:
    """Flattened columns of a tombstone in a dialect, in contract order."""
    return _columns_of("remove", dialect)


def _columns_of(wrapper: str, dialect: Dialect) -> tuple[str, ...]:
    columns = [
        field.name
        for field in contract.load("actions").fields
        if any(p.startswith(f"{wrapper}.") for p in field.metadata.get(dialect.contract_key, ()))
        or (field.name == "dvId" and dialect.has_deletion_vectors)
    ]
    return (*columns, "version", "extra")


@dataclass(frozen=True)
class FilesPlan(Displayed):
    """The files and row groups that `Snapshot.files` reads for a condition, chosen from footers and
    commits.

    Attributes:
        version: Table version.
        checkpoint_files: Number of the checkpoint's files: manifest, parts, sidecars; 0 without
            one.
        checkpoint_files_read: Number of these files with row groups to read.
        row_groups: Number of row groups; None if all are read.
        row_groups_read: Number of row groups that may contain a matching file; None if all are
            read.
        actions: Number of actions in all row groups; None if all are read.
        actions_read: Number of actions in the row groups to read; None if all are read.
        size_bytes: Size of the files with row groups, in bytes; None if all are read.
        bytes_read: Upper bound of the bytes to read: the size of the row groups to read, estimated
            from their actions (a query reads only the columns that it needs); None if all are read.
        commits: Number of commits above the checkpoint; all are read.
        reason: Why all row groups are read; None if they are chosen by their bounds.
        seconds: Duration of the decision, in seconds.
    """

    version: int
    checkpoint_files: int
    checkpoint_files_read: int
    row_groups: int | None
    row_groups_read: int | None
    actions: int | None
    actions_read: int | None
    size_bytes: int | None
    bytes_read: int | None
    commits: int
    reason: str | None
    seconds: float

    @staticmethod
    def of(state: State, query: FilesQuery, now: Callable[[], float]) -> FilesPlan:
        """The plan of one state."""
        start = now()
        choice = state.choose(query.condition())
        files = () if state.base is None else state.base.files
        groups = () if state.base is None or choice.chosen is None else state.base.row_groups
        read = [group.frame["rows"].gather(_chosen(choice, group.path)) for group in groups]
        every = [group.frame["rows"] for group in groups]
        # A row group's bytes are estimated from its share of the actions, because footers are not
        # read.
        shares = [
            group.size_bytes * int(some.sum()) // max(1, int(rows.sum()))
            for group, some, rows in zip(groups, read, every, strict=True)
        ]
        skips = choice.chosen is not None
        return FilesPlan(
            version=state.version,
            checkpoint_files=len(files),
            checkpoint_files_read=len(files if choice.chosen is None else choice.chosen),
            row_groups=sum(map(len, every)) if skips else None,
            row_groups_read=sum(map(len, read)) if skips else None,
            actions=sum(int(rows.sum()) for rows in every) if skips else None,
            actions_read=sum(int(rows.sum()) for rows in read) if skips else None,
            size_bytes=sum(group.size_bytes for group in groups) if skips else None,
            bytes_read=sum(shares) if skips else None,
            commits=len(state.segment.commits),
            reason=choice.reason,
            seconds=now() - start,
        )

    _title = "Read plan"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The plan as (label, text)."""

        def share(read: int | None, total: int | None, text: Callable[[int], str]) -> str:
            if read is None or total is None:
                return "all"
            return f"{text(read)} of {text(total)}"

        found = [
            ("version", str(self.version)),
            ("checkpoint files", f"{self.checkpoint_files_read:,} of {self.checkpoint_files:,}"),
            ("row groups", share(self.row_groups_read, self.row_groups, "{:,}".format)),
            ("actions", share(self.actions_read, self.actions, "{:,}".format)),
            ("bytes, at most", share(self.bytes_read, self.size_bytes, size_text)),
            ("commits", f"{self.commits:,}"),
            ("decided in", f"{self.seconds * 1000:.1f} ms"),
        ]
        return found + ([("reason", self.reason)] if self.reason is not None else [])


def _chosen(choice: RowGroupChoice, path: str) -> list[int]:
    return list((choice.chosen or {}).get(path, ()))


@dataclass(frozen=True)
class FilesQuery:
    """One call of `Snapshot.files`: the columns to read, and how to derive the result."""

    dialect: Dialect
    read_protocol: Callable[[], Protocol]
    read_metadata: Callable[[], Metadata]
    where: pl.Expr | None = None
    stats: bool = False
    flatten: bool = False

    @property
    def metadata(self) -> Metadata:
        """Metadata of the state."""
        return self.read_metadata()

    @property
    def mapping(self) -> str:
        """Column mapping mode of the names in the log."""
        if self.metadata.column_mapping_mode == "none":
            return "none"
        return honoured_mapping(self.read_protocol(), self.metadata)

    def check(self) -> None:
        """Raise for a condition that is not a row-wise condition on the table's columns."""
        if self.where is not None:
            _ = self._referenced

    def schema(self) -> pl.Schema:
        """Columns and dtypes of the result."""
        full = actions.schema()
        out: dict[str, pl.DataType] = {}
        for column in file_columns(self.dialect):
            if column == "partitionValues" and self.flatten:
                out |= self._partition_schema()
            elif column == "stats" and self.stats:
                out |= self._stats_schema()
            elif not (self.stats and column in _TEXT_STATISTICS):
                out[column] = full[column]
        return pl.Schema(out)

    def _partition_schema(self) -> dict[str, pl.DataType]:
        empty = pl.Series(dtype=actions.schema()["partitionValues"])
        return dict(self._partitions(empty).schema)

    def _stats_schema(self) -> dict[str, pl.DataType]:
        typed = stats_from_json(
            pl.Series(dtype=pl.String), self.metadata.schema, mapping=self.mapping
        )
        return {c: typed.schema[c] for c in _STATISTICS}

    def _partitions(self, values: pl.Series) -> pl.DataFrame:
        return typed_partitions(
            values,
            self.metadata.schema,
            self.metadata.partition_columns,
            mapping=self.mapping,
            hive_null=self.dialect.hive_null,
        ).values

    def sources(
        self, wanted: Sequence[str], struct_statistics: bool, text: bool = True
    ) -> list[str]:
        """Columns to read for the result columns `wanted`; `text`: also statistics as JSON."""
        needed: dict[str, None] = {"path": None}
        statistics = self._statistics_columns(struct_statistics, text)
        for column in wanted:
            if column.startswith(PREFIX) and self.flatten:
                needed["partitionValues"] = None
            elif column in _STATISTICS and self.stats:
                needed |= dict.fromkeys(statistics)
            elif column == "stats" and struct_statistics:
                needed |= {"stats": None, STRUCT_STATISTICS: None}
            elif column != "dataChange":
                needed[column] = None
        if self.where is not None:
            needed |= dict.fromkeys(self.condition(struct_statistics, text).columns)
        return list(needed)

    def _statistics_columns(self, struct_statistics: bool, text: bool) -> tuple[str, ...]:
        own = ("stats", *_MAP_STATISTICS) if self.dialect.map_statistics else ("stats",)
        if not struct_statistics:
            return own
        return (*own, STRUCT_STATISTICS) if text else (STRUCT_STATISTICS,)

    def condition(self, struct_statistics: bool = False, text: bool = True) -> FileCondition:
        """``where``, for readers that skip files; the arguments are those of `sources`."""
        where = self.where
        assert where is not None
        statistics = self._statistics_columns(struct_statistics, text) if self._bounded else ()
        return FileCondition(
            ("partitionValues", *statistics),
            lambda batch: self._may_match(where, batch, text),
            self.may_hold,
        )

    @cached_property
    def _referenced(self) -> tuple[str, ...]:
        """Columns of ``where``."""
        assert self.where is not None
        return referenced_columns(self.where, self.metadata.schema)

    @cached_property
    def _bounded(self) -> list[str]:
        """Columns of ``where`` with statistics."""
        partitioned = self.metadata.partition_columns
        return [column for column in self._referenced if column not in partitioned]

    def derive(self, batch: pl.DataFrame, wanted: Sequence[str], text: bool = True) -> pl.DataFrame:
        """The result columns `wanted`; raises TextNeededError, see `sources`."""
        statistics: pl.DataFrame | None = None
        series: list[pl.Series] = []
        partitions: pl.DataFrame | None = None
        for column in wanted:
            if column.startswith(PREFIX) and self.flatten:
                if partitions is None:
                    partitions = self._partitions(_column(batch, "partitionValues"))
                series.append(partitions[column])
            elif column in _STATISTICS and self.stats:
                if statistics is None:
                    statistics = self._statistics(batch, text=text)
                series.append(statistics[column])
            elif column == "dataChange":
                # ``dataChange`` is false in a replayed state: Delta protocol, Action
                # Reconciliation.
                series.append(
                    pl.Series(column, [False], dtype=pl.Boolean).new_from_index(0, batch.height)
                )
            elif column == "stats":
                series.append(statistics_text(batch))
            else:
                series.append(_column(batch, column))
        return pl.DataFrame(series) if series else batch.select()

    def _may_match(self, where: pl.Expr, batch: pl.DataFrame, text: bool) -> pl.Series:
        schema = self.metadata.schema
        partitioned = [c for c in self.metadata.partition_columns if c in self._referenced]
        bounded = self._bounded
        return keep_mask(
            where,
            schema=schema,
            partition_columns=partitioned,
            partitions=typed_partitions(
                _column(batch, "partitionValues"),
                schema,
                partitioned,
                mapping=self.mapping,
                hive_null=self.dialect.hive_null,
            ),
            stats=self._statistics(batch, bounded, text=text) if bounded else None,
        )

    def may_hold(self, groups: pl.DataFrame) -> pl.Series:
        """Which row groups of a `RowGroups.frame` may have a file that `where` keeps."""
        assert self.where is not None
        bounds = groups["bounds"]
        schema = self.metadata.schema
        columns = [column for column in self._referenced if not self._was_text(bounds, column)]
        nothing = pl.DataFrame(height=bounds.len())
        return keep_mask(
            self.where,
            schema=schema,
            partition_columns=(),
            partitions=TypedPartitions(nothing, nothing),
            stats=stats_from_struct(bounds, schema, columns=columns, mapping=self.mapping),
        )

    def _was_text(self, bounds: pl.Series, column: str) -> bool:
        """Whether bounds are texts of a former type, whose least is not that of the values."""
        field = self.metadata.schema.field(column)
        assert field is not None
        name = contract.physical_name(field, self.mapping)
        sides = [bounds.struct.field(n) for n in _BOUNDS if n in bounds.struct.fields]
        found = [field_of(side, name) for side in sides if name in side.struct.fields]
        is_text = any(side.dtype == pl.String for side in found)
        return is_text and contract.to_polars(field.type) != pl.String

    def _statistics(
        self, batch: pl.DataFrame, columns: Sequence[str] | None = None, *, text: bool
    ) -> pl.DataFrame:
        schema = self.metadata.schema
        if self.dialect.map_statistics:
            return stats_from_maps(
                _column(batch, "numRecords"),
                _column(batch, "minValues"),
                _column(batch, "maxValues"),
                schema,
                columns=columns,
            )
        mapping = self.mapping
        typed_throughout = (
            STRUCT_STATISTICS in batch.columns and not batch[STRUCT_STATISTICS].null_count()
        )
        if not (typed_throughout or text or "stats" in batch.columns):
            raise TextNeededError
        if STRUCT_STATISTICS not in batch.columns:
            return stats_from_json(
                _column(batch, "stats"), schema, columns=columns, mapping=mapping
            )
        structs, texts = batch[STRUCT_STATISTICS], _column(batch, "stats")
        return stats_from_either(structs, texts, schema, columns=columns, mapping=mapping)


def find_files(snapshot: LogSnapshot, paths: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Columns (not statistics) of the live files of decoded paths."""
    condition = path_condition(pl.Series("path", list(paths), dtype=pl.String))

    def finish(batch: pl.DataFrame) -> pl.DataFrame:
        return actions.conform(batch, columns)

    frames = snapshot.read_state(lambda state: state.live("add", columns, finish, condition))
    return pl.concat([actions.empty(columns), *frames])


def _column(batch: pl.DataFrame, column: str) -> pl.Series:
    return actions.conform(batch, (column,)).to_series()


def lazy_files(
    dialect: Dialect,
    protocol: Callable[[], Protocol],
    metadata: Callable[[], Metadata],
    struct_statistics: Callable[[], bool],
    live: Frames,
    *,
    where: pl.Expr | None = None,
    stats: bool = False,
    flatten: bool = False,
) -> pl.LazyFrame:
    """See `Snapshot.files`; `metadata` is read now if the schema needs it, `live` on collect."""
    query = FilesQuery(dialect, protocol, metadata, where, stats, flatten)
    query.check()  # immediately, not on collect
    schema = query.schema()

    def read(wanted: Sequence[str], predicate: pl.Expr | None) -> Iterator[pl.DataFrame]:
        paths = None if predicate is None else required_values(predicate, "path")
        needed = where is not None or any(c in (*_STATISTICS, "stats") for c in wanted)
        typed = needed and struct_statistics()

        def derived(text: bool) -> list[pl.DataFrame]:
            sources = query.sources(wanted, typed, text)
            condition = None if paths is None else path_condition(paths)
            if where is not None:
                condition = query.condition(typed, text)
            return live(sources, lambda batch: query.derive(batch, wanted, text), condition)

        try:
            # Most checkpoints with typed statistics have them for every file, and their text would
            # be most of the bytes read.
            frames = derived(text=not typed)
        except TextNeededError:
            frames = derived(text=True)
        yield pl.concat(frames) if frames else pl.DataFrame(schema={c: schema[c] for c in wanted})

    return lazy_frame(schema, read, "lakelog files", is_pure=True)
