"""`lakelog.write` and `lakelog.create`: modes; overwriting the schema and the partitioning."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    ConflictError,
    InvalidInputError,
    InvalidTransactionError,
    LakelogError,
    LakelogWarning,
    TableExistsError,
    TableNotFoundError,
)
from lakelog.storage import StoreWrapper, open_store
from lakelog.testing import InjectingStore, Rule
from lakelog.transaction.schema_conversion import struct_of
from tests.concurrency import run_concurrently
from tests.data.rows import commit_info
from tests.handmade import Handmade, field, metadata, protocol

ROWS = pl.DataFrame({"id": [1, 2], "day": ["a", "b"]})
MORE = pl.DataFrame({"id": [3], "day": ["b"]})


def ids(root: Path) -> list[int]:
    return lakelog.open(root).to_polars()["id"].sort().to_list()


def test_new_table_has_the_columns_partitions_and_properties_that_are_given(
    tmp_path: Path,
) -> None:
    properties = {"delta.appendOnly": "true"}
    report = lakelog.write(
        tmp_path, ROWS.lazy(), partition_by=["day"], name="t", configuration=properties
    )
    assert (report.version, report.num_rows, report.num_files) == (0, 2, 2)
    metadata = lakelog.open(tmp_path).snapshot().metadata
    assert (metadata.name, metadata.partition_columns) == ("t", ("day",))
    assert metadata.configuration == properties
    written = lakelog.open(tmp_path).history().row(0, named=True)
    assert written["operation"] == "WRITE"
    assert pl.read_delta(str(tmp_path)).sort("id").equals(ROWS)


def test_columns_of_a_new_table_are_not_null_where_those_of_an_arrow_table_are(
    tmp_path: Path,
) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", inner)])
    rows = pa.table([[1, 2], [{"x": 1, "y": 2}, {"x": 3, "y": None}]], schema=schema)
    asked: list[tuple[Any, Any]] = [
        (rows, None),
        (rows.to_reader(), None),
        (rows.to_batches()[0], "overwrite"),
    ]
    for number, (given, mode) in enumerate(asked):
        path = tmp_path / str(number)
        if mode:
            lakelog.write(path, ROWS)
        lakelog.write(path, given, mode or "append", schema_mode=mode)
        assert lakelog.open(path).snapshot().schema == struct_of(schema)
        with pytest.raises(InvalidInputError, match="null"):
            lakelog.write(
                path, pl.DataFrame({"id": [None], "s": [None]}, schema=pl.DataFrame(rows).schema)
            )
    for number, frame in enumerate([pl.DataFrame(rows), rows.to_pandas()]):
        lakelog.write(tmp_path / f"f{number}", frame)
        assert all(
            f.nullable for f in lakelog.open(tmp_path / f"f{number}").snapshot().schema.fields
        )
    # Columns that a write adds to a table are null in its rows.
    lakelog.write(
        tmp_path / "f0",
        rows.append_column(schema.field("id").with_name("n"), [[1, 2]]),
        schema_mode="merge",
    )
    assert all(f.nullable for f in lakelog.open(tmp_path / "f0").snapshot().schema.fields)


@pytest.mark.parametrize("mode", ["append", "overwrite", "error", "ignore"])
def test_mode_decides_how_an_existing_table_is_changed(tmp_path: Path, mode: Any) -> None:
    assert lakelog.write(tmp_path, ROWS, mode).num_rows == 2
    if mode == "error":
        with pytest.raises(TableExistsError):
            lakelog.write(tmp_path, MORE, mode)
        assert ids(tmp_path) == [1, 2]
        return
    report = lakelog.write(tmp_path, MORE, mode, user_metadata="second")
    kept = {"append": [1, 2, 3], "overwrite": [3], "ignore": [1, 2]}
    assert ids(tmp_path) == kept[mode]
    assert report.version == (None if mode == "ignore" else 1)


def test_rows_that_match_a_condition_are_replaced(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS, "overwrite", where="day = 'a' or day = 'b'")
    lakelog.write(tmp_path, MORE, "overwrite", where="day = 'b'")
    assert ids(tmp_path) == [1, 3]
    with pytest.raises(InvalidInputError, match="overwrite"):
        lakelog.write(tmp_path, MORE, where="day = 'b'")
    for where in ("day = 'a'", "nope = 1"):
        with pytest.raises(InvalidInputError):
            lakelog.write(tmp_path / "new", ROWS, "overwrite", where=where)
    assert not list((tmp_path / "new").rglob("*.*"))


def test_arguments_that_contradict_the_table_raise(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        lakelog.write(tmp_path / "none", ROWS, version=3)
    lakelog.write(tmp_path, ROWS, partition_by=["day"])
    for mode in ("append", "overwrite"):
        with pytest.raises(InvalidInputError, match="partitioned by other columns"):
            lakelog.write(tmp_path, MORE, mode, ["id"])
    with pytest.raises(InvalidInputError, match="mode must be"):
        lakelog.write(tmp_path, MORE, "upsert")  # type: ignore[arg-type] # the point
    assert not (tmp_path / "none").exists()


def test_writers_that_create_the_table_at_the_same_time_all_write(tmp_path: Path) -> None:
    def work(number: int) -> None:
        lakelog.write(tmp_path, pl.DataFrame({"id": [number], "day": ["a"]}), upkeep=False)

    run_concurrently(*(partial(work, number) for number in range(4)))
    assert ids(tmp_path) == [0, 1, 2, 3]


class _OtherCreatorFirst(StoreWrapper):
    """A store in which another writer creates the table just before this one commits."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.endswith("0.json"):
            lakelog.create(self.root, ROWS.schema, mode="ignore", upkeep=False)
        return super().put_if_absent(path, data)


