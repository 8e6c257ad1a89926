"""Line counts that distinguish a complete NDJSON file from one truncated at a line end.

An IndexTables JSON checkpoint: its first line has an additional key that announces the mark of the
last line, and its last line a key with the number of lines and a checksum. Both are on the line of
an action, where other readers ignore unknown keys; some of them fail on a line without an action. A
marked checkpoint also contains every skip of its state, which the reference implementation omits.

A Delta log compaction: a separate last line with the same number and checksum, an action that
readers must ignore as unknown (Delta protocol, Protocol Evolution). Its commits always exist, so a
file without that line is not needed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from lakelog.dialects.ndjson import Blob
from lakelog.errors import MalformedLogError

_BEGIN = re.compile(rb'\{"lakelogBegin":\{"name":"([^"\\]{1,200})"\},')
_END = re.compile(rb'\{"lakelogEnd":\{"lines":(\d{1,18}),"crc32":(\d{1,10})\},')
_CLOSING = re.compile(rb'\{"lakelogEnd":\{"lines":(\d{1,18}),"crc32":(\d{1,10})\}\}\n')
CLOSING = "lakelogEnd"
"""Wrapper key of the line that closes a log compaction."""


def closing_line(lines: int, crc32: int) -> bytes:
    """The last line of a log compaction, with number and CRC-32 of the lines before it."""
    return b'{"lakelogEnd":{"lines":%d,"crc32":%d}}\n' % (lines, crc32)


def without_closing_line(data: bytes, path: str) -> bytes:
    """The actions of a log compaction, verified against its last line."""
    start = data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1
    closing = _CLOSING.fullmatch(data, start)
    if closing is None:
        raise MalformedLogError(
            "the log compaction has no end marker, so it may be truncated",
            path=path,
            expected="a last line with the number of lines",
        )
    rest = data[:start]
    found = (rest.count(b"\n"), zlib.crc32(rest))
    expected = (int(closing[1]), int(closing[2]))
    if found != expected:
        raise MalformedLogError(
            "the log compaction's content differs from its checksum",
            path=path,
            expected=_described(expected),
            found=_described(found),
        )
    return rest


class Marker:
    """Adds the marks to the lines of one file."""

    def __init__(self, name: str) -> None:
        self._begin = b'{"lakelogBegin":{"name":"%s"},' % name.encode()
        self._last = b""
        self._lines = 0
        self._crc = 0

    def add(self, lines: bytes) -> bytes:
        """Add lines; return those that can be written, all but the last."""
        if not lines:
            return b""
        if not self._lines:
            lines = self._begin + lines[1:]
        self._lines += lines.count(b"\n")
        text = self._last + lines
        end = text.rfind(b"\n", 0, -1) + 1
        self._last = text[end:]
        self._crc = zlib.crc32(memoryview(text)[:end], self._crc)
        return text[:end]

    def end(self) -> bytes:
        """The last line."""
        if not self._last:
            return b""
        crc = zlib.crc32(self._last, self._crc)
        return b'{"lakelogEnd":{"lines":%d,"crc32":%d},' % (self._lines, crc) + self._last[1:]


def unmark(data: bytes, path: str, name: str, version: int) -> tuple[Blob, ...] | None:
    """The lines of a file without its marks, verified against them; None without marks."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    begin, end = _BEGIN.match(data), _END.match(data, start)
    if end is not None and not start:
        begin = _BEGIN.match(b"{" + data[end.end() :])
    if begin is None and end is None:
        return None
    if begin is None or end is None:
        raise _damaged(path, version, "markers on its first and its last line", "only one of them")
    if begin[1] != name.encode():
        raise _damaged(path, version, name, begin[1].decode("utf-8", "replace"))
    last = b"{" + data[end.end() :]
    crc = zlib.crc32(last, zlib.crc32(memoryview(data)[:start]))
    found = (data.count(b"\n"), crc)
    expected = (int(end[1]), int(end[2]))
    if found != expected:
        raise _damaged(path, version, _described(expected), _described(found))
    return tuple(_pieces(data, begin.end(), start, last, path, version))


def is_marked(data: bytes) -> bool:
    """Whether a file begins with a mark; `unmark` verifies it."""
    return _BEGIN.match(data) is not None or _END.match(data) is not None


def _pieces(
    data: bytes, begun: int, start: int, last: bytes, path: str, version: int
) -> Iterator[Blob]:
    """The lines, with the first and the last separate."""
    if not start:
        yield Blob(version, path, b"{" + last[begun:], whole=False)
        return
    first = data.find(b"\n") + 1
    yield Blob(version, path, b"{" + data[begun:first], whole=False)
    if start > first:
        yield Blob(version, path, memoryview(data)[first:start], 1, first, whole=False)
    yield Blob(version, path, last, data.count(b"\n") - 1, start, whole=False)


def _described(of: tuple[int, int]) -> str:
    return f"{of[0]} lines with the CRC-32 {of[1]}"


def _damaged(path: str, version: int, expected: str, found: str) -> MalformedLogError:
    return MalformedLogError(
        "the checkpoint's content differs from its checksum",
        path=path,
        version=version,
        expected=expected,
        found=found,
        hint="the file is truncated or damaged: restore it, or replay the commits without it",
    )
