"""Bloom filters of the paths in a sidecar: Parquet split-block filters over ``add.path`` and
``remove.path``, about twenty bits per path, with at most one false positive in a thousand.

A hash is XXH64 with seed 0 over the UTF-8 bytes of the path as it is written, percent-encoded.
Arrow writes the filters, and any Parquet reader may use them; they are read here, because Arrow
cannot read them. Parquet has no checksum of them, so fingerprints record one.

Source: Parquet format, Bloom Filter; xxHash, XXH64.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.delta.paths import encode_paths
from lakelog.dialects.parquet_footers import require_valid_chunks

CAN_READ = hasattr(pq.ColumnChunkMetaData, "bloom_filter_offset")
"""Whether this pyarrow reports the offsets of the filters."""

FILTERED = ("add.path", "remove.path")
"""Columns that have filters."""

CHECKSUM_DIGITS = 32
"""Hexadecimal digits of SHA-256 that a fingerprint records."""

_FALSE_HITS = 0.001
_BLOCK_WORDS = 8
_SALTS = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    np.uint32,
)
# BloomFilterHeader in Thrift's compact protocol, after numBytes: one block algorithm, XXHASH, and
# no compression, each an empty struct in a union.
_HEADER_START = 0x15
_HEADER_END = bytes.fromhex("1c1c00001c1c00001c1c000000")

Hashes = npt.NDArray[np.uint64]
"""The result of `hash_paths`: one number per path."""

Span = tuple[int, int]
"""Offset and length of a filter in its file, in bytes."""


def filter_options(row_group_rows: int) -> dict[str, Any]:
    """Options of `pyarrow.parquet.ParquetWriter` for the path filters of a sidecar."""
    if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter.__init__).parameters:
        return {}
    options = {"ndv": max(1, row_group_rows), "fpp": _FALSE_HITS}
    return {"bloom_filter_options": dict.fromkeys(FILTERED, options)}


@dataclass(frozen=True)
class PathFilter:
    """A sidecar's Bloom filters: blocks (UInt32, shape (n, 8)), and their bytes' checksum."""

    blocks: tuple[npt.NDArray[np.uint32], ...]
    checksum: str

    def may_hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """For each of `hash_paths`, whether the sidecar may contain the path; False is certain."""
        found = np.zeros(len(hashes), np.bool_)
        low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        high = hashes >> np.uint64(32)
        bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
        for blocks in self.blocks:
            rows = ((high * np.uint64(len(blocks))) >> np.uint64(32)).astype(np.int64)
            found |= ((blocks[rows] & bits) == bits).all(axis=1)
        return found


def filter_spans(
    groups: Iterable[Mapping[str, pq.ColumnChunkMetaData]],
) -> tuple[Span, ...] | None:
    """Spans of a sidecar's path filters, by row group and `FILTERED`; None if one is missing."""
    chunks = [columns[path] for columns in groups for path in FILTERED if path in columns]
    if not CAN_READ or not all(chunk.bloom_filter_length for chunk in chunks):
        return None
    return tuple((chunk.bloom_filter_offset, chunk.bloom_filter_length) for chunk in chunks)


def read_filter(source: BinaryIO, spans: Iterable[Span]) -> PathFilter | None:
    """The path filters of an open sidecar; None if one is invalid."""
    blocks: list[npt.NDArray[np.uint32]] = []
    checksum = hashlib.sha256()
    for offset, length in spans:
        source.seek(offset)
        data = source.read(length)
        found = _parse_filter(data)
        if found is None:
            return None
        blocks.append(found)
        checksum.update(data)
    return PathFilter(tuple(blocks), checksum.hexdigest()[:CHECKSUM_DIGITS])


