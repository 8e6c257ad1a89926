"""CRC-32 and CRC-32C of many byte ranges at once.

A log of small records holds millions of short spans, each with its own checksum, and one call for
each costs more than its bytes do. Here all spans advance together, eight bytes a step, by lookups
in tables of two bytes each. Spans are aligned at their ends: zero bytes in front of a register
that is zero change nothing, so that a span whose length is not a multiple of eight begins with a
padded step rather than ends with a short one. A long span is handed to the library, which is
faster for it.

Where all that is asked is whether every checksum agrees, one call of the library over all spans
answers it: between two spans are four bytes that lead from the checksum that the first is said
to have to the start of the second (`crc32_bridges`). If a span is not what its checksum says, the
difference goes through everything behind it, and the end is another one than the last span's
checksum. One bad span never hides, and several do so by a chance of one in 2**32, which is what a
single checksum can promise.

Owns: the arithmetic. Leaves to others: which bytes a format puts under its checksum.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]

_Words = np.ndarray[Any, np.dtype[np.uint64]]

_CRC32_POLYNOMIAL = 0xEDB88320
"""CRC-32 of zlib, gzip and PNG, bit-reflected."""

_CRC32C_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), bit-reflected."""

_LONG_BYTES = 384  # from here on a call of the library costs less than steps of eight bytes
_CHUNK_SPANS = 1 << 15  # what a step reads and writes stays in a core's second-level cache
_ALL_ONES = np.uint32(0xFFFFFFFF)


def crc32_spans(
    data: Bytes, starts: Offsets, lengths: Offsets, initial: Checksums | int = 0
) -> Checksums:
    """CRC-32 of each span, as ``zlib.crc32(data[start : start + length], initial)``.

    Example:
        >>> data = np.frombuffer(b"key=value", dtype=np.uint8)
        >>> crc = crc32_spans(data, np.array([0, 4]), np.array([3, 5]))
        >>> [hex(value) for value in crc.tolist()]
        ['0x8a90aba9', '0x1d775834']
    """
    return _spans(_CRC32_POLYNOMIAL, _crc32, data, starts, lengths, initial)


def crc32c_spans(
    data: Bytes, starts: Offsets, lengths: Offsets, initial: Checksums | int = 0
) -> Checksums:
    """CRC-32C of each span, as ``google_crc32c.extend(initial, data[start : start + length])``.

    Arguments and result are those of `crc32_spans`.

    Example:
        >>> crc = crc32c_spans(np.frombuffer(b"123456789", np.uint8), np.array([0]), np.array([9]))
        >>> hex(crc[0])
        '0xe3069283'
    """
    return _spans(_CRC32C_POLYNOMIAL, _crc32c, data, starts, lengths, initial)


def crc32_bridges(before: Checksums, after: int = 0, zeros: int = 0) -> Checksums:
    """The four bytes that make one checksum another one.

    Example:
        >>> key = zlib.crc32(b"key")
        >>> between = crc32_bridges(np.array([key], np.uint32)).astype("<u4").tobytes()
        >>> zlib.crc32(b"key" + between + b"value") == zlib.crc32(b"value")
        True
    """
    return before ^ np.uint32(0xFFFFFFFF ^ _rewound(0xFFFFFFFF ^ after, zeros + 4))


@functools.cache
def _rewound(register: int, zeros: int) -> int:
    """The register that so many zero bytes make another one."""
    for _ in range(8 * zeros):
        # The polynomial's highest bit is set, so that the register's says whether it was added.
        added = register >> 31
        register = (register ^ (_CRC32_POLYNOMIAL * added)) << 1 | added
    return register


def _crc32(data: Bytes, initial: int) -> int:
    return zlib.crc32(data.data, initial)


def _crc32c(data: Bytes, initial: int) -> int:
    return int(google_crc32c.extend(initial, data))


