"""Dataframes written through the data source: their readers, and the refused writes."""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

import lakelog
from lakelog import (
    ConflictError,
    InvalidInputError,
    InvalidTransactionError,
    LakelogError,
    LakelogWarning,
    MetadataChangedError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from lakelog.log import context
from lakelog.spark import stream_sink, task_commit
from lakelog.spark.options import parse_options
from lakelog.spark.writing import BatchWriter, Message, batch_writer
from tests.spark.configured import configured
from tests.spark.reference import assert_same_state
from tests.spark.spark_side import (
    SCHEMA,
    finish,
    ids,
    named,
    new_table,
    on_disk,
    orphans,
    rows,
    sink,
    task,
    writer,
)

DDL = (
    "id long, name string, price decimal(12,2), at timestamp, ntz timestamp_ntz, day date, "
    "ok boolean, raw binary, ratio double, small short, tags array<string>, "
    "counts map<string,int>, place struct<x:double,y:double>"
)
FEED = {"delta.enableChangeDataFeed": "true"}
AT = dt.datetime(2026, 1, 5, 12, 30, 0, 123456, dt.UTC)
ROWS: list[tuple[Any, ...]] = [
    (
        number,
        f"ü{number}",
        Decimal(number) / 4,
        AT,
        AT.replace(tzinfo=None),
        AT.date() + dt.timedelta(days=number % 2),
        number % 2 == 0,
        bytes([number]),
        number / 3,
        number,
        [f"t{number}", None],
        {"a": number},
        (1.5, float(number)),
    )
    for number in range(6)
]
ROWS.append((6, *[None] * 12))


def plain(frame: Any) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[0])


def test_every_type_is_read_unchanged_by_spark_polars_and_delta(delta: Any, tmp_path: Path) -> None:
    schema = StructType.fromDDL(DDL)
    where = str(tmp_path / "t")
    table = lakelog.create(where, schema.json(), ["day"])
    frame = delta.createDataFrame(ROWS, schema)
    # Columns are matched by name, not by position.
    shuffled = frame.select(*reversed(frame.columns)).repartition(2)
    shuffled.write.format("lakelog").mode("append").option("userMetadata", "here").save(where)
    back = plain(delta.read.format("delta").load(where))
    assert back == plain(delta.read.format("lakelog").load(where)) == plain(frame)
    scanned = table.snapshot().scan().sort("id").collect()
    assert scanned["price"].to_list() == [row[2] for row in ROWS]
    assert scanned["day"].to_list() == [row[5] for row in ROWS]
    assert scanned["at"].to_list() == [row[3] for row in ROWS]
    assert_same_state(delta, where)
    new = str(tmp_path / "new")  # a location without a table becomes one
    to_new = shuffled.write.format("lakelog").option("partitionBy", "day").mode("append")
    to_new.save(new)
    assert plain(delta.read.format("delta").load(new).select(*frame.columns)) == plain(frame)
    assert_same_state(delta, new)
    for refused in (frame.write.format("lakelog"), to_new.partitionBy("day")):
        with pytest.raises(Exception, match=r"ErrorIfExists|partitioning"):  # Spark's own
            refused.save(new)
    [ours, _] = table.history().to_dicts()
    history = delta.sql(f"DESCRIBE HISTORY delta.`{where}`").collect()[0]
    assert (history.version, history.operation) == (1, "WRITE") == (1, ours["operation"])
    assert history.operationParameters == {"mode": "Append", "partitionBy": '["day"]'}
    assert history.operationMetrics["numOutputRows"] == "7"
    assert (history.isBlindAppend, history.userMetadata) == (True, "here")
    files = table.snapshot().files(stats=True).collect()
    assert files["numRecords"].sum() == 7
    assert files["partitionValues"].to_list()[0].keys() == {"day"}
    low = files.select(pl.col("min").struct.field("id").min(), pl.col("max").struct.field("at"))
    assert low["id"][0] == 0
    # Delta and lakelog append to the same table in turn.
    theirs = delta.createDataFrame([(7, None)], "id long, day date")
    theirs.write.format("delta").mode("append").save(where)
    again = delta.createDataFrame([(8, "x")], "id long, name string")
    again.write.format("lakelog").mode("append").save(where)
    assert [row[0] for row in plain(delta.read.format("delta").load(where))] == list(range(9))
    assert_same_state(delta, where)


