"""Replay: action tables in, state out. Pure; independent of paths, stores and formats.

The last add or remove of a logical file, in the order (version, position), wins: an add clears the
tombstone and a remove clears the file. A state consists of layers, oldest first. A layer has one
row per logical file, and a row is valid unless a later layer contains the same file. A new commit
is a new, small layer, and the checkpoint below is never rewritten.

Source: Delta protocol, Action Reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.model.reconcile import last_wins

_MERGE_RATIO = 2


def reconcile_files(files: pl.DataFrame) -> pl.DataFrame:
    """Keep the last action of each logical file."""
    key = [c for c in actions.KEY if c in files.columns]
    return last_wins(files, key)


@dataclass(frozen=True)
class Layers:
    """Reconciled file actions, oldest layer first; each layer has one row per logical file."""

    frames: tuple[pl.DataFrame, ...] = ()

    def push(self, files: pl.DataFrame) -> Layers:
        """Add newer actions; small layers are merged so that their number stays logarithmic."""
        if not files.height:
            return self
        frames = [*self.frames, reconcile_files(files)]
        while len(frames) > 1 and frames[-1].height * _MERGE_RATIO >= frames[-2].height:
            newer, older = frames.pop(), frames.pop()
            frames.append(reconcile_files(actions.concat((older, newer))))
        return Layers(tuple(frames))

    def keys(self, above: int = -1) -> pl.DataFrame:
        """(path, dvId) of every row in the layers above index `above`."""
        return _keys(self.frames[above + 1 :])

    def live(self, kind: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Rows of `kind` that no later layer overrides, oldest layer first."""
        return actions.concat(
            exclude(_rows(frame, kind, columns), self.keys(index))
            for index, frame in enumerate(self.frames)
        )

    @property
    def height(self) -> int:
        """Number of rows in all layers."""
        return sum(frame.height for frame in self.frames)


def _rows(frame: pl.DataFrame, kind: str, columns: Sequence[str] | None) -> pl.DataFrame:
    there = frame["actionType"] == kind
    if columns is not None:
        kept = {*columns, *actions.KEY}
        frame = frame.select(c for c in frame.columns if c in kept)
    return frame.filter(there)


def _keys(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    columns = [actions.conform(frame, actions.KEY) for frame in frames if frame.height]
    if not columns:
        return actions.empty(actions.KEY)
    return pl.concat(columns) if len(columns) > 1 else columns[0]


def exclude(files: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Rows of `files` whose (path, dvId) is not in `keys`, in order."""
    if not keys.height or not files.height:
        return files
    # Most paths are not in `keys`, which one hash per row decides.
    suspect = files["path"].is_in(keys["path"].implode())
    if not suspect.any():
        return files
    key = list(actions.KEY)
    suspects = actions.conform(files.filter(suspect), key).with_row_index("__row")
    spared = suspects.join(keys, on=key, how="anti", nulls_equal=True)
    if not spared.height:
        return files.filter(~suspect)
    keep = (~suspect).scatter(suspect.arg_true().gather(spared["__row"]), True)
    return files.filter(keep)


def last_of(meta: pl.DataFrame, kind: str) -> pl.DataFrame:
    """The last row of one action type (protocol, metaData): zero rows or one."""
    return actions.of_type(meta, kind)[-1:]


def _last_by(meta: pl.DataFrame, kind: str, key: str) -> pl.DataFrame:
    """The last row of `kind` for each value of `key`, in order."""
    rows = actions.of_type(meta, kind)
    if not rows.height or key not in rows.columns:
        return rows.clear()
    if rows.height == 1:
        return rows
    return rows.unique(subset=[key], keep="last", maintain_order=True)


def live_domains(meta: pl.DataFrame) -> pl.DataFrame:
    """The last domainMetadata of each domain, without those that were removed."""
    rows = _last_by(meta, "domainMetadata", "domain")
    if "domainRemoved" not in rows.columns:
        return rows
    return rows.filter(~pl.col("domainRemoved").fill_null(False))


def is_expired(minimum_ms: int | None) -> pl.Expr:
    """Whether a transaction identifier has no time, or one up to `minimum_ms` (None: never)."""
    if minimum_ms is None:
        return pl.lit(value=False)
    return (pl.col("lastUpdated") <= minimum_ms).fill_null(value=True)


def retained_tombstones(removes: pl.DataFrame, minimum_ms: int | None) -> pl.DataFrame:
    """Tombstones with ``deletionTimestamp`` (missing: 0) greater than `minimum_ms` (None: all)."""
    if minimum_ms is None or not removes.height:
        return removes
    if "deletionTimestamp" not in removes.columns:
        return removes if minimum_ms < 0 else removes.clear()
    return removes.filter(pl.col("deletionTimestamp").fill_null(0) > minimum_ms)


def reconcile_meta(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Keep the last protocol, metaData, and txn, domainMetadata (removed ones hide older ones) and
    mergeskip of each key, from rows in ascending order.
    """
    meta = actions.concat(parts)
    return actions.concat(
        [
            last_of(meta, "protocol"),
            last_of(meta, "metaData"),
            _last_by(meta, "domainMetadata", "domain"),
            _last_by(meta, "txn", "appId"),
            _last_by(meta, "mergeskip", "path"),
        ]
    )


def with_path_texts(files: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    """File actions with the texts of `State.path_texts`, if there are any."""
    if not texts.height or not files.height:
        return files
    bare = files.drop(PATH_TEXT, strict=False)
    return bare.join(texts, on="path", how="left", maintain_order="left")
