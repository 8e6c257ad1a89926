"""Weighs a checkpoint against the commits, if replay gives another state.

A difference proves only that one side is damaged. The checkpoint is refuted only if a record of its
version, the version checksum or the pointer, agrees with replay where the checkpoint differs, no
record agrees with the checkpoint where replay differs, and the commits do not contradict
themselves.

Source: Delta protocol, Version Checksum File; Last Checkpoint File; Commit Provenance Information.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import polars as pl

from lakelog.dialects.commit_info import in_commit_timestamp, why_copied
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import Checkpoint, CommitInfo
from lakelog.errors import CorruptionError, LakelogError, NotFoundError
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.log.version_checksum import compare_checksum, contradicts_itself


def is_refuted(
    log: Log, checkpoint: Checkpoint, own: tuple[State, Digest], other: tuple[State, Digest]
) -> bool:
    """Whether the records of a version prove that its checkpoint is wrong, and not the replayed
    commits; each side is a state and the digest of its actions.
    """
    votes = [*_by_checksum(log, own[0], other[0]), *_by_pointer(log, checkpoint, own[1], other[1])]
    return bool(votes) and all(votes) and contradiction(other[0]) is None


def denial(log: Log, checkpoint: Checkpoint, replayed: State) -> str | None:
    """Why replayed commits must not replace a checkpoint that cannot be read: they contradict
    themselves, or all records of its version; None if they may. Raises the errors of replay.
    """
    if (found := contradiction(replayed)) is not None:
        return found
    snapshot = LogSnapshot(replayed)
    denied: list[str | None] = []
    recorded = log.dialect.version_checksum(log.store, replayed.version)
    if recorded is not None and not contradicts_itself(recorded):
        wrong = compare_checksum(snapshot, recorded).filter(~pl.col("agrees"))
        rows = wrong.select("field", "recorded", "found").rows()
        denied.append(
            "the checksum records {} {}, but replay returns {}".format(*rows[0]) if rows else None
        )
    live = _live_in_pointer(log, checkpoint)
    if live is not None:
        found = f"the pointer records {live:,} files, but replay returns {snapshot.num_files():,}"
        denied.append(None if live == snapshot.num_files() else found)
    return next(iter(denied), None) if None not in denied else None


def _live_in_pointer(log: Log, checkpoint: Checkpoint) -> int | None:
    try:
        recorded = log.dialect.pointer_counts(log.store.read(log.dialect.pointer_path), checkpoint)
    except (CorruptionError, NotFoundError):
        return None
    return None if recorded is None else recorded.adds


def contradiction(state: State) -> str | None:
    """How the commits of a state contradict themselves, such as a copy of another; or None."""
    infos = [info for part in state.tail.parts for info in part.commit_infos]
    return next(_contradictions(sorted(infos, key=lambda i: (i.version or 0, i.position))), None)


def _contradictions(infos: list[CommitInfo]) -> Iterator[str]:
    seen: dict[str, int] = {}
    yield from filter(None, (why_copied(info, seen) for info in infos))
    timed = [(i.version, at) for i in infos if (at := in_commit_timestamp(i)) is not None]
    for (_, before), (version, at) in pairwise(timed):
        if at <= before:
            yield f"commit {version} has an inCommitTimestamp that does not exceed the one before"


def _by_checksum(log: Log, own: State, other: State) -> Iterator[bool]:
    """For each field of the checksum with which one side agrees: whether it is the replay."""
    recorded = log.dialect.version_checksum(log.store, own.version)
    if recorded is None:
        return
    try:
        sides = [
            dict(compare_checksum(LogSnapshot(state), recorded).select("field", "agrees").rows())
            for state in (own, other)
        ]
    except LakelogError:
        yield False  # the record exists, and does not confirm the replay
        return
    for field, is_replay in sides[1].items():
        if sides[0][field] != is_replay:
            yield is_replay


def _by_pointer(log: Log, checkpoint: Checkpoint, own: Digest, other: Digest) -> Iterator[bool]:
    """The same for the number of live files that the pointer records."""
    live = _live_in_pointer(log, checkpoint)
    if live is None:
        return
    agree = [side.counts.get("add", 0) == live for side in (own, other)]
    if agree[0] != agree[1]:
        yield agree[1]