def test_overwrite_replaces_all_rows_or_those_of_a_condition(spark: Any, tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    table = new_table(tmp_path / "t")
    table.append(pl.DataFrame(rows(*range(10))))

    def frame(*numbers: int) -> Any:
        # One task: another one might finish after the job has failed, and leave an orphan.
        made = spark.createDataFrame([(n, f"d{n % 2}") for n in numbers], "id long, day string")
        return made.coalesce(1)

    overwrite = frame(20, 22).write.format("lakelog").mode("overwrite")
    overwrite.option("replaceWhere", "day = 'd0'").save(where)
    assert ids(where) == [1, 3, 5, 7, 9, 20, 22]
    by_rows = frame(3, 21).write.format("lakelog").mode("overwrite")
    by_rows.option("replaceWhere", "id between 2 and 5 or id = 21").save(where)
    assert ids(where) == [1, 3, 7, 9, 20, 21, 22]
    with pytest.raises(Exception, match="does not satisfy the predicate") as caught:
        by_rows.option("replaceWhere", "id = 3").save(where)
    assert "21" in str(caught.value)
    frame(4).write.format("lakelog").mode("overwrite").save(where)
    assert ids(where) == [4]
    history = table.history()
    assert history["operation"].to_list()[:3] == ["WRITE"] * 3
    parameters = [dict(p) for p in history["operationParameters"].to_list()[:3]]
    assert [p.get("predicate") for p in parameters] == [
        None,
        "id between 2 and 5 or id = 21",
        "day = 'd0'",
    ]
    assert {p["mode"] for p in parameters} == {"Overwrite"}
    assert orphans(where) == set()


def test_dynamic_overwrite_replaces_the_written_partitions(spark: Any, tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    table = new_table(tmp_path / "t")
    table.append(pl.DataFrame(rows(*range(6))))
    frame = spark.createDataFrame([(11, "d1"), (13, "d1")], "id long, day string")
    dynamic = frame.write.format("lakelog").mode("overwrite")
    dynamic.option("partitionOverwriteMode", "dynamic").save(where)
    assert ids(where) == [0, 2, 4, 11, 13]
    [parameters] = table.history(limit=1)["operationParameters"].to_list()
    assert dict(parameters)["isDynamicPartitionOverwrite"] == "true"
    made = writer(where, overwrite=True, partitionOverwriteMode="DYNAMIC")
    assert finish(made, [task(made)]) is None
    assert ids(where) == [0, 2, 4, 11, 13], "no row, no partition"
    made = writer(where, overwrite=True, partitionOverwriteMode="static")
    assert finish(made, [task(made, rows(8))]) is None
    assert ids(where) == [8]
    new_table(tmp_path / "whole", partition_by=()).append(pl.DataFrame(rows(1, 2)))
    made = writer(tmp_path / "whole", overwrite=True, partitionOverwriteMode="dynamic")
    assert finish(made, [task(made, rows(3))]) is None
    assert ids(tmp_path / "whole") == [3]
    with pytest.raises(InvalidInputError, match="remove one of them"):
        writer(where, overwrite=True, partitionOverwriteMode="dynamic", replaceWhere="id = 1")
    with pytest.raises(InvalidInputError, match=r"static \| dynamic"):
        writer(where, overwrite=True, partitionOverwriteMode="some")


def test_concurrent_dynamic_overwrites_of_different_partitions_do_not_conflict(
    tmp_path: Path,
) -> None:
    where = tmp_path / "t"
    new_table(where).append(pl.DataFrame(rows(0, 1)))
    dynamic: Any = {"overwrite": True, "partitionOverwriteMode": "dynamic"}
    even, odd, again = (writer(where, **dynamic) for _ in range(3))
    messages = [task(made, rows(n)) for made, n in ((even, 10), (odd, 11), (again, 12))]
    assert finish(even, messages[:1]) is None
    assert finish(odd, messages[1:2]) is None
    assert isinstance(finish(again, messages[2:]), ConflictError), "even was committed first"
    assert ids(where) == [10, 11]
    assert orphans(where) == set()


@pytest.mark.parametrize("type_", ["float", "double"])
def test_dynamic_overwrite_of_negative_zero_keeps_the_partition_of_zero(
    tmp_path: Path, type_: str
) -> None:
    where, numbers = tmp_path / "t", [0.0, -0.0, math.nan, 1.5]
    schema = pa.schema({"id": pa.int64(), "part": pa.type_for_alias(type_)})
    table = lakelog.create(where, schema, ["part"], upkeep=False)
    table.append(pa.table({"id": [0, 1, 2, 3], "part": numbers}, schema))

    def replace(ids: list[int], parts: list[float]) -> tuple[BatchWriter, Message]:
        made = batch_writer(
            parse_options({"path": str(where), "partitionOverwriteMode": "dynamic"}, "write"),
            StructType().add("id", LongType()).add("part", type_),
            overwrite=True,
        )
        return made, task(made, pa.record_batch({"id": ids, "part": parts}, schema))

    zero, negative = replace([10], [0.0]), replace([11, 12], [-0.0, -math.nan])
    for made, message in (negative, zero):
        assert finish(made, [message]) is None, "they replace different partitions"
    assert table.to_polars().sort("id")["id"].to_list() == [3, 10, 11, 12]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overwrite": True},
        {"overwrite": True, "replaceWhere": "id = 0"},
        {"overwrite": True, "partitionOverwriteMode": "dynamic"},
    ],
    ids=["append", "overwrite", "rows", "partitions"],
)
def test_rows_read_at_an_earlier_version_do_not_overwrite_a_later_update(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = new_table(tmp_path)
    read = table.append(pl.DataFrame(rows(0, 1))).version
    table.overwrite(pl.DataFrame(rows(0)), pl.col("id") == 0)  # the other writer
    late = writer(tmp_path, readVersion=str(read), **options)
    error = finish(late, [task(late, rows(0))])
    assert isinstance(error, ConflictError)
    assert table.version() == 2
    assert not orphans(tmp_path)
    again = writer(tmp_path, readVersion="2", **options)
    assert finish(again, [task(again, rows(0))]) is None
    assert table.version() == 3


def test_table_with_a_change_data_feed_is_overwritten_by_complete_files(tmp_path: Path) -> None:
    where = tmp_path / "t"
    table = new_table(where, configuration=FEED)
    table.append(pl.DataFrame(rows(*range(6))))
    made = writer(where, overwrite=True, replaceWhere="day = 'd1'")
    assert finish(made, [task(made, rows(7))]) is None
    assert ids(where) == [0, 2, 4, 7]
    made = writer(where, overwrite=True)
    assert finish(made, [task(made, rows(8))]) is None
    assert ids(where) == [8]
    # Only an operation that replaces rows and changes none may omit change files.
    tx = table.transaction()
    tx.remove(tx.read())
    tx.add(path="day=d0/x", size=1, partitionValues={"day": "d0"})
    with pytest.raises(UnsupportedFeatureError, match="feed"):
        tx.commit()


def test_rows_kept_by_an_overwrite_keep_their_row_ids(tmp_path: Path) -> None:
    where = tmp_path / "t"
    table = new_table(where, configuration={"delta.enableRowTracking": "true"})
    table.append(pl.DataFrame(rows(*range(6))))
    before = table.scan(row_ids=True).filter(pl.col("id") != 1).collect().sort("id")
    made = writer(where, overwrite=True, replaceWhere="id = 1")
    assert finish(made, [task(made, rows(1))]) is None
    after = lakelog.open(where).scan(row_ids=True).collect().sort("id")
    assert after.filter(pl.col("id") != 1).equals(before)
    assert after.filter(id=1)["_row_commit_version"].item() == 2


@pytest.mark.reference
def test_delta_change_feed_has_the_rows_that_overwrites_replaced(
    delta: Any, tmp_path: Path
) -> None:
    where = str(tmp_path / "t")
    configuration = FEED | {"delta.enableDeletionVectors": "true"}
    table = new_table(tmp_path / "t", configuration=configuration)
    table.append(pl.DataFrame(rows(*range(6))))
    delta.sql(f"DELETE FROM delta.`{where}` WHERE id = 4")
    for options, number in (
        ({"replaceWhere": "day = 'd1'"}, 7),
        ({"partitionOverwriteMode": "dynamic"}, 8),
        ({}, 9),
    ):
        made = writer(where, overwrite=True, **options)
        assert finish(made, [task(made, rows(number))]) is None
    feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 3)
    found = sorted((r._commit_version, r._change_type, r.id) for r in feed.load(where).collect())
    assert found == [
        *((3, "delete", number) for number in (1, 3, 5)),
        (3, "insert", 7),
        *((4, "delete", number) for number in (0, 2)),
        (4, "insert", 8),
        *((5, "delete", number) for number in (7, 8)),
        (5, "insert", 9),
    ]


