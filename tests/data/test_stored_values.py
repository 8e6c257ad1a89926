"""Stored values: partition values and bounds that all readers interpret equally."""

from __future__ import annotations

import datetime as dt
import json
import math
import warnings
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import InvalidInputError, LakelogWarning, Table

EMPTY = "empty"


def new_table(path: Path, type_: Any, **more: Any) -> Table:
    schema = {"g": type_, "n": pl.Int64}
    return lakelog.create(path, schema, ["g"], upkeep=False, **more)


def frame(*values: Any, dtype: Any = pl.String) -> pl.DataFrame:
    return pl.DataFrame(
        {"g": pl.Series(values, dtype=dtype), "n": pl.Series(range(len(values)), dtype=pl.Int64)}
    )


def rows_of(table: Table) -> list[Any]:
    return table.snapshot().scan().sort("n").collect()["g"].to_list()


def peer_rows(path: Path) -> list[Any]:
    table = pa.table(deltalake.DeltaTable(path).to_pyarrow_table())
    return pl.DataFrame(table).sort("n")["g"].to_list()


def adds(path: Path, version: int = 1) -> list[dict[str, Any]]:
    text = (path / "_delta_log" / f"{version:020}.json").read_text("utf-8")
    actions = [json.loads(line) for line in text.splitlines()]
    return [action["add"] for action in actions if "add" in action]


# --- empty texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "empty"), [(pl.String, ""), (pl.Binary, b"")])
def test_overwrite_of_empty_partition_values_raises_if_it_would_add_nulls(
    tmp_path: Path, dtype: Any, empty: Any
) -> None:
    table = new_table(tmp_path, dtype)
    rows = frame(empty, dtype=dtype)
    for _ in range(2):
        with (
            pytest.warns(LakelogWarning, match=EMPTY),
            pytest.raises(InvalidInputError, match="does not satisfy") as caught,
        ):
            table.overwrite(rows, pl.col("g") == empty)
        assert caught.value.found == {"row": 0, "g": None}
    assert table.version() == 0
    for _ in range(2):
        with pytest.warns(LakelogWarning, match=EMPTY):
            table.overwrite(rows, pl.col("g").is_null())
        assert rows_of(table) == [None]


def test_empty_partition_values_warn_once_per_write(tmp_path: Path) -> None:
    table = new_table(tmp_path, pl.String)
    parts = pa.RecordBatchReader.from_batches(
        frame("", "a").to_arrow().schema,
        [b for _ in range(3) for b in frame("", "a").to_arrow().to_batches()],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table.append(parts)
        assert len(caught) == 1
        assert "'g'" in str(caught[0].message)
        table.append(frame("a", None))
        assert len(caught) == 1
    assert table.snapshot().files(pl.col("g").is_null()).collect().height == 2


def test_empty_texts_of_other_columns_are_kept_without_a_warning(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"g": pl.String, "n": pl.Int64}, upkeep=False)
    table.append(frame("", "a"))
    table.overwrite(frame(""), pl.col("g") == "")
    assert sorted(rows_of(table)) == ["", "a"]


def test_empty_text_in_a_not_null_partition_column_raises(
    tmp_path: Path,
) -> None:
    schema = pa.schema([pa.field("g", pa.string(), nullable=False), ("n", pa.int64())])
    table = lakelog.create(tmp_path, schema, ["g"], upkeep=False)
    with pytest.warns(LakelogWarning, match=EMPTY), pytest.raises(InvalidInputError, match="null"):
        table.append(frame("", "a"))
    assert table.version() == 0


# --- bytes ---------------------------------------------------------------------------------------

BYTES = [b"plain", "é ü".encode(), "日本 😀".encode(), b"\x00\x01\x7f", b"a/b=c%20", b'"\\u0041']


def test_binary_partition_values_of_any_text_are_read_by_every_reader(tmp_path: Path) -> None:
    table = new_table(tmp_path, pl.Binary)
    table.append(frame(*BYTES, None, dtype=pl.Binary))
    assert rows_of(table) == [*BYTES, None]
    assert peer_rows(tmp_path) == [*BYTES, None]
    for value in BYTES:
        found = table.snapshot().scan(pl.col("g") == value).collect()
        assert found["g"].to_list() == [value]
        assert table.snapshot().files(pl.col("g") == value).collect().height == 1
    table.overwrite(frame(BYTES[1], dtype=pl.Binary), pl.col("g") == BYTES[1])
    table.checkpoint()
    assert sorted(x or b"" for x in rows_of(lakelog.open(tmp_path))) == sorted([*BYTES, b""])


