"""Columns of data files, found by the table's column mapping and converted to its types."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.data.columns import Columns
from lakelog.dialects.thrift_compact import read_struct, write_struct
from lakelog.errors import CorruptionError, UnsupportedFeatureError
from lakelog.model import contract
from tests.data.rows import batches, data_file, rows, snapshot_of
from tests.handmade import Handmade, field, metadata, protocol

NAIVE = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
INSTANT = NAIVE.replace(tzinfo=dt.UTC)
OLD = dt.datetime(1950, 1, 1, 0, 0, 0, 999_999, tzinfo=dt.UTC)


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": contains_null}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def mapped(name: str, number: int, type_: Any = "long", physical: str | None = None) -> Any:
    return field(
        name,
        type_,
        **{
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": physical or f"col-{number}",
        },
    )


def ided(name: str, number: int, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})


def read_back(
    tmp_path: Path,
    table: pa.Table,
    fields: Sequence[Any],
    properties: Mapping[str, str] | None = None,
    **writer: Any,
) -> list[dict[str, Any]]:
    file = data_file(tmp_path, "a.parquet", table, parquet=writer)
    return rows(snapshot_of(tmp_path, fields, file, properties=properties))


# --- types ---------------------------------------------------------------------------------------

# Type of the table's column, values of the file with their type, expected values, and arguments of
# the file's writer.
CASTS: list[tuple[Any, pa.Array, list[Any], dict[str, Any]]] = [
    ("long", pa.array([1, None, -5], pa.int8()), [1, None, -5], {}),
    ("long", pa.array([2**31 - 1], pa.int32()), [2**31 - 1], {}),
    ("byte", pa.array([127], pa.int32()), [127], {}),
    ("integer", pa.array([7], pa.uint16()), [7], {}),
    ("double", pa.array([7, None], pa.int32()), [7.0, None], {}),
    ("double", pa.array([1.5], pa.float32()), [1.5], {}),
    (
        "decimal(10,4)",
        pa.array([decimal.Decimal("1.25")], pa.decimal128(6, 2)),
        [decimal.Decimal("1.2500")],
        {},
    ),
    ("decimal(12,2)", pa.array([3], pa.int32()), [decimal.Decimal("3.00")], {}),
    ("decimal(22,2)", pa.array([2**62], pa.int64()), [decimal.Decimal(f"{2**62}.00")], {}),
    (
        "timestamp_ntz",
        pa.array([NAIVE.date()]),
        [NAIVE.replace(hour=0, minute=0, second=0, microsecond=0)],
        {},
    ),
    ("timestamp", pa.array([INSTANT], pa.timestamp("us", "Europe/Berlin")), [INSTANT], {}),
    (
        "timestamp",
        pa.array([INSTANT, None], pa.timestamp("us", "UTC")),
        [INSTANT, None],
        {"use_deprecated_int96_timestamps": True},
    ),
    ("timestamp", pa.array([NAIVE], pa.timestamp("us")), [INSTANT], {}),
    (
        "timestamp",
        pa.array([1_500], pa.timestamp("ms", "UTC")),
        [dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)],
        {},
    ),
    ("timestamp", pa.array([-631151999000000001], pa.timestamp("ns", "UTC")), [OLD], {}),
    (
        "timestamp",
        pa.array([-631151999000000001], pa.timestamp("ns", "UTC")),
        [OLD],
        {"use_deprecated_int96_timestamps": True},
    ),
    ("timestamp_ntz", pa.array([NAIVE], pa.timestamp("ns")), [NAIVE], {}),
    (
        "timestamp_ntz",
        pa.array([NAIVE], pa.timestamp("us")),
        [NAIVE],
        {"use_deprecated_int96_timestamps": True},
    ),
    ("string", pa.array(["a", None, "é"], pa.large_string()), ["a", None, "é"], {}),
    ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"], {}),
    ("string", pa.array([b"text"], pa.binary()), ["text"], {}),
    ("string", pa.array(["view"], pa.string_view()), ["view"], {}),
    ("varchar(3)", pa.array(["abc"]), ["abc"], {}),
    ("char(3)", pa.array(["a  "]), ["a  "], {}),
    ("binary", pa.array([b"\x00\xff"], pa.large_binary()), [b"\x00\xff"], {}),
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"], {}),
    (
        "binary",
        pa.array([bytes(16)], pa.binary(16)).cast(pa.binary(16)).view(pa.uuid()),
        [bytes(16)],
        {},
    ),
    ("string", pa.array(["{}", None]).cast(pa.json_()), ["{}", None], {}),
    ("void", pa.nulls(2), [None, None], {}),
    (
        array("long"),
        pa.array([[1, None], None, []], pa.list_(pa.int32())),
        [[1, None], None, []],
        {},
    ),
    (
        array("string"),
        pa.array([["x"], None, ["y", None]], pa.large_list(pa.large_string())),
        [["x"], None, ["y", None]],
        {},
    ),
    (array("integer"), pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), [[1, 2], None], {}),
    (
        array(array("integer")),
        pa.array([[[1, 2], []], None, [], [None, [3]]], pa.list_view(pa.list_view(pa.int32()))),
        [[[1, 2], []], None, [], [None, [3]]],
        {},
    ),
    (
        array("string"),
        pa.array([["a", "b"], ["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        [["a", "b"], ["a"]],
        {},
    ),
    (
        map_of("string", "long"),
        pa.array(
            [[("k", 1)], None, [("a", None), ("b", 2)]], pa.map_(pa.large_string(), pa.int16())
        ),
        [[("k", 1)], None, [("a", None), ("b", 2)]],
        {},
    ),
]


@pytest.mark.parametrize(("type_", "values", "expected", "writer"), CASTS)
def test_values_are_converted_to_the_type_of_the_table(
    tmp_path: Path, type_: Any, values: pa.Array, expected: list[Any], writer: dict[str, Any]
) -> None:
    # More rows than a batch has, so that arrays are slices of others.
    repeated = pa.chunked_array([values] * 3)
    table = pa.table({"c": repeated, "n": range(len(repeated))})
    file = data_file(tmp_path, "a.parquet", table, parquet=writer)
    snapshot = snapshot_of(tmp_path, (field("c", type_), field("n")), file)
    for size in (65_536, 2):
        read = [row["c"] for row in rows(snapshot, batch_rows=size)]
        assert read == expected * 3
    odd = rows(snapshot, ["c"], predicate=pl.col("n") % 2 == 1)
    assert [row["c"] for row in odd] == (expected * 3)[1::2]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("long", pa.array(["1"])),
        ("long", pa.array([1.0])),
        ("integer", pa.array([2**40], pa.int64())),
        ("byte", pa.array([200], pa.uint8())),
        ("float", pa.array([1.5], pa.float64())),
        ("double", pa.array([1], pa.int64())),
        ("boolean", pa.array([1], pa.int32())),
        ("date", pa.array([1], pa.timestamp("us"))),
        ("timestamp", pa.array([1], pa.int64())),
        ("timestamp_ntz", pa.array([INSTANT], pa.timestamp("us", "UTC"))),
        ("decimal(4,1)", pa.array([decimal.Decimal("1.25")], pa.decimal128(6, 2))),
        ("decimal(3,0)", pa.array([5000], pa.int32())),
        ("string", pa.array([1], pa.int32())),
        ("string", pa.array([b"\xff"], pa.binary())),
        ("string", pa.array([{"a": 1}])),
        (struct(field("a")), pa.array([1])),
        (array("long"), pa.array([1])),
        (map_of("string", "long"), pa.array([[{"key": "a", "value": 1}]])),
        (array(struct(field("a"))), pa.array([[1]])),
    ],
)
def test_values_incompatible_with_the_type_of_the_table_raise(
    tmp_path: Path, type_: Any, values: pa.Array
) -> None:
    snapshot = snapshot_of(
        tmp_path,
        (field("n"), field("c", type_)),
        data_file(tmp_path, "a b.parquet", pa.table({"c": values, "n": [1]})),
    )
    with pytest.raises(CorruptionError) as caught:
        rows(snapshot)
    assert (caught.value.path, caught.value.version) == ("a b.parquet", 0)
    assert rows(snapshot, ["n"]) == [{"n": 1}]


SPARK = "org.apache.spark."


@pytest.mark.parametrize(
    ("metadata", "is_old"),
    [
        ({SPARK + "version": "2.4.8"}, True),
        (
            {SPARK + "version": "3.5.1", SPARK + "legacyDateTime": "", SPARK + "timeZone": "UTC"},
            True,
        ),
        ({SPARK + "version": "4.0.0"}, False),
        ({}, False),
    ],
)
def test_dates_of_the_julian_calendar_are_converted(
    tmp_path: Path, metadata: dict[str, str], is_old: bool
) -> None:
    # Days since 1970 as Spark's own tables of both calendars have them.
    julian = [-719164, -719163, -141428, -141427, 0, None]
    expected = ["0001-01-01", "0001-01-02", "1582-10-04", "1582-10-15", "1970-01-01", None]
    if not is_old:
        julian = [-719162, -719161, -141438, -141427, 0, None]
    days = pa.array(julian, pa.int32())
    micros = pa.array([None if d is None else d * 86_400_000_000 + 3 for d in julian], pa.int64())
    table = pa.table(
        {
            "d": days.cast(pa.date32()),
            "t": micros.cast(pa.timestamp("us", "UTC")),
            "w": days.cast(pa.date32()),
            "l": pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), days.cast(pa.date32())),
        }
    ).replace_schema_metadata(metadata)
    fields = (
        field("d", "date"),
        field("t", "timestamp"),
        field("w", "timestamp_ntz"),
        field("l", array("date")),
    )
    read = read_back(tmp_path, table, fields)
    texts = [None if row["d"] is None else f"{row['d']:%Y-%m-%d}".zfill(10) for row in read]
    assert texts == expected
    for row in read:
        assert row["l"] == [row["d"]]
        if row["d"] is not None:
            assert row["t"].date() == row["w"].date() == row["d"]
            assert row["t"].microsecond == 3
    predicate = pl.col("d") < dt.date(1, 1, 2)
    file = data_file(tmp_path / "few", "a.parquet", table, parquet={"row_group_size": 2})
    found = rows(snapshot_of(tmp_path / "few", fields, file), ["d"], predicate=predicate)
    assert found == [{"d": dt.date(1, 1, 1)}]


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_times_without_a_zone_are_never_in_the_julian_calendar(tmp_path: Path, zone: str) -> None:
    # Databricks marks all of its files, and converts only dates and timestamps.
    marks = {"version": "3.4.1", "legacyDateTime": "", "legacyINT96": "", "timeZone": zone}
    times = [dt.datetime(1, 1, 1), dt.datetime(1890, 1, 1), NAIVE, None]
    table = pa.table({"w": pa.array(times, pa.timestamp("us"))}).replace_schema_metadata(
        {SPARK + name: text for name, text in marks.items()}
    )
    read = read_back(tmp_path, table, [field("w", "timestamp_ntz")])
    assert [row["w"] for row in read] == times


@pytest.mark.parametrize("writer", ["parquet-mr version 1.10.1.2-databricks4", None])
def test_files_of_spark_without_its_version_are_in_the_julian_calendar(
    tmp_path: Path, writer: str | None
) -> None:
    days = pa.array([-719_164, 0], pa.int32()).cast(pa.date32())
    table = pa.table({"d": days}).replace_schema_metadata({SPARK + "sql.parquet.row.metadata": ""})
    file = data_file(tmp_path, "a.parquet", table)
    if writer is not None:
        path = tmp_path / "a.parquet"
        own = pq.read_metadata(path).created_by.encode()
        data = path.read_bytes()
        assert data.count(own) == 1
        path.write_bytes(data.replace(own, writer.encode()[: len(own)].ljust(len(own))))
    first = snapshot_of(tmp_path, [field("d", "date")], file).to_arrow()["d"][0]
    assert first.cast(pa.int32()).as_py() == (-719_164 if writer is None else -719_162)


@pytest.mark.parametrize("writer", ["parquet-mr version 1.8.1", None])
def test_row_groups_are_not_skipped_by_decimals_that_are_ordered_by_bytes(
    tmp_path: Path, writer: str | None
) -> None:
    values = pa.array([1, 200, 300, 400], pa.decimal128(38, 0))
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": values}), path, row_group_size=2, use_dictionary=False, store_schema=False
    )
    data = path.read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    one, many, other = (1).to_bytes(16, "big"), (200).to_bytes(16, "big"), bytes(range(16))
    footer = data[end:-8].replace(one, other).replace(many, one).replace(other, many)
    fields = read_struct(footer)
    created_by = fields.pop(6)
    if writer is not None:
        fields[6] = created_by._replace(data=bytes([len(writer)]) + writer.encode())
    footer = write_struct(dict(sorted(fields.items())))
    path.write_bytes(data[:end] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    statistics = pq.read_metadata(path).row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (200, 1), "in the order of signed bytes"
    lakelog.convert(tmp_path)
    table = lakelog.open(tmp_path)
    assert table.to_polars("x > 100")["x"].to_list() == [200, 300, 400]
    table.overwrite(pl.DataFrame({"x": [999]}), where="x >= 150")
    assert sorted(table.to_polars()["x"]) == [1, 999]


def test_old_timestamps_of_another_time_zone_raise(tmp_path: Path) -> None:
    metadata = {SPARK + "version": "2.4.8", SPARK + "timeZone": "America/Los_Angeles"}
    late = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))}).replace_schema_metadata(
        metadata
    )
    early = pa.table({"t": pa.array([OLD.replace(year=1890)], pa.timestamp("us", "UTC"))})
    assert len(read_back(tmp_path / "late", late, [field("t", "timestamp")])) == 1
    with pytest.raises(UnsupportedFeatureError, match="calendar") as caught:
        read_back(
            tmp_path / "early", early.replace_schema_metadata(metadata), [field("t", "timestamp")]
        )
    assert caught.value.path == "a.parquet"


# --- names ---------------------------------------------------------------------------------------


def test_missing_columns_are_null_at_any_depth(tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.int64()), ("dropped", pa.string())])
    table = pa.table(
        {
            "n": [1, 2, 3],
            "s": pa.array([{"a": 1, "dropped": "x"}, None, {"a": None, "dropped": "y"}], inner),
            "l": pa.array([[{"a": 1}, None], None, []], pa.list_(inner)),
            "m": pa.array([[("k", {"a": 1})], [("k", None)], None], pa.map_(pa.string(), inner)),
            "only": pa.array(
                [{"dropped": "x"}, None, {"dropped": None}], pa.struct([("dropped", pa.string())])
            ),
        }
    )
    now = struct(field("new", "string"), field("a"))
    fields = (
        field("later", "date"),
        field("s", now),
        field("l", array(now)),
        field("m", map_of("string", now)),
        field("only", struct(field("new", "long"))),
        field("deep", array(struct(field("x", map_of("string", "long"))))),
    )
    assert read_back(tmp_path, table, fields) == [
        {
            "later": None,
            "s": {"new": None, "a": 1},
            "l": [{"new": None, "a": 1}, None],
            "m": [("k", {"new": None, "a": 1})],
            "only": {"new": None},
            "deep": None,
        },
        {"later": None, "s": None, "l": None, "m": [("k", None)], "only": None, "deep": None},
        {
            "later": None,
            "s": {"new": None, "a": None},
            "l": [],
            "m": None,
            "only": {"new": None},
            "deep": None,
        },
    ]


def test_column_names_ignore_case_unless_they_are_ambiguous(tmp_path: Path) -> None:
    table = pa.table({"ID": [1], "S": pa.array([{"A": 2}])})
    fields = (field("id"), field("s", struct(field("a"))))
    assert read_back(tmp_path / "one", table, fields) == [{"id": 1, "s": {"a": 2}}]
    both = pa.table({"ID": [1], "iD": [2], "s": pa.array([{"a": 2}])})
    with pytest.raises(CorruptionError, match="several"):
        read_back(tmp_path / "two", both, fields)
    exact = pa.table({"ID": [1], "id": [2], "s": pa.array([{"a": 2}])})
    assert read_back(tmp_path / "exact", exact, fields)[0]["id"] == 2


MAPPED = (
    mapped("now", 1),
    mapped("p", 9, "string"),
    mapped("s", 2, struct(mapped("a", 3), mapped("b", 4, "string"))),
    mapped("l", 5, array(struct(mapped("x", 6)))),
    mapped("m", 7, map_of("string", struct(mapped("y", 8, "double")))),
    mapped("fresh", 10, "string"),
)
EXPECTED = {
    "now": 1,
    "p": "v",
    "s": {"a": 2, "b": "b"},
    "l": [{"x": 3}, None],
    "m": [("k", {"y": 4.0})],
    "fresh": None,
}


def by_name() -> pa.Table:
    """A file of `MAPPED` with physical names; logical names are misleading."""
    return pa.table(
        {
            "now": [-1],
            "fresh": ["trap"],
            "col-5": pa.array([[{"col-6": 3, "x": -1}, None]]),
            "col-2": pa.array([{"b": "trap", "col-4": "b", "a": -1, "col-3": 2}]),
            "col-1": [1],
            "col-7": pa.array(
                [[("k", {"col-8": 4.0})]],
                pa.map_(pa.string(), pa.struct([("col-8", pa.float64())])),
            ),
        }
    )


def by_id() -> pa.Table:
    """A file of `MAPPED` with ids; all names are misleading."""
    fields = [
        ided("fresh", 1, pa.int64()),
        ided(
            "col-1",
            2,
            pa.struct(
                [ided("a", 4, pa.string()), ided("b", 3, pa.int64()), ided("c", 77, pa.int8())]
            ),
        ),
        ided("col-2", 5, pa.list_(pa.struct([ided("col-3", 6, pa.int64())]))),
        ided("now", 7, pa.map_(pa.string(), pa.struct([ided("q", 8, pa.float64())]))),
        pa.field("col-10", pa.string()),
    ]
    values: list[Any] = [1, {"a": "b", "b": 2, "c": 5}, [{"col-3": 3}, None], [("k", {"q": 4.0})]]
    arrays = [pa.array([v], f.type) for v, f in zip([*values, "trap"], fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_found_by_the_column_mapping(tmp_path: Path, mode: str) -> None:
    table = by_name() if mode == "name" else by_id()
    file = data_file(tmp_path, "a.parquet", table, partitionValues={"col-9": "v"})
    snapshot = snapshot_of(
        tmp_path,
        MAPPED,
        file,
        partitioned=["p"],
        properties={"delta.columnMapping.mode": mode},
    )
    assert rows(snapshot) == [EXPECTED]
    for name, value in EXPECTED.items():
        assert rows(snapshot, [name]) == [{name: value}]
    assert rows(snapshot, ["l"], predicate=pl.col("now") == 1) == [{"l": [{"x": 3}, None]}]


def test_mapping_mode_applies_only_if_the_protocol_supports_it(tmp_path: Path) -> None:
    snapshot = snapshot_of(
        tmp_path,
        (mapped("now", 1),),
        data_file(tmp_path, "a.parquet", pa.table({"now": [5], "col-1": [6]})),
        properties={"delta.columnMapping.mode": "name"},
        features=("deletionVectors",),
    )
    assert rows(snapshot) == [{"now": 5}]


def test_file_without_field_ids_raises_in_id_mode(tmp_path: Path) -> None:
    properties = {"delta.columnMapping.mode": "id"}
    with pytest.raises(CorruptionError, match="ids"):
        read_back(tmp_path, pa.table({"col-1": [1]}), (mapped("now", 1),), properties)
    snapshot = snapshot_of(
        tmp_path / "count",
        (mapped("now", 1),),
        data_file(tmp_path / "count", "a.parquet", pa.table({"col-1": [1]})),
        properties=properties,
    )
    assert [batch.num_rows for batch in batches(snapshot, [])] == [1]


def test_null_in_a_required_column_raises(tmp_path: Path) -> None:
    required = {**field("n"), "nullable": False}
    assert read_back(tmp_path / "valid", pa.table({"n": [1]}), [required]) == [{"n": 1}]
    with pytest.raises(CorruptionError, match="is NOT NULL"):
        read_back(tmp_path / "null", pa.table({"n": pa.array([1, None])}), [required])
    with pytest.raises(CorruptionError, match="is NOT NULL"):
        read_back(tmp_path / "missing", pa.table({"x": [1]}), [required])
    inner = field("s", struct(required))
    values = pa.array([{"n": 1}, None], pa.struct([("n", pa.int64())]))
    assert read_back(tmp_path / "outer", pa.table({"s": values}), [inner])[1] == {"s": None}
    values = pa.array([{"n": None}, None], pa.struct([("n", pa.int64())]))
    with pytest.raises(CorruptionError, match="is NOT NULL"):
        read_back(tmp_path / "inner", pa.table({"s": values}), [inner])
    listed = field("l", array("long", contains_null=False))
    with pytest.raises(CorruptionError, match="is NOT NULL"):
        read_back(tmp_path / "list", pa.table({"l": [[1, None]]}), [listed])


# --- against a model -----------------------------------------------------------------------------


def random_type(depth: int) -> Any:
    kind = random.choice(["leaf", "leaf", "struct", "array", "map"] if depth else ["leaf"])
    match kind:
        case "struct":
            return struct(
                *(field(f"f{n}", random_type(depth - 1)) for n in range(random.randrange(1, 4)))
            )
        case "array":
            return array(random_type(depth - 1))
        case "map":
            return map_of("string", random_type(depth - 1))
    return random.choice(["long", "string", "double", "boolean"])


def evolved(type_: Any) -> Any:
    """The type with fields dropped, added and moved."""
    if isinstance(type_, str):
        return type_
    match type_["type"]:
        case "struct":
            kept = [
                f | {"type": evolved(f["type"])} for f in type_["fields"] if random.random() < 0.7
            ]
            kept += [field(f"new{n}", "string") for n in range(random.randrange(2))]
            kept = kept or [field("other", "long")]
            random.shuffle(kept)
            return struct(*kept)
        case "array":
            return array(evolved(type_["elementType"]))
        case _:
            return map_of("string", evolved(type_["valueType"]))


def arrow(type_: Any) -> pa.DataType:
    if isinstance(type_, str):
        leaves = {"long": pa.int64(), "string": pa.string(), "double": pa.float64()}
        return leaves.get(type_, pa.bool_())
    match type_["type"]:
        case "struct":
            return pa.struct([(f["name"], arrow(f["type"])) for f in type_["fields"]])
        case "array":
            return pa.list_(arrow(type_["elementType"]))
        case _:
            return pa.map_(pa.string(), arrow(type_["valueType"]))


def value_of(type_: Any) -> Any:
    if random.random() < 0.2:
        return None
    if isinstance(type_, str):
        numbers: dict[str, Any] = {"long": 7, "string": "é", "double": 0.5, "boolean": True}
        return numbers[type_]
    count = random.randrange(3)
    match type_["type"]:
        case "struct":
            return {f["name"]: value_of(f["type"]) for f in type_["fields"]}
        case "array":
            return [value_of(type_["elementType"]) for _ in range(count)]
        case _:
            return [(f"k{n}", value_of(type_["valueType"])) for n in range(count)]


def converted(value: Any, type_: Any) -> Any:
    """A value converted to the type that the table has now."""
    if value is None or isinstance(type_, str):
        return value
    match type_["type"]:
        case "struct":
            return {f["name"]: converted(value.get(f["name"]), f["type"]) for f in type_["fields"]}
        case "array":
            return [converted(element, type_["elementType"]) for element in value]
        case _:
            return [(key, converted(element, type_["valueType"])) for key, element in value]


@pytest.mark.parametrize("seed", range(25))
def test_rows_of_an_evolved_nested_schema_equal_the_model(tmp_path: Path, seed: int) -> None:
    random.seed(seed)
    old = struct(*(field(f"c{n}", random_type(3)) for n in range(4)))
    new = evolved(old)
    values = [{f["name"]: value_of(f["type"]) for f in old["fields"]} for _ in range(40)]
    table = pa.Table.from_pylist(values, pa.schema(list(arrow(old))))
    file = data_file(tmp_path, "a.parquet", table, parquet={"row_group_size": 17})
    snapshot = snapshot_of(tmp_path, new["fields"], file)
    expected = [converted(value, new) for value in values]
    for size in (65_536, 7):
        assert rows(snapshot, batch_rows=size) == expected, f"seed {seed}"


def test_only_requested_leaves_are_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "s": pa.array([{"x": 1, "y": {"z": 1, "w": 2}}]), "b": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    wanted = contract.Field(
        "s",
        contract.Struct(
            (
                contract.Field(
                    "y", contract.Struct((contract.Field("w", contract.Primitive("long")),))
                ),
            )
        ),
    )
    b = contract.Field("b", contract.Primitive("long"))
    columns = Columns.of(schema, [b, wanted], "none")
    assert columns.leaves == (3, 4)
    assert columns.plain == {"b": 4}
    dropped = contract.Field("dropped", contract.Primitive("long"))
    assert Columns.of(schema, [dropped], "none").leaves == ()


@pytest.mark.parametrize(
    ("mode", "second", "found"),
    [
        ("name", field("b"), "'b' in files.*physicalName"),
        ("name", mapped("b", 2, physical="col-1"), "'b' in files.*physicalName"),
        ("name", mapped("b", 2, struct(mapped("x", 3), mapped("y", 4, physical="col-3"))), "b.y"),
        ("id", mapped("b", 1, physical="col-2"), "'b' in files.*columnMapping.id"),
        ("id", field("b", **{"delta.columnMapping.physicalName": "b"}), "columnMapping.id"),
    ],
    ids=["no name", "same name", "same nested name", "same id", "no id"],
)
def test_mapped_columns_that_are_not_determined_are_refused(
    tmp_path: Path, mode: str, second: Any, found: str
) -> None:
    features = {"writerFeatures": ["columnMapping"], "readerFeatures": ["columnMapping"]}
    made = Handmade(tmp_path)
    properties = {"delta.columnMapping.mode": mode}
    made.commit(
        0, protocol(3, 7, **features), metadata(mapped("a", 1), second, properties=properties)
    )
    rows = pl.DataFrame({"a": [1]})
    for use in (made.table.scan, lambda: made.table.append(rows)):
        with pytest.raises(CorruptionError, match=found):
            use()
    assert made.table.snapshot().num_files() == 0