def test_invalid_writes_are_refused_before_a_task_runs(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")

    def refusal(schema: StructType, **options: str) -> LakelogError:
        given = parse_options({"path": str(tmp_path / "t"), **options}, "write")
        with pytest.raises(LakelogError) as caught:
            batch_writer(given, schema, overwrite=False)
        return caught.value

    good = StructType().add("id", LongType()).add("day", StringType())
    assert "no column 'more'" in str(refusal(StructType(list(good)).add("more", LongType())))
    assert "another type" in str(refusal(StructType().add("id", StringType())))
    assert "no columns" in str(refusal(StructType()))
    months = StructType([*good, StructField("m", YearMonthIntervalType())])
    for where in ("t", "none"):
        refused = refusal(months, path=str(tmp_path / where))
        assert "the type of 'm' has no equivalent" in str(refused)
    twice = refusal(StructType([*good, *good]), path=str(tmp_path / "none"))
    assert "two columns have the same name [column=id" in str(twice)
    assert twice.hint == "rename one of them"
    assert "pass options txnAppId and txnVersion" in str(refusal(good, txnAppId="job"))
    assert "the mode is append" in str(refusal(good, replaceWhere="id = 1"))
    dynamic = refusal(good, partitionOverwriteMode="dynamic")
    assert "partitionOverwriteMode=dynamic needs mode overwrite" in str(dynamic)
    assert "codec" in str(refusal(good, compression="none such"))
    new_table(tmp_path / "c", configuration=FEED)
    with pytest.raises(UnsupportedFeatureError, match="change data feed"):
        writer(tmp_path / "c", overwrite=True, replaceWhere="day = 'd0' and id > 1")
    kept = new_table(tmp_path / "a", configuration={"delta.appendOnly": "true"})
    for overwrites in (writer, sink):
        overwrites(tmp_path / "a", overwrite=True)  # the table has no rows to replace
    kept.append(pl.DataFrame(rows(1)))
    for overwrites in (writer, sink):
        with pytest.raises(InvalidTransactionError, match="append-only"):
            overwrites(tmp_path / "a", overwrite=True)
    assert writer(tmp_path / "a", overwrite=True, replaceWhere="day = 'd0'").version == 1
    lakelog.create(
        tmp_path / "i", {"id": pl.Int64, "day": pl.String}, format="indextables", upkeep=False
    )
    with pytest.raises(UnsupportedFeatureError, match="Parquet"):
        writer(tmp_path / "i")
    # Fewer and narrower columns are accepted.
    options = parse_options({"path": str(tmp_path / "t")}, "write")
    narrow = batch_writer(options, StructType().add("id", IntegerType()), overwrite=False)
    assert (
        finish(narrow, [task(narrow, pa.record_batch({"id": pa.array([4], pa.int32())}))]) is None
    )
    frame = table.snapshot().scan().collect()
    assert frame.rows() == [(4, None)]


def test_an_applications_version_is_written_once(tmp_path: Path) -> None:
    where = tmp_path / "t"
    new_table(where)
    for _ in range(2):
        made = writer(where, txnAppId="job", txnVersion="3")
        assert finish(made, [task(made, rows(1, 2))]) is None
    assert ids(where) == [1, 2]
    assert orphans(where) == set(), "the files of the repetition are deleted"
    # A concurrent repetition detects it when it commits.
    early = writer(where, txnAppId="job", txnVersion="4")
    messages = [task(early, rows(5))]
    made = writer(where, txnAppId="job", txnVersion="4")
    assert finish(made, [task(made, rows(5))]) is None
    assert finish(early, messages) is None
    assert ids(where) == [1, 2, 5]
    assert orphans(where) == set()


def test_write_to_a_location_without_a_table_creates_it_with_the_rows(tmp_path: Path) -> None:
    where = tmp_path / "new"
    one, two = (writer(where, partitionBy="day", txnAppId="job", txnVersion=n) for n in "34")
    messages = [task(one, rows(1)), task(one, rows(2))]
    late = [task(two, rows(5))]
    assert not (where / "_delta_log").exists(), "nothing is created before the rows are written"
    assert finish(one, messages) is None
    [created] = lakelog.open(where).history().to_dicts()
    assert created["operation"] == "WRITE"
    assert dict(created["operationParameters"]) == {"mode": "Append", "partitionBy": '["day"]'}
    assert dict(created["operationMetrics"])["numOutputRows"] == "2"
    assert lakelog.open(where).snapshot().metadata.partition_columns == ("day",)
    assert isinstance(finish(two, late), ConflictError), "another writer created the table"
    again = writer(where, partitionBy="day", txnAppId="job", txnVersion="3")
    assert finish(again, [task(again, rows(1, 2))]) is None, "the job was written"
    more = writer(where)
    assert finish(more, [task(more, rows(7))]) is None
    assert ids(where) == [1, 2, 7]
    assert orphans(where) == set()
    with pytest.raises(InvalidInputError, match="partitioned by other columns"):
        writer(where, partitionBy="id")
    # A failed job leaves no table and no file; a job without rows leaves an empty table.
    failed = writer(tmp_path / "failed", overwrite=True)
    finish(failed, [task(failed, rows(1)), None])
    assert on_disk(tmp_path / "failed") == set()
    empty = writer(tmp_path / "empty", overwrite=True)
    assert finish(empty, [task(empty)]) is None
    assert ids(tmp_path / "empty") == []
    with pytest.raises(TableNotFoundError):
        writer(tmp_path / "none", readVersion="1")
    with pytest.raises(TableNotFoundError, match="absolute path"):
        writer("relative")
    with pytest.raises(InvalidInputError, match="colour"):
        writer(tmp_path / "none", partitionBy="colour")


def test_options_of_the_store_are_hidden_in_plans(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(1).write.format("lakelog").mode("append")
    with configured(spark, {"spark.sql.ui.explainMode": "extended"}):
        rows.option("storage.account_key", "hidden").save(os.fspath(tmp_path / "t"))
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    plans = spark._jsparkSession.sharedState().statusStore().executionsList()
    plan = plans.last().physicalPlanDescription()
    assert "AppendData" in plan
    assert "storage.account_key" in plan
    assert "hidden" not in plan


def test_column_of_nulls_without_a_type_is_left_out_of_a_new_table(tmp_path: Path) -> None:
    where = tmp_path / "t"
    options = parse_options({"path": str(where)}, "write")
    schema = StructType(list(SCHEMA)).add("note", NullType())
    with pytest.warns(LakelogWarning, match="'note': a column that holds nulls only"):
        made = batch_writer(options, schema, overwrite=False)
    assert finish(made, [task(made, rows(1).append_column("note", pa.nulls(1)))]) is None
    assert lakelog.open(where).snapshot().schema.names == ("id", "day")
    assert ids(where) == [1]
    with pytest.raises(InvalidInputError, match="no column 'note'"):
        batch_writer(options, schema, overwrite=False)
    nowhere = parse_options({"path": str(tmp_path / "none")}, "write")
    with pytest.raises(InvalidInputError, match="no column of the rows has a type"):
        batch_writer(nowhere, StructType().add("note", NullType()), overwrite=False)
    with pytest.raises(InvalidInputError, match=r"'note\.x' has no equivalent"):
        batch_writer(nowhere, StructType().add("note", StructType().add("x", NullType())), False)


def test_concurrent_writes_are_checked_for_conflicts(tmp_path: Path) -> None:
    where = tmp_path / "t"
    new_table(where).append(pl.DataFrame(rows(0, 1)))
    one, two = (writer(where, overwrite=True) for _ in range(2))
    day = writer(where, overwrite=True, replaceWhere="day = 'd1'")
    append = writer(where)
    messages = {id(w): [task(w, rows(n))] for n, w in enumerate((one, two, day, append), 11)}
    assert finish(append, messages[id(append)]) is None
    assert finish(one, messages[id(one)]) is None
    assert ids(where) == [11, 14], (
        "a blind append is ordered before an overwrite that has not read it"
    )
    assert isinstance(finish(two, messages[id(two)]), ConflictError)
    assert isinstance(finish(day, messages[id(day)]), ConflictError)
    late = writer(where)
    waiting = [task(late, rows(15))]
    with lakelog.open(where).transaction() as tx:
        tx.set_metadata(schema={"id": pl.Int64, "day": pl.String, "more": pl.Int64})
    assert isinstance(finish(late, waiting), ConflictError), "made for other columns"
    assert ids(where) == [11, 14]
    assert on_disk(where) >= named(where)
    assert orphans(where) == set()


@pytest.mark.parametrize("kept", [True, False], ids=["one process", "several processes"])
def test_files_are_not_committed_to_another_table_at_the_location(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "t"
    monkeypatch.setattr(stream_sink, "query_of_task", lambda: "query")
    new_table(where)
    batch, stream = writer(where), sink(where)
    (where / "_delta_log").rename(tmp_path / "old")
    new_table(where)
    messages = {id(w): [task(w, rows(0, 1))] for w in (batch, stream)}
    if not kept:
        task_commit._handle.cache_clear()
    assert isinstance(finish(batch, messages[id(batch)]), MetadataChangedError)
    with pytest.raises(MetadataChangedError, match="another table") as caught:
        stream.commit(list(messages[id(stream)]), 0)
    assert "table id" in (caught.value.expected or "")
    assert ids(where) == []
    assert orphans(where) == set()


def test_invalid_condition_is_refused(tmp_path: Path) -> None:
    new_table(tmp_path / "t")
    made = writer(tmp_path / "t", overwrite=True, replaceWhere="id = 3")
    with pytest.raises(InvalidInputError, match="satisfy"):
        made.write(iter([rows(3, 4)]))
    with pytest.raises(InvalidInputError, match="cannot be parsed"):
        writer(tmp_path / "t", overwrite=True, replaceWhere="id ===")


def test_text_that_is_not_utf8_is_refused_by_every_writer(tmp_path: Path) -> None:
    table = new_table(tmp_path, partition_by=())
    replaces = writer(tmp_path, overwrite=True, replaceWhere="day > ''")
    text = pa.array([b"b\xff"], pa.binary()).view(pa.string())
    for each in (writer(tmp_path), replaces, sink(tmp_path)):
        with pytest.raises(InvalidInputError, match="text is UTF-8") as caught:
            task(each, pa.record_batch({"id": pa.array([1], pa.int64()), "day": text}))
        assert caught.value.column == "day"
    assert table.version() == 0
    assert on_disk(tmp_path) == set()


def test_condition_with_a_clock_is_of_the_moment_when_the_write_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [AT]
    time = SimpleNamespace(time_ns=lambda: int(clock[0].timestamp()) * 1_000_000_000)
    monkeypatch.setattr(context, "time", time)

    def at(*minutes: int) -> pa.RecordBatch:
        times = [AT + dt.timedelta(minutes=number) for number in minutes]
        return pa.record_batch({"at": pa.array(times, pa.timestamp("us", "UTC"))})

    lakelog.create(tmp_path, at().schema, upkeep=False).append(pl.DataFrame(at(-5, 5)))
    options = parse_options({"path": str(tmp_path), "replaceWhere": "at > now()"}, "write")
    made = batch_writer(options, StructType().add("at", TimestampType()), overwrite=True)
    clock[0] += dt.timedelta(minutes=10)
    message = task(made, at(6))
    clock[0] += dt.timedelta(minutes=10)
    assert finish(made, [message]) is None
    found = lakelog.open(tmp_path).to_polars().sort("at")
    assert found["at"].to_list() == pl.DataFrame(at(-5, 6))["at"].to_list()


def test_due_checkpoint_is_written_before_the_write_returns(tmp_path: Path) -> None:
    where = tmp_path / "t"
    table = new_table(where, configuration={"delta.checkpointInterval": "2"})
    for number in range(2):
        made = writer(where)
        assert finish(made, [task(made, rows(number))]) is None
    assert [c.version for c in table.log.list_all().checkpoints] == [2]
    assert ids(where) == [0, 1]


def test_write_without_rows_commits_nothing_unless_it_overwrites(tmp_path: Path) -> None:
    where = tmp_path / "t"
    table = new_table(where)
    made = writer(where)
    assert finish(made, [task(made), task(made, rows())]) is None
    assert finish(made, []) is None
    assert table.version() == 0
    table.append(pl.DataFrame(rows(1)))
    made = writer(where, overwrite=True)
    assert finish(made, [task(made)]) is None
    assert ids(where) == []
    assert table.version() == 2
