"""Statistics in JSON texts of one shape: the pattern and the parser read the same values."""

from __future__ import annotations

import json
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakelog.skipping import json_texts
from lakelog.skipping.json_texts import decode_alike
from tests.budget import share_of

BOUNDS = pa.struct(
    {
        "id": pa.int64(),
        "small": pa.int8(),
        "price": pa.float64(),
        "na me": pa.string(),
        "flag": pa.bool_(),
        "in": pa.struct({"x": pa.int32(), "y": pa.string()}),
    }
)
SCHEMA = pa.schema(
    {
        "numRecords": pa.int64(),
        "tightBounds": pa.bool_(),
        "minValues": BOUNDS,
        "maxValues": BOUNDS,
        "nullCount": pa.struct({"id": pa.int64(), "in": pa.struct({"x": pa.int64()})}),
    }
)
FULL = {
    "numRecords": 3,
    "minValues": {
        "id": -1,
        "price": 0.5,
        "na me": "a.b*c",
        "flag": False,
        "in": {"x": 1, "y": "é"},
        "other": {"z": None, "w": "x"},
    },
    "maxValues": {"id": 9, "price": 2.5, "na me": "", "in": {"x": 2}},
    "nullCount": {"id": 0, "in": {"x": 1}},
    "tightBounds": True,
}


@pytest.fixture(autouse=True)
def _pattern_is_used_for_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_texts, "_LEAST_ROWS", 2)


COMPACT, PYTHON = (",", ":"), (", ", ": ")


def compact(value: Any, separators: tuple[str, str] = COMPACT) -> str:
    return json.dumps(value, separators=separators, ensure_ascii=False)


def decoded_both_ways(texts: list[str | None], schema: pa.Schema = SCHEMA) -> pl.DataFrame:
    column = pl.Series(texts, dtype=pl.String)
    general = json_texts._parsed(column, schema)
    fast = json_texts.decode(column, schema)
    assert fast.schema == general.schema
    assert fast.height == general.height
    for name in schema.names:
        for actual, expected in zip(leaves(fast[name]), leaves(general[name]), strict=True):
            assert actual.to_list() == expected.to_list(), (name, actual.name, texts)
    return fast


def leaves(column: pl.Series) -> list[pl.Series]:
    """The scalars of a column: a null struct and a struct of nulls both mean unknown."""
    if not isinstance(column.dtype, pl.Struct):
        return [column]
    inner = column.struct.unnest().get_columns()
    return [leaf for child in inner for leaf in leaves(child)]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-200, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["-0", "1.0E10", "1e-7", "00", "[1]", "{}", "1.", "+1", "1E5", "NaN"]),
)


@st.composite
def texts_of_one_shape(draw: st.DrawFn) -> list[str | None]:
    """Rows of one shape with a few random values, some as raw text; most with the same blanks."""
    rows: list[str | None] = []
    usual = draw(st.sampled_from([COMPACT, PYTHON]))
    for _ in range(draw(st.integers(2, 8))):
        row = json.loads(compact(FULL))
        raw: list[tuple[str, str]] = []
        for number in range(draw(st.integers(0, 3))):
            side = draw(st.sampled_from(["minValues", "maxValues", "nullCount", ""]))
            into = row[side] if side and isinstance(row[side], dict) else row
            value = draw(SCALARS)
            name = draw(st.sampled_from([*into, "new"]))
            if isinstance(value, str) and draw(st.booleans()):
                raw.append((f'"@{number}"', value))
                value = f"@{number}"
            into[name] = value
        separators = draw(st.sampled_from([usual] * 6 + [COMPACT, PYTHON, (", ", ":")]))
        text = json.dumps(row, separators=separators, ensure_ascii=draw(st.booleans()))
        for mark, value in raw:
            text = text.replace(mark, value)
        rows.append(draw(st.sampled_from([text] * 6 + [text[:-1], None, text + " ", " " + text])))
    return rows