def test_rows_of_a_frame_are_written_again_if_another_writer_creates_the_table(
    tmp_path: Path,
) -> None:
    report = lakelog.write(
        None, ROWS, store=_OtherCreatorFirst(open_store(str(tmp_path))), upkeep=False
    )
    assert report.version == 1
    assert ids(tmp_path) == [1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_rows_of_a_stream_conflict_if_another_writer_creates_the_table(tmp_path: Path) -> None:
    stream = ROWS.to_arrow().to_reader()
    with pytest.raises(ConflictError, match="another writer created the table"):
        lakelog.write(
            None, stream, store=_OtherCreatorFirst(open_store(str(tmp_path))), upkeep=False
        )
    assert lakelog.open(tmp_path).version() == 0
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.enableInCommitTimestamps": "true", "delta.enableRowTracking": "true"},
        {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
        {"delta.enableChangeDataFeed": "true"},
    ],
    ids=["tracked", "mapped", "feed"],
)
def test_new_table_with_features_has_its_rows_in_the_first_commit(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    given: Any = {"user_name": "ann", "app_id": "job", "app_version": 3}
    lakelog.write(tmp_path, ROWS, partition_by=["day"], configuration=properties, **given)
    table = lakelog.open(tmp_path)
    assert table.version() == 0
    assert table.history()["userName"].to_list() == ["ann"]
    assert lakelog.write(tmp_path, ROWS, **given).duplicate
    assert table.to_polars().sort("id").equals(ROWS)
    assert table.changes(0).collect()["_change_type"].to_list() == ["insert", "insert"]
    if "delta.columnMapping.mode" not in properties:  # deltalake cannot read it
        assert pl.read_delta(str(tmp_path)).sort("id").equals(ROWS)
    if "delta.enableRowTracking" in properties:
        assert table.snapshot().files().collect()["baseRowId"].sort().to_list() == [0, 1]


def test_rows_of_a_new_table_satisfy_its_constraints(tmp_path: Path) -> None:
    rule = {"delta.constraints.c": "id > 1"}
    with pytest.raises(lakelog.ConstraintViolationError):
        lakelog.write(tmp_path, ROWS, configuration=rule)
    assert not list(tmp_path.rglob("*.*"))
    assert lakelog.write(tmp_path, MORE, configuration=rule).version == 0


def test_location_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("id\n1\n")
    lakelog.write(tmp_path / "t", ROWS)
    for call in (
        lakelog.open,
        partial(lakelog.create, schema={"id": pl.Int64}),
        partial(lakelog.write, df=ROWS),
        lakelog.convert,
        lakelog.open(tmp_path / "t").clone,
    ):
        for location in (file, file.as_uri(), file / "deep" / "table"):
            with pytest.raises(InvalidInputError, match="the location is a file") as error:
                call(location)
            assert error.value.path == str(file)
    assert file.read_text() == "id\n1\n"


def test_every_call_stores_the_values_of_encoded_columns(tmp_path: Path) -> None:
    texts = pa.array(["a", "b"], pa.string_view())
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), texts)
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "text": encoded,
            "runs": pa.RunEndEncodedArray.from_arrays([2, 3], texts),
            "view": pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
            "inner": pa.StructArray.from_arrays([encoded], ["x"]),
        }
    )
    plain = pl.DataFrame(
        {
            "id": [1, 2, 3],
            "text": ["a", "b", "a"],
            "runs": ["a", "a", "b"],
            "view": [[1], [2, 3], None],
            "inner": [{"x": "a"}, {"x": "b"}, {"x": "a"}],
        }
    )
    lakelog.write(tmp_path / "t", rows, partition_by=["text"])
    table = lakelog.open(tmp_path / "t")
    assert table.to_polars().sort("id").equals(plain)
    table.overwrite(rows.to_reader())
    table.append(rows[1:])
    assert table.to_polars().sort("id").equals(plain[[0, 1, 1, 2, 2]])
    table.delete("id > 0")
    table.upsert(rows, on=["id"])
    table.upsert(rows[1:], on=["id"])
    assert table.to_polars().sort("id").equals(plain)
    table.delete("id > 0")
    with lakelog.Ingestor(table, tmp_path / "wal") as ingestor:
        ingestor.write(rows)
    assert lakelog.open(tmp_path / "t").to_polars().sort("id").equals(plain)


