"""Random IndexTables logs, intact and damaged: lakelog equals the plain sequential replay."""

from __future__ import annotations

import gzip
import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.dialects import ndjson
from lakelog.errors import LakelogError, LakelogWarning
from tests.faults.test_damage import flip, overwrite, replace_whole, truncate
from tests.model import indextables as model
from tests.model.compare import differences, normal, rows_of
from tests.model.strict_json import RefusedError

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "25"))
SEEDS = pytest.mark.parametrize("seed", range(EXAMPLES))
SCHEMA = '{"type":"struct","fields":[]}'


@pytest.fixture(autouse=True)
def _half_of_the_logs_are_decoded_by_columns(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode half of the logs like large logs; small logs are decoded line by line."""
    if request.node.callspec.params["seed"] % 2:
        monkeypatch.setattr(ndjson, "_FEW_BYTES", 0)


def generate(root: Path, seed: int, count: int = 5) -> Path:
    """Write a random log of JSON commits in all three framings."""
    rng = random.Random(seed)
    (root / model.LOG).mkdir(parents=True)
    for version in range(count):
        actions = [_action(rng) for _ in range(rng.randrange(1, 5))]
        if version == 0 or rng.random() < 0.1:
            actions.insert(0, {"metaData": _metadata(rng)})
        if (version == 0 and rng.random() < 0.8) or rng.random() < 0.1:
            reader = rng.randrange(1, 5)
            actions.insert(0, {"protocol": {"minReaderVersion": reader, "minWriterVersion": 2}})
        text = "\n".join(json.dumps(a, ensure_ascii=rng.random() < 0.5) for a in actions)
        body = (text + "\n" * rng.randrange(2)).encode()
        packed = gzip.compress(body, mtime=0)
        path = root / model.LOG / f"{version:020d}.json"
        path.write_bytes(rng.choice([body, packed, model.SCALA_MARK + packed]))
    return root


def _metadata(rng: random.Random) -> dict[str, Any]:
    return {
        "id": "id",
        "name": None,
        "format": {"provider": "indextables", "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": ["p"],
        "configuration": {"k": rng.choice(["v", "w"])},
    }


def _action(rng: random.Random) -> dict[str, Any]:
    # Few paths, so that they are added, removed and added again; escapes are not decoded.
    path = f"p={rng.choice(['a', '%20', 'é'])}/{rng.randrange(3)}.split"
    kind = rng.choice(["add", "add", "remove", "mergeskip", "skip", "unknownAction"])
    body: dict[str, Any] = {"path": path}
    if kind == "add":
        body |= {
            "partitionValues": {"p": rng.choice(["a", None])},
            "size": rng.randrange(10**6),
            "modificationTime": 17,
            "numRecords": rng.choice([None, 3]),
            "minValues": {"x": "1"},
            "timeRangeStart": rng.choice(["2024", None, 5]),
            "splitTags": rng.choice([None, ["a"], []]),
            "footerStartOffset": rng.choice([None, 0, 99]),
        }
    elif kind == "remove":
        body |= {"deletionTimestamp": rng.choice([None, 5]), "dataChange": rng.random() < 0.5}
    elif kind != "unknownAction":
        body |= {"skipTimestamp": 1, "reason": "merge failed", "skipCount": rng.choice([None, 4])}
    if rng.random() < 0.3:
        body = {k: v for k, v in body.items() if v is not None}
    if rng.random() < 0.2:
        body["fieldOfTomorrow"] = {"x": [1]}
    return {kind: body}


def disagreements(state: model.State, snapshot: lakelog.Snapshot) -> list[str]:
    assert state.metadata is not None
    protocol = (snapshot.protocol.min_reader_version, snapshot.protocol.min_writer_version)
    found = [] if protocol == state.protocol else [f"protocol: {state.protocol} {protocol}"]
    if dict(snapshot.metadata.configuration) != (state.metadata["configuration"] or {}):
        found.append(f"metadata: {state.metadata}")
    for rows, frame in (
        (state.files, snapshot.files()),
        (state.tombstones, snapshot.tombstones()),
        (state.skips, snapshot.skips().drop("inCooldown")),
    ):
        columns = frame.collect_schema().names()
        found += differences(
            [normal(row, columns) for row in rows.values()],
            [normal(row) for row in rows_of(frame)],
            ("path",),
        )
    return found


@pytest.mark.sampled(6)
@SEEDS
def test_every_version_equals_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed)
    table = lakelog.open(root)
    snapshot = table.snapshot(version=0)
    for version in model.commits(root):
        state = model.replay(root, version)
        assert disagreements(state, table.snapshot(version=version)) == []
        snapshot = snapshot.update(version=version)
        assert disagreements(state, snapshot) == []


@pytest.mark.sampled(6)
@SEEDS
def test_actions_equal_the_plain_decode_of_every_line(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed)
    expected = [
        normal(row)
        for version, path in model.commits(root).items()
        for row in model.decode_commit(path, version)
    ]
    found = [normal(row) for row in rows_of(lakelog.open(root).actions())]
    for row in found:
        row.pop("timestamp")
    assert differences(expected, found, ("version", "position", "actionType")) == []


@pytest.mark.sampled(6, keep=("damage",))
@pytest.mark.parametrize("damage", [truncate, flip, overwrite, replace_whole])
@pytest.mark.parametrize("seed", range(3))
def test_damaged_log_is_refused_or_read_like_the_model(
    seed: int, damage: Any, tmp_path: Path
) -> None:
    root = generate(tmp_path / "t", seed, count=3)
    rng = random.Random(seed)
    wrong: list[tuple[str, list[str]]] = []
    for path in model.commits(root).values():
        whole = path.read_bytes()
        for how in damage(path, rng):
            if problems := _judge(root):
                wrong.append((f"{path.name} {how}", problems))
            path.write_bytes(whole)
    assert wrong == []


def _judge(root: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        try:
            snapshot = lakelog.open(root).snapshot()
            snapshot.files().collect()
            return disagreements(model.replay(root), snapshot)
        except LakelogError as refusal:
            return [str(refusal)] if refusal.kind == "internal" else []
        except RefusedError as refusal:
            return [f"lakelog reads what the model refuses: {refusal}"]
