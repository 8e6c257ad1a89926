"""Rows that Delta Lake on Spark wrote, read by it and by lakelog: the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from tests.spark.configured import configured

pytestmark = pytest.mark.reference

NESTED = (
    "s struct<a: int, b: struct<c: string, d: int>>, l array<struct<x: int, y: string>>,"
    " m map<string, struct<k: int, v: decimal(6,2)>>"
)
NESTED_VALUES = (
    "if(id % 5 = 0, null, named_struct('a', int(id), 'b', if(id % 4 = 0, null,"
    " named_struct('c', string(id), 'd', int(id))))) s,"
    " if(id % 6 = 0, null, array(named_struct('x', int(id), 'y', 'é'), null)) l,"
    " map('k', named_struct('k', int(id), 'v', decimal(id / 8))) m"
)


def theirs(spark: Any, path: Path, version: int | None = None) -> list[str]:
    at = "" if version is None else f" version as of {version}"
    return texts(spark.sql(f"select * from delta.`{path}`{at}").toArrow())


def lakelog_rows(path: Path, version: int | None = None) -> list[str]:
    # Data files of a shallow clone are those of its source.
    snapshot = lakelog.open(str(path), allow_external=[str(path.parent)]).snapshot(version)
    plan = ReadPlan.of(snapshot)
    batches = list(read_files(plan, snapshot.files().collect(), batch_rows=25))
    table = pa.Table.from_batches(batches, plan.arrow_schema)
    table.validate(full=True)
    counted = sum(b.num_rows for b in read_files(plan.select([]), snapshot.files().collect()))
    assert counted == table.num_rows == snapshot.scan().select(pl.len()).collect().item()
    return texts(table)


def texts(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def same(spark: Any, path: Path, rows: int, version: int | None = None) -> None:
    expected = theirs(spark, path, version)
    assert len(expected) == rows
    assert lakelog_rows(path, version) == expected


def test_mapped_widened_and_deleted_rows_are_the_same(delta: Any, tmp_path: Path) -> None:
    path = tmp_path / "table"
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id int, gone string, {NESTED}, f float, day date, dec decimal(6,2),"
        " at timestamp, ntz timestamp_ntz, bin binary, vc varchar(5), ch char(4), flag boolean,"
        " sh short, by byte) using delta tblproperties ('delta.columnMapping.mode' = 'name',"
        " 'delta.enableDeletionVectors' = 'true', 'delta.enableTypeWidening' = 'true')"
    )
    values = (
        f"select int(id), 'trap', {NESTED_VALUES}, float(id / 3), date'2024-02-29' + int(id),"
        " decimal(id / 100), if(id % 2 = 0, timestamp'0001-01-01 00:00:00.000001',"
        " timestamp'9999-12-31 23:59:59.999999'), timestamp_ntz'1969-12-31 23:59:59.999999',"
        " binary(string(id)), 'vc', 'full', id % 3 = 0, smallint(id), tinyint(id)"
        " from range(0, 60, 1, 1)"
    )
    delta.sql(f"insert into {name} {values}")
    same(delta, path, 60)
    for change in (
        "rename column id to number",
        "rename column s.a to first",
        "drop columns (gone, s.b.d, l.element.x)",
        "change column number type bigint",
        "change column f type double",
        "change column day type timestamp_ntz",
        "change column dec type decimal(12,4)",
        "change column by type int",
        "change column s.first type bigint",
        "change column m.value.k type bigint",
        "add columns (gone long, s.b.d string, l.element.x date first)",
    ):
        delta.sql(f"alter table {name} {change}")
    same(delta, path, 60)
    delta.sql(f"delete from {name} where number % 7 = 0")
    delta.sql(
        f"insert into {name} (number, gone, f, day, dec, s, l)"
        " select 1099511627776, 2199023255552, 1e300D, timestamp_ntz'2024-01-01 10:00:00',"
        " 12345678.1234,"
        " named_struct('first', 4398046511104, 'b', named_struct('c', 'c', 'd', 'text')),"
        " array(named_struct('x', date'2024-01-01', 'y', 'y'))"
    )
    same(delta, path, 60 - 9 + 1)
    same(delta, path, 60, version=1)
    snapshot = lakelog.open(str(path)).snapshot()
    found = snapshot.scan().filter(pl.col("number").is_between(14, 22)).select("number", "dec")
    assert sorted(found.collect()["number"]) == [15, 16, 17, 18, 19, 20, 22]
    assert snapshot.files().collect()["dvCardinality"].drop_nulls().to_list() == [9]


def test_rows_of_columns_found_by_id_are_the_same(delta: Any, tmp_path: Path) -> None:
    path = tmp_path / "table"
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id long, gone string, {NESTED}) using delta"
        " tblproperties ('delta.columnMapping.mode' = 'id', 'delta.enableDeletionVectors' = 'true')"
    )
    delta.sql(f"insert into {name} select id, 'trap', {NESTED_VALUES} from range(0, 40, 1, 1)")
    delta.sql(f"alter table {name} rename column s.b.c to d2")
    delta.sql(f"alter table {name} drop columns (gone, l.element.y, m.value.v)")
    delta.sql(f"alter table {name} add columns (gone int first, m.value.v string, s.new long)")
    delta.sql(f"alter table {name} rename column id to gone2")
    delta.sql(f"delete from {name} where gone2 in (3, 5)")
    same(delta, path, 38)
    same(delta, path, 40, version=1)


def test_partitions_of_every_type_and_clones_are_the_same(delta: Any, tmp_path: Path) -> None:
    path = tmp_path / "a table"
    name = f"delta.`{path}`"
    types = (
        "string long int short byte double float boolean date timestamp timestamp_ntz"
        " decimal(12,3) binary"
    ).split()
    columns = [f"p{n}" for n in range(len(types))]
    declared = ", ".join(f"{c} {t}" for c, t in zip(columns, types, strict=True))
    delta.sql(
        f"create table {name} (n int, {declared}) using delta partitioned by ({', '.join(columns)})"
    )
    nulls = ", ".join(f"cast(null as {t})" for t in types)
    delta.sql(
        f"insert into {name}"
        " select 1, 'a b/ü=%:?#+', -9223372036854775808L, 1, 2S, -3Y, 1e-7D, 1.5F, true,"
        " date'1600-02-29', timestamp'2024-01-01 10:00:00.5', timestamp_ntz'1969-12-31 23:59:59',"
        " -0.001BD, binary('ab\\t')"
        " union all select 2, '', 0L, -1, 0S, 0Y, double('NaN'), float('-Infinity'), false,"
        " date'9999-12-31', timestamp'1970-01-01 00:00:00.000001',"
        " timestamp_ntz'2024-02-29 00:00:00.123456', 123456789.123BD, binary('')"
        f" union all select 3, {nulls}"
    )
    same(delta, path, 3)
    clone = tmp_path / "clone"
    delta.sql(f"create table delta.`{clone}` shallow clone {name}")
    delta.sql(f"insert into delta.`{clone}` select 4, {nulls}")
    delta.sql(
        f"alter table delta.`{clone}` set tblproperties ('delta.enableDeletionVectors' = 'true')"
    )
    delta.sql(f"delete from delta.`{clone}` where n = 1")
    same(delta, clone, 3)


def test_dates_in_the_julian_calendar_are_the_same(delta: Any, tmp_path: Path) -> None:
    path = tmp_path / "table"
    delta.sql(f"create table delta.`{path}` (d date, t timestamp, l array<date>) using delta")
    modes = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
    for kind in ("INT96", "TIMESTAMP_MICROS"):
        with configured(
            delta,
            {f"spark.sql.parquet.{mode}": "LEGACY" for mode in modes}
            | {"spark.sql.parquet.outputTimestampType": kind},
        ):
            delta.sql(
                f"insert into delta.`{path}` select d, timestamp(d) + interval 3 microseconds,"
                " array(d) from values (date'0001-01-01'), (date'1500-03-01'), (date'1582-10-04'),"
                " (date'1582-10-15'), (date'1890-05-05'), (null) as t(d)"
            )
    same(delta, path, 12)
    footers = [pq.read_metadata(file).metadata for file in path.glob("*.parquet")]
    assert any(b"org.apache.spark.legacyDateTime" in footer for footer in footers)
    assert any(b"org.apache.spark.legacyINT96" in footer for footer in footers)


def test_updates_of_fields_of_structs_are_the_same(delta: Any, tmp_path: Path) -> None:
    paths = [tmp_path / "spark", tmp_path / "lakelog"]
    for path in paths:
        delta.sql(f"create table delta.`{path}` (id long, {NESTED}) using delta")
        delta.sql(f"insert into delta.`{path}` select id, {NESTED_VALUES} from range(0, 40, 1, 1)")
    delta.range(10, 60).createOrReplaceTempView("numbers")
    delta.sql(f"update delta.`{paths[0]}` set s.b.c = 'new', s.a = s.b.d + 1 where id % 3 = 0")
    delta.sql(
        f"merge into delta.`{paths[0]}` t using numbers n on t.id = n.id"
        " when matched then update set s.b.d = t.s.a * 2"
    )
    table = lakelog.open(str(paths[1]))
    table.update({"s.b.c": "'new'", "s.a": "s.b.d + 1"}, "id % 3 = 0")
    merge = table.merge(pl.DataFrame({"id": range(10, 60)}), on="id")
    merge.when_matched_update({"s.b.d": "target.s.a * 2"}).execute()
    expected = theirs(delta, paths[0])
    assert len(expected) == 40
    assert theirs(delta, paths[1]) == lakelog_rows(paths[1]) == expected
