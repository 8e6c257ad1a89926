"""Mutations of a file's bytes, drawn from a random generator."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Mutation:
    """A file's new bytes.

    Attributes:
        operation: Name of the operation.
        detail: Position, for a message.
        data: The new bytes.
        start: Offset of the first byte that was changed.
        end: Offset in the old bytes after the last one that was changed.
    """

    operation: str
    detail: str
    data: bytes
    start: int
    end: int


def _flip(data: bytes, rng: random.Random) -> Mutation:
    at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
    return Mutation("flip", f"byte {at} xor {bit:#x}", changed, at, at + 1)


def _cut(data: bytes, rng: random.Random) -> Mutation:
    at = rng.randrange(len(data))
    return Mutation("cut", f"at {at} of {len(data)}", data[:at], at, len(data))


def _cut_at_a_boundary(data: bytes, rng: random.Random) -> Mutation:
    at = rng.choice(boundaries(data))
    return Mutation("cut at a boundary", f"at {at} of {len(data)}", data[:at], at, len(data))


def _delete(data: bytes, rng: random.Random) -> Mutation:
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 8, 64))
    end = min(len(data), at + length)
    return Mutation("delete", f"bytes {at} to {end}", data[:at] + data[end:], at, end)


def _delete_a_piece(data: bytes, rng: random.Random) -> Mutation:
    ends = [0, *boundaries(data), len(data)]
    number = rng.randrange(len(ends) - 1)
    start, end = ends[number], ends[number + 1]
    return Mutation(
        "delete a piece", f"bytes {start} to {end}", data[:start] + data[end:], start, end
    )


def _insert(data: bytes, rng: random.Random) -> Mutation:
    at = rng.randrange(len(data) + 1)
    more = rng.choice((b"\0", b"\xff", b"\n", b" ", b"0", b'"', rng.randbytes(7), data[:16]))
    return Mutation("insert", f"{more!r} at {at}", data[:at] + more + data[at:], at, at)


def _zero(data: bytes, rng: random.Random) -> Mutation:
    at, length = rng.randrange(len(data)), rng.choice((1, 4, 16, 512))
    end = min(len(data), at + length)
    return Mutation(
        "zero", f"bytes {at} to {end}", data[:at] + bytes(end - at) + data[end:], at, end
    )


def boundaries(data: bytes) -> list[int]:
    """Ends of lines, and of the pages of Parquet, within a file; its middle if it has none."""
    if data[:4] == b"PAR1":
        found = _page_ends(data)
    else:
        found = [at + 1 for at, byte in enumerate(data) if byte == 0x0A and at + 1 < len(data)]
    return found or [len(data) // 2]


def _page_ends(data: bytes) -> list[int]:
    try:
        metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    except (pa.ArrowException, OSError):
        return []
    ends: set[int] = set()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            start = column.dictionary_page_offset or column.data_page_offset
            ends |= {start, column.data_page_offset, start + column.total_compressed_size}
    return sorted(at for at in ends if 0 < at < len(data))


_OPERATIONS: tuple[Callable[[bytes, random.Random], Mutation], ...] = (
    _flip,
    _flip,
    _cut,
    _cut_at_a_boundary,
    _delete,
    _delete_a_piece,
    _insert,
    _zero,
)


def mutate(data: bytes, rng: random.Random) -> Mutation:
    """A mutation that changes the bytes."""
    while True:
        if not data:
            return Mutation("insert", "into an empty file", b"\0", 0, 0)
        mutation = rng.choice(_OPERATIONS)(data, rng)
        if mutation.data != data:
            return mutation


def rename_column(path: Path, name: str) -> None:
    """Rename a column everywhere in the footer of a Parquet file."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    encoded = bytes([len(name)]) + name.encode()
    assert encoded in data[-length:]
    footer = data[-length:].replace(encoded, encoded[:-1] + b"~")
    path.write_bytes(data[:-length] + footer)
