"""Checkpoints that lakelog writes, compared with those of Delta Lake on Spark.

For the same state: the same Parquet schema and rows, the same assignment to parts by hash, and the
same state when Spark reads them. Spark is configured to write timestamps as 64-bit microseconds, as
lakelog does; see `lakelog.dialects.delta.checkpoint_schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions, plan_checkpoint
from lakelog.checkpoint.state_source import StateSource
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.dialect import DIALECT
from lakelog.dialects.delta.murmur3 import hash_columns, part_of, part_of_others
from lakelog.dialects.log_content import StagedCheckpoint
from lakelog.log.opening import open_state
from tests.budget import seeded
from tests.spark.configured import configured
from tests.spark.reference import assert_same_state, reference_state

pytestmark = pytest.mark.reference

EVERY_TYPE = (
    "i int, l long, sh smallint, by tinyint, f float, d double, dec decimal(12,2), "
    "small decimal(4,1), wide decimal(30,5), s string, c char(3), vc varchar(5), b boolean, "
    "bin binary, da date, t timestamp, tn timestamp_ntz, a array<int>, m map<string,int>, "
    "st struct<x:int,y:struct<z:string,w:array<int>>,t:timestamp>, bo struct<q:boolean>"
)
VALUES = (
    "(1, 2L, 3S, 4Y, 1.5f, 2.5d, 1.25, -3.5, 12345.678, 'äbc', 'x', 'vc', true, X'01',"
    " date'9999-12-31', timestamp'2020-01-01 00:00:00.123456', timestamp_ntz'1582-01-01 00:00:00',"
    " array(1), map('a', 1), named_struct('x', 1, 'y', named_struct('z', 'z', 'w', array(1)),"
    " 't', timestamp'9999-12-31 23:59:59'), named_struct('q', true))"
)
PARTITIONS = (
    "id long, p string, q int, ts timestamp, dt date, dc decimal(10,2), tn timestamp_ntz,"
    " bo boolean, do double"
)
PARTITION_VALUES = (
    "(1, 'a b', 3, timestamp'2020-01-01 00:00:00', date'2020-01-01', 1.5,"
    " timestamp_ntz'2020-01-01 00:00:00', true, 1.5), (2, null, null, null, null, null, null,"
    " null, null)"
)
MAPPED = "id long, `s t` string, st struct<x:int,`y z`:date>, p int, `q r` date"
MAPPED_VALUES = "(1, 'a', named_struct('x', 1, 'y z', date'2020-01-01'), 2, date'2020-01-01')"
ROWS = "select /*+ coalesce(1) */ id, 'a' s from range(100)"
INDEXED = "delta.dataSkippingNumIndexedCols"
TABLES: dict[str, tuple[str, str, dict[str, str], list[str]]] = {
    "plain": (
        "id long, s string",
        "",
        {"delta.checkpoint.writeStatsAsStruct": "false"},
        ["insert into {t} values (1, 'a'), (2, 'b')", "delete from {t} where id = 1"],
    ),
    "every type": (EVERY_TYPE, "", {}, [f"insert into {{t}} values {VALUES}"] * 2),
    "only typed": (
        EVERY_TYPE,
        "",
        {"delta.checkpoint.writeStatsAsJson": "false"},
        [f"insert into {{t}} values {VALUES}"],
    ),
    "partitioned": (
        PARTITIONS,
        "p, q, ts, dt, dc, tn, bo, do",
        {},
        [f"insert into {{t}} values {PARTITION_VALUES}"],
    ),
    "no statistics": (
        "id long, p string",
        "p",
        {
            "delta.checkpoint.writeStatsAsJson": "false",
            "delta.checkpoint.writeStatsAsStruct": "false",
        },
        ["insert into {t} values (1, 'x')"],
    ),
    "deletion vectors": (
        "id long, s string",
        "",
        {"delta.enableDeletionVectors": "true"},
        [f"insert into {{t}} {ROWS}", "delete from {t} where id = 3"],
    ),
    "row tracking": (
        "id long, s string",
        "",
        {"delta.enableRowTracking": "true"},
        [f"insert into {{t}} {ROWS}"],
    ),
    "mapped by name": (
        MAPPED,
        "p, `q r`",
        {"delta.columnMapping.mode": "name"},
        [f"insert into {{t}} values {MAPPED_VALUES}"],
    ),
    "mapped by id": (
        MAPPED,
        "p",
        {"delta.columnMapping.mode": "id"},
        [f"insert into {{t}} values {MAPPED_VALUES}"],
    ),
    "few indexed": (
        "i int, st struct<a:int,b:int,c:int>, l long",
        "",
        {INDEXED: "3"},
        ["insert into {t} values (1, named_struct('a', 1, 'b', 2, 'c', 3), 2)"],
    ),
    "none indexed": ("i int, l long", "", {INDEXED: "0"}, ["insert into {t} values (1, 2)"]),
    "all indexed": (
        ", ".join(f"c{n} int" for n in range(40)),
        "",
        {INDEXED: "-1"},
        [f"insert into {{t}} values ({', '.join(['1'] * 40)})"],
    ),
    "indexed by name": (
        EVERY_TYPE,
        "",
        {"delta.dataSkippingStatsColumns": "L, st.y.z, `bo`"},
        [f"insert into {{t}} values {VALUES}"],
    ),
    "variant": (
        "id long, v variant",
        "",
        {},
        ["insert into {t} select 1, parse_json('{{\"a\":1}}')"],
    ),
}


@pytest.fixture
def spark(delta: Any) -> Iterator[Any]:
    with configured(delta, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        yield delta


def make(
    spark: Any,
    root: Path,
    columns: str,
    partitions: str,
    properties: dict[str, str],
    statements: Iterable[str],
) -> str:
    """A table whose last version has a checkpoint written by Spark."""
    name = f"delta.`{root}`"
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
    spark.sql(
        f"create table {name} ({columns}) using delta"
        + (f" partitioned by ({partitions})" if partitions else "")
        + (f" tblproperties ({listed})" if listed else "")
    )
    for statement in statements:
        spark.sql(statement.format(t=name))
    jvm = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(root))
    none = jvm.scala.Option.empty()
    log.update(False, none, none)
    log.checkpoint()
    return str(root)


def write(path: str, layout: str, /, **changes: Any) -> StagedCheckpoint:
    """A checkpoint of the latest version, written by lakelog."""
    table = lakelog.open(path)
    snapshot = table.snapshot()
    options = CheckpointOptions.of(snapshot.metadata.configuration, DELTA)
    plan = plan_checkpoint(
        snapshot.table_configuration,
        path,
        snapshot.version,
        options,
        num_files=snapshot.num_files(),
        layout=layout,
    )
    writer = DIALECT.checkpoint_writer(table.log.store, replace(plan, **changes))
    with StateSource(open_state(table.log, None), memory_limit=None, now_ms=0) as source:
        writer.write_meta(source.meta)
        for files in source.files(writer.columns):
            writer.write_files(files)
    return writer.finish()


def schema_of(path: Path) -> list[str]:
    """The Parquet schema, one field per line; the root's name depends on the writer."""
    return str(pq.ParquetFile(path).schema).split("\n")[2:]