INTERVAL = pa.array([pa.MonthDayNano([1, 2, 3])])


@pytest.mark.parametrize(
    ("values", "column", "hint"),
    [
        (INTERVAL, "c", "months, days and nanoseconds"),
        (pa.ListArray.from_arrays([0, 1], INTERVAL), "c.element", "months"),
        (pa.array([[None]], pa.list_(pa.null())), "c.element", "nulls only"),
        (pa.array([{"x": None}]), "c.x", "nulls only"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.duration("us"))), "c.value", "durations"),
        (pa.array([1], pa.time64("us")), "c", "times of day"),
        (pa.array([1.5], pa.float16()), "c", "Float32"),
        (pa.array([1], pa.uint64()), "c", "Int64"),
    ],
)
def test_type_that_a_table_cannot_have_is_named_with_what_to_pass(
    tmp_path: Path, values: pa.Array, column: str, hint: str
) -> None:
    rows = pa.table({"id": [1], "c": values})
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64})
    merge = table.merge(rows, on="id", schema_mode="merge").when_not_matched_insert_all()
    for call in (
        partial(lakelog.write, tmp_path / "new", rows),
        partial(table.append, rows, schema_mode="merge"),
        partial(table.overwrite, rows, schema_mode="overwrite"),
        merge.execute,
    ):
        with pytest.raises(InvalidInputError, match="no equivalent") as error:
            call()
        assert error.value.column == column
        assert hint in str(error.value.hint)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "rows",
    [
        pl.LazyFrame(schema={"x": pl.Int64, "z": pl.Int64}),
        pl.LazyFrame(schema={"x": pl.String}),
        pa.schema([("z", pa.int64())]).empty_table().to_reader(),
        pa.schema([("x", pa.list_(pa.int64()))]).empty_table().to_reader(),
    ],
)
def test_columns_of_a_stream_without_rows_are_checked(tmp_path: Path, rows: Any) -> None:
    table = lakelog.create(tmp_path, {"x": pl.Int64}, upkeep=False)
    with pytest.raises(InvalidInputError, match=r"no column 'z'|has another type"):
        table.append(rows)


def test_stream_without_rows_may_have_any_type(tmp_path: Path) -> None:
    type_ = pa.list_(pa.run_end_encoded(pa.int32(), pa.int64()))
    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", type_)]), [])
    report = lakelog.write(tmp_path, reader)
    assert report.num_rows == 0


def test_periods_of_pandas_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.period_range("2020-01", periods=2, freq="M")})
    table = lakelog.create(tmp_path / "t", {"x": pl.Int64}, upkeep=False)
    new = partial(lakelog.write, tmp_path / "new")
    for write in (table.append, new):
        with pytest.raises(InvalidInputError, match="periods") as error:
            write(frame)
        assert "to_timestamp" in str(error.value.hint)
    assert not (tmp_path / "new" / "_delta_log").exists()
    new(frame.assign(x=frame["x"].dt.to_timestamp()))


def test_columns_without_a_type_are_left_out_of_a_new_table(tmp_path: Path) -> None:
    with pytest.warns(LakelogWarning, match="'nothing': a column that holds nulls only"):
        lakelog.write(tmp_path, ROWS.with_columns(nothing=pl.lit(None)))
    assert lakelog.open(tmp_path).to_polars().sort("id").equals(ROWS)


