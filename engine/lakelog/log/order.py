"""The order of file actions in what is written: by partition values, then by path.

Rows of one kind arrive in any order, batch by batch, and leave sorted. What exceeds a bound is
sorted in runs that wait on local disk and are merged block by block, so that memory does not grow
with the table.

Source: specification 000, Write a checkpoint; ``schemas/checkpoint.md``, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog import actions, contract
from lakelog.errors import CorruptionError, UnavailableError
from lakelog.formats.base import CheckpointPlan
from lakelog.formats.delta.paths import encode_paths
from lakelog.log.metadata import mapping_mode
from lakelog.log.state import State
from lakelog.statistics.partitions import typed_partitions
from lakelog.storage.scratch import Place, ScratchFile

HELD_BYTES = 128 << 20
"""Rows that are sorted in memory where no limit is set, in bytes as Polars estimates them."""

_BATCH_ROWS = 1 << 16
_BLOCKS_OF_A_RUN = 64
_LEAST_BLOCK_ROWS = 256
_MOST_RUNS = 64
_MAPS = "partitionValues"


@dataclass(frozen=True)
class FileOrder:
    """What file actions are sorted by.

    Partition values come first, in the order of the partition columns, each typed by the table's
    schema. A null, a missing value, and a text that the type does not admit come before all
    others. Among equal partition values, paths are compared by their UTF-8 bytes.

    Attributes:
        schema: The table's schema.
        partition_columns: Logical names.
        mapping: Column mapping mode.
        dialect: Dialect of the log.
        spell: Gives paths as they are written; None where they are written decoded.
    """

    schema: contract.Struct
    partition_columns: tuple[str, ...]
    mapping: str = "none"
    dialect: str = "delta"
    spell: Callable[[pl.Series], pl.Series] | None = None

    @staticmethod
    def of_plan(plan: CheckpointPlan, dialect: str) -> FileOrder:
        """The order of a checkpoint.

        Args:
            plan: What the checkpoint is to look like.
            dialect: Dialect of the log.
        """
        spell = encode_paths if dialect == "delta" else None
        return FileOrder(plan.schema, plan.partition_columns, plan.mapping, dialect, spell)

    @staticmethod
    def of_state(state: State) -> FileOrder:
        """The order of a state in the flattened schema, whose paths are decoded."""
        metadata, dialect = state.metadata, state.log.dialect.name
        mapping = mapping_mode(state.protocol, metadata) if dialect == "delta" else "none"
        try:
            schema = metadata.schema
        except CorruptionError:
            schema = contract.Struct(())  # logs exist without one
        return FileOrder(schema, metadata.partition_columns, mapping, dialect)

    def keys(self, files: pl.DataFrame) -> pl.DataFrame:
        """The columns to sort by, for file actions with a ``path``."""
        paths = files["path"]
        spelled = (paths if self.spell is None else self.spell(paths)).alias("path")
        if not self.partition_columns:
            return spelled.to_frame()
        if _MAPS in files.columns:
            maps = files[_MAPS]
        else:
            maps = pl.Series(_MAPS, [None], dtype=actions.schema()[_MAPS])
            maps = maps.new_from_index(0, files.height)
        values, _ = typed_partitions(
            maps, self.schema, self.partition_columns, mapping=self.mapping, dialect=self.dialect
        )
        return values.with_columns(spelled)

    def sorted(self, files: pl.DataFrame) -> pl.DataFrame:
        """File actions of one kind, sorted in memory."""
        return files[_positions(self.keys(files))]


def in_order(
    frames: Iterable[pl.DataFrame],
    order: FileOrder,
    *,
    held_bytes: int | None = None,
    error: type[UnavailableError] = UnavailableError,
) -> Iterator[pl.DataFrame]:
    """Sort file actions, one kind after another.

    Args:
        frames: Narrow rows of one kind each (``actionType``); all of one kind in succession.
        order: What to sort by.
        held_bytes: Rows that are sorted in memory at once; None is `HELD_BYTES`.
        error: Raised where local disk has no room.

    Yields:
        Narrow rows of one kind, 65,536 at most. A column that is null throughout may be absent.

    Memory: `held_bytes` twice; when more rows arrive, twice again while runs are merged. What
    exceeds it is compressed in a nameless file in the folder for temporary files (``TMPDIR``).
    """
    most = HELD_BYTES if held_bytes is None else held_bytes
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
            waiting.append(frame)
            waiting_bytes += int(frame.estimated_size())
            if waiting_bytes >= most:
                runs.add(_stack(waiting))
                waiting, waiting_bytes = [], 0
        if not runs.blocks:
            yield from order.sorted(_stack(waiting)).iter_slices(_BATCH_ROWS)
            return
        if waiting:
            runs.add(_stack(waiting))
            waiting.clear()
        for rows in runs.merged():
            yield from rows.iter_slices(_BATCH_ROWS)


class _Block(NamedTuple):
    """Sorted rows on disk, and the keys of the first one."""

    head: pl.DataFrame
    place: Place


class _Runs:
    """Sorted runs on disk, in blocks."""

    def __init__(self, order: FileOrder, error: type[UnavailableError]) -> None:
        self._order = order
        self._file = ScratchFile(error)
        self._count = 0
        self._block_rows = 0
        self.blocks: list[_Block] = []

    def add(self, rows: pl.DataFrame) -> None:
        """Sort rows, and write them as one more run."""
        if not self._block_rows:
            self._block_rows = max(_LEAST_BLOCK_ROWS, rows.height // _BLOCKS_OF_A_RUN)
        if self._count >= _MOST_RUNS:
            # Every run holds a block in memory while it is merged: many become one before.
            self.blocks = [b for part in self._drained() for b in self._written(part)]
            self._count = 1
        self.blocks += self._written(self._order.sorted(rows))
        self._count += 1

    def _drained(self) -> Iterator[pl.DataFrame]:
        blocks, self.blocks = self.blocks, []
        return self._merge(blocks)

    def _written(self, rows: pl.DataFrame) -> list[_Block]:
        blocks = []
        for block in rows.iter_slices(self._block_rows):
            data = memoryview(_as_bytes(block))
            head = self._order.keys(block[:1])
            blocks.append(_Block(head, self._file.append(data, "rows")))
        return blocks

    def merged(self) -> Iterator[pl.DataFrame]:
        """All rows, sorted."""
        return self._merge(self.blocks)

    def _merge(self, blocks: Sequence[_Block]) -> Iterator[pl.DataFrame]:
        """Blocks are read by their first row: what precedes the first row of the block that was
        read last precedes every row that is still on disk.
        """
        if not blocks:
            return
        by_head = _positions(pl.concat([block.head for block in blocks])).to_list()
        pending: list[pl.DataFrame] = []
        fresh = carried = 0
        for count, number in enumerate(by_head, start=1):
            block = _read(self._file.read(blocks[number].place))
            pending.append(block)
            fresh += block.height
            is_last = count == len(blocks)
            if fresh < max(_BATCH_ROWS, carried) and not is_last:
                continue
            rows = _stack(pending)
            positions = _positions(self._order.keys(rows))
            cut = rows.height
            if not is_last:
                cut = int(np.flatnonzero(positions.to_numpy() == rows.height - block.height)[0])
            if cut:
                yield rows[positions[:cut]]
            pending = [rows[positions[cut:]]] if cut < rows.height else []
            fresh, carried = 0, rows.height - cut

    def close(self) -> None:
        """Give the room on disk back."""
        self.blocks = []
        self._file.close()


def _positions(keys: pl.DataFrame) -> pl.Series:
    """The rows' numbers, in the order of their keys."""
    if keys.width == 1:
        return keys.to_series().arg_sort()
    return keys.select(pl.arg_sort_by(keys.columns, nulls_last=False)).to_series()


def _stack(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Narrow frames one above the other; statistics that are typed differently are widened."""
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")


def _as_bytes(rows: pl.DataFrame) -> pa.Buffer:
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _read(data: bytes) -> pl.DataFrame:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        frame = pl.from_arrow(reader.read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame
