"""Tables that Delta Lake on Spark writes, read and written by lakelog: always the same state."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import InvalidTransactionError, PartitionMismatchError, UnsupportedError
from tests.budget import share_of
from tests.spark.data_files import data_file, ids
from tests.spark.reference import State, assert_same_state

pytestmark = pytest.mark.reference


def same_at_every_version(spark: Any, path: str) -> list[State]:
    last = lakelog.open(path).version()
    return [assert_same_state(spark, path, version) for version in range(last + 1)]


def total(spark: Any, path: str) -> tuple[Any, ...]:
    frame = spark.read.format("delta").load(path)
    return tuple(frame.selectExpr("count(*)", "sum(id)").collect()[0])


@pytest.mark.timeout(900)  # three minutes on two cores that fifteen processes shared
def test_a_table_of_many_operations_is_the_same_at_every_version(
    delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id long, p string) using delta partitioned by (p)"
        " tblproperties ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '5')"
    )
    delta.sql(f"insert into {name} select /*+ coalesce(1) */ id, 'a b' from range(100)")
    delta.sql(f"insert into {name} values (100, null), (101, '50%'), (102, 'ü/=')")
    delta.sql(f"delete from {name} where id in (3, 5, 7)")
    delta.sql(f"update {name} set id = id + 1000 where id in (9, 100)")
    delta.sql(
        f"merge into {name} t using (select id, 'a b' p from range(98, 104)) s"
        " on t.id = s.id and t.p = s.p"
        " when matched then delete when not matched then insert *"
    )
    delta.sql(f"insert into {name} replace where p = '50%' select 7, '50%'")
    delta.sql(f"alter table {name} set tblproperties ('keeper' = 'an owner')")
    delta.sql(f"alter table {name} add columns (note string)")
    delta.sql(f"delete from {name} where p is null")
    delta.sql(f"optimize {name}")
    states = same_at_every_version(delta, path)
    assert len(states) == 11
    vectors = {f["dvStorageType"] for state in states for f in state["files"].values()}
    assert vectors >= {None, "u"}

    history = delta.sql(f"describe history {name}").collect()
    ours = lakelog.open(path).history().to_dicts()
    compared = ("version", "operation", "isBlindAppend", "engineInfo")
    assert [tuple(row[k] for k in compared) for row in ours] == [
        tuple(row[k] for k in compared) for row in history
    ]
    assert {row["operation"] for row in ours} >= {"MERGE", "UPDATE", "OPTIMIZE"}
    for own, theirs in zip(ours, history, strict=True):
        assert own["operationMetrics"] == theirs["operationMetrics"]

    before = total(delta, path)
    table = lakelog.open(path)
    with table.transaction() as tx:
        rows = pl.DataFrame({"id": [1], "note": ["lakelog"]})
        tx.add(**data_file(path, "ours.parquet", rows, {"p": "ü/="}))
    with table.transaction() as tx:
        tx.remove(tx.read(pl.col("p") == "50%"))
    assert_same_state(delta, path)
    assert total(delta, path) == (before[0] + 1 - 1, before[1] + 1 - 7)


def test_append_to_a_table_with_mapped_columns(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id long, `a b,` string, p string) using delta partitioned by (p)"
        " tblproperties ('delta.columnMapping.mode' = 'name')"
    )
    delta.sql(f"insert into {name} values (1, 'x', 'q')")
    delta.sql(f"alter table {name} rename column `a b,` to `c;`")
    delta.sql(f"alter table {name} add columns (later int)")
    delta.sql(f"insert into {name} values (2, 'y', null, 3)")
    delta.sql(f"alter table {name} drop column later")
    states = same_at_every_version(delta, path)

    fields = {f["name"]: f["metadata"] for f in states[-1]["metadata"]["schemaString"]["fields"]}
    assert list(fields) == ["id", "c;", "p"]
    physical = {name: field["delta.columnMapping.physicalName"] for name, field in fields.items()}
    files = lakelog.open(path).snapshot().files(stats=True, flatten=True).collect()
    assert sorted(files["partition.p"].to_list(), key=str) == [None, "q"]
    assert files["min"].struct.field("c;").sort().to_list() == ["x", "y"]

    rows = pl.DataFrame({physical["id"]: [3], physical["c;"]: ["z"]})
    with lakelog.open(path).transaction() as tx:
        tx.add(**data_file(path, "ours.parquet", rows, {physical["p"]: "ours"}))
    assert_same_state(delta, path)
    found = delta.read.format("delta").load(path).orderBy("id").collect()
    assert [tuple(row) for row in found][-1] == (3, "z", "ours")
    with pytest.raises(PartitionMismatchError), lakelog.open(path).transaction() as tx:
        tx.add(path="wrong.parquet", size=1, partitionValues={"p": "by its logical name"})


def test_commit_that_rewrites_rows_of_a_table_with_a_change_feed_is_refused(
    delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id long) using delta"
        " tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    delta.sql(f"insert into {name} select /*+ coalesce(1) */ id from range(10)")
    delta.sql(f"update {name} set id = 100 where id = 1")
    table = lakelog.open(path)
    with table.transaction() as tx:
        tx.add(**data_file(path, "1.parquet", ids(1)))
    # Without its partition values and size, Delta could not report the file's rows.
    with pytest.raises(InvalidTransactionError, match="feed"), table.transaction() as tx:
        tx.remove(path="1.parquet")
    with table.transaction() as tx:
        tx.remove(table.snapshot().files().filter(pl.col("path") == "1.parquet"))
    tx = table.transaction()
    tx.remove(table.snapshot().files())
    tx.add(**data_file(path, "2.parquet", ids(2)))
    with pytest.raises(UnsupportedError, match="changeDataFeed"):
        tx.commit()
    states = same_at_every_version(delta, path)
    assert len(states) == 5
    changes = delta.read.format("delta").option("readChangeFeed", "true")
    rows = changes.option("startingVersion", 1).load(path).collect()
    compared = sorted((r["_commit_version"], r["_change_type"]) for r in rows)
    assert compared == [
        *[(1, "insert")] * 10,
        (2, "update_postimage"),
        (2, "update_preimage"),
        (3, "insert"),
        (4, "delete"),
    ]


def test_concurrent_writes_of_both_engines_lose_nothing(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    lakelog.create(path, {"id": pl.Int64}, configuration={"delta.enableRowTracking": "true"})
    each = share_of(10, 2)
    failed: list[BaseException] = []
    gate = threading.Barrier(2)

    def run(write: Any) -> None:
        try:
            gate.wait(60)
            for number in range(each):
                write(number)
        except BaseException as error:  # noqa: BLE001 - asserted below
            failed.append(error)

    def by_spark(number: int) -> None:
        frame = delta.range(number, number + 1).coalesce(1)
        frame.write.format("delta").mode("append").save(path)
        spark_done.append(number)

    def by_lakelog(number: int) -> None:
        # Spark's append takes longer, so ours are concurrent with it.
        while len(spark_done) < number and not failed:
            pass_time.wait(0.01)
        table = lakelog.open(path)
        with table.transaction() as tx:
            tx.add(**data_file(path, f"{number}.parquet", ids(100 + number)))

    spark_done: list[int] = []
    pass_time = threading.Event()
    threads = [threading.Thread(target=run, args=(write,)) for write in (by_spark, by_lakelog)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    state = assert_same_state(delta, path)
    assert state["version"] == 2 * each
    assert len(state["files"]) == 2 * each
    starts = sorted(file["baseRowId"] for file in state["files"].values())
    assert starts == list(range(2 * each))
    assert json.loads(state["domains"]["delta.rowTracking"])["rowIdHighWaterMark"] == 2 * each - 1
    expected = sum(range(each)) + sum(range(100, 100 + each))
    assert total(delta, path) == (2 * each, expected)
