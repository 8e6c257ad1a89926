"""Files that a checkpoint both adds and removes: determines which action is valid.

A checkpoint is reconciled: it contains each logical file once (Delta protocol, Action
Reconciliation). Some writers leave an add and a remove of one file, for opposite reasons:

- The Java Kernel (4.4.0) keeps every remove of the commits that it reads, and an add only if no
  later remove has the same URI. So if both actions have the same path text, the add is newer.
- A writer that compares paths as text does not match ``p=é`` with ``p=%C3%A9``. If the texts
  differ, either action may be the newer one.

The commits at and below the checkpoint decide if they contain the file, because they are the
table's history. Without them, only the first case is decided, and only in a checkpoint of one file:
otherwise a part or a sidecar of another version could be among its files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from lakelog.dialects.log_content import STRUCT_STATISTICS, Checkpoint, CommitFile, statistics_text
from lakelog.errors import (
    CorruptionError,
    InvalidActionError,
    LakelogError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lakelog.log.replay import Layers, reconcile_files
from lakelog.log.segment import choose_segment
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.model.metadata import last_metadata

if TYPE_CHECKING:
    from lakelog.log.state import State

_KEY = list(actions.KEY)
_FIRST_COMMITS = 16


class ResolvedFiles(NamedTuple):
    """The valid actions of repeated files, as a layer above a checkpoint, and a note on them."""

    layers: Layers
    note: str


def repeat_error(checkpoint: Checkpoint, repeated: pl.DataFrame) -> InvalidActionError:
    """The error for a checkpoint that contains a logical file more than once."""
    path = repeated["path"][0]
    kinds = repeated.filter(repeated["path"] == path)["actionType"].unique()
    both = len(kinds) > 1
    return InvalidActionError(
        "the checkpoint contains an add and a remove of the same file"
        if both
        else "the checkpoint contains the same file twice, so it is not reconciled",
        path=checkpoint.paths[0],
        version=checkpoint.version,
        expected="each (path, dvId) once",
        found=path,
        hint="restore the commits that the checkpoint was made from, or an older checkpoint; "
        "then repair the table",
    )


def resolve_repeated_files(state: State) -> ResolvedFiles | None:
    """Decide the valid actions of repeated files; None if there are none, if they cannot be
    decided, or if older files give the whole version.
    """
    base = state.base
    assert base is not None
    if base.settled is None and state.log.dialect.reconciled_checkpoints:
        try:
            base.settled = _decide(state)
        except (CorruptionError, NotFoundError):
            return None
    return base.settled


def _decide(state: State) -> ResolvedFiles | None:
    base = state.base
    assert base is not None
    clashes = base.clashes
    if not clashes.height:
        return None
    one_file = base.checkpoint.layout == "classic"
    rows = _rows_of(state, clashes)
    adds = rows.filter(rows["actionType"] == "add")
    removes = rows.filter(rows["actionType"] == "remove")
    if adds.select(_KEY).is_duplicated().any():
        return None  # two adds of a file: a part was copied over another, whose rows are missing
    twice = removes.join(adds, on=_KEY, how="anti", nulls_equal=True)
    if twice.height and not one_file:
        return None
    alike = _spelled_alike(rows)
    if not _holds_all(alike, adds) and _can_be_replayed(state):
        return None  # other files may be wrong for the same reason, without a remove that shows it
    decided = _from_commits(state, adds.select(_KEY))
    left = adds.join(decided, on=_KEY, how="anti", nulls_equal=True)
    if left.height and not (one_file and _holds_all(alike, left)):
        return None
    # Both are removes, so the file is removed; the later one keeps its tombstone longer.
    latest = actions.conform(twice, ("deletionTimestamp",)).to_series().fill_null(0).arg_sort()
    from_base = [f.drop(PATH_TEXT) for f in (twice[latest], left)]
    kept = actions.concat([*from_base, decided])
    how = [
        f"{rows.height} by {source}"
        for rows, source in ((decided, "the commits"), (left, "the path's text"))
        if rows.height
    ]
    note = (
        f"the checkpoint {base.checkpoint.paths[0]} contains {clashes.height} files "
        f"more than once, such as {clashes['path'][0]}; the valid action was determined "
        f"({', '.join(how) or 'all were removed'}); write the checkpoint again with "
        "checkpoint()"
    )
    return ResolvedFiles(Layers().push(kept), note)


def _rows_of(state: State, keys: pl.DataFrame) -> pl.DataFrame:
    """The checkpoint's rows of some files, with all columns, and the text of their paths."""
    base = state.base
    assert base is not None
    columns = [c for c in actions.schema() if c not in ("dataChange", "timestamp")]
    if base.has_struct_statistics:
        columns.append(STRUCT_STATISTICS)
    frames = []
    for frame in base.reader.iter_files([*columns, PATH_TEXT]):
        near = frame.filter(frame["path"].is_in(keys["path"].implode()))
        near = near.with_columns(actions.conform(near, ("dvId",)))
        near = near.join(keys, on=_KEY, how="semi", nulls_equal=True)
        if near.height:
            if STRUCT_STATISTICS in near.columns:
                near = near.with_columns(statistics_text(near)).drop(STRUCT_STATISTICS)
            if PATH_TEXT not in near.columns:
                near = near.with_columns(pl.lit(None, pl.String).alias(PATH_TEXT))
            frames.append(near)
    return pl.concat(frames, how="diagonal_relaxed")


