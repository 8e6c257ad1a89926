"""Transactions end to end: readers see the staged actions, in both dialects, on two stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import (
    InvalidInputError,
    InvalidMetadataError,
    InvalidPropertyError,
    InvalidTransactionError,
    PartitionMismatchError,
    SchemaEvolutionError,
    Table,
    UnsupportedFeatureError,
    UnsupportedStoreError,
)
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import open_store
from tests.transaction.tables import (
    NOW_MS,
    ReadOnly,
    append,
    each_format,
    each_store,
    infos,
    location,
    new_table,
    open_with_rules,
    paths,
)


def only_file(table: Table) -> dict[str, Any]:
    return table.snapshot().files().collect().row(0, named=True)


# --- the shape of a transaction ----------------------------------------------------------------


@each_store
@each_format
def test_readers_see_added_and_removed_files(tmp_path: Path, kind: str, form: str) -> None:
    table = new_table(location(kind, tmp_path), form, partition_by=["day"])
    with table.transaction() as tx:
        assert "open" in repr(tx)
        tx.add(path="day=x/a b%.parquet", partitionValues={"day": "x"}, size=3, tags={"k": "v"})
        tx.add(pl.DataFrame({"path": ["ü"], "partitionValues": [{"day": None}], "size": [4]}))
    assert tx.version == 1
    assert tx.committed
    for seen in (table, lakelog.open(table.path)):
        rows = seen.snapshot().files().sort("path").collect()
        assert rows["path"].to_list() == ["day=x/a b%.parquet", "ü"]
        assert rows["partitionValues"].to_list() == [{"day": "x"}, {"day": None}]
        assert rows["tags"].to_list() == [{"k": "v"}, None]
    with table.transaction() as tx:
        tx.remove(path="ü")
    assert paths(table) == ["day=x/a b%.parquet"]
    assert table.snapshot().tombstones().collect()["path"].to_list() == ["ü"]
    assert table.versions() == [(0, 2)]


def test_exception_in_the_block_commits_nothing(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:  # noqa: PT012 - a block
        tx.add(path="a", size=1)
        raise ZeroDivisionError
    assert tx.version is None
    assert table.version() == 0


@each_format
def test_empty_transaction_commits_nothing(tmp_path: Path, form: str) -> None:
    table = new_table(location("local", tmp_path), form)
    with table.transaction() as tx:
        tx.read()
        tx.add(pl.DataFrame(schema={"path": pl.String, "size": pl.Int64}))
        tx.set_metadata(configuration={})
    assert tx.version is None
    assert not tx.committed
    assert not tx.duplicate
    assert table.version() == 0


def test_calls_of_an_ended_transaction_raise(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    tx = table.transaction()
    tx.add(path="a", size=1)
    assert tx.commit() == 1
    calls: list[Callable[[], object]] = [
        lambda: tx.add(path="b", size=1),
        lambda: tx.remove(path="a"),
        lambda: tx.set_metadata(name="x"),
        lambda: tx.set_protocol(features=["domainMetadata"]),
        lambda: tx.set_txn(appId="a", version=1),
        lambda: tx.set_domain(domain="d", configuration=""),
        lambda: tx.remove_domain("d"),
        tx.read,
        tx.commit,
        tx.__enter__,
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="has ended"):
            call()
    assert tx.version == 1
    assert "version 1" in repr(tx)


def test_explicit_commit_in_the_block_is_not_repeated(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with table.transaction() as tx:
        tx.add(path="a", size=1)
        assert tx.commit() == 1
    assert tx.version == 1
    assert table.version() == 1


def test_transaction_reads_the_version_that_was_the_latest_at_its_start(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table = new_table(where)
    append(lakelog.open(where), "theirs")
    tx = table.transaction()
    append(lakelog.open(where), "later")
    assert tx.snapshot.version == 1
    assert tx.snapshot.files().collect()["path"].to_list() == ["theirs"]
    assert tx.read(pl.col("id") == 1).collect().height == 1


def test_snapshot_of_a_transaction_has_rows_and_is_created_once(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.append(pl.DataFrame({"id": [1, 2]}))
    tx = table.transaction()
    assert tx.snapshot is tx.snapshot
    assert sorted(tx.snapshot.scan().collect()["id"]) == [1, 2]


def test_snapshots_of_a_table_include_its_own_commits(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    for index in range(25):
        with table.transaction() as tx:
            tx.add(path=f"f{index}", size=1)
        with table.transaction() as tx:
            if index % 3 == 0:
                assert tx.snapshot.num_files() == index + 1
            if index % 7 == 0:
                tx.set_metadata(name=f"n{index}")
    assert table.transaction().snapshot.metadata.name == "n21"
    assert table.transaction().snapshot.num_files() == 25
    assert table.snapshot().metadata == table.transaction().snapshot.metadata


# --- commitInfo --------------------------------------------------------------------------------


@each_format
def test_commit_info_describes_the_operation(tmp_path: Path, form: str) -> None:
    table = new_table(location("local", tmp_path), form, configuration={})
    append(table, "a", "b")
    with table.transaction() as tx:
        tx.remove(path="a", size=1, partitionValues={})
    with table.transaction() as tx:
        tx.read()
        tx.add(path="c", size=1)
    with table.transaction() as tx:
        tx.add(path="d", size=1, dataChange=False)
        tx.remove(path="c", dataChange=False)
    with table.transaction(
        operation="LOAD",
        parameters={"source": "s3://x", "columns": ["a"], "limit": 3, "none": None},
        metrics={"rows": 7},
        user_metadata="nightly",
    ) as tx:
        tx.add(path="e", size=1)
    with table.transaction() as tx:
        tx.set_metadata(configuration={"owner": "me"})
    found = infos(table)
    operations = ["CREATE TABLE", "WRITE", "DELETE", "WRITE", "OPTIMIZE", "LOAD"]
    assert [i["operation"] for i in found] == [*operations, "SET TBLPROPERTIES"]
    assert [i["isBlindAppend"] for i in found[1:6]] == [True, False, False, False, True]
    assert found[1]["operationMetrics"] == {"numFiles": "2", "numOutputBytes": "2"}
    assert found[2]["operationMetrics"] == {"numRemovedFiles": "1", "numRemovedBytes": "1"}
    given = {"source": "s3://x", "columns": '["a"]', "limit": "3", "none": None}
    assert found[5]["operationParameters"] == given
    assert found[5]["operationMetrics"] == {"rows": "7"}
    assert found[5]["userMetadata"] == "nightly"
    assert found[6]["operationParameters"] == {"properties": '{"owner":"me"}'}
    assert [i.get("readVersion") for i in found] == [None, 0, 1, 2, 3, 4, 5]
    assert {i["engineInfo"] for i in found} == {f"lakelog/{lakelog.__version__}"}
    assert len({i["txnId"] for i in found}) == 7
    assert {i["isolationLevel"] for i in found[1:]} == {"WriteSerializable"}


def test_rows_are_counted_if_every_file_has_num_records(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with table.transaction() as tx:
        tx.add(path="a", size=1, stats={"numRecords": 3})
        tx.add(path="b", size=1, stats={"numRecords": 4})
    assert infos(table)[1]["operationMetrics"]["numOutputRows"] == "7"
    with table.transaction() as tx:
        tx.add(path="c", size=1, stats={"numRecords": 3})
        tx.add(path="d", size=1)
    assert "numOutputRows" not in infos(table)[2]["operationMetrics"]


def test_default_time_is_now_and_default_data_change_is_true(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    table = Table(Log(open_store(where), DIALECT, clock=lambda: NOW_MS))
    append(table, "a")
    assert only_file(table)["modificationTime"] == NOW_MS
    with table.transaction() as tx:
        tx.remove(path="a")
    row = table.actions(2).filter(pl.col("actionType") == "remove").collect().row(0, named=True)
    assert row["deletionTimestamp"] == NOW_MS
    assert row["dataChange"] is True


# --- files of a snapshot as input --------------------------------------------------------------


@each_format
def test_files_of_a_snapshot_are_removed_and_added_unchanged(tmp_path: Path, form: str) -> None:
    table = new_table(location("local", tmp_path), form, partition_by=["day"])
    frame = pl.DataFrame(
        {
            "path": ["a", "b", "c"],
            "partitionValues": [{"day": d} for d in "xyx"],
            "size": [1, 2, 3],
            "tags": [{"t": "1"}] * 3,
        }
    )
    with table.transaction() as tx:
        tx.add(frame)
    with table.transaction() as tx:
        tx.remove(table.snapshot().files(pl.col("day") == "x"))
    tombstones = table.snapshot().tombstones().sort("path").collect()
    assert tombstones["path"].to_list() == ["a", "c"]
    assert tombstones["size"].to_list() == [1, 3]
    assert tombstones["partitionValues"].to_list() == [{"day": "x"}] * 2
    assert tombstones["extendedFileMetadata"].to_list() == [True, True]
    removed = table.actions(2).filter(pl.col("actionType") == "remove").collect()
    assert removed["dataChange"].all(), "dataChange of the state must not be copied to the remove"
    old = table.snapshot(1).files()
    for source in (
        old,
        old.collect(),
        old.collect().to_arrow(),
        table.snapshot(1).state.to_pandas(),
    ):
        with table.transaction() as tx:
            tx.add(source, dataChange=False)
        now = table.snapshot().files().drop("version").sort("path").collect()
        assert now.equals(old.drop("version").sort("path").collect(), null_equal=True)
        added = table.actions(tx.version or 0).filter(pl.col("actionType") == "add").collect()
        assert not added["dataChange"].any()


def test_deletion_vectors_are_part_of_a_files_identity(tmp_path: Path) -> None:
    table = new_table(
        location("local", tmp_path), configuration={"delta.enableDeletionVectors": "true"}
    )
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 2,
    }
    with table.transaction() as tx:
        tx.add(path="a", size=1, stats={"numRecords": 9})
    with table.transaction() as tx:
        tx.remove(tx.read())
        tx.add(path="a", size=1, stats={"numRecords": 9}, deletionVector=vector)
    row = only_file(table)
    assert row["dvId"] == "uab^-aqEH.-t@S}K{vb[*k^@4"
    assert row["dvCardinality"] == 2
    assert table.snapshot().num_files() == 1


def test_many_files_are_added_in_one_call(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    count = 200_000
    frame = pl.select(
        path=pl.format("part-{}.parquet", pl.int_range(count)), size=pl.int_range(count)
    )
    with table.transaction() as tx:
        tx.add(frame.to_arrow())
    assert table.snapshot().num_files() == count


# --- metadata, protocol and other actions ------------------------------------------------------


@each_format
def test_metadata_fields_that_are_not_given_are_kept(tmp_path: Path, form: str) -> None:
    table = new_table(
        location("local", tmp_path), form, partition_by=["day"], configuration={"a": "1"}
    )
    before = table.snapshot().metadata
    with table.transaction() as tx:
        tx.set_metadata(configuration={"b": "2"}, description="text")
    with table.transaction() as tx:
        tx.set_metadata(name="n")
        tx.set_metadata(configuration={"a": None}, description=None)
    after = table.snapshot().metadata
    assert dict(after.configuration) == {"b": "2"}
    assert (after.name, after.description) == ("n", None)
    assert (after.id, after.schema_string) == (before.id, before.schema_string)
    assert (after.partition_columns, after.created_time) == (("day",), before.created_time)


def test_metadata_is_accepted_with_protocol_names_and_as_a_table(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    text = (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
        '{"name":"day","type":"string","nullable":true,"metadata":{}},'
        '{"name":"new","type":"string","nullable":true,"metadata":{}}]}'
    )
    with table.transaction() as tx:
        tx.set_metadata(schemaString=text, name="a", configuration={"k": "v"})
    assert table.snapshot().schema.names == ("id", "day", "new")
    with table.transaction() as tx:
        tx.set_metadata(pl.DataFrame({"name": ["b"], "configuration": [{"l": "w"}]}))
    after = table.snapshot().metadata
    assert after.name == "b"
    assert dict(after.configuration) == {"k": "v", "l": "w"}
    with pytest.raises(InvalidInputError, match="one metaData"), table.transaction() as tx:
        tx.set_metadata(pl.DataFrame({"name": ["b", "c"]}))
    with pytest.raises(InvalidInputError, match="not both"), table.transaction() as tx:
        tx.set_metadata(pl.DataFrame({"name": ["b"]}), id="x")


def test_protocol_is_upgraded_as_the_metadata_needs(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    assert table.snapshot().protocol == lakelog.model.metadata.Protocol(1, 2)
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableDeletionVectors": "true"})
    protocol = table.snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert "deletionVectors" in (protocol.reader_features or ())
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.feature.domainMetadata": "supported"})
    assert "domainMetadata" in (table.snapshot().protocol.writer_features or ())
    assert "delta.feature.domainMetadata" not in table.snapshot().metadata.configuration
    with table.transaction() as tx:
        tx.set_protocol(features=["vacuumProtocolCheck"])
    assert "vacuumProtocolCheck" in (table.snapshot().protocol.reader_features or ())
    with pytest.raises(UnsupportedFeatureError), table.transaction() as tx:
        tx.set_protocol(features=["flux"])


def test_schema_may_gain_columns_and_changes_types_only_if_all_files_are_replaced(
    tmp_path: Path,
) -> None:
    table = new_table(location("local", tmp_path))
    append(table, "a")
    with table.transaction() as tx:
        tx.set_metadata(schema={"id": pl.Int64, "day": pl.String, "more": pl.Float64})
    other = pa.schema([("id", pa.string()), ("day", pa.string())])
    with pytest.raises(SchemaEvolutionError), table.transaction() as tx:
        tx.set_metadata(schema=other)
    with table.transaction() as tx:
        tx.remove(table.snapshot().files())
        tx.set_metadata(schema=other)
        tx.add(path="b", size=1)
    assert table.snapshot().schema.names == ("id", "day")
    assert paths(table) == ["b"]


def test_incompatible_schema_conflicts_with_a_concurrently_added_file(
    tmp_path: Path,
) -> None:
    where = location("local", tmp_path)
    append(new_table(where), "a")
    table = lakelog.open(where)
    tx = table.transaction()
    tx.remove(table.snapshot().files())
    tx.set_metadata(schema={"id": pl.String})
    append(lakelog.open(where), "late")
    with pytest.raises(lakelog.ConcurrentAppendError):
        tx.commit()


def test_application_versions_are_recorded(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with table.transaction() as tx:
        tx.set_txn(appId="a", version=3)
        tx.set_txn(pl.DataFrame({"appId": ["b", "c"], "version": [4, 5], "lastUpdated": [1, None]}))
    rows = table.snapshot().transactions().sort("appId").collect()
    assert rows["txnVersion"].to_list() == [3, 4, 5]
    assert rows["lastUpdated"][1] == 1
    assert rows["lastUpdated"].null_count() == 0
    with pytest.raises(InvalidInputError, match="txnVersion"):
        table.transaction().set_txn(appId="a")
    for wrong in ({"app_id": "a"}, {"app_version": 1}):
        with pytest.raises(InvalidInputError, match="app_version"):
            table.transaction(**wrong)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"user_metadata": {"a": 1}}, "user_metadata must be a string"),
        ({"operation": 5}, "operation must be a string"),
        ({"parameters": "x"}, "parameters must map"),
        ({"parameters": {1: "x"}}, "parameters must map"),
        ({"metrics": {"numFiles": {1}}}, "'numFiles' of metrics cannot be converted"),
        ({"user_name": 5}, "user_name must be a string"),
        ({"commit_info": "x"}, "commit_info must map"),
        ({"commit_info": {"txnId": "mine"}}, "cannot set 'txnId'"),
        ({"commit_info": {"clusterId": 5}}, "'clusterId' of commit_info"),
        ({"commit_info": {"job": {"jobId": 5}}}, "'job' of commit_info"),
        ({"commit_info": {"x": {1}}}, "'x' of commit_info"),
        ({"commit_info": {"x": [float("nan")]}}, "'x' of commit_info"),
        ({"max_attempts": 0}, "must be at least 1"),
        ({"max_attempts": 1.5}, "must be at least 1"),
    ],
)
def test_invalid_transaction_options_raise_immediately(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    table = new_table(location("local", tmp_path))
    with pytest.raises(InvalidInputError, match=match):
        table.transaction(**options)


def test_repeated_application_version_commits_nothing(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    assert append(table, "a", app_id="app", app_version=3) == 1
    for version in (3, 2):
        with table.transaction(app_id="app", app_version=version) as tx:
            assert tx.duplicate
            tx.add(path="again", size=1)
        assert tx.version is None
        assert not tx.committed
    assert append(table, "b", app_id="app", app_version=4) == 2
    assert append(lakelog.open(table.path), "c", app_id="app", app_version=4) is None
    assert append(table, "d", app_id="other", app_version=1) == 3
    assert paths(table) == ["a", "b", "d"]
    for each in (table, lakelog.open(table.path)):
        found = each.snapshot().transactions().select("appId", "txnVersion").collect()
        assert dict(found.rows()) == {"app": 4, "other": 1}
    info = infos(table)[3]
    assert (info["operation"], info["isBlindAppend"]) == ("WRITE", True)


def test_expired_application_version_is_ignored(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where, configuration={"delta.setTransactionRetentionDuration": "interval 1 hour"})

    def at(now_ms: int) -> Table:
        return Table(Log(open_store(where), DIALECT, clock=lambda: now_ms))

    append(at(NOW_MS), "a", app_id="app", app_version=3)
    assert append(at(NOW_MS + 3_599_999), "b", app_id="app", app_version=3) is None
    assert append(at(NOW_MS + 3_600_000), "b", app_id="app", app_version=3) == 2


def test_domains_are_set_and_removed(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with table.transaction() as tx:
        tx.set_protocol(features=["domainMetadata"])
        tx.set_domain(domain="a", configuration="1")
        tx.set_domain(pl.DataFrame({"domain": ["b"], "configuration": ["2"]}))
    assert table.snapshot().domains().collect()["domain"].sort().to_list() == ["a", "b"]
    with table.transaction() as tx:
        tx.remove_domain("a")
    assert table.snapshot().domains().collect()["domain"].to_list() == ["b"]
    last = table.actions(2).filter(pl.col("actionType") == "domainMetadata").collect()
    assert last.select("domainConfiguration", "domainRemoved").rows() == [("1", True)]
    with (
        pytest.raises(InvalidTransactionError, match="domain not found"),
        table.transaction() as tx,
    ):
        tx.remove_domain("a")
    with pytest.raises(InvalidTransactionError), table.transaction() as tx:
        tx.set_domain(domain="delta.mine", configuration="")


# --- row tracking and in-commit timestamps -----------------------------------------------------


def test_row_ids_and_commit_versions_are_assigned_and_never_repeat(tmp_path: Path) -> None:
    table = new_table(
        location("local", tmp_path), configuration={"delta.enableRowTracking": "true"}
    )
    configuration = table.snapshot().metadata.configuration
    assert configuration["delta.rowTracking.materializedRowIdColumnName"]
    for version in (1, 2, 3):
        with table.transaction() as tx:
            tx.add(path=f"a{version}", size=1, stats={"numRecords": 10})
            tx.add(path=f"b{version}", size=1, stats={"numRecords": 5})
    rows = table.snapshot().files().sort("baseRowId").collect()
    assert rows["baseRowId"].to_list() == [0, 10, 15, 25, 30, 40]
    assert rows["defaultRowCommitVersion"].to_list() == [1, 1, 2, 2, 3, 3]
    with table.transaction() as tx:  # a rewrite without a change keeps its ids
        files = tx.read().filter(pl.col("path") == "a1").collect()
        tx.remove(files, dataChange=False)
        tx.add(files.with_columns(path=pl.lit("a1-copy")), dataChange=False)
    kept = table.snapshot().files().filter(pl.col("path") == "a1-copy").collect()
    assert kept.select("baseRowId", "defaultRowCommitVersion").rows() == [(0, 1)]
    domain = table.snapshot().domains().collect().row(0, named=True)
    assert domain["domain"] == "delta.rowTracking"
    assert domain["domainConfiguration"] == '{"rowIdHighWaterMark":44}'


def test_files_with_the_row_ids_of_another_file_are_refused(tmp_path: Path) -> None:
    table = new_table(
        location("local", tmp_path), configuration={"delta.enableRowTracking": "true"}
    )
    with table.transaction() as tx:
        tx.add(path="empty", size=1, stats={"numRecords": 0})
        tx.add(path="a", size=1, stats={"numRecords": 10})
    files = table.snapshot().files().filter(pl.col("path") == "a").collect()
    copies = files.with_columns(path=pl.lit("b")), files.with_columns(path=pl.lit("c"))
    tx = table.transaction()
    tx.add(copies[0])
    with pytest.raises(InvalidTransactionError, match="row ids of another file"):
        tx.commit()
    tx = table.transaction()
    tx.remove(files)
    tx.add(pl.concat(copies))
    with pytest.raises(InvalidTransactionError, match="row ids of another file"):
        tx.commit()
    with table.transaction() as tx:
        tx.add(tx.read(), dataChange=False)  # the same files
        tx.add(copies[0].drop("baseRowId", "defaultRowCommitVersion"))
    rows = table.snapshot().files().sort("path").collect()
    assert rows["baseRowId"].to_list() == [0, 10, 0]


def test_row_tracking_can_be_enabled_only_if_files_have_row_ids(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path))
    with table.transaction() as tx:
        tx.add(path="a", size=1, stats={"numRecords": 1})
    with pytest.raises(InvalidTransactionError, match="row ids"), table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableRowTracking": "true"})
    with table.transaction() as tx:
        tx.set_protocol(features=["rowTracking"])
    with table.transaction() as tx:
        tx.add(tx.read(), dataChange=False)
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableRowTracking": "true"})
    assert only_file(table)["baseRowId"] == 0


def test_in_commit_timestamps_are_the_first_field_and_increase(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    new_table(where)
    clock = [NOW_MS]
    table = Table(Log(open_store(where), DIALECT, clock=lambda: clock[0]))
    append(table, "a")
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    configuration = table.snapshot().metadata.configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "2"
    stamps = [NOW_MS]
    assert configuration["delta.inCommitTimestampEnablementTimestamp"] == str(stamps[0])
    for step in (5, -1000, 0):
        clock[0] += step
        append(table, f"f{step}")
        stamps.append(max(clock[0], stamps[-1] + 1))
    found = infos(table)
    assert [i.get("inCommitTimestamp") for i in found] == [None, None, *stamps]
    assert table.snapshot().timestamp_ms == stamps[-1]
    assert lakelog.open(where).snapshot(timestamp=stamps[2]).version == 4
    first = open_store(where).read(DIALECT.commit_path(3))
    assert first.startswith(b'{"commitInfo":{"inCommitTimestamp":')


@pytest.mark.parametrize("of", ["Version", "Timestamp"])
def test_record_of_the_first_in_commit_timestamp_changes_only_with_them(
    tmp_path: Path, of: str
) -> None:
    switch, key = "delta.enableInCommitTimestamps", f"delta.inCommitTimestampEnablement{of}"
    table = new_table(location("local", tmp_path / "table"))
    table.alter.set_properties({switch: "true"})
    recorded = table.snapshot().metadata.configuration
    for value in (None, "0"):
        with (
            pytest.raises(InvalidMetadataError, match="first in-commit timestamp") as refused,
            table.transaction() as tx,
        ):
            tx.set_metadata(configuration={key: value})
        assert (refused.value.path, refused.value.expected) == (key, recorded[key])
    with pytest.raises(InvalidMetadataError):
        table.alter.unset_properties([key])
    table.alter.set_properties({key: recorded[key] or "", "delta.appendOnly": "false"})
    table.restore(0)
    assert table.snapshot().metadata.configuration[key] == recorded[key]
    cloned = table.clone(tmp_path / "clone").snapshot().metadata.configuration
    assert cloned[switch] == "true"
    assert key not in cloned
    table.alter.set_properties({switch: "false"})
    table.alter.unset_properties([key])
    table.alter.set_properties({switch: "true"})
    again = table.snapshot().metadata.configuration
    assert again[key] != recorded[key]
    table.alter.unset_properties([switch, key])


# --- errors ------------------------------------------------------------------------------------


def assert_add_raises(table: Table, error: type[Exception], **fields: Any) -> None:
    before = table.version()
    with pytest.raises(error), table.transaction() as tx:
        tx.add(**{"path": "a", "size": 1, **fields})
    assert table.version() == before


def test_invalid_transaction_raises_and_writes_nothing(tmp_path: Path) -> None:
    table = new_table(location("local", tmp_path), partition_by=["day"])
    good = {"partitionValues": {"day": "x"}}
    assert_add_raises(table, PartitionMismatchError)
    assert_add_raises(table, PartitionMismatchError, partitionValues={"day": "x", "no": "y"})
    assert_add_raises(table, lakelog.InvalidPathError, path="../a", **good)
    assert_add_raises(table, lakelog.InvalidPathError, path="", **good)
    assert_add_raises(table, InvalidTransactionError, size=-1, **good)
    assert_add_raises(table, InvalidTransactionError, stats="x", **good)
    with pytest.raises(lakelog.DuplicateFileError), table.transaction() as tx:  # noqa: PT012 - a block
        tx.add(path="a", size=1, **good)
        tx.add(path="a", size=1, **good)
    with pytest.raises(InvalidMetadataError), table.transaction() as tx:
        tx.set_metadata(partition_by=["nope"])
    with pytest.raises(InvalidPropertyError), table.transaction() as tx:
        tx.set_metadata(configuration={"delta.appendOnly": "maybe"})
    with pytest.raises(InvalidInputError, match="configuration must be a mapping"):
        table.transaction().set_metadata(configuration={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="needs a path"):
        table.transaction().add(size=1)
    with pytest.raises(InvalidInputError, match="isolation"):
        table.transaction(isolation="Snapshot")
    assert table.version() == 0


def test_store_without_safe_commits_raises_when_the_transaction_begins(
    tmp_path: Path,
) -> None:
    where = location("local", tmp_path)
    new_table(where)
    store = ReadOnly(open_store(where))
    with pytest.raises(UnsupportedStoreError, match="conditional requests"):
        Table(Log(store, DIALECT)).transaction()


def test_transaction_can_be_repeated_after_a_store_failure(tmp_path: Path) -> None:
    from lakelog.testing import Rule

    where = location("local", tmp_path)
    new_table(where)
    table, _ = open_with_rules(where, "delta", [Rule("fail", "put_if_absent")])
    with pytest.raises(lakelog.UnavailableError):
        append(table, "a")
    assert append(table, "a") == 1
