"""Spark's Murmur3 hash of text columns, which assigns rows to the parts of a multi-part checkpoint.

It is MurmurHash3 x86_32, except at the end of a text: the last one to three bytes are mixed in one
by one, each sign-extended, instead of together. For a row of several columns, the hash of the
previous columns is the seed of the next, and a null leaves the seed unchanged.

Source: Delta protocol, Multi-part checkpoint; `Murmur3_x86_32.hashUnsafeBytes` and `Pmod` of
Apache Spark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

SEED = 42
"""Spark's initial seed, and the hash of a row of nulls."""

Words = npt.NDArray[np.uint32]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_WORD_BYTES = 4


def hash_columns(*columns: pl.Series) -> pl.Series:
    """Spark's ``hash(column, ...)`` of each row.

    >>> hash_columns(pl.Series(["Spark", None, ""])).to_list()
    [228093765, 42, 142593372]
    """
    hashes = np.full(columns[0].len(), SEED, np.uint32)
    for column in columns:
        _mix_in(column, hashes)
    return pl.Series("hash", hashes.view(np.int32))


def part_of(files: pl.DataFrame, parts: int, deletion_vectors: bool) -> pl.Series:
    """Number of the part of a multi-part checkpoint for each file action."""
    keys = [files["path"]]
    if deletion_vectors and "dvId" in files.columns:
        keys.append(files["dvId"])
    return (hash_columns(*keys).cast(pl.Int64) % parts).cast(pl.UInt32).alias("part")


def part_of_others(parts: int) -> int:
    """The part of the non-file actions: their path is null."""
    return SEED % parts


def _mix_in(texts: pl.Series, hashes: Words) -> None:
    """Replace each hash by that of its text, seeded with it, in place."""
    array = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.large_binary())
    _, offsets, buffer = array.buffers()
    if not len(array) or offsets is None:
        return
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    padded = np.concatenate([data, np.zeros(_WORD_BYTES, np.uint8)])
    lengths = np.diff(ends)
    # Longest first, so that rows with remaining words are always the first ones.
    order = np.argsort(-lengths, kind="stable")
    if texts.null_count():
        order = order[texts.is_not_null().to_numpy()[order]]
    at, left, found = ends[order], lengths[order], hashes[order]
    # A word may begin at any byte.
    words = np.ndarray((len(data) + 1,), np.dtype("<u4"), padded, strides=(1,))
    whole = left // _WORD_BYTES
    counts = np.bincount(whole) if len(whole) else np.zeros(1, np.int64)
    more = len(whole) - np.cumsum(counts)  # number of rows with more words than this
    for number, rows in enumerate(more[:-1]):
        found[:rows] = _mix_hash(found[:rows], words[at[:rows] + _WORD_BYTES * number])
    signed = padded.view(np.int8)
    tail = left % _WORD_BYTES
    for number in range(_WORD_BYTES - 1):
        rows = np.flatnonzero(tail > number)
        byte = signed[at[rows] + whole[rows] * _WORD_BYTES + number]
        found[rows] = _mix_hash(found[rows], byte.astype(np.int32).view(np.uint32))
    hashes[order] = _finish(found, left.astype(np.uint32))


def _mix_hash(hashes: Words, words: Words) -> Words:
    mixed = hashes ^ (_rotate(words * _C1, 15) * _C2)
    return _rotate(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: Words, lengths: Words) -> Words:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotate(values: Words, bits: int) -> Words:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
