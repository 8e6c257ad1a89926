"""The plain, sequential replay of a Delta log: the reference for every answer of lakelog.

Dictionaries and loops, one action at a time, in the order that the protocol gives. It shares no
code with lakelog. Log compaction files, ``_last_checkpoint`` and ``.crc`` are not read: they may
make a reader faster, but never change its answer.

Source: Delta protocol, Action Reconciliation; Checkpoints; Delta Log Entries.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.model import checkpoints
from tests.model.checkpoints import BrokenCheckpointError, Candidate
from tests.model.flatten import flatten
from tests.model.strict_json import RefusedError, parse_lines

LOG = "_delta_log"

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_V2 = re.compile(
    r"(\d{20})\.checkpoint\."
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\.(json|parquet)"
)

READABLE_FEATURES = frozenset(
    """columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview v2Checkpoint
    vacuumProtocolCheck variantType variantType-preview variantShredding
    variantShredding-preview""".split()
)

Key = tuple[str, str | None]


@dataclass(frozen=True)
class Log:
    """The contents of a log folder, from its names."""

    commits: dict[int, Path]
    candidates: tuple[Candidate, ...]

    @property
    def latest(self) -> int:
        """The newest version with a commit or a complete checkpoint."""
        return max([*self.commits, *(c.version for c in self.candidates)])

    def base_of(self, version: int) -> Candidate | None:
        """The best complete checkpoint at or below `version`."""
        return max((c for c in self.candidates if c.version <= version), default=None)

    def missing(self, base: Candidate | None, version: int) -> list[int]:
        """Commits above the checkpoint up to `version` that are missing."""
        first = 0 if base is None else base.version + 1
        return [v for v in range(first, version + 1) if v not in self.commits]

    def rebuildable(self) -> list[int]:
        """Versions whose best checkpoint is followed by every commit up to them."""
        known = sorted({*self.commits, *(c.version for c in self.candidates)})
        return [v for v in known if not self.missing(self.base_of(v), v)]


@dataclass
class State:
    """The reconciled state of one version; file rows keep the version that wrote them."""

    version: int
    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    files: dict[Key, dict[str, Any]] = field(default_factory=dict)
    tombstones: dict[Key, dict[str, Any]] = field(default_factory=dict)
    transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    base: Candidate | None = None
    broken: tuple[Candidate, ...] = ()
    timestamp_ms: int | None = None

    def apply(self, row: dict[str, Any]) -> None:
        """Reconcile one action; the newest counts."""
        kind = row["actionType"]
        if kind == "protocol":
            self.protocol = row
        elif kind == "metaData":
            self.metadata = row
        elif kind == "txn":
            self.transactions[row["appId"]] = row
        elif kind == "domainMetadata":
            if row["domainRemoved"]:
                self.domains.pop(row["domain"], None)
            else:
                self.domains[row["domain"]] = row
        elif kind in {"add", "remove"}:
            key = (row["path"], row["dvId"])
            live, other = (self.files, self.tombstones)[:: 1 if kind == "add" else -1]
            other.pop(key, None)
            live[key] = {**row, "dataChange": False}


def list_log(root: Path) -> Log:
    """Parse the names in the log folder; names must match exactly, empty checkpoints are ignored.

    Raises:
        RefusedError: The folder contains no version.
    """
    folder = root / LOG
    names = {p.name: p for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}
    commits = {int(m[1]): p for n, p in names.items() if (m := _COMMIT.fullmatch(n))}
    found: list[Candidate] = []
    parts: dict[tuple[int, int], set[int]] = {}
    for name, path in names.items():
        if path.stat().st_size == 0:
            continue
        relative = f"{LOG}/{name}"
        if m := _CLASSIC.fullmatch(name):
            found.append(Candidate(int(m[1]), (0, 0), (relative,), "classic"))
        elif m := _V2.fullmatch(name):
            found.append(Candidate(int(m[1]), (2, 0), (relative,), f"v2-{m[2]}"))
        elif (m := _PART.fullmatch(name)) and 1 <= int(m[2]) <= int(m[3]):
            parts.setdefault((int(m[1]), int(m[3])), set()).add(int(m[2]))
    for (version, count), present in parts.items():
        if len(present) == count:
            paths = tuple(
                f"{LOG}/{version:020d}.checkpoint.{part:010d}.{count:010d}.parquet"
                for part in range(1, count + 1)
            )
            found.append(Candidate(version, (1, count), paths, "multipart"))
    if not commits and not found:
        raise RefusedError("no commit and no complete checkpoint")
    return Log(dict(sorted(commits.items())), tuple(sorted(found)))


def decode_commit(path: Path, version: int) -> list[dict[str, Any]]:
    """Every action of one commit in the order of its lines, flattened.

    Raises:
        RefusedError: The commit is empty, contains no action, or a line is malformed.
    """
    rows = []
    for line, value in parse_lines(path.read_bytes(), path.name):
        for wrapper, body in value.items():
            if body is None:
                continue
            row = flatten(wrapper, body, f"{path.name} line {line + 1}")
            rows.append({**row, "version": version, "position": line})
    if not rows:
        raise RefusedError(
            f"{path.name} contains no action: it cannot be distinguished from a torn write"
        )
    return rows


def decode_commits(root: Path, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
    """Every action of the commits from `start` to `end`, inclusive, line by line."""
    commits = list_log(root).commits
    return [
        row
        for version, path in commits.items()
        if start <= version and (end is None or version <= end)
        for row in decode_commit(path, version)
    ]


def replay(
    root: Path, version: int | None = None, *, excluded: Collection[Candidate] = ()
) -> State:
    """The state at `version` (default: the latest), or a refusal.

    Args:
        root: Table root on local disk.
        version: Table version.
        excluded: Checkpoints to treat as broken.

    Raises:
        RefusedError: These bytes define no state.
    """
    log = list_log(root)
    target = log.latest if version is None else version
    if not 0 <= target <= log.latest:
        raise RefusedError(f"version {target} is not in the log")
    broken: list[Candidate] = []
    order = sorted((c for c in log.candidates if c.version <= target), reverse=True)
    for base in [*order, None]:
        if missing := log.missing(base, target):
            raise RefusedError(f"commits {missing} are missing above {base}")
        state = State(target, base=base, broken=tuple(broken))
        if base is not None:
            rows = None if base in excluded else _read_checkpoint(root, base)
            if rows is None:
                broken.append(base)
                continue
            for row in rows:
                state.apply(row)
            # Commits below the checkpoint may contain one: using it would hide the defect.
            _require_complete(state)
        return _replay_commits(log, state, base)
    raise AssertionError("the loop ends without a checkpoint")


def _read_checkpoint(root: Path, base: Candidate) -> list[dict[str, Any]] | None:
    try:
        return checkpoints.read(root, base)
    except BrokenCheckpointError:
        return None


def _replay_commits(log: Log, state: State, base: Candidate | None) -> State:
    ids = {state.metadata["metadataId"]} if state.metadata else set()
    for version in range(0 if base is None else base.version + 1, state.version + 1):
        for row in decode_commit(log.commits[version], version):
            state.apply(row)
            if row["actionType"] == "metaData":
                ids.add(row["metadataId"])
    _require_complete(state)
    if state.broken and len(ids) != 1:
        raise RefusedError(f"a fallback would cross tables {ids}")
    _require_readable(state.protocol)
    return state


def _require_complete(state: State) -> None:
    if state.protocol is None:
        raise RefusedError("no protocol")
    if state.metadata is None:
        raise RefusedError("no metadata")


def _require_readable(protocol: dict[str, Any] | None) -> None:
    assert protocol is not None
    version = protocol["minReaderVersion"]
    if version > 3:
        raise RefusedError(f"reader version {version}")
    if version < 3:
        return
    if protocol["readerFeatures"] is None:
        raise RefusedError("reader version 3 without reader features")
    if unknown := set(protocol["readerFeatures"]) - READABLE_FEATURES:
        raise RefusedError(f"reader features {unknown}")


def commit_times(root: Path) -> dict[int, int]:
    """Commit times in milliseconds: the in-commit timestamp, else the file's time made monotone."""
    times: dict[int, int] = {}
    for version, path in list_log(root).commits.items():
        rows = decode_commit(path, version)
        stamped = [r["inCommitTimestamp"] for r in rows if r["actionType"] == "commitInfo"]
        modified = path.stat().st_mtime_ns // 1_000_000
        before = times.get(version - 1)
        fallback = modified if before is None else max(modified, before + 1)
        times[version] = next((t for t in stamped if t is not None), fallback)
    return times
