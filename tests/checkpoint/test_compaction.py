"""Log compaction files: a version reads the same with and without them, or they are not used."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.checkpoint import compaction
from lakelog.checkpoint.bounded_memory import Budget
from lakelog.checkpoint.compaction import compact_log
from lakelog.errors import (
    CheckpointValidationError,
    CorruptionError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.log.context import Log
from lakelog.testing import Fault, InjectingStore, Kind, Rule
from tests import handmade
from tests.handmade import Handmade
from tests.loggen import Options, generate
from tests.model import replay
from tests.model.observe import disagreements

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "6"))
SPILL = Budget(1 << 12, 300, -1, 2_000, 4_000, 1 << 5, 64, 1 << 30)


@pytest.fixture(params=["memory", "disk"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Reconciling in memory, and on disk with a minimal budget."""
    if request.param == "memory":
        return None
    monkeypatch.setattr(Budget, "of", lambda *_: SPILL)
    return 1 << 40


@pytest.mark.sampled(6, keep=("limit",))
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_every_version_is_the_same_with_a_compaction(
    seed: int, tmp_path: Path, limit: int | None
) -> None:
    root = generate(tmp_path / "t", seed, Options(commits=9, noise=False, truncate=0.0))
    start, end = 1 + seed % 3, 5 + seed % 4
    compact_log(lakelog.open(root).log, start, end, memory_limit=limit)
    held = [json.loads(line) for line in _file(root, start, end).read_bytes().splitlines()]
    assert not {kind for row in held for kind in row} & {"commitInfo", "cdc", "someNewAction"}
    assert list(held[-1]) == ["lakelogEnd"]
    for version in replay.list_log(root).rebuildable():
        snapshot = lakelog.open(root).snapshot(version)  # without cached state
        problems = disagreements(replay.replay(root, version), snapshot)
        # Required fields that a commit lacks are written, and are therefore read back.
        problems = [
            p for p in problems if not p.endswith("partitionValues: model None, lakelog {}")
        ]
        assert problems == [], (seed, version)
        base = replay.replay(root, version).base
        is_used = (base is None or base.version < start) and version >= end
        assert bool(snapshot.provenance.compactions) == is_used, (seed, version)


def _file(root: Path, start: int, end: int) -> Path:
    return root / replay.LOG / f"{start:020d}.{end:020d}.compacted.json"


