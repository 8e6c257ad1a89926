"""Partition values: texts are parsed with the types of the schema; invalid ones are unknown."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from lakelog.model import contract
from lakelog.skipping.values import parse_text, typed_partitions

MAP = pl.Map(pl.String, pl.String)


def table(**types: str) -> contract.Struct:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return contract.parse_schema(json.dumps({"type": "struct", "fields": fields}))


def maps(*rows: dict[str, str | None] | None) -> pl.Series:
    return pl.Series("partitionValues", list(rows), dtype=MAP)


def one(type_: str, text: str | None, *, hive_null: bool = False) -> tuple[Any, bool]:
    values, known = typed_partitions(maps({"c": text}), table(c=type_), ["c"], hive_null=hive_null)
    column = values["partition.c"]
    assert column.dtype == contract.to_polars(table(c=type_).fields[0].type)
    if column.dtype.is_temporal():
        column = column.to_physical()
    return column.item(), known["partition.c"].item()


DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "a b", "a b"),
        ("integer", "7", 7),
        ("long", "1234567890123456789", 1234567890123456789),
        ("byte", "-128", -128),
        ("double", "3.141592653589793", 3.141592653589793),
        ("boolean", "true", True),
        ("boolean", "FALSE", False),
        ("binary", "\x01\x02", b"\x01\x02"),
        ("decimal(12,2)", "1", Decimal("1.00")),
        ("decimal(12,2)", "1.500", Decimal("1.50")),
        ("decimal(18,18)", "0E-18", Decimal("0E-18")),
        (
            "decimal(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("date", "1970-01-02", 1),
        ("date", "10000-01-01", 2932897),
        ("date", "+10000-01-01", 2932897),
        ("timestamp", "1970-01-02 00:00:00", DAY_US),
        ("timestamp", "1970-01-01 00:00:00.123456", 123456),
        ("timestamp", "1970-01-01T00:00:00.123456Z", 123456),
        ("timestamp", "1970-01-01T01:00:00+01:00", 0),
        ("timestamp", "1969-12-31 23:59:59.999999", -1),
        ("timestamp", "10000-01-01 01:59:59.999999", 253402307999999999),
        ("timestamp_ntz", "1970-01-02 00:00:00", DAY_US),
    ],
)
def test_value_is_parsed_under_the_current_type(type_: str, text: str, value: Any) -> None:
    assert one(type_, text) == (value, True)


@pytest.mark.parametrize(
    "type_",
    "string integer double boolean binary decimal(12,2) date timestamp timestamp_ntz".split(),
)
@pytest.mark.parametrize("text", ["", None])
def test_empty_or_null_text_is_a_known_null_for_every_type(type_: str, text: str | None) -> None:
    assert one(type_, text) == (None, True)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("integer", "x"),
        ("integer", "9999999999"),
        ("integer", "1.5"),
        ("boolean", "yes"),
        ("date", "2024-02-30"),
        ("date", "yesterday"),
        ("timestamp", "soon"),
        ("timestamp_ntz", "1970-01-01T01:00:00+01:00"),
        ("decimal(12,2)", "1.505"),
        ("decimal(12,2)", "99999999999"),
        ("decimal(12,2)", "NaN"),
        ("decimal(12,2)", "1e999999999"),
    ],
)
def test_text_invalid_for_its_type_is_unknown_and_not_null(type_: str, text: str) -> None:
    assert one(type_, text) == (None, False)


def test_binary_value_is_the_utf_8_encoding_of_its_text() -> None:
    assert one("binary", "é\\u0041") == (b"\xc3\xa9\\u0041", True)


def test_missing_key_and_a_missing_map_are_unknown() -> None:
    values, known = typed_partitions(
        maps({"b": "1"}, None, {"a": "1"}), table(a="long", b="long"), ["a", "b"]
    )
    assert values.rows() == [(None, 1), (None, None), (1, None)]
    assert known.rows() == [(False, True), (False, False), (True, False)]


def test_order_and_case_of_keys_are_irrelevant_and_an_exact_key_is_preferred() -> None:
    values, known = typed_partitions(
        maps({"A": "1", "b": "2"}, {"b": "2", "a": "1"}, {"A": "9", "a": "1"}),
        table(a="long", b="long"),
        ["a", "b"],
    )
    assert values["partition.a"].to_list() == [1, 1, 1]
    assert known["partition.a"].to_list() == [True, True, True]


def test_physical_names_are_used_only_where_columns_are_mapped() -> None:
    field = contract.Field(
        "a", contract.Primitive("long"), metadata={"delta.columnMapping.physicalName": "col-1"}
    )
    schema = contract.Struct((field,))
    rows = maps({"col-1": "1", "a": "2"})
    assert typed_partitions(rows, schema, ["a"], mapping="name").values.item() == 1
    assert typed_partitions(rows, schema, ["a"], mapping="id").values.item() == 1
    assert typed_partitions(rows, schema, ["a"]).values.item() == 2


def test_hive_null_text_is_null_only_with_hive_null() -> None:
    hive = "__HIVE_DEFAULT_PARTITION__"
    assert one("string", hive, hive_null=True) == (None, True)
    assert one("integer", hive, hive_null=True) == (None, True)
    assert one("string", hive) == (hive, True)


def test_frames_without_partition_columns_have_one_row_per_file() -> None:
    values, known = typed_partitions(maps({}, {}), table(a="long"), [])
    assert (values.shape, known.shape) == ((2, 0), (2, 0))


def test_no_files_give_empty_typed_columns() -> None:
    values, known = typed_partitions(maps(), table(a="date"), ["a"])
    assert values.schema == {"partition.a": pl.Date()}
    assert known.schema == {"partition.a": pl.Boolean()}


def test_epoch_microseconds_are_read_only_if_requested() -> None:
    timestamp = contract.Primitive("timestamp")
    texts = pl.Series(["1000", "1970-01-01T00:00:00.002Z"])
    assert parse_text(texts, timestamp, epoch_us=True).to_physical().to_list() == [1000, 2000]
    assert parse_text(texts, timestamp).to_physical().to_list() == [None, 2000]
