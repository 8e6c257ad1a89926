"""Which files of a commit may match a predicate that was read, and which values exclude them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import InvalidInputError
from lakelog.model.metadata import Protocol
from lakelog.transaction.conflicts import find_conflict, may_match
from tests.handmade import add, field, metadata, protocol, remove
from tests.transaction.conflict_cases import (
    COLUMNS,
    METADATA,
    NOT_BLIND,
    at,
    bounds,
    decoded,
    metadata_of,
    p,
    pending,
    q,
    rule_of,
    winner,
    x,
)


@pytest.mark.parametrize("stats", [{}, {"stats": None}, {"stats": "{}"}, {"stats": '{"numRec'}])
def test_missing_statistics_exclude_no_file(stats: dict[str, Any]) -> None:
    won = winner(NOT_BLIND, add("f", **at("a"), **stats))
    assert rule_of(pending(remove("o"), where=[x > 100]), won) == "read_files_appended"


def test_statistics_exclude_a_file_only_outside_both_bounds() -> None:
    tx = pending(remove("o"), where=[x > 100])
    assert rule_of(tx, winner(NOT_BLIND, add("f", **at("a"), **bounds(1, 100)))) is None
    for low, high in ((1, 101), (1, None)):
        won = winner(NOT_BLIND, add("f", **at("a"), **bounds(low, high)))
        assert rule_of(tx, won) == "read_files_appended"


def test_truncated_maximum_string_is_treated_as_a_prefix() -> None:
    read = metadata(*COLUMNS, field("s", "string"), partitioned=("p", "q"))
    cut = "k" * 32
    stats = json.dumps({"numRecords": 1, "minValues": {"s": "a"}, "maxValues": {"s": cut}})
    won = winner(NOT_BLIND, add("f", **at("a"), stats=stats))
    for bound, rule in ((cut + "zz", "read_files_appended"), ("l", None)):
        tx = pending(remove("o"), where=[pl.col("s") >= bound], read_metadata=read)
        assert rule_of(tx, won) == rule


def test_null_partition_values_match_is_null_and_no_comparison() -> None:
    for value in (None, ""):
        won = winner(NOT_BLIND, add("f", **at(value)))
        for where, rule in (
            (p.is_null(), "read_files_appended"),
            (p == "a", None),
            (p != "a", None),
            (p.eq_missing(pl.lit(None, dtype=pl.String)), "read_files_appended"),
        ):
            assert rule_of(pending(remove("o"), where=[where]), won) == rule


def test_invalid_partition_values_match_every_predicate() -> None:
    won = winner(NOT_BLIND, add("f", partitionValues={"p": "a", "q": "many"}))
    assert rule_of(pending(remove("o"), where=[q == 1]), won) == "read_files_appended"
    assert rule_of(pending(remove("o"), where=[(q == 1) & (p == "b")]), won) is None


@pytest.mark.parametrize("name", ["a b", "ü=%20", "x.y", "back`tick", "日本", "Q"])
def test_partition_columns_with_special_names_and_values_exclude_files(name: str) -> None:
    read = metadata(field(name, "string"), field("x"), partitioned=(name,))
    values: dict[str, Any] = {"partitionValues": {name: "50% / ü=\n"}}
    won = winner(NOT_BLIND, add("f", **values))
    for value, rule in (("50% / ü=\n", "read_files_appended"), ("50%25 / ü=", None)):
        tx = pending(remove("o"), where=[pl.col(name) == value], read_metadata=read)
        assert rule_of(tx, won) == rule


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_read_by_their_physical_names(mode: str) -> None:
    def mapped(name: str, type_: str, identity: int) -> dict[str, Any]:
        key = "delta.columnMapping."
        return field(name, type_, **{f"{key}physicalName": f"col-{name}", f"{key}id": identity})

    read = metadata(
        mapped("p", "string", 1),
        mapped("x", "long", 2),
        partitioned=("p",),
        properties={"delta.columnMapping.mode": mode},
    )
    stats = json.dumps(
        {"numRecords": 1, "minValues": {"col-x": 3}, "maxValues": {"col-x": 4, "x": 100}}
    )
    won = winner(NOT_BLIND, add("f", partitionValues={"col-p": "a", "p": "b"}, stats=stats))
    for where, rule in (
        (p == "a", "read_files_appended"),
        (p == "b", None),
        (x == 4, "read_files_appended"),
        (x > 4, None),
    ):
        tx = pending(remove("o"), where=[where], read_protocol=protocol(2, 5), read_metadata=read)
        assert rule_of(tx, won) == rule


@pytest.mark.parametrize("text", ["2024-01-31T10:20:30.456789Z", "2024-01-31 10:20:30.456789"])
def test_timestamps_are_compared_as_times(text: str) -> None:
    read = metadata(field("t", "timestamp"), field("u", "timestamp"), partitioned=("t",))
    # Statistics are truncated, by some writers to seconds: the true maximum may be later in it.
    stats = json.dumps({"numRecords": 1, "maxValues": {"u": "2024-01-31T10:20:30.456Z"}})
    won = winner(NOT_BLIND, add("f", partitionValues={"t": text}, stats=stats))
    moment = datetime(2024, 1, 31, 10, 20, 30, 456789, tzinfo=UTC)
    after = datetime(2024, 1, 31, 10, 20, 31, tzinfo=UTC)
    t, u = pl.col("t"), pl.col("u")
    for where, rule in (
        (t == moment, "read_files_appended"),
        (t > moment, None),
        (u == moment, "read_files_appended"),
        (u > after, None),
    ):
        tx = pending(remove("o"), where=[where], read_metadata=read)
        assert rule_of(tx, won) == rule


def test_unsupported_predicate_matches_every_file() -> None:
    hidden = x.map_batches(
        lambda values: values > 1_000, return_dtype=pl.Boolean, is_elementwise=True
    )
    won = winner(NOT_BLIND, add("f", **at("a"), **bounds(1, 2)))
    for where in (hidden, hidden & (p == "b"), x * x > 1_000):
        assert rule_of(pending(remove("o"), where=[where]), won) == "read_files_appended"
    assert rule_of(pending(remove("o"), where=[(x * x > 1_000) & (p == "b")]), won) is None


def test_predicate_over_a_missing_column_raises() -> None:
    with pytest.raises(InvalidInputError, match="column=missing"):
        find_conflict(pending(add("g"), where=[pl.col("missing") == 1]), winner(add("f")))


def test_may_match_returns_the_files_that_any_predicate_may_match() -> None:
    files = decoded([add("f", **at("a"), **bounds(1, 2)), add("g", **at("b")), add("h")]).files
    table = TableConfiguration(DELTA, Protocol(1, 2), metadata_of(METADATA))
    for where, kept in (
        ((p == "a", x > 5), [True, True, True]),
        ((x > 5,), [False, True, True]),
        ((), [False, False, False]),
    ):
        assert may_match(files, where, table).to_list() == kept