def _spans(
    polynomial: int,
    whole: Callable[[Bytes, int], int],
    data: Bytes,
    starts: Offsets,
    lengths: Offsets,
    initial: Checksums | int,
) -> Checksums:
    before = np.broadcast_to(np.asarray(initial, dtype=np.uint32), starts.shape)
    result = before.copy()
    # A step reads eight bytes that end where its bytes end, so the first few bytes of the data
    # cannot be read in steps.
    by_call = ((lengths >= _LONG_BYTES) | (starts < 8)) & (lengths > 0)
    for at in np.flatnonzero(by_call).tolist():
        start = int(starts[at])
        span = data[start : start + int(lengths[at])]
        result[at] = whole(span, int(before[at]))
    if len(data) < 8:
        return result
    in_steps = ~by_call
    everything = bool(in_steps.all())
    tables = _tables(polynomial)
    # Eight bytes from every offset: overlapping words, of which no copy is made.
    words: _Words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    chosen = None if everything else np.flatnonzero(in_steps)
    count = len(starts) if chosen is None else len(chosen)
    for low in range(0, count, _CHUNK_SPANS):
        part: Any = slice(low, low + _CHUNK_SPANS)
        if chosen is not None:
            part = chosen[part]
        ends = starts[part] + lengths[part]
        result[part] = _advance(tables, words, ends, lengths[part], result[part] ^ _ALL_ONES)
    return result


def _advance(
    tables: tuple[Checksums, ...],
    words: _Words,
    ends: Offsets,
    lengths: Offsets,
    registers: Checksums,
) -> Checksums:
    """Move each register over its span, and return the checksums.

    Spans are in the order of their number of steps, so that those still to go are a prefix.
    """
    steps = ((lengths + 7) >> 3).astype(np.int16)
    order = np.argsort(-steps, kind="stable")
    longest = int(steps[order[0]]) if len(order) else 0
    # reached[n]: how many spans take at least n steps.
    taking = np.bincount(steps, minlength=longest + 2)
    reached = np.cumsum(taking[::-1])[::-1]
    state = registers[order].astype(np.uint64)
    stops = ends[order] - 8 * longest
    sizes = lengths[order]
    begun = 0
    for left in range(longest, 0, -1):
        active = int(reached[left])
        word = words[stops[:active]]
        word[:begun] ^= state[:begun]
        spill = None
        if active > begun:
            word[begun:], spill = _first(
                word[begun:], state[begun:active], sizes[begun:active] - 8 * (left - 1)
            )
        halves = word.view("<u2").reshape(-1, 4)
        moved = tables[3].take(halves[:, 0])
        moved ^= tables[2].take(halves[:, 1])
        moved ^= tables[1].take(halves[:, 2])
        moved ^= tables[0].take(halves[:, 3])
        state[:active] = moved
        if spill is not None:
            state[begun:active] ^= spill
        begun = active
        stops += 8
    result = np.empty(len(order), dtype=np.uint32)
    result[order] = state.astype(np.uint32) ^ _ALL_ONES
    return result


def _first(word: _Words, state: _Words, taken_bytes: Offsets) -> tuple[_Words, _Words]:
    """A span's first step: the bytes before it count as zero, and the register meets its first
    byte. What of the register reaches beyond a step of less than four bytes is returned apart.
    """
    taken = taken_bytes.astype(np.uint64) << np.uint64(3)
    absent = np.uint64(64) - taken
    word = (word >> absent << absent) ^ (state << absent)
    # A shift by 64 has no result; the register is gone after 32 anyhow.
    return word, state >> np.minimum(taken, np.uint64(32))


@functools.cache
def _tables(polynomial: int) -> tuple[Checksums, ...]:
    """Of two bytes, the register after them and 0, 2, 4 and 6 zero bytes."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = (one >> np.uint32(1)) ^ np.where(one & np.uint32(1), np.uint32(polynomial), 0).astype(
            np.uint32
        )

    def two_bytes(state: Checksums) -> Checksums:
        for _ in range(2):
            state = one[state & np.uint32(0xFF)] ^ (state >> np.uint32(8))
        return state

    tables = [two_bytes(np.arange(1 << 16, dtype=np.uint32))]
    for _ in range(3):
        tables.append(two_bytes(tables[-1]))
    return tuple(tables)
