"""What a V2 manifest records of each sidecar, so that a later checkpoint may keep the sidecar
without reading its rows: how many actions it holds, their digest, and where to ask for a path.

The record stands in the sidecar action's ``tags`` under ``lakelog.fingerprint``. The question
whether a path may be in a sidecar is answered by Parquet's own split-block Bloom filters over
``add.path`` and ``remove.path``, which the sidecar carries: XXH64 with seed 0 over the UTF-8 bytes
of the path as it is written (percent-encoded), about ten bits a path, one in a hundred false hits
at most. They are read here rather than by Arrow, which only writes them. Parquet protects them by
no checksum, so the fingerprint records one of their bytes; as that depends on every path, it also
binds the record to the file's content.

A sidecar without a fingerprint, or one of another format version, was written by somebody else,
and nothing is known of it.

Source: Parquet format, Bloom Filter; xxHash, XXH64; Delta protocol, Sidecar File Information.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import contract
from lakelog.errors import LakelogError, MalformedLogError, NotFoundError
from lakelog.formats.base import CheckpointPlan, SidecarFile
from lakelog.formats.delta.paths import encode_paths
from lakelog.storage import LogStore

FINGERPRINT_TAG = "lakelog.fingerprint"
"""Key of a fingerprint among the tags of a sidecar action."""

FORMAT = 1
"""Version of the record, of `encode_paths`' spelling, and of what a digest is taken over."""

_FILTERED = ("add.path", "remove.path")
_FALSE_HITS = 0.01
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


@dataclass(frozen=True)
class Fingerprint:
    """What the manifest records of one sidecar.

    Attributes:
        adds: Live files in it.
        removes: Tombstones in it.
        digest: Digest of its rows, as text.
        shape: `shape_of` the plan that it was written under.
        filters: Checksum of its path filters; empty where it has none.
    """

    adds: int
    removes: int
    digest: str
    shape: str
    filters: str = ""

    def to_tags(self) -> dict[str, str]:
        """The tags of the sidecar action."""
        body = {"format": FORMAT, **vars(self)}
        return {FINGERPRINT_TAG: orjson.dumps(body).decode()}

    @staticmethod
    def of_tags(tags: Mapping[str, str | None] | None) -> Fingerprint | None:
        """The fingerprint among the tags of a sidecar action; None where there is none that this
        version understands.
        """
        text = (tags or {}).get(FINGERPRINT_TAG)
        try:
            body = orjson.loads(text or "")
            if body.pop("format") != FORMAT:
                return None
            found = Fingerprint(**body)
        except (ValueError, TypeError, AttributeError, KeyError):
            return None
        counts = (found.adds, found.removes)
        texts = (found.digest, found.shape, found.filters)
        sound = all(type(n) is int and n >= 0 for n in counts)
        return found if sound and all(isinstance(text, str) for text in texts) else None


def shape_of(plan: CheckpointPlan) -> str:
    """What decides the Parquet schema of a plan's sidecars, as a short text.

    Sidecars of one checkpoint are read with one schema, so those of another shape are not kept: a
    column type changed, or statistics are typed now and were not.
    """
    decisive: list[object] = [plan.stats_as_json, plan.stats_as_struct]
    if plan.stats_as_struct:
        decisive += [contract.to_json(plan.schema), list(plan.partition_columns), plan.mapping]
    text = json.dumps(decisive, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def filter_options(row_group_rows: int) -> dict[str, Any]:
    """Keyword arguments for `pyarrow.parquet.ParquetWriter` that give a sidecar its path filters.

    Args:
        row_group_rows: Most rows of a row group; a smaller group's filter is folded to its size.

    Returns:
        Nothing where pyarrow cannot write filters (before 24): such a sidecar's paths are read
        when they are asked for.
    """
    if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter.__init__).parameters:
        return {}
    options = {"ndv": max(1, row_group_rows), "fpp": _FALSE_HITS}
    return {"bloom_filter_options": dict.fromkeys(_FILTERED, options)}


# --- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathFilter:
    """The Bloom filters of one sidecar.

    Attributes:
        blocks: For each filter, its blocks: UInt32, shape (blocks, 8).
        checksum: Checksum of their bytes in the file.
    """

    blocks: tuple[npt.NDArray[np.uint32], ...]
    checksum: str

    def may_hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """For each hash (`hash_paths`), whether the sidecar may hold the path; False is certain."""
        found = np.zeros(len(hashes), np.bool_)
        low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        high = hashes >> np.uint64(32)
        bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
        for blocks in self.blocks:
            rows = ((high * np.uint64(len(blocks))) >> np.uint64(32)).astype(np.int64)
            found |= ((blocks[rows] & bits) == bits).all(axis=1)
        return found


@dataclass(frozen=True)
class Inspection:
    """What a sidecar says of itself without its rows being read.

    Attributes:
        adds: Live files by the footer; None where it does not say.
        removes: Tombstones by the footer; None where it does not say.
        rows: Rows by the footer.
        last_deletion_ms: An upper bound of the tombstones' ``deletionTimestamp`` by the footer;
            None where it does not say.
        schema: Its Arrow schema.
        filter: Its path filters; None where it has none, or not of all row groups.
    """

    adds: int | None
    removes: int | None
    rows: int
    last_deletion_ms: int | None
    schema: pa.Schema
    filter: PathFilter | None


