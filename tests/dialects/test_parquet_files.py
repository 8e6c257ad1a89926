"""Parquet files of writers with a known fault in the footer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.dialects.thrift_compact import (
    STRUCT,
    Value,
    read_binary,
    read_list,
    read_struct,
    write_list,
    write_struct,
)
from lakelog.ingest.files import read_file
from tests.footers import rewritten_footer


def of_parquet_mr_1_11_0(fields: dict[int, Value]) -> None:
    """Give the groups inside maps the logical type that this version writes (PARQUET-1879)."""
    schema = [read_struct(each) for each in read_list(fields[2])]
    for element in schema:
        if read_binary(element.get(4)) == b"key_value":
            element[10] = Value(STRUCT, write_struct({11: Value(STRUCT, b"\0")}))
    fields[2] = write_list(map(write_struct, schema))


def test_checkpoints_and_data_files_of_parquet_mr_1_11_0_are_read_and_changed(
    tmp_path: Path,
) -> None:
    maps = pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"id": [1, 2, 3], "m": maps, "none": pa.nulls(3, pa.string())})
    lakelog.write(tmp_path, rows)
    written = lakelog.open(tmp_path, upkeep=False)
    expected = written.to_arrow()
    (file,) = tmp_path.glob("*.parquet")
    file = file.rename(tmp_path / "old.parquet")
    rewritten_footer(file, of_parquet_mr_1_11_0)
    with written.transaction() as tx:
        (old,) = tx.read().collect().iter_slices(1)
        tx.remove(old)
        tx.add(path=file.name, size=file.stat().st_size, stats='{"numRecords":3}')
        tx.replace_rows()
    written.checkpoint()
    (checkpoint,) = tmp_path.glob("_delta_log/*.checkpoint.parquet")
    rewritten_footer(checkpoint, of_parquet_mr_1_11_0)
    for refused in (file, checkpoint):
        with pytest.raises(OSError, match="Logical type Null"):
            pq.read_schema(refused)
    for commit in tmp_path.glob("_delta_log/*.json"):
        commit.unlink()

    table = lakelog.open(tmp_path, upkeep=False)
    assert table.to_arrow().equals(expected)
    assert table.snapshot().files().collect()["path"].to_list() == [file.name]
    table.update({"id": 7}, where="id = 2")
    assert sorted(table.to_polars()["id"]) == [1, 3, 7]


def test_files_of_parquet_mr_1_11_0_are_ingested_and_converted(tmp_path: Path) -> None:
    file = tmp_path / "rows" / "old.parquet"
    file.parent.mkdir()
    rows = pa.table({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    pq.write_table(rows, file)
    rewritten_footer(file, of_parquet_mr_1_11_0)
    ((batch, _),) = read_file(str(file), "parquet", ["m"])
    assert batch.rows.column("m").to_pylist() == [[("k", 1)]]
    lakelog.convert(file.parent)
    assert lakelog.open(file.parent).to_arrow()["m"].to_pylist() == [[("k", 1)]]
