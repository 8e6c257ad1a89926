"""The flattened table: its schema, and the conversion of frames to it."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from lakelog.model import actions, contract


def test_schema_has_the_fields_of_the_contract_in_order() -> None:
    fields = contract.load("actions").fields
    assert list(actions.schema()) == [f.name for f in fields]
    assert actions.schema()["tags"] == pl.Map(pl.String, pl.String)
    assert actions.schema()["size"] == pl.Int64


def test_conform_adds_missing_columns_and_drops_unrequested_ones() -> None:
    frame = pl.DataFrame({"path": ["a", "b"], "size": [1, 2], "scratch": [0, 0]})
    found = actions.conform(frame, ["size", "tags", "path"])
    assert found.schema == {
        "size": pl.Int64,
        "tags": pl.Map(pl.String, pl.String),
        "path": pl.String,
    }
    assert found["tags"].to_list() == [None, None]


@pytest.mark.parametrize("height", [0, 1, 3])
def test_conform_keeps_the_height_if_every_column_is_missing(height: int) -> None:
    frame = pl.DataFrame({"scratch": [0] * height})
    assert actions.conform(frame, ["path", "size"]).shape == (height, 2)


def test_conform_casts_to_the_type_of_the_contract() -> None:
    found = actions.conform(pl.DataFrame({"size": pl.Series([1], dtype=pl.Int16)}), ["size"])
    assert found.schema == {"size": pl.Int64}
    nulls = actions.conform(pl.DataFrame({"extra": [None]}), ["extra"])
    assert nulls.schema == {"extra": pl.String}


def test_concat_fills_missing_columns_with_null() -> None:
    a = pl.DataFrame({"path": ["a"], "size": [1]})
    b = pl.DataFrame({"path": ["b"], "dvId": ["v"]})
    found = actions.concat([a, actions.empty(), b])
    assert found.rows() == [("a", 1, None), ("b", None, "v")]
    assert actions.concat([a, a.clear()]) is a


@given(
    st.lists(st.sampled_from(["add", "remove", "txn", None]), max_size=7),
    st.lists(st.sampled_from(["add", "txn", "protocol"]), min_size=1, max_size=3),
)
def test_of_type_equals_a_filter(types: list[str | None], kinds: list[str]) -> None:
    frame = pl.DataFrame(
        {"actionType": types, "position": range(len(types))},
        {"actionType": pl.String, "position": pl.Int64},
    )
    expected = frame.filter(pl.col("actionType").is_in(kinds))
    assert_frame_equal(actions.of_type(frame, *kinds), expected)
