"""The order of file actions in written files: partition values, statistics, path.

Rows of one kind are received in any order, in batches, and returned sorted. Only narrow keys are
sorted; each row is then gathered once. Rows above a limit are sorted in runs on local disk and
merged block by block, so that memory does not grow with the table.

Source: ``schemas/checkpoint.md``, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np
import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import STRUCT_STATISTICS, TYPED_STATISTICS, CheckpointPlan
from lakelog.errors import CorruptionError, InvalidPropertyError, UnavailableError
from lakelog.log.replay import live_domains
from lakelog.log.state import State
from lakelog.model import actions, contract
from lakelog.model.contract import field_of
from lakelog.model.metadata import CLUSTERING, Metadata, clustering_paths
from lakelog.skipping.indexed_columns import indexed_columns
from lakelog.skipping.statistics import (
    has_bounds,
    least_from_json,
    stats_from_maps,
    stats_from_struct,
)
from lakelog.skipping.values import typed_partitions
from lakelog.storage.scratch import ScratchFile, ScratchRange

_HELD_BYTES = 1 << 30
"""Size of the rows that are sorted in memory without a limit, in bytes as Polars estimates them."""

_BATCH_ROWS = 1 << 16
_BLOCKS_OF_A_RUN = 64
_LEAST_BLOCK_ROWS = 256
_MOST_RUNS = 64
_FEW_ROWS = 1 << 13  # fewer rows are sorted faster by several keys
_MOST_TEXTS = 1 << 12  # distinct texts of a key that are numbered before sorting
_MOST_CHOICES = 1 << 62
_SMALL_INTEGERS = (pl.Boolean, pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_MAPS = "partitionValues"
_KEY = "order."

Column = tuple[str, ...]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class KeyRanges:
    """Ranges of the first keys of an order, ascending, ends inclusive and possibly shared."""

    least: pl.DataFrame
    greatest: pl.DataFrame

    def numbers(self, keys: pl.DataFrame) -> Numbers:
        """For each row of keys, the number of its range; the number of ranges for keys in none."""
        count = self.least.height
        first = keys.select(self.least.columns)
        every = pl.concat(
            frame.with_columns(pl.lit(side, dtype=pl.Int8).alias("side"))
            for side, frame in enumerate((self.least, first, self.greatest))
        )
        positions = _sorted_by(every)
        side_of = every["side"].gather(positions).to_numpy()
        begun, ended = np.cumsum(side_of == 0), np.cumsum(side_of == 2)
        is_row = side_of == 1
        found: Numbers = np.empty(keys.height, np.int64)
        found[positions[is_row] - count] = np.where(begun > ended, begun - 1, count)[is_row]
        return found


@dataclass(frozen=True)
class FileOrder:
    """The sort key of file actions: partition values, minimum values of `leading` columns (live
    files only), then paths by UTF-8 bytes, as `spell` encodes them; nulls, missing and invalid
    values first. Live files in `ranges` precede all others.
    """

    schema: contract.Struct
    partition_columns: tuple[str, ...]
    mapping: str = "none"
    dialect: Dialect | None = None
    spell: Callable[[pl.Series], pl.Series] | None = None
    leading: tuple[Column, ...] = ()
    ranges: KeyRanges | None = None

    @staticmethod
    def of_plan(plan: CheckpointPlan, meta: pl.DataFrame, dialect: Dialect) -> FileOrder:
        """The order of a checkpoint."""
        columns, mapping = plan.partition_columns, plan.mapping
        leading = leading_columns(plan.schema, columns, mapping, meta)
        return FileOrder(plan.schema, columns, mapping, dialect, dialect.encode_paths, leading)

    @staticmethod
    def of_state(state: State) -> FileOrder:
        """The order of a state in the flattened schema, whose paths are decoded."""
        metadata, dialect = state.metadata, state.log.dialect
        mapping = state.table_configuration.column_mapping
        try:
            schema = metadata.schema
        except CorruptionError:
            schema = contract.Struct(())  # some logs have none
        columns = metadata.partition_columns
        leading = leading_columns(schema, columns, mapping, state.meta)
        return FileOrder(schema, columns, mapping, dialect, leading=leading)

    def keys(self, files: pl.DataFrame) -> pl.DataFrame:
        """The typed sort columns of rows of one kind, before the path."""
        keys = self._own_keys(files)
        if self.ranges is None or files["actionType"][0] != "add":
            return keys
        numbers = pl.Series(f"{_KEY}range", self.ranges.numbers(keys))
        return keys.insert_column(0, numbers)

    @property
    def num_ranges(self) -> int:
        """Number of ranges, including one for keys in none."""
        return 1 if self.ranges is None else self.ranges.least.height + 1

    def count_ranges(self, files: pl.DataFrame) -> Numbers:
        """Number of live files in each range, and in none."""
        if self.ranges is None:
            return np.array([files.height], np.int64)
        numbers = self.ranges.numbers(self._own_keys(files))
        return np.bincount(numbers, minlength=self.num_ranges).astype(np.int64)

    def keys_of_bounds(self, bounds: pl.Series) -> pl.DataFrame:
        """The keys of live files from one side of their bounds, under logical names."""
        columns = [*((name,) for name in self.partition_columns), *self.leading]
        found = []
        for number, path in enumerate(columns):
            leaf = bounds
            for name in path:
                fields = leaf.struct.fields if isinstance(leaf.dtype, pl.Struct) else []
                leaf = field_of(leaf, name) if name in fields else leaf.clear(leaf.len())
            found.append(leaf.alias(f"{_KEY}{number}"))
        return pl.DataFrame(found)

    def _own_keys(self, files: pl.DataFrame) -> pl.DataFrame:
        found: list[pl.Series] = []
        if self.partition_columns:
            values, _ = typed_partitions(
                _column(files, _MAPS),
                self.schema,
                self.partition_columns,
                mapping=self.mapping,
                hive_null=self.dialect is not None and self.dialect.hive_null,
            )
            found += values.get_columns()
        if self.leading and files["actionType"][0] == "add":
            least = self._least(files)
            found += [_leaf(least, path) for path in self.leading]
        return pl.DataFrame([each.alias(f"{_KEY}{n}") for n, each in enumerate(found)])

    def _least(self, files: pl.DataFrame) -> pl.Series:
        """The minimum values of the leading columns, as a struct under logical names."""
        wanted = _pruned(self.schema, self.leading)
        if self.dialect is not None and self.dialect.map_statistics:
            counts = _column(files, "numRecords")
            least, greatest = _column(files, "minValues"), _column(files, "maxValues")
            return stats_from_maps(counts, least, greatest, wanted)["min"]
        texts = _column(files, "stats")
        if STRUCT_STATISTICS not in files.columns:
            if TYPED_STATISTICS in files.columns:
                least = files[TYPED_STATISTICS].struct.field("min")
                if all(_has(least.dtype, path) for path in self.leading):
                    return least
            return least_from_json(texts, wanted, mapping=self.mapping)
        structs = files[STRUCT_STATISTICS]
        least = stats_from_struct(structs, wanted, mapping=self.mapping)["min"]
        kept = structs.is_not_null()
        texts = texts.set(kept, None)
        if texts.null_count() == files.height:
            return least
        return least.zip_with(kept, least_from_json(texts, wanted, mapping=self.mapping))

    def positions(self, keys: pl.DataFrame, paths: pl.Series) -> Numbers:
        """The rows' numbers in sort order; paths are compared only among equal keys."""
        height = len(paths)
        positions = np.arange(height)
        names = [c.name for c in keys if c.null_count() < height]
        same = np.ones(max(0, height - 1), np.bool_)
        if names:
            keys = keys.select(names)
            if height > _FEW_ROWS:
                keys = _packed(keys)
            positions = _sorted_by(keys)
            for key in keys:
                ordered = key.gather(positions)
                same &= ordered[1:].eq_missing(ordered[:-1]).to_numpy()
        if not same.any():
            return positions
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        group = np.cumsum(np.insert(~same, 0, False))[tied]
        tied_paths = paths.gather(positions[tied])
        spelled = tied_paths if self.spell is None else self.spell(tied_paths)
        by_path = _sorted_by(pl.DataFrame({"group": group, "path": spelled}))
        positions[tied] = positions[tied][by_path]
        return positions


