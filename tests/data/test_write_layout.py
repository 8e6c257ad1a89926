"""Partition values in the log, folders, file names, codecs and sizes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.data.layout import (
    CODECS,
    codec_of,
    dictionary_paths,
    file_name,
    partition_folder,
    partition_texts,
    size_of,
)
from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model import contract
from lakelog.skipping.values import parse_text

TIME = dt.datetime(2024, 1, 31, 10, 20, 30, 456000)
SERIALIZED: list[tuple[str, Any, str | None]] = [
    ("string", "a b/ü", "a b/ü"),
    ("string", "", None),
    ("string", None, None),
    ("long", -5, "-5"),
    ("byte", 7, "7"),
    ("boolean", True, "true"),
    ("date", dt.date(2024, 1, 31), "2024-01-31"),
    ("timestamp", TIME.replace(tzinfo=dt.UTC), "2024-01-31T10:20:30.456000Z"),
    ("timestamp_ntz", TIME, "2024-01-31 10:20:30.456"),
    ("timestamp_ntz", TIME.replace(microsecond=0), "2024-01-31 10:20:30"),
    ("timestamp_ntz", TIME.replace(second=0, microsecond=0), "2024-01-31 10:20:00"),
    ("double", 1.0, "1.0"),
    ("double", 1e16, "1.0E16"),
    ("double", 1.25e-7, "1.25E-7"),
    ("double", 1234567.0, "1234567.0"),
    ("double", 0.001, "0.001"),
    ("double", -0.0, "-0.0"),
    ("double", float("nan"), "NaN"),
    ("double", float("-inf"), "-Infinity"),
    ("float", 0.1, "0.1"),
    ("binary", b"ab", "ab"),
    ("binary", b"", None),
]


@pytest.mark.parametrize(("type_", "value", "text"), SERIALIZED)
def test_partition_value_is_serialized_as_in_the_protocol(
    type_: str, value: Any, text: str | None
) -> None:
    kind = contract.Primitive(type_)
    values = pl.Series("p", [value], dtype=contract.to_polars(kind))
    assert partition_texts(values, kind).to_list() == [text]


def test_decimals_of_partitions_keep_their_scale() -> None:
    type_ = contract.Decimal(20, 10)
    values = pl.Series("p", [Decimal("0.0000000001"), Decimal(12), None], dtype=pl.Decimal(20, 10))
    texts = partition_texts(values, type_)
    assert texts.to_list() == ["0.0000000001", "12.0000000000", None]
    assert parse_text(texts, type_).to_list() == values.to_list()


@given(st.floats(allow_nan=False))
def test_float_is_read_back_from_its_text(value: float) -> None:
    type_ = contract.Primitive("double")
    text = partition_texts(pl.Series("p", [value]), type_)
    assert parse_text(text, type_).to_list() == [value]


@given(st.floats(allow_nan=False, width=32))
def test_single_precision_float_is_read_back_from_its_text(value: float) -> None:
    type_ = contract.Primitive("float")
    values = pl.Series("p", [value], dtype=pl.Float32)
    assert parse_text(partition_texts(values, type_), type_).to_list() == [value]


@pytest.mark.parametrize("type_", ["date", "timestamp", "timestamp_ntz"])
def test_partition_values_of_any_year_are_read_back_or_refused(type_: str) -> None:
    kind = contract.Primitive(type_)
    unit = 1 if type_ == "date" else 86_400_000_000
    days = [0, 2_932_896, 2_932_897, 94_600_000, -719_163, -94_600_000]
    values = pl.Series("p", [day * unit for day in days]).cast(contract.to_polars(kind))
    assert parse_text(partition_texts(values, kind), kind).equals(values)
    for day in (94_600_001, -94_600_001):
        far = pl.Series("p", [0, None, day * unit]).cast(contract.to_polars(kind))
        with pytest.raises(InvalidInputError, match="'p' is too far from the present"):
            partition_texts(far, kind)


def test_nested_partition_column_raises() -> None:
    with pytest.raises(InvalidInputError, match="partitioned by the column 'p'"):
        partition_texts(pl.Series("p", [[1]]), contract.Array(contract.Primitive("long")))


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("a b", "p=a%20b"),
        ("a/b:c", "p=a%2Fb%3Ac"),
        ("50%", "p=50%25"),
        ("{[*?]}", "p=%7B%5B%2A%3F%5D%7D"),
        ("é'\"#\\", "p=%C3%A9%27%22%23%5C"),
        ("\x01\x7f\x00", "p=%01%7F%00"),
        ("..", "p=.."),
        (None, "p=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_folders_are_escaped_as_deltalake_escapes_them(value: str | None, folder: str) -> None:
    assert partition_folder(["p"], [value]) == folder


def test_names_of_columns_are_escaped_too_and_columns_keep_their_order() -> None:
    assert partition_folder(["a=b", "c"], ["1", "2"]) == "a%3Db=1/c=2"
    assert partition_folder([], []) == ""


def test_long_folder_name_is_truncated_and_stays_unique() -> None:
    long = "ü" * 300
    folders = {partition_folder(["p"], [long + end]) for end in "ab"}
    assert len(folders) == 2
    assert all(len(folder.encode()) <= 255 for folder in folders)


def test_file_is_named_for_its_task_its_write_and_its_attempt() -> None:
    assert file_name(3, "t", "a", 12, CODECS["snappy"]) == "part-00003-t-a.c012.snappy.parquet"
    assert file_name(3, "t", "a", 0, CODECS["none"], "cdc") == "cdc-00003-t-a.c000.parquet"


def test_codec_names_ignore_case_and_unknown_ones_raise() -> None:
    assert codec_of(None).name == "snappy"
    assert codec_of("ZSTD").extension == ".zstd.parquet"
    with pytest.raises(InvalidPropertyError, match="unsupported compression codec"):
        codec_of("brotli")


def test_sizes_have_units() -> None:
    assert (size_of("64kb"), size_of("2 GiB"), size_of("5")) == (65_536, 2 << 30, 5)
    assert size_of(None) == 128 << 20
    for wrong in ("0", "much", ""):
        with pytest.raises(InvalidPropertyError):
            size_of(wrong)


def test_dictionaries_are_used_for_columns_with_repeated_values() -> None:
    count = 70_000
    numbers = pl.int_range(count, eager=True)
    frame = pl.DataFrame(
        {
            "unique": numbers,
            "few": numbers % 9,
            "runs": numbers // 50,
            "text": numbers.cast(pl.String),
            "nothing": pl.repeat(None, count, dtype=pl.String, eager=True),
            "pair": pl.select(pl.struct(a=numbers, b=numbers)).to_series(),
            "list": pl.select(pl.concat_list(numbers)).to_series(),
        }
    )
    rows = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    names = [name for name in frame.columns if name not in {"pair", "list"}]
    nested = ["pair.a", "pair.b", "list.list.element"]
    assert dictionary_paths(rows) == ["few", "runs", "nothing", *nested]
    assert dictionary_paths(rows.select(names)[:1000]) == ["few", "runs", "nothing"]
    assert dictionary_paths(rows.select(names)[:0]) == names


@given(st.lists(st.integers(0, 40_000), max_size=300), st.integers(1, 300))
def test_files_read_the_same_with_and_without_dictionaries(
    values: list[int], repeated: int
) -> None:
    rows = pa.table({"n": pa.array(values * repeated, pa.int64())})
    sink = pa.BufferOutputStream()
    paths = dictionary_paths(rows)
    pq.write_table(rows, sink, use_dictionary=paths)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert file.read().equals(rows)
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert all(group.column(0).has_dictionary_page == bool(paths) for group in groups)
