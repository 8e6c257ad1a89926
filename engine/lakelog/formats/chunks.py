"""Commits in chunks of some megabytes, made ready for one columnar parse each.

A chunk that holds bytes which Arrow's reader passes over or trips on is refused here, with
`NotProvenError`; `lakelog.formats.exact` then reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from lakelog.formats.arrow_maps import as_int64
from lakelog.formats.base import CommitInfo
from lakelog.formats.exact import MAX_DEPTH, Blob, Line, parse_objects
from lakelog.formats.unproven import NotProvenError

CHUNK_BYTES = 8 << 20
_COUNT_BLOCK = 1 << 18
_LONG_LINE_BYTES = 1 << 12
_COMMIT_INFO = b'{"commitInfo":'


def chunked(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Group files into chunks; a file larger than a chunk is cut at line ends."""
    chunk: list[Blob] = []
    size = 0
    for blob in blobs:
        for piece in (blob,) if len(blob.data) <= CHUNK_BYTES else _cut(blob):
            length = len(piece.data)
            if chunk and size + length > CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append(piece)
            size += length
    if chunk:
        yield chunk


def _cut(blob: Blob) -> Iterator[Blob]:
    data = bytes(blob.data)
    if data.isspace():
        yield blob  # of blanks alone, it has to be seen whole to be refused
        return
    start, line = 0, blob.first_line
    view = memoryview(data)
    while start < len(data):
        end = len(data)
        if end - start > CHUNK_BYTES:
            end = data.rfind(b"\n", start, start + CHUNK_BYTES) + 1
            end = end or data.find(b"\n", start) + 1 or len(data)
        yield Blob(blob.version, blob.path, view[start:end], line, blob.offset + start, False)
        line += data.count(b"\n", start, end)
        start = end


@dataclass
class Prepared:
    """A chunk ready to parse: its text, and which line of which file each row is.

    commitInfo lines are taken out at the head and tail of a file, where they usually stand: they
    are free-form, so that their types would never agree in one parse.
    """

    text: bytes = b""
    versions: list[int | None] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    commit_infos: list[CommitInfo] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many lines are to be parsed."""
        return sum(self.counts)

    def order(self) -> pl.DataFrame | None:
        """``version`` and ``position`` of every row; None where the file does not say."""
        if not self.versions or self.versions[0] is None:
            return None
        counts = np.array(self.counts, np.int64)
        starts = np.cumsum(counts) - counts
        offsets = np.repeat(np.array(self.first_lines, np.int64) - starts, counts)
        return pl.DataFrame(
            {
                "version": pl.Series(
                    as_int64(np.repeat(np.array(self.versions, np.int64), counts))
                ),
                "position": pl.Series(as_int64(np.arange(len(offsets)) + offsets)).cast(pl.Int32),
            }
        )

    def lines(self, rows: Sequence[int]) -> list[bytes]:
        """The lines of some rows."""
        every = self.text.split(b"\n")
        return [every[row] for row in rows]


def prepare(chunk: list[Blob]) -> Prepared:
    """Make a chunk ready to parse.

    Raises:
        NotProvenError: It holds what Arrow's reader would pass over or trip on.
    """
    out = Prepared()
    pieces: list[bytes | memoryview] = []
    infos: list[Line] = []
    for version, path, raw, first_line, offset, _ in chunk:
        data = bytes(raw)
        start, end, skipped = 0, len(data), 0
        if data.endswith(b"\n"):
            end -= 1
        if not end:
            raise NotProvenError
        if data.startswith(_COMMIT_INFO):
            at = data.find(b"\n", 0, end)
            infos.append(Line(data[: at if at > 0 else end], path, version, first_line, offset))
            start = at + 1 or len(data)
            skipped = 1
        last = data.rfind(b"\n", start, end) + 1
        if last > start and data.startswith(_COMMIT_INFO, last):
            number = first_line + skipped + data.count(b"\n", start, last)
            infos.append(Line(data[last:end], path, version, number, offset + last))
            end = last - 1
        count = _count_newlines(data, start, end) + 1 if end > start else 0
        if count:
            # A view: a slice of some megabytes would be copied here and once more by the join.
            pieces.append(data if end - start == len(data) else memoryview(data)[start:end])
        out.versions.append(version)
        out.first_lines.append(first_line + skipped)
        out.counts.append(count)
        out.paths.append(path)
    out.commit_infos = _commit_infos(infos)
    out.text = b"\n".join(pieces)
    if (out.text and not out.text.startswith(b"{")) or b"\0" in out.text:
        raise NotProvenError
    if not out.text.isascii():
        out.text.decode("utf-8")  # Arrow's reader does not check
    if any(_may_nest_deep(line) for line in _long_lines(out.text)):
        raise NotProvenError  # Arrow's reader takes its stack a level at a time, and then crashes
    return out


def _long_lines(text: bytes) -> Iterator[bytes]:
    """Lines longer than `_LONG_LINE_BYTES`; looks at the ends of the others only."""
    start = 0
    while len(text) - start > _LONG_LINE_BYTES:
        end = text.rfind(b"\n", start, start + _LONG_LINE_BYTES + 1) + 1
        if not end:
            end = text.find(b"\n", start) + 1 or len(text)
            yield text[start:end]
        start = end


def _may_nest_deep(line: bytes) -> bool:
    """Whether a line has brackets enough for `MAX_DEPTH`."""
    brackets = line.count(b"{") + line.count(b"[")
    if brackets <= MAX_DEPTH:
        return False
    # Before a backslash a bracket stands in a text (schemaString has thousands), and an empty pair
    # nests nothing.
    brackets -= line.count(b"{\\") + line.count(b"[\\") + line.count(b"[{\\")
    return brackets - line.count(b"{}") - line.count(b"[]") > MAX_DEPTH - 2


def _count_newlines(data: bytes, start: int, end: int) -> int:
    if end - start < _COUNT_BLOCK:
        return data.count(b"\n", start, end)
    # NumPy counts a large buffer several times faster, in blocks that stay in the CPU's cache.
    view = np.frombuffer(data, np.uint8)[start:end]
    blocks = range(0, len(view), _COUNT_BLOCK)
    return sum(int(np.count_nonzero(view[at : at + _COUNT_BLOCK] == 0x0A)) for at in blocks)


def _commit_infos(lines: Sequence[Line]) -> list[CommitInfo]:
    infos: list[CommitInfo] = []
    for line, parsed in zip(lines, parse_objects(lines), strict=True):
        body = parsed["commitInfo"]
        if len(parsed) > 1 or not isinstance(body, dict):
            raise NotProvenError  # other actions stand on the same line
        infos.append(CommitInfo(line.version, line.number, body))
    return infos
