"""Conversion of rows to a table's schema: valid, completed and rejected rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.data.conform import Conform
from lakelog.errors import InvalidInputError, UnsupportedFeatureError
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Field, Map, Primitive, Struct
from lakelog.model.contract import Decimal as DecimalType

LONG, STRING, DOUBLE = Primitive("long"), Primitive("string"), Primitive("double")
INTEGER, FLOAT, TIMESTAMP = Primitive("integer"), Primitive("float"), Primitive("timestamp")
WHEN = dt.datetime(2024, 1, 31, 10, 20, 30, 456789)


def converted(values: Any, type_: DataType, **more: Any) -> list[Any]:
    """One column's values after conversion."""
    table = Conform([Field("c", type_, **more)]).table(pa.table({"c": values}))
    found: list[Any] = table["c"].to_pylist()
    return found


def conversion_error(values: Any, type_: DataType, **more: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as error:
        converted(values, type_, **more)
    return error.value


def dictionary(values: pa.Array) -> pa.Array:
    """The values, and a null."""
    indices = pa.array([*range(len(values)), None], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, values)


def run_ends(values: pa.Array) -> pa.Array:
    """Each value twice."""
    return pa.RunEndEncodedArray.from_arrays(range(2, 2 * len(values) + 2, 2), values)


VIEWS = pa.array(["a", None], pa.string_view())
TRUTHS = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2, 0, None], pa.int8()))
LOSSLESS: list[tuple[Any, DataType, list[Any]]] = [
    (pa.array([1, None], pa.int8()), LONG, [1, None]),
    (pa.array([5, None], pa.int64()), INTEGER, [5, None]),
    (pa.array([5], pa.uint64()), Primitive("byte"), [5]),
    (pa.array([5.0, None]), LONG, [5, None]),
    (pa.array([2**53]), DOUBLE, [2.0**53]),
    (pa.array([0.5, None]), FLOAT, [0.5, None]),
    (pa.array([12]), DecimalType(5, 2), [Decimal("12.00")]),
    (pa.array([Decimal("1.50")]), DecimalType(3, 1), [Decimal("1.5")]),
    (pa.array(["a", None]).dictionary_encode(), STRING, ["a", None]),
    (pa.array([Decimal("3.00"), None]), LONG, [3, None]),
    (pa.array(["a"], pa.string_view()), STRING, ["a"]),
    (pa.array([b"ab"], pa.binary(2)), Primitive("binary"), [b"ab"]),
    (pa.nulls(2), Array(LONG), [None, None]),
    (pa.array([WHEN], pa.timestamp("ns")), Primitive("timestamp_ntz"), [WHEN]),
    (pa.array([WHEN.date()], pa.date64()), Primitive("date"), [WHEN.date()]),
    (pa.array([WHEN.date()]), Primitive("timestamp_ntz"), [dt.datetime(2024, 1, 31)]),
    (pa.array([[1, None], None], pa.list_(pa.int8())), Array(LONG), [[1, None], None]),
    (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), Array(INTEGER), [[1, 2]]),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), Map(STRING, LONG), [[("k", 1)]]),
    (dictionary(VIEWS), STRING, ["a", None, None]),
    (dictionary(VIEWS.cast(pa.binary_view())), Primitive("binary"), [b"a", None, None]),
    (dictionary(pa.array([Decimal("1.5")])), DecimalType(5, 2), [Decimal("1.50"), None]),
    (dictionary(pa.array([WHEN])), Primitive("timestamp_ntz"), [WHEN, None]),
    (dictionary(dictionary(VIEWS)), STRING, ["a", None, None, None]),
    (run_ends(pa.array([5, None])), INTEGER, [5, 5, None, None]),
    (run_ends(VIEWS)[1:3], STRING, ["a", None]),
    (run_ends(pa.array([2**40, 7]))[2:], INTEGER, [7, 7]),
    (run_ends(pa.array([[1]])), Array(LONG), [[1], [1]]),
    (pa.array([["a"], [], None], pa.list_view(VIEWS.type)), Array(STRING), [["a"], [], None]),
    (pa.array([[1]], pa.large_list_view(pa.int8())), Array(LONG), [[1]]),
    (
        pa.ListViewArray.from_arrays([1, 0, 2], [1, 2, 0], dictionary(VIEWS)),
        Array(STRING),
        [[None], ["a", None], []],
    ),
    (
        pa.StructArray.from_arrays([run_ends(VIEWS)], ["x"]),
        Struct((Field("x", STRING),)),
        [{"x": "a"}, {"x": "a"}, {"x": None}, {"x": None}],
    ),
    (
        pa.MapArray.from_arrays([0, 1], VIEWS[:1], dictionary(VIEWS)[:1]),
        Map(STRING, STRING),
        [[("a", "a")]],
    ),
    (pa.array([b"0123456789abcdef"], pa.uuid()), Primitive("binary"), [b"0123456789abcdef"]),
    (TRUTHS, Primitive("boolean"), [True, False, None]),
    (
        pa.StructArray.from_arrays([TRUTHS], ["x"]),
        Struct((Field("x", Primitive("boolean")),)),
        [{"x": True}, {"x": False}, {"x": None}],
    ),
    (TRUTHS, Primitive("byte"), [2, 0, None]),
]


