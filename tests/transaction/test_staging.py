"""Staging: every form of an action or a table of actions becomes the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog import InvalidInputError
from lakelog.model import actions
from lakelog.transaction.action_input import MAP, map_column, rows_frame, stage_one, stage_table
from tests.steps import assert_columnar

COLUMNS = ("actionType", "path", "partitionValues", "size", "tags", "dvStorageType", "dvId")


def staged(table: Any, kind: str = "add", form: str = "delta", **fields: Any) -> list[Any]:
    return actions.conform(stage_table(form, kind, table, fields), COLUMNS).rows()


ROW = ("add", "a", {"day": "x"}, 3, {"k": "v"}, "u", "uabc@4")


def nested() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "path": ["a"],
            "partitionValues": [{"day": "x"}],
            "size": [3],
            "tags": [{"k": "v"}],
            "deletionVector": [{"storageType": "u", "pathOrInlineDv": "abc", "offset": 4}],
        }
    )


def flattened() -> pl.DataFrame:
    maps = [pl.Series(name, [{k: v}], dtype=MAP) for name, k, v in MAPS]
    plain = {
        "path": ["a"],
        "size": [3],
        "dvStorageType": ["u"],
        "dvPathOrInline": ["abc"],
        "dvOffset": [4],
    }
    return pl.DataFrame(plain).with_columns(maps)


MAPS = (("partitionValues", "day", "x"), ("tags", "k", "v"))


def test_keywords_and_tables_of_every_kind_stage_the_same_row() -> None:
    one = stage_one(
        "delta",
        "add",
        {
            "path": "a",
            "partitionValues": {"day": "x"},
            "size": 3,
            "tags": {"k": "v"},
            "deletionVector": {"storageType": "u", "pathOrInlineDv": "abc", "offset": 4},
        },
    )
    assert actions.conform(rows_frame([one]), COLUMNS).rows() == [ROW]
    frame = nested()
    pairs = frame.with_columns(
        pl.Series("partitionValues", [[{"key": "day", "value": "x"}]]),
        pl.Series("tags", [[{"key": "k", "value": "v"}]]),
    )
    for table in (
        frame,
        frame.lazy(),
        frame.to_arrow(),
        frame.to_arrow().to_reader(),
        frame.to_arrow().to_batches()[0],
        frame.to_pandas(),
        flattened(),
        flattened().to_arrow(),
        pairs,
    ):
        assert staged(table) == [ROW], type(table)


def test_flattened_field_names_are_accepted_for_one_action() -> None:
    fields = {"path": "a", "dvStorageType": "i", "dvPathOrInline": "x", "dvSizeInBytes": 1}
    row = rows_frame([stage_one("delta", "remove", fields)])
    assert row["dvId"].to_list() == ["ix"]


@pytest.mark.parametrize(
    ("kind", "form", "name"),
    [
        ("add", "delta", "pathh"),
        ("add", "delta", "deletionTimestamp"),
        ("add", "delta", "footerStartOffset"),
        ("remove", "indextables", "deletionVector"),
        ("txn", "delta", "path"),
        ("add", "delta", "partition.day"),
    ],
)
def test_unknown_field_raises_and_is_named(kind: str, form: str, name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"'{name}'") as one:
        stage_one(form, kind, {name: 1})
    assert one.value.found == name
    with pytest.raises(InvalidInputError, match=f"'{name}'"):
        stage_table(form, kind, pl.DataFrame({"path": ["a"], name: [1]}))


def test_unknown_field_of_a_nested_object_raises_and_is_named() -> None:
    with pytest.raises(InvalidInputError, match="'size'"):
        stage_one("delta", "add", {"deletionVector": {"size": 1}})
    with pytest.raises(InvalidInputError, match="'size'"):
        staged(pl.DataFrame({"path": ["a"], "deletionVector": [{"size": 1}]}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", 1),
        ("size", "1"),
        ("size", 1.0),
        ("size", True),
        ("size", 1 << 63),
        ("dataChange", 1),
        ("tags", "x"),
        ("tags", {1: "x"}),
        ("tags", {"x": object()}),
        ("deletionVector", "x"),
        ("deletionVector", {"offset": 1 << 31}),
        ("stats", 3),
    ],
)
def test_value_of_the_wrong_type_raises(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError):
        stage_one("delta", "add", {"path": "a", name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("path", [1]),
        ("size", ["1"]),
        ("size", [1.5]),
        ("size", [1 << 64]),
        ("dataChange", [1]),
        ("tags", ["x"]),
        ("deletionVector", ["x"]),
    ],
)
def test_column_of_the_wrong_type_raises(name: str, values: list[Any]) -> None:
    columns = {"path": ["a"]} | {name: values}
    if values == [1 << 64]:
        table = pl.DataFrame({"path": ["a"], "size": pl.Series([1 << 63], dtype=pl.UInt64)})
    else:
        table = pl.DataFrame(columns)
    with pytest.raises(InvalidInputError, match=name):
        staged(table)


def test_narrower_and_pandas_numbers_are_converted_exactly() -> None:
    small = pl.DataFrame({"path": ["a"], "size": pl.Series([7], dtype=pl.UInt8)})
    assert staged(small)[0][3] == 7
    holes = pd.DataFrame({"path": ["a", "b"], "size": [7, None]})
    assert [row[3] for row in staged(holes)] == [7, None]
    timed = pl.DataFrame(
        {"path": ["a"], "modificationTime": [dt.datetime(1970, 1, 2, tzinfo=dt.UTC)]}
    )
    assert stage_table("delta", "add", timed)["modificationTime"].to_list() == [86_400_000]


def test_partition_values_are_serialized_as_in_the_protocol() -> None:
    values = {
        "i": 1,
        "b": True,
        "d": dt.date(2024, 2, 29),
        "t": dt.datetime(2024, 1, 1, 1, 2, 3, 4),
        "u": dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        "n": None,
    }
    expected = {
        "i": "1",
        "b": "true",
        "d": "2024-02-29",
        "t": "2024-01-01 01:02:03.000004",
        "u": "2024-01-01T00:00:00.000000Z",
        "n": None,
    }
    one = stage_one("delta", "add", {"path": "a", "partitionValues": values})
    assert one["partitionValues"] == expected
    table = pl.DataFrame({"path": ["a"], "partitionValues": [values]})
    assert stage_table("delta", "add", table)["partitionValues"].to_list() == [expected]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # Spark reads a year of three digits as an invalid timestamp.
        (dt.datetime(999, 1, 1), "0999-01-01 00:00:00.000000"),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), "0001-01-01T00:00:00.000000Z"),
        (pd.Timestamp("2024-01-01 00:00:00.123456789"), "2024-01-01 00:00:00.123456"),
        (pd.NaT, None),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.10"), "-0.10"),
    ],
)
def test_partition_value_of_a_single_action_is_serialized(value: Any, text: str | None) -> None:
    row = stage_one("delta", "add", {"path": "a", "partitionValues": {"p": value}})
    assert row["partitionValues"] == {"p": text}


def test_timestamp_before_the_year_1_raises() -> None:
    east = dt.timezone(dt.timedelta(hours=5))
    with pytest.raises(InvalidInputError, match="cannot be converted"):
        stage_one("delta", "add", {"partitionValues": {"p": dt.datetime(1, 1, 1, tzinfo=east)}})


def test_nulls_of_a_struct_are_kept_in_partition_values_and_dropped_from_tags() -> None:
    frame = pl.DataFrame(
        {"path": ["a", "b"], "partitionValues": [{"x": None}] * 2, "tags": [{"x": None}, None]}
    )
    rows = stage_table("delta", "add", frame)
    assert rows["partitionValues"].to_list() == [{"x": None}] * 2
    assert rows["tags"].to_list() == [{}, None]


@given(
    st.lists(
        st.none() | st.dictionaries(st.sampled_from("abc"), st.none() | st.text(max_size=2)),
        min_size=1,
        max_size=8,
    )
)
def test_lists_of_pairs_are_converted_to_maps_without_change(
    maps: list[dict[str, str | None] | None],
) -> None:
    pairs = [None if m is None else [{"key": k, "value": v} for k, v in m.items()] for m in maps]
    inner = pl.Struct({"key": pl.String, "value": pl.String})
    column = pl.Series("x", pairs, dtype=pl.List(inner))
    assert map_column(column, keep_nulls=True).to_list() == maps
    typed = pa.array(
        [None if m is None else list(m.items()) for m in maps],
        pa.map_(pa.string(), pa.large_string()),
    )
    assert map_column(pl.Series(typed).alias("x"), keep_nulls=True).to_list() == maps


def test_two_columns_for_one_field_raise() -> None:
    frame = pl.DataFrame({"path": ["a"], "reason": ["x"], "skipReason": ["y"]})
    with pytest.raises(InvalidInputError, match="skipReason"):
        stage_table("indextables", "mergeskip", frame)


def test_remove_of_a_live_file_drops_the_fields_of_an_add() -> None:
    live = pl.DataFrame(
        {
            "path": ["a"],
            "size": [1],
            "modificationTime": [5],
            "clusteringProvider": ["x"],
            "dataChange": [False],
            "version": [3],
            "dvId": [None],
            "extra": [None],
        }
    )
    row = stage_table("delta", "remove", live)
    assert row.columns == ["actionType", "path", "size"]


def test_keyword_value_applies_to_every_row() -> None:
    frame = stage_table("delta", "add", pl.DataFrame({"path": ["a", "b"]}), {"size": 4})
    assert frame["size"].to_list() == [4, 4]


def test_invalid_table_of_actions_raises() -> None:
    for table in ([{"path": "a"}], Path("a"), 3):
        with pytest.raises(InvalidInputError, match="invalid table of actions"):
            stage_table("delta", "add", table)


def test_action_that_the_format_lacks_raises() -> None:
    with pytest.raises(InvalidInputError, match="no mergeskip"):
        stage_one("delta", "mergeskip", {"path": "a"})
    with pytest.raises(InvalidInputError, match="no txn"):
        stage_one("indextables", "txn", {"appId": "a"})


def test_adds_are_staged_without_a_loop_over_rows() -> None:
    def stage(count: int) -> Callable[[], pl.DataFrame]:
        frame = pl.select(
            pl.format("day=x/part-{}.parquet", pl.int_range(count)).alias("path"),
            pl.int_range(count).alias("size"),
            pl.struct(pl.int_range(count).alias("day")).alias("partitionValues"),
        )
        return lambda: stage_table("delta", "add", frame)

    assert stage(3)()["partitionValues"][2] == {"day": "2"}
    assert_columnar(stage)


@pytest.mark.parametrize(
    "row",
    [
        {"path": "p=\ud800"},
        {"path": "a", "partitionValues": {"p": "\udfff"}},
        {"path": "a", "tags": {"\ud800": "x"}},
        {"path": "a", "splitTags": ["\ud800"]},
    ],
)
def test_unpaired_surrogate_raises(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="has the wrong type"):
        rows_frame([{"actionType": "add", **row}])


def test_statistics_that_json_cannot_represent_raise() -> None:
    with pytest.raises(InvalidInputError, match="'stats' has the wrong type"):
        stage_one("delta", "add", {"path": "a", "stats": {"numRecords": {1}}})


def test_num_records_outside_the_statistics_raises() -> None:
    with pytest.raises(InvalidInputError, match="it is a part of stats"):
        stage_one("delta", "add", {"path": "a", "numRecords": 3})
    row = stage_one("delta", "add", {"path": "a", "stats": {"numRecords": 3}})
    assert row["stats"] == '{"numRecords":3}'
