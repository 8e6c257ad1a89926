"""`Snapshot.scan`: the rows of a version as a lazy frame."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import Snapshot
from lakelog.errors import InvalidInputError, UnsupportedFeatureError
from tests.budget import share_of
from tests.data.rows import data_file, snapshot_of
from tests.handmade import field

FIELDS = (field("n"), field("s", "string"), field("day", "date"))


def new_snapshot(root: Path, count: int = 6) -> tuple[Snapshot, pl.DataFrame]:
    """A table of a few files, and its rows."""
    adds, frames = [], []
    for n in range(count):
        day = dt.date(2024, 1, 1 + n % 3)
        table = pa.table({"n": range(n * 10, n * 10 + 10), "s": [f"s{i}" for i in range(10)]})
        stats = f'{{"numRecords":10,"minValues":{{"n":{n * 10}}},"maxValues":{{"n":{n * 10 + 9}}}}}'
        adds.append(
            data_file(root, f"{n}.parquet", table, partitionValues={"day": str(day)}, stats=stats)
        )
        frames.append(pl.DataFrame(table).with_columns(day=pl.lit(day)))
    return snapshot_of(root, FIELDS, *adds, partitioned=["day"]), pl.concat(frames)


def test_rows_have_the_types_of_the_schema(tmp_path: Path) -> None:
    snapshot, expected = new_snapshot(tmp_path)
    lazy = snapshot.scan()
    assert dict(lazy.collect_schema()) == {"n": pl.Int64, "s": pl.String, "day": pl.Date}
    assert_frame_equal(lazy.sort("n").collect(), expected.sort("n"))


@pytest.mark.parametrize("seed", range(6))
def test_query_of_a_scan_equals_the_query_of_a_frame(tmp_path: Path, seed: int) -> None:
    random.seed(seed)
    snapshot, expected = new_snapshot(tmp_path, 9)
    predicates = [
        pl.col("n") > random.randrange(90),
        pl.col("n").is_between(20, 20 + random.randrange(50)),
        pl.col("day") == dt.date(2024, 1, random.randrange(1, 5)),
        (pl.col("s") == "s3") | (pl.col("n") == 5),
        pl.col("s").is_in(["s1", "s2"]) & (pl.col("day") > dt.date(2024, 1, 1)),
        pl.lit(random.random() < 0.5),
        pl.col("n") == pl.col("n").max(),
    ]
    for _ in range(share_of(12, 3)):
        lazy, frame = snapshot.scan(), expected
        if random.random() < 0.4:
            where = random.choice(predicates[:-1])
            lazy, frame = snapshot.scan(where), frame.filter(where)
        for predicate in random.sample(predicates, random.randrange(3)):
            lazy, frame = lazy.filter(predicate), frame.filter(predicate)
        columns = random.choice([["n"], ["day", "n"], ["n", "s", "day"]])
        found = lazy.select(columns).sort("n").collect()
        assert_frame_equal(found, frame.select(columns).sort("n"))
        assert lazy.select(pl.len()).collect().item() == frame.height, f"seed {seed}"
        grouped = lazy.group_by("day").agg(pl.col("n").sum()).sort("day").collect()
        assert_frame_equal(grouped, frame.group_by("day").agg(pl.col("n").sum()).sort("day"))


def test_slices_end_the_read_early(tmp_path: Path) -> None:
    snapshot, expected = new_snapshot(tmp_path)
    for count in (0, 1, 15, 1000):
        assert snapshot.scan().head(count).collect().height == min(count, expected.height)
    (first,) = snapshot.scan().head(1).collect()["n"]
    assert first in expected["n"]


def test_limit_before_a_filter_is_applied_first(tmp_path: Path) -> None:
    snapshot, _ = new_snapshot(tmp_path)
    rows, is_late = snapshot.to_polars(), pl.col("n") > 5
    for lazy in (snapshot.scan(), snapshot.scan(pl.col("n") >= 0)):
        for count in (0, 3, 9, 15, 1000):
            first = lazy.head(count).filter(is_late)
            assert_frame_equal(first.collect(), rows.head(count).filter(is_late))
            assert_frame_equal(
                lazy.filter(is_late).head(count).collect(), rows.filter(is_late).head(count)
            )
            assert first.select(pl.len()).collect().item() == first.collect().height
    files = snapshot.files()
    last = files.collect()["path"].to_list()[-1]
    assert files.head(2).filter(pl.col("path") == last).collect().is_empty()


def test_files_that_cannot_match_are_not_opened(tmp_path: Path) -> None:
    snapshot, _ = new_snapshot(tmp_path)
    for n in (0, 1, 3, 4, 5):
        (tmp_path / f"{n}.parquet").unlink()
    predicate = pl.col("n").is_between(22, 25)
    assert snapshot.scan().filter(predicate).collect()["n"].to_list() == [22, 23, 24, 25]
    assert snapshot.scan(predicate).select("s").collect()["s"].to_list() == ["s2", "s3", "s4", "s5"]
    with pytest.raises(Exception, match="not found"):
        snapshot.scan().collect()


def test_two_tables_join(tmp_path: Path) -> None:
    left, rows = new_snapshot(tmp_path / "left")
    right, _ = new_snapshot(tmp_path / "right", 2)
    joined = left.scan().join(right.scan(), on="n").select("n", "s_right").sort("n").collect()
    assert joined["n"].to_list() == rows["n"].to_list()[:20]


def test_columns_of_every_kind_pass_through_polars(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "st": pa.array([{"a": 1, "b": ["x"]}, None]),
        "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "at": pa.array([0, None], pa.timestamp("us", "UTC")),
        "d": pa.array([1, None], pa.int32()).cast(pa.decimal128(12, 2)),
        "bin": pa.array([b"\0", None], pa.binary()),
    }
    deltalake.write_deltalake(tmp_path, pa.table(values))
    snapshot = lakelog.open(tmp_path).snapshot()
    found = snapshot.scan().collect()
    assert found.schema == snapshot.scan().collect_schema()
    theirs = pl.DataFrame(pl.from_arrow(pa.table(values)))
    assert found.select("st", "at", "d", "bin").equals(theirs.select("st", "at", "d", "bin"))
    assert found["m"].to_list() == theirs["m"].to_list()


def test_invalid_scan_raises_immediately(tmp_path: Path) -> None:
    snapshot, _ = new_snapshot(tmp_path)
    with pytest.raises(InvalidInputError, match="does not have"):
        snapshot.scan(pl.col("missing") == 1)


@pytest.mark.parametrize("type_", ["decimal(39,2)", "decimal(5,7)"])
def test_columns_next_to_an_invalid_decimal_are_read(tmp_path: Path, type_: str) -> None:
    fields = (field("n"), field("v", type_))
    file = data_file(tmp_path, "a.parquet", pa.table({"n": [1]}))
    snapshot = snapshot_of(tmp_path, fields, file)
    assert snapshot.scan().select("n").collect()["n"].to_list() == [1]
    with pytest.raises(UnsupportedFeatureError, match=re.escape(type_)):
        snapshot.scan().collect()


def test_conditions_on_whole_decimals_beyond_64_bits_find_rows_of_deltalake(
    tmp_path: Path,
) -> None:
    values = [Decimal(sign * digits) for sign in (1, -1) for digits in (2**63, 10**19 + 1, 10**37)]
    rows = pa.table({"m": pa.array(values, pa.decimal128(38, 0))})
    for row in range(len(values)):
        deltalake.write_deltalake(tmp_path, rows.slice(row, 1), mode="append")
    table = lakelog.open(tmp_path)
    table.checkpoint()
    for opened in (table, lakelog.open(tmp_path)):
        for value in values:
            same = pl.col("m") == pl.lit(value, dtype=pl.Decimal(38, 0))
            assert opened.to_polars(where=same)["m"].to_list() == [value]