def inspect_sidecar(store: LogStore, path: str, size_bytes: int | None = None) -> Inspection:
    """Read a sidecar's footer and filters.

    Args:
        store: Store of the table.
        path: The sidecar, relative to the table root.
        size_bytes: Its length, where it is known from the store itself.

    Raises:
        MalformedLogError: It is gone, or no Parquet.
        UnavailableError: The store failed.

    Memory: the footer, and some ten bits a path.
    """
    with _opened(store, path, size_bytes) as (source, file):
        footer = file.metadata
        adds, _ = _statistics(footer, "add.path")
        removes, _ = _statistics(footer, "remove.path")
        _, last = _statistics(footer, "remove.deletionTimestamp")
        return Inspection(
            adds, removes, footer.num_rows, last, file.schema_arrow, _read_filter(source, footer)
        )


def take_fingerprint(store: LogStore, file: SidecarFile, digest: str, shape: str) -> Fingerprint:
    """The fingerprint of a sidecar that was just written, for its manifest to record.

    Args:
        store: Store of the table.
        file: The sidecar.
        digest: Digest of the rows that were written to it.
        shape: `shape_of` the plan.

    Raises:
        MalformedLogError: It cannot be read, or its footer does not count its actions.
        UnavailableError: The store failed.
    """
    found = inspect_sidecar(store, file.path, file.size_bytes)
    if found.adds is None or found.removes is None or found.adds + found.removes != found.rows:
        raise MalformedLogError(
            "the footer of a new sidecar does not count its actions",
            path=file.path,
            expected=f"{found.rows} actions",
            found=f"{found.adds} adds and {found.removes} removes",
        )
    checksum = found.filter.checksum if found.filter is not None else ""
    return Fingerprint(found.adds, found.removes, digest, shape, checksum)


@contextmanager
def _opened(
    store: LogStore, path: str, size_bytes: int | None
) -> Iterator[tuple[Any, pq.ParquetFile]]:
    try:
        with store.open(path, size_bytes) as source:
            yield source, pq.ParquetFile(source)
    except NotFoundError as cause:
        raise MalformedLogError("a sidecar of the checkpoint is gone", path=path) from cause
    except LakelogError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as cause:
        raise MalformedLogError(
            f"a sidecar cannot be read: {str(cause).splitlines()[0][:200]}",
            path=path,
            expected="whole Parquet",
        ) from cause


def _column(group: pq.RowGroupMetaData, path: str) -> pq.ColumnChunkMetaData | None:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == path:
            return column
    return None


def _statistics(footer: pq.FileMetaData, path: str) -> tuple[int | None, int | None]:
    """How many values a column has that are not null, and their maximum, by the footer; 0 values
    where the column is not there.
    """
    values = 0
    greatest: int | None = None
    bounded = True
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunk = _column(group, path) if group.num_rows else None
        if chunk is None:
            continue
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None, None
        present = chunk.num_values - statistics.null_count
        values += present
        if present and statistics.has_min_max and isinstance(statistics.max, int):
            greatest = statistics.max if greatest is None else max(greatest, statistics.max)
        elif present:
            bounded = False
    return values, greatest if bounded else None


def _read_filter(source: Any, footer: pq.FileMetaData) -> PathFilter | None:
    blocks: list[npt.NDArray[np.uint32]] = []
    checksum = hashlib.blake2b(digest_size=16)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for path in _FILTERED:
            chunk = _column(group, path)
            if chunk is None:
                continue
            offset = getattr(chunk, "bloom_filter_offset", None)
            length = getattr(chunk, "bloom_filter_length", None)
            if offset is None or length is None:
                return None
            source.seek(offset)
            data = source.read(length)
            found = _parse_filter(data)
            if found is None:
                return None
            blocks.append(found)
            checksum.update(data)
    return PathFilter(tuple(blocks), checksum.hexdigest())


def _parse_filter(data: bytes) -> npt.NDArray[np.uint32] | None:
    """The blocks of a filter; None where it is not one of the only kind that there is."""
    size, shift, position = 0, 0, 1
    while position < len(data) and shift < 35:
        byte = data[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    size >>= 1  # zigzag; never negative
    start = position + len(_HEADER_END)
    if data[:1] != bytes([_HEADER_START]) or data[position:start] != _HEADER_END:
        return None
    if size <= 0 or size % (4 * _BLOCK_WORDS) or len(data) != start + size:
        return None
    return np.frombuffer(data, "<u4", offset=start).reshape(-1, _BLOCK_WORDS)


# --- hashing ---------------------------------------------------------------------------------

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
    """The hashes of decoded paths under which a sidecar's filters know them.

    Args:
        paths: Decoded paths (String), none null.

    Returns:
        UInt64, in the order of `paths`.

    Memory: some four times the paths' bytes.
    """
    encoded = encode_paths(paths).rechunk().to_arrow()
    text = pa.chunked_array([encoded]).combine_chunks().cast(pa.large_binary())
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64, len(text) + 1, text.offset * 8)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return xxh64(raw, ends[:-1], np.diff(ends))


def xxh64(data: npt.NDArray[np.uint8], starts: npt.ArrayLike, lengths: npt.ArrayLike) -> Hashes:
    """XXH64 with seed 0 of many slices of `data` at once.

    Args:
        data: Bytes.
        starts: First byte of each slice.
        lengths: Length of each slice, in bytes.

    Returns:
        UInt64, one a slice.

    Source: xxHash, XXH64 algorithm description.
    """
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
