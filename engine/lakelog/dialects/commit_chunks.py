"""Groups commits into chunks of some megabytes for one columnar parse each.

A chunk with bytes that Arrow's reader ignores or fails on raises `NotProvenError`;
`lakelog.dialects.strict_decoder` then reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from lakelog.arrow_arrays import as_int64
from lakelog.dialects.arrow_json import NotProvenError
from lakelog.dialects.log_content import CommitInfo
from lakelog.dialects.strict_decoder import Blob, Line, no_action, parse_object, parse_objects
from lakelog.model.contract import MAX_DEPTH
from lakelog.threads import WORKERS

CHUNK_BYTES = 8 << 20
_FIRST_BYTES = 1 << 20
_PART_BYTES = 3 << 19  # of the parts of a large file, at least
_COUNT_BLOCK = 1 << 18
_LONG_LINE_BYTES = 1 << 12
_COMMIT_INFO = b'{"commitInfo":'


def chunked(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Group files into chunks, the first ones small, so that decoding starts early."""
    chunk: list[Blob] = []
    size, most = 0, min(_FIRST_BYTES, CHUNK_BYTES)
    for blob in blobs:
        is_large = len(blob.data) > 2 * min(_PART_BYTES, CHUNK_BYTES)
        for piece in _cut(blob) if is_large else (blob,):
            length = len(piece.data)
            if chunk and size + length > most:
                yield chunk
                chunk, size, most = [], 0, min(2 * most, CHUNK_BYTES)
            chunk.append(piece)
            size += length
    if chunk:
        yield chunk


def _cut(blob: Blob) -> Iterator[Blob]:
    data = bytes(blob.data)
    part_bytes = min(max(-(-len(data) // WORKERS), _PART_BYTES), CHUNK_BYTES)
    if data.isspace() and blob.whole:
        raise no_action(blob)
    start, line = 0, blob.first_line
    view = memoryview(data)
    while start < len(data):
        end = len(data)
        # A rest of a few lines is not worth a parse.
        if end - start > part_bytes + part_bytes // 8:
            end = data.rfind(b"\n", start, start + part_bytes) + 1
            end = end or data.find(b"\n", start) + 1 or len(data)
        yield Blob(blob.version, blob.path, view[start:end], line, blob.offset + start, False)
        line += count_lines(data, start, end)
        start = end


@dataclass
class Prepared:
    """A chunk ready to parse, without the commitInfo lines at the head and tail of files, because
    their types never agree in one parse.
    """

    text: bytes = b""
    versions: list[int | None] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    commit_infos: list[CommitInfo] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of lines to parse."""
        return sum(self.counts)

    def order(self) -> pl.DataFrame | None:
        """``version`` and ``position`` of every row; None if the file does not record them."""
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
    """Prepare a chunk for parsing."""
    out = Prepared()
    pieces: list[bytes] = []
    infos: list[_Place] = []
    versions, first_lines, counts = out.versions, out.first_lines, out.counts
    # Executed for each of thousands of files, so every statement matters.
    for version, path, raw, first_line, offset, _ in chunk:
        data = bytes(raw)
        size = len(data)
        end = size - 1 if data.endswith(b"\n") else size
        if not end:
            raise NotProvenError
        start = 0
        if data.startswith(_COMMIT_INFO):
            at = data.find(b"\n", 0, end)
            infos.append((data[: at if at > 0 else end], path, version, first_line, offset))
            start = at + 1 or size
            first_line += 1  # noqa: PLW2901 - of the lines that are left
        last = data.rfind(b"\n", start, end) + 1
        if last > start and data.startswith(_COMMIT_INFO, last):
            number = first_line + count_lines(data, start, last)
            infos.append((data[last:end], path, version, number, offset + last))
            end = last - 1
        length = end - start
        if length <= 0:
            counts.append(0)
        else:
            counts.append(count_lines(data, start, end) + 1 if last > start else 1)
            # The join copies no single piece, and no slice of the whole is a copy.
            pieces.append(data[start : end + 1])
            if end == size:
                pieces.append(b"\n")
        if length > _LONG_LINE_BYTES and any(map(_may_nest_deep, _long_lines(data, start, end))):
            raise NotProvenError  # Arrow's reader recurses per level, and crashes
        versions.append(version)
        first_lines.append(first_line)
        out.paths.append(path)
    out.commit_infos = _commit_infos(infos)
    out.text = b"".join(pieces)
    if (out.text and not out.text.startswith(b"{")) or b"\0" in out.text:
        raise NotProvenError
    if not out.text.isascii():
        out.text.decode("utf-8")  # Arrow's reader does not check
    return out


def _long_lines(text: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Lines of a range longer than `_LONG_LINE_BYTES`; of the others, only the ends are read."""
    while stop - start > _LONG_LINE_BYTES:
        end = text.rfind(b"\n", start, start + _LONG_LINE_BYTES + 1) + 1
        if not end:
            end = text.find(b"\n", start, stop) + 1 or stop
            yield text[start:end]
        start = end


def _may_nest_deep(line: bytes) -> bool:
    """Whether a line has enough brackets to nest deeper than `MAX_DEPTH`."""
    brackets = line.count(b"{") + line.count(b"[")
    if brackets <= MAX_DEPTH:
        return False
    # A bracket before a backslash is in a text (schemaString has thousands), and an empty pair
    # nests nothing.
    brackets -= line.count(b"{\\") + line.count(b"[\\") + line.count(b"[{\\")
    return brackets - line.count(b"{}") - line.count(b"[]") > MAX_DEPTH - 2


def count_lines(data: bytes, start: int, end: int) -> int:
    """The number of line ends in a range."""
    if end - start < _COUNT_BLOCK:
        return data.count(b"\n", start, end)
    # NumPy counts a large buffer several times faster, in blocks that fit in the CPU's cache.
    view = np.frombuffer(data, np.uint8)[start:end]
    blocks = range(0, len(view), _COUNT_BLOCK)
    return sum(int(np.count_nonzero(view[at : at + _COUNT_BLOCK] == 0x0A)) for at in blocks)


_Place = tuple[bytes, str, int | None, int, int]
"""Fields of a `Line`, as a tuple, which is faster to create."""


def _commit_infos(lines: Sequence[_Place]) -> list[CommitInfo]:
    parsed = parse_objects([text for text, *_ in lines])
    if parsed is None:
        parsed = [parse_object(Line(*line)) for line in lines]
    bodies = [each["commitInfo"] for each in parsed]
    if any(len(each) > 1 for each in parsed) or any(type(body) is not dict for body in bodies):
        raise NotProvenError  # other actions are on the same line
    return [
        CommitInfo(version, number, body)
        for (_, _, version, number, _), body in zip(lines, bodies, strict=True)
    ]
