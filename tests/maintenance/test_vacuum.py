"""Vacuum: only files that no retained version needs can be deleted."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import lakelog
from lakelog import (
    InvalidActionError,
    InvalidInputError,
    Table,
    UnavailableError,
    UnsafeRetentionError,
    UnsupportedStoreError,
)
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.log.context import Log
from lakelog.maintenance.vacuum import VacuumPlan, VacuumReport
from lakelog.storage import open_store
from lakelog.storage.fsspec_store import FsspecStore
from lakelog.testing import Fault, InjectingStore, Rule
from tests.budget import share_of
from tests.maintenance.logs import deny
from tests.transaction.tables import DIALECTS, new_table, runtime

DAY_MS = 86_400_000
NOW_MS = 1_900_000_000_000
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def at(where: Path, clock: Callable[[], int], form: str = "delta", *rules: Rule) -> Table:
    """The table with a clock of its own, over a store that applies rules."""
    store = InjectingStore(open_store(str(where)), rules)
    return Table(Log(store, DIALECTS[form], clock), runtime())


def put(where: Path, path: str, age_days: float = 30, size: int = 10) -> None:
    file = where / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    seconds = (NOW_MS - age_days * DAY_MS) / 1000
    os.utime(file, (seconds, seconds))


def add(table: Table, *paths: str, **more: Any) -> None:
    with table.transaction() as tx:
        for path in paths:
            tx.add(path=path, size=10, **more)


def remove(table: Table, *paths: str, age_days: float) -> None:
    with table.transaction() as tx:
        for path in paths:
            tx.remove(path=path, deletionTimestamp=int(NOW_MS - age_days * DAY_MS))


def planned(table: Table, **options: Any) -> list[str]:
    plan = table.vacuum(**options)
    assert isinstance(plan, VacuumPlan)
    return plan.files["path"].to_list()


def applied(table: Table, **options: Any) -> VacuumReport:
    report = table.vacuum(plan=False, **options)
    assert isinstance(report, VacuumReport)
    return report


@pytest.fixture
def where(tmp_path: Path) -> Path:
    new_table(str(tmp_path / "table"))
    return tmp_path / "table"


@pytest.fixture
def table(where: Path) -> Table:
    return at(where, Clock())


def on_disk(where: Path) -> set[str]:
    return {
        str(file.relative_to(where))
        for file in where.rglob("*")
        if file.is_file() and "_delta_log" not in file.parts
    }


def test_only_old_unreferenced_files_are_deleted(where: Path, table: Table) -> None:
    for name in ("live", "just removed", "long removed", "never committed"):
        put(where, f"{name}.parquet")
    put(where, "being written.parquet", age_days=1)
    add(table, "live.parquet", "just removed.parquet", "long removed.parquet")
    remove(table, "just removed.parquet", age_days=6.9)
    remove(table, "long removed.parquet", age_days=7.1)
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert plan.files["path"].to_list() == ["long removed.parquet", "never committed.parquet"]
    assert plan.files["kind"].to_list() == ["data", "data"]
    assert plan.size_bytes == 20
    assert plan.kept["referenced"] == 2
    assert plan.kept["young"] == 1
    assert "2 files" in str(plan)
    assert "2 files" in plan._repr_html_()
    before = on_disk(where)
    report = plan.apply()
    assert (report.deleted, report.size_bytes, report.spared, report.errors) == (2, 20, 0, ())
    assert before - on_disk(where) == {"long removed.parquet", "never committed.parquet"}
    assert planned(table) == []


def test_a_plan_deletes_nothing(where: Path, table: Table) -> None:
    put(where, "orphan.parquet")
    assert planned(table) == ["orphan.parquet"]
    assert on_disk(where) == {"orphan.parquet"}


@pytest.mark.parametrize(
    "hidden",
    [
        *("_delta_log/x.parquet", "_x/a.parquet", "a/.b/c.parquet", ".c", "a/_d"),
        *("_change_data/_x", "nested/_delta_log/0.json", "nested/a.parquet"),
    ],
)
def test_hidden_names_and_other_tables_are_kept(where: Path, table: Table, hidden: str) -> None:
    put(where, "nested/_delta_log/00000000000000000000.json")
    put(where, hidden)
    put(where, "nested too/orphan.parquet")
    assert planned(table) == ["nested too/orphan.parquet"]


@pytest.mark.parametrize("nested", ["a table", "new\nline", "linked", "deep/linked"])
def test_data_of_a_nested_table_is_kept_however_its_log_is_found(
    where: Path, table: Table, nested: str
) -> None:
    put(where, f"{nested}/_delta_log/0.json")
    put(where, f"{nested}/p=1/a.parquet")
    put(where, "orphan.parquet")
    if "linked" in nested:
        log = where / nested / "_delta_log"
        log.rename(where.parent / "elsewhere")
        log.symlink_to(where.parent / "elsewhere")
    listed = pl.DataFrame({"path": [f"{nested}/p=1/a.parquet", "orphan.parquet"]})
    listed = listed.with_columns(size=10, modificationTime=0)
    assert planned(table) == planned(table, inventory=listed) == ["orphan.parquet"]


@pytest.mark.parametrize("place", ["a", "a/b", "wal"])
@pytest.mark.parametrize("kind", ["log", "store", "store with a linked log", "ingest"])
def test_logs_in_a_folder_where_another_engine_made_a_table_are_kept(
    where: Path, table: Table, tmp_path: Path, kind: str, place: str
) -> None:
    made, directory = tmp_path / "made", where / place
    if kind == "log":
        lakelog.WriteAheadLog(made).close()
    elif kind == "ingest":
        other = lakelog.create(tmp_path / "other", {"n": pl.Int64}, upkeep=False)
        with lakelog.Ingestor(other, made, on_bad_row="divert") as ingestor:
            ingestor.write({"n": "x"})
    else:
        with lakelog.KeyedStore(made) as store:
            store.put("k", "v")
            store.flush()
    if "linked" in kind:
        shutil.move(made / "wal", tmp_path / "fast")
        (made / "wal").symlink_to(tmp_path / "fast")
    directory.parent.mkdir(exist_ok=True)
    shutil.move(made, directory)
    for path in [*directory.rglob("*"), directory]:
        os.utime(path, (0, 0))
    put(where, "orphan.parquet")
    put(where, "awal/orphan.parquet")
    assert planned(table) == ["awal/orphan.parquet", "orphan.parquet"]
    assert table.vacuum().kept["write-ahead log"] > 0


def test_old_temporary_files_of_killed_writers_are_deleted(where: Path, table: Table) -> None:
    begun = f".lakelog-{'0a' * 16}.tmp"
    for path in (begun, f"a/{begun}", f"_delta_log/{begun}", f"_x/{begun}", f"a/{begun}x"):
        put(where, path)
    put(where, f"b/{begun}", age_days=1)
    assert planned(table) == [begun, f"a/{begun}"]


def test_old_change_data_is_deleted(where: Path, table: Table) -> None:
    put(where, "_change_data/day=1/old.parquet")
    put(where, "_change_data/young.parquet", age_days=1)
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert plan.files.select("path", "kind").rows() == [
        ("_change_data/day=1/old.parquet", "changeData")
    ]


def test_partition_folders_may_begin_with_an_underscore(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where), schema={"_p": pl.String, "id": pl.Int64}, partition_by=["_p"])
    put(where, "_p=1/live.parquet")
    put(where, "_p=1/orphan.parquet")
    put(where, "_q=1/orphan.parquet")
    table = at(where, Clock())
    add(table, "_p=1/live.parquet", partitionValues={"_p": "1"})
    assert planned(table) == ["_p=1/orphan.parquet"]


def test_iceberg_metadata_is_kept_if_universal_format_is_enabled(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where))
    put(where, "metadata/v1.metadata.json")
    assert planned(at(where, Clock())) == ["metadata/v1.metadata.json"]
    log = where / "_delta_log" / "00000000000000000000.json"
    text = log.read_text().replace(
        '"configuration":{', '"configuration":{"delta.universalFormat.enabledFormats":"iceberg"'
    )
    log.write_text(text)
    assert planned(at(where, Clock())) == []


@pytest.mark.parametrize(
    "spell",
    [
        lambda where, name: f"{where}/{name}",
        lambda where, name: f"file://{where}/{name}",
        lambda where, name: f"file:{where}/{name}",
        lambda _, name: f"s3://elsewhere/clone/{name}",
        lambda _, name: f"part//{name}",
        lambda _, name: f"./part/{name}",
    ],
)
def test_absolute_or_unusual_path_protects_every_file_of_its_name(
    where: Path, table: Table, spell: Callable[[Path, str], str]
) -> None:
    put(where, "part/a b.parquet")
    put(where, "part/orphan.parquet")
    log = where / "_delta_log" / "00000000000000000001.json"
    body = f'{{"add":{{"path":"{quote(spell(where, "a b.parquet"), safe=":/.")}"'
    log.write_text(body + ',"partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}')
    assert planned(table) == ["part/orphan.parquet"]


def test_escaped_paths_are_decoded_before_comparison(where: Path, table: Table) -> None:
    names = ["a b%2F+é.parquet", "100%.parquet", "p=1/d.parquet"]
    for name in names:
        put(where, name)
    put(where, "a b/+é.parquet")
    add(table, *names)
    assert planned(table) == ["a b/+é.parquet"]


def test_file_name_that_is_not_utf8_is_kept(where: Path, table: Table) -> None:
    try:
        put(where, os.fsdecode(b"\xff.parquet"))
    except OSError:  # a file system that accepts UTF-8 only
        pytest.skip("the file system accepts UTF-8 only")
    put(where, "orphan.parquet")
    assert planned(table) == ["orphan.parquet"]


# --- deletion vectors --------------------------------------------------------------------------


def z85(value: uuid.UUID) -> str:
    words = [int.from_bytes(value.bytes[i : i + 4], "big") for i in range(0, 16, 4)]
    return "".join(Z85[word // 85**power % 85] for word in words for power in range(4, -1, -1))


@settings(max_examples=share_of(50))
@given(st.lists(st.tuples(st.uuids(), st.sampled_from(["", "a", "xY"])), min_size=1))
def test_vector_paths_are_derived_from_their_identifiers(
    given_: list[tuple[uuid.UUID, str]],
) -> None:
    frame = pl.DataFrame(
        {
            "dvStorageType": ["u" for _ in given_],
            "dvPathOrInline": [prefix + z85(value) for value, prefix in given_],
        }
    )
    expected = [
        f"{prefix}{'/' if prefix else ''}deletion_vector_{value}.bin" for value, prefix in given_
    ]
    assert vector_paths(frame).to_list() == expected


def test_vectors_of_every_storage_type_have_a_file_or_none() -> None:
    frame = pl.DataFrame(
        {
            "dvStorageType": ["p", "i", None],
            "dvPathOrInline": ["s3://a/b%20c.bin", "wi5b=000010000siXQKl0rr91000f55c8Xg0", None],
        }
    )
    assert vector_paths(frame).to_list() == ["s3://a/b c.bin", None, None]
    assert vector_paths(pl.DataFrame({"path": ["a"]})).to_list() == [None]


@pytest.mark.parametrize("text", ["short", "#" * 20, "~" * 20, "é" * 20])
def test_an_identifier_that_is_not_z85_is_refused(text: str) -> None:
    frame = pl.DataFrame({"dvStorageType": ["u"], "dvPathOrInline": [text]})
    with pytest.raises(InvalidActionError, match="cannot be decoded"):
        vector_paths(frame)


def test_an_unknown_storage_type_is_refused() -> None:
    frame = pl.DataFrame({"dvStorageType": ["q"], "dvPathOrInline": ["x"]})
    with pytest.raises(InvalidActionError, match="unknown storage type"):
        vector_paths(frame)


def test_vectors_are_kept_with_their_data_files(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where), configuration={"delta.enableDeletionVectors": "true"})
    table = at(where, Clock())
    used, removed, expired = (uuid.UUID(int=n) for n in range(3))
    vector = {"dvSizeInBytes": 4, "dvCardinality": 1, "dvOffset": 1, "dvStorageType": "u"}
    files = {"a": used, "b": removed, "c": expired}
    for name, value in files.items():
        put(where, f"{name}.parquet")
        put(where, f"zz/deletion_vector_{value}.bin")
    with table.transaction() as tx:
        for name, value in files.items():
            stats = '{"numRecords":5,"tightBounds":false}'
            tx.add(
                path=f"{name}.parquet",
                size=10,
                stats=stats,
                **vector,
                dvPathOrInline="zz" + z85(value),
            )
    put(where, "deletion_vector_00000000-0000-0000-0000-000000000000.bin")
    for name, age_days in (("b", 1), ("c", 10)):
        with table.transaction() as tx:
            tx.remove(
                path=f"{name}.parquet",
                deletionTimestamp=int(NOW_MS - age_days * DAY_MS),
                **vector,
                dvPathOrInline="zz" + z85(files[name]),
            )
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert plan.files.select("path", "kind").rows() == [
        ("c.parquet", "data"),
        ("deletion_vector_00000000-0000-0000-0000-000000000000.bin", "deletionVector"),
        (f"zz/deletion_vector_{expired}.bin", "deletionVector"),
    ]


# --- retention ---------------------------------------------------------------------------------


def test_retention_shorter_than_the_tables_must_be_forced(where: Path, table: Table) -> None:
    put(where, "gone.parquet", age_days=2)
    with pytest.raises(UnsafeRetentionError, match="at least 7 days") as raised:
        table.vacuum(retention=dt.timedelta(days=1))
    assert "force" in (raised.value.hint or "")
    assert planned(table, retention=dt.timedelta(days=1), force=True) == ["gone.parquet"]
    assert planned(table, retention="8 days") == []
    with pytest.raises(InvalidInputError, match="invalid duration"):
        table.vacuum(retention=dt.timedelta(days=-1), force=True)


def test_retention_property_of_the_table_is_used(tmp_path: Path) -> None:
    where = tmp_path / "table"
    configured = {"delta.deletedFileRetentionDuration": "interval 1 day"}
    new_table(str(where), configuration=configured)
    put(where, "orphan.parquet", age_days=2)
    assert planned(at(where, Clock())) == ["orphan.parquet"]


def test_a_longer_retention_keeps_files_whose_removes_a_checkpoint_dropped(tmp_path: Path) -> None:
    where = tmp_path / "table"
    configured = {"delta.deletedFileRetentionDuration": "interval 1 day"}
    new_table(str(where), configuration=configured)
    table = at(where, Clock())
    for name, age in (("two.parquet", 2), ("nine.parquet", 9)):
        put(where, name)
        add(table, name)
        remove(table, name, age_days=age)
    table.checkpoint()
    table = at(where, Clock())
    assert planned(table) == ["nine.parquet", "two.parquet"]
    assert planned(table, retention="8 days") == ["nine.parquet"]


def test_a_raised_retention_keeps_files_whose_removes_a_checkpoint_dropped(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where))
    table = at(where, Clock())
    add(table, "gone.parquet")
    put(where, "gone.parquet")
    remove(table, "gone.parquet", age_days=10)
    table.checkpoint()
    assert planned(table) == ["gone.parquet"]
    table.alter.set_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})
    assert planned(table) == []


def test_requested_versions_keep_their_files(where: Path, table: Table) -> None:
    for name in "abc":
        put(where, name)
    add(table, "a")
    remove(table, "a", age_days=20)
    add(table, "b")
    remove(table, "b", age_days=20)
    assert planned(table) == ["a", "b", "c"]
    assert planned(table, keep_versions=[1]) == ["b", "c"]
    assert planned(table, keep_versions=[1, 3]) == ["c"]
    assert planned(table, keep_history=True) == ["c"]
    with pytest.raises(lakelog.VersionNotFoundError):
        table.vacuum(keep_versions=[9])


def test_history_that_is_kept_includes_change_data(tmp_path: Path) -> None:
    table = lakelog.create(
        tmp_path / "t",
        {"id": pl.Int64},
        configuration={"delta.enableChangeDataFeed": "true"},
        upkeep=False,
    )
    table.append(pl.DataFrame({"id": range(4)}))
    table.update({"id": pl.col("id") + 10}, "id < 2")
    changes = table.changes(0).sort(pl.all()).collect()
    options: dict[str, Any] = {"retention": dt.timedelta(0), "force": True}
    assert any(path.startswith("_change_data/") for path in planned(table, **options))
    applied(table, keep_history=True, **options)
    assert_frame_equal(table.changes(0).sort(pl.all()).collect(), changes)


def test_vacuum_of_an_indextables_table(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where), "indextables")
    for name in ("live.split", "orphan.split"):
        put(where, name)
    table = at(where, Clock(), "indextables")
    add(table, "live.split")
    assert planned(table) == ["orphan.split"]


# --- inventories -------------------------------------------------------------------------------


def test_inventory_replaces_the_listing(where: Path, table: Table) -> None:
    add(table, "live.parquet")
    old, young = NOW_MS - 30 * DAY_MS, NOW_MS
    frame = pl.DataFrame(
        {
            "path": ["live.parquet", "orphan.parquet", "young.parquet", "folder"],
            "length": [1, 2, 3, 0],
            "modificationTime": [old, old, young, old],
            "isDir": [False, False, None, True],
        }
    )
    assert planned(table, inventory=frame) == ["orphan.parquet"]
    timed = frame.with_columns(pl.from_epoch("modificationTime", time_unit="ms"))
    assert planned(table, inventory=timed.lazy()) == ["orphan.parquet"]
    assert planned(table, inventory=frame.to_arrow()) == ["orphan.parquet"]


@pytest.mark.parametrize("path", ["/abs/a", "s3://b/a", "../a", "a/../b", "", "a//b", None])
def test_inventory_with_paths_outside_the_table_is_refused(table: Table, path: str | None) -> None:
    frame = pl.DataFrame(
        {"path": [path], "size": [1], "modified_ms": [0]}, schema_overrides={"path": pl.String}
    )
    with pytest.raises(InvalidInputError, match="relative to the table"):
        table.vacuum(inventory=frame)


def test_an_inventory_without_times_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="lacks a column"):
        table.vacuum(inventory=pl.DataFrame({"path": ["a"], "size": [1]}))


@pytest.mark.parametrize(
    "wrong", [{"modified_ms": "y"}, {"modified_ms": 1.5e300}, {"size": "x"}, {"isDir": "no"}]
)
def test_an_inventory_with_values_of_wrong_types_is_refused(
    table: Table, wrong: dict[str, Any]
) -> None:
    row = {"path": "a", "size": 1, "modified_ms": 0, **wrong}
    with pytest.raises(InvalidInputError, match="has the wrong type"):
        table.vacuum(inventory=pl.DataFrame([row]))


# --- applying ----------------------------------------------------------------------------------


def test_file_added_again_after_the_plan_is_kept(where: Path, table: Table) -> None:
    put(where, "back.parquet")
    put(where, "orphan.parquet")
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert plan.files.height == 2
    add(table, "back.parquet")
    report = plan.apply()
    assert (report.deleted, report.spared, report.version) == (1, 1, 1)
    assert on_disk(where) == {"back.parquet"}


@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_failed_deletion_is_reported_and_repeated_by_the_next_vacuum(
    where: Path, fault: Fault
) -> None:
    for n in range(5):
        put(where, f"{n}.parquet")
    broken = at(where, Clock(), "delta", Rule(fault, "delete", nth=3))
    report = applied(broken)
    assert [error.path for error in report.errors] == ["2.parquet"]
    assert report.deleted == 4
    again = applied(at(where, Clock()))
    assert again.deleted == (1 if fault == "fail" else 0)
    assert on_disk(where) == set()


def test_live_files_are_kept_if_any_operation_fails(where: Path, table: Table) -> None:
    put(where, "live.parquet")
    add(table, "live.parquet")
    for nth in range(1, 100):
        put(where, "orphan.parquet")
        broken = at(where, Clock(), "delta", Rule("fail", (), nth=nth))
        try:
            report = applied(broken)
        except UnavailableError:
            assert "live.parquet" in on_disk(where)
            continue
        assert "live.parquet" in on_disk(where)
        if not report.errors:
            break
    else:
        pytest.fail("no run completed without a fault")
    assert on_disk(where) == {"live.parquet"}


def test_vacuum_of_a_read_only_store_can_be_planned_but_not_applied(
    where: Path, table: Table
) -> None:
    put(where, "orphan.parquet")

    class ReadOnly(InjectingStore):
        @property
        def refusal(self) -> str | None:
            return "this store is read only"

    store = ReadOnly(open_store(str(where)))
    frozen = Table(Log(store, DIALECTS["delta"], Clock()), runtime())
    assert planned(frozen) == ["orphan.parquet"]
    with pytest.raises(UnsupportedStoreError, match="read only"):
        frozen.vacuum(plan=False)


def test_progress_counts_files(where: Path, table: Table) -> None:
    for n in range(3):
        put(where, f"{n}.parquet")
    steps: list[tuple[str, int, int | None]] = []
    table.vacuum(plan=False, progress=lambda *step: steps.append(step))
    assert ("delete", 3, 3) in steps
    assert steps[0][0] == "list"


@settings(max_examples=share_of(25))
@given(seed=st.integers(0, 2**32))
def test_vacuum_never_deletes_a_file_that_a_retained_reader_needs(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random histories of files, compared with a plain record of which reader needs which file."""
    rng = random.Random(seed)
    where = tmp_path_factory.mktemp("vacuum") / "table"
    new_table(str(where))
    table = at(where, Clock())
    names = [f"d{n % 3}/{n} é%.parquet" for n in range(12)]
    ages = {name: rng.choice([1, 6, 8, 30]) for name in names}
    removed: dict[str, float] = {}
    live: set[str] = set()
    for name in names:
        put(where, name, ages[name])
    for _ in range(rng.randrange(12)):
        name = rng.choice(names)
        if name in live and rng.random() < 0.6:
            removed[name] = rng.choice([1, 6.9, 7.1, 30])
            remove(table, name, age_days=removed[name])
            live.discard(name)
        else:
            add(table, name)
            live.add(name)
            removed.pop(name, None)
    needed = live | {name for name, age in removed.items() if age <= 7}
    expected = sorted(n for n in names if n not in needed and ages[n] > 7)
    assert planned(table) == expected, seed
    applied(table)
    assert on_disk(where) == set(names) - set(expected)


