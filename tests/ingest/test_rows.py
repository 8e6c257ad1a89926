"""Records of rows: the fast paths give the same rows as the general one."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import MalformedLogError
from lakelog.ingest.joined_records import JoinedRecords
from lakelog.ingest.records import Record, Records
from lakelog.ingest.rows import RowCodec
from lakelog.ingest.state import follows
from lakelog.model.contract import Struct, parse_schema, to_json
from lakelog.transaction.schema_conversion import struct_of

ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("x", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("naive", pa.timestamp("us")),
    ]
)
SCHEMA = struct_of(ARROW)
TIMES: dict[str, Any] = {"min_value": dt.datetime(1, 1, 2), "max_value": dt.datetime(9999, 12, 30)}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(1 << 63), (1 << 63) - 1),
    "small": st.integers(-128, 127),
    "x": st.floats() | st.integers(-(1 << 53), 1 << 53),
    "ok": st.booleans(),
    "text": st.text(),
    "day": st.dates(),
    "at": st.datetimes(**TIMES, timezones=st.just(dt.UTC)),
    "naive": st.datetimes(**TIMES),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": VALUES["id"]},
        optional={name: st.none() | each for name, each in VALUES.items() if name != "id"},
    ),
    min_size=1,
    max_size=5,
)


def as_records(records: list[Record]) -> Records:
    """The records as a log returns them."""
    op = pa.DictionaryArray.from_arrays(pa.array([0] * len(records), pa.int8()), ["PUT"])
    return Records(
        pa.table(
            {
                "seqNum": pa.array(range(1, len(records) + 1), pa.int64()),
                "op": op,
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
            }
        )
    )


def decoded(codec: RowCodec, records: list[Record]) -> pa.Table:
    encoded = as_records(records)
    table, numbers = codec.concat(codec.decode(encoded)), encoded.numbers()
    assert table.num_rows == len(numbers)
    return table.take(pa.array(numbers.argsort(kind="stable"))).combine_chunks()


def is_equal(a: pa.Table, b: pa.Table) -> bool:
    return repr(a.to_pylist()) == repr(b.to_pylist())  # NaN equals itself


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_fast_path_of_scalar_rows_equals_the_column_path(rows: list[dict[str, Any]]) -> None:
    codec = RowCodec(SCHEMA)
    one_by_one = [record for row in rows for record in codec.records([row])]
    general = pa.concat_tables(table for row in rows for table in codec.tables([row]))
    assert is_equal(decoded(codec, one_by_one), general)
    together = list(codec.records(rows))
    assert sum(record.rows for record in together) == len(rows)
    assert is_equal(decoded(codec, together), general)


@settings(deadline=None, max_examples=30)
@given(ROWS, st.booleans())
def test_table_with_matching_types_is_encoded_like_a_converted_one(
    rows: list[dict[str, Any]], wide: bool
) -> None:
    codec = RowCodec(SCHEMA)
    table = pa.Table.from_pylist(rows, schema=ARROW)
    if wide:
        table = table.cast(codec.empty().schema)
    assert next(codec.tables(table)) is table
    converted = RowCodec(SCHEMA)._fitted(table)
    assert is_equal(decoded(codec, list(codec.records(table))), converted)


@settings(deadline=None, max_examples=40)
@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 12), st.data())
def test_joined_records_have_the_rows_of_separate_ones(
    writes: list[list[dict[str, Any]]], most_rows: int, data: st.DataObject
) -> None:
    codec = RowCodec(SCHEMA)
    wide = codec.empty().schema
    schemas = [data.draw(st.sampled_from([ARROW, wide])) for _ in writes]
    tables = [
        pa.concat_tables([pa.Table.from_pylist([row], schema=schema) for row in rows])
        for rows, schema in zip(writes, schemas, strict=True)
    ]
    joined = JoinedRecords(most_rows, data.draw(st.sampled_from([0, 2000, 1 << 30])))
    for _ in range(2):  # in memory that is used again
        found = list(joined.of(tables))
        assert sum(count for count, _, _ in found) == len(tables)
        records = [Record(key, bytes(value), 0) for _, key, value in found]
        separate = [record for table in tables for record in codec.records(table)]
        assert is_equal(decoded(codec, records), decoded(codec, separate))
        first = 0
        for (count, _, _), rows in zip(found, as_records(records).rows, strict=True):
            part = tables[first : first + count]
            assert rows == sum(map(len, part))
            assert count == 1 or rows <= most_rows
            assert all(table.schema == part[0].schema for table in part)
            first += count
        del found


def test_a_null_in_one_of_many_joined_tables_fits_in_the_record() -> None:
    schema = pa.schema([("id", pa.int64())])
    tables = [pa.table({"id": range(20_000)}, schema) for _ in range(8)]
    tables.append(pa.table({"id": [None]}, schema))
    ((count, _, value),) = JoinedRecords(1 << 20, 1 << 30).of(tables)
    (batch,) = pa.ipc.open_stream(bytes(value))
    assert (count, batch.num_rows, batch["id"].null_count) == (9, 160_001, 1)


def test_unknown_record_form_raises_malformed_log_error() -> None:
    record = Record(b"\x07\x01\x00\x00\x00", b"", 1)
    with pytest.raises(MalformedLogError, match="unknown form"):
        RowCodec(SCHEMA).decode(as_records([record]))


def schema(*fields: tuple[str, Any]) -> Struct:
    return Struct(tuple(struct_of(pa.schema(list(fields))).fields))


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ([("a", pa.int32())], [("a", pa.int32()), ("b", pa.string())], None),
        ([("a", pa.int32())], [("a", pa.int64())], None),
        ([("a", pa.int64())], [("a", pa.int32())], "a"),
        ([("a", pa.int64())], [("a", pa.string())], "a"),
        ([("a", pa.int64())], [("A", pa.int64())], "a"),
        ([("a", pa.int64()), ("b", pa.int64())], [("a", pa.int64())], "b"),
        ([("a", pa.list_(pa.int32()))], [("a", pa.list_(pa.int64()))], None),
        ([("a", pa.struct([("x", pa.int64())]))], [("a", pa.struct([("y", pa.int64())]))], "a"),
        ([("a", pa.date32())], [("a", pa.timestamp("us"))], None),
        ([("a", pa.date32())], [("a", pa.timestamp("us", "UTC"))], "a"),
    ],
)
def test_schema_is_followed_if_it_can_hold_all_values(old: Any, new: Any, lost: str | None) -> None:
    assert follows(schema(*old).fields, schema(*new)) == lost


def test_column_dropped_and_added_again_is_a_different_column() -> None:
    fields = to_json(schema(("a", pa.int64())))
    texts = []
    for number in (1, 2):
        fields["fields"][0]["metadata"] = {"delta.columnMapping.id": number}
        texts.append(parse_schema(json.dumps(fields)))
    assert follows(texts[0].fields, texts[1]) == "a"
    assert follows(texts[0].fields, texts[0]) is None
