"""Tables for the tests of incremental checkpoints, and the minimal steps to write one."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakelog.checkpoint.compare import Comparison
from lakelog.checkpoint.incremental import Incremental, Unfit, plan_incremental
from lakelog.checkpoint.state_source import StateSource
from lakelog.dialects.delta import DIALECT
from lakelog.dialects.delta.checkpoint_writer import DeltaCheckpointWriter
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import Checkpoint, CheckpointPlan, StagedCheckpoint
from lakelog.log.context import Log
from lakelog.log.opening import open_state
from lakelog.log.state import State
from lakelog.storage import LogStore
from tests.handmade import Action, add, metadata, protocol, remove, vector
from tests.model import replay

NOW_MS = 2_000_000_000_000
DAY_MS = 86_400_000
FEATURES = ["deletionVectors", "v2Checkpoint"]


@dataclass
class Written:
    """A written checkpoint, and its plan."""

    plan: Incremental | Unfit
    staged: StagedCheckpoint
    digest: Digest | None

    @property
    def kept(self) -> list[str]:
        """The sidecars that were kept."""
        if isinstance(self.plan, Unfit):
            return []
        return [file.path for file in self.plan.plan.kept]

    @property
    def reason(self) -> str | None:
        """The reason why no sidecar was kept."""
        return self.plan.reason if isinstance(self.plan, Unfit) else None


def plan_of(state: State, **more: Any) -> CheckpointPlan:
    """The plan of a V2 checkpoint of a state."""
    defaults: dict[str, Any] = {
        "parts": 1,
        "layout": "v2-json",
        "part_actions": 8,
        "partition_columns": state.metadata.partition_columns,
        "configuration": state.metadata.configuration,
        "deletion_vectors": True,
    }
    return CheckpointPlan(version=state.version, schema=state.metadata.schema, **(defaults | more))


def stage(
    log: Log, version: int | None = None, *, full: bool = False, now_ms: int = NOW_MS, **more: Any
) -> Written:
    """Write a V2 checkpoint under temporary names: an incremental one if possible."""
    state = open_state(log, version)
    plan = plan_of(state, **more)
    decided: Incremental | Unfit = Unfit("a full checkpoint was requested")
    if not full:
        base = state.base.checkpoint if state.base else Checkpoint(0, "none", 0, ())
        decided = plan_incremental(log, state, base, plan, now_ms=now_ms)
    source = StateSource(state, memory_limit=None, now_ms=now_ms)
    planned = decided.plan if isinstance(decided, Incremental) else plan
    writer = DeltaCheckpointWriter(log.store, planned)
    writer.digest_of = Comparison.of(planned, log.dialect, writer.columns).digest
    writer.write_meta(source.meta)
    files = decided.files if isinstance(decided, Incremental) else source.files
    for frame in files(writer.columns):
        writer.write_files(frame)
    staged = writer.finish()
    digest = decided.verify(staged) if isinstance(decided, Incremental) else None
    return Written(decided, staged, digest)


def publish(store: LogStore, staged: StagedCheckpoint) -> None:
    """Rename the files to their final names."""
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)


def checkpoint(log: Log, version: int | None = None, **more: Any) -> Written:
    """Stage a V2 checkpoint and publish it."""
    written = stage(log, version, **more)
    publish(log.store, written.staged)
    return written


def open_log(store: LogStore) -> Log:
    """The log of a store, with a fixed clock."""
    return Log(store, DIALECT, lambda: NOW_MS)


@dataclass
class Table:
    """A table on local disk to which commits are written one by one."""

    root: Path
    version: int = -1

    def commit(self, *actions: Action) -> int:
        """Write one commit, and return its version."""
        self.version += 1
        folder = self.root / replay.LOG
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.version:020d}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        return self.version

    def create(self, *actions: Action, **properties: str) -> int:
        """The first commit."""
        return self.commit(
            protocol(3, 7, readerFeatures=FEATURES, writerFeatures=FEATURES),
            metadata(properties=properties),
            *actions,
        )


def old_remove(path: str, ago_days: float = 1, **more: Any) -> Action:
    """A remove of some days ago."""
    return remove(path, deletionTimestamp=int(NOW_MS - ago_days * DAY_MS), **more)


def names(prefix: str, count: int) -> list[str]:
    """Paths of files, some of which must be percent-encoded."""
    return [f"p={n % 3}/{prefix} {n:04d}.parquet" for n in range(count)]


def random_commit(rng: random.Random, known: dict[str, list[str | None]]) -> list[Action]:
    """Adds, removes, re-adds, repeated removes and adds, and deletion vectors.

    Args:
        rng: Random generator.
        known: For each path ever added, its live deletion vectors (None for none); updated.
    """
    actions: list[Action] = []
    older = sorted(known)
    for _ in range(rng.randrange(5)):
        path = f"p={rng.randrange(3)}/f {rng.randrange(10**9)}.parquet"
        known[path] = [None]
        actions.append(_add(rng, path, None))
    for path in rng.sample(older, min(rng.randrange(3), len(older))):
        vectors = known[path]
        choice = rng.random()
        if not vectors:
            known[path] = [rng.choice([None, "again"])]
            actions.append(_add(rng, path, known[path][0]))
        elif choice < 0.4:
            actions.append(_remove(rng, path, vectors[0]))
            known[path] = []
        elif choice < 0.7:
            known[path] = [f"dv{rng.randrange(10**6)}"]
            actions += [_remove(rng, path, vectors[0]), _add(rng, path, known[path][0])]
        elif choice < 0.85:
            actions.append(_add(rng, path, vectors[0]))
        else:
            actions.append(_remove(rng, path, f"gone{rng.randrange(4)}"))
    if rng.random() < 0.1:
        actions.append({"txn": {"appId": "a", "version": rng.randrange(9)}})
    return actions or [{"commitInfo": {"operation": "NOTHING"}}]


def _add(rng: random.Random, path: str, dv: str | None) -> Action:
    stats = json.dumps({"numRecords": rng.randrange(9)})
    more = vector(dv) if dv is not None else {}
    return add(path, rng.randrange(100), stats=stats, partitionValues={"p": path[2]}, **more)


def _remove(rng: random.Random, path: str, dv: str | None) -> Action:
    more = vector(dv) if dv is not None else {}
    return old_remove(path, rng.choice([1, 3, 6.9, 7.1, 30]), extendedFileMetadata=True, **more)
