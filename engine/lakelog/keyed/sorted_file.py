"""A sorted Parquet file with one row per key; the plan of row groups, merges and compaction.

Columns are those of the log's replay, so any engine can read the file. The footer's metadata has an
index under `_INDEX_KEY`: first key, length and CRC-32C of each row group. With the footer's
checksum in the manifest, every byte is verified before use (`schemas/keyed.md`). A file never
changes after it is renamed.
"""

from __future__ import annotations

import io
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, BinaryIO, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.errors import CorruptionError
from lakelog.keyed import rows
from lakelog.model.contract import without_metadata

GROUP_ROWS = 8192
"""Maximum rows of a row group, which is the most that a get of one key decodes."""

GROUP_BYTES = 4 << 20
"""Maximum bytes of keys and values in a row group with more than one row."""

MERGE_ROWS = 1 << 19
"""Rows in memory during a merge, in addition to one row group per file."""

MERGE_BYTES = 64 << 20
"""Bytes in memory during a merge."""

MOST_FILES = 8
"""Number of files above which a flush merges some."""


def groups(
    sizes: npt.NDArray[np.int64], rows: int = GROUP_ROWS, size_bytes: int = GROUP_BYTES
) -> list[int]:
    """First rows of the row groups.

    >>> groups(np.array([1, 1, 1, 9, 1]), rows=2, size_bytes=5)
    [0, 2, 3, 4, 5]
    """
    upto = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    starts = [0]
    while (start := starts[-1]) < len(sizes):
        full = int(np.searchsorted(upto, upto[start] + size_bytes, side="right")) - 1
        starts.append(min(max(full, start + 1), start + rows, len(sizes)))
    return starts


def ranges(
    files: Sequence[Sequence[tuple[bytes, int, int]]],
    rows: int = MERGE_ROWS,
    size_bytes: int = MERGE_BYTES,
) -> list[tuple[bytes | None, bytes | None]]:
    """Key ranges that cover all keys, each with about as many rows over all files.

    >>> ranges([[(b"a", 2, 9), (b"m", 2, 9)], [(b"c", 3, 9)]], rows=5)
    [(None, b'm'), (b'm', None)]
    """
    beginning: Counter[bytes] = Counter()
    bytes_beginning: Counter[bytes] = Counter()
    for file in files:
        for first_key, count, group_bytes in file:
            beginning[first_key] += count
            bytes_beginning[first_key] += group_bytes
    cuts: list[bytes] = []
    held = held_bytes = 0
    for first_key, count in sorted(beginning.items()):
        more_bytes = bytes_beginning[first_key]
        if held and (held + count > rows or held_bytes + more_bytes > size_bytes):
            cuts.append(first_key)
            held = held_bytes = 0
        held += count
        held_bytes += more_bytes
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def compaction(sizes: Sequence[int], most: int = MOST_FILES) -> int | None:
    """Index of the first file to merge after a flush; all newer ones are merged too. An older file
    is included only if it is not much larger than those already merged, so that a byte is rewritten
    once per doubling of the store.
    """
    if len(sizes) <= most:
        return None
    # Enough that at most `most` files remain.
    first = most - 1
    merged = sum(sizes[first:])
    while first and sizes[first - 1] <= 2 * merged:
        first -= 1
        merged += sizes[first]
    return first


