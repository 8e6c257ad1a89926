"""The three framings of an IndexTables JSON file, with a bound on decompressed bytes.

A file of any length may expand to `FREE_BYTES`, to more only up to a ratio that log files never
reach (each action has a path with random characters), and never to more than
`MAX_DECOMPRESSED_BYTES`. Repeated bytes reach ratios of 1,030 in gzip and 30,000 in zstandard.

==============  ==================================================
first bytes     content
==============  ==================================================
``1f 8b``       a gzip stream (the Rust writer)
``01 01``       two bytes of codec header, then gzip (the Scala writer)
anything else   plain bytes
==============  ==================================================

Source: the writers of IndexTables4Spark.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from lakelog.errors import InvalidPropertyError, MalformedLogError
from lakelog.model.metadata import in_any_case

MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
"""Maximum decompressed size of one file of a log, in bytes."""
FREE_BYTES = 64 * 1024 * 1024
"""Decompressed size that is allowed for a file of any length, in bytes."""
MAX_RATIO = 500
"""Maximum decompressed bytes per compressed byte, beyond `FREE_BYTES`."""

_PIECE_BYTES = 4 << 20


class TooLargeError(ValueError):
    """The decompressed size of a stream exceeds its limit."""


def most_decompressed(size_bytes: int | None = None) -> int:
    """Maximum decompressed size in bytes of a compressed file of `size_bytes`, or of any length."""
    if size_bytes is None:
        return MAX_DECOMPRESSED_BYTES
    return min(MAX_DECOMPRESSED_BYTES, max(FREE_BYTES, MAX_RATIO * size_bytes))


def decompress(
    new_stream: Callable[[], Any],
    data: bytes | memoryview,
    most_bytes: int,
    *,
    only_first: bool = False,
) -> bytes:
    """The content of consecutive compressed streams, decompressed in pieces."""
    pieces: list[bytes] = []
    room = most_bytes
    rest: bytes | memoryview = data
    while True:
        stream = new_stream()
        while not stream.eof:
            piece = stream.decompress(rest, min(_PIECE_BYTES, room + 1))
            # zlib returns its unread input, other codecs keep it.
            rest = getattr(stream, "unconsumed_tail", b"")
            if piece:
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    raise TooLargeError(f"more than {most_bytes} bytes")
            elif not stream.eof and not rest:
                raise EOFError("the compressed stream is truncated")
        rest = stream.unused_data
        if only_first or not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


_GZIP = b"\x1f\x8b"
_CODEC_MAGIC = 0x01
_CODEC_GZIP = 0x01
_GZIP_WINDOW_BITS = 31
_HEADER = bytes((_CODEC_MAGIC, _CODEC_GZIP))

_COMPRESSION = "spark.indextables.transaction.compression."
_ENABLED = _COMPRESSION + "enabled"
_CODEC = _COMPRESSION + "codec"
_LEVEL = _COMPRESSION + "gzip.level"
_CHECKPOINT_ENABLED = "spark.indextables.checkpoint.compression.enabled"


def frame_as(data: bytes, configuration: Mapping[str, str | None]) -> bytes:
    """Frame a file as the table's properties request. gzip has two bytes of codec header: every
    reader of the reference implementation supports it, a bare stream only its native one. Content
    that would expand beyond the limit of `unframe` remains plain.
    """
    level = commit_level(configuration)
    if level is None or len(data) > most_decompressed():
        return data
    packed = gzip.compress(data, level, mtime=0)
    return data if len(data) > most_decompressed(len(packed)) else _HEADER + packed


def commit_level(configuration: Mapping[str, str | None]) -> int | None:
    """The gzip level of commits in the table's properties; None for plain bytes."""
    level = _level(configuration)
    return level if _is_on(configuration, _ENABLED) else None


