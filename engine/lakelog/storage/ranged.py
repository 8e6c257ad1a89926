"""`RangedFile`: a seekable reader of a remote file that fetches ranges.

A small file is fetched whole by the first request. A larger one is fetched in blocks, of which the
most recently used are cached, beginning with its end, where Parquet readers start.
`RangedFile.reopen` returns a reader with its own position over the same blocks.
`RangedFile.prefetch` fetches all ranges that a reader will need in one round trip.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from lakelog.errors import UnavailableError
from lakelog.storage.base import SeekableReader

Range = tuple[int, int]
"""First byte (inclusive) and last byte (exclusive)."""

Content = tuple[bytes, str | None]
"""Bytes of a file, and the tag (ETag) of the file's content if the store gives one."""

Fetch = Callable[[Sequence[Range]], Sequence[bytes]]
"""Fetches ranges concurrently; each result has the length of its range."""

WHOLE_BYTES = 1 << 20
"""A file of up to this many bytes is fetched whole."""

_BLOCK_BYTES = 1 << 15
_REQUEST_BLOCKS = 128  # per request; several run concurrently
_GAP_BLOCKS = 2  # smaller gaps between ranges are fetched too, to save requests
_KEPT_BLOCKS = 1_536
_TAIL_BLOCKS = 3  # at least 64 KiB, which Arrow reads first


class _Blocks:
    """The cached blocks of a file, for several threads. Memory: 48 MiB, plus the current read."""

    def __init__(self, fetch: Fetch, size_bytes: int) -> None:
        self.fetch = fetch
        self.size_bytes = size_bytes
        self.most_kept = _KEPT_BLOCKS
        self._count = -(-size_bytes // _BLOCK_BYTES)
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        first = 0 if size_bytes <= WHOLE_BYTES else max(0, self._count - _TAIL_BLOCKS)
        self.load(range(first, self._count))

    def load(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """The blocks of these numbers; blocks that are not cached are fetched in one round trip."""
        wanted = sorted(set(numbers))
        with self._lock:
            found = {n: self._kept[n] for n in wanted if n in self._kept}
            for number in found:
                self._kept.move_to_end(number)
        missing = [n for n in wanted if n not in found]
        if missing:
            fetched = self._load_missing(missing)
            found |= fetched
            with self._lock:
                self._kept |= fetched
                while len(self._kept) > max(self.most_kept, len(wanted)):
                    self._kept.popitem(last=False)
        return found

    def _load_missing(self, missing: Sequence[int]) -> dict[int, bytes]:
        runs: list[list[int]] = []
        for number in missing:
            if runs and number == runs[-1][-1] + 1 and len(runs[-1]) < _REQUEST_BLOCKS:
                runs[-1].append(number)
            else:
                runs.append([number])
        ranges = [
            (run[0] * _BLOCK_BYTES, min((run[-1] + 1) * _BLOCK_BYTES, self.size_bytes))
            for run in runs
        ]
        blocks: dict[int, bytes] = {}
        for run, (start, end), data in zip(runs, ranges, self.fetch(ranges), strict=True):
            if len(data) != end - start:
                raise UnavailableError(
                    "the store returned fewer bytes than the size of the file",
                    expected=end - start,
                    found=len(data),
                    hint="the file was replaced during the read; open the table again",
                )
            for index, number in enumerate(run):
                blocks[number] = data[index * _BLOCK_BYTES : (index + 1) * _BLOCK_BYTES]
        return blocks

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, which must be within the file."""
        numbers = _numbers((start, end))
        blocks = self.load(numbers)
        data = b"".join(blocks[n] for n in numbers) if len(numbers) > 1 else blocks[numbers[0]]
        offset = numbers[0] * _BLOCK_BYTES
        return data[start - offset : end - offset]


def _numbers(span: Range) -> range:
    """The blocks that contain a range."""
    return range(span[0] // _BLOCK_BYTES, -(-span[1] // _BLOCK_BYTES))


class RangedFile(SeekableReader):
    """A seekable binary reader for one thread; other threads use `reopen`."""

    def __init__(self, fetch: Fetch, size_bytes: int, blocks: _Blocks | None = None) -> None:
        super().__init__()
        self._fetch = fetch
        self._blocks = _Blocks(fetch, size_bytes) if blocks is None else blocks
        self._position = 0

    def reopen(self) -> RangedFile:
        """Another reader of the same file, at its start, that shares the cached blocks."""
        return RangedFile(self._fetch, self.size_bytes, self._blocks)

    def fetch_through(self, wrap: Callable[[Fetch], Fetch]) -> None:
        """Use another function to fetch from now on; also for readers that share the blocks."""
        self._blocks.fetch = wrap(self._blocks.fetch)

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch ranges in one round trip, up to the cache's size, except beyond the file."""
        inside = (span for span in ranges if 0 <= span[0] < span[1] <= self.size_bytes)
        wanted = sorted({number for span in inside for number in _numbers(span)})
        gaps = (n for a, b in pairwise(wanted) if b - a <= _GAP_BLOCKS + 1 for n in range(a, b))
        self._blocks.load(sorted({*wanted, *gaps})[: self._blocks.most_kept])

    def keep_at_most(self, size_bytes: int) -> None:
        """Limit the cache to `size_bytes`; also for readers that share the blocks."""
        self._blocks.most_kept = max(_TAIL_BLOCKS, min(_KEPT_BLOCKS, size_bytes // _BLOCK_BYTES))

    @property
    def size_bytes(self) -> int:
        """The file's length."""
        return self._blocks.size_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes from the position; all remaining bytes if it is negative or None."""
        self._require_open()
        left = max(0, self.size_bytes - self._position)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        data = self._blocks.read(self._position, self._position + size)
        self._position += size
        return data

    def readall(self) -> bytes:
        """All remaining bytes."""
        return self.read()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, as `io.RawIOBase`."""
        self._require_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"the position must be at least 0, got {base + offset}")
        self._position = base + offset
        return self._position

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")
