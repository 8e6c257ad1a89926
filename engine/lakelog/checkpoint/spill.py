"""Spills rows to local disk by partition, and decides which rows need it.

A `Spill` is one nameless file, so that nothing of it is left even where the process is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.errors import CheckpointWriteError
from lakelog.model import actions
from lakelog.storage.scratch import ScratchFile, ScratchRange

_RADIX_BITS = 6
_PARTITION_SEED = 0x9A27
_HASH_SEED = 0x0F17
_MOST_PARTITIONS = 1 << 12


def partition_of(paths: pl.Series, partitions: int) -> pl.Series:
    """Partition of each path, UInt64 from 0: all rows of a logical file have the same one."""
    return paths.hash(_PARTITION_SEED) % partitions


class Spill:
    """Narrow frames on disk, by key, in the order in which they were appended.

    A context manager, which gives the room on disk back. Memory: `flush_bytes` twice while they
    are dealt.
    """

    def __init__(self, partitions: int, flush_bytes: int) -> None:
        self.partitions = min(partitions, _MOST_PARTITIONS)
        self._flush_bytes = flush_bytes
        self._file = ScratchFile(CheckpointWriteError)
        self._places: dict[int, list[ScratchRange]] = {}
        self._waiting: list[pl.DataFrame] = []
        self._waiting_bytes = 0

    def append(self, rows: pl.DataFrame) -> None:
        """Add rows with a ``path``."""
        if not rows.height:
            return
        self._waiting.append(rows)
        self._waiting_bytes += int(rows.estimated_size())
        if self._waiting_bytes >= self._flush_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        rows = stack(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self.partitions == 1:
            self._write(0, _as_arrow(rows))
            return
        partition = partition_of(rows["path"], self.partitions).to_numpy().astype(np.uint16)
        # Stable, so that rows of one partition stay in order.
        dealt = _as_arrow(rows[np.argsort(partition, kind="stable")])
        start = 0
        for number, count in enumerate(np.bincount(partition, minlength=self.partitions).tolist()):
            if count:
                self._write(number, dealt.slice(start, count))
            start += count

    def _write(self, partition: int, rows: pa.Table) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)
        data = memoryview(sink.getvalue())
        self._places.setdefault(partition, []).append(self._file.append(data, "rows"))

    def frames(self, partition: int) -> Iterator[pl.DataFrame]:
        """The frames of a partition, in the order in which they were appended."""
        if self.partitions == 1 and not self._places:
            yield from self._waiting
            return
        self.flush()
        for place in self._places.get(partition, ()):
            with pa.ipc.open_stream(pa.py_buffer(self._file.read(place))) as reader:
                frame = pl.from_arrow(reader.read_all())
            assert isinstance(frame, pl.DataFrame)
            yield frame

    def read(self, partition: int) -> pl.DataFrame:
        """The rows of a partition as one narrow frame."""
        return stack(self.frames(partition))

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self._file.size_bytes

    def close(self) -> None:
        """Forget everything."""
        self._places, self._waiting = {}, []
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stack(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Narrow frames one above the other; statistics that are typed differently are widened."""
    found = list(frames)
    if not found:
        return actions.empty(("actionType", "path"))
    return pl.concat(found, how="diagonal_relaxed")


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


class PathMask:
    """A set of paths that may say yes to a path that it does not hold, and never no to one that
    it does.
    """

    def __init__(self, size_bytes: int) -> None:
        self._bits = np.zeros(size_bytes, np.uint8)
        self._mask = np.uint64(size_bytes * 8 - 1)

    def _find(self, hashes: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        numbers = hashes.to_numpy() & self._mask
        bits = np.left_shift(np.uint8(1), (numbers & np.uint64(7)).astype(np.uint8))
        return (numbers >> np.uint64(3)).astype(np.int64), bits

    def add(self, hashes: pl.Series) -> None:
        """Put in paths by their `hashes_of`."""
        at, bits = self._find(hashes)
        np.bitwise_or.at(self._bits, at, bits)

    def may_hold(self, hashes: pl.Series) -> pl.Series:
        """For the `hashes_of` each path, whether it may have been put in; Boolean."""
        at, bits = self._find(hashes)
        return pl.Series((self._bits[at] & bits) != 0)


def hashes_of(paths: pl.Series) -> pl.Series:
    """The hash of each path, UInt64, as `PathMask` and `Repeats` take it."""
    return paths.hash(_HASH_SEED)


class Repeats:
    """Finds the hashes that come more than once, however many there are.

    A context manager, which gives the room on disk back. Memory: `held_bytes` twice, or the
    hashes of 1/64 of the rows, where that is more.
    """

    def __init__(self, held_bytes: int | None = None) -> None:
        self._held_bytes = held_bytes
        self._held: list[pl.Series] = []
        self._count = 0
        self._file = ScratchFile(CheckpointWriteError)
        self._places: dict[int, list[ScratchRange]] = {}

    def add(self, hashes: pl.Series) -> None:
        """Take note of some hashes."""
        self._held.append(hashes)
        self._count += len(hashes)
        if self._held_bytes is not None and self._count * 8 >= self._held_bytes:
            self._flush()

    def _flush(self) -> None:
        held = np.sort(pl.concat(self._held).to_numpy())
        self._held, self._count = [], 0
        # Sorted, so that those with the same first bits are together.
        edges = np.arange(1, 1 << _RADIX_BITS, dtype=np.uint64) << np.uint64(64 - _RADIX_BITS)
        cuts = [0, *np.searchsorted(held, edges).tolist(), len(held)]
        start = self._file.append(held.tobytes(), "hashes").at
        for bucket, (first, last) in enumerate(pairwise(cuts)):
            if last > first:
                place = ScratchRange(start + first * 8, (last - first) * 8)
                self._places.setdefault(bucket, []).append(place)

    def repeated(self) -> pl.Series:
        """Every hash that came twice or more, once, ascending; UInt64."""
        if not self._places:
            return _doubles(pl.concat(self._held).to_numpy() if self._held else np.zeros(0, "u8"))
        if self._held:
            self._flush()
        found = [_doubles(self._bucket(places)) for _, places in sorted(self._places.items())]
        return pl.concat(found)

    def _bucket(self, places: Sequence[ScratchRange]) -> np.ndarray:
        return np.concatenate([np.frombuffer(self._file.read(p), np.uint64) for p in places])

    def close(self) -> None:
        """Forget everything."""
        self._held, self._places = [], {}
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _doubles(hashes: np.ndarray) -> pl.Series:
    ordered = np.sort(hashes.astype(np.uint64, copy=False))
    return pl.Series(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))
