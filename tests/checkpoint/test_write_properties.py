"""Random logs: every checkpoint that lakelog writes has the state of the plain replay. Each is read
back by lakelog, by the model's reader, and by `deltalake` if it can read such a table. A failure
names its seed.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.checkpoint.verify import verify_checkpoint
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.errors import CheckpointValidationError, InvalidInputError, LakelogWarning
from lakelog.log.context import Log
from lakelog.snapshot import Snapshot
from tests.budget import IS_WHOLE, seed_of
from tests.log.test_indextables_properties import disagreements as indextables_disagreements
from tests.log.test_indextables_properties import generate as generate_indextables
from tests.loggen import Options, generate
from tests.model import indextables as indextables_model
from tests.model import replay
from tests.model.compare import differences, normal
from tests.model.observe import disagreements

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "2"))
SEEDS = pytest.mark.parametrize("seed", range(EXAMPLES))
FORBIDDEN = ("multipart", "v2-json", "v2-parquet", "json-multipart")
"""Layouts that some protocols forbid."""
PLAIN = Options(layouts=(), noise=False, truncate=0.0)


@pytest.fixture(autouse=True)
def _warnings_of_the_log_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        yield


def log_at_epoch(root: Path) -> Log:
    """A log with a clock at the epoch, so that nothing has expired."""
    opened = lakelog.open(root).log
    return Log(opened.store, opened.dialect, clock=lambda: 0)


def _kept(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The columns of a row that a Delta checkpoint keeps."""
    extra = json.loads(row.get("extra") or "{}").get("deletionVector", {})
    kept = {k: v for k, v in row.items() if k not in {"version", "position", "extra", *more}}
    index = extra.get("maxRowIndex") if isinstance(extra, dict) else None
    return normal(kept | ({} if index is None else {"maxRowIndex": index}))


def model_disagreements(expected: replay.State, found: replay.State, *, stats: bool) -> list[str]:
    """Differences between the model's reading of a checkpoint and its replay of the commits."""
    omitted = {} if stats else {"stats": None}
    problems = differences(
        [_kept(row, **omitted) for row in expected.files.values()],
        [_kept(row, **omitted) for row in found.files.values()],
        ("path", "dvId"),
    )
    dropped = {"stats": None, "tags": None}
    problems += differences(
        [_kept(row, **dropped) for row in expected.tombstones.values()],
        [_kept(row, **dropped) for row in found.tombstones.values()],
        ("path", "dvId"),
    )
    for name, key in (("transactions", "appId"), ("domains", "domain")):
        problems += differences(
            [_kept(row) for row in getattr(expected, name).values()],
            [_kept(row) for row in getattr(found, name).values()],
            (key,),
        )
    for one, other in ((expected.protocol, found.protocol), (expected.metadata, found.metadata)):
        assert one is not None
        assert other is not None
        if _without_empty(_kept(one)) != _without_empty(_kept(other)):
            problems.append(f"{one} {other}")
    return problems


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if v not in ({}, [])}


def _allowed(log: Log, version: int, layout: str, options: CheckpointOptions) -> Any:
    """The report, or None if the protocol forbids the layout."""
    try:
        return write_checkpoint(log, version, layout=layout, options=options)
    except InvalidInputError as refused:
        if layout not in FORBIDDEN or refused.hint is None:
            raise
        return None


def some_of(versions: list[int], name: str) -> list[int]:
    """The last version and one in three of the others; all in soak."""
    if IS_WHOLE:
        return versions
    start = seed_of(name) % 3
    return sorted({*versions[start::3], versions[-1]})