def leading_columns(
    schema: contract.Struct,
    partition_columns: Sequence[str],
    mapping: str,
    meta: pl.DataFrame,
) -> tuple[Column, ...]:
    """The columns whose minimum values sort the files with equal partition values."""
    by_physical = {physical: path for path, physical in _bounded(schema, mapping)}
    clustered = [by_physical[path] for path in _clustering(meta) if path in by_physical]
    if clustered:
        return tuple(dict.fromkeys(clustered))
    rows = actions.of_type(meta, "metaData")
    configuration = Metadata.from_row(rows.row(-1, named=True)).configuration if len(rows) else {}
    with suppress(InvalidPropertyError):
        schema = indexed_columns(schema, partition_columns, configuration)
    own = (path for path, _ in _bounded(schema, mapping) if path[0] not in partition_columns)
    return tuple(islice(own, 1))


def _clustering(meta: pl.DataFrame) -> tuple[Column, ...]:
    """Physical paths of the clustering columns of a table."""
    domains = live_domains(meta)
    if not domains.height or "domainConfiguration" not in domains.columns:
        return ()
    found = domains.filter(pl.col("domain") == CLUSTERING)["domainConfiguration"].to_list()
    with suppress(ValueError, TypeError, AttributeError):
        return clustering_paths(found[-1]) if found else ()
    return ()


