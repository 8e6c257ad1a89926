"""`CommitEffect`: the changes that one commit makes to the cached end of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from lakelog.dialects.log_content import Actions, CommitFile, CommitInfo


@dataclass(frozen=True)
class CommitEffect:
    """What one commit changes of a log tail.

    Attributes:
        commit: The commit.
        meta: Its actions that are not file actions.
        info: Its commitInfo, or None.
    """

    commit: CommitFile
    meta: pl.DataFrame
    info: CommitInfo | None


def effects_of(commits: Sequence[CommitFile], decoded: Actions) -> list[CommitEffect]:
    """One step a commit, in order, from the actions of all of them."""
    steps = []
    infos: dict[int | None, CommitInfo] = {}
    for info in decoded.commit_infos:
        infos.setdefault(info.version, info)
    for commit in commits:
        meta = decoded.meta
        if meta.height and len(commits) > 1:
            meta = meta.filter(pl.col("version") == commit.version)
        steps.append(CommitEffect(commit, meta, infos.get(commit.version)))
    return steps
