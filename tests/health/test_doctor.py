"""`Table.doctor` on real logs: its measures equal the content, and the remedies work."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import CorruptionError, LakelogWarning, NotRegularFileError, TableNotFoundError
from lakelog.cli import main
from lakelog.health.findings import HealthReport
from tests.handmade import FIRST_MS, Handmade, add, info, metadata, protocol, remove, vector


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        yield


def examined(table: lakelog.Table, **options: Any) -> HealthReport:
    with without_warnings():
        return table.doctor(**options)


def kinds(table: lakelog.Table, **options: Any) -> list[str]:
    return [found.kind for found in examined(table, **options).findings]


def follow(report: HealthReport, kind: str) -> None:
    """Run the remedy of a finding."""
    (remedy,) = (found.remedy for found in report.findings if found.kind == kind)
    assert remedy is not None
    with pytest.raises(SystemExit) as exited:
        main(shlex.split(remedy)[1:])
    assert exited.value.code == 0


def committed(path: Path, commits: int, properties: dict[str, str] | None = None) -> lakelog.Table:
    table = lakelog.create(
        path, {"id": pl.Int64, "p": pl.String}, ["p"], configuration=properties, upkeep=False
    )
    for number in range(commits):
        table.append(pl.DataFrame({"id": [number], "p": ["a"]}))
    return table


def test_new_table_has_no_finding(tmp_path: Path) -> None:
    report = committed(tmp_path / "t", 2).doctor()
    assert report.findings == ()
    assert "nothing needs doing" in str(report)
    assert report.measures.num_files == 2


def test_missing_table_raises_table_not_found_error(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    table = lakelog.open(tmp_path)
    with pytest.raises(TableNotFoundError):
        table.doctor()


def test_table_has_no_problem_after_its_remedies_are_run(tmp_path: Path) -> None:
    table = committed(tmp_path / "my table", 101)
    report = table.doctor()
    assert [f.kind for f in report.problems] == ["checkpoint-missing", "small-files"]
    assert report.measures.tail_commits == 102
    follow(report, "small-files")
    follow(report, "checkpoint-missing")
    assert table.doctor().problems == ()
    assert table.snapshot().num_files() == 1


def test_commits_above_an_old_checkpoint_are_overdue(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 22)
    table.checkpoint(1)
    assert kinds(table) == ["checkpoint-overdue"]
    table.checkpoint(5)
    assert kinds(table) == []


@pytest.mark.parametrize("content", [b"{", b'{"version":77,"size":1}'])
def test_a_wrong_pointer_is_found_and_repaired(tmp_path: Path, content: bytes) -> None:
    table = committed(tmp_path / "t", 3)
    table.checkpoint()
    (tmp_path / "t/_delta_log/_last_checkpoint").write_bytes(content)
    report = examined(table)
    assert [f.kind for f in report.problems] == ["pointer-damaged"]
    with without_warnings():
        follow(report, "pointer-damaged")
    assert kinds(table) == []


def test_a_damaged_checkpoint_is_found_and_repaired(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 3)
    table.checkpoint()
    (checkpoint,) = (tmp_path / "t/_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-50])
    report = examined(table)
    assert report.findings[0].kind == "checkpoint-damaged"
    assert report.findings[0].severity == "error"
    with without_warnings():
        follow(report, "checkpoint-damaged")
    assert kinds(table) == []


@pytest.mark.parametrize("name", ["txn.version", "add.size"])
def test_a_damaged_column_of_a_checkpoint_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    table = committed(tmp_path / "t", 3)
    table.checkpoint()
    (checkpoint,) = (tmp_path / "t/_delta_log").glob("*.checkpoint.parquet")
    group = pq.read_metadata(checkpoint).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (column,) = (each for each in columns if each.path_in_schema == name)
    content = bytearray(checkpoint.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    checkpoint.write_bytes(content)
    report = examined(table)
    assert [each.kind for each in report.problems] == ["checkpoint-damaged"]
    assert checkpoint.name in report.problems[0].problem
    with without_warnings():
        follow(report, "checkpoint-damaged")
    assert kinds(table) == []


def test_a_log_compaction_of_deltalake_is_a_note(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 5)
    deltalake.DeltaTable(str(tmp_path / "t")).compact_logs(1, 4)
    (found,) = examined(table).findings
    assert (found.severity, found.kind, found.remedy) == ("info", "compaction-ignored", None)
    assert "compacted.json was ignored: the log compaction has no end marker" in found.problem


def test_checksum_that_differs_from_replay_is_found_and_repaired(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 3)
    table.write_checksum()
    path = tmp_path / "t/_delta_log/00000000000000000003.crc"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"numFiles": 99}))
    report = examined(lakelog.open(tmp_path / "t"))
    assert [f.kind for f in report.findings] == ["checksum-damaged"]
    assert "numFiles 99" in report.findings[0].problem
    with without_warnings():
        follow(report, "checksum-damaged")
    assert kinds(table) == []


def test_a_checksum_with_its_schema_in_other_json_is_not_a_finding(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 3)
    table.write_checksum()
    path = tmp_path / "t/_delta_log/00000000000000000003.crc"
    body = json.loads(path.read_text())
    schema = json.loads(body["metadata"]["schemaString"])
    schema["fields"] = [dict(reversed(field.items())) for field in schema["fields"]]
    body["metadata"]["schemaString"] = json.dumps(schema, indent=1)
    path.write_text(json.dumps(body))
    assert kinds(table) == []
    assert table.repair().is_clean
    assert table.write_checksum().disagreements == ()
    body["metadata"]["schemaString"] = json.dumps(schema | {"fields": []})
    path.write_text(json.dumps(body))
    assert kinds(table) == ["checksum-damaged"]


def test_unreadable_log_is_a_finding(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(add("a"))
    made.commit(1, add("b"))
    made.commit(3, add("c"))
    report = examined(made.table)
    (found,) = report.problems
    assert (found.severity, found.kind, found.remedy) == ("error", "log-damaged", None)


def test_a_malformed_property_is_a_finding(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(
        add("a"), properties={"delta.logRetentionDuration": "a while"}
    )
    (found,) = examined(made.table).problems
    assert found.kind == "property-damaged"
    assert "delta.logRetentionDuration" in found.problem


def test_deleted_rows_are_counted_with_the_rows_that_are_stored(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    stats = json.dumps({"numRecords": 50})
    made.commit(0, protocol(3, 7, **features), metadata())
    made.commit(
        1, add("a", stats=stats), add("b", stats=stats, **vector("^-aqEH.-t@S}K{vb[*k^", 10))
    )
    report = examined(made.table)
    measured = report.measures
    assert (measured.vector_files, measured.deleted_rows, measured.stored_rows) == (1, 10, 100)
    assert [f.kind for f in report.problems] == ["deleted-rows"]


def test_tombstones_are_counted_by_age(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(add("live"))
    day_ms = 86_400_000
    removed = [remove(f"{n}", deletionTimestamp=FIRST_MS - n * day_ms) for n in range(1, 11)]
    made.commit(1, *removed)
    measured = examined(made.table).measures  # the clock is at FIRST_MS, the retention is 7 days
    assert (measured.tombstones, measured.expired_tombstones) == (10, 4)


def test_log_files_that_no_version_needs_are_counted(tmp_path: Path) -> None:
    properties = {"delta.logRetentionDuration": "interval 0 days"}
    made = Handmade(tmp_path / "t").start(properties=properties)
    for version in range(1, 6):
        made.commit(version, info("WRITE"), add(str(version)))
    made.table.checkpoint(4)
    table = lakelog.Table(made.context(FIRST_MS + 86_400_000 * 3))
    measured = examined(table).measures
    plan = table.cleanup()
    assert measured.cleanup_files == plan.deletable.height > 0
    assert measured.cleanup_bytes == plan.size_bytes


def test_unused_data_files_are_counted_on_request(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 2, {"delta.deletedFileRetentionDuration": "interval 0 days"})
    table.compact()
    assert "data-files" not in kinds(table)
    report = table.doctor(files=True)
    assert (report.measures.vacuum_files, report.problems[-1].kind) == (2, "data-files")
    follow(report, "data-files")
    assert "data-files" not in kinds(table, files=True)


def test_data_of_a_table_that_lakelog_cannot_write_is_examined(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.commit(0, protocol(1, 7, writerFeatures=["future"]), metadata())
    made.commit(1, add("a"))
    report = examined(made.table, files=True)
    assert [f.kind for f in report.problems] == ["data-missing"]
    assert report.measures.vacuum_files is None


def test_missing_file_is_named_with_its_partition_value_also_of_a_column_named_token(
    tmp_path: Path,
) -> None:
    table = lakelog.create(
        tmp_path / "t", {"id": pl.Int64, "token": pl.String}, ["token"], upkeep=False
    )
    table.append(pl.DataFrame({"id": [1], "token": ["a"]}))
    (path,) = (tmp_path / "t").glob("token=a/*.parquet")
    path.unlink()
    (found,) = examined(table, files=True).findings
    assert found.paths == (f"token=a/{path.name}",)
    assert found.problem.startswith(f"token=a/{path.name}: a live file was not found")


def test_file_with_a_name_that_is_too_long_is_missing(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    with table.transaction() as tx:
        tx.add(path="y" * 300, size=1)
    assert kinds(table, files=True) == ["data-missing"]
    table.repair(plan=False, remove_missing=True)
    assert kinds(table, files=True) == []


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_missing_and_other_data_files_are_one_finding_of_each_kind(
    tmp_path: Path, form: str
) -> None:
    where = tmp_path / "t"
    table = lakelog.create(where, {"id": pl.Int64}, format=form, upkeep=False)
    with table.transaction() as tx:
        for name in "abcdef":
            tx.add(path=name, size=1)
            (where / name).write_bytes(b"x")
    assert kinds(table, files=True) == []
    (where / "b").unlink()
    assert kinds(table) == []
    (found,) = examined(table, files=True).findings
    assert (found.severity, found.kind, found.num_files) == ("error", "data-missing", 1)
    assert found.problem.startswith("b: a live file was not found; restore it")
    assert found.remedy == f"lakelog repair {where} --check-files"
    for name in "adf":
        (where / name).unlink()
    (where / "c").write_bytes(b"xx")
    report = examined(table, files=True)
    missing, other = report.findings
    assert (missing.kind, missing.num_files, missing.paths) == ("data-missing", 4, ("a", "b", "d"))
    assert missing.problem.startswith(
        "a: a live file was not found (4 in all, also b, d); restore it, or remove it from the "
    )
    assert (other.kind, other.num_files, other.paths) == ("data-length", 1, ("c",))
    assert other.problem.startswith("c: a live file has 2 bytes, and the log records 1; its rows")
    rows = report.to_polars().select("kind", "num_files", "paths").rows()
    assert rows == [("data-missing", 4, ["a", "b", "d"]), ("data-length", 1, ["c"])]


def test_only_files_with_a_neighbour_in_their_partition_are_small(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(partitioned=["name"])
    values = ["a", "a", "b", None, None]
    made.commit(1, *(add(str(n), 10, partitionValues={"name": v}) for n, v in enumerate(values)))
    measured = examined(made.table).measures
    assert (measured.small_files, measured.small_total_bytes, measured.partitions) == (4, 40, 3)


@pytest.mark.parametrize("name", ["part", "^part$", "*"])
def test_zero_and_negative_zero_are_separate_partitions_in_the_report(
    tmp_path: Path, name: str
) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1, 2], name: [0.0, -0.0]}), partition_by=name)
    table = lakelog.open(tmp_path)
    measured = examined(table).measures
    assert (measured.partitions, measured.small_files) == (2, 0), "compact would not merge them"


def test_the_largest_partition_is_named(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(partitioned=["name"])
    sizes = {"big": 2 << 30} | {str(n): 1 << 20 for n in range(10)}
    made.commit(1, *(add(p, s, partitionValues={"name": p}) for p, s in sizes.items()))
    (found,) = (f for f in examined(made.table).findings if f.kind == "partition-skew")
    assert "partition name=big has 2.0 GiB" in found.problem


def test_clients_without_a_feature_are_reported_with_it(tmp_path: Path) -> None:
    table = committed(tmp_path / "t", 1, {"delta.columnMapping.mode": "name"})
    report = table.doctor()
    (found,) = report.findings
    assert (found.severity, found.kind) == ("info", "client-features")
    refused = table.compatibility().filter(pl.col("unsupported_to_read").list.len() > 0)
    (client,) = refused["client"]
    assert f"{client} cannot read it (columnMapping)" in found.problem
    assert "DROP FEATURE" in found.problem
    follow(report, "client-features")
    assert report.problems == ()


def test_compatibility_lists_the_clients_of_a_table_that_lakelog_cannot_read(
    tmp_path: Path,
) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1]}))
    future: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7}
    future |= {"readerFeatures": ["future"], "writerFeatures": ["future"]}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": future}))
    found = lakelog.open(tmp_path).compatibility()
    assert found["unknown"].list.contains("future").any()
    assert not found["reads"].any()


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_every_format_can_be_examined(tmp_path: Path, form: str) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format=form, upkeep=False)
    for number in range(21):
        with table.transaction() as tx:
            tx.add(path=f"{number}", size=1)
        (tmp_path / "t" / f"{number}").write_bytes(b"x")
    report = examined(table, files=True)
    assert [f.kind for f in report.problems] == ["checkpoint-missing"]
    with contextlib.suppress(AttributeError):
        table.scheduler.wait()  # type: ignore[union-attr] # None without upkeep
    follow(report, "checkpoint-missing")
    assert kinds(table) == []


INLINE = {"storageType": "i", "sizeInBytes": 34, "cardinality": 1}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({"partitionValues": {"x": "1"}}, "partition value of 'p' is missing"),
        ({"deletionVector": {**INLINE, "pathOrInlineDv": "not Z85"}}, "is not valid Z85"),
        ({"deletionVector": {"storageType": "i", "cardinality": 2}}, "differs from the log"),
        ({"deletionVector": {"storageType": "x"}}, "unknown storage type"),
        ({"deletionVector": {"storageType": "u", "pathOrInlineDv": "x"}}, "cannot be decoded"),
    ],
    ids=["partition value", "not Z85", "cardinality", "storage type", "identifier"],
)
@pytest.mark.parametrize("files", [False, True])
def test_a_record_in_the_log_that_reading_refuses_is_found(
    tmp_path: Path, damage: dict[str, Any], problem: str, files: bool
) -> None:
    table = committed(tmp_path / "t", 0, {"delta.enableDeletionVectors": "true"})
    table.append(pl.DataFrame({"id": [1, 2, 3], "p": ["a"] * 3}))
    table.delete("id = 2")
    commit = tmp_path / "t/_delta_log/00000000000000000002.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    (added,) = (line["add"] for line in lines if "add" in line)
    vector = {**added["deletionVector"], **damage.get("deletionVector", {})}
    added |= {**damage, "deletionVector": vector}
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    damaged = lakelog.open(tmp_path / "t")
    with pytest.raises(CorruptionError, match=problem):
        damaged.to_polars()
    (found,) = (f for f in examined(damaged, files=files).findings if f.kind == "files-damaged")
    assert problem in found.problem
    assert added["path"] in found.problem
    assert (found.severity, found.remedy) == ("error", None)
    plan = damaged.repair(check_files=files)
    (row,) = plan.findings.filter(pl.col("kind") == "files").to_dicts()
    assert (row["path"], row["action"]) == (added["path"], "refuse")
    assert problem in row["problem"]


@pytest.mark.parametrize("size", [0, -1])
def test_an_unknown_length_of_a_file_is_not_damage(tmp_path: Path, size: int) -> None:
    table = committed(tmp_path / "t", 1)
    commit = tmp_path / "t/_delta_log/00000000000000000001.json"
    commit.write_text(re.sub(r'"size":\d+', f'"size":{size}', commit.read_text()))
    damaged = lakelog.open(table.path)
    assert damaged.to_polars().height == 1
    assert examined(damaged, files=True).findings == ()


def test_an_incomplete_checkpoint_is_a_note_until_cleanup_deletes_it(tmp_path: Path) -> None:
    properties = {"delta.logRetentionDuration": "interval 0 days"}
    made = Handmade(tmp_path / "t").start(properties=properties)
    for version in range(1, 6):
        made.commit(version, info("WRITE"), add(str(version)))
    name = "00000000000000000003.checkpoint.0000000001.0000000002.parquet"
    part = made.write(name, b"the other part was not written")
    made.table.checkpoint(2)
    report = examined(made.table)
    (found,) = (f for f in report.findings if f.kind.startswith("checkpoint"))
    assert (found.severity, found.kind) == ("info", "checkpoint-incomplete")
    assert "has only 1" in found.problem
    assert report.problems == ()
    assert made.table.repair().is_clean
    made.table.checkpoint(5)
    later = lakelog.Table(made.context(FIRST_MS + 86_400_000 * 40))
    later.cleanup(plan=False)
    assert not part.exists()


def dangle(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


@pytest.mark.parametrize(
    ("make", "what"), [(Path.mkdir, "a directory"), (dangle, "a dangling link")]
)
def test_something_at_the_name_of_the_next_commit_is_reported(
    tmp_path: Path, make: Callable[[Path], None], what: str
) -> None:
    table = committed(tmp_path / "t", 1)
    make(tmp_path / "t/_delta_log/00000000000000000002.json")
    with pytest.raises(NotRegularFileError, match=f"{what} has the name of the next version"):
        table.append(pl.DataFrame({"id": [2], "p": ["a"]}))
    (found,) = table.doctor().findings
    assert (found.severity, found.kind, found.remedy) == ("error", "version-blocked", None)
    assert f"00000000000000000002.json: {what} has the name of the next commit" in found.problem
    (row,) = table.repair().findings.to_dicts()
    assert (row["kind"], row["version"], row["action"]) == ("version", 2, "refuse")
    assert table.to_polars().height == 1


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, dangle])
def test_a_pointer_that_is_not_a_file_is_reported_and_not_repaired(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    table = committed(tmp_path / "t", 2)
    table.checkpoint()
    pointer = tmp_path / "t/_delta_log/_last_checkpoint"
    pointer.unlink()
    make(pointer)
    (found,) = examined(table).problems
    assert (found.kind, found.remedy) == ("pointer-damaged", None)
    assert "has its name; remove it" in found.problem
    with without_warnings():
        report = table.repair(plan=False)
    assert report.repaired.is_empty()
    assert report.left["kind"].to_list() == ["pointer"]
    pointer.rmdir() if pointer.is_dir() else pointer.unlink()
    follow(examined(table), "pointer-damaged")
    assert kinds(table) == []
