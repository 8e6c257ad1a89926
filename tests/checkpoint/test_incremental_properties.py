"""Chains of incremental checkpoints over random commits: each equals the plain replay's state,
contains every logical file once, and is read equally by deltalake. A failure names its seed.
LAKELOG_EXAMPLES sets the number of chains.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakelog.dialects.delta.paths import decode_path
from lakelog.storage import open_store
from tests.checkpoint.incremental_tables import (
    DAY_MS,
    NOW_MS,
    Table,
    Written,
    checkpoint,
    open_log,
    random_commit,
)
from tests.model import replay
from tests.model.compare import differences, normal

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "4"))
SEEDS = pytest.mark.parametrize("seed", range(EXAMPLES))
SAMPLED = pytest.mark.sampled(8)
KEY = ("path", "dvId")
ORIGIN = {"version", "position", "timestamp", "dataChange", "extra"}


def from_commits(root: Path) -> replay.State:
    """The state without any checkpoint."""
    return replay.replay(root, excluded=replay.list_log(root).candidates)


def retained(state: replay.State) -> list[dict[str, Any]]:
    oldest = NOW_MS - 7 * DAY_MS
    rows = state.tombstones.values()
    return [row for row in rows if (row["deletionTimestamp"] or 0) > oldest]


def compared(rows: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in normal(row).items() if name not in ORIGIN} for row in rows
    ]


def check(root: Path, written: Written) -> None:
    """The newest checkpoint against the commits, with the model's own reader."""
    expected, found = from_commits(root), replay.replay(root)
    assert found.base is not None
    assert found.base.version == expected.version
    assert differences(compared(expected.files.values()), compared(found.files.values()), KEY) == []
    tombstones = [compared(retained(state)) for state in (expected, found)]
    assert differences(tombstones[0], tombstones[1], KEY) == []
    assert found.transactions.keys() == expected.transactions.keys()
    held = rows_of_sidecars(root)
    assert len(held) == len(set(held))
    if written.digest is not None:
        assert written.digest.total == len(held)


def rows_of_sidecars(root: Path) -> list[tuple[str, str | None]]:
    """Logical files of every sidecar in the newest manifest, by pyarrow alone."""
    path = root / replay.list_log(root).candidates[-1].paths[0]
    found: list[tuple[str, str | None]] = []
    for line in path.read_text().splitlines():
        if sidecar := json.loads(line).get("sidecar"):
            rows = pq.read_table(root / "_delta_log/_sidecars" / sidecar["path"]).to_pylist()
            for row in rows:
                action = row["add"] or row["remove"]
                dv = action["deletionVector"]
                found.append((decode_path(action["path"]), dv and dv["pathOrInlineDv"]))
    return found


@SAMPLED
@SEEDS
def test_chain_of_incremental_checkpoints_equals_the_plain_replay(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    table = Table(tmp_path / "t")
    known: dict[str, list[str | None]] = {}
    table.create(*random_commit(rng, known))
    log = open_log(open_store(str(table.root)))
    states: list[list[dict[str, Any]]] = []
    kept = 0
    for _ in range(12):
        for _ in range(rng.randrange(1, 4)):
            table.commit(*random_commit(rng, known))
        if states and rng.random() < 0.2:
            table.commit(*restore(table.root, known, rng.choice(states)))
        states.append([dict(row) for row in from_commits(table.root).files.values()])
        full = rng.random() < 0.1
        written = checkpoint(log, part_actions=rng.choice([4, 8, 16]), full=full)
        kept += len(written.kept)
        check(table.root, written)
    assert kept


def restore(
    root: Path, known: dict[str, list[str | None]], earlier: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The actions that restore an earlier state's files, as RESTORE commits them."""
    now = from_commits(root).files
    then = {(row["path"], row["dvId"]): row for row in earlier}
    actions: list[dict[str, Any]] = [
        {"remove": body_of(row) | {"deletionTimestamp": NOW_MS - DAY_MS}}
        for key, row in now.items()
        if key not in then
    ]
    actions += [
        {"add": body_of(row) | {"modificationTime": 1, "stats": row["stats"]}}
        for key, row in then.items()
        if key not in now
    ]
    for path in known:
        known[path] = []
    for row in then.values():
        known.setdefault(row["path"], []).append(row["dvPathOrInline"])
    return actions or [{"commitInfo": {"operation": "RESTORE"}}]


def body_of(row: dict[str, Any]) -> dict[str, Any]:
    body = {name: row[name] for name in ("size", "partitionValues")}
    body |= {"path": row["path"].replace("%", "%25").replace(" ", "%20"), "dataChange": True}
    if row["dvPathOrInline"] is not None:
        names = {
            "storageType": "dvStorageType",
            "pathOrInlineDv": "dvPathOrInline",
            "offset": "dvOffset",
            "sizeInBytes": "dvSizeInBytes",
            "cardinality": "dvCardinality",
        }
        body["deletionVector"] = {field: row[column] for field, column in names.items()}
    return body


@pytest.mark.parametrize("seed", range(3))
def test_deltalake_reads_a_chain_like_lakelog(seed: int, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    rng = random.Random(seed)
    table = Table(tmp_path / "t")
    known: dict[str, list[str | None]] = {}
    table.create(*random_commit(rng, known))
    log = open_log(open_store(str(table.root)))
    kept = 0
    for _ in range(8):
        table.commit(*random_commit(rng, known))
        written = checkpoint(log)
        kept += len(written.kept)
    assert kept
    expected = from_commits(table.root).files
    for commit in (table.root / replay.LOG).glob("?" * 20 + ".json"):
        commit.unlink()  # only the checkpoint is left
    found = deltalake.DeltaTable(table.root).get_add_actions()
    assert sorted(found["path"].to_pylist()) == sorted(
        path.replace(" ", "%20") for path, _ in expected
    )
