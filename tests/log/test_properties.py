"""Retention properties, in Spark's interval syntax."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.log.properties import deleted_file_retention_ms, transaction_retention_ms
from lakelog.model.durations import parse_interval_ms

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("interval 1 week", 7 * DAY_MS),
        ("interval 30 days", 30 * DAY_MS),
        ("INTERVAL 2 DAYS", 2 * DAY_MS),
        ("  interval   1   week   2 days  ", 9 * DAY_MS),
        ("1 hour", 3_600_000),
        ("interval 1 minute 1 second 1 millisecond", 61_001),
        ("interval 1500 microseconds", 1),
        ("interval 1 day, 1 hour", DAY_MS + 3_600_000),
        ("interval -1 day", -DAY_MS),
        ("interval +1 day", DAY_MS),
        ("interval 0 seconds", 0),
    ],
)
def test_interval_is_a_sum_of_its_parts(text: str, ms: int) -> None:
    assert parse_interval_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "interval 1 month",
        "interval 1 year",
        "one day",
        "5",
        "interval days",
        "interval 1 day!",
        "",
        "interval",
        "1.5 days",
    ],
)
def test_text_that_is_not_an_interval_of_fixed_length_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_interval_ms(text)
    assert refused.value.found == text


def test_tombstones_are_kept_for_one_week_by_default() -> None:
    assert deleted_file_retention_ms({}) == 7 * DAY_MS
    properties = {"delta.deletedFileRetentionDuration": "interval 1 day"}
    assert deleted_file_retention_ms(properties) == DAY_MS


def test_transactions_never_expire_by_default() -> None:
    assert transaction_retention_ms({}) is None
    properties = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    assert transaction_retention_ms(properties) == DAY_MS


def test_retention_of_transactions_has_an_exact_key() -> None:
    # As in Delta on Spark: else a version of an application would be written twice.
    assert transaction_retention_ms({"delta.settransactionretentionduration": "1 day"}) is None


@pytest.mark.parametrize("function", [deleted_file_retention_ms, transaction_retention_ms])
def test_malformed_property_is_named(function: Callable[[dict[str, str]], object]) -> None:
    names = ("delta.deletedFileRetentionDuration", "delta.setTransactionRetentionDuration")
    with pytest.raises(InvalidPropertyError, match=r"delta\.\w+RetentionDuration") as refused:
        function(dict.fromkeys(names, "a while"))
    assert refused.value.found == "a while"
