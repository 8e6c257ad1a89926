"""Spark reads the files of a keyed store directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lakelog


def test_spark_reads_the_state_of_a_keyed_store(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType

    with lakelog.KeyedStore(tmp_path) as store:
        store.put_many([(b"\xff\x00", "1"), ("a", ""), ("c", "3")])
        store.flush()
        store.put("a", "9")
        store.put("b", "")
        store.delete("c")
        store.flush()
        names = [file.path for file in store.files]
        frame = spark.read.parquet(*names)
        kinds = {field.name: type(field.dataType) for field in frame.schema}
        assert kinds == {
            "seqNum": LongType,
            "op": StringType,
            "key": BinaryType,
            "value": BinaryType,
        }
        frame.createOrReplaceTempView("files")
        rows = spark.sql(
            "SELECT key, value FROM (SELECT *, row_number() OVER "
            "(PARTITION BY key ORDER BY seqNum DESC) AS n FROM files) "
            "WHERE n = 1 AND op = 'PUT' ORDER BY key"
        ).collect()
        found = [(bytes(row.key), bytes(row.value)) for row in rows]
        assert found == [(b"a", b"9"), (b"b", b""), (b"\xff\x00", b"1")]
        store.compact()
        narrow = spark.read.parquet(str(tmp_path / "*.parquet")).where("key >= X'FF'")
        assert [bytes(row.key) for row in narrow.collect()] == [b"\xff\x00"]
