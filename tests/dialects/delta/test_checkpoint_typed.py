"""Typed copies of statistics and partition values: columns and sources."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.dialects.delta.checkpoint_rows import TypedCopies
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    TYPED_STATISTICS,
    CheckpointPlan,
    statistics_text,
)
from lakelog.model import actions, contract
from lakelog.skipping.statistics import stats_from_json
from tests.handmade import field


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def schema(*fields: dict[str, Any]) -> contract.Struct:
    return contract.parse_schema(json.dumps(struct(*fields)))


DEEP = schema(
    field("a", "long"),
    field("S", struct(field("x", "string"), field("y z", "date"), field("e", struct()))),
    field("m", {"type": "map", "keyType": "string", "valueType": "long"}),
    field("p", "integer"),
    field("flag", "boolean"),
    field("raw", "binary"),
    field("when", "timestamp"),
)


def plan(given: contract.Struct = DEEP, **more: Any) -> CheckpointPlan:
    parts: dict[str, Any] = {"partition_columns": ("p",), **more}
    return CheckpointPlan(1, "classic", 1, given, stats_as_struct=True, **parts)


def test_types_follow_from_the_schema() -> None:
    typed = TypedCopies.of(plan(deletion_vectors=True))
    bounds = pa.struct(
        {
            "a": pa.int64(),
            "S": pa.struct({"x": pa.string(), "y z": pa.date32()}),
            "when": pa.timestamp("us", "UTC"),
        }
    )
    counts = pa.struct(
        {
            "a": pa.int64(),
            "S": pa.struct({"x": pa.int64(), "y z": pa.int64()}),
            **dict.fromkeys(("m", "flag", "raw", "when"), pa.int64()),
        }
    )
    assert typed.statistics == pa.struct(
        {
            "numRecords": pa.int64(),
            "minValues": bounds,
            "maxValues": bounds,
            "nullCount": counts,
            "tightBounds": pa.bool_(),
        }
    )
    assert typed.partitions == pa.struct({"p": pa.int32()})


def test_statistics_of_a_table_without_columns_have_only_the_record_count() -> None:
    typed = TypedCopies.of(plan(contract.Struct(()), partition_columns=()))
    assert typed.statistics == pa.struct({"numRecords": pa.int64()})
    assert typed.partitions is None


def test_typed_copies_use_physical_column_names() -> None:
    name = "delta.columnMapping.physicalName"
    mapped = schema(
        field("a", struct(field("b", "long", **{name: "c2"})), **{name: "c1"}),
        field("p", "string", **{name: "c3"}),
    )
    typed = TypedCopies.of(plan(mapped, mapping="name"))
    text = '{"numRecords":2,"minValues":{"c1":{"c2":5}},"nullCount":{"c1":{"c2":0}}}'
    files = pl.DataFrame(
        {"path": ["x"], "partitionValues": [{"c3": "q"}], "stats": [text]},
        schema_overrides={"partitionValues": actions.schema()["partitionValues"]},
    )
    found = typed.columns(files)
    (statistics,) = found[STRUCT_STATISTICS].to_pylist()
    assert statistics["minValues"] == {"c1": {"c2": 5}}
    assert statistics["nullCount"] == {"c1": {"c2": 0}}
    assert found["partitionValues_parsed"].to_pylist() == [{"c3": "q"}]


TEXTS = [
    '{"numRecords":3,"minValues":{"a":1,"S":{"x":"ä"},"when":"9999-12-31T23:59:59.999Z"}}',
    None,
    "garbage",
    '{"numRecords":1,"maxValues":{"a":7},"nullCount":{"a":0,"S":{"x":1}}}',
]


def test_typed_statistics_are_copied_and_json_statistics_are_parsed() -> None:
    typed = TypedCopies.of(plan())
    whole = pl.DataFrame({"path": list("abcd"), "stats": TEXTS})
    expected = typed.columns(whole)[STRUCT_STATISTICS]
    assert [row is None for row in expected.to_pylist()] == [False, True, False, False]
    first = expected[0].as_py()
    assert first["minValues"]["when"] == datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)

    structs = pl.Series(STRUCT_STATISTICS, expected)
    for kept in ([True] * 4, [True, False, False, False], [False] * 4):
        mask = pl.Series(kept)
        partly = pl.DataFrame(
            [
                whole["path"],
                whole["stats"].set(mask, None),
                structs.zip_with(mask, structs.clear(4)),
            ]
        )
        assert typed.columns(partly)[STRUCT_STATISTICS].to_pylist() == expected.to_pylist()


def test_parsed_statistics_are_not_parsed_again() -> None:
    typed = TypedCopies.of(plan())
    files = pl.DataFrame({"actionType": ["add"] * 4, "path": list("abcd"), "stats": TEXTS})
    parsed = stats_from_json(files["stats"], typed.indexed)
    read = files.with_columns(parsed.to_struct(TYPED_STATISTICS))
    assert typed.columns(read.reverse()) == typed.columns(files.reverse())
    garbled = read.with_columns(stats=pl.lit("garbage"))
    found = typed.columns(garbled)[STRUCT_STATISTICS]
    assert found[0] == typed.columns(files)[STRUCT_STATISTICS][0], "a text was parsed again"


def test_json_text_is_made_for_statistics_that_are_only_typed() -> None:
    typed = TypedCopies.of(plan())
    files = pl.DataFrame({"path": list("abcd"), "stats": TEXTS})
    structs = pl.Series(STRUCT_STATISTICS, typed.columns(files)[STRUCT_STATISTICS])
    assert statistics_text(files.with_columns(structs)).to_list() == TEXTS
    alone = statistics_text(pl.DataFrame([files["path"], structs])).to_list()
    assert json.loads(alone[0])["minValues"]["S"]["x"] == "ä"
    assert json.loads(alone[3])["numRecords"] == 1
    assert alone[1] is None


def test_partition_column_of_an_unknown_type_has_no_typed_copy() -> None:
    odd = schema(field("p", "interval second"), field("q", "date"))
    typed = TypedCopies.of(plan(odd, partition_columns=("p", "q", "absent")))
    assert typed.partitions == pa.struct({"q": pa.date32(), "absent": pa.string()})
    files = pl.DataFrame(
        {
            "path": ["a", "b"],
            "partitionValues": [{"p": "1", "q": "2024-01-01", "absent": "x"}, None],
        },
        schema_overrides={"partitionValues": actions.schema()["partitionValues"]},
    )
    found = typed.columns(files)["partitionValues_parsed"].to_pylist()
    assert [str(row["q"]) for row in found] == ["2024-01-01", "None"]
    assert [row["absent"] for row in found] == ["x", None]
