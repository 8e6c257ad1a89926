"""commitInfo bodies as rows: known fields of the right type in columns, others in ``extra``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.commit_info import flatten_commit_infos
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import CommitInfo
from lakelog.dialects.strict_decoder import text_of
from lakelog.model import actions

DELTA = Wire.of("delta")


def row(body: dict[str, Any]) -> dict[str, Any]:
    frame = flatten_commit_infos([CommitInfo(3, 1, body)], DELTA)
    return actions.conform(frame).row(0, named=True)


def test_known_fields_have_their_columns() -> None:
    body = {
        "operation": "MERGE",
        "operationParameters": {"predicate": "[]", "matched": 5, "absent": None},
        "operationMetrics": {"n": "1"},
        "userName": "u",
        "engineInfo": "e",
        "txnId": "t",
        "isBlindAppend": False,
        "inCommitTimestamp": 5,
    }
    found = row(body)
    assert (found["version"], found["position"], found["actionType"]) == (3, 1, "commitInfo")
    assert found["operationParameters"] == {"absent": None, "matched": "5", "predicate": "[]"}
    assert found["operationMetrics"] == {"n": "1"}
    assert (found["isBlindAppend"], found["inCommitTimestamp"]) == (False, 5)
    assert found["extra"] is None


def test_unknown_fields_are_kept_and_nulls_are_not() -> None:
    found = row({"operation": "W", "notebook": {"id": 7}, "clusterId": None, "timestamp": 1})
    assert json.loads(found["extra"]) == {"notebook": {"id": 7}, "timestamp": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation", 1),
        ("isBlindAppend", "true"),
        ("inCommitTimestamp", "1"),
        ("inCommitTimestamp", 1.5),
        ("inCommitTimestamp", True),
        ("inCommitTimestamp", 2**63),
        ("operationParameters", []),
        ("operationMetrics", "x"),
    ],
)
def test_known_field_of_a_wrong_type_is_kept_as_unknown(field: str, value: object) -> None:
    found = row({field: value})
    assert json.loads(found["extra"]) == {field: value}
    assert found[field] is None


def test_no_commit_info_gives_no_rows_but_every_column() -> None:
    frame = flatten_commit_infos([], DELTA)
    assert frame.height == 0
    assert {"version", "operation", "operationParameters", "extra"} <= set(frame.columns)


MAPS = st.none() | st.dictionaries(
    st.text(max_size=3), st.none() | st.text(max_size=3) | st.integers(-9, 9), max_size=4
)


@given(st.lists(st.tuples(MAPS, MAPS), max_size=6))
def test_map_values_are_kept_as_text(values: list[tuple[Any, Any]]) -> None:
    bodies = [{"operationParameters": p, "operationMetrics": m} for p, m in values]
    infos = [CommitInfo(n, 0, body) for n, body in enumerate(bodies)]
    frame = flatten_commit_infos(infos, DELTA)
    full = actions.schema()
    assert all(frame.schema[c] == full[c] for c in frame.columns)
    for column in ("operationParameters", "operationMetrics"):
        expected = [
            None if body[column] is None else {k: text_of(v) for k, v in body[column].items()}
            for body in bodies
        ]
        assert frame[column].to_list() == expected