@settings(
    max_examples=share_of(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(texts=texts_of_one_shape())
def test_pattern_and_parser_read_the_same_values(texts: list[str | None]) -> None:
    decoded_both_ways(texts)


@settings(
    max_examples=share_of(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    texts=texts_of_one_shape(),
    asked=st.sets(st.sampled_from(["id", "na me", "flag", "in"]), min_size=1),
)
def test_prefix_of_a_valid_text_gives_the_values_of_the_whole_text(
    texts: list[str | None], asked: set[str]
) -> None:
    schema = pa.schema({"minValues": pa.struct([f for f in BOUNDS if f.name in asked])})
    column = pl.Series(texts, dtype=pl.String)
    whole = json_texts._parsed(column, schema)["minValues"]
    prefix = json_texts.decode(column, schema, to_end=False)["minValues"]
    for prefix_leaf, whole_leaf in zip(leaves(prefix), leaves(whole), strict=True):
        for text, found, expected in zip(texts, prefix_leaf, whole_leaf, strict=True):
            if expected is not None or (text is not None and is_valid(text)):
                assert found == expected, (prefix_leaf.name, text)


def is_valid(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def test_values_before_the_end_of_a_truncated_text_are_read() -> None:
    texts = pl.Series([compact(FULL | {"numRecords": n}) for n in range(3)])
    torn = pl.concat([texts, pl.Series([texts[0][:40], texts[0][:-20]])])
    asked = pa.schema({"minValues": pa.struct({"id": pa.int64()})})
    found = json_texts.decode(torn, asked, to_end=False)["minValues"].struct.field("id")
    assert found.to_list() == [-1] * 5
    whole = json_texts.decode(torn, asked)["minValues"].struct.field("id")
    assert whole.to_list() == [-1, -1, -1, None, None]


@pytest.mark.parametrize("separators", [COMPACT, PYTHON], ids=["compact", "python"])
def test_rows_of_one_shape_never_reach_the_parser(
    monkeypatch: pytest.MonkeyPatch, separators: tuple[str, str]
) -> None:
    texts = [compact(FULL | {"numRecords": n}, separators) for n in range(10)]
    expected = decoded_both_ways(list(texts))
    monkeypatch.setattr(json_texts, "_parsed", lambda *_: pytest.fail("parsed"))
    assert json_texts.decode(pl.Series(texts), SCHEMA).equals(expected)
    assert expected["numRecords"].to_list() == list(range(10))
    assert expected["minValues"].struct.field("small").null_count() == 10


def test_rows_of_several_shapes_keep_their_order() -> None:
    short = {"numRecords": 1, "minValues": {"id": 4}}
    other = {"numRecords": 2, "nullCount": {"id": 4}}
    texts = [compact(shape) for shape in (FULL, short, other, short, FULL, FULL, short, other)]
    found = decoded_both_ways([*texts, None, "garbage", compact(FULL)])
    assert found["numRecords"].to_list() == [3, 1, 2, 1, 3, 3, 1, 2, None, None, 3]


def test_columns_beyond_the_group_limit_of_one_pattern_are_read() -> None:
    names = [f"c{n}" for n in range(40)]
    schema = pa.schema(
        {"numRecords": pa.int64(), "minValues": pa.struct(dict.fromkeys(names, pa.int64()))}
    )
    texts = [
        compact({"numRecords": k, "minValues": {name: k + n for n, name in enumerate(names)}})
        for k in range(5)
    ]
    read = decode_alike(pl.Series(texts), schema)
    assert read is not None
    assert read[0]["minValues"].struct.field("c39").to_list() == [39, 40, 41, 42, 43]


@pytest.mark.parametrize("value", ["[1]", "{}", '"\\u0041"', "01", "1.5", "true", "99999999999"])
def test_value_invalid_for_its_field_is_left_to_the_parser(value: str) -> None:
    usual = compact(FULL)
    decoded_both_ways([usual, usual.replace('"x":1', f'"x":{value}'), usual])


@pytest.mark.parametrize(
    "type_", [pa.decimal128(10, 2), pa.list_(pa.int64()), pa.timestamp("us")], ids=str
)
def test_types_without_a_pattern_are_left_to_the_parser(type_: pa.DataType) -> None:
    texts = pl.Series(['{"a":1}'] * 4)
    assert decode_alike(texts, pa.schema({"a": type_})) is None


def test_texts_of_different_shapes_are_left_to_the_parser() -> None:
    texts = pl.Series([compact({f"k{n}": n}) for n in range(40)])
    assert decode_alike(texts, SCHEMA) is None
    assert decode_alike(pl.Series([None] * 4, dtype=pl.String), SCHEMA) is None
