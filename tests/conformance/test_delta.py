"""Every Delta table of the corpus, every fact of its manifest, by every applicable path."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.dialects import ndjson
from lakelog.errors import LakelogError, LakelogWarning, VersionNotFoundError
from tests.conformance.tables import (
    delta_path,
    delta_tables,
    each,
    file_facts,
    sha256_of_lines,
    snapshot_facts,
    wrong_facts,
)
from tests.model import replay
from tests.model.compare import differences, normal, rows_of
from tests.model.observe import disagreements, replay_from_its_base
from tests.model.statistics import with_statistics

pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")]

TABLES = delta_tables()


@pytest.fixture(autouse=True, scope="module")
def _few_lines_are_decoded_by_columns() -> Iterator[None]:
    """Use the columnar decoder, as for many lines, because most tables are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ndjson, "_FEW_BYTES", 0)
        yield


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which packed tables are unpacked."""
    return tmp_path_factory.mktemp("unpacked")


def _loads(entry: dict[str, Any]) -> bool:
    return bool(entry["verdict"] == "load")


def _history_row(version: int, files: pl.DataFrame) -> list[Any]:
    return [version, files.height, files["size"].sum(), sha256_of_lines(files["path"])[:16]]


def _files(snapshot: Any) -> pl.DataFrame:
    files: pl.DataFrame = snapshot.files().select("path", "size").collect()
    return files


@each(TABLES, _loads)
def test_latest_snapshot_has_every_fact_of_the_manifest(name: str, unpacked: Path) -> None:
    snapshot = lakelog.open(delta_path(name, unpacked)).snapshot()
    facts = TABLES[name]["facts"]
    assert wrong_facts(name, snapshot_facts(snapshot)) == {}
    assert snapshot.num_files() == facts["num_files"]
    assert snapshot.total_size() == facts["total_size"]
    if facts.get("in_commit_timestamp") is not None:
        assert snapshot.in_commit_timestamp == facts["in_commit_timestamp"]


@each(TABLES, lambda entry: entry["verdict"] == "refuse")
def test_table_that_must_be_refused_gives_no_snapshot(name: str, unpacked: Path) -> None:
    with pytest.raises(LakelogError) as refused:
        lakelog.open(delta_path(name, unpacked)).snapshot().files().collect()
    assert refused.value.kind != "internal"


@each(TABLES, lambda entry: entry["verdict"] == "either")
def test_table_on_which_peers_disagree_is_refused_or_equals_the_manifest(
    name: str, unpacked: Path
) -> None:
    try:
        snapshot = lakelog.open(delta_path(name, unpacked)).snapshot()
        found = snapshot_facts(snapshot)
    except LakelogError as refused:
        assert refused.kind != "internal"  # noqa: PT017 - it need not be raised
    else:
        assert wrong_facts(name, found) == {}


@pytest.mark.sampled(6)
@each(TABLES, lambda entry: entry.get("history") and entry["verdict"] == "load")
def test_time_travel_gives_every_version_of_the_history(name: str, unpacked: Path) -> None:
    table = lakelog.open(delta_path(name, unpacked))
    history = TABLES[name]["history"]
    found = [_history_row(v, _files(table.snapshot(version=v))) for v, *_ in history]
    assert found == history


@pytest.mark.sampled(6)
@each(TABLES, lambda entry: entry.get("history") and entry["verdict"] == "load")
def test_time_travel_to_any_other_version_is_refused_with_the_range(
    name: str, unpacked: Path
) -> None:
    table = lakelog.open(delta_path(name, unpacked))
    known = {v for v, *_ in TABLES[name]["history"]}
    assert {v for a, b in table.versions() for v in range(a, b + 1)} == known
    others = {-1, min(known) - 1, max(known) + 1, *range(min(known), max(known))} - known
    for version in sorted(others):
        with pytest.raises(LakelogError) as refused:
            table.snapshot(version=version).files().collect()
        if version >= 0:
            assert isinstance(refused.value, VersionNotFoundError)
            assert str(max(known)) in str(refused.value.expected)


@pytest.mark.sampled(6)
@each(TABLES, lambda entry: len(entry.get("history") or ()) > 1 and entry["verdict"] == "load")
def test_updating_version_by_version_gives_every_version_of_the_history(
    name: str, unpacked: Path
) -> None:
    table = lakelog.open(delta_path(name, unpacked))
    history = TABLES[name]["history"]
    snapshot = table.snapshot(version=history[0][0])
    found = [_history_row(history[0][0], _files(snapshot))]
    for version, *_ in history[1:]:
        snapshot = snapshot.update(version=version)
        found.append(_history_row(version, _files(snapshot)))
    assert found == history
    assert _wrong_after_update(name, snapshot, unpacked) == {}


@pytest.mark.sampled(6)
@each(TABLES, lambda entry: len(entry.get("history") or ()) > 1 and entry["verdict"] == "load")
def test_updating_the_first_version_once_gives_the_latest(name: str, unpacked: Path) -> None:
    table = lakelog.open(delta_path(name, unpacked))
    first = table.snapshot(version=TABLES[name]["history"][0][0])
    first.files().select("path").collect()
    updated = first.update()
    assert _wrong_after_update(name, updated, unpacked) == {}
    assert _history_row(first.version, _files(first)) == TABLES[name]["history"][0]


def _wrong_after_update(name: str, snapshot: Any, unpacked: Path) -> dict[str, Any]:
    """Facts that differ, except tombstones that a later checkpoint dropped as expired."""
    found = snapshot_facts(snapshot)
    wrong = wrong_facts(name, found)
    if "tombstones" in wrong:
        state = replay_from_its_base(delta_path(name, unpacked), None, snapshot)
        if found["tombstones"] == len(state.tombstones):
            del wrong["tombstones"]
    return wrong


@pytest.mark.sampled(6)
@each(TABLES, _loads)
def test_projection_equals_the_columns_of_a_full_read(name: str, unpacked: Path) -> None:
    table = lakelog.open(delta_path(name, unpacked))
    keys = table.snapshot().files().select("path", "dvId", "size").collect()
    assert wrong_facts(name, file_facts(keys)) == {}
    paths = table.snapshot().files().select("path").collect()["path"].sort()
    sizes = table.snapshot().files().select("size").collect()["size"].sort()
    whole = table.snapshot().files().collect()
    assert paths.equals(whole["path"].sort())
    assert sizes.equals(whole["size"].sort())


@pytest.mark.sampled(3)
@each(TABLES, lambda entry: _loads(entry) and not entry.get("packed"))
def test_every_column_of_the_state_equals_the_plain_replay(name: str) -> None:
    path = delta_path(name)
    snapshot = lakelog.open(path).snapshot()
    state = replay.replay(path)
    # Statistics that a checkpoint stores only as a struct are compared by the tests of random logs.
    columns = set(snapshot.files().collect_schema().names()) - {"stats", "extra"}
    if snapshot.provenance.compactions:
        columns -= {"version"}
    for expected, found in (
        (state.files, snapshot.files()),
        (state.tombstones, snapshot.tombstones()),
    ):
        assert not differences(
            [normal(row, columns) for row in expected.values()],
            [normal(row, columns) for row in rows_of(found)],
            ("path", "dvId"),
        )


@pytest.mark.sampled(3)
@each(TABLES, lambda entry: _loads(entry) and not entry.get("packed"))
def test_actions_of_every_commit_equal_the_plain_decode(name: str) -> None:
    path = delta_path(name)
    table = lakelog.open(path)
    commits = list(replay.list_log(path).commits)
    starts = [v for v in commits if v - 1 not in commits]
    for start, end in zip(starts, [v for v in commits if v + 1 not in commits], strict=True):
        expected = [normal(with_statistics(r)) for r in replay.decode_commits(path, start, end)]
        found = [normal(row) for row in rows_of(table.actions(start, end))]
        for row in found:
            row.pop("timestamp", None)
        assert not differences(expected, found, ("version", "position", "actionType"))


def _row_count_is_given(entry: dict[str, Any]) -> bool:
    whole = entry["contents"] == "log+data" and entry["verdict"] == "load"
    return whole and (entry.get("facts") or {}).get("row_count") is not None


@pytest.mark.sampled(3)
@each(TABLES, _row_count_is_given)
def test_live_files_contain_the_rows_of_the_manifest(name: str) -> None:
    path = delta_path(name)
    columns = ("path", "dvCardinality")
    files = lakelog.open(path).snapshot().files().select(columns).collect()
    stored = sum(pq.read_metadata(path / p).num_rows for p in files["path"])
    assert stored - files["dvCardinality"].sum() == TABLES[name]["facts"]["row_count"]


OVERWRITTEN = {
    "kernel-rs__parquet_row_group_skipping": "its checkpoint contains another schema and other "
    "files than its commits, with an id that a broken checkpoint no longer shows: the protocol "
    "requires a checkpoint to be the complete replay of the commits up to its version (Checkpoints)"
}
"""Tables whose commits do not lead to their checkpoint, with the violated clause."""


def _can_fall_back(entry: dict[str, Any]) -> bool:
    log = entry.get("log") or {}
    commits = log.get("commits", {})
    return (
        entry["verdict"] == "load"
        and bool(log.get("checkpoints"))
        and commits.get("first") == 0
        and commits.get("count") == commits["last"] + 1
    )


@pytest.mark.sampled(6)
@each(TABLES, _can_fall_back)
def test_broken_checkpoint_is_ignored_with_a_warning_and_the_same_state(
    name: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    shutil.copytree(
        delta_path(name) / replay.LOG, table / replay.LOG, copy_function=shutil.copyfile
    )
    for folder in (table, *table.rglob("*/")):
        folder.chmod(0o755)
    base = replay.list_log(table).base_of(TABLES[name]["facts"]["latest_version"])
    assert base is not None
    for part in base.paths:
        whole = (table / part).read_bytes()
        (table / part).write_bytes(whole[: len(whole) // 2])
    expected = replay.replay(table)
    assert base in expected.broken
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snapshot = lakelog.open(table).snapshot()
        found = snapshot_facts(snapshot)
    wrong = wrong_facts(name, found)
    if name in OVERWRITTEN:
        wrong = {}
        assert disagreements(expected, snapshot) == []
    # A checkpoint may have dropped what expired; the commits still have it.
    for fact, value in (("tombstones", len(expected.tombstones)), ("txn", None)):
        if fact in wrong and value in (None, found[fact]):
            del wrong[fact]
    assert wrong == {}
    assert any(issubclass(w.category, LakelogWarning) for w in caught)
    assert any(base.paths[0] in text for text in snapshot.provenance.warnings)
    assert not set(base.paths) & set(snapshot.provenance.files)
