"""Tables that lakelog writes, opened by Delta Lake on Spark: the same state, and readable rows."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from tests.spark.data_files import data_file, ids
from tests.spark.reference import assert_same_state, delta_log

pytestmark = pytest.mark.reference

ID = {"id": pl.Int64}
ODD = ["plain", "a b", "50%", "%2F", "a/b=c", "ü😀", "x'y\"z", "a+b", "#?:[{*", None]
"""Partition values that paths must escape, and null."""


def values(frame: Any) -> list[tuple[Any, ...]]:
    """A Spark frame's rows, in order."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def load(spark: Any, path: str, **options: Any) -> Any:
    return spark.read.format("delta").options(**options).load(path)


def test_files_partition_values_and_rows_are_the_same(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "a table 100% ü")
    table = lakelog.create(path, {"id": pl.Int64, "p": pl.String, "day": pl.Date}, ["p", "day"])
    days = ["2026-01-31", None]
    with table.transaction() as tx:
        for number, p in enumerate(ODD):
            # Any folder name is allowed; every unusual character is used once.
            folder = "null" if p is None else f"p={p.replace('/', '%2F')}"
            name = f"{folder}/part {number}+%41.parquet"
            add = data_file(
                path, name, ids(number, number + 100), {"p": p, "day": days[number % 2]}
            )
            tx.add(**add, tags={"number": str(number)})
    assert_same_state(delta, path)

    frame = load(delta, path)
    day = [dt.date(2026, 1, 31), None]
    expected = [(i, p, day[n % 2]) for n, p in enumerate(ODD) for i in (n, n + 100)]
    assert values(frame) == sorted(expected, key=repr)
    by_partition = frame.groupBy("p", "day").agg({"id": "sum", "*": "count"})
    assert values(by_partition.select("p", "day", "sum(id)", "count(1)")) == sorted(
        ((p, day[n % 2], 2 * n + 100, 2) for n, p in enumerate(ODD)), key=repr
    )
    assert values(frame.where("p = '50%'").select("id")) == [(102,), (2,)]
    assert values(frame.where("p is null").select("id")) == [(109,), (9,)]
    # Delta skips by the statistics that lakelog carries.
    assert values(frame.where("id = 105")) == [(105, ODD[5], None)]

    with lakelog.open(path).transaction() as tx:
        tx.remove(lakelog.open(path).snapshot().files(pl.col("p").is_in(["50%", "a b"])))
    state = assert_same_state(delta, path)
    assert len(state["files"]) == len(ODD) - 2
    assert len(state["tombstones"]) == 2
    assert load(delta, path).count() == 2 * len(ODD) - 4
    assert load(delta, path, versionAsOf=1).count() == 2 * len(ODD)