_INDEX_KEY = "lakelog.keyed.index"
_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # length of the footer, and the final magic
_SCHEMA = pa.schema(
    [
        pa.field("seqNum", pa.int64(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("value", pa.large_binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about a sorted file; `footer_crc32c` covers footer, length and final magic."""

    rows: int
    tombstones: int
    size_bytes: int
    min_key: bytes
    max_key: bytes
    min_seq_num: int
    max_seq_num: int
    footer_crc32c: int


class _Counted(io.RawIOBase):
    """Forwards bytes, and computes their length and checksum since the last `cut`."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._piece = 0
        self.length = 0
        self.crc32c = 0
        self.abandoned = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        taken = bytes(data)
        if self.abandoned:
            return len(taken)
        self._sink.write(taken)
        self._piece += len(taken)
        self.length += len(taken)
        self.crc32c = google_crc32c.extend(self.crc32c, taken)
        return len(taken)

    def cut(self) -> tuple[int, int]:
        """Length and checksum of the bytes since the last cut."""
        piece = (self._piece, self.crc32c)
        self._piece = self.crc32c = 0
        return piece


def write(sink: BinaryIO, chunks: Iterable[pl.DataFrame]) -> FileFacts | None:
    """Write a sorted file; memory: one chunk."""
    chunks = iter(chunk for chunk in chunks if chunk.height)
    first = next(chunks, None)
    if first is None:
        return None
    counted = _Counted(sink)
    index: dict[str, list[Any]] = {"firstKeys": [], "lengths": [], "crc32c": []}
    seen = _Seen()
    writer = pq.ParquetWriter(
        counted,
        _SCHEMA,
        compression="zstd",
        use_dictionary=["op"],
        write_statistics=[name for name in _SCHEMA.names if name != "value"],
        sorting_columns=[pq.SortingColumn(2)],
    )
    counted.cut()  # the initial magic
    try:
        for chunk in chain([first], chunks):
            seen.look_at(chunk)
            for start, stop in pairwise(_starts(chunk)):
                writer.write_table(_encoded(chunk, start, stop), row_group_size=stop - start)
                length, crc32c = counted.cut()
                index["firstKeys"].append(chunk["key"][start].hex())
                index["lengths"].append(length)
                index["crc32c"].append(crc32c)
        writer.add_key_value_metadata({_INDEX_KEY: orjson.dumps(index).decode()})
    except BaseException:
        counted.abandoned = True  # closing writes a footer, and the sink may have failed
        writer.close()
        raise
    writer.close()
    return seen.facts(counted)


class _Seen:
    """Statistics of the rows written so far."""

    def __init__(self) -> None:
        self._rows = self._tombstones = 0
        self._min_key: bytes | None = None
        self._max_key = b""
        self._seq_nums: list[int] = []

    def look_at(self, chunk: pl.DataFrame) -> None:
        keys = chunk["key"]
        assert self._min_key is None or self._max_key < keys[0], "chunks ascend by key"
        self._min_key = keys[0] if self._min_key is None else self._min_key
        self._max_key = keys[-1]
        self._rows += chunk.height
        self._tombstones += chunk["value"].null_count()
        seq_nums = chunk["seqNum"]
        lowest, highest = cast("tuple[int, int]", (seq_nums.min(), seq_nums.max()))
        self._seq_nums = [min([lowest, *self._seq_nums]), max([highest, *self._seq_nums])]

    def facts(self, counted: _Counted) -> FileFacts:
        assert self._min_key is not None
        return FileFacts(
            rows=self._rows,
            tombstones=self._tombstones,
            size_bytes=counted.length,
            min_key=self._min_key,
            max_key=self._max_key,
            min_seq_num=self._seq_nums[0],
            max_seq_num=self._seq_nums[1],
            footer_crc32c=counted.crc32c,
        )


def _starts(chunk: pl.DataFrame) -> list[int]:
    """First rows of the row groups, and the end."""
    if chunk.height == 1:
        return [0, 1]
    sizes = [chunk[name].bin.size().cast(pl.Int64).fill_null(0) for name in ("key", "value")]
    return groups((sizes[0] + sizes[1]).to_numpy())


def _encoded(chunk: pl.DataFrame, start: int, stop: int) -> pa.Table:
    """Some rows as they are written to the file."""
    # Column by column, because Polars copies a frame with one row at each step.
    seq_nums, keys, values = (chunk[name][start:stop].to_arrow() for name in rows.SCHEMA)
    ops = pc.if_else(values.is_null(), rows.DELETE, rows.PUT)
    return pa.table([seq_nums, ops, keys, values], _SCHEMA.names).cast(_SCHEMA)


class GroupCache:
    """Decoded row groups of all files; beyond a limit, the least recently used is evicted."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[str, int], tuple[pl.DataFrame, int]] = OrderedDict()
        self._held_bytes = 0

    def get(self, name: str, group: int) -> pl.DataFrame | None:
        """A row group of a file, if cached."""
        with self._lock:
            if (held := self._groups.get((name, group))) is None:
                return None
            self._groups.move_to_end((name, group))
            return held[0]

    def put(self, name: str, group: int, frame: pl.DataFrame) -> None:
        """Cache a row group, unless it alone exceeds the limit."""
        size_bytes = int(frame.estimated_size())
        with self._lock:
            if size_bytes > self._limit_bytes or (name, group) in self._groups:
                return
            self._groups[name, group] = (frame, size_bytes)
            self._held_bytes += size_bytes
            while self._held_bytes > self._limit_bytes:
                _, (_, freed) = self._groups.popitem(last=False)
                self._held_bytes -= freed


class SortedFile:
    """A sorted file, open for reading; thread-safe, and readable after its name is deleted."""

    def __init__(
        self, name: str, path: str, data: pa.Buffer, facts: FileFacts, cache: GroupCache
    ) -> None:
        self.name = name
        self.facts = facts
        self._path = path
        self._data = data
        self._cache = cache
        # A store that was deleted and created again has other files of the same names.
        self._cached_as = f"{name}-{facts.footer_crc32c:08x}"
        self._check_footer()
        self._metadata = pq.read_metadata(pa.BufferReader(data))
        index = orjson.loads(self._metadata.metadata[_INDEX_KEY.encode()])
        self._first_keys = [bytes.fromhex(key) for key in index["firstKeys"]]
        self._crc32cs: list[int] = index["crc32c"]
        self._spans = [(len(_MAGIC), len(_MAGIC))]
        for length in index["lengths"]:
            start = self._spans[-1][1]
            self._spans.append((start, start + length))
        del self._spans[0]

    def _check_footer(self) -> None:
        size_bytes, expected_bytes = self._data.size, self.facts.size_bytes
        if size_bytes != expected_bytes:
            raise self._corrupt(
                "has another size than recorded", size_bytes, f"{expected_bytes} bytes"
            )
        tail = bytes(self._data.slice(max(0, size_bytes - _TAIL_BYTES)))
        footer_bytes = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
        start = max(0, size_bytes - footer_bytes)
        found = google_crc32c.value(bytes(self._data.slice(start)))
        if found != self.facts.footer_crc32c:
            expected = f"{self.facts.footer_crc32c:08x}"
            raise self._corrupt("has a damaged footer", f"{found:08x}", expected, start)

    def _corrupt(
        self, what: str, found: object, expected: object, byte_offset: int | None = None
    ) -> CorruptionError:
        return CorruptionError(
            f"a sorted file of the keyed store {what}",
            path=self._path,
            byte_offset=byte_offset,
            expected=expected,
            found=found,
            hint="restore the file from a copy; its records are no longer in the log",
        )

    @property
    def groups(self) -> list[tuple[bytes, int, int]]:
        """First key, number of rows, and decoded bytes of each row group."""
        groups = map(self._metadata.row_group, range(len(self._spans)))
        return [
            (key, group.num_rows, group.total_byte_size)
            for key, group in zip(self._first_keys, groups, strict=True)
        ]

    def get(self, key: bytes) -> tuple[int, bytes | None] | None:
        """Sequence number and value of a key; None if the file has no record of it."""
        if not self.facts.min_key <= key <= self.facts.max_key:
            return None
        group = bisect_right(self._first_keys, key) - 1
        frame = self._cache.get(self._cached_as, group)
        if frame is None:
            frame = self._decode(group, group + 1)
            self._cache.put(self._cached_as, group, frame)
        return rows.find_sorted(frame, key)

    def between(self, start: bytes | None, end: bytes | None) -> pl.DataFrame:
        """Records with ``start <= key < end``, sorted by key; None is unbounded."""
        first = 0 if start is None else max(0, bisect_right(self._first_keys, start) - 1)
        stop = len(self._spans) if end is None else bisect_left(self._first_keys, end)
        if stop <= first:
            return rows.empty()
        return rows.between_sorted(self._decode(first, stop), start, end)

    def _decode(self, first: int, stop: int) -> pl.DataFrame:
        """The row groups from `first` to before `stop`, with verified checksums."""
        for group in range(first, stop):
            start, end = self._spans[group]
            found = google_crc32c.extend(0, self._data.slice(start, end - start))
            if found != self._crc32cs[group]:
                expected = f"{self._crc32cs[group]:08x}"
                raise self._corrupt("has a damaged row group", f"{found:08x}", expected, start)
        file = pq.ParquetFile(pa.BufferReader(self._data), metadata=self._metadata)
        table = file.read_row_groups(list(range(first, stop)), columns=rows.SCHEMA.names())
        frame = pl.from_arrow(without_metadata(table))
        assert isinstance(frame, pl.DataFrame)
        return frame
