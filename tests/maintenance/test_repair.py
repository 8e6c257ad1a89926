"""Repair: each damage is found, and repaired if that is safe or refused with the reason."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import lakelog
from lakelog import LakelogWarning, Table, UnavailableError, UnrepairableError
from lakelog.maintenance.repair import RepairPlan, RepairReport
from lakelog.storage import StoreWrapper, open_store
from lakelog.storage.base import FileEntry
from lakelog.testing import Fault, InjectingStore, Kind, Rule
from tests.budget import points
from tests.maintenance.logs import deny
from tests.replaced_tables import WRITERS, replaced
from tests.transaction.tables import new_table, open_with_rules, paths

LOG = {"delta": "_delta_log", "indextables": "_transaction_log"}
V2 = {"delta.checkpointPolicy": "v2"}


def checkpointed(
    where: Path,
    form: str = "delta",
    layout: str = "auto",
    configuration: dict[str, str] | None = None,
) -> Table:
    """A copy of a log with eight commits, some files removed, and checkpoints at 4 and 8."""
    made = where.parents[1] / f"{form} {layout} {sorted((configuration or {}).items())}"
    if not made.exists():
        _make(made, form, layout, configuration)
    shutil.copytree(made, where)
    return lakelog.open(str(where))


def _make(where: Path, form: str, layout: str, configuration: dict[str, str] | None) -> None:
    table = new_table(str(where), form, configuration=configuration)
    for n in range(1, 9):
        with table.transaction() as tx:
            tx.add(path=f"f{n}", size=n)
            if n in {3, 7}:
                tx.remove(path=f"f{n - 1}", size=n - 1, partitionValues={})
        if n in {4, 8}:
            table.checkpoint(layout=layout)


def without_two_files(where: Path) -> Table:
    """A copy of a log with its data files, but without two in folders of their own."""
    table = checkpointed(where)
    for name in paths(table):
        (where / name).write_bytes(bytes(int(name[1:])))
    with table.transaction() as tx:
        tx.add(path="p=a/x", size=1)
        tx.add(path="p=b/x", size=1)
    return table


def plan_of(table: Table, **options: Any) -> RepairPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        found: RepairPlan = table.repair(**options)
    return found


def repaired(table: Table, **options: Any) -> RepairReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        found: RepairReport = table.repair(plan=False, **options)
    return found


def kinds_and_actions(plan: RepairPlan) -> list[tuple[str, str]]:
    return plan.findings.select("kind", "action").rows()


def newest(where: Path, form: str = "delta", pattern: str = "*8.checkpoint*") -> Path:
    (file,) = [f for f in (where / LOG[form]).rglob(pattern) if ".lakelog" not in str(f)]
    return file


def state(where: Path) -> pl.DataFrame:
    return lakelog.open(str(where)).snapshot().files().sort("path").collect()


def truncate(where: Path) -> None:
    file = newest(where)
    file.write_bytes(file.read_bytes()[:-100])


def lose_files(where: Path) -> None:
    """Valid Parquet without some of its rows."""
    file = newest(where)
    table = pq.read_table(file)
    keep = [i for i, add in enumerate(table["add"].to_pylist()) if not add or add["path"] != "f5"]
    pq.write_table(table.take(keep), file)


def garbage(where: Path) -> None:
    newest(where).write_bytes(b"this is no Parquet at all")


def pointer(where: Path) -> Path:
    return where / "_delta_log" / "_last_checkpoint"


def test_valid_table_has_no_findings(tmp_path: Path) -> None:
    where = tmp_path / "table"
    plan = plan_of(checkpointed(where))
    assert plan.is_clean
    assert plan.findings.height == 0
    assert "no problem was found in the log; the data files were not checked" in str(plan)
    report = repaired(lakelog.open(str(where)))
    assert (report.repaired.height, report.left.height, report.quarantine) == (0, 0, None)


@pytest.mark.parametrize("damage", [truncate, lose_files, garbage])
def test_broken_or_wrong_checkpoint_is_written_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    expected = state(where)
    damage(where)
    plan = plan_of(table)
    assert kinds_and_actions(plan) == [("checkpoint", "write")]
    assert "f" in str(plan)
    assert "8.checkpoint" in plan._repr_html_()
    broken = newest(where).read_bytes()
    report = repaired(table)
    assert report.left.height == 0
    assert state(where).equals(expected)
    snapshot = lakelog.open(str(where)).snapshot()
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.version == 8
    assert not snapshot.provenance.warnings
    assert sorted(f.split("/")[-1] for f in DeltaTable(str(where)).file_uris()) == paths(table)
    assert lakelog.open(str(where)).verify().verdict == "proved"
    # Nothing is lost: the broken checkpoint is in quarantine.
    (kept,) = where.rglob(f".lakelog-quarantine/{report.quarantine}/*checkpoint*")
    assert kept.read_bytes() == broken
    assert table.quarantines()["by"].to_list() == ["repair"]
    assert plan_of(table).is_clean


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
def test_all_broken_checkpoints_are_repaired_in_one_pass(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    expected = state(where)
    for pattern in ("*4.checkpoint*", "*8.checkpoint*"):
        newest(where, pattern=pattern).write_bytes(b"broken")
    report = table.repair().apply(strict=True)
    assert report.repaired["version"].to_list() == [4, 8]
    assert plan_of(table).is_clean
    assert state(where).equals(expected)


def test_checkpoint_with_missing_sidecars_is_repaired(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where, configuration=V2)
    expected = state(where)
    for sidecar in (where / "_delta_log" / "_sidecars").iterdir():
        sidecar.unlink()
    assert ("checkpoint", "write") in kinds_and_actions(plan_of(table))
    assert repaired(table).left.height == 0
    assert state(where).equals(expected)
    assert lakelog.open(str(where)).verify().verdict == "proved"


@pytest.mark.parametrize("layout", ["json", "flattened"])
def test_indextables_checkpoints_are_repaired(tmp_path: Path, layout: str) -> None:
    where = tmp_path / "table"
    table = checkpointed(where, "indextables", layout)
    expected = state(where)
    pattern = "*8.checkpoint.parquet" if layout == "flattened" else "*8.checkpoint.json"
    file = newest(where, "indextables", pattern)
    file.write_bytes(file.read_bytes()[:50])
    assert kinds_and_actions(plan_of(table)) == [("checkpoint", "write")]
    assert repaired(table).left.height == 0
    assert state(where).equals(expected)
    assert plan_of(table).is_clean


def test_pointer_to_a_checkpoint_that_other_readers_cannot_read_is_moved(
    tmp_path: Path,
) -> None:
    where = tmp_path / "table"
    table = checkpointed(where, "indextables", "json")
    pointer = where / "_transaction_log" / "_last_checkpoint"
    with table.transaction() as tx:
        tx.add(path="late", size=1)
    table.checkpoint(layout="flattened")
    assert json.loads(pointer.read_bytes())["version"] == 8
    assert plan_of(table).is_clean
    pointer.write_text('{"version": 9}')
    assert kinds_and_actions(plan_of(table)) == [("pointer", "write")]
    assert repaired(table).left.height == 0
    assert json.loads(pointer.read_bytes())["version"] == 8
    assert plan_of(table).is_clean


def test_checkpoint_that_cannot_be_replayed_is_refused_with_the_reason(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    for version in range(6):
        (where / "_delta_log" / f"{version:020d}.json").unlink()
    newest(where, pattern="*4.checkpoint*").unlink()
    truncate(where)
    plan = plan_of(table)
    refused = plan.findings.filter(pl.col("kind") == "checkpoint")
    assert refused["action"].to_list() == ["refuse"]
    assert "commits that are needed to replay it are missing" in refused["why"][0]
    before = {f: f.read_bytes() for f in where.rglob("*") if f.is_file()}
    with pytest.raises(UnrepairableError, match="cannot be repaired") as raised:
        repaired(table, strict=True)
    assert (
        "commits that are needed to replay it are missing" in (raised.value.hint or "")
        or raised.value.hint
    )
    assert {f: f.read_bytes() for f in where.rglob("*") if f.is_file()} == before
    report = repaired(table)
    assert "checkpoint" in report.left["kind"].to_list()
    assert newest(where).exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_checkpoint_of_a_replaced_table_is_repaired_and_the_repair_undone(
    tmp_path: Path, writer: str
) -> None:
    where = tmp_path / "table"
    table = replaced(where, writer)
    expected = state(where)
    file = where / table.checkpoint().paths[0]
    file.write_bytes(b"torn")
    pointer(where).write_bytes(b"{")
    assert kinds_and_actions(plan_of(table)) == [("checkpoint", "write"), ("pointer", "write")]
    report = repaired(table)
    assert report.left.height == 0
    assert plan_of(table).is_clean
    assert table.verify().verdict == "proved"
    assert json.loads(pointer(where).read_text())["version"] == 3
    table.undo_cleanup(str(report.quarantine), replace=True)
    assert file.read_bytes() == b"torn"
    with pytest.warns(LakelogWarning, match="was ignored"):
        assert state(where).equals(expected)


def test_repair_never_restores_the_history_of_another_table(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    first = where / "_delta_log" / "00000000000000000000.json"
    text = first.read_text()
    identity = json.loads(next(line for line in text.splitlines() if "metaData" in line))
    first.write_text(text.replace(identity["metaData"]["id"], "another-table"))
    newest(where, pattern="*4.checkpoint*").unlink()
    pointer(where).unlink()
    (finding,) = plan_of(table).findings.filter(pl.col("kind") == "checkpoint").rows(named=True)
    assert finding["action"] == "keep"
    assert "another table" in finding["problem"]
    before = newest(where).read_bytes()
    repaired(table)
    assert table.checkpoint().verified is False
    assert newest(where).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b'{"version":99}', b'{"version":4}', b'{"version":8,"size":1,"checksum":"x"}'],
)
def test_torn_dangling_or_outdated_pointer_is_repaired(tmp_path: Path, content: bytes) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    pointer(where).write_bytes(content)
    assert kinds_and_actions(plan_of(table)) == [("pointer", "write")]
    assert repaired(table).left.height == 0
    body = json.loads(pointer(where).read_text())
    assert (body["version"], body["numOfAddFiles"]) == (8, 6)
    assert DeltaTable(str(where)).version() == 8
    assert plan_of(table).is_clean


def test_checkpoint_that_is_written_during_the_diagnosis_is_no_problem(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)

    def overtake(*_: object) -> None:
        if not newer:
            newer.append(lakelog.open(where, upkeep=False).alter.set_properties({"a": "1"}))
            lakelog.open(where).checkpoint()

    newer: list[object] = []
    assert table.repair(plan=False, progress=overtake).repaired.is_empty()
    assert newer
    assert json.loads(pointer(where).read_text())["version"] == 9


def test_cleanup_during_the_diagnosis_is_no_damage(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    for file in (where / "_delta_log").iterdir():
        os.utime(file, (1, 1))

    def clean_up(*_: object) -> None:
        if not reports:
            other = lakelog.open(where, upkeep=False)
            reports.append(other.cleanup(plan=False, checkpoint_retention="0 days", force=True))

    reports: list[Any] = []
    assert table.repair(progress=clean_up).is_clean
    assert reports[0].files.height > 1


def test_missing_pointer_is_written(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    pointer(where).unlink()
    assert kinds_and_actions(plan_of(table)) == [("pointer", "write")]
    repaired(table)
    assert plan_of(table).is_clean


def test_an_outdated_pointer_stays_if_it_cannot_be_replaced(tmp_path: Path) -> None:
    where = tmp_path / "table"
    checkpointed(where)
    pointer(where).write_bytes(b'{"version":4}')
    table, _ = open_with_rules(str(where), "delta", [Rule("fail", ["put"], times=None)])
    assert repaired(table).left["kind"].to_list() == ["pointer"]
    assert pointer(where).read_bytes() == b'{"version":4}'


def test_a_pointer_without_any_checkpoint_is_deleted(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    for file in (where / "_delta_log").glob("*checkpoint*.parquet"):
        file.unlink()
    assert kinds_and_actions(plan_of(table)) == [("pointer", "delete")]
    repaired(table)
    assert not pointer(where).exists()


def test_checksum_whose_version_has_other_digits_is_ignored(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    (where / "_delta_log" / f"{'²' * 20}.crc").write_bytes(b"{}")
    assert plan_of(table).is_clean


def test_wrong_checksum_is_written_again(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    wrong = {"tableSizeBytes": 1, "numFiles": 6, "numMetadata": 1, "numProtocol": 1}
    path = where / "_delta_log" / f"{8:020d}.crc"
    for content in (json.dumps(wrong), json.dumps(wrong | {"tableSizeBytes": 1 << 64}), "{"):
        path.write_text(content)
        assert kinds_and_actions(plan_of(table)) == [("checksum", "write")]
        assert repaired(table).left.height == 0
        assert json.loads(path.read_text())["tableSizeBytes"] == 1 + 3 + 4 + 5 + 7 + 8
        assert plan_of(table).is_clean


def test_nothing_is_written_again_under_a_newer_writer_version(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = checkpointed(where)
    log = where / "_delta_log"
    newer = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}
    (log / f"{9:020d}.json").write_text(json.dumps(newer) + "\n")
    (log / f"{9:020d}.crc").write_text("{")
    (log / f"{9:020d}.checkpoint.parquet").write_bytes(newest(where).read_bytes()[:-9])
    (log / "_last_checkpoint").write_text("{")
    before = {path: path.is_file() and path.read_bytes() for path in where.rglob("*")}
    plan = plan_of(table, remove_missing=True)
    assert set(plan.findings["action"]) == {"refuse"}
    report = repaired(table, remove_missing=True)
    assert report.left.equals(plan.findings)
    assert report.left["kind"].unique(maintain_order=True).to_list() == [
        "checkpoint",
        "pointer",
        "checksum",
        "data-missing",
    ]
    assert report.left["why"].str.contains("minWriterVersion 8|needs a newer writer: 8").all()
    assert {path: path.is_file() and path.read_bytes() for path in where.rglob("*")} == before


def test_files_missing_from_an_append_only_table_are_not_planned_to_be_removed(
    tmp_path: Path,
) -> None:
    table = new_table(str(tmp_path), "delta", configuration={"delta.appendOnly": "true"})
    with table.transaction() as tx:
        tx.add(path="lost", size=1)
    plan = plan_of(table, remove_missing=True)
    assert kinds_and_actions(plan) == [("data-missing", "refuse")]
    assert "append-only" in plan.findings["why"].item()


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_missing_live_files_are_reported_and_removed_only_on_request(
    tmp_path: Path, form: str
) -> None:
    where = tmp_path / "table"
    table = checkpointed(where, form)
    live = paths(table)
    for name in live[1:]:
        (where / name).write_bytes(bytes(int(name[1:])))
    assert plan_of(table).is_clean
    plan = plan_of(table, check_files=True)
    assert not plan.is_clean
    (row,) = plan.findings.rows(named=True)
    assert (row["kind"], row["path"], row["action"]) == ("data-missing", live[0], "refuse")
    assert row["num_files"] == 1
    assert "restore it" in row["why"]
    assert repaired(table, check_files=True).left["path"].to_list() == [live[0]]
    assert kinds_and_actions(plan_of(table, remove_missing=True)) == [("data-missing", "remove")]
    report = repaired(table, remove_missing=True)
    assert report.version == 9
    assert paths(lakelog.open(str(where))) == live[1:]
    assert table.history(limit=1)["operation"][0] == "FSCK"
    inventory = pl.DataFrame({"path": live[2:], "size": 1, "modified_ms": 1})
    assert plan_of(table, check_files=True, inventory=inventory).is_clean  # it is old
    (where / live[1]).unlink()
    found = plan_of(table, check_files=True, inventory=inventory)
    assert found.findings["path"].to_list() == [live[1]]


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_live_file_of_another_length_is_reported_and_never_removed(
    tmp_path: Path, form: str
) -> None:
    where = tmp_path / "table"
    table = checkpointed(where, form)
    for name in paths(table):
        (where / name).write_bytes(bytes(int(name[1:])))
    (where / "f4").write_bytes(bytes(3))
    (row,) = plan_of(table, check_files=True).findings.rows(named=True)
    assert (row["kind"], row["path"], row["action"]) == ("data-length", "f4", "refuse")
    assert row["problem"] == "a live file has 3 bytes, and the log records 4"
    assert repaired(table, remove_missing=True).left["path"].to_list() == ["f4"]
    assert "f4" in paths(lakelog.open(str(where)))


def test_an_empty_file_is_reported_also_if_the_log_records_no_length(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = lakelog.create(where, {"id": pl.Int64}, upkeep=False)
    with table.transaction() as tx:
        tx.add(path="unknown", size=0)
        tx.add(path="empty", size=0)
    (where / "unknown").write_bytes(b"PAR1")
    (where / "empty").touch()
    (row,) = plan_of(table, check_files=True).findings.rows(named=True)
    assert (row["kind"], row["path"], row["action"]) == ("data-length", "empty", "refuse")
    assert row["problem"] == "a live file is empty, and the log records 0 bytes"


@pytest.mark.parametrize("link", ["p=a", "p=a/x"])
def test_files_behind_a_dangling_link_are_not_removed(tmp_path: Path, link: str) -> None:
    where = tmp_path / "table"
    table = without_two_files(where)
    (where / link).parent.mkdir(exist_ok=True)
    (where / link).symlink_to(tmp_path / "not mounted")
    report = repaired(table, remove_missing=True)
    assert report.repaired["path"].to_list() == ["p=b/x"]
    assert report.left.select("kind", "path", "action").rows() == [
        ("data-missing", "p=a/x", "refuse")
    ]
    assert "may not be reachable" in report.left["why"][0]


def test_files_in_a_folder_that_cannot_be_read_are_reported_and_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "table"
    table = without_two_files(where)
    with table.transaction() as tx:
        tx.add(path="p=a/y", size=1)
    for folder in ("p=a", "lost+found"):
        (where / folder).mkdir()
        deny(monkeypatch, where / folder)
    report = repaired(table, remove_missing=True)
    assert report.repaired.select("kind", "path").rows() == [("data-missing", "p=b/x")]
    assert report.left.select("kind", "path", "action", "num_files").rows() == [
        ("data-unreadable", "p=a/x", "refuse", 2)
    ]
    (found,) = (each for each in table.doctor(files=True).findings if "data-" in each.kind)
    assert (found.severity, found.kind, found.paths) == ("error", "data-unreadable", ("p=a/x",))
    assert found.num_files == 2


class AppendsAfterListing(StoreWrapper):
    """Another writer appends a row when the folder was listed."""

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        yield from list(super().walk(folder))
        lakelog.write(self.root, pl.DataFrame({"id": [2]}))


def test_files_that_are_written_during_the_listing_are_not_removed(tmp_path: Path) -> None:
    lakelog.write(tmp_path / "t", pl.DataFrame({"id": [1]}))
    table = lakelog.open(store=AppendsAfterListing(open_store(str(tmp_path / "t"))), upkeep=False)
    report = repaired(table, remove_missing=True)
    assert report.repaired.is_empty()
    assert lakelog.open(tmp_path / "t").to_polars()["id"].sort().to_list() == [1, 2]


def test_wrong_lengths_and_missing_deletion_vectors_are_reported_and_not_repaired(
    tmp_path: Path,
) -> None:
    vectors = {"delta.enableDeletionVectors": "true"}
    rows = pl.DataFrame({"id": range(20_000), "p": [0, 1] * 10_000})
    lakelog.write(tmp_path, rows, partition_by=["p"], configuration=vectors)
    table = lakelog.open(tmp_path, upkeep=False)
    table.delete((pl.col("id").hash() % 3 == 0) & (pl.col("p") == 0))
    assert plan_of(table, check_files=True).is_clean
    files = table.snapshot().files(flatten=True).sort("partition.p").collect()
    assert files["dvStorageType"].to_list() == ["u", None]
    with (tmp_path / files["path"][1]).open("ab") as file:
        file.write(b"x")
    (vector,) = tmp_path.rglob("deletion_vector_*.bin")
    vector.rename(tmp_path / "kept")
    for options in ({"check_files": True}, {"remove_missing": True}):
        left = repaired(table, **options).left
        assert left["kind"].to_list() == ["data-length", "vector-missing"]
        assert left["path"].to_list() == [files["path"][1], str(vector.relative_to(tmp_path))]
        assert left["problem"][0].endswith(f"and the log records {files['size'][1]:,}")
        assert left["problem"][1] == "the deletion vector of a live file was not found"
    (tmp_path / files["path"][0]).unlink()  # its deletion vector does not matter then
    assert repaired(table, remove_missing=True).left["path"].to_list() == [files["path"][1]]


def test_short_deletion_vector_files_are_reported_and_never_dropped(tmp_path: Path) -> None:
    vectors = {"delta.enableDeletionVectors": "true"}
    rows = pl.DataFrame({"id": range(20_000), "p": [0, 1] * 10_000})
    lakelog.write(tmp_path, rows, partition_by=["p"], configuration=vectors)
    table = lakelog.open(tmp_path, upkeep=False)
    table.delete(pl.col("id").hash() % 3 == 0)
    files = table.snapshot().files().collect()
    (path,) = tmp_path.rglob("deletion_vector_*.bin")  # of both data files
    whole = path.read_bytes()
    end = files.select(pl.max_horizontal(pl.col("dvOffset") + pl.col("dvSizeInBytes") + 8))
    assert len(whole) == end.max().item()
    path.write_bytes(whole + b"later")
    assert plan_of(table, check_files=True).is_clean
    expected = table.to_polars()
    for length in (len(whole) - 1, len(whole) // 2, 1, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(lakelog.CorruptionError):
            table.to_polars()
        for options in ({"check_files": True}, {"remove_missing": True}):
            (row,) = repaired(table, **options).left.rows(named=True)
            assert (row["kind"], row["path"]) == ("vector-length", path.name)
            assert row["problem"] == (
                f"a file of deletion vectors has {length:,} bytes, and the vectors that the log "
                f"records in it need {len(whole):,}"
            )
            assert "the rows that it deletes would be visible again" in row["why"]
        (found,) = (each for each in table.doctor(files=True).findings if each.severity == "error")
        assert (found.kind, found.num_files, found.paths) == ("vector-length", 1, (path.name,))
    path.write_bytes(whole)
    assert table.to_polars().equals(expected)
    assert table.snapshot().files().collect().equals(files)


def test_missing_commit_is_not_repaired(tmp_path: Path) -> None:
    where = tmp_path / "table"
    checkpointed(where)
    table = lakelog.open(str(where))
    with table.transaction() as tx:
        tx.add(path="x", size=1)
    with table.transaction() as tx:
        tx.add(path="y", size=1)
    (where / "_delta_log" / f"{9:020d}.json").unlink()
    plan = plan_of(lakelog.open(str(where)))
    assert ("log", "refuse") in kinds_and_actions(plan)


@pytest.mark.parametrize("damage", ["copied", "truncated"])
def test_damaged_commit_below_a_valid_checkpoint_is_named(tmp_path: Path, damage: str) -> None:
    table = checkpointed(tmp_path / "table")
    logs = tmp_path / "table" / "_delta_log"
    commit = logs / f"{3:020d}.json"
    copy = (logs / f"{2:020d}.json").read_text()
    commit.write_text(copy if damage == "copied" else commit.read_text()[:-50])
    plan = plan_of(table)
    (finding,) = plan.findings.filter(path=f"_delta_log/{commit.name}").rows(named=True)
    assert finding["action"] == "refuse"
    assert "damaged" in finding["problem"]
    assert not plan.is_clean
    assert not repaired(table).repaired.height


@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_table_is_readable_after_any_fault_and_a_second_repair_succeeds(
    tmp_path: Path, fault: Fault
) -> None:
    original = tmp_path / "original"
    checkpointed(original)
    expected = paths(lakelog.open(str(original)))
    truncate(original)
    pointer(original).write_bytes(b"{")
    kinds: list[Kind] = ["upload", "move", "delete", "put", "put_if_absent"]
    without_faults = tmp_path / "calm"
    shutil.copytree(original, without_faults)
    table, store = open_with_rules(str(without_faults), "delta")
    repaired(table)
    for nth in points(each for each in store.operations if each[0] in kinds):
        where = tmp_path / f"table-{nth}"
        shutil.copytree(original, where)
        rule = Rule(fault, kinds, nth=nth)
        table, _ = open_with_rules(str(where), "delta", [rule])
        outcome: RepairReport | None = None
        with contextlib.suppress(UnavailableError):
            outcome = repaired(table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LakelogWarning)
            assert paths(lakelog.open(str(where))) == expected, nth
        again = repaired(lakelog.open(str(where)))
        assert again.left.height == 0, nth
        assert plan_of(lakelog.open(str(where))).is_clean, nth
        if outcome is not None and outcome.left.height == 0 and again.repaired.height == 0:
            break
    else:
        pytest.fail("no repair completed without a fault")


def test_repair_of_a_read_only_store_can_be_planned(tmp_path: Path) -> None:
    where = tmp_path / "table"
    checkpointed(where)
    truncate(where)

    class ReadOnly(InjectingStore):
        @property
        def refusal(self) -> str | None:
            return "this store is read only"

    table, _ = open_with_rules(str(where), "delta")
    frozen = Table(type(table.log)(ReadOnly(open_store(str(where))), table.log.dialect))
    assert kinds_and_actions(plan_of(frozen)) == [("checkpoint", "write")]
    with pytest.raises(lakelog.UnsupportedStoreError):
        repaired(frozen)
