"""A dialect in its own folder: opened, committed to, checkpointed, repaired, cleaned up."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.dialects import registry
from lakelog.dialects.log_folders import FOLDERS
from lakelog.errors import (
    InvalidInputError,
    InvalidPropertyError,
    LakelogWarning,
    TableNotFoundError,
)
from tests.dialects.toy.dialect import FOLDER, ToyDialect, last_line

SCHEMA = pl.Schema({"day": pl.String, "x": pl.Int64})
KEPT_MS = 365 * 86_400_000


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    registry.register(ToyDialect())
    yield
    registry.unregister("toy")


def table(path: Path, commits: int = 3) -> lakelog.Table:
    made = lakelog.create(str(path), SCHEMA, ["day"], format="toy")
    for number in range(commits):
        with made.transaction() as tx:
            tx.add(
                path=f"day=a/{number}.parquet",
                size=10 + number,
                partitionValues={"day": "a"},
                stats={"numRecords": 1, "minValues": {"x": number}, "maxValues": {"x": number}},
            )
    return made


def paths(opened: lakelog.Table, version: int | None = None) -> list[str]:
    return sorted(opened.snapshot(version).files().collect()["path"])


def test_registry_lists_the_log_folder_of_every_dialect() -> None:
    assert {d.name: d.log_folder for d in registry.registered()} == FOLDERS
    assert list(FOLDERS) == ["delta", "indextables", "toy"]


def test_table_is_created_opened_and_committed_to(tmp_path: Path) -> None:
    made = table(tmp_path)
    assert {p.name for p in (tmp_path / FOLDER).iterdir()} == {
        f"{version:08d}.ndjson" for version in range(4)
    }
    opened = lakelog.open(str(tmp_path))
    assert (opened.format, opened.version()) == ("toy", 3)
    assert paths(opened) == [f"day=a/{n}.parquet" for n in range(3)]
    assert paths(opened, 2) == [f"day=a/{n}.parquet" for n in range(2)]
    found = opened.snapshot().files(where=pl.col("x") > 1).collect()
    assert found["path"].to_list() == ["day=a/2.parquet"]
    assert made.history()["version"].to_list() == [3, 2, 1, 0]


def test_concurrent_commits_are_rebased_or_refused(tmp_path: Path) -> None:
    made = table(tmp_path)
    ours, theirs = made.transaction(), made.transaction()
    theirs.remove(path="day=a/0.parquet")
    theirs.commit()
    ours.add(path="day=a/9.parquet", size=1, partitionValues={"day": "a"})
    assert ours.commit() == 5
    late = made.transaction()
    late.remove(path="day=a/9.parquet")
    other = made.transaction()
    other.remove(path="day=a/9.parquet")
    other.commit()
    with pytest.raises(lakelog.errors.ConflictError):
        late.commit()


def test_checkpoint_is_written_verified_and_read(tmp_path: Path) -> None:
    made = table(tmp_path)
    with made.transaction() as tx:
        tx.remove(path="day=a/1.parquet")
    report = made.checkpoint()
    assert (report.layout, report.num_adds) == ("state", 2)
    assert (tmp_path / FOLDER / "latest").read_bytes() == b"4"
    for version in range(4):
        (tmp_path / FOLDER / f"{version:08d}.ndjson").unlink()
    opened = lakelog.open(str(tmp_path))
    assert paths(opened) == ["day=a/0.parquet", "day=a/2.parquet"]
    assert opened.snapshot().tombstones().collect()["path"].to_list() == ["day=a/1.parquet"]
    with pytest.raises(InvalidInputError, match="unknown checkpoint layout"):
        opened.checkpoint(layout="classic")


def test_verify_proves_a_checkpoint_and_names_a_wrong_one(tmp_path: Path) -> None:
    made = table(tmp_path)
    made.checkpoint()
    assert made.verify().verdict == "proved"
    state = tmp_path / FOLDER / "00000003.state"
    lines = b"".join(state.read_bytes().splitlines(keepends=True)[:-2])
    state.write_bytes(lines + last_line(lines))
    assert lakelog.open(str(tmp_path)).verify().verdict == "wrong"


def test_truncated_checkpoint_is_not_read(tmp_path: Path) -> None:
    table(tmp_path).checkpoint()
    state = tmp_path / FOLDER / "00000003.state"
    data = state.read_bytes()
    ends = [at for at, byte in enumerate(data[:-1], 1) if byte == ord("\n")]
    for length in (0, 1, *ends, len(data) - 2):
        state.write_bytes(data[:length])
        with pytest.warns(LakelogWarning, match="was ignored"):
            assert len(paths(lakelog.open(str(tmp_path), upkeep=False))) == 3


@pytest.mark.parametrize("pointer", ["9" * 5000, "\u0663", "", "x"])
def test_wrong_pointer_is_repaired(tmp_path: Path, pointer: str) -> None:
    made = table(tmp_path)
    (tmp_path / FOLDER / "latest").write_text(pointer, "utf-8")
    (tmp_path / FOLDER / "0000000\u0664.ndjson").write_bytes(b"not a commit")
    assert lakelog.open(str(tmp_path)).version() == 3
    assert made.doctor().findings
    made.checkpoint()
    assert (tmp_path / FOLDER / "latest").read_bytes() == b"3"


def test_cleanup_removes_the_commits_below_an_old_checkpoint(tmp_path: Path) -> None:
    made = table(tmp_path)
    made.checkpoint()
    with made.transaction() as tx:
        tx.add(path="day=a/9.parquet", size=1, partitionValues={"day": "a"})
    made.checkpoint()
    later = lakelog.Table(replace(made.log, clock=lambda: made.log.clock() + KEPT_MS))
    plan = later.cleanup(retention=dt.timedelta(days=30))
    assert plan.files.height
    plan.apply()
    left = {p.name for p in (tmp_path / FOLDER).iterdir() if p.is_file()}
    assert "00000000.ndjson" not in left
    assert paths(lakelog.open(str(tmp_path))) == [
        *(f"day=a/{n}.parquet" for n in range(3)),
        "day=a/9.parquet",
    ]


def test_rules_of_the_dialect_for_features_and_properties_apply(tmp_path: Path) -> None:
    made = table(tmp_path)
    with made.transaction() as tx:
        tx.set_protocol(features=["shiny"])
    assert made.snapshot().table_configuration.supports("shiny")
    with pytest.raises(lakelog.errors.UnsupportedFeatureError, match="deletionVectors"):
        made.transaction().set_protocol(features=["deletionVectors"])
    with pytest.raises(InvalidPropertyError), made.transaction() as tx:
        tx.set_metadata(configuration={"lakelog.checkpoint.nothing": "1"})


def test_registered_dialect_has_a_log_folder_of_its_own(tmp_path: Path) -> None:
    class Second(ToyDialect):
        name = "second"

    with pytest.raises(InvalidInputError, match="same log folder"):
        registry.register(Second())
    table(tmp_path)
    registry.unregister("toy")
    with pytest.raises(TableNotFoundError):
        lakelog.open(str(tmp_path))