def _parse_filter(data: bytes) -> npt.NDArray[np.uint32] | None:
    """The blocks of a filter; None if it is not of the only supported kind."""
    size, shift, position = 0, 0, 1
    while position < len(data) and shift < 35:
        byte = data[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    size >>= 1  # zigzag encoding; never negative
    start = position + len(_HEADER_END)
    if data[:1] != bytes([_HEADER_START]) or data[position:start] != _HEADER_END:
        return None
    if size <= 0 or size % (4 * _BLOCK_WORDS) or len(data) != start + size:
        return None
    return np.frombuffer(data, "<u4", offset=start).reshape(-1, _BLOCK_WORDS)


def find_columns(
    footer: pq.FileMetaData, paths: Collection[str]
) -> list[dict[str, pq.ColumnChunkMetaData]]:
    """The columns `paths`, if they exist, of each row group with rows, by dotted name."""
    schema = footer.schema
    named = {schema.column(leaf).path: leaf for leaf in range(len(schema))}
    leaves = {path: named[path] for path in paths if path in named}
    require_valid_chunks(footer, range(footer.num_row_groups), list(leaves.values()))
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return [
        {path: group.column(leaf) for path, leaf in leaves.items()}
        for group in groups
        if group.num_rows
    ]


_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def hash_paths(paths: pl.Series) -> Hashes:
    """Hashes of decoded paths as in the filters. Memory: four times the paths' bytes."""
    encoded = encode_paths(paths).rechunk().to_arrow()
    text = pa.chunked_array([encoded]).combine_chunks().cast(pa.large_binary())
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64, len(text) + 1, text.offset * 8)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return xxh64(raw, ends[:-1], np.diff(ends))


def xxh64(data: npt.NDArray[np.uint8], starts: npt.ArrayLike, lengths: npt.ArrayLike) -> Hashes:
    """XXH64 (seed 0) of many slices of `data`."""
    size = np.asarray(lengths, np.int64)
    at = np.asarray(starts, np.int64).copy()
    padded = np.concatenate([np.asarray(data, np.uint8), np.zeros(8, np.uint8)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 8)

    def word(rows: npt.NDArray[np.int64], offset: int = 0) -> Hashes:
        return windows[at[rows] + offset].view("<u8").reshape(-1).astype(np.uint64)

    with np.errstate(over="ignore"):
        found = np.full(len(size), _P5, np.uint64)
        left = size.copy()
        rows = np.flatnonzero(left >= 32)
        lanes = np.empty((4, len(size)), np.uint64)
        lanes[0], lanes[1], lanes[2], lanes[3] = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        long = rows
        while len(rows):
            for lane in range(4):
                lanes[lane, rows] = _round(lanes[lane, rows], word(rows, 8 * lane))
            at[rows] += 32
            left[rows] -= 32
            rows = rows[left[rows] >= 32]
        if len(long):
            a, b, c, d = (lanes[lane, long] for lane in range(4))
            merged = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
            for lane in (a, b, c, d):
                merged = (merged ^ _round(np.uint64(0), lane)) * _P1 + _P4
            found[long] = merged
        found += size.astype(np.uint64)
        while len(rows := np.flatnonzero(left >= 8)):
            mixed = found[rows] ^ _round(np.uint64(0), word(rows))
            found[rows] = _rotate(mixed, 27) * _P1 + _P4
            at[rows] += 8
            left[rows] -= 8
        rows = np.flatnonzero(left >= 4)
        mixed = found[rows] ^ ((word(rows) & np.uint64(0xFFFFFFFF)) * _P1)
        found[rows] = _rotate(mixed, 23) * _P2 + _P3
        at[rows] += 4
        left[rows] -= 4
        while len(rows := np.flatnonzero(left > 0)):
            mixed = found[rows] ^ (padded[at[rows]].astype(np.uint64) * _P5)
            found[rows] = _rotate(mixed, 11) * _P1
            at[rows] += 1
            left[rows] -= 1
        found = (found ^ (found >> np.uint64(33))) * _P2
        found = (found ^ (found >> np.uint64(29))) * _P3
        return found ^ (found >> np.uint64(32))


def _round(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    return _rotate(lane + word * _P2, 31) * _P1


def _rotate(value: Hashes, bits: int) -> Hashes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
