"""Bounded decompression of log files.

A file may expand to `FREE_BYTES` whatever its length, to more only by a ratio that files of a log
stay below (each action names a file by random characters), and never to more than
`MAX_DECOMPRESSED_BYTES`. Repeated bytes reach ratios of 1,030 in gzip and 30,000 in zstandard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
"""The most that one compressed file of a log may expand to."""
FREE_BYTES = 64 * 1024 * 1024
"""What a compressed file may expand to whatever its length."""
MAX_RATIO = 500
"""Decompressed bytes for each compressed byte, beyond `FREE_BYTES`."""

_PIECE_BYTES = 4 << 20


class TooLargeError(ValueError):
    """A compressed stream expands to more than its bound."""


def most_decompressed(size_bytes: int | None = None) -> int:
    """The most bytes that a compressed file of `size_bytes`, or of any length, may expand to."""
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
    """The content of compressed streams that follow one another, expanded piece by piece."""
    pieces: list[bytes] = []
    room = most_bytes
    rest: bytes | memoryview = data
    while True:
        stream = new_stream()
        while not stream.eof:
            piece = stream.decompress(rest, min(_PIECE_BYTES, room + 1))
            # zlib returns its unread input, the others keep it.
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