def _spelled_alike(rows: pl.DataFrame) -> pl.DataFrame:
    """(path, dvId) of files whose actions all have the same path text."""
    texts = rows.group_by(_KEY).agg(pl.col(PATH_TEXT).n_unique().alias("texts"))
    return texts.filter(pl.col("texts") == 1).select(_KEY)


def _holds_all(keys: pl.DataFrame, files: pl.DataFrame) -> bool:
    return not files.join(keys, on=_KEY, how="anti", nulls_equal=True).height


def _can_be_replayed(state: State) -> bool:
    """Whether older files rebuild the version without the checkpoint, according to the listing."""
    barred = (*state.excluded, state.segment.checkpoint)
    try:
        choose_segment(
            state.log.list_all(),
            state.version,
            table=state.log.table,
            excluded=tuple(c for c in barred if c is not None),
        )
    except LakelogError:
        return False
    return True


def _from_commits(state: State, keys: pl.DataFrame) -> pl.DataFrame:
    """The last action of each file in the contiguous commits up to the checkpoint, under known
    protocols only: a feature that was dropped may have given earlier commits another meaning.
    """
    base, log = state.base, state.log
    assert base is not None
    table = last_metadata(base.pair)
    below = {c.version: c for c in log.list_all().commits if c.version <= base.checkpoint.version}
    version = base.checkpoint.version
    found = actions.empty(("actionType", "version", *_KEY))
    is_same_table = False  # once the newest metaData has the id: a replaced table had another below
    known_from = 0  # commits from this version on are under known protocols
    protocols = actions.of_type(base.pair, "protocol")
    count = _FIRST_COMMITS
    while version in below and (keys.height or (found["version"] < known_from).any()):
        run: list[CommitFile] = []
        while version in below and len(run) < count:
            run.append(below[version])
            version -= 1
        try:
            log.check_protocols(protocols)
            piece = log.dialect.decode(log.store, run[::-1])
            protocols = actions.of_type(piece.meta, "protocol")
            log.check_protocols(protocols)
        except (CorruptionError, NotFoundError, UnsupportedFeatureError):
            break
        named = last_metadata(piece.meta)
        if table is None or not (is_same_table or named is None or named.id == table.id):
            break  # commits of another table, whose folder was written over
        is_same_table = is_same_table or named is not None
        if protocols.height:
            known_from = protocols.select(pl.col("version").min()).item()
        count *= 4
        if not piece.files.height:
            continue
        own = piece.files.with_columns(actions.conform(piece.files, ("dvId",)))
        last = reconcile_files(own.join(keys, on=_KEY, how="semi", nulls_equal=True))
        found = pl.concat([found, last], how="diagonal")
        keys = keys.join(last, on=_KEY, how="anti", nulls_equal=True)
    return found.filter(pl.col("version") >= known_from)
