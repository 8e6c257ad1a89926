"""Cleanup of a log: every retained version survives, and no unexpected file is deleted."""

from __future__ import annotations

import datetime as dt
import json
import random
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog import (
    CorruptionError,
    LakelogError,
    LakelogWarning,
    Table,
    UnsafeRetentionError,
    VersionNotFoundError,
)
from tests.budget import share_of
from tests.maintenance.logs import (
    CUTOFF,
    DAY_MS,
    PROMISED,
    MadeLog,
    aged,
    clean,
    content,
    contents,
    fresh,
    plan,
)
from tests.replaced_tables import WRITERS, replaced


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_every_promised_version_reads_the_same_after_cleanup(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout)
    kept = range(CUTOFF, 40)
    before, names = contents(made.table(), kept), made.names()
    report = clean(made.table())
    assert report.verdict == "proved"
    assert names - made.names() == {path.split("/", 1)[1] for path in report.files["path"]}
    assert contents(fresh(made), kept) == before
    assert fresh(made).versions() == [(CUTOFF, 39)]
    with pytest.raises(VersionNotFoundError):
        fresh(made).snapshot(CUTOFF - 1)


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_deltalake_reads_the_same_before_and_after_cleanup(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout)

    def theirs(version: int | None) -> tuple[int, list[str]]:
        table = DeltaTable(str(made.root), version=version)
        paths = pl.DataFrame(table.get_add_actions())["path"]
        return table.version(), sorted(paths)

    versions = (None, CUTOFF, PROMISED, 35)
    before = [theirs(version) for version in versions]
    clean(made.table(), quarantine=True)
    assert [theirs(version) for version in versions] == before
    made.table().purge_quarantines(older_than=dt.timedelta(0))
    assert [theirs(version) for version in versions] == before


@pytest.mark.parametrize("writer", WRITERS)
def test_log_of_a_replaced_table_is_cleaned_up(tmp_path: Path, writer: str) -> None:
    table = replaced(tmp_path, writer, age=True)
    before = content(table)
    table.checkpoint()
    report = table.cleanup(plan=False, quarantine=True)
    assert report.verdict == "proved"
    assert report.files.height == 3
    assert content(lakelog.open(tmp_path)) == before
    assert lakelog.open(tmp_path).versions() == [(3, 3)]
    table.undo_cleanup(str(report.quarantine))
    assert lakelog.open(tmp_path).versions() == [(0, 3)]
    assert table.verify().verdict == "proved"


def test_second_cleanup_deletes_nothing_and_a_later_one_continues(tmp_path: Path) -> None:
    made = aged(tmp_path)
    clean(made.table())
    assert plan(made.table()).files.height == 0
    made.clock.now_ms += 5 * DAY_MS
    latest = content(made.table())
    later = clean(made.table())
    assert later.verdict == "proved"  # from the checkpoint of the first cleanup
    assert fresh(made).versions() == [(30, 39)]
    assert content(fresh(made)) == latest


def test_unprovable_checkpoint_is_read_completely(tmp_path: Path) -> None:
    made = aged(tmp_path, at=(20,))
    for version in range(7):
        made.file(f"{version:020d}.json").unlink()
    latest = content(made.table())
    report = clean(made.table())
    assert report.verdict == "unprovable"
    assert sorted(report.files["version"]) == [*range(7, 20)]
    assert content(fresh(made)) == latest


def test_unprovable_checkpoint_that_differs_from_the_checksum_is_refused(
    tmp_path: Path,
) -> None:
    made = aged(tmp_path, at=())
    made.checkpoint(20, 40, without="g3.parquet")
    for version in range(7):
        made.file(f"{version:020d}.json").unlink()
    true = sum("add" in action for action in made.state(20))
    body = {"numFiles": true, "tableSizeBytes": true * 10, "numMetadata": 1, "numProtocol": 1}
    made.put(f"{20:020d}.crc", json.dumps(body).encode(), 40)
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="broken"):
        made.table().cleanup(plan=False)
    assert made.names() == before


def test_files_written_after_the_plan_are_kept(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    made.put(f"{7:020d}.checkpoint.parquet", b"x", 50)
    made.put(f"{3:020d}.json", made.file(f"{3:020d}.json").read_bytes(), 56)
    report = found.apply()
    left = made.names()
    assert f"{7:020d}.checkpoint.parquet" in left
    assert f"{3:020d}.json" in left  # written again since the plan
    assert report.files.height == 21


def test_apply_deletes_only_what_is_still_allowed(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    made.clock.now_ms -= 20 * DAY_MS
    report = found.apply()
    assert set(report.files["version"]) == {0, 1, 2, 3, 4}
    assert fresh(made).versions() == [(5, 39)]


def test_commits_are_deleted_oldest_first_and_before_their_checkpoints(tmp_path: Path) -> None:
    made = aged(tmp_path, "multipart")
    made.put(f"{3:020d}.{8:020d}.compacted.json", b"{}", 50)
    made.put(f"{3:020d}.crc", b"{}", 50)
    order = clean(made.table()).files
    assert order["kind"].to_list()[0] == "compaction"
    commits = order.filter(pl.col("kind") == "commit")
    assert commits["version"].is_sorted()
    kinds = order["kind"].to_list()
    assert kinds.index("checkpoint") > max(i for i, k in enumerate(kinds) if k == "commit")
    parts = [p.split(".")[2] for p in order.filter(pl.col("kind") == "checkpoint")["path"]]
    assert parts == ["0000000001", "0000000001", "0000000002", "0000000002"]


def test_checkpoint_in_last_checkpoint_is_kept_at_any_age(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.put("_last_checkpoint", b'{"version":5,"size":1}', 40)
    before = content(made.table())
    clean(made.table())
    assert fresh(made).versions() == [(5, 5), (CUTOFF, 39)]
    assert content(fresh(made)) == before
    assert DeltaTable(str(made.root)).version() == 39


@given(seed=st.integers(0, 2**32))
@settings(max_examples=share_of(12))
def test_any_log_reads_the_same_after_cleanup(tmp_path_factory: Any, seed: int) -> None:
    """With any content of the log, retained versions survive, and a refusal changes nothing."""
    rng = random.Random(seed)
    made = MadeLog(tmp_path_factory.mktemp("log") / "table", writer_features=("v2Checkpoint",))
    age = 75.0
    for _ in range(rng.randrange(5, 30)):
        age -= rng.choice([0, 0.5, 2, 5])
        made.commit(rng.choice([age, age, age, 900, -10, age + 3]))
    versions = len(made.states)
    for version in range(versions):
        if rng.random() < 0.3:
            layout = rng.choice(["classic", "multipart", "v2-json", "v2-parquet"])
            written = made.checkpoint(version, rng.choice([50, 1]), layout)
            if rng.random() < 0.2:
                path = rng.choice(written)
                if rng.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[: rng.randrange(1, 300)])
                    made.age(path, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        before = {v: _read(made.table(), v) for v in range(versions)}
        names = made.names()
        try:
            found = plan(made.table())
            report = found.apply()
        except (UnsafeRetentionError, CorruptionError):
            assert made.names() == names
            return
        first = found.oldest_promised if found.oldest_promised is not None else 0
        assert {v: _read(fresh(made), v) for v in range(first, versions)} == {
            v: held for v, held in before.items() if v >= first
        }
        assert made.names() == names - {p.split("/", 1)[1] for p in report.files["path"]}


def _read(table: Table, version: int) -> Any:
    try:
        return content(table, version)
    except LakelogError as error:
        return type(error)