@pytest.mark.parametrize("kind", ["fail", "lost"])
def test_repeated_write_completes_after_a_failure_of_any_operation(
    tmp_path: Path, kind: Any
) -> None:
    for nth in range(1, 40):
        inner = open_store(str(tmp_path / str(nth)))
        store = InjectingStore(inner, [Rule(kind, nth=nth)])
        try:
            lakelog.write(None, ROWS, store=store, upkeep=False, app_id="w", app_version=1)
        except (LakelogError, OSError):
            lakelog.write(None, ROWS, store=inner, upkeep=False, app_id="w", app_version=1)
        assert ids(tmp_path / str(nth)) == [1, 2]
        if len(store.operations) < nth:
            return
    pytest.fail("a write has fewer operations")


def test_create_of_an_existing_table_raises_or_is_ignored(tmp_path: Path) -> None:
    lakelog.create(tmp_path, ROWS.schema, ["day"]).append(ROWS)
    with pytest.raises(TableExistsError):
        lakelog.create(tmp_path, MORE.schema)
    opened = lakelog.create(tmp_path, {"other": pl.Int64}, mode="ignore")
    assert opened.to_polars().sort("id").equals(ROWS)
    lakelog.create(tmp_path / "i", ROWS.schema, format="indextables")
    assert lakelog.create(tmp_path / "i", ROWS.schema, mode="ignore").format == "indextables"


SECOND = {"delta.deletedFileRetentionDuration": "interval 8 days"}
OTHERS = pl.DataFrame(schema={"other": pl.Int64, "id": pl.String})


def test_creating_with_mode_overwrite_replaces_the_table_in_one_commit(tmp_path: Path) -> None:
    for root, create in ((tmp_path / "ours", lakelog.create), (tmp_path / "theirs", None)):
        lakelog.create(
            root,
            ROWS.schema,
            ["day"],
            configuration={"delta.logRetentionDuration": "interval 9 days"},
        ).append(ROWS)
        if create is not None:
            replaced = create(
                root,
                OTHERS.schema,
                ["other"],
                configuration=SECOND,
                name="second",
                mode="overwrite",
            )
        else:
            deltalake.DeltaTable.create(
                str(root),
                OTHERS.to_arrow().schema,
                partition_by=["other"],
                configuration=SECOND,
                name="second",
                mode="overwrite",
            )
            replaced = lakelog.open(root)
        snapshot = replaced.snapshot()
        assert snapshot.version == 2
        assert (snapshot.num_files(), snapshot.schema.names) == (0, ("other", "id"))
        assert snapshot.metadata.partition_columns == ("other",)
        assert snapshot.metadata.configuration == SECOND
        assert snapshot.metadata.name == "second"
        assert replaced.history()["operation"][0] == "CREATE OR REPLACE TABLE"
        assert replaced.snapshot(version=1).to_polars().sort("id").equals(ROWS)
        replaced.append(pl.DataFrame({"other": [1], "id": ["x"]}))
        assert pl.read_delta(str(root)).rows() == [(1, "x")]


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.columnMapping.mode": "name"},
        {"delta.enableChangeDataFeed": "true"},
        {"delta.enableRowTracking": "true"},
        {"delta.enableInCommitTimestamps": "true"},
    ],
    ids=["mapped", "feed", "tracked", "timestamps"],
)
def test_table_with_features_is_replaced_and_stays_readable(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    first = lakelog.create(tmp_path, ROWS.schema, ["day"], configuration=properties)
    first.append(ROWS)
    replaced = lakelog.create(tmp_path, OTHER.schema, mode="overwrite")
    kept = properties.items() & replaced.snapshot().metadata.configuration.items()
    assert bool(kept) == ("delta.enableChangeDataFeed" not in properties)
    replaced.append(OTHER)
    assert replaced.to_polars().equals(OTHER)
    assert replaced.snapshot(version=1).to_polars().sort("id").equals(ROWS)
    assert replaced.snapshot().metadata.id == first.snapshot(version=1).metadata.id


def test_replacing_an_append_only_table_or_another_format_raises(tmp_path: Path) -> None:
    lakelog.write(tmp_path / "a", ROWS, configuration={"delta.appendOnly": "true"})
    with pytest.raises(InvalidTransactionError, match="append"):
        lakelog.create(tmp_path / "a", MORE.schema, mode="overwrite")
    lakelog.create(tmp_path / "i", ROWS.schema, format="indextables")
    with pytest.raises(TableExistsError, match="indextables"):
        lakelog.create(tmp_path / "i", MORE.schema, mode="overwrite")
    assert ids(tmp_path / "a") == [1, 2]


# --- schema_mode="overwrite" ---------------------------------------------------------------------

OTHER = pl.DataFrame({"day": [1.5], "id": ["x"], "new": [True]})


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.columnMapping.mode": "name"},
        {"delta.enableChangeDataFeed": "true"},
        {"delta.enableRowTracking": "true"},
    ],
    ids=["plain", "mapped", "feed", "tracked"],
)
def test_schema_and_partitioning_change_with_the_rows_in_one_commit(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    table = lakelog.create(tmp_path, ROWS.schema, ["day"], configuration=properties)
    table.append(ROWS)
    report = table.overwrite(OTHER, schema_mode="overwrite", partition_by=["new"])
    assert (report.version, report.num_removed_files) == (2, 2)
    assert table.snapshot().metadata.partition_columns == ("new",)
    assert table.to_polars().equals(OTHER)
    assert table.snapshot(1).to_polars().sort("id").equals(ROWS)
    if not properties:
        assert pl.read_delta(str(tmp_path)).equals(OTHER)
    assert commit_info(tmp_path, 2)["operationParameters"]["partitionBy"] == '["new"]'


@pytest.mark.parametrize(
    ("columns", "remains"), [(["id", "day"], True), (["day"], False)], ids=["same", "without"]
)
def test_replaced_table_is_not_clustered_by_columns_that_it_lacks(
    tmp_path: Path, columns: list[str], remains: bool
) -> None:
    handmade = Handmade(tmp_path)
    clustering = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["id"]]}'}
    handmade.commit(
        0,
        protocol(1, 7, writerFeatures=["clustering", "domainMetadata"]),
        metadata(field("id"), field("day", "string")),
        {"domainMetadata": {**clustering, "removed": False}},
    )
    handmade.table.append(ROWS)
    handmade.table.overwrite(ROWS.select(columns), schema_mode="overwrite")
    domains = handmade.table.snapshot().domains().select("domain").collect().rows()
    assert domains == [("delta.clustering",)] * remains
    lakelog.create(tmp_path, ROWS.schema, mode="overwrite")
    assert handmade.table.snapshot().domains().collect().height == 0
    assert handmade.table.append(ROWS).version == 4