def _table(root: Path) -> Handmade:
    log = Handmade(root)
    log.start(handmade.add("f0"))
    log.commit(
        1,
        handmade.info(inCommitTimestamp=5),
        handmade.add("f1", tags={"a": None, "b": "c"}),
        handmade.remove("f0", deletionTimestamp=1),
        {"domainMetadata": {"domain": "d", "configuration": "x", "removed": False}},
        {"txn": {"appId": "a", "version": 1}},
    )
    log.commit(
        2,
        handmade.info(),
        handmade.add("f2", size=7, tomorrow={"z": 1, "a": [2]}),
        handmade.remove("f1"),
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": True}},
        {"txn": {"appId": "a", "version": 2, "lastUpdated": 1}},
        {"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}},
    )
    log.commit(3, handmade.add("f3"))
    return log


def test_actions_that_affect_earlier_commits_are_kept(tmp_path: Path, limit: int | None) -> None:
    log = _table(tmp_path / "t")
    report = compact_log(log.context(), 1, 2, memory_limit=limit)
    path = _file(tmp_path / "t", 1, 2)
    assert report.path == f"_delta_log/{path.name}"
    assert (report.written, report.size_bytes) == (True, path.stat().st_size)
    assert (report.num_adds, report.num_removes, report.num_others) == (1, 2, 2)
    *rows, end = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert end["lakelogEnd"]["lines"] == len(rows)
    assert sorted(rows, key=str) == sorted(
        [
            {"domainMetadata": {"domain": "d", "configuration": "", "removed": True}},
            {"txn": {"appId": "a", "version": 2, "lastUpdated": 1}},
            {
                "add": {
                    "path": "f2",
                    "partitionValues": {},
                    "size": 7,
                    "modificationTime": 1,
                    "dataChange": False,
                    "tomorrow": {"z": 1, "a": [2]},
                }
            },
            # Expired long ago, but it still hides f0 of the earlier commit.
            {"remove": {"path": "f0", "deletionTimestamp": 1, "dataChange": False}},
            {"remove": {"path": "f1", "dataChange": False}},
        ],
        key=str,
    )
    snapshot = log.table.snapshot()
    assert snapshot.provenance.compactions == (report.path,)
    assert sorted(snapshot.state.to_polars()["path"]) == ["f2", "f3"]
    assert snapshot.domains().collect().height == 0
    assert log.table.snapshot(2).timestamp_ms == handmade.FIRST_MS + 2 * handmade.MINUTE_MS
    assert log.table.diff(0, 2).height


def test_existing_compaction_is_not_replaced(tmp_path: Path) -> None:
    log = _table(tmp_path / "t")
    path = log.compaction(1, 2, handmade.add("something else"))
    before = path.read_bytes()
    assert not compact_log(log.context(), 1, 2).written
    assert path.read_bytes() == before


@pytest.mark.parametrize(("start", "end"), [(2, 2), (3, 1), (-1, 2), (1.0, 2), (True, 2)])
def test_invalid_range_is_refused(start: Any, end: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="two versions"):
        compact_log(_table(tmp_path / "t").context(), start, end)


def test_range_with_a_commit_missing_is_refused(tmp_path: Path) -> None:
    log = _table(tmp_path / "t")
    log.checkpoint(2, handmade.protocol(), handmade.metadata(), handmade.add("f2"))
    log.forget(1)
    for start, end in ((0, 2), (1, 3), (2, 4)):
        with pytest.raises(VersionNotFoundError):
            compact_log(log.context(), start, end)
    assert compact_log(log.context(), 2, 3).written


def test_commits_without_actions_of_the_state_are_refused(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t").start()
    log.commit(1, handmade.info())
    log.commit(2, handmade.info())
    with pytest.raises(InvalidInputError, match="no actions"):
        compact_log(log.context(), 1, 2)
    assert [p.name for p in log.log.iterdir() if "json" not in p.name] == []


def test_format_without_compactions_raises_unsupported_error(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format="indextables")
    with pytest.raises(UnsupportedError, match="no log compaction"):
        compact_log(table.log, 0, 1)


def test_unknown_writer_feature_is_refused_by_name(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.commit(0, handmade.protocol(1, 7, writerFeatures=["ofTomorrow"]), handmade.metadata())
    log.commit(1, handmade.add("a"))
    with pytest.raises(UnsupportedFeatureError, match="ofTomorrow"):
        compact_log(log.context(), 0, 1)


def test_damaged_commit_is_not_compacted(tmp_path: Path, limit: int | None) -> None:
    log = _table(tmp_path / "t")
    log.write(f"{2:020d}.json", b'{"add":{"path":"f2"')
    with pytest.raises(CorruptionError):
        compact_log(log.context(), 0, 2, memory_limit=limit)
    assert not _file(tmp_path / "t", 0, 2).exists()
    assert not list(log.log.glob(".lakelog-*"))


def test_wrong_encoding_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _table(tmp_path / "t")
    real = compaction._Compaction._spell

    def wrong(self: Any, rows: pl.DataFrame, commits: Any) -> bytes:
        return real(self, rows, commits).replace(b'"size":7', b'"size":8')

    monkeypatch.setattr(compaction._Compaction, "_spell", wrong)
    with pytest.raises(CheckpointValidationError, match="add"):
        compact_log(log.context(), 0, 2)
    assert not _file(tmp_path / "t", 0, 2).exists()
    assert not list(log.log.glob(".lakelog-*"))


@pytest.mark.sampled(4, keep=("fault",))
@pytest.mark.parametrize("whole", [1 << 30, 10], ids=["put", "moved"])
@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "lost_taken", "late"])
def test_table_is_the_same_after_any_failure(
    fault: Fault, whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_WHOLE_BYTES", whole)
    log = _table(tmp_path / "t")
    expected = log.table.snapshot().state.to_polars().drop("version").sort("path")
    path = _file(tmp_path / "t", 0, 2)
    compact_log(log.context(), 0, 2)
    content = path.read_bytes()
    path.unlink()
    for nth in range(1, 60):
        context = log.context()
        kinds: tuple[Kind, ...] = ("put_if_absent",) if fault == "lost_taken" else ()
        store = InjectingStore(context.store, [Rule(fault, kinds, nth=nth)])
        report = None
        with contextlib.suppress(UnavailableError, OutcomeUnknownError, CorruptionError):
            report = compact_log(Log(store, context.dialect, context.clock), 0, 2)
        store.arrive()
        assert not path.exists() or path.read_bytes() == content
        assert path.exists() or report is None
        found = log.table.snapshot()
        assert found.state.to_polars().drop("version").sort("path").equals(expected)
        assert bool(found.provenance.compactions) == path.exists()
        path.unlink(missing_ok=True)
        for rest in log.log.glob(".lakelog-*"):
            rest.unlink()
        if len(store.operations) < nth:
            return
    raise AssertionError("no attempt succeeds")


def test_compaction_outside_the_version_range_is_not_used(tmp_path: Path) -> None:
    """A compaction that reaches below a checkpoint, or above the version, is ignored."""
    log = _table(tmp_path / "t")
    compact_log(log.context(), 1, 3)
    log.checkpoint(1, handmade.protocol(), handmade.metadata(), handmade.add("f1"))
    assert log.table.snapshot().provenance.compactions == ()
    assert log.table.snapshot(2).provenance.compactions == ()
    assert sorted(log.table.snapshot().state.to_polars()["path"]) == ["f2", "f3"]


@pytest.mark.parametrize("writer", ["lakelog", "another"])
def test_compaction_truncated_at_a_line_end_is_ignored(tmp_path: Path, writer: str) -> None:
    log = _table(tmp_path / "t")
    expected = log.table.snapshot().state.to_polars().drop("version").sort("path")
    compact_log(log.context(), 0, 2)
    path = _file(tmp_path / "t", 0, 2)
    if writer == "another":
        path.write_bytes(path.read_bytes().rpartition(b'{"lakelogEnd"')[0])
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        found = log.table.snapshot()
        assert found.state.to_polars().drop("version").sort("path").equals(expected), kept
        assert found.domains().collect().height == 0
        assert found.provenance.compactions == ()
        assert "was ignored" in " ".join(found.provenance.warnings)


def test_compaction_with_a_changed_or_missing_line_is_ignored(tmp_path: Path) -> None:
    log = _table(tmp_path / "t")
    compact_log(log.context(), 0, 2)
    path = _file(tmp_path / "t", 0, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    for at in range(len(lines)):
        for changed in ([], [lines[at].replace(b"f", b"g", 1)], [lines[at]] * 2):
            if changed == [lines[at]]:
                continue
            path.write_bytes(b"".join([*lines[:at], *changed, *lines[at + 1 :]]))
            assert log.table.snapshot().provenance.compactions == (), (at, changed)