def test_deltalake_plans_the_same(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    where = str(tmp_path / "table")
    for n in range(4):
        write_deltalake(where, pl.DataFrame({"a": [n]}).to_arrow(), mode="overwrite")
    ours = planned(lakelog.open(where), retention=dt.timedelta(0), force=True)
    theirs = DeltaTable(where).vacuum(0, dry_run=True, enforce_retention_duration=False)
    assert ours == sorted(theirs)
    assert len(ours) == 3
    rows = DeltaTable(where).to_pyarrow_table().to_pydict()
    applied(lakelog.open(where), retention=dt.timedelta(0), force=True)
    assert DeltaTable(where).to_pyarrow_table().to_pydict() == rows


def test_inventory_does_not_follow_a_linked_folder(tmp_path: Path) -> None:
    where = tmp_path / "table"
    new_table(str(where))
    put(tmp_path / "elsewhere", "x.parquet")
    (where / "link").symlink_to(tmp_path / "elsewhere")
    table = at(where, Clock())
    listed = pl.DataFrame({"path": ["link/x.parquet"], "size": [10], "modificationTime": [0]})
    report = table.vacuum(inventory=listed, plan=False)
    assert isinstance(report, VacuumReport)
    assert [(error.kind, error.path) for error in report.errors] == [
        ("external_path", "link/x.parquet")
    ]
    assert (tmp_path / "elsewhere/x.parquet").exists()


@pytest.mark.parametrize(
    ("link", "target", "real"),
    [
        ("p=a", "archive/p=a", "archive/p=a/x.parquet"),
        ("p=a", "one/two", "one/two/x.parquet"),
        ("p=a/x.parquet", "../big/x.bin", "big/x.bin"),
        ("p=a", ".", "x.parquet"),
    ],
)
def test_files_that_the_log_refers_to_by_a_link_are_kept(
    where: Path, table: Table, link: str, target: str, real: str
) -> None:
    put(where, real)
    (where / link).parent.mkdir(exist_ok=True)
    (where / link).symlink_to(target)
    (where / "dangling").symlink_to("nothing")
    (where / "outside").symlink_to(where.parent / "elsewhere")
    (where / "loop").symlink_to("loop")
    add(table, "p=a/x.parquet")
    listed = pl.DataFrame({"path": [real], "size": [10], "modificationTime": [0]})
    assert planned(table) == planned(table, inventory=listed) == []
    assert applied(table).deleted == 0
    assert (where / "p=a/x.parquet").exists()


def test_a_folder_that_cannot_be_read_is_reported_and_its_files_are_kept(
    where: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a.parquet", "b.parquet", "lost+found/x.parquet", "inner/_delta_log/x", "inner/y"):
        put(where, path)
    add(table, "a.parquet")
    deny(monkeypatch, where / "lost+found")
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert (plan.files["path"].to_list(), plan.unreadable) == (["b.parquet"], ("lost+found",))
    assert "lost+found" in str(plan)
    listed = pl.DataFrame({"path": ["lost+found/x.parquet"], "size": [1], "modificationTime": [0]})
    assert planned(table, inventory=listed) == []
    deny(monkeypatch, where / "inner/_delta_log")
    assert planned(table) == ["b.parquet"], "the table in `inner` is recognized"
    report = plan.apply()
    assert (report.deleted, report.unreadable) == (1, ("inner/_delta_log", "lost+found"))


def test_an_unreadable_folder_with_files_of_the_table_is_refused(
    where: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(where, "real/x.parquet")
    (where / "p=a").mkdir()
    (where / "p=a/link").symlink_to("../real")
    add(table, "p=a/link/x.parquet")
    put(where, "b.parquet")
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert plan.files["path"].to_list() == ["b.parquet"]
    deny(monkeypatch, where / "p=a")
    for call in (table.vacuum, plan.apply):
        with pytest.raises(UnavailableError, match="folder with files of the table") as raised:
            call()
        assert raised.value.path == "p=a"
    assert (where / "b.parquet").exists()


def test_a_plan_lists_each_folder_once(
    where: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(where, "p=a/b/x.parquet")
    listed, scandir = [], os.scandir

    def counted(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr("lakelog.storage.local.os.scandir", counted)
    assert planned(table) == ["p=a/b/x.parquet"]
    assert listed.count(str(where / "p=a/b")) == 1


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_links_of_a_local_filesystem_of_fsspec_protect_all_files(
    where: Path, table: Table, is_wrapped: bool
) -> None:
    put(where, "real/x.parquet")
    (where / "p=a").symlink_to("real")
    add(table, "p=a/x.parquet")
    files = FsspecStore(fsspec.filesystem("file"), str(where), str(where))
    store = open_store(f"simplecache::file://{where}") if is_wrapped else files
    wrapped = Table(Log(store, DIALECTS["delta"], Clock()), runtime())
    assert planned(wrapped) == []
    (where / "p=a").unlink()
    assert planned(wrapped) == ["real/x.parquet"]


def test_files_that_a_link_leads_to_since_the_plan_are_kept(where: Path, table: Table) -> None:
    put(where, "old/x.parquet")
    put(where, "older/x.parquet")
    plan = table.vacuum()
    assert isinstance(plan, VacuumPlan)
    (where / "new").symlink_to("old")
    report = plan.apply()
    assert (report.deleted, report.spared) == (1, 1)
    assert (where / "old/x.parquet").exists()


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_files_that_another_vacuum_deleted_are_not_counted(tmp_path: Path, scheme: str) -> None:
    where = f"{scheme}{tmp_path / 'table'}"
    table = new_table(where)
    for path in ("a.parquet", "b.parquet", "c.parquet"):
        table.log.store.put(path, b"0123456789")
    later = Table(replace(table.log, clock=lambda: table.log.clock() + 30 * DAY_MS))
    plan, other = later.vacuum(), later.vacuum()
    assert isinstance(plan, VacuumPlan)
    assert isinstance(other, VacuumPlan)
    table.log.store.delete("b.parquet")
    report = plan.apply()
    assert (report.deleted, report.size_bytes, report.errors) == (2, 20, ())
    steps: list[tuple[str, int, int | None]] = []
    report = other.apply(lambda *step: steps.append(step))
    assert (report.deleted, report.size_bytes, report.errors) == (0, 0, ())
    assert steps[-1] == ("delete", 3, 3)


def test_files_of_a_table_that_replaced_the_planned_one_are_kept(tmp_path: Path) -> None:
    where = tmp_path / "table"
    add(new_table(str(where)), "a.parquet")
    put(where, "a.parquet")
    put(where, "b.parquet")
    plan = at(where, Clock()).vacuum()
    assert isinstance(plan, VacuumPlan)
    shutil.rmtree(where / "_delta_log")
    add(new_table(str(where)), "b.parquet")
    report = plan.apply()
    assert (report.deleted, report.spared) == (0, 1)
    assert (where / "b.parquet").exists()
