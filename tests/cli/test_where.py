"""A SQL condition means what the same Polars expression means."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest

import lakelog as engine
from lakelog.errors import InvalidInputError

DAY = dt.date(2026, 1, 2)
CASES = {
    "day = '2026-01-02'": pl.col("day") == DAY,
    "day >= DATE '2026-01-02'": pl.col("day") >= DAY,
    "'2026-01-02' < day": pl.col("day") > DAY,
    "day IN ('2026-01-02', '2026-01-03')": pl.col("day").is_in([DAY, dt.date(2026, 1, 3)]),
    "region = 'eu' AND amount > 800": (pl.col("region") == "eu") & (pl.col("amount") > 800),
    "NOT (region = 'eu' OR region = 'us')": ~pl.col("region").is_in(["eu", "us"]),
    "quantity BETWEEN 30 AND 35": pl.col("quantity").is_between(30, 35),
    "placed_at < '2026-01-01T02:00:00'": pl.col("placed_at")
    < dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC),
    "placed_at < TIMESTAMP '2026-01-01 02:00:00'": pl.col("placed_at")
    < dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC),
    "region = 'TIMESTAMP ''x'''": pl.col("region") == "TIMESTAMP 'x'",
    "day >= TIMESTAMP '2026-01-02 00:00:00'": pl.col("day") >= DAY,
    "coupon IS NULL": pl.col("coupon").is_null(),
    "region = 'FILTER'": pl.col("region") == "FILTER",
    "true": pl.lit(True),
}


@pytest.mark.parametrize("text", CASES)
def test_sql_condition_keeps_the_same_files_as_the_expression(table: str, text: str) -> None:
    snapshot = engine.open(table).snapshot()
    by_sql = snapshot.files(where=text).collect()
    by_expression = snapshot.files(where=CASES[text]).collect()
    assert sorted(by_sql["path"]) == sorted(by_expression["path"])


def test_conditions_prune_files(table: str) -> None:
    snapshot = engine.open(table).snapshot()
    for text in list(CASES)[:6]:
        kept = snapshot.files(where=text).collect().height
        assert 0 < kept < snapshot.num_files(), text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "day >",
        "nothing = 1",
        "amount",
        "amount > avg(amount)",
        "amount > 1) OR (1 = 1",
        "1 = 1; DROP TABLE x",
        "day > 'tomorrow'",
        "no_such_function(amount) > 1",
    ],
)
def test_invalid_condition_is_refused(table: str, text: str) -> None:
    snapshot = engine.open(table).snapshot()
    with pytest.raises(InvalidInputError):
        snapshot.files(where=text).collect()
