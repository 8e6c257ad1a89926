"""The rows that a merge compares with a table, converted to the table's types.

They are in memory, or, if they exceed a share of the memory limit, in a temporary file that is
mapped into memory.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.data.conform import Conform, Incoming, given_part, has_equivalent, require_fields
from lakelog.data.merge_condition import type_of_numbers
from lakelog.data.write import slices
from lakelog.errors import UnavailableError
from lakelog.model import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_ROWS = 1 << 16
_SOURCE_SHARE, _INSERT_SHARE = 4, 32  # fractions of the memory limit


@dataclass(frozen=True)
class MergeSource:
    """The rows to merge, in pieces, with the keys and the columns `taken` as values in the target's
    types, without struct fields that they lack; `starts` are the numbers of each piece's first row,
    and of all rows; `insert_rows` is how many are inserted at once.
    """

    frames: Sequence[pl.DataFrame]
    starts: NDArray[np.int64]
    schema: contract.Struct
    insert_rows: int

    @staticmethod
    def of(
        incoming: Incoming,
        target: contract.Struct,
        keys: Mapping[str, str],
        taken: Collection[str],
        memory_limit: int | None,
    ) -> MergeSource:
        """The rows of a caller, with the `keys` by the table's columns; raises InvalidInputError if
        keys or columns have other types.
        """
        of_target = {field.name.lower(): field.type for field in target.fields}
        names = {name: name.lower() for name in incoming.schema.names}
        names |= {ours: name.lower() for name, ours in keys.items()}
        given = {field.name: field.type for field in incoming.schema}
        taken = {*taken, *keys.values()}
        known = {
            ours: given_part(of_target[name], given[ours])
            for ours, name in names.items()
            if name in of_target and (ours in taken or not has_equivalent(given[ours]))
        }
        for ours in keys.values():  # a number that the target's type lacks matches nothing
            known[ours] = type_of_numbers(of_target[names[ours]], given[ours]) or known[ours]
        for name, ours in keys.items():
            key = contract.Field(ours, of_target[name.lower()])
            require_fields(key, given[ours], f"the key {ours!r} of the merge's source")
        incoming = incoming.storable(known)
        own = contract.from_arrow(pa.schema([f for f in incoming.schema if f.name not in known]))
        types = known | {field.name: field.type for field in own.fields}
        fields = [contract.Field(name, types[name]) for name in incoming.schema.names]
        conform = Conform(fields)
        pieces = (piece for batch in incoming.batches for piece in slices(batch, _PIECE_ROWS))
        frames = map(pl.DataFrame, map(conform.table, pieces))
        held: list[pl.DataFrame] = [pl.DataFrame(pa.Table.from_batches([], conform.schema))]
        left = memory_limit and memory_limit // _SOURCE_SHARE
        for frame in frames:
            held.append(frame)
            if left is not None and (left := left - int(frame.estimated_size())) < 0:
                held = _mapped(chain(held, frames))
                break
        else:
            held = [pl.concat(held, rechunk=True)]
        starts = np.cumsum([0, *(frame.height for frame in held)])
        at_once = _PIECE_ROWS
        if memory_limit is not None:
            size = sum(int(frame.estimated_size()) for frame in held)
            row_bytes = 1 + size // max(1, int(starts[-1]))
            at_once = max(1, min(at_once, memory_limit // _INSERT_SHARE // row_bytes))
        return MergeSource(held, starts, contract.Struct(tuple(fields)), at_once)

    @property
    def height(self) -> int:
        """The number of rows."""
        return int(self.starts[-1])

    def gather(self, numbers: NDArray[np.int64]) -> pl.DataFrame:
        """Rows by their numbers."""
        if len(self.frames) == 1:
            return self.frames[0][numbers]
        # By frame, because Polars would first copy a frame of several pieces.
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], self.starts)
        parts = [
            frame[numbers[order[low:high]] - start]
            for frame, start, low, high in zip(
                self.frames, self.starts, ends, ends[1:], strict=False
            )
            if low < high
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pl.concat(parts, rechunk=True)[back] if parts else self.frames[0].clear()


def _mapped(frames: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    """The rows in a temporary file that is mapped into memory. Errors of their source are raised as
    they are.
    """
    with _on_disk():
        file = tempfile.TemporaryFile(prefix="lakelog-")  # noqa: SIM115 - closed below
    try:
        writer = None
        for frame in frames:
            table = frame.to_arrow(compat_level=pl.CompatLevel.newest())  # without a copy
            with _on_disk():
                writer = writer or pa.ipc.new_file(file, table.schema)
                writer.write_table(table)
        assert writer is not None
        with _on_disk():
            writer.close()
            file.flush()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(content))
            batches = map(reader.get_batch, range(reader.num_record_batches))
            return [pl.DataFrame(pl.from_arrow(batch, rechunk=False)) for batch in batches]
    finally:
        with suppress(OSError):  # a full disk fails here again, and its error is raised already
            file.close()


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            f"the source of the merge cannot be written to disk: {cause}",
            path=tempfile.gettempdir(),
            hint="free disk space there, set TMPDIR to a larger disk, or raise the memory limit",
        ) from cause