@pytest.mark.sampled(4, keep=("layout",))
@SEEDS
@pytest.mark.parametrize("layout", DELTA.layouts)
def test_checkpoint_of_every_version_equals_the_plain_replay(
    layout: str, seed: int, tmp_path: Path
) -> None:
    root = generate(tmp_path / "t", seed, PLAIN)
    log = log_at_epoch(root)
    options = CheckpointOptions(
        stats_as_json=seed % 4 != 3, stats_as_struct=seed % 2 == 1, part_actions=4
    )
    versions = some_of(replay.list_log(root).rebuildable(), f"{layout} {seed}")
    expected = {v: replay.replay(root, v) for v in versions}
    written = 0
    for version, state in expected.items():
        report = _allowed(log, version, layout, options)
        if report is None:
            continue
        written += 1
        assert (report.version, report.layout, report.verified) == (version, layout, True)
        assert (report.num_adds, report.num_removes) == (len(state.files), len(state.tombstones))
        assert report.pointer_moved
        snapshot = Snapshot.open(log, version)
        used = snapshot.provenance.checkpoint
        assert used is not None
        assert (used.version, used.layout) == (version, layout)
        read = replay.replay(root, version)
        assert read.base is not None
        assert disagreements(read, snapshot) == []
        assert model_disagreements(state, read, stats=options.stats_as_json) == []
        assert verify_checkpoint(log, version).verdict == "proved"
    leftovers = [p.name for p in (root / replay.LOG).rglob(".lakelog-*")]
    assert leftovers == []
    _compare_with_deltalake(root, expected, bool(written))


def _compare_with_deltalake(root: Path, expected: dict[int, replay.State], written: bool) -> None:
    latest = max(expected)
    plain = root.with_name("plain")
    shutil.copytree(root, plain)
    for path in (plain / replay.LOG).iterdir():
        if "checkpoint" in path.name:
            path.unlink()
    try:
        before = sorted(deltalake.DeltaTable(plain).file_uris())
    except Exception:  # noqa: BLE001 - it does not read such a table in any case
        return
    # Unusual path encodings make it miss files in plain commits.
    if written and len(before) == len(expected[latest].files):
        found = [
            uri.replace(str(root), str(plain)) for uri in deltalake.DeltaTable(root).file_uris()
        ]
        assert sorted(found) == before
        assert deltalake.DeltaTable(root).version() == latest


@pytest.mark.sampled(4)
@SEEDS
def test_checkpoints_are_written_after_checkpoints_of_other_writers(
    seed: int, tmp_path: Path
) -> None:
    root = generate(tmp_path / "t", seed, Options(truncate=0.5, noise=True))
    log = log_at_epoch(root)
    options = CheckpointOptions()
    known = replay.list_log(root).rebuildable()
    expected = {v: replay.replay(root, v) for v in known}
    for version in reversed(known):
        layout = DELTA.layouts[seed % 4]
        try:
            report = _allowed(log, version, layout, options)
        except CheckpointValidationError:
            # The other writer's checkpoint of this version has lost fields: not copied.
            assert verify_checkpoint(log, version).verdict == "wrong"
            continue
        if report is None or report.reused:
            continue
        snapshot = Snapshot.open(log, version)
        assert disagreements(replay.replay(root, version), snapshot) == []
        files = {(r["path"], r["dvId"]) for r in expected[version].files.values()}
        found = snapshot.files().select("path", "dvId").collect().rows()
        assert set(found) == files


@pytest.mark.sampled(4, keep=("layout",))
@SEEDS
@pytest.mark.parametrize("layout", INDEXTABLES.layouts)
def test_indextables_checkpoint_of_every_version_equals_the_plain_replay(
    layout: str, seed: int, tmp_path: Path
) -> None:
    root = generate_indextables(tmp_path / "t", seed, 6)
    log = log_at_epoch(root)
    options = CheckpointOptions(part_actions=2, max_file_bytes=600, compression="snappy")
    for version in some_of([*indextables_model.commits(root)], f"{layout} {seed}"):
        state = indextables_model.replay(root, version)
        report = _allowed(log, version, layout, options)
        if report is None:
            continue
        assert (report.version, report.layout, report.verified) == (version, layout, True)
        snapshot = Snapshot.open(log, version)
        assert snapshot.provenance.checkpoint is not None
        assert snapshot.provenance.checkpoint.version == version
        if layout != "flattened":  # JSON does not record which commit wrote a row
            for rows in (state.files, state.tombstones, state.skips):
                for row in rows.values():
                    row["version"] = None
        assert indextables_disagreements(state, snapshot) == []
        assert verify_checkpoint(log, version).verdict == "proved"