def _bounded(
    schema: contract.Struct, mapping: str, above: tuple[Column, Column] = ((), ())
) -> Iterator[tuple[Column, Column]]:
    """Logical and physical path of each leaf that has bounds, in schema order."""
    for field in schema.fields:
        logical = (*above[0], field.name)
        physical = (*above[1], contract.physical_name(field, mapping))
        if isinstance(field.type, contract.Struct):
            yield from _bounded(field.type, mapping, (logical, physical))
        elif has_bounds(field.type):
            yield logical, physical


def _pruned(schema: contract.Struct, paths: Iterable[Column]) -> contract.Struct:
    """The fields of a schema that contain one of the columns."""
    found = []
    below = list(paths)
    for field in schema.fields:
        inner = [path[1:] for path in below if path[0] == field.name]
        if not inner:
            continue
        type_ = field.type
        if isinstance(type_, contract.Struct):
            type_ = _pruned(type_, inner)
        found.append(contract.Field(field.name, type_, field.nullable, field.metadata))
    return contract.Struct(tuple(found))


def _has(dtype: object, path: Column) -> bool:
    """Whether a type is a struct that contains this field."""
    for name in path:
        fields = dtype.to_schema() if isinstance(dtype, pl.Struct) else {}
        if name not in fields:
            return False
        dtype = fields[name]
    return True


def _leaf(struct: pl.Series, path: Column) -> pl.Series:
    for name in path:
        struct = field_of(struct, name)
    return struct


def _column(files: pl.DataFrame, name: str) -> pl.Series:
    if name in files.columns:
        return files[name]
    return pl.Series(name, [None], dtype=actions.schema()[name]).new_from_index(0, files.height)


def in_order(
    frames: Iterable[pl.DataFrame],
    order: FileOrder,
    *,
    held_bytes: int | None = None,
    error: type[UnavailableError] = UnavailableError,
) -> Iterator[pl.DataFrame]:
    """Sort file actions, one kind after another. Memory: `held_bytes`, keys and a batch; twice that
    while runs from a temporary file are merged.
    """
    most = _HELD_BYTES if held_bytes is None else held_bytes
    filled = (frame for frame in frames if frame.height)
    for _, same in groupby(filled, key=lambda frame: str(frame["actionType"][0])):
        yield from _sorted(same, order, most, error)


def _sorted(
    frames: Iterable[pl.DataFrame], order: FileOrder, most: int, error: type[UnavailableError]
) -> Iterator[pl.DataFrame]:
    waiting: list[pl.DataFrame] = []
    waiting_bytes = 0
    with closing(_Runs(order, error)) as runs:
        for frame in frames:
            keyed = frame.hstack(order.keys(frame))
            waiting.append(keyed)
            waiting_bytes += int(keyed.estimated_size())
            if waiting_bytes >= most:
                runs.add(waiting)
                waiting_bytes = 0
        if not runs.blocks:
            for rows in _in_memory(waiting, order, _BATCH_ROWS):
                yield _plain(rows)
            return
        if waiting:
            runs.add(waiting)
        for rows in runs.merged():
            yield from _plain(rows).iter_slices(_BATCH_ROWS)


def _in_memory(
    waiting: list[pl.DataFrame], order: FileOrder, batch_rows: int
) -> Iterator[pl.DataFrame]:
    """Rows with their keys, sorted, in batches; removes them from the list."""
    rows = _stack(waiting)
    waiting.clear()
    positions = order.positions(_keys(rows), rows["path"])
    is_sorted = bool((positions[1:] > positions[:-1]).all())
    for start in range(0, rows.height, batch_rows):
        part = slice(start, start + batch_rows)
        yield rows[part] if is_sorted else rows[positions[part]]


class _Block(NamedTuple):
    """Sorted rows on disk, with the keys and the path of the first one."""

    head: pl.DataFrame
    place: ScratchRange


