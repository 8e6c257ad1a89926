"""`format("lakelog")` returns a table's rows, by path, by SQL, and by filter."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql.types import StructType

import lakelog
from lakelog.spark.reading import share_files, unpack
from tests.handmade import Handmade, add, metadata, protocol
from tests.spark.data_files import data_file, ids

DAYS = [dt.date(2026, 1, day) for day in (1, 2, 3)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of three versions with rows, one day each."""
    path = os.fspath(tmp_path_factory.mktemp("rows") / "t")
    made = lakelog.create(
        path,
        {"id": pl.Int64, "day": pl.Date, "name": pl.String, "at": pl.Datetime("us", "UTC")},
        partition_by=["day"],
    )
    for number, day in enumerate(DAYS):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        rows = {"id": [number, number + 10], "day": [day] * 2, "name": ["a", None], "at": [at] * 2}
        made.append(pl.DataFrame(rows, schema_overrides={"at": pl.Datetime("us", "UTC")}))
    return path


def load(spark: Any, path: str, **options: str) -> Any:
    return spark.read.format("lakelog").options(**options).load(path)


def frame_of(rows: Any) -> pl.DataFrame:
    frame = pl.from_arrow(rows.toArrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def test_dataframe_keeps_the_version_of_its_load_or_first_use(spark: Any, tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"id": pl.Int64}, upkeep=False)
    loaded = load(spark, str(tmp_path))
    with_schema = spark.read.format("lakelog").schema("id long").load(str(tmp_path))
    table.append(pl.DataFrame({"id": [1]}))
    assert (loaded.count(), with_schema.count()) == (0, 1)
    table.append(pl.DataFrame({"id": [2]}))
    assert (loaded.count(), with_schema.count()) == (0, 1)


def test_rows_equal_those_of_a_scan_at_any_version(spark: Any, table: str) -> None:
    latest = frame_of(load(spark, table))
    assert_frame_equal(
        latest, lakelog.open(table).snapshot().scan().collect(), check_row_order=False
    )
    earlier = load(spark, table, version="1", columns="name,id")
    assert earlier.columns == ["name", "id"]
    assert frame_of(earlier).rows() == [("a", 0), (None, 10)]
    assert load(spark, table, version="0").collect() == []
    millis = lakelog.open(table).snapshot(2).timestamp_ms
    assert frame_of(load(spark, table, timestamp=str(millis), columns="id"))["id"].len() == 4


def test_number_of_tasks_depends_on_the_session(spark: Any, table: str) -> None:
    # Three small files and two tasks at a time: a task for each. One at a time takes two shares.
    assert load(spark, table).rdd.getNumPartitions() == 3
    assert load(spark, table, parallelism="1").rdd.getNumPartitions() == 2


def test_thousands_of_small_files_become_a_few_small_shares() -> None:
    paths = [
        f"part-{number:05}-0c1c5e4c-0000-4000-8000-{number:012}.parquet" for number in range(10_000)
    ]
    files = pl.DataFrame({"path": paths, "size": [3_000] * 10_000})
    shares = share_files(files, tasks=4)
    assert 8 <= len(shares) <= 16
    assert sum(len(share.value) for share in shares) < 200_000
    together = pl.concat([unpack(share.value) for share in shares])
    assert together["path"].sort().to_list() == paths


def test_the_source_is_discovered_where_lakelog_is_installed(spark: Any, table: str) -> None:
    unaware = spark.newSession()  # nothing is registered with it
    assert load(unaware, table, columns="id").count() == 6