def without_proposals(lines: Iterable[str]) -> list[str]:
    """A manifest's schema without fields that the protocol or a remove in a checkpoint lacks."""
    text = "\n".join(lines)
    for group in ("backReference", "amtPassthrough"):
        text = re.sub(rf"\n    optional group field_id=-1 {group} {{[^}}]*}}", "", text)
    text = re.sub(r"\n    optional binary field_id=-1 sidecarType \(String\);", "", text)
    add, remove = text.split("  optional group field_id=-1 remove {\n")
    own, after = remove.split("  optional group field_id=-1 metaData {\n")
    own = re.sub(r"    optional binary field_id=-1 stats \(String\);\n", "", own)
    own = re.sub(r"    optional group field_id=-1 tags \(Map\) {\n(      .*\n)*    }\n", "", own)
    return [*add.split("\n"), "remove", *own.split("\n"), "metaData", *after.split("\n")]


def rows_of(paths: Iterable[Path]) -> list[str]:
    """The state's actions in some files, unordered; maps unordered."""
    kinds = ("add", "remove", "protocol", "metaData", "txn", "domainMetadata")
    found = []
    for path in paths:
        for row in pq.read_table(path).to_pylist(maps_as_pydicts="strict"):
            body = {kind: row[kind] for kind in kinds if row.get(kind) is not None}
            if body:
                found.append(json.dumps(body, default=str, sort_keys=True))
    return sorted(found)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", TABLES)
