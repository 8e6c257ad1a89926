"""`BinRewriter`: writes the rows of a group of files to new files, in order or as they are read.

A file that cannot be read is skipped: the other files are rewritten, and the result reports the
file and the reason. New files that were started before are deleted: a new file with only some rows
of a source file must never be committed.

Z-order interleaves the bits of the columns' ranks, so that rows that are close in any of the
columns are close in the file. Ranks are taken within the group, and a null has the lowest one.

Source: Delta Lake, OPTIMIZE ZORDER BY (``range_partition_id``, ``interleave_bits``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.display import path_text
from lakelog.errors import CorruptionError, LakelogError, NotFoundError, UnavailableError
from lakelog.model.contract import field_of
from lakelog.storage import LogStore

_UNREAD_SCHEMA = pl.Schema({"path": pl.String(), "reason": pl.String(), "lasting": pl.Boolean()})
"""Unreadable files; ``lasting``: damaged or missing, not only unavailable."""

_KEY_BITS = 63
_MOST_BITS = 21  # per column
_SORTED_ROWS = 1 << 17


@dataclass(frozen=True)
class RowOrder:
    """The order of rows in new files: by columns or fields of structs, which are given as paths, or
    along a Z-order curve through them. Their `physical` paths stay if the columns are renamed.
    """

    columns: tuple[tuple[str, ...], ...]
    physical: tuple[tuple[str, ...], ...]
    is_zorder: bool = False

    @property
    def text(self) -> str:
        """The order as a tag of files records it."""
        names = ",".join(re.sub(r"([\\,])", r"\\\1", path_text(each)) for each in self.physical)
        return f"{'zorder' if self.is_zorder else 'order'}:{names}"

    def positions(self, rows: pa.Table) -> pl.Series:
        """The positions of the rows, in order."""
        keys = pl.DataFrame({str(at): _values(rows, path) for at, path in enumerate(self.columns)})
        if self.is_zorder:
            keys = zorder_keys(keys).to_frame()
        by = pl.arg_sort_by(keys.columns, nulls_last=False, maintain_order=True)
        return keys.select(by).to_series()


def _values(rows: pa.Table, path: Sequence[str]) -> pl.Series:
    """The values of a column or a field of a struct; null if the struct is."""
    return reduce(field_of, path[1:], pl.Series("", rows.column(path[0])))


def zorder_keys(columns: pl.DataFrame) -> pl.Series:
    """The position of each row on the Z-order curve through the ranks of its values."""
    bits = min(_MOST_BITS, _KEY_BITS // columns.width)
    ranks = columns.select(pl.all().rank("dense").fill_null(0)).cast(pl.UInt64)
    key = np.zeros(columns.height, np.uint64)
    for at, rank in enumerate(ranks.get_columns()):
        values = (rank - (rank.min() or 0)).to_numpy()
        # Of many ranks, only the upper bits are used.
        excess = max(0, int(values.max(initial=0)).bit_length() - bits)
        values = values >> np.uint64(excess)
        for bit in range(bits):
            one = (values >> np.uint64(bit)) & np.uint64(1)
            key |= one << np.uint64(bit * columns.width + at)
    return pl.Series("key", key)


@dataclass(frozen=True)
class BinResult:
    """The result of one bin: `adds` (None: no rewrite is needed), files that could not be read, and
    the number of rows written.
    """

    adds: pl.DataFrame | None
    unread: pl.DataFrame
    rows: int


@dataclass(frozen=True)
class BinRewriter:
    """Rewrites bins of files from one plan to another, in threads; small and picklable."""

    source: ReadPlan
    target: WritePlan
    order: RowOrder | None = None
    workers: int = 1

    def rewrite(
        self,
        number: int,
        files: pl.DataFrame,
        store: LogStore,
        clock: Callable[[], int] | None = None,
    ) -> BinResult:
        """Rewrite one bin. Memory: that of a reader and of a writer; with an order, all rows."""
        unread = pl.DataFrame(schema=_UNREAD_SCHEMA)
        while True:
            left = files.filter(~pl.col("path").is_in(unread["path"].implode()))
            if not left.height or self._is_done(left):
                return BinResult(None, unread, 0)
            try:
                with DataFileWriter(
                    self.target, number=number, store=store, clock=clock, workers=self.workers
                ) as writer:
                    for rows in self._rows(left, store):
                        writer.copy(rows)
                    return BinResult(writer.finish(), unread, writer.num_rows)
            except (NotFoundError, CorruptionError, UnavailableError):
                found = self._unreadable(left, store)
                if not found.height:
                    raise  # all files can be read: the error came from writing
                unread = pl.concat([unread, found])

    def _is_done(self, left: pl.DataFrame) -> bool:
        """Whether a single file without deleted rows is left, which needs no merge."""
        alone = left.height == 1 and bool(left["dvStorageType"].null_count())
        return alone and self.order is None

    def _rows(self, files: pl.DataFrame, store: LogStore) -> Iterator[pa.RecordBatch | pa.Table]:
        batches = read_files(self.source, files, store=store)
        if self.order is None:
            yield from batches
            return
        rows = pa.Table.from_batches(batches, self.source.arrow_schema)
        positions = self.order.positions(rows).to_arrow()
        for start in range(0, rows.num_rows, _SORTED_ROWS):
            yield rows.take(positions.slice(start, _SORTED_ROWS))

    def _unreadable(self, files: pl.DataFrame, store: LogStore) -> pl.DataFrame:
        """Read each file separately, to its end."""
        found = []
        for file in files.iter_slices(1):
            try:
                for _ in read_files(self.source, file, store=store):
                    pass
            except (NotFoundError, CorruptionError, UnavailableError) as error:
                lasting = not isinstance(error, UnavailableError)
                found.append((file["path"][0], _reason(error, file["path"][0]), lasting))
        return pl.DataFrame(found, schema=_UNREAD_SCHEMA, orient="row")


def _reason(error: LakelogError, file: str) -> str:
    where = f" ({error.path})" if error.path not in {None, file} else ""
    return f"{error.kind}: {error.message}{where}"
