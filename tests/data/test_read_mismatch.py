"""Data files that differ from their record in the log: length, rows, columns without values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.errors import CorruptionError
from tests.data.rows import data_file, rows, snapshot_of
from tests.data.vector_writer import inline
from tests.handmade import field

COLUMNS = [
    field("a", "long"),
    field("b", "string"),
    field(
        "s",
        {
            "type": "struct",
            "fields": [field("x", "long"), field("y", "long")],
        },
    ),
]
ROWS = pa.table(
    {
        "a": [1, 2, 3],
        "b": ["p", "q", None],
        "s": [{"x": 1, "y": None}, {"x": 2, "y": None}, None],
    },
    schema=pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.string()),
            ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        ]
    ),
)
NULLS = {"a": 0, "b": 1, "s": {"x": 1, "y": 3}}


def stats(count: int = 3, **more: Any) -> str:
    return json.dumps({"numRecords": count, "nullCount": NULLS, **more})


def corruption_error(
    snapshot: lakelog.Snapshot, columns: list[str] | None = None
) -> CorruptionError:
    with pytest.raises(CorruptionError) as caught:
        rows(snapshot, columns)
    assert caught.value.path == "f.parquet"
    assert caught.value.version == 0
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("length", [100, 1 << 20], ids=["small", "large"])
def test_file_of_another_length_raises_before_its_rows_are_read(
    tmp_path: Path, length: int
) -> None:
    file = data_file(tmp_path, "f.parquet", ROWS)
    recorded = file["add"]["size"]
    content = (tmp_path / "f.parquet").read_bytes()
    # Parquet is read from its end: bytes before the rest change no row.
    (tmp_path / "f.parquet").write_bytes(bytes(length) + content)
    error = corruption_error(snapshot_of(tmp_path, COLUMNS, file))
    assert (error.expected, error.found) == (
        f"{recorded} bytes of Parquet",
        f"{recorded + length} bytes",
    )


def test_unknown_size_in_the_log_is_not_compared(tmp_path: Path) -> None:
    for size in (0, -1):
        root = tmp_path / str(size)
        file = data_file(root, "f.parquet", ROWS, stats=stats())
        file["add"]["size"] = size
        assert rows(snapshot_of(root, COLUMNS, file)) == ROWS.to_pylist()


def test_file_with_another_number_of_rows_than_recorded_raises(tmp_path: Path) -> None:
    file = data_file(tmp_path, "f.parquet", ROWS, stats=stats(4))
    snapshot = snapshot_of(tmp_path, COLUMNS, file)
    for columns in (None, ["a"], []):
        error = corruption_error(snapshot, columns)
        assert (error.expected, error.found) == ("4 rows", "3 rows")


def test_number_of_records_includes_rows_deleted_by_a_vector(tmp_path: Path) -> None:
    vector = inline([0])
    kept = data_file(tmp_path / "1", "f.parquet", ROWS, stats=stats(), deletionVector=vector)
    assert len(rows(snapshot_of(tmp_path / "1", COLUMNS, kept))) == 2
    wrong = data_file(tmp_path / "2", "f.parquet", ROWS, stats=stats(1), deletionVector=vector)
    corruption_error(snapshot_of(tmp_path / "2", COLUMNS, wrong))


@pytest.mark.parametrize(
    ("lacks", "column"),
    [("a", "a"), ("b", "b"), ("s", "s.x"), ("s.x", "s.x")],
)
def test_missing_column_with_recorded_values_raises(
    tmp_path: Path, lacks: str, column: str
) -> None:
    if lacks == "s.x":
        inner = pa.array([{"z": 1, "y": None}, {"z": 2, "y": None}, None])
        data = ROWS.set_column(
            2, "s", inner.cast(pa.struct([("z", pa.int64()), ("y", pa.int64())]))
        )
    else:
        data = ROWS.rename_columns([f"{n}_" if n == lacks else n for n in ROWS.column_names])
    snapshot = snapshot_of(tmp_path, COLUMNS, data_file(tmp_path, "f.parquet", data, stats=stats()))
    root = lacks.split(".", maxsplit=1)[0]
    assert repr(column) in corruption_error(snapshot).message
    assert repr(column) in corruption_error(snapshot, [root]).message
    others = [name for name in ROWS.column_names if name != root]
    assert rows(snapshot, others) == ROWS.select(others).to_pylist()


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        "null",
        "{",
        '{"numRecords":3}',
        '{"numRecords":3,"nullCount":{"a":3}}',
        '{"numRecords":3,"nullCount":{"a":3},"minValues":{"a":null},"maxValues":{}}',
        '{"numRecords":3,"nullCount":{"b":1}}',
        '{"numRecords":3,"nullCount":{"a":2},"tightBounds":false}',
        '{"numRecords":"3","nullCount":{"a":"0"}}',
        '{"numRecords":null,"nullCount":[1]}',
        "[3]",
    ],
)
def test_column_that_was_added_after_the_file_is_null(tmp_path: Path, recorded: str | None) -> None:
    file = data_file(tmp_path, "f.parquet", ROWS.drop_columns(["a"]), stats=recorded)
    found = rows(snapshot_of(tmp_path, COLUMNS, file))
    assert [row["a"] for row in found] == [None] * 3


@pytest.mark.parametrize(
    "recorded",
    [
        '{"numRecords":3,"minValues":{"a":1},"maxValues":{"a":3}}',
        '{"numRecords":3,"nullCount":{"a":0},"tightBounds":false}',
    ],
    ids=["bounds", "no nulls"],
)
def test_missing_column_that_had_a_value_raises(tmp_path: Path, recorded: str) -> None:
    file = data_file(tmp_path, "f.parquet", ROWS.drop_columns(["a"]), stats=recorded)
    corruption_error(snapshot_of(tmp_path, COLUMNS, file))


def test_null_count_of_live_rows_only_is_not_compared(tmp_path: Path) -> None:
    # Tight statistics of a file with a deletion vector count only the live rows.
    recorded = '{"numRecords":3,"nullCount":{"a":2}}'
    data = ROWS.drop_columns(["a"])
    file = data_file(tmp_path, "f.parquet", data, stats=recorded, deletionVector=inline([1]))
    assert rows(snapshot_of(tmp_path, COLUMNS, file), ["a"]) == [{"a": None}] * 2


def test_number_of_rows_is_compared_with_the_statistics_of_a_checkpoint(tmp_path: Path) -> None:
    table = lakelog.create(
        tmp_path,
        {"n": pl.Int64},
        configuration={
            "delta.checkpoint.writeStatsAsJson": "false",
            "delta.checkpoint.writeStatsAsStruct": "true",
        },
        upkeep=False,
    )
    table.append(pl.DataFrame({"n": range(200)}))
    table.checkpoint()
    (path,) = tmp_path.glob("*.parquet")
    length = path.stat().st_size
    fewer = pa.table({"n": range(5)})
    for padding in range(length):  # the same length, so that only the number of rows differs
        with pq.ParquetWriter(path, fewer.schema, store_schema=False) as writer:
            writer.write_table(fewer)
            writer.add_key_value_metadata({"padding": "x" * padding})
        if path.stat().st_size == length:
            break
    with pytest.raises(CorruptionError, match="number of rows"):
        lakelog.open(tmp_path).snapshot().scan().collect()
