"""How many files a checkpoint holds and how large they are, so that an update need not read them.

A tally keeps 24 bytes per file: two hashes of (path, dvId) with different seeds, and the size. The
layers above the checkpoint are looked up in it, and what they override is taken off. Two files
that agree in both hashes would be counted as one; among a billion files the odds of that are below
one in 10^19.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from lakelog.model import actions

_SEEDS = {"one": 0x5EED, "two": 0xD1CE}


@dataclass(frozen=True)
class Tally:
    """The live files of a checkpoint, by hash.

    Attributes:
        hashes: Columns ``one``, ``two`` (UInt64) and ``size`` (Int64), one row per file.
        paths_repeat: Whether two files may have one path; see `may_repeat`.
    """

    hashes: pl.DataFrame
    paths_repeat: bool

    @staticmethod
    def of(batches: Iterable[pl.DataFrame]) -> Tally:
        """Tally batches of live files; columns path, size and, where there are any, dvId."""
        frames: list[pl.DataFrame] = []
        paths: list[pl.Series] = []
        for batch in batches:
            sizes = actions.conform(batch, ("size",)).to_series()
            paths.append(hash_paths(batch))
            frames.append(pl.DataFrame([*_hashes(batch, paths[-1]), sizes]))
        if not frames:
            return Tally(pl.DataFrame([*_hashes(_NOTHING), _NOTHING["size"]]), False)
        return Tally(pl.concat(frames), may_repeat(paths))

    def without(self, keys: pl.DataFrame) -> tuple[int, int]:
        """Files and their bytes, without those in `keys`."""
        hashed = pl.DataFrame(_hashes(keys)).unique()
        # One hash settles nearly every row; the few that are left are looked at twice.
        suspects = self.hashes.filter(self.hashes["one"].is_in(hashed["one"].implode()))
        hidden = suspects.join(hashed, on=list(_SEEDS), how="semi")
        files = self.hashes.height - hidden.height
        return files, sum_sizes(self.hashes) - sum_sizes(hidden)

    def holds_any(self, keys: pl.DataFrame) -> bool:
        """Whether it may hold a file of `keys`; False is certain."""
        return bool(self.hashes["one"].is_in(hash_identities(keys).implode()).any())


def may_meet(hashes: Sequence[pl.Series], others: pl.Series) -> bool:
    """Whether one of the files hashed (`hash_identities`) may be among `others`, hashed alike.
    False is certain.
    """
    if not hashes or not len(others):
        return False
    return bool(pl.concat(hashes).is_in(others.implode()).any())


def hash_paths(files: pl.DataFrame) -> pl.Series:
    """Hashes of the paths, in order (UInt64)."""
    return files["path"].hash(_SEEDS["one"])


def hash_identities(
    files: pl.DataFrame, paths: pl.Series | None = None, seed: int = _SEEDS["one"]
) -> pl.Series:
    """Hashes of (path, dvId), in order (UInt64)."""
    hashes = files["path"].hash(seed) if paths is None else paths
    if "dvId" in files.columns and files["dvId"].null_count() < files.height:
        vectors = files["dvId"]
        hashes = hashes ^ vectors.hash(seed + 1) * vectors.is_not_null().cast(pl.UInt64)
    return hashes


def may_repeat(hashes: Sequence[pl.Series]) -> bool:
    """Whether two of the paths hashed may be one: two deletion vectors of a file, damage, or a
    clash of hashes. False is certain.
    """
    if not hashes:
        return False
    ordered = np.sort(pl.concat(hashes).to_numpy())  # of a million, a few milliseconds
    return bool((ordered[1:] == ordered[:-1]).any())


def sum_sizes(files: pl.DataFrame) -> int:
    """Bytes in `files`, exact even where they exceed 64 bits; a missing size counts as 0."""
    sizes = actions.conform(files, ("size",)).to_series()
    return int(sizes.cast(pl.Int128).sum())


_NOTHING = actions.empty(("path", "size"))


def _hashes(files: pl.DataFrame, paths: pl.Series | None = None) -> list[pl.Series]:
    one = hash_identities(files, paths).alias("one")
    return [one, hash_identities(files, seed=_SEEDS["two"]).alias("two")]