@pytest.mark.parametrize("value", [b"\xff", b"\x80abc", b"\xed\xa0\x80", b"\xc3"])
def test_binary_partition_value_that_is_not_utf_8_raises_before_any_write(
    tmp_path: Path, value: bytes
) -> None:
    table = new_table(tmp_path, pl.Binary)
    with pytest.raises(InvalidInputError, match="UTF-8") as caught:
        table.append(frame(b"ok", value, dtype=pl.Binary))
    assert "'g'" in caught.value.message
    assert table.version() == 0
    assert not list(tmp_path.rglob("*.parquet"))


def test_binary_partition_values_of_deltalake_are_read_as_deltalake_reads_them(
    tmp_path: Path,
) -> None:
    deltalake.write_deltalake(
        tmp_path, frame(b"a", "é".encode(), dtype=pl.Binary).to_arrow(), partition_by=["g"]
    )
    assert rows_of(lakelog.open(tmp_path)) == peer_rows(tmp_path)


# --- dates of any year ---------------------------------------------------------------------------

DAYS = [dt.date(1, 1, 1), dt.date(33, 4, 3), dt.date(999, 5, 5), dt.date(9999, 12, 31)]


@pytest.mark.parametrize("day", DAYS)
def test_years_have_four_digits_in_statistics(tmp_path: Path, day: dt.date) -> None:
    at = dt.datetime.combine(day, dt.time(1, 2, 3))
    schema: dict[str, Any] = {"d": pl.Date, "t": pl.Datetime("us", "UTC"), "w": pl.Datetime("us")}
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.append(
        pl.DataFrame({"d": [day], "t": [at.replace(tzinfo=dt.UTC)], "w": [at]}, schema=schema)
    )
    for text in (adds(tmp_path)[0]["stats"], rebuilt(table)):
        stats = json.loads(text)
        for bounds in (stats["minValues"], stats["maxValues"]):
            assert bounds["d"] == day.isoformat()
            assert bounds["w"] == at.isoformat(timespec="milliseconds")
            assert bounds["t"] == f"{bounds['w']}Z"
    assert len(day.isoformat()) == 10


def rebuilt(table: Table) -> str:
    """Statistics that a checkpoint has only as columns, as text."""
    configuration = {
        "delta.checkpoint.writeStatsAsJson": "false",
        "delta.checkpoint.writeStatsAsStruct": "true",
    }
    with table.transaction() as tx:
        tx.set_metadata(configuration=configuration)
    table.checkpoint()
    text: str = lakelog.open(table.path).snapshot().files().collect()["stats"][0]
    return text


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (-719_162 + 365 * 998, "0998-05-04"),
        (-719_162, "0001-01-01"),
        (-719_163, "0000-12-31"),
        (-719_600, "-0001-10-21"),
        (2_932_897, "+10000-01-01"),
    ],
)
def test_dates_of_any_year_are_partition_values(tmp_path: Path, days: int, text: str) -> None:
    table = new_table(tmp_path, pl.Date)
    values = pl.Series([days], dtype=pl.Int32).cast(pl.Date)
    table.append(pl.DataFrame({"g": values, "n": [0]}))
    assert adds(tmp_path)[0]["partitionValues"] == {"g": text}
    found = table.snapshot().scan().select(pl.col("g").cast(pl.Int32)).collect()
    assert found["g"].to_list() == [days]


# --- equal numbers with different texts ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_negative_zero_keeps_its_sign_and_equals_zero(tmp_path: Path, dtype: Any) -> None:
    table = new_table(tmp_path, dtype)
    values = [0.0, -0.0, math.nan, None, -0.0, 1.5, 0.0, -math.nan]
    table.append(frame(*values, dtype=dtype))
    written = sorted(str(each["partitionValues"]["g"]) for each in adds(tmp_path))
    assert written == ["-0.0", "0.0", "1.5", "NaN", "None"]
    for found in (rows_of(table), peer_rows(tmp_path)):
        assert [str(v) for v in found] == [
            "0.0",
            "-0.0",
            "nan",
            "None",
            "-0.0",
            "1.5",
            "0.0",
            "nan",
        ]
    for zero in (0.0, -0.0):
        rows = table.snapshot().scan(pl.col("g") == zero).collect()
        assert sorted(rows["n"]) == [0, 1, 4, 6]
        assert sorted(table.snapshot().scan(pl.col("g").is_in([zero])).collect()["n"]) == [
            0,
            1,
            4,
            6,
        ]
    assert table.overwrite(frame(0.0, dtype=dtype), pl.col("g") == 0.0).num_removed_files == 2
