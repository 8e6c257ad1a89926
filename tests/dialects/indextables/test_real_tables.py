"""Small tables that IndexTables' own writer wrote, created by `make_real_tables`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.errors import UnsupportedError, UnsupportedFeatureError
from tests.dialects.indextables.reference import differences

_TABLES = Path(__file__).parent / "real"
_NAMES = sorted(path.name for path in _TABLES.iterdir())


def _expected(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((_TABLES / name / "expected.json").read_text())
    return expected


def _open(name: str) -> lakelog.Table:
    return lakelog.open(str(_TABLES / name), upkeep=False)


def _paths(snapshot: lakelog.Snapshot) -> list[str]:
    return sorted(snapshot.files().collect()["path"].to_list())


def test_all_tables_are_present() -> None:
    assert len(_NAMES) == 7


@pytest.mark.parametrize("name", _NAMES)
def test_each_version_has_its_files_or_is_refused(name: str) -> None:
    expected, table = _expected(name), _open(name)
    found = {str(v): _paths(table.snapshot(int(v))) for v in expected["files"]}
    assert found == expected["files"]
    for version in expected.get("refused", ()):
        with pytest.raises(UnsupportedError, match="two histories"):
            table.snapshot(version)


@pytest.mark.parametrize("name", sorted(set(_NAMES) - {"forgotten_commits"}))
def test_latest_version_equals_the_state_of_the_reference(name: str) -> None:
    expected, table = _expected(name), _open(name)
    snapshot = table.snapshot()
    assert differences(expected["real"], snapshot) == []
    if "skips" in expected:
        assert sorted(snapshot.skips().collect()["path"].to_list()) == expected["skips"]


@pytest.mark.parametrize("name", ["json_commits", "raised_protocol"])
def test_json_checkpoint_of_the_reference_is_proved(name: str) -> None:
    assert _open(name).verify().verdict == "proved"


def test_checkpoint_of_a_state_does_not_count_separate_skips_as_versions(tmp_path: Path) -> None:
    shutil.copytree(_TABLES / "states_and_skips", tmp_path / "t")
    table = lakelog.open(str(tmp_path / "t"), upkeep=False)
    version, found = table.version(), _paths(table.snapshot())
    skips = table.snapshot().skips().collect()["path"].sort()
    table.checkpoint()
    table = lakelog.open(str(tmp_path / "t"), upkeep=False)
    assert table.version() == version
    assert _paths(table.snapshot()) == found
    assert table.snapshot().skips().collect()["path"].sort().equals(skips)


def test_state_above_the_commits_that_it_repeats_is_proved(tmp_path: Path) -> None:
    shutil.copytree(_TABLES / "states_above_commits", tmp_path / "t")
    table = lakelog.open(str(tmp_path / "t"), upkeep=False)
    assert table.verify(2).verdict == "proved"
    assert table.checkpoint(2).verified


@pytest.mark.parametrize("name", sorted(set(_NAMES) - {"alternating_writers"}))
def test_commit_to_a_table_on_which_the_reference_may_use_states_is_refused(
    name: str, tmp_path: Path
) -> None:
    shutil.copytree(_TABLES / name, tmp_path / "t")
    before = sorted(path.name for path in (tmp_path / "t/_transaction_log").iterdir())
    with pytest.raises((UnsupportedError, UnsupportedFeatureError)):
        _add(lakelog.open(str(tmp_path / "t"), upkeep=False), "x")
    assert sorted(path.name for path in (tmp_path / "t/_transaction_log").iterdir()) == before


def test_table_of_json_commits_by_both_writers_accepts_commits_and_checkpoints(
    tmp_path: Path,
) -> None:
    shutil.copytree(_TABLES / "alternating_writers", tmp_path / "t")
    log = tmp_path / "t/_transaction_log"
    (log / "._last_checkpoint.crc").write_bytes(b"stale")
    table = lakelog.open(str(tmp_path / "t"), upkeep=False)
    _add(table, "f4")
    assert table.checkpoint().pointer_moved
    assert not (log / "._last_checkpoint.crc").exists()
    assert _paths(table.snapshot()) == ["f2", "f3", "f4"]


def _add(table: lakelog.Table, path: str) -> None:
    with table.transaction() as tx:
        tx.add(path=path, size=10, modificationTime=5, dataChange=True, partitionValues={})