def test_columns_of_every_type_are_read(delta: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
    rows = pl.DataFrame(
        {
            "byte": pl.Series([-128, None], dtype=pl.Int8),
            "short": pl.Series([-32768, None], dtype=pl.Int16),
            "int": pl.Series([2**31 - 1, None], dtype=pl.Int32),
            "long": pl.Series([2**63 - 1, None], dtype=pl.Int64),
            "float": pl.Series([1.5, None], dtype=pl.Float32),
            "double": pl.Series([float("inf"), None], dtype=pl.Float64),
            "truth": [True, None],
            "text": ["ü😀\n", None],
            "bytes": [b"\x00\xff", None],
            "date": [dt.date(1969, 12, 31), None],
            "ntz": pl.Series([moment, None], dtype=pl.Datetime("us")),
            "instant": pl.Series([moment, None], dtype=pl.Datetime("us", "UTC")),
            "money": pl.Series([decimal.Decimal("-1234567.89"), None], dtype=pl.Decimal(12, 2)),
            "list": [[1, None], None],
            "struct": [{"a": 1, "b": ["x"]}, None],
            "Space, and = {odd}": ["named", None],
        }
    )
    path = str(tmp_path / "table")
    schema = dict(rows.schema)
    odd = schema.pop("Space, and = {odd}")
    table = lakelog.create(path, schema | {"plain": odd})
    with table.transaction() as tx:
        tx.add(**data_file(path, "part.parquet", rows.rename({"Space, and = {odd}": "plain"})))
    state = assert_same_state(delta, path)
    assert "timestampNtz" in state["protocol"][2]

    frame = load(delta, path)
    assert frame.schema == StructType.fromJson(state["metadata"]["schemaString"])
    first, second = sorted(frame.collect(), key=lambda row: row["text"] is None)
    assert all(value is None for value in second)
    found = first.asDict(recursive=True)
    assert found.pop("instant") is not None
    expected = rows.rename({"Space, and = {odd}": "plain"}).drop("instant").row(0, named=True)
    assert found == expected
    assert frame.where("instant = timestamp'2026-03-29 01:30:00.123456Z'").count() == 1


def test_history_is_the_same_in_both_engines(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID)
    with table.transaction(user_metadata='{"by": "lakelog"}') as tx:
        tx.add(**data_file(path, "1.parquet", ids(1, 2, 3)))
    with table.transaction() as tx:
        tx.set_metadata(configuration={"owner": "an owner"})
    with table.transaction() as tx:
        tx.remove(path="1.parquet")
    with table.transaction(operation="COPY INTO", parameters={"a": 1}, metrics={"rows": 7}) as tx:
        tx.read()
        tx.add(**data_file(path, "2.parquet", ids(4)))
    theirs = [row.asDict() for row in delta.sql(f"describe history delta.`{path}`").collect()]
    ours = table.history().to_dicts()
    assert [row["version"] for row in theirs] == [4, 3, 2, 1, 0]
    for own, other in zip(ours, theirs, strict=True):
        for name in ("version", "operation", "isBlindAppend"):
            assert own[name] == other[name], (name, own["version"])
        extra = json.loads(own["extra"] or "{}")
        for name in ("readVersion", "isolationLevel", "userMetadata"):
            assert extra.get(name) == other[name], (name, own["version"])
        assert own["engineInfo"] == other["engineInfo"] == f"lakelog/{lakelog.__version__}"
        assert own["timestamp"].timestamp() == other["timestamp"].timestamp()
    assert theirs[3]["userMetadata"] == '{"by": "lakelog"}'
    assert [row["operation"] for row in theirs][1:] == [
        "DELETE",
        "SET TBLPROPERTIES",
        "WRITE",
        "CREATE TABLE",
    ]
    assert theirs[3]["operationMetrics"]["numOutputRows"] == "3"
    assert theirs[0]["operation"] == "COPY INTO"
    assert theirs[0]["operationMetrics"] == {"rows": "7"}
    assert theirs[0]["operationParameters"] == {"a": "1"}


def test_application_version_is_written_once_by_either_engine(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID)
    with table.transaction(app_id="loader", app_version=7) as tx:
        tx.add(**data_file(path, "1.parquet", ids(1)))
    again = {"txnAppId": "loader", "txnVersion": 7}
    delta.range(5).write.format("delta").mode("append").options(**again).save(path)
    assert load(delta, path).count() == 1

    again["txnVersion"] = 8
    delta.range(5).write.format("delta").mode("append").options(**again).save(path)
    with table.transaction(app_id="loader", app_version=8) as tx:
        tx.add(**data_file(path, "2.parquet", ids(2)))
    assert tx.duplicate
    state = assert_same_state(delta, path)
    assert state["txns"]["loader"][0] == 8
    assert load(delta, path).count() == 6


def test_user_domain_is_read_until_it_is_removed(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID, configuration={"delta.feature.domainMetadata": "supported"})
    with table.transaction() as tx:
        tx.set_domain(domain="ours", configuration='{"a": "ü"}')
        tx.set_domain(domain="other", configuration="")
    with table.transaction() as tx:
        tx.remove_domain("other")
    assert assert_same_state(delta, path, 1)["domains"] == {"ours": '{"a": "ü"}', "other": ""}
    assert assert_same_state(delta, path, 2)["domains"] == {"ours": '{"a": "ü"}'}


def test_rows_are_tracked_across_both_engines(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID, configuration={"delta.enableRowTracking": "true"})
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", ids(1, 2, 3)))
        tx.add(**data_file(path, "2.parquet", ids(4, 5)))
    delta.range(10, 14).coalesce(1).write.format("delta").mode("append").save(path)
    with table.transaction() as tx:
        tx.add(**data_file(path, "3.parquet", ids(20, 21)))
    state = assert_same_state(delta, path)
    assert json.loads(state["domains"]["delta.rowTracking"]) == {"rowIdHighWaterMark": 10}

    columns = ("id", "_metadata.row_id", "_metadata.row_commit_version")
    rows = values(load(delta, path).select(*columns))
    assert sorted(row_id for _, row_id, _ in rows) == list(range(11))
    assert {i: version for i, _, version in rows} == {
        **dict.fromkeys((1, 2, 3, 4, 5), 1),
        **dict.fromkeys(range(10, 14), 2),
        **dict.fromkeys((20, 21), 3),
    }
    # A rewrite by Spark keeps the ids that lakelog gave.
    delta.sql(f"update delta.`{path}` set id = id + 1000 where id in (1, 20)")
    after = {
        i % 1000: (row_id, version)
        for i, row_id, version in values(load(delta, path).select(*columns))
    }
    assert {i: row_id for i, (row_id, _) in after.items()} == {i: r for i, r, _ in rows}
    assert {i for i, (_, version) in after.items() if version == 4} == {1, 20}
    assert_same_state(delta, path)

    # Changes by lakelog keep the ids that either gave.
    for change, updated in (
        (lambda: table.update({"id": "id + 2000"}, "id IN (3, 1020)"), {3, 20}),
        (lambda: table.merge(ids(4, 99), "id").when_matched_update({"id": "target.id + 2000"})
            .when_not_matched_insert_all().execute(), {4, 99}),
        (lambda: table.delete("id = 12"), set()),
        (lambda: table.overwrite(ids(98), "id IN (5, 98)"), {98}),
        (table.compact, set()),
        (lambda: table.alter.set_properties({"delta.enableDeletionVectors": "true"}), set()),
        (lambda: table.update({"id": "id + 4000"}, "id = 10"), {10}),
    ):  # fmt: skip
        before, version = after, change() and table.version()
        found = table.scan(row_ids=True).collect().rows()
        if updated in ({98}, {10}):  # before compaction, and at the end
            assert sorted(found) == sorted(values(load(delta, path).select(*columns)))
        after = {i % 1000: (row_id, since) for i, row_id, since in found}
        assert {i for i, (_, since) in after.items() if since == version} == updated
        assert {i: kept for i, kept in after.items() if i not in updated} == {
            i: kept for i, kept in before.items() if i in after and i not in updated
        }
        assert all(after[i][0] == before[i][0] for i in updated & before.keys())
    assert_same_state(delta, path)


def test_columns_of_spark_copied_by_an_update_are_unchanged(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    columns = ("id", "rand(1) x", "string(id % 900) s", "timestamp_seconds(id) at")
    more = ("named_struct('a', id, 'b', array(id)) inside", "cast(id as decimal(20, 3)) m")
    frame = delta.range(45_000).selectExpr(*columns, *more)  # three pages of each column
    frame.coalesce(1).write.format("delta").save(path)
    table = lakelog.open(path, upkeep=False)
    table.update({"x": "x + 1"}, "id % 100 = 7")
    (file,) = table.snapshot().files().collect()["path"]
    assert pq.read_metadata(tmp_path / "table" / file).created_by.startswith("parquet-mr")
    assert table.snapshot().num_rows() == load(delta, path).count() == 45_000
    ours = table.to_polars()
    sums = load(delta, path).selectExpr("sum(id)", "sum(x)", "sum(m)", "max(at)").first()
    assert (ours["id"].sum(), ours["m"].sum(), ours["at"].dt.epoch("s").max()) == (
        sums[0],
        sums[2],
        sums[3].timestamp(),
    )
    assert ours["x"].sum() == pytest.approx(sums[1])
    for where in ("id between 104 and 108", "s = '107' and at < timestamp'1970-01-01 01:00:00'"):
        theirs = load(delta, path).where(where).select("id", "x", "s", "m")
        found = table.scan(where.replace("timestamp'", "'")).collect()
        assert sorted(found.select("id", "x", "s", "m").rows(), key=repr) == values(theirs)
        assert found.height in {5, 4}
    assert_same_state(delta, path)


def test_time_travel_by_timestamp_is_the_same(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID)
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", ids(1)))
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    delta.range(3).coalesce(1).write.format("delta").mode("append").save(path)
    for number in (2, 3):
        with table.transaction() as tx:
            tx.add(**data_file(path, f"{number}.parquet", ids(number)))
    times = [assert_same_state(delta, path, v)["timestamp"] for v in range(2, 6)]
    assert times == sorted(set(times))
    state = assert_same_state(delta, path)
    enabled = state["metadata"]["configuration"]
    assert enabled["delta.inCommitTimestampEnablementVersion"] == "2"
    assert enabled["delta.inCommitTimestampEnablementTimestamp"] == str(times[0])

    history = delta_log(delta, path).history()
    none = delta._jvm.scala.Option.empty()
    for version, milliseconds in enumerate(times, start=2):
        for offset in (0, -1):
            moment = delta._jvm.java.sql.Timestamp(milliseconds + offset)
            found = history.getActiveCommitAtTime(moment, none, False, True, True).getVersion()
            ours = table.snapshot(timestamp=milliseconds + offset).version
            assert ours == found, (version, offset)


def test_spark_checkpoint_has_the_commits_of_lakelog(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    properties = {"delta.enableRowTracking": "true", "delta.checkpoint.writeStatsAsStruct": "true"}
    table = lakelog.create(path, {"id": pl.Int64, "p": pl.String}, ["p"], configuration=properties)
    for number in range(1, 30):
        with table.transaction(app_id=f"app {number % 3}", app_version=number) as tx:
            p = ODD[number % len(ODD)]
            tx.add(**data_file(path, f"{number} %.parquet", ids(number), {"p": p}))
            if number % 4 == 0:
                tx.remove(path=f"{number - 1} %.parquet")
    before = assert_same_state(delta, path)
    delta.sql(f"insert into delta.`{path}` values (1000, 'spark')")
    checkpoint = Path(path, "_delta_log", f"{30:020}.checkpoint.parquet")
    assert checkpoint.is_file()
    for version in range(29):
        Path(path, "_delta_log", f"{version:020}.json").unlink()
    state = assert_same_state(delta, path)
    assert lakelog.open(path).snapshot().provenance.checkpoint is not None
    assert before["files"].items() <= state["files"].items()
    assert before["tombstones"] == state["tombstones"]
    assert before["txns"] == state["txns"]
    with lakelog.open(path).transaction() as tx:
        tx.add(**data_file(path, "last.parquet", ids(5), {"p": None}))
    assert_same_state(delta, path)
    assert load(delta, path).count() == 29 - 7 + 2


def test_spark_writes_a_table_whose_protocol_lakelog_upgraded(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = lakelog.create(path, ID)
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", ids(*range(10))))
    with table.transaction() as tx:
        tx.set_metadata(
            configuration={
                "delta.enableDeletionVectors": "true",
                "delta.enableTypeWidening": "true",
                "delta.checkpointPolicy": "v2",
                "delta.feature.vacuumProtocolCheck": "supported",
            }
        )
    state = assert_same_state(delta, path)
    assert {"deletionVectors", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"} <= set(
        state["protocol"][2]
    )
    delta.sql(f"delete from delta.`{path}` where id in (3, 4)")
    state = assert_same_state(delta, path)
    (file,) = state["files"].values()
    assert file["dvCardinality"] == 2

    # The logical file is carried by lakelog: added again under the same vector.
    live = table.snapshot().files()
    with table.transaction() as tx:
        tx.add(live, dataChange=False, tags={"again": "yes"})
    again = assert_same_state(delta, path)
    assert list(again["files"]) == list(state["files"])
    (carried,) = again["files"].values()
    assert carried == file | {"tags": {"again": "yes"}}
    assert load(delta, path).count() == 8


def test_append_to_a_table_clustered_by_spark(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    delta.sql(f"create table delta.`{path}` (id long, note string) using delta cluster by (id)")
    delta.sql(f"insert into delta.`{path}` select id, 's' from range(4)")
    table = lakelog.open(path)
    before = assert_same_state(delta, path)
    assert "delta.clustering" in before["domains"]
    rows = pl.DataFrame({"id": [10, 11], "note": ["l", None]})
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", rows))
    state = assert_same_state(delta, path)
    assert state["domains"] == before["domains"]
    detail = delta.sql(f"describe detail delta.`{path}`").collect()[0]
    assert detail["clusteringColumns"] == ["id"]
    delta.sql(f"optimize delta.`{path}` full")
    state = assert_same_state(delta, path)
    assert {file["clusteringProvider"] for file in state["files"].values()} == {"liquid"}
    assert load(delta, path).count() == 6


def test_partition_values_of_every_type_are_the_same(delta: Any, tmp_path: Path) -> None:
    types: dict[str, Any] = {
        "truth": pl.Boolean,
        "byte": pl.Int8,
        "long": pl.Int64,
        "double": pl.Float64,
        "money": pl.Decimal(12, 2),
        "text": pl.String,
        "date": pl.Date,
        "instant": pl.Datetime("us", "UTC"),
        "ntz": pl.Datetime("us"),
    }
    texts = {
        "truth": "true",
        "byte": "-128",
        "long": "-9223372036854775808",
        "double": "-1.5E-7",
        "money": "-1234567.89",
        "text": " ",
        "date": "1582-10-03",
        "instant": "2026-03-29T01:30:00.123456Z",
        "ntz": "2026-03-29 01:30:00.000001",
    }
    path = str(tmp_path / "table")
    table = lakelog.create(path, {"id": pl.Int64, **types}, list(types))
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", ids(1), texts))
        tx.add(**data_file(path, "2.parquet", ids(2), dict.fromkeys(types)))
    assert_same_state(delta, path)
    files = table.snapshot().files(flatten=True).sort("path")
    ours = files.select(pl.col(f"partition.{name}").alias(name) for name in types).collect()
    theirs = load(delta, path).orderBy("id").drop("id")
    moments = theirs.selectExpr("unix_micros(instant)").collect()
    assert [row[0] for row in moments] == ours["instant"].dt.epoch("us").to_list()
    rows = [row.asDict() for row in theirs.drop("instant").collect()]
    assert rows == ours.drop("instant").to_dicts()


def test_spark_reads_and_renames_columns_mapped_by_lakelog(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    schema = {"id": pl.Int64, "odd name": pl.String, "p": pl.String}
    table = lakelog.create(path, schema, ["p"], configuration={"delta.columnMapping.mode": "name"})
    state = assert_same_state(delta, path)
    physical = {
        field["name"]: field["metadata"]["delta.columnMapping.physicalName"]
        for field in state["metadata"]["schemaString"]["fields"]
    }
    rows = pl.DataFrame({physical["id"]: [1], physical["odd name"]: ["x"]})
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", rows, {physical["p"]: "q"}))
    name = f"delta.`{path}`"
    delta.sql(f"alter table {name} rename column `odd name` to plain")
    delta.sql(f"alter table {name} add columns (later int)")
    delta.sql(f"insert into {name} values (2, 'y', null, 3)")
    assert_same_state(delta, path)
    frame = load(delta, path).orderBy("id")
    assert frame.columns == ["id", "plain", "p", "later"]
    assert [tuple(row) for row in frame.collect()] == [(1, "x", "q", None), (2, "y", None, 3)]


def test_files_with_hadoop_checksums_are_replaced_and_read_by_spark(
    delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    for number in range(2):
        delta.range(number, number + 1).write.format("delta").mode("append").save(path)
    delta_log(delta, path).checkpoint()
    log = tmp_path / "t" / "_delta_log"
    checkpoint = log / f"{1:020}.checkpoint.parquet"
    for name in ("_last_checkpoint", checkpoint.name):
        assert (log / f".{name}.crc").exists(), "Spark no longer writes checksums"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-7])
    table = lakelog.open(path, upkeep=False)
    table.repair(plan=False)
    table.checkpoint()
    assert checkpoint.exists()
    (log / f"{0:020}.json").unlink()  # so that Spark needs the checkpoint
    delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert values(load(delta, path)) == [(0,), (1,)]
    assert_same_state(delta, path)
