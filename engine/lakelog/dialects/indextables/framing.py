"""The three framings of an IndexTables JSON file, detected by its first bytes.

==============  ==================================================
first bytes     content
==============  ==================================================
``1f 8b``       a gzip stream (the Rust writer)
``01 01``       two bytes of codec header, then gzip (the Scala writer)
anything else   plain bytes
==============  ==================================================

Source: facts of the real writers, "Compression".
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping

from lakelog.dialects.indextables.expansion import (
    TooLargeError,
    decompress,
    most_decompressed,
)
from lakelog.errors import InvalidPropertyError, MalformedLogError
from lakelog.model.metadata import in_any_case

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
    """The framing that a table's properties ask for; plain where they do not.

    gzip gets the two bytes of codec header, which every reader of the reference knows; a bare
    stream only its native one. What expands further than `unframe` accepts stays plain.
    """
    level = commit_level(configuration)
    if level is None or len(data) > most_decompressed():
        return data
    packed = gzip.compress(data, level, mtime=0)
    return data if len(data) > most_decompressed(len(packed)) else _HEADER + packed


def commit_level(configuration: Mapping[str, str | None]) -> int | None:
    """The gzip level that a table's properties ask of its commits; None for plain bytes."""
    level = _level(configuration)
    return level if _is_on(configuration, _ENABLED) else None


def checkpoint_level(configuration: Mapping[str, str | None]) -> int | None:
    """The gzip level that a table's properties ask of its JSON checkpoints; None for plain bytes.

    ``spark.indextables.checkpoint.compression.enabled`` decides where it is there, else what holds
    of the commits.
    """
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
    """Frames a file that is written piece by piece."""

    def __init__(self, level: int | None) -> None:
        self._deflater = (
            None if level is None else zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
        )
        self._begun = level is None
        self._packed_bytes = 0
        self._ended = False
        self.plain_bytes = 0
        """Bytes taken so far, before compression."""

    @property
    def most_bytes(self) -> int | None:
        """How many bytes it may take, so that `unframe` accepts the file; None where any number.

        The ratio of the compression is known, and counts, after `end`.
        """
        if self._deflater is None:
            return None
        return most_decompressed(self._packed_bytes if self._ended else None)

    def add(self, data: bytes) -> bytes:
        """The next bytes of the file; maybe none yet."""
        self.plain_bytes += len(data)
        if self._deflater is None:
            return data
        return self._packed(self._deflater.compress(data))

    def end(self) -> bytes:
        """The last bytes of the file."""
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
    """The JSON bytes of a file, whichever framing it has.

    Memory: the decompressed bytes.
    """
    if data[:2] == _GZIP:
        return _gunzip(memoryview(data), path, version)
    # No JSON text begins with 01, so the header cannot be mistaken for plain bytes.
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
        # gzip allows several members in a row; each is a stream of its own.
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