def test_classic_checkpoint_equals_the_one_of_spark(spark: Any, tmp_path: Path, name: str) -> None:
    path = make(spark, tmp_path / "t", *TABLES[name])
    (theirs,) = DIALECT.list_log(lakelog.open(path).log.store).checkpoints
    staged = write(path, "classic")
    (file,) = staged.files
    spark_wrote, we_wrote = (tmp_path / "t" / p for p in (theirs.paths[0], file.path))
    assert schema_of(we_wrote) == schema_of(spark_wrote)
    assert rows_of([we_wrote]) == rows_of([spark_wrote])

    spark_pointer = json.loads((tmp_path / "t" / "_delta_log" / "_last_checkpoint").read_text())
    assert staged.pointer is not None
    ours = json.loads(staged.pointer[1])
    assert list(ours) == list(spark_pointer)
    differing = {"sizeInBytes", "checksum"}
    assert {k: v for k, v in ours.items() if k not in differing} == {
        k: v for k, v in spark_pointer.items() if k not in differing
    }


@pytest.mark.parametrize("manifest", ["json", "parquet"])
def test_v2_checkpoint_equals_the_one_of_spark(spark: Any, tmp_path: Path, manifest: str) -> None:
    setting = "spark.databricks.delta.checkpointV2.topLevelFileFormat"
    columns, partitions, properties, statements = TABLES["partitioned"]
    with configured(spark, {setting: manifest}):
        properties = {**properties, "delta.checkpointPolicy": "v2"}
        path = make(spark, tmp_path / "t", columns, partitions, properties, statements)
    store = lakelog.open(path).log.store
    (theirs,) = DIALECT.list_log(store).checkpoints
    top, sidecar = (tmp_path / "t" / p for p in DIALECT.open_checkpoint(store, theirs).files_read())
    own, lakelog_file = (tmp_path / "t" / file.path for file in write(path, f"v2-{manifest}").files)
    assert schema_of(own) == schema_of(sidecar)
    assert rows_of([own]) == rows_of([sidecar])
    if manifest == "json":
        keys = [{k: sorted(v) for k, v in line.items()} for line in lines_of(lakelog_file)]
        assert keys == [{k: sorted(v) for k, v in line.items()} for line in lines_of(top)]
        tags = [lines_of(file)[0]["checkpointMetadata"]["tags"] for file in (lakelog_file, top)]
        assert tags[0]["sidecarFileSchema"] == tags[1]["sidecarFileSchema"]
        assert tags[0]["numOfAddFiles"] == tags[1]["numOfAddFiles"]
    else:
        # The manifest's own columns of files are of nulls, and Spark gives them other fields.
        ours, spark_wrote = (without_proposals(schema_of(file)) for file in (lakelog_file, top))
        start = spark_wrote.index("remove")
        assert ours[ours.index("remove") :] == spark_wrote[start:]
        assert rows_of([lakelog_file]) == rows_of([top])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_parts_have_the_same_rows_as_those_of_spark(spark: Any, tmp_path: Path) -> None:
    setting = "spark.databricks.delta.checkpoint.partSize"
    inserts = [f"insert into {{t}} values ({n}, 'ü {n}')" for n in range(9)]
    with configured(spark, {setting: "2"}):
        path = make(spark, tmp_path / "t", "id long, s string", "s", {}, inserts)
    (theirs,) = DIALECT.list_log(lakelog.open(path).log.store).checkpoints
    staged = write(path, "multipart", parts=len(theirs.paths))
    assert [file.target for file in staged.files] == list(theirs.paths)
    assert len(theirs.paths) == 5
    for ours, spark_wrote in zip(staged.files, theirs.paths, strict=True):
        lakelog_file, other = (tmp_path / "t" / p for p in (ours.path, spark_wrote))
        assert schema_of(lakelog_file) == schema_of(other)
        assert rows_of([lakelog_file]) == rows_of([other])


LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", [*LAYOUTS, "v2-json inline"])
def test_spark_reads_the_same_state_from_a_checkpoint(
    spark: Any, tmp_path: Path, layout: str
) -> None:
    v2 = "v2" in layout
    properties = {"delta.checkpointPolicy": "v2"} if v2 else {}
    statements = [f"insert into {{t}} select id, 'a {n}%' from range({n + 2})" for n in range(3)]
    statements += ["delete from {t} where id = 1", "alter table {t} set tblproperties ('k' = 'v')"]
    properties |= {"delta.enableDeletionVectors": "true"}
    path = make(spark, tmp_path / "t", "id long, s string", "s", properties, statements)
    before = reference_state(spark, path)
    changes: dict[str, Any] = {"part_actions": 3}
    if layout == "multipart":
        changes["parts"] = 3
    elif layout.endswith("inline"):
        changes["parts"] = 0
    staged = write(path, layout.split(maxsplit=1)[0], **changes)

    store = lakelog.open(path).log.store
    log = tmp_path / "t" / "_delta_log"
    for old in [*log.glob("*.json"), *log.glob("*.checkpoint*"), *log.glob("*.crc")]:
        if old.name != f"{before['version']:020d}.json":
            old.unlink(missing_ok=True)
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)
    assert staged.pointer is not None
    store.put(*staged.pointer)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert assert_same_state(spark, path)["version"] == before["version"]
    after = reference_state(spark, path)
    for part in ("files", "tombstones", "protocol", "metadata", "txns", "domains"):
        assert after[part] == before[part], part
    counted = spark.read.format("delta").load(path)
    assert tuple(counted.selectExpr("count(*)", "sum(id)").collect()[0]) == (6, 7)


def test_hash_of_texts_equals_the_one_of_spark(spark: Any) -> None:
    from pyspark.sql import functions

    rng = seeded()
    alphabet = "aZ09 %/=\x00\x7fé\u0080ß雪\uffff😀\U0010ffff"
    texts = ["".join(rng.choices(alphabet, k=n)) for n in range(41) for _ in range(20)]
    texts += ["x" * 1000, "é" * 3000, "ABC", "Spark", ""]
    rows = [(text, rng.choice([*texts, None])) for text in [*texts, None, None]]
    rng.shuffle(rows)
    frame = spark.createDataFrame(rows, "path string, dvId string")
    parts = 7
    columns = [functions.hash("path"), functions.hash("path", "dvId")]
    by_part = [functions.pmod(column, functions.lit(parts)) for column in columns]
    found = [tuple(row) for row in frame.select("path", "dvId", *columns, *by_part).collect()]
    ours = pl.DataFrame(
        [(row[0], row[1]) for row in found],
        schema={"path": pl.String, "dvId": pl.String},
        orient="row",
    )
    path, file = ours["path"], ours["dvId"]
    assert hash_columns(path).to_list() == [row[2] for row in found]
    assert hash_columns(path, file).to_list() == [row[3] for row in found]
    assert part_of(ours, parts, deletion_vectors=False).to_list() == [row[4] for row in found]
    assert part_of(ours, parts, deletion_vectors=True).to_list() == [row[5] for row in found]
    assert [row[4] for row in found if row[0] is None] == [part_of_others(parts)] * 2
