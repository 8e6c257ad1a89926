"""Random logs: every answer of lakelog, by any path, equals the plain sequential replay.

A failure names its seed; `generate(path, seed)` of `tests.loggen` writes the same log again.
LAKELOG_EXAMPLES sets the number of logs per property.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.dialects import ndjson
from lakelog.errors import LakelogError, VersionNotFoundError
from tests.loggen import Options, generate
from tests.model import replay
from tests.model.compare import Row, differences, normal, rows_of
from tests.model.observe import disagreements, replay_from_its_base
from tests.model.statistics import with_statistics
from tests.model.strict_json import RefusedError

pytestmark = [pytest.mark.sampled(10), pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")]

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "25"))
SEEDS = pytest.mark.parametrize("seed", range(EXAMPLES))


@pytest.fixture(autouse=True)
def _half_of_the_logs_are_decoded_by_columns(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode half of the logs like large logs; small logs are decoded line by line."""
    if request.node.callspec.params["seed"] % 2:
        monkeypatch.setattr(ndjson, "_FEW_BYTES", 0)


def _versions(root: Path) -> list[int]:
    return replay.list_log(root).rebuildable()


@SEEDS
def test_every_version_read_whole_equals_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed)
    table = lakelog.open(root)
    known = _versions(root)
    assert [v for a, b in table.versions() for v in range(a, b + 1)] == known
    assert table.version() == replay.list_log(root).latest
    for version in known:
        snapshot = table.snapshot(version=version)
        assert disagreements(replay.replay(root, version), snapshot) == []


@SEEDS
def test_updating_from_any_version_equals_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed)
    table = lakelog.open(root)
    known = _versions(root)
    snapshot = table.snapshot(version=known[0])
    for version in known[1:]:
        updated = snapshot.update(version=version)
        assert disagreements(replay_from_its_base(root, version, updated), updated) == []
        if version % 2:  # some steps start from a state that was read, some from an update of it
            snapshot.files().collect()
        snapshot = updated
    first = table.snapshot(version=known[0]).update()
    assert disagreements(replay_from_its_base(root, None, first), first) == []


@SEEDS
def test_update_sees_commits_written_after_the_snapshot(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "whole", seed, Options(truncate=0.0, noise=False))
    earlier = tmp_path / "earlier"
    (earlier / replay.LOG).mkdir(parents=True)
    commits = sorted((root / replay.LOG).glob("?" * 20 + ".json"))
    for commit in commits[:3]:
        shutil.copy2(commit, earlier / replay.LOG)
    snapshot = lakelog.open(earlier).snapshot()
    assert snapshot.update().version == snapshot.version == 2
    for commit in commits[3:]:
        shutil.copy2(commit, earlier / replay.LOG)
        snapshot = snapshot.update()
        expected = replay.replay(earlier)
        assert snapshot.version == expected.version
        assert disagreements(expected, snapshot) == []


@SEEDS
def test_projection_equals_the_same_columns_of_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed)
    files = replay.replay(root).files.values()
    for columns in (["path", "size"], ["partitionValues"], ["dvId", "stats"], ["tags", "path"]):
        frame = lakelog.open(root).snapshot().files().select(columns)
        assert frame.collect_schema().names() == columns
        found = [normal(row) for row in rows_of(frame)]
        assert _unordered(found) == _unordered(normal(row, columns) for row in files)


def _unordered(rows: Iterable[Row]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@SEEDS
def test_actions_equal_the_plain_decode_of_every_line(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed, Options(layouts=()))
    table = lakelog.open(root)
    times = replay.commit_times(root)
    for start, end in ((0, None), (2, 5)):
        expected = [normal(with_statistics(row)) for row in replay.decode_commits(root, start, end)]
        for row in expected:
            row["timestamp"] = times[row["version"]]
        found = [normal(row) for row in rows_of(table.actions(start, end))]
        assert differences(expected, found, ("version", "position", "actionType")) == []


@SEEDS
def test_state_with_a_broken_checkpoint_is_the_same_or_refused(seed: int, tmp_path: Path) -> None:
    root = generate(
        tmp_path / "t", seed, Options(checkpoints=0.4, break_checkpoints=0.6, truncate=0.1)
    )
    table = lakelog.open(root)
    for version in _versions(root):
        try:
            expected = replay.replay(root, version)
        except RefusedError:
            with pytest.raises(LakelogError):
                table.snapshot(version=version).files().collect()
            continue
        snapshot = table.snapshot(version=version)
        assert disagreements(expected, snapshot) == []
        if expected.broken:
            assert snapshot.provenance.warnings


@SEEDS
def test_version_that_cannot_be_rebuilt_is_refused_with_the_range(
    seed: int, tmp_path: Path
) -> None:
    root = generate(tmp_path / "t", seed, Options(truncate=0.8))
    known = _versions(root)
    table = lakelog.open(root)
    for version in {*range(known[-1] + 3)} - {*known}:
        with pytest.raises(VersionNotFoundError) as refused:
            table.snapshot(version=version).files().collect()
        assert str(known[-1]) in str(refused.value.expected)


@SEEDS
def test_commit_times_are_recorded_or_adjusted_to_increase(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed, Options(layouts=(), noise=False))
    table = lakelog.open(root)
    times = replay.commit_times(root)
    found: dict[int, Any] = {v: table.snapshot(version=v).timestamp_ms for v in times}
    assert found == times
    for version, time in times.items():
        assert table.snapshot(timestamp=time).version == version
