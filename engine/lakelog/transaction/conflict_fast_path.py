"""A fast conflict check for small concurrent commits that only add and remove files.

It parses the few lines of a winning commit, at a tenth of the cost of decoding them into frames,
and checks whether it changed anything but files, and whether it contains a path of this
transaction. All other commits are left to the general path. A property test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import Actions, CommitFile, CommitInfo
from lakelog.errors import NotFoundError
from lakelog.log.context import Log
from lakelog.model import actions
from lakelog.transaction.pending_commit import PendingCommit


@dataclass(frozen=True)
class CommitEffect:
    """The changes of one commit to a log tail: its non-file actions and its commitInfo."""

    commit: CommitFile
    meta: pl.DataFrame
    info: CommitInfo | None


def effects_of(commits: Sequence[CommitFile], decoded: Actions) -> list[CommitEffect]:
    """One effect per commit, in order, from the actions of all of them."""
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


# Per commit, and of all together; decoding into frames is cheaper for more.
_MOST_BYTES = 1 << 15
_MOST_PATHS = 256
_FILE_KEYS = frozenset({"add", "remove"})
_KEYS = _FILE_KEYS | {"cdc", "commitInfo"}
_OWN_WAY = frozenset({"protocol", "metaData"})
_NOTHING: pl.DataFrame = actions.concat([])


class FilesOnlyCommit(NamedTuple):
    """A commit that only adds and removes files: its effect, and its paths."""

    step: CommitEffect
    paths: frozenset[str]


def read_files_only(log: Log, commits: Sequence[CommitFile]) -> list[FilesOnlyCommit] | None:
    """Read commits on the fast path; None if one of them needs the general path."""
    if sum(commit.size_bytes for commit in commits) > _MOST_BYTES:
        return None
    found: list[FilesOnlyCommit] = []
    try:
        contents = log.store.read_many([commit.path for commit in commits])
        for commit, data in zip(commits, contents, strict=True):
            files_only = parse_files_only(log.dialect, commit, data)
            if files_only is None:
                return None
            found.append(files_only)
    except NotFoundError:
        return None
    return found


def parse_files_only(dialect: Dialect, commit: CommitFile, data: bytes) -> FilesOnlyCommit | None:
    """Parse one commit on the fast path; None if it needs the general path."""
    if len(data) > _MOST_BYTES or not data.startswith(b"{"):
        return None
    paths: set[str] = set()
    info: CommitInfo | None = None
    try:
        lines = [orjson.loads(line) for line in data.split(b"\n") if line]
    except ValueError:
        return None
    for position, line in enumerate(lines):
        if not isinstance(line, dict) or not _KEYS.issuperset(line):
            return None
        for key, body in line.items():
            if not isinstance(body, dict):
                return None
            if key == "commitInfo":
                info = info or CommitInfo(commit.version, position, body)
            elif key in _FILE_KEYS:
                path = body.get("path")
                if not isinstance(path, str):
                    return None
                paths.add(dialect.decode_path(path))
    return FilesOnlyCommit(CommitEffect(commit, _NOTHING, info), frozenset(paths))


def own_paths(pending: PendingCommit) -> frozenset[str] | None:
    """The paths of a small transaction without reads, protocol and metadata; None for others."""
    if not pending.reads.nothing:
        return None
    if pending.small is not None:
        return pending.small.paths
    if pending.files.height > _MOST_PATHS:
        return None
    if pending.meta.height and not _OWN_WAY.isdisjoint(pending.meta["actionType"].to_list()):
        return None
    return frozenset(pending.files["path"].to_list() if pending.files.height else ())
