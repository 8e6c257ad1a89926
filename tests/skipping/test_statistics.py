"""Statistics: typed from three sources, exact or null; and converted back to text."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.model import contract
from lakelog.skipping.json_texts import CHUNK_ROWS
from lakelog.skipping.statistics import (
    map_stats,
    num_records,
    stats_from_json,
    stats_from_maps,
    stats_from_struct,
    stats_text_from_struct,
)
from tests.budget import seeded, share_of

MAP = pl.Map(pl.String, pl.String)


def field(name: str, type_: Any, physical: str | None = None) -> dict[str, Any]:
    metadata = {} if physical is None else {"delta.columnMapping.physicalName": physical}
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def schema(*fields: dict[str, Any]) -> contract.Struct:
    return contract.parse_schema(json.dumps(struct(*fields)))


LONGS = {"type": "array", "elementType": "long", "containsNull": True}
WIDE = schema(
    field("i", "integer"),
    field("l", "long"),
    field("s", "string"),
    field("f", "float"),
    field("d", "double"),
    field("m", "decimal(38,4)"),
    field("t", "timestamp"),
    field("w", "timestamp_ntz"),
    field("day", "date"),
    field("b", "boolean"),
    field("n", struct(field("x", "long"), field("deep", struct(field("y", "string"))))),
    field("a", LONGS),
    field("v", "variant"),
    field("o", "void"),
)


def minimum(type_: Any, value: str) -> Any:
    """The typed minimum of one column whose JSON value is `value`."""
    texts = pl.Series([f'{{"minValues":{{"c":{value}}}}}'])
    return stats_from_json(texts, schema(field("c", type_)))["min"].struct.field("c").item()


def test_typed_statistics_have_the_shape_of_the_logical_schema() -> None:
    frame = stats_from_json(pl.Series([None], dtype=pl.String), WIDE)
    assert frame.columns == ["numRecords", "tightBounds", "min", "max", "nullCount"]
    bounds, counts = frame.schema["min"], frame.schema["nullCount"]
    assert isinstance(bounds, pl.Struct)
    assert isinstance(counts, pl.Struct)
    kept = {f.name: f.dtype for f in bounds.fields}
    assert kept == {
        "i": pl.Int32,
        "l": pl.Int64,
        "s": pl.String,
        "f": pl.Float32,
        "d": pl.Float64,
        "m": pl.Decimal(38, 4),
        "t": pl.Datetime("us", "UTC"),
        "w": pl.Datetime("us"),
        "day": pl.Date,
        "n": pl.Struct({"x": pl.Int64, "deep": pl.Struct({"y": pl.String})}),
    }
    assert sorted(f.name for f in counts.fields) == sorted([*kept, "a", "b", "v"])
    assert frame.schema["max"] == bounds


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("integer", "5", 5),
        ("integer", "99999999999", None),
        ("integer", "1.5", None),
        ("long", "9007199254740993", 9007199254740993),
        ("long", "9007199254740993.0", None),
        ("long", '"5"', None),
        ("long", "true", None),
        ("string", '"a\\n\\ud83d\\ude00"', "a\n😀"),
        ("string", "5", None),
        ("string", '"half \\ud83d"', None),
        ("double", "1e3", 1000.0),
        ("double", '"NaN"', None),
        ("double", "1e400", None),
        ("decimal(38,0)", "1" * 38, Decimal("1" * 38)),
        ("decimal(38,0)", str(2**63 - 1), None),  # deltalake writes it for greater ones too
        ("decimal(21,2)", str(-(2**63)), None),
        ("decimal(38,0)", str(2**63 - 2), Decimal(2**63 - 2)),
        ("long", str(2**63 - 1), 2**63 - 1),
        ("decimal(38,2)", "12345678901234567890123456789012345678.9", None),
        (
            "decimal(38,2)",
            "123456789012345678901234567890123456.78",
            Decimal("123456789012345678901234567890123456.78"),
        ),
        ("decimal(4,2)", "99.99", Decimal("99.99")),
        ("decimal(4,2)", "100.00", None),  # deltalake rounds 99.99 to a double
        ("decimal(12,2)", "1", Decimal("1.00")),
        ("decimal(12,2)", "1.005", None),
        ("decimal(12,2)", "-9.8e-1", Decimal("-0.98")),
        ("date", '"2024-01-31"', date(2024, 1, 31)),
        ("date", '"2024-02-31"', None),
        ("date", "19000", None),
        ("timestamp", '"2024-01-01T00:00:00.123Z"', datetime(2024, 1, 1, 0, 0, 0, 123000, UTC)),
        ("timestamp", '"2024-01-01T01:00:00.000+01:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", '"2024-01-01T00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", '"whenever"', None),
        ("timestamp_ntz", '"2024-01-01T00:00:00.000"', datetime(2024, 1, 1)),
        ("timestamp_ntz", '"2024-01-01T00:00:00.000+01:00"', None),
        ("long", "null", None),
    ],
)
def test_json_value_converts_exactly_or_is_null(type_: str, value: str, expected: Any) -> None:
    assert minimum(type_, value) == expected


def test_year_beyond_9999_is_read() -> None:
    texts = pl.Series(['{"maxValues":{"c":"+10000-01-01"}}', '{"maxValues":{"c":"10000-01-01"}}'])
    frame = stats_from_json(texts, schema(field("c", "date")))
    assert frame["max"].struct.field("c").to_physical().to_list() == [2932897, 2932897]


GOOD = '{"numRecords":7,"tightBounds":false,"minValues":{"l":1},"nullCount":{"l":2,"n":{"x":3}}}'


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "",
        " ",
        "null",
        "[]",
        "5",
        "garbage",
        GOOD[:-1],
        GOOD[:30],
        GOOD + GOOD,
        GOOD + "\n" + GOOD,
        GOOD + "x}",
        "{" + GOOD + "}",
        '{"numRecords":7,}',
        '{"minValues":{"s":"raw \x01 control"},"numRecords":7}',
        '{"minValues":{"s":"raw \n break"},"numRecords":7}',
        '{"x":' + "[" * 3000 + "}",
    ],
)
def test_invalid_json_gives_nulls_in_its_own_row_only(bad: str | None) -> None:
    frame = stats_from_json(pl.Series([GOOD, bad, GOOD], dtype=pl.String), WIDE)
    assert frame["numRecords"].to_list() == [7, None, 7]
    assert frame["tightBounds"].to_list() == [False, None, False]
    assert frame["min"].struct.field("l").to_list() == [1, None, 1]
    assert num_records(pl.Series([GOOD, bad, GOOD], dtype=pl.String)).to_list() == [7, None, 7]


def test_pretty_printed_and_padded_texts_are_read() -> None:
    pretty = json.dumps(json.loads(GOOD), indent=2)
    frame = stats_from_json(pl.Series([pretty, f"  {GOOD}\r\n", GOOD]), WIDE)
    assert frame["numRecords"].to_list() == [7, 7, 7]
    assert frame["nullCount"].struct.field("n").struct.field("x").to_list() == [3, 3, 3]


def test_value_of_the_wrong_type_is_null_and_the_others_are_read() -> None:
    text = '{"numRecords":1,"minValues":{"l":"x","i":4},"maxValues":5,"nullCount":{"n":1,"i":0}}'
    frame = stats_from_json(pl.Series([text]), WIDE)
    assert frame["numRecords"].item() == 1
    assert (frame["min"].item()["l"], frame["min"].item()["i"]) == (None, 4)
    assert frame["max"].item()["i"] is None
    assert (frame["nullCount"].item()["n"]["x"], frame["nullCount"].item()["i"]) == (None, 0)


def test_only_the_requested_columns_are_converted() -> None:
    frame = stats_from_json(pl.Series([GOOD]), WIDE, columns=["l"])
    assert frame["min"].struct.fields == ["l"]
    none = stats_from_json(pl.Series([GOOD]), WIDE, columns=[])
    assert none["numRecords"].item() == 7
    assert none["min"].struct.fields == []


def test_bounds_of_a_collated_string_are_not_kept() -> None:
    table = schema(field("c", "string collate UNICODE_CI"), field("v", "varchar(9)"))
    frame = stats_from_json(pl.Series(['{"minValues":{"c":"a","v":"b"}}']), table)
    assert frame["min"].item() == {"v": "b"}
    assert frame["nullCount"].struct.fields == ["c", "v"]


def test_physical_names_are_mapped_to_logical_names_at_every_depth() -> None:
    mapped = schema(field("a", struct(field("b", "long", "col-2")), "col-1"))
    texts = pl.Series(['{"minValues":{"col-1":{"col-2":5},"a":{"b":6}}}'])
    assert stats_from_json(texts, mapped, mapping="name")["min"].item() == {"a": {"b": 5}}
    assert stats_from_json(texts, mapped)["min"].item() == {"a": {"b": 6}}


def test_rows_keep_their_order_across_chunks_and_invalid_texts() -> None:
    pick = seeded()
    height = CHUNK_ROWS + 5000
    rows = pl.int_range(height, eager=True)
    texts = pl.select(
        pl.format('{{"numRecords":{},"minValues":{{"l":{}}}}}', rows, rows)
    ).to_series()
    assert texts.len() == height
    broken = sorted(pick.sample(range(height), 7))
    damage = pl.Series(["{", "null", '{"numRecords":"x"}', "{}{}", None, "{}\n{}", '{"a":}'])
    texts = texts.scatter(broken, damage)
    frame = stats_from_json(texts, schema(field("l", "long")))
    expected = rows.scatter(broken, pl.Series([None] * 7, dtype=pl.Int64))
    assert frame["numRecords"].equals(expected, null_equal=True)
    assert frame["min"].struct.field("l").equals(expected, null_equal=True)


def test_text_longer_than_a_block_is_read() -> None:
    text = '{"numRecords":3,"minValues":{"s":"%s"}}' % ("x" * 3_000_000)
    assert num_records(pl.Series([text, GOOD])).to_list() == [3, 7]


def test_no_files_give_an_empty_typed_frame() -> None:
    frame = stats_from_json(pl.Series([], dtype=pl.String), WIDE)
    assert frame.height == 0
    assert frame.schema == stats_from_json(pl.Series([None], dtype=pl.String), WIDE).schema


def test_checkpoint_struct_is_widened_to_the_current_schema() -> None:
    parsed = pl.Series(
        [
            {
                "numRecords": 3,
                "minValues": {
                    "i": 1,
                    "l": 2,
                    "m": Decimal("1.5"),
                    "t": datetime(2024, 1, 1),
                    "w": date(2024, 1, 1),
                    "d": 0.5,
                    "s": "x",
                    "day": "2024-01-01",
                },
                "nullCount": {"i": 0, "n": {"x": 1}},
            },
            None,
        ],
        dtype=pl.Struct(
            {
                "numRecords": pl.Int64,
                "minValues": pl.Struct(
                    {
                        "i": pl.Int16,
                        "l": pl.Int32,
                        "m": pl.Decimal(10, 2),
                        "t": pl.Datetime("ns"),
                        "w": pl.Date,
                        "d": pl.Float32,
                        "s": pl.String,
                        "day": pl.String,
                    }
                ),
                "nullCount": pl.Struct({"i": pl.Int32, "n": pl.Struct({"x": pl.Int64})}),
            }
        ),
    )
    frame = stats_from_struct(parsed, WIDE)
    assert frame.schema == stats_from_json(pl.Series([GOOD]), WIDE).schema
    low = frame["min"][0]
    assert (low["i"], low["l"], low["m"], low["d"]) == (1, 2, Decimal("1.5000"), 0.5)
    assert low["t"] == datetime(2024, 1, 1, tzinfo=UTC)
    assert low["w"] == datetime(2024, 1, 1)
    assert low["day"] == date(2024, 1, 1)
    assert frame["nullCount"][0]["n"] == {"x": 1, "deep": {"y": None}}
    assert frame["numRecords"].to_list() == [3, None]
    assert frame["max"][0]["i"] is None


def test_struct_value_that_cannot_be_cast_exactly_is_null() -> None:
    parsed = pl.Series(
        [{"minValues": {"m": Decimal("1.00001"), "l": 1.5, "w": datetime(2024, 1, 1, tzinfo=UTC)}}]
    )
    low = stats_from_struct(parsed, WIDE)["min"][0]
    assert (low["m"], low["l"], low["w"]) == (None, None, None)


def test_struct_without_fields_or_of_another_type_gives_nulls() -> None:
    for nothing in (pl.Series([None, None]), pl.Series([1, 2])):
        assert stats_from_struct(nothing, WIDE)["numRecords"].to_list() == [None, None]


def test_indextables_maps_are_read_by_schema_type() -> None:
    low = {"i": "5", "day": "2024-01-01", "t": "1000", "m": "1.5", "s": "x", "d": "nope"}
    frame = stats_from_maps(
        pl.Series([3, None]),
        pl.Series([low, None], dtype=MAP),
        pl.Series([{"t": "1970-01-01T00:00:00.002Z"}, {}], dtype=MAP),
        WIDE,
    )
    first = frame["min"][0]
    assert (first["i"], first["day"], first["m"], first["s"], first["d"]) == (
        5,
        date(2024, 1, 1),
        Decimal("1.5000"),
        "x",
        None,
    )
    assert first["t"] == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert frame["max"][0]["t"] == datetime(1970, 1, 1, 0, 0, 0, 2000, UTC)
    assert frame["numRecords"].to_list() == [3, None]
    assert frame["nullCount"].struct.field("i").to_list() == [None, None]


def test_statistics_text_of_a_struct_equals_the_text_of_spark() -> None:
    parsed = pl.Series(
        [
            {
                "tightBounds": True,
                "numRecords": 2,
                "nullCount": {"s": 0},
                "minValues": {
                    "s": 'a"\\\n\x01é',
                    "day": date(2024, 1, 1),
                    "t": datetime(2024, 1, 1, 0, 0, 0, 123999, UTC),
                    "m": Decimal("1.50"),
                    "d": float("nan"),
                    "e": float("-inf"),
                    "b": False,
                    "z": None,
                    "n": {"x": 1, "y": None},
                },
            },
            None,
        ]
    )
    texts = stats_text_from_struct(parsed)
    assert texts[0] == (
        '{"numRecords":2,"minValues":{"s":"a\\"\\\\\\n\\u0001é","day":"2024-01-01",'
        '"t":"2024-01-01T00:00:00.123Z","m":1.50,"d":"NaN","e":"-Infinity","b":false,'
        '"n":{"x":1}},"nullCount":{"s":0},"tightBounds":true}'
    )
    assert texts[1] is None


json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
row = st.fixed_dictionaries(
    {
        "numRecords": st.integers(0, 2**40),
        "minValues": st.fixed_dictionaries(
            {},
            optional={
                "l": st.integers(-(2**63), 2**63 - 1),
                "s": json_text,
                "d": st.floats(allow_nan=False, allow_infinity=False),
                "m": st.decimals(-(10**9), 10**9, places=4),
                "n": st.fixed_dictionaries({}, optional={"x": st.integers(-5, 5)}),
            },
        ),
    },
    optional={"nullCount": st.fixed_dictionaries({}, optional={"l": st.integers(0, 9)})},
)


def encode(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}:{encode(v)}" for k, v in value.items()) + "}"
        case Decimal():
            return f"{value:f}"
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=share_of(60))
@given(st.lists(row, min_size=1, max_size=6))
def test_typed_statistics_survive_a_round_trip_through_json(rows: list[dict[str, Any]]) -> None:
    texts = pl.Series([encode(r) for r in rows])
    typed = stats_from_json(texts, WIDE)
    for found, wrote in zip(typed["min"], rows, strict=True):
        for column in ("l", "s", "d", "m"):
            assert found[column] == wrote["minValues"].get(column)
    parsed = typed.select(
        pl.struct("numRecords", minValues="min", maxValues="max", nullCount="nullCount")
    ).to_series()
    again = stats_from_json(stats_text_from_struct(parsed), WIDE)
    assert again.equals(typed, null_equal=True)


@settings(max_examples=share_of(60))
@given(st.lists(row, min_size=1, max_size=6), st.booleans())
def test_maps_of_text_agree_with_the_json(rows: list[dict[str, Any]], nested: bool) -> None:
    for r in rows:
        if not nested:
            r["minValues"].pop("n", None)
    frame = map_stats(pl.Series([encode(r) for r in rows]))
    for found, wrote in zip(frame.iter_rows(named=True), rows, strict=True):
        assert found["numRecords"] == wrote["numRecords"]
        expected = {
            k: v if isinstance(v, str) else encode(v) for k, v in wrote["minValues"].items()
        }
        assert found["minValues"] == expected
        assert found["maxValues"] is None
        counts = wrote.get("nullCount")
        assert found["nullCount"] == (
            None if counts is None else {k: str(v) for k, v in counts.items()}
        )


@pytest.mark.parametrize("bad", [None, "", "null", "{", "[1]", '{"minValues":3}', "{}{}"])
def test_invalid_json_gives_null_maps_in_its_own_row_only(bad: str | None) -> None:
    frame = map_stats(pl.Series([GOOD, bad, GOOD], dtype=pl.String))
    assert frame["minValues"].to_list() == [{"l": "1"}, None, {"l": "1"}]
    assert frame["nullCount"].to_list()[2] == {"l": "2", "n": '{"x":3}'}
    assert frame["numRecords"].to_list() == [7, None, 7]


def test_maps_keep_text_that_looks_like_a_date_or_a_number() -> None:
    texts = pl.Series(
        ['{"minValues":{"d":"2024-01-01","s":"1.50","t":":5,","f":1.50,"b":true}}'] * 2
    )
    expected = {"d": "2024-01-01", "s": "1.50", "t": ":5,", "f": "1.50", "b": "true"}
    assert map_stats(texts)["minValues"].to_list() == [expected, expected]
    easy = texts.str.replace(":5,", "x", literal=True)
    assert map_stats(easy)["minValues"].to_list() == [{**expected, "t": "x"}] * 2


def test_maps_include_columns_that_first_appear_in_a_later_chunk() -> None:
    texts: list[str | None] = ['{"numRecords":1,"minValues":{"a":1}}'] * CHUNK_ROWS
    texts += ['{"numRecords":2,"minValues":{"b":"2024-01-01"},"tightBounds":true}', None]
    frame = map_stats(pl.Series(texts))
    assert frame["minValues"][-3:].to_list() == [{"a": "1"}, {"b": "2024-01-01"}, None]
    assert frame["numRecords"][-3:].to_list() == [1, 2, None]