def test_one_column_may_be_given_as_text(tmp_path: Path) -> None:
    lakelog.write(tmp_path / "t", ROWS, partition_by="day")
    lakelog.write(tmp_path / "t", MORE, partition_by="day")
    table = lakelog.open(tmp_path / "t")
    assert table.to_polars(columns="id").columns == ["id"]
    assert table.snapshot().to_arrow(columns="day").column_names == ["day"]
    assert table.to_pandas(columns="id").columns.tolist() == ["id"]
    states = table.snapshot().iter_state(columns="path")
    assert {name for batch in states for name in batch.columns} == {"path"}
    with pytest.raises(InvalidInputError, match="no column ''"):
        table.to_polars(columns="")
    changed = ROWS.with_columns(day=pl.lit("c"))
    merge = table.merge(changed, on="id").when_matched_update_all(except_cols="day")
    merge.when_not_matched_insert_all(except_cols="day").execute()
    assert table.to_polars()["day"].sort().to_list() == ["a", "b", "b"]
    table.compact(zorder_by="id")
    table.overwrite(ROWS, schema_mode="overwrite", partition_by="id")
    assert table.snapshot().metadata.partition_columns == ("id",)
    created = lakelog.create(tmp_path / "c", {"id": pl.Int64, "day": pl.String}, "day")
    with created.transaction() as tx:
        tx.set_metadata(partition_by="id")
    assert created.snapshot().metadata.partition_columns == ("id",)
    (tmp_path / "files/day=1").mkdir(parents=True)
    MORE.select("id").write_parquet(tmp_path / "files/day=1/x.parquet")
    assert lakelog.convert(tmp_path / "files", "day").partition_by == ("day",)