def test_user_schema_selects_columns_and_is_checked_against_the_table(
    spark: Any, table: str
) -> None:
    chosen = spark.read.format("lakelog").schema("day date, id long").load(table)
    assert chosen.filter("id = 1").collect() == [(DAYS[1], 1)]
    for schema, message in (
        (StructType(), "the schema has no column"),
        ("id int", "column 'id' has another type"),
        ("id long not null", "column 'id' has another type"),
        ("idd long", "column 'idd' not found"),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("lakelog").schema(schema).load(table).collect()


def test_a_dataframe_stays_at_the_version_it_was_loaded_at(spark: Any, tmp_path: Path) -> None:
    made = lakelog.create(tmp_path, {"id": pl.Int64})
    made.append(ids(1))
    loaded = load(spark, str(tmp_path))
    made.append(ids(2))
    assert loaded.collect() == [(1,)]
    assert loaded.union(load(spark, str(tmp_path))).count() == 3


def test_condition_skips_files_that_cannot_match(spark: Any, tmp_path: Path) -> None:
    made = lakelog.create(tmp_path, {"id": pl.Int64, "day": pl.Date}, partition_by=["day"])
    made.append(pl.DataFrame({"id": [1, 2], "day": [DAYS[0], DAYS[1]]}))
    made.append(pl.DataFrame({"id": [100, 7, None], "day": [DAYS[1], DAYS[1], None]}))
    # All files of other days are deleted: reading them would fail.
    for file in made.snapshot().files().collect()["path"]:
        if "2026-01-02" not in file:
            (tmp_path / file).unlink()
    chosen = load(spark, str(tmp_path), where=f"day = '{DAYS[1]}' and id > 50")
    assert chosen.collect() == [(100, DAYS[1])]
    assert chosen.filter("id < 50").count() == 0
    # The condition uses columns that are not selected.
    assert load(spark, str(tmp_path), where="id > 50", columns="day").collect() == [(DAYS[1],)]
    with pytest.raises(Exception, match="not found"):
        load(spark, str(tmp_path), where="id = 1 or id = 100").collect()
    with pytest.raises(Exception, match="nope"):
        load(spark, str(tmp_path), where="nope = 1").collect()


def test_filters_of_one_query_do_not_affect_the_next(spark: Any, table: str) -> None:
    rows = load(spark, table)
    assert rows.filter("id = 1").count() == 1
    assert rows.filter("id = 2 OR id = 12").count() == 2
    one, other = rows.filter("id = 0").alias("a"), rows.filter("id = 11").alias("b")
    assert one.crossJoin(other).selectExpr("a.id", "b.id").collect() == [(0, 11)]


def test_tables_of_sql_are_read_at_their_latest_version(plain: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "it's a 100%")
    made = lakelog.create(path, {"id": pl.Int64, "name": pl.String})
    made.append(pl.DataFrame({"id": [1], "name": ["a"]}))
    place = path.replace("'", "\\'")
    try:
        plain.sql(f"CREATE TABLE lake_rows USING lakelog LOCATION '{place}'")
        plain.sql(
            "CREATE TABLE lake_files USING lakelog "
            f"OPTIONS (path '{place}', table 'files', columns 'path,size')"
        )
        assert plain.sql("SELECT * FROM lake_rows").collect() == [(1, "a")]
        made.append(pl.DataFrame({"id": [2], "name": ["b"]}))
        answer = plain.sql(
            "SELECT (SELECT max(name) FROM lake_rows), count(*), min(size) > 0 FROM lake_files"
        )
        assert answer.collect() == [("b", 2, True)]
        assert plain.read.option("version", "1").table("lake_rows").collect() == [(1, "a")]

        plain.sql(
            "CREATE TEMPORARY VIEW lake_view USING lakelog "
            f"OPTIONS (path '{place}', version '1', `storage.secret` 'hush')"
        )
        assert plain.sql("SELECT id FROM lake_view").collect() == [(1,)]
        plan = plain.sql("EXPLAIN EXTENDED SELECT id FROM lake_view").collect()[0][0]
        assert "hush" not in plan
        with pytest.raises(Exception, match="every user of the catalog could read") as caught:
            plain.sql(
                "CREATE TABLE lake_secret USING lakelog "
                f"OPTIONS (path '{place}', `storage.secret` 'hush')"
            )
        assert "hush" not in str(caught.value)
    finally:
        for name in ("lake_rows", "lake_files", "lake_secret"):
            plain.sql(f"DROP TABLE IF EXISTS {name}")
        plain.catalog.dropTempView("lake_view")


def test_sql_insert_into_a_table_is_refused_and_into_a_view_is_written(
    plain: Any, tmp_path: Path
) -> None:
    made = {}
    try:
        for name in ("lake_from", "lake_to"):
            made[name] = lakelog.create(tmp_path / name, {"id": pl.Int64}, upkeep=False)
            plain.sql(f"CREATE TABLE {name} USING lakelog LOCATION '{tmp_path / name}'")
        made["lake_from"].append(pl.DataFrame({"id": [1]}))
        for insert in ("INTO", "OVERWRITE"):
            with pytest.raises(Exception, match="insertInto and toTable cannot write"):
                plain.sql(f"INSERT {insert} lake_to SELECT * FROM lake_from")
        assert [table.version() for table in made.values()] == [1, 0]
        where = tmp_path / "lake_to"
        plain.sql(f"CREATE TEMPORARY VIEW lake_view USING lakelog OPTIONS (path '{where}')")
        plain.sql("INSERT INTO lake_view SELECT * FROM lake_from")
        assert plain.table("lake_to").collect() == [(1,)]
        assert [table.version() for table in made.values()] == [1, 1]
    finally:
        for name in ("lake_from", "lake_to"):
            plain.sql(f"DROP TABLE IF EXISTS {name}")
        plain.catalog.dropTempView("lake_view")


def test_errors_reach_the_user_with_path_version_and_hint(
    spark: Any, table: str, tmp_path: Path
) -> None:
    def failure(**options: str) -> str:
        path = options.pop("at", table)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its text is checked
            load(spark, path, **options).collect()
        return str(caught.value)

    unknown = failure(vresion="1", **{"storage.secret": "hush"})
    assert "InvalidInputError: option vresion is unknown" in unknown
    assert "did you mean version" in unknown
    assert "hush" not in unknown
    missing = failure(version="99")
    assert "VersionNotFoundError: version 99 cannot be rebuilt" in missing
    assert "expected=0 to 3" in missing
    assert missing.count("File ") <= 1  # no traceback of the cause
    assert "TableNotFoundError" in failure(at=str(tmp_path / "nothing"))
    assert "column 'nope' not found" in failure(columns="nope")

    made = lakelog.create(tmp_path / "t", {"id": pl.Int64})
    with made.transaction() as tx:
        tx.add(pl.DataFrame([data_file(made.path, "a.parquet", ids(1))]))
    (tmp_path / "t" / "a.parquet").unlink()
    missing_file = failure(at=made.path)
    assert "NotFoundError" in missing_file
    assert "a.parquet" in missing_file
    assert "version=1" in missing_file


def test_data_file_outside_the_table_is_read_if_the_option_allows_it(
    spark: Any, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    file = outside / "f.parquet"
    pl.DataFrame({"id": [7], "name": ["x"]}).write_parquet(file)
    made = Handmade(tmp_path / "t")
    made.commit(0, protocol(), metadata(), add(file.as_uri(), file.stat().st_size))
    path = os.fspath(tmp_path / "t")
    refusals: list[dict[str, str]] = [{}, {"allowExternal": f"{tmp_path}/other"}]
    for refused in refusals:
        with pytest.raises(Exception, match="ExternalPathError") as caught:
            load(spark, path, **refused).collect()
        assert "elsewhere/f.parquet" in str(caught.value)
    for allowed in ("true", os.fspath(outside)):
        assert load(spark, path, allowExternal=allowed).collect() == [(7, "x")]


def test_columns_that_cannot_be_read_are_refused_by_name(spark: Any, tmp_path: Path) -> None:
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "c", "type": "char(3)", "nullable": True, "metadata": {"comment": "short"}},
            {"name": "v", "type": "geometry(4326)", "nullable": True, "metadata": {}},
        ],
    }
    rows = pl.DataFrame({"id": [1], "c": ["abc"]})
    start = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "5f2c0d2e-0000-4000-8000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {"add": {**data_file(str(tmp_path), "a.parquet", rows), "dataChange": True}},
    ]
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in start))
    with pytest.raises(Exception, match="column 'v' has a type that cannot be read: geometry"):
        load(spark, str(tmp_path))
    others = load(spark, str(tmp_path), columns="c,id")
    assert others.schema["c"].metadata == {"comment": "short"}
    assert others.collect() == [("abc", 1)]