class _Runs:
    """Sorted runs on disk, in blocks."""

    def __init__(self, order: FileOrder, error: type[UnavailableError]) -> None:
        self._order = order
        self._file = ScratchFile(error)
        self._count = 0
        self._run_rows = 0
        self._block_rows = 0
        self.blocks: list[_Block] = []

    def add(self, rows: list[pl.DataFrame]) -> None:
        """Sort rows, and write them as another run; removes them from the list."""
        if not self._block_rows:
            self._run_rows = sum(frame.height for frame in rows)
            self._block_rows = max(_LEAST_BLOCK_ROWS, self._run_rows // _BLOCKS_OF_A_RUN)
        if self._count >= _MOST_RUNS:
            # Merging needs one block per run in memory, so many runs are first merged into one.
            blocks, self.blocks = self.blocks, []
            for part in self._merge(blocks):
                for block in part.iter_slices(self._block_rows):
                    self._write(block)
            self._count = 1
        for block in _in_memory(rows, self._order, self._block_rows):
            self._write(block)
        self._count += 1

    def _write(self, block: pl.DataFrame) -> None:
        head = block[:1].select("path", *_keys(block).columns)
        place = self._file.append_rows(block.to_arrow(compat_level=pl.CompatLevel.oldest()))
        self.blocks.append(_Block(head, place))

    def merged(self) -> Iterator[pl.DataFrame]:
        """All rows with their keys, sorted."""
        return self._merge(self.blocks)

    def _merge(self, blocks: Sequence[_Block]) -> Iterator[pl.DataFrame]:
        """Merge blocks by their first rows: rows before the first row of the last block read
        precede all rows on disk.
        """
        if not blocks:
            return
        heads = pl.concat([block.head for block in blocks])
        by_head = self._order.positions(_keys(heads), heads["path"]).tolist()
        least = min(_BATCH_ROWS, self._run_rows // 2)
        pending: list[pl.DataFrame] = []
        fresh = carried = 0
        for count, number in enumerate(by_head, start=1):
            block = self._file.read_rows(blocks[number].place)
            pending.append(block)
            fresh += block.height
            is_last = count == len(blocks)
            if fresh < max(least, carried // 2) and not is_last:
                continue
            rows = _stack(pending)
            positions = self._order.positions(_keys(rows), rows["path"])
            cut = rows.height
            if not is_last:
                cut = int(np.flatnonzero(positions == rows.height - block.height)[0])
            if cut:
                yield rows[positions[:cut]]
            pending = [rows[positions[cut:]]] if cut < rows.height else []
            fresh, carried = 0, rows.height - cut

    def close(self) -> None:
        """Free the disk space."""
        self.blocks = []
        self._file.close()


def _keys(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(name for name in rows.columns if name.startswith(_KEY))


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop(_keys(rows).columns)


def _sorted_by(keys: pl.DataFrame) -> Numbers:
    """The rows' numbers in the order of their keys, nulls first; stable."""
    expression = pl.arg_sort_by(keys.columns, nulls_last=False, maintain_order=True)
    return keys.select(expression).to_series().to_numpy().astype(np.int64)


def _packed(keys: pl.DataFrame) -> pl.DataFrame:
    """One column of integers that sorts as the keys, but faster; or the keys themselves."""
    packed: Numbers = np.zeros(keys.height, np.int64)
    choices = 1
    for key in keys:
        codes = _codes(key)
        if codes is None:
            return keys
        least, greatest = codes.min(), codes.max()
        assert isinstance(least, int)
        assert isinstance(greatest, int)
        width = greatest - least + 2  # one more for null
        choices *= width
        if choices > _MOST_CHOICES:
            return keys
        numbers = codes.fill_null(least).to_numpy() - least
        numbers += 1
        if codes.null_count():
            numbers *= codes.is_not_null().to_numpy()
        packed *= width  # in place, because there may be millions of rows
        packed += numbers
    return pl.Series(_KEY, packed).to_frame()


def _codes(key: pl.Series) -> pl.Series | None:
    """A key with a value as Int64 in the same order; None if its type or its texts forbid it."""
    if key.dtype == pl.String:
        distinct = key.unique().drop_nulls()
        if len(distinct) > _MOST_TEXTS:
            return None
        key = key.cast(pl.Enum(distinct.sort()))
    elif not (key.dtype in _SMALL_INTEGERS or key.dtype.is_temporal()):
        return None
    return key.to_physical().cast(pl.Int64)


def _stack(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate narrow frames; differing types of statistics are widened."""
    if len(frames) == 1:
        return frames[0]
    return pl.concat(frames, how="diagonal_relaxed", rechunk=True)