def test_partitioning_is_kept_unless_it_is_given(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS, partition_by=["day"])
    wide = ROWS.with_columns(more=pl.lit(1))
    lakelog.write(tmp_path, wide, "overwrite", schema_mode="overwrite")
    assert lakelog.open(tmp_path).snapshot().metadata.partition_columns == ("day",)
    lakelog.write(tmp_path, wide, "overwrite", [], schema_mode="overwrite")
    assert lakelog.open(tmp_path).snapshot().metadata.partition_columns == ()
    assert deltalake.DeltaTable(tmp_path).metadata().partition_columns == []


def test_schema_overwrite_that_keeps_rows_raises(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS, partition_by=["day"])
    table = lakelog.open(tmp_path)
    with pytest.raises(InvalidInputError, match="replaces all rows"):
        table.overwrite(OTHER, "day = 'a'", schema_mode="overwrite")
    with pytest.raises(InvalidInputError, match="replaces all rows"):
        table.append(OTHER, schema_mode="overwrite")
    with pytest.raises(InvalidInputError, match="partitioned by other columns"):
        table.overwrite(ROWS, partition_by=["id"])
    with pytest.raises(InvalidInputError, match="lack a partition column"):
        table.overwrite(OTHER.drop("day"), schema_mode="overwrite")
    assert ids(tmp_path) == [1, 2]
    assert table.version() == 0


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("append", [MORE]),
        ("overwrite", [MORE]),
        ("overwrite_partitions", [MORE]),
        ("delete", ["id = 1"]),
        ("update", [{"id": 1}]),
        ("merge", [MORE, "id"]),
        ("upsert", [MORE, "id"]),
    ],
)
def test_unknown_argument_raises_a_type_error_of_the_verb(
    tmp_path: Path, verb: str, given: list[Any]
) -> None:
    table = lakelog.create(tmp_path / "t", MORE.schema)
    with pytest.raises(TypeError, match=rf"^Table\.{verb}\(\) got an unexpected .* 'colour'$"):
        getattr(table, verb)(*given, colour=1)
    assert table.version() == 0


def test_unknown_argument_of_write_creates_no_table(tmp_path: Path) -> None:
    unknown: Any = {"colour": 1}
    with pytest.raises(TypeError, match=r"^write\(\) got an unexpected keyword argument 'colour'$"):
        lakelog.write(tmp_path / "t", pl.DataFrame({"id": [1]}), **unknown)
    assert not (tmp_path / "t").exists()


def test_compact_and_restore_describe_their_commits(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    table.append(ROWS)
    given: Any = {"user_name": "ann", "user_metadata": "why", "commit_info": {"ticket": "T-1"}}
    table.compact(**given)
    table.restore(0, operation="UNDO", **given)
    for version, operation in ((2, "OPTIMIZE"), (3, "UNDO")):
        info = commit_info(tmp_path, version)
        assert info["operation"] == operation
        assert (info["userName"], info["userMetadata"], info["ticket"]) == ("ann", "why", "T-1")
    calls: list[Any] = [table.compact, lambda **more: table.restore(1, **more)]
    for call in calls:
        with pytest.raises(TypeError, match=r"Table\.\w+\(\) got an unexpected .* 'app_id'"):
            call(app_id="x")


DAY = dt.date(2026, 1, 1)
TIME = pd.Timestamp("2026-01-01 05:00")
MIXED: list[list[Any]] = [
    [DAY, dt.datetime(2026, 1, 2, 23, 4)],
    [TIME, TIME.tz_localize("Europe/Berlin")],
    [1, 1.5, None, True],
    [True, 1],
    [1, "a"],
    [2**70],
    [1j],
]


@pytest.mark.parametrize("values", MIXED, ids=str)
def test_column_of_pandas_with_values_of_several_types_is_refused(
    tmp_path: Path, values: list[Any]
) -> None:
    objects = pd.Series(values, dtype=object)
    frames = [pd.DataFrame({"n": 1, "c": objects}), pd.DataFrame({"n": 1}, index=pd.Index(objects))]
    frames[1].index.name = "c"
    for frame in frames:
        with pytest.raises(InvalidInputError, match="'c' of the pandas frame") as refused:
            lakelog.write(tmp_path / "t", frame)
        assert refused.value.column == "c"
        assert "frame.astype({'c': str})" in str(refused.value.hint)
    assert not (tmp_path / "t").exists()


NESTED: dict[str, list[Any]] = {
    "c.element": [[DAY, None], None, [DAY, dt.datetime(2026, 1, 2, 23, 4)]],
    "c.day": [{"day": DAY}, None, {"day": dt.datetime(2026, 1, 2, 23, 4), "n": 1}],
    "c.element.at": [[{"at": TIME}], np.array([{"at": TIME.tz_localize("UTC")}], dtype=object)],
    "c.ratio.element": [{"ratio": [0.5]}, {"ratio": (1.5, True)}],
}


@pytest.mark.parametrize("column", NESTED)
def test_lists_and_dicts_of_pandas_with_values_of_several_types_are_refused(
    column: str, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"n": 1, "c": pd.Series(NESTED[column], dtype=object)})
    with pytest.raises(InvalidInputError, match=f"'{column}' of the pandas frame") as refused:
        lakelog.write(tmp_path / "t", frame)
    assert refused.value.column == column
    assert not (tmp_path / "t").exists()


