"""The memtable: records that are not yet in a sorted file; the last record of a key wins.

Single records are stored in a dictionary; tables are kept as given, and a replayed log is sorted
only when reads have cost as much as sorting would. All methods are thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from operator import itemgetter
from typing import cast

import polars as pl
import pyarrow as pa

from lakelog.keyed import rows

_FOLD_RECORDS = 8192  # a record in the dictionary takes several times the memory of one in a frame
_PATIENCE = 200  # number of reads of unsorted rows that cost less than sorting them


class Memtable:
    """Records by key, newest first, with tombstones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[bytes, tuple[int, bytes | None]] = {}
        self._tables: list[pa.Table] = []  # replayed tables, not yet converted
        self._unsorted: tuple[pl.DataFrame, ...] = ()
        self._sorted = rows.empty()
        self._newest_outside = 0  # highest sequence number outside the dictionary
        self._unsorted_rows_read = 0
        self.records = 0
        self.size_bytes = 0

    def put(self, seq_num: int, key: bytes, value: bytes | None) -> None:
        """Add one record; None is a tombstone."""
        with self._lock:
            known = self._recent.get(key)
            if known is None or known[0] < seq_num:
                self._recent[key] = (seq_num, value)
            self._count(1, len(key) + len(value or b""))
            if len(self._recent) >= _FOLD_RECORDS:
                self._fold()

    def add(self, frame: pl.DataFrame) -> None:
        """Add a table of records (`rows.SCHEMA`), in any order."""
        if frame.height:
            highest = _highest(frame)
            with self._lock:
                self._count(frame.height, _size_bytes(frame))
                self._take(frame, highest)

    def add_replayed(self, table: pa.Table) -> None:
        """Add a replayed table without converting it: columns as in `rows.of_log`."""
        if table.num_rows:
            with self._lock:
                self._count(table.num_rows, table.nbytes)
                self._tables.append(table)

    def get(self, key: bytes) -> tuple[int, bytes | None] | None:
        """Sequence number and value of a key's newest record; None without a record."""
        with self._lock:
            recent = self._recent.get(key)
            self._convert_tables()
            if recent is not None and recent[0] > self._newest_outside:
                return recent
            unsorted, in_order = self._unsorted, self._sorted
            due = self._is_due()
        if due:
            in_order, unsorted = self._sort(), ()
        found = (recent, rows.find(unsorted, key), rows.find_sorted(in_order, key))
        return max((one for one in found if one is not None), key=itemgetter(0), default=None)

    def between(self, start: bytes | None, end: bytes | None) -> list[pl.DataFrame]:
        """All records with ``start <= key < end``, unordered; a key may have several."""
        with self._lock:
            self._convert_tables()
            self._fold()
            unsorted, in_order = self._unsorted, self._sorted
            due = self._is_due()
        if due:
            in_order, unsorted = self._sort(), ()
        within = [rows.between(frame, start, end) for frame in unsorted]
        return [*within, rows.between_sorted(in_order, start, end)]

    def newest(self) -> pl.DataFrame:
        """The newest record of each key, including tombstones, sorted by key."""
        with self._lock:
            self._convert_tables()
            self._fold()
        return self._sort()

    def _count(self, records: int, size_bytes: int) -> None:
        self.records += records
        self.size_bytes += size_bytes

    def _convert_tables(self) -> None:
        tables, self._tables = self._tables, []
        for table in tables:
            frame = rows.of_log(table)
            self._take(frame, _highest(frame))

    def _take(self, frame: pl.DataFrame, highest: int) -> None:
        frames = [*self._unsorted, frame]
        # Merged, so that the number of frames is logarithmic.
        while len(frames) > 1 and frames[-1].height * 2 >= frames[-2].height:
            newer, older = frames.pop(), frames.pop()
            frames.append(pl.concat([older, newer], rechunk=True))
        self._unsorted = tuple(frames)
        self._newest_outside = max(self._newest_outside, highest)

    def _fold(self) -> None:
        if self._recent:
            self._take(_frame(self._recent), max(seq for seq, _ in self._recent.values()))
            self._recent = {}

    def _is_due(self) -> bool:
        """Whether reads of unsorted records, with this one, have cost as much as sorting."""
        self._unsorted_rows_read += sum(frame.height for frame in self._unsorted)
        return self._unsorted_rows_read > _PATIENCE * self.records

    def _sort(self) -> pl.DataFrame:
        """Sort the records. Writers continue: it works on immutable frames, and its result is
        discarded if another reader was faster.
        """
        with self._lock:
            unsorted, in_order = self._unsorted, self._sorted
        merged = rows.newest([in_order, *unsorted]) if unsorted else in_order
        with self._lock:
            begun = self._unsorted[: len(unsorted)]
            if self._sorted is in_order and list(map(id, begun)) == list(map(id, unsorted)):
                self._sorted = merged
                self._unsorted = self._unsorted[len(unsorted) :]
                self._unsorted_rows_read = 0
        return merged


def _frame(recent: dict[bytes, tuple[int, bytes | None]]) -> pl.DataFrame:
    seq_nums, values = zip(*recent.values(), strict=True)
    return pl.DataFrame({"seqNum": seq_nums, "key": list(recent), "value": values}, rows.SCHEMA)


def _size_bytes(frame: pl.DataFrame) -> int:
    sizes: Iterable[int | None] = frame.select(
        pl.col("key", "value").bin.size().cast(pl.Int64).sum()
    ).row(0)
    return sum(size or 0 for size in sizes)


def _highest(frame: pl.DataFrame) -> int:
    return cast("int", frame["seqNum"].max())
