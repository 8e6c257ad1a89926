"""Partition values and file names with every byte, on tables that Delta on Spark also writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakelog
import lakelog.spark
from lakelog import Table
from tests.hostile_names import (
    SCHEMA,
    TEXTS,
    VALUES,
    named_table,
    partitioned_table,
    table_of_another_writer,
    texts_in_checkpoint,
)
from tests.spark.reference import assert_same_state

pytestmark = pytest.mark.reference

LAST = pl.DataFrame({"p": ["last"], "x": [9]}, schema=SCHEMA)


def rows_of(spark: Any, root: Path) -> list[int]:
    return sorted(row.x for row in spark.read.format("delta").load(str(root)).collect())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", [partitioned_table, named_table])
def test_spark_reads_and_removes_files_of_any_name(
    make: Callable[[Path], Table], delta: Any, tmp_path: Path
) -> None:
    table = make(tmp_path)
    rows = sorted(table.snapshot().scan().collect()["x"])
    assert_same_state(delta, str(tmp_path))
    assert rows_of(delta, tmp_path) == rows
    table.checkpoint()
    assert rows_of(delta, tmp_path) == rows
    delta.sql(f"DELETE FROM delta.`{tmp_path}` WHERE x > 9")
    assert sorted(lakelog.open(tmp_path).snapshot().scan().collect()["x"]) == list(range(10))
    if make is partitioned_table:  # whose paths every engine writes in one spelling
        found = pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())
        assert sorted(found["x"]) == list(range(10))


def test_spark_reads_overwrites_of_both_other_engines(delta: Any, tmp_path: Path) -> None:
    """Files of Spark, then of lakelog, then of deltalake, each overwritten by the next."""
    frame = delta.createDataFrame([(p, x) for x, p in enumerate(VALUES)], "p string, x bigint")
    frame.write.format("delta").partitionBy("p").save(str(tmp_path))
    table = lakelog.open(tmp_path)
    assert sorted(table.snapshot().scan().collect()["x"]) == list(range(len(VALUES)))
    table.overwrite(pl.DataFrame({"p": VALUES, "x": range(len(VALUES))}, schema=SCHEMA))
    assert rows_of(delta, tmp_path) == list(range(len(VALUES)))
    assert pa.table(DeltaTable(tmp_path).get_add_actions()).num_rows == len(VALUES)
    write_deltalake(tmp_path, LAST.to_arrow(), mode="overwrite")
    table.checkpoint()
    assert rows_of(delta, tmp_path) == [9]
    assert pl.DataFrame(DeltaTable(tmp_path).to_pyarrow_table())["x"].to_list() == [9]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["broadcast", "hash", "polars"])
@pytest.mark.parametrize("layout", ["multipart", "v2-json"])
def test_executors_keep_the_spelling_of_paths_of_another_writer(
    layout: str, strategy: str, delta: Any, tmp_path: Path
) -> None:
    table = table_of_another_writer(tmp_path, *(["v2Checkpoint"] if "v2" in layout else []))
    table.checkpoint(1, layout="auto")
    with table.transaction() as tx:
        tx.remove(tx.read().filter(pl.col("path").is_in(["é", "è", "e\u0301", "a*c"])).collect())
    report = lakelog.spark.checkpoint(delta, table, layout=layout, parts=2, strategy=strategy)
    assert report.notes[0].startswith(f"version {report.version} by {strategy}")
    removed = {"é", "%C3%A8", "e%CC%81", "a%2Ac"}
    assert set(texts_in_checkpoint(tmp_path, "remove")) == removed
    assert texts_in_checkpoint(tmp_path, "add") == sorted(set(TEXTS) - removed)
    assert table.verify(report.version).is_proved
    assert_same_state(delta, str(tmp_path))