def test_lists_and_dicts_of_pandas_that_arrow_converts_without_loss_are_written(
    tmp_path: Path,
) -> None:
    columns = {
        "days": [[DAY, pd.NaT, np.nan], None],
        "number": [{"a": [1.5, 2]}, {"a": np.array([True, False])[:0]}],
        "flags": [np.array([True, False]), []],
    }
    frame = pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in columns.items()})
    lakelog.write(tmp_path, frame)
    assert lakelog.open(tmp_path).to_polars().to_dict(as_series=False) == {
        "days": [[DAY, None, None], None],
        "number": [{"a": [1.5, 2]}, {"a": []}],
        "flags": [[True, False], []],
    }


def test_texts_inside_lists_and_dicts_of_pandas_are_not_read_one_by_one(tmp_path: Path) -> None:
    class Texts(list[str]):
        """Arrow reads lists in C."""

        def __iter__(self) -> Iterator[str]:
            raise AssertionError

    columns = {"a": [Texts(["x", "y"])], "b": [{"c": Texts(["z"]), "n": 1}]}
    frame = pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in columns.items()})
    lakelog.write(tmp_path, frame)
    rows = lakelog.open(tmp_path).to_polars().to_dicts()
    assert rows == [{"a": ["x", "y"], "b": {"c": ["z"], "n": 1}}]


def test_frame_of_a_subclass_of_pandas_is_written_as_one_of_pandas(tmp_path: Path) -> None:
    class Frame(pd.DataFrame):  # type: ignore[misc]
        """As geopandas and others have it."""

    lakelog.write(tmp_path, Frame({"id": [1, 2]}, index=pd.Index([5, 6])))
    table = lakelog.open(tmp_path)
    assert table.to_polars().to_dict(as_series=False) == {"id": [1, 2]}
    with pytest.raises(InvalidInputError, match="'id' of the pandas frame mixes types"):
        table.append(Frame({"id": pd.Series([DAY, TIME], dtype=object)}))


def test_column_of_pandas_with_values_that_arrow_converts_without_loss_is_written(
    tmp_path: Path,
) -> None:
    columns = {
        "day": [DAY, pd.NaT],
        "time": [TIME, None],
        "number": [1, 1.5],
        "flag": [True, None],
    }
    lakelog.write(
        tmp_path, pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in columns.items()})
    )
    assert lakelog.open(tmp_path).to_polars().to_dict(as_series=False) == {
        "day": [DAY, None],
        "time": [TIME.to_pydatetime(), None],
        "number": [1.0, 1.5],
        "flag": [True, None],
    }


def test_sparse_column_of_pandas_is_refused_with_the_way_to_make_it_dense(tmp_path: Path) -> None:
    frame = pd.DataFrame({"c": pd.arrays.SparseArray([1, 0])})
    with pytest.raises(InvalidInputError, match=r"frame\['c'\].sparse.to_dense") as refused:
        lakelog.write(tmp_path, frame)
    assert refused.value.column == "c"


def test_table_instead_of_a_path_is_refused_with_its_own_method(tmp_path: Path) -> None:
    table: Any = lakelog.create(tmp_path, ROWS.schema, upkeep=False)
    with pytest.raises(InvalidInputError, match=r"use its method, such as table\.append"):
        lakelog.write(table, ROWS)


def test_error_of_an_object_that_cannot_give_its_rows_has_the_reason(tmp_path: Path) -> None:
    def lost(_: object = None) -> None:
        raise ValueError("connection lost")

    rows = SimpleNamespace(__arrow_c_stream__=lost)
    with pytest.raises(InvalidInputError, match="not a table of rows: connection lost"):
        lakelog.write(tmp_path / "t", rows)