@pytest.mark.parametrize(("values", "type_", "found"), LOSSLESS)
def test_type_is_converted_if_no_value_changes(
    values: Any, type_: DataType, found: list[Any]
) -> None:
    assert converted(values, type_) == found
    chunks = pa.chunked_array([values, values[:0], values])
    assert converted(chunks, type_) == found + found
    assert converted(pa.chunked_array([], values.type), type_) == []


def test_bool8_arrays_are_booleans_and_bytes_in_files(tmp_path: Path) -> None:
    rows = pa.table({"c": TRUTHS})
    lakelog.write(tmp_path / "t", rows)
    assert lakelog.open(tmp_path / "t").to_polars()["c"].to_list() == [True, False, None]
    (tmp_path / "files").mkdir()
    pq.write_table(rows, tmp_path / "files/x.parquet")
    lakelog.convert(tmp_path / "files")
    assert lakelog.open(tmp_path / "files").to_polars()["c"].to_list() == [2, 0, None]


class Own(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types for it
    """A type of a user, which has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Own:
        return cls()


def test_extension_type_of_a_user_becomes_its_values() -> None:
    values = pa.ExtensionArray.from_storage(Own(), pa.array([1, None]))
    (column,) = contract.from_arrow(pa.schema([("c", Own())])).fields
    assert converted(values, column.type) == [1, None]


def test_encoded_values_within_lists_of_lists_are_decoded() -> None:
    inner = pa.ListArray.from_arrays([0, 1, 4], run_ends(pa.array([7, 8])))
    nested = pa.ListArray.from_arrays([0, 1, 2], inner)
    assert converted(nested, Array(Array(LONG))) == [[[7]], [[7, 8, 8]]]
    assert converted(nested[1:], Array(Array(LONG))) == [[[7, 8, 8]]]
    views = pa.ListViewArray.from_arrays([0, 1], [1, 3], run_ends(pa.array([7, 8])))
    assert converted(views[1:], Array(LONG)) == [[7, 8, 8]]


LOSSY: list[tuple[Any, DataType]] = [
    (pa.array([2**40]), INTEGER),
    (pa.array([1.5]), LONG),
    (pa.array([Decimal("1.5")]), LONG),
    (pa.array([Decimal(2**63)]), LONG),
    (pa.array([float("nan")]), LONG),
    (pa.array([2**53 + 1]), DOUBLE),
    (pa.array([0.1]), FLOAT),
    (pa.array([1000]), DecimalType(5, 3)),
    (pa.array([Decimal("1.55")]), DecimalType(3, 1)),
    (pa.array([1], pa.timestamp("ns")), Primitive("timestamp_ntz")),
]


@pytest.mark.parametrize(("values", "type_"), LOSSY)
def test_value_that_would_change_raises(values: Any, type_: DataType) -> None:
    error = conversion_error(pa.chunked_array([values[:0], values]), type_)
    assert "without loss" in error.message
    assert error.column == "c"


INCOMPATIBLE: list[tuple[Any, DataType]] = [
    (pa.array(["1"]), LONG),
    (pa.array([1]), STRING),
    (pa.array([True]), LONG),
    (pa.array([1]), Primitive("boolean")),
    (pa.array([0.5]), DecimalType(3, 1)),
    (pa.array(["a"]), Primitive("binary")),
    (pa.array([WHEN]), TIMESTAMP),
    (pa.array([WHEN.replace(tzinfo=dt.UTC)]), Primitive("timestamp_ntz")),
    (pa.array([WHEN]), Primitive("date")),
    (pa.array([1]), Array(LONG)),
    (pa.array([[1]]), LONG),
    (pa.array([1]), Struct((Field("a", LONG),))),
    (pa.array([[1]]), Map(LONG, LONG)),
]


@pytest.mark.parametrize(("values", "type_"), INCOMPATIBLE)
def test_incompatible_type_raises(values: Any, type_: DataType) -> None:
    assert "has another type" in conversion_error(values, type_).message or type_ == LONG


def test_hint_for_a_timestamp_without_time_zone_names_the_time_zone() -> None:
    assert "time zone" in str(conversion_error(pa.array([WHEN]), TIMESTAMP).hint)


def test_timestamps_of_any_time_zone_keep_their_instant() -> None:
    zoned = pa.array([WHEN.replace(tzinfo=dt.UTC)], pa.timestamp("us", "Asia/Tokyo"))
    assert converted(zoned, TIMESTAMP) == [WHEN.replace(tzinfo=dt.UTC)]


def test_columns_are_matched_by_name_in_any_order_and_case() -> None:
    conform = Conform([Field("a", LONG), Field("B", STRING)])
    found = conform.table(pa.table({"b": ["x"], "A": [1]}))
    assert found.to_pylist() == [{"a": 1, "B": "x"}]
    assert found.schema.equals(conform.schema)
    assert conform.table(pl.DataFrame({"a": [1]})).to_pylist() == [{"a": 1, "B": None}]


def test_unknown_and_duplicate_columns_raise() -> None:
    conform = Conform([Field("a", LONG)])
    with pytest.raises(InvalidInputError, match="no column 'z'") as error:
        conform.table(pa.table({"a": [1], "z": [1]}))
    assert "merge" in str(error.value.hint)
    with pytest.raises(InvalidInputError, match="occurs twice"):
        conform.table(pa.table({"a": [1], "A": [1]}))


def test_nested_null_in_a_required_field_raises() -> None:
    assert conversion_error([[1, None]], Array(LONG, contains_null=False)).column == "c.element"
    assert converted([[1], None], Array(LONG, contains_null=False)) == [[1], None]
    entries = pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64()))
    assert (
        conversion_error(entries, Map(STRING, LONG, value_contains_null=False)).column == "c.value"
    )
    encoded = pa.ListArray.from_arrays([0, 2], dictionary(VIEWS)[:2])
    assert conversion_error(encoded, Array(STRING, contains_null=False)).column == "c.element"
    keys = pa.MapArray.from_arrays([0, 2], dictionary(VIEWS)[:2], pa.array([1, 2]))
    assert conversion_error(keys, Map(STRING, LONG)).column == "c.key"
    inner = Struct((Field("a", LONG, nullable=False),))
    assert conversion_error([{"a": None}], inner).column == "c.a"
    assert converted([{"a": 1}, None], inner) == [{"a": 1}, None]
    lacking = pa.array([{"b": 1}]), Struct((Field("a", LONG, nullable=False), Field("b", LONG)))
    assert "is missing" in conversion_error(*lacking).message


def test_fields_of_structs_are_matched_by_name() -> None:
    type_ = Struct((Field("a", LONG), Field("b", Array(Struct((Field("x", STRING),))))))
    values = pa.array([{"b": [{"x": "q"}, None]}, None, {"b": None}])
    assert converted(values, type_) == [
        {"a": None, "b": [{"x": "q"}, None]},
        None,
        {"a": None, "b": None},
    ]
    assert conversion_error(pa.array([{"z": 1}]), type_).column == "c.z"


def test_slices_of_nested_columns_are_converted_without_other_rows() -> None:
    type_ = Struct((Field("l", Array(INTEGER)), Field("m", Map(STRING, INTEGER))))
    inner = pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64()))])
    values = pa.array(
        [{"l": [2**40], "m": None}, {"l": [1, 2], "m": [("k", 3)]}, None, {"l": None, "m": []}],
        inner,
    )
    assert converted(values[1:], type_) == values[1:].to_pylist()


@pytest.mark.parametrize(
    ("default", "type_", "value"),
    [
        ("5", LONG, 5),
        ("-1.50", DecimalType(4, 2), Decimal("-1.50")),
        ("'a b'", STRING, "a b"),
        ("TRUE", Primitive("boolean"), True),
        ("NULL", LONG, None),
        ("DATE '2024-01-31'", Primitive("date"), dt.date(2024, 1, 31)),
        ("1 + 1", LONG, 2),
    ],
)
def test_missing_column_gets_its_default(default: str, type_: DataType, value: Any) -> None:
    columns = [Field("a", LONG), Field("c", type_, metadata={"CURRENT_DEFAULT": default})]
    assert Conform(columns).table(pa.table({"a": [1]}))["c"].to_pylist() == [value]


@pytest.mark.parametrize("default", ["current_date()", "hash(1)", "'no number'"])
def test_unsupported_default_raises(default: str) -> None:
    column = Field("c", LONG, metadata={"CURRENT_DEFAULT": default})
    with pytest.raises(UnsupportedFeatureError, match="default"):
        Conform([Field("a", LONG), column]).table(pa.table({"a": [1]}))
    assert Conform([column]).table(pa.table({"c": [None, 1]}))["c"].to_pylist() == [None, 1]


@pytest.mark.parametrize("text", ["varchar(3)", "char(3)"])
def test_text_longer_than_its_column_raises(text: str) -> None:
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": text}
    assert converted(["äöü", None], STRING, metadata=metadata) == ["äöü", None]
    assert "too long" in conversion_error(["abcd"], STRING, metadata=metadata).message
    assert "too long" in conversion_error(["abcd"], Primitive(text)).message


def test_texts_of_limited_length_in_nested_values_are_refused() -> None:
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": "array<varchar(3)>"}
    columns = [Field("a", LONG), Field("tags", Array(STRING), metadata=metadata)]
    assert Conform(columns).table(pa.table({"a": [1]}))["tags"].to_pylist() == [None]
    with pytest.raises(UnsupportedFeatureError, match="limited length") as error:
        Conform(columns).table(pa.table({"tags": [["a"]]}))
    assert error.value.column == "tags"


def test_slices_of_lists_of_run_ends_keep_their_values() -> None:
    values = pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 4, 7], pa.int32()), pa.array(["a", None, "b"])
    )
    expected = [None, None, "b", "b", "b"]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 7], pa.int32()), values)
    assert converted(lists.slice(1), Array(STRING)) == [expected]
    tail = pa.ListArray.from_arrays(pa.array([0, 2, 5], pa.int32()), values.slice(2))
    assert converted(tail, Array(STRING)) == [expected[:2], expected[2:]]
    pairs = pa.FixedSizeListArray.from_arrays(values.slice(1), 2)
    assert converted(pairs.slice(1), Array(STRING)) == [[None, "b"], ["b", "b"]]


def test_value_of_an_unknown_type_that_is_not_null_raises() -> None:
    columns = [Field("a", LONG), Field("v", Primitive("interval"))]
    conform = Conform(columns)
    table = conform.table(pa.table({"a": [1]}))
    assert conform.table(table)["v"].null_count == 1  # writers bring rows under their schema again
    with pytest.raises(UnsupportedFeatureError, match="does not write"):
        Conform(columns).table(pa.table({"v": [b"x"]}))


ITEMS = st.lists(
    st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3), max_size=6
)


@given(ITEMS, st.integers(0, 5))
def test_converted_lists_equal_the_given_ones(items: list[Any], start: int) -> None:
    for make in (pa.list_, pa.list_view, pa.large_list_view):
        values = pa.array(items, make(pa.int64()))[start:]
        assert converted(values, Array(INTEGER)) == items[start:]
