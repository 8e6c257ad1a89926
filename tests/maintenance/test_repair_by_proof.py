"""Repair decides by proof: a checkpoint that the commits contradict is replaced only if records of
its version confirm the commits. The rows that a table returned before a repair are never lost.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import CheckpointValidationError, LakelogError, LakelogWarning, Table
from lakelog.checkpoint.version_checksum import write_checksum
from lakelog.cli import main
from tests.maintenance.test_repair import (
    LOG,
    checkpointed,
    kinds_and_actions,
    lose_files,
    newest,
    plan_of,
    repaired,
)
from tests.transaction.tables import each_format, new_table

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")


def made(where: Path, form: str = "delta", commits: int = 8, every: int = 3) -> Table:
    """A table with a file per commit, some removed again, and checkpoints every few commits."""
    table = new_table(str(where), form)
    for n in range(1, commits + 1):
        with table.transaction() as tx:
            tx.add(path=f"f{n}", size=n)
            if n % 4 == 0:
                tx.remove(path=f"f{n - 2}", size=n - 2, partitionValues={})
        if n % every == 0:
            table.checkpoint()
    return table


def commit(where: Path, version: int, form: str = "delta") -> Path:
    return where / LOG[form] / f"{version:020d}.json"


def overwrite_commit(where: Path, version: int, other: int, form: str = "delta") -> None:
    """Overwrite a commit with another one, like one of a writer that does not mark its commits."""
    content = commit(where, other, form).read_bytes()
    commit(where, version, form).write_bytes(content.replace(b"lakelogActions", b"otherActions"))


def content(where: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(where)): f.read_bytes()
        for f in where.rglob("*")
        if f.is_file() and ".lakelog" not in str(f)
    }


def live(where: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        files = lakelog.open(str(where)).snapshot().files()
        return files.collect()["path"].sort().to_list()


@each_format
def test_checkpoint_that_a_damaged_commit_contradicts_is_not_replaced(
    tmp_path: Path, form: str
) -> None:
    made(tmp_path, form)
    overwrite_commit(tmp_path, 1, 2, form)
    expected, before = live(tmp_path), content(tmp_path)
    table = lakelog.open(str(tmp_path))
    plan = plan_of(table)
    assert kinds_and_actions(plan) == [("checkpoint", "refuse")]
    (finding,) = plan.findings.rows(named=True)
    assert finding["version"] == 3
    assert "either the checkpoint or commits 0 to 3" in finding["why"]
    assert repaired(table).left.height == 1
    assert content(tmp_path) == before
    assert live(tmp_path) == expected
    assert table.verify(3).verdict == "wrong"
    with pytest.raises(CheckpointValidationError, match="replay gives") as raised:
        table.checkpoint(3)
    assert "commits 0 to 3" in (raised.value.hint or "")


@each_format
def test_broken_checkpoint_is_not_written_from_a_doubtful_one(tmp_path: Path, form: str) -> None:
    made(tmp_path, form, commits=9)
    overwrite_commit(tmp_path, 1, 2, form)
    newest(tmp_path, form, "*9.checkpoint*").write_bytes(b"broken")
    expected, before = live(tmp_path), content(tmp_path)
    # The commits deny the checkpoint of version 3; that of 6 was written from it.
    findings = plan_of(lakelog.open(str(tmp_path))).findings.filter(pl.col("kind") == "checkpoint")
    assert findings.select("version", "action").rows() == [(9, "refuse"), (3, "refuse")]
    assert "replayed from the checkpoint of version 6" in findings["why"][0]
    repaired(lakelog.open(str(tmp_path)))
    changed = {name for name, each in content(tmp_path).items() if before[name] != each}
    assert not [name for name in changed if not name.endswith("_last_checkpoint")]
    assert live(tmp_path) == expected


@each_format
def test_broken_checkpoint_is_written_from_a_valid_one_above_a_damaged_commit(
    tmp_path: Path, form: str
) -> None:
    made(tmp_path, form, commits=9)
    expected = live(tmp_path)
    cut = commit(tmp_path, 2, form)
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:-1]))
    newest(tmp_path, form, "*9.checkpoint*").write_bytes(b"broken")
    table = lakelog.open(str(tmp_path))
    written = table.repair(plan=False).repaired
    assert ("checkpoint", 9) in written.select("kind", "version").rows()
    assert live(tmp_path) == expected
    assert table.verify().is_proved


def test_checksum_is_not_replaced_if_only_a_doubtful_checkpoint_denies_it(tmp_path: Path) -> None:
    table = made(tmp_path)
    path = tmp_path / LOG["delta"] / f"{6:020d}.crc"
    overwrite_commit(tmp_path, 1, 2)
    body = json.loads(path.read_text())
    del body["fileSizeHistogram"]
    path.write_text(json.dumps(body | {"numFiles": 99}))
    assert kinds_and_actions(plan_of(table)) == [("checkpoint", "refuse"), ("checksum", "refuse")]


def test_damaged_commit_is_named_if_it_contradicts_another(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [0]}))
    table = lakelog.open(tmp_path, upkeep=False)
    for n in range(1, 6):
        table.append(pl.DataFrame({"id": [n]}))
    table.checkpoint()
    overwrite_commit(tmp_path, 2, 3)
    table = lakelog.open(tmp_path, upkeep=False)
    (why,) = plan_of(table).findings["why"]
    assert "commits 0 to 5 (commit 2 has the readVersion 2)" in why
    repaired(table)
    rows = lakelog.open(tmp_path, upkeep=False).to_polars()
    assert sorted(rows["id"]) == [0, 1, 2, 3, 4, 5]


def test_checksum_is_not_replaced_if_the_checkpoint_agrees_with_it(tmp_path: Path) -> None:
    made(tmp_path)
    first = commit(tmp_path, 0)
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] = {"delta.appendOnly": "true"}
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = content(tmp_path)
    assert kinds_and_actions(plan_of(lakelog.open(str(tmp_path)))) == [("checkpoint", "refuse")]
    repaired(lakelog.open(str(tmp_path)))
    assert content(tmp_path) == before


def test_wrong_checksum_above_the_checkpoint_is_reported(tmp_path: Path) -> None:
    table = made(tmp_path)
    path = tmp_path / LOG["delta"] / f"{8:020d}.crc"
    write_checksum(table.log, 8)
    body = json.loads(path.read_text())
    assert plan_of(table).is_clean
    histogram = body.pop("fileSizeHistogram")
    path.write_text(json.dumps(body | {"numFiles": 99}))
    plan = plan_of(table)
    assert kinds_and_actions(plan) == [("checksum", "refuse")]
    assert "commits 7 to 8" in plan.findings["why"][0]
    # With a histogram of its files, it contradicts itself.
    path.write_text(json.dumps(body | {"numFiles": 99, "fileSizeHistogram": histogram}))
    assert kinds_and_actions(plan_of(table)) == [("checksum", "write")]


def test_older_checkpoint_that_records_refute_is_replaced(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = made(where, commits=8, every=8)
    with table.transaction() as tx:
        tx.add(path="g", size=1)
    table.checkpoint()
    expected = live(where)
    lose_files(where)  # of version 8
    plan = plan_of(lakelog.open(str(where)))
    assert kinds_and_actions(plan) == [("checkpoint", "write")]
    assert plan.findings["version"].to_list() == [8]
    repaired(lakelog.open(str(where)))
    assert live(where) == expected
    assert plan_of(lakelog.open(str(where))).is_clean


def test_checkpoint_above_the_log_that_commits_contradict_is_not_published(tmp_path: Path) -> None:
    made(tmp_path)
    source = newest(tmp_path, pattern="*6.checkpoint*")
    shutil.copy(source, source.with_name(source.name.replace(f"{6:020d}", f"{9:020d}")))
    before = content(tmp_path)
    table = lakelog.open(str(tmp_path))
    assert "lakelog repair` verifies the checkpoint" in str(table.doctor())
    plan = plan_of(table)
    assert kinds_and_actions(plan) == [("checkpoint", "refuse")]
    assert "live in version 8 are neither live nor removed in it" in plan.findings["problem"][0]
    assert repaired(table).left.height == 1
    assert content(tmp_path) == before


@each_format
@pytest.mark.parametrize("seed", range(6))
def test_repair_never_changes_what_is_read(tmp_path: Path, form: str, seed: int) -> None:
    rng = random.Random(seed)
    made(tmp_path / "whole", form, rng.randint(5, 9), rng.randint(2, 4))
    folder = tmp_path / "whole" / LOG[form]
    names = sorted(f.name for f in folder.iterdir() if f.is_file())
    for trial, name in enumerate(rng.sample(names, min(4, len(names)))):
        where = tmp_path / str(trial)
        shutil.copytree(tmp_path / "whole", where)
        _damage(where / LOG[form] / name, rng)
        try:
            expected = live(where)
        except LakelogError:
            continue
        repaired(lakelog.open(str(where)))
        assert live(where) == expected, (seed, name)
        repaired(lakelog.open(str(where)))
        assert live(where) == expected, (seed, name)


def test_undo_of_a_repair_restores_what_it_replaced_on_request(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    lose_files(where)
    lost = newest(where).read_bytes()
    report = repaired(table)
    written = newest(where).read_bytes()
    assert report.quarantine is not None
    kept = table.undo_cleanup(report.quarantine)
    assert kept["outcome"].to_list() == ["kept"]
    assert newest(where).read_bytes() == written
    assert table.undo_cleanup(report.quarantine, replace=True)["outcome"].to_list() == ["back"]
    assert newest(where).read_bytes() == lost
    assert table.quarantines()["by"].to_list() == ["undo"]


def test_undo_of_a_repair_keeps_a_file_that_changed_after_it(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    lose_files(where)
    report = repaired(table)
    later = newest(where).read_bytes() + b"later"
    newest(where).write_bytes(later)
    with pytest.raises(SystemExit, match="1"):
        main(["undo", str(where), str(report.quarantine), "--replace"])
    assert newest(where).read_bytes() == later
    assert table.quarantines().height == 1


def _damage(file: Path, rng: random.Random) -> None:
    """Replace a file by its neighbour, drop some of its lines, or edit a value."""
    suffix = file.name[20:]
    alike = [f for f in file.parent.iterdir() if f.name[20:] == suffix and f != file]
    kind = rng.choice(["copy", "drop", "edit"])
    if kind == "copy" and alike:
        shutil.copy(rng.choice(sorted(alike)), file)
    elif file.suffix == ".parquet":
        frame = pl.read_parquet(file)
        frame.filter(pl.int_range(pl.len()) != rng.randrange(frame.height)).write_parquet(file)
    elif kind == "drop":
        lines = file.read_bytes().splitlines(keepends=True)
        lines.pop(rng.randrange(len(lines)))
        file.write_bytes(b"".join(lines))
    else:
        file.write_bytes(file.read_bytes().replace(b'"size":1', b'"size":7').replace(b"f3", b"f9"))


@pytest.mark.parametrize("records", ["checksum", "pointer"])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_unreadable_checkpoint_is_rebuilt_only_if_no_record_denies_the_commits(
    tmp_path: Path, records: str, is_damaged: bool
) -> None:
    made(tmp_path, commits=7, every=6)
    lost = {"checksum": "_delta_log/_last_checkpoint", "pointer": f"_delta_log/{6:020d}.crc"}
    (tmp_path / lost[records]).unlink()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*6.checkpoint*.parquet")
    checkpoint.write_bytes(b"x")
    if is_damaged:
        lines = commit(tmp_path, 3).read_text().splitlines(keepends=True)
        commit(tmp_path, 3).write_text("".join(line for line in lines if '"add"' not in line))
    before = content(tmp_path)
    repaired(lakelog.open(str(tmp_path)))
    findings = plan_of(lakelog.open(str(tmp_path))).findings
    checkpoints = findings.filter(pl.col("kind") == "checkpoint")
    if is_damaged:
        assert checkpoints["action"].to_list() == ["refuse"]
        assert "damaged" in checkpoints["why"][0]
        assert checkpoint.read_bytes() == b"x"
        assert {**content(tmp_path), **before} == content(tmp_path)
    else:
        assert checkpoints.height == 0
        assert live(tmp_path) == ["f1", "f3", "f4", "f5", "f6", "f7"]
