"""Rows of tables and snapshots by method names of other libraries, and their number."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog import Snapshot, Table
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from tests.data.rows import data_file, snapshot_of
from tests.data.vector_writer import serialised, z85
from tests.handmade import Action, field

DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
ROWS = pl.DataFrame(
    {"id": [1, 2, 3], "n": [1, None, 3], "b": [True, None, False], "day": [*DAYS, DAYS[1]]}
)
FIELDS = (field("n"), field("s", "string"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = lakelog.create(tmp_path / "t", ROWS.schema, partition_by=["day"])
    created.append(ROWS)
    return created


@pytest.fixture(params=["table", "snapshot"])
def source(table: Table, request: pytest.FixtureRequest) -> Table | Snapshot:
    return table if request.param == "table" else table.snapshot()


def test_frames_and_streams_hold_the_rows(source: Table | Snapshot) -> None:
    assert source.scan().sort("id").collect().equals(ROWS)
    assert source.to_polars().sort("id").equals(ROWS)
    assert source.to_arrow().sort_by("id").equals(ROWS.to_arrow().cast(source.to_arrow().schema))
    frame = source.to_pandas().sort_values("id")
    assert frame["n"].isna().tolist() == [False, True, False]
    assert list(map(str, frame.dtypes)) == ["Int64", "Int64", "boolean", "object"]
    assert pl.DataFrame(source).sort("id").equals(ROWS)
    with duckdb.connect() as connection:
        connection.register("rows", pa.RecordBatchReader.from_stream(source))
        assert connection.execute("select count(*), sum(n) from rows").fetchall() == [(3, 4)]


def test_nested_integers_next_to_nulls_are_exact_in_pandas(tmp_path: Path) -> None:
    exact = 2**53 + 1
    rows = pa.table(
        {
            "s": [{"x": exact}, {"x": None}],
            "l": [[exact, None], [1]],
            "m": pa.array([{"a": exact, "b": None}, {}], pa.map_(pa.string(), pa.int64())),
        }
    )
    lakelog.write(tmp_path, rows)
    table = lakelog.open(tmp_path)
    frame = table.to_pandas()
    assert frame["s"][0]["x"] == frame["l"][0][0] == frame["m"][0]["a"] == exact
    table.overwrite(frame[["s", "l"]])
    assert table.to_arrow(columns=["s", "l"]).equals(rows.select(["s", "l"]))


def test_map_with_a_repeated_key_raises_in_pandas_only(tmp_path: Path) -> None:
    rows = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    lakelog.write(tmp_path, rows)
    table = lakelog.open(tmp_path)
    assert table.to_arrow().to_pydict() == {"m": [[("a", 1), ("a", 2)]]}
    with pytest.raises(UnsupportedFeatureError, match="pandas"):
        table.to_pandas()


def test_date_that_pandas_lacks_raises_with_its_column(tmp_path: Path) -> None:
    days = pa.array([0, 2932897], pa.date32())
    lakelog.write(tmp_path, pa.table({"id": [1, 2], "day": days}))
    table = lakelog.open(tmp_path)
    with pytest.raises(UnsupportedFeatureError, match="year 10000") as caught:
        table.to_pandas()
    assert caught.value.column == "day"
    assert table.to_pandas("day < '2026-01-01'")["day"].to_list() == [dt.date(1970, 1, 1)]


def test_frames_hold_the_requested_rows_and_columns(source: Table | Snapshot) -> None:
    wanted = [{"n": None, "id": 2}, {"n": 3, "id": 3}]
    for where in ("day = '2026-01-02'", pl.col("id") > 1):
        assert source.to_polars(where, ["n", "id"]).sort("id").to_dicts() == wanted
        assert source.to_arrow(where, ["n", "id"]).sort_by("id").to_pylist() == wanted
        assert source.to_pandas(where, ["id"])["id"].sort_values().tolist() == [2, 3]
    for columns in (["nope"], ["id", "id"]):
        for read in (source.to_polars, source.to_arrow, source.to_pandas):
            with pytest.raises(InvalidInputError):
                read(columns=columns)


def test_table_is_a_source_of_rows_for_another(table: Table, tmp_path: Path) -> None:
    copy = lakelog.create(tmp_path / "copy", ROWS.schema)
    assert copy.append(table).num_rows == 3
    assert copy.to_polars().sort("id").equals(ROWS)


def test_state_has_one_row_per_live_file(table: Table) -> None:
    snapshot = table.snapshot()
    assert snapshot.state.to_polars().equals(snapshot.files().collect())
    assert snapshot.state.to_arrow().num_rows == len(snapshot.state.to_pandas()) == 2
    assert "version=1" in repr(snapshot.state)


def test_table_without_parquet_files_raises_with_a_hint_at_its_state(tmp_path: Path) -> None:
    indexed = lakelog.create(tmp_path / "i", {"n": pl.Int64}, format="indextables")
    with indexed.transaction() as tx:
        tx.add(path="a.split", size=1, numRecords=7)
    snapshot = indexed.snapshot()
    for each in (indexed, snapshot):
        calls = (each.scan, each.to_polars, each.to_arrow, each.to_pandas, each.__arrow_c_stream__)
        for call in calls:
            with pytest.raises(UnsupportedFeatureError) as refused:
                call()
            assert "Snapshot.state" in str(refused.value.hint)
    assert snapshot.state.to_polars()["path"].to_list() == ["a.split"]
    assert snapshot.num_rows() == 7


# --- the number of rows --------------------------------------------------------------------------


def file_of(root: Path, number: int, rows: int, deleted: list[int], stats: Any) -> Action:
    more: dict[str, Any] = {} if stats is None else {"stats": json.dumps(stats)}
    if deleted:
        data = serialised(deleted)
        more["deletionVector"] = {
            "storageType": "i",
            "pathOrInlineDv": z85(data),
            "sizeInBytes": len(data),
            "cardinality": len(deleted),
        }
    values = pa.table({"n": range(rows), "s": [None] * rows})
    return data_file(
        root, f"{number}.parquet", values.cast(pa.schema({"n": "i8", "s": "str"})), **more
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sets(st.integers(0, 8), max_size=3),
            st.sampled_from(["recorded", "recorded", "left", "absent", "none"]),
        ),
        max_size=5,
    )
)
def test_counts_equal_the_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, set[int], str]]
) -> None:
    root = tmp_path_factory.mktemp("counted")
    adds, missing = [], False
    for number, (rows, chosen, kind) in enumerate(files):
        deleted = [row for row in sorted(chosen) if row < rows]
        stats = {
            "recorded": {"numRecords": rows, "tightBounds": False},
            "left": {"numRecords": rows - len(deleted)},
            "absent": {},
            "none": None,
        }[kind]
        adds.append(file_of(root, number, rows, deleted, stats))
        missing |= kind != "recorded"
    snapshot = snapshot_of(root, FIELDS, *adds)
    height = snapshot.scan().select("n").collect().height
    if not missing:
        for file in root.glob("*.parquet"):
            file.unlink()  # the counts are read from the log
    scan = snapshot.scan()
    assert snapshot.num_rows() == height
    for engine in ("in-memory", "streaming"):
        assert scan.select(pl.len()).collect(engine=engine).item() == height
    assert scan.sql("select count(*) from self").collect().item() == height
    assert scan.head(4).select(pl.len()).collect().item() == min(4, height)


def test_only_files_without_a_recorded_number_are_opened(tmp_path: Path) -> None:
    recorded = {"numRecords": 5, "tightBounds": False}
    adds = [file_of(tmp_path, n, 5, [1], recorded if n else None) for n in range(3)]
    snapshot = snapshot_of(tmp_path, FIELDS, *adds)
    for n in (1, 2):
        (tmp_path / f"{n}.parquet").unlink()
    assert snapshot.num_rows() == 12
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(NotFoundError):
        snapshot.num_rows()


@pytest.mark.parametrize("recorded", [-1, 1, 1 << 62])
def test_impossible_recorded_number_of_rows_raises_and_a_huge_one_does_not_overflow(
    tmp_path: Path, recorded: int
) -> None:
    adds = [
        file_of(tmp_path, n, 5, [1, 2], {"numRecords": recorded, "tightBounds": False})
        for n in range(3)
    ]
    snapshot = snapshot_of(tmp_path, FIELDS, *adds)
    if recorded == 1 << 62:  # possible, so the sum must not overflow
        assert snapshot.num_rows() == 3 * (recorded - 2)
    else:
        with pytest.raises(CorruptionError):
            snapshot.num_rows()


def test_count_needs_no_memory_per_row(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, FIELDS, file_of(tmp_path, 0, 5, [], {"numRecords": 1 << 31}))
    assert snapshot.scan().select(pl.len()).collect().item() == 1 << 31


def test_missing_file_raises_not_found_error_in_every_method(table: Table) -> None:
    snapshot = table.snapshot()
    for path in snapshot.files().collect()["path"]:
        Path(table.path, path).unlink()
    collect = snapshot.scan().collect
    for read in (snapshot.to_polars, snapshot.to_arrow, snapshot.to_pandas, collect):
        with pytest.raises(NotFoundError):
            read()
    with pytest.raises(Exception, match="not found"):
        pa.RecordBatchReader.from_stream(table).read_all()