def checkpoint_level(configuration: Mapping[str, str | None]) -> int | None:
    """The gzip level of JSON checkpoints, by default that of commits; None for plain bytes."""
    if in_any_case(configuration, _CHECKPOINT_ENABLED) is None:
        return commit_level(configuration)
    level = _level(configuration)
    return level if _is_on(configuration, _CHECKPOINT_ENABLED) else None


def _is_on(configuration: Mapping[str, str | None], key: str) -> bool:
    return (in_any_case(configuration, key) or "false").lower() == "true"


def _level(configuration: Mapping[str, str | None]) -> int | None:
    codec = (in_any_case(configuration, _CODEC) or "gzip").lower()
    level = in_any_case(configuration, _LEVEL) or "6"
    if codec not in {"gzip", "none"}:
        raise InvalidPropertyError(
            f"{_CODEC} names an unknown codec", expected="gzip or none", found=codec
        )
    if level not in set("0123456789"):
        raise InvalidPropertyError(
            f"{_LEVEL} is not a valid compression level", expected="0 to 9", found=level
        )
    return None if codec == "none" else int(level)


class Framer:
    """Frames a file that is written in pieces."""

    def __init__(self, level: int | None) -> None:
        self._deflater = (
            None if level is None else zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
        )
        self._begun = level is None
        self._packed_bytes = 0
        self._ended = False
        self.plain_bytes = 0
        """Number of bytes so far, before compression."""

    @property
    def most_bytes(self) -> int | None:
        """Maximum length that `unframe` accepts, or None; known compression limits it."""
        if self._deflater is None:
            return None
        return most_decompressed(self._packed_bytes if self._ended else None)

    def add(self, data: bytes) -> bytes:
        """Add bytes; return framed bytes, possibly none."""
        self.plain_bytes += len(data)
        if self._deflater is None:
            return data
        return self._packed(self._deflater.compress(data))

    def end(self) -> bytes:
        """The last bytes of the framed file."""
        self._ended = True
        return b"" if self._deflater is None else self._packed(self._deflater.flush())

    def _packed(self, data: bytes) -> bytes:
        self._packed_bytes += len(data)
        return self._head() + data

    def _head(self) -> bytes:
        head = b"" if self._begun else _HEADER
        self._begun = True
        return head


def unframe(data: bytes, path: str, version: int | None = None) -> bytes:
    """The JSON bytes of a file with any framing."""
    if data[:2] == _GZIP:
        return _gunzip(memoryview(data), path, version)
    # JSON text never begins with 01, so the header is unambiguous.
    if data[:1] == bytes((_CODEC_MAGIC,)):
        if data[1:2] != bytes((_CODEC_GZIP,)):
            raise MalformedLogError(
                "the file has an unknown compression codec",
                path=path,
                version=version,
                byte_offset=1,
                expected="01 (gzip)",
                found=data[1:2].hex() or "end of file",
            )
        return _gunzip(memoryview(data)[2:], path, version)
    return data


def _gunzip(data: memoryview, path: str, version: int | None) -> bytes:
    most = most_decompressed(len(data))
    try:
        # gzip allows several consecutive members; each is a separate stream.
        return decompress(lambda: zlib.decompressobj(_GZIP_WINDOW_BITS), data, most)
    except zlib.error as cause:
        raise MalformedLogError(
            f"the gzip stream is damaged: {cause}",
            path=path,
            version=version,
            expected="a gzip stream",
            hint="restore the file from a copy; reading stopped here",
        ) from cause
    except EOFError as cause:
        raise MalformedLogError(
            "the gzip stream is truncated",
            path=path,
            version=version,
            expected="a complete gzip stream",
            found=f"{len(data)} bytes",
            hint="the file is truncated: restore it from a copy",
        ) from cause
    except (TooLargeError, MemoryError) as cause:
        raise MalformedLogError(
            "the file decompresses to more bytes than a log file may have",
            path=path,
            version=version,
            expected=f"at most {most} bytes",
            hint="restore the file from a copy; reading stopped here",
        ) from cause
