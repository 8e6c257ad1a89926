"""`Digest`: action counts per type and an order-independent hash.

Two collections of actions are equal, whatever their order, batches and all-null columns, if their
digests are equal: each row has a 128-bit hash of two lanes, summed modulo 2^64 per action type.
Different collections agree with a probability of about 2^-128; this detects damage and mistakes,
not attacks.

- Values are hashed with a seed of their column: texts and numbers by Polars, floats by their bits,
  lists with positions, maps as a sum over entries, structs by field. A null counts as nothing.
- The values' hashes are multiplied by an odd number of the column, summed, and mixed with a seed of
  the action type (the finaliser of MurmurHash3).

A digest is stored with its algorithm's name (`algorithm`), because Polars may change its hash;
digests of different algorithms are not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import orjson
import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.model import actions, contract

_LANES = (0, 1)
_LANE_BITS = 64
_LANE_MASK = (1 << _LANE_BITS) - 1
_STORED_AS_THEY_ARE = frozenset((pl.String, pl.Binary, pl.Boolean))  # in addition to integers

_UNCOUNTED = frozenset(("actionType", "dataChange", "dvId"))
"""Columns that are never digested: digests are per type, a state's actions have no ``dataChange``
(Delta protocol, Action Reconciliation), and ``dvId`` is derived from others.
"""

_ORIGIN = frozenset(("version", "position", "timestamp"))
_REMOVE_DROPS = frozenset(("stats", "tags"))

_Words = np.ndarray[tuple[int], np.dtype[np.uint64]]
_Lanes = tuple[_Words, _Words]
_Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]


class Difference(NamedTuple):
    """An action type in which digests differ, with both counts; equal counts mean other content."""

    action_type: str
    expected: int
    found: int


@dataclass(frozen=True)
class Digest:
    """Counts and 128-bit hash sums (two 64-bit lanes) by action type."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of actions of all types."""
        return sum(self.counts.values())

    def __add__(self, other: Digest) -> Digest:
        """The digest of both collections together."""
        return self._combine(other, 1)

    def __sub__(self, other: Digest) -> Digest:
        """The digest of the rest after removing `other`, a part of this collection."""
        return self._combine(other, -1)

    def _combine(self, other: Digest, sign: int) -> Digest:
        counts: dict[str, int] = {}
        sums: dict[str, int] = {}
        for kind in {**self.counts, **other.counts}:
            count = self.counts.get(kind, 0) + sign * other.counts.get(kind, 0)
            total = _add_lanes(self.sums.get(kind, 0), other.sums.get(kind, 0), sign)
            if count or total:
                counts[kind], sums[kind] = count, total
        return Digest(counts, sums)

    def differences(self, other: Digest) -> list[Difference]:
        """The action types in which `other` differs from this, the expected digest."""
        kinds = sorted({**self.counts, **other.counts})
        return [
            Difference(kind, self.counts.get(kind, 0), other.counts.get(kind, 0))
            for kind in kinds
            if self.counts.get(kind, 0) != other.counts.get(kind, 0)
            or self.sums.get(kind, 0) != other.sums.get(kind, 0)
        ]

    def only(self, kinds: Iterable[str]) -> Digest:
        """The digest of some action types."""
        kept = [kind for kind in self.counts if kind in frozenset(kinds)]
        return Digest({k: self.counts[k] for k in kept}, {k: self.sums[k] for k in kept})

    def to_text(self) -> str:
        """As JSON for storage: ``{"algorithm": …, "<type>": [count, "<32 hex digits>"], …}``."""
        body: dict[str, Any] = {"algorithm": algorithm()}
        for kind in sorted(self.counts):
            body[kind] = [self.counts[kind], f"{self.sums[kind]:032x}"]
        return orjson.dumps(body).decode()

    @staticmethod
    def of_text(text: str | bytes) -> Digest:
        """A stored digest."""
        try:
            body = orjson.loads(text)
            made_by = body.pop("algorithm")
            counts = {kind: int(pair[0]) for kind, pair in body.items()}
            sums = {kind: int(pair[1], 16) for kind, pair in body.items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as cause:
            raise InvalidInputError(
                "the text is not a valid digest",
                expected="JSON from Digest.to_text",
                found=text[:200],
            ) from cause
        if made_by != algorithm():
            raise InvalidInputError(
                "the digest was computed with another algorithm",
                expected=algorithm(),
                found=made_by,
            )
        return Digest(counts, sums)


@cache
def algorithm() -> str:
    """Name of the algorithm, with hashes of known values, which depend on Polars' version."""
    texts = ["x" * n for n in (*range(40), 64, 128, 129, 240, 241, 1024, 1025, 5000)]
    numbers = [*range(-3, 4), 255, 1 << 31, -(1 << 31), 1 << 62, -(1 << 63)]
    values = [
        pl.Series([None, "", "é", *texts], dtype=pl.String),
        pl.Series([None, *numbers], dtype=pl.Int64),
        pl.Series([None, *numbers[:8]], dtype=pl.Int32),
        pl.Series([None, True, False], dtype=pl.Boolean),
    ]
    words = [lane.tobytes() for s in values for lane in _hash([s.alias("known")])[0]]
    return f"lakelog-1-{hashlib.blake2b(b''.join(words), digest_size=8).hexdigest()}"


@cache
def kept_columns(kind: str) -> frozenset[str]:
    """Columns digested by default: not the origin, ``extra``, which some layouts omit, and
    statistics and tags of removes (Delta protocol, Checkpoints).
    """
    dropped = _UNCOUNTED | _ORIGIN | {"extra"}
    return frozenset(actions.schema()) - (dropped | _REMOVE_DROPS if kind == "remove" else dropped)


def digest(
    frame: pl.DataFrame, columns: Mapping[str, Sequence[str]] | Sequence[str] | None = None
) -> Digest:
    """The digest of some actions. Memory: about 40 bytes per row."""
    if not frame.height:
        return Digest()
    kinds = frame["actionType"]
    first = kinds[0]
    if bool((kinds == first).all()):
        groups = [(first, frame)]
    else:
        groups = [(kind, frame.filter(kinds == kind)) for kind in kinds.unique().sort().to_list()]
    counts: dict[str, int] = {}
    sums: dict[str, int] = {}
    for kind, rows in groups:
        wanted = columns.get(kind) if isinstance(columns, Mapping) else columns
        counts[kind] = rows.height
        sums[kind] = _sum_of(rows, kind, kept_columns(kind) if wanted is None else wanted)
    return Digest(counts, sums)


def row_hashes(
    frame: pl.DataFrame, kind: str, columns: Iterable[str] | None = None
) -> pl.DataFrame:
    """The two lanes of each row's hash, ``high`` and ``low`` (UInt64), in order."""
    high, low = _lanes(frame, kind, kept_columns(kind) if columns is None else columns)
    return pl.DataFrame({"high": pl.Series(high), "low": pl.Series(low)})


def _sum_of(rows: pl.DataFrame, kind: str, columns: Iterable[str]) -> int:
    total = 0
    for words in _lanes(rows, kind, columns):
        total = total << _LANE_BITS | int(np.add.reduce(words, dtype=np.uint64))
    return total


def _add_lanes(one: int, other: int, sign: int) -> int:
    total = 0
    for shift in (_LANE_BITS, 0):
        a, b = one >> shift & _LANE_MASK, other >> shift & _LANE_MASK
        total = total << _LANE_BITS | (a + sign * b & _LANE_MASK)
    return total


def _lanes(rows: pl.DataFrame, kind: str, columns: Iterable[str]) -> _Lanes:
    counted = frozenset(columns) - _UNCOUNTED
    words = [np.full(rows.height, _seed(f"type {kind}", lane), np.uint64) for lane in _LANES]
    leaves: list[pl.Series] = []
    for series in rows.get_columns():
        if series.name in counted:
            leaves += _leaves(_conformed(series, kind))
    for leaf, lanes in zip(leaves, _hash(leaves, _empty_is_absent(kind)), strict=True):
        for lane, hashes in enumerate(lanes):
            # Seeds of two columns may cancel each other out; two odd factors do not.
            product = hashes * np.uint64(_seed(f"factor {leaf.name}", lane) | 1)
            product ^= product >> np.uint64(32)
            words[lane] += product
    return _mix(words[0]), _mix(words[1])


def _leaves(series: pl.Series) -> list[pl.Series]:
    """The column, or a struct's fields under dotted names, without those of nulls alone."""
    if series.null_count() == series.len():
        return []
    if isinstance(series.dtype, pl.Struct):
        children = series.struct.unnest().get_columns()
        return [leaf for c in children for leaf in _leaves(c.alias(f"{series.name}.{c.name}"))]
    return [series]


def _hash(leaves: Sequence[pl.Series], absent: Collection[str] = ()) -> list[_Lanes]:
    """Hashes in both lanes; 0 for nulls, and for empty collections of `absent` columns."""
    flat = [n for n, s in enumerate(leaves) if not (s.dtype.is_nested() or s.dtype.is_float())]
    physical = pl.DataFrame([_physical(leaves[n]).alias(str(n)) for n in flat])
    # In one query, because a query costs more than hashing a few thousand rows.
    hashed = physical.select(
        pl.col(str(n)).hash(_seed(leaves[n].name, lane)).alias(f"{n} {lane}")
        for n in flat
        for lane in _LANES
    )
    found: list[_Lanes] = []
    for n, series in enumerate(leaves):
        if series.dtype.is_float():
            high, low = (_hash_floats(series, _seed(series.name, lane)) for lane in _LANES)
        elif series.dtype.is_nested():
            high, low = _hash_nested(series, empty_is_null=series.name in absent)
        else:
            high, low = (hashed[f"{n} {lane}"].to_numpy() for lane in _LANES)
        if series.null_count():
            there = series.is_not_null().cast(pl.UInt64).to_numpy()
            high, low = high * there, low * there
        found.append((high, low))
    return found


def _physical(series: pl.Series) -> pl.Series:
    """The physical values, without a query if the type is already physical."""
    if series.dtype.is_integer() or series.dtype in _STORED_AS_THEY_ARE:
        return series
    return series.to_physical()


def _hash_floats(series: pl.Series, seed: int) -> _Words:
    """Floats by their bits, because Polars treats 0.0 and -0.0 as equal."""
    bits = np.uint64 if series.dtype == pl.Float64 else np.uint32
    return _mix(series.fill_null(0).to_numpy().view(bits).astype(np.uint64) + np.uint64(seed))


def _hash_nested(series: pl.Series, *, empty_is_null: bool) -> _Lanes:
    """The hash of each list or map: the sum over its elements, a list's with their positions."""
    elements, ends, lengths = _elements(series)
    is_map = isinstance(series.dtype, pl.Map)
    leaves = [leaf for child in elements for leaf in _leaves(child)]
    hashes = _hash(leaves)
    found: list[_Words] = []
    for lane in _LANES:
        # A null element is an element.
        words = np.full(len(elements[0]), _seed(f"element {series.name}", lane), np.uint64)
        for leaf, lanes in zip(leaves, hashes, strict=True):
            words += lanes[lane] * np.uint64(_seed(f"factor {leaf.name}", lane) | 1)
        if not is_map:
            positions = np.arange(len(words)) - np.repeat(ends - lengths, lengths)
            words += _mix(positions.astype(np.uint64) + np.uint64(1))
        running = np.zeros(len(words) + 1, np.uint64)
        np.cumsum(_mix(words), out=running[1:])
        # An empty collection differs from null, unless the contract says otherwise.
        sums = running[ends] - running[ends - lengths] + np.uint64(_seed(series.name, lane))
        hashed = _mix(sums)
        if empty_is_null:
            hashed *= lengths > 0
        found.append(hashed)
    return found[0], found[1]


def _elements(series: pl.Series) -> tuple[list[pl.Series], _Offsets, _Offsets]:
    """The elements of all rows, each row's end, and its count."""
    dtype = series.dtype
    if isinstance(dtype, pl.Map):
        # Through Arrow, because a query costs more than all other steps for a few thousand rows.
        array = series.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
        offsets = pl.Series(array.offsets).to_numpy().astype(np.int64)
        start, end = int(offsets[0]), int(offsets[-1])
        children = {"key": array.keys, "value": array.items}
        elements = [
            pl.Series(f"{series.name}.{name}", child.slice(start, end - start))
            for name, child in children.items()
        ]
        return elements, offsets[1:] - start, np.diff(offsets)
    lists = series.arr.to_list() if isinstance(dtype, pl.Array) else series
    lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    elements = [lists.explode(empty_as_null=False, keep_nulls=False).alias(series.name)]
    return elements, np.cumsum(lengths), lengths


def _conformed(series: pl.Series, kind: str) -> pl.Series:
    """The column in the contract's dtype, with null for values that count as absent."""
    full = actions.schema()
    if series.name not in full:
        return series
    if series.dtype != full[series.name]:
        series = series.cast(full[series.name])
    absent = _absent(kind).get(series.name)
    if absent is None or series.dtype.is_nested():
        return series
    is_null = series == absent[0]
    if not is_null.any():
        return series
    return series.to_frame().select(pl.when(~is_null).then(series.name)).to_series()


@cache
def _empty_is_absent(kind: str) -> frozenset[str]:
    """Columns of an action type whose empty collections the contract treats as absent."""
    return frozenset(name for name, (value,) in _absent(kind).items() if value in ({}, []))


@cache
def _absent(kind: str) -> dict[str, tuple[Any]]:
    """Value that represents an absent one in the contract, by column of an action type."""
    found: dict[str, tuple[Any]] = {}
    for column in contract.load("actions").fields:
        written = column.metadata.get("written", {})
        if kind in written:
            found[column.name] = (written[kind],)
    return found


@cache
def _seed(name: str, lane: int) -> int:
    """A seed of 64 bits for a name in a lane, never 0."""
    raw = hashlib.blake2b(f"{lane} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(raw, "little") or 1


def _mix(words: _Words) -> _Words:
    """The finaliser of MurmurHash3, in place."""
    words ^= words >> np.uint64(33)
    words *= np.uint64(0xFF51AFD7ED558CCD)
    words ^= words >> np.uint64(33)
    words *= np.uint64(0xC4CEB9FE1A85EC53)
    words ^= words >> np.uint64(33)
    return words
