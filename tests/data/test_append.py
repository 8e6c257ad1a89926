"""`Table.append` and `Table.overwrite`: rows in one commit, as every reader sees them."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import arro3.core
import deltalake
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import lakelog
from lakelog import ConflictError, Table
from lakelog.data.row_commit import WriteReport
from lakelog.errors import (
    InvalidInputError,
    LakelogWarning,
    MetadataChangedError,
    UnsupportedFeatureError,
)
from lakelog.model import contract
from lakelog.model.contract import Field, Primitive, Struct
from tests.budget import share_of
from tests.data.rows import changes_of, commit_info, data_files
from tests.data.vector_writer import inline
from tests.handmade import Handmade, add, field, metadata, protocol

SCHEMA = {"p": pl.String, "id": pl.Int64, "x": pl.Float64}
FEED = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}


def new_table(
    path: Path, schema: Any = None, by: Sequence[str] = ("p",), **configuration: str
) -> Table:
    return lakelog.create(
        path, schema or SCHEMA, by, configuration=configuration or None, upkeep=False
    )


def frame(*rows: tuple[str | None, int, float | None]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


ROWS = frame(("a", 1, 0.5), ("b", 2, None), ("a", 3, 1.5), (None, 4, -1.0))


def rows_of(table: Table, version: int | None = None) -> pl.DataFrame:
    """The rows as lakelog reads them, by id."""
    return table.snapshot(version).scan().collect().sort("id")


# --- append --------------------------------------------------------------------------------------


def test_appended_rows_are_read_by_every_reader(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    report = table.append(ROWS)
    assert (report.version, report.num_rows, report.num_files) == (1, 4, 3)
    assert report.num_bytes == table.snapshot().total_size()
    assert rows_of(table).equals(ROWS)
    peer = pl.DataFrame(deltalake.DeltaTable(tmp_path).to_pyarrow_table())
    assert peer.select(*SCHEMA).sort("id").equals(ROWS)
    assert pl.read_delta(str(tmp_path)).select(*SCHEMA).sort("id").equals(ROWS)
    files = str(tmp_path / "**" / "*.parquet")
    counted = duckdb.sql(f"select count(*), sum(id), sum(x) from read_parquet('{files}')")
    assert counted is not None
    assert counted.fetchall() == [(4, 10, 1.0)]


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([object()], dtype=pl.Object),
        pl.Series([1], dtype=pl.Int128),
        pl.Series([[{"a": 1}]], dtype=pl.List(pl.Struct({"a": pl.UInt128}))),
    ],
    ids=["object", "integer", "nested"],
)
def test_types_that_arrow_lacks_are_refused(tmp_path: Path, values: pl.Series) -> None:
    table = lakelog.create(tmp_path / "t", {"b": pl.Binary, "n": pl.Int64}, upkeep=False)
    for name in ("b", "n"):
        frame = values.to_frame(name)
        with pytest.raises(InvalidInputError, match="that Arrow does not have"):
            table.append(frame)
        with pytest.raises(InvalidInputError):
            table.append(frame.lazy())
    table.append(pl.DataFrame({"b": [b"x"], "n": [1]}))
    with pytest.raises(InvalidInputError):
        table.update({"n": pl.col("n").cast(pl.Int128)})
    records = pl.DataFrame({"op": ["PUT"], "key": ["k"], "value": values})
    with lakelog.WriteAheadLog(tmp_path / "wal") as log:
        with pytest.raises(InvalidInputError, match="that Arrow does not have"):
            log.append_table(records)
        log.append_table(records.with_columns(value=pl.lit("v")))


def test_commit_info_of_an_append_has_the_fields_of_delta(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    report = table.append(ROWS, user_metadata="nightly")
    info = commit_info(tmp_path, 1)
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": '["p"]'}
    counts = {"numFiles": "3", "numOutputRows": "4", "numOutputBytes": str(report.num_bytes)}
    assert info["operationMetrics"] == counts
    assert info["isBlindAppend"]
    assert info["userMetadata"] == "nightly"


def test_writing_calls_accept_the_commit_options_of_a_transaction(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    fields = {"job": {"jobId": "7"}, "clusterId": "c", "run": {"try": 1}}
    table.append(ROWS, operation="LOAD", user_name="ann", commit_info=fields, max_attempts=3)
    table.overwrite(ROWS, user_name="ben", isolation="Serializable", app_id="a", app_version=1)
    appended, overwritten = commit_info(tmp_path, 1), commit_info(tmp_path, 2)
    assert appended.items() >= {"operation": "LOAD", "userName": "ann", **fields}.items()
    assert appended["operationParameters"]["mode"] == "Append"
    assert overwritten["userName"] == "ben"
    assert overwritten["isolationLevel"] == "Serializable"
    history = table.history()
    assert history["userName"].to_list() == ["ben", "ann", None]
    assert json.loads(history["extra"][1]).items() >= fields.items()
    with pytest.raises(TypeError, match="nonsense"):
        table.append(ROWS, nonsense=1)  # type: ignore[call-arg] # the point


def rows_after(rows: pl.DataFrame, meanwhile: Callable[[], object]) -> pa.RecordBatchReader:
    """Rows that are read only after another event."""

    def batches() -> Iterator[pa.RecordBatch]:
        meanwhile()
        yield from rows.to_arrow().to_batches()

    return pa.RecordBatchReader.from_batches(rows.to_arrow().schema, batches())


def all_kinds(rows: pl.DataFrame) -> Iterator[Any]:
    yield rows.lazy()
    yield rows.to_arrow()
    yield rows.to_arrow().to_batches()[0]
    yield rows.to_arrow().to_reader()
    yield rows.to_pandas()
    yield duckdb.sql("select * from rows")
    yield ds.dataset(rows.to_arrow())
    yield ds.dataset(rows.to_arrow()).scanner()
    batch = rows.to_arrow().to_batches()[0]
    yield SimpleNamespace(__arrow_c_array__=batch.__arrow_c_array__)
    yield [batch[:1], batch[1:]]
    yield arro3.core.Table.from_arrow(rows.to_arrow())  # as deltalake's QueryBuilder returns


def test_rows_of_every_kind_are_accepted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for count, given_rows in enumerate(all_kinds(ROWS), 1):
        assert table.append(given_rows).version == count
        assert table.snapshot().scan().select(pl.len()).collect().item() == 4 * count
    assert rows_of(table).unique().sort("id").equals(ROWS)
    for none in ([1, 2], [], [pa.array([1])], [{"id": [1]}], pa.array([1]), pl.Series([1])):
        with pytest.raises(InvalidInputError, match="not a table of rows"):
            table.append(none)


@pytest.mark.parametrize(
    ("given_rows", "hint"),
    [
        ([{"id": 1}], r"pass polars\.DataFrame"),
        ({"id": [1]}, r"pass polars\.DataFrame"),
        ([ROWS, ROWS], r"pass polars\.concat"),
        ([pa.table({"id": [1]}), pa.table({"id": [2]})], r"pyarrow\.concat_tables"),
        ([pa.record_batch({"id": [1]}), pa.record_batch({"n": [1]})], r"pyarrow\.concat_tables"),
        (iter(pa.table({"id": [1]}).to_batches()), r"RecordBatchReader\.from_batches"),
        (pl.Series("id", [1]), r"to_frame\(\)"),
        (pd.Series([1], name="id"), r"to_frame\(\)"),
        (np.array([[1]]), "schema="),
        ("rows.parquet", r"polars\.scan_parquet"),
        (Path("rows.parquet"), r"polars\.scan_parquet"),
        (pl.DataFrame({"id": [0.1]}), "cast the column before the write"),
    ],
    ids=[
        "list of dicts",
        "dict",
        "list of frames",
        "list of tables",
        "batches of different schemas",
        "iterator",
        "Polars series",
        "pandas series",
        "NumPy array",
        "text of a path",
        "path",
        "numbers with a fraction",
    ],
)
def test_errors_of_refused_rows_have_a_hint(tmp_path: Path, given_rows: object, hint: str) -> None:
    with pytest.raises(InvalidInputError, match=hint):
        new_table(tmp_path).append(given_rows)


@pytest.mark.parametrize(
    ("given_rows", "message"),
    [
        (pd.DataFrame({"id": [1, "x"]}), "column 'id' of the pandas frame cannot be converted"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "pandas frame cannot be converted"),
    ],
)
def test_rows_that_arrow_cannot_represent_raise(
    tmp_path: Path, given_rows: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        new_table(tmp_path).append(given_rows)


def test_values_that_their_arrow_type_does_not_allow_are_refused(tmp_path: Path) -> None:
    ends = pa.py_buffer(b"\0\0\0\0\1\0\0\0")
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xe4")])
    digits = pa.Array.from_buffers(
        pa.decimal128(4, 2), 1, [None, pa.py_buffer((10**6).to_bytes(16, "little"))]
    )
    texts = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)
    for column in (text, digits, texts):
        rows = pa.table({"x": column})
        for given_rows in (rows, rows.to_batches()[0], rows.to_reader(), ds.dataset(rows)):
            with pytest.raises(InvalidInputError, match="'x' has a value that its type does not"):
                lakelog.write(tmp_path / "t", given_rows)


def test_levels_of_a_pandas_index_with_a_name_of_their_own_are_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2]})
    indexes: dict[str, Any] = {
        "named": pd.Index([7, 8], name="id"),
        "range": pd.RangeIndex(2, name="id"),
        "unnamed": pd.Index(["a", 1]),  # of no type in Arrow
        "column": pd.Index([7, 8], name="x"),
        "levels": pd.MultiIndex.from_tuples([(7, 1, "a"), (8, "b", "b")], names=["id", None, "k"]),
    }
    stored: dict[str, list[str]] = {}
    for name, index in indexes.items():
        lakelog.write(tmp_path / name, frame.set_axis(index))
        stored[name] = lakelog.open(tmp_path / name).to_polars().columns
    assert stored == {
        "named": ["x", "id"],
        "range": ["x", "id"],
        "unnamed": ["x"],
        "column": ["x"],
        "levels": ["x", "id", "k"],
    }
    assert lakelog.open(tmp_path / "levels").to_polars().rows() == [(1, 7, "a"), (2, 8, "b")]


def test_error_about_a_level_of_a_pandas_index_names_the_level(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2]})
    lakelog.write(tmp_path / "x", frame)
    table = lakelog.open(tmp_path / "x")
    indexed = frame.set_axis(pd.Index([7, 8], name="when"))
    ingestor = lakelog.Ingestor(table, tmp_path / "wal")
    for call in (
        table.append,
        table.overwrite,
        partial(table.upsert, on="x"),
        partial(lakelog.write, tmp_path / "x"),
        ingestor.write,
    ):
        with pytest.raises(InvalidInputError, match="no column of the frame's index 'when'") as e:
            call(indexed)
        assert "frame.reset_index(drop=True)" in str(e.value.hint)
        call(indexed.reset_index(drop=True))
    ingestor.close()
    levels = pd.MultiIndex.from_tuples([(1, 2), (3, 4)], names=["y", "y"])
    for index, reason in (
        (pd.Index([7, 8], name="X"), "level 'X' of the frame's index has the name of the column"),
        (levels, "level 'y' of the frame's index has the name of the level 'y'"),
    ):
        for write in (table.append, partial(lakelog.write, tmp_path / "new")):
            with pytest.raises(InvalidInputError, match=reason) as e:
                write(frame.set_axis(index))
            assert "reset_index(drop=True)" in str(e.value.hint)
    assert not (tmp_path / "new").exists()


def test_name_of_a_pandas_index_may_be_a_number(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pd.DataFrame({"x": [1]}, index=pd.Index([2], name=5)))
    assert lakelog.open(tmp_path).to_polars().rows(named=True) == [{"x": 1, "5": 2}]


def test_table_is_created_with_fixed_size_binary(tmp_path: Path) -> None:
    rows = pa.table({"key": pa.array([b"ab", None], pa.binary(2))})
    lakelog.write(tmp_path, rows)
    assert lakelog.open(tmp_path).to_arrow().to_pydict() == {"key": [b"ab", None]}


def test_write_report_is_printed(tmp_path: Path) -> None:
    report = new_table(tmp_path).append(ROWS)
    size = f"{report.num_bytes / 1024:.1f} KiB"
    assert str(report) == f"Write\n  version  1\n  rows     4\n  files    3, {size}"
    assert f"<td style='text-align:left'>3, {size}</td>" in report._repr_html_()
    assert "was committed before" in str(WriteReport(None, duplicate=True))
    assert "deleted rows   7" in str(WriteReport(2, num_deleted_rows=7, num_removed_files=1))


def test_append_without_rows_commits_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert "nothing was written" in str(table.append(ROWS.clear()))
    assert table.append(ROWS.clear()).version is None
    assert table.version() == 0
    assert data_files(tmp_path) == []


def test_application_writes_each_of_its_versions_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert table.append(ROWS, app_id="job", app_version=3).version == 1
    again = table.append(ROWS, app_id="job", app_version=3)
    assert again.duplicate
    assert again.version is None
    assert rows_of(table).height == 4
    files = data_files(tmp_path)
    other = lakelog.open(tmp_path, upkeep=False)
    late = rows_after(ROWS, lambda: other.append(ROWS, app_id="job", app_version=4))
    assert table.append(late, app_id="job", app_version=4).duplicate
    assert len(data_files(tmp_path)) == 2 * len(files)
    assert rows_of(table).height == 8


@pytest.mark.parametrize(
    "write",
    [
        lambda table, **app: table.overwrite(ROWS, **app),
        lambda table, **app: table.overwrite(ROWS[:1], "id = 1", version=1, **app),
        lambda table, **app: table.delete("id = 1", **app),
        lambda table, **app: table.update({"x": 7.0}, "id = 1", **app),
        lambda table, **app: table.upsert(ROWS[:1].with_columns(x=7.0), "id", **app),
    ],
    ids=["overwrite", "overwrite from a version", "delete", "update", "upsert"],
)
def test_repeated_application_version_is_a_duplicate_in_every_verb(
    tmp_path: Path, write: Callable[..., WriteReport]
) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    assert write(table, app_id="job", app_version=1).version == 2
    reopened = lakelog.open(tmp_path, upkeep=False)
    assert write(reopened, app_id="job", app_version=1).duplicate
    assert reopened.version() == 2


def test_invalid_row_leaves_no_file_and_no_commit(tmp_path: Path) -> None:
    table = new_table(tmp_path)

    def torn() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_arrow().to_batches()
        raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        table.append(pa.RecordBatchReader.from_batches(ROWS.to_arrow().schema, torn()))
    with pytest.raises(InvalidInputError, match="has another type"):
        table.append(pl.DataFrame({"id": [1], "x": [True]}))
    assert data_files(tmp_path) == []
    assert table.version() == 0


def test_columns_are_added_only_with_schema_mode_merge(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    wider = ROWS.with_columns(y=pl.lit("new"), z=pl.lit([{"q": 1}]))
    with pytest.raises(InvalidInputError, match="no column 'y'"):
        table.append(wider)
    with pytest.raises(InvalidInputError, match="schema_mode"):
        table.append(wider, schema_mode="replace")  # type: ignore[arg-type] # the point
    table.append(wider.head(1), schema_mode="merge")
    assert table.snapshot().schema.names == ("p", "id", "x", "y", "z")
    assert rows_of(table)["y"].null_count() == 4
    assert table.append(ROWS, schema_mode="merge").version == 3
    assert commit_info(tmp_path, 3)["isBlindAppend"]


def test_void_column_gets_the_type_of_rows_with_schema_mode_merge(tmp_path: Path) -> None:
    fields = (field("id"), field("v", "void"))
    Handmade(tmp_path).commit(0, protocol(), metadata(*fields))
    table = lakelog.open(tmp_path, upkeep=False)
    table.append(pl.DataFrame({"id": [1]}))
    rows = pl.DataFrame({"id": [2], "v": [[{"x": "a"}]]})
    with pytest.raises(UnsupportedFeatureError, match='schema_mode="merge"'):
        table.append(rows)
    table.append(rows, schema_mode="merge")
    assert table.to_polars().sort("id").rows() == [(1, None), (2, [{"x": "a"}])]


def test_new_column_of_nulls_without_a_type_is_left_out_with_a_warning(tmp_path: Path) -> None:
    rows = pl.DataFrame({"id": [1], "note": [None]})
    with pytest.warns(LakelogWarning, match="^'note': a column that holds nulls only") as caught:
        lakelog.write(tmp_path / "t", rows, schema_mode="merge")
    table = lakelog.open(tmp_path / "t")
    with pytest.warns(LakelogWarning, match="^'note'"):
        table.append(rows, schema_mode="merge")
    with pytest.warns(LakelogWarning, match="^'note'"):
        table.overwrite(rows, schema_mode="overwrite")
    assert len(caught) == 1
    assert table.to_polars().to_dict(as_series=False) == {"id": [1]}
    table.alter.add_columns({"note": pl.String})
    table.append(rows, schema_mode="merge")  # the table has the type
    assert table.to_polars()["note"].to_list() == [None, None]


@pytest.mark.parametrize("mapped", [False, True])
def test_fields_of_structs_are_added_too(tmp_path: Path, mapped: bool) -> None:
    schema = {"id": pl.Int64, "s": pl.Struct({"a": pl.Int64})}
    table = new_table(tmp_path, schema, (), **(MAPPED if mapped else {}))
    table.append(pl.DataFrame({"id": [1], "s": [{"a": 1}]}))
    wider = pl.DataFrame({"id": [2], "s": [{"b": "q", "a": 2}], "t": [dt.datetime(2024, 1, 1)]})
    table.append(wider, schema_mode="merge")
    assert "timestampNtz" in (table.snapshot().protocol.writer_features or ())
    assert rows_of(table)["s"].to_list() == [{"a": 1, "b": None}, {"a": 2, "b": "q"}]
    if not mapped:
        peer = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
        assert pl.DataFrame(peer).sort("id").equals(rows_of(table))


def test_fields_inside_lists_and_maps_are_added_too(tmp_path: Path) -> None:
    inner, wide = (
        pl.Struct({"a": pl.Int64}),
        pl.Struct({"a": pl.Int64, "b": pl.Map(pl.String, pl.Int64)}),
    )
    table = new_table(tmp_path, {"l": pl.List(inner), "m": pl.Map(pl.String, inner)}, ())
    table.append(pl.DataFrame({"l": [[{"a": 1}]]}, schema={"l": pl.List(inner)}))
    rows = pl.DataFrame(
        {"l": [[{"a": 2, "b": {"k": 3}}]], "m": [{"q": {"a": 4, "b": None}}]},
        schema={"l": pl.List(wide), "m": pl.Map(pl.String, wide)},
    )
    table.append(rows, schema_mode="merge")
    found = table.snapshot().scan().collect()
    assert found.filter(pl.col("m").is_not_null()).equals(rows)
    assert found.height == 2


def test_null_or_missing_required_column_raises(tmp_path: Path) -> None:
    schema = Struct((Field("id", Primitive("long"), nullable=False), Field("x", Primitive("long"))))
    table = new_table(tmp_path, schema, ())
    with pytest.raises(InvalidInputError, match="is NOT NULL"):
        table.append(pl.DataFrame({"id": [1, None]}))
    with pytest.raises(InvalidInputError, match="is missing"):
        table.append(pl.DataFrame({"x": [1]}))
    assert data_files(tmp_path) == []


@pytest.mark.parametrize("mode", ["name", "id"])
def test_rows_of_a_mapped_table_are_read_back(tmp_path: Path, mode: str) -> None:
    table = new_table(tmp_path, **{"delta.columnMapping.mode": mode})
    table.append(ROWS)
    with table.transaction() as tx:
        schema = tx.snapshot.schema
        tx.set_metadata(
            schema=Struct(
                tuple(Field(f.name.upper(), f.type, metadata=f.metadata) for f in schema.fields)
            ),
            partition_by=["P"],
        )
    assert table.snapshot().scan().collect().sort("ID").rows() == ROWS.rows()
    # Statistics use physical names, and files are skipped by them.
    assert table.snapshot().files(pl.col("ID") > 3).collect().height == 1


# --- overwrite -----------------------------------------------------------------------------------


def test_overwrite_replaces_every_row(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    new = frame(("z", 9, 9.0))
    report = table.overwrite(new)
    assert (report.version, report.num_files, report.num_removed_files) == (2, 1, 3)
    assert rows_of(table).equals(new)
    assert rows_of(table, 1).equals(ROWS)
    assert pl.read_delta(str(tmp_path)).select(*SCHEMA).equals(new)
    info = commit_info(tmp_path, 2)
    assert info["operationParameters"] == {"mode": "Overwrite", "partitionBy": '["p"]'}
    assert info["operationMetrics"]["numRemovedFiles"] == "3"
    assert not info["isBlindAppend"]


@pytest.mark.parametrize("mapped", [False, True])
def test_overwrite_with_a_partition_predicate_removes_whole_files(
    tmp_path: Path, mapped: bool
) -> None:
    table = new_table(tmp_path, **(MAPPED if mapped else {}))
    table.append(ROWS)
    before = set(data_files(tmp_path))
    report = table.overwrite(frame(("a", 7, None)), pl.col("p") == "a")
    assert (report.num_removed_files, report.num_copied_rows) == (1, 0)
    assert len(set(data_files(tmp_path)) - before) == 1
    assert rows_of(table)["id"].to_list() == [2, 4, 7]
    assert table.overwrite(frame((None, 8, None)), pl.col("p").is_null()).num_removed_files == 1
    assert rows_of(table)["id"].to_list() == [2, 7, 8]
    assert table.overwrite(frame(("c", 9, None)), pl.col("p") == "c").num_removed_files == 0
    assert table.overwrite(ROWS, pl.lit(value=True)).num_removed_files == 4


def test_overwrite_of_an_unknown_partition_value_raises(tmp_path: Path) -> None:
    handmade = Handmade(tmp_path)
    handmade.commit(
        0,
        protocol(1, 2),
        metadata(field("p"), field("id"), partitioned=["p"]),
        add("a.parquet", 5, partitionValues={"p": "one"}),
    )
    rows = pl.DataFrame({"p": [None], "id": [1]}, schema={"p": pl.Int64, "id": pl.Int64})
    with pytest.raises(UnsupportedFeatureError, match="is unknown"):
        handmade.table.overwrite(rows, pl.col("p").is_null())
    assert handmade.table.overwrite(rows).num_removed_files == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_overwrite_with_a_data_predicate_copies_the_other_rows(
    tmp_path: Path, mapped: bool
) -> None:
    table = new_table(tmp_path, **(MAPPED if mapped else {}))
    table.append(ROWS)
    report = table.overwrite(frame(("n", 1, 8.0)), pl.col("x") > 0)
    # Both rows of a are removed; the null of b is kept.
    assert (report.num_removed_files, report.num_copied_rows, report.num_deleted_rows) == (1, 0, 0)
    assert rows_of(table).rows() == [("n", 1, 8.0), ("b", 2, None), (None, 4, -1.0)]
    table.append(frame(("a", 5, None), ("a", 6, 2.0), ("a", 7, -2.0)))
    report = table.overwrite(frame(("a", 8, 3.0)), (pl.col("x") > 0) & (pl.col("p") == "a"))
    assert (report.num_removed_files, report.num_copied_rows, report.num_deleted_rows) == (1, 2, 1)
    assert rows_of(table)["id"].to_list() == [1, 2, 4, 5, 7, 8]
    info = commit_info(tmp_path, 4)
    assert info["operationParameters"]["predicate"] == "((`x` > 0) AND (`p` = 'a'))"
    assert info["operationMetrics"]["numCopiedRows"] == "2"
    assert info["operationMetrics"]["numDeletedRows"] == "1"


def test_row_that_does_not_satisfy_the_overwrite_predicate_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    for where in (pl.col("x") > 0, pl.col("p") == "a", pl.col("id") == 1):
        with pytest.raises(InvalidInputError, match="does not satisfy the predicate") as error:
            table.overwrite(ROWS, where)
        found = error.value.found
        assert isinstance(found, dict)
        assert found["row"] == 1
    with pytest.raises(InvalidInputError, match="column that the table does not have"):
        table.overwrite(ROWS, pl.col("nope") == 1)
    assert rows_of(table).equals(ROWS)
    assert len(data_files(tmp_path)) == 3


def test_overwrite_does_not_restore_rows_deleted_by_a_deletion_vector(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=(), **{"delta.enableDeletionVectors": "true"})
    table.append(ROWS)
    file = table.snapshot().files().collect()
    with table.transaction() as tx:
        tx.remove(file)
        tx.add(
            path=file["path"][0],
            size=file["size"][0],
            stats=file["stats"][0].replace('"tightBounds":true', '"tightBounds":false'),
            deletionVector=inline([1]),
        )
    assert rows_of(table)["id"].to_list() == [1, 3, 4]
    report = table.overwrite(frame(("q", 9, 7.0)), pl.col("x") > 1)
    assert (report.num_copied_rows, report.num_deleted_rows) == (2, 1)
    assert rows_of(table)["id"].to_list() == [1, 4, 9]
    assert table.overwrite(ROWS).num_removed_files == 1


def test_change_data_feed_has_every_changed_row(tmp_path: Path) -> None:
    table = new_table(tmp_path, **FEED)
    table.append(ROWS)
    assert changes_of(tmp_path, 1) == [("insert", i) for i in (1, 2, 3, 4)]
    table.overwrite(frame(("a", 5, 9.0)), (pl.col("p") == "a") & (pl.col("x") > 1))
    assert changes_of(tmp_path, 2) == [("delete", 3), ("insert", 5)]
    table.overwrite(frame(("b", 6, 9.0)), pl.col("p") == "b")
    assert changes_of(tmp_path, 3) == [("delete", 2), ("insert", 6)]
    table.overwrite(ROWS.head(1))
    assert changes_of(tmp_path, 4) == [("delete", i) for i in (1, 4, 5, 6)] + [("insert", 1)]
    assert rows_of(table).equals(ROWS.head(1))


def test_overwrite_can_add_columns(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    wider = frame(("a", 1, 2.0)).with_columns(y=pl.lit(1))
    table.overwrite(wider, pl.col("x") > 1, schema_mode="merge")
    assert rows_of(table)["y"].to_list() == [1, None, None, None]


def test_overwrite_conflicts_with_concurrently_appended_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.isolationLevel": "Serializable"})
    other = lakelog.open(tmp_path, upkeep=False)
    table.append(ROWS)
    into_a = frame(("a", 10, 1.0))
    with pytest.raises(ConflictError):
        table.overwrite(rows_after(into_a, lambda: other.append(into_a)), pl.col("p") == "a")
    assert len(data_files(tmp_path)) == 4  # its own file was deleted
    report = table.overwrite(
        rows_after(into_a, lambda: other.append(frame(("b", 11, 1.0)))), pl.col("p") == "a"
    )
    assert report.version == 4
    assert rows_of(table)["id"].to_list() == [2, 4, 10, 11]


def test_appends_conflict_only_with_a_schema_change(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    other = lakelog.open(tmp_path, upkeep=False)
    assert table.append(rows_after(ROWS, lambda: other.append(ROWS))).version == 2
    wider = ROWS.with_columns(y=pl.lit(1))
    with pytest.raises(MetadataChangedError):
        table.append(rows_after(ROWS, lambda: other.append(wider, schema_mode="merge")))
    assert len(data_files(tmp_path)) == 9


# --- any rows ------------------------------------------------------------------------------------

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pl.String: st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5),
    pl.Int32: st.integers(-(2**31), 2**31 - 1),
    pl.Float64: st.floats(),
    pl.Boolean: st.booleans(),
    pl.Date: st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)),
    pl.Datetime("us", "UTC"): st.datetimes(
        dt.datetime(1900, 1, 1),
        dt.datetime(2200, 1, 1),
        timezones=st.just(dt.UTC),
    ),
    pl.Decimal(12, 3): st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 1000),
    pl.List(pl.Int64): st.lists(st.none() | st.integers(-5, 5), max_size=3),
}
PARTITIONS = (pl.String, pl.Int32, pl.Boolean, pl.Date, pl.Decimal(12, 3))


@st.composite
def frames(draw: st.DrawFn) -> tuple[list[pl.DataFrame], list[str]]:
    """A few frames of one schema, and their partition columns."""
    dtypes = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    names = [f"c{i}" for i in range(len(dtypes))]
    able = [name for name, dtype in zip(names, dtypes, strict=True) if dtype in PARTITIONS]
    by = draw(st.lists(st.sampled_from(able), unique=True, max_size=2)) if able else []
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        height = draw(st.integers(0, 6))
        columns = {
            name: pl.Series(
                draw(st.lists(st.none() | VALUES[dtype], min_size=height, max_size=height)),
                dtype=dtype,
                strict=False,
            )
            for name, dtype in zip(names, dtypes, strict=True)
        }
        parts.append(pl.DataFrame({"n": pl.Series([0] * height, dtype=pl.Int64), **columns}))
    return parts, by


@pytest.mark.filterwarnings("ignore:empty values:lakelog.LakelogWarning")
@settings(max_examples=share_of(25), deadline=None)
@given(frames())
def test_any_appended_rows_are_read_back(case: tuple[list[pl.DataFrame], list[str]]) -> None:
    parts, by = case
    location = f"memory://{uuid.uuid4().hex}"
    table = lakelog.create(location, parts[0].schema, by, upkeep=False)
    start, given_rows = 0, []
    for part in parts:
        numbered = part.with_columns(n=pl.int_range(start, start + part.height))
        start += part.height
        table.append(numbered)
        given_rows.append(numbered)
    expected = pl.concat(given_rows).with_columns(
        # An empty text and null are one partition value.
        pl.when(pl.col(name) != "").then(pl.col(name)).alias(name)
        for name in by
        if parts[0].schema[name] == pl.String
    )
    found = table.snapshot().scan().collect().sort("n")
    assert found.equals(expected)


CONDITIONS = (
    pl.col("p") == "a",
    pl.col("p").is_null(),
    pl.col("id") > 3,
    (pl.col("id") > 2) & (pl.col("p") == "a"),
    (pl.col("x") < 0) | (pl.col("id") == 1),
    pl.col("x").is_nan(),
    pl.col("x").is_null(),
    pl.lit(value=True),
)
A_ROW = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.integers(0, 6),
    st.sampled_from([None, -1.0, 0.0, 2.5, float("nan")]),
)


@settings(max_examples=share_of(25), deadline=None)
@given(
    st.lists(st.lists(A_ROW, max_size=5), min_size=1, max_size=3),
    st.lists(A_ROW, max_size=8),
    st.sampled_from(CONDITIONS),
    st.sampled_from([[], ["p"]]),
)
def test_overwrite_keeps_the_other_rows_and_adds_the_new_ones(
    parts: list[list[Any]], new: list[Any], where: pl.Expr, by: list[str]
) -> None:
    location = f"memory://{uuid.uuid4().hex}"
    table = lakelog.create(location, SCHEMA, by, upkeep=False)
    for part in parts:
        table.append(frame(*part))
    given_rows = frame(*new).filter(where)
    before = pl.concat([frame(*part) for part in parts])
    expected = pl.concat([before.filter(~where.fill_null(value=False)), given_rows])
    table.overwrite(given_rows, where)
    found = table.snapshot().scan().collect()
    assert found.sort(*SCHEMA).equals(expected.sort(*SCHEMA))


WIDENS = {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"}
NARROW: dict[str, Any] = {
    "n": pl.Int32,
    "f": pl.Float32,
    "d": pl.Date,
    "m": pl.Decimal(5, 2),
    "l": pl.List(pl.Int16),
    "s": pl.Struct({"x": pl.Int8}),
    "i": pl.Int32,
}
WIDE: dict[str, Any] = {
    "n": pl.Int64,
    "f": pl.Float64,
    "d": pl.Datetime("us"),
    "m": pl.Decimal(8, 3),
    "l": pl.List(pl.Int64),
    "s": pl.Struct({"x": pl.Int16, "y": pl.String}),
    "i": pl.Float64,
}


def narrow_and_wide() -> tuple[pl.DataFrame, pl.DataFrame]:
    day, time = dt.date(2020, 1, 1), dt.datetime(2021, 1, 1, 1)
    narrow = [[1], [1.5], [day], [Decimal("1.25")], [[1]], [{"x": 1}], [1]]
    wide = [[1 << 40], [0.1], [time], [Decimal("12345.125")], [[1 << 40]], [{"x": 300, "y": "q"}]]
    return (
        pl.DataFrame(dict(zip(NARROW, narrow, strict=True)), NARROW),
        pl.DataFrame(dict(zip(WIDE, [*wide, [2.0]], strict=True)), WIDE),
    )


def test_schema_mode_merge_widens_types_with_type_widening(tmp_path: Path) -> None:
    narrow, wide = narrow_and_wide()
    table = lakelog.create(tmp_path, NARROW, configuration=WIDENS, upkeep=False)
    table.append(narrow)
    with pytest.raises(InvalidInputError, match="without loss"):
        table.append(wide)
    table.append(wide, schema_mode="merge")
    expected = {**WIDE, "i": pl.Int32}  # no whole number becomes a double
    assert table.scan().collect_schema() == expected
    old = narrow.with_columns(s=pl.struct(x=1, y=None)).cast(pl.Schema(expected))
    rows = pl.concat([old, wide.cast({"i": pl.Int32})])
    assert_frame_equal(table.to_polars().sort("n"), rows)
    fields = {f.path: f.field.metadata for f in contract.fields_of(table.snapshot().schema)}
    assert fields["l",]["delta.typeChanges"] == [
        {"fromType": "short", "toType": "long", "fieldPath": "element"}
    ]
    assert fields["s", "x"]["delta.typeChanges"] == [{"fromType": "byte", "toType": "short"}]


def test_schema_mode_merge_keeps_types_without_type_widening_or_under_a_rule(
    tmp_path: Path,
) -> None:
    wide = pl.DataFrame({"n": [1]})
    plain = lakelog.create(tmp_path / "plain", {"n": pl.Int32}, upkeep=False)
    plain.append(wide, schema_mode="merge")
    assert plain.scan().collect_schema() == {"n": pl.Int32}
    dates = lakelog.create(
        tmp_path / "dates", {"d": pl.Date}, configuration={"delta.enableTypeWidening": "true"}
    )
    with pytest.raises(InvalidInputError):  # readers would need a further feature
        dates.append(pl.DataFrame({"d": [dt.datetime(2021, 1, 1, 1)]}), schema_mode="merge")
    ruled = lakelog.create(
        tmp_path / "ruled", {"n": pl.Int32, "m": pl.Int32}, configuration=WIDENS, upkeep=False
    )
    ruled.alter.add_constraint("positive", "n > 0")
    ruled.append(wide.with_columns(m=pl.col("n")), schema_mode="merge")
    assert ruled.scan().collect_schema() == {"n": pl.Int32, "m": pl.Int64}