@pytest.mark.reference
def test_rows_equal_those_of_delta_with_deletion_vectors_and_column_mapping(
    delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    delta.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, part STRING, old STRING, s STRUCT<a: INT>, "
        "m MAP<STRING, ARRAY<DATE>>, n TIMESTAMP_NTZ) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    delta.sql(
        f"INSERT INTO delta.`{path}` SELECT id, if(id % 3 = 0, NULL, concat('p =', id % 3)), "
        "concat('x', id), struct(int(id)), map('k', array(date'2026-01-01')), "
        "timestamp_ntz'2026-01-01 00:00:01' FROM range(30)"
    )
    delta.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN old TO new")
    delta.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN more INT")
    delta.sql(f"DELETE FROM delta.`{path}` WHERE id % 5 = 0")
    made = lakelog.open(path).snapshot().files().collect()
    assert made["dvId"].count() > 0

    order = ["id"]
    theirs = delta.read.format("delta").load(path).orderBy(*order)
    ours = load(delta, path).orderBy(*order)
    assert [(f.name, f.dataType) for f in ours.schema] == [
        (f.name, f.dataType) for f in theirs.schema
    ]
    assert ours.collect() == theirs.collect()
    assert load(delta, path, where="part is null and id > 20").count() == 3


@pytest.mark.reference
def test_variants_equal_those_of_delta(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    delta.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, v VARIANT, a ARRAY<VARIANT>) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    values = '(1, parse_json(\'{"k": [1, "x"]}\'), array(parse_json("7"), null)), (2, null, null)'
    delta.sql(f"INSERT INTO delta.`{path}` VALUES {values}")
    table = lakelog.open(path)
    table.update({"id": pl.col("id") + 10})
    table.append(table.to_arrow().filter(pc.field("id") == 11))
    expected = [(11, '{"k":[1,"x"]}', ["7", None])] * 2 + [(12, None, None)]
    texts = "id", "to_json(v)", "transform(a, each -> to_json(each))"
    for rows in (delta.read.format("delta").load(path), load(delta, path)):
        assert rows.selectExpr(*texts).orderBy("id").collect() == expected
